//! The figures of the demonstration, as tables and as JSON.

use std::time::Duration;

use serde::Serialize;
use voltier_results::table::{figure, latency, percent, render};

use super::notes;
use super::options::Options;
use super::runs::Runs;
use crate::machine::Machine;
use crate::plan::maxio_jobs::{FigureUnit, JobSpec, NUMJOBS, Published};
use crate::twin;
use crate::twin::report::Verdict;
use crate::voltier::{Counters, Show};

/// The conditions under which a job ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Each thread in its own area, the cache warm.
    OwnAreas,
    /// All threads at the same offsets, as in the document's job files; the cache warm.
    OneArea,
    /// Each thread in its own area, the cache empty.
    Cold,
    /// Each thread reads its own area once, with nothing in the cache.
    FirstPass,
    /// Each thread reads it once more.
    SecondPass,
    /// All threads at random over a set that is twice the SSD, which is full.
    SmallSsd,
    /// The same during the run in which the SSD fills with what the disk does not have.
    Filling,
}

impl Condition {
    /// The name in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Condition::OwnAreas => "own_areas",
            Condition::OneArea => "one_area",
            Condition::Cold => "cold",
            Condition::FirstPass => "first_pass",
            Condition::SecondPass => "second_pass",
            Condition::SmallSsd => "small_ssd",
            Condition::Filling => "small_ssd_filling",
        }
    }

    /// A job under this condition, for tables.
    pub fn title(self, job: &JobSpec) -> String {
        let condition = match self {
            Condition::OwnAreas => return job.label.to_owned(),
            Condition::OneArea => "one area",
            Condition::Cold => "cold",
            Condition::FirstPass => "first pass",
            Condition::SecondPass => "second pass",
            Condition::SmallSsd => "SSD half the set",
            Condition::Filling => "SSD half the set, filling",
        };
        format!("{}, {condition}", job.label)
    }
}

/// One job under one condition on the three volumes.
#[derive(Clone, Debug)]
pub struct Row {
    /// The job.
    pub job: &'static JobSpec,
    /// Its condition on the accelerated volume.
    pub condition: Condition,
    /// The modelled disk.
    pub hdd: Runs,
    /// The modelled SSD.
    pub ssd: Runs,
    /// The disk behind the SSD.
    pub accelerated: Runs,
    /// Reads of the runs on the accelerated volume.
    pub reads: Counters,
    /// Writes of these runs.
    pub writes: Counters,
    /// Bytes written to the cache's SSD from before the first of these runs to after the last.
    pub ssd_written: u64,
    /// Hits that the disk served because the SSD was congested.
    pub congested_reads: u64,
    /// Writes in whose place a newer one of the same range was written.
    pub overwritten_writes: u64,
}

impl Row {
    /// `window`: the accelerated volume's counters before and after all its runs of the job.
    pub fn new(
        job: &'static JobSpec,
        condition: Condition,
        [hdd, ssd, accelerated]: [Runs; 3],
        window: &(Show, Show),
    ) -> Row {
        let (before, after) = window;
        let since = |count: fn(&Show) -> u64| count(after).saturating_sub(count(before));
        Row {
            job,
            condition,
            hdd,
            ssd,
            accelerated,
            reads: after.reads.since(before.reads),
            writes: after.writes.since(before.writes),
            ssd_written: since(|show| show.device_bytes.ssd_written),
            congested_reads: since(|show| show.congested_reads),
            overwritten_writes: since(|show| show.overwritten_writes),
        }
    }

    /// Job and condition, for tables.
    pub fn title(&self) -> String {
        self.condition.title(self.job)
    }

    /// The accelerated volume against the bare SSD.
    pub fn ratio(&self) -> f64 {
        self.accelerated.median() / self.ssd.median()
    }

    /// The accelerated volume against the bare disk.
    pub fn times_hdd(&self) -> f64 {
        self.accelerated.median() / self.hdd.median()
    }

    /// Bytes written to the SSD for each byte that clients wrote. None: no writes.
    pub fn write_amplification(&self) -> Option<f64> {
        (self.writes.bytes > 0).then(|| self.ssd_written as f64 / self.writes.bytes as f64)
    }

    /// Read requests per second that needed the disk, of runs of `seconds` each. What was in flight at the
    /// end of a run was answered after it.
    fn read_misses_per_second(&self, seconds: u32) -> f64 {
        let runs = self.accelerated.figures().len().max(1);
        let in_flight = u64::from(NUMJOBS * self.job.iodepth) * runs as u64;
        self.reads.misses.saturating_sub(in_flight) as f64 / (f64::from(seconds) * runs as f64)
    }

    /// A figure that the drives cannot have given, in words. Misses of 4 KiB reads are served by
    /// the disk, one seek each, so they cannot come faster than the disk alone serves random reads.
    pub(super) fn contradiction(&self, disk_read_iops: f64, seconds: u32) -> Option<String> {
        let misses = self.read_misses_per_second(seconds);
        let suspicious = self.job.unit == FigureUnit::Iops
            && misses > 1.1 * disk_read_iops
            && disk_read_iops > 0.0;
        suspicious.then(|| {
            format!(
                "{}: {} read misses/s, but the disk alone serves {} random reads/s",
                self.title(),
                figure(misses),
                figure(disk_read_iops)
            )
        })
    }

    fn hits(&self) -> [String; 2] {
        [self.reads, self.writes]
            .map(|counters| counters.hit_rate().map_or_else(|| "-".to_owned(), percent))
    }

    /// The three figures, then the quotients.
    fn figures(&self) -> [String; 5] {
        [
            with_spread(&self.hdd),
            with_spread(&self.ssd),
            with_spread(&self.accelerated),
            percent(self.ratio()),
            figure(self.times_hdd()),
        ]
    }
}

/// "39,000 (38,500-39,200)": the median and what the runs lay between.
fn with_spread(runs: &Runs) -> String {
    let median = figure(runs.median());
    match runs.spread() {
        Some((least, greatest)) => format!("{median} ({}-{})", figure(least), figure(greatest)),
        None => median,
    }
}

/// The two percentiles of the latency.
fn latencies(runs: &Runs) -> [String; 2] {
    [50.0, 99.0].map(|percent| runs.percentile_ns(percent).map_or_else(|| "-".to_owned(), latency))
}

/// Everything a report is made of.
#[derive(Clone, Debug)]
pub struct Report {
    /// The five jobs, each thread in its own area, the cache warm.
    pub rows: Vec<Row>,
    /// Jobs under other conditions.
    pub others: Vec<Row>,
    /// RAID 6 of modelled NVMe drives in virtual time, beside RAIDIX ERA.
    pub raid6: twin::Report,
    /// How it was run.
    pub options: Options,
    /// The machine of the run.
    pub machine: Machine,
    /// Load average of the last minute before the run, where the system says it.
    pub load_before: Option<f64>,
    /// The time that all of it took.
    pub took: Duration,
    /// The client.
    pub fio_version: String,
    /// The commands that do the same.
    pub commands: Vec<String>,
}

/// A table with what a reader needs to know before it.
pub(super) struct Section {
    pub(super) title: &'static str,
    /// Under which condition the figures were measured.
    pub(super) condition: String,
    /// What else there is to know.
    pub(super) notes: Vec<String>,
    pub(super) headings: &'static [&'static str],
    pub(super) cells: Vec<Vec<String>>,
}

#[derive(Serialize)]
struct JsonVolume<'a> {
    runs: &'a [f64],
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

#[derive(Serialize)]
struct JsonVolumes<'a> {
    hdd: JsonVolume<'a>,
    ssd: JsonVolume<'a>,
    accelerated: JsonVolume<'a>,
}

#[derive(Serialize)]
struct JsonRow<'a> {
    job: String,
    condition: &'static str,
    hdd: f64,
    ssd: f64,
    accelerated: f64,
    ratio: f64,
    read_hit: f64,
    write_hit: f64,
    unit: &'static str,
    volumes: JsonVolumes<'a>,
}

#[derive(Serialize)]
struct JsonRaid6<'a> {
    simulation: bool,
    calibration_error: f64,
    rows: &'a [twin::report::Row],
}

#[derive(Serialize)]
struct Json<'a> {
    size_bytes: u64,
    seconds: u32,
    ssd_profile: &'static str,
    rows: Vec<JsonRow<'a>>,
    other_rows: Vec<JsonRow<'a>>,
    raid6: JsonRaid6<'a>,
}

fn json_volume(runs: &Runs) -> JsonVolume<'_> {
    let us = |percent| runs.percentile_ns(percent).map(|ns| ns / 1e3);
    JsonVolume { runs: runs.figures(), p50_us: us(50.0), p99_us: us(99.0) }
}

fn json_row(row: &Row) -> JsonRow<'_> {
    let job = match row.condition {
        Condition::OwnAreas => row.job.key.to_owned(),
        other => format!("{}_{}", row.job.key, other.key()),
    };
    JsonRow {
        job,
        condition: row.condition.key(),
        hdd: row.hdd.median(),
        ssd: row.ssd.median(),
        accelerated: row.accelerated.median(),
        ratio: row.ratio(),
        read_hit: row.reads.hit_rate().unwrap_or(0.0),
        write_hit: row.writes.hit_rate().unwrap_or(0.0),
        unit: row.job.unit.name(),
        volumes: JsonVolumes {
            hdd: json_volume(&row.hdd),
            ssd: json_volume(&row.ssd),
            accelerated: json_volume(&row.accelerated),
        },
    }
}

impl Report {
    /// All tables, in the order in which they are read.
    pub(super) fn sections(&self) -> [Section; 5] {
        [self.jobs(), self.latency(), self.conditions(), self.raid6(), self.published()]
    }

    fn jobs(&self) -> Section {
        let cells = |row: &Row| {
            let names = [row.title(), row.job.unit.name().to_owned()];
            names.into_iter().chain(row.figures()).chain(row.hits()).collect()
        };
        Section {
            title: "The five jobs",
            condition: notes::own_areas(self),
            notes: notes::outside(self),
            headings: &[
                "job",
                "unit",
                "HDD",
                "SSD",
                "accelerated",
                "of SSD",
                "x HDD",
                "read hits",
                "write hits",
            ],
            cells: self.rows.iter().map(cells).collect(),
        }
    }

    fn latency(&self) -> Section {
        let cells = |row: &Row| {
            let volumes = [&row.hdd, &row.ssd, &row.accelerated];
            [row.title()].into_iter().chain(volumes.into_iter().flat_map(latencies)).collect()
        };
        Section {
            title: "Latency",
            condition: notes::latency(),
            notes: Vec::new(),
            headings: &[
                "job",
                "HDD p50",
                "HDD p99",
                "SSD p50",
                "SSD p99",
                "accelerated p50",
                "accelerated p99",
            ],
            cells: self.rows.iter().map(cells).collect(),
        }
    }

    fn conditions(&self) -> Section {
        let cells = |row: &Row| {
            let names = [row.title(), row.job.unit.name().to_owned()];
            let [read, write] = row.hits();
            let hits = if row.reads.requests > 0 { read } else { write };
            let latencies = latencies(&row.accelerated);
            names.into_iter().chain(row.figures()).chain(latencies).chain([hits]).collect()
        };
        Section {
            title: "Other conditions",
            condition: notes::same_drives(self),
            notes: notes::conditions(self),
            headings: &[
                "job, condition",
                "unit",
                "HDD",
                "SSD",
                "accelerated",
                "of SSD",
                "x HDD",
                "p50",
                "p99",
                "hits",
            ],
            cells: self.others.iter().map(cells).collect(),
        }
    }

    fn raid6(&self) -> Section {
        let share = |value: f64| format!("{:.1} %", value * 100.0);
        let cells = |row: &twin::report::Row| {
            let verdict = match row.verdict {
                Verdict::Won => "wins",
                Verdict::Lost => "loses",
                Verdict::Indistinguishable | Verdict::Shown => "equal",
            };
            vec![
                row.case.clone(),
                figure(row.hardware),
                figure(row.published),
                share(row.published_ratio),
                figure(row.twin_hardware),
                figure(row.voltier),
                share(row.ratio),
                verdict.to_owned(),
            ]
        };
        Section {
            title: "Simulation: RAID 6 of twelve NVMe drives",
            condition: notes::simulation(),
            notes: notes::raid6(&self.raid6),
            headings: &[
                "IOPS",
                "published: 12 drives",
                "published: ERA",
                "of its drives",
                "simulated: 12 drives",
                "simulated: Voltier",
                "of its drives",
                "Voltier",
            ],
            cells: self.raid6.rows.iter().map(cells).collect(),
        }
    }

    fn published(&self) -> Section {
        let cells = |row: &Row| {
            let Published { hdd, ssd, accelerated } = row.job.published(self.options.ssd);
            vec![
                row.title(),
                row.job.unit.name().to_owned(),
                hdd.map_or_else(|| "N/A".to_owned(), figure),
                figure(ssd),
                figure(accelerated),
                percent(accelerated / ssd),
            ]
        };
        Section {
            title: "The document's own figures",
            condition: notes::published(),
            notes: Vec::new(),
            headings: &["job", "unit", "HDD", "SSD", "MaxIO 1.1.1", "of SSD"],
            cells: self.rows.iter().map(cells).collect(),
        }
    }

    /// The tables and what a reader must know, as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for line in notes::lead(self) {
            text.push_str(&line);
            text.push('\n');
        }
        for section in self.sections() {
            let title = section.title.to_uppercase();
            text.push_str(&format!("\n{title}\n{}\n\n", section.condition));
            text.push_str(&render(section.headings, &section.cells));
            text.push_str(if section.notes.is_empty() { "" } else { "\n" });
            for note in &section.notes {
                text.push_str(&format!("- {note}\n"));
            }
        }
        text.push_str("\nHOW TO READ IT\n\n");
        for note in notes::general(self) {
            text.push_str(&format!("- {note}\n"));
        }
        text
    }

    /// JSON as documented in `demo/README.md`: hit rates 0 to 1, 0 where the job has no such requests.
    pub fn json(&self) -> String {
        let json = Json {
            size_bytes: self.options.size_bytes,
            seconds: self.options.seconds,
            ssd_profile: self.options.ssd.profile(),
            rows: self.rows.iter().map(json_row).collect(),
            other_rows: self.others.iter().map(json_row).collect(),
            raid6: JsonRaid6 {
                simulation: true,
                calibration_error: self.raid6.calibration.error(),
                rows: &self.raid6.rows,
            },
        };
        serde_json::to_string_pretty(&json).expect("figures and names are always JSON") + "\n"
    }

    /// The row of a job, each thread in its own area.
    pub(super) fn row(&self, key: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.job.key == key)
    }

    /// The row of a job under another condition.
    pub(super) fn other(&self, key: &str, condition: Condition) -> Option<&Row> {
        self.others.iter().find(|row| row.job.key == key && row.condition == condition)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::plan::maxio_jobs::JOBS;
    use crate::plan::maxio_jobs::Ssd;
    use crate::twin::calibration::Calibration;
    use crate::twin::report::Figures;
    use crate::voltier::DeviceBytes;

    fn counted(requests: u64, hits: u64) -> Counters {
        Counters {
            requests,
            hits,
            misses: requests - hits,
            bytes: requests * 4096,
            ..Counters::default()
        }
    }

    fn row(job: &'static JobSpec, condition: Condition, accelerated: &[f64]) -> Row {
        let after = Show {
            reads: if job.key.contains("write") { counted(0, 0) } else { counted(4000, 3980) },
            writes: if job.key.contains("read") { counted(0, 0) } else { counted(500, 500) },
            device_bytes: DeviceBytes { ssd_written: 2_150_400, ..DeviceBytes::default() },
            ..Show::default()
        };
        let runs = [
            Runs::of(&[100.0], 900_000_000),
            Runs::of(&[40_000.0, 39_000.0, 41_000.0], 1_000_000),
            Runs::of(accelerated, 2_000_000),
        ];
        Row::new(job, condition, runs, &(Show::default(), after))
    }

    pub(in crate::demo) fn sample() -> Report {
        let warm = [39_000.0, 38_000.0, 39_500.0];
        let others = [
            ("seq_read", Condition::OneArea),
            ("rand_read", Condition::Cold),
            ("seq_read", Condition::FirstPass),
            ("seq_read", Condition::SecondPass),
            ("rand_write", Condition::SmallSsd),
        ];
        let figures =
            Figures { published: 35.0, hardware: 100.0, twin_hardware: 100.0, voltier: 26.5 };
        let raid6 = twin::Report {
            title: "a twin".to_owned(),
            rows: vec![twin::report::Row::new("random 4k".to_owned(), "IOPS", figures, 0.03)],
            calibration: Calibration::default(),
            notes: Vec::new(),
        };
        Report {
            rows: JOBS.iter().map(|job| row(job, Condition::OwnAreas, &warm)).collect(),
            others: others
                .iter()
                .map(|(key, condition)| row(JobSpec::find(key), *condition, &[500.0]))
                .collect(),
            raid6,
            options: Options {
                binary: "voltier".into(),
                out: "demo".into(),
                size_bytes: 512 << 20,
                seconds: 8,
                ssd: Ssd::Sata,
            },
            machine: Machine {
                cpu: "A & B <processor>".into(),
                cpus: 2,
                memory_bytes: 8 << 30,
                kernel: "6.1".into(),
                system: "Debian 12".into(),
            },
            load_before: Some(0.25),
            took: Duration::from_secs(140),
            fio_version: "fio-3.33".into(),
            commands: vec!["fio --rw=read \"--bs=4k\"".into()],
        }
    }

    /// The cells of the first line of the text that starts so.
    fn cells<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
        let line = text.lines().find(|line| line.starts_with(start)).expect(start);
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
    }

    #[test]
    fn json_has_exactly_the_documented_fields() {
        let value: serde_json::Value = serde_json::from_str(&sample().json()).unwrap();
        let keys = |value: &serde_json::Value| {
            let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys
        };
        assert_eq!(
            keys(&value),
            ["other_rows", "raid6", "rows", "seconds", "size_bytes", "ssd_profile"]
        );
        let rows = value["rows"].as_array().unwrap();
        let jobs: Vec<&str> = rows.iter().map(|row| row["job"].as_str().unwrap()).collect();
        assert_eq!(jobs, ["seq_write", "seq_read", "rand_write", "rand_read", "rand_rw"]);
        assert_eq!((&rows[0]["unit"], &rows[2]["unit"]), (&"MB/s".into(), &"IOPS".into()));
        let others = value["other_rows"].as_array().unwrap();
        assert_eq!(others[0]["job"], "seq_read_one_area");
        assert_eq!(others[4]["condition"], "small_ssd");
        for row in rows.iter().chain(others) {
            let documented = [
                "accelerated",
                "condition",
                "hdd",
                "job",
                "ratio",
                "read_hit",
                "ssd",
                "unit",
                "volumes",
                "write_hit",
            ];
            assert_eq!(keys(row), documented);
            assert!(row["read_hit"].is_f64() && row["write_hit"].is_f64());
            for name in ["hdd", "ssd", "accelerated"] {
                let volume = &row["volumes"][name];
                assert_eq!(keys(volume), ["p50_us", "p99_us", "runs"]);
                assert!(volume["p99_us"].is_f64() && volume["runs"][0].is_f64(), "{volume}");
            }
        }
        assert_eq!(rows[0]["ratio"], 0.975);
        assert_eq!(value["raid6"]["simulation"], true);
        assert_eq!(value["raid6"]["rows"][0]["verdict"], "lost");
    }

    #[test]
    fn the_tables_have_ratios_hit_rates_the_spread_and_the_published_row() {
        let text = sample().text();
        assert_eq!(
            cells(&text, "random 75r25w"),
            [
                "random 75r25w",
                "IOPS",
                "100",
                "40,000 (39,000-41,000)",
                "39,000 (38,000-39,500)",
                "98 %",
                "390",
                "99.50 %",
                "100 %",
            ]
        );
        let line = text.lines().find(|line| line.starts_with("seq write")).unwrap();
        assert!(line.contains("  -  "), "no reads, no read hits: {line}");
        let latency = &text[text.find("LATENCY").unwrap()..];
        let row = cells(latency, "random read");
        assert!(row[1].ends_with(" ms") && row[5].starts_with("2.0"), "{row:?}");
        let published = &text[text.find("OWN FIGURES").unwrap()..];
        let expected = ["random 75r25w", "IOPS", "N/A", "49,870", "48,048", "96 %"];
        assert_eq!(cells(published, "random 75r25w"), expected);
        assert!(text.contains("SSD bytes written per client byte: seq write 1.05"), "{text}");
        assert!(!text.contains("CHECK FAILED"), "{text}");
    }

    #[test]
    fn misses_that_the_disk_cannot_have_served_are_pointed_out() {
        let mut report = sample();
        report.rows[3].reads.misses = 1989 * 8 * 3 + 4 * 64 * 3;
        let text = report.text();
        assert!(text.contains("CHECK FAILED: random read: 1,989 read misses/s"), "{text}");
    }

    #[test]
    fn a_row_that_is_far_from_the_ssd_has_its_reason_beside_it() {
        let mut report = sample();
        assert!(!report.text().contains("in order"), "every row is near the SSD");
        report.rows[2].accelerated = Runs::of(&[60_000.0], 1000);
        let text = report.text();
        assert!(text.contains("random write: 150 % of the bare SSD, because"), "{text}");
        report.rows[1].accelerated = Runs::of(&[10_000.0], 1000);
        let text = report.text();
        assert!(text.contains("seq read: 25 % of the bare SSD; no reason is known"), "{text}");
    }
}
