//! Turns: one command at a time has the state of the service, and gives it back while it waits for a device.
//!
//! ```text
//! command A   begin | claim array a | ask a device ............... | put on record | end
//! command B                          | begin | claim b | ... | end |
//! show                                                  | begin | end |
//! ```
//!
//! So a drive that hangs keeps the one command that needs it, and commands for the same subject
//! ([why](../../../../docs/adr/0046-commands-wait-alone.md)). A command knows after a wait that its own
//! subjects are as they were but for what the data path did by itself: it reads their records again.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::State;
use super::claims::{ClaimId, Subject};
use super::live::now;
use crate::engine::Engine;
use crate::error::{ControlError, ControlResult};
use crate::safety::Machine;

/// How often a command that waits for another one looks whether it has ended.
const CLAIM_STEP: Duration = Duration::from_millis(10);

/// The place of the state while no turn has it.
pub(super) struct Desk {
    state: Mutex<Option<Box<State>>>,
    back: Condvar,
}

impl Desk {
    pub(super) fn new(state: State) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(Some(Box::new(state))), back: Condvar::new() })
    }

    fn take(&self) -> Box<State> {
        let mut place = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(state) = place.take() {
                return state;
            }
            place = self.back.wait(place).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn give(&self, state: Box<State>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
        self.back.notify_one();
    }
}

/// A turn with the state of the service, with a claim if it changes something.
pub(super) struct Turn<E> {
    pub(super) engine: Arc<E>,
    pub(super) machine: Machine,
    /// Attempts left for what is busy; 1 when there is no reason to wait.
    pub(super) busy_tries: u32,
    claim: Option<ClaimId>,
    desk: Arc<Desk>,
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
    pub(super) fn begin(engine: &Arc<E>, machine: &Machine, desk: &Arc<Desk>) -> Self {
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
}
