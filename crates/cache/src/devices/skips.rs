//! What it costs the origin to skip sectors instead of reading them, as its own requests show.
//!
//! A disk that turns reads on over a short gap in less time than it needs to come back to the far side of it.

use std::cell::Cell;

use voltier_block::{KIB, Lba, MIB, Nanos, SectorRange};

/// Reads from this length on tell the rate.
const RATE_BYTES_MIN: u64 = 64 * KIB;
/// Gaps up to this length are skipped within a track or to the next one.
const GAP_BYTES_MAX: u64 = 2 * MIB;
/// The longest gap that is read over, whatever was measured.
const READ_OVER_BYTES_MAX: u64 = MIB;
/// Weight of the newest figure in a moving average, as one in so many. A gap that cost little may have been one that
/// the disk had read ahead.
const AVERAGE_OVER: f64 = 8.0;
const CHEAP_AVERAGE_OVER: f64 = 64.0;

/// Until something is measured: a disk of 7,200 revolutions a minute, and memory that costs a request.
const DISK: (f64, f64) = (8_000_000.0, 1.0 / 0.15);
const FLASH: (f64, f64) = (30_000.0, 1.0);
/// A quarter of a revolution: where requests queue, no read-ahead spares a disk that much.
const DISK_SKIP_MIN_NS: f64 = 2_000_000.0;

/// The cost of a gap, measured.
pub(crate) struct Skips {
    /// A read behind a gap takes so much longer than its transfer.
    skip_ns: Cell<f64>,
    byte_ns: Cell<f64>,
    skip_min_ns: f64,
    /// Where the last read ended.
    head: Cell<Lba>,
}

impl Skips {
    pub(crate) fn new(is_rotational: bool) -> Self {
        let (skip_ns, byte_ns) = if is_rotational { DISK } else { FLASH };
        let (skip_ns, byte_ns) = (Cell::new(skip_ns), Cell::new(byte_ns));
        let skip_min_ns = if is_rotational { DISK_SKIP_MIN_NS } else { 0.0 };
        Self { skip_ns, byte_ns, skip_min_ns, head: Cell::new(Lba(u64::MAX)) }
    }

    /// A read begins; the gap in bytes between the last one and it, if there is none or a short one.
    pub(crate) fn begin(&self, range: SectorRange) -> Option<u64> {
        let head = self.head.replace(range.end());
        let gap = range.start.0.checked_sub(head.0)? * 512;
        (gap <= GAP_BYTES_MAX).then_some(gap)
    }

    /// Whether the last read ended here.
    pub(crate) fn is_head(&self, at: Lba) -> bool {
        self.head.get() == at
    }

    /// A read of an idle origin took so long.
    pub(crate) fn note(&self, gap_bytes: u64, bytes: u64, took_ns: Nanos) {
        let average = |of: &Cell<f64>, newest: f64, over: f64| {
            of.set(of.get() + (newest - of.get()) / over);
        };
        let took_ns = took_ns as f64;
        if gap_bytes > 0 {
            let skip_ns = (took_ns - bytes as f64 * self.byte_ns.get()).max(self.skip_min_ns);
            let is_cheap = skip_ns < self.skip_ns.get();
            let over = if is_cheap { CHEAP_AVERAGE_OVER } else { AVERAGE_OVER };
            average(&self.skip_ns, skip_ns, over);
        } else if bytes >= RATE_BYTES_MIN {
            average(&self.byte_ns, took_ns / bytes as f64, AVERAGE_OVER);
        }
    }

    /// The longest gap, in bytes, that is read over in less time than it is skipped.
    pub(crate) fn read_over_bytes(&self) -> u64 {
        let bytes = self.skip_ns.get() / self.byte_ns.get().max(f64::MIN_POSITIVE);
        (bytes as u64).min(READ_OVER_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, count: u64) -> SectorRange {
        SectorRange::new(Lba(start), count)
    }

    #[test]
    fn a_disk_reads_over_what_passes_in_a_revolution_and_flash_over_little() {
        let bytes = [true, false].map(|is_rotational| Skips::new(is_rotational).read_over_bytes());
        assert_eq!(bytes, [MIB, 30_000]);
    }

    #[test]
    fn the_gap_is_that_to_the_end_of_the_last_read() {
        let skips = Skips::new(true);
        assert_eq!(skips.begin(range(0, 8)), None);
        assert_eq!(skips.begin(range(8, 8)), Some(0));
        assert_eq!(skips.begin(range(24, 8)), Some(4096));
        assert_eq!(skips.begin(range(24, 8)), None, "backwards");
        assert_eq!(skips.begin(range(1 << 20, 8)), None, "far away");
    }

    #[test]
    fn what_is_measured_counts() {
        for (is_rotational, expected) in [(false, 19_000..23_000), (true, 280_000..300_000)] {
            let skips = Skips::new(is_rotational);
            for _ in 0..1000 {
                let byte_ns = if is_rotational { 7 } else { 1 };
                skips.note(0, 128 * KIB, 128 * 1024 * byte_ns);
                skips.note(4096, 4096, 4096 * byte_ns + 20_000);
            }
            let bytes = skips.read_over_bytes();
            assert!(expected.contains(&bytes), "{bytes}");
        }
    }
}
