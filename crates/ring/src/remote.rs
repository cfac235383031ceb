//! Crossing threads: the way into a core, and the threads that cores run on.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use crate::executor::{Executor, Handle, Message};
use crate::inbox::Inbox;

/// The way into a core from any thread.
#[derive(Clone)]
pub struct Remote(Arc<Inbox<Message>>);

impl Remote {
    /// The way to the core of these tasks, for other threads.
    pub fn to(core: &Handle) -> Remote {
        Remote(core.inbox())
    }

    /// Runs `message` on the core, soon. Waits while the core has too many waiting; false if the
    /// core has ended.
    pub fn run(&self, message: impl FnOnce(&Handle) + Send + 'static) -> bool {
        self.0.push_message(Box::new(message))
    }

    /// Runs a task on the core and waits for its result; `None` if the core has ended.
    ///
    /// For threads that are not cores: it blocks.
    pub fn call<T, F>(&self, task: impl FnOnce(Handle) -> F + Send + 'static) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        // One type of answer for all tasks: a channel for each would be compiled for each.
        let (sender, receiver) = mpsc::channel::<Box<dyn Any + Send>>();
        let sent = self.run(move |handle| {
            let future = task(handle.clone());
            drop(handle.spawn(async move {
                // The caller waits for it, unless its thread is gone.
                let _ = sender.send(Box::new(future.await));
            }));
        });
        let answer = if sent { receiver.recv().ok() } else { None };
        answer.map(|answer| *answer.downcast().expect("the answer of this task"))
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
            // The thread that asked for the core waits for this word; without the thread nobody needs the
            // core.
            let mut executor = match Executor::real() {
                Ok(executor) => executor,
                Err(error) => return drop(sender.send(Err(error))),
            };
            let inbox = executor.handle().inbox();
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
