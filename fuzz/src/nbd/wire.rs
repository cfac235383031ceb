//! The sockets of a virtual world: scripted clients, one after the other, and what they are sent.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use voltier_block::{Bytes, Nanos};
use voltier_ring::{Errno, Fd, Op, OpOutcome, VirtualFiles};

/// Time of one receive or send.
const STEP_NS: Nanos = 10_000;
/// How long a silent client stays, and how long the server waits for one that never comes.
const SILENCE_NS: Nanos = 3_600_000_000_000;
const NEVER_NS: Nanos = 1 << 60;
/// When a client comes after the one before. A slow one is done by then, and a silent one gone, so that
/// what each reads depends on itself alone.
const NEXT_CLIENT_NS: Nanos = 2 * SILENCE_NS;

/// How many bytes go at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// From the client: 0 for all that fit.
    pub(super) receive_bytes: u8,
    /// To the client: 0 for all.
    pub(super) send_bytes: u8,
}

/// The behaviour of a client that has sent everything.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    HangUp,
    Reset,
    Silence,
}

/// One client.
pub(super) struct Script {
    pub(super) bytes: Vec<u8>,
    pub(super) pace: Pace,
    pub(super) end: End,
    /// The client takes no more than so many bytes: then sending to the client fails.
    pub(super) takes_bytes_max: usize,
}

/// The bytes that each client was sent.
pub(super) type Outputs = Rc<RefCell<Vec<Vec<u8>>>>;

struct Client {
    script: Script,
    sent: usize,
}

pub(super) struct Wire {
    waiting: std::vec::IntoIter<Script>,
    clients: Vec<Client>,
    /// The client of each descriptor, the last one when the number was used again.
    by_fd: BTreeMap<RawFd, usize>,
    outputs: Outputs,
}

impl Wire {
    pub(super) fn new(scripts: Vec<Script>, outputs: Outputs) -> Self {
        let waiting = scripts.into_iter();
        Self { waiting, clients: Vec::new(), by_fd: BTreeMap::new(), outputs }
    }

    fn accept(&mut self, now: Nanos) -> (Nanos, Result<u32, Errno>) {
        let Some(script) = self.waiting.next() else { return (NEVER_NS, Err(Errno::AGAIN)) };
        // A descriptor that the server can own: nothing is ever read from it.
        let fd = OwnedFd::from(File::open("/dev/null").expect("every system has it"));
        let fd = fd.into_raw_fd();
        self.by_fd.insert(fd, self.clients.len());
        self.clients.push(Client { script, sent: 0 });
        self.outputs.borrow_mut().push(Vec::new());
        (now + NEXT_CLIENT_NS, Ok(fd.cast_unsigned()))
    }

    fn receive(&mut self, fd: &Fd, buf: &mut [u8]) -> (Nanos, Result<u32, Errno>) {
        let client = &mut self.clients[self.by_fd[&fd.raw()]];
        let script = &client.script;
        let rest = &script.bytes[client.sent..];
        let most = match script.pace.receive_bytes {
            0 => usize::MAX,
            bytes => usize::from(bytes),
        };
        let count = rest.len().min(buf.len()).min(most);
        if count == 0 {
            return match script.end {
                End::HangUp => (STEP_NS, Ok(0)),
                End::Reset => (STEP_NS, Err(Errno::CONNRESET)),
                End::Silence => (SILENCE_NS, Ok(0)),
            };
        }
        buf[..count].copy_from_slice(&rest[..count]);
        client.sent += count;
        (STEP_NS, Ok(count as u32))
    }

    fn send(&mut self, fd: &Fd, data: &[Bytes]) -> Result<u32, Errno> {
        let number = self.by_fd[&fd.raw()];
        let script = &self.clients[number].script;
        let output = &mut self.outputs.borrow_mut()[number];
        let room = script.takes_bytes_max - output.len();
        if room == 0 {
            return Err(Errno::PIPE);
        }
        let most = match script.pace.send_bytes {
            0 => room,
            // Replies to reads are long: byte by byte they would take all day.
            bytes => room.min(usize::from(bytes) * 64),
        };
        let before = output.len();
        for piece in data {
            let left = most - (output.len() - before);
            output.extend(&piece[..piece.len().min(left)]);
        }
        Ok((output.len() - before) as u32)
    }
}

impl VirtualFiles for Wire {
    fn submit(&mut self, now: Nanos, op: Op) -> (Nanos, OpOutcome) {
        match op {
            Op::Accept { .. } => {
                let (at, result) = self.accept(now);
                (at.max(now), OpOutcome { result, buf: None, bufs: Vec::new() })
            }
            Op::Recv { fd, mut buf } => {
                assert!(!buf.is_empty(), "a receive into nothing never ends");
                let (time_ns, result) = self.receive(&fd, &mut buf);
                (now + time_ns, OpOutcome { result, buf: Some(buf), bufs: Vec::new() })
            }
            Op::Send { fd, data } => {
                let result = self.send(&fd, &data);
                (now + STEP_NS, OpOutcome { result, buf: None, bufs: Vec::new() })
            }
            other => panic!("no business of a server: {other:?}"),
        }
    }

    fn send_now(&mut self, fd: &Fd, pieces: &[Bytes]) -> Result<usize, Errno> {
        self.send(fd, pieces).map(|bytes| bytes as usize)
    }

    fn recv_now(&mut self, fd: &Fd, bufs: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        let mut received = 0;
        for buf in bufs {
            let client = &self.clients[self.by_fd[&fd.raw()]];
            if client.sent == client.script.bytes.len() {
                break;
            }
            let count = self.receive(fd, buf).1?;
            received += count as usize;
            if (count as usize) < buf.len() {
                break;
            }
        }
        if received == 0 { Err(Errno::AGAIN) } else { Ok(received) }
    }
}
