//! The make-up of a trace: requests, bytes, sizes, order, rate over time, reuse.

use std::path::PathBuf;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use voltier_results::LabError;
use voltier_results::Stop;
use voltier_results::size::format_bytes;
use voltier_results::table::{figure, percent, render};

use super::lines::{Numbering, is_data, references};
use super::mrc::{Distances, Stack, for_each};
use super::read::Broken;
use super::{Op, ReadOptions, Request, Source};

/// Streams that a volume's requests may go on with: as many as a drive would notice at once.
const STREAMS: usize = 16;

/// Intervals at most; when there are more, neighbours are added.
const INTERVALS: usize = 64;

/// The first length of an interval: a millisecond.
const INTERVAL_NS: u64 = 1_000_000;

/// Volumes that are listed for people.
const VOLUMES_SHOWN: usize = 10;

/// Requests of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Direction {
    /// How many.
    pub requests: u64,
    /// Bytes of the requests.
    pub bytes: u64,
    /// Those that begin where one of the volume's last sixteen streams ended.
    pub sequential: u64,
    /// Different lines.
    pub lines: u64,
}

/// One volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VolumeStats {
    /// As the trace names it.
    pub name: String,
    /// Requests to the volume.
    pub requests: u64,
    /// Bytes of these requests.
    pub bytes: u64,
    /// Where the last of its bytes ends.
    pub end: u64,
}

/// How far references are from the last one to their line, in other lines.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Reuse {
    /// Line references.
    pub references: u64,
    /// Those that are the first of their line.
    pub first: u64,
    /// Bytes of different lines between two references to one, for tenths of the reused: 10 % to 90 %.
    pub distance_deciles_bytes: Vec<u64>,
}

/// Requests over time, in intervals of one length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Intervals {
    /// Length of an interval.
    pub seconds: f64,
    /// Requests of each interval.
    pub requests: Vec<u64>,
}

impl Serialize for Intervals {
    /// Under the keys of today, and under those of the first releases.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(4))?;
        map.serialize_entry("interval_seconds", &self.seconds)?;
        map.serialize_entry("intervals", &self.requests)?;
        map.serialize_entry("stretch_seconds", &self.seconds)?;
        map.serialize_entry("stretches", &self.requests)?;
        map.end()
    }
}

/// A trace described.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// The files.
    pub files: Vec<PathBuf>,
    /// The formats of the files.
    pub formats: Vec<String>,
    /// Reads.
    pub reads: Direction,
    /// Writes.
    pub writes: Direction,
    /// Discards.
    pub discards: Direction,
    /// Bytes of a line in what is told of lines.
    pub line_bytes: u64,
    /// Different lines that are read or written.
    pub lines: u64,
    /// Requests of reads and writes by size: the power of two that holds them, and how many.
    pub sizes: Vec<(u64, u64)>,
    /// From the first to the last request; `None` in formats without times.
    pub seconds: Option<f64>,
    /// Requests that are earlier than the one before them.
    pub out_of_order: u64,
    /// Requests over time.
    #[serde(flatten)]
    pub intervals: Intervals,
    /// Reuse of lines.
    pub reuse: Reuse,
    /// The volumes, in the order in which they were met.
    pub volumes: Vec<VolumeStats>,
    /// Records that could not be read.
    pub broken: Broken,
}

/// Describes a trace in one pass.
///
/// # Errors
/// One line: a file cannot be read, or the user asked to stop.
pub fn stats(
    files: &[PathBuf],
    options: &ReadOptions,
    line_bytes: u64,
    stop: &Stop,
) -> Result<Stats, LabError> {
    let mut source = Source::open(files, options)?;
    let mut tally = Tally::new(line_bytes);
    for_each(&mut source, false, stop, |request| tally.take(request))?;
    let mut stats = tally.stats();
    stats.files = files.to_vec();
    stats.formats = source.formats().iter().map(ToString::to_string).collect();
    stats.broken = source.broken();
    if !source.has_times() {
        (stats.seconds, stats.out_of_order) = (None, 0);
        stats.intervals.requests.clear();
    }
    for (volume, name) in stats.volumes.iter_mut().zip(source.volumes()) {
        volume.name.clone_from(name);
    }
    Ok(stats)
}

struct Tally {
    stats: Stats,
    sizes: [u64; 64],
    numbering: Numbering,
    /// Whether each line was read, and written.
    met: Vec<[bool; 2]>,
    stack: Stack,
    distances: Distances,
    /// Ends of each volume's last streams, and which is the oldest.
    streams: Vec<([u64; STREAMS], usize)>,
    time: Option<Time>,
}

struct Time {
    first_ns: u64,
    last_ns: u64,
    previous_ns: u64,
    interval_ns: u64,
}

impl Tally {
    fn new(line_bytes: u64) -> Tally {
        Tally {
            stats: Stats { line_bytes, ..Stats::default() },
            sizes: [0; 64],
            numbering: Numbering::new(),
            met: Vec::new(),
            stack: Stack::new(),
            distances: Distances::default(),
            streams: Vec::new(),
            time: None,
        }
    }

    fn take(&mut self, request: &Request) -> Result<(), LabError> {
        self.at(request.at_ns);
        let volume = request.volume as usize;
        if self.streams.len() <= volume {
            self.streams.resize(volume + 1, ([u64::MAX; STREAMS], 0));
            self.stats.volumes.resize(volume + 1, VolumeStats::default());
        }
        let end = request.offset + request.bytes;
        let of_volume = &mut self.stats.volumes[volume];
        of_volume.requests += 1;
        of_volume.bytes += request.bytes;
        of_volume.end = of_volume.end.max(end);
        let (streams, oldest) = &mut self.streams[volume];
        let goes_on = streams.iter().position(|stream| *stream == request.offset);
        let place = goes_on.unwrap_or(*oldest);
        if goes_on.is_none() {
            *oldest = (*oldest + 1) % STREAMS;
        }
        streams[place] = end;
        let direction = match request.op {
            Op::Read => &mut self.stats.reads,
            Op::Write => &mut self.stats.writes,
            Op::Discard => &mut self.stats.discards,
        };
        direction.requests += 1;
        direction.bytes += request.bytes;
        direction.sequential += u64::from(goes_on.is_some());
        if is_data(request) { self.lines(request) } else { Ok(()) }
    }

    fn lines(&mut self, request: &Request) -> Result<(), LabError> {
        self.sizes[request.bytes.next_power_of_two().trailing_zeros() as usize] += 1;
        let is_write = request.op == Op::Write;
        for reference in references(request, self.stats.line_bytes) {
            let line = self.numbering.number(reference.key)?;
            if self.met.len() <= line as usize {
                self.met.push([false; 2]);
            }
            let met = &mut self.met[line as usize][usize::from(is_write)];
            let direction = if is_write { &mut self.stats.writes } else { &mut self.stats.reads };
            direction.lines += u64::from(!std::mem::replace(met, true));
            self.stats.reuse.references += 1;
            match self.stack.touch(line) {
                Some(distance) => self.distances.record(distance),
                None => self.stats.reuse.first += 1,
            }
        }
        Ok(())
    }

    fn at(&mut self, at_ns: u64) {
        let time = self.time.get_or_insert(Time {
            first_ns: at_ns,
            last_ns: at_ns,
            previous_ns: at_ns,
            interval_ns: INTERVAL_NS,
        });
        self.stats.out_of_order += u64::from(at_ns < time.previous_ns);
        time.previous_ns = at_ns;
        time.last_ns = time.last_ns.max(at_ns);
        let since = at_ns.saturating_sub(time.first_ns);
        let intervals = &mut self.stats.intervals.requests;
        while since / time.interval_ns >= INTERVALS as u64 {
            *intervals = intervals.chunks(2).map(|pair| pair.iter().sum()).collect();
            time.interval_ns *= 2;
        }
        let interval = (since / time.interval_ns) as usize;
        if intervals.len() <= interval {
            intervals.resize(interval + 1, 0);
        }
        intervals[interval] += 1;
    }

    fn stats(self) -> Stats {
        let mut stats = self.stats;
        stats.lines = self.numbering.count() as u64;
        let sizes = self.sizes.iter().enumerate().filter(|(_, count)| **count > 0);
        stats.sizes = sizes.map(|(shift, count)| (1 << shift, *count)).collect();
        if let Some(time) = self.time {
            stats.seconds = Some((time.last_ns - time.first_ns) as f64 / 1e9);
            stats.intervals.seconds = time.interval_ns as f64 / 1e9;
        }
        let in_bytes = |distance: u64| distance * stats.line_bytes;
        stats.reuse.distance_deciles_bytes =
            self.distances.deciles().into_iter().map(in_bytes).collect();
        stats
    }
}

impl Stats {
    /// Everything for people.
    pub fn text(&self) -> String {
        let mut text = format!("format: {}\n", self.formats.join(", "));
        if let Some(seconds) = self.seconds {
            let requests = self.reads.requests + self.writes.requests + self.discards.requests;
            let rate = requests as f64 / seconds.max(1e-9);
            text.push_str(&format!("{} s, {} requests/s\n", figure(seconds), figure(rate)));
        }
        let rows = [("read", self.reads), ("write", self.writes), ("discard", self.discards)];
        let rows: Vec<Vec<String>> = rows
            .into_iter()
            .filter(|(_, direction)| direction.requests > 0)
            .map(|(name, direction)| self.row(name, direction))
            .collect();
        let headings = ["", "requests", "bytes", "mean", "sequential", "footprint"];
        text.push_str(&render(&headings, &rows));
        let all = size_of(self.lines * self.line_bytes);
        text.push_str(&format!(
            "footprint: {all} in {} lines of {}\n",
            figure(self.lines as f64),
            format_bytes(self.line_bytes)
        ));
        let reused = self.reuse.references - self.reuse.first;
        let share = reused as f64 / self.reuse.references.max(1) as f64;
        text.push_str(&format!("line references that are reuse: {}", percent(share)));
        if let [_, _, _, _, middle, .., far] = self.reuse.distance_deciles_bytes.as_slice() {
            let (middle, far) = (size_of(*middle), size_of(*far));
            text.push_str(&format!(
                ", half within {middle} of other lines, nine tenths within {far}"
            ));
        }
        text.push_str("\n\n");
        let total: u64 = self.sizes.iter().map(|(_, count)| count).sum();
        let share = |count: u64| percent(count as f64 / total.max(1) as f64);
        let rows: Vec<Vec<String>> = self
            .sizes
            .iter()
            .map(|(size, count)| vec![format_bytes(*size), figure(*count as f64), share(*count)])
            .collect();
        text.push_str(&render(&["size up to", "requests", "share"], &rows));
        text.push_str(&self.over_time());
        text.push_str(&self.of_volumes());
        if let Some(first) = &self.broken.first {
            let records = self.broken.records;
            text.push_str(&format!(
                "{records} broken records were passed over; the first: {first}\n"
            ));
        }
        text
    }

    fn row(&self, name: &str, direction: Direction) -> Vec<String> {
        let Direction { requests, bytes, sequential, lines } = direction;
        vec![
            name.to_owned(),
            figure(requests as f64),
            size_of(bytes),
            size_of(bytes / requests.max(1)),
            percent(sequential as f64 / requests.max(1) as f64),
            if lines == 0 { "-".to_owned() } else { size_of(lines * self.line_bytes) },
        ]
    }

    fn over_time(&self) -> String {
        let intervals = &self.intervals.requests;
        let Some(most) = intervals.iter().max().filter(|_| intervals.len() > 1) else {
            return String::new();
        };
        let levels: Vec<char> = " .:-=+*#%@".chars().collect();
        let level =
            |count: &u64| levels[(count * (levels.len() as u64 - 1)).div_ceil(*most) as usize];
        let line: String = intervals.iter().map(level).collect();
        let mut text = format!(
            "\nrequests over time, {} s a column, {} at most\n|{line}|\n",
            figure(self.intervals.seconds),
            figure(*most as f64)
        );
        if self.out_of_order > 0 {
            let late = figure(self.out_of_order as f64);
            text.push_str(&format!("{late} requests are earlier than the one before them\n"));
        }
        text
    }

    fn of_volumes(&self) -> String {
        let mut volumes: Vec<&VolumeStats> = self.volumes.iter().collect();
        volumes.sort_by_key(|volume| std::cmp::Reverse(volume.requests));
        let row = |volume: &&VolumeStats| {
            let VolumeStats { name, requests, bytes, end } = volume;
            vec![name.clone(), figure(*requests as f64), size_of(*bytes), size_of(*end)]
        };
        let rows: Vec<Vec<String>> = volumes.iter().take(VOLUMES_SHOWN).map(row).collect();
        let mut text =
            format!("\n{}", render(&["volume", "requests", "bytes", "reaches to"], &rows));
        if let Some(more) = volumes.len().checked_sub(VOLUMES_SHOWN).filter(|more| *more > 0) {
            text.push_str(&format!("and {more} more\n"));
        }
        text
    }
}

fn size_of(bytes: u64) -> String {
    voltier_results::size::bytes_in_words(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_small_trace_are_those_one_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.csv");
        let lines = "1,R,0,4096,1000000\n1,R,4096,8192,1000010\n1,W,4096,4096,1500000\n\
                     2,R,12288,4096,2000000\n1,R,0,4096,3000000\n";
        std::fs::write(&path, lines).unwrap();
        let stats = stats(&[path], &ReadOptions::default(), 4096, &Stop::default()).unwrap();
        assert_eq!(
            (stats.reads.requests, stats.reads.bytes, stats.writes.requests),
            (4, 20_480, 1)
        );
        assert_eq!((stats.reads.sequential, stats.writes.sequential), (1, 0), "{stats:?}");
        assert_eq!((stats.lines, stats.reads.lines, stats.writes.lines), (4, 4, 1));
        assert_eq!(stats.sizes, [(4096, 4), (8192, 1)]);
        assert_eq!((stats.seconds, stats.intervals.requests.iter().sum::<u64>()), (Some(2.0), 5));
        assert_eq!((stats.reuse.references, stats.reuse.first), (6, 4));
        assert_eq!(
            stats.reuse.distance_deciles_bytes,
            [[4096; 5].as_slice(), &[12_288; 4]].concat()
        );
        let ends: Vec<(&str, u64)> =
            stats.volumes.iter().map(|volume| (volume.name.as_str(), volume.end)).collect();
        assert_eq!(ends, [("1", 12_288), ("2", 16_384)]);
        let text = stats.text();
        assert!(text.contains("alibaba") && text.contains("reaches to"), "{text}");
    }

    #[test]
    fn intervals_of_time_stay_few_however_long_the_trace_is() {
        let mut tally = Tally::new(4096);
        for step in 0..1000_u64 {
            tally.at(step * step * 1_000_000_000);
        }
        let stats = tally.stats();
        assert!((INTERVALS / 2 + 1..=INTERVALS).contains(&stats.intervals.requests.len()));
        assert_eq!(stats.intervals.requests.iter().sum::<u64>(), 1000);
    }
}
