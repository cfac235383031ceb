//! A member for capacity, added while the array serves. The tests have power cuts at every step with
//! requests beside it. Members are lost before, in the middle and behind it. Other tests show what is
//! refused.

use std::cell::RefCell;
use std::rc::Rc;

use voltier_array::{
    Array, ArrayError, AssembleOptions, BackgroundTask, Consistency, CreateOptions, Geometry,
    GrowError, Layout, Level, MemberIndex, MemberState, Pace, Priority, ReshapeWait, ScrubRepair,
};
use voltier_block::{BlockDevice, Buf, Bytes, Durability, Lba, Prng, SectorRange};

use crate::durable::crash::{Facts, boot, start_without_the_fifth};
use crate::durable::drive::{Drive, Medium};
use crate::durable::grow::choices;
use crate::durable::world::{Model, World, made, on_media, options, read, with_drives, write};
use crate::sampled::one_in;

const PLAIN: AssembleOptions = AssembleOptions { force: false, degraded: false };
const EITHER: AssembleOptions = AssembleOptions { force: false, degraded: true };
const FAST: Pace = Pace { priority: Priority::High, floor_bytes_per_second: 0 };
const SLOW: Pace = Pace { priority: Priority::Idle, floor_bytes_per_second: 1 << 20 };
/// Blocks of 4 KiB in a chunk.
const CHUNK_BLOCKS: u64 = 16;

fn uuid(member: usize) -> [u8; 16] {
    [200 + member as u8; 16]
}

async fn grow(world: &World, array: &Array<Drive>) -> Result<(), ArrayError> {
    let member = array.geometry().member_count();
    array.set_pace(BackgroundTask::Rebuild, FAST);
    array.grow_capacity(world.drives[member].clone(), uuid(member)).await
}

/// A block in each chunk of the volume, at another place in each.
fn blocks(array: &Array<Drive>) -> Vec<u64> {
    let chunks = array.limits().sectors / 8 / CHUNK_BLOCKS;
    (0..chunks).map(|chunk| chunk * CHUNK_BLOCKS + chunk * 7 % CHUNK_BLOCKS).collect()
}

/// Writes to every so many chunks, from one on.
async fn fill(array: &Array<Drive>, from: usize, step: usize) -> Model {
    let mut model = Model::default();
    for (index, block) in blocks(array).into_iter().enumerate().skip(from).step_by(step) {
        let byte = (index % 250) as u8 + 1;
        write(array, block, byte).await.expect("write");
        model.acknowledge(block, byte);
    }
    model
}

/// Checks the content of a stopped array on these drives without any so many of them.
async fn check_losses(world: &World, drives: &[usize], count: usize, model: &Model, when: &str) {
    for lost in choices(drives.len(), count) {
        let again = World::new(&world.handle, world.media(), None, 3);
        let rest = (0..drives.len()).rev().filter(|it| !lost.contains(it));
        let rest: Vec<usize> = rest.map(|it| drives[it]).collect();
        let (array, _) = again.assemble(&rest, EITHER).await.unwrap_or_else(|error| {
            panic!("{when}, without {lost:?}: {error}");
        });
        model.check(&array, &format!("{when}, without {lost:?}")).await;
    }
}

/// Nothing in an array that has moved is wrong: neither data nor parity, nor what it has of new capacity.
async fn check_moved(world: &World, array: &Array<Drive>, model: &mut Model, when: &str) {
    model.check(array, when).await;
    assert!(array.reshape_status().is_none(), "{when}");
    let status = array.status().expect("it has one");
    assert_eq!(status.bytes, array.limits().sectors * 512, "{when}");
    let known = model.blocks();
    for block in blocks(array) {
        if !known.contains(&block) {
            assert_eq!(read(array, block).await, Ok(0), "{when}: block {block} was never written");
        }
    }
    for block in blocks(array).into_iter().rev().take(5) {
        write(array, block, 77).await.unwrap_or_else(|error| panic!("{when}: {error}"));
        model.acknowledge(block, 77);
    }
    array.scrub(ScrubRepair::Nothing).expect("it can");
    array.ended(BackgroundTask::Scrub).await;
    let found = array.scrub_status().counts;
    assert_eq!((found.mismatched_blocks, found.skipped_bytes), (0, 0), "{when}");
    array.stop().await.unwrap_or_else(|error| panic!("{when}: {error}"));
    let (rows, members) = (array.geometry().parity_chunks(), array.geometry().member_count());
    let all: Vec<usize> = array_drives(world, members).await;
    check_losses(world, &all, rows, model, when).await;
}

/// The drives that are members now.
async fn array_drives(world: &World, members: usize) -> Vec<usize> {
    let mut drives: Vec<Option<usize>> = vec![None; members];
    let mut newest = vec![0; members];
    for (number, drive) in world.drives.iter().enumerate() {
        let Ok(Some(found)) = Array::examine(drive).await else { continue };
        let event = found.array.event;
        // One that was to come, and to which the others never went, has a number of its own.
        let MemberIndex(member) = found.member;
        let is_known = member < members && found.array.is_in_service(found.member);
        if is_known && event > newest[member] {
            (drives[member], newest[member]) = (Some(number), event);
        }
    }
    drives.into_iter().map(|drive| drive.expect("all are there")).collect()
}

#[test]
fn an_array_gets_wider_under_requests_and_has_its_new_size_and_all_redundancy() {
    let cases = [
        (Level::Raid5, 3, Layout::LeftSymmetric),
        (Level::Raid5, 5, Layout::LeftSymmetric),
        (Level::Raid6, 4, Layout::LeftSymmetric),
        (Level::Raid6, 5, Layout::LeftSymmetricFixedParityRows),
        (Level::Raid6, 5, Layout::AddedParityRows { rotating: 1 }),
        (Level::Raid7_3, 5, Layout::LeftSymmetric),
        (Level::NPlusM { data: 2, parity: 4 }, 6, Layout::LeftSymmetric),
    ];
    for (level, members, layout) in cases {
        for how in [Consistency::Journal, Consistency::Bitmap, Consistency::None] {
            with_drives(members + 2, move |world| async move {
                let options = CreateOptions { layout, ..options(level, members, how) };
                let drives = world.drives[..members].to_vec();
                let array = Array::create(&world.handle, &options, drives).await.expect("possible");
                let model = Rc::new(RefCell::new(fill(&array, 0, 2).await));
                let (size, all) = (array.limits().sectors, blocks(&array));
                grow(&world, &array).await.expect("it can");
                let status = array.status().expect("it has one");
                let reshape = status.reshape.expect("it moves");
                assert_eq!((reshape.from_members, reshape.to_members), (members, members + 1));
                assert_eq!((status.bytes, status.is_degraded), (size * 512, false));
                assert_eq!(status.members[members].state, MemberState::InService);
                let clients = (0..3_u64).map(|client| {
                    let (array, model, handle) =
                        (array.clone(), model.clone(), world.handle.clone());
                    let all = all.clone();
                    world.handle.spawn(async move {
                        let mut dice = Prng::new(client + 1);
                        for _ in 0..200 {
                            // Each client has blocks of its own.
                            let index = dice.below(all.len() as u64 / 3) * 3 + client;
                            let (block, byte) = (all[index as usize], 1 + dice.below(255) as u8);
                            model.borrow_mut().begin(block, byte);
                            write(&array, block, byte).await.expect("write");
                            model.borrow_mut().acknowledge(block, byte);
                            assert_eq!(read(&array, block).await, Ok(byte));
                            handle.sleep(dice.below(50_000)).await;
                        }
                    })
                });
                let clients: Vec<_> = clients.collect();
                array.reshaped().await;
                let writes = array.counts().writes;
                for client in clients {
                    client.await;
                }
                assert!(array.counts().writes > writes, "it was through before the requests");
                assert!(array.limits().sectors > size);
                let mut model = model.borrow().clone();
                check_moved(&world, &array, &mut model, &format!("{level} {how:?}")).await;
            });
        }
    }
}

#[test]
fn one_member_after_the_other_and_a_parity_row_between_them() {
    with_drives(9, |world| async move {
        let array = made(&world, Level::Raid5, 3, Consistency::Journal).await;
        let mut model = fill(&array, 0, 1).await;
        for _ in 0..2 {
            grow(&world, &array).await.expect("it can");
            array.reshaped().await;
            model.check(&array, "one more").await;
        }
        array.grow(vec![world.drives[5].clone()], &[uuid(5)]).await.expect("it can");
        array.ended(BackgroundTask::Rebuild).await;
        assert_eq!(array.geometry().level(), Level::Raid6);
        grow(&world, &array).await.expect("it can");
        array.reshaped().await;
        assert_eq!(array.geometry().member_count(), 7);
        array.stop().await.expect("stop");
        drop(array);
        let (array, report) = world.assemble(&[3, 6, 0, 2, 5, 1, 4], PLAIN).await.expect("all");
        assert!(report.was_clean && report.left_out.is_empty());
        check_moved(&world, &array, &mut model, "all of them").await;
    });
}

#[test]
fn what_was_never_written_is_not_moved() {
    with_drives(4, |world| async move {
        let array = made(&world, Level::Raid5, 3, Consistency::Journal).await;
        let before = array.counts().member_writes;
        grow(&world, &array).await.expect("it can");
        array.reshaped().await;
        assert_eq!(array.counts().member_writes, before);
        check_moved(&world, &array, &mut Model::default(), "empty").await;
    });
    // Only the end of it, or only the start.
    for (from, step) in [(90, 1), (0, 95)] {
        with_drives(4, move |world| async move {
            let array = made(&world, Level::Raid5, 3, Consistency::Journal).await;
            let mut model = fill(&array, from, step).await;
            grow(&world, &array).await.expect("it can");
            array.reshaped().await;
            check_moved(&world, &array, &mut model, "a part").await;
        });
    }
}

#[test]
fn what_cannot_be_given_room_is_refused_in_one_line_and_nothing_changes() {
    with_drives(7, |world| async move {
        let array = made(&world, Level::Raid5, 4, Consistency::Journal).await;
        write(&array, 0, 7).await.expect("write");
        let before = array.status().expect("it has one");
        let all = world.drives.clone();
        let refused = async |drive: &Drive, uuid: [u8; 16]| {
            array.grow_capacity(drive.clone(), uuid).await.expect_err("refused").to_string()
        };
        let line = refused(&all[4], [1; 16]).await;
        assert!(line.contains("has this uuid already"), "{line}");
        let small = Drive::new(&world.handle, &world.power, 4 << 20, Medium::default(), 9);
        let line = refused(&small, uuid(4)).await;
        assert!(line.contains("are needed: take a larger one"), "{line}");
        array.scrub(ScrubRepair::Nothing).expect("it can");
        let line = refused(&all[4], uuid(4)).await;
        assert_eq!(line, "a scrub is running: wait for it, or cancel it");
        array.ended(BackgroundTask::Scrub).await;
        assert_eq!(array.status().expect("it has one").event, before.event);
        assert!(matches!(Array::examine(&all[4]).await, Ok(None)), "it was not touched");
        array.fail(MemberIndex(1)).expect("one may go");
        let line = refused(&all[4], uuid(4)).await;
        assert!(line.starts_with("members are missing or being filled"), "{line}");
        array.replace(MemberIndex(1), all[5].clone(), [77; 16]).await.expect("it can");
        array.ended(BackgroundTask::Rebuild).await;
        array.set_pace(BackgroundTask::Rebuild, SLOW);
        array.grow_capacity(all[4].clone(), uuid(4)).await.expect("it can");
        let line = refused(&all[6], uuid(6)).await;
        assert!(line.starts_with("the capacity of the array is being expanded"), "{line}");
        let row = array.grow(vec![all[6].clone()], &[uuid(6)]).await;
        assert_eq!(row, Err(GrowError::Reshaping.into()));
        assert_eq!(array.scrub(ScrubRepair::Nothing), Err(GrowError::Reshaping.into()));
        assert_eq!(array.set_journal(None).await, Err(GrowError::Reshaping.into()));
        array.stop().await.expect("stop");
        assert_eq!(refused(&all[6], uuid(6)).await, "the array is stopped: assemble it first");
    });
    for (level, members) in [(Level::Raid0, 2), (Level::Raid1, 2), (Level::Raid10, 4)] {
        with_drives(members + 1, move |world| async move {
            let array = made(&world, level, members, Consistency::None).await;
            let error = grow(&world, &array).await.expect_err("refused").to_string();
            assert!(error.contains("cannot be given a member for capacity"), "{error}");
        });
    }
    // 48 chunks of 7 and of 6: 7 x 6 are needed, and 8 x 7.
    for (members, is_possible) in [(7, true), (8, false)] {
        with_drives(members + 1, move |world| async move {
            let array = made(&world, Level::Raid5, members, Consistency::Journal).await;
            let grown = grow(&world, &array).await;
            assert_eq!(grown.is_ok(), is_possible, "{grown:?}");
        });
    }
}

#[test]
fn a_member_is_lost_in_the_middle_the_move_waits_for_another_and_goes_on() {
    for (level, members, lost) in
        [(Level::Raid5, 3, 3), (Level::Raid5, 3, 0), (Level::Raid6, 5, 2), (Level::Raid6, 4, 4)]
    {
        for done in [0, 1, 30, 60] {
            with_drives(members + 2, move |world| async move {
                let array = made(&world, level, members, Consistency::Journal).await;
                let mut model = fill(&array, 0, 1).await;
                grow(&world, &array).await.expect("it can");
                let percent = || {
                    let progress = array.reshape_status().map(|it| it.progress);
                    progress.map_or(100, |it| it.done_bytes * 100 / it.total_bytes)
                };
                while percent() < done {
                    world.handle.sleep(20_000).await;
                }
                assert!(percent() < 100, "it was through before");
                world.drives[lost].is_gone.set(true);
                for (index, block) in blocks(&array).into_iter().enumerate().step_by(7) {
                    write(&array, block, index as u8).await.expect("one may go");
                    model.acknowledge(block, index as u8);
                }
                world.handle.sleep(3_000_000_000).await;
                let status = array.status().expect("it has one");
                assert!(status.is_degraded);
                let reshape = status.reshape.expect("it is not through");
                assert_eq!(reshape.waits_for, Some(ReshapeWait::Members));
                model.check(&array, "degraded").await;
                if done == 1 {
                    // The array is the same after a start.
                    array.stop().await.expect("stop");
                }
                let array = if done == 1 {
                    drop(array);
                    let rest = (0..=members).filter(|it| *it != lost).collect::<Vec<_>>();
                    world.assemble(&rest, EITHER).await.expect("enough").0
                } else {
                    array
                };
                model.check(&array, "degraded, again").await;
                array.set_pace(BackgroundTask::Rebuild, FAST);
                let spare = world.drives[members + 1].clone();
                array.replace(MemberIndex(lost), spare, [99; 16]).await.expect("it can");
                array.ended(BackgroundTask::Rebuild).await;
                array.reshaped().await;
                check_moved(&world, &array, &mut model, &format!("{level} {lost} {done}")).await;
            });
        }
    }
}

/// An array with something in every chunk, or in some, stopped; a drive to come, and a spare.
fn filled(level: Level, members: usize, how: Consistency, step: usize) -> (Vec<Medium>, Model) {
    on_media(vec![Medium::default(); members + 2], move |world| async move {
        let array = made(&world, level, members, how).await;
        let model = fill(&array, 0, step).await;
        array.stop().await.expect("stop");
        (world.media(), model)
    })
}

fn facts(model: &Model) -> Facts {
    let facts = Facts::default();
    facts.is_made.set(true);
    facts.model.replace(model.clone());
    facts
}

/// Grows, with requests beside it, and goes on until all is moved.
async fn moves(world: World, facts: Facts, members: usize, seed: u64) {
    let order: Vec<usize> = (0..members).collect();
    let (array, _) = world.assemble(&order, PLAIN).await.expect("all");
    let all = blocks(&array);
    facts.write(&array, all[1] + 1, 9).await;
    grow(&world, &array).await.expect("it can");
    let (client, told, handle) = (array.clone(), facts.clone(), world.handle.clone());
    let client = world.handle.spawn(async move {
        let mut dice = Prng::new(seed);
        for _ in 0..40 {
            // More often at the start, where it is moved over itself.
            let most = if dice.one_in(2) { all.len() as u64 } else { 20 };
            let block = all[dice.below(most) as usize] + dice.below(2);
            told.write(&client, block, 1 + dice.below(255) as u8).await;
            handle.sleep(dice.below(150_000)).await;
        }
    });
    array.reshaped().await;
    assert!(array.reshape_status().is_none(), "it went to its end");
    client.await;
    let last = *blocks(&array).last().expect("there are some");
    facts.write(&array, last, 30).await;
    array.stop().await.expect("stop");
    facts.is_stopped.set(true);
}

/// The array after a cut, without some members: then they are replaced, and the move goes to its end.
fn after_cut(media: Vec<Medium>, facts: &Facts, members: usize, lost: Option<usize>, when: &str) {
    let (facts, when) = (facts.clone(), when.to_owned());
    on_media(media, move |world| async move {
        let mut order = Vec::new();
        for number in 0..=members {
            let is_of_it = matches!(Array::examine(&world.drives[number]).await, Ok(Some(_)));
            if is_of_it && lost != Some(number) {
                order.push(number);
            }
        }
        let turn = when.len() % order.len();
        order.rotate_left(turn);
        let (array, report) = world.assemble(&order, EITHER).await.unwrap_or_else(|error| {
            panic!("{when}: {error}");
        });
        array.set_pace(BackgroundTask::Rebuild, FAST);
        assert!(!facts.is_stopped.get() || report.was_clean, "{when}");
        let mut model = facts.model.borrow().clone();
        let first = model.check(&array, &when).await;
        if lost.is_none() && when.len().is_multiple_of(2) {
            // A stop in order in the middle, and any one goes missing.
            while array.status().is_some_and(|status| status.regions_to_resync > 0) {
                world.handle.sleep(10_000_000).await;
            }
            array.stop().await.unwrap_or_else(|error| panic!("{when}: {error}"));
            drop(array);
            for without in order.clone() {
                let again = World::new(&world.handle, world.media(), None, 7);
                let rest: Vec<usize> = order.iter().copied().filter(|it| *it != without).collect();
                let (array, _) = again.assemble(&rest, EITHER).await.unwrap_or_else(|error| {
                    panic!("{when}, without {without}: {error}");
                });
                assert_eq!(model.check(&array, &when).await, first, "{when}, {without}");
            }
            return;
        }
        let count = array.geometry().member_count();
        if let Some(lost) = lost.filter(|lost| *lost < count) {
            assert!(!array.is_online(MemberIndex(lost)), "{when}");
            for (block, byte) in [(3, 5), (50, 6), (700, 8)] {
                write(&array, block, byte).await.unwrap_or_else(|error| panic!("{when}: {error}"));
                model.acknowledge(block, byte);
            }
            let spare = world.drives[members + 1].clone();
            array.replace(MemberIndex(lost), spare, [99; 16]).await.expect("it can");
            array.ended(BackgroundTask::Rebuild).await;
        }
        array.reshaped().await;
        check_moved(&world, &array, &mut model, &when).await;
    });
}

fn at_steps(level: Level, members: usize, how: Consistency, step: usize, stride: usize) {
    let stride = one_in(stride);
    let (media, model) = filled(level, members, how, step);
    for cut in (0..).step_by(stride) {
        let facts = facts(&model);
        let (is_through, after) =
            boot(&media, cut, &facts, move |world, facts| moves(world, facts, members, cut));
        if is_through {
            assert!(cut > 100, "nothing happened");
            return;
        }
        // Without a journal a crash and a loss together are a matter of choice.
        let lost = (how == Consistency::Journal).then_some(cut as usize / stride % (members + 1));
        for (luck, lost) in [None, lost].into_iter().enumerate() {
            let mut dice = Prng::new(cut * 10 + luck as u64);
            let left = after.iter().map(|medium| medium.after_power_cut(&mut dice)).collect();
            let when = format!("{level} {how:?}, cut at {cut}, {luck}, without {lost:?}");
            after_cut(left, &facts, members, lost, &when);
        }
    }
}

#[test]
fn a_cut_at_any_step_of_a_move_of_one_parity_loses_nothing() {
    at_steps(Level::Raid5, 3, Consistency::Journal, 1, 5);
}

#[test]
fn a_cut_at_any_step_of_a_move_of_two_parities_loses_nothing() {
    at_steps(Level::Raid6, 4, Consistency::Journal, 2, 13);
}

#[test]
fn a_cut_at_any_step_of_a_move_of_wide_stripes_loses_nothing() {
    at_steps(Level::Raid5, 6, Consistency::Journal, 3, 31);
}

#[test]
fn a_cut_at_any_step_of_a_move_without_a_journal_leaves_data_and_parity_that_match() {
    at_steps(Level::Raid5, 3, Consistency::Bitmap, 1, 11);
    at_steps(Level::Raid6, 4, Consistency::None, 5, 41);
}

/// Cuts again and again: of what was begun, of going on with it, and of going on with that.
#[test]
fn cuts_follow_each_other_and_nothing_is_lost() {
    let members = 3;
    let (media, model) = filled(Level::Raid5, members, Consistency::Journal, 1);
    for seed in 0..60 {
        let mut dice = Prng::new(seed);
        let facts = facts(&model);
        let scenario = move |world, facts| moves(world, facts, members, seed);
        let (mut is_through, mut after) = boot(&media, 150 + dice.below(500), &facts, scenario);
        for round in 0..6 {
            if is_through {
                break;
            }
            let left: Vec<Medium> =
                after.iter().map(|medium| medium.after_power_cut(&mut dice)).collect();
            let cut = 5 + dice.below(150);
            (is_through, after) = boot(&left, cut, &facts, move |world, facts| async move {
                let (array, _) = world.assemble(&[3, 1, 0, 2], EITHER).await.expect("all");
                array.set_pace(BackgroundTask::Rebuild, FAST);
                for chunk in 0..8 {
                    facts.write(&array, (seed + round * 3 + chunk) % 90 * 16, chunk as u8).await;
                }
                array.reshaped().await;
            });
        }
        let mut dice = Prng::new(seed + 1000);
        let left = after.iter().map(|medium| medium.after_power_cut(&mut dice)).collect();
        after_cut(left, &facts, members, Some(seed as usize % 4), &format!("seed {seed}"));
    }
}

/// The new device is not there at the next start: nothing was moved, or it is a member that is missing.
#[test]
fn a_cut_and_a_start_without_the_new_device_leave_the_array_as_it_was_or_with_one_missing() {
    let members = 4;
    let (media, model) = filled(Level::Raid6, members, Consistency::Journal, 3);
    let mut shapes = [0, 0];
    for cut in (0..).step_by(5) {
        let facts = facts(&model);
        let (is_through, after) = boot(&media, cut, &facts, |world, facts| async move {
            let (array, _) = world.assemble(&[0, 1, 2, 3], PLAIN).await.expect("all");
            facts.write(&array, 16, 9).await;
            array.set_pace(BackgroundTask::Rebuild, SLOW);
            array.grow_capacity(world.drives[4].clone(), uuid(4)).await.expect("it can");
        });
        if is_through {
            break;
        }
        let mut dice = Prng::new(cut);
        let left = after.iter().map(|medium| medium.after_power_cut(&mut dice)).collect();
        let has_grown = on_media(left, move |world| async move {
            let is_five = |it: &Geometry| it.member_count() == 5;
            let (array, mut model, has_grown) =
                start_without_the_fifth(&world, &facts, 32, cut, is_five).await;
            array.set_pace(BackgroundTask::Rebuild, FAST);
            if has_grown {
                array
                    .replace(MemberIndex(4), world.drives[4].clone(), [99; 16])
                    .await
                    .expect("it can");
                array.ended(BackgroundTask::Rebuild).await;
            } else {
                grow(&world, &array).await.expect("it can");
            }
            array.reshaped().await;
            check_moved(&world, &array, &mut model, "in the end").await;
            has_grown
        });
        shapes[usize::from(has_grown)] += 1;
    }
    assert!(shapes[0] > 5 && shapes[1] > 0, "{shapes:?}");
}

/// Every sector of a small volume, before, in the middle and behind it.
#[test]
fn every_sector_is_what_it_was() {
    with_drives(5, |world| async move {
        let array = made(&world, Level::Raid6, 4, Consistency::Journal).await;
        let sectors = array.limits().sectors;
        let mut content: Vec<u8> = (0..sectors as usize * 512)
            .map(|at| (at / 512 % 251) as u8 ^ (at / (512 * 251)) as u8)
            .collect();
        let run = 128 * 1024;
        for (index, piece) in content.chunks(run).enumerate() {
            let at = Lba((index * run / 512) as u64);
            let data = Bytes::copy_of(piece);
            let durable = Durability::Cached;
            array.write(at, data.into(), durable).await.expect("write");
        }
        grow(&world, &array).await.expect("it can");
        let mut dice = Prng::new(3);
        while array.reshape_status().is_some() {
            let start = dice.below(sectors - 300);
            let count = 1 + dice.below(300);
            let places = start as usize * 512..(start + count) as usize * 512;
            let at = Lba(start);
            if dice.one_in(3) {
                content[places.clone()].fill(dice.below(256) as u8);
                let data = Bytes::copy_of(&content[places.clone()]);
                let durable = Durability::Cached;
                array.write(at, data.into(), durable).await.expect("write");
            } else if dice.one_in(5) {
                content[places.clone()].fill(0);
                let range = SectorRange::new(at, count);
                let durable = Durability::Cached;
                array.write_zeroes(range, durable).await.expect("zeroes");
            }
            let into = Buf::new(places.len());
            let read = array.read(at, into).await.expect("read");
            assert!(read[..] == content[places], "{start} and {count} sectors");
            world.handle.sleep(dice.below(100_000)).await;
        }
        for (index, piece) in content.chunks(run).enumerate() {
            let at = Lba((index * run / 512) as u64);
            let read = array.read(at, Buf::new(piece.len())).await.expect("read");
            assert!(read[..] == *piece, "the piece {index}");
        }
    });
}
