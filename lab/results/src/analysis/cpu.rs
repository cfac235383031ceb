//! The processor time of a request.

use serde::Serialize;

use super::series;
use crate::result::Run;

/// Processor time of one point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CpuVerdict {
    /// The point.
    pub point: String,
    /// Load generator, microseconds a request.
    pub process_us_per_request: Option<f64>,
    /// Whole machine, microseconds a request: kernel threads and daemons included.
    pub system_us_per_request: Option<f64>,
    /// Requests per second that one processor would serve, by the cost of the whole machine; of the
    /// load generator where only that is known.
    pub iops_per_core: Option<f64>,
}

/// Cost in microseconds a request from fio's percentages, which are of `job_runtime`, the sum of
/// its threads' run times; `None` without requests.
pub fn process_us_per_request(
    user_and_system_percent: f64,
    job_runtime_ms: f64,
    requests: u64,
) -> Option<f64> {
    let us = user_and_system_percent / 100.0 * job_runtime_ms * 1000.0;
    (requests > 0 && us.is_finite()).then(|| us / requests as f64)
}

/// Every point with processor time.
pub fn of_run(run: &Run) -> Vec<CpuVerdict> {
    let usable = run.points.iter().filter(|point| series::is_usable(point));
    let cost = usable.filter_map(|point| {
        let positive = |value: f64| (value > 0.0 && value.is_finite()).then_some(value);
        let named = point.metrics.get("cpu_process_us_per_request").copied();
        let process = point.cpu.map(|cpu| cpu.process_us_per_request).or(named);
        let process = process.and_then(positive);
        let system = point.cpu.and_then(|cpu| positive(cpu.system_us_per_request));
        let per_core = system.or(process).map(|us| 1e6 / us);
        process.or(system).is_some().then(|| CpuVerdict {
            point: point.id.clone(),
            process_us_per_request: process,
            system_us_per_request: system,
            iops_per_core: per_core,
        })
    });
    cost.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fios_percentages_are_of_the_sum_of_the_threads() {
        // Four threads of 10 s, 25 % busy: 10 s of processor for a million requests.
        assert_eq!(process_us_per_request(25.0, 40_000.0, 1_000_000), Some(10.0));
        assert_eq!(process_us_per_request(25.0, 40_000.0, 0), None);
    }
}
