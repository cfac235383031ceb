//! Jobs by fio: the command, its raw result, the point.

use std::path::Path;
use std::time::Duration;

use voltier_results::analysis::stats;
use voltier_results::result::{Flow, Part, Point, Sample, Status};

use super::merge::{self, PERCENTILES};
use super::meter::{self, Meter, Used};
use super::target::Target;
use crate::LabError;
use crate::fio::{self, Fio, Job, Ran, Until};
use crate::plan::step::Load;
use crate::process::{self, Stop};

/// Points of this length and more have a time line.
const TIMELINE_FROM: Duration = Duration::from_secs(2);

/// fio and where its results go.
#[derive(Debug)]
pub(super) struct LoadRunner<'a> {
    /// The program.
    pub fio: &'a Fio,
    /// Folder of raw results.
    pub raw: &'a Path,
    /// The engine for files and devices.
    pub engine: &'static str,
    /// The user's wish to stop.
    pub stop: &'a Stop,
}

/// The outcome of a load.
#[derive(Debug)]
struct Measured {
    /// The end of fio, with each group of jobs.
    ran: Ran,
    /// The command, word by word.
    command: Vec<String>,
    /// The time line of the load.
    series: Vec<Sample>,
}

impl LoadRunner<'_> {
    /// Runs a load and puts the result into `point`.
    ///
    /// # Errors
    /// `Interrupted` when nothing was measured before the user's stop; otherwise as [`Fio::run`].
    pub(super) fn measure(
        &self,
        load: &Load,
        target: &Target,
        point: &mut Point,
    ) -> Result<(), LabError> {
        if let Some(job) = &load.warm_up {
            self.run(&Load::of(job.clone()), target, &file_name(&point.id, "warm_up"))?;
        }
        let meter = Meter::begin(target);
        point.started_unix_ms = meter::unix_ms();
        let measured = self.run(load, target, &file_name(&point.id, ""))?;
        point.command.clone_from(&measured.command);
        point.series = measured.series;
        fill_in(point, load, &measured.ran);
        meter.fill_in(target, used(&measured.ran, requests(point)), point);
        Ok(())
    }

    /// Runs a load again and again with pauses; the series has a sample for each burst. The pause is
    /// the target's: fio's own end and start are a part of it.
    ///
    /// # Errors
    /// As [`LoadRunner::measure`].
    pub(super) fn bursts(
        &self,
        load: &Load,
        (count, idle): (u32, Duration),
        target: &Target,
        point: &mut Point,
    ) -> Result<(), LabError> {
        let meter = Meter::begin(target);
        point.started_unix_ms = meter::unix_ms();
        let (mut reads, mut writes, mut sum) = (Vec::new(), Vec::new(), Used::default());
        let (mut begin_ms, mut pauses) = (point.started_unix_ms, Vec::new());
        for burst in 1..=count {
            let name = file_name(&point.id, &format!("burst={burst}"));
            let measured = self.run(load, target, &name)?;
            point.command.clone_from(&measured.command);
            let (read, write) = merge::outcomes(&measured.ran.outcomes);
            let at_ms = meter::unix_ms().saturating_sub(point.started_unix_ms);
            point.series.push(sample(at_ms, [&read, &write]));
            let flows = [&read, &write].into_iter().flatten();
            let busy_ms = flows.map(|flow| flow.runtime_ns / 1_000_000).max().unwrap_or(0);
            let used = used(&measured.ran, 0);
            sum.process_us += used.process_us;
            let busiest = [sum.busiest_thread_percent, used.busiest_thread_percent];
            sum.busiest_thread_percent = busiest.into_iter().flatten().reduce(f64::max);
            reads.extend(read);
            writes.extend(write);
            let next_ms = next_burst_ms(begin_ms, busy_ms, idle);
            let left = Duration::from_millis(next_ms.saturating_sub(meter::unix_ms()));
            if measured.ran.was_cut || rest(left, self.stop).is_err() {
                let why = format!("interrupted after {burst} of {count} bursts");
                point.status = Status::Partial(why);
                break;
            }
            let now_ms = meter::unix_ms();
            pauses.push(now_ms.saturating_sub(begin_ms + busy_ms) as f64 / 1e3);
            begin_ms = now_ms;
        }
        (point.read, point.write) = (merge::in_turn(&reads), merge::in_turn(&writes));
        if let Some(idle_s) = stats::mean(&pauses) {
            point.metrics.insert("idle_s_mean".to_owned(), idle_s);
        }
        meter.fill_in(target, Used { requests: requests(point), ..sum }, point);
        Ok(())
    }

    /// Runs the jobs of a load at the same time.
    fn run(&self, load: &Load, target: &Target, name: &str) -> Result<Measured, LabError> {
        let for_fio = target.for_fio(self.engine).ok_or_else(|| LabError::Target {
            target: target.given.clone(),
            why: "is a folder: this plan needs a file, a device or a volume".to_owned(),
        })?;
        let raw = self.raw.join(format!("{name}.json"));
        let prefix = self.raw.join(name);
        let window = load.sample.or_else(|| window_of(load));
        let mut command = common(&load.jobs, &raw);
        for (index, job) in load.jobs.iter().enumerate() {
            command.extend(job.arguments(&for_fio));
            command.extend(counting());
            if index > 0 {
                command.push("--new_group".to_owned());
            }
            if let Some(window) = window {
                command.extend(logging(&prefix, window));
            }
        }
        let ran = self.fio.run_to(&command, &raw, fio::limit(&load.jobs), self.stop)?;
        let series = match window {
            Some(window) => super::timeline::read(&prefix, window)?,
            None => Vec::new(),
        };
        command.insert(0, "fio".to_owned());
        Ok(Measured { ran, command, series })
    }
}

/// The arguments with which every command begins.
pub(super) fn common(jobs: &[Job], raw: &Path) -> Vec<String> {
    let mut command = vec![
        "--output-format=json+".to_owned(),
        format!("--output={}", raw.display()),
        "--eta=never".to_owned(),
    ];
    if !jobs.iter().any(Job::writes) {
        command.push("--readonly".to_owned());
    }
    command
}

/// Latencies from the submission on, with these percentiles.
pub(super) fn counting() -> Vec<String> {
    let list = PERCENTILES.map(|name| name.trim_end_matches('0').trim_end_matches('.'));
    vec![
        "--lat_percentiles=1".to_owned(),
        "--clat_percentiles=0".to_owned(),
        format!("--percentile_list={}", list.join(":")),
    ]
}

fn logging(prefix: &Path, window: Duration) -> Vec<String> {
    let prefix = prefix.display();
    let mut options: Vec<String> =
        ["iops", "bw", "lat"].iter().map(|log| format!("--write_{log}_log={prefix}")).collect();
    options.push(format!("--log_avg_msec={}", window.as_millis()));
    options.push("--per_job_logs=1".to_owned());
    options
}

/// About sixty samples of a point, a second each at most.
fn window_of(load: &Load) -> Option<Duration> {
    let times = load.jobs.iter().map(|job| match job.until {
        Until::Time(time) => time,
        Until::Once => Duration::ZERO,
    });
    let longest = times.max().filter(|time| *time >= TIMELINE_FROM)?;
    let ms = (longest.as_millis() as u64 / 60).clamp(100, 1000);
    Some(Duration::from_millis(ms))
}

/// The name of a point as that of a file.
pub(super) fn file_name(id: &str, more: &str) -> String {
    let more = if more.is_empty() { String::new() } else { format!(",{more}") };
    let plain = |c: char| if c.is_ascii_alphanumeric() || "=-_.,".contains(c) { c } else { '_' };
    format!("{}{more}", id.replace('/', ",")).chars().map(plain).collect()
}

/// The begin of a burst after one that began at `begin_ms` and was busy so long. fio needs about the
/// same time for every start. So the target rests as long as it should.
fn next_burst_ms(begin_ms: u64, busy_ms: u64, idle: Duration) -> u64 {
    begin_ms + busy_ms + idle.as_millis() as u64
}

/// The load generator's part in a point of so many requests.
pub(super) fn used(ran: &Ran, requests: u64) -> Used {
    let process_us = ran.outcomes.iter().map(|outcome| outcome.cpu_us).sum();
    Used { requests, process_us, busiest_thread_percent: ran.busiest_thread_percent }
}

fn fill_in(point: &mut Point, load: &Load, ran: &Ran) {
    (point.read, point.write) = merge::outcomes(&ran.outcomes);
    if point.axes.small.is_some() {
        for (job, outcome) in load.jobs.iter().zip(&ran.outcomes) {
            let flow = merge::together(outcome.flows()).unwrap_or_default();
            add_orion(point, &job.name, &flow);
            if load.jobs.len() > 1 {
                let (name, read) = (job.name.clone(), outcome.read.clone());
                point.parts.push(Part { name, read, write: outcome.write.clone() });
            }
        }
    }
    if ran.was_cut {
        point.status = Status::Partial("interrupted".to_owned());
    } else if point.read.is_none() && point.write.is_none() {
        point.status = Status::Failed("fio measured no request at all".to_owned());
    }
}

/// Adds the figures that Orion's tables have: small requests and their latency, large bytes.
pub(super) fn add_orion(point: &mut Point, job: &str, flow: &Flow) {
    let mut add = |name: &str, value: f64| point.metrics.insert(name.to_owned(), value);
    if job == "small" {
        add("small_iops", flow.iops);
        add("small_latency_ns", flow.latency.mean_ns);
    } else {
        add("large_bytes_per_second", flow.bytes_per_second);
        add("large_latency_ns", flow.latency.mean_ns);
    }
}

/// Requests of both directions.
pub(super) fn requests(point: &Point) -> u64 {
    point.flows().map(|flow| flow.requests).sum()
}

fn sample(at_ms: u64, flows: [&Option<Flow>; 2]) -> Sample {
    let all = merge::together(flows.into_iter().flatten()).unwrap_or_default();
    Sample {
        at_ms,
        iops: all.iops,
        bytes_per_second: all.bytes_per_second,
        latency_mean_ns: all.latency.mean_ns,
    }
}

/// Waits, or not to the end when the user asks to stop.
fn rest(time: Duration, stop: &Stop) -> Result<(), LabError> {
    let deadline = process::Deadline::after(time);
    while !deadline.is_over() {
        stop.check()?;
        process::pause(Duration::from_millis(20).min(time));
    }
    stop.check()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_fio_is_a_part_of_the_pause() {
        // fio was started at 1,000 ms, did requests for 5 s and has 5 s of rest. The start and the end of
        // fio may take 10 ms or 900: the next start is due at 11,000 ms.
        assert_eq!(next_burst_ms(1000, 5000, Duration::from_secs(5)), 11_000);
    }

    #[test]
    fn names_of_points_become_names_of_files() {
        assert_eq!(file_name("ssd/iops/round=3/bs=4096", ""), "ssd,iops,round=3,bs=4096");
        assert_eq!(file_name("a b/x", "burst=2"), "a_b,x,burst=2");
        assert!(counting()[2].ends_with("=50:75:90:95:99:99.9:99.99:99.999"), "{:?}", counting());
    }
}
