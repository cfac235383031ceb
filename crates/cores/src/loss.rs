//! Losses of SSDs and of members, on their way from the core that sees them to the registry that must know.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use voltier_block::{Nanos, SectorRange};
use voltier_ring::Handle;

use voltier_control::ByteRange;
use voltier_control::engine::{Passing, Waker};

/// How often requests that wait for a loss to be recorded look whether it is.
const RECORDED_STEP_NS: Nanos = 5_000_000;

/// Whether an SSD is lost, and whether the registry knows; and where clients pass it before.
#[derive(Default)]
pub(super) struct SsdLoss {
    pub(super) happened: AtomicBool,
    pub(super) recorded: AtomicBool,
    passing: Mutex<Passing>,
    /// The registry has that of this number.
    passing_recorded: AtomicU64,
}

impl SsdLoss {
    /// The registry has the loss, or needs it no more: the gate opens.
    pub(super) fn end(&self) {
        self.recorded.store(true, Ordering::Release);
    }

    fn passing(&self) -> MutexGuard<'_, Passing> {
        self.passing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where clients pass, if the registry does not have it yet, and is still to have it: the volume may have another
    /// SSD on record already.
    pub(super) fn passing_to_record(&self) -> Option<Passing> {
        if self.recorded.load(Ordering::Acquire) {
            return None;
        }
        let passing = self.passing();
        let is_new = passing.number > self.passing_recorded.load(Ordering::Acquire);
        is_new.then(|| passing.clone())
    }

    /// The registry has that of this number.
    pub(super) fn passing_is_recorded(&self, number: u64) {
        self.passing_recorded.fetch_max(number, Ordering::Release);
    }
}

/// The gate of a lost SSD: the origin changes only behind it.
#[derive(Clone)]
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

impl LossGate {
    /// Tells the control plane where clients are to pass the SSD, and waits until that is on record; false if it
    /// is not when the volume is closed, or its SSD is given up.
    pub(super) async fn record_passing(self, handle: Handle, ranges: Vec<SectorRange>) -> bool {
        let in_bytes = |range: &SectorRange| ByteRange {
            offset_bytes: range.start.bytes(),
            length_bytes: range.bytes(),
        };
        let number = {
            let mut passing = self.loss.passing();
            passing.number += 1;
            passing.ranges = ranges.iter().map(in_bytes).collect();
            passing.number
        };
        self.waker.iter().for_each(|wake| wake());
        let is_recorded = || self.loss.passing_recorded.load(Ordering::Acquire) >= number;
        while !is_recorded() && !self.loss.recorded.load(Ordering::Acquire) {
            handle.sleep(RECORDED_STEP_NS).await;
        }
        is_recorded()
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
    fn clients_pass_when_that_is_on_record_and_not_because_a_volume_is_closed() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(async move {
            let loss = Arc::new(SsdLoss::default());
            let gate = LossGate { loss: loss.clone(), waker: None };
            let record = |first: u64| {
                let ranges = vec![SectorRange::from_bytes(first * 4096, 4096)];
                handle.spawn(gate.clone().record_passing(handle.clone(), ranges))
            };
            assert_eq!(loss.passing_to_record(), None);
            let (one, two) = (record(1), record(2));
            handle.sleep(10 * RECORDED_STEP_NS).await;
            let told = loss.passing_to_record().expect("the registry lacks it");
            let ranges = vec![ByteRange { offset_bytes: 8192, length_bytes: 4096 }];
            assert_eq!(told, Passing { number: 2, ranges });
            loss.passing_is_recorded(1);
            assert!(one.await && loss.passing_to_record().is_some());
            loss.end();
            assert!(!two.await);
            assert_eq!(loss.passing_to_record(), None, "the next SSD may be on record");
            assert!(!record(3).await);
            assert_eq!(loss.passing_to_record(), None);
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
