//! Small writes that wait for each other: device I/Os counted, and what is never held.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Waker};

use voltier_array::{Level, MergeMode, MergePolicy};
use voltier_block::{BlockDevice, Buf, Durability, IoError, IoResult, Lba, Nanos, SECTOR_BYTES};
use voltier_ring::{Executor, Handle, JoinHandle, NoFiles};

use crate::array::io_counts::{geometry_of, with_array_in};
use crate::array::world::World;

const BLOCK: u64 = 4096;
/// Blocks of a stripe of eight chunks of 16 KiB.
const STRIPE_BLOCKS: u64 = 32;
const WAIT_NS: Nanos = 100_000;
const MAX_NS: Nanos = 1_000_000;

/// RAID 6 of eight chunks of data, with writes merged so.
fn with_merging<F: Future<Output = ()> + 'static>(
    mode: MergeMode,
    test: impl FnOnce(Handle, Rc<World>) -> F + 'static,
) {
    with_array_in(Level::Raid6, 10, &[], move |handle, world| {
        world.array.set_merge_policy(MergePolicy { mode, wait_ns: WAIT_NS, max_ns: MAX_NS });
        test(handle, world)
    });
}

fn content_of(block: u64) -> Buf {
    Buf::copy_of(&[(block % 251) as u8 + 1; BLOCK as usize])
}

fn lba_of(block: u64) -> Lba {
    Lba::from_bytes(block * BLOCK)
}

/// Begins the write of a block.
fn begin(handle: &Handle, world: &Rc<World>, block: u64) -> JoinHandle<IoResult<()>> {
    begin_as(handle, world, block, Durability::Cached)
}

fn begin_as(
    handle: &Handle,
    world: &Rc<World>,
    block: u64,
    durability: Durability,
) -> JoinHandle<IoResult<()>> {
    let world = world.clone();
    handle.spawn(async move {
        world.array.write(lba_of(block), content_of(block).into(), durability).await
    })
}

async fn all(tasks: impl IntoIterator<Item = JoinHandle<IoResult<()>>>) {
    for task in tasks.into_iter().collect::<Vec<_>>() {
        task.await.expect("written");
    }
}

async fn expect_blocks(world: &World, blocks: impl IntoIterator<Item = u64>) {
    for block in blocks {
        let read = world.array.read(lba_of(block), Buf::new(BLOCK as usize)).await.expect("read");
        assert_eq!(read[..], content_of(block)[..], "block {block}");
    }
}

/// So many writers, each one block behind all others, up to a block.
async fn write_in_turns(handle: &Handle, world: &Rc<World>, writers: u64, blocks: u64) {
    let next = Rc::new(Cell::new(0));
    let writer = |_| {
        let (next, world) = (next.clone(), world.clone());
        handle.spawn(async move {
            while next.get() < blocks {
                let block = next.replace(next.get() + 1);
                let data = content_of(block).into();
                world.array.write(lba_of(block), data, Durability::Cached).await?;
            }
            Ok(())
        })
    };
    all((0..writers).map(writer)).await;
}

#[test]
fn writes_that_fill_a_stripe_together_go_as_one_of_all_of_it() {
    with_merging(MergeMode::Always, |handle, world| async move {
        all((0..STRIPE_BLOCKS).map(|block| begin(&handle, &world, block))).await;
        let counts = world.array.counts();
        assert_eq!((counts.member_reads, counts.member_writes), (0, 10));
        assert_eq!((counts.merges, counts.merged_writes), (1, STRIPE_BLOCKS));
        assert_eq!(handle.now() / WAIT_NS, 0, "a full stripe waits for nothing");
        expect_blocks(&world, 0..STRIPE_BLOCKS).await;
    });
}

#[test]
fn a_stream_of_many_at_once_is_merged_to_whole_stripes_without_being_told_to() {
    with_merging(MergeMode::Adaptive, |handle, world| async move {
        let stripes = 20;
        write_in_turns(&handle, &world, STRIPE_BLOCKS, stripes * STRIPE_BLOCKS).await;
        let counts = world.array.counts();
        // The very first write goes alone, and those behind it fill no whole stripe.
        assert!(counts.full_stripe_writes >= stripes - 2, "{counts:?}");
        let ios = counts.member_reads + counts.member_writes;
        assert!(ios <= stripes * 10 + 20, "{counts:?}");
        expect_blocks(&world, 0..stripes * STRIPE_BLOCKS).await;
    });
}

#[test]
fn a_few_at_once_go_together_and_do_not_wait_for_more() {
    with_merging(MergeMode::Adaptive, |handle, world| async move {
        let blocks = 20 * STRIPE_BLOCKS;
        write_in_turns(&handle, &world, 4, blocks).await;
        let (counts, took_ns) = (world.array.counts(), handle.now());
        assert!(counts.merges * 5 > counts.merged_writes, "four of them at most: {counts:?}");
        assert!(counts.merged_writes > blocks * 9 / 10, "{counts:?}");
        // Device I/Os take 20 us at most here; a wait that ends for nothing would show.
        assert!(took_ns / (blocks / 4) < WAIT_NS, "{took_ns}");
    });
}

#[test]
fn one_at_a_time_and_random_ones_are_never_held() {
    with_merging(MergeMode::Adaptive, |handle, world| async move {
        write_in_turns(&handle, &world, 1, 3 * STRIPE_BLOCKS).await;
        // Far from each other.
        let stripes = 4..world.array.geometry().stripe_count();
        let apart = stripes.step_by(3).map(|stripe| stripe * STRIPE_BLOCKS + stripe % 7);
        all(apart.map(|block| begin(&handle, &world, block))).await;
        assert_eq!(world.array.counts().held_writes, 0);
    });
}

#[test]
fn a_durable_write_waits_for_those_that_run_and_for_no_others() {
    with_merging(MergeMode::Adaptive, |handle, world| async move {
        write_in_turns(&handle, &world, 8, 4 * STRIPE_BLOCKS).await;
        let (held, block) = (world.array.counts().held_writes, 4 * STRIPE_BLOCKS);
        begin_as(&handle, &world, block, Durability::Durable).await.expect("written");
        assert_eq!(world.array.counts().held_writes, held);
        // One that is not: it waits for seven others, in vain, and the next does not.
        for (block, waits) in [(block + 1, true), (block + 2, false)] {
            let before = handle.now();
            begin(&handle, &world, block).await.expect("written");
            assert_eq!(handle.now() - before >= WAIT_NS, waits);
        }
    });
}

#[test]
fn who_always_waits_waits_for_the_next_one_and_not_longer_than_the_longest() {
    with_merging(MergeMode::Always, |handle, world| async move {
        let before = handle.now();
        begin(&handle, &world, 3).await.expect("written");
        let took_ns = handle.now() - before;
        assert!((WAIT_NS..WAIT_NS + 60_000).contains(&took_ns), "{took_ns}");
        // One every 80 us: none waits in vain, and the first one not for ever.
        let (first, before) = (begin(&handle, &world, 64), handle.now());
        let trickle: Vec<_> = (1..20)
            .map(|number| {
                let (own, world) = (handle.clone(), world.clone());
                handle.spawn(async move {
                    own.sleep(number * 80_000).await;
                    begin(&own, &world, 64 + number).await
                })
            })
            .collect();
        first.await.expect("written");
        let took_ns = handle.now() - before;
        assert!((MAX_NS..MAX_NS + 60_000).contains(&took_ns), "{took_ns}");
        all(trickle).await;
        expect_blocks(&world, 64..84).await;
    });
}

#[test]
fn what_is_written_over_each_other_is_as_if_it_came_in_order_and_gaps_stay() {
    with_merging(MergeMode::Always, |handle, world| async move {
        all((0..STRIPE_BLOCKS).map(|block| begin(&handle, &world, block))).await;
        let write = |sector: u64, sectors: u64, byte: u8| {
            let world = world.clone();
            let data = Buf::copy_of(&vec![byte; (sectors * SECTOR_BYTES) as usize]);
            handle.spawn(async move {
                world.array.write(Lba(sector), data.into(), Durability::Cached).await
            })
        };
        // Within a chunk of 32 sectors, with a gap from 12 to 20, and into the next one.
        all([write(2, 8, 91), write(8, 4, 92), write(4, 1, 93), write(20, 20, 94)]).await;
        let read = world.array.read(Lba(0), Buf::new(48 * SECTOR_BYTES as usize)).await;
        let sectors: Vec<u8> =
            read.expect("read").chunks(SECTOR_BYTES as usize).map(|sector| sector[0]).collect();
        let expected = |sector: u8| match sector {
            4 => 93,
            8..12 => 92,
            2..8 => 91,
            20..40 => 94,
            _ => sector / 8 + 1,
        };
        assert_eq!(sectors, (0..48).map(expected).collect::<Vec<_>>());
        assert_eq!(world.array.counts().merges, 2);
    });
}

#[test]
fn an_error_reaches_all_and_who_goes_away_takes_nothing_along() {
    with_merging(MergeMode::Always, |handle, world| async move {
        // The one that sees to the others is given up by who asked for it.
        begin_and_leave(&world, 40);
        all([begin(&handle, &world, 41), begin(&handle, &world, 42)]).await;
        expect_blocks(&world, 40..43).await;
        for watch in &world.watches[..3] {
            watch.is_gone.set(true);
        }
        for task in [begin(&handle, &world, 70), begin(&handle, &world, 71)] {
            assert_eq!(task.await, Err(IoError::Gone));
        }
    });
}

/// Begins a write and is gone before it ends.
fn begin_and_leave(world: &Rc<World>, block: u64) {
    let data = content_of(block).into();
    let mut write = std::pin::pin!(world.array.write(lba_of(block), data, Durability::Cached));
    let mut context = Context::from_waker(Waker::noop());
    assert!(write.as_mut().poll(&mut context).is_pending());
}

#[test]
fn what_is_held_goes_when_merging_is_switched_off() {
    with_merging(MergeMode::Always, |handle, world| async move {
        let task = begin(&handle, &world, 5);
        handle.yield_now().await;
        world.array.set_merge_policy(MergePolicy::default());
        task.await.expect("written");
        assert!(handle.now() < WAIT_NS);
        begin(&handle, &world, 6).await.expect("written");
        assert_eq!(world.array.counts().held_writes, 1);
    });
}

#[test]
fn levels_that_gain_nothing_never_wait() {
    for (level, members) in [(Level::Raid0, 3), (Level::Raid1, 2), (Level::Raid10, 4)] {
        let geometry = geometry_of(level, members);
        let mut executor = Executor::in_virtual_time(NoFiles);
        let world = World::new(&executor.handle(), &geometry, 512, &[], 1);
        let policy = MergePolicy { mode: MergeMode::Always, ..MergePolicy::default() };
        world.array.set_merge_policy(policy);
        assert_eq!(world.array.merge_policy().mode, MergeMode::Off, "{level}");
        executor.block_on(async move {
            let data = content_of(1).into();
            world.array.write(lba_of(1), data, Durability::Cached).await.expect("written");
            assert_eq!(world.array.counts().held_writes, 0);
        });
    }
}

#[test]
fn both_ends_of_a_request_are_not_taken_for_two_at_once() {
    with_merging(MergeMode::Adaptive, |handle, world| async move {
        let seen = Rc::new(RefCell::new(Vec::new()));
        for number in 0..4 {
            // From the middle of a stripe to the middle of the next but one.
            let start = (2 * number * STRIPE_BLOCKS + STRIPE_BLOCKS / 2) * BLOCK;
            let data = Buf::copy_of(&vec![7; (2 * STRIPE_BLOCKS * BLOCK) as usize]);
            let before = handle.now();
            let at = Lba::from_bytes(start);
            world.array.write(at, data.into(), Durability::Cached).await.expect("written");
            seen.borrow_mut().push(handle.now() - before);
        }
        assert_eq!(world.array.counts().held_writes, 0, "{seen:?}");
    });
}
