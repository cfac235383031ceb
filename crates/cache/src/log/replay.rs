//! Replaying: the log behind the checkpoint into memory.
//!
//! Records that a later head calls durable are taken by their head alone. Those after it may be torn, so
//! their data is checked too; the first one that is not whole ends the log. A whole record left behind a
//! torn one has an older generation than what was written since, and is not taken. Before the end is
//! believed, the space behind it is searched for a head that proves a durable record missing. Where such
//! a head is found, the SSD is damaged, and nothing is guessed.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use voltier_block::{Buf, DriveControl, IoError, IoResult};
use voltier_ring::join_all;

use crate::canary::{self, Canary};
use crate::format::checksum::crc32c;
use crate::format::position::Position;
use crate::format::record::{
    ENTRY_CLEAN, ENTRY_DATA, ENTRY_DROP, FLAG_DIRTY, FLAG_MASKED, RecordEntry, RecordHead,
};
use crate::format::superblock::{STATE_CLEAN, Superblock};
use crate::log::chain::{Chain, Found, LogReader};
use crate::log::form::LogState;
use crate::log::open::{OpenError, ssd_error};
use crate::log::ordered::Version;
use crate::map::contents::Contents;
use crate::map::index::PlacedLine;
use crate::numbers::{Line, Segment, SegmentSlot, Slot};

/// Replays the log from where the checkpoint ends; the number of records taken.
pub(crate) async fn replay<S: DriveControl>(
    ssd: &S,
    found: &Superblock,
    map: &mut Contents,
    log: &mut LogState,
) -> Result<u64, OpenError> {
    let first = found.replay_sequence.get();
    let begin = Position {
        segment: Segment(found.replay_segment.get()),
        unit: found.replay_unit.get(),
        slot: SegmentSlot(found.replay_slot.get()),
        next_segment: Segment(found.next_segment.get()),
        next_segment_unit: found.next_segment_unit.get(),
    };
    let Some(begin) = begin.on(map.geometry()) else {
        return Err(OpenError::Damaged("its log begins outside the device".to_owned()));
    };
    let reader = LogReader { ssd, geometry: map.geometry().clone(), uuid: log.uuid() };
    let mut chain = Chain::new(&reader, begin);
    log.begin_replay(first, begin);
    map.segments_mut().set_replay_sequence(first);
    let mut generation = 0;
    // The last start, or the stop in order, built on all records before this one.
    let mut durable = found.first_sequence.get();
    // Records of which no later head has said that they are durable.
    let mut unproven: VecDeque<Found> = VecDeque::new();
    let mut expected = first;
    while let Some(next) = chain.next().await? {
        if expected >= found.first_sequence.get() {
            // Where a crash had cut the log off, records behind the cut may still be there.
            generation = generation.max(found.generation.get());
        }
        let cut_off = next.head.generation.get() < generation;
        if next.sequence() != expected || (cut_off && !canary::is(Canary::GenerationIgnored)) {
            break;
        }
        expected += 1;
        generation = next.head.generation.get();
        durable = durable.max(next.head.durable_sequence.get());
        unproven.push_back(next);
        while unproven.front().is_some_and(|record| record.sequence() < durable) {
            let record = unproven.pop_front().expect("has a front");
            take_record(map, log, &record)?;
        }
    }
    while let Some(record) = unproven.pop_front() {
        if !data_is_whole(&reader, &record).await? && !canary::is(Canary::TornDataTaken) {
            break;
        }
        take_record(map, log, &record)?;
    }
    finish_replay(&reader, found, log).await?;
    Ok(log.next_sequence() - first)
}

/// Checks that the log ends behind the last record taken.
async fn finish_replay<S: DriveControl>(
    reader: &LogReader<'_, S>,
    found: &Superblock,
    log: &mut LogState,
) -> Result<(), OpenError> {
    let (end, first) = (log.next_sequence(), found.first_sequence.get());
    if end < first {
        return Err(OpenError::Damaged(format!(
            "its log ends at record {end}, but all before record {first} were durable"
        )));
    }
    if found.state.get() != STATE_CLEAN {
        prove_end(reader, log).await?;
    }
    log.end_replay();
    Ok(())
}

/// Whether the data of every line of a record is what its entries say.
async fn data_is_whole<S: DriveControl>(
    reader: &LogReader<'_, S>,
    record: &Found,
) -> Result<bool, OpenError> {
    let (ssd, geometry) = (reader.ssd, &reader.geometry);
    let segment = record.head.segment.get();
    let of_data = record.entries.iter().filter(|entry| entry.kind == ENTRY_DATA);
    let checks = of_data.map(|entry| async move {
        let slot = Slot(entry.slot.get());
        if geometry.segment_of(slot).0 != segment {
            return Ok(false);
        }
        let line = Buf::new(geometry.line_bytes as usize);
        let data = ssd.read(geometry.lba_of_slot(slot), line).await?;
        IoResult::Ok(crc32c(&data) == entry.crc.get())
    });
    for check in join_all(checks).await {
        if !check.map_err(ssd_error)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Applies a record to the state as it was applied when it was formed.
fn take_record(map: &mut Contents, log: &mut LogState, record: &Found) -> Result<(), OpenError> {
    let (lines, slots) = (map.geometry().origin_lines(), map.geometry().slot_count());
    let sequence = record.sequence();
    let mut versions = Vec::new();
    map.index().warm_up_lines(record.entries.iter().map(|entry| Line(entry.line.get())));
    for entry in &record.entries {
        let (line, slot) = (Line(entry.line.get()), Slot(entry.slot.get()));
        if line.0 >= lines || slot.0 >= slots {
            return Err(OpenError::Damaged(format!(
                "record {} names line {line} and slot {slot}, which do not exist",
                record.head.sequence
            )));
        }
        match entry.kind {
            ENTRY_DATA => {
                let version = take_data(map, &record.head, entry)?;
                versions.extend(version.map(|version| (line, version)));
            }
            ENTRY_CLEAN if map.index().lookup(line) == Some(slot) => {
                map.index_mut().set_clean(slot);
                log.order_mut().drop_line(line, sequence);
            }
            ENTRY_DROP if !canary::is(Canary::DropForgotten) => {
                if let Some(loading) = map.loading_mut() {
                    loading.replay_drop(line, slot);
                }
                if let Some(slot) = map.index().lookup(line) {
                    map.index_mut().remove(slot);
                    log.order_mut().drop_line(line, sequence);
                }
            }
            _ => {}
        }
    }
    log.note_replayed(record, versions);
    map.segments_mut().note_replayed(record.next.segment, sequence);
    Ok(())
}

/// Puts the line of a data entry where the entry says; the version, if it is dirty.
fn take_data(
    map: &mut Contents,
    head: &RecordHead,
    entry: &RecordEntry,
) -> Result<Option<Version>, OpenError> {
    let (line, slot) = (Line(entry.line.get()), Slot(entry.slot.get()));
    if map.geometry().segment_of(slot).0 != head.segment.get() {
        return Err(OpenError::Damaged(format!(
            "record {} puts line {line} in slot {slot}, outside its segment",
            head.sequence
        )));
    }
    let replaced = map.index().is_used(slot).then(|| map.index().line_of(slot));
    if replaced.is_some() {
        map.index_mut().remove(slot);
    }
    if let Some(loading) = map.loading_mut() {
        loading.decide(slot);
        if let Some(replaced) = replaced {
            loading.void(replaced, replaced);
        }
    }
    let (crc, dirty) = (entry.crc.get(), entry.flags & FLAG_DIRTY != 0);
    let mask = (entry.flags & FLAG_MASKED != 0).then_some(entry.mask.get());
    map.index_mut().place(PlacedLine { line, slot, crc, dirty, mask, pending: false });
    Ok(dirty.then_some(Version { slot, crc, mask }))
}

/// Looks for proof that a durable record is missing behind the end of the replay. The proof is a head
/// that calls the record durable. The head may stand further on in the same segment or in the next one.
/// Those that follow are searched as long as they hold records behind the end.
async fn prove_end<S: DriveControl>(
    reader: &LogReader<'_, S>,
    log: &LogState,
) -> Result<(), OpenError> {
    let end = log.next_sequence();
    let Position { segment, unit, next_segment, .. } = log.position();
    let geometry = &reader.geometry;
    let (units, per_line) = (geometry.units_per_segment(), geometry.units_per_line());
    // Heads fill a slot from its end.
    let slot_begin = unit.min(units) / per_line * per_line;
    newest_behind(reader, segment, slot_begin..units, end).await?;
    let mut searched = BTreeSet::from([segment]);
    let mut next = Some(next_segment);
    while let Some(segment) = next.filter(|segment| searched.insert(*segment)) {
        next = newest_behind(reader, segment, 0..units, end).await?;
    }
    Ok(())
}

/// The segment after the newest record behind `end` in some units of a segment, if there is one.
///
/// # Errors
/// `Damaged` when one of them says that more than `end` was durable.
async fn newest_behind<S: DriveControl>(
    reader: &LogReader<'_, S>,
    segment: Segment,
    mut units: Range<u32>,
    end: u64,
) -> Result<Option<Segment>, OpenError> {
    let mut newest = None;
    while !units.is_empty() {
        let reads = units.by_ref().take(64).map(|unit| reader.record(segment, unit));
        for found in join_all(reads).await {
            // The place where the log would go on was read before. A bad
            // block elsewhere, a known bad line for one, proves nothing.
            let found = match found {
                Err(OpenError::Io { error: IoError::Medium, .. }) => None,
                found => found?,
            };
            let Some(found) = found else { continue };
            if found.head.durable_sequence.get() > end {
                return Err(OpenError::Damaged(format!(
                    "its log ends at record {end}, but record {} says that more was durable",
                    found.head.sequence
                )));
            }
            if found.sequence() >= end {
                newest = newest.max(Some((found.sequence(), found.next.next_segment)));
            }
        }
    }
    Ok(newest.map(|newest| newest.1))
}
