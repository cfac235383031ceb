//! Opening regions of the origin for clients while the SSD is evacuated.

use std::collections::BTreeSet;
use std::rc::Rc;

use voltier_block::{DriveControl, IoResult};

use crate::canary::{self, Canary};
use crate::clean::cleaner::Cleaner;
use crate::clean::runs::Dirty;

/// Opens regions of the origin: their dirty lines are written out ahead of all others.
pub(crate) struct Opener<S, O>(Rc<Cleaner<S, O>>);

impl<S: DriveControl, O: DriveControl> Opener<S, O> {
    pub(crate) fn new(cleaner: &Rc<Cleaner<S, O>>) -> Self {
        Self(cleaner.clone())
    }

    /// The task that opens what clients ask for.
    pub(crate) async fn run(self) {
        let ends = || self.0.ssd.failed() || self.0.lifecycle.is_stopping();
        loop {
            self.0.passage.asked(ends).await;
            if ends() {
                return;
            }
            if self.0.log.settles() {
                self.0.log.progress().await;
                continue;
            }
            let regions = self.0.passage.wanted();
            let _change = self.0.passage.begin_change();
            if self.empty(&regions).await.is_err() {
                // Whoever waits for these regions gets an error, as the origin gives one.
                self.0.passage.forget(&regions);
                self.0.health.note_failed_batch();
                continue;
            }
            self.0.passage.open(regions, &self.0.map, ends).await;
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
            let contents = self.0.map.get();
            for region in regions {
                let (first, last) = self.0.passage.lines_of(*region);
                let mut dirty = contents.dirty_among(first..last + 1);
                dirty.retain(|(line, _)| !self.0.damage.contains(*line));
                batch.extend(dirty.into_iter().map(|(line, slot)| Dirty {
                    line,
                    slot,
                    version: None,
                }));
            }
        }
        self.0.clean_batch(batch, 0, false).await
    }
}
