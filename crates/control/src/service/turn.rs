//! The state of the service, and a turn with it: what commands and errands do their work through.
//!
//! A turn has the state alone until it waits for a device, and may claim subjects for longer (see `desk` and
//! `claims`). Nothing here names a command: commands name the turn.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use super::claims::{ClaimId, Claims, Subject};
use super::desk::Desk;
use super::jobs::Jobs;
use super::live::{Crashed, Live, LiveArray, now};
use super::unfit_spare::UnfitSpare;
use super::wanting::Wanting;
use crate::engine::Engine;
use crate::error::{ControlError, ControlResult};
use crate::name::{ArrayName, VolumeName};
use crate::protocol::Response;
use crate::records::VolumeRecord;
use crate::registry::Registry;
use crate::safety::Machine;
use crate::suggest;

/// How long a command waits for another one that has its volume or array, unless told otherwise.
const QUEUE_WAIT: Duration = Duration::from_secs(30);

/// The state of a service: one turn at a time has it.
pub(super) struct State {
    pub(super) registry: Registry,
    pub(super) live: BTreeMap<VolumeName, Live>,
    pub(super) live_arrays: BTreeMap<ArrayName, LiveArray>,
    /// Arrays that wanted spares of their pools when they were last asked.
    pub(super) wanting: Vec<Wanting>,
    /// Spares of pools that did not serve an array, until something changes there.
    pub(super) unfit_spares: BTreeMap<(ArrayName, String), UnfitSpare>,
    /// Volumes whose users say that what their origins hold counts, until they have been opened once.
    pub(super) adopted_origins: BTreeSet<VolumeName>,
    /// Volumes whose SSD went away with so many dirty lines, until they wait for that SSD.
    pub(super) pulled: BTreeMap<VolumeName, u64>,
    pub(super) jobs: Jobs,
    pub(super) crashed: Crashed,
    pub(super) claims: Claims,
    /// The claims of a start of the daemon that has not ended.
    pub(super) starting: BTreeSet<ClaimId>,
    pub(super) stopping: bool,
    /// Volumes and arrays come to rest, and nothing else is done.
    pub(super) at_rest: bool,
    /// Attempts that a start has left for what is busy.
    pub(super) crash_tries: u32,
    /// Whether the end of the daemon does not wait for clients.
    pub(super) ends_now: bool,
    /// How long a recorded device that is not there is awaited.
    pub(super) device_wait: Duration,
    /// How long a command waits for another one.
    pub(super) queue_wait: Duration,
    /// Something was not recorded: told, and tried again.
    pub(super) is_troubled: bool,
}

impl State {
    /// The state over a registry; nothing is open.
    pub(super) fn new(registry: Registry) -> Self {
        Self {
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
        }
    }
}

/// How often a command that waits for another one looks whether it has ended.
const CLAIM_STEP: Duration = Duration::from_millis(10);

/// A turn with the state of the service, with a claim if it changes something.
pub(super) struct Turn<E> {
    pub(super) engine: Arc<E>,
    pub(super) machine: Machine,
    /// Attempts left for what is busy; 1 when there is no reason to wait.
    pub(super) busy_tries: u32,
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
    pub(super) fn begin(engine: &Arc<E>, machine: &Machine, desk: &Arc<Desk<State>>) -> Self {
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
    pub(super) fn wait_for<T>(&mut self, step: String, ask: impl FnOnce(&E, &Machine) -> T) -> T {
        self.note_step(step);
        self.lay_down();
        let answer = ask(&self.engine, &self.machine);
        self.take_up();
        self.note_step(String::new());
        answer
    }

    /// Lets other turns go on for a while.
    pub(super) fn pause(&mut self, time: Duration) {
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
    pub(super) fn own(&self) -> Option<ClaimId> {
        self.claim
    }

    /// Goes on with a claim that was made before.
    pub(super) fn adopt(&mut self, claim: ClaimId) {
        self.claim = Some(claim);
    }

    /// Has subjects for the turn alone, which are what `wanted` says when they are free.
    ///
    /// # Errors
    /// When another command has them for longer than a command waits for another one.
    pub(super) fn claim(
        &mut self,
        command: &str,
        wanted: impl Fn(&State) -> BTreeSet<Subject>,
    ) -> ControlResult<()> {
        let until = now() + self.queue_wait;
        loop {
            let subjects = wanted(self);
            let Some(taken) = self.claims.taken(&subjects, None) else {
                self.claim = Some(self.claims.add(command, subjects));
                return Ok(());
            };
            if now() >= until {
                return Err(self.refusal(taken));
            }
            self.pause(CLAIM_STEP);
        }
    }

    /// Waits until a start of the daemon has tried an array: a command may come right after the daemon.
    ///
    /// # Errors
    /// When that takes longer than a command waits for another one.
    pub(super) fn wait_for_start_of(&mut self, name: &ArrayName) -> ControlResult<()> {
        let subject = Subject::Array(name.clone());
        let until = now() + self.queue_wait;
        while !self.live_arrays.contains_key(name) && self.claims.starts(&subject, None) {
            if now() >= until {
                return Err(self.refusal(&subject));
            }
            self.pause(CLAIM_STEP);
        }
        Ok(())
    }

    /// Does something with subjects for the turn alone, beside those that it has. `None` when another command
    /// has one of them.
    pub(super) fn with_claim<T>(
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
    pub(super) fn claim_also(&mut self, subjects: BTreeSet<Subject>) -> ControlResult<()> {
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

    /// The record of a volume.
    pub(super) fn record(&self, name: &VolumeName) -> ControlResult<VolumeRecord> {
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
    pub(super) fn open_record(&self, name: &VolumeName) -> ControlResult<VolumeRecord> {
        let record = self.record(name)?;
        record.must_not_be_stopped()?;
        match self.live.get(name) {
            Some(live) if live.is_open => Ok(record),
            Some(live) => {
                Err(ControlError::failed(format!("{name} is not served: {}", live.error)))
            }
            None => Err(ControlError::failed(format!("{name} is not served; see daemon.log"))),
        }
    }

    /// Writes down what went wrong with something nobody waits for: in the log and in `show`.
    pub(super) fn note(&mut self, name: &VolumeName, outcome: ControlResult<()>) {
        self.note_unless(false, name, outcome);
    }

    /// [`Self::note`]; the log does not say again what it has said.
    pub(super) fn note_unless(
        &mut self,
        is_said: bool,
        name: &VolumeName,
        outcome: ControlResult<()>,
    ) {
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
    pub(super) fn log(&mut self, name: &VolumeName, text: &str) {
        self.engine.log(&format!("{name}: {text}"));
    }

    pub(super) fn volume(&mut self, name: &VolumeName) -> Response {
        let record = self.registry.find(name).cloned().expect("a volume just handled is recorded");
        Response::Volume { volume: Box::new(self.status(&record)) }
    }
}
