//! The way to a server: names, sockets and the handshake.
//!
//! All of it waits for others: a resolver, a network, the server. So it runs on a thread of its caller's, and
//! ends after the caller's patience.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use voltier_block::Buf;

use crate::client::{Client, Event, Violation, request_header};
use crate::handshake::{Facts, Handshake, HandshakeError, Step};
use crate::proto;
use crate::uri::{ExportUri, Server};

/// Most connections to a server that takes several.
const CONNECTIONS_MAX: usize = 4;
/// How long a further connection may take, beside the first: a server that is told to serve one client takes
/// the connection and does not greet.
const FURTHER_PATIENCE: Duration = Duration::from_millis(500);
/// A peer that acknowledges nothing for so long is gone, in milliseconds.
const UNACKNOWLEDGED_MS: u32 = 15_000;
/// When a peer that says nothing is asked whether it is there, how often, and how many times.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(5), 3);

/// Why an export cannot be reached. Each is one line that names the server and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name of the host leads nowhere.
    #[error("the host `{host}` is not known ({source}); check the name, or give the address")]
    UnknownHost {
        /// The name.
        host: String,
        /// The resolver's words.
        source: io::Error,
    },
    /// Nobody listens there.
    #[error("no server listens at {server}; start it, or check host and port")]
    Refused {
        /// The server.
        server: String,
    },
    /// The socket file is not there.
    #[error("the socket {0} does not exist; start the server, or check the path")]
    NoSocket(PathBuf),
    /// The server, or the network in between, says nothing.
    #[error(
        "the server {server} does not answer; check the network, or whether it serves others alone"
    )]
    Silent {
        /// The server.
        server: String,
    },
    /// The server closed the connection.
    #[error("the server {server} has hung up ({during}); see its own log")]
    HungUp {
        /// The server.
        server: String,
        /// What was going on.
        during: &'static str,
    },
    /// The network failed in a way that has no better name.
    #[error("the server {server} cannot be reached: {source}; check the network")]
    Network {
        /// The server.
        server: String,
        /// The system's words.
        source: io::Error,
    },
    /// The server and this client do not agree.
    #[error("the server {server} does not serve it: {source}")]
    Handshake {
        /// The server.
        server: String,
        /// Why.
        source: HandshakeError,
    },
    /// The server sent what it should not.
    #[error("the server {server} sent {source}; use another server")]
    Violation {
        /// The server.
        server: String,
        /// What.
        source: Violation,
    },
    /// The server could not read its export.
    #[error("the server {server} cannot read the export (error {number}); see its own log")]
    Read {
        /// The server.
        server: String,
        /// The number.
        number: u32,
    },
}

/// Connections to an export, ready for requests.
#[derive(Debug)]
pub struct Connected {
    /// One, or several to a server that takes several.
    pub sockets: Vec<OwnedFd>,
    /// What the server says of the export.
    pub facts: Facts,
}

/// Connects to an export, with as many connections as its server takes, at most `most`.
///
/// Waits for at most `patience`, the resolver of names apart, and little longer for further connections.
///
/// # Errors
/// [`ConnectError`].
pub fn connect(
    uri: &ExportUri,
    most: usize,
    patience: Duration,
) -> Result<Connected, ConnectError> {
    let (first, facts) = Dialog::begin(uri, patience)?.handshake(&uri.export)?;
    let mut sockets = vec![first];
    let several = facts.has(proto::FLAG_CAN_MULTI_CONN);
    let most = if several { most.min(CONNECTIONS_MAX) } else { 1 };
    while sockets.len() < most {
        let further = Dialog::begin(uri, FURTHER_PATIENCE);
        match further.and_then(|dialog| dialog.handshake(&uri.export)) {
            Ok((socket, same)) if same == facts => sockets.push(socket),
            // What there is serves as well.
            _ => break,
        }
    }
    Ok(Connected { sockets, facts })
}

impl Connected {
    /// Reads from the export, on the first connection: `bytes` at most as long as the server takes.
    ///
    /// # Errors
    /// [`ConnectError`]; the connection is of no use then.
    pub fn read(
        &self,
        uri: &ExportUri,
        offset: u64,
        bytes: usize,
        patience: Duration,
    ) -> Result<Vec<u8>, ConnectError> {
        let socket = self.sockets[0].try_clone().map_err(|source| network(uri, source))?;
        let mut dialog = Dialog { socket: File::from(socket), uri, until: until(patience) };
        let mut client = Client::new(self.facts.structured);
        let cookie = client.begin((), Some((offset, vec![Buf::zeroed(bytes)])));
        let header = request_header(proto::CMD_READ, 0, cookie, offset, bytes as u32);
        dialog.send(&header)?;
        let mut unread = Vec::new();
        loop {
            let (used, event) = client.advance(&unread).map_err(|source| {
                ConnectError::Violation { server: uri.server.to_string(), source }
            })?;
            drop(unread.drain(..used));
            match event {
                Event::Used => {}
                Event::Need(_) => dialog.receive(&mut unread, "while it was read")?,
                Event::Ended((), Ok(bufs)) => {
                    return Ok(bufs.iter().flat_map(|buf| buf.to_vec()).collect());
                }
                Event::Ended((), Err(number)) => {
                    return Err(ConnectError::Read { server: uri.server.to_string(), number });
                }
            }
        }
    }

    /// Takes leave of the server, which needs no answer.
    pub fn leave(self) {
        let goodbye = request_header(proto::CMD_DISC, 0, 0, 0, 0);
        for socket in self.sockets {
            // A server that is gone already is what we want.
            let _ = File::from(socket).write_all(&goodbye);
        }
    }
}

fn network(uri: &ExportUri, source: io::Error) -> ConnectError {
    let server = uri.server.to_string();
    match source.kind() {
        ErrorKind::ConnectionRefused => ConnectError::Refused { server },
        ErrorKind::TimedOut | ErrorKind::WouldBlock => ConnectError::Silent { server },
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            ConnectError::HungUp { server, during: "the connection was reset" }
        }
        _ => ConnectError::Network { server, source },
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "on a thread of the caller's, where no simulation is"
)]
fn now() -> Instant {
    Instant::now()
}

fn until(patience: Duration) -> Instant {
    now() + patience
}

/// Connects to a Unix socket. A listener whose queue is full has the kernel wait, for as long as sending may take.
fn unix_connect(path: &Path, until: Instant) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let family = AddressFamily::UNIX;
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    loop {
        let left = until.saturating_duration_since(now()).max(Duration::from_millis(1));
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(left))?;
        match net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// A connection that is waited for.
struct Dialog<'a> {
    socket: File,
    uri: &'a ExportUri,
    until: Instant,
}

impl<'a> Dialog<'a> {
    fn begin(uri: &'a ExportUri, patience: Duration) -> Result<Self, ConnectError> {
        let until = until(patience);
        let socket = match &uri.server {
            Server::Unix(path) => match unix_connect(path, until) {
                Ok(socket) => socket,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return Err(ConnectError::NoSocket(path.clone()));
                }
                Err(error) => return Err(network(uri, error)),
            },
            Server::Tcp { host, port } => {
                let found = (host.as_str(), *port).to_socket_addrs();
                let mut addresses = found
                    .map_err(|source| ConnectError::UnknownHost { host: host.clone(), source })?;
                let mut last = io::Error::from(ErrorKind::NotFound);
                let stream = loop {
                    let Some(address) = addresses.next() else { return Err(network(uri, last)) };
                    let left = until.saturating_duration_since(now());
                    match TcpStream::connect_timeout(&address, left.max(Duration::from_millis(1))) {
                        Ok(stream) => break stream,
                        Err(error) => last = error,
                    }
                };
                // These make things faster, or find a dead peer sooner.
                let _ = stream.set_nodelay(true);
                let (idle, interval, questions) = KEEP_ALIVE;
                let _ = sockopt::set_socket_keepalive(&stream, true);
                let _ = sockopt::set_tcp_keepidle(&stream, idle);
                let _ = sockopt::set_tcp_keepintvl(&stream, interval);
                let _ = sockopt::set_tcp_keepcnt(&stream, questions);
                let _ = sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED_MS);
                OwnedFd::from(stream)
            }
        };
        Ok(Self { socket: File::from(socket), uri, until })
    }

    /// Negotiates; the socket and what the server says.
    fn handshake(mut self, export: &str) -> Result<(OwnedFd, Facts), ConnectError> {
        let (mut handshake, mut unread, mut out) = (Handshake::new(export), Vec::new(), Vec::new());
        loop {
            let step = handshake.step(&unread, &mut out).map_err(|source| {
                ConnectError::Handshake { server: self.uri.server.to_string(), source }
            })?;
            if !out.is_empty() {
                self.send(&out)?;
                out.clear();
            }
            match step {
                Step::Need(_) => self.receive(&mut unread, "during the handshake")?,
                Step::Used(used) => drop(unread.drain(..used)),
                Step::Begin(used, facts) => {
                    if used < unread.len() {
                        let source = HandshakeError::Violation("it answers what was not asked");
                        let server = self.uri.server.to_string();
                        return Err(ConnectError::Handshake { server, source });
                    }
                    self.set_timeout(None);
                    return Ok((OwnedFd::from(self.socket), facts));
                }
            }
        }
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        for which in [Timeout::Recv, Timeout::Send] {
            // A descriptor that is no socket has failed before.
            let _ = sockopt::set_socket_timeout(self.socket.as_fd(), which, timeout);
        }
    }

    /// Lets the next call wait for what is left of the patience.
    fn arm(&self) -> Result<(), ConnectError> {
        let left = self.until.saturating_duration_since(now());
        if left.is_zero() {
            return Err(ConnectError::Silent { server: self.uri.server.to_string() });
        }
        self.set_timeout(Some(left.max(Duration::from_millis(1))));
        Ok(())
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), ConnectError> {
        self.arm()?;
        self.socket.write_all(bytes).map_err(|error| network(self.uri, error))
    }

    fn receive(&mut self, unread: &mut Vec<u8>, during: &'static str) -> Result<(), ConnectError> {
        self.arm()?;
        let mut bytes = [0; 4096];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => {
                    let server = self.uri.server.to_string();
                    return Err(ConnectError::HungUp { server, during });
                }
                Ok(received) => {
                    unread.extend(&bytes[..received]);
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => self.arm()?,
                Err(error) => return Err(network(self.uri, error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_accepts_nobody_is_waited_for_as_long_as_the_patience_lasts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let family = AddressFamily::UNIX;
        let listener = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let listener = listener.unwrap();
        net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        net::listen(&listener, 0).unwrap();
        let uri = ExportUri { server: Server::Unix(path.clone()), export: "disk".to_owned() };
        // The first ones are let into the queue, and say nothing all the same.
        let _queued = [(); 3].map(|()| unix_connect(&path, until(Duration::from_millis(20))));
        let refused = connect(&uri, 1, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(refused, ConnectError::Silent { .. }), "{refused}");
    }
}
