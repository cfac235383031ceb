//! Miss ratios of the cache's policies beside those of libCacheSim, on the same traces.
//!
//! libCacheSim comes from PyPI into a folder of its own under `target/tools`. Traces are made, and
//! those that `MRC_TRACES` names are taken besides: `PATH=FORMAT`, several with commas between,
//! FORMAT `u32` or `lis`. Python reads each trace by itself.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::report::{self, Measured, Row};
use xtask::{Failure, workspace};

/// The version of libCacheSim that the figures in docs/benchmarks.md are of.
const PEER: &str = "libcachesim==0.3.5";

const SCRIPT: &str = "scripts/miss_ratios.py";

/// How often what is drawn by lot is repeated, with the seeds 1, 2, ...
const SEEDS: u32 = 5;

/// Parts of the footprint that caches hold.
const PARTS: [u64; 4] = [50, 20, 8, 3];

/// Traces of more references are not counted by the models, which are slow.
const MODEL_REFERENCES: u64 = 1_000_000;

/// The most by which exact policies may differ, in points.
const EXACT: f64 = 0.1;

/// The traces that are made: pattern, requests, blocks.
const MADE: [(&str, &str, &str); 4] = [
    ("zipf:0.9", "400000", "40000"),
    ("uniform", "300000", "20000"),
    ("loop", "200000", "15000"),
    ("mixed:0.9", "400000", "40000"),
];

struct Trace {
    name: String,
    path: PathBuf,
    format: String,
}

#[derive(Deserialize)]
struct Ours {
    references: u64,
    lines: u64,
    curves: Vec<Curve>,
}

#[derive(Deserialize)]
struct Curve {
    name: String,
    points: Vec<Point>,
}

#[derive(Deserialize)]
struct Point {
    lines: u64,
    miss_ratio: f64,
}

#[derive(Deserialize)]
struct Theirs {
    references: u64,
    blocks: u64,
    points: Vec<TheirPoint>,
}

#[derive(Deserialize)]
struct TheirPoint {
    lines: u64,
    lru: f64,
    fifo: f64,
    rand: Vec<f64>,
    uniform: Vec<f64>,
    s3fifo: f64,
    s3fifo_default: f64,
    s3fifo_model: Option<f64>,
    s3fifo_names_queue_model: Option<f64>,
}

/// Measures everything; fails when an exact policy differs, or a drawn one by more than chance.
pub(super) fn measure() -> Result<Vec<Row>, Failure> {
    let voltier = workspace::build_voltier(false)?;
    let python = python()?;
    let folder = tempfile::tempdir()?;
    let mut traces = Vec::new();
    for (pattern, requests, blocks) in MADE {
        let path = folder.path().join(pattern.replace(':', "-"));
        let mut command = Command::new(&voltier);
        command.args(["lab", "trace", "make", pattern, "--to", "u32", "--requests", requests]);
        output(command.args(["--blocks", blocks, "--output"]).arg(&path))?;
        traces.push(Trace { name: pattern.to_owned(), path, format: "u32".to_owned() });
    }
    traces.extend(given()?);
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for trace in &traces {
        compare(&voltier, &python, trace, &mut rows, &mut failures)?;
    }
    for failure in &failures {
        eprintln!("differs: {failure}");
    }
    match failures.len() {
        0 => Ok(report::medians(&[rows])?),
        count => {
            print!("{}", report::table(&report::medians(&[rows])?));
            Err(format!("{count} miss ratios differ from libCacheSim's by more than they may")
                .into())
        }
    }
}

/// Traces of the user, or of the public, by the environment.
fn given() -> Result<Vec<Trace>, Failure> {
    let Ok(all) = std::env::var("MRC_TRACES") else { return Ok(Vec::new()) };
    let one = |given: &str| {
        let (path, format) = given
            .rsplit_once('=')
            .filter(|(_, format)| ["u32", "lis"].contains(format))
            .ok_or_else(|| format!("MRC_TRACES: {given}: write PATH=u32 or PATH=lis"))?;
        let path = std::path::absolute(path).map_err(|error| error.to_string())?;
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
        Ok(Trace { name, path, format: format.to_owned() })
    };
    let all: Result<Vec<Trace>, String> = all.split(',').map(one).collect();
    Ok(all?)
}

/// Python with libCacheSim, installed once.
fn python() -> Result<PathBuf, Failure> {
    let folder = workspace::metadata()?.target_directory.join("tools").join("libcachesim");
    let python = folder.join("bin/python");
    let marker = folder.join(PEER);
    if !marker.exists() {
        eprintln!("installing {PEER} into {} (once)", folder.display());
        output(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        output(Command::new(&python).args(pip).arg("numpy"))?;
        // The other dependencies of the package fetch traces and run its own tests.
        output(Command::new(&python).args(pip).args(["--no-deps", PEER]))?;
        std::fs::write(&marker, "")?;
    }
    Ok(python)
}

fn output(command: &mut Command) -> Result<String, Failure> {
    let what = format!("{} ...", command.get_program().to_string_lossy());
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{what}: {error}"))?;
    workspace::succeeded(&what, output.status)?;
    Ok(String::from_utf8(output.stdout)?)
}

fn ours(
    voltier: &Path,
    trace: &Trace,
    curves: &str,
    seed: u32,
    sizes: &[u64],
) -> Result<Ours, Failure> {
    let mut command = Command::new(voltier);
    command.args(["lab", "trace", "mrc", "--json", "--format", &trace.format, "--curve", curves]);
    if !sizes.is_empty() {
        let sizes: Vec<String> = sizes.iter().map(|lines| (lines * 4096).to_string()).collect();
        command.args(["--size", &sizes.join(",")]);
    }
    command.args(["--seed", &seed.to_string()]).arg(&trace.path);
    Ok(serde_json::from_str(&output(&mut command)?)?)
}

impl Ours {
    fn percent(&self, curve: &str, lines: u64) -> Result<f64, Failure> {
        let points =
            self.curves.iter().find(|known| known.name == curve).map(|curve| &curve.points);
        let point = points.and_then(|all| all.iter().find(|point| point.lines == lines));
        let point = point.ok_or_else(|| format!("no point of {curve} with {lines} lines"))?;
        Ok(point.miss_ratio * 100.0)
    }
}

fn compare(
    voltier: &Path,
    python: &Path,
    trace: &Trace,
    rows: &mut Vec<Measured>,
    failures: &mut Vec<String>,
) -> Result<(), Failure> {
    let survey = ours(voltier, trace, "exact", 1, &[])?;
    let mut sizes: Vec<u64> = PARTS.iter().map(|part| survey.lines / part).collect();
    sizes.sort_unstable();
    let first = ours(voltier, trace, "exact,shards:0.1,lru,fifo,rand,s3fifo", 1, &sizes)?;
    let mut drawn = Vec::new();
    for seed in 1..=SEEDS {
        drawn.push(ours(voltier, trace, "rand", seed, &sizes)?);
    }
    let models = u8::from(survey.references <= MODEL_REFERENCES).to_string();
    let mut command = Command::new(python);
    command.arg(workspace::root().join(SCRIPT)).arg(&trace.path).arg(&trace.format);
    command.arg(SEEDS.to_string()).arg(models).args(sizes.iter().map(u64::to_string));
    let theirs: Theirs = serde_json::from_str(&output(&mut command)?)?;
    if (theirs.references, theirs.blocks) != (survey.references, survey.lines) {
        return Err(format!("{}: the two read different traces", trace.name).into());
    }
    for point in &theirs.points {
        let lines = point.lines;
        let mut note = |policy: &str, ours: f64, peer: &str, theirs: f64, most: Option<f64>| {
            let case = format!("{}, {lines} lines: {policy}", trace.name);
            if most.is_some_and(|most| (ours - theirs).abs() > most) {
                failures.push(format!("{case}: {ours:.3} %, {peer} {theirs:.3} %"));
            }
            let (unit, peer) = ("%".to_owned(), peer.to_owned());
            rows.push(Measured { case, unit, ours, peer, theirs });
        };
        let (lru, fifo) = (point.lru * 100.0, point.fifo * 100.0);
        note("exact lru", first.percent("exact", lines)?, "LRU", lru, Some(EXACT));
        note("lru", first.percent("lru", lines)?, "LRU", lru, Some(EXACT));
        note("fifo", first.percent("fifo", lines)?, "FIFO", fifo, Some(EXACT));
        note("SHARDS 0.1", first.percent("shards:0.1", lines)?, "LRU", lru, None);
        let drawn: Result<Vec<f64>, Failure> =
            drawn.iter().map(|run| run.percent("rand", lines)).collect();
        let (mean, error) = mean_and_error(&drawn?);
        // libCacheSim draws places of its hash table, not blocks: some leave more often than others.
        for (peer, all, is_fair) in
            [("Random", &point.rand, false), ("uniform draws", &point.uniform, true)]
        {
            let all: Vec<f64> = all.iter().map(|ratio| ratio * 100.0).collect();
            let (theirs, their_error) = mean_and_error(&all);
            // Four standard errors of the difference, and a hundredth for what never differs.
            let most = 4.0 * error.hypot(their_error) + EXACT / 10.0;
            note("rand, mean of 5 seeds", mean, peer, theirs, is_fair.then_some(most));
        }
        let s3fifo = first.percent("s3fifo", lines)?;
        note("s3fifo", s3fifo, "S3FIFO, same sizes", point.s3fifo * 100.0, None);
        note("s3fifo", s3fifo, "S3FIFO, its own sizes", point.s3fifo_default * 100.0, None);
        note_models(point, s3fifo, &mut note);
    }
    Ok(())
}

/// The models say what makes the difference. The model of Voltier's policy has that policy's miss
/// ratio. With whole names in the ghost and a queue as main part the model has libCacheSim's.
fn note_models(
    point: &TheirPoint,
    s3fifo: f64,
    note: &mut impl FnMut(&str, f64, &str, f64, Option<f64>),
) {
    if let Some(model) = point.s3fifo_model {
        note("s3fifo", s3fifo, "model", model * 100.0, None);
    }
    if let Some(model) = point.s3fifo_names_queue_model {
        let theirs = point.s3fifo * 100.0;
        let what = "model with names and a queue";
        note(what, model * 100.0, "S3FIFO, same sizes", theirs, Some(EXACT));
    }
}

/// Mean, and its standard error.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (mean, (squares / (count - 1.0).max(1.0) / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_mean_falls_with_the_number_of_values() {
        let (mean, error) = mean_and_error(&[1.0, 2.0, 3.0]);
        assert!((mean - 2.0).abs() < 1e-9 && (error - (1.0_f64 / 3.0).sqrt()).abs() < 1e-9);
        assert!(mean_and_error(&[5.0; 4]).1.abs() < 1e-9);
    }
}
