//! The demonstration: the MaxIO document's five fio jobs. The jobs run on a modelled hard disk, a
//! modelled SSD, and the disk with the SSD as a write-back cache. All run through the same NBD export.
//!
//! The document measured real drives of 800 GB and 2 TB with a 100 GB test set for 600 s a job. Here
//! drives are models with the document's figures, and size and time are scaled. One thing is changed: each
//! thread of a job has an area of its own. The document's four threads share one, and a cache answers their
//! requests for the same bytes together. That form has rows of its own.
//!
//! Then come rows of what the document only mentions: a cold cache, and an SSD smaller than the test set.
//! Beside the real runs stands a simulation of RAID 6 ([`crate::twin`]).

pub mod html;
mod notes;
pub mod options;
pub mod report;
mod runs;

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use voltier_results::size::format_bytes;

use crate::plan::maxio_jobs::{Areas, JOBS, JobSpec};
pub use options::Options;
use options::{SIZE_PER_SMALL_SSD, SSD_PER_SIZE, TURNS};
pub use report::{Condition, Report, Row};
pub use runs::Runs;

use crate::LabError;
use crate::fio::{self, Fio, Job, Outcome, Pattern, Target, Until};
use crate::machine::Machine;
use crate::process::Stop;
use crate::twin;
use crate::voltier::{CacheSpec, Instance};

/// Passes over the accelerated volume within which its log must have been around its SSD.
const PASSES_MAX: u64 = 4 * SSD_PER_SIZE;

/// The volumes, in the order of the table.
const HDD: &str = "hdd";
const SSD: &str = "ssd";
const ACCELERATED: &str = "accelerated";

/// Runs the whole demonstration, writes `result.json` and `report.html` into the output folder, and
/// returns what was measured. `progress` is given one line at a time.
///
/// Every program that the demonstration starts has ended when the call returns, also with an error.
///
/// # Errors
/// One line that says what to do: fio missing, a command refused, a request failed, interrupted.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report, LabError> {
    let stop = Stop::on_signals()?;
    let fio = Fio::find(fio::OLDEST, &stop)?;
    fio.need_engine("nbd")?;
    fs::create_dir_all(&options.out).map_err(LabError::file(&options.out))?;
    let folder = tempfile::Builder::new()
        .prefix("voltier-demo-")
        .tempdir()
        .map_err(LabError::file(std::env::temp_dir()))?;
    // Declared after the folder, so that the daemon ends before its state is removed.
    let instance = Instance::new(&options.binary, folder.path(), stop.clone());
    let demonstration = Demonstration { options, fio, instance, stop };
    let report = demonstration.measure(progress)?;
    drop(demonstration);
    write(options.out.join("result.json"), &report.json())?;
    write(options.out.join("report.html"), &html::render(&report))?;
    Ok(report)
}

fn write(path: PathBuf, text: &str) -> Result<(), LabError> {
    fs::write(&path, text).map_err(LabError::file(&path))
}

/// A volume and where fio finds it.
struct Served {
    name: &'static str,
    target: Target,
}

struct Volumes {
    hdd: Served,
    ssd: Served,
    accelerated: Served,
}

struct Demonstration<'a> {
    options: &'a Options,
    fio: Fio,
    instance: Instance,
    stop: Stop,
}

type Progress<'a> = &'a mut dyn FnMut(&str);

impl Demonstration<'_> {
    #[expect(clippy::disallowed_methods, reason = "the run is timed by the machine's clock")]
    fn measure(&self, progress: Progress<'_>) -> Result<Report, LabError> {
        let begun = Instant::now();
        let (machine, load_before) = (Machine::this(), load_average());
        // Nothing is measured during the preparation, which leaves a processor to the simulation.
        let (volumes, raid6) = thread::scope(|scope| {
            let simulation = scope.spawn(twin::era_random_4k);
            let volumes = self.prepare(progress)?;
            progress("waiting for the simulation of RAID 6");
            let raid6 = simulation.join().map_err(|_| LabError::Failed {
                what: "the simulation of RAID 6".to_owned(),
                detail: "it panicked; please report it".to_owned(),
            })?;
            Ok::<(Volumes, twin::Report), LabError>((volumes, raid6))
        })?;
        let rows = JOBS
            .iter()
            .map(|spec| self.on_all(spec, Condition::OwnAreas, &volumes, None, progress))
            .collect::<Result<Vec<Row>, LabError>>()?;
        let mut others = Vec::new();
        for key in ["seq_write", "seq_read"] {
            let (spec, hdd) = (JobSpec::find(key), row_of(&rows, key).hdd.clone());
            others.push(self.on_all(spec, Condition::OneArea, &volumes, Some(hdd), progress)?);
        }
        self.cold(&volumes, &rows, &mut others, progress)?;
        self.small_ssd(&volumes, &rows, &mut others, progress)?;
        Ok(Report {
            rows,
            others,
            raid6,
            options: self.options.clone(),
            machine,
            load_before,
            took: begun.elapsed(),
            fio_version: self.fio.version().to_owned(),
            commands: self.commands(&volumes.accelerated.target),
        })
    }

    /// The three volumes, written as a long use would leave them.
    fn prepare(&self, progress: Progress<'_>) -> Result<Volumes, LabError> {
        progress(&format!(
            "making three volumes of {}: {}, {}, and the first behind the second as a cache",
            format_bytes(self.options.size_bytes),
            self.hdd_device(),
            self.ssd_device(1),
        ));
        let volumes = self.make_volumes()?;
        progress("writing each volume once, in sequence, as the document does");
        for volume in [&volumes.hdd, &volumes.ssd, &volumes.accelerated] {
            self.fio.run(&self.fill(), &volume.target, &self.stop)?;
        }
        progress("writing the accelerated volume until its SSD was written from end to end");
        self.write_whole_ssd(&volumes.accelerated.target)?;
        // The disk of this volume is memory too, and destaging while clients rest would be the first to
        // touch it.
        progress("writing the accelerated volume's dirty lines back to its disk");
        self.instance.flush(ACCELERATED)?;
        Ok(volumes)
    }

    /// Makes sure that no measurement is the first to touch the memory of a modelled drive. The system
    /// clears memory then, which can take longer than the drive that is modelled. The write also leaves
    /// the cache as long use would: its log reuses its space.
    fn write_whole_ssd(&self, target: &Target) -> Result<(), LabError> {
        let ssd_bytes = SSD_PER_SIZE * self.options.size_bytes;
        for _ in 0..PASSES_MAX {
            if self.instance.show(ACCELERATED)?.device_bytes.ssd_written >= ssd_bytes {
                return Ok(());
            }
            self.fio.run(&self.fill(), target, &self.stop)?;
        }
        Err(LabError::Failed {
            what: "preparing the accelerated volume".to_owned(),
            detail: format!("{PASSES_MAX} passes did not write {ssd_bytes} bytes to its SSD"),
        })
    }

    /// One job on the three volumes: once on the disk, unless it was measured before, and in turns on the
    /// other two.
    fn on_all(
        &self,
        spec: &'static JobSpec,
        condition: Condition,
        volumes: &Volumes,
        measured_hdd: Option<Runs>,
        progress: Progress<'_>,
    ) -> Result<Row, LabError> {
        let (areas, turns) = match condition {
            Condition::OneArea => (Areas::One, 1),
            _ => (Areas::Own, TURNS),
        };
        let job = spec.job(self.options.size_bytes, self.options.seconds, areas);
        let is_hdd_measured = measured_hdd.is_some();
        let mut hdd = measured_hdd.unwrap_or_default();
        let (mut ssd, mut accelerated) = (Runs::default(), Runs::default());
        let mut run = |volume: &Served, runs: &mut Runs| {
            self.one_run(spec, &job, (condition, volume), runs, progress)
        };
        if !is_hdd_measured {
            run(&volumes.hdd, &mut hdd)?;
        }
        let before = self.instance.show(ACCELERATED)?;
        for turn in 0..turns {
            if turn.is_multiple_of(2) {
                run(&volumes.ssd, &mut ssd)?;
                run(&volumes.accelerated, &mut accelerated)?;
            } else {
                run(&volumes.accelerated, &mut accelerated)?;
                run(&volumes.ssd, &mut ssd)?;
            }
        }
        let window = (before, self.instance.show(ACCELERATED)?);
        Ok(Row::new(spec, condition, [hdd, ssd, accelerated], &window))
    }

    /// The accelerated volume with nothing in its cache: the whole set in sequence, twice; and, emptied again,
    /// random reads.
    fn cold(
        &self,
        volumes: &Volumes,
        rows: &[Row],
        others: &mut Vec<Row>,
        progress: Progress<'_>,
    ) -> Result<(), LabError> {
        progress("taking the cache away and attaching an empty one of the same size");
        self.replace_cache(SSD_PER_SIZE * self.options.size_bytes)?;
        let pass = Job { until: Until::Once, ..self.job("seq_read", Areas::Own) };
        for condition in [Condition::FirstPass, Condition::SecondPass] {
            let of = (JobSpec::find("seq_read"), condition);
            others.push(self.accelerated_only(of, &pass, volumes, rows, progress)?);
        }
        progress("the same again, for random reads");
        self.replace_cache(SSD_PER_SIZE * self.options.size_bytes)?;
        let job = self.job("rand_read", Areas::Own);
        let of = (JobSpec::find("rand_read"), Condition::Cold);
        others.push(self.accelerated_only(of, &job, volumes, rows, progress)?);
        Ok(())
    }

    /// The accelerated volume with an SSD smaller than the test set: reads when the set was written through
    /// it, and writes when it is full of what the disk does not have.
    fn small_ssd(
        &self,
        volumes: &Volumes,
        rows: &[Row],
        others: &mut Vec<Row>,
        progress: Progress<'_>,
    ) -> Result<(), LabError> {
        progress("attaching an SSD of half the test set, and writing the set through it once");
        self.replace_cache(self.options.size_bytes / SIZE_PER_SMALL_SSD)?;
        let target = &volumes.accelerated.target;
        self.fio.run(&self.fill(), target, &self.stop)?;
        self.instance.flush(ACCELERATED)?;
        // With areas of their own the threads of half of them would find all, and the others nothing.
        let read = self.job("rand_read", Areas::One);
        let of = (JobSpec::find("rand_read"), Condition::SmallSsd);
        others.push(self.accelerated_only(of, &read, volumes, rows, progress)?);
        let write = self.job("rand_write", Areas::One);
        for condition in [Condition::Filling, Condition::SmallSsd] {
            let of = (JobSpec::find("rand_write"), condition);
            others.push(self.accelerated_only(of, &write, volumes, rows, progress)?);
        }
        Ok(())
    }

    /// One run of a job on the accelerated volume alone, beside the bare drives as they are in `rows`.
    fn accelerated_only(
        &self,
        (spec, condition): (&'static JobSpec, Condition),
        job: &Job,
        volumes: &Volumes,
        rows: &[Row],
        progress: Progress<'_>,
    ) -> Result<Row, LabError> {
        let mut runs = Runs::default();
        let before = self.instance.show(ACCELERATED)?;
        self.one_run(spec, job, (condition, &volumes.accelerated), &mut runs, progress)?;
        let window = (before, self.instance.show(ACCELERATED)?);
        let bare = row_of(rows, spec.key);
        let drives = [bare.hdd.clone(), bare.ssd.clone(), runs];
        Ok(Row::new(spec, condition, drives, &window))
    }

    fn one_run(
        &self,
        spec: &JobSpec,
        job: &Job,
        (condition, volume): (Condition, &Served),
        runs: &mut Runs,
        progress: Progress<'_>,
    ) -> Result<(), LabError> {
        let outcome = self.fio.run(job, &volume.target, &self.stop)?;
        progress(&said(spec, condition, volume.name, &outcome));
        runs.add(spec.figure(&outcome), &outcome);
        Ok(())
    }

    /// The volumes and where fio finds them: plain disk, plain SSD, accelerated disk.
    fn make_volumes(&self) -> Result<Volumes, LabError> {
        self.instance.create_plain(HDD, &self.hdd_device())?;
        self.instance.create_plain(SSD, &self.ssd_device(1))?;
        let (ssd, hdd) = (self.ssd_device(SSD_PER_SIZE), self.hdd_device());
        self.instance.create_cached(ACCELERATED, &cache(&ssd, &hdd))?;
        self.cache_streams()?;
        let serve = |name| {
            Ok::<_, LabError>(Served { name, target: Target::Nbd(self.instance.export_nbd(name)?) })
        };
        Ok(Volumes { hdd: serve(HDD)?, ssd: serve(SSD)?, accelerated: serve(ACCELERATED)? })
    }

    /// Gives the accelerated volume an empty cache of this size, while it is served.
    fn replace_cache(&self, bytes: u64) -> Result<(), LabError> {
        self.instance.detach(ACCELERATED)?;
        let ssd = self.ssd_of(bytes);
        self.instance.attach(ACCELERATED, &cache(&ssd, &self.hdd_device()))?;
        self.cache_streams()
    }

    /// The document's product caches sequential streams too.
    fn cache_streams(&self) -> Result<(), LabError> {
        self.instance.set(ACCELERATED, "seq_cutoff=0")
    }

    fn hdd_device(&self) -> String {
        format!("model:hdd-7200:{}", format_bytes(self.options.size_bytes))
    }

    fn ssd_device(&self, sizes: u64) -> String {
        self.ssd_of(self.options.size_bytes * sizes)
    }

    fn ssd_of(&self, bytes: u64) -> String {
        format!("model:{}:{}", self.options.ssd.profile(), format_bytes(bytes))
    }

    fn job(&self, key: &str, areas: Areas) -> Job {
        JobSpec::find(key).job(self.options.size_bytes, self.options.seconds, areas)
    }

    fn fill(&self) -> Job {
        Job {
            name: "fill".to_owned(),
            pattern: Pattern::Write,
            block_bytes: 256 << 10,
            iodepth: 16,
            numjobs: 1,
            size_bytes: self.options.size_bytes,
            until: Until::Once,
            more: Vec::new(),
        }
    }

    /// The commands that a reader would type to do the same, the private state folder left out.
    fn commands(&self, target: &Target) -> Vec<String> {
        let (hdd, ssd) = (self.hdd_device(), self.ssd_device(1));
        let large = self.ssd_device(SSD_PER_SIZE);
        let small = self.ssd_of(self.options.size_bytes / SIZE_PER_SMALL_SSD);
        let shown = match target {
            Target::Nbd(uri) => {
                let uri = uri.split('?').next().unwrap_or(uri);
                Target::Nbd(format!("{uri}?socket=$SOCKET"))
            }
            other => other.clone(),
        };
        let job = |key, areas| self.job(key, areas);
        let mut commands = vec![
            format!("voltier create -p {hdd} {HDD}"),
            format!("voltier create -p {ssd} {SSD}"),
            format!("voltier create -s {large} -p {hdd} -r lru -t wb -b 4096 {ACCELERATED}"),
            format!("voltier set {ACCELERATED} seq_cutoff=0"),
            self.fill().command_line(&shown),
            format!("voltier flush {ACCELERATED}"),
        ];
        commands.extend(JOBS.iter().map(|spec| job(spec.key, Areas::Own).command_line(&shown)));
        for key in ["seq_write", "seq_read"] {
            commands.push(job(key, Areas::One).command_line(&shown));
        }
        let replace = |ssd: &str| {
            [
                format!("voltier detach {ACCELERATED}"),
                format!("voltier attach {ACCELERATED} -s {ssd} -r lru -t wb -b 4096"),
                format!("voltier set {ACCELERATED} seq_cutoff=0"),
            ]
        };
        commands.extend(replace(&large));
        let pass = Job { until: Until::Once, ..job("seq_read", Areas::Own) };
        commands.extend([pass.command_line(&shown), pass.command_line(&shown)]);
        commands.extend(replace(&large));
        commands.push(job("rand_read", Areas::Own).command_line(&shown));
        commands.extend(replace(&small));
        commands.push(self.fill().command_line(&shown));
        commands.push(format!("voltier flush {ACCELERATED}"));
        for key in ["rand_read", "rand_write", "rand_write"] {
            commands.push(job(key, Areas::One).command_line(&shown));
        }
        commands.push("voltier lab twin era".to_owned());
        commands
    }
}

/// The row of a job on its own areas.
fn row_of<'a>(rows: &'a [Row], key: &str) -> &'a Row {
    rows.iter().find(|row| row.job.key == key).expect("every job has a row")
}

/// The load average of the last minute.
fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// The cache of the document: write-back, lru, blocks of 4096 bytes.
fn cache<'a>(ssd: &'a str, hdd: &'a str) -> CacheSpec<'a> {
    CacheSpec { ssd, hdd, policy: "lru", mode: "wb", line_bytes: 4096 }
}

fn said(spec: &JobSpec, condition: Condition, volume: &str, outcome: &Outcome) -> String {
    format!(
        "{:<39} {volume:<12} {:>10} {}",
        condition.title(spec),
        voltier_results::table::figure(spec.figure(outcome)),
        spec.unit.name()
    )
}
