//! Caches whose dirty lines no record knows any more: a user gave them up, or the registry was lost.
//!
//! A superblock says nothing of what was written to the origin later. So a cache that is given up loses its
//! superblock wherever the SSD is there. An origin that a cache on another SSD names gets no new volume.

use crate::engine::CacheLabel;
use crate::error::{ControlError, ControlResult, ErrorKind};
use crate::name::VolumeName;
use crate::records::{CacheRecord, newest_data};
use crate::safety::DriveIdentity;
use crate::service::presence::{admit, look, survey};
use crate::service::state::turn::Turn;
use crate::spec::DeviceSpec;

/// Keeps other commands from the SSD of a cache that is about to leave the record.
pub(crate) fn reserve(service: &mut Turn, cache: &CacheRecord) {
    if let Some(id) = service.id_of(&cache.device) {
        admit::reserve(service, id);
    }
}

/// Erases the superblock of a cache that the registry has given up and that is not open. An SSD that is not
/// there, or takes no writes, keeps its superblock: the log says so.
pub(crate) fn erase(service: &mut Turn, name: &VolumeName, cache: &CacheRecord) {
    let device = &cache.device;
    if device.is_volatile() {
        return;
    }
    let Some(ssd) = survey::ssd_of(service, cache) else {
        return service.log(name, &kept(device, "the SSD is not there"));
    };
    let label = service.reading(&ssd).cache_label_of(&ssd);
    let erased = match label {
        Ok(Some(label)) if label.uuid == cache.uuid => {
            let step = format!("erasing the superblock of the cache on {ssd}");
            service.apart(step).erase_cache_label(&ssd)
        }
        // Another cache is on the SSD by now, or none.
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = erased {
        service.log(name, &kept(device, &error.message));
    }
}

fn kept(device: &DeviceSpec, why: &str) -> String {
    format!(
        "{device} still has the superblock of the cache that was given up ({why}); never import \
         that SSD, because its data are old; to use it again, attach it with -f"
    )
}

/// Refuses an origin that a cache on an SSD of this machine names, when the cache may hold newer data than
/// the origin. `ssd` is overwritten by the command.
///
/// # Errors
/// When there is such an SSD.
pub(crate) fn no_cache_names(
    service: &mut Turn,
    origin: &DeviceSpec,
    mark: Option<&DriveIdentity>,
    ssd: Option<&DeviceSpec>,
) -> ControlResult<()> {
    let Some(mark) = mark.filter(|mark| mark.is_known()) else { return Ok(()) };
    let paths = service.reading("all drives").own_devices();
    for path in paths {
        let device = DeviceSpec::Path(path);
        let is_given = ssd.is_some_and(|ssd| admit::is_same(service, ssd, &device));
        if is_given
            || admit::user_of_device(service, &device).is_some()
            || look::look(service, &device).is_err()
        {
            continue;
        }
        let label = service.reading(&device).cache_label_of(&device);
        let label = match label {
            Ok(Some(label)) => label,
            // Whose data the cache has, only a newer program can say.
            Err(error) if error.kind == ErrorKind::Unsupported => {
                return Err(ControlError::unsupported(format!(
                    "the cache on {device} may hold newer data of {origin}, and cannot be read: {error}; \
                     disconnect that SSD if it has none, or `create -s {device} -f` makes a new cache \
                     there and gives the old one up"
                )));
            }
            Ok(None) | Err(_) => continue,
        };
        let named = DriveIdentity::recorded(&label.owner.origin_identity);
        if named.as_ref() == Some(mark) && may_hold_newer_data(&label) {
            return Err(ControlError::failed(format!(
                "{origin} may be out of date without {device}: the cache of volume {} on that \
                 SSD may hold {}; `voltier import {device} {origin}` serves both, or `create -s \
                 {device} -f` makes a new cache there and gives the old one up",
                label.owner.volume,
                newest_data(label.dirty_lines)
            )));
        }
    }
    Ok(())
}

/// Whether a cache may have lines that its origin lacks.
pub(crate) fn may_hold_newer_data(label: &CacheLabel) -> bool {
    let writes_back = label.owner.mode.is_none_or(voltier_cache::Mode::writes_back);
    label.dirty_lines > 0 || (!label.is_clean && writes_back)
}
