//! Looks at devices on threads of their own: opening a broken drive, or reading one, may take for ever.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How long a command waits for a device: a disk that rests takes some ten seconds.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(30);
/// How long a file system has to say what a path is.
pub(super) const STAT_MAX: Duration = Duration::from_millis(500);
/// How long devices have to answer a knock. A device that takes longer is awaited like one that is missing.
const KNOCK_MAX: Duration = Duration::from_secs(3);
/// The part of a device that is read to see whether the device answers.
const KNOCK_BYTES: usize = 4096;

/// The looks at devices that have not ended. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Looks(Arc<Mutex<BTreeMap<PathBuf, Receiver<()>>>>);

impl Looks {
    /// The answer of a look at a device; `None` when the look takes longer, or another one takes so long
    /// already.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        path: &Path,
        answer_max: Duration,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.is_unanswered(path) {
            return None;
        }
        let (answer, answered) = mpsc::channel();
        let ended = begin(move || drop(answer.send(look())))?;
        match answered.recv_timeout(answer_max) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => {
                self.lock().insert(path.to_owned(), ended);
                None
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Opens and reads devices, all at once. One that does not answer soon is not asked again before it does.
    pub(super) fn knock(&self, paths: impl IntoIterator<Item = PathBuf>) {
        let mut asked = Vec::new();
        for path in paths.into_iter().filter(|path| !self.is_unanswered(path)) {
            let own = path.clone();
            asked.extend(begin(move || read_first(&own)).map(|ended| (path, ended)));
        }
        let mut left = KNOCK_MAX;
        for (path, ended) in asked {
            if ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                self.lock().insert(path, ended);
                left = Duration::ZERO;
            }
        }
    }

    fn is_unanswered(&self, path: &Path) -> bool {
        let mut looks = self.lock();
        let is_running =
            looks.get(path).is_some_and(|ended| ended.try_recv() == Err(TryRecvError::Empty));
        if !is_running {
            looks.remove(path);
        }
        is_running
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Receiver<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins a look; the receiver hears of its end. `None` when the process can have no more threads.
fn begin(look: impl FnOnce() + Send + 'static) -> Option<Receiver<()>> {
    let (end, ended) = mpsc::channel::<()>();
    let look = move || {
        look();
        drop(end);
    };
    thread::Builder::new().name("look".into()).spawn(look).ok()?;
    Some(ended)
}

/// Reads the first bytes of a device. The errors are for those who examine it.
fn read_first(path: &Path) {
    let Ok(meta) = path.metadata() else { return };
    if (meta.is_file() || meta.file_type().is_block_device())
        && let Ok(file) = File::open(path)
    {
        let _ = file.read_at(&mut [0; KNOCK_BYTES], 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_does_not_end_keeps_nobody_and_is_not_begun_twice() {
        let (looks, path) = (Looks::default(), Path::new("/dev/hangs"));
        let brief = Duration::from_millis(10);
        let (release, released) = mpsc::channel::<()>();
        let hang = move || {
            let _ = released.recv();
        };
        assert_eq!(looks.ask(path, brief, hang), None);
        assert_eq!(looks.ask(path, ANSWER_MAX, || ()), None, "at once");
        assert_eq!(looks.ask(Path::new("/dev/other"), ANSWER_MAX, || 7), Some(7));
        release.send(()).unwrap();
        while looks.is_unanswered(path) {
            thread::yield_now();
        }
        assert_eq!(looks.ask(path, ANSWER_MAX, || 8), Some(8));
    }

    #[test]
    fn a_knock_leaves_devices_that_answer_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, "x").unwrap();
        let looks = Looks::default();
        looks.knock([path.clone(), dir.path().to_owned(), dir.path().join("gone")]);
        assert!(looks.lock().is_empty());
    }
}
