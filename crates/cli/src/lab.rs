//! `voltier lab`: plans are run, and what they found is shown.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use voltier_control::{ControlError, ControlResult, StateDir};
use voltier_lab::LabError;
use voltier_lab::plan::{self, Plan};
use voltier_lab::result::{Run, RunWriter};
use voltier_lab::run::{self, Daemon, Ended, Options, Progress, RUN_FILE};
use voltier_lab::table::{figure, render};
use voltier_lab::trace::Format;
use voltier_lab::twin::Extent;
use voltier_lab::{analysis, published, report};

use crate::lab_args::{LabCompare, LabImport, LabReport, LabRun, LabVerb, TwinArgs};
use crate::progress::Steps;
use crate::run::{print, print_json};

/// Folder of runs that are given no other.
const RUNS: &str = "voltier-lab";

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
        LabVerb::Import(args) => import(args, json),
        LabVerb::Twin(args) => twin(args, json),
        LabVerb::Trace(args) => crate::trace::run(&args.verb, state, json),
    }
}

fn twin(args: &TwinArgs, json: bool) -> ControlResult<()> {
    let extent = if args.quick { Extent::Quick } else { Extent::Full };
    let report = args.name.run(extent);
    print(&if json { report.json() } else { report.text() })
}

pub(crate) fn failed(error: LabError) -> ControlError {
    match error {
        LabError::Plan { .. } | LabError::Setting { .. } => ControlError::usage(error.to_string()),
        other => ControlError::failed(other.to_string()),
    }
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

/// Measures a plan.
///
/// # Errors
/// One line that says what to do.
pub(crate) fn measure(args: &LabRun, state: &StateDir, json: bool) -> ControlResult<()> {
    let program = std::env::current_exe()
        .map_err(|error| ControlError::io("finding this program's file", &error))?;
    let options = Options {
        targets: targets(args)?,
        destroy: args.destroy.clone(),
        daemon: Daemon { state: state.path().to_path_buf(), program },
    };
    let mut shown = Shown(Steps::new());
    let ended = match &args.resume {
        Some(folder) => {
            let ended = run::resume(folder, &options, &mut shown);
            shown.0.clear();
            ended.map_err(|error| with_hint(error, folder))?
        }
        None => {
            let plan = plan_of(args)?;
            let folder = folder(args, &plan);
            let ended = run::run(&plan, &options, &folder, &mut shown);
            shown.0.clear();
            ended.map_err(|error| with_hint(error, &folder))?
        }
    };
    tell(&ended, json)
}

/// An interrupted run can be gone on with: says how.
fn with_hint(error: LabError, folder: &Path) -> ControlError {
    match error {
        LabError::Interrupted => ControlError::failed(format!(
            "interrupted: what was measured is kept; \
             `voltier lab run --resume {}` goes on",
            folder.display()
        )),
        other => failed(other),
    }
}

fn tell(ended: &Ended, json: bool) -> ControlResult<()> {
    if json {
        let failed = ended.failed.as_ref().map_or(0, |(count, _)| *count);
        print_json(&json!({
            "folder": ended.folder, "measured": ended.measured, "failed": failed,
            "report": ended.report
        }))?;
    } else {
        let (folder, report) = (ended.folder.display(), ended.report.display());
        print(&format!("{} points measured: {folder}\nreport: {report}\n", ended.measured))?;
    }
    match &ended.failed {
        Some((count, why)) => Err(ControlError::failed(format!(
            "{count} points failed and are marked; the first: {why}"
        ))),
        None => Ok(()),
    }
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
    voltier_lab::import::read(if folder.exists() { &folder } else { path }).map_err(failed)
}

fn write_report(args: &LabReport, json: bool) -> ControlResult<()> {
    let run = read(&args.run)?;
    let references: Vec<Run> =
        args.references.iter().map(|given| read(given)).collect::<Result<_, _>>()?;
    let folder = match &args.out {
        Some(folder) => folder.clone(),
        None => report_folder(&args.run)?,
    };
    let files = report::write(&run, &references, &folder).map_err(failed)?;
    if json {
        return print_json(&json!({
            "html": files.html, "markdown": files.markdown, "csv": files.csv,
            "json": files.json, "is_partial": files.is_partial
        }));
    }
    let partial = if files.is_partial { " (PARTIAL: it says what is missing)" } else { "" };
    print(&format!("report: {}{partial}\n", files.html.display()))
}

/// Where the report of a run belongs: into its folder. What has none gets one under `voltier-lab`,
/// but not that of another run.
fn report_folder(given: &str) -> ControlResult<PathBuf> {
    let path = Path::new(given);
    if path.is_dir() {
        return Ok(path.to_path_buf());
    }
    if path.file_name().is_some_and(|name| name == RUN_FILE) {
        return Ok(path.parent().map_or_else(PathBuf::new, Path::to_path_buf));
    }
    let stem = path.file_stem().map_or_else(|| "report".into(), |stem| stem.to_string_lossy());
    let folder = Path::new(RUNS).join(if path.exists() { &*stem } else { given });
    if folder.join(RUN_FILE).exists() {
        return Err(ControlError::usage(format!(
            "{} holds another run: say with --out where the report of {given} is to be",
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
            let mean = cell.as_ref().map(|cell| figure(cell.estimate.mean));
            cells.push(mean.unwrap_or_else(|| "-".to_owned()));
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

fn import(args: &LabImport, json: bool) -> ControlResult<()> {
    let mut made = Vec::new();
    for file in &args.files {
        let run = voltier_lab::import::read(file).map_err(failed)?;
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

/// The targets with their names: `ssd=/dev/x`, or a path, which is called `target`.
fn targets(args: &LabRun) -> ControlResult<Vec<(String, String)>> {
    let mut targets = Vec::new();
    let mut unnamed = 0;
    let mut add = |given: &str| {
        // A name has no slash and no colon; what has is all target.
        let named = given.split_once('=').filter(|(name, target)| {
            !name.is_empty() && !target.is_empty() && !name.contains(['/', ':', '.', ','])
        });
        targets.push(match named {
            Some((name, target)) => (name.to_owned(), target.to_owned()),
            None => {
                unnamed += 1;
                let name = if unnamed == 1 { "target".into() } else { format!("target{unnamed}") };
                (name, given.to_owned())
            }
        });
    };
    args.targets.iter().for_each(|given| add(given));
    if let Some(path) = &args.lun {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ControlError::io(format!("reading {}", path.display()), &error))?;
        text.lines().map(str::trim).filter(|line| !line.is_empty()).for_each(add);
    }
    Ok(targets)
}

/// The plan with what the command line changes in it.
fn plan_of(args: &LabRun) -> ControlResult<Plan> {
    let name = args.plan.as_deref().unwrap_or_default();
    let mut changes = plan::settings_of(&args.orion).map_err(ControlError::usage)?;
    if !args.orion.is_empty() && name != "orion" {
        return Err(ControlError::usage("options after -- are Orion's: they go with `run orion`"));
    }
    for setting in &args.settings {
        let Some((key, value)) = setting.split_once('=') else {
            return Err(ControlError::usage(format!("--set {setting}: write KEY=VALUE")));
        };
        // As in a plan's file; a word without quotes is a text.
        let parsed = format!("value = {value}").parse::<plan::Table>().ok();
        let parsed = parsed.and_then(|mut table| table.remove("value"));
        let text = || plan::Value::String(value.to_owned());
        changes.insert(key.to_owned(), parsed.unwrap_or_else(text));
    }
    if let Some(size) = &args.size {
        changes.insert("size".to_owned(), plan::Value::String(size.clone()));
    }
    if let Some(seconds) = args.seconds {
        changes.insert("seconds".to_owned(), plan::Value::Float(seconds));
    }
    let path = Path::new(name);
    let is_file = path.extension().is_some_and(|extension| extension == "toml") || path.is_file();
    let plan = match is_file {
        true => plan::read(path, args.quick, &changes),
        false => plan::built_in(name, args.quick, &changes),
    };
    plan.map_err(failed)
}

/// The folder that was given, or the next free number under `voltier-lab`.
fn folder(args: &LabRun, plan: &Plan) -> PathBuf {
    if let Some(folder) = &args.out {
        return folder.clone();
    }
    let name = |number: u32| Path::new(RUNS).join(format!("{}-{number}", plan.name));
    (1..).map(name).find(|folder| !folder.exists()).unwrap_or_else(|| PathBuf::from(RUNS))
}

/// What a run tells goes to standard error: the answer alone to standard output.
struct Shown(Steps);

impl Progress for Shown {
    fn say(&mut self, line: &str) {
        self.0.say(line);
    }

    fn at(&mut self, done: Duration, total: Duration, what: &str) {
        self.0.at(done, total, what);
    }
}
