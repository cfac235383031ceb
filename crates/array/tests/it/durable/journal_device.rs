//! A journal on a device of its own: power cuts at every step, the device lost at every step, and both.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_array::{
    Array, ArrayError, AssembleOptions, Consistency, CreateOptions, JournalError, JournalState,
    Level, MetadataError,
};
use voltier_block::{BlockDevice, Bytes, Durability, Lba, MIB, Prng};

use crate::durable::crash::{Facts, at_every_step, boot, check, made_facts};
use crate::durable::drive::{Drive, Medium};
use crate::durable::world::{
    JOURNAL_UUID, World, on_media, options, read, refused, with_drives, write,
};
use crate::sampled::one_in;

const PLAIN: AssembleOptions = AssembleOptions { force: false, degraded: false };
const FORCE: AssembleOptions = AssembleOptions { force: true, degraded: false };
const SECOND_UUID: [u8; 16] = [0x78; 16];
/// The ring of a journal device begins here, behind two labels.
const RING: u64 = MIB + 8192;

const CASES: [(Level, usize); 3] = [(Level::Raid5, 3), (Level::Raid6, 4), (Level::Raid1, 2)];

/// A stopped array, and as the last its journal.
fn made(level: Level, members: usize) -> Vec<Medium> {
    on_media(vec![Medium::default(); members + 1], move |world| async move {
        let made = world.create_with_journal(&options(level, members, Consistency::Journal)).await;
        let array = made.unwrap_or_else(|error| panic!("{error}"));
        array.stop().await.expect("stop");
        world.media()
    })
}

async fn assembled(world: &World) -> Array<Drive> {
    let order: Vec<usize> = (0..world.drives.len()).rev().collect();
    let (array, report) = world.assemble(&order, PLAIN).await.expect("all are there");
    assert!(report.left_out.is_empty() && report.journal_left_out.is_empty());
    assert!(!report.is_journal_lost);
    array
}

fn state(array: &Array<Drive>) -> Option<JournalState> {
    let status = array.status().expect("it has one");
    status.journal_device.map(|journal| journal.state)
}

/// Fills some of the ring with what is not looked at: a stripe far behind all blocks.
async fn fill(array: &Array<Drive>) {
    let data = Bytes::copy_of(&vec![9; 128 << 10]);
    array.write(Lba(5120), data.into(), Durability::Cached).await.expect("write");
}

fn torn(media: &[Medium], luck: u64) -> Vec<Medium> {
    let dice = &mut Prng::new(luck);
    media.iter().map(|medium| medium.after_power_cut(dice)).collect()
}

#[test]
fn a_cut_while_it_is_made_leaves_all_of_it_or_nothing() {
    for (level, members) in CASES {
        let empty = vec![Medium::default(); members + 1];
        at_every_step("create", &empty, Facts::default, move |world, facts| async move {
            let options = options(level, members, Consistency::Journal);
            let array = world.create_with_journal(&options).await.expect("made");
            facts.is_made.set(true);
            facts.write(&array, 3, 7).await;
        });
    }
}

#[test]
fn a_cut_while_it_serves_loses_nothing_and_no_member_is_needed_for_that() {
    for (level, members) in CASES {
        let media = made(level, members);
        at_every_step("serve", &media, made_facts, move |world, facts| async move {
            let array = assembled(&world).await;
            for (block, byte) in [(1, 1), (40, 2), (1, 3), (600, 4), (17, 5)] {
                facts.write(&array, block, byte).await;
            }
            let range = voltier_block::SectorRange::new(Lba(320), 320);
            facts.model.borrow_mut().begin(40, 0);
            array.write_zeroes(range, Durability::Cached).await.expect("zeroes");
            facts.model.borrow_mut().acknowledge(40, 0);
            facts.write(&array, 41, 6).await;
            assert_eq!(state(&array), Some(JournalState::InService));
        });
    }
}

#[test]
fn a_cut_while_its_ring_goes_round_and_while_it_is_stopped_loses_nothing() {
    let media = made(Level::Raid5, 3);
    for cut in (0..).step_by(one_in(7)) {
        let facts = made_facts();
        let (is_through, after) = boot(&media, cut, &facts, move |world, facts| async move {
            let array = assembled(&world).await;
            for round in 0..26_u8 {
                fill(&array).await;
                if round % 4 == 0 {
                    facts.write(&array, 1 + u64::from(round) * 7, round + 1).await;
                }
            }
            assert!(array.counts().watermark_flushes > 1, "it went round");
            array.stop().await.expect("stop");
            facts.is_stopped.set(true);
        });
        check(torn(&after, cut), &facts, &format!("ring, cut at {cut}"));
        if is_through {
            break;
        }
    }
}

#[test]
fn without_a_member_lost_with_the_cut_everything_is_there() {
    for (level, members) in CASES {
        let media = made(level, members);
        for cut in (20..400).step_by(one_in(3)) {
            let facts = made_facts();
            let (_, after) = boot(&media, cut, &facts, move |world, facts| async move {
                let array = assembled(&world).await;
                for (block, byte) in [(1, 1), (17, 2), (1, 3), (40, 4), (33, 5), (17, 6)] {
                    facts.write(&array, block, byte).await;
                }
            });
            let left = torn(&after, cut);
            let model = facts.model.borrow().clone();
            on_media(left, move |world| async move {
                let lost = cut as usize % members;
                let order: Vec<usize> = (0..=members).filter(|it| *it != lost).collect();
                let either = AssembleOptions { force: false, degraded: true };
                let (array, report) = world.assemble(&order, either).await.expect("enough");
                assert_eq!(report.now_lost, [lost]);
                model.check(&array, &format!("cut at {cut} without {lost}")).await;
            });
        }
    }
}

/// Members and a journal that dies so many nanoseconds after the array serves.
async fn serve_until_it_dies(world: World, facts: Facts, is_on_record: Rc<Cell<bool>>, after: u64) {
    let array = Rc::new(assembled(&world).await);
    let journal = world.drives.last().expect("the journal").clone();
    let handle = world.handle.clone();
    let dies = world.handle.spawn(async move {
        handle.sleep(after).await;
        journal.is_gone.set(true);
    });
    let beside = (array.clone(), facts.clone());
    let writer = world.handle.spawn(async move {
        for (block, byte) in [(17, 21), (600, 22), (17, 23)] {
            beside.1.write(&beside.0, block, byte).await;
        }
    });
    for (block, byte) in [(1, 1), (40, 2), (1, 3), (33, 4)] {
        facts.write(&array, block, byte).await;
    }
    writer.await;
    dies.await;
    // Begun when it was gone, and acknowledged: nobody counts on the device any more.
    facts.write(&array, 49, 5).await;
    is_on_record.set(true);
    assert_eq!(state(&array), Some(JournalState::Lost));
    assert_eq!(array.counts().members_lost, 0);
    fill(&array).await;
    facts.write(&array, 1, 6).await;
}

#[test]
fn the_device_is_lost_at_any_moment_and_the_power_too() {
    for (level, members) in CASES {
        let media = made(level, members);
        for after in (0..300_000).step_by(23_000) {
            for cut in (10..).step_by(one_in(7)) {
                let facts = made_facts();
                let is_on_record = Rc::new(Cell::new(false));
                let flag = is_on_record.clone();
                let (is_through, left) = boot(&media, cut, &facts, move |world, facts| {
                    serve_until_it_dies(world, facts, flag.clone(), after)
                });
                let when = format!("{level}, {after} ns, cut at {cut}");
                // The device is back, as it was or older than what the members say: both are right.
                check(torn(&left, cut), &facts, &when);
                check_without(torn(&left, cut + 1), &facts, is_on_record.get(), &when);
                if is_through {
                    break;
                }
            }
        }
    }
}

/// The device is gone for good: what was acknowledged is there, if its loss is on record.
fn check_without(media: Vec<Medium>, facts: &Facts, is_on_record: bool, when: &str) {
    let (model, when) = (facts.model.borrow().clone(), when.to_owned());
    on_media(media, move |world| async move {
        let members: Vec<usize> = (0..world.drives.len() - 1).collect();
        match world.assemble(&members, PLAIN).await {
            Ok((array, _)) => {
                model.check(&array, &when).await;
                array.stop().await.expect("stop");
            }
            Err(ArrayError::Metadata(MetadataError::JournalMissing)) => {
                assert!(!is_on_record, "{when}: refused");
                let (array, report) = world.assemble(&members, FORCE).await.expect("by choice");
                assert!(report.is_journal_lost, "{when}");
                array.stop().await.expect("stop");
                drop(array);
                world.assemble(&members, PLAIN).await.expect("the choice was made");
            }
            Err(error) => panic!("{when}: {error}"),
        }
    });
}

#[test]
fn a_cut_while_the_journal_moves_loses_nothing() {
    let mut media = made(Level::Raid5, 3);
    media.push(Medium::default());
    at_every_step("move", &media, made_facts, move |world, facts| async move {
        let (array, _) = world.assemble(&[3, 0, 2, 1], PLAIN).await.expect("all");
        facts.write(&array, 1, 1).await;
        let second = world.drives[4].clone();
        array.set_journal(Some((second, SECOND_UUID))).await.expect("moved");
        facts.write(&array, 17, 2).await;
        array.set_journal(None).await.expect("on the members");
        assert_eq!(state(&array), None);
        facts.write(&array, 1, 3).await;
        let first = world.drives[3].clone();
        array.set_journal(Some((first, JOURNAL_UUID))).await.expect("back");
        facts.write(&array, 40, 4).await;
        facts.write(&array, 17, 5).await;
    });
}

#[test]
fn a_device_that_is_used_again_after_restarts_is_never_taken_for_damaged() {
    on_media(made(Level::Raid5, 3), |world| async move {
        for round in 0..6_u8 {
            let array = assembled(&world).await;
            for device in [None, Some((world.drives[3].clone(), [round + 1; 16]))] {
                array.set_journal(device).await.expect("moved");
                for block in 0..8 {
                    write(&array, block * 16 + 1, round).await.expect("write");
                }
            }
            // As after a kill.
            drop(array);
            world.handle.sleep(1_000_000).await;
        }
        let array = assembled(&world).await;
        assert_eq!(read(&array, 17).await, Ok(5));
    });
}

/// Not stopped, with writes in the ring.
fn killed(level: Level, members: usize) -> Vec<Medium> {
    on_media(made(level, members), |world| async move {
        let array = assembled(&world).await;
        for block in 0..20 {
            write(&array, block * 16 + 1, block as u8 + 1).await.expect("write");
        }
        world.media()
    })
}

#[test]
fn it_is_known_in_every_place_and_never_taken_for_a_member() {
    for place in 0..4 {
        on_media(made(Level::Raid5, 3), move |world| async move {
            let mut order = vec![0, 1, 2];
            order.insert(place, 3);
            let (array, report) = world.assemble(&order, PLAIN).await.expect("all");
            assert!(report.was_clean && report.left_out.is_empty());
            assert_eq!(state(&array), Some(JournalState::InService));
            assert_eq!(Array::examine(&world.drives[3]).await, Ok(None));
            let label = Array::examine_journal(&world.drives[3]).await.expect("whole");
            let label = label.expect("a journal");
            assert_eq!((label.name.as_str(), label.array), ("box", [0xa5; 16]));
            drop(array);
            assert_eq!(
                refused(&world, &[3], PLAIN).await,
                MetadataError::OnlyJournal { device: 0, name: "box".to_owned() }
            );
        });
    }
}

#[test]
fn a_missing_device_is_missed_only_after_a_start_that_was_not_stopped() {
    on_media(made(Level::Raid6, 4), |world| async move {
        let (array, report) = world.assemble(&[1, 0, 3, 2], PLAIN).await.expect("not needed");
        assert!(report.was_clean && report.is_journal_lost && report.regions_to_resync == 0);
        assert_eq!(state(&array), Some(JournalState::Lost));
        write(&array, 3, 7).await.expect("write");
        drop(array);
        // The device is stale now.
        let (array, report) = world.assemble(&[4, 0, 1, 2, 3], PLAIN).await.expect("without it");
        assert_eq!(report.journal_left_out.iter().map(|it| it.device).collect::<Vec<_>>(), [0]);
        assert!(!report.is_journal_lost);
        assert_eq!(read(&array, 3).await, Ok(7));
    });
    on_media(killed(Level::Raid6, 4), |world| async move {
        assert_eq!(refused(&world, &[0, 1, 2, 3], PLAIN).await, MetadataError::JournalMissing);
        let degraded = AssembleOptions { degraded: true, ..PLAIN };
        assert_eq!(refused(&world, &[0, 1, 2, 3], degraded).await, MetadataError::JournalMissing);
        let (array, report) = world.assemble(&[0, 1, 2, 3], FORCE).await.expect("by choice");
        assert!(report.is_journal_lost && report.regions_to_resync > 0);
        drop(array);
        // The choice is kept: all that was written needs a resync until it was made to match.
        let (array, report) = world.assemble(&[0, 1, 2, 3], PLAIN).await.expect("by choice");
        assert!(report.regions_to_resync > 0);
        while array.status().is_some_and(|status| status.regions_to_resync > 0) {
            world.handle.sleep(10_000_000).await;
        }
        array.stop().await.expect("stop");
        drop(array);
        let (_, report) = world.assemble(&[0, 1, 2, 3], PLAIN).await.expect("all");
        assert!(report.was_clean && report.regions_to_resync == 0);
    });
}

#[test]
fn foreign_old_doubled_and_newer_devices_are_refused_or_left_out() {
    let mut media = killed(Level::Raid5, 3);
    media.extend(on_media(vec![Medium::default(); 4], |world| async move {
        let mut options = options(Level::Raid5, 3, Consistency::Journal);
        (options.uuid, options.name) = ([9; 16], "other".to_owned());
        world.create_with_journal(&options).await.expect("made").stop().await.expect("stop");
        world.media()[3..].to_vec()
    }));
    // The media as before the start of the array.
    let old = made(Level::Raid5, 3);
    media.push(old[3].clone());
    on_media(media, |world| async move {
        let name = "other".to_owned();
        let stranger = MetadataError::Stranger { device: 0, uuid: [9; 16], name };
        assert_eq!(refused(&world, &[4, 0, 1, 2], PLAIN).await, stranger);
        let doubled = MetadataError::DuplicateJournal { first: 3, second: 4 };
        assert_eq!(refused(&world, &[0, 1, 2, 3, 5], PLAIN).await, doubled);
    });
    on_media(stale_pair(old), |world| async move {
        let missing = MetadataError::JournalMissing;
        assert_eq!(refused(&world, &[4, 0, 1, 2], PLAIN).await, missing, "an old copy of it");
    });
    // Members as they were long before.
    let (old, new) = (made(Level::Raid5, 3), stale_pair(made(Level::Raid5, 3)));
    let mut media = old[..3].to_vec();
    media.push(new[3].clone());
    on_media(media, |world| async move {
        let error = refused(&world, &[0, 1, 2, 3], PLAIN).await;
        assert_eq!(error, MetadataError::JournalNewer { device: 3 });
    });
}

/// Some starts later, and behind it the journal as it was.
fn stale_pair(mut old: Vec<Medium>) -> Vec<Medium> {
    let before = old[3].clone();
    for _ in 0..2 {
        old = on_media(old, |world| async move {
            let array = assembled(&world).await;
            write(&array, 3, 7).await.expect("write");
            array.stop().await.expect("stop");
            drop(array);
            let array = assembled(&world).await;
            write(&array, 3, 8).await.expect("write");
            world.media()
        });
    }
    old.push(before);
    old
}

#[test]
fn a_truncated_or_damaged_device_is_refused_and_one_good_copy_is_enough() {
    on_media(made(Level::Raid5, 3), |world| async move {
        let medium = world.drives[3].medium.borrow().clone();
        let small = Drive::new(&world.handle, &world.power, 4 * MIB, medium.clone(), 3);
        let mut devices = world.drives[..3].to_vec();
        devices.push(small);
        let error = Array::assemble(&world.handle, devices.clone(), PLAIN).await.err();
        assert!(error.expect("refused").to_string().contains("sectors and now has"));
        let grown = Drive::new(&world.handle, &world.power, 9 * MIB, medium, 3);
        devices[3] = grown.clone();
        let assembled = Array::assemble(&world.handle, devices.clone(), PLAIN).await;
        let (array, _) = assembled.unwrap_or_else(|error| panic!("{error}"));
        for block in 0..60 {
            write(&array, block * 8, 3).await.expect("write");
        }
        drop(array);
        let (array, report) =
            Array::assemble(&world.handle, devices, PLAIN).await.expect("as it was");
        assert!(!report.is_journal_lost && report.journal.transactions > 0);
        assert_eq!(read(&array, 80).await, Ok(3));
        drop(array);
        grown.medium.borrow_mut().overwrite(9 * MIB - 4096, &[1; 4096]);
        assert!(matches!(Array::examine_journal(&grown).await, Ok(Some(_))));
        grown.medium.borrow_mut().overwrite(100, &[1]);
        assert!(Array::examine_journal(&grown).await.is_err());
    });
}

#[test]
fn damage_in_the_ring_that_a_later_batch_proves_is_refused_and_the_last_one_is_as_if_torn() {
    let media = killed(Level::Raid5, 3);
    // Two blocks a batch: a head and 1 KiB of data.
    for (batch, is_refused) in [(0, true), (7, true), (18, true), (19, false)] {
        let mut media = media.clone();
        media[3].overwrite(RING + batch * 8192 + 5000, &[0x5a]);
        on_media(media, move |world| async move {
            let assembled = world.assemble(&[0, 1, 2, 3], PLAIN).await;
            match assembled.map(|_| ()) {
                Err(ArrayError::JournalDevice(JournalError::Damaged)) if is_refused => {}
                Ok(()) if !is_refused => {}
                other => panic!("batch {batch}: {other:?}"),
            }
        });
    }
    let mut media = media;
    media[3].overwrite(MIB, &[0; 8192]);
    on_media(media, |world| async move {
        let error = world.assemble(&[0, 1, 2, 3], PLAIN).await.err();
        assert_eq!(error, Some(ArrayError::JournalDevice(JournalError::Damaged)));
        let (array, _) = world.assemble(&[0, 1, 2], FORCE).await.expect("without it");
        assert_eq!(state(&array), Some(JournalState::Lost));
    });
    // Not needed after a stop.
    let mut media = made(Level::Raid5, 3);
    media[3].overwrite(MIB, &[0; 8192]);
    on_media(media, |world| async move {
        let array = assembled(&world).await;
        write(&array, 3, 7).await.expect("write");
        assert_eq!(state(&array), Some(JournalState::Lost));
    });
}

#[test]
fn devices_that_do_not_suit_change_nothing() {
    with_drives(4, |world| async move {
        let good = options(Level::Raid5, 3, Consistency::Journal);
        let small = Drive::new(&world.handle, &world.power, MIB + 64 * 1024, Medium::default(), 3);
        let members = world.drives[..3].to_vec();
        let create = async |options: &CreateOptions, journal: Drive| {
            let members = members.clone();
            let journal = Some((journal, JOURNAL_UUID));
            let made = Array::create_with_journal(&world.handle, options, members, journal).await;
            made.err().expect("refused").to_string()
        };
        assert!(create(&good, small.clone()).await.contains("1088 KiB and a journal of this"));
        for (level, consistency) in
            [(Level::Raid5, Consistency::Bitmap), (Level::Raid0, Consistency::Journal)]
        {
            let other = options(level, 3, consistency);
            assert!(create(&other, world.drives[3].clone()).await.contains("no journal"));
        }
        assert!(world.drives.iter().all(|drive| drive.superblock_writes.get() == 0));
        let array = world.create_with_journal(&good).await.expect("made");
        assert!(matches!(
            array.set_journal(Some((small, SECOND_UUID))).await,
            Err(ArrayError::JournalDevice(JournalError::TooSmall { .. }))
        ));
        let gone = Drive::new(&world.handle, &world.power, 4 * MIB, Medium::default(), 3);
        gone.is_gone.set(true);
        assert!(matches!(
            array.set_journal(Some((gone, SECOND_UUID))).await,
            Err(ArrayError::JournalDevice(JournalError::Device(_)))
        ));
        assert_eq!(state(&array), Some(JournalState::InService));
        write(&array, 3, 7).await.expect("write");
    });
}

#[test]
fn a_write_alone_takes_one_write_to_the_device_and_writes_at_once_share_them() {
    with_drives(5, |world| async move {
        let made = world.create_with_journal(&options(Level::Raid6, 4, Consistency::Journal)).await;
        let array = Rc::new(made.unwrap_or_else(|error| panic!("{error}")));
        write(&array, 1, 1).await.expect("write");
        let before = array.counts();
        write(&array, 1, 2).await.expect("write");
        let after = array.counts();
        assert_eq!(after.journal_writes - before.journal_writes, 1);
        assert_eq!(after.member_writes - before.member_writes, 3);
        let done = Rc::new(RefCell::new(Vec::new()));
        for block in 0..64 {
            let (array, done) = (array.clone(), done.clone());
            drop(world.handle.spawn(async move {
                write(&array, block * 16, 3).await.expect("write");
                done.borrow_mut().push(block);
            }));
        }
        while done.borrow().len() < 64 {
            world.handle.sleep(100_000).await;
        }
        assert!(array.counts().journal_writes - after.journal_writes < 32);
    });
}
