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
mod jobs;
mod late;
mod live;
mod show;
mod spare_labels;
mod spare_pools;
mod start;
mod unfit_spare;
mod volumes;

use std::collections::BTreeMap;
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
use live::{Live, LiveArray};
use unfit_spare::UnfitSpare;

/// The answer to a ping, for which nobody needs the service.
pub(crate) fn pong() -> Response {
    Response::Pong { pid: std::process::id(), version: env!("CARGO_PKG_VERSION").to_owned() }
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
    jobs: Jobs,
    stopping: bool,
    /// Attempts left for what is busy at a start after a crash; 1 when there is no reason to wait.
    busy_tries: u32,
    /// How long a recorded device that is not there is awaited.
    device_wait: Duration,
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
            jobs: Jobs::default(),
            stopping: false,
            busy_tries: 1,
            device_wait: Duration::ZERO,
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
        let reads_only = matches!(
            request,
            Request::Ping
                | Request::Show { .. }
                | Request::Job { .. }
                | Request::Array { ask: ArrayRequest::Show { .. } | ArrayRequest::PoolShow { .. } }
        );
        if self.stopping && !reads_only {
            return Err(ControlError::failed("the daemon is stopping; try again in a moment"));
        }
        self.notice_lost_ssds();
        self.notice_array_events();
        match request {
            Request::Ping => Ok(pong()),
            Request::Create { name, origin, cache } => self.create(name, origin, cache),
            Request::Delete { name, flush } => self.delete(&name, flush),
            Request::Show { name: Some(name) } => self.show(&name),
            Request::Show { name: None } => Ok(self.show_all()),
            Request::Start { name } => late::start_volume(self, &name),
            Request::Set { name, changes } => self.set(&name, &changes),
            Request::Flush { name } => self.flush(&name),
            Request::Attach { name, cache } => self.attach(&name, cache),
            Request::Detach { name, flush } => self.detach(&name, flush),
            Request::Export { name, export } => self.export(&name, export),
            Request::Unexport { name, export } => self.unexport(&name, export.as_ref()),
            Request::Array { ask } => self.array(ask),
            Request::Job { id } => self.job_response(id),
        }
    }

    /// Looks for missing devices, and tries what waits for them. Returns how soon to look again, if there is
    /// anything to look for.
    pub fn look_for_devices(&mut self, now: Instant) -> Option<Duration> {
        late::look_for_devices(self, now)
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
                self.log(name, &error.message);
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
