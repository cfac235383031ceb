//! Opening regions of the origin for clients while the SSD is evacuated.

use std::collections::BTreeSet;
use std::rc::Rc;

use voltier_block::{BlockDevice, IoResult};

use crate::canary::{self, Canary};
use crate::clean::cleaner::Cleaner;
use crate::clean::runs::Dirty;

impl<S: BlockDevice, O: BlockDevice> Cleaner<S, O> {
    /// The task that opens what clients ask for.
    pub(crate) async fn let_pass(self: Rc<Self>) {
        let ends = || self.ssd.failed() || self.lifecycle.is_stopping();
        loop {
            self.passage.asked(ends).await;
            if ends() {
                return;
            }
            if self.log.settles() {
                self.log.progress().await;
                continue;
            }
            let regions = self.passage.wanted();
            let _change = self.passage.begin_change();
            if self.empty(&regions).await.is_err() {
                // Whoever waits for these regions gets an error, as the origin gives one.
                self.passage.forget(&regions);
                self.health.note_failed_batch();
                continue;
            }
            self.passage.open(regions, &self.map, ends).await;
        }
    }

    /// Writes the dirty lines of regions to the origin, as far as they can be read and are durable.
    ///
    /// # Errors
    /// The origin's.
    async fn empty(&self, regions: &BTreeSet<u64>) -> IoResult<()> {
        if canary::is(Canary::PassBesideDirty) {
            return Ok(());
        }
        let mut batch = Vec::new();
        {
            let contents = self.map.get();
            for region in regions {
                let (first, last) = self.passage.lines_of(*region);
                let mut dirty = contents.dirty_among(first..last + 1);
                dirty.retain(|(line, _)| !self.damage.contains(*line));
                batch.extend(dirty.into_iter().map(|(line, slot)| Dirty {
                    line,
                    slot,
                    version: None,
                }));
            }
        }
        self.clean_batch(batch, 0, false).await
    }
}
