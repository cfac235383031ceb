//! One connection's protocol, without its socket.

use std::rc::Rc;

use super::close_reason::CloseReason;
use super::info::{ExportInfo, TRANSFER_BYTES_MAX};
use super::negotiate::{Negotiation, OPTION_BYTES_MAX, Step};
use super::proto;
use super::transmission::{RawRequest, Request, error_reply};

/// Longest data of a refused write that are read and dropped, in bytes. A client that announces
/// more has lost its place in the stream, or wants ours lost.
const REFUSED_BYTES_MAX: u32 = 2 * TRANSFER_BYTES_MAX;

/// The meaning of a session's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing before at least so many bytes of input are there; at most
    /// [`Session::INPUT_BYTES_MAX`].
    Need(usize),
    /// Bytes were used up, perhaps answered; call again.
    Used,
    /// A request to serve. After a [`Command::Write`](super::Command::Write) the next `length`
    /// bytes of the stream are its data: the caller takes them before it calls again.
    Request(Request),
    /// Send what was written, serve what is in flight, close.
    Close(CloseReason),
}

enum Phase {
    Negotiating(Negotiation),
    Transmission { structured: bool },
    Closed(CloseReason),
}

/// The server's side of one connection: bytes in, events and answers out.
///
/// Memory is bounded: the session keeps no input, and what one call appends to the output follows
/// from one option or one request.
pub struct Session {
    info: Rc<ExportInfo>,
    phase: Phase,
    skip_bytes: u64,
}

impl Session {
    /// The longest input a session ever waits for, in bytes.
    pub const INPUT_BYTES_MAX: usize = 16 + OPTION_BYTES_MAX;

    /// A session of a fresh connection; writes the greeting.
    pub fn new(info: Rc<ExportInfo>, out: &mut Vec<u8>) -> Self {
        let phase = Phase::Negotiating(Negotiation::greet(out));
        Self { info, phase, skip_bytes: 0 }
    }

    /// Whether the handshake is over.
    pub fn in_transmission(&self) -> bool {
        matches!(self.phase, Phase::Transmission { .. })
    }

    /// Whether replies are structured.
    pub fn structured(&self) -> bool {
        matches!(self.phase, Phase::Transmission { structured: true })
    }

    /// Looks at the unread input: how many of its bytes are used up, and what they mean. Answers
    /// that need no device (negotiation, refusals) are appended to `out`.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Event) {
        if self.skip_bytes > 0 {
            let skipped = self.skip_bytes.min(input.len() as u64);
            self.skip_bytes -= skipped;
            return match skipped {
                0 => (0, Event::Need(1)),
                _ => (skipped as usize, Event::Used),
            };
        }
        match &mut self.phase {
            Phase::Closed(reason) => (0, Event::Close(*reason)),
            Phase::Negotiating(_) => self.negotiate(input, out),
            Phase::Transmission { structured } => {
                let structured = *structured;
                self.request(structured, input, out)
            }
        }
    }

    fn negotiate(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Event) {
        let Phase::Negotiating(negotiation) = &mut self.phase else {
            unreachable!("only called while negotiating");
        };
        match negotiation.step(&self.info, input, out) {
            Step::Need(bytes) => (0, Event::Need(bytes)),
            Step::Used(bytes) => (bytes, Event::Used),
            Step::Skip(bytes, skip) => {
                self.skip_bytes = u64::from(skip);
                (bytes, Event::Used)
            }
            Step::Begin(bytes) => {
                self.phase = Phase::Transmission { structured: negotiation.structured };
                (bytes, Event::Used)
            }
            Step::Close(reason) => self.close(reason),
        }
    }

    fn request(&mut self, structured: bool, input: &[u8], out: &mut Vec<u8>) -> (usize, Event) {
        let Some(header) = input.first_chunk() else {
            return (0, Event::Need(proto::REQUEST_BYTES));
        };
        let Some(raw) = RawRequest::parse(header) else {
            return self.close(CloseReason::BadMagic);
        };
        if raw.kind == proto::CMD_DISC {
            return self.close(CloseReason::ClientLeft);
        }
        match raw.check(&self.info, structured) {
            Ok(request) => (proto::REQUEST_BYTES, Event::Request(request)),
            Err(_) if raw.kind == proto::CMD_WRITE && raw.length > REFUSED_BYTES_MAX => {
                self.close(CloseReason::WriteTooLong)
            }
            Err(failure) => {
                // Only writes carry data; those of a refused one are dropped.
                if raw.kind == proto::CMD_WRITE {
                    self.skip_bytes = u64::from(raw.length);
                }
                out.extend(error_reply(structured, raw.cookie, failure).as_ref());
                (proto::REQUEST_BYTES, Event::Used)
            }
        }
    }

    fn close(&mut self, reason: CloseReason) -> (usize, Event) {
        self.phase = Phase::Closed(reason);
        (0, Event::Close(reason))
    }
}
