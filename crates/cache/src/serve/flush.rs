//! Flush: what was acknowledged before it is on a medium when it completes.

use std::rc::Rc;

use voltier_block::{DriveControl, IoError, IoResult};

use crate::devices::health::SsdHealth;
use crate::devices::origin::Origin;
use crate::ground::Ground;
use crate::log::commit::Log;
use crate::log::long_streams::LongStreams;
use crate::map::shared::Map;

/// The flushes of one cache.
pub(crate) struct Flusher<S, O> {
    map: Rc<Map>,
    origin: Rc<Origin<O>>,
    log: Rc<Log<S>>,
    health: Rc<SsdHealth>,
    long_streams: Rc<LongStreams>,
}

impl<S: DriveControl, O: DriveControl> Flusher<S, O> {
    pub(crate) fn new(ground: &Ground<S, O>) -> Self {
        Self {
            map: ground.map.clone(),
            origin: ground.origin.clone(),
            log: ground.log.clone(),
            health: ground.health.clone(),
            long_streams: ground.long_streams.clone(),
        }
    }

    pub(crate) async fn flush(&self) -> IoResult<()> {
        self.long_streams.note_flush();
        if self.health.failed() {
            return self.flush_failed().await;
        }
        if self.log.make_durable().await.is_err() {
            return self.flush_failed().await;
        }
        self.origin.flush_direct().await?;
        self.log.end_epoch();
        Ok(())
    }

    /// A flush without the SSD, when all that could be read from the SSD is on the origin. Writes that
    /// the SSD acknowledged and had not flushed may be lost, and as long as they are, no flush may say
    /// otherwise.
    async fn flush_failed(&self) -> IoResult<()> {
        self.health.past_gate().await?;
        self.origin.flush_all().await?;
        let lost = self.map.get().index().dirty_lines() > 0;
        if self.health.unflushed_loss() && lost { Err(IoError::Medium) } else { Ok(()) }
    }
}
