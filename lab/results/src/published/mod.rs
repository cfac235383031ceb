//! Published tables as runs, so that they can be compared, judged and shown beside our own.
//!
//! Figures are exactly as printed, "MB/s" included: the checks of [`crate::analysis`] say what is
//! wrong with them. The figures are other machines': an overlay, never a pass or a failure. Errors that
//! only a reader of the prose can find stand in the manifest's notes, with their numbers.

mod cubefs;
mod document;
mod fusionio;
mod maxio;
mod maxiq;
mod raidix;

pub use document::Document;

use crate::result::Run;

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
