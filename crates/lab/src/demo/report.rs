//! The figures of the demonstration, as a table and as JSON.

use serde::Serialize;
use voltier_results::size::format_bytes;
use voltier_results::table::{figure, percent, render};

use super::options::{Options, SSD_PER_SIZE, TURNS};
use crate::machine::Machine;
use crate::plan::maxio_jobs::{FigureUnit, JobSpec, Published};
use crate::voltier::Show;

/// The figures of one job on the three volumes, in the unit of the job.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// The modelled disk.
    pub hdd: f64,
    /// The modelled SSD.
    pub ssd: f64,
    /// The disk behind the SSD.
    pub accelerated: f64,
}

/// One job on the three volumes.
#[derive(Clone, Debug)]
pub struct Row {
    /// The job.
    pub job: &'static JobSpec,
    /// The modelled disk, in the job's unit.
    pub hdd: f64,
    /// The modelled SSD.
    pub ssd: f64,
    /// The disk behind the SSD.
    pub accelerated: f64,
    /// Share of the reads that the cache served, 0 to 1, in the window of the job. None: no reads.
    pub read_hit: Option<f64>,
    /// The same for writes.
    pub write_hit: Option<f64>,
    /// Read requests per second that needed the disk.
    pub read_misses_per_second: f64,
    /// Bytes written to the SSD for each byte the clients wrote. None: no writes.
    pub write_amplification: Option<f64>,
    /// The figures of the document.
    pub published: Published,
}

/// Everything a report is made of.
#[derive(Clone, Debug)]
pub struct Report {
    /// The five jobs.
    pub rows: Vec<Row>,
    /// How it was run.
    pub options: Options,
    /// The machine of the run.
    pub machine: Machine,
    /// The client.
    pub fio_version: String,
    /// The commands that do the same.
    pub commands: Vec<String>,
}

#[derive(Serialize)]
struct JsonRow {
    job: &'static str,
    hdd: f64,
    ssd: f64,
    accelerated: f64,
    ratio: f64,
    read_hit: f64,
    write_hit: f64,
    unit: &'static str,
}

#[derive(Serialize)]
struct Json {
    rows: Vec<JsonRow>,
}

impl Row {
    /// `window`: the accelerated volume's counters before and after all its turns of the job.
    pub fn new(
        job: &'static JobSpec,
        figures: Figures,
        options: &Options,
        window: &(Show, Show),
    ) -> Row {
        let (before, after) = window;
        let reads = after.reads.since(before.reads);
        let writes = after.writes.since(before.writes);
        let ssd_written = after.device_bytes.ssd_written;
        let ssd_written = ssd_written.saturating_sub(before.device_bytes.ssd_written);
        let Figures { hdd, ssd, accelerated } = figures;
        let seconds = f64::from(options.seconds) * TURNS as f64;
        Row {
            job,
            hdd,
            ssd,
            accelerated,
            read_hit: reads.hit_rate(),
            write_hit: writes.hit_rate(),
            read_misses_per_second: reads.misses as f64 / seconds,
            write_amplification: (writes.bytes > 0)
                .then(|| ssd_written as f64 / writes.bytes as f64),
            published: job.published(options.ssd),
        }
    }

    /// The accelerated volume against the bare SSD.
    pub fn ratio(&self) -> f64 {
        self.accelerated / self.ssd
    }

    /// The accelerated volume against the bare disk.
    pub fn times_hdd(&self) -> f64 {
        self.accelerated / self.hdd
    }

    /// A figure that the drives cannot have given, in words. Misses of 4 KiB reads are served by
    /// the disk, one seek each, so they cannot come faster than the disk alone serves random reads.
    fn contradiction(&self, disk_read_iops: f64) -> Option<String> {
        let suspicious = self.job.unit == FigureUnit::Iops
            && self.read_misses_per_second > 1.1 * disk_read_iops
            && disk_read_iops > 0.0;
        suspicious.then(|| {
            format!(
                "{}: {} read misses/s, but the disk alone serves {} random reads/s",
                self.job.label,
                figure(self.read_misses_per_second),
                figure(disk_read_iops)
            )
        })
    }
}

/// The headings of the table, text and HTML.
pub const HEADINGS: [&str; 10] = [
    "job",
    "unit",
    "HDD",
    "SSD",
    "accelerated",
    "x HDD",
    "of SSD",
    "read hits",
    "write hits",
    "published: HDD / SSD / accelerated / of SSD",
];

impl Report {
    /// The cells of the table, one row a job.
    pub fn cells(&self) -> Vec<Vec<String>> {
        let hits = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), percent);
        let row = |row: &Row| {
            let published = &row.published;
            vec![
                row.job.label.to_owned(),
                row.job.unit.name().to_owned(),
                figure(row.hdd),
                figure(row.ssd),
                figure(row.accelerated),
                figure(row.times_hdd()),
                percent(row.ratio()),
                hits(row.read_hit),
                hits(row.write_hit),
                format!(
                    "{} / {} / {} / {}",
                    published.hdd.map_or_else(|| "N/A".to_owned(), figure),
                    figure(published.ssd),
                    figure(published.accelerated),
                    percent(published.ratio())
                ),
            ]
        };
        self.rows.iter().map(row).collect()
    }

    /// The table and what a reader must know, as text.
    pub fn text(&self) -> String {
        let mut text = render(&HEADINGS, &self.cells());
        text.push('\n');
        for note in self.notes() {
            text.push_str(&format!("- {note}\n"));
        }
        text
    }

    /// Notes that are needed to judge the figures.
    pub fn notes(&self) -> Vec<String> {
        let size = format_bytes(self.options.size_bytes);
        let mut notes = vec![
            format!(
                "Drives are modelled: the document's 7200 rpm disk and {}. Size {size} (document: \
                 100 GB), {} s a run (document: 600 s). All three volumes are served over NBD on a \
                 Unix socket.",
                self.options.ssd.drive(),
                self.options.seconds
            ),
            format!(
                "The cache: write-back, lru, 4096-byte lines, sequential streams cached too, on an \
                 SSD of {} (as in the document, {SSD_PER_SIZE} times the test set).",
                format_bytes(SSD_PER_SIZE * self.options.size_bytes)
            ),
            "Before the jobs each volume is written once in sequence, and the accelerated one again \
             until its SSD was written from end to end, and flushed: so no run waits for fresh \
             memory, and the cache reuses its space. It is not emptied between jobs. The document \
             says it empties its cache before each test, but its hit rates are those of a warm one."
                .to_owned(),
            format!(
                "HDD: one run a job. SSD and accelerated: {TURNS} runs a job, in turns; the table \
                 has the medians."
            ),
            "Hit rates are those of the runs themselves (counters after them minus counters before); \
             warming up does not count."
                .to_owned(),
            "The published figures are of real drives, with MaxIO 1.1.1: other hardware, for \
             orientation."
                .to_owned(),
        ];
        let written = self.rows.iter().filter_map(|row| {
            let amplification = row.write_amplification?;
            Some(format!("{} {}", row.job.label, figure(amplification)))
        });
        let written: Vec<String> = written.collect();
        if !written.is_empty() {
            notes.push(format!("SSD bytes written per client byte: {}.", written.join(", ")));
        }
        let disk = self.rows.iter().find(|row| row.job.key == "rand_read");
        let disk = disk.map_or(0.0, |row| row.hdd);
        for contradiction in self.rows.iter().filter_map(|row| row.contradiction(disk)) {
            notes.push(format!("CHECK FAILED: {contradiction}."));
        }
        notes
    }

    /// `{"rows":[...]}` as documented: hit rates 0 to 1, 0 where the job has no such requests.
    pub fn json(&self) -> String {
        let rows = self.rows.iter().map(|row| JsonRow {
            job: row.job.key,
            hdd: row.hdd,
            ssd: row.ssd,
            accelerated: row.accelerated,
            ratio: row.ratio(),
            read_hit: row.read_hit.unwrap_or(0.0),
            write_hit: row.write_hit.unwrap_or(0.0),
            unit: row.job.unit.name(),
        });
        let json = Json { rows: rows.collect() };
        serde_json::to_string_pretty(&json).expect("figures and names are always JSON") + "\n"
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::plan::maxio_jobs::JOBS;
    use crate::plan::maxio_jobs::Ssd;
    use crate::voltier::{Counters, DeviceBytes};

    pub(in crate::demo) fn sample() -> Report {
        let options = Options {
            binary: "voltier".into(),
            out: "demo".into(),
            size_bytes: 512 << 20,
            seconds: 8,
            ssd: Ssd::Sata,
        };
        let counted = |requests, hits| Counters {
            requests,
            hits,
            misses: requests - hits,
            bytes: requests * 4096,
            ..Counters::default()
        };
        let figures = Figures { hdd: 100.0, ssd: 40_000.0, accelerated: 39_000.0 };
        let rows = JOBS.iter().map(|job| {
            let after = Show {
                reads: if job.key.contains("write") { counted(0, 0) } else { counted(4000, 3980) },
                writes: if job.key.contains("read") { counted(0, 0) } else { counted(500, 500) },
                device_bytes: DeviceBytes { ssd_written: 2_150_400, ..DeviceBytes::default() },
                ..Show::default()
            };
            Row::new(job, figures, &options, &(Show::default(), after))
        });
        Report {
            rows: rows.collect(),
            machine: Machine {
                cpu: "A & B <processor>".into(),
                cpus: 2,
                memory_bytes: 8 << 30,
                kernel: "6.1".into(),
                system: "Debian 12".into(),
            },
            fio_version: "fio-3.33".into(),
            commands: vec!["fio --rw=read \"--bs=4k\"".into()],
            options,
        }
    }

    #[test]
    fn json_has_exactly_the_documented_fields() {
        let value: serde_json::Value = serde_json::from_str(&sample().json()).unwrap();
        let rows = value["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 5);
        assert_eq!(rows[0]["job"], "seq_write");
        assert_eq!(rows[0]["unit"], "MB/s");
        assert_eq!(rows[2]["unit"], "IOPS");
        for row in rows {
            let mut keys: Vec<&String> = row.as_object().unwrap().keys().collect();
            keys.sort();
            let documented =
                ["accelerated", "hdd", "job", "ratio", "read_hit", "ssd", "unit", "write_hit"];
            assert_eq!(keys, documented);
            assert_eq!(row["ratio"], 0.975);
            assert!(row["read_hit"].is_f64() && row["write_hit"].is_f64());
        }
    }

    #[test]
    fn the_table_has_ratios_hit_rates_and_the_published_row() {
        let text = sample().text();
        let line = text.lines().find(|line| line.starts_with("random 75r25w")).unwrap();
        let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect();
        assert_eq!(
            cells,
            [
                "random 75r25w",
                "IOPS",
                "100",
                "40,000",
                "39,000",
                "390",
                "98 %",
                "99.50 %",
                "100 %",
                "N/A / 49,870 / 48,048 / 96 %"
            ]
        );
        let line = text.lines().find(|line| line.starts_with("seq write")).unwrap();
        assert!(line.contains("  -  "), "no reads, no read hits: {line}");
        assert!(text.contains("SSD bytes written per client byte: seq write 1.05"), "{text}");
        assert!(!text.contains("CHECK FAILED"), "{text}");
    }

    #[test]
    fn misses_that_the_disk_cannot_have_served_are_pointed_out() {
        let mut report = sample();
        report.rows[3].read_misses_per_second = 1989.0;
        let text = report.text();
        assert!(text.contains("CHECK FAILED: random read: 1,989 read misses/s"), "{text}");
    }
}
