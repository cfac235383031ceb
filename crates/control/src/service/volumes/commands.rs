//! Creating, changing and deleting volumes and their caches.

use std::collections::BTreeMap;

use crate::engine::CacheStart;
use crate::error::{ControlError, ControlResult};
use crate::export_spec::ExportSpec;
use crate::name::VolumeName;
use crate::protocol::{NewCache, Response};
use crate::records::{CacheRecord, Desired, VolumeRecord};
use crate::safety::Role;
use crate::service::presence::admit::{Admitted, Beside};
use crate::service::presence::{admit, look, named_drives};
use crate::service::state::jobs::Purpose;
use crate::service::state::live::Live;
use crate::service::state::turn::Turn;
use crate::service::volumes::open::{close_volume, open_volume, put_in_front};
use crate::service::volumes::silence::{self, WayOn};
use crate::service::volumes::{drains, exports, finish, given_up, in_use, removal, reports, show};
use crate::settings::{ORIGIN_KEY, SSD_KEY};
use crate::spec::DeviceSpec;
use crate::status::DeviceState;

pub(crate) fn create(
    turn: &mut Turn,
    name: VolumeName,
    origin: DeviceSpec,
    cache: Option<NewCache>,
    export: Option<ExportSpec>,
) -> ControlResult<Response> {
    if turn.registry.find(&name).is_some() {
        return Err(ControlError::failed(format!(
            "a volume `{name}` exists; choose another name or `voltier delete {name}` first"
        )));
    }
    if let Some(export) = &export {
        exports::check(turn, &name, export)?;
    }
    let Admitted { size_bytes, mark } =
        admit::admit(turn, &origin, Role::Origin, false, Beside::None)?;
    let ssd = cache.as_ref().map(|new| &new.device);
    given_up::no_cache_names(turn, &origin, mark.as_ref(), ssd)?;
    let cache = match cache {
        None => None,
        Some(new) => Some(admit::admit_cache(turn, new, &origin)?),
    };
    let mut record = VolumeRecord {
        name: name.clone(),
        uuid: turn.engine.draw_identity()?,
        size_bytes,
        origin_identity: mark,
        origin,
        cache,
        exports: Vec::new(),
        export_access: BTreeMap::new(),
        desired: Desired::Serving,
    };
    // No export is open yet, so nothing can be acknowledged before the record is written.
    let opened = open_volume(turn, &record, CacheStart::Format)?;
    record.size_bytes = opened.size_bytes;
    if let Some(cache) = &mut record.cache {
        cache.generation = opened.generation;
    }
    if let Err(error) = turn.registry.put(record) {
        let undone = undo_create(turn, &name);
        turn.note(&name, undone);
        return Err(error);
    }
    turn.live.insert(name.clone(), Live { is_open: true, ..Live::new() });
    let Some(export) = export else { return Ok(show::volume(turn, &name)) };
    exports::export(turn, &name, export, false, None).inspect_err(|_| {
        // Nothing was written to the volume yet.
        let undone = removal::drop_volume(turn, &name, false);
        turn.note(&name, undone);
    })
}

fn undo_create(turn: &mut Turn, name: &VolumeName) -> ControlResult<()> {
    // Without a cache there is none to take away: that is no error here.
    let _ = turn.apart(format!("taking the cache of {name} away")).detach(name, false);
    close_volume(turn, name)
}

pub(crate) fn set(
    turn: &mut Turn,
    name: &VolumeName,
    changes: &[(String, String)],
) -> ControlResult<Response> {
    if let [(key, device)] = changes
        && [ORIGIN_KEY, SSD_KEY].contains(&key.as_str())
    {
        return named_drives::take(turn, name, key, device.parse()?);
    }
    let mut record = turn.open_record(name)?;
    drains::not_leaving(turn, name)?;
    not_evacuating(turn, &record)?;
    let before = record.clone();
    let cache = live_cache(&mut record)?;
    for (key, value) in changes {
        cache.settings.apply(key, value)?;
    }
    cache.settings.check()?;
    if cache.settings.ephemeral_ssd && cache.maybe_dirty {
        return Err(ControlError::failed(format!(
            "the SSD of {name} may hold {}, which an ephemeral SSD must not; `voltier set {name} mode=wt` and \
             `voltier flush {name}` first",
            cache.newest_data()
        )));
    }
    cache.maybe_dirty |= cache.settings.mode.writes_back();
    let settings = cache.settings.clone();
    turn.registry.put(record.clone())?;
    let configured = reports::tell_before(turn, &before, &record)
        .and_then(|()| turn.changing_settings_of(name).configure(name, &settings));
    if let Err(error) = configured {
        let mut record = turn.record(name)?;
        record.cache = restored(record.cache, before.cache);
        turn.registry.put(record)?;
        return Err(error);
    }
    Ok(show::volume(turn, name))
}

pub(crate) fn flush(turn: &mut Turn, name: &VolumeName) -> ControlResult<Response> {
    let mut record = turn.open_record(name)?;
    live_cache(&mut record)?;
    silence::must_answer(turn, &record, WayOn::Wait)?;
    let id = drains::start_job(turn, name, Purpose::Flush)?;
    drains::job_response(turn, id)
}

pub(crate) fn attach(turn: &mut Turn, name: &VolumeName, new: NewCache) -> ControlResult<Response> {
    let record = turn.open_record(name)?;
    drains::not_leaving(turn, name)?;
    if record.cache.is_some() {
        return Err(ControlError::failed(format!(
            "{name} has a cache; `voltier detach {name}` takes it away first"
        )));
    }
    look::takes_writes(turn, &record.origin, "backing disk")?;
    let cache = admit::admit_cache(turn, new, &record.origin)?;
    put_in_front(turn, &record, cache, None)?;
    Ok(show::volume(turn, name))
}

pub(crate) fn detach(turn: &mut Turn, name: &VolumeName, flush: bool) -> ControlResult<Response> {
    let mut record = turn.record(name)?;
    let Some(cache) = record.cache.clone() else {
        return Err(ControlError::failed(format!("{name} has no cache to detach")));
    };
    record.must_not_be_stopped()?;
    let is_open = turn.is_open(name);
    if flush {
        not_evacuating(turn, &record)?;
        silence::must_answer(turn, &record, WayOn::GiveUp)?;
    } else {
        silence::hdd_must_answer(turn, &record)?;
    }
    if !is_open || cache.failed.is_some() {
        may_lose(name, &cache, flush)?;
        return detach_at_once(turn, name);
    }
    if !flush {
        drains::give_up_job(turn, name, Purpose::Detach)?;
        return detach_at_once(turn, name);
    }
    leave(turn, name, &mut record, Desired::Detaching, Purpose::Detach)
}

/// Detaches without a drain; dirty lines are given up.
fn detach_at_once(turn: &mut Turn, name: &VolumeName) -> ControlResult<Response> {
    drains::at_once(turn, name, Purpose::Detach, |turn| finish::drop_cache(turn, name, false))
}

pub(crate) fn delete(turn: &mut Turn, name: &VolumeName, flush: bool) -> ControlResult<Response> {
    if turn.registry.find(name).is_none()
        && let Some(id) = turn.jobs.untold_delete(name)
    {
        return drains::job_response(turn, id);
    }
    let mut record = turn.record(name)?;
    match turn.jobs.running(name) {
        Some((id, Purpose::Delete)) if flush => return drains::job_response(turn, id),
        Some((_, Purpose::Delete)) => {}
        _ => drains::not_leaving(turn, name)?,
    }
    if flush && record.cache.is_some() {
        record.must_not_be_stopped()?;
    }
    in_use::is_unused(turn, &record, &format!("voltier unexport {name} --now"))?;
    if flush {
        not_evacuating(turn, &record)?;
        silence::must_answer(turn, &record, WayOn::GiveUp)?;
    } else {
        silence::hdd_must_answer(turn, &record)?;
    }
    let is_open = turn.is_open(name);
    let drains = match &record.cache {
        Some(cache) if !is_open || cache.failed.is_some() => {
            may_lose(name, cache, flush)?;
            false
        }
        Some(_) => flush,
        None => false,
    };
    exports::close_exports(turn, &mut record)?;
    if !flush {
        drains::give_up_job(turn, name, Purpose::Delete)?;
    }
    if drains {
        leave(turn, name, &mut record, Desired::Deleting, Purpose::Delete)
    } else {
        drains::at_once(turn, name, Purpose::Delete, |turn| removal::drop_volume(turn, name, false))
    }
}

/// Refuses changes of a cache whose SSD takes no writes: its dirty lines reach the origin first.
fn not_evacuating(turn: &mut Turn, record: &VolumeRecord) -> ControlResult<()> {
    let status = show::status(turn, record);
    if status.ssd.state != DeviceState::Evacuating {
        return Ok(());
    }
    let (name, lines) = (&record.name, status.lines.dirty);
    Err(ControlError::failed(format!(
        "the SSD of {name} takes no writes, and {lines} dirty lines of it are being written to \
         {}; wait until `voltier show {name}` says that this is done, or `voltier detach \
         --no-flush {name}` gives them up",
        record.origin
    )))
}

/// Sends a volume on its way out: no new dirty lines, the old ones drained as a job.
fn leave(
    turn: &mut Turn,
    name: &VolumeName,
    record: &mut VolumeRecord,
    desired: Desired,
    purpose: Purpose,
) -> ControlResult<Response> {
    if turn.jobs.running(name).is_none() {
        record.desired = desired;
        turn.registry.put(record.clone())?;
    }
    match drains::drain_for(turn, name, purpose) {
        Ok(id) => drains::job_response(turn, id),
        Err(error) => {
            drains::stay(turn, name);
            Err(error)
        }
    }
}

/// Refuses to give a cache up that may hold the only copy of something, unless told to.
fn may_lose(name: &VolumeName, cache: &CacheRecord, flush: bool) -> ControlResult<()> {
    if !cache.maybe_dirty || !flush {
        return Ok(());
    }
    Err(ControlError::failed(format!(
        "the cache of {name} ({}) is not there and may hold {}; \
         bring it back, and the volume is served, or give them up with --no-flush",
        cache.device,
        cache.newest_data()
    )))
}

/// The record of a cache with the settings of before.
fn restored(cache: Option<CacheRecord>, before: Option<CacheRecord>) -> Option<CacheRecord> {
    let CacheRecord { settings, maybe_dirty, .. } = before?;
    cache.map(|cache| match cache.failed {
        // The loss of the SSD, which was recorded meanwhile, says what is dirty.
        Some(_) => CacheRecord { settings, ..cache },
        None => CacheRecord { settings, maybe_dirty, ..cache },
    })
}

fn live_cache(record: &mut VolumeRecord) -> ControlResult<&mut CacheRecord> {
    let name = record.name.clone();
    match &mut record.cache {
        Some(cache) if cache.failed.is_none() => Ok(cache),
        Some(_) => Err(ControlError::failed(format!(
            "the cache of {name} failed; `voltier detach {name}`, then attach another SSD"
        ))),
        None => Err(ControlError::failed(format!(
            "{name} has no cache; give it one with `voltier attach {name} -s SSD`"
        ))),
    }
}
