//! Rebuilds of arrays with durable state: what is on record when, over restarts and power cuts.

use voltier_array::{
    Array, AssembleOptions, BackgroundTask, Consistency, Level, MemberIndex, MemberState,
    MetadataError, Pace, Priority, Replacement,
};
use voltier_block::BlockDevice;

use crate::durable::crash::{Facts, at_every_step};
use crate::durable::drive::Drive;
use crate::durable::world::{
    World, blocks, made, on_media, options, read, refused, with_drives, with_some_over, write,
};

const SECOND_NS: u64 = 1_000_000_000;
const PLAIN: AssembleOptions = AssembleOptions { force: false, degraded: false };
const FAST: Pace = Pace { priority: Priority::High, floor_bytes_per_second: 0 };
const NEW: [u8; 16] = [77; 16];

fn state(array: &Array<Drive>, member: usize) -> MemberState {
    array.status().expect("it has one").members[member].state
}

async fn on_record(world: &World, drive: usize, member: usize) -> (MemberState, [u8; 16]) {
    let found = Array::examine(&world.drives[drive]).await.expect("whole").expect("a member");
    let record = found.array.members[member];
    (record.state, record.uuid)
}

async fn check_without(world: &World, drives: &[usize], blocks: [u64; 6], byte: u8) {
    let media = world.media();
    let boot = World::new(&world.handle, media, None, 3);
    let either = AssembleOptions { degraded: true, ..PLAIN };
    let (array, _) = boot.assemble(drives, either).await.unwrap_or_else(|error| panic!("{error}"));
    for block in blocks {
        assert_eq!(read(&array, block).await, Ok(byte), "block {block} on {drives:?}");
    }
}

#[test]
fn a_replaced_member_is_on_record_as_rebuilding_then_in_service_and_the_old_one_stays_out() {
    for level in [Level::Raid1, Level::Raid5, Level::Raid6] {
        with_drives(5, move |world| async move {
            let (array, blocks) =
                (made(&world, level, 4, Consistency::Bitmap).await, blocks(level, 4));
            for block in blocks {
                write(&array, block, 1).await.expect("write");
            }
            array.fail(MemberIndex(1)).expect("one may go");
            for block in blocks {
                write(&array, block, 2).await.expect("write");
            }
            let event = array.status().expect("it has one").event;
            let idle = Pace { priority: Priority::Idle, floor_bytes_per_second: 1 };
            array.set_pace(BackgroundTask::Rebuild, idle);
            let replaced = array.replace(MemberIndex(1), world.drives[4].clone(), NEW).await;
            assert_eq!(replaced, Ok(Replacement::Rebuild));
            for drive in [0, 2, 3, 4] {
                assert_eq!(on_record(&world, drive, 1).await, (MemberState::Rebuilding, NEW));
            }
            assert_eq!(array.status().expect("it has one").event, event + 1);
            assert!(array.status().expect("it has one").is_degraded);
            array.ended(BackgroundTask::Rebuild).await;
            for drive in [0, 2, 3, 4] {
                assert_eq!(on_record(&world, drive, 1).await, (MemberState::InService, NEW));
            }
            assert!(!array.status().expect("it has one").is_degraded);
            // Dirty regions are cleared again.
            world.handle.sleep(30 * SECOND_NS).await;
            assert_eq!(array.status().expect("it has one").regions_dirty, 0);
            array.stop().await.expect("stop");
            drop(array);
            let (again, report) = world.assemble(&[1, 4, 0, 3, 2], PLAIN).await.expect("all");
            assert_eq!(report.left_out.iter().map(|it| it.device).collect::<Vec<_>>(), [0]);
            assert!(report.was_clean && again.is_online(MemberIndex(1)));
            again.stop().await.expect("stop");
            for without in [0, 2, 3] {
                let drives: Vec<usize> = (0..5).filter(|it| ![1, without].contains(it)).collect();
                check_without(&world, &drives, blocks, 2).await;
            }
        });
    }
}

#[test]
fn a_member_that_comes_back_is_given_what_changed_and_no_more() {
    for consistency in [Consistency::Bitmap, Consistency::Journal] {
        with_drives(4, move |world| async move {
            let array = world.create(&options(Level::Raid5, 4, consistency)).await;
            let blocks = blocks(Level::Raid5, 4);
            for block in blocks {
                write(&array, block, 2).await.expect("write");
            }
            // Nothing is dirty any more.
            world.handle.sleep(30 * SECOND_NS).await;
            array.fail(MemberIndex(1)).expect("one may go");
            write(&array, 0, 3).await.expect("write");
            write(&array, 0, 2).await.expect("write");
            array.stop().await.expect("stop");
            drop(array);
            let (array, _) = world.assemble(&[0, 2, 3], PLAIN).await.expect("enough");
            let idle = Pace { priority: Priority::Idle, floor_bytes_per_second: 1 };
            array.set_pace(BackgroundTask::Rebuild, idle);
            let back = array.replace(MemberIndex(1), world.drives[1].clone(), NEW).await;
            assert_eq!(back, Ok(Replacement::Return));
            let progress = array.rebuild_status().progress;
            let region_bytes = array.status().expect("it has one").region_bytes;
            assert_eq!(progress.total_bytes - progress.done_bytes, region_bytes);
            array.ended(BackgroundTask::Rebuild).await;
            assert_eq!(state(&array, 1), MemberState::InService);
            array.stop().await.expect("stop");
            drop(array);
            check_without(&world, &[0, 1, 3], blocks, 2).await;
            // One that was used without the others is not the same any more: all of it is computed.
            let (array, _) = world.assemble(&[0, 1, 2, 3], PLAIN).await.expect("all");
            array.fail(MemberIndex(1)).expect("one may go");
            write(&array, 0, 2).await.expect("write");
            world.drives[1].medium.borrow_mut().overwrite(0, &[0; 4096]);
            world.drives[1].medium.borrow_mut().overwrite(5 << 20, &[0; 4096]);
            let again = array.replace(MemberIndex(1), world.drives[1].clone(), NEW).await;
            assert_eq!(again, Ok(Replacement::Rebuild));
            array.ended(BackgroundTask::Rebuild).await;
            array.stop().await.expect("stop");
            drop(array);
            check_without(&world, &[0, 1, 2], blocks, 2).await;
        });
    }
}

#[test]
fn only_the_lost_member_itself_is_taken_back_and_no_other_drive_is_written() {
    for consistency in [Consistency::Bitmap, Consistency::Journal] {
        with_drives(5, move |world| async move {
            let (array, blocks) =
                (made(&world, Level::Raid5, 4, consistency).await, blocks(Level::Raid5, 4));
            for block in blocks {
                write(&array, block, 1).await.expect("write");
            }
            array.stop().await.expect("stop");
            drop(array);
            // Lost by its absence.
            let (array, report) = world.assemble(&[0, 2, 3], PLAIN).await.expect("enough");
            assert_eq!(report.now_lost, [1]);
            for block in blocks {
                write(&array, block, 2).await.expect("write");
            }
            let drive = |number: usize| world.drives[number].clone();
            assert_eq!(
                array.restore_member(MemberIndex(1), drive(4)).await,
                Ok(false),
                "a stranger"
            );
            assert!(Array::examine(&drive(4)).await.expect("readable").is_none());
            assert_eq!(
                array.restore_member(MemberIndex(1), drive(2)).await,
                Ok(false),
                "another member"
            );
            assert_eq!(
                array.restore_member(MemberIndex(2), drive(1)).await,
                Ok(false),
                "another place"
            );
            assert_eq!(array.restore_member(MemberIndex(1), drive(1)).await, Ok(true));
            array.ended(BackgroundTask::Rebuild).await;
            assert_eq!(state(&array, 1), MemberState::InService);
            assert_eq!(
                array.restore_member(MemberIndex(1), drive(1)).await,
                Ok(false),
                "it is back already"
            );
            array.stop().await.expect("stop");
            drop(array);
            check_without(&world, &[0, 1, 3], blocks, 2).await;
        });
    }
}

#[test]
fn a_member_that_missed_an_event_and_was_used_without_the_others_is_not_taken_back() {
    with_drives(3, |world| async move {
        let either = AssembleOptions { degraded: true, ..PLAIN };
        let array = made(&world, Level::Raid1, 3, Consistency::Bitmap).await;
        write(&array, 0, 1).await.expect("write");
        array.stop().await.expect("stop");
        drop(array);
        // The loss of the third one reaches the first one only.
        let before = world.drives[1].medium.borrow().clone();
        let (array, report) = world.assemble(&[0, 1], either).await.expect("enough");
        assert_eq!(report.now_lost, [2]);
        array.stop().await.expect("stop");
        drop(array);
        *world.drives[1].medium.borrow_mut() = before;
        // Elsewhere the second one goes on by itself.
        let (apart, _) = world.assemble(&[1], either).await.expect("enough");
        write(&apart, 0, 7).await.expect("write");
        apart.stop().await.expect("stop");
        drop(apart);
        let (array, _) = world.assemble(&[0], either).await.expect("enough");
        assert_eq!(array.restore_member(MemberIndex(1), world.drives[1].clone()).await, Ok(false));
        assert_eq!(read(&array, 0).await, Ok(1));
        array.stop().await.expect("stop");
    });
}

#[test]
fn a_rebuild_that_was_stopped_goes_on_where_it_was() {
    with_drives(5, |world| async move {
        let array = made(&world, Level::Raid6, 4, Consistency::Bitmap).await;
        let blocks = blocks(Level::Raid6, 4);
        for block in blocks {
            write(&array, block, 2).await.expect("write");
        }
        array.fail(MemberIndex(1)).expect("one may go");
        // A region in two seconds.
        let slow = Pace { priority: Priority::Idle, floor_bytes_per_second: 1 << 19 };
        array.set_pace(BackgroundTask::Rebuild, slow);
        array.replace(MemberIndex(1), world.drives[4].clone(), NEW).await.expect("taken");
        let busy = world.handle.spawn({
            let array = array.clone();
            async move {
                while array.rebuild_status().progress.done_bytes == 0 {
                    assert_eq!(read(&array, 0).await, Ok(2));
                }
            }
        });
        busy.await;
        array.stop().await.expect("stop");
        let done = array.rebuild_status().progress.done_bytes;
        assert!(done > 0 && state(&array, 1) == MemberState::Rebuilding);
        drop(array);
        let (array, report) = world.assemble(&[4, 3, 2, 0], PLAIN).await.expect("enough");
        assert!(report.was_clean && report.left_out.is_empty());
        assert!(array.rebuild_status().progress.done_bytes >= done);
        array.ended(BackgroundTask::Rebuild).await;
        assert_eq!(state(&array, 1), MemberState::InService);
        array.stop().await.expect("stop");
        drop(array);
        check_without(&world, &[0, 4], blocks, 2).await;
    });
}

#[test]
fn a_spare_takes_the_place_of_a_lost_member_by_itself_and_the_next_one_of_a_spare_that_fails() {
    with_drives(6, |world| async move {
        let array = made(&world, Level::Raid5, 4, Consistency::Bitmap).await;
        let blocks = blocks(Level::Raid5, 4);
        for block in blocks {
            write(&array, block, 1).await.expect("write");
        }
        array.add_spare(world.drives[4].clone(), NEW).expect("it suits");
        array.add_spare(world.drives[5].clone(), [78; 16]).expect("it suits");
        assert!(array.add_spare(world.drives[5].clone(), [78; 16]).is_err());
        assert_eq!(array.status().expect("it has one").spares, 2);
        world.drives[4].is_gone.set(true);
        world.drives[2].is_gone.set(true);
        for block in blocks {
            write(&array, block, 2).await.expect("write");
        }
        while !array.is_online(MemberIndex(2)) {
            world.handle.sleep(SECOND_NS / 1000).await;
        }
        let status = array.status().expect("it has one");
        assert_eq!((status.spares, status.members[2].uuid), (0, [78; 16]));
        array.stop().await.expect("stop");
        drop(array);
        check_without(&world, &[1, 3, 5], blocks, 2).await;
    });
}

#[test]
fn a_spare_waits_on_when_another_device_takes_the_place_first() {
    with_drives(6, |world| async move {
        let array = made(&world, Level::Raid5, 4, Consistency::Bitmap).await;
        let blocks = blocks(Level::Raid5, 4);
        for block in blocks {
            write(&array, block, 1).await.expect("write");
        }
        array.add_spare(world.drives[4].clone(), NEW).expect("it suits");
        world.drives[4].set_hung(true);
        array.fail(MemberIndex(2)).expect("one may go");
        // The spare is on its way, and its label is not read yet.
        world.handle.sleep(SECOND_NS).await;
        assert_eq!(array.status().expect("it has one").spares, 0);
        let replaced = array.replace(MemberIndex(2), world.drives[5].clone(), [78; 16]).await;
        assert_eq!(replaced, Ok(Replacement::Rebuild));
        world.drives[4].set_hung(false);
        array.ended(BackgroundTask::Rebuild).await;
        world.handle.sleep(SECOND_NS).await;
        let status = array.status().expect("it has one");
        assert_eq!((status.spares, status.members[2].uuid), (1, [78; 16]));
        array.fail(MemberIndex(1)).expect("one may go");
        for _ in 0..100 {
            world.handle.sleep(SECOND_NS).await;
        }
        assert_eq!(array.status().expect("it has one").members[1].uuid, NEW);
        array.stop().await.expect("stop");
        drop(array);
        check_without(&world, &[0, 3, 4], blocks, 1).await;
    });
}

#[test]
fn a_spare_that_waits_can_be_taken_back_and_one_on_its_way_into_a_place_cannot() {
    with_drives(6, |world| async move {
        let array = made(&world, Level::Raid5, 4, Consistency::Bitmap).await;
        array.add_spare(world.drives[4].clone(), NEW).expect("it suits");
        array.add_spare(world.drives[5].clone(), [78; 16]).expect("it suits");
        assert_eq!(array.remove_spare(NEW), Ok(true));
        assert_eq!((array.remove_spare(NEW), array.spare_count()), (Ok(false), 1));
        world.drives[5].set_hung(true);
        array.fail(MemberIndex(2)).expect("one may go");
        // The spare has left the queue, and its label is not read yet.
        world.handle.sleep(SECOND_NS).await;
        let taken = voltier_array::ReplaceError::SpareTaken { member: 2 };
        assert_eq!(array.remove_spare([78; 16]), Err(taken.into()));
        world.drives[5].set_hung(false);
        world.handle.sleep(SECOND_NS).await;
        array.ended(BackgroundTask::Rebuild).await;
        assert_eq!(
            (array.is_online(MemberIndex(2)), array.remove_spare([78; 16])),
            (true, Ok(false))
        );
        // The one that was taken back has another life, here as well.
        array.add_spare(world.drives[4].clone(), NEW).expect("it suits");
        array.stop().await.expect("stop");
    });
}

#[test]
fn a_lost_member_wants_one_spare_and_no_second_one_while_that_is_on_its_way() {
    with_drives(6, |world| async move {
        let array = made(&world, Level::Raid5, 4, Consistency::Bitmap).await;
        array.fail(MemberIndex(2)).expect("one may go");
        assert_eq!(array.spares_wanted(), 1);
        world.drives[4].set_hung(true);
        array.add_spare(world.drives[4].clone(), NEW).expect("it suits");
        // The spare has left the queue, and its label is not read yet.
        world.handle.sleep(SECOND_NS).await;
        let status = array.status().expect("it has one");
        assert_eq!((status.spares, status.members[2].state), (0, MemberState::Lost));
        assert_eq!(array.spares_wanted(), 0);
        world.drives[4].set_hung(false);
        world.drives[4].is_gone.set(true);
        world.handle.sleep(SECOND_NS).await;
        assert_eq!(array.spares_wanted(), 1, "the spare does not serve");
        array.add_spare(world.drives[5].clone(), [78; 16]).expect("it suits");
        world.handle.sleep(SECOND_NS).await;
        array.ended(BackgroundTask::Rebuild).await;
        assert_eq!((array.spares_wanted(), array.is_online(MemberIndex(2))), (0, true));
        array.stop().await.expect("stop");
    });
}

#[test]
fn a_member_in_service_is_replaced_without_being_degraded_for_a_moment() {
    for level in [Level::Raid0, Level::Raid1, Level::Raid5] {
        with_drives(5, move |world| async move {
            let (array, blocks) =
                (made(&world, level, 4, Consistency::Bitmap).await, blocks(level, 4));
            for block in blocks {
                write(&array, block, 1).await.expect("write");
            }
            let replaced = array.replace(MemberIndex(2), world.drives[4].clone(), NEW).await;
            assert_eq!(replaced, Ok(Replacement::Successor));
            assert!(array.status().expect("it has one").members[2].has_successor);
            for block in blocks {
                assert!(!array.status().expect("it has one").is_degraded);
                write(&array, block, 2).await.expect("write");
            }
            array.ended(BackgroundTask::Rebuild).await;
            for drive in [0, 1, 3, 4] {
                assert_eq!(on_record(&world, drive, 2).await, (MemberState::InService, NEW));
            }
            array.stop().await.expect("stop");
            drop(array);
            let (array, report) = world.assemble(&[0, 1, 2, 3, 4], PLAIN).await.expect("all");
            assert_eq!(report.left_out.len(), 1);
            for block in blocks {
                assert_eq!(read(&array, block).await, Ok(2));
            }
        });
    }
}

#[test]
fn who_was_replaced_and_was_not_told_so_is_told_at_the_next_start() {
    let media = with_some_over(Level::Raid1, 2, 1, Consistency::Bitmap);
    let after = on_media(media.clone(), |world| async move {
        let (array, _) = world.assemble(&[0, 1], PLAIN).await.expect("all");
        let replaced = array.replace(MemberIndex(0), world.drives[2].clone(), NEW).await;
        assert_eq!(replaced, Ok(Replacement::Successor));
        array.ended(BackgroundTask::Rebuild).await;
        array.fail(MemberIndex(1)).expect("one may go");
        write(&array, 0, 9).await.expect("write");
        array.stop().await.expect("stop");
        world.media()
    });
    // The power took from both what they had been told: they look like a whole array.
    let cut = vec![media[0].clone(), media[1].clone(), after[2].clone()];
    on_media(cut, |world| async move {
        let (array, report) = world.assemble(&[0, 1, 2], PLAIN).await.expect("one is enough");
        assert_eq!(report.left_out.iter().map(|it| it.device).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(read(&array, 0).await, Ok(9));
        array.stop().await.expect("stop");
        drop(array);
        assert_eq!(on_record(&world, 0, 0).await.0, MemberState::Lost);
        let error = refused(&world, &[0, 1], PLAIN).await;
        assert_eq!(error, MetadataError::Diverged { device: 0 });
    });
}

#[test]
fn a_cut_at_any_moment_of_a_rebuild_is_gone_on_from() {
    for (level, members) in [(Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 4)] {
        let (media, blocks) =
            (with_some_over(level, members, 1, Consistency::Bitmap), blocks(level, members));
        at_every_step(
            "rebuild",
            &media,
            || Facts::after(blocks),
            move |world, facts| async move {
                let order: Vec<usize> = (0..members).collect();
                let degraded = AssembleOptions { degraded: true, ..PLAIN };
                let (array, _) = world.assemble(&order[1..], degraded).await.expect("enough");
                array
                    .replace(MemberIndex(0), world.drives[members].clone(), NEW)
                    .await
                    .expect("taken");
                array.ended(BackgroundTask::Rebuild).await;
                // Copies have no write hole: requests may be cut off as well.
                if level == Level::Raid1 {
                    facts.write(&array, 100, 5).await;
                }
                array.stop().await.expect("stop");
                facts.is_stopped.set(true);
                world.drives[1].flush().await.expect("flush");
            },
        );
    }
}

#[test]
fn a_cut_while_members_are_rebuilt_or_copied_and_written_loses_nothing_with_a_journal() {
    for (level, members, is_copy) in
        [(Level::Raid5, 3, false), (Level::Raid5, 3, true), (Level::Raid6, 4, false)]
    {
        let media = with_some_over(level, members, 1, Consistency::Journal);
        let blocks = blocks(level, members);
        at_every_step(
            "rebuild and write",
            &media,
            || Facts::after(blocks),
            move |world, facts| async move {
                let order: Vec<usize> = (usize::from(!is_copy)..members).collect();
                let (array, _) = world.assemble(&order, PLAIN).await.expect("enough");
                array.set_pace(BackgroundTask::Rebuild, FAST);
                array
                    .replace(MemberIndex(0), world.drives[members].clone(), NEW)
                    .await
                    .expect("taken");
                for (index, block) in blocks.into_iter().enumerate() {
                    facts.write(&array, block, 10 + index as u8).await;
                }
                let mut byte = 20;
                while array.rebuild_status().progress.is_running {
                    // While the member is put in service as well.
                    world.handle.sleep(SECOND_NS / 2000).await;
                    facts.write(&array, blocks[byte as usize % 6] + 1, byte).await;
                    byte += 1;
                }
                facts.write(&array, 0, 30).await;
            },
        );
    }
}

#[test]
fn a_cut_while_copies_are_rebuilt_and_written_loses_nothing() {
    let (media, blocks) =
        (with_some_over(Level::Raid1, 2, 1, Consistency::Bitmap), blocks(Level::Raid1, 2));
    at_every_step(
        "rebuild and write",
        &media,
        || Facts::after(blocks),
        move |world, facts| async move {
            let degraded = AssembleOptions { degraded: true, ..PLAIN };
            let (array, _) = world.assemble(&[1], degraded).await.expect("enough");
            array.replace(MemberIndex(0), world.drives[2].clone(), NEW).await.expect("taken");
            for (index, block) in blocks.into_iter().enumerate() {
                facts.write(&array, block, 10 + index as u8).await;
            }
            array.ended(BackgroundTask::Rebuild).await;
            facts.write(&array, 0, 30).await;
            world.handle.sleep(11 * SECOND_NS).await;
            facts.write(&array, 600, 31).await;
        },
    );
}

#[test]
fn a_cut_at_any_moment_of_a_copy_leaves_the_old_member_or_the_new_one() {
    for (level, members) in [(Level::Raid1, 2), (Level::Raid0, 2), (Level::Raid5, 3)] {
        let (media, blocks) =
            (with_some_over(level, members, 1, Consistency::Bitmap), blocks(level, members));
        at_every_step(
            "copy",
            &media,
            || Facts::after(blocks),
            move |world, facts| async move {
                let order: Vec<usize> = (0..members).collect();
                let (array, _) = world.assemble(&order, PLAIN).await.expect("all");
                array
                    .replace(MemberIndex(0), world.drives[members].clone(), NEW)
                    .await
                    .expect("taken");
                for (index, block) in blocks.into_iter().enumerate() {
                    facts.write(&array, block, 10 + index as u8).await;
                }
                array.ended(BackgroundTask::Rebuild).await;
                facts.write(&array, 0, 30).await;
            },
        );
    }
}

#[test]
fn a_cut_while_a_member_is_given_what_changed_loses_nothing() {
    let (media, blocks) =
        (with_some_over(Level::Raid1, 2, 1, Consistency::Bitmap), blocks(Level::Raid1, 2));
    let before = on_media(media, |world| async move {
        let (array, _) = world.assemble(&[0, 1], PLAIN).await.expect("all");
        array.fail(MemberIndex(0)).expect("one may go");
        write(&array, 500, 9).await.expect("write");
        array.stop().await.expect("stop");
        world.media()
    });
    let before_facts = || {
        let facts = Facts::after(blocks);
        facts.model.borrow_mut().acknowledge(500, 9);
        facts
    };
    at_every_step("return", &before, before_facts, |world, facts| async move {
        let degraded = AssembleOptions { degraded: true, ..PLAIN };
        let (array, _) = world.assemble(&[0, 1], degraded).await.expect("enough");
        let back = array.replace(MemberIndex(0), world.drives[0].clone(), NEW).await;
        assert_eq!(back, Ok(Replacement::Return));
        facts.write(&array, 700, 12).await;
        array.ended(BackgroundTask::Rebuild).await;
        facts.write(&array, 0, 30).await;
    });
}
