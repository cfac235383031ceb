//! Rounds of a group while it is measured: whether the last ones are steady, and what the run stores.

use voltier_results::analysis::steady;
use voltier_results::result::{Axes, Point, Rounds, RoundsEnd, Tracker};

use crate::plan::step::{Group, Repeat, Tracked};

pub(super) use voltier_results::analysis::steady::WINDOW;

/// The record of the rounds of a group before the first one; `None` of a group that is measured once.
pub(super) fn record(group: &Group) -> Option<Rounds> {
    let Repeat::UntilSteady { tracked, .. } = &group.repeat else { return None };
    let tracker = |tracked: &Tracked| {
        let axes = group.points.get(tracked.point)?.axes.clone();
        let axes = Axes { target: group.target.clone(), ..axes };
        Some(Tracker { axes, variable: tracked.variable })
    };
    let trackers = tracked.iter().filter_map(tracker).collect();
    Some(Rounds { name: group.rounds_name()?, trackers, window: None, end: None })
}

/// The measurement window after so many whole rounds: the last five.
pub(super) fn window(whole: usize) -> Option<(u32, u32)> {
    (whole >= WINDOW).then(|| ((whole - WINDOW + 1) as u32, whole as u32))
}

/// Why a group needs no more rounds; `None` while it needs more. `rounds` are whole rounds.
pub(super) fn end(rounds: &[Vec<Point>], written: u64, group: &Group) -> Option<RoundsEnd> {
    let Repeat::UntilSteady { tracked, bytes_max, rounds_max, .. } = &group.repeat else {
        return None;
    };
    match () {
        () if are_steady(rounds, tracked) => Some(RoundsEnd::Steady),
        () if bytes_max.is_some_and(|most| written >= most) => Some(RoundsEnd::BytesMax),
        () if rounds.len() as u32 >= *rounds_max => Some(RoundsEnd::RoundsMax),
        () => None,
    }
}

/// Whether every tracked value was steady in the last five rounds; false before there are five.
fn are_steady(rounds: &[Vec<Point>], tracked: &[Tracked]) -> bool {
    let Some(last) = rounds.len().checked_sub(WINDOW).map(|first| &rounds[first..]) else {
        return false;
    };
    tracked.iter().all(|tracked| {
        let of = |round: &Vec<Point>| tracked.variable.of(round.get(tracked.point)?);
        let values: Option<Vec<f64>> = last.iter().map(of).collect();
        let values = values.map(|values| (1..).zip(values).collect::<Vec<(u32, f64)>>());
        let window = values.and_then(|values| steady::window(&values));
        window.is_some_and(|window| window.is_steady)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::step::{Planned, Work};
    use voltier_results::result::{Flow, Variable};

    fn rounds(values: &[f64]) -> Vec<Vec<Point>> {
        let point = |iops: &f64| {
            let write = Flow { requests: 1, iops: *iops, ..Flow::default() };
            vec![Point { write: Some(write), ..Point::default() }]
        };
        values.iter().map(point).collect()
    }

    fn group(bytes_max: Option<u64>) -> Group {
        let axes = Axes { phase: "wsat".to_owned(), pass: Some(1), ..Axes::default() };
        let tracked = vec![Tracked { point: 0, variable: Variable::Iops }];
        let name = "wsat".to_owned();
        let repeat = Repeat::UntilSteady { name, rounds_max: 25, tracked, bytes_max };
        let points = vec![Planned::measured(axes, Work::Purge)];
        Group { target: "ssd".to_owned(), test: None, repeat, points }
    }

    #[test]
    fn the_last_five_rounds_decide_and_four_never_do() {
        let group = group(None);
        let steady = |values: &[f64]| end(&rounds(values), 0, &group) == Some(RoundsEnd::Steady);
        assert!(steady(&[228.90, 240.21, 240.60, 240.71, 240.71]));
        assert!(steady(&[10.0, 100.0, 121.0, 100.0, 121.0, 100.0]));
        assert!(!steady(&[100.0, 110.0, 120.0, 130.0, 140.0]));
        assert!(!steady(&[100.0; 4]));
        assert_eq!(end(&vec![vec![Point::default()]; 5], 0, &group), None, "nothing was measured");
        let climb: Vec<f64> = (0..25).map(|round| 1.5_f64.powi(round)).collect();
        assert_eq!(end(&rounds(&climb), 0, &group), Some(RoundsEnd::RoundsMax));
        assert_eq!((window(4), window(25)), (None, Some((21, 25))));
    }

    #[test]
    fn bytes_end_the_rounds_and_the_record_names_the_tracked_place() {
        let group = group(Some(4000));
        assert_eq!(end(&rounds(&[1.0]), 3999, &group), None);
        assert_eq!(end(&rounds(&[1.0]), 4000, &group), Some(RoundsEnd::BytesMax));
        let record = record(&group).unwrap();
        assert_eq!(record.name, "ssd/wsat");
        let place = &record.trackers[0].axes;
        assert_eq!((place.target.as_str(), place.pass, place.round), ("ssd", Some(1), None));
    }
}
