//! The health of the SSD: one state, and the events that change it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use voltier_ring::{Handle, Signal};

/// Whether the SSD still takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The SSD serves.
    Online,
    /// The SSD is gone: requests go to the origin; dirty lines that were on the SSD are lost.
    Failed,
}

/// A future that records the loss of the SSD where the next start finds it.
pub(crate) type FailureGate = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>>>;

/// States of the SSD: each says what the cache may do with it, and with the origin beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SsdState {
    /// The SSD serves.
    Online,
    /// The SSD is given up, and nothing may change on the origin before the loss is on record: an SSD
    /// that comes back could be trusted again.
    LossUnrecorded,
    /// The SSD is given up, and the origin serves alone.
    Lost,
}

/// Events that change the state of the SSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SsdEvent {
    /// A device error, or the end of the process: any part of the cache may say so.
    GivenUp { has_gate: bool },
    /// The failure gate has run: the task that runs the gate says so.
    LossRecorded,
}

impl SsdState {
    /// The transition table: the state after an event, or `None` when the event changes nothing.
    fn after(self, event: SsdEvent) -> Option<Self> {
        match (self, event) {
            (Self::Online, SsdEvent::GivenUp { has_gate: true }) => Some(Self::LossUnrecorded),
            (Self::Online, SsdEvent::GivenUp { has_gate: false }) => Some(Self::Lost),
            (Self::LossUnrecorded, SsdEvent::LossRecorded) => Some(Self::Lost),
            (Self::LossUnrecorded | Self::Lost, SsdEvent::GivenUp { .. })
            | (Self::Online | Self::Lost, SsdEvent::LossRecorded) => None,
        }
    }
}

/// Steps of the parts above when the SSD is lost, in order.
struct Consequences {
    /// Ends the log; whether acknowledged records were not durable.
    abandon_log: Box<dyn FnOnce() -> bool>,
    wake_all: Box<dyn FnOnce()>,
}

/// The health of one SSD.
pub(crate) struct SsdHealth {
    handle: Handle,
    state: Cell<SsdState>,
    consequences: RefCell<Option<Consequences>>,
    gate: RefCell<Option<FailureGate>>,
    /// The SSD was given up with acknowledged writes that no flush had covered.
    unflushed_loss: Cell<bool>,
    recorded: Signal,
}

impl SsdHealth {
    pub(crate) fn new(handle: Handle) -> Rc<Self> {
        Rc::new(Self {
            handle,
            state: Cell::new(SsdState::Online),
            consequences: RefCell::new(None),
            gate: RefCell::new(None),
            unflushed_loss: Cell::new(false),
            recorded: Signal::new(),
        })
    }

    /// Sets what happens above when the SSD is given up: first the log ends, and, when the failure gate
    /// has begun, everybody wakes.
    pub(crate) fn on_loss(
        &self,
        abandon_log: impl FnOnce() -> bool + 'static,
        wake_all: impl FnOnce() + 'static,
    ) {
        let consequences =
            Consequences { abandon_log: Box::new(abandon_log), wake_all: Box::new(wake_all) };
        self.consequences.replace(Some(consequences));
    }

    /// Has `gate` run when the SSD is given up, before the origin is changed again.
    pub(crate) fn set_gate(&self, gate: FailureGate) {
        self.gate.replace(Some(gate));
    }

    #[inline]
    pub(crate) fn failed(&self) -> bool {
        self.state.get() != SsdState::Online
    }

    pub(crate) fn health(&self) -> Health {
        if self.failed() { Health::Failed } else { Health::Online }
    }

    /// Whether acknowledged writes were lost that no flush had covered.
    pub(crate) fn unflushed_loss(&self) -> bool {
        self.unflushed_loss.get()
    }

    fn step(&self, event: SsdEvent) -> bool {
        let next = self.state.get().after(event);
        next.inspect(|next| self.state.set(*next)).is_some()
    }

    /// Gives the SSD up. The index stays as it is: its dirty lines are the list of what is lost.
    pub(crate) fn give_up(self: &Rc<Self>) {
        let has_gate = self.gate.borrow().is_some();
        if !self.step(SsdEvent::GivenUp { has_gate }) {
            return;
        }
        let consequences = self.consequences.borrow_mut().take();
        let (abandon_log, wake_all) =
            consequences.map(|all| (all.abandon_log, all.wake_all)).unzip();
        if let Some(abandon_log) = abandon_log {
            self.unflushed_loss.set(abandon_log());
        }
        let gate = self.gate.borrow_mut().take();
        if let Some(gate) = gate {
            let health = self.clone();
            drop(self.handle.spawn(async move {
                gate().await;
                health.step(SsdEvent::LossRecorded);
                health.recorded.notify();
            }));
        }
        if let Some(wake_all) = wake_all {
            wake_all();
        }
    }

    /// Waits until a loss of the SSD is on record.
    pub(crate) async fn past_gate(&self) {
        self.recorded.until(|| self.state.get() != SsdState::LossUnrecorded).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_ring::{Executor, NoFiles};

    #[test]
    fn every_event_in_every_state_does_what_the_table_says() {
        use SsdState::{LossUnrecorded, Lost, Online};
        let (gated, ungated) =
            (SsdEvent::GivenUp { has_gate: true }, SsdEvent::GivenUp { has_gate: false });
        for (state, event, after) in [
            (Online, gated, Some(LossUnrecorded)),
            (Online, ungated, Some(Lost)),
            (Online, SsdEvent::LossRecorded, None),
            (LossUnrecorded, gated, None),
            (LossUnrecorded, ungated, None),
            (LossUnrecorded, SsdEvent::LossRecorded, Some(Lost)),
            (Lost, gated, None),
            (Lost, ungated, None),
            (Lost, SsdEvent::LossRecorded, None),
        ] {
            assert_eq!(state.after(event), after, "{state:?} {event:?}");
        }
    }

    #[test]
    fn a_lost_ssd_ends_the_log_once_and_lets_nobody_pass_before_the_gate_has_run() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let steps = Rc::new(RefCell::new(Vec::new()));
        let seen = steps.clone();
        executor.block_on(async move {
            let health = SsdHealth::new(handle.clone());
            let note = |step: &'static str| {
                let steps = steps.clone();
                move || steps.borrow_mut().push(step)
            };
            let (ends, gate, passed) = (note("log ends"), note("recorded"), note("passed"));
            health.on_loss(
                move || {
                    ends();
                    true
                },
                note("all wake"),
            );
            health.past_gate().await;
            health.set_gate(Box::new(move || Box::pin(async move { gate() })));
            health.give_up();
            health.give_up();
            assert!(health.failed() && health.unflushed_loss());
            health.past_gate().await;
            passed();
        });
        assert_eq!(*seen.borrow(), ["log ends", "all wake", "recorded", "passed"]);
    }
}
