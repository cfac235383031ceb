//! The NBD server of one export, on the device's core.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use voltier_block::{BlockDevice, Nanos};
use voltier_nbd::escape;
use voltier_ring::{Errno, Handle, KeepAlive, Listener, Stream, StreamAddress, WakerCell};

use super::budget::{Budget, Seat, SharedSeat};
use super::connection::Connection;
use super::info::ExportInfo;
use super::link::{LOOKS_PER_STALL, Link};
use super::passed::{ClientNote, Kind, Passed, Told, Whose};
use crate::access::FileAccess;
use crate::bytes::ByteDevice;
use crate::counters::{CounterCell, ExportCounters};
use crate::error::ExportError;

/// How long requests in flight may take to finish when the server stops, in nanoseconds.
const STOP_NS: Nanos = 5_000_000_000;

/// How long clients that are connecting may take when the server leaves them to the next one, in nanoseconds.
const HANDSHAKE_NS: Nanos = 200_000_000;

/// How long to wait after a failed accept (no descriptor left, say), in nanoseconds.
const ACCEPT_RETRY_NS: Nanos = 100_000_000;

/// When a TCP peer that says nothing is asked whether it is there: after 60 s, then every 10 s. The peer is
/// gone after the sixth question without an answer.
const KEEP_ALIVE: KeepAlive = KeepAlive { idle_s: 60, interval_s: 10, questions: 6 };

/// Asked of the kernel for sockets, per direction: a burst of 256 replies of 4 KiB. The kernel
/// gives what `net.core.wmem_max` allows.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;

struct Shared {
    handle: Handle,
    info: Rc<ExportInfo>,
    counters: Arc<CounterCell>,
    budget: Arc<Budget>,
    /// The number of the export in the budget.
    export: u64,
    /// The outcome of the last accept, if it failed.
    accept_error: Cell<Option<Errno>>,
    links: RefCell<BTreeMap<u64, Rc<Link>>>,
    stopping: Cell<bool>,
    /// Another server is to go on with all clients.
    leaving: Cell<bool>,
    /// What that gets, and for whom.
    left: RefCell<Vec<Passed>>,
    whose: RefCell<Whose>,
    /// Whether clients are accepted.
    accepting: Cell<bool>,
    /// The number of the last connection.
    last_link: Cell<u64>,
    stopper: WakerCell,
    /// Wakes the watch when somebody waits for a peer.
    watch: Rc<WakerCell>,
    /// Wakes the watch out of its pause when the server stops.
    watch_end: WakerCell,
}

/// A running NBD server. Dropping it leaves it running; [`stop`](Self::stop) ends it.
pub struct NbdServer {
    shared: Rc<Shared>,
    listener: Listener,
}

impl NbdServer {
    /// Listens at `at` and serves `device` to every client, on this core, within the daemon's budget.
    ///
    /// A socket file on which nobody listens is replaced; `access` says who may open the new one. TCP
    /// port 0 asks the kernel for a free one: see [`address`](Self::address).
    ///
    /// # Errors
    /// When the address is in use, not permitted, or not a socket.
    pub fn start<D: BlockDevice>(
        handle: &Handle,
        device: Rc<ByteDevice<D>>,
        info: ExportInfo,
        at: &StreamAddress,
        access: FileAccess,
        budget: &Arc<Budget>,
    ) -> Result<Self, ExportError> {
        Self::start_with(handle, device, info, at, access, budget, Vec::new())
    }

    /// The same with what an earlier server [has left](Self::leave): its clients are served on. Those that rely on
    /// what the export is no more are hung up on.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with<D: BlockDevice>(
        handle: &Handle,
        device: Rc<ByteDevice<D>>,
        info: ExportInfo,
        at: &StreamAddress,
        access: FileAccess,
        budget: &Arc<Budget>,
        left: Vec<Passed>,
    ) -> Result<Self, ExportError> {
        let (mut listener, mut clients) = (None, Vec::new());
        for passed in left {
            match passed.kind() {
                Some(Kind::Listener) => {
                    listener = Some(Listener::from_owned(passed.socket, at.clone()));
                }
                Some(Kind::Fresh) => clients.push((passed.socket, None)),
                Some(Kind::Client(note)) => clients.push((passed.socket, Some(note))),
                None => {}
            }
        }
        let listener = listener.map_or_else(|| listen(at, access), Ok)?;
        handle.close_on_failure(listener.fd());
        let shared = Rc::new(Shared {
            handle: handle.clone(),
            info: Rc::new(info),
            counters: Arc::default(),
            budget: budget.clone(),
            export: budget.number_of_export(),
            accept_error: Cell::new(None),
            links: RefCell::default(),
            stopping: Cell::new(false),
            leaving: Cell::new(false),
            left: RefCell::default(),
            whose: RefCell::new(Whose { volume: [0; 16], at: listener.address().clone() }),
            accepting: Cell::new(true),
            last_link: Cell::new(0),
            stopper: WakerCell::default(),
            watch: Rc::default(),
            watch_end: WakerCell::default(),
        });
        drop(handle.spawn(watch_clients(shared.clone())));
        // Those that were let in before come first.
        clients.sort_by_key(|(_, note)| note.is_none());
        for (socket, note) in clients {
            let is_as_told =
                |note: &ClientNote| note.told == Told::of(&shared.info, note.point.structured);
            if note.as_ref().is_none_or(is_as_told) {
                let stream = Stream::from_owned(socket);
                handle.close_on_failure(stream.fd());
                admit(&shared, stream, &device, note);
            }
        }
        drop(handle.spawn(accept_clients(shared.clone(), listener.clone(), device)));
        Ok(Self { shared, listener })
    }

    /// The address of the server, with the port that the kernel chose.
    pub fn address(&self) -> &StreamAddress {
        self.listener.address()
    }

    /// The URI that NBD clients take (`nbd+unix:///NAME?socket=PATH`, `nbd://ADDRESS/NAME`).
    pub fn uri(&self) -> String {
        let name = escape(&self.shared.info.name);
        match self.address() {
            StreamAddress::Unix(path) => {
                // Clients may run in another folder.
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                format!("nbd+unix:///{name}?socket={}", escape(&path.to_string_lossy()))
            }
            StreamAddress::Tcp(address) => format!("nbd://{address}/{name}"),
        }
    }

    /// Why no client was accepted last, if that is so: no descriptor left, a socket that is broken.
    pub fn trouble(&self) -> Option<io::Error> {
        self.shared.accept_error.get().map(io::Error::from)
    }

    /// The counters so far.
    pub fn counters(&self) -> ExportCounters {
        self.shared.counters.get()
    }

    /// Takes no more clients and no more requests. Lets what is in flight finish for at most five
    /// seconds, closes every connection and removes the socket file.
    pub async fn stop(self) {
        let shared = &self.shared;
        shared.stopping.set(true);
        shared.watch.wake();
        shared.watch_end.wake();
        self.listener.shutdown();
        if let StreamAddress::Unix(path) = self.address() {
            // A socket that is gone already is what the server wants.
            let _ = fs::remove_file(path);
        }
        let links: Vec<_> = shared.links.borrow().values().cloned().collect();
        links.iter().for_each(|link| link.end());
        let finished = shared.stopper.until(|| shared.links.borrow().is_empty());
        if shared.handle.timeout(STOP_NS, finished).await.is_err() {
            let links: Vec<_> = shared.links.borrow().values().cloned().collect();
            links.iter().for_each(|link| link.abort());
        }
        // The watch sees the end.
        shared.handle.yield_now().await;
    }

    /// Takes no more requests of `volume`, and gives the listening socket and every client to the server that comes
    /// next, at its [start](Self::start_with). Clients see a pause. Those whose requests are not answered after
    /// `limit_ns` are hung up on, and so are those in a handshake that does not end.
    pub async fn leave(self, volume: [u8; 16], limit_ns: Nanos) -> Vec<Passed> {
        let shared = &self.shared;
        shared.whose.borrow_mut().volume = volume;
        shared.leaving.set(true);
        // What waits for a client, or for its bytes, comes back with what is there.
        shared.handle.cancel(self.listener.fd());
        let links = || -> Vec<_> { shared.links.borrow().values().cloned().collect() };
        for link in links() {
            link.leave();
            shared.handle.cancel(link.stream.fd());
        }
        let is_left = || shared.links.borrow().is_empty() && !shared.accepting.get();
        let greeted = shared.stopper.until(is_left);
        if shared.handle.timeout(HANDSHAKE_NS.min(limit_ns), greeted).await.is_err() {
            links().iter().filter(|link| !link.is_greeted()).for_each(|link| link.abort());
            let finished = shared.stopper.until(is_left);
            if shared.handle.timeout(limit_ns.saturating_sub(HANDSHAKE_NS), finished).await.is_err()
            {
                links().iter().for_each(|link| link.abort());
            }
        }
        shared.stopping.set(true);
        shared.watch.wake();
        shared.watch_end.wake();
        // The watch sees the end.
        shared.handle.yield_now().await;
        let listener = self.listener.fd().as_fd().try_clone_to_owned();
        let listener =
            listener.and_then(|fd| Passed::new(fd, &shared.whose.borrow(), &Kind::Listener));
        let mut left = shared.left.take();
        // Without it the next server listens anew.
        left.extend(listener);
        left
    }
}

async fn accept_clients<D: BlockDevice>(
    shared: Rc<Shared>,
    listener: Listener,
    device: Rc<ByteDevice<D>>,
) {
    let is_over = || shared.stopping.get() || shared.leaving.get();
    while !is_over() {
        let accepted = shared.handle.accept(&listener).await;
        if shared.leaving.get() {
            // A client that came at the last moment is the next server's.
            accepted.iter().for_each(|stream| shared.leave(stream, &Kind::Fresh));
            break;
        }
        if shared.stopping.get() {
            break;
        }
        shared.accept_error.set(accepted.as_ref().err().copied());
        match accepted {
            Ok(stream) => admit(&shared, stream, &device, None),
            Err(_) => shared.handle.sleep(ACCEPT_RETRY_NS).await,
        }
    }
    shared.accepting.set(false);
    shared.stopper.wake();
}

/// Serves a client, if there is room for one more.
fn admit<D: BlockDevice>(
    shared: &Rc<Shared>,
    stream: Stream,
    device: &Rc<ByteDevice<D>>,
    from: Option<ClientNote>,
) {
    let peer = stream.peer_address();
    let seat = match from {
        // It was let in before, and the order in which clients come now is by chance.
        Some(_) => Some(shared.budget.admit_again(shared.export, peer)),
        None => shared.budget.admit(shared.export, peer),
    };
    let Some(seat) = seat else {
        stream.shutdown();
        return;
    };
    shared.last_link.set(shared.last_link.get() + 1);
    open(shared, shared.last_link.get(), stream, seat, device.clone(), from);
}

impl Shared {
    /// Leaves a socket to the next server.
    fn leave(&self, stream: &Stream, kind: &Kind) {
        let socket = stream.fd().as_fd().try_clone_to_owned();
        match socket.and_then(|socket| Passed::new(socket, &self.whose.borrow(), kind)) {
            Ok(passed) => self.left.borrow_mut().push(passed),
            // No descriptor or no memory is left: the client connects again.
            Err(_) => stream.shutdown(),
        }
    }
}

/// Cuts connections whose peers do not move. Rests while nobody waits for a peer.
async fn watch_clients(shared: Rc<Shared>) {
    let look_ns = shared.budget.limits().stall_ns / LOOKS_PER_STALL;
    let is_needed = || shared.links.borrow().values().any(|link| link.waits());
    while !shared.stopping.get() {
        shared.watch.until(|| shared.stopping.get() || is_needed()).await;
        let stopped = shared.watch_end.until(|| shared.stopping.get());
        let _ = shared.handle.timeout(look_ns, stopped).await;
        let links: Vec<_> = shared.links.borrow().values().cloned().collect();
        for link in links.iter().filter(|link| link.is_stalled()) {
            link.abort();
        }
    }
}

fn open<D: BlockDevice>(
    shared: &Rc<Shared>,
    number: u64,
    stream: Stream,
    seat: Seat,
    device: Rc<ByteDevice<D>>,
    from: Option<ClientNote>,
) {
    // The first two only make things faster, and Unix sockets refuse the first and the last.
    let _ = stream.set_nodelay();
    let _ = stream.set_buffer_bytes(SOCKET_BUFFER_BYTES);
    let _ = stream.set_keep_alive(KEEP_ALIVE);
    let link = Rc::new(Link::new(stream, &shared.watch));
    shared.links.borrow_mut().insert(number, link.clone());
    shared.counters.connected();
    let (handle, shared) = (shared.handle.clone(), shared.clone());
    let seat = SharedSeat::new(seat);
    let others = seat.clone();
    let on_failure = handle.on_failure(move |_| others.leave());
    let task = async move {
        let (handle, info) = (shared.handle.clone(), shared.info.clone());
        let (counters, own) = (shared.counters.clone(), link.clone());
        let left = Connection::run(handle, own, device, info, counters, seat, from).await;
        if let Some(note) = left {
            shared.leave(&link.stream, &Kind::Client(note));
        }
        drop(on_failure);
        shared.counters.disconnected();
        shared.links.borrow_mut().remove(&number);
        shared.stopper.wake();
    };
    drop(handle.spawn(task));
}

fn listen(at: &StreamAddress, access: FileAccess) -> Result<Listener, ExportError> {
    let failed = |errno: Errno| ExportError::Listen {
        address: match at {
            StreamAddress::Unix(path) => path.display().to_string(),
            StreamAddress::Tcp(address) => address.to_string(),
        },
        source: errno.into(),
    };
    match at {
        StreamAddress::Tcp(address) => Listener::tcp(*address).map_err(failed),
        StreamAddress::Unix(path) => {
            clear_stale_socket(path)?;
            let mut refusal = None;
            let prepare = || access.apply(path).inspect_err(|errno| refusal = Some(*errno));
            Listener::unix(path, prepare).map_err(|errno| match refusal {
                Some(errno) => ExportError::Access(path.to_owned(), errno.into()),
                None => failed(errno),
            })
        }
    }
}

/// Removes a socket file that a dead server left; says so when the path is somebody else's.
fn clear_stale_socket(path: &Path) -> Result<(), ExportError> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(ExportError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|source| ExportError::Listen { address: path.display().to_string(), source }),
        _ => Err(ExportError::SocketInUse(path.to_owned())),
    }
}
