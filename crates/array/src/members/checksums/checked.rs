//! The checksums of a device: reads are held against them, and changes change them.
//!
//! A block that does not match is answered as a medium error is, so all that mends medium errors mends it.
//! Checksums are in memory until a flush. The flush stores the checksums and then covers both, so blocks
//! that a flush makes durable have theirs. A crash in between leaves blocks that do not match in two places
//! alone. A start distrusts regions that are dirty, and the journal's replay writes its blocks again.
//!
//! A page that the device does not take costs no more than its checksums. The list of void pages tells the
//! next start that the page says nothing.
//!
//! A block of which nothing is known is neither right nor wrong, and its page is damaged. Whoever reads it
//! holds it against the other members (`stripe::vouch`), and a task does so for the rest of the page.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use voltier_block::{
    AfterDiscard, Buf, DriveControl, Durability, IoError, IoResult, Lba, Nanos, Payload,
    SECTOR_BYTES, SectorRange,
};
use voltier_ring::{
    FlushOnce, Handle, RangeGuard, RangeLocks, RangeMode, Semaphore, Signal, join_all,
};

use crate::canary::{self, Canary};
use crate::format::bits::Bits;
use crate::format::checksum_page::{
    Found, Owner, PAGE_BYTES, PAGE_SUMS, SUMMED_BYTES, SUMMED_SECTORS, UNKNOWN, copy_lba, encode,
    found_in, kept, place_of, sum_of,
};
use crate::format::member_layout::MemberLayout;
use crate::format::region_map::RegionGrid;
use crate::format::void_pages::{VoidPages, place_of_list};
use crate::geometry::numbers::Region;
use crate::members::checksums::page_errors::{ErrorCounts, PageErrors};
use crate::members::checksums::table::{BlockState, DuePage, Pins, Table};
use crate::members::checksums::void_list::VoidList;
use crate::members::clear::{Clear, clear_device};
use crate::members::counts::MemberCounts;
use crate::members::refusals::RESTS_NS;

/// Pages that are stored at once.
const STORED_AT_ONCE: usize = 16;
/// With so many pages to store a change stores some before the next flush: half of what stays in memory.
const DUE_MAX: usize = 4096;
/// Pages that such a change stores.
const RELIEVED: usize = 256;
/// Pages of a range that is cleared at once.
const CLEARED_PAGES: u64 = 64;
/// When pages that could not be stored are tried again.
const RETRY_NS: Nanos = 60_000_000_000;
/// Damaged pages of a device that are told of one by one. A device that has lost them all would say so for
/// every 4 MiB of it.
const TOLD_MAX: u32 = 8;
/// Stands for the list of void pages among the pages on their way into memory.
const LIST: u64 = u64::MAX;

/// What a read is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    Nothing,
    /// The checksums that are known: in a region that needs a resync none may be.
    Known,
    /// The checksums of all blocks.
    All,
}

/// What the checksums say of what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Right,
    /// A block does not match.
    Wrong,
    /// A block that should have a checksum has none.
    Unverified,
}

/// The checksums of a device. The device itself is the caller's.
pub(crate) struct Checked {
    handle: Handle,
    owner: Owner,
    /// The event count of the array when it was put together.
    event: u64,
    /// The pages of checksums on the device.
    area: Lba,
    /// The first sector of the chunks.
    data_start: u64,
    data_sectors: u64,
    table: Table,
    list: VoidList,
    /// Blocks under way: a read that met a change half way could not be held against any checksum.
    locks: RangeLocks,
    /// Pages that are on their way into memory.
    loading: RefCell<BTreeSet<u64>>,
    loaded: Signal,
    /// Requests for a flush so far.
    asked: Cell<u64>,
    flushed: FlushOnce,
    /// Flushes of the device itself that failed.
    failed_flushes: Cell<u64>,
    /// One storing after the other: each page has one writing under way.
    turn: Semaphore,
    /// When a page could not be stored of late.
    refused_at: Cell<Option<Nanos>>,
    errors: PageErrors,
    /// How many damaged pages were told of one by one.
    told: Cell<u32>,
    told_of_end: Cell<u32>,
}

/// A page on its way into memory, until dropped.
struct Loading<'a> {
    of: &'a Checked,
    page: u64,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.of.loading.borrow_mut().remove(&self.page);
        self.of.loaded.notify();
    }
}

/// Blocks that a request holds, with their pages in memory, until dropped.
struct Held<'a> {
    _guard: RangeGuard<'a>,
    _pins: Pins<'a>,
}

/// A change of blocks under way. One that is dropped before it is done may have left anything.
struct Change<'a> {
    of: &'a Checked,
    first: u64,
    sums: Vec<u32>,
    is_done: bool,
    _held: Held<'a>,
}

impl Change<'_> {
    /// The device has all of it.
    fn done(mut self) {
        self.is_done = true;
        self.of.table.note_written(self.first, &self.sums);
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.of.table.note_unfinished(self.first, &self.sums);
        }
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

/// Blocks in parts of no more than so many pages.
fn parts_of(blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let longest = CLEARED_PAGES * PAGE_SUMS;
    blocks
        .clone()
        .step_by(longest as usize)
        .map(move |start| start..(start + longest).min(blocks.end))
}

impl Checked {
    pub(super) fn new(
        handle: &Handle,
        owner: Owner,
        event: u64,
        places: &MemberLayout,
        distrusted: Bits<Region>,
        list: Option<VoidPages>,
    ) -> Self {
        Self {
            handle: handle.clone(),
            owner,
            event,
            area: places.checksums.start,
            data_start: places.data.start.0,
            data_sectors: places.data.count,
            table: Table::new(RegionGrid::new(places.data.count), distrusted),
            list: VoidList::new(list),
            locks: RangeLocks::default(),
            loading: RefCell::default(),
            loaded: Signal::new(),
            asked: Cell::new(0),
            flushed: FlushOnce::default(),
            failed_flushes: Cell::new(0),
            turn: Semaphore::new(1),
            refused_at: Cell::new(None),
            errors: PageErrors::default(),
            told: Cell::new(0),
            told_of_end: Cell::new(0),
        }
    }

    pub(crate) fn counts(&self) -> MemberCounts {
        self.table.counts()
    }

    /// Medium errors of pages since the last time.
    pub(crate) fn take_errors(&self) -> ErrorCounts {
        self.errors.take()
    }

    pub(crate) fn distrust(&self, regions: &Bits<Region>) {
        self.table.distrust(regions);
    }

    /// The blocks of a range of the device.
    pub(crate) fn blocks_of(&self, at: Lba, bytes: u64) -> Range<u64> {
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

    /// Holds blocks that are about to be read.
    ///
    /// # Errors
    /// When the device is gone.
    async fn hold<D: DriveControl>(&self, device: &D, blocks: Range<u64>) -> IoResult<Held<'_>> {
        self.hold_for(device, blocks, RangeMode::Shared).await
    }

    async fn hold_for<D: DriveControl>(
        &self,
        device: &D,
        blocks: Range<u64>,
        mode: RangeMode,
    ) -> IoResult<Held<'_>> {
        let count = (blocks.end - blocks.start) * SUMMED_SECTORS;
        let range = SectorRange::new(self.lba_of(blocks.start), count);
        let guard = self.locks.lock(range, mode).await;
        let pins = self.bring_in(device, &blocks).await?;
        Ok(Held { _guard: guard, _pins: pins })
    }

    /// Whether bytes that were read are what their checksums say. The blocks are held.
    fn verify(&self, first: u64, bytes: &[u8], verify: Verify) -> Verdict {
        let mut has_unknown = false;
        let bad = self.table.mismatches(first, bytes, || has_unknown = true);
        self.table.note_bad(&bad);
        let is_believed = verify != Verify::All || canary::is(Canary::UnverifiedBelieved);
        if has_unknown && !is_believed {
            self.table.note_unverified(&(first..first + (bytes.len() / SUMMED_BYTES) as u64));
        }
        match bad.is_empty() {
            false => Verdict::Wrong,
            true if has_unknown && !is_believed => Verdict::Unverified,
            true => Verdict::Right,
        }
    }

    /// Blocks that should have checksums are about to be read, or not because they have none.
    pub(crate) fn note_unverified(&self, at: Lba, bytes: u64) {
        self.table.note_unverified(&self.blocks_of(at, bytes));
    }

    /// The damaged pages since the last time, as sectors of the device.
    pub(crate) fn take_damaged(&self) -> Vec<SectorRange> {
        let pages = self.table.take_untold().into_iter();
        pages.map(|page| self.sectors_on_device(page)).collect()
    }

    /// Whether a damaged page may be told of by itself: the first of a device may.
    pub(crate) fn may_tell(&self) -> bool {
        self.told.replace(self.told.get() + 1) < TOLD_MAX
    }

    /// The same of what became of one.
    pub(crate) fn may_tell_end(&self) -> bool {
        self.told_of_end.replace(self.told_of_end.get() + 1) < TOLD_MAX
    }

    /// The pages that lack checksums.
    pub(crate) fn damaged(&self) -> Vec<u64> {
        self.table.damaged()
    }

    /// All blocks of a page that should have checksums have some.
    pub(crate) fn note_whole(&self, page: u64) {
        self.table.note_whole(page);
    }

    /// The sectors of the chunks whose checksums are in a page.
    pub(crate) fn sectors_of(&self, page: u64) -> Range<Lba> {
        let page_sectors = PAGE_SUMS * SUMMED_SECTORS;
        let end = ((page + 1) * page_sectors).min(self.data_sectors);
        Lba(page * page_sectors)..Lba(end)
    }

    /// The same as sectors of the device.
    pub(crate) fn sectors_on_device(&self, page: u64) -> SectorRange {
        let Range { start, end } = self.sectors_of(page);
        SectorRange::new(start.plus(self.data_start), end.0 - start.0)
    }

    /// A block is known to be wrong, and was not before.
    pub(crate) fn convict(&self, at: Lba) {
        let blocks = self.blocks_of(at, SUMMED_BYTES as u64);
        self.table.note_bad(&[blocks.start]);
    }

    /// Whether all blocks of a range have checksums that are known.
    pub(crate) async fn knows<D: DriveControl>(&self, device: &D, at: Lba, bytes: u64) -> bool {
        let blocks = self.blocks_of(at, bytes);
        let pins = self.bring_in(device, &blocks).await;
        pins.is_ok() && self.table.are_known(blocks)
    }

    /// Blocks are about to get these checksums. Until then the ones before stay: what convicts a block is not
    /// forgotten before the device has another one in its place.
    ///
    /// # Errors
    /// When the device is gone.
    async fn change<D: DriveControl>(
        self: &Rc<Self>,
        device: &Rc<D>,
        first: u64,
        sums: Vec<u32>,
    ) -> IoResult<Change<'_>> {
        self.relieve(device).await;
        let blocks = first..first + sums.len() as u64;
        let held = self.hold_for(&**device, blocks, RangeMode::Exclusive).await?;
        Ok(Change { of: self, first, sums, is_done: false, _held: held })
    }

    /// Reads blocks by a request of the caller's; whether they are what their checksums say.
    ///
    /// # Errors
    /// When the device is gone, or the request fails.
    pub(crate) async fn read<D: DriveControl>(
        &self,
        device: &D,
        at: Lba,
        into: Buf,
        verify: Verify,
        read: impl AsyncFnOnce(Buf) -> IoResult<Buf>,
    ) -> IoResult<(Buf, Verdict)> {
        let blocks = self.blocks_of(at, into.len() as u64);
        let first = blocks.start;
        let _held = self.hold(device, blocks).await?;
        let found = read(into).await?;
        let verdict = self.verify(first, &found, verify);
        Ok((found, verdict))
    }

    /// Reads blocks by a request of the caller's; what is known of each.
    ///
    /// # Errors
    /// When the device is gone, or the request fails.
    pub(crate) async fn read_judged<D: DriveControl>(
        &self,
        device: &D,
        at: Lba,
        into: Buf,
        read: impl AsyncFnOnce(Buf) -> IoResult<Buf>,
    ) -> IoResult<(Buf, Vec<BlockState>)> {
        let blocks = self.blocks_of(at, into.len() as u64);
        let first = blocks.start;
        let _held = self.hold(device, blocks).await?;
        let found = read(into).await?;
        let states = self.table.states(first, &found);
        let bad = (first..).zip(&states).filter(|(_, state)| **state == BlockState::Wrong);
        self.table.note_bad(&bad.map(|(block, _)| block).collect::<Vec<u64>>());
        Ok((found, states))
    }

    /// The same of buffers whose blocks lie behind one another.
    ///
    /// # Errors
    /// As for one.
    pub(crate) async fn read_run<D: DriveControl>(
        &self,
        device: &D,
        at: Lba,
        into: Vec<Buf>,
        verify: Verify,
        read: impl AsyncFnOnce(Vec<Buf>) -> IoResult<Vec<Buf>>,
    ) -> IoResult<(Vec<Buf>, bool)> {
        let blocks = self.blocks_of(at, into.iter().map(|buf| buf.len() as u64).sum());
        let mut first = blocks.start;
        let _held = self.hold(device, blocks).await?;
        let (found, mut is_right) = (read(into).await?, true);
        for buf in &found {
            is_right &= self.verify(first, buf, verify) == Verdict::Right;
            first += (buf.len() / SUMMED_BYTES) as u64;
        }
        Ok((found, is_right))
    }

    /// Writes blocks by a request of the caller's, and keeps their checksums.
    ///
    /// # Errors
    /// When the device is gone, or the request fails.
    pub(crate) async fn write<D: DriveControl>(
        self: &Rc<Self>,
        device: &Rc<D>,
        at: Lba,
        data: Payload,
        write: impl AsyncFnOnce(Payload) -> IoResult<()>,
    ) -> IoResult<()> {
        let first = self.blocks_of(at, data.len() as u64).start;
        let change = self.change(device, first, sums_of(&data)).await?;
        write(data).await?;
        change.done();
        Ok(())
    }

    /// Clears a range part by part.
    pub(crate) async fn clear<D: DriveControl>(
        self: &Rc<Self>,
        device: &Rc<D>,
        range: SectorRange,
        clear: Clear,
    ) -> IoResult<()> {
        let returns_zeroes = device.limits().after_discard == AfterDiscard::Zeroes;
        let sum = match clear {
            Clear::Discard if !returns_zeroes => UNKNOWN,
            Clear::Discard | Clear::Zeroes(_) => sum_of(&[0; SUMMED_BYTES]),
        };
        for part in parts_of(self.blocks_of(range.start, range.bytes())) {
            let count = part.end - part.start;
            let change = self.change(device, part.start, vec![sum; count as usize]).await?;
            let range = SectorRange::new(self.lba_of(part.start), count * SUMMED_SECTORS);
            clear_device(&**device, range, clear).await?;
            change.done();
        }
        Ok(())
    }

    /// Stores checksums, and makes them durable with all that was written. Callers that ask at the same
    /// time share one flush.
    ///
    /// # Errors
    /// When the device cannot flush, or takes neither a page nor the word that the page is void.
    pub(crate) async fn flush<D: DriveControl>(self: &Rc<Self>, device: &Rc<D>) -> IoResult<()> {
        let wanted = self.asked.get() + 1;
        self.asked.set(wanted);
        let flush = async |_| {
            // To its end also when nobody waits: a page has one writing under way.
            self.handle.finish(self.clone().flush_now(device.clone())).await
        };
        self.flushed.until(wanted, || self.asked.get(), flush).await
    }

    /// How often the device itself has failed a flush. It has dropped nothing when only a page was refused.
    pub(crate) fn failed_flushes(&self) -> u64 {
        self.failed_flushes.get()
    }

    async fn flush_now<D: DriveControl>(self: Rc<Self>, device: Rc<D>) -> IoResult<()> {
        let _turn = self.turn.acquire(1).await;
        let refused = self.store_due(&*device, usize::MAX).await?;
        let are_called_void = !canary::is(Canary::VoidPagesForgotten);
        if !refused.is_empty() && are_called_void && self.list.add(&refused) {
            self.table.begin_era();
        }
        let mut listed = self.store_list(&*device).await;
        if !refused.is_empty() {
            // A device that takes neither may refuse all changes for a moment.
            for rest_ns in RESTS_NS {
                if listed.is_ok() || listed == Err(IoError::Gone) {
                    break;
                }
                self.handle.sleep(rest_ns).await;
                listed = self.store_list(&*device).await;
            }
            listed?;
        }
        let unflushed = self.table.take_unflushed();
        if let Err(error) = device.flush().await {
            self.failed_flushes.set(self.failed_flushes.get() + 1);
            self.table.note_not_flushed(&unflushed);
            self.list.note_not_flushed();
            return Err(error);
        }
        self.table.note_flushed(&unflushed);
        self.errors.forget(&unflushed);
        self.list.remove(&unflushed);
        self.table.note_refused(refused);
        Ok(())
    }

    /// Stores pages; those that the device does not take.
    ///
    /// # Errors
    /// When the device is gone.
    async fn store_due<D: DriveControl>(&self, device: &D, most: usize) -> IoResult<Vec<u64>> {
        let due = self.table.due(!self.was_refused_of_late(), most);
        let mut refused = Vec::new();
        for some in due.chunks(STORED_AT_ONCE) {
            let stores = some.iter().map(|page| self.store(device, page));
            for (page, result) in some.iter().zip(join_all(stores).await) {
                match result {
                    Ok(()) => self.table.note_stored(page),
                    Err(error) => {
                        self.table.note_not_stored(page);
                        self.refused_at.set(Some(self.handle.now()));
                        if error == IoError::Gone {
                            return Err(error);
                        }
                        refused.push(page.page);
                    }
                }
            }
        }
        Ok(refused)
    }

    async fn store<D: DriveControl>(&self, device: &D, due: &DuePage) -> IoResult<()> {
        let is_first = due.sequences.end - due.sequences.start > 1;
        if canary::is(Canary::ChecksumsNotFlushed) && !is_first {
            return Ok(());
        }
        let era = self.list.era();
        let copies = due.sequences.clone();
        let copies = copies.flat_map(|number| encode(self.owner, era, due.page, number, &due.sums));
        let at = copy_lba(self.area, due.page, due.sequences.start);
        self.store_at(device, due.page, at, &copies.collect::<Vec<u8>>()).await
    }

    async fn store_list<D: DriveControl>(&self, device: &D) -> IoResult<()> {
        let Some(due) = self.list.due() else { return Ok(()) };
        let copy = due.encode(self.owner);
        let place = place_of_list(self.area).start;
        let second = place.plus(PAGE_BYTES as u64 / SECTOR_BYTES);
        let stores = [place, second].map(|at| self.store_at(device, LIST, at, &copy));
        let results = join_all(stores).await;
        if results.iter().all(Result::is_ok) {
            self.errors.forget(&[LIST]);
        }
        // Either copy is enough.
        results[0].or(results[1])?;
        self.list.note_written(&due);
        Ok(())
    }

    fn was_refused_of_late(&self) -> bool {
        self.refused_at.get().is_some_and(|at| self.handle.now() < at + RETRY_NS)
    }

    /// Writes to the area: once more after a medium error, and for seconds while there is no space, unless
    /// that was in vain of late.
    async fn store_at<D: DriveControl>(
        &self,
        device: &D,
        page: u64,
        at: Lba,
        bytes: &[u8],
    ) -> IoResult<()> {
        let data = Buf::copy_of(bytes).freeze();
        let write = || device.write(at, data.clone().into(), Durability::Cached);
        let mut result = write().await;
        if result == Err(IoError::Medium) {
            self.errors.note_failed_write(page);
            result = write().await;
        }
        for rest_ns in RESTS_NS {
            if result != Err(IoError::NoSpace) || self.was_refused_of_late() {
                break;
            }
            self.handle.sleep(rest_ns).await;
            result = write().await;
        }
        result
    }

    /// Stores some pages if too many wait for a flush.
    async fn relieve<D: DriveControl>(self: &Rc<Self>, device: &Rc<D>) {
        if self.table.due_count() < DUE_MAX || self.was_refused_of_late() {
            return;
        }
        let (own, device) = (self.clone(), device.clone());
        let relieved = async move {
            let _turn = own.turn.acquire(1).await;
            if own.table.due_count() >= DUE_MAX {
                // Pages that the device does not take are due as before: the next flush calls them void.
                let _ = own.store_due(&*device, RELIEVED).await;
            }
        };
        self.handle.finish(relieved).await;
    }

    /// Bytes that were read, or are about to be, are known to be right by others than their checksums.
    pub(crate) async fn adopt<D: DriveControl>(
        &self,
        device: &D,
        at: Lba,
        bytes: &[u8],
    ) -> IoResult<()> {
        let blocks = self.blocks_of(at, bytes.len() as u64);
        let _pins = self.bring_in(device, &blocks).await?;
        self.table.adopt(blocks.start, bytes);
        Ok(())
    }

    /// Whether bytes that were computed are what is to be in their place. Where a checksum says something
    /// else, but the device has just these bytes, the checksum is what is wrong.
    pub(crate) async fn accepts<D: DriveControl>(&self, device: &D, at: Lba, bytes: &[u8]) -> bool {
        let blocks = self.blocks_of(at, bytes.len() as u64);
        let Ok(_held) = self.hold(device, blocks.clone()).await else { return false };
        for block in self.table.mismatches(blocks.start, bytes, || {}) {
            let place = (block - blocks.start) as usize * SUMMED_BYTES;
            let found = device.read(self.lba_of(block), Buf::new(SUMMED_BYTES)).await;
            if !found.is_ok_and(|found| found[..] == bytes[place..place + SUMMED_BYTES]) {
                return false;
            }
        }
        true
    }

    /// Brings the pages of some blocks into memory, and keeps them there.
    async fn bring_in<D: DriveControl>(
        &self,
        device: &D,
        blocks: &Range<u64>,
    ) -> IoResult<Pins<'_>> {
        let mut pins = self.table.pins(blocks);
        while let Some(absent) = self.table.pin_present(&mut pins, blocks) {
            let page = if self.list.is_absent() { LIST } else { absent };
            if !self.loading.borrow_mut().insert(page) {
                self.loaded.wait().await;
                continue;
            }
            let _loading = Loading { of: self, page };
            if page == LIST {
                let copies = self.read_copies(device, LIST, place_of_list(self.area)).await?;
                let found = VoidPages::newest(halves(&copies), self.owner);
                self.list.take_in(found, self.event);
            } else {
                let found = self.load(device, page).await?;
                self.table.take_in(page, found);
            }
        }
        Ok(pins)
    }

    async fn load<D: DriveControl>(&self, device: &D, page: u64) -> IoResult<Found> {
        let copies = self.read_copies(device, page, place_of(self.area, page)).await?;
        let found = found_in(halves(&copies), self.owner, self.list.era(), page);
        let is_void = self.list.has(page);
        Ok(if is_void { Found { sums: None, ..found } } else { found })
    }

    /// Both copies that are in a place; none of one that cannot be read.
    ///
    /// # Errors
    /// When the device is gone.
    async fn read_copies<D: DriveControl>(
        &self,
        device: &D,
        page: u64,
        place: SectorRange,
    ) -> IoResult<[Option<Buf>; 2]> {
        let second = place.start.plus(PAGE_BYTES as u64 / SECTOR_BYTES);
        let read = |at| device.read(at, Buf::new(PAGE_BYTES));
        let mut copies = [None, None];
        let results = join_all([read(place.start), read(second)]).await;
        for (copy, result) in copies.iter_mut().zip(results) {
            match result {
                Err(IoError::Gone) => return Err(IoError::Gone),
                Err(IoError::Medium) => self.errors.note_failed_read(page),
                result => *copy = result.ok(),
            }
        }
        Ok(copies)
    }
}

fn halves(copies: &[Option<Buf>; 2]) -> [Option<&[u8]>; 2] {
    copies.each_ref().map(|copy| copy.as_deref())
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
    fn long_ranges_are_cleared_in_parts() {
        let longest = CLEARED_PAGES * PAGE_SUMS;
        let parts: Vec<_> = parts_of(1000..1001 + longest).collect();
        assert_eq!(parts, [1000..1000 + longest, 1000 + longest..1001 + longest]);
    }
}
