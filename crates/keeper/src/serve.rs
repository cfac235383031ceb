//! The process: a loop over the socket and its connections, without a thread beside it.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with};

use crate::wire::{self, Packet, Pair, VERSION, answer, ask};

/// Connections at a time: one daemon, and one that is being taken apart.
const CONNECTIONS_MAX: usize = 8;

struct Connection {
    socket: OwnedFd,
    /// No daemon is to be waited for after this one.
    is_last: bool,
}

/// Whether a connection goes on.
#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    HangUp,
    LetGo,
}

/// Keeps what daemons give, until there is nothing to keep: taken back, or not fetched by a daemon for `patience`.
/// `listener` is the socket of the state folder.
///
/// # Errors
/// When it is no such socket, or the kernel fails it.
pub fn serve(listener: &OwnedFd, patience: Duration) -> io::Result<()> {
    if !rustix::net::sockopt::socket_acceptconn(listener)? {
        return Err(ErrorKind::InvalidInput.into());
    }
    // A kill of the daemon's process group, or the end of its terminal, is not meant for the keeper.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    // A page that has to be read from the very volume that waits for the next daemon would never come.
    let _ = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT);
    let mut held = BTreeMap::new();
    let mut connections: Vec<Connection> = Vec::new();
    let mut alone_since = now();
    loop {
        let left = patience.saturating_sub(now().duration_since(alone_since));
        let wait = connections.is_empty().then_some(left);
        if wait.is_some_and(|left| left.is_zero()) {
            return Ok(());
        }
        let ready = ready(listener, &connections, wait)?;
        let mut rest = Vec::new();
        for (mut connection, is_ready) in connections.drain(..).zip(&ready[1..]) {
            let next = if *is_ready { take(&mut connection, &mut held) } else { Next::GoOn };
            match next {
                Next::GoOn => rest.push(connection),
                Next::LetGo => return Ok(()),
                Next::HangUp => {
                    alone_since = now();
                    if held.is_empty() || connection.is_last {
                        return Ok(());
                    }
                }
            }
        }
        connections = rest;
        if ready[0] {
            connections.extend(accept(listener).filter(|_| connections.len() < CONNECTIONS_MAX));
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "time of a process that does no I/O")]
fn now() -> Instant {
    Instant::now()
}

/// Waits; which of the sockets have something to say, the listener first.
fn ready(
    listener: &OwnedFd,
    connections: &[Connection],
    wait: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let sockets = connections.iter().map(|connection| &connection.socket);
    let sockets = [listener].into_iter().chain(sockets);
    let mut polled: Vec<PollFd<'_>> =
        sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
    let wait = wait.map(|wait| Timespec {
        tv_sec: wait.as_secs() as i64,
        tv_nsec: wait.subsec_nanos().into(),
    });
    match poll(&mut polled, wait.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(polled.iter().map(|it| !it.revents().is_empty()).collect())
}

/// Lets a daemon in: a process of the user of this one.
fn accept(listener: &OwnedFd) -> Option<Connection> {
    let socket = accept_with(listener, SocketFlags::CLOEXEC).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&socket).ok()?;
    let is_own = peer.uid == rustix::process::geteuid();
    // One that has hung up is asked for its last word like any other.
    is_own.then(|| say(&socket, answer::DONE, &[], None));
    is_own.then_some(Connection { socket, is_last: false })
}

/// Whether a daemon that waits for no answer any more has said to let go.
fn is_to_let_go(socket: &OwnedFd) -> bool {
    while let Ok(Some(packet)) = wire::receive(socket, RecvFlags::DONTWAIT) {
        if packet.bytes == wire::LET_GO {
            return true;
        }
    }
    false
}

/// Answers; whether the daemon takes the answer.
fn say(socket: &OwnedFd, kind: u8, rest: &[u8], pair: Option<&Pair>) -> bool {
    let pair = pair.map(|pair| [pair.device.as_fd(), pair.note.as_fd()]);
    wire::send(socket, &wire::packet(kind, rest), pair, SendFlags::DONTWAIT).is_ok()
}

/// Does what a daemon asks.
fn take(connection: &mut Connection, held: &mut BTreeMap<Vec<u8>, Pair>) -> Next {
    let packet = match wire::receive(&connection.socket, RecvFlags::DONTWAIT) {
        Ok(Some(packet)) => packet,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Next::GoOn,
        Ok(None) | Err(_) => return Next::HangUp,
    };
    let Packet { bytes, pair } = packet;
    if bytes == wire::LET_GO {
        return Next::LetGo;
    }
    let [VERSION, kind, rest @ ..] = &bytes[..] else { return Next::HangUp };
    let socket = &connection.socket;
    let done = |is_done| say(socket, if is_done { answer::DONE } else { answer::NO }, &[], None);
    let taken = match *kind {
        ask::PUT => {
            let is_whole = pair.is_some();
            held.extend(pair.map(|pair| (rest.to_vec(), pair)));
            done(is_whole)
        }
        ask::DROP => {
            // Closed before the answer: the daemon looks at the mount next.
            let is_held = held.remove(rest).is_some();
            done(is_held)
        }
        ask::LAST => {
            connection.is_last = true;
            done(true)
        }
        ask::FETCH => {
            let number = rest.try_into().map(u32::from_le_bytes).unwrap_or(u32::MAX);
            match held.iter().nth(number as usize) {
                Some((name, pair)) => say(socket, answer::HELD, name, Some(pair)),
                None => done(false),
            }
        }
        _ => done(false),
    };
    match taken {
        true => Next::GoOn,
        false if is_to_let_go(socket) => Next::LetGo,
        false => Next::HangUp,
    }
}
