//! Meters: what a layer or a drive was asked for, how long that took, and how much is under way.
//!
//! Every request is counted, with its time in a histogram: no samples. The time is that of the core's last look at
//! its ring (the clock that the meter was made with), so a request costs no call of a clock. It is therefore accurate
//! to the time that the core was busy between two looks, some tens of microseconds at full load.

use std::cell::Cell;
use std::rc::Rc;

use crate::error::{IoError, IoResult};
use crate::time::Nanos;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Data.
    Read,
    /// To take data.
    Write,
    /// To make what was written durable.
    Flush,
    /// To discard a range or make it zero, without data.
    Discard,
}

/// Kinds of requests.
const KINDS: usize = 4;
/// Buckets of one microsecond each, before those of an eighth of a power of two.
const PLAIN: usize = 8;
/// The exponent of the last power of two, in microseconds: two minutes.
const EXPONENT_MAX: usize = 26;
/// Buckets of a histogram.
const BUCKETS: usize = PLAIN + (EXPONENT_MAX - 2) * PLAIN;

/// Time that ends as late as this in microseconds, or later, is in the last bucket.
const US_MAX: u64 = (1 << (EXPONENT_MAX + 1)) - 1;

/// The bucket of a time.
#[inline]
fn bucket_of(took_us: u64) -> usize {
    if took_us < PLAIN as u64 {
        return took_us as usize;
    }
    let took_us = took_us.min(US_MAX);
    let exponent = took_us.ilog2() as usize;
    let eighth = (took_us >> (exponent - 3)) as usize & (PLAIN - 1);
    PLAIN + (exponent - 3) * PLAIN + eighth
}

/// The end of a bucket, in microseconds: what is in it took less.
fn end_of(bucket: usize) -> u64 {
    if bucket < PLAIN {
        return bucket as u64 + 1;
    }
    let (exponent, eighth) = ((bucket - PLAIN) / PLAIN, (bucket - PLAIN) % PLAIN);
    ((PLAIN + eighth + 1) as u64) << exponent
}

struct OfKind {
    bytes: Cell<u64>,
    errors: Cell<u64>,
    sum_ns: Cell<u64>,
    buckets: [Cell<u64>; BUCKETS],
}

impl Default for OfKind {
    fn default() -> Self {
        let zero = || Cell::new(0);
        Self {
            bytes: zero(),
            errors: zero(),
            sum_ns: zero(),
            buckets: std::array::from_fn(|_| zero()),
        }
    }
}

/// Counts requests of one layer or drive. Its memory is 6 KiB.
pub struct Meter {
    clock: Rc<Cell<Nanos>>,
    under_way: Cell<u64>,
    kinds: [OfKind; KINDS],
}

#[inline]
fn add(cell: &Cell<u64>, count: u64) {
    cell.set(cell.get().wrapping_add(count));
}

impl Meter {
    /// A meter that has counted nothing; `clock` is the time now, in nanoseconds.
    pub fn new(clock: Rc<Cell<Nanos>>) -> Self {
        Self { clock, under_way: Cell::new(0), kinds: std::array::from_fn(|_| OfKind::default()) }
    }

    /// Begins a request. It ends, and is counted, when the answer is dropped.
    #[inline]
    pub fn begin(&self, asked: Asked, bytes: u64) -> Begun<'_> {
        add(&self.under_way, 1);
        Begun { meter: self, asked, bytes, begun_ns: self.clock.get() }
    }

    /// The counts so far.
    pub fn counts(&self) -> MeterCounts {
        let kinds = self.kinds.each_ref().map(|kind| {
            let all = kind.buckets.iter().map(Cell::get).enumerate();
            let used = all.filter(|(_, count)| *count > 0);
            KindCounts {
                bytes: kind.bytes.get(),
                errors: kind.errors.get(),
                sum_ns: kind.sum_ns.get(),
                buckets: used.map(|(bucket, count)| (bucket as u8, count)).collect(),
            }
        });
        MeterCounts { under_way: self.under_way.get(), kinds }
    }
}

/// A request under way.
#[must_use]
pub struct Begun<'a> {
    meter: &'a Meter,
    asked: Asked,
    bytes: u64,
    begun_ns: Nanos,
}

impl Begun<'_> {
    /// Notes how the request ended. What a device cannot do at all, or was not asked for rightly, is no error of it.
    #[inline]
    pub fn note<T>(&self, result: &IoResult<T>) {
        if let Err(error) = result {
            self.note_error(*error);
        }
    }

    #[cold]
    fn note_error(&self, error: IoError) {
        if !matches!(error, IoError::Unsupported | IoError::OutOfRange) {
            add(&self.meter.kinds[self.asked as usize].errors, 1);
        }
    }
}

impl Drop for Begun<'_> {
    #[inline]
    fn drop(&mut self) {
        let kind = &self.meter.kinds[self.asked as usize];
        let took_ns = self.meter.clock.get().saturating_sub(self.begun_ns);
        add(&kind.bytes, self.bytes);
        add(&kind.sum_ns, took_ns);
        add(&kind.buckets[bucket_of(took_ns / 1000)], 1);
        self.meter.under_way.set(self.meter.under_way.get().wrapping_sub(1));
    }
}

/// What a meter has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeterCounts {
    /// Requests under way now.
    pub under_way: u64,
    kinds: [KindCounts; KINDS],
}

/// What a meter has counted of one kind of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindCounts {
    /// Bytes that were asked for.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Time that they took, all together, in nanoseconds.
    pub sum_ns: Nanos,
    /// Requests by the bucket of their time: those that have any, in order.
    buckets: Vec<(u8, u64)>,
}

impl MeterCounts {
    /// The counts of one kind.
    pub fn of(&self, asked: Asked) -> &KindCounts {
        &self.kinds[asked as usize]
    }

    /// What was counted between an earlier moment and this one.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut kinds = self.kinds.clone();
        for (kind, before) in kinds.iter_mut().zip(&earlier.kinds) {
            *kind = kind.since(before);
        }
        Self { under_way: self.under_way, kinds }
    }

    /// Requests that failed, of all kinds.
    pub fn errors(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.errors).sum()
    }

    /// Time that all requests took together, in nanoseconds: divided by the time in which they ended, the mean number
    /// under way.
    pub fn sum_ns(&self) -> Nanos {
        self.kinds.iter().fold(0, |sum, kind| sum.saturating_add(kind.sum_ns))
    }
}

impl KindCounts {
    /// Requests that have ended.
    pub fn requests(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// The same without what was counted before. A meter that was made anew has counted less: then this is all.
    fn since(&self, before: &Self) -> Self {
        if self.sum_ns < before.sum_ns || self.requests() < before.requests() {
            return self.clone();
        }
        let counted = |bucket: u8| {
            let at = before.buckets.binary_search_by_key(&bucket, |(bucket, _)| *bucket);
            at.map_or(0, |at| before.buckets[at].1)
        };
        let now = self.buckets.iter();
        let rest = now.map(|(bucket, count)| (*bucket, count.saturating_sub(counted(*bucket))));
        Self {
            bytes: self.bytes.saturating_sub(before.bytes),
            errors: self.errors.saturating_sub(before.errors),
            sum_ns: self.sum_ns - before.sum_ns,
            buckets: rest.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// The time within which so many of a thousand requests have ended, in microseconds: at most an eighth too long.
    /// 0 when there were none.
    pub fn within_us(&self, per_mille: u64) -> u64 {
        let wanted = (self.requests() * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        found.map_or(0, |(bucket, _)| end_of(usize::from(*bucket)))
    }

    /// The longest time, in microseconds: at most an eighth too long. 0 when there were none.
    pub fn worst_us(&self) -> u64 {
        self.within_us(1000)
    }

    /// Requests that took less than a power of two of microseconds.
    pub fn below_us(&self, power_of_two: u64) -> u64 {
        let below =
            self.buckets.iter().filter(|(bucket, _)| end_of(usize::from(*bucket)) <= power_of_two);
        below.map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_a_bucket_that_ends_above_it_by_an_eighth_at_most() {
        let mut last = 0;
        for us in (0..3000).chain((0..2000).map(|it| it * 65_537 + 3000)) {
            let bucket = bucket_of(us);
            assert!(bucket >= last && bucket < BUCKETS, "{us}");
            last = bucket;
            assert!(
                end_of(bucket) > us && end_of(bucket) <= us + us / 8 + 1,
                "{us}: {}",
                end_of(bucket)
            );
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(end_of(BUCKETS - 1), US_MAX + 1);
    }

    #[test]
    fn requests_are_counted_when_they_end_and_an_interval_has_those_that_ended_in_it() {
        let clock = Rc::new(Cell::new(0));
        let meter = Meter::new(clock.clone());
        let request = |asked, took_us: u64| {
            let begun = meter.begin(asked, 4096);
            clock.set(clock.get() + took_us * 1000);
            drop(begun);
        };
        (0..98).for_each(|_| request(Asked::Read, 10));
        let before = meter.counts();
        let under_way = meter.begin(Asked::Write, 512);
        (0..98).for_each(|_| request(Asked::Read, 100));
        request(Asked::Read, 1000);
        request(Asked::Read, 50_000);
        let now = meter.counts();
        assert_eq!((now.under_way, now.of(Asked::Read).requests()), (1, 198));
        let recent = now.since(&before);
        let reads = recent.of(Asked::Read);
        assert_eq!((reads.requests(), reads.bytes), (100, 409_600));
        assert_eq!(reads.sum_ns, 98 * 100_000 + 51_000_000);
        assert!((100..=112).contains(&reads.within_us(500)), "{}", reads.within_us(500));
        assert!((1000..=1125).contains(&reads.within_us(990)), "{}", reads.within_us(990));
        assert!((50_000..=56_250).contains(&reads.worst_us()), "{}", reads.worst_us());
        assert_eq!((reads.below_us(128), reads.below_us(1 << 16)), (98, 100));
        assert_eq!(recent.of(Asked::Write), &KindCounts::default());
        under_way.note::<()>(&Err(IoError::Medium));
        drop(under_way);
        let begun = meter.begin(Asked::Write, 512);
        begun.note::<()>(&Err(IoError::Unsupported));
        drop(begun);
        let counts = meter.counts();
        assert_eq!((counts.errors(), counts.of(Asked::Write).requests()), (1, 2));
        // A drive that was opened anew begins at nothing.
        let fresh = Meter::new(clock.clone());
        drop(fresh.begin(Asked::Read, 512));
        assert_eq!(fresh.counts().since(&counts), fresh.counts());
    }
}
