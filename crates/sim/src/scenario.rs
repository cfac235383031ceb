//! Scenarios: a seed each, and what is cut away from what the seed draws.
//!
//! A seed of caches is either a *sweep* or a chain of *lives*. A sweep is a short life of which every
//! event is a crash point (see [`crash`](crate::crash)). In a chain a process serves while drives fail,
//! and ends in some way at some event. The next process starts on what the one before left. In the last
//! life nothing fails any more, and all must come to rest. Or another host takes the volume over, while the first one
//! goes on (see `takeover`). Or the seed is a management command, crashed
//! at some of its events (see [`sweep`]).

use std::fmt;
use std::str::FromStr;

use voltier_block::Prng;

use crate::arrays;
use crate::fault::FaultKind;
use crate::hanging::hangs;
use crate::mix::{
    ages, bounds, congestion, crowd, draw_faults, draw_profile, flush_losses, full_and_ordered,
    limits, passed_ssds, refused_evacuations, remote_origins, streams, zeroes,
};
use crate::sweep;
use crate::sweep::arrays::ArrayCommand;
use crate::sweep::volumes::{self, Command};
use crate::takeover::Plan as Takeover;
use crate::workload::Profile;

/// One seed in so many is a sweep.
const SWEEP_ONE_IN: u64 = 12;
/// Steps of each client in a sweep, at most, before and after its crash points begin.
const SWEEP_STEPS: u64 = 12;
const SWEEP_WARM_UP_STEPS: u64 = 30;
/// One seed in so many is a management command, and one of its events in so many a crash point.
const COMMAND_ONE_IN: u64 = 40;
const COMMAND_STRIDE: u64 = 11;
/// The same of seeds of arrays.
const ARRAY_COMMAND_ONE_IN: u64 = 60;
const ARRAY_COMMAND_STRIDE: u64 = 29;
/// Lives of a chain, at most.
const LIVES: u64 = 6;

/// A seed, and what is cut away from what the seed draws.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scenario {
    /// All chance follows from it.
    pub seed: u64,
    /// At most so many lives.
    pub lives: Option<u64>,
    /// At most so many clients.
    pub clients: Option<u64>,
    /// At most so many steps of each client in a life.
    pub steps: Option<u64>,
    /// Only this crash point of a sweep.
    pub event: Option<u64>,
    /// A management command, and nothing of what the seed draws otherwise.
    pub command: Option<Command>,
    /// A management command of arrays, and nothing of what the seed draws otherwise.
    pub array_command: Option<ArrayCommand>,
    /// One event of a command in so many is a crash point: 1 for all.
    pub stride: Option<u64>,
    /// A world of arrays (see [`arrays`]), not of a cache.
    pub arrays: bool,
    /// A [takeover](crate::Takeover), whatever the seed draws.
    pub takeover: bool,
    /// Kinds of faults that do not happen.
    pub without: Vec<FaultKind>,
}

impl Scenario {
    /// All that a seed of arrays draws.
    pub fn of_array_seed(seed: u64) -> Self {
        Self { seed, arrays: true, ..Self::default() }
    }

    /// All that a seed draws.
    pub fn of_seed(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// The takeover of a seed.
    pub fn of_takeover(seed: u64) -> Self {
        Self { takeover: true, ..Self::of_seed(seed) }
    }

    /// Every event of a management command.
    pub fn of_command(command: Command, seed: u64) -> Self {
        Self { command: Some(command), stride: Some(1), ..Self::of_seed(seed) }
    }

    /// Every event of a management command of arrays.
    pub fn of_array_command(command: ArrayCommand, seed: u64) -> Self {
        Self { array_command: Some(command), stride: Some(1), ..Self::of_array_seed(seed) }
    }

    /// A scenario from its seed and its text, as `Display` writes it; `-` cuts nothing.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn parse(seed: u64, text: &str) -> Result<Self, String> {
        let mut scenario = Self::of_seed(seed);
        for part in text.split(',').filter(|part| !part.is_empty() && *part != "-") {
            let Some((name, value)) = part.split_once('=') else {
                return Err(format!("scenario '{part}' has no value; write NAME=VALUE,..."));
            };
            let number = || u64::from_str(value).map_err(|_| format!("'{value}' is no number"));
            match name {
                "lives" => scenario.lives = Some(number()?),
                "clients" => scenario.clients = Some(number()?),
                "steps" => scenario.steps = Some(number()?),
                "event" => scenario.event = Some(number()?),
                "stride" => scenario.stride = Some(number()?.max(1)),
                "command" => {
                    scenario.array_command = ArrayCommand::of_word(value);
                    if scenario.array_command.is_none() {
                        let known = Command::of_word(value);
                        scenario.command =
                            Some(known.ok_or(format!("no command is called '{value}'"))?);
                    }
                }
                "arrays" => scenario.arrays = number()? != 0,
                "takeover" => scenario.takeover = number()? != 0,
                "without" => {
                    for kind in value.split('+') {
                        let known = FaultKind::of_name(kind);
                        scenario.without.push(known.ok_or(format!("no fault is called '{kind}'"))?);
                    }
                }
                _ => return Err(format!("a scenario has no '{name}'")),
            }
        }
        Ok(scenario)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrays = self.arrays.then_some(1);
        let takeover = self.takeover.then_some(1);
        let numbers = [
            ("arrays", arrays),
            ("takeover", takeover),
            ("lives", self.lives),
            ("clients", self.clients),
            ("steps", self.steps),
            ("event", self.event),
            ("stride", self.stride),
        ];
        let mut parts: Vec<String> = numbers
            .into_iter()
            .filter_map(|(name, value)| value.map(|value| format!("{name}={value}")))
            .collect();
        if let Some(command) = self.command {
            parts.push(format!("command={}", command.word()));
        }
        if let Some(command) = self.array_command {
            parts.push(format!("command={}", command.word()));
        }
        if !self.without.is_empty() {
            let names: Vec<&str> = self.without.iter().map(|kind| kind.name()).collect();
            parts.push(format!("without={}", names.join("+")));
        }
        if parts.is_empty() {
            parts.push("-".to_owned());
        }
        out.write_str(&parts.join(","))
    }
}

/// The draws of a scenario, after the cuts.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// Cache, drives, clients, faults.
    pub profile: Profile,
    /// A management command instead of all else.
    pub managed: Option<volumes::Plan>,
    /// Another host takes the volume over, instead of lives.
    pub takeover: Option<Takeover>,
    /// Every event of one short life is a crash point.
    pub sweep: bool,
    /// Lives, the last one without faults.
    pub lives: u64,
    /// Steps before the crash points of a sweep begin.
    pub warm_up_steps: u64,
}

impl Scenario {
    /// Draws the worlds of a cache, after the cuts.
    pub fn draw(&self) -> Drawn {
        let mut prng = Prng::new(self.seed ^ 0x7377_6172_6d00);
        let sweep = prng.one_in(SWEEP_ONE_IN);
        let mut profile = draw_profile(&mut prng);
        let lives = 2 + prng.below(LIVES - 1);
        let mut warm_up_steps = prng.below(SWEEP_WARM_UP_STEPS);
        let (ssd, origin) = (draw_faults(&mut prng), draw_faults(&mut prng));
        // Half of the sweeps are about crashes alone.
        if !sweep || prng.one_in(2) {
            (profile.ssd_faults, profile.origin_faults) = (ssd, origin);
        }
        if sweep {
            profile.steps = profile.steps.min(2 + prng.below(SWEEP_STEPS));
            profile.clients = profile.clients.min(3);
        }
        crowd(&mut profile, self.seed);
        congestion(&mut profile, self.seed);
        flush_losses(&mut profile, self.seed);
        zeroes(&mut profile, self.seed);
        ages(&mut profile, self.seed);
        limits(&mut profile, self.seed);
        if !sweep {
            streams(&mut profile, self.seed);
            full_and_ordered(&mut profile, self.seed);
        }
        refused_evacuations(&mut profile, self.seed);
        if !sweep {
            passed_ssds(&mut profile, self.seed);
            bounds(&mut profile, self.seed);
        }
        if !self.without.contains(&FaultKind::HungDrive) {
            hangs(&mut profile, self.seed);
        }
        if !sweep && !self.without.contains(&FaultKind::ServerDeath) {
            remote_origins(&mut profile, self.seed);
        }
        profile.clients = profile.clients.min(self.clients.unwrap_or(u64::MAX)).max(1);
        profile.steps = profile.steps.min(self.steps.unwrap_or(u64::MAX));
        warm_up_steps = warm_up_steps.min(self.steps.unwrap_or(u64::MAX));
        profile.ssd_faults.without(&self.without);
        profile.origin_faults.without(&self.without);
        let lives = lives.min(self.lives.unwrap_or(u64::MAX)).max(1);
        let drawn = prng.one_in(COMMAND_ONE_IN).then(|| *prng.pick(&Command::all()));
        let managed = self.command.or(drawn).map(|command| self.plan(command));
        let may_be = (!sweep && managed.is_none()) || self.takeover;
        let is_allowed = may_be && !self.without.contains(&FaultKind::Takeover);
        let takeover =
            is_allowed.then(|| Takeover::draw(&mut profile, self.seed, self.takeover)).flatten();
        Drawn { profile, managed, takeover, sweep, lives, warm_up_steps }
    }

    fn plan(&self, command: Command) -> volumes::Plan {
        let plan = match self.stride {
            Some(1) => volumes::Plan::exhaustive(command, self.seed),
            stride => {
                let stride = stride.unwrap_or(COMMAND_STRIDE);
                volumes::Plan::sampled(command, self.seed, stride)
            }
        };
        volumes::Plan { only: self.event, ..plan }
    }

    /// Draws the worlds of arrays, after the cuts.
    pub fn draw_arrays(&self) -> arrays::Setup {
        arrays::draw_setup(self.seed, self.clients, self.steps)
    }

    /// A management command of arrays, if the seed draws one instead.
    pub fn draw_array_command(&self) -> Option<sweep::arrays::Plan> {
        let mut prng = Prng::new(self.seed ^ 0x636f_6d6d_616e_6401);
        let is_drawn = self.arrays && prng.one_in(ARRAY_COMMAND_ONE_IN);
        let drawn = is_drawn.then(|| *prng.pick(&ArrayCommand::ALL));
        let command = self.array_command.or(drawn)?;
        let stride = self.stride.unwrap_or(ARRAY_COMMAND_STRIDE);
        Some(sweep::arrays::Plan { command, seed: self.seed, stride, only: self.event })
    }

    /// A cache over arrays, if the seed draws one instead.
    pub fn draw_stack(&self) -> Option<arrays::Stack> {
        let is_drawn =
            self.arrays.then(|| arrays::Stack::draw(self.seed, self.clients, self.steps));
        is_drawn.flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_is_what_its_text_says() {
        for text in ["-", "lives=2,event=7", "clients=1,without=bit-rot+drive-loss"]
            .into_iter()
            .chain(["stride=1,command=set-wt-then-flush", "event=3,command=set-mode-wb-to-wt"])
            .chain(["arrays=1,steps=3", "takeover=1,steps=9"])
        {
            assert_eq!(Scenario::parse(3, text).unwrap().to_string(), text);
        }
        for wrong in ["lives", "lives=x", "colour=1", "without=rain", "command=go"] {
            assert!(Scenario::parse(3, wrong).is_err(), "{wrong}");
        }
    }
}
