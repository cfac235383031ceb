//! From the thread that reads the kernel's requests to the device's core.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use fuser::{ReplyData, ReplyEmpty, ReplyWrite};
use voltier_block::{Bytes, Durability};

/// A request that needs the device. A reply that is dropped unanswered says EIO to the kernel.
pub(super) enum FileRequest {
    Read { offset: u64, length: u64, reply: ReplyData },
    Write { offset: u64, data: Bytes, durability: Durability, reply: ReplyWrite },
    Zero { offset: u64, length: u64, keep_space: bool, reply: ReplyEmpty },
    Flush { reply: ReplyEmpty },
}

#[derive(Default)]
struct State {
    requests: Vec<FileRequest>,
    core: Option<Waker>,
    closed: bool,
}

/// Requests on their way to the core. The kernel bounds them: it sends so many in the background
/// as it was told at the mount, and one for each waiting thread.
#[derive(Default)]
pub(super) struct Mailbox(Mutex<State>);

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole at every unlock, also when a holder panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a request to the core; dropped, and so failed, when the core serves no more.
    pub(super) fn send(&self, request: FileRequest) {
        let waker = {
            let mut state = self.lock();
            if state.closed {
                return;
            }
            state.requests.push(request);
            state.core.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Nobody serves requests any more: those that wait fail, and those to come.
    pub(super) fn fail(&self) {
        let rest = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.requests)
        };
        // Outside the lock: each sends its failure to the kernel.
        drop(rest);
    }

    /// No more requests: the core's task ends when it has served what came before.
    pub(super) fn close(&self) {
        let waker = {
            let mut state = self.lock();
            state.closed = true;
            state.core.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The core's end. When this end is dropped, with its core perhaps, waiting requests fail rather than
/// leave their callers in the kernel for ever.
pub(super) struct Receiver(pub(super) Arc<Mailbox>);

impl Receiver {
    /// Swaps what has arrived into `batch`; false when the export is closed.
    pub(super) async fn receive(&self, batch: &mut Vec<FileRequest>) -> bool {
        poll_fn(|context| {
            let mut state = self.0.lock();
            if !state.requests.is_empty() {
                std::mem::swap(&mut state.requests, batch);
                return Poll::Ready(true);
            }
            if state.closed {
                return Poll::Ready(false);
            }
            state.core = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.0.fail();
    }
}
