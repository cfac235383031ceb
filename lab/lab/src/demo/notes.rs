//! What a reader needs to know beside the figures: the document, the conditions, the reasons.

use voltier_results::size::format_bytes;
use voltier_results::table::{figure, percent, whole_or_figure};

use super::options::{SIZE_PER_SMALL_SSD, SSD_PER_SIZE, TURNS};
use super::report::{Condition, Report, Row};
use crate::plan::maxio_jobs::NUMJOBS;
use crate::twin;

/// Within this share of the bare SSD a row needs no reason.
const NEAR_SSD: std::ops::RangeInclusive<f64> = 0.90..=1.15;

/// The document, as it names itself.
const DOCUMENT: &str = "The document: \"TaoCloud MaxIO cache acceleration software, performance test \
    report\" (TaoCloud MaxIO 缓存加速软件 性能测试报告), version 1.1, Beijing TaoCloud Technology \
    (北京大道云行科技有限公司), October 2015. It gives no address on the web. Its tables and its five fio \
    jobs are in this repository as lab/results/tables/maxio_*.csv, and `voltier lab report \
    maxio-sata` shows them with what is odd about them.";

/// The answer, what it rests on, and what it does not show.
pub(super) fn lead(report: &Report) -> Vec<String> {
    let shown = format!(
        "Shown: the five fio jobs of a published test of an SSD cache (MaxIO, 2015) through the real \
         program, the daemon `voltier` with an NBD export and fio as its client, each beside the same \
         job on the disk alone and on the SSD alone. Not shown: real drives (disk and SSDs are models \
         in memory, with the document's figures), long runs ({} s each instead of 600 s), a file \
         system on top; and RAID 6 is a simulation.",
        report.options.seconds
    );
    vec![summary(report), shown, DOCUMENT.to_owned()]
}

/// The one sentence most readers came for, and the one for those who doubt it.
pub(super) fn summary(report: &Report) -> String {
    let most = report.rows.iter().max_by(|a, b| a.times_hdd().total_cmp(&b.times_hdd()));
    let by_ratio = |a: &&Row, b: &&Row| a.ratio().total_cmp(&b.ratio());
    let (least, greatest) =
        (report.rows.iter().min_by(by_ratio), report.rows.iter().max_by(by_ratio));
    let (Some(most), Some(least), Some(greatest)) = (most, least, greatest) else {
        return "Nothing was measured.".to_owned();
    };
    let mut text = format!(
        "With a warm SSD in front of it the disk is up to {} times as fast ({}), and gives {} ({}) to {} \
         ({}) of the bare SSD.",
        figure(most.times_hdd()),
        most.title(),
        percent(least.ratio()),
        least.title(),
        percent(greatest.ratio()),
        greatest.title()
    );
    let cold = report.other("rand_read", Condition::Cold);
    let small = report.other("rand_write", Condition::SmallSsd);
    if let (Some(cold), Some(small)) = (cold, small) {
        text.push_str(&format!(
            " Cold, it is as slow as the disk: {} IOPS ({}). With an SSD of half the test set, random \
             writes fall to {} IOPS.",
            figure(cold.accelerated.median()),
            cold.job.label,
            figure(small.accelerated.median())
        ));
    }
    text
}

/// The condition of the five jobs.
pub(super) fn own_areas(report: &Report) -> String {
    let size = report.options.size_bytes;
    format!(
        "Each of the {NUMJOBS} threads works in an area of its own, {} of the {}. The cache is warm (the \
         set was written through it), and its SSD has {}, {SSD_PER_SIZE} times the set as in the \
         document. HDD: one run of {3} s; SSD and accelerated: {TURNS} runs of {3} s each, in turns; \
         median (least-greatest).",
        format_bytes(size / u64::from(NUMJOBS)),
        format_bytes(size),
        format_bytes(SSD_PER_SIZE * size),
        report.options.seconds
    )
}

/// Reasons of the rows that are not near the bare SSD.
pub(super) fn outside(report: &Report) -> Vec<String> {
    let far = report.rows.iter().filter(|row| !NEAR_SSD.contains(&row.ratio()));
    far.map(|row| reason(report, row)).collect()
}

fn reason(report: &Report, row: &Row) -> String {
    let said = format!("{}: {} of the bare SSD", row.title(), percent(row.ratio()));
    let is_above = row.ratio() > 1.0;
    let of = |key| report.row(key).map_or(0.0, |row| row.ssd.median());
    match row.job.key {
        "rand_write" | "rand_rw" if is_above => format!(
            "{said}, because the cache writes what comes at random in order, to its log. The bare SSD \
             takes {} MB/s of 256 KiB writes in order, but {} MB/s ({} IOPS) of 4 KiB writes at random.",
            figure(of("seq_write")),
            figure(of("rand_write") * 4096.0 / 1e6),
            figure(of("rand_write"))
        ),
        _ if is_above && row.congested_reads > 0 => format!(
            "{said}, because the disk, at rest, served {} of {} reads while the SSD was congested \
             (setting `congested`).",
            whole_or_figure(row.congested_reads as f64),
            whole_or_figure(row.reads.requests as f64)
        ),
        _ => format!("{said}; no reason is known. Was the machine busy with something else?"),
    }
}

/// The condition of the latencies.
pub(super) fn latency() -> String {
    format!(
        "The same runs: half of all requests were answered within p50, 99 of 100 within p99, as fio \
         counts from submission to completion. {} requests are in flight in sequential jobs and {} in \
         random ones, so nearly all of it is waiting in the drive's queue.",
        NUMJOBS * 16,
        NUMJOBS * 64
    )
}

/// What the rows of other conditions have in common.
pub(super) fn same_drives(report: &Report) -> String {
    format!(
        "The same jobs and drives, one run of {} s each (the two passes: until the set is read); the name \
         of a row says what differs, the notes below how. HDD, and SSD except for one area, are those of \
         the first table. p50, p99 and hits are those of the accelerated volume.",
        report.options.seconds
    )
}

/// The other conditions, one by one.
pub(super) fn conditions(report: &Report) -> Vec<String> {
    let size = report.options.size_bytes;
    let mut text = vec![
        "One area: the document's own form, all four threads at the same offsets. Requests of several \
         clients for the same bytes are answered by one, so these rows are no measure of a drive."
            .to_owned(),
        "First pass, cold: the cache was taken away and an empty one attached, while the volume was \
         served. First pass: each thread reads its area once; second pass: once more, now warm."
            .to_owned(),
        format!(
            "SSD half the set: an SSD of {} for a set of {}, threads at random over all of it. \
             The document warns of this: past its threshold the cache must write back while it serves. \
             Half of the reads miss. Writes are fast only while the SSD fills; once it is full \
             they are as fast as the disk takes what is written back.",
            format_bytes(size / SIZE_PER_SMALL_SSD),
            format_bytes(size)
        ),
    ];
    if let Some(row) = report.other("seq_write", Condition::OneArea) {
        text.push(format!(
            "Of the {} writes of the row seq write, one area, {} were never written to the SSD: while \
             they waited, a newer write of the same bytes came.",
            whole_or_figure(row.writes.requests as f64),
            whole_or_figure(row.overwritten_writes as f64)
        ));
    }
    text
}

/// The condition of RAID 6.
pub(super) fn simulation() -> String {
    "A simulation, not a run: Voltier's RAID 6 engine on twelve modelled Intel DC D3700 in virtual time, \
     which leaves out what the processor has to do. Beside it what RAIDIX published of its ERA on twelve \
     real ones. Both: chunk 16 KiB, 4 KiB at random, 64 threads of depth 32."
        .to_owned()
}

/// What else there is to know of RAID 6.
pub(super) fn raid6(report: &twin::Report) -> Vec<String> {
    vec![
        "\"12 drives\" is twelve times the single drive, for both: RAIDIX's own figures of twelve bare \
         drives contradict each other. \"Voltier\" compares the two shares; differences below the \
         models' error are equal."
            .to_owned(),
        format!(
            "Voltier keeps data and parity together over a crash with a journal, its default, which \
             writes everything twice; with a bitmap instead: {}. Where ERA goes beyond parity in place, \
             it gathers small writes into whole stripes; Voltier does not.",
            beside(report)
        ),
        format!(
            "Published: RAIDIX's article on its ERA, measured by the SNIA method; the text gives no address \
             on the web, its tables are lab/results/tables/raidix_*.csv. {}. `voltier lab twin era` has \
             all 49 cells.",
            capital(&report.calibration.line())
        ),
    ]
}

fn beside(report: &twin::Report) -> String {
    let with_note = report.rows.iter().filter(|row| !row.note.is_empty());
    let all: Vec<String> = with_note
        .map(|row| {
            let note = row.note.split(';').next().unwrap_or_default();
            format!("{}: {}", row.case, note.trim_start_matches("bitmap "))
        })
        .collect();
    if all.is_empty() { "not measured".to_owned() } else { all.join("; ") }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().collect::<String>() + letters.as_str()
    })
}

/// The condition of the document's own figures.
pub(super) fn published() -> String {
    "Real drives of 2015, a set of 100 GB, 600 s a job (its text says 300), all four threads over one \
     area: for orientation, not a bar. The document says it empties its cache before each test, but its \
     hit rates (70 to 99 %) are those of a warm one."
        .to_owned()
}

/// What holds for the whole run.
pub(super) fn general(report: &Report) -> Vec<String> {
    let mut notes = vec![
        format!(
            "Drives are modelled: the document's 7200 rpm disk and {}. All three volumes are served \
             over NBD on a Unix socket.",
            report.options.ssd.drive()
        ),
        "The cache: write-back, lru, 4096-byte lines, sequential streams cached too (seq_cutoff=0).".to_owned(),
        "Before the jobs each volume is written once in sequence, and the accelerated one again until \
         its SSD was written from end to end, and flushed: so no run waits for fresh memory, and the \
         cache reuses its space. Its cache is not emptied between the five jobs."
            .to_owned(),
        "Hit rates are those of the runs themselves (counters after them minus counters before); \
         warming up does not count."
            .to_owned(),
    ];
    let written = report
        .rows
        .iter()
        .filter_map(|row| Some(format!("{} {}", row.title(), figure(row.write_amplification()?))));
    let written: Vec<String> = written.collect();
    if !written.is_empty() {
        notes.push(format!("SSD bytes written per client byte: {}.", written.join(", ")));
    }
    let disk = report.row("rand_read").map_or(0.0, |row| row.hdd.median());
    let seconds = report.options.seconds;
    let all = report.rows.iter().chain(&report.others);
    for contradiction in all.filter_map(|row| row.contradiction(disk, seconds)) {
        notes.push(format!("CHECK FAILED: {contradiction}."));
    }
    notes.push(machine(report));
    notes
}

/// The machine, how busy it was, and the client.
pub(super) fn machine(report: &Report) -> String {
    let load = report
        .load_before
        .map_or_else(String::new, |load| format!(" Load average of the minute before: {load:.2}."));
    format!(
        "Machine: {}.{load} Other programs lower the figures and widen their spread. Client: {}. The \
         whole run took {} s.",
        report.machine.describe(),
        report.fio_version,
        report.took.as_secs()
    )
}
