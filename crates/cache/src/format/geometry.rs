//! The geometry: where every structure, segment and slot is on the SSD.

use std::ops::Range;

use voltier_block::{KIB, Lba, MIB, SectorRange};

use crate::config::{FormatOptions, LineSize, segment_bytes_for};
use crate::format::chunk::{CHUNK_BYTES, CHUNK_HEAD_BYTES};
use crate::format::intent::INTENT_REGIONS_MAX;
use crate::format::superblock::Superblock;
use crate::numbers::{AreaChunk, Line, MapChunk, Segment, SegmentSlot, Slot};
use crate::policy::{LINE_LIMIT, PolicyKind};

/// Byte offset of the first checkpoint area.
const CHECKPOINT_BASE: u64 = MIB;
/// Segments a cache needs to work at all: two open, four prepared, the rest with lines in them.
const SEGMENTS_MIN: u64 = 20;

/// Where everything is on one SSD; follows from the superblock alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) line_bytes: u64,
    /// The grain of the log: a record's head takes one unit. At most a line.
    pub(crate) unit_bytes: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) segment_count: u32,
    pub(crate) slots_per_segment: u32,
    pub(crate) segments_base: u64,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) origin_sectors: u64,
}

impl Geometry {
    /// Lays a cache out on an SSD of `ssd_bytes`.
    ///
    /// # Errors
    /// A sentence for the user when it is too small.
    pub(crate) fn plan(
        options: &FormatOptions,
        ssd_bytes: u64,
        origin_sectors: u64,
    ) -> Result<Self, String> {
        let line_bytes = options.line_size.bytes();
        let mut geometry = Self {
            line_bytes,
            unit_bytes: line_bytes.min(4096),
            segment_bytes: segment_bytes_for(ssd_bytes).max(16 * line_bytes),
            segment_count: 0,
            slots_per_segment: 0,
            segments_base: 0,
            checkpoint_bytes: 0,
            origin_sectors,
        };
        geometry.slots_per_segment = (geometry.segment_bytes / line_bytes) as u32;
        // Fewer segments need a smaller checkpoint: one correction step is enough.
        let mut count = ssd_bytes.saturating_sub(CHECKPOINT_BASE) / geometry.segment_bytes;
        for _ in 0..2 {
            geometry.segment_count = u32::try_from(count).unwrap_or(u32::MAX);
            geometry.checkpoint_bytes =
                (geometry.chunk_count() + geometry.dirty_chunks_max()) * CHUNK_BYTES as u64;
            geometry.segments_base = CHECKPOINT_BASE + 2 * geometry.checkpoint_bytes;
            count = ssd_bytes.saturating_sub(geometry.segments_base) / geometry.segment_bytes;
        }
        geometry.segment_count = u32::try_from(count).unwrap_or(u32::MAX);
        if count < SEGMENTS_MIN {
            let needed =
                CHECKPOINT_BASE + 4 * CHUNK_BYTES as u64 + SEGMENTS_MIN * geometry.segment_bytes;
            return Err(format!(
                "the SSD has {} KiB; a cache needs at least {} KiB",
                ssd_bytes / KIB,
                needed / KIB
            ));
        }
        if u64::from(geometry.segment_count) * u64::from(geometry.slots_per_segment) >= 1 << 32 {
            return Err("the SSD has more than 2^32 blocks; use a larger block size".to_owned());
        }
        if geometry.origin_lines() > LINE_LIMIT {
            return Err(
                "the backing disk has 2^40 blocks or more; use a larger block size".to_owned()
            );
        }
        Ok(geometry)
    }

    /// The geometry that a superblock describes, checked against the device it is on.
    ///
    /// # Errors
    /// A sentence for the user when the two do not fit.
    pub(crate) fn of(superblock: &Superblock, ssd_bytes: u64) -> Result<Self, String> {
        if superblock.ssd_bytes > ssd_bytes {
            return Err(format!(
                "the cache was made on {} bytes but the device has only {ssd_bytes}: it is truncated",
                superblock.ssd_bytes
            ));
        }
        let line_size = LineSize::new(superblock.line_bytes.get().into())?;
        let options = FormatOptions { line_size, policy: PolicyKind::Lru, uuid: superblock.uuid };
        let made_on = superblock.ssd_bytes.get();
        let geometry = Self::plan(&options, made_on, superblock.origin_sectors.get())?;
        let same = geometry.segment_bytes == u64::from(superblock.segment_bytes.get())
            && geometry.unit_bytes == u64::from(superblock.unit_bytes.get())
            && geometry.segment_count == superblock.segment_count.get();
        if same { Ok(geometry) } else { Err("its layout is not one this version makes".to_owned()) }
    }

    /// Bytes that the checkpoint keeps per slot: line, flags and CRC, mask.
    pub(crate) fn state_bytes_per_slot(&self) -> usize {
        5 + 4 + self.mask_bytes()
    }

    /// Bytes of a mask with one bit per sector of a line.
    pub(crate) fn mask_bytes(&self) -> usize {
        (self.line_sectors() as usize).div_ceil(8)
    }

    /// Slots in one checkpoint chunk.
    pub(crate) fn slots_per_chunk(&self) -> u32 {
        ((CHUNK_BYTES - CHUNK_HEAD_BYTES) / self.state_bytes_per_slot()) as u32
    }

    /// The slots whose state is in a chunk of the map.
    pub(crate) fn slots_of_chunk(&self, chunk: MapChunk) -> Range<Slot> {
        let (index, per_chunk) = (u64::from(chunk.0), u64::from(self.slots_per_chunk()));
        let end = ((index + 1) * per_chunk).min(self.slot_count().into());
        Slot((index * per_chunk) as u32)..Slot(end as u32)
    }

    /// The chunk of the map that has the state of a slot.
    pub(crate) fn chunk_of(&self, slot: Slot) -> MapChunk {
        MapChunk(slot.0 / self.slots_per_chunk())
    }

    /// All chunks of the map, in order.
    pub(crate) fn map_chunks(&self) -> Range<MapChunk> {
        MapChunk(0)..MapChunk(self.chunk_count() as u32)
    }

    pub(crate) fn chunk_count(&self) -> u64 {
        u64::from(self.slot_count()).div_ceil(u64::from(self.slots_per_chunk())).max(1)
    }

    /// Dirty lines in one chunk of their list.
    pub(crate) fn dirty_per_chunk(&self) -> usize {
        (CHUNK_BYTES - CHUNK_HEAD_BYTES) / (4 + self.state_bytes_per_slot())
    }

    /// Chunks of the list of dirty lines: room for a quarter of the slots.
    pub(crate) fn dirty_chunks_max(&self) -> u64 {
        u64::from(self.slot_count()).div_ceil(4 * self.dirty_per_chunk() as u64).max(1)
    }

    /// The place of a chunk of the list of dirty lines in a checkpoint area.
    pub(crate) fn dirty_chunk_in_area(&self, number: u32) -> AreaChunk {
        AreaChunk(self.map_chunks().end.0 + number)
    }

    /// All slots, in order.
    pub(crate) fn slots(&self) -> Range<Slot> {
        Slot(0)..Slot(self.slot_count())
    }

    pub(crate) fn slot_count(&self) -> u32 {
        (u64::from(self.segment_count) * u64::from(self.slots_per_segment)).min(u64::from(u32::MAX))
            as u32
    }

    #[inline]
    pub(crate) fn line_sectors(&self) -> u64 {
        self.line_bytes / 512
    }

    pub(crate) fn units_per_segment(&self) -> u32 {
        (self.segment_bytes / self.unit_bytes) as u32
    }

    pub(crate) fn units_per_line(&self) -> u32 {
        (self.line_bytes / self.unit_bytes) as u32
    }

    #[inline]
    pub(crate) fn segment_of(&self, slot: Slot) -> Segment {
        Segment(slot.0 / self.slots_per_segment)
    }

    /// Whether the SSD has this segment.
    pub(crate) fn has_segment(&self, segment: Segment) -> bool {
        segment.0 < self.segment_count
    }

    /// All segments, in order.
    pub(crate) fn segments(&self) -> Range<Segment> {
        Segment(0)..Segment(self.segment_count)
    }

    /// The slots of a segment, counted through all segments.
    pub(crate) fn slots_of_segment(&self, segment: Segment) -> Range<Slot> {
        let first = self.slot_in(segment, SegmentSlot(0));
        first..first + self.slots_per_segment
    }

    /// The slot of a segment, counted through all segments.
    pub(crate) fn slot_in(&self, segment: Segment, slot: SegmentSlot) -> Slot {
        Slot(segment.0 * self.slots_per_segment + slot.0)
    }

    /// Where a unit of a segment is on the SSD.
    pub(crate) fn lba_of(&self, segment: Segment, unit: u32) -> Lba {
        let segment_start = self.segments_base + u64::from(segment.0) * self.segment_bytes;
        Lba::from_bytes(segment_start + u64::from(unit) * self.unit_bytes)
    }

    /// Where a slot is on the SSD.
    #[inline]
    pub(crate) fn lba_of_slot(&self, slot: Slot) -> Lba {
        Lba::from_bytes(self.segments_base + u64::from(slot.0) * self.line_bytes)
    }

    /// The unit in which the first head stands that goes into this slot of a segment.
    pub(crate) fn first_head_in(&self, slot: SegmentSlot) -> u32 {
        (slot.0 + 1) * self.units_per_line() - 1
    }

    /// The slot of a segment behind the one with this head.
    pub(crate) fn slot_behind(&self, unit: u32) -> SegmentSlot {
        SegmentSlot(unit / self.units_per_line() + 1)
    }

    /// Where a chunk of checkpoint area `area` is on the SSD.
    pub(crate) fn chunk_lba(&self, area: u32, chunk: AreaChunk) -> Lba {
        let base = CHECKPOINT_BASE + u64::from(area) * self.checkpoint_bytes;
        Lba::from_bytes(base + u64::from(chunk.0) * CHUNK_BYTES as u64)
    }

    /// Lines of the origin; the last one may be short.
    pub(crate) fn origin_lines(&self) -> u64 {
        self.origin_sectors.div_ceil(self.line_sectors())
    }

    /// Lines the cache holds when full: a fourteenth of the slots stays free for record heads and for
    /// what the log writes next. Ten segments are the least: four prepared, two open, and enough
    /// dead units in the rest to prepare more.
    pub(crate) fn capacity_lines(&self) -> u64 {
        let reserve = (u64::from(self.segment_count) / 14).max(10);
        (u64::from(self.segment_count) - reserve) * u64::from(self.slots_per_segment)
    }

    /// Bytes that may wait for the log: `most`, on a small SSD a sixteenth of the segments.
    pub(crate) fn backlog_bytes(&self, most: u64) -> u64 {
        most.min(u64::from(self.segment_count) * self.segment_bytes / 16)
    }

    /// Lines in one intent region.
    pub(crate) fn lines_per_region(&self) -> u64 {
        let floor = 16 * MIB / self.line_bytes;
        self.origin_lines().div_ceil(INTENT_REGIONS_MAX).max(floor)
    }

    /// The line that has this sector.
    #[inline]
    pub(crate) fn line_of(&self, at: Lba) -> Line {
        Line(at.0 / self.line_sectors())
    }

    /// First and last line of a range that is not empty.
    #[inline]
    pub(crate) fn lines_of(&self, range: SectorRange) -> (Line, Line) {
        let sectors = self.line_sectors();
        (Line(range.start.0 / sectors), Line((range.end().0 - 1) / sectors))
    }

    /// The sectors of a line that the origin has: the last line may be short.
    #[inline]
    pub(crate) fn line_range(&self, line: Line) -> SectorRange {
        let sectors = self.line_sectors();
        let start = line.0 * sectors;
        SectorRange::new(Lba(start), sectors.min(self.origin_sectors - start))
    }

    /// One bit for every sector of the line that the origin has.
    pub(crate) fn line_mask(&self, line: Line) -> u128 {
        mask_of(0, self.line_range(line).count)
    }

    /// Runs of valid sectors of a line: all of it, or what the mask says.
    pub(crate) fn valid_runs(&self, line: Line, mask: Option<u128>) -> Vec<SectorRange> {
        let whole = self.line_range(line);
        let Some(mask) = mask else { return vec![whole] };
        let mut runs: Vec<SectorRange> = Vec::new();
        for sector in (0..whole.count).filter(|sector| mask & 1 << sector != 0) {
            let at = whole.start.plus(sector);
            match runs.last_mut() {
                Some(last) if last.end() == at => last.count += 1,
                _ => runs.push(SectorRange::new(at, 1)),
            }
        }
        runs
    }

    /// The whole lines of a range, and their sectors; `None` if the range has no whole line.
    pub(crate) fn whole_lines(&self, range: SectorRange) -> Option<(Line, Line, SectorRange)> {
        let sectors = self.line_sectors();
        let first = Line(range.start.0.div_ceil(sectors));
        let to_end = range.end().0 == self.origin_sectors;
        let end = if to_end { self.origin_lines() } else { range.end().0 / sectors };
        if first.0 >= end {
            return None;
        }
        let last = Line(end - 1);
        let (start, stop) = (self.line_range(first).start, self.line_range(last).end());
        Some((first, last, SectorRange::new(start, stop.0 - start.0)))
    }
}

/// `count` bits from bit `first` on.
pub(crate) fn mask_of(first: u64, count: u64) -> u128 {
    let bits = if count == 128 { u128::MAX } else { (1 << count) - 1 };
    bits << first
}
