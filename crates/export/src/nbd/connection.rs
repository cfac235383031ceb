//! One client: a task that reads requests, tasks that serve them, a task that sends replies.
//!
//! Every reply, also a refusal, holds a place in flight from before its request is taken until it was
//! sent. When the places or the bytes are used up, reading stops. A client that sends and does not
//! receive fills its own socket, not our memory.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use voltier_block::{BlockDevice, Buf, Bytes, Nanos};
use voltier_ring::{Errno, Handle, Stream, WakerCell};

use super::info::ExportInfo;
use super::serve::{Job, Outbox, Serve};
use super::session::{Command, Event, Request, Session};
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

/// A client that has not finished its handshake by then is sent away, in nanoseconds.
const HANDSHAKE_NS: Nanos = 30_000_000_000;

/// Refusals and negotiation answers that are gathered before they are sent, in bytes.
const ANSWER_BYTES: usize = 16 << 10;

/// The server's hold on a connection.
pub(super) struct Link {
    stream: Stream,
    ending: Cell<bool>,
    reader: WakerCell,
}

impl Link {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, ending: Cell::new(false), reader: WakerCell::default() }
    }

    /// Takes no further request; what is in flight finishes and is answered.
    pub(super) fn end(&self) {
        self.ending.set(true);
        self.reader.wake();
    }

    /// Cuts the connection; what is in flight finishes unanswered.
    pub(super) fn abort(&self) {
        self.end();
        self.stream.shutdown();
    }
}

/// Places and bytes in flight.
#[derive(Default)]
pub(super) struct InFlight {
    requests: Cell<usize>,
    bytes: Cell<u64>,
}

impl InFlight {
    fn try_take(&self, bytes: u64) -> bool {
        let room = self.requests.get() < IN_FLIGHT_REQUESTS_MAX
            && self.bytes.get() + bytes <= IN_FLIGHT_BYTES_MAX;
        if room {
            self.requests.set(self.requests.get() + 1);
            self.bytes.set(self.bytes.get() + bytes);
        }
        room
    }

    fn release(&self, requests: usize, bytes: u64) {
        self.requests.set(self.requests.get() - requests);
        self.bytes.set(self.bytes.get() - bytes);
    }
}

/// Room for received bytes: two of the longest writes that are copied out of it. With one receive come
/// 127 writes of 4 KiB, or thousands of reads.
const INPUT_BYTES: usize = 512 << 10;

/// Most that is received while large writes come in. The data of large writes go straight to a buffer of
/// their own, and what was received with the header had to be copied.
const INPUT_BYTES_BEFORE_LARGE: usize = 4096;

/// A receive buffer with what is unread in it.
struct Input {
    /// Absent while the kernel fills it.
    buf: Option<Buf>,
    start: usize,
    end: usize,
    expects_large: bool,
}

impl Input {
    fn new() -> Self {
        Self { buf: Some(Buf::new(INPUT_BYTES)), start: 0, end: 0, expects_large: false }
    }

    /// The unread bytes.
    fn unread(&self) -> &[u8] {
        self.buf.as_ref().map_or(&[], |buf| &buf[self.start..self.end])
    }

    /// Marks the first `bytes` as read.
    fn consume(&mut self, bytes: usize) {
        assert!(bytes <= self.end - self.start, "more consumed than is there");
        self.start += bytes;
    }

    /// Says whether the last request was a write too large to wait for in here.
    fn expect_large(&mut self, large: bool) {
        self.expects_large = large;
    }

    /// Takes the buffer for a receive: the part that stays, and the part to be filled.
    fn lend(&mut self) -> Lent {
        let mut buf = self.buf.take().expect("lent once at a time");
        buf.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let unread = buf.split_to(self.end);
        let most = if self.expects_large { INPUT_BYTES_BEFORE_LARGE } else { buf.len() };
        let free = buf.split_to(most.min(buf.len()));
        Lent { unread, free, tail: buf }
    }

    /// Takes the buffer back with what was received.
    fn give_back(&mut self, lent: Lent, received_bytes: usize) {
        self.buf = Some(lent.unread.join(lent.free).join(lent.tail));
        self.end += received_bytes;
    }
}

/// The three parts of a lent buffer, neighbours in memory.
struct Lent {
    unread: Buf,
    /// To be filled by the receive.
    free: Buf,
    tail: Buf,
}

/// The connection is over; nothing more is to be read.
struct Over;

/// One connection's tasks share this.
pub(super) struct Connection<D: BlockDevice> {
    handle: Handle,
    link: Rc<Link>,
    workers: Workers<Serve<D>>,
    outbox: Rc<Outbox>,
    in_flight: Rc<InFlight>,
}

impl<D: BlockDevice> Connection<D> {
    /// Serves a client until it leaves, misbehaves, or the link is ended.
    pub(super) async fn run(
        handle: Handle,
        link: Rc<Link>,
        device: Rc<D>,
        info: Rc<ExportInfo>,
        counters: Arc<CounterCell>,
    ) {
        let outbox = Rc::new(Outbox::default());
        let in_flight = Rc::new(InFlight::default());
        let service = Serve { device, outbox: outbox.clone(), counters };
        let workers = Workers::new(handle.clone(), service, IN_FLIGHT_REQUESTS_MAX);
        let writer = {
            let (handle, link) = (handle.clone(), link.clone());
            let (outbox, in_flight) = (outbox.clone(), in_flight.clone());
            handle.clone().spawn(async move {
                outbox
                    .send_all(&handle, &link.stream, |requests, bytes| {
                        in_flight.release(requests, bytes);
                        link.reader.wake();
                    })
                    .await;
            })
        };
        let connection = Self { handle, link, workers, outbox, in_flight };
        // An error says only that the stream is over, which is why we are here either way.
        let _ = connection.read_requests(info).await;
        connection.all_sent().await;
        connection.outbox.close();
        writer.await;
        connection.link.stream.shutdown();
    }

    async fn read_requests(&self, info: Rc<ExportInfo>) -> Result<(), Over> {
        let mut out = Vec::new();
        let mut session = Session::new(info, &mut out);
        let mut input = Input::new();
        let deadline = self.handle.now() + HANDSHAKE_NS;
        loop {
            let (used, event) = session.advance(input.unread(), &mut out);
            input.consume(used);
            if !out.is_empty() && (event != Event::Used || out.len() >= ANSWER_BYTES) {
                self.room(0).await?;
                self.outbox.push_raw(Bytes::copy_of(&out));
                out.clear();
            }
            match event {
                Event::Used => {}
                Event::Close(_) => return Ok(()),
                Event::Need(bytes) => {
                    let deadline = (!session.in_transmission()).then_some(deadline);
                    self.fill(&mut input, bytes, deadline).await?;
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
        let data_bytes = match request.command {
            Command::Read | Command::Write => u64::from(request.length),
            Command::Flush | Command::Trim | Command::WriteZeroes => 0,
        };
        self.room(data_bytes).await?;
        let data = match request.command {
            Command::Write => match self.payload(input, request.length as usize).await {
                Ok(data) => Some(data),
                Err(Over) => {
                    self.in_flight.release(1, data_bytes);
                    return Err(Over);
                }
            },
            _ => None,
        };
        self.workers.serve(Job { request, data, structured, cost_bytes: data_bytes });
        Ok(())
    }

    async fn payload(&self, input: &mut Input, bytes: usize) -> Result<Bytes, Over> {
        let large = bytes > COPIED_WRITE_BYTES_MAX;
        input.expect_large(large);
        if !large {
            self.fill(input, bytes, None).await?;
            let data = Bytes::copy_of(&input.unread()[..bytes]);
            input.consume(bytes);
            return Ok(data);
        }
        let mut rest = Buf::new(bytes);
        let here = input.unread().len().min(bytes);
        let mut filled = rest.split_to(here);
        filled.copy_from_slice(&input.unread()[..here]);
        input.consume(here);
        while !rest.is_empty() {
            let (buf, received) = self.receive(rest, None).await?;
            rest = buf;
            filled = filled.join(rest.split_to(received));
        }
        Ok(filled.freeze())
    }

    /// Receives until `bytes` are unread.
    async fn fill(
        &self,
        input: &mut Input,
        bytes: usize,
        deadline: Option<Nanos>,
    ) -> Result<(), Over> {
        while input.unread().len() < bytes {
            let Lent { unread, free, tail } = input.lend();
            let (free, received) = self.receive(free, deadline).await?;
            input.give_back(Lent { unread, free, tail }, received);
        }
        Ok(())
    }

    /// Receives at least one byte; over at the end of the stream, an error, the link's end, or the
    /// deadline.
    async fn receive(&self, buf: Buf, deadline: Option<Nanos>) -> Result<(Buf, usize), Over> {
        let mut receive = pin!(self.handle.recv(&self.link.stream, buf));
        let mut timeout = pin!(self.handle.sleep_until(deadline.unwrap_or(Nanos::MAX)));
        let received = poll_fn(|context| {
            if self.link.ending.get() {
                return Poll::Ready(None);
            }
            if deadline.is_some() && timeout.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            self.link.reader.register(context);
            receive.as_mut().poll(context).map(Some)
        });
        match received.await {
            Some((buf, Ok(bytes))) if bytes > 0 => Ok((buf, bytes as usize)),
            Some((buf, Err(Errno::INTR | Errno::AGAIN))) => Ok((buf, 0)),
            _ => Err(Over),
        }
    }

    /// Waits for a place in flight, and for room for so many bytes.
    async fn room(&self, bytes: u64) -> Result<(), Over> {
        poll_fn(|context| {
            if self.link.ending.get() || self.outbox.is_broken() {
                return Poll::Ready(Err(Over));
            }
            if self.in_flight.try_take(bytes) {
                return Poll::Ready(Ok(()));
            }
            self.link.reader.register(context);
            Poll::Pending
        })
        .await
    }

    /// Waits until every request is answered.
    async fn all_sent(&self) {
        poll_fn(|context| {
            if self.in_flight.requests.get() == 0 {
                return Poll::Ready(());
            }
            self.link.reader.register(context);
            Poll::Pending
        })
        .await;
    }
}
