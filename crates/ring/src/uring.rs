//! The real world: one io_uring per core.
//!
//! UNSAFETY: submission entries carry pointers into buffers that [`InFlight`] owns until the
//! kernel has posted their completion; nothing else here is unsafe.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;

use io_uring::types::{self, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::io::Errno;
use rustix::thread::{nanosleep, sched_yield};
use rustix::time::{ClockId, Timespec as RestTime, clock_gettime};
use voltier_block::{Buf, Bytes, Nanos, Payload};

use crate::busy_poll::BusyPoll;
use crate::contain;
use crate::fd::Fd;
use crate::inbox::Inbox;
use crate::op::{AllocateMode, Op, OpOutcome, PIECES_MAX};
use crate::slab::{Key, Slab};

/// Entries a round may queue before it must enter the kernel; a full queue submits early.
const SUBMISSION_ENTRIES: u32 = 256;
/// Completions the kernel can post before we look: above the sum of all exports' requests in flight.
const COMPLETION_ENTRIES: u32 = 4096;
/// Threads of the kernel for operations that block. By default there are four a processor, and the flushes
/// of one drive that hangs take them all from the others.
const BLOCKING_WORKERS: u32 = 256;
/// The first and the longest rest of an idle core whose kernel is short of memory. Each rest is twice as long
/// as the one before.
const REST_NS_MIN: Nanos = 1_000_000;
const REST_NS_MAX: Nanos = 16_000_000;
/// Disk I/O cannot be cancelled and takes as long as the disk does.
const CANCELLED_NS_MAX: Nanos = 30_000_000_000;

/// User data of the entry that reads the wake descriptor, and of cancellations; no slab key
/// reaches them, its top bit is clear.
const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;

/// The memory and descriptors that must stay valid while the kernel has an operation.
struct InFlight {
    buf: Option<Buf>,
    bufs: Vec<Buf>,
    _data: Option<Payload>,
    vectors: Vec<libc::iovec>,
    message: Option<Box<libc::msghdr>>,
    _fd: Fd,
}

pub(crate) struct Uring {
    ring: IoUring,
    in_flight: Slab<(Key, InFlight)>,
    wake_fd: Fd,
    wake_word: Box<u64>,
    wake_armed: bool,
    /// Entries that the kernel does not have yet.
    queued: bool,
    /// There are some among them that a device is to work on while the core does other things.
    is_work_queued: bool,
    /// Entries for which the queue has no room: the kernel was too short of memory to empty it.
    waiting: VecDeque<squeue::Entry>,
    /// Descriptors with cancellations that the kernel may not have yet. No other file gets the number of one
    /// meanwhile.
    cancelled: Vec<Fd>,
    /// The last rest since the kernel took an entry; 0 for none.
    rest_ns: Nanos,
    busy_poll: BusyPoll,
    /// Refuses to enter with so many entries.
    #[cfg(test)]
    refuse: Box<dyn FnMut(u32) -> Option<Errno>>,
}

fn vectors_of(pieces: &[Bytes]) -> Vec<libc::iovec> {
    let vector = |piece: &Bytes| libc::iovec {
        // The kernel only reads through it: the type serves both directions.
        iov_base: piece.as_ptr().cast_mut().cast(),
        iov_len: piece.len(),
    };
    pieces.iter().take(PIECES_MAX).map(vector).collect()
}

impl Uring {
    pub(crate) fn new(wake_fd: Fd) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(COMPLETION_ENTRIES)
            .build(SUBMISSION_ENTRIES)
            .map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!(
                        "io_uring is not available ({error}); Linux 6.1 or newer with io_uring \
                         enabled is needed"
                    ),
                )
            })?;
        // A kernel that does not take this has its own number.
        let _ = ring.submitter().register_iowq_max_workers(&mut [BLOCKING_WORKERS, 0]);
        Ok(Self {
            ring,
            in_flight: Slab::new(),
            wake_fd,
            wake_word: Box::new(0),
            wake_armed: false,
            queued: false,
            is_work_queued: false,
            waiting: VecDeque::new(),
            cancelled: Vec::new(),
            rest_ns: 0,
            busy_poll: BusyPoll::default(),
            #[cfg(test)]
            refuse: Box::new(|_| None),
        })
    }

    pub(crate) fn now(&self) -> Nanos {
        let time = clock_gettime(ClockId::Monotonic);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    /// Whether something is queued that should not wait until the core is idle.
    pub(crate) fn has_submissions(&self) -> bool {
        self.is_work_queued
    }

    pub(crate) fn submit(&mut self, key: Key, op: Op) {
        self.is_work_queued |= !op.waits_for_peer();
        let (entry, in_flight) = prepare(op);
        let token = self.in_flight.insert_with(|_| (key, in_flight));
        self.push(entry.user_data(token.0));
    }

    fn push(&mut self, entry: squeue::Entry) {
        self.queued = true;
        if self.waiting.is_empty() {
            if self.try_push(&entry) {
                return;
            }
            self.enter(0, None);
        }
        if !(self.waiting.is_empty() && self.try_push(&entry)) {
            self.waiting.push_back(entry);
        }
        self.queued = true;
    }

    fn try_push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: what the entry points to is owned by `in_flight` (or by `self`) until completion.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Enters the kernel: submits what the queue has, runs deferred work, waits for `want` completions. Waits
    /// for none while entries are left.
    fn enter(&mut self, want: u32, timeout_ns: Option<Nanos>) {
        while let Some(entry) = self.waiting.front().cloned()
            && self.try_push(&entry)
        {
            self.waiting.pop_front();
        }
        let waits_for = if self.waiting.is_empty() { want } else { 0 };
        let queued = self.ring.submission().len() as u32;
        match self.enter_kernel(queued, waits_for, timeout_ns) {
            // TIME: the timer is due. INTR: a signal.
            Ok(()) | Err(Errno::TIME | Errno::INTR) => self.rest_ns = 0,
            Err(errno) if is_shortage(errno) => self.get_over_shortage(want, timeout_ns),
            Err(errno) => broken(errno),
        }
        self.queued = !(self.waiting.is_empty() && self.ring.submission().is_empty());
        if !self.queued {
            self.is_work_queued = false;
            self.cancelled.clear();
        }
    }

    /// The kernel has no memory for a further operation, or no room for completions. An enter without entries
    /// posts the completions that the kernel has put off, which frees some. If there are none, a core that
    /// would sleep rests. The entries go with a later enter.
    #[cold]
    fn get_over_shortage(&mut self, want: u32, timeout_ns: Option<Nanos>) {
        match self.enter_kernel(0, 0, None) {
            Err(errno) if errno != Errno::INTR && !is_shortage(errno) => broken(errno),
            _ => {}
        }
        if want > 0 && self.ring.completion().is_empty() {
            self.rest_ns = (2 * self.rest_ns).clamp(REST_NS_MIN, REST_NS_MAX);
            let rest_ns = timeout_ns.unwrap_or(Nanos::MAX).min(self.rest_ns);
            // A signal may end the rest.
            let _ = nanosleep(&RestTime { tv_sec: 0, tv_nsec: rest_ns as _ });
        }
    }

    fn enter_kernel(
        &mut self,
        queued: u32,
        want: u32,
        timeout_ns: Option<Nanos>,
    ) -> Result<(), Errno> {
        #[cfg(test)]
        if let Some(errno) = (self.refuse)(queued) {
            return Err(errno);
        }
        let entered = match timeout_ns {
            Some(ns) => {
                let time =
                    Timespec::new().sec(ns / 1_000_000_000).nsec((ns % 1_000_000_000) as u32);
                let args = SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(want as usize, &args)
            }
            None => {
                const GETEVENTS: u32 = 1;
                // SAFETY: no argument is passed, and entries are valid as `try_push` says.
                unsafe { self.ring.submitter().enter::<u8>(queued, want, GETEVENTS, None) }
            }
        };
        entered
            .map(drop)
            .map_err(|error| Errno::from_raw_os_error(error.raw_os_error().unwrap_or(0)))
    }

    pub(crate) fn look<M>(
        &mut self,
        inbox: &Inbox<M>,
        idle: bool,
        next_timer: Option<Nanos>,
        finished: &mut Vec<(Key, OpOutcome)>,
    ) {
        if !self.wake_armed {
            self.arm_wake();
        }
        if !(idle && self.ring.completion().is_empty() && self.sleep(inbox, next_timer)) {
            self.enter(0, None);
        }
        self.reap(finished);
    }

    /// Sleeps until there is something to do. A core that may poll looks for it first; false if it was found so.
    fn sleep<M>(&mut self, inbox: &Inbox<M>, next_timer: Option<Nanos>) -> bool {
        let begun = self.now();
        let until = (begun + self.busy_poll.time_ns(begun)).min(next_timer.unwrap_or(Nanos::MAX));
        if (until > begun && self.finds_work(inbox, until)) || !inbox.try_sleep() {
            return false;
        }
        match next_timer.map(|at| at.saturating_sub(self.now())) {
            Some(0) => self.enter(0, None),
            timeout => {
                self.enter(1, timeout);
                self.busy_poll.slept(self.now() - begun);
            }
        }
        inbox.woke();
        true
    }

    /// Looks until then for something to do; whether there is. The processor is offered to others meanwhile.
    fn finds_work<M>(&mut self, inbox: &Inbox<M>, until: Nanos) -> bool {
        if self.queued {
            self.enter(0, None);
        }
        let mut looked = self.now();
        loop {
            // The kernel says by the flag that it has completions, and posts them when it is entered.
            let has_completions =
                !self.ring.completion().is_empty() || self.ring.submission().taskrun();
            if has_completions || inbox.has_work() {
                self.busy_poll.found();
                return true;
            }
            if looked >= until {
                self.busy_poll.found_nothing(looked);
                return false;
            }
            sched_yield();
            let now = self.now();
            if self.busy_poll.is_shared(now - looked, now) {
                return false;
            }
            looked = now;
        }
    }

    /// See [`BusyPoll::set_most_ns`].
    pub(crate) fn set_busy_poll_ns(&mut self, most_ns: Nanos) {
        self.busy_poll.set_most_ns(most_ns);
    }

    fn arm_wake(&mut self) {
        let word: *mut u64 = &mut *self.wake_word;
        let entry = opcode::Read::new(types::Fd(self.wake_fd.raw()), word.cast(), 8).build();
        self.push(entry.user_data(WAKE));
        self.wake_armed = true;
    }

    fn reap(&mut self, finished: &mut Vec<(Key, OpOutcome)>) {
        for completion in self.ring.completion() {
            let token = completion.user_data();
            if token == WAKE {
                self.wake_armed = false;
                continue;
            }
            if token == CANCEL {
                continue;
            }
            let (key, in_flight) = self.in_flight.remove(Key(token)).expect("a completion of ours");
            let result = match completion.result() {
                done if done >= 0 => Ok(done as u32),
                error => Err(Errno::from_raw_os_error(-error)),
            };
            finished.push((key, OpOutcome { result, buf: in_flight.buf, bufs: in_flight.bufs }));
        }
    }

    /// Asks the kernel to give the operations on a descriptor back.
    pub(crate) fn cancel(&mut self, fd: &Fd) {
        let those = types::CancelBuilder::fd(types::Fd(fd.raw())).all();
        self.cancelled.push(fd.clone());
        self.push(opcode::AsyncCancel2::new(those).build().user_data(CANCEL));
        self.enter(0, None);
    }

    /// Asks the kernel to give every operation back and waits for it: buffers are freed after this.
    pub(crate) fn cancel_all(&mut self) {
        let entry = opcode::AsyncCancel2::new(types::CancelBuilder::any()).build();
        self.push(entry.user_data(CANCEL));
        let mut dropped = Vec::new();
        let until = self.now() + CANCELLED_NS_MAX;
        while self.now() < until {
            self.enter(0, None);
            self.reap(&mut dropped);
            if self.in_flight.len() == 0 {
                return;
            }
            self.enter(1, Some(100_000_000));
            self.reap(&mut dropped);
        }
        // Leaking is safe, freeing is not: the kernel may still write into these buffers.
        let stuck = std::mem::take(&mut self.in_flight);
        std::mem::forget(stuck);
    }
}

/// Whether the kernel refuses to be entered for want of memory, or of room for completions. Such a want ends.
fn is_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::AGAIN | Errno::BUSY | Errno::NOMEM)
}

/// The kernel refuses to be entered for good: the ring is used wrongly, or completions are lost (BADR) and
/// their requests would wait for ever.
#[cold]
fn broken(errno: Errno) -> ! {
    contain::leave();
    panic!("io_uring_enter: {errno}");
}

/// Builds the entry, and what must live until its completion.
fn prepare(op: Op) -> (squeue::Entry, InFlight) {
    match op {
        Op::Read { fd, offset, mut buf } => {
            let (start, len) = (buf.as_mut_ptr(), buf.len() as u32);
            let entry = opcode::Read::new(types::Fd(fd.raw()), start, len).offset(offset).build();
            (entry, owning(fd, Some(buf), None))
        }
        Op::ReadVectored { fd, offset, bufs } => prepare_read_vectored(fd, offset, bufs),
        Op::Write { fd, offset, data, dsync } => prepare_write(fd, offset, data, dsync),
        Op::Sync { fd } => {
            let fsync = opcode::Fsync::new(types::Fd(fd.raw())).flags(FsyncFlags::DATASYNC);
            (fsync.build(), owning(fd, None, None))
        }
        Op::Allocate { fd, mode, offset, bytes } => {
            let mode = match mode {
                AllocateMode::PunchHole => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                AllocateMode::ZeroRange => libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
            };
            let allocate = opcode::Fallocate::new(types::Fd(fd.raw()), bytes).offset(offset);
            (allocate.mode(mode).build(), owning(fd, None, None))
        }
        Op::Readable { fd } => {
            let poll = opcode::PollAdd::new(types::Fd(fd.raw()), libc::POLLIN as u32);
            (poll.build(), owning(fd, None, None))
        }
        Op::Accept { fd } => {
            let none = std::ptr::null_mut();
            let accept = opcode::Accept::new(types::Fd(fd.raw()), none, std::ptr::null_mut());
            (accept.flags(libc::SOCK_CLOEXEC).build(), owning(fd, None, None))
        }
        Op::Recv { fd, mut buf } => {
            let (start, len) = (buf.as_mut_ptr(), buf.len() as u32);
            let entry = opcode::Recv::new(types::Fd(fd.raw()), start, len).build();
            (entry, owning(fd, Some(buf), None))
        }
        Op::Send { fd, data } => prepare_send(fd, data),
    }
}

fn owning(fd: Fd, buf: Option<Buf>, data: Option<Payload>) -> InFlight {
    InFlight { buf, bufs: Vec::new(), _data: data, vectors: Vec::new(), message: None, _fd: fd }
}

fn prepare_read_vectored(fd: Fd, offset: u64, mut bufs: Vec<Buf>) -> (squeue::Entry, InFlight) {
    let vector =
        |buf: &mut Buf| libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let vectors: Vec<_> = bufs.iter_mut().take(PIECES_MAX).map(vector).collect();
    let read = opcode::Readv::new(types::Fd(fd.raw()), vectors.as_ptr(), vectors.len() as u32);
    let entry = read.offset(offset).build();
    let mut in_flight = owning(fd, None, None);
    in_flight.vectors = vectors;
    in_flight.bufs = bufs;
    (entry, in_flight)
}

fn prepare_write(fd: Fd, offset: u64, data: Payload, dsync: bool) -> (squeue::Entry, InFlight) {
    let flags = if dsync { libc::RWF_DSYNC } else { 0 };
    if let [piece] = data.pieces() {
        let write = opcode::Write::new(types::Fd(fd.raw()), piece.as_ptr(), piece.len() as u32);
        let entry = write.offset(offset).rw_flags(flags).build();
        return (entry, owning(fd, None, Some(data)));
    }
    let vectors = vectors_of(data.pieces());
    let write = opcode::Writev::new(types::Fd(fd.raw()), vectors.as_ptr(), vectors.len() as u32);
    let entry = write.offset(offset).rw_flags(flags).build();
    let mut in_flight = owning(fd, None, Some(data));
    in_flight.vectors = vectors;
    (entry, in_flight)
}

fn prepare_send(fd: Fd, data: Vec<Bytes>) -> (squeue::Entry, InFlight) {
    let vectors = vectors_of(&data);
    // SAFETY: all zeroes is a valid msghdr: null pointers and zero lengths.
    let mut message: Box<libc::msghdr> = Box::new(unsafe { std::mem::zeroed() });
    message.msg_iov = vectors.as_ptr().cast_mut();
    message.msg_iovlen = vectors.len() as _;
    let entry =
        opcode::SendMsg::new(types::Fd(fd.raw()), &*message).flags(libc::MSG_NOSIGNAL as u32);
    let mut in_flight = owning(fd, None, Some(Payload::Many(data)));
    in_flight.vectors = vectors;
    in_flight.message = Some(message);
    (entry.build(), in_flight)
}

#[cfg(test)]
mod tests;
