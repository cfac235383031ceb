//! How it was measured: repeats, and streams that overlap.

use super::context::Context;
use crate::analysis::finding::{Finding, Severity, finding};
use crate::analysis::repeat as repeats;
use crate::result::{Access, Point};

pub(super) fn repeat(context: &Context<'_>) -> Vec<Finding> {
    let verdicts = repeats::of_run(context.run).into_iter();
    let wide = verdicts.filter(|verdict| {
        let variation = verdict.estimate.variation.unwrap_or(0.0);
        verdict.estimate.count >= 3 && variation > repeats::VARIATION_MAX
    });
    let found = wide.map(|verdict| Finding {
        check: "repeat".to_owned(),
        severity: Severity::Warning,
        text: format!(
            "{}: {} repeats vary by {:.0} %: show the interval, not the mean alone",
            verdict.label,
            verdict.estimate.count,
            100.0 * verdict.estimate.variation.unwrap_or(0.0)
        ),
        points: verdict.points,
    });
    found.collect()
}

/// fio's jobs of one file begin at its start unless told otherwise: three of four find what the
/// first has just touched.
pub(super) fn streams(context: &Context<'_>) -> Vec<Finding> {
    let overlap = |point: &&Point| {
        let says = |words: &[&str]| {
            point.command.iter().any(|given| words.iter().any(|word| given.contains(word)))
        };
        point.axes.access == Some(Access::Sequential)
            && point.axes.jobs.is_some_and(|jobs| jobs > 1)
            && says(&["numjobs"])
            && !says(&["offset", "directory", "nrfiles", "filename_format"])
    };
    let points: Vec<&Point> = context.points().filter(overlap).collect();
    if points.is_empty() {
        return Vec::new();
    }
    let text = "sequential jobs start at the same place (no offset_increment): all but one find \
                what another has just touched";
    vec![finding("streams", Severity::Warning, &points, text)]
}
