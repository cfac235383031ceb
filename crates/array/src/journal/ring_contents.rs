//! Batches that a replay found in the rings, and what they say together.

use std::collections::BTreeMap;

use crate::canary::{self, Canary};
use crate::format::journal_record::{Bounds, Entry};

/// The batches that were found in one ring.
#[derive(Default)]
pub(super) struct Found {
    pub(super) life: u64,
    pub(super) label_number: u64,
    /// Whether a copy of the label cannot be read, which may be the newer one.
    pub(super) is_copy_unread: bool,
    pub(super) bounds: Bounds,
    pub(super) records: Vec<Record>,
}

/// Leaves all rings out when there are several and none has both copies of its label: nobody knows then how
/// far all is in place.
pub(super) fn leave_unproven_out(found: &mut [Option<Found>]) {
    let rings = || found.iter().flatten();
    let is_proven = rings().count() == 1 || rings().any(|ring| !ring.is_copy_unread);
    if !is_proven {
        found.fill_with(|| None);
    }
}

/// One entry, and the sector of the device where its data are.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub(super) entry: Entry,
    pub(super) data: Option<u64>,
}

/// All rings together.
pub(super) struct RingContents {
    /// Transactions below are in the rings of all their members.
    pub(super) recorded_below: u64,
    pub(super) life: u64,
    /// Transactions below are in place on all members.
    pub(super) watermark: u64,
    pub(super) next_number: u64,
    /// By transaction, from the highest watermark on: the members that have a part of it, and those
    /// whose ring has it.
    pub(super) transactions: BTreeMap<u64, (u64, u64)>,
}

impl RingContents {
    /// `found` has the rings of so many members, then the ring of the journal device. Transactions
    /// below `redo_from` are in place, whatever the rings say.
    pub(super) fn of(found: &[Option<Found>], members: usize, redo_from: u64) -> Self {
        let rings = || found.iter().flatten();
        let highest = |of: fn(&Found) -> u64| rings().map(of).max().unwrap_or(0);
        let watermark = highest(|ring| ring.bounds.watermark).max(redo_from);
        let mut transactions = BTreeMap::new();
        let mut next_number = watermark;
        for (index, ring) in found.iter().enumerate() {
            for record in ring.iter().flat_map(|ring| &ring.records) {
                let number = record.entry.number.get();
                next_number = next_number.max(number);
                if number >= watermark {
                    let seen = transactions.entry(number).or_insert((0, 0));
                    let participants = record.entry.participants.get();
                    seen.0 |= participants;
                    // On a device it is all of it, in one batch.
                    seen.1 |= if index < members { 1 << index } else { participants };
                }
            }
        }
        Self {
            recorded_below: highest(|ring| ring.bounds.recorded_below),
            life: highest(|ring| ring.life),
            watermark,
            next_number: next_number + 1,
            transactions,
        }
    }

    /// Members in service whose ring lacks a record that was there.
    pub(super) fn damaged(&self, present: u64) -> u64 {
        let proven = self.transactions.range(..self.recorded_below);
        proven
            .fold(0, |damaged, (_, (participants, seen))| damaged | participants & present & !seen)
    }

    /// Whether a transaction is to be redone: nothing of it is in place else.
    pub(super) fn is_complete(&self, number: u64, present: u64) -> bool {
        self.transactions.get(&number).is_some_and(|(participants, seen)| {
            participants & present & !seen == 0 || canary::is(Canary::IncompleteRedone)
        })
    }
}
