//! What volumes, arrays and drives did of late: rates and latencies of an interval.

use serde::{Deserialize, Serialize};
use voltier_block::{Asked, KindCounts, MeterCounts};

/// The interval of which `show` speaks unless it is asked for another, in seconds.
pub const RECENT_S: u32 = 10;

/// What was asked for in an interval, and how long it took. Requests count when they end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recent {
    /// The length of the interval, in seconds.
    pub seconds: f64,
    /// Requests under way at its end.
    pub under_way: u64,
    /// Requests under way on average.
    pub queue: f64,
    /// Reads.
    pub reads: RecentRequests,
    /// Writes.
    pub writes: RecentRequests,
    /// Flushes.
    pub flushes: RecentRequests,
    /// Discards and requests for zeroes.
    pub discards: RecentRequests,
}

/// Requests of a kind in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecentRequests {
    /// Requests a second.
    pub per_second: f64,
    /// Bytes a second.
    pub bytes_per_second: u64,
    /// Half of them took no longer, in microseconds; at most an eighth too much, as the other times.
    pub p50_us: u64,
    /// All but one in a hundred took no longer, in microseconds.
    pub p99_us: u64,
    /// The longest took that, in microseconds.
    pub worst_us: u64,
    /// Those that failed.
    pub errors: u64,
}

impl Recent {
    /// What was counted in an interval of so many seconds.
    pub(crate) fn of(counted: &MeterCounts, seconds: f64) -> Self {
        let of = |asked| RecentRequests::of(counted.of(asked), seconds);
        Self {
            seconds: rounded(seconds),
            under_way: counted.under_way,
            queue: rounded(counted.sum_ns() as f64 / 1e9 / seconds),
            reads: of(Asked::Read),
            writes: of(Asked::Write),
            flushes: of(Asked::Flush),
            discards: of(Asked::Discard),
        }
    }
}

impl RecentRequests {
    fn of(counted: &KindCounts, seconds: f64) -> Self {
        Self {
            per_second: rounded(counted.requests() as f64 / seconds),
            bytes_per_second: (counted.bytes as f64 / seconds) as u64,
            p50_us: counted.within_us(500),
            p99_us: counted.within_us(990),
            worst_us: counted.worst_us(),
            errors: counted.errors,
        }
    }
}

fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}
