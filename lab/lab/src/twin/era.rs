//! RAIDIX ERA: RAID 6 over twelve D3700, seven block sizes by seven mixtures.
//!
//! Held to the share of the hardware that ERA reaches, with the consistency that an array has when its
//! user names none. The hardware is twelve times the single drive. The published run of twelve raw
//! drives exceeds that (anomaly R2) and disagrees with the document's own conclusion (R1). The bound
//! is what parity in place allows, where data and parity of every small write are read and written,
//! whoever writes them. ERA is beyond it in many cells: that explains a loss and excuses none.

use std::rc::Rc;

use voltier_array::{Array, Consistency, CreateOptions, Integrity, Layout, Level};
use voltier_block::{BlockDevice, Buf, Durability, KIB, Lba, MIB};
use voltier_drive::ModelDevice;
use voltier_drive::model::Profile;
use voltier_results::table::figure;
use voltier_ring::{Executor, Handle, NoFiles};

use super::Extent;
use super::calibration::Calibration;
use super::load::{Load, Places, Rates, Window, drive};
use super::published::Table;
use super::report::{Figures, Report, Row, Verdict};
use crate::model_store::{Drive, ModelStore};

const DRIVES: usize = 12;
const DATA: u64 = 10;
const PARITY: u64 = 2;
const CHUNK_BYTES: u64 = 16 * KIB;
const JOBS: usize = 64;
const DEPTH: usize = 32;

const SIZES: [(&str, u64); 7] = [
    ("4k", 4 * KIB),
    ("8k", 8 * KIB),
    ("16k", 16 * KIB),
    ("32k", 32 * KIB),
    ("64k", 64 * KIB),
    ("128k", 128 * KIB),
    ("1m", MIB),
];
const MIXES: [(&str, u64); 7] = [
    ("iops_r0_w100", 0),
    ("iops_r5_w95", 5),
    ("iops_r35_w65", 35),
    ("iops_r50_w50", 50),
    ("iops_r65_w35", 65),
    ("iops_r95_w5", 95),
    ("iops_r100_w0", 100),
];

#[derive(Clone, Copy)]
struct Cell {
    size: &'static str,
    bytes: u64,
    mix: &'static str,
    read_percent: u64,
}

fn cells(extent: Extent) -> Vec<Cell> {
    let all = SIZES.iter().flat_map(|&(size, bytes)| {
        MIXES.iter().map(move |&(mix, read_percent)| Cell { size, bytes, mix, read_percent })
    });
    let is_quick = |cell: &Cell| {
        matches!((cell.size, cell.read_percent), ("4k", 0 | 65 | 100) | ("128k", 0 | 100))
    };
    all.filter(|cell| extent == Extent::Full || is_quick(cell)).collect()
}

pub(super) fn run(extent: Extent) -> Report {
    report(&cells(extent), extent, extent)
}

/// Writes and reads of 4 KiB, for as long as in the full form, on drives as small as in the short one.
pub(super) fn random_4k() -> Report {
    let is_one = |cell: &Cell| cell.size == "4k" && matches!(cell.read_percent, 0 | 100);
    let both: Vec<Cell> = cells(Extent::Full).into_iter().filter(is_one).collect();
    report(&both, Extent::Full, Extent::Quick)
}

/// These cells, for as long as the one extent says, on drives as large as the other says.
fn report(cells: &[Cell], windows: Extent, drive_size: Extent) -> Report {
    let single =
        Table::read(include_str!("../../../results/tables/raidix_1_1_single_nvme_iops.csv"));
    let era = Table::read(include_str!("../../../results/tables/raidix_4_1_era_raid6_iops.csv"));
    let calibration = Calibration::of(&["ssd-d3700"]);
    let drives = Raw { calibration: &calibration };
    let usual = Consistency::default();
    let others = [Consistency::Journal, Consistency::Bitmap];
    let other = others.into_iter().find(|other| *other != usual).expect("there are two");
    let [ours, beside] =
        [usual, other].map(|one| measure(one, cells, &drives, (windows, drive_size)));
    let error = calibration.error();
    let rows = cells.iter().enumerate().map(|(number, cell)| {
        let figures = Figures {
            published: era.figure(cell.size, cell.mix),
            hardware: single.figure(cell.size, cell.mix) * DRIVES as f64,
            twin_hardware: drives.iops(cell.bytes, cell.read_percent) * DRIVES as f64,
            voltier: ours[number].iops,
        };
        let case = format!("random {}, {} % reads", cell.size, cell.read_percent);
        let mut row = Row::new(case, "IOPS", figures, error);
        let bound = in_place_iops(&drives, cell) / row.twin_hardware;
        row.bound = Some(bound);
        row.consistency = Some(usual.name());
        let ratio = beside[number].iops / row.twin_hardware;
        let verdict = match Verdict::of(ratio, row.published_ratio, error) {
            Verdict::Won => "would win",
            Verdict::Lost => "would lose",
            _ => "would be indistinguishable",
        };
        let (iops, share) = (figure(beside[number].iops), ratio * 100.0);
        row.note = format!("{} {iops} ({share:.1} %, {verdict})", other.name());
        if row.published_ratio > bound {
            row.note.push_str("; ERA is beyond the bound");
        }
        row
    });
    let rows: Vec<Row> = rows.collect();
    Report {
        title: format!(
            "RAIDIX ERA: RAID 6 over twelve Intel D3700, chunk 16 KiB, consistency {} (the default), 64 \
             jobs of depth 32",
            usual.name()
        ),
        rows,
        notes: notes(),
        calibration,
    }
}

fn notes() -> Vec<String> {
    vec![
        "hardware is twelve times the single drive: the published twelve raw drives are 35 % above that \
         for writes (R2) and disagree with the conclusion's own column (R1)"
            .into(),
        "bound: the most that data and parity written in place allow, by the single drive's figures; \
         where ERA is above it, it gathers writes"
            .into(),
        "regions are marked before the window, as on an array in use; the round that takes marks \
         back every five seconds is not in it"
            .into(),
    ]
}

/// The drives by themselves: their calibrated cells.
struct Raw<'a> {
    calibration: &'a Calibration,
}

impl Raw<'_> {
    /// Requests per second of one modelled drive.
    fn iops(&self, bytes: u64, read_percent: u64) -> f64 {
        let cell = self.calibration.cells.iter().find(|cell| {
            let Some(load) = &cell.load else { return false };
            (load.block_bytes, load.read_percent) == (bytes, read_percent)
                && !load.sequential
                && load.jobs == JOBS
        });
        cell.expect("a row for every size and mixture").twin / bytes as f64
    }

    /// Seconds for a request of one drive in a mixture between the measured ones.
    fn seconds(&self, bytes: u64, read_percent: f64) -> f64 {
        let above = MIXES.iter().position(|&(_, percent)| percent as f64 >= read_percent);
        let above = above.unwrap_or(MIXES.len() - 1).max(1);
        let [low, high] = [MIXES[above - 1].1, MIXES[above].1];
        let share = (read_percent - low as f64) / (high - low) as f64;
        (1.0 - share) / self.iops(bytes, low) + share / self.iops(bytes, high)
    }
}

/// Reads and writes of members for one write, over all places it may have.
fn member_requests(bytes: u64) -> (f64, f64) {
    let stripe_bytes = DATA * CHUNK_BYTES;
    let places = stripe_bytes.max(bytes) / KIB;
    let (mut reads, mut writes, mut count) = (0, 0, 0);
    for number in 0..places {
        let (mut at, end) = (number * bytes, (number + 1) * bytes);
        while at < end {
            let stripe_end = (at / stripe_bytes + 1) * stripe_bytes;
            let part = end.min(stripe_end) - at;
            let chunks = part.div_ceil(CHUNK_BYTES);
            // Old data and parity, or the data that stay.
            reads += (chunks + PARITY).min(DATA - chunks);
            writes += chunks + PARITY;
            at += part;
        }
        count += 1;
    }
    (f64::from(reads as u32) / count as f64, f64::from(writes as u32) / count as f64)
}

/// The most that twelve drives take when every write has its data and parity in place.
fn in_place_iops(drives: &Raw<'_>, cell: &Cell) -> f64 {
    let (reads, writes) = member_requests(cell.bytes);
    let read_share = cell.read_percent as f64 / 100.0;
    let chunks = cell.bytes.div_ceil(CHUNK_BYTES) as f64;
    let member_reads = read_share * chunks + (1.0 - read_share) * reads;
    let member_writes = (1.0 - read_share) * writes;
    let all = member_reads + member_writes;
    let seconds = drives.seconds(cell.bytes.min(CHUNK_BYTES), 100.0 * member_reads / all);
    // Reads of neighbouring chunks of a member could go as one, and then as fast as the drive reads such
    // a request. The bound is no lower than that.
    let apart = DRIVES as f64 / (all * seconds);
    if cell.read_percent == 100 {
        apart.max(drives.iops(cell.bytes, 100) * DRIVES as f64)
    } else {
        apart
    }
}

/// All cells on one array.
fn measure(
    consistency: Consistency,
    cells: &[Cell],
    drives: &Raw<'_>,
    (windows, drive_size): (Extent, Extent),
) -> Vec<Rates> {
    let cells: Vec<(Cell, Window)> = cells
        .iter()
        .map(|cell| (*cell, window(in_place_iops(drives, cell), cell.read_percent, windows)))
        .collect();
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let array = Rc::new(array(&handle, consistency, drive_size).await);
        touch(&handle, &array).await;
        let mut rates = Vec::new();
        for (cell, window) in cells {
            let load = Load {
                jobs: JOBS,
                depth: DEPTH,
                block_bytes: cell.bytes,
                read_percent: cell.read_percent,
                places: Places::Random { span_bytes: array.limits().bytes() },
            };
            rates.push(drive(&handle, std::slice::from_ref(&array), &load, window, |_| ()).await);
        }
        rates
    })
}

/// As long as all that is outstanding takes a few times. Writes take longer than reads, and requests
/// gather in them: the fewer there are, the later that is steady.
fn window(iops: f64, read_percent: u64, extent: Extent) -> Window {
    let turn_ns = (JOBS * DEPTH) as f64 / iops * 1e9;
    let writes = 100 - read_percent;
    let gather = 50_u64.checked_div(writes).map_or(3, |turns| turns.clamp(3, 10));
    // Requests come to an end in waves: in three turns of 1 MiB writes a wave more or less is a tenth.
    // The drives' own memory of what they were asked before goes back some milliseconds.
    let (warm_turns, turns, warm, least) = match extent {
        Extent::Full => (gather as f64, 10.0, 2.5e7, 3e7),
        Extent::Quick => (1.5, 1.5, 1e7, 5e6),
    };
    Window {
        warm_ns: f64::max(warm_turns * turn_ns, warm) as u64,
        ns: f64::max(turns * turn_ns, least) as u64,
    }
}

async fn array(handle: &Handle, consistency: Consistency, extent: Extent) -> Array<Drive> {
    let profile = Profile::find("ssd-d3700").expect("a profile");
    let bytes = if extent == Extent::Full { profile.bytes } else { profile.bytes / 8 };
    let drive = |_| ModelDevice::new(handle.clone(), profile, ModelStore::nowhere(bytes));
    let options = CreateOptions {
        name: "era".to_owned(),
        level: Level::Raid6,
        layout: Layout::default(),
        chunk_bytes: CHUNK_BYTES,
        consistency,
        integrity: Integrity::None,
        uuid: [1; 16],
        member_uuids: (0..DRIVES as u8).map(|number| [number + 2; 16]).collect(),
    };
    let made = Array::create(handle, &options, (0..DRIVES).map(drive).collect()).await;
    made.expect("the array is possible")
}

/// A write to every region, so that all of it counts as written, as after the published
/// preconditioning.
async fn touch(handle: &Handle, array: &Rc<Array<Drive>>) {
    let status = array.status().expect("an array with durable state");
    let (step, regions) = (status.region_bytes * DATA, status.regions);
    let zeroes = Buf::zeroed(4096).freeze();
    let writers = 4096;
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let (array, zeroes) = (array.clone(), zeroes.clone());
            handle.spawn(async move {
                for region in (writer..regions).step_by(writers as usize) {
                    let at = Lba::from_bytes(region * step);
                    if at.bytes() < array.limits().bytes() {
                        let written = array.write(at, zeroes.clone().into(), Durability::Cached);
                        written.await.expect("drives do not fail here");
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
}
