//! A trace, replayed on each target.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use voltier_results::result::Axes;
use voltier_trace::ReadOptions;
use voltier_trace::replay::{Fit, Replay, Survey};

use super::jobs::once;
use super::step::{Group, Planned, Subject, Work};
use super::values::{ByteSize, Extent};
use crate::LabError;

/// Requests of a quick replay.
const QUICK_REQUESTS: u64 = 2_000;

/// The plan `trace`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// Files of the trace, merged by time.
    pub files: Vec<String>,
    /// Format by name; `auto` recognises it.
    pub format: String,
    /// Only this volume; empty for all, when there is one.
    pub volume: String,
    /// Requests from the start; 0 for all.
    pub limit: u64,
    /// Broken records that are let pass, percent.
    pub max_broken: f64,
    /// Bytes of a block in formats that number blocks.
    pub block: ByteSize,
    /// So many times as fast as recorded; 0 is as fast as possible.
    pub speed: f64,
    /// Addresses beyond the target: refuse, wrap, scale.
    pub fit: Fit,
    /// Requests in flight at most.
    pub depth: u32,
    /// Writes and discards are left out.
    pub reads_only: bool,
    /// How much of each target is used.
    pub size: Extent,
    /// A modelled SSD before a modelled target, `model:PROFILE[:SIZE]`; empty for none.
    pub cache: String,
    /// Mode of that cache.
    pub mode: String,
    /// Policy of that cache.
    pub policy: String,
    /// Bytes of its lines.
    pub line: ByteSize,
}

impl Trace {
    pub(super) fn new(quick: bool) -> Trace {
        Trace {
            files: Vec::new(),
            format: "auto".to_owned(),
            volume: String::new(),
            limit: if quick { QUICK_REQUESTS } else { 0 },
            max_broken: 1.0,
            block: ByteSize(4096),
            speed: if quick { 0.0 } else { 1.0 },
            fit: Fit::Refuse,
            depth: 256,
            reads_only: false,
            size: Extent::Whole,
            cache: String::new(),
            mode: "wb".to_owned(),
            policy: "lru".to_owned(),
            line: ByteSize(4096),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if self.format != "auto" {
            self.format.parse::<voltier_trace::Format>()?;
        }
        if self.speed != 0.0 && !(1e-3..=1e6).contains(&self.speed) {
            return Err(format!("speed = {}: give a factor, or 0 for the most", self.speed));
        }
        if !(0.0..=100.0).contains(&self.max_broken) {
            return Err(format!("max_broken = {} is no percentage", self.max_broken));
        }
        if !(1..=4096).contains(&self.depth) {
            return Err(format!("depth = {}: give a number from 1 to 4096", self.depth));
        }
        super::CacheModel::of(self).map(drop)
    }

    pub(super) fn groups(&self, subjects: &[Subject]) -> Result<Vec<Group>, LabError> {
        if self.files.is_empty() {
            return Err(LabError::Plan {
                what: "trace".to_owned(),
                why: "no file is given: `voltier lab trace replay FILE --target T`, or \
                      files = [\"FILE\"] in the plan"
                    .to_owned(),
            });
        }
        let mut replay = self.replay()?;
        replay.survey()?;
        let phase = if self.cache.is_empty() { "replay" } else { "accelerated" };
        let mut groups = Vec::new();
        for subject in subjects {
            replay.check_fit(&subject.name, subject.size_bytes)?;
            let axes = Axes { phase: phase.to_owned(), depth: Some(self.depth), ..Axes::default() };
            let work = Work::Replay(Box::new(replay.clone()));
            groups.push(once(subject, vec![Planned::measured(axes, work)]));
        }
        Ok(groups)
    }

    fn replay(&self) -> Result<Replay, LabError> {
        let format = match self.format.as_str() {
            "auto" => None,
            name => Some(name.parse().map_err(|why| LabError::Plan { what: "trace".into(), why })?),
        };
        let options = ReadOptions {
            format,
            volume: (!self.volume.is_empty()).then(|| self.volume.clone()),
            limit: (self.limit > 0).then_some(self.limit),
            broken_max_percent: self.max_broken,
            block_bytes: self.block.0,
        };
        Ok(Replay {
            files: self.files.iter().map(PathBuf::from).collect(),
            options,
            speed: self.speed,
            fit: self.fit,
            depth: self.depth,
            is_reads_only: self.reads_only,
            survey: Survey::default(),
        })
    }
}
