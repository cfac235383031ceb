//! `voltier setup` on a disk that has data, and its undo, without a systemd: files of a test stand for `/etc`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::looped::Looped;
use crate::support::{Answer, Instance, MIB};

/// A disk with a file system that is mounted by a line of a table, and an SSD.
struct Host {
    instance: Instance,
    disk: Looped,
    ssd: Looped,
    etc: PathBuf,
    folder: PathBuf,
}

/// `None`, aloud, where there can be no block devices.
fn host() -> Option<Host> {
    let can = |path| File::options().read(true).write(true).open(path).is_ok();
    if !(can("/dev/fuse") && can("/dev/loop-control")) {
        eprintln!("left out: needs root, FUSE and loop devices");
        return None;
    }
    let instance = Instance::new();
    let hdd = instance.drive("hdd", 128 * MIB);
    assert!(Command::new("mkfs.ext4").args(["-q", &hdd]).status().unwrap().success());
    let (disk, ssd) = (Looped::new(&hdd)?, Looped::new(&instance.drive("ssd", 64 * MIB))?);
    let (etc, folder) = (instance.path("etc"), instance.path("data"));
    fs::create_dir(&etc).unwrap();
    fs::create_dir(&folder).unwrap();
    let line = format!("# mine\n{} {} ext4 noatime 0 2\n", disk.0, folder.display());
    fs::write(etc.join("fstab"), line).unwrap();
    let host = Host { instance, disk, ssd, etc, folder };
    host.mount();
    fs::write(host.folder.join("old"), "here before").unwrap();
    Some(host)
}

impl Host {
    fn run(&self, args: &[&str]) -> Answer {
        let (etc, backups) = (self.etc.to_str().unwrap(), self.instance.path("backups"));
        let paths = ["--etc", etc, "--backups", backups.to_str().unwrap()];
        self.instance.run(&[&["setup"], args, &paths].concat())
    }

    fn setup(&self, more: &[&str]) -> Answer {
        self.run(&[&[self.ssd.0.as_str(), self.disk.0.as_str()], more].concat())
    }

    fn fstab(&self) -> String {
        fs::read_to_string(self.etc.join("fstab")).unwrap()
    }

    fn mount(&self) {
        let table = self.etc.join("fstab");
        let mut mount = Command::new("mount");
        mount.arg("--fstab").arg(table).arg(&self.folder);
        assert!(mount.status().unwrap().success());
    }

    fn unmount(&self) {
        assert!(Command::new("umount").arg(&self.folder).status().unwrap().success());
    }

    /// The device that is mounted at the folder, with its options.
    fn mounted(&self) -> Option<(String, String)> {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let folder = self.folder.to_str().unwrap();
        table.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find_map(|fields| {
            (fields[1] == folder).then(|| (fields[0].to_owned(), fields[3].to_owned()))
        })
    }

    fn is_bare(&self, table: &str) {
        assert_eq!(self.fstab(), table);
        assert_eq!(self.mounted().unwrap().0, self.disk.0);
        assert_eq!(fs::read(self.folder.join("old")).unwrap(), b"here before");
        assert!(self.instance.run(&["show", "--json"]).json().as_array().unwrap().is_empty());
    }
}

#[test]
fn a_disk_with_data_is_accelerated_by_one_command_and_plain_again_by_one() {
    let Some(host) = host() else { return };
    let table = host.fstab();
    let plan = host.setup(&["--dry-run", "-t", "wb"]).ok().out;
    for words in ["unmount", "make the volume data", "with its data in place", "copy the registry"]
    {
        assert!(plan.contains(words), "{words} in {plan}");
    }
    assert_eq!(host.fstab(), table, "a dry run changes nothing");
    assert_eq!(host.mounted().unwrap().0, host.disk.0);
    let made = host.setup(&["-t", "wb"]).ok().out;
    assert!(made.contains("`voltier setup --undo data` takes it back"), "{made}");
    let device = host.instance.state().join("dev/data");
    let (source, options) = host.mounted().unwrap();
    assert_eq!(Path::new(&source), fs::read_link(&device).unwrap());
    assert!(options.contains("noatime"), "{options}");
    assert_eq!(fs::read(host.folder.join("old")).unwrap(), b"here before");
    fs::write(host.folder.join("new"), "through the cache").unwrap();
    let line = format!(
        "{} {} ext4 noatime,_netdev,nofail,x-systemd.requires=voltier.service,\
         x-systemd.device-timeout=200s 0 0\n",
        device.display(),
        host.folder.display()
    );
    assert!(host.fstab().contains(&line), "{}", host.fstab());
    assert!(host.instance.path("backups/voltier-registry.json").exists());
    // Again: the folder is the volume's now.
    host.setup(&["-t", "wb"]).refused(1, "is the backing disk of a volume already");
    let busy = File::open(host.folder.join("new")).unwrap();
    host.run(&["--undo", "data"]).refused(1, "busy");
    drop(busy);
    assert_eq!(fs::read(host.folder.join("new")).unwrap(), b"through the cache");
    let dry = host.run(&["--undo", "data", "--dry-run"]).ok().out;
    assert!(dry.contains("write what is dirty"), "{dry}");
    host.run(&["--undo", "data"]).ok();
    host.is_bare(&table);
    assert_eq!(fs::read(host.folder.join("new")).unwrap(), b"through the cache");
    host.run(&["--undo", "data"]).refused(1, "has no line of `voltier setup` for data");
    host.unmount();
}

#[test]
fn a_setup_that_fails_is_taken_back_and_wrong_input_changes_nothing() {
    let Some(host) = host() else { return };
    let table = host.fstab();
    // The name of the device is taken: known before anything is done but the unmount.
    let taken = host.instance.state().join("dev/data");
    fs::create_dir_all(taken.parent().unwrap()).unwrap();
    fs::write(&taken, "mine").unwrap();
    host.setup(&[]).refused(1, "all of it was taken back");
    host.is_bare(&table);
    fs::remove_file(&taken).unwrap();
    // An SSD that is not empty.
    assert!(Command::new("mkfs.ext4").args(["-q", &host.ssd.0]).status().unwrap().success());
    host.setup(&[]).refused(1, "all of it was taken back");
    host.is_bare(&table);
    let busy = File::open(host.folder.join("old")).unwrap();
    host.setup(&["-f"]).refused(1, "busy");
    host.is_bare(&table);
    drop(busy);
    host.run(&[&host.ssd.0, "/nonexistent"]).refused(1, "/nonexistent");
    host.run(&[&host.ssd.0, host.instance.drive("file", MIB).as_str()])
        .refused(1, "no block device");
    host.run(&[&host.disk.0]).refused(2, "");
    host.run(&[]).refused(2, "");
    let empty = Looped::new(&host.instance.drive("empty", 64 * MIB)).unwrap();
    host.run(&[&host.ssd.0, &empty.0]).refused(1, "has no file system");
    host.setup(&["-f", "-t", "quick"]).refused(2, "quick");
    host.setup(&["/boot"]).refused(1, "which the machine needs");
    host.is_bare(&table);
    // Not mounted, in no table, and no folder named.
    host.unmount();
    fs::write(host.etc.join("fstab"), "").unwrap();
    host.setup(&["-f"]).refused(2, "say where it is to be");
    let folder = host.folder.to_str().unwrap();
    fs::write(host.folder.join("hidden"), "").unwrap();
    host.setup(&["-f", folder]).refused(1, "is not empty");
    fs::remove_file(host.folder.join("hidden")).unwrap();
    let json = host.setup(&["-f", folder, "--name", "v", "--json"]).json();
    assert_eq!((&json["name"], &json["mounted_on"]), (&"v".into(), &folder.into()), "{json}");
    host.run(&["--undo", "v"]).ok();
    assert_eq!(host.fstab().trim(), "");
    host.mount_disk_is_plain();
}

impl Host {
    /// The disk was mounted when the setup was taken back.
    fn mount_disk_is_plain(&self) {
        assert_eq!(self.mounted().unwrap().0, self.disk.0);
        assert_eq!(fs::read(self.folder.join("old")).unwrap(), b"here before");
        self.unmount();
    }
}
