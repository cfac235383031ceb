//! The print of a run: a table of what happened, and one line for scripts.

use std::fmt::Write as _;
use std::time::Duration;

use voltier_block::Nanos;

use crate::fault::FaultKind;
use crate::ledger::Counts;
use crate::scenario::Scenario;
use crate::swarm::Outcome;

/// Sums of a run.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Scenarios run, runs for comparison not counted.
    pub seeds: u64,
    /// The counts of everything that happened in them.
    pub counts: Counts,
    /// Broken promises.
    pub violations: u64,
    /// Time of a core that they took.
    pub core: Duration,
    /// The same of the seeds with a modelled disk.
    pub disks: Disks,
}

/// Seeds whose origin is a modelled disk: its seeks, its rotation, its queue.
#[derive(Clone, Debug, Default)]
pub struct Disks {
    /// How many.
    pub seeds: u64,
    /// The virtual time of these seeds, rest included, in nanoseconds.
    pub virtual_ns: Nanos,
    /// Virtual time in which somebody waited for the disk, in nanoseconds.
    pub busy_ns: Nanos,
    /// Time of a core that all of it took.
    pub core: Duration,
}

impl Summary {
    /// Adds what became of a scenario, and the time of a core that it took.
    pub fn add(&mut self, outcome: &Outcome, core: Duration) {
        self.seeds += 1;
        self.counts.add(&outcome.counts);
        self.violations += u64::from(outcome.failure.is_some());
        self.core += core;
        if outcome.counts.disk_ns > 0 {
            self.disks.seeds += 1;
            self.disks.virtual_ns += outcome.counts.virtual_ns;
            self.disks.busy_ns += outcome.counts.disk_ns;
            self.disks.core += core;
        }
    }

    /// The last line: for scripts.
    pub fn line(&self) -> String {
        format!(
            "seeds={} crash_points={} requests={} faults={} sim_hours={:.1} disk_hours={:.1} \
             disk_times={:.0} violations={}",
            self.seeds,
            self.counts.crash_points,
            self.counts.requests,
            self.counts.faults_total(),
            hours(self.counts.virtual_ns),
            hours(self.disks.busy_ns),
            times(self.disks.busy_ns, self.disks.core),
            self.violations
        )
    }

    /// The counts, in lines of two columns.
    pub fn table(&self) -> String {
        let mut table = String::new();
        let mut row = |name: &str, value: String| {
            let _ = writeln!(table, "  {name:<32}{value:>16}");
        };
        for (kind, count) in FaultKind::ALL.into_iter().zip(self.counts.faults) {
            row(kind.name(), count.to_string());
        }
        row("requests of drives", self.counts.requests.to_string());
        row("SSDs given up", self.counts.given_up.to_string());
        row("records of passed SSDs", self.counts.passed.to_string());
        row("seeds of arrays", self.counts.array_seeds.to_string());
        row("crashes x lost members", self.counts.array_points.to_string());
        row("crashes in a move", self.counts.reshape_points.to_string());
        row("starts refused", self.counts.refused.to_string());
        let virtual_ns = self.counts.virtual_ns;
        row("virtual hours, rest included", format!("{:.1}", hours(virtual_ns)));
        row("core hours", format!("{:.3}", core_hours(self.core)));
        row("virtual / core time", format!("{:.0}x", times(virtual_ns, self.core)));
        let disks = &self.disks;
        row("seeds on a modelled disk", disks.seeds.to_string());
        row("  virtual hours, rest included", format!("{:.1}", hours(disks.virtual_ns)));
        row("  hours of waiting for the disk", format!("{:.2}", hours(disks.busy_ns)));
        row("  core hours", format!("{:.3}", core_hours(disks.core)));
        row("  waiting / core time", format!("{:.0}x", times(disks.busy_ns, disks.core)));
        table
    }
}

fn hours(time_ns: Nanos) -> f64 {
    time_ns as f64 / 3.6e12
}

fn core_hours(core: Duration) -> f64 {
    core.as_secs_f64() / 3600.0
}

/// How many times as fast as real time, on one core.
fn times(time_ns: Nanos, core: Duration) -> f64 {
    time_ns as f64 / 1e9 / core.as_secs_f64().max(1e-9)
}

/// A broken promise, as a person reads it: what happened last, what was seen, how to see it again.
pub fn failure(scenario: &Scenario, outcome: &Outcome) -> String {
    let mut text = String::new();
    let Some(failure) = &outcome.failure else { return text };
    for line in &outcome.tale {
        let _ = writeln!(text, "  {line}");
    }
    let _ = writeln!(text, "VIOLATION: {}", failure.message);
    let _ = writeln!(text, "  at: {}", failure.place);
    let _ = writeln!(text, "  again: {}", command(scenario));
    text
}

/// The command that runs a scenario again.
pub fn command(scenario: &Scenario) -> String {
    let text = scenario.to_string();
    let seed = scenario.seed;
    if text == "-" {
        return format!("cargo xtask sim --seed {seed}");
    }
    format!("cargo xtask sim --seed {seed} --scenario {text}")
}
