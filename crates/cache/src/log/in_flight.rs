//! Records on their way to the SSD, in the order of the log.

use std::collections::{BTreeMap, VecDeque};

use voltier_block::{Bytes, Lba, Payload};

use crate::format::geometry::Geometry;
use crate::log::builder::Effect;
use crate::log::change::Taken;

/// The memory of a record: what is written again when its write fails, and compared when the log has ended.
#[derive(Clone)]
pub(crate) struct RecordPieces {
    pub(super) head: (Lba, Bytes),
    pub(super) lines: Vec<Bytes>,
}

impl RecordPieces {
    /// The writes of the record, which has these effects: neighbours on the SSD joined.
    pub(super) fn runs(&self, geometry: &Geometry, effects: &[Effect]) -> Vec<(Lba, Payload)> {
        let slots = effects.iter().filter_map(|effect| effect.placed);
        let places = slots.map(|slot| geometry.lba_of_slot(slot));
        let lines = places.zip(self.lines.iter().cloned());
        let mut runs: Vec<(Lba, Vec<Bytes>)> = Vec::new();
        let mut end = None;
        for (at, data) in std::iter::once(self.head.clone()).chain(lines) {
            let behind = at.plus(data.len() as u64 / 512);
            match runs.last_mut() {
                Some((_, pieces)) if end == Some(at) => pieces.push(data),
                _ => runs.push((at, vec![data])),
            }
            end = Some(behind);
        }
        runs.into_iter().map(|(at, pieces)| (at, Payload::Many(pieces))).collect()
    }
}

/// A record on its way.
pub(super) struct InFlight {
    pub(super) sequence: u64,
    /// The record is on the SSD's interface.
    done: bool,
    pub(super) effects: Vec<Effect>,
    pub(super) taken: Taken,
}

impl InFlight {
    pub(super) fn new(sequence: u64, effects: Vec<Effect>, taken: Taken) -> Self {
        Self { sequence, done: false, effects, taken }
    }
}

/// The records on their way, oldest first.
#[derive(Default)]
pub(super) struct RecordsInFlight {
    records: VecDeque<InFlight>,
    /// Records whose last write failed, and that are not being written again now.
    failed: BTreeMap<u64, RecordPieces>,
}

impl RecordsInFlight {
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn push(&mut self, record: InFlight) {
        self.records.push_back(record);
    }

    /// The newest record.
    pub(super) fn last_mut(&mut self) -> Option<&mut InFlight> {
        self.records.back_mut()
    }

    /// The effects of all records, oldest first.
    pub(super) fn effects(&self) -> impl Iterator<Item = &Effect> {
        self.records.iter().flat_map(|record| &record.effects)
    }

    /// A record is on the SSD's interface; `None` if the log has forgotten the record.
    pub(super) fn set_done(&mut self, sequence: u64) -> Option<&InFlight> {
        let record = self.records.iter_mut().find(|record| record.sequence == sequence)?;
        record.done = true;
        Some(record)
    }

    /// Takes the oldest record out if it is done.
    pub(super) fn pop_done(&mut self) -> Option<InFlight> {
        self.records.pop_front_if(|record| record.done)
    }

    /// The write of a record failed.
    pub(super) fn note_failed(&mut self, sequence: u64, pieces: RecordPieces) {
        if self.records.iter().any(|record| record.sequence == sequence) {
            self.failed.insert(sequence, pieces);
        }
    }

    /// A record whose write failed is written once more: its pieces and effects. `None` if the log has
    /// forgotten the record.
    pub(super) fn take_failed(&mut self, sequence: u64) -> Option<(RecordPieces, &[Effect])> {
        let pieces = self.failed.remove(&sequence)?;
        let record = self.records.iter().find(|record| record.sequence == sequence)?;
        Some((pieces, &record.effects[..]))
    }

    /// Whether writes of records are under way.
    pub(super) fn has_writes(&self) -> bool {
        let is_written = |it: &InFlight| it.done || self.failed.contains_key(&it.sequence);
        !self.records.iter().all(is_written)
    }

    /// The oldest record, and its pieces if its write failed.
    pub(super) fn oldest(&self) -> Option<(&InFlight, Option<&RecordPieces>)> {
        let oldest = self.records.front()?;
        Some((oldest, self.failed.get(&oldest.sequence)))
    }

    /// Takes all records out, oldest first.
    pub(super) fn take_all(&mut self) -> VecDeque<InFlight> {
        self.failed.clear();
        std::mem::take(&mut self.records)
    }
}
