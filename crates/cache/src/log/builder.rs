//! A record being put together: its entries, and the places of its lines.

use voltier_block::Bytes;

use crate::format::geometry::Geometry;
use crate::format::position::Position;
use crate::format::record::{FLAG_DIRTY, FLAG_PARTIAL, RecordEntry, entries_per_record};
use crate::log::ordered::Version;
use crate::map::segments::FreeSlots;

/// Lines a new line may push out at once: more than one pays off an excess left by a moment when
/// nothing could go.
pub(super) const EVICTIONS_PER_LINE: usize = 2;

pub(super) fn flags_of(dirty: bool, partial: bool) -> u8 {
    let flag = |on: bool, bit: u8| if on { bit } else { 0 };
    flag(dirty, FLAG_DIRTY) | flag(partial, FLAG_PARTIAL)
}

pub(super) fn entry_of(kind: u8, line: u64, slot: u32, crc: u32) -> RecordEntry {
    RecordEntry {
        line: line.into(),
        slot: slot.into(),
        crc: crc.into(),
        mask: 0.into(),
        kind,
        flags: 0,
        reserved: [0; 6],
    }
}

/// A record being put together.
pub(super) struct Builder {
    pub(super) position: Position,
    /// Where the search for the next free slot of the segment goes on.
    pub(super) slot: u32,
    /// Where the next line goes.
    line_slot: Option<u32>,
    entries_max: usize,
    pub(super) entries: Vec<RecordEntry>,
    pub(super) lines: Vec<Bytes>,
    /// Of the lines, and what was dirty in the versions they replace.
    pub(super) slots: Vec<(u32, u128)>,
    /// Dirty lines, in ordered mode.
    pub(super) versions: Vec<(u64, Version)>,
}

impl Builder {
    pub(super) fn new(geometry: &Geometry, position: Position) -> Self {
        let entries_max = entries_per_record(geometry.unit_bytes as usize);
        Self {
            position,
            slot: position.slot,
            line_slot: None,
            entries_max,
            entries: Vec::with_capacity(entries_max),
            lines: Vec::with_capacity(entries_max),
            slots: Vec::with_capacity(entries_max),
            versions: Vec::new(),
        }
    }

    /// Whether any change still fits, with the evictions it may cause.
    pub(super) fn has_room(&self) -> bool {
        self.entries.len() + 1 + EVICTIONS_PER_LINE <= self.entries_max
    }

    /// Finds where the next line would go; false when the segment has no room for one.
    pub(super) fn find_line_place(&mut self, free: &FreeSlots) -> bool {
        self.line_slot = self.line_slot.or_else(|| free.next(self.slot));
        self.line_slot.is_some()
    }

    pub(super) fn take_line_place(&mut self, geometry: &Geometry) -> u32 {
        let slot = self.line_slot.take().expect("a place was found before the change was taken");
        self.slot = slot + 1;
        self.position.segment * geometry.slots_per_segment + slot
    }

    pub(super) fn add_data(&mut self, entry: RecordEntry, data: Bytes, lost: u128) {
        self.slots.push((entry.slot.get(), lost));
        self.entries.push(entry);
        self.lines.push(data);
    }

    pub(super) fn note(&mut self, kind: u8, line: u64, slot: u32) {
        self.entries.push(entry_of(kind, line, slot, 0));
    }
}
