//! The demonstration: the MaxIO document's five fio jobs. The jobs run on a modelled hard disk, a
//! modelled SSD, and the disk with the SSD as a write-back cache. All run through the same NBD export.
//!
//! The document measured real drives of 800 GB and 2 TB with a 100 GB test set for 600 s a job. Here
//! drives are models with the document's figures, and size and time are scaled. Everything else is the
//! document's: see [`maxio_jobs`](crate::plan::maxio_jobs).

pub mod html;
pub mod options;
pub mod report;

use std::fs;
use std::path::PathBuf;

use voltier_results::size::format_bytes;
use voltier_results::table::median;

use crate::plan::maxio_jobs::{JOBS, JobSpec};
pub use options::Options;
use options::{SSD_PER_SIZE, TURNS};
pub use report::{Figures, Report, Row};

use crate::LabError;
use crate::fio::{self, Fio, Job, Outcome, Pattern, Target, Until};
use crate::machine::Machine;
use crate::process::Stop;
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

struct Demonstration<'a> {
    options: &'a Options,
    fio: Fio,
    instance: Instance,
    stop: Stop,
}

impl Demonstration<'_> {
    fn measure(&self, progress: &mut dyn FnMut(&str)) -> Result<Report, LabError> {
        progress(&format!(
            "making three volumes of {}: {}, {}, and the first behind the second as a cache",
            format_bytes(self.options.size_bytes),
            self.hdd_device(),
            self.ssd_device(1),
        ));
        let targets = self.make_volumes()?;
        progress("writing each volume once, in sequence, as the document does");
        for (_, target) in &targets {
            self.fio.run(&self.fill(), target, &self.stop)?;
        }
        progress("writing the accelerated volume until its SSD was written from end to end");
        self.write_whole_ssd(&targets[2].1)?;
        // The disk of this volume is memory too, and destaging while clients rest would be the first to
        // touch it.
        progress("writing the accelerated volume's dirty lines back to its disk");
        self.instance.flush(ACCELERATED)?;
        let mut rows = Vec::new();
        for spec in &JOBS {
            rows.push(self.row(spec, &targets, progress)?);
        }
        Ok(Report {
            rows,
            options: self.options.clone(),
            machine: Machine::this(),
            fio_version: self.fio.version().to_owned(),
            commands: self.commands(&targets[2].1),
        })
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

    /// One job on the three volumes: once on the disk, in turns on the other two.
    fn row(
        &self,
        spec: &'static JobSpec,
        targets: &[(&'static str, Target); 3],
        progress: &mut dyn FnMut(&str),
    ) -> Result<Row, LabError> {
        let job = spec.job(self.options.size_bytes, self.options.seconds);
        let [disk, ssd, accelerated] = targets;
        let mut measure = |(name, target): &(&'static str, Target)| {
            let outcome = self.fio.run(&job, target, &self.stop)?;
            progress(&said(spec, name, &outcome));
            Ok(spec.figure(&outcome))
        };
        let hdd = measure(disk)?;
        let (mut bare, mut cached) = (Vec::new(), Vec::new());
        let before = self.instance.show(ACCELERATED)?;
        for turn in 0..TURNS {
            if turn.is_multiple_of(2) {
                bare.push(measure(ssd)?);
                cached.push(measure(accelerated)?);
            } else {
                cached.push(measure(accelerated)?);
                bare.push(measure(ssd)?);
            }
        }
        let window = (before, self.instance.show(ACCELERATED)?);
        let figures = Figures { hdd, ssd: median(bare), accelerated: median(cached) };
        Ok(Row::new(spec, figures, self.options, &window))
    }

    /// The volumes and where fio finds them: plain disk, plain SSD, accelerated disk.
    fn make_volumes(&self) -> Result<[(&'static str, Target); 3], LabError> {
        self.instance.create_plain(HDD, &self.hdd_device())?;
        self.instance.create_plain(SSD, &self.ssd_device(1))?;
        let (ssd, hdd) = (self.ssd_device(SSD_PER_SIZE), self.hdd_device());
        self.instance.create_cached(
            ACCELERATED,
            &CacheSpec { ssd: &ssd, hdd: &hdd, policy: "lru", mode: "wb", line_bytes: 4096 },
        )?;
        // The document's product caches sequential streams too.
        self.instance.set(ACCELERATED, "seq_cutoff=0")?;
        let serve = |name| Ok((name, Target::Nbd(self.instance.export_nbd(name)?)));
        Ok([serve(HDD)?, serve(SSD)?, serve(ACCELERATED)?])
    }

    fn hdd_device(&self) -> String {
        format!("model:hdd-7200:{}", format_bytes(self.options.size_bytes))
    }

    fn ssd_device(&self, sizes: u64) -> String {
        let size = format_bytes(self.options.size_bytes * sizes);
        format!("model:{}:{size}", self.options.ssd.profile())
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
        let cache = self.ssd_device(SSD_PER_SIZE);
        let mut commands = vec![
            format!("voltier create -p {hdd} {HDD}"),
            format!("voltier create -p {ssd} {SSD}"),
            format!("voltier create -s {cache} -p {hdd} -r lru -t wb -b 4096 {ACCELERATED}"),
            format!("voltier set {ACCELERATED} seq_cutoff=0"),
        ];
        let shown = match target {
            Target::Nbd(uri) => {
                let uri = uri.split('?').next().unwrap_or(uri);
                Target::Nbd(format!("{uri}?socket=$SOCKET"))
            }
            other => other.clone(),
        };
        commands.push(self.fill().command_line(&shown));
        commands.push(format!("voltier flush {ACCELERATED}"));
        for spec in &JOBS {
            let job = spec.job(self.options.size_bytes, self.options.seconds);
            commands.push(job.command_line(&shown));
        }
        commands
    }
}

fn said(spec: &JobSpec, volume: &str, outcome: &Outcome) -> String {
    format!(
        "{:<13} {volume:<12} {:>10} {}",
        spec.label,
        voltier_results::table::figure(spec.figure(outcome)),
        spec.unit.name()
    )
}
