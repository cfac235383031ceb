//! Scrub: a block that was changed on a member is found and put right, and it alone.

use voltier_array::{
    BackgroundTask, Geometry, Layout, Level, MemberIndex, ScrubFinding, ScrubRepair, ScrubStatus,
    StripeNumber, StripeSlot,
};
use voltier_block::{
    BlockDevice, Buf, Bytes, Durability, KIB, Lba, MIB, Prng, SECTOR_BYTES, SectorRange,
};
use voltier_ring::{Executor, Handle, NoFiles};

use crate::array::world::World;

const CHUNK_BYTES: u64 = 32 * KIB;
const MEMBER_BYTES: u64 = MIB + 2 * CHUNK_BYTES;

async fn filled(
    handle: &Handle,
    level: Level,
    members: usize,
    block_bytes: u32,
) -> (World, Vec<u8>) {
    let sectors = MEMBER_BYTES / SECTOR_BYTES;
    let layout = Layout::default();
    let geometry = Geometry::new(level, layout, members, CHUNK_BYTES, sectors).expect("possible");
    let world = World::new(handle, &geometry, block_bytes, &[], 5);
    let mut volume = vec![0; (geometry.sectors() * SECTOR_BYTES) as usize];
    Prng::new(11).fill(&mut volume);
    let stripe = (geometry.stripe_sectors() * SECTOR_BYTES) as usize;
    for (index, piece) in volume.chunks(stripe).enumerate() {
        let data = Bytes::copy_of(piece);
        let at = Lba::from_bytes((index * stripe) as u64);
        world.array.write(at, data.into(), Durability::Cached).await.expect("write");
    }
    (world, volume)
}

async fn scrubbed(world: &World, repair: ScrubRepair) -> ScrubStatus {
    world.array.scrub(repair).expect("none is running");
    assert!(world.array.scrub(repair).is_err(), "one at a time");
    world.array.ended(BackgroundTask::Scrub).await;
    world.array.scrub_status()
}

fn in_virtual_time<F: Future<Output = ()> + 'static>(test: impl FnOnce(Handle) -> F) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let run = test(executor.handle());
    executor.block_on(run);
}

async fn media(world: &World) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for medium in &world.media {
        let bytes = medium.read(Lba(0), Buf::new(MEMBER_BYTES as usize)).await.expect("memory");
        all.push(bytes.to_vec());
    }
    all
}

/// A flipped byte on each member, one after the other, is the only thing found and the only one changed.
fn each_member(level: Level, members: usize, block_bytes: u32) {
    in_virtual_time(|handle| async move {
        let (world, volume) = filled(&handle, level, members, block_bytes).await;
        let before = media(&world).await;
        let mut dice = Prng::new(members as u64);
        let block = u64::from(block_bytes);
        for member in 0..members {
            let at = dice.below(MEMBER_BYTES);
            world.flip(member, at).await;
            let found = scrubbed(&world, ScrubRepair::Nothing).await;
            assert_eq!(
                (found.counts.located_blocks, found.counts.repaired_blocks),
                (1, 0),
                "{level} {member}"
            );
            assert!(media(&world).await != before, "it only looked");
            let writes: Vec<u64> = world.watches.iter().map(|it| it.writes.get()).collect();
            let found = scrubbed(&world, ScrubRepair::RewriteData).await;
            let sectors = SectorRange::from_bytes(at / block * block, block);
            let group = member / world.array.geometry().width();
            let expected = ScrubFinding { member: Some(member), sectors, group, is_repaired: true };
            assert_eq!(found.findings, [expected]);
            assert_eq!((found.counts.mismatched_blocks, found.counts.repaired_blocks), (1, 1));
            assert_eq!(found.blocks_by_member[member], 1);
            for (index, (watch, before)) in world.watches.iter().zip(writes).enumerate() {
                let written = watch.writes.get() - before;
                assert_eq!(written, u64::from(index == member), "the wrong block alone");
            }
            assert!(media(&world).await == before);
            let progress = found.progress;
            assert_eq!(progress.done_bytes, progress.total_bytes);
            assert_eq!(progress.total_bytes, MEMBER_BYTES * members as u64);
        }
        let found = scrubbed(&world, ScrubRepair::Everything).await;
        assert_eq!((found.counts.mismatched_blocks, found.counts.skipped_bytes), (0, 0));
        world.check_stripes(&volume).await;
    });
}

#[test]
fn a_flipped_block_of_any_member_is_located_and_it_alone_rewritten() {
    each_member(Level::Raid6, 4, 512);
    each_member(Level::Raid6, 6, 4096);
    each_member(Level::Raid60 { group: 4 }, 8, 512);
    each_member(Level::Raid7_3, 6, 512);
    each_member(Level::Raid70 { group: 5 }, 10, 4096);
    each_member(Level::NPlusM { data: 4, parity: 2 }, 6, 512);
    each_member(Level::NPlusM { data: 3, parity: 4 }, 7, 512);
    each_member(Level::Raid1, 3, 512);
    each_member(Level::Raid1, 4, 4096);
}

#[test]
fn with_one_parity_or_two_copies_a_mismatch_is_reported_and_repaired_only_by_choice() {
    let levels = [
        (Level::Raid5, 4),
        (Level::Raid50 { group: 3 }, 6),
        (Level::Raid1, 2),
        (Level::Raid10, 4),
        (Level::NPlusM { data: 3, parity: 1 }, 4),
    ];
    for (level, members) in levels {
        in_virtual_time(|handle| async move {
            let (world, _) = filled(&handle, level, members, 512).await;
            world.flip(1, 77_000).await;
            let flipped = media(&world).await;
            let found = scrubbed(&world, ScrubRepair::Located).await;
            let counts = [
                found.counts.mismatched_blocks,
                found.counts.located_blocks,
                found.counts.repaired_blocks,
            ];
            assert_eq!(counts, [1, 0, 0], "{level}");
            assert_eq!(found.findings[0].member, None);
            assert_eq!(found.findings[0].sectors, SectorRange::new(Lba(77_000 / 512), 1));
            assert!(media(&world).await == flipped);
            let found = scrubbed(&world, ScrubRepair::Everything).await;
            assert_eq!((found.counts.mismatched_blocks, found.counts.repaired_blocks), (1, 1));
            let found = scrubbed(&world, ScrubRepair::Nothing).await;
            assert_eq!(found.counts.mismatched_blocks, 0);
        });
    }
}

#[test]
fn blocks_of_several_members_in_one_stripe_are_each_put_right() {
    in_virtual_time(|handle| async move {
        let (world, volume) = filled(&handle, Level::Raid6, 6, 512).await;
        for member in 0..6 {
            world.flip(member, 512 * (member as u64 + 3)).await;
        }
        let found = scrubbed(&world, ScrubRepair::RewriteData).await;
        assert_eq!(found.blocks_by_member, [1; 6]);
        world.check_stripes(&volume).await;
        // Two in the same block: with two parities that is one too many, with three it is noticed.
        let (world, _) = filled(&handle, Level::Raid7_3, 6, 512).await;
        world.flip(0, 600).await;
        world.flip(2, 600).await;
        let found = scrubbed(&world, ScrubRepair::RewriteData).await;
        assert_eq!((found.counts.mismatched_blocks, found.counts.located_blocks), (1, 0));
    });
}

#[test]
fn medium_errors_are_computed_and_written() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid1, 2), (Level::Raid6, 5)] {
        in_virtual_time(|handle| async move {
            let (world, volume) = filled(&handle, level, members, 512).await;
            world.watches[0].bad.borrow_mut().extend([3, 90, 1000]);
            // At other places of the same chunks: each piece can be computed.
            world.watches[1].bad.borrow_mut().extend([40, 1020]);
            let found = scrubbed(&world, ScrubRepair::Nothing).await;
            assert_eq!(
                (found.counts.mismatched_blocks, found.counts.lost_stripes),
                (0, 0),
                "{level}"
            );
            assert!(found.counts.unreadable_stripes >= 3);
            assert!(world.watches.iter().all(|watch| watch.bad.borrow().is_empty()));
            world.check_stripes(&volume).await;
        });
    }
    in_virtual_time(|handle| async move {
        let (world, _) = filled(&handle, Level::Raid5, 4, 512).await;
        for member in [0, 1] {
            world.watches[member].bad.borrow_mut().insert(9);
        }
        let found = scrubbed(&world, ScrubRepair::RewriteData).await;
        assert_eq!((found.counts.unreadable_stripes, found.counts.lost_stripes), (1, 1));
    });
}

#[test]
fn writers_go_on_beside_a_scrub_and_nothing_of_theirs_is_called_wrong() {
    in_virtual_time(|handle| async move {
        let (world, mut volume) = filled(&handle, Level::Raid6, 5, 512).await;
        world.array.scrub(ScrubRepair::Everything).expect("none is running");
        let mut dice = Prng::new(3);
        let sectors = world.array.geometry().sectors();
        while world.array.scrub_status().progress.is_running {
            let count = 1 + dice.below(20);
            let at = dice.below(sectors - count);
            let mut bytes = vec![0; count as usize * 512];
            dice.fill(&mut bytes);
            let data = Bytes::copy_of(&bytes);
            world.array.write(Lba(at), data.into(), Durability::Cached).await.expect("write");
            volume[at as usize * 512..][..bytes.len()].copy_from_slice(&bytes);
        }
        assert_eq!(world.array.scrub_status().counts.mismatched_blocks, 0);
        world.check_stripes(&volume).await;
        // A group that lacks a member is left out, and that is said.
        world.array.fail(MemberIndex(2)).expect("one may go");
        let found = scrubbed(&world, ScrubRepair::RewriteData).await;
        assert_eq!(found.counts.skipped_bytes, MEMBER_BYTES * 5);
    });
}

/// A block of data has bit rot. A client overwrites it by read-modify-write (the stripe is wide), and scrubs
/// follow.
fn overwritten_bit_rot(level: Level, members: usize) {
    in_virtual_time(|handle| async move {
        let (world, _) = filled(&handle, level, members, 512).await;
        // The first block of the first chunk of data.
        let member = world.array.geometry().member_of(StripeNumber(0), StripeSlot(0));
        world.flip(member.0, 100).await;
        let new = vec![0x5a; 512];
        let data = Bytes::copy_of(&new);
        world.array.write(Lba(0), data.into(), Durability::Cached).await.expect("write");
        for repair in [ScrubRepair::Located, ScrubRepair::Everything] {
            let found = scrubbed(&world, repair).await;
            let counts = [
                found.counts.mismatched_blocks,
                found.counts.repaired_blocks,
                found.counts.left_blocks,
            ];
            assert_eq!(counts, [1, 0, 1], "{level}");
            let read = world.array.read(Lba(0), Buf::new(512)).await.expect("read");
            assert_eq!(read[..], new[..], "{level}: acknowledged data");
        }
    });
}

#[test]
fn what_a_client_wrote_over_a_block_with_bit_rot_survives_a_scrub() {
    overwritten_bit_rot(Level::Raid6, 8);
    overwritten_bit_rot(Level::Raid7_3, 11);
    overwritten_bit_rot(Level::NPlusM { data: 6, parity: 2 }, 8);
}

#[test]
fn a_default_scrub_rewrites_data_where_nobody_wrote_since_they_matched() {
    in_virtual_time(|handle| async move {
        let (world, volume) = filled(&handle, Level::Raid6, 6, 512).await;
        assert_eq!(scrubbed(&world, ScrubRepair::Located).await.counts.mismatched_blocks, 0);
        world.flip(2, 77_000).await;
        let found = scrubbed(&world, ScrubRepair::Nothing).await;
        assert_eq!((found.counts.mismatched_blocks, found.counts.repaired_blocks), (1, 0));
        let found = scrubbed(&world, ScrubRepair::Located).await;
        assert_eq!(
            (found.counts.repaired_blocks, found.counts.left_blocks),
            (1, 0),
            "counting changes nothing"
        );
        world.check_stripes(&volume).await;
        // The region was written: the next one is left.
        let same = Bytes::copy_of(&volume[..512]);
        world.array.write(Lba(0), same.into(), Durability::Cached).await.expect("write");
        let member = world.array.geometry().member_of(StripeNumber(1), StripeSlot(0));
        world.flip(member.0, CHUNK_BYTES + 7).await;
        let found = scrubbed(&world, ScrubRepair::Located).await;
        assert_eq!(
            (found.counts.located_blocks, found.counts.repaired_blocks, found.counts.left_blocks),
            (1, 0, 1)
        );
        let found = scrubbed(&world, ScrubRepair::RewriteData).await;
        assert_eq!((found.counts.repaired_blocks, found.counts.left_blocks), (1, 0));
        world.check_stripes(&volume).await;
    });
}
