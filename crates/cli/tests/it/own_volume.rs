//! A file system on a volume of the daemon itself takes the place of the state folder. The daemon waits for
//! nothing of that file system on behalf of clients.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::support::{Instance, MIB};

/// No write waits so long, unless it waits for itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// A file system over the state folder; the folder is free again when it is dropped.
struct Covered {
    file: PathBuf,
    state: PathBuf,
}

impl Drop for Covered {
    fn drop(&mut self) {
        // A daemon that waits for itself ends only when its file does.
        if std::thread::panicking() {
            let _ = Command::new("umount").arg("--force").arg(&self.file).output();
        }
        let _ = Command::new("umount").arg("--lazy").arg(&self.state).output();
    }
}

fn is_done(command: &mut Command) -> bool {
    command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Puts a file system of volume `v` over the state folder, with a copy of the folder in it. `None`, aloud,
/// where FUSE or loop devices are missing.
fn cover(instance: &Instance) -> Option<Covered> {
    let (file, state, copy) = (instance.path("v.raw"), instance.state(), instance.path("copy"));
    let exported = instance.run(&["export", "v", "--fuse", file.to_str().unwrap()]);
    let mut copying = Command::new("cp");
    copying.arg("--archive").arg(&state).arg(&copy);
    let mut mount = Command::new("mount");
    mount.args(["-o", "loop"]).arg(&file).arg(&state);
    let is_covered = exported.code == 0
        && is_done(&mut copying)
        && is_done(
            Command::new("mkfs.ext4").args(["-q", "-E", "nodiscard", "-d"]).arg(&copy).arg(&file),
        )
        && is_done(&mut mount);
    if !is_covered {
        println!("left out: no file system over {}: {exported:?}", state.display());
    }
    is_covered.then_some(Covered { file, state })
}

/// The SSD is a file of another daemon, which is killed. Writes wait for the record of the loss. A record on
/// the volume itself would wait for the writes, and not even SIGKILL would end that.
#[test]
fn the_loss_of_an_ssd_is_recorded_below_a_file_system_that_waits_for_the_record() {
    let (other, instance) = (Instance::new(), Instance::new());
    let (behind, ssd) = (other.drive("behind", 64 * MIB), other.path("ssd"));
    let ssd = ssd.to_str().unwrap();
    other.run(&["create", "-p", &behind, "s"]).ok();
    if !other.export_file("s", ssd) {
        return;
    }
    instance
        .run(&["create", "-s", ssd, "-p", &instance.drive("hdd", 64 * MIB), "-t", "wt", "v"])
        .ok();
    let Some(covered) = cover(&instance) else { return };
    other.kill_with_keeper();
    let (done, ends) = mpsc::channel();
    let file = instance.state().join("file");
    #[expect(clippy::disallowed_methods, reason = "a write that may never end outlives the test")]
    std::thread::spawn(move || {
        let written = fs::write(&file, vec![7; MIB as usize]);
        let _ = done.send(written.and_then(|()| fs::File::open(&file)?.sync_all()));
    });
    ends.recv_timeout(PATIENCE).expect("a write waits for itself").unwrap();
    drop(covered);
    let registry = fs::read_to_string(instance.state().join("registry.json")).unwrap();
    assert!(registry.contains("failed while it served"), "{registry}");
    assert_eq!(instance.show("v")["state"], "degraded");
}

/// Stops a daemon with a volume whose disk is a file that another volume of it exports.
#[test]
fn a_volume_on_the_export_of_another_one_stops_first_and_a_stop_waits_for_no_client() {
    let instance = Instance::new();
    let (disk, file) = (instance.drive("disk", 64 * MIB), instance.path("lower.raw"));
    let file = file.to_str().unwrap();
    let mut start = instance.command(&["start"]);
    assert!(start.env("VOLTIER_STOP_WAIT", "60").status().unwrap().success());
    // By their names the lower one would stop first.
    instance.run(&["create", "-p", &disk, "a"]).ok();
    let exported = instance.run(&["export", "a", "--fuse", file]);
    if exported.code != 0 {
        println!("left out: FUSE: {exported:?}");
        return;
    }
    let ssd = instance.drive("ssd", 32 * MIB);
    instance.run(&["create", "-s", &ssd, "-p", file, "-t", "wt", "b"]).ok();
    let mut nbd = instance.exported("b");
    nbd.write(8 * MIB, &[7; 4096]).unwrap();
    drop(nbd);
    let said =
        instance.run(&["stop", "a"]).refused(1, "is in use by volume b (`voltier stop b` first)");
    assert!(!said.err.contains("process"), "{}", said.err);
    #[expect(clippy::disallowed_methods, reason = "a test that bounds a wait")]
    let begun = std::time::Instant::now();
    instance.stop();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let log = fs::read_to_string(instance.state().join("daemon.log")).unwrap();
    for words in ["waiting for clients", "after a crash", "ERROR"] {
        assert!(!log.contains(words), "{words:?} in {log}");
    }
    assert_eq!(fs::read(&disk).unwrap()[8 * MIB as usize..][..4096], [7; 4096]);
}
