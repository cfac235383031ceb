//! The daemon's mind: what is asked, what is allowed, what is recorded, in that order.
//!
//! One service exists per daemon, behind one lock that only the control plane takes: clients' I/O
//! never waits for it. The rule for every change: check everything, then record what must be known
//! after a crash, then do it, then answer.

mod absence;
mod admit;
mod array_members;
mod arrays;
mod crash_wait;
mod drains;
mod drives;
mod exports;
mod faults;
mod import;
mod jobs;
mod label_search;
mod last_search;
mod late;
mod live;
mod moved;
mod pulled;
mod records;
mod show;
mod silence;
mod spare_labels;
mod spare_pools;
mod start;
mod stops;
mod unfit_spare;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::engine::{Engine, Waker};
use crate::error::{ControlError, ControlResult};
use crate::name::{ArrayName, VolumeName};
use crate::protocol::{ArrayRequest, Request, Response};
use crate::records::VolumeRecord;
use crate::registry::Registry;
use crate::safety::Machine;
use crate::suggest;

pub(crate) use crash_wait::{CRASH_STEP, CRASH_TRIES};
use jobs::Jobs;
pub use late::DEVICE_WAIT_S;
use live::{Crashed, Live, LiveArray};
pub use show::{recorded_arrays, recorded_volumes};
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

/// Volumes, arrays, registry and jobs of one state folder.
pub struct Service<E> {
    engine: E,
    registry: Registry,
    machine: Machine,
    live: BTreeMap<VolumeName, Live>,
    live_arrays: BTreeMap<ArrayName, LiveArray>,
    /// Spares of pools that did not serve an array, until something changes there.
    unfit_spares: BTreeMap<(ArrayName, String), UnfitSpare>,
    /// Volumes whose users say that what their origins hold counts, until they have been opened once.
    adopted_origins: BTreeSet<VolumeName>,
    jobs: Jobs,
    crashed: Crashed,
    stopping: bool,
    /// Whether the end of the daemon does not wait for clients.
    ends_now: bool,
    /// Attempts left for what is busy at a start after a crash; 1 when there is no reason to wait.
    busy_tries: u32,
    /// How long a recorded device that is not there is awaited.
    device_wait: Duration,
    /// Something was not recorded: told, and tried again.
    is_troubled: bool,
}

impl<E: Engine> Service<E> {
    /// A service over a registry; nothing is open until [`Service::start`].
    pub fn new(engine: E, registry: Registry, machine: Machine) -> Self {
        Self {
            engine,
            registry,
            machine,
            live: BTreeMap::new(),
            live_arrays: BTreeMap::new(),
            unfit_spares: BTreeMap::new(),
            adopted_origins: BTreeSet::new(),
            jobs: Jobs::default(),
            crashed: Crashed::default(),
            stopping: false,
            ends_now: false,
            busy_tries: 1,
            device_wait: Duration::ZERO,
            is_troubled: false,
        }
    }

    /// Sets the waker for the loss of an SSD.
    pub fn set_waker(&mut self, waker: Waker) {
        self.engine.set_waker(waker);
    }

    /// Answers one request. Work that takes long is a job afterwards: see [`Service::step_jobs`].
    pub fn handle(&mut self, request: Request) -> Response {
        self.dispatch(request).unwrap_or_else(|error| Response::Error { error })
    }

    fn dispatch(&mut self, request: Request) -> ControlResult<Response> {
        let may_be_last = matches!(
            request,
            Request::Ping
                | Request::Show { .. }
                | Request::Job { .. }
                | Request::StopDaemon { .. }
                | Request::Array { ask: ArrayRequest::Show { .. } | ArrayRequest::PoolShow { .. } }
        );
        if self.stopping && !may_be_last {
            return Err(ControlError::failed(
                "the daemon is stopping, and waits for clients that use it if there are any; try again \
                 when it has ended",
            ));
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

    /// Looks for missing devices, and tries what waits for them, and exports that could not be opened.
    /// Returns how soon to look again, if there is anything to look for.
    pub fn look_for_devices(&mut self, now: Instant) -> Option<Duration> {
        let next_look = late::look_for_devices(self, now);
        let next_export = self.try_exports_again(now);
        [next_look, next_export].into_iter().flatten().min()
    }

    /// Whether something recorded is not open yet because a device of it is awaited.
    pub(crate) fn waits_for_devices(&self) -> bool {
        let arrays = self.live_arrays.values().map(|live| &live.absence);
        let mut absences = arrays.chain(self.live.values().map(|live| &live.absence));
        absences.any(|absence| absence.is_waiting())
    }

    /// The devices that the next start or look will open, to be knocked at while nobody holds the service.
    pub(crate) fn knock(&self) -> impl FnOnce() + use<E> {
        let (machine, paths) = (self.machine.clone(), late::paths_to_open(self));
        move || machine.knock(paths)
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

    /// From here on the service takes no changes, and goes on to serve clients.
    pub fn begin_to_stop(&mut self) {
        self.stopping = true;
    }

    /// Whether the daemon was told to end without waiting for clients.
    pub fn ends_now(&self) -> bool {
        self.ends_now
    }

    /// Everybody who uses an export now, in words.
    pub(crate) fn users(&mut self) -> Vec<String> {
        stops::users(self)
    }

    /// One line of the daemon's log, about no volume.
    pub(crate) fn say(&mut self, text: &str) {
        self.engine.log(text);
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
