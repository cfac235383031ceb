//! Volumes without a cache, through the real binary: what every later layer stands on.

use std::fs;

use crate::support::nbd::NbdClient;
use crate::support::{Instance, MIB, fio_is_content, until};
use serde_json::{Value, json};

#[test]
fn show_json_has_every_documented_field() {
    let instance = Instance::new();
    let hdd = instance.drive("hdd", 64 * MIB);
    let created = instance.run(&["create", "-p", &hdd, "v", "--json"]).json();
    let uri = instance.export("v");
    let shown = instance.show("v");
    assert_eq!(created["name"], "v");
    let zero = json!({"requests":0,"hits":0,"misses":0,"bypassed":0,"bytes":0});
    let documented = json!({
        "name": "v", "state": "running", "size_bytes": 64 * MIB, "mode": "pt", "policy": "none",
        "block_size": 4096,
        "ssd": {"path": "", "identity": "", "size_bytes": 0, "state": "none", "silent_seconds": 0},
        "hdd": {
            "path": hdd, "identity": shown["hdd"]["identity"], "size_bytes": 64 * MIB, "state": "online",
            "silent_seconds": 0,
        },
        "lines": {"total": 0, "used": 0, "dirty": 0, "loading": 0}, "memory_bytes": 0,
        "reads": zero, "writes": zero, "hit_rate": {"read": 0.0, "write": 0.0},
        "device_bytes": {"ssd_read": 0, "ssd_written": 0, "hdd_read": 0, "hdd_written": 0},
    });
    for (key, value) in documented.as_object().unwrap() {
        assert_eq!(&shown[key], value, "{key}");
    }
    assert_eq!(shown["exports"][0]["kind"], "nbd");
    assert_eq!(shown["exports"][0]["uri"], Value::String(uri));
    assert_eq!(instance.run(&["show", "--json"]).json().as_array().unwrap().len(), 1);
    let table = instance.run(&["show"]).ok().out;
    assert!(table.starts_with("NAME") && table.contains("\nv     running"), "{table}");
    assert!(instance.run(&["show", "v"]).ok().out.contains("export       nbd nbd+unix:///v"));
}

#[test]
fn data_written_through_nbd_are_on_the_plain_file_after_delete() {
    let instance = Instance::new();
    let hdd = instance.drive("hdd", 64 * MIB);
    fs::write(&hdd, vec![7; 64 << 20]).unwrap();
    instance.run(&["create", "-p", &hdd, "v"]).ok();
    let uri = instance.export("v");
    let mut client = instance.connect("v");
    assert_eq!(client.size_bytes, 64 * MIB);
    assert_eq!(client.read(4096, 512).unwrap(), [7; 512], "data stay in place");
    client.write(512, &[9; 1024]).unwrap();
    client.flush().unwrap();
    instance.run(&["delete", "v"]).refused(1, "unexport");
    drop(client);
    fio_is_content(instance.fio(
        &uri,
        &[
            "--rw=randwrite",
            "--offset=8M",
            "--size=8M",
            "--bsrange=512-64k",
            "--iodepth=8",
            "--verify=crc32c",
        ],
    ));
    instance.run(&["unexport", "v"]).ok();
    assert!(NbdClient::connect(&instance.socket("v"), "v").is_err());
    instance.run(&["delete", "v"]).ok();
    let bytes = fs::read(&hdd).unwrap();
    assert!(
        bytes[..512] == [7; 512] && bytes[512..1536] == [9; 1024] && bytes[1536..2048] == [7; 512]
    );
    assert!(!instance.socket("v").exists());
    instance.run(&["show", "v"]).refused(1, "no volume");
}

#[test]
fn volumes_and_exports_come_back_after_a_clean_stop_and_after_kill() {
    let instance = Instance::new();
    let hdd = instance.drive("hdd", 16 * MIB);
    instance.run(&["create", "-p", &hdd, "v"]).ok();
    let mut client = instance.exported("v");
    client.write(0, &[1; 4096]).unwrap();
    let ends: [fn(&Instance); 2] = [Instance::stop, Instance::kill];
    for end in ends {
        end(&instance);
        instance.serve();
        let mut client = instance.connect("v");
        assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
    }
}

#[test]
fn an_nbd_export_on_tcp_says_which_port_it_has() {
    let instance = Instance::new();
    instance.run(&["create", "-p", "mem:1M", "v"]).ok();
    let answer = instance.run(&["export", "v", "--nbd", "tcp:127.0.0.1:0", "--json"]).json();
    let uri = answer["exports"][0]["uri"].as_str().unwrap();
    let port: u16 =
        uri.trim_start_matches("nbd://127.0.0.1:").trim_end_matches("/v").parse().unwrap();
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let printed = instance.run(&["export", "v", "--nbd", "tcp:127.0.0.1:0"]).ok().out;
    let second = printed.trim().trim_start_matches("nbd://127.0.0.1:").trim_end_matches("/v");
    std::net::TcpStream::connect(("127.0.0.1", second.parse().unwrap())).unwrap();
    instance.run(&["unexport", "v", "--nbd", &format!("tcp:127.0.0.1:{second}")]).ok();
    let busy = format!("tcp:127.0.0.1:{port}");
    instance.run(&["create", "-p", "mem:1M", "w"]).ok();
    instance.run(&["export", "w", "--nbd", &busy]).refused(1, "export of volume v");
    instance.run(&["unexport", "v", "--nbd", &busy]).ok();
    assert_eq!(instance.show("v")["exports"], json!([]));
}

#[test]
fn an_export_to_other_hosts_is_refused_unless_it_is_called_insecure() {
    let instance = Instance::new();
    instance.run(&["create", "-p", "mem:1M", "v"]).ok();
    let everywhere = ["export", "v", "--nbd", "tcp:0.0.0.0:0"];
    instance.run(&everywhere).refused(2, "--insecure");
    assert_eq!(instance.show("v")["exports"], json!([]));
    let answer = instance.run(&[&everywhere[..], &["--insecure", "--json"]].concat()).json();
    assert_eq!(answer["exports"][0]["state"], "open");
    assert_eq!(answer["exports"][0]["error"], "");
}

#[test]
fn a_missing_device_fails_its_volume_and_no_other() {
    let instance = Instance::new();
    let (a, b) = (instance.drive("a", MIB), instance.drive("b", MIB));
    instance.run(&["create", "-p", &a, "va"]).ok();
    instance.run(&["create", "-p", &b, "vb"]).ok();
    instance.stop();
    fs::remove_file(&a).unwrap();
    let va = instance.show("va");
    assert_eq!(va["state"], "failed");
    assert!(va["error"].as_str().unwrap().contains("does not exist"));
    assert_eq!(instance.show("vb")["state"], "running");
    instance.run(&["export", "va", "--nbd"]).refused(1, "not served");
    instance.run(&["delete", "va"]).ok();
    assert_eq!(instance.run(&["show", "--json"]).json().as_array().unwrap().len(), 1);
}

#[test]
fn odd_devices_are_refused_in_one_line_and_nothing_is_made() {
    let instance = Instance::new();
    let hdd = instance.drive("hdd", 8 * MIB);
    let tiny = instance.drive("tiny", 100);
    let cases: [(&[&str], i32, &str); 6] = [
        (&["create", "-p", "/no/such/disk", "x"], 1, "does not exist"),
        (&["create", "-p", "/dev/null", "x"], 1, "neither"),
        (&["create", "-p", &tiny, "x"], 1, "less than one sector"),
        (&["create", "-p", &hdd, "-s", &hdd, "x"], 1, "same device"),
        (&["create", "-p", "model:hdd-9999", "x"], 2, "hdd-7200"),
        (&["create", "-p", &hdd, "-s", "mem:64K", "x"], 1, "at least"),
    ];
    for (args, code, words) in cases {
        instance.run(args).refused(code, words);
    }
    assert_eq!(instance.run(&["show", "--json"]).json(), json!([]));
    instance.run(&["create", "-p", &hdd, "x"]).ok();
    instance.run(&["create", "-p", &hdd, "y"]).refused(1, "already part of volume x");
    instance.run(&["create", "-p", "mem:1M", "x"]).refused(1, "exists");
    instance.run(&["attach", "x", "-s", &hdd]).refused(1, "same device");
    instance.run(&["detach", "x"]).refused(1, "no cache");
    instance.run(&["flush", "x"]).refused(1, "no cache");
    instance.run(&["set", "x", "mode=wb"]).refused(1, "no cache");
    instance.run(&["unexport", "x", "--nbd"]).refused(1, "has no export");
    let taken = instance.path("taken");
    fs::write(&taken, "mine").unwrap();
    let address = format!("unix:{}", taken.display());
    instance.run(&["export", "x", "--nbd", &address]).refused(1, "not a socket");
    instance.run(&["export", "x", "--fuse", taken.to_str().unwrap()]).refused(1, "taken");
    assert_eq!(fs::read_to_string(&taken).unwrap(), "mine");
}

#[test]
fn a_fuse_file_is_the_volume_where_the_kernel_has_fuse() {
    let instance = Instance::new();
    instance.run(&["create", "-p", "mem:8M", "v"]).ok();
    let file = instance.path("file");
    let answer = instance.run(&["export", "v", "--fuse", file.to_str().unwrap()]);
    if answer.code != 0 {
        eprintln!("left out: {}", answer.err);
        answer.refused(1, "");
        return;
    }
    assert_eq!(file.metadata().unwrap().len(), 8 * MIB);
    let mut client = instance.exported("v");
    client.write(4096, &[5; 512]).unwrap();
    assert_eq!(fs::read(&file).unwrap()[4096..4608], [5; 512], "both exports lead to one volume");
    let open = fs::File::open(&file).unwrap();
    instance.run(&["unexport", "v", "--fuse", file.to_str().unwrap()]).refused(1, "in use");
    drop((open, client));
    instance.run(&["delete", "v"]).ok();
    assert!(!file.exists());
}

#[test]
fn the_file_of_a_killed_daemon_is_cleaned_up_by_the_next() {
    let instance = Instance::new();
    let hdd = instance.drive("hdd", 8 * MIB);
    instance.run(&["create", "-p", &hdd, "v"]).ok();
    let file = instance.path("file");
    let path = file.to_str().unwrap();
    if !instance.export_file("v", path) {
        return;
    }
    instance.kill_with_keeper();
    assert!(fs::read(&file).is_err(), "nobody answers");
    instance.serve();
    assert_eq!(file.metadata().unwrap().len(), 8 * MIB);
    instance.run(&["unexport", "v", "--fuse", path]).ok();
    assert!(!file.exists(), "as before the first export");
    instance.run(&["export", "v", "--fuse", path]).ok();
    instance.kill_with_keeper();
    fs::remove_file(&hdd).unwrap();
    assert_eq!(instance.show("v")["state"], "failed");
    assert!(!file.exists(), "also when the volume does not come up");
    instance.run(&["delete", "v"]).ok();
}

#[test]
fn the_end_of_a_file_that_does_not_fill_a_block_is_said_to_be_left_out() {
    let instance = Instance::new();
    let odd = instance.drive("odd", (8 << 20) + 100);
    let created = instance.run(&["create", "-p", &odd, "v"]).ok().err;
    let line = format!("voltier: the last 100 bytes of {odd} are not part of the volume");
    assert!(created.starts_with(&line) && created.lines().count() == 1, "{created}");
    let shown = instance.show("v");
    assert_eq!(
        (&shown["size_bytes"], &shown["hdd"]["unused_tail_bytes"]),
        (&(8 << 20).into(), &100.into())
    );
    instance.run(&["stop", "v"]).ok();
    let started = instance.run(&["start", "v"]).ok().err;
    assert!(started.starts_with(&line), "{started}");
    let log = || std::fs::read_to_string(instance.state().join("daemon.log")).unwrap();
    until("the log has it", || log().matches("v: the last 100 bytes of").count() == 2);
    let even = instance.drive("even", 8 << 20);
    assert_eq!(instance.run(&["create", "-p", &even, "w"]).ok().err, "");
    assert!(instance.show("w")["hdd"].get("unused_tail_bytes").is_none());
}

#[test]
fn show_has_the_rates_and_latencies_of_the_last_seconds_for_the_volume_and_its_disk() {
    let instance = Instance::new();
    let disk = instance.drive("disk", 16 * MIB);
    instance.run(&["create", "-p", &disk, "v"]).ok();
    instance.export("v");
    let mut nbd = instance.connect("v");
    let mut write =
        |count: u64| (0..count).for_each(|at| nbd.write(at * 4096, &[1; 4096]).unwrap());
    until("an interval", || {
        write(50);
        let shown = instance.show("v");
        let writes = |of: &Value| of["recent"]["writes"]["per_second"].as_f64().unwrap_or(0.0);
        writes(&shown) > 0.0 && writes(&shown["hdd"]) > 0.0
    });
    let shown = instance.show("v");
    let recent = &shown["recent"];
    assert!(
        recent["writes"]["p99_us"].as_u64() <= recent["writes"]["worst_us"].as_u64(),
        "{recent}"
    );
    assert!(recent["seconds"].as_f64().unwrap() < 60.0);
    assert_eq!(recent["reads"]["per_second"], 0.0);
    let text = instance.run(&["show", "v"]).ok().out;
    assert!(text.contains("\nclients      ") && text.contains(" writes/s ("), "{text}");
    instance.run(&["stop", "v", "--now"]).ok();
    assert!(instance.show("v").get("recent").is_none());
}
