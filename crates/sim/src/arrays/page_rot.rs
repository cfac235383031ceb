//! Pages of checksums turn over while the array is stopped, and blocks that they are for turn over as well.
//! The next start must answer none of these blocks, and make all of it good.

use std::rc::Rc;

use voltier_array::{BackgroundTask, GroupIndex, MemberIndex, ScrubRepair, StripeNumber};
use voltier_block::{Lba, Nanos, Prng, SECTOR_BYTES, SectorRange};

use crate::arrays::checks::{check_all, check_members, read_all};
use crate::arrays::fixture::ArrayFixture;
use crate::arrays::operator::finish;
use crate::arrays::sets::DriveSet;
use crate::arrays::start::start;
use crate::arrays::trial::Trial;
use crate::disk::SimDisk;
use crate::fault::FaultKind;

/// Mixed into the seed: seeds that do not draw this are as they were, and no kept seed draws it.
const PAGE_ROT: u64 = 0x7061_6765_0000_0f05;
/// One seed in so many of those with checksums.
const ONE_IN: u64 = 2;
/// Checksums of a page.
const PAGE_SUMS: u64 = 1008;
/// Bytes of a copy of a page, and of a block that has a checksum.
const PAGE_BYTES: u64 = 4096;

/// When a page that was refused is tried again.
const RETRY_NS: Nanos = 61_000_000_000;

/// A block that turned over, and what belongs there.
struct Turned {
    drive: usize,
    at: Lba,
    right: Vec<u8>,
}

/// The dice of the seed for this, if the seed draws it.
pub(super) fn drawn(seed: u64) -> Option<Prng> {
    let mut dice = Prng::new(seed ^ PAGE_ROT);
    dice.one_in(ONE_IN).then_some(dice)
}

/// Stops the array, has pages and blocks turn over, starts it and checks it. Nothing else goes on.
pub(crate) async fn rot_and_start(fixture: &Rc<ArrayFixture>, mut dice: Prng) {
    if !fixture.setup.has_checksums() {
        return;
    }
    fixture.until("nothing needs a resync", |fixture| !fixture.needs_resync()).await;
    finish(fixture).await;
    if !fixture.is_all_online() {
        return;
    }
    let victims = victims(fixture, &mut dice);
    store_all_pages(fixture).await;
    fixture.stop().await;
    fixture.drop_array();
    for (_, drive) in &victims {
        damage_pages(fixture, *drive, &mut dice);
    }
    let turned = turn_over(fixture, &victims, &mut dice);
    let known = fixture.known();
    let is_gone = |drive: &usize| fixture.disks[*drive].is_gone();
    let all = known.labelled() | known.journals();
    let given: DriveSet = all - (0..fixture.disks.len()).filter(is_gone).collect();
    let mut trial = Trial::of(&fixture.setup, &fixture.lives(), &known, given);
    let report = start(fixture, &mut trial, &mut dice).await.expect("what was stopped comes back");
    assert!(report.was_clean && report.regions_to_resync == 0, "what was stopped is not clean");
    check_members(fixture, trial.usable);
    read_all(fixture, "under rotten pages of checksums").await;
    scrub(fixture).await;
    fixture.until("the pages are made anew", |fixture| unprotected(fixture) == 0).await;
    for Turned { drive, at, right } in turned {
        let mut found = vec![0; right.len()];
        fixture.disks[drive].peek(at, &mut found);
        assert!(found == right, "rot under a rotten page is not mended on drive {drive}");
    }
    fixture.disks.iter().for_each(SimDisk::mend);
    check_all(fixture, "after rot of pages").await;
}

/// Drives that refused pages take them, and all blocks have checksums.
async fn store_all_pages(fixture: &ArrayFixture) {
    fixture.disks.iter().for_each(SimDisk::mend);
    scrub(fixture).await;
    fixture.world.handle().sleep(RETRY_NS).await;
    fixture.array().empty_journal().await.expect("a flush works");
    fixture.until("all pages are stored", |fixture| unprotected(fixture) == 0).await;
}

async fn scrub(fixture: &ArrayFixture) {
    let array = fixture.array();
    array.ended(BackgroundTask::Scrub).await;
    array.scrub(ScrubRepair::Nothing).expect("none is running");
    array.ended(BackgroundTask::Scrub).await;
    assert_eq!(array.scrub_status().counts.mismatched_blocks, 0, "the scrub finds what is not");
}

fn unprotected(fixture: &ArrayFixture) -> u64 {
    let status = fixture.array().status().expect("an array with superblocks");
    status.members.iter().map(|member| member.health.counts.unprotected_pages).sum()
}

/// As many members of each group as it can lose, or fewer, with their drives.
pub(super) fn victims(fixture: &ArrayFixture, dice: &mut Prng) -> Vec<(MemberIndex, usize)> {
    let (array, geometry) = (fixture.array(), fixture.geometry());
    let mut victims = Vec::new();
    for group in (0..geometry.group_count()).map(GroupIndex) {
        let mut members: Vec<MemberIndex> = geometry.members_of(group).collect();
        for _ in 0..1 + dice.below(geometry.parity_chunks() as u64) {
            let member = members.swap_remove(dice.below(members.len() as u64) as usize);
            let drive = fixture.members.drive_of(&array, member.0).expect("all are in service");
            victims.push((member, drive));
        }
    }
    victims
}

/// Has a copy of each page of a drive, or both, say nothing any more, and perhaps the list of void pages.
fn damage_pages(fixture: &ArrayFixture, drive: usize, dice: &mut Prng) {
    fixture.world.tell(|| format!("rot of pages: drive {drive}"));
    let data_bytes = fixture.setup.geometry.member_sectors() * SECTOR_BYTES;
    let pages = data_bytes.div_ceil(PAGE_SUMS * PAGE_BYTES);
    // The list of void pages is in front of the pages, and has two copies as well.
    if dice.one_in(4) {
        spoil(fixture, drive, 0, dice);
        spoil(fixture, drive, 1, dice);
    }
    for page in 1..=pages {
        let copies = *dice.pick(&[[true, false], [false, true], [true, true]]);
        for copy in (0..2).filter(|copy| copies[*copy as usize]) {
            spoil(fixture, drive, 2 * page + copy, dice);
        }
    }
}

/// Has a block of the area of checksums be unreadable, or something else than was written.
fn spoil(fixture: &ArrayFixture, drive: usize, block: u64, dice: &mut Prng) {
    let (disk, area) = (&fixture.disks[drive], fixture.setup.layout().checksums.start);
    let at = Lba::from_bytes(area.bytes() + block * PAGE_BYTES);
    fixture.world.ledger().fault(FaultKind::BitRot);
    if dice.one_in(3) {
        return disk.fail_reads(SectorRange::new(at, PAGE_BYTES / SECTOR_BYTES));
    }
    let mut other = vec![0; PAGE_BYTES as usize];
    if dice.one_in(2) {
        dice.fill(&mut other);
    }
    disk.overwrite(at.bytes(), &other);
}

/// Has blocks of these members turn over, in stripes that were written.
fn turn_over(
    fixture: &ArrayFixture,
    victims: &[(MemberIndex, usize)],
    dice: &mut Prng,
) -> Vec<Turned> {
    let geometry = &fixture.geometry();
    let is_written = |stripe: &&StripeNumber| {
        fixture.written.borrow().contains(&fixture.setup.region_of(**stripe))
    };
    let mut turned = Vec::new();
    for stripe in fixture.stripes.iter().filter(is_written) {
        let group = geometry.group_of(*stripe);
        for (member, drive) in victims {
            if geometry.group_of_member(*member) != group || dice.one_in(3) {
                continue;
            }
            let block = fixture.setup.block_sectors();
            let offset = dice.below(geometry.chunk_sectors() / block) * block;
            let at = fixture.on_device(geometry.member_lba(*stripe, offset));
            let mut right = vec![0; PAGE_BYTES as usize];
            fixture.disks[*drive].peek(at, &mut right);
            let mut wrong = right.clone();
            wrong[dice.below(PAGE_BYTES) as usize] ^= 1 + dice.below(255) as u8;
            fixture.disks[*drive].overwrite(at.bytes(), &wrong);
            turned.push(Turned { drive: *drive, at, right });
        }
    }
    turned
}
