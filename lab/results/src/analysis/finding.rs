//! Findings of the checks.

use serde::Serialize;

use crate::result::Point;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; the figures stand.
    Note,
    /// A trap of units or of method: the figures need the remark.
    Warning,
    /// The figure cannot be right, or contradicts another.
    Error,
}

/// Something a check has found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Name of the check, from [`CHECKS`](super::checks::CHECKS).
    pub check: String,
    /// How bad it is.
    pub severity: Severity,
    /// The points concerned.
    pub points: Vec<String>,
    /// The finding in words, with the figures.
    pub text: String,
}

/// One finding.
pub(crate) fn finding(
    check: &str,
    severity: Severity,
    points: &[&Point],
    text: impl Into<String>,
) -> Finding {
    let points = points.iter().map(|point| point.id.clone()).collect();
    Finding { check: check.to_owned(), severity, points, text: text.into() }
}
