//! Miss-ratio curves: share of misses over the size of a cache.

use std::collections::BTreeSet;

use plotly::layout::{Axis, AxisType};

use super::draw::{self, LINES_MAX, axis, from_zero, layout};
use super::page::{Chart, Section, Table, or_dash};
use crate::analysis::Verdicts;
use crate::analysis::misses::{MissCurve, MissPoint, MissVerdict};
use crate::size::bytes_in_words;

/// Sizes with a name on the axis.
const TICKS_MAX: usize = 12;

/// One kind of ratio.
type Figure = (&'static str, &'static str, fn(&MissPoint) -> Option<f64>);

/// A curve and its sizes with their ratios in percent.
type Known<'a> = (&'a MissCurve, Vec<(u64, f64)>);

const ALL: Figure = ("Miss ratio", "Share of line references that the cache would miss", |point| {
    Some(point.miss_ratio)
});

const APART: [Figure; 2] = [
    ("Miss ratio of reads", "Share of line references by reads that miss", |point| {
        point.read_miss_ratio
    }),
    ("Miss ratio of writes", "Share of line references by writes that miss", |point| {
        point.write_miss_ratio
    }),
];

/// The section of miss ratios; `None` when the run has none.
pub(super) fn section(verdicts: &Verdicts) -> Option<Section> {
    let all = &verdicts.misses;
    if all.is_empty() {
        return None;
    }
    let mut section = Section::new("Miss ratios");
    section.text(
        "The share of the trace that a cache of each size would miss, computed without a drive. \
         exact is LRU by stack distances, shards the same from a sample of the lines; the others \
         are the policies of the cache, replayed.",
    );
    for verdict in all {
        for curves in verdict.curves.chunks(LINES_MAX) {
            section.charts([chart(verdict, curves, &ALL)]);
            // Where all are reads, or all writes, both are the ratio of all.
            let is_mixed = |curve: &MissCurve| {
                let is_both = |p: &MissPoint| p.read_miss_ratio.and(p.write_miss_ratio).is_some();
                curve.points.iter().any(is_both)
            };
            if curves.iter().any(is_mixed) {
                section.charts(APART.iter().map(|figure| chart(verdict, curves, figure)));
            }
        }
    }
    Some(section)
}

fn chart(verdict: &MissVerdict, curves: &[MissCurve], (title, what, of): &Figure) -> Chart {
    let known: Vec<Known<'_>> = curves
        .iter()
        .map(|curve| {
            let points = curve.points.iter();
            (curve, points.filter_map(|p| Some((p.cache_bytes, of(p)? * 100.0))).collect())
        })
        .filter(|(_, points): &(_, Vec<_>)| !points.is_empty())
        .collect();
    let sizes: BTreeSet<u64> =
        known.iter().flat_map(|(_, points)| points).map(|(size, _)| *size).collect();
    let mut headings = vec!["cache".to_owned()];
    headings.extend(known.iter().map(|(curve, _)| format!("{}, %", curve.name)));
    let mut table = Table::new(headings);
    for size in &sizes {
        let ratio = |points: &[(u64, f64)]| {
            points.iter().find(|(at, _)| at == size).map(|(_, ratio)| format!("{ratio:.2}"))
        };
        let mut row = vec![bytes_in_words(*size)];
        row.extend(known.iter().map(|(_, points)| or_dash(ratio(points))));
        table.row(row);
    }
    let line = |(number, (curve, points)): (usize, &Known<'_>)| {
        let points = points.iter().map(|(size, ratio)| (*size as f64, *ratio));
        draw::trace(&*draw::line(&curve.name, points, number))
    };
    Chart {
        title: format!("{title}: {}", verdict.label),
        caption: format!("{what}, over its size. {}.", verdict.text),
        traces: known.iter().enumerate().map(line).collect(),
        layout: layout().x_axis(size_axis(&sizes)).y_axis(from_zero("misses, %")),
        table,
        is_3d: false,
    }
}

/// A logarithmic axis with names of sizes, the largest among them.
fn size_axis(sizes: &BTreeSet<u64>) -> Axis {
    let every = sizes.len().div_ceil(TICKS_MAX).max(1);
    let mut shown: Vec<u64> = sizes.iter().rev().step_by(every).copied().collect();
    shown.reverse();
    let texts: Vec<String> = shown.iter().map(|size| bytes_in_words(*size)).collect();
    let at: Vec<f64> = shown.iter().map(|size| *size as f64).collect();
    axis("size of the cache").type_(AxisType::Log).tick_values(at).tick_text(texts)
}
