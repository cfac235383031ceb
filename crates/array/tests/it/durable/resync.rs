//! Regions whose parity may not match after a crash, where blocks cannot be read.

use voltier_array::{
    Array, AssembleOptions, Consistency, HealthPolicy, Level, MemberIndex, MemberState,
    StripeNumber, StripeSlot,
};
use voltier_block::{MIB, SECTOR_BYTES};

use crate::durable::drive::{Drive, Medium};
use crate::durable::world::{World, made, on_media, read, write};

const SECOND_NS: u64 = 1_000_000_000;
const PLAIN: AssembleOptions = AssembleOptions { force: false, degraded: false };
/// The first sector of the chunks on every member: labels and map are before.
const FIRST_CHUNK: u64 = MIB / SECTOR_BYTES;

/// An array that was written, and killed.
fn killed(level: Level, members: usize) -> Vec<Medium> {
    on_media(vec![Medium::default(); members], move |world| async move {
        let array = made(&world, level, members, Consistency::Bitmap).await;
        for block in 0..100 {
            write(&array, block, 1).await.expect("write");
        }
        world.media()
    })
}

async fn assemble(world: &World) -> Array<Drive> {
    let order: Vec<usize> = (0..world.drives.len()).collect();
    world.assemble(&order, PLAIN).await.expect("all are there").0
}

fn to_resync(array: &Array<Drive>) -> u64 {
    array.status().expect("it has one").regions_to_resync
}

fn make_unreadable(drive: &Drive) {
    drive.unreadable.borrow_mut().extend(FIRST_CHUNK..FIRST_CHUNK + 8);
}

#[test]
fn a_region_that_cannot_be_made_right_is_tried_again() {
    on_media(killed(Level::Raid5, 3), |world| async move {
        world.drives[..2].iter().for_each(make_unreadable);
        let array = assemble(&world).await;
        world.handle.sleep(200 * SECOND_NS).await;
        assert_eq!(to_resync(&array), 1, "two blocks of one stripe are not there");
        world.drives[0].unreadable.borrow_mut().clear();
        world.handle.sleep(100 * SECOND_NS).await;
        assert_eq!(to_resync(&array), 0);
        array.stop().await.expect("stop");
        drop(array);
        let (_, report) = world.assemble(&[0, 1, 2], PLAIN).await.expect("all are there");
        assert!(report.was_clean && report.regions_to_resync == 0);
    });
}

#[test]
fn a_stop_does_not_wait_for_the_next_try() {
    on_media(killed(Level::Raid5, 3), |world| async move {
        world.drives[..2].iter().for_each(make_unreadable);
        let array = assemble(&world).await;
        world.handle.sleep(10 * SECOND_NS).await;
        let before = world.handle.now();
        array.stop().await.expect("stop");
        assert!(world.handle.now() - before < SECOND_NS);
        drop(array);
        let (_, report) = world.assemble(&[0, 1, 2], PLAIN).await.expect("all are there");
        assert!(!report.was_clean && report.regions_to_resync == 1);
    });
}

#[test]
fn an_unreadable_block_is_computed_and_the_rest_of_its_chunk_is_left_alone() {
    let media = killed(Level::Raid5, 3);
    let (data, parity) = on_media(media.clone(), |world| async move {
        let array = assemble(&world).await;
        let member = |slot| {
            let MemberIndex(member) = array.geometry().member_of(StripeNumber(0), StripeSlot(slot));
            member
        };
        (member(0), member(2))
    });
    on_media(media, move |world| async move {
        // The first block of the first chunk cannot be read. The parity of the second one does not match.
        make_unreadable(&world.drives[data]);
        let second = (FIRST_CHUNK + 8) * SECTOR_BYTES;
        world.drives[parity].medium.borrow_mut().overwrite(second, &[0x55; 100]);
        let array = assemble(&world).await;
        world.handle.sleep(10 * SECOND_NS).await;
        assert_eq!(to_resync(&array), 0);
        assert!(world.drives[data].unreadable.borrow().is_empty(), "it is written");
        assert_eq!(array.health(MemberIndex(data)).counts.repaired, 1);
        array.fail(MemberIndex(parity)).expect("one may go");
        for block in 0..100 {
            assert_eq!(read(&array, block).await, Ok(1), "block {block}");
        }
    });
}

#[test]
fn a_member_of_another_group_than_the_one_that_may_not_match_is_given_up() {
    on_media(killed(Level::Raid50 { group: 3 }, 6), |world| async move {
        world.drives[..2].iter().for_each(make_unreadable);
        let array = assemble(&world).await;
        let policy = HealthPolicy { deadline_ns: SECOND_NS, ..HealthPolicy::default() };
        array.set_health_policy(policy);
        world.handle.sleep(10 * SECOND_NS).await;
        assert_eq!(to_resync(&array), 1);
        world.drives[4].set_hung(true);
        let own = array.clone();
        let written = world.handle.spawn(async move {
            for block in 0..200 {
                // Writes to the stripe that cannot be read may fail.
                _ = write(&own, block, 2).await;
            }
        });
        world.handle.sleep(10 * SECOND_NS).await;
        let status = array.status().expect("it has one");
        assert_eq!(status.members[4].state, MemberState::Lost);
        written.await;
        // Of the first group nobody is given up.
        world.drives[2].set_hung(true);
        let own = array.clone();
        drop(world.handle.spawn(async move { _ = write(&own, 0, 3).await }));
        world.handle.sleep(10 * SECOND_NS).await;
        let status = array.status().expect("it has one");
        assert!(status.is_waiting && status.members[2].state == MemberState::InService);
    });
}
