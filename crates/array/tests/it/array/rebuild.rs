//! Every level, with every combination of members lost, replaced and rebuilt while requests go on.
//! Then data and parity are right by an arithmetic of their own, on all members.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_array::{
    ArrayError, BackgroundTask, Geometry, Layout, Level, MemberIndex, Pace, Priority, ReplaceError,
    Replacement,
};
use voltier_block::{
    BlockDevice, Buf, Bytes, Durability, KIB, Lba, MIB, Prng, SECTOR_BYTES, SectorRange,
};
use voltier_ring::{Executor, Handle, NoFiles};

use crate::array::world::World;
use crate::sampled::one_in;

const CHUNK_BYTES: u64 = 32 * KIB;
/// Two regions, the second one short.
const MEMBER_BYTES: u64 = MIB + 3 * CHUNK_BYTES;
const NO_UUID: [u8; 16] = [0; 16];

fn geometry(level: Level, members: usize) -> Geometry {
    let sectors = MEMBER_BYTES / SECTOR_BYTES;
    Geometry::new(level, Layout::default(), members, CHUNK_BYTES, sectors).expect("possible")
}

fn in_virtual_time<F: Future<Output = ()> + 'static>(test: impl FnOnce(Handle) -> F) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let run = test(executor.handle());
    executor.block_on(run);
    // Tasks end by themselves, once nobody has the array.
    let handle = executor.handle();
    executor.block_on(async move { handle.sleep(1_000_000_000).await });
    assert_eq!(executor.task_count(), 0);
}

/// A world and what its volume holds.
struct Served {
    world: World,
    model: RefCell<Vec<u8>>,
    is_over: Cell<bool>,
}

impl Served {
    async fn new(handle: &Handle, geometry: &Geometry, lost: &[usize], seed: u64) -> Rc<Self> {
        let world = World::new(handle, geometry, 512, lost, seed);
        let mut bytes = vec![0; (geometry.sectors() * SECTOR_BYTES) as usize];
        Prng::new(seed).fill(&mut bytes);
        let longest = world.array.limits().max_transfer_bytes as usize;
        for (index, piece) in bytes.chunks(longest).enumerate() {
            let at = Lba::from_bytes((index * longest) as u64);
            let data = Bytes::copy_of(piece);
            world.array.write(at, data.into(), Durability::Cached).await.expect("write");
        }
        Rc::new(Self { world, model: RefCell::new(bytes), is_over: Cell::new(false) })
    }

    /// One of the clients, each of which has its own part of the volume.
    async fn serve(self: Rc<Self>, client: u64, clients: u64, seed: u64) {
        let sectors = self.world.array.geometry().sectors() / clients;
        let mut dice = Prng::new(seed);
        while !self.is_over.get() {
            let longest = if dice.one_in(4) { 200 } else { 8 };
            let count = 1 + dice.below(longest);
            let at = client * sectors + dice.below(sectors - count + 1);
            let place = at as usize * 512..(at + count) as usize * 512;
            if dice.one_in(3) {
                let into = Buf::new(place.len());
                let read = self.world.array.read(Lba(at), into).await.expect("read");
                assert!(read[..] == self.model.borrow()[place], "sectors {at} + {count}");
            } else if dice.one_in(8) {
                let range = SectorRange::new(Lba(at), count);
                let zeroed = self.world.array.write_zeroes(range, Durability::Cached).await;
                zeroed.expect("zeroes");
                self.model.borrow_mut()[place].fill(0);
            } else {
                let mut bytes = vec![0; place.len()];
                dice.fill(&mut bytes);
                let data = Bytes::copy_of(&bytes);
                let written = self.world.array.write(Lba(at), data.into(), Durability::Cached);
                written.await.expect("write");
                self.model.borrow_mut()[place].copy_from_slice(&bytes);
            }
        }
    }

    async fn check(&self, handle: &Handle) {
        let model = self.model.borrow().clone();
        self.world.check_stripes(&model).await;
        let sectors = self.world.array.geometry().stripe_sectors() as usize * 512;
        for (index, piece) in model.chunks(sectors).enumerate() {
            let at = Lba::from_bytes((index * sectors) as u64);
            let read = self.world.array.read(at, Buf::new(piece.len())).await.expect("read");
            assert!(read[..] == *piece, "stripe {index}");
        }
        handle.yield_now().await;
    }

    /// The same with the copy of a member that is in another world: beside the others it is as good as
    /// the original.
    async fn check_with(&self, handle: &Handle, other: &World, member: usize) {
        let whole = Buf::new(MEMBER_BYTES as usize);
        let copied = other.media[member].read(Lba(0), whole).await.expect("memory");
        let place = &self.world.media[member];
        place.write(Lba(0), copied.into(), Durability::Cached).await.expect("memory");
        self.check(handle).await;
    }
}

/// All choices of 1 to `most` of `count` members.
fn choices(count: usize, most: usize) -> impl Iterator<Item = Vec<usize>> {
    let all = (1_u32..1 << count).filter(move |set| set.count_ones() as usize <= most);
    all.map(move |set| (0..count).filter(|member| set >> member & 1 == 1).collect())
}

async fn run(handle: Handle, level: Level, members: usize, lost: Vec<usize>, seed: u64) {
    let geometry = geometry(level, members);
    let (groups, width) = (geometry.group_count(), geometry.width());
    let turned = |group: usize| lost.iter().map(move |it| group * width + (it + group) % width);
    let lost: Vec<usize> = (0..groups).flat_map(turned).collect();
    let served = Served::new(&handle, &geometry, &lost, seed).await;
    let array = &served.world.array;
    let priority = Priority::ALL[seed as usize % 4];
    let pace = Pace { priority, floor_bytes_per_second: 20_000_000 };
    array.set_pace(BackgroundTask::Rebuild, pace);
    let clients = 4;
    let tasks: Vec<_> = (0..clients)
        .map(|client| handle.spawn(served.clone().serve(client, clients, seed * 10 + client)))
        .collect();
    for member in lost {
        let fresh = served.world.fresh_member(&handle, member, seed).await;
        let replaced = array.replace(MemberIndex(member), fresh, NO_UUID).await;
        assert_eq!(replaced, Ok(Replacement::Rebuild));
        if seed.is_multiple_of(2) {
            // One comes while the one before is being filled.
            handle.sleep(3_000_000).await;
        } else {
            array.ended(BackgroundTask::Rebuild).await;
            assert!(array.is_online(MemberIndex(member)));
        }
    }
    array.ended(BackgroundTask::Rebuild).await;
    served.is_over.set(true);
    for task in tasks {
        task.await;
    }
    assert!((0..members).all(|member| array.is_online(MemberIndex(member))));
    let status = array.rebuild_status();
    assert_eq!((status.stuck_regions, status.last_error), (0, None));
    served.check(&handle).await;
}

/// Choices of lost members of which all are tried in every run of the tests.
const FEW: usize = 12;

fn try_all(level: Level, members: usize) {
    let shape = geometry(level, members);
    let choices: Vec<_> = choices(shape.width(), shape.parity_chunks()).collect();
    let step = if choices.len() > FEW { one_in(1) } else { 1 };
    for (index, lost) in choices.into_iter().enumerate().step_by(step) {
        println!("{level} of {members}, without {lost:?}"); // A failing test shows this line.
        in_virtual_time(|handle| run(handle, level, members, lost, index as u64 + 1));
    }
}

#[test]
fn replaced_copies_are_filled_under_load() {
    try_all(Level::Raid1, 2);
    try_all(Level::Raid1, 3);
    try_all(Level::Raid10, 4);
}

#[test]
fn replaced_members_of_one_parity_are_rebuilt_under_load() {
    try_all(Level::Raid5, 3);
    try_all(Level::Raid5, 5);
    try_all(Level::Raid50 { group: 3 }, 6);
}

#[test]
fn replaced_members_of_two_parities_are_rebuilt_under_load() {
    try_all(Level::Raid6, 5);
    try_all(Level::Raid60 { group: 4 }, 8);
}

#[test]
fn replaced_members_of_more_parities_are_rebuilt_under_load() {
    try_all(Level::Raid7_3, 5);
    try_all(Level::Raid70 { group: 5 }, 10);
    try_all(Level::NPlusM { data: 2, parity: 1 }, 3);
    try_all(Level::NPlusM { data: 2, parity: 4 }, 6);
}

#[test]
fn a_member_in_service_is_copied_under_load_and_stays_until_that_is_done() {
    for (level, members) in [(Level::Raid0, 3), (Level::Raid1, 2), (Level::Raid6, 5)] {
        in_virtual_time(|handle| async move {
            let served = Served::new(&handle, &geometry(level, members), &[], 7).await;
            let world = &served.world;
            let other = World::new(&handle, &geometry(level, members), 512, &[], 8);
            let tasks = [0, 1].map(|it| handle.spawn(served.clone().serve(it, 2, 9)));
            let device = other.fresh_member(&handle, 1, 3).await;
            if level != Level::Raid0 {
                // Sectors that the old device cannot read are computed, and written to both.
                world.watches[1].bad.borrow_mut().extend([9, 700]);
            }
            assert_eq!(
                world.array.replace(MemberIndex(1), device, NO_UUID).await,
                Ok(Replacement::Successor)
            );
            assert!(world.array.is_online(MemberIndex(1)));
            world.array.ended(BackgroundTask::Rebuild).await;
            let before = world.watches[1].writes.get();
            handle.sleep(10_000_000).await;
            assert_eq!(world.watches[1].writes.get(), before, "the old one is out");
            assert!(
                world.array.is_online(MemberIndex(1))
                    && world.array.rebuild_status().rebuilt_members == 1
            );
            served.is_over.set(true);
            for task in tasks {
                task.await;
            }
            served.check_with(&handle, &other, 1).await;
        });
    }
}

#[test]
fn a_new_member_that_fails_is_lost_again_and_the_data_stay() {
    for is_write in [false, true] {
        in_virtual_time(|handle| async move {
            let served = Served::new(&handle, &geometry(Level::Raid6, 5), &[3], 7).await;
            let (world, array) = (&served.world, &served.world.array);
            array.set_pace(
                BackgroundTask::Rebuild,
                Pace { priority: Priority::Low, floor_bytes_per_second: 0 },
            );
            let task = handle.spawn(served.clone().serve(0, 1, 9));
            let device = world.fresh_member(&handle, 3, 3).await;
            array.replace(MemberIndex(3), device, NO_UUID).await.expect("taken");
            handle.sleep(5_000_000).await;
            if is_write {
                world.watches[3].refuses_writes.set(true);
            } else {
                world.watches[3].is_gone.set(true);
            }
            handle.sleep(5_000_000).await;
            served.is_over.set(true);
            task.await;
            array.ended(BackgroundTask::Rebuild).await;
            assert!(!array.is_online(MemberIndex(3)));
            world.watches[3].refuses_writes.set(false);
            served.check(&handle).await;
            let device = world.fresh_member(&handle, 3, 3).await;
            array.replace(MemberIndex(3), device, NO_UUID).await.expect("taken");
            array.ended(BackgroundTask::Rebuild).await;
            assert!(array.is_online(MemberIndex(3)));
            served.check(&handle).await;
        });
    }
}

#[test]
fn another_member_lost_on_the_way_does_not_stop_a_rebuild_that_can_go_on() {
    in_virtual_time(|handle| async move {
        let served = Served::new(&handle, &geometry(Level::Raid7_3, 6), &[3], 7).await;
        let (world, array) = (&served.world, &served.world.array);
        let tasks = [0, 1].map(|it| handle.spawn(served.clone().serve(it, 2, 9)));
        let device = world.fresh_member(&handle, 3, 3).await;
        array.replace(MemberIndex(3), device, NO_UUID).await.expect("taken");
        handle.sleep(300_000).await;
        world.watches[0].is_gone.set(true);
        world.watches[2].bad.borrow_mut().extend([5, 1500]);
        array.ended(BackgroundTask::Rebuild).await;
        served.is_over.set(true);
        for task in tasks {
            task.await;
        }
        assert!(array.is_online(MemberIndex(3)) && !array.is_online(MemberIndex(0)));
        served.check(&handle).await;
    });
}

#[test]
fn the_original_lost_while_it_is_copied_leaves_the_copy_to_be_rebuilt() {
    in_virtual_time(|handle| async move {
        let served = Served::new(&handle, &geometry(Level::Raid5, 4), &[], 7).await;
        let array = &served.world.array;
        let other = World::new(&handle, &geometry(Level::Raid5, 4), 512, &[], 8);
        array.set_pace(
            BackgroundTask::Rebuild,
            Pace { priority: Priority::Low, floor_bytes_per_second: 30_000_000 },
        );
        let task = handle.spawn(served.clone().serve(0, 1, 9));
        let device = other.fresh_member(&handle, 1, 3).await;
        array.replace(MemberIndex(1), device, NO_UUID).await.expect("taken");
        handle.sleep(2_000_000).await;
        assert!(array.rebuild_status().progress.is_running);
        array.fail(MemberIndex(1)).expect("one may go");
        assert!(!array.is_online(MemberIndex(1)));
        array.ended(BackgroundTask::Rebuild).await;
        assert!(array.is_online(MemberIndex(1)));
        served.is_over.set(true);
        task.await;
        served.check_with(&handle, &other, 1).await;
    });
}

#[test]
fn what_cannot_be_computed_keeps_its_region_from_being_read_of_the_new_member() {
    in_virtual_time(|handle| async move {
        let served = Served::new(&handle, &geometry(Level::Raid5, 4), &[3], 7).await;
        let (world, array) = (&served.world, &served.world.array);
        world.watches[1].bad.borrow_mut().insert(9);
        let device = world.fresh_member(&handle, 3, 3).await;
        array.replace(MemberIndex(3), device, NO_UUID).await.expect("taken");
        array.ended(BackgroundTask::Rebuild).await;
        let status = array.rebuild_status();
        assert_eq!((status.stuck_regions, array.is_online(MemberIndex(3))), (1, false));
        assert!(status.progress.done_bytes > 0, "the other region is done");
        let stuck = array.stuck_ranges(8).remove(0);
        let other = array.limits().sectors - stuck.sectors.count;
        assert_eq!((stuck.members, stuck.sectors.start), (vec![MemberIndex(3)], Lba(0)));
        assert!(other > 0, "{status:?}");
        // Written again, it can be; a rebuild that is started again gets through.
        let whole = served.model.borrow()[..3 * CHUNK_BYTES as usize].to_vec();
        let data = Bytes::copy_of(&whole);
        array.write(Lba(0), data.into(), Durability::Cached).await.expect("write");
        array.rebuild().expect("something is left");
        array.ended(BackgroundTask::Rebuild).await;
        assert!(array.is_online(MemberIndex(3)));
        served.check(&handle).await;
        let nothing = ArrayError::Replace(ReplaceError::NothingToRebuild);
        assert_eq!(array.rebuild(), Err(nothing));
    });
}

#[test]
fn what_does_not_suit_is_refused_in_one_line_and_changes_nothing() {
    in_virtual_time(|handle| async move {
        let served = Served::new(&handle, &geometry(Level::Raid5, 4), &[3], 7).await;
        let (world, array) = (&served.world, &served.world.array);
        let small = World::new(
            &handle,
            &Geometry::new(Level::Raid5, Layout::default(), 3, 4096, 64).expect("possible"),
            512,
            &[],
            1,
        );
        let large_blocks = World::new(&handle, &geometry(Level::Raid5, 4), 4096, &[], 1);
        let mut refusals = Vec::new();
        let device = small.fresh_member(&handle, 0, 1).await;
        refusals.push(array.replace(MemberIndex(3), device, NO_UUID).await);
        let device = large_blocks.fresh_member(&handle, 0, 1).await;
        refusals.push(array.replace(MemberIndex(3), device, NO_UUID).await);
        let device = large_blocks.fresh_member(&handle, 0, 1).await;
        refusals.push(array.replace(MemberIndex(4), device, NO_UUID).await);
        for refusal in refusals {
            let line = refusal.expect_err("it does not suit").to_string();
            assert!(!line.contains('\n') && line.len() < 120, "{line}");
        }
        array.set_pace(
            BackgroundTask::Rebuild,
            Pace { priority: Priority::Idle, floor_bytes_per_second: 1 },
        );
        let device = world.fresh_member(&handle, 3, 3).await;
        array.replace(MemberIndex(3), device, NO_UUID).await.expect("taken");
        let other = World::new(&handle, &geometry(Level::Raid5, 4), 512, &[], 8);
        let device = other.fresh_member(&handle, 3, 3).await;
        let busy = array.replace(MemberIndex(3), device, NO_UUID).await;
        assert_eq!(busy, Err(ArrayError::Replace(ReplaceError::Busy { member: 3 })));
        assert!(array.fail(MemberIndex(2)).is_err(), "one that is not rebuilt yet helps nobody");
        array.ended(BackgroundTask::Rebuild).await;
        served.check(&handle).await;
    });
}
