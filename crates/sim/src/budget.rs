//! How much was tried until something was found: the figure that a canary is held to.

use std::cell::Cell;

thread_local! {
    static WORLDS: Cell<u64> = const { Cell::new(0) };
}

/// One more world was begun on this thread: a crash point, or a life of a trial.
pub fn note_world() {
    WORLDS.set(WORLDS.get() + 1);
}

/// Worlds begun on this thread since the last call.
pub fn take_worlds() -> u64 {
    WORLDS.replace(0)
}
