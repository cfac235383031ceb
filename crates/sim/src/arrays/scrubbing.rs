//! Puts bit rot on a member, and holds the scrub that is to find it to what is so.

use std::rc::Rc;

use voltier_array::{
    BackgroundTask, MemberIndex, ScrubFinding, ScrubRepair, StripeNumber, StripeSlot,
};
use voltier_block::{Lba, Prng, SECTOR_BYTES, SectorRange};

use crate::arrays::bit_rot::{BitRot, is_locatable};
use crate::arrays::fixture::ArrayFixture;
use crate::fault::FaultKind;

fn found_on(bit_rot: &BitRot, fixture: &ArrayFixture) -> Vec<u8> {
    let mut found = vec![0; bit_rot.right.len()];
    fixture.disks[bit_rot.drive].peek(Lba::from_bytes(bit_rot.at), &mut found);
    found
}

/// The finding that a scrub is to report.
fn finding(bit_rot: &BitRot, fixture: &ArrayFixture, is_repaired: bool) -> ScrubFinding {
    ScrubFinding {
        member: is_locatable(&fixture.setup).then_some(bit_rot.member),
        sectors: SectorRange::from_bytes(bit_rot.at, bit_rot.right.len() as u64),
        group: fixture.setup.geometry.group_of(bit_rot.stripe).0,
        is_repaired,
    }
}

/// Closes a stripe that was written, and has a member return something else for one of its blocks.
async fn inject_bit_rot(fixture: &ArrayFixture, dice: &mut Prng) -> Option<BitRot> {
    let geometry = &fixture.setup.geometry;
    let is_written = |stripe: &StripeNumber| {
        fixture.written.borrow().contains(&fixture.setup.region_of(*stripe))
    };
    let stripes: Vec<StripeNumber> =
        fixture.setup.stripes().into_iter().filter(is_written).collect();
    if stripes.is_empty() || geometry.parity_chunks() == 0 {
        return None;
    }
    let stripe = *dice.pick(&stripes);
    fixture.bit_rot.closed.set(Some(stripe));
    let sectors = fixture.setup.sectors_of(stripe);
    let is_free =
        |fixture: &ArrayFixture| !fixture.under_way.borrow().iter().any(|it| it.overlaps(sectors));
    fixture.until("a stripe is free", is_free).await;
    let slot = dice.below(geometry.width() as u64) as usize;
    let MemberIndex(member) = geometry.member_of(stripe, StripeSlot(slot));
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
    fixture.world.tell(|| format!("bit rot: member {member}, slot {slot} of stripe {}", stripe.0));
    fixture.world.ledger().fault(FaultKind::BitRot);
    fixture.disks[drive].overwrite(at.bytes(), &wrong);
    fixture.bit_rot.is_there.set(true);
    fixture.bit_rot.was_there.set(true);
    let bit_rot = BitRot { drive, member, slot, stripe, at: at.bytes(), right, wrong };
    fixture.bit_rot.block.replace(Some(bit_rot.clone()));
    Some(bit_rot)
}

/// Has a block of a member turn over, scrubs, and holds what the scrub says and does to what is so.
pub(crate) async fn scrub_for_bit_rot(fixture: &Rc<ArrayFixture>, dice: &mut Prng) {
    fixture.until("nothing needs a resync", |fixture| !fixture.needs_resync()).await;
    let Some(bit_rot) = inject_bit_rot(fixture, dice).await else {
        return scrub_in_vain(fixture).await;
    };
    if fixture.setup.has_checksums() {
        return scrub_beside_clients(fixture, &bit_rot, dice).await;
    }
    fixture.world.handle().sleep(dice.below(20) * fixture.setup.latency_ns).await;
    let is_parity = bit_rot.slot >= fixture.setup.geometry.data_chunks();
    let may_take_data_for_right = is_parity || is_locatable(&fixture.setup);
    let modes = [
        ScrubRepair::Nothing,
        ScrubRepair::Located,
        ScrubRepair::RewriteData,
        ScrubRepair::Everything,
    ];
    let modes = if may_take_data_for_right { &modes[..] } else { &modes[..3] };
    let repair = *dice.pick(modes);
    scrub(fixture, repair).await;
    let status = fixture.array().scrub_status();
    // Located data are rewritten where nobody wrote since they matched: only the array knows where.
    let is_free = is_parity || fixture.setup.geometry.is_mirror() || status.counts.left_blocks == 0;
    let is_repaired = match repair {
        ScrubRepair::Nothing => false,
        ScrubRepair::Located => is_locatable(&fixture.setup) && is_free,
        ScrubRepair::RewriteData => is_locatable(&fixture.setup),
        ScrubRepair::Everything => !is_locatable(&fixture.setup) || is_free,
    };
    assert_eq!(
        status.findings,
        [finding(&bit_rot, fixture, is_repaired)],
        "the scrub names another block"
    );
    let found = found_on(&bit_rot, fixture);
    let expected = if is_repaired { &bit_rot.right } else { &bit_rot.wrong };
    assert!(found == *expected, "the scrub says {is_repaired}, and the block is not so");
    if !is_repaired {
        fixture.disks[bit_rot.drive].overwrite(bit_rot.at, &bit_rot.right);
        fixture.bit_rot.block.replace(None);
        fixture.bit_rot.closed.set(None);
    }
    fixture.bit_rot.is_there.set(false);
}

/// Clients go on in the stripe. A block that does not match its checksum is never answered, and nothing is
/// computed from it. After a scrub of any mode the block is right.
async fn scrub_beside_clients(fixture: &Rc<ArrayFixture>, bit_rot: &BitRot, dice: &mut Prng) {
    fixture.bit_rot.closed.set(None);
    fixture.bit_rot.is_there.set(false);
    fixture.world.handle().sleep(dice.below(60) * fixture.setup.latency_ns).await;
    let modes = [ScrubRepair::Nothing, ScrubRepair::Located, ScrubRepair::Everything];
    scrub(fixture, *dice.pick(&modes)).await;
    let status = fixture.array().scrub_status();
    assert_eq!(status.counts.mismatched_blocks, 0, "the scrub takes rot for a mismatch of parity");
    assert!(found_on(bit_rot, fixture) != bit_rot.wrong, "the scrub leaves rot in its place");
    // A cut may take the repair away again: the block stays known until the array is stopped.
}

/// After a cut: the block is wrong still, or the repair went through.
pub(crate) async fn scrub_again(fixture: &Rc<ArrayFixture>) {
    let Some(bit_rot) = fixture.bit_rot.block.borrow().clone() else { return };
    let before = found_on(&bit_rot, fixture);
    let drive_block_bytes = fixture.setup.drives[bit_rot.drive].block_bytes;
    assert!(bit_rot.may_leave(&before, drive_block_bytes), "a block is neither right nor wrong");
    scrub(fixture, ScrubRepair::RewriteData).await;
    let findings = fixture.array().scrub_status().findings;
    let expected = (before != bit_rot.right).then(|| finding(&bit_rot, fixture, true));
    assert_eq!(findings, Vec::from_iter(expected), "the scrub names another block");
    assert!(found_on(&bit_rot, fixture) == bit_rot.right, "the scrub has not repaired the block");
    fixture.bit_rot.is_there.set(false);
}

/// Where nothing is wrong nothing is found.
async fn scrub_in_vain(fixture: &ArrayFixture) {
    scrub(fixture, ScrubRepair::Located).await;
    assert_eq!(
        fixture.array().scrub_status().counts.mismatched_blocks,
        0,
        "the scrub finds what is not"
    );
}

async fn scrub(fixture: &ArrayFixture, repair: ScrubRepair) {
    let array = fixture.array();
    array.ended(BackgroundTask::Scrub).await;
    array.scrub(repair).expect("none is running");
    array.ended(BackgroundTask::Scrub).await;
}
