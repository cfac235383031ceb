//! An image with its lock: requests, and the thread that watches it and closes it.
//!
//! ```text
//! core   submit -> librbd -> cluster          thread of the image
//! core   eventfd <- librbd                      looks at size and lock, now and then and when told
//! core   collect                                at the end: waits for what is under way, closes
//! ```
//!
//! No request can be cancelled. So its buffers belong to the request until librbd has completed it, whoever waits or
//! does not, and the image is closed when all are. A cluster that never answers keeps them, and the image; the same
//! image is not opened again meanwhile.
//!
//! UNSAFETY: librbd gets pointers to buffers, and a pointer to the request that owns them. The request is a box that
//! is given away with a submission and taken back once, with its completion; buffers of a box are not moved. The handle
//! of the image is valid until the image's thread drops the connection, after `Image` is dropped and nothing is under
//! way.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use voltier_block::{Buf, Payload};

use crate::api::{Api, EVENT_TYPE_EVENTFD, Handle, LOCK_MODE_EXCLUSIVE, Pointer};
use crate::connection::{Connection, Purpose, errno, is_own};
use crate::error::{ImageError, Loss};
use crate::name::ImageName;
use crate::patience::bounded;
use crate::{mark, owner, report};

/// How often a report is written that waits.
const REPORT_STEP: Duration = Duration::from_millis(500);
/// After how many of these steps size and lock are looked at when nothing is told: two seconds.
const STEPS_TO_LOOK: u32 = 4;
/// Completions that are collected with one call.
const COLLECT_AT_ONCE: usize = 64;
/// How often a thread that waits for completions looks whether all are there.
const DRAIN_STEP: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A request.
#[derive(Debug)]
pub enum Op {
    /// Fills buffers with what lies behind one another from a byte on.
    Read {
        /// The first byte.
        at: u64,
        /// The buffers.
        into: Vec<Buf>,
    },
    /// Writes from a byte on.
    Write {
        /// The first byte.
        at: u64,
        /// The data.
        data: Payload,
    },
    /// Makes everything completed before durable.
    Flush,
    /// Gives the content of a range up.
    Discard {
        /// The first byte.
        at: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// Makes a range read as zeroes.
    Zeroes {
        /// The first byte.
        at: u64,
        /// How many bytes.
        bytes: u64,
    },
}

/// A request that has ended.
#[derive(Debug)]
pub struct Done {
    /// What the request was submitted with.
    pub token: u64,
    /// The buffers of a read; the error number.
    pub result: Result<Vec<Buf>, i32>,
}

/// How many requests of an image the library has. It goes on when the image is dropped.
#[derive(Clone, Debug, Default)]
pub struct UnderWayCount(Arc<AtomicUsize>);

impl UnderWayCount {
    /// How many there are now.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// What librbd has, with all that it points to.
struct Request {
    token: u64,
    op: Op,
    vectors: Vec<libc::iovec>,
    bytes: usize,
}

#[derive(Default)]
struct State {
    is_closing: bool,
    /// The library says that something about the image is new.
    is_changed: bool,
    lost: Option<Loss>,
}

struct Inner {
    api: &'static Api,
    image: Pointer,
    /// Librbd counts completions there.
    event: OwnedFd,
    under_way: UnderWayCount,
    state: Mutex<State>,
    changed: Condvar,
}

/// An image with its exclusive lock. Dropping it closes it, in the background: [`settle`] waits for that.
pub struct Image {
    inner: Arc<Inner>,
    key: String,
    size_bytes: u64,
    id: String,
}

/// The images of this process, and whether each is being closed. One that is has its lock still.
static IMAGES: Mutex<Vec<(String, bool)>> = Mutex::new(Vec::new());
static CLOSED: Condvar = Condvar::new();

fn images() -> MutexGuard<'static, Vec<(String, bool)>> {
    IMAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place of an image among those of this process, until it is closed.
struct Place(String);

impl Place {
    /// Takes the place of an image, when an earlier use of it has ended.
    fn take(key: &str, patience: Duration) -> Result<Self, ImageError> {
        let is_closing = |images: &mut Vec<(String, bool)>| {
            images.iter().any(|(other, is_closing)| other == key && *is_closing)
        };
        let waited = CLOSED.wait_timeout_while(images(), patience, is_closing);
        let (mut images, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match images.iter().find(|(other, _)| other == key) {
            Some((_, true)) => return Err(ImageError::StillClosing),
            Some((_, false)) => return Err(ImageError::OwnLock),
            None => images.push((key.to_owned(), false)),
        }
        Ok(Self(key.to_owned()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        images().retain(|(key, _)| *key != self.0);
        CLOSED.notify_all();
    }
}

/// Waits until every image is closed, so that the next process finds no lock; for at most so long. Whether all are.
/// For the end of a process, whose drives are dropped.
pub fn settle(patience: Duration) -> bool {
    let is_any = |images: &mut Vec<(String, bool)>| !images.is_empty();
    let waited = CLOSED.wait_timeout_while(images(), patience, is_any);
    waited.unwrap_or_else(PoisonError::into_inner).0.is_empty()
}

impl Image {
    /// Opens an image and takes its exclusive lock. It waits for the cluster, for at most four times `patience`.
    ///
    /// The lock is taken for good: a client that asks for it does not get it. So what is in a cache in front of the
    /// image stays the newest until the lock is broken, and who breaks it has the cluster refuse this client.
    ///
    /// # Errors
    /// Any [`ImageError`].
    pub fn open(name: &ImageName, patience: Duration) -> Result<Self, ImageError> {
        let own = name.clone();
        let work = move || Self::open_now(&own, patience);
        bounded(format!("open {name}"), 4 * patience, work)
    }

    fn open_now(name: &ImageName, patience: Duration) -> Result<Self, ImageError> {
        let key = name.key();
        let place = Place::take(&key, patience)?;
        let connection = Connection::open(name, Purpose::Drive(patience))?;
        owner::check(&connection, name)?;
        let before = owner::owners(&connection).unwrap_or_default();
        owner::break_former(&connection);
        let api = connection.api();
        // SAFETY: the image is a handle of the library.
        let locked =
            errno(unsafe { (api.rbd_lock_acquire)(connection.image(), LOCK_MODE_EXCLUSIVE) });
        if let Err(number) = locked {
            // Somebody was faster, or the image takes no writes from anybody.
            owner::check(&connection, name)?;
            return Err(connection.refused(name, "taking the lock of the image", number));
        }
        owner::keep_out(&connection, &before);
        let failed = |number| connection.refused(name, "looking at the image", number);
        let (size_bytes, id) =
            (connection.size().map_err(failed)?, connection.id().map_err(failed)?);
        mark::leave(&connection, name, &id)?;
        // Before anything is served: who finds the image without its owner must know that it may lack something.
        report::live(&connection, &id, 0).map_err(failed)?;
        report::write(&connection, &place.0, &id).map_err(failed)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed(error.raw_os_error()))?;
        // SAFETY: the descriptor stays open for longer than the image.
        errno(unsafe {
            (api.rbd_set_image_notification)(
                connection.image(),
                event.as_raw_fd(),
                EVENT_TYPE_EVENTFD,
            )
        })
        .map_err(failed)?;
        let image = connection.image_pointer().ok_or_else(|| failed(libc::EINVAL))?;
        let inner = Arc::new(Inner {
            api,
            image,
            event,
            under_way: UnderWayCount::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let guard = Guard {
            inner: inner.clone(),
            connection,
            size_bytes,
            watch: None,
            is_lock_free: false,
            id: id.clone(),
            place,
        };
        let run = move || guard.run();
        let begun = thread::Builder::new().name("rbd-image".into()).spawn(run);
        begun.map_err(|error| ImageError::Failed {
            doing: "making a thread for the image",
            why: error.to_string(),
        })?;
        Ok(Self { inner, key, size_bytes, id })
    }

    /// Size in bytes, as it was when the image was opened.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The id that the cluster gave the image when it was made.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A descriptor that can be read when requests have ended, or the image is lost.
    ///
    /// # Errors
    /// When the process can have no more descriptors.
    pub fn event(&self) -> io::Result<OwnedFd> {
        self.inner.event.try_clone()
    }

    /// How many requests the library has.
    pub fn under_way(&self) -> UnderWayCount {
        self.inner.under_way.clone()
    }

    /// How the image was lost, if it is.
    pub fn lost(&self) -> Option<Loss> {
        self.inner.state().lost.clone()
    }

    /// The image is about to be dropped: who opens it again waits for that.
    pub fn let_go(&self) {
        if let Some(entry) = images().iter_mut().find(|(key, _)| *key == self.key) {
            entry.1 = true;
        }
    }

    /// Has [`event`](Self::event) be readable.
    pub fn wake(&self) {
        self.inner.wake();
    }

    /// Hands a request to the library, which does not wait. Its end is collected with the same token.
    ///
    /// # Errors
    /// The error number, when the library does not take the request.
    pub fn submit(&self, token: u64, op: Op) -> Result<(), i32> {
        self.inner.submit(token, op)
    }

    /// The requests that have ended since the last call.
    pub fn collect(&self) -> Vec<Done> {
        self.inner.collect()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.let_go();
        self.inner.state().is_closing = true;
        self.inner.changed.notify_all();
        self.inner.wake();
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // A counter that is full is readable.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    fn submit(&self, token: u64, op: Op) -> Result<(), i32> {
        let mut request = Box::new(Request { token, op, vectors: Vec::new(), bytes: 0 });
        request.point();
        let (vectors, count) = (request.vectors.as_ptr(), request.vectors.len() as c_int);
        let what = match &request.op {
            Op::Read { at, .. } | Op::Write { at, .. } => (*at, 0),
            Op::Discard { at, bytes } | Op::Zeroes { at, bytes } => (*at, *bytes),
            Op::Flush => (0, 0),
        };
        let call = Call::of(&request.op);
        let owned = Box::into_raw(request);
        let mut completion: Handle = null_mut();
        // SAFETY: the library keeps the pointer to the request and gives it back with the completion; it calls nothing.
        let made = errno(unsafe {
            (self.api.rbd_aio_create_completion)(owned.cast(), None, &mut completion)
        });
        if let Err(number) = made {
            // SAFETY: it was made above, and the library has not taken it.
            drop(unsafe { Box::from_raw(owned) });
            return Err(number);
        }
        self.under_way.0.fetch_add(1, Ordering::AcqRel);
        let (image, api, (at, bytes)) = (self.image.get(), self.api, what);
        // SAFETY: the vectors and the buffers that they name belong to the request, which lives until its completion is
        // collected.
        let submitted = errno(unsafe {
            match call {
                Call::Read => (api.rbd_aio_readv)(image, vectors, count, at, completion),
                Call::Write => (api.rbd_aio_writev)(image, vectors, count, at, completion),
                Call::Flush => (api.rbd_aio_flush)(image, completion),
                Call::Discard => (api.rbd_aio_discard)(image, at, bytes, completion),
                Call::Zeroes => {
                    (api.rbd_aio_write_zeroes)(image, at, bytes as usize, completion, 0, 0)
                }
            }
        });
        if let Err(number) = submitted {
            // SAFETY: the library has refused the request: the completion never ends, and is released once.
            unsafe { (self.api.rbd_aio_release)(completion) };
            // SAFETY: as above: nobody else has the request.
            drop(unsafe { Box::from_raw(owned) });
            self.under_way.0.fetch_sub(1, Ordering::AcqRel);
            return Err(number);
        }
        Ok(())
    }

    fn collect(&self) -> Vec<Done> {
        // First the counter, then the completions: one that comes between them sets the counter again.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        let mut done = Vec::new();
        loop {
            let mut completions: [Handle; COLLECT_AT_ONCE] = [null_mut(); COLLECT_AT_ONCE];
            // SAFETY: the array has room for as many.
            let ended = unsafe {
                let most = COLLECT_AT_ONCE as c_int;
                (self.api.rbd_poll_io_events)(self.image.get(), completions.as_mut_ptr(), most)
            };
            let count = usize::try_from(ended).unwrap_or(0).min(COLLECT_AT_ONCE);
            for completion in &completions[..count] {
                done.push(self.end(*completion));
            }
            if count < COLLECT_AT_ONCE {
                return done;
            }
        }
    }

    fn end(&self, completion: Handle) -> Done {
        // SAFETY: the library gave the completion of a request that has ended; it is released once, and not used after.
        let (value, owned) = unsafe {
            let value = (self.api.rbd_aio_get_return_value)(completion);
            let owned = (self.api.rbd_aio_get_arg)(completion);
            (self.api.rbd_aio_release)(completion);
            (value, owned.cast::<Request>())
        };
        // SAFETY: the box was given away with the submission, and each completion is collected once.
        let request = unsafe { Box::from_raw(owned) };
        self.under_way.0.fetch_sub(1, Ordering::AcqRel);
        let Request { token, op, bytes, .. } = *request;
        let result = match (usize::try_from(value), op) {
            (Ok(read), Op::Read { into, .. }) if read == bytes => Ok(into),
            // Past the end of an image that was made smaller.
            (Ok(_), Op::Read { .. }) => Err(libc::EIO),
            (Ok(_), _) => Ok(Vec::new()),
            (Err(_), _) => Err(i32::try_from(-value).unwrap_or(libc::EIO)),
        };
        Done { token, result }
    }
}

/// Which function carries a request out.
#[derive(Clone, Copy)]
enum Call {
    Read,
    Write,
    Flush,
    Discard,
    Zeroes,
}

impl Call {
    fn of(op: &Op) -> Self {
        match op {
            Op::Read { .. } => Call::Read,
            Op::Write { .. } => Call::Write,
            Op::Flush => Call::Flush,
            Op::Discard { .. } => Call::Discard,
            Op::Zeroes { .. } => Call::Zeroes,
        }
    }
}

impl Request {
    /// Lists the buffers.
    fn point(&mut self) {
        let vector = |base: *mut u8, len| libc::iovec { iov_base: base.cast(), iov_len: len };
        match &mut self.op {
            Op::Read { into, .. } => {
                let bufs = into.iter_mut().filter(|buf| !buf.is_empty());
                self.vectors.extend(bufs.map(|buf| vector(buf.as_mut_ptr(), buf.len())));
            }
            Op::Write { data, .. } => {
                // The library reads there, and nothing else.
                let pieces = data.pieces().iter().filter(|piece| !piece.is_empty());
                self.vectors.extend(pieces.map(|it| vector(it.as_ptr().cast_mut(), it.len())));
            }
            Op::Flush | Op::Discard { .. } | Op::Zeroes { .. } => {}
        }
        self.bytes = self.vectors.iter().map(|vector| vector.iov_len).sum();
    }
}

/// What the thread of an image has.
struct Guard {
    inner: Arc<Inner>,
    connection: Connection,
    size_bytes: u64,
    /// The number of the watch over size and features.
    watch: Option<u64>,
    /// The last look found the lock with nobody: the library may just take it again, after a connection has broken.
    is_lock_free: bool,
    /// The id of the image.
    id: String,
    /// Given back last.
    place: Place,
}

/// The library calls this on a thread of its own when something about the image is new.
///
/// # Safety
/// The argument is an `Inner` that lives until the watch ends.
unsafe extern "C" fn note_change(inner: *mut c_void) {
    // SAFETY: as the caller promises.
    let inner = unsafe { &*inner.cast::<Inner>() };
    inner.state().is_changed = true;
    inner.changed.notify_all();
}

impl Guard {
    fn run(mut self) {
        self.begin_watch();
        let (mut steps, mut lives) = (0, 0);
        while let Some(is_changed) = self.wait() {
            // What cannot be written now is tried again, and what comes of the loss of the lock is found below.
            let _ = report::write(&self.connection, &self.place.0, &self.id);
            steps += 1;
            if !is_changed && steps < STEPS_TO_LOOK {
                continue;
            }
            (steps, lives) = (0, lives + 1);
            let _ = report::live(&self.connection, &self.id, lives);
            if let Some(loss) = self.loss() {
                self.inner.state().lost = Some(loss);
                self.inner.wake();
                break;
            }
        }
        self.wait_for_the_end();
        self.drain();
        // What the image says once somebody else may have it is theirs.
        if self.inner.state().lost.is_none() {
            let _ = report::write(&self.connection, &self.place.0, &self.id);
        }
        report::forget(&self.place.0);
        if let Some(watch) = self.watch.take() {
            // SAFETY: the image is a handle of the library. The library calls nothing after this.
            unsafe {
                (self.inner.api.rbd_update_unwatch)(self.connection.image(), watch);
            }
        }
        let Self { connection, place, inner, .. } = self;
        drop(connection);
        drop(inner);
        drop(place);
    }

    fn begin_watch(&mut self) {
        let mut watch = 0;
        let told = Arc::as_ptr(&self.inner).cast_mut().cast::<c_void>();
        // SAFETY: this thread holds the argument until it has ended the watch.
        let begun = errno(unsafe {
            (self.inner.api.rbd_update_watch)(
                self.connection.image(),
                &mut watch,
                note_change,
                told,
            )
        });
        self.watch = begun.is_ok().then_some(watch);
    }

    /// Waits for something new, or a while: whether there is something new. `None` when the image is in use no more.
    fn wait(&self) -> Option<bool> {
        let is_quiet = |state: &mut State| !state.is_closing && !state.is_changed;
        let waited =
            self.inner.changed.wait_timeout_while(self.inner.state(), REPORT_STEP, is_quiet);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_changed = std::mem::take(&mut state.is_changed);
        (!state.is_closing).then_some(is_changed)
    }

    fn wait_for_the_end(&self) {
        let waited = self.inner.changed.wait_while(self.inner.state(), |state| !state.is_closing);
        drop(waited);
    }

    /// Waits for all requests. Nobody waits for their results any more.
    fn drain(&self) {
        while self.inner.under_way.get() > 0 {
            let mut waited_for =
                [PollFd::from_borrowed_fd(self.inner.event.as_fd(), PollFlags::IN)];
            let _ = poll(&mut waited_for, Some(&DRAIN_STEP));
            drop(self.inner.collect());
        }
    }

    /// How the image is lost, if it is. A cluster that does not answer holds this thread, and no other.
    fn loss(&mut self) -> Option<Loss> {
        match self.connection.size() {
            Ok(is) if is < self.size_bytes => {
                return Some(Loss::Smaller { was: self.size_bytes, is });
            }
            Ok(_) => {}
            Err(number) => return Loss::of_errno(number),
        }
        match self.connection.has_lock_feature() {
            Ok(true) => {}
            Ok(false) => return Some(Loss::NoLockFeature),
            Err(number) => return Loss::of_errno(number),
        }
        let mut is_owner: c_int = 0;
        // SAFETY: the image is a handle of the library, and the result goes into a place of the right type.
        let asked = errno(unsafe {
            (self.inner.api.rbd_is_exclusive_lock_owner)(self.connection.image(), &mut is_owner)
        });
        if let Err(number) = asked {
            return Loss::of_errno(number);
        }
        // The library believes what it was told; the cluster knows.
        let was_free = std::mem::take(&mut self.is_lock_free);
        match owner::owners(&self.connection) {
            Ok(owners) if owners.is_empty() && !was_free => {
                self.is_lock_free = true;
                None
            }
            Ok(owners) if owners.iter().any(|owner| owner == self.connection.address()) => {
                (is_owner == 0).then_some(Loss::LockBroken)
            }
            Ok(owners) => Some(Loss::LockTaken(match owners.first() {
                Some(owner) if is_own(owner) => "this daemon".to_owned(),
                Some(owner) => owner.clone(),
                None => "nobody".to_owned(),
            })),
            Err(number) => Loss::of_errno(number),
        }
    }
}
