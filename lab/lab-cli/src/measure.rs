//! `voltier lab run`: a plan with what the command line changes in it, measured with its progress shown.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use voltier_cli::output::{print, print_json};
use voltier_control::{ControlError, ControlResult, StateDir};
use voltier_lab::LabError;
use voltier_lab::plan::{self, Plan};
use voltier_lab::run::{self, Daemon, Ended, Options, Progress};

use crate::failure::failed;
use crate::lab_args::LabRun;
use crate::product;
use crate::steps::Steps;

/// Folder of runs that are given no other. Where the program itself lies the name is taken.
pub(crate) fn runs_folder() -> &'static Path {
    let usual = Path::new("voltier-lab");
    if usual.is_file() { Path::new("voltier-lab-runs") } else { usual }
}

/// Measures a plan.
///
/// # Errors
/// One line that says what to do.
pub(crate) fn measure(args: &LabRun, state: &StateDir, json: bool) -> ControlResult<()> {
    let options = Options {
        targets: targets(args)?,
        destroy: args.destroy.clone(),
        daemon: Daemon { state: state.path().to_path_buf(), program: product::program()? },
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

/// The folder that was given, or the next free number in the folder of runs.
fn folder(args: &LabRun, plan: &Plan) -> PathBuf {
    if let Some(folder) = &args.out {
        return folder.clone();
    }
    let runs = runs_folder();
    let name = |number: u32| runs.join(format!("{}-{number}", plan.name));
    (1..).map(name).find(|folder| !folder.exists()).unwrap_or_else(|| runs.to_owned())
}

/// The progress of a run goes to standard error: the answer alone to standard output.
struct Shown(Steps);

impl Progress for Shown {
    fn say(&mut self, line: &str) {
        self.0.say(line);
    }

    fn at(&mut self, done: Duration, total: Duration, what: &str) {
        self.0.at(done, total, what);
    }
}
