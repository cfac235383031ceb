//! The health of the SSD: one state, and the events that change it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use voltier_block::{IoError, IoResult};
use voltier_ring::{Handle, Signal};

use crate::canary::{self, Canary};

/// Whether the SSD still takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The SSD serves.
    Online,
    /// The SSD takes no writes: its dirty lines are read and written to the origin, writes of clients wait.
    Evacuating,
    /// The SSD is out of service: requests go to the origin; lines that are dirty still are lost.
    Failed,
}

/// A future that records the loss of the SSD where the next start finds it.
pub(crate) type FailureGate = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>>>;

/// States of the SSD: each says what the cache may do with it, and with the origin beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SsdState {
    /// The SSD serves.
    Online,
    /// The SSD takes no writes, and its reads work: the log has ended, and the cleaner writes all dirty
    /// lines to the origin. Nothing else may change on the origin, because a start after a crash finds the
    /// log as it ended, and writes the same lines again.
    Evacuating,
    /// The SSD is given up, and nothing may change on the origin before the loss is on record. An SSD
    /// that comes back could be trusted again.
    LossUnrecorded,
    /// The loss is on record, and no start trusts the SSD any more. Lines that were left go to the
    /// origin, also those that a replay could have written over. Nothing else changes there.
    Salvaging,
    /// The SSD is given up, and the origin serves alone.
    Lost,
}

/// Events that change the state of the SSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SsdEvent {
    /// Tries of a write are used up, a flush failed, or too many lines cannot be read: the part that met
    /// the error says so.
    WritesRefused,
    /// The device is gone, the process ends, or the cleaner has evacuated what can be read: any part of the
    /// cache may say so.
    GivenUp { has_gate: bool },
    /// The failure gate has run: the task that runs the gate says so.
    LossRecorded { salvages: bool },
    /// The cleaner has tried the lines that were left: the cleaner says so.
    Salvaged,
}

impl SsdState {
    /// The transition table: the state after an event, or `None` when the event changes nothing.
    fn after(self, event: SsdEvent) -> Option<Self> {
        match (self, event) {
            (Self::Online, SsdEvent::WritesRefused) => Some(Self::Evacuating),
            (Self::Online | Self::Evacuating, SsdEvent::GivenUp { has_gate: true }) => {
                Some(Self::LossUnrecorded)
            }
            (Self::Online | Self::Evacuating, SsdEvent::GivenUp { has_gate: false }) => {
                Some(Self::Lost)
            }
            (Self::LossUnrecorded, SsdEvent::LossRecorded { salvages: true }) => {
                Some(Self::Salvaging)
            }
            (Self::LossUnrecorded, SsdEvent::LossRecorded { salvages: false })
            | (Self::Salvaging, SsdEvent::Salvaged | SsdEvent::GivenUp { .. }) => Some(Self::Lost),
            (Self::Evacuating | Self::LossUnrecorded | Self::Salvaging | Self::Lost, _)
            | (Self::Online, SsdEvent::LossRecorded { .. } | SsdEvent::Salvaged) => None,
        }
    }
}

/// Steps of the parts above when the SSD takes no writes any more, or is lost.
pub(crate) struct Consequences {
    /// Ends the log before an evacuation: what it has not acknowledged is undone.
    pub(crate) end_log: Box<dyn Fn()>,
    /// Ends the log of a lost SSD; whether acknowledged records were not durable.
    pub(crate) abandon_log: Box<dyn Fn() -> bool>,
    /// Wakes everybody; comes last.
    pub(crate) wake_all: Box<dyn Fn()>,
}

/// The health of one SSD.
pub(crate) struct SsdHealth {
    handle: Handle,
    state: Cell<SsdState>,
    consequences: RefCell<Option<Consequences>>,
    gate: RefCell<Option<FailureGate>>,
    /// The cleaner has lines left for the time when the loss is on record.
    salvages: Cell<bool>,
    /// Called when the cleaner has tried them.
    salvaged: RefCell<Option<Box<dyn FnOnce()>>>,
    /// The SSD was given up with acknowledged writes that no flush had covered.
    unflushed_loss: Cell<bool>,
    /// The SSD went away as it was, with all that it held.
    is_gone: Cell<bool>,
    /// The cache has ended without the SSD, which stays as it is.
    has_left: Cell<bool>,
    /// The origin did not take what was to be evacuated, so many times.
    failed_batches: Cell<u64>,
    /// Callers that wait for requests to end, and so have none wait here.
    releases: Cell<u32>,
    /// The loss is on record, a batch of an evacuation failed, or requests are to end.
    news: Signal,
}

/// While this is kept, no request waits for an evacuation or the record of a loss.
pub(crate) struct ReleasedWaits(Rc<SsdHealth>);

impl Drop for ReleasedWaits {
    fn drop(&mut self) {
        self.0.releases.set(self.0.releases.get() - 1);
    }
}

/// The lines that are left of an SSD that is given up: nothing but them changes the origin before the answer
/// is dropped.
pub(crate) struct Salvage(Rc<SsdHealth>);

impl Salvage {
    /// Waits until the loss is on record; false if the cache stops before.
    pub(crate) async fn is_recorded(&self, is_stopping: impl Fn() -> bool) -> bool {
        self.0.news.until(|| self.0.is_salvaging() || is_stopping()).await;
        self.0.is_salvaging()
    }
}

impl Drop for Salvage {
    fn drop(&mut self) {
        self.0.salvages.set(false);
        let salvaged = self.0.salvaged.take();
        self.0.step(SsdEvent::Salvaged);
        if let Some(salvaged) = salvaged {
            salvaged();
        }
        self.0.news.notify();
    }
}

impl SsdHealth {
    pub(crate) fn new(handle: Handle) -> Rc<Self> {
        Rc::new(Self {
            handle,
            state: Cell::new(SsdState::Online),
            consequences: RefCell::new(None),
            gate: RefCell::new(None),
            salvages: Cell::new(false),
            salvaged: RefCell::new(None),
            unflushed_loss: Cell::new(false),
            is_gone: Cell::new(false),
            has_left: Cell::new(false),
            failed_batches: Cell::new(0),
            releases: Cell::new(0),
            news: Signal::new(),
        })
    }

    /// Sets what happens above when the state changes.
    pub(crate) fn on_change(&self, consequences: Consequences) {
        self.consequences.replace(Some(consequences));
    }

    /// Has `gate` run when the SSD is given up, before the origin is changed again. After that `salvaged`
    /// runs when lines that were left have been tried.
    pub(crate) fn set_gate(&self, gate: FailureGate, salvaged: Box<dyn FnOnce()>) {
        self.gate.replace(Some(gate));
        self.salvaged.replace(Some(salvaged));
    }

    /// Whether the SSD is given up: nothing is read from it any more.
    #[inline]
    pub(crate) fn failed(&self) -> bool {
        !matches!(self.state.get(), SsdState::Online | SsdState::Evacuating)
    }

    /// Whether the cleaner may read the SSD.
    pub(crate) fn can_destage(&self) -> bool {
        !matches!(self.state.get(), SsdState::LossUnrecorded | SsdState::Lost)
    }

    /// Whether the SSD is given up, and the cleaner tries what was left of it.
    pub(crate) fn is_salvaging(&self) -> bool {
        self.state.get() == SsdState::Salvaging
    }

    /// Whether the log goes on.
    #[inline]
    pub(crate) fn takes_writes(&self) -> bool {
        self.state.get() == SsdState::Online
    }

    pub(crate) fn is_evacuating(&self) -> bool {
        self.state.get() == SsdState::Evacuating
    }

    pub(crate) fn health(&self) -> Health {
        match self.state.get() {
            SsdState::Online => Health::Online,
            SsdState::Evacuating => Health::Evacuating,
            SsdState::LossUnrecorded | SsdState::Salvaging | SsdState::Lost => Health::Failed,
        }
    }

    /// Whether acknowledged writes were lost that no flush had covered.
    pub(crate) fn unflushed_loss(&self) -> bool {
        self.unflushed_loss.get()
    }

    fn step(&self, event: SsdEvent) -> bool {
        let next = self.state.get().after(event);
        next.inspect(|next| self.state.set(*next)).is_some()
    }

    /// The SSD takes no more writes: what it has is evacuated.
    pub(crate) fn refuse_writes(&self) {
        if !self.step(SsdEvent::WritesRefused) {
            return;
        }
        if let Some(consequences) = &*self.consequences.borrow() {
            (consequences.end_log)();
            (consequences.wake_all)();
        }
    }

    /// Whether the SSD went away while the cache relied on it.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.get()
    }

    /// Gives up an SSD that is not there any more. The owner of the gate may find the SSD again, as it was.
    pub(crate) fn lose(self: &Rc<Self>) {
        if !self.failed() {
            self.is_gone.set(true);
        }
        self.give_up();
    }

    /// Gives the SSD up. The index stays as it is: its dirty lines are the list of what is lost, none after
    /// an evacuation.
    pub(crate) fn give_up(self: &Rc<Self>) {
        let has_gate = self.gate.borrow().is_some() || self.salvages.get();
        if !self.step(SsdEvent::GivenUp { has_gate }) {
            return;
        }
        if let Some(consequences) = &*self.consequences.borrow() {
            self.unflushed_loss.set((consequences.abandon_log)());
        }
        let gate = self.gate.borrow_mut().take();
        if has_gate {
            let health = self.clone();
            drop(self.handle.spawn(async move {
                if let Some(gate) = gate {
                    gate().await;
                }
                let salvages = health.salvages.get();
                health.step(SsdEvent::LossRecorded { salvages });
                health.news.notify();
            }));
        }
        self.news.notify();
        if let Some(consequences) = &*self.consequences.borrow() {
            (consequences.wake_all)();
        }
    }

    /// Ends the use of the SSD as the end of the process would: the loss is on record nowhere, and nothing
    /// passes to the origin. Requests that cannot go on without the SSD end with an error.
    pub(crate) fn leave(&self) {
        self.has_left.set(true);
        self.releases.set(self.releases.get() + 1);
        drop(self.gate.borrow_mut().take());
        if self.step(SsdEvent::GivenUp { has_gate: true })
            && let Some(consequences) = &*self.consequences.borrow()
        {
            (consequences.abandon_log)();
            self.unflushed_loss.set(true);
            self.news.notify();
            (consequences.wake_all)();
        }
    }

    /// Whether the SSD was left as it is.
    pub(crate) fn has_left(&self) -> bool {
        self.has_left.get()
    }

    /// The caller has it on record that the SSD is no part of its volume any more: a loss needs no further
    /// record.
    pub(crate) fn forgo_record(&self) {
        drop(self.gate.borrow_mut().take());
    }

    /// Gives an SSD up that is evacuated, with lines left that the caller tries when that is on record.
    /// `None` if the SSD has been given up.
    pub(crate) fn begin_salvage(self: &Rc<Self>) -> Option<Salvage> {
        if !self.is_evacuating() {
            return None;
        }
        self.salvages.set(true);
        self.give_up();
        Some(Salvage(self.clone()))
    }

    /// The origin did not take a batch of what is evacuated. An SSD that was lost in it says nothing of that.
    pub(crate) fn note_failed_batch(&self) {
        if self.is_evacuating() || self.is_salvaging() {
            self.failed_batches.set(self.failed_batches.get() + 1);
            self.news.notify();
        }
    }

    /// Has requests that wait for an evacuation, or for the record of a loss, end with an error.
    /// Somebody waits for all requests to end, and the record may wait for that caller.
    pub(crate) fn release_waits(self: &Rc<Self>) -> ReleasedWaits {
        self.releases.set(self.releases.get() + 1);
        self.news.notify();
        ReleasedWaits(self.clone())
    }

    /// Whether somebody waits for all requests to end.
    pub(crate) fn ends_waits(&self) -> bool {
        self.releases.get() > 0
    }

    /// Waits until the origin may be changed past the SSD: all that is dirty has been evacuated or is lost,
    /// and that is on record.
    ///
    /// # Errors
    /// `Medium` when the origin does not take what is evacuated, as it would not take more; and when
    /// requests are to end.
    pub(crate) async fn past_gate(&self) -> IoResult<()> {
        let failed_batches = self.failed_batches.get();
        let waits = || match self.state.get() {
            SsdState::Evacuating => !canary::is(Canary::EvacuationPassed),
            state => matches!(state, SsdState::LossUnrecorded | SsdState::Salvaging),
        };
        let is_refused = || waits() && self.failed_batches.get() != failed_batches;
        self.news.until(|| !waits() || is_refused() || self.ends_waits()).await;
        if waits() { Err(IoError::Medium) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_ring::{Executor, NoFiles};

    /// Steps that the health of an SSD brought about, in order.
    #[derive(Clone, Default)]
    struct Steps(Rc<RefCell<Vec<&'static str>>>);

    impl Steps {
        fn note(&self, step: &'static str) -> impl Fn() + use<> {
            let steps = self.0.clone();
            move || steps.borrow_mut().push(step)
        }

        /// Notes what an SSD brings about; its log is ended by these, and `is_unflushed` once abandoned.
        fn take_in(
            &self,
            health: &SsdHealth,
            end_log: impl Fn() + 'static,
            abandon_log: impl Fn() + 'static,
            is_unflushed: bool,
        ) {
            let gate = Rc::new(self.note("recorded"));
            health.on_change(Consequences {
                end_log: Box::new(end_log),
                abandon_log: Box::new(move || {
                    abandon_log();
                    is_unflushed
                }),
                wake_all: Box::new(self.note("all wake")),
            });
            let recorded = move || -> Pin<Box<dyn Future<Output = ()>>> {
                let gate = gate.clone();
                Box::pin(async move { gate() })
            };
            health.set_gate(Box::new(recorded), Box::new(|| {}));
        }
    }

    #[test]
    fn every_event_in_every_state_does_what_the_table_says() {
        use SsdEvent::{Salvaged, WritesRefused};
        use SsdState::{Evacuating, LossUnrecorded, Lost, Online, Salvaging};
        let (gated, ungated) =
            (SsdEvent::GivenUp { has_gate: true }, SsdEvent::GivenUp { has_gate: false });
        let recorded = SsdEvent::LossRecorded { salvages: false };
        let with_lines = SsdEvent::LossRecorded { salvages: true };
        for (state, event, after) in [
            (Online, WritesRefused, Some(Evacuating)),
            (Online, gated, Some(LossUnrecorded)),
            (Online, ungated, Some(Lost)),
            (Online, recorded, None),
            (Online, with_lines, None),
            (Online, Salvaged, None),
            (Evacuating, WritesRefused, None),
            (Evacuating, gated, Some(LossUnrecorded)),
            (Evacuating, ungated, Some(Lost)),
            (Evacuating, recorded, None),
            (Evacuating, with_lines, None),
            (Evacuating, Salvaged, None),
            (LossUnrecorded, WritesRefused, None),
            (LossUnrecorded, gated, None),
            (LossUnrecorded, ungated, None),
            (LossUnrecorded, recorded, Some(Lost)),
            (LossUnrecorded, with_lines, Some(Salvaging)),
            (LossUnrecorded, Salvaged, None),
            (Salvaging, WritesRefused, None),
            (Salvaging, gated, Some(Lost)),
            (Salvaging, ungated, Some(Lost)),
            (Salvaging, recorded, None),
            (Salvaging, with_lines, None),
            (Salvaging, Salvaged, Some(Lost)),
            (Lost, WritesRefused, None),
            (Lost, gated, None),
            (Lost, ungated, None),
            (Lost, recorded, None),
            (Lost, with_lines, None),
            (Lost, Salvaged, None),
        ] {
            assert_eq!(state.after(event), after, "{state:?} {event:?}");
        }
    }

    #[test]
    fn an_evacuation_ends_the_log_once_and_lets_nobody_pass_before_its_end_is_on_record() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let steps = Steps::default();
        let noted = steps.clone();
        executor.block_on(async move {
            let health = SsdHealth::new(handle.clone());
            noted.take_in(&health, noted.note("log ends"), noted.note("abandoned"), false);
            health.refuse_writes();
            health.refuse_writes();
            assert!(health.is_evacuating() && !health.failed() && !health.takes_writes());
            let (waiting, passed) = (health.clone(), noted.note("passed"));
            let waiter = handle.spawn(async move {
                assert_eq!(waiting.past_gate().await, Err(IoError::Medium), "a failed batch");
                waiting.past_gate().await.expect("the evacuation ends");
                passed();
            });
            handle.sleep(1).await;
            health.note_failed_batch();
            handle.sleep(1).await;
            health.give_up();
            waiter.await;
        });
        let order = ["log ends", "all wake", "abandoned", "all wake", "recorded", "passed"];
        assert_eq!(*steps.0.borrow(), order);
    }

    #[test]
    fn whoever_waits_for_requests_to_end_has_none_wait_for_an_evacuation() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(async move {
            let health = SsdHealth::new(handle.clone());
            health.set_gate(Box::new(|| Box::pin(std::future::pending())), Box::new(|| {}));
            health.refuse_writes();
            let waiting = health.clone();
            let waiter = handle.spawn(async move { waiting.past_gate().await });
            handle.sleep(1).await;
            let released = health.release_waits();
            assert_eq!(waiter.await, Err(IoError::Medium));
            // A loss that nobody can put on record holds nobody either.
            health.give_up();
            assert_eq!(health.past_gate().await, Err(IoError::Medium));
            drop(released);
            let (waiting, passed) = (health.clone(), Rc::new(Cell::new(false)));
            let seen = passed.clone();
            drop(handle.spawn(async move {
                let _ = waiting.past_gate().await;
                seen.set(true);
            }));
            handle.sleep(1).await;
            health.note_failed_batch();
            handle.sleep(1).await;
            assert!(!passed.get(), "a failed batch of a lost SSD releases nobody");
        });
    }

    #[test]
    fn a_lost_ssd_ends_the_log_once_and_lets_nobody_pass_before_the_gate_has_run() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let steps = Steps::default();
        let noted = steps.clone();
        executor.block_on(async move {
            let health = SsdHealth::new(handle.clone());
            noted.take_in(&health, || {}, noted.note("log ends"), true);
            health.past_gate().await.expect("nothing is wrong");
            health.give_up();
            health.give_up();
            assert!(health.failed() && health.unflushed_loss());
            health.past_gate().await.expect("the gate has run");
            noted.note("passed")();
        });
        assert_eq!(*steps.0.borrow(), ["log ends", "all wake", "recorded", "passed"]);
    }
}
