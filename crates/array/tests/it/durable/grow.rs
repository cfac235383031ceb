//! Rows of redundancy that are added while the array serves: what is on record when, losses, requests
//! beside it, and power cuts at every step.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use voltier_array::{
    Array, ArrayError, AssembleOptions, BackgroundTask, Consistency, Geometry, GrowError, Layout,
    Level, MemberIndex, MemberState, Pace, Priority, ScrubRepair,
};
use voltier_block::{BlockDevice, Prng};

use crate::durable::crash::{Facts, at_steps, boot, start_without_the_fifth};
use crate::durable::drive::{Drive, Medium};
use crate::durable::world::{
    Model, World, blocks, made, on_media, read, with_drives, with_some_over, write,
};

const SECOND_NS: u64 = 1_000_000_000;
const PLAIN: AssembleOptions = AssembleOptions { force: false, degraded: false };
const EITHER: AssembleOptions = AssembleOptions { force: false, degraded: true };
const FAST: Pace = Pace { priority: Priority::High, floor_bytes_per_second: 0 };
const SLOW: Pace = Pace { priority: Priority::Idle, floor_bytes_per_second: 1 << 19 };
const FIFTY: Level = Level::Raid50 { group: 3 };
const SIXTY: Level = Level::Raid60 { group: 4 };

/// For devices that become these members.
fn uuids(members: Range<usize>) -> Vec<[u8; 16]> {
    members.map(|member| [200 + member as u8; 16]).collect()
}

/// Grows by the drives behind those of the members.
async fn grow(world: &World, array: &Array<Drive>, count: usize) -> Result<(), ArrayError> {
    let first = array.geometry().member_count();
    array.grow(world.drives[first..first + count].to_vec(), &uuids(first..first + count)).await
}

async fn level_on(world: &World, drive: usize) -> Option<Level> {
    let found = Array::examine(&world.drives[drive]).await.expect("whole");
    found.map(|found| found.array.geometry.level())
}

/// All choices of so many of these.
pub(crate) fn choices(all: usize, count: usize) -> Vec<Vec<usize>> {
    let masks = (0_u32..1 << all).filter(|mask| mask.count_ones() as usize == count);
    masks.map(|mask| (0..all).filter(|it| mask >> it & 1 == 1).collect()).collect()
}

/// Checks the content of a stopped array without these members.
async fn check_without(world: &World, members: usize, lost: &[usize], model: &Model) {
    let again = World::new(&world.handle, world.media(), None, 3);
    let rest: Vec<usize> = (0..members).rev().filter(|it| !lost.contains(it)).collect();
    let (array, _) = again.assemble(&rest, EITHER).await.unwrap_or_else(|error| {
        panic!("without {lost:?}: {error}");
    });
    model.check(&array, &format!("without {lost:?}")).await;
}

/// Checks the content of a stopped array without any so many of its members.
async fn check_losses(world: &World, members: usize, count: usize, model: &Model) {
    for lost in choices(members, count) {
        check_without(world, members, &lost, model).await;
    }
}

/// Stops it, and looks at what it holds without as many as it may lose.
async fn stop_and_check_losses(world: &World, array: Array<Drive>, model: &Model) {
    array.stop().await.expect("stop");
    let geometry = array.geometry().clone();
    drop(array);
    let members = geometry.member_count();
    if geometry.level() == SIXTY {
        check_losses(world, members, 1, model).await;
        // Two of each group, of which the last ones came with the new parity row.
        for lost in [[0, 1, 3, 4], [0, 6, 5, 7], [2, 6, 3, 7]] {
            check_without(world, members, &lost, model).await;
        }
    } else {
        check_losses(world, members, geometry.parity_chunks(), model).await;
    }
}

#[test]
fn from_one_parity_to_four_without_a_stop_and_as_many_members_may_be_lost() {
    with_drives(7, |world| async move {
        let array = made(&world, Level::Raid5, 4, Consistency::Journal).await;
        let (mut model, size) = (Model::default(), array.limits().sectors);
        let expected = [Level::Raid6, Level::Raid7_3, Level::NPlusM { data: 3, parity: 4 }];
        for (step, level) in expected.into_iter().enumerate() {
            for (index, block) in blocks(Level::Raid5, 4).into_iter().enumerate() {
                let byte = (step * 10 + index) as u8 + 1;
                write(&array, block, byte).await.expect("write");
                model.acknowledge(block, byte);
            }
            let event = array.status().expect("it has one").event;
            array.set_pace(BackgroundTask::Rebuild, SLOW);
            grow(&world, &array, 1).await.expect("it can");
            let (new, status) = (4 + step, array.status().expect("it has one"));
            assert_eq!((status.level, status.event, status.is_degraded), (level, event + 1, true));
            assert_eq!(status.members[new].state, MemberState::Rebuilding);
            assert_eq!(array.limits().sectors, size);
            for drive in 0..=new {
                assert_eq!(level_on(&world, drive).await, Some(level));
            }
            model.check(&array, "while it is filled").await;
            assert_eq!(array.pace(BackgroundTask::Rebuild), SLOW, "paces stay");
            array.set_pace(BackgroundTask::Rebuild, FAST);
            array.ended(BackgroundTask::Rebuild).await;
            assert!(
                array.is_online(MemberIndex(new))
                    && !array.status().expect("it has one").is_degraded
            );
        }
        assert_eq!(array.geometry().layout(), Layout::LeftSymmetricFixedParityRows);
        array.scrub(ScrubRepair::Nothing).expect("it can");
        array.ended(BackgroundTask::Scrub).await;
        let scrubbed = array.scrub_status();
        let found = scrubbed.counts;
        assert_eq!((found.mismatched_blocks, found.skipped_bytes), (0, 0));
        assert!(scrubbed.progress.done_bytes > 0);
        stop_and_check_losses(&world, array, &model).await;
    });
}

#[test]
fn two_parities_copies_and_groups_grow_and_lose_one_more() {
    let cases = [
        (Level::Raid6, 4, 1, Level::Raid7_3, Layout::AddedParityRows { rotating: 2 }),
        (Level::Raid1, 2, 1, Level::Raid1, Layout::LeftSymmetric),
        (FIFTY, 6, 2, SIXTY, Layout::AddedParityRows { rotating: 1 }),
    ];
    for (level, members, count, grown, layout) in cases {
        for how in [Consistency::Journal, Consistency::Bitmap, Consistency::None] {
            with_drives(members + count, move |world| async move {
                let (array, mut model) =
                    (made(&world, level, members, how).await, Model::default());
                for (index, block) in blocks(level, members).into_iter().enumerate() {
                    write(&array, block, index as u8 + 1).await.expect("write");
                    model.acknowledge(block, index as u8 + 1);
                }
                grow(&world, &array, count).await.expect("it can");
                write(&array, 8, 99).await.expect("write");
                model.acknowledge(8, 99);
                array.ended(BackgroundTask::Rebuild).await;
                assert_eq!(array.geometry().layout(), layout);
                array.scrub(ScrubRepair::Nothing).expect("it can");
                array.ended(BackgroundTask::Scrub).await;
                let scrubbed = array.scrub_status().counts;
                assert_eq!((scrubbed.mismatched_blocks, scrubbed.skipped_bytes), (0, 0));
                array.stop().await.expect("stop");
                drop(array);
                let all: Vec<usize> = (0..members + count).rev().collect();
                let (array, report) = world.assemble(&all, PLAIN).await.expect("all");
                assert!(report.left_out.is_empty() && report.was_clean);
                assert_eq!(array.geometry().level(), grown);
                model.check(&array, "again").await;
                stop_and_check_losses(&world, array, &model).await;
            });
        }
    }
}

#[test]
fn members_are_lost_while_a_parity_row_is_filled_as_many_as_before_it_came() {
    with_drives(5, |world| async move {
        let array = made(&world, Level::Raid5, 4, Consistency::Journal).await;
        let mut model = Model::default();
        for block in blocks(Level::Raid5, 4) {
            write(&array, block, 1).await.expect("write");
            model.acknowledge(block, 1);
        }
        array.set_pace(BackgroundTask::Rebuild, SLOW);
        grow(&world, &array, 1).await.expect("it can");
        world.drives[2].is_gone.set(true);
        for block in blocks(Level::Raid5, 4) {
            write(&array, block, 2).await.expect("one may go");
            model.acknowledge(block, 2);
        }
        assert!(!array.is_online(MemberIndex(2)));
        assert!(matches!(array.fail(MemberIndex(0)), Err(ArrayError::TooManyLost { .. })));
        model.check(&array, "degraded, while it is filled").await;
        array.set_pace(BackgroundTask::Rebuild, FAST);
        array.ended(BackgroundTask::Rebuild).await;
        assert!(array.is_online(MemberIndex(4)), "it is filled from what is left");
        array.fail(MemberIndex(0)).expect("one more may go");
        model.check(&array, "two lost").await;
        assert_eq!(
            grow(&world, &array, 0).await,
            Err(GrowError::Devices { given: 0, needed: 1 }.into())
        );
    });
}

#[test]
fn a_new_member_that_fails_leaves_an_array_that_waits_for_another_one() {
    with_drives(6, |world| async move {
        let array = made(&world, Level::Raid6, 4, Consistency::Journal).await;
        let mut model = Model::default();
        for block in blocks(Level::Raid6, 4) {
            write(&array, block, 1).await.expect("write");
            model.acknowledge(block, 1);
        }
        world.drives[4].is_gone.set(true);
        let error = grow(&world, &array, 1).await.expect_err("it does not take anything");
        assert!(error.to_string().starts_with("device 1: "), "{error}");
        assert_eq!(array.geometry().level(), Level::Raid6, "nothing has changed");
        world.drives[4].is_gone.set(false);
        array.set_pace(BackgroundTask::Rebuild, SLOW);
        grow(&world, &array, 1).await.expect("it can");
        world.drives[4].is_gone.set(true);
        write(&array, 0, 3).await.expect("write");
        model.acknowledge(0, 3);
        array.ended(BackgroundTask::Rebuild).await;
        assert_eq!(array.status().expect("it has one").members[4].state, MemberState::Lost);
        array.set_pace(BackgroundTask::Rebuild, FAST);
        array.replace(MemberIndex(4), world.drives[5].clone(), [99; 16]).await.expect("it can");
        array.ended(BackgroundTask::Rebuild).await;
        array.stop().await.expect("stop");
        drop(array);
        let again = World::new(&world.handle, world.media(), None, 3);
        let (array, _) = again.assemble(&[5, 3], EITHER).await.expect("three may go");
        model.check(&array, "on two of five").await;
    });
}

#[test]
fn requests_go_on_beside_it_and_every_one_is_there_afterwards() {
    for (level, members, count) in [(Level::Raid5, 3, 1), (Level::Raid6, 4, 1), (FIFTY, 6, 2)] {
        with_drives(members + count, move |world| async move {
            let array = made(&world, level, members, Consistency::Journal).await;
            let model = Rc::new(RefCell::new(Model::default()));
            let clients = (0..4_u64).map(|client| {
                let (array, model, handle) = (array.clone(), model.clone(), world.handle.clone());
                world.handle.spawn(async move {
                    let mut dice = Prng::new(client + 1);
                    for round in 0..250_u64 {
                        // Each client has blocks of its own.
                        let block = dice.below(150) * 4 + client;
                        let byte = 1 + dice.below(255) as u8;
                        model.borrow_mut().begin(block, byte);
                        write(&array, block, byte).await.expect("write");
                        model.borrow_mut().acknowledge(block, byte);
                        if round % 3 == 0 {
                            assert_eq!(read(&array, block).await, Ok(byte));
                        }
                        handle.sleep(dice.below(20_000)).await;
                    }
                })
            });
            let clients: Vec<_> = clients.collect();
            world.handle.sleep(SECOND_NS / 1000).await;
            array.set_pace(BackgroundTask::Rebuild, FAST);
            grow(&world, &array, count).await.expect("it can");
            array.ended(BackgroundTask::Rebuild).await;
            let writes = array.counts().writes;
            for client in clients {
                client.await;
            }
            assert!((100..1000).contains(&writes), "it was not filled beside requests: {writes}");
            let model = model.borrow().clone();
            model.check(&array, "afterwards").await;
            stop_and_check_losses(&world, array, &model).await;
        });
    }
}

#[test]
fn what_cannot_grow_is_refused_in_one_line_and_nothing_changes() {
    with_drives(7, |world| async move {
        let array = made(&world, Level::Raid5, 4, Consistency::Journal).await;
        write(&array, 0, 7).await.expect("write");
        let before = array.status().expect("it has one");
        let all = world.drives.clone();
        let refused = async |drives: &[usize], uuids: &[[u8; 16]]| {
            let given = drives.iter().map(|drive| all[*drive].clone()).collect();
            array.grow(given, uuids).await.expect_err("refused").to_string()
        };
        let line = refused(&[4, 5], &uuids(4..6)).await;
        assert_eq!(line, "2 devices given: another parity takes 1, one for each group");
        let line = refused(&[4], &[[1; 16]]).await;
        assert!(line.contains("has this uuid already"), "{line}");
        let small = Drive::new(&world.handle, &world.power, 4 << 20, Medium::default(), 9);
        let line = array.grow(vec![small], &uuids(4..5)).await.expect_err("refused").to_string();
        assert!(line.contains("sectors are needed") || line.contains("are needed"), "{line}");
        array.scrub(ScrubRepair::Nothing).expect("it can");
        let line = refused(&[4], &uuids(4..5)).await;
        assert_eq!(line, "a scrub is running: wait for it, or cancel it");
        array.ended(BackgroundTask::Scrub).await;
        assert_eq!(array.status().expect("it has one").event, before.event);
        assert!(matches!(Array::examine(&all[4]).await, Ok(None)), "it was not touched");
        array.fail(MemberIndex(1)).expect("one may go");
        let line = refused(&[4], &uuids(4..5)).await;
        assert!(line.starts_with("members are missing or being filled"), "{line}");
        array.replace(MemberIndex(1), all[5].clone(), [77; 16]).await.expect("it can");
        assert!(refused(&[4], &uuids(4..5)).await.starts_with("members are missing"), "filled");
        array.ended(BackgroundTask::Rebuild).await;
        array.stop().await.expect("stop");
        assert_eq!(refused(&[4], &uuids(4..5)).await, "the array is stopped: assemble it first");
    });
    for (level, members) in [(Level::Raid0, 2), (Level::Raid10, 4)] {
        with_drives(members + 2, move |world| async move {
            let array = made(&world, level, members, Consistency::None).await;
            let count = array.geometry().group_count();
            let error = grow(&world, &array, count).await.expect_err("refused").to_string();
            assert!(error.contains("cannot be given another parity"), "{error}");
        });
    }
    let nine = (Level::Raid1, 9);
    with_drives(10, move |world| async move {
        let array = made(&world, nine.0, nine.1, Consistency::None).await;
        let error = grow(&world, &array, 1).await.expect_err("refused").to_string();
        assert_eq!(error, "RAID 1 on 10 members is not possible: it takes 2 to 9");
    });
}

#[test]
fn a_cut_while_a_parity_row_is_added_is_gone_on_from_and_loses_nothing() {
    let cases = [
        (Level::Raid5, 3, 1, Consistency::Journal, 1),
        (Level::Raid6, 4, 1, Consistency::Journal, 7),
        (Level::Raid1, 2, 1, Consistency::Bitmap, 3),
        (FIFTY, 6, 2, Consistency::Journal, 11),
    ];
    for (level, members, count, how, stride) in cases {
        let media = with_some_over(level, members, count, how);
        let blocks = blocks(level, members);
        at_steps(
            "grow",
            stride,
            &media,
            || Facts::after(blocks),
            move |world, facts| async move {
                let order: Vec<usize> = (0..members).collect();
                let (array, _) = world.assemble(&order, PLAIN).await.expect("all");
                array.set_pace(BackgroundTask::Rebuild, FAST);
                facts.write(&array, blocks[1], 9).await;
                grow(&world, &array, count).await.expect("it can");
                for byte in 20..23 {
                    facts.write(&array, blocks[byte as usize % 6] + 1, byte).await;
                    world.handle.sleep(SECOND_NS / 1000).await;
                }
                array.ended(BackgroundTask::Rebuild).await;
                facts.write(&array, 0, 30).await;
                array.stop().await.expect("stop");
                facts.is_stopped.set(true);
            },
        );
    }
}

/// Nothing has to be chosen after a crash: no data depend on what a parity row lacks that is being added.
#[test]
fn a_cut_while_a_parity_row_is_added_leaves_nothing_to_choose_without_a_journal() {
    for (level, members) in [(Level::Raid5, 3), (Level::Raid6, 4)] {
        let media = with_some_over(level, members, 1, Consistency::Bitmap);
        let blocks = blocks(level, members);
        at_steps(
            "grow with a bitmap",
            5,
            &media,
            || Facts::after(blocks),
            move |world, facts| async move {
                let order: Vec<usize> = (0..members).collect();
                let (array, _) = world.assemble(&order, PLAIN).await.expect("all");
                array.set_pace(BackgroundTask::Rebuild, FAST);
                grow(&world, &array, 1).await.expect("it can");
                for (index, block) in blocks.into_iter().enumerate() {
                    facts.write(&array, block + 1, 10 + index as u8).await;
                }
                array.ended(BackgroundTask::Rebuild).await;
            },
        );
    }
}

/// A device that was to be a parity row and is not there at the next start belongs to nobody.
#[test]
fn a_cut_and_a_start_without_the_new_device_leave_the_array_as_it_was_or_without_that_parity_row() {
    let (level, members) = (Level::Raid6, 4);
    let media = with_some_over(level, members, 1, Consistency::Journal);
    let blocks = blocks(level, members);
    let mut shapes = [0, 0];
    for cut in (0..).step_by(5) {
        let facts = Facts::after(blocks);
        let scenario = |world: World, facts: Facts| async move {
            let (array, _) = world.assemble(&[0, 1, 2, 3], PLAIN).await.expect("all");
            facts.write(&array, blocks[1], 9).await;
            grow(&world, &array, 1).await.expect("it can");
        };
        let (is_through, after) = boot(&media, cut, &facts, scenario);
        if is_through {
            break;
        }
        let mut dice = Prng::new(cut);
        let left = after.iter().map(|medium| medium.after_power_cut(&mut dice)).collect();
        let has_grown = on_media(left, move |world| async move {
            let is_five = |it: &Geometry| it.level() == Level::Raid7_3;
            let (array, model, has_grown) =
                start_without_the_fifth(&world, &facts, blocks[2], cut, is_five).await;
            if has_grown {
                array
                    .replace(MemberIndex(4), world.drives[4].clone(), [99; 16])
                    .await
                    .expect("it can");
            } else {
                grow(&world, &array, 1).await.expect("it can");
            }
            array.ended(BackgroundTask::Rebuild).await;
            array.stop().await.expect("stop");
            drop(array);
            check_losses(&world, members + 1, 3, &model).await;
            has_grown
        });
        shapes[usize::from(has_grown)] += 1;
    }
    assert!(shapes[0] > 5 && shapes[1] > 0, "{shapes:?}");
}

#[test]
fn who_is_refused_while_it_grows_does_not_let_the_next_one_in() {
    with_drives(6, |world| async move {
        let array = made(&world, Level::Raid5, 3, Consistency::Journal).await;
        let (growing, drive) = (array.clone(), world.drives[3].clone());
        let grown = world.handle.spawn(async move { growing.grow(vec![drive], &[[93; 16]]).await });
        world.handle.yield_now().await;
        for drive in &world.drives[4..6] {
            let refused = array.grow(vec![drive.clone()], &[[94; 16]]).await;
            assert_eq!(refused, Err(GrowError::Growing.into()));
        }
        assert_eq!(grown.await, Ok(()));
    });
}
