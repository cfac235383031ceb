//! SSDs that go away with dirty lines while their volumes serve.
//!
//! Such an SSD may come back with all that it held: a cable, a slot, a controller that resets. So the
//! volume ends as by a kill, before anything but dirty lines has reached the origin. Then the volume is
//! opened as by a start, which waits for the SSD, and serves every acknowledged write when the SSD is there
//! ([why](../../../../docs/adr/0048-a-pulled-ssd-is-awaited.md)).

use std::time::Instant;

use crate::error::ControlError;
use crate::name::VolumeName;
use crate::service::presence::late;
use crate::service::state::turn::Turn;
use crate::service::volumes::open::close_and_note;

/// Closes a volume whose SSD is gone with dirty lines, and opens the volume as a start does: when the SSD is
/// there. Clients are cut off.
pub(crate) fn wait_for_ssd(service: &mut Turn, name: &VolumeName, now: Instant) {
    let Some(dirty_lines) = service.pulled.remove(name) else { return };
    let Some(mut record) = service.registry.find(name).cloned() else { return };
    // A command that had the volume until now may have ended it.
    let Some(cache) = record.cache.as_mut().filter(|_| service.is_open(name)) else { return };
    if !service.engine.health(name).ssd_is_gone {
        return;
    }
    cache.maybe_dirty = true;
    cache.dirty_lines = dirty_lines;
    let error = ControlError::failed(format!(
        "its SSD {} is gone and may hold {}: the volume is not served until it is back",
        cache.device,
        cache.newest_data()
    ));
    service.note_end(name, error);
    // The count is for people: a start finds the lines on the SSD.
    let recorded = service.registry.put(record.clone());
    service.note(name, recorded);
    close_and_note(service, name);
    service.live.remove(name);
    if !service.stopping {
        late::try_volume(service, &record, Some(now), now);
    }
}
