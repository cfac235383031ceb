//! The connections of a world: bytes that go both ways, in pieces of any length.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use voltier_block::{Buf, Bytes, Nanos, Prng};
use voltier_ring::{Errno, Fd, Op, OpOutcome, Shutdown, Signal, VirtualFiles};

/// Time of one send, at most, and the longest piece that is drawn.
const SEND_NS: Nanos = 20_000;
const PIECE_BYTES: u64 = 3000;

#[derive(Default)]
struct Connection {
    to_server: VecDeque<u8>,
    to_client: VecDeque<u8>,
    /// A receive of the client that waits, by its number.
    receiving: Option<(u64, Buf)>,
    /// The client sends nothing more.
    is_shut: bool,
    /// The server is done.
    is_closed: bool,
    /// Told when the client has sent something, or is done.
    arrived: Rc<Signal>,
}

struct Inner {
    connections: RefCell<BTreeMap<u32, Connection>>,
    next: Cell<u32>,
    ended: RefCell<Vec<(u64, OpOutcome)>>,
    dice: RefCell<Prng>,
}

/// All connections of a world. Clones are the same wire.
#[derive(Clone)]
pub(crate) struct Wire(Rc<Inner>);

impl Wire {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rc::new(Inner {
            connections: RefCell::default(),
            next: Cell::new(0),
            ended: RefCell::default(),
            dice: RefCell::new(Prng::new(seed)),
        }))
    }

    /// A new connection, by its number.
    pub(super) fn connect(&self) -> u32 {
        let number = self.0.next.get();
        self.0.next.set(number + 1);
        self.0.connections.borrow_mut().insert(number, Connection::default());
        number
    }

    fn with<T>(&self, number: u32, look: impl FnOnce(&mut Connection) -> T) -> T {
        let mut connections = self.0.connections.borrow_mut();
        look(connections.get_mut(&number).expect("a connection stays for the life of its world"))
    }

    /// Waits for more than these bytes from the client, its end, or a [stir](Self::stir).
    pub(super) async fn more_than(&self, number: u32, bytes: usize) {
        let is_more = |it: &mut Connection| it.to_server.len() > bytes || it.is_shut;
        if !self.with(number, is_more) {
            let arrived = self.with(number, |it| it.arrived.clone());
            arrived.wait().await;
        }
    }

    /// Has whoever waits for the client look again.
    pub(super) fn stir(&self, number: u32) {
        self.with(number, |it| it.arrived.clone()).notify();
    }

    /// Looks at what the client has sent.
    pub(super) fn sent<T>(
        &self,
        number: u32,
        look: impl FnOnce(&mut VecDeque<u8>, bool) -> T,
    ) -> T {
        self.with(number, |it| look(&mut it.to_server, it.is_shut))
    }

    /// Sends to the client.
    pub(super) fn answer(&self, number: u32, bytes: &[u8]) {
        self.with(number, |it| it.to_client.extend(bytes));
        self.deliver(number);
    }

    /// The server is done.
    pub(super) fn close(&self, number: u32) {
        self.with(number, |it| it.is_closed = true);
        self.deliver(number);
    }

    /// Ends the receive that waits, if there is something for it.
    fn deliver(&self, number: u32) {
        let waiting = self.with(number, |it| it.receiving.take());
        let Some((operation, buf)) = waiting else { return };
        match self.receive(number, buf) {
            Ok(outcome) => self.0.ended.borrow_mut().push((operation, outcome)),
            Err(buf) => self.with(number, |it| it.receiving = Some((operation, buf))),
        }
    }

    /// What there is for the client: any part of it; the buffer back when there is nothing.
    fn receive(&self, number: u32, mut buf: Buf) -> Result<OpOutcome, Buf> {
        self.with(number, |it| {
            let most = buf.len().min(it.to_client.len());
            if most == 0 && !it.is_closed {
                return Err(buf);
            }
            let bytes = self.piece(most);
            for (into, byte) in buf.iter_mut().zip(it.to_client.drain(..bytes)) {
                *into = byte;
            }
            Ok(OpOutcome { result: Ok(bytes as u32), buf: Some(buf), bufs: Vec::new() })
        })
    }

    /// A part of so many bytes: all of them, or a few.
    fn piece(&self, most: usize) -> usize {
        let mut dice = self.0.dice.borrow_mut();
        if dice.one_in(3) { most.min(1 + dice.below(PIECE_BYTES) as usize) } else { most }
    }

    fn send(&self, number: u32, pieces: &[Bytes]) -> Result<usize, Errno> {
        let whole = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let taken = self.piece(whole);
        let arrived = self.with(number, |it| {
            if it.is_shut || it.is_closed {
                return Err(Errno::PIPE);
            }
            let bytes = pieces.iter().flat_map(|piece| piece.iter().copied());
            it.to_server.extend(bytes.take(taken));
            Ok(it.arrived.clone())
        });
        arrived?.notify();
        Ok(taken)
    }
}

fn number_of(fd: &Fd) -> u32 {
    match fd {
        Fd::Virtual(number) => *number,
        Fd::Real(_) => panic!("a world has no descriptors of the kernel"),
    }
}

impl VirtualFiles for Wire {
    fn submit(&mut self, _now: Nanos, op: Op) -> (Nanos, OpOutcome) {
        panic!("no business of a drive behind a wire: {op:?}")
    }

    fn begin(&mut self, now: Nanos, number: u64, op: Op) -> Option<(Nanos, OpOutcome)> {
        match op {
            Op::Send { fd, data } => {
                let result = self.send(number_of(&fd), &data).map(|bytes| bytes as u32);
                let done_at = now + self.0.dice.borrow_mut().below(SEND_NS);
                Some((done_at, OpOutcome { result, buf: None, bufs: Vec::new() }))
            }
            Op::Recv { fd, buf } => match self.receive(number_of(&fd), buf) {
                Ok(outcome) => Some((now, outcome)),
                Err(buf) => {
                    self.with(number_of(&fd), |it| it.receiving = Some((number, buf)));
                    None
                }
            },
            op => Some(self.submit(now, op)),
        }
    }

    fn ended(&mut self) -> Vec<(u64, OpOutcome)> {
        self.0.ended.take()
    }

    fn send_now(&mut self, fd: &Fd, pieces: &[Bytes]) -> Result<usize, Errno> {
        self.send(number_of(fd), pieces)
    }

    fn shutdown(&mut self, fd: &Fd, how: Shutdown) {
        let number = number_of(fd);
        let arrived = self.with(number, |it| {
            it.is_shut = true;
            if how == Shutdown::Both {
                it.to_client.clear();
                it.is_closed = true;
            }
            it.arrived.clone()
        });
        self.deliver(number);
        arrived.notify();
    }
}
