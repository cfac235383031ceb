//! A closed loop in virtual time over a model alone: what fio does, without the rest of the world.
//! Profiles are calibrated by it, and a twin's stack is measured beside a bare drive under it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::{Completion, Model, ModelOp, Profile, Ticket, Timing, Workload};
use voltier_block::{Lba, Nanos, Prng, SECTOR_BYTES, SectorRange};

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Bytes per second, without the first fifth of the time, which fills caches and buffers.
    pub bytes_per_s: f64,
    /// The mean latency of the requests that are counted.
    pub mean_latency_ns: f64,
    /// The longest latency among them.
    pub max_latency_ns: Nanos,
    /// How many there are.
    pub requests: u64,
}

/// Virtual time that gives a steady rate under a load. The time is long enough for seeks on a disk, and
/// for five turns of everything outstanding at about `bytes_per_s`.
pub fn steady_run_ns(profile: &Profile, load: &Workload, bytes_per_s: f64) -> Nanos {
    let seconds = if matches!(profile.timing, Timing::Hdd(_)) { 120.0 } else { 1.0 };
    let outstanding_bytes = (load.jobs * load.depth) as f64 * load.block_bytes as f64;
    (f64::max(seconds, 5.0 * outstanding_bytes / bytes_per_s) * 1e9) as Nanos
}

struct Loop<'a> {
    load: &'a Workload,
    model: Model,
    prng: Prng,
    next: Vec<u64>,
    known: BinaryHeap<Reverse<(Nanos, usize, Nanos)>>,
    queued: BTreeMap<Ticket, (usize, Nanos)>,
}

impl Loop<'_> {
    fn submit(&mut self, now: Nanos, job: usize) {
        let blocks = self.load.span_bytes / self.load.block_bytes;
        let block = if self.load.sequential {
            self.next[job] += 1;
            (self.next[job] - 1) % blocks
        } else {
            self.prng.below(blocks)
        };
        let is_read = self.prng.below(100) < self.load.read_percent;
        let op = if is_read { ModelOp::Read } else { ModelOp::Write };
        let sectors = self.load.block_bytes / SECTOR_BYTES;
        let range = SectorRange::new(Lba(block * sectors), sectors);
        match self.model.submit(now, op, range) {
            Completion::At(at) => {
                assert!(at >= now, "completed before it was submitted");
                self.known.push(Reverse((at, job, now)));
            }
            Completion::Queued(ticket) => {
                self.queued.insert(ticket, (job, now));
            }
        }
        self.collect(now);
    }

    fn collect(&mut self, now: Nanos) {
        for (ticket, at) in self.model.resolved() {
            let (job, submitted) = self.queued.remove(&ticket).expect("resolved once");
            assert!(at >= submitted && at >= now, "completed in the past");
            self.known.push(Reverse((at, job, submitted)));
        }
    }
}

/// Runs a load against a fresh drive of a profile for some virtual time. Sequential jobs begin
/// `gap_bytes` apart.
///
/// # Panics
/// If the load has no jobs, or the model breaks its own promises.
pub fn run(profile: &Profile, load: &Workload, gap_bytes: u64, run_ns: Nanos) -> Outcome {
    let mut world = Loop {
        load,
        model: profile.model(profile.bytes),
        prng: Prng::new(7),
        next: (0..load.jobs as u64).map(|job| job * gap_bytes / load.block_bytes).collect(),
        known: BinaryHeap::new(),
        queued: BTreeMap::new(),
    };
    for slot in 0..load.jobs * load.depth {
        world.submit(0, slot % load.jobs);
    }
    let from = run_ns / 5;
    let (mut requests, mut latency_ns, mut max_latency_ns) = (0u64, 0u64, 0);
    loop {
        let completion = world.known.peek().map(|Reverse((at, ..))| *at);
        let dispatch = world.model.next_dispatch();
        let waits = !world.queued.is_empty();
        if let Some(at) = dispatch
            && waits
            && completion.is_none_or(|completion| at <= completion)
        {
            world.model.advance(at);
            world.collect(at);
            continue;
        }
        let Reverse((now, job, submitted)) = world.known.pop().expect("a closed loop never dries");
        if now > run_ns {
            break;
        }
        if now >= from {
            requests += 1;
            latency_ns += now - submitted;
            max_latency_ns = max_latency_ns.max(now - submitted);
        }
        world.submit(now, job);
    }
    Outcome {
        bytes_per_s: (requests * load.block_bytes) as f64 / ((run_ns - from) as f64 / 1e9),
        mean_latency_ns: latency_ns as f64 / requests.max(1) as f64,
        max_latency_ns,
        requests,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PROFILES;
    use voltier_block::{GIB, KIB};

    fn measure(profile: &Profile, load: &Workload, gap_bytes: u64) -> Outcome {
        run(profile, load, gap_bytes, steady_run_ns(profile, load, 100e6))
    }

    fn random_reads(depth: usize) -> Workload {
        let (block_bytes, span_bytes) = (4 * KIB, 100 * GIB);
        Workload { jobs: 1, depth, block_bytes, span_bytes, sequential: false, read_percent: 100 }
    }

    #[test]
    fn every_profile_meets_its_calibration_rows() {
        let mut wrong = Vec::new();
        for profile in PROFILES {
            for row in profile.rows {
                let run_ns = steady_run_ns(profile, &row.workload, row.bytes_per_s);
                let got = run(profile, &row.workload, 0, run_ns).bytes_per_s;
                let error = got / row.bytes_per_s - 1.0;
                let Workload { jobs, depth, block_bytes, read_percent, .. } = row.workload;
                let line = format!(
                    "{:10} {:3} KiB {read_percent:3} % reads {jobs:2}x{depth:2}: {:8.2} MB/s, \
                 model {:8.2} ({:+.1} %)",
                    profile.name,
                    block_bytes / KIB,
                    row.bytes_per_s / 1e6,
                    got / 1e6,
                    error * 100.0,
                );
                println!("{line}");
                if error.abs() > row.tolerance {
                    wrong.push(line);
                }
            }
        }
        assert!(wrong.is_empty(), "outside their tolerance:\n{}", wrong.join("\n"));
    }

    #[test]
    fn the_same_run_twice_is_the_same_to_the_nanosecond() {
        for profile in PROFILES {
            let load = Workload { read_percent: 60, ..random_reads(32) };
            assert_eq!(measure(profile, &load, 0), measure(profile, &load, 0));
        }
    }

    #[test]
    fn more_outstanding_requests_never_make_the_mean_latency_shorter() {
        for profile in PROFILES {
            let latencies = [1, 4, 16, 64, 256]
                .map(|depth| measure(profile, &random_reads(depth), 0).mean_latency_ns);
            println!("{}: {latencies:.0?} ns", profile.name);
            for pair in latencies.windows(2) {
                assert!(pair[0] <= pair[1] * 1.01, "{}: {latencies:?}", profile.name);
            }
        }
    }

    #[test]
    fn a_full_queue_gains_throughput_on_a_disk_but_less_than_its_depth() {
        let disk = Profile::find("hdd-7200").unwrap();
        let [alone, full] =
            [1, 256].map(|depth| measure(disk, &random_reads(depth), 0).bytes_per_s);
        assert!(full > 1.3 * alone && full < 4.0 * alone, "{alone} {full}");
    }

    #[test]
    fn streams_far_apart_stay_near_the_sequential_rate_of_a_disk() {
        let disk = Profile::find("hdd-7200").unwrap();
        for (depth, read_percent, least) in [(16, 100, 0.6), (16, 0, 0.6), (1, 100, 0.35)] {
            let load = Workload {
                jobs: 4,
                depth,
                block_bytes: 256 * KIB,
                sequential: true,
                read_percent,
                ..random_reads(1)
            };
            let (together, apart) = (measure(disk, &load, 0), measure(disk, &load, 20 * GIB));
            let share = apart.bytes_per_s / together.bytes_per_s;
            println!(
                "4 streams of depth {depth}, {read_percent} % reads: {share:.2} of one region"
            );
            assert!(share > least, "{share}");
        }
    }

    #[test]
    fn one_stream_of_single_reads_is_carried_by_the_read_ahead_of_a_disk() {
        let disk = Profile::find("hdd-7200").unwrap();
        let load = Workload { block_bytes: 64 * KIB, sequential: true, ..random_reads(1) };
        assert!(measure(disk, &load, 0).bytes_per_s > 80e6);
    }

    #[test]
    fn a_flush_of_a_disk_waits_for_the_writes_before_it() {
        let disk = Profile::find("hdd-7200").unwrap();
        let mut model = disk.model(disk.bytes);
        let mut prng = Prng::new(3);
        for _ in 0..8 {
            let range = SectorRange::new(Lba(prng.below(100 * GIB / SECTOR_BYTES)), 8);
            assert!(matches!(model.submit(0, ModelOp::Write, range), Completion::At(_)));
        }
        let Completion::Queued(flush) = model.submit(0, ModelOp::Flush, SectorRange::default())
        else {
            panic!("eight cached writes take time");
        };
        let mut answered = None;
        while answered.is_none() {
            let at = model.next_dispatch().expect("the flush waits for something");
            model.advance(at);
            answered = model.resolved().into_iter().find(|(ticket, _)| *ticket == flush);
        }
        let (_, at) = answered.expect("just seen");
        assert!((8_000_000..200_000_000).contains(&at), "{at}");
        assert_eq!(model.next_dispatch(), None);
    }
}
