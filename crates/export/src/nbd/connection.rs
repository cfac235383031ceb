//! One client: a task that reads requests, tasks that serve them, a task that sends replies.
//!
//! A request begins in the task that read it. Replies that are ready before that waits are held until no request is
//! left to be read, and go out with one send of its own: a lone request needs no other task.
//!
//! Every reply, also a refusal, holds a place in flight from before its request is taken until it was
//! sent. When the places or the bytes are used up, reading stops. A client that sends and does not
//! receive fills its own socket, not our memory.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::IoSliceMut;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use voltier_block::{BlockDevice, Buf, Bytes, Nanos};
use voltier_nbd::Input;
use voltier_ring::{Errno, Handle};

use super::budget::SharedSeat;
use super::info::{ExportInfo, TRANSFER_BYTES_MAX};
use super::link::Link;
use super::passed::{ClientNote, Told};
use super::serve::{Job, Outbox, Sent, Serve};
use super::session::{Command, Event, Request, Session};
use crate::bytes::ByteDevice;
use crate::counters::CounterCell;
use crate::requests::Workers;

/// Requests in flight for one connection: twice the deepest queue that clients are usually run with
/// (fio's 128). Replies to that many fit one vectored send.
const IN_FLIGHT_REQUESTS_MAX: usize = 256;

/// Bytes of data in flight for one connection: two requests of the longest kind, or 256 of 256 KiB.
const IN_FLIGHT_BYTES_MAX: u64 = 64 << 20;

/// Longest write that is waited for in the receive buffer and copied out, in bytes. A system call and a
/// wake-up saved are worth more than the copy. Writes of 128 KiB at depth 32 run at about 1.4 times the
/// speed of receiving each into its own buffer.
const COPIED_WRITE_BYTES_MAX: usize = 256 << 10;

/// Data of replies that are held, in bytes. A system call more is little beside the copies, and the processor's cache
/// still has the data.
const HELD_BYTES_MAX: usize = 128 << 10;

/// Requests that are served before other tasks of the core have their turn.
const REQUESTS_PER_TURN: u32 = 32;

/// Requests in a row that came alone, from which on the next one is expected to do so: its reply goes out without
/// another look for more. Now and then the task looks, for a load may change.
const ALONE_MIN: u32 = 8;
const ALONE_PER_LOOK: u32 = 16;

/// Refusals and negotiation answers that are gathered before they are sent, in bytes.
const ANSWER_BYTES: usize = 16 << 10;

/// Places and bytes in flight, the bytes held against the daemon's budget.
pub(super) struct InFlight {
    requests: Cell<usize>,
    bytes: Cell<u64>,
    /// The reader waits for a place, or for all of them.
    waits: Cell<bool>,
    seat: SharedSeat,
}

impl InFlight {
    fn new(seat: SharedSeat) -> Self {
        Self { requests: Cell::new(0), bytes: Cell::new(0), waits: Cell::new(false), seat }
    }

    /// Takes a place and so many bytes. Waits for this connection's replies, or for other clients'.
    fn poll_take(&self, bytes: u64, context: &Context<'_>) -> Poll<()> {
        let used_bytes = self.bytes.get() + bytes;
        let is_full =
            self.requests.get() == IN_FLIGHT_REQUESTS_MAX || used_bytes > IN_FLIGHT_BYTES_MAX;
        if is_full || self.seat.poll_lease(used_bytes, context).is_pending() {
            self.waits.set(true);
            return Poll::Pending;
        }
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(used_bytes);
        Poll::Ready(())
    }

    /// Whether nothing is in flight; if not, the reader waits for it.
    fn is_over(&self) -> bool {
        self.waits.set(self.requests.get() > 0);
        !self.waits.get()
    }

    /// Gives places back; whether the reader waits for some.
    fn release(&self, sent: Sent) -> bool {
        self.requests.set(self.requests.get() - sent.requests);
        self.bytes.set(self.bytes.get() - sent.cost_bytes);
        self.seat.shrink(self.bytes.get());
        self.waits.take()
    }
}

/// What the reader expects of the client: how many requests came since it waited last, and how many before that came
/// alone.
#[derive(Debug, Default)]
struct Turn {
    requests: Cell<u32>,
    alone: Cell<u32>,
}

impl Turn {
    fn took(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    /// Whether to look if there is more before the replies go out.
    fn looks(&self) -> bool {
        let (requests, alone) = (self.requests.get(), self.alone.get());
        match requests {
            0 => false,
            1 if (ALONE_MIN..ALONE_MIN + ALONE_PER_LOOK).contains(&alone) => {
                self.alone.set(alone + 1);
                false
            }
            _ => requests < REQUESTS_PER_TURN,
        }
    }

    /// A look has found nothing.
    fn found_nothing(&self) {
        let alone = self.alone.get().min(ALONE_MIN - 1) + 1;
        self.alone.set(if self.requests.get() == 1 { alone } else { 0 });
    }

    /// The reader waits for the client.
    fn end(&self) {
        self.requests.set(0);
    }
}

/// The connection is over; nothing more is to be read.
struct Over;

/// One connection's tasks share this.
pub(super) struct Connection<D: BlockDevice> {
    handle: Handle,
    link: Rc<Link>,
    device: Rc<ByteDevice<D>>,
    workers: Workers<Serve<D>>,
    outbox: Rc<Outbox>,
    in_flight: Rc<InFlight>,
    turn: Turn,
}

impl<D: BlockDevice> Connection<D> {
    /// Serves a client until it leaves, misbehaves, or the link is ended; from its greeting on, or from where an
    /// earlier server has left it. When another server is to go on, what that must know: all that was read is
    /// answered then, and the socket is open.
    pub(super) async fn run(
        handle: Handle,
        link: Rc<Link>,
        device: Rc<ByteDevice<D>>,
        info: Rc<ExportInfo>,
        counters: Arc<CounterCell>,
        seat: SharedSeat,
        from: Option<ClientNote>,
    ) -> Option<ClientNote> {
        let outbox = Rc::new(Outbox::default());
        let handshake_ns = seat.handshake_ns();
        let in_flight = Rc::new(InFlight::new(seat));
        let service = Serve { device: device.clone(), outbox: outbox.clone(), counters };
        let workers = Workers::new(handle.clone(), service, IN_FLIGHT_REQUESTS_MAX);
        let writer = {
            let (handle, link) = (handle.clone(), link.clone());
            let (outbox, in_flight) = (outbox.clone(), in_flight.clone());
            handle.clone().spawn(async move {
                outbox
                    .send_all(&handle, &link, |sent| {
                        if in_flight.release(sent) {
                            link.reader.wake();
                        }
                    })
                    .await;
            })
        };
        let turn = Turn::default();
        let connection = Self { handle, link, device, workers, outbox, in_flight, turn };
        // An error says only that the stream is over, which is why we are here either way.
        let left = connection.read_requests(info, handshake_ns, from).await.ok().flatten();
        connection.all_sent().await;
        connection.outbox.close();
        writer.await;
        let is_over = connection.link.is_ending() || connection.outbox.is_broken();
        let left = left.filter(|_| !is_over);
        if left.is_none() {
            connection.link.stream.shutdown();
        }
        left
    }

    /// Reads requests until the stream is over, or another server is to go on.
    async fn read_requests(
        &self,
        info: Rc<ExportInfo>,
        handshake_ns: Nanos,
        from: Option<ClientNote>,
    ) -> Result<Option<ClientNote>, Over> {
        let mut out = Vec::new();
        let mut deadline = None;
        let (mut session, mut input) = match from {
            Some(ClientNote { point, unread, .. }) => {
                self.link.greet();
                (Session::at(info.clone(), point), Input::with(&unread))
            }
            None => {
                deadline = Some(self.handle.now() + handshake_ns);
                (
                    Session::new(info.clone(), &mut out),
                    Input::for_handshake(Session::INPUT_BYTES_MAX),
                )
            }
        };
        loop {
            if self.link.is_leaving()
                && let Some(point) = session.point()
            {
                input.mend_ahead();
                if !out.is_empty() {
                    self.room(0).await?;
                    self.outbox.push_raw(Bytes::copy_of(&out));
                }
                let told = Told::of(&info, point.structured);
                return Ok(Some(ClientNote { told, point, unread: input.unread().to_vec() }));
            }
            let (used, event) = session.advance(input.unread(), &mut out);
            input.consume(used);
            if !out.is_empty() && (event != Event::Used || out.len() >= ANSWER_BYTES) {
                self.room(0).await?;
                self.outbox.push_raw(Bytes::copy_of(&out));
                out.clear();
            }
            match event {
                Event::Used => {
                    if session.in_transmission() && deadline.take().is_some() {
                        self.link.greet();
                        input.grow();
                    }
                }
                Event::Close(_) => return Ok(None),
                Event::Need(bytes) => {
                    self.fill(&mut input, bytes, deadline, false).await?;
                }
                Event::Request(request) => {
                    self.take(&mut input, request, session.structured()).await?;
                }
            }
        }
    }

    /// Takes a request, with its data if it is a write, and hands it to a worker.
    async fn take(
        &self,
        input: &mut Input,
        request: Request,
        structured: bool,
    ) -> Result<(), Over> {
        // A part of a block is held as the whole block. Zeroes need no memory, but the device's time: they
        // count as data of the longest request.
        let covered = self.device.cover(request.offset, request.length.into()).bytes();
        let cost_bytes = covered.min(TRANSFER_BYTES_MAX.into());
        self.room(cost_bytes).await?;
        let data = match request.command {
            Command::Write => match self.payload(input, request.length as usize).await {
                Ok(data) => Some(data),
                Err(Over) => {
                    self.in_flight.release(Sent { requests: 1, cost_bytes });
                    return Err(Over);
                }
            },
            _ => {
                input.expect(0);
                None
            }
        };
        self.turn.took();
        let job = Job { request, data, structured, cost_bytes };
        self.outbox.hold(|| self.workers.serve(job));
        if self.outbox.held_bytes() >= HELD_BYTES_MAX {
            self.send_held();
        }
        Ok(())
    }

    /// The data of a write. Long data go straight to a buffer of their own.
    async fn payload(&self, input: &mut Input, bytes: usize) -> Result<Bytes, Over> {
        let large = bytes > COPIED_WRITE_BYTES_MAX;
        input.expect_large(large);
        let ahead = input.take_ahead(bytes);
        if ahead.is_none() {
            input.mend_ahead();
        }
        let was_expected = input.expects(bytes);
        input.expect(0);
        if !large && !was_expected {
            self.fill(input, bytes, None, true).await?;
            let data = Bytes::copy_of(&input.unread()[..bytes]);
            input.consume(bytes);
            input.expect(bytes);
            return Ok(data);
        }
        let (mut rest, here) = ahead.unwrap_or_else(|| {
            let mut data = Buf::new(bytes);
            let here = input.unread().len().min(bytes);
            data[..here].copy_from_slice(&input.unread()[..here]);
            input.consume(here);
            (data, here)
        });
        let mut filled = rest.split_to(here);
        while !rest.is_empty() {
            if rest.len() <= COPIED_WRITE_BYTES_MAX
                && let Ok(received @ 1..) = self.receive_now(&mut rest)
            {
                filled = filled.join(rest.split_to(received));
                continue;
            }
            let (buf, received) = self.receive(rest, None, true).await?;
            rest = buf;
            filled = filled.join(rest.split_to(received));
        }
        input.expect(bytes);
        Ok(filled.freeze())
    }

    /// Receives what is there already.
    fn look_for_more(&self, input: &mut Input) -> Result<usize, Errno> {
        if input.looks_ahead() {
            return input.receive_ahead(|bufs| self.handle.recv_now(&self.link.stream, bufs));
        }
        let (mut free, lent) = input.lend();
        let received = self.receive_now(&mut free);
        input.give_back(lent, free, received.unwrap_or(0));
        received
    }

    fn receive_now(&self, buf: &mut [u8]) -> Result<usize, Errno> {
        self.handle.recv_now(&self.link.stream, &mut [IoSliceMut::new(buf)])
    }

    /// Receives until `bytes` are unread. `is_due` says that the peer owes the first of them already: between
    /// two requests a peer may rest for as long as it likes, and there another server may go on: fewer bytes are
    /// unread then.
    async fn fill(
        &self,
        input: &mut Input,
        bytes: usize,
        deadline: Option<Nanos>,
        is_due: bool,
    ) -> Result<(), Over> {
        while input.unread().len() < bytes {
            if !is_due && self.link.is_leaving() && self.link.is_greeted() {
                return Ok(());
            }
            if input.mend_ahead() {
                continue;
            }
            let is_due = is_due || !input.unread().is_empty();
            if self.turn.looks() {
                match self.look_for_more(input) {
                    Ok(1..) => continue,
                    // The end, or an error: the receive sees it.
                    _ => self.turn.found_nothing(),
                }
            }
            let (free, lent) = input.lend();
            self.turn.end();
            let (free, received) = self.receive(free, deadline, is_due).await?;
            input.give_back(lent, free, received);
        }
        Ok(())
    }

    /// Sends the replies that are held.
    fn send_held(&self) {
        let sent = self.outbox.send_held(&self.handle, &self.link);
        if sent != Sent::default() {
            self.in_flight.release(sent);
        }
    }

    /// Receives at least one byte; over at the end of the stream, an error, the link's end or the
    /// deadline. The watch cuts the link of a peer that owes bytes and does not send any.
    async fn receive(
        &self,
        buf: Buf,
        deadline: Option<Nanos>,
        is_due: bool,
    ) -> Result<(Buf, usize), Over> {
        self.send_held();
        if is_due {
            self.link.receiving.begin();
        }
        let mut receive = pin!(self.handle.recv(&self.link.stream, buf));
        let mut timeout = pin!(self.handle.sleep_until(deadline.unwrap_or(Nanos::MAX)));
        let received = poll_fn(|context| {
            if self.link.is_ending() {
                return Poll::Ready(None);
            }
            if deadline.is_some() && timeout.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            self.link.reader.register(context);
            receive.as_mut().poll(context).map(Some)
        });
        let received = received.await;
        self.link.receiving.end();
        match received {
            Some((buf, Ok(bytes))) if bytes > 0 => Ok((buf, bytes as usize)),
            // A receive is cancelled for a connection that is to be left, and may be in the middle of a request.
            Some((buf, Err(Errno::INTR | Errno::AGAIN | Errno::CANCELED))) => Ok((buf, 0)),
            _ => Err(Over),
        }
    }

    /// Waits for a place in flight, and for room for so many bytes.
    async fn room(&self, bytes: u64) -> Result<(), Over> {
        poll_fn(|context| {
            if self.link.is_ending() || self.outbox.is_broken() {
                return Poll::Ready(Err(Over));
            }
            self.link.reader.register(context);
            if self.in_flight.poll_take(bytes, context).is_ready() {
                return Poll::Ready(Ok(()));
            }
            // What is held is in flight.
            self.send_held();
            self.in_flight.poll_take(bytes, context).map(Ok)
        })
        .await
    }

    /// Waits until every request is answered.
    async fn all_sent(&self) {
        self.send_held();
        self.link.reader.until(|| self.in_flight.is_over()).await;
    }
}
