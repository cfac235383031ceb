//! The queues of a core that other threads may touch: tasks that they wake, and messages.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use rustix::event::{EventfdFlags, eventfd};

use crate::fd::Fd;
use crate::slab::Key;

/// Messages waiting for one core. Senders are exports and the control plane, each with its own bound
/// on requests in flight; 4,096 is far above their sum and only a backstop.
const MESSAGES_MAX: usize = 4096;

struct Queues<M> {
    ready: VecDeque<Key>,
    messages: VecDeque<M>,
    closed: bool,
    stopping: bool,
    stop_waker: Option<Waker>,
}

/// A core's queues for other threads, and the descriptor that wakes the core.
pub(crate) struct Inbox<M> {
    queues: Mutex<Queues<M>>,
    room: Condvar,
    /// Set while the core sleeps in the kernel: then a wake needs the descriptor.
    sleeping: AtomicBool,
    wake_fd: Option<Fd>,
}

impl<M> Inbox<M> {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self::with(Some(Fd::from_owned(fd))))
    }

    pub(crate) fn without_wake_fd() -> Arc<Self> {
        Self::with(None)
    }

    fn with(wake_fd: Option<Fd>) -> Arc<Self> {
        Arc::new(Self {
            queues: Mutex::new(Queues {
                ready: VecDeque::new(),
                messages: VecDeque::new(),
                closed: false,
                stopping: false,
                stop_waker: None,
            }),
            room: Condvar::new(),
            sleeping: AtomicBool::new(false),
            wake_fd,
        })
    }

    pub(crate) fn wake_fd(&self) -> Fd {
        self.wake_fd.clone().expect("a real core has one")
    }

    fn lock(&self) -> MutexGuard<'_, Queues<M>> {
        // The queues are whole at every unlock, also when a holder panicked.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push_ready(&self, key: Key) {
        self.lock().ready.push_back(key);
        self.wake();
    }

    /// Queues a message; waits while too many are queued. False if the core has ended.
    pub(crate) fn push_message(&self, message: M) -> bool {
        let mut queues = self.lock();
        while queues.messages.len() >= MESSAGES_MAX && !queues.closed {
            queues = self.room.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
        if queues.closed {
            return false;
        }
        queues.messages.push_back(message);
        drop(queues);
        self.wake();
        true
    }

    fn wake(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst)
            && let Some(fd) = &self.wake_fd
        {
            // The counter cannot overflow by ones, and a wake in vain does no harm.
            let _ = rustix::io::write(fd.real(), &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn has_work(&self) -> bool {
        let queues = self.lock();
        !queues.ready.is_empty() || !queues.messages.is_empty()
    }

    /// Announces that the core is about to sleep; false if work came meanwhile.
    pub(crate) fn try_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        if self.has_work() {
            self.sleeping.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    pub(crate) fn woke(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Moves ready tasks into `round` and returns the messages, in order.
    pub(crate) fn take(&self, round: &mut VecDeque<Key>) -> VecDeque<M> {
        let mut queues = self.lock();
        std::mem::swap(&mut queues.ready, round);
        let messages = std::mem::take(&mut queues.messages);
        if !messages.is_empty() {
            self.room.notify_all();
        }
        messages
    }

    pub(crate) fn stop(&self) {
        let waker = {
            let mut queues = self.lock();
            queues.stopping = true;
            queues.stop_waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn poll_stop(&self, waker: &Waker) -> Poll<()> {
        let mut queues = self.lock();
        if queues.stopping {
            return Poll::Ready(());
        }
        queues.stop_waker = Some(waker.clone());
        Poll::Pending
    }

    pub(crate) fn close(&self) {
        let rest = {
            let mut queues = self.lock();
            queues.closed = true;
            std::mem::take(&mut queues.messages)
        };
        self.room.notify_all();
        drop(rest);
    }
}
