//! A volume whose backing disk is a Ceph RBD image, beside the same kind of image alone: fio's rbd engine, which is
//! librbd without anything between, and fio's nbd engine on the volume. A Ceph of one OSD is started on the loopback
//! address; its store is in memory, and the SSD of the volume is a file in memory: neither stands for a real drive.

use std::cell::Cell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use voltier_lab::fio::{Fio, Job, OLDEST, Pattern, Target, Until};
use voltier_lab::process::Stop;
use voltier_lab::voltier::{CacheSpec, Instance};
use xtask::{Failure, workspace};

use super::btrfs::tool;
use super::programs::Effort;
use super::report::{self, Measured, Row};

/// Bytes of each image.
const IMAGE_BYTES: u64 = 512 << 20;
/// Bytes of the file that stands for the SSD.
const SSD_BYTES: u64 = 1 << 30;
/// What random writes go over: less than the cache begins to write back at.
const WRITTEN_BYTES: u64 = 256 << 20;
/// What hot reads go over.
const HOT_BYTES: u64 = 64 << 20;
/// Blocks that a cold run reads, each once.
const COLD_READS: u64 = 12_000;
const BLOCK_BYTES: u64 = 4 << 10;
const RUN_BYTES: u64 = 128 << 10;
const RUN_DEPTH: u32 = 8;
const BARE: &str = "librbd alone";

/// What the cache is when a case begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cache {
    /// As the case before left it, with nothing dirty.
    AsItIs,
    /// It has what is read.
    Hot,
    /// It has nothing.
    Empty,
    /// There is none: what the drive and the export cost.
    Without,
}

struct Case {
    words: &'static str,
    cache: Cache,
    job: Job,
    /// Microseconds a request instead of requests a second.
    is_time: bool,
}

/// The cluster; it ends with the value.
struct Ceph {
    script: PathBuf,
    folder: PathBuf,
}

impl Ceph {
    fn start(folder: &Path, stop: &Stop) -> Result<Self, Failure> {
        let script = workspace::root().join("scripts/ceph.sh");
        let ceph = Self { script, folder: folder.to_owned() };
        tool(&ceph.script.to_string_lossy(), &[&folder.to_string_lossy()], stop)?;
        Ok(ceph)
    }

    fn conf(&self) -> String {
        self.folder.join("ceph.conf").display().to_string()
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        let mut down = Command::new(&self.script);
        let _ = down.arg(&self.folder).arg("down").stdout(Stdio::null()).status();
    }
}

/// Both sides; each ends with the value, in the order of the fields.
struct Sides {
    instance: Instance,
    ssd: String,
    hdd: String,
    volume: Target,
    bare: Target,
    has_cache: Cell<bool>,
    fio: Fio,
    stop: Stop,
    _ceph: Ceph,
    _folder: TempDir,
}

impl Sides {
    fn start() -> Result<Self, Failure> {
        if !Path::new("/dev/shm").is_dir() {
            return Err("there is no /dev/shm".into());
        }
        let binary = workspace::build_voltier(true)?;
        let stop = Stop::on_signals()?;
        let fio = Fio::find(OLDEST, &stop)?;
        ["nbd", "rbd"].into_iter().try_for_each(|engine| fio.need_engine(engine))?;
        let folder = tempfile::Builder::new().prefix("voltier-bench-").tempdir_in("/dev/shm")?;
        let ceph = Ceph::start(&folder.path().join("ceph"), &stop)?;
        let conf = ceph.conf();
        let fio = fio.with_variable("CEPH_CONF", &conf);
        for image in ["bare", "behind"] {
            let name = format!("rbd/{image}");
            let size = format!("{}M", IMAGE_BYTES >> 20);
            tool("rbd", &["--conf", &conf, "create", &name, "--size", &size], &stop)?;
        }
        let (pool, user) = ("rbd".to_owned(), "admin".to_owned());
        let bare = Target::Rbd { pool, image: "bare".to_owned(), user };
        let ssd = folder.path().join("ssd.img");
        File::create_new(&ssd)?.set_len(SSD_BYTES)?;
        let state = folder.path().join("state");
        fs::create_dir(&state)?;
        let instance = Instance::new(&binary, &state, stop.clone());
        let hdd = format!("rbd:rbd/behind@{conf}");
        let ssd = ssd.display().to_string();
        instance.create_cached("v", &cache_of(&ssd, &hdd))?;
        let volume = Target::Nbd(instance.export_nbd("v")?);
        let sides = Self {
            instance,
            ssd,
            hdd,
            volume,
            bare,
            has_cache: Cell::new(true),
            fio,
            stop,
            _ceph: ceph,
            _folder: folder,
        };
        // An object is made when it is written first.
        for target in [&sides.bare, &sides.volume] {
            let all = job(Pattern::Write, 1 << 20, 8, IMAGE_BYTES, Until::Once);
            sides.fio.run(&all, target, &sides.stop)?;
        }
        Ok(sides)
    }

    fn prepare(&self, case: &Case) -> Result<(), Failure> {
        if self.has_cache.get() && matches!(case.cache, Cache::Empty | Cache::Without) {
            self.instance.detach("v")?;
            self.has_cache.set(false);
        }
        if !self.has_cache.get() && case.cache != Cache::Without {
            self.instance.attach("v", &cache_of(&self.ssd, &self.hdd))?;
            self.has_cache.set(true);
        }
        match case.cache {
            Cache::Without | Cache::Empty => {}
            Cache::AsItIs => self.instance.flush("v")?,
            Cache::Hot => {
                let all = job(Pattern::RandRead, BLOCK_BYTES, 32, case.job.size_bytes, Until::Once);
                for _ in 0..2 {
                    self.fio.run(&all, &self.volume, &self.stop)?;
                }
            }
        }
        Ok(())
    }

    fn run(&self, case: &Case, target: &Target) -> Result<f64, Failure> {
        let iops = self.fio.run(&case.job, target, &self.stop)?.iops();
        Ok(if case.is_time { 1e6 / iops } else { iops })
    }
}

fn cache_of<'a>(ssd: &'a str, hdd: &'a str) -> CacheSpec<'a> {
    CacheSpec { ssd, hdd, policy: "lru", mode: "wb", line_bytes: 4096 }
}

fn job(pattern: Pattern, block_bytes: u64, iodepth: u32, size_bytes: u64, until: Until) -> Job {
    let name = "bench".to_owned();
    Job { name, pattern, block_bytes, iodepth, numjobs: 1, size_bytes, until, more: Vec::new() }
}

fn cases(seconds: u32) -> Vec<Case> {
    let timed = || Until::Time(Duration::from_secs(seconds.into()));
    let case = |words, cache, job| Case { words, cache, job, is_time: false };
    let small = |pattern, depth, bytes, until| job(pattern, BLOCK_BYTES, depth, bytes, until);
    let write = |depth| small(Pattern::RandWrite, depth, WRITTEN_BYTES, timed());
    let hot = |depth| small(Pattern::RandRead, depth, HOT_BYTES, timed());
    let cold = |depth| Job {
        more: vec![("number_ios", COLD_READS.to_string())],
        ..small(Pattern::RandRead, depth, IMAGE_BYTES, Until::Once)
    };
    let run = |pattern| job(pattern, RUN_BYTES, RUN_DEPTH, IMAGE_BYTES, Until::Once);
    let synced = Job { more: vec![("fsync", "1".to_owned())], ..write(1) };
    vec![
        case("random write 4k qd1", Cache::AsItIs, write(1)),
        case("random write 4k qd32", Cache::AsItIs, write(32)),
        case("hot read 4k qd1", Cache::Hot, hot(1)),
        case("hot read 4k qd32", Cache::Hot, hot(32)),
        case("cold read 4k qd1", Cache::Empty, cold(1)),
        case("cold read 4k qd32", Cache::Empty, cold(32)),
        case("sequential read 128k qd8", Cache::Empty, run(Pattern::Read)),
        case("sequential write 128k qd8", Cache::Empty, run(Pattern::Write)),
        Case {
            words: "write 4k and fsync, time",
            cache: Cache::AsItIs,
            job: synced,
            is_time: true,
        },
        case("no cache, random read 4k qd1", Cache::Without, cold(1)),
        case("no cache, random read 4k qd32", Cache::Without, cold(32)),
        case("no cache, sequential read 128k qd8", Cache::Without, run(Pattern::Read)),
        case("no cache, sequential write 128k qd8", Cache::Without, run(Pattern::Write)),
    ]
}

/// Measures both sides of every case one after the other, in a turned order every other round; the cases whose names
/// have `word`.
pub(super) fn measure(word: &str, effort: Effort) -> Result<Vec<Row>, Failure> {
    let sides = Sides::start()?;
    let mut cases = cases(effort.seconds);
    cases.retain(|case| case.words.contains(word));
    let mut rounds = Vec::new();
    for round in 1..=effort.rounds {
        eprintln!("rbd, round {round} of {}", effort.rounds);
        let mut rows = Vec::new();
        for case in &cases {
            sides.prepare(case)?;
            let [first, second] = match round.is_multiple_of(2) {
                false => [&sides.volume, &sides.bare],
                true => [&sides.bare, &sides.volume],
            };
            let figures = [sides.run(case, first)?, sides.run(case, second)?];
            let is_first = std::ptr::eq(first, &sides.volume);
            let [ours, theirs] = if is_first { figures } else { [figures[1], figures[0]] };
            let unit = if case.is_time { "us" } else { "requests/s" };
            rows.push(Measured {
                case: case.words.to_owned(),
                unit: unit.to_owned(),
                ours,
                peer: BARE.to_owned(),
                theirs,
            });
        }
        rounds.push(rows);
    }
    Ok(report::medians(&rounds)?)
}
