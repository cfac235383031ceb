//! The runs of one job on one volume: their figures and the latencies of all their requests.

use voltier_results::result::Histogram;
use voltier_results::table::median;

use crate::fio::Outcome;

/// The runs of one job on one volume.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    figures: Vec<f64>,
    latencies: Histogram,
}

impl Runs {
    /// Adds a run with its figure, in the unit of the job.
    pub fn add(&mut self, figure: f64, outcome: &Outcome) {
        let histograms = outcome.flows().filter_map(|flow| flow.histogram.as_ref());
        self.record(figure, histograms);
    }

    fn record<'a>(&mut self, figure: f64, histograms: impl Iterator<Item = &'a Histogram>) {
        self.figures.push(figure);
        for histogram in histograms {
            self.latencies.merge(histogram);
        }
    }

    /// The figure of each run, in their order.
    pub fn figures(&self) -> &[f64] {
        &self.figures
    }

    /// The figure in the middle; 0 when there was no run.
    pub fn median(&self) -> f64 {
        median(self.figures.clone())
    }

    /// The least and the greatest figure, where there are several.
    pub fn spread(&self) -> Option<(f64, f64)> {
        let least = self.figures.iter().copied().min_by(f64::total_cmp)?;
        let greatest = self.figures.iter().copied().max_by(f64::total_cmp)?;
        (self.figures.len() > 1).then_some((least, greatest))
    }

    /// The latency below which `percent` of the requests of all runs stayed, in nanoseconds.
    pub fn percentile_ns(&self, percent: f64) -> Option<f64> {
        self.latencies.percentile_ns(percent).map(|ns| ns as f64)
    }

    /// Runs for tests, each with one request of `ns`.
    #[cfg(test)]
    pub(super) fn of(figures: &[f64], ns: u64) -> Runs {
        let mut latencies = Histogram::default();
        latencies.record(ns);
        let mut runs = Runs::default();
        for figure in figures {
            runs.record(*figure, [&latencies].into_iter());
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_run_has_no_spread() {
        assert_eq!(Runs::of(&[3.0], 1000).spread(), None);
        let three = Runs::of(&[3.0, 9.0, 4.0], 1000);
        assert_eq!(three.spread(), Some((3.0, 9.0)));
        assert!((three.median() - 4.0).abs() < 1e-9);
    }

    #[test]
    fn percentiles_are_those_of_the_requests_of_all_runs() {
        let mut runs = Runs::of(&[1.0, 1.0, 1.0], 100);
        let slow = Runs::of(&[1.0], 90_000);
        runs.record(1.0, [&slow.latencies].into_iter());
        assert_eq!(runs.percentile_ns(50.0), Some(100.0));
        assert!(runs.percentile_ns(99.0).is_some_and(|ns| ns > 80_000.0));
        assert_eq!(Runs::default().percentile_ns(50.0), None);
    }
}
