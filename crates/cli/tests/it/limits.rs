//! A machine that has too little for what is asked: memory for the map of a large SSD, descriptors for many
//! drives. The answer comes before anything is written, and what is served already goes on.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit, Signal, prlimit};

use crate::support::nbd::NbdClient;
use crate::support::{Answer, Instance, MIB};

const TIB: u64 = 1 << 40;

/// The memory that the daemon has mapped, in bytes.
fn mapped_bytes(instance: &Instance) -> u64 {
    let pid = instance.pid().expect("a daemon runs").as_raw_nonzero();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// Lets the daemon map so much more; without a number, as much as it likes.
fn limit_memory(instance: &Instance, more: Option<u64>) {
    let current = more.map(|more| mapped_bytes(instance) + more);
    prlimit(instance.pid(), Resource::As, Rlimit { current, maximum: None }).unwrap();
}

/// Runs a command with a limit that its daemon inherits; `None`, aloud, without the program for it.
fn run_limited(instance: &Instance, limit: &str, args: &[&str]) -> Option<Answer> {
    let command = instance.command(args);
    let mut limited = Command::new("prlimit");
    limited.arg(limit).arg(command.get_program()).args(args).current_dir(instance.path("."));
    limited.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    match limited.output() {
        Ok(output) => Some(output.into()),
        Err(error) => {
            eprintln!("left out: prlimit: {error}");
            None
        }
    }
}

/// Whether nothing was ever written to a sparse file.
fn is_untouched(path: &str) -> bool {
    fs::metadata(path).unwrap().blocks() == 0
}

/// A volume `innocent` that serves, and a client of it.
fn serving() -> (Instance, NbdClient) {
    let instance = Instance::new();
    let (ssd, hdd) = (instance.drive("ssd", 16 * MIB), instance.drive("hdd", 64 * MIB));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "innocent"]).ok();
    instance.export("innocent");
    let client = instance.connect("innocent");
    (instance, client)
}

fn serves(client: &mut NbdClient, byte: u8) {
    client.write(8192, &[byte; 4096]).unwrap();
    client.flush().unwrap();
    assert_eq!(client.read(8192, 4096).unwrap(), [byte; 4096]);
}

#[test]
fn a_cache_whose_map_needs_more_memory_than_is_left_is_refused_before_anything_is_written() {
    let (instance, mut client) = serving();
    let pid = instance.pid();
    let (ssd, hdd) = (instance.drive("big-ssd", TIB), instance.drive("big-hdd", TIB));
    limit_memory(&instance, Some(1536 * MIB));
    let refused = instance.run(&["create", "-s", &ssd, "-p", &hdd, "v"]);
    let refused = refused.refused(1, "it needs 5.").err;
    for words in ["of memory, and", "are left (RLIMIT_AS", "smaller SSD"] {
        assert!(refused.contains(words), "{words:?} in {refused:?}");
    }
    instance.run(&["create", "-p", &hdd, "v"]).ok();
    let refused = instance.run(&["attach", "v", "-s", &ssd]).refused(1, "it needs 5.").err;
    let advice = refused.split_once("use larger lines (-b ").expect("larger lines fit").1;
    let line_bytes = advice.split_once(" needs").unwrap().0;
    assert_eq!(instance.show("v")["ssd"]["state"], "none");
    assert!(is_untouched(&ssd) && is_untouched(&hdd), "nothing was written");
    serves(&mut client, 1);
    // With the lines of the advice it works, without -f: the SSD has no label of the attempts.
    instance.run(&["attach", "v", "-s", &ssd, "-b", line_bytes, "-r", "rand"]).ok();
    let shown = instance.show("v");
    assert_eq!((&shown["state"], &shown["policy"]), (&"running".into(), &"rand".into()));
    serves(&mut client, 2);
    limit_memory(&instance, Some(64 * MIB));
    let refused = instance.run(&["set", "v", "policy=lru"]);
    refused.refused(1, "the change of v needs");
    assert_eq!(instance.show("v")["policy"], "rand");
    limit_memory(&instance, None);
    instance.run(&["set", "v", "policy=lru"]).ok();
    serves(&mut client, 3);
    assert_eq!(instance.pid(), pid, "the same daemon as before");
}

#[test]
fn a_volume_that_does_not_fit_after_a_start_is_left_stopped_with_its_cache_and_the_others_serve() {
    let (instance, client) = serving();
    let (ssd, hdd) = (instance.drive("big-ssd", TIB), instance.drive("big-hdd", TIB));
    let base = mapped_bytes(&instance);
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-b", "16384", "v"]).ok();
    drop(client);
    instance.stop();
    // The soft limit, which needs no privilege to be raised again.
    let limit = format!("--as={}:", base + 384 * MIB);
    let Some(started) = run_limited(&instance, &limit, &["start"]) else { return };
    started.ok();
    let shown = instance.show("v");
    assert_eq!((&shown["state"], &shown["ssd"]["path"]), (&"failed".into(), &ssd.into()));
    let error = shown["error"].as_str().unwrap();
    for words in
        ["of memory, and", "RLIMIT_AS", "nothing on the SSD is changed", "`voltier start v`"]
    {
        assert!(error.contains(words), "{words:?} in {error:?}");
    }
    assert_eq!(instance.show("innocent")["state"], "running");
    let mut client = instance.connect("innocent");
    serves(&mut client, 4);
    instance.run(&["start", "v"]).refused(1, "of memory, and");
    let unlimited = Rlimit { current: None, maximum: None };
    prlimit(instance.pid(), Resource::As, unlimited).unwrap();
    instance.run(&["start", "v"]).ok();
    let shown = instance.show("v");
    assert_eq!((&shown["state"], &shown["ssd"]["state"]), (&"running".into(), &"online".into()));
    serves(&mut client, 5);
    instance.signal(Signal::TERM);
}

#[test]
fn an_array_of_more_drives_than_there_are_descriptors_is_refused_before_anything_is_written() {
    let instance = Instance::new();
    let drives: Vec<String> =
        (0..64).map(|number| instance.drive(&format!("d{number}"), 32 * MIB)).collect();
    let Some(started) = run_limited(&instance, "--nofile=96", &["start"]) else { return };
    started.ok();
    let names: Vec<&str> = drives.iter().map(String::as_str).collect();
    let refused = instance.run(&[&["array", "create", "a", "--level", "6"], &names[..]].concat());
    let refused = refused.refused(1, "opening 64 devices needs 96 file descriptors").err;
    assert!(refused.contains("of 96 are left (RLIMIT_NOFILE)"), "{refused}");
    assert!(drives.iter().all(|drive| is_untouched(drive)), "nothing was written");
    instance.run(&[&["array", "create", "a", "--level", "6"], &names[..8]].concat()).ok();
}

fn resize(path: &str, bytes: u64) {
    File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

#[test]
fn a_disk_smaller_than_what_was_served_last_is_refused_with_both_sizes_and_nothing_is_given_up() {
    let instance = Instance::new();
    let (ssd, hdd) = (instance.drive("ssd", 16 * MIB), instance.drive("hdd", 64 * MIB));
    instance.run(&["create", "-p", &hdd, "v"]).ok();
    resize(&hdd, 128 * MIB);
    instance.stop();
    assert_eq!(instance.show("v")["size_bytes"], 128 * MIB);
    for with_cache in [false, true] {
        if with_cache {
            instance.run(&["attach", "v", "-s", &ssd]).ok();
        }
        instance.stop();
        // As large as it was created, and less than clients have had.
        resize(&hdd, 96 * MIB);
        let shown = instance.show("v");
        assert_eq!(shown["state"], "failed");
        let error = shown["error"].as_str().unwrap();
        let words =
            "has 100663296 bytes and had 134217728 when it was last served; give it its size back";
        assert!(error.contains(words), "{error}");
        instance.run(&["start", "v"]).refused(1, words);
        resize(&hdd, 128 * MIB);
        instance.run(&["start", "v"]).ok();
        let shown = instance.show("v");
        assert_eq!(
            (&shown["state"], &shown["size_bytes"]),
            (&"running".into(), &(128 * MIB).into())
        );
        let ssd = if with_cache { "online" } else { "none" };
        assert_eq!(shown["ssd"]["state"], ssd, "the cache is kept");
    }
}
