//! Curves of a trace, and their forms: a table and a drawing of characters, CSV, the points of a run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use voltier_results::result::{Axes, Environment, Manifest, Point, Run, TargetInfo};
use voltier_results::size::{bytes_in_words, format_bytes};
use voltier_results::table::{figure, render};

use crate::read::Broken;

/// Columns and rows of the drawing.
const COLUMNS: usize = 64;
const ROWS: usize = 16;

/// The marks that draw the first curves, in their order.
const MARKS: [char; 8] = ['*', 'o', 'x', '+', '#', '%', '@', '='];

/// One size on a curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// Lines it holds.
    pub lines: u64,
    /// Share of references that miss.
    pub miss_ratio: f64,
    /// Of reads alone, where they are told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_miss_ratio: Option<f64>,
    /// Of writes alone, where they are told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_miss_ratio: Option<f64>,
}

/// One curve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// How it was made, as [`Method`](super::Method) is written.
    pub name: String,
    /// Share of the lines that were looked at: 1 but for SHARDS.
    pub rate: f64,
    /// Memory that it took, without the numbers of the lines; of replayed policies the largest cache.
    pub memory_bytes: u64,
    /// The points of the curve by size.
    pub points: Vec<CurvePoint>,
}

/// Curves of a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curves {
    /// The files.
    pub files: Vec<PathBuf>,
    /// The formats of the files.
    pub formats: Vec<String>,
    /// Requests that were read.
    pub requests: u64,
    /// Discards among them, which touch no line.
    pub discards: u64,
    /// Lines that they touched, one after the other.
    pub references: u64,
    /// Different lines; an estimate where only SHARDS looked at them.
    pub lines: u64,
    /// Bytes of a line.
    pub line_bytes: u64,
    /// The cache's mode.
    pub mode: String,
    /// Writes were left out.
    pub is_reads_only: bool,
    /// Records that could not be read.
    pub broken: Broken,
    /// Passes over the files.
    pub passes: u32,
    /// Time it took, reading included.
    pub seconds: f64,
    /// Memory for the numbers of the lines.
    pub numbering_bytes: u64,
    /// The curves.
    pub curves: Vec<Curve>,
}

impl Curves {
    /// Everything for people: what was read, a table by sizes, a drawing.
    pub fn text(&self) -> String {
        let footprint = self.lines.saturating_mul(self.line_bytes);
        let mut text = format!(
            "{} requests as {} references to {} lines of {} ({} in all)\n",
            figure(self.requests as f64),
            figure(self.references as f64),
            figure(self.lines as f64),
            format_bytes(self.line_bytes),
            bytes_in_words(footprint)
        );
        text.push_str(&format!("{}\n\n", self.kept()));
        text.push_str(&self.table());
        text.push('\n');
        text.push_str(&self.drawing());
        let rate = self.references as f64 * f64::from(self.passes) / self.seconds.max(1e-9);
        text.push_str(&format!(
            "\n{} passes in {:.2} s, {} million references/s; memory: {} for line numbers",
            self.passes,
            self.seconds,
            figure(rate / 1e6),
            bytes_in_words(self.numbering_bytes)
        ));
        for curve in &self.curves {
            text.push_str(&format!(", {} for {}", bytes_in_words(curve.memory_bytes), curve.name));
        }
        text.push('\n');
        if let Some(first) = &self.broken.first {
            let records = self.broken.records;
            text.push_str(&format!(
                "{records} broken records were passed over; the first: {first}\n"
            ));
        }
        text
    }

    /// The kept lines of the caches, in a sentence.
    fn kept(&self) -> String {
        let mut text = match (self.is_reads_only, self.mode.as_str()) {
            (true, _) => "reads alone; every line that is read is kept".to_owned(),
            (false, "wb") => "every line that is read or written is kept".to_owned(),
            (false, mode) => format!("lines are kept as mode {mode} keeps them"),
        };
        if self.discards > 0 {
            text.push_str(&format!("; {} discards are left out", figure(self.discards as f64)));
        }
        text
    }

    /// Sizes of all curves, ascending.
    fn sizes(&self) -> BTreeMap<u64, u64> {
        let points = self.curves.iter().flat_map(|curve| &curve.points);
        points.map(|point| (point.lines, point.cache_bytes)).collect()
    }

    fn table(&self) -> String {
        let mut headings = vec!["cache", "lines"];
        headings.extend(self.curves.iter().map(|curve| curve.name.as_str()));
        let row =
            |(lines, bytes): (&u64, &u64)| {
                let mut cells = vec![bytes_in_words(*bytes), figure(*lines as f64)];
                for curve in &self.curves {
                    let point = curve.points.iter().find(|point| point.lines == *lines);
                    cells.push(point.map_or("-".to_owned(), |point| {
                        format!("{:.2} %", point.miss_ratio * 100.0)
                    }));
                }
                cells
            };
        let rows: Vec<Vec<String>> = self.sizes().iter().map(row).collect();
        format!("miss ratio of line references\n{}", render(&headings, &rows))
    }

    /// Miss ratio over the logarithm of the size.
    fn drawing(&self) -> String {
        let sizes = self.sizes();
        let (Some((first, _)), Some((last, _))) = (sizes.first_key_value(), sizes.last_key_value())
        else {
            return String::new();
        };
        if first == last {
            return String::new();
        }
        let span = (*last as f64 / *first as f64).ln();
        let column = |lines: u64| {
            let share = (lines as f64 / *first as f64).ln() / span;
            (share * (COLUMNS - 1) as f64).round() as usize
        };
        let mut cells = vec![[' '; COLUMNS]; ROWS + 1];
        // The first curves are drawn last: they lie on top.
        for (curve, mark) in self.curves.iter().zip(MARKS).rev() {
            draw(&mut cells, curve, mark, &column);
        }
        let mut text = String::new();
        for (row, line) in cells.iter().enumerate() {
            let percent = 100 - row * 100 / ROWS;
            let label = if row % 4 == 0 { format!("{percent:>4} %") } else { " ".repeat(6) };
            let line: String = line.iter().collect();
            text.push_str(format!("{label} |{line}").trim_end());
            text.push('\n');
        }
        let ends = [sizes[first], sizes[last]].map(bytes_in_words);
        let room = COLUMNS.saturating_sub(ends[0].len());
        text.push_str(&format!("       +{}\n", "-".repeat(COLUMNS)));
        text.push_str(&format!("        {}{:>room$}\n", ends[0], ends[1]));
        let legend: Vec<String> = self
            .curves
            .iter()
            .zip(MARKS)
            .map(|(curve, mark)| format!("{mark} {}", curve.name))
            .collect();
        text.push_str(&format!("        {}\n", legend.join("   ")));
        text
    }

    /// All points as comma-separated values, a line for each curve and size.
    pub fn csv(&self) -> String {
        let mut text =
            "curve,cache_bytes,lines,miss_ratio,read_miss_ratio,write_miss_ratio\n".to_owned();
        let cell = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.6}"));
        for curve in &self.curves {
            for point in &curve.points {
                let CurvePoint { cache_bytes, lines, miss_ratio, .. } = point;
                text.push_str(&format!(
                    "{},{cache_bytes},{lines},{miss_ratio:.6},{},{}\n",
                    curve.name,
                    cell(point.read_miss_ratio),
                    cell(point.write_miss_ratio)
                ));
            }
        }
        text
    }

    /// The curves as a run, a point for each curve and size, named `name` and made in `environment`.
    pub fn run(&self, name: &str, started_unix_ms: u64, environment: Environment) -> Run {
        let first = self.files.first().map(|path| path.display().to_string()).unwrap_or_default();
        let target = TargetInfo {
            name: "trace".to_owned(),
            given: first,
            kind: "trace".to_owned(),
            size_bytes: self.lines.saturating_mul(self.line_bytes),
            facts: BTreeMap::from([("format".to_owned(), self.formats.join(", "))]),
        };
        let mut notes = vec![self.kept()];
        notes.extend(self.broken.first.as_ref().map(|first| {
            format!("{} broken records were passed over; the first: {first}", self.broken.records)
        }));
        let manifest = Manifest {
            run: name.to_owned(),
            plan: "mrc".to_owned(),
            started_unix_ms,
            tool: format!("voltier {}", env!("CARGO_PKG_VERSION")),
            targets: vec![target],
            environment,
            notes,
            ..Manifest::default()
        };
        let points = self.curves.iter().flat_map(|curve| {
            curve.points.iter().map(move |point| self.point(curve, point, started_unix_ms))
        });
        Run { manifest, points: points.collect(), is_ended: true, ..Run::default() }
    }

    fn point(&self, curve: &Curve, point: &CurvePoint, started_unix_ms: u64) -> Point {
        let mut metrics = BTreeMap::from([("miss_ratio".to_owned(), point.miss_ratio)]);
        let mut add = |name: &str, value: Option<f64>| {
            metrics.extend(value.map(|value| (name.to_owned(), value)));
        };
        add("read_miss_ratio", point.read_miss_ratio);
        add("write_miss_ratio", point.write_miss_ratio);
        Point {
            id: format!("trace/{}/bs={}/cache={}", curve.name, self.line_bytes, point.cache_bytes),
            axes: Axes {
                target: "trace".to_owned(),
                phase: curve.name.clone(),
                block_bytes: Some(self.line_bytes),
                cache_bytes: Some(point.cache_bytes),
                ..Axes::default()
            },
            started_unix_ms,
            metrics,
            ..Point::default()
        }
    }
}

/// A curve as marks, with straight lines between its points.
fn draw(cells: &mut [[char; COLUMNS]], curve: &Curve, mark: char, column: &impl Fn(u64) -> usize) {
    let mut put = |column: usize, miss_ratio: f64| {
        let row = ((1.0 - miss_ratio) * ROWS as f64).round() as usize;
        cells[row.min(ROWS)][column.min(COLUMNS - 1)] = mark;
    };
    for pair in curve.points.windows(2) {
        let [from, to] = [&pair[0], &pair[1]];
        let (first, last) = (column(from.lines), column(to.lines));
        for at in first..=last {
            let share = (at - first) as f64 / (last - first).max(1) as f64;
            put(at, from.miss_ratio + (to.miss_ratio - from.miss_ratio) * share);
        }
    }
}
