//! One core's tasks: first in, first out; no thread, no clock but the driver's.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use rustix::io::Errno;
use voltier_block::{Buf, Bytes, Nanos, Payload};

use crate::fd::{Fd, Listener, Stream};
use crate::finish::{Finish, Spawn};
use crate::inbox::Inbox;
use crate::op::{AllocateMode, Op, OpOutcome};
use crate::slab::{Key, Slab};
use crate::sync::{OneshotReceiver, oneshot};
use crate::uring::Uring;
use crate::virtual_time::{VirtualFiles, VirtualTime};

/// Turns between two looks at the ring while tasks keep the core busy. A look is a system call
/// (about 150 ns); 16 turns of ready tasks cost more than that by far.
const TURNS_PER_LOOK: u32 = 16;

/// A task that another thread gives to a core.
pub(crate) type Message = Box<dyn FnOnce(&Handle) + Send>;

type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    /// Absent while it is being polled.
    future: Option<TaskFuture>,
    waker: Arc<TaskWaker>,
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

enum OpState {
    Waiting(Option<Waker>),
    Done(OpOutcome),
    /// Nobody waits any more; the driver still owns the buffers.
    Abandoned,
}

enum Driver {
    Real(Box<Uring>),
    Virtual(VirtualTime),
}

struct CoreState {
    inbox: Arc<Inbox<Message>>,
    tasks: RefCell<Slab<Task>>,
    ops: RefCell<Slab<OpState>>,
    timers: RefCell<BTreeMap<(Nanos, u64), Waker>>,
    timer_count: Cell<u64>,
    driver: RefCell<Driver>,
    /// The executor is gone: nothing is begun any more.
    has_ended: Cell<bool>,
}

/// The way of tasks to their core. Cheap to clone; stays on its thread.
#[derive(Clone)]
pub struct Handle(Rc<CoreState>);

/// The result of a spawned task: a future. Dropping it lets the task run on.
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
    /// Runs a task on this core, beside the others. When the executor is gone already, the future is
    /// dropped as all tasks were.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let (sender, receiver) = oneshot();
        if self.0.has_ended.get() {
            return JoinHandle(receiver);
        }
        let task: TaskFuture = Box::pin(async move { sender.send(future.await) });
        let inbox = &self.0.inbox;
        let key = self.0.tasks.borrow_mut().insert_with(|key| Task {
            future: Some(task),
            waker: Arc::new(TaskWaker { inbox: inbox.clone(), key, queued: AtomicBool::new(true) }),
        });
        inbox.push_ready(key);
        JoinHandle(receiver)
    }

    /// Runs a future as a part of the task that awaits it. If that is dropped, the future goes on as
    /// a task of its own: what it began is not left half done.
    pub fn finish<F>(&self, future: F) -> Finish<'_, Handle, F>
    where
        F: Future<Output: 'static> + 'static,
    {
        Finish::new(self, future)
    }

    /// Nanoseconds on this core's clock; never goes back.
    pub fn now(&self) -> Nanos {
        match &*self.0.driver.borrow() {
            Driver::Real(uring) => uring.now(),
            Driver::Virtual(time) => time.now(),
        }
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
                None => timer = Some(Timer::arm(self, deadline, context.waker())),
            }
            Poll::Pending
        })
        .await;
    }

    /// Completes `duration_ns` from now.
    pub async fn sleep(&self, duration_ns: Nanos) {
        self.sleep_until(self.now() + duration_ns).await;
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
        self.0.tasks.borrow().for_each(|task| wakers.push(task.waker.clone()));
        wakers.iter().for_each(TaskWaker::wake_by_ref);
    }

    /// Asks the kernel to give back the operations on a descriptor. Those that a drive has at work end when
    /// the drive ends them.
    pub fn cancel(&self, fd: &Fd) {
        if let Driver::Real(uring) = &mut *self.0.driver.borrow_mut() {
            uring.cancel(fd);
        }
    }

    /// The queues of this core that other threads may touch.
    pub(crate) fn inbox(&self) -> Arc<Inbox<Message>> {
        self.0.inbox.clone()
    }

    /// Submits one operation. The operation goes on if the future is dropped, and keeps its buffers.
    pub async fn submit(&self, op: Op) -> OpOutcome {
        let key = self.0.ops.borrow_mut().insert_with(|_| OpState::Waiting(None));
        match &mut *self.0.driver.borrow_mut() {
            Driver::Real(uring) => uring.submit(key, op),
            Driver::Virtual(time) => time.submit(key, op),
        }
        let mut pending = PendingOp { of: self, key, finished: false };
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

    /// Waits for a client.
    pub async fn accept(&self, listener: &Listener) -> Result<Stream, Errno> {
        let number = self.submit(Op::Accept { fd: listener.fd.clone() }).await.result?;
        Ok(Stream::from_owned(crate::uring::adopt(number)))
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

    fn complete(&self, key: Key, outcome: OpOutcome) {
        let mut ops = self.0.ops.borrow_mut();
        let state = ops.get_mut(key).expect("a completion belongs to an operation");
        match std::mem::replace(state, OpState::Done(outcome)) {
            OpState::Waiting(waker) => {
                drop(ops);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            OpState::Abandoned => drop(ops.remove(key)),
            OpState::Done(_) => panic!("operation completed twice"),
        }
    }
}

struct PendingOp<'a> {
    of: &'a Handle,
    key: Key,
    finished: bool,
}

impl PendingOp<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<OpOutcome> {
        let mut ops = self.of.0.ops.borrow_mut();
        let state = ops.get_mut(self.key).expect("a pending operation is known");
        if let OpState::Waiting(waker) = state {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        self.finished = true;
        match ops.remove(self.key) {
            Some(OpState::Done(outcome)) => Poll::Ready(outcome),
            _ => panic!("a finished operation has an outcome"),
        }
    }
}

impl Drop for PendingOp<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let mut ops = self.of.0.ops.borrow_mut();
        match ops.get_mut(self.key) {
            Some(state @ OpState::Waiting(_)) => *state = OpState::Abandoned,
            _ => drop(ops.remove(self.key)),
        }
    }
}

struct Timer<'a> {
    of: &'a Handle,
    at: (Nanos, u64),
}

impl<'a> Timer<'a> {
    fn arm(of: &'a Handle, deadline: Nanos, waker: &Waker) -> Self {
        let count = of.0.timer_count.get();
        of.0.timer_count.set(count + 1);
        of.0.timers.borrow_mut().insert((deadline, count), waker.clone());
        Self { of, at: (deadline, count) }
    }

    fn refresh(&self, waker: &Waker) {
        self.of.0.timers.borrow_mut().insert(self.at, waker.clone());
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        self.of.0.timers.borrow_mut().remove(&self.at);
    }
}

/// Runs the tasks of one core.
pub struct Executor {
    handle: Handle,
    turn: VecDeque<Key>,
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
            ops: RefCell::new(Slab::new()),
            timers: RefCell::new(BTreeMap::new()),
            timer_count: Cell::new(0),
            driver: RefCell::new(driver),
            has_ended: Cell::new(false),
        };
        Self { handle: Handle(Rc::new(state)), turn: VecDeque::new() }
    }

    /// The handle of this core.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Tasks alive, the main one apart: for tests that look for leaks.
    pub fn task_count(&self) -> usize {
        self.handle.0.tasks.borrow().len()
    }

    /// Runs until `main` is done. Other tasks stay and go on at the next call.
    ///
    /// # Panics
    /// In virtual time, when no task is ready and no timer is set: the world stands still.
    pub fn block_on<T: 'static>(&mut self, main: impl Future<Output = T> + 'static) -> T {
        let done = self.handle.spawn(main);
        let mut receiver = done.0;
        let mut context = Context::from_waker(Waker::noop());
        let mut turns = 0u32;
        loop {
            self.run_turn();
            if let Poll::Ready(value) = Pin::new(&mut receiver).poll(&mut context) {
                return value.expect("the main task ran to its end");
            }
            turns = turns.wrapping_add(1);
            let idle = !self.handle.0.inbox.has_work();
            if idle || turns.is_multiple_of(TURNS_PER_LOOK) || self.has_submissions() {
                self.look(idle);
            }
        }
    }

    fn has_submissions(&self) -> bool {
        match &*self.handle.0.driver.borrow() {
            Driver::Real(uring) => uring.has_submissions(),
            Driver::Virtual(_) => false,
        }
    }

    fn run_turn(&mut self) {
        let state = &self.handle.0;
        for message in state.inbox.take(&mut self.turn) {
            message(&self.handle);
        }
        while let Some(key) = self.turn.pop_front() {
            let taken = state.tasks.borrow_mut().get_mut(key).and_then(|task| {
                task.waker.queued.store(false, Ordering::Release);
                task.future.take().map(|future| (future, Waker::from(task.waker.clone())))
            });
            let Some((mut future, waker)) = taken else { continue };
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(()) => drop(state.tasks.borrow_mut().remove(key)),
                Poll::Pending => {
                    if let Some(task) = state.tasks.borrow_mut().get_mut(key) {
                        task.future = Some(future);
                    }
                }
            }
        }
    }

    /// Submits, reaps, fires timers; sleeps in the kernel (or jumps in time) only when `idle`.
    fn look(&self, idle: bool) {
        let state = &self.handle.0;
        let next_timer = state.timers.borrow().first_key_value().map(|(key, _)| key.0);
        let mut finished = Vec::new();
        match &mut *state.driver.borrow_mut() {
            Driver::Real(uring) => uring.look(&state.inbox, idle, next_timer, &mut finished),
            Driver::Virtual(time) => time.look(idle, next_timer, &mut finished),
        }
        for (key, outcome) in finished {
            self.handle.complete(key, outcome);
        }
        if next_timer.is_some() {
            self.fire_timers();
        }
    }

    fn fire_timers(&self) {
        let now = self.handle.now();
        loop {
            let mut timers = self.handle.0.timers.borrow_mut();
            match timers.first_entry() {
                Some(entry) if entry.key().0 <= now => {
                    let waker = entry.remove();
                    drop(timers);
                    waker.wake();
                }
                _ => return,
            }
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.handle.0.has_ended.set(true);
        // Tasks first: dropping them abandons their operations, which the driver then waits out.
        let tasks: Vec<Task> = self.handle.0.tasks.borrow_mut().drain().collect();
        drop(tasks);
        if let Driver::Real(uring) = &mut *self.handle.0.driver.borrow_mut() {
            uring.cancel_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::Remote;
    use crate::virtual_time::NoFiles;

    fn virtual_world() -> Executor {
        Executor::in_virtual_time(NoFiles)
    }

    #[test]
    fn virtual_time_jumps_to_timers_in_their_order() {
        let mut executor = virtual_world();
        let handle = executor.handle();
        let seen = Rc::new(RefCell::new(Vec::new()));
        let log = seen.clone();
        executor.block_on(async move {
            let tasks: Vec<_> = [30u64, 10, 20]
                .into_iter()
                .map(|delay| {
                    let (handle, log) = (handle.clone(), log.clone());
                    handle.clone().spawn(async move {
                        handle.sleep(delay * 1_000_000_000).await;
                        log.borrow_mut().push((delay, handle.now()));
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
        });
        let second = 1_000_000_000;
        assert_eq!(*seen.borrow(), [(10, 10 * second), (20, 20 * second), (30, 30 * second)]);
        assert_eq!(executor.task_count(), 0);
    }

    #[test]
    fn a_task_that_nobody_wakes_is_polled_with_all_others() {
        let mut executor = virtual_world();
        let handle = executor.handle();
        let polls = executor.block_on(async move {
            let (polls, is_over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            let (counted, over) = (polls.clone(), is_over.clone());
            let task = handle.spawn(poll_fn(move |_| {
                counted.set(counted.get() + 1);
                if over.get() { Poll::Ready(()) } else { Poll::Pending }
            }));
            handle.sleep(1).await;
            is_over.set(true);
            handle.poll_all();
            task.await;
            polls.get()
        });
        assert_eq!((polls, executor.task_count()), (2, 0));
    }

    #[test]
    #[should_panic(expected = "stands still")]
    fn a_world_where_nothing_can_happen_is_a_bug() {
        let mut executor = virtual_world();
        executor.block_on(std::future::pending::<()>());
    }

    #[test]
    fn the_real_world_sleeps_and_takes_messages_from_other_threads() {
        let mut executor = Executor::real().unwrap();
        let handle = executor.handle();
        let remote = Remote::to(&handle);
        let answer = std::thread::scope(|scope| {
            let asking = scope.spawn(move || remote.call(|_| async { 6 * 7 }));
            executor.block_on(async move { handle.sleep(50_000_000).await });
            asking.join().unwrap()
        });
        assert_eq!(answer, Some(42));
    }

    #[test]
    fn the_real_world_writes_and_reads_a_file() {
        let mut executor = Executor::real().unwrap();
        let handle = executor.handle();
        let file = tempfile::tempfile().unwrap();
        let fd = Fd::from_owned(file.into());
        let (buf, result) = executor.block_on(async move {
            let data = Payload::Many(vec![Bytes::copy_of(b"hello "), Bytes::copy_of(b"ring")]);
            assert_eq!(handle.write_at(&fd, 3, data, true).await, Ok(10));
            handle.sync_data(&fd).await.unwrap();
            handle.allocate(&fd, AllocateMode::PunchHole, 3, 5).await.unwrap();
            handle.read_at(&fd, 0, Buf::new(64)).await
        });
        assert_eq!(result, Ok(13));
        assert_eq!(&buf[..13], b"\0\0\0\0\0\0\0\0 ring");
    }

    #[test]
    fn an_abandoned_operation_keeps_its_buffer_until_the_kernel_is_done() {
        let mut executor = Executor::real().unwrap();
        let handle = executor.handle();
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        executor.block_on(async move {
            let task = {
                let handle = handle.clone();
                handle.clone().spawn(async move { handle.accept(&listener).await.map(|_| ()) })
            };
            handle.yield_now().await;
            drop(task);
        });
        drop(executor);
    }
}
