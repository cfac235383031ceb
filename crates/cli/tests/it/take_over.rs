//! `voltier takeover`: a host takes a Ceph RBD image from another one, with the library that stands for librbd.

use std::fs;

use rustix::process::{Signal, kill_process};

use crate::rbd::{Cluster, instance_with, library};
use crate::support::nbd::NbdClient;
use crate::support::{Instance, MIB, until};

/// Two hosts and a cluster; the volume v on the first one, over a cache that writes back in order.
struct Hosts {
    owner: Instance,
    other: Instance,
    cluster: Cluster,
    image: String,
}

impl Hosts {
    fn new() -> Self {
        let owner = instance_with(&library());
        let cluster = Cluster::new(&owner);
        let image = cluster.name("pool/image");
        let ssd = owner.drive("ssd", 64 * MIB);
        owner.run(&["create", "v", "-p", &image, "-s", &ssd, "-t", "wb"]).ok();
        owner.run(&["set", "v", "ordered=on", "max_unshipped=5s,16M"]).ok();
        Self { owner, other: instance_with(&library()), cluster, image }
    }

    /// The command with which the other host takes the image.
    fn takeover<'a>(&'a self, ssd: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut command = vec!["takeover", "v", "-p", &self.image, "-s", ssd, "-t", "wb"];
        command.extend(["--set", "ordered=on"]);
        command.extend(more);
        command
    }

    /// Has the daemon of the owner stand still, or go on.
    fn signal(&self, signal: Signal) {
        kill_process(self.owner.pid().unwrap(), signal).unwrap();
    }

    fn report(&self) -> Option<serde_json::Value> {
        let text = fs::read_to_string(self.cluster.at("pool/image.meta-voltier.state")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// A client of the owner that has written ones to the first block, when the owner reports that the image has them.
    fn with_a_write_on_the_image(&self) -> NbdClient {
        let mut client = self.owner.exported("v");
        client.write(0, &[1; 4096]).unwrap();
        client.flush().unwrap();
        until("all is on the image", || {
            let bytes = &self.owner.show("v")["unshipped"]["bytes"];
            *bytes == 0 && self.report().is_some_and(|report| report["unshipped_bytes"] == 0)
        });
        client
    }
}

#[test]
fn a_host_that_lives_keeps_its_image_and_with_force_is_shut_out() {
    let hosts = Hosts::new();
    let mut client = hosts.with_a_write_on_the_image();
    let ssd = hosts.other.drive("ssd", 64 * MIB);
    let alive = hosts.other.run(&hosts.takeover(&ssd, &[]));
    let alive = alive.refused(1, "is alive; stop or move the volume there");
    assert!(alive.err.contains("--force"), "{}", alive.err);
    client.write(MIB, &[2; 4096]).unwrap();
    let said = hosts.other.run(&hosts.takeover(&ssd, &["--force"])).ok().out;
    assert!(said.starts_with("v: taken over"), "{said}");
    assert!(said.contains("is shut out: the cluster carries out nothing more of it"), "{said}");
    assert!(said.contains("lost is what v on"), "{said}");
    assert!(said.contains("never more than max_unshipped=5s,16M"), "{said}");
    assert_eq!(hosts.other.exported("v").read(0, 4096).unwrap(), [1; 4096]);
    until("the owner knows", || client.write(0, &[3; 4096]).is_err());
    assert!(client.read(0, 4096).is_err(), "what it has may be old");
    // Both hosts tell of it.
    let events = |host: &Instance| host.run(&["events", "--json"]).ok().out;
    until("the event of the other", || events(&hosts.other).contains("\"taken_over\""));
    until("the event of the owner", || events(&hosts.owner).contains("\"drive_failed\""));
    assert_eq!(hosts.other.connect("v").read(0, 4096).unwrap(), [1; 4096]);
    drop(client);
    hosts.owner.kill();
}

#[test]
fn a_host_that_is_cut_off_loses_its_image_and_what_is_lost_is_said() {
    let hosts = Hosts::new();
    let mut client = hosts.with_a_write_on_the_image();
    hosts.signal(Signal::STOP);
    let ssd = hosts.other.drive("ssd", 64 * MIB);
    // A new volume is not made of it, also when the cluster takes the owner for dead.
    hosts.other.run(&["create", "v", "-p", &hosts.image]).refused(1, "is locked by");
    let taken = hosts.other.run(&[&hosts.takeover(&ssd, &[])[..], &["--json"]].concat()).json();
    assert_eq!(taken["volume"]["state"], "running", "{taken}");
    assert_eq!(taken["from"].as_array().unwrap().len(), 1, "{taken}");
    let report = &taken["report"];
    assert_eq!((&report["state"], &report["unshipped_bytes"]), (&"serving".into(), &0.into()));
    let (at, until_then) = (&report["unix_ms"], &report["complete_unix_ms"]);
    assert_eq!(at, until_then, "the image had all when it was reported: {report}");
    let loss = taken["loss"].as_str().unwrap();
    assert!(loss.contains("acknowledged after its last report, never more than"), "{loss}");
    hosts.other.exported("v").write(0, &[2; 4096]).unwrap();
    hosts.signal(Signal::CONT);
    until("the owner knows", || client.write(0, &[3; 4096]).is_err());
    let shown = hosts.owner.show("v");
    assert!(shown["error"].as_str().unwrap().contains("the lock is lost"), "{shown}");
    assert_eq!(hosts.other.connect("v").read(0, 4096).unwrap(), [2; 4096]);
    drop(client);
    hosts.owner.kill();
}

#[test]
fn an_image_whose_host_died_is_taken_over_and_makes_no_new_volume_before() {
    let hosts = Hosts::new();
    drop(hosts.with_a_write_on_the_image());
    hosts.owner.kill();
    // The cluster takes it for dead after a while.
    for entry in fs::read_dir(hosts.cluster.at("pool")).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("image.watch-") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let create = ["create", "v", "-p", &hosts.image];
    hosts.other.run(&create).refused(1, "may lack what v on");
    let ssd = hosts.other.drive("ssd", 64 * MIB);
    hosts.other.run(&hosts.takeover(&ssd, &[])).ok();
    assert_eq!(hosts.other.exported("v").read(0, 4096).unwrap(), [1; 4096]);
    hosts.other.run(&["delete", "v"]).ok();
    until("the image is free", || hosts.cluster.owner().is_none());
    assert_eq!(hosts.report().unwrap()["state"], "deleted");
    // Nothing of it is on any SSD any more that counts.
    let third = instance_with(&library());
    third.run(&create).ok();
    third.run(&["delete", "v"]).ok();
}

#[test]
fn a_host_takes_its_image_back_with_a_new_cache() {
    let hosts = Hosts::new();
    drop(hosts.with_a_write_on_the_image());
    hosts.signal(Signal::STOP);
    let ssd = hosts.other.drive("ssd", 64 * MIB);
    hosts.other.run(&hosts.takeover(&ssd, &[])).ok();
    let mut client = hosts.other.exported("v");
    client.write(0, &[2; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    hosts.signal(Signal::CONT);
    until("the owner knows", || hosts.owner.show("v")["hdd"]["state"] == "failed");
    hosts.owner.run(&["takeover", "v", "-p", &hosts.image]).refused(1, "is on record here");
    let held = hosts.owner.run(&["takeover", "v"]).refused(1, "takeover v --force");
    assert!(
        held.err.contains("for the image as it was before another host had it"),
        "{}",
        held.err
    );
    hosts.other.run(&["delete", "v"]).ok();
    until("the image is free", || hosts.cluster.owner().is_none());
    let said = hosts.owner.run(&["takeover", "v", "--force"]).ok().out;
    assert!(said.contains("nothing is lost: the image has all that v on"), "{said}");
    let shown = hosts.owner.show("v");
    assert_eq!((&shown["state"], &shown["mode"]), (&"running".into(), &"wb".into()), "{shown}");
    assert_eq!(shown["tunables"]["max_unshipped"], "5s,16M");
    assert_eq!(hosts.owner.connect("v").read(0, 4096).unwrap(), [2; 4096]);
    hosts.owner.run(&["takeover", "v"]).refused(1, "v is served here already");
    hosts.owner.run(&["stop", "v"]).ok();
    hosts
        .owner
        .run(&["takeover", "v"])
        .refused(1, "nothing is to be taken over: `voltier start v`");
    hosts.owner.run(&["start", "v"]).ok();
    hosts.owner.run(&["delete", "v"]).ok();
}

#[test]
fn what_another_host_stopped_with_dirty_lines_is_not_given_up_without_force() {
    let hosts = Hosts::new();
    // So that lines stay dirty.
    hosts.owner.run(&["set", "v", "max_unshipped=off"]).ok();
    hosts.owner.run(&["set", "v", "ordered=off", "dirty_low=60", "dirty_high=80"]).ok();
    let mut client = hosts.owner.exported("v");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    hosts.owner.stop();
    until("the image is free", || hosts.cluster.owner().is_none());
    assert_eq!(hosts.report().unwrap()["state"], "stopped");
    hosts.other.run(&["create", "w", "-p", &hosts.image]).refused(1, "may lack what v on");
    let ssd = hosts.other.drive("ssd", 64 * MIB);
    let refused = hosts.other.run(&hosts.takeover(&ssd, &[]));
    refused.refused(1, "start it there, and `voltier flush v` or delete it");
    assert_eq!(hosts.owner.show("v")["state"], "running", "its lock was left alone");
    hosts.owner.stop();
    until("the image is free", || hosts.cluster.owner().is_none());
    let said = hosts.other.run(&hosts.takeover(&ssd, &["--force"])).ok().out;
    assert!(said.contains("nobody knows (not in order)"), "{said}");
    hosts.other.run(&["delete", "v"]).ok();
}

#[test]
fn what_cannot_be_taken_over_is_refused_before_anybody_is_pushed_off() {
    let hosts = Hosts::new();
    let lock = hosts.cluster.owner();
    let other = &hosts.other;
    let disk = other.drive("disk", 64 * MIB);
    other.run(&["takeover", "w", "-p", &disk]).refused(2, "only a Ceph RBD image can");
    other.run(&["takeover", "w"]).refused(1, "w is not on record here; `voltier takeover w -p");
    other.run(&["takeover", "w", "-s", &disk]).refused(2, "--hdd");
    let none = hosts.cluster.name("pool/none");
    other.run(&["takeover", "w", "-p", &none, "-f"]).refused(1, "there is no image `pool/none`");
    let full = other.drive("full", 64 * MIB);
    fs::write(&full, [7; 1 << 20]).unwrap();
    fs::File::options().write(true).open(&full).unwrap().set_len(64 * MIB).unwrap();
    other.run(&["create", "x", "-p", &disk, "-s", &full, "-f"]).ok();
    let taken = ["takeover", "w", "-p", &hosts.image, "-s", &full, "--force"];
    other.run(&taken).refused(1, "is already part of volume x");
    let lost = other.path("gone").display().to_string();
    other.run(&["takeover", "w", "-p", &hosts.image, "-s", &lost, "--force"]).refused(1, "gone");
    assert_eq!(hosts.cluster.owner(), lock);
    assert_eq!(hosts.owner.show("v")["state"], "running");
    hosts.owner.exported("v").write(0, &[1; 4096]).unwrap();
    hosts.owner.run(&["takeover", "v"]).refused(1, "v is served here already");
}

#[test]
fn a_volume_moves_to_another_host_with_its_settings_and_without_loss() {
    let hosts = Hosts::new();
    let (owner, other) = (&hosts.owner, &hosts.other);
    let mut client = owner.exported("v");
    client.write(0, &[1; 4096]).unwrap();
    let ssd = other.drive("an ssd", 64 * MIB);
    // What runs a command on the other host; the program there is the same.
    let shell = owner.path("rsh").display().to_string();
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = there ] || {{ echo no such host >&2; exit 255; }}\nshift 2\n\
         export VOLTIER_STATE='{}' VOLTIER_EXPORT=none\neval \"exec '{}' $*\"\n",
        other.state().display(),
        crate::support::program().display()
    );
    fs::write(&shell, text).unwrap();
    fs::set_permissions(&shell, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let run = |args: &[&str]| {
        let output = owner.command(args).env("VOLTIER_RSH", &shell).output().unwrap();
        crate::support::Answer::from(output)
    };
    let go = ["move", "v", "there", "-s", &ssd];
    run(&go).refused(1, "1 client(s) use");
    drop(client);
    owner.run(&["unexport", "v", "--now"]).ok();
    run(&["move", "v", "nowhere", "-s", &ssd]).refused(1, "no such host");
    run(&["move", "v", "-x"]).refused(2, "");
    assert_eq!(owner.show("v")["state"], "running", "nothing was changed");
    other.serve();
    let said = run(&go).ok().out;
    assert!(said.starts_with("v: moved to there\nv: created"), "{said}");
    let shown = other.show("v");
    assert_eq!((&shown["mode"], &shown["tunables"]["ordered"]), (&"wb".into(), &true.into()));
    assert_eq!(shown["tunables"]["max_unshipped"], "5s,16M");
    assert_eq!(other.exported("v").read(0, 4096).unwrap(), [1; 4096]);
    owner.run(&["show", "v"]).refused(1, "v");
    let disk = owner.drive("disk", 64 * MIB);
    owner.run(&["create", "w", "-p", &disk]).ok();
    run(&["move", "w", "there"]).refused(1, "only a volume on a Ceph RBD image");
    other.run(&["delete", "v"]).ok();
}
