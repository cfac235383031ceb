//! An export of an NBD server as a drive.
//!
//! ```text
//! request -> device -> session (1 to 4 connections) -> server
//!               |          ends when one of them breaks, or the server does not keep to the protocol
//!               '- a new session: size and flags as before, what no flush covered again, then what was
//!                  under way
//! ```
//!
//! A request waits while there is no session. So a server that comes back is seen as a pause, and one that does
//! not is a drive that does not answer: the deadlines of caches and arrays deal with it as with any other.
//!
//! **Order.** What was answered is made again before anything else, in the order of the answers; then come the
//! requests that had no answer. The latter may have been carried out before: each is a change to fixed sectors,
//! so twice is as good as once. Layers above send no two changes of the same sectors at once.
//!
//! **Requests of before.** A server could carry out a request of a broken connection *after* it has answered later
//! ones on a new connection. So a connection that is given up stays, shut down for writing, until the server has
//! answered what it had, or has closed its end; nothing is sent on new ones before ([`Held`]). The layers above see
//! the same count, also when the drive is gone. What no client can rule out is a server that closes a connection and
//! goes on with its requests, and a host behind a network that was cut for longer than TCP waits.

mod held;
mod outage;
mod session;
mod unflushed;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, DriveControl, Durability, GIB, IoError, IoResult, Lba, Limits,
    MIB, Nanos, Payload, SECTOR_BYTES, SectorRange, UnderWay, zero_writes,
};
use voltier_nbd::{Facts, proto};
use voltier_ring::{Handle, OnFailure, Signal, join_all};

pub use held::Held;
pub use outage::NbdNews;
use outage::Outage;
pub use session::Links;
use session::{Answer, Asked, Owner, Session};
use unflushed::{Change, Unflushed};

/// Largest block that a server may insist on, in bytes.
const BLOCK_BYTES_MAX: u32 = 4096;
/// Longest transfer that is sent, in bytes, whatever the server takes.
const TRANSFER_BYTES_MAX: u32 = 32 << 20;
/// Preferred sizes above this are not passed on, in bytes.
const PREFERRED_BYTES_MAX: u32 = 1 << 20;
/// Longest range that is given up with one request.
const TRIM_SECTORS: u64 = GIB / SECTOR_BYTES;
/// Bytes per write where zeroes have to be written by hand.
const ZEROES_BYTES: u64 = MIB;
/// Changes that are made again at once.
const AGAIN_AT_ONCE: usize = 64;
/// How long a server that has let us in again has for requests of the connections before, in nanoseconds: at least,
/// for what it does after a connection has ended; and at most, as long as the kernel takes to call a silent host dead.
const SETTLE_NS: Nanos = 100_000_000;
const SETTLE_NS_MAX: Nanos = 20_000_000_000;
/// How often it is looked whether the server has ended them, in nanoseconds.
const SETTLE_LOOK_NS: Nanos = 10_000_000;
/// Sessions in a row in which a server refuses to make a change again, after which the drive ends.
const REFUSED_MAX: u32 = 8;
/// A session that has lasted so long stands, also if nothing was asked of it, in nanoseconds.
const STANDS_NS: Nanos = 10_000_000_000;

/// Connections under way to the server, or one line that says why there are none.
pub type Connecting = Pin<Box<dyn Future<Output = Result<Links, String>>>>;

/// Why an export cannot be a drive, in one line that stands behind its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NbdRefusal {
    /// The blocks are too large.
    #[error(
        "takes requests of whole blocks of {0} bytes alone, and Voltier sends blocks of at most {BLOCK_BYTES_MAX}; \
         have the server take smaller ones"
    )]
    BlockSize(u32),
    /// There is not one block.
    #[error("has {0} bytes, less than one block; make it larger first")]
    TooSmall(u64),
}

/// What a device knows a request by.
enum Then {
    Read,
    /// A change that is made again.
    Again,
    /// A change, and whether it is durable when it is answered.
    Changed(SectorRange, Change, bool),
    /// A flush: what it covers, and the flushes that had failed when it began.
    Flushed(u64, u64),
}

struct Shared {
    handle: Handle,
    /// What every session must have, as the first one had.
    facts: Facts,
    block_bytes: u32,
    max_transfer_bytes: u32,
    connect: Box<dyn Fn() -> Connecting>,
    tell: Box<dyn Fn(NbdNews)>,
    session: RefCell<Option<Rc<Session<Shared>>>>,
    /// Told when there is a session, and at the end.
    changed: Signal,
    unflushed: RefCell<Unflushed>,
    /// Told when changes were made durable.
    has_room: Signal,
    /// A flush of the device's own is under way, to have room again.
    is_making_room: Cell<bool>,
    /// As a file's: after one flush has failed no other may claim that all is well, before the owner has seen to
    /// the writes.
    flush_failed: Cell<bool>,
    failed_flushes: Cell<u64>,
    /// The one in which changes are made again.
    preparing: RefCell<Option<Rc<Session<Shared>>>>,
    /// Sessions in a row in which the server refused to make a change again.
    refused: Cell<u32>,
    /// The last session ended with requests under way.
    left_requests: Cell<bool>,
    outage: Outage,
    /// The requests of all sessions that the server has.
    held: Held,
    _on_failure: OnFailure,
    has_ended: Cell<bool>,
}

/// A drive behind an NBD server. Dropping it disconnects.
pub struct NbdDevice {
    shared: Rc<Shared>,
    limits: Limits,
}

impl NbdDevice {
    /// A device over connections that exist. `connect` makes new ones when these have ended, and `tell` hears
    /// about that.
    ///
    /// # Errors
    /// [`NbdRefusal`], for an export that cannot be a drive.
    pub fn new(
        handle: &Handle,
        links: Links,
        connect: impl Fn() -> Connecting + 'static,
        tell: impl Fn(NbdNews) + 'static,
    ) -> Result<Self, NbdRefusal> {
        let facts = links.facts;
        let limits = limits_of(&facts)?;
        let held = Held::default();
        let lost = held.clone();
        let shared = Rc::new(Shared {
            handle: handle.clone(),
            facts,
            block_bytes: limits.block_bytes,
            max_transfer_bytes: limits.max_transfer_bytes,
            connect: Box::new(connect),
            tell: Box::new(tell),
            session: RefCell::default(),
            changed: Signal::new(),
            unflushed: RefCell::default(),
            has_room: Signal::new(),
            is_making_room: Cell::new(false),
            flush_failed: Cell::new(false),
            failed_flushes: Cell::new(0),
            preparing: RefCell::default(),
            refused: Cell::new(0),
            left_requests: Cell::new(false),
            outage: Outage::default(),
            _on_failure: handle.on_failure(move |_| lost.lose_sight()),
            held,
            has_ended: Cell::new(false),
        });
        let session = Session::begin(handle, &shared, links, &shared.held);
        shared.session.replace(Some(session));
        Ok(Self { shared, limits })
    }

    /// Bytes at the end of the export that are not used, because they do not fill a block.
    pub fn unused_tail_bytes(&self) -> u64 {
        self.shared.facts.bytes - self.limits.bytes()
    }

    /// Connections to the server now; none while there is no session.
    pub fn connections(&self) -> usize {
        self.shared.session.borrow().as_ref().map_or(0, |session| session.connections())
    }

    /// The requests that the server has, also when the drive is gone.
    pub fn held(&self) -> Held {
        self.shared.held.clone()
    }

    fn has(&self, flags: u16) -> bool {
        self.shared.facts.has(flags)
    }

    /// Reads into buffers what lies behind one another, as one request.
    async fn read_at_once(&self, at: Lba, bufs: Vec<Buf>) -> IoResult<Vec<Buf>> {
        let length = bufs.iter().map(|buf| buf.len()).sum::<usize>() as u32;
        let asked =
            || Asked { kind: proto::CMD_READ, flags: 0, offset: at.bytes(), length, data: None };
        self.shared.request(asked, || Then::Read, bufs).await
    }

    /// Makes a change, as one request.
    async fn change(&self, range: SectorRange, change: Change, durable: bool) -> IoResult<()> {
        self.shared.change(range, change, durable).await
    }

    /// Ends a change that was to be durable.
    async fn made_durable(&self, durable: bool) -> IoResult<()> {
        if durable && !self.has(proto::FLAG_SEND_FUA) { self.shared.sync().await } else { Ok(()) }
    }

    async fn zero(&self, range: SectorRange, flags: u16, durability: Durability) -> IoResult<()> {
        let durable = durability == Durability::Durable;
        let step = u64::from(self.limits.max_transfer_bytes) / SECTOR_BYTES;
        for part in parts(range, step) {
            self.change(part, Change::Zeroes(flags), durable).await?;
        }
        self.made_durable(durable).await
    }
}

/// A range in parts of at most so many sectors.
fn parts(range: SectorRange, sectors: u64) -> impl Iterator<Item = SectorRange> {
    (0..range.count.div_ceil(sectors)).map(move |part| {
        let start = part * sectors;
        SectorRange::new(range.start.plus(start), sectors.min(range.count - start))
    })
}

fn limits_of(facts: &Facts) -> Result<Limits, NbdRefusal> {
    if facts.minimum_bytes > BLOCK_BYTES_MAX {
        return Err(NbdRefusal::BlockSize(facts.minimum_bytes));
    }
    let block_bytes = if facts.minimum_bytes <= 512 { 512 } else { BLOCK_BYTES_MAX };
    if facts.bytes < u64::from(block_bytes) || facts.maximum_bytes < block_bytes {
        return Err(NbdRefusal::TooSmall(facts.bytes.min(facts.maximum_bytes.into())));
    }
    let transfer_bytes = facts.maximum_bytes.min(TRANSFER_BYTES_MAX);
    let trims = facts.has(proto::FLAG_SEND_TRIM);
    Ok(Limits {
        sectors: facts.bytes / u64::from(block_bytes) * u64::from(block_bytes) / SECTOR_BYTES,
        block_bytes,
        preferred_bytes: facts.preferred_bytes.clamp(block_bytes, PREFERRED_BYTES_MAX),
        max_transfer_bytes: transfer_bytes - transfer_bytes % block_bytes,
        // The protocol promises nothing about what was given up.
        after_discard: if trims { AfterDiscard::Anything } else { AfterDiscard::Unchanged },
        cheap_zeroes: facts.has(proto::FLAG_SEND_WRITE_ZEROES),
        volatile_cache: facts.has(proto::FLAG_SEND_FLUSH),
        read_only: facts.has(proto::FLAG_READ_ONLY),
        rotational: facts.has(proto::FLAG_ROTATIONAL),
        ..Limits::plain(facts.bytes)
    })
}

/// The block layer's error for one of the protocol. `EINVAL` is no error of ours: ranges are checked here.
fn io_error(number: u32) -> IoError {
    match number {
        1 => IoError::ReadOnly,
        28 => IoError::NoSpace,
        95 => IoError::Unsupported,
        _ => IoError::Medium,
    }
}

impl Shared {
    /// The session, when there is one.
    async fn session(&self) -> IoResult<Rc<Session<Shared>>> {
        loop {
            if self.has_ended.get() {
                return Err(IoError::Gone);
            }
            let session = self.session.borrow().clone();
            match session {
                Some(session) if !session.is_over() => return Ok(session),
                _ => self.changed.wait().await,
            }
        }
    }

    /// Sends a request until a session answers it.
    async fn request(
        &self,
        asked: impl Fn() -> Asked,
        then: impl Fn() -> Then,
        mut bufs: Vec<Buf>,
    ) -> IoResult<Vec<Buf>> {
        let lengths: Vec<usize> = bufs.iter().map(|buf| buf.len()).collect();
        loop {
            let session = self.session().await?;
            match session.ask(asked(), then(), bufs).await {
                Answer::Ended(result) => return result.map_err(io_error),
                Answer::Broken(back) if back.len() == lengths.len() => bufs = back,
                Answer::Broken(_) => bufs = lengths.iter().map(|bytes| Buf::new(*bytes)).collect(),
            }
        }
    }

    fn asked(&self, range: SectorRange, change: &Change, durable: bool) -> Asked {
        let fua =
            if durable && self.facts.has(proto::FLAG_SEND_FUA) { proto::CMD_FLAG_FUA } else { 0 };
        let (kind, flags, data) = match change {
            Change::Write(data) => (proto::CMD_WRITE, fua, Some(data.clone())),
            Change::Zeroes(flags) => (proto::CMD_WRITE_ZEROES, *flags | fua, None),
            Change::Trim => (proto::CMD_TRIM, 0, None),
        };
        Asked { kind, flags, offset: range.start.bytes(), length: range.bytes() as u32, data }
    }

    async fn change(
        self: &Rc<Self>,
        range: SectorRange,
        change: Change,
        durable: bool,
    ) -> IoResult<()> {
        while self.unflushed.borrow().is_full() && !self.has_ended.get() {
            self.make_room();
            self.has_room.wait().await;
        }
        let is_durable = durable && self.facts.has(proto::FLAG_SEND_FUA);
        // Made again, the older change would be over one that is durable until that is made again, too.
        let is_over_kept = is_durable && self.unflushed.borrow().overlaps(range);
        let asked = || self.asked(range, &change, durable);
        let then = || Then::Changed(range, change.clone(), is_durable);
        self.request(asked, then, Vec::new()).await?;
        if is_over_kept { self.sync().await } else { Ok(()) }
    }

    async fn sync(&self) -> IoResult<()> {
        if self.flush_failed.get() { Err(IoError::Medium) } else { self.flush().await }
    }

    async fn flush(&self) -> IoResult<()> {
        if !self.facts.has(proto::FLAG_SEND_FLUSH) {
            return Ok(());
        }
        let (mark, failed) = (self.unflushed.borrow().mark(), self.failed_flushes.get());
        let kind = proto::CMD_FLUSH;
        let asked = || Asked { kind, flags: 0, offset: 0, length: 0, data: None };
        self.request(asked, || Then::Flushed(mark, failed), Vec::new()).await.map(drop)
    }

    /// A flush has failed: what no flush had covered may be lost, and the owner sees to it.
    fn flush_has_failed(&self) {
        self.flush_failed.set(true);
        self.failed_flushes.set(self.failed_flushes.get() + 1);
        self.unflushed.replace(Unflushed::default());
        self.has_room.notify();
    }

    /// Keeps a change that a server may lose.
    fn keep(self: &Rc<Self>, range: SectorRange, change: Change, is_durable: bool) {
        if !self.facts.has(proto::FLAG_SEND_FLUSH) {
            return;
        }
        let change = match change {
            // They were written: a server that would do so slowly does it all the same.
            Change::Zeroes(flags) => Change::Zeroes(flags & !proto::CMD_FLAG_FAST_ZERO),
            other => other,
        };
        let mut unflushed = self.unflushed.borrow_mut();
        // One that is durable would be undone by an older one that is made again, so it is made again too.
        if is_durable && unflushed.is_empty() {
            return;
        }
        unflushed.push(range, change, is_durable);
        let is_half_full = unflushed.is_half_full();
        drop(unflushed);
        if is_half_full {
            self.make_room();
        }
    }

    /// Flushes the drive until half of the room is free, unless that is under way. What is answered meanwhile is
    /// not covered by the flush.
    fn make_room(self: &Rc<Self>) {
        if self.is_making_room.replace(true) {
            return;
        }
        let own = self.clone();
        drop(self.handle.spawn(async move {
            // One that fails has told the owner's next flush, and has left nothing to be kept.
            while own.flush().await.is_ok() && own.unflushed.borrow().is_half_full() {}
            own.is_making_room.set(false);
        }));
    }

    /// Why a session cannot go on where the others were.
    fn refusal(&self, facts: &Facts) -> Option<String> {
        let relied_on = self.facts.flags
            & (proto::FLAG_SEND_FLUSH
                | proto::FLAG_SEND_FUA
                | proto::FLAG_SEND_TRIM
                | proto::FLAG_SEND_WRITE_ZEROES
                | proto::FLAG_SEND_FAST_ZERO);
        let (was, is) = (self.facts.bytes, facts.bytes);
        if is != was {
            return Some(format!(
                "its export has {is} bytes now and had {was}: nothing is sent to it; have the server serve the \
                 export that it served before"
            ));
        }
        if facts.has(proto::FLAG_READ_ONLY) && !self.facts.has(proto::FLAG_READ_ONLY) {
            return Some(
                "its export is read-only now; have the server take writes again".to_owned(),
            );
        }
        let is_narrower = !facts.has(relied_on)
            || facts.minimum_bytes > self.block_bytes
            || facts.maximum_bytes < self.max_transfer_bytes;
        is_narrower.then(|| {
            "its server takes less than before (flushes, zeroes, or sizes of requests); have it serve as it did"
                .to_owned()
        })
    }

    /// Connects until there is a session.
    async fn reconnect(self: Rc<Self>) {
        while !self.has_ended.get() {
            self.handle.sleep(self.outage.pause_ns()).await;
            if self.has_ended.get() {
                return;
            }
            let connected = (self.connect)().await;
            if self.has_ended.get() {
                return;
            }
            let connected = connected.and_then(|links| match self.refusal(&links.facts) {
                Some(why) => {
                    links.leave(&self.handle);
                    Err(why)
                }
                None => Ok(links),
            });
            match connected {
                Ok(links) => {
                    self.settle().await;
                    if self.has_ended.get() {
                        return;
                    }
                    let session = Session::begin(&self.handle, &self, links, &self.held);
                    self.preparing.replace(Some(session.clone()));
                    let again = self.make_again(&session).await;
                    self.preparing.take();
                    if let Some(again) = again
                        && !self.has_ended.get()
                    {
                        self.begin_service(session, again);
                        return;
                    }
                    session.end();
                }
                Err(why) => self.still_lost(why),
            }
        }
    }

    fn begin_service(self: &Rc<Self>, session: Rc<Session<Self>>, again: usize) {
        let (own, begun) = (Rc::downgrade(self), Rc::downgrade(&session));
        self.session.replace(Some(session));
        self.changed.notify();
        if let Some(news) = self.outage.let_in(again) {
            (self.tell)(news);
        }
        let handle = self.handle.clone();
        drop(self.handle.spawn(async move {
            handle.sleep(STANDS_NS).await;
            if let (Some(own), Some(session)) = (own.upgrade(), begun.upgrade())
                && !session.is_over()
            {
                own.has_worked();
            }
        }));
    }

    /// A session is of use.
    fn has_worked(&self) {
        if let Some(news) = self.outage.end() {
            (self.tell)(news);
        }
    }

    fn still_lost(&self, why: String) {
        if let Some(news) = self.outage.goes_on(why) {
            (self.tell)(news);
        }
    }

    /// Waits until the server has ended what it had of the connections before.
    async fn settle(&self) {
        if self.left_requests.take() {
            self.handle.sleep(SETTLE_NS).await;
        }
        let late_ns = self.handle.now() + SETTLE_NS_MAX;
        while self.held.count() > 0 && self.handle.now() < late_ns && !self.has_ended.get() {
            self.handle.sleep(SETTLE_LOOK_NS).await;
        }
    }

    /// Makes the changes again that no flush has covered; how many. `None` when the session has ended meanwhile.
    async fn make_again(&self, session: &Rc<Session<Shared>>) -> Option<usize> {
        let (mut place, mut is_any_lost) = (0, false);
        loop {
            let apart = self.unflushed.borrow().apart_from(place, AGAIN_AT_ONCE);
            if apart.is_empty() {
                if is_any_lost {
                    self.refused.set(self.refused.get() + 1);
                    if self.refused.get() == REFUSED_MAX {
                        // It was acknowledged and is not there. Nobody may read what was there before it.
                        self.flush_has_failed();
                        (self.tell)(NbdNews::ChangeLost);
                        self.end();
                    }
                    return None;
                }
                self.refused.set(0);
                return (!session.is_over()).then_some(place);
            }
            let count = apart.len();
            // One that is durable is so again before anybody is served: nothing else says that it has to be flushed.
            let asked = apart.iter().map(|kept| {
                let asked = self.asked(kept.range, &kept.change, kept.is_durable);
                session.ask(asked, Then::Again, Vec::new())
            });
            for answer in join_all(asked.collect::<Vec<_>>()).await {
                match answer {
                    Answer::Broken(_) => return None,
                    Answer::Ended(result) => is_any_lost |= result.is_err(),
                }
            }
            place += count;
        }
    }

    fn end(&self) {
        self.has_ended.set(true);
        for session in [self.session.take(), self.preparing.take()].into_iter().flatten() {
            session.end();
        }
        self.changed.notify();
        self.has_room.notify();
    }
}

impl Owner for Shared {
    type Then = Then;

    fn answered(self: &Rc<Self>, then: Then, result: Result<Vec<Buf>, u32>) -> Answer {
        if result.is_ok() && !matches!(then, Then::Again) {
            self.has_worked();
        }
        match (then, &result) {
            (Then::Read | Then::Again, _) | (Then::Changed(..), Err(_)) => {}
            (Then::Changed(range, change, is_durable), Ok(_)) => {
                self.keep(range, change, is_durable);
            }
            (Then::Flushed(mark, failed), Ok(_)) if failed == self.failed_flushes.get() => {
                self.unflushed.borrow_mut().forget_before(mark);
                self.has_room.notify();
            }
            // Another flush that was under way has failed, and a server says so once: this one may have had
            // nothing left to store.
            (Then::Flushed(..), Ok(_)) => {
                return Answer::Ended(Err(IoError::Medium.errno() as u32));
            }
            (Then::Flushed(..), Err(_)) => self.flush_has_failed(),
        }
        Answer::Ended(result)
    }

    fn lost(self: &Rc<Self>, session: &Session<Self>, why: String) {
        let left_requests = session.has_requests();
        if !session.end() || self.has_ended.get() {
            return;
        }
        self.left_requests.set(self.left_requests.get() || left_requests);
        let is_current =
            self.session.borrow().as_ref().is_some_and(|current| std::ptr::eq(&**current, session));
        if is_current && self.outage.begin() {
            (self.tell)(NbdNews::Lost(why));
        } else {
            self.still_lost(format!("the server lets us in, and then: {why}"));
        }
        // One that ends before it is the session has somebody who waits for it.
        if is_current {
            self.session.replace(None);
            drop(self.handle.spawn(self.clone().reconnect()));
        }
    }
}

impl BlockDevice for NbdDevice {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn read(&self, at: Lba, mut into: Buf) -> IoResult<Buf> {
        let range = self.limits.checked_transfer(at, into.len())?;
        if range.is_empty() {
            return Ok(into);
        }
        let most = self.limits.max_transfer_bytes as usize;
        let (mut reads, mut start) = (Vec::new(), at);
        loop {
            let part = into.split_to(most.min(into.len()));
            let sectors = part.len() as u64 / SECTOR_BYTES;
            reads.push(self.read_at_once(start, vec![part]));
            start = start.plus(sectors);
            if into.is_empty() {
                break;
            }
        }
        let mut filled = Vec::with_capacity(reads.len());
        for read in join_all(reads).await {
            filled.extend(read?);
        }
        Ok(match <[Buf; 1]>::try_from(filled) {
            Ok([whole]) => whole,
            Err(parts) => Buf::put_together(parts),
        })
    }

    async fn read_vectored(&self, at: Lba, into: Vec<Buf>) -> IoResult<Vec<Buf>> {
        let bytes = into.iter().map(|buf| buf.len()).sum();
        let range = self.limits.checked_transfer(at, bytes)?;
        if range.is_empty() {
            return Ok(into);
        }
        if bytes <= self.limits.max_transfer_bytes as usize {
            return self.read_at_once(at, into).await;
        }
        let whole = self.read(at, Buf::new(bytes)).await?;
        let (mut into, mut taken) = (into, 0);
        for buf in &mut into {
            let bytes = buf.len();
            buf.copy_from_slice(&whole[taken..taken + bytes]);
            taken += bytes;
        }
        Ok(into)
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let range = self.limits.checked_write(at, &data)?;
        if range.is_empty() {
            return Ok(());
        }
        let durable = durability == Durability::Durable;
        let most = u64::from(self.limits.max_transfer_bytes);
        if range.bytes() <= most {
            self.change(range, Change::Write(data), durable).await?;
            return self.made_durable(durable).await;
        }
        let writes = parts(range, most / SECTOR_BYTES).map(|part| {
            let from = (part.start.bytes() - range.start.bytes()) as usize;
            let data = data.slice(from..from + part.bytes() as usize);
            self.change(part, Change::Write(data), durable)
        });
        for written in join_all(writes.collect::<Vec<_>>()).await {
            written?;
        }
        self.made_durable(durable).await
    }

    async fn flush(&self) -> IoResult<()> {
        if self.limits.read_only { Ok(()) } else { self.shared.sync().await }
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.limits.checked_change(range)?;
        if range.is_empty() || self.limits.after_discard == AfterDiscard::Unchanged {
            return Ok(());
        }
        for part in parts(range, TRIM_SECTORS) {
            self.change(part, Change::Trim, false).await?;
        }
        Ok(())
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.limits.checked_change(range)?;
        if self.has(proto::FLAG_SEND_WRITE_ZEROES) {
            match self.zero(range, 0, durability).await {
                Err(IoError::Unsupported) => {}
                other => return other,
            }
        }
        let step = ZEROES_BYTES.min(self.limits.max_transfer_bytes.into());
        for (part, zeroes) in zero_writes(range, step) {
            self.write(part.start, zeroes, durability).await?;
        }
        Ok(())
    }

    async fn zero_in_place(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.limits.checked_change(range)?;
        if range.is_empty() {
            return Ok(());
        }
        if !self.has(proto::FLAG_SEND_WRITE_ZEROES) {
            return Err(IoError::Unsupported);
        }
        // A server that can tell says whether it would write them as data.
        let is_told = self.has(proto::FLAG_SEND_FAST_ZERO);
        let fast = if is_told { proto::CMD_FLAG_FAST_ZERO } else { 0 };
        self.zero(range, proto::CMD_FLAG_NO_HOLE | fast, durability).await
    }
}

impl DriveControl for NbdDevice {
    /// What the server has and has not ended, of all connections; see [`Held`].
    fn under_way(&self) -> UnderWay {
        let held = self.held();
        UnderWay::of(move || held.count())
    }

    fn abandon(&self) {
        self.shared.end();
    }

    fn forget_failed_flush(&self) {
        self.shared.flush_failed.set(false);
    }

    /// It waits for the server as long as that takes.
    fn patience_ns(&self) -> Nanos {
        0
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        self.shared.end();
    }
}
