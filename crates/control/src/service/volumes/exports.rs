//! Opening and closing exports, and trying again those that could not be opened.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::error::{ControlError, ControlResult};
use crate::export_access::ExportAccess;
use crate::export_spec::ExportSpec;
use crate::name::VolumeName;
use crate::protocol::Response;
use crate::records::VolumeRecord;
use crate::service::presence::look;
use crate::service::state::live::{ClosedExport, now};
use crate::service::state::turn::Turn;
use crate::service::volumes::{in_use, show};

/// The pause after the first failed attempt to open an export; it doubles from one to the next.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(60);

pub(crate) fn export(
    turn: &mut Turn,
    name: &VolumeName,
    export: ExportSpec,
    insecure: bool,
    access: Option<ExportAccess>,
) -> ControlResult<Response> {
    let mut record = turn.open_record(name)?;
    let uri = export.uri(name);
    check_access(&export, access.as_ref())?;
    let mut is_open = record.exports.contains(&export) && !turn.is_closed(name, &export);
    if is_open && let Some(why) = turn.engine.export_trouble(name, &export) {
        close_unreachable(turn, &record, &export, why)?;
        is_open = false;
    }
    if is_open && access.is_some() && record.access_of(&export) != access.as_ref() {
        let before = record.access_of(&export);
        return Err(ControlError::failed(format!(
            "{uri} is open already with {}; `voltier unexport {name} {}`, then export it again",
            before.map_or_else(|| "mode 0600".to_owned(), ToString::to_string),
            export.option()
        )));
    }
    if is_open {
        return Ok(show::volume(turn, name));
    }
    if !insecure {
        stays_on_host(name, &export)?;
    }
    if turn.jobs.running(name).is_some_and(|(_, purpose)| purpose.verb() == "delete") {
        return Err(ControlError::failed(format!("{name} is being deleted; export another")));
    }
    is_free(turn, name, &export)?;
    let access = access.or_else(|| record.access_of(&export).cloned());
    let export = turn.opening(export.uri(name)).export(name, &export, access.as_ref())?;
    record = turn.record(name)?;
    record.forget_export(&export);
    record.exports.push(export.clone());
    record.export_access.extend(export.path().map(PathBuf::from).zip(access));
    if let Err(error) = turn.registry.put(record) {
        let closed = turn.closing(export.uri(name)).unexport(name, &export, false);
        turn.note(name, closed);
        return Err(error);
    }
    if let Some(live) = turn.live.get_mut(name) {
        live.closed_exports.retain(|closed| closed.export != export);
    }
    Ok(show::volume(turn, name))
}

/// Refuses an export of a new volume that cannot be opened, before anything is changed.
pub(crate) fn check(turn: &mut Turn, name: &VolumeName, export: &ExportSpec) -> ControlResult<()> {
    stays_on_host(name, export)?;
    is_free(turn, name, export)?;
    turn.opening(export.uri(name)).check_export(export)
}

fn stays_on_host(name: &VolumeName, export: &ExportSpec) -> ControlResult<()> {
    if !export.leaves_host() {
        return Ok(());
    }
    Err(ControlError::usage(format!(
        "{} would let every host that reaches the port read and write {name}: there is no password and no \
         encryption; export a Unix socket and forward that (ssh -L), or `voltier export` it with --insecure if \
         only trusted hosts reach the port",
        export.uri(name)
    )))
}

/// Refuses an export that another volume has, and a second block device.
fn is_free(turn: &Turn, name: &VolumeName, export: &ExportSpec) -> ControlResult<()> {
    if let Some(other) = holder_of(turn, name, export) {
        return Err(ControlError::failed(format!(
            "{} is an export of volume {other}; choose another address",
            export.uri(&other)
        )));
    }
    let own = turn.registry.find(name).into_iter().flat_map(|record| &record.exports);
    match own.filter(|it| *it != export).find(|it| it.is_device() && export.is_device()) {
        None => Ok(()),
        // Two devices have caches of their own, and neither sees what the other holds.
        Some(device) => Err(ControlError::failed(format!(
            "{name} has a block device already, {}; `voltier unexport {name} {}` takes it away",
            device.uri(name),
            device.option()
        ))),
    }
}

/// Closes an open export through which no client can come any more. The export stays on record, to be
/// opened again.
fn close_unreachable(
    turn: &mut Turn,
    record: &VolumeRecord,
    export: &ExportSpec,
    why: String,
) -> ControlResult<()> {
    let name = &record.name;
    let closing = VolumeRecord { exports: vec![export.clone()], ..record.clone() };
    in_use::is_unused(turn, &closing, &format!("voltier unexport {name} --now"))?;
    turn.closing(export.uri(name)).unexport(name, export, false)?;
    try_later(turn, name, export, why);
    Ok(())
}

/// Opens what the record of a volume says. Those that cannot be opened now are tried again later.
pub(crate) fn open_exports(turn: &mut Turn, record: &VolumeRecord) {
    let name = &record.name;
    for export in &record.exports {
        if export.leaves_host() {
            let line = format!(
                "{} has no password and no encryption: every host that reaches the port reads and \
                 writes the volume",
                export.uri(name)
            );
            turn.log(name, &line);
        }
        let access = record.access_of(export);
        let open = |turn: &mut Turn| turn.opening(export.uri(name)).export(name, export, access);
        if let Err(error) = look::again(turn, open) {
            turn.log(name, &error.message);
            try_later(turn, name, export, error.message);
        }
    }
}

/// Notes that an export could not be opened; the watch tries again.
pub(crate) fn try_later(turn: &mut Turn, name: &VolumeName, export: &ExportSpec, error: String) {
    if let Some(live) = turn.live.get_mut(name) {
        let (pause, next) = (FIRST_PAUSE, now() + FIRST_PAUSE);
        live.closed_exports.push(ClosedExport { export: export.clone(), error, pause, next });
    }
}

/// The volumes with exports whose pause is over.
pub(crate) fn due_exports(turn: &Turn, now: Instant) -> Vec<VolumeName> {
    let open = turn.live.iter().filter(|(_, live)| live.is_open);
    let due = open.filter(|(_, live)| live.closed_exports.iter().any(|it| it.next <= now));
    due.map(|(name, _)| name.clone()).collect()
}

/// Tries again to open the exports of a volume whose pause is over: their address may be there now.
pub(crate) fn try_exports_again(turn: &mut Turn, name: &VolumeName, now: Instant) {
    let Some(live) = turn.live.get(name).filter(|live| live.is_open) else { return };
    let due = live.closed_exports.iter().filter(|closed| closed.next <= now);
    let due: Vec<ExportSpec> = due.map(|closed| closed.export.clone()).collect();
    for export in due {
        try_export_again(turn, name, &export, now);
    }
}

/// How soon to try exports again, if there are any to try.
pub(crate) fn next_export(turn: &Turn, now: Instant) -> Option<Duration> {
    let open = turn.live.values().filter(|live| live.is_open);
    let next = open.flat_map(|live| &live.closed_exports).map(|closed| closed.next).min();
    next.map(|next| next.saturating_duration_since(now))
}

fn try_export_again(turn: &mut Turn, name: &VolumeName, export: &ExportSpec, now: Instant) {
    let access = turn.registry.find(name).and_then(|record| record.access_of(export)).cloned();
    let opened = turn.opening(export.uri(name)).export(name, export, access.as_ref());
    let Some(live) = turn.live.get_mut(name) else { return };
    let line = match opened {
        Ok(_) => {
            live.closed_exports.retain(|closed| closed.export != *export);
            Some(format!("{} is open", export.uri(name)))
        }
        Err(error) => {
            let closed = live.closed_exports.iter_mut().find(|it| it.export == *export);
            let Some(closed) = closed else { return };
            closed.pause = (closed.pause * 2).min(PAUSE_MAX);
            closed.next = now + closed.pause;
            let before = std::mem::replace(&mut closed.error, error.message.clone());
            (before != error.message).then_some(error.message)
        }
    };
    if let Some(line) = line {
        turn.log(name, &line);
    }
}

pub(crate) fn unexport(
    turn: &mut Turn,
    name: &VolumeName,
    export: Option<&ExportSpec>,
    now: bool,
) -> ControlResult<Response> {
    let mut record = turn.record(name)?;
    let exports = match export {
        None => record.exports.clone(),
        Some(one) if record.exports.contains(one) => vec![one.clone()],
        Some(one) => {
            let known: Vec<String> = record.exports.iter().map(|export| export.uri(name)).collect();
            let known = if known.is_empty() { "it has none".to_owned() } else { known.join(", ") };
            return Err(ControlError::failed(format!(
                "{name} has no export {}; its exports: {known}",
                one.uri(name)
            )));
        }
    };
    if !now {
        let closing = VolumeRecord { exports: exports.clone(), ..record.clone() };
        in_use::is_unused(turn, &closing, &format!("voltier unexport {name} --now"))?;
    }
    close_these(turn, &mut record, &exports, now)?;
    Ok(show::volume(turn, name))
}

/// Closes every export of a volume for good.
pub(crate) fn close_exports(turn: &mut Turn, record: &mut VolumeRecord) -> ControlResult<()> {
    let exports = record.exports.clone();
    close_these(turn, record, &exports, false)
}

fn close_these(
    turn: &mut Turn,
    record: &mut VolumeRecord,
    exports: &[ExportSpec],
    cut_off: bool,
) -> ControlResult<()> {
    let name = record.name.clone();
    if cut_off {
        in_use::sync_above(turn, &name, exports);
    }
    // Files first: one that is in use refuses, and then nothing has changed.
    let (files, others): (Vec<_>, Vec<_>) =
        exports.iter().partition(|export| export.file().is_some());
    for export in files.into_iter().chain(others) {
        if turn.is_open(&name) && !turn.is_closed(&name, export) {
            turn.closing(export.uri(&name)).unexport(&name, export, cut_off)?;
        }
        turn.closing(export.uri(&name)).end_kept(export, "the export was closed");
        *record = turn.record(&name)?;
        record.forget_export(export);
        turn.registry.put(record.clone())?;
        if let Some(live) = turn.live.get_mut(&name) {
            live.closed_exports.retain(|closed| closed.export != *export);
        }
    }
    Ok(())
}

/// Ends the files of a volume that the daemon before left, because what they show is going to be another content.
pub(crate) fn end_kept(turn: &mut Turn, record: &VolumeRecord, why: &str) {
    for export in &record.exports {
        turn.closing(export.uri(&record.name)).end_kept(export, why);
    }
}

/// Another volume that has this very export.
fn holder_of(turn: &Turn, name: &VolumeName, export: &ExportSpec) -> Option<VolumeName> {
    turn.registry
        .volumes()
        .iter()
        .filter(|volume| volume.name != *name)
        .find(|volume| volume.exports.iter().any(|it| it == export || is_same_device(it, export)))
        .map(|volume| volume.name.clone())
}

fn is_same_device(one: &ExportSpec, other: &ExportSpec) -> bool {
    let device = |export: &ExportSpec| match export {
        ExportSpec::Loop { device, .. } => Some(device.clone()),
        ExportSpec::Nbd(_) | ExportSpec::Fuse(_) => None,
    };
    device(one).is_some() && device(one) == device(other)
}

/// Refuses an access that the export cannot have. The command line checks words too; another client of the
/// control socket may not.
fn check_access(export: &ExportSpec, access: Option<&ExportAccess>) -> ControlResult<()> {
    let Some(access) = access else { return Ok(()) };
    if export.path().is_none() {
        return Err(ControlError::usage(format!(
            "{} has no mode, owner or group; export a Unix socket (--nbd unix:PATH) for them",
            export.noun()
        )));
    }
    access.check()
}
