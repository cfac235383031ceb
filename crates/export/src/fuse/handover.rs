//! Between the control thread, which mounts and unmounts, and the core, which serves.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use voltier_keeper::Held;

use super::kept::Note;
use super::session::{Agreed, FileFacts};

/// A connection to be served.
pub(super) struct Start {
    /// The descriptor of `/dev/fuse`, whose reads do not wait.
    pub(super) fd: OwnedFd,
    pub(super) file: FileFacts,
    /// What an earlier session on the descriptor agreed on.
    pub(super) agreed: Option<Agreed>,
    /// Where that session counted handles.
    pub(super) note: Option<Note>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// INIT is not answered yet.
    Beginning,
    Serving,
    Ended,
}

struct State {
    stage: Stage,
    start: Option<Start>,
    core: Option<Waker>,
    agreed: Option<Agreed>,
    /// Requests after INIT may be answered, and this is to know of handles.
    go: Option<Option<Note>>,
    /// What ends with the connection.
    held: Option<Held>,
    /// The connection, for another daemon to serve on.
    left: Option<OwnedFd>,
}

/// What both say to each other.
pub(super) struct Handover {
    state: Mutex<State>,
    changed: Condvar,
    /// No request is answered any more.
    ending: AtomicBool,
    /// No more requests are read: another daemon serves on.
    leaving: AtomicBool,
}

impl Default for Handover {
    fn default() -> Self {
        let state = State {
            stage: Stage::Beginning,
            start: None,
            core: None,
            agreed: None,
            go: None,
            held: None,
            left: None,
        };
        let (ending, leaving) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { state: Mutex::new(state), changed: Condvar::new(), ending, leaving }
    }
}

/// The control thread's half.
impl Handover {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole at every unlock, also when a holder panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the core serve a connection, and waits until INIT is answered. What was agreed on then; `None` when that
    /// will not be. The core answers nothing else until it [may](Self::go), if INIT was still to be answered.
    pub(super) fn begin(&self, start: Start) -> Option<Agreed> {
        let mut state = self.lock();
        if state.stage != Stage::Ended {
            state.start = Some(start);
        }
        if let Some(waker) = state.core.take() {
            waker.wake();
        }
        while state.stage == Stage::Beginning {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.agreed.filter(|_| state.stage == Stage::Serving)
    }

    /// Lets the core answer requests.
    pub(super) fn go(&self, note: Option<Note>) {
        let mut state = self.lock();
        state.go = Some(note);
        if let Some(waker) = state.core.take() {
            waker.wake();
        }
    }

    /// What the keeper holds is let go when the connection ends: the kernel would not end it before.
    pub(super) fn ends_with(&self, held: Held) {
        let mut state = self.lock();
        match state.stage {
            Stage::Ended => {
                drop(state);
                held.release();
            }
            Stage::Beginning | Stage::Serving => state.held = Some(held),
        }
    }

    /// Has the core end the connection: every request fails that is not answered by now.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
        let waker = self.lock().core.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Has the core read no more requests, and waits so long until it has answered those that it has. The
    /// connection, for another daemon to serve on, and whether all are answered; `None` when it has ended.
    pub(super) fn leave(&self, limit: Duration) -> Option<(OwnedFd, bool)> {
        self.leaving.store(true, Ordering::SeqCst);
        let waker = self.lock().core.take();
        if let Some(waker) = waker {
            waker.wake();
        }
        let is_answered = self.wait_for_end(limit);
        self.lock().left.take().map(|fd| (fd, is_answered))
    }

    pub(super) fn is_served(&self) -> bool {
        self.lock().stage == Stage::Serving
    }

    /// Waits so long for the end of the connection; whether it has come.
    pub(super) fn wait_for_end(&self, limit: Duration) -> bool {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, limit, |it| it.stage != Stage::Ended);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.stage == Stage::Ended
    }
}

/// The core's half. When it is dropped, with its core perhaps, the control thread waits no more.
pub(super) struct CoreEnd(pub(super) Arc<Handover>);

impl CoreEnd {
    /// The connection to serve; `None` when there will be none.
    pub(super) async fn start(&self) -> Option<Start> {
        poll_fn(|context| {
            if self.poll_over(context) {
                return Poll::Ready(None);
            }
            self.0.lock().start.take().map_or(Poll::Pending, |start| Poll::Ready(Some(start)))
        })
        .await
    }

    /// INIT is answered, here or by an earlier daemon.
    pub(super) fn served(&self, agreed: Agreed) {
        self.0.lock().agreed = Some(agreed);
        self.advance(Stage::Serving);
    }

    /// Waits until requests may be answered, or none is to be answered any more.
    pub(super) async fn may_go(&self) -> Option<Note> {
        poll_fn(|context| {
            if self.poll_over(context) {
                return Poll::Ready(None);
            }
            self.0.lock().go.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Whether no request is to be answered any more.
    pub(super) fn is_ending(&self) -> bool {
        self.0.ending.load(Ordering::Relaxed)
    }

    /// Whether no more requests are to be read, because another daemon serves on.
    pub(super) fn is_leaving(&self) -> bool {
        self.0.leaving.load(Ordering::Relaxed)
    }

    /// Leaves the connection to another daemon. The kernel does not end it then, and what the keeper holds stays
    /// there.
    pub(super) fn leave(&self, fd: OwnedFd) {
        let mut state = self.0.lock();
        (state.left, state.held) = (Some(fd), None);
    }

    /// Whether no more requests are to be read, for whatever reason. If not, the task of this context is woken when
    /// that changes.
    pub(super) fn poll_over(&self, context: &Context<'_>) -> bool {
        let mut state = self.0.lock();
        if !state.core.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            state.core = Some(context.waker().clone());
        }
        self.0.ending.load(Ordering::SeqCst) || self.0.leaving.load(Ordering::SeqCst)
    }

    /// Another end for when the tasks of the core have failed, and are not dropped.
    pub(super) fn other(&self) -> CoreEnd {
        CoreEnd(self.0.clone())
    }

    fn advance(&self, stage: Stage) {
        self.0.lock().stage = stage;
        self.0.changed.notify_all();
    }
}

impl Drop for CoreEnd {
    fn drop(&mut self) {
        // A connection that was never begun ends with its start.
        let start = self.0.lock().start.take();
        drop(start);
        self.advance(Stage::Ended);
        let Some(held) = self.0.lock().held.take() else { return };
        // The keeper's answer is not awaited on a core. Without a thread it is: callers would wait for ever.
        let (other, release) = (held.clone(), move || held.release());
        if thread::Builder::new().name("let-go".into()).spawn(release).is_err() {
            other.release();
        }
    }
}
