//! `voltier lab` as a tester uses it: every plan on a file, bad input, interruptions.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::{Answer, Instance};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// Whether fio is there; says so aloud where it is not.
fn has_fio() -> bool {
    let found = Command::new("fio").arg("--version").output().is_ok();
    if !found {
        eprintln!("left out: fio is missing");
    }
    found
}

/// Runs a plan with tiny settings; its points.
fn measured(instance: &Instance, plan: &str, more: &str) -> Vec<Value> {
    run(instance, plan, more).ok();
    points(instance, plan)
}

/// Runs a plan in its quick form; `more` are further words.
fn run(instance: &Instance, plan: &str, more: &str) -> Answer {
    let out = instance.path(&format!("{plan}-run")).display().to_string();
    let mut words = vec!["lab", "run", plan, "--quick", "--out", &out];
    words.extend(more.split_whitespace());
    instance.run(&words)
}

fn points(instance: &Instance, plan: &str) -> Vec<Value> {
    lines(&instance.path(&format!("{plan}-run")).join("run.jsonl"), "point")
}

/// The records of a kind; of a repeated id the last.
fn lines(path: &PathBuf, kind: &str) -> Vec<Value> {
    let mut all = Vec::<Value>::new();
    for line in fs::read_to_string(path).unwrap().lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        if value["record"] != kind {
            continue;
        }
        all.retain(|known| kind == "manifest" || known["id"] != value["id"]);
        all.push(value);
    }
    all
}

fn ids(points: &[Value]) -> Vec<&str> {
    points.iter().map(|point| point["id"].as_str().unwrap()).collect()
}

fn of_phase<'a>(points: &'a [Value], phase: &str) -> Vec<&'a Value> {
    points.iter().filter(|point| point["axes"]["phase"] == phase).collect()
}

#[track_caller]
fn all_are_ok(points: &[Value]) {
    for point in points {
        assert!(
            ["ok", "not_steady"].contains(&point["status"]["state"].as_str().unwrap()),
            "{point}"
        );
    }
}

#[test]
fn plans_and_models_are_listed() {
    let instance = Instance::new();
    let text = instance.run(&["lab", "list"]).ok().out;
    for name in
        ["maxio", "pts", "orion", "hotfiles", "database", "clients", "mixed", "model:hdd-7200"]
    {
        assert!(text.contains(name), "{name} in {text}");
    }
    assert_eq!(instance.run(&["lab", "list", "--json"]).json()["plans"][0]["name"], "maxio");
}

#[test]
fn figures_of_a_point_are_those_of_fios_own_json() {
    if !has_fio() {
        return;
    }
    let instance = Instance::new();
    let file = instance.path("disk").display().to_string();
    let more = format!("--target {file} --size 16M --seconds 2 --set depths=[4] --set reads=[50]");
    let points = measured(&instance, "mixed", &more);
    all_are_ok(&points);
    assert_eq!(ids(&points), ["target/fill", "target/mixed/read=50/bs=4096/jobs=1/depth=4"]);
    let raw = instance.path("mixed-run/raw/target,mixed,read=50,bs=4096,jobs=1,depth=4.json");
    let raw: Value = serde_json::from_str(&fs::read_to_string(raw).unwrap()).unwrap();
    for direction in ["read", "write"] {
        let (ours, fios) = (&points[1][direction], &raw["jobs"][0][direction]);
        assert_eq!(ours["requests"], fios["total_ios"]);
        assert_eq!(ours["bytes"], fios["io_bytes"]);
        assert_eq!(ours["iops"], fios["iops"]);
        assert_eq!(ours["latency"]["mean_ns"], fios["lat_ns"]["mean"]);
        assert_eq!(ours["latency"]["percentiles_ns"], fios["lat_ns"]["percentile"]);
        let counts = |bins: &Value| -> u64 {
            bins.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
        };
        assert_eq!(counts(&ours["histogram"]), counts(&fios["lat_ns"]["bins"]));
    }
    assert!(points[1]["cpu"]["system_us_per_request"].as_f64().unwrap() > 0.0);
    assert!(points[1]["command"][0] == "fio" && points[1]["series"].as_array().unwrap().len() > 3);
    let manifest = &lines(&instance.path("mixed-run/run.jsonl"), "manifest")[0];
    assert!(manifest["environment"]["fio"].as_str().unwrap().starts_with("fio-3."));
    assert_eq!(manifest["targets"][0]["size_bytes"], 16 << 20);
    assert!(!instance.path("disk").exists(), "the run removes the file it made");
}

#[test]
fn maxio_measures_the_accelerated_volume_with_hits_of_the_same_window() {
    if !has_fio() {
        return;
    }
    let instance = Instance::new();
    let (hdd, ssd) = (instance.drive("hdd", 32 << 20), instance.drive("ssd", 64 << 20));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "fast"]).ok();
    let plain = format!("hdd={}", instance.drive("plain", 32 << 20));
    let more =
        format!("--target {plain} --target accelerated=volume:fast --size 32M --seconds 0.2");
    run(&instance, "maxio", &more).refused(1, "--destroy volume:fast");
    let points = measured(&instance, "maxio", &format!("{more} --destroy volume:fast"));
    all_are_ok(&points);
    assert_eq!(points.len(), 2 + 5 * 2);
    let random = of_phase(&points, "rand_read");
    let cached = random.iter().find(|point| point["axes"]["target"] == "accelerated").unwrap();
    let window = &cached["cache"];
    assert!(window["read_requests"].as_u64() >= cached["read"]["requests"].as_u64(), "{window}");
    assert!(window["read_hits"].as_u64().unwrap() > 0, "{window}");
    assert_eq!(instance.show("fast")["exports"].as_array().unwrap().len(), 0);
}

#[test]
fn pts_goes_through_all_its_tests() {
    if !has_fio() {
        return;
    }
    let instance = Instance::new();
    let file = instance.path("disk").display().to_string();
    let more = format!(
        "--target {file} --size 16M --seconds 0.05 --set block_sizes=[\"4K\"] \
         --set dirth_loads=[2,1] --set hir_burst_seconds=0.05 \
         --set tp_block_sizes=[\"128K\",\"1M\"]"
    );
    let answer = run(&instance, "pts", &more);
    assert!(answer.err.contains("not a PTS result"), "{answer:?}");
    answer.ok();
    let points = points(&instance, "pts");
    all_are_ok(&points);
    for phase in [
        "wipc-iops",
        "iops",
        "tp",
        "lat",
        "wsat",
        "hir",
        "xsr",
        "ecw",
        "ecw-mid",
        "dirth",
        "dirth-mid",
    ] {
        assert!(!of_phase(&points, phase).is_empty(), "{phase}");
    }
    assert_eq!(of_phase(&points, "hir")[0]["series"].as_array().unwrap().len(), 2);
    assert_eq!(of_phase(&points, "iops").len(), 3 * 5, "three shares of reads in five rounds");
    let file = instance.path("pts-run").join("run.jsonl");
    let ended = |rounds: &Value| rounds["record"] == "rounds" && !rounds["end"].is_null();
    let text = fs::read_to_string(file).unwrap();
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rounds: Vec<Value> = all.filter(ended).collect();
    for (name, trackers) in [("iops", 1), ("tp-131072", 2), ("tp-1048576", 2), ("lat", 1)] {
        let is_named = |rounds: &&Value| rounds["name"].as_str().unwrap().ends_with(name);
        let of = rounds.iter().find(is_named);
        let of = of.unwrap_or_else(|| panic!("{name} in {rounds:?}"));
        assert_eq!(of["window"], serde_json::json!([1, 5]), "{of}");
        assert_eq!(of["trackers"].as_array().unwrap().len(), trackers, "{of}");
        let is_of = |point: &&Value| point["rounds"] == of["name"];
        assert!(points.iter().filter(is_of).count() >= 5 * trackers, "{of}");
    }
    let summary = fs::read_to_string(instance.path("pts-run").join("report.md")).unwrap();
    assert!(summary.contains("PTS-like, not PTS.") && summary.contains("the standard has 60"));
}

#[test]
fn write_saturation_ends_within_a_sample_of_four_capacities() {
    let instance = Instance::new();
    let more = "--target model:ssd-pcie --size 64M --seconds 0.05 --set tests=[\"wsat\"] \
                --set samples=30 --set wsat_samples=300";
    let points = measured(&instance, "pts", more);
    let written: Vec<u64> = of_phase(&points, "wsat")
        .iter()
        .map(|point| point["write"]["bytes"].as_u64().unwrap())
        .collect();
    let all: u64 = written.iter().sum();
    let before_last = all - written.last().unwrap();
    assert!(before_last < 4 * (64 << 20) && all >= 4 * (64 << 20), "{written:?}");
    assert!(written.len() < 30, "the first round is not over: {written:?}");
    let text = fs::read_to_string(instance.path("pts-run").join("run.jsonl")).unwrap();
    assert!(text.contains("\"end\":\"bytes_max\""), "{text}");
}

#[test]
fn orion_takes_its_own_options_and_measures_small_beside_large() {
    if !has_fio() {
        return;
    }
    let instance = Instance::new();
    let file = instance.path("disk").display().to_string();
    let more = format!(
        "--target {file} --size 32M --seconds 0.1 -- -run advanced -matrix detailed \
         -num_disks 1 -type seq -cache_size 0"
    );
    let points = measured(&instance, "orion", &more);
    all_are_ok(&points);
    assert_eq!(of_phase(&points, "orion").len(), 6 * 3 - 1, "the idle point is not measured");
    let both =
        points.iter().find(|point| point["id"].as_str().unwrap().ends_with("small=5/large=2"));
    let metrics = &both.unwrap()["metrics"];
    assert!(metrics["small_iops"].as_f64().unwrap() > 0.0, "{metrics}");
    assert!(metrics["large_bytes_per_second"].as_f64().unwrap() > 0.0, "{metrics}");
    let out = instance.path("other").display().to_string();
    let names = fs::read_dir(instance.path("orion-run")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names.collect();
    let hist = names.iter().find(|name| name.ends_with("_hist.txt")).expect("histograms");
    let hist = fs::read_to_string(instance.path("orion-run").join(hist)).unwrap();
    for kind in ["Small", "Large"] {
        let title = format!("{kind} Read / Write Latency Histogram @ Small=5 and Large=2");
        assert!(hist.contains(&title), "{hist}");
    }
    let csv = names.into_iter().find(|name| name.ends_with("_iops.csv")).expect("Orion's files");
    let csv = instance.path("orion-run").join(csv).display().to_string();
    let back = instance.path("imported").display().to_string();
    instance.run(&["lab", "import", &csv, "--out", &back]).ok();
    let wrong = ["lab", "run", "orion", "--out", &out, "--target", &file, "--", "-num_disk", "2"];
    instance.run(&wrong).refused(2, "did you mean `-num_disks`?");
}

#[test]
fn hot_files_are_read_whole_in_every_pass_and_the_cache_is_switched() {
    if !has_fio() {
        return;
    }
    let instance = Instance::new();
    let folder = instance.path("folder");
    fs::create_dir(&folder).unwrap();
    let small = "--set files=16 --set file_size=64K --set passes=3";
    let target = folder.display();
    let points = measured(&instance, "hotfiles", &format!("--target {target} {small}"));
    all_are_ok(&points);
    let passes = of_phase(&points, "plain");
    assert_eq!(passes.len(), 6);
    assert!(passes.iter().all(|point| point["read"]["requests"] == 16), "{passes:?}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "the files are removed");

    let (hdd, ssd) = (instance.drive("hdd", 8 << 20), instance.drive("ssd", 32 << 20));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "fast"]).ok();
    fs::remove_dir_all(instance.path("hotfiles-run")).unwrap();
    let more = format!("--target volume:fast --destroy volume:fast {small}");
    let points = measured(&instance, "hotfiles", &more);
    all_are_ok(&points);
    for phase in ["off", "on"] {
        let passes = of_phase(&points, phase);
        assert!(passes.iter().all(|point| point["read"]["requests"] == 16), "{passes:?}");
        assert!(passes.iter().all(|point| point["metrics"]["files_per_second"].is_f64()));
    }
    let hits = |phase: &str| of_phase(&points, phase)[5]["cache"]["read_hits"].as_u64().unwrap();
    assert!(hits("on") > hits("off"), "{} {}", hits("on"), hits("off"));
    assert_eq!(instance.show("fast")["mode"], "wb", "the mode of before is back");
}

#[test]
fn clients_run_at_the_same_time_and_their_requests_are_added() {
    if !has_fio() {
        return;
    }
    let instance = Instance::new();
    let file = instance.path("disk").display().to_string();
    let more = format!(
        "--target {file} --size 16M --seconds 0.3 --set clients=[1,3] --set processes=[2] \
         --set reads=[100] --set access=[\"random\"] --set transport=local"
    );
    let points = measured(&instance, "clients", &more);
    all_are_ok(&points);
    let three = points.iter().find(|point| point["axes"]["clients"] == 3).unwrap();
    let clients = three["clients"].as_array().unwrap();
    assert_eq!(clients.len(), 3);
    let sum: u64 = clients.iter().map(|each| each["read"]["requests"].as_u64().unwrap()).sum();
    assert_eq!(three["read"]["requests"], sum);
}

#[test]
fn clients_have_network_namespaces_of_their_own_which_are_removed() {
    if !has_fio() || !rustix::process::geteuid().is_root() {
        return eprintln!("left out: network namespaces need root");
    }
    let can = Command::new("ip").args(["link", "add", "vlprobe", "type", "bridge"]).status();
    if !can.is_ok_and(|status| status.success()) {
        return eprintln!("left out: no bridges here");
    }
    Command::new("ip").args(["link", "del", "vlprobe"]).status().unwrap();
    let instance = Instance::new();
    let file = instance.path("disk").display().to_string();
    let more = format!(
        "--target {file} --size 16M --seconds 1 --set clients=[2] --set processes=[1] \
         --set reads=[100] --set access=[\"random\"]"
    );
    let points = measured(&instance, "clients", &more);
    // On a busy machine the starts may be too far apart for the point to be used.
    let state = points[1]["status"]["state"].as_str().unwrap();
    assert!(["ok", "invalid"].contains(&state), "{}", points[1]["status"]);
    let spaces = Command::new("ip").args(["netns", "list"]).output().unwrap();
    let spaces = String::from_utf8_lossy(&spaces.stdout);
    for space in spaces.lines().filter_map(|line| line.strip_prefix("voltier-lab-")) {
        let owner = space.split('-').next().unwrap();
        assert!(fs::exists(format!("/proc/{owner}")).unwrap(), "left behind: {space}");
    }
    assert!(points[1]["metrics"]["common_iops"].as_f64().unwrap() > 0.0, "{}", points[1]);
    assert_eq!(points[1]["clients"].as_array().unwrap().len(), 2);
    assert!(points[1]["metrics"]["common_iops"].as_f64().unwrap() > 0.0, "{}", points[1]);
}

#[test]
fn a_database_is_made_measured_and_put_away() {
    let instance = Instance::new();
    let folder = instance.path("folder");
    fs::create_dir(&folder).unwrap();
    // The server is not root's when the run is.
    for path in [folder.parent().unwrap(), &folder] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let more = format!("--target {} --seconds 1 --set runs=2 --set scale=1", folder.display());
    let answer = run(&instance, "database", &more);
    if answer.err.contains("is not installed") {
        return eprintln!("left out: {}", answer.err);
    }
    answer.ok();
    let points = points(&instance, "database");
    all_are_ok(&points);
    for run in of_phase(&points, "run") {
        assert!(run["metrics"]["tps"].as_f64().unwrap() > 0.0, "{run}");
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "the database is removed");
}

#[test]
fn modelled_drives_are_measured_in_virtual_time_and_always_alike() {
    let instance = Instance::new();
    let world = |name: &str| {
        let out = instance.path(name).display().to_string();
        let words = [
            "lab",
            "run",
            "mixed",
            "--quick",
            "--target",
            "model:ssd-sata",
            "--size",
            "1G",
            "--seconds",
            "5",
            "--out",
            &out,
            "--set",
            "reads=[100]",
        ];
        instance.run(&words).ok();
        let path = instance.path(name).join("run.jsonl");
        let mut points = lines(&path, "point");
        points.iter_mut().for_each(|point| point["started_unix_ms"] = Value::Null);
        assert_eq!(lines(&path, "manifest")[0]["is_simulation"], true);
        points
    };
    let (one, other) = (world("one"), world("other"));
    assert_eq!(one, other);
    all_are_ok(&one);
    let [a, b] = ["one", "other"].map(|name| instance.path(name).display().to_string());
    let table = instance.run(&["lab", "compare", &a, &b]).ok().out;
    assert!(table.contains("same") && !table.contains("worse"), "{table}");
    instance.run(&["lab", "compare", &a, "nothing"]).refused(1, "nothing");
    let iops = |index: usize| one[index]["read"]["iops"].as_f64().unwrap();
    assert!(iops(3) > 2.0 * iops(1), "depth 16 against 1: {} {}", iops(3), iops(1));
}

#[test]
fn what_cannot_be_used_is_refused_in_one_line_and_nothing_is_changed() {
    let instance = Instance::new();
    let missing = instance.path("missing").display().to_string();
    let held = instance.path("held");
    fs::write(&held, vec![7; 1 << 20]).unwrap();
    let held_name = held.display().to_string();
    let out = instance.path("out").display().to_string();
    let plan = instance.path("mine.toml");
    fs::write(&plan, "method = \"mixed\"\nsecnds = 1\n").unwrap();
    let plan = plan.display().to_string();
    let refused = |words: &[&str]| instance.run(&[&["lab", "run", "--out", &out], words].concat());
    refused(&["mixd", "--target", &missing]).refused(2, "did you mean `mixed`?");
    refused(&[&plan, "--target", &missing]).refused(2, "did you mean `seconds`?");
    refused(&["mixed", "--set", "dephts=[1]", "--target", &missing])
        .refused(2, "did you mean `depths`?");
    refused(&["mixed"]).refused(2, "--target");
    refused(&["mixed", "--target", &missing]).refused(1, "--size");
    refused(&["mixed", "--target", "model:none"]).refused(1, "no drive model");
    refused(&["mixed", "--target", "/dev/null"]).refused(1, "neither a file");
    refused(&["mixed", "--size", "900T", "--target", &missing]).refused(1, "are wanted");
    refused(&["mixed", "--size", "2M", "--target", &held_name]).refused(1, "too small");
    if has_fio() {
        refused(&["mixed", "--target", &held_name]).refused(1, "--destroy");
        refused(&["mixed", "--target", &held_name, "--destroy", &missing]).refused(1, "--destroy");
    }
    instance.run(&["lab", "run", "--resume", &missing]).refused(1, "run.jsonl");
    assert_eq!(fs::read(&held).unwrap(), vec![7; 1 << 20]);
    assert!(!instance.path("out").exists() && !instance.path("missing").exists());
}

/// A folder with a program called fio, which is this script.
fn with_fio(instance: &Instance, script: &str) -> PathBuf {
    let folder = instance.path("bin");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("fio");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn mixed(instance: &Instance, seconds: &str) -> Command {
    let file = instance.path("disk").display().to_string();
    let out = instance.path("mixed-run").display().to_string();
    instance.command(&[
        "lab",
        "run",
        "mixed",
        "--quick",
        "--target",
        &file,
        "--size",
        "16M",
        "--out",
        &out,
        "--seconds",
        seconds,
        "--set",
        "reads=[100,50]",
        "--set",
        "depths=[1,2,4]",
    ])
}

#[test]
fn a_fio_that_is_missing_or_too_old_is_named_with_what_to_do() {
    let instance = Instance::new();
    let empty = instance.path("empty");
    fs::create_dir(&empty).unwrap();
    let answer: Answer = mixed(&instance, "1").env("PATH", &empty).output().unwrap().into();
    answer.refused(1, "apt-get install fio");
    let old = with_fio(&instance, "echo fio-3.28");
    let answer: Answer = mixed(&instance, "1").env("PATH", &old).output().unwrap().into();
    answer.refused(1, "3.30 or newer");
}

#[test]
fn a_point_whose_fio_fails_is_marked_and_has_no_figures() {
    if !has_fio() {
        return;
    }
    let instance = Instance::new();
    let real = Command::new("sh").args(["-c", "command -v fio"]).output().unwrap();
    let real = String::from_utf8(real.stdout).unwrap();
    let script = format!(
        "case \"$*\" in *iodepth=2*) echo 'fio: it broke' >&2; exit 1;; esac\nexec {} \"$@\"",
        real.trim()
    );
    let folder = with_fio(&instance, &script);
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let answer: Answer = mixed(&instance, "0.1").env("PATH", path).output().unwrap().into();
    assert_eq!(answer.code, 1);
    assert!(answer.err.contains("2 points failed"), "{answer:?}");
    let points = points(&instance, "mixed");
    let failed: Vec<&Value> =
        points.iter().filter(|point| point["status"]["state"] == "failed").collect();
    assert_eq!((points.len(), failed.len()), (7, 2));
    for point in failed {
        assert!(point["status"]["why"].as_str().unwrap().contains("it broke"), "{point}");
        assert!(point.get("read").is_none() && point.get("write").is_none(), "{point}");
    }
}

/// Starts a run, sends it a signal when it has some points, and waits for its end.
fn stopped(instance: &Instance, signal: Signal) -> Answer {
    let mut command = mixed(instance, "1");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    let path = instance.path("mixed-run/run.jsonl");
    while fs::read_to_string(&path).map_or(0, |text| text.lines().count()) < 4 {
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
    rustix::process::kill_process(pid, signal).unwrap();
    child.wait_with_output().unwrap().into()
}

fn resumed(instance: &Instance) -> Vec<Value> {
    let before = points(instance, "mixed");
    let out = instance.path("mixed-run").display().to_string();
    instance.run(&["lab", "run", "--resume", &out]).ok();
    let after = points(instance, "mixed");
    all_are_ok(&after);
    assert_eq!(after.len(), 7);
    for point in before.iter().filter(|point| point["status"]["state"] == "ok") {
        assert!(after.contains(point), "what was measured stays: {point}");
    }
    assert!(!instance.path("disk").exists(), "the run removes the file it made");
    before
}

#[test]
fn a_killed_run_keeps_its_points_and_goes_on() {
    if !has_fio() {
        return;
    }
    let instance = Instance::new();
    stopped(&instance, Signal::KILL);
    assert!(resumed(&instance).len() < 7);
}

#[test]
fn an_interrupted_run_says_how_to_go_on_and_marks_what_was_cut() {
    if !has_fio() {
        return;
    }
    let instance = Instance::new();
    let answer = stopped(&instance, Signal::INT);
    assert_eq!(answer.code, 1);
    assert!(answer.err.contains("interrupted") && answer.err.contains("--resume"), "{answer:?}");
    let before = resumed(&instance);
    let states = before.iter().map(|point| point["status"]["state"].as_str().unwrap());
    assert!(states.clone().all(|state| ["ok", "partial"].contains(&state)), "{before:?}");
}

#[test]
fn results_without_space_are_an_error_that_says_so() {
    if !has_fio() || !rustix::process::geteuid().is_root() {
        return eprintln!("left out: a small file system needs root");
    }
    let instance = Instance::new();
    let small = instance.path("small");
    fs::create_dir(&small).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&small).status();
    if !mounted.is_ok_and(|status| status.success()) {
        return eprintln!("left out: no tmpfs here");
    }
    let file = instance.path("disk").display().to_string();
    let out = small.join("run").display().to_string();
    let answer = instance.run(&[
        "lab", "run", "mixed", "--quick", "--target", &file, "--size", "16M", "--out", &out,
    ]);
    Command::new("umount").arg(&small).status().unwrap();
    answer.refused(1, "no space for results");
    assert!(!instance.path("disk").exists());
}
