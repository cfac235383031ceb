//! A database over a file system on the target, its benchmark run again and again.

use serde::{Deserialize, Serialize};
use voltier_results::result::{Axes, Role};

use super::jobs::once;
use super::step::{DatabaseStep, Group, Planned, Subject, Work};
use super::values::{Extent, check};

/// The databases, each with its benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// pgbench on PostgreSQL.
    Pgbench,
    /// sysbench's `oltp_read_write` on MariaDB.
    Sysbench,
}

/// The plan `database`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Database {
    /// `pgbench` or `sysbench`.
    pub engine: Engine,
    /// Seconds of each run.
    pub seconds: f64,
    /// Runs.
    pub runs: u32,
    /// Scale: 100,000 rows each (about 15 MB of PostgreSQL).
    pub scale: u32,
    /// Clients of the database.
    pub clients: u32,
    /// How much of each target the file system takes.
    pub size: Extent,
    /// `ext4` or `xfs`.
    pub file_system: String,
}

impl Database {
    pub(super) fn new(quick: bool) -> Database {
        Database {
            engine: Engine::Pgbench,
            seconds: if quick { 4.0 } else { 60.0 },
            runs: if quick { 3 } else { 8 },
            scale: if quick { 2 } else { 1000 },
            clients: if quick { 4 } else { 10 },
            size: if quick { Extent::Bytes(512 << 20) } else { Extent::Whole },
            file_system: "ext4".to_owned(),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        check(self.seconds, &[])?;
        for (name, value) in [("runs", self.runs), ("scale", self.scale), ("clients", self.clients)]
        {
            super::values::counts(name, &[value])?;
        }
        if self.seconds < 1.0 {
            return Err("seconds: a run of a database has whole seconds, from 1".to_owned());
        }
        super::values::known_words(
            "file_system",
            std::slice::from_ref(&self.file_system),
            &["ext4", "xfs"],
        )
    }

    pub(super) fn groups(&self, subjects: &[Subject]) -> Vec<Group> {
        let point = |phase: &str, pass: Option<u32>, step: DatabaseStep| Planned {
            axes: Axes { phase: phase.to_owned(), pass, ..Axes::default() },
            role: if pass.is_some() { Role::Measured } else { Role::Step },
            work: Work::Database(step),
        };
        let group = |subject: &Subject| {
            let mut points = vec![point("make", None, DatabaseStep::Make)];
            for pass in 1..=self.runs {
                let mut run = point("run", Some(pass), DatabaseStep::Run);
                run.axes.clients = Some(self.clients);
                points.push(run);
            }
            points.push(point("remove", None, DatabaseStep::Remove));
            once(subject, points)
        };
        subjects.iter().map(group).collect()
    }
}
