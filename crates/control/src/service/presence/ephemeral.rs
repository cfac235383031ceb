//! SSDs that may be empty, other ones or missing at any start, as the local SSDs of clouds are: the volume
//! said so. Nothing but copies was on them, so their caches are made anew.
//!
//! A new cache has a new identity. An SSD that comes back with an older cache of the volume is a stranger then,
//! and made anew, too: nothing that it has is ever served.

use crate::engine::CacheLabel;
use crate::error::{ControlError, ControlResult};
use crate::name::VolumeName;
use crate::records::{CacheRecord, Desired, VolumeRecord};
use crate::safety::{DriveIdentity, Finding};
use crate::service::presence::admit;
use crate::service::state::turn::Turn;
use crate::service::volumes::open::put_in_front;

/// Whether a volume goes on with a new cache when its own is not there.
pub(crate) fn is_ephemeral(cache: &CacheRecord) -> bool {
    cache.settings.ephemeral_ssd && !cache.maybe_dirty
}

/// Gives an open volume that serves without its SSD a new cache, if the SSD can be used now.
pub(crate) fn take_up(turn: &mut Turn, name: &VolumeName) {
    let Some(record) = turn.registry.find(name).cloned() else { return };
    let is_waiting = turn.live.get(name).is_some_and(|live| live.is_open && live.awaits_ssd);
    let failed = record.cache.clone().filter(|it| it.failed.is_some() && is_ephemeral(it));
    let Some(failed) = failed.filter(|_| is_waiting && record.desired == Desired::Serving) else {
        turn.live.get_mut(name).into_iter().for_each(|live| live.awaits_ssd = false);
        return;
    };
    let taken = new_cache(turn, &record, &failed)
        .and_then(|cache| put_in_front(turn, &record, cache, Some(failed.clone())));
    match taken {
        Ok(()) => {
            let note = said(turn, name, &failed, "");
            if let Some(live) = turn.live.get_mut(name) {
                (live.awaits_ssd, live.note) = (false, note);
                live.error.clear();
            }
        }
        Err(error) => {
            let reason = without(&error);
            let is_known = turn.live.get(name).is_some_and(|live| live.error == reason);
            turn.note_unless(is_known, name, Err(ControlError::failed(reason)));
        }
    }
}

/// Why a volume serves without its ephemeral SSD.
pub(crate) fn without(error: &ControlError) -> String {
    format!("{error}; the volume serves without a cache until this SSD can be used")
}

/// Says that a cache was made anew; the line.
pub(crate) fn said(turn: &mut Turn, name: &VolumeName, cache: &CacheRecord, why: &str) -> String {
    let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
    let said = format!("the cache on {} was made anew and begins empty{why}", cache.device);
    turn.log(name, &said);
    said
}

/// The record of a new cache in the place of one, on the same device, whatever drive that is now.
///
/// # Errors
/// When the SSD cannot be used.
pub(crate) fn new_cache(
    turn: &mut Turn,
    record: &VolumeRecord,
    cache: &CacheRecord,
) -> ControlResult<CacheRecord> {
    let identity = admitted(turn, record, cache)?;
    let uuid = turn.engine.draw_identity()?;
    Ok(CacheRecord::new(cache.device.clone(), identity, uuid, cache.settings.clone()))
}

/// Checks an SSD as `create` does, except that it may have a cache of which nothing is lost; the mark of its
/// drive.
fn admitted(
    turn: &mut Turn,
    record: &VolumeRecord,
    cache: &CacheRecord,
) -> ControlResult<Option<DriveIdentity>> {
    let device = &cache.device;
    let (mut findings, identity) = admit::look_at_ssd(turn, device, record)?;
    if findings.iter().any(|found| matches!(found, Finding::Cache(_))) {
        let label = turn.reading(device).cache_label_of(device);
        if label.is_ok_and(|label| label.is_some_and(|it| may_be_lost(turn, record, &it))) {
            findings.retain(|found| !matches!(found, Finding::Cache(_)));
        }
    }
    let Some(found) = findings.first() else { return Ok(identity) };
    Err(ControlError::failed(match found {
        Finding::Content(what) | Finding::Kept(what) | Finding::Cache(what) => format!(
            "its SSD {device} holds {what} and is left alone; give the volume another SSD, or, if that may be \
             lost, `voltier detach {0}`, then `voltier attach {0} -s {device} --ephemeral-ssd -f`",
            record.name
        ),
        other => format!("its SSD {device} {other}"),
    }))
}

/// Whether nothing but copies is lost with a cache, of which no other volume on record knows.
fn may_be_lost(turn: &Turn, record: &VolumeRecord, label: &CacheLabel) -> bool {
    if label.dirty_lines > 0 {
        return false;
    }
    if label.owner.volume_uuid == record.uuid.0 {
        // What an older one of this volume has is on the disk, or was given up.
        let writes_back = label.owner.mode.is_none_or(|mode| mode.writes_back());
        return label.is_clean || !writes_back;
    }
    let is_on_record = |volume: &VolumeRecord| {
        label.owner.volume_uuid == volume.uuid.0
            || volume.cache.as_ref().is_some_and(|cache| cache.uuid == label.uuid)
    };
    label.is_clean && !turn.registry.volumes().iter().any(is_on_record)
}
