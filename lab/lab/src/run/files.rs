//! Passes over files in a folder, each opened, read whole past the page cache, and closed.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use voltier_block::{Buf, Prng};
use voltier_results::result::{Flow, Histogram, Latency, Point, Status};

use super::merge;
use super::meter::{self, Meter, Used};
use super::target::{FILES_FOLDER, Kind, Target};
use crate::LabError;
use crate::plan::step::FilePass;
use crate::process::Stop;

/// Bytes of a request; a file is read in pieces of this.
const PIECE_BYTES: u64 = 1 << 20;

/// One pass; every file is one request of the point.
///
/// # Errors
/// When a file cannot be used.
pub(super) fn pass(
    pass: FilePass,
    target: &Target,
    stop: &Stop,
    point: &mut Point,
) -> Result<(), LabError> {
    let Kind::Folder(folder) = &target.kind else { return Ok(()) };
    let folder = folder.join(FILES_FOLDER);
    fs::create_dir_all(&folder).map_err(LabError::file(&folder))?;
    let order = order(pass);
    let meter = Meter::begin(target);
    point.started_unix_ms = meter::unix_ms();
    let mut buffer = Buf::zeroed(PIECE_BYTES.min(pass.file_bytes) as usize);
    Prng::new(7).fill(&mut buffer);
    let (mut taken, mut whole_ns) = (Vec::new(), 0);
    for number in &order {
        if stop.check().is_err() {
            point.status = Status::Partial(format!("{} of {} files", taken.len(), order.len()));
            break;
        }
        let path = folder.join(format!("file-{number:06}"));
        let (result, ns) = meter::timed(|| one(&path, pass, &mut buffer));
        result.map_err(LabError::file(&path))?;
        taken.push(ns);
        whole_ns += ns;
    }
    let flow = flow(&taken, pass.file_bytes, whole_ns);
    point.metrics.insert("files_per_second".to_owned(), flow.iops);
    if pass.is_write {
        point.write = Some(flow)
    } else {
        point.read = Some(flow)
    }
    meter.fill_in(target, Used::requests(taken.len() as u64), point);
    Ok(())
}

fn order(pass: FilePass) -> Vec<u32> {
    let mut order: Vec<u32> = (0..pass.files).collect();
    if let Some(seed) = pass.shuffle {
        let mut prng = Prng::new(seed);
        for last in (1..order.len()).rev() {
            order.swap(last, prng.below(last as u64 + 1) as usize);
        }
    }
    order
}

fn one(path: &PathBuf, pass: FilePass, buffer: &mut Buf) -> std::io::Result<()> {
    let file = open(path, pass.is_write)?;
    let mut at = 0;
    while at < pass.file_bytes {
        let length = buffer.len().min((pass.file_bytes - at) as usize);
        if pass.is_write {
            file.write_all_at(&buffer[..length], at)?;
        } else {
            file.read_exact_at(&mut buffer[..length], at)?;
        }
        at += length as u64;
    }
    if pass.is_write { file.sync_data() } else { Ok(()) }
}

/// Past the page cache, where the file system can do that.
fn open(path: &PathBuf, is_write: bool) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(!is_write).write(is_write).create(is_write);
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let opened = options.clone().custom_flags(direct).open(path);
    match opened {
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => options.open(path),
        other => other,
    }
}

fn flow(taken: &[u64], file_bytes: u64, whole_ns: u64) -> Flow {
    let mut histogram = Histogram::default();
    taken.iter().for_each(|ns| histogram.record(*ns));
    let (requests, seconds) = (taken.len() as u64, whole_ns as f64 / 1e9);
    let mean_ns = whole_ns as f64 / (requests as f64).max(1.0);
    let squares: f64 = taken.iter().map(|ns| (*ns as f64 - mean_ns).powi(2)).sum();
    Flow {
        requests,
        bytes: requests * file_bytes,
        runtime_ns: whole_ns,
        iops: requests as f64 / seconds,
        bytes_per_second: (requests * file_bytes) as f64 / seconds,
        latency: Latency {
            min_ns: taken.iter().copied().min().unwrap_or(0),
            max_ns: taken.iter().copied().max().unwrap_or(0),
            mean_ns,
            stddev_ns: (squares / (requests as f64).max(1.0)).sqrt(),
            percentiles_ns: merge::percentiles(&histogram),
        },
        histogram: Some(histogram),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pass_touches_every_file_once_in_an_order_of_its_own() {
        let pass = |shuffle| FilePass { files: 50, file_bytes: 4096, is_write: false, shuffle };
        let (one, other) = (order(pass(Some(1))), order(pass(Some(2))));
        assert_ne!(one, other);
        assert_eq!(order(pass(Some(1))), one);
        let mut sorted = one;
        sorted.sort_unstable();
        assert_eq!(sorted, order(pass(None)));
    }
}
