//! Drives that do not answer while an array is made or put in service. The start ends: without them, if the
//! others are enough, or with an error.

use std::cell::RefCell;
use std::rc::Rc;

use voltier_array::{
    Array, ArrayError, AssembleOptions, AssembleReport, Consistency, Level, MemberIndex,
    MemberState, MetadataError,
};
use voltier_ring::JoinHandle;

use crate::durable::crash::made as made_and_stopped;
use crate::durable::drive::{Drive, Medium};
use crate::durable::world::{World, made, on_media, options, read, with_drives, write};

const SECOND_NS: u64 = 1_000_000_000;
const PLAIN: AssembleOptions = AssembleOptions { force: false, degraded: false };

/// Something that a drive takes and never ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hang {
    Flushes,
    Writes,
}

impl Hang {
    fn set(self, drive: &Drive, hangs: bool) {
        match self {
            Self::Flushes => drive.set_holds_flushes(hangs),
            Self::Writes => drive.set_holds_writes(hangs),
        }
    }
}

/// The outcome of a request that may hang, a while later.
async fn in_time<T: 'static>(world: &World, request: impl Future<Output = T> + 'static) -> T {
    let end = Rc::new(RefCell::new(None));
    let ended = end.clone();
    let task: JoinHandle<()> =
        world.handle.spawn(async move { _ = ended.replace(Some(request.await)) });
    drop(task);
    // Several deadlines, one behind the other.
    world.handle.sleep(500 * SECOND_NS).await;
    end.take().expect("it stands still")
}

type Assembled = Result<(Array<Drive>, AssembleReport), ArrayError>;

async fn assemble(world: &World, members: usize) -> Assembled {
    let own = world.clone();
    in_time(world, async move {
        let order: Vec<usize> = (0..members).collect();
        own.assemble(&order, PLAIN).await
    })
    .await
}

/// An array with something on it: stopped, or killed.
fn left(level: Level, members: usize, how: Consistency, is_stopped: bool) -> Vec<Medium> {
    on_media(vec![Medium::default(); members], move |world| async move {
        let array = made(&world, level, members, how).await;
        for block in 0..100 {
            write(&array, block, 1).await.expect("write");
        }
        if is_stopped {
            array.stop().await.expect("stop");
        }
        world.media()
    })
}

#[test]
fn an_array_starts_without_a_member_that_hangs_in_a_flush_or_a_write() {
    let modes = [Consistency::Bitmap, Consistency::Journal];
    let cases = [(Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 4)];
    let all = cases.iter().flat_map(|case| modes.map(|how| (*case, how)));
    for ((level, members), how) in all {
        for hang in [Hang::Flushes, Hang::Writes] {
            on_media(left(level, members, how, true), move |world| async move {
                hang.set(&world.drives[1], true);
                let started = assemble(&world, members).await;
                let (array, _) =
                    started.unwrap_or_else(|error| panic!("{level} {hang:?}: {error}"));
                let status = array.status().expect("it has one");
                assert_eq!(status.members[1].state, MemberState::Lost, "{level} {hang:?}");
                assert!(status.members[1].health.counts.undrained_requests > 0, "{level} {hang:?}");
                write(&array, 1, 2).await.expect("write");
                assert_eq!((read(&array, 0).await, read(&array, 1).await), (Ok(1), Ok(2)));
                array.stop().await.expect("stop");
                // The drive ends what it has; what it says then is old.
                hang.set(&world.drives[1], false);
                world.handle.sleep(SECOND_NS).await;
                drop(array);
                let (array, report) = assemble(&world, members).await.expect("enough");
                assert_eq!(report.left_out.len(), 1, "{level} {hang:?}");
                assert_eq!(read(&array, 1).await, Ok(2));
            });
        }
    }
}

#[test]
fn a_start_ends_when_more_hang_than_can_be_lost_and_nobody_is_lost_by_that() {
    for hang in [Hang::Flushes, Hang::Writes] {
        for how in [Consistency::Bitmap, Consistency::Journal] {
            on_media(left(Level::Raid6, 5, how, false), move |world| async move {
                world.drives[1..4].iter().for_each(|drive| hang.set(drive, true));
                let error = assemble(&world, 5).await.err();
                let members = vec![1, 2, 3];
                assert_eq!(error, Some(ArrayError::Silent { members }), "{hang:?} {how:?}");
                world.drives.iter().for_each(|drive| hang.set(drive, false));
                world.handle.sleep(SECOND_NS).await;
                let (array, report) = assemble(&world, 5).await.expect("all are well");
                assert!(report.now_lost.is_empty() && report.left_out.is_empty(), "{report:?}");
                assert!(
                    (0..5).all(|member| array.is_online(MemberIndex(member))),
                    "{hang:?} {how:?}"
                );
                assert_eq!(read(&array, 99).await, Ok(1));
            });
        }
    }
}

#[test]
fn a_member_that_only_can_tell_what_fits_is_not_given_up_by_a_start() {
    for hang in [Hang::Flushes, Hang::Writes] {
        let media = left(Level::Raid5, 3, Consistency::Bitmap, false);
        on_media(media, move |world| async move {
            hang.set(&world.drives[1], true);
            let error = assemble(&world, 3).await.err();
            let expected = match hang {
                Hang::Writes => ArrayError::Silent { members: vec![1] },
                Hang::Flushes => {
                    let (regions, missing) = (1, vec![1]);
                    MetadataError::DirtyDegraded { regions, missing }.into()
                }
            };
            assert_eq!(error, Some(expected));
            hang.set(&world.drives[1], false);
            world.handle.sleep(SECOND_NS).await;
            let (array, _) = assemble(&world, 3).await.expect("all are well");
            assert!(array.is_online(MemberIndex(1)));
            assert_eq!(read(&array, 99).await, Ok(1));
        });
    }
}

#[test]
fn a_member_that_does_not_flush_counts_as_missing_where_only_it_can_tell_what_fits() {
    let media = left(Level::Raid5, 3, Consistency::Bitmap, false);
    on_media(media, |world| async move {
        world.drives[1].refuses_flushes.set(true);
        let error = assemble(&world, 3).await.err();
        let expected = MetadataError::DirtyDegraded { regions: 1, missing: vec![1] };
        assert_eq!(error, Some(expected.into()));
    });
}

#[test]
fn the_making_of_an_array_ends_when_a_drive_hangs() {
    for (level, how) in [(Level::Raid0, Consistency::None), (Level::Raid6, Consistency::Journal)] {
        for hang in [Hang::Flushes, Hang::Writes] {
            with_drives(4, move |world| async move {
                hang.set(&world.drives[2], true);
                let own = world.clone();
                let made =
                    in_time(
                        &world,
                        async move { own.try_create(&options(level, 4, how)).await.err() },
                    );
                assert!(made.await.is_some(), "{level} {hang:?}");
            });
        }
    }
}

#[test]
fn a_start_without_a_journal_records_what_a_read_finds_to_be_lost_later() {
    let media = left(Level::Raid5, 3, Consistency::Bitmap, false);
    on_media(media, |world| async move {
        let (array, _) = assemble(&world, 3).await.expect("all");
        while array.status().is_some_and(|status| status.regions_to_resync > 0) {
            world.handle.sleep(SECOND_NS).await;
        }
        world.drives[1].is_gone.set(true);
        for block in 0..100 {
            assert_eq!(read(&array, block).await, Ok(1));
        }
        world.handle.sleep(SECOND_NS).await;
        let found = Array::examine(&world.drives[0]).await.expect("whole").expect("a member");
        assert_eq!(found.array.members[1].state, MemberState::Lost);
    });
}

#[test]
fn a_deadline_of_its_own_holds_for_a_start() {
    on_media(made_and_stopped(Level::Raid1, 2, Consistency::Bitmap), |world| async move {
        world.drives[1].set_holds_flushes(true);
        let before = world.handle.now();
        let drives = world.drives.clone();
        let started = Array::assemble_within(&world.handle, drives, PLAIN, SECOND_NS).await;
        assert!(started.is_ok_and(|(array, _)| !array.is_online(MemberIndex(1))));
        assert!(world.handle.now() - before < 2 * SECOND_NS);
    });
}
