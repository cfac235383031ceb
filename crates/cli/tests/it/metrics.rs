//! `voltier metrics`, and the daemon's answers to Prometheus, through the real binary.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::support::arrays::with;
use crate::support::{Instance, MIB, until};

/// The samples of a text, by name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    lines.map(sample).collect()
}

fn metrics(instance: &Instance) -> String {
    // They are those of the last look of the daemon.
    let is_seen = || instance.run(&["metrics"]).out.contains("voltier_volume_up{volume=\"v\"} 1");
    until("the first look", is_seen);
    instance.run(&["metrics"]).ok().out
}

fn get(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A port that nobody has now.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn metrics_count_every_request_by_layer_and_keep_to_the_conventions() {
    let instance = Instance::new();
    let (disk, ssd) = (instance.drive("disk", 64 * MIB), instance.drive("ssd", 32 * MIB));
    let members = ["m0", "m1", "m2"].map(|name| instance.drive(name, 16 * MIB));
    instance.run(&["create", "-p", &disk, "-s", &ssd, "-t", "wb", "v"]).ok();
    instance.run(&with(&["create", "a", "--level", "5", "--export", "none"], &members)).ok();
    instance.export("v");
    let mut nbd = instance.connect("v");
    for block in 0..40 {
        nbd.write(block * 4096, &[1; 4096]).unwrap();
    }
    nbd.flush().unwrap();
    for block in 0..30 {
        nbd.read(block * 4096, 4096).unwrap();
    }
    let of = |layer: &str, drive: &str, operation: &str| {
        format!(
            "voltier_request_duration_seconds_count{{volume=\"v\",layer=\"{layer}\",drive=\"{drive}\",\
             operation=\"{operation}\"}}"
        )
    };
    let reads = of("volume", "", "read");
    until("the look after the reads", || samples(&metrics(&instance)).get(&reads) == Some(&30.0));
    let text = metrics(&instance);
    let found = samples(&text);
    assert_eq!(found[&of("volume", "", "write")], 40.0);
    assert_eq!(found[&of("volume", "", "flush")], 1.0);
    assert!(found[&of("ssd", &ssd, "read")] >= 30.0, "each read is a hit");
    assert_eq!(found["voltier_volume_up{volume=\"v\"}"], 1.0);
    assert_eq!(found["voltier_volume_reads_bytes_total{volume=\"v\"}"], 30.0 * 4096.0);
    assert_eq!(found["voltier_array_members{array=\"a\",state=\"online\"}"], 3.0);
    assert_eq!(found["voltier_health{part=\"volume\",name=\"v\",of=\"\"}"], 0.0);
    // One TYPE and HELP each, before the samples; names as the conventions have them.
    let mut types = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        assert!(types.insert(name, kind).is_none(), "{name} twice");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
        assert!(!["_us", "_ns", "_ms"].iter().any(|it| name.ends_with(it)), "{name}");
    }
    let helped: BTreeSet<_> = text.lines().filter_map(|it| it.strip_prefix("# HELP ")).collect();
    assert_eq!(helped.len(), types.len());
    let ends = ["_bucket", "_sum", "_count"];
    for name in found.keys() {
        let name = name.split('{').next().unwrap();
        let stem = ends.iter().find_map(|end| name.strip_suffix(end));
        assert!(
            types.contains_key(name) || stem.is_some_and(|it| types.contains_key(it)),
            "{name}"
        );
    }
    // Buckets only grow, up to the count.
    let bucket = |le: &str| {
        found
            [&format!("{},le=\"{le}\"}}", reads.replace("_count", "_bucket").trim_end_matches('}'))]
    };
    assert_eq!(bucket("+Inf"), 30.0);
    assert!(bucket("0.000016") <= bucket("0.016384") && bucket("67.108864") == 30.0);
}

#[test]
fn a_textfile_is_whole_at_any_moment_and_what_cannot_be_is_refused_in_a_line() {
    let instance = Instance::new();
    instance.run(&["metrics"]).refused(1, "no daemon");
    instance.run(&["create", "-p", "mem:16M", "v"]).ok();
    metrics(&instance);
    let path = instance.aside("voltier.prom");
    instance.run(&["metrics", "--textfile", &path]).ok();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("voltier_volume_up{volume=\"v\"} 1\n"), "{text}");
    assert_eq!(std::fs::read_dir(instance.path("aside")).unwrap().count(), 1);
    instance
        .run(&["metrics", "--textfile", "/nowhere/x.prom"])
        .refused(1, "writing /nowhere/x.prom");
    instance.run(&["metrics", "--json"]).refused(2, "show --json");
    for (address, words) in [("0.0.0.0:9810", "no password"), ("nowhere", "no address for metrics")]
    {
        let answer = instance.run(&["daemon", "--metrics", address]);
        assert_eq!(answer.code, 2, "{answer:?}");
        assert!(answer.err.contains(words), "{answer:?}");
    }
}

#[test]
fn prometheus_is_answered_and_forged_large_and_slow_requests_hold_up_nobody() {
    let port = port();
    let address = format!("127.0.0.1:{port}");
    let instance = Instance::new().with_variable("VOLTIER_METRICS", &address);
    instance.run(&["create", "-p", "mem:16M", "v"]).ok();
    let text = metrics(&instance);
    // Clients that say nothing, or begin and go on no more.
    let silent: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let mut begun = TcpStream::connect(&address).unwrap();
    begun.write_all(b"GET /met").unwrap();
    let answer = get(port, &format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n"));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    assert_eq!(body.lines().next(), text.lines().next());
    assert!(samples(body).contains_key("voltier_volume_up{volume=\"v\"}"), "{body}");
    let large = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(20_000));
    for (request, status) in [
        ("POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "405 Method Not Allowed"),
        ("GET /metrics HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n", "421 Misdirected Request"),
        ("GET /../../etc/passwd HTTP/1.1\r\n\r\n", "404 Not Found"),
        ("nonsense\r\n\r\n", "400 Bad Request"),
        (large.as_str(), "431 Request Header Fields Too Large"),
    ] {
        let answer = get(port, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{answer}");
    }
    let head = get(port, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.ends_with("\r\n\r\n") && head.starts_with("HTTP/1.1 200 OK"), "{head}");
    // Those that are slow are sent away, and all places are free again.
    until("the slow ones are gone", || {
        silent.iter().all(|it| it.try_clone().unwrap().read(&mut [0; 1]).is_ok_and(|it| it == 0))
    });
    assert_eq!(instance.run(&["health"]).ok().code, 0);
}

#[test]
fn an_address_in_use_is_a_warning_and_is_taken_when_it_is_free() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let instance = Instance::new().with_variable("VOLTIER_METRICS", &address);
    instance.run(&["create", "-p", "mem:16M", "v"]).ok();
    let warned = || instance.run(&["health"]).out.contains("metrics cannot be answered");
    until("the warning", warned);
    let events = || instance.run(&["events", "--json"]).ok().out.matches("metrics_fail").count();
    until("its event", || events() == 1);
    drop(taken);
    until("it is over", || !warned());
    until("its end is an event", || events() == 2);
    let port = address.rsplit_once(':').unwrap().1.parse().unwrap();
    assert!(get(port, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK"));
}

fn body(port: u16, path: &str) -> String {
    let answer = get(port, &format!("GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n"));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {head}");
    body.to_owned()
}

/// Without what runs on while nobody asks for anything.
fn at_rest(mut shown: Value) -> Value {
    const RUNS: [&str; 4] = ["recent", "uptime_seconds", "read_latency", "write_latency"];
    let parts: Vec<&mut Value> = match &mut shown {
        Value::Object(fields) => {
            fields.retain(|name, _| !RUNS.contains(&name.as_str()));
            fields.values_mut().collect()
        }
        Value::Array(list) => list.iter_mut().collect(),
        _ => Vec::new(),
    };
    parts.into_iter().for_each(|part| *part = at_rest(part.take()));
    shown
}

#[test]
fn the_page_is_answered_and_shows_what_the_commands_show() {
    let port = port();
    let address = format!("127.0.0.1:{port}");
    let instance = Instance::new().with_variable("VOLTIER_METRICS", &address);
    let (disk, ssd) = (instance.drive("<b>disk", 64 * MIB), instance.drive("ssd", 32 * MIB));
    let members = ["m0", "m1", "m2"].map(|name| instance.drive(name, 16 * MIB));
    let spare = instance.drive("spare", 16 * MIB);
    instance.run(&["create", "-p", &disk, "-s", &ssd, "-t", "wt", "v"]).ok();
    instance.run(&["create", "-p", "mem:16M", "other"]).ok();
    instance.run(&with(&["create", "a", "--level", "5", "--export", "none"], &members)).ok();
    instance.run(&["array", "spare-pool", "add", "p", &spare]).ok();
    instance.run(&["array", "fail", "a", "1"]).ok();
    instance.export("v");
    let mut nbd = instance.connect("v");
    for block in 0..20 {
        nbd.write(block * 4096, &[1; 4096]).unwrap();
        nbd.read(block * 4096, 4096).unwrap();
    }
    drop(nbd);
    let shown = |args: &[&str]| at_rest(instance.run(args).shown());
    let page = || -> Value { serde_json::from_str(&body(port, "/status.json")).unwrap() };
    let mut seen = Value::Null;
    until("the look after the last request", || {
        seen = page();
        at_rest(seen["volumes"].clone()) == shown(&["show", "--json"])
            && at_rest(seen["arrays"].clone()) == shown(&["array", "show", "--json"])
            && seen["pools"] == shown(&["array", "spare-pool", "show", "--json"])
            && seen["health"] == shown(&["health", "--json"])
    });
    assert_eq!(seen["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        (&seen["health"]["state"], &seen["volumes"][1]["name"]),
        (&"degraded".into(), &"v".into())
    );
    assert_eq!(seen["volumes"][1]["writes"]["requests"], 20);
    assert!(seen["volumes"][1]["recent"]["reads"]["per_second"].is_number(), "{seen}");
    let before = seen["time"].clone();
    until("the next look", || page()["time"] != before);
    // The page has all in itself, and asks for what it shows under its own address.
    let page = body(port, "/");
    assert!(page.starts_with("<!DOCTYPE html>\n<html lang=\"en\">"), "{page}");
    assert!(page.contains("fetch(\"status.json\""), "{page}");
    assert!(!page.contains("innerHTML") && !page.contains("src="), "names are no HTML");
    for path in ["/status", "/index.html", "/status.json/", "//", "/show"] {
        let answer = get(port, &format!("GET {path} HTTP/1.1\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{path}: {answer}");
    }
    for path in ["/", "/status.json"] {
        let answer = get(port, &format!("POST {path} HTTP/1.1\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 405 "), "{path}: {answer}");
    }
}
