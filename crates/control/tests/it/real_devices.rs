//! The safety checks against what real tools leave on real images, and against a loop device where
//! the machine lets this user make one. Where a tool is missing, its case is left out aloud.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use voltier_control::safety::{Examined, Finding, Machine, Role, examine, judge};

fn image(dir: &Path, name: &str, bytes: u64) -> PathBuf {
    let path = dir.join(name);
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

/// Runs a tool; false, with a word about it, when it cannot be run here.
fn run(program: &str, args: &[&str]) -> bool {
    match Command::new(program).args(args).output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            eprintln!("left out: {program}: {}", String::from_utf8_lossy(&output.stderr));
            false
        }
        Err(error) => {
            eprintln!("left out: {program}: {error}");
            false
        }
    }
}

fn as_cache(path: &Path) -> Examined {
    examine(&Machine::real(), path, Role::Cache).unwrap()
}

#[test]
fn what_mkfs_and_friends_write_is_seen_as_content_and_needs_force() {
    let dir = tempfile::tempdir().unwrap();
    let tools: [(&str, &[&str], &str); 5] = [
        ("mkfs.ext4", &["-q", "-F"], "ext"),
        ("mkfs.xfs", &["-q"], "XFS"),
        ("mkswap", &[], "swap"),
        ("mkfs.vfat", &[], "FAT"),
        ("mkfs.btrfs", &["-q"], "btrfs"),
    ];
    for (tool, args, what) in tools {
        let path = image(dir.path(), tool, 320 << 20);
        let full: Vec<&str> = args.iter().copied().chain(path.to_str()).collect();
        if !run(tool, &full) {
            continue;
        }
        let examined = as_cache(&path);
        let error = judge(&path, &examined, false).unwrap_err();
        assert!(error.message.contains(what) && error.message.contains("-f"), "{error}");
        judge(&path, &examined, true).unwrap();
        let origin = examine(&Machine::real(), &path, Role::Origin).unwrap();
        judge(&path, &origin, false).unwrap();
    }
}

/// A loop device that ends with the value.
struct Loop(String);

impl Loop {
    fn over(path: &Path) -> Option<Self> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(path).output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        name.starts_with("/dev/").then_some(Self(name))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", &self.0]);
    }
}

#[test]
fn a_file_under_a_loop_device_is_in_use_and_a_mounted_one_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), "disk", 64 << 20);
    if !run("mkfs.ext4", &["-q", "-F", path.to_str().unwrap()]) {
        return;
    }
    let Some(device) = Loop::over(&path) else {
        eprintln!("left out: this user makes no loop devices here");
        return;
    };
    let below = as_cache(&path);
    assert!(matches!(&below.findings[0], Finding::Held(by) if *by == device.0), "{below:?}");
    assert!(judge(&path, &below, true).is_err());

    let looped = as_cache(Path::new(&device.0));
    let file = examine(&Machine::real(), &path, Role::Origin).unwrap();
    assert!(looped.id.overlaps(&file.id), "the loop device and its file are one storage");

    let mount = dir.path().join("mount");
    std::fs::create_dir(&mount).unwrap();
    if !run("mount", &[&device.0, mount.to_str().unwrap()]) {
        return;
    }
    let mounted = as_cache(Path::new(&device.0));
    let error = judge(Path::new(&device.0), &mounted, true).unwrap_err();
    run("umount", &[mount.to_str().unwrap()]);
    assert!(error.message.contains(mount.to_str().unwrap()), "{error}");
}
