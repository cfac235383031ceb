//! The purpose of a point: its role in a plan, and the test of the standard that it belongs to.

use serde::{Deserialize, Serialize};

/// The role of a point in its plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The point has a figure that the plan asks for.
    #[default]
    Measured,
    /// The target forgets what it held.
    Purge,
    /// The target is written before anything is measured.
    Fill,
    /// Writes between two measurements, which keep the target as it was.
    PreWrite,
    /// A cache is switched, a database is made or put away.
    Step,
}

impl Role {
    /// Whether the role is [`Role::Measured`].
    pub fn is_measured(&self) -> bool {
        *self == Role::Measured
    }
}

/// A test of the SNIA standard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// Requests per second over block sizes and mixes.
    Iops,
    /// Throughput of streams.
    Tp,
    /// Latency of single requests.
    Lat,
    /// Write saturation.
    Wsat,
    /// Host idle recovery.
    Hir,
    /// Cross stimulus recovery.
    Xsr,
    /// Enterprise composite workload.
    Ecw,
    /// Demand intensity and response time histogram.
    Dirth,
    /// Workload-independent preconditioning alone.
    Wipc,
}

impl Test {
    /// All tests, in the order of the standard.
    pub const ALL: [Test; 9] = [
        Test::Iops,
        Test::Tp,
        Test::Lat,
        Test::Wsat,
        Test::Hir,
        Test::Xsr,
        Test::Ecw,
        Test::Dirth,
        Test::Wipc,
    ];

    /// The name in plans and in the file of a run.
    pub fn key(self) -> &'static str {
        match self {
            Test::Iops => "iops",
            Test::Tp => "tp",
            Test::Lat => "lat",
            Test::Wsat => "wsat",
            Test::Hir => "hir",
            Test::Xsr => "xsr",
            Test::Ecw => "ecw",
            Test::Dirth => "dirth",
            Test::Wipc => "wipc",
        }
    }
}
