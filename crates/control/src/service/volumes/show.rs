//! The state of volumes, put together from the registry, the service and the data path.

use std::collections::BTreeSet;
use std::time::Duration;

use voltier_cache::{CacheCounts, DeviceBytes, LineCounts, OriginCounts, RequestCounts};

use crate::array_status::{ArrayDetail, ArrayState};
use crate::error::ControlResult;
use crate::export_spec::ExportSpec;
use crate::health;
use crate::health_state::HealthSummary;
use crate::keys::{AGE_S, CONGESTED_US, DEADLINE_S, RATE_OR_OFF, SIZE_OR_OFF, UNSHIPPED};
use crate::name::VolumeName;
use crate::protocol::Response;
use crate::records::{Desired, RegisteredArray, VolumeRecord};
use crate::registry::Registry;
use crate::safety::{DriveIdentity, users};
use crate::service::arrays;
use crate::service::arrays::scrub_book::ScrubBook;
use crate::service::state::claims::Subject;
use crate::service::state::jobs::Purpose;
use crate::service::state::live::now;
use crate::service::state::turn::Turn;
use crate::settings::Settings;
use crate::spec::DeviceSpec;
use crate::state_dir::StateDir;
use crate::status::{
    DeviceState, DeviceStatus, ExportState, ExportStatus, HitRates, Tunables, VolumeState,
    VolumeStatus,
};

/// Ranges of each list in the state of all volumes: 10,000 of them fit in one answer.
const LISTED_OF_ALL_MAX: usize = 8;

pub(crate) fn show(turn: &mut Turn, name: &VolumeName, over: Duration) -> ControlResult<Response> {
    let record = turn.record(name)?;
    let mut volume = Box::new(recent_status(turn, &record, over));
    for (shown, export) in volume.exports.iter_mut().zip(&record.exports) {
        if let Some(file) = export.file() {
            let machine = turn.engine.machine();
            shown.users = users::users_of_file(machine, file, export.is_device(), &BTreeSet::new());
        }
    }
    Ok(Response::Volume { volume })
}

pub(crate) fn show_all(turn: &mut Turn, over: Duration) -> Response {
    let records = turn.registry.volumes().to_vec();
    let mut volumes: Vec<_> =
        records.iter().map(|record| recent_status(turn, record, over)).collect();
    volumes.iter_mut().for_each(|volume| list_at_most(volume, LISTED_OF_ALL_MAX));
    Response::Volumes { volumes }
}

fn export_status(turn: &mut Turn, name: &VolumeName, export: &ExportSpec) -> ExportStatus {
    let live = turn.live.get(name);
    let closed = live.and_then(|it| it.closed_exports.iter().find(|it| it.export == *export));
    let trouble = match closed {
        Some(closed) => Some(closed.error.clone()),
        None => turn.engine.export_trouble(name, export),
    };
    let (state, error) = match trouble {
        Some(why) => (ExportState::Failed, why),
        None => (ExportState::Open, String::new()),
    };
    let record = turn.registry.find(name);
    ExportStatus {
        kind: export.kind().word.to_owned(),
        uri: export.uri(name),
        state,
        error,
        access: record.and_then(|record| record.access_of(export)).cloned(),
        users: Vec::new(),
    }
}

/// The answer with the state of a volume just handled.
pub(crate) fn volume(turn: &mut Turn, name: &VolumeName) -> Response {
    let record = turn.registry.find(name).cloned().expect("a volume just handled is recorded");
    Response::Volume { volume: Box::new(status(turn, &record)) }
}

/// Everything about one volume, with what it did in about the last `over`.
pub(crate) fn recent_status(
    turn: &mut Turn,
    record: &VolumeRecord,
    over: Duration,
) -> VolumeStatus {
    let mut status = status(turn, record);
    turn.history.take(&Subject::Volume(record.name.clone()), &mut status, now(), over);
    status
}

/// Everything about one volume.
pub(crate) fn status(turn: &mut Turn, record: &VolumeRecord) -> VolumeStatus {
    let arrays = record.devices().filter_map(DeviceSpec::array);
    let arrays: Vec<RegisteredArray> =
        arrays.filter_map(|name| turn.registry.find_array(name)).cloned().collect();
    let below: Vec<ArrayDetail> =
        arrays.iter().map(|array| arrays::show::status(turn, array)).collect();
    let mut status = status_of(turn, record, &below);
    let subject = Subject::Volume(record.name.clone());
    status.under_way = turn.claims.under_way(&subject, turn.own()).unwrap_or_default();
    if turn.claims.starts(&subject, turn.own()) && !turn.is_open(&record.name) {
        status.state = VolumeState::Starting;
    }
    for device in [&mut status.ssd, &mut status.hdd] {
        device.smart = turn.smart.of(&device.path);
    }
    note_waiting_writes(turn, &mut status);
    turn.add_trouble(&mut status.error);
    status.health = health::summary_of_volume(&status, &below);
    status
}

/// Notes for how long writes wait because of `max_unshipped`, which a busy volume does now and then.
fn note_waiting_writes(turn: &mut Turn, status: &mut VolumeStatus) {
    let Some(live) = turn.live.get_mut(&status.name) else { return };
    let waiting = status.unshipped.as_mut().filter(|it| it.waiting_writes > 0);
    live.writes_wait_since = waiting.map(|unshipped| {
        let since = live.writes_wait_since.unwrap_or_else(now);
        unshipped.writes_wait_seconds = since.elapsed().as_secs();
        since
    });
}

fn status_of(turn: &mut Turn, record: &VolumeRecord, below: &[ArrayDetail]) -> VolumeStatus {
    let mut status = recorded(record);
    let array = record.origin.array().and_then(|name| turn.registry.find_array(name));
    status.read_only = array.is_some_and(|array| array.read_only);
    let name = &record.name;
    let Some(live) = turn.live.get(name) else { return status };
    status.error.clone_from(&live.error);
    status.note.clone_from(&live.note);
    status.waits_for = live.absence.awaited();
    status.waits_seconds = live.absence.seconds_left();
    let is_waiting = live.absence.is_waiting();
    let uptime = live.opened_at.elapsed();
    status.uptime_seconds = uptime.as_secs();
    if !live.is_open {
        if is_waiting {
            status.state = VolumeState::Waiting;
        }
        status.hdd.state = live.absence.state_of(&record.origin);
        if let Some(cache) = record.cache.as_ref().filter(|cache| cache.failed.is_none()) {
            status.ssd.state = live.absence.state_of(&cache.device);
        }
        if let Some(label) = &live.ssd_label {
            status.lines.dirty = label.dirty_lines;
            status.ssd.size_bytes = label.size_bytes;
        }
        return status;
    }
    status.exports =
        record.exports.iter().map(|export| export_status(turn, name, export)).collect();
    status.hdd.state = DeviceState::Online;
    status.ssd.state = match &record.cache {
        None => DeviceState::None,
        Some(cache) if cache.failed.is_some() => DeviceState::Failed,
        Some(_) => DeviceState::Online,
    };
    for (device, state) in [
        (Some(&record.origin), &mut status.hdd.state),
        (record.cache.as_ref().map(|cache| &cache.device), &mut status.ssd.state),
    ] {
        let is_online = *state == DeviceState::Online;
        let array = device.and_then(|device| array_of(device, below));
        if is_online && array.is_some_and(|array| array.state == ArrayState::Degraded) {
            *state = DeviceState::Degraded;
        }
    }
    turn.engine.fill_status(name, &mut status);
    if let Some(live) = turn.live.get_mut(name) {
        for (known, device) in
            live.acknowledged_errors.iter_mut().zip([&mut status.ssd, &mut status.hdd])
        {
            // A drive that was opened anew counts from 0, and so does what is known of it.
            *known = if *known > device.errors { 0 } else { *known };
            device.acknowledged_errors = *known;
        }
    }
    if turn.jobs.running(name).is_some() {
        status.destage = "draining".to_owned();
    }
    let failed_array = note_failed_arrays(turn, record, below, &mut status);
    status.hit_rate = HitRates { read: status.reads.hit_rate(), write: status.writes.hit_rate() };
    let leaving = turn.jobs.running(name).is_some_and(|(_, why)| why != Purpose::Flush);
    let out_of_service = [DeviceState::Failed, DeviceState::Evacuating];
    let does_not_work = [DeviceState::Silent, DeviceState::Refusing];
    let is_silent = [&status.ssd, &status.hdd].iter().any(|it| does_not_work.contains(&it.state));
    let failed = out_of_service.contains(&status.ssd.state) || is_silent || status.lost_ranges > 0;
    status.state = match (leaving, failed) {
        _ if failed_array && record.cache.is_none() => VolumeState::Failed,
        (_, true) => VolumeState::Degraded,
        (true, false) => VolumeState::Draining,
        (false, false) => VolumeState::Running,
    };
    status
}

/// The array that a device is.
fn array_of<'a>(device: &DeviceSpec, below: &'a [ArrayDetail]) -> Option<&'a ArrayDetail> {
    below.iter().find(|array| device.array() == Some(&array.name))
}

/// Shows arrays that take no changes as drives that refuse them; whether there is one.
fn note_failed_arrays(
    turn: &Turn,
    record: &VolumeRecord,
    below: &[ArrayDetail],
    status: &mut VolumeStatus,
) -> bool {
    let ssd = record.cache.as_ref().filter(|cache| cache.failed.is_none());
    let ssd = ssd.map(|cache| ("SSD", &cache.device));
    let mut is_any = false;
    for (part, device) in ssd.into_iter().chain([("backing disk", &record.origin)]) {
        let Some(array) = array_of(device, below) else { continue };
        let Some(why) = arrays::show::failure_of(turn, array) else { continue };
        let state = if part == "SSD" { &mut status.ssd.state } else { &mut status.hdd.state };
        if *state != DeviceState::Evacuating {
            *state = DeviceState::Refusing;
        }
        status.error = format!("its {part} {device} has failed: {why}");
        is_any = true;
    }
    is_any
}

/// The exports of a volume that is not open.
fn closed_exports(record: &VolumeRecord) -> Vec<ExportStatus> {
    let why = match record.desired {
        Desired::Stopped => "the volume is stopped",
        _ => "the volume is not served",
    };
    let status = |export: &ExportSpec| ExportStatus {
        kind: export.kind().word.to_owned(),
        uri: export.uri(&record.name),
        state: ExportState::Closed,
        error: why.to_owned(),
        access: record.access_of(export).cloned(),
        users: Vec::new(),
    };
    record.exports.iter().map(status).collect()
}

/// The volumes of a state folder that no daemon serves, as its registry has them. Nothing is changed.
///
/// # Errors
/// When the registry cannot be read, or is refused.
pub fn recorded_volumes(state: &StateDir) -> ControlResult<Vec<VolumeStatus>> {
    let registry = Registry::load(state.path())?;
    let status = |record: &VolumeRecord| {
        let mut status = recorded(record);
        if status.state != VolumeState::Stopped {
            status.state = VolumeState::NotRunning;
            for device in [&mut status.hdd, &mut status.ssd] {
                if device.state != DeviceState::None {
                    device.state = DeviceState::Offline;
                }
            }
        }
        status.health = health::summary_of_volume(&status, &[]);
        status
    };
    Ok(registry.volumes().iter().map(status).collect())
}

/// The arrays of a state folder that no daemon serves, as its registry has them. Nothing is changed.
///
/// # Errors
/// When the registry cannot be read, or is refused.
pub fn recorded_arrays(state: &StateDir) -> ControlResult<Vec<ArrayDetail>> {
    let registry = Registry::load(state.path())?;
    let scrubs = ScrubBook::of(state.path());
    let status = |record: &RegisteredArray| {
        let mut status = ArrayDetail::recorded(record);
        status.scrub_times = scrubs.times(record);
        if status.state != ArrayState::Stopped {
            status.state = ArrayState::NotRunning;
        }
        status.health = health::summary_of_array(&status);
        status
    };
    Ok(registry.arrays().iter().map(status).collect())
}

/// Leaves the first ranges of each list, and counts the rest.
fn list_at_most(status: &mut VolumeStatus, count_max: usize) {
    for list in [&mut status.lost, &mut status.damaged] {
        let left_out = list.len().saturating_sub(count_max);
        list.truncate(count_max);
        status.lost_ranges_unlisted += left_out as u64;
    }
}

/// The status as far as the record alone tells.
pub(crate) fn recorded(record: &VolumeRecord) -> VolumeStatus {
    let cache = record.cache.as_ref();
    let (state, devices) = match record.desired {
        Desired::Stopped => (VolumeState::Stopped, DeviceState::Offline),
        _ => (VolumeState::Failed, DeviceState::Failed),
    };
    let settings = cache.map(|cache| cache.settings.clone()).unwrap_or_default();
    let words = |identity: Option<&DriveIdentity>| {
        identity.filter(|it| it.is_known()).map(ToString::to_string).unwrap_or_default()
    };
    let dirty = cache.filter(|cache| cache.maybe_dirty).map_or(0, |cache| cache.dirty_lines);
    let word = |text: &str, without: &str| cache.map_or(without, |_| text).to_owned();
    VolumeStatus {
        name: record.name.clone(),
        state,
        health: HealthSummary::default(),
        read_only: false,
        size_bytes: record.size_bytes,
        mode: word(&settings.mode.to_string(), "pt"),
        policy: word(settings.policy.name(), "none"),
        block_size: settings.line_bytes,
        ssd: DeviceStatus {
            path: cache.map(|cache| cache.device.to_string()).unwrap_or_default(),
            identity: words(cache.and_then(|cache| cache.identity.as_ref())),
            size_bytes: 0,
            state: cache.map_or(DeviceState::None, |_| devices),
            ..DeviceStatus::default()
        },
        hdd: DeviceStatus {
            path: record.origin.to_string(),
            identity: words(record.origin_identity.as_ref()),
            size_bytes: record.size_bytes,
            state: devices,
            ..DeviceStatus::default()
        },
        lines: LineCounts { dirty, ..LineCounts::default() },
        unshipped: None,
        reads: RequestCounts::default(),
        writes: RequestCounts::default(),
        recent: None,
        meter: None,
        hit_rate: HitRates::default(),
        device_bytes: DeviceBytes::default(),
        exports: closed_exports(record),
        uuid: record.uuid.to_string(),
        generation: cache.map_or(0, |cache| cache.generation),
        lost_ranges: cache.map_or(0, |cache| cache.lost_total),
        lost: cache.map(|cache| cache.lost.clone()).unwrap_or_default(),
        damaged: Vec::new(),
        waits_for: Vec::new(),
        waits_seconds: None,
        lost_ranges_unlisted: cache
            .map_or(0, |cache| cache.lost_total.saturating_sub(cache.lost.len() as u64)),
        counts: CacheCounts::default(),
        origin: OriginCounts::default(),
        write_amplification: 0.0,
        destage: "idle".to_owned(),
        tunables: tunables_of(&settings),
        uptime_seconds: 0,
        under_way: String::new(),
        note: String::new(),
        error: String::new(),
    }
}

fn tunables_of(settings: &Settings) -> Tunables {
    Tunables {
        admission: settings.admission.to_string(),
        seq_cutoff: (SIZE_OR_OFF.text)(&settings.seq_cutoff_bytes),
        dirty_high: settings.dirty_high_percent,
        dirty_low: settings.dirty_low_percent,
        dirty_age: (AGE_S.text)(&settings.dirty_age_s),
        destage_rate: (RATE_OR_OFF.text)(&settings.destage_rate),
        congested: (CONGESTED_US.text)(&settings.congested_us),
        deadline: (DEADLINE_S.text)(&settings.deadline_s),
        ordered: settings.ordered,
        ephemeral_ssd: settings.ephemeral_ssd,
        max_unshipped: (UNSHIPPED.text)(&settings.max_unshipped),
    }
}
