//! Misses: read from the origin, and kept if admission lets them in.

use std::cell::RefCell;
use std::rc::Rc;

use voltier_block::{Buf, Bytes, DriveControl, IoResult, SectorRange};

use crate::admission::Admission;
use crate::canary::{self, Canary};
use crate::devices::origin::Origin;
use crate::ground::Ground;
use crate::log::change::{Change, Source};
use crate::log::commit::Log;
use crate::map::locks::parts_of_lines;
use crate::map::recent::RecentLines;
use crate::map::shared::Map;
use crate::numbers::Line;
use crate::serve::line_reads::{LineReader, LineReads};

/// Fills that wait for the log, at most; beyond it a miss is served and not kept.
const FILL_BACKLOG_BYTES: u64 = 8 << 20;

/// The reader of what one cache does not have.
pub(crate) struct MissReader<S, O> {
    map: Rc<Map>,
    origin: Rc<Origin<O>>,
    log: Rc<Log<S>>,
    admission: Rc<RefCell<Admission>>,
    recent: Rc<RecentLines>,
    line_reads: Rc<LineReads>,
}

impl<S: DriveControl, O: DriveControl> MissReader<S, O> {
    pub(crate) fn new(ground: &Ground<S, O>, line_reads: Rc<LineReads>) -> Self {
        Self {
            map: ground.map.clone(),
            origin: ground.origin.clone(),
            log: ground.log.clone(),
            admission: ground.admission.clone(),
            recent: ground.recent.clone(),
            line_reads,
        }
    }

    /// Reads what is not cached, and keeps what admission lets in. Others that want other parts of the lines at the
    /// ends of the `request` may join.
    pub(super) async fn read_miss(
        &self,
        range: SectorRange,
        mut part: Buf,
        keep: bool,
        request: SectorRange,
    ) -> IoResult<Buf> {
        let (first, last) = self.map.geometry().lines_of(range);
        let admitted: Vec<Line> = if keep && self.has_fill_room() {
            let mut admission = self.admission.borrow_mut();
            let contents = self.map.get();
            let is_missing = |line: &Line| contents.index().lookup(*line).is_none();
            // The disk is behind the beginning of a line of which it has just read a part.
            let is_behind =
                !self.begins_with(first, range) && self.origin.skips().is_head(range.start);
            let missing = first.through(last).filter(is_missing);
            let wanted = missing.filter(|line| !(is_behind && *line == first));
            wanted.filter(|line| admission.admit(*line)).collect()
        } else {
            Vec::new()
        };
        if admitted.is_empty() {
            return self.origin.read(range.start, part).await;
        }
        // Lines at the ends that are kept are read whole, and those alone.
        let line_of = |line| self.map.geometry().line_range(line);
        let is_kept = |line: Line| admitted.binary_search(&line).is_ok();
        let start = if is_kept(first) { line_of(first).start } else { range.start };
        let end = if is_kept(last) { line_of(last).end() } else { range.end() };
        let parts = parts_of_lines(request, self.map.geometry().line_sectors());
        let readers: Vec<LineReader> = parts
            .filter(|(line, _)| is_kept(*line))
            .filter_map(|(line, _)| self.line_reads.begin(line))
            .collect();
        let bytes = (end.0 - start.0) as usize * 512;
        let data = self.origin.read(start, Buf::new(bytes)).await?.freeze();
        let line_bytes = self.map.geometry().line_bytes as usize;
        let data_of = |line: Line| {
            let at = (line_of(line).start.0 - start.0) as usize * 512;
            data.slice(at..at + line_of(line).bytes() as usize)
        };
        let offset = (range.start.0 - start.0) as usize * 512;
        let wanted = offset..offset + part.len();
        part.copy_from_slice(&data[wanted]);
        for reader in readers {
            // A copy: the line stays longer than the rest of what was read.
            let line = pad_line(Bytes::copy_of(&data_of(reader.line())), line_bytes);
            self.recent.put(reader.line(), (line.clone(), None));
            reader.end(line);
        }
        let fills = admitted.iter().map(|&line| {
            let data = pad_line(data_of(line), line_bytes);
            Change::Data { line, data, mask: None, source: Source::Fill }
        });
        self.log.queue(fills.collect::<Vec<_>>());
        if canary::is(Canary::BufferLeaked) {
            std::mem::forget(data.slice(0..512));
        }
        Ok(part)
    }

    /// Whether a range begins with the line that it begins in.
    fn begins_with(&self, first: Line, range: SectorRange) -> bool {
        self.map.geometry().line_range(first).start == range.start
    }

    fn has_fill_room(&self) -> bool {
        (self.log.queued_bytes() as u64) < self.map.geometry().backlog_bytes(FILL_BACKLOG_BYTES)
    }
}

/// A short last line, padded to a whole one.
fn pad_line(data: Bytes, line_bytes: usize) -> Bytes {
    if data.len() == line_bytes {
        return data;
    }
    let mut padded = Buf::zeroed(line_bytes);
    padded[..data.len()].copy_from_slice(&data);
    padded.freeze()
}
