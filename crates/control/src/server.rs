//! The daemon's side of the control socket.

use std::fs;
use std::io::BufReader;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::date::Date;
use crate::engine::Engine;
use crate::error::{ControlError, ControlResult, ErrorKind};
use crate::events::courier;
use crate::events::hook::HookStatus;
use crate::events::keep::Events;
use crate::health::Health;
use crate::metrics::{self, http::Answer, page};
use crate::notify;
use crate::protocol::{self, EventsRequest, Request, Response};
use crate::service::arrays::scrub_book;
use crate::service::{self, CRASH_STEP, CRASH_TRIES, Errand, Looks, Service, Snapshot, errands};

/// Control clients served at a time: people and scripts; more than these wait in the backlog.
const CLIENTS_MAX: usize = 64;
/// How often the health of everything is looked at: an event is made soon, and an idle machine stays idle.
const HEALTH_STEP: Duration = Duration::from_secs(2);
/// How often a running job is looked at: finer than a progress bar shows.
const JOB_STEP: Duration = Duration::from_millis(50);
/// How long a record that failed rests before it is tried again.
const RECORD_STEP: Duration = Duration::from_secs(1);
/// How long the control socket rests after a client that could not be let in: no descriptor is left, say.
const ACCEPT_STEP: Duration = Duration::from_millis(100);

/// How often errands that are done in order are looked at.
const ERRAND_STEP: Duration = Duration::from_millis(1);

/// How often what is in use is tried again, and how long after the last time: a program that has closed its
/// file is gone a moment later.
const IN_USE_TRIES: u32 = 10;
const IN_USE_STEP: Duration = Duration::from_millis(50);
/// How much longer than its next message the service manager is asked to wait.
const WAIT_LONGER: Duration = Duration::from_secs(30);

/// A service, shared by the threads of the control plane.
pub(crate) struct Shared<E> {
    service: Service<E>,
    events: Arc<Events>,
    /// Whether the watch has something to look at, and how it hears of it.
    woken: Mutex<bool>,
    wake: Condvar,
    clients: Arc<AtomicUsize>,
    /// Whether somebody looks for devices.
    looks: AtomicBool,
    /// Whether the daemon has been told to end.
    ends: AtomicBool,
    /// What the last look at the health of everything has seen; nothing before the first one.
    seen: Mutex<Option<Arc<Snapshot>>>,
}

impl<E: Engine + Send + Sync> Shared<E> {
    pub(crate) fn new(service: Service<E>, events: Arc<Events>) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Self>| {
            let me = me.clone();
            service.set_waker(Arc::new(move || {
                if let Some(shared) = me.upgrade() {
                    shared.wake();
                }
            }));
            Self {
                service,
                events,
                woken: Mutex::new(false),
                wake: Condvar::new(),
                clients: Arc::default(),
                looks: AtomicBool::new(false),
                ends: AtomicBool::new(false),
                seen: Mutex::default(),
            }
        })
    }

    /// The daemon was told to end, and needs no signal for it any more.
    pub(crate) fn begin_to_end(&self) {
        self.ends.store(true, Ordering::Release);
    }

    /// Has the watch look at jobs and SSDs now.
    pub(crate) fn wake(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wake.notify_one();
    }

    /// Waits to be woken, for `step` when something is under way.
    fn sleep(&self, step: Option<Duration>) {
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut woken = match step {
            Some(step) => {
                let waited = self.wake.wait_timeout_while(woken, step, |woken| !*woken);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let waited = self.wake.wait_while(woken, |woken| !*woken);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
        };
        *woken = false;
    }

    pub(crate) fn service(&self) -> &Service<E> {
        &self.service
    }

    pub(crate) fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Looks at the health of everything, and makes events of what has changed, until the daemon comes to rest.
    pub(crate) fn watch_health(&self) {
        let mut looks = Looks::default();
        self.service.know_scrubs(self.events.folder());
        let mut is_unwritten = false;
        loop {
            contained("a look at the scrubs that are due", || self.step_scrubs(&mut is_unwritten));
            contained("a look at the health of everything", || {
                self.service
                    .look_at_all(&mut looks)
                    .into_iter()
                    .for_each(|it| self.events.take(it));
                let seen = Arc::new(looks.snapshot());
                *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
            });
            thread::park_timeout(HEALTH_STEP);
        }
    }

    /// What the last look has seen: whoever asks for metrics costs the volumes nothing.
    fn seen(&self) -> ControlResult<Arc<Snapshot>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        seen.ok_or_else(|| ControlError::failed("the daemon is starting; ask again in a moment"))
    }

    /// All metrics.
    pub(crate) fn metrics(&self) -> ControlResult<String> {
        let (seen, hooks) = (self.seen()?, self.events.hooks());
        Ok(metrics::of(&seen, &hooks, self.events.own_checks()))
    }

    /// What the page shows, in JSON.
    fn page_status(&self) -> ControlResult<String> {
        let seen = self.seen()?;
        let health = Health::of_all(&seen.volumes, &seen.arrays, &seen.pools);
        let mut health = health.with(self.events.own_checks());
        self.events.date(&mut health.checks);
        page::status(&seen, &health)
    }

    /// Answers a request for metrics, or for the page and what it shows.
    pub(crate) fn answer_http(&self, path: &str) -> Answer {
        let of = |kind: &'static str, content: ControlResult<String>| match content {
            Ok(content) => Answer::ok(kind, content),
            Err(_) => Answer::refused("503 Service Unavailable"),
        };
        match path {
            "/" => Answer::ok(page::CONTENT_TYPE, page::PAGE.to_owned()),
            "/status.json" => of(page::STATUS_TYPE, self.page_status()),
            "/metrics" => of(metrics::CONTENT_TYPE, self.metrics()),
            _ => Answer::refused("404 Not Found"),
        }
    }

    /// Begins the scrub of an array that is due, and keeps when the last ones were.
    fn step_scrubs(&self, is_unwritten: &mut bool) {
        let Some(bytes) = self.service.step_scrubs(Date::now()) else { return };
        let written = scrub_book::write(self.events.folder(), &bytes);
        match written {
            Ok(()) => *is_unwritten = false,
            // The next change is written again; until then it is known here.
            Err(error) if !std::mem::replace(is_unwritten, true) => tracing::warn!("{error}"),
            Err(_) => {}
        }
    }

    /// Answers a request about events. A test takes as long as its slowest hook; nobody else waits for that.
    fn handle_events(&self, ask: EventsRequest) -> ControlResult<Response> {
        Ok(match ask {
            EventsRequest::Show { after } => Response::Events { events: self.events.after(after) },
            EventsRequest::Date { mut checks } => {
                self.events.date(&mut checks);
                Response::Checks { checks }
            }
            EventsRequest::OwnChecks => Response::Checks { checks: self.events.own_checks() },
            EventsRequest::Hooks => Response::Hooks { hooks: self.events.hooks() },
            EventsRequest::AddHook { target } => {
                let hook = self.events.add_hook(target)?;
                courier::start(&self.events, hook.clone())?;
                Response::Hooks { hooks: vec![HookStatus::new(hook)] }
            }
            EventsRequest::RemoveHook { which } => {
                let hook = self.events.remove_hook(&which)?;
                Response::Hooks { hooks: vec![HookStatus::new(hook)] }
            }
            EventsRequest::Test => Response::HookTests { tests: courier::test(&self.events) },
        })
    }

    /// Steps jobs, records lost SSDs and members, looks for missing devices for as long as the process lives.
    /// Idle costs nothing. Errands, which may wait for a device, have threads of their own.
    #[expect(clippy::disallowed_methods, reason = "time of the control plane, not of an I/O")]
    pub(crate) fn watch(self: &Arc<Self>) {
        let mut next_look: Option<Instant> = None;
        let mut is_ready = false;
        loop {
            let mut step = Some(RECORD_STEP);
            contained("a round of the watch", || step = self.round(Instant::now(), &mut next_look));
            if !is_ready {
                is_ready = self.tell_the_manager();
                // The service manager hears again that the daemon gets on.
                step = Some(step.map_or(RECORD_STEP, |step| step.min(RECORD_STEP)));
            }
            self.sleep(step);
        }
    }

    /// Tells the service manager whether all has been tried that is recorded. Returns true when it has.
    fn tell_the_manager(&self) -> bool {
        let is_ready = !self.service.waits_for_devices();
        match is_ready {
            true => notify::ready(),
            false => notify::wait("waits for devices", WAIT_LONGER),
        }
        is_ready
    }

    /// One round of the watch. Returns how soon the next one is due, if nobody wakes the watch before.
    fn round(self: &Arc<Self>, now: Instant, next_look: &mut Option<Instant>) -> Option<Duration> {
        let is_look_due = next_look.is_none_or(|at| now >= at);
        let is_retried = !self.service.record_news();
        if is_look_due {
            self.look(now);
            *next_look = errands::next_look(&self.service.turn(), now).map(|step| now + step);
        }
        let mut due = errands::due_jobs(&mut self.service.turn());
        due.extend(errands::due_pulled(&self.service.turn()));
        due.extend(errands::due_spares(&self.service.turn()));
        due.into_iter().for_each(|errand| drop(self.send(errand, now)));
        let busy = self.service.has_jobs();
        let until_look = next_look.map(|at| at.saturating_duration_since(now));
        let steps = [busy.then_some(JOB_STEP), is_retried.then_some(RECORD_STEP), until_look];
        steps.into_iter().flatten().min()
    }

    /// Looks for devices, unless the look before has not ended.
    fn look(self: &Arc<Self>, now: Instant) {
        if self.looks.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = Arc::clone(self);
        let look = move || {
            contained("the search for devices", || {
                // Devices that do not answer keep this thread for some seconds.
                shared.service.knock();
                let due = errands::due_looks(&shared.service.turn(), now);
                for errand in due {
                    drop(shared.send(errand, now));
                }
            });
            shared.looks.store(false, Ordering::Release);
        };
        if thread::Builder::new().name("look".into()).spawn(look).is_err() {
            self.looks.store(false, Ordering::Release);
        }
    }

    /// Does an errand on a thread of its own. Without a thread the errand comes again.
    fn send(self: &Arc<Self>, errand: Errand, now: Instant) -> Option<JoinHandle<()>> {
        let shared = Arc::clone(self);
        let run = move || {
            contained("an errand", || errands::run(&mut shared.service.turn(), &errand, now));
            shared.wake();
        };
        thread::Builder::new().name("errand".into()).spawn(run).ok()
    }

    /// Does errands one after the other, and goes past those that wait for a device. Returns when all of them
    /// have ended.
    #[expect(clippy::disallowed_methods, reason = "time of the control plane, not of an I/O")]
    pub(crate) fn run_all(self: &Arc<Self>, errands: Vec<Errand>) {
        let mut threads = Vec::new();
        for errand in errands {
            let Some(thread) = self.send(errand.clone(), Instant::now()) else {
                errands::run(&mut self.service.turn(), &errand, Instant::now());
                continue;
            };
            while !thread.is_finished() && !errands::hangs(&self.service.turn(), &errand) {
                thread::park_timeout(ERRAND_STEP);
            }
            threads.push(thread);
        }
        // The log has what an errand could not do.
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    /// Brings everything to rest.
    pub(crate) fn come_to_rest(self: &Arc<Self>) {
        let layers = errands::begin_to_rest(&mut self.service.turn());
        for layer in layers {
            self.run_all(layer);
        }
    }

    /// Serves control clients for as long as the process lives.
    pub(crate) fn accept(self: &Arc<Self>, listener: &UnixListener) {
        let mut has_failed = false;
        for stream in listener.incoming() {
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!("no control client is let in: {error}");
                    }
                    thread::park_timeout(ACCEPT_STEP);
                    continue;
                }
            };
            has_failed = false;
            let Some(permit) = Permit::take(&self.clients) else {
                let error = ControlError::failed("the daemon has too many control clients; retry");
                let _ = protocol::send(&mut &stream, &Response::Error { error });
                continue;
            };
            // Without a thread the client is hung up on, and the permit is given back.
            let shared = Arc::clone(self);
            let serve = move || {
                let _permit = permit;
                contained("a control client", || shared.serve(&stream));
            };
            let _ = thread::Builder::new().name("control".into()).spawn(serve);
        }
    }

    /// Answers a request. A stop that is refused because of its clients is tried for a moment. A program
    /// that has closed a file or a connection is gone a little later.
    fn handle(&self, request: &Request) -> Response {
        let mut response = self.service.answer(request.clone());
        for _ in 0..IN_USE_TRIES {
            match &response {
                Response::Error { error } if error.kind == ErrorKind::InUse => {}
                _ => break,
            }
            thread::park_timeout(IN_USE_STEP);
            response = self.service.answer(request.clone());
        }
        response
    }

    fn serve(&self, stream: &UnixStream) {
        let mut from = BufReader::new(stream);
        loop {
            let response = match protocol::receive::<Request>(&mut from) {
                Ok(Some(Request::Ping)) => service::pong(),
                Ok(Some(Request::Metrics)) => match self.metrics() {
                    Ok(text) => Response::Metrics { text },
                    Err(error) => Response::Error { error },
                },
                Ok(Some(Request::Events { ask })) => {
                    let answer = self.handle_events(ask);
                    answer.unwrap_or_else(|error| Response::Error { error })
                }
                Ok(Some(request)) => self.handle(&request),
                Ok(None) => return,
                Err(error) => {
                    // Later requests cannot be told apart: say why, and hang up.
                    let _ = protocol::send(&mut &*stream, &Response::Error { error });
                    return;
                }
            };
            // A job may have begun, or something have been tried that lacks a device.
            self.wake();
            if protocol::send(&mut &*stream, &response).is_err() {
                return;
            }
            let ends = matches!(response, Response::Stopping | Response::Upgrading);
            if ends && !self.ends.swap(true, Ordering::AcqRel) {
                // The main thread waits for a signal, whoever sends it.
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TERM);
            }
            if let Response::Job { job } = &response {
                self.service.job_is_told(job);
            }
        }
    }
}

/// The permit of a control client, given back however the client's thread ends.
struct Permit(Arc<AtomicUsize>);

impl Permit {
    /// Takes a permit, if one is free.
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let permit = Self(Arc::clone(taken));
        (taken.fetch_add(1, Ordering::Relaxed) < CLIENTS_MAX).then_some(permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs a part of the control plane. A panic in it ends that part and nothing else: what it recorded is on
/// the medium. Returns whether the part came to its end.
pub(crate) fn contained(what: &str, part: impl FnOnce()) -> bool {
    let ended = catch_unwind(AssertUnwindSafe(part)).is_ok();
    if !ended {
        tracing::error!("{what} was given up after a panic; the daemon goes on");
    }
    ended
}

/// Listens on the control socket, mode 0600. A stale one is replaced, a live one refused.
///
/// After a crash the kernel answers for the daemon before until it has taken it apart. So a live daemon
/// is given a while to go.
pub(crate) fn listen(path: &Path, after_crash: bool) -> ControlResult<UnixListener> {
    let shown = path.display();
    if let Ok(meta) = fs::symlink_metadata(path) {
        if !meta.file_type().is_socket() {
            return Err(ControlError::failed(format!(
                "{shown} is there and is no socket; move it away"
            )));
        }
        let mut tries = if after_crash { CRASH_TRIES } else { 1 };
        while UnixStream::connect(path).is_ok() {
            tries -= 1;
            if tries > 0 {
                thread::park_timeout(CRASH_STEP);
                continue;
            }
            return Err(ControlError::failed(format!(
                "another program answers on {shown}; stop it, or choose another --state DIR"
            )));
        }
        fs::remove_file(path)
            .map_err(|error| ControlError::io(format!("replacing stale {shown}"), &error))?;
    }
    let listener = UnixListener::bind(path)
        .map_err(|error| ControlError::io(format!("listening on {shown}"), &error))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
        .map_err(|error| ControlError::io(format!("closing {shown} to others"), &error))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let first = listen(&path, false).unwrap();
        assert!(listen(&path, false).unwrap_err().message.contains("answers"));
        drop(first);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let second = listen(&path, false).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::park_timeout(CRASH_STEP);
                drop(second);
            });
            listen(&path, true).unwrap();
        });
    }

    #[test]
    fn a_client_whose_thread_panics_gives_its_place_back() {
        let taken = Arc::default();
        let all: Vec<Permit> = (0..CLIENTS_MAX).map_while(|_| Permit::take(&taken)).collect();
        assert_eq!(all.len(), CLIENTS_MAX);
        assert!(Permit::take(&taken).is_none(), "one too many");
        drop(all);
        let permit = Permit::take(&taken).unwrap();
        let panicking = move || {
            let _permit = permit;
            assert!(!contained("a part that is wrong", || panic!("on purpose")));
        };
        thread::Builder::new().spawn(panicking).unwrap().join().unwrap();
        assert_eq!(taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_file_in_the_place_of_the_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        fs::write(&path, "mine").unwrap();
        assert!(listen(&path, true).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
}
