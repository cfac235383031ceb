//! A member that returns something else than was written, and the scrub that is to find it.

use std::rc::Rc;

use voltier_array::{BackgroundTask, ScrubFinding, ScrubRepair, Stripe};
use voltier_block::{Lba, Prng, SECTOR_BYTES, SectorRange};

use crate::arrays::rig::Rig;
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

    fn found_on(&self, rig: &Rig) -> Vec<u8> {
        let mut found = vec![0; self.right.len()];
        rig.disks[self.drive].peek(Lba::from_bytes(self.at), &mut found);
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
    fn finding(&self, rig: &Rig, is_repaired: bool) -> ScrubFinding {
        ScrubFinding {
            member: is_locatable(&rig.setup).then_some(self.member),
            sectors: SectorRange::from_bytes(self.at, self.right.len() as u64),
            group: rig.setup.geometry.group_of(self.stripe),
            is_repaired,
        }
    }
}

/// Closes a stripe that was written, and has a member return something else for one of its blocks.
async fn turn_over(rig: &Rig, dice: &mut Prng) -> Option<Rot> {
    let geometry = &rig.setup.geometry;
    let is_written = |stripe: &Stripe| rig.written.borrow().contains(&rig.setup.region_of(*stripe));
    let stripes: Vec<Stripe> = rig.setup.stripes().into_iter().filter(is_written).collect();
    if stripes.is_empty() || geometry.parity_chunks() == 0 {
        return None;
    }
    let stripe = *dice.pick(&stripes);
    rig.closed.set(Some(stripe));
    let sectors = rig.setup.sectors_of(stripe);
    let is_free = |rig: &Rig| !rig.under_way.borrow().iter().any(|it| it.overlaps(sectors));
    rig.until("a stripe is free", is_free).await;
    let slot = dice.below(geometry.width() as u64) as usize;
    let member = geometry.member_of(stripe, slot);
    let drive = rig.bay.drive_of(&rig.array(), member).expect("it is in service");
    let block = rig.setup.block_sectors();
    let offset = dice.below(geometry.chunk_sectors() / block) * block;
    let at = rig.on_device(geometry.member_lba(stripe, offset));
    let mut right = vec![0; (block * SECTOR_BYTES) as usize];
    rig.disks[drive].peek(at, &mut right);
    let mut wrong = right.clone();
    for _ in 0..1 + dice.below(3) {
        let byte = dice.below(wrong.len() as u64) as usize;
        wrong[byte] = right[byte] ^ (1 + dice.below(255)) as u8;
    }
    rig.world.tell(|| format!("rot: member {member}, slot {slot} of stripe {}", stripe.0));
    rig.world.ledger().fault(FaultKind::BitRot);
    rig.disks[drive].overwrite(at.bytes(), &wrong);
    rig.is_rotten.set(true);
    rig.was_rotten.set(true);
    let rot = Rot { drive, member, slot, stripe, at: at.bytes(), right, wrong };
    rig.rot.replace(Some(rot.clone()));
    Some(rot)
}

/// Has a block of a member turn over, scrubs, and holds what the scrub says and does to what is so.
pub(crate) async fn scrub_for_rot(rig: &Rc<Rig>, dice: &mut Prng) {
    rig.until("nothing is in doubt", |rig| !rig.is_in_doubt()).await;
    let Some(rot) = turn_over(rig, dice).await else { return scrub_in_vain(rig).await };
    rig.world.handle().sleep(dice.below(20) * rig.setup.latency_ns).await;
    let is_parity = rot.slot >= rig.setup.geometry.data_chunks();
    let may_take_data_for_right = is_parity || is_locatable(&rig.setup);
    let modes = [ScrubRepair::Nothing, ScrubRepair::Located, ScrubRepair::Everything];
    let modes = if may_take_data_for_right { &modes[..] } else { &modes[..2] };
    let repair = *dice.pick(modes);
    scrub(rig, repair).await;
    let is_repaired = match repair {
        ScrubRepair::Nothing => false,
        ScrubRepair::Located => is_locatable(&rig.setup),
        ScrubRepair::Everything => true,
    };
    let status = rig.array().scrub_status();
    assert_eq!(status.findings, [rot.finding(rig, is_repaired)], "the scrub names another block");
    let found = rot.found_on(rig);
    let expected = if is_repaired { &rot.right } else { &rot.wrong };
    assert!(found == *expected, "the scrub says {is_repaired}, and the block is not so");
    if !is_repaired {
        rig.disks[rot.drive].overwrite(rot.at, &rot.right);
        rig.rot.replace(None);
        rig.closed.set(None);
    }
    rig.is_rotten.set(false);
}

/// After a cut: the block is wrong still, or the repair went through.
pub(crate) async fn scrub_again(rig: &Rc<Rig>) {
    let Some(rot) = rig.rot.borrow().clone() else { return };
    let before = rot.found_on(rig);
    let drive_block_bytes = rig.setup.drives[rot.drive].block_bytes;
    assert!(rot.may_leave(&before, drive_block_bytes), "a block is neither right nor wrong");
    scrub(rig, ScrubRepair::Located).await;
    let findings = rig.array().scrub_status().findings;
    let expected = (before != rot.right).then(|| rot.finding(rig, true));
    assert_eq!(findings, Vec::from_iter(expected), "the scrub names another block");
    assert!(rot.found_on(rig) == rot.right, "the scrub has not repaired the block");
    rig.is_rotten.set(false);
}

/// Where nothing is wrong nothing is found.
async fn scrub_in_vain(rig: &Rig) {
    scrub(rig, ScrubRepair::Located).await;
    assert_eq!(rig.array().scrub_status().mismatched_blocks, 0, "the scrub finds what is not");
}

async fn scrub(rig: &Rig, repair: ScrubRepair) {
    let array = rig.array();
    array.ended(BackgroundTask::Scrub).await;
    array.scrub(repair).expect("none is running");
    array.ended(BackgroundTask::Scrub).await;
}
