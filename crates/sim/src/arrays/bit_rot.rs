//! A member that returns something else than was written, and the scrub that is to find it.

use std::rc::Rc;

use voltier_array::{BackgroundTask, ScrubFinding, ScrubRepair, Stripe};
use voltier_block::{Lba, Prng, SECTOR_BYTES, SectorRange};

use crate::arrays::fixture::ArrayFixture;
use crate::arrays::setup::Setup;
use crate::fault::FaultKind;
use crate::medium::Medium;

/// A block of a member that is not what was written.
#[derive(Clone, Debug)]
pub(crate) struct Rot {
    pub(crate) drive: usize,
    member: usize,
    slot: usize,
    pub(crate) stripe: Stripe,
    /// First byte of the drive.
    at: u64,
    right: Vec<u8>,
    wrong: Vec<u8>,
}

/// Whether an array can tell which block is wrong.
pub(crate) fn is_locatable(setup: &Setup) -> bool {
    setup.geometry.parity_chunks() >= 2
}

impl Rot {
    /// Puts back what was there: nobody has promised to find it here.
    pub(crate) fn heal(&self, medium: &mut Medium) {
        medium.overwrite(self.at, &self.right);
    }

    fn found_on(&self, fixture: &ArrayFixture) -> Vec<u8> {
        let mut found = vec![0; self.right.len()];
        fixture.disks[self.drive].peek(Lba::from_bytes(self.at), &mut found);
        found
    }

    /// Whether it may be what a repair that was cut off leaves. The repair is one block of the array, and
    /// a power cut tears what is longer than a block of the drive: each of those is right or wrong.
    fn may_leave(&self, found: &[u8], drive_block_bytes: u32) -> bool {
        let blocks = |bytes| <[u8]>::chunks(bytes, drive_block_bytes as usize);
        let known = blocks(&self.right).zip(blocks(&self.wrong));
        blocks(found).zip(known).all(|(found, (right, wrong))| found == right || found == wrong)
    }

    /// What a scrub is to say of it.
    fn finding(&self, fixture: &ArrayFixture, is_repaired: bool) -> ScrubFinding {
        ScrubFinding {
            member: is_locatable(&fixture.setup).then_some(self.member),
            sectors: SectorRange::from_bytes(self.at, self.right.len() as u64),
            group: fixture.setup.geometry.group_of(self.stripe),
            is_repaired,
        }
    }
}

/// Closes a stripe that was written, and has a member return something else for one of its blocks.
async fn turn_over(fixture: &ArrayFixture, dice: &mut Prng) -> Option<Rot> {
    let geometry = &fixture.setup.geometry;
    let is_written =
        |stripe: &Stripe| fixture.written.borrow().contains(&fixture.setup.region_of(*stripe));
    let stripes: Vec<Stripe> = fixture.setup.stripes().into_iter().filter(is_written).collect();
    if stripes.is_empty() || geometry.parity_chunks() == 0 {
        return None;
    }
    let stripe = *dice.pick(&stripes);
    fixture.closed.set(Some(stripe));
    let sectors = fixture.setup.sectors_of(stripe);
    let is_free =
        |fixture: &ArrayFixture| !fixture.under_way.borrow().iter().any(|it| it.overlaps(sectors));
    fixture.until("a stripe is free", is_free).await;
    let slot = dice.below(geometry.width() as u64) as usize;
    let member = geometry.member_of(stripe, slot);
    let drive = fixture.members.drive_of(&fixture.array(), member).expect("it is in service");
    let block = fixture.setup.block_sectors();
    let offset = dice.below(geometry.chunk_sectors() / block) * block;
    let at = fixture.on_device(geometry.member_lba(stripe, offset));
    let mut right = vec![0; (block * SECTOR_BYTES) as usize];
    fixture.disks[drive].peek(at, &mut right);
    let mut wrong = right.clone();
    for _ in 0..1 + dice.below(3) {
        let byte = dice.below(wrong.len() as u64) as usize;
        wrong[byte] = right[byte] ^ (1 + dice.below(255)) as u8;
    }
    fixture.world.tell(|| format!("rot: member {member}, slot {slot} of stripe {}", stripe.0));
    fixture.world.ledger().fault(FaultKind::BitRot);
    fixture.disks[drive].overwrite(at.bytes(), &wrong);
    fixture.is_rotten.set(true);
    fixture.was_rotten.set(true);
    let rot = Rot { drive, member, slot, stripe, at: at.bytes(), right, wrong };
    fixture.rot.replace(Some(rot.clone()));
    Some(rot)
}

/// Has a block of a member turn over, scrubs, and holds what the scrub says and does to what is so.
pub(crate) async fn scrub_for_rot(fixture: &Rc<ArrayFixture>, dice: &mut Prng) {
    fixture.until("nothing is in doubt", |fixture| !fixture.is_in_doubt()).await;
    let Some(rot) = turn_over(fixture, dice).await else { return scrub_in_vain(fixture).await };
    fixture.world.handle().sleep(dice.below(20) * fixture.setup.latency_ns).await;
    let is_parity = rot.slot >= fixture.setup.geometry.data_chunks();
    let may_take_data_for_right = is_parity || is_locatable(&fixture.setup);
    let modes = [ScrubRepair::Nothing, ScrubRepair::Located, ScrubRepair::Everything];
    let modes = if may_take_data_for_right { &modes[..] } else { &modes[..2] };
    let repair = *dice.pick(modes);
    scrub(fixture, repair).await;
    let is_repaired = match repair {
        ScrubRepair::Nothing => false,
        ScrubRepair::Located => is_locatable(&fixture.setup),
        ScrubRepair::Everything => true,
    };
    let status = fixture.array().scrub_status();
    assert_eq!(
        status.findings,
        [rot.finding(fixture, is_repaired)],
        "the scrub names another block"
    );
    let found = rot.found_on(fixture);
    let expected = if is_repaired { &rot.right } else { &rot.wrong };
    assert!(found == *expected, "the scrub says {is_repaired}, and the block is not so");
    if !is_repaired {
        fixture.disks[rot.drive].overwrite(rot.at, &rot.right);
        fixture.rot.replace(None);
        fixture.closed.set(None);
    }
    fixture.is_rotten.set(false);
}

/// After a cut: the block is wrong still, or the repair went through.
pub(crate) async fn scrub_again(fixture: &Rc<ArrayFixture>) {
    let Some(rot) = fixture.rot.borrow().clone() else { return };
    let before = rot.found_on(fixture);
    let drive_block_bytes = fixture.setup.drives[rot.drive].block_bytes;
    assert!(rot.may_leave(&before, drive_block_bytes), "a block is neither right nor wrong");
    scrub(fixture, ScrubRepair::Located).await;
    let findings = fixture.array().scrub_status().findings;
    let expected = (before != rot.right).then(|| rot.finding(fixture, true));
    assert_eq!(findings, Vec::from_iter(expected), "the scrub names another block");
    assert!(rot.found_on(fixture) == rot.right, "the scrub has not repaired the block");
    fixture.is_rotten.set(false);
}

/// Where nothing is wrong nothing is found.
async fn scrub_in_vain(fixture: &ArrayFixture) {
    scrub(fixture, ScrubRepair::Located).await;
    assert_eq!(fixture.array().scrub_status().mismatched_blocks, 0, "the scrub finds what is not");
}

async fn scrub(fixture: &ArrayFixture, repair: ScrubRepair) {
    let array = fixture.array();
    array.ended(BackgroundTask::Scrub).await;
    array.scrub(repair).expect("none is running");
    array.ended(BackgroundTask::Scrub).await;
}
