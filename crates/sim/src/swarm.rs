//! Swarm runs: every seed draws its own cache, drives, clients, faults and crashes.
//!
//! A seed is either a *walk*, a short life of which every event is a crash point (see
//! [`crash`](crate::crash)), or a chain of *lives*: a process serves while drives fail, ends in
//! some way at some event, and the next one starts on what it left. In the last life nothing
//! fails any more, and all must come to rest. Or it is a management command, crashed at some of its
//! events (see [`manage`]).

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::str::FromStr;

use voltier_block::Prng;

use crate::array_walk::{self, ArrayCommand};
use crate::arrays;
use crate::chain::run_lives;
use crate::crash::{Plan, run_in};
use crate::fault::FaultKind;
use crate::ledger::{Counts, Ledger};
use crate::manage::{self, Command};
use crate::mix::{congestion, crowd, draw_faults, draw_profile};
use crate::workload::Profile;

/// One seed in so many is a walk.
const WALK_ONE_IN: u64 = 12;
/// Steps of each client in a walk, at most, before and after its crash points begin.
const WALK_STEPS: u64 = 12;
const WALK_WARM_UP_STEPS: u64 = 30;
/// One seed in so many is a management command, and one of its events in so many a crash point.
const COMMAND_ONE_IN: u64 = 40;
const COMMAND_STRIDE: u64 = 11;
/// The same of seeds of arrays.
const ARRAY_COMMAND_ONE_IN: u64 = 60;
const ARRAY_COMMAND_STRIDE: u64 = 29;
/// Lives of a chain, at most.
const LIVES: u64 = 6;

/// What is run: a seed, and what is cut away from what it draws.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Story {
    /// All chance follows from it.
    pub seed: u64,
    /// At most so many lives.
    pub lives: Option<u64>,
    /// At most so many clients.
    pub clients: Option<u64>,
    /// At most so many steps of each client in a life.
    pub steps: Option<u64>,
    /// Only this crash point of a walk.
    pub event: Option<u64>,
    /// A management command, and nothing of what the seed draws otherwise.
    pub command: Option<Command>,
    /// A management command of arrays, and nothing of what the seed draws otherwise.
    pub array_command: Option<ArrayCommand>,
    /// One event of a command in so many is a crash point: 1 for all.
    pub stride: Option<u64>,
    /// A world of arrays (see [`arrays`]), not of a cache.
    pub arrays: bool,
    /// Kinds of faults that do not happen.
    pub without: Vec<FaultKind>,
}

impl Story {
    /// All that a seed of arrays draws.
    pub fn of_array_seed(seed: u64) -> Self {
        Self { seed, arrays: true, ..Self::default() }
    }

    /// All that a seed draws.
    pub fn of_seed(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Every event of a management command.
    pub fn of_command(command: Command, seed: u64) -> Self {
        Self { command: Some(command), stride: Some(1), ..Self::of_seed(seed) }
    }

    /// Every event of a management command of arrays.
    pub fn of_array_command(command: ArrayCommand, seed: u64) -> Self {
        Self { array_command: Some(command), stride: Some(1), ..Self::of_array_seed(seed) }
    }

    /// A story from its seed and its text, as `Display` writes it; `-` cuts nothing.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn parse(seed: u64, text: &str) -> Result<Self, String> {
        let mut story = Self::of_seed(seed);
        for part in text.split(',').filter(|part| !part.is_empty() && *part != "-") {
            let Some((name, value)) = part.split_once('=') else {
                return Err(format!("story '{part}' has no value; write NAME=VALUE,..."));
            };
            let number = || u64::from_str(value).map_err(|_| format!("'{value}' is no number"));
            match name {
                "lives" => story.lives = Some(number()?),
                "clients" => story.clients = Some(number()?),
                "steps" => story.steps = Some(number()?),
                "event" => story.event = Some(number()?),
                "stride" => story.stride = Some(number()?.max(1)),
                "command" => {
                    story.array_command = ArrayCommand::of_word(value);
                    if story.array_command.is_none() {
                        let known = Command::of_word(value);
                        story.command =
                            Some(known.ok_or(format!("no command is called '{value}'"))?);
                    }
                }
                "arrays" => story.arrays = number()? != 0,
                "without" => {
                    for kind in value.split('+') {
                        let known = FaultKind::of_name(kind);
                        story.without.push(known.ok_or(format!("no fault is called '{kind}'"))?);
                    }
                }
                _ => return Err(format!("a story has no '{name}'")),
            }
        }
        Ok(story)
    }
}

impl fmt::Display for Story {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrays = self.arrays.then_some(1);
        let numbers = [
            ("arrays", arrays),
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

/// What a story draws, after the cuts.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// Cache, drives, clients, faults.
    pub profile: Profile,
    /// A management command instead of all else.
    pub managed: Option<manage::Plan>,
    /// Every event of one short life is a crash point.
    pub walk: bool,
    /// Lives, the last one without faults.
    pub lives: u64,
    /// Steps before the crash points of a walk begin.
    pub warm_up_steps: u64,
}

/// A promise that was broken.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What was seen, and in which line of the code.
    pub message: String,
    /// Where the run was.
    pub place: String,
    /// The crash point of a walk.
    pub event: Option<u64>,
}

/// What became of a story.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What took effect.
    pub counts: Counts,
    /// Two runs of a story share it.
    pub trace_hash: u64,
    /// None if every promise was kept.
    pub failure: Option<Failure>,
    /// What happened last, if it was to be told.
    pub tale: Vec<String>,
}

impl Story {
    /// What the seed draws, after the cuts.
    pub fn draw(&self) -> Drawn {
        let mut prng = Prng::new(self.seed ^ 0x7377_6172_6d00);
        let walk = prng.one_in(WALK_ONE_IN);
        let mut profile = draw_profile(&mut prng);
        let lives = 2 + prng.below(LIVES - 1);
        let mut warm_up_steps = prng.below(WALK_WARM_UP_STEPS);
        let (ssd, origin) = (draw_faults(&mut prng), draw_faults(&mut prng));
        // Half of the walks are about crashes alone.
        if !walk || prng.one_in(2) {
            (profile.ssd_faults, profile.origin_faults) = (ssd, origin);
        }
        if walk {
            profile.steps = profile.steps.min(2 + prng.below(WALK_STEPS));
            profile.clients = profile.clients.min(3);
        }
        crowd(&mut profile, self.seed);
        congestion(&mut profile, self.seed);
        profile.clients = profile.clients.min(self.clients.unwrap_or(u64::MAX)).max(1);
        profile.steps = profile.steps.min(self.steps.unwrap_or(u64::MAX));
        warm_up_steps = warm_up_steps.min(self.steps.unwrap_or(u64::MAX));
        profile.ssd_faults.without(&self.without);
        profile.origin_faults.without(&self.without);
        let lives = lives.min(self.lives.unwrap_or(u64::MAX)).max(1);
        let drawn = prng.one_in(COMMAND_ONE_IN).then(|| *prng.pick(&Command::all()));
        let managed = self.command.or(drawn).map(|command| self.plan(command));
        Drawn { profile, managed, walk, lives, warm_up_steps }
    }

    fn plan(&self, command: Command) -> manage::Plan {
        let plan = match self.stride {
            Some(1) => manage::Plan::exhaustive(command, self.seed),
            stride => {
                let stride = stride.unwrap_or(COMMAND_STRIDE);
                manage::Plan::sampled(command, self.seed, stride)
            }
        };
        manage::Plan { only: self.event, ..plan }
    }

    /// What the seed draws for arrays, after the cuts.
    pub fn draw_arrays(&self) -> arrays::Setup {
        arrays::Setup::draw(self.seed, self.clients, self.steps)
    }

    /// A management command of arrays, if the seed draws one instead.
    pub fn draw_array_command(&self) -> Option<array_walk::Plan> {
        let mut prng = Prng::new(self.seed ^ 0x636f_6d6d_616e_6401);
        let is_drawn = self.arrays && prng.one_in(ARRAY_COMMAND_ONE_IN);
        let drawn = is_drawn.then(|| *prng.pick(&ArrayCommand::ALL));
        let command = self.array_command.or(drawn)?;
        let stride = self.stride.unwrap_or(ARRAY_COMMAND_STRIDE);
        Some(array_walk::Plan { command, seed: self.seed, stride, only: self.event })
    }

    /// A cache over arrays, if the seed draws one instead.
    pub fn draw_stack(&self) -> Option<arrays::Stack> {
        let is_drawn =
            self.arrays.then(|| arrays::Stack::draw(self.seed, self.clients, self.steps));
        is_drawn.flatten()
    }

    fn play(&self, ledger: &Rc<Ledger>) {
        if let Some(plan) = self.draw_array_command() {
            array_walk::run_in(&plan, ledger);
            return;
        }
        if let Some(stack) = self.draw_stack() {
            return arrays::run_stack(self.seed, stack, self.event, ledger);
        }
        if self.arrays {
            return arrays::run(self.seed, self.draw_arrays(), self.event, ledger);
        }
        let drawn = self.draw();
        if let Some(plan) = &drawn.managed {
            manage::run_in(plan, ledger);
        } else if drawn.walk {
            let plan = Plan {
                profile: drawn.profile,
                seed: self.seed,
                one_in: 1,
                warm_up_steps: drawn.warm_up_steps,
                only: self.event,
            };
            run_in(&plan, ledger);
        } else {
            run_lives(&drawn, self, ledger);
        }
    }

    /// Runs it. A broken promise is caught; `telling` keeps what happened last.
    pub fn run(&self, telling: bool) -> Outcome {
        let ledger = Rc::new(if telling { Ledger::telling() } else { Ledger::default() });
        CAUGHT.with(|caught| caught.replace(Some(String::new())));
        let ended = catch_unwind(AssertUnwindSafe(|| self.play(&ledger)));
        let caught = CAUGHT.with(|caught| caught.replace(None));
        let failure = ended.is_err().then(|| {
            let (place, event) = ledger.place();
            Failure { message: caught.unwrap_or_default(), place, event }
        });
        let (counts, trace_hash) = (ledger.counts(), ledger.trace_hash());
        Outcome { counts, trace_hash, failure, tale: ledger.tale() }
    }
}

/// A story that is kept.
#[derive(Clone, Debug)]
pub struct Kept {
    /// What is run.
    pub story: Story,
    /// What it showed once.
    pub why: String,
}

/// The stories that are kept because they once broke a promise.
///
/// # Errors
/// The line that is no story.
pub fn regressions() -> Result<Vec<Kept>, String> {
    let lines = include_str!("../regressions").lines();
    let stories = lines.filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    stories
        .map(|line| {
            let mut words = line.splitn(3, ' ');
            let seed = words.next().and_then(|word| word.parse().ok());
            let (Some(seed), Some(text), Some(why)) = (seed, words.next(), words.next()) else {
                return Err(format!("'{line}' in crates/sim/regressions is not SEED STORY WHY"));
            };
            Ok(Kept { story: Story::parse(seed, text)?, why: why.to_owned() })
        })
        .collect()
}

thread_local! {
    /// What the last panic of this thread said, while a story is run.
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// From now on a panic inside a story is kept for its outcome instead of printed.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_story_is_what_its_text_says() {
        for text in ["-", "lives=2,event=7", "clients=1,without=bit-rot+drive-loss"]
            .into_iter()
            .chain(["stride=1,command=set-wt-then-flush", "event=3,command=set-mode-wb-to-wt"])
            .chain(["arrays=1,steps=3"])
        {
            assert_eq!(Story::parse(3, text).unwrap().to_string(), text);
        }
        for wrong in ["lives", "lives=x", "colour=1", "without=rain", "command=go"] {
            assert!(Story::parse(3, wrong).is_err(), "{wrong}");
        }
    }
}
