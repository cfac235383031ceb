//! Block devices of volumes, as a user meets them: made with the volume, named, mounted, held, crashed, taken away.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::arrays::{MIB, drives};
use crate::support::looped::Looped;
use crate::support::{Answer, Instance, until};

/// An instance whose new volumes have block devices; `None`, aloud, where there can be none.
fn instance() -> Option<Instance> {
    let can = |path| File::options().read(true).write(true).open(path).is_ok();
    if !(can("/dev/fuse") && can("/dev/loop-control")) {
        eprintln!("left out: needs root, FUSE and loop devices");
        return None;
    }
    Some(Instance::new())
}

/// Runs a command as a user does who has set nothing.
fn run(instance: &Instance, args: &[&str]) -> Answer {
    instance.command(args).env_remove("VOLTIER_EXPORT").output().unwrap().into()
}

/// The usual name of a volume's device in an instance of its own.
fn link(instance: &Instance, name: &str) -> PathBuf {
    instance.state().join("dev").join(name)
}

/// The kernel's name of a device: `loop3`.
fn kernel_name(link: &Path) -> String {
    fs::read_link(link).unwrap().file_name().unwrap().to_str().unwrap().to_owned()
}

/// A figure of the kernel about a device.
fn told(link: &Path, what: &str) -> String {
    let path = format!("/sys/block/{}/{what}", kernel_name(link));
    fs::read_to_string(path).unwrap().trim().to_owned()
}

/// The loop devices over files of volumes of an instance.
fn loops(instance: &Instance) -> Vec<String> {
    let listed =
        Command::new("losetup").args(["--list", "--noheadings", "-O", "BACK-FILE"]).output();
    let text = String::from_utf8(listed.unwrap().stdout).unwrap();
    let own = instance.state();
    text.lines().filter(|line| Path::new(line).starts_with(&own)).map(str::to_owned).collect()
}

fn unmount(folder: &Path) {
    let status = Command::new("umount").arg(folder).status().unwrap();
    assert!(status.success(), "{}", folder.display());
}

/// A folder to mount at.
fn folder(instance: &Instance) -> PathBuf {
    let folder = instance.path("mounted");
    fs::create_dir(&folder).unwrap();
    folder
}

#[test]
fn a_new_volume_is_a_block_device_until_it_is_deleted() {
    let Some(instance) = instance() else { return };
    let (ssd, hdd) = (instance.drive("ssd", 64 * MIB), instance.drive("hdd", 128 * MIB));
    let made = run(&instance, &["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "v"]).ok();
    let device = link(&instance, "v");
    assert!(made.out.ends_with(&format!(": {}\n", device.display())), "{made:?}");
    assert_eq!(told(&device, "size"), (128 * MIB / 512).to_string());
    assert_eq!(told(&device, "queue/logical_block_size"), "512");
    assert_eq!((told(&device, "ro"), told(&device, "loop/dio")), ("0".to_owned(), "1".to_owned()));
    // What is written through it is on the volume.
    let direct = |path: &Path| {
        File::options().read(true).write(true).custom_flags(0o40000).open(path).unwrap()
    };
    let mut page = vec![0_u8; 8192];
    let at = page.as_ptr().align_offset(4096);
    page[at..at + 4096].fill(7);
    direct(&device).write_all_at(&page[at..at + 4096], 4096).unwrap();
    instance.run(&["stop", "v"]).ok();
    assert!(fs::symlink_metadata(&device).is_err() && loops(&instance).is_empty());
    run(&instance, &["start", "v"]).ok();
    page.fill(0);
    direct(&device).read_exact_at(&mut page[at..at + 4096], 4096).unwrap();
    assert_eq!(page[at..at + 4096], [7; 4096]);
    // The daemon takes it along, and brings it back.
    instance.run(&["stop"]).ok();
    assert!(fs::symlink_metadata(&device).is_err() && loops(&instance).is_empty());
    instance.serve();
    assert_eq!(instance.show("v")["exports"][0]["state"], "open");
    assert!(device.exists());
    // Gone with the export, back by one command, gone with the volume.
    instance.run(&["unexport", "v", "--loop"]).ok();
    assert!(fs::symlink_metadata(&device).is_err());
    let again = instance.run(&["export", "v", "--loop"]).ok();
    assert_eq!(again.out.trim(), device.display().to_string());
    instance.run(&["delete", "v"]).ok();
    assert!(fs::symlink_metadata(&device).is_err() && loops(&instance).is_empty());
    let mut bytes = [0; 4096];
    File::open(&hdd).unwrap().read_exact_at(&mut bytes, 4096).unwrap();
    assert_eq!(bytes, [7; 4096]);
}

#[test]
fn a_file_system_is_two_commands_away_and_whoever_uses_the_device_is_named() {
    let Some(instance) = instance() else { return };
    let (ssd, hdd) = (instance.drive("ssd", 64 * MIB), instance.drive("hdd", 128 * MIB));
    let at = folder(&instance);
    let shown = at.to_str().unwrap();
    run(&instance, &["create", "-s", &ssd, "-p", &hdd, "v"]).ok();
    instance.run(&["mount", "v", shown]).refused(1, "add --mkfs ext4");
    let mounted = instance.run(&["mount", "v", shown, "--mkfs", "ext4", "-o", "noatime"]).ok();
    assert_eq!(mounted.out, format!("v: mounted on {shown} (ext4)\n"));
    fs::write(at.join("file"), "data").unwrap();
    let device = link(&instance, "v");
    let node = format!("/dev/{}", kernel_name(&device));
    let users = instance.show("v")["exports"][0]["users"].clone();
    assert_eq!(users[0], format!("{node}, mounted on {shown}"));
    let table = instance.run(&["show", "v"]).ok().out;
    assert!(table.contains(&format!("in use by    {node}, mounted on {shown}")), "{table}");
    for args in [&["stop", "v"][..], &["delete", "v"], &["unexport", "v"]] {
        instance.run(args).refused(1, &format!("mounted on {shown}"));
    }
    instance.run(&["mount", "v", shown]).refused(1, "unmount it first");
    assert_eq!(fs::read(at.join("file")).unwrap(), b"data");
    unmount(&at);
    // A program that has it open.
    let held = Command::new("sleep").arg("60").stdin(File::open(&device).unwrap()).spawn();
    let mut held = held.unwrap();
    instance.run(&["stop", "v"]).refused(1, &format!("process {} (sleep)", held.id()));
    held.kill().unwrap();
    held.wait().unwrap();
    instance.run(&["mount", "v", shown, "--mkfs", "xfs"]).refused(1, "does not overwrite");
    fs::write(at.join("hidden"), "").unwrap();
    instance.run(&["mount", "v", shown]).refused(1, "is not empty");
    fs::remove_file(at.join("hidden")).unwrap();
    instance.run(&["mount", "v", "/nonexistent"]).refused(1, "mkdir -p");
    instance.run(&["mount", "v", &hdd]).refused(1, "is no folder");
    instance.run(&["mount", "w", shown]).refused(1, "`w`");
    let json = instance.run(&["mount", "v", shown, "--json"]).json();
    assert_eq!((&json["name"], &json["file_system"]), (&"v".into(), &"ext4".into()), "{json}");
    unmount(&at);
    instance.run(&["unexport", "v"]).ok();
    instance.run(&["mount", "v", shown]).refused(1, "`voltier export v --loop` makes one");
    instance.run(&["stop", "v"]).ok();
    instance.run(&["mount", "v", shown]).refused(1, "is not served");
}

#[test]
fn the_device_has_its_name_again_after_a_crash_under_a_mount() {
    let Some(instance) = instance() else { return };
    let (ssd, hdd) = (instance.drive("ssd", 64 * MIB), instance.drive("hdd", 128 * MIB));
    let at = folder(&instance);
    let shown = at.to_str().unwrap();
    run(&instance, &["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "v"]).ok();
    instance.run(&["mount", "v", shown, "--mkfs", "ext4"]).ok();
    fs::write(at.join("file"), "data").unwrap();
    assert!(Command::new("sync").arg("-f").arg(&at).status().unwrap().success());
    for _ in 0..3 {
        instance.kill();
        instance.serve();
        let volume = instance.show("v");
        assert_eq!(volume["exports"][0]["state"], "open", "{volume}");
        unmount(&at);
        instance.run(&["mount", "v", shown]).ok();
        assert_eq!(fs::read(at.join("file")).unwrap(), b"data");
        until("the device of the dead daemon is gone", || loops(&instance).len() == 1);
    }
    unmount(&at);
    instance.run(&["stop"]).ok();
    assert!(loops(&instance).is_empty());
}

#[test]
fn an_array_is_a_block_device_and_gets_its_cache_later() {
    let Some(instance) = instance() else { return };
    let files = drives(&instance, "d", 4);
    let members: Vec<&str> = files.iter().map(String::as_str).collect();
    let ssd = instance.drive("ssd", 64 * MIB);
    let create = [&["array", "create", "a", "--level", "5"], &members[..]].concat();
    // Nothing is made when its volume cannot be.
    fs::create_dir_all(instance.state().join("dev")).unwrap();
    fs::write(link(&instance, "a"), "mine").unwrap();
    run(&instance, &create).refused(1, "exists and is no link of a volume");
    assert_eq!(fs::read(link(&instance, "a")).unwrap(), b"mine");
    fs::remove_file(link(&instance, "a")).unwrap();
    assert!(instance.run(&["array", "show", "--json"]).json().as_array().unwrap().is_empty());
    let made = run(&instance, &create).ok();
    let device = link(&instance, "a");
    assert!(made.out.ends_with(&format!(": {}\n", device.display())), "{made:?}");
    assert!(device.exists());
    let at = folder(&instance);
    let shown = at.to_str().unwrap();
    instance.run(&["mount", "a", shown, "--mkfs", "ext4"]).ok();
    fs::write(at.join("file"), "data").unwrap();
    // Under the mount.
    instance.run(&["attach", "a", "-s", &ssd, "-t", "wb"]).ok();
    instance.run(&["array", "fail", "a", "1"]).ok();
    assert_eq!(fs::read(at.join("file")).unwrap(), b"data");
    instance.run(&["array", "delete", "a"]).refused(1, "`voltier delete a` first");
    unmount(&at);
    instance.run(&["delete", "a"]).ok();
    instance.run(&["array", "delete", "a"]).ok();
    run(&instance, &[&create[..], &["-f", "--export", "none"]].concat()).ok();
    assert!(instance.run(&["show", "--json"]).json().as_array().unwrap().is_empty());
    // Its name may be that of another volume only without a volume of its own.
    instance.run(&["array", "delete", "a"]).ok();
    let disk = instance.drive("disk", 64 * MIB);
    run(&instance, &["create", "-p", &disk, "a"]).ok();
    run(&instance, &[&create[..], &["-f"]].concat()).refused(1, "a volume `a` exists");
    assert!(instance.run(&["array", "show", "--json"]).json().as_array().unwrap().is_empty());
}

#[test]
fn a_name_that_is_taken_or_a_wrong_word_is_refused_and_nothing_is_changed() {
    let Some(instance) = instance() else { return };
    let (ssd, hdd) = (instance.drive("ssd", 64 * MIB), instance.drive("hdd", 128 * MIB));
    let content = vec![9; 4096];
    File::options().write(true).open(&ssd).unwrap().write_all_at(&content, 0).unwrap();
    let device = link(&instance, "v");
    fs::create_dir_all(device.parent().unwrap()).unwrap();
    let create = ["create", "-f", "-s", &ssd, "-p", &hdd, "v"];
    let refused = |more: &[&str], code, words: &str| {
        run(&instance, &[&create[..], more].concat()).refused(code, words);
        assert_eq!(fs::read(&ssd).unwrap()[..4096], content);
        assert!(instance.run(&["show", "--json"]).json().as_array().unwrap().is_empty());
        assert!(loops(&instance).is_empty());
    };
    fs::write(&device, "mine").unwrap();
    refused(&[], 1, "exists and is no link of a volume");
    fs::remove_file(&device).unwrap();
    symlink("/dev/null", &device).unwrap();
    refused(&[], 1, "leads to /dev/null");
    fs::remove_file(&device).unwrap();
    let other = Looped::new(&hdd).unwrap();
    symlink(&other.0, &device).unwrap();
    refused(&[], 1, "is the device of");
    drop(other);
    refused(&["--export", "ublk"], 2, "choose nbd, fuse, loop or none");
    refused(&["--export", "nbd:tcp:0.0.0.0"], 2, "no password");
    // A link of a daemon that died is replaced.
    fs::remove_file(&device).unwrap();
    symlink("/dev/loop987654", &device).unwrap();
    run(&instance, &create).ok();
    assert!(device.exists());
    let second = instance.path("second").display().to_string();
    instance.run(&["export", "v", "--loop", &second]).refused(1, "has a block device already");
    instance.run(&["export", "v", "--loop", "--mode", "0660"]).refused(2, "no mode");
    let disk = instance.drive("disk", 64 * MIB);
    let at = format!("loop:{}", device.display());
    run(&instance, &["create", "-p", &disk, "w", "--export", &at])
        .refused(1, "an export of volume v");
    // Each kind by its word, with its usual place and with another one.
    run(&instance, &["create", "-p", &disk, "w", "--export", "fuse"]).ok();
    assert_eq!(fs::metadata(instance.state().join("w.raw")).unwrap().len(), 64 * MIB);
    instance.run(&["delete", "w"]).ok();
    run(&instance, &["create", "-p", &disk, "w", "--export", "nbd"]).ok();
    assert!(instance.socket("w").exists());
    instance.run(&["delete", "w"]).ok();
    run(&instance, &["create", "-p", &disk, "w", "--export", &format!("loop:{second}")]).ok();
    assert!(Path::new(&second).exists());
}

#[test]
fn the_kernel_is_told_what_the_disk_is() {
    let Some(instance) = instance() else { return };
    let disk = instance.drive("disk", 128 * MIB);
    let Some(sectors) = Looped::with(&["--sector-size", "4096", &disk]) else { return };
    run(&instance, &["create", "-p", &sectors.0, "large"]).ok();
    assert_eq!(told(&link(&instance, "large"), "queue/logical_block_size"), "4096");
    instance.run(&["delete", "large"]).ok();
    drop(sectors);
    let slow = format!("model:hdd-7200:{disk}");
    run(&instance, &["create", "-p", &slow, "slow"]).ok();
    let device = link(&instance, "slow");
    assert_eq!(told(&device, "queue/rotational"), "1");
    instance.run(&["stop", "slow"]).ok();
    instance.run(&["delete", "slow"]).ok();
    let ssd = instance.drive("ssd", 64 * MIB);
    run(&instance, &["create", "-s", &ssd, "-p", &slow, "fast"]).ok();
    assert_eq!(told(&link(&instance, "fast"), "queue/rotational"), "0");
}

#[test]
fn a_volume_on_the_device_of_another_stops_first() {
    let Some(instance) = instance() else { return };
    let hdd = instance.drive("hdd", 128 * MIB);
    run(&instance, &["create", "-p", &hdd, "lower"]).ok();
    let device = link(&instance, "lower").display().to_string();
    instance.run(&["create", "-p", &device, "upper"]).ok();
    instance.run(&["stop", "lower"]).refused(1, "volume upper (`voltier stop upper` first)");
    instance.run(&["stop"]).ok();
    instance.serve();
    assert_eq!(instance.show("upper")["state"], "running");
    instance.run(&["delete", "upper"]).ok();
    instance.run(&["delete", "lower"]).ok();
}

#[test]
fn the_doctor_says_what_is_there_and_others_than_root_have_no_device() {
    let Some(instance) = instance() else { return };
    let said = instance.run(&["doctor"]).ok().out;
    for words in ["ok       kernel", "ok       FUSE", "ok       loop devices", "ok       losetup"] {
        assert!(said.contains(words), "{words} in {said}");
    }
    let json = instance.run(&["doctor", "--json"]).json();
    assert!(json.as_array().unwrap().iter().any(|it| it["name"] == "io_uring" && it["ok"] == true));
    // Without a program.
    let bare = instance.command(&["doctor"]).env("PATH", "/nonexistent").output().unwrap();
    let bare = Answer::from(bare);
    assert_eq!(bare.code, 1, "{bare:?}");
    assert!(bare.out.contains("MISSING  losetup"), "{bare:?}");
    assert!(bare.err.contains("no block device here yet"), "{bare:?}");
    let hdd = instance.drive("hdd", 64 * MIB);
    let mut create = instance.command(&["create", "-p", &hdd, "v", "--export", "loop"]);
    let answer = Answer::from(create.env("PATH", "/nonexistent").output().unwrap());
    answer.refused(1, "losetup is not installed");
    instance.run(&["stop"]).ok();
    // Another user.
    let everybody = Command::new("chmod").args(["-R", "a+rwX"]).arg(instance.path("")).status();
    assert!(everybody.unwrap().success());
    fs::remove_dir_all(instance.state()).unwrap();
    let as_nobody = |args: &[&str]| {
        use std::os::unix::process::CommandExt;
        let mut command = instance.command(args);
        command.env_remove("VOLTIER_EXPORT").uid(65534).gid(65534).stdin(Stdio::null());
        command.output().map(Answer::from)
    };
    let Ok(answer) = as_nobody(&["create", "-p", &hdd, "v", "--export", "loop"]) else {
        eprintln!("left out: the program cannot be run by another user");
        return;
    };
    answer.refused(1, "a block device needs root");
    let made = as_nobody(&["create", "-p", &hdd, "v"]).unwrap().ok();
    assert!(made.out.ends_with("(no cache)\n") || made.out.contains("no cache"), "{made:?}");
    as_nobody(&["stop"]).unwrap().ok();
}
