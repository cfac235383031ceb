//! Members without space: files of one full file system, or thin volumes of one full pool.

use voltier_array::{Array, AssembleOptions, Consistency, Level, MemberIndex, MemberState};
use voltier_block::IoError;

use crate::durable::drive::Drive;
use crate::durable::world::{World, made, read, with_drives, write};

const SECOND_NS: u64 = 1_000_000_000;
const PLAIN: AssembleOptions = AssembleOptions { force: false, degraded: false };
const MODES: [Consistency; 2] = [Consistency::Bitmap, Consistency::Journal];
const SHAPES: [(Level, usize); 3] = [(Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 4)];

fn set_full(world: &World, is_full: bool) {
    world.drives.iter().for_each(|drive| drive.is_full.set(is_full));
}

fn are_all_online(array: &Array<Drive>, members: usize) -> bool {
    (0..members).all(|member| array.is_online(MemberIndex(member)))
}

#[test]
fn a_member_that_has_no_room_for_a_moment_is_waited_for() {
    for ((level, members), how) in SHAPES.iter().flat_map(|shape| MODES.map(|how| (*shape, how))) {
        with_drives(members, move |world| async move {
            let array = made(&world, level, members, how).await;
            write(&array, 0, 1).await.expect("write");
            set_full(&world, true);
            let own = array.clone();
            let written = world.handle.spawn(async move { write(&own, 0, 2).await });
            world.handle.sleep(SECOND_NS).await;
            set_full(&world, false);
            assert_eq!(written.await, Ok(()), "{level} {how:?}");
            assert!(are_all_online(&array, members), "{level} {how:?}");
            assert_eq!(read(&array, 0).await, Ok(2));
            array.stop().await.expect("stop");
        });
    }
}

#[test]
fn members_that_have_no_room_together_are_kept_and_the_write_fails() {
    for ((level, members), how) in SHAPES.iter().flat_map(|shape| MODES.map(|how| (*shape, how))) {
        with_drives(members, move |world| async move {
            let array = made(&world, level, members, how).await;
            write(&array, 0, 1).await.expect("write");
            set_full(&world, true);
            assert_eq!(write(&array, 0, 2).await, Err(IoError::NoSpace), "{level} {how:?}");
            // A region that was never written must be made zero first.
            assert!(write(&array, 900, 2).await.is_err(), "{level} {how:?}");
            assert!(are_all_online(&array, members), "{level} {how:?}");
            set_full(&world, false);
            // Without a journal the parity of the stripe is made anew; with one the write is redone.
            let _ = array.stop().await;
            drop(array);
            let order: Vec<usize> = (0..members).collect();
            let started = world.assemble(&order, PLAIN).await;
            let (array, _) = started.unwrap_or_else(|error| panic!("{level} {how:?}: {error}"));
            world.handle.sleep(10 * SECOND_NS).await;
            assert!(are_all_online(&array, members), "{level} {how:?}");
            assert!(matches!(read(&array, 0).await, Ok(1 | 2)), "{level} {how:?}");
            write(&array, 0, 3).await.expect("there is room");
            array.fail(MemberIndex(0)).expect("one may go");
            assert_eq!(read(&array, 0).await, Ok(3), "{level} {how:?}");
        });
    }
}

#[test]
fn one_member_alone_without_room_is_lost_in_the_end() {
    for ((level, members), how) in SHAPES.iter().flat_map(|shape| MODES.map(|how| (*shape, how))) {
        with_drives(members, move |world| async move {
            let array = made(&world, level, members, how).await;
            write(&array, 0, 1).await.expect("write");
            world.drives[1].is_full.set(true);
            for block in 0..40 {
                write(&array, block, 2).await.expect("the others have room");
            }
            let status = array.status().expect("it has one");
            assert_eq!(status.members[1].state, MemberState::Lost, "{level} {how:?}");
            assert_eq!(read(&array, 0).await, Ok(2));
        });
    }
}
