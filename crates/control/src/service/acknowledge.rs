//! Taking note of drives that have failed.

use crate::error::{ControlError, ControlResult};
use crate::health;
use crate::name::{ArrayName, VolumeName};
use crate::protocol::Response;
use crate::records::{FailedDrive, RegisteredArray};
use crate::service::state::turn::Turn;
use crate::service::volumes::show;

/// Takes note of members that were lost and have been replaced, and of the errors so far of SSDs and backing disks. A
/// member that is still lost stays a trouble of its array.
pub(crate) fn acknowledge(turn: &mut Turn, name: Option<&str>) -> ControlResult<Response> {
    let is_meant = |other: &str| name.is_none_or(|name| name == other);
    let arrays = turn.registry.arrays().iter().filter(|it| is_meant(it.name.as_str()));
    let arrays: Vec<ArrayName> = arrays.map(|it| it.name.clone()).collect();
    let volumes = turn.registry.volumes().iter().filter(|it| is_meant(it.name.as_str()));
    let volumes: Vec<VolumeName> = volumes.map(|it| it.name.clone()).collect();
    if let Some(name) = name.filter(|_| arrays.is_empty() && volumes.is_empty()) {
        return Err(ControlError::failed(format!(
            "no volume or array `{name}`; `voltier health --all` lists what there is"
        )));
    }
    let mut drives = Vec::new();
    for name in arrays {
        drives.extend(of_array(turn, &name)?);
    }
    for name in volumes {
        drives.extend(of_volume(turn, &name)?);
    }
    Ok(Response::Acknowledged { drives })
}

fn of_array(turn: &mut Turn, name: &ArrayName) -> ControlResult<Vec<String>> {
    let record = turn.array_record(name)?;
    let is_lost = |it: &FailedDrive| {
        record.members.get(it.member as usize).and_then(Option::as_ref) == Some(&it.device)
    };
    let (lost, known): (Vec<_>, Vec<_>) =
        record.failed_drives.iter().cloned().partition(|it| is_lost(it));
    if known.is_empty() {
        return Ok(Vec::new());
    }
    let line = |it: &FailedDrive| {
        format!(
            "{}, member {} of {name}, lost on {} UTC",
            it.device,
            it.member,
            it.since.to_the_second()
        )
    };
    let lines = known.iter().map(line).collect();
    turn.registry.put_array(RegisteredArray { failed_drives: lost, ..record })?;
    Ok(lines)
}

fn of_volume(turn: &mut Turn, name: &VolumeName) -> ControlResult<Vec<String>> {
    let record = turn.record(name)?;
    let status = show::status(turn, &record);
    let errors = health::drive_errors(&status);
    let Some(live) = turn.live.get_mut(name) else { return Ok(Vec::new()) };
    let before = std::mem::replace(&mut live.acknowledged_errors, errors);
    let drives = [&status.ssd, &status.hdd].into_iter().zip(errors.into_iter().zip(before));
    let fresh = drives.filter(|(_, (now, before))| now > before);
    let line = |(drive, (now, before)): (&crate::status::DeviceStatus, (u64, u64))| {
        format!("{} of {name}: {} failed requests", drive.path, now - before)
    };
    Ok(fresh.map(line).collect())
}
