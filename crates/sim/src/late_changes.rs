//! Changes of a plain volume that end late: the drive answers nothing for a time, and then does all that it was
//! asked for, in any order. Their clients may be gone by then. What was acknowledged since must stay.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use voltier_array::{Array, Geometry, Layout, Level};
use voltier_block::{
    BlockDevice, Buf, DriveControl, Durability, KIB, Lba, MIB, Nanos, Prng, SECTOR_BYTES,
    SectorRange,
};
use voltier_ring::{Executor, NoFiles};
use voltier_volume::Volume;

use crate::budget;
use crate::disk::SimDisk;
use crate::disk_spec::DiskSpec;
use crate::medium::Medium;
use crate::origin::SimDrive;
use crate::rest;
use crate::world::World;

const DRIVE_BYTES: u64 = 8 * MIB;
const CHUNK_BYTES: u64 = 4 * KIB;
/// Sectors that are changed, from the first on: few, so that changes meet.
const SECTORS: u64 = 128;
const CHANGES: u64 = 150;
/// Longer than the drive ever takes.
const LONG_NS: Nanos = 60_000_000_000;

/// What a sector may hold.
#[derive(Clone, Copy, Debug, Default)]
struct Newest {
    /// The number of the newest change, and the content that it leaves.
    begun: (u64, u64),
    /// The number of the newest change that was acknowledged.
    acknowledged: u64,
}

/// All changes of a life.
#[derive(Default)]
struct History {
    sectors: BTreeMap<u64, Newest>,
    /// For each sector and content the newest change that leaves it.
    changes: BTreeMap<(u64, u64), u64>,
}

impl History {
    fn begin(&mut self, range: SectorRange, number: u64, content: u64) {
        for sector in range.start.0..range.end().0 {
            self.sectors.entry(sector).or_default().begun = (number, content);
            self.changes.insert((sector, content), number);
        }
    }

    fn end(&mut self, range: SectorRange, number: u64) {
        for sector in range.start.0..range.end().0 {
            let newest = self.sectors.get_mut(&sector).expect("it was begun");
            newest.acknowledged = newest.acknowledged.max(number);
        }
    }

    fn acknowledged(&self, sector: u64) -> u64 {
        self.sectors.get(&sector).map_or(0, |newest| newest.acknowledged)
    }
}

fn spec(number: u64) -> DiskSpec {
    DiskSpec {
        number: 3 + number,
        bytes: DRIVE_BYTES,
        block_bytes: 512,
        latency_ns: 100_000,
        model: None,
        lies: false,
        zeroing_discards: true,
        stripe: None,
    }
}

/// Guarantee 1 of volumes without a cache: a change never ends over one that came later.
///
/// # Panics
/// When the promise is broken.
pub fn late_changes(seed: u64) {
    budget::note_world();
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::new(&executor.handle(), seed);
    let is_striped = seed % 2 == 1;
    let drives = (0..if is_striped { 3 } else { 1 })
        .map(|number| SimDisk::new(&world, &spec(number), Medium::zeroed(DRIVE_BYTES)));
    let disks: Vec<SimDisk> = drives.collect();
    if is_striped {
        let sectors = DRIVE_BYTES / SECTOR_BYTES;
        let geometry = Geometry::new(Level::Raid0, Layout::default(), 3, CHUNK_BYTES, sectors);
        let members = disks.iter().cloned().map(Some).collect();
        let array = Array::new(world.handle(), geometry.expect("it is possible"), members);
        let volume = Volume::plain(world.handle(), array.expect("they suit"));
        executor.block_on(life(world.clone(), disks, volume));
    } else {
        let volume = Volume::plain(world.handle(), SimDrive::any_sector(disks[0].clone()));
        executor.block_on(life(world.clone(), disks, volume));
    }
    rest::check_tasks(&world, &mut executor);
}

async fn life<D: DriveControl>(world: World, disks: Vec<SimDisk>, volume: Volume<D>) {
    let (mut prng, history) = (world.prng(), Rc::new(RefCell::new(History::default())));
    for number in 1..=CHANGES {
        if prng.one_in(25) {
            let time_ns = 1_000_000 + prng.below(3_000_000);
            prng.pick(&disks).hang(time_ns);
        }
        begin(&world, &volume, &history, number, &mut prng);
        world.handle().sleep(prng.below(400_000)).await;
        if prng.one_in(6) {
            check(&volume, &history).await;
        }
    }
    world.handle().sleep(LONG_NS).await;
    let found = read(&volume).await;
    for (sector, newest) in &history.borrow().sectors {
        let (number, content) = newest.begun;
        assert_eq!(
            found[*sector as usize], content,
            "sector {sector} has not what change {number} left there; it was acknowledged"
        );
    }
    volume.stop().await.expect("it stops");
}

/// Sends a change. Nobody waits for it.
fn begin<D: DriveControl>(
    world: &World,
    volume: &Volume<D>,
    history: &Rc<RefCell<History>>,
    number: u64,
    prng: &mut Prng,
) {
    let count = 1 + prng.below(24);
    let range = SectorRange::new(Lba(prng.below(SECTORS - count)), count);
    let kind = prng.below(8);
    let content = if kind < 6 { number } else { 0 };
    history.borrow_mut().begin(range, number, content);
    let (volume, history) = (volume.clone(), history.clone());
    drop(world.handle().spawn(async move {
        let changed = match kind {
            6 => volume.write_zeroes(range, Durability::Cached).await,
            7 => volume.discard(range).await,
            _ => {
                let mut data = Buf::new(range.bytes() as usize);
                for eight in data.chunks_exact_mut(8) {
                    eight.copy_from_slice(&number.to_le_bytes());
                }
                volume.write(range.start, data.into(), Durability::Cached).await
            }
        };
        changed.expect("the drive does it in the end");
        history.borrow_mut().end(range, number);
    }));
}

/// What each sector has.
async fn read<D: DriveControl>(volume: &Volume<D>) -> Vec<u64> {
    let into = Buf::new((SECTORS * SECTOR_BYTES) as usize);
    let found = volume.read(Lba(0), into).await.expect("a read works");
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    found.chunks_exact(SECTOR_BYTES as usize).map(number).collect()
}

/// Reads, beside changes: nothing falls back behind what was acknowledged before.
async fn check<D: DriveControl>(volume: &Volume<D>, history: &Rc<RefCell<History>>) {
    let before: Vec<u64> =
        (0..SECTORS).map(|sector| history.borrow().acknowledged(sector)).collect();
    let found = read(volume).await;
    let history = history.borrow();
    for (sector, (content, acknowledged)) in (0..).zip(found.into_iter().zip(before)) {
        let change = history.changes.get(&(sector, content)).copied().unwrap_or(0);
        assert!(
            change >= acknowledged,
            "sector {sector} has what change {change} left there; {acknowledged} was acknowledged"
        );
    }
}
