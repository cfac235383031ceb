//! Checksums of blocks: rot is never answered, and no crash makes a checksum call good data wrong.

use std::cell::Cell;
use std::rc::Rc;

use voltier_array::{
    Array, AssembleOptions, BackgroundTask, Consistency, CreateOptions, GrowError, Integrity,
    Level, MemberIndex, ScrubRepair,
};
use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoError, Lba, Prng, SectorRange};

use crate::crash::{Facts, boot};
use crate::drive::{Drive, Medium};
use crate::world::{World, on_media, options, with_drives};

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
    let rotten = world.drives[drive].medium.borrow_mut().turn_over(byte);
    assert!(rotten > 0, "the drive has nothing of it");
}

fn found(array: &Array<Drive>) -> (u64, u64) {
    let status = array.status().expect("durable");
    let all = status.members.iter().map(|member| member.checksums);
    all.fold((0, 0), |sum, it| (sum.0 + it.found, sum.1 + it.mended))
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
                assert_eq!(array.scrub_status().mismatched_blocks, 0);
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
        assert_eq!(array.scrub_status().mismatched_blocks, 0);
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
            "RAID 0 has no redundancy to mend blocks from: make it without --integrity"
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

/// Writes until the power is cut at every step; what was acknowledged is read from all members, and from
/// any that are enough, without one block that is called wrong.
#[test]
fn no_cut_makes_a_checksum_call_good_data_wrong() {
    for consistency in [Consistency::Journal, Consistency::Bitmap] {
        for cut in (40_u64..).step_by(3) {
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
                let is_among = |byte: u8| byte >= least && byte <= least + 1;
                for _ in 0..2 {
                    let found = read(&array, 1).await.expect("it is there");
                    assert!(is_among(found), "cut at {cut}: {found} after {least}");
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
