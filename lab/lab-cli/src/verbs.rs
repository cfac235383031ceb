//! `voltier lab`: plans are run, and what they found is shown.

use std::path::{Path, PathBuf};

use serde_json::json;
use voltier_cli::output::{print, print_json};
use voltier_control::{ControlError, ControlResult, StateDir};
use voltier_lab::run::{self, RUN_FILE};
use voltier_lab::{plan, twin};
use voltier_results::result::{Run, RunWriter};
use voltier_results::table::{figure, render};
use voltier_results::{analysis, import, published, report};
use voltier_trace::Format;

use crate::failure::failed;
use crate::lab_args::{LabCompare, LabImport, LabReport, LabVerb, TwinArgs};
use crate::measure::{measure, runs_folder};
use crate::trace;

/// Runs a verb of the laboratory.
///
/// # Errors
/// One line that says what to do.
pub(crate) fn run(verb: &LabVerb, state: &StateDir, json: bool) -> ControlResult<()> {
    match verb {
        LabVerb::List => list(json),
        LabVerb::Run(args) => measure(args, state, json),
        LabVerb::Report(args) => write_report(args, json),
        LabVerb::Compare(args) => compare(args, json),
        LabVerb::Import(args) => import_files(args, json),
        LabVerb::Twin(args) => run_twin(args, json),
        LabVerb::Trace(args) => trace::run(&args.verb, state, json),
    }
}

fn run_twin(args: &TwinArgs, json: bool) -> ControlResult<()> {
    let extent = if args.quick { twin::Extent::Quick } else { twin::Extent::Full };
    let report = args.name.run(extent);
    print(&if json { report.json() } else { report.text() })
}

fn list(json: bool) -> ControlResult<()> {
    let models: Vec<(&str, &str)> = run::models().collect();
    if json {
        let named = |all: &[(&str, &str)]| {
            let one = |(name, what): &(&str, &str)| json!({ "name": name, "description": what });
            all.iter().map(one).collect::<Vec<_>>()
        };
        let tables: Vec<&str> = published::list().map(|document| document.name).collect();
        return print_json(&json!({
            "plans": named(&plan::BUILT_IN), "models": named(&models), "published": tables,
            "trace_formats": named(&Format::ALL.map(|(_, name, what)| (name, what)))
        }));
    }
    let mut text = String::from("plans:\n");
    for (name, what) in plan::BUILT_IN {
        text.push_str(&format!("  {name:<10} {what}\n"));
    }
    text.push_str("trace formats, for `voltier lab trace`:\n");
    for (_, name, what) in Format::ALL {
        text.push_str(&format!("  {name:<15} {what}\n"));
    }
    text.push_str("modelled drives:\n");
    for (name, what) in models {
        text.push_str(&format!("  model:{name:<12} {what}\n"));
    }
    text.push_str("published tables, for `voltier lab compare`:\n");
    for document in published::list() {
        text.push_str(&format!("  {:<18} {}\n", document.name, document.title));
    }
    print(&text)
}

/// A run by its folder or file, a foreign result, or a published table.
fn read(given: &str) -> ControlResult<Run> {
    let path = Path::new(given);
    if !path.exists()
        && let Some(run) = published::table(given)
    {
        return Ok(run);
    }
    let folder = path.join(RUN_FILE);
    import::read(if folder.exists() { &folder } else { path }).map_err(failed)
}

fn write_report(args: &LabReport, json: bool) -> ControlResult<()> {
    let run = read(&args.run)?;
    let references: Vec<Run> =
        args.references.iter().map(|given| read(given)).collect::<Result<_, _>>()?;
    let folder = match &args.out {
        Some(folder) => folder.clone(),
        None => report_folder(&args.run)?,
    };
    let files = report::write(&run, plan::facts::of(&run).as_ref(), &references, &folder)
        .map_err(failed)?;
    if json {
        return print_json(&json!({
            "html": files.html, "markdown": files.markdown, "csv": files.csv,
            "json": files.json, "is_partial": files.is_partial
        }));
    }
    let partial = if files.is_partial { " (PARTIAL: it lists what is missing)" } else { "" };
    print(&format!("report: {}{partial}\n", files.html.display()))
}

/// Where the report of a run belongs: into the run's folder. A run without a folder gets one under
/// `voltier-lab`, but not that of another run.
fn report_folder(given: &str) -> ControlResult<PathBuf> {
    let path = Path::new(given);
    if path.is_dir() {
        return Ok(path.to_path_buf());
    }
    if path.file_name().is_some_and(|name| name == RUN_FILE) {
        return Ok(path.parent().map_or_else(PathBuf::new, Path::to_path_buf));
    }
    let stem = path.file_stem().map_or_else(|| "report".into(), |stem| stem.to_string_lossy());
    let folder = runs_folder().join(if path.exists() { &*stem } else { given });
    if folder.join(RUN_FILE).exists() {
        return Err(ControlError::usage(format!(
            "{} holds another run: give a folder for the report of {given} with --out",
            folder.display()
        )));
    }
    Ok(folder)
}

fn compare(args: &LabCompare, json: bool) -> ControlResult<()> {
    let runs: Vec<Run> = args.runs.iter().map(|given| read(given)).collect::<Result<_, _>>()?;
    let comparison = analysis::compare(&runs);
    if json {
        return print_json(&comparison);
    }
    let mut headings = vec!["place".to_owned(), "figure".to_owned()];
    for (index, run) in comparison.runs.iter().enumerate() {
        headings.push(run.clone());
        if index > 0 {
            headings.extend(["ratio".to_owned(), "verdict".to_owned()]);
        }
    }
    let row = |row: &analysis::compare::Row| {
        let mut cells = vec![row.label.clone(), row.figure.clone()];
        for (index, cell) in row.cells.iter().enumerate() {
            let value = cell.as_ref().map(|cell| figure(cell.estimate.value));
            cells.push(value.unwrap_or_else(|| "-".to_owned()));
            if index > 0 {
                cells.extend(verdict(cell.as_ref()));
            }
        }
        cells
    };
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let rows: Vec<Vec<String>> = comparison.rows.iter().map(row).collect();
    let mut text = render(&headings, &rows);
    for note in &comparison.notes {
        text.push_str(&format!("- {note}\n"));
    }
    print(&text)
}

fn verdict(cell: Option<&analysis::compare::Cell>) -> [String; 2] {
    use analysis::compare::Difference;
    let Some(against) = cell.and_then(|cell| cell.against) else {
        return ["-", "-"].map(str::to_owned);
    };
    let verdict = match against.difference {
        Difference::Same => "same",
        Difference::Better => "better",
        Difference::Worse => "worse",
        Difference::Unconfirmed => "unconfirmed",
    };
    [format!("{:.2}", against.ratio), verdict.to_owned()]
}

fn import_files(args: &LabImport, json: bool) -> ControlResult<()> {
    let mut made = Vec::new();
    for file in &args.files {
        let run = import::read(file).map_err(failed)?;
        let stem =
            file.file_stem().map_or_else(|| "imported".into(), |stem| stem.to_string_lossy());
        let folder = args.out.join(&*stem);
        std::fs::create_dir_all(&folder)
            .map_err(|error| ControlError::io(format!("making {}", folder.display()), &error))?;
        let mut writer =
            RunWriter::create(&folder.join(RUN_FILE), &run.manifest).map_err(failed)?;
        for point in &run.points {
            writer.point(point).map_err(failed)?;
        }
        made.push((folder, run.points.len()));
    }
    if json {
        let made =
            made.iter().map(|(folder, points)| json!({ "folder": folder, "points": points }));
        return print_json(&made.collect::<Vec<_>>());
    }
    let line =
        |(folder, points): &(PathBuf, usize)| format!("{points} points: {}\n", folder.display());
    print(&made.iter().map(line).collect::<String>())
}
