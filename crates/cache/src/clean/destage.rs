//! Writing dirty lines to the origin: neighbours together, and whole stripes where the origin has
//! stripes.
//!
//! The lines of a stripe are written with what lies between them, as the origin has it, if its drives have
//! less to do then. The origin's locks are held for the whole stripe: what is
//! written beside the dirty lines is what was there.

use std::ops::Range;

use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoError, IoResult, Payload, SectorRange};
use voltier_ring::join_all;

use crate::cache::Inner;
use crate::canary::{self, Canary};
use crate::clean::stripes::{RUN_BYTES_MAX, Stripes};
use crate::format::checksum::crc32c;
use crate::log::change::Change;
use crate::log::ordered::Version;
use crate::map::locks::Access;

/// Reads of the SSD at once for one run; several runs are under way themselves.
const READS_AT_ONCE: usize = 32;

/// A line to be written out: from the slot it is in, or (in ordered mode) a kept version of it.
#[derive(Clone, Copy)]
pub(crate) struct Dirty {
    pub(crate) line: u64,
    pub(crate) slot: u32,
    pub(crate) version: Option<Version>,
}

/// Lines that go to the origin together.
pub(crate) struct Run {
    lines: Vec<Dirty>,
    /// All of these are written, also those between the dirty ones; none if there are no such.
    whole: Option<Range<u64>>,
}

/// A dirty line read back from the SSD.
struct DirtyLine {
    of: Dirty,
    mask: Option<u128>,
    crc_bits: u32,
    data: Bytes,
}

/// Something for the origin.
struct Extent {
    range: SectorRange,
    pieces: Vec<Bytes>,
}

/// Ascending extents, neighbours as one.
fn joined(extents: Vec<Extent>) -> Vec<Extent> {
    let mut joined: Vec<Extent> = Vec::new();
    for extent in extents {
        match joined.last_mut() {
            Some(last) if last.range.end() == extent.range.start => {
                last.range.count += extent.range.count;
                last.pieces.extend(extent.pieces);
            }
            _ => joined.push(extent),
        }
    }
    joined
}

/// Cuts ascending lines into runs of neighbours, of so many lines at most.
fn neighbours(lines: Vec<Dirty>, lines_max: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for dirty in lines {
        match runs.last_mut().map(|run| &mut run.lines) {
            Some(run) if run.len() < lines_max && run[run.len() - 1].line + 1 == dirty.line => {
                run.push(dirty);
            }
            _ => runs.push(Run { lines: vec![dirty], whole: None }),
        }
    }
    runs
}

/// Cuts ascending lines into runs that are whole stripes, where these are dirty or better written whole,
/// and into neighbours elsewhere.
fn by_stripes(lines: &[Dirty], stripes: &Stripes) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let window_of = |dirty: &Dirty| stripes.window_of(dirty.line);
    for lines in lines.chunk_by(|one, next| window_of(one) == window_of(next)) {
        let window = window_of(&lines[0]);
        let parts = neighbours(lines.to_vec(), lines.len());
        let is_whole = lines.len() as u64 == window.end - window.start;
        let ranges: Vec<Range<u64>> = parts
            .iter()
            .map(|part| part.lines[0].line..part.lines[0].line + part.lines.len() as u64)
            .collect();
        if !is_whole && !stripes.is_better_whole(&window, &ranges) {
            runs.extend(parts);
            continue;
        }
        match runs.last_mut() {
            Some(Run { lines: before, whole: Some(whole) })
                if whole.end == window.start
                    && stripes.are_of_one_run(whole.start, window.start) =>
            {
                before.extend_from_slice(lines);
                whole.end = window.end;
            }
            _ => runs.push(Run { lines: lines.to_vec(), whole: Some(window) }),
        }
    }
    runs
}

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    /// Cuts ascending lines into what goes to the origin together.
    pub(crate) fn runs_of(&self, lines: Vec<Dirty>) -> Vec<Run> {
        match &self.stripes {
            Some(stripes) => by_stripes(&lines, stripes),
            None => neighbours(lines, (RUN_BYTES_MAX / self.geometry.line_bytes) as usize),
        }
    }

    /// Writes a run to the origin; the lines that were written.
    ///
    /// # Errors
    /// The origin's. Lines that are damaged on the SSD are left out and remembered.
    pub(crate) async fn destage_run(&self, run: Run) -> IoResult<Vec<Change>> {
        let Run { lines, whole } = run;
        let ends = (lines[0].line, lines[lines.len() - 1].line);
        let (first, last) = whole.as_ref().map_or(ends, |whole| (whole.start, whole.end - 1));
        let last = if canary::is(Canary::HolesUnlocked) { first } else { last };
        let _order = self.origin_locks.lock(first, last, Access::Exclusive).await;
        let lines = self.read_lines(&lines).await;
        if self.failed() {
            return Err(IoError::Gone);
        }
        let mut extents = self.extents_of(&lines);
        if let Some(whole) = whole
            && let Ok(holes) = self.read_holes(whole, &extents).await
        {
            if self.failed() {
                return Err(IoError::Gone);
            }
            extents.extend(holes);
            extents.sort_by_key(|extent| extent.range.start);
        }
        for Extent { range, pieces } in joined(extents) {
            self.write_origin(range.start, Payload::Many(pieces), Durability::Cached).await?;
        }
        let news = |DirtyLine { of, mask, crc_bits, .. }: DirtyLine| Change::Clean {
            line: of.line,
            slot: of.slot,
            crc_bits,
            mask,
        };
        Ok(lines.into_iter().map(news).collect())
    }

    /// What is to be written of dirty lines.
    fn extents_of(&self, lines: &[DirtyLine]) -> Vec<Extent> {
        let mut extents = Vec::with_capacity(lines.len());
        for DirtyLine { of, mask, data, .. } in lines {
            let start = self.line_range(of.line).start;
            extents.extend(self.valid_runs(of.line, *mask).into_iter().map(|range| {
                let from = (range.start.0 - start.0) as usize * 512;
                let piece = data.slice(from..from + range.bytes() as usize);
                Extent { range, pieces: vec![piece] }
            }));
        }
        extents
    }

    /// What the origin has of these lines between the extents; its locks are held, so that nobody
    /// changes it until it is written again.
    ///
    /// # Errors
    /// The origin's: then the extents are written without it.
    async fn read_holes(&self, lines: Range<u64>, extents: &[Extent]) -> IoResult<Vec<Extent>> {
        let mut at = self.line_range(lines.start).start;
        let mut holes = Vec::new();
        let end = SectorRange::new(self.line_range(lines.end - 1).end(), 0);
        for range in extents.iter().map(|extent| extent.range).chain([end]) {
            if at < range.start {
                holes.push(SectorRange::new(at, range.start.0 - at.0));
            }
            at = range.end();
        }
        let reads = holes.into_iter().map(|range| async move {
            let data = self.read_origin(range.start, Buf::new(range.bytes() as usize)).await?;
            Ok(Extent { range, pieces: vec![data.freeze()] })
        });
        join_all(reads).await.into_iter().collect()
    }

    /// Reads lines back from the SSD, neighbours there in one read; what is damaged is left out.
    async fn read_lines(&self, lines: &[Dirty]) -> Vec<DirtyLine> {
        let line_sectors = self.geometry.line_sectors();
        let groups: Vec<&[Dirty]> = {
            let index = &self.state.borrow().index;
            let are_neighbours = |one: &Dirty, next: &Dirty| {
                let is_newest = one.version.is_none() && next.version.is_none();
                is_newest && index.lba_of(one.slot).plus(line_sectors) == index.lba_of(next.slot)
            };
            lines.chunk_by(are_neighbours).collect()
        };
        let mut whole = Vec::with_capacity(lines.len());
        for groups in groups.chunks(READS_AT_ONCE) {
            let reads = groups.iter().map(|group| self.read_neighbours(group));
            whole.extend(join_all(reads).await.into_iter().flatten());
        }
        whole
    }

    /// Reads lines that are neighbours on the SSD; one by one where that is not possible.
    async fn read_neighbours(&self, group: &[Dirty]) -> Vec<DirtyLine> {
        let mut whole = Vec::with_capacity(group.len());
        if group.len() > 1
            && let Some(lines) = self.read_together(group).await
        {
            return lines;
        }
        for dirty in group {
            whole.extend(match dirty.version {
                None => self.read_dirty(*dirty).await,
                Some(version) => self.read_version(*dirty, version).await,
            });
        }
        whole
    }

    /// Reads neighbours at once: all of them, or `None` if one is not in its slot any more, or is
    /// not what was written.
    async fn read_together(&self, group: &[Dirty]) -> Option<Vec<DirtyLine>> {
        let line_bytes = self.geometry.line_bytes as usize;
        let pinned: Vec<_> = {
            let mut state = self.state.borrow_mut();
            if !group.iter().all(|of| state.index.is_dirty_in(of.line, of.slot)) {
                return None;
            }
            let mut pin = |of: &Dirty| {
                let (mask, crc_bits) = (state.index.mask(of.slot), state.index.crc_bits(of.slot));
                (mask, crc_bits, self.pin_slot(&mut state, of.slot))
            };
            group.iter().map(&mut pin).collect()
        };
        let read = self.read_ssd(pinned[0].2.at, Buf::new(group.len() * line_bytes)).await;
        pinned.iter().for_each(|(_, _, pinned)| self.unpin(pinned));
        let data = read.inspect_err(|error| self.count_ssd_error(*error)).ok()?.freeze();
        let lines = group.iter().zip(pinned).enumerate().map(|(number, (of, pinned))| {
            let (mask, crc_bits, pinned) = pinned;
            let data = data.slice(number * line_bytes..(number + 1) * line_bytes);
            pinned.holds(&data).then_some(DirtyLine { of: *of, mask, crc_bits, data })
        });
        lines.collect()
    }

    /// The data of a dirty line if it is still in this slot, and whole.
    async fn read_dirty(&self, of: Dirty) -> Option<DirtyLine> {
        let (mask, crc_bits) = {
            let state = self.state.borrow();
            if !state.index.is_dirty_in(of.line, of.slot) {
                return None;
            }
            (state.index.mask(of.slot), state.index.crc_bits(of.slot))
        };
        match self.read_slot(of.slot).await {
            Ok(data) => Some(DirtyLine { of, mask, crc_bits, data: data.freeze() }),
            Err(_) => {
                // A damaged dirty line is remembered by this; a clean one cannot be here.
                let _ = self.give_up_line(of.line, of.slot);
                None
            }
        }
    }

    /// The data of a version that the log keeps, whether or not it is the newest.
    async fn read_version(&self, of: Dirty, version: Version) -> Option<DirtyLine> {
        let at = self.state.borrow().index.lba_of(version.slot);
        let line = Buf::new(self.geometry.line_bytes as usize);
        match self.read_ssd(at, line).await {
            Ok(data) if crc32c(&data) == version.crc => {
                let (mask, crc_bits) = (version.mask, version.crc & 0xff_ffff);
                Some(DirtyLine { of, mask, crc_bits, data: data.freeze() })
            }
            read => {
                if let Err(error) = read {
                    self.count_ssd_error(error);
                }
                // Only if it is the newest: a damaged older version is a step that the origin skips.
                if self.state.borrow().index.lookup(of.line) == Some(of.slot) {
                    let _ = self.give_up_line(of.line, of.slot);
                }
                None
            }
        }
    }
}
