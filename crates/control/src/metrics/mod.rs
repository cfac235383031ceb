//! Metrics in the text format of Prometheus, from what `show` and `health` tell. Names, help and units of figures come
//! from their declarations.

pub(crate) mod address;
pub(crate) mod http;
pub(crate) mod page;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use voltier_array::MemberCounts;
use voltier_block::{Asked, Figure, FigureKind, Figures, MeterCounts, Unit};

use crate::array_status::{ArrayDetail, ArrayState};
use crate::events::hook::HookStatus;
use crate::figures::{ShownFigure, of_group};
use crate::health::{Check, Health};
use crate::health_state::HealthState;
use crate::service::Snapshot;
use crate::smart::{Smart, SmartFigures};
use crate::status::{VolumeState, VolumeStatus};
use text::{Labels, Text};

pub use text::{Family, FamilyKind};

/// The ends of the buckets of times: these powers of two, in microseconds.
const BUCKETS_LOG2: [u32; 12] = [4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26];

/// The type of the text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

macro_rules! families {
    ($($constant:ident: $kind:ident $name:literal, $help:literal;)+) => {
        $(const $constant: (FamilyKind, (&str, &str)) = (FamilyKind::$kind, ($name, $help));)+

        /// Families that are no figures: name, type and help.
        const DECLARED: &[(FamilyKind, (&str, &str))] = &[$($constant),+];
    };
}

families! {
    BUILD_INFO: Gauge "voltier_build_info",
        "Always 1; the label says the version of the daemon.";
    HEALTH: Gauge "voltier_health",
        "How well it is, as voltier health says it: 0 ok, 1 warning, 2 degraded, 3 failed.";
    CONDITION: Gauge "voltier_condition",
        "1 while voltier health says this of it.";
    VOLUME_UP: Gauge "voltier_volume_up",
        "Whether the volume is served.";
    VOLUME_SIZE: Gauge "voltier_volume_size_bytes",
        "The size of the volume.";
    UNSHIPPED: Gauge "voltier_volume_unshipped_bytes",
        "What the disk lacks at most: a loss of the SSD would take it.";
    UNSHIPPED_AGE: Gauge "voltier_volume_unshipped_age_seconds",
        "The age of the oldest acknowledged write that the disk lacks; 0 if there is none.";
    ARRAY_UP: Gauge "voltier_array_up",
        "Whether the array is assembled.";
    ARRAY_SIZE: Gauge "voltier_array_size_bytes",
        "The size of the array.";
    ARRAY_MEMBERS: Gauge "voltier_array_members",
        "Members of the array, by their state.";
    ARRAY_MAY_LOSE: Gauge "voltier_array_may_lose",
        "How many more members may be lost, whichever they are.";
    ARRAY_SPARES: Gauge "voltier_array_spares",
        "Spares that wait for the array, without those of its pool.";
    POOL_SPARES: Gauge "voltier_pool_spares",
        "Spares that wait in the pool.";
    TASK_RUNNING: Gauge "voltier_array_task_running",
        "Whether a rebuild or scrub is running.";
    TASK_DONE: Gauge "voltier_array_task_done_bytes",
        "Bytes of members that the rebuild or scrub has done.";
    TASK_TOTAL: Gauge "voltier_array_task_total_bytes",
        "Bytes of members that the rebuild or scrub has to do in all.";
    REQUESTS: Histogram "voltier_request_duration_seconds",
        "How long requests took that have ended, by layer: volume, ssd, disk, array, member.";
    REQUEST_BYTES: Counter "voltier_request_bytes_total",
        "Bytes of the requests that have ended.";
    REQUEST_ERRORS: Counter "voltier_request_errors_total",
        "Requests of a drive that have failed.";
    UNDER_WAY: Gauge "voltier_requests_under_way",
        "Requests that have not ended.";
    HOOK_FAILURES: Gauge "voltier_hook_failures",
        "Attempts of the hook that have failed since the last one that did not.";
}

/// All families, for the guide: those that are declared here, and those of the figures of a volume, of an array and of
/// its members.
pub fn families(volume: &VolumeStatus, array: &ArrayDetail) -> Vec<Family> {
    let declared = DECLARED.iter().map(|(kind, (name, help))| Family {
        name: (*name).to_owned(),
        kind: *kind,
        help: (*help).to_owned(),
    });
    let of = |prefix: &'static str| {
        move |shown: ShownFigure| {
            let (kind, name, help) = family_of(prefix, shown.group, shown.figure);
            Family { name, kind, help }
        }
    };
    let volumes = volume.figures().map(of("voltier_volume"));
    let arrays = array.figures().map(of("voltier_array"));
    let counts = MemberCounts::default();
    let members = of_group("", &counts).map(of("voltier_member"));
    let of_drive = of("voltier_drive");
    let drives = SmartFigures::<u64>::ALL.iter();
    let drives = drives.map(|figure| of_drive(ShownFigure { group: "", figure, value: 0 }));
    declared.chain(volumes).chain(arrays).chain(members).chain(drives).collect()
}

/// All metrics of an instance.
pub(crate) fn of(seen: &Snapshot, hooks: &[HookStatus], own_checks: Vec<Check>) -> String {
    let mut text = Text::default();
    add(&mut text, BUILD_INFO, &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    let health = Health::of_all(&seen.volumes, &seen.arrays, &seen.pools).with(own_checks);
    add_health(&mut text, &health);
    seen.volumes.iter().for_each(|volume| add_volume(&mut text, volume));
    seen.arrays.iter().for_each(|array| add_array(&mut text, array));
    for pool in &seen.pools {
        add(&mut text, POOL_SPARES, &[("pool", pool.name.as_str())], pool.spares.len() as f64);
    }
    add_drives(&mut text, seen);
    for hook in hooks {
        let (id, target) = (hook.hook.id.to_string(), hook.hook.target.title());
        let labels = [("hook", &*id), ("target", &*target)];
        add(&mut text, HOOK_FAILURES, &labels, f64::from(hook.failures));
    }
    text.finish()
}

fn add(
    text: &mut Text,
    (kind, family): (FamilyKind, (&str, &str)),
    labels: Labels<'_>,
    value: f64,
) {
    text.add(kind, family, labels, value);
}

fn add_health(text: &mut Text, health: &Health) {
    let (mut worst, mut said) = (BTreeMap::new(), BTreeSet::new());
    for check in &health.checks {
        let what = (check.part.word(), &*check.name, &*check.of);
        let state = worst.entry(what).or_insert(HealthState::Ok);
        *state = (*state).max(check.state);
        if check.state > HealthState::Ok {
            said.insert((what, &*check.condition));
        }
    }
    for ((part, name, of), state) in worst {
        add(text, HEALTH, &[("part", part), ("name", name), ("of", of)], f64::from(state as u8));
    }
    for ((part, name, of), condition) in said {
        let labels = [("part", part), ("name", name), ("of", of), ("condition", condition)];
        add(text, CONDITION, &labels, 1.0);
    }
}

fn add_volume(text: &mut Text, volume: &VolumeStatus) {
    let name = volume.name.as_str();
    let labels = [("volume", name)];
    let is_up = matches!(
        volume.state,
        VolumeState::Running | VolumeState::Draining | VolumeState::Degraded
    );
    add(text, VOLUME_UP, &labels, f64::from(u8::from(is_up)));
    add(text, VOLUME_SIZE, &labels, volume.size_bytes as f64);
    if let Some(unshipped) = &volume.unshipped {
        add(text, UNSHIPPED, &labels, unshipped.bytes as f64);
        add(text, UNSHIPPED_AGE, &labels, unshipped.age_seconds.unwrap_or(0.0));
    }
    for figure in volume.figures() {
        add_figure(text, "voltier_volume", &figure, &labels);
    }
    let layers = [
        ("volume", "", &volume.meter),
        ("ssd", &*volume.ssd.path, &volume.ssd.meter),
        ("disk", &*volume.hdd.path, &volume.hdd.meter),
    ];
    for (layer, drive, meter) in layers {
        let labels = [("volume", name), ("layer", layer), ("drive", drive)];
        meter.iter().for_each(|meter| add_meter(text, &labels, meter));
    }
}

fn add_array(text: &mut Text, array: &ArrayDetail) {
    let name = array.name.as_str();
    let labels = [("array", name)];
    let is_up = matches!(array.state, ArrayState::Running | ArrayState::Degraded);
    add(text, ARRAY_UP, &labels, f64::from(u8::from(is_up)));
    add(text, ARRAY_SIZE, &labels, array.size_bytes as f64);
    add(text, ARRAY_MAY_LOSE, &labels, f64::from(array.may_lose));
    add(text, ARRAY_SPARES, &labels, array.spares.len() as f64);
    for state in ["online", "rebuilding", "lost", "absent", "unknown"] {
        let count = array.members.iter().filter(|it| it.state == state).count();
        add(text, ARRAY_MEMBERS, &[("array", name), ("state", state)], count as f64);
    }
    for (task, status) in [("rebuild", &array.rebuild), ("scrub", &array.scrub)] {
        let labels = [("array", name), ("task", task)];
        add(text, TASK_RUNNING, &labels, f64::from(u8::from(status.running)));
        add(text, TASK_DONE, &labels, status.done_bytes as f64);
        add(text, TASK_TOTAL, &labels, status.total_bytes as f64);
    }
    for figure in array.figures() {
        add_figure(text, "voltier_array", &figure, &labels);
    }
    let meters = array.meter.iter();
    let own = [("array", name), ("layer", "array"), ("drive", "")];
    meters.for_each(|meter| add_meter(text, &own, meter));
    for member in &array.members {
        let index = member.index.to_string();
        let labels = [("array", name), ("member", &*index), ("drive", &*member.path)];
        for figure in of_group("", &member.health.counts) {
            add_figure(text, "voltier_member", &figure, &labels);
        }
        let labels = [("array", name), ("layer", "member"), ("drive", &*member.path)];
        member.meter.iter().for_each(|meter| add_meter(text, &labels, meter));
    }
}

/// What the drives say of themselves: each once, whatever stands on it.
fn add_drives(text: &mut Text, seen: &Snapshot) {
    let volumes = seen.volumes.iter().flat_map(|it| it.ssd.smart.iter().chain(&it.hdd.smart));
    let members = seen.arrays.iter().flat_map(|it| it.members.iter().flat_map(|it| &it.smart));
    let journals = seen.arrays.iter().filter_map(|it| it.journal_device.as_ref());
    let spares = seen.arrays.iter().flat_map(|it| &it.spares_smart);
    let pools = seen.pools.iter().flat_map(|it| &it.spares_smart);
    let all = volumes.chain(members).chain(journals.flat_map(|it| &it.smart));
    let all = all.chain(spares.chain(pools).flat_map(|it| &it.smart));
    let drives: BTreeMap<&str, &Smart> = all.map(|it| (&*it.drive, it)).collect();
    for (drive, smart) in drives {
        for (figure, value) in smart.figures.known() {
            let shown = ShownFigure { group: "", figure, value };
            add_figure(text, "voltier_drive", &shown, &[("drive", drive)]);
        }
    }
}

fn add_meter(text: &mut Text, labels: &[(&str, &str); 3], meter: &MeterCounts) {
    let kinds = [
        (Asked::Read, "read"),
        (Asked::Write, "write"),
        (Asked::Flush, "flush"),
        (Asked::Discard, "discard"),
    ];
    let [owner, layer, drive] = *labels;
    for (asked, operation) in kinds {
        let counts = meter.of(asked);
        let labels = [owner, layer, drive, ("operation", operation)];
        let ends = BUCKETS_LOG2.map(|log2| 1_u64 << log2).into_iter();
        let buckets = ends.map(|end_us| (end_us as f64 / 1e6, counts.below_us(end_us)));
        let (count, sum) = (counts.requests(), counts.sum_ns as f64 / 1e9);
        text.add_histogram(REQUESTS.1, &labels, buckets, count, sum);
        add(text, REQUEST_BYTES, &labels, counts.bytes as f64);
        add(text, REQUEST_ERRORS, &labels, counts.errors as f64);
    }
    add(text, UNDER_WAY, labels, meter.under_way as f64);
}

/// The family of a figure: with its group, its unit in full, and `_total` where it only grows.
fn family_of(prefix: &str, group: &str, figure: &Figure) -> (FamilyKind, String, String) {
    let name = figure.name;
    let cut = |end: &str| name.strip_suffix(end).unwrap_or(name);
    let (stem, unit) = match figure.unit {
        Unit::Things => (name, ""),
        Unit::Bytes => (cut("bytes").trim_start_matches("bytes_"), "bytes"),
        Unit::Time => (cut("us"), "seconds"),
        Unit::Seconds => (cut("_s"), "seconds"),
        Unit::Hours => (cut("_hours"), "seconds"),
        Unit::Percent => (cut("_percent").trim_start_matches("percentage_"), "ratio"),
        Unit::Celsius => (cut("_celsius"), "celsius"),
    };
    let group = if matches!(group, "counts" | "device_bytes") { "" } else { group };
    let (kind, end) = match figure.kind {
        FigureKind::Counter => (FamilyKind::Counter, "total"),
        FigureKind::Gauge => (FamilyKind::Gauge, ""),
    };
    // The end of the name belongs to counters.
    let stem = if figure.kind == FigureKind::Gauge && stem == "total" { "" } else { stem };
    let parts = [prefix, group, stem.trim_end_matches('_'), unit, end];
    let parts: Vec<&str> = parts.into_iter().filter(|it| !it.is_empty()).collect();
    (
        kind,
        parts.join("_"),
        figure.help.replace(", in microseconds", "").replace(", in percent", ""),
    )
}

fn add_figure(text: &mut Text, prefix: &str, shown: &ShownFigure, labels: Labels<'_>) {
    let (kind, name, help) = family_of(prefix, shown.group, shown.figure);
    let value = shown.value as f64;
    let value = match shown.figure.unit {
        Unit::Time => value / 1e9,
        Unit::Percent => value / 100.0,
        Unit::Hours => value * 3600.0,
        Unit::Things | Unit::Bytes | Unit::Seconds | Unit::Celsius => value,
    };
    text.add(kind, (&name, &help), labels, value);
}
