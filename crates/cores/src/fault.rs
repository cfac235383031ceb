//! A volume or an array that failed by a panic, on the way from its core to the control thread
//! ([why](../../../docs/adr/0043-a-panic-fails-one-volume.md)).

use std::sync::{Arc, OnceLock};
use std::thread;

use voltier_control::engine::Waker;
use voltier_ring::{Failure, is_contained};

/// Prefix of the names of core threads.
pub(super) const CORE_THREAD: &str = "core-";

/// Whether a volume or an array has failed, and why.
pub(super) struct Fault {
    failure: OnceLock<Failure>,
    waker: Option<Waker>,
}

impl Fault {
    pub(super) fn new(waker: Option<Waker>) -> Arc<Self> {
        Arc::new(Self { failure: OnceLock::new(), waker })
    }

    /// Tells the control plane.
    pub(super) fn tell(&self, failure: &Failure) {
        // A domain fails once.
        let _ = self.failure.set(failure.clone());
        self.waker.iter().for_each(|wake| wake());
    }

    /// The reason why the domain has failed, if it has.
    pub(super) fn words(&self) -> Option<String> {
        self.failure.get().map(words)
    }
}

/// Why a domain has failed, as a user reads it.
pub(super) fn words(failure: &Failure) -> String {
    format!("an assertion failed in its core: {failure}")
}

/// A panic in the tasks of a volume or an array fails the volume or array alone. Any other panic of a core
/// leaves nobody to answer, and whoever asks the core would wait for ever. Then the process ends: the next
/// daemon starts as after a crash, and nothing acknowledged is lost.
pub(super) fn end_with_a_core() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        let is_core = thread::current().name().is_some_and(|name| name.starts_with(CORE_THREAD));
        if is_core && !is_contained(panic) {
            tracing::error!("a core has failed; ending as after a crash");
            voltier_control::log::flush();
            std::process::abort();
        }
    }));
}

#[cfg(test)]
mod tests;
