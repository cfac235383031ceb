//! A device whose blocks have checksums: what is read is held against them, and changes change them.
//!
//! A block that does not match is answered as a medium error is, so all that mends medium errors mends it.
//! Checksums are in memory until a flush. The flush stores them and then covers both, so what a flush makes
//! durable has its checksums. Whatever a crash leaves in between lies in regions that are dirty, or in the
//! care of the journal: a start distrusts the former, and the replay writes the latter again.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, Durability, IoError, IoResult, Lba, Payload, SECTOR_BYTES,
    SectorRange,
};
use voltier_ring::{Signal, join_all};

use crate::canary::{self, Canary};
use crate::format::bits::Bits;
use crate::format::checksum_page::{
    Copy, Owner, PAGE_BYTES, PAGE_SUMS, SUMMED_BYTES, SUMMED_SECTORS, UNKNOWN, copy_lba, encode,
    kept, newest, place_of, sum_of,
};
use crate::format::member_layout::MemberLayout;
use crate::format::region_map::RegionGrid;
use crate::geometry::numbers::Region;
use crate::members::checksums::block_locks::{BlockLocks, Use};
use crate::members::checksums::table::{ChecksumCounts, DuePage, Table};
use crate::members::clear::{Clear, clear_device};

/// Pages that are stored at once.
const STORED_AT_ONCE: usize = 16;

/// A device with checksums.
pub(crate) struct Checked<D> {
    device: Rc<D>,
    owner: Owner,
    /// The pages of checksums on the device.
    area: Lba,
    /// The first sector of the chunks.
    data_start: u64,
    table: Table,
    locks: BlockLocks,
    /// Pages that are on their way into memory.
    loading: RefCell<BTreeSet<u64>>,
    loaded: Signal,
    /// One flush after the other: each page has one writing under way.
    flushes: BlockLocks,
}

/// A page on its way into memory, until dropped.
struct Loading<'a, D> {
    of: &'a Checked<D>,
    page: u64,
}

impl<D> Drop for Loading<'_, D> {
    fn drop(&mut self) {
        self.of.loading.borrow_mut().remove(&self.page);
        self.of.loaded.notify();
    }
}

/// The checksums of a payload, block by block, wherever its pieces end.
fn sums_of(data: &Payload) -> Vec<u32> {
    let mut sums = Vec::with_capacity(data.len() / SUMMED_BYTES);
    let new = || crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    let (mut open, mut filled) = (new(), 0);
    for piece in data.pieces() {
        let mut rest = &piece[..];
        while !rest.is_empty() {
            if filled == 0 && rest.len() >= SUMMED_BYTES {
                sums.push(sum_of(&rest[..SUMMED_BYTES]));
                rest = &rest[SUMMED_BYTES..];
                continue;
            }
            let (now, then) = rest.split_at(rest.len().min(SUMMED_BYTES - filled));
            open.update(now);
            (filled, rest) = (filled + now.len(), then);
            if filled == SUMMED_BYTES {
                sums.push(kept(std::mem::replace(&mut open, new()).finalize() as u32));
                filled = 0;
            }
        }
    }
    sums
}

impl<D: BlockDevice> Checked<D> {
    pub(super) fn new(
        device: &Rc<D>,
        owner: Owner,
        places: &MemberLayout,
        distrusted: Bits<Region>,
    ) -> Self {
        Self {
            device: device.clone(),
            owner,
            area: places.checksums.start,
            data_start: places.data.start.0,
            table: Table::new(RegionGrid::new(places.data.count), distrusted),
            locks: BlockLocks::default(),
            loading: RefCell::default(),
            loaded: Signal::new(),
            flushes: BlockLocks::default(),
        }
    }

    pub(super) fn is_of(&self, device: &Rc<D>) -> bool {
        Rc::ptr_eq(&self.device, device)
    }

    /// Whether nobody else has the device any more.
    pub(super) fn is_left(&self) -> bool {
        Rc::strong_count(&self.device) == 1
    }

    pub(crate) fn counts(&self) -> ChecksumCounts {
        self.table.counts()
    }

    pub(crate) fn distrust(&self, regions: &Bits<Region>) {
        self.table.distrust(regions);
    }

    /// The blocks of a range of the device.
    fn blocks_of(&self, at: Lba, bytes: u64) -> Range<u64> {
        let first = at.0 - self.data_start;
        let sectors = bytes / SECTOR_BYTES;
        let is_whole =
            first.is_multiple_of(SUMMED_SECTORS) && sectors.is_multiple_of(SUMMED_SECTORS);
        assert!(is_whole, "an array with checksums has blocks of 4 KiB");
        first / SUMMED_SECTORS..(first + sectors) / SUMMED_SECTORS
    }

    fn lba_of(&self, block: u64) -> Lba {
        Lba(self.data_start + block * SUMMED_SECTORS)
    }

    pub(crate) async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        let blocks = self.blocks_of(at, into.len() as u64);
        let _guard = self.locks.lock(blocks.clone(), Use::Read).await;
        let read = self.device.read(at, into).await?;
        self.bring_in(&blocks).await?;
        self.verify(blocks.start, &read)?;
        Ok(read)
    }

    pub(crate) async fn read_vectored(&self, at: Lba, into: Vec<Buf>) -> IoResult<Vec<Buf>> {
        let blocks = self.blocks_of(at, into.iter().map(|buf| buf.len() as u64).sum());
        let _guard = self.locks.lock(blocks.clone(), Use::Read).await;
        let read = self.device.read_vectored(at, into).await?;
        self.bring_in(&blocks).await?;
        let mut first = blocks.start;
        for buf in &read {
            self.verify(first, buf)?;
            first += (buf.len() / SUMMED_BYTES) as u64;
        }
        Ok(read)
    }

    fn verify(&self, first: u64, bytes: &[u8]) -> IoResult<()> {
        let bad = self.table.mismatches(first, bytes);
        if bad.is_empty() {
            return Ok(());
        }
        self.table.note_bad(&bad);
        Err(IoError::Medium)
    }

    pub(crate) async fn write(
        &self,
        at: Lba,
        data: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        let blocks = self.blocks_of(at, data.len() as u64);
        let _guard = self.locks.lock(blocks.clone(), Use::Change).await;
        self.bring_in(&blocks).await?;
        // A write that fails, or that nobody waits for any more, leaves anything.
        self.table.forget(blocks.clone());
        let sums = sums_of(&data);
        self.device.write(at, data, durability).await?;
        self.bring_in(&blocks).await?;
        self.table.note_written(blocks.start, &sums);
        Ok(())
    }

    /// Clears a range page by page, as far as checksums go.
    pub(crate) async fn clear(&self, range: SectorRange, clear: Clear) -> IoResult<()> {
        let blocks = self.blocks_of(range.start, range.bytes());
        let _guard = self.locks.lock(blocks.clone(), Use::Change).await;
        for part in by_page(blocks.clone()) {
            self.bring_in(&part).await?;
            self.table.forget(part);
        }
        clear_device(&*self.device, range, clear).await?;
        let returns_zeroes = self.device.limits().after_discard == AfterDiscard::Zeroes;
        let sum = match clear {
            Clear::Discard if !returns_zeroes => UNKNOWN,
            Clear::Discard | Clear::Zeroes(_) => sum_of(&[0; SUMMED_BYTES]),
        };
        for part in by_page(blocks) {
            self.bring_in(&part).await?;
            self.table.note_written(part.start, &vec![sum; (part.end - part.start) as usize]);
        }
        Ok(())
    }

    /// Stores checksums, and makes them durable with all that was written.
    pub(crate) async fn flush(&self) -> IoResult<()> {
        let _turn = self.flushes.lock(0..1, Use::Change).await;
        let due = self.table.due();
        let is_awaited =
            |page: &&DuePage| page.sequence == 1 || !canary::is(Canary::ChecksumsNotFlushed);
        let awaited: Vec<&DuePage> = due.iter().filter(is_awaited).collect();
        for some in awaited.chunks(STORED_AT_ONCE) {
            let stores = some.iter().map(|page| self.store(page));
            join_all(stores).await.into_iter().collect::<IoResult<()>>()?;
        }
        self.device.flush().await?;
        self.table.note_stored(&due);
        Ok(())
    }

    async fn store(&self, due: &DuePage) -> IoResult<()> {
        let bytes = encode(self.owner, due.page, due.sequence, &due.sums);
        let at = copy_lba(self.area, due.page, due.sequence);
        self.device.write(at, Buf::copy_of(&bytes).freeze().into(), Durability::Cached).await
    }

    /// Bytes that were read, or are about to be, are known to be right by others than their checksums.
    pub(crate) async fn adopt(&self, at: Lba, bytes: &[u8]) -> IoResult<()> {
        let blocks = self.blocks_of(at, bytes.len() as u64);
        self.bring_in(&blocks).await?;
        self.table.adopt(blocks.start, bytes);
        Ok(())
    }

    /// Whether bytes that were computed are what is to be in their place. Where a checksum says something
    /// else, but the device has just these bytes, the checksum is what is wrong.
    pub(crate) async fn accepts(&self, at: Lba, bytes: &[u8]) -> bool {
        let blocks = self.blocks_of(at, bytes.len() as u64);
        let _guard = self.locks.lock(blocks.clone(), Use::Read).await;
        if self.bring_in(&blocks).await.is_err() {
            return false;
        }
        for block in self.table.mismatches(blocks.start, bytes) {
            let place = (block - blocks.start) as usize * SUMMED_BYTES;
            let found = self.device.read(self.lba_of(block), Buf::new(SUMMED_BYTES)).await;
            if !found.is_ok_and(|found| found[..] == bytes[place..place + SUMMED_BYTES]) {
                return false;
            }
        }
        true
    }

    /// Brings the pages of some blocks into memory. Whoever uses them does so without another wait.
    async fn bring_in(&self, blocks: &Range<u64>) -> IoResult<()> {
        while let Some(page) = self.table.first_absent(blocks) {
            if !self.loading.borrow_mut().insert(page) {
                self.loaded.wait().await;
                continue;
            }
            let _loading = Loading { of: self, page };
            let copy = self.load(page).await?;
            self.table.take_in(page, copy);
        }
        Ok(())
    }

    /// The newest whole copy of a page; none when both are damaged, or were never written.
    async fn load(&self, page: u64) -> IoResult<Option<Copy>> {
        let SectorRange { start, .. } = place_of(self.area, page);
        match self.device.read(start, Buf::new(2 * PAGE_BYTES)).await {
            Ok(both) => {
                let (first, second) = both.split_at(PAGE_BYTES);
                return Ok(newest(&[Some(first), Some(second)], self.owner, page));
            }
            Err(IoError::Medium) => {}
            Err(error) => return Err(error),
        }
        let mut copies = Vec::new();
        for number in 0..2 {
            let copy = copy_lba(self.area, page, number);
            copies.push(self.device.read(copy, Buf::new(PAGE_BYTES)).await.ok());
        }
        let copies: Vec<Option<&[u8]>> = copies.iter().map(|it| it.as_deref()).collect();
        Ok(newest(&copies, self.owner, page))
    }
}

/// Blocks in parts of one page each.
fn by_page(blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let first = blocks.start / PAGE_SUMS;
    (first..blocks.end.div_ceil(PAGE_SUMS)).map(move |page| {
        (page * PAGE_SUMS).max(blocks.start)..((page + 1) * PAGE_SUMS).min(blocks.end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_their_checksums_wherever_the_pieces_end() {
        let bytes: Vec<u8> = (0..3 * SUMMED_BYTES).map(|at| (at * 7 + at / 300) as u8).collect();
        let right: Vec<u32> = bytes.chunks(SUMMED_BYTES).map(sum_of).collect();
        for cuts in [vec![], vec![512], vec![4096, 8192], vec![100, 5000, 5001, 12000]] {
            let mut ends = cuts.clone();
            ends.push(bytes.len());
            let starts = std::iter::once(0).chain(cuts);
            let pieces =
                starts.zip(ends).map(|(start, end)| Buf::copy_of(&bytes[start..end]).freeze());
            assert_eq!(sums_of(&Payload::Many(pieces.collect())), right);
        }
    }

    #[test]
    fn blocks_are_cut_where_pages_end() {
        let parts: Vec<_> = by_page(1000..2020).collect();
        assert_eq!(parts, [1000..1008, 1008..2016, 2016..2020]);
    }
}
