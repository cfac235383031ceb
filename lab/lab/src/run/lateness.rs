//! The account of a replay: how late each request was made, and how long it took from the time at
//! which it was due.
//!
//! Requests are counted as they end; none is kept. [`Pairing`] finds when a request of fio's log was
//! due, and holds no more than the requests in flight.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use voltier_results::result::{Histogram, Point, Sample, Scheduled, Status};

use super::model::Sums;
use crate::LabError;

/// A replay is overloaded when one request in a hundred is later than this, however long it is.
const LATE_NS: u64 = 10_000_000;

/// Samples of the time line at most; from then on two neighbours become one.
const SAMPLES_MAX: usize = 120;

/// The length of a sample of a short replay.
const SAMPLE_NS: u64 = 1_000_000;

/// A request that has ended, nanoseconds from the begin of the replay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    /// The time when the request was due; `None` of a replay that goes as fast as it can, and where that is
    /// not known.
    pub due_ns: Option<u64>,
    /// The time when the request was made.
    pub made_ns: u64,
    /// The time when the request ended.
    pub at_ns: u64,
    /// Whether the request wrote.
    pub is_write: bool,
    /// The request's bytes.
    pub bytes: u64,
}

/// Sums over the requests of a replay.
#[derive(Default)]
pub(super) struct Lateness {
    late: Histogram,
    since_due: [Sums; 2],
    samples: Samples,
    requests: u64,
    end_ns: u64,
}

impl Lateness {
    /// Counts a request.
    pub(super) fn add(&mut self, ended: Ended) {
        self.requests += 1;
        self.end_ns = self.end_ns.max(ended.at_ns);
        self.samples.add(ended.at_ns, ended.bytes, ended.at_ns.saturating_sub(ended.made_ns));
        if let Some(due_ns) = ended.due_ns {
            self.late.record(ended.made_ns.saturating_sub(due_ns));
            let took = ended.at_ns.saturating_sub(due_ns);
            self.since_due[usize::from(ended.is_write)].add(took, ended.bytes);
        }
    }

    /// The time line, how late requests were, and what the point is worth. `has_times` says whether
    /// the replay kept the times of the trace.
    pub(super) fn finish(self, has_times: bool, point: &mut Point) {
        point.series = self.samples.line(self.end_ns);
        let mut metric = |name: &str, value: f64| point.metrics.insert(name.to_owned(), value);
        metric("replay_seconds", self.end_ns as f64 / 1e9);
        if !has_times || self.requests == 0 {
            return;
        }
        if self.late.total() < self.requests {
            let why = "how late its requests were made is not known: fio's log of latencies does not \
                       have the requests of the trace";
            if point.status == Status::Ok {
                point.status = Status::Invalid(why.to_owned());
            }
            return;
        }
        let at = |percent| self.late.percentile_ns(percent).unwrap_or(0);
        metric("late_p50_ms", at(50.0) as f64 / 1e6);
        metric("late_p99_ms", at(99.0) as f64 / 1e6);
        let window = Duration::from_nanos(self.end_ns.max(1));
        let [read, write] = self.since_due.map(|sums| sums.flow(window));
        point.scheduled = Some(Box::new(Scheduled { read, write }));
        if at(99.0) > LATE_NS && point.status == Status::Ok {
            let late_ms = at(99.0) as f64 / 1e6;
            point.status = Status::Overloaded(format!(
                "one request in a hundred was made {late_ms:.1} ms late or more: the target, or \
                 --depth, does not keep up"
            ));
        }
    }
}

/// A time line of bounded length: requests, bytes and the sum of latencies of each sample.
struct Samples {
    step_ns: u64,
    sums: Vec<(u64, u64, f64)>,
}

impl Default for Samples {
    fn default() -> Samples {
        Samples { step_ns: SAMPLE_NS, sums: Vec::new() }
    }
}

impl Samples {
    fn add(&mut self, at_ns: u64, bytes: u64, took_ns: u64) {
        while at_ns / self.step_ns >= SAMPLES_MAX as u64 {
            let one = |two: &[(u64, u64, f64)]| {
                two.iter().fold((0, 0, 0.0), |sum, s| (sum.0 + s.0, sum.1 + s.1, sum.2 + s.2))
            };
            self.sums = self.sums.chunks(2).map(one).collect();
            self.step_ns *= 2;
        }
        let index = (at_ns / self.step_ns) as usize;
        if self.sums.len() <= index {
            self.sums.resize(index + 1, (0, 0, 0.0));
        }
        let sample = &mut self.sums[index];
        *sample = (sample.0 + 1, sample.1 + bytes, sample.2 + took_ns as f64);
    }

    /// The samples; the last one is as long as the replay went on.
    fn line(&self, end_ns: u64) -> Vec<Sample> {
        let sample = |(index, sums): (usize, &(u64, u64, f64))| {
            let begin = index as u64 * self.step_ns;
            let end = (begin + self.step_ns).min(end_ns).max(begin + 1);
            Sample::of(end / 1_000_000, (end - begin) as f64 / 1e9, *sums)
        };
        self.sums.iter().enumerate().map(sample).collect()
    }
}

/// A request as a log and a trace have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TracedRequest {
    /// Whether the request writes.
    pub is_write: bool,
    /// The first byte.
    pub offset: u64,
    /// The bytes.
    pub bytes: u64,
}

/// Finds when the requests of a log were due. Requests are made in the order of the trace and end in
/// any, so that no more are looked ahead than are in flight.
pub(super) struct Pairing<F> {
    next: F,
    ahead: BTreeMap<TracedRequest, VecDeque<u64>>,
    count: usize,
    count_max: usize,
}

impl<F: FnMut() -> Result<Option<(TracedRequest, u64)>, LabError>> Pairing<F> {
    /// `next` gives the requests of the trace in order, each with the time at which it is due.
    pub(super) fn new(next: F, in_flight_max: u32) -> Pairing<F> {
        let count_max = in_flight_max as usize + 1;
        Pairing { next, ahead: BTreeMap::new(), count: 0, count_max }
    }

    /// When a request was due; `None` when the trace does not have it among those in flight.
    ///
    /// # Errors
    /// When the trace cannot be read.
    pub(super) fn due(&mut self, request: TracedRequest) -> Result<Option<u64>, LabError> {
        loop {
            if let Some(due) = self.ahead.get_mut(&request) {
                let found = due.pop_front();
                if due.is_empty() {
                    self.ahead.remove(&request);
                }
                self.count -= 1;
                return Ok(found);
            }
            if self.count >= self.count_max {
                return Ok(None);
            }
            let Some((ahead, due_ns)) = (self.next)()? else { return Ok(None) };
            self.ahead.entry(ahead).or_default().push_back(due_ns);
            self.count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A replay of `span_s` in which every request is `late_ns` late and takes 1 ms.
    fn replayed(span_s: u64, late_ns: u64) -> Point {
        let mut sums = Lateness::default();
        for number in 0..1000 {
            let due_ns = number * span_s * 1_000_000;
            let made_ns = due_ns + late_ns;
            let at_ns = made_ns + 1_000_000;
            let is_write = number % 2 == 1;
            sums.add(Ended { due_ns: Some(due_ns), made_ns, at_ns, is_write, bytes: 4096 });
        }
        let mut point = Point::default();
        sums.finish(true, &mut point);
        point
    }

    #[test]
    fn the_limit_of_lateness_is_the_same_however_long_the_replay_is() {
        for span_s in [1, 3600] {
            assert_eq!(replayed(span_s, 9_000_000).status, Status::Ok, "{span_s} s");
            let late = replayed(span_s, 11_000_000);
            assert!(matches!(late.status, Status::Overloaded(_)), "{span_s} s: {:?}", late.status);
        }
    }

    #[test]
    fn latency_is_also_told_from_the_time_a_request_was_due() {
        let point = replayed(10, 5_000_000);
        let scheduled = point.scheduled.unwrap();
        for flow in [scheduled.read.unwrap(), scheduled.write.unwrap()] {
            assert_eq!((flow.requests, flow.latency.mean_ns), (500, 6e6));
        }
        assert!((point.metrics["late_p99_ms"] - 5.0).abs() < 0.1);
        let unknown = Ended { due_ns: None, made_ns: 0, at_ns: 5, is_write: false, bytes: 1 };
        let mut sums = Lateness::default();
        sums.add(unknown);
        let mut point = Point::default();
        sums.finish(true, &mut point);
        assert!(matches!(point.status, Status::Invalid(_)), "{:?}", point.status);
        assert!(!point.metrics.contains_key("late_p99_ms") && point.scheduled.is_none());
    }

    #[test]
    fn a_time_line_stays_short_and_its_last_sample_is_as_long_as_it_was() {
        let point = replayed(86_400, 0);
        assert!(point.series.len() <= SAMPLES_MAX && point.series.len() > SAMPLES_MAX / 2 - 1);
        let rates = point.series.iter().map(|sample| sample.iops);
        let (least, most) = rates.fold((f64::MAX, 0.0_f64), |(a, b), r| (a.min(r), b.max(r)));
        assert!(least > 0.7 * most, "{least} {most}");
        assert!(point.series.iter().all(|sample| sample.latency_mean_ns == 1e6));
    }

    #[test]
    fn a_slow_request_is_paired_with_its_own_time_though_others_overtake_it() {
        let request = |offset| TracedRequest { is_write: false, offset, bytes: 4096 };
        let mut trace = (0..1000_u64).map(|n| (request(n % 7 * 4096 + u64::from(n == 3)), n * 10));
        let mut pairing = Pairing::new(|| Ok(trace.next()), 2);
        let mut found = Vec::new();
        for number in (0..1000_u64).filter(|n| *n != 3) {
            found.push(pairing.due(request(number % 7 * 4096)).unwrap());
            assert!(pairing.count <= 3);
        }
        let wanted: Vec<Option<u64>> =
            (0..1000).filter(|n| *n != 3).map(|n| Some(n * 10)).collect();
        assert_eq!(found, wanted);
        assert_eq!(pairing.due(request(3 * 4096 + 1)).unwrap(), Some(30));
        assert_eq!(pairing.due(request(5)).unwrap(), None);
    }
}
