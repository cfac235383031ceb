//! Runs the program of a hook: a process group of its own, a bounded time, and what it said last.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::error::plain;
use crate::events::pace::now;

/// How often a program is looked at.
const STEP: Duration = Duration::from_millis(20);
/// How long a program that was killed is awaited: one that hangs in the kernel stays.
const KILLED_MAX: Duration = Duration::from_secs(1);
/// What is kept of what a program says.
const SAID_BYTES_MAX: usize = 2000;

/// Tells the kernel that this process may be killed for its memory, as the daemon may not, and becomes the program.
const BEGIN: &str = "{ echo 0 >/proc/self/oom_score_adj; } 2>/dev/null; exec \"$@\"";

/// The command that runs a program with its arguments.
pub(crate) fn command(program_and_arguments: &[&str]) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", BEGIN, "voltier"]).args(program_and_arguments);
    // It is no service, and has nothing to say to the service manager.
    command.env_remove("NOTIFY_SOCKET").env_remove("LISTEN_FDS").env_remove("LISTEN_PID");
    command
}

/// Runs a command with this on its standard input. When it takes longer than `limit`, or `is_given_up`, it is killed
/// with its group.
///
/// # Errors
/// Why it failed, in words.
pub(crate) fn run(
    command: &mut Command,
    mut input: &[u8],
    limit: Duration,
    is_given_up: impl Fn() -> bool,
) -> Result<(), String> {
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.process_group(0).spawn();
    let mut child = child.map_err(|error| format!("it could not be started: {}", plain(&error)))?;
    let (mut to, mut from) = (child.stdin.take(), child.stderr.take());
    // A program that reads nothing, or leaves another one with its pipes, keeps nobody.
    let is_set = to.iter().map(|it| ioctl_fionbio(it.as_fd(), true)).all(|it| it.is_ok())
        && from.iter().map(|it| ioctl_fionbio(it.as_fd(), true)).all(|it| it.is_ok());
    let (until, mut said) = (now() + limit, Vec::new());
    loop {
        if is_set {
            input = feed(to.as_mut(), input);
            from.iter_mut().for_each(|from| hear(from, &mut said));
        }
        if input.is_empty() || !is_set {
            to = None;
        }
        match child.try_wait() {
            Ok(Some(status)) => {
                from.iter_mut().filter(|_| is_set).for_each(|from| hear(from, &mut said));
                return outcome(status, &said);
            }
            Ok(None) if is_given_up() => {
                kill(&mut child);
                return Err("the daemon ends, and the next one tries it again".to_owned());
            }
            Ok(None) if now() >= until => {
                kill(&mut child);
                let seconds = limit.as_secs();
                return Err(format!("it had not ended after {seconds} s, and was killed"));
            }
            Ok(None) => thread::park_timeout(STEP),
            Err(error) => {
                kill(&mut child);
                return Err(format!("nobody can tell whether it ended: {}", plain(&error)));
            }
        }
    }
}

/// Writes what the pipe takes; what is left. A program that does not read is no failure.
fn feed<'a>(to: Option<&mut impl Write>, input: &'a [u8]) -> &'a [u8] {
    let Some(to) = to else { return &[] };
    match to.write(input) {
        Ok(count) => &input[count..],
        Err(error) if error.kind() == ErrorKind::WouldBlock => input,
        Err(_) => &[],
    }
}

fn hear(from: &mut impl Read, said: &mut Vec<u8>) {
    let mut bytes = [0; 1024];
    // A program that never stops talking is heard again in the next step.
    for _ in 0..64 {
        let Ok(count @ 1..) = from.read(&mut bytes) else { break };
        said.extend_from_slice(&bytes[..count]);
        let too_many = said.len().saturating_sub(SAID_BYTES_MAX);
        said.drain(..too_many);
    }
}

fn outcome(status: ExitStatus, said: &[u8]) -> Result<(), String> {
    if status.success() {
        return Ok(());
    }
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (_, Some(signal)) => format!("it was ended by signal {signal}"),
        _ => "it failed".to_owned(),
    };
    let said = String::from_utf8_lossy(said);
    let line = said.lines().map(str::trim).rfind(|line| !line.is_empty());
    Err(line.map_or_else(|| how.clone(), |line| format!("{how}: {line}")))
}

fn kill(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let until = now() + KILLED_MAX;
    while matches!(child.try_wait(), Ok(None)) && now() < until {
        thread::park_timeout(STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str, input: &[u8], limit: Duration) -> Result<(), String> {
        run(&mut command(&["/bin/sh", "-c", text]), input, limit, || false)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_program_has_its_input_and_says_why_it_failed() {
        assert_eq!(shell("read it; test \"$it\" = hello", b"hello\n", LONG), Ok(()));
        assert_eq!(
            shell("exec >&2; echo one; echo two; exit 3", b"", LONG).unwrap_err(),
            "exit code 3: two"
        );
        assert_eq!(shell("kill -9 $$", b"", LONG).unwrap_err(), "it was ended by signal 9");
        let missing = run(&mut command(&["no-such-program"]), b"", LONG, || false).unwrap_err();
        assert!(
            missing.starts_with("exit code 127: ") && missing.contains("no-such-program"),
            "{missing}"
        );
    }

    #[test]
    fn a_program_that_reads_nothing_or_talks_without_end_keeps_nobody() {
        let input = vec![b'x'; 4 << 20];
        assert_eq!(shell("exit 0", &input, LONG), Ok(()));
        let error = shell("sleep 600", &input, Duration::from_millis(100)).unwrap_err();
        assert!(error.ends_with("and was killed"), "{error}");
        let error = shell("yes >&2", b"", Duration::from_millis(300)).unwrap_err();
        assert!(error.ends_with("and was killed"), "{error}");
        // The second program has the pipe of what is said for as long as it lives.
        assert_eq!(shell("sleep 5 & exit 0", b"", LONG), Ok(()));
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let text = format!("sleep 600 & echo $! > {}; wait", file.display());
        let begun = || std::fs::read_to_string(&file).unwrap_or_default().ends_with('\n');
        // Given up when the second one runs, however long that takes.
        let error = run(&mut command(&["/bin/sh", "-c", &text]), b"", LONG, begun).unwrap_err();
        assert!(error.contains("the next one tries it again"), "{error}");
        let pid = std::fs::read_to_string(&file).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        let is_gone = || std::fs::read_to_string(&stat).map_or(true, |it| it.contains(") Z "));
        while !is_gone() {
            thread::park_timeout(STEP);
        }
    }
}
