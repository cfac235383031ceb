//! Drives of a volume that answer nothing: requests that need them are refused, with the way on. A stop that
//! waited with the clients of such a drive would keep the daemon from ending in order.

use crate::error::{ControlError, ControlResult};
use crate::records::VolumeRecord;
use crate::service::state::turn::Turn;
use crate::service::volumes::show;
use crate::status::{DeviceState, VolumeStatus};

/// The way on without the drive, behind "wait until it answers".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WayOn {
    /// Nothing.
    Wait,
    /// The dirty lines can be given up.
    GiveUp,
    /// The volume can be stopped as a crash would end it.
    StopNow,
}

/// Refuses while the SSD or the HDD of a volume does not answer.
pub(crate) fn must_answer(
    service: &mut Turn,
    record: &VolumeRecord,
    way_on: WayOn,
) -> ControlResult<()> {
    let status = show::status(service, record);
    refusal(&status, true, way_on).or_else(|| refusal(&status, false, way_on)).map_or(Ok(()), Err)
}

/// Refuses while the HDD of a volume does not answer.
pub(crate) fn hdd_must_answer(service: &mut Turn, record: &VolumeRecord) -> ControlResult<()> {
    refusal(&show::status(service, record), false, WayOn::StopNow).map_or(Ok(()), Err)
}

fn refusal(status: &VolumeStatus, is_ssd: bool, way_on: WayOn) -> Option<ControlError> {
    let (kind, drive) = if is_ssd { ("SSD", &status.ssd) } else { ("backing disk", &status.hdd) };
    if drive.state != DeviceState::Silent {
        return None;
    }
    let (name, dirty) = (&status.name, status.lines.dirty);
    let lines = match dirty {
        0 => String::new(),
        _ if is_ssd => format!(", and {dirty} dirty lines on it have no other copy"),
        _ => format!("; {dirty} dirty lines stay safe on {}", status.ssd.path),
    };
    let otherwise = match way_on {
        WayOn::GiveUp if is_ssd => format!(", or `voltier detach --no-flush {name}` gives them up"),
        WayOn::Wait | WayOn::GiveUp => String::new(),
        WayOn::StopNow => format!(
            ", or `voltier stop {name} --now` ends all the same: dirty lines stay on the SSD, and the next \
             start is one after a crash"
        ),
    };
    let (path, seconds) = (&drive.path, drive.silent_seconds);
    Some(ControlError::failed(format!(
        "the {kind} {path} of {name} has not answered for {seconds} s{lines}; wait until it \
         answers{otherwise}"
    )))
}
