//! Files that outlive the daemon: what the one before left, until the volumes are open that serve it on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use voltier_export::fuse::{Keep, Left};
use voltier_keeper::Keeper;

/// The keeper, and what it had when this daemon came.
pub(crate) struct Keeping {
    keeper: Arc<Keeper>,
    left: Mutex<BTreeMap<PathBuf, Left>>,
}

impl Keeping {
    /// Fetches what the daemon before left in the state folder. What is not served on within `patience_s` seconds
    /// is ended.
    pub(crate) fn begin(state: &Path, patience_s: u16) -> Arc<Self> {
        let keeper = Keeper::of(state, patience_s);
        let fetched = keeper.fetch().unwrap_or_else(|error| {
            tracing::warn!(
                "the keeper is not asked, so what the daemon before left is ended: {error}"
            );
            Vec::new()
        });
        let left =
            fetched.into_iter().map(|(name, pair, held)| (name.into(), Left::new(pair, held)));
        let left: BTreeMap<PathBuf, Left> = left.collect();
        let waits = !left.is_empty();
        let keeping = Arc::new(Self { keeper, left: Mutex::new(left) });
        if waits {
            let waiting = Arc::clone(&keeping);
            let wait = move || waiting.end_late(Duration::from_secs(patience_s.into()));
            // Without a thread they wait for their volumes as long as the daemon lives.
            let _ = thread::Builder::new().name("kept".into()).spawn(wait);
        }
        keeping
    }

    fn left(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Left>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_late(&self, patience: Duration) {
        thread::park_timeout(patience);
        let late: Vec<PathBuf> = self.left().keys().cloned().collect();
        for file in late {
            self.end(&file, "its volume was not open in time");
        }
    }

    /// Whether a file waits for its volume: nobody may look at it, for that would wait, too.
    pub(crate) fn has(&self, file: &Path) -> bool {
        self.left().contains_key(file)
    }

    /// With what the file of a volume is mounted.
    pub(crate) fn keep(&self, file: &Path, volume: [u8; 16]) -> Keep {
        let left = self.left().remove(file);
        Keep { keeper: Some(Arc::clone(&self.keeper)), left, volume }
    }

    /// Ends a file that waits for its volume: all that waits for it fails.
    pub(crate) fn end(&self, file: &Path, why: &str) {
        let Some(left) = self.left().remove(file) else { return };
        tracing::warn!("users of {} are cut off: {why}", file.display());
        left.end();
        voltier_export::loop_device::detach_all(file);
        voltier_export::fuse::clear_dead(file);
    }

    /// Ends the files that none of these are.
    pub(crate) fn end_all_but(&self, files: &BTreeSet<&Path>) {
        let all: Vec<PathBuf> = self.left().keys().cloned().collect();
        for file in all.iter().filter(|file| !files.contains(file.as_path())) {
            self.end(file, "no volume that serves has it on record");
        }
    }

    /// The daemon ends in order: nothing is kept for another one.
    pub(crate) fn stop(&self) {
        self.keeper.end();
    }
}
