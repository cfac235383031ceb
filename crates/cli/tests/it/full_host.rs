//! A host that takes nothing any more. The daemon's log goes to a pipe that is closed or full, or to a full
//! file system. The state folder is full. Clients' I/O goes on, commands answer, and no record is lost.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::arrays::array_called;
use crate::support::{Instance, MIB};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

const BLOCK: usize = 4096;
const STEP: Duration = Duration::from_millis(5);

/// A daemon in the foreground, with this standard error.
fn daemon(instance: &Instance, stderr: Stdio) -> Child {
    let child = instance.command(&["daemon"]).stderr(stderr).spawn().unwrap();
    while !instance.state().join("control.sock").exists() {
        std::thread::park_timeout(STEP);
    }
    child
}

/// Has the daemon log lines, and holds it to its service meanwhile.
fn serves_and_obeys(instance: &Instance, mut daemon: Child) {
    let members = [instance.drive("a", 16 * MIB), instance.drive("b", 16 * MIB)];
    instance.run(&["array", "create", "m", "--level", "1", &members[0], &members[1]]).ok();
    instance.run(&["create", "-p", "array:m", "v"]).ok();
    let mut client = instance.exported("v");
    for round in 0..8_u8 {
        for block in 0..16 {
            client.write(block * BLOCK as u64, &[round; BLOCK]).unwrap();
        }
        instance.run(&["array", "fail", "m", "1"]).ok();
        client.flush().unwrap();
        assert_eq!(client.read(0, BLOCK).unwrap(), vec![round; BLOCK]);
        instance.run(&["array", "replace", "m", "1", &members[1]]).ok();
        while array_called(instance, "m")["state"] != "running" {
            std::thread::park_timeout(STEP);
        }
    }
    assert_eq!(instance.show("v")["state"], "running");
    assert!(daemon.try_wait().unwrap().is_none(), "the daemon lives");
    // `Child::kill` would be SIGKILL.
    let pid = Pid::from_child(&daemon);
    kill_process(pid, Signal::TERM).unwrap();
    let (_, status) = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0), "{status:?}");
}

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap()
}

#[test]
fn a_closed_log_pipe_ends_nothing() {
    let instance = Instance::new();
    let (reader, writer) = pipe();
    drop(reader);
    let daemon = daemon(&instance, writer.into());
    serves_and_obeys(&instance, daemon);
}

#[test]
fn a_full_log_pipe_that_nobody_reads_keeps_nobody() {
    let instance = Instance::new();
    let (reader, writer) = pipe();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    let mut filling = File::from(writer.try_clone().unwrap());
    while filling.write(&[b'x'; BLOCK]).is_ok() {}
    while filling.write(b"x").is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    let daemon = daemon(&instance, writer.into());
    serves_and_obeys(&instance, daemon);
    drop(reader);
}

/// A small file system of its own; `None`, aloud, for a user who may not mount one.
pub(crate) fn small_file_system(at: &Path) -> Option<()> {
    fs::create_dir(at).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs"]).arg(at);
    if mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return Some(());
    }
    eprintln!("left out: this user may mount no file system");
    None
}

/// Fills a file system to its last byte; the file that does it.
pub(crate) fn fill(at: &Path) -> PathBuf {
    let path = at.join("filler");
    let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    while file.write(&[0; BLOCK]).is_ok() {}
    path
}

#[test]
fn a_log_on_a_full_file_system_loses_lines_and_says_how_many() {
    let instance = Instance::new();
    let place = instance.path("log");
    if small_file_system(&place).is_none() {
        return;
    }
    let path = place.join("daemon.log");
    let log = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let filler = fill(&place);
    let daemon = daemon(&instance, log.into());
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| serves_and_obeys(&instance, daemon));
        // Room comes back while the daemon has lines to log.
        while !instance.socket("v").exists() && !serving.is_finished() {
            std::thread::park_timeout(STEP);
        }
        fs::remove_file(&filler).unwrap();
    });
    let mut text = String::new();
    File::open(&path).unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("left out here: the log could not take more"), "{text}");
    let mut lines = text.lines().filter(|line| !line.is_empty());
    let is_whole = |line: &str| {
        let mut words = line.split_whitespace();
        let time = words.next().unwrap_or_default();
        let level = words.next().unwrap_or_default();
        time.ends_with('Z') && ["INFO", "WARN", "ERROR"].contains(&level)
    };
    assert!(lines.all(is_whole), "{text}");
}

/// The SSD is a file of another daemon, which is killed. The loss waits for its record, and with it the
/// writes.
#[test]
fn the_loss_of_an_ssd_is_recorded_when_the_state_folder_has_room_again() {
    let (other, instance) = (Instance::new(), Instance::new());
    if small_file_system(&instance.state()).is_none() {
        return;
    }
    let (behind, ssd) = (other.drive("behind", 64 * MIB), other.path("ssd"));
    let ssd = ssd.to_str().unwrap();
    other.run(&["create", "-p", &behind, "s"]).ok();
    if !other.export_file("s", ssd) {
        return;
    }
    let hdd = instance.drive("hdd", 16 * MIB);
    instance.run(&["create", "-s", ssd, "-p", &hdd, "-t", "wt", "v"]).ok();
    instance.export("v");
    let before = instance.show("v")["tunables"].clone();
    let mut client = instance.connect("v");
    client.write(0, &[1; BLOCK]).unwrap();
    let filler = fill(&instance.state());
    let is_over = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut round = 1_u8;
            while !is_over.load(Ordering::Relaxed) {
                round = round % 250 + 1;
                client.write(0, &[round; BLOCK]).unwrap();
            }
            round
        });
        other.kill_with_keeper();
        let says = |words: &str| instance.show("v")["error"].as_str().unwrap().contains(words);
        while !says("the state folder cannot be written") {
            std::thread::park_timeout(STEP);
        }
        instance.run(&["create", "-p", &instance.drive("x", MIB), "w"]).refused(1, "no space left");
        instance.run(&["set", "v", "dirty_low=1", "dirty_high=2"]).refused(1, "no space left");
        assert_eq!(instance.show("v")["tunables"], before);
        instance.run(&["show", "w"]).refused(1, "no volume");
        fs::remove_file(&filler).unwrap();
        while !says("failed while it served") || says("cannot be written") {
            std::thread::park_timeout(STEP);
        }
        is_over.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    let registry = fs::read_to_string(instance.state().join("registry.json")).unwrap();
    assert!(registry.contains("failed while it served"), "{registry}");
    let mut client = instance.connect("v");
    assert_eq!(client.read(0, BLOCK).unwrap(), vec![rounds; BLOCK]);
}

#[test]
fn a_volume_whose_start_cannot_be_recorded_comes_up_when_there_is_room() {
    let instance = Instance::new();
    if small_file_system(&instance.state()).is_none() {
        return;
    }
    let (ssd, hdd) = (instance.drive("ssd", 64 * MIB), instance.drive("hdd", 16 * MIB));
    let plain = instance.drive("plain", MIB);
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "v"]).ok();
    instance.run(&["create", "-p", &plain, "w"]).ok();
    let mut client = instance.exported("v");
    client.write(0, &[7; BLOCK]).unwrap();
    drop(client);
    instance.stop();
    let filler = fill(&instance.state());
    let status = instance.show("v");
    assert_eq!(status["state"], "failed", "{status}");
    assert!(
        status["error"].as_str().unwrap().contains("the state folder cannot be written"),
        "{status}"
    );
    assert_eq!(instance.show("w")["state"], "running");
    fs::remove_file(filler).unwrap();
    while instance.show("v")["state"] != "running" {
        std::thread::park_timeout(STEP);
    }
    let mut client = instance.connect("v");
    assert_eq!(client.read(0, BLOCK).unwrap(), vec![7; BLOCK]);
    let log = fs::read_to_string(instance.state().join("daemon.log")).unwrap();
    assert!(log.contains("the state folder can be written again"), "{log}");
}
