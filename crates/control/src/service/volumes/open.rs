//! Opening and closing volumes, and what of that is noted: arrays that move meanwhile, and what a stop leaves.

use voltier_cache::Mode;

use crate::engine::{CacheStart, OpenedVolume};
use crate::error::ControlResult;
use crate::name::VolumeName;
use crate::records::{CacheRecord, VolumeRecord};
use crate::service::state::claims::Subject;
use crate::service::state::turn::{Turn, of_all};
use crate::service::volumes::reports;
use crate::spec::DeviceSpec;

/// Opens a volume with its cache, if the record has one that did not fail.
///
/// # Errors
/// Nothing is open then.
pub(crate) fn open_volume(
    turn: &mut Turn,
    record: &VolumeRecord,
    start: CacheStart,
) -> ControlResult<OpenedVolume> {
    reports::tell_the_begin(record);
    move_arrays(turn, record, true);
    let opened = turn.opening(of_all(record.devices())).open(record, start);
    move_arrays(turn, record, false);
    opened
}

/// Puts the new cache of a record in front of its open volume; its generation.
///
/// # Errors
/// The volume serves on without it.
fn attach_cache(turn: &mut Turn, record: &VolumeRecord) -> ControlResult<u64> {
    let device = record.cache.as_ref().map(|cache| &cache.device);
    move_arrays(turn, record, true);
    let attached = turn.apart(format!("making a cache on {}", of_all(device))).attach(record);
    move_arrays(turn, record, false);
    attached
}

/// Makes a cache and puts it in front of its open volume, which has none.
///
/// # Errors
/// The volume serves on without a cache; its record has the one `before`, if that was not made.
pub(crate) fn put_in_front(
    turn: &mut Turn,
    record: &VolumeRecord,
    cache: CacheRecord,
    before: Option<CacheRecord>,
) -> ControlResult<()> {
    let name = &record.name;
    // Clients are writing, so the record must say that lines may be dirty before one can be. A cache
    // that is recorded but was never made must not look dirty. So the cache starts in wt.
    let settings = cache.settings.clone();
    let mut quiet = cache;
    quiet.settings.mode = Mode::WriteThrough;
    quiet.maybe_dirty = false;
    let mut with_cache = record.clone();
    with_cache.cache = Some(quiet.clone());
    turn.registry.put(with_cache.clone())?;
    let attached = attach_cache(turn, &with_cache);
    let mut record = turn.record(name)?;
    match attached {
        Ok(generation) => quiet.generation = generation,
        Err(error) => {
            record.cache = before;
            turn.registry.put(record)?;
            return Err(error);
        }
    }
    if let Some(cache) = &mut record.cache {
        cache.generation = quiet.generation;
        cache.settings = settings.clone();
        cache.maybe_dirty |= settings.mode.writes_back();
    }
    turn.registry.put(record.clone())?;
    if settings.mode != Mode::WriteThrough {
        reports::tell_before(turn, &with_cache, &record)?;
        turn.changing_settings_of(name).configure(name, &settings)?;
    }
    Ok(())
}

/// Closes an open volume, and records what its SSD says after that.
///
/// # Errors
/// When the clean stop could not be written; the volume is closed all the same.
pub(crate) fn close_volume(turn: &mut Turn, name: &VolumeName) -> ControlResult<()> {
    let devices = turn.registry.find(name).map(|record| of_all(record.devices()));
    let devices = devices.unwrap_or_else(|| name.to_string());
    if let Some(live) = turn.live.get_mut(name) {
        live.is_closing = true;
    }
    let closed = turn.closing(devices).close(name);
    match closed {
        Ok(()) => record_sequence(turn, name),
        // The drives may have requests still: the next start is patient.
        Err(_) => drop(turn.crashed.insert(Subject::Volume(name.clone()))),
    }
    closed
}

/// [`close_volume`]; what goes wrong is in the log and in `show`.
pub(crate) fn close_and_note(turn: &mut Turn, name: &VolumeName) {
    let closed = close_volume(turn, name);
    turn.note(name, closed);
}

/// Notes that the engine may move the arrays that a volume stands on, or that it has ended to. An array
/// that a failed move has closed is not open any more.
fn move_arrays(turn: &mut Turn, record: &VolumeRecord, is_moving: bool) {
    for name in record.devices().filter_map(DeviceSpec::array) {
        let has_array = turn.engine.has_array(name);
        let Some(live) = turn.live_arrays.get_mut(name) else { continue };
        live.is_moving = is_moving;
        if !is_moving && !has_array && live.size_bytes.take().is_some() {
            live.error = format!(
                "it could not be moved to the core of the volume {}; `voltier array start {name}` \
                 opens it again",
                record.name
            );
        }
    }
}

/// Records the number of the superblock of a cache that has stopped, as the SSD has it. A copy of the SSD that was
/// made before the stop says less, and is not believed when it is put back. Of an SSD that cannot be read now the
/// number of an earlier stop stays.
fn record_sequence(turn: &mut Turn, name: &VolumeName) {
    let of_volume = |turn: &Turn| {
        let record = turn.registry.find(name).cloned()?;
        let cache = record.cache.clone().filter(|cache| cache.failed.is_none())?;
        (!cache.device.is_volatile()).then_some((record, cache))
    };
    let Some((_, cache)) = of_volume(turn) else { return };
    let label = turn.reading(&cache.device).cache_label_of(&cache.device);
    let Ok(Some(label)) = label else { return };
    // The record may have changed while the SSD was read.
    let Some((mut record, mut cache)) = of_volume(turn) else { return };
    if label.uuid != cache.uuid || label.sequence <= cache.sequence {
        return;
    }
    cache.sequence = label.sequence;
    record.cache = Some(cache);
    let recorded = turn.registry.put(record);
    turn.note(name, recorded);
}
