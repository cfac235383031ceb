//! The checksums of a device in memory: pages that were needed of late, and those that the medium lacks.
//!
//! The table never waits for the device. `checked` brings pages in and stores them. Pages of requests under
//! way are pinned, so that a request which needs several pages gets them all whatever others do.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use voltier_block::Lba;

use crate::format::bits::Bits;
use crate::format::checksum_page::{
    Found, PAGE_SUMS, SUMMED_BYTES, SUMMED_SECTORS, UNKNOWN, sum_of,
};
use crate::format::region_map::RegionGrid;
use crate::geometry::numbers::Region;
use crate::members::counts::MemberCounts;

/// Pages of a device that stay in memory although no request needs them: 32 MiB.
const PAGES_MAX: usize = 8192;

/// What its checksum says of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    Right,
    Wrong,
    /// There is none.
    Unknown,
}

/// A page in memory.
struct Page {
    sums: Box<[u32]>,
    /// Grows with every change.
    version: u64,
    /// The highest number of a writing that the medium may have; 0 for none.
    sequence: u64,
    /// Whether the medium has two copies that say something, the newest with `sequence`.
    is_paired: bool,
    /// Requests under way that need the page.
    pins: u32,
}

/// A page that is to be stored.
pub(super) struct DuePage {
    pub(super) page: u64,
    /// The writings to do: both copies of a page of which the medium has no pair, else the older one.
    pub(super) sequences: Range<u64>,
    pub(super) sums: Box<[u32]>,
    version: u64,
}

/// The checksums of one device.
pub(super) struct Table {
    grid: RegionGrid,
    pages_max: usize,
    pages: RefCell<BTreeMap<u64, Page>>,
    /// Pages whose newest versions the medium does not have.
    due: RefCell<BTreeSet<u64>>,
    /// Pages that were stored, and not flushed.
    unflushed: RefCell<BTreeSet<u64>>,
    /// Pages that could not be stored. The medium's content of these pages is void, durably.
    refused: RefCell<BTreeSet<u64>>,
    /// Pages that lack checksums of blocks which should have some, and those of them nobody was told of.
    damaged: RefCell<BTreeSet<u64>>,
    untold: RefCell<Vec<u64>>,
    /// Regions whose checksums on the medium say nothing, and their pages that were in memory since then.
    distrusted: RefCell<Bits<Region>>,
    distrust_is_taken_in: RefCell<BTreeSet<u64>>,
    /// Where to go on looking for a page that may leave.
    hand: Cell<u64>,
    bad: RefCell<BTreeSet<u64>>,
    counts: Cell<MemberCounts>,
}

/// Pages that a request needs, until dropped.
pub(super) struct Pins<'a> {
    table: &'a Table,
    pages: Range<u64>,
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        self.table.unpin(self.pages.clone());
    }
}

/// The page of a block, and the place of the block in the page.
fn place_of(block: u64) -> (u64, usize) {
    (block / PAGE_SUMS, (block % PAGE_SUMS) as usize)
}

/// The pages of some blocks.
fn pages_of(blocks: &Range<u64>) -> Range<u64> {
    blocks.start / PAGE_SUMS..blocks.end.div_ceil(PAGE_SUMS)
}

/// The most memory that the checksums of a member with so many sectors of chunks in so many regions take while
/// no request needs more pages.
pub(crate) fn bytes_for(member_sectors: u64, regions: u64) -> u64 {
    let pages = member_sectors.div_ceil(PAGE_SUMS * SUMMED_SECTORS).min(PAGES_MAX as u64);
    // A page and its number in the tree.
    let page_bytes = PAGE_SUMS * size_of::<u32>() as u64 + (size_of::<Page>() + 16) as u64;
    pages * page_bytes + Bits::<Region>::bytes_for(regions)
}

impl Table {
    pub(super) fn new(grid: RegionGrid, distrusted: Bits<Region>) -> Self {
        Self {
            grid,
            pages_max: PAGES_MAX,
            pages: RefCell::default(),
            due: RefCell::default(),
            unflushed: RefCell::default(),
            refused: RefCell::default(),
            damaged: RefCell::default(),
            untold: RefCell::default(),
            distrusted: RefCell::new(distrusted),
            distrust_is_taken_in: RefCell::default(),
            hand: Cell::new(0),
            bad: RefCell::default(),
            counts: Cell::default(),
        }
    }

    pub(super) fn counts(&self) -> MemberCounts {
        let unprotected_pages = self.refused.borrow().union(&self.damaged.borrow()).count() as u64;
        MemberCounts { unprotected_pages, ..self.counts.get() }
    }

    /// Nothing of some blocks is pinned yet.
    pub(super) fn pins(&self, blocks: &Range<u64>) -> Pins<'_> {
        let first = pages_of(blocks).start;
        Pins { table: self, pages: first..first }
    }

    /// Pins the pages of some blocks that are in memory, up to the first that is not: that one.
    pub(super) fn pin_present(&self, pins: &mut Pins<'_>, blocks: &Range<u64>) -> Option<u64> {
        let mut pages = self.pages.borrow_mut();
        while pins.pages.end < pages_of(blocks).end {
            let Some(page) = pages.get_mut(&pins.pages.end) else { return Some(pins.pages.end) };
            page.pins += 1;
            pins.pages.end += 1;
        }
        None
    }

    fn unpin(&self, unpinned: Range<u64>) {
        let mut pages = self.pages.borrow_mut();
        for number in unpinned {
            pages.get_mut(&number).expect("a pinned page stays in memory").pins -= 1;
        }
        drop(pages);
        self.make_room(self.pages_max);
    }

    /// Takes a page in, as the medium has it.
    pub(super) fn take_in(&self, page: u64, found: Found) {
        self.make_room(self.pages_max.saturating_sub(1));
        let Found { sequence, sums } = found;
        let is_paired = sums.is_some();
        let sums = sums.unwrap_or_else(|| vec![UNKNOWN; PAGE_SUMS as usize].into_boxed_slice());
        let own = Page { sums, version: 0, sequence, is_paired, pins: 0 };
        self.pages.borrow_mut().insert(page, own);
        if self.is_in_distrusted(page) && self.distrust_is_taken_in.borrow_mut().insert(page) {
            self.forget_distrusted(page);
        }
    }

    /// From now on nothing is known of these regions.
    pub(super) fn distrust(&self, regions: &Bits<Region>) {
        for region in regions.iter() {
            self.distrusted.borrow_mut().put(region, true);
        }
        self.distrust_is_taken_in.borrow_mut().clear();
        let pages: Vec<u64> = self.pages.borrow().keys().copied().collect();
        for page in pages.into_iter().filter(|page| self.is_in_distrusted(*page)) {
            self.distrust_is_taken_in.borrow_mut().insert(page);
            self.forget_distrusted(page);
        }
    }

    fn region_of(&self, block: u64) -> Region {
        self.grid.region_at(Lba(block * SUMMED_SECTORS))
    }

    fn is_in_distrusted(&self, page: u64) -> bool {
        let distrusted = self.distrusted.borrow();
        let last = self.region_of((page + 1) * PAGE_SUMS - 1).min(self.grid.last());
        let first = self.region_of(page * PAGE_SUMS);
        distrusted.next(first).is_some_and(|region| region <= last)
    }

    fn forget_distrusted(&self, page: u64) {
        let distrusted = self.distrusted.borrow();
        for block in page * PAGE_SUMS..(page + 1) * PAGE_SUMS {
            let region = self.region_of(block);
            if region <= self.grid.last() && distrusted.has(region) {
                self.put(block, UNKNOWN);
            }
        }
    }

    /// Lets pages go that nobody needs and of which the medium has all, until there are no more than that.
    /// Of pages that cannot be stored it has nothing, and says so.
    fn make_room(&self, most: usize) {
        let mut pages = self.pages.borrow_mut();
        let (mut due, refused) = (self.due.borrow_mut(), self.refused.borrow());
        while pages.len() > most {
            let from = self.hand.get();
            let may_leave = |(page, own): &(&u64, &Page)| {
                own.pins == 0 && (!due.contains(page) || refused.contains(page))
            };
            let leaving = pages.range(from..).chain(pages.range(..from)).find(may_leave);
            let Some(leaving) = leaving.map(|(page, _)| *page) else { return };
            pages.remove(&leaving);
            due.remove(&leaving);
            self.hand.set(leaving + 1);
        }
    }

    /// The checksum of a block whose page is in memory.
    fn get(&self, block: u64) -> u32 {
        let (page, at) = place_of(block);
        self.pages.borrow()[&page].sums[at]
    }

    fn put(&self, block: u64, sum: u32) {
        let (number, at) = place_of(block);
        let mut pages = self.pages.borrow_mut();
        let page = pages.get_mut(&number).expect("the page is in memory");
        if page.sums[at] != sum {
            page.sums[at] = sum;
            page.version += 1;
            self.due.borrow_mut().insert(number);
        }
    }

    /// Some blocks have these checksums from now on.
    pub(super) fn note_written(&self, first: u64, sums: &[u32]) {
        for (block, sum) in (first..).zip(sums) {
            self.put(block, *sum);
            if self.bad.borrow_mut().remove(&block) {
                let counts = self.counts.get();
                let checksum_mended = counts.checksum_mended + 1;
                self.counts.set(MemberCounts { checksum_mended, ..counts });
            }
        }
    }

    /// Some blocks may have these checksums, the ones before, or none. A checksum that convicts a block
    /// stays: the block may be as wrong as before.
    pub(super) fn note_unfinished(&self, first: u64, sums: &[u32]) {
        for (block, sum) in (first..).zip(sums) {
            if self.get(block) != *sum && !self.bad.borrow().contains(&block) {
                self.put(block, UNKNOWN);
            }
        }
    }

    /// The blocks from one on that are not what their checksums say. Blocks without one are told of.
    pub(super) fn mismatches(
        &self,
        first: u64,
        bytes: &[u8],
        mut on_unknown: impl FnMut(),
    ) -> Vec<u64> {
        let is_wrong = |(block, bytes): &(u64, &[u8])| match self.get(*block) {
            UNKNOWN => {
                on_unknown();
                false
            }
            sum => sum != sum_of(bytes),
        };
        let blocks = (first..).zip(bytes.chunks(SUMMED_BYTES));
        blocks.filter(is_wrong).map(|(block, _)| block).collect()
    }

    /// What the checksums say of blocks from one on.
    pub(super) fn states(&self, first: u64, bytes: &[u8]) -> Vec<BlockState> {
        let state = |(block, bytes): (u64, &[u8])| match self.get(block) {
            UNKNOWN => BlockState::Unknown,
            sum if sum == sum_of(bytes) => BlockState::Right,
            _ => BlockState::Wrong,
        };
        (first..).zip(bytes.chunks(SUMMED_BYTES)).map(state).collect()
    }

    /// These blocks should have checksums, and some of them have none: their pages are not what was stored.
    pub(super) fn note_unverified(&self, blocks: &Range<u64>) {
        for page in pages_of(blocks) {
            let start = blocks.start.max(page * PAGE_SUMS);
            let end = blocks.end.min((page + 1) * PAGE_SUMS);
            if !self.are_known(start..end) && self.damaged.borrow_mut().insert(page) {
                self.untold.borrow_mut().push(page);
            }
        }
    }

    /// The damaged pages that nobody was told of yet.
    pub(super) fn take_untold(&self) -> Vec<u64> {
        self.untold.take()
    }

    /// The pages that lack checksums.
    pub(super) fn damaged(&self) -> Vec<u64> {
        self.damaged.borrow().iter().copied().collect()
    }

    /// All blocks of a page that should have checksums have some.
    pub(super) fn note_whole(&self, page: u64) {
        self.damaged.borrow_mut().remove(&page);
    }

    /// Whether checksums of all these blocks are known.
    pub(super) fn are_known(&self, mut blocks: Range<u64>) -> bool {
        blocks.all(|block| self.get(block) != UNKNOWN)
    }

    pub(super) fn note_bad(&self, blocks: &[u64]) {
        for block in blocks {
            if self.bad.borrow_mut().insert(*block) {
                let counts = self.counts.get();
                let checksum_errors = counts.checksum_errors + 1;
                self.counts.set(MemberCounts { checksum_errors, ..counts });
            }
        }
    }

    /// These bytes are known to be right: blocks of which nothing is known get their checksums.
    pub(super) fn adopt(&self, first: u64, bytes: &[u8]) {
        for (block, bytes) in (first..).zip(bytes.chunks(SUMMED_BYTES)) {
            if self.get(block) == UNKNOWN {
                self.put(block, sum_of(bytes));
            }
        }
    }

    /// How many pages are to be stored, without those that cannot be.
    pub(super) fn due_count(&self) -> usize {
        let refused = self.refused.borrow();
        let due = self.due.borrow();
        if refused.is_empty() { due.len() } else { due.difference(&refused).count() }
    }

    /// The pages to store; those that could not be stored only if they are to be tried again.
    pub(super) fn due(&self, with_refused: bool, most: usize) -> Vec<DuePage> {
        let (pages, refused) = (self.pages.borrow(), self.refused.borrow());
        let due = |page: &u64| {
            let own = &pages[page];
            // The place of a copy follows from its number.
            let pair = (own.sequence + 3) & !1;
            let next = own.sequence + 1;
            let sequences = if own.is_paired { next..next + 1 } else { pair..pair + 2 };
            DuePage { page: *page, sequences, sums: own.sums.clone(), version: own.version }
        };
        let due_pages = self.due.borrow();
        let wanted = due_pages.iter().filter(|page| with_refused || !refused.contains(page));
        wanted.take(most).map(due).collect()
    }

    /// A page is on the medium, up to the next flush.
    pub(super) fn note_stored(&self, stored: &DuePage) {
        let mut pages = self.pages.borrow_mut();
        // One that could not be stored before may have left.
        let Some(page) = pages.get_mut(&stored.page) else { return };
        page.sequence = stored.sequences.end - 1;
        page.is_paired = true;
        if page.version == stored.version {
            self.due.borrow_mut().remove(&stored.page);
        }
        self.unflushed.borrow_mut().insert(stored.page);
    }

    /// Nobody knows what the medium has of a page now.
    pub(super) fn note_not_stored(&self, not_stored: &DuePage) {
        if let Some(page) = self.pages.borrow_mut().get_mut(&not_stored.page) {
            page.sequence = not_stored.sequences.end - 1;
            page.is_paired = false;
        }
    }

    /// The medium calls these pages void, durably: they need not be stored.
    pub(super) fn note_refused(&self, pages: impl IntoIterator<Item = u64>) {
        self.refused.borrow_mut().extend(pages);
    }

    /// The medium calls all of its pages void: those in memory are stored anew.
    pub(super) fn begin_era(&self) {
        let all: BTreeSet<u64> = self.pages.borrow().keys().copied().collect();
        self.note_not_flushed(&all);
    }

    /// Pages that were stored and not flushed: a flush that begins now covers them.
    pub(super) fn take_unflushed(&self) -> BTreeSet<u64> {
        self.unflushed.take()
    }

    /// Pages are on the medium, durably.
    pub(super) fn note_flushed(&self, flushed: &BTreeSet<u64>) {
        self.refused.borrow_mut().retain(|page| !flushed.contains(page));
    }

    /// The medium may have lost these: both copies are stored again.
    pub(super) fn note_not_flushed(&self, lost: &BTreeSet<u64>) {
        let mut pages = self.pages.borrow_mut();
        for number in lost {
            if let Some(page) = pages.get_mut(number) {
                page.is_paired = false;
                self.due.borrow_mut().insert(*number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let grid = RegionGrid::new(1 << 20);
        Table::new(grid, Bits::new(grid.count()))
    }

    fn due(table: &Table) -> Vec<DuePage> {
        table.due(false, usize::MAX)
    }

    fn found(sequence: u64, sum: u32) -> Found {
        Found { sequence, sums: Some(vec![sum; PAGE_SUMS as usize].into_boxed_slice()) }
    }

    #[test]
    fn a_page_is_due_until_its_newest_version_is_stored() {
        let table = table();
        table.take_in(0, Found::default());
        assert!(due(&table).is_empty());
        table.note_written(3, &[9]);
        let first = due(&table);
        assert_eq!((first[0].sequences.clone(), first[0].sums[3]), (2..4, 9), "both copies");
        table.note_written(4, &[8]);
        table.note_stored(&first[0]);
        let second = due(&table);
        assert_eq!(second[0].sequences, 4..5, "the older copy");
        table.note_stored(&second[0]);
        assert!(due(&table).is_empty());
        assert_eq!(table.take_unflushed(), BTreeSet::from([0]));
    }

    #[test]
    fn numbers_go_on_above_what_was_seen_when_nothing_is_known() {
        let table = table();
        table.take_in(0, Found { sequence: 7, sums: None });
        table.note_written(3, &[9]);
        assert_eq!(due(&table)[0].sequences, 10..12, "no pair with 7, or with an 8 nobody read");
        table.note_not_stored(&due(&table)[0]);
        assert_eq!(due(&table)[0].sequences, 14..16);
        table.note_stored(&due(&table)[0]);
        let lost = table.take_unflushed();
        table.note_not_flushed(&lost);
        assert_eq!(due(&table)[0].sequences, 18..20);
    }

    #[test]
    fn a_page_that_cannot_be_stored_is_counted_and_not_tried_at_once() {
        let table = table();
        table.take_in(0, found(6, 1));
        table.note_written(3, &[9]);
        table.note_not_stored(&due(&table)[0]);
        table.note_refused([0]);
        assert_eq!((table.due_count(), table.counts().unprotected_pages), (0, 1));
        assert!(due(&table).is_empty());
        let again = table.due(true, usize::MAX);
        assert_eq!(again[0].sequences, 10..12);
        table.note_stored(&again[0]);
        table.note_flushed(&table.take_unflushed());
        assert_eq!((table.due_count(), table.counts().unprotected_pages), (0, 0));
    }

    #[test]
    fn pinned_and_due_pages_stay_and_the_table_shrinks_again() {
        let table = Table { pages_max: 3, ..table() };
        let blocks = 0..5 * PAGE_SUMS;
        let mut pins = table.pins(&blocks);
        while let Some(page) = table.pin_present(&mut pins, &blocks) {
            table.take_in(page, found(2, 7));
        }
        assert_eq!(table.pages.borrow().len(), 5, "all of a request");
        (0..4).for_each(|page| table.note_written(page * PAGE_SUMS, &[9]));
        drop(pins);
        assert_eq!(table.pages.borrow().len(), 4, "what is due stays");
        due(&table).iter().for_each(|page| table.note_stored(page));
        table.take_in(5, found(2, 7));
        assert_eq!(table.pages.borrow().len(), 3);
    }

    #[test]
    fn what_is_bad_counts_once_and_is_mended_when_it_is_written() {
        let table = table();
        table.take_in(0, Found::default());
        let block = [1; SUMMED_BYTES];
        assert!(table.mismatches(5, &block, || {}).is_empty(), "nothing is known");
        table.adopt(5, &block);
        assert!(table.mismatches(5, &block, || panic!("it has one")).is_empty());
        let bad = table.mismatches(5, &[2; SUMMED_BYTES], || {});
        assert_eq!(table.states(5, &block), [BlockState::Right]);
        assert_eq!(bad, [5]);
        table.note_bad(&bad);
        table.note_bad(&bad);
        let counts = |checksum_errors, checksum_mended| MemberCounts {
            checksum_errors,
            checksum_mended,
            ..MemberCounts::default()
        };
        assert_eq!(table.counts(), counts(1, 0));
        table.note_written(5, &[sum_of(&block)]);
        assert_eq!(table.counts(), counts(1, 1));
    }

    #[test]
    fn a_page_that_lacks_a_checksum_counts_once_until_it_is_whole() {
        let table = table();
        table.take_in(0, Found::default());
        table.take_in(1, found(2, 7));
        table.note_written(PAGE_SUMS - 1, &[9]);
        let across = PAGE_SUMS - 1..PAGE_SUMS + 3;
        table.note_unverified(&across);
        assert_eq!((table.take_untold(), table.counts().unprotected_pages), (vec![], 0));
        for _ in 0..2 {
            table.note_unverified(&(PAGE_SUMS - 2..PAGE_SUMS + 3));
        }
        assert_eq!((table.take_untold(), table.counts().unprotected_pages), (vec![0], 1));
        table.note_refused([0, 1]);
        assert_eq!(table.counts().unprotected_pages, 2, "each page counts once");
        table.note_flushed(&BTreeSet::from([0, 1]));
        assert_eq!(table.damaged(), [0]);
        table.note_whole(0);
        assert_eq!((table.take_untold(), table.counts().unprotected_pages), (vec![], 0));
    }

    #[test]
    fn a_change_that_fails_leaves_what_convicts_and_forgets_the_rest() {
        let table = table();
        table.take_in(0, found(2, 7));
        table.note_bad(&[5]);
        table.note_unfinished(4, &[8, 8, 7]);
        assert_eq!((table.get(4), table.get(5), table.get(6)), (UNKNOWN, 7, 7));
    }

    #[test]
    fn distrusted_regions_lose_what_the_medium_says_once() {
        let grid = RegionGrid::new(1 << 20);
        let mut distrusted = Bits::new(grid.count());
        distrusted.put(Region(1), true);
        let table = Table::new(grid, distrusted);
        table.take_in(0, found(4, 7));
        assert_eq!((table.get(255), table.get(256), table.get(511)), (7, UNKNOWN, UNKNOWN));
        assert_eq!(table.get(512), 7);
        let due = due(&table);
        assert_eq!(due[0].sequences, 5..6);
        table.note_stored(&due[0]);
        table.pages.borrow_mut().clear();
        table.take_in(0, found(5, 7));
        assert_eq!(table.get(256), 7, "it was stored since");
    }
}
