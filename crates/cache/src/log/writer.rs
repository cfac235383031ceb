//! The writer of records: one task that forms records of the changes that wait, and sends the records out.
//! The task settles records on their way when the SSD takes no more writes.

use std::rc::Rc;

use voltier_block::{Buf, DriveControl, IoError, IoResult, Lba, Payload};
use voltier_ring::{Handle, join_all};

use crate::canary::{self, Canary};
use crate::devices::ssd::Ssd;
use crate::log::commit::Log;
use crate::log::form::{Formed, Record, Unsettled};
use crate::log::in_flight::RecordPieces;
use crate::log::pressure::Pressure;
use crate::log::stage::Lifecycle;
use crate::map::shared::Map;

/// The writer of records of one cache.
pub(crate) struct LogWriter<S> {
    handle: Handle,
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    log: Rc<Log<S>>,
    pressure: Rc<Pressure>,
    lifecycle: Rc<Lifecycle>,
}

impl<S: DriveControl> LogWriter<S> {
    pub(crate) fn new(
        handle: Handle,
        map: Rc<Map>,
        ssd: Rc<Ssd<S>>,
        log: Rc<Log<S>>,
        pressure: Rc<Pressure>,
        lifecycle: Rc<Lifecycle>,
    ) -> Rc<Self> {
        Rc::new(Self { handle, map, ssd, log, pressure, lifecycle })
    }

    /// Forms records and sends them out until the log ends.
    pub(crate) async fn write_log(self: Rc<Self>) {
        let mut last_segment = self.log.segment();
        loop {
            if !self.ssd.takes_writes() {
                self.settle().await;
            }
            if !self.ssd.takes_writes() || (self.lifecycle.is_log_ending() && self.log.is_empty()) {
                self.map.ask_for_segments();
                return;
            }
            match self.log.form_next() {
                Some(Formed::Record(record)) => {
                    self.pressure.notify_dirty();
                    self.pressure.hurry_when_high();
                    drop(self.handle.spawn(self.clone().write_record(record)));
                }
                Some(Formed::Nothing) => self.log.notify_progress(),
                Some(Formed::Blocked) => {
                    self.map.ask_for_segments();
                    if self.log.lacks_flush() {
                        self.begin_flush();
                    }
                    self.log.work().await;
                }
                None => self.log.work().await,
            }
            let segment = self.log.segment();
            if segment != last_segment {
                last_segment = segment;
                self.map.ask_for_segments();
                // Bounds what a start must verify, and lets emptied segments go.
                self.begin_flush();
            }
        }
    }

    fn begin_flush(&self) {
        let log = self.log.clone();
        // A failure is everybody's to see: the SSD takes no more writes then.
        drop(self.handle.spawn(async move { log.make_durable().await }));
    }

    async fn write_record(self: Rc<Self>, record: Record) {
        let Record { sequence, runs, pieces } = record;
        let mut written = self.write_runs(runs).await;
        if let Err(error) = written {
            written = Box::pin(self.write_again(sequence, pieces, error)).await;
        }
        if self.ssd.takes_writes() {
            if written.is_err() {
                return;
            }
            self.log.record_done(sequence);
            self.log.notify_progress();
        } else if written.is_ok() {
            self.log.note_written(sequence);
        }
        self.log.notify_work();
    }

    /// Writes a record again after `error`, for so long as that is worth it.
    #[cold]
    async fn write_again(
        &self,
        sequence: u64,
        pieces: RecordPieces,
        error: IoError,
    ) -> IoResult<()> {
        self.log.note_failed(sequence, pieces.clone());
        let attempt = async || {
            // A log that has ended writes nothing more.
            let runs = self.log.runs_again(sequence).ok_or(IoError::ReadOnly)?;
            let written = self.write_runs(runs).await;
            written.inspect_err(|_| self.log.note_failed(sequence, pieces.clone()))
        };
        self.ssd.write_again(error, attempt).await
    }

    /// Decides what becomes of the records that were on their way when the SSD took no more writes. An SSD
    /// may fail a write and have all of it: what a replay would take must be true before the replay too. So
    /// the records that the SSD has are acknowledged, up to the first that it does not have; the rest is
    /// undone. Without a flush nobody can know, and all are undone.
    #[cold]
    async fn settle(&self) {
        while self.log.has_writes() {
            self.log.work().await;
        }
        if self.log.settles() && self.ssd.flush().await.is_ok() {
            self.log.note_acked_durable();
            while let Some(Unsettled { failed_runs, .. }) = self.log.oldest_unsettled() {
                if !self.has_runs(failed_runs.unwrap_or_default()).await {
                    break;
                }
                self.log.settle_oldest();
                self.log.notify_progress();
            }
        }
        if !self.ssd.failed() {
            self.log.undo();
        }
        self.log.wake_waiters();
        self.pressure.notify_dirty();
    }

    /// Whether the SSD has what these writes brought.
    async fn has_runs(&self, runs: Vec<(Lba, Payload)>) -> bool {
        if canary::is(Canary::RecordNotReadBack) || canary::is(Canary::WholeRecordUndone) {
            return runs.is_empty() || canary::is(Canary::RecordNotReadBack);
        }
        for (mut at, payload) in runs {
            for piece in payload.pieces() {
                let read = self.ssd.read(at, Buf::new(piece.len())).await;
                if !read.is_ok_and(|found| found[..] == piece[..]) {
                    return false;
                }
                at = at.plus(piece.len() as u64 / 512);
            }
        }
        true
    }

    async fn write_runs(&self, runs: Vec<(Lba, Payload)>) -> IoResult<()> {
        let writes = runs.into_iter().map(|(at, payload)| self.ssd.write(at, payload));
        join_all(writes).await.into_iter().collect()
    }
}
