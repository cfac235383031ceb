//! An NBD server before a simulated drive, which breaks connections, dies and comes back.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, DriveControl, Durability, IoResult, Lba, Nanos, Prng, SectorRange,
};
use voltier_drive::Links;
use voltier_nbd::{Facts, proto};
use voltier_ring::{Fd, Stream};

use super::wire::Wire;
use crate::disk::SimDisk;
use crate::fault::FaultKind;
use crate::world::World;

/// Longest time of a message on its way, of a pause in which nothing arrives, and in which a server is away.
const DELAY_NS: Nanos = 200_000;
const STALL_NS: Nanos = 300_000_000;
const AWAY_NS: Nanos = 2_000_000_000;
/// Longest time for which a bad network is cut, and one answer in so many comes twice there.
const CUT_NS: Nanos = 12_000_000_000;
const REPEATED_ONE_IN: u64 = 150;
/// How often a server that ends looks whether its drive has ended what it had.
const LOOK_NS: Nanos = 1_000_000;
/// Faults in one life, at most, and the longest times between them.
const FAULTS_MAX: u64 = 20;
const RESTS_NS: [Nanos; 4] = [20_000_000, 200_000_000, 500_000_000, 2_000_000_000];
/// All that a client may have to wait for one fault.
const OUTAGE_NS: Nanos = 25_000_000_000;

/// One connection, as the server sees it.
struct Link {
    number: u32,
    /// Requests that the drive has.
    working: Cell<usize>,
    /// Nothing is answered any more: the connection is to be closed.
    is_frozen: Cell<bool>,
    /// Every request is refused: the server is ending.
    is_ending: Cell<bool>,
    stalled_until: Cell<Nanos>,
}

pub(super) struct Server {
    pub(super) disk: SimDisk,
    world: World,
    wire: Wire,
    dice: RefCell<Prng>,
    /// Of a bad network.
    bad_dice: Option<RefCell<Prng>>,
    facts: Facts,
    links_max: u64,
    links: RefCell<Vec<Rc<Link>>>,
    is_away: Cell<bool>,
    /// It has lost what was not flushed, at least once.
    has_died: Cell<bool>,
    is_faulty: Cell<bool>,
    /// A drive of this process has had everything made durable. Before that, what a killed process wrote and nobody
    /// flushed would be lost with the server, and the clients' model of a kill keeps it.
    has_flushed: Cell<bool>,
}

/// One request.
struct Request {
    header: [u8; proto::REQUEST_BYTES],
    data: Vec<u8>,
}

fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Server {
    pub(super) fn new(
        world: &World,
        wire: &Wire,
        disk: SimDisk,
        mut dice: Prng,
        is_bad: bool,
    ) -> Rc<Self> {
        let limits = disk.limits();
        // Dice of its own: a network that is not bad is as it was.
        let bad_dice = is_bad.then(|| RefCell::new(Prng::new(!dice.clone().next_u64())));
        let always = proto::FLAG_HAS_FLAGS | proto::FLAG_SEND_FLUSH | proto::FLAG_CAN_MULTI_CONN;
        let some = [proto::FLAG_SEND_FUA, proto::FLAG_SEND_TRIM, proto::FLAG_SEND_WRITE_ZEROES];
        let facts = Facts {
            bytes: limits.bytes(),
            flags: some.into_iter().filter(|_| !dice.one_in(4)).fold(always, |all, it| all | it),
            structured: dice.one_in(2),
            minimum_bytes: limits.block_bytes,
            preferred_bytes: 4096,
            maximum_bytes: *dice.pick(&[64 << 10, 1 << 20, 32 << 20]),
        };
        Rc::new(Self {
            disk,
            world: world.clone(),
            wire: wire.clone(),
            facts,
            links_max: 1 + dice.below(4),
            dice: RefCell::new(dice),
            bad_dice,
            links: RefCell::default(),
            is_away: Cell::new(false),
            has_died: Cell::new(false),
            is_faulty: Cell::new(false),
            has_flushed: Cell::new(false),
        })
    }

    pub(super) fn has_died(&self) -> bool {
        self.has_died.get()
    }

    fn below(&self, bound: u64) -> u64 {
        self.dice.borrow_mut().below(bound)
    }

    async fn pass(&self, time_ns: Nanos) {
        self.world.handle().sleep(self.below(time_ns)).await;
    }

    /// Lets a client in.
    pub(super) async fn connect(self: Rc<Self>) -> Result<Links, String> {
        self.pass(DELAY_NS).await;
        if self.is_away.get() {
            return Err("nobody listens".to_owned());
        }
        Ok(self.let_in())
    }

    pub(super) fn let_in(self: &Rc<Self>) -> Links {
        let streams = (0..self.links_max).map(|_| {
            let number = self.wire.connect();
            let link = Rc::new(Link {
                number,
                working: Cell::new(0),
                is_frozen: Cell::new(self.is_away.get()),
                is_ending: Cell::new(false),
                stalled_until: Cell::new(0),
            });
            self.links.borrow_mut().push(link.clone());
            drop(self.world.handle().spawn(self.clone().serve(link)));
            Stream::over(Fd::Virtual(number))
        });
        Links { streams: streams.collect(), facts: self.facts }
    }

    /// Takes requests from a connection until its client, or the server, is done.
    async fn serve(self: Rc<Self>, link: Rc<Link>) {
        let mut seen = 0;
        while !link.is_frozen.get() {
            self.wire.more_than(link.number, seen).await;
            self.world.handle().sleep_until(link.stalled_until.get()).await;
            if link.is_frozen.get() {
                break;
            }
            let (request, left, is_shut) = self
                .wire
                .sent(link.number, |bytes, is_shut| (take_request(bytes), bytes.len(), is_shut));
            let Some(request) = request else {
                if is_shut {
                    break;
                }
                seen = left;
                continue;
            };
            seen = 0;
            if be(&request.header[6..8]) == u64::from(proto::CMD_DISC) {
                break;
            }
            if link.is_ending.get() {
                self.answer(&link, &request, Err(proto::SHUTDOWN));
                continue;
            }
            link.working.set(link.working.get() + 1);
            let (own, of) = (self.clone(), link.clone());
            drop(self.world.handle().spawn(async move { own.work(&of, request).await }));
        }
        self.close(&link).await;
    }

    /// Ends a connection, when the drive has ended what it had of it.
    async fn close(&self, link: &Link) {
        while link.working.get() > 0 {
            self.world.handle().sleep(LOOK_NS).await;
        }
        self.wire.close(link.number);
        self.links.borrow_mut().retain(|it| it.number != link.number);
    }

    async fn work(&self, link: &Link, request: Request) {
        self.pass(DELAY_NS).await;
        // What a server that breaks a connection has not begun, it may do or leave.
        if !link.is_frozen.get() || self.below(2) == 0 {
            let result = self.carry_out(&request).await;
            self.pass(DELAY_NS).await;
            self.world.handle().sleep_until(link.stalled_until.get()).await;
            if !link.is_frozen.get() {
                self.answer(link, &request, result);
            }
        }
        link.working.set(link.working.get() - 1);
    }

    async fn carry_out(&self, request: &Request) -> Result<Vec<u8>, u32> {
        let header = &request.header;
        let (flags, kind) = (be(&header[4..6]) as u16, be(&header[6..8]) as u16);
        let (offset, length) = (be(&header[16..24]), be(&header[24..28]));
        let range = SectorRange::from_bytes(offset, length);
        let is_durable = flags & proto::CMD_FLAG_FUA != 0;
        let durability = if is_durable { Durability::Durable } else { Durability::Cached };
        let done: IoResult<()> = match kind {
            proto::CMD_READ => {
                let read = self.disk.read(Lba(offset / 512), Buf::new(length as usize)).await;
                return read.map(|data| data.to_vec()).map_err(|error| error.errno() as u32);
            }
            proto::CMD_WRITE => {
                let data = Buf::copy_of(&request.data).freeze();
                self.disk.write(range.start, data.into(), durability).await
            }
            proto::CMD_WRITE_ZEROES => self.disk.write_zeroes(range, durability).await,
            proto::CMD_TRIM => self.disk.discard(range).await,
            proto::CMD_FLUSH => self.disk.flush().await,
            kind => panic!("no command of this drive: {kind}"),
        };
        if done.is_err() {
            // A server of the kernel's has seen to it when it says so.
            self.disk.forget_failed_flush();
        } else if kind == proto::CMD_FLUSH {
            self.has_flushed.set(true);
        }
        done.map(|()| Vec::new()).map_err(|error| error.errno() as u32)
    }

    fn answer(&self, link: &Link, request: &Request, result: Result<Vec<u8>, u32>) {
        let (cookie, offset) = (&request.header[8..16], &request.header[16..24]);
        let is_read = be(&request.header[6..8]) == u64::from(proto::CMD_READ);
        let mut bytes = Vec::new();
        let mut chunk = |flags: u16, kind: u16, data: &[u8]| {
            bytes.extend(proto::STRUCTURED_REPLY_MAGIC.to_be_bytes());
            bytes.extend(flags.to_be_bytes());
            bytes.extend(kind.to_be_bytes());
            bytes.extend(cookie);
            bytes.extend((data.len() as u32).to_be_bytes());
            bytes.extend(data);
        };
        match result {
            Ok(data) if self.facts.structured && is_read => {
                let middle = self.below(data.len() as u64 / 512 + 1) as usize * 512;
                let start = be(offset);
                // The end comes first, and neither part is empty.
                for part in [middle..data.len(), 0..middle].into_iter().filter(|it| !it.is_empty())
                {
                    let place = (start + part.start as u64).to_be_bytes();
                    let data = [&place[..], &data[part]].concat();
                    chunk(0, proto::REPLY_TYPE_OFFSET_DATA, &data);
                }
                chunk(proto::REPLY_FLAG_DONE, proto::REPLY_TYPE_NONE, &[]);
            }
            Err(number) if self.facts.structured && is_read => {
                let data = [&number.to_be_bytes()[..], &[0; 2]].concat();
                chunk(proto::REPLY_FLAG_DONE, proto::REPLY_TYPE_ERROR, &data);
            }
            result => {
                let number = result.as_ref().err().copied().unwrap_or(0);
                bytes.extend(proto::SIMPLE_REPLY_MAGIC.to_be_bytes());
                bytes.extend(number.to_be_bytes());
                bytes.extend(cookie);
                bytes.extend(result.unwrap_or_default());
            }
        }
        self.wire.answer(link.number, &bytes);
        if self.is_faulty.get() && self.is_bad(REPEATED_ONE_IN) {
            self.world.fault(FaultKind::RepeatedAnswer);
            self.tell("answers twice");
            self.wire.answer(link.number, &bytes);
        }
    }

    /// Once in so many times, on a bad network.
    fn is_bad(&self, one_in: u64) -> bool {
        self.bad_dice.as_ref().is_some_and(|dice| dice.borrow_mut().one_in(one_in))
    }

    /// How long nothing passes of a connection.
    fn stall_ns(&self) -> Nanos {
        let stall_ns = self.below(STALL_NS);
        match &self.bad_dice {
            Some(dice) if self.is_bad(3) => dice.borrow_mut().below(CUT_NS),
            _ => stall_ns,
        }
    }

    /// Has faults happen from now on.
    pub(super) fn go_wrong(self: &Rc<Self>) {
        if !self.is_faulty.replace(true) {
            drop(self.world.handle().spawn(self.clone().fail_in_turn()));
        }
    }

    /// No further fault happens.
    pub(super) fn mend(&self) {
        self.is_faulty.set(false);
    }

    async fn fail_in_turn(self: Rc<Self>) {
        let rest_ns = *self.dice.borrow_mut().pick(&RESTS_NS);
        for _ in 0..FAULTS_MAX {
            self.pass(rest_ns).await;
            if !self.is_faulty.get() {
                return;
            }
            self.world.note_slow(OUTAGE_NS);
            match self.below(8) {
                0..2 if self.has_flushed.get() => self.die().await,
                0..5 => {
                    self.world.fault(FaultKind::BrokenConnection);
                    let links = self.links.borrow().clone();
                    if !links.is_empty() {
                        let link = &links[self.below(links.len() as u64) as usize];
                        self.tell("breaks a connection");
                        self.freeze(link);
                    }
                }
                5 => {
                    self.world.fault(FaultKind::BrokenConnection);
                    self.tell("is ending");
                    let links = self.links.borrow().clone();
                    links.iter().for_each(|link| link.is_ending.set(true));
                    self.pass(STALL_NS).await;
                    links.iter().for_each(|link| self.freeze(link));
                }
                _ => {
                    let now = self.world.handle().now();
                    self.tell("has no network");
                    for link in self.links.borrow().iter() {
                        link.stalled_until.set(now + self.stall_ns());
                    }
                }
            }
        }
    }

    fn tell(&self, what: &str) {
        self.world.tell(|| format!("fault: the server {what}"));
    }

    fn freeze(&self, link: &Link) {
        link.is_frozen.set(true);
        // Its task may wait for more.
        self.wire.stir(link.number);
    }

    /// Loses what was not flushed, and all connections, and is away for a while.
    async fn die(&self) {
        self.world.fault(FaultKind::ServerDeath);
        self.tell("dies");
        self.is_away.set(true);
        self.has_died.set(true);
        let links = self.links.borrow().clone();
        links.iter().for_each(|link| link.is_frozen.set(true));
        // The kernel of a process that ends waits for what its drives have.
        while links.iter().any(|link| link.working.get() > 0) {
            self.world.handle().sleep(LOOK_NS).await;
        }
        self.disk.forget_unflushed();
        links.iter().for_each(|link| self.wire.stir(link.number));
        self.pass(AWAY_NS).await;
        self.is_away.set(false);
        self.tell("is back");
    }
}

/// The request at the front of what has come.
fn take_request(bytes: &mut std::collections::VecDeque<u8>) -> Option<Request> {
    if bytes.len() < proto::REQUEST_BYTES {
        return None;
    }
    let mut header = [0; proto::REQUEST_BYTES];
    for (into, byte) in header.iter_mut().zip(bytes.iter()) {
        *into = *byte;
    }
    assert_eq!(be(&header[..4]), u64::from(proto::REQUEST_MAGIC), "out of step");
    let is_write = be(&header[6..8]) == u64::from(proto::CMD_WRITE);
    let length = if is_write { be(&header[24..28]) as usize } else { 0 };
    if bytes.len() < header.len() + length {
        return None;
    }
    drop(bytes.drain(..header.len()));
    Some(Request { header, data: bytes.drain(..length).collect() })
}
