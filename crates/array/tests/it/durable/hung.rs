//! Members that do not answer. Nobody waits for ever as long as the others can do without them. The array
//! gives no member up whose cause may be a common one.

use std::cell::Cell;
use std::rc::Rc;

use voltier_array::{
    Array, ArrayError, BackgroundTask, Consistency, HealthNews, HealthPolicy, JournalState, Level,
    MemberIndex, MemberState, Pace, Priority, ReplaceError, Replacement,
};
use voltier_block::{BlockDevice, IoResult};
use voltier_ring::JoinHandle;

use crate::durable::drive::Drive;
use crate::durable::world::{World, made, options, read, with_drives, write};

const SECOND_NS: u64 = 1_000_000_000;
/// The deadline of these arrays, in seconds.
const DEADLINE_S: u64 = 10;
/// When a member that hangs is out at the latest: requests may begin just after a tick.
const OUT_S: u64 = DEADLINE_S + DEADLINE_S / 2;
const UUID: [u8; 16] = [0x99; 16];

async fn seconds(world: &World, seconds: u64) {
    world.handle.sleep(seconds * SECOND_NS).await;
}

fn set_deadline(array: &Array<Drive>, deadline_s: u64) {
    let deadline_ns = deadline_s * SECOND_NS;
    array.set_health_policy(HealthPolicy { deadline_ns, ..HealthPolicy::default() });
}

/// An array that was written everywhere it is used here.
async fn written(world: &World, level: Level, members: usize, how: Consistency) -> Array<Drive> {
    let array = made(world, level, members, how).await;
    set_deadline(&array, DEADLINE_S);
    for block in 0..200 {
        write(&array, block, 1).await.expect("write");
    }
    array
}

fn state(array: &Array<Drive>, member: usize) -> MemberState {
    array.status().expect("it has one").members[member].state
}

fn undrained(array: &Array<Drive>, member: usize) -> u64 {
    array.status().expect("it has one").members[member].health.counts.undrained_requests
}

/// The end of a request that may hang.
struct Asked<T>(Rc<Cell<Option<T>>>);

impl<T: Copy + 'static> Asked<T> {
    fn of(world: &World, request: impl Future<Output = T> + 'static) -> Self {
        let end = Rc::new(Cell::new(None));
        let ended = end.clone();
        let task: JoinHandle<()> =
            world.handle.spawn(async move { ended.set(Some(request.await)) });
        drop(task);
        Self(end)
    }

    fn end(&self) -> Option<T> {
        self.0.get()
    }
}

fn reads(world: &World, array: &Array<Drive>, blocks: std::ops::Range<u64>) -> Asked<IoResult<u8>> {
    let array = array.clone();
    Asked::of(world, async move {
        for block in blocks.clone() {
            assert_eq!(read(&array, block).await?, 1);
        }
        Ok(1)
    })
}

fn writes(world: &World, array: &Array<Drive>, byte: u8) -> Asked<IoResult<()>> {
    let array = array.clone();
    Asked::of(world, async move {
        for block in 0..200 {
            write(&array, block, byte).await?;
        }
        Ok(())
    })
}

async fn holds(array: &Array<Drive>, byte: u8) {
    for block in 0..200 {
        assert_eq!(read(array, block).await, Ok(byte), "block {block}");
    }
}

const REDUNDANT: [(Level, usize); 4] =
    [(Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 4), (Level::Raid10, 4)];

#[test]
fn reads_of_a_member_that_hangs_are_served_by_the_others_after_the_deadline() {
    for (level, members) in REDUNDANT {
        with_drives(members, move |world| async move {
            let array = written(&world, level, members, Consistency::Bitmap).await;
            seconds(&world, 100).await;
            world.drives[1].set_hung(true);
            let asked = reads(&world, &array, 0..200);
            seconds(&world, DEADLINE_S - 1).await;
            assert_eq!((asked.end(), array.is_online(MemberIndex(1))), (None, true), "{level}");
            seconds(&world, OUT_S).await;
            assert_eq!((asked.end(), state(&array, 1)), (Some(Ok(1)), MemberState::Lost));
            let news = array.take_health_news();
            let [HealthNews::Hung { member: 1, waited_ns }] = news[..] else {
                panic!("{news:?}");
            };
            assert!((DEADLINE_S * SECOND_NS..OUT_S * SECOND_NS).contains(&waited_ns));
            assert!(undrained(&array, 1) > 0);
            assert!(!array.status().expect("it has one").is_waiting);
        });
    }
}

#[test]
fn a_write_is_acknowledged_without_a_member_that_hangs_when_its_loss_is_on_record() {
    for how in [Consistency::Bitmap, Consistency::Journal] {
        for (level, members) in REDUNDANT {
            with_drives(members, move |world| async move {
                let array = written(&world, level, members, how).await;
                world.drives[1].set_hung(true);
                let (own, first) = (array.clone(), world.drives[0].clone());
                let asked = Asked::of(&world, async move {
                    for block in 0..200 {
                        write(&own, block, 2).await.expect("write");
                        let found = Array::examine(&first).await.expect("whole").expect("one");
                        let is_lost = found.array.members[1].state == MemberState::Lost;
                        assert!(own.is_online(MemberIndex(1)) || is_lost);
                    }
                });
                seconds(&world, DEADLINE_S - 1).await;
                assert_eq!((asked.end(), array.is_online(MemberIndex(1))), (None, true), "{level}");
                seconds(&world, OUT_S).await;
                assert_eq!((asked.end(), state(&array, 1)), (Some(()), MemberState::Lost));
                holds(&array, 2).await;
                array.stop().await.expect("it stops");
            });
        }
    }
}

#[test]
fn two_of_two_parities_may_hang_and_a_third_one_is_waited_for() {
    with_drives(5, |world| async move {
        let array = written(&world, Level::Raid6, 5, Consistency::Journal).await;
        world.drives[0].set_hung(true);
        world.drives[3].set_hung(true);
        let asked = writes(&world, &array, 2);
        seconds(&world, 2 * OUT_S).await;
        assert_eq!(asked.end(), Some(Ok(())));
        assert_eq!(
            (array.is_online(MemberIndex(0)), array.is_online(MemberIndex(3))),
            (false, false)
        );
        holds(&array, 2).await;
        world.drives[1].set_hung(true);
        let asked = writes(&world, &array, 3);
        seconds(&world, 20 * DEADLINE_S).await;
        assert_eq!((asked.end(), array.is_online(MemberIndex(1))), (None, true));
        let status = array.status().expect("it has one");
        assert!(status.is_waiting && status.members[1].health.counts.unanswered_s > 0);
        assert_eq!(status.members[2].health.counts.unanswered_s, 0);
        world.drives[1].set_hung(false);
        seconds(&world, DEADLINE_S).await;
        assert_eq!(asked.end(), Some(Ok(())));
        assert!(!array.status().expect("it has one").is_waiting);
        holds(&array, 3).await;
        let news = array.take_health_news();
        let waits = |news: &&HealthNews| matches!(news, HealthNews::Waiting { members: 1, .. });
        assert_eq!(news.iter().filter(waits).count(), 1, "{news:?}");
        assert_eq!(news.last(), Some(&HealthNews::WaitingEnded));
    });
}

#[test]
fn without_a_deadline_nobody_is_said_to_wait() {
    with_drives(3, |world| async move {
        let array = written(&world, Level::Raid5, 3, Consistency::Bitmap).await;
        world.drives[..2].iter().for_each(|drive| drive.set_hung(true));
        let asked = writes(&world, &array, 2);
        seconds(&world, 2 * OUT_S).await;
        assert!(asked.end().is_none() && array.status().expect("it has one").is_waiting);
        set_deadline(&array, 0);
        assert!(!array.status().expect("it has one").is_waiting, "nobody judges that any more");
        world.drives[..2].iter().for_each(|drive| drive.set_hung(false));
        seconds(&world, OUT_S).await;
        assert_eq!(asked.end(), Some(Ok(())));
        // The judge that comes back finds nothing.
        set_deadline(&array, DEADLINE_S);
        holds(&array, 2).await;
        seconds(&world, OUT_S).await;
        assert!(!array.status().expect("it has one").is_waiting);
    });
}

#[test]
fn a_common_cause_ejects_nobody_and_its_end_gives_a_whole_deadline_more() {
    for (level, members) in REDUNDANT {
        with_drives(members, move |world| async move {
            let array = written(&world, level, members, Consistency::Bitmap).await;
            world.drives.iter().for_each(|drive| drive.set_hung(true));
            let asked = writes(&world, &array, 2);
            seconds(&world, 30 * DEADLINE_S).await;
            assert!(
                asked.end().is_none()
                    && (0..members).all(|member| array.is_online(MemberIndex(member)))
            );
            assert!(array.status().expect("it has one").is_waiting);
            // All are back but one.
            world.drives[1..].iter().for_each(|drive| drive.set_hung(false));
            seconds(&world, DEADLINE_S).await;
            assert!(array.is_online(MemberIndex(0)), "{level}: a whole deadline more");
            seconds(&world, OUT_S).await;
            assert!(
                !array.is_online(MemberIndex(0))
                    && (1..members).all(|member| array.is_online(MemberIndex(member)))
            );
            assert_eq!(asked.end(), Some(Ok(())));
            holds(&array, 2).await;
        });
    }
}

#[test]
fn members_at_rest_are_asked_before_one_is_blamed() {
    with_drives(2, |world| async move {
        let array = written(&world, Level::Raid1, 2, Consistency::Bitmap).await;
        seconds(&world, 100).await;
        world.drives.iter().for_each(|drive| drive.set_hung(true));
        // A single read: the other member has nothing to do.
        let asked = reads(&world, &array, 0..1);
        seconds(&world, 10 * DEADLINE_S).await;
        assert!(
            asked.end().is_none()
                && array.is_online(MemberIndex(0))
                && array.is_online(MemberIndex(1))
        );
        world.drives.iter().for_each(|drive| drive.set_hung(false));
        seconds(&world, 1).await;
        assert_eq!(asked.end(), Some(Ok(1)));
    });
}

#[test]
fn a_member_that_hung_comes_back_when_it_has_ended_everything() {
    for how in [Consistency::Bitmap, Consistency::Journal] {
        with_drives(3, move |world| async move {
            let array = written(&world, Level::Raid5, 3, how).await;
            world.drives[2].set_hung(true);
            let asked = writes(&world, &array, 2);
            seconds(&world, 2 * OUT_S).await;
            assert_eq!((asked.end(), array.is_online(MemberIndex(2))), (Some(Ok(())), false));
            let refused = array.replace(MemberIndex(2), world.drives[2].clone(), UUID).await;
            let is_right =
                matches!(refused, Err(ArrayError::Replace(ReplaceError::Undrained { .. })));
            assert!(is_right, "{refused:?}");
            assert!(array.restore_member(MemberIndex(2), world.drives[2].clone()).await.is_err());
            let spare = array.add_spare(world.drives[2].clone(), UUID);
            assert!(matches!(spare, Err(ArrayError::Replace(ReplaceError::Undrained { .. }))));
            // The drive's late writes land now, over regions that it lacks.
            world.drives[2].set_hung(false);
            seconds(&world, 1).await;
            assert_eq!(undrained(&array, 2), 0);
            let back = array.replace(MemberIndex(2), world.drives[2].clone(), UUID).await;
            assert!(matches!(back, Ok(Replacement::Return)), "{back:?}");
            array.ended(BackgroundTask::Rebuild).await;
            assert!(array.is_online(MemberIndex(2)));
            array.fail(MemberIndex(0)).expect("one may go");
            holds(&array, 2).await;
        });
    }
}

#[test]
fn a_device_that_hangs_while_it_is_filled_is_given_up_alone() {
    for is_copy in [false, true] {
        with_drives(5, move |world| async move {
            let array = written(&world, Level::Raid5, 4, Consistency::Journal).await;
            let slow = Pace { priority: Priority::Idle, floor_bytes_per_second: 1 << 16 };
            array.set_pace(BackgroundTask::Rebuild, slow);
            if !is_copy {
                array.fail(MemberIndex(1)).expect("one may go");
            }
            let begun = array.replace(MemberIndex(1), world.drives[4].clone(), UUID).await;
            assert!(begun.is_ok(), "{begun:?}");
            world.drives[4].set_hung(true);
            let asked = writes(&world, &array, 2);
            seconds(&world, 2 * OUT_S).await;
            assert_eq!(asked.end(), Some(Ok(())));
            assert_eq!(array.is_online(MemberIndex(1)), is_copy);
            assert!(!array.rebuild_status().progress.is_running);
            let news = array.take_health_news();
            let is_told = |news: &HealthNews| match *news {
                HealthNews::Hung { member, .. } => member == 1 && !is_copy,
                HealthNews::SuccessorHung { member, .. } => member == 1 && is_copy,
                _ => false,
            };
            assert!(news.iter().any(is_told), "{news:?}");
            holds(&array, 2).await;
        });
    }
}

#[test]
fn a_record_is_stored_although_a_member_hangs_meanwhile() {
    with_drives(4, |world| async move {
        let array = written(&world, Level::Raid6, 4, Consistency::Bitmap).await;
        // The superblocks about the first one go to the second one, too; and so does the map of a new region.
        world.drives[2].set_hung(true);
        array.fail(MemberIndex(0)).expect("two may go");
        let own = array.clone();
        let asked = Asked::of(&world, async move {
            write(&own, 900, 1).await?;
            own.flush().await
        });
        seconds(&world, 2 * OUT_S).await;
        assert_eq!((asked.end(), array.is_online(MemberIndex(2))), (Some(Ok(())), false));
        let found = Array::examine(&world.drives[1]).await.expect("whole").expect("a member");
        assert_eq!(found.array.members[2].state, MemberState::Lost);
    });
}

#[test]
fn a_journal_device_that_hangs_is_left_and_the_members_take_over() {
    with_drives(5, |world| async move {
        let options = options(Level::Raid5, 4, Consistency::Journal);
        let array = world.create_with_journal(&options).await.expect("possible");
        set_deadline(&array, DEADLINE_S);
        write(&array, 0, 1).await.expect("write");
        world.drives[4].set_hung(true);
        let asked = writes(&world, &array, 2);
        seconds(&world, 2 * OUT_S).await;
        assert_eq!(asked.end(), Some(Ok(())));
        let status = array.status().expect("it has one");
        assert_eq!(status.journal_device.map(|it| it.state), Some(JournalState::Lost));
        assert!((0..4).all(|member| array.is_online(MemberIndex(member))));
        let news = array.take_health_news();
        assert!(matches!(news[..], [HealthNews::JournalHung { .. }]), "{news:?}");
        let back = array.set_journal(Some((world.drives[4].clone(), UUID))).await;
        assert!(back.is_err(), "it has not ended what it was asked for");
    });
}

#[test]
fn one_lost_request_of_a_member_that_answers_others_has_several_deadlines() {
    with_drives(3, |world| async move {
        let array = written(&world, Level::Raid5, 3, Consistency::Bitmap).await;
        world.drives[1].lost_requests.set(1);
        let lost = writes(&world, &array, 1);
        let (own, handle) = (array.clone(), world.handle.clone());
        let asked = Asked::of(&world, async move {
            for block in 0..60 {
                handle.sleep(SECOND_NS).await;
                assert_eq!(read(&own, 600 + block % 3 * 128).await, Ok(0));
                write(&own, 900 + block, 1).await.expect("another stripe");
            }
        });
        seconds(&world, 2 * DEADLINE_S + DEADLINE_S / 2).await;
        assert!(lost.end().is_none() && array.is_online(MemberIndex(1)));
        seconds(&world, 2 * DEADLINE_S).await;
        assert!(lost.end().is_some() && !array.is_online(MemberIndex(1)));
        seconds(&world, 60).await;
        assert!(asked.end().is_some());
    });
}

#[test]
fn without_a_deadline_nobody_is_given_up_and_one_that_is_set_counts_from_then_on() {
    with_drives(3, |world| async move {
        let array = written(&world, Level::Raid5, 3, Consistency::Journal).await;
        set_deadline(&array, 0);
        world.drives[1].set_hung(true);
        let asked = writes(&world, &array, 2);
        seconds(&world, 3600).await;
        assert!(asked.end().is_none() && array.is_online(MemberIndex(1)));
        set_deadline(&array, DEADLINE_S);
        seconds(&world, DEADLINE_S - 1).await;
        assert!(array.is_online(MemberIndex(1)));
        seconds(&world, OUT_S).await;
        assert_eq!((asked.end(), array.is_online(MemberIndex(1))), (Some(Ok(())), false));
    });
}

#[test]
fn a_member_that_hangs_and_is_taken_out_by_hand_holds_nobody_up() {
    with_drives(3, |world| async move {
        let array = written(&world, Level::Raid5, 3, Consistency::Journal).await;
        world.drives[1].set_hung(true);
        let asked = writes(&world, &array, 2);
        seconds(&world, 1).await;
        assert!(asked.end().is_none());
        array.fail(MemberIndex(1)).expect("one may go");
        seconds(&world, 1).await;
        assert_eq!(asked.end(), Some(Ok(())));
        array.flush().await.expect("flush");
        array.stop().await.expect("stop");
    });
}

#[test]
fn a_new_member_that_hangs_while_it_is_wiped_keeps_no_request_waiting() {
    for is_row in [false, true] {
        with_drives(5, move |world| async move {
            let array = written(&world, Level::Raid5, 4, Consistency::Journal).await;
            world.drives[4].set_hung(true);
            let (own, new) = (array.clone(), world.drives[4].clone());
            let grown = Asked::of(&world, async move {
                let grown = match is_row {
                    true => own.grow(vec![new], &[UUID]).await,
                    false => own.grow_capacity(new, UUID).await,
                };
                grown.is_ok()
            });
            seconds(&world, 1).await;
            let asked = writes(&world, &array, 2);
            seconds(&world, 1).await;
            assert_eq!((grown.end(), asked.end()), (None, Some(Ok(()))));
            let again = array.grow(vec![world.drives[4].clone()], &[[0x98; 16]]).await;
            assert!(again.is_err(), "one at a time");
            seconds(&world, 2 * OUT_S).await;
            assert_eq!(grown.end(), Some(false));
            holds(&array, 2).await;
        });
    }
}
