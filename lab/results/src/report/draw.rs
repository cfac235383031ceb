//! How charts look: colours, axes, lines. Everything the charts share is here.

use plotly::common::{
    Anchor, AxisSide, ColorBar, ColorScale, ColorScalePalette, DashType, Font, Line, Marker,
    MarkerSymbol, Mode, Orientation, Side, Title,
};
use plotly::layout::{
    Annotation, Axis, AxisType, BarMode, HoverMode, Legend, Margin, Shape, ShapeLayer, ShapeLine,
    ShapeType,
};
use plotly::{HeatMap, Layout, Scatter};
use serde_json::Value;

use super::page::short;
use crate::chart::escape;

/// Colours that stay apart for every kind of sight, and in grey.
pub(super) const PALETTE: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a6a00", "#56b4e9", "#8c2d04", "#525252"];

/// More lines than this in one chart cannot be told apart.
pub(super) const LINES_MAX: usize = 8;

const INK: &str = "#1f2933";
const GRID: &str = "#e3e7eb";
/// The colour of what is marked: a knee, a window.
pub(super) const MARK: &str = "#b8860b";
/// Strokes of lines; a line is known by its stroke as well as by its colour.
const DASHES: [DashType; 4] = [DashType::Solid, DashType::Dash, DashType::Dot, DashType::DashDot];
const SYMBOLS: [MarkerSymbol; 4] =
    [MarkerSymbol::Circle, MarkerSymbol::Square, MarkerSymbol::Diamond, MarkerSymbol::TriangleUp];

/// Text as the chart library takes it: it knows a few elements of HTML.
pub(super) fn plain(text: &str) -> String {
    escape(text)
}

/// A trace as it is written into the page.
pub(super) fn trace<T: serde::Serialize>(trace: &T) -> Value {
    serde_json::to_value(trace).expect("a trace has texts and numbers only")
}

/// The look of every chart; legend below, so that a narrow page keeps its width.
pub(super) fn layout() -> Layout {
    let legend = Legend::new()
        .orientation(Orientation::Horizontal)
        .x(0.0)
        .x_anchor(Anchor::Left)
        .y(-0.24)
        .y_anchor(Anchor::Top)
        .font(Font::new().size(12));
    Layout::new()
        .font(Font::new().family("system-ui, sans-serif").size(12).color(INK))
        .paper_background_color("#ffffff")
        .plot_background_color("#ffffff")
        .margin(Margin::new().left(62).right(20).top(34).bottom(46).auto_expand(true))
        .legend(legend)
        .colorway(PALETTE.to_vec())
        .hover_mode(HoverMode::Closest)
        .bar_mode(BarMode::Group)
        .show_legend(true)
}

/// A linear axis.
pub(super) fn axis(title: &str) -> Axis {
    Axis::new()
        .title(Title::with_text(plain(title)))
        .grid_color(GRID)
        .zero_line_color(GRID)
        .line_color("#9aa5b1")
        .show_line(true)
        .auto_margin(true)
}

/// A linear axis that begins at zero.
pub(super) fn from_zero(title: &str) -> Axis {
    axis(title).range_mode(plotly::layout::RangeMode::ToZero)
}

/// A logarithmic axis.
pub(super) fn log_axis(title: &str) -> Axis {
    // Whole figures at every tick: "200k", not "2".
    axis(title).type_(AxisType::Log).n_ticks(6).tick_format("~s")
}

/// An axis to the right, for a second kind of figure.
pub(super) fn right(axis: Axis) -> Axis {
    axis.overlaying("y").side(AxisSide::Right).show_grid(false)
}

/// A logarithmic axis with a tick at every step of a ladder (at some, where there are many).
pub(super) fn ladder_axis(title: &str, steps: &[f64]) -> Axis {
    let mut steps = steps.to_vec();
    steps.sort_by(f64::total_cmp);
    steps.dedup();
    let every = steps.len().div_ceil(10).max(1);
    let shown: Vec<f64> = steps.into_iter().step_by(every).collect();
    let texts: Vec<String> = shown.iter().map(|step| short_whole(*step)).collect();
    axis(title).type_(AxisType::Log).tick_values(shown).tick_text(texts)
}

/// A number without digits that say nothing: "16", "1.5".
pub(super) fn short_whole(value: f64) -> String {
    if (value - value.round()).abs() < 1e-9 { format!("{value:.0}") } else { short(value) }
}

/// An axis of named places in their order.
pub(super) fn places(title: &str) -> Axis {
    axis(title).type_(AxisType::Category)
}

/// A line with its points.
pub(super) fn line(
    name: &str,
    points: impl IntoIterator<Item = (f64, f64)>,
    number: usize,
) -> Box<Scatter<f64, f64>> {
    let (x, y): (Vec<f64>, Vec<f64>) = points.into_iter().unzip();
    let color = PALETTE[number % PALETTE.len()];
    Scatter::new(x, y)
        .name(plain(name))
        .mode(Mode::LinesMarkers)
        .line(Line::new().color(color).width(2.0).dash(dash(number)))
        .marker(Marker::new().color(color).size(6).symbol(symbol(number)))
}

fn dash(number: usize) -> DashType {
    DASHES[number / PALETTE.len() % DASHES.len()].clone()
}

pub(super) fn symbol(number: usize) -> MarkerSymbol {
    SYMBOLS[number % SYMBOLS.len()].clone()
}

/// A shaded range of the x axis.
pub(super) fn band(x0: f64, x1: f64) -> Shape {
    Shape::new()
        .shape_type(ShapeType::Rect)
        .x_ref("x")
        .y_ref("paper")
        .x0(x0)
        .x1(x1)
        .y0(0.0)
        .y1(1.0)
        .fill_color(MARK)
        .opacity(0.14)
        .layer(ShapeLayer::Below)
        .line(ShapeLine::new().width(0.0))
}

/// A line across the whole height at x.
pub(super) fn upright(x: f64) -> Shape {
    Shape::new()
        .shape_type(ShapeType::Line)
        .x_ref("x")
        .y_ref("paper")
        .x0(x)
        .x1(x)
        .y0(0.0)
        .y1(1.0)
        .line(ShapeLine::new().color(MARK).width(2.0).dash(DashType::Dash))
}

/// Words at the upper end of a place on the x axis; `x` in the axis' own terms (its logarithm on a
/// logarithmic one).
pub(super) fn words_at(x: f64, text: &str) -> Annotation {
    Annotation::new()
        .x(x)
        .x_ref("x")
        .y(1.0)
        .y_ref("paper")
        .y_anchor(Anchor::Bottom)
        .text(plain(text))
        .show_arrow(false)
        .font(Font::new().size(12).color(MARK))
}

/// A heat map of rows from below to above; its figures stand in the cells where there is room. Both
/// axes count from 0: [`steps`] gives them their names.
pub(super) fn heat(cells: Vec<Vec<Option<f64>>>, unit: &str) -> (Value, Vec<Annotation>) {
    let known = || cells.iter().flatten().flatten().copied();
    let (low, high) = (known().fold(f64::MAX, f64::min), known().fold(f64::MIN, f64::max));
    let columns = cells.first().map_or(0, Vec::len);
    let mut words = Vec::new();
    if columns <= 12 && cells.len() <= 20 {
        for (row, values) in cells.iter().enumerate() {
            for (column, value) in values.iter().enumerate() {
                let Some(value) = value else { continue };
                let is_light = (value - low) > 0.55 * (high - low);
                let color = if is_light { INK } else { "#ffffff" };
                words.push(
                    Annotation::new()
                        .x(column)
                        .y(row)
                        .x_ref("x")
                        .y_ref("y")
                        .text(short(*value))
                        .show_arrow(false)
                        .font(Font::new().size(11).color(color)),
                );
            }
        }
    }
    let bar = ColorBar::new()
        .title(Title::with_text(plain(unit)).side(Side::Right))
        .thickness(12)
        .outline_width(0);
    let count = |n: usize| (0..n).map(|index| index as f64).collect::<Vec<f64>>();
    let map = HeatMap::new(count(columns), count(cells.len()), cells)
        .color_scale(ColorScale::Palette(ColorScalePalette::Cividis))
        .color_bar(bar)
        .hover_on_gaps(false);
    (trace(&*map), words)
}

/// An axis of named steps, counted from 0.
pub(super) fn steps(title: &str, names: &[String]) -> Axis {
    let shown: Vec<String> = names.iter().map(|name| plain(name)).collect();
    let at = (0..names.len()).map(|index| index as f64).collect();
    axis(title).tick_values(at).tick_text(shown).show_grid(false)
}
