//! Stops on request: of a volume, of an array, of the daemon. A stop does not take storage away from clients
//! that use it, unless told to: a person who stops a volume usually has forgotten a mount, and a file system
//! whose file goes away loses its dirty pages.

use crate::error::{ControlError, ControlResult};
use crate::name::{ArrayName, VolumeName};
use crate::protocol::Response;
use crate::records::{Desired, VolumeRecord};
use crate::service::arrays;
use crate::service::arrays::open::close_array;
use crate::service::state::live::LiveArray;
use crate::service::state::turn::Turn;
use crate::service::volumes::open::close_volume;
use crate::service::volumes::silence::WayOn;
use crate::service::volumes::{drains, exports, in_use, lost_ssds, show, silence};

/// Brings a volume to rest as the end of the daemon would, and leaves it so over restarts.
pub(crate) fn stop_volume(
    service: &mut Turn,
    name: &VolumeName,
    now: bool,
) -> ControlResult<Response> {
    let mut record = service.record(name)?;
    match record.desired {
        Desired::Stopped => return Ok(show::volume(service, name)),
        Desired::Serving => {}
        Desired::Detaching | Desired::Deleting => {
            return Err(ControlError::failed(format!(
                "{name} is being detached or deleted; wait until that has ended, or give the same command \
                 again and press Ctrl-C"
            )));
        }
    }
    drains::not_leaving(service, name)?;
    if !now {
        silence::must_answer(service, &record, WayOn::StopNow)?;
        in_use::is_unused(service, &record, &format!("voltier stop {name} --now"))?;
    }
    record.desired = Desired::Stopped;
    service.registry.put(record.clone())?;
    let mut closed = Ok(());
    if service.is_open(name) {
        if let Err(error) = close_files(service, &record, now) {
            let record = service.record(name)?;
            service.registry.put(VolumeRecord { desired: Desired::Serving, ..record })?;
            return Err(error);
        }
        drains::end_flush(service, name);
        record.exports.retain(|export| export.file().is_none());
        closed = bring_to_rest(service, &record);
    }
    for export in &service.record(name)?.exports {
        // Of one that waited for its drives since the daemon before was killed.
        service.closing(export.uri(name)).end_kept(export, "the volume was stopped");
    }
    service.live.remove(name);
    let stays = if record.cache.is_some() { "; its dirty lines stay on its SSD" } else { "" };
    service.log(name, &format!("stopped{stays}"));
    closed.map(|()| show::volume(service, name))
}

/// Closes the files of a volume. When a file is in use, those before it open again.
fn close_files(service: &mut Turn, record: &VolumeRecord, cut_off: bool) -> ControlResult<()> {
    let name = &record.name;
    let files: Vec<_> = record.exports.iter().filter(|export| export.file().is_some()).collect();
    if cut_off {
        in_use::sync_above(service, name, &record.exports);
    }
    for (at, export) in files.iter().enumerate() {
        if service.is_closed(name, export) {
            continue;
        }
        let closed = service.closing(export.uri(name)).unexport(name, export, cut_off);
        let Err(error) = closed else { continue };
        for before in &files[..at] {
            let access = record.access_of(before);
            let opened = service.opening(before.uri(name)).export(name, before, access);
            if let Err(error) = opened {
                exports::try_later(service, name, before, error.message);
            }
        }
        return Err(error);
    }
    Ok(())
}

/// Closes an open volume: exports first, then the cache, whose dirty lines stay on the SSD. Clients that
/// use it are cut off.
pub(crate) fn bring_to_rest(service: &mut Turn, record: &VolumeRecord) -> ControlResult<()> {
    let name = &record.name;
    let mut at_rest = true;
    in_use::sync_above(service, name, &record.exports);
    for export in &record.exports {
        if service.is_closed(name, export) {
            continue;
        }
        let closed = service.closing(export.uri(name)).unexport(name, export, true);
        if let Err(error) = closed {
            at_rest = false;
            service.log(name, &error.message);
        }
    }
    lost_ssds::record(service);
    let recorded = drains::record_dirt(service, name, at_rest);
    service.note(name, recorded);
    close_volume(service, name)
}

/// Brings an array to rest, and leaves it so over restarts.
pub(crate) fn stop_array(service: &mut Turn, name: &ArrayName) -> ControlResult<Response> {
    let mut record = service.array_record(name)?;
    if record.stopped {
        return Ok(arrays::show::response(service, name, Vec::new()));
    }
    if let Some(user) = service.user_of_array(name, None).filter(|user| service.is_open(user)) {
        return Err(ControlError::failed(format!(
            "the array {name} is in use by volume {user}; `voltier stop {user}` first"
        )));
    }
    arrays::events::record(service);
    record = service.array_record(name)?;
    record.stopped = true;
    service.registry.put_array(record)?;
    let is_open = service.size_of_array(name).is_ok();
    let closed = if is_open { close_array(service, name) } else { Ok(()) };
    service.live_arrays.insert(name.clone(), LiveArray::stopped(name));
    service.engine.log(&format!("array {name}: stopped"));
    closed.map(|()| arrays::show::response(service, name, Vec::new()))
}

/// Answers a request to end the daemon. The client waits for the end of the process.
pub(crate) fn stop_daemon(service: &mut Turn, now: bool) -> ControlResult<Response> {
    if !now {
        in_use::refuse(&in_use::users(service), "voltier stop --now")?;
    }
    service.stopping = true;
    service.ends_now = true;
    Ok(Response::Stopping)
}

/// Lets a stopped volume be served again; its record then.
pub(crate) fn unstop(service: &mut Turn, record: VolumeRecord) -> ControlResult<VolumeRecord> {
    if record.desired != Desired::Stopped {
        return Ok(record);
    }
    let record = VolumeRecord { desired: Desired::Serving, ..record };
    service.registry.put(record.clone())?;
    Ok(record)
}
