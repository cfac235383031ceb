//! Device I/Os per user I/O, counted by the members.

use std::future::Future;
use std::rc::Rc;

use voltier_array::{Geometry, Layout, Level, StripeNumber};
use voltier_block::{BlockDevice, Buf, Durability, Lba};
use voltier_ring::{Executor, Handle, NoFiles};

use crate::array::world::World;

const CHUNK: u64 = 16 << 10;
const BLOCK: usize = 4096;

/// Runs a test on an array with some members lost.
pub(crate) fn with_array<F: Future<Output = ()> + 'static>(
    level: Level,
    members: usize,
    lost: &[usize],
    test: impl FnOnce(Rc<World>) -> F + 'static,
) {
    with_array_in(level, members, lost, |_, world| test(world));
}

/// The same for a test that has tasks of its own.
pub(crate) fn with_array_in<F: Future<Output = ()> + 'static>(
    level: Level,
    members: usize,
    lost: &[usize],
    test: impl FnOnce(Handle, Rc<World>) -> F + 'static,
) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let world = Rc::new(World::new(&handle, &geometry_of(level, members), 512, lost, 1));
    executor.block_on(test(handle, world));
}

pub(crate) fn geometry_of(level: Level, members: usize) -> Geometry {
    Geometry::new(level, Layout::default(), members, CHUNK, 32 * 64).expect("possible")
}

impl World {
    /// Reads and writes of all members.
    fn io(&self) -> (u64, u64) {
        let sum = |count: fn(&crate::array::world::Watch) -> u64| {
            self.watches.iter().map(|watch| count(watch)).sum()
        };
        (sum(|watch| watch.reads.get()), sum(|watch| watch.writes.get()))
    }

    /// Reads and writes of members for one write of so many bytes.
    async fn io_of_write(&self, at: Lba, bytes: usize) -> (u64, u64) {
        let before = self.io();
        self.array.write(at, Buf::zeroed(bytes).into(), Durability::Cached).await.expect("write");
        let after = self.io();
        assert_eq!(after, (self.array.counts().member_reads, self.array.counts().member_writes));
        (after.0 - before.0, after.1 - before.1)
    }

    /// Reads of members for one read of so many bytes.
    async fn io_of_read(&self, at: Lba, bytes: usize) -> u64 {
        let before = self.io().0;
        self.array.read(at, Buf::new(bytes)).await.expect("read");
        self.io().0 - before
    }
}

#[test]
fn a_random_write_of_4_kib_takes_4_6_and_8_device_ios() {
    for (level, data, parities) in
        [(Level::Raid5, 8, 1), (Level::Raid6, 8, 2), (Level::Raid7_3, 8, 3)]
    {
        with_array(level, data + parities, &[], move |world| async move {
            let blocks = world.array.limits().bytes() / BLOCK as u64;
            for block in (0..blocks).step_by(7) {
                let io = world.io_of_write(Lba(block * 8), BLOCK).await;
                assert_eq!(io, (1 + parities as u64, 1 + parities as u64));
            }
            assert_eq!(world.array.counts().modify_writes, blocks.div_ceil(7));
        });
    }
}

#[test]
fn full_stripes_take_a_write_for_each_chunk_of_data_and_parity_and_no_read() {
    let levels = [
        (Level::Raid0, 5, 5, 5),
        (Level::Raid1, 3, 1, 3),
        (Level::Raid10, 4, 1, 2),
        (Level::Raid5, 9, 8, 9),
        (Level::Raid6, 10, 8, 10),
        (Level::Raid7_3, 11, 8, 11),
        (Level::Raid60 { group: 6 }, 12, 4, 6),
        (Level::NPlusM { data: 6, parity: 4 }, 10, 6, 10),
    ];
    for (level, members, data, writes) in levels {
        with_array(level, members, &[], move |world| async move {
            let stripe_bytes = data * CHUNK as usize;
            let groups = world.array.geometry().group_count() as u64;
            for stripes in 1..4_u64 {
                let at = Lba::from_bytes(3 * stripe_bytes as u64);
                let io = world.io_of_write(at, stripes as usize * stripe_bytes).await;
                // Several stripes of a group lie behind one another on its members.
                assert_eq!(io, (0, stripes.min(groups) * writes), "{level}");
            }
        });
    }
}

#[test]
fn whole_stripes_between_parts_of_others_go_together() {
    with_array(Level::Raid6, 10, &[], |world| async move {
        let stripe = world.array.geometry().stripe_sectors();
        let io = world.io_of_write(Lba(3 * stripe + 8), 4 * (stripe * 512) as usize).await;
        // The first in part (all chunks touched), three whole ones together, 4 KiB of the last.
        assert_eq!(world.array.counts().full_stripe_writes, 3);
        assert_eq!(io.1, 10 + 10 + 3);
    });
}

#[test]
fn a_long_read_takes_what_lies_together_on_a_member_at_once() {
    for (level, members, reads) in [(Level::Raid0, 5, 5), (Level::Raid5, 9, 10)] {
        with_array(level, members, &[], move |world| async move {
            // Three rows. Of RAID 5 the member with the parity of the second has two runs.
            let stripe = world.array.geometry().stripe_sectors();
            let io = world.io_of_read(Lba(3 * stripe), 3 * stripe as usize * 512).await;
            assert_eq!(io, reads, "{level}");
        });
    }
}

#[test]
fn a_medium_error_in_a_long_read_costs_what_is_bad_alone() {
    with_array(Level::Raid5, 9, &[], |world| async move {
        let stripe = world.array.geometry().stripe_sectors();
        let data = Buf::copy_of(&vec![7; 3 * stripe as usize * 512]);
        world.array.write(Lba(3 * stripe), data.into(), Durability::Cached).await.expect("write");
        // A sector of the second of three chunks of one run.
        let at = world.array.geometry().member_lba(StripeNumber(4), 3);
        world.watches[0].bad.borrow_mut().insert(at.0);
        let buf = Buf::new(3 * stripe as usize * 512);
        let read = world.array.read(Lba(3 * stripe), buf).await.expect("read");
        assert!(read.iter().all(|byte| *byte == 7));
        assert_eq!(world.array.counts().degraded_reads, 1);
        assert_eq!(world.array.counts().repairs, 1);
        assert!(world.watches[0].bad.borrow().is_empty(), "it was written again");
    });
}

#[test]
fn a_write_of_some_chunks_reads_the_less_of_the_two_ways() {
    with_array(Level::Raid6, 10, &[], |world| async move {
        for chunks in 1..=8_u64 {
            let io = world.io_of_write(Lba(0), (chunks * CHUNK) as usize).await;
            assert_eq!(io, ((8 - chunks).min(chunks + 2), chunks + 2));
        }
        // The end of a chunk and the start of the next, near each other: parity once.
        let io = world.io_of_write(Lba(CHUNK / 512 - 8), 2 * BLOCK).await;
        assert_eq!(io, (4, 4));
    });
}

#[test]
fn a_degraded_stripe_is_read_once_for_all_that_is_wanted_of_it() {
    // The second member has the first chunk of the first stripe.
    with_array(Level::Raid6, 10, &[1], |world| async move {
        assert_eq!(world.io_of_read(Lba(0), BLOCK).await, 8);
        assert_eq!(world.io_of_read(Lba(0), 8 * CHUNK as usize).await, 8);
        assert_eq!(world.io_of_read(Lba(CHUNK / 512), BLOCK).await, 1);
        // The new content of a lost chunk goes into the parities alone.
        assert_eq!(world.io_of_write(Lba(0), BLOCK).await, (7, 2));
    });
}

#[test]
fn copies_share_the_reads() {
    with_array(Level::Raid1, 2, &[], |world| async move {
        for row in 0..64 {
            world.array.read(Lba(row * CHUNK / 512), Buf::new(BLOCK)).await.expect("read");
        }
        let reads: Vec<u64> = world.watches.iter().map(|watch| watch.reads.get()).collect();
        assert_eq!(reads, [32, 32]);
    });
}
