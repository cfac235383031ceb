//! The exports beside other servers in one run: NBD beside nbdkit's memory plugin and qemu-storage-daemon's null
//! device, the FUSE file beside qemu-storage-daemon's, and ext4 on a volume's block device beside ext4 on a plain
//! loop device over the same kind of file. And a cache that has everything beside the volume without one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use voltier_lab::LabError;
use voltier_lab::fio::{Fio, Job, OLDEST, Outcome, Pattern, Target, Until};
use voltier_lab::process::{Deadline, Running, Stop, pause};
use voltier_lab::voltier::{CacheSpec, Instance};
use voltier_results::size::format_bytes;
use xtask::{Failure, workspace};

use super::btrfs::{LoopDevice, Mounted, tool};
use super::nbd::start_nbdkit;
use super::programs::Effort;
use super::report::{self, Measured, Row};

/// Bytes of every volume.
const SIZE_BYTES: u64 = 512 << 20;
/// Bytes of the file on ext4.
const FILE_BYTES: u64 = 256 << 20;
/// qemu-storage-daemon opens its exports one after the other.
const READY_LIMIT: Duration = Duration::from_secs(10);

const OURS: &str = "Voltier, memory";
/// The same memory as a backing disk, and more of it as the SSD.
const CACHED: &str = "Voltier, hits";
const NBDKIT: &str = "nbdkit memory";
const QEMU: &str = "qemu-storage-daemon null";
const PLAIN_LOOP: &str = "a plain loop device";

/// What clients ask: words, pattern, block size, queue depth.
const JOBS: [(&str, Pattern, u64, u32); 8] = [
    ("read 4k qd1", Pattern::RandRead, 4 << 10, 1),
    ("write 4k qd1", Pattern::RandWrite, 4 << 10, 1),
    ("read 4k qd32", Pattern::RandRead, 4 << 10, 32),
    ("write 4k qd32", Pattern::RandWrite, 4 << 10, 32),
    ("read 4k qd128", Pattern::RandRead, 4 << 10, 128),
    ("write 4k qd128", Pattern::RandWrite, 4 << 10, 128),
    ("read 128k qd8", Pattern::RandRead, 128 << 10, 8),
    ("write 128k qd8", Pattern::RandWrite, 128 << 10, 8),
];

/// One server of one kind of export.
struct Subject {
    protocol: &'static str,
    server: &'static str,
    target: Target,
}

/// All servers; each ends with the value, in the order of the fields.
struct Servers {
    mounted: Vec<Mounted>,
    _loop_device: LoopDevice,
    _instance: Instance,
    _others: Vec<Running>,
    subjects: Vec<Subject>,
    fio: Fio,
    stop: Stop,
    _folder: TempDir,
}

impl Servers {
    fn start() -> Result<Self, Failure> {
        if let Some(why) = why_not() {
            return Err(why.into());
        }
        let binary = workspace::build_voltier(true)?;
        let stop = Stop::on_signals()?;
        let fio = Fio::find(OLDEST, &stop)?;
        fio.need_engine("nbd")?;
        let folder = tempfile::Builder::new().prefix("voltier-bench-").tempdir_in("/dev/shm")?;
        let state = folder.path().join("state");
        fs::create_dir(&state)?;
        let instance = Instance::new(&binary, &state, stop.clone());
        let size = format_bytes(SIZE_BYTES);
        create_volumes(&instance)?;
        let (nbdkit, nbdkit_uri) = start_nbdkit(folder.path(), &size)?;
        let (qemu, qemu_uri, qemu_file) = start_qemu(folder.path())?;
        let own_file = folder.path().join("v.raw").display().to_string();
        let own_uri = instance.export_nbd("v")?;
        instance.export("v", &["--fuse", &own_file])?;
        let cached_file = folder.path().join("c.raw").display().to_string();
        let cached_uri = instance.export_nbd("c")?;
        instance.export("c", &["--fuse", &cached_file])?;
        let file = |path: &str| Target::Files { paths: vec![path.to_owned()], engine: "libaio" };
        let mut subjects = vec![
            Subject { protocol: "NBD", server: OURS, target: Target::Nbd(own_uri) },
            Subject { protocol: "NBD", server: CACHED, target: Target::Nbd(cached_uri) },
            Subject { protocol: "NBD", server: NBDKIT, target: Target::Nbd(nbdkit_uri) },
            Subject { protocol: "NBD", server: QEMU, target: Target::Nbd(qemu_uri) },
            Subject { protocol: "FUSE", server: OURS, target: file(&own_file) },
            Subject { protocol: "FUSE", server: CACHED, target: file(&cached_file) },
            Subject { protocol: "FUSE", server: QEMU, target: file(&qemu_file) },
        ];
        // Memory is given out when it is touched first.
        let all = job(Pattern::Write, 1 << 20, 8, SIZE_BYTES, Until::Once);
        for subject in &subjects {
            fio.run(&all, &subject.target, &stop)?;
        }
        instance.flush("c")?;
        let backing = |name: &str| -> Result<String, Failure> {
            let path = folder.path().join(name);
            File::create_new(&path)?.set_len(2 * FILE_BYTES)?;
            Ok(path.display().to_string())
        };
        let plain =
            tool("losetup", &["--find", "--show", "--direct-io=on", &backing("plain")?], &stop)?;
        let loop_device = LoopDevice(plain);
        instance.create_plain("d", &backing("served")?)?;
        let device = instance.export("d", &["--loop"])?;
        let mut mounted = Vec::new();
        for (server, node) in [(OURS, device.as_str()), (PLAIN_LOOP, loop_device.0.as_str())] {
            let place = folder.path().join(if server == OURS { "ours" } else { "theirs" });
            mounted.push(mount_ext4(node, place.clone(), &stop)?);
            let path = place.join("file").display().to_string();
            let target = file(&path);
            fio.run(&job(Pattern::Write, 1 << 20, 8, FILE_BYTES, Until::Once), &target, &stop)?;
            subjects.push(Subject { protocol: "ext4", server, target });
        }
        Ok(Self {
            mounted,
            _loop_device: loop_device,
            _instance: instance,
            _others: vec![nbdkit, qemu],
            subjects,
            fio,
            stop,
            _folder: folder,
        })
    }

    fn run(&self, subject: &Subject, wanted: Job) -> Result<Outcome, LabError> {
        self.fio.run(&wanted, &subject.target, &self.stop)
    }
}

/// The volume in memory, and the same with a cache in memory.
fn create_volumes(instance: &Instance) -> Result<(), LabError> {
    let hdd = format!("mem:{}", format_bytes(SIZE_BYTES));
    let ssd = format!("mem:{}", format_bytes(2 * SIZE_BYTES));
    let (policy, mode, line_bytes) = ("lru", "wb", 4096);
    instance.create_plain("v", &hdd)?;
    instance.create_cached("c", &CacheSpec { ssd: &ssd, hdd: &hdd, policy, mode, line_bytes })?;
    // What is written first is to be in the cache.
    instance.set("c", "seq_cutoff=off")
}

/// Why this cannot be measured here, if so.
fn why_not() -> Option<&'static str> {
    let can_open = |path| File::options().read(true).write(true).open(path).is_ok();
    if !can_open("/dev/loop-control") || !can_open("/dev/fuse") {
        Some("loop devices, FUSE and mounts take root")
    } else if !Path::new("/dev/shm").is_dir() {
        Some("there is no /dev/shm")
    } else {
        None
    }
}

fn job(pattern: Pattern, block_bytes: u64, iodepth: u32, size_bytes: u64, until: Until) -> Job {
    let name = "bench".to_owned();
    Job { name, pattern, block_bytes, iodepth, numjobs: 1, size_bytes, until, more: Vec::new() }
}

fn mount_ext4(node: &str, place: PathBuf, stop: &Stop) -> Result<Mounted, Failure> {
    fs::create_dir(&place)?;
    tool("mkfs.ext4", &["-q", node], stop)?;
    tool("mount", &["-o", "noatime", node, &place.to_string_lossy()], stop)?;
    Ok(Mounted(place))
}

/// qemu-storage-daemon with a null device over NBD and as a FUSE file: the address and the path.
fn start_qemu(folder: &Path) -> Result<(Running, String, String), Failure> {
    let (socket, file) = (folder.join("qemu.sock"), folder.join("qemu.raw"));
    File::create_new(&file)?;
    let mut command = Command::new("qemu-storage-daemon");
    // Two exports of one node are not permitted.
    for name in ["n", "f"] {
        let node = format!("null-co,node-name={name},size={SIZE_BYTES},read-zeroes=on");
        command.args(["--blockdev", &node]);
    }
    command.arg("--nbd-server").arg(format!("addr.type=unix,addr.path={}", socket.display()));
    command.args(["--export", "type=nbd,id=nbd,node-name=n,name=n,writable=on"]);
    let fuse = format!(
        "type=fuse,id=fuse,node-name=f,writable=on,growable=off,mountpoint={}",
        file.display()
    );
    command.args(["--export", &fuse]);
    let qemu =
        Running::start(command.stdout(Stdio::null()), "qemu-storage-daemon").map_err(|error| {
            match error {
                LabError::File { .. } => LabError::Missing {
                    program: "qemu-storage-daemon",
                    package: "qemu-system-common",
                },
                other => other,
            }
        })?;
    let deadline = Deadline::after(READY_LIMIT);
    while !fs::metadata(&file).is_ok_and(|file| file.len() == SIZE_BYTES) || !socket.exists() {
        if deadline.is_over() {
            return Err("qemu-storage-daemon did not become ready".into());
        }
        pause(Duration::from_millis(20));
    }
    let uri = format!("nbd+unix:///n?socket={}", socket.display());
    Ok((qemu, uri, file.display().to_string()))
}

/// Measures all servers in every round. The order is turned round each time so that a machine that slows down or
/// speeds up favours nobody.
pub(super) fn measure(effort: Effort) -> Result<Vec<Row>, Failure> {
    let servers = Servers::start()?;
    let until = || Until::Time(Duration::from_secs(effort.seconds.into()));
    let mut rounds = Vec::new();
    for round in 1..=effort.rounds {
        eprintln!("exports, round {round} of {}", effort.rounds);
        let mut figures = Vec::new();
        for (at, (words, pattern, block_bytes, iodepth)) in JOBS.into_iter().enumerate() {
            let mut order: Vec<&Subject> =
                servers.subjects.iter().filter(|it| it.protocol != "ext4").collect();
            if (round as usize + at).is_multiple_of(2) {
                order.reverse();
            }
            for subject in order {
                let wanted = job(pattern, block_bytes, iodepth, SIZE_BYTES, until());
                let iops = servers.run(subject, wanted)?.iops();
                figures.push((subject.protocol, subject.server, words, iops));
            }
        }
        let mut order: Vec<&Subject> =
            servers.subjects.iter().filter(|it| it.protocol == "ext4").collect();
        if round.is_multiple_of(2) {
            order.reverse();
        }
        for subject in order {
            let wanted = job(Pattern::RandRw(50), 4 << 10, 16, FILE_BYTES, until());
            let iops = servers.run(subject, wanted)?.iops();
            figures.push((subject.protocol, subject.server, "randrw 4k qd16", iops));
        }
        rounds.push(rows(&figures));
    }
    drop(servers.mounted);
    Ok(report::medians(&rounds)?)
}

/// The cases of one round.
fn rows(figures: &[(&str, &str, &str, f64)]) -> Vec<Measured> {
    let ours = figures.iter().filter(|it| [OURS, CACHED].contains(&it.1));
    let row = |(protocol, server, words, figure): &(&str, &str, &str, f64)| {
        let others = figures.iter().filter(move |it| it.0 == *protocol && it.2 == *words);
        // A cache beside the volume without one, and that beside the others.
        let is_cached = *server == CACHED;
        let is_peer = |it: &&(&str, &str, &str, f64)| match is_cached {
            true => it.1 == OURS,
            false => ![OURS, CACHED].contains(&it.1),
        };
        let peers = others.filter(is_peer).map(|it| Measured {
            case: format!("{protocol} {words}{}", if is_cached { ", hits" } else { "" }),
            unit: "IOPS".to_owned(),
            ours: *figure,
            peer: it.1.to_owned(),
            theirs: it.3,
        });
        peers.collect::<Vec<_>>()
    };
    ours.flat_map(row).collect()
}
