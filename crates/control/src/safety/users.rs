//! The users of a file that is an export: loop devices over it, what is mounted on those, programs.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::machine::{Machine, backing_file, names, parse_number};

/// Users that are named one by one.
const NAMED_MAX: usize = 8;
/// How long file systems may take to write out what they hold, before their storage goes: in steps.
const SYNC_STEPS: u32 = 100;
const SYNC_STEP: Duration = Duration::from_millis(100);

/// A loop device over a file.
struct LoopDevice {
    name: String,
    /// The numbers of the device and its partitions.
    numbers: Vec<(u32, u32)>,
    mount_points: Vec<PathBuf>,
    /// What the kernel does with it beside mounts, in words.
    holders: Vec<String>,
}

impl LoopDevice {
    fn is_held(&self) -> bool {
        !self.mount_points.is_empty() || !self.holders.is_empty()
    }

    fn in_words(&self) -> String {
        let points: Vec<_> = self.mount_points.iter().map(|it| it.display().to_string()).collect();
        let mounted = (!points.is_empty()).then(|| format!("mounted on {}", points.join(" and ")));
        let node = format!("/dev/{}", self.name);
        [node].into_iter().chain(mounted).chain(self.holders.clone()).collect::<Vec<_>>().join(", ")
    }
}

/// The users of a file, in words: the first ones. Programs of other users are seen by root alone. If volumes of
/// this daemon use the file, `own` has the paths of their devices, and these are left out. A loop device over the
/// file is a user of it, or with `for_device` only the way to it: then those of the device count.
pub(crate) fn users_of_file(
    machine: &Machine,
    file: &Path,
    for_device: bool,
    own: &BTreeSet<PathBuf>,
) -> Vec<String> {
    let is_own = |device: &LoopDevice| {
        let is_it = |path: &PathBuf| loop_name(path).as_deref() == Some(device.name.as_str());
        !device.is_held() && own.iter().any(is_it)
    };
    let loops = loops_over(machine, file);
    let numbers = loops.iter().filter(|_| for_device).flat_map(|device| device.numbers.clone());
    let opened = Opened { file, numbers: numbers.collect() };
    let counts = |device: &LoopDevice| !is_own(device) && (!for_device || device.is_held());
    let loops = loops.into_iter().filter(counts).map(|device| device.in_words());
    let not_counted = (!own.is_empty()).then(|| std::process::id().to_string());
    loops.chain(programs_with(machine, &opened, not_counted.as_deref())).take(NAMED_MAX).collect()
}

/// The file behind a loop device or a partition of one; any other path as it is. No file system is asked.
pub(crate) fn file_behind(machine: &Machine, path: &Path) -> PathBuf {
    let behind =
        loop_name(path).and_then(|name| backing_file(&machine.sys.join("block").join(name)));
    behind.unwrap_or_else(|| path.to_owned())
}

/// The name of the loop device that a path below `/dev` names, or whose partition it names.
fn loop_name(path: &Path) -> Option<String> {
    let name = path.strip_prefix("/dev").ok()?.to_str()?;
    let number: String =
        name.strip_prefix("loop")?.chars().take_while(char::is_ascii_digit).collect();
    (!number.is_empty()).then(|| format!("loop{number}"))
}

/// Where file systems on loop devices over a file are mounted.
pub(crate) fn mount_points_over(machine: &Machine, file: &Path) -> Vec<PathBuf> {
    loops_over(machine, file).into_iter().flat_map(|device| device.mount_points).collect()
}

/// Has the file systems on loop devices over a file write out what they hold, for some seconds at most.
///
/// A program of its own does it. A thread of this process that waits in the kernel for its own storage
/// would keep the process from ending.
pub(crate) fn sync_above(machine: &Machine, file: &Path) {
    let loops = loops_over(machine, file);
    // What is mounted on LVM, dm-crypt or md on it is not known: everything is synced then.
    let has_holders = loops.iter().any(|device| !device.holders.is_empty());
    let points = loops.into_iter().flat_map(|device| device.mount_points);
    let sync = |point: Option<PathBuf>| {
        let mut command = Command::new("sync");
        point.iter().for_each(|point| {
            command.arg("-f").arg(point);
        });
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
    };
    let all = has_holders.then_some(None);
    let mut running: Vec<Child> = points.map(Some).chain(all).filter_map(sync).collect();
    for _ in 0..SYNC_STEPS {
        running.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if running.is_empty() {
            return;
        }
        std::thread::park_timeout(SYNC_STEP);
    }
}

fn loops_over(machine: &Machine, file: &Path) -> Vec<LoopDevice> {
    let block = machine.sys.join("block");
    let is_over = |name: &String| backing_file(&block.join(name)).as_deref() == Some(file);
    let device = |name: String| {
        let number = parse_number(&fs::read_to_string(block.join(&name).join("dev")).ok()?)?;
        let mut all = machine.partitions(number.0, number.1);
        all.insert(0, (name.clone(), number));
        let mount_points = all.iter().filter_map(|it| machine.mount_point(it.1)).collect();
        let nodes: Vec<PathBuf> = all.iter().map(|it| Path::new("/dev").join(&it.0)).collect();
        let swaps = machine.swaps();
        let swap = nodes.iter().any(|node| swaps.contains(node)).then(|| "swap".to_owned());
        let held =
            all.iter().flat_map(|it| names(&machine.block_dir(it.1.0, it.1.1).join("holders")));
        let held = held.map(|holder| format!("used by {}", holder_in_words(&block, &holder)));
        let holders = swap.into_iter().chain(held).collect();
        let numbers = all.into_iter().map(|it| it.1).collect();
        Some(LoopDevice { name, numbers, mount_points, holders })
    };
    names(&block).into_iter().filter(is_over).filter_map(device).collect()
}

/// A device that the kernel made of others: `dm-0 (vg-data)`, `md0`.
fn holder_in_words(block: &Path, holder: &str) -> String {
    match fs::read_to_string(block.join(holder).join("dm/name")) {
        Ok(name) => format!("{holder} ({})", name.trim()),
        Err(_) => holder.to_owned(),
    }
}

/// What a program may have open: a file, or a block device by whatever name.
struct Opened<'a> {
    file: &'a Path,
    numbers: Vec<(u32, u32)>,
}

impl Opened<'_> {
    /// Whether a descriptor, a link below `/proc`, is it. Only nodes are asked for their number: other files may be
    /// on a file system that does not answer.
    fn is_at(&self, descriptor: &Path) -> bool {
        let Ok(path) = fs::read_link(descriptor) else { return false };
        if path == self.file {
            return true;
        }
        let number = || {
            let meta = descriptor.metadata().ok().filter(|it| it.file_type().is_block_device())?;
            Some((rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev())))
        };
        !self.numbers.is_empty()
            && path.starts_with("/dev")
            && number().is_some_and(|number| self.numbers.contains(&number))
    }
}

/// Programs that have something open, but one program.
fn programs_with(machine: &Machine, opened: &Opened<'_>, but: Option<&str>) -> Vec<String> {
    let has_it = |dir: &Path| {
        let Ok(descriptors) = fs::read_dir(dir.join("fd")) else { return false };
        descriptors.flatten().any(|descriptor| opened.is_at(&descriptor.path()))
    };
    let is_other = |name: &String| name.parse::<u32>().is_ok() && Some(name.as_str()) != but;
    let processes = names(&machine.proc).into_iter().filter(is_other);
    let in_words = |pid: String| {
        let dir = machine.proc.join(&pid);
        let program = fs::read_to_string(dir.join("comm")).unwrap_or_default();
        has_it(&dir).then(|| format!("process {pid} ({})", program.trim_end()))
    };
    processes.filter_map(in_words).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn loop_devices_mounts_and_programs_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (proc, sys) = (dir.path().join("proc"), dir.path().join("sys"));
        let machine = Machine::of_tables(proc.clone(), sys.clone());
        for name in ["loop0", "loop1"] {
            fs::create_dir_all(sys.join("block").join(name).join("loop")).unwrap();
        }
        fs::write(sys.join("block/loop0/loop/backing_file"), "/run/v.raw\n").unwrap();
        fs::write(sys.join("block/loop0/dev"), "7:0\n").unwrap();
        fs::write(sys.join("block/loop1/loop/backing_file"), "/run/w.raw\n").unwrap();
        fs::write(sys.join("block/loop1/dev"), "7:1\n").unwrap();
        fs::create_dir_all(sys.join("dev/block")).unwrap();
        fs::create_dir_all(proc.join("self")).unwrap();
        let mounts = "36 35 7:0 / /srv/data rw - ext4 /dev/loop0 rw\n";
        fs::write(proc.join("self/mountinfo"), mounts).unwrap();
        fs::create_dir_all(proc.join("41/fd")).unwrap();
        symlink("/run/w.raw", proc.join("41/fd/3")).unwrap();
        fs::write(proc.join("41/comm"), "qemu\n").unwrap();
        let none = BTreeSet::new();
        let of = |path: &str| users_of_file(&machine, Path::new(path), false, &none);
        assert_eq!(of("/run/v.raw"), ["/dev/loop0, mounted on /srv/data"]);
        assert_eq!(of("/run/w.raw"), ["/dev/loop1", "process 41 (qemu)"]);
        assert_eq!(of("/run/x.raw"), [] as [String; 0]);
        let behind = |path: &str| file_behind(&machine, Path::new(path)).display().to_string();
        let files = ["/dev/loop1", "/dev/loop1p2", "/dev/loop7", "/srv/loop1"].map(behind);
        assert_eq!(files, ["/run/w.raw", "/run/w.raw", "/dev/loop7", "/srv/loop1"]);
        // A volume of the daemon uses a loop device that is not mounted.
        let own = |path: &str| {
            let own = BTreeSet::from([PathBuf::from(path)]);
            users_of_file(&machine, Path::new("/run/w.raw"), false, &own)
        };
        assert_eq!(own("/dev/loop1p1"), ["process 41 (qemu)"]);
        assert_eq!(own("/dev/loop0"), ["/dev/loop1", "process 41 (qemu)"]);
        // A loop device that is the way to a volume is no user; what is on it is.
        let device = |path: &str| users_of_file(&machine, Path::new(path), true, &none);
        assert_eq!(device("/run/v.raw"), ["/dev/loop0, mounted on /srv/data"]);
        assert_eq!(device("/run/w.raw"), ["process 41 (qemu)"]);
        fs::remove_file(proc.join("41/fd/3")).unwrap();
        assert_eq!(device("/run/w.raw"), [] as [String; 0]);
        fs::create_dir_all(sys.join("dev/block/7:1/holders/dm-0")).unwrap();
        fs::create_dir_all(sys.join("block/dm-0/dm")).unwrap();
        fs::write(sys.join("block/dm-0/dm/name"), "vg-data\n").unwrap();
        assert_eq!(device("/run/w.raw"), ["/dev/loop1, used by dm-0 (vg-data)"]);
    }
}
