//! The NBD server of one export, on the device's core.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use voltier_block::{BlockDevice, Nanos};
use voltier_ring::{Errno, Handle, Listener, Stream, StreamAddress, WakerCell};

use super::connection::{Connection, Link};
use super::info::ExportInfo;
use crate::counters::{CounterCell, ExportCounters};
use crate::error::ExportError;

/// Connections open at once: 16 clients with 8 connections each. Further ones are closed at once.
const CONNECTIONS_MAX: u64 = 128;

/// How long requests in flight may take to finish when the server stops, in nanoseconds.
const STOP_NS: Nanos = 5_000_000_000;

/// How long to wait after a failed accept (no descriptor left, say), in nanoseconds.
const ACCEPT_RETRY_NS: Nanos = 100_000_000;

/// Asked of the kernel for sockets, per direction: a burst of 256 replies of 4 KiB. The kernel
/// gives what `net.core.wmem_max` allows.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;

struct Shared {
    handle: Handle,
    info: Rc<ExportInfo>,
    counters: Arc<CounterCell>,
    links: RefCell<BTreeMap<u64, Rc<Link>>>,
    stopping: Cell<bool>,
    stopper: WakerCell,
}

/// A running NBD server. Dropping it leaves it running; [`stop`](Self::stop) ends it.
pub struct NbdServer {
    shared: Rc<Shared>,
    listener: Listener,
}

impl NbdServer {
    /// Listens at `at` and serves `device` to every client, on this core.
    ///
    /// A socket file on which nobody listens is replaced; the new one is for its owner only (mode
    /// 0600). TCP port 0 asks the kernel for a free one: see [`address`](Self::address).
    ///
    /// # Errors
    /// When the address is in use, not permitted, or not a socket.
    pub fn start<D: BlockDevice>(
        handle: &Handle,
        device: Rc<D>,
        info: ExportInfo,
        at: &StreamAddress,
    ) -> Result<Self, ExportError> {
        let listener = listen(at)?;
        let shared = Rc::new(Shared {
            handle: handle.clone(),
            info: Rc::new(info),
            counters: Arc::default(),
            links: RefCell::default(),
            stopping: Cell::new(false),
            stopper: WakerCell::default(),
        });
        drop(handle.spawn(accept_clients(shared.clone(), listener.clone(), device)));
        Ok(Self { shared, listener })
    }

    /// Where it listens, with the port that the kernel chose.
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

    /// The counters so far.
    pub fn counters(&self) -> ExportCounters {
        self.shared.counters.get()
    }

    /// Takes no more clients and no more requests. Lets what is in flight finish for at most five
    /// seconds, closes every connection and removes the socket file.
    pub async fn stop(self) {
        let shared = &self.shared;
        shared.stopping.set(true);
        self.listener.shutdown();
        if let StreamAddress::Unix(path) = self.address() {
            // A socket that is gone already is what the server wants.
            let _ = fs::remove_file(path);
        }
        let links: Vec<_> = shared.links.borrow().values().cloned().collect();
        links.iter().for_each(|link| link.end());
        let mut timeout = pin!(shared.handle.sleep(STOP_NS));
        let finished = poll_fn(|context| {
            if shared.links.borrow().is_empty() {
                return Poll::Ready(true);
            }
            shared.stopper.register(context);
            timeout.as_mut().poll(context).map(|()| false)
        });
        if !finished.await {
            let links: Vec<_> = shared.links.borrow().values().cloned().collect();
            links.iter().for_each(|link| link.abort());
        }
    }
}

async fn accept_clients<D: BlockDevice>(shared: Rc<Shared>, listener: Listener, device: Rc<D>) {
    let mut number = 0;
    while !shared.stopping.get() {
        let accepted = shared.handle.accept(&listener).await;
        if shared.stopping.get() {
            return;
        }
        match accepted {
            Ok(stream) if shared.counters.get().connections_open < CONNECTIONS_MAX => {
                number += 1;
                open(&shared, number, stream, device.clone());
            }
            Ok(stream) => stream.shutdown(),
            Err(_) => shared.handle.sleep(ACCEPT_RETRY_NS).await,
        }
    }
}

fn open<D: BlockDevice>(shared: &Rc<Shared>, number: u64, stream: Stream, device: Rc<D>) {
    // Both only make things faster, and the first is refused by Unix sockets.
    let _ = stream.set_nodelay();
    let _ = stream.set_buffer_bytes(SOCKET_BUFFER_BYTES);
    let link = Rc::new(Link::new(stream));
    shared.links.borrow_mut().insert(number, link.clone());
    shared.counters.connected();
    let (handle, shared) = (shared.handle.clone(), shared.clone());
    let task = async move {
        let (handle, info) = (shared.handle.clone(), shared.info.clone());
        Connection::run(handle, link, device, info, shared.counters.clone()).await;
        shared.counters.disconnected();
        shared.links.borrow_mut().remove(&number);
        shared.stopper.wake();
    };
    drop(handle.spawn(task));
}

fn listen(at: &StreamAddress) -> Result<Listener, ExportError> {
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
            let listener = Listener::unix(path).map_err(failed)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o600))
                .map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
            Ok(listener)
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

/// Percent-encodes what a URI cannot hold as it is.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                escaped.push(char::from(byte));
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}
