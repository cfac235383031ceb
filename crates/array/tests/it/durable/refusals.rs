//! Members that refuse requests for some time: alone, or all of them for a common cause.

use voltier_array::{
    Array, AssembleOptions, Consistency, HealthNews, Level, MemberIndex, MemberState,
};
use voltier_block::{BlockDevice, Bytes, Durability, IoError, Lba, MIB, SECTOR_BYTES};

use crate::durable::drive::Drive;
use crate::durable::world::{BLOCK, World, made, read, with_drives, write};

const SECOND_NS: u64 = 1_000_000_000;
const PLAIN: AssembleOptions = AssembleOptions { force: false, degraded: false };
const MODES: [Consistency; 2] = [Consistency::Bitmap, Consistency::Journal];
const SHAPES: [(Level, usize); 3] = [(Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 4)];

fn each_shape() -> impl Iterator<Item = (Level, usize, Consistency)> {
    SHAPES.iter().flat_map(|(level, members)| MODES.map(|how| (*level, *members, how)))
}

fn lost(array: &Array<Drive>) -> Vec<usize> {
    let members = array.status().expect("it has one").members;
    let lost = members.iter().enumerate().filter(|(_, it)| it.state == MemberState::Lost);
    lost.map(|(member, _)| member).collect()
}

fn fail_all(world: &World, fails: bool) {
    world.drives.iter().for_each(|drive| drive.fails_all.set(fails));
}

#[test]
fn a_member_that_refuses_changes_for_a_moment_is_waited_for() {
    for (level, members, how) in each_shape() {
        with_drives(members, move |world| async move {
            let array = made(&world, level, members, how).await;
            write(&array, 0, 1).await.expect("write");
            world.drives[1].refuses.set(Some(IoError::Medium));
            let own = array.clone();
            let written = world.handle.spawn(async move { write(&own, 0, 2).await });
            world.handle.sleep(SECOND_NS / 2).await;
            world.drives[1].refuses.set(None);
            assert_eq!(written.await, Ok(()), "{level} {how:?}");
            assert_eq!(lost(&array), [0; 0], "{level} {how:?}");
            assert_eq!(read(&array, 0).await, Ok(2));
            array.stop().await.expect("stop");
        });
    }
}

#[test]
fn an_adapter_that_restarts_costs_no_member_and_fails_no_request() {
    for (level, members, how) in each_shape() {
        with_drives(members, move |world| async move {
            let array = made(&world, level, members, how).await;
            for block in 0..40 {
                write(&array, block, 1).await.expect("write");
            }
            fail_all(&world, true);
            let requests: Vec<_> = (0..40)
                .map(|block| {
                    let own = array.clone();
                    world.handle.spawn(async move {
                        match block % 2 {
                            0 => write(&own, block, 2).await,
                            _ => read(&own, block).await.map(|found| assert_eq!(found, 1)),
                        }
                    })
                })
                .collect();
            world.handle.sleep(5 * SECOND_NS).await;
            fail_all(&world, false);
            for (block, request) in requests.into_iter().enumerate() {
                assert_eq!(request.await, Ok(()), "{level} {how:?}: block {block}");
            }
            assert_eq!(lost(&array), [0; 0], "{level} {how:?}");
            for block in 0..40 {
                assert_eq!(read(&array, block).await, Ok(2 - block as u8 % 2), "{level} {how:?}");
            }
            array.stop().await.expect("stop");
        });
    }
}

#[test]
fn members_that_come_back_one_after_the_other_are_all_kept() {
    for (level, members, how) in each_shape() {
        with_drives(members, move |world| async move {
            let array = made(&world, level, members, how).await;
            write(&array, 0, 1).await.expect("write");
            let refuse = |drive: &Drive, error| drive.refuses.set(error);
            world.drives.iter().for_each(|drive| refuse(drive, Some(IoError::Medium)));
            let own = array.clone();
            let written = world.handle.spawn(async move { write(&own, 0, 2).await });
            world.handle.sleep(5 * SECOND_NS).await;
            for drive in &world.drives {
                refuse(drive, None);
                world.handle.sleep(7 * SECOND_NS / 10).await;
            }
            assert_eq!(written.await, Ok(()), "{level} {how:?}");
            assert_eq!(lost(&array), [0; 0], "{level} {how:?}");
            assert_eq!(read(&array, 0).await, Ok(2));
            array.stop().await.expect("stop");
        });
    }
}

#[test]
fn an_array_without_redundancy_waits_for_members_that_answer_nothing() {
    for (level, members, how) in each_shape() {
        with_drives(members, move |world| async move {
            let array = made(&world, level, members, how).await;
            write(&array, 0, 1).await.expect("write");
            for member in 0..if level == Level::Raid6 { 2 } else { 1 } {
                array.fail(MemberIndex(member)).expect("as many as can be lost");
            }
            // The losses are on record.
            write(&array, 0, 1).await.expect("write");
            let before = lost(&array);
            fail_all(&world, true);
            // A member that takes the write alone has nobody to be compared with.
            let own = array.clone();
            let written = world.handle.spawn(async move { write(&own, 0, 2).await });
            world.handle.sleep(10 * SECOND_NS).await;
            fail_all(&world, false);
            assert_eq!(written.await, Ok(()), "{level} {how:?}");
            assert_eq!(lost(&array), before, "{level} {how:?}");
            assert_eq!(read(&array, 0).await, Ok(2), "{level} {how:?}");
            array.stop().await.expect("stop");
        });
    }
}

#[test]
fn members_that_refuse_changes_together_are_kept_and_take_them_later() {
    for (level, members, how) in each_shape() {
        with_drives(members, move |world| async move {
            let array = made(&world, level, members, how).await;
            write(&array, 0, 1).await.expect("write");
            let refuse = |error| world.drives.iter().for_each(|drive| drive.refuses.set(error));
            refuse(Some(IoError::ReadOnly));
            for _ in 0..3 {
                assert!(write(&array, 0, 2).await.is_err(), "{level} {how:?}");
            }
            assert_eq!(read(&array, 0).await, Ok(1), "{level} {how:?}");
            assert_eq!(lost(&array), [0; 0], "{level} {how:?}");
            world.handle.sleep(100 * SECOND_NS).await;
            refuse(None);
            // Without a journal the parity of the stripe is made anew; with one the write is redone.
            let _ = array.stop().await;
            drop(array);
            let order: Vec<usize> = (0..members).collect();
            let started = world.assemble(&order, PLAIN).await;
            let (array, _) = started.unwrap_or_else(|error| panic!("{level} {how:?}: {error}"));
            world.handle.sleep(10 * SECOND_NS).await;
            assert_eq!(lost(&array), [0; 0], "{level} {how:?}");
            write(&array, 0, 3).await.expect("they take changes again");
            array.fail(MemberIndex(0)).expect("one may go");
            assert_eq!(read(&array, 0).await, Ok(3), "{level} {how:?}");
        });
    }
}

fn failure(array: &Array<Drive>) -> Option<IoError> {
    array.status().expect("it has one").failure
}

/// Waits until the array serves again, for some seconds.
async fn recovered(world: &World, array: &Array<Drive>) -> bool {
    for _ in 0..60 {
        world.handle.sleep(SECOND_NS / 10).await;
        if failure(array).is_none() {
            return true;
        }
    }
    false
}

/// All blocks are as they are to be, also as parity has them.
async fn check_all(array: &Array<Drive>, expected: &[Vec<u8>], what: &str) {
    for (block, allowed) in (0..).zip(expected) {
        let found = read(array, block).await;
        assert!(found.is_ok_and(|it| allowed.contains(&it)), "{what}: block {block}: {found:?}");
    }
    array.fail(MemberIndex(0)).expect("one may go");
    for (block, allowed) in (0..).zip(expected) {
        let found = read(array, block).await;
        assert!(found.is_ok_and(|it| allowed.contains(&it)), "{what}: block {block}: {found:?}");
    }
}

#[test]
fn an_array_serves_again_when_its_members_take_changes_that_they_all_refused() {
    for (level, members, how) in each_shape() {
        with_drives(members, move |world| async move {
            let what = format!("{level} {how:?}");
            let array = made(&world, level, members, how).await;
            let mut expected = vec![vec![1]; 40];
            for block in 0..40 {
                write(&array, block, 1).await.expect("write");
            }
            for round in 2..4 {
                let refuse = |error| world.drives.iter().for_each(|drive| drive.refuses.set(error));
                refuse(Some(IoError::ReadOnly));
                for block in [0, 7] {
                    assert!(write(&array, block, round).await.is_err(), "{what}");
                    expected[block as usize].push(round);
                }
                world.handle.sleep(10 * SECOND_NS).await;
                assert!(failure(&array).is_some(), "{what}");
                assert_eq!(read(&array, 1).await, Ok(expected[1][0]), "{what}");
                refuse(None);
                assert!(recovered(&world, &array).await, "{what}: {:?}", failure(&array));
                assert!(array.take_health_news().contains(&HealthNews::Recovered), "{what}");
                let written = write(&array, 1, 10 + round).await;
                assert_eq!(written, Ok(()), "{what}: {:?}", failure(&array));
                expected[1] = vec![10 + round];
            }
            assert_eq!(lost(&array), [0; 0], "{what}");
            check_all(&array, &expected, &what).await;
            array.stop().await.expect("stop");
        });
    }
}

#[test]
fn what_members_drop_in_a_flush_that_all_of_them_fail_is_redone_or_told() {
    for (level, members, how) in each_shape() {
        with_drives(members, move |world| async move {
            let what = format!("{level} {how:?}");
            let array = made(&world, level, members, how).await;
            let write = async |block: u64, byte| {
                let data = Bytes::copy_of(&[byte; BLOCK]);
                array.write(Lba(block * 8), data.into(), Durability::Cached).await
            };
            let mut expected = vec![vec![1]; 200];
            for block in 0..200 {
                write(block, 1).await.expect("write");
            }
            array.flush().await.expect("flush");
            world.handle.sleep(20 * SECOND_NS).await;
            world.drives.iter().for_each(|drive| drive.drops_flushes.set(true));
            let mut is_told = false;
            for block in 0..200 {
                expected[block as usize] = match write(block, 2).await {
                    Ok(()) => vec![2],
                    Err(_) => vec![1, 2],
                };
                is_told |= expected[block as usize].len() > 1;
            }
            is_told |= array.flush().await.is_err();
            if how == Consistency::Bitmap {
                assert!(is_told, "{what}");
                expected = vec![vec![1, 2]; 200];
            }
            world.drives.iter().for_each(|drive| drive.drops_flushes.set(false));
            assert!(recovered(&world, &array).await, "{what}: {:?}", failure(&array));
            world.handle.sleep(20 * SECOND_NS).await;
            assert_eq!(lost(&array), [0; 0], "{what}");
            check_all(&array, &expected, &what).await;
            write(0, 3).await.expect("it serves");
            array.stop().await.expect("stop");
        });
    }
}

#[test]
fn nothing_older_is_read_while_a_replay_cannot_bring_back_what_members_dropped() {
    with_drives(3, |world| async move {
        let array = made(&world, Level::Raid5, 3, Consistency::Journal).await;
        let write = async |byte| {
            let data = Bytes::copy_of(&[byte; BLOCK]);
            array.write(Lba(0), data.into(), Durability::Cached).await
        };
        write(1).await.expect("write");
        array.empty_journal().await.expect("all is in place");
        write(2).await.expect("write");
        // The labels are taken, and what was dropped is not.
        let chunk = 2 * MIB / SECTOR_BYTES;
        for drive in &world.drives {
            drive.drops_flushes.set(true);
            drive.unwritable.borrow_mut().extend(chunk..chunk + 128);
        }
        assert!(array.empty_journal().await.is_err());
        world.drives.iter().for_each(|drive| drive.drops_flushes.set(false));
        for _ in 0..60 {
            world.handle.sleep(SECOND_NS).await;
            assert_ne!(read(&array, 0).await, Ok(1), "it was written over");
        }
        world.drives.iter().for_each(|drive| drive.unwritable.borrow_mut().clear());
        world.handle.sleep(40 * SECOND_NS).await;
        assert_eq!((failure(&array), read(&array, 0).await), (None, Ok(2)));
        array.stop().await.expect("stop");
    });
}

#[test]
fn a_read_waits_for_the_replay_that_brings_back_what_members_dropped() {
    with_drives(3, |world| async move {
        let array = made(&world, Level::Raid5, 3, Consistency::Journal).await;
        for block in 0..array.limits().sectors / 8 {
            write(&array, block, 1).await.expect("write");
        }
        let drops = |drops| world.drives.iter().for_each(|drive| drive.drops_flushes.set(drops));
        drops(true);
        assert!(array.empty_journal().await.is_err());
        drops(false);
        // The members take a record again soon. Their data take longer.
        world.drives.iter().for_each(|drive| *drive.slow.borrow_mut() = 0..u64::MAX);
        let mut waiting = Vec::new();
        for _ in 0..100 {
            let own = array.clone();
            waiting.push(world.handle.spawn(async move { read(&own, 0).await }));
            world.handle.sleep(SECOND_NS / 1000).await;
        }
        for read in waiting {
            assert_eq!(read.await, Ok(1));
        }
        array.stop().await.expect("stop");
    });
}

#[test]
fn a_replay_that_has_begun_is_waited_for_however_long_it_takes() {
    with_drives(3, |world| async move {
        let array = made(&world, Level::Raid5, 3, Consistency::Journal).await;
        for block in 0..array.limits().sectors / 8 {
            write(&array, block, 1).await.expect("write");
        }
        let each = |change: fn(&Drive)| world.drives.iter().for_each(change);
        each(|drive| drive.drops_flushes.set(true));
        assert!(array.empty_journal().await.is_err());
        each(|drive| drive.drops_flushes.set(false));
        each(|drive| drive.refuses.set(Some(IoError::ReadOnly)));
        let (writer, reader) = (array.clone(), array.clone());
        let written = world.handle.spawn(async move { write(&writer, 0, 2).await });
        let found = world.handle.spawn(async move { read(&reader, 1).await });
        world.handle.sleep(28 * SECOND_NS).await;
        each(|drive| *drive.slow.borrow_mut() = 0..u64::MAX);
        each(|drive| drive.refuses.set(None));
        let stored = world.drives[0].superblock_writes.get();
        while world.drives[0].superblock_writes.get() == stored {
            world.handle.sleep(SECOND_NS / 1000).await;
        }
        // The record is in place by then, and the replay under way.
        world.handle.sleep(SECOND_NS / 200).await;
        each(|drive| drive.set_holds_writes(true));
        world.handle.sleep(5 * SECOND_NS).await;
        each(|drive| drive.set_holds_writes(false));
        assert_eq!((written.await, found.await), (Ok(()), Ok(1)));
        assert_eq!(read(&array, 0).await, Ok(2));
        array.stop().await.expect("stop");
    });
}

#[test]
fn a_client_is_told_of_what_its_flush_may_have_cost_though_the_array_comes_back_meanwhile() {
    for (level, members) in SHAPES.into_iter().chain([(Level::Raid0, 2)]) {
        with_drives(members, move |world| async move {
            let array = made(&world, level, members, Consistency::Bitmap).await;
            let data = Bytes::copy_of(&[1; BLOCK]);
            array.write(Lba(0), data.into(), Durability::Cached).await.expect("write");
            world.drives.iter().for_each(|drive| drive.drops_flushes.set(true));
            let own = array.clone();
            let flushed = world.handle.spawn(async move { own.flush().await });
            world.handle.sleep(SECOND_NS / 2).await;
            world.drives.iter().for_each(|drive| drive.drops_flushes.set(false));
            assert!(flushed.await.is_err(), "{level}");
            assert_eq!(array.flush().await, Ok(()), "{level}: it is told once");
            array.stop().await.expect("stop");
        });
    }
}

#[test]
fn a_raid_0_goes_on_after_a_write_that_failed() {
    with_drives(2, |world| async move {
        let array = made(&world, Level::Raid0, 2, Consistency::Bitmap).await;
        for block in [0, 100] {
            write(&array, block, 1).await.expect("write");
        }
        fail_all(&world, true);
        assert!(write(&array, 0, 2).await.is_err());
        fail_all(&world, false);
        world.handle.sleep(60 * SECOND_NS).await;
        assert_eq!((write(&array, 0, 3).await, read(&array, 0).await), (Ok(()), Ok(3)));
        assert_eq!(read(&array, 100).await, Ok(1));
        array.stop().await.expect("stop");
    });
}

#[test]
fn members_that_the_group_can_lose_are_lost_in_the_end() {
    for (level, members, how) in each_shape() {
        with_drives(members, move |world| async move {
            let array = made(&world, level, members, how).await;
            write(&array, 0, 1).await.expect("write");
            let spared = if level == Level::Raid6 { 2 } else { 1 };
            for drive in &world.drives[..spared] {
                drive.refuses.set(Some(IoError::Medium));
            }
            for block in 0..40 {
                write(&array, block, 2).await.expect("the others take it");
            }
            assert_eq!(lost(&array), Vec::from_iter(0..spared), "{level} {how:?}");
            assert_eq!(read(&array, 0).await, Ok(2));
        });
    }
}
