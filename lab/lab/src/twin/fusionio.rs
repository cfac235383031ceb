//! Fusion-io: an ioDrive under Orion's load sweep, and where its knees are.
//!
//! The article measures the card, not a product before the card. So published product and hardware are
//! one figure here, and Voltier is a plain volume on the card, which is to cost nothing.

use std::rc::Rc;

use voltier_block::KIB;
use voltier_drive::ModelDevice;
use voltier_drive::model::{Nowhere, Profile, Workload, closed_loop};
use voltier_results::analysis::knee::{LoadPoint, judge};
use voltier_ring::{Executor, NoFiles};
use voltier_volume::Volume;

use super::Extent;
use super::calibration::Calibration;
use super::load::{Load, Places, Window, drive};
use super::published::Table;
use super::report::{Figures, Report, Row};

/// A test of the article.
struct Test {
    number: &'static str,
    name: &'static str,
    bytes: u64,
    read_percent: u64,
    sequential: bool,
    /// The latency at which the article sees the knee.
    knee_ms: f64,
}

const TESTS: [Test; 5] = [
    Test { number: "1", name: "8k random read", ..SMALL },
    Test { number: "2", name: "4k random read", bytes: 4 * KIB, ..SMALL },
    Test {
        number: "3",
        name: "128k sequential read",
        bytes: 128 * KIB,
        sequential: true,
        knee_ms: 10.0,
        ..SMALL
    },
    Test { number: "4", name: "8k random write", read_percent: 0, ..SMALL },
    Test { number: "5", name: "8k random, 20 % writes", read_percent: 80, ..SMALL },
];

const SMALL: Test = Test {
    number: "",
    name: "",
    bytes: 8 * KIB,
    read_percent: 100,
    sequential: false,
    knee_ms: 1.0,
};

/// A point of the load curve.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    outstanding: usize,
    iops: f64,
    latency_ms: f64,
}

pub(super) fn run(extent: Extent) -> Report {
    let published = Table::read(include_str!("../../../results/tables/fusionio_orion_tests.csv"));
    let profile = Profile::find("ssd-iodrive").expect("a profile");
    let calibration = Calibration::of(&["ssd-iodrive"]);
    let tests = &TESTS[..if extent == Extent::Full { TESTS.len() } else { 2 }];
    let mut rows = Vec::new();
    for test in tests {
        let bare = curve(extent, |outstanding| on_the_card(profile, test, outstanding));
        let volume = curve(extent, |outstanding| through_a_volume(profile, test, outstanding));
        // The figures of the large reads in requests and in bytes contradict each other: bytes count.
        let megabytes = test.bytes as f64 / 1e6;
        let (column, unit, factor) = match test.sequential {
            true => ("max_mbps_stated", "MB/s", megabytes),
            false => ("max_iops_stated", "IOPS", 1.0),
        };
        let knees = [&bare, &volume].map(|curve| knee(test, curve));
        let maxima = [&bare, &volume].map(|curve| maximum(curve) * factor);
        let cases =
            [("knee", "knee_iops_stated", "IOPS", knees), ("maximum", column, unit, maxima)];
        for (what, column, unit, [twin_hardware, voltier]) in cases {
            let stated = published.figure(test.number, column);
            let figures = Figures { published: stated, hardware: stated, twin_hardware, voltier };
            let case = format!("{}: {what}", test.name);
            let mut row = Row::new(case, unit, figures, calibration.error());
            let off = 100.0 * (twin_hardware / stated - 1.0);
            row.note = format!("the model is {off:+.1} % off the article");
            if what == "knee" {
                row.note.push_str(&format!("; {}", estimates(test, &volume)));
            }
            rows.push(row);
        }
    }
    Report {
        title: "Fusion-io ioDrive under Orion: the load curve and its knees (tests the model of the card; a \
                plain volume is to cost nothing)"
            .into(),
        rows,
        notes: notes(),
        calibration,
    }
}

fn notes() -> Vec<String> {
    vec![
        "all published figures are prose, rounded (F1); the knee is where the curve passes the latency \
         that the article names: 1 ms, of the large reads 10 ms"
            .into(),
        "test 3 states 5,000 requests and 700 MB/s, which is 5,340 (F3); the model has 700 MB/s".into(),
        "test 6 (two sizes at once) leaves more small requests than test 5 without the large ones (F4): \
         not repeated"
            .into(),
        "the fall of random writes beyond their maximum (test 4) is not in the model".into(),
    ]
}

fn curve(extent: Extent, point: impl Fn(usize) -> Point) -> Vec<Point> {
    let ladder: &[usize] = match extent {
        Extent::Full => {
            &[1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256, 384, 475]
        }
        Extent::Quick => &[1, 8, 32, 48, 64, 96, 475],
    };
    ladder.iter().map(|outstanding| point(*outstanding)).collect()
}

const SPAN_BYTES: u64 = 320_000_000_000;
const RUN_NS: u64 = 500_000_000;

fn on_the_card(profile: &Profile, test: &Test, outstanding: usize) -> Point {
    let load = Workload {
        jobs: 1,
        depth: outstanding,
        block_bytes: test.bytes,
        span_bytes: SPAN_BYTES,
        sequential: test.sequential,
        read_percent: test.read_percent,
    };
    let outcome = closed_loop::run(profile, &load, 0, RUN_NS);
    Point {
        outstanding,
        iops: outcome.bytes_per_s / test.bytes as f64,
        latency_ms: outcome.mean_latency_ns / 1e6,
    }
}

fn through_a_volume(profile: &'static Profile, test: &Test, outstanding: usize) -> Point {
    let places = if test.sequential {
        Places::InOrder { span_bytes: SPAN_BYTES, gap_bytes: 0 }
    } else {
        Places::Random { span_bytes: SPAN_BYTES }
    };
    let load = Load {
        jobs: 1,
        depth: outstanding,
        block_bytes: test.bytes,
        read_percent: test.read_percent,
        places,
    };
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let rates = executor.block_on(async move {
        let card = ModelDevice::new(handle.clone(), profile, Nowhere::new(profile.bytes));
        let volume = Rc::new(Volume::plain(&handle, card));
        let window = Window { warm_ns: RUN_NS / 5, ns: RUN_NS / 5 * 4 };
        drive(&handle, &[volume], &load, window, |_| ()).await
    });
    Point { outstanding, iops: rates.iops, latency_ms: rates.mean_latency_ns / 1e6 }
}

fn maximum(curve: &[Point]) -> f64 {
    curve.iter().map(|point| point.iops).fold(0.0, f64::max)
}

/// The rate at which the mean latency passes what the article calls the knee; the maximum if it never
/// does.
fn knee(test: &Test, curve: &[Point]) -> f64 {
    let passes = curve.windows(2).find(|pair| pair[1].latency_ms >= test.knee_ms);
    passes.map_or_else(
        || maximum(curve),
        |pair| {
            let way =
                (test.knee_ms - pair[0].latency_ms) / (pair[1].latency_ms - pair[0].latency_ms);
            pair[0].iops + way.clamp(0.0, 1.0) * (pair[1].iops - pair[0].iops)
        },
    )
}

/// The answers of the four estimators on the loads that double: where queueing begins, not where the
/// article's latency is passed.
fn estimates(test: &Test, curve: &[Point]) -> String {
    let doubling = curve.iter().filter(|point| point.outstanding.is_power_of_two());
    let ladder: Vec<LoadPoint> = doubling
        .map(|point| LoadPoint {
            outstanding: point.outstanding as f64,
            iops: point.iops,
            latency_ns: Some(point.latency_ms * 1e6),
            p99_ns: None,
            power: Some(point.iops / point.latency_ms * 1e3),
        })
        .collect();
    let found = judge(&ladder);
    let [kneedle, asymptotic, power, doubling] =
        [found.kneedle, found.asymptotic, found.power, found.doubling]
            .map(|load| load.map_or_else(|| "-".to_owned(), |load| format!("{load:.0}")));
    let little = knee(test, curve) * test.knee_ms / 1e3;
    format!(
        "passes {} ms with {little:.0} outstanding; Kneedle {kneedle}, N* {asymptotic}, power {power}, \
         doubling {doubling}",
        test.knee_ms
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_between_the_points_around_its_latency() {
        let point = |iops, latency_ms| Point { outstanding: 1, iops, latency_ms };
        let curve = [point(100.0, 0.1), point(200.0, 0.5), point(300.0, 1.5)];
        assert!((knee(&TESTS[0], &curve) - 250.0).abs() < 1e-9);
        assert!((knee(&TESTS[0], &curve[..2]) - 200.0).abs() < 1e-9);
    }
}
