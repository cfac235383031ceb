//! Every level, with every combination of members lost, against plain bytes. Eight tasks run at once,
//! their ranges cut through chunks, in virtual time with fixed seeds.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use crate::array::world::World;
use voltier_array::{Geometry, Layout, Level, MemberIndex, MergeMode, MergePolicy};
use voltier_block::{
    AfterDiscard, BlockDevice, Buf, Bytes, Durability, Lba, Payload, Prng, SECTOR_BYTES,
    SectorRange,
};
use voltier_ring::{Executor, Handle, NoFiles};

const LANES: u64 = 8;
const STEPS: u32 = 14;
const SECTOR: usize = SECTOR_BYTES as usize;

/// How a world is set up.
#[derive(Clone, Debug)]
struct Case {
    level: Level,
    layout: Layout,
    members: usize,
    /// Members of the first group that are lost; of the others the same, turned.
    lost: Vec<usize>,
    /// Whether the members are lost on the way, not from the start.
    on_the_way: bool,
    /// Whether one more member has bad sectors.
    has_bad_sectors: bool,
    block_bytes: u32,
    seed: u64,
}

/// An extent of the volume that one task changes; `None` is a sector whose content nobody promises.
struct Lane {
    world: Rc<World>,
    model: Rc<RefCell<Vec<Option<[u8; SECTOR]>>>>,
    sectors: Range<u64>,
    dice: Prng,
}

impl Lane {
    fn pick(&mut self, block: u64) -> SectorRange {
        let blocks = (self.sectors.end - self.sectors.start) / block;
        let longest = if self.dice.one_in(3) { blocks } else { blocks.min(4) };
        let count = 1 + self.dice.below(longest);
        let first = self.dice.below(blocks - count + 1);
        SectorRange::new(Lba(self.sectors.start + first * block), count * block)
    }

    fn set(&self, range: SectorRange, content: impl Fn(usize) -> Option<[u8; SECTOR]>) {
        let mut model = self.model.borrow_mut();
        for index in 0..range.count as usize {
            model[range.start.0 as usize + index] = content(index);
        }
    }

    async fn read(&self, range: SectorRange) {
        let into = Buf::new(range.bytes() as usize);
        let read = self.world.array.read(range.start, into).await.expect("read");
        let model = self.model.borrow();
        for (index, sector) in read.chunks(SECTOR).enumerate() {
            let expected = &model[range.start.0 as usize + index];
            assert!(expected.is_none_or(|expected| sector == expected), "{range}, {index}");
        }
    }

    async fn write(&mut self, range: SectorRange, durability: Durability) {
        let mut bytes = vec![0; range.bytes() as usize];
        self.dice.fill(&mut bytes);
        let unit = *self.dice.pick(&[100, SECTOR, 4096, usize::MAX]);
        let whole = Bytes::copy_of(&bytes);
        let starts = (0..bytes.len()).step_by(unit);
        let pieces = starts.map(|at| whole.slice(at..at.saturating_add(unit).min(bytes.len())));
        let payload = Payload::Many(pieces.collect());
        self.world.array.write(range.start, payload, durability).await.expect("write");
        self.set(range, |index| bytes[index * SECTOR..][..SECTOR].try_into().ok());
    }

    async fn run(mut self) {
        let limits = self.world.array.limits().clone();
        let block = u64::from(limits.block_bytes) / SECTOR_BYTES;
        for _ in 0..STEPS {
            let range = self.pick(block);
            let durability = *self.dice.pick(&[Durability::Cached, Durability::Durable]);
            match self.dice.below(12) {
                0..4 => self.read(range).await,
                4 => self.world.array.flush().await.expect("flush"),
                5 => {
                    self.world.array.write_zeroes(range, durability).await.expect("zeroes");
                    self.set(range, |_| Some([0; SECTOR]));
                }
                6 => {
                    self.world.array.discard(range).await.expect("discard");
                    match limits.after_discard {
                        AfterDiscard::Zeroes => self.set(range, |_| Some([0; SECTOR])),
                        AfterDiscard::Anything => self.set(range, |_| None),
                        AfterDiscard::Unchanged => {}
                    }
                }
                _ => self.write(range, durability).await,
            }
        }
    }
}

/// Overlapping writes at once: each sector has the content of one of them.
async fn write_over_each_other(handle: &Handle, world: &Rc<World>, before: &[u8], seed: u64) {
    let block = u64::from(world.array.limits().block_bytes) / SECTOR_BYTES;
    let blocks = before.len() as u64 / SECTOR_BYTES / block;
    let mut dice = Prng::new(seed);
    let ranges: Vec<SectorRange> = (0..6)
        .map(|_| {
            let (first, count) = (dice.below(blocks / 2), 1 + dice.below(blocks / 2));
            SectorRange::new(Lba(first * block), count * block)
        })
        .collect();
    let writes: Vec<_> = ranges
        .iter()
        .enumerate()
        .map(|(index, range)| {
            let (world, range) = (world.clone(), *range);
            let data = Bytes::copy_of(&vec![index as u8 + 1; range.bytes() as usize]);
            handle.spawn(async move {
                world.array.write(range.start, data.into(), Durability::Cached).await
            })
        })
        .collect();
    for write in writes {
        write.await.expect("write");
    }
    let after = world.array.read(Lba(0), Buf::new(before.len())).await.expect("read");
    for (at, (after, before)) in after.chunks(SECTOR).zip(before.chunks(SECTOR)).enumerate() {
        let range = SectorRange::new(Lba(at as u64), 1);
        let written = (0..ranges.len()).filter(|&index| ranges[index].contains(range));
        let mut contents = written.map(|index| [index as u8 + 1; SECTOR]).peekable();
        let is_right = match contents.peek() {
            None => after == before,
            Some(_) => contents.any(|content| after == content),
        };
        assert!(is_right, "sector {at}");
    }
    world.check_stripes(&after).await;
}

async fn run(handle: Handle, case: Case) {
    let rows = 3;
    let new = |members| Geometry::new(case.level, case.layout, members, 4096, rows * 8);
    let geometry = new(case.members).expect("possible");
    let (groups, width) = (geometry.group_count(), geometry.width());
    let turned =
        |group: usize| case.lost.iter().map(move |lost| group * width + (lost + group) % width);
    let lost: Vec<usize> = (0..groups).flat_map(turned).collect();
    let from_start: &[usize] = if case.on_the_way { &[] } else { &lost };
    let world = Rc::new(World::new(&handle, &geometry, case.block_bytes, from_start, case.seed));
    let mode = MergeMode::ALL[case.seed as usize % MergeMode::ALL.len()];
    world.array.set_merge_policy(MergePolicy { mode, wait_ns: 20_000, max_ns: 100_000 });
    let mut dice = Prng::new(case.seed);
    if case.has_bad_sectors {
        let member = (0..width).find(|member| !lost.contains(member)).expect("not all");
        let bad = (0..4).map(|_| dice.below(geometry.member_sectors())).collect();
        world.watches[member].bad.replace(bad);
    }
    let sectors = geometry.sectors();
    let model = Rc::new(RefCell::new(vec![Some([0; SECTOR]); sectors as usize]));
    let lanes = LANES.min(sectors / 8);
    let border = |lane: u64| sectors * lane / lanes / 8 * 8 * u64::from(lane < lanes);
    let tasks: Vec<_> = (0..lanes)
        .map(|lane| {
            let end = if lane + 1 == lanes { sectors } else { border(lane + 1) };
            let (world, model) = (world.clone(), model.clone());
            let dice = Prng::new(dice.next_u64());
            handle.spawn(Lane { world, model, sectors: border(lane)..end, dice }.run())
        })
        .collect();
    if case.on_the_way {
        for member in &lost {
            handle.sleep(dice.below(200_000)).await;
            if dice.one_in(2) {
                world.array.fail(MemberIndex(*member)).expect("allowed");
            } else {
                world.watches[*member].is_gone.set(true);
            }
        }
    }
    for task in tasks {
        task.await;
    }
    let into = Buf::new(sectors as usize * SECTOR);
    let volume = world.array.read(Lba(0), into).await.expect("read");
    for (at, (sector, known)) in volume.chunks(SECTOR).zip(&*model.borrow()).enumerate() {
        assert!(known.is_none_or(|known| sector == known), "sector {at}");
    }
    world.check_stripes(&volume).await;
    write_over_each_other(&handle, &world, &volume, case.seed).await;
}

/// All choices of up to `most` of `count` members.
fn choices(count: usize, most: usize) -> impl Iterator<Item = Vec<usize>> {
    let all = (0_u32..1 << count).filter(move |set| set.count_ones() as usize <= most);
    all.map(move |set| (0..count).filter(|member| set >> member & 1 == 1).collect())
}

fn try_all(level: Level, members: usize) {
    let mut seed = members as u64;
    for layout in [Layout::LeftSymmetric, Layout::LeftSymmetricFixedParityRows] {
        let geometry = Geometry::new(level, layout, members, 4096, 8).expect("possible");
        let most = geometry.parity_chunks();
        for lost in choices(geometry.width(), most) {
            for on_the_way in [false, true] {
                seed += 1;
                let has_bad_sectors = lost.len() < most && seed.is_multiple_of(2);
                let block_bytes = if seed.is_multiple_of(3) { 4096 } else { 512 };
                let lost = lost.clone();
                let case = Case {
                    level,
                    layout,
                    members,
                    lost,
                    on_the_way,
                    has_bad_sectors,
                    block_bytes,
                    seed,
                };
                println!("{case:?}"); // A failing test shows this line.
                let mut executor = Executor::in_virtual_time(NoFiles);
                let handle = executor.handle();
                executor.block_on(run(handle, case));
            }
        }
    }
}

#[test]
fn stripes_without_redundancy_hold_what_was_written() {
    try_all(Level::Raid0, 2);
    try_all(Level::Raid0, 5);
}

#[test]
fn copies_hold_what_was_written() {
    try_all(Level::Raid1, 2);
    try_all(Level::Raid1, 4);
    try_all(Level::Raid10, 4);
    try_all(Level::Raid10, 6);
}

#[test]
fn raid_5_holds_what_was_written() {
    try_all(Level::Raid5, 3);
    try_all(Level::Raid5, 6);
    try_all(Level::Raid50 { group: 3 }, 6);
}

#[test]
fn raid_6_holds_what_was_written() {
    try_all(Level::Raid6, 4);
    try_all(Level::Raid6, 7);
    try_all(Level::Raid60 { group: 4 }, 8);
}

#[test]
fn raid_7_3_holds_what_was_written() {
    try_all(Level::Raid7_3, 5);
    try_all(Level::Raid7_3, 7);
    try_all(Level::Raid70 { group: 5 }, 10);
}

#[test]
fn n_plus_m_holds_what_was_written() {
    try_all(Level::NPlusM { data: 2, parity: 1 }, 3);
    try_all(Level::NPlusM { data: 3, parity: 4 }, 7);
}
