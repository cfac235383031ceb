//! Exports for others than the user of the daemon, through the real binary: mode, owner and group of sockets
//! and FUSE files.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::nbd::NbdClient;
use crate::support::{Instance, MIB};
use serde_json::{Value, json};

/// An instance with a volume `v` of 1 MiB, in a folder that lets everybody through.
fn instance() -> Instance {
    let instance = Instance::new();
    let hdd = instance.drive("hdd", MIB);
    fs::set_permissions(instance.path(""), Permissions::from_mode(0o755)).unwrap();
    instance.run(&["create", "-p", &hdd, "v"]).ok();
    instance
}

/// Mode, user and group of a file.
fn facts(path: &Path) -> (u32, u32, u32) {
    let file = fs::symlink_metadata(path).unwrap();
    (file.mode() & 0o7777, file.uid(), file.gid())
}

/// The socket `shared.sock` of an instance, and the address of an export there.
fn shared(instance: &Instance) -> (PathBuf, String) {
    let socket = instance.path("shared.sock");
    let address = format!("unix:{}", socket.display());
    (socket, address)
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: needs root");
    }
    is_root
}

#[test]
fn what_no_export_can_have_is_refused_in_one_line_and_changes_nothing() {
    let instance = instance();
    let (socket, address) = shared(&instance);
    let file = instance.path("v.raw").display().to_string();
    for (args, code, words) in [
        (vec!["--nbd", "tcp:127.0.0.1:0", "--mode=0660"], 2, "a TCP port has no mode"),
        (vec!["--nbd", &address, "--mode=0999"], 2, "`0999` is not a mode"),
        (vec!["--nbd", &address, "--mode=4777"], 2, "for example 0660"),
        (vec!["--nbd", &address, "--mode=rw"], 2, "`rw` is not a mode"),
        (
            vec!["--nbd", &address, "--group=nobodys-friends"],
            2,
            "no group `nobodys-friends` on this",
        ),
        (vec!["--nbd", &address, "--owner=nobodys-friend"], 2, "`getent passwd` lists"),
        (vec!["--nbd", &address, "--owner=4294967295"], 2, "too large"),
        (vec!["--nbd", &address, "--owner="], 2, "--owner"),
        (vec!["--fuse", &file, "--group=nobodys-friends"], 2, "no group `nobodys-friends`"),
        (vec!["--nbd", "--mode=0666"], 1, "lets only root and user"),
    ] {
        instance.run(&[&["export", "v"][..], &args].concat()).refused(code, words);
    }
    assert_eq!(instance.show("v")["exports"], json!([]));
    assert!(!socket.exists() && !Path::new(&file).exists());
}

#[test]
fn a_socket_for_others_is_so_after_every_kind_of_end() {
    let instance = instance();
    let (socket, address) = shared(&instance);
    let own = fs::metadata(instance.path("hdd")).unwrap();
    let group = if rustix::process::geteuid().is_root() { 64055 } else { own.gid() };
    let asked = ["export", "v", "--nbd", &address, &format!("--group={group}")];
    instance.run(&asked).ok();
    let expected = (0o660, own.uid(), group);
    assert_eq!(facts(&socket), expected);
    let ends: [fn(&Instance); 2] = [Instance::stop, Instance::kill];
    for end in ends {
        end(&instance);
        let export = &instance.show("v")["exports"][0];
        assert_eq!(export["state"], "open");
        assert_eq!(export["access"], json!({"mode": "0660", "group": group.to_string()}));
        assert_eq!(facts(&socket), expected);
    }
    let shown = instance.run(&["show", "v"]).ok().out;
    assert!(shown.contains(&format!("shared.sock, mode 0660, group {group}\n")), "{shown}");
    // The same again changes nothing, another access is refused with the way to it.
    instance.run(&asked).ok();
    instance.run(&["export", "v", "--nbd", &address]).ok();
    assert_eq!(facts(&socket), expected);
    let other = ["export", "v", "--nbd", &address, "--mode=0600"];
    instance.run(&other).refused(1, &format!("`voltier unexport v --nbd {address}`"));
    instance.run(&["unexport", "v", "--nbd", &address]).ok();
    instance.run(&["export", "v", "--nbd", &address]).ok();
    assert_eq!(facts(&socket), (0o600, own.uid(), own.gid()));
    assert_eq!(instance.show("v")["exports"][0].get("access"), None);
}

#[test]
fn a_user_of_the_group_reads_and_writes_and_another_one_does_not() {
    if !is_root() {
        return;
    }
    let instance = instance();
    let (socket, address) = shared(&instance);
    instance.run(&["export", "v", "--nbd", &address, "--owner=64054", "--group=64055"]).ok();
    assert_eq!(facts(&socket), (0o660, 64054, 64055));
    // A user who may write to the file may connect.
    let may = |user: u32, group: u32| {
        let mut test = Command::new("test");
        test.args(["-w".as_ref(), socket.as_os_str()]).uid(user).gid(group);
        test.status().unwrap().success()
    };
    assert!(may(64054, 1) && may(4711, 64055) && !may(4711, 4712));
    let mut client = NbdClient::connect(&socket, "v").unwrap();
    client.write(0, &[5; 512]).unwrap();
    assert_eq!(client.read(0, 512).unwrap(), [5; 512]);
}

#[test]
fn a_file_for_others_has_its_mode_and_group_from_the_first_moment() {
    if !is_root() || File::open("/dev/fuse").is_err() {
        println!("skipped: needs root and /dev/fuse");
        return;
    }
    let instance = instance();
    let file = instance.path("v.raw");
    let path = file.display().to_string();
    instance.run(&["export", "v", "--fuse", &path, "--mode=0640", "--group=64055"]).ok();
    let dd = |user: u32, group: u32, way: &str| {
        let mut dd = Command::new("dd");
        let (from, to) = if way == "read" { (&*path, "/dev/null") } else { ("/dev/zero", &*path) };
        dd.args([&format!("if={from}"), &format!("of={to}"), "count=1", "conv=notrunc"]);
        dd.uid(user).gid(group).output().unwrap().status.success()
    };
    let ends: [fn(&Instance); 2] = [|_| (), Instance::stop];
    for end in ends {
        end(&instance);
        assert_eq!(instance.show("v")["exports"][0]["state"], "open");
        assert_eq!(facts(&file), (0o640, 0, 64055));
        assert!(dd(4711, 64055, "read") && !dd(4711, 64055, "write") && !dd(4711, 4712, "read"));
        assert!(dd(0, 0, "write"));
    }
    instance.run(&["unexport", "v", "--fuse", &path]).ok();
    assert!(!file.exists());
}

/// Starts the daemon where `/etc/group` has one group more.
fn serve_with_group(instance: &Instance, name: &str) {
    let groups = instance.path("group");
    let mut text = fs::read_to_string("/etc/group").unwrap();
    text.push_str(&format!("{name}:x:64055:\n"));
    fs::write(&groups, text).unwrap();
    let start = instance.command(&["start"]);
    let mut inside = Command::new("unshare");
    let script = "mount --bind \"$0\" /etc/group && exec \"$@\"";
    inside.args(["-m", "sh", "-c", script]).arg(&groups);
    inside.arg(start.get_program()).args(start.get_args());
    inside.envs(start.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let started = inside.output().unwrap();
    assert!(started.status.success(), "{started:?}");
}

#[test]
fn a_group_that_is_gone_fails_its_export_until_it_comes_back_and_not_the_volume() {
    if !is_root() {
        return;
    }
    let instance = instance();
    let (socket, address) = shared(&instance);
    let private = instance.export("v");
    instance.stop();
    serve_with_group(&instance, "voltier-guests");
    instance.run(&["export", "v", "--nbd", &address, "--group=voltier-guests"]).ok();
    assert_eq!(facts(&socket), (0o660, 0, 64055));
    instance.stop();
    let shown = instance.show("v");
    assert_eq!(
        (&shown["state"], &shown["exports"][0]["state"]),
        (&json!("running"), &json!("open"))
    );
    assert_eq!(shown["exports"][0]["uri"], Value::String(private));
    let failed = &shown["exports"][1];
    assert_eq!(failed["state"], "failed");
    let why = failed["error"].as_str().unwrap();
    assert!(why.contains("there is no group `voltier-guests` on this machine; make it"), "{why}");
    assert!(UnixStream::connect(&socket).is_err(), "nothing listens there");
    instance.stop();
    serve_with_group(&instance, "voltier-guests");
    let export = &instance.show("v")["exports"][1];
    assert_eq!(
        (&export["state"], &export["access"]["group"]),
        (&json!("open"), &json!("voltier-guests"))
    );
    assert_eq!(facts(&socket), (0o660, 0, 64055));
}
