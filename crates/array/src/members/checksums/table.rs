//! The checksums of a device in memory: pages that were needed of late, and those that the medium lacks.
//!
//! The table never waits for the device. `checked` brings pages in and stores them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use voltier_block::Lba;

use crate::format::bits::Bits;
use crate::format::checksum_page::{
    Copy, PAGE_SUMS, SUMMED_BYTES, SUMMED_SECTORS, UNKNOWN, sum_of,
};
use crate::format::region_map::RegionGrid;
use crate::geometry::numbers::Region;

/// Pages of a device that stay in memory although nothing is to be stored of them: 32 MiB.
const PAGES_MAX: usize = 8192;

/// Blocks of a device that did not match their checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChecksumCounts {
    /// Blocks that were found.
    pub found: u64,
    /// Those of them that were written since.
    pub mended: u64,
}

/// A page in memory.
struct Page {
    sums: Box<[u32]>,
    /// Grows with every change.
    version: u64,
    /// The version that is on the medium, durably.
    stored: u64,
    /// The number of the writing that is on the medium, durably; 0 for none.
    sequence: u64,
}

/// A page that is to be stored.
pub(super) struct DuePage {
    pub(super) page: u64,
    pub(super) sequence: u64,
    pub(super) sums: Box<[u32]>,
    version: u64,
}

/// The checksums of one device.
pub(super) struct Table {
    grid: RegionGrid,
    pages: RefCell<BTreeMap<u64, Page>>,
    /// Pages whose newest versions the medium does not have.
    due: RefCell<BTreeSet<u64>>,
    /// Regions whose checksums on the medium say nothing, and pages that were in memory since that was said.
    distrusted: RefCell<Bits<Region>>,
    distrust_is_taken_in: RefCell<BTreeSet<u64>>,
    /// Where to go on looking for a page that may leave.
    hand: Cell<u64>,
    bad: RefCell<BTreeSet<u64>>,
    counts: Cell<ChecksumCounts>,
}

/// The page of a block, and the place of the block in the page.
fn place_of(block: u64) -> (u64, usize) {
    (block / PAGE_SUMS, (block % PAGE_SUMS) as usize)
}

/// The pages of some blocks.
pub(super) fn pages_of(blocks: &Range<u64>) -> Range<u64> {
    blocks.start / PAGE_SUMS..blocks.end.div_ceil(PAGE_SUMS)
}

impl Table {
    pub(super) fn new(grid: RegionGrid, distrusted: Bits<Region>) -> Self {
        Self {
            grid,
            pages: RefCell::default(),
            due: RefCell::default(),
            distrusted: RefCell::new(distrusted),
            distrust_is_taken_in: RefCell::default(),
            hand: Cell::new(0),
            bad: RefCell::default(),
            counts: Cell::default(),
        }
    }

    pub(super) fn counts(&self) -> ChecksumCounts {
        self.counts.get()
    }

    /// The first of the pages of some blocks that is not in memory.
    pub(super) fn first_absent(&self, blocks: &Range<u64>) -> Option<u64> {
        let pages = self.pages.borrow();
        pages_of(blocks).find(|page| !pages.contains_key(page))
    }

    /// Takes a page in, as the medium has it; without a whole copy nothing is known of its blocks.
    pub(super) fn take_in(&self, page: u64, copy: Option<Copy>) {
        self.make_room();
        let unknown = || vec![UNKNOWN; PAGE_SUMS as usize].into_boxed_slice();
        let (sequence, sums) = match copy {
            Some(copy) => (copy.sequence, copy.sums),
            None => (0, unknown()),
        };
        self.pages.borrow_mut().insert(page, Page { sums, version: 0, stored: 0, sequence });
        if self.distrust_is_taken_in.borrow_mut().insert(page) {
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
        for page in pages {
            self.distrust_is_taken_in.borrow_mut().insert(page);
            self.forget_distrusted(page);
        }
    }

    fn forget_distrusted(&self, page: u64) {
        let distrusted = self.distrusted.borrow();
        if distrusted.is_empty() {
            return;
        }
        for block in page * PAGE_SUMS..(page + 1) * PAGE_SUMS {
            let region = self.grid.region_at(Lba(block * SUMMED_SECTORS));
            if region <= self.grid.last() && distrusted.has(region) {
                self.put(block, UNKNOWN);
            }
        }
    }

    /// Lets a page go of which the medium has all, if there are too many.
    fn make_room(&self) {
        let mut pages = self.pages.borrow_mut();
        if pages.len() < PAGES_MAX {
            return;
        }
        let due = self.due.borrow();
        let from = self.hand.get();
        let around = pages.range(from..).chain(pages.range(..from)).map(|(page, _)| *page);
        let leaving = around.into_iter().find(|page| !due.contains(page));
        if let Some(page) = leaving {
            pages.remove(&page);
            self.hand.set(page + 1);
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

    /// Nothing is known of some blocks while they are changed.
    pub(super) fn forget(&self, blocks: Range<u64>) {
        blocks.for_each(|block| self.put(block, UNKNOWN));
    }

    /// Some blocks have these checksums from now on.
    pub(super) fn note_written(&self, first: u64, sums: &[u32]) {
        for (block, sum) in (first..).zip(sums) {
            self.put(block, *sum);
            if self.bad.borrow_mut().remove(&block) {
                let counts = self.counts.get();
                self.counts.set(ChecksumCounts { mended: counts.mended + 1, ..counts });
            }
        }
    }

    /// The blocks from one on that are not what their checksums say.
    pub(super) fn mismatches(&self, first: u64, bytes: &[u8]) -> Vec<u64> {
        let is_wrong = |(block, bytes): &(u64, &[u8])| {
            let sum = self.get(*block);
            sum != UNKNOWN && sum != sum_of(bytes)
        };
        let blocks = (first..).zip(bytes.chunks(SUMMED_BYTES));
        blocks.filter(is_wrong).map(|(block, _)| block).collect()
    }

    pub(super) fn note_bad(&self, blocks: &[u64]) {
        for block in blocks {
            if self.bad.borrow_mut().insert(*block) {
                let counts = self.counts.get();
                self.counts.set(ChecksumCounts { found: counts.found + 1, ..counts });
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

    /// The pages to store.
    pub(super) fn due(&self) -> Vec<DuePage> {
        let pages = self.pages.borrow();
        let due = |page: &u64| {
            let own = &pages[page];
            let (sequence, sums) = (own.sequence + 1, own.sums.clone());
            DuePage { page: *page, sequence, sums, version: own.version }
        };
        self.due.borrow().iter().map(due).collect()
    }

    /// These pages are on the medium, durably.
    pub(super) fn note_stored(&self, stored: &[DuePage]) {
        let (mut pages, mut due) = (self.pages.borrow_mut(), self.due.borrow_mut());
        for own in stored {
            let page = pages.get_mut(&own.page).expect("a page that is due stays in memory");
            (page.stored, page.sequence) = (own.version, own.sequence);
            if page.version == page.stored {
                due.remove(&own.page);
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

    #[test]
    fn a_page_is_due_until_its_newest_version_is_stored() {
        let table = table();
        table.take_in(0, None);
        assert!(table.due().is_empty());
        table.note_written(3, &[9]);
        let due = table.due();
        assert_eq!((due[0].sequence, due[0].sums[3]), (1, 9));
        table.note_written(4, &[8]);
        table.note_stored(&due);
        let due = table.due();
        assert_eq!(due[0].sequence, 2, "the other copy");
        table.note_stored(&due);
        assert!(table.due().is_empty());
    }

    #[test]
    fn what_is_bad_counts_once_and_is_mended_when_it_is_written() {
        let table = table();
        table.take_in(0, None);
        let block = [1; SUMMED_BYTES];
        assert!(table.mismatches(5, &block).is_empty(), "nothing is known");
        table.adopt(5, &block);
        assert!(table.mismatches(5, &block).is_empty());
        let bad = table.mismatches(5, &[2; SUMMED_BYTES]);
        assert_eq!(bad, [5]);
        table.note_bad(&bad);
        table.note_bad(&bad);
        assert_eq!(table.counts(), ChecksumCounts { found: 1, mended: 0 });
        table.note_written(5, &[sum_of(&block)]);
        assert_eq!(table.counts(), ChecksumCounts { found: 1, mended: 1 });
    }

    #[test]
    fn distrusted_regions_lose_what_the_medium_says_once() {
        let grid = RegionGrid::new(1 << 20);
        let mut distrusted = Bits::new(grid.count());
        distrusted.put(Region(1), true);
        let table = Table::new(grid, distrusted);
        let copy = || Copy { sequence: 4, sums: vec![7; PAGE_SUMS as usize].into_boxed_slice() };
        table.take_in(0, Some(copy()));
        assert_eq!((table.get(255), table.get(256), table.get(511)), (7, UNKNOWN, UNKNOWN));
        assert_eq!(table.get(512), 7);
        let due = table.due();
        assert_eq!(due[0].sequence, 5);
        table.note_stored(&due);
        table.pages.borrow_mut().clear();
        table.take_in(0, Some(copy()));
        assert_eq!(table.get(256), 7, "it was stored since");
    }
}
