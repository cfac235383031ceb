//! How each kind of drive is opened. Files and block devices are opened on threads of their own: opening a
//! broken one may take for ever, and a core serves others meanwhile.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use voltier_control::safety::REMOTE_PATIENCE;
use voltier_control::{ControlError, ControlResult, DeviceSpec, ModelBacking, Remote};
use voltier_drive::model::Profile;
use voltier_drive::{
    Connecting, FileDevice, FileOptions, Held, Links, MemoryDevice, ModelDevice, NbdDevice,
    NbdNews, OpenError, OpenFile, RbdDevice,
};
use voltier_librbd::{Image, ImageName};
use voltier_nbd::{Connected, ExportUri, connect};
use voltier_ring::Handle;
use voltier_volume::{Leaf, LeafKind};

/// How often a drive that looks taken is tried again, and how long after the last time.
const CLAIM_TRIES: u32 = 20;
const CLAIM_STEP: Duration = Duration::from_millis(5);

/// Paths that a thread opens now. One that hangs there is not opened a second time.
static OPENING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// The result of a thread, and who waits for it.
struct Outcome<T> {
    result: Option<T>,
    waker: Option<Waker>,
}

/// Does something that may wait for long on a thread of its own.
///
/// # Errors
/// When the process can have no more threads: nothing is done then.
fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<impl Future<Output = T>> {
    let outcome = Arc::new(Mutex::new(Outcome { result: None, waker: None }));
    let told = Arc::clone(&outcome);
    let run = move || {
        let result = work();
        let mut outcome = told.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.result = Some(result);
        if let Some(waker) = outcome.waker.take() {
            waker.wake();
        }
    };
    thread::Builder::new().name("open".into()).spawn(run)?;
    Ok(poll_fn(move |context| {
        let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.waker = Some(context.waker().clone());
        outcome.result.take().map_or(Poll::Pending, Poll::Ready)
    }))
}

/// The profile of a modelled drive.
fn profile(name: &str) -> ControlResult<&'static Profile> {
    Profile::find(name).map_err(|error| ControlError::usage(error.to_string()))
}

/// The size of a device whose name says it, in bytes; of others the most there can be, since the examination
/// of a path tells its size.
pub(super) fn size_of(device: &DeviceSpec) -> ControlResult<u64> {
    Ok(match device {
        DeviceSpec::Memory(bytes) => *bytes,
        DeviceSpec::Model { profile: name, over } => match (profile(name)?, over) {
            (profile, ModelBacking::ProfileSize) => profile.bytes,
            (_, ModelBacking::Memory(bytes)) => *bytes,
            (_, ModelBacking::Path(_)) => u64::MAX,
        },
        DeviceSpec::Path(_) | DeviceSpec::Remote(_) | DeviceSpec::Array(_) => u64::MAX,
    })
}

/// Opens a drive, if it answers.
///
/// # Errors
/// When it cannot be opened at all: another thread waits for it already, the process can have no more threads,
/// it is an array, or has no profile. What its file system or driver says is inside.
pub(super) async fn open(
    handle: &Handle,
    device: &DeviceSpec,
) -> ControlResult<Result<Leaf, OpenError>> {
    let in_memory = |profile, bytes| {
        let store = MemoryDevice::new(bytes);
        LeafKind::Model(Box::new(ModelDevice::new(handle.clone(), profile, store)))
    };
    let kind = match device {
        DeviceSpec::Path(path) => return open_file(handle, path, FileOptions::default()).await,
        DeviceSpec::Memory(bytes) => LeafKind::Memory(MemoryDevice::new(*bytes)),
        DeviceSpec::Model { profile: name, over } => match (profile(name)?, over) {
            (profile, ModelBacking::ProfileSize) => in_memory(profile, profile.bytes),
            (profile, ModelBacking::Memory(bytes)) => in_memory(profile, *bytes),
            (profile, ModelBacking::Path(path)) => {
                let file = opened(path, FileOptions::default()).await?;
                return Ok(file.map(|file| {
                    let store = FileDevice::of(handle, file);
                    let model = ModelDevice::new(handle.clone(), profile, store);
                    Leaf::new(handle, LeafKind::ModelOverFile(Box::new(model)))
                }));
            }
        },
        DeviceSpec::Remote(Remote::Nbd(uri)) => return open_export(handle, uri).await,
        DeviceSpec::Remote(Remote::Rbd(name)) => return open_image(handle, name).await.map(Ok),
        DeviceSpec::Array(name) => {
            return Err(ControlError::failed(format!("array:{name} cannot be a member")));
        }
    };
    Ok(Ok(Leaf::new(handle, kind)))
}

/// Opens a file or block device that is only read.
///
/// # Errors
/// As [`open`], and for any other device.
pub(super) async fn open_read_only(
    handle: &Handle,
    device: &DeviceSpec,
) -> ControlResult<Result<Leaf, OpenError>> {
    let DeviceSpec::Path(path) = device else {
        return Err(ControlError::failed(format!(
            "{device} is no file or block device, and only these can be read alone"
        )));
    };
    open_file(handle, path, FileOptions { read_only: true, ..FileOptions::default() }).await
}

async fn open_file(
    handle: &Handle,
    path: &Path,
    options: FileOptions,
) -> ControlResult<Result<Leaf, OpenError>> {
    let file = opened(path, options).await?;
    Ok(file.map(|file| Leaf::new(handle, LeafKind::File(FileDevice::of(handle, file)))))
}

/// Opens a file or block device on a thread of its own.
async fn opened(path: &Path, options: FileOptions) -> ControlResult<Result<OpenFile, OpenError>> {
    if !with_opening(|opening| opening.insert(path.to_owned())) {
        return Err(ControlError::failed(format!(
            "{} does not answer: it is still being opened; see `dmesg`",
            path.display()
        )));
    }
    let own = path.to_owned();
    let work = move || {
        let opened = open_patiently(&own, &options);
        with_opening(|opening| opening.remove(&own));
        opened
    };
    match on_a_thread(work) {
        Ok(opened) => Ok(opened.await),
        Err(error) => {
            with_opening(|opening| opening.remove(path));
            Err(ControlError::io(format!("a thread to open {}", path.display()), &error))
        }
    }
}

/// Most connections to one server.
const CONNECTIONS_MAX: usize = 4;

/// Exports that were drives here, with what their servers have of these. One is not opened again before.
static EXPORTS: Mutex<Vec<(ExportUri, Held)>> = Mutex::new(Vec::new());

/// Whether a server has requests of a drive that this process gave up.
fn is_undrained(uri: &ExportUri) -> bool {
    let mut exports = EXPORTS.lock().unwrap_or_else(PoisonError::into_inner);
    exports.retain(|(_, held)| held.count() > 0 || !held.is_final());
    exports.iter().any(|(own, held)| own == uri && held.count() > 0)
}

fn note_export(uri: &ExportUri, held: Held) {
    EXPORTS.lock().unwrap_or_else(PoisonError::into_inner).push((uri.clone(), held));
}

/// Connects to an export of a server.
async fn open_export(handle: &Handle, uri: &ExportUri) -> ControlResult<Result<Leaf, OpenError>> {
    if is_undrained(uri) {
        return Ok(Err(OpenError::Undrained(uri.to_string().into())));
    }
    let failed = |why: String| ControlError::failed(format!("{uri}: {why}"));
    let connected = connecting(uri.clone()).await.map_err(failed)?;
    let (own, shown) = (uri.clone(), uri.to_string());
    let opened = NbdDevice::new(
        handle,
        connected,
        move || connecting(own.clone()),
        move |news| log_news(&shown, &news),
    );
    let opened = opened.map_err(|refusal| ControlError::failed(format!("{uri} {refusal}")))?;
    note_export(uri, opened.held());
    Ok(Ok(Leaf::new(handle, LeafKind::Nbd(Box::new(opened)))))
}

/// Connections to an export, made on a thread of its own: a resolver or a server may take long.
fn connecting(uri: ExportUri) -> Connecting {
    Box::pin(async move {
        let work = move || connect(&uri, CONNECTIONS_MAX, REMOTE_PATIENCE);
        let connected: Result<Connected, String> = match on_a_thread(work) {
            Ok(connected) => connected.await.map_err(|error| error.to_string()),
            Err(error) => Err(format!("no thread to connect: {error}")),
        };
        connected.map(Links::from)
    })
}

/// Opens an image with its lock.
async fn open_image(handle: &Handle, name: &ImageName) -> ControlResult<Leaf> {
    let failed = |why: String| ControlError::failed(format!("{name}: {why}"));
    let own = name.clone();
    let opened = on_a_thread(move || Image::open(&own, REMOTE_PATIENCE));
    let opened = opened.map_err(|error| failed(format!("no thread to open it: {error}")))?;
    let image = opened.await.map_err(|error| failed(error.to_string()))?;
    let shown = name.to_string();
    let device = RbdDevice::new(handle, image, move |loss| {
        tracing::error!("{shown}: {loss}; nothing is sent to it any more");
    });
    let device = device.map_err(|error| failed(error.to_string()))?;
    Ok(Leaf::new(handle, LeafKind::Rbd(Box::new(device))))
}

fn log_news(uri: &str, news: &NbdNews) {
    match news {
        NbdNews::Lost(why) => {
            tracing::warn!(
                "{uri}: the connection is lost ({why}); requests wait until there is another one"
            );
        }
        NbdNews::StillLost(why) => tracing::warn!("{uri}: still not connected: {why}"),
        NbdNews::Back(0) => tracing::info!("{uri}: connected again"),
        NbdNews::Back(again) => tracing::info!(
            "{uri}: connected again; {again} changes that no flush had covered were made again"
        ),
        NbdNews::ChangeLost => tracing::error!(
            "{uri}: the server refuses a change that it had answered before, and what it has there is old: the drive \
             is given up"
        ),
    }
}

/// Opens a drive that may look taken for a moment. A program that another look at a drive starts shares the
/// claims of this process between fork and exec.
fn open_patiently(path: &Path, options: &FileOptions) -> Result<OpenFile, OpenError> {
    for _ in 0..CLAIM_TRIES {
        match OpenFile::open(path, options) {
            Err(OpenError::Locked(_) | OpenError::Busy(_)) => thread::park_timeout(CLAIM_STEP),
            opened => return opened,
        }
    }
    OpenFile::open(path, options)
}

fn with_opening<T>(look: impl FnOnce(&mut BTreeSet<PathBuf>) -> T) -> T {
    look(&mut OPENING.lock().unwrap_or_else(PoisonError::into_inner))
}
