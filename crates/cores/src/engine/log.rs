//! Lines of the log, and who is woken.

use voltier_control::engine::{Log, Waker};

use crate::core_engine::CoreEngine;

impl Log for CoreEngine {
    fn set_waker(&self, waker: Waker) {
        // The daemon has one.
        let _ = self.waker.set(waker);
    }

    fn log(&self, line: &str) {
        tracing::info!("{line}");
    }

    fn warn(&self, line: &str) {
        tracing::warn!("{line}");
    }
}
