//! Starts and stops with the real binary: what reads starts no daemon, and what is in use is not taken away.

use crate::support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::support::nbd::NbdClient;
use crate::support::{Answer, Instance, MIB};
use rustix::process::{Pid, Signal};

const LOOK_STEP: Duration = Duration::from_millis(50);

fn volume(instance: &Instance) -> (String, String) {
    let (ssd, hdd) = (instance.drive("ssd", 32 * MIB), instance.drive("hdd", 64 * MIB));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "v"]).ok();
    (ssd, hdd)
}

#[test]
fn commands_that_read_start_no_daemon() {
    let instance = Instance::new();
    let reads: [&[&str]; 4] =
        [&["show"], &["array", "show"], &["array", "spare-pool", "show"], &["show", "--watch"]];
    for args in reads {
        instance.run(args).refused(1, "`voltier start` starts one");
    }
    assert!(!instance.state().exists());
    volume(&instance);
    instance.export("v");
    instance.run(&["stop"]).ok();
    let shown = instance.run(&["show", "--json"]).refused(1, "no daemon serves");
    let shown = &shown.shown()[0];
    assert_eq!(shown["state"], "not running", "{shown}");
    assert_eq!(shown["hdd"]["state"], "offline", "{shown}");
    assert_eq!(shown["exports"][0]["state"], "closed", "{shown}");
    assert_eq!(instance.pid(), None);
    let one = instance.run(&["show", "v"]).refused(1, "no daemon serves");
    assert!(one.out.contains("not running"), "{one:?}");
    assert!(instance.run(&["stop"]).ok().out.contains("no daemon runs"));
}

#[test]
fn a_stopped_volume_stays_stopped_until_it_is_started() {
    let instance = Instance::new();
    let (_, hdd) = volume(&instance);
    instance.export("v");
    instance.connect("v").write(4096, &[5; 4096]).unwrap();
    assert!(instance.run(&["stop", "v"]).ok().out.contains("v: stopped"));
    assert!(NbdClient::connect(&instance.socket("v"), "v").is_err());
    for _ in 0..2 {
        let shown = instance.show("v");
        assert_eq!((&shown["state"], &shown["error"]), (&"stopped".into(), &"".into()), "{shown}");
        instance.run(&["show"]).ok();
        instance.run(&["export", "v", "--nbd"]).refused(1, "`voltier start v` first");
        instance.run(&["detach", "v"]).refused(1, "`voltier start v` first");
        instance.run(&["create", "-p", &hdd, "w"]).refused(1, "part of volume v");
        instance.run(&["stop", "v"]).ok();
        instance.stop();
    }
    instance.run(&["start", "v"]).ok();
    assert_eq!(instance.connect("v").read(4096, 4096).unwrap(), [5; 4096]);
    instance.kill();
    assert_eq!(instance.show("v")["state"], "running");
}

#[test]
fn a_stopped_array_stays_stopped_until_it_is_started() {
    let instance = Instance::new();
    let members = support::arrays::drives(&instance, "d", 3);
    instance.run(&support::arrays::with(&["create", "a", "--level", "5"], &members)).ok();
    instance.run(&["create", "-p", "array:a", "v"]).ok();
    instance.run(&["array", "stop", "a"]).refused(1, "`voltier stop v` first");
    instance.run(&["stop", "v"]).ok();
    instance.run(&["array", "stop", "a"]).ok();
    instance.stop();
    assert_eq!(support::arrays::array(&instance)["state"], "stopped");
    instance.run(&["array", "scrub", "a"]).refused(1, "`voltier array start a` first");
    instance.run(&["array", "show"]).ok();
    // A volume brings the array that it stands on with it.
    instance.run(&["start", "v"]).ok();
    assert_eq!(support::arrays::array(&instance)["state"], "running");
    instance.run(&["stop", "v"]).ok();
    instance.run(&["array", "stop", "a"]).ok();
    instance.run(&support::arrays::with(&["assemble"], &members)).ok();
    assert_eq!(support::arrays::array(&instance)["state"], "running");
    assert_eq!(instance.show("v")["state"], "stopped");
}

#[test]
fn stops_refuse_while_a_client_is_connected_and_now_cuts_it_off() {
    let instance = Instance::new();
    volume(&instance);
    let mut nbd = instance.exported("v");
    nbd.write(0, &[7; 4096]).unwrap();
    instance.run(&["stop", "v"]).refused(1, "1 client(s) use nbd+unix:///v");
    instance.run(&["stop"]).refused(1, "`voltier stop --now`");
    instance.run(&["unexport", "v"]).refused(1, "`voltier unexport v --now`");
    assert_eq!(nbd.read(0, 4096).unwrap(), [7; 4096], "nothing changed");
    instance.run(&["stop", "v", "--now"]).ok();
    assert!(nbd.read(0, 4096).is_err());
    instance.run(&["start", "v"]).ok();
    let mut nbd = instance.connect("v");
    instance.run(&["stop", "--now"]).ok();
    assert!(nbd.read(0, 4096).is_err());
    assert_eq!(instance.pid(), None, "at rest");
    instance.serve();
    assert_eq!(instance.connect("v").read(0, 4096).unwrap(), [7; 4096]);
}

#[test]
fn a_stop_of_the_daemon_names_everybody_who_hinders_it() {
    let instance = Instance::new();
    volume(&instance);
    let other = instance.drive("other", 32 * MIB);
    instance.run(&["create", "-p", &other, "w"]).ok();
    let clients = ["v", "w"].map(|name| {
        instance.export(name);
        instance.connect(name)
    });
    let refused = instance.run(&["stop"]).refused(1, "1 client(s) use nbd+unix:///v");
    assert!(refused.err.contains("; 1 client(s) use nbd+unix:///w"), "{refused:?}");
    drop(clients);
    instance.run(&["stop"]).ok();
}

#[test]
fn a_client_that_has_just_gone_hinders_no_stop() {
    let instance = Instance::new();
    volume(&instance);
    instance.export("v");
    for _ in 0..5 {
        let nbd = instance.connect("v");
        drop(nbd);
        instance.run(&["stop", "v"]).ok();
        instance.run(&["start", "v"]).ok();
    }
}

/// Sends a signal to the daemon, which is to go on.
fn signal(pid: Pid, signal: Signal) {
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Waits until the daemon says something.
#[track_caller]
fn says(instance: &Instance, words: &str) {
    for _ in 0..200 {
        let log = fs::read_to_string(instance.state().join("daemon.log")).unwrap_or_default();
        if log.contains(words) {
            return;
        }
        thread::park_timeout(LOOK_STEP);
    }
    panic!("the daemon does not say {words:?}");
}

/// A daemon whose stop waits for clients.
fn patient() -> Instance {
    let instance = Instance::new();
    let mut start = instance.command(&["start"]);
    Answer::from(start.env("VOLTIER_STOP_WAIT", "600").output().unwrap()).ok();
    volume(&instance);
    instance
}

#[test]
fn a_signal_waits_for_clients_and_serves_them_meanwhile() {
    let instance = patient();
    let mut nbd = instance.exported("v");
    let pid = instance.pid().unwrap();
    signal(pid, Signal::TERM);
    says(&instance, "waiting for clients");
    nbd.write(0, &[9; 4096]).unwrap();
    instance.run(&["flush", "v"]).refused(1, "the daemon is stopping");
    assert_eq!(instance.run(&["show", "v", "--json"]).json()["state"], "running");
    drop(nbd);
    instance.ends(pid);
    assert_eq!(instance.pid(), None, "at rest");
    instance.serve();
    assert_eq!(instance.connect("v").read(0, 4096).unwrap(), [9; 4096]);
}

#[test]
fn a_second_signal_or_a_stop_now_ends_the_wait_for_clients() {
    for by_signal in [true, false] {
        let instance = patient();
        instance.export("v");
        let nbd = instance.connect("v");
        let pid = instance.pid().unwrap();
        signal(pid, Signal::TERM);
        says(&instance, "waiting for clients");
        if by_signal {
            signal(pid, Signal::INT);
        } else {
            instance.run(&["stop"]).refused(1, "client(s) use");
            instance.run(&["stop", "--now"]).ok();
        }
        instance.ends(pid);
        assert_eq!(instance.pid(), None, "at rest");
        drop(nbd);
    }
}

/// A file system on a loop device over the FUSE file of `v`; unmounted when it is dropped.
struct Mounted {
    point: std::path::PathBuf,
}

impl Mounted {
    /// `None`, aloud, where FUSE or loop devices are missing.
    fn new(instance: &Instance) -> Option<Self> {
        let file = instance.path("v.raw");
        let exported = instance.run(&["export", "v", "--fuse", file.to_str().unwrap()]);
        if exported.code != 0 {
            println!("skipped: {exported:?}");
            return None;
        }
        let point = instance.path("point");
        fs::create_dir_all(&point).unwrap();
        run("mkfs.ext4", &["-q", "-E", "nodiscard", file.to_str().unwrap()]);
        let mounted = Command::new("mount").arg("-o").arg("loop").arg(&file).arg(&point).output();
        if !mounted.as_ref().is_ok_and(|it| it.status.success()) {
            println!("skipped: mount -o loop: {mounted:?}");
            return None;
        }
        Some(Self { point })
    }

    fn path(&self) -> &Path {
        &self.point
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.point).output();
    }
}

fn run(program: &str, args: &[&str]) {
    let mut command = Command::new(program);
    command.args(args).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    let answer = Answer::from(command.output().unwrap());
    assert_eq!(answer.code, 0, "{answer:?}");
}

#[test]
fn a_mounted_file_system_is_not_taken_away() {
    let instance = patient();
    let Some(mounted) = Mounted::new(&instance) else { return };
    let file = mounted.path().join("data");
    fs::write(&file, vec![3; MIB as usize]).unwrap();
    let words = format!("mounted on {}", mounted.path().display());
    instance.run(&["stop"]).refused(1, &words);
    instance.run(&["stop", "v"]).refused(1, &words);
    instance.run(&["unexport", "v"]).refused(1, &words);
    instance.run(&["delete", "v"]).refused(1, &words);
    let pid = instance.pid().unwrap();
    signal(pid, Signal::TERM);
    says(&instance, "waiting for clients");
    fs::write(mounted.path().join("later"), vec![4; MIB as usize]).unwrap();
    run("umount", &[mounted.path().to_str().unwrap()]);
    instance.ends(pid);
    assert_eq!(instance.pid(), None, "at rest");
    instance.serve();
    let raw = instance.path("v.raw");
    run("e2fsck", &["-fn", raw.to_str().unwrap()]);
    run("mount", &["-o", "loop", raw.to_str().unwrap(), mounted.path().to_str().unwrap()]);
    assert_eq!(fs::read(&file).unwrap(), vec![3; MIB as usize]);
    assert_eq!(fs::read(mounted.path().join("later")).unwrap(), vec![4; MIB as usize]);
}

#[test]
fn a_stop_now_writes_out_what_a_mounted_file_system_holds() {
    let instance = patient();
    let Some(mounted) = Mounted::new(&instance) else { return };
    fs::write(mounted.path().join("data"), vec![3; MIB as usize]).unwrap();
    instance.run(&["stop", "v", "--now"]).ok();
    assert!(fs::metadata(instance.path("v.raw")).is_err(), "the file is gone");
    assert!(
        fs::write(mounted.path().join("more"), "x").and_then(|()| sync(mounted.path())).is_err()
    );
    run("umount", &["-l", mounted.path().to_str().unwrap()]);
    instance.run(&["start", "v"]).ok();
    let raw = instance.path("v.raw");
    run("mount", &["-o", "loop", raw.to_str().unwrap(), mounted.path().to_str().unwrap()]);
    assert_eq!(fs::read(mounted.path().join("data")).unwrap(), vec![3; MIB as usize]);
    instance.run(&["stop", "--now"]).ok();
    assert_eq!(instance.pid(), None, "at rest");
}

fn sync(point: &Path) -> std::io::Result<()> {
    fs::File::open(point)?.sync_all()
}
