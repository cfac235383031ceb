//! fio, the client that everything is measured by: started, limited, and read.
//!
//! Only figures that fio itself measured are used, as fio counts them. Reading route: [`Job`] is
//! what is asked for, [`Outcome`] what it came to, [`Fio`] the program.

mod job;
mod output;

pub use job::{Job, Pattern, Target, Until};
pub use output::{Outcome, parse};

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::LabError;
use crate::process::{self, Finished, Stop};

/// The oldest fio whose JSON has nanoseconds and whose NBD engine can be relied on.
pub const OLDEST: (u32, u32) = (3, 13);

/// The oldest fio that the plans are run with: JSON+ with the bins of whole latencies.
pub const OLDEST_FOR_PLANS: (u32, u32) = (3, 30);

/// The time that a run may take beyond its own: connecting, laying out memory, ending.
const SLACK: Duration = Duration::from_secs(60);

/// The limit of a job that ends when it has moved its bytes, not after a time.
const ONCE_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// A fio that is installed and new enough.
#[derive(Clone, Debug)]
pub struct Fio {
    version: String,
    engines: Vec<String>,
    variables: Vec<(&'static str, String)>,
}

impl Fio {
    /// Looks for fio on PATH; it must be `oldest` or newer.
    ///
    /// # Errors
    /// `Missing` or `FioUnfit`, each with what to do.
    pub fn find(oldest: (u32, u32), stop: &Stop) -> Result<Fio, LabError> {
        let ask =
            |argument: &str| process::run(Command::new("fio").arg(argument), "fio", SLACK, stop);
        let version = match ask("--version") {
            Ok(finished) => finished.stdout.trim().to_owned(),
            Err(LabError::File { .. }) => {
                return Err(LabError::Missing { program: "fio", package: "fio" });
            }
            Err(error) => return Err(error),
        };
        check_version(&version, oldest)?;
        let engines = ask("--enghelp")?.stdout.lines().map(|line| line.trim().to_owned()).collect();
        Ok(Fio { version, engines, variables: Vec::new() })
    }

    /// The same with a variable of the environment for the jobs that [`run`](Fio::run) runs.
    #[must_use]
    pub fn with_variable(mut self, name: &'static str, value: &str) -> Fio {
        self.variables.push((name, value.to_owned()));
        self
    }

    /// The version by which fio calls itself: "fio-3.33".
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether fio was built with an engine.
    pub fn has_engine(&self, engine: &str) -> bool {
        self.engines.iter().any(|known| known == engine)
    }

    /// Makes sure that it was built with an engine.
    ///
    /// # Errors
    /// `FioUnfit`, with what to do.
    pub fn need_engine(&self, engine: &str) -> Result<(), LabError> {
        if self.has_engine(engine) {
            return Ok(());
        }
        Err(LabError::FioUnfit {
            found: self.version.clone(),
            why: format!(
                "it was built without the {engine} engine: install the one of the distribution \
                 with `apt-get install fio`"
            ),
        })
    }

    /// Runs one job and reads its result.
    ///
    /// # Errors
    /// `Failed` with fio's own words when it or any request failed; `Timeout`, `Interrupted`.
    pub fn run(&self, job: &Job, target: &Target, stop: &Stop) -> Result<Outcome, LabError> {
        let what = format!("fio job {}", job.name);
        let mut command = Command::new("fio");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.arg("--output-format=json+").args(job.arguments(target));
        // fio writes verify states into the current folder.
        command.current_dir(std::env::temp_dir());
        let finished = process::run(&mut command, &what, limit([job]), stop)?;
        // A terminal's Ctrl-C reaches fio as well, which then ends early with a result.
        stop.check()?;
        check(&finished, &what)?;
        let outcomes = parse(&finished.stdout, &what)?;
        let [outcome] = <[Outcome; 1]>::try_from(outcomes).map_err(|all| LabError::Answer {
            what,
            detail: format!("{} jobs where one was run", all.len()),
        })?;
        Ok(outcome)
    }

    /// Runs a whole command line of fio that writes its result to the file `raw`.
    ///
    /// # Errors
    /// As [`Fio::run`]; `Interrupted` when nothing was measured before the user's stop.
    pub fn run_to(
        &self,
        arguments: &[String],
        raw: &Path,
        limit: Duration,
        stop: &Stop,
    ) -> Result<Ran, LabError> {
        let what = "fio";
        // The output of a killed run before is not to be taken for a result of this one.
        std::fs::remove_file(raw).ok();
        let mut command = fio_that_ends_with_us();
        command.args(arguments).current_dir(raw.parent().unwrap_or(Path::new(".")));
        let (finished, busiest_thread_percent) =
            process::run_gently(&mut command, what, limit, stop)?;
        let was_cut = stop.check().is_err();
        let ran = |outcomes| Ran { outcomes, was_cut, busiest_thread_percent };
        let text = std::fs::read(raw).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        if was_cut {
            let text = text.map_err(|_| LabError::Interrupted)?;
            return parse(&text, what).map(ran).map_err(|_| LabError::Interrupted);
        }
        check(&finished, what)?;
        parse(&text.map_err(LabError::file(raw))?, what).map(ran)
    }
}

/// The end of a command line of fio.
#[derive(Debug)]
pub struct Ran {
    /// The outcome of each group of jobs.
    pub outcomes: Vec<Outcome>,
    /// Whether the user cut it short.
    pub was_cut: bool,
    /// The share of its time that the busiest of fio's threads was on a processor, percent; `None`
    /// of a short run.
    pub busiest_thread_percent: Option<f64>,
}

/// fio, killed by the kernel when this program is: it would go on writing to the target.
fn fio_that_ends_with_us() -> Command {
    let setpriv = Path::new("/usr/bin/setpriv");
    if !setpriv.exists() {
        return Command::new("fio");
    }
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL", "fio"]);
    command
}

/// How long jobs that run at the same time may take.
pub fn limit<'a>(jobs: impl IntoIterator<Item = &'a Job>) -> Duration {
    let longest = jobs.into_iter().map(|job| match job.until {
        Until::Time(time) => time + SLACK,
        Until::Once => ONCE_LIMIT,
    });
    longest.max().unwrap_or(SLACK)
}

fn check(finished: &Finished, what: &str) -> Result<(), LabError> {
    if finished.status.success() {
        return Ok(());
    }
    Err(LabError::Failed { what: what.to_owned(), detail: finished.last_words() })
}

fn check_version(version: &str, oldest: (u32, u32)) -> Result<(), LabError> {
    let numbers = version.strip_prefix("fio-").and_then(|rest| rest.split_once('.'));
    let leading = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text[..end].parse::<u32>().ok()
    };
    let pair = numbers.and_then(|(major, minor)| Some((leading(major)?, leading(minor)?)));
    if pair.is_some_and(|pair| pair >= oldest) {
        return Ok(());
    }
    Err(LabError::FioUnfit {
        found: if version.is_empty() { "fio".to_owned() } else { version.to_owned() },
        why: format!(
            "version {}.{} or newer is needed: run `apt-get install fio`",
            oldest.0, oldest.1
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for good in ["fio-3.13", "fio-3.33", "fio-3.40-dirty", "fio-4.0"] {
            check_version(good, OLDEST).unwrap();
        }
        for bad in ["fio-2.0.13", "fio-3.9", "", "fio"] {
            assert!(matches!(check_version(bad, OLDEST), Err(LabError::FioUnfit { .. })), "{bad}");
        }
        let error = check_version("fio-3.28", OLDEST_FOR_PLANS).unwrap_err().to_string();
        assert!(error.contains("fio-3.28") && error.contains("3.30 or newer"), "{error}");
    }
}
