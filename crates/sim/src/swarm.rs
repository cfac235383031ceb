//! Runs scenarios, catches broken promises, and keeps the scenarios that once broke one.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use crate::arrays;
use crate::crash::{Plan, run_in};
use crate::ledger::{Counts, Ledger};
use crate::lives::run_lives;
use crate::scenario::Scenario;
use crate::sweep;
use crate::sweep::volumes;
use crate::takeover;

/// A promise that was broken.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The message of the broken promise, and its line of the code.
    pub message: String,
    /// Where the run was.
    pub place: String,
    /// The crash point of a sweep.
    pub event: Option<u64>,
}

/// The outcome of a scenario.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Counts of everything that took effect.
    pub counts: Counts,
    /// Two runs of a scenario share it.
    pub trace_hash: u64,
    /// None if every promise was kept.
    pub failure: Option<Failure>,
    /// The last lines of the tale, if the tale was to be kept.
    pub tale: Vec<String>,
}

fn play(scenario: &Scenario, ledger: &Rc<Ledger>) {
    if let Some(plan) = scenario.draw_array_command() {
        sweep::arrays::run_in(&plan, ledger);
        return;
    }
    if let Some(stack) = scenario.draw_stack() {
        return arrays::run_stack(scenario.seed, stack, scenario.event, ledger);
    }
    if scenario.arrays {
        return arrays::run(scenario.seed, scenario.draw_arrays(), scenario.event, ledger);
    }
    let drawn = scenario.draw();
    if let Some(plan) = &drawn.takeover {
        takeover::run(plan, &drawn.profile, ledger);
    } else if let Some(plan) = &drawn.managed {
        volumes::run_in(plan, ledger);
    } else if drawn.sweep {
        let plan = Plan {
            profile: drawn.profile,
            seed: scenario.seed,
            one_in: 1,
            warm_up_steps: drawn.warm_up_steps,
            only: scenario.event,
        };
        run_in(&plan, ledger);
    } else {
        run_lives(&drawn, scenario, ledger);
    }
}

/// Runs a scenario. A broken promise is caught; `telling` keeps what happened last.
pub fn run(scenario: &Scenario, telling: bool) -> Outcome {
    let ledger = Rc::new(if telling { Ledger::telling() } else { Ledger::default() });
    CAUGHT.with(|caught| caught.replace(Some(String::new())));
    let ended = catch_unwind(AssertUnwindSafe(|| play(scenario, &ledger)));
    let caught = CAUGHT.with(|caught| caught.replace(None));
    let failure = ended.is_err().then(|| {
        let (place, event) = ledger.place();
        Failure { message: caught.unwrap_or_default(), place, event }
    });
    let (counts, trace_hash) = (ledger.counts(), ledger.trace_hash());
    Outcome { counts, trace_hash, failure, tale: ledger.tale() }
}

/// A scenario that is kept.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The scenario that is run.
    pub scenario: Scenario,
    /// The broken promise that the scenario showed once.
    pub why: String,
}

/// The scenarios that are kept because they once broke a promise.
///
/// # Errors
/// The line that is no scenario.
pub fn regressions() -> Result<Vec<Kept>, String> {
    let lines = include_str!("../regressions").lines();
    let scenarios = lines.filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    scenarios
        .map(|line| {
            let mut words = line.splitn(3, ' ');
            let seed = words.next().and_then(|word| word.parse().ok());
            let (Some(seed), Some(text), Some(why)) = (seed, words.next(), words.next()) else {
                return Err(format!("'{line}' in crates/sim/regressions is not SEED SCENARIO WHY"));
            };
            Ok(Kept { scenario: Scenario::parse(seed, text)?, why: why.to_owned() })
        })
        .collect()
}

thread_local! {
    /// The message of the last panic of this thread, while a scenario is run.
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// From now on a panic inside a scenario is kept for its outcome instead of printed.
pub fn catch_panics() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let caught = CAUGHT.with(|caught| {
            let mut caught = caught.borrow_mut();
            let Some(text) = caught.as_mut() else { return false };
            if text.is_empty() {
                let said = info.payload_as_str().unwrap_or("a panic");
                let place = info.location().map(|at| format!(" ({}:{})", at.file(), at.line()));
                *text = format!("{said}{}", place.unwrap_or_default());
            }
            true
        });
        if !caught {
            others(info);
        }
    }));
}
