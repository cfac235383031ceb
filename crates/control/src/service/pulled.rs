//! SSDs that go away with dirty lines while their volumes serve.
//!
//! Such an SSD may come back with all that it held: a cable, a slot, a controller that resets. So the
//! volume ends as by a kill, before anything but dirty lines has reached the origin. Then the volume is
//! opened as by a start, which waits for the SSD, and serves every acknowledged write when the SSD is there
//! ([why](../../../../docs/adr/0048-a-pulled-ssd-is-awaited.md)).

use super::Turn;
use super::late;
use super::live::now;
use crate::engine::Engine;
use crate::error::ControlError;
use crate::records::VolumeRecord;

/// The record of a volume whose SSD went away with so many dirty lines.
pub(super) fn with_dirt(record: &VolumeRecord, dirty_lines: u64) -> VolumeRecord {
    let mut record = record.clone();
    if let Some(cache) = &mut record.cache {
        cache.maybe_dirty = true;
        cache.dirty_lines = dirty_lines;
    }
    record
}

/// Closes a volume whose SSD is gone with dirty lines, and opens the volume as a start does: when the SSD is
/// there. Clients are cut off.
pub(super) fn wait_for_ssd<E: Engine>(service: &mut Turn<E>, record: &VolumeRecord) {
    let (name, Some(cache)) = (&record.name, &record.cache) else { return };
    let error = ControlError::failed(format!(
        "its SSD {} is gone with {}: nothing is served before it is back",
        cache.device,
        cache.newest_data()
    ));
    if let Some((job, _)) = service.jobs.running(name) {
        service.jobs.end(job, Err(error.clone()));
    }
    service.note(name, Err(error));
    // The count is for people: a start finds the lines on the SSD.
    let recorded = service.registry.put(record.clone());
    service.note(name, recorded);
    let closed = service.engine.close(name);
    service.note(name, closed);
    service.live.remove(name);
    if !service.stopping {
        late::try_volume(service, record, Some(now()), now());
    }
}
