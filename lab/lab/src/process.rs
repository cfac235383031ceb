//! Programs that a run starts: waited for with a deadline, stopped by id, never left behind.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub use voltier_results::Stop;

use crate::LabError;
use crate::thread_load::ThreadLoad;

/// How often a running program is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a program that was asked to end may take to say what it has.
const GRACE: Duration = Duration::from_secs(15);

/// The end of a program, and its output.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

impl Finished {
    /// The last line it said that is not empty, for a one-line error message.
    pub fn last_words(&self) -> String {
        [&self.stderr, &self.stdout]
            .iter()
            .find_map(|text| text.lines().map(str::trim).rfind(|line| !line.is_empty()))
            .map_or_else(|| self.status.to_string(), str::to_owned)
    }
}

/// A program in the foreground of the run; killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    what: String,
}

impl Running {
    /// Starts `command`; its input is empty. `what` names it in messages.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(command: &mut Command, what: &str) -> Result<Running, LabError> {
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .map_err(LabError::file(Path::new(command.get_program())))?;
        Ok(Running { child, what: what.to_owned() })
    }

    /// The process id of the program.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// `Timeout` and `Interrupted`; the program has then been killed.
    pub fn wait(&mut self, limit: Duration, stop: &Stop) -> Result<ExitStatus, LabError> {
        self.wait_or_leave(limit, stop, &mut || {})?.ok_or_else(|| {
            self.kill();
            LabError::Interrupted
        })
    }

    /// Waits until it ends. When the user asks to stop, the program is asked to end as by Ctrl-C and
    /// has `grace` to say what it has so far. `each` is called whenever the program was looked at.
    ///
    /// # Errors
    /// `Timeout`; the program has then been killed.
    pub fn wait_gently(
        &mut self,
        limit: Duration,
        grace: Duration,
        stop: &Stop,
        each: &mut dyn FnMut(),
    ) -> Result<ExitStatus, LabError> {
        match self.wait_or_leave(limit, stop, each)? {
            Some(status) => Ok(status),
            None => {
                if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
                    kill_process(pid, Signal::INT).ok();
                }
                self.wait(grace, &Stop::default())
            }
        }
    }

    /// The status once it ended; `None` when the user asked to stop first.
    fn wait_or_leave(
        &mut self,
        limit: Duration,
        stop: &Stop,
        each: &mut dyn FnMut(),
    ) -> Result<Option<ExitStatus>, LabError> {
        let deadline = Deadline::after(limit);
        loop {
            if let Some(status) = self.child.try_wait().map_err(LabError::file(&self.what))? {
                return Ok(Some(status));
            }
            if stop.check().is_err() {
                return Ok(None);
            }
            if deadline.is_over() {
                self.kill();
                return Err(LabError::Timeout {
                    what: self.what.clone(),
                    seconds: limit.as_secs(),
                });
            }
            each();
            pause(POLL_INTERVAL);
        }
    }

    fn kill(&mut self) {
        // Both fail only when it has ended already, which is what is wanted.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs `command` to its end and keeps what it said, whatever its exit status.
///
/// # Errors
/// As [`Running::start`] and [`Running::wait`].
pub fn run(
    command: &mut Command,
    what: &str,
    limit: Duration,
    stop: &Stop,
) -> Result<Finished, LabError> {
    kept(command, |command| Running::start(command, what)?.wait(limit, stop))
}

/// [`run`], but a user's stop reaches the program as Ctrl-C does, and what it says then is kept. Also
/// tells how busy the busiest of its threads was, as a percentage of one processor.
///
/// # Errors
/// As [`Running::start`] and [`Running::wait_gently`].
pub fn run_gently(
    command: &mut Command,
    what: &str,
    limit: Duration,
    stop: &Stop,
) -> Result<(Finished, Option<f64>), LabError> {
    let mut busiest = None;
    let finished = kept(command, |command| {
        let mut running = Running::start(command, what)?;
        let mut threads = ThreadLoad::of(running.id());
        let status = running.wait_gently(limit, GRACE, stop, &mut || threads.look())?;
        busiest = threads.busiest_percent();
        Ok(status)
    })?;
    Ok((finished, busiest))
}

/// Runs `command` by `run` and keeps what it said.
fn kept(
    command: &mut Command,
    run: impl FnOnce(&mut Command) -> Result<ExitStatus, LabError>,
) -> Result<Finished, LabError> {
    // Files, not pipes: nobody has to read while it runs. A daemon it leaves behind that kept the
    // descriptors open cannot hold the run up.
    let mut stdout = tempfile::tempfile().map_err(LabError::file(std::env::temp_dir()))?;
    let mut stderr = tempfile::tempfile().map_err(LabError::file(std::env::temp_dir()))?;
    command.stdout(duplicate(&stdout)?).stderr(duplicate(&stderr)?);
    let status = run(command)?;
    Ok(Finished { status, stdout: read_all(&mut stdout)?, stderr: read_all(&mut stderr)? })
}

fn duplicate(file: &File) -> Result<File, LabError> {
    file.try_clone().map_err(LabError::file(std::env::temp_dir()))
}

fn read_all(file: &mut File) -> Result<String, LabError> {
    let mut bytes = Vec::new();
    file.rewind()
        .and_then(|()| file.read_to_end(&mut bytes))
        .map_err(LabError::file(std::env::temp_dir()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Stops a process that is not a child of ours: asks, waits up to `grace`, then kills.
pub fn stop_by_pid(pid: i32, grace: Duration) {
    let Some(target) = Pid::from_raw(pid) else { return };
    if kill_process(target, Signal::TERM).is_err() {
        return;
    }
    let deadline = Deadline::after(grace);
    while is_alive(pid) && !deadline.is_over() {
        pause(POLL_INTERVAL);
    }
    if is_alive(pid) {
        kill_process(target, Signal::KILL).ok();
        let deadline = Deadline::after(Duration::from_secs(5));
        while is_alive(pid) && !deadline.is_over() {
            pause(POLL_INTERVAL);
        }
    }
}

/// Whether a process runs. One that has ended and that nobody has waited for does not.
pub fn is_alive(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // "12 (name (any)) S ...": the state follows the last parenthesis.
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    !state.is_some_and(|state| state.starts_with(['Z', 'X']))
}

/// A moment on the machine's clock.
#[derive(Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// `limit` from now.
    #[expect(clippy::disallowed_methods, reason = "other programs live in the machine's time")]
    pub fn after(limit: Duration) -> Deadline {
        Deadline(Instant::now() + limit)
    }

    /// Whether the deadline has passed.
    #[expect(clippy::disallowed_methods, reason = "other programs live in the machine's time")]
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.0
    }
}

/// Sleeps.
#[expect(clippy::disallowed_methods, reason = "waits for other programs, in the machine's time")]
pub fn pause(interval: Duration) {
    std::thread::sleep(interval);
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_status_are_kept() {
        let script = "echo out; echo first >&2; echo last >&2; exit 3";
        let finished = run(&mut shell(script), "sh", LONG, &Stop::default()).unwrap();
        assert_eq!(finished.status.code(), Some(3));
        assert_eq!(finished.stdout, "out\n");
        assert_eq!(finished.last_words(), "last");
    }

    #[test]
    fn a_program_that_says_nothing_is_described_by_its_status() {
        let finished = run(&mut shell("exit 4"), "sh", LONG, &Stop::default()).unwrap();
        assert_eq!(finished.last_words(), "exit status: 4");
    }

    #[test]
    fn a_program_over_its_limit_is_stopped() {
        let mut running = Running::start(&mut shell("exec sleep 1000"), "sleep").unwrap();
        let pid = running.id();
        let error = running.wait(Duration::from_millis(1), &Stop::default()).unwrap_err();
        assert!(matches!(error, LabError::Timeout { .. }), "{error}");
        assert!(!is_alive(pid.cast_signed()));
    }

    #[test]
    fn an_interrupted_run_stops_its_program() {
        let stop = Stop::default();
        stop.set();
        let mut running = Running::start(&mut shell("exec sleep 1000"), "sleep").unwrap();
        let pid = running.id();
        assert!(matches!(running.wait(LONG, &stop), Err(LabError::Interrupted)));
        assert!(!is_alive(pid.cast_signed()));
    }

    #[test]
    fn a_process_that_ignores_the_request_is_killed() {
        let running = Running::start(
            &mut shell("trap '' TERM; while :; do sleep 0.05; done"),
            "a stubborn shell",
        )
        .unwrap();
        let pid = running.id().cast_signed();
        stop_by_pid(pid, Duration::from_millis(50));
        assert!(!is_alive(pid));
    }
}
