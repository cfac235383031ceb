//! Crossing threads: messages into a core, and the threads that cores run on.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread;

use rustix::event::{EventfdFlags, eventfd};

use crate::executor::{Executor, Handle};
use crate::fd::Fd;
use crate::slab::Key;

/// Messages waiting for one core. Senders are doors and the control plane, each with its own bound
/// on requests in flight; 4,096 is far above their sum and only a backstop.
const MESSAGES_MAX: usize = 4096;

type Message = Box<dyn FnOnce(&Handle) + Send>;

#[derive(Default)]
struct Queues {
    ready: VecDeque<Key>,
    messages: VecDeque<Message>,
    closed: bool,
    stopping: bool,
    stop_waker: Option<Waker>,
}

/// What other threads may touch of a core: its queues, and the descriptor that wakes it.
pub(crate) struct Inbox {
    queues: Mutex<Queues>,
    room: Condvar,
    /// Set while the core sleeps in the kernel: then a wake needs the descriptor.
    sleeping: AtomicBool,
    wake_fd: Option<Fd>,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self::with(Some(Fd::from_owned(fd))))
    }

    pub(crate) fn without_wake_fd() -> Arc<Self> {
        Self::with(None)
    }

    fn with(wake_fd: Option<Fd>) -> Arc<Self> {
        Arc::new(Self {
            queues: Mutex::new(Queues::default()),
            room: Condvar::new(),
            sleeping: AtomicBool::new(false),
            wake_fd,
        })
    }

    pub(crate) fn wake_fd(&self) -> Fd {
        self.wake_fd.clone().expect("a real core has one")
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        // The queues are whole at every unlock, also when a holder panicked.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push_ready(&self, key: Key) {
        self.lock().ready.push_back(key);
        self.wake();
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

    /// Moves ready tasks into `turn` and returns the messages, in order.
    pub(crate) fn take(&self, turn: &mut VecDeque<Key>) -> VecDeque<Message> {
        let mut queues = self.lock();
        std::mem::swap(&mut queues.ready, turn);
        let messages = std::mem::take(&mut queues.messages);
        if !messages.is_empty() {
            self.room.notify_all();
        }
        messages
    }

    fn stop(&self) {
        let waker = {
            let mut queues = self.lock();
            queues.stopping = true;
            queues.stop_waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll_stop(&self, waker: &Waker) -> Poll<()> {
        let mut queues = self.lock();
        if queues.stopping {
            return Poll::Ready(());
        }
        queues.stop_waker = Some(waker.clone());
        Poll::Pending
    }

    fn close(&self) {
        let rest = {
            let mut queues = self.lock();
            queues.closed = true;
            std::mem::take(&mut queues.messages)
        };
        self.room.notify_all();
        drop(rest);
    }
}

/// The way into a core from any thread.
#[derive(Clone)]
pub struct Remote(Arc<Inbox>);

impl Remote {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Self {
        Self(inbox)
    }

    /// Runs `message` on the core, soon. Waits while the core has too many waiting; false if the
    /// core has ended.
    pub fn run(&self, message: impl FnOnce(&Handle) + Send + 'static) -> bool {
        let mut queues = self.0.lock();
        while queues.messages.len() >= MESSAGES_MAX && !queues.closed {
            queues = self.0.room.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
        if queues.closed {
            return false;
        }
        queues.messages.push_back(Box::new(message));
        drop(queues);
        self.0.wake();
        true
    }

    /// Runs a task on the core and waits for its result; `None` if the core has ended.
    ///
    /// For threads that are not cores: it blocks.
    pub fn call<T, F>(&self, task: impl FnOnce(Handle) -> F + Send + 'static) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (sender, receiver) = mpsc::channel();
        let sent = self.run(move |handle| {
            let future = task(handle.clone());
            drop(handle.spawn(async move {
                // The caller waits for it, unless its thread is gone.
                let _ = sender.send(future.await);
            }));
        });
        if sent { receiver.recv().ok() } else { None }
    }
}

/// A core: a thread with an executor on it, until it is dropped.
pub struct Core {
    remote: Remote,
    thread: Option<thread::JoinHandle<()>>,
}

impl Core {
    /// Starts the thread `name` with an executor of the real world.
    ///
    /// # Errors
    /// When the kernel refuses the thread or the ring.
    pub fn start(name: &str) -> io::Result<Self> {
        let (sender, started) = mpsc::channel();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Whoever asked for the core waits for this word; if it is gone, so is the need.
            let mut executor = match Executor::real() {
                Ok(executor) => executor,
                Err(error) => return drop(sender.send(Err(error))),
            };
            let inbox = executor.handle().remote().0;
            drop(sender.send(Ok(Remote(inbox.clone()))));
            let stopping = inbox.clone();
            executor.block_on(poll_fn(move |context| stopping.poll_stop(context.waker())));
            inbox.close();
        })?;
        let remote = started.recv().map_err(|_| io::Error::other("the core's thread died"))??;
        Ok(Self { remote, thread: Some(thread) })
    }

    /// The way in.
    pub fn remote(&self) -> Remote {
        self.remote.clone()
    }
}

impl Drop for Core {
    /// Ends the core: its tasks are dropped where they stand, its operations waited out.
    fn drop(&mut self) {
        self.remote.0.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("a core ended by a panic; its message is above");
        }
    }
}
