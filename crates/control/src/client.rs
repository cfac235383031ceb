//! The command line's side of the control socket; starts the daemon when none runs.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::array_status::{ArrayDetail, ArrayState, PoolStatus};
use crate::error::{ControlError, ControlResult};
use crate::events::event::Event;
use crate::events::hook::{HookStatus, HookTest};
use crate::health::Check;
use crate::import_report::{ImportOrder, ImportReport};
use crate::name::{ArrayName, VolumeName};
use crate::notify;
use crate::protocol::{
    self, ArrayRequest, EventsRequest, JobStatus, Request, Response, TakenVolume,
};
use crate::state_dir::{ALREADY_SERVED, StateDir};
use crate::status::{VolumeState, VolumeStatus};

/// A daemon listens within milliseconds of its start; on a machine that swaps it may take a while.
const START_MAX: Duration = Duration::from_secs(30);
const START_STEP: Duration = Duration::from_millis(10);
/// How long a daemon may take to answer a look: it answers within a second, whatever a drive does.
const LOOK_MAX: Duration = Duration::from_secs(15);
/// How long a daemon may take to carry a command out before the command line says that it goes on alone. A
/// start after a crash reads what was written since the last checkpoint.
const COMMAND_MAX: Duration = Duration::from_secs(120);
/// Longer than a daemon takes to come to rest, or to end without.
const STOP_MAX: Duration = Duration::from_secs(90);
const STOP_STEP: Duration = Duration::from_secs(1);
/// How soon a daemon that found the folder served is started again.
const RETRY_STEP: Duration = Duration::from_millis(100);
/// The log is kept small: beyond this a starting daemon puts the old one aside.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// A connection to the daemon of a state folder.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to a daemon that runs and answers; `None` when none does.
    ///
    /// # Errors
    /// When the socket is not permitted, or the daemon refuses to talk.
    pub fn connect(state: &StateDir) -> ControlResult<Option<Self>> {
        state.check_owner()?;
        match UnixStream::connect(state.socket()) {
            Ok(stream) => Self { stream: BufReader::new(stream) }.greeted(),
            Err(error) if is_nobody(error.kind()) => Ok(None),
            Err(error) => {
                let doing = format!("connecting to {}", state.socket().display());
                Err(ControlError::io(doing, &error))
            }
        }
    }

    /// The kernel takes connections for a daemon that was killed until it has taken it apart. So
    /// nothing is asked of one that has not answered a greeting: without an answer there is none.
    fn greeted(mut self) -> ControlResult<Option<Self>> {
        self.wait_at_most(LOOK_MAX)?;
        if protocol::send(self.stream.get_mut(), &Request::Ping).is_err() {
            return Ok(None);
        }
        match self.stream.fill_buf() {
            Ok(bytes) if !bytes.is_empty() => {}
            Err(error) if is_timeout(error.kind()) => return Err(no_greeting()),
            _ => return Ok(None),
        }
        match protocol::receive(&mut self.stream)? {
            Some(Response::Error { error }) => Err(error),
            _ => Ok(Some(self)),
        }
    }

    /// How long a read of the connection waits from now on.
    fn wait_at_most(&mut self, limit: Duration) -> ControlResult<()> {
        let limited = self.stream.get_mut().set_read_timeout(Some(limit));
        limited.map_err(|error| ControlError::io("waiting for the daemon", &error))
    }

    /// Connects, and starts `program daemon` in the background first when none runs.
    ///
    /// # Errors
    /// When the daemon cannot be started; the message is the daemon's own.
    pub fn connect_or_start(state: &StateDir, program: &Path) -> ControlResult<Self> {
        if let Some(client) = Self::connect(state)? {
            return Ok(client);
        }
        state.create()?;
        let log_start = put_old_log_aside(state);
        let mut child = spawn_daemon(state, program)?;
        let deadline = now() + START_MAX;
        while now() < deadline {
            if let Some(client) = Self::connect(state)? {
                return Ok(client);
            }
            if matches!(child.try_wait(), Ok(Some(_))) {
                let log = log_since(state, log_start);
                if !log.contains(ALREADY_SERVED) {
                    let said = log.lines().rev().find_map(|line| line.strip_prefix("voltier: "));
                    return Err(said.map_or_else(|| no_start(state), ControlError::failed));
                }
                // Another client was quicker, or the daemon before is still coming to rest.
                std::thread::park_timeout(RETRY_STEP);
                if Self::connect(state)?.is_none() {
                    child = spawn_daemon(state, program)?;
                }
            }
            std::thread::park_timeout(START_STEP);
        }
        Err(no_start(state))
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// The daemon's own error, or that it went away, or that it has not answered for too long.
    pub fn request(&mut self, request: &Request) -> ControlResult<Response> {
        let limit = if request.is_a_look() { LOOK_MAX } else { COMMAND_MAX };
        self.request_within(request, limit)
    }

    fn request_within(&mut self, request: &Request, limit: Duration) -> ControlResult<Response> {
        let gone = || {
            ControlError::failed(
                "the daemon went away before it answered; see daemon.log in the state folder, \
                 and give the command again",
            )
        };
        self.wait_at_most(limit)?;
        protocol::send(self.stream.get_mut(), request).map_err(|_| gone())?;
        match self.is_answered() {
            Ok(true) => {}
            Err(error) if is_timeout(error.kind()) => return Err(unanswered(request, limit)),
            _ => return Err(gone()),
        }
        match protocol::receive(&mut self.stream)? {
            Some(Response::Error { error }) => Err(error),
            Some(response) => Ok(response),
            None => Err(gone()),
        }
    }

    /// Waits for the first byte of an answer; false when the daemon hangs up. An interrupt of the program that
    /// is [noted](crate::Interrupt) does not end the wait.
    fn is_answered(&mut self) -> std::io::Result<bool> {
        loop {
            match self.stream.fill_buf() {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                filled => return filled.map(|bytes| !bytes.is_empty()),
            }
        }
    }

    /// Waits until the daemon has tried to open everything that is on record, or for as long as a start
    /// may take.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn wait_for_start(&mut self) -> ControlResult<()> {
        let until = now() + START_MAX;
        loop {
            let volumes = self.show(None)?;
            let arrays = self.arrays(None)?;
            let is_starting = volumes.iter().any(|it| it.state == VolumeState::Starting)
                || arrays.iter().any(|it| it.state == ArrayState::Starting);
            if !is_starting || now() > until {
                return Ok(());
            }
            std::thread::park_timeout(RETRY_STEP);
        }
    }

    /// A request that is answered with the state of one volume.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn volume(&mut self, request: &Request) -> ControlResult<VolumeStatus> {
        match self.request(request)? {
            Response::Volume { volume } => Ok(*volume),
            other => Err(unexpected(&other)),
        }
    }

    /// Takes a volume over.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn take_over(&mut self, request: &Request) -> ControlResult<TakenVolume> {
        match self.request(request)? {
            Response::TakenOver { taken } => Ok(*taken),
            other => Err(unexpected(&other)),
        }
    }

    /// The state of one volume, or of all.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn show(&mut self, name: Option<&VolumeName>) -> ControlResult<Vec<VolumeStatus>> {
        self.show_over(name, None)
    }

    /// The same with the rates and latencies of so many seconds, 60 at most.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn show_over(
        &mut self,
        name: Option<&VolumeName>,
        over_s: Option<u32>,
    ) -> ControlResult<Vec<VolumeStatus>> {
        match self.request(&Request::Show { name: name.cloned(), over_s })? {
            Response::Volume { volume } => Ok(vec![*volume]),
            Response::Volumes { volumes } => Ok(volumes),
            other => Err(unexpected(&other)),
        }
    }

    /// A request that is answered with the state of one array, and what is to be known of it.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn array(&mut self, ask: ArrayRequest) -> ControlResult<(ArrayDetail, Vec<String>)> {
        match self.request(&Request::Array { ask })? {
            Response::Array { array, notes } => Ok((*array, notes)),
            other => Err(unexpected(&other)),
        }
    }

    /// A request about pools of spares; their state, and notes.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn pools(&mut self, ask: ArrayRequest) -> ControlResult<(Vec<PoolStatus>, Vec<String>)> {
        match self.request(&Request::Array { ask })? {
            Response::Pools { pools, notes } => Ok((pools, notes)),
            other => Err(unexpected(&other)),
        }
    }

    /// The state of one array, or of all.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn arrays(&mut self, name: Option<&ArrayName>) -> ControlResult<Vec<ArrayDetail>> {
        self.arrays_over(name, None)
    }

    /// The same with the rates and latencies of so many seconds, 60 at most.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn arrays_over(
        &mut self,
        name: Option<&ArrayName>,
        over_s: Option<u32>,
    ) -> ControlResult<Vec<ArrayDetail>> {
        let ask = ArrayRequest::Show { name: name.cloned(), over_s };
        match self.request(&Request::Array { ask })? {
            Response::Array { array, .. } => Ok(vec![*array]),
            Response::Arrays { arrays } => Ok(arrays),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends the daemon, and waits until its process has ended. `waits` hears every second how long that took
    /// so far.
    ///
    /// # Errors
    /// When clients use volumes and are not to be cut off, and when the daemon did not come to rest.
    pub fn stop(
        mut self,
        state: &StateDir,
        now: bool,
        mut waits: impl FnMut(Duration),
    ) -> ControlResult<()> {
        match self.request(&Request::StopDaemon { now })? {
            Response::Stopping => {}
            other => return Err(unexpected(&other)),
        }
        let pid = |state: &StateDir| fs::read_to_string(state.pid_file()).unwrap_or_default();
        let its_pid = pid(state);
        self.wait_for_end(state, &mut waits)?;
        if !its_pid.trim().is_empty() && pid(state) == its_pid {
            return Err(ControlError::failed(format!(
                "the daemon ended before the stop was complete, as after a crash: nothing \
                 acknowledged is lost; see {}",
                state.log_file().display()
            )));
        }
        Ok(())
    }

    /// Waits until the daemon has ended its part: it says nothing more, and the connection ends with its program.
    fn wait_for_end(
        &mut self,
        state: &StateDir,
        waits: &mut impl FnMut(Duration),
    ) -> ControlResult<()> {
        let began = self::now();
        let stream = self.stream.get_mut();
        let timed = stream.set_read_timeout(Some(STOP_STEP));
        timed.map_err(|error| ControlError::io("waiting for the daemon", &error))?;
        while stream.read(&mut [0]).is_err_and(|error| is_timeout(error.kind())) {
            let waited = began.elapsed();
            if waited > STOP_MAX {
                return Err(ControlError::failed(format!(
                    "the daemon has not ended after {} s; see {}",
                    waited.as_secs(),
                    state.log_file().display()
                )));
            }
            waits(waited);
        }
        Ok(())
    }

    /// Has the daemon become another program, which serves on all that is open, and waits for that; the version that
    /// serves now. `handover` is the [form](crate::engine::Exports::handover) in which the program takes exports over.
    ///
    /// # Errors
    /// When the daemon refuses, and when it did not become that program.
    pub fn upgrade(
        mut self,
        state: &StateDir,
        program: &Path,
        handover: u32,
    ) -> ControlResult<String> {
        let request = Request::Upgrade { program: program.to_owned(), handover };
        match self.request(&request)? {
            Response::Upgrading => {}
            other => return Err(unexpected(&other)),
        }
        self.wait_for_end(state, &mut |_| {})?;
        let until = now() + START_MAX;
        let mut next = loop {
            match Self::connect(state)? {
                Some(next) => break next,
                None if now() > until => return Err(no_start(state)),
                None => std::thread::park_timeout(START_STEP),
            }
        };
        let Response::Pong { pid, version } = next.request(&Request::Ping)? else {
            return Err(no_start(state));
        };
        let runs = fs::read_link(format!("/proc/{pid}/exe"));
        // Of the daemon of another user nobody may know.
        if runs.is_ok_and(|runs| runs != program) {
            return Err(ControlError::failed(format!(
                "the daemon could not become {} and serves on as it was; see {}",
                program.display(),
                state.log_file().display()
            )));
        }
        next.wait_for_start()?;
        Ok(version)
    }

    /// An import; what was imported.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn import(&mut self, order: ImportOrder) -> ControlResult<ImportReport> {
        match self.request(&Request::Import { order })? {
            Response::Imported { report } => Ok(*report),
            other => Err(unexpected(&other)),
        }
    }

    /// The events with higher numbers than this.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn events(&mut self, after: u64) -> ControlResult<Vec<Event>> {
        match self.request(&Request::Events { ask: EventsRequest::Show { after } })? {
            Response::Events { events } => Ok(events),
            other => Err(unexpected(&other)),
        }
    }

    /// What `health` found, each with since when its condition stands.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn dated(&mut self, checks: Vec<Check>) -> ControlResult<Vec<Check>> {
        match self.request(&Request::Events { ask: EventsRequest::Date { checks } })? {
            Response::Checks { checks } => Ok(checks),
            other => Err(unexpected(&other)),
        }
    }

    /// Takes note of drives that have failed, of one volume or array or of all; a line for each.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn acknowledge(&mut self, name: Option<&str>) -> ControlResult<Vec<String>> {
        match self.request(&Request::Acknowledge { name: name.map(str::to_owned) })? {
            Response::Acknowledged { drives } => Ok(drives),
            other => Err(unexpected(&other)),
        }
    }

    /// How well the daemon does what it does beside volumes and arrays.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn own_checks(&mut self) -> ControlResult<Vec<Check>> {
        match self.request(&Request::Events { ask: EventsRequest::OwnChecks })? {
            Response::Checks { checks } => Ok(checks),
            other => Err(unexpected(&other)),
        }
    }

    /// Metrics in the text format of Prometheus, as they were when the daemon looked last.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn metrics(&mut self) -> ControlResult<String> {
        match self.request(&Request::Metrics)? {
            Response::Metrics { text } => Ok(text),
            other => Err(unexpected(&other)),
        }
    }

    /// A request about hooks: all of them, or that which was added or removed.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn hooks(&mut self, ask: EventsRequest) -> ControlResult<Vec<HookStatus>> {
        match self.request(&Request::Events { ask })? {
            Response::Hooks { hooks } => Ok(hooks),
            other => Err(unexpected(&other)),
        }
    }

    /// Has the daemon bring a test event to all hooks; what came of each.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn test_hooks(&mut self) -> ControlResult<Vec<HookTest>> {
        match self.request(&Request::Events { ask: EventsRequest::Test })? {
            Response::HookTests { tests } => Ok(tests),
            other => Err(unexpected(&other)),
        }
    }

    /// A request that is answered with a job.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn job(&mut self, request: &Request) -> ControlResult<JobStatus> {
        match self.request(request)? {
            Response::Job { job } => Ok(job),
            other => Err(unexpected(&other)),
        }
    }
}

/// The error of a command that the daemon has not answered in time.
fn unanswered(request: &Request, limit: Duration) -> ControlError {
    let (command, seconds) = (request.command(), limit.as_secs());
    let show = match request {
        Request::Array { .. } => "voltier array show",
        _ => "voltier show",
    };
    ControlError::failed(match request.is_a_look() {
        true => format!(
            "`{command}` has had no answer for {seconds} s: the daemon itself hangs; see daemon.log in the \
             state folder and `dmesg`"
        ),
        false => format!(
            "`{command}` has had no answer for {seconds} s, and goes on in the daemon; `{show}` says what it \
             waits for and how it ends; see `dmesg` for a drive that hangs"
        ),
    })
}

fn no_greeting() -> ControlError {
    let seconds = LOOK_MAX.as_secs();
    ControlError::failed(format!(
        "the daemon has not answered `ping` for {seconds} s, and has begun nothing; see daemon.log in the \
         state folder, and give the command again"
    ))
}

fn is_timeout(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn is_nobody(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::ConnectionRefused)
}

fn unexpected(response: &Response) -> ControlError {
    let text = format!("{response:?}");
    let word = text.split(' ').next().unwrap_or_default().to_owned();
    ControlError::failed(format!(
        "the daemon gave an unexpected answer ({word}); use the same version of voltier for both"
    ))
}

fn no_start(state: &StateDir) -> ControlError {
    let log = state.log_file();
    ControlError::failed(format!("the daemon did not start; see {}", log.display()))
}

fn spawn_daemon(state: &StateDir, program: &Path) -> ControlResult<Child> {
    let log_path = state.log_file();
    let doing = |what: &str| format!("{what} {}", log_path.display());
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&log_path)
        .map_err(|error| ControlError::io(doing("opening"), &error))?;
    let copy = log.try_clone().map_err(|error| ControlError::io(doing("sharing"), &error))?;
    Command::new(program)
        .arg("daemon")
        .arg("--background")
        .arg("--state")
        .arg(state.path())
        // A service manager waits for its own program, not for this one.
        .env_remove(notify::SOCKET)
        .stdin(Stdio::null())
        .stdout(Stdio::from(copy))
        .stderr(Stdio::from(log))
        .spawn()
        .map_err(|error| ControlError::io(format!("starting {}", program.display()), &error))
}

/// Returns where the log of the next daemon begins.
fn put_old_log_aside(state: &StateDir) -> u64 {
    let path = state.log_file();
    let length = fs::metadata(&path).map_or(0, |meta| meta.len());
    if length > LOG_BYTES_MAX && fs::rename(&path, path.with_extension("log.old")).is_ok() {
        return 0;
    }
    length
}

fn log_since(state: &StateDir, start: u64) -> String {
    let bytes = fs::read(state.log_file()).unwrap_or_default();
    let fresh = bytes.get(start as usize..).unwrap_or_default();
    String::from_utf8_lossy(fresh).into_owned()
}

#[expect(clippy::disallowed_methods, reason = "a command waits for a process, not for an I/O")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_daemon_that_does_not_answer_is_told_with_what_to_do_next() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path()).unwrap();
        let listener = UnixListener::bind(state.socket()).unwrap();
        let stream = UnixStream::connect(state.socket()).unwrap();
        let _silent = listener.accept().unwrap();
        let mut client = Client { stream: BufReader::new(stream) };
        let brief = Duration::from_millis(10);
        let name: VolumeName = "v".parse().unwrap();
        let error = client.request_within(&Request::Start { name }, brief).unwrap_err();
        let words =
            "`start` has had no answer for 0 s, and goes on in the daemon; `voltier show` says";
        assert!(error.message.contains(words), "{error}");
        let ask = ArrayRequest::Show { name: None, over_s: None };
        let error = client.request_within(&Request::Array { ask }, brief).unwrap_err();
        assert!(error.message.contains("`array show` has had no answer for 0 s"), "{error}");
    }

    #[test]
    fn a_daemon_that_hangs_up_before_it_answers_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path()).unwrap();
        let listener = UnixListener::bind(state.socket()).unwrap();
        std::thread::scope(|scope| {
            // Closed with the greeting unread: the other side sees a reset.
            scope.spawn(|| drop(listener.accept().unwrap()));
            assert!(Client::connect(&state).unwrap().is_none());
        });
        drop(listener);
        assert!(Client::connect(&state).unwrap().is_none(), "refused");
    }
}
