//! The health of the SSD: one state, what its changes bring about, and who waits for them.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use voltier_block::{IoError, IoResult};
use voltier_ring::{Handle, Signal};

use crate::canary::{self, Canary};
use crate::devices::ssd_state::{SsdEvent, SsdState};

/// Whether the SSD still takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The SSD serves.
    Online,
    /// The SSD takes no writes: its dirty lines are read and written to the origin, and so are writes of clients.
    Evacuating,
    /// The SSD is out of service: requests go to the origin; lines that are dirty still are lost.
    Failed,
}

/// A future that records the loss of the SSD where the next start finds it.
pub(crate) type FailureGate = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>>>;

/// Called when an evacuation begins (true) or has ended.
type Tell = Rc<dyn Fn(bool)>;

/// Facts of an SSD when it went out of service. No state: no transition asks for them, and the states that
/// follow keep them.
#[derive(Clone, Copy, Default)]
struct Loss {
    /// The SSD went away as it was, with all that it held.
    is_gone: bool,
    /// The log had acknowledged writes that no flush had covered.
    is_unflushed: bool,
}

/// Steps of the parts above when the SSD takes no writes any more, or is lost.
pub(crate) struct Consequences {
    /// Ends the log before an evacuation: it takes nothing more, and settles what is on its way.
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
    loss: Cell<Loss>,
    /// Records the loss. No state: the owner of the cache sets or drops the gate in any state. The event of
    /// the loss says whether a gate was there.
    gate: RefCell<Option<FailureGate>>,
    /// Called when the cleaner has tried lines that were left.
    salvaged: RefCell<Option<Box<dyn FnOnce()>>>,
    /// Told of an evacuation.
    tell: RefCell<Option<Tell>>,
    /// The origin did not take what was to be evacuated, so many times. No state: requests compare the
    /// number with that of their begin.
    failed_batches: Cell<u64>,
    /// Callers that wait for requests to end, and so have none wait here. No state of the SSD: they come and
    /// go in every state.
    releases: Cell<u32>,
    /// The loss is on record, a batch of an evacuation failed, or requests are to end.
    news: Signal,
}

/// While somebody keeps this value, no request waits for an evacuation or the record of a loss.
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
        let salvaged = self.0.salvaged.take();
        self.0.step(SsdEvent::SalvageEnded);
        self.0.tell(false);
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
            loss: Cell::default(),
            gate: RefCell::new(None),
            salvaged: RefCell::new(None),
            tell: RefCell::new(None),
            failed_batches: Cell::new(0),
            releases: Cell::new(0),
            news: Signal::new(),
        })
    }

    /// Sets what happens above when the state changes.
    pub(crate) fn on_change(&self, consequences: Consequences) {
        self.consequences.replace(Some(consequences));
    }

    /// Has `gate` run when the SSD is given up, before the origin is changed again. Later `salvaged`
    /// runs, when lines that were left have been tried.
    pub(crate) fn set_gate(&self, gate: FailureGate, salvaged: Box<dyn FnOnce()>) {
        self.gate.replace(Some(gate));
        self.salvaged.replace(Some(salvaged));
    }

    /// Has `tell` called when an evacuation begins (true), and when it has ended.
    pub(crate) fn on_evacuation(&self, tell: impl Fn(bool) + 'static) {
        self.tell.replace(Some(Rc::new(tell)));
    }

    fn tell(&self, has_begun: bool) {
        let tell = self.tell.borrow().clone();
        tell.iter().for_each(|tell| tell(has_begun));
    }

    /// Whether the SSD is given up: nothing is read from it any more.
    #[inline]
    pub(crate) fn failed(&self) -> bool {
        !matches!(self.state.get(), SsdState::Online | SsdState::Evacuating)
    }

    /// Whether the cleaner may read the SSD.
    pub(crate) fn can_destage(&self) -> bool {
        use SsdState::{Evacuating, Online, Salvaging};
        matches!(self.state.get(), Online | Evacuating | Salvaging)
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
            SsdState::LossUnrecorded
            | SsdState::SalvageAwaited
            | SsdState::Salvaging
            | SsdState::Left
            | SsdState::Lost => Health::Failed,
        }
    }

    /// Whether acknowledged writes were lost that no flush had covered.
    pub(crate) fn unflushed_loss(&self) -> bool {
        self.loss.get().is_unflushed
    }

    /// Takes an event; whether it has changed the state.
    fn step(&self, event: SsdEvent) -> bool {
        let next = self.state.get().after(event);
        next.inspect(|next| self.state.set(*next)).is_ok()
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
        self.tell(true);
    }

    /// Whether the SSD went away while the cache relied on it.
    pub(crate) fn is_gone(&self) -> bool {
        self.loss.get().is_gone
    }

    /// Gives up an SSD that is not there any more. The owner of the gate may find the SSD again, as it was.
    pub(crate) fn lose(self: &Rc<Self>) {
        if !self.failed() {
            self.loss.set(Loss { is_gone: true, ..self.loss.get() });
        }
        self.give_up();
    }

    /// Gives the SSD up. The index stays as it is: its dirty lines are the list of what is lost, none after
    /// an evacuation.
    pub(crate) fn give_up(self: &Rc<Self>) {
        let (has_gate, evacuated) = (self.gate.borrow().is_some(), self.is_evacuating());
        if !self.end_use(SsdEvent::GivenUp { has_gate }) {
            return;
        }
        if evacuated {
            self.tell(false);
        }
        if has_gate {
            self.record_loss();
        }
        self.tell_of_loss();
    }

    /// Ends the use of the SSD as the end of the process would: the loss is on record nowhere, and nothing
    /// passes to the origin. Requests that cannot go on without the SSD end with an error.
    pub(crate) fn leave(&self) {
        self.forgo_record();
        if self.end_use(SsdEvent::Left) {
            self.tell_of_loss();
        }
    }

    /// Takes an event after which the SSD is not used, and ends the log; whether the event has changed the
    /// state.
    fn end_use(&self, event: SsdEvent) -> bool {
        if !self.step(event) {
            return false;
        }
        if let Some(consequences) = &*self.consequences.borrow() {
            let is_unflushed = (consequences.abandon_log)();
            self.loss.set(Loss { is_unflushed, ..self.loss.get() });
        }
        true
    }

    /// Has a task run the gate, if there is one: then the loss is on record.
    fn record_loss(self: &Rc<Self>) {
        let gate = self.gate.borrow_mut().take();
        let health = self.clone();
        drop(self.handle.spawn(async move {
            if let Some(gate) = gate {
                gate().await;
            }
            health.step(SsdEvent::LossRecorded);
            health.news.notify();
        }));
    }

    /// Wakes everybody who waits for the SSD or for its loss.
    fn tell_of_loss(&self) {
        self.news.notify();
        if let Some(consequences) = &*self.consequences.borrow() {
            (consequences.wake_all)();
        }
    }

    /// Whether the SSD was left as it is.
    pub(crate) fn has_left(&self) -> bool {
        self.state.get() == SsdState::Left
    }

    /// The caller has it on record that the SSD is no part of its volume any more: a loss needs no further
    /// record.
    pub(crate) fn forgo_record(&self) {
        drop(self.gate.borrow_mut().take());
    }

    /// Gives an SSD up that is evacuated, with lines left that the caller tries when that is on record.
    /// `None` if the SSD has been given up.
    pub(crate) fn begin_salvage(self: &Rc<Self>) -> Option<Salvage> {
        if !self.end_use(SsdEvent::EvacuationStalled) {
            return None;
        }
        self.record_loss();
        self.tell_of_loss();
        Some(Salvage(self.clone()))
    }

    /// The origin did not take a batch of what is evacuated. An SSD that was lost in it says nothing of that.
    pub(crate) fn note_failed_batch(&self) {
        if self.is_evacuating() || self.is_salvaging() {
            self.failed_batches.set(self.failed_batches.get() + 1);
            self.news.notify();
        }
    }

    /// Has those who wait for the origin look again.
    pub(crate) fn tell_news(&self) {
        self.news.notify();
    }

    /// Has requests that wait for an evacuation, or for the record of a loss, end with an error.
    /// Somebody waits for all requests to end, and the record may wait for that caller.
    pub(crate) fn release_waits(self: &Rc<Self>) -> ReleasedWaits {
        self.releases.set(self.releases.get() + 1);
        self.news.notify();
        ReleasedWaits(self.clone())
    }

    /// Whether requests are to end: somebody waits for all of them, or the cache has ended without the SSD.
    pub(crate) fn ends_waits(&self) -> bool {
        self.releases.get() > 0 || self.has_left()
    }

    /// Waits until all of the origin may be changed past the SSD: what was dirty has been evacuated or is
    /// lost, and that is on record.
    ///
    /// # Errors
    /// Those of [`past_gate_if`](Self::past_gate_if).
    pub(crate) async fn past_gate(&self) -> IoResult<()> {
        self.past_gate_if(|| false).await
    }

    /// The same, or until a part that `is_open` says of may be changed during the evacuation.
    ///
    /// # Errors
    /// `Medium` when the origin does not take what is evacuated, as it would not take more; and when
    /// requests are to end.
    pub(crate) async fn past_gate_if(&self, is_open: impl Fn() -> bool) -> IoResult<()> {
        let failed_batches = self.failed_batches.get();
        let waits = || match self.state.get() {
            SsdState::Evacuating => !is_open() && !canary::is(Canary::EvacuationPassed),
            SsdState::LossUnrecorded
            | SsdState::SalvageAwaited
            | SsdState::Salvaging
            | SsdState::Left => true,
            SsdState::Online | SsdState::Lost => false,
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
        /// The steps of an SSD's life.
        fn of<F: Future<Output = ()> + 'static>(
            life: impl FnOnce(Handle, Rc<SsdHealth>, Self) -> F,
        ) -> Vec<&'static str> {
            let mut executor = Executor::in_virtual_time(NoFiles);
            let (handle, steps) = (executor.handle(), Self::default());
            let health = SsdHealth::new(handle.clone());
            executor.block_on(life(handle, health, steps.clone()));
            steps.0.take()
        }

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

    /// Whether an SSD in the state: is read by clients; is read by the cleaner; takes writes; lets writes
    /// pass to the origin.
    fn permissions(state: SsdState) -> [bool; 4] {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(async move {
            let health = SsdHealth::new(handle.clone());
            health.state.set(state);
            let released = health.release_waits();
            let passes = health.past_gate().await.is_ok();
            drop(released);
            [!health.failed(), health.can_destage(), health.takes_writes(), passes]
        })
    }

    #[test]
    fn every_state_says_what_may_be_done() {
        for (state, may, health) in [
            (SsdState::Online, [true, true, true, true], Health::Online),
            (SsdState::Evacuating, [true, true, false, false], Health::Evacuating),
            (SsdState::LossUnrecorded, [false, false, false, false], Health::Failed),
            (SsdState::SalvageAwaited, [false, false, false, false], Health::Failed),
            (SsdState::Salvaging, [false, true, false, false], Health::Failed),
            (SsdState::Left, [false, false, false, false], Health::Failed),
            (SsdState::Lost, [false, false, false, true], Health::Failed),
        ] {
            assert_eq!(permissions(state), may, "{state:?}");
            let own = SsdHealth::new(Executor::in_virtual_time(NoFiles).handle());
            own.state.set(state);
            assert_eq!(own.health(), health, "{state:?}");
        }
    }

    #[test]
    fn an_ssd_that_is_left_is_on_record_nowhere_and_holds_no_request() {
        let steps = Steps::of(|handle, health, noted| async move {
            noted.take_in(&health, || {}, noted.note("log ends"), true);
            health.leave();
            health.give_up();
            handle.sleep(1).await;
            assert!(health.has_left() && health.failed() && health.ends_waits());
            assert_eq!(health.past_gate().await, Err(IoError::Medium));
        });
        assert_eq!(steps, ["log ends", "all wake"]);
    }

    #[test]
    fn an_evacuation_ends_the_log_once_and_lets_nobody_pass_before_its_end_is_on_record() {
        let steps = Steps::of(|handle, health, noted| async move {
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
        assert_eq!(steps, order);
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
        let steps = Steps::of(|_, health, noted| async move {
            noted.take_in(&health, || {}, noted.note("log ends"), true);
            health.past_gate().await.expect("nothing is wrong");
            health.give_up();
            health.give_up();
            assert!(health.failed() && health.unflushed_loss());
            health.past_gate().await.expect("the gate has run");
            noted.note("passed")();
        });
        assert_eq!(steps, ["log ends", "all wake", "recorded", "passed"]);
    }
}
