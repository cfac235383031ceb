//! A hot set read again and again, with the cache off and on: the learning curve.
//!
//! On a folder the set is files; on anything else it is as many extents of the same size. Each is
//! touched exactly once a pass, in order or in a fresh permutation.

use serde::{Deserialize, Serialize};
use voltier_results::result::{Access, Axes, Role};

use super::jobs::{once, random_data};
use super::step::{FilePass, Group, Load, Planned, Subject, Work};
use super::values::{ByteSize, not_empty};
use crate::fio::{Job, Pattern, Until};

/// The plan `hotfiles`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HotFiles {
    /// Files, or extents, of the hot set.
    pub files: u32,
    /// Bytes of each.
    pub file_size: ByteSize,
    /// Passes over the set.
    pub passes: u32,
    /// Orders: `sequential`, `random`.
    pub access: Vec<Access>,
    /// Whether the set is written before.
    pub fill: bool,
}

impl HotFiles {
    pub(super) fn new(quick: bool) -> HotFiles {
        HotFiles {
            files: if quick { 64 } else { 4096 },
            file_size: ByteSize(1 << 20),
            passes: if quick { 4 } else { 10 },
            access: vec![Access::Sequential, Access::Random],
            fill: true,
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        super::values::counts("files", &[self.files])?;
        super::values::counts("passes", &[self.passes])?;
        not_empty("access", &self.access)?;
        if !self.file_size.0.is_multiple_of(4096) || self.file_size.0 > 1 << 30 {
            return Err("file_size: give a multiple of 4096, 1G at most".to_owned());
        }
        Ok(())
    }

    pub(super) fn size_bytes(&self) -> u64 {
        u64::from(self.files) * self.file_size.0
    }

    pub(super) fn groups(&self, subjects: &[Subject]) -> Vec<Group> {
        let mut groups = Vec::new();
        for subject in subjects {
            if subject.has_cache {
                // Filled past the cache, which learns nothing by it.
                let axes = Axes { phase: "cache-fill".to_owned(), ..Axes::default() };
                let work = Work::Cache { on: false };
                groups.push(once(subject, vec![Planned { axes, role: Role::Step, work }]));
            }
            if self.fill || subject.is_new {
                let axes = Axes { phase: "fill".to_owned(), ..Axes::default() };
                let work = self.pass(subject, Access::Sequential, 0, true);
                groups.push(once(subject, vec![Planned { axes, role: Role::Fill, work }]));
            }
            let phases: &[(&str, bool)] = match subject.has_cache {
                true => &[("off", false), ("on", true)],
                false => &[("plain", false)],
            };
            for (phase, on) in phases {
                let mut points = Vec::new();
                if subject.has_cache {
                    let axes = Axes { phase: format!("cache-{phase}"), ..Axes::default() };
                    let work = Work::Cache { on: *on };
                    points.push(Planned { axes, role: Role::Step, work });
                }
                for access in &self.access {
                    points.extend((1..=self.passes).map(|pass| Planned {
                        axes: Axes {
                            phase: (*phase).to_owned(),
                            pass: Some(pass),
                            access: Some(*access),
                            read_percent: Some(100),
                            block_bytes: Some(self.file_size.0),
                            ..Axes::default()
                        },
                        role: Role::Measured,
                        work: self.pass(subject, *access, pass, false),
                    }));
                }
                groups.push(once(subject, points));
            }
        }
        groups
    }

    fn pass(&self, subject: &Subject, access: Access, pass: u32, is_write: bool) -> Work {
        let is_random = access == Access::Random;
        if subject.is_folder {
            return Work::Files(FilePass {
                files: self.files,
                file_bytes: self.file_size.0,
                is_write,
                shuffle: is_random.then_some(u64::from(pass)),
            });
        }
        // With fio's map of random blocks every extent comes exactly once.
        Work::Load(Load::of(Job {
            name: "hot".to_owned(),
            pattern: Pattern::of(is_random, if is_write { 0 } else { 100 }),
            block_bytes: self.file_size.0,
            iodepth: 1,
            numjobs: 1,
            size_bytes: self.size_bytes(),
            until: Until::Once,
            more: if is_write { random_data() } else { Vec::new() },
        }))
    }
}
