//! The task that forms records and sends them to the SSD.

use std::rc::Rc;

use voltier_block::{BlockDevice, IoResult};
use voltier_ring::{Handle, join_all};

use crate::devices::ssd::Ssd;
use crate::log::commit::Log;
use crate::log::form::{Formed, Record};
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

impl<S: BlockDevice> LogWriter<S> {
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
            if self.ssd.failed() || (self.lifecycle.is_log_ending() && self.log.is_empty()) {
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
                    self.log.work().await;
                }
                None => self.log.work().await,
            }
            let segment = self.log.segment();
            if segment != last_segment {
                last_segment = segment;
                self.map.ask_for_segments();
                // Bounds what a start must verify, and lets emptied segments go.
                let log = self.log.clone();
                // A failure is everybody's to see: the SSD is given up then.
                drop(self.handle.spawn(async move { log.make_durable().await }));
            }
        }
    }

    async fn write_record(self: Rc<Self>, record: Record) {
        let sequence = record.sequence;
        let writes = record.runs.into_iter().map(|(at, payload)| self.ssd.write(at, payload));
        let written: IoResult<()> = join_all(writes).await.into_iter().collect();
        if self.ssd.failed() {
            return;
        }
        match written {
            Ok(()) => self.log.record_done(sequence),
            Err(_) => self.ssd.count_write_error(),
        }
        self.log.notify_progress();
        self.log.notify_work();
    }
}
