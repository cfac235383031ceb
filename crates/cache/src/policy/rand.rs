//! Random replacement: the occupied slots are the order, so nothing is remembered.

use voltier_block::Prng;

use super::lines::Lines;

use crate::numbers::Slot;

/// Independent draws before giving up on a uniform choice. Nine slots of ten full and nine lines
/// of ten dirty leave 9 % to hit: 64 draws miss once in 400.
const DRAWS_MAX: u32 = 64;

/// Slots then looked at in a row, which costs little because neighbours share cache lines. Such a look
/// finds the last one clean line in a hundred nine times in ten.
const ROW_MAX: u32 = 256;

#[derive(Debug)]
pub(super) struct Rand {
    prng: Prng,
}

impl Rand {
    pub(super) fn new(seed: u64) -> Self {
        Self { prng: Prng::new(seed) }
    }

    pub(super) fn victim(&mut self, lines: &impl Lines) -> Option<Slot> {
        let slots = lines.slots();
        if slots == 0 {
            return None;
        }
        let evictable = |&slot: &Slot| lines.occupied(slot) && lines.evictable(slot);
        let mut draw = || Slot(self.prng.below(u64::from(slots)) as u32);
        if let Some(slot) = (0..DRAWS_MAX).map(|_| draw()).find(evictable) {
            return Some(slot);
        }
        let start = draw().0;
        let row = (start..slots).chain(0..start).take(ROW_MAX as usize);
        row.map(Slot).find(evictable)
    }
}
