//! Any sweep: order, block size, share of reads, jobs and depth, 50/50 among them.

use serde::{Deserialize, Serialize};
use voltier_results::result::Access;

use super::jobs::{fill_group, once, point, random_data, timed};
use super::step::{Group, Planned, Subject};
use super::values::{ByteSize, Extent, check, not_empty, time};
use crate::fio::Pattern;

/// The plan `mixed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mixed {
    /// Seconds of each point.
    pub seconds: f64,
    /// How much of each target is used.
    pub size: Extent,
    /// Whether each target is written once before.
    pub fill: bool,
    /// How often the whole is repeated.
    pub repeats: u32,
    /// Orders of addresses: `random`, `sequential`.
    pub access: Vec<Access>,
    /// Bytes of a request.
    pub block_sizes: Vec<ByteSize>,
    /// Shares of reads, percent of requests.
    pub reads: Vec<u8>,
    /// Parallel jobs.
    pub jobs: Vec<u32>,
    /// Requests in flight of each job.
    pub depths: Vec<u32>,
}

impl Mixed {
    pub(super) fn new(quick: bool) -> Mixed {
        let depths: &[u32] = if quick { &[1, 4, 16] } else { &[1, 2, 4, 8, 16, 32, 64, 128, 256] };
        Mixed {
            seconds: if quick { 0.5 } else { 30.0 },
            size: if quick { Extent::Bytes(64 << 20) } else { Extent::Whole },
            fill: true,
            repeats: if quick { 1 } else { 3 },
            access: vec![Access::Random],
            block_sizes: vec![ByteSize(4096)],
            reads: vec![100, 70, 50, 30, 0],
            jobs: vec![1],
            depths: depths.to_vec(),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        check(self.seconds, &self.block_sizes)?;
        not_empty("access", &self.access)?;
        not_empty("block_sizes", &self.block_sizes)?;
        not_empty("reads", &self.reads)?;
        super::values::counts("jobs", &self.jobs)?;
        super::values::counts("depths", &self.depths)?;
        super::values::counts("repeats", &[self.repeats])?;
        super::values::percentages("reads", &self.reads)
    }

    pub(super) fn groups(&self, subjects: &[Subject]) -> Vec<Group> {
        let mut groups = Vec::new();
        for subject in subjects.iter().filter(|subject| self.fill || subject.is_new) {
            groups.push(fill_group(subject, "fill"));
        }
        for repeat in 1..=self.repeats {
            for subject in subjects {
                let mut points = self.points(subject.size_bytes);
                for point in &mut points {
                    point.axes.pass = (self.repeats > 1).then_some(repeat);
                }
                groups.push(once(subject, points));
            }
        }
        groups
    }

    fn points(&self, size_bytes: u64) -> Vec<Planned> {
        let mut points = Vec::new();
        for access in &self.access {
            for block in &self.block_sizes {
                for read in &self.reads {
                    for jobs in &self.jobs {
                        for depth in &self.depths {
                            let pattern = Pattern::of(*access == Access::Random, *read);
                            let part = (size_bytes, time(self.seconds));
                            let mut job = timed("mixed", pattern, block.0, (*jobs, *depth), part);
                            job.more = random_data();
                            points.push(point("mixed", job));
                        }
                    }
                }
            }
        }
        points
    }
}
