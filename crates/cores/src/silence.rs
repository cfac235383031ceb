//! Drives of a cache that answer nothing, in words: for the log, and for requests that fail for it.

use voltier_control::{ControlError, VolumeName};
use voltier_volume::{Drive, Side, SilentDrive, Volume};

use crate::volumes::DeviceNames;

/// Has the log told when a drive of the volume's cache is silent, and when it answers again.
pub(super) fn log_silences(name: &VolumeName, devices: &DeviceNames, volume: &Volume<Drive>) {
    let Some(cache) = volume.cache() else { return };
    let (name, devices) = (name.clone(), devices.clone());
    cache.on_silence(move |side, has_begun| {
        let drive = drive_of(&devices, side);
        if has_begun {
            tracing::warn!(
                "{name}: its {drive} does not answer; `voltier show {name}` says what waits"
            );
        } else {
            tracing::info!("{name}: its {drive} answers again");
        }
    });
}

/// Has the log told when the SSD of the volume's cache takes no writes any more, and when its dirty lines are
/// written back.
pub(super) fn log_evacuation(name: &VolumeName, devices: &DeviceNames, volume: &Volume<Drive>) {
    let Some(cache) = volume.cache() else { return };
    let (name, DeviceNames { origin, ssd }) = (name.clone(), devices.clone());
    cache.on_evacuation(move |has_begun, dirty| match (has_begun, dirty) {
        (true, _) => tracing::warn!(
            "{name}: its SSD {ssd} takes no writes any more: {dirty} dirty lines are being written to {origin}, \
             and so is what clients write; `voltier show {name}` says how many are left"
        ),
        (false, 0) => {
            tracing::info!("{name}: all dirty lines of its SSD {ssd} are on {origin}, which serves alone now");
        }
        (false, _) => tracing::warn!(
            "{name}: {dirty} dirty lines of its SSD {ssd} could not be written to {origin}; `voltier show \
             {name}` lists them"
        ),
    });
}

fn drive_of(devices: &DeviceNames, side: Side) -> String {
    match side {
        Side::Ssd => format!("SSD {}", devices.ssd),
        Side::Origin => format!("backing disk {}", devices.origin),
    }
}

/// The drive, for how long it has answered nothing, and the lines that this concerns.
fn words(devices: &DeviceNames, silent: SilentDrive) -> String {
    let SilentDrive { side, silent_ns, lines_dirty } = silent;
    let seconds = silent_ns / 1_000_000_000;
    let drive = drive_of(devices, side);
    let lines = match (side, lines_dirty) {
        (_, 0) => String::new(),
        (Side::Ssd, lines) => format!(", and {lines} dirty lines on it have no other copy"),
        (Side::Origin, lines) => format!(", and {lines} dirty lines stay safe on {}", devices.ssd),
    };
    format!("its {drive} has not answered for {seconds} s{lines}")
}

/// The error of a request that needs a silent drive.
pub(super) fn not_answering(
    name: &VolumeName,
    devices: &DeviceNames,
    silent: SilentDrive,
) -> ControlError {
    let said = words(devices, silent);
    let otherwise = match (silent.side, silent.lines_dirty) {
        (Side::Ssd, 1..) => format!(", or `voltier detach {name} --no-flush` gives them up"),
        _ => String::new(),
    };
    ControlError::failed(format!("{name}: {said}; try again when it answers{otherwise}"))
}

/// The error of a stop that did not wait for a silent drive.
pub(super) fn not_stopped_in_order(
    name: &VolumeName,
    devices: &DeviceNames,
    silent: SilentDrive,
) -> ControlError {
    let said = words(devices, silent);
    let also = if silent.side == Side::Ssd { "what is dirty stays on it, and " } else { "" };
    ControlError::failed(format!(
        "stopping {name}: {said}; {also}the next start is one after a crash"
    ))
}
