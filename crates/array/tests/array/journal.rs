//! Arrays with a journal: what it costs in I/Os, how much it takes, and what ends it.

use std::future::Future;
use std::rc::Rc;

use voltier_array::{Array, JournalOptions, JournalStart, RecordLosses};
use voltier_array::{ArrayError, Geometry, JournalPlace, Layout, Level, journal_sectors_min};
use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoError, Lba, MIB};
use voltier_drive::MemoryDevice;
use voltier_ring::{Executor, Handle, NoFiles};

use crate::world::World;

const CHUNK: u64 = 16 << 10;
const BLOCK: usize = 4096;

/// Runs a test on a new array with a journal of 1 MiB a member.
fn with_journal<F: Future<Output = ()> + 'static>(
    level: Level,
    members: usize,
    ring_sectors: Option<u64>,
    test: impl FnOnce(Handle, Rc<World>) -> F + 'static,
) {
    let geometry = Geometry::new(level, Layout::default(), members, CHUNK, 32 * 64);
    let geometry = geometry.expect("possible");
    let ring_sectors = ring_sectors.unwrap_or(MIB / 512).max(journal_sectors_min(&geometry));
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let world = World::with_journal(&handle, &geometry, ring_sectors, &[]).await;
        test(handle, Rc::new(world)).await;
    });
}

/// Reads, writes in place and writes to rings of members for one write.
async fn io_of_write(world: &World, at: Lba, bytes: usize) -> (u64, u64, u64) {
    let before = world.array.counts();
    world.array.write(at, Buf::zeroed(bytes).into(), Durability::Durable).await.expect("write");
    let after = world.array.counts();
    let writes: u64 = world.watches.iter().map(|watch| watch.writes.get()).sum();
    // Two labels a member were written before.
    let labels = 2 * world.watches.len() as u64;
    assert_eq!(writes - labels, after.member_writes + after.journal_writes);
    (
        after.member_reads - before.member_reads,
        after.member_writes - before.member_writes,
        after.journal_writes - before.journal_writes,
    )
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
        with_journal(level, members, None, move |_, world| async move {
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
    with_journal(Level::Raid6, 10, None, |handle, world| async move {
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
        let counts = world.array.counts();
        assert_eq!(counts.member_writes, 64 * 3);
        // 19 records a member: the first alone, the next ones as they gather.
        assert!(counts.journal_writes < counts.member_writes / 2, "{counts:?}");
    });
}

#[test]
fn half_a_ring_is_flushed_for_once() {
    with_journal(Level::Raid6, 10, None, |_, world| async move {
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
    with_journal(Level::Raid5, 4, None, |_, world| async move {
        assert!(!world.array.limits().volatile_cache);
        let before: u64 = world.watches.iter().map(|watch| watch.durable_writes.get()).sum();
        io_of_write(&world, Lba(0), BLOCK).await;
        world.array.flush().await.expect("flush");
        let after: u64 = world.watches.iter().map(|watch| watch.durable_writes.get()).sum();
        assert_eq!(after - before, 2, "the two records");
        assert!(world.watches.iter().all(|watch| watch.flushes.get() == 0));
        world.array.settle().await.expect("settled");
        assert!(world.watches.iter().all(|watch| watch.flushes.get() == 1));
    });
}

#[test]
fn the_shortest_ring_takes_any_number_of_the_longest_records() {
    for level in [Level::Raid1, Level::Raid6, Level::Raid50 { group: 3 }] {
        with_journal(level, 6, Some(0), |handle, world| async move {
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
fn a_ring_that_fails_loses_its_member_and_the_last_one_ends_the_journal() {
    with_journal(Level::Raid5, 4, None, |_, world| async move {
        let data = |byte: u8| Bytes::copy_of(&[byte; BLOCK]).into();
        let geometry = world.array.geometry().clone();
        let stripe = geometry.place_of(Lba(0)).stripe;
        let members = [0, 1].map(|slot| geometry.member_of(stripe, slot));
        world.watches[members[0]].refuses_writes.set(true);
        assert_eq!(world.array.write(Lba(0), data(1), Durability::Cached).await, Ok(()));
        assert!(!world.array.is_online(members[0]));
        let at = Lba(geometry.chunk_sectors());
        assert_eq!(world.array.write(at, data(2), Durability::Cached).await, Ok(()));
        // No redundancy is left. What fails now is settled by the next replay, and nothing else is begun.
        world.watches[members[1]].refuses_writes.set(true);
        assert_eq!(world.array.write(at, data(3), Durability::Cached).await, Err(IoError::Medium));
        world.watches[members[1]].refuses_writes.set(false);
        assert_eq!(world.array.write(at, data(4), Durability::Cached).await, Err(IoError::Medium));
        assert_eq!(world.array.flush().await, Err(IoError::Medium));
        let read = world.array.read(Lba(0), Buf::new(BLOCK)).await.expect("the others have it");
        assert!(read.iter().all(|byte| *byte == 1));
        let read =
            world.array.read(at, Buf::new(BLOCK)).await.expect("nothing was written in place");
        assert!(read.iter().all(|byte| *byte == 2));
    });
}

#[test]
fn places_that_do_not_suit_are_refused() {
    let geometry =
        Geometry::new(Level::Raid5, Layout::default(), 3, 65536, 1024).expect("possible");
    let needed = journal_sectors_min(&geometry);
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        for (start, sectors, count) in [(1024, needed - 1, 3), (1028, needed, 3), (1024, needed, 2)]
        {
            let members = (0..3).map(|_| Some(MemoryDevice::new(4 * MIB))).collect();
            let place = JournalPlace { start: Lba(start), sectors };
            let options = JournalOptions { array: [1; 16], places: vec![place; count] };
            let record: RecordLosses = Rc::new(|_| Box::pin(async { Vec::new() }));
            let (geometry, start) = (geometry.clone(), JournalStart::Create);
            let begun =
                Array::with_journal(&handle, geometry, members, options, start, record).await;
            let expected = if count == 2 {
                ArrayError::MemberCount { given: 2, expected: 3 }
            } else {
                ArrayError::JournalPlace { member: 0, sectors, needed }
            };
            assert_eq!(begun.err(), Some(expected));
        }
    });
}
