//! Members that are lost, come back or make place for others at awkward moments.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_array::{
    Array, AssembleOptions, BackgroundTask, Consistency, Level, MemberIndex, MemberState, Pace,
    Priority, Replacement, ScrubRepair, StripeNumber, StripeSlot,
};
use voltier_block::{BlockDevice, Bytes, Durability, Lba, MIB, Prng, SECTOR_BYTES};

use crate::durable::crash::{Facts, at_every_step, at_every_step_in_any_order};
use crate::durable::drive::{Drive, Medium};
use crate::durable::world::{
    World, blocks, made, on_media, options, read, with_drives, with_some_over, write,
};

const SECOND_NS: u64 = 1_000_000_000;
const DEGRADED: AssembleOptions = AssembleOptions { force: false, degraded: true };
const IDLE: Pace = Pace { priority: Priority::Idle, floor_bytes_per_second: 1 };
const NEW: [u8; 16] = [77; 16];
/// Batches of two blocks that fill a ring of the drives here, of 254 blocks.
const BATCHES_OF_A_RING: u64 = 127;

async fn write_some(array: &Array<Drive>, count: u64) {
    for number in 0..count {
        write(array, number % 16, 1).await.expect("write");
    }
}

async fn give_back(world: &World, array: &Array<Drive>) {
    let back = array.replace(MemberIndex(1), world.drives[1].clone(), NEW).await;
    assert_eq!(back, Ok(Replacement::Return));
    array.ended(BackgroundTask::Rebuild).await;
    assert!(array.is_online(MemberIndex(1)));
}

/// Behind the back of the array, which learns nothing by it.
async fn flush(drives: &[Drive]) {
    for drive in drives {
        drive.flush().await.expect("flush");
    }
}

/// The fate of a mirror between the loss of its second member and the member's last return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    /// A start without the member.
    Restart,
    /// The same, and both copies of the label of the member's ring cannot be read any more.
    RestartAndBadLabels,
    /// A start without the member, and one with it while it is filled.
    RestartWhileFilled,
}

/// A mirror, the second member of which returns: its ring begins anew over batches of the time before. A
/// record of three blocks does not fit behind the 126th batch and goes to block 0. A batch with the number of
/// that record lies behind the 126th still.
fn with_a_ring_begun_anew(returns_before: u64, meanwhile: Meanwhile) -> Vec<Medium> {
    on_media(vec![Medium::default(); 2], move |world| async move {
        let mut array = world.create(&options(Level::Raid1, 2, Consistency::Journal)).await;
        for _ in 0..returns_before {
            write_some(&array, 1).await;
            array.fail(MemberIndex(1)).expect("one may go");
            give_back(&world, &array).await;
        }
        write_some(&array, BATCHES_OF_A_RING + 10).await;
        array.fail(MemberIndex(1)).expect("one may go");
        if meanwhile != Meanwhile::Nothing {
            array.stop().await.expect("stop");
            drop(array);
            (array, _) = world.assemble(&[0], DEGRADED).await.expect("one is enough");
        }
        if meanwhile == Meanwhile::RestartAndBadLabels {
            // The ring begins at one MiB.
            world.drives[1].unreadable.borrow_mut().extend(2048..2064);
        }
        if meanwhile == Meanwhile::RestartWhileFilled {
            write_some(&array, 1).await;
            array.set_pace(BackgroundTask::Rebuild, IDLE);
            let back = array.replace(MemberIndex(1), world.drives[1].clone(), NEW).await;
            assert_eq!(back, Ok(Replacement::Return));
            array.stop().await.expect("stop");
            assert!(!array.is_online(MemberIndex(1)), "it is being filled");
            drop(array);
            (array, _) = world.assemble(&[0, 1], DEGRADED).await.expect("both");
            array.ended(BackgroundTask::Rebuild).await;
            assert!(array.is_online(MemberIndex(1)));
        } else {
            give_back(&world, &array).await;
        }
        write_some(&array, BATCHES_OF_A_RING - 1).await;
        let data = Bytes::copy_of(&[9; 8192]);
        array.write(Lba(800), data.into(), Durability::Durable).await.expect("write");
        world.media()
    })
}

/// The life of a drive that was away may be above those of all others.
#[test]
fn a_replay_takes_no_batch_for_one_of_a_ring_that_began_anew() {
    let cases = [
        (0, Meanwhile::Nothing),
        (2, Meanwhile::Restart),
        (2, Meanwhile::RestartAndBadLabels),
        (2, Meanwhile::RestartWhileFilled),
        (3, Meanwhile::RestartWhileFilled),
        (4, Meanwhile::RestartWhileFilled),
    ];
    for (returns_before, meanwhile) in cases {
        let media = with_a_ring_begun_anew(returns_before, meanwhile);
        for luck in 0..8 {
            let mut dice = Prng::new(luck);
            let left = media.iter().map(|medium| medium.after_power_cut(&mut dice)).collect();
            on_media(left, move |world| async move {
                let (array, _) = world.assemble(&[0, 1], DEGRADED).await.expect("all");
                let when = format!("after {returns_before} returns, {meanwhile:?}, luck {luck}");
                assert_eq!(read(&array, 100).await, Ok(9), "{when}");
                assert!(
                    array.is_online(MemberIndex(0)) && array.is_online(MemberIndex(1)),
                    "{when}"
                );
            });
        }
    }
}

/// The facts of an array that has ones in these blocks, and nothing in others.
fn facts_of(written: &[u64], fresh: &[u64]) -> Facts {
    let facts = Facts::default();
    facts.is_made.set(true);
    for (blocks, byte) in [(written, 1), (fresh, 0)] {
        for block in blocks {
            facts.model.borrow_mut().acknowledge(*block, byte);
        }
    }
    facts
}

/// Some blocks of the second region, in several chunks.
fn fresh_blocks(level: Level, members: usize) -> Vec<u64> {
    let first = blocks(level, members)[2];
    (0..6).map(|chunk| first + 16 * chunk).collect()
}

#[test]
fn a_cut_while_a_copy_takes_its_place_leaves_no_junk_in_fresh_regions() {
    for (level, members) in [(Level::Raid0, 2), (Level::Raid1, 2), (Level::Raid5, 3)] {
        let media = on_media(vec![Medium::default(); members + 1], move |world| async move {
            let array = made(&world, level, members, Consistency::Bitmap).await;
            array.stop().await.expect("stop");
            world.media()
        });
        let (first, fresh) = (blocks(level, members)[0], fresh_blocks(level, members));
        let last = fresh[5];
        at_every_step(
            "the end of a copy",
            &media,
            || facts_of(&[], &fresh),
            move |world, facts| async move {
                let order: Vec<usize> = (0..members).collect();
                let (array, _) = world.assemble(&order, DEGRADED).await.expect("all");
                let replaced =
                    array.replace(MemberIndex(0), world.drives[members].clone(), NEW).await;
                assert_eq!(replaced, Ok(Replacement::Successor));
                // The first region is being made zero, and the second one waits, while the copy ends.
                world.drives[1].set_hung(true);
                let writes = [(first, 10), (last, 11)].map(|(block, byte)| {
                    let (array, facts) = (array.clone(), facts.clone());
                    world.handle.spawn(async move { facts.write(&array, block, byte).await })
                });
                world.handle.sleep(SECOND_NS / 100).await;
                world.drives[1].set_hung(false);
                for write in writes {
                    write.await;
                }
                array.ended(BackgroundTask::Rebuild).await;
                assert_eq!(array.status().expect("it has one").members[0].uuid, NEW);
            },
        );
    }
}

/// Levels, members and consistencies of arrays whose first member dies while it is copied.
const COPIED: [(Level, usize, Consistency); 2] =
    [(Level::Raid1, 2, Consistency::Bitmap), (Level::Raid5, 3, Consistency::Journal)];

/// An array with ones in two blocks of the first region, stopped, and a drive that was never in it. The
/// second block is not among those that a copy takes first.
fn with_a_first_region(level: Level, members: usize, consistency: Consistency) -> Vec<Medium> {
    on_media(vec![Medium::default(); members + 1], move |world| async move {
        let array = made(&world, level, members, consistency).await;
        for block in &blocks(level, members)[..2] {
            write(&array, *block, 1).await.expect("write");
        }
        array.stop().await.expect("stop");
        world.media()
    })
}

/// A member dies while it is copied: it fails to make the second region zero for a write. The next member
/// takes so long over its zeroes.
async fn lose_a_copied_member(
    world: World,
    facts: Facts,
    members: usize,
    block: u64,
    zeroing_ns: u64,
) {
    let order: Vec<usize> = (0..members).collect();
    let (array, _) = world.assemble(&order, DEGRADED).await.expect("all");
    array.set_pace(BackgroundTask::Rebuild, IDLE);
    let replaced = array.replace(MemberIndex(0), world.drives[members].clone(), NEW).await;
    assert_eq!(replaced, Ok(Replacement::Successor));
    world.drives[0].is_gone.set(true);
    let own = array.clone();
    world.drives[1].set_holds_writes(zeroing_ns > 0);
    let write = world.handle.spawn(async move { facts.write(&own, block, 10).await });
    world.handle.sleep(zeroing_ns).await;
    world.drives[1].set_holds_writes(false);
    write.await;
}

#[test]
fn a_cut_while_a_copied_member_dies_leaves_no_junk_in_fresh_regions() {
    for (level, members, consistency) in COPIED {
        let (blocks, fresh) = (blocks(level, members), fresh_blocks(level, members));
        let last = fresh[5];
        at_every_step(
            "the end of a copied member",
            &with_a_first_region(level, members, consistency),
            || facts_of(&blocks[..2], &fresh),
            move |world, facts| lose_a_copied_member(world, facts, members, last, 0),
        );
    }
}

/// The map with what the new member lacks is durable before anybody takes that member for one. The array
/// meets the loss while another batch of the map is on its way.
#[test]
fn a_member_in_the_place_of_a_dead_one_is_known_by_what_it_lacks_in_any_order_of_events() {
    for (level, members, consistency) in COPIED {
        let (blocks, fresh) = (blocks(level, members), fresh_blocks(level, members));
        let last = fresh[5];
        at_every_step_in_any_order(
            "the end of a copied member",
            &with_a_first_region(level, members, consistency),
            || facts_of(&blocks[..2], &fresh),
            move |world, facts| lose_a_copied_member(world, facts, members, last, SECOND_NS / 1000),
        );
    }
}

/// A device waits for what began without it: a rebuild that runs meanwhile fills nothing of the device. Else
/// the map would not say that the device lacks what is filled once more. A start would take that for there.
#[test]
fn a_device_that_came_during_old_writes_is_known_by_all_that_it_lacks() {
    let media = with_a_first_region(Level::Raid1, 2, Consistency::Bitmap);
    let media = on_media(media, |world| async move {
        let (array, _) = world.assemble(&[0, 1], DEGRADED).await.expect("all");
        let fresh = fresh_blocks(Level::Raid1, 2)[0];
        world.drives[1].set_holds_writes(true);
        let own = array.clone();
        let zeroing = world.handle.spawn(async move { write(&own, fresh, 2).await });
        world.handle.sleep(SECOND_NS / 1000).await;
        let (own, new) = (array.clone(), world.drives[2].clone());
        let replaced =
            world.handle.spawn(async move { own.replace(MemberIndex(0), new, NEW).await });
        world.handle.sleep(SECOND_NS / 1000).await;
        array.rebuild().expect("a copy waits");
        // So long that the rebuild stores what it has filled.
        world.handle.sleep(10 * SECOND_NS).await;
        array.set_pace(BackgroundTask::Rebuild, IDLE);
        array.fail(MemberIndex(0)).expect("the copy takes its place");
        world.handle.sleep(SECOND_NS / 1000).await;
        world.drives[1].set_holds_writes(false);
        assert_eq!((zeroing.await, replaced.await), (Ok(()), Ok(Replacement::Successor)));
        array.cancel(BackgroundTask::Rebuild);
        array.ended(BackgroundTask::Rebuild).await;
        assert!(!array.is_online(MemberIndex(0)), "it lacks the first region");
        // The new device does not get that.
        write(&array, 0, 5).await.expect("write");
        array.stop().await.expect("stop");
        world.media()
    });
    on_media(media, |world| async move {
        let (array, _) = world.assemble(&[2, 1], DEGRADED).await.expect("all");
        for _ in 0..8 {
            assert_eq!(read(&array, 0).await, Ok(5));
        }
        array.ended(BackgroundTask::Rebuild).await;
        array.fail(MemberIndex(1)).expect("one may go");
        assert_eq!(read(&array, 0).await, Ok(5));
    });
}

/// A rebuild that spins lets no time pass, and virtual time says so.
#[test]
fn a_rebuild_ends_when_more_members_are_lost_than_can_be_computed() {
    let media = with_some_over(Level::Raid5, 3, 1, Consistency::Bitmap);
    on_media(media, |world| async move {
        let (array, _) = world.assemble(&[0, 1, 2], DEGRADED).await.expect("all");
        array.fail(MemberIndex(1)).expect("one may go");
        array.set_pace(BackgroundTask::Rebuild, IDLE);
        array.replace(MemberIndex(1), world.drives[3].clone(), NEW).await.expect("taken");
        world.drives[2].is_gone.set(true);
        for block in blocks(Level::Raid5, 3) {
            _ = read(&array, block).await;
        }
        assert!(!array.is_online(MemberIndex(2)));
        array.set_pace(BackgroundTask::Rebuild, Pace { priority: Priority::High, ..IDLE });
        world.handle.sleep(60 * SECOND_NS).await;
        let status = array.rebuild_status();
        assert!(!status.progress.is_running && status.stuck_regions > 0, "{status:?}");
    });
}

#[test]
fn a_loss_that_only_a_read_met_is_recorded_and_a_spare_takes_the_place() {
    with_drives(5, |world| async move {
        let (array, blocks) =
            (made(&world, Level::Raid5, 3, Consistency::Bitmap).await, blocks(Level::Raid5, 3));
        for block in blocks {
            write(&array, block, 1).await.expect("write");
        }
        array.add_spare(world.drives[3].clone(), NEW).expect("it suits");
        array.add_spare(world.drives[4].clone(), [78; 16]).expect("it suits");
        array.set_pace(BackgroundTask::Rebuild, IDLE);
        world.drives[2].is_gone.set(true);
        for block in blocks {
            assert_eq!(read(&array, block).await, Ok(1));
        }
        world.handle.sleep(SECOND_NS).await;
        let status = array.status().expect("it has one");
        assert_eq!((status.members[2].state, status.spares), (MemberState::Rebuilding, 1));
        // The device that is filled dies, and nobody asks for anything.
        world.drives[3].is_gone.set(true);
        array.set_pace(BackgroundTask::Rebuild, Pace { priority: Priority::High, ..IDLE });
        world.handle.sleep(60 * SECOND_NS).await;
        let status = array.status().expect("it has one");
        assert_eq!((status.members[2].uuid, status.spares), ([78; 16], 0));
        assert!(array.is_online(MemberIndex(2)));
        array.stop().await.expect("stop");
    });
}

#[test]
fn a_spare_on_its_way_waits_on_when_the_lost_member_is_back_and_whole() {
    with_drives(5, |world| async move {
        let array = made(&world, Level::Raid5, 4, Consistency::Bitmap).await;
        for block in blocks(Level::Raid5, 4) {
            write(&array, block, 1).await.expect("write");
        }
        array.add_spare(world.drives[4].clone(), NEW).expect("it suits");
        world.drives[4].set_hung(true);
        array.fail(MemberIndex(2)).expect("one may go");
        // The spare is on its way, and its label is not read yet.
        world.handle.sleep(SECOND_NS).await;
        assert_eq!(array.status().expect("it has one").spares, 0);
        assert_eq!(array.restore_member(MemberIndex(2), world.drives[2].clone()).await, Ok(true));
        array.ended(BackgroundTask::Rebuild).await;
        assert!(array.is_online(MemberIndex(2)));
        world.drives[4].set_hung(false);
        world.handle.sleep(SECOND_NS).await;
        array.ended(BackgroundTask::Rebuild).await;
        let status = array.status().expect("it has one");
        assert_eq!((status.spares, status.members[2].uuid), (1, [3; 16]));
        assert!(!status.members[2].has_successor);
        array.stop().await.expect("stop");
    });
}

#[test]
fn a_replay_does_not_bring_back_what_a_scrub_repaired() {
    // So wide that a write changes the old parity by what the data change.
    let media = on_media(vec![Medium::default(); 10], |world| async move {
        let array = made(&world, Level::Raid6, 10, Consistency::Journal).await;
        write(&array, 0, 1).await.expect("write");
        flush(&world.drives).await;
        let geometry = array.geometry();
        let first_parity = StripeSlot(geometry.data_chunks());
        let MemberIndex(first_parity) = geometry.member_of(StripeNumber(0), first_parity);
        // Labels and journal have one MiB each.
        let at = 2 * MIB + geometry.member_lba(StripeNumber(0), 0).0 * SECTOR_BYTES;
        world.drives[first_parity].medium.borrow_mut().overwrite(at, &[0x55; 100]);
        write(&array, 0, 2).await.expect("write");
        array.scrub(ScrubRepair::Located).expect("none is running");
        array.ended(BackgroundTask::Scrub).await;
        let scrubbed = array.scrub_status();
        assert_eq!(scrubbed.blocks_by_member[first_parity], 1, "the record has what went bad");
        let found = scrubbed.counts;
        assert_eq!((found.mismatched_blocks, found.repaired_blocks), (1, 1));
        flush(&world.drives).await;
        world.media()
    });
    for luck in 0..4 {
        let mut dice = Prng::new(luck);
        let left = media.iter().map(|medium| medium.after_power_cut(&mut dice)).collect();
        on_media(left, |world| async move {
            let order: Vec<usize> = (0..10).collect();
            let (array, report) = world.assemble(&order, DEGRADED).await.expect("all");
            assert!(report.journal.transactions > 0, "{report:?}");
            array.scrub(ScrubRepair::Nothing).expect("none is running");
            array.ended(BackgroundTask::Scrub).await;
            let found = array.scrub_status().counts;
            assert_eq!((found.mismatched_blocks, found.skipped_bytes), (0, 0));
            assert_eq!(read(&array, 0).await, Ok(2));
        });
    }
}

#[test]
fn a_rebuild_begun_while_a_copy_waits_for_old_writes_copies_them_too() {
    let media = with_some_over(Level::Raid0, 2, 1, Consistency::Bitmap);
    on_media(media, |world| async move {
        let (array, _) = world.assemble(&[0, 1], DEGRADED).await.expect("all");
        array.set_pace(BackgroundTask::Rebuild, IDLE);
        // Without parity a write holds no lock. The write is under way when the copy comes.
        world.drives[0].set_holds_writes(true);
        let own = array.clone();
        let held = world.handle.spawn(async move { write(&own, 0, 2).await });
        world.handle.sleep(SECOND_NS / 1000).await;
        let (own, new) = (array.clone(), world.drives[2].clone());
        let replaced =
            world.handle.spawn(async move { own.replace(MemberIndex(0), new, NEW).await });
        world.handle.sleep(SECOND_NS / 1000).await;
        array.rebuild().expect("a copy waits");
        // The first rows of the region are copied, and others are not.
        world.handle.sleep(SECOND_NS / 10).await;
        world.drives[0].set_holds_writes(false);
        assert_eq!((held.await, replaced.await), (Ok(()), Ok(Replacement::Successor)));
        array.set_pace(BackgroundTask::Rebuild, Pace { priority: Priority::High, ..IDLE });
        array.ended(BackgroundTask::Rebuild).await;
        assert_eq!(array.status().expect("it has one").members[0].uuid, NEW);
        assert_eq!(read(&array, 0).await, Ok(2));
    });
}

/// Half of a mirror would start alone without what is acknowledged: the keeper of event counts knows first.
#[test]
fn nothing_is_acknowledged_after_a_loss_before_the_event_count_is_kept() {
    with_drives(3, |world| async move {
        let plan = options(Level::Raid1, 2, Consistency::Journal);
        let array = Array::create(&world.handle, &plan, world.drives[..2].to_vec()).await;
        let array = array.expect("two members");
        let kept: Rc<RefCell<Vec<u64>>> = Rc::default();
        let is_open = Rc::new(Cell::new(false));
        let (counts, gate, clock) = (kept.clone(), is_open.clone(), world.handle.clone());
        array.on_record(move |event| {
            let (counts, gate, clock) = (counts.clone(), gate.clone(), clock.clone());
            Box::pin(async move {
                counts.borrow_mut().push(event);
                while !gate.get() {
                    clock.sleep(SECOND_NS).await;
                }
            })
        });
        write(&array, 0, 1).await.expect("nobody is lost");
        assert!(kept.borrow().is_empty());
        array.fail(MemberIndex(1)).expect("one may go");
        let before = array.status().expect("durable").event;
        let (own, ended) = (array.clone(), Rc::new(Cell::new(false)));
        let seen = ended.clone();
        drop(world.handle.spawn(async move {
            write(&own, 0, 2).await.expect("one is left");
            seen.set(true);
        }));
        world.handle.sleep(30 * SECOND_NS).await;
        assert_eq!(*kept.borrow(), [before + 1]);
        assert!(!ended.get(), "the registry does not know yet");
        assert_eq!(array.status().expect("durable").event, before + 1, "the keeper can ask");
        is_open.set(true);
        world.handle.sleep(2 * SECOND_NS).await;
        assert!(ended.get());
        let back = array.replace(MemberIndex(1), world.drives[2].clone(), NEW).await;
        assert_eq!(back, Ok(Replacement::Rebuild));
        assert_eq!(*kept.borrow(), [before + 1], "nobody has left");
        world.handle.sleep(60 * SECOND_NS).await;
        let free = world.drives[1].clone();
        let copied = array.replace(MemberIndex(0), free, [8; 16]).await;
        assert_eq!(copied, Ok(Replacement::Successor));
        world.handle.sleep(60 * SECOND_NS).await;
        assert_eq!(kept.borrow().len(), 2, "the device that was copied has left");
    });
}
