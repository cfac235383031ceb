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
use voltier_ring::{Executor, Handle, NoFiles, join_all};

use super::merge;
use super::target::{Kind, Target};
use crate::LabError;
use crate::fio::{Job, Pattern, Until};
use crate::plan::step::{Load, Work};
use crate::result::{Flow, Histogram, Latency, Point, Sample};

/// Samples of a point's time line, about.
const SAMPLES: u64 = 60;

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
                let sample = load.sample.unwrap_or(tally.window / SAMPLES as u32);
                point.series = tally.series(sample);
                world.seed += 1;
                tally.fill_in(load, point);
                Ok(())
            }
            Work::Bursts { load, count, idle } => {
                let (mut reads, mut writes) = (Vec::new(), Vec::new());
                for _ in 0..*count {
                    let tally = world.run(load);
                    let mut burst = Point::default();
                    tally.fill_in(load, &mut burst);
                    point.series.extend(tally.series(tally.window));
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
            Work::Cache { .. } | Work::Files(_) | Work::Database(_) | Work::Clients(_) => {
                Err(LabError::Failed {
                    what: "a modelled drive".to_owned(),
                    detail: "this plan needs a real target, not one in virtual time".to_owned(),
                })
            }
        }
    }
}

/// One answered request.
#[derive(Clone, Copy)]
struct Answer {
    job: usize,
    is_read: bool,
    at: Nanos,
    took: Nanos,
    bytes: u64,
}

/// What a load came to.
struct Tally {
    answers: Vec<Answer>,
    begin: Nanos,
    window: Duration,
}

/// What the tasks of one job share.
struct Stream {
    index: usize,
    pattern: Pattern,
    blocks: u64,
    block_bytes: u64,
    first: u64,
    next: u64,
    left: Option<u64>,
    prng: Prng,
}

impl World {
    fn rest(&mut self, time: Duration) {
        let handle = self.executor.handle();
        self.executor.block_on(async move { handle.sleep(time.as_nanos() as Nanos).await });
    }

    /// Runs the jobs of a load at the same time, to their end.
    fn run(&mut self, load: &Load) -> Tally {
        let begin = self.executor.handle().now();
        let answers = Rc::new(RefCell::new(Vec::new()));
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
                    tasks.push(request_after_request(
                        handle,
                        drive,
                        stream.clone(),
                        answers.clone(),
                        end,
                    ));
                }
            }
        }
        let finished = self.executor.block_on(async move {
            join_all(tasks).await;
        });
        let () = finished;
        let answers = answers.take();
        let last = answers.iter().map(|answer| answer.at).max().unwrap_or(begin);
        let window = match load.jobs.first().map(|job| job.until) {
            Some(Until::Time(time)) => time,
            _ => Duration::from_nanos(last - begin),
        };
        Tally { answers, begin, window }
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
        }
    }

    /// The next request; `None` when all have been made.
    fn take(&mut self) -> Option<(ModelOp, SectorRange)> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1)?;
        }
        let block = match self.pattern.is_random() {
            true => self.prng.below(self.blocks),
            false => self.next % self.blocks,
        };
        self.next += 1;
        let is_read = self.prng.below(100) < u64::from(self.pattern.read_percent());
        let sectors = (self.block_bytes / SECTOR_BYTES).max(1);
        let lba = (self.first + block * self.block_bytes) / SECTOR_BYTES;
        let op = if is_read { ModelOp::Read } else { ModelOp::Write };
        Some((op, SectorRange::new(Lba(lba), sectors)))
    }
}

async fn request_after_request(
    handle: Handle,
    drive: Rc<Clockwork>,
    stream: Rc<RefCell<Stream>>,
    answers: Rc<RefCell<Vec<Answer>>>,
    end: Nanos,
) {
    while handle.now() < end {
        let Some((op, range)) = stream.borrow_mut().take() else { return };
        let sent = handle.now();
        drive.arrive(op, range).await;
        let at = handle.now();
        let (job, bytes) = (stream.borrow().index, range.bytes());
        if at <= end {
            let is_read = matches!(op, ModelOp::Read);
            answers.borrow_mut().push(Answer { job, is_read, at, took: at - sent, bytes });
        }
    }
}

impl Tally {
    fn flow(&self, of: impl Fn(&Answer) -> bool) -> Option<Flow> {
        let took: Vec<&Answer> = self.answers.iter().filter(|answer| of(answer)).collect();
        if took.is_empty() {
            return None;
        }
        let mut histogram = Histogram::default();
        took.iter().for_each(|answer| histogram.record(answer.took));
        let (requests, seconds) = (took.len() as u64, self.window.as_secs_f64());
        let bytes: u64 = took.iter().map(|answer| answer.bytes).sum();
        let mean_ns = took.iter().map(|answer| answer.took as f64).sum::<f64>() / requests as f64;
        let squares: f64 = took.iter().map(|a| (a.took as f64 - mean_ns).powi(2)).sum();
        Some(Flow {
            requests,
            bytes,
            runtime_ns: self.window.as_nanos() as u64,
            iops: requests as f64 / seconds,
            bytes_per_second: bytes as f64 / seconds,
            latency: Latency {
                min_ns: took.iter().map(|answer| answer.took).min().unwrap_or(0),
                max_ns: took.iter().map(|answer| answer.took).max().unwrap_or(0),
                mean_ns,
                stddev_ns: (squares / requests as f64).sqrt(),
                percentiles_ns: merge::percentiles(&histogram),
            },
            histogram: Some(histogram),
        })
    }

    fn fill_in(&self, load: &Load, point: &mut Point) {
        point.read = self.flow(|answer| answer.is_read);
        point.write = self.flow(|answer| !answer.is_read);
        if point.axes.small.is_some() {
            for (index, job) in load.jobs.iter().enumerate() {
                let flow = self.flow(|answer| answer.job == index);
                super::load::add_orion(point, &job.name, &flow.unwrap_or_default());
            }
        }
    }

    fn series(&self, window: Duration) -> Vec<Sample> {
        let window_ns = (window.as_nanos() as u64).max(1);
        let count = (self.window.as_nanos() as u64 / window_ns).clamp(1, 4096) as usize;
        let mut sums = vec![(0_u64, 0_u64, 0_u64); count];
        for answer in &self.answers {
            let index = ((answer.at - self.begin) / window_ns) as usize;
            let sum = &mut sums[index.min(count - 1)];
            *sum = (sum.0 + 1, sum.1 + answer.bytes, sum.2 + answer.took);
        }
        let seconds = window_ns as f64 / 1e9;
        let sample = |(index, (requests, bytes, took)): (usize, (u64, u64, u64))| Sample {
            at_ms: (index as u64 + 1) * window_ns / 1_000_000,
            iops: requests as f64 / seconds,
            bytes_per_second: bytes as f64 / seconds,
            latency_mean_ns: took as f64 / requests.max(1) as f64,
        };
        sums.into_iter().enumerate().map(sample).collect()
    }
}
