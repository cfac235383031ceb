//! The facts of a plan that a report shows, told by whoever knows plans.

/// The plan of a run, as a report shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanFacts {
    /// The name of the plan in headings.
    pub title: String,
    /// Whether the plan has its quick form, which says nothing about a drive.
    pub is_quick: bool,
    /// The tests of the SNIA standard that the plan holds, in their order; `None` for other methods.
    pub pts_tests: Option<Vec<PtsTest>>,
}

/// The settings of a test that the standard wants in the head of the test.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PtsTest {
    /// The key of the test, which is also the first word of the phases of its points.
    pub name: String,
    /// The part of the target that is used.
    pub active_range: String,
    /// Workload-independent and workload-dependent preconditioning.
    pub preconditioning: [String; 2],
    /// The load of the test.
    pub stimulus: String,
}
