//! Words from the data path, and the waker for what it has to say.

use std::sync::Arc;

/// Wakes the control plane, from any thread.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// The log of the daemon, and who is woken.
pub trait Log {
    /// Sets the waker for a change of [`Caches::health`](super::Caches::health) of some volume for the worse,
    /// or of [`Arrays::array_devices`](super::Arrays::array_devices) of some array at all. A fault of either
    /// wakes as well.
    fn set_waker(&self, waker: Waker);

    /// Takes one line of the daemon's log.
    fn log(&self, line: &str);

    /// [`Self::log`] of what a user has to look at.
    fn warn(&self, line: &str);
}
