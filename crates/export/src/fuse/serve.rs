//! Serving a connection on the device's core: requests read from `/dev/fuse`, and answered there.
//!
//! The ring waits for requests, and does the device's work. Requests are read by plain system calls that do not
//! wait. A read by the ring could wait, and the whole core with it: the kernel looks whether there is a request
//! and then reads as if there were, and a caller that is killed in between takes its request along. If the
//! descriptor is one that does not wait, the ring does not wait for it either.
//!
//! A request begins in the task that read it. Answers that are ready before the next wait are held until no
//! request is left to be read, and then go through the ring, which takes all of them into the kernel at once. A
//! lone answer is a system call of its own: its caller is on the way while the core prepares to sleep.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Poll;

use rustix::io::{readv, writev};
use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoError, IoResult, Nanos, Payload};
use voltier_ring::{Errno, Fd, Handle, OnFailure, Signal, join_all};
use zerocopy::IntoBytes;

use super::abi::WRITE_HEAD_BYTES;
use super::handover::{CoreEnd, Handover, Start};
use super::session::{
    Action, BACKGROUND_REQUESTS_MAX, Reply, Request, Session, TRANSFER_BYTES_MAX,
};
use crate::bytes::ByteDevice;
use crate::counters::{CounterCell, ExportCounters, Served};
use crate::requests::{Service, Workers};

/// Requests served at once on the core; further ones wait.
const WORKERS_MAX: usize = BACKGROUND_REQUESTS_MAX as usize;

/// Requests that are read before other tasks of the core have their turn.
const REQUESTS_PER_TURN: usize = 32;

/// Requests in a row that came alone, from which on the next one is expected to do so: after each answer the task
/// waits without another look. Now and then it looks, for a load may change.
const ALONE_MIN: u32 = 8;
const ALONE_PER_LOOK: u32 = 16;

/// Data of an answer that does not wait for others, in bytes. A system call more is little beside the copies, and
/// the processor's cache still has the data.
const LONG_ANSWER_BYTES: usize = 32 << 10;

/// Data of answers that are held before other tasks of the core have their turn, in bytes.
const HELD_BYTES_MAX: usize = 1 << 20;

/// The longest answer to a request that the device had, but for the data of reads.
const ANSWER_HEAD_BYTES: usize = 24;

/// Room behind the head of the longest request, in bytes.
const BODY_BYTES: usize = TRANSFER_BYTES_MAX as usize;

/// Memory that is received into, in bytes: a huge page. Long writes are cut off it where they came to lie.
const AREA_BYTES: usize = 2 * BODY_BYTES;

/// The longest write that is copied out of the area, in bytes. The cache still has what the kernel just wrote,
/// and a short write that takes long would hold a whole area.
const COPIED_WRITE_BYTES_MAX: usize = 16 << 10;

/// Where the data of long writes begin in memory: drives ask for it.
const ALIGN_BYTES: usize = voltier_block::BUF_ALIGN_BYTES;

/// How long to wait when the ring could not wait for requests (no memory, say), in nanoseconds.
const RETRY_NS: Nanos = 100_000_000;

/// A device opened for one FUSE file: made on the device's core, mounted from another thread with
/// [`FuseFile::mount`](super::FuseFile::mount).
pub struct FileExport {
    pub(super) handover: Arc<Handover>,
    pub(super) counters: Arc<CounterCell>,
    /// How often the file is open now: by programs and by loop devices.
    pub(super) handles: Arc<AtomicU64>,
    pub(super) size_bytes: u64,
    pub(super) preferred_bytes: u32,
    pub(super) read_only: bool,
    pub(super) can_punch: bool,
}

impl FileExport {
    /// Prepares to serve `device` on this core; the export may then be sent to another thread.
    pub fn open<D: BlockDevice>(handle: &Handle, device: Rc<ByteDevice<D>>) -> Self {
        let limits = device.limits();
        let export = Self {
            handover: Arc::default(),
            counters: Arc::default(),
            handles: Arc::default(),
            size_bytes: limits.bytes(),
            preferred_bytes: limits.preferred_bytes,
            read_only: limits.read_only,
            can_punch: limits.cheap_zeroes,
        };
        let core_end = CoreEnd(export.handover.clone());
        let (handle, own) = (handle.clone(), handle.clone());
        let (counters, handles) = (export.counters.clone(), export.handles.clone());
        // A failure of the core's tasks before there is a connection: whoever waits for it must hear so.
        let failing = core_end.other();
        let on_failure = own.on_failure(move |_| drop(failing));
        drop(own.spawn(async move {
            let _on_failure = on_failure;
            if let Some(start) = core_end.start().await {
                Connection::serve(handle, device, core_end, start, counters, handles).await;
            }
        }));
        export
    }

    /// The counters so far.
    pub fn counters(&self) -> ExportCounters {
        self.counters.get()
    }
}

impl Drop for FileExport {
    fn drop(&mut self) {
        self.handover.end();
    }
}

/// The descriptor of a connection, until that ends.
struct Channel {
    fd: RefCell<Option<Fd>>,
    handover: Arc<Handover>,
    /// Requests that the device has.
    in_flight: Cell<usize>,
    /// One of as many as the device may have is answered.
    room: Signal,
    /// A request begins in the task that reads, which sends what is answered meanwhile.
    holds: Cell<bool>,
    held: RefCell<Vec<Answer>>,
    held_bytes: Cell<usize>,
    /// Requests whose answers the kernel does not have yet.
    unanswered: Cell<usize>,
    /// Another daemon serves on as soon as that is none, which is signalled.
    leaving: Cell<bool>,
    all_answered: Signal,
}

/// An answer that is to be sent: its beginning, and the data of a read.
struct Answer {
    unique: u64,
    head: [u8; ANSWER_HEAD_BYTES],
    head_bytes: usize,
    data: Option<Bytes>,
}

impl Answer {
    fn new(unique: u64, start: &[u8], data: Option<Bytes>) -> Self {
        let mut head = [0; ANSWER_HEAD_BYTES];
        head[..start.len()].copy_from_slice(start);
        Self { unique, head, head_bytes: start.len(), data }
    }

    fn head(&self) -> &[u8] {
        &self.head[..self.head_bytes]
    }
}

impl Channel {
    fn new(fd: RefCell<Option<Fd>>, handover: Arc<Handover>) -> Self {
        Self {
            fd,
            handover,
            in_flight: Cell::new(0),
            room: Signal::new(),
            holds: Cell::new(false),
            held: RefCell::default(),
            held_bytes: Cell::new(0),
            unanswered: Cell::new(0),
            leaving: Cell::new(false),
            all_answered: Signal::new(),
        }
    }

    /// The device gets a request.
    fn begin(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
        self.unanswered.set(self.unanswered.get() + 1);
    }

    /// The kernel has the answer to a request of the device.
    fn answered(&self) {
        self.unanswered.set(self.unanswered.get() - 1);
        if self.leaving.get() && self.unanswered.get() == 0 {
            self.all_answered.notify();
        }
    }

    /// The next request, if there is one: how many bytes of head and body it has.
    fn receive(&self, head: &mut [u8], body: &mut [u8]) -> Result<usize, Errno> {
        match &*self.fd.borrow() {
            Some(fd) => readv(fd, &mut [IoSliceMut::new(head), IoSliceMut::new(body)]),
            None => Err(Errno::NODEV),
        }
    }

    fn send(&self, pieces: &[IoSlice<'_>]) -> Result<(), Errno> {
        let Some(fd) = &*self.fd.borrow() else { return Err(Errno::NODEV) };
        loop {
            match writev(fd, pieces) {
                Err(Errno::INTR) => {}
                // The kernel takes an answer whole or not at all.
                result => return result.map(drop),
            }
        }
    }

    /// Answers a request at once.
    fn answer(&self, unique: u64, pieces: &[IoSlice<'_>]) -> Result<(), Errno> {
        self.settle(unique, self.send(pieces))
    }

    /// Answers a request by a system call of its own.
    fn answer_alone(&self, answer: &Answer) {
        let data = answer.data.as_deref().unwrap_or_default();
        let pieces = [IoSlice::new(answer.head()), IoSlice::new(data)];
        // An answer that is not wanted is nobody's any more.
        let _ = self.answer(answer.unique, &pieces[..1 + usize::from(answer.data.is_some())]);
    }

    /// Answers a request through the ring.
    async fn answer_by(&self, handle: &Handle, answer: Answer) {
        let fd = self.fd.borrow().clone();
        let Some(fd) = fd else { return };
        let head = Bytes::copy_of(answer.head());
        let whole = match answer.data {
            Some(data) => Payload::Many(vec![head, data]),
            None => Payload::One(head),
        };
        let sent = handle.write_at(&fd, 0, whole, false).await;
        let _ = self.settle(answer.unique, sent.map(drop));
    }

    /// Looks at what became of an answer. A request that the kernel does not know any more is over by another
    /// way, and so is every one of a connection that has ended. Any other answer that is not taken leaves its
    /// caller waiting: it becomes an error, and if not even that is taken, the end of the connection.
    fn settle(&self, unique: u64, sent: Result<(), Errno>) -> Result<(), Errno> {
        let is_over = |errno| matches!(errno, Errno::NOENT | Errno::NODEV);
        let Err(errno) = sent else { return Ok(()) };
        if !is_over(errno) {
            let failure = Reply::error(unique, Errno::IO);
            if self.send(&[IoSlice::new(failure.bytes())]).is_err_and(|errno| !is_over(errno)) {
                self.handover.end();
            }
        }
        Err(errno)
    }

    fn close(&self) {
        let fd = self.fd.borrow_mut().take();
        drop(fd);
    }
}

/// A request on its way to the device.
struct Job {
    unique: u64,
    request: Request,
    /// The data of a write.
    data: Option<Bytes>,
}

struct Serve<D> {
    handle: Handle,
    device: Rc<ByteDevice<D>>,
    channel: Rc<Channel>,
    counters: Arc<CounterCell>,
}

impl<D: BlockDevice> Service for Serve<D> {
    type Job = Job;

    async fn serve(&self, job: Job) {
        let Job { unique, request, data } = job;
        match (request, data) {
            (Request::Read { offset, length }, _) => {
                let result = self.device.read(offset, length).await;
                self.count(&result, Served::Read(length));
                match result {
                    Ok(data) => {
                        let header = Reply::before_data(unique, data.len());
                        self.answer(unique, header.as_bytes(), Some(data)).await;
                    }
                    Err(error) => self.finish(unique, Err(error), || Reply::done(unique)).await,
                }
            }
            (Request::Write { offset, durability, .. }, Some(data)) => {
                let length = data.len() as u32;
                let result = self.device.write(offset, data, durability).await;
                self.count(&result, Served::Write(length.into()));
                self.finish(unique, result, || Reply::written(unique, length)).await;
            }
            (Request::Write { .. }, None) => unreachable!("a write comes with its data"),
            (Request::Zero { offset, length, keep_space }, _) => {
                let result = if keep_space {
                    self.device.zero(offset, length, Durability::Cached, true).await
                } else {
                    self.device.punch(offset, length).await
                };
                self.count(&result, Served::Discard);
                self.finish(unique, result, || Reply::done(unique)).await;
            }
            (Request::Flush, _) => {
                let result = self.device.flush().await;
                self.count(&result, Served::Flush);
                self.finish(unique, result, || Reply::done(unique)).await;
            }
        }
    }
}

impl<D> Serve<D> {
    fn count<T>(&self, result: &IoResult<T>, served: Served) {
        self.counters.count(if result.is_ok() { served } else { Served::Failure });
    }

    async fn finish(&self, unique: u64, result: IoResult<()>, success: impl FnOnce() -> Reply) {
        let reply = match result {
            Ok(()) => success(),
            Err(error) => Reply::error(unique, errno(error)),
        };
        self.answer(unique, reply.bytes(), None).await;
    }

    /// Answers a request that the device had: the beginning of the answer, and the data of a read.
    async fn answer(&self, unique: u64, head: &[u8], data: Option<Bytes>) {
        self.send_answer(unique, head, data).await;
        self.channel.answered();
    }

    async fn send_answer(&self, unique: u64, head: &[u8], data: Option<Bytes>) {
        let others = self.channel.in_flight.get() - 1;
        self.channel.in_flight.set(others);
        if others + 1 == WORKERS_MAX {
            self.channel.room.notify();
        }
        let data_bytes = data.as_ref().map_or(0, |data| data.len());
        let answer = Answer::new(unique, head, data);
        if self.channel.holds.get() && data_bytes < LONG_ANSWER_BYTES {
            self.channel.held_bytes.set(self.channel.held_bytes.get() + data_bytes);
            self.channel.held.borrow_mut().push(answer);
        } else if others == 0 || self.channel.holds.get() {
            self.channel.answer_alone(&answer);
        } else {
            self.channel.answer_by(&self.handle, answer).await;
        }
    }
}

fn errno(error: IoError) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

/// Memory for the bodies of requests: data of writes, mostly.
struct Area(Buf);

impl Area {
    fn new() -> Self {
        Self(Self::memory())
    }

    /// Memory of which every page is there: a daemon that is killed while the kernel looks for a page fails the
    /// request that was to lie on it, which the next daemon could have served.
    fn memory() -> Buf {
        let mut memory = Buf::new(AREA_BYTES);
        memory.chunks_mut(ALIGN_BYTES).for_each(|page| page[0] = 0);
        memory
    }

    /// Room for the longest body, where the data of a write are aligned.
    fn room(&mut self) -> &mut [u8] {
        if self.0.len() < BODY_BYTES {
            self.0 = Self::memory();
        }
        &mut self.0[..BODY_BYTES]
    }

    /// The first bytes of what was received.
    fn take(&mut self, bytes: usize) -> Bytes {
        if bytes <= COPIED_WRITE_BYTES_MAX {
            return Bytes::copy_of(&self.0[..bytes]);
        }
        let mut taken = self.0.split_to(bytes.next_multiple_of(ALIGN_BYTES));
        taken.truncate(bytes);
        taken.freeze()
    }
}

/// The task that reads requests.
struct Connection<D: BlockDevice> {
    handle: Handle,
    fd: Fd,
    channel: Rc<Channel>,
    core_end: CoreEnd,
    session: Session,
    workers: Workers<Serve<D>>,
}

impl<D: BlockDevice> Connection<D> {
    /// Serves a connection until it ends, or is to end. The descriptor is closed then, with which the kernel
    /// fails what is unanswered, and all that is yet to come.
    async fn serve(
        handle: Handle,
        device: Rc<ByteDevice<D>>,
        core_end: CoreEnd,
        start: Start,
        counters: Arc<CounterCell>,
        handles: Arc<AtomicU64>,
    ) {
        let fd = Fd::from_owned(start.fd);
        let on_failure = end_with_domain(&handle, &fd, &core_end);
        let (shared, handover) = (RefCell::new(Some(fd.clone())), core_end.0.clone());
        let channel = Rc::new(Channel::new(shared, handover));
        let (own, shared) = (handle.clone(), channel.clone());
        let service = Serve { handle: own, device, channel: shared, counters };
        let workers = Workers::new(handle.clone(), service, WORKERS_MAX);
        let mut session = Session::new(start.file, start.agreed, handles);
        session.count_in(start.note);
        session.agreed().into_iter().for_each(|agreed| core_end.served(agreed));
        let mut connection = Self { handle, fd, channel, core_end, session, workers };
        connection.read_requests().await;
        connection.send_held().await;
        connection.leave().await;
        connection.channel.close();
        // What waits for requests holds the descriptor, too.
        connection.handle.cancel(&connection.fd);
        drop(on_failure);
    }

    async fn read_requests(&mut self) {
        let mut area = Area::new();
        let mut head = [0; WRITE_HEAD_BYTES];
        let (mut turn, mut alone) = (0, 0);
        while !self.core_end.is_ending() && !self.core_end.is_leaving() {
            if self.channel.in_flight.get() >= WORKERS_MAX {
                // More wait with the kernel, whose memory they are in already.
                self.send_held().await;
                self.wait_for_room().await;
                continue;
            }
            let received = self.channel.receive(&mut head, area.room());
            match received {
                Ok(bytes) => {
                    let had_agreed = self.session.agreed().is_some();
                    if !self.take(&head[..bytes.min(WRITE_HEAD_BYTES)], bytes, &mut area) {
                        return;
                    }
                    if !had_agreed && let Some(agreed) = self.session.agreed() {
                        // Whoever is served may expect to be served on by the next daemon.
                        self.core_end.served(agreed);
                        let note = self.core_end.may_go().await;
                        self.session.count_in(note);
                    }
                    turn += 1;
                    let looks = alone < ALONE_MIN || alone == ALONE_MIN + ALONE_PER_LOOK;
                    if turn == 1 && !looks {
                        (turn, alone) = (0, alone + 1);
                        self.send_held().await;
                        self.wait().await;
                    }
                    if turn == REQUESTS_PER_TURN || self.channel.held_bytes.get() >= HELD_BYTES_MAX
                    {
                        turn = 0;
                        self.send_held().await;
                        self.handle.yield_now().await;
                    }
                }
                // A signal; or a request whose caller gave up while it was read.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => {
                    alone = if turn == 1 { alone.min(ALONE_MIN - 1) + 1 } else { 0 };
                    turn = 0;
                    // While answers go to the kernel more requests may have come.
                    if !self.send_held().await {
                        self.wait().await;
                    }
                }
                // Unmounted, or cut off.
                Err(Errno::NODEV | Errno::CONNABORTED | Errno::BADF | Errno::PERM) => return,
                // No memory, say. The kernel has failed that request alone.
                Err(_) => self.handle.sleep(RETRY_NS).await,
            }
        }
    }

    /// Sends the answers that are held; whether others of the core had their turn meanwhile.
    async fn send_held(&self) -> bool {
        let channel = &self.channel;
        channel.held_bytes.set(0);
        let held = channel.held.take();
        match &held[..] {
            [] => return false,
            [alone] if channel.in_flight.get() == 0 => {
                channel.answer_alone(alone);
                return false;
            }
            _ => {}
        }
        join_all(held.into_iter().map(|answer| channel.answer_by(&self.handle, answer))).await;
        true
    }

    /// Leaves the connection to another daemon, if it is to be left, once all is answered that was read.
    async fn leave(&self) {
        if !self.core_end.is_leaving() || self.core_end.is_ending() {
            return;
        }
        // Without a descriptor more there is nothing to be left.
        let Ok(fd) = self.fd.as_fd().try_clone_to_owned() else { return };
        self.core_end.leave(fd);
        self.channel.leaving.set(true);
        while self.channel.unanswered.get() > 0 {
            self.channel.all_answered.wait().await;
        }
    }

    /// Waits until the device can have another request, or for the end of the connection.
    async fn wait_for_room(&self) {
        let mut room = pin!(self.channel.room.wait());
        let waited = poll_fn(|context| {
            if self.core_end.poll_over(context) {
                return Poll::Ready(());
            }
            room.as_mut().poll(context)
        });
        waited.await;
    }

    /// Waits until there is a request, or the end of the connection.
    async fn wait(&self) {
        let mut readable = pin!(self.handle.readable(&self.fd));
        let waited = poll_fn(|context| {
            if self.core_end.poll_over(context) {
                return Poll::Ready(Ok(()));
            }
            readable.as_mut().poll(context)
        });
        if waited.await.is_err() {
            self.handle.sleep(RETRY_NS).await;
        }
    }

    /// Does what a request of so many bytes asks for; false when it was the last.
    fn take(&mut self, head: &[u8], bytes: usize, area: &mut Area) -> bool {
        let body_bytes = bytes - head.len();
        match self.session.request(head, &area.0[..body_bytes]) {
            Action::Nothing => {}
            Action::Reply(reply) => self.reply(&reply),
            Action::Serve(unique, request) => {
                let data = match request {
                    Request::Write { length, .. } => Some(area.take(length)),
                    _ => None,
                };
                let long =
                    data.as_ref().filter(|data| data.len() > COPIED_WRITE_BYTES_MAX).cloned();
                self.channel.begin();
                self.channel.holds.set(true);
                self.workers.serve(Job { unique, request, data });
                self.channel.holds.set(false);
                // Memory of a write that is over is received into again, while the processor's cache has it.
                long.into_iter().for_each(|data| area.0.take_back(data));
            }
            Action::End(reply) => {
                reply.iter().for_each(|reply| self.reply(reply));
                return false;
            }
        }
        true
    }

    fn reply(&self, reply: &Reply) {
        let sent = self.channel.answer(reply.unique, &[IoSlice::new(reply.bytes())]);
        if sent.is_err() && reply.opens {
            self.session.open_in_vain();
        }
    }
}

/// Has the connection end if the domain of its tasks fails. They are left as they are then: callers would wait
/// for their answers for ever.
fn end_with_domain(handle: &Handle, fd: &Fd, core_end: &CoreEnd) -> OnFailure {
    handle.close_on_failure(fd);
    let (core, fd, core_end) = (handle.clone(), fd.clone(), core_end.other());
    handle.on_failure(move |_| {
        // The descriptor is closed once nothing waits on it.
        core.cancel(&fd);
        drop(core_end);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_writes_stay_where_they_were_received_and_are_aligned() {
        let mut area = Area::new();
        let mut before = Vec::new();
        for (number, bytes) in [100, 20_000, 1 << 20, 70_001, 1 << 20, 4096].into_iter().enumerate()
        {
            let room = area.room();
            assert_eq!((room.len(), room.as_ptr() as usize % ALIGN_BYTES), (BODY_BYTES, 0));
            let at = room.as_ptr();
            room[..bytes].fill(number as u8);
            let data = area.take(bytes);
            assert_eq!(data.as_ptr() == at, bytes > COPIED_WRITE_BYTES_MAX);
            before.push(data);
        }
        for (number, data) in before.iter().enumerate() {
            assert!(data.iter().all(|byte| usize::from(*byte) == number), "{number}");
        }
    }
}
