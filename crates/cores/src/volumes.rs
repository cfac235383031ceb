//! The volumes of a core, and the tasks that open, change and close them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;

use voltier_block::{BlockDevice, SectorRange};
use voltier_control::{
    ByteRange, CacheRecord, ControlError, ControlResult, LOST_RANGES_MAX, Memory, Settings,
    VolumeMemory, VolumeName, VolumeRecord, unused_tail_text,
};
use voltier_export::ByteDevice;
#[cfg(test)]
use voltier_ring::Domain;
use voltier_ring::{FailsWith, Handle, OnFailure, Signal, race};
use voltier_volume::{Drive, Health, Opened, Volume, VolumeError};

use crate::exports::servers::Servers;
use crate::fault::Fault;
use crate::loss::LossGate;
use crate::silence::{log_evacuation, log_silences, not_answering, not_stopped_in_order};
use crate::table;
use crate::volume_status::Facts;
use voltier_control::engine::{CacheStart, OpenedVolume};

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
    ssd_fails: Cell<Option<FailsWith>>,
    /// The memory promised to its cache.
    memory: VolumeMemory,
    _on_failure: OnFailure,
    #[cfg(test)]
    domain: Domain,
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
    fn end_drain(&self) {
        self.ended_drains.set(self.ended_drains.get() + 1);
        self.ending_drains.notify();
    }

    /// Writes something back; `None` when that is ended early.
    async fn unless_ended<T>(&self, drain: impl Future<Output = T>) -> Option<T> {
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
    let volume = Volume::plain(&handle, origin);
    voltier_control::check_origin(&volume, &record).await?;
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
async fn put_in_front(
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
    let opened = voltier_control::put_in_front(volume, ssd, record, start, memory).await;
    if volume.cache().is_none() {
        given.set(None);
    }
    let opened = opened?;
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

/// Lets the dirty lines of a volume whose SSD took no writes at the start go to the origin.
pub(super) fn begin_evacuation(name: &VolumeName) -> ControlResult<()> {
    if let Some(cache) = resident(name)?.volume.cache() {
        cache.begin_evacuation();
    }
    Ok(())
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

/// Formats an SSD and puts it in front of an open volume; the cache's generation.
pub(super) async fn attach(
    handle: Handle,
    record: VolumeRecord,
    gate: LossGate,
    memory: Memory,
) -> ControlResult<u64> {
    let resident = resident(&record.name)?;
    let memory = (memory, &resident.memory);
    let front = put_in_front(&handle, &resident.volume, &record, CacheStart::Format, gate, memory);
    let (opened, ssd_fails) = front.await?;
    resident.ssd_fails.set(ssd_fails);
    Ok(opened.generation)
}

/// Writes everything back and has requests wait.
pub(super) async fn quiesce(name: VolumeName, devices: DeviceNames) -> ControlResult<()> {
    let resident = resident(&name)?;
    let volume = resident.volume.clone();
    let origin_errors = origin_errors(&volume);
    let Some(quiesced) = resident.unless_ended(volume.quiesce()).await else {
        return Err(ended_early(&name));
    };
    quiesced.map_err(|error| match error {
        VolumeError::Io { error, .. } => {
            not_written_back(&name, &volume, &devices, origin_errors, error)
        }
        VolumeError::Silent(silent) => not_answering(&name, &devices, silent),
        other => ControlError::from_error(other),
    })
}

/// Lets requests go on.
pub(super) fn resume(name: &VolumeName) -> ControlResult<()> {
    resident(name)?.volume.resume();
    Ok(())
}

/// Takes the cache away and unmarks the SSD.
pub(super) async fn detach(
    name: VolumeName,
    devices: DeviceNames,
    write_back: bool,
) -> ControlResult<()> {
    let resident = resident(&name)?;
    if !write_back {
        resident.end_drain();
    }
    let volume = resident.volume.clone();
    let origin_errors = origin_errors(&volume);
    let detached = volume.detach(write_back).await;
    if volume.cache().is_none() {
        resident.ssd_fails.set(None);
        resident.memory.set(None);
    }
    detached.map_err(|error| match error {
        VolumeError::Io { error, .. } if volume.cache().is_some() => {
            not_written_back(&name, &volume, &devices, origin_errors, error)
        }
        VolumeError::Io { what, error } => ControlError::failed(format!(
            "{what} on {}: {error}; {name} serves {} without it; \
             to use this SSD again, attach it with -f",
            devices.ssd, devices.origin
        )),
        VolumeError::Silent(silent) => not_answering(&name, &devices, silent),
        other => ControlError::from_error(other),
    })
}

/// Changes settings.
pub(super) async fn configure(
    name: VolumeName,
    settings: Settings,
    memory: Memory,
) -> ControlResult<()> {
    let resident = resident(&name)?;
    let volume = resident.volume.clone();
    let Some(cache) = volume.cache() else {
        return voltier_control::configure(&volume, &settings).await;
    };
    let (total, more) = cache.memory_with(settings.policy, settings.for_cache().admission);
    // What is learned anew stands beside the old for a moment.
    let _meanwhile = memory.promise(more).map_err(|shortage| {
        ControlError::not_now(format!(
            "the change of {name} {shortage}; free some, or choose a policy or an admission that needs less"
        ))
    })?;
    voltier_control::configure(&volume, &settings).await?;
    if let Some(mut given) = resident.memory.take() {
        given.change(total);
        resident.memory.set(Some(given));
    }
    Ok(())
}

/// Writes every dirty line back.
pub(super) async fn drain(name: VolumeName, devices: DeviceNames) -> ControlResult<()> {
    let resident = resident(&name)?;
    let volume = resident.volume.clone();
    let origin_errors = origin_errors(&volume);
    match resident.unless_ended(volume.drain()).await {
        Some(Ok(())) => Ok(()),
        Some(Err(VolumeError::Io { error, .. })) => {
            Err(not_written_back(&name, &volume, &devices, origin_errors, error))
        }
        Some(Err(VolumeError::Silent(silent))) => Err(not_answering(&name, &devices, silent)),
        Some(Err(other)) => Err(ControlError::from_error(other)),
        None => Err(ended_early(&name)),
    }
}

/// Ends a drain that is under way.
pub(super) fn end_drain(name: &VolumeName) -> ControlResult<()> {
    resident(name)?.end_drain();
    Ok(())
}

fn ended_early(name: &VolumeName) -> ControlError {
    ControlError::failed(format!("writing {name} back was ended early"))
}

fn origin_errors(volume: &Volume<Drive>) -> u64 {
    volume.cache().map_or(0, |cache| cache.status().origin.errors)
}

/// The error of writing back: the device that stopped it, and the way on.
fn not_written_back(
    name: &VolumeName,
    volume: &Volume<Drive>,
    devices: &DeviceNames,
    origin_errors_before: u64,
    error: impl std::fmt::Display,
) -> ControlError {
    let DeviceNames { origin, ssd } = devices;
    let Some(cache) = volume.cache() else {
        return ControlError::failed(format!("writing {name} back to {origin}: {error}"));
    };
    let status = cache.status();
    let dirty = status.lines.dirty;
    let damaged = cache.damaged_ranges().len();
    ControlError::failed(if status.health == Health::Failed {
        format!(
            "writing {name} back: its SSD {ssd} failed and {dirty} lines are lost; \
             `voltier show {name}` lists them, `voltier detach {name} --no-flush` gives them up"
        )
    } else if status.evacuation_stalls {
        format!(
            "writing {name} back: its SSD {ssd} takes no writes, and {dirty} dirty lines on it \
             cannot be read now; Voltier keeps trying, `voltier detach {name} --no-flush` gives \
             them up"
        )
    } else if status.origin.errors > origin_errors_before || damaged == 0 {
        format!(
            "writing {name} back: its backing disk {origin}: {error}; {dirty} dirty lines stay \
             safe on {ssd}; see `dmesg`, repair the disk and try again, or `voltier detach \
             {name} --no-flush` gives them up"
        )
    } else {
        format!(
            "writing {name} back: {damaged} dirty lines are damaged on its SSD {ssd} ({error}), \
             the others are written; `voltier show {name}` lists them: write them again, or give \
             them up with --no-flush"
        )
    })
}

/// Lines the origin does not have yet, and whether the SSD went away with them.
pub(super) fn dirty_lines(name: &VolumeName) -> (u64, bool) {
    let Ok(resident) = resident(name) else { return (0, false) };
    let is_gone = resident.volume.cache().is_some_and(|cache| cache.ssd_is_gone());
    (dirty_lines_of(&resident.volume), is_gone)
}

fn dirty_lines_of(volume: &Volume<Drive>) -> u64 {
    volume.cache().map_or(0, |cache| cache.status().lines.dirty)
}

/// The facts about a volume.
pub(super) fn facts(name: &VolumeName) -> ControlResult<Facts> {
    let volume = resident(name)?.volume.clone();
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
    Ok(Facts {
        counted: volume.status(),
        origin_bytes: volume.origin().limits().bytes(),
        origin_tail_bytes: volume.origin().unused_tail_bytes(),
        ssd_bytes: cache.map_or(0, |cache| cache.ssd().limits().bytes()),
        lost_ranges,
        lost,
        damaged,
    })
}

fn in_bytes(ranges: &[SectorRange]) -> Vec<ByteRange> {
    let in_bytes = |range: &SectorRange| ByteRange {
        offset_bytes: range.start.bytes(),
        length_bytes: range.bytes(),
    };
    ranges.iter().map(in_bytes).collect()
}
