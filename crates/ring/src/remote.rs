//! Crossing threads: the way into a core, and the threads that cores run on.

use std::any::Any;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::domain::{Domain, Failure};
use crate::executor::{Executor, Handle, Message};
use crate::inbox::Inbox;

/// The answer of a task. One type for all tasks: a channel for each would be compiled for each.
type Answer = Result<Box<dyn Any + Send>, Failure>;

/// The way into a core from any thread.
#[derive(Clone)]
pub struct Remote {
    inbox: Arc<Inbox<Message>>,
    /// The failure domain of the calls; without one each call is a domain of its own.
    domain: Option<Domain>,
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The core has ended.
    Ended,
    /// The domain of the call has failed, before the call or in it.
    Failed(Failure),
    /// The core has not answered in time, and does what it was asked when it can.
    Late,
}

impl Remote {
    /// The way to the core of these tasks, for other threads.
    pub fn to(core: &Handle) -> Remote {
        Remote::over(core.inbox())
    }

    fn over(inbox: Arc<Inbox<Message>>) -> Self {
        Self { inbox, domain: None }
    }

    /// The same way for tasks of a failure domain.
    pub fn within(&self, domain: Domain) -> Remote {
        Remote { inbox: self.inbox.clone(), domain: Some(domain) }
    }

    /// Runs `message` on the core, soon; its handle is of the failure domain of calls. Waits while the core
    /// has too many waiting; false if the core has ended.
    pub fn run(&self, message: impl FnOnce(&Handle) + Send + 'static) -> bool {
        let domain = self.domain.unwrap_or_else(Domain::fresh);
        self.inbox.push_message(Box::new(move |core| message(&core.within(domain))))
    }

    /// Runs a task on the core and waits for its result.
    ///
    /// For threads that are not cores: it blocks.
    ///
    /// # Errors
    /// When the core has ended, or the failure domain of the call has failed.
    pub fn call<T, F>(
        &self,
        task: impl FnOnce(Handle) -> F + Send + 'static,
    ) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let answer = self.begin(task).and_then(|answer| answer.recv().ok());
        answer_of(answer.ok_or(CallError::Ended)?)
    }

    /// [`call`](Self::call) of what the core can answer at once, and waits no longer than `limit` for it.
    ///
    /// # Errors
    /// As [`call`](Self::call), and when no answer has come in time.
    pub fn ask<T, F>(
        &self,
        limit: Duration,
        task: impl FnOnce(Handle) -> F + Send + 'static,
    ) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let answer = self.begin(task).ok_or(CallError::Ended)?;
        match answer.recv_timeout(limit) {
            Ok(answer) => answer_of(answer),
            Err(RecvTimeoutError::Timeout) => Err(CallError::Late),
            Err(RecvTimeoutError::Disconnected) => Err(CallError::Ended),
        }
    }

    /// Begins a task on the core; where its answer comes. `None` when the core has ended.
    fn begin<T, F>(
        &self,
        task: impl FnOnce(Handle) -> F + Send + 'static,
    ) -> Option<mpsc::Receiver<Answer>>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (sender, receiver) = mpsc::channel::<Answer>();
        let sent = self.run(move |handle| {
            // The sender is also outside the task, which does not end when the domain fails.
            let answer = Rc::new(Cell::new(Some(sender)));
            let unanswered = answer.clone();
            let on_failure = handle.on_failure(move |failure| {
                if let Some(sender) = unanswered.take() {
                    // The caller waits for it, unless its thread is gone; so below.
                    let _ = sender.send(Err(failure.clone()));
                }
            });
            let own = handle.clone();
            drop(handle.spawn(async move {
                let result = task(own).await;
                drop(on_failure);
                if let Some(sender) = answer.take() {
                    let _ = sender.send(Ok(Box::new(result)));
                }
            }));
        });
        sent.then_some(receiver)
    }
}

fn answer_of<T: 'static>(answer: Answer) -> Result<T, CallError> {
    let result = answer.map_err(CallError::Failed)?;
    Ok(*result.downcast().expect("the answer of this task"))
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
            drop(sender.send(Ok(Remote::over(inbox.clone()))));
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
        self.remote.inbox.stop();
        if let Some(thread) = self.thread.take() {
            // The panic of a core was told by the hook of the process.
            let _ = thread.join();
        }
    }
}
