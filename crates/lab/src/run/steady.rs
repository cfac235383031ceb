//! Whether the rounds so far are steady, asked while a group is measured.

use crate::plan::step::{Tracked, Value};
use crate::result::Point;

/// Rounds of a window.
pub(super) const WINDOW: usize = 5;

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
        values.is_some_and(|values| is_steady(&values))
    })
}

/// The two criteria of the specification: the values within 20 % of their mean of each other, and
/// the fitted line within 10 % over the window.
fn is_steady(values: &[f64]) -> bool {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let max = values.iter().copied().fold(f64::MIN, f64::max);
    let min = values.iter().copied().fold(f64::MAX, f64::min);
    let middle = (count - 1.0) / 2.0;
    let (mut above, mut below) = (0.0, 0.0);
    for (index, value) in values.iter().enumerate() {
        let x = index as f64 - middle;
        above += x * value;
        below += x * x;
    }
    mean > 0.0 && max - min <= 0.20 * mean && (above / below).abs() * (count - 1.0) <= 0.10 * mean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_windows_of_the_specification_are_judged_as_it_says() {
        assert!(is_steady(&[228.90, 240.21, 240.60, 240.71, 240.71]));
        assert!(is_steady(&[100.0, 121.0, 100.0, 121.0, 100.0]));
        assert!(!is_steady(&[100.0, 110.0, 120.0, 130.0, 140.0]));
        assert!(!is_steady(&[0.0; 5]));
    }

    #[test]
    fn four_rounds_are_never_steady() {
        let rounds = vec![vec![Point::default()]; 4];
        assert!(!are_steady(&rounds, &[Tracked { point: 0, value: Value::Iops }]));
    }
}
