//! Open volumes: on which core they are, and what opens, closes and shows them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;

use voltier_block::{BlockDevice, SectorRange};
use voltier_control::engine::{CacheStart, OpenedVolume};
use voltier_control::{
    ByteRange, CacheRecord, ControlError, ControlResult, LOST_RANGES_MAX, Memory, VolumeMemory,
    VolumeName, VolumeRecord, changed_places, front_of, front_refused, unused_tail_text,
};
use voltier_export::ByteDevice;
#[cfg(test)]
use voltier_ring::Domain;
use voltier_ring::{FailsWith, Handle, OnFailure, Signal, race};
use voltier_volume::{Drive, Health, Opened, Volume, WallClock, origin_has_cache};

use crate::exports::servers::Servers;
use crate::fault::Fault;
use crate::loss::LossGate;
use crate::silence::{log_evacuation, log_silences, not_stopped_in_order};
use crate::table;
use crate::volume_status::Facts;

/// Lost ranges that are counted one by one; beyond it there are "at least" so many.
const LOST_RANGES_COUNTED_MAX: usize = 1 << 16;

/// One volume on its home core.
pub(super) struct Resident {
    pub(super) volume: Rc<Volume<Drive>>,
    /// The volume as its exports see it.
    pub(super) exported: Rc<ByteDevice<Volume<Drive>>>,
    pub(super) servers: Servers,
    /// How often its drains were ended.
    ended_drains: Cell<u64>,
    ending_drains: Signal,
    /// The array that is the origin fails with the volume.
    _origin_fails: Option<FailsWith>,
    /// The array that is the SSD fails with the volume.
    pub(super) ssd_fails: Cell<Option<FailsWith>>,
    /// The memory promised to its cache.
    pub(super) memory: VolumeMemory,
    _on_failure: OnFailure,
    #[cfg(test)]
    domain: Domain,
}

impl Resident {
    /// Whether clients have the seek times of a disk.
    pub(super) fn is_rotational(&self) -> bool {
        self.volume.cache().is_none() && self.volume.origin().limits().rotational
    }
}

/// Names of the devices of a volume, for messages.
#[derive(Clone)]
pub(super) struct DeviceNames {
    pub(super) origin: String,
    /// Empty without an SSD.
    pub(super) ssd: String,
}

impl DeviceNames {
    fn both(&self) -> String {
        if self.ssd.is_empty() {
            format!("backing disk {}", self.origin)
        } else {
            format!("backing disk {}, SSD {}", self.origin, self.ssd)
        }
    }
}

thread_local! {
    /// The volumes of this core.
    static RESIDENTS: RefCell<BTreeMap<VolumeName, Rc<Resident>>> =
        const { RefCell::new(BTreeMap::new()) };
}

impl Resident {
    /// Ends a drain that is under way.
    pub(super) fn end_drain(&self) {
        self.ended_drains.set(self.ended_drains.get() + 1);
        self.ending_drains.notify();
    }

    /// Writes something back; `None` when that is ended early.
    pub(super) async fn unless_ended<T>(&self, drain: impl Future<Output = T>) -> Option<T> {
        let ended = self.ended_drains.get();
        let ending = self.ending_drains.until(|| self.ended_drains.get() != ended);
        race(drain, ending).await.ok()
    }
}

/// A volume of this core.
pub(super) fn resident(name: &VolumeName) -> ControlResult<Rc<Resident>> {
    RESIDENTS
        .with_borrow(|residents| residents.get(name).cloned())
        .ok_or_else(|| ControlError::failed(format!("{name} is not open; see daemon.log")))
}

/// The failure domain of a volume of this core.
#[cfg(test)]
pub(super) fn domain_of(name: &VolumeName) -> Domain {
    resident(name).unwrap().domain
}

/// Opens a volume on this core.
pub(super) async fn open(
    handle: Handle,
    record: VolumeRecord,
    start: CacheStart,
    gate: LossGate,
    fault: Arc<Fault>,
    memory: Memory,
) -> ControlResult<OpenedVolume> {
    let (origin, origin_fails) = table::open_origin(&handle, &record.origin).await?;
    let tail_bytes = origin.unused_tail_bytes();
    if tail_bytes > 0 {
        let (name, disk) = (&record.name, &record.origin);
        tracing::warn!("{name}: {}", unused_tail_text(&disk.to_string(), tail_bytes));
    }
    let taken_away = origin.is_taken_away();
    let volume = Volume::plain(&handle, origin);
    taken_away.into_iter().for_each(|taken_away| volume.serve_until(taken_away));
    if let Some(cache) = &record.cache
        && origin_has_cache(&volume, cache.uuid.0).await
    {
        return Err(changed_places(&record));
    }
    let (mut generation, mut evacuates, ssd_fails) = (0, false, Cell::new(None));
    let given = VolumeMemory::default();
    if record.cache.as_ref().is_some_and(|cache| cache.failed.is_none()) {
        let memory = (memory, &given);
        let opened = put_in_front(&handle, &volume, &record, start, gate, memory).await?;
        (generation, evacuates) = (opened.0.generation, opened.0.evacuates);
        ssd_fails.set(opened.1);
    }
    let size_bytes = volume.limits().bytes();
    let dirty_lines = dirty_lines_of(&volume);
    let lost = record.name.clone();
    let on_failure = handle.on_failure(move |failure| {
        // The state may be half changed: not even its end is run.
        mem::forget(RESIDENTS.with_borrow_mut(|all| all.remove(&lost)));
        fault.tell(failure);
    });
    let volume = Rc::new(volume);
    let resident = Resident {
        exported: Rc::new(ByteDevice::new(volume.clone())),
        volume,
        servers: Servers::default(),
        ended_drains: Cell::new(0),
        ending_drains: Signal::new(),
        _origin_fails: origin_fails,
        ssd_fails,
        memory: given,
        _on_failure: on_failure,
        #[cfg(test)]
        domain: handle.domain(),
    };
    RESIDENTS.with_borrow_mut(|all| all.insert(record.name, Rc::new(resident)));
    Ok(OpenedVolume { size_bytes, generation, dirty_lines, evacuates })
}

/// What a start dropped of a cache, and why, for the log.
fn dropped(opened: &Opened) -> String {
    let mut said = Vec::new();
    if opened.origin_changed {
        said.push("the backing disk was changed, so all clean lines were dropped".to_owned());
    }
    if opened.differing_lines > 0 {
        let (differing, sampled) = (opened.differing_lines, opened.sampled_lines);
        said.push(format!("{differing} of {sampled} sampled lines differ from the backing disk"));
    }
    if opened.suspect_lines > 0 {
        let lines = opened.suspect_lines;
        said.push(format!("{lines} lines were dropped, because the disk may be newer"));
    }
    said.join("; ")
}

/// Opens or makes a cache in front of a volume.
pub(super) async fn put_in_front(
    handle: &Handle,
    volume: &Volume<Drive>,
    record: &VolumeRecord,
    start: CacheStart,
    gate: LossGate,
    (memory, given): (Memory, &VolumeMemory),
) -> ControlResult<(Opened, Option<FailsWith>)> {
    let Some(CacheRecord { device, .. }) = &record.cache else {
        return Err(ControlError::failed(format!("{} has no cache to open", record.name)));
    };
    let (ssd, ssd_fails) = table::open_ssd(handle, device).await?;
    let bytes = (ssd.limits().bytes(), volume.origin().limits().bytes());
    let memory = memory.gate(given, record, start, bytes.0, bytes.1);
    let mut front = front_of(record, start, memory)?;
    front.options.wall_clock = WallClock::system();
    let opened = voltier_volume::put_in_front(volume, ssd, front).await;
    if volume.cache().is_none() {
        given.set(None);
    }
    let (opened, kept) = opened.map_err(|error| front_refused(record, start, error))?;
    if let Some(kept) = kept {
        tracing::warn!("{}: {kept}", record.name);
    }
    if opened.origin_changed || opened.suspect_lines > 0 || opened.differing_lines > 0 {
        tracing::warn!("the cache on {device}: {}", dropped(&opened));
    }
    let (handle, waker) = (handle.clone(), gate.waker.clone());
    let salvaged = move || waker.iter().for_each(|wake| wake());
    let (passing, clock) = (gate.clone(), handle.clone());
    volume.on_ssd_failure(move || Box::pin(gate.pass(handle)), salvaged);
    volume
        .on_passing(move |ranges| Box::pin(passing.clone().record_passing(clock.clone(), ranges)));
    let devices = DeviceNames { origin: record.origin.to_string(), ssd: device.to_string() };
    log_silences(&record.name, &devices, volume);
    log_evacuation(&record.name, &devices, volume);
    Ok((opened, ssd_fails))
}

/// Stops a volume and forgets it.
pub(super) async fn close(name: VolumeName, devices: DeviceNames) -> ControlResult<()> {
    let Some(resident) = RESIDENTS.with_borrow_mut(|all| all.remove(&name)) else { return Ok(()) };
    // A server that stops waits for the requests of its clients.
    let _released = resident.volume.release_waits();
    resident.servers.stop_all().await;
    resident.end_drain();
    let stopped = resident.volume.stop().await;
    stopped.map_err(|error| {
        if let Some(silent) = resident.volume.cache().and_then(|cache| cache.left_drive()) {
            return not_stopped_in_order(&name, &devices, silent);
        }
        ControlError::failed(format!(
            "stopping {name} ({}): {error}; see `dmesg`; the next start is one after a crash",
            devices.both()
        ))
    })
}

pub(super) fn dirty_lines_of(volume: &Volume<Drive>) -> u64 {
    volume.cache().map_or(0, |cache| cache.status().lines.dirty)
}

/// The facts about a volume.
pub(super) fn facts(volume: &Volume<Drive>) -> Facts {
    let cache = volume.cache();
    let mut lost = cache
        .as_ref()
        .map(|cache| in_bytes(&cache.lost_ranges(LOST_RANGES_COUNTED_MAX)))
        .unwrap_or_default();
    // With the SSD lost, every dirty line is, the damaged ones among them.
    let mut damaged = cache
        .as_ref()
        .filter(|cache| cache.status().health != Health::Failed)
        .map(|cache| in_bytes(&cache.damaged_ranges()))
        .unwrap_or_default();
    let lost_ranges = (lost.len() + damaged.len()) as u64;
    lost.truncate(LOST_RANGES_MAX);
    damaged.truncate(LOST_RANGES_MAX);
    Facts {
        counted: volume.status(),
        origin_bytes: volume.origin().limits().bytes(),
        origin_tail_bytes: volume.origin().unused_tail_bytes(),
        origin_loss: volume.origin().loss(),
        ssd_bytes: cache.as_ref().map_or(0, |cache| cache.ssd().limits().bytes()),
        origin_meter: volume.origin().meter(),
        ssd_meter: cache.map(|cache| cache.ssd().meter()),
        lost_ranges,
        lost,
        damaged,
    }
}

fn in_bytes(ranges: &[SectorRange]) -> Vec<ByteRange> {
    let in_bytes = |range: &SectorRange| ByteRange {
        offset_bytes: range.start.bytes(),
        length_bytes: range.bytes(),
    };
    ranges.iter().map(in_bytes).collect()
}
