//! The daemon's mind: what is asked, what is allowed, what is recorded, in that order.
//!
//! One service exists per daemon. Commands take turns with its state and wait for devices apart from it (see
//! `desk`): clients' I/O never waits for either. The rule for every change: check everything, then record
//! what must be known after a crash, then do it, then answer.

mod absence;
mod admit;
mod apart;
mod array_members;
mod arrays;
mod claims;
mod crash_wait;
mod desk;
mod drains;
mod drives;
pub(crate) mod errands;
mod exports;
mod faults;
mod given_up;
mod import;
mod jobs;
mod label_search;
mod last_search;
mod late;
mod live;
mod moved;
mod pulled;
mod records;
pub(crate) mod show;
mod silence;
mod spare_labels;
mod spare_pools;
mod start;
mod stops;
mod subjects;
mod unfit_spare;
mod volumes;
mod wanting;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::{Engine, Waker};
use crate::error::{ControlError, ControlResult};
use crate::name::{ArrayName, VolumeName};
use crate::protocol::{JobStatus, Request, Response};
use crate::records::VolumeRecord;
use crate::registry::Registry;
use crate::safety::Machine;
use crate::suggest;

use claims::{ClaimId, Claims, Subject};
pub(crate) use crash_wait::{CRASH_STEP, CRASH_TRIES};
use desk::Desk;
use jobs::Jobs;
pub use late::DEVICE_WAIT_S;
use live::{Crashed, Live, LiveArray};
use unfit_spare::UnfitSpare;
use wanting::Wanting;

/// The answer to a ping, for which nobody needs the service.
pub(crate) fn pong() -> Response {
    Response::Pong { pid: std::process::id(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// Volumes, arrays, registry and jobs of one state folder. Clones are ways to the same one.
pub struct Service<E> {
    engine: Arc<E>,
    machine: Machine,
    desk: Arc<Desk<State>>,
}

impl<E> Clone for Service<E> {
    fn clone(&self) -> Self {
        let (engine, desk) = (Arc::clone(&self.engine), Arc::clone(&self.desk));
        Self { engine, machine: self.machine.clone(), desk }
    }
}

/// How long one step of a start may take before nobody waits for the start any more.
const START_HANG: Duration = Duration::from_secs(30);

/// How long a command waits for another one that has its volume or array, unless told otherwise.
const QUEUE_WAIT: Duration = Duration::from_secs(30);

/// The state of a service: one turn at a time has it.
pub(super) struct State {
    registry: Registry,
    live: BTreeMap<VolumeName, Live>,
    live_arrays: BTreeMap<ArrayName, LiveArray>,
    /// Arrays that wanted spares of their pools when they were last asked.
    wanting: Vec<Wanting>,
    /// Spares of pools that did not serve an array, until something changes there.
    unfit_spares: BTreeMap<(ArrayName, String), UnfitSpare>,
    /// Volumes whose users say that what their origins hold counts, until they have been opened once.
    adopted_origins: BTreeSet<VolumeName>,
    /// Volumes whose SSD went away with so many dirty lines, until they wait for that SSD.
    pulled: BTreeMap<VolumeName, u64>,
    jobs: Jobs,
    crashed: Crashed,
    claims: Claims,
    /// The claims of a start of the daemon that has not ended.
    starting: BTreeSet<ClaimId>,
    stopping: bool,
    /// Volumes and arrays come to rest, and nothing else is done.
    at_rest: bool,
    /// Attempts that a start has left for what is busy.
    crash_tries: u32,
    /// Whether the end of the daemon does not wait for clients.
    ends_now: bool,
    /// How long a recorded device that is not there is awaited.
    device_wait: Duration,
    /// How long a command waits for another one.
    queue_wait: Duration,
    /// Something was not recorded: told, and tried again.
    is_troubled: bool,
}

impl<E: Engine> Service<E> {
    /// A service over a registry; nothing is open until [`Service::start`].
    pub fn new(engine: E, registry: Registry, machine: Machine) -> Self {
        let state = State {
            registry,
            live: BTreeMap::new(),
            live_arrays: BTreeMap::new(),
            wanting: Vec::new(),
            unfit_spares: BTreeMap::new(),
            adopted_origins: BTreeSet::new(),
            pulled: BTreeMap::new(),
            jobs: Jobs::default(),
            crashed: Crashed::default(),
            claims: Claims::default(),
            starting: BTreeSet::new(),
            stopping: false,
            at_rest: false,
            crash_tries: 1,
            ends_now: false,
            device_wait: Duration::ZERO,
            queue_wait: QUEUE_WAIT,
            is_troubled: false,
        };
        Self { engine: Arc::new(engine), machine, desk: Desk::new(state) }
    }

    fn turn(&self) -> Turn<E> {
        Turn::begin(&self.engine, &self.machine, &self.desk)
    }

    /// Sets the waker for the loss of an SSD.
    pub fn set_waker(&self, waker: Waker) {
        self.engine.set_waker(waker);
    }

    /// Sets how long a command waits for another one that has its volume or array.
    pub fn set_queue_wait(&self, wait: Duration) {
        self.turn().queue_wait = wait;
    }

    /// Answers one request, and gives spares to arrays that want some by then. Work that takes long is a job
    /// afterwards: see [`Service::step_jobs`].
    pub fn handle(&self, request: Request) -> Response {
        let response = self.answer(request);
        errands::due_spares(self).inspect(|errand| errands::run(self, errand, live::now()));
        response
    }

    /// Answers one request; all that may follow from it is left to errands.
    pub(crate) fn answer(&self, request: Request) -> Response {
        if request.is_a_look() {
            errands::wait_for_a_quick_start(self);
        }
        self.turn().handle(request)
    }

    /// Brings every recorded array and volume up. One that cannot be served is shown as failed, with
    /// the reason; the others serve. One of which a device is missing waits for it as long as `device_wait`
    /// says, or longer where redundancy is at stake: see [`Service::look_for_devices`].
    ///
    /// After a crash the kernel may still be taking the daemon before apart. The sockets of that daemon
    /// answer and its locks hold for a moment longer than the process. Then what is busy is tried again.
    pub fn start(&self, after_crash: bool, device_wait: Duration) {
        let start = errands::begin_to_start(self, after_crash, device_wait);
        start.iter().for_each(|errand| errands::run(self, errand, live::now()));
    }

    /// Looks for missing devices, and tries what waits for them, and exports that could not be opened.
    /// Returns how soon to look again, if there is anything to look for.
    pub fn look_for_devices(&self, now: Instant) -> Option<Duration> {
        errands::due_looks(self, now).iter().for_each(|errand| errands::run(self, errand, now));
        errands::due_spares(self).inspect(|errand| errands::run(self, errand, now));
        errands::next_look(self, now)
    }

    /// Looks at every running job and ends those whose drain has ended. Returns whether any still
    /// runs: then call again soon.
    pub fn step_jobs(&self) -> bool {
        errands::due_jobs(self).iter().for_each(|errand| errands::run(self, errand, live::now()));
        self.has_jobs()
    }

    pub(crate) fn has_jobs(&self) -> bool {
        !self.turn().jobs.all_running().is_empty()
    }

    /// Brings everything to rest: exports closed, logs checkpointed, dirty lines kept.
    pub fn stop(&self) {
        let stop = errands::begin_to_rest(self);
        stop.iter().for_each(|errand| errands::run(self, errand, live::now()));
    }

    /// Whether something recorded is not open yet because a device of it is awaited, or not tried yet.
    pub(crate) fn waits_for_devices(&self) -> bool {
        let turn = self.turn();
        let arrays = turn.live_arrays.values().map(|live| &live.absence);
        let mut absences = arrays.chain(turn.live.values().map(|live| &live.absence));
        let hangs = |claim: &ClaimId| turn.claims.hangs(*claim, START_HANG);
        absences.any(|absence| absence.is_waiting()) || !turn.starting.iter().all(hangs)
    }

    /// The devices that the next start or look will open, to be knocked at.
    pub(crate) fn knock(&self) {
        let paths = late::paths_to_open(&self.turn());
        self.machine.knock(paths);
    }

    /// Records SSDs that the data path gave up, so that they are not trusted after a restart. Whether all of
    /// them are on record: clients wait for that, so a record that failed is tried again.
    pub fn notice_lost_ssds(&self) -> bool {
        let all_recorded = self.turn().notice_lost_ssds();
        errands::due_pulled(self).iter().for_each(|errand| errands::run(self, errand, live::now()));
        all_recorded
    }

    /// Records what changed in arrays by itself. A member that was lost is old from then on. This
    /// instance must know that when the member is the only one that comes back; spares take places. Then
    /// gives spares of pools to arrays that want some.
    pub fn notice_array_events(&self) {
        self.turn().notice_array_events();
    }

    /// Records what the data path has done by itself, and what could not be recorded before. Whether all of
    /// it is on record: clients may wait for that, so what failed is tried again.
    pub fn record_news(&self) -> bool {
        self.turn().record_news()
    }

    /// A client has received this answer.
    pub fn job_is_told(&self, told: &JobStatus) {
        self.turn().jobs.tell(told);
    }

    /// From here on the service takes no changes, and goes on to serve clients.
    pub fn begin_to_stop(&self) {
        self.turn().stopping = true;
    }

    /// Whether the daemon was told to end without waiting for clients.
    pub fn ends_now(&self) -> bool {
        self.turn().ends_now
    }

    /// Everybody who uses an export now, in words.
    pub(crate) fn users(&self) -> Vec<String> {
        stops::users(&mut self.turn())
    }

    /// One line of the daemon's log, about no volume.
    pub(crate) fn say(&self, text: &str) {
        self.engine.log(text);
    }
}

/// How often a command that waits for another one looks whether it has ended.
const CLAIM_STEP: Duration = Duration::from_millis(10);

/// A turn with the state of the service, with a claim if it changes something.
struct Turn<E> {
    engine: Arc<E>,
    machine: Machine,
    /// Attempts left for what is busy; 1 when there is no reason to wait.
    busy_tries: u32,
    claim: Option<ClaimId>,
    desk: Arc<Desk<State>>,
    /// Absent while the turn waits for a device.
    state: Option<Box<State>>,
}

impl<E> Deref for Turn<E> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("nothing is looked at while a device is asked")
    }
}

impl<E> DerefMut for Turn<E> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("nothing is changed while a device is asked")
    }
}

impl<E> Drop for Turn<E> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            let mut state = self.state.take().unwrap_or_else(|| self.desk.take());
            state.claims.end(claim);
            state.starting.remove(&claim);
            self.state = Some(state);
        }
        self.state.take().into_iter().for_each(|state| self.desk.give(state));
    }
}

impl<E: Engine> Turn<E> {
    /// Waits for the state, which every turn gives back soon.
    fn begin(engine: &Arc<E>, machine: &Machine, desk: &Arc<Desk<State>>) -> Self {
        Self {
            engine: Arc::clone(engine),
            machine: machine.clone(),
            busy_tries: 1,
            claim: None,
            state: Some(desk.take()),
            desk: Arc::clone(desk),
        }
    }

    /// Asks the data path or the machine for something that a device may delay. Other turns go on meanwhile.
    fn wait_for<T>(&mut self, step: String, ask: impl FnOnce(&E, &Machine) -> T) -> T {
        self.note_step(step);
        self.lay_down();
        let answer = ask(&self.engine, &self.machine);
        self.take_up();
        self.note_step(String::new());
        answer
    }

    /// Lets other turns go on for a while.
    fn pause(&mut self, time: Duration) {
        self.lay_down();
        std::thread::park_timeout(time);
        self.take_up();
    }

    fn note_step(&mut self, step: String) {
        if let Some(claim) = self.claim {
            self.claims.step(claim, step);
        }
    }

    fn lay_down(&mut self) {
        self.state.take().into_iter().for_each(|state| self.desk.give(state));
    }

    fn take_up(&mut self) {
        self.state = Some(self.desk.take());
    }

    /// The claim of the turn.
    fn own(&self) -> Option<ClaimId> {
        self.claim
    }

    /// Goes on with a claim that was made before.
    fn adopt(&mut self, claim: ClaimId) {
        self.claim = Some(claim);
    }

    /// Has subjects for the turn alone, which are what `wanted` says when they are free.
    ///
    /// # Errors
    /// When another command has them for longer than a command waits for another one.
    fn claim(
        &mut self,
        command: &str,
        wanted: impl Fn(&State) -> BTreeSet<Subject>,
    ) -> ControlResult<()> {
        let until = live::now() + self.queue_wait;
        loop {
            let subjects = wanted(self);
            let Some(taken) = self.claims.taken(&subjects, None) else {
                self.claim = Some(self.claims.add(command, subjects));
                return Ok(());
            };
            if live::now() >= until {
                return Err(self.refusal(taken));
            }
            self.pause(CLAIM_STEP);
        }
    }

    /// Waits until a start of the daemon has tried an array: a command may come right after the daemon.
    ///
    /// # Errors
    /// When that takes longer than a command waits for another one.
    fn wait_for_start_of(&mut self, name: &ArrayName) -> ControlResult<()> {
        let subject = Subject::Array(name.clone());
        let until = live::now() + self.queue_wait;
        while !self.live_arrays.contains_key(name) && self.claims.starts(&subject, None) {
            if live::now() >= until {
                return Err(self.refusal(&subject));
            }
            self.pause(CLAIM_STEP);
        }
        Ok(())
    }

    /// Does something with subjects for the turn alone, beside those that it has. `None` when another command
    /// has one of them.
    fn with_claim<T>(
        &mut self,
        command: &str,
        mut subjects: BTreeSet<Subject>,
        work: impl FnOnce(&mut Self) -> T,
    ) -> Option<T> {
        if self.claims.taken(&subjects, self.claim).is_some() {
            return None;
        }
        let Some(own) = self.claim else {
            self.claim = Some(self.claims.add(command, subjects));
            let done = work(self);
            if let Some(claim) = self.claim.take() {
                self.claims.end(claim);
            }
            return Some(done);
        };
        subjects = self.claims.extend(own, subjects);
        let done = work(self);
        self.claims.shrink(own, &subjects);
        Some(done)
    }

    /// Has subjects beside those of the turn, if they are free.
    ///
    /// # Errors
    /// When another command has one of them.
    fn claim_also(&mut self, subjects: BTreeSet<Subject>) -> ControlResult<()> {
        if let Some(taken) = self.claims.taken(&subjects, self.claim) {
            return Err(self.refusal(taken));
        }
        if let Some(own) = self.claim {
            let _ = self.claims.extend(own, subjects);
        }
        Ok(())
    }

    fn refusal(&self, taken: &Subject) -> ControlError {
        let under_way = self.claims.under_way(taken, self.claim).unwrap_or_default();
        ControlError::failed(format!(
            "{} is busy with another command ({under_way}); try again when that has ended",
            taken.words()
        ))
    }

    fn handle(&mut self, request: Request) -> Response {
        self.dispatch(request).unwrap_or_else(|error| Response::Error { error })
    }

    /// Refuses changes while the daemon stops.
    fn takes(&self, request: &Request) -> ControlResult<()> {
        let may_be_last = request.is_a_look() || matches!(request, Request::StopDaemon { .. });
        if self.stopping && !may_be_last {
            return Err(ControlError::failed(
                "the daemon is stopping, and waits for clients that use it if there are any; try again \
                 when it has ended",
            ));
        }
        Ok(())
    }

    fn dispatch(&mut self, request: Request) -> ControlResult<Response> {
        self.takes(&request)?;
        if let Some(wanted) = subjects::of_request(&request) {
            self.claim(request.command(), |state| {
                subjects::with_neighbours(&state.registry, &wanted)
            })?;
            // The daemon may have begun to stop meanwhile.
            self.takes(&request)?;
        } else if let Some(array) = subjects::array_of_request_at_once(&request) {
            self.wait_for_start_of(array)?;
        }
        self.record_what_happened();
        if subjects::needs_a_record(&request) {
            // So that a full state folder is found before anything has changed.
            self.registry.check_room()?;
        }
        match request {
            Request::Ping => Ok(pong()),
            Request::Create { name, origin, cache } => self.create(name, origin, cache),
            Request::Delete { name, flush } => self.delete(&name, flush),
            Request::Show { name: Some(name) } => self.show(&name),
            Request::Show { name: None } => Ok(self.show_all()),
            Request::Start { name } => late::start_volume(self, &name),
            Request::Stop { name, now } => stops::stop_volume(self, &name, now),
            Request::StopDaemon { now } => stops::stop_daemon(self, now),
            Request::Set { name, changes } => self.set(&name, &changes),
            Request::Flush { name } => self.flush(&name),
            Request::Attach { name, cache } => self.attach(&name, cache),
            Request::Detach { name, flush } => self.detach(&name, flush),
            Request::Export { name, export, insecure, access } => {
                self.export(&name, export, insecure, access)
            }
            Request::Unexport { name, export, now } => self.unexport(&name, export.as_ref(), now),
            Request::Import { order } => import::import(self, &order),
            Request::Array { ask } => self.array(ask),
            Request::Job { id } => self.job_response(id),
        }
    }

    /// The record of a volume.
    fn record(&self, name: &VolumeName) -> ControlResult<VolumeRecord> {
        self.registry.find(name).cloned().ok_or_else(|| {
            let names: Vec<&str> =
                self.registry.volumes().iter().map(|volume| volume.name.as_str()).collect();
            let hint = if names.is_empty() {
                "there are none yet: voltier create".to_owned()
            } else {
                suggest::hint(name.as_str(), &names)
            };
            ControlError::failed(format!("no volume `{name}`; {hint}"))
        })
    }

    /// The record of a volume that is open, for requests that need the data path.
    fn open_record(&self, name: &VolumeName) -> ControlResult<VolumeRecord> {
        let record = self.record(name)?;
        stops::is_not_stopped(&record)?;
        match self.live.get(name) {
            Some(live) if live.is_open => Ok(record),
            Some(live) => {
                Err(ControlError::failed(format!("{name} is not served: {}", live.error)))
            }
            None => Err(ControlError::failed(format!("{name} is not served; see daemon.log"))),
        }
    }

    /// Writes down what went wrong with something nobody waits for: in the log and in `show`.
    fn note(&mut self, name: &VolumeName, outcome: ControlResult<()>) {
        self.note_unless(false, name, outcome);
    }

    /// [`Self::note`]; the log does not say again what it has said.
    fn note_unless(&mut self, is_said: bool, name: &VolumeName, outcome: ControlResult<()>) {
        if let Err(error) = outcome {
            if !is_said {
                self.engine.warn(&format!("{name}: {}", error.message));
            }
            if let Some(live) = self.live.get_mut(name) {
                live.error = error.message;
            }
        }
    }

    /// One line of the daemon's log.
    fn log(&mut self, name: &VolumeName, text: &str) {
        self.engine.log(&format!("{name}: {text}"));
    }

    fn volume(&mut self, name: &VolumeName) -> Response {
        let record = self.registry.find(name).cloned().expect("a volume just handled is recorded");
        Response::Volume { volume: Box::new(self.status(&record)) }
    }
}
