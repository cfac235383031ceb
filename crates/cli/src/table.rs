//! State for people: a table of all volumes, or everything about one.

use std::fmt::Write;

use voltier_control::{
    DeviceState, DeviceStatus, ExportState, ExportStatus, Figures, RequestCounts, Tunables, Unit,
    UnshippedStatus, VolumeState, VolumeStatus, format_size,
};

use crate::rates_table;
use crate::smart_text;

const HEAD: [&str; 10] =
    ["NAME", "STATE", "HEALTH", "MODE", "SIZE", "SSD", "USED", "DIRTY", "READ HIT", "EXPORTS"];

/// Troubles of a volume below the table: its own error says most, and an export that is not open may have another
/// cause.
const PROBLEMS_IN_TABLE: usize = 2;

/// Lost ranges that are shown to people one by one.
const LOST_SHOWN_MAX: usize = 8;

/// One row per volume.
pub(crate) fn all(volumes: &[VolumeStatus]) -> String {
    if volumes.is_empty() {
        return "no volumes; make one with `voltier create -s SSD -p DISK NAME`\n".to_owned();
    }
    let mut rows: Vec<[String; 10]> = vec![HEAD.map(str::to_owned)];
    rows.extend(volumes.iter().map(row));
    let mut text = columns(&rows);
    for volume in volumes {
        for problem in problems(volume).take(PROBLEMS_IN_TABLE) {
            let _ = writeln!(text, "{}: {problem}", volume.name);
        }
        if !volume.under_way.is_empty() {
            let _ = writeln!(text, "{}: under way: {}", volume.name, volume.under_way);
        }
    }
    text
}

/// What is wrong with a volume: its error, and what `voltier health` says beyond that.
fn problems(volume: &VolumeStatus) -> impl Iterator<Item = String> {
    let error = Some(volume.error.clone()).filter(|error| !error.is_empty());
    let reasons = volume
        .health
        .reasons
        .iter()
        .filter(|it| !it.ends_with(&*volume.error) || volume.error.is_empty());
    error.into_iter().chain(reasons.cloned())
}

/// Rows with the cells of a column below each other.
pub(crate) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

fn row(volume: &VolumeStatus) -> [String; 10] {
    let cached = volume.ssd.state != DeviceState::None;
    let if_cached = |text: String| if cached { text } else { "-".to_owned() };
    let exports: Vec<String> = volume.exports.iter().map(export_kind).collect();
    [
        volume.name.to_string(),
        state_of(volume),
        volume.health.state.word().to_owned(),
        if_cached(volume.mode.clone()),
        format_size(volume.size_bytes),
        if_cached(format_size(volume.ssd.size_bytes)),
        if_cached(percent(share(volume.lines.used, volume.lines.total))),
        if_cached(format_size(dirty_bytes(volume))),
        if_cached(percent(volume.hit_rate.read)),
        if exports.is_empty() { "-".to_owned() } else { exports.join(",") },
    ]
}

/// The kind of an export, with a note when the export is not open.
fn export_kind(export: &ExportStatus) -> String {
    match export.state {
        ExportState::Open => export.kind.clone(),
        ExportState::Failed => format!("{} (failed)", export.kind),
        ExportState::Closed => format!("{} (closed)", export.kind),
    }
}

/// Everything about one volume.
pub(crate) fn one(volume: &VolumeStatus) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: String| {
        let _ = writeln!(text, "{key:<12} {value}");
    };
    line("name", volume.name.to_string());
    state_lines(volume, &mut line);
    line("size", format!("{} ({} bytes)", format_size(volume.size_bytes), volume.size_bytes));
    line("backing disk", device(&volume.hdd));
    for health in smart_text::lines(&volume.hdd.path, &volume.hdd.smart) {
        line("disk health", health);
    }
    if volume.hdd.unused_tail_bytes > 0 {
        let bytes = volume.hdd.unused_tail_bytes;
        line("unused", format!("its last {bytes} bytes, which do not fill a block"));
    }
    let rest_bytes = volume.hdd.size_bytes.saturating_sub(volume.size_bytes);
    if rest_bytes > 0 && volume.size_bytes > 0 && volume.ssd.state != DeviceState::None {
        let rest = format_size(rest_bytes);
        let name = &volume.name;
        line(
            "unused",
            format!(
                "{rest} beyond the end of the volume; to use it: `voltier detach {name}`, \
                 `voltier stop {name}`, `voltier start {name}`, `voltier attach {name} -s SSD`"
            ),
        );
    }
    if volume.ssd.state == DeviceState::None {
        line("SSD", "none; `voltier attach` adds one".to_owned());
    } else {
        line("SSD", device(&volume.ssd));
        for health in smart_text::lines(&volume.ssd.path, &volume.ssd.smart) {
            line("SSD health", health);
        }
        cache_lines(volume, &mut line);
    }
    recent_lines(volume, &mut line);
    line("reads", requests(&volume.reads));
    line("writes", requests(&volume.writes));
    let moved = &volume.device_bytes;
    line("SSD bytes", moved_bytes(moved.ssd_read, moved.ssd_written));
    line("disk bytes", moved_bytes(moved.origin_read, moved.origin_written));
    rows(&volume.origin, &mut line);
    for export in &volume.exports {
        let trouble = match export.state {
            ExportState::Open => String::new(),
            ExportState::Failed => format!(" (failed: {})", export.error),
            ExportState::Closed => " (closed)".to_owned(),
        };
        let access = export.access.as_ref().map(|it| format!(", {it}")).unwrap_or_default();
        line("export", format!("{} {}{access}{trouble}", export.kind, export.uri));
        if !export.users.is_empty() {
            line("in use by", export.users.join("; "));
        }
    }
    line("uuid", volume.uuid.clone());
    line("up", format!("{} s", volume.uptime_seconds));
    text
}

/// Devices that are awaited, and for how long.
pub(crate) fn waits_for(devices: &[String], seconds: Option<u64>) -> String {
    let devices = devices.join(", ");
    match seconds {
        Some(seconds) => format!("{devices}; {seconds} s more at most"),
        None => format!("{devices}; retried when they appear"),
    }
}

/// The figures of a group that have rows of their own.
pub(crate) fn rows(figures: &impl Figures, line: &mut impl FnMut(&str, String)) {
    for (figure, value) in figures.listed() {
        let Some(row) = figure.row.filter(|row| value > 0 || !row.if_any) else { continue };
        let number = match figure.unit {
            Unit::Bytes => format_size(value),
            unit => (value / unit.counted_per_shown()).to_string(),
        };
        line(row.label, row.text.replace("{}", &number));
    }
}

fn cache_lines(volume: &VolumeStatus, line: &mut impl FnMut(&str, String)) {
    let tunables = &volume.tunables;
    line("mode", volume.mode.clone());
    line("policy", volume.policy.clone());
    line(
        "tunables",
        format!(
            "admission={} seq_cutoff={} dirty_high={}% dirty_low={}% dirty_age={} \
             destage_rate={} congested={} deadline={} ordered={} max_unshipped={}{}",
            tunables.admission,
            tunables.seq_cutoff,
            tunables.dirty_high,
            tunables.dirty_low,
            tunables.dirty_age,
            tunables.destage_rate,
            tunables.congested,
            tunables.deadline,
            if tunables.ordered { "on" } else { "off" },
            tunables.max_unshipped,
            if tunables.ephemeral_ssd { " ephemeral_ssd=on" } else { "" }
        ),
    );
    let lines = &volume.lines;
    line(
        "lines",
        format!(
            "{} of {} used ({}), {} dirty ({}), {} bytes each",
            lines.used,
            lines.total,
            percent(share(lines.used, lines.total)),
            lines.dirty,
            format_size(dirty_bytes(volume)),
            volume.block_size
        ),
    );
    rows(lines, line);
    if let Some(unshipped) = &volume.unshipped {
        line("SSD loss", loss_now(unshipped, tunables));
    }
    line("destage", volume.destage.clone());
    if volume.lost_ranges > 0 {
        line("lost", format!("{} ranges; reads of them fail", volume.lost_ranges));
        lost_lines(volume, line);
    }
    rows(&volume.counts, line);
    line("write amp", format!("{:.2}", volume.write_amplification));
    line(
        "hit rate",
        format!(
            "{} of reads, {} of writes",
            percent(volume.hit_rate.read),
            percent(volume.hit_rate.write)
        ),
    );
}

/// How it is, what is wrong, and what it waits for.
fn state_lines(volume: &VolumeStatus, line: &mut impl FnMut(&str, String)) {
    line("state", state_of(volume));
    line("health", volume.health.state.word().to_owned());
    for problem in problems(volume) {
        line("problem", problem);
    }
    if !volume.note.is_empty() {
        line("note", volume.note.clone());
    }
    if !volume.waits_for.is_empty() {
        line("waits for", waits_for(&volume.waits_for, volume.waits_seconds));
    }
    if !volume.under_way.is_empty() {
        line("under way", volume.under_way.clone());
    }
}

/// What clients, the SSD and the disk were asked for of late.
fn recent_lines(volume: &VolumeStatus, line: &mut impl FnMut(&str, String)) {
    let all = [
        ("clients", &volume.recent),
        ("SSD asked", &volume.ssd.recent),
        ("disk asked", &volume.hdd.recent),
    ];
    for (what, recent) in all {
        recent.iter().for_each(|recent| line(what, rates_table::in_words(recent)));
    }
}

/// What a loss of the SSD would take, in a sentence.
fn loss_now(unshipped: &UnshippedStatus, tunables: &Tunables) -> String {
    let size = format_size(unshipped.bytes);
    let age = |word: &str, seconds: f64| format!("{word} {seconds:.1} s");
    let lost = match (unshipped.age_seconds, unshipped.age_is_minimum, tunables.ordered) {
        _ if unshipped.bytes == 0 => "nothing, the disk has all writes".to_owned(),
        (None, ..) => format!("nothing acknowledged, {size} are on their way"),
        (Some(seconds), true, _) => {
            let age = age("more than", seconds);
            format!("{age} (from before the last start) and up to {size} of the newest writes")
        }
        (Some(seconds), false, true) => {
            format!("{} and {size} of the newest writes", age("up to", seconds))
        }
        (Some(seconds), false, false) => {
            let age = age("up to", seconds);
            format!("up to {size} of writes {age} old; with ordered=on it would be the newest ones")
        }
    };
    let waiting = match unshipped.waiting_writes {
        0 => String::new(),
        1 => format!("; 1 write waits for the disk (max_unshipped={})", tunables.max_unshipped),
        n => format!("; {n} writes wait for the disk (max_unshipped={})", tunables.max_unshipped),
    };
    format!("if the SSD were lost now: {lost}{waiting}")
}

/// The first ranges of both lists, and how many more there are.
fn lost_lines(volume: &VolumeStatus, line: &mut impl FnMut(&str, String)) {
    let (lost, damaged) = (volume.lost.iter(), volume.damaged.iter());
    let named =
        lost.map(|range| ("lost at", range)).chain(damaged.map(|range| ("damaged at", range)));
    for (key, range) in named.take(LOST_SHOWN_MAX) {
        line(key, format!("byte {}, {} bytes", range.offset_bytes, range.length_bytes));
    }
    let more = volume.lost_ranges.saturating_sub(LOST_SHOWN_MAX as u64);
    if more > 0 {
        line("", format!("and {more} more; `voltier show {} --json` lists them", volume.name));
    }
}

fn state_of(volume: &VolumeStatus) -> String {
    let read_only = if volume.read_only { " read-only" } else { "" };
    format!("{}{read_only}", state(volume.state))
}

fn state(state: VolumeState) -> &'static str {
    match state {
        VolumeState::Running => "running",
        VolumeState::Draining => "draining",
        VolumeState::Degraded => "degraded",
        VolumeState::Waiting => "waiting",
        VolumeState::Failed => "failed",
        VolumeState::Starting => "starting",
        VolumeState::Stopped => "stopped",
        VolumeState::NotRunning => "not running",
    }
}

fn device(device: &DeviceStatus) -> String {
    let state = match device.state {
        DeviceState::Online => "online",
        DeviceState::Degraded => "degraded",
        DeviceState::Evacuating => "evacuating",
        DeviceState::Silent => "not answering",
        DeviceState::Refusing => "refuses writes",
        DeviceState::Missing => "missing",
        DeviceState::Failed => "failed",
        DeviceState::Offline => "not opened",
        DeviceState::None => "none",
    };
    let size = format_size(device.size_bytes);
    if device.identity.is_empty() {
        return format!("{} ({size}, {state})", device.path);
    }
    format!("{} ({size}, {state}), known by {}", device.path, device.identity)
}

fn requests(counts: &RequestCounts) -> String {
    format!(
        "{} requests, {} hits, {} misses, {} bypassed, {}",
        counts.requests,
        counts.hits,
        counts.misses,
        counts.bypassed,
        format_size(counts.bytes)
    )
}

fn moved_bytes(read: u64, written: u64) -> String {
    format!("{} read, {} written", format_size(read), format_size(written))
}

fn dirty_bytes(volume: &VolumeStatus) -> u64 {
    volume.lines.dirty.saturating_mul(u64::from(volume.block_size))
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}
