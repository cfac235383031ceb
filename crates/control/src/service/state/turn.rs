//! A turn with the state of the service: what commands and errands do their work through.
//!
//! A turn has the state alone until it waits for a device, and may claim subjects for longer (see `desk` and
//! `claims`). Nothing here names a command: commands name the turn.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::error::{ControlError, ControlResult};
use crate::name::{ArrayName, VolumeName};
use crate::safety::{DeviceId, DriveIdentity, Examined, Role};
use crate::service::state::State;
use crate::service::state::claims::{ClaimId, Subject};
use crate::service::state::desk::Desk;
use crate::service::state::live::now;
use crate::spec::{DeviceSpec, Storage};

/// How often a command that waits for another one looks whether it has ended.
const CLAIM_STEP: Duration = Duration::from_millis(10);

/// A turn with the state of the service, with a claim if it changes something.
pub(crate) struct Turn {
    pub(crate) engine: Arc<dyn Engine>,
    /// Attempts left for what is busy; 1 when there is no reason to wait.
    pub(crate) busy_tries: u32,
    claim: Option<ClaimId>,
    desk: Arc<Desk<State>>,
    /// Absent while the turn waits for a device.
    state: Option<Box<State>>,
}

impl Deref for Turn {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("nothing is looked at while a device is asked")
    }
}

impl DerefMut for Turn {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("nothing is changed while a device is asked")
    }
}

impl Drop for Turn {
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

/// The engine of a turn that has given the state back meanwhile. While this is held, the compiler lets
/// nobody use the turn.
pub(crate) struct Apart<'a>(&'a mut Turn);

impl Deref for Apart<'_> {
    type Target = dyn Engine;

    fn deref(&self) -> &Self::Target {
        &*self.0.engine
    }
}

impl Drop for Apart<'_> {
    fn drop(&mut self) {
        self.0.take_up();
        self.0.note_step(String::new());
    }
}

/// Devices in words, for a step of a command.
pub(crate) fn of_all<'a>(devices: impl IntoIterator<Item = &'a DeviceSpec>) -> String {
    let words: Vec<String> = devices.into_iter().map(ToString::to_string).collect();
    words.join(", ")
}

impl Turn {
    pub(crate) fn new(engine: Arc<dyn Engine>, desk: Arc<Desk<State>>) -> Self {
        Self { engine, busy_tries: 1, claim: None, state: Some(desk.take()), desk }
    }

    /// The engine, to be asked for something that a device may delay. Other turns go on until the answer is
    /// dropped, at the end of the statement. `step` is what a command that waits for this one is told.
    pub(crate) fn apart(&mut self, step: impl Into<String>) -> Apart<'_> {
        self.note_step(step.into());
        self.lay_down();
        Apart(self)
    }

    pub(crate) fn reading(&mut self, what: impl Display) -> Apart<'_> {
        self.apart(format!("reading {what}"))
    }

    pub(crate) fn reading_identity_of(&mut self, what: impl Display) -> Apart<'_> {
        self.apart(format!("reading the identity of {what}"))
    }

    pub(crate) fn looking_at(&mut self, path: &Path) -> Apart<'_> {
        self.apart(format!("opening and reading {}", path.display()))
    }

    /// Looks at a device before it is used, wherever it is; `None` of one that nobody else can have.
    pub(crate) fn examine(
        &mut self,
        device: &DeviceSpec,
        role: Role,
    ) -> Option<ControlResult<Examined>> {
        match device.storage() {
            Storage::Path(path) => Some(self.looking_at(path).examine(path, role)),
            Storage::Remote(remote) => {
                let step = format!("asking the server of {remote}");
                Some(self.apart(step).examine_remote(remote, role))
            }
            Storage::Own | Storage::Array(_) => None,
        }
    }

    pub(crate) fn looking_for(&mut self, identity: &DriveIdentity) -> Apart<'_> {
        self.apart(format!("looking for the drive {identity}"))
    }

    pub(crate) fn opening(&mut self, what: impl Display) -> Apart<'_> {
        self.apart(format!("opening {what}"))
    }

    pub(crate) fn closing(&mut self, what: impl Display) -> Apart<'_> {
        self.apart(format!("closing {what}"))
    }

    pub(crate) fn writing_to(&mut self, what: impl Display) -> Apart<'_> {
        self.apart(format!("writing to {what}"))
    }

    pub(crate) fn changing_settings_of(&mut self, name: &VolumeName) -> Apart<'_> {
        self.apart(format!("changing the settings of {name}"))
    }

    /// Lets other turns go on for a while.
    pub(crate) fn pause(&mut self, time: Duration) {
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
    pub(crate) fn own(&self) -> Option<ClaimId> {
        self.claim
    }

    /// Goes on with a claim that was made before.
    pub(crate) fn adopt(&mut self, claim: ClaimId) {
        self.claim = Some(claim);
    }

    /// Has subjects for the turn alone, which are what `wanted` says when they are free.
    ///
    /// # Errors
    /// When another command has them for longer than a command waits for another one.
    pub(crate) fn claim(
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
    /// When the start takes longer than a command waits for another one.
    pub(crate) fn wait_for_start_of(&mut self, name: &ArrayName) -> ControlResult<()> {
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
    pub(crate) fn with_claim<T>(
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
    pub(crate) fn claim_also(&mut self, subjects: BTreeSet<Subject>) -> ControlResult<()> {
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

    /// Writes down what went wrong with something nobody waits for: in the log and in `show`.
    pub(crate) fn note(&mut self, name: &VolumeName, outcome: ControlResult<()>) {
        self.note_unless(false, name, outcome);
    }

    /// [`Self::note`] of a volume that serves no longer: a job of it ends so.
    pub(crate) fn note_end(&mut self, name: &VolumeName, error: ControlError) {
        if let Some((job, _)) = self.jobs.running(name) {
            self.jobs.end(job, Err(error.clone()));
        }
        self.note(name, Err(error));
    }

    /// [`Self::note`]; the log does not say again what it has said.
    pub(crate) fn note_unless(
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
    pub(crate) fn log(&mut self, name: &VolumeName, text: &str) {
        self.engine.log(&format!("{name}: {text}"));
    }

    /// Writes into the log what went wrong with an array.
    pub(crate) fn note_array(&mut self, name: &ArrayName, outcome: ControlResult<()>) {
        if let Err(error) = outcome {
            self.engine.warn(&format!("array {name}: {}", error.message));
        }
    }

    /// The storage that a path leads to, if its file system says so at once.
    pub(crate) fn id_at(&self, path: &Path) -> Option<DeviceId> {
        self.engine.id_of(path)
    }

    /// The storage that a device is now; `None` of one that is not there, or not of this machine.
    pub(crate) fn id_of(&self, device: &DeviceSpec) -> Option<DeviceId> {
        if let Some(remote) = device.remote() {
            return Some(DeviceId::remote(remote));
        }
        self.id_at(device.path()?)
    }
}
