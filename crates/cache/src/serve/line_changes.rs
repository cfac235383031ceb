//! A write's data as changes of lines, merged with what is cached of them.

use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Bytes, IoError, IoResult, Payload, PayloadCursor, SectorRange,
};

use crate::canary::{self, Canary};
use crate::devices::ssd::Ssd;
use crate::format::geometry::mask_of;
use crate::ground::Ground;
use crate::log::change::{Change, Source};
use crate::log::commit::Log;
use crate::log::damage::Damage;
use crate::map::shared::Map;

/// The merger of writes with the cached lines of one cache.
pub(crate) struct LineMerger<S> {
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    log: Rc<Log<S>>,
    damage: Rc<Damage<S>>,
}

impl<S: BlockDevice> LineMerger<S> {
    pub(crate) fn new<O: BlockDevice>(ground: &Ground<S, O>) -> Self {
        Self {
            map: ground.map.clone(),
            ssd: ground.ssd.clone(),
            log: ground.log.clone(),
            damage: ground.damage.clone(),
        }
    }

    /// The changes that put a write's data into the log, line by line. Parts of lines that are not
    /// cached stay uncached unless `partial` lines may be made of them.
    pub(super) async fn line_changes(
        &self,
        range: SectorRange,
        data: &Payload,
        source: Source,
        partial: bool,
    ) -> IoResult<Vec<Change>> {
        let line_sectors = self.map.geometry().line_sectors();
        let mut changes = Vec::with_capacity(1);
        let mut rest = PayloadCursor::new(data.clone());
        for piece in range.split_at_multiples(line_sectors) {
            let line = piece.start.0 / line_sectors;
            let data = rest.take(piece.bytes() as usize);
            if piece.count == line_sectors {
                changes.push(Change::Data { line, data, mask: None, source });
            } else {
                changes.push(match self.merge_line(line, piece, &data, partial).await? {
                    Some((data, mask)) => Change::Data { line, data, mask, source },
                    // A fill that is still queued would bring the old content in.
                    None => Change::Drop { line },
                });
            }
        }
        Ok(changes)
    }

    /// A line with a part overwritten: what is cached of it is read and merged, the origin is not
    /// asked. `None` when nothing of it is cached and no partial line may be made.
    async fn merge_line(
        &self,
        line: u64,
        piece: SectorRange,
        data: &[u8],
        partial: bool,
    ) -> IoResult<Option<(Bytes, Option<u128>)>> {
        let all = self.map.geometry().line_mask(line);
        let in_line = piece.start.0 - self.map.geometry().line_range(line).start.0;
        let written = mask_of(in_line, piece.count);
        // The whole of a short last line needs nothing merged.
        let base = if written == all { None } else { self.cached_line(line).await? };
        if base.is_none() && !partial && written != all {
            return Ok(None);
        }
        let (mut buf, valid) = match base {
            Some((buf, mask)) => (buf, mask.unwrap_or(all)),
            None => (Buf::zeroed(self.map.geometry().line_bytes as usize), 0),
        };
        let at = in_line as usize * 512;
        buf[at..at + data.len()].copy_from_slice(data);
        let mask = if canary::is(Canary::MergeTorn) { all } else { valid | written };
        Ok(Some((buf.freeze(), if mask == all { None } else { Some(mask) })))
    }

    /// The cached copy of a line and its mask, verified; `None` if there is none worth having.
    ///
    /// # Errors
    /// `Medium` when the copy is dirty and damaged; `Gone` when the SSD is.
    async fn cached_line(&self, line: u64) -> IoResult<Option<(Buf, Option<u128>)>> {
        let found = || self.map.get().index().lookup(line);
        let pending = |slot: u32| self.map.get().index().is_pending(slot);
        self.log.until(|| self.ssd.failed() || !found().is_some_and(pending)).await;
        if self.ssd.failed() {
            return Err(IoError::Gone);
        }
        let Some(slot) = found() else { return Ok(None) };
        let mask = self.map.get().index().mask(slot);
        match self.ssd.read_slot(slot).await {
            Ok(data) => Ok(Some((data, mask))),
            Err(_) if self.ssd.failed() => Err(IoError::Gone),
            Err(_) => self.damage.give_up_line(line, slot).map(|()| None),
        }
    }
}
