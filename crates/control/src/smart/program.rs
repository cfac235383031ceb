//! Runs a program that asks a drive: what it prints, for a bounded time. One that hangs in the kernel cannot be ended,
//! and is awaited, so that its drive is not asked again before.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::error::plain;
use crate::events::pace::now;

/// How often a program is looked at: at first, and at most.
const STEP: Duration = Duration::from_millis(5);
const STEP_MAX: Duration = Duration::from_millis(100);
/// How often one that was killed and has not ended is looked at.
const KILLED_STEP: Duration = Duration::from_secs(1);
/// smartctl prints some kilobytes.
const SAID_BYTES_MAX: usize = 1 << 20;

/// Runs a program to its end; its exit status and what it printed. When it takes longer than `limit`, prints too much,
/// or `is_given_up`, it is killed with its group.
///
/// # Errors
/// Why nothing was heard, in words.
pub(super) fn output(
    command: &mut Command,
    limit: Duration,
    is_given_up: impl Fn() -> bool,
) -> Result<(ExitStatus, Vec<u8>), String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let child = command.process_group(0).spawn();
    let mut child = child.map_err(|error| format!("it could not be started: {}", plain(&error)))?;
    let mut from = child.stdout.take();
    let is_set = from.as_ref().is_some_and(|it| ioctl_fionbio(it.as_fd(), true).is_ok());
    let (until, mut said, mut step) = (now() + limit, Vec::new(), STEP);
    let why = loop {
        let is_too_much = is_set && from.as_mut().is_some_and(|from| !hear(from, &mut said));
        match child.try_wait() {
            Ok(Some(status)) => {
                // What it printed last; a program that it left behind may have the pipe for ever.
                if is_set && let Some(from) = &mut from {
                    hear(from, &mut said);
                }
                return Ok((status, said));
            }
            Ok(None) if is_too_much => break "it prints without end".to_owned(),
            Ok(None) if is_given_up() => break "the daemon ends".to_owned(),
            Ok(None) if now() >= until => {
                break format!("it had not ended after {} s", limit.as_secs());
            }
            Ok(None) => thread::park_timeout(step),
            Err(error) => return Err(plain(&error)),
        }
        step = (step * 2).min(STEP_MAX);
    };
    drop(from);
    kill(&mut child);
    Err(why)
}

/// Takes what is in the pipe; whether it is not too much.
fn hear(from: &mut ChildStdout, said: &mut Vec<u8>) -> bool {
    let mut bytes = [0; 4096];
    while said.len() <= SAID_BYTES_MAX {
        let Ok(count @ 1..) = from.read(&mut bytes) else { return true };
        said.extend(bytes.iter().take(count));
    }
    false
}

/// Kills a program with its group, and waits for its end.
fn kill(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let mut step = STEP;
    while matches!(child.try_wait(), Ok(None)) {
        thread::park_timeout(step);
        step = (step * 2).min(KILLED_STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::run::command;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(text: &str, limit: Duration) -> Result<(Option<i32>, Vec<u8>), String> {
        let said = output(&mut command(&["/bin/sh", "-c", text]), limit, || false);
        said.map(|(status, said)| (status.code(), said))
    }

    #[test]
    fn what_a_program_prints_is_heard_whatever_its_exit_code() {
        assert_eq!(shell("printf hello; exit 4", LONG), Ok((Some(4), b"hello".to_vec())));
        let (_, said) = shell("head -c 300000 /dev/zero", LONG).unwrap();
        assert_eq!(said.len(), 300_000);
        // The second program has the pipe for as long as it lives.
        assert_eq!(shell("printf x; sleep 5 & exit 0", LONG).unwrap().1, b"x");
        let missing = output(&mut command(&["no-such-program"]), LONG, || false).unwrap();
        assert_eq!((missing.0.code(), missing.1), (Some(127), Vec::new()));
    }

    #[test]
    fn one_that_hangs_or_talks_without_end_or_is_not_wanted_any_more_is_killed() {
        let error = shell("sleep 600", Duration::from_millis(100)).unwrap_err();
        assert!(error.starts_with("it had not ended"), "{error}");
        assert_eq!(shell("yes", LONG).unwrap_err(), "it prints without end");
        let hangs = &mut command(&["/bin/sh", "-c", "sleep 600"]);
        assert_eq!(output(hangs, LONG, || true).unwrap_err(), "the daemon ends");
    }
}
