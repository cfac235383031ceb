//! CubeFS: matrices of clients by processes, metadata operations, small files.

use super::document::{Cell, Document, embedded, manifest, point, target};
use crate::result::{Access, Axes, Point, Run};

/// One generation of the documentation.
pub(super) struct Edition {
    /// Name, access, reads, bandwidth, requests, latency.
    matrices: [Matrix; 4],
    /// Operation of mdtest and its table.
    metadata: [(&'static str, &'static str); 7],
    small_files: &'static str,
    /// Facts of the machines.
    facts: &'static [(&'static str, &'static str)],
    notes: &'static [&'static str],
}

struct Matrix {
    name: &'static str,
    access: Access,
    read_percent: u8,
    block_bytes: u64,
    bandwidth: &'static str,
    iops: &'static str,
    latency: &'static str,
}

macro_rules! matrix {
    ($prefix:literal, $name:literal, $access:ident, $read:literal, $block:expr) => {
        Matrix {
            name: $name,
            access: Access::$access,
            read_percent: $read,
            block_bytes: $block,
            bandwidth: include_str!(concat!(
                "../../tables/",
                $prefix,
                $name,
                "_bandwidth_mbps.csv"
            )),
            iops: include_str!(concat!("../../tables/", $prefix, $name, "_iops.csv")),
            latency: include_str!(concat!("../../tables/", $prefix, $name, "_latency_us.csv")),
        }
    };
}

macro_rules! matrices {
    ($prefix:literal) => {
        [
            matrix!($prefix, "seq_read_128k", Sequential, 100, 131_072),
            matrix!($prefix, "seq_write_128k", Sequential, 0, 131_072),
            matrix!($prefix, "rand_read_4k", Random, 100, 4096),
            matrix!($prefix, "rand_write_4k", Random, 0, 4096),
        ]
    };
}

macro_rules! metadata {
    ($prefix:literal) => {
        metadata!(
            $prefix: "dir_creation", "dir_removal", "dir_stat", "file_creation", "file_removal",
            "tree_creation", "tree_removal"
        )
    };
    ($prefix:literal: $($name:literal),*) => {
        [$((
            $name,
            include_str!(concat!("../../tables/upstream-extra/", $prefix, "_mdtest_", $name, ".csv")),
        )),*]
    };
}

pub(super) const OF_2023: Edition = Edition {
    matrices: matrices!("cubefs_"),
    metadata: metadata!("cubefs2023"),
    small_files: include_str!("../../tables/upstream-extra/cubefs2023_small_file.csv"),
    facts: &[
        ("nic_bits_per_second", "10000000000"),
        ("storage_nodes", "10"),
        ("storage_nic_bits_per_second", "10000000000"),
        ("write_copies", "3"),
    ],
    notes: &[
        "C3: sequential write has no run time: 10 GB for each process, so quick and slow cells ran for \
         different times",
        "C4: psync has one request in flight for each process: processes are the depth",
        "C5: with several clients latency is a mean of means: Little's law holds within 4 %",
        "C7: the printed commands end in a comment after the line continuation and fail when pasted",
    ],
};

pub(super) const OF_331: Edition = Edition {
    matrices: matrices!("upstream-extra/cubefs331_"),
    metadata: metadata!("cubefs331"),
    small_files: include_str!("../../tables/upstream-extra/cubefs331_small_file.csv"),
    facts: &[
        ("storage_nodes", "5"),
        ("storage_nic_bits_per_second", "50000000000"),
        ("write_copies", "3"),
    ],
    notes: &[
        "C9: the page recommends 500 data replicas, evidently a slip for the number of partitions",
    ],
};

const PROCESSES: [u32; 4] = [1, 4, 16, 64];

pub(super) fn run(document: Document, edition: &Edition) -> Run {
    let mut points: Vec<Point> = edition.matrices.iter().flat_map(matrix).collect();
    points.extend(edition.metadata.iter().flat_map(|(name, text)| metadata(name, text)));
    points.extend(small_files(edition.small_files));
    let volume = target("cubefs", "a CubeFS volume, three copies", 0, &[]);
    let mut manifest = manifest(document, vec![volume], edition.notes);
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    manifest.environment.facts = edition.facts.iter().map(pair).collect();
    Run { manifest, points, ..Run::default() }
}

fn axes(phase: String, clients: u32, jobs: u32) -> Axes {
    let target = "cubefs".to_owned();
    Axes { target, phase, clients: Some(clients), jobs: Some(jobs), ..Axes::default() }
}

fn matrix(matrix: &Matrix) -> Vec<Point> {
    let (bandwidth, iops, latency) =
        (embedded(matrix.bandwidth), embedded(matrix.iops), embedded(matrix.latency));
    let mut points = Vec::new();
    for ((bandwidth, iops), latency) in bandwidth.rows().zip(iops.rows()).zip(latency.rows()) {
        let Some(clients) = iops.number("clients").map(|clients| clients as u32) else { continue };
        for jobs in PROCESSES {
            let column = format!("procs_{jobs}");
            let cell = Cell {
                iops: iops.number(&column),
                megabytes: bandwidth.number(&column),
                latency_ns: latency.number(&column).map(|us| us * 1e3),
                ..Cell::default()
            };
            let axes = Axes {
                access: Some(matrix.access),
                read_percent: Some(matrix.read_percent),
                block_bytes: Some(matrix.block_bytes),
                depth: Some(1),
                ..axes(matrix.name.to_owned(), clients, jobs)
            };
            points.push(point(format!("{}/{clients}x{jobs}", matrix.name), axes, cell));
        }
    }
    points
}

fn metadata(name: &str, text: &str) -> Vec<Point> {
    let table = embedded(text);
    let mut points = Vec::new();
    for row in table.rows() {
        let Some(clients) = row.number("clients").map(|clients| clients as u32) else { continue };
        for jobs in PROCESSES {
            let Some(figure) = row.number(&format!("procs_{jobs}")) else { continue };
            let metrics = [("operations_per_second".to_owned(), figure)].into();
            let axes = axes(format!("mdtest {name}"), clients, jobs);
            let id = format!("mdtest/{name}/{clients}x{jobs}");
            points.push(Point { id, axes, metrics, ..Point::default() });
        }
    }
    points
}

fn small_files(text: &str) -> Vec<Point> {
    let table = embedded(text);
    let mut points = Vec::new();
    for row in table.rows() {
        let operation = row.text("operation_tps").unwrap_or_default();
        for kib in [1, 2, 4, 8, 16, 32, 64, 128] {
            let Some(figure) = row.number(&format!("kb_{kib}")) else { continue };
            let axes = Axes {
                target: "cubefs".to_owned(),
                phase: format!("small files, {operation}"),
                block_bytes: Some(kib << 10),
                ..Axes::default()
            };
            let metrics = [("operations_per_second".to_owned(), figure)].into();
            let id = format!("small-files/{operation}/{kib}k");
            points.push(Point { id, axes, metrics, ..Point::default() });
        }
    }
    points
}
