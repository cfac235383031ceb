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
use crate::map::shared::Map;
use crate::numbers::Line;

/// Fills that wait for the log, at most; beyond it a miss is served and not kept.
const FILL_BACKLOG_BYTES: u64 = 8 << 20;

/// The reader of what one cache does not have.
pub(crate) struct MissReader<S, O> {
    map: Rc<Map>,
    origin: Rc<Origin<O>>,
    log: Rc<Log<S>>,
    admission: Rc<RefCell<Admission>>,
}

impl<S: DriveControl, O: DriveControl> MissReader<S, O> {
    pub(crate) fn new(ground: &Ground<S, O>) -> Self {
        Self {
            map: ground.map.clone(),
            origin: ground.origin.clone(),
            log: ground.log.clone(),
            admission: ground.admission.clone(),
        }
    }

    /// Reads what is not cached, and keeps what admission lets in.
    pub(super) async fn read_miss(
        &self,
        range: SectorRange,
        mut part: Buf,
        keep: bool,
    ) -> IoResult<Buf> {
        let (first, last) = self.map.geometry().lines_of(range);
        let admitted: Vec<Line> = if keep && self.has_fill_room() {
            let mut admission = self.admission.borrow_mut();
            first.through(last).filter(|line| admission.admit(*line)).collect()
        } else {
            Vec::new()
        };
        if admitted.is_empty() {
            return self.origin.read(range.start, part).await;
        }
        let start = self.map.geometry().line_range(first).start;
        let whole = SectorRange::new(start, self.map.geometry().line_range(last).end().0 - start.0);
        let (line_bytes, offset) =
            (self.map.geometry().line_bytes as usize, (range.start.0 - start.0) as usize * 512);
        let data = self.origin.read(start, Buf::new(whole.bytes() as usize)).await?.freeze();
        let end = offset + part.len();
        part.copy_from_slice(&data[offset..end]);
        let fills = admitted.into_iter().map(|line| {
            let at = (line - first) as usize * line_bytes;
            let count = self.map.geometry().line_range(line).bytes() as usize;
            let data = pad_line(data.slice(at..at + count), line_bytes);
            Change::Data { line, data, mask: None, source: Source::Fill }
        });
        self.log.queue(fills.collect::<Vec<_>>());
        if canary::is(Canary::BufferLeaked) {
            std::mem::forget(data.slice(0..512));
        }
        Ok(part)
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
