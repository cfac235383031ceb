//! A trace on a real target: written as fio's log for it, replayed by fio.
//!
//! fio sleeps between requests and looks for completions when fio sends the next one. So the latency of
//! a request that takes longer than that is told up to one gap too long.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use voltier_results::result::{Point, Status};
use voltier_trace::Op;
use voltier_trace::convert::{self, Writer};
use voltier_trace::replay::Replay;

use super::lateness::{Ended, Lateness, Pairing, TracedRequest};
use super::load::{LoadRunner, counting, file_name, requests, used};
use super::merge;
use super::meter::{self, Meter};
use super::target::Target;
use crate::LabError;
use crate::fio::{self, Job, Pattern, Until};
use crate::plan::step::Planned;

/// fio's options that say where requests go.
const DESTINATION_OPTIONS: [&str; 6] =
    ["ioengine", "uri", "filename", "clientname", "pool", "rbdname"];

/// A replay takes this much longer than its span before it is given up.
const PATIENCE: u32 = 10;
const PATIENCE_MORE: Duration = Duration::from_secs(24 * 3600);

/// Name of the target in the log; fio is told where it really is.
const NAME: &str = "trace";

/// Replays a trace on a target by fio.
///
/// # Errors
/// One line: the trace changed, no room for the log, fio failed.
pub(super) fn by_fio(
    runner: &LoadRunner<'_>,
    replay: &Replay,
    target: &Target,
    planned: &Planned,
    point: &mut Point,
) -> Result<(), LabError> {
    let refuse = |why: &str| LabError::Target { target: target.given.clone(), why: why.to_owned() };
    let destination = target.for_fio(runner.engine).filter(
        |destination| !matches!(destination, fio::Target::Files { paths, .. } if paths.len() != 1),
    );
    let destination = destination.ok_or_else(|| refuse("is not one file, device or volume"))?;
    let name = file_name(&planned.id(), "");
    let log = runner.raw.join(format!("{name}.iolog"));
    std::fs::remove_file(&log).ok();
    write_log(&log, replay, target, point)?;
    let (raw, prefix) = (runner.raw.join(format!("{name}.json")), runner.raw.join(&name));
    let command = arguments(replay, &destination, &log, &raw, &prefix);
    let limit = Duration::from_nanos(replay.span_ns()) * PATIENCE + PATIENCE_MORE;
    let meter = Meter::begin(target);
    point.started_unix_ms = meter::unix_ms();
    let ran = runner.fio.run_to(&command, &raw, limit, runner.stop)?;
    point.command = std::iter::once("fio".to_owned()).chain(command).collect();
    (point.read, point.write) = merge::outcomes(&ran.outcomes);
    meter.fill_in(target, used(&ran, requests(point)), point);
    point.metrics.insert("trace_seconds".to_owned(), replay.survey.span_ns as f64 / 1e9);
    let lateness = lateness(&format!("{}_lat.1.log", prefix.display()), replay, target)?;
    lateness.finish(replay.speed > 0.0, point);
    if ran.was_cut {
        point.status = Status::Partial("interrupted".to_owned());
    } else if point.read.is_none() && point.write.is_none() && replay.survey.changing == 0 {
        point.status = Status::Failed("fio measured no request at all".to_owned());
    }
    Ok(())
}

/// Writes the log that fio replays.
fn write_log(
    log: &Path,
    replay: &Replay,
    target: &Target,
    point: &mut Point,
) -> Result<(), LabError> {
    let mut writer = Writer::create(log, convert::Target::Iolog)?;
    let mut all = replay.requests(target.size_bytes, target.block_bytes)?;
    let mut left_out = 0_u64;
    while let Some(mut request) = all.next_request()? {
        // fio 3.33 calls them a bad direction and goes on without them.
        if request.op == Op::Discard {
            left_out += 1;
            continue;
        }
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
    Ok(())
}

fn arguments(
    replay: &Replay,
    destination: &fio::Target,
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
    for (key, value) in job.options(destination) {
        if DESTINATION_OPTIONS.contains(&key) {
            // The log names the file; this sends its requests elsewhere.
            let key = if key == "filename" { "replay_redirect" } else { key };
            words.push(format!("--{key}={}", value.unwrap_or_default()));
        }
    }
    words.extend(["--direct=1", "--thread=1", "--group_reporting"].map(str::to_owned));
    words.push(format!("--read_iolog={}", log.display()));
    words.push(format!("--iodepth={}", replay.depth));
    // Without this option fio looks for completions only when the queue is full.
    words.push("--iodepth_batch_complete_min=0".to_owned());
    if replay.speed == 0.0 {
        words.push("--replay_no_stall=1".to_owned());
    }
    words.extend(counting());
    words.push(format!("--write_lat_log={}", prefix.display()));
    // A log is joined to the one before without its job's number, also to that of a cut attempt.
    words.push("--per_job_logs=1".to_owned());
    words.push("--log_offset=1".to_owned());
    words
}

/// Counts the requests of fio's log of latencies, as they ended: `ms, ns, direction, bytes, offset`.
/// Each is paired with the time at which the trace has it. Any other line is left out.
fn lateness(log: &str, replay: &Replay, target: &Target) -> Result<Lateness, LabError> {
    let mut sums = Lateness::default();
    let Ok(file) = File::open(log) else { return Ok(sums) };
    let mut trace = replay.requests(target.size_bytes, target.block_bytes)?;
    let due = move || -> Result<Option<(TracedRequest, u64)>, LabError> {
        while let Some(request) = trace.next_request()? {
            if request.op != Op::Discard {
                let is_write = request.op == Op::Write;
                let traced =
                    TracedRequest { is_write, offset: request.offset, bytes: request.bytes };
                return Ok(Some((traced, request.at_ns)));
            }
        }
        Ok(None)
    };
    let mut pairing = Pairing::new(due, replay.depth);
    // fio's clock runs from its own begin: its first request is taken to be on time.
    let mut begin_ns = None;
    for line in BufReader::new(file).lines().map_while(Result::ok) {
        let Some((at_ns, took_ns, request)) = ended(&line) else { continue };
        let made_ns = at_ns.saturating_sub(took_ns);
        let due_ns = match replay.speed > 0.0 {
            true => pairing.due(request)?,
            false => None,
        };
        let begin = *begin_ns.get_or_insert(made_ns.saturating_sub(due_ns.unwrap_or(0)));
        sums.add(Ended {
            due_ns,
            made_ns: made_ns.saturating_sub(begin),
            at_ns: at_ns.saturating_sub(begin),
            is_write: request.is_write,
            bytes: request.bytes,
        });
    }
    Ok(sums)
}

/// A line of the log: when the request ended, how long it took, and where it went.
fn ended(line: &str) -> Option<(u64, u64, TracedRequest)> {
    let mut fields = line.split(',').map(|field| field.trim().parse::<u64>().ok());
    let mut number = || fields.next().flatten();
    let (at_ms, took_ns, direction) = (number()?, number()?, number()?);
    let (bytes, offset) = (number()?, number()?);
    Some((at_ms * 1_000_000, took_ns, TracedRequest { is_write: direction == 1, offset, bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_fios_log_says_when_and_where() {
        let request = TracedRequest { is_write: true, offset: 8192, bytes: 4096 };
        assert_eq!(ended("12, 3456, 1, 4096, 8192, 0"), Some((12_000_000, 3456, request)));
        assert_eq!(ended("12, 3456, 1"), None);
        assert_eq!(ended("broken"), None);
    }
}
