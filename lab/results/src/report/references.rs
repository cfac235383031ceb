//! This run beside others: the ratio of every figure to theirs.

use plotly::Scatter;
use plotly::common::{Marker, Mode};

use super::draw::{self, PALETTE, layout, log_axis};
use super::page::{Chart, Section, Table, latency, megabytes, or_dash};
use super::passes::errors;
use crate::analysis::compare::{Against, Difference, Row};
use crate::analysis::{Comparison, compare};
use crate::result::Run;
use crate::table::figure;

/// Rows that are drawn.
const ROWS_MAX: usize = 30;

/// This run against each of the references, which is the base.
pub(super) fn comparisons(run: &Run, references: &[Run]) -> Vec<Comparison> {
    references.iter().map(|reference| compare(&[reference.clone(), run.clone()])).collect()
}

/// The section of one comparison.
pub(super) fn section(comparison: &Comparison) -> Section {
    let mut section = Section::new(&format!("Against {}", comparison.runs[0]));
    if comparison.rows.is_empty() {
        section
            .text("The plans of the two runs have no point in common, so nothing can be compared.");
        return section;
    }
    section.text(
        "Ratios are this run over the other. Below 3 %, or with 1 inside the interval, two \
         figures count as the same; a figure that was measured once is unconfirmed.",
    );
    let mut table =
        Table::new(["place", "figure", "other", "this run", "ratio", "95 % interval", "verdict"]);
    for (row, against) in judged(comparison) {
        let (name, say) = unit(&row.figure);
        let value = |index: usize| row.cells[index].as_ref().map(|cell| say(cell.estimate.value));
        table.row(vec![
            row.label.clone(),
            name.to_owned(),
            or_dash(value(0)),
            or_dash(value(1)),
            format!("{:.2}", against.ratio),
            or_dash(against.interval.map(|(low, high)| format!("{low:.2} to {high:.2}"))),
            word(against.difference).to_owned(),
        ]);
    }
    section.charts(chart(comparison));
    section.table_or_folded("Every figure", table);
    if !comparison.notes.is_empty() {
        section.blocks.push(super::page::Block::List(comparison.notes.clone()));
    }
    section
}

/// A figure's name and how it is said.
fn unit(figure_name: &str) -> (&str, fn(f64) -> String) {
    match figure_name {
        "iops" => ("requests/s", figure),
        "bytes_per_second" => ("MB/s", megabytes),
        "latency_mean_ns" => ("mean latency", latency),
        "latency_p99_ns" => ("p99 latency", latency),
        name if name.ends_with("_ns") => (name, latency),
        name => (name, figure),
    }
}

fn judged(comparison: &Comparison) -> impl Iterator<Item = (&Row, Against)> {
    comparison.rows.iter().filter_map(|row| {
        let cell = row.cells.get(1)?.as_ref()?;
        Some((row, cell.against?))
    })
}

fn word(difference: Difference) -> &'static str {
    match difference {
        Difference::Same => "same",
        Difference::Better => "better",
        Difference::Worse => "worse",
        Difference::Unconfirmed => "unconfirmed",
    }
}

fn chart(comparison: &Comparison) -> Option<Chart> {
    let drawn = ["iops", "bytes_per_second", "tps", "files_per_second"];
    let rows: Vec<(&Row, Against)> =
        judged(comparison).filter(|(row, _)| row.figure == drawn[0]).take(ROWS_MAX).collect();
    let rows = match rows.is_empty() {
        false => rows,
        true => judged(comparison)
            .filter(|(row, _)| drawn.contains(&row.figure.as_str()))
            .take(ROWS_MAX)
            .collect(),
    };
    let first = rows.first()?.0.figure.clone();
    let rows: Vec<_> = rows.into_iter().filter(|(row, _)| row.figure == first).collect();
    // Places have long names: the axis has the numbers of the rows of the table below.
    let numbers: Vec<String> = (1..=rows.len()).map(|number| number.to_string()).collect();
    let names: Vec<String> = rows.iter().map(|(row, _)| draw::plain(&row.label)).collect();
    let ratios: Vec<f64> = rows.iter().map(|(_, against)| against.ratio).collect();
    let interval = |against: &Against| against.interval.unwrap_or((against.ratio, against.ratio));
    let above = rows.iter().map(|(_, a)| interval(a).1 - a.ratio).collect();
    let below = rows.iter().map(|(_, a)| a.ratio - interval(a).0).collect();
    let dots = Scatter::new(numbers, ratios)
        .hover_text_array(names)
        .mode(Mode::Markers)
        .name(draw::plain(&format!("this run over {}", comparison.runs[0])))
        .marker(Marker::new().color(PALETTE[0]).size(9))
        .error_y(errors(above, below));
    let mut table = Table::new(["number", "place", "ratio", "verdict"]);
    for (number, (row, against)) in rows.iter().enumerate() {
        table.row(vec![
            (number + 1).to_string(),
            row.label.clone(),
            format!("{:.2}", against.ratio),
            word(against.difference).to_owned(),
        ]);
    }
    let one = plotly::layout::Shape::new()
        .shape_type(plotly::layout::ShapeType::Line)
        .x_ref("paper")
        .y_ref("y")
        .x0(0.0)
        .x1(1.0)
        .y0(1.0)
        .y1(1.0)
        .line(plotly::layout::ShapeLine::new().color("#525252").width(1.0));
    Some(Chart {
        title: format!("Ratios of {} to {}", unit(&first).0, comparison.runs[0]),
        caption: format!(
            "This run over {}: above 1 is more. Bars are 95 % intervals, where both were repeated; \
             the numbers are those of the figures below.",
            comparison.runs[0]
        ),
        traces: vec![draw::trace(&*dots)],
        layout: layout()
            .x_axis(draw::places("place by number"))
            .y_axis(log_axis("ratio").tick_format("~g"))
            .shapes(vec![one]),
        table,
        is_3d: false,
    })
}
