//! Waiting within one core: signals, permits, and values handed over once.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A condition that tasks of one core wait for and re-check.
#[derive(Default)]
pub struct Signal {
    round: Cell<u64>,
    /// The wakers of this round: one for each wait that was polled, none where a wait was dropped.
    waiting: RefCell<Vec<Option<Waker>>>,
    /// Places in the list that a later wait may have.
    vacant: Cell<usize>,
}

/// A wait for a signal: see [`Signal::wait`].
struct SignalWait<'a> {
    of: &'a Signal,
    round: u64,
    /// The place of its waker, once polled.
    place: Option<usize>,
}

impl Signal {
    /// A signal nobody waits for.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes every task that waits now.
    #[inline]
    pub fn notify(&self) {
        self.round.set(self.round.get() + 1);
        self.vacant.set(0);
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for waker in waiting.into_iter().flatten() {
            waker.wake();
        }
    }

    /// Completes at the first [`notify`](Self::notify) after this call (not after the first poll).
    pub fn wait(&self) -> impl Future<Output = ()> + '_ {
        SignalWait { of: self, round: self.round.get(), place: None }
    }

    /// Puts a waker on the list of this round; its place there.
    fn register(&self, waker: &Waker) -> usize {
        let mut waiting = self.waiting.borrow_mut();
        let vacant = self.vacant.get();
        let left = if vacant > 0 { waiting.iter().position(Option::is_none) } else { None };
        match left {
            Some(place) => {
                self.vacant.set(vacant - 1);
                waiting[place] = Some(waker.clone());
                place
            }
            None => {
                waiting.push(Some(waker.clone()));
                waiting.len() - 1
            }
        }
    }

    /// Waits until `condition` holds, checking now and after each notify.
    pub async fn until(&self, mut condition: impl FnMut() -> bool) {
        while !condition() {
            self.wait().await;
        }
    }
}

impl Future for SignalWait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.of.round.get() != self.round {
            return Poll::Ready(());
        }
        match self.place {
            None => self.place = Some(self.of.register(context.waker())),
            Some(place) => {
                let known = &mut self.of.waiting.borrow_mut()[place];
                if !known.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
                    *known = Some(context.waker().clone());
                }
            }
        }
        Poll::Pending
    }
}

impl Drop for SignalWait<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place
            && self.of.round.get() == self.round
        {
            self.of.waiting.borrow_mut()[place] = None;
            self.of.vacant.set(self.of.vacant.get() + 1);
        }
    }
}

struct SemaphoreState {
    free: u64,
    queue: VecDeque<(u64, Rc<Cell<bool>>, Option<Waker>)>,
}

/// Permits that bound work in flight; waiters are served in order, so a large one is not starved.
#[derive(Clone)]
pub struct Semaphore(Rc<RefCell<SemaphoreState>>);

impl Semaphore {
    /// A semaphore with `permits` free.
    pub fn new(permits: u64) -> Self {
        Self(Rc::new(RefCell::new(SemaphoreState { free: permits, queue: VecDeque::new() })))
    }

    /// Free permits.
    pub fn free(&self) -> u64 {
        self.0.borrow().free
    }

    /// Waits for `count` permits, held until the [`Permit`] is dropped.
    pub async fn acquire(&self, count: u64) -> Permit {
        {
            let mut state = self.0.borrow_mut();
            if state.queue.is_empty() && state.free >= count {
                state.free -= count;
                return Permit { of: self.clone(), count };
            }
            state.queue.push_back((count, Rc::new(Cell::new(false)), None));
        }
        let granted = self.0.borrow().queue.back().map(|entry| entry.1.clone());
        let granted = granted.expect("just queued");
        // Owned before the wait: a waiter dropped in the queue gives up its place or its permits.
        let mut ticket = Ticket { of: self.clone(), count, granted, taken: false };
        poll_fn(|context| {
            if ticket.granted.get() {
                return Poll::Ready(());
            }
            let mut state = self.0.borrow_mut();
            let mine = state.queue.iter_mut().find(|entry| Rc::ptr_eq(&entry.1, &ticket.granted));
            mine.expect("waiting in the queue").2 = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        ticket.taken = true;
        Permit { of: self.clone(), count }
    }

    fn release(&self, count: u64) {
        self.0.borrow_mut().free += count;
        self.serve();
    }

    fn serve(&self) {
        loop {
            let waker = {
                let mut state = self.0.borrow_mut();
                match state.queue.front() {
                    Some(front) if front.0 <= state.free => {}
                    _ => return,
                }
                let (count, granted, waker) = state.queue.pop_front().expect("has a front");
                state.free -= count;
                granted.set(true);
                waker
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

struct Ticket {
    of: Semaphore,
    count: u64,
    granted: Rc<Cell<bool>>,
    taken: bool,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        if self.granted.get() {
            self.of.release(self.count);
        } else {
            self.of.0.borrow_mut().queue.retain(|entry| !Rc::ptr_eq(&entry.1, &self.granted));
            self.of.serve();
        }
    }
}

/// Permits in use; dropping gives them back.
pub struct Permit {
    of: Semaphore,
    count: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.of.release(self.count);
    }
}

enum Slot<T> {
    Empty(Option<Waker>),
    Full(T),
    Closed,
}

/// The giving end of a value handed over once.
pub struct OneshotSender<T>(Rc<RefCell<Slot<T>>>);

/// The taking end: a future of the value, or `None` if the sender was dropped.
pub struct OneshotReceiver<T>(Rc<RefCell<Slot<T>>>);

/// A value handed from one task to another of the same core.
pub fn oneshot<T>() -> (OneshotSender<T>, OneshotReceiver<T>) {
    let slot = Rc::new(RefCell::new(Slot::Empty(None)));
    (OneshotSender(slot.clone()), OneshotReceiver(slot))
}

impl<T> OneshotSender<T> {
    /// Hands the value over.
    pub fn send(self, value: T) {
        self.close(Slot::Full(value));
    }

    fn close(&self, end: Slot<T>) {
        let before = std::mem::replace(&mut *self.0.borrow_mut(), end);
        match before {
            Slot::Empty(Some(waker)) => waker.wake(),
            Slot::Empty(None) => {}
            full => *self.0.borrow_mut() = full,
        }
    }
}

impl<T> Drop for OneshotSender<T> {
    fn drop(&mut self) {
        self.close(Slot::Closed);
    }
}

impl<T> Future for OneshotReceiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = self.0.borrow_mut();
        match &mut *slot {
            Slot::Empty(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            Slot::Closed => Poll::Ready(None),
            Slot::Full(_) => match std::mem::replace(&mut *slot, Slot::Closed) {
                Slot::Full(value) => Poll::Ready(Some(value)),
                Slot::Empty(_) | Slot::Closed => Poll::Ready(None),
            },
        }
    }
}

/// The waker of the one task that waits for something.
#[derive(Default)]
pub struct WakerCell(RefCell<Option<Waker>>);

impl WakerCell {
    /// Has the task of this context woken by the next [`wake`](Self::wake).
    pub fn register(&self, context: &Context<'_>) {
        let mut waker = self.0.borrow_mut();
        if !waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
    }

    /// Waits until `condition` holds, checking now and whenever the task is woken.
    pub fn until(&self, mut condition: impl FnMut() -> bool) -> impl Future<Output = ()> {
        poll_fn(move |context| {
            if condition() {
                return Poll::Ready(());
            }
            self.register(context);
            Poll::Pending
        })
    }

    /// Wakes the registered task, if there is one.
    pub fn wake(&self) {
        let waker = self.0.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn waits_that_are_polled_again_or_dropped_leave_no_wakers_behind() {
        let signal = Signal::new();
        let (first, second) = (Arc::new(Woken::default()), Arc::new(Woken::default()));
        let wakers = [Waker::from(first.clone()), Waker::from(second.clone())];
        let mut wait = pin!(signal.wait());
        for waker in wakers.iter().cycle().take(100) {
            let mut context = Context::from_waker(waker);
            assert!(wait.as_mut().poll(&mut context).is_pending());
            let mut dropped = Box::pin(signal.wait());
            assert!(dropped.as_mut().poll(&mut context).is_pending());
        }
        assert!(signal.waiting.borrow().len() <= 2, "{}", signal.waiting.borrow().len());
        signal.notify();
        let woken = [first, second].map(|woken| woken.0.load(Ordering::Relaxed));
        assert_eq!(woken, [0, 1], "the waker of the last poll, once");
        assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}
