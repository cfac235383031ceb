//! Calls that may wait for ever, on threads of their own: a cluster that does not answer ends no call.

use std::collections::BTreeSet;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::error::ImageError;

/// What is under way, by its key: a cluster that hangs costs one thread an image, however often it is asked.
static UNDER_WAY: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn with_under_way<T>(look: impl FnOnce(&mut BTreeSet<String>) -> T) -> T {
    look(&mut UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What is under way, until it ends, by a panic too.
struct Entry(String);

impl Drop for Entry {
    fn drop(&mut self) {
        with_under_way(|under_way| under_way.remove(&self.0));
    }
}

/// Does something on a thread of its own, and waits for at most so long. What comes later is dropped.
///
/// # Errors
/// [`ImageError::Silent`] when it takes longer, [`ImageError::StillAsked`] while an earlier call with the same key has
/// not ended.
pub(crate) fn bounded<T: Send + 'static>(
    key: String,
    patience: Duration,
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    if !with_under_way(|under_way| under_way.insert(key.clone())) {
        return Err(ImageError::StillAsked);
    }
    let (sender, receiver) = sync_channel(1);
    let entry = Entry(key);
    let run = move || {
        let result = work();
        drop(entry);
        // Nobody may wait any more; then the result is dropped here.
        let _ = sender.send(result);
    };
    if let Err(error) = thread::Builder::new().name("rbd-ask".into()).spawn(run) {
        return Err(ImageError::Failed { doing: "making a thread", why: error.to_string() });
    }
    match receiver.recv_timeout(patience) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(ImageError::Silent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_given_up_and_not_begun_again_meanwhile() {
        let (sender, receiver) = sync_channel::<()>(0);
        let ask = |work: Box<dyn FnOnce() -> Result<u8, ImageError> + Send>, wait| {
            bounded("a test".to_owned(), wait, work)
        };
        let hang = Box::new(move || {
            let _ = receiver.recv();
            Ok(1)
        });
        assert_eq!(ask(hang, Duration::from_millis(10)), Err(ImageError::Silent));
        let minute = Duration::from_secs(60);
        assert_eq!(ask(Box::new(|| Ok(2)), minute), Err(ImageError::StillAsked));
        drop(sender);
        while ask(Box::new(|| Ok(3)), minute) == Err(ImageError::StillAsked) {
            thread::yield_now();
        }
        assert_eq!(ask(Box::new(|| Ok(4)), minute), Ok(4));
    }
}
