//! MaxIO: five fio jobs on a disk, on two SSDs, and on the disk with each SSD as its cache.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, GIB, KIB, Lba, MIB};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{FormatOptions, LineSize, Mode, OpenOptions, RequestCounts, Settings, Status};
use voltier_drive::ModelDevice;
use voltier_drive::model::Profile;
use voltier_results::table::percent;
use voltier_ring::{Executor, Handle, NoFiles};
use voltier_volume::Volume;

use super::Extent;
use super::calibration::Calibration;
use super::load::{Edge, Load, Places, Rates, Window, drive};
use super::published::Table;
use super::report::{Figures, Report, Row};
use crate::model_store::{Drive, ModelStore};

/// A job of the document: its file, its column in the results, and what is counted in it.
struct Job {
    name: &'static str,
    file: &'static str,
    column: &'static str,
    unit: &'static str,
}

const JOBS: [Job; 5] = [
    Job { name: "seq write", file: "seq-100w0r.fio", column: "seq_write_mbps", unit: "MB/s" },
    Job { name: "seq read", file: "seq-0w100r.fio", column: "seq_read_mbps", unit: "MB/s" },
    Job { name: "rand write", file: "rand-100w0r.fio", column: "rand_write_iops", unit: "IOPS" },
    Job { name: "rand read", file: "rand-0w100r.fio", column: "rand_read_iops", unit: "IOPS" },
    Job {
        name: "rand 75r25w",
        file: "rand-25w75r.fio",
        column: "rand_rw_w1_r3_iops",
        unit: "IOPS",
    },
];

const SSDS: [(&str, &str, &str); 2] = [
    ("SATA SSD", "ssd-sata", "MaxIO cache (SATA SSD)"),
    ("PCIe SSD", "ssd-pcie", "MaxIO cache (PCIe SSD)"),
];

/// The first of the jobs are sequential.
const SEQUENTIAL_JOBS: usize = 2;

pub(super) fn run(extent: Extent) -> Report {
    let results = Table::read(include_str!("../../../results/tables/maxio_results.csv"));
    let settings = Table::read(include_str!("../../../results/tables/maxio_fio_jobs.csv"));
    let calibration = Calibration::of(&["hdd-7200", "ssd-sata", "ssd-pcie"]);
    let mut loads: Vec<Load> = JOBS.iter().map(|job| load(&settings, job)).collect();
    // The sequential jobs once more, each with a part of its own.
    let apart: Vec<Load> = loads[..SEQUENTIAL_JOBS].iter().map(apart).collect();
    loads.extend(apart);
    let mut rows = Vec::new();
    for (name, profile, system) in SSDS {
        let measured = measure(profile, &loads, extent);
        for (number, (load, outcome)) in loads.iter().zip(measured).enumerate() {
            let job = &JOBS[number % JOBS.len()];
            let figures = Figures {
                published: results.figure(system, job.column),
                hardware: results.figure(name, job.column),
                twin_hardware: bare(&calibration, profile, load, job.unit),
                voltier: in_unit(outcome.rates.bytes_per_s, load, job.unit),
            };
            let case = format!("{}, {name}", job.name);
            let mut row = Row::new(case, job.unit, figures, calibration.error());
            row.note = format!("{}; {}", disk(&results, &calibration, job, load), outcome.hits);
            if number >= JOBS.len() {
                row.case.push_str(", jobs apart");
            } else if number < SEQUENTIAL_JOBS {
                row.case.push_str(", jobs overlap");
            }
            rows.push(row);
        }
    }
    Report {
        title: "MaxIO: a disk with an SSD before it, write-back, lru, 4 KiB lines".into(),
        rows,
        notes: notes(extent),
        calibration,
    }
}

fn notes(extent: Extent) -> Vec<String> {
    let scale = scale(extent);
    vec![
        format!(
            "everything is 1/{scale} in size: SSD of {} MiB, working set of {} MiB, the disk's seeks \
             as over 100 GiB; working set to cache is 1 : 8 as published, so nothing is replaced \
             (M6)",
            ssd_bytes(extent) / MIB,
            span_bytes(extent) / MIB
        ),
        "the log does not go round the SSD in the window, as it did not in the document's runs: nothing is \
         moved to make room"
            .into(),
        "the working set is written through the cache first, and each job begins when the disk has all that \
         was written before it; hit rates are those of the measured \
         window (published ones contradict the disk, M2, and an emptied cache, M3)"
            .into(),
        "\"jobs overlap\": the four sequential jobs all begin at 0, as in the document (M5): the cache \
         reads once what all four want at the same time, and of what they write at the same time it \
         writes the newest. \"jobs apart\": the same jobs a quarter of the set apart, held to the same \
         published figure"
            .into(),
        "published sequential rates above the SATA SSD's own came from the disk or from spread (M8)"
            .into(),
    ]
}

const fn scale(extent: Extent) -> u64 {
    match extent {
        Extent::Full => 16,
        Extent::Quick => 128,
    }
}

const fn ssd_bytes(extent: Extent) -> u64 {
    800 * GIB / scale(extent)
}

const fn span_bytes(extent: Extent) -> u64 {
    100 * GIB / scale(extent)
}

fn load(settings: &Table, job: &Job) -> Load {
    let number = |column| settings.figure(job.file, column) as usize;
    let block_bytes =
        settings.text(job.file, "bs").trim_end_matches('k').parse::<u64>().expect("in KiB") * KIB;
    let rw = settings.text(job.file, "rw");
    let read_percent = match rw {
        "randrw" => settings.figure(job.file, "rwmixread") as u64,
        "read" | "randread" => 100,
        _ => 0,
    };
    let span_bytes = 100 * GIB;
    let places = if rw.starts_with("rand") {
        Places::Random { span_bytes }
    } else {
        Places::InOrder { span_bytes, gap_bytes: 0 }
    };
    Load { jobs: number("numjobs"), depth: number("iodepth"), block_bytes, read_percent, places }
}

/// The same jobs a quarter of the working set apart.
fn apart(load: &Load) -> Load {
    let Places::InOrder { span_bytes, .. } = load.places else { unreachable!("a sequential job") };
    let places = Places::InOrder { span_bytes, gap_bytes: span_bytes / load.jobs as u64 };
    Load { places, ..load.clone() }
}

fn in_unit(bytes_per_s: f64, load: &Load, unit: &str) -> f64 {
    if unit == "MB/s" { bytes_per_s / 1e6 } else { bytes_per_s / load.block_bytes as f64 }
}

/// A drive alone under a job; none if it was not measured so.
fn alone(calibration: &Calibration, profile: &str, load: &Load) -> Option<f64> {
    let is_same = |cell: &&super::calibration::Cell| {
        cell.name.starts_with(profile)
            && cell.load.is_some_and(|row| {
                (row.block_bytes, row.read_percent) == (load.block_bytes, load.read_percent)
            })
    };
    calibration.cells.iter().find(is_same).map(|cell| cell.twin)
}

fn bare(calibration: &Calibration, profile: &str, load: &Load, unit: &str) -> f64 {
    let bytes_per_s = alone(calibration, profile, load).expect("every job was run on every SSD");
    in_unit(bytes_per_s, load, unit)
}

fn disk(results: &Table, calibration: &Calibration, job: &Job, load: &Load) -> String {
    match alone(calibration, "hdd-7200", load) {
        Some(twin) => format!(
            "the disk alone {} (twin {:.0})",
            results.text("HDD", job.column),
            in_unit(twin, load, job.unit)
        ),
        None => "the disk alone was not measured".to_owned(),
    }
}

struct Outcome {
    rates: Rates,
    hits: String,
}

/// All jobs on a disk with this SSD before it, one after the other on a warm cache. Each begins when the
/// disk has all that was written before.
fn measure(profile: &'static str, loads: &[Load], extent: Extent) -> Vec<Outcome> {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let loads = loads.to_vec();
    executor.block_on(async move {
        let volume = Rc::new(volume(&handle, profile, extent).await);
        warm(&handle, &volume, span_bytes(extent)).await;
        let mut outcomes = Vec::new();
        for mut load in loads {
            match &mut load.places {
                Places::Random { span_bytes: bytes } => *bytes = span_bytes(extent),
                Places::InOrder { span_bytes: bytes, gap_bytes } => {
                    *bytes = span_bytes(extent);
                    *gap_bytes /= scale(extent);
                }
            }
            volume.drain().await.expect("drives do not fail here");
            outcomes.push(run_job(&handle, &volume, &load, extent).await);
        }
        outcomes
    })
}

async fn run_job(
    handle: &Handle,
    volume: &Rc<Volume<Drive>>,
    load: &Load,
    extent: Extent,
) -> Outcome {
    let window = match extent {
        Extent::Full => Window { warm_ns: 500_000_000, ns: 2_000_000_000 },
        Extent::Quick => Window { warm_ns: 100_000_000, ns: 150_000_000 },
    };
    let edges: [Cell<Option<(RequestCounts, RequestCounts)>>; 2] = Default::default();
    let counts = || {
        let status: Status = volume.status().cache.expect("the volume has a cache");
        (status.reads, status.writes)
    };
    let note = |edge| edges[usize::from(edge == Edge::End)].set(Some(counts()));
    let rates = drive(handle, std::slice::from_ref(volume), load, window, note).await;
    let [begin, end] = edges.map(|edge| edge.get().expect("both edges were passed"));
    let hits = [("reads", begin.0, end.0), ("writes", begin.1, end.1)]
        .into_iter()
        .filter(|(_, begin, end)| end.requests > begin.requests)
        .map(|(what, begin, end)| {
            let hits = (end.hits - begin.hits) as f64;
            format!("{what} hit {}", percent(hits / (end.requests - begin.requests) as f64))
        })
        .collect::<Vec<_>>();
    Outcome { rates, hits: hits.join(", ") }
}

async fn volume(handle: &Handle, profile: &'static str, extent: Extent) -> Volume<Drive> {
    let drive = |profile: &str, bytes| {
        let profile = Profile::find(profile).expect("a profile");
        ModelDevice::new(handle.clone(), profile, ModelStore::zeroes_aside(bytes))
    };
    let volume = Volume::plain(handle, drive("hdd-7200", 2000 * GIB / scale(extent)));
    let format =
        FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [1; 16] };
    let settings = Settings { mode: Mode::WriteBack, ..Settings::default() };
    let options = OpenOptions::with(settings);
    let attached = volume.attach_new(drive(profile, ssd_bytes(extent)), &format, options).await;
    attached.expect("the SSD takes a cache");
    volume
}

/// The working set written once from end to end.
async fn warm(handle: &Handle, volume: &Rc<Volume<Drive>>, bytes: u64) {
    let zeroes = Buf::zeroed(MIB as usize).freeze();
    let writers = 8;
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let (volume, zeroes) = (volume.clone(), zeroes.clone());
            handle.spawn(async move {
                for place in (writer..bytes / MIB).step_by(writers as usize) {
                    let at = Lba::from_bytes(place * MIB);
                    let written = volume.write(at, zeroes.clone().into(), Durability::Cached);
                    written.await.expect("drives do not fail here");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
}
