//! Rates and latencies for people, as `iostat` has them: a row for each volume or array and for each drive under it.

use voltier_control::{
    ArrayDetail, DeviceState, DeviceStatus, Recent, RecentRequests, VolumeStatus, format_size,
};

use crate::table::columns;

const COLUMNS: usize = 14;
const HEAD: [&str; COLUMNS] = [
    "",
    "READS/s",
    "READ/s",
    "P50",
    "P99",
    "WORST",
    "WRITES/s",
    "WRITTEN/s",
    "P50",
    "P99",
    "WORST",
    "FLUSHES/s",
    "P99",
    "QUEUE",
];

/// Rows for volumes and their drives; empty while nothing is known of any.
pub(crate) fn of_volumes(volumes: &[VolumeStatus]) -> String {
    let mut rows = Vec::new();
    for volume in volumes {
        let Some(recent) = &volume.recent else { continue };
        rows.push(row(volume.name.as_str(), recent));
        let drives = [("SSD", &volume.ssd), ("disk", &volume.hdd)];
        rows.extend(drives.into_iter().filter_map(|(what, drive)| of_drive(what, drive)));
    }
    table(rows)
}

fn of_drive(what: &str, drive: &DeviceStatus) -> Option<[String; COLUMNS]> {
    let recent = drive.recent.as_ref().filter(|_| drive.state != DeviceState::None)?;
    Some(row(&format!("  {what} {}", drive.path), recent))
}

/// Rows for arrays and their members; empty while nothing is known of any.
pub(crate) fn of_arrays(arrays: &[ArrayDetail]) -> String {
    let mut rows = Vec::new();
    for array in arrays {
        let Some(recent) = &array.recent else { continue };
        rows.push(row(array.name.as_str(), recent));
        let members = array.members.iter().filter_map(|it| Some((it, it.recent.as_ref()?)));
        rows.extend(
            members.map(|(it, recent)| row(&format!("  {} {}", it.index, it.path), recent)),
        );
    }
    table(rows)
}

fn table(rows: Vec<[String; COLUMNS]>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let head = HEAD.map(str::to_owned);
    columns(&[vec![head], rows].concat())
}

fn row(name: &str, recent: &Recent) -> [String; COLUMNS] {
    let Recent { reads, writes, flushes, .. } = recent;
    let moved = |of: &RecentRequests| format_size(of.bytes_per_second);
    let [read_50, read_99, read_worst] = times(reads);
    let [write_50, write_99, write_worst] = times(writes);
    let [_, flush_99, _] = times(flushes);
    [
        name.to_owned(),
        rate(reads.per_second),
        moved(reads),
        read_50,
        read_99,
        read_worst,
        rate(writes.per_second),
        moved(writes),
        write_50,
        write_99,
        write_worst,
        rate(flushes.per_second),
        flush_99,
        format!("{:.1}", recent.queue),
    ]
}

fn rate(per_second: f64) -> String {
    match per_second {
        it if it > 0.0 && it < 10.0 => format!("{it:.1}"),
        it => format!("{it:.0}"),
    }
}

fn times(of: &RecentRequests) -> [String; 3] {
    [of.p50_us, of.p99_us, of.worst_us].map(|us| match of.per_second > 0.0 {
        true => time(us),
        false => "-".to_owned(),
    })
}

/// A time with its unit, to two figures or more.
pub(crate) fn time(us: u64) -> String {
    match us {
        0..1000 => format!("{us}us"),
        1000..10_000 => format!("{:.1}ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{}ms", us / 1000),
        _ => format!("{:.1}s", us as f64 / 1e6),
    }
}

/// What was asked of a volume, an array or a drive, in a line.
pub(crate) fn in_words(recent: &Recent) -> String {
    let kinds = [
        (&recent.reads, "reads"),
        (&recent.writes, "writes"),
        (&recent.flushes, "flushes"),
        (&recent.discards, "discards"),
    ];
    let busy = kinds.into_iter().filter(|(of, _)| of.per_second > 0.0);
    let words = busy.map(|(of, what)| {
        let [p50, p99, worst] = times(of);
        let moved = match of.bytes_per_second {
            0 => String::new(),
            bytes => format!("{}/s, ", format_size(bytes)),
        };
        format!("{} {what}/s ({moved}p50 {p50}, p99 {p99}, worst {worst})", rate(of.per_second))
    });
    let words: Vec<String> = words.collect();
    let seconds = recent.seconds.round().max(1.0);
    match (words.is_empty(), recent.under_way) {
        (true, 0) => format!("nothing in the last {seconds} s"),
        (true, waiting) => {
            format!("{waiting} requests under way, none has ended in the last {seconds} s")
        }
        (false, _) => format!("{}; queue {:.1}; last {seconds} s", words.join(", "), recent.queue),
    }
}
