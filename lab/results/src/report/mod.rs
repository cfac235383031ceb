//! Reports of a run: a page with charts, Markdown, CSV and JSON.
//!
//! Everything shown is computed from the [`Run`] by [`crate::analysis`]. A report adds nothing of its
//! own, and two reports of one run are the same to the byte.
//!
//! Reading route: [`write()`], then `compose` for what stands in a report and in which order, `page` for
//! what a section is made of. Any of the sections (`load`, `grid`, `rounds`, ...) comes last. `html` and
//! `markdown` lay out, `files` are the figures for programs; `draw` is how charts look.

mod draw;
mod files;
mod grid;
mod html;
mod load;
mod markdown;
mod misses;
mod nines;
mod page;
mod passes;
mod places;
mod plan_facts;
mod references;
mod rounds;
mod scaling;
mod subject;
mod summary;
mod tables;
mod timeline;

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub use page::{Line, Tone};
pub use plan_facts::{PlanFacts, PtsTest};

use crate::LabError;
use crate::analysis::{self, Comparison, Verdicts};
use crate::result::Run;
use page::Report;

/// Where a report is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportFiles {
    /// `report.html`, the page with charts.
    pub html: PathBuf,
    /// `report.md`.
    pub markdown: PathBuf,
    /// `points.csv`, a row for each point.
    pub csv: PathBuf,
    /// `report.json` (`docs/formats/report.md`).
    pub json: PathBuf,
    /// Whether a part of what was planned is not there.
    pub is_partial: bool,
}

/// Writes the report of a run, compared with some others, into a folder, which is made. Either all
/// four files are there afterwards, or none of them has changed. `plan` is the plan of the run, if known.
///
/// # Errors
/// One line: the folder cannot be made or written, or there is no space.
pub fn write(
    run: &Run,
    plan: Option<&PlanFacts>,
    references: &[Run],
    folder: &Path,
) -> Result<ReportFiles, LabError> {
    let verdicts = analysis::judge(run);
    let comparisons = references::comparisons(run, references);
    let report = compose(run, plan, &verdicts, &comparisons);
    let texts = [
        ("report.html", html::render(&report)),
        ("report.md", markdown::render(&report)),
        ("points.csv", files::csv(run)),
        ("report.json", files::json(run, &verdicts, &report.summary, &comparisons)),
    ];
    let paths = place(folder, &texts)?;
    let [html, markdown, csv, json] = paths;
    Ok(ReportFiles { html, markdown, csv, json, is_partial: summary::is_partial(run) })
}

/// All sections, in the order in which they are read.
fn compose(
    run: &Run,
    plan: Option<&PlanFacts>,
    verdicts: &Verdicts,
    comparisons: &[Comparison],
) -> Report {
    let places = places::places(run);
    let is_pts = plan.is_some_and(|plan| plan.pts_tests.is_some());
    let mut sections = Vec::new();
    sections.extend(passes::side_by_side(run, &places));
    sections.extend(comparisons.iter().map(references::section));
    sections.push(tables::findings(verdicts));
    sections.extend(subject::heads(run, plan, verdicts));
    sections.extend(rounds::section(verdicts));
    sections.extend(misses::section(verdicts));
    sections.extend(load::section(verdicts));
    sections.extend(grid::section(&places, is_pts));
    sections.extend(tables::demand(verdicts));
    sections.extend(tables::replays(run));
    sections.extend(tables::limits(verdicts));
    sections.extend(nines::section(&places));
    sections.extend(passes::warm_up(run, verdicts));
    sections.extend(scaling::section(verdicts));
    sections.extend(passes::repeats(run, verdicts));
    sections.extend(timeline::section(run));
    sections.extend(tables::cpu(verdicts));
    sections.push(subject::section(run));
    sections.push(tables::points(run));
    Report {
        title: subject::title(run, plan),
        subtitle: subject::subtitle(run),
        summary: summary::lines(run, plan, verdicts, &places),
        sections,
    }
}

/// Writes all texts beside their names first, and gives them their names when all are whole.
fn place<const N: usize>(
    folder: &Path,
    texts: &[(&str, String); N],
) -> Result<[PathBuf; N], LabError> {
    fs::create_dir_all(folder).map_err(|error| refused(folder, error))?;
    let mut written = Vec::new();
    for (name, text) in texts {
        if folder.join(name).is_dir() {
            return Err(refused(&folder.join(name), io::ErrorKind::IsADirectory.into()));
        }
        // As files of this user are, not as secrets are.
        let mut file = tempfile::Builder::new()
            .prefix(".report-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(|error| refused(folder, error))?;
        file.write_all(text.as_bytes()).map_err(|error| refused(folder, error))?;
        written.push((folder.join(name), file));
    }
    for (path, file) in written {
        file.persist(&path).map_err(|error| refused(&path, error.error))?;
    }
    Ok(texts.each_ref().map(|(name, _)| folder.join(name)))
}

/// The error of a file that cannot be written, in one line with what to do.
fn refused(path: &Path, error: io::Error) -> LabError {
    let why = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "has no space for the report: free some, or give another folder with --out"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "cannot be written by this user: give another folder with --out"
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "is not a folder: give another one with --out"
        }
        io::ErrorKind::IsADirectory => {
            "is a folder, where the report has a file: give another folder with --out"
        }
        _ => return LabError::File { path: path.to_path_buf(), source: error },
    };
    LabError::Target { target: path.display().to_string(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::sample;

    #[test]
    fn names_of_points_are_text_wherever_they_stand() {
        let hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&";
        let mut run = sample::run();
        run.manifest.run = hostile.to_owned();
        run.manifest.notes.push(hostile.to_owned());
        for (target, depth) in [(hostile, 1), (hostile, 4), (hostile, 16), ("hdd", 4)] {
            let id = format!("{hostile}{target}{depth}");
            let mut point = sample::point(&id, 100.0 * f64::from(depth), 1e6, depth);
            target.clone_into(&mut point.axes.target);
            hostile.clone_into(&mut point.axes.phase);
            point.command = vec![hostile.to_owned()];
            run.points.push(point);
        }
        let verdicts = analysis::judge(&run);
        let page = html::render(&compose(&run, None, &verdicts, &[]));
        let library =
            page.find("/**").expect("the chart library")..page.rfind("id=\"charts\"").unwrap();
        let ours = format!("{}{}", &page[..library.start], &page[library.end..]);
        assert!(page.contains("id=\"chart-0\""));
        for markup in ["<script>alert", "<img", "</script><script>a"] {
            assert!(!ours.contains(markup), "{markup}");
        }
        assert!(ours.contains("&lt;script&gt;alert(1)"));
    }

    #[test]
    fn a_folder_in_the_way_leaves_everything_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("report.json")).unwrap();
        let message = write(&sample::run(), None, &[], folder.path()).unwrap_err().to_string();
        assert!(message.contains("--out") && message.lines().count() == 1, "{message}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
