//! Checksums of blocks: bit rot is never answered, and no crash makes a checksum call good data wrong.

mod pages;
mod unverified;

use std::cell::Cell;
use std::rc::Rc;

use voltier_array::{
    Array, AssembleOptions, BackgroundTask, Consistency, CreateOptions, GrowError, Integrity,
    Level, MemberIndex, MemberLayout, ScrubRepair,
};
use voltier_block::{
    BlockDevice, Buf, Bytes, Durability, IoError, Lba, MIB, Prng, SECTOR_BYTES, SectorRange,
};

use crate::durable::crash::{Facts, boot};
use crate::durable::drive::{Drive, Medium};
use crate::durable::world::{CHUNK_BYTES, DRIVE_BYTES, World, on_media, options, with_drives};
use crate::sampled::one_in;

const KEPT: usize = 4096;
const PLAIN: AssembleOptions = AssembleOptions { force: false, degraded: false };

fn with_sums(level: Level, members: usize, consistency: Consistency) -> CreateOptions {
    CreateOptions { integrity: Integrity::Crc32c, ..options(level, members, consistency) }
}

async fn write(array: &Array<Drive>, block: u64, byte: u8) {
    let data = Bytes::copy_of(&[byte; KEPT]);
    array.write(Lba(block * 8), data.into(), Durability::Durable).await.expect("write");
}

/// The member that has the second block of the volume.
fn member_of_block_1(array: &Array<Drive>) -> MemberIndex {
    let geometry = array.geometry();
    let part = geometry.parts(SectorRange::new(Lba(8), 8)).next().expect("a part");
    geometry.member_of(part.stripe, part.slot)
}

async fn read(array: &Array<Drive>, block: u64) -> Result<u8, IoError> {
    let read = array.read(Lba(block * 8), Buf::new(KEPT)).await?;
    assert!(read.iter().all(|byte| *byte == read[0]), "block {block} is mixed");
    Ok(read[0])
}

/// Turns a block over on whichever drive has it: all sectors that hold `byte` alone.
fn rot(world: &World, drive: usize, byte: u8) {
    let turned = world.drives[drive].medium.borrow_mut().turn_over(byte);
    assert!(turned > 0, "the drive has nothing of it");
}

fn found(array: &Array<Drive>) -> (u64, u64) {
    let status = array.status().expect("durable");
    let all = status.members.iter().map(|member| member.health.counts);
    all.fold((0, 0), |sum, it| (sum.0 + it.checksum_errors, sum.1 + it.checksum_mended))
}

/// The sectors of a copy of the first page of a member's checksums.
fn copy_of_page(consistency: Consistency, copy: u64) -> std::ops::Range<u64> {
    let sectors = DRIVE_BYTES / SECTOR_BYTES;
    let has_journal = consistency == Consistency::Journal;
    let journal =
        if has_journal { MemberLayout::journal_bytes_for(sectors, CHUNK_BYTES) } else { 0 };
    let places = MemberLayout::plan(sectors, CHUNK_BYTES, journal, Integrity::Crc32c);
    let first = places.expect("room").checksums.start.0 + 16 + copy * 8;
    first..first + 8
}

/// Both copies of the first page.
fn whole_page(consistency: Consistency) -> std::ops::Range<u64> {
    copy_of_page(consistency, 0).start..copy_of_page(consistency, 1).end
}

fn unprotected(array: &Array<Drive>) -> u64 {
    let status = array.status().expect("durable");
    status.members.iter().map(|member| member.health.counts.unprotected_pages).sum()
}

fn lost(array: &Array<Drive>) -> u64 {
    array.counts().members_lost
}

async fn rest(world: &World, seconds: u64) {
    world.handle.sleep(seconds * 1_000_000_000).await;
}

#[test]
fn rot_is_not_answered_but_mended() {
    for (level, members) in [(Level::Raid1, 2), (Level::Raid5, 3), (Level::Raid6, 5)] {
        for consistency in [Consistency::Journal, Consistency::Bitmap] {
            with_drives(members, move |world| async move {
                let array = world.create(&with_sums(level, members, consistency)).await;
                write(&array, 1, 0x41).await;
                array.flush().await.expect("flush");
                rot(&world, member_of_block_1(&array).0, 0x41);
                for _ in 0..2 * members {
                    assert_eq!(read(&array, 1).await, Ok(0x41), "{level}");
                }
                array.scrub(ScrubRepair::Located).expect("none runs");
                array.ended(BackgroundTask::Scrub).await;
                assert_eq!(array.scrub_status().counts.mismatched_blocks, 0);
                let (found, mended) = found(&array);
                assert!(found >= 1 && found == mended, "{level}: {found} {mended}");
            });
        }
    }
}

#[test]
fn a_client_writes_over_rot_and_parity_stays_right() {
    with_drives(5, |world| async move {
        let array = world.create(&with_sums(Level::Raid6, 5, Consistency::Journal)).await;
        for block in 0..4 {
            write(&array, block, 0x50 + block as u8).await;
        }
        array.flush().await.expect("flush");
        rot(&world, member_of_block_1(&array).0, 0x51);
        write(&array, 1, 0x61).await;
        array.scrub(ScrubRepair::Nothing).expect("none runs");
        array.ended(BackgroundTask::Scrub).await;
        assert_eq!(array.scrub_status().counts.mismatched_blocks, 0);
        for member in 0..2 {
            array.fail(MemberIndex(member)).expect("it can be spared");
        }
        for (block, byte) in [(0, 0x50), (1, 0x61), (2, 0x52), (3, 0x53)] {
            assert_eq!(read(&array, block).await, Ok(byte));
        }
    });
}

#[test]
fn a_start_knows_rot_of_before() {
    let media = Rc::new(std::cell::RefCell::new(Vec::new()));
    let kept = media.clone();
    with_drives(3, |world| async move {
        let array = world.create(&with_sums(Level::Raid5, 3, Consistency::Bitmap)).await;
        write(&array, 1, 0x41).await;
        array.stop().await.expect("stop");
        rot(&world, member_of_block_1(&array).0, 0x41);
        kept.replace(world.media());
    });
    on_media(media.take(), |world| async move {
        let (array, report) = world.assemble(&[2, 0, 1], PLAIN).await.expect("all");
        assert!(report.was_clean);
        assert_eq!(read(&array, 1).await, Ok(0x41));
        assert_eq!(found(&array), (1, 1));
    });
}

#[test]
fn levels_without_redundancy_and_capacity_expansions_are_refused() {
    with_drives(4, |world| async move {
        let error = world.try_create(&with_sums(Level::Raid0, 4, Consistency::None)).await;
        let error = error.err().expect("refused").to_string();
        assert_eq!(
            error,
            "RAID 0 has no redundancy to repair blocks from: make it without --integrity"
        );
        let mut small = world.clone();
        let last = small.drives.pop().expect("four");
        let array = small.create(&with_sums(Level::Raid5, 3, Consistency::Journal)).await;
        let refused = array.grow_capacity(last, [9; 16]).await;
        assert_eq!(refused, Err(GrowError::Integrity.into()));
    });
}

#[test]
fn a_replaced_member_has_checksums_of_its_own() {
    with_drives(5, |world| async move {
        let mut four = world.clone();
        let spare = four.drives.pop().expect("five");
        let array = four.create(&with_sums(Level::Raid6, 4, Consistency::Bitmap)).await;
        write(&array, 1, 0x41).await;
        let member = member_of_block_1(&array);
        array.fail(member).expect("it can be spared");
        array.replace(member, spare, [9; 16]).await.expect("it suits");
        array.ended(BackgroundTask::Rebuild).await;
        rot(&world, 4, 0x41);
        assert_eq!(read(&array, 1).await, Ok(0x41));
        assert_eq!(found(&array), (1, 1));
    });
}

/// Writes until the power is cut at every step. Acknowledged blocks are read from all members, and from any
/// that are enough, and no block is called wrong.
#[test]
fn no_cut_makes_a_checksum_call_good_data_wrong() {
    for consistency in [Consistency::Journal, Consistency::Bitmap] {
        for cut in (40_u64..).step_by(one_in(3)) {
            let acknowledged = Rc::new(Cell::new(0_u8));
            let noted = acknowledged.clone();
            let (media, is_through) =
                boot_once(cut, with_sums(Level::Raid5, 3, consistency), noted);
            let least = acknowledged.get();
            let again = media.iter().map(|it| it.after_power_cut(&mut Prng::new(cut))).collect();
            on_media(again, move |world| async move {
                let assembled = world.assemble(&[0, 1, 2], PLAIN).await;
                let Ok((array, _)) = assembled.inspect_err(|error| eprintln!("{error}")) else {
                    assert_eq!(least, 0, "cut at {cut}");
                    return;
                };
                // Without a journal a write that was cut off may be there in part.
                let is_among = |byte: &u8| *byte >= least && *byte <= least + 1;
                for _ in 0..2 {
                    let found = array.read(Lba(8), Buf::new(KEPT)).await.expect("it is there");
                    let is_whole = found.iter().all(|byte| *byte == found[0]);
                    assert!(found.iter().all(is_among), "cut at {cut}: {found:?} after {least}");
                    assert!(is_whole || consistency == Consistency::Bitmap, "cut at {cut}");
                    array.scrub(ScrubRepair::Located).expect("none runs");
                    array.ended(BackgroundTask::Scrub).await;
                }
                assert_eq!(found_in(&array), 0, "cut at {cut}: good data are called wrong");
            });
            if is_through {
                break;
            }
        }
    }
}

fn found_in(array: &Array<Drive>) -> u64 {
    found(array).0
}

/// Writes numbers to one block, with regions that are cleared in between.
fn boot_once(cut: u64, options: CreateOptions, noted: Rc<Cell<u8>>) -> (Vec<Medium>, bool) {
    let facts = Facts::default();
    let media = vec![Medium::default(); 3];
    let (is_through, media) = boot(&media, cut, &facts, move |world, _| {
        let (options, noted) = (options.clone(), noted.clone());
        async move { write_numbers(&world, &options, &noted).await }
    });
    (media, is_through)
}

async fn write_numbers(world: &World, options: &CreateOptions, noted: &Cell<u8>) {
    let array = world.create(options).await;
    for number in 1..6 {
        write(&array, 1, number).await;
        noted.set(number);
        if number == 3 {
            world.handle.sleep(12_000_000_000).await;
        }
    }
    array.flush().await.expect("flush");
}

/// The power is cut at every step of a repair, beside flushes: the block is convicted until it is right.
#[test]
fn no_cut_during_a_repair_makes_rot_good() {
    for consistency in [Consistency::Journal, Consistency::Bitmap] {
        let kept = Rc::new(std::cell::RefCell::new(Vec::new()));
        let media = kept.clone();
        with_drives(3, move |world| async move {
            let array = world.create(&with_sums(Level::Raid5, 3, consistency)).await;
            write(&array, 1, 0x41).await;
            array.flush().await.expect("flush");
            rest(&world, 12).await;
            array.stop().await.expect("stop");
            rot(&world, member_of_block_1(&array).0, 0x41);
            kept.replace(world.media());
        });
        let media = media.take();
        for cut in (0..).step_by(one_in(1)) {
            let facts = Facts::default();
            let (is_through, left) = boot(&media, cut, &facts, |world, _| async move {
                let (array, _) = world.assemble(&[0, 1, 2], PLAIN).await.expect("all");
                let array = Rc::new(array);
                let other = array.clone();
                let flushes = world.handle.spawn(async move {
                    for block in 8..16 {
                        write(&other, block, 0x33).await;
                        other.flush().await.expect("flush");
                    }
                });
                assert_eq!(read(&array, 1).await, Ok(0x41));
                flushes.await;
            });
            let again = left.iter().map(|it| it.after_power_cut(&mut Prng::new(cut))).collect();
            on_media(again, move |world| async move {
                let (array, _) = world.assemble(&[0, 1, 2], PLAIN).await.expect("all");
                // Blocks of the same region were being written: without a journal nothing is known of it.
                if array.status().expect("durable").regions_to_resync == 0
                    || consistency == Consistency::Journal
                {
                    assert_eq!(read(&array, 1).await, Ok(0x41), "{consistency} cut at {cut}");
                }
            });
            if is_through {
                break;
            }
        }
    }
}

#[test]
fn a_repair_that_fails_leaves_the_block_convicted() {
    with_drives(3, |world| async move {
        let array = world.create(&with_sums(Level::Raid5, 3, Consistency::Bitmap)).await;
        write(&array, 1, 0x41).await;
        array.flush().await.expect("flush");
        rot(&world, member_of_block_1(&array).0, 0x41);
        world.drives.iter().for_each(|drive| drive.is_full.set(true));
        let data = Bytes::copy_of(&[0x77; KEPT]);
        let refused = array.write(Lba(512), data.into(), Durability::Durable).await;
        assert_eq!(refused, Err(IoError::NoSpace), "nobody is lost for that");
        for _ in 0..3 {
            assert_eq!(read(&array, 1).await, Ok(0x41));
        }
        assert_eq!((lost(&array), found(&array)), (0, (1, 0)));
        world.drives.iter().for_each(|drive| drive.is_full.set(false));
        assert_eq!(read(&array, 1).await, Ok(0x41));
        assert_eq!(found(&array), (1, 1));
    });
}

#[test]
fn a_mismatch_is_no_error_of_the_device() {
    with_drives(3, |world| async move {
        let array = world.create(&with_sums(Level::Raid5, 3, Consistency::Bitmap)).await;
        for block in 0..120 {
            write(&array, block, 0x41).await;
        }
        array.flush().await.expect("flush");
        let member = member_of_block_1(&array).0;
        rot(&world, member, 0x41);
        for block in 0..120 {
            assert_eq!(read(&array, block).await, Ok(0x41));
        }
        array.scrub(ScrubRepair::Nothing).expect("none runs");
        array.ended(BackgroundTask::Scrub).await;
        let status = array.status().expect("durable");
        let own = &status.members[member];
        assert!(own.health.counts.checksum_errors > 20, "{:?}", own.health);
        let counts = own.health.counts;
        assert_eq!(counts.checksum_errors, counts.checksum_mended);
        assert_eq!(
            (own.health.counts.errors_read, own.health.counts.errors_recent, lost(&array)),
            (0, 0, 0)
        );
    });
}

#[test]
fn a_member_that_is_given_up_is_closed() {
    with_drives(4, |world| async move {
        let holders = Rc::strong_count(&world.drives[1].reads);
        let array = world.create(&with_sums(Level::Raid6, 4, Consistency::Bitmap)).await;
        write(&array, 1, 0x41).await;
        array.flush().await.expect("flush");
        array.fail(MemberIndex(1)).expect("it can be spared");
        array.flush().await.expect("flush");
        rest(&world, 12).await;
        assert_eq!(Rc::strong_count(&world.drives[1].reads), holders, "nobody has it open");
        let back = array.restore_member(MemberIndex(1), world.drives[1].clone()).await;
        assert!(back.expect("it suits"), "it comes back");
        array.ended(BackgroundTask::Rebuild).await;
        assert_eq!((read(&array, 1).await, found(&array)), (Ok(0x41), (0, 0)));
    });
}

#[test]
fn flushes_of_several_clients_are_one() {
    with_drives(3, |world| async move {
        let array = Rc::new(world.create(&with_sums(Level::Raid5, 3, Consistency::Bitmap)).await);
        write(&array, 1, 0x41).await;
        let before = world.drives[0].flushes.get();
        let flush = |_| {
            let array = array.clone();
            world.handle.spawn(async move { array.flush().await.expect("flush") })
        };
        let flushes: Vec<_> = (0..12).map(flush).collect();
        for flush in flushes {
            flush.await;
        }
        let flushes = world.drives[0].flushes.get() - before;
        assert!((1..=2).contains(&flushes), "{flushes}");
    });
}

/// A copy that has no checksum of a block is neither answered nor copied where another one has.
#[test]
fn of_copies_the_one_with_a_checksum_counts() {
    for members in [2, 3] {
        let kept = Rc::new(std::cell::RefCell::new(Vec::new()));
        let media = kept.clone();
        with_drives(members, move |world| async move {
            let array = world.create(&with_sums(Level::Raid1, members, Consistency::Bitmap)).await;
            for block in 0..4 {
                write(&array, block, 0x41 + block as u8).await;
            }
            array.flush().await.expect("flush");
            rest(&world, 12).await;
            array.stop().await.expect("stop");
            kept.replace(world.media());
        });
        on_media(media.take(), move |world| async move {
            // All but the last copy have bit rot, and no checksums.
            for drive in &world.drives[..members - 1] {
                let page = whole_page(Consistency::Bitmap);
                drive.medium.borrow_mut().overwrite(page.start * SECTOR_BYTES, &[0; 512]);
                assert!(drive.medium.borrow_mut().turn_over(0x42) > 0);
            }
            let all: Vec<usize> = (0..members).collect();
            let (array, _) = world.assemble(&all, PLAIN).await.expect("all");
            for _ in 0..2 * members {
                assert_eq!(read(&array, 1).await, Ok(0x42), "{members} copies");
            }
            array.scrub(ScrubRepair::Located).expect("none runs");
            array.ended(BackgroundTask::Scrub).await;
            assert_eq!(array.scrub_status().counts.left_blocks, 0);
            for member in (1..members).rev() {
                array.fail(MemberIndex(member)).expect("it can be spared");
            }
            assert_eq!(read(&array, 1).await, Ok(0x42), "the first copy was mended");
        });
    }
}

/// Blocks beside one that cannot be read, of which nothing is known, stay what they are.
#[test]
fn blocks_beside_a_wrong_one_are_not_written() {
    let kept = Rc::new(std::cell::RefCell::new(Vec::new()));
    let media = kept.clone();
    with_drives(2, move |world| async move {
        let array = world.create(&with_sums(Level::Raid1, 2, Consistency::Bitmap)).await;
        let data = Bytes::copy_of(&[0x41; 4 * KEPT]);
        array.write(Lba(0), data.into(), Durability::Durable).await.expect("write");
        array.stop().await.expect("stop");
        kept.replace(world.media());
    });
    on_media(media.take(), |world| async move {
        let page = whole_page(Consistency::Bitmap).start * SECTOR_BYTES;
        world.drives.iter().for_each(|it| it.medium.borrow_mut().overwrite(page, &[0; 512]));
        let data = 2 * MIB;
        let medium = &world.drives[0].medium;
        assert_eq!(medium.borrow().byte(data), 0x41, "the data begin there");
        medium.borrow_mut().overwrite(data + 2 * KEPT as u64, &[0x13]);
        world.drives[0].unreadable.borrow_mut().insert(data / SECTOR_BYTES + 8);
        let (array, _) = world.assemble(&[0, 1], PLAIN).await.expect("all");
        for _ in 0..4 {
            array.read(Lba(0), Buf::new(4 * KEPT)).await.expect("read");
        }
        assert_eq!(array.counts().repairs, 1);
        assert!(world.drives[0].unreadable.borrow().is_empty(), "it is mended");
        assert_eq!(medium.borrow().byte(data + 2 * KEPT as u64), 0x13);
    });
}
