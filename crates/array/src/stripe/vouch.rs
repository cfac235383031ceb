//! Blocks of which no checksum is known, held against the others of their stripe.
//!
//! Every block of a region that was written has a checksum, unless its page cannot be read: then nothing tells
//! whether the block is right. What its stripe says of it takes the place of the checksum, and becomes one.
//! Blocks that have checksums count first. If these are enough to compute the others, they say what belongs
//! there. Otherwise the stripe has to match as a whole, or without the one block that is wrong.

use voltier_block::{BlockDevice, Buf, Durability};

use crate::format::checksum_page::{SUMMED_BYTES, SUMMED_SECTORS};
use crate::geometry::chunks::Span;
use crate::geometry::numbers::{StripeNumber, StripeSlot};
use crate::geometry::plan::{SlotState, online};
use crate::members::at_once::at_once;
use crate::members::checksums::table::BlockState;
use crate::stripe::stripes::Stripes;

/// What is known of some blocks in the end; the worst of them counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Vouched {
    /// They are right, and have checksums.
    Right,
    /// There is nothing to hold them against.
    Unchecked,
    /// Some of them are wrong, and nothing tells which.
    Mismatched,
}

/// The blocks of a slot over a span.
struct Column {
    slot: StripeSlot,
    states: Vec<BlockState>,
    bytes: Buf,
}

/// The blocks of a stripe at one place.
struct Blocks<'a> {
    stripe: StripeNumber,
    /// For each slot its block, if it can be read.
    pieces: Vec<Option<&'a [u8]>>,
    known: Vec<StripeSlot>,
    unknown: Vec<StripeSlot>,
}

/// All blocks of a stripe at one place, some of them computed from the others.
enum Completed {
    /// Too many would have to be computed.
    Never,
    /// They do not go together.
    Inconsistent,
    Whole(Vec<Buf>),
}

/// Finds out what blocks without checksums are.
pub(super) struct Voucher<'a, D>(pub(super) &'a Stripes<D>);

impl<D: BlockDevice> Voucher<'_, D> {
    /// Finds out what blocks without checksums are, repairs those that are wrong, and keeps the checksums. The
    /// stripe is locked, and needs no resync.
    pub(super) async fn vouch(&self, stripe: StripeNumber, span: Span) -> Vouched {
        let Ok(states) = self.0.slot_states(stripe, &[]) else { return Vouched::Unchecked };
        let known = self.0.with_checksums(stripe, span, &states).await;
        if known.len() == online(&states).count() {
            return Vouched::Right;
        }
        if let Some(vouched) = self.vouch_span(stripe, span, &states, true).await {
            return vouched;
        }
        let mut worst = Vouched::Right;
        for start in (span.start..span.end).step_by(SUMMED_SECTORS as usize) {
            let block = Span { start, end: (start + SUMMED_SECTORS).min(span.end) };
            let vouched = self.vouch_span(stripe, block, &states, false).await;
            worst = worst.max(vouched.unwrap_or(Vouched::Unchecked));
        }
        worst
    }

    /// The same, with one read of each slot; none if one of them cannot be read and all must be.
    async fn vouch_span(
        &self,
        stripe: StripeNumber,
        span: Span,
        states: &[SlotState],
        needs_all: bool,
    ) -> Option<Vouched> {
        let members = self.0.slot_members(stripe);
        let at = self.0.geometry().member_lba(stripe, span.start);
        let read = |slot: StripeSlot| {
            self.0.members().clone().read_judged(
                members.member_of(slot),
                at,
                Buf::new(span.bytes()),
            )
        };
        let slots: Vec<StripeSlot> = online(states).collect();
        let results = at_once(self.0.handle(), slots.iter().map(|slot| read(*slot))).await;
        let mut columns = Vec::with_capacity(results.len());
        for (slot, result) in slots.into_iter().zip(results) {
            match result {
                Ok((bytes, states)) => columns.push(Column { slot, states, bytes }),
                Err(_) if needs_all => return None,
                Err(_) => {}
            }
        }
        let mut worst = Vouched::Right;
        for block in 0..span.bytes() / SUMMED_BYTES {
            let blocks = Blocks::of(stripe, states.len(), &columns, block);
            if blocks.unknown.is_empty() {
                continue;
            }
            let at = at.plus(block as u64 * SUMMED_SECTORS);
            match self.decide(&blocks) {
                Ok(right) => {
                    for (slot, bytes) in right {
                        let member = members.member_of(slot);
                        let is_right = blocks.pieces[slot.0].is_some_and(|it| *it == bytes[..]);
                        self.0.members().adopt(member, at, &bytes).await;
                        if !is_right {
                            self.0.members().convict(member, at);
                            self.0.members().note_repair(member);
                            let data = bytes.into();
                            let members = self.0.members().clone();
                            // What it should be is known whether the member takes it or not.
                            let _ = members.write(member, at, data, Durability::Cached).await;
                        }
                    }
                }
                Err(vouched) => worst = worst.max(vouched),
            }
        }
        Some(worst)
    }

    /// The right content of the blocks without checksums, or why nobody knows.
    fn decide(&self, blocks: &Blocks<'_>) -> Result<Vec<(StripeSlot, Buf)>, Vouched> {
        let of_unknown = |whole: Vec<Buf>| {
            let all = StripeSlot::all(whole.len()).zip(whole);
            all.filter(|(slot, _)| blocks.unknown.contains(slot)).collect()
        };
        match self.complete(blocks, |_| false) {
            Completed::Whole(whole) => return Ok(of_unknown(whole)),
            Completed::Inconsistent => return Err(Vouched::Mismatched),
            Completed::Never => {}
        }
        let parities = self.0.geometry().parity_chunks();
        let missing = blocks.pieces.len() - blocks.known.len() - blocks.unknown.len();
        // Without one more than are needed nothing contradicts anything.
        if missing >= parities {
            return Err(Vouched::Unchecked);
        }
        if let Completed::Whole(whole) = self.complete(blocks, |_| true) {
            return Ok(of_unknown(whole));
        }
        if missing + 1 >= parities {
            return Err(Vouched::Mismatched);
        }
        let without = |wrong: &StripeSlot| match self.complete(blocks, |slot| slot != *wrong) {
            Completed::Whole(whole) => Some(whole),
            Completed::Never | Completed::Inconsistent => None,
        };
        let mut candidates = blocks.unknown.iter().filter_map(without);
        match (candidates.next(), candidates.next()) {
            (Some(whole), None) => Ok(of_unknown(whole)),
            _ => Err(Vouched::Mismatched),
        }
    }

    /// Computes what is missing from the blocks with checksums, and those of the others that are trusted.
    fn complete(&self, blocks: &Blocks<'_>, is_trusted: impl Fn(StripeSlot) -> bool) -> Completed {
        let is_used = |slot: &StripeSlot| {
            blocks.known.contains(slot) || (blocks.unknown.contains(slot) && is_trusted(*slot))
        };
        let width = blocks.pieces.len();
        let missing: Vec<StripeSlot> =
            StripeSlot::all(width).filter(|slot| !is_used(slot)).collect();
        if missing.len() > self.0.geometry().parity_chunks() {
            return Completed::Never;
        }
        let piece = |slot: usize| blocks.pieces[slot].expect("what is used was read");
        let mut whole: Vec<Buf> = Vec::with_capacity(width);
        for slot in StripeSlot::all(width) {
            let is_read = is_used(&slot);
            whole.push(if is_read { Buf::copy_of(piece(slot.0)) } else { Buf::new(SUMMED_BYTES) });
        }
        if !missing.is_empty() {
            let plan = self.0.reconstruct(blocks.stripe, &missing);
            for (slot, buf) in plan.blocks(SUMMED_BYTES, |slot| piece(slot.0)) {
                whole[slot.0] = buf;
            }
        }
        let slices: Vec<&[u8]> = whole.iter().map(|buf| &buf[..]).collect();
        let (data, parity) = slices.split_at(self.0.shape(blocks.stripe).data_chunks());
        let is_consistent = self.0.code_of(blocks.stripe).check(data, parity);
        if is_consistent { Completed::Whole(whole) } else { Completed::Inconsistent }
    }
}

impl<'a> Blocks<'a> {
    /// The blocks at this place of the columns of a stripe of so many slots.
    fn of(stripe: StripeNumber, width: usize, columns: &'a [Column], block: usize) -> Self {
        let (known, unknown) = (Vec::new(), Vec::new());
        let mut blocks = Self { stripe, pieces: vec![None; width], known, unknown };
        for column in columns {
            let place = block * SUMMED_BYTES..(block + 1) * SUMMED_BYTES;
            match column.states[block] {
                BlockState::Right => blocks.known.push(column.slot),
                BlockState::Unknown => blocks.unknown.push(column.slot),
                BlockState::Wrong => continue,
            }
            blocks.pieces[column.slot.0] = Some(&column.bytes[place]);
        }
        blocks
    }
}
