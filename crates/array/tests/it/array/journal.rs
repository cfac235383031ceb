//! Arrays with a journal: what it costs in I/Os, how much it takes, and what ends it.

use std::future::Future;
use std::rc::Rc;

use voltier_array::{JOURNAL_BYTES_MIN, Level, MemberIndex, StripeSlot};
use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoError, Lba};
use voltier_ring::{Executor, Handle, NoFiles};

use crate::array::world::World;

const CHUNK: u64 = 16 << 10;
/// Eight of these are as long as the shortest journal.
const CHUNK_OF_SHORTEST_RING: u64 = JOURNAL_BYTES_MIN / 8;
const BLOCK: usize = 4096;

/// Runs a test on a new array with a journal of 1 MiB a member.
fn with_journal<F: Future<Output = ()> + 'static>(
    level: Level,
    members: usize,
    chunk_bytes: u64,
    test: impl FnOnce(Handle, Rc<World>) -> F + 'static,
) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let world = World::with_journal(&handle, level, members, chunk_bytes).await;
        test(handle, Rc::new(world)).await;
    });
}

/// Reads, writes in place and writes to rings of members for one write.
async fn io_of_write(world: &World, at: Lba, bytes: usize) -> (u64, u64, u64) {
    let written = || -> u64 { world.watches.iter().map(|watch| watch.writes.get()).sum() };
    let (before, written_before) = (world.array.counts(), written());
    world.array.write(at, Buf::zeroed(bytes).into(), Durability::Durable).await.expect("write");
    let after = world.array.counts();
    let member_writes = after.member_writes - before.member_writes;
    let journal_writes = after.journal_writes - before.journal_writes;
    assert_eq!(written() - written_before, member_writes + journal_writes);
    (after.member_reads - before.member_reads, member_writes, journal_writes)
}

#[test]
fn a_write_alone_takes_one_more_write_of_each_member_it_changes() {
    let levels = [
        (Level::Raid1, 3, 0, 3),
        (Level::Raid5, 9, 2, 2),
        (Level::Raid6, 10, 3, 3),
        (Level::Raid7_3, 11, 4, 4),
    ];
    for (level, members, reads, writes) in levels {
        with_journal(level, members, CHUNK, move |_, world| async move {
            for block in [0, 7, 100] {
                let io = io_of_write(&world, Lba(block * 8), BLOCK).await;
                assert_eq!(io, (reads, writes, writes), "{level}");
            }
            let stripe_bytes = world.array.geometry().stripe_sectors() as usize * 512;
            let width = world.array.geometry().width() as u64;
            for stripes in 1..=3 {
                // Several whole stripes are one transaction, with one record a member.
                let io = io_of_write(&world, Lba(0), stripes * stripe_bytes).await;
                assert_eq!(io, (0, width, width), "{level}");
            }
            assert_eq!(world.watches.iter().map(|watch| watch.flushes.get()).sum::<u64>(), 0);
        });
    }
}

#[test]
fn writes_at_once_share_their_batches() {
    with_journal(Level::Raid6, 10, CHUNK, |handle, world| async move {
        let before = world.array.counts();
        let writes = (0..64_u64).map(|number| {
            let world = world.clone();
            let at = Lba(number * world.array.geometry().stripe_sectors() / 2);
            handle.spawn(async move {
                let data = Bytes::copy_of(&[1; BLOCK]).into();
                world.array.write(at, data, Durability::Cached).await
            })
        });
        for write in writes.collect::<Vec<_>>() {
            write.await.expect("write");
        }
        let after = world.array.counts();
        let member_writes = after.member_writes - before.member_writes;
        let journal_writes = after.journal_writes - before.journal_writes;
        assert_eq!(member_writes, 64 * 3);
        // 19 records a member: the first alone, the next ones as they come together.
        assert!(journal_writes < member_writes / 2, "{after:?}");
    });
}

#[test]
fn half_a_ring_is_flushed_for_once() {
    with_journal(Level::Raid6, 10, CHUNK, |_, world| async move {
        let data = Bytes::copy_of(&[1; BLOCK]);
        for number in 0..2000_u64 {
            let at = Lba(number * 7 % 2048 * 8);
            world.array.write(at, data.clone().into(), Durability::Cached).await.expect("write");
        }
        // Two blocks for each record, 600 records in each ring of 254 blocks: 4.7 times round.
        let flushes = world.array.counts().watermark_flushes;
        assert!((9..=20).contains(&flushes), "{flushes}");
    });
}

#[test]
fn in_place_writes_and_flushes_of_clients_leave_durability_to_the_journal() {
    with_journal(Level::Raid5, 4, CHUNK, |_, world| async move {
        assert!(!world.array.limits().volatile_cache);
        let before: u64 = world.watches.iter().map(|watch| watch.durable_writes.get()).sum();
        io_of_write(&world, Lba(0), BLOCK).await;
        world.array.flush().await.expect("flush");
        let after: u64 = world.watches.iter().map(|watch| watch.durable_writes.get()).sum();
        assert_eq!(after - before, 2, "the two records");
        assert!(world.watches.iter().all(|watch| watch.flushes.get() == 0));
        world.array.empty_journal().await.expect("emptied");
        assert!(world.watches.iter().all(|watch| watch.flushes.get() == 1));
    });
}

#[test]
fn the_shortest_ring_of_an_array_takes_any_number_of_the_longest_records() {
    for level in [Level::Raid1, Level::Raid6, Level::Raid50 { group: 3 }] {
        with_journal(level, 6, CHUNK_OF_SHORTEST_RING, |handle, world| async move {
            let bytes = world.array.limits().bytes() as usize;
            for round in 0..6_u8 {
                let writes = [0, bytes / 2].map(|offset| {
                    let world = world.clone();
                    let data = Bytes::copy_of(&vec![round; bytes / 2]);
                    let at = Lba::from_bytes(offset as u64);
                    handle.spawn(async move {
                        world.array.write(at, data.into(), Durability::Cached).await
                    })
                });
                for write in writes {
                    write.await.expect("write");
                }
            }
            assert!(world.array.counts().watermark_flushes > 6);
            world.check_stripes(&vec![5; bytes]).await;
        });
    }
}

#[test]
fn a_ring_that_fails_loses_its_member_and_the_last_one_is_waited_for() {
    with_journal(Level::Raid5, 4, CHUNK, |handle, world| async move {
        let data = |byte: u8| Bytes::copy_of(&[byte; BLOCK]).into();
        let geometry = world.array.geometry().clone();
        let stripe = geometry.place_of(Lba(0)).stripe;
        let members = [0, 1].map(|slot| geometry.member_of(stripe, StripeSlot(slot)).0);
        world.watches[members[0]].refuses_writes.set(true);
        assert_eq!(world.array.write(Lba(0), data(1), Durability::Cached).await, Ok(()));
        assert!(!world.array.is_online(MemberIndex(members[0])));
        let at = Lba(geometry.chunk_sectors());
        assert_eq!(world.array.write(at, data(2), Durability::Cached).await, Ok(()));
        // No redundancy is left. A replay decides what fails now, and nothing else is begun before.
        world.watches[members[1]].refuses_writes.set(true);
        assert_eq!(world.array.write(at, data(3), Durability::Cached).await, Err(IoError::Medium));
        world.watches[members[1]].refuses_writes.set(false);
        let read =
            world.array.read(at, Buf::new(BLOCK)).await.expect("nothing was written in place");
        assert!(read.iter().all(|byte| *byte == 2));
        handle.sleep(3_000_000_000).await;
        assert_eq!(world.array.write(at, data(4), Durability::Cached).await, Ok(()));
        assert_eq!(world.array.flush().await, Ok(()));
        for (at, expected) in [(Lba(0), 1), (at, 4)] {
            let read = world.array.read(at, Buf::new(BLOCK)).await.expect("it serves");
            assert!(read.iter().all(|byte| *byte == expected));
        }
    });
}
