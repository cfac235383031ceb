//! Oracle Orion: small random and large requests at the same time, in a matrix of loads.
//!
//! A point holds a number of small requests in flight (column) and of large ones, or streams (row).
//! Run levels, ladders and counts of points are those of Orion 11 and 12.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use voltier_results::result::{Access, Axes};

use super::jobs::{fill_group, once, timed};
use super::step::{Group, Load, Planned, Subject, Work};
use super::values::{ByteSize, Extent, check, time};
use crate::fio::{Job, Pattern, Until};

/// Unmeasured random requests before a large sequential point when no cache size is given.
const WARM_UP: Duration = Duration::from_secs(120);

/// A ladder has about so many rungs at most.
const RUNGS: u32 = 20;

/// The plan `orion`. Keys are Orion's options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Orion {
    /// Run level: `simple`, `normal`, `advanced`, `oltp`, `dss`.
    pub run: String,
    /// First part of the names of Orion's files.
    pub testname: String,
    /// Range of the loads; 0: as many as there are targets.
    pub num_disks: u32,
    /// Bytes of a small request (Orion counts KB).
    pub size_small: ByteSize,
    /// Bytes of a large request.
    pub size_large: ByteSize,
    /// Large requests: `rand` or `seq`.
    #[serde(rename = "type")]
    pub large_type: String,
    /// Requests in flight of each sequential stream.
    pub num_stream_io: u32,
    /// Several targets together: `concat` or `raid0`.
    pub simulate: String,
    /// Stripe of `raid0`.
    pub stripe: ByteSize,
    /// Share of writes of small and large requests, percent.
    pub write: u8,
    /// MiB of random requests before each large sequential point; 0: none, -1: two minutes of them.
    pub cache_size: i64,
    /// Seconds of each point (Orion's `duration`).
    pub seconds: f64,
    /// Of `advanced`: `basic`, `detailed`, `point`, `col`, `row`, `max`.
    pub matrix: String,
    /// Small load of `point` and `col`, the highest of `max`; -1: not given.
    pub num_small: i64,
    /// Large load of `point` and `row`, the highest of `max`; -1: not given.
    pub num_large: i64,
    /// How much of each target is used.
    pub size: Extent,
}

/// The loads of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Small and large load of each point in order, the idle one left out.
    pub loads: Vec<(u32, u32)>,
    /// Points as Orion counts them: it counts the idle one where the matrix has it.
    pub counted: usize,
}

impl Orion {
    pub(super) fn new(quick: bool) -> Orion {
        Orion {
            run: "simple".to_owned(),
            testname: "orion".to_owned(),
            num_disks: 0,
            size_small: ByteSize(8 << 10),
            size_large: ByteSize(1 << 20),
            large_type: "rand".to_owned(),
            num_stream_io: 4,
            simulate: "concat".to_owned(),
            stripe: ByteSize(1 << 20),
            write: 0,
            cache_size: if quick { 0 } else { -1 },
            seconds: if quick { 1.0 } else { 60.0 },
            matrix: "basic".to_owned(),
            num_small: -1,
            num_large: -1,
            size: if quick { Extent::Bytes(256 << 20) } else { Extent::Whole },
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        check(self.seconds, &[self.size_small, self.size_large])?;
        let word = |name: &str, value: &str, known: &[&str]| {
            super::values::known_words(name, &[value.to_owned()], known)
        };
        word("run", &self.run, &["simple", "normal", "advanced", "oltp", "dss"])?;
        word("type", &self.large_type, &["rand", "seq"])?;
        word("simulate", &self.simulate, &["concat", "raid0"])?;
        let matrices = ["basic", "detailed", "point", "col", "row", "max"];
        word("matrix", &self.matrix, &matrices)?;
        super::values::percentages("write", &[self.write])?;
        super::values::counts("num_stream_io", &[self.num_stream_io])?;
        if self.run != "advanced" {
            return Ok(());
        }
        let (small, large) = match self.matrix.as_str() {
            "point" | "max" => (true, true),
            "col" => (true, false),
            "row" => (false, true),
            _ => (false, false),
        };
        for (name, value, is_needed) in
            [("num_small", self.num_small, small), ("num_large", self.num_large, large)]
        {
            if is_needed && !(0..=1 << 16).contains(&value) {
                return Err(format!(
                    "the matrix `{}` needs {name}: give a load from 0",
                    self.matrix
                ));
            }
        }
        if matches!(self.matrix.as_str(), "point" | "max") && self.num_small + self.num_large == 0 {
            return Err("num_small and num_large are both 0: nothing to measure".to_owned());
        }
        Ok(())
    }

    /// The loads for a number of drives.
    pub fn matrix(&self, drives: u32) -> Matrix {
        let drives = if self.num_disks > 0 { self.num_disks } else { drives.max(1) };
        let (small, large) = (ladder(5 * drives), ladder(2 * drives));
        let multiples = |most: u32| (1..=most).map(|k| k * drives).collect::<Vec<u32>>();
        let given = |value: i64| u32::try_from(value).unwrap_or(0);
        let matrix = match (self.run.as_str(), self.matrix.as_str()) {
            ("oltp", _) => return Matrix::of(&multiples(20), &[0]),
            ("dss", _) => return Matrix::of(&[0], &multiples(15)),
            ("simple", _) => "basic",
            ("normal", _) => "detailed",
            (_, matrix) => matrix,
        };
        match matrix {
            "detailed" => Matrix::of(&small, &large),
            "point" => Matrix::of(&[given(self.num_small)], &[given(self.num_large)]),
            "col" => Matrix::of(&[given(self.num_small)], &large),
            "row" => Matrix::of(&small, &[given(self.num_large)]),
            "max" => Matrix::of(&ladder(given(self.num_small)), &ladder(given(self.num_large))),
            _ => {
                let mut matrix = Matrix::of(&small, &[0]);
                matrix.loads.extend(large[1..].iter().map(|large| (0, *large)));
                matrix.counted = small.len() + large.len() - 1;
                matrix
            }
        }
    }

    pub(super) fn groups(&self, subjects: &[Subject]) -> Vec<Group> {
        let mut groups = Vec::new();
        for subject in subjects {
            if subject.is_new {
                groups.push(fill_group(subject, "fill"));
            }
            let points = self.matrix(subject.luns).loads.into_iter();
            let points = points.map(|load| self.point(subject, load)).collect();
            groups.push(once(subject, points));
        }
        groups
    }

    /// Whether the targets together behave as `raid0` of the plan's stripe does. No request lies across
    /// two stripes then, random ones meet every target alike, and streams go from one to the next.
    pub fn is_striped(&self) -> bool {
        let is_whole = |request: ByteSize| self.stripe.0.is_multiple_of(request.0.max(1));
        self.simulate == "raid0" && is_whole(self.size_small) && is_whole(self.size_large)
    }

    fn point(&self, subject: &Subject, (small, large): (u32, u32)) -> Planned {
        let (size_bytes, luns) = (subject.size_bytes, u64::from(subject.luns.max(1)));
        let read = 100 - self.write;
        let part = (size_bytes, time(self.seconds));
        let is_sequential = self.large_type == "seq";
        let mut load = Load::default();
        if small > 0 {
            let pattern = Pattern::of(true, read);
            load.jobs.push(timed("small", pattern, self.size_small.0, (1, small), part));
        }
        if large > 0 {
            let pattern = Pattern::of(!is_sequential, read);
            let shape = if is_sequential { (large, self.num_stream_io) } else { (1, large) };
            let mut job = timed("large", pattern, self.size_large.0, shape, part);
            if is_sequential && large > 1 {
                // Streams keep apart, on each target: none reads what another has just read.
                let part = size_bytes / luns / u64::from(large);
                let apart = part / self.size_large.0 * self.size_large.0;
                job.size_bytes = apart.max(self.size_large.0) * luns;
                job.more.push(("offset_increment", apart.to_string()));
            }
            if is_sequential && luns > 1 && self.is_striped() {
                let in_stripe = self.stripe.0 / self.size_large.0;
                job.more.push(("file_service_type", format!("roundrobin:{in_stripe}")));
            }
            load.jobs.push(job);
            load.warm_up = self.warm_up(size_bytes).filter(|_| is_sequential);
        }
        let axes = Axes {
            phase: "orion".to_owned(),
            access: Some(if is_sequential { Access::Sequential } else { Access::Random }),
            read_percent: Some(read),
            small: Some(small),
            large: Some(large),
            stream_depth: is_sequential.then_some(self.num_stream_io),
            ..Axes::default()
        };
        Planned::measured(axes, Work::Load(load))
    }

    fn warm_up(&self, size_bytes: u64) -> Option<Job> {
        if self.cache_size == 0 {
            return None;
        }
        let pattern = Pattern::of(true, if self.write > 0 { 0 } else { 100 });
        let mut job = timed("warm_up", pattern, 1 << 20, (1, 16), (size_bytes, WARM_UP));
        if let Ok(mib) = u64::try_from(self.cache_size) {
            job.until = Until::Once;
            job.more.push(("io_size", (mib << 20).to_string()));
        }
        Some(job)
    }
}

impl Matrix {
    /// All combinations, row by row.
    fn of(small: &[u32], large: &[u32]) -> Matrix {
        let all = large.iter().flat_map(|large| small.iter().map(move |small| (*small, *large)));
        let loads: Vec<(u32, u32)> = all.filter(|load| *load != (0, 0)).collect();
        Matrix { loads, counted: small.len() * large.len() }
    }
}

/// Loads from 0 to `most`: every one up to 20, thinned above (0, 1, 2, 4, 6, ... 40).
pub fn ladder(most: u32) -> Vec<u32> {
    let step = most.div_ceil(RUNGS).max(1);
    let mut rungs = vec![0];
    if step > 1 {
        rungs.push(1);
    }
    rungs.extend((1..=most / step).map(|k| k * step));
    if rungs.last() != Some(&most) {
        rungs.push(most);
    }
    rungs
}

/// Settings of the plan from Orion's command line (`-run simple -num_disks 8`), as TOML values.
///
/// # Errors
/// One line that names the option and the nearest known one.
pub fn settings_of(options: &[String]) -> Result<toml::Table, String> {
    const KNOWN: [&str; 17] = [
        "run",
        "testname",
        "num_disks",
        "size_small",
        "size_large",
        "type",
        "num_streamIO",
        "simulate",
        "stripe",
        "write",
        "cache_size",
        "duration",
        "matrix",
        "num_small",
        "num_large",
        "storax",
        "hugenotneeded",
    ];
    let mut settings = toml::Table::new();
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let name = word.trim_start_matches('-');
        if !word.starts_with('-') || !(KNOWN.contains(&name) || name == "verbose") {
            let known: Vec<String> = KNOWN.iter().map(|known| format!("-{known}")).collect();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let word = if word.starts_with('-') { word.clone() } else { format!("-{word}") };
            return Err(super::values::unknown("Orion option", &word, &known));
        }
        if matches!(name, "hugenotneeded" | "verbose") {
            continue;
        }
        let value = words.next().ok_or_else(|| format!("-{name} needs a value"))?;
        let number = || {
            value.parse::<i64>().map_err(|_| format!("-{name} {value}: a whole number is needed"))
        };
        let text = |text: String| toml::Value::String(text);
        let (key, value) = match name {
            "run" | "testname" | "type" | "simulate" | "matrix" => (name, text(value.clone())),
            "size_small" | "size_large" | "stripe" => (name, text(format!("{}K", number()?))),
            "num_streamIO" => ("num_stream_io", toml::Value::Integer(number()?)),
            "duration" => ("seconds", toml::Value::Float(number()? as f64)),
            // The layer through which Orion does its I/O: fio has its own.
            "storax" => continue,
            _ => (name, toml::Value::Integer(number()?)),
        };
        settings.insert(key.to_owned(), value);
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(run: &str) -> Orion {
        Orion { run: run.to_owned(), ..Orion::new(false) }
    }

    #[test]
    fn ladders_are_orions() {
        assert_eq!(ladder(5), [0, 1, 2, 3, 4, 5]);
        assert_eq!(ladder(10), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        let forty = ladder(40);
        assert_eq!(forty[..5], [0, 1, 2, 4, 6]);
        assert_eq!((forty.len(), forty.last()), (22, Some(&40)));
        assert_eq!(ladder(16).len(), 17);
        assert_eq!(ladder(0), [0]);
    }

    #[test]
    fn point_counts_are_those_of_stored_outputs() {
        assert_eq!(level("simple").matrix(1).counted, 8);
        assert_eq!(level("simple").matrix(8).counted, 38);
        assert_eq!(level("simple").matrix(8).loads.len(), 37, "the idle one is not measured");
        assert_eq!(level("normal").matrix(2).counted, 11 * 5);
        let oltp = level("oltp").matrix(4).loads;
        assert_eq!((oltp.len(), oltp[0], oltp[16], oltp[19]), (20, (4, 0), (68, 0), (80, 0)));
        let dss = level("dss").matrix(1).loads;
        assert_eq!((dss.len(), dss[0], dss[14]), (15, (0, 1), (0, 15)));
    }

    #[test]
    fn advanced_matrices_vary_what_they_name() {
        let advanced = |matrix: &str, small, large| {
            let orion = Orion {
                matrix: matrix.to_owned(),
                num_small: small,
                num_large: large,
                ..level("advanced")
            };
            orion.check().unwrap();
            orion.matrix(1).loads
        };
        assert_eq!(advanced("point", 3, 2), [(3, 2)]);
        assert_eq!(advanced("col", 3, -1), [(3, 0), (3, 1), (3, 2)]);
        assert_eq!(advanced("row", -1, 1).len(), 6);
        let all = advanced("max", 64, 16);
        assert!(all.contains(&(64, 16)) && all.contains(&(0, 16)) && !all.contains(&(0, 0)));
        let missing = Orion { matrix: "row".to_owned(), ..level("advanced") };
        assert!(missing.check().unwrap_err().contains("num_large"));
    }

    #[test]
    fn streams_over_raid0_go_from_stripe_to_stripe() {
        let subject = Subject {
            name: "luns".to_owned(),
            size_bytes: 64 << 20,
            luns: 2,
            ..Subject::default()
        };
        let orion = |stripe| Orion {
            large_type: "seq".to_owned(),
            simulate: "raid0".to_owned(),
            stripe: ByteSize(stripe),
            ..level("normal")
        };
        let more = |orion: &Orion, large| {
            let Work::Load(load) = orion.point(&subject, (0, large)).work else { panic!("a load") };
            (load.jobs[0].size_bytes, load.jobs[0].more.clone())
        };
        let striped = |count: u32| ("file_service_type", format!("roundrobin:{count}"));
        assert_eq!(more(&orion(1 << 20), 1), (64 << 20, vec![striped(1)]));
        let apart = ("offset_increment", (8 << 20).to_string());
        assert_eq!(more(&orion(4 << 20), 4), (16 << 20, vec![apart.clone(), striped(4)]));
        assert_eq!(
            more(&orion(3 << 19), 4).1,
            [apart],
            "requests across stripes cannot be laid out"
        );
        assert!(!level("normal").is_striped());
    }

    #[test]
    fn orions_own_options_become_settings() {
        let words = "-run advanced -size_small 8 -size_large 128 -type seq -write 20 -matrix max \
                     -num_small 64 -num_large 16 -duration 60 -hugenotneeded -verbose";
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let settings = settings_of(&words).unwrap();
        assert_eq!(settings["size_large"].as_str(), Some("128K"));
        assert_eq!(settings["num_small"].as_integer(), Some(64));
        assert_eq!(settings["seconds"].as_float(), Some(60.0));
        let error = settings_of(&["-num_disk".to_owned(), "2".to_owned()]).unwrap_err();
        assert!(error.contains("did you mean `-num_disks`?"), "{error}");
        assert!(settings_of(&["-write".to_owned()]).unwrap_err().contains("needs a value"));
    }
}
