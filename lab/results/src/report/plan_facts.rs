//! The facts of a plan that a report shows, told by whoever knows plans.

use crate::result::Test;

/// The plan of a run, as a report shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanFacts {
    /// The name of the plan in headings.
    pub title: String,
    /// Whether the plan has its quick form, which says nothing about a drive.
    pub is_quick: bool,
    /// The tests of the SNIA standard that the plan holds, in their order; `None` for other methods.
    pub pts_tests: Option<Vec<PtsTest>>,
    /// The differences of the run from the standard, a clause each; empty for other methods.
    pub deviations: Vec<String>,
}

/// The settings of a test that the standard wants in the head of the test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtsTest {
    /// The test.
    pub test: Test,
    /// The part of the target that is used.
    pub active_range: String,
    /// Workload-independent and workload-dependent preconditioning.
    pub preconditioning: [String; 2],
    /// The load of the test.
    pub stimulus: String,
}
