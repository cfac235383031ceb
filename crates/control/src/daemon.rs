//! The daemon: from an empty process to a served state folder, and back at SIGTERM or SIGINT.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::ending;
use crate::engine::Engine;
use crate::error::{ControlError, ControlResult};
use crate::events::courier;
use crate::events::event::{DAEMON_CRASHED, DAEMON_STARTED, DAEMON_STOPPED, Event, UPGRADED};
use crate::events::keep::Events;
use crate::metrics::{address::MetricsAddress, http};
use crate::notify;
use crate::registry::Registry;
use crate::server::{self, Shared, contained};
use crate::service::{Reports, Service, errands};
use crate::smart::{self, SmartInterval};
use crate::state_dir::{StateDir, StateLock};
use crate::upgrade::{self, Upgrade};
use crate::{log, process};

/// Longest time to come to rest: checkpoints of terabytes are written in seconds, requests in
/// flight have five.
const STOP_MAX: Duration = Duration::from_secs(60);
/// How long a stop waits for Ceph clusters to take locks back.
const IMAGES_WAIT: Duration = Duration::from_secs(10);
/// How often volumes report how far their Ceph RBD images are behind.
const REPORT_STEP: Duration = Duration::from_secs(1);
/// How long a stop waits for the file of events, and for deliveries that it ends.
const EVENTS_WAIT: Duration = Duration::from_secs(1);
const STOP_STEP: Duration = Duration::from_millis(100);
/// How long a step of a stop may take before the log says what it waits for.
const LONG_STEP: Duration = Duration::from_secs(4);

/// How a daemon is to run.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// The state folder to serve.
    pub state: StateDir,
    /// Threads of the data path; `None` is one per core of the machine.
    pub cores: Option<usize>,
    /// How long a recorded device that is not there is awaited.
    pub device_wait: Duration,
    /// How long a stop waits for clients.
    pub stop_wait: Duration,
    /// Where metrics are answered, if anywhere.
    pub metrics: Option<MetricsAddress>,
    /// How often drives are asked for their health.
    pub smart: SmartInterval,
    /// Leave the terminal: a session of its own, in the root folder.
    pub background: bool,
}

/// Serves a state folder until SIGTERM or SIGINT, waits for clients, then brings every volume to rest.
///
/// # Errors
/// When the folder is served already, its registry is refused, or the engine cannot start. Nothing
/// was changed then.
pub fn run_daemon<E: Engine + Send + Sync>(
    options: &DaemonOptions,
    start_engine: impl FnOnce(usize) -> ControlResult<E>,
) -> ControlResult<()> {
    let cores = options.cores.unwrap_or_else(machine_cores);
    let state = &options.state;
    let folder = std::env::current_dir().ok();
    // The daemon's files are its user's alone: sockets, registry, log.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    state.create()?;
    let missing = process::ask_for_precedence();
    log::start()?;
    let lock = state.lock()?;
    if options.background {
        leave_the_terminal();
    }
    voltier_librbd::note_clients_in(&state.ceph_clients(), lock.file());
    voltier_librbd::note_uses_in(&state.ceph_images());
    let registry = Registry::load(state.path())?;
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| ControlError::io("taking signals", &error))?;
    upgrade::let_signals_in();
    let engine = start_engine(cores)?;
    let listener = server::listen(&state.socket(), lock.after_crash())?;
    let events = begin_events(&lock, state)?;
    let shared = Shared::new(Service::new(engine, registry), events);
    if !options.device_wait.is_zero() {
        shared.service().knock();
    }
    let start = errands::begin_to_start(
        &mut shared.service().turn(),
        lock.after_crash(),
        options.device_wait,
    );
    // Clients may connect now. A client that wants a volume waits for the answer until it is up.
    spawn("accept", &shared, move |shared| {
        while !contained("the control socket", || shared.accept(&listener)) {}
    })?;
    // A drive that hangs keeps its volume, and neither the others nor a signal.
    spawn("start", &shared, move |shared| {
        shared.run_all(start);
        shared.wake();
    })?;
    spawn_watches(&shared, options)?;
    if !missing.is_empty() {
        tracing::info!("the kernel does not grant {}", missing.join(", "));
    }
    tracing::info!("serving {} on {cores} core(s)", state.path().display());
    for signal in signals.forever() {
        if signal != SIGHUP || !options.background {
            break;
        }
    }
    shared.begin_to_end();
    smart::end(&shared.service().smart());
    if let Some(program) = shared.service().begin_to_pass() {
        let _ = std::fs::remove_file(state.socket());
        return Err(Upgrade { program, folder, lock, signals }.carry_out(&shared));
    }
    notify::stopping();
    ending::wait_for_clients(&shared, &mut signals, options.stop_wait);
    shared.service().keep_nothing();
    say_the_stop(shared.service().has_ssds());
    spawn("stop", &shared, move |_| bound_the_stop(&mut signals))?;
    spawn("tell", &shared, |shared| tell_of_the_stop(&shared))?;
    // From here on new clients start a daemon of their own.
    let _ = std::fs::remove_file(state.socket());
    shared.come_to_rest();
    leave_images();
    let stopped = Event::of(&DAEMON_STOPPED, "voltier", "the daemon has come to rest");
    end_events(&shared, Some(stopped));
    lock.release();
    tracing::info!("stopped");
    log::flush();
    Ok(())
}

/// The threads that look now and then.
fn spawn_watches<E: Engine + Send + Sync>(
    shared: &Arc<Shared<E>>,
    options: &DaemonOptions,
) -> ControlResult<()> {
    spawn("watch", shared, |shared| shared.watch())?;
    spawn("report", shared, |shared| report(&shared))?;
    spawn("health", shared, |shared| shared.watch_health())?;
    spawn("events", shared, |shared| shared.events().write_on())?;
    if let Some(address) = options.metrics.clone() {
        spawn("metrics", shared, move |shared| serve_metrics(&shared, &address))?;
    }
    if let SmartInterval(Some(interval)) = options.smart {
        spawn("smart", shared, move |shared| {
            let service = shared.service();
            let (book, machine) = (service.smart(), service.machine());
            let watch = || smart::watch(&book, &machine, || service.device_paths(), interval);
            while !contained("the health of drives", watch) {}
        })?;
    }
    Ok(())
}

/// Says that the stop has begun, and what it leaves.
fn say_the_stop(has_ssds: bool) {
    let what = if has_ssds { "stopping; dirty lines stay on their SSDs" } else { "stopping" };
    notify::wait(what, STOP_MAX + STOP_STEP * 10);
    tracing::info!("{what}");
}

/// Has the volumes over Ceph RBD images report how far the images are behind, every second.
fn report<E: Engine + Send + Sync>(shared: &Shared<E>) {
    let mut reports = Reports::default();
    loop {
        thread::park_timeout(REPORT_STEP);
        contained("the report of images", || shared.service().report(&mut reports));
    }
}

/// Answers about metrics for as long as the process lives.
fn serve_metrics<E: Engine + Send + Sync + 'static>(
    shared: &Arc<Shared<E>>,
    address: &MetricsAddress,
) {
    let own = Arc::clone(shared);
    let note = |trouble| shared.events().note_metrics(trouble);
    http::serve(address, note, move |path| own.answer_http(path));
}

/// The events so far, with that of the start, and a courier for each hook.
fn begin_events(lock: &StateLock, state: &StateDir) -> ControlResult<Arc<Events>> {
    let events = Events::of(state.path());
    let version = env!("CARGO_PKG_VERSION");
    if lock.after_crash() {
        let text = "the daemon before did not come to rest; nothing acknowledged is lost";
        events.tell(Event::of(&DAEMON_CRASHED, "voltier", text));
    }
    events.tell(match lock.after_upgrade() {
        true => Event::of(&UPGRADED, "voltier", format!("version {version} serves now")),
        false => {
            Event::of(&DAEMON_STARTED, "voltier", format!("version {version} begins to serve"))
        }
    });
    for status in events.hooks() {
        courier::start(&events, status.hook)?;
    }
    Ok(events)
}

/// Adds the last event, and waits a little until the file has it: the state folder may be one that hangs.
pub(crate) fn end_events<E: Engine + Send + Sync>(shared: &Shared<E>, event: Option<Event>) {
    shared.events().end(event);
    shared.events().wait_ended(EVENTS_WAIT);
}

/// Waits until the locks of images are given back, or their cluster does not answer: the next daemon would wait for
/// half a minute, until the cluster knows that this one is gone.
pub(crate) fn leave_images() {
    if !voltier_librbd::settle(IMAGES_WAIT) {
        tracing::warn!(
            "a Ceph cluster does not answer; its images stay locked until it knows that this daemon ended"
        );
    }
}

pub(crate) fn spawn<E: Engine + Send + Sync>(
    name: &str,
    shared: &Arc<Shared<E>>,
    body: impl FnOnce(Arc<Shared<E>>) + Send + 'static,
) -> ControlResult<()> {
    let shared = Arc::clone(shared);
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || body(shared))
        .map(drop)
        .map_err(|error| ControlError::io(format!("starting the {name} thread"), &error))
}

/// Ends the process when coming to rest takes too long, or when it is asked a second time. Nothing
/// acknowledged is lost: the next start is one after a crash.
fn bound_the_stop(signals: &mut Signals) {
    thread::park_timeout(STOP_STEP);
    let mut waited = STOP_STEP;
    while waited < STOP_MAX && signals.pending().all(|signal| signal == SIGHUP) {
        thread::park_timeout(STOP_STEP);
        waited += STOP_STEP;
    }
    tracing::error!(
        "the stop took longer than {} s; ending without it, as after a crash",
        waited.as_secs()
    );
    log::flush();
    std::process::exit(1);
}

/// Says now and then what the stop waits for. Apart from what bounds the stop: to look may take as long as the stop.
fn tell_of_the_stop<E: Engine + Send + Sync>(shared: &Shared<E>) {
    let mut pause = LONG_STEP;
    loop {
        thread::park_timeout(pause);
        for wait in shared.service().turn().claims.long_waits(LONG_STEP / 2) {
            tracing::warn!("{wait}; the daemon ends after {} s in any case", STOP_MAX.as_secs());
        }
        pause = LONG_STEP * 4;
    }
}

fn machine_cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn leave_the_terminal() {
    // Only the leader of a process group is refused, and it has no terminal to leave in a script.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
}
