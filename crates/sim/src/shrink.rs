//! Makes a failing scenario shorter: cuts away what it does not need to fail.

use crate::fault::FaultKind;
use crate::scenario::Scenario;
use crate::swarm::{Failure, run};

/// Runs that shrinking may take.
const RUNS_MAX: u32 = 120;

/// The shortest scenario found that still fails, and how it does.
pub fn shrink(scenario: &Scenario, failure: &Failure) -> (Scenario, Failure) {
    let (mut best, mut failure) = (scenario.clone(), failure.clone());
    let drawn = best.draw();
    let managed = (drawn.managed.is_some() && !best.arrays) || best.draw_array_command().is_some();
    if (best.arrays || drawn.sweep || managed) && best.event.is_none() {
        // The dice of a crash point are its own: alone it is the same.
        if let Some(event) = failure.event {
            let alone = Scenario { event: Some(event), ..best.clone() };
            if let Some(fails) = run(&alone, false).failure {
                (best, failure) = (alone, fails);
            }
        }
    }
    if managed {
        // A command is what it is: nothing can be cut away from it.
        return (best, failure);
    }
    let mut runs = 0;
    loop {
        let mut improved = false;
        for shorter in shorter_than(&best) {
            runs += 1;
            if runs > RUNS_MAX {
                return (best, failure);
            }
            if let Some(fails) = run(&shorter, false).failure {
                (best, failure, improved) = (shorter, fails, true);
                break;
            }
        }
        if !improved {
            return (best, failure);
        }
    }
}

/// Scenarios of arrays with fewer clients or steps. The events of a shorter one are others.
fn shorter_arrays(scenario: &Scenario) -> Vec<Scenario> {
    let setup = scenario.draw_arrays();
    let clients = [1, setup.clients - 1].into_iter().filter(|it| (1..setup.clients).contains(it));
    let fewer =
        clients.map(|clients| Scenario { clients: Some(clients), event: None, ..scenario.clone() });
    let halves = [setup.steps / 2, setup.steps.saturating_sub(1)];
    let steps = halves.into_iter().filter(|it| (1..setup.steps).contains(it));
    let shorter =
        steps.map(|steps| Scenario { steps: Some(steps), event: None, ..scenario.clone() });
    fewer.chain(shorter).collect()
}

/// Scenarios with one thing less, the largest cuts first.
fn shorter_than(scenario: &Scenario) -> Vec<Scenario> {
    if scenario.arrays {
        return shorter_arrays(scenario);
    }
    let drawn = scenario.draw();
    let profile = &drawn.profile;
    let rates = profile.ssd_faults.rates.iter().chain(&profile.origin_faults.rates);
    let mut kinds: Vec<FaultKind> = rates.map(|rate| rate.0).collect();
    kinds.extend([FaultKind::StaleSsd, FaultKind::WrongOrder]);
    kinds.extend([FaultKind::ForeignOrigin, FaultKind::GrownOrigin]);
    kinds.retain(|kind| !scenario.without.contains(kind));
    kinds.sort_unstable();
    kinds.dedup();
    let without = |more: &[FaultKind]| {
        let mut shorter = scenario.clone();
        shorter.without.extend(more);
        shorter
    };
    let mut all = Vec::new();
    if kinds.len() > 1 {
        all.push(without(&kinds));
    }
    if !drawn.sweep {
        let fewer =
            (1..drawn.lives).map(|lives| Scenario { lives: Some(lives), ..scenario.clone() });
        all.extend(fewer);
    }
    for clients in [1, profile.clients / 2, profile.clients - 1] {
        if clients > 0 && clients < profile.clients {
            all.push(Scenario { clients: Some(clients), ..scenario.clone() });
        }
    }
    for steps in [profile.steps / 4, profile.steps / 2, profile.steps - profile.steps / 8] {
        if steps < profile.steps {
            all.push(Scenario { steps: Some(steps), ..scenario.clone() });
        }
    }
    all.extend(kinds.iter().map(|kind| without(&[*kind])));
    all
}
