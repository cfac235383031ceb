//! What an export counts.

use std::cell::Cell;

/// Counters of one export since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportCounters {
    /// Connections accepted so far; for a FUSE file, one.
    pub connections: u64,
    /// Connections open now.
    pub connections_open: u64,
    /// Reads served.
    pub reads: u64,
    /// Writes served.
    pub writes: u64,
    /// Flushes served.
    pub flushes: u64,
    /// Discards and zeroings served.
    pub discards: u64,
    /// Requests that the device failed.
    pub failures: u64,
    /// Bytes read by clients.
    pub read_bytes: u64,
    /// Bytes written by clients, zeroing aside.
    pub written_bytes: u64,
}

/// The counters while they are being counted, on one core.
#[derive(Default)]
pub(crate) struct CounterCell(Cell<ExportCounters>);

impl CounterCell {
    pub(crate) fn get(&self) -> ExportCounters {
        self.0.get()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut ExportCounters)) {
        let mut counters = self.0.get();
        change(&mut counters);
        self.0.set(counters);
    }
}
