//! Stops on request: of a volume, of an array, of the daemon. A stop does not take storage away from clients
//! that use it, unless told to: a person who stops a volume usually has forgotten a mount, and a file system
//! whose file goes away loses its dirty pages.

use std::path::{Path, PathBuf};

use crate::error::{ControlError, ControlResult};
use crate::name::{ArrayName, VolumeName};
use crate::protocol::Response;
use crate::records::{Desired, VolumeRecord};
use crate::safety::users;
use crate::service::arrays;
use crate::service::arrays::open::close_array;
use crate::service::state::live::LiveArray;
use crate::service::state::turn::Turn;
use crate::service::volumes::open::close_volume;
use crate::service::volumes::silence::WayOn;
use crate::service::volumes::{drains, exports, in_use, lost_ssds, reports, show, silence};
use crate::spec::DeviceSpec;

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
    let is_passed_on = service.next_program.is_some();
    if !is_passed_on {
        in_use::sync_above(service, name, &record.exports);
    }
    for export in &record.exports {
        if service.is_closed(name, export) {
            continue;
        }
        if is_passed_on {
            service.closing(export.uri(name)).pass_on(name, export);
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
    reports::tell_the_end(service, name, at_rest);
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

/// Answers a request to become another program: clients see a pause, and no end of what they use.
pub(crate) fn upgrade(
    service: &mut Turn,
    program: PathBuf,
    handover: u32,
) -> ControlResult<Response> {
    if handover != service.engine.handover() {
        return Err(ControlError::failed(format!(
            "{} cannot take over what this daemon, of version {}, has open; `voltier stop`, then `voltier start`",
            program.display(),
            env!("CARGO_PKG_VERSION")
        )));
    }
    let is_program = program.is_absolute()
        && program.is_file()
        && rustix::fs::access(&program, rustix::fs::Access::EXEC_OK).is_ok();
    if !is_program {
        let shown = program.display();
        return Err(ControlError::failed(format!(
            "{shown} is no program that the daemon can start"
        )));
    }
    if !service.starting.is_empty() {
        return Err(ControlError::failed(
            "the daemon is still starting; give the command again when `voltier show` has its volumes",
        ));
    }
    for record in service.registry.volumes().to_vec() {
        if service.is_open(&record.name) {
            can_be_passed_on(service, &record, &program)?;
        }
    }
    let arrays = service.registry.arrays().iter();
    let mut open = arrays.filter(|array| service.size_of_array(&array.name).is_ok());
    if let Some(array) = open.find(|array| array.devices().any(DeviceSpec::is_volatile)) {
        let name = &array.name;
        return Err(ControlError::failed(format!(
            "the array {name} is in the memory of this process and would be empty; `voltier array stop {name}` first"
        )));
    }
    service.stopping = true;
    service.next_program = Some(program);
    Ok(Response::Upgrading)
}

/// Checks that another program can serve an open volume on.
fn can_be_passed_on(
    service: &mut Turn,
    record: &VolumeRecord,
    program: &Path,
) -> ControlResult<()> {
    let name = &record.name;
    if record.devices().any(DeviceSpec::is_volatile) {
        return Err(ControlError::failed(format!(
            "{name} is in the memory of this process and would be empty; `voltier stop {name}` first"
        )));
    }
    silence::must_answer(service, record, WayOn::StopNow)?;
    for export in record.exports.iter().filter(|export| !service.is_closed(name, export)) {
        let uri = export.uri(name);
        if service.engine.clients(name, export) > 0
            && let Some(why) = service.engine.export_trouble(name, export)
        {
            return Err(ControlError::failed(format!("{uri} would be cut off: {why}")));
        }
        let Some(file) = export.file() else { continue };
        let points = users::mount_points_over(service.engine.machine(), file);
        let on_it = |point: &PathBuf| program.starts_with(point);
        if let Some(point) = points.iter().find(|point| on_it(point)) {
            return Err(ControlError::failed(format!(
                "{} is on {name} itself (mounted on {}), which waits while the program starts; install it elsewhere",
                program.display(),
                point.display()
            )));
        }
    }
    Ok(())
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
