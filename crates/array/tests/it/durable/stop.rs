//! Stops beside requests under way: no region is called clean in which a member may not have its part yet.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use voltier_array::{
    Array, ArrayError, AssembleOptions, BackgroundTask, Consistency, Level, MemberState,
    ScrubRepair, StripeNumber, StripeSlot,
};
use voltier_block::{DriveControl, IoError};

use crate::durable::drive::Drive;
use crate::durable::world::{World, made, read, with_drives, write};

const PLAIN: AssembleOptions = AssembleOptions { force: false, degraded: false };
const SECOND_NS: u64 = 1_000_000_000;
/// A block of the second chunk of the first stripe.
const SECOND: u64 = 16;

/// The member of a slot of the first stripe.
fn member(array: &Array<Drive>, slot: usize) -> usize {
    array.geometry().member_of(StripeNumber(0), StripeSlot(slot)).0
}

/// Blocks that a scrub of the array on these drives finds not to match.
async fn mismatches(world: &World) -> u64 {
    let (array, _) = world.assemble(&[0, 1, 2], PLAIN).await.expect("all are there");
    world.handle.sleep(20 * SECOND_NS).await;
    array.scrub(ScrubRepair::Nothing).expect("none is running");
    array.ended(BackgroundTask::Scrub).await;
    let status = array.scrub_status();
    assert_eq!(read(&array, 0).await, Ok(2), "{status:?}");
    status.counts.mismatched_blocks
}

/// A write of which the member with the parity has not done its part.
async fn begin(world: &World, array: &Array<Drive>) {
    {
        let mut write = pin!(write(array, 0, 2));
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            assert!(write.as_mut().poll(&mut context).is_pending());
        }
        // Nobody waits for the write any more.
    }
    world.handle.sleep(SECOND_NS / 1_000).await;
}

#[test]
fn a_stop_waits_for_a_write_that_nobody_waits_for() {
    with_drives(3, |world| async move {
        let array = made(&world, Level::Raid5, 3, Consistency::Bitmap).await;
        write(&array, 0, 1).await.expect("write");
        let parity = world.drives[member(&array, 2)].clone();
        parity.set_holds_writes(true);
        begin(&world, &array).await;
        assert!(parity.under_way().count() > 0, "the parity is on its way");
        assert_eq!(array.under_way().count(), 1, "whoever stands on the array can wait for it");
        let (stopping, handle) = (array.clone(), world.handle.clone());
        let stop = handle.spawn(async move { stopping.stop().await });
        world.handle.sleep(SECOND_NS).await;
        parity.set_holds_writes(false);
        stop.await.expect("stop");
        let under_way: usize = world.drives.iter().map(|it| it.under_way().count()).sum();
        assert_eq!((under_way, array.under_way().count()), (0, 0));
        assert_eq!(write(&array, 0, 3).await, Err(IoError::Gone));
        drop(array);
        assert_eq!(mismatches(&world).await, 0);
    });
}

#[test]
fn an_array_that_is_given_up_above_loses_no_member() {
    with_drives(3, |world| async move {
        let array = made(&world, Level::Raid5, 3, Consistency::Bitmap).await;
        write(&array, 0, 1).await.expect("write");
        array.abandon();
        array.forget_failed_flush();
        write(&array, 0, 2).await.expect("write");
        assert_eq!(read(&array, 0).await, Ok(2));
        let status = array.status().expect("it is a durable one");
        assert!(
            status.members.iter().all(|member| member.state == MemberState::InService),
            "{status:?}"
        );
        array.stop().await.expect("stop");
    });
}

#[test]
fn a_stop_calls_no_region_clean_in_which_a_write_does_not_end() {
    with_drives(3, |world| async move {
        let array = made(&world, Level::Raid5, 3, Consistency::Bitmap).await;
        write(&array, 0, 1).await.expect("write");
        let parity = world.drives[member(&array, 2)].clone();
        parity.lost_requests.set(1);
        begin(&world, &array).await;
        // Two members do not answer, and the array cannot do without both.
        world.drives[member(&array, 1)].set_hung(true);
        let reading = array.clone();
        drop(world.handle.spawn(async move { read(&reading, SECOND).await }));
        let began_ns = world.handle.now();
        assert_eq!(array.stop().await, Err(ArrayError::Io(IoError::Gone)));
        assert!(world.handle.now() - began_ns <= 2 * array.patience_ns(), "in bounded time");
        drop(array);
        let world = World::new(&world.handle, world.media(), None, 2);
        let (array, report) = world.assemble(&[0, 1, 2], PLAIN).await.expect("all are there");
        assert!(!report.was_clean && report.regions_to_resync == 1, "{report:?}");
        world.handle.sleep(20 * SECOND_NS).await;
        array.stop().await.expect("stop");
        drop(array);
        assert_eq!(mismatches(&world).await, 0);
    });
}
