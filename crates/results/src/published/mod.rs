//! Published tables as runs, so that they can be compared, judged and shown beside our own.
//!
//! Figures are exactly as printed, "MB/s" included: the checks of [`crate::analysis`] say what is
//! wrong with them. They are other machines' figures: an overlay, never a pass or a failure. What
//! only a reader of the prose can find stands in the manifest's notes, with its number.

mod cubefs;
mod fusionio;
mod maxio;
mod maxiq;
mod raidix;

use crate::csv::Table;
use crate::result::{Axes, Environment, Flow, Latency, Manifest, Point, Run, TargetInfo};

/// A published document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document {
    /// Name for [`table`] and the command line.
    pub name: &'static str,
    /// What it is.
    pub title: &'static str,
}

/// A document and what makes a run of its tables.
type Entry = (Document, fn(Document) -> Run);

const DOCUMENTS: &[Entry] = &[
    (
        Document {
            name: "maxio-sata",
            title: "MaxIO 1.1.1 in front of a hard disk, cache on a SATA SSD",
        },
        |document| maxio::run(document, &maxio::SATA),
    ),
    (
        Document {
            name: "maxio-pcie",
            title: "MaxIO 1.1.1 in front of a hard disk, cache on a PCIe SSD",
        },
        |document| maxio::run(document, &maxio::PCIE),
    ),
    (
        Document { name: "fusionio", title: "Fusion-io ioDrive 320 GB under Oracle Orion (2011)" },
        fusionio::run,
    ),
    (
        Document { name: "raidix", title: "RAIDIX ERA, Linux md and ZFS over twelve NVMe drives" },
        raidix::run,
    ),
    (
        Document { name: "maxiq", title: "Adaptec MaxIQ: a hot set of files, and mysqlbench" },
        maxiq::run,
    ),
    (Document { name: "cubefs", title: "CubeFS: clients by processes (2023)" }, |document| {
        cubefs::run(document, &cubefs::OF_2023)
    }),
    (Document { name: "cubefs-3.3.1", title: "CubeFS 3.3.1: clients by processes" }, |document| {
        cubefs::run(document, &cubefs::OF_331)
    }),
];

/// The published documents.
pub fn list() -> impl Iterator<Item = Document> {
    DOCUMENTS.iter().map(|(document, _)| *document)
}

/// A document's tables as a run; `None` when there is no such document.
pub fn table(name: &str) -> Option<Run> {
    let found = DOCUMENTS.iter().find(|(document, _)| document.name == name);
    found.map(|(document, build)| build(*document))
}

/// A table that is part of the program.
fn embedded(text: &str) -> Table {
    Table::read(text).expect("a published table has a header")
}

fn manifest(document: Document, targets: Vec<TargetInfo>, notes: &[&str]) -> Manifest {
    Manifest {
        format: 1,
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

fn target(name: &str, given: &str, size_bytes: u64, facts: &[(&str, &str)]) -> TargetInfo {
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
struct Cell {
    iops: Option<f64>,
    /// As printed: MB of a million bytes.
    megabytes: Option<f64>,
    latency_ns: Option<f64>,
    latency_max_ns: Option<f64>,
    runtime_s: Option<f64>,
}

/// A point of printed figures. A mix that is printed as one figure is divided as the mix says.
fn point(id: String, axes: Axes, cell: Cell) -> Point {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{RunWriter, Status};

    #[test]
    fn every_document_is_a_run_that_can_be_stored() {
        let folder = tempfile::tempdir().unwrap();
        for document in list() {
            let run = table(document.name).unwrap();
            assert!(!run.points.is_empty() && !run.manifest.is_simulation, "{}", document.name);
            assert_eq!(run.manifest.imported_from.as_deref(), Some(document.title));
            let path = folder.path().join(document.name);
            let mut writer = RunWriter::create(&path, &run.manifest).unwrap();
            for point in &run.points {
                assert_eq!(point.status, Status::Ok);
                let figures = point.iops().or(point.bytes_per_second()).or(point.latency_mean_ns());
                assert!(figures.is_some() || !point.metrics.is_empty(), "{}", point.id);
                writer.point(point).unwrap();
            }
            let stored = Run::read(&path).unwrap().points.len();
            assert_eq!(stored, run.points.len(), "ids are unique");
        }
        assert!(table("nothing").is_none());
    }
}
