//! Effects of records that are acknowledged and not durable: a power cut may take them back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::log::builder::Effect;
use crate::numbers::{Line, Slot};

/// Effects that are kept at most: 16 MiB. A flush may take half a minute, and the SSD goes on with writes
/// meanwhile.
const EFFECTS_KEPT_MAX: usize = 250_000;
/// The least bound of them, and their share of the slots: on a small SSD a flush comes soon anyway.
const EFFECTS_KEPT: (usize, u32) = (256, 4);

/// The effects, with the numbers of their records.
pub(super) struct NotDurable {
    effects: VecDeque<(u64, Effect)>,
    effects_max: usize,
}

impl NotDurable {
    /// None yet, of a log with so many slots.
    pub(super) fn new(slot_count: u32) -> Self {
        let (least, share) = EFFECTS_KEPT;
        let effects_max = ((slot_count / share) as usize).clamp(least, EFFECTS_KEPT_MAX);
        Self { effects: VecDeque::new(), effects_max }
    }

    /// Keeps the effects of an acknowledged record until it is durable.
    pub(super) fn keep(&mut self, sequence: u64, effects: Vec<Effect>) {
        self.effects.extend(effects.into_iter().map(|effect| (sequence, effect)));
    }

    /// Whether no record is to be formed before a flush.
    pub(super) fn is_full(&self) -> bool {
        self.effects.len() >= self.effects_max
    }

    /// Every record below this one is on the SSD's medium.
    pub(super) fn forget_below(&mut self, sequence: u64) {
        while self.effects.front().is_some_and(|record| record.0 < sequence) {
            self.effects.pop_front();
        }
    }

    /// Slots whose data a power cut may take, where a replay may find no dirty copy of the line. Others may
    /// go to the origin: after a power cut an older dirty copy follows them, and sectors that a flush covered
    /// are in both.
    pub(super) fn slots(&self) -> BTreeSet<Slot> {
        let mut always_dirty: BTreeMap<Line, bool> = BTreeMap::new();
        let mut slots = BTreeSet::new();
        for (_, effect) in &self.effects {
            // A power cut keeps any first part of the records: a replay may end before each of these effects.
            let always_dirty = always_dirty.entry(effect.line).or_insert(true);
            *always_dirty &= effect.replaced.is_some();
            if !*always_dirty {
                slots.extend(effect.placed);
            }
        }
        slots
    }

    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.effects.capacity() * size_of::<(u64, Effect)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_a_replay_may_find_clean_does_not_go_out_before_it_is_durable() {
        let mut not_durable = NotDurable::new(1024);
        let mut acknowledge = |sequence, line, replaced: Option<u32>, placed: Option<u32>| {
            let replaced = replaced.map(|slot| (Slot(slot), 0));
            let (line, placed) = (Line(line), placed.map(Slot));
            not_durable.keep(sequence, vec![Effect { line, placed, replaced, lost: 0 }]);
        };
        // Line 1 is dirty in slot 10, cleaned and written anew; line 2 is written twice over slot 20.
        acknowledge(5, 1, Some(10), None);
        acknowledge(6, 1, None, Some(11));
        acknowledge(7, 1, Some(11), Some(12));
        acknowledge(8, 2, Some(20), Some(21));
        acknowledge(9, 2, Some(21), Some(22));
        assert_eq!(not_durable.slots(), BTreeSet::from([Slot(11), Slot(12)]));
        not_durable.forget_below(7);
        assert_eq!(not_durable.slots(), BTreeSet::new(), "slot 11 is dirty and durable");
    }
}
