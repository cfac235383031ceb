//! The second half of a request: the device serves it, and its reply goes out with whatever else is
//! finished, in one vectored send.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoError, IoResult};
use voltier_nbd::cut_front;
use voltier_nbd::proto::ErrorCode;
use voltier_ring::{Errno, Handle, WakerCell};

use super::failure::Failure;
use super::link::Link;
use super::session::{Command, ReplyHeader, Request, error_reply, read_reply, success_reply};
use crate::bytes::ByteDevice;
use crate::counters::{CounterCell, Served};
use crate::requests::Service;

/// A request on its way to the device.
pub(super) struct Job {
    pub(super) request: Request,
    /// The data of a write.
    pub(super) data: Option<Bytes>,
    pub(super) structured: bool,
    /// The request's share of the connection's bytes in flight.
    pub(super) cost_bytes: u64,
}

/// Serves the requests of one connection.
pub(super) struct Serve<D> {
    pub(super) device: Rc<ByteDevice<D>>,
    pub(super) outbox: Rc<Outbox>,
    pub(super) counters: Arc<CounterCell>,
}

impl<D: BlockDevice> Service for Serve<D> {
    type Job = Job;

    async fn serve(&self, job: Job) {
        let Job { request, data, structured, cost_bytes } = job;
        let result = self.execute(&request, data).await;
        self.count(&request, result.is_ok());
        let reply = match result {
            Ok(Some(data)) => Reply::Data { request, data, structured },
            Ok(None) => Reply::Success { cookie: request.cookie },
            Err(error) => {
                let failure = failure_of(error, &request, &self.device);
                Reply::Error { cookie: request.cookie, failure, structured }
            }
        };
        self.outbox.push(reply, cost_bytes);
    }
}

impl<D: BlockDevice> Serve<D> {
    pub(super) async fn execute(
        &self,
        request: &Request,
        data: Option<Bytes>,
    ) -> IoResult<Option<Bytes>> {
        let device = &*self.device;
        let durability = if request.fua { Durability::Durable } else { Durability::Cached };
        let (offset, length) = (request.offset, u64::from(request.length));
        match (request.command, data) {
            (Command::Read, _) => device.read(offset, length).await.map(Some),
            (Command::Write, Some(data)) => {
                device.write(offset, data, durability).await.map(|()| None)
            }
            (Command::Write, None) => unreachable!("a write comes with its data"),
            (Command::Flush, _) => device.flush().await.map(|()| None),
            (Command::Trim, _) => {
                device.discard(offset, length).await?;
                if request.fua {
                    device.flush().await?;
                }
                Ok(None)
            }
            (Command::WriteZeroes, _) => {
                let zeroed = device.zero(offset, length, durability, request.no_hole);
                zeroed.await.map(|()| None)
            }
        }
    }

    fn count(&self, request: &Request, good: bool) {
        let length = u64::from(request.length);
        self.counters.count(match request.command {
            _ if !good => Served::Failure,
            Command::Read => Served::Read(length),
            Command::Write => Served::Write(length),
            Command::Flush => Served::Flush,
            Command::Trim | Command::WriteZeroes => Served::Discard,
        });
    }
}

fn failure_of<D: BlockDevice>(
    error: IoError,
    request: &Request,
    device: &ByteDevice<D>,
) -> Failure {
    let message = match error {
        IoError::OutOfRange => "outside the device",
        IoError::Medium => "medium error",
        IoError::ReadOnly => "the device is read-only",
        IoError::NoSpace => "no space left",
        IoError::Gone => "the device is gone",
        IoError::Unsupported => "not supported by the device",
    };
    // The device does not say which byte is bad, except where there is one block to choose from.
    let cover = device.cover(request.offset, request.length.into());
    let one_block = cover.bytes() == u64::from(device.limits().block_bytes);
    let offset = (error == IoError::Medium && one_block).then_some(request.offset);
    Failure { offset, ..Failure::new(ErrorCode::from(error), message) }
}

/// A reply not yet encoded.
pub(super) enum Reply {
    /// A read's data.
    Data { request: Request, data: Bytes, structured: bool },
    /// Anything else that went well.
    Success { cookie: u64 },
    /// A failure.
    Error { cookie: u64, failure: Failure, structured: bool },
    /// Bytes of the session's own: negotiation, refusals.
    Raw(Bytes),
}

#[derive(Default)]
struct Queue {
    replies: Vec<Reply>,
    /// The share of these replies in the bytes in flight.
    cost_bytes: u64,
    /// The data of reads among them.
    data_bytes: usize,
}

/// Replies on their way: what the socket has not taken yet.
struct Batch {
    pieces: Vec<Bytes>,
    sent: Sent,
}

/// Replies that are sent: how many, and what they held in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) requests: usize,
    pub(super) cost_bytes: u64,
}

/// The replies of one connection that wait to be sent: by the task that reads requests, if they are ready when it
/// would wait, else by one of their own.
#[derive(Default)]
pub(super) struct Outbox {
    queue: RefCell<Queue>,
    /// What the socket had no room for.
    rest: Cell<Option<Batch>>,
    sender: WakerCell,
    /// The reader sends what is queued now.
    holds: Cell<bool>,
    sending: Cell<bool>,
    closed: Cell<bool>,
    broken: Cell<bool>,
}

impl Outbox {
    /// Queues a reply that holds `cost_bytes` in flight.
    pub(super) fn push(&self, reply: Reply, cost_bytes: u64) {
        {
            let mut queue = self.queue.borrow_mut();
            if let Reply::Data { data, .. } = &reply {
                queue.data_bytes += data.len();
            }
            queue.replies.push(reply);
            queue.cost_bytes += cost_bytes;
        }
        if !self.holds.get() {
            self.sender.wake();
        }
    }

    /// Queues bytes of the session's own.
    pub(super) fn push_raw(&self, bytes: Bytes) {
        self.push(Reply::Raw(bytes), 0);
    }

    /// Does `work`, whose replies wait for [`send_held`](Self::send_held).
    pub(super) fn hold(&self, work: impl FnOnce()) {
        self.holds.set(true);
        work();
        self.holds.set(false);
    }

    /// The data of reads that wait, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.queue.borrow().data_bytes
    }

    /// Sends what waits, as far as the socket takes it without a wait; the rest is for
    /// [`send_all`](Self::send_all). What is over with that: all or nothing.
    pub(super) fn send_held(&self, handle: &Handle, link: &Link) -> Sent {
        if self.queue.borrow().replies.is_empty() {
            return Sent::default();
        }
        if self.sending.get() {
            self.sender.wake();
            return Sent::default();
        }
        let Batch { mut pieces, sent } = self.take_batch();
        if !self.broken.get() {
            match handle.send_now(&link.stream, &pieces) {
                Ok(bytes) => cut_front(&mut pieces, bytes),
                Err(error) if is_passing(error) => {}
                Err(_) => self.break_off(link),
            }
        }
        if self.broken.get() || pieces.is_empty() {
            return sent;
        }
        self.sending.set(true);
        self.rest.set(Some(Batch { pieces, sent }));
        self.sender.wake();
        Sent::default()
    }

    /// Lets [`send_all`](Self::send_all) end when everything is sent.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.sender.wake();
    }

    /// Whether the client is gone: replies are dropped from now on.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    fn break_off(&self, link: &Link) {
        self.broken.set(true);
        // The reader must not wait for a client that does not listen any more.
        link.stream.shutdown();
    }

    /// Sends replies as they come, until closed; says after each send what went.
    pub(super) async fn send_all(&self, handle: &Handle, link: &Link, sent: impl Fn(Sent)) {
        while let Some(batch) = self.next_batch().await {
            self.sending.set(true);
            if !self.broken.get() && send(handle, link, batch.pieces).await.is_err() {
                self.break_off(link);
            }
            self.sending.set(false);
            sent(batch.sent);
        }
    }

    /// Everything queued, what was begun before it; `None` when closed and empty.
    async fn next_batch(&self) -> Option<Batch> {
        poll_fn(|context| {
            if let Some(begun) = self.rest.take() {
                return Poll::Ready(Some(begun));
            }
            if !self.queue.borrow().replies.is_empty() {
                return Poll::Ready(Some(self.take_batch()));
            }
            if self.closed.get() {
                return Poll::Ready(None);
            }
            self.sender.register(context);
            Poll::Pending
        })
        .await
    }

    fn take_batch(&self) -> Batch {
        let mut queue = self.queue.borrow_mut();
        let pieces = gather(&queue.replies);
        let sent = Sent { requests: queue.replies.len(), cost_bytes: queue.cost_bytes };
        queue.replies.clear();
        (queue.cost_bytes, queue.data_bytes) = (0, 0);
        Batch { pieces, sent }
    }
}

/// Encodes the headers into one buffer, and lists headers and data in order; neighbouring headers
/// become one piece.
fn gather(replies: &[Reply]) -> Vec<Bytes> {
    let mut headers = Buf::new(replies.len() * size_of::<ReplyHeader>());
    let mut cuts = Vec::with_capacity(replies.len());
    let mut end = 0;
    for reply in replies {
        let (header, data) = match reply {
            Reply::Data { request, data, structured } => {
                (read_reply(*structured, request), Some(data))
            }
            Reply::Success { cookie } => (success_reply(*cookie), None),
            Reply::Error { cookie, failure, structured } => {
                (error_reply(*structured, *cookie, *failure), None)
            }
            Reply::Raw(bytes) => {
                cuts.push((end, bytes));
                continue;
            }
        };
        let header = header.as_ref();
        headers[end..end + header.len()].copy_from_slice(header);
        end += header.len();
        if let Some(data) = data {
            cuts.push((end, data));
        }
    }
    let headers = headers.freeze();
    let mut pieces = Vec::with_capacity(2 * cuts.len() + 1);
    let mut start = 0;
    for (cut, data) in cuts {
        if cut > start {
            pieces.push(headers.slice(start..cut));
            start = cut;
        }
        pieces.push(data.clone());
    }
    if end > start {
        pieces.push(headers.slice(start..end));
    }
    pieces
}

/// Whether a send may be tried again: it was ended by a signal, found no room, or was cancelled with a receive (see
/// [`Link::leave`]).
fn is_passing(error: Errno) -> bool {
    matches!(error, Errno::INTR | Errno::AGAIN | Errno::CANCELED)
}

/// Sends all pieces, in as many sends as the socket needs. The ring waits where it has no room.
async fn send(handle: &Handle, link: &Link, mut pieces: Vec<Bytes>) -> Result<(), Errno> {
    let mut at_once = true;
    while !pieces.is_empty() {
        let outcome = if std::mem::take(&mut at_once) {
            handle.send_now(&link.stream, &pieces)
        } else {
            link.sending.begin();
            let outcome = handle.send(&link.stream, pieces.clone()).await;
            link.sending.end();
            outcome.map(|bytes| bytes as usize)
        };
        match outcome {
            Ok(0) => return Err(Errno::PIPE),
            Ok(bytes) => cut_front(&mut pieces, bytes),
            Err(error) if is_passing(error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_without_data_between_them_are_one_piece() {
        let data = Bytes::copy_of(&[7; 512]);
        let replies = [
            Reply::Success { cookie: 1 },
            Reply::Success { cookie: 2 },
            Reply::Raw(data.clone()),
            Reply::Success { cookie: 3 },
        ];
        let lengths: Vec<usize> = gather(&replies).iter().map(|piece| piece.len()).collect();
        assert_eq!(lengths, [32, 512, 16]);
    }
}
