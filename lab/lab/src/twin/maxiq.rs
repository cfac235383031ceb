//! Adaptec MaxIQ: files that are read again and again, a learning read cache before striped disks.
//!
//! Published are ratios alone: passes with the cache to passes without it. The drives are known by
//! their data sheets.

use std::rc::Rc;

use voltier_array::{Array, Geometry, Layout, Level};
use voltier_block::{BlockDevice, Buf, KIB, Lba, MIB, Nanos, Prng, SECTOR_BYTES};
use voltier_cache::admission::AdmissionKind;
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::ModelDevice;
use voltier_drive::model::Profile;
use voltier_results::table::figure;
use voltier_ring::{Executor, Handle, JoinHandle, NoFiles};

use super::Extent;
use super::calibration::{Calibration, Cell as Calibrated};
use super::published::Table;
use super::report::{Figures, Report, Row};
use crate::model_store::{Drive, ModelStore};

const FILE_BYTES: u64 = MIB;
/// From one file to the next on the array. With this distance passes in order are as much faster than
/// passes at random, without the cache, as the two published ratios say. Files in one run would be read
/// at 200 MB/s, of which no SSD of 250 MB/s makes 2.1 times as much.
const FILE_STRIDE_BYTES: u64 = 2560 * KIB;
/// The stripe unit that the card takes unasked.
const CHUNK_BYTES: u64 = 256 * KIB;
/// The bytes that the system reads at once, and how many such reads it has under way for one reader.
const REQUEST_BYTES: u64 = 128 * KIB;
const REQUESTS: usize = 2;
/// Open, copy and close of a file on the processor of the test bed.
const HOST_NS: Nanos = 400_000;

pub(super) fn run(extent: Extent) -> Report {
    let published = Table::read(include_str!("../../../results/tables/maxiq_hot_file_test.csv"));
    let mut calibration = Calibration::of(&["ssd-x25e", "hdd-es2"]);
    let error = calibration.error();
    let (files, passes) = match extent {
        Extent::Full => (published.figure("file_count", "value") as u64, 8),
        Extent::Quick => (256, 6),
    };
    let cases = [
        ("random", false, "final_random_speedup"),
        ("sequential", true, "final_sequential_speedup"),
    ];
    let mut rates = Vec::new();
    let rows = cases.map(|(name, in_order, column)| {
        let [off, on] =
            [false, true].map(|cached| files_per_s(&Passes { files, passes, in_order, cached }));
        let stated = published.text(column, "value").trim_end_matches('x').parse::<f64>();
        let last = |curve: &[f64]| curve[curve.len() - 3..].iter().sum::<f64>() / 3.0;
        let figures = Figures {
            published: stated.expect("a ratio"),
            hardware: 1.0,
            twin_hardware: last(&off),
            voltier: last(&on),
        };
        let case = format!("{name} passes, files/s after learning");
        let mut row = Row::new(case, "files/s", figures, error);
        let curve: Vec<String> = on.iter().map(|rate| figure(*rate)).collect();
        let pass_90 =
            on.iter().position(|rate| *rate >= 0.9 * last(&on)).map_or(0, |pass| pass + 1);
        rates.push((row.twin_hardware, row.published));
        row.note = format!("by pass {}; 90 % in pass {pass_90}", curve.join(", "));
        row
    });
    // The cache's own rate is the same in both: what is left is what the disks do.
    let [random, in_order] = [rates[0], rates[1]];
    calibration.cells.push(Calibrated {
        name: "passes in order to passes at random, without the cache".into(),
        load: None,
        published: random.1 / in_order.1,
        twin: in_order.0 / random.0,
    });
    Report {
        title: "MaxIQ: 1 MiB files read again and again, X25-E before two striped Barracuda ES.2"
            .into(),
        rows: rows.into(),
        notes: notes(files),
        calibration,
    }
}

fn notes(files: u64) -> Vec<String> {
    vec![
        format!(
            "{files} files of 1 MiB, one reader, 128 KiB at a time and the next one read ahead, 0.4 ms of \
             processor a file"
        ),
        "files lie 2.5 MiB apart on the array, so that passes in order are as much faster than passes at \
         random as the published ratios say; in one run they would be read at 200 MB/s, and the X25-E's \
         250 MB/s are not 2.1 times that"
            .into(),
        "published are ratios alone (A1): they stand as files/s beside 1".into(),
        "read-only mode, admission by learning: a region is kept when it was read again twice"
            .into(),
    ]
}

struct Passes {
    files: u64,
    passes: u64,
    in_order: bool,
    cached: bool,
}

/// Files per second of each pass.
fn files_per_s(plan: &Passes) -> Vec<f64> {
    let Passes { files, passes, in_order, cached } = *plan;
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let disks = Rc::new(disks(&handle));
        if cached {
            let cache = Rc::new(cache(&handle, disks).await);
            read_passes(&handle, &cache, files, passes, in_order).await
        } else {
            read_passes(&handle, &disks, files, passes, in_order).await
        }
    })
}

fn disks(handle: &Handle) -> Array<Drive> {
    let profile = Profile::find("hdd-es2").expect("a profile");
    let drive =
        || ModelDevice::new(handle.clone(), profile, ModelStore::zeroes_aside(profile.bytes));
    let sectors = profile.bytes / SECTOR_BYTES / 8 * 8;
    let geometry = Geometry::new(Level::Raid0, Layout::default(), 2, CHUNK_BYTES, sectors);
    let members = vec![Some(drive()), Some(drive())];
    Array::new(handle, geometry.expect("possible"), members).expect("possible")
}

async fn cache(handle: &Handle, disks: Rc<Array<Drive>>) -> Cache<Drive, Rc<Array<Drive>>> {
    let profile = Profile::find("ssd-x25e").expect("a profile");
    let ssd = ModelDevice::new(handle.clone(), profile, ModelStore::zeroes_aside(profile.bytes));
    let line_size = LineSize::new(64 * KIB).expect("a line size");
    let format = FormatOptions { line_size, policy: PolicyKind::Lru, uuid: [1; 16] };
    Cache::format(&ssd, &disks, &format).await.expect("the SSD takes a cache");
    let settings =
        Settings { mode: Mode::ReadOnly, admission: AdmissionKind::Learned, ..Settings::default() };
    let options = OpenOptions::with(settings);
    Cache::open(handle, ssd, disks, options).await.expect("the cache opens").0
}

async fn read_passes<D: BlockDevice>(
    handle: &Handle,
    device: &Rc<D>,
    files: u64,
    passes: u64,
    in_order: bool,
) -> Vec<f64> {
    let mut rates = Vec::new();
    let mut prng = Prng::new(5);
    for _ in 0..passes {
        let mut order: Vec<u64> = (0..files).collect();
        if !in_order {
            for place in (1..order.len()).rev() {
                order.swap(place, prng.below(place as u64 + 1) as usize);
            }
        }
        let begun = handle.now();
        for file in order {
            handle.sleep(HOST_NS).await;
            read_file(handle, device, file).await;
        }
        rates.push(files as f64 * 1e9 / (handle.now() - begun) as f64);
    }
    rates
}

/// One file from its start to its end, the next request always under way.
async fn read_file<D: BlockDevice>(handle: &Handle, device: &Rc<D>, file: u64) {
    let mut ahead: std::collections::VecDeque<JoinHandle<()>> = Default::default();
    for number in 0..FILE_BYTES / REQUEST_BYTES {
        if ahead.len() == REQUESTS
            && let Some(first) = ahead.pop_front()
        {
            first.await;
        }
        let device = device.clone();
        let at = Lba::from_bytes(file * FILE_STRIDE_BYTES + number * REQUEST_BYTES);
        ahead.push_back(handle.spawn(async move {
            let read = device.read(at, Buf::new(REQUEST_BYTES as usize)).await;
            drop(read.expect("drives do not fail here"));
        }));
    }
    for request in ahead {
        request.await;
    }
}
