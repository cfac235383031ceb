//! Writing dirty lines to the origin: neighbours together, and whole stripes where the origin has
//! stripes.
//!
//! The lines of a stripe are written with what lies between them, as the origin has it, if its drives have
//! less to do then. The origin's locks are held for the whole stripe: what is
//! written beside the dirty lines is what was there.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use voltier_block::{Buf, DriveControl, IoError, IoResult, Payload, SectorRange, join_neighbours};
use voltier_ring::join_all;

use crate::canary::{self, Canary};
use crate::clean::read_back::{DirtyLine, LineReader};
use crate::clean::runs::{Dirty, Run, by_stripes, neighbours};
use crate::clean::stripes::{RUN_BYTES_MAX, Stripes};
use crate::devices::origin::Origin;
use crate::devices::ssd::Ssd;
use crate::ground::Ground;
use crate::map::contents::CleanCopy;
use crate::map::shared::Map;
use crate::numbers::Line;

/// One write to the origin.
type OriginWrite = (SectorRange, Payload);

/// The destager of one cache.
pub(crate) struct Destager<S, O> {
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    origin: Rc<Origin<O>>,
    reader: LineReader<S>,
    /// None if the origin has none that matter.
    stripes: Option<Stripes>,
    /// Bytes that went to the origin since somebody asked.
    written_bytes: Cell<u64>,
}

impl<S: DriveControl, O: DriveControl> Destager<S, O> {
    pub(crate) fn new(ground: &Ground<S, O>) -> Self {
        Self {
            map: ground.map.clone(),
            ssd: ground.ssd.clone(),
            origin: ground.origin.clone(),
            reader: LineReader::new(ground),
            stripes: Stripes::of(ground.origin.limits(), ground.map.geometry()),
            written_bytes: Cell::new(0),
        }
    }

    /// The bytes that were sent to the origin since the last such call.
    pub(super) fn take_written(&self) -> u64 {
        self.written_bytes.take()
    }

    /// The stripes of the origin, if they matter.
    pub(super) fn stripes(&self) -> Option<&Stripes> {
        self.stripes.as_ref()
    }

    /// Cuts ascending lines into what goes to the origin together.
    pub(super) fn runs_of(&self, lines: Vec<Dirty>) -> Vec<Run> {
        match &self.stripes {
            Some(stripes) => by_stripes(&lines, stripes),
            None => neighbours(lines, (RUN_BYTES_MAX / self.map.geometry().line_bytes) as usize),
        }
    }

    /// Writes a run to the origin; the lines that were written.
    ///
    /// # Errors
    /// The origin's. Lines that are damaged on the SSD are left out and remembered.
    pub(super) async fn destage_run(&self, run: Run) -> IoResult<Vec<CleanCopy>> {
        let Run { lines, whole } = run;
        let ends = (lines[0].line, lines[lines.len() - 1].line);
        let (first, last) =
            whole.as_ref().map_or(ends, |whole| (whole.start, Line(whole.end.0 - 1)));
        let last = if canary::is(Canary::HolesUnlocked) { first } else { last };
        let _order = self.origin.lock(first, last).await;
        let lines = self.reader.read_lines(&lines).await;
        if !self.ssd.can_destage() {
            return Err(IoError::Gone);
        }
        let mut writes = self.writes_of(&lines);
        if let Some(whole) = whole
            && let Ok(holes) = self.read_holes(whole, &writes).await
        {
            if !self.ssd.can_destage() {
                return Err(IoError::Gone);
            }
            writes.extend(holes);
            writes.sort_by_key(|(range, _)| range.start);
        }
        let writes = writes.into_iter().map(|(range, data)| ((), range, data));
        for ((), range, data) in join_neighbours(writes) {
            self.written_bytes.set(self.written_bytes.get() + range.bytes());
            self.origin.destage(range.start, data).await?;
        }
        let copy = |DirtyLine { of, mask, crc_bits, .. }: DirtyLine| CleanCopy {
            line: of.line,
            slot: of.slot,
            crc_bits,
            mask,
        };
        Ok(lines.into_iter().map(copy).collect())
    }

    /// The writes that dirty lines need.
    fn writes_of(&self, lines: &[DirtyLine]) -> Vec<OriginWrite> {
        let geometry = self.map.geometry();
        let mut writes = Vec::with_capacity(lines.len());
        for DirtyLine { of, mask, data, .. } in lines {
            let start = geometry.line_range(of.line).start;
            writes.extend(geometry.valid_runs(of.line, *mask).into_iter().map(|range| {
                let from = (range.start.0 - start.0) as usize * 512;
                (range, data.slice(from..from + range.bytes() as usize).into())
            }));
        }
        writes
    }

    /// Reads the origin's content of these lines between the writes. The caller holds the origin's locks, so
    /// that nobody changes this content until it is written again.
    ///
    /// # Errors
    /// The origin's: then the writes are written without it.
    async fn read_holes(
        &self,
        lines: Range<Line>,
        writes: &[OriginWrite],
    ) -> IoResult<Vec<OriginWrite>> {
        let geometry = self.map.geometry();
        let mut at = geometry.line_range(lines.start).start;
        let mut holes = Vec::new();
        let end = SectorRange::new(geometry.line_range(Line(lines.end.0 - 1)).end(), 0);
        for range in writes.iter().map(|(range, _)| *range).chain([end]) {
            if at < range.start {
                holes.push(SectorRange::new(at, range.start.0 - at.0));
            }
            at = range.end();
        }
        let reads = holes.into_iter().map(|range| async move {
            let data = self.origin.read(range.start, Buf::new(range.bytes() as usize)).await?;
            Ok((range, data.into()))
        });
        join_all(reads).await.into_iter().collect()
    }
}
