//! The steps of a plan: groups of points, in the order in which they are measured.

use std::time::Duration;

use voltier_results::result::{Axes, Role, Test, Variable};
use voltier_trace::replay::Replay;

use crate::fio::{Job, Until};

/// The assumed rate of writing a target once, when a time is estimated.
const FILL_BYTES_PER_SECOND: f64 = 200e6;

/// A trace that is replayed as fast as possible is assumed to take so many requests a second.
const REPLAY_RATE: f64 = 20e3;

/// The time that starting and ending a program takes.
const START: Duration = Duration::from_millis(400);

/// A thing to be measured, as a plan needs to know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Name of the target.
    pub name: String,
    /// Bytes of it that the plan may touch.
    pub size_bytes: u64,
    /// The target holds nothing: a job that only reads must write the target once before.
    pub is_new: bool,
    /// A volume whose cache can be switched off and on.
    pub has_cache: bool,
    /// A folder: files in it are used, not its blocks.
    pub is_folder: bool,
    /// Drives or files it is made of; 0 counts as 1.
    pub luns: u32,
    /// Smallest request it takes; 0 where there is none.
    pub block_bytes: u64,
}

/// Points that belong together: measured once, or in rounds until they are steady.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Name of the target.
    pub target: String,
    /// The test of the standard that the points belong to.
    pub test: Option<Test>,
    /// How often.
    pub repeat: Repeat,
    /// The points of one round, in order.
    pub points: Vec<Planned>,
}

/// How often a group is measured.
#[derive(Clone, Debug, PartialEq)]
pub enum Repeat {
    /// Once.
    Once,
    /// In rounds, until the last five of every tracked value are steady.
    UntilSteady {
        /// Name of the rounds, unique among those of the target.
        name: String,
        /// Rounds at most.
        rounds_max: u32,
        /// The figures that must be steady.
        tracked: Vec<Tracked>,
        /// The rounds end as well when the group has written so many bytes.
        bytes_max: Option<u64>,
    },
}

/// A value whose rounds decide whether a group is steady.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracked {
    /// Index of the point in its group.
    pub point: usize,
    /// The figure of this point.
    pub variable: Variable,
}

/// A point to be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The place of the point in the plan; the round is filled in when it is measured.
    pub axes: Axes,
    /// The role of the point: what it is for.
    pub role: Role,
    /// The work of the point.
    pub work: Work,
}

/// The work of a point.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// The target forgets what it holds: discarded, or zeroed where that is not possible.
    Purge,
    /// Requests on the target.
    Load(Load),
    /// A load again and again with pauses between: the series has one sample a burst.
    Bursts {
        /// The load of one burst.
        load: Load,
        /// How many.
        count: u32,
        /// Pause after each.
        idle: Duration,
    },
    /// The cache of the volume is switched: off is pass-through, on its mode of before.
    Cache {
        /// Whether the setting is to be on.
        on: bool,
    },
    /// One pass over files in a folder.
    Files(FilePass),
    /// One step of a database.
    Database(DatabaseStep),
    /// Several clients at once, each with this job on its own part of the target.
    Clients(Job),
    /// A trace.
    Replay(Box<Replay>),
}

/// Jobs that run at the same time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    /// The jobs; of an Orion point the small one before the large one.
    pub jobs: Vec<Job>,
    /// Runs before and is not measured.
    pub warm_up: Option<Job>,
    /// Depth and number of jobs are those of an earlier point.
    pub pick: Option<Choice>,
    /// Length of a sample of the time line; none is kept without it.
    pub sample: Option<Duration>,
}

/// The choice of a load from a demand curve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name of the rounds of the curve, as in [`Repeat::UntilSteady`].
    pub curve: String,
    /// The point of the last of these rounds.
    pub pick: Pick,
}

/// A point of a demand curve: mean latency below 5 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// The most requests per second.
    Most,
    /// The nearest to the middle of most and least.
    Middle,
    /// One job, one request in flight.
    Least,
}

/// One pass over files in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePass {
    /// How many files.
    pub files: u32,
    /// Bytes of each.
    pub file_bytes: u64,
    /// Written, not read.
    pub is_write: bool,
    /// Seed of a fresh permutation; in order without it.
    pub shuffle: Option<u64>,
}

/// One step of a database on a file system on the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseStep {
    /// File system and database are made and filled.
    Make,
    /// One run of the benchmark.
    Run,
    /// Server and file system are put away.
    Remove,
}

impl Load {
    /// One job.
    pub fn of(job: Job) -> Load {
        Load { jobs: vec![job], ..Load::default() }
    }

    /// How long it takes.
    pub fn time(&self) -> Duration {
        let measured = self.jobs.iter().map(time_of).max().unwrap_or_default();
        measured + self.warm_up.as_ref().map_or(Duration::ZERO, |job| time_of(job) + START)
    }
}

fn time_of(job: &Job) -> Duration {
    match job.until {
        Until::Time(time) => time,
        Until::Once => {
            let bytes = job.size_bytes as f64 * f64::from(job.numjobs);
            Duration::from_secs_f64(bytes / FILL_BYTES_PER_SECOND)
        }
    }
}

impl Planned {
    /// A point that has a figure.
    pub fn measured(axes: Axes, work: Work) -> Planned {
        Planned { axes, role: Role::Measured, work }
    }

    /// The name of the point, unique in the run: `hdd/iops/round=3/bs=4096/read=65`.
    pub fn id(&self) -> String {
        id(&self.axes)
    }

    /// How long it takes, about.
    pub fn time(&self) -> Duration {
        START
            + match &self.work {
                Work::Purge => Duration::from_secs(1),
                Work::Cache { .. } => Duration::ZERO,
                Work::Load(load) => load.time(),
                Work::Bursts { load, count, idle } => (load.time() + START + *idle) * *count,
                Work::Files(pass) => {
                    let bytes = f64::from(pass.files) * pass.file_bytes as f64;
                    Duration::from_secs_f64(bytes / FILL_BYTES_PER_SECOND)
                }
                Work::Database(DatabaseStep::Make) => Duration::from_secs(15),
                Work::Database(_) => Duration::from_secs(2),
                Work::Clients(job) => time_of(job) + START,
                Work::Replay(replay) if replay.speed > 0.0 => {
                    Duration::from_nanos(replay.span_ns())
                }
                Work::Replay(replay) => {
                    Duration::from_secs_f64(replay.survey.requests as f64 / REPLAY_RATE)
                }
            }
    }

    /// Whether the step changes the target.
    pub fn writes(&self) -> bool {
        match &self.work {
            Work::Purge | Work::Database(_) => true,
            Work::Cache { .. } => false,
            Work::Load(load) | Work::Bursts { load, .. } => {
                load.jobs.iter().chain(&load.warm_up).any(Job::writes)
            }
            Work::Files(pass) => pass.is_write,
            Work::Clients(job) => job.writes(),
            Work::Replay(replay) => replay.survey.changing > 0,
        }
    }

    /// Bytes that it writes for sure: those of jobs that write once, and of a trace.
    pub fn bytes_written(&self) -> u64 {
        let of = |job: &Job| match job.until {
            Until::Once if job.writes() => job.size_bytes * u64::from(job.numjobs),
            _ => 0,
        };
        match &self.work {
            Work::Load(load) => load.jobs.iter().map(of).sum(),
            Work::Files(FilePass { files, file_bytes, is_write: true, .. }) => {
                u64::from(*files) * file_bytes
            }
            Work::Replay(replay) => replay.survey.written_bytes,
            _ => 0,
        }
    }
}

impl Group {
    /// Rounds at least and at most.
    pub fn rounds(&self) -> (u32, u32) {
        match self.repeat {
            Repeat::Once => (1, 1),
            Repeat::UntilSteady { rounds_max, .. } => (rounds_max.min(5), rounds_max),
        }
    }

    /// The name of the group's rounds, unique in the run; `None` of a group that is measured once.
    pub fn rounds_name(&self) -> Option<String> {
        match &self.repeat {
            Repeat::Once => None,
            Repeat::UntilSteady { name, .. } => Some(rounds_name(&self.target, name)),
        }
    }

    /// The points of a round, from 1, with their places filled in.
    pub fn round(&self, round: u32) -> Vec<Planned> {
        let mut points = self.points.clone();
        for point in &mut points {
            point.axes.target.clone_from(&self.target);
            if matches!(self.repeat, Repeat::UntilSteady { .. }) {
                point.axes.round = Some(round);
            }
        }
        points
    }
}

/// The name of rounds of a target, unique in the run.
pub fn rounds_name(target: &str, name: &str) -> String {
    format!("{target}/{name}")
}

/// The time and the writes that a plan takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Points at least (steady at once).
    pub points_min: u64,
    /// Points at most.
    pub points_max: u64,
    /// Time at least.
    pub time_min: Duration,
    /// Time at most.
    pub time_max: Duration,
    /// Bytes that are written once, for sure.
    pub bytes_written: u64,
    /// Seconds of writing at whatever rate the targets take it, at most.
    pub writing_max: Duration,
}

/// The estimate of all groups together.
pub fn estimate(groups: &[Group]) -> Estimate {
    let mut sum = Estimate::default();
    for group in groups {
        let (least, most) = group.rounds();
        let time: Duration = group.points.iter().map(Planned::time).sum();
        sum.points_min += u64::from(least) * group.points.len() as u64;
        sum.points_max += u64::from(most) * group.points.len() as u64;
        sum.time_min += time * least;
        sum.time_max += time * most;
        for point in &group.points {
            let once = point.bytes_written();
            sum.bytes_written += once * u64::from(most);
            if once == 0 && point.writes() && !matches!(point.work, Work::Purge) {
                sum.writing_max += point.time() * most;
            }
        }
    }
    sum
}

/// The name of a place in a plan.
pub fn id(axes: &Axes) -> String {
    let mut parts = vec![axes.target.clone(), axes.phase.clone()];
    let mut add = |key: &str, value: Option<u64>| {
        if let Some(value) = value {
            parts.push(format!("{key}={value}"));
        }
    };
    add("round", axes.round.map(u64::from));
    add("pass", axes.pass.map(u64::from));
    add("seq", (axes.access == Some(voltier_results::result::Access::Sequential)).then_some(1));
    add("read", axes.read_percent.map(u64::from));
    add("bs", axes.block_bytes);
    add("clients", axes.clients.map(u64::from));
    add("jobs", axes.jobs.map(u64::from));
    add("depth", axes.depth.map(u64::from));
    add("small", axes.small.map(u64::from));
    add("large", axes.large.map(u64::from));
    add("idle", axes.idle_s.map(u64::from));
    add("cache", axes.cache_bytes);
    parts.retain(|part| !part.is_empty());
    parts.join("/")
}
