//! A run: from a plan and targets to the file of a run.
//!
//! Reading route: [`run`] and [`resume`]. `Session` measures point after point; `gate` stands before
//! the first write; `target` is what can be measured. `load`, `clients`, `files`, `database` and
//! `model` are the ways of measuring.

mod clients;
mod database;
mod facts;
mod files;
mod folder;
mod gate;
mod lateness;
mod load;
mod merge;
mod meter;
mod model;
mod progress;
mod purge;
mod replay;
mod replay_model;
mod session;
mod steady;
mod target;
mod timeline;

pub use facts::environment;
pub use folder::{RAW_FOLDER, RUN_FILE};
pub use progress::{Ended, Progress};
pub use target::{Daemon, Target};

use std::path::Path;
use std::time::Duration;

use voltier_results::result::{Manifest, Run, RunWriter};

use crate::LabError;
use crate::fio::{Fio, OLDEST_FOR_PLANS};
use crate::plan::step::{self, Estimate, Group};
use crate::plan::{self, Extent, Plan};
use crate::process::Stop;
use folder::{make_folder, out_of_space};
use session::Session;
use target::Kind;

/// How a run is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name in the plan and what was given.
    pub targets: Vec<(String, String)>,
    /// Targets that may lose what they hold: paths or serial numbers, each given a second time.
    pub destroy: Vec<String>,
    /// Where volumes are found.
    pub daemon: Daemon,
}

/// Names and descriptions of the drives that can be modelled.
pub fn models() -> impl Iterator<Item = (&'static str, &'static str)> {
    voltier_drive::model::Profile::list()
}

/// Measures a plan into a new folder.
///
/// # Errors
/// One line that says what to do. Points that were measured before stay in the folder.
pub fn run(
    plan: &Plan,
    options: &Options,
    folder: &Path,
    progress: &mut dyn Progress,
) -> Result<Ended, LabError> {
    let stop = Stop::on_signals()?;
    let mut targets = find(plan, options, &stop)?;
    let fio = find_fio(&targets, &stop)?;
    let groups = groups(plan, &targets)?;
    let estimate = step::estimate(&groups);
    let is_writing = groups.iter().flat_map(|group| &group.points).any(step::Planned::writes);
    let lost = match is_writing {
        true => gate::pass(&targets, &options.destroy)?,
        false => Vec::new(),
    };
    make_folder(folder, &estimate)?;
    announce(plan, &estimate, is_writing, fio.is_none(), &lost, progress);
    let manifest = manifest(plan, &targets, fio.as_ref(), folder);
    let path = folder.join(RUN_FILE);
    let writer =
        RunWriter::create(&path, &manifest).map_err(|error| out_of_space(error, folder))?;
    for target in &mut targets {
        target.open(fio.as_ref())?;
    }
    let begun = Run { manifest, ..Run::default() };
    Session::new(plan, groups, targets, fio, folder, writer, begun, stop).measure(progress)
}

/// Goes on with an interrupted run: what is measured stays, what is not is measured.
///
/// # Errors
/// As [`run`]; also when the folder holds no run, or is one of modelled drives.
pub fn resume(
    folder: &Path,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<Ended, LabError> {
    let stop = Stop::on_signals()?;
    let path = folder.join(RUN_FILE);
    let (writer, done) = RunWriter::resume(&path)?;
    let refuse =
        |why: &str| LabError::Plan { what: path.display().to_string(), why: why.to_owned() };
    if done.manifest.is_simulation {
        return Err(refuse("modelled drives keep nothing between runs: begin a new run"));
    }
    if done.manifest.plan_text.is_empty() {
        return Err(refuse(
            "the results were imported or computed: there is no plan to go on with",
        ));
    }
    let plan = plan::parse(&done.manifest.plan_text)?;
    let given = done.manifest.targets.iter();
    let given = given.map(|target| (target.name.clone(), target.given.clone())).collect();
    let options = Options { targets: given, ..options.clone() };
    let mut targets = find(&plan, &options, &stop)?;
    for (target, info) in targets.iter_mut().zip(&done.manifest.targets) {
        let was_made = info.facts.contains_key(facts::MADE);
        if was_made && !target.made.is_empty() {
            return Err(LabError::Target {
                target: target.given.clone(),
                why: "is gone, which the run had made: begin a new run".to_owned(),
            });
        }
        if let (true, Kind::Paths(paths)) = (was_made, &target.kind) {
            target.made.clone_from(paths);
        }
    }
    let fio = find_fio(&targets, &stop)?;
    let groups = groups(&plan, &targets)?;
    if groups.iter().flat_map(|group| &group.points).any(step::Planned::writes) {
        gate::pass(&targets, &options.destroy)?;
    }
    for target in &mut targets {
        target.reopen(fio.as_ref())?;
    }
    progress.say(&format!("{}: {} points are there", plan.title(), done.points.len()));
    Session::new(&plan, groups, targets, fio, folder, writer, done, stop).measure(progress)
}

fn find(plan: &Plan, options: &Options, stop: &Stop) -> Result<Vec<Target>, LabError> {
    let mut wanted = options.targets.clone();
    if wanted.is_empty() {
        return Err(LabError::Plan {
            what: plan.name.clone(),
            why: "no target is given: name one with --target PATH (or volume:NAME, nbd://..., \
                  model:PROFILE)"
                .to_owned(),
        });
    }
    if plan.is_joint() && wanted.len() > 1 {
        let all: Vec<String> = wanted.into_iter().map(|(_, given)| given).collect();
        wanted = vec![("luns".to_owned(), all.join(","))];
    }
    let mut targets = Vec::<Target>::new();
    for (name, given) in &wanted {
        if targets.iter().any(|target| target.name == *name) {
            return Err(LabError::Plan {
                what: plan.name.clone(),
                why: format!("two targets are called {name}: write --target NAME=TARGET"),
            });
        }
        let target = Target::find(name, given, plan.extent(), &options.daemon, stop)?;
        let needs_folder =
            matches!(plan.method, plan::Method::HotFiles(_) | plan::Method::Database(_));
        if matches!(target.kind, Kind::Folder(_)) && !needs_folder {
            return Err(LabError::Target {
                target: given.clone(),
                why: "is a folder: this plan needs a file, a device or a volume".to_owned(),
            });
        }
        targets.push(target);
    }
    let models = targets.iter().filter(|target| matches!(target.kind, Kind::Model(_))).count();
    if models > 0 && models < targets.len() {
        return Err(LabError::Plan {
            what: plan.name.clone(),
            why: "modelled drives run in virtual time: they cannot be measured beside real ones"
                .to_owned(),
        });
    }
    if let plan::Method::Trace(trace) = &plan.method
        && !trace.cache.is_empty()
        && models == 0
    {
        return Err(LabError::Plan {
            what: plan.name.clone(),
            why: "a modelled cache goes before a modelled drive: --target model:PROFILE, or a cached \
                  volume as target"
                .to_owned(),
        });
    }
    Ok(targets)
}

fn find_fio(targets: &[Target], stop: &Stop) -> Result<Option<Fio>, LabError> {
    if targets.iter().all(|target| matches!(target.kind, Kind::Model(_))) {
        return Ok(None);
    }
    Fio::find(OLDEST_FOR_PLANS, stop).map(Some)
}

fn groups(plan: &Plan, targets: &[Target]) -> Result<Vec<Group>, LabError> {
    let subjects: Vec<_> = targets.iter().map(Target::subject).collect();
    plan.groups(&subjects)
}

fn announce(
    plan: &Plan,
    estimate: &Estimate,
    is_writing: bool,
    is_virtual: bool,
    lost: &[String],
    progress: &mut dyn Progress,
) {
    let span = |least: String, most: String| match least == most {
        true => least,
        false => format!("{least} to {most}"),
    };
    let points = span(estimate.points_min.to_string(), estimate.points_max.to_string());
    let time = span(in_words(estimate.time_min), in_words(estimate.time_max));
    progress.say(&format!("{}: {points} points, about {time}", plan.title()));
    if is_writing {
        progress.say(&gate::announcement(estimate));
    } else {
        progress.say("writes nothing");
    }
    if is_virtual {
        progress.say("modelled drives: all of it is virtual time");
    }
    for what in lost {
        progress.say(&format!("will be lost: {what}"));
    }
}

/// A time as people say it: "50 s", "4 min", "23 h 20 min".
pub fn in_words(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_millis() >= 500);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

fn manifest(plan: &Plan, targets: &[Target], fio: Option<&Fio>, folder: &Path) -> Manifest {
    let text = plan.text();
    let name =
        folder.file_name().map_or_else(|| plan.name.clone(), |name| name.to_string_lossy().into());
    let mut notes = Vec::new();
    if plan.is_quick {
        notes.push(format!("{}: times and sizes are too small to judge a drive by", plan.title()));
    }
    notes.extend(notes_of(plan, targets));
    Manifest {
        run: name,
        plan: plan.name.clone(),
        plan_crc32c: crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, text.as_bytes()) as u32,
        plan_text: text,
        started_unix_ms: meter::unix_ms(),
        tool: format!("voltier {}", env!("CARGO_PKG_VERSION")),
        is_simulation: fio.is_none(),
        targets: targets.iter().map(Target::info).collect(),
        environment: environment(fio.map_or("", Fio::version)),
        notes,
        ..Manifest::default()
    }
}

/// Notes on the way in which the figures were made, for their reader.
fn notes_of(plan: &Plan, targets: &[Target]) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |text: &str| notes.push(text.to_owned());
    match &plan.method {
        plan::Method::Pts(_) => {
            note(
                "Purge is a discard of the used range, or zeroes where there is none; no secure \
                  erase and no format",
            );
            note(
                "Continuous writing is a row of runs of fio with a fraction of a second between \
                  them; the long parts of HIR, XSR and DIRTH are one run each",
            );
        }
        plan::Method::Orion(orion) if targets.iter().any(|target| target.given.contains(',')) => {
            let is_striped = orion.is_striped();
            note(match is_striped && orion.large_type == "seq" {
                true => {
                    "Several targets are used by one job: streams stripe by stripe, random requests \
                         on one of them at random"
                }
                false => {
                    "Several targets are used by one job, each request on one of them at random"
                }
            });
            if orion.simulate == "raid0" && !is_striped {
                note("raid0 is approximated so: the stripe is no multiple of the requests");
            }
        }
        _ => {}
    }
    if plan.extent() != Extent::Whole && matches!(plan.method, plan::Method::Pts(_)) {
        note("The active range is a part of the target");
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_as_people_say_them() {
        for (seconds, said) in [(50, "50 s"), (125, "3 min"), (84_000, "23 h 20 min")] {
            assert_eq!(in_words(Duration::from_secs(seconds)), said);
        }
    }
}
