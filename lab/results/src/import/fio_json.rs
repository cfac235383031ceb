//! fio's JSON and JSON+: one object, several of `--status-interval`, warnings before and between.

use std::collections::BTreeMap;

use serde_json::Value;

use super::files::{manifest, target};
use super::fio_flow::{flow, merge, number, whole};
use super::fio_options as options;
use crate::analysis::cpu;
use crate::result::{ClientResult, Flow, Point, Run, Sample, Status};

/// After so many places where an object does not begin, none will.
const FALSE_STARTS_MAX: u32 = 100;

/// The objects of a text, and whether the last was cut off.
struct Objects {
    found: Vec<Value>,
    is_cut: bool,
    error: Option<String>,
}

fn objects(text: &str) -> Objects {
    let mut objects = Objects { found: Vec::new(), is_cut: false, error: None };
    let (mut at, mut false_starts) = (0, 0);
    while let Some(start) = next_object(text, at) {
        let mut stream = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
        match stream.next() {
            Some(Ok(value)) => {
                at = start + stream.byte_offset();
                objects.found.push(value);
            }
            Some(Err(error)) if error.is_eof() => {
                objects.is_cut = true;
                break;
            }
            Some(Err(error)) => {
                objects.error.get_or_insert(error.to_string());
                at = start + 1;
                false_starts += 1;
            }
            None => break,
        }
        if false_starts > FALSE_STARTS_MAX {
            break;
        }
    }
    objects
}

/// The next brace at the start of a line; of a text without line ends, the first brace.
fn next_object(text: &str, from: usize) -> Option<usize> {
    let rest = text.get(from..)?;
    let at_line = |(at, _): &(usize, &str)| {
        let before = text[..from + at].chars().next_back();
        before.is_none_or(|c| c == '\n' || c == '\r' || c == '}')
    };
    let at_start = rest.match_indices('{').find(at_line).map(|(at, _)| from + at);
    at_start.or_else(|| if from == 0 { rest.find('{') } else { None })
}

pub(super) fn parse(text: &str) -> Result<Run, String> {
    let objects = objects(text);
    let is_result =
        |value: &&Value| value.get("jobs").or_else(|| value.get("client_stats")).is_some();
    let results: Vec<&Value> = objects.found.iter().filter(is_result).collect();
    let Some(first) = results.first() else {
        return Err(match (objects.is_cut, objects.error) {
            (true, _) => "it is cut off: fio was stopped before it wrote its result".to_owned(),
            (_, Some(error)) => format!("it is not JSON that can be read ({error})"),
            _ => "its JSON is not a result of fio (no jobs)".to_owned(),
        });
    };
    let tool = first.get("fio version").and_then(Value::as_str).unwrap_or("fio");
    let mut run = Run { manifest: manifest(tool, Vec::new()), ..Run::default() };
    run.manifest.started_unix_ms = started_ms(first, None);
    let mut snapshots: Vec<&Value> = Vec::new();
    for result in results {
        // --status-interval: the same jobs again, further on. The last is the result.
        if snapshots.last().is_some_and(|last| !continues(last, result)) {
            run.points.extend(points(&snapshots));
            snapshots.clear();
        }
        snapshots.push(result);
    }
    let mut last = points(&snapshots);
    if objects.is_cut {
        let why = "the result is cut off: these are the figures of the last whole interval";
        for point in last.iter_mut().filter(|point| point.status == Status::Ok) {
            point.status = Status::Partial(why.to_owned());
        }
    }
    run.points.extend(last);
    for point in &run.points {
        let name = &point.axes.target;
        if !run.manifest.targets.iter().any(|known| known.name == *name) {
            run.manifest.targets.push(target(name, name));
        }
    }
    Ok(run)
}

fn entries(result: &Value) -> impl Iterator<Item = &Value> {
    let list = ["client_stats", "jobs"].iter().find_map(|key| result.get(*key)?.as_array());
    // "All clients" is a sum of fio's own, with wrong latencies in some versions: it is made anew.
    list.into_iter().flatten().filter(|entry| text(entry, "jobname") != "All clients")
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn started_ms(result: &Value, entry: Option<&Value>) -> u64 {
    let seconds = || whole(result, "timestamp").map(|s| s.saturating_mul(1000));
    let of_job = entry.and_then(|entry| whole(entry, "job_start"));
    of_job.or_else(|| whole(result, "timestamp_ms")).or_else(seconds).unwrap_or(0)
}

fn key(entry: &Value) -> (String, u64, String) {
    let group = whole(entry, "groupid").unwrap_or(0);
    (text(entry, "jobname").to_owned(), group, host(entry))
}

fn host(entry: &Value) -> String {
    match (text(entry, "hostname"), entry.get("port").and_then(Value::as_u64)) {
        ("", _) => String::new(),
        (host, Some(port)) => format!("{host}:{port}"),
        (host, None) => host.to_owned(),
    }
}

fn requests(result: &Value) -> u64 {
    let of = |entry: &Value| -> u64 {
        let count = |direction| entry.get(direction).and_then(|part| whole(part, "total_ios"));
        ["read", "write"].into_iter().filter_map(count).fold(0, u64::saturating_add)
    };
    entries(result).map(of).fold(0, u64::saturating_add)
}

/// Whether a result is a later state of the same jobs.
fn continues(before: &Value, after: &Value) -> bool {
    let start = |result: &Value| entries(result).next().and_then(|e| whole(e, "job_start"));
    entries(before).map(key).eq(entries(after).map(key))
        && requests(before) <= requests(after)
        && before.get("global options") == after.get("global options")
        && start(before) == start(after)
}

/// The points of one result, with its earlier states as time line.
fn points(snapshots: &[&Value]) -> Vec<Point> {
    let Some((result, earlier)) = snapshots.split_last() else { return Vec::new() };
    let mut groups: Vec<((String, u64), Vec<&Value>)> = Vec::new();
    for entry in entries(result) {
        let (job, group, _) = key(entry);
        match groups.iter_mut().find(|(known, _)| *known == (job.clone(), group)) {
            Some((_, members)) => members.push(entry),
            None => groups.push(((job, group), vec![entry])),
        }
    }
    let of_group = |((job, group), members): &((String, u64), Vec<&Value>)| {
        let mut point = point(result, job, members);
        point.series = time_line(job, *group, earlier, &point);
        point
    };
    let mut points: Vec<Point> = groups.iter().map(of_group).collect();
    if let [only] = &mut points[..] {
        let disks = result.get("disk_util").and_then(Value::as_array).into_iter().flatten();
        let busiest = disks
            .filter_map(|disk| number(disk, "util"))
            .fold(None, |most, util| Some(f64::max(util, most.unwrap_or(0.0))));
        only.metrics.extend(busiest.map(|util| ("disk_busy_percent".to_owned(), util)));
    }
    points
}

fn point(result: &Value, job: &str, members: &[&Value]) -> Point {
    let mut hosts: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for member in members {
        hosts.entry(host(member)).or_default().push(member);
    }
    let flows = |members: &[&Value], direction: &str| -> Option<Flow> {
        let parts: Vec<Flow> = members.iter().filter_map(|m| flow(m.get(direction)?)).collect();
        merge(&parts)
    };
    let first = members[0];
    let given = options::read(result.get("global options"), first.get("job options"));
    let threads = u32::try_from(members.len() / hosts.len()).unwrap_or(u32::MAX);
    let mut axes = options::axes(&given, threads);
    axes.target = options::target(&given);
    axes.phase = job.to_owned();
    let started_unix_ms = started_ms(result, Some(first));
    let mut clients = Vec::new();
    if hosts.keys().any(|host| !host.is_empty()) {
        axes.clients = u32::try_from(hosts.len()).ok();
        for (host, members) in &hosts {
            clients.push(ClientResult {
                client: host.clone(),
                started_unix_ms: whole(members[0], "job_start").unwrap_or(0),
                read: flows(members, "read"),
                write: flows(members, "write"),
            });
        }
    }
    let (read, write) = (flows(members, "read"), flows(members, "write"));
    let status = status(members, read.is_some() || write.is_some());
    let mut point = Point {
        id: job.to_owned(),
        axes,
        status,
        command: options::command(&given),
        started_unix_ms,
        read,
        write,
        clients,
        ..Point::default()
    };
    add_metrics(&mut point, members);
    point
}

fn status(members: &[&Value], has_figures: bool) -> Status {
    let error = |member: &&Value| {
        let code = member.get("error").and_then(Value::as_i64).unwrap_or(0);
        (code != 0).then(|| format!("fio ended with error {code}"))
    };
    let failures: u64 =
        members.iter().filter_map(|m| whole(m, "total_err")).fold(0, u64::saturating_add);
    match members.iter().find_map(error) {
        Some(why) if has_figures => Status::Invalid(why),
        Some(why) => Status::Failed(why),
        None if !has_figures => Status::Failed("no read and no write was completed".to_owned()),
        None if failures > 0 => Status::Invalid(format!("{failures} requests failed")),
        None => Status::Ok,
    }
}

fn add_metrics(point: &mut Point, members: &[&Value]) {
    let requests: u64 = point.flows().map(|flow| flow.requests).fold(0, u64::saturating_add);
    let sum =
        |of: &dyn Fn(&Value) -> Option<f64>| members.iter().filter_map(|m| of(m)).sum::<f64>();
    let runtime_ms = sum(&|m| number(m, "job_runtime"));
    let busy_ms = sum(&|m| {
        Some((number(m, "usr_cpu")? + number(m, "sys_cpu")?) / 100.0 * number(m, "job_runtime")?)
    });
    if runtime_ms > 0.0 {
        let percent = 100.0 * busy_ms / runtime_ms;
        point.metrics.insert("cpu_percent_of_thread".to_owned(), percent);
        if let Some(us) = cpu::process_us_per_request(percent, runtime_ms, requests) {
            point.metrics.insert("cpu_process_us_per_request".to_owned(), us);
        }
    }
    if let [only] = members {
        let sync = only.get("sync").and_then(|sync| sync.get("lat_ns"));
        let mean = sync.and_then(|lat| number(lat, "mean")).filter(|mean| *mean > 0.0);
        point.metrics.extend(mean.map(|ns| ("sync_latency_mean_ns".to_owned(), ns)));
        let tail = sync.and_then(|lat| number(lat.get("percentile")?, "99.000000"));
        point.metrics.extend(tail.map(|ns| ("sync_latency_p99_ns".to_owned(), ns)));
    }
}

/// Differences of the totals of `--status-interval`.
fn time_line(job: &str, group: u64, earlier: &[&Value], last: &Point) -> Vec<Sample> {
    let mut states: Vec<(u64, u64, u64, f64)> = Vec::new();
    let mut state = |flows: &[&Flow]| {
        let sum = |of: fn(&Flow) -> u64| flows.iter().map(|f| of(f)).fold(0, u64::saturating_add);
        let longest = flows.iter().map(|flow| flow.runtime_ns).max().unwrap_or(0);
        let time: f64 = flows.iter().map(|f| f.latency.mean_ns * f.requests as f64).sum();
        states.push((longest / 1_000_000, sum(|f| f.requests), sum(|f| f.bytes), time));
    };
    for result in earlier {
        let members = entries(result).filter(|e| {
            let (name, of, _) = key(e);
            name == job && of == group
        });
        let flows: Vec<Flow> = members
            .flat_map(|m| [m.get("read"), m.get("write")])
            .flatten()
            .filter_map(flow)
            .collect();
        state(&flows.iter().collect::<Vec<_>>());
    }
    if earlier.is_empty() {
        return Vec::new();
    }
    state(&last.flows().collect::<Vec<_>>());
    let mut samples = Vec::new();
    let mut before = (0, 0, 0, 0.0);
    for now in states {
        if now.0 > before.0 {
            let seconds = (now.0 - before.0) as f64 / 1e3;
            let requests = now.1.saturating_sub(before.1) as f64;
            let busy = (now.3 - before.3).max(0.0);
            samples.push(Sample {
                at_ms: now.0,
                iops: requests / seconds,
                bytes_per_second: now.2.saturating_sub(before.2) as f64 / seconds,
                latency_mean_ns: if requests > 0.0 { busy / requests } else { 0.0 },
            });
            before = now;
        }
    }
    samples
}
