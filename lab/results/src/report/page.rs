//! A report before it is laid out: sections of texts, tables and charts. HTML and Markdown are
//! made of the same.

use serde::Serialize;
use serde_json::Value;

pub(super) use crate::table::latency;

/// A table with more rows is looked up, not read.
const OPEN_MAX: usize = 24;

/// How a line of the summary is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    /// Worth knowing.
    Note,
    /// An answer.
    Answer,
    /// The figures need the remark.
    Warning,
    /// The figures cannot be used as they are.
    Error,
}

impl Tone {
    pub(super) fn word(self) -> &'static str {
        match self {
            Tone::Answer => "answer",
            Tone::Note => "note",
            Tone::Warning => "warning",
            Tone::Error => "error",
        }
    }
}

/// One line of the summary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// How it is meant.
    pub tone: Tone,
    /// A sentence or two.
    pub text: String,
}

/// The whole report.
pub(super) struct Report {
    /// The heading: what was measured, and on what.
    pub(super) title: String,
    /// When, by what.
    pub(super) subtitle: String,
    /// The verdict, the worst first, then the answers.
    pub(super) summary: Vec<Line>,
    pub(super) sections: Vec<Section>,
}

/// A heading and what stands under it.
pub(super) struct Section {
    pub(super) title: String,
    pub(super) blocks: Vec<Block>,
}

impl Section {
    pub(super) fn new(title: &str) -> Section {
        Section { title: title.to_owned(), blocks: Vec::new() }
    }

    pub(super) fn text(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Text(text.into()));
    }

    pub(super) fn table(&mut self, table: Table) {
        if !table.rows.is_empty() {
            self.blocks.push(Block::Table(table));
        }
    }

    /// Charts without a figure are left out: an empty chart looks like zero.
    pub(super) fn charts(&mut self, charts: impl IntoIterator<Item = Chart>) {
        let drawn = charts.into_iter().filter(Chart::has_figures);
        self.blocks.extend(drawn.map(|chart| Block::Chart(Box::new(chart))));
    }

    /// Open while it is short, folded under a title when it is not.
    pub(super) fn table_or_folded(&mut self, title: &str, table: Table) {
        match table.rows.len() {
            0..=OPEN_MAX => self.table(table),
            rows => self.folded(format!("{title} ({rows} rows)"), table),
        }
    }

    /// Adds a table that is long, and looked up rather than read.
    pub(super) fn folded(&mut self, title: impl Into<String>, table: Table) {
        if !table.rows.is_empty() {
            self.blocks.push(Block::Folded(title.into(), table));
        }
    }
}

/// A piece of a section.
pub(super) enum Block {
    Text(String),
    Heading(String),
    List(Vec<String>),
    Table(Table),
    /// A table behind its title.
    Folded(String, Table),
    Code(String),
    Chart(Box<Chart>),
}

/// Headings and rows of equal length.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub(super) headings: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new<H: Into<String>>(headings: impl IntoIterator<Item = H>) -> Table {
        Table { headings: headings.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.headings.len(), "{:?}", self.headings);
        self.rows.push(cells);
    }
}

/// A chart: what is drawn, the same in words, and its figures.
pub(super) struct Chart {
    pub(super) title: String,
    /// The chart in words, for those who cannot see it too.
    pub(super) caption: String,
    /// Traces as the chart library takes them.
    pub(super) traces: Vec<Value>,
    pub(super) layout: plotly::Layout,
    /// The figures of the chart.
    pub(super) table: Table,
    pub(super) is_3d: bool,
}

impl Chart {
    fn has_figures(&self) -> bool {
        let is_filled = |values: &Value| values.as_array().is_some_and(|values| !values.is_empty());
        self.traces.iter().any(|trace| is_filled(&trace["x"]) && !self.table.rows.is_empty())
    }
}

/// A value that the source does not tell is a dash, never a zero.
pub(super) fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_owned())
}

/// Bytes per second as MB/s of a million bytes.
pub(super) fn megabytes(rate: f64) -> String {
    crate::table::figure(rate / 1e6)
}

/// A figure for a cell of a chart: "149k", "38.1k", "238".
pub(super) fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}{unit}"),
        v if v >= 10.0 || !unit.is_empty() => format!("{value:.1}{unit}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_as_long_as_they_are_good() {
        for (ns, said) in [
            (850.0, "850 ns"),
            (101_600.0, "102 us"),
            (9_870.0, "9.87 us"),
            (2_441_216.0, "2.44 ms"),
            (12e9, "12.0 s"),
        ] {
            assert_eq!(latency(ns), said);
        }
        for (value, said) in
            [(148_768.0, "149k"), (38_092.0, "38.1k"), (238.4, "238"), (9.8, "9.80")]
        {
            assert_eq!(short(value), said);
        }
    }
}
