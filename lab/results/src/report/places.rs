//! Places of a plan with their repeats: the figures that tables and charts show.

use crate::analysis::series::{self, Series};
use crate::analysis::{latency, stats};
use crate::result::{Axes, Histogram, Point, Run};

/// One place of a plan; of rounds those of the measurement window.
pub(super) struct Place<'a> {
    /// Without round and pass.
    pub(super) axes: Axes,
    pub(super) points: Vec<&'a Point>,
}

/// Whether a point is measured, and not only prepared: the point varies something, or has an
/// application's figures.
pub(super) fn is_measurement(point: &Point) -> bool {
    let axes = &point.axes;
    let is_varied = axes.block_bytes.is_some()
        || axes.read_percent.is_some()
        || axes.small.is_some()
        || axes.large.is_some()
        || axes.depth.is_some()
        || axes.clients.is_some()
        || !point.metrics.is_empty()
        || axes.access.is_some();
    is_varied && point.role.is_measured()
}

/// Every place that was measured, in the order of the run.
pub(super) fn places(run: &Run) -> Vec<Place<'_>> {
    let groups = series::group(run, |axes| (axes.round, axes.pass) = (None, None));
    let places = groups.into_iter().map(|group| place(run, group));
    places.filter(|place| !place.points.is_empty()).collect()
}

fn place<'a>(run: &'a Run, group: Series<'a>) -> Place<'a> {
    let measured: Vec<&Point> =
        group.points.into_iter().filter(|point| is_measurement(point)).collect();
    Place { axes: group.axes, points: series::in_window(run, &measured) }
}

impl Place<'_> {
    /// The mean of a figure over the repeats; `None` where there is none.
    pub(super) fn mean(&self, of: impl Fn(&Point) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.points.iter().filter_map(|point| of(point)).collect();
        stats::mean(&values).filter(|value| value.is_finite() && *value > 0.0)
    }

    /// Requests (or operations) per second, the mean of its repeats.
    pub(super) fn rate(&self) -> Option<f64> {
        self.mean(series::rate)
    }

    pub(super) fn bytes_per_second(&self) -> Option<f64> {
        self.mean(Point::bytes_per_second)
    }

    pub(super) fn latency_ns(&self) -> Option<f64> {
        self.mean(Point::latency_mean_ns)
    }

    /// The longest of all repeats.
    pub(super) fn latency_max_ns(&self) -> Option<f64> {
        let flows = self.points.iter().flat_map(|point| point.flows());
        let longest = flows.map(|flow| flow.latency.max_ns).max()?;
        (longest > 0).then_some(longest as f64)
    }

    /// The latencies of all repeats together.
    pub(super) fn histogram(&self) -> Option<Histogram> {
        latency::merged(self.points.iter().flat_map(|point| point.flows()))
    }

    /// From merged histograms; of a single point without one, what its source printed.
    pub(super) fn percentile_ns(&self, percent: f64) -> Option<f64> {
        latency::percentile_of(&self.points, percent).map(|ns| ns as f64)
    }
}

/// One thing that a plan varies: how it is taken out, and its value as a text.
type Field = (fn(&mut Axes), fn(&Axes) -> String);

const FIELDS: [Field; 13] = [
    (|axes| axes.target.clear(), |axes| axes.target.clone()),
    (|axes| axes.phase.clear(), |axes| axes.phase.clone()),
    (|axes| axes.access = None, |axes| format!("{:?}", axes.access)),
    (|axes| axes.read_percent = None, |axes| format!("{:?}", axes.read_percent)),
    (|axes| axes.block_bytes = None, |axes| format!("{:?}", axes.block_bytes)),
    (|axes| axes.depth = None, |axes| format!("{:?}", axes.depth)),
    (|axes| axes.jobs = None, |axes| format!("{:?}", axes.jobs)),
    (|axes| axes.clients = None, |axes| format!("{:?}", axes.clients)),
    (|axes| axes.small = None, |axes| format!("{:?}", axes.small)),
    (|axes| axes.large = None, |axes| format!("{:?}", axes.large)),
    (|axes| axes.stream_depth = None, |axes| format!("{:?}", axes.stream_depth)),
    (|axes| axes.idle_s = None, |axes| format!("{:?}", axes.idle_s)),
    (|axes| axes.cache_bytes = None, |axes| format!("{:?}", axes.cache_bytes)),
];

/// Names for some places among each other, and what they share in words.
pub(super) fn names(all: &[Axes]) -> (Vec<String>, String) {
    let Some(first) = all.first() else { return (Vec::new(), String::new()) };
    let (mut own, mut shared) = (all.to_vec(), first.clone());
    for (clear, value) in FIELDS {
        if all.iter().all(|axes| value(axes) == value(first)) {
            own.iter_mut().for_each(clear);
        } else {
            clear(&mut shared);
        }
    }
    let names = own.iter().zip(all).map(|(own, all)| match series::label(own) {
        name if name.is_empty() => series::label(all),
        name => name,
    });
    (names.collect(), series::label(&shared))
}

/// Labels among each other: the words that all share are left out.
pub(super) fn short(labels: &[String]) -> Vec<String> {
    let parts = |label: &String| label.split(", ").map(str::to_owned).collect::<Vec<String>>();
    let all: Vec<Vec<String>> = labels.iter().map(parts).collect();
    let is_shared = |word: &String| all.len() > 1 && all.iter().all(|label| label.contains(word));
    let own = all.iter().zip(labels).map(|(words, label)| {
        let own: Vec<&str> =
            words.iter().filter(|word| !is_shared(word)).map(String::as_str).collect();
        if own.is_empty() { label.clone() } else { own.join(", ") }
    });
    own.collect()
}

/// Target and steps of some labels, for a title: "disk: seq_read, seq_write".
pub(super) fn subject(labels: &[String]) -> String {
    let word = |label: &str, at: usize| label.split(", ").nth(at).unwrap_or_default().to_owned();
    let mut steps: Vec<String> = labels.iter().map(|label| word(label, 1)).collect();
    steps.dedup();
    steps.truncate(3);
    let target = labels.first().map(|label| word(label, 0)).unwrap_or_default();
    format!("{target}: {}", steps.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_named_by_what_differs() {
        let axes = |depth| Axes {
            target: "disk".to_owned(),
            depth: Some(depth),
            read_percent: Some(50),
            ..Axes::default()
        };
        let (own, shared) = names(&[axes(1), axes(8)]);
        assert_eq!(
            (own, shared.as_str()),
            (vec!["depth 1".into(), "depth 8".into()], "disk, 50 % reads")
        );
        let (own, _) = names(&[axes(1)]);
        assert_eq!(own, ["disk, 50 % reads, depth 1"]);
        assert_eq!(short(&["a, b, c".to_owned(), "a, d".to_owned()]), ["b, c", "d"]);
        assert_eq!(short(&["a, b".to_owned(), "a, b".to_owned()]), ["a, b", "a, b"]);
    }
}
