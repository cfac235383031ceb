//! How far the end of a cache has come.

use std::cell::Cell;
use std::future::Future;

use voltier_ring::{Signal, race};

/// The stages of a cache, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The cache serves.
    Serving,
    /// The cleaner and the loading of the map end.
    Stopping,
    /// Nothing will be queued any more: the log ends when all is out.
    LogEnding,
}

/// The stage of one cache: stages only advance.
pub(crate) struct Lifecycle {
    stage: Cell<Stage>,
    /// Nobody waits for what a cache that stops does not need.
    dropped: Signal,
}

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self { stage: Cell::new(Stage::Serving), dropped: Signal::new() }
    }

    pub(crate) fn advance_to(&self, stage: Stage) {
        self.stage.set(self.stage.get().max(stage));
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stage.get() >= Stage::Stopping
    }

    pub(crate) fn is_log_ending(&self) -> bool {
        self.stage.get() >= Stage::LogEnding
    }

    /// The cache stops, and nobody waits for requests that run
    /// [unless the cache stops](Self::unless_stopping).
    pub(crate) fn drop_unneeded(&self) {
        self.advance_to(Stage::Stopping);
        self.dropped.notify();
    }

    /// Waits for a request that a cache which stops does not need; `None` when the cache stops before.
    pub(crate) async fn unless_stopping<F: Future>(&self, request: F) -> Option<F::Output> {
        race(self.dropped.until(|| self.is_stopping()), request).await.err()
    }
}
