//! What a run prints: a table of what happened, and one line for scripts.

use std::fmt::Write as _;
use std::time::Duration;

use crate::fault::FaultKind;
use crate::ledger::Counts;
use crate::swarm::{Outcome, Story};

/// Sums of a run.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Stories run, runs for comparison not counted.
    pub seeds: u64,
    /// What happened in them.
    pub counts: Counts,
    /// Broken promises.
    pub violations: u64,
}

impl Summary {
    /// Adds what became of a story.
    pub fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.counts.add(&outcome.counts);
        self.violations += u64::from(outcome.failure.is_some());
    }

    /// The last line: for scripts.
    pub fn line(&self) -> String {
        format!(
            "seeds={} crash_points={} faults={} sim_hours={:.1} violations={}",
            self.seeds,
            self.counts.crash_points,
            self.counts.faults_total(),
            self.sim_hours(),
            self.violations
        )
    }

    fn sim_hours(&self) -> f64 {
        self.counts.virtual_ns as f64 / 3.6e12
    }

    /// What happened, in lines of two columns; `real` is the time of one core.
    pub fn table(&self, real: Duration) -> String {
        let mut table = String::new();
        let mut row = |name: &str, value: String| {
            let _ = writeln!(table, "  {name:<24}{value:>16}");
        };
        for (kind, count) in FaultKind::ALL.into_iter().zip(self.counts.faults) {
            row(kind.name(), count.to_string());
        }
        row("requests of drives", self.counts.requests.to_string());
        row("SSDs given up", self.counts.given_up.to_string());
        row("seeds of arrays", self.counts.array_seeds.to_string());
        row("crashes x lost members", self.counts.array_points.to_string());
        row("starts refused", self.counts.refused.to_string());
        row("virtual hours", format!("{:.1}", self.sim_hours()));
        row("core hours", format!("{:.3}", real.as_secs_f64() / 3600.0));
        let times = self.sim_hours() * 3600.0 / real.as_secs_f64().max(1e-9);
        row("virtual / real time", format!("{times:.0}x"));
        table
    }
}

/// A broken promise, as a person reads it: what happened last, what was seen, how to see it again.
pub fn failure(story: &Story, outcome: &Outcome) -> String {
    let mut text = String::new();
    let Some(failure) = &outcome.failure else { return text };
    for line in &outcome.tale {
        let _ = writeln!(text, "  {line}");
    }
    let _ = writeln!(text, "VIOLATION: {}", failure.message);
    let _ = writeln!(text, "  at: {}", failure.place);
    let _ = writeln!(text, "  again: {}", command(story));
    text
}

/// The command that runs a story again.
pub fn command(story: &Story) -> String {
    let text = story.to_string();
    let seed = story.seed;
    if text == "-" {
        return format!("cargo xtask sim --seed {seed}");
    }
    format!("cargo xtask sim --seed {seed} --story {text}")
}
