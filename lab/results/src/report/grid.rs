//! Matrices: small x large requests, block size x mix, clients x jobs, jobs x depth, as heat maps.
//! Block sizes and mixes also have lines and a surface, as the standard asks.

use std::collections::BTreeSet;

use plotly::Surface;
use plotly::common::{ColorScale, ColorScalePalette};
use plotly::layout::{AspectMode, Camera, Eye, LayoutScene};

use super::draw::{self, LINES_MAX, axis, layout, log_axis};
use super::page::{Chart, Section, Table, or_dash};
use super::places::Place;
use crate::import::orion_export;
use crate::result::{Axes, Test};
use crate::size::format_bytes;
use crate::table::figure;

/// Heat maps of one report.
const MAPS_MAX: usize = 16;

/// Surfaces of one report: a browser has room for so many.
const SURFACES_MAX: usize = 4;

/// Two things that were varied together.
struct Pair {
    title: &'static str,
    rows: Side,
    columns: Side,
}

/// One side of a matrix.
struct Side {
    title: &'static str,
    value: fn(&Axes) -> Option<u64>,
    clear: fn(&mut Axes),
    say: fn(u64) -> String,
}

fn count(value: u64) -> String {
    value.to_string()
}

const BLOCK: Side = Side {
    title: "block size",
    value: |axes| axes.block_bytes,
    clear: |axes| axes.block_bytes = None,
    say: format_bytes,
};
const MIX: Side = Side {
    title: "reads / writes, %",
    value: |axes| axes.read_percent.map(u64::from),
    clear: |axes| axes.read_percent = None,
    say: |read| format!("{read}/{}", 100_u64.saturating_sub(read)),
};
const SMALL: Side = Side {
    title: "small requests in flight",
    value: |axes| axes.small.map(u64::from),
    clear: |axes| axes.small = None,
    say: count,
};
const LARGE: Side = Side {
    title: "large requests in flight",
    value: |axes| axes.large.map(u64::from),
    // Pure loads name their size and order, mixed ones have two.
    clear: |axes| (axes.large, axes.block_bytes, axes.access) = (None, None, None),
    say: count,
};
const CLIENTS: Side = Side {
    title: "clients",
    value: |axes| axes.clients.map(u64::from),
    clear: |axes| axes.clients = None,
    say: count,
};
const JOBS: Side = Side {
    title: "jobs (threads)",
    value: |axes| axes.jobs.map(u64::from),
    clear: |axes| axes.jobs = None,
    say: count,
};
const DEPTH: Side = Side {
    title: "requests in flight of each",
    value: |axes| axes.depth.map(u64::from),
    clear: |axes| axes.depth = None,
    say: count,
};

const PAIRS: [Pair; 4] = [
    Pair { title: "Small x large requests", rows: LARGE, columns: SMALL },
    Pair { title: "Block size x mix", rows: BLOCK, columns: MIX },
    Pair { title: "Clients x processes", rows: CLIENTS, columns: JOBS },
    Pair { title: "Threads x depth", rows: JOBS, columns: DEPTH },
];

/// A figure of a matrix.
struct Measure {
    title: &'static str,
    unit: &'static str,
    of: fn(&Place<'_>) -> Option<f64>,
}

const RATE: Measure = Measure { title: "requests/s", unit: "1/s", of: |place| place.rate() };
const LATENCY: Measure = Measure {
    title: "mean latency",
    unit: "us",
    of: |place| place.latency_ns().map(|ns| ns / 1e3),
};
const LONGEST: Measure = Measure {
    title: "longest latency",
    unit: "us",
    of: |place| place.latency_max_ns().map(|ns| ns / 1e3),
};
const BANDWIDTH: Measure = Measure {
    title: "throughput",
    unit: "MB/s",
    of: |place| place.bytes_per_second().map(|rate| rate / 1e6),
};
/// Of Orion's points the small requests alone count as requests, the large ones as throughput.
const SMALL_RATE: Measure = Measure {
    title: "small requests/s",
    unit: "1/s",
    of: |place| place.mean(orion_export::small_iops),
};
const SMALL_LATENCY: Measure = Measure {
    title: "latency of small requests",
    unit: "us",
    of: |place| place.mean(orion_export::small_us),
};
const LARGE_RATE: Measure = Measure {
    title: "throughput of large requests",
    unit: "MB/s",
    of: |place| place.mean(orion_export::large_mb),
};

/// A matrix of a run.
struct Grid<'a> {
    pair: &'static Pair,
    axes: Axes,
    rows: Vec<u64>,
    columns: Vec<u64>,
    cells: Vec<&'a Place<'a>>,
}

impl<'a> Grid<'a> {
    /// Whether the grid is of the standard's latency test, which has other measures.
    fn is_latency_test(&self) -> bool {
        let points = self.cells.iter().flat_map(|place| &place.points);
        points.into_iter().all(|point| point.test == Some(Test::Lat))
    }

    fn cell(&self, row: u64, column: u64) -> Option<&'a Place<'a>> {
        let is_here = |place: &&&Place<'_>| {
            (self.pair.rows.value)(&place.axes) == Some(row)
                && (self.pair.columns.value)(&place.axes) == Some(column)
        };
        self.cells.iter().find(is_here).copied()
    }

    fn values(&self, measure: &Measure) -> Vec<Vec<Option<f64>>> {
        let row = |row: &u64| {
            let cell = |column: &u64| (measure.of)(self.cell(*row, *column)?);
            self.columns.iter().map(cell).collect()
        };
        self.rows.iter().map(row).collect()
    }

    fn names(&self) -> (Vec<String>, Vec<String>) {
        let columns = self.columns.iter().map(|value| (self.pair.columns.say)(*value)).collect();
        let rows = self.rows.iter().map(|value| (self.pair.rows.say)(*value)).collect();
        (columns, rows)
    }

    fn table(&self, measure: &Measure) -> Table {
        let (columns, rows) = self.names();
        let mut headings = vec![format!("{} \\ {}", self.pair.rows.title, self.pair.columns.title)];
        headings.extend(columns);
        let mut table = Table::new(headings);
        for (name, values) in rows.into_iter().zip(self.values(measure)) {
            let mut row = vec![name];
            row.extend(values.into_iter().map(|value| or_dash(value.map(figure))));
            table.row(row);
        }
        table
    }
}

/// Every matrix that has at least two rows and two columns.
fn grids<'a>(places: &'a [Place<'a>], pair: &'static Pair) -> Vec<Grid<'a>> {
    let mut grids = Vec::<Grid<'a>>::new();
    for place in places {
        let (row, column) = ((pair.rows.value)(&place.axes), (pair.columns.value)(&place.axes));
        if row.is_none() || column.is_none() {
            continue;
        }
        let mut axes = place.axes.clone();
        (pair.rows.clear)(&mut axes);
        (pair.columns.clear)(&mut axes);
        match grids.iter_mut().find(|grid| grid.axes == axes) {
            Some(grid) => grid.cells.push(place),
            None => {
                let (rows, columns) = (Vec::new(), Vec::new());
                grids.push(Grid { pair, axes, rows, columns, cells: vec![place] });
            }
        }
    }
    for grid in &mut grids {
        let side = |of: fn(&Axes) -> Option<u64>| -> Vec<u64> {
            let values: BTreeSet<u64> = grid.cells.iter().filter_map(|p| of(&p.axes)).collect();
            values.into_iter().collect()
        };
        (grid.rows, grid.columns) = (side(pair.rows.value), side(pair.columns.value));
    }
    grids.retain(|grid| grid.rows.len() > 1 && grid.columns.len() > 1);
    grids
}

/// The section of matrices; `None` when nothing was varied in two ways.
pub(super) fn section(places: &[Place<'_>], is_pts: bool) -> Option<Section> {
    let mut section = Section::new("Matrices");
    let (mut maps, mut surfaces, mut all) = (0, 0, 0);
    for pair in &PAIRS {
        for grid in grids(places, pair) {
            for measure in measures(&grid) {
                let known = grid.values(measure).into_iter().flatten().flatten().count();
                if known < 3 {
                    continue;
                }
                all += 1;
                if maps < MAPS_MAX {
                    section.charts([map(&grid, measure)]);
                    maps += 1;
                } else {
                    section.folded(title(&grid, measure), grid.table(measure));
                }
            }
            section.charts(lines(&grid));
            let wanted = if is_pts { asked_for(&grid) } else { Vec::new() };
            for measure in wanted.into_iter().take(SURFACES_MAX - surfaces) {
                section.charts([surface(&grid, measure)]);
                surfaces += 1;
            }
        }
    }
    if all > maps {
        section.text(format!("{maps} of {all} matrices are drawn; the others are tables."));
    }
    (!section.blocks.is_empty()).then_some(section)
}

fn measures(grid: &Grid<'_>) -> Vec<&'static Measure> {
    match grid.pair.title {
        "Small x large requests" => vec![&SMALL_RATE, &SMALL_LATENCY, &LARGE_RATE],
        "Block size x mix" if grid.is_latency_test() => vec![&LATENCY, &LONGEST],
        "Block size x mix" => vec![&RATE, &BANDWIDTH],
        _ => vec![&RATE, &LATENCY],
    }
}

/// The measures that the standard asks for as a surface.
fn asked_for(grid: &Grid<'_>) -> Vec<&'static Measure> {
    match grid.pair.title {
        "Block size x mix" if grid.is_latency_test() => vec![&LATENCY, &LONGEST],
        "Block size x mix" => vec![&RATE],
        _ => Vec::new(),
    }
}

fn title(grid: &Grid<'_>, measure: &Measure) -> String {
    let place = crate::analysis::label(&grid.axes);
    format!("{}, {}: {place}", grid.pair.title, measure.title)
}

fn map(grid: &Grid<'_>, measure: &Measure) -> Chart {
    let (columns, rows) = grid.names();
    let (trace, words) = draw::heat(grid.values(measure), measure.unit);
    let layout = layout()
        .x_axis(draw::steps(grid.pair.columns.title, &columns))
        .y_axis(draw::steps(grid.pair.rows.title, &rows))
        .annotations(words)
        .show_legend(false);
    let rounds = grid.cells.iter().map(|place| place.points.len()).max().unwrap_or(1);
    let repeats = match rounds {
        1 => String::new(),
        n => format!(" Each cell is the mean of {n} rounds or repeats."),
    };
    Chart {
        title: title(grid, measure),
        caption: format!(
            "{}, {}, by {} and {}. Cells that were not measured are empty.{repeats}",
            measure.title, measure.unit, grid.pair.rows.title, grid.pair.columns.title
        ),
        traces: vec![trace],
        layout,
        table: grid.table(measure),
        is_3d: false,
    }
}

/// Block sizes against requests, a line for each mix; demand variation and intensity of a grid of
/// threads and depths.
fn lines(grid: &Grid<'_>) -> Vec<Chart> {
    match grid.pair.title {
        "Block size x mix" if !grid.is_latency_test() => vec![by_size(grid)],
        "Threads x depth" => vec![demand_variation(grid), demand_intensity(grid)],
        _ => Vec::new(),
    }
}

fn by_size(grid: &Grid<'_>) -> Chart {
    let (columns, _) = grid.names();
    let mut traces = Vec::new();
    for (number, (column, name)) in grid.columns.iter().zip(&columns).enumerate() {
        let rate = |row: &u64| Some((*row as f64, grid.cell(*row, *column)?.rate()?));
        let points = grid.rows.iter().filter_map(rate);
        traces.push(draw::trace(&*draw::line(&format!("{name} reads/writes"), points, number)));
    }
    let sizes: Vec<f64> = grid.rows.iter().map(|row| *row as f64).collect();
    let texts: Vec<String> = grid.rows.iter().map(|row| format_bytes(*row)).collect();
    let x = log_axis("block size").tick_values(sizes).tick_text(texts);
    Chart {
        title: format!("Requests/s by block size: {}", crate::analysis::label(&grid.axes)),
        caption: "Requests per second over the block size, one line for each mix.".to_owned(),
        traces: traces.into_iter().take(LINES_MAX).collect(),
        layout: layout().x_axis(x).y_axis(log_axis("requests/s")),
        table: grid.table(&RATE),
        is_3d: false,
    }
}

fn demand_variation(grid: &Grid<'_>) -> Chart {
    let mut traces = Vec::new();
    for (number, jobs) in grid.rows.iter().enumerate().take(LINES_MAX) {
        let rate = |depth: &u64| Some((*depth as f64, grid.cell(*jobs, *depth)?.rate()?));
        let points = grid.columns.iter().filter_map(rate);
        traces.push(draw::trace(&*draw::line(&format!("{jobs} threads"), points, number)));
    }
    let depths: Vec<f64> = grid.columns.iter().map(|depth| *depth as f64).collect();
    let x = draw::ladder_axis("requests in flight of each thread", &depths);
    Chart {
        title: format!("Demand variation: {}", crate::analysis::label(&grid.axes)),
        caption: "Requests per second over the depth, one line for each number of threads."
            .to_owned(),
        traces,
        layout: layout().x_axis(x).y_axis(draw::from_zero("requests/s")),
        table: grid.table(&RATE),
        is_3d: false,
    }
}

fn demand_intensity(grid: &Grid<'_>) -> Chart {
    let mut traces = Vec::new();
    for (number, jobs) in grid.rows.iter().enumerate().take(LINES_MAX) {
        let point = |depth: &u64| {
            let place = grid.cell(*jobs, *depth)?;
            Some((place.rate()?, place.latency_ns()? / 1e3))
        };
        let points = grid.columns.iter().filter_map(point);
        traces.push(draw::trace(&*draw::line(&format!("{jobs} threads"), points, number)));
    }
    Chart {
        title: format!("Demand intensity: {}", crate::analysis::label(&grid.axes)),
        caption:
            "Mean response time over requests per second, one line for each number of threads."
                .to_owned(),
        traces,
        layout: layout()
            .x_axis(draw::from_zero("requests/s"))
            .y_axis(log_axis("response time, us")),
        table: grid.table(&LATENCY),
        is_3d: false,
    }
}

/// The surface that the standard asks for. The same figures are in the map before it.
fn surface(grid: &Grid<'_>, measure: &Measure) -> Chart {
    let (columns, rows) = grid.names();
    let values = grid.values(measure);
    let count = |n: usize| (0..n).map(|index| index as f64).collect::<Vec<f64>>();
    let surface = Surface::new(values)
        .x(count(columns.len()))
        .y(count(rows.len()))
        .color_scale(ColorScale::Palette(ColorScalePalette::Cividis))
        .show_scale(false);
    let scene = LayoutScene::new()
        .x_axis(draw::steps(grid.pair.columns.title, &columns))
        .y_axis(draw::steps(grid.pair.rows.title, &rows))
        .z_axis(axis(&format!("{}, {}", measure.title, measure.unit)))
        .aspect_mode(AspectMode::Cube)
        .camera(Camera::new().eye(Eye::new().x(1.7).y(-1.6).z(0.9)));
    Chart {
        title: format!("Surface: {}", title(grid, measure)),
        caption:
            "The same figures as in the map, as the surface that the standard asks for. It can \
             be rotated."
                .to_owned(),
        traces: vec![draw::trace(&*surface)],
        layout: layout().scene(scene).show_legend(false),
        table: grid.table(measure),
        is_3d: true,
    }
}
