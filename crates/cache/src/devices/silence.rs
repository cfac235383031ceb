//! A drive that does not answer: since when, and which requests do not wait for it.
//!
//! Reads of clean lines do not wait for a silent SSD: the origin has the same data. Such a read is released,
//! which is no error of the SSD. All other requests wait, and end when the drive answers or is given up.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use voltier_block::Nanos;
use voltier_deadline::{Answers, Requests};
use voltier_ring::Signal;

/// The way on when a drive is silent and cannot be spared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnSilence {
    /// Requests wait for the drive.
    Wait,
    /// The SSD is given up, whatever is dirty on it: its user has given that up.
    GiveUp,
    /// The cache ends without the drive, as the end of its process would.
    Leave,
}

/// Called when a drive begins to answer nothing (true), or answers again.
type Tell = Rc<dyn Fn(bool)>;

/// The silence of one drive.
pub(crate) struct Silence {
    requests: Rc<Requests>,
    on_silence: Cell<OnSilence>,
    is_silent: Cell<bool>,
    /// On the clock of the core: when the oldest request began that the drive owed.
    since_ns: Cell<Nanos>,
    /// The length of the silence for which the drive was given up.
    given_up_after_ns: Cell<Option<Nanos>>,
    changed: Signal,
    /// Told of every beginning (true) and end.
    tell: RefCell<Option<Tell>>,
}

impl Silence {
    pub(crate) fn new(requests: &Rc<Requests>) -> Rc<Self> {
        Rc::new(Self {
            requests: requests.clone(),
            on_silence: Cell::new(OnSilence::Wait),
            is_silent: Cell::new(false),
            since_ns: Cell::new(0),
            given_up_after_ns: Cell::new(None),
            changed: Signal::new(),
            tell: RefCell::default(),
        })
    }

    /// Whether the drive has answered nothing for the deadline. True for ever of a drive given up for that.
    #[inline]
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent.get()
    }

    /// Whether the drive was given up for its silence: its requests fail, and that is no error of theirs.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up_after_ns.get().is_some()
    }

    /// For how long the drive has answered nothing, or had when it was given up.
    pub(crate) fn silent_ns(&self) -> Option<Nanos> {
        let now = || self.requests.watch().handle().now() - self.since_ns.get();
        self.given_up_after_ns.get().or_else(|| self.is_silent().then(now))
    }

    pub(crate) fn on_silence(&self) -> OnSilence {
        self.on_silence.get()
    }

    pub(crate) fn set_on_silence(&self, on_silence: OnSilence) {
        self.on_silence.set(on_silence);
    }

    /// Another deadline, 0 for none.
    pub(crate) fn set_deadline(&self, deadline_ns: Nanos) {
        self.requests.watch().set_deadline(deadline_ns);
        if deadline_ns == 0 {
            self.end();
        }
    }

    /// Whether the drive is silent, as its watch tells at a tick.
    pub(crate) fn lasts(&self) -> bool {
        if !self.is_silent() {
            return self.requests.is_late();
        }
        if self.requests.answers() == Answers::Promptly {
            self.end();
        }
        self.is_silent()
    }

    /// The drive is silent: reads of clean lines are released. Returns whether the silence is news.
    pub(crate) fn begin(&self) -> bool {
        let is_new = !self.is_silent.replace(true);
        let handle = self.requests.watch().handle();
        if is_new {
            self.since_ns.set(handle.now().saturating_sub(self.requests.waited_ns()));
            self.note(true);
        }
        handle.poll_all();
        is_new
    }

    /// The drive answers again.
    pub(crate) fn end(&self) {
        if !self.is_given_up() && self.is_silent.replace(false) {
            // Requests that are answered one by one get a whole deadline of their own.
            self.requests.watch().give_grace();
            self.note(false);
        }
    }

    /// Has somebody told of every beginning (true) and end of a silence.
    pub(crate) fn on_change(&self, tell: impl Fn(bool) + 'static) {
        self.tell.replace(Some(Rc::new(tell)));
    }

    fn note(&self, has_begun: bool) {
        self.changed.notify();
        let tell = self.tell.borrow().clone();
        tell.iter().for_each(|tell| tell(has_begun));
    }

    /// The drive is given up for its silence.
    pub(crate) fn give_up(&self) {
        self.begin();
        self.given_up_after_ns.set(self.silent_ns());
    }

    /// Whether requests wait for the drive to answer again.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.is_silent() && !self.is_given_up()
    }

    /// Whether the cache has ended without the drive.
    pub(crate) fn has_left(&self) -> bool {
        self.is_given_up() && self.on_silence() == OnSilence::Leave
    }

    /// Completes when requests wait for the drive to answer again.
    pub(crate) async fn begun(&self) {
        self.changed.until(|| self.is_waited_for()).await;
    }

    /// Waits for a request. `None` as soon as the drive is silent and `may_be_released` holds; whoever does
    /// something else then polls at a tick.
    #[inline]
    pub(crate) fn released<'a, F: Future>(
        &'a self,
        mut request: Pin<&'a mut F>,
        may_be_released: impl Fn() -> bool + 'a,
    ) -> impl Future<Output = Option<F::Output>> + 'a {
        poll_fn(move |context| {
            if self.is_silent() && may_be_released() {
                return Poll::Ready(None);
            }
            request.as_mut().poll(context).map(Some)
        })
    }
}
