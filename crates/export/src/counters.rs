//! The counters of an export.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one export since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportCounters {
    /// Connections accepted so far; for a FUSE file, the one mount.
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

/// A request that is over.
pub(crate) enum Served {
    /// So many bytes read.
    Read(u64),
    /// So many bytes written.
    Write(u64),
    Flush,
    Discard,
    Failure,
}

/// The counters while they are being counted: by one core, and read by anybody.
#[derive(Default)]
pub(crate) struct CounterCell {
    connections: AtomicU64,
    connections_open: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
    failures: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

/// Only the export's core writes, so that no locked instruction is needed.
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

impl CounterCell {
    pub(crate) fn connected(&self) {
        add(&self.connections, 1);
        add(&self.connections_open, 1);
    }

    pub(crate) fn disconnected(&self) {
        add(&self.connections_open, 1u64.wrapping_neg());
    }

    pub(crate) fn count(&self, served: Served) {
        match served {
            Served::Read(bytes) => {
                add(&self.reads, 1);
                add(&self.read_bytes, bytes);
            }
            Served::Write(bytes) => {
                add(&self.writes, 1);
                add(&self.written_bytes, bytes);
            }
            Served::Flush => add(&self.flushes, 1),
            Served::Discard => add(&self.discards, 1),
            Served::Failure => add(&self.failures, 1),
        }
    }

    pub(crate) fn get(&self) -> ExportCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ExportCounters {
            connections: load(&self.connections),
            connections_open: load(&self.connections_open),
            reads: load(&self.reads),
            writes: load(&self.writes),
            flushes: load(&self.flushes),
            discards: load(&self.discards),
            failures: load(&self.failures),
            read_bytes: load(&self.read_bytes),
            written_bytes: load(&self.written_bytes),
        }
    }
}
