//! A trace on a real target: written as fio's log for it, replayed by fio.
//!
//! fio sleeps between requests and looks for completions when fio sends the next one. So the latency of
//! a request that takes longer than that is told up to one gap too long.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use voltier_results::result::{Point, Sample, Status};
use voltier_trace::Op;
use voltier_trace::convert::{self, Writer};
use voltier_trace::replay::Replay;

use super::load::{Bench, counting, file_name, requests};
use super::merge;
use super::meter::{self, Meter};
use super::target::Target;
use crate::LabError;
use crate::fio::{self, Job, Pattern, Until};
use crate::plan::step::Planned;

/// fio's options that say where requests go.
const PLACE_OPTIONS: [&str; 6] = ["ioengine", "uri", "filename", "clientname", "pool", "rbdname"];

/// A replay takes this much longer than its span before it is given up.
const PATIENCE: u32 = 10;
const PATIENCE_MORE: Duration = Duration::from_secs(24 * 3600);

/// A replay is overloaded when one request in a hundred is later than this, and a hundredth of it.
const LATE_NS: f64 = 10e6;

/// Samples of the time line, about.
const SAMPLES: u64 = 60;

/// Name of the target in the log; fio is told where it really is.
const NAME: &str = "trace";

/// One completed request of fio's log: when, and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Completed {
    pub at_ns: f64,
    pub took_ns: f64,
    pub bytes: u64,
}

/// Replays a trace on a target by fio.
///
/// # Errors
/// One line: the trace changed, no room for the log, fio failed.
pub(super) fn by_fio(
    bench: &Bench<'_>,
    replay: &Replay,
    target: &Target,
    planned: &Planned,
    point: &mut Point,
) -> Result<(), LabError> {
    let refuse = |why: &str| LabError::Target { target: target.given.clone(), why: why.to_owned() };
    let place = target
        .for_fio(bench.engine)
        .filter(|place| !matches!(place, fio::Target::Files { paths, .. } if paths.len() != 1));
    let place = place.ok_or_else(|| refuse("is not one file, device or volume"))?;
    let name = file_name(&planned.id(), "");
    let log = bench.raw.join(format!("{name}.iolog"));
    std::fs::remove_file(&log).ok();
    let scheduled = write_log(&log, replay, target, point)?;
    let (raw, prefix) = (bench.raw.join(format!("{name}.json")), bench.raw.join(&name));
    let command = arguments(replay, &place, &log, &raw, &prefix);
    let limit = Duration::from_nanos(replay.span_ns()) * PATIENCE + PATIENCE_MORE;
    let meter = Meter::begin(target);
    point.started_unix_ms = meter::unix_ms();
    let (outcomes, was_cut) = bench.fio.run_to(&command, &raw, limit, bench.stop)?;
    point.command = std::iter::once("fio".to_owned()).chain(command).collect();
    (point.read, point.write) = merge::outcomes(&outcomes);
    let process_us = outcomes.iter().map(|outcome| outcome.cpu_us).sum();
    point.cpu = meter.cpu(process_us, requests(point));
    point.cache = meter.cache(target);
    let completed = completed(&format!("{}_lat.log", prefix.display()));
    finish(point, replay, &completed, &scheduled);
    if was_cut {
        point.status = Status::Partial("interrupted".to_owned());
    } else if point.read.is_none() && point.write.is_none() && replay.survey.changing == 0 {
        point.status = Status::Failed("fio measured no request at all".to_owned());
    }
    Ok(())
}

/// Writes the log; when each request is to be made, nanoseconds from the first.
fn write_log(
    log: &Path,
    replay: &Replay,
    target: &Target,
    point: &mut Point,
) -> Result<Vec<f64>, LabError> {
    let mut writer = Writer::create(log, convert::Target::Iolog)?;
    let mut all = replay.requests(target.size_bytes, target.block_bytes)?;
    let (mut scheduled, mut left_out) = (Vec::new(), 0_u64);
    while let Some(mut request) = all.next_request()? {
        // fio 3.33 calls them a bad direction and goes on without them.
        if request.op == Op::Discard {
            left_out += 1;
            continue;
        }
        scheduled.push(request.at_ns as f64);
        // fio takes a time of zero for none.
        request.at_ns += 1000;
        writer.add(&request, NAME)?;
    }
    writer.finish()?;
    let mut note = |name: &str, count: u64| {
        if count > 0 {
            point.metrics.insert(name.to_owned(), count as f64);
        }
    };
    note("discards_left_out", left_out);
    note("requests_widened_to_blocks", all.widened);
    Ok(scheduled)
}

fn arguments(
    replay: &Replay,
    place: &fio::Target,
    log: &Path,
    raw: &Path,
    prefix: &Path,
) -> Vec<String> {
    let job = Job {
        name: "replay".to_owned(),
        pattern: Pattern::RandRw(50),
        block_bytes: 4096,
        iodepth: replay.depth,
        numjobs: 1,
        size_bytes: 0,
        until: Until::Once,
        more: Vec::new(),
    };
    let mut words = vec![
        "--output-format=json+".to_owned(),
        format!("--output={}", raw.display()),
        "--eta=never".to_owned(),
    ];
    if replay.survey.changing == 0 {
        words.push("--readonly".to_owned());
    }
    words.push("--name=replay".to_owned());
    for (key, value) in job.options(place) {
        if PLACE_OPTIONS.contains(&key) {
            // The log names the file; this sends its requests elsewhere.
            let key = if key == "filename" { "replay_redirect" } else { key };
            words.push(format!("--{key}={}", value.unwrap_or_default()));
        }
    }
    words.extend(["--direct=1", "--thread=1", "--group_reporting"].map(str::to_owned));
    words.push(format!("--read_iolog={}", log.display()));
    words.push(format!("--iodepth={}", replay.depth));
    // Without it completions are looked for only when the queue is full.
    words.push("--iodepth_batch_complete_min=0".to_owned());
    if replay.speed == 0.0 {
        words.push("--replay_no_stall=1".to_owned());
    }
    words.extend(counting());
    words.push(format!("--write_lat_log={}", prefix.display()));
    words.push("--per_job_logs=0".to_owned());
    words
}

/// fio's log of latencies: `ms, ns, direction, bytes, ...`. Any other line is left out.
fn completed(path: &str) -> Vec<Completed> {
    let Ok(file) = File::open(path) else { return Vec::new() };
    let parse = |line: String| {
        let mut fields = line.split(',').map(str::trim);
        let mut number = || fields.next()?.parse::<f64>().ok();
        let (at_ms, took_ns, _, bytes) = (number()?, number()?, number()?, number()?);
        Some(Completed { at_ns: at_ms * 1e6, took_ns, bytes: bytes as u64 })
    };
    BufReader::new(file).lines().map_while(Result::ok).filter_map(parse).collect()
}

/// How late requests were made, the time line, and what the point is worth.
pub(super) fn finish(
    point: &mut Point,
    replay: &Replay,
    completed: &[Completed],
    scheduled: &[f64],
) {
    point.series = series(completed);
    let span_ns = replay.span_ns() as f64;
    let mut metric = |name: &str, value: f64| point.metrics.insert(name.to_owned(), value);
    metric("trace_seconds", replay.survey.span_ns as f64 / 1e9);
    let ends = completed.iter().map(|one| one.at_ns).fold(0.0, f64::max);
    metric("replay_seconds", ends / 1e9);
    // A replay keeps the order: the n-th to be made is the n-th that was to be made.
    let mut made: Vec<f64> = completed.iter().map(|one| one.at_ns - one.took_ns).collect();
    made.sort_by(f64::total_cmp);
    if replay.speed == 0.0 || made.len() != scheduled.len() || made.is_empty() {
        return;
    }
    let begin = made[0] - scheduled[0];
    let late = made.iter().zip(scheduled).map(|(made, planned)| (made - planned - begin).max(0.0));
    let mut late: Vec<f64> = late.collect();
    late.sort_by(f64::total_cmp);
    let at = |percent: usize| late[(late.len() * percent).div_ceil(100).max(1) - 1];
    metric("late_p50_ms", at(50) / 1e6);
    metric("late_p99_ms", at(99) / 1e6);
    if at(99) > LATE_NS + span_ns / 100.0 && point.status == Status::Ok {
        let late_ms = at(99) / 1e6;
        point.status = Status::Overloaded(format!(
            "one request in a hundred was made {late_ms:.1} ms late or more: the target, or --depth, \
             does not keep up"
        ));
    }
}

fn series(completed: &[Completed]) -> Vec<Sample> {
    let end = completed.iter().map(|one| one.at_ns).fold(0.0, f64::max);
    let step_ns = (end / SAMPLES as f64).max(1e6).ceil();
    let mut samples = vec![(0_u64, 0_u64, 0.0); (end / step_ns) as usize + 1];
    for one in completed {
        let sample = &mut samples[(one.at_ns / step_ns) as usize];
        *sample = (sample.0 + 1, sample.1 + one.bytes, sample.2 + one.took_ns);
    }
    let seconds = step_ns / 1e9;
    let sample = |(index, sums): (usize, (u64, u64, f64))| {
        Sample::of(((index + 1) as f64 * step_ns / 1e6) as u64, seconds, sums)
    };
    if completed.is_empty() {
        return Vec::new();
    }
    samples.into_iter().enumerate().map(sample).collect()
}
