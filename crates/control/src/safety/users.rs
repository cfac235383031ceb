//! The users of a file that is an export: loop devices over it, what is mounted on those, programs.

use std::fs;
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
    mount_points: Vec<PathBuf>,
}

/// The users of a file, in words: the first ones. Programs of other users are seen by root alone.
pub(crate) fn users_of_file(machine: &Machine, file: &Path) -> Vec<String> {
    let loops = loops_over(machine, file).into_iter().map(|device| {
        let points: Vec<_> =
            device.mount_points.iter().map(|it| it.display().to_string()).collect();
        match points.is_empty() {
            true => format!("/dev/{}", device.name),
            false => format!("/dev/{}, mounted on {}", device.name, points.join(" and ")),
        }
    });
    loops.chain(programs_with(machine, file)).take(NAMED_MAX).collect()
}

/// Has the file systems on loop devices over a file write out what they hold, for some seconds at most.
///
/// A program of its own does it. A thread of this process that waits in the kernel for its own storage
/// would keep the process from ending.
pub(crate) fn sync_above(machine: &Machine, file: &Path) {
    let points = loops_over(machine, file).into_iter().flat_map(|device| device.mount_points);
    let sync = |point: PathBuf| {
        let mut command = Command::new("sync");
        command.arg("-f").arg(point);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
    };
    let mut running: Vec<Child> = points.filter_map(sync).collect();
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
        let partitions = machine.partitions(number.0, number.1).into_iter().map(|it| it.1);
        let numbers = [number].into_iter().chain(partitions);
        let mount_points = numbers.filter_map(|number| machine.mount_point(number)).collect();
        Some(LoopDevice { name, mount_points })
    };
    names(&block).into_iter().filter(is_over).filter_map(device).collect()
}

/// Programs that have a file open.
fn programs_with(machine: &Machine, file: &Path) -> Vec<String> {
    let has_it = |dir: &Path| {
        let Ok(descriptors) = fs::read_dir(dir.join("fd")) else { return false };
        descriptors
            .flatten()
            .any(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|path| path == file))
    };
    let processes = names(&machine.proc).into_iter().filter(|name| name.parse::<u32>().is_ok());
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
        let of = |path: &str| users_of_file(&machine, Path::new(path));
        assert_eq!(of("/run/v.raw"), ["/dev/loop0, mounted on /srv/data"]);
        assert_eq!(of("/run/w.raw"), ["/dev/loop1", "process 41 (qemu)"]);
        assert_eq!(of("/run/x.raw"), [] as [String; 0]);
    }
}
