//! Drives that take no writes: refused with the reason, before somebody's data are called written.

use std::process::Command;

use crate::support::arrays::{array, export};
use crate::support::looped::Looped;
use crate::support::{Instance, MIB, until};

#[test]
fn a_write_protected_disk_is_refused_at_create_attach_and_start() {
    let instance = Instance::new();
    let (ssd, hdd) = (instance.drive("ssd", 16 * MIB), instance.drive("hdd", 64 * MIB));
    let Some(disk) = Looped::new(&hdd) else { return };
    disk.protect(true);
    let words = "is write-protected (its block device is read-only); make it writable";
    instance.run(&["create", "-p", &disk.0, "v"]).refused(1, words);
    instance.run(&["create", "-s", &ssd, "-p", &disk.0, "-t", "wb", "v"]).refused(1, words);
    instance.run(&["create", "-f", "-s", &disk.0, "-p", &ssd, "v"]).refused(1, words);
    disk.protect(false);
    instance.run(&["create", "-p", &disk.0, "v"]).ok();
    disk.protect(true);
    instance.run(&["attach", "v", "-s", &ssd, "-t", "wb"]).refused(1, words);
    disk.protect(false);
    instance.run(&["attach", "v", "-s", &ssd, "-t", "wb"]).ok();
    let mut client = instance.exported("v");
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    instance.stop();
    disk.protect(true);
    let shown = instance.show("v");
    assert_eq!((&shown["state"], &shown["ssd"]["path"]), (&"failed".into(), &ssd.as_str().into()));
    assert!(shown["error"].as_str().unwrap().contains(words), "{shown}");
    disk.protect(false);
    instance.run(&["start", "v"]).ok();
    let mut client = instance.connect("v");
    assert_eq!(client.read(0, 4096).unwrap(), [7; 4096], "the dirty line is kept");
    drop(client);
    instance.run(&["delete", "v"]).ok();
    instance.stop();
}

#[test]
fn a_member_that_is_write_protected_says_so_and_comes_back_when_it_is_not() {
    let instance = Instance::new();
    let files: Vec<String> = (0..3).map(|at| instance.drive(&format!("d{at}"), 32 * MIB)).collect();
    let Some(disk) = Looped::new(&files[0]) else { return };
    let members = [&disk.0, &files[1], &files[2]];
    let create = [&["array", "create", "a", "--level", "5"][..], &members.map(String::as_str)];
    let words = "is write-protected (its block device is read-only)";
    disk.protect(true);
    instance.run(&create.concat()).refused(1, words);
    disk.protect(false);
    instance.run(&create.concat()).ok();
    export(&instance);
    let mut client = instance.connect("v");
    // While it serves: the first write that reaches it costs the member.
    disk.protect(true);
    for at in 0..64 {
        client.write(at * 65536, &[5; 4096]).unwrap();
    }
    until("the member is lost", || array(&instance)["members"][0]["state"] == "lost");
    assert_eq!(array(&instance)["members"][0]["trouble"], "write-protected");
    let table = instance.run(&["array", "show", "a"]).out;
    assert!(table.contains("lost, write-protected"), "{table}");
    drop(client);
    disk.protect(false);
    instance.run(&["array", "replace", "a", "0", &disk.0]).ok();
    until("the member is back", || array(&instance)["state"] == "running");
    // At a start: it is awaited, not lost at the first write.
    instance.stop();
    disk.protect(true);
    let shown = array(&instance);
    assert_eq!(shown["state"], "degraded");
    assert!(shown["left_out"][0].as_str().unwrap().contains(words), "{shown}");
    disk.protect(false);
    until("the member has come", || array(&instance)["state"] == "running");
    instance.run(&["delete", "v"]).ok();
    instance.run(&["array", "delete", "a"]).ok();
    instance.stop();
}

#[test]
fn an_immutable_file_is_refused_with_the_way_out() {
    let instance = Instance::new();
    let hdd = instance.drive("hdd", 64 * MIB);
    let set = |flag: &str| Command::new("chattr").args([flag, hdd.as_str()]).output();
    if !set("+i").is_ok_and(|set| set.status.success()) {
        return eprintln!("left out: no attributes on this file system");
    }
    let refused = instance.run(&["create", "-p", &hdd, "v"]);
    assert!(set("-i").unwrap().status.success());
    refused.refused(
        1,
        "is write-protected (an attribute forbids changes); take it away with `chattr -i -a`",
    );
    instance.run(&["create", "-p", &hdd, "v"]).ok();
}

#[test]
fn a_member_that_has_shrunk_says_so_and_comes_back_with_its_size() {
    let instance = Instance::new();
    let files: Vec<String> = (0..3).map(|at| instance.drive(&format!("d{at}"), 32 * MIB)).collect();
    let names: Vec<&str> = files.iter().map(String::as_str).collect();
    instance.run(&[&["array", "create", "a", "--level", "5"], &names[..]].concat()).ok();
    instance.stop();
    let resize = |bytes| {
        let file = std::fs::File::options().write(true).open(&files[0]).unwrap();
        file.set_len(bytes).unwrap();
    };
    resize(24 * MIB);
    let mut start = instance.command(&["start"]);
    assert!(start.env("VOLTIER_DEVICE_WAIT", "60").status().unwrap().success());
    let awaited = format!("its member {} (smaller than it was)", files[0]);
    instance.run(&["create", "-p", "array:a", "v"]).refused(1, &awaited);
    resize(32 * MIB);
    until("the member has come", || array(&instance)["state"] == "running");
    instance.stop();
    resize(24 * MIB);
    let shown = array(&instance);
    assert_eq!(shown["state"], "degraded");
    let why = shown["left_out"].to_string();
    assert!(why.contains("it had 65536 sectors and now has 49152"), "{why}");
    resize(32 * MIB);
    until("the member has come again", || array(&instance)["state"] == "running");
}
