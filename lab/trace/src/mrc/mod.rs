//! Miss-ratio curves: the share of line references that a cache of each size would miss.
//!
//! There are three ways. Stack distances give the exact curve of LRU at every size in one pass. SHARDS
//! estimates that curve from a sample. The cache's own policies are replayed at each size.

mod cache;
mod curves;
mod shards;
mod stack;

pub use curves::{Curve, CurvePoint, Curves};
pub(super) use stack::{Distances, Stack};

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Instant;

pub use voltier_cache::Mode;
use voltier_cache::policy::PolicyKind;
use voltier_results::LabError;
use voltier_results::Stop;
use voltier_results::size::format_bytes;

use super::lines::{Numbering, is_data, references};
use super::{Op, ReadOptions, Source};
use cache::Replayed;
use shards::Shards;

/// Caches are replayed side by side as far as they fit in this; more passes are made for the rest.
const MEMORY_MAX: usize = 1 << 30;

/// Requests between two looks at the user's wish to stop.
const STOP_EVERY: u64 = 1 << 16;

/// Sizes of a curve when none are given: the footprint, halved so often.
const HALVINGS: u32 = 10;

/// How a curve is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// LRU by stack distances.
    Exact,
    /// LRU by SHARDS with this share of the lines.
    Shards(f64),
    /// LRU by SHARDS with so many lines at most.
    ShardsMax(u32),
    /// A policy of the cache, replayed.
    Policy(PolicyKind),
}

impl fmt::Display for Method {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Method::Exact => out.pad("exact"),
            Method::Shards(rate) => out.pad(&format!("shards:{rate}")),
            Method::ShardsMax(lines) => out.pad(&format!("shards-max:{lines}")),
            Method::Policy(kind) => kind.fmt(out),
        }
    }
}

impl FromStr for Method {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let unusable = |what: &str| format!("`{name}`: {what}");
        match name.split_once(':') {
            Some(("shards", rate)) => match rate.parse::<f64>() {
                Ok(rate) if rate > 0.0 && rate <= 1.0 => Ok(Method::Shards(rate)),
                _ => Err(unusable("give a share of the lines from 0 to 1, as shards:0.01")),
            },
            Some(("shards-max", lines)) => match lines.parse::<u32>() {
                Ok(lines) if (1..=1 << 28).contains(&lines) => Ok(Method::ShardsMax(lines)),
                _ => Err(unusable("give a number of lines, as shards-max:8192")),
            },
            _ if name == "exact" => Ok(Method::Exact),
            _ => name.parse().map(Method::Policy).map_err(|_| {
                let kinds = PolicyKind::ALL.map(PolicyKind::name).join(", ");
                unusable(&format!(
                    "no such curve: exact, shards:RATE, shards-max:LINES, or a policy: {kinds}"
                ))
            }),
        }
    }
}

/// The curves that are wanted.
#[derive(Clone, Debug)]
pub struct Question {
    /// Bytes of a line: a power of two from 512.
    pub line_bytes: u64,
    /// The mode of the caches: the requests whose lines are kept. [`Method::Exact`] and SHARDS know only
    /// caches that keep every line: write-back, or reads alone.
    pub mode: Mode,
    /// Writes are left out of the trace.
    pub is_reads_only: bool,
    /// Sizes of the cache in bytes, ascending; chosen by the footprint when there are none.
    pub sizes: Vec<u64>,
    /// The curves.
    pub methods: Vec<Method>,
    /// All the chance in `rand` and SHARDS.
    pub seed: u64,
}

impl Question {
    /// Checks that the question makes sense, before anything is read.
    ///
    /// # Errors
    /// One line.
    pub fn check(&self) -> Result<(), LabError> {
        let refuse = |name, value: String, why: String| LabError::Setting { name, value, why };
        if !self.line_bytes.is_power_of_two() || !(512..=1 << 20).contains(&self.line_bytes) {
            let why = "a line has a power of two of bytes, from 512 to 1M".to_owned();
            return Err(refuse("--line", format_bytes(self.line_bytes), why));
        }
        if let Some(size) = self.sizes.iter().find(|size| **size < self.line_bytes) {
            let why = format!("it holds no line of {}", format_bytes(self.line_bytes));
            return Err(refuse("--size", format_bytes(*size), why));
        }
        let keeps_all =
            self.mode == Mode::WriteBack || self.is_reads_only && self.mode.keeps_reads();
        let is_lru_alone = |method: &&Method| !matches!(method, Method::Policy(_));
        if let Some(method) = self.methods.iter().find(is_lru_alone)
            && !keeps_all
        {
            let why = "stack distances need a cache that keeps every line: with other modes than wb, \
                       replay the policy lru, or leave writes out with --reads-only";
            return Err(refuse("--curve", method.to_string(), why.to_owned()));
        }
        Ok(())
    }
}

/// Computes curves: one pass over the files for those of LRU, one or more for the policies.
///
/// # Errors
/// One line: a file cannot be read, sizes make no sense, the user asked to stop.
pub fn curves(
    files: &[PathBuf],
    options: &ReadOptions,
    question: &Question,
    stop: &Stop,
) -> Result<Curves, LabError> {
    question.check()?;
    #[expect(clippy::disallowed_methods, reason = "how fast curves are computed is told")]
    let begun = Instant::now();
    let mut survey = Survey::new(question);
    let mut source = Source::open(files, options)?;
    for_each(&mut source, question.is_reads_only, stop, |request| survey.take(request))?;
    if survey.references == 0 {
        return Err(LabError::Unreadable {
            path: files.first().cloned().unwrap_or_default(),
            why: "no read or write in it touches a line".to_owned(),
        });
    }
    let lines = survey.lines();
    let sizes = sizes(question, lines);
    let mut made = survey.curves(question, &sizes);
    let passes = replay(files, options, question, &survey.numbering, &sizes, stop, &mut made)?;
    let wanted = question.methods.iter().map(Method::to_string);
    let curves = wanted.filter_map(|name| made.iter().find(|curve| curve.name == name).cloned());
    Ok(Curves {
        files: files.to_vec(),
        formats: source.formats().iter().map(ToString::to_string).collect(),
        requests: survey.requests,
        discards: survey.discards,
        references: survey.references,
        lines,
        line_bytes: question.line_bytes,
        mode: question.mode.to_string(),
        is_reads_only: question.is_reads_only,
        broken: source.broken(),
        passes: passes + 1,
        seconds: begun.elapsed().as_secs_f64(),
        numbering_bytes: survey.numbering.memory_bytes() as u64,
        curves: curves.collect(),
    })
}

/// Calls `take` with every request of a trace, without the writes if they are not wanted.
pub(super) fn for_each(
    source: &mut Source,
    is_reads_only: bool,
    stop: &Stop,
    mut take: impl FnMut(&super::Request) -> Result<(), LabError>,
) -> Result<(), LabError> {
    let mut count = 0_u64;
    while let Some(request) = source.next_request()? {
        count += 1;
        if count.is_multiple_of(STOP_EVERY) {
            stop.check()?;
        }
        if !(is_reads_only && request.op == Op::Write) {
            take(&request)?;
        }
    }
    Ok(())
}

/// Sizes in lines and bytes: those that were asked for, or halves of the footprint.
fn sizes(question: &Question, lines: u64) -> Vec<(u64, u64)> {
    let mut sizes: Vec<u64> =
        question.sizes.iter().map(|size| size / question.line_bytes).collect();
    if sizes.is_empty() {
        sizes = (0..=HALVINGS).map(|halving| lines >> halving).filter(|size| *size > 0).collect();
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes.into_iter().map(|size| (size, size * question.line_bytes)).collect()
}

/// The first pass: numbers for the lines, and everything that has the curve of LRU.
struct Survey {
    line_bytes: u64,
    numbering: Numbering,
    /// Samples alone, at sizes that are given, need no numbers: their memory stays as small as they are.
    is_numbering: bool,
    stack: Option<Stack>,
    distances: Distances,
    samples: Vec<(Method, Shards)>,
    requests: u64,
    discards: u64,
    references: u64,
}

impl Survey {
    fn new(question: &Question) -> Self {
        let shards = |method: &Method| match method {
            Method::Shards(rate) => Some((*method, Shards::of_rate(*rate, question.seed))),
            Method::ShardsMax(lines) => Some((*method, Shards::of_size(*lines, question.seed))),
            _ => None,
        };
        let is_sample =
            |method: &Method| matches!(method, Method::Shards(_) | Method::ShardsMax(_));
        Self {
            line_bytes: question.line_bytes,
            numbering: Numbering::new(),
            is_numbering: question.sizes.is_empty() || !question.methods.iter().all(is_sample),
            stack: question.methods.contains(&Method::Exact).then(Stack::new),
            distances: Distances::default(),
            samples: question.methods.iter().filter_map(shards).collect(),
            requests: 0,
            discards: 0,
            references: 0,
        }
    }

    fn take(&mut self, request: &super::Request) -> Result<(), LabError> {
        self.requests += 1;
        if !is_data(request) {
            self.discards += 1;
            return Ok(());
        }
        for reference in references(request, self.line_bytes) {
            self.references += 1;
            for (_, shards) in &mut self.samples {
                shards.touch(reference.key);
            }
            if !self.is_numbering {
                continue;
            }
            let line = self.numbering.number(reference.key)?;
            if let Some(stack) = &mut self.stack
                && let Some(distance) = stack.touch(line)
            {
                self.distances.record(distance);
            }
        }
        Ok(())
    }

    /// Different lines: counted, or estimated where only samples were taken.
    fn lines(&self) -> u64 {
        match self.samples.first() {
            Some((_, shards)) if !self.is_numbering => shards.lines(),
            _ => self.numbering.count() as u64,
        }
    }

    fn curves(&self, question: &Question, sizes: &[(u64, u64)]) -> Vec<Curve> {
        let curve = |method: &Method, rate, memory_bytes, miss_ratio: &dyn Fn(u64) -> f64| Curve {
            name: method.to_string(),
            rate,
            memory_bytes: memory_bytes as u64,
            points: sizes.iter().map(|size| point(*size, miss_ratio(size.0))).collect(),
        };
        let mut curves = Vec::new();
        if let Some(stack) = &self.stack {
            let memory_bytes = stack.memory_bytes() + self.distances.memory_bytes();
            let exact = |lines: u64| {
                (self.references - self.distances.hits(lines)) as f64
                    / self.references.max(1) as f64
            };
            curves.push(curve(&Method::Exact, 1.0, memory_bytes, &exact));
        }
        for (method, shards) in &self.samples {
            let estimate = |lines: u64| shards.miss_ratio(lines);
            curves.push(curve(method, shards.rate(), shards.memory_bytes(), &estimate));
        }
        debug_assert!(curves.len() <= question.methods.len());
        curves
    }
}

fn point((lines, cache_bytes): (u64, u64), miss_ratio: f64) -> CurvePoint {
    let (read_miss_ratio, write_miss_ratio) = (None, None);
    CurvePoint { cache_bytes, lines, miss_ratio, read_miss_ratio, write_miss_ratio }
}

/// Replays the policies, as many sizes at once as fit in memory; how many passes it took.
fn replay(
    files: &[PathBuf],
    options: &ReadOptions,
    question: &Question,
    numbering: &Numbering,
    sizes: &[(u64, u64)],
    stop: &Stop,
    curves: &mut Vec<Curve>,
) -> Result<u32, LabError> {
    let kinds = question.methods.iter().filter_map(|method| match method {
        Method::Policy(kind) => Some(*kind),
        _ => None,
    });
    let wanted: Vec<(PolicyKind, (u64, u64))> =
        kinds.flat_map(|kind| sizes.iter().map(move |size| (kind, *size))).collect();
    let lines = numbering.count();
    let (mut left, mut passes) = (wanted.as_slice(), 0);
    while !left.is_empty() {
        let (mut caches, mut memory_bytes) = (Vec::new(), 0);
        while let Some(((kind, size), rest)) = left.split_first()
            && (caches.is_empty() || memory_bytes + lines * 16 < MEMORY_MAX)
        {
            // A cache that has room for all lines is full of them and evicts none.
            let capacity = size.0.min(lines.max(1) as u64);
            let cache = Replayed::new(*kind, question.mode, capacity, lines, question.seed);
            memory_bytes += cache.memory_bytes();
            caches.push((*kind, *size, cache));
            left = rest;
        }
        let mut source = Source::open(files, options)?;
        for_each(&mut source, question.is_reads_only, stop, |request| {
            if is_data(request) {
                for reference in references(request, question.line_bytes) {
                    let line = numbering.get(reference.key).ok_or_else(|| changed(files))?;
                    for (_, _, cache) in &mut caches {
                        cache.touch(line, request.op, reference.is_whole);
                    }
                }
            }
            Ok(())
        })?;
        passes += 1;
        for (kind, size, cache) in caches {
            keep(curves, &Method::Policy(kind).to_string(), size, &cache);
        }
    }
    Ok(passes)
}

fn changed(files: &[PathBuf]) -> LabError {
    LabError::Unreadable {
        path: files.first().cloned().unwrap_or_default(),
        why: "it changed while it was read: try again".to_owned(),
    }
}

fn keep(curves: &mut Vec<Curve>, name: &str, size: (u64, u64), cache: &Replayed) {
    let all = cache::Count {
        references: cache.reads.references + cache.writes.references,
        hits: cache.reads.hits + cache.writes.hits,
    };
    let point = CurvePoint {
        read_miss_ratio: cache.reads.miss_ratio(),
        write_miss_ratio: cache.writes.miss_ratio(),
        ..point(size, all.miss_ratio().unwrap_or(0.0))
    };
    let memory_bytes = cache.memory_bytes() as u64;
    match curves.iter_mut().find(|curve| curve.name == name) {
        Some(curve) => {
            curve.points.push(point);
            curve.memory_bytes = curve.memory_bytes.max(memory_bytes);
        }
        None => {
            let (name, points) = (name.to_owned(), vec![point]);
            curves.push(Curve { name, rate: 1.0, memory_bytes, points });
        }
    }
}
