//! A record being put together: its entries, its lines, and its effects on the map.

use voltier_block::Bytes;

use crate::format::geometry::Geometry;
use crate::format::position::Position;
use crate::format::record::{RecordEntry, entries_per_record};
use crate::log::ordered::Version;
use crate::map::contents::Contents;
use crate::map::segments::FreeSlots;
use crate::numbers::{Line, SegmentSlot, Slot};

/// Lines a new line may push out at once: more than one pays off an excess left by a moment when
/// nothing could go.
pub(super) const EVICTIONS_PER_LINE: usize = 2;

/// The effect of a record on one line of the map, as far as dirty sectors and new copies are concerned.
pub(super) struct Effect {
    pub(super) line: Line,
    /// Where the record puts the line, if it does.
    pub(super) placed: Option<Slot>,
    /// The dirty copy that was there before, and its CRC: the log keeps it until the record is durable.
    pub(super) replaced: Option<(Slot, u32)>,
    /// Sectors that were dirty in it: what a loss of the SSD takes.
    pub(super) lost: u128,
}

/// The effect of a change of a line whose dirty copy is in slot `replaced`, if it has one.
pub(super) fn effect_on(map: &Contents, line: Line, replaced: Option<Slot>) -> Effect {
    let index = map.index();
    Effect {
        line,
        placed: None,
        replaced: replaced.map(|slot| (slot, index.crc_bits(slot))),
        lost: replaced.map_or(0, |slot| index.mask(slot).unwrap_or(u128::MAX)),
    }
}

pub(super) fn entry_of(kind: u8, line: Line, slot: Slot, crc: u32) -> RecordEntry {
    RecordEntry {
        line: line.0.into(),
        slot: slot.0.into(),
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
    pub(super) slot: SegmentSlot,
    /// Where the next line goes.
    line_slot: Option<SegmentSlot>,
    entries_max: usize,
    pub(super) entries: Vec<RecordEntry>,
    pub(super) lines: Vec<Bytes>,
    /// Of the lines, and of changes that make dirty copies void.
    pub(super) effects: Vec<Effect>,
    /// Dirty lines, in ordered mode.
    pub(super) versions: Vec<(Line, Version)>,
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
            effects: Vec::with_capacity(entries_max),
            versions: Vec::new(),
        }
    }

    /// Whether any change still fits, with the evictions it may cause.
    pub(super) fn has_room(&self) -> bool {
        self.entries.len() + 1 + EVICTIONS_PER_LINE <= self.entries_max
    }

    /// Finds the slot of the next line; false when the segment has no room for one.
    pub(super) fn find_line_slot(&mut self, free: &FreeSlots) -> bool {
        self.line_slot = self.line_slot.or_else(|| free.next(self.slot));
        self.line_slot.is_some()
    }

    pub(super) fn take_line_slot(&mut self, geometry: &Geometry) -> Slot {
        let slot = self.line_slot.take().expect("a slot was found before the change was taken");
        self.slot = slot.behind();
        geometry.slot_in(self.position.segment, slot)
    }

    pub(super) fn add_data(&mut self, entry: RecordEntry, data: Bytes, effect: Effect) {
        self.effects.push(effect);
        self.entries.push(entry);
        self.lines.push(data);
    }

    /// Adds the effect of a change that brings no line.
    pub(super) fn add_effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Adds a version of a line that has its order.
    pub(super) fn add_version(&mut self, line: Line, version: Version) {
        self.versions.push((line, version));
    }

    pub(super) fn note(&mut self, kind: u8, line: Line, slot: Slot) {
        self.entries.push(entry_of(kind, line, slot, 0));
    }
}
