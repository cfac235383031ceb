//! The daemon's mind: what is asked, what is allowed, what is recorded, in that order.
//!
//! One service exists per daemon. Commands take turns with its state and wait for devices apart from it (see
//! `turn`): clients' I/O never waits for either. The rule for every change: check everything, then record what
//! must be known after a crash, then do it, then answer.

mod absence;
mod admit;
mod apart;
mod array_members;
mod arrays;
mod claims;
mod crash_wait;
mod drains;
mod drives;
mod errands;
mod exports;
mod faults;
mod import;
mod jobs;
mod late;
mod live;
mod pulled;
mod records;
mod show;
mod silence;
mod spare_labels;
mod spare_pools;
mod start;
mod stops;
mod subjects;
mod turn;
mod unfit_spare;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Engine, Waker};
use crate::error::{ControlError, ControlResult};
use crate::name::{ArrayName, VolumeName};
use crate::protocol::{ArrayRequest, JobStatus, Request, Response};
use crate::records::VolumeRecord;
use crate::registry::Registry;
use crate::safety::Machine;
use crate::suggest;

use claims::{ClaimId, Claims};
pub(crate) use crash_wait::{CRASH_STEP, CRASH_TRIES};
pub(crate) use errands::Errand;
use jobs::Jobs;
pub use late::DEVICE_WAIT_S;
use live::{Crashed, Live, LiveArray};
pub use show::{recorded_arrays, recorded_volumes};
use spare_pools::Wanting;
use turn::{Desk, Turn};
use unfit_spare::UnfitSpare;

/// The answer to a ping, for which nobody needs the service.
pub(crate) fn pong() -> Response {
    Response::Pong { pid: std::process::id(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// Whether a request is refused while the state folder takes no records. Requests that save data go on: the
/// records that follow them are tried again.
fn needs_a_record(request: &Request) -> bool {
    use ArrayRequest as Ask;
    match request {
        Request::Ping
        | Request::Show { .. }
        | Request::Job { .. }
        | Request::Start { .. }
        | Request::Flush { .. } => false,
        Request::Import { order } => !order.dry_run,
        Request::Array { ask } => !matches!(
            ask,
            Ask::Show { .. }
                | Ask::PoolShow { .. }
                | Ask::Start { .. }
                | Ask::Fail { .. }
                | Ask::Rebuild { .. }
                | Ask::Scrub { .. }
        ),
        _ => true,
    }
}

/// Volumes, arrays, registry and jobs of one state folder. Clones are ways to the same one.
pub struct Service<E> {
    engine: Arc<E>,
    machine: Machine,
    desk: Arc<Desk>,
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
        self.due_spares().inspect(|errand| self.run_errand(errand, live::now()));
        response
    }

    /// Answers one request; all that may follow from it is left to errands.
    pub(crate) fn answer(&self, request: Request) -> Response {
        if request.is_a_look() {
            self.wait_for_a_quick_start();
        }
        self.turn().handle(request)
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
        for errand in self.due_pulled() {
            self.run_errand(&errand, live::now());
        }
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

impl<E: Engine> Turn<E> {
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
            self.claim(request.command(), |state| subjects::with_neighbours(state, &wanted))?;
            // The daemon may have begun to stop meanwhile.
            self.takes(&request)?;
        }
        self.record_what_happened();
        if needs_a_record(&request) {
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
