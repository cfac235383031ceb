//! The other world: time jumps to the next event, files are whatever the simulator says.

use std::collections::BTreeMap;
use std::io::IoSliceMut;

use rustix::io::Errno;
use voltier_block::{Bytes, Nanos};

use crate::fd::{Fd, Shutdown};
use crate::op::{Op, OpOutcome};
use crate::slab::Key;

/// Files of the simulator: the lower seam. A file sees the very operations that io_uring would.
pub trait VirtualFiles: 'static {
    /// Carries out `op` and says when it completes, at `now` or later.
    fn submit(&mut self, now: Nanos, op: Op) -> (Nanos, OpOutcome);

    /// [`submit`](Self::submit) for operations that end when something else happens, as a receive does: `None` for
    /// such a one, of which [`ended`](Self::ended) tells by its number.
    fn begin(&mut self, now: Nanos, number: u64, op: Op) -> Option<(Nanos, OpOutcome)> {
        let _ = number;
        Some(self.submit(now, op))
    }

    /// What has become of operations that were begun without an end, since the last call.
    fn ended(&mut self) -> Vec<(u64, OpOutcome)> {
        Vec::new()
    }

    /// [`Handle::shutdown`](crate::Handle::shutdown).
    fn shutdown(&mut self, fd: &Fd, how: Shutdown) {
        let _ = (fd, how);
    }

    /// [`Handle::send_now`](crate::Handle::send_now), in no time: by default there is no room.
    fn send_now(&mut self, fd: &Fd, pieces: &[Bytes]) -> Result<usize, Errno> {
        let _ = (fd, pieces);
        Err(Errno::AGAIN)
    }

    /// [`Handle::recv_now`](crate::Handle::recv_now), in no time: by default nothing is there.
    fn recv_now(&mut self, fd: &Fd, bufs: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        let _ = (fd, bufs);
        Err(Errno::AGAIN)
    }
}

/// For worlds whose devices are not files: any operation is a bug.
pub struct NoFiles;

impl VirtualFiles for NoFiles {
    fn submit(&mut self, _now: Nanos, op: Op) -> (Nanos, OpOutcome) {
        panic!("no virtual file serves {op:?}")
    }
}

/// Looks at the clock while no time passes, after which tasks are taken to wake each other for ever.
const LOOKS_AT_ONE_TIME_MAX: u32 = 1 << 20;

pub(crate) struct VirtualTime {
    now: Nanos,
    /// Looks since time last passed.
    looks: u32,
    files: Box<dyn VirtualFiles>,
    in_flight: BTreeMap<(Nanos, u64), (Key, OpOutcome)>,
    /// Operations without an end yet, by number.
    open: BTreeMap<u64, Key>,
    count: u64,
}

impl VirtualTime {
    pub(crate) fn new(files: Box<dyn VirtualFiles>) -> Self {
        Self {
            now: 0,
            looks: 0,
            files,
            in_flight: BTreeMap::new(),
            open: BTreeMap::new(),
            count: 0,
        }
    }

    pub(crate) fn now(&self) -> Nanos {
        self.now
    }

    pub(crate) fn submit(&mut self, key: Key, op: Op) {
        let number = self.count;
        self.count += 1;
        let Some((done_at, outcome)) = self.files.begin(self.now, number, op) else {
            self.open.insert(number, key);
            return;
        };
        assert!(done_at >= self.now, "an operation completes after it was submitted");
        self.in_flight.insert((done_at, number), (key, outcome));
    }

    pub(crate) fn files(&mut self) -> &mut dyn VirtualFiles {
        &mut *self.files
    }

    pub(crate) fn look(
        &mut self,
        idle: bool,
        next_timer: Option<Nanos>,
        finished: &mut Vec<(Key, OpOutcome)>,
    ) {
        self.looks += 1;
        assert!(self.looks < LOOKS_AT_ONE_TIME_MAX, "tasks wake each other and no time passes");
        for (number, outcome) in self.files.ended() {
            let key = self.open.remove(&number).expect("an operation without an end");
            finished.push((key, outcome));
        }
        if idle && finished.is_empty() {
            let before = self.now;
            let next_op = self.in_flight.first_key_value().map(|(key, _)| key.0);
            let next = next_op.into_iter().chain(next_timer).min();
            self.now = self
                .now
                .max(next.expect("no task is ready and no timer set: the world stands still"));
            self.looks = if self.now > before { 0 } else { self.looks };
        }
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            finished.push(entry.remove());
        }
    }
}
