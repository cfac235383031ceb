//! Losses of SSDs and of members, on their way from the core that sees them to the registry that must know.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use voltier_block::Nanos;
use voltier_ring::Handle;

use voltier_control::engine::Waker;

/// How often requests that wait for a loss to be recorded look whether it is.
const RECORDED_STEP_NS: Nanos = 5_000_000;

/// Whether an SSD is lost, and whether the registry knows.
#[derive(Default)]
pub(super) struct SsdLoss {
    pub(super) happened: AtomicBool,
    pub(super) recorded: AtomicBool,
}

impl SsdLoss {
    /// The registry has the loss, or needs it no more: the gate opens.
    pub(super) fn end(&self) {
        self.recorded.store(true, Ordering::Release);
    }
}

/// The gate of a lost SSD: the origin changes only behind it.
pub(super) struct LossGate {
    pub(super) loss: Arc<SsdLoss>,
    pub(super) waker: Option<Waker>,
}

impl LossGate {
    /// Tells the control plane, and waits until the loss is on record.
    pub(super) async fn pass(self, handle: Handle) {
        self.loss.happened.store(true, Ordering::Release);
        self.waker.iter().for_each(|wake| wake());
        while !self.loss.recorded.load(Ordering::Acquire) {
            handle.sleep(RECORDED_STEP_NS).await;
        }
    }
}

/// For so long changes of an array wait at most until the registry has its event count. The registry may be
/// on that very array, or may take no records.
const EVENTS_WAIT_NS: Nanos = 5_000_000_000;

/// The newest event count of an array that the registry has.
#[derive(Default)]
pub(super) struct KnownEvents(AtomicU64);

impl KnownEvents {
    /// The registry has this event count.
    pub(super) fn note(&self, events: u64) {
        self.0.fetch_max(events, Ordering::Release);
    }
}

/// The gate of an array whose members have changed: changes are acknowledged only behind the gate.
#[derive(Clone)]
pub(super) struct EventGate {
    pub(super) known: Arc<KnownEvents>,
    pub(super) waker: Waker,
}

impl EventGate {
    /// Tells the control plane, and waits until the registry has the event count, for a bounded time.
    pub(super) async fn pass(self, handle: Handle, events: u64) {
        let until = handle.now() + EVENTS_WAIT_NS;
        (self.waker)();
        while self.known.0.load(Ordering::Acquire) < events && handle.now() < until {
            handle.sleep(RECORDED_STEP_NS).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;
    use voltier_ring::{Executor, NoFiles};

    #[test]
    fn a_gate_opens_when_nobody_needs_the_record_any_more() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(async move {
            let loss = Arc::new(SsdLoss::default());
            let (gate, passed) =
                (LossGate { loss: loss.clone(), waker: None }, Rc::new(Cell::new(false)));
            let (seen, clock) = (passed.clone(), handle.clone());
            drop(handle.spawn(async move {
                gate.pass(clock).await;
                seen.set(true);
            }));
            handle.sleep(10 * RECORDED_STEP_NS).await;
            assert!(!passed.get() && loss.happened.load(Ordering::Acquire));
            loss.end();
            handle.sleep(2 * RECORDED_STEP_NS).await;
            assert!(passed.get());
        });
    }

    #[test]
    fn changes_wait_for_their_event_count_and_not_for_ever() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(async move {
            let known = Arc::new(KnownEvents::default());
            let gate = EventGate { known: known.clone(), waker: Arc::new(|| {}) };
            known.note(3);
            gate.clone().pass(handle.clone(), 3).await;
            assert_eq!(handle.now(), 0, "the registry has it");
            let passed = Rc::new(Cell::new(false));
            let (seen, clock, own) = (passed.clone(), handle.clone(), gate.clone());
            drop(handle.spawn(async move {
                own.pass(clock, 5).await;
                seen.set(true);
            }));
            known.note(4);
            handle.sleep(10 * RECORDED_STEP_NS).await;
            assert!(!passed.get(), "an older count does not do");
            known.note(5);
            handle.sleep(2 * RECORDED_STEP_NS).await;
            assert!(passed.get());
            let begin = handle.now();
            gate.pass(handle.clone(), 6).await;
            assert_eq!(handle.now() - begin, EVENTS_WAIT_NS);
        });
    }
}
