//! The connections of one session with a server, and the tasks that carry bytes: no thread, the core's own ring.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use voltier_block::{Buf, Bytes, Payload};
use voltier_nbd::{Client, Connected, Event, Input, cut_front, proto, request_header};
use voltier_ring::{Errno, Handle, OneshotSender, Signal, Stream, WakerCell, oneshot};

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
    fn lost(self: &Rc<Self>, session: &Rc<Session<Self>>, why: String)
    where
        Self: Sized;
}

struct Outgoing {
    header: [u8; proto::REQUEST_BYTES],
    data: Option<Payload>,
}

struct Link<T> {
    stream: Stream,
    client: RefCell<Client<Waiter<T>>>,
    outbox: RefCell<Vec<Outgoing>>,
    is_sending: Cell<bool>,
    sender: WakerCell,
}

/// A session: connections that began together and end together. Which of them a server has lost with its memory
/// could not be told, so one that breaks ends all.
pub(super) struct Session<O: Owner> {
    links: Vec<Link<O::Then>>,
    is_over: Cell<bool>,
    /// Told when a request has ended, and at the end.
    room: Signal,
}

impl<O: Owner> Session<O> {
    /// Begins one: its tasks run until it is over.
    pub(super) fn begin(handle: &Handle, owner: &Rc<O>, connected: Connected) -> Rc<Self> {
        let Connected { sockets, facts } = connected;
        let links = sockets.into_iter().map(|socket| {
            let stream = Stream::from_owned(socket);
            // It only makes things faster, and Unix sockets may refuse it.
            let _ = stream.set_buffer_bytes(SOCKET_BUFFER_BYTES);
            handle.close_on_failure(stream.fd());
            Link {
                stream,
                client: RefCell::new(Client::new(facts.structured)),
                outbox: RefCell::default(),
                is_sending: Cell::new(false),
                sender: WakerCell::default(),
            }
        });
        let session = Rc::new(Self {
            links: links.collect(),
            is_over: Cell::new(false),
            room: Signal::new(),
        });
        for place in 0..session.links.len() {
            let (own, of, at) = (session.clone(), owner.clone(), handle.clone());
            drop(handle.spawn(async move {
                let why = own.send_all(&at, place).await;
                of.lost(&own, why);
            }));
            let (own, of, at) = (session.clone(), owner.clone(), handle.clone());
            drop(handle.spawn(async move {
                let why = own.receive_all(&at, place, &of).await;
                of.lost(&own, why);
            }));
        }
        session
    }

    pub(super) fn connections(&self) -> usize {
        self.links.len()
    }

    /// Requests that the server has and has not answered.
    pub(super) fn under_way(&self) -> usize {
        self.links.iter().map(|link| link.client.borrow().under_way()).sum()
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
            link.take_leave();
            link.stream.shutdown();
            link.sender.wake();
            let left = link.client.borrow_mut().drain();
            for (waiter, bufs) in left {
                waiter.sender.send(Answer::Broken(bufs));
            }
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
        let cookie = link.client.borrow_mut().begin(Waiter { sender, then }, read);
        let Asked { kind, flags, offset, length, data } = asked;
        let header = request_header(kind, flags, cookie, offset, length);
        link.outbox.borrow_mut().push(Outgoing { header, data });
        link.sender.wake();
        receiver.await.unwrap_or(Answer::Broken(Vec::new()))
    }

    /// Sends requests as they come, many at once, until the session is over; why it is.
    async fn send_all(&self, handle: &Handle, place: usize) -> String {
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
                match handle.send(&link.stream, pieces.clone()).await {
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

    /// Receives answers until the session is over; why it is.
    async fn receive_all(&self, handle: &Handle, place: usize, owner: &Rc<O>) -> String {
        let link = &self.links[place];
        let mut input = Input::with(&[]);
        while !self.is_over.get() {
            let advanced = link.client.borrow_mut().advance(input.unread());
            let (used, event) = match advanced {
                Ok(step) => step,
                Err(violation) => return format!("the server sent {violation}"),
            };
            input.consume(used);
            match event {
                Event::Used => {}
                Event::Ended(Waiter { sender, then }, result) => {
                    if result.as_ref().is_err_and(|number| *number == proto::SHUTDOWN) {
                        // Not done: the next session does it.
                        sender.send(Answer::Broken(Vec::new()));
                        return "the server is ending".to_owned();
                    }
                    sender.send(owner.answered(then, result));
                    self.room.notify();
                }
                Event::Need(_) => {
                    let (free, lent) = input.lend();
                    let (free, received) = handle.recv(&link.stream, free).await;
                    let bytes = match received {
                        Ok(0) => return "the server has hung up".to_owned(),
                        Ok(bytes) => bytes as usize,
                        Err(Errno::INTR | Errno::AGAIN | Errno::CANCELED) => 0,
                        Err(errno) => return format!("{}", std::io::Error::from(errno)),
                    };
                    input.give_back(lent, free, bytes);
                }
            }
        }
        String::new()
    }
}

impl<T> Link<T> {
    /// Tells the server that nothing more comes, if nothing is under way.
    fn take_leave(&self) {
        let is_idle = self.client.borrow().under_way() == 0
            && self.outbox.borrow().is_empty()
            && !self.is_sending.get();
        if is_idle {
            let goodbye = request_header(proto::CMD_DISC, 0, 0, 0, 0);
            let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
            // A server that is gone already is what we want.
            let _ = rustix::net::send(self.stream.fd(), &goodbye, flags);
        }
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
