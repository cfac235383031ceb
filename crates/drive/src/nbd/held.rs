//! Requests that a server has, counted beyond the session and the drive that sent them.
//!
//! A connection that breaks, or that nobody wants any more, leaves the server with requests that it may carry out
//! later: over what was written since, if somebody goes on before. So the connection is shut down for writing and
//! stays until the server has answered, or has closed its end; the requests count as under way as long.
//!
//! **What the end of a connection says.** A server that closes a connection has done with it. The kernel closes the
//! one of a process that dies. Of a host that answers nothing the kernel says after 15 to 20 seconds that the
//! connection is over ([`connect`](voltier_nbd::connect) sets these times), and then the count ends without the
//! server's word: if only the network was cut, the host may have the requests still. Nothing on this side can know.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The count of the requests that the server of a drive has. Clones are the same count, also in other threads.
#[derive(Clone, Debug, Default)]
pub struct Held(Arc<AtomicUsize>);

impl Held {
    /// How many there are now.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Whether the drive and its connections are gone, so that the count stays what it is.
    pub fn is_final(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    pub(super) fn add(&self, requests: usize) {
        self.0.fetch_add(requests, Ordering::AcqRel);
    }

    pub(super) fn take(&self, requests: usize) {
        let less = |count: usize| Some(count.saturating_sub(requests));
        // It always gives a number.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }

    /// The domain of the drive has failed: its connections are closed, and nobody hears of their requests any more.
    pub(super) fn lose_sight(&self) {
        self.0.store(0, Ordering::Release);
    }
}
