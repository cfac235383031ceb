//! Sequential streams: which requests belong to a long run and would only wash out the cache.
//!
//! Streams are followed per direction, and each by itself, so that interleaved jobs do not hide one
//! another. A stream's requests may arrive a little out of order, as they do from a queue of several. A
//! window behind the stream's end remembers what has been seen, and a late request that fills a hole
//! belongs to the stream. A second read of the same place does not. A run with too many holes is no run
//! and counts from zero.

use voltier_block::SectorRange;

/// Streams followed at once in each direction.
pub const STREAMS: usize = 64;

/// Pieces behind the end of a stream that are remembered; a piece is about one request.
const BEHIND_PIECES: u64 = 64;

/// Pieces a request may be ahead of its turn: a queue of sixteen.
const AHEAD_PIECES: u64 = 16;

/// The cost of a hole when it leaves the window; every piece that was there repays one. One piece
/// in five may be missing. Above the limit the stream is no stream.
const HOLE_DEBT: u32 = 4;
const DEBT_MAX: u32 = HOLE_DEBT * AHEAD_PIECES as u32;

/// Holes in the window that a queue of sixteen can explain: those before its first request, and
/// those that it has yet to fill.
const HOLES_MAX: u32 = 2 * AHEAD_PIECES as u32;

/// The filter compares numbers of 4 KiB blocks, in 32 bits: half the width, twice the lanes.
const FILTER_SHIFT: u32 = 3;

/// Finds the sequential streams in the requests of one volume.
#[derive(Clone, Debug)]
pub struct StreamDetector {
    reads: Streams,
    writes: Streams,
}

impl Default for StreamDetector {
    fn default() -> Self {
        Self::new()
    }
}

impl StreamDetector {
    /// A detector that has seen nothing. The detector takes 6 KiB, and never more.
    pub fn new() -> Self {
        Self { reads: Streams::new(), writes: Streams::new() }
    }

    /// Takes note of a request. The answer is how many bytes of its stream came before it: 0 when
    /// it begins one. The caller bypasses the cache from its cut-off on.
    #[inline]
    pub fn observe(&mut self, range: SectorRange, write: bool) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let streams = if write { &mut self.writes } else { &mut self.reads };
        if streams.may_continue(range)
            && let Some(index) = streams.find(range)
        {
            return streams.advance(index, range);
        }
        streams.begin(range);
        0
    }
}

/// Unused entries have an empty window far away.
#[derive(Clone, Debug)]
struct Streams {
    /// Lowest 4 KiB block, modulo 2^32, in which a request of each stream may start.
    low: [u32; STREAMS],
    /// How far above `low` it may start.
    span: [u32; STREAMS],
    streams: [Stream; STREAMS],
    /// Streams that went on since the hand last passed: they stay for another round.
    active: u64,
    hand: usize,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// One past the highest sector seen.
    next: u64,
    bytes: u64,
    /// Bit `k`: the piece `k` below the one that holds sector `next - 1` was seen.
    seen: u64,
    /// A piece is `1 << piece_shift` sectors.
    piece_shift: u32,
    debt: u32,
}

impl Streams {
    fn new() -> Self {
        Self {
            low: [u32::MAX; STREAMS],
            span: [0; STREAMS],
            streams: [Stream { next: 1, bytes: 0, seen: u64::MAX, piece_shift: 0, debt: 0 };
                STREAMS],
            active: 0,
            hand: 0,
        }
    }

    /// A quick look at all windows together, without branches: most random requests end here.
    #[inline]
    fn may_continue(&self, range: SectorRange) -> bool {
        let start = (range.start.0 >> FILTER_SHIFT) as u32;
        let windows = self.low.iter().zip(&self.span);
        windows.fold(false, |any, (low, span)| any | (start.wrapping_sub(*low) <= *span))
    }

    /// The stream that expects exactly this request, else one that it belongs to out of order.
    fn find(&self, range: SectorRange) -> Option<usize> {
        let start = (range.start.0 >> FILTER_SHIFT) as u32;
        let near = |index: &usize| start.wrapping_sub(self.low[*index]) <= self.span[*index];
        let mut late = None;
        for index in (0..STREAMS).filter(near) {
            let stream = &self.streams[index];
            if stream.next == range.start.0 {
                return Some(index);
            }
            if late.is_none() && stream.takes_out_of_order(range) {
                late = Some(index);
            }
        }
        late
    }

    fn advance(&mut self, index: usize, range: SectorRange) -> u64 {
        self.active |= 1 << index;
        let before = self.streams[index].advance(range);
        self.note_window(index);
        before
    }

    fn begin(&mut self, range: SectorRange) {
        while self.active >> self.hand & 1 == 1 {
            self.active &= !(1 << self.hand);
            self.hand = (self.hand + 1) % STREAMS;
        }
        self.streams[self.hand] = Stream::begin(range);
        self.note_window(self.hand);
        self.hand = (self.hand + 1) % STREAMS;
    }

    fn note_window(&mut self, index: usize) {
        let stream = &self.streams[index];
        let low = stream.next.saturating_sub((BEHIND_PIECES + 1) << stream.piece_shift);
        let high = stream.next.saturating_add((AHEAD_PIECES + 1) << stream.piece_shift);
        self.low[index] = (low >> FILTER_SHIFT) as u32;
        self.span[index] = u32::try_from((high - low) >> FILTER_SHIFT).unwrap_or(u32::MAX - 1) + 1;
    }
}

impl Stream {
    fn begin(range: SectorRange) -> Self {
        let piece_shift = range.count.ilog2();
        // Requests queued before this one may be still to come; nothing older is missed.
        let seen = !(((1 << AHEAD_PIECES) - 1) << 1);
        Self { next: range.end().0, bytes: range.bytes(), seen, piece_shift, debt: 0 }
    }

    /// First and last piece of a range.
    fn pieces(&self, range: SectorRange) -> (u64, u64) {
        (range.start.0 >> self.piece_shift, (range.end().0 - 1) >> self.piece_shift)
    }

    fn top(&self) -> u64 {
        (self.next - 1) >> self.piece_shift
    }

    /// The bits of pieces `first..=last`, of which `last` is not above the top.
    fn mask(&self, first: u64, last: u64) -> u64 {
        let (from, to) = (self.top() - last, self.top() - first);
        if from >= BEHIND_PIECES {
            return 0;
        }
        let width = (to.min(BEHIND_PIECES - 1) - from + 1) as u32;
        u64::MAX >> (u64::BITS - width) << from
    }

    fn takes_out_of_order(&self, range: SectorRange) -> bool {
        let (first, last) = self.pieces(range);
        if range.start.0 > self.next {
            return first - self.top() <= AHEAD_PIECES;
        }
        let within = last <= self.top() && self.top() - first < BEHIND_PIECES;
        within && self.mask(first, last) & self.seen == 0
    }

    /// Adds a request to the run; how long the run was before.
    fn advance(&mut self, range: SectorRange) -> u64 {
        let (first, last) = self.pieces(range);
        let up = last.saturating_sub(self.top());
        self.shift(up);
        self.next = self.next.max(range.end().0);
        self.seen |= self.mask(first, last);
        let before = self.bytes;
        self.bytes += range.bytes();
        if self.seen.count_zeros() > HOLES_MAX {
            self.seen = u64::MAX;
            self.bytes = 0;
        }
        before
    }

    fn shift(&mut self, up: u64) {
        let leaving = up.min(BEHIND_PIECES) as u32;
        if leaving == 0 {
            return;
        }
        let present = (self.seen >> (u64::BITS - leaving)).count_ones();
        self.seen = self.seen.checked_shl(leaving).unwrap_or(0);
        self.debt = (self.debt + HOLE_DEBT * (leaving - present)).saturating_sub(present);
        if self.debt > DEBT_MAX {
            self.debt = 0;
            self.bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_block::{GIB, KIB, Lba, MIB, Prng};

    fn at(offset: u64, length: u64) -> SectorRange {
        SectorRange::from_bytes(offset, length)
    }

    #[test]
    fn a_run_counts_the_bytes_before_each_request() {
        let mut detector = StreamDetector::new();
        for index in 0..1000 {
            assert_eq!(
                detector.observe(at(GIB + index * 4 * KIB, 4 * KIB), false),
                index * 4 * KIB
            );
        }
        assert_eq!(detector.observe(at(GIB + 1000 * 4 * KIB, 4 * KIB), true), 0, "other direction");
    }

    #[test]
    fn request_sizes_may_change_within_a_run() {
        let mut detector = StreamDetector::new();
        let mut prng = Prng::new(5);
        let mut bytes = 0;
        for _ in 0..2000 {
            let length = 512 * (1 + prng.below(512));
            assert_eq!(detector.observe(at(bytes, length), true), bytes);
            bytes += length;
        }
    }

    #[test]
    fn random_requests_stay_below_any_cut_off() {
        for (length, span) in [(4 * KIB, 256 * MIB), (4 * KIB, 16 * MIB), (64 * KIB, GIB)] {
            let mut detector = StreamDetector::new();
            let mut prng = Prng::new(9);
            let mut observe = |_| {
                detector.observe(at(prng.below(span / length) * length, length), prng.one_in(3))
            };
            let most = (0..200_000).map(&mut observe).max();
            assert!(most < Some(MIB), "{length} in {span}: {most:?}");
        }
    }

    #[test]
    fn interleaved_jobs_are_each_recognised_though_random_requests_come_between() {
        let mut detector = StreamDetector::new();
        let mut prng = Prng::new(2);
        for index in 0..500 {
            for job in 0..16 {
                let seen = detector.observe(at(job * GIB + index * 4 * KIB, 4 * KIB), false);
                assert_eq!(seen, index * 4 * KIB, "job {job}");
                detector.observe(at(50 * GIB + prng.below(1 << 20) * 4 * KIB, 4 * KIB), false);
            }
        }
    }

    #[test]
    fn a_queue_of_sixteen_may_complete_in_any_order() {
        for length in [4 * KIB, 128 * KIB] {
            let mut detector = StreamDetector::new();
            let mut prng = Prng::new(4);
            let mut queues: [Vec<u64>; 4] = Default::default();
            let mut issued = [0_u64; 4];
            let mut bypassed = 0;
            for round in 0..8000 {
                let job = round % 4;
                while queues[job].len() < 16 {
                    queues[job].push(issued[job]);
                    issued[job] += 1;
                }
                // Older requests come sooner, as from a real queue.
                let pick = prng.below(1 + prng.clone().below(6)) as usize;
                let index = queues[job].remove(pick);
                let range = at(job as u64 * GIB + index * length, length);
                bypassed += u32::from(detector.observe(range, false) >= MIB);
            }
            assert!(bypassed > 6700, "{length}: {bypassed} of 8000");
        }
    }

    #[test]
    fn jobs_that_start_at_the_same_offset_are_each_a_stream() {
        let mut detector = StreamDetector::new();
        for index in 0..300 {
            for job in 0..4 {
                let seen = detector.observe(at(index * 4 * KIB, 4 * KIB), false);
                assert_eq!(seen, index * 4 * KIB, "job {job}");
            }
        }
    }

    #[test]
    fn reading_one_place_again_and_again_is_no_stream() {
        let mut detector = StreamDetector::new();
        let most = (0..10_000).map(|_| detector.observe(at(MIB, 4 * KIB), false)).max();
        assert_eq!(most, Some(0));
    }

    #[test]
    fn every_other_block_is_no_stream() {
        let mut detector = StreamDetector::new();
        let observe = |index: u64| detector.observe(at(index * 8 * KIB, 4 * KIB), false);
        assert!((0..10_000).map(observe).max() < Some(512 * KIB));
    }

    #[test]
    fn the_end_of_the_address_space_is_no_trap() {
        let mut detector = StreamDetector::new();
        let sectors = u64::MAX / 512;
        for count in [1, 7, 1 << 20, sectors / 2, sectors] {
            detector.observe(SectorRange::new(Lba(sectors - count), count), false);
            detector.observe(SectorRange::new(Lba(0), count), false);
        }
        assert_eq!(detector.observe(SectorRange::new(Lba(5), 0), false), 0);
    }
}
