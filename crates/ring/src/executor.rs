//! One core's tasks: first in, first out; no thread, no clock but the driver's.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io::{self, IoSliceMut};
use std::mem::{self, ManuallyDrop};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use rustix::io::Errno;
use voltier_block::{Buf, Bytes, Nanos, Payload};

use crate::contain::{self, TaskFuture};
use crate::descriptor::adopt;
use crate::domain::{Domain, Domains, FailsWith, Failure, OnFailure};
use crate::fd::{Fd, Listener, Shutdown, Stream};
use crate::finish::{Finish, Spawn};
use crate::inbox::Inbox;
use crate::op::{AllocateMode, Op, OpOutcome};
use crate::ops::Ops;
use crate::race::{Race, race};
use crate::slab::{Key, Slab};
use crate::sync::{OneshotReceiver, oneshot};
use crate::timers::{Timer, Timers};
use crate::uring::Uring;
use crate::virtual_time::{VirtualFiles, VirtualTime};

/// Rounds between two looks at the ring while tasks keep the core busy. A look is a system call
/// (about 150 ns); 16 rounds of ready tasks cost more than that by far.
const ROUNDS_PER_LOOK: u32 = 16;

/// A task that another thread gives to a core.
pub(crate) type Message = Box<dyn FnOnce(&Handle) + Send>;

struct Task {
    /// Absent while it is being polled.
    future: Option<TaskFuture>,
    waker: Arc<TaskWaker>,
    domain: Domain,
}

struct TaskWaker {
    inbox: Arc<Inbox<Message>>,
    key: Key,
    queued: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.inbox.push_ready(self.key);
        }
    }
}

enum Driver {
    Real(Box<Uring>),
    Virtual(VirtualTime),
}

struct CoreState {
    inbox: Arc<Inbox<Message>>,
    tasks: RefCell<Slab<Task>>,
    ops: Ops,
    timers: Timers,
    domains: Rc<Domains>,
    driver: RefCell<Driver>,
    /// The time of the last look at the ring.
    looked_ns: Rc<Cell<Nanos>>,
    /// The executor is gone: nothing is begun any more.
    has_ended: Cell<bool>,
}

impl CoreState {
    /// A task of a domain has panicked. From here on no task of the domain is polled, and none is dropped:
    /// the state that the tasks share may be half changed.
    fn fail(&self, domain: Domain, failure: &Failure) {
        let (failed, tell) = self.domains.fail(domain, failure);
        for domain in &failed {
            let keys = self.tasks.borrow().keys_of(|task| task.domain == *domain);
            for task in keys.into_iter().filter_map(|key| self.tasks.borrow_mut().remove(key)) {
                mem::forget(task.future);
            }
            self.ops.abandon_all(*domain);
            self.timers.forget_all(*domain);
            self.domains.hang_up(*domain);
        }
        tell.into_values().for_each(|tell| tell(failure));
        failed.into_iter().for_each(|domain| self.release(domain));
    }

    /// Closes the files of a failed domain that the kernel has nothing under way on.
    fn release(&self, domain: Domain) {
        self.domains.release(domain, |descriptor| self.ops.has_any_on(descriptor));
    }

    fn complete(&self, key: Key, outcome: OpOutcome) {
        if let Some(domain) = self.ops.complete(key, outcome)
            && self.domains.has_failed(domain)
        {
            self.release(domain);
        }
    }
}

/// The way of tasks to their core. Cheap to clone; stays on its thread.
#[derive(Clone)]
pub struct Handle {
    core: Rc<CoreState>,
    /// The domain of what is begun through the handle.
    domain: Domain,
}

/// A task of a core, for who has it polled out of turn: see [`Handle::poll_now`].
#[derive(Clone, Copy, Debug)]
pub struct TaskId(Key);

/// The result of a spawned task: a future. Dropping it lets the task run on. The future of a task that failed
/// with its domain never completes.
pub struct JoinHandle<T>(OneshotReceiver<T>);

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match Pin::new(&mut self.0).poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(value)) => Poll::Ready(value),
            // The executor was dropped under us: there is nobody left to continue.
            Poll::Ready(None) => Poll::Pending,
        }
    }
}

impl Spawn for Handle {
    fn spawn(&self, future: impl Future<Output: 'static> + 'static) {
        drop(Handle::spawn(self, future));
    }
}

impl Handle {
    /// The same core for tasks of a failure domain. All that is begun through the handle is of the domain.
    pub fn within(&self, domain: Domain) -> Handle {
        Handle { core: self.core.clone(), domain }
    }

    /// The failure domain of what is begun through the handle.
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// Has `tell` called when the handle's domain has failed and none of its tasks runs any more. A domain
    /// that failed before calls at once. The state of these tasks may be half changed: `tell` avoids it.
    pub fn on_failure(&self, tell: impl FnOnce(&Failure) + 'static) -> OnFailure {
        self.core.domains.on_failure(self.domain, Box::new(tell))
    }

    /// Has a descriptor closed if the handle's domain fails. A connection ends at once. A file is closed
    /// when the kernel has none of the operations on it any more.
    pub fn close_on_failure(&self, fd: &Fd) {
        if let Fd::Real(descriptor) = fd {
            self.core.domains.own(self.domain, descriptor);
        }
    }

    /// Has the handle's domain and another one of this core fail together.
    pub fn fail_with(&self, other: Domain) -> FailsWith {
        self.core.domains.link(self.domain, other)
    }

    /// Runs a task on this core, beside the others. When the executor is gone already, the future is
    /// dropped as all tasks were. When the handle's domain has failed, the future is left as they were.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let (sender, receiver) = oneshot();
        self.begin(async move { sender.send(future.await) });
        JoinHandle(receiver)
    }

    /// Begins a task as [`spawn`](Self::spawn) does; none when there will be no such task.
    pub fn begin(&self, future: impl Future<Output = ()> + 'static) -> Option<TaskId> {
        if self.core.has_ended.get() {
            return None;
        }
        let task: TaskFuture = Box::pin(future);
        let (inbox, domain) = (&self.core.inbox, self.domain);
        if self.core.domains.has_failed(domain) {
            mem::forget(task);
            return None;
        }
        let key = self.core.tasks.borrow_mut().insert_with(|key| Task {
            future: Some(task),
            waker: Arc::new(TaskWaker { inbox: inbox.clone(), key, queued: AtomicBool::new(true) }),
            domain,
        });
        inbox.push_ready(key);
        Some(TaskId(key))
    }

    /// Has a task polled in its turn.
    pub fn wake(&self, task: TaskId) {
        if let Some(task) = self.core.tasks.borrow_mut().get_mut(task.0) {
            task.waker.wake_by_ref();
        }
    }

    /// Polls a task of the caller's own domain at once, as a part of the caller's poll: what the task can do
    /// without waiting is done when this returns. A panic of the task is one of the caller. A task of another
    /// domain is polled in its turn, and one that is being polled goes on.
    pub fn poll_now(&self, task: TaskId) {
        let key = task.0;
        let taken = self.core.tasks.borrow_mut().get_mut(key).and_then(|task| {
            if task.domain != contain::polled() {
                task.waker.wake_by_ref();
                return None;
            }
            task.future.take().map(|future| (future, Waker::from(task.waker.clone())))
        });
        let Some((future, waker)) = taken else { return };
        // A panic leaves it as it is, as all tasks of the domain.
        let mut future = ManuallyDrop::new(future);
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        let future = ManuallyDrop::into_inner(future);
        if polled.is_ready() {
            drop(future);
            drop(self.core.tasks.borrow_mut().remove(key));
        } else if let Some(task) = self.core.tasks.borrow_mut().get_mut(key) {
            task.future = Some(future);
        }
    }

    /// Runs a future as a part of the task that awaits it. When the `Finish` is dropped, the
    /// future goes on as a task of its own: what it began is not left half done.
    pub fn finish<F>(&self, future: F) -> Finish<'_, Handle, F>
    where
        F: Future<Output: 'static> + 'static,
    {
        Finish::new(self, future)
    }

    /// Nanoseconds on this core's clock; never goes back.
    pub fn now(&self) -> Nanos {
        match &*self.core.driver.borrow() {
            Driver::Real(uring) => uring.now(),
            Driver::Virtual(time) => time.now(),
        }
    }

    /// The time of this core's last look at its ring: it costs nothing, and is late by what the core has done since.
    pub fn clock(&self) -> Rc<Cell<Nanos>> {
        self.core.looked_ns.clone()
    }

    /// Completes when the clock reaches `deadline`.
    pub async fn sleep_until(&self, deadline: Nanos) {
        let mut timer: Option<Timer<'_>> = None;
        poll_fn(|context| {
            if self.now() >= deadline {
                return Poll::Ready(());
            }
            match &timer {
                Some(armed) => armed.refresh(context.waker()),
                None => {
                    let timers = &self.core.timers;
                    timer = Some(timers.arm(deadline, self.domain, context.waker()));
                }
            }
            Poll::Pending
        })
        .await;
    }

    /// Completes `duration_ns` from now.
    pub async fn sleep(&self, duration_ns: Nanos) {
        self.sleep_until(self.now() + duration_ns).await;
    }

    /// The result of a future, or an error if there is none in `time_ns` from now: the future is dropped then.
    pub fn timeout<F: Future>(
        &self,
        time_ns: Nanos,
        future: F,
    ) -> Race<F, impl Future<Output = ()>> {
        race(future, self.sleep(time_ns))
    }

    /// Lets every task that is ready run once before going on.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        poll_fn(|context| {
            if yielded {
                return Poll::Ready(());
            }
            yielded = true;
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Has every task polled once more: for news that no waker stands for. Costs a poll of each task, so
    /// this is for what happens seldom.
    pub fn poll_all(&self) {
        let mut wakers = Vec::new();
        self.core.tasks.borrow().for_each(|task| wakers.push(task.waker.clone()));
        wakers.iter().for_each(TaskWaker::wake_by_ref);
    }

    /// Asks the kernel to give back the operations on a descriptor. Those that a drive has at work end when
    /// the drive ends them.
    pub fn cancel(&self, fd: &Fd) {
        if let Driver::Real(uring) = &mut *self.core.driver.borrow_mut() {
            uring.cancel(fd);
        }
    }

    /// Has the core look for completions for so long before it sleeps, while its sleeps are short; 0 (as a core
    /// begins) for never. Lone requests are answered sooner, for time of the processor.
    pub fn set_busy_poll_ns(&self, most_ns: Nanos) {
        if let Driver::Real(uring) = &mut *self.core.driver.borrow_mut() {
            uring.set_busy_poll_ns(most_ns);
        }
    }

    /// The queues of this core that other threads may touch.
    pub(crate) fn inbox(&self) -> Arc<Inbox<Message>> {
        self.core.inbox.clone()
    }

    /// Submits one operation. The operation goes on if the future is dropped, and keeps its buffers.
    pub async fn submit(&self, op: Op) -> OpOutcome {
        let key = self.core.ops.begin(self.domain, &op);
        match &mut *self.core.driver.borrow_mut() {
            Driver::Real(uring) => uring.submit(key, op),
            Driver::Virtual(time) => time.submit(key, op),
        }
        let mut pending = PendingOp { of: &self.core.ops, key, finished: false };
        poll_fn(|context| pending.poll(context)).await
    }

    /// Reads at a byte offset: the buffer and how many bytes of it were filled.
    pub async fn read_at(&self, fd: &Fd, offset: u64, buf: Buf) -> (Buf, Result<u32, Errno>) {
        let outcome = self.submit(Op::Read { fd: fd.clone(), offset, buf }).await;
        (outcome.buf.expect("a read gives its buffer back"), outcome.result)
    }

    /// Reads at a byte offset into several buffers: these, and how many bytes of them were filled.
    pub async fn read_vectored_at(
        &self,
        fd: &Fd,
        offset: u64,
        bufs: Vec<Buf>,
    ) -> (Vec<Buf>, Result<u32, Errno>) {
        let outcome = self.submit(Op::ReadVectored { fd: fd.clone(), offset, bufs }).await;
        (outcome.bufs, outcome.result)
    }

    /// Writes at a byte offset: how many bytes were written.
    pub async fn write_at(
        &self,
        fd: &Fd,
        offset: u64,
        data: Payload,
        dsync: bool,
    ) -> Result<u32, Errno> {
        self.submit(Op::Write { fd: fd.clone(), offset, data, dsync }).await.result
    }

    /// Makes everything written to the file durable.
    pub async fn sync_data(&self, fd: &Fd) -> Result<(), Errno> {
        self.submit(Op::Sync { fd: fd.clone() }).await.result.map(|_| ())
    }

    /// Deallocates or zeroes a byte range.
    pub async fn allocate(
        &self,
        fd: &Fd,
        mode: AllocateMode,
        offset: u64,
        bytes: u64,
    ) -> Result<(), Errno> {
        let op = Op::Allocate { fd: fd.clone(), mode, offset, bytes };
        self.submit(op).await.result.map(|_| ())
    }

    /// Waits until a read of the descriptor would not wait: something is there, or the other end is gone.
    pub async fn readable(&self, fd: &Fd) -> Result<(), Errno> {
        self.submit(Op::Readable { fd: fd.clone() }).await.result.map(drop)
    }

    /// Waits for a client, whose connection ends if the handle's domain fails.
    pub async fn accept(&self, listener: &Listener) -> Result<Stream, Errno> {
        let number = self.submit(Op::Accept { fd: listener.fd.clone() }).await.result?;
        let stream = Stream::from_owned(adopt(number));
        self.close_on_failure(&stream.fd);
        Ok(stream)
    }

    /// Receives what is there: zero bytes mean that the peer is done.
    pub async fn recv(&self, stream: &Stream, buf: Buf) -> (Buf, Result<u32, Errno>) {
        let outcome = self.submit(Op::Recv { fd: stream.fd.clone(), buf }).await;
        (outcome.buf.expect("a receive gives its buffer back"), outcome.result)
    }

    /// Sends pieces in order: how many bytes went out, maybe fewer than given.
    pub async fn send(&self, stream: &Stream, data: Vec<Bytes>) -> Result<u32, Errno> {
        self.submit(Op::Send { fd: stream.fd.clone(), data }).await.result
    }

    /// Sends what goes out without waiting: how many bytes of the pieces, in their order. `AGAIN` when there is no
    /// room.
    pub fn send_now(&self, stream: &Stream, pieces: &[Bytes]) -> Result<usize, Errno> {
        match &mut *self.core.driver.borrow_mut() {
            Driver::Real(_) => stream.send_now(pieces),
            Driver::Virtual(time) => time.files().send_now(&stream.fd, pieces),
        }
    }

    /// Receives what is there already, into one buffer after the other: how many bytes; 0 when the peer is done.
    /// `AGAIN` when there is nothing.
    pub fn recv_now(&self, stream: &Stream, bufs: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        match &mut *self.core.driver.borrow_mut() {
            Driver::Real(_) => stream.recv_now(bufs),
            Driver::Virtual(time) => time.files().recv_now(&stream.fd, bufs),
        }
    }

    /// Ends a connection, or its sending half. A peer that is gone already is what was wanted.
    pub fn shutdown(&self, stream: &Stream, how: Shutdown) {
        match &mut *self.core.driver.borrow_mut() {
            Driver::Real(_) => stream.shutdown_as(how),
            Driver::Virtual(time) => time.files().shutdown(&stream.fd, how),
        }
    }
}

struct PendingOp<'a> {
    of: &'a Ops,
    key: Key,
    finished: bool,
}

impl PendingOp<'_> {
    fn poll(&mut self, context: &Context<'_>) -> Poll<OpOutcome> {
        let polled = self.of.poll(self.key, context);
        self.finished = polled.is_ready();
        polled
    }
}

impl Drop for PendingOp<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.of.abandon(self.key);
        }
    }
}

/// Runs the tasks of one core.
pub struct Executor {
    handle: Handle,
    round: VecDeque<Key>,
}

impl Executor {
    /// An executor of the real world, on the calling thread.
    ///
    /// # Errors
    /// When the kernel refuses an io_uring.
    pub fn real() -> io::Result<Self> {
        let inbox = Inbox::new()?;
        let uring = Uring::new(inbox.wake_fd())?;
        Ok(Self::with(inbox, Driver::Real(Box::new(uring))))
    }

    /// An executor of virtual time, which starts at 0 and jumps to the next timer when no task is
    /// ready. `files` serves descriptors [`Fd::Virtual`].
    pub fn in_virtual_time(files: impl VirtualFiles) -> Self {
        let inbox = Inbox::without_wake_fd();
        Self::with(inbox, Driver::Virtual(VirtualTime::new(Box::new(files))))
    }

    fn with(inbox: Arc<Inbox<Message>>, driver: Driver) -> Self {
        let state = CoreState {
            inbox,
            tasks: RefCell::new(Slab::new()),
            ops: Ops::default(),
            timers: Timers::default(),
            domains: Rc::default(),
            driver: RefCell::new(driver),
            looked_ns: Rc::default(),
            has_ended: Cell::new(false),
        };
        let handle = Handle { core: Rc::new(state), domain: Domain::NONE };
        Self { handle, round: VecDeque::new() }
    }

    /// The handle of this core.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Tasks alive, the main one apart: for tests that look for leaks.
    pub fn task_count(&self) -> usize {
        self.handle.core.tasks.borrow().len()
    }

    /// Runs until `main` is done. Other tasks stay and go on at the next call.
    ///
    /// # Panics
    /// In virtual time, when no task is ready and no timer is set: the world stands still.
    pub fn block_on<T: 'static>(&mut self, main: impl Future<Output = T> + 'static) -> T {
        let done = self.handle.spawn(main);
        let mut receiver = done.0;
        let mut context = Context::from_waker(Waker::noop());
        let mut rounds = 0u32;
        loop {
            self.run_turn();
            if let Poll::Ready(value) = Pin::new(&mut receiver).poll(&mut context) {
                return value.expect("the main task ran to its end");
            }
            rounds = rounds.wrapping_add(1);
            let idle = !self.handle.core.inbox.has_work();
            if idle || rounds.is_multiple_of(ROUNDS_PER_LOOK) || self.has_submissions() {
                self.look(idle);
            }
        }
    }

    fn has_submissions(&self) -> bool {
        match &*self.handle.core.driver.borrow() {
            Driver::Real(uring) => uring.has_submissions(),
            Driver::Virtual(_) => false,
        }
    }

    fn run_turn(&mut self) {
        let state = &self.handle.core;
        for message in state.inbox.take(&mut self.round) {
            message(&self.handle);
        }
        while let Some(key) = self.round.pop_front() {
            let taken = state.tasks.borrow_mut().get_mut(key).and_then(|task| {
                task.waker.queued.store(false, Ordering::Release);
                let waker = Waker::from(task.waker.clone());
                task.future.take().map(|future| (future, waker, task.domain))
            });
            let Some((future, waker, domain)) = taken else { continue };
            let (mut future, mut context) = (Some(future), Context::from_waker(&waker));
            match poll(domain, &mut future, &mut context) {
                Ok(Poll::Ready(())) => drop(state.tasks.borrow_mut().remove(key)),
                Ok(Poll::Pending) => {
                    if let Some(task) = state.tasks.borrow_mut().get_mut(key) {
                        task.future = future;
                    }
                }
                Err(failure) => {
                    mem::forget(future);
                    state.fail(domain, &failure);
                }
            }
        }
    }

    /// Submits, reaps, fires timers; sleeps in the kernel (or jumps in time) only when `idle`.
    fn look(&self, idle: bool) {
        let state = &self.handle.core;
        let next_timer = state.timers.next();
        let mut finished = Vec::new();
        match &mut *state.driver.borrow_mut() {
            Driver::Real(uring) => uring.look(&state.inbox, idle, next_timer, &mut finished),
            Driver::Virtual(time) => time.look(idle, next_timer, &mut finished),
        }
        let now = self.handle.now();
        state.looked_ns.set(now);
        for (key, outcome) in finished {
            state.complete(key, outcome);
        }
        if next_timer.is_some() {
            state.timers.fire(now);
        }
    }
}

/// Polls a task: one of no domain in the open, one of a domain so that a panic stays in it.
fn poll(
    domain: Domain,
    future: &mut Option<TaskFuture>,
    context: &mut Context<'_>,
) -> Result<Poll<()>, Failure> {
    match future {
        Some(future) if domain == Domain::NONE => Ok(future.as_mut().poll(context)),
        future => contain::poll(domain, future, context),
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.handle.core.has_ended.set(true);
        // Tasks first: dropping them abandons their operations, which the driver then waits out.
        let tasks: Vec<Task> = self.handle.core.tasks.borrow_mut().drain().collect();
        drop(tasks);
        if let Driver::Real(uring) = &mut *self.handle.core.driver.borrow_mut() {
            uring.cancel_all();
        }
    }
}

#[cfg(test)]
mod tests;
