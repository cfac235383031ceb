//! Whether the rounds so far are steady, asked while a group is measured.

use voltier_results::analysis::steady;
use voltier_results::result::Point;

use crate::plan::step::{Tracked, Value};

pub(super) use voltier_results::analysis::steady::WINDOW;

/// The value of a point that is watched.
pub(super) fn value(point: &Point, value: Value) -> Option<f64> {
    match value {
        Value::Iops => point.iops(),
        Value::Bandwidth => point.bytes_per_second(),
        Value::Latency => point.latency_mean_ns(),
    }
}

/// Whether every tracked value was steady in the last five rounds; false before there are five.
pub(super) fn are_steady(rounds: &[Vec<Point>], tracked: &[Tracked]) -> bool {
    let Some(last) = rounds.len().checked_sub(WINDOW).map(|first| &rounds[first..]) else {
        return false;
    };
    tracked.iter().all(|tracked| {
        let of = |round: &Vec<Point>| value(round.get(tracked.point)?, tracked.value);
        let values: Option<Vec<f64>> = last.iter().map(of).collect();
        let values = values.map(|values| (1..).zip(values).collect::<Vec<(u32, f64)>>());
        let window = values.and_then(|values| steady::window(&values));
        window.is_some_and(|window| window.is_steady)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_results::result::Flow;

    fn rounds(values: &[f64]) -> Vec<Vec<Point>> {
        let point = |iops: &f64| {
            let write = Flow { requests: 1, iops: *iops, ..Flow::default() };
            vec![Point { write: Some(write), ..Point::default() }]
        };
        values.iter().map(point).collect()
    }

    #[test]
    fn the_last_five_rounds_decide_and_four_never_do() {
        let tracked = [Tracked { point: 0, value: Value::Iops }];
        let steady = |values: &[f64]| are_steady(&rounds(values), &tracked);
        assert!(steady(&[228.90, 240.21, 240.60, 240.71, 240.71]));
        assert!(steady(&[10.0, 100.0, 121.0, 100.0, 121.0, 100.0]));
        assert!(!steady(&[100.0, 110.0, 120.0, 130.0, 140.0]));
        assert!(!steady(&[100.0; 4]));
        assert!(!are_steady(&vec![vec![Point::default()]; 5], &tracked), "nothing was measured");
    }
}
