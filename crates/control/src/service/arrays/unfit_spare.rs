//! Spares of pools that did not serve an array, and when to ask them again.

use std::time::{Duration, Instant};

/// How long a spare that did not serve is left alone: it may have been busy, or have failed once.
pub(crate) const ASK_AGAIN: Duration = Duration::from_secs(60);

/// A spare of a pool that did not serve an array.
pub(crate) struct UnfitSpare {
    why: String,
    asked_at: Instant,
    /// Whether the spare is to be asked again now.
    is_due: bool,
}

impl UnfitSpare {
    /// A spare that was asked now, and why it did not serve.
    pub(crate) fn new(why: String, now: Instant) -> Self {
        Self { why, asked_at: now, is_due: false }
    }

    /// The reason why the spare did not serve.
    pub(crate) fn why(&self) -> &str {
        &self.why
    }

    /// Whether the spare is to be asked again.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Looks whether it has been left alone long enough.
    pub(crate) fn look(&mut self, now: Instant) {
        self.is_due = now >= self.asked_at + ASK_AGAIN;
    }
}
