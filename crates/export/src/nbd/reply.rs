//! Replies of the transmission phase: simple ones, and structured chunks.

use super::proto::{self, ErrorCode};
use super::request::Request;

/// Longest header of a reply: a structured error with offset and text.
const HEADER_BYTES_MAX: usize = proto::STRUCTURED_REPLY_BYTES + 4 + 2 + 8 + MESSAGE_BYTES_MAX;

/// Longest error text, in bytes; the texts are ours and short.
const MESSAGE_BYTES_MAX: usize = 64;

/// Why a request failed, as the client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The error number.
    pub(super) code: ErrorCode,
    /// A short text, sent with structured replies; at most 64 bytes.
    pub(super) message: &'static str,
    /// The byte of the export at fault, when it is known.
    pub(super) offset: Option<u64>,
}

impl Failure {
    /// A failure at no particular byte.
    pub(super) const fn new(code: ErrorCode, message: &'static str) -> Self {
        Self { code, message, offset: None }
    }
}

/// The bytes of a reply before its data, if it has any.
#[derive(Clone, Copy)]
pub(super) struct ReplyHeader {
    bytes: [u8; HEADER_BYTES_MAX],
    len: usize,
}

impl ReplyHeader {
    const fn empty() -> Self {
        Self { bytes: [0; HEADER_BYTES_MAX], len: 0 }
    }

    fn put(mut self, part: &[u8]) -> Self {
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        self
    }

    fn simple(cookie: u64, error: u32) -> Self {
        Self::empty()
            .put(&proto::SIMPLE_REPLY_MAGIC.to_be_bytes())
            .put(&error.to_be_bytes())
            .put(&cookie.to_be_bytes())
    }

    /// The header of the only chunk of a reply: this server never needs a second one.
    fn chunk(cookie: u64, kind: u16, payload_bytes: u32) -> Self {
        Self::empty()
            .put(&proto::STRUCTURED_REPLY_MAGIC.to_be_bytes())
            .put(&proto::REPLY_FLAG_DONE.to_be_bytes())
            .put(&kind.to_be_bytes())
            .put(&cookie.to_be_bytes())
            .put(&payload_bytes.to_be_bytes())
    }
}

impl AsRef<[u8]> for ReplyHeader {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// What goes before the data of a successful read.
pub(super) fn read_reply(structured: bool, request: &Request) -> ReplyHeader {
    if !structured {
        return ReplyHeader::simple(request.cookie, 0);
    }
    ReplyHeader::chunk(request.cookie, proto::REPLY_TYPE_OFFSET_DATA, 8 + request.length)
        .put(&request.offset.to_be_bytes())
}

/// The whole reply to any other successful request. Simple even where structured replies are
/// agreed: the protocol leaves the choice for everything but reads, and it is shorter.
pub(super) fn success_reply(cookie: u64) -> ReplyHeader {
    ReplyHeader::simple(cookie, 0)
}

/// The whole reply to a failed request.
pub(super) fn error_reply(structured: bool, cookie: u64, failure: Failure) -> ReplyHeader {
    let code = failure.code as u32;
    if !structured {
        return ReplyHeader::simple(cookie, code);
    }
    let message = &failure.message.as_bytes()[..failure.message.len().min(MESSAGE_BYTES_MAX)];
    let text_bytes = 6 + message.len() as u32;
    let header = match failure.offset {
        None => ReplyHeader::chunk(cookie, proto::REPLY_TYPE_ERROR, text_bytes),
        Some(_) => ReplyHeader::chunk(cookie, proto::REPLY_TYPE_ERROR_OFFSET, text_bytes + 8),
    };
    let header =
        header.put(&code.to_be_bytes()).put(&(message.len() as u16).to_be_bytes()).put(message);
    match failure.offset {
        None => header,
        Some(offset) => header.put(&offset.to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::request::Command;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    const READ: Request = Request {
        command: Command::Read,
        cookie: 0x0102_0304_0506_0708,
        offset: 0x1_0000,
        length: 0x200,
        fua: false,
        no_hole: false,
    };

    #[test]
    fn simple_replies_have_the_golden_bytes() {
        let golden = "67446698000000000102030405060708";
        assert_eq!(hex(success_reply(READ.cookie).as_ref()), golden);
        assert_eq!(hex(read_reply(false, &READ).as_ref()), golden);
        let failure = Failure::new(ErrorCode::NoSpace, "unused");
        let error = error_reply(false, READ.cookie, failure);
        assert_eq!(hex(error.as_ref()), "674466980000001c0102030405060708");
    }

    #[test]
    fn structured_replies_have_the_golden_bytes() {
        let read = "668e33ef00010001010203040506070800000208".to_owned() + "0000000000010000";
        assert_eq!(hex(read_reply(true, &READ).as_ref()), read);
        let failure = Failure::new(ErrorCode::Invalid, "no");
        let error = "668e33ef00018001010203040506070800000008".to_owned() + "0000001600026e6f";
        assert_eq!(hex(error_reply(true, READ.cookie, failure).as_ref()), error);
        let failure = Failure { offset: Some(0x1_0000), ..Failure::new(ErrorCode::Io, "no") };
        let error = "668e33ef00018002010203040506070800000010".to_owned()
            + "0000000500026e6f"
            + "0000000000010000";
        assert_eq!(hex(error_reply(true, READ.cookie, failure).as_ref()), error);
    }

    #[test]
    fn an_overlong_text_is_cut_and_not_a_panic() {
        let long = "0123456789012345678901234567890123456789012345678901234567890123456789";
        let failure = Failure { offset: Some(1), ..Failure::new(ErrorCode::Io, long) };
        assert_eq!(error_reply(true, 1, failure).as_ref().len(), HEADER_BYTES_MAX);
    }
}
