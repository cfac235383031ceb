//! Modelled drives in virtual time: the same plan, the same points, no fio and no machine.
//!
//! Every target has a world of its own with one drive, whose state lasts from point to point. A job
//! is a closed loop: as many tasks as requests in flight, each sending its next request when the
//! last one is answered.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use voltier_block::{Lba, Nanos, Prng, SECTOR_BYTES, SectorRange};
use voltier_drive::model::{Clockwork, ModelOp};
use voltier_results::result::{Flow, Histogram, Latency, Part, Point, Sample};
use voltier_ring::{Executor, Handle, NoFiles, join_all};

use super::merge;
use super::target::{Kind, Target};
use crate::LabError;
use crate::fio::{Job, Pattern, Until};
use crate::plan::step::{Load, Work};

/// Samples of a point's time line, about.
const SAMPLES: u32 = 60;

/// One world for each modelled target.
pub(super) struct Worlds(Vec<Option<World>>);

struct World {
    executor: Executor,
    drive: Rc<Clockwork>,
    seed: u64,
}

impl Worlds {
    /// Idle drives for the targets that are modelled.
    pub(super) fn new(targets: &[Target]) -> Worlds {
        let world = |target: &Target| {
            let Kind::Model(profile) = target.kind else { return None };
            let executor = Executor::in_virtual_time(NoFiles);
            let bytes = target.size_bytes.max(profile.bytes);
            let drive = Clockwork::new(executor.handle(), profile, bytes);
            Some(World { executor, drive, seed: 1 })
        };
        Worlds(targets.iter().map(world).collect())
    }

    /// Does the work of a point on the drive of a target.
    ///
    /// # Errors
    /// When the work needs more than a drive: files, a database, clients.
    pub(super) fn measure(
        &mut self,
        target: usize,
        work: &Work,
        point: &mut Point,
    ) -> Result<(), LabError> {
        let world = self.0[target].as_mut().expect("asked for modelled targets only");
        match work {
            Work::Purge => Ok(()),
            Work::Load(load) => {
                if let Some(job) = &load.warm_up {
                    world.run(&Load::of(job.clone()));
                }
                let tally = world.run(load);
                point.series = tally.series();
                world.seed += 1;
                tally.fill_in(load, point);
                Ok(())
            }
            Work::Bursts { load, count, idle } => {
                let (mut reads, mut writes) = (Vec::new(), Vec::new());
                let whole = Load { sample: Some(load.time()), ..load.clone() };
                for _ in 0..*count {
                    let tally = world.run(&whole);
                    let mut burst = Point::default();
                    tally.fill_in(load, &mut burst);
                    point.series.extend(tally.series());
                    reads.extend(burst.read);
                    writes.extend(burst.write);
                    world.rest(*idle);
                }
                let step = load.time() + *idle;
                for (index, sample) in point.series.iter_mut().enumerate() {
                    sample.at_ms = ((index as u64 + 1) * step.as_millis() as u64).max(1);
                }
                (point.read, point.write) = (merge::in_turn(&reads), merge::in_turn(&writes));
                Ok(())
            }
            Work::Cache { .. }
            | Work::Files(_)
            | Work::Database(_)
            | Work::Clients(_)
            | Work::Replay(_) => Err(LabError::Failed {
                what: "a modelled drive".to_owned(),
                detail: "this plan needs a real target, not one in virtual time".to_owned(),
            }),
        }
    }
}

/// Requests of one job in one direction: sums only, however many there are.
#[derive(Clone, Default)]
pub(super) struct Sums {
    requests: u64,
    bytes: u64,
    total_ns: f64,
    squares: f64,
    max_ns: u64,
    histogram: Histogram,
}

/// The sums of a load.
struct Tally {
    /// Reads and writes of each job.
    jobs: Vec<[Sums; 2]>,
    /// Requests, bytes and sum of latencies of each sample of the time line.
    samples: Vec<(u64, u64, u64)>,
    begin: Nanos,
    sample_ns: u64,
    window: Duration,
}

/// The state that the tasks of one job share.
struct Stream {
    index: usize,
    pattern: Pattern,
    blocks: u64,
    block_bytes: u64,
    first: u64,
    next: u64,
    left: Option<u64>,
    prng: Prng,
    mix: Mix,
}

/// Requests of several sizes, and places that are hotter than others, by fio's options for them.
#[derive(Default)]
struct Mix {
    /// Bytes, and the share in percent.
    sizes: Vec<(u64, u64)>,
    /// Share of the requests, and of the addresses from the first on, in percent.
    zones: Vec<(u64, u64)>,
}

impl World {
    fn rest(&mut self, time: Duration) {
        let handle = self.executor.handle();
        self.executor.block_on(async move { handle.sleep(time.as_nanos() as Nanos).await });
    }

    /// Runs the jobs of a load at the same time, to their end.
    fn run(&mut self, load: &Load) -> Tally {
        let begin = self.executor.handle().now();
        let tally = Rc::new(RefCell::new(Tally::of(load, begin)));
        let mut tasks = Vec::new();
        for (index, job) in load.jobs.iter().enumerate() {
            let end = match job.until {
                Until::Time(time) => begin + time.as_nanos() as Nanos,
                Until::Once => Nanos::MAX,
            };
            for number in 0..job.numjobs {
                let stream = Rc::new(RefCell::new(Stream::of(job, index, number, self.seed)));
                for _ in 0..job.iodepth {
                    let (handle, drive) = (self.executor.handle(), self.drive.clone());
                    let (stream, tally) = (stream.clone(), tally.clone());
                    tasks.push(request_after_request(handle, drive, stream, tally, end));
                }
            }
        }
        self.executor.block_on(async move {
            join_all(tasks).await;
        });
        let now = self.executor.handle().now();
        let mut tally = tally.replace(Tally::of(&Load::default(), now));
        if tally.window.is_zero() {
            tally.window = Duration::from_nanos(now - begin);
        }
        tally
    }
}

impl Stream {
    fn of(job: &Job, index: usize, number: u32, seed: u64) -> Stream {
        let apart = job.more.iter().find(|(key, _)| *key == "offset_increment");
        let apart = apart.and_then(|(_, value)| value.parse::<u64>().ok()).unwrap_or(0);
        let blocks = (job.size_bytes / job.block_bytes).max(1);
        Stream {
            index,
            pattern: job.pattern,
            blocks,
            block_bytes: job.block_bytes,
            first: apart * u64::from(number),
            next: 0,
            left: (job.until == Until::Once).then_some(blocks),
            prng: Prng::new(seed << 20 ^ (index as u64) << 12 ^ u64::from(number)),
            mix: Mix::of(job),
        }
    }

    /// The next request; `None` when all have been made.
    fn take(&mut self) -> Option<(ModelOp, SectorRange)> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1)?;
        }
        let block = match self.pattern.is_random() {
            true => self.mix.block(&mut self.prng, self.blocks),
            false => self.next % self.blocks,
        };
        self.next += 1;
        let is_read = self.prng.below(100) < u64::from(self.pattern.read_percent());
        let bytes = self.mix.bytes(&mut self.prng).unwrap_or(self.block_bytes);
        let last = (self.blocks * self.block_bytes).saturating_sub(bytes);
        let sectors = (bytes / SECTOR_BYTES).max(1);
        let lba = (self.first + (block * self.block_bytes).min(last)) / SECTOR_BYTES;
        let op = if is_read { ModelOp::Read } else { ModelOp::Write };
        Some((op, SectorRange::new(Lba(lba), sectors)))
    }
}

impl Mix {
    fn of(job: &Job) -> Mix {
        let pairs = |name: &str| {
            let value = job.more.iter().find(|(key, _)| *key == name).map(|(_, value)| value);
            let value = value.map_or("", |value| value.trim_start_matches("zoned:"));
            let pair = |text: &str| {
                let (one, other) = text.split_once('/')?;
                Some((one.parse().ok()?, other.parse().ok()?))
            };
            value.split(':').filter_map(pair).collect()
        };
        Mix { sizes: pairs("bssplit"), zones: pairs("random_distribution") }
    }

    /// Bytes of the next request; `None` where all have the same.
    fn bytes(&self, prng: &mut Prng) -> Option<u64> {
        let (last, _) = self.sizes.last()?;
        let mut left = prng.below(100);
        for (bytes, share) in &self.sizes {
            match left.checked_sub(*share) {
                None => return Some(*bytes),
                Some(rest) => left = rest,
            }
        }
        Some(*last)
    }

    /// One of so many blocks.
    fn block(&self, prng: &mut Prng, blocks: u64) -> u64 {
        if self.zones.is_empty() {
            return prng.below(blocks);
        }
        let (mut left, mut before) = (prng.below(100), 0);
        for (share, part) in &self.zones {
            let (from, to) = (blocks * before / 100, blocks * (before + part) / 100);
            match left.checked_sub(*share) {
                None => return (from + prng.below((to - from).max(1))).min(blocks - 1),
                Some(rest) => (left, before) = (rest, before + part),
            }
        }
        prng.below(blocks)
    }
}

async fn request_after_request(
    handle: Handle,
    drive: Rc<Clockwork>,
    stream: Rc<RefCell<Stream>>,
    tally: Rc<RefCell<Tally>>,
    end: Nanos,
) {
    while handle.now() < end {
        let Some((op, range)) = stream.borrow_mut().take() else { return };
        let sent = handle.now();
        drive.arrive(op, range).await;
        let at = handle.now();
        if at <= end {
            let job = stream.borrow().index;
            let is_write = !matches!(op, ModelOp::Read);
            tally.borrow_mut().count((job, is_write), (sent, at), range.bytes());
        }
    }
}

impl Sums {
    pub(super) fn add(&mut self, took: Nanos, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
        self.total_ns += took as f64;
        self.squares += (took as f64).powi(2);
        self.max_ns = self.max_ns.max(took);
        self.histogram.record(took);
    }

    pub(super) fn flow(&self, window: Duration) -> Option<Flow> {
        if self.requests == 0 {
            return None;
        }
        let (requests, seconds) = (self.requests as f64, window.as_secs_f64());
        let mean_ns = self.total_ns / requests;
        Some(Flow {
            requests: self.requests,
            bytes: self.bytes,
            runtime_ns: window.as_nanos() as u64,
            iops: requests / seconds,
            bytes_per_second: self.bytes as f64 / seconds,
            latency: Latency {
                min_ns: self.histogram.percentile_ns(0.0).unwrap_or(0),
                max_ns: self.max_ns,
                mean_ns,
                stddev_ns: (self.squares / requests - mean_ns.powi(2)).max(0.0).sqrt(),
                percentiles_ns: merge::percentiles(&self.histogram),
            },
            histogram: Some(self.histogram.clone()),
        })
    }
}

impl Tally {
    fn of(load: &Load, begin: Nanos) -> Tally {
        let window = match load.jobs.first().map(|job| job.until) {
            Some(Until::Time(time)) => time,
            _ => Duration::ZERO,
        };
        let sample = load.sample.unwrap_or(window / SAMPLES).max(Duration::from_millis(1));
        let samples = window.as_nanos() / sample.as_nanos();
        Tally {
            jobs: vec![<[Sums; 2]>::default(); load.jobs.len()],
            samples: vec![(0, 0, 0); samples as usize],
            begin,
            sample_ns: sample.as_nanos() as u64,
            window,
        }
    }

    fn count(&mut self, (job, is_write): (usize, bool), (sent, at): (Nanos, Nanos), bytes: u64) {
        self.jobs[job][usize::from(is_write)].add(at - sent, bytes);
        let last = self.samples.len().saturating_sub(1);
        let index = ((at - self.begin).saturating_sub(1) / self.sample_ns) as usize;
        if let Some(sample) = self.samples.get_mut(index.min(last)) {
            *sample = (sample.0 + 1, sample.1 + bytes, sample.2 + (at - sent));
        }
    }

    fn fill_in(&self, load: &Load, point: &mut Point) {
        let flows = |direction: usize| {
            self.jobs.iter().filter_map(move |job| job[direction].flow(self.window))
        };
        (point.read, point.write) = (together(flows(0)), together(flows(1)));
        if point.axes.small.is_some() {
            for (job, sums) in load.jobs.iter().zip(&self.jobs) {
                let all = sums.iter().filter_map(|sums| sums.flow(self.window));
                super::load::add_orion(point, &job.name, &together(all).unwrap_or_default());
                if load.jobs.len() > 1 {
                    let [read, write] = [&sums[0], &sums[1]].map(|sums| sums.flow(self.window));
                    point.parts.push(Part { name: job.name.clone(), read, write });
                }
            }
        }
    }

    fn series(&self) -> Vec<Sample> {
        let seconds = self.sample_ns as f64 / 1e9;
        let sample = |(index, (requests, bytes, took)): (usize, &(u64, u64, u64))| {
            let at_ms = (index as u64 + 1) * self.sample_ns / 1_000_000;
            Sample::of(at_ms, seconds, (*requests, *bytes, *took as f64))
        };
        self.samples.iter().enumerate().map(sample).collect()
    }
}

fn together(flows: impl Iterator<Item = Flow>) -> Option<Flow> {
    merge::together(&flows.collect::<Vec<Flow>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_has_the_shares_that_its_options_say() {
        let more = vec![
            ("bssplit", "512/10:4096/90".to_owned()),
            ("random_distribution", "zoned:50/5:30/15:20/80".to_owned()),
        ];
        let job = Job {
            name: "mix".to_owned(),
            pattern: Pattern::RandRw(40),
            block_bytes: 4096,
            iodepth: 1,
            numjobs: 1,
            size_bytes: 4_096_000,
            until: Until::Time(Duration::from_secs(1)),
            more,
        };
        let mut stream = Stream::of(&job, 0, 0, 1);
        let (mut small, mut hot, mut warm) = (0, 0, 0);
        for _ in 0..10_000 {
            let (_, range) = stream.take().unwrap();
            assert!(range.end().bytes() <= 4_096_000);
            let block = range.start.bytes() / 4096;
            small += u32::from(range.bytes() == 512);
            hot += u32::from(block < 50);
            warm += u32::from((50..200).contains(&block));
        }
        let near = |count: u32, share: u32| count.abs_diff(share * 100) < 200;
        assert!(near(small, 10) && near(hot, 50) && near(warm, 30), "{small} {hot} {warm}");
    }
}
