//! Running a task on a core from the control plane.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use voltier_control::{ControlError, ControlResult};
use voltier_ring::{CallError, Domain, Handle, Remote};

use crate::fault;

/// How long a core may take to answer what it knows by itself. A core that is busy answers within
/// milliseconds.
const SOON: Duration = Duration::from_millis(900);

/// The way to a core for the tasks of one failure domain.
#[derive(Clone)]
pub(super) struct Way {
    remote: Remote,
    /// Since when the core owes an answer, if it does. All ways to a core share it.
    owes_since: Arc<Mutex<Option<Instant>>>,
}

impl Way {
    /// A way for tasks of no domain but their own.
    pub(super) fn to(remote: Remote) -> Self {
        Self { remote, owes_since: Arc::default() }
    }

    /// The same way for tasks of a new failure domain.
    pub(super) fn within(&self, domain: Domain) -> Self {
        Self { remote: self.remote.within(domain), owes_since: Arc::clone(&self.owes_since) }
    }

    /// Runs a task on the core and waits for the answer, as long as a device may take.
    pub(super) fn call<T, F>(
        &self,
        task: impl FnOnce(Handle) -> F + Send + 'static,
    ) -> ControlResult<T>
    where
        T: Send + 'static,
        F: Future<Output = ControlResult<T>> + 'static,
    {
        self.remote.call(task).unwrap_or_else(|error| Err(refusal(error)))
    }

    /// Runs a task that waits for no device. The answer comes soon, or is an error.
    pub(super) fn ask<T, F>(
        &self,
        task: impl FnOnce(Handle) -> F + Send + 'static,
    ) -> ControlResult<T>
    where
        T: Send + 'static,
        F: Future<Output = ControlResult<T>> + 'static,
    {
        self.ask_or_late(task).unwrap_or_else(|since| {
            let seconds = since.elapsed().as_secs();
            Err(ControlError::failed(format!(
                "no answer from its core since {seconds} s; see `dmesg` for drives that hang"
            )))
        })
    }

    /// [`Self::ask`]; without an answer since when there is none.
    pub(super) fn ask_or_late<T, F>(
        &self,
        task: impl FnOnce(Handle) -> F + Send + 'static,
    ) -> Result<ControlResult<T>, Instant>
    where
        T: Send + 'static,
        F: Future<Output = ControlResult<T>> + 'static,
    {
        // The next caller would wait as long, and leave one more question.
        if let Some(since) = *self.owes() {
            return Err(since);
        }
        let since = now();
        match self.remote.ask(SOON, task) {
            Ok(answer) => Ok(answer),
            Err(CallError::Late) => {
                *self.owes() = Some(since);
                let way = self.clone();
                self.remote.run(move |_| *way.owes() = None);
                Err(since)
            }
            Err(error) => Ok(Err(refusal(error))),
        }
    }

    /// Begins something on the core; whether there is a core.
    pub(super) fn run(&self, message: impl FnOnce(&Handle) + Send + 'static) -> bool {
        self.remote.run(message)
    }

    fn owes(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.owes_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[expect(clippy::disallowed_methods, reason = "time of the control plane, not of an I/O")]
fn now() -> Instant {
    Instant::now()
}

fn refusal(error: CallError) -> ControlError {
    ControlError::failed(match error {
        CallError::Ended => "a core has ended; see daemon.log".to_owned(),
        CallError::Late => "its core does not answer; see `dmesg`".to_owned(),
        CallError::Failed(failure) => {
            format!("{}; please report this with the lines of daemon.log", fault::words(&failure))
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use voltier_ring::Core;

    use super::*;

    #[test]
    fn a_core_that_does_not_answer_is_told_at_once_from_the_second_question_on() {
        let core = Core::start("late").unwrap();
        let way = Way::to(core.remote());
        let (release, released) = mpsc::channel::<()>();
        // A core that a system call keeps.
        way.run(move |_| {
            let _ = released.recv();
        });
        let error = way.ask(|_| async { Ok(1) }).unwrap_err();
        assert!(error.message.contains("no answer from its core"), "{error}");
        let error = way.within(Domain::fresh()).ask(|_| async { Ok(2) }).unwrap_err();
        assert!(error.message.contains("no answer from its core"), "{error}");
        release.send(()).unwrap();
        while way.ask_or_late(|_| async { Ok(3) }) != Ok(Ok(3)) {
            std::thread::yield_now();
        }
    }
}
