//! Drives opened on threads of their own: opening a broken one may take for ever, and a core serves others
//! meanwhile.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use voltier_control::{ControlError, ControlResult};
use voltier_drive::OpenError;
use voltier_ring::Handle;
use voltier_volume::{DriveError, DriveSpec, Leaf, OpenLeaf};

/// How often a drive that looks taken is tried again, and how long after the last time.
const CLAIM_TRIES: u32 = 20;
const CLAIM_STEP: Duration = Duration::from_millis(5);

/// Paths that a thread opens now. One that hangs there is not opened a second time.
static OPENING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// The result of a thread, and who waits for it.
struct Outcome {
    opened: Option<Result<OpenLeaf, DriveError>>,
    waker: Option<Waker>,
}

/// Opens a drive, if it answers.
///
/// # Errors
/// When another thread waits for the drive already, and when the process can have no more threads.
pub(super) async fn open(
    handle: &Handle,
    spec: DriveSpec,
) -> ControlResult<Result<Leaf, DriveError>> {
    let path = match &spec {
        DriveSpec::File { path }
        | DriveSpec::ReadOnlyFile { path }
        | DriveSpec::ModelOverFile { path, .. } => path.clone(),
        DriveSpec::Memory { .. } | DriveSpec::Model { .. } => return Ok(Leaf::open(handle, &spec)),
    };
    if !with_opening(|opening| opening.insert(path.clone())) {
        return Err(ControlError::failed(format!(
            "{} does not answer: it is still being opened; see `dmesg`",
            path.display()
        )));
    }
    let outcome = Arc::new(Mutex::new(Outcome { opened: None, waker: None }));
    let (told, own) = (Arc::clone(&outcome), path.clone());
    let work = move || {
        let opened = open_patiently(&spec);
        with_opening(|opening| opening.remove(&own));
        let mut outcome = told.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.opened = Some(opened);
        if let Some(waker) = outcome.waker.take() {
            waker.wake();
        }
    };
    if let Err(error) = thread::Builder::new().name("open".into()).spawn(work) {
        with_opening(|opening| opening.remove(&path));
        return Err(ControlError::io(format!("a thread to open {}", path.display()), &error));
    }
    let opened = poll_fn(|context| {
        let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.waker = Some(context.waker().clone());
        outcome.opened.take().map_or(Poll::Pending, Poll::Ready)
    });
    Ok(opened.await.map(|open| Leaf::of(handle, open)))
}

/// Opens a drive that may look taken for a moment. A program that another look at a drive starts shares the
/// claims of this process between fork and exec.
fn open_patiently(spec: &DriveSpec) -> Result<OpenLeaf, DriveError> {
    for _ in 0..CLAIM_TRIES {
        match OpenLeaf::open(spec) {
            Err(DriveError::Open(OpenError::Locked(_) | OpenError::Busy(_))) => {
                thread::park_timeout(CLAIM_STEP);
            }
            opened => return opened,
        }
    }
    OpenLeaf::open(spec)
}

fn with_opening<T>(look: impl FnOnce(&mut BTreeSet<PathBuf>) -> T) -> T {
    look(&mut OPENING.lock().unwrap_or_else(PoisonError::into_inner))
}
