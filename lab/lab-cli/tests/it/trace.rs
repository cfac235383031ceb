//! `voltier lab trace` as a tester uses it: curves, replays on a file and on models, bad input.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::Instance;
use serde_json::Value;
use voltier_control::{PolicyKind, Word};

/// Whether fio is there; says so aloud where it is not.
fn has_fio() -> bool {
    let found = Command::new("fio").arg("--version").output().is_ok();
    if !found {
        eprintln!("left out: fio is missing");
    }
    found
}

/// A trace of `pattern`; its path.
fn made(instance: &Instance, pattern: &str, more: &str) -> String {
    let path = instance.path(&format!("{}.log", pattern.replace(':', "-"))).display().to_string();
    let mut words = vec!["lab", "trace", "make", pattern, "--output", &path];
    words.extend(more.split_whitespace());
    instance.run(&words).ok();
    path
}

fn points(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("run.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["record"] == "point").collect()
}

fn ratios(curves: &Value, name: &str) -> Vec<f64> {
    let curve = curves["curves"].as_array().unwrap().iter().find(|curve| curve["name"] == name);
    let points =
        curve.unwrap_or_else(|| panic!("{name} in {curves}"))["points"].as_array().unwrap();
    points.iter().map(|point| point["miss_ratio"].as_f64().unwrap()).collect()
}

#[test]
fn the_policy_lru_replayed_misses_what_stack_distances_say() {
    let instance = Instance::new();
    let trace = made(&instance, "mixed:0.9", "--requests 40000 --blocks 8000 --writes 30");
    let words = ["lab", "trace", "mrc", &trace, "--json"];
    let curves = instance.run(&words).json();
    let (exact, lru) = (ratios(&curves, "exact"), ratios(&curves, "lru"));
    assert_eq!(exact.len(), 11);
    for (exact, lru) in exact.iter().zip(&lru) {
        assert!((exact - lru).abs() < 1e-9, "{exact} {lru}");
    }
    assert!(exact.windows(2).all(|pair| pair[0] >= pair[1]), "a larger cache misses no more");
    for (exact, sampled) in exact.iter().zip(ratios(&curves, "shards:0.01")) {
        assert!((0.0..=1.0).contains(&sampled), "{exact} {sampled}");
    }
    let text = instance.run(&["lab", "trace", "mrc", &trace, "--curve", "exact,fifo"]).ok().out;
    assert!(text.contains("miss ratio") && text.contains("* exact   o fifo"), "{text}");
    let stats = instance.run(&["lab", "trace", "stats", &trace, "--json"]).json();
    assert_eq!(
        stats["reads"]["requests"].as_u64().unwrap()
            + stats["writes"]["requests"].as_u64().unwrap(),
        40_000
    );
    assert_eq!(stats["lines"], curves["lines"]);
    let of_intervals = stats["intervals"].as_array().expect("a list").iter();
    assert_eq!(of_intervals.map(|it| it.as_u64().unwrap()).sum::<u64>(), 40_000);
    for (released, key) in [("stretch_seconds", "interval_seconds"), ("stretches", "intervals")] {
        assert_eq!(stats[released], stats[key], "a released key stays");
    }
}

#[test]
fn loops_and_scans_have_the_curves_one_expects() {
    let instance = Instance::new();
    let trace = made(&instance, "loop", "--requests 20000 --blocks 1000");
    let sizes = "--size=2M,4M";
    let curves = instance.run(&["lab", "trace", "mrc", &trace, sizes, "--json"]).json();
    assert_eq!(ratios(&curves, "exact"), [1.0, 0.05], "512 of 1000 lines, and more than all");
    assert_eq!(ratios(&curves, "fifo"), [1.0, 0.05]);
    assert!(ratios(&curves, "rand")[0] < 0.9, "{curves}");
    let scan = made(&instance, "scan", "--requests 3000 --to u32");
    let out = instance.path("curves");
    let shown = out.display().to_string();
    let curves = format!("--curve=exact,{}", PolicyKind::names().join(","));
    let words = ["lab", "trace", "mrc", "--format=u32", &scan, &curves, "--csv", "--out", &shown];
    let csv = instance.run(&words).ok().out;
    assert!(csv.lines().skip(1).all(|line| line.contains(",1.000000,")), "{csv}");
    let kept = points(&out);
    assert_eq!(kept.len(), csv.lines().count() - 1);
    assert!(kept[0]["axes"]["cache_bytes"].is_u64() && kept[0]["metrics"]["miss_ratio"] == 1.0);
    instance.run(&words).refused(1, "already holds a run");
}

#[test]
fn bad_traces_and_questions_are_one_line_each() {
    let instance = Instance::new();
    let file = |name: &str, text: &str| {
        let path = instance.path(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (empty, text) = (file("empty", ""), file("text", "some words\nand more\n"));
    let lines: String = (0..50).map(|n| format!("1,R,{},4096,{n}\n", n * 4096)).collect();
    let broken = file("broken.csv", &format!("{lines}1,R,x,4096,9\n"));
    let nothing = instance.path("nothing").display().to_string();
    let good = file("good.csv", &lines);
    let trace = |words: &[&str]| instance.run(&[&["lab", "trace"][..], words].concat());
    trace(&["stats", &nothing]).refused(1, "No such file");
    trace(&["stats", &empty]).refused(1, "it is empty");
    trace(&["stats", &text]).refused(1, "its format is not recognised: name it with --format (msr");
    trace(&["stats", &good, "--format", "mrs"]).refused(2, "known are msr");
    trace(&["stats", &broken]).refused(1, "line 51: offset `x` is no number");
    let let_pass = trace(&["stats", &broken, "--max-broken", "3"]).ok().out;
    assert!(let_pass.contains("1 broken records were passed over"), "{let_pass}");
    trace(&["mrc", &good, "--size", "1K"]).refused(2, "it holds no line of 4K");
    trace(&["mrc", &good, "--line", "3K"]).refused(2, "a power of two");
    trace(&["mrc", &good, "--curve", "arc"]).refused(2, "no such curve");
    trace(&["mrc", &good, "--mode", "ro"]).refused(2, "--reads-only");
    trace(&["mrc", &good, "--volume", "9"]).refused(1, "no volume in it is called 9");
    trace(&["convert", &broken, "--output", &nothing]).refused(1, "broken");
    assert!(!Path::new(&nothing).exists(), "nothing is left of a trace that is refused");
    trace(&["make", "zipf:x", "--output", &nothing]).refused(2, "is no pattern");
    let target = ["--target", "model:hdd-7200"];
    trace(&[&["replay", &broken], &target[..]].concat()).refused(1, "broken");
    instance
        .run(&["lab", "run", "trace", "--target", "model:hdd-7200"])
        .refused(2, "no file is given");
}

#[test]
fn a_modelled_cache_serves_what_its_policy_keeps() {
    let instance = Instance::new();
    let trace = made(&instance, "zipf:1.1", "--requests 4000 --blocks 400 --writes 20 --rate 2000");
    let replay = |name: &str, more: &[&str]| {
        let out = instance.path(name);
        let shown = out.display().to_string();
        let words =
            ["lab", "trace", "replay", &trace, "--target", "model:hdd-7200", "--out", &shown];
        instance.run(&[&words[..], more].concat()).ok();
        points(&out).remove(0)
    };
    let disk = replay("disk", &["--speed", "max"]);
    let cached = replay("cached", &["--speed", "max", "--cache", "model:ssd-sata:1G"]);
    let seconds = |point: &Value| point["metrics"]["replay_seconds"].as_f64().unwrap();
    assert!(seconds(&cached) * 2.0 < seconds(&disk), "{cached} {disk}");
    let hits = cached["cache"]["read_hits"].as_u64().unwrap() as f64;
    let reads = cached["cache"]["read_requests"].as_u64().unwrap() as f64;
    assert!(hits / reads > 0.5, "{hits} of {reads}");
    let slow = replay("slow", &["--cache", "model:ssd-sata:1G", "--speed", "0.05"]);
    assert!((seconds(&slow) - 40.0).abs() < 0.5, "{slow}");
    assert_eq!(
        slow["read"]["requests"].as_u64().unwrap() + slow["write"]["requests"].as_u64().unwrap(),
        4000
    );
    let overloaded = replay("fast", &["--speed", "100"]);
    assert_eq!(overloaded["status"]["state"], "overloaded", "{overloaded}");
}

#[test]
fn a_replay_on_a_file_passes_the_gate_and_keeps_every_request() {
    if !has_fio() {
        return;
    }
    let instance = Instance::new();
    let trace = made(&instance, "zipf", "--requests 1000 --blocks 2000 --writes 25 --rate 2000");
    let disk = instance.path("disk");
    fs::write(&disk, vec![1; 8 << 20]).unwrap();
    let target = disk.display().to_string();
    let out = instance.path("run").display().to_string();
    let words =
        ["lab", "trace", "replay", &trace, "--target", &target, "--out", &out, "--size", "8M"];
    instance.run(&words).refused(1, "--destroy");
    assert_eq!(fs::read(&disk).unwrap(), vec![1; 8 << 20], "nothing was written");
    let far = made(&instance, "loop", "--requests 3000 --blocks 3000");
    let words_far = ["lab", "trace", "replay", &far, "--target", &target, "--out", &out];
    instance.run(&words_far).refused(1, "the trace reaches to 11.7M");
    let named = [&words[..], &["--destroy", &target]].concat();
    instance.run(&named).ok();
    let point = points(Path::new(&out)).remove(0);
    let count = |flow: &str| point[flow]["requests"].as_u64().unwrap();
    assert_eq!(count("read") + count("write"), 1000, "{point}");
    assert!(point["metrics"]["late_p99_ms"].is_f64() && point["command"][0] == "fio", "{point}");
    assert!(disk.metadata().unwrap().len() == 8 << 20);
}

/// A trace of 300 reads, 100 writes and 20 discards, 4 KiB each, in the first 4 MiB, as fio logs it.
fn with_discards(instance: &Instance) -> String {
    let mut text = "fio version 3 iolog\n0 x add\n0 x open\n".to_owned();
    for number in 0..420_u64 {
        let op = match number % 21 {
            20 => "trim",
            0 | 5 | 10 | 15 | 18 => "write",
            _ => "read",
        };
        text += &format!("{} x {op} {} 4096\n", number * 500, number * 389 % 1024 * 4096);
    }
    let path = instance.path("discards.log");
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Replays the trace with discards: refused until the target is named again, then every read and write
/// is made, and the discards are counted.
#[track_caller]
fn replayed(instance: &Instance, trace: &str, target: &str, name: &str) -> Value {
    let out = instance.path(name).display().to_string();
    let words = ["lab", "trace", "replay", trace, "--target", target, "--out", &out];
    instance.run(&words).refused(1, &format!("--destroy {target}"));
    let answer = instance.run(&[&words[..], &["--destroy", target]].concat()).ok();
    assert!(answer.out.contains("1 points measured"), "{answer:?}");
    let point = points(Path::new(&out)).remove(0);
    let count = |flow: &str| point[flow]["requests"].as_u64().unwrap();
    assert_eq!((count("read"), count("write")), (300, 100), "{point}");
    assert_eq!(point["metrics"]["discards_left_out"], 20.0, "{point}");
    assert!(point["metrics"]["late_p99_ms"].is_f64(), "{point}");
    point
}

#[test]
fn a_replay_reaches_a_volume_by_its_name_and_by_its_export() {
    if !has_fio() {
        return;
    }
    let instance = Instance::new();
    let trace = with_discards(&instance);
    let (hdd, ssd) = (instance.drive("hdd", 32 << 20), instance.drive("ssd", 64 << 20));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "fast"]).ok();
    let point = replayed(&instance, &trace, "volume:fast", "by-name");
    let counted = |name: &str| point["cache"][name].as_u64().unwrap();
    assert_eq!((counted("read_requests"), counted("write_requests")), (300, 100), "{point}");
    assert_eq!(
        instance.show("fast")["exports"].as_array().unwrap().len(),
        0,
        "its export is closed"
    );
    let uri = instance.export("fast");
    replayed(&instance, &trace, &uri, "by-export");
    assert_eq!(instance.show("fast")["exports"].as_array().unwrap().len(), 1, "ours stays open");
    let cache = ["--cache", "model:ssd-sata"];
    let words = ["lab", "trace", "replay", &trace, "--target", "volume:fast"];
    instance.run(&[&words[..], &cache].concat()).refused(2, "model:");
    instance.run(&["lab", "trace", "replay", &trace, "--target", "volume:fats"]).refused(1, "fats");
    instance.stop();
}

#[test]
fn a_replay_reaches_a_block_device() {
    if !has_fio() || !rustix::process::geteuid().is_root() {
        return eprintln!("left out: fio or root is missing");
    }
    let instance = Instance::new();
    let trace = with_discards(&instance);
    let disk = instance.drive("disk", 8 << 20);
    let attached = Command::new("losetup").args(["--find", "--show", &disk]).output();
    let Some(attached) = attached.ok().filter(|output| output.status.success()) else {
        return eprintln!("left out: no loop device can be made here");
    };
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let outcome = std::panic::catch_unwind(|| replayed(&instance, &trace, &device, "device"));
    Command::new("losetup").args(["--detach", &device]).status().unwrap();
    let point = outcome.unwrap();
    let command = point["command"].to_string();
    assert!(command.contains(&format!("--replay_redirect={device}")), "{command}");
}
