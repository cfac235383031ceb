//! What the drives of a volume or an array say after a stop, put on record. A copy that was made before the stop
//! says less, and is not believed when it is put back.

use crate::engine::Engine;
use crate::name::{ArrayName, VolumeName};
use crate::records::RegisteredArray;
use crate::service::state::turn::Turn;

/// Records the event count of an array that has stopped: members that know fewer are old.
pub(in crate::service) fn record_events<E: Engine>(
    turn: &mut Turn<E>,
    name: &ArrayName,
    events: u64,
) {
    let Some(record) = turn.registry.find_array(name).cloned() else { return };
    // The devices of one that is only read know nothing of it.
    if events > record.events && !record.read_only {
        let recorded = turn.registry.put_array(RegisteredArray { events, ..record });
        turn.note_array(name, recorded);
    }
}

/// Records the number of the superblock of a cache that has stopped, as the SSD has it. Of an SSD that cannot be
/// read now the number of an earlier stop stays.
pub(in crate::service) fn record_sequence<E: Engine>(turn: &mut Turn<E>, name: &VolumeName) {
    let of_volume = |turn: &Turn<E>| {
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
