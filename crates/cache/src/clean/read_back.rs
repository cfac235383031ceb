//! Reading dirty lines back from the SSD, checked.

use std::rc::Rc;

use voltier_block::{Buf, Bytes, DriveControl};
use voltier_ring::join_all;

use crate::clean::runs::{Dirty, Kept};
use crate::devices::ssd::Ssd;
use crate::format::checksum::{crc32c, kept_crc_bits};
use crate::ground::Ground;
use crate::log::commit::Log;
use crate::log::damage::Damage;
use crate::map::contents::Contents;
use crate::map::shared::Map;

/// Reads of the SSD at once for one run; several runs are under way themselves.
const READS_AT_ONCE: usize = 32;

/// A dirty line read back from the SSD.
pub(super) struct DirtyLine {
    pub(super) of: Dirty,
    pub(super) mask: Option<u128>,
    pub(super) crc_bits: u32,
    pub(super) data: Bytes,
}

/// The reader of one cache's dirty lines.
pub(crate) struct LineReader<S> {
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    damage: Rc<Damage<S>>,
    log: Rc<Log<S>>,
}

impl<S: DriveControl> LineReader<S> {
    pub(crate) fn new<O: DriveControl>(ground: &Ground<S, O>) -> Self {
        Self {
            map: ground.map.clone(),
            ssd: ground.ssd.clone(),
            damage: ground.damage.clone(),
            log: ground.log.clone(),
        }
    }

    /// Reads lines back from the SSD, neighbours there in one read; what is damaged is left out.
    pub(super) async fn read_lines(&self, lines: &[Dirty]) -> Vec<DirtyLine> {
        let line_sectors = self.map.geometry().line_sectors();
        let groups: Vec<&[Dirty]> = {
            let contents = self.map.get();
            let index = contents.index();
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
                Some(kept) => self.read_version(*dirty, kept).await,
            });
        }
        whole
    }

    /// Reads neighbours at once: all of them, or `None` if one is not in its slot any more, or is
    /// not what was written.
    async fn read_together(&self, group: &[Dirty]) -> Option<Vec<DirtyLine>> {
        let line_bytes = self.map.geometry().line_bytes as usize;
        let pinned: Vec<_> = {
            let mut contents = self.map.change();
            if !group.iter().all(|of| contents.index().is_dirty_in(of.line, of.slot)) {
                return None;
            }
            let mut pin = |of: &Dirty| {
                let mask = contents.index().mask(of.slot);
                (mask, self.map.pin(&mut contents, of.slot))
            };
            group.iter().map(&mut pin).collect()
        };
        let at = pinned[0].1.copy().at;
        let read = self.ssd.read(at, Buf::new(group.len() * line_bytes)).await;
        let copies: Vec<_> =
            pinned.into_iter().map(|(mask, pinned)| (mask, pinned.release())).collect();
        let data = read.ok()?.freeze();
        let lines = group.iter().zip(copies).enumerate().map(|(number, (of, (mask, copy)))| {
            let data = data.slice(number * line_bytes..(number + 1) * line_bytes);
            let crc_bits = copy.crc_bits;
            copy.holds(&data).then_some(DirtyLine { of: *of, mask, crc_bits, data })
        });
        lines.collect()
    }

    /// The data of a dirty line if it is still in this slot, and whole.
    async fn read_dirty(&self, of: Dirty) -> Option<DirtyLine> {
        let (mask, crc_bits) = {
            let contents = self.map.get();
            let index = contents.index();
            if !index.is_dirty_in(of.line, of.slot) {
                return None;
            }
            (index.mask(of.slot), index.crc_bits(of.slot))
        };
        match self.ssd.read_slot(of.slot).await {
            Ok(data) => Some(DirtyLine { of, mask, crc_bits, data: data.freeze() }),
            Err(_) => {
                // A client may have written the line anew meanwhile: that copy is whole.
                let is_newest = self.map.get().index().is_dirty_in(of.line, of.slot);
                if is_newest {
                    let _ = self.damage.give_up_line(of.line, of.slot);
                } else {
                    self.damage.note_replaced();
                }
                None
            }
        }
    }

    /// The data of a version that the log keeps, whether or not it is the newest. A line that is not dirty
    /// any more was given up since: what the origin has may be newer. If the order was switched off since,
    /// the origin may have something newer beside a dirty part of the line too.
    async fn read_version(&self, of: Dirty, kept: Kept) -> Option<DirtyLine> {
        let Kept { version, order_switches } = kept;
        let is_in_order = self.log.order_switches() == order_switches;
        let is_wanted = |contents: &Contents| match is_in_order {
            true => contents.is_dirty(of.line),
            false => contents.index().is_dirty_in(of.line, of.slot),
        };
        if !is_wanted(&self.map.get()) {
            return None;
        }
        let at = self.map.geometry().lba_of_slot(version.slot);
        let line = Buf::new(self.map.geometry().line_bytes as usize);
        match self.ssd.read(at, line).await {
            Ok(data) if crc32c(&data) == version.crc => {
                let (mask, crc_bits) = (version.mask, kept_crc_bits(version.crc));
                Some(DirtyLine { of, mask, crc_bits, data: data.freeze() })
            }
            _ => {
                // Only if it is the newest: a damaged older version is a step that the origin skips.
                if self.map.get().index().lookup(of.line) == Some(of.slot) {
                    let _ = self.damage.give_up_line(of.line, of.slot);
                }
                None
            }
        }
    }
}
