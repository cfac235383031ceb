//! Runs swarm seeds on all cores and prints what happened: `cargo xtask sim` starts it.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use voltier_sim::report::{Summary, failure};
use voltier_sim::scenario::Scenario;
use voltier_sim::shrink::shrink;
use voltier_sim::swarm::{self, catch_panics, regressions};
use voltier_sim::sweep::arrays::ArrayCommand;
use voltier_sim::sweep::volumes::Command;

const USAGE: &str = "\
usage: cargo xtask sim [--arrays | --takeovers] [--seeds N | --minutes M | --seed S [--scenario TEXT]]
       cargo xtask sim --manage N
  --arrays       worlds of arrays instead of caches
  --takeovers    of caches only those of which another host takes the image over
  --seeds N      so many seeds (default 1000), after the kept regressions
  --minutes M    as many seeds as fit
  --manage N     every management command, crashed at every event, with N seeds each
                 (four have all pairs of block sizes)
  --seed S       one seed again, and what happened last in it
  --scenario TEXT   with --seed: what is cut away, as a violation prints it
  --from F       the first seed (default 1)
  --twice N      so many of the seeds run twice, and must do the same (default 50)
  --traces FILE  the trace hash of every scenario, one line each in the order of the seeds:
                 the same file before and after a change says that it changed no behaviour
  --threads T    threads (default: one a core)";

/// Violations after which a run ends: more of them say nothing new.
const VIOLATIONS_MAX: u64 = 20;
/// How often a line tells how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Arguments(BTreeMap<String, String>);

impl Arguments {
    const NAMES: [&str; 11] = [
        "--arrays",
        "--takeovers",
        "--seeds",
        "--minutes",
        "--manage",
        "--seed",
        "--scenario",
        "--from",
        "--twice",
        "--traces",
        "--threads",
    ];
    const KINDS: [&str; 4] = ["--seeds", "--minutes", "--manage", "--seed"];

    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut found = Self::default();
        while let Some(name) = words.next() {
            if !Self::NAMES.contains(&name.as_str()) {
                return Err(format!("'{name}' is not an option"));
            }
            if name == "--arrays" || name == "--takeovers" {
                found.0.insert(name, String::new());
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{name} needs a value"))?;
            found.0.insert(name, value);
        }
        let has = |name: &str| found.0.contains_key(name);
        if Self::KINDS.iter().filter(|kind| has(kind)).count() > 1 {
            return Err(format!("give one of {}", Self::KINDS.join(", ")));
        }
        if has("--scenario") && !has("--seed") {
            return Err("--scenario needs --seed".to_owned());
        }
        Ok(found)
    }

    fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        let Some(text) = self.0.get(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| format!("{name} takes a number, not '{text}'"))
    }
}

#[expect(clippy::disallowed_methods, reason = "a tool that measures its own real time")]
fn now() -> Instant {
    Instant::now()
}

/// Time that this thread had a core: what other programs take meanwhile does not count.
fn core_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The state that the threads share.
struct Run {
    next: u64,
    end: u64,
    until: Option<Instant>,
    twice_until: u64,
    /// Run first, the last one first.
    first: Vec<Scenario>,
    arrays: bool,
    takeovers: bool,
    summary: Summary,
    /// Of each scenario so far: its seed, what is cut away of it, and its trace hash.
    traces: Vec<(u64, String, u64)>,
    told: Instant,
    begun: Instant,
}

impl Run {
    fn next_scenario(&mut self) -> Option<(Scenario, bool)> {
        if self.summary.violations >= VIOLATIONS_MAX {
            return None;
        }
        if let Some(scenario) = self.first.pop() {
            return Some((scenario, false));
        }
        if self.next >= self.end || self.until.is_some_and(|until| now() >= until) {
            return None;
        }
        self.next += 1;
        let seed = self.next - 1;
        let scenario = match (self.arrays, self.takeovers) {
            (true, _) => Scenario::of_array_seed(seed),
            (_, true) => Scenario::of_takeover(seed),
            _ => Scenario::of_seed(seed),
        };
        Some((scenario, seed < self.twice_until))
    }

    fn progress(&mut self) {
        if now() - self.told < PROGRESS {
            return;
        }
        self.told = now();
        let seconds = (now() - self.begun).as_secs();
        eprintln!("{seconds:5} s: {}", self.summary.line());
    }
}

/// One thread: scenario after scenario.
fn work(run: &Mutex<Run>) {
    loop {
        let next = run.lock().expect("no thread dies with it").next_scenario();
        let Some((scenario, twice)) = next else { return };
        let begun = core_time();
        let mut outcome = swarm::run(&scenario, false);
        let spent = core_time() - begun;
        if twice && outcome.failure.is_none() {
            let again = swarm::run(&scenario, false);
            if again.trace_hash != outcome.trace_hash || again.counts != outcome.counts {
                outcome.failure = again.failure.or_else(|| {
                    Some(swarm::Failure {
                        message: "the same seed did not do the same twice".to_owned(),
                        place: format!("seed {}", scenario.seed),
                        event: None,
                    })
                });
            }
        }
        if let Some(found) = &outcome.failure {
            let (short, _) = shrink(&scenario, found);
            let told = swarm::run(&short, true);
            let text = if told.failure.is_some() {
                failure(&short, &told)
            } else {
                failure(&scenario, &outcome)
            };
            println!("seed {}:\n{text}", scenario.seed);
        }
        let mut run = run.lock().expect("no thread dies with it");
        run.summary.add(&outcome, spent);
        run.traces.push((scenario.seed, scenario.to_string(), outcome.trace_hash));
        run.progress();
    }
}

fn run_one(seed: u64, text: &str, (arrays, takeover): (bool, bool)) -> Result<u64, String> {
    let mut scenario = Scenario::parse(seed, text)?;
    scenario.arrays |= arrays;
    scenario.takeover |= takeover;
    if let Some(plan) = scenario.draw_array_command() {
        println!("{plan:#?}");
    } else if let Some(stack) = scenario.draw_stack() {
        println!("{stack:#?}");
    } else if scenario.arrays {
        println!("{:#?}", scenario.draw_arrays());
    } else {
        println!("{:#?}", scenario.draw());
    }
    let begun = core_time();
    let outcome = swarm::run(&scenario, true);
    let spent = core_time() - begun;
    for line in &outcome.tale {
        println!("  {line}");
    }
    let again = swarm::run(&scenario, false);
    let same = again.trace_hash == outcome.trace_hash;
    let mut summary = Summary::default();
    summary.add(&outcome, spent);
    if let Some(failure) = &outcome.failure {
        println!("VIOLATION: {}\n  at: {}", failure.message, failure.place);
    } else if !same {
        println!("VIOLATION: the same seed did not do the same twice");
        summary.violations += 1;
    }
    print!("{}", summary.table());
    println!("{}", summary.line());
    Ok(summary.violations)
}

/// Every management command with so many seeds.
fn every_command(seeds: u64) -> Vec<Scenario> {
    let commands = (0..).zip(Command::all());
    let of_volumes = commands.flat_map(|(at, command)| {
        (at..at + seeds).map(move |it| Scenario::of_command(command, it))
    });
    let commands = (0..).zip(ArrayCommand::ALL);
    let of_arrays = commands.flat_map(|(at, command)| {
        (at..at + seeds).map(move |it| Scenario::of_array_command(command, it))
    });
    of_volumes.chain(of_arrays).collect()
}

/// One line a scenario, sorted: the threads finish scenarios in any order.
fn write_traces(path: &str, traces: &mut [(u64, String, u64)]) -> Result<(), String> {
    traces.sort_unstable();
    let lines =
        traces.iter().map(|(seed, scenario, hash)| format!("{seed} {scenario} {hash:016x}\n"));
    std::fs::write(path, lines.collect::<String>())
        .map_err(|error| format!("--traces: {path} cannot be written: {error}"))
}

fn run_many(arguments: &Arguments) -> Result<u64, String> {
    let minutes: Option<f64> = arguments.number("--minutes")?;
    let seeds: Option<u64> = arguments.number("--seeds")?;
    let from = arguments.number("--from")?.unwrap_or(1);
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    let threads = arguments.number("--threads")?.unwrap_or(cores).max(1);
    let twice: u64 = arguments.number("--twice")?.unwrap_or(50);
    let begun = now();
    let arrays = arguments.0.contains_key("--arrays");
    let takeovers = arguments.0.contains_key("--takeovers");
    let (mut first, count) = match arguments.number("--manage")? {
        Some(seeds) => (every_command(seeds), 0),
        None => {
            let kept = regressions()?.into_iter().map(|kept| kept.scenario);
            let is_asked = |it: &Scenario| it.arrays == arrays && (it.takeover || !takeovers);
            let kept = kept.filter(is_asked).collect();
            (kept, seeds.unwrap_or(if minutes.is_some() { u64::MAX - from } else { 1_000 }))
        }
    };
    let then = if count > 0 { format!(", then seeds from {from} on") } else { String::new() };
    println!("{} scenarios{then}, {threads} threads", first.len());
    first.reverse();
    let run = Mutex::new(Run {
        next: from,
        end: from.saturating_add(count),
        until: minutes.map(|minutes| begun + Duration::from_secs_f64(60.0 * minutes)),
        twice_until: from.saturating_add(twice),
        first,
        arrays,
        takeovers,
        summary: Summary::default(),
        traces: Vec::new(),
        told: begun,
        begun,
    });
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work(&run));
        }
    });
    let mut run = run.into_inner().expect("no thread dies with it");
    if let Some(path) = arguments.0.get("--traces") {
        write_traces(path, &mut run.traces)?;
    }
    print!("{}", run.summary.table());
    println!("{}", run.summary.line());
    Ok(run.summary.violations)
}

fn main() -> ExitCode {
    catch_panics();
    let done = Arguments::parse(std::env::args().skip(1)).and_then(|arguments| {
        match arguments.number("--seed")? {
            Some(seed) => {
                let is_asked = |name: &str| arguments.0.contains_key(name);
                let text = arguments.0.get("--scenario").map_or("-", |text| text);
                run_one(seed, text, (is_asked("--arrays"), is_asked("--takeovers")))
            }
            None => run_many(&arguments),
        }
    });
    match done {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("voltier-sim: {why}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}
