//! Files that outlive the daemon: what the one before left, until the volumes are open that serve it on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use voltier_control::{ControlError, ControlResult};
use voltier_export::fuse::{Keep, Left};
use voltier_export::nbd;
use voltier_keeper::{Keeper, Pair, Passed, Passing};
use voltier_ring::StreamAddress;

/// What the names of NBD sockets begin with; a number follows. Files have absolute paths.
const NBD: &str = "nbd/";

/// How long all that is passed on may take to be answered, and the least that each has of it.
const LEAVE_TIME: Duration = Duration::from_secs(5);
const LEAVE_TIME_LEAST: Duration = Duration::from_millis(200);

/// The keeper, and what it had when this daemon came.
pub(crate) struct Keeping {
    keeper: Arc<Keeper>,
    left: Mutex<BTreeMap<PathBuf, Left>>,
    /// NBD sockets that were passed on.
    sockets: Mutex<Vec<nbd::Passed>>,
    /// What is passed on to the next program of this process, once it is to be, and since when that is so.
    passing: Mutex<Option<(Passing, Instant)>>,
    passed: Mutex<Option<Passed>>,
}

impl Keeping {
    /// Fetches what the daemon before left in the state folder. What is not served on within `patience_s` seconds
    /// is ended.
    pub(crate) fn begin(state: &Path, patience_s: u16) -> Arc<Self> {
        let keeper = Keeper::of(state, patience_s);
        let (fetched, error) = keeper.fetch();
        if let Some(error) = error {
            tracing::warn!("what the daemon before left with its keeper is ended: {error}");
        }
        let (mut left, mut sockets) = (BTreeMap::new(), Vec::new());
        for (name, one) in fetched {
            if name.starts_with(NBD) {
                let Pair { device: socket, note } = one.pair;
                sockets.push(nbd::Passed { socket, note });
            } else {
                left.insert(PathBuf::from(name), Left::from(one));
            }
        }
        let waits = !left.is_empty() || !sockets.is_empty();
        let (left, sockets) = (Mutex::new(left), Mutex::new(sockets));
        let keeping = Arc::new(Self {
            keeper,
            left,
            sockets,
            passing: Mutex::default(),
            passed: Mutex::default(),
        });
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
        self.waiting().clear();
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

    fn waiting(&self) -> MutexGuard<'_, Vec<nbd::Passed>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sockets that were passed on to the server of a volume.
    pub(crate) fn sockets(&self, of: &nbd::Whose) -> Vec<nbd::Passed> {
        let is_wanted = |passed: &mut nbd::Passed| passed.whose().as_ref() == Some(of);
        self.waiting().extract_if(.., is_wanted).collect()
    }

    /// Whether clients wait for the server at an address.
    pub(crate) fn has_sockets(&self, at: &StreamAddress) -> bool {
        self.waiting().iter().any(|passed| passed.whose().is_some_and(|of| of.at == *at))
    }

    /// Hangs up on those that wait for the server at an address.
    pub(crate) fn end_sockets(&self, at: &StreamAddress) {
        self.waiting().retain(|passed| passed.whose().is_some_and(|of| of.at != *at));
    }

    /// Hangs up on those that wait for servers at other addresses than these.
    pub(crate) fn end_sockets_but(&self, awaited: &[StreamAddress]) {
        self.waiting().retain(|passed| passed.whose().is_some_and(|of| awaited.contains(&of.at)));
    }

    fn passing(&self) -> MutexGuard<'_, Option<(Passing, Instant)>> {
        self.passing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on exports may be passed on to the next program of this process.
    #[expect(clippy::disallowed_methods, reason = "time of the control plane, not of an I/O")]
    pub(crate) fn begin_to_pass(&self) {
        self.passing().get_or_insert_with(|| (Passing::default(), Instant::now()));
    }

    /// How long what is passed on now may take to be answered.
    pub(crate) fn leave_time(&self) -> Duration {
        let gone = self.passing().as_ref().map_or(Duration::ZERO, |(_, since)| since.elapsed());
        LEAVE_TIME.saturating_sub(gone).max(LEAVE_TIME_LEAST)
    }

    /// Passes a file on.
    pub(crate) fn pass_file(&self, file: &Path, pair: Pair) {
        if let (Some((passing, _)), Some(name)) = (&mut *self.passing(), file.to_str()) {
            passing.add(name.to_owned(), pair);
        }
    }

    /// Passes the sockets of a server on.
    pub(crate) fn pass_sockets(&self, sockets: Vec<nbd::Passed>) {
        let Some((passing, _)) = &mut *self.passing() else { return };
        for nbd::Passed { socket, note } in sockets {
            let name = format!("{NBD}{}", passing.count());
            passing.add(name, Pair { device: socket, note });
        }
    }

    /// Leaves all that is passed on open for the next program, with what waits for its volume still; the variables with
    /// which that program finds it.
    ///
    /// # Errors
    /// When there is no memory for the list.
    pub(crate) fn passed(&self) -> ControlResult<Vec<(String, Option<String>)>> {
        let sockets = std::mem::take(&mut *self.waiting());
        self.pass_sockets(sockets);
        let mut passing = self.passing().take().map(|(passing, _)| passing).unwrap_or_default();
        for (file, left) in std::mem::take(&mut *self.left()) {
            if let (Some(name), Some(pair)) = (file.to_str(), left.into_pair()) {
                passing.add(name.to_owned(), pair);
            }
        }
        let passed = self.keeper.pass_on(passing);
        let passed = passed.map_err(|error| ControlError::io("passing exports on", &error))?;
        let (variable, value) = &passed.variable;
        let set = [((*variable).to_owned(), Some(value.clone()))];
        let left_out = passed.left_out.map(|name| (name.to_owned(), None));
        let all = set.into_iter().chain(left_out).collect();
        // Open until this program is no more.
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = Some(passed);
        Ok(all)
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
