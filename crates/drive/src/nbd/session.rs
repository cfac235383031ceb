//! The connections of one session with a server, and the tasks that carry bytes: no thread, the core's own ring.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use voltier_block::{Buf, Bytes, Payload};
use voltier_nbd::{
    Client, Connected, Event, Facts, Input, Violation, cut_front, proto, request_header,
};
use voltier_ring::{Errno, Handle, OneshotSender, Shutdown, Signal, Stream, WakerCell, oneshot};

use super::held::Held;

/// Asked of the kernel for sockets, per direction.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;

/// A request as it goes to the server.
pub(super) struct Asked {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) offset: u64,
    pub(super) length: u32,
    /// The data of a write.
    pub(super) data: Option<Payload>,
}

/// The end of a request.
pub(super) enum Answer {
    /// The server has answered: the buffers of a read, or the error number.
    Ended(Result<Vec<Buf>, u32>),
    /// The session has ended before; the buffers of a read.
    Broken(Vec<Buf>),
}

/// Who waits for a request, and what becomes of the answer first.
struct Waiter<T> {
    sender: OneshotSender<Answer>,
    then: T,
}

/// What the owner of a session does.
pub(super) trait Owner: 'static {
    /// What the owner knows a request by.
    type Then: 'static;

    /// A request has been answered; whether somebody still waits does not matter. The answer as the waiter gets it.
    fn answered(self: &Rc<Self>, then: Self::Then, result: Result<Vec<Buf>, u32>) -> Answer;

    /// The session is of no use any more.
    fn lost(self: &Rc<Self>, session: &Session<Self>, why: String)
    where
        Self: Sized;
}

struct Outgoing {
    header: [u8; proto::REQUEST_BYTES],
    data: Option<Payload>,
}

struct Link<T> {
    stream: Stream,
    /// Without a waiter: nobody waits for the answer any more.
    client: RefCell<Client<Option<Waiter<T>>>>,
    outbox: RefCell<Vec<Outgoing>>,
    is_sending: Cell<bool>,
    sender: WakerCell,
    /// Requests of this connection in the count of the drive.
    owed: Cell<usize>,
    held: Held,
}

/// Connections to an export, ready for requests, and what its server says of it.
pub struct Links {
    /// The connections.
    pub streams: Vec<Stream>,
    /// What is said.
    pub facts: Facts,
}

impl From<Connected> for Links {
    fn from(connected: Connected) -> Self {
        let streams = connected.sockets.into_iter().map(|socket| {
            let stream = Stream::from_owned(socket);
            // It only makes things faster, and Unix sockets may refuse it.
            let _ = stream.set_buffer_bytes(SOCKET_BUFFER_BYTES);
            stream
        });
        Self { streams: streams.collect(), facts: connected.facts }
    }
}

impl Links {
    /// Takes leave of the server.
    pub(super) fn leave(self, handle: &Handle) {
        self.streams.iter().for_each(|stream| take_leave(handle, stream));
    }
}

/// Tells a server that nothing more comes, and ends the connection.
fn take_leave(handle: &Handle, stream: &Stream) {
    let goodbye = Bytes::copy_of(&request_header(proto::CMD_DISC, 0, 0, 0, 0));
    // A server that is gone already is what we want.
    let _ = handle.send_now(stream, &[goodbye]);
    handle.shutdown(stream, Shutdown::Both);
}

/// A session: connections that began together and end together. Which of them a server has lost with its memory
/// could not be told, so one that breaks ends all.
pub(super) struct Session<O: Owner> {
    handle: Handle,
    links: Vec<Link<O::Then>>,
    is_over: Cell<bool>,
    /// Told when a request has ended, and at the end.
    room: Signal,
}

impl<O: Owner> Session<O> {
    /// Begins one: its tasks run until it is over, and its server has ended what it had.
    pub(super) fn begin(handle: &Handle, owner: &Rc<O>, links: Links, held: &Held) -> Rc<Self> {
        let structured = links.facts.structured;
        let links = links.streams.into_iter().map(|stream| {
            handle.close_on_failure(stream.fd());
            Link {
                stream,
                client: RefCell::new(Client::new(structured)),
                outbox: RefCell::default(),
                is_sending: Cell::new(false),
                sender: WakerCell::default(),
                owed: Cell::new(0),
                held: held.clone(),
            }
        });
        let session = Rc::new(Self {
            handle: handle.clone(),
            links: links.collect(),
            is_over: Cell::new(false),
            room: Signal::new(),
        });
        for place in 0..session.links.len() {
            let (own, of) = (session.clone(), owner.clone());
            drop(handle.spawn(async move {
                let why = own.send_all(place).await;
                of.lost(&own, why);
            }));
            let (own, of) = (session.clone(), owner.clone());
            drop(handle.spawn(async move { own.receive_all(place, of).await }));
        }
        session
    }

    pub(super) fn connections(&self) -> usize {
        self.links.len()
    }

    /// Whether somebody waits for an answer.
    pub(super) fn has_requests(&self) -> bool {
        self.links.iter().any(|link| link.client.borrow().under_way() > 0)
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// Ends the session: what is under way has broken. Whether it was not over yet.
    pub(super) fn end(&self) -> bool {
        if self.is_over.replace(true) {
            return false;
        }
        for link in &self.links {
            let unsent = link.outbox.take().len();
            link.settle(unsent);
            if link.owed.get() > 0 {
                self.handle.shutdown(&link.stream, Shutdown::Sending);
            } else if link.is_sending.get() {
                self.handle.shutdown(&link.stream, Shutdown::Both);
            } else {
                take_leave(&self.handle, &link.stream);
            }
            link.sender.wake();
            link.client.borrow_mut().forsake(|waiter, bufs| {
                if let Some(waiter) = waiter.take() {
                    waiter.sender.send(Answer::Broken(bufs));
                }
            });
        }
        self.room.notify();
        true
    }

    /// Sends a request when there is room, and waits for its end.
    pub(super) async fn ask(&self, asked: Asked, then: O::Then, bufs: Vec<Buf>) -> Answer {
        let is_read = asked.kind == proto::CMD_READ;
        let link = loop {
            if self.is_over.get() {
                return Answer::Broken(bufs);
            }
            // Of several, the one with the least under way: a server has a thread for each, or a queue.
            let least = self.links.iter().min_by_key(|link| link.client.borrow().under_way());
            match least.filter(|link| link.client.borrow().has_room()) {
                Some(link) => break link,
                None => self.room.wait().await,
            }
        };
        let (sender, receiver) = oneshot();
        let read = is_read.then_some((asked.offset, bufs));
        let cookie = link.client.borrow_mut().begin(Some(Waiter { sender, then }), read);
        link.owed.set(link.owed.get() + 1);
        link.held.add(1);
        let Asked { kind, flags, offset, length, data } = asked;
        let header = request_header(kind, flags, cookie, offset, length);
        link.outbox.borrow_mut().push(Outgoing { header, data });
        link.sender.wake();
        receiver.await.unwrap_or(Answer::Broken(Vec::new()))
    }

    /// Sends requests as they come, many at once, until the session is over; why it is.
    async fn send_all(&self, place: usize) -> String {
        let link = &self.links[place];
        loop {
            let batch = poll_fn(|context| {
                if self.is_over.get() {
                    return Poll::Ready(None);
                }
                let batch = std::mem::take(&mut *link.outbox.borrow_mut());
                if !batch.is_empty() {
                    return Poll::Ready(Some(batch));
                }
                link.sender.register(context);
                Poll::Pending
            });
            let Some(batch) = batch.await else { return String::new() };
            link.is_sending.set(true);
            let mut pieces = gather(&batch);
            while !pieces.is_empty() {
                match self.handle.send(&link.stream, pieces.clone()).await {
                    Ok(0) => return "the server has hung up".to_owned(),
                    Ok(sent) => cut_front(&mut pieces, sent as usize),
                    Err(Errno::INTR | Errno::AGAIN | Errno::CANCELED) => {}
                    Err(errno) => {
                        return format!("sending failed: {}", std::io::Error::from(errno));
                    }
                }
            }
            link.is_sending.set(false);
        }
    }

    /// Receives answers until the session is over and the server has ended all that it had of this connection.
    async fn receive_all(&self, place: usize, owner: Rc<O>) {
        let link = &self.links[place];
        let (mut input, mut makes_sense) = (Input::with(&[]), true);
        loop {
            if makes_sense && let Err(why) = self.take_answers(link, &owner, &mut input) {
                owner.lost(self, format!("the server sent {why}"));
                makes_sense = false;
            }
            if !makes_sense {
                // Only the end of the stream says something now.
                input.consume(input.unread().len());
            }
            if self.is_over.get() && link.owed.get() == 0 {
                break;
            }
            let (free, lent) = input.lend();
            let (free, received) = self.handle.recv(&link.stream, free).await;
            let (bytes, why) = match received {
                Ok(0) => (0, Some("the server has hung up".to_owned())),
                Ok(bytes) => (bytes as usize, None),
                Err(Errno::INTR | Errno::AGAIN | Errno::CANCELED) => (0, None),
                Err(errno) => (0, Some(std::io::Error::from(errno).to_string())),
            };
            input.give_back(lent, free, bytes);
            if let Some(why) = why {
                link.settle(link.owed.get());
                owner.lost(self, why);
                break;
            }
        }
        self.handle.shutdown(&link.stream, Shutdown::Both);
    }

    /// Takes the answers that have come.
    fn take_answers(
        &self,
        link: &Link<O::Then>,
        owner: &Rc<O>,
        input: &mut Input,
    ) -> Result<(), Violation> {
        loop {
            let (used, event) = link.client.borrow_mut().advance(input.unread())?;
            input.consume(used);
            let (waiter, result) = match event {
                Event::Need(_) => return Ok(()),
                Event::Used => continue,
                Event::Ended(waiter, result) => (waiter, result),
            };
            link.settle(1);
            let Some(Waiter { sender, then }) = waiter else { continue };
            if result.as_ref().is_err_and(|number| *number == proto::SHUTDOWN) {
                // Not done: the next session does it.
                sender.send(Answer::Broken(Vec::new()));
                owner.lost(self, "the server is ending".to_owned());
            } else {
                sender.send(owner.answered(then, result));
                self.room.notify();
            }
        }
    }
}

impl<T> Link<T> {
    /// So many requests are not with the server any more.
    fn settle(&self, requests: usize) {
        // A server may answer what it has not got yet.
        let requests = requests.min(self.owed.get());
        self.owed.set(self.owed.get() - requests);
        self.held.take(requests);
    }
}

impl<T> Drop for Link<T> {
    fn drop(&mut self) {
        self.settle(self.owed.get());
    }
}

/// Headers in one buffer, and headers and data in order; neighbouring headers are one piece.
fn gather(batch: &[Outgoing]) -> Vec<Bytes> {
    let mut headers = Buf::new(batch.len() * proto::REQUEST_BYTES);
    for (header, outgoing) in headers.chunks_mut(proto::REQUEST_BYTES).zip(batch) {
        header.copy_from_slice(&outgoing.header);
    }
    let headers = headers.freeze();
    let (mut pieces, mut start) = (Vec::new(), 0);
    for (place, outgoing) in batch.iter().enumerate() {
        let Some(data) = &outgoing.data else { continue };
        let end = (place + 1) * proto::REQUEST_BYTES;
        pieces.push(headers.slice(start..end));
        pieces.extend(data.pieces().iter().filter(|piece| !piece.is_empty()).cloned());
        start = end;
    }
    if start < headers.len() {
        pieces.push(headers.slice(start..headers.len()));
    }
    pieces
}
