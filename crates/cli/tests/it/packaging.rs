//! The files of `packaging/` for systemd and udev, held against the real binary and systemd's own check.

use crate::support;

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::{Answer, Instance};
use rustix::process::{Pid, Signal};

const INSTALLED: &str = "/usr/local/bin/voltier";

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    let unit = fs::read_to_string(packaging("systemd/voltier.service")).unwrap();
    assert!(unit.contains(&format!("ExecStart={INSTALLED} daemon")), "{unit}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("voltier.service");
    fs::write(&path, unit.replace(INSTALLED, env!("CARGO_BIN_EXE_voltier"))).unwrap();
    match Command::new("systemd-analyze").arg("verify").arg("--man=no").arg(&path).output() {
        Err(error) => println!("left out: systemd-analyze: {error}"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let ours: Vec<_> = said.lines().filter(|line| line.contains("voltier")).collect();
            assert!(output.status.success() && ours.is_empty(), "{said}");
        }
    }
}

#[test]
fn the_rules_ask_the_program_in_words_that_it_answers() {
    let rules = fs::read_to_string(packaging("udev/61-voltier.rules")).unwrap();
    assert!(rules.contains(&format!("IMPORT{{program}}=\"{INSTALLED} udev $devnode\"")), "{rules}");
    let instance = Instance::new();
    let (ssd, hdd) = (instance.drive("ssd", 32 << 20), instance.drive("hdd", 64 << 20));
    let other = instance.drive("other", 1 << 20);
    let members = support::arrays::drives(&instance, "d", 2);
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "v"]).ok();
    instance.run(&support::arrays::with(&["create", "a", "--level", "1"], &members)).ok();
    instance.run(&["stop"]).ok();
    for (device, part) in [
        (&hdd, "VOLTIER_PART=origin\n"),
        (&ssd, "VOLTIER_PART=ssd\n"),
        (&members[0], "VOLTIER_PART=labelled\n"),
        (&other, ""),
    ] {
        assert_eq!(instance.run(&["udev", device]).ok().out, part, "{device}");
    }
    let mut asked = instance.command(&["udev", &hdd]);
    let names =
        "/dev/disk/by-uuid/a1 /dev/disk/by-id/wwn-0x5 /dev/disk/by-label/x /dev/disk/by-path/p";
    let said = Answer::from(asked.env("DEVLINKS", names).output().unwrap()).ok().out;
    assert_eq!(said, "VOLTIER_PART=origin\nVOLTIER_LINKS=disk/by-id/wwn-0x5 disk/by-path/p\n");
    // Older udevs leave out a line with `-=`.
    assert!(rules.contains("SYMLINK=\"$env{VOLTIER_LINKS}\"") && !rules.contains("SYMLINK-="));
    assert_eq!(instance.pid(), None, "no daemon is asked");
    assert!(rules.contains("SYMLINK+=\"voltier/$env{VOLTIER_VOLUME}\""), "{rules}");
    if rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists() {
        let device = instance.run(&["export", "v", "--loop"]).ok().out;
        let node = fs::read_link(device.trim()).unwrap();
        let said = instance.run(&["udev", node.to_str().unwrap()]).ok().out;
        assert_eq!(said, "VOLTIER_VOLUME=v\n");
        instance.run(&["stop"]).ok();
        assert_eq!(instance.run(&["udev", node.to_str().unwrap()]).ok().out, "");
    }
}

#[test]
fn completions_and_pages_have_the_verbs_that_help_lists_and_no_other() {
    let instance = Instance::new();
    for shell in ["bash", "zsh", "fish"] {
        let text = instance.run(&["completions", shell]).ok().out;
        for word in ["takeover", "spare-pool", "keeper", "udev"] {
            let is_wanted = matches!(word, "takeover" | "spare-pool");
            assert_eq!(text.contains(word), is_wanted, "{word} for {shell}");
        }
    }
    let pages = instance.path("pages");
    fs::create_dir(&pages).unwrap();
    instance.run(&["manual", pages.to_str().unwrap(), "2026-11-29"]).ok();
    let page = |name: &str| fs::read_to_string(pages.join(name)).unwrap_or_default();
    assert!(page("voltier-array-spare-pool-add.1").contains("SEE ALSO"));
    assert!(page("voltier.1").contains("voltier\\-create(1)"));
    assert_eq!(page("voltier-keeper.1"), "");
    let gone = instance.path("gone");
    let refused = instance.run(&["manual", gone.to_str().unwrap(), "2026-11-29"]);
    assert!(refused.code == 1 && refused.err.contains("writing"), "{}", refused.err);
}

/// A daemon in the foreground that tells a service manager how it is.
fn notifying(instance: &Instance) -> (Child, UnixDatagram) {
    let at = instance.path("notify");
    let manager = UnixDatagram::bind(&at).unwrap();
    let mut command = instance.command(&["daemon"]);
    command.env("NOTIFY_SOCKET", &at).env("VOLTIER_STOP_WAIT", "600").stderr(Stdio::null());
    (command.spawn().unwrap(), manager)
}

/// Waits for a message with these words; all messages up to it.
fn until(manager: &UnixDatagram, words: &str) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let mut bytes = [0; 4096];
        let length = manager.recv(&mut bytes).unwrap();
        all.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
        if all.last().is_some_and(|last| last.contains(words)) {
            return all;
        }
    }
}

#[test]
fn the_daemon_tells_systemd_when_it_serves_and_that_it_stops() {
    let instance = Instance::new();
    let hdd = instance.drive("hdd", 16 << 20);
    instance.run(&["create", "-p", &hdd, "v"]).ok();
    instance.export("v");
    instance.run(&["stop"]).ok();
    let (mut daemon, manager) = notifying(&instance);
    until(&manager, "READY=1");
    let client = support::nbd::NbdClient::connect(&instance.socket("v"), "v");
    let client = client.expect("the exports are open");
    rustix::process::kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    until(&manager, "STOPPING=1");
    until(&manager, "EXTEND_TIMEOUT_USEC=");
    drop(client);
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn the_daemon_is_ready_when_nothing_waits_for_a_drive_any_more() {
    let instance = Instance::new();
    let hdd = instance.drive("hdd", 16 << 20);
    instance.run(&["create", "-p", &hdd, "v"]).ok();
    instance.run(&["stop"]).ok();
    // Beside its place it would be found.
    fs::create_dir(instance.path("away")).unwrap();
    fs::rename(&hdd, instance.path("away/hdd")).unwrap();
    let at = instance.path("notify");
    let manager = UnixDatagram::bind(&at).unwrap();
    let mut command = instance.command(&["daemon"]);
    command.env("NOTIFY_SOCKET", &at).env("VOLTIER_DEVICE_WAIT", "600").stderr(Stdio::null());
    let mut daemon = command.spawn().unwrap();
    let before = until(&manager, "waits for devices");
    assert!(before.iter().all(|message| !message.contains("READY")), "{before:?}");
    fs::rename(instance.path("away/hdd"), &hdd).unwrap();
    until(&manager, "READY=1");
    assert_eq!(Answer::from(instance.command(&["show", "v"]).output().unwrap()).code, 0);
    rustix::process::kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    assert!(daemon.wait().unwrap().success());
}
