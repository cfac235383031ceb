//! Ceph RBD images as drives, through the real binary, with a library that stands for librbd: a cluster is a folder
//! (crates/librbd-fake). With a real cluster: scripts/test-cluster.sh.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::support::ledger::Ledger;
use crate::support::{Answer, Instance, MIB, until};

/// The address of another host, as the cluster names it.
const OTHER: &str = "127.0.0.1:0/7";

/// A cluster with one pool, and its configuration.
pub(crate) struct Cluster {
    folder: PathBuf,
    conf: String,
}

impl Cluster {
    pub(crate) fn new(instance: &Instance) -> Self {
        let folder = PathBuf::from(instance.aside("cluster"));
        fs::create_dir_all(folder.join("pool/space")).unwrap();
        let conf = instance.aside("ceph.conf");
        fs::write(&conf, folder.display().to_string()).unwrap();
        let cluster = Self { folder, conf };
        cluster.make("pool/image", 64 * MIB);
        cluster
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    fn make(&self, image: &str, bytes: u64) {
        File::create(self.at(image)).unwrap().set_len(bytes).unwrap();
    }

    pub(crate) fn name(&self, image: &str) -> String {
        format!("rbd:{image}@{}", self.conf)
    }

    fn command(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).unwrap();
    }

    fn end(&self, name: &str) {
        fs::remove_file(self.at(name)).unwrap();
    }

    /// The address that has the lock of the image.
    pub(crate) fn owner(&self) -> Option<String> {
        fs::read_to_string(self.at("pool/image.lock")).ok()
    }

    /// What another host does that takes the image.
    fn take_away(&self) {
        let owner = self.owner().unwrap();
        self.command(&format!("blocklist-{}", owner.rsplit('/').next().unwrap()), "");
        self.command("pool/image.lock", OTHER);
    }
}

/// The library, which cargo puts beside the tests.
pub(crate) fn library() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.parent().unwrap();
    let file = "libvoltier_librbd_fake.so";
    let found = [folder, folder.parent().unwrap()].map(|folder| folder.join(file));
    found.into_iter().find(|file| file.is_file()).expect("cargo has built voltier-librbd-fake")
}

/// An instance whose daemons load that library.
pub(crate) fn instance_with(library: &Path) -> Instance {
    Instance::new().with_variable("VOLTIER_LIBRBD", &library.display().to_string())
}

fn instance() -> (Instance, Cluster) {
    let instance = instance_with(&library());
    let cluster = Cluster::new(&instance);
    (instance, cluster)
}

fn create(instance: &Instance, device: &str) -> Answer {
    instance.run(&["create", "v", "-p", device])
}

fn log(instance: &Instance) -> String {
    fs::read_to_string(instance.state().join("daemon.log")).unwrap()
}

#[test]
fn an_image_is_a_disk_that_is_locked_created_shown_stopped_started_and_deleted() {
    let (instance, cluster) = instance();
    let name = cluster.name("pool/image");
    create(&instance, &name).ok();
    assert!(cluster.owner().is_some(), "the lock comes before anything is served");
    let mut client = instance.exported("v");
    client.write(MIB, &[7; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    let shown = instance.show("v");
    assert_eq!(
        (&shown["hdd"]["path"], &shown["state"]),
        (&name.as_str().into(), &"running".into())
    );
    let used = "is already part of volume v";
    instance.run(&["create", "w", "-p", &name]).refused(1, used);
    for how in ["stop", "kill"] {
        if how == "stop" {
            instance.stop();
            assert_eq!(cluster.owner(), None, "a stop gives the lock back");
        } else {
            // The lock of a daemon that is known to be dead is broken at once.
            instance.kill();
            assert!(cluster.owner().is_some());
        }
        assert_eq!(instance.show("v")["state"], "running", "{how}");
        assert_eq!(instance.connect("v").read(MIB, 4096).unwrap(), [7; 4096]);
    }
    instance.run(&["delete", "v"]).ok();
    until("the lock is given back", || cluster.owner().is_none());
    let bytes = fs::read(cluster.at("pool/image")).unwrap();
    assert_eq!(bytes[MIB as usize..][..4096], [7; 4096], "the disk keeps its data in place");
}

#[test]
fn what_cannot_be_used_is_refused_in_one_line() {
    let (instance, cluster) = instance();
    let refused = |device: &str, words: &str| {
        create(&instance, device).refused(1, words);
    };
    refused("rbd:pool/image@/no/such.conf", "the configuration /no/such.conf cannot be read");
    refused(&cluster.name("none/image"), "the cluster has no pool `none`");
    refused(&cluster.name("pool/none"), "there is no image `pool/none`");
    refused(&cluster.name("pool/none/image"), "the pool `pool` has no namespace `none`");
    let name = cluster.name("pool/image");
    let while_there = |command: &str, text: &str, words: &str| {
        cluster.command(command, text);
        refused(&name, words);
        cluster.end(command);
    };
    while_there("connect", "13", "the cluster does not let client.admin in");
    while_there("connect", "110", "no monitor of the cluster answers");
    while_there("open", "1", "client.admin may not open the image for writing");
    while_there("acquire", "30", "the image takes no writes");
    while_there("pool/image.features", "1", "lacks the feature exclusive-lock");
    while_there("pool/image.watch-7", "", "the image is open by client.7 at 127.0.0.1:0/7");
    cluster.command("pool/image.watch-7", "");
    while_there("pool/image.lock", OTHER, "the image is locked by client.7 at 127.0.0.1:0/7");
    cluster.end("pool/image.watch-7");
    create(&instance, "rbd:pool/image@snap").refused(2, "a snapshot takes no writes");
    assert_eq!(instance.run(&["show", "v"]).code, 1, "nothing was made");
    // Whoever had the lock is gone.
    cluster.command("pool/image.lock", OTHER);
    create(&instance, &name).ok();
    let seconds = fs::read_to_string(cluster.at("blocklist-7")).unwrap();
    assert_eq!(seconds, "31536000", "the cluster refuses who had the lock, for a year");
    instance.run(&["delete", "v"]).ok();
}

#[test]
fn a_missing_library_is_named() {
    let instance = instance_with(Path::new("/no/such.so"));
    create(&instance, "rbd:pool/image").refused(1, "install librbd1");
}

#[test]
fn a_cluster_that_does_not_answer_is_an_error_in_bounded_time() {
    let (instance, cluster) = instance();
    cluster.command("silent", "");
    create(&instance, &cluster.name("pool/image")).refused(1, "the cluster does not answer");
    cluster.end("silent");
    until("it is there again", || create(&instance, &cluster.name("pool/image")).code == 0);
    instance.run(&["delete", "v"]).ok();
}

#[test]
fn a_lock_that_is_lost_ends_the_drive_and_the_other_host_finds_nothing_overwritten() {
    let (instance, cluster) = instance();
    create(&instance, &cluster.name("pool/image")).ok();
    let mut client = instance.exported("v");
    client.write(0, &[1; 4096]).unwrap();
    cluster.take_away();
    let before = fs::read(cluster.at("pool/image")).unwrap();
    for _ in 0..3 {
        assert!(client.write(0, &[2; 4096]).is_err(), "and nothing is tried again");
    }
    assert!(client.read(0, 4096).is_err(), "what is there may be the other host's");
    // Also when the cluster forgets whom it refused.
    for entry in fs::read_dir(&cluster.folder).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("blocklist-") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    assert!(client.write(0, &[3; 4096]).is_err());
    assert_eq!(fs::read(cluster.at("pool/image")).unwrap(), before);
    assert!(log(&instance).contains("the lock is lost"));
    drop(client);
    instance.kill();
}

#[test]
fn a_cache_takes_no_writes_and_serves_nothing_when_the_lock_behind_it_is_lost() {
    let (instance, cluster) = instance();
    let ssd = instance.drive("ssd", 64 * MIB);
    instance.run(&["create", "v", "-p", &cluster.name("pool/image"), "-s", &ssd, "-t", "wb"]).ok();
    let mut client = instance.exported("v");
    client.write(0, &[1; 4096]).unwrap();
    cluster.take_away();
    until("the loss is noticed", || log(&instance).contains("the lock is lost"));
    assert!(client.write(0, &[2; 4096]).is_err(), "it would be acknowledged, and seen by nobody");
    assert!(client.read(0, 4096).is_err(), "the other host may have written there");
    assert!(client.flush().is_err());
    let shown = instance.show("v");
    assert_eq!(shown["hdd"]["state"], "failed", "{shown}");
    let said = shown["error"].as_str().unwrap();
    assert!(said.contains("the lock is lost") && said.contains("1 dirty lines stay on"), "{said}");
    drop(client);
    instance.kill();
}

#[test]
fn an_image_whose_lock_is_disabled_is_lost_at_once() {
    let (instance, cluster) = instance();
    create(&instance, &cluster.name("pool/image")).ok();
    cluster.command("pool/image.features", "1");
    until("the loss is noticed", || log(&instance).contains("exclusive-lock was disabled"));
    assert!(instance.exported("v").write(0, &[2; 4096]).is_err());
    instance.kill();
}

#[test]
fn a_lock_that_another_host_took_without_a_word_is_noticed() {
    let (instance, cluster) = instance();
    create(&instance, &cluster.name("pool/image")).ok();
    cluster.command("pool/image.lock", OTHER);
    until("the loss is noticed", || log(&instance).contains("127.0.0.1:0/7 has it now"));
    assert!(instance.exported("v").write(0, &[2; 4096]).is_err());
    instance.kill();
}

#[test]
fn an_image_made_smaller_or_deleted_while_in_use_ends_the_drive() {
    for (what, words) in [("smaller", "it was made smaller while in use"), ("deleted", "deleted")] {
        let (instance, cluster) = instance();
        create(&instance, &cluster.name("pool/image")).ok();
        let image = cluster.at("pool/image");
        match what {
            "smaller" => {
                File::options().write(true).open(&image).unwrap().set_len(32 * MIB).unwrap();
            }
            _ => fs::remove_file(&image).unwrap(),
        }
        until(what, || log(&instance).contains(words));
        assert!(instance.exported("v").write(0, &[2; 4096]).is_err(), "{what}");
        instance.kill();
    }
}

#[test]
fn an_image_of_another_size_or_made_again_is_refused_until_the_user_says_so() {
    let (instance, cluster) = instance();
    let name = cluster.name("pool/image");
    create(&instance, &name).ok();
    instance.stop();
    // Another file, whose number nobody else has meanwhile.
    cluster.make("pool/new", 64 * MIB);
    fs::rename(cluster.at("pool/new"), cluster.at("pool/image")).unwrap();
    let shown = instance.show("v");
    assert!(shown["error"].as_str().unwrap().contains("is another image of this name"), "{shown}");
    instance.run(&["set", "v", &format!("hdd={name}")]).ok();
    instance.stop();
    let image = File::options().write(true).open(cluster.at("pool/image")).unwrap();
    image.set_len(96 * MIB).unwrap();
    let words = "has 100663296 bytes now and had 67108864";
    let shown = instance.show("v");
    assert!(shown["error"].as_str().unwrap().contains(words), "{shown}");
    instance.run(&["set", "v", &format!("hdd={name}")]).ok();
    assert_eq!(instance.show("v")["size_bytes"], 96 * MIB);
    instance.run(&["delete", "v"]).ok();
}

#[test]
fn an_image_that_another_host_used_meanwhile_is_refused_until_the_user_says_so() {
    let (instance, cluster) = instance();
    let ssd = instance.drive("ssd", 64 * MIB);
    let name = cluster.name("pool/image");
    instance.run(&["create", "v", "-p", &name, "-s", &ssd, "-t", "wb"]).ok();
    let mut client = instance.exported("v");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    instance.stop();
    assert_eq!(instance.show("v")["state"], "running", "it used the image itself");
    instance.stop();
    // Another state folder on another host has it for a while, and lets go of it.
    let other = instance_with(&library());
    // What the first host has not written back is given up by that.
    create(&other, &name).refused(1, "may lack what v on");
    let take = ["takeover", "v", "-p", &name, "--force"];
    until("the image is free", || other.run(&take).code == 0);
    other.exported("v").write(0, &[2; 4096]).unwrap();
    other.run(&["delete", "v"]).ok();
    other.stop();
    let shown = instance.show("v");
    let said = shown["error"].as_str().unwrap();
    assert!(said.contains("was used by another host"), "{shown}");
    let bytes = fs::read(cluster.at("pool/image")).unwrap();
    assert_eq!(bytes[..4096], [2; 4096], "nothing is written over what is newer");
    instance.run(&["set", "v", &format!("hdd={name}")]).ok();
    assert_eq!(instance.connect("v").read(0, 4096).unwrap(), [1; 4096]);
    instance.stop();
    assert_eq!(instance.show("v")["state"], "running", "and it is the last user again");
    // What the user said holds for that use alone.
    instance.stop();
    until("the image is free", || other.run(&take).code == 0);
    other.run(&["delete", "v"]).ok();
    other.stop();
    let shown = instance.show("v");
    assert!(shown["error"].as_str().unwrap().contains("was used by another host"), "{shown}");
    instance.run(&["delete", "v", "--no-flush"]).ok();
    create(&instance, &name).ok();
    instance.run(&["delete", "v"]).ok();
}

#[test]
fn a_volume_waits_for_an_image_that_another_host_has() {
    let (instance, cluster) = instance();
    create(&instance, &cluster.name("pool/image")).ok();
    instance.stop();
    cluster.command("pool/image.lock", OTHER);
    cluster.command("pool/image.watch-7", "");
    let shown = instance.show("v");
    assert!(shown["error"].as_str().unwrap().contains("locked by client.7"), "{shown}");
    cluster.end("pool/image.watch-7");
    until("the volume is served", || instance.show("v")["state"] == "running");
    instance.run(&["delete", "v"]).ok();
}

#[test]
fn a_cluster_that_is_slow_hangs_or_fails_is_dealt_with_as_any_disk() {
    let (instance, cluster) = instance();
    let ssd = instance.drive("ssd", 64 * MIB);
    let name = cluster.name("pool/image");
    instance.run(&["create", "v", "-p", &name, "-s", &ssd, "-t", "wb"]).ok();
    instance.run(&["set", "v", "deadline=1s"]).ok();
    cluster.command("late", "1");
    let mut client = instance.exported("v");
    let mut ledger = Ledger::filled(500, &mut client);
    client.flush().unwrap();
    cluster.command("hang", "");
    instance.run(&["flush", "v"]).refused(1, "has not answered");
    assert!(ledger.work(&mut client, 200), "the SSD takes writes");
    client.flush().unwrap();
    cluster.end("hang");
    until("it answers again", || instance.run(&["flush", "v"]).code == 0);
    cluster.command("error", "5");
    assert!(ledger.work(&mut client, 50), "the SSD takes writes");
    assert_ne!(instance.run(&["flush", "v"]).code, 0, "an error is not made good");
    cluster.end("error");
    until("it takes writes again", || instance.run(&["flush", "v"]).code == 0);
    drop(client);
    ledger.check(&instance, "v");
    instance.run(&["delete", "v"]).ok();
}
