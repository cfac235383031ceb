//! Points of a run that differ in one thing only, and what a point says as a number.

use crate::result::{Access, Axes, Point, Run, Status};
use crate::size::{bytes_in_words, format_bytes};

/// Points that are alike but for what was taken out of their axes.
pub(crate) struct Series<'a> {
    /// The axes that the points share.
    pub(crate) axes: Axes,
    /// In the order of the run.
    pub(crate) points: Vec<&'a Point>,
}

impl<'a> Series<'a> {
    pub(crate) fn axes_of(&self) -> impl Iterator<Item = &'a Axes> {
        self.points.iter().map(|point| &point.axes)
    }

    pub(crate) fn label(&self) -> String {
        label(&self.axes)
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.points.iter().map(|point| point.id.clone()).collect()
    }
}

/// Of points in rounds those of the measurement window; all others, and all of rounds whose window
/// the run does not store.
pub(crate) fn in_window<'a>(run: &Run, points: &[&'a Point]) -> Vec<&'a Point> {
    let counts = |point: &&&Point| match (run.rounds_of(point), point.axes.round) {
        (Some(rounds), Some(round)) => rounds.window.is_none() || rounds.counts(round),
        _ => true,
    };
    points.iter().filter(counts).copied().collect()
}

/// Whether a point has figures that may be judged.
pub(crate) fn is_usable(point: &Point) -> bool {
    matches!(point.status, Status::Ok | Status::NotSteady)
}

/// Groups the usable points of a run by their axes, after `without` has removed what may differ.
pub(crate) fn group(run: &Run, without: impl Fn(&mut Axes)) -> Vec<Series<'_>> {
    let mut groups: Vec<Series<'_>> = Vec::new();
    for point in run.points.iter().filter(|point| is_usable(point)) {
        let mut axes = point.axes.clone();
        without(&mut axes);
        match groups.iter_mut().find(|group| group.axes == axes) {
            Some(group) => group.points.push(point),
            None => groups.push(Series { axes, points: vec![point] }),
        }
    }
    groups
}

/// Requests (or an application's operations) per second; `None` when the point has neither.
pub fn rate(point: &Point) -> Option<f64> {
    let named = ["files_per_second", "tps", "operations_per_second", "small_iops"];
    point.iops().or_else(|| named.iter().find_map(|name| point.metrics.get(*name).copied()))
}

/// Bytes per second as they must be: requests times their size, else what was stated.
pub(crate) fn bandwidth(point: &Point) -> Option<f64> {
    let counted = point.flows().any(|flow| flow.bytes > 0);
    let by_requests = point.iops().zip(point.axes.block_bytes).map(|(x, b)| x * b as f64);
    if counted { point.bytes_per_second() } else { by_requests.or(point.bytes_per_second()) }
}

/// Requests in flight that the plan asks for: depth x jobs x clients, or Orion's small and large ones. A
/// stream of Orion has several large ones.
pub fn outstanding(axes: &Axes) -> Option<f64> {
    if axes.small.is_some() || axes.large.is_some() {
        let large = f64::from(axes.large.unwrap_or(0)) * f64::from(axes.stream_depth.unwrap_or(1));
        return Some(f64::from(axes.small.unwrap_or(0)) + large);
    }
    if axes.depth.is_none() && axes.jobs.is_none() && axes.clients.is_none() {
        return None;
    }
    let factors = [axes.depth, axes.jobs, axes.clients];
    Some(factors.into_iter().map(|factor| f64::from(factor.unwrap_or(1))).product())
}

/// A place in a plan, in words.
pub fn label(axes: &Axes) -> String {
    let mut words = Vec::new();
    let mut say = |word: Option<String>| words.extend(word);
    say((!axes.target.is_empty()).then(|| axes.target.clone()));
    say((!axes.phase.is_empty()).then(|| axes.phase.clone()));
    say(axes.access.map(|access| match access {
        Access::Sequential => "sequential".to_owned(),
        Access::Random => "random".to_owned(),
    }));
    say(axes.block_bytes.map(format_bytes));
    say(axes.read_percent.map(|share| format!("{share} % reads")));
    say(axes.depth.map(|depth| format!("depth {depth}")));
    say(axes.jobs.map(|jobs| format!("{jobs} jobs")));
    say(axes.clients.map(|clients| format!("{clients} clients")));
    say(axes.small.map(|small| format!("{small} small")));
    say(axes.large.map(|large| format!("{large} large")));
    let streams = axes.stream_depth.filter(|_| axes.large != Some(0));
    say(streams.map(|depth| format!("streams of {depth}")));
    say(axes.idle_s.map(|idle| format!("{idle} s idle")));
    say(axes.cache_bytes.map(|bytes| format!("cache of {}", bytes_in_words(bytes))));
    words.join(", ")
}
