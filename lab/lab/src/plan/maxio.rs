//! The five jobs of the MaxIO document: exact parameters, any number of targets.

use serde::{Deserialize, Serialize};

use super::jobs::{fill_group, once, point, timed};
use super::maxio_jobs::{JOBS, NUMJOBS};
use super::step::{Group, Subject};
use super::values::{Extent, check, not_empty, time};

/// The plan `maxio`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Maxio {
    /// Seconds of each job; the document has 600.
    pub seconds: f64,
    /// How much of each target is used; the document has 100 GB.
    pub size: Extent,
    /// Whether each target is written once before.
    pub fill: bool,
    /// How often the jobs are run.
    pub repeats: u32,
    /// The jobs that are run.
    pub jobs: Vec<String>,
}

impl Maxio {
    pub(super) fn new(quick: bool) -> Maxio {
        Maxio {
            seconds: if quick { 2.0 } else { 600.0 },
            size: if quick {
                Extent::Bytes(256 << 20)
            } else {
                Extent::Bytes(100_000_000_000 / 4096 * 4096)
            },
            fill: true,
            repeats: 1,
            jobs: JOBS.iter().map(|job| job.key.to_owned()).collect(),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        check(self.seconds, &[])?;
        not_empty("jobs", &self.jobs)?;
        if self.repeats == 0 {
            return Err("repeats = 0: give 1 or more".to_owned());
        }
        let known: Vec<&str> = JOBS.iter().map(|job| job.key).collect();
        super::values::known_words("jobs", &self.jobs, &known)
    }

    pub(super) fn groups(&self, subjects: &[Subject]) -> Vec<Group> {
        let mut groups = Vec::new();
        for subject in subjects.iter().filter(|_| self.fill) {
            groups.push(fill_group(subject, "fill"));
        }
        for repeat in 1..=self.repeats {
            for spec in JOBS.iter().filter(|job| self.jobs.iter().any(|name| name == job.key)) {
                for subject in subjects {
                    let shape = (NUMJOBS, spec.iodepth);
                    let block = u64::from(spec.block_bytes);
                    let part = (subject.size_bytes, time(self.seconds));
                    let mut planned =
                        point(spec.key, timed(spec.key, spec.pattern, block, shape, part));
                    planned.axes.pass = (self.repeats > 1).then_some(repeat);
                    groups.push(once(subject, vec![planned]));
                }
            }
        }
        groups
    }
}
