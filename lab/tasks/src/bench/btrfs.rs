//! RAID 6 over six loop devices on files in memory: an array through NBD, and btrfs on the same devices,
//! by the same fio jobs. Beside the reads, what the same server gives of plain memory and of one
//! loop device.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use voltier_lab::fio::{Fio, Job, OLDEST, Outcome, Pattern, Target, Until};
use voltier_lab::process::{self, Stop};
use voltier_lab::voltier::{ArraySpec, Instance};
use voltier_results::size::format_bytes;

use super::programs::Effort;
use super::report::{self, Measured, Row};
use xtask::{Failure, workspace};

const MEMBERS: usize = 6;
const MEMBER_BYTES: u64 = 512 << 20;
/// The bytes that are written and read of the volume, or of the file on btrfs. A quarter of the room is
/// enough, since data that is written anew takes more until btrfs has cleaned up.
const SPAN_BYTES: u64 = 512 << 20;
/// A tool that makes, mounts or clears something.
const TOOL_LIMIT: Duration = Duration::from_secs(120);

/// The subjects that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// RAID 6 of Voltier: its chunk and consistency, as on the command line.
    Array(&'static str, &'static str),
    /// A file on btrfs, copy-on-write and checksums or, as an array has it, in place.
    Btrfs { in_place: bool },
    /// Plain memory, same server.
    Memory,
    /// One of the loop devices, same server.
    OneLoop,
}

const DEFAULT: Subject = Subject::Array("16K", "journal");
const BITMAP: Subject = Subject::Array("16K", "bitmap");
const WIDE: Subject = Subject::Array("64K", "journal");
const WIDE_BITMAP: Subject = Subject::Array("64K", "bitmap");
const IN_PLACE: Subject = Subject::Btrfs { in_place: true };
const COPY_ON_WRITE: Subject = Subject::Btrfs { in_place: false };

/// The loads of each subject.
const JOBS: [(&str, Pattern, u32, u32); 4] = [
    ("random write 4k qd32", Pattern::RandWrite, 4 << 10, 32),
    ("sequential write 128k qd8", Pattern::Write, 128 << 10, 8),
    ("random read 4k qd32", Pattern::RandRead, 4 << 10, 32),
    ("sequential read 128k qd8", Pattern::Read, 128 << 10, 8),
];

/// Why these cases cannot be measured here, if so.
pub(super) fn why_not() -> Option<&'static str> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let has_btrfs = std::fs::read_to_string("/proc/filesystems")
        .is_ok_and(|all| all.split_whitespace().any(|name| name == "btrfs"));
    if !is_root {
        Some("loop devices and mounts take root")
    } else if !has_btrfs {
        Some("the kernel has no btrfs: try 'modprobe btrfs'")
    } else if !Path::new("/dev/loop-control").exists() {
        Some("the kernel has no loop devices: try 'modprobe loop'")
    } else {
        None
    }
}

pub(super) fn tool(program: &str, arguments: &[&str], stop: &Stop) -> Result<String, Failure> {
    let finished = process::run(Command::new(program).args(arguments), program, TOOL_LIMIT, stop)?;
    if finished.status.success() {
        Ok(finished.stdout.trim().to_owned())
    } else {
        let why = finished.last_words();
        Err(format!("{program} {} failed: {why}", arguments.join(" ")).into())
    }
}

/// Runs a tool that undoes something, also after an interruption.
fn undo(program: &str, arguments: &[&str]) {
    if let Err(failure) = tool(program, arguments, &Stop::default()) {
        eprintln!("{failure}");
    }
}

/// A loop device over a file, until dropped.
pub(super) struct LoopDevice(pub(super) String);

impl LoopDevice {
    fn over(file: &Path, stop: &Stop) -> Result<Self, Failure> {
        let name = file.to_string_lossy();
        Ok(Self(tool("losetup", &["--find", "--show", &name], stop)?))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        undo("losetup", &["--detach", &self.0]);
    }
}

/// A file system, until dropped.
pub(super) struct Mounted(pub(super) PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        undo("umount", &[&self.0.to_string_lossy()]);
    }
}

/// The target of fio, and all that has to stay for that long. Ends in the order of the fields.
struct Fixture {
    target: Target,
    span_bytes: u64,
    _instance: Option<Instance>,
    _mounted: Option<Mounted>,
    _folder: TempDir,
}

struct Bench {
    binary: PathBuf,
    fio: Fio,
    stop: Stop,
    devices: Vec<LoopDevice>,
    // Goes after the devices over its files.
    folder: TempDir,
}

impl Bench {
    fn start() -> Result<Self, Failure> {
        let binary = workspace::build_voltier(true)?;
        let stop = Stop::on_signals()?;
        let fio = Fio::find(OLDEST, &stop)?;
        fio.need_engine("nbd")?;
        let memory = Path::new("/dev/shm");
        let mut builder = tempfile::Builder::new();
        builder.prefix("voltier-bench-");
        let folder =
            if memory.is_dir() { builder.tempdir_in(memory)? } else { builder.tempdir()? };
        let mut bench = Self { binary, fio, stop, devices: Vec::new(), folder };
        for member in 0..MEMBERS {
            let path = bench.folder.path().join(format!("d{member}"));
            std::fs::File::create_new(&path)?.set_len(MEMBER_BYTES)?;
            bench.devices.push(LoopDevice::over(&path, &bench.stop)?);
        }
        Ok(bench)
    }

    fn device_names(&self) -> Vec<&str> {
        self.devices.iter().map(|device| device.0.as_str()).collect()
    }

    /// Makes the devices empty, then the subject on them, and writes its span once.
    fn make_fixture(&self, subject: Subject) -> Result<Fixture, Failure> {
        let devices = self.device_names();
        for device in &devices {
            tool("blkdiscard", &["--force", device], &self.stop)?;
        }
        let folder = tempfile::Builder::new().prefix("fixture-").tempdir_in(self.folder.path())?;
        let fixture = match subject {
            Subject::Btrfs { in_place } => self.mount_btrfs(folder, &devices, in_place)?,
            served => self.serve(folder, &devices, served)?,
        };
        let fill = Job {
            name: "fill".to_owned(),
            pattern: Pattern::Write,
            block_bytes: 1 << 20,
            iodepth: 8,
            numjobs: 1,
            size_bytes: fixture.span_bytes,
            until: Until::Once,
            more: Vec::new(),
        };
        self.fio.run(&fill, &fixture.target, &self.stop)?;
        tool("sync", &[], &self.stop)?;
        Ok(fixture)
    }

    fn serve(
        &self,
        folder: TempDir,
        devices: &[&str],
        served: Subject,
    ) -> Result<Fixture, Failure> {
        let instance = Instance::new(&self.binary, folder.path(), self.stop.clone());
        let (device, span_bytes) = match served {
            Subject::Array(chunk, consistency) => {
                let spec = ArraySpec { level: "6", chunk, consistency, members: devices };
                instance.create_array("r6", &spec)?;
                ("array:r6".to_owned(), SPAN_BYTES)
            }
            Subject::Memory => (format!("mem:{}", format_bytes(SPAN_BYTES)), SPAN_BYTES),
            Subject::OneLoop => (devices[0].to_owned(), MEMBER_BYTES),
            Subject::Btrfs { .. } => unreachable!("btrfs is not served"),
        };
        instance.create_plain("v", &device)?;
        let target = Target::Nbd(instance.export_nbd("v")?);
        let _instance = Some(instance);
        Ok(Fixture { target, span_bytes, _instance, _mounted: None, _folder: folder })
    }

    fn mount_btrfs(
        &self,
        folder: TempDir,
        devices: &[&str],
        in_place: bool,
    ) -> Result<Fixture, Failure> {
        let profile = ["--quiet", "--force", "--data", "raid6", "--metadata", "raid1c3"];
        tool("mkfs.btrfs", &[&profile, devices].concat(), &self.stop)?;
        let place = folder.path().join("mounted");
        std::fs::create_dir(&place)?;
        let place_name = place.to_string_lossy();
        tool("mount", &["-t", "btrfs", "-o", "noatime", devices[0], &place_name], &self.stop)?;
        let mounted = Mounted(place.clone());
        if in_place {
            // New files of the folder are then overwritten in place, without checksums. The folder gets
            // the flag, because fio makes its file anew.
            tool("chattr", &["+C", &place_name], &self.stop)?;
        }
        let path = place.join("file").to_string_lossy().into_owned();
        let target = Target::Files { paths: vec![path], engine: "io_uring" };
        let _mounted = Some(mounted);
        Ok(Fixture { target, span_bytes: SPAN_BYTES, _instance: None, _mounted, _folder: folder })
    }

    /// The results of all jobs, in their order.
    fn run(&self, subject: Subject, effort: Effort) -> Result<Vec<Outcome>, Failure> {
        let fixture = self.make_fixture(subject)?;
        let run = |(_, pattern, block_bytes, iodepth): &(&str, Pattern, u32, u32)| {
            let job = Job {
                name: "bench".to_owned(),
                pattern: *pattern,
                block_bytes: u64::from(*block_bytes),
                iodepth: *iodepth,
                numjobs: 1,
                size_bytes: fixture.span_bytes,
                until: Until::Time(Duration::from_secs(effort.seconds.into())),
                more: Vec::new(),
            };
            Ok(self.fio.run(&job, &fixture.target, &self.stop)?)
        };
        JOBS.iter().map(run).collect()
    }
}

/// Measures all subjects in every round, the order turned round each time so that a machine that
/// slows down or speeds up favours nobody.
pub(super) fn measure(effort: Effort) -> Result<Vec<Row>, Failure> {
    if let Some(why) = why_not() {
        return Err(why.into());
    }
    let bench = Bench::start()?;
    let mut order = [
        DEFAULT,
        IN_PLACE,
        BITMAP,
        COPY_ON_WRITE,
        WIDE,
        Subject::Memory,
        WIDE_BITMAP,
        Subject::OneLoop,
    ];
    let mut rounds = Vec::new();
    for round in 1..=effort.rounds {
        eprintln!("RAID 6 beside btrfs, round {round} of {}", effort.rounds);
        let mut figures = Vec::new();
        for subject in order {
            figures.push((subject, bench.run(subject, effort)?));
        }
        order.reverse();
        rounds.push(rows(&figures));
    }
    Ok(report::medians(&rounds)?)
}

/// The cases of one round.
fn rows(figures: &[(Subject, Vec<Outcome>)]) -> Vec<Measured> {
    let outcome = |subject: Subject, job: usize| {
        let own = figures.iter().find(|(other, _)| *other == subject);
        own.map(|(_, outcomes)| outcomes[job].clone()).unwrap_or_default()
    };
    let row = |job: usize, ours: Subject, theirs: Subject| {
        let (name, pattern, ..) = JOBS[job];
        let is_random = matches!(pattern, Pattern::RandWrite | Pattern::RandRead);
        let figure = |outcome: Outcome| {
            if is_random { outcome.iops() } else { outcome.megabytes_per_second() }
        };
        Measured {
            case: format!("NBD {name}, {}", ours.name()),
            unit: if is_random { "IOPS" } else { "MB/s" }.to_owned(),
            ours: figure(outcome(ours, job)),
            peer: theirs.name(),
            theirs: figure(outcome(theirs, job)),
        }
    };
    let mut rows = Vec::new();
    for job in [0, 1] {
        for ours in [DEFAULT, BITMAP, WIDE, WIDE_BITMAP] {
            rows.extend([IN_PLACE, COPY_ON_WRITE].map(|theirs| row(job, ours, theirs)));
        }
    }
    for job in [2, 3] {
        let peers = [IN_PLACE, COPY_ON_WRITE, Subject::Memory, Subject::OneLoop];
        rows.extend(peers.map(|theirs| row(job, DEFAULT, theirs)));
    }
    rows
}

impl Subject {
    fn name(self) -> String {
        match self {
            Subject::Array(chunk, consistency) => {
                format!("RAID 6 of 6 loop devices, {chunk} chunks, {consistency}")
            }
            Subject::Btrfs { in_place: true } => "btrfs RAID 6, nodatacow".to_owned(),
            Subject::Btrfs { in_place: false } => "btrfs RAID 6, copy on write".to_owned(),
            Subject::Memory => "plain memory, same server".to_owned(),
            Subject::OneLoop => "one loop device, same server".to_owned(),
        }
    }
}
