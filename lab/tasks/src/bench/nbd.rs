//! NBD on Unix sockets, 4 KiB at depth 32 by fio: nbdkit's memory plugin, plain memory, a cache
//! that holds everything, and a write-back cache, interleaved.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use voltier_lab::LabError;
use voltier_lab::fio::{Fio, Job, OLDEST, Pattern, Target, Until};
use voltier_lab::process::{Deadline, Running, Stop, pause};
use voltier_lab::voltier::{CacheSpec, Instance};
use voltier_results::size::format_bytes;

use super::programs::Effort;
use super::report::{self, Measured, Row};
use xtask::Failure;

/// The working set of every case.
const SIZE_BYTES: u64 = 256 << 20;

/// Room for the cache's log, whose space is reused while it is measured. A quarter of its lines is dirty,
/// which is enough to keep destaging at work.
const SSD_BYTES: u64 = 4 * SIZE_BYTES;

/// Passes over a cached volume within which its log must have been around its drive.
const PASSES_MAX: u32 = 16;

const NBDKIT: &str = "nbdkit memory";
const PLAIN: &str = "plain";
const HIT: &str = "hit";
const WRITE_BACK: &str = "wb";

/// Below this a run of "hits" measured something else.
const HIT_RATE_MIN: f64 = 0.999;

/// The servers and where fio finds their volumes. Everything ends with the value.
pub(super) struct Volumes {
    // Ends before the folder it works in is removed: fields are dropped in order.
    instance: Instance,
    _nbdkit: Running,
    targets: BTreeMap<&'static str, Target>,
    fio: Fio,
    stop: Stop,
    _folder: TempDir,
}

impl Volumes {
    /// Starts both servers and writes every volume once.
    pub(super) fn start(binary: &Path, stop: &Stop) -> Result<Volumes, Failure> {
        let fio = Fio::find(OLDEST, stop)?;
        fio.need_engine("nbd")?;
        let folder = tempfile::Builder::new().prefix("voltier-bench-").tempdir()?;
        let size = format_bytes(SIZE_BYTES);
        let (nbdkit, uri) = start_nbdkit(folder.path(), &size)?;
        let state = folder.path().join("state");
        std::fs::create_dir(&state)?;
        let instance = Instance::new(binary, &state, stop.clone());
        let memory = format!("mem:{size}");
        let ssd = format!("mem:{}", format_bytes(SSD_BYTES));
        let cache =
            CacheSpec { ssd: &ssd, hdd: &memory, policy: "lru", mode: "wb", line_bytes: 4096 };
        instance.create_plain(PLAIN, &memory)?;
        for name in [HIT, WRITE_BACK] {
            instance.create_cached(name, &cache)?;
            instance.set(name, "seq_cutoff=0")?;
        }
        let mut targets = BTreeMap::from([(NBDKIT, Target::Nbd(uri))]);
        for name in [PLAIN, HIT, WRITE_BACK] {
            targets.insert(name, Target::Nbd(instance.export_nbd(name)?));
        }
        for target in targets.values() {
            fio.run(&job("fill", Pattern::Write, 256 << 10, Until::Once), target, stop)?;
        }
        let stop = stop.clone();
        let volumes = Volumes { instance, _nbdkit: nbdkit, targets, fio, stop, _folder: folder };
        for name in [HIT, WRITE_BACK] {
            volumes.write_whole_ssd(name)?;
        }
        volumes.instance.flush(HIT)?;
        Ok(volumes)
    }

    /// Writes a cached volume until its drive was written from end to end. The system clears memory
    /// that is touched for the first time, and the bench does not measure that.
    fn write_whole_ssd(&self, name: &str) -> Result<(), Failure> {
        let fill = job("fill", Pattern::Write, 256 << 10, Until::Once);
        for _ in 0..PASSES_MAX {
            if self.instance.show(name)?.device_bytes.ssd_written >= SSD_BYTES {
                return Ok(());
            }
            self.fio.run(&fill, &self.targets[name], &self.stop)?;
        }
        Err(format!("{PASSES_MAX} passes over {name} did not write its whole drive").into())
    }

    fn iops(&self, name: &str, pattern: Pattern, effort: Effort) -> Result<f64, LabError> {
        let job =
            job("bench", pattern, 4096, Until::Time(Duration::from_secs(effort.seconds.into())));
        Ok(self.fio.run(&job, &self.targets[name], &self.stop)?.iops())
    }
}

fn job(name: &str, pattern: Pattern, block_bytes: u64, until: Until) -> Job {
    Job {
        name: name.to_owned(),
        pattern,
        block_bytes,
        iodepth: 32,
        numjobs: 1,
        size_bytes: SIZE_BYTES,
        until,
        more: Vec::new(),
    }
}

pub(super) fn start_nbdkit(folder: &Path, size: &str) -> Result<(Running, String), Failure> {
    let socket = folder.join("nbdkit.sock");
    let mut command = Command::new("nbdkit");
    // Written when it accepts connections.
    let ready = folder.join("nbdkit.pid");
    command.args(["--foreground", "--unix"]).arg(&socket).arg("--pidfile").arg(&ready);
    command.args(["memory", size]);
    let nbdkit =
        Running::start(command.stdout(Stdio::null()), "nbdkit").map_err(|error| match error {
            LabError::File { .. } => LabError::Missing { program: "nbdkit", package: "nbdkit" },
            other => other,
        })?;
    let deadline = Deadline::after(Duration::from_secs(10));
    while !ready.exists() {
        if deadline.is_over() {
            return Err("nbdkit did not become ready within 10 s".into());
        }
        pause(Duration::from_millis(20));
    }
    Ok((nbdkit, format!("nbd+unix:///?socket={}", socket.display())))
}

/// Measures all cases, every server in every round. The order is turned round each time so that a machine
/// that slows down or speeds up favours nobody.
pub(super) fn measure(volumes: &Volumes, effort: Effort) -> Result<Vec<Row>, Failure> {
    let hits_before = volumes.instance.show(HIT)?.reads;
    let mut order = [
        (NBDKIT, Pattern::RandRead),
        (PLAIN, Pattern::RandRead),
        (HIT, Pattern::RandRead),
        (NBDKIT, Pattern::RandWrite),
        (PLAIN, Pattern::RandWrite),
        (WRITE_BACK, Pattern::RandWrite),
    ];
    let mut rounds = Vec::new();
    for round in 1..=effort.rounds {
        eprintln!("NBD cases, round {round} of {}", effort.rounds);
        let mut figures = Vec::new();
        for (name, pattern) in order {
            figures.push((name, pattern, volumes.iops(name, pattern, effort)?));
        }
        order.reverse();
        rounds.push(rows(&figures));
    }
    let hits = volumes.instance.show(HIT)?.reads.since(hits_before).hit_rate().unwrap_or(0.0);
    if hits < HIT_RATE_MIN {
        return Err(
            format!("only {hits:.4} of the cached reads were hits: nothing to compare").into()
        );
    }
    Ok(report::medians(&rounds)?)
}

/// The cases of one round.
fn rows(figures: &[(&str, Pattern, f64)]) -> Vec<Measured> {
    let figure = |name: &str, pattern: Pattern| {
        let run = figures.iter().find(|run| run.0 == name && run.1 == pattern);
        run.map_or(0.0, |run| run.2)
    };
    let row = |case: &str, ours: &str, peer: &str, theirs: &str, pattern: Pattern| Measured {
        case: format!("NBD 4k qd32 {case}"),
        unit: "IOPS".to_owned(),
        ours: figure(ours, pattern),
        peer: peer.to_owned(),
        theirs: figure(theirs, pattern),
    };
    let same = "plain memory, same server";
    let (read, write) = (Pattern::RandRead, Pattern::RandWrite);
    vec![
        row("read, plain memory", PLAIN, NBDKIT, NBDKIT, read),
        row("write, plain memory", PLAIN, NBDKIT, NBDKIT, write),
        row("read, cache hits", HIT, same, PLAIN, read),
        row("write, write-back", WRITE_BACK, same, PLAIN, write),
    ]
}
