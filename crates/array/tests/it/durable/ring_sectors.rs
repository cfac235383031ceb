//! Rings of the journal with sectors that cannot be read. Where nothing in a ring is needed they cost
//! nothing. Where something is, no acknowledged write is left out silently.

use std::collections::BTreeSet;

use voltier_array::{
    Array, ArrayError, AssembleOptions, Consistency, JournalState, Level, MemberIndex,
};
use voltier_block::{MIB, Prng, SECTOR_BYTES};

use crate::durable::drive::{Drive, Medium};
use crate::durable::world::{World, made, on_media, options, read, write};

const PLAIN: AssembleOptions = AssembleOptions { force: false, degraded: false };
/// Behind the labels of the member.
const RING: u64 = MIB / SECTOR_BYTES;
const BLOCK_SECTORS: u64 = 8;
/// Blocks that tests write here, one behind the other.
const BLOCKS: u64 = 16;

/// The sectors of some blocks of a ring, of which the first two are copies of its label.
fn sectors(blocks: std::ops::Range<u64>) -> BTreeSet<u64> {
    (RING + blocks.start * BLOCK_SECTORS..RING + blocks.end * BLOCK_SECTORS).collect()
}

/// An array of three that has written so much and was stopped; without its first member if it is degraded.
fn stopped(is_degraded: bool, writes: u64) -> Vec<Medium> {
    on_media(vec![Medium::default(); 3], move |world| async move {
        let array = made(&world, Level::Raid5, 3, Consistency::Journal).await;
        if is_degraded {
            array.fail(MemberIndex(0)).expect("one may go");
        }
        write_some(&array, 0..writes).await;
        array.stop().await.expect("stop");
        world.media()
    })
}

/// Writes a block after the other, round and round: each write has another content.
async fn write_some(array: &Array<Drive>, writes: std::ops::Range<u64>) {
    for number in writes {
        write(array, number % BLOCKS, content(number)).await.expect("write");
    }
}

fn content(number: u64) -> u8 {
    (number % 251) as u8 + 1
}

/// Holds all blocks against what was written last.
async fn check(array: &Array<Drive>, writes: u64, when: &str) {
    for number in writes.saturating_sub(BLOCKS)..writes {
        assert_eq!(read(array, number % BLOCKS).await, Ok(content(number)), "{when}: {number}");
    }
}

#[test]
fn a_ring_that_cannot_be_read_is_written_anew_after_a_stop_in_order() {
    // Both copies of the label, one of them, the first batches, and all of it.
    let places = [0..2, 0..1, 1..2, 2..20, 0..256];
    for (bad, is_degraded) in places.into_iter().flat_map(|bad| [(bad.clone(), false), (bad, true)])
    {
        on_media(stopped(is_degraded, 150), move |world| async move {
            let when = format!("blocks {bad:?}, degraded: {is_degraded}");
            world.drives[1].unreadable.borrow_mut().extend(sectors(bad.clone()));
            let started = world.assemble(&[0, 1, 2], PLAIN).await;
            let (array, report) = started.unwrap_or_else(|error| panic!("{when}: {error}"));
            assert!(array.is_online(MemberIndex(1)) && report.journal.damaged.is_empty(), "{when}");
            check(&array, 150, &when).await;
            write_some(&array, 150..400).await;
            // Killed: what the ring has now is needed.
            let mut dice = Prng::new(7);
            let left = world.media().iter().map(|it| it.after_power_cut(&mut dice)).collect();
            let world = World::new(&world.handle, left, None, 3);
            let (array, _) = world.assemble(&[2, 1, 0], PLAIN).await.expect("the ring is whole");
            check(&array, 400, &when).await;
        });
    }
}

/// A degraded array that was cut off after so many writes, and the journal's device if it had been on one.
fn cut_off(writes: u64, was_on_device: bool) -> Vec<Medium> {
    let drives = 3 + usize::from(was_on_device);
    on_media(vec![Medium::default(); drives], move |world| async move {
        let array = if was_on_device {
            let options = options(Level::Raid5, 3, Consistency::Journal);
            let array = world.create_with_journal(&options).await.expect("possible");
            write_some(&array, 0..writes / 2).await;
            array.set_journal(None).await.expect("the members take over");
            let journal = array.status().expect("it has one").journal_device;
            assert!(journal.is_none_or(|it| it.state == JournalState::Lost));
            array
        } else {
            let array = made(&world, Level::Raid5, 3, Consistency::Journal).await;
            write_some(&array, 0..writes / 2).await;
            array
        };
        array.fail(MemberIndex(0)).expect("one may go");
        write_some(&array, writes / 2..writes).await;
        let mut dice = Prng::new(writes);
        world.media()[..3].iter().map(|medium| medium.after_power_cut(&mut dice)).collect()
    })
}

#[test]
fn one_copy_of_a_label_that_cannot_be_read_leaves_no_acknowledged_write_out() {
    let mut started = [0, 0];
    // To where rings begin again, several times.
    for writes in (0..900).step_by(23) {
        for was_on_device in [false, true] {
            for copy in 0..2 {
                let media = cut_off(writes, was_on_device);
                let is_started = on_media(media, move |world| async move {
                    let when = format!("{writes} writes, copy {copy}, {was_on_device}");
                    world.drives[1].unreadable.borrow_mut().extend(sectors(copy..copy + 1));
                    match world.assemble(&[0, 1, 2], PLAIN).await {
                        Ok((array, _)) => {
                            check(&array, writes, &when).await;
                            true
                        }
                        Err(error) => {
                            assert_eq!(error, ArrayError::JournalDamaged { member: 1 }, "{when}");
                            false
                        }
                    }
                });
                started[copy as usize] += u64::from(is_started);
            }
        }
    }
    // One of the two is the older one, which nobody needs.
    assert!(started.iter().sum::<u64>() >= 40, "{started:?}");
}
