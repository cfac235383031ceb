//! How far the end of a cache has come.

use std::cell::Cell;

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
pub(crate) struct Lifecycle(Cell<Stage>);

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self(Cell::new(Stage::Serving))
    }

    pub(crate) fn advance_to(&self, stage: Stage) {
        self.0.set(self.0.get().max(stage));
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.0.get() >= Stage::Stopping
    }

    pub(crate) fn is_log_ending(&self) -> bool {
        self.0.get() >= Stage::LogEnding
    }
}
