//! Outer limits, asked before any device is blamed. The limits are the clients' network, the storage
//! nodes' network, the link of the device, the processor of the load generator.

use serde::Serialize;

use super::facts::Facts;
use super::series;
use crate::result::{Point, Run};

/// A limit is near from this share on.
const NEAR: f64 = 0.90;

/// A thread is busy all the time from this share on.
const BUSY: f64 = 0.95;

/// An outer limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Network of the clients.
    ClientNetwork,
    /// Network of the storage nodes, copies included.
    StorageNetwork,
    /// SATA, SAS or PCIe.
    Link,
    /// A thread of the load generator.
    Processor,
}

/// A point that is near an outer limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitVerdict {
    /// The point.
    pub point: String,
    /// The limit.
    pub limit: Limit,
    /// How much of it is used, as a share.
    pub share: f64,
    /// The verdict in words.
    pub text: String,
}

/// Every point near an outer limit that the facts of the run allow to compute.
pub fn of_run(run: &Run) -> Vec<LimitVerdict> {
    let facts = Facts::new(run);
    let usable = run.points.iter().filter(|point| series::is_usable(point));
    usable.flat_map(|point| of_point(&facts, point)).collect()
}

fn of_point(facts: &Facts<'_>, point: &Point) -> Vec<LimitVerdict> {
    let mut found = Vec::new();
    let mut say = |limit, share: f64, least: f64, text: String| {
        if share.is_finite() && share >= least {
            found.push(LimitVerdict { point: point.id.clone(), limit, share, text });
        }
    };
    if let Some(bytes) = series::bandwidth(point) {
        let clients = f64::from(point.axes.clients.unwrap_or(1));
        let gigabits = bytes * 8.0 / 1e9;
        if let Some(nic) = facts.machine("nic_bits_per_second") {
            let line = nic * clients / 1e9;
            let share = gigabits / line;
            let text =
                format!("network-bound: {gigabits:.2} Gb/s of the {line:.0} Gb/s of the clients");
            say(Limit::ClientNetwork, share, NEAR, text);
        }
        if let Some(line) = storage_line(facts) {
            let copies = match point.axes.read_percent {
                Some(100) => 1.0,
                _ => facts.machine("write_copies").unwrap_or(1.0),
            };
            let (moved, line) = (gigabits * copies, line / 1e9);
            let text =
                format!("network-bound: {moved:.1} Gb/s of the {line:.0} Gb/s of the storage");
            say(Limit::StorageNetwork, moved / line, NEAR, text);
        }
        if let Some(link) = facts.link_rate(&point.axes.target) {
            let (mb, of) = (bytes / 1e6, link / 1e6);
            let text = format!("link-bound: {mb:.0} MB/s of the {of:.0} MB/s of the link");
            say(Limit::Link, bytes / link, NEAR, text);
        }
    }
    let busiest = point.cpu.and_then(|cpu| cpu.busiest_thread_percent);
    // Results of other programs have the mean of the threads only.
    let mean = || point.metrics.get("cpu_percent_of_thread").copied();
    let which = if busiest.is_some() { "its busiest thread is" } else { "its threads are" };
    if let Some(busy) = busiest.or_else(mean) {
        let text = format!("bound by the load generator: {which} {busy:.0} % busy");
        say(Limit::Processor, busy / 100.0, BUSY, text);
    }
    found
}

/// The rate that the link of a target carries, bytes of payload a second; `None` where its facts do not tell.
pub fn link_rate(run: &Run, target: &str) -> Option<f64> {
    Facts::new(run).link_rate(target)
}

fn storage_line(facts: &Facts<'_>) -> Option<f64> {
    Some(facts.machine("storage_nodes")? * facts.machine("storage_nic_bits_per_second")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::sample;
    use crate::result::CpuCost;

    #[test]
    fn the_busiest_thread_and_the_link_of_a_run_of_ours_are_asked() {
        let mut run = sample::run();
        let mut point = sample::point("a", 140_000.0, 57e3, 8);
        point.cpu = Some(CpuCost { busiest_thread_percent: Some(97.0), ..CpuCost::default() });
        // The mean of all threads hides the one that is at its end.
        point.metrics.insert("cpu_percent_of_thread".to_owned(), 40.0);
        run.points.push(point);
        let facts = [("interface", "SATA 6.0Gb/s")];
        let pairs = facts.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        run.manifest.targets[0].facts = pairs.collect();
        let limits: Vec<Limit> = of_run(&run).iter().map(|verdict| verdict.limit).collect();
        assert_eq!(limits, [Limit::Link, Limit::Processor]);
        run.points[0].cpu = Some(CpuCost::default());
        assert_eq!(of_run(&run).len(), 1);
    }
}
