//! Order between requests for a few lines and changes of long ranges of lines.
//!
//! A long range is one lock, whatever its length. It is registered first: requests that touch a line of it wait
//! from then on, before they hold anything. Then the range waits for the requests that came before. Those are
//! counted by regions, in rounds, so that neither a request elsewhere nor one that comes later delays it.

use std::cell::{Cell, RefCell};

use voltier_ring::{DrainRounds, Round, Signal, join_all};

use crate::numbers::Line;

/// A range of more lines than these is locked as one.
pub(super) const LONG_LINES_MIN: u64 = 64;
/// Lines of a region, far more than a request has that is not for a long range.
const REGION_LINES: u64 = 1 << 16;
/// Regions that are counted; distant ones share a counter, and wait for each other in vain.
const REGIONS: u64 = 1 << 10;

/// The long ranges of one cache, and the requests that they wait for.
pub(super) struct LongLocks {
    ranges: RefCell<Vec<LongRange>>,
    /// The length of that list.
    count: Cell<usize>,
    next_number: Cell<u64>,
    regions: Vec<Cell<Region>>,
    /// A range is given back, or a region is drained.
    news: Signal,
}

/// A range that is locked, or waits for those before it.
struct LongRange {
    number: u64,
    first: Line,
    last: Line,
}

/// The requests under way in a region.
#[derive(Clone, Copy, Default)]
struct Region {
    rounds: DrainRounds,
    /// The rounds that somebody has begun to drain.
    drains: u64,
}

/// A request under way in the regions of its first and of its last line.
#[derive(Clone, Copy)]
pub(super) struct Presence {
    regions: (u16, u16),
    rounds: (Round, Round),
}

fn region_of(line: Line) -> u16 {
    (line.0 / REGION_LINES % REGIONS) as u16
}

impl LongLocks {
    pub(super) fn new() -> Self {
        Self {
            ranges: RefCell::default(),
            count: Cell::new(0),
            next_number: Cell::new(0),
            regions: vec![Cell::default(); REGIONS as usize],
            news: Signal::new(),
        }
    }

    /// The memory of the counters.
    pub(super) const fn bytes() -> u64 {
        REGIONS * size_of::<Cell<Region>>() as u64
    }

    /// Ranges that are locked, or wait.
    pub(super) fn count(&self) -> usize {
        self.count.get()
    }

    /// Whether requests for these lines have to wait.
    #[inline]
    pub(super) fn has(&self, first: Line, last: Line) -> bool {
        self.count.get() > 0 && self.meets(first, last)
    }

    fn meets(&self, first: Line, last: Line) -> bool {
        self.ranges.borrow().iter().any(|range| range.first <= last && first <= range.last)
    }

    /// Waits until no range has one of these lines.
    #[cold]
    pub(super) async fn left(&self, first: Line, last: Line) {
        self.news.until(|| !self.meets(first, last)).await;
    }

    /// A request for lines that no range has begins; it is under way until it [leaves](Self::leave).
    #[inline]
    pub(super) fn enter(&self, first: Line, last: Line) -> Presence {
        assert!(last - first <= REGION_LINES, "a request has lines of two regions at the most");
        let regions = (region_of(first), region_of(last));
        let round = self.begin(regions.0);
        let other = if regions.0 == regions.1 { round } else { self.begin(regions.1) };
        Presence { regions, rounds: (round, other) }
    }

    #[inline]
    fn begin(&self, region: u16) -> Round {
        self.change(region, |region| region.rounds.begin())
    }

    #[inline]
    fn change<T>(&self, region: u16, change: impl FnOnce(&mut Region) -> T) -> T {
        let cell = &self.regions[usize::from(region)];
        let mut region = cell.get();
        let result = change(&mut region);
        cell.set(region);
        result
    }

    #[inline]
    pub(super) fn leave(&self, presence: Presence) {
        let Presence { regions, rounds } = presence;
        let mut is_drained = self.change(regions.0, |region| region.rounds.end(rounds.0));
        if regions.0 != regions.1 {
            is_drained |= self.change(regions.1, |region| region.rounds.end(rounds.1));
        }
        if is_drained {
            self.news.notify();
        }
    }

    /// Registers a range of which no other range has a line; its number.
    pub(super) fn register(&self, first: Line, last: Line) -> u64 {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        self.ranges.borrow_mut().push(LongRange { number, first, last });
        self.count.set(self.count.get() + 1);
        number
    }

    /// Waits until the requests have ended that were under way in the regions of a registered range.
    pub(super) async fn others_left(&self, first: Line, last: Line) {
        let (from, to) = (first.0 / REGION_LINES, last.0 / REGION_LINES);
        let regions = (from..=to).take(REGIONS as usize).map(|region| (region % REGIONS) as u16);
        let is_busy = |region: &u16| !self.regions[usize::from(*region)].get().rounds.is_empty();
        let busy: Vec<u16> = regions.filter(is_busy).collect();
        if !busy.is_empty() {
            Box::pin(join_all(busy.into_iter().map(|region| self.drained(region)))).await;
        }
    }

    async fn drained(&self, region: u16) {
        let of = || self.regions[usize::from(region)].get();
        // Whoever drains the region already has to have its round first.
        self.news.until(|| of().rounds.is_drained()).await;
        let drain = self.change(region, |region| {
            region.rounds.advance();
            region.drains += 1;
            region.drains
        });
        self.news.until(|| of().rounds.is_drained() || of().drains > drain).await;
    }

    /// Gives a range back.
    pub(super) fn give(&self, number: u64) {
        self.ranges.borrow_mut().retain(|range| range.number != number);
        self.count.set(self.count.get() - 1);
        self.news.notify();
    }
}
