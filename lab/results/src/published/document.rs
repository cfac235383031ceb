//! A published document, and points of its printed figures.

use crate::csv::Table;
use crate::result::{Axes, Environment, Flow, Latency, Manifest, Point, TargetInfo};

/// A published document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document {
    /// Name for [`table`](super::table) and the command line.
    pub name: &'static str,
    /// The title of the document.
    pub title: &'static str,
}

/// A table that is part of the program.
pub(super) fn embedded(text: &str) -> Table {
    Table::read(text).expect("a published table has a header")
}

pub(super) fn manifest(document: Document, targets: Vec<TargetInfo>, notes: &[&str]) -> Manifest {
    Manifest {
        run: document.name.to_owned(),
        plan: document.name.to_owned(),
        tool: "published".to_owned(),
        imported_from: Some(document.title.to_owned()),
        targets,
        environment: Environment::default(),
        notes: notes.iter().map(|note| (*note).to_owned()).collect(),
        ..Manifest::default()
    }
}

pub(super) fn target(
    name: &str,
    given: &str,
    size_bytes: u64,
    facts: &[(&str, &str)],
) -> TargetInfo {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    TargetInfo {
        name: name.to_owned(),
        given: given.to_owned(),
        kind: "import".to_owned(),
        size_bytes,
        facts: facts.iter().map(pair).collect(),
    }
}

/// The printed figures of a cell; what is not printed is `None`.
#[derive(Clone, Copy, Default)]
pub(super) struct Cell {
    pub(super) iops: Option<f64>,
    /// As printed: MB of a million bytes.
    pub(super) megabytes: Option<f64>,
    pub(super) latency_ns: Option<f64>,
    pub(super) latency_max_ns: Option<f64>,
    pub(super) runtime_s: Option<f64>,
}

/// A point of printed figures. A mix that is printed as one figure is divided as the mix says.
pub(super) fn point(id: String, axes: Axes, cell: Cell) -> Point {
    let share = f64::from(axes.read_percent.unwrap_or(100)) / 100.0;
    let flow = |share: f64| {
        let latency = Latency {
            mean_ns: cell.latency_ns.unwrap_or(0.0),
            max_ns: cell.latency_max_ns.unwrap_or(0.0) as u64,
            ..Latency::default()
        };
        (share > 0.0).then(|| Flow {
            iops: cell.iops.unwrap_or(0.0) * share,
            bytes_per_second: cell.megabytes.unwrap_or(0.0) * 1e6 * share,
            runtime_ns: (cell.runtime_s.unwrap_or(0.0) * 1e9) as u64,
            latency,
            ..Flow::default()
        })
    };
    Point { id, read: flow(share), write: flow(1.0 - share), axes, ..Point::default() }
}
