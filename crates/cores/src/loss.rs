//! The loss of an SSD, on its way from the core that sees it to the registry that must know of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
}
