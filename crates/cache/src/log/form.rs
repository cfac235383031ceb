//! The log: changes queue up, records are formed from them, and acknowledged in order.
//!
//! A change takes effect in memory when its record is formed. So memory and log always agree on the
//! order of events, and a replay ends in the very state that was here. One record carries whatever
//! arrived while earlier ones were on their way: no timer, depth 1 stays fast.

use std::collections::BTreeSet;

use voltier_block::{Buf, Bytes, Lba, Nanos, Payload};
use zerocopy::IntoBytes;

use crate::canary::{self, Canary};
use crate::clock::Moment;
use crate::format::checksum::crc32c;
use crate::format::geometry::Geometry;
use crate::format::position::Position;
use crate::format::record::{
    ENTRY_CLEAN, ENTRY_DATA, ENTRY_DROP, FLAG_DIRTY, FLAG_MASKED, NO_UNIT, RECORD_HEAD_BYTES,
    RECORD_MAGIC, RecordEntry, RecordHead,
};
use crate::log::builder::{Builder, EVICTIONS_PER_LINE, Effect, effect_on, entry_of};
use crate::log::chain::Found;
use crate::log::change::{Change, Queues, Sender, Source};
use crate::log::in_flight::{InFlight, RecordPieces, RecordsInFlight};
use crate::log::not_durable::NotDurable;
use crate::log::ordered::{Age, FlushPoint, Order, Place, Version};
use crate::map::contents::Contents;
use crate::map::index::PlacedLine;
use crate::map::segments::FreeSlots;
use crate::numbers::{Line, Segment, SegmentSlot, Slot};

/// The limit of records on their way at once. Eight of 64 KiB and more keep every channel of a PCIe SSD busy.
const RECORDS_IN_FLIGHT_MAX: usize = 8;
/// With a record on its way, the next one waits until so much is queued. Then 16 lines share a head,
/// which bounds the log's own writes to 1/16 of the data.
const RECORD_BYTES_MIN: usize = 64 << 10;
/// Free segments that only the cache's own changes may open. In ordered mode space comes back when the
/// log hears that versions have reached the origin.
const INTERNAL_RESERVE: usize = 2;
/// Units of a slot that may be spared for one head where there is much room.
const SPARED_UNITS_MAX: u32 = 4;

/// A record ready to be written: its head and lines, joined into runs of neighbours on the SSD.
pub(crate) struct Record {
    pub(crate) runs: Vec<(Lba, Payload)>,
    pub(crate) sequence: u64,
    pub(crate) pieces: RecordPieces,
}

/// The oldest record of a log that has ended.
pub(crate) struct Unsettled {
    pub(crate) sequence: u64,
    /// The writes of the record, if one of them failed: the SSD may have all of it.
    pub(crate) failed_runs: Option<Vec<(Lba, Payload)>>,
}

pub(crate) enum Formed {
    Record(Record),
    /// No change is waiting, or none of them mattered any more.
    Nothing,
    /// Changes wait for a free segment, or for a flush.
    Blocked,
}

/// State of the log: one owner, never borrowed across a wait.
pub(crate) struct LogState {
    geometry: Geometry,
    uuid: [u8; 16],
    generation: u64,
    queues: Queues,
    position: Position,
    next_sequence: u64,
    /// Every record below is on the SSD's interface, and below `durable_sequence` on its medium.
    acked_sequence: u64,
    durable_sequence: u64,
    epoch: u64,
    /// First record of this epoch, or a later one if none was formed in it yet.
    epoch_begin: u64,
    /// Records and their entries since the beginning of the replay.
    records: u64,
    entries: u64,
    /// The cleaner has ended: nothing of the cache's own needs the reserve any more.
    ending: bool,
    order: Order,
    /// The moment of the record that is formed next, or of the flush that ends.
    now: Moment,
    /// Slots that the log may write in the open segment, and in the next one.
    free_slots: FreeSlots,
    next_free_slots: FreeSlots,
    in_flight: RecordsInFlight,
    not_durable: NotDurable,
}

impl LogState {
    /// The log of an empty cache: it begins at segment 0.
    pub(crate) fn new(geometry: Geometry, uuid: [u8; 16], is_ordered: bool) -> Self {
        let not_durable = NotDurable::new(geometry.slot_count());
        Self {
            geometry,
            uuid,
            generation: 1,
            queues: Queues::default(),
            position: Position {
                segment: Segment(0),
                unit: NO_UNIT,
                slot: SegmentSlot(0),
                next_segment: Segment(0),
                next_segment_unit: 0,
            },
            next_sequence: 1,
            acked_sequence: 1,
            durable_sequence: 1,
            epoch: 0,
            epoch_begin: 1,
            records: 0,
            entries: 0,
            ending: false,
            order: Order::new(is_ordered),
            now: Moment::default(),
            free_slots: FreeSlots::none(),
            next_free_slots: FreeSlots::none(),
            in_flight: RecordsInFlight::default(),
            not_durable,
        }
    }

    /// A replay begins: the first record has this number, and stands here.
    pub(super) fn begin_replay(&mut self, sequence: u64, at: Position) {
        self.position = at;
        self.next_sequence = sequence;
    }

    /// Takes a record that a replay read, with the dirty lines in it: the log goes on behind it.
    pub(super) fn note_replayed(&mut self, record: &Found, versions: Vec<(Line, Version)>) {
        let (sequence, unit) = (record.sequence(), record.head.unit.get());
        self.next_sequence = sequence + 1;
        self.records += 1;
        self.entries += record.entries.len() as u64;
        self.epoch = record.head.epoch.get();
        let slot = match self.position.unit {
            NO_UNIT => self.geometry.slot_behind(unit),
            _ => self.position.slot,
        };
        let at = Position { unit, slot, ..record.next };
        let place = Place { sequence, epoch: self.epoch, at };
        self.order.push_replayed(place, &record.head, versions);
        self.position = record.next;
    }

    /// What was replayed has the ages that it has now.
    pub(super) fn begin_time(&mut self, now: Moment) {
        self.now = now;
        self.order.begin_time(now);
    }

    /// The clock of what is formed next.
    #[inline]
    pub(super) fn set_now(&mut self, now: Moment) {
        self.now = now;
    }

    /// The age of the oldest acknowledged write that the origin lacks, as far as it is in the order.
    pub(super) fn oldest_age(&self, now_ns: Nanos) -> Option<Age> {
        self.order.oldest_age(self.acked_sequence, now_ns)
    }

    /// The newest flush that the origin has; none before the first, and without an order.
    pub(super) fn shipped_flush(&self) -> Option<FlushPoint> {
        self.order.shipped_flush(self.epoch)
    }

    /// The replay is over: all records that it took are durable.
    pub(super) fn end_replay(&mut self) {
        self.acked_sequence = self.next_sequence;
        self.durable_sequence = self.next_sequence;
    }

    /// The records that follow are of this generation.
    pub(super) fn begin_generation(&mut self, generation: u64) {
        self.generation = generation;
    }

    pub(super) fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Where the next record goes.
    #[inline]
    pub(super) fn position(&self) -> Position {
        self.position
    }

    /// Number of the next record.
    #[inline]
    pub(super) fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Every record below this one is on the SSD's interface.
    #[inline]
    pub(super) fn acked_sequence(&self) -> u64 {
        self.acked_sequence
    }

    /// Every record below this one is on the SSD's medium.
    #[inline]
    pub(super) fn durable_sequence(&self) -> u64 {
        self.durable_sequence
    }

    /// Records and their entries since the beginning of the last replay.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.records, self.entries)
    }

    /// The changes that wait.
    #[inline]
    pub(super) fn queues(&self) -> &Queues {
        &self.queues
    }

    /// The changes that wait, for those who queue changes and wait for them.
    #[inline]
    pub(super) fn queues_mut(&mut self) -> &mut Queues {
        &mut self.queues
    }

    /// The order of destaging.
    #[inline]
    pub(super) fn order(&self) -> &Order {
        &self.order
    }

    /// The order of destaging, for those who work it off.
    pub(super) fn order_mut(&mut self) -> &mut Order {
        &mut self.order
    }

    /// The cleaner has ended: clients' changes may take the last segments.
    pub(super) fn open_reserve(&mut self) {
        self.ending = true;
    }

    /// Ends the epoch: the flush of a client is a cut also when another flush had made the records durable.
    pub(super) fn end_epoch(&mut self) {
        if self.epoch_begin < self.next_sequence {
            self.epoch += 1;
            self.epoch_begin = self.next_sequence;
            self.order.cut(self.generation, self.epoch, self.now.wall_ns);
        }
    }

    pub(super) fn records_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether a record should be formed now.
    pub(super) fn wants_record(&self) -> bool {
        match self.in_flight.len() {
            0 => !self.queues.is_empty(),
            count => count < RECORDS_IN_FLIGHT_MAX && self.queues.bytes() >= RECORD_BYTES_MIN,
        }
    }

    /// Sets the log to where a load found its end.
    pub(super) fn resume(&mut self, map: &mut Contents) {
        let Position { segment, next_segment, .. } = self.position;
        self.free_slots = map.free_slots_of(segment);
        self.next_free_slots = map.free_slots_of(next_segment);
        map.segments_mut().set_open([segment, next_segment]);
        if map.loading().is_none() {
            // The log was replayed from the medium: what emptied a segment is durable.
            map.learn_segments(self.geometry.segments(), self.durable_sequence);
            map.segments_mut().collect(self.durable_sequence);
        }
    }

    /// Makes sure that a head and a line fit where the log stands; false if no segment is free.
    fn ensure_room(&mut self, map: &mut Contents) -> bool {
        if self.position.unit != NO_UNIT {
            return true;
        }
        let Some((next_segment, slots)) = map.segments_mut().take_free() else { return false };
        map.segments_mut().close(self.position.segment);
        let first = slots.head_slot(SegmentSlot(0)).map(|slot| self.geometry.first_head_in(slot));
        self.position = Position {
            segment: self.position.next_segment,
            unit: self.position.next_segment_unit,
            slot: self.geometry.slot_behind(self.position.next_segment_unit),
            next_segment,
            next_segment_unit: first.expect("a prepared segment has room"),
        };
        self.free_slots = std::mem::replace(&mut self.next_free_slots, slots);
        true
    }

    /// Whether changes of clients find space without the cache's own reserve.
    pub(super) fn has_space(&self, map: &Contents) -> bool {
        self.ending || (map.segments().free_count() >= INTERNAL_RESERVE && map.has_room_to_load())
    }

    /// Forms the next record from what is queued and applies it to memory.
    pub(super) fn form_record(&mut self, map: &mut Contents) -> Formed {
        if self.queues.is_empty() {
            return Formed::Nothing;
        }
        let is_ending = self.ending;
        let reserve_is_whole = is_ending || map.segments().free_count() >= INTERNAL_RESERVE;
        let user_may = |map: &Contents| reserve_is_whole && (is_ending || map.has_room_to_load());
        let is_blocked = self.wants_flush() || (!self.queues.has_internal() && !user_may(map));
        if is_blocked || !self.ensure_room(map) {
            return Formed::Blocked;
        }
        let mut builder = Builder::new(&self.geometry, self.position);
        let fits = builder.find_line_slot(&self.free_slots);
        debug_assert!(fits, "the head of record {} stands where no line fits", self.next_sequence);
        while builder.has_room()
            && let Some((line, slot)) = map.pop_given_up()
        {
            builder.note(ENTRY_DROP, line, slot);
        }
        while builder.has_room() && builder.find_line_slot(&self.free_slots) {
            let next = if self.queues.has_internal() { Sender::Cache } else { Sender::Client };
            if next == Sender::Client && !user_may(map) {
                break;
            }
            let Some(change) = self.queues.pop(next) else { break };
            self.apply(change, map, &mut builder);
        }
        if builder.entries.is_empty() {
            self.ack_skipped();
            return Formed::Nothing;
        }
        Formed::Record(self.seal(map, builder))
    }

    /// Changes that did not matter any more are done when the records before them are.
    fn ack_skipped(&mut self) {
        let taken = self.queues.taken();
        match self.in_flight.last_mut() {
            Some(last) => last.taken = taken,
            None => self.queues.ack(taken),
        }
    }

    fn apply(&mut self, change: Change, map: &mut Contents, builder: &mut Builder) {
        match change {
            Change::Data { line, data, mask, source } => {
                self.apply_data(line, data, mask, source, map, builder);
            }
            Change::Clean(copy) => {
                let line = copy.line;
                let Some(newest) = map.index().lookup(line) else { return };
                let is_lost = canary::is(Canary::DirtyBitLost) && map.index().is_dirty(newest);
                if map.is_dirty_copy(&copy) || is_lost {
                    builder.add_effect(effect_on(map, line, Some(newest)));
                    map.set_clean(newest);
                    builder.note(ENTRY_CLEAN, line, newest);
                }
            }
            Change::Withdrawn => {}
            Change::Drop { line } => {
                if let Some(slot) = map.index().lookup(line) {
                    self.order.drop_line(line, self.next_sequence);
                    if map.index().is_dirty(slot) {
                        builder.add_effect(effect_on(map, line, Some(slot)));
                    }
                    map.forget(line, slot);
                    builder.note(ENTRY_DROP, line, slot);
                }
            }
        }
    }

    /// Where a replay must begin: here, or where the oldest version stands that the origin lacks.
    pub(super) fn replay_point(&self) -> (u64, Position) {
        self.order.oldest().unwrap_or((self.next_sequence, self.position))
    }

    fn apply_data(
        &mut self,
        line: Line,
        data: Bytes,
        mask: Option<u128>,
        source: Source,
        map: &mut Contents,
        builder: &mut Builder,
    ) {
        let old = map.index().lookup(line);
        let dirty = match source {
            Source::Write { dirty } => dirty,
            Source::Fill if old.is_some() => return,
            Source::Fill => false,
        };
        if old.is_none() && !self.make_room(map, builder) && source == Source::Fill {
            return;
        }
        let effect = effect_on(map, line, old.filter(|old| map.index().is_dirty(*old)));
        let crc = crc32c(&data);
        let slot = builder.take_line_slot(&self.geometry);
        map.put(PlacedLine { line, slot, crc, dirty, mask, pending: true }, old);
        if old.is_some() && source != Source::Fill {
            map.touch(slot, line);
        }
        if dirty && self.order.is_kept() {
            builder.add_version(line, Version { slot, crc, mask });
        }
        builder.add_data(
            RecordEntry {
                mask: mask.unwrap_or(0).into(),
                flags: flags_of(dirty, mask.is_some()),
                ..entry_of(ENTRY_DATA, line, slot, crc)
            },
            data,
            Effect { placed: Some(slot), ..effect },
        );
    }

    /// Pushes lines out until a new one fits; false if none of those asked can go.
    fn make_room(&self, map: &mut Contents, builder: &mut Builder) -> bool {
        let capacity = self.geometry.capacity_lines();
        for _ in 0..EVICTIONS_PER_LINE {
            if map.lines_expected() < capacity {
                return true;
            }
            let Some((line, victim)) = map.evict() else { return false };
            builder.note(ENTRY_DROP, line, victim);
        }
        map.lines_expected() < capacity
    }

    fn seal(&mut self, map: &mut Contents, builder: Builder) -> Record {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let Position { segment, unit, next_segment, next_segment_unit, .. } = builder.position;
        let (next_unit, next_slot) = self.next_head(unit, builder.slot);
        let head = RecordHead {
            magic: RECORD_MAGIC.into(),
            crc: 0.into(),
            uuid: self.uuid,
            generation: self.generation.into(),
            sequence: sequence.into(),
            durable_sequence: self.durable_sequence.into(),
            epoch: self.epoch.into(),
            segment: segment.0.into(),
            unit: unit.into(),
            next_unit: next_unit.into(),
            next_segment: next_segment.0.into(),
            next_segment_unit: next_segment_unit.into(),
            next_slot: next_slot.0.into(),
            entry_count: (builder.entries.len() as u16).into(),
            wall_ns: self.now.wall_ns.into(),
            reserved: [0; 6],
        };
        let mut block = Buf::new(self.geometry.unit_bytes as usize);
        let entries = builder.entries.as_bytes();
        let used = RECORD_HEAD_BYTES + entries.len();
        block[RECORD_HEAD_BYTES..used].copy_from_slice(entries);
        block[used..].fill(0);
        head.seal(&mut block);
        (self.position.unit, self.position.slot) = (next_unit, next_slot);
        map.segments_mut().note_record(segment, sequence);
        self.records += 1;
        self.entries += builder.entries.len() as u64;
        let place = Place { sequence, epoch: self.epoch, at: builder.position };
        self.order.push(place, self.now, builder.versions);
        let head = (self.geometry.lba_of(segment, unit), block.freeze());
        let pieces = RecordPieces { head, lines: builder.lines };
        let runs = pieces.runs(&self.geometry, &builder.effects);
        self.in_flight.push(InFlight::new(sequence, builder.effects, self.queues.taken()));
        Record { runs, sequence, pieces }
    }

    /// The write of a record failed; it may be tried again.
    pub(super) fn note_failed(&mut self, sequence: u64, pieces: RecordPieces) {
        self.in_flight.note_failed(sequence, pieces);
    }

    /// The writes of a record whose write failed, once more; `None` if the log has been given up.
    pub(super) fn runs_again(&mut self, sequence: u64) -> Option<Vec<(Lba, Payload)>> {
        let (pieces, effects) = self.in_flight.take_failed(sequence)?;
        Some(pieces.runs(&self.geometry, effects))
    }

    /// The unit of the head after the one in `unit`, and the first slot that is free behind it.
    ///
    /// Heads of lines larger than a unit share a slot, so that what they leave behind is whole slots.
    /// Heads fill a slot from its end: the first head stands right before its lines, and both go out as
    /// one write. In a segment with much room every head of smaller lines stands so.
    fn next_head(&self, unit: u32, slot: SegmentSlot) -> (u32, SegmentSlot) {
        let units_per_line = self.geometry.units_per_line();
        let shares = units_per_line > SPARED_UNITS_MAX || !self.free_slots.is_roomy();
        if shares && !unit.is_multiple_of(units_per_line) && self.free_slots.next(slot).is_some() {
            return (unit - 1, slot);
        }
        match self.free_slots.head_slot(slot) {
            Some(slot) => (self.geometry.first_head_in(slot), slot.behind()),
            None => (NO_UNIT, slot),
        }
    }

    /// A record is on the SSD's interface: acknowledges all that have none unfinished before them.
    pub(super) fn record_done(&mut self, sequence: u64, map: &mut Contents) {
        let done = self.in_flight.set_done(sequence).expect("a record on its way");
        if canary::is(Canary::AckOutOfOrder) {
            self.queues.ack_client(done.taken);
        }
        while let Some(record) = self.in_flight.pop_done() {
            for slot in record.effects.iter().filter_map(|effect| effect.placed) {
                map.clear_pending(slot);
            }
            self.acked_sequence = record.sequence + 1;
            self.queues.ack(record.taken);
            self.not_durable.keep(record.sequence, record.effects);
        }
    }

    /// Whether no record is formed before a flush.
    pub(super) fn wants_flush(&self) -> bool {
        self.not_durable.is_full()
    }

    /// Every record below this one is on the SSD's medium.
    pub(super) fn note_durable(&mut self, sequence: u64) {
        self.durable_sequence = self.durable_sequence.max(sequence);
        self.not_durable.forget_below(self.durable_sequence);
    }

    /// Slots whose data a power cut may take, although their records are acknowledged.
    pub(super) fn slots_not_durable(&self) -> BTreeSet<Slot> {
        self.not_durable.slots()
    }

    /// Dirty lines of which the SSD has acknowledged something: what its loss would take.
    pub(super) fn dirty_if_lost(&self, map: &Contents) -> u64 {
        let index = map.index();
        let is_unacked = |slot: Slot| index.is_pending(slot) && index.is_dirty(slot);
        let effects = self.in_flight.effects();
        let unacked = effects.filter(|it| it.lost == 0 && it.placed.is_some_and(is_unacked));
        index.dirty_lines() - unacked.count() as u64
    }

    /// The SSD takes no more records: what no record has taken is dropped. The records on their way are to be
    /// [decided](Self::oldest_unsettled), or [undone](Self::undo).
    pub(super) fn end(&mut self) {
        self.queues.clear();
        self.queues.wake_all();
    }

    /// Whether writes of records are under way.
    pub(super) fn has_writes(&self) -> bool {
        self.in_flight.has_writes()
    }

    /// A record of a log that has ended was written after all.
    pub(super) fn note_written(&mut self, sequence: u64) {
        self.in_flight.set_done(sequence);
    }

    /// The oldest record of a log that has ended, if nobody knows yet what becomes of the record.
    pub(super) fn oldest_unsettled(&self) -> Option<Unsettled> {
        let (oldest, pieces) = self.in_flight.oldest()?;
        let failed_runs = pieces.map(|pieces| pieces.runs(&self.geometry, &oldest.effects));
        Some(Unsettled { sequence: oldest.sequence, failed_runs })
    }

    /// The SSD has all of the oldest record durably: a replay takes the record.
    pub(super) fn settle_oldest(&mut self, map: &mut Contents) {
        if let Some(Unsettled { sequence, .. }) = self.oldest_unsettled() {
            self.record_done(sequence, map);
            self.note_durable(self.acked_sequence);
        }
    }

    /// Of the records on their way nobody hears, and the map is again what the acknowledged ones say. Copies
    /// that they replaced are still there: a segment is not written again before what emptied it is durable.
    pub(super) fn undo(&mut self, map: &mut Contents) {
        let records = self.in_flight.take_all().into_iter().rev();
        let effects = records.flat_map(|record| record.effects.into_iter().rev());
        for Effect { line, replaced, lost, .. } in effects {
            if let Some(slot) = map.index().lookup(line) {
                map.forget(line, slot);
            }
            if let Some((slot, crc)) = replaced
                && !canary::is(Canary::RecordNotUndone)
            {
                let mask = Some(lost).filter(|lost| *lost != u128::MAX);
                map.put(PlacedLine { line, slot, crc, dirty: true, mask, pending: false }, None);
            }
        }
        self.order.undo(self.acked_sequence);
    }

    /// The SSD is lost: nobody will be acknowledged any more. Dirty sectors
    /// of the version before a line on its way are lost; the rest is on the origin.
    pub(super) fn abandon(&mut self, map: &mut Contents) {
        self.queues.clear();
        for effect in self.in_flight.take_all().into_iter().flat_map(|record| record.effects) {
            if let Some(slot) = effect.placed {
                map.lose_pending(slot, effect.lost);
            }
        }
        self.queues.wake_all();
    }
}

fn flags_of(dirty: bool, is_masked: bool) -> u8 {
    let flag = |on: bool, bit: u8| if on { bit } else { 0 };
    flag(dirty, FLAG_DIRTY) | flag(is_masked, FLAG_MASKED)
}

#[cfg(test)]
mod tests;
