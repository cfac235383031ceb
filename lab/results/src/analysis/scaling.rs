//! Several clients: efficiency, fairness, and the interval that they share.

use serde::Serialize;

use super::series;
use crate::result::{ClientResult, Flow, Point, Run};

/// One number of clients.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScalingPoint {
    /// Point of the run.
    pub point: String,
    /// Clients at the same time.
    pub clients: u32,
    /// Requests (or operations) per second of all together.
    pub rate: f64,
    /// E(c) = X(c) / (c X(1)), with the fewest clients as the base.
    pub efficiency: f64,
    /// The share of each client, where it is known.
    pub sharing: Option<Sharing>,
}

/// How clients shared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sharing {
    /// Jain's index: 1 when all had the same, 1 / n when one had everything.
    pub jain: f64,
    /// The slowest client over the fastest.
    pub slowest_over_fastest: f64,
    /// The time in which all were active over that in which any was; `None` without start times.
    pub common_interval: Option<f64>,
}

/// Scaling over the number of clients, everything else the same.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScalingVerdict {
    /// The target, by its name in the manifest.
    pub target: String,
    /// The series in words, without the clients.
    pub label: String,
    /// Each number of clients.
    pub points: Vec<ScalingPoint>,
    /// The verdict in words.
    pub text: String,
}

/// Jain's fairness index, (sum x)^2 / (n sum x^2); `None` when nobody had anything.
pub fn jain(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// How the clients of a point shared; `None` with fewer than two, or when one has no figures.
pub fn sharing(clients: &[ClientResult]) -> Option<Sharing> {
    let flows = |client: &'_ ClientResult| -> Vec<Flow> {
        client.read.iter().chain(&client.write).cloned().collect()
    };
    let rates: Vec<f64> =
        clients.iter().map(|client| flows(client).iter().map(|flow| flow.iops).sum()).collect();
    if clients.len() < 2 || clients.iter().any(|client| flows(client).is_empty()) {
        return None;
    }
    let fastest = rates.iter().copied().fold(f64::MIN, f64::max);
    let slowest = rates.iter().copied().fold(f64::MAX, f64::min);
    let windows: Vec<(f64, f64)> = clients
        .iter()
        .filter(|client| client.started_unix_ms > 0)
        .map(|client| {
            let start = client.started_unix_ms as f64 * 1e6;
            let longest = flows(client).iter().map(|flow| flow.runtime_ns).max().unwrap_or(0);
            (start, start + longest as f64)
        })
        .collect();
    let common_interval = (windows.len() == clients.len()).then(|| common(&windows)).flatten();
    let slowest_over_fastest = if fastest > 0.0 { slowest / fastest } else { return None };
    Some(Sharing { jain: jain(&rates)?, slowest_over_fastest, common_interval })
}

/// The part of the time from the first start to the last end in which all were active.
fn common(windows: &[(f64, f64)]) -> Option<f64> {
    let first = windows.iter().map(|(start, _)| *start).fold(f64::MAX, f64::min);
    let last_start = windows.iter().map(|(start, _)| *start).fold(f64::MIN, f64::max);
    let first_end = windows.iter().map(|(_, end)| *end).fold(f64::MAX, f64::min);
    let last = windows.iter().map(|(_, end)| *end).fold(f64::MIN, f64::max);
    (last > first).then(|| ((first_end - last_start) / (last - first)).max(0.0))
}

/// The scaling of a run: every series over at least two numbers of clients.
pub fn of_run(run: &Run) -> Vec<ScalingVerdict> {
    let groups = series::group(run, |axes| {
        (axes.clients, axes.round, axes.pass) = (None, None, None);
    });
    let mut verdicts = Vec::new();
    for group in &groups {
        let with_clients = group.points.iter().filter_map(|point| {
            Some((point.axes.clients?, series::rate(point).filter(|rate| *rate > 0.0)?, *point))
        });
        let mut points: Vec<(u32, f64, &Point)> = with_clients.collect();
        points.sort_by_key(|(clients, ..)| *clients);
        points.dedup_by_key(|(clients, ..)| *clients);
        let [(base_clients, base_rate, _), _, ..] = points[..] else { continue };
        let points: Vec<ScalingPoint> = points
            .iter()
            .map(|&(clients, rate, point)| ScalingPoint {
                point: point.id.clone(),
                clients,
                rate,
                efficiency: rate * f64::from(base_clients.max(1))
                    / (f64::from(clients.max(1)) * base_rate),
                sharing: sharing(&point.clients),
            })
            .collect();
        verdicts.push(ScalingVerdict {
            target: group.axes.target.clone(),
            label: group.label(),
            text: describe(&points),
            points,
        });
    }
    verdicts
}

fn describe(points: &[ScalingPoint]) -> String {
    let last = &points[points.len() - 1];
    let half = points.iter().find(|point| point.efficiency < 0.5);
    let mut text = format!("E({}) = {:.2}", last.clients, last.efficiency);
    if let Some(half) = half {
        text += &format!("; below one half from {} clients on: stop there", half.clients);
    }
    if points.iter().any(|point| point.efficiency > 1.05) {
        text += "; super-linear: caching, or the base was not at full speed";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(start_ms: u64, seconds: u64, iops: f64) -> ClientResult {
        let flow = Flow { iops, runtime_ns: seconds * 1_000_000_000, ..Flow::default() };
        ClientResult { started_unix_ms: start_ms, read: Some(flow), ..ClientResult::default() }
    }

    #[test]
    fn fairness_is_one_for_equals_and_one_nth_for_a_monopoly() {
        assert_eq!(jain(&[5.0, 5.0, 5.0, 5.0]), Some(1.0));
        assert_eq!(jain(&[5.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain(&[0.0]), None);
    }

    #[test]
    fn the_common_interval_is_when_all_are_active() {
        let shared = sharing(&[client(1000, 10, 100.0), client(3000, 10, 50.0)]).unwrap();
        assert!((shared.common_interval.unwrap() - 8.0 / 12.0).abs() < 1e-9);
        assert!((shared.slowest_over_fastest - 0.5).abs() < 1e-12);
        let apart = sharing(&[client(1000, 1, 1.0), client(9000, 1, 1.0)]).unwrap();
        assert_eq!(apart.common_interval, Some(0.0));
        assert_eq!(sharing(&[client(1, 1, 1.0)]), None);
        assert_eq!(sharing(&[client(1, 1, 1.0), ClientResult::default()]), None);
    }
}
