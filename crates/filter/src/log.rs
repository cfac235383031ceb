//! Remembers the latest requests and counts all of them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Durability, IoError, IoResult, Lba, Limits, Nanos, Payload, SECTOR_BYTES,
    SectorRange,
};
use voltier_ring::Handle;

/// The kinds of requests a device serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IoKind {
    /// A read.
    Read,
    /// A write, durable or not.
    Write,
    /// A flush.
    Flush,
    /// A discard.
    Discard,
    /// A write of zeroes.
    WriteZeroes,
}

const KINDS: usize = 5;

/// One request that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The time when the request came.
    pub submitted_ns: Nanos,
    /// The time when the request was done.
    pub completed_ns: Nanos,
    /// Kind of the request.
    pub kind: IoKind,
    /// Where; empty for a flush.
    pub range: SectorRange,
    /// The error of a request that failed.
    pub error: Option<IoError>,
}

/// Sums over all requests of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogTotals {
    /// Requests that completed, failed ones too.
    pub requests: u64,
    /// Bytes of their ranges.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Time they were under way, in nanoseconds.
    pub busy_ns: Nanos,
}

#[derive(Debug)]
struct LogState {
    entries: VecDeque<LogEntry>,
    capacity: usize,
    totals: [LogTotals; KINDS],
}

/// The log of a [`LogDevice`]; clones are the same log.
#[derive(Clone, Debug)]
pub struct IoLog(Rc<RefCell<LogState>>);

impl IoLog {
    /// A log that keeps the latest `capacity` requests.
    pub fn new(capacity: usize) -> Self {
        let (entries, totals) = (VecDeque::with_capacity(capacity), [LogTotals::default(); KINDS]);
        Self(Rc::new(RefCell::new(LogState { entries, capacity, totals })))
    }

    /// The latest requests in the order of their completion, oldest first.
    pub fn entries(&self) -> Vec<LogEntry> {
        self.0.borrow().entries.iter().copied().collect()
    }

    /// The sums of one kind since the beginning.
    pub fn totals(&self, kind: IoKind) -> LogTotals {
        self.0.borrow().totals[kind as usize]
    }

    /// Forgets the requests, keeps the sums.
    pub fn clear(&self) {
        self.0.borrow_mut().entries.clear();
    }

    fn add(&self, entry: LogEntry) {
        let mut state = self.0.borrow_mut();
        let totals = &mut state.totals[entry.kind as usize];
        totals.requests += 1;
        totals.bytes += entry.range.bytes();
        totals.errors += u64::from(entry.error.is_some());
        totals.busy_ns += entry.completed_ns - entry.submitted_ns;
        if state.capacity == 0 {
            return;
        }
        if state.entries.len() == state.capacity {
            state.entries.pop_front();
        }
        state.entries.push_back(entry);
    }
}

/// Notes every request when it completes.
pub struct LogDevice<D> {
    handle: Handle,
    below: D,
    log: IoLog,
}

impl<D: BlockDevice> LogDevice<D> {
    /// Logs what `below` does; keep a clone of `log` to read it.
    pub fn new(handle: Handle, below: D, log: IoLog) -> Self {
        Self { handle, below, log }
    }

    async fn noted<T>(
        &self,
        kind: IoKind,
        range: SectorRange,
        request: impl Future<Output = IoResult<T>>,
    ) -> IoResult<T> {
        let submitted_ns = self.handle.now();
        let result = request.await;
        let completed_ns = self.handle.now();
        let error = result.as_ref().err().copied();
        self.log.add(LogEntry { submitted_ns, completed_ns, kind, range, error });
        result
    }
}

impl<D: BlockDevice> BlockDevice for LogDevice<D> {
    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        let range = SectorRange::new(at, into.len() as u64 / SECTOR_BYTES);
        self.noted(IoKind::Read, range, self.below.read(at, into)).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let range = SectorRange::new(at, data.len() as u64 / SECTOR_BYTES);
        self.noted(IoKind::Write, range, self.below.write(at, data, durability)).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.noted(IoKind::Flush, SectorRange::default(), self.below.flush()).await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.noted(IoKind::Discard, range, self.below.discard(range)).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.noted(IoKind::WriteZeroes, range, self.below.write_zeroes(range, durability)).await
    }
}

voltier_block::pass_control_on!(LogDevice.below);

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_block::MIB;
    use voltier_drive::MemoryDevice;
    use voltier_ring::{Executor, NoFiles};

    #[test]
    fn the_log_is_bounded_and_the_sums_are_not() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(async move {
            let log = IoLog::new(2);
            let device = LogDevice::new(handle, MemoryDevice::new(MIB), log.clone());
            for sector in 0..3 {
                device.read(Lba(sector), Buf::new(1024)).await.unwrap();
            }
            device.read(Lba(MIB), Buf::new(1024)).await.unwrap_err();
            let entries = log.entries();
            assert_eq!(entries[0].range, SectorRange::new(Lba(2), 2));
            assert_eq!((entries.len(), entries[1].error), (2, Some(IoError::OutOfRange)));
            let totals = log.totals(IoKind::Read);
            assert_eq!((totals.requests, totals.bytes, totals.errors), (4, 4096, 1));
            assert_eq!(log.totals(IoKind::Write), LogTotals::default());
        });
    }
}
