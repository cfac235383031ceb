//! Results of other programs as runs: fio (JSON, JSON+, logs), Orion, elbencho, and our own files.
//!
//! [`read`] recognises the format by the content. A file that cannot be read is one clear line; a file
//! that was cut off is kept as far as it goes and marked. A figure that the source lacks stays missing.

mod elbencho;
mod files;
pub mod fio_flow;
mod fio_json;
mod fio_log;
mod fio_options;
mod orion;
pub(crate) mod orion_export;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

pub use files::Files;
pub use orion_export::export as export_orion;

use crate::LabError;
use crate::result::{Point, Run};

/// Larger files are not results.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Reads a result, whatever its format, with the files that belong to it: logs of the same prefix,
/// Orion's tables.
///
/// # Errors
/// When the file cannot be read or is no result that this program knows.
pub fn read(path: &Path) -> Result<Run, LabError> {
    if is_run(path)? {
        return Run::read(path);
    }
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
    let mut files = Files::from([(name.clone(), text_of(path)?)]);
    if let Some(prefix) = fio_log::prefix(&name).or_else(|| orion::prefix(&name)) {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        for entry in std::fs::read_dir(folder).map_err(LabError::file(folder))? {
            let entry = entry.map_err(LabError::file(folder))?;
            let beside = entry.file_name().to_str().unwrap_or_default().to_owned();
            let belongs = fio_log::prefix(&beside).or_else(|| orion::prefix(&beside));
            if belongs == Some(prefix) && beside != name {
                files.insert(beside, text_of(&entry.path())?);
            }
        }
    }
    let mut run = parse(&name, &files).map_err(|why| unreadable(path, why))?;
    run.manifest.imported_from = Some(path.display().to_string());
    Ok(run)
}

/// The same from texts: the file of this name, and those beside it.
///
/// # Errors
/// The reason why the file is not a result, in one line.
pub fn parse(name: &str, files: &Files) -> Result<Run, String> {
    let text = files.get(name).ok_or_else(|| format!("{name} is not among the files"))?;
    if text.trim().is_empty() {
        return Err("the file is empty: the program was stopped before it wrote a result".into());
    }
    let run = if fio_log::prefix(name).is_some() {
        fio_log::parse(name, files)
    } else if orion::prefix(name).is_some() || text.contains("ORION VERSION") {
        orion::parse(name, files)
    } else if elbencho::is_header(text.lines().next().unwrap_or_default()) {
        elbencho::parse(text)
    } else if text.contains('{') {
        fio_json::parse(text)
    } else {
        Err("no result of fio (JSON, JSON+, logs), Orion (summary, csv) or elbencho (csv)".into())
    };
    let mut run = run.map_err(|why| why.replace(['\n', '\r'], " "))?;
    if run.points.is_empty() {
        return Err("it has no measurement".to_owned());
    }
    make_unique(&mut run.points);
    run.manifest.run = name.split('.').next().unwrap_or(name).to_owned();
    Ok(run)
}

fn is_run(path: &Path) -> Result<bool, LabError> {
    use std::io::Read;
    let mut start = Vec::new();
    let file = std::fs::File::open(path).map_err(LabError::file(path))?;
    file.take(64).read_to_end(&mut start).map_err(LabError::file(path))?;
    let start = String::from_utf8_lossy(&start);
    Ok(start.starts_with("{\"record\":"))
}

fn text_of(path: &Path) -> Result<String, LabError> {
    let size = std::fs::metadata(path).map_err(LabError::file(path))?.len();
    if size > FILE_BYTES_MAX {
        let why = format!("{size} bytes, the most is {FILE_BYTES_MAX}");
        return Err(unreadable(path, why));
    }
    let bytes = std::fs::read(path).map_err(LabError::file(path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn unreadable(path: &Path, why: String) -> LabError {
    LabError::Unreadable { path: path.to_path_buf(), why }
}

/// The second point of a name gets a number: ids are unique in a run.
fn make_unique(points: &mut [Point]) {
    let mut seen = BTreeSet::new();
    for point in points {
        let given = point.id.clone();
        let mut number = 1;
        while !seen.insert(point.id.clone()) {
            number += 1;
            point.id = format!("{given}#{number}");
        }
    }
}
