//! Writing dirty lines back as a job, alone or on the way to a detach or a delete.

use voltier_cache::Mode;

use crate::engine::Drain;
use crate::error::{ControlError, ControlResult};
use crate::name::VolumeName;
use crate::protocol::Response;
use crate::records::Desired;
use crate::service::state::jobs::Purpose;
use crate::service::state::turn::Turn;
use crate::service::volumes::show;
use crate::settings::Settings;

/// Starts a drain as a job, or joins the same one; a volume has one job at a time.
pub(crate) fn start_job(
    turn: &mut Turn,
    name: &VolumeName,
    purpose: Purpose,
) -> ControlResult<u64> {
    if let Some((id, running)) = turn.jobs.running(name) {
        return if running == purpose { Ok(id) } else { Err(busy(name, running)) };
    }
    turn.engine.start_drain(name)?;
    let dirty = dirty_lines(turn, name);
    Ok(turn.jobs.add(purpose, name.clone(), dirty))
}

/// Does at once, and without a drain, what a job would do at the end of its drain. Reports that like a job
/// which gave up all dirty lines.
pub(crate) fn at_once(
    turn: &mut Turn,
    name: &VolumeName,
    purpose: Purpose,
    finish: impl FnOnce(&mut Turn) -> ControlResult<()>,
) -> ControlResult<Response> {
    let lines = dirty_lines(turn, name);
    finish(turn)?;
    let id = turn.jobs.add(purpose, name.clone(), 0);
    turn.jobs.gave_up(id, lines);
    end_job(turn, id, Ok(()));
    job_response(turn, id)
}

/// Dirty lines of a volume; of one that is not open, as last counted.
fn dirty_lines(turn: &mut Turn, name: &VolumeName) -> u64 {
    if turn.is_open(name) {
        let known = turn.engine.health(name).dirty_lines;
        if let Some(dirty_lines) = known {
            return dirty_lines;
        }
    }
    if let Some(label) = turn.live.get(name).and_then(|live| live.ssd_label.as_ref()) {
        return label.dirty_lines;
    }
    let cache = turn.registry.find(name).and_then(|record| record.cache.as_ref());
    cache.map_or(0, |cache| cache.dirty_lines)
}

/// Ends the job of a volume whose dirty lines are given up instead: it need not be waited for.
///
/// # Errors
/// When the job leads elsewhere.
pub(crate) fn give_up_job(
    turn: &mut Turn,
    name: &VolumeName,
    purpose: Purpose,
) -> ControlResult<()> {
    let Some((id, running)) = turn.jobs.running(name) else { return Ok(()) };
    if running != Purpose::Flush && running != purpose {
        return Err(busy(name, running));
    }
    let verb = purpose.verb();
    let why = format!("{name}: its dirty lines were given up by a {verb} --no-flush");
    turn.jobs.end(id, Err(ControlError::failed(why)));
    Ok(())
}

/// Has a job end early, if it runs. The errand of its end does the rest: it may have to wait for a device.
pub(crate) fn ask_to_end(turn: &mut Turn, id: u64) -> ControlResult<Response> {
    if let Some(name) = turn.jobs.ask_to_end(id) {
        turn.engine.end_drain(&name);
    }
    job_response(turn, id)
}

/// The error of a job that was ended early.
pub(crate) fn ended_early(turn: &mut Turn, name: &VolumeName, purpose: Purpose) -> ControlError {
    let (verb, dirty) = (purpose.verb(), dirty_lines(turn, name));
    let stays = match purpose {
        Purpose::Flush => "",
        Purpose::Detach => ", and so does its cache",
        Purpose::Delete => ", and so does the volume, without its exports",
    };
    ControlError::failed(format!(
        "the {verb} of {name} was ended early; {dirty} dirty lines stay on its SSD{stays}"
    ))
}

/// Ends the flush of a volume that stops.
pub(crate) fn end_flush(turn: &mut Turn, name: &VolumeName) {
    if let Some((id, Purpose::Flush)) = turn.jobs.running(name) {
        turn.engine.end_drain(name);
        let error = ended_early(turn, name, Purpose::Flush);
        let why = format!("{error}: {name} was stopped");
        turn.jobs.end(id, Err(ControlError::failed(why)));
    }
}

pub(crate) fn job_response(turn: &Turn, id: u64) -> ControlResult<Response> {
    turn.jobs.status(id).map(|job| Response::Job { job })
}

/// Whether a request may change the volume: no detach or delete is under way.
pub(crate) fn not_leaving(turn: &Turn, name: &VolumeName) -> ControlResult<()> {
    match turn.jobs.running(name) {
        Some((_, purpose)) if purpose != Purpose::Flush => Err(busy(name, purpose)),
        _ => Ok(()),
    }
}

/// Notes how far the running jobs are. The jobs whose drains have ended, with their volumes.
pub(crate) fn drained_jobs(turn: &mut Turn) -> Vec<(u64, VolumeName)> {
    let mut drained = Vec::new();
    for (id, name, _) in turn.jobs.all_running() {
        let dirty = dirty_lines(turn, &name);
        turn.jobs.progress(id, dirty);
        if turn.jobs.is_to_end(id) {
            // The drain may have begun after the first try.
            turn.engine.end_drain(&name);
        }
        if turn.engine.drain(&name) != Drain::Running {
            drained.push((id, name));
        }
    }
    drained
}

/// Ends a job. A volume whose job has failed stays.
pub(crate) fn end_job(turn: &mut Turn, id: u64, outcome: ControlResult<()>) {
    let has_failed = outcome.is_err();
    let volume = turn.jobs.end(id, outcome);
    // The volume stays, and serves: its drain may be asked for again.
    if let Some(name) = volume.filter(|_| has_failed) {
        stay(turn, &name);
    }
}

/// Undoes that a volume was to leave, as far as that can be done.
pub(crate) fn stay(turn: &mut Turn, name: &VolumeName) {
    let Some(mut record) = turn.registry.find(name).cloned() else { return };
    record.desired = Desired::Serving;
    let settings = record.cache.as_ref().map(|cache| cache.settings.clone());
    let recorded = turn.registry.put(record);
    turn.note(name, recorded);
    if let Some(settings) = settings {
        let restored = turn.changing_settings_of(name).configure(name, &settings);
        turn.note(name, restored);
    }
}

/// Starts the drain of a volume that is leaving.
pub(crate) fn drain_for(
    turn: &mut Turn,
    name: &VolumeName,
    purpose: Purpose,
) -> ControlResult<u64> {
    let record = turn.record(name)?;
    if let Some(cache) = &record.cache
        && cache.settings.mode.writes_back()
    {
        let quiet = Settings { mode: Mode::PassThrough, ..cache.settings.clone() };
        turn.changing_settings_of(name).configure(name, &quiet)?;
    }
    start_job(turn, name, purpose)
}

/// Records how much a lost SSD would lose. With `at_rest`, or in a mode that makes no dirt, a
/// clean one would lose nothing.
pub(crate) fn record_dirt(turn: &mut Turn, name: &VolumeName, at_rest: bool) -> ControlResult<()> {
    let mut record = turn.record(name)?;
    let before = record.clone();
    // A volume that failed meanwhile cannot say, and what is on record stays.
    let health = turn.engine.health(name);
    let Some(dirty_lines) = health.dirty_lines else { return Ok(()) };
    let mut status = show::recorded(&record);
    turn.engine.fill_status(name, &mut status);
    if let Some(cache) = &mut record.cache {
        cache.dirty_lines = dirty_lines;
        // An SSD that is gone may come back: nothing is lost before that is on record.
        if cache.failed.is_some() || !health.ssd_is_gone {
            // Of what was lost, clients may have written some anew.
            (cache.lost, cache.lost_total) = (status.lost, status.lost_ranges);
        }
        let stays_clean = at_rest || !cache.settings.mode.writes_back();
        cache.maybe_dirty &= dirty_lines > 0 || !stays_clean;
    }
    if record == before { Ok(()) } else { turn.registry.put(record) }
}

fn busy(name: &VolumeName, purpose: Purpose) -> ControlError {
    let verb = purpose.verb();
    ControlError::failed(format!(
        "a {verb} of {name} is under way; watch it with `voltier {verb} {name}`, then try again"
    ))
}
