//! Jobs that several plans have in common.

use std::time::Duration;

use voltier_results::result::{Access, Axes, Role};

use super::step::{Group, Load, Planned, Repeat, Subject, Work};
use crate::fio::{Job, Pattern, Until};

/// Bytes a request of what is written once.
const FILL_BLOCK_BYTES: u64 = 128 << 10;

/// A job for a time.
pub(super) fn timed(
    name: &str,
    pattern: Pattern,
    block_bytes: u64,
    (jobs, depth): (u32, u32),
    (size_bytes, time): (u64, Duration),
) -> Job {
    Job {
        name: name.to_owned(),
        pattern,
        block_bytes,
        iodepth: depth,
        numjobs: jobs,
        size_bytes,
        until: Until::Time(time),
        more: Vec::new(),
    }
}

/// The target written from its start to its end.
pub(super) fn fill(size_bytes: u64) -> Job {
    Job {
        name: "fill".to_owned(),
        pattern: Pattern::Write,
        block_bytes: FILL_BLOCK_BYTES,
        iodepth: 32,
        numjobs: 1,
        size_bytes,
        until: Until::Once,
        more: random_data(),
    }
}

/// Data that no drive can shorten.
pub(super) fn random_data() -> Vec<(&'static str, String)> {
    vec![("refill_buffers", "1".to_owned())]
}

/// A place that says what a job does.
pub(super) fn axes_of(phase: &str, job: &Job) -> Axes {
    let random = job.pattern.is_random();
    Axes {
        phase: phase.to_owned(),
        access: Some(if random { Access::Random } else { Access::Sequential }),
        read_percent: Some(job.pattern.read_percent()),
        // Of several sizes none is said.
        block_bytes: (!job.is_split()).then_some(job.block_bytes),
        depth: Some(job.iodepth),
        jobs: Some(job.numjobs),
        ..Axes::default()
    }
}

/// A point of one job.
pub(super) fn point(phase: &str, job: Job) -> Planned {
    Planned::measured(axes_of(phase, &job), Work::Load(Load::of(job)))
}

/// A group that is measured once.
pub(super) fn once(subject: &Subject, points: Vec<Planned>) -> Group {
    Group { target: subject.name.clone(), test: None, repeat: Repeat::Once, points }
}

/// The target written once: what reads would otherwise read what was never written.
pub(super) fn fill_group(subject: &Subject, phase: &str) -> Group {
    let axes = Axes { phase: phase.to_owned(), ..Axes::default() };
    let work = Work::Load(Load::of(fill(subject.size_bytes)));
    once(subject, vec![Planned { axes, role: Role::Fill, work }])
}
