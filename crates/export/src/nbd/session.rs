//! One connection's protocol, without its socket: the handshake handed on, requests parsed and held
//! against the export, replies formed.

use std::rc::Rc;

use voltier_nbd::proto::{self, ErrorCode, be32, be64};

use super::close_reason::CloseReason;
use super::failure::Failure;
use super::info::{ExportInfo, TRANSFER_BYTES_MAX};
use super::negotiate::{Negotiation, OPTION_BYTES_MAX, Step};

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

/// A place between two requests, at which another session can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// Whether replies are structured.
    pub(super) structured: bool,
    /// Bytes of a refused write that are still to be dropped.
    pub(super) skip_bytes: u64,
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

    /// A session that goes on where an earlier one has ended.
    pub(super) fn at(info: Rc<ExportInfo>, point: Point) -> Self {
        let Point { structured, skip_bytes } = point;
        Self { info, phase: Phase::Transmission { structured }, skip_bytes }
    }

    /// Where another session can go on, once the handshake is over. To be asked between two events.
    pub(super) fn point(&self) -> Option<Point> {
        match self.phase {
            Phase::Transmission { structured } => {
                Some(Point { structured, skip_bytes: self.skip_bytes })
            }
            Phase::Negotiating(_) | Phase::Closed(_) => None,
        }
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

/// The operation that a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read a range.
    Read,
    /// Write a range; its data follow.
    Write,
    /// Make completed writes durable.
    Flush,
    /// Give the content of a range up.
    Trim,
    /// Make a range read as zeroes.
    WriteZeroes,
}

/// A request that the export can serve: inside it, and within the limits. The bytes may begin and end
/// anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub command: Command,
    /// The client's name for the request, echoed in the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes; zero for a flush only.
    pub length: u32,
    /// Durable when it completes.
    pub fua: bool,
    /// Zeroes must be written, not punched.
    pub no_hole: bool,
}

/// A request header as it came, its magic aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawRequest {
    pub(super) flags: u16,
    pub(super) kind: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
}

impl RawRequest {
    /// Parses a header, or `None` when its magic is wrong.
    pub(super) fn parse(bytes: &[u8; proto::REQUEST_BYTES]) -> Option<Self> {
        if bytes[..4] != proto::REQUEST_MAGIC.to_be_bytes() {
            return None;
        }
        Some(Self {
            flags: u16::from_be_bytes([bytes[4], bytes[5]]),
            kind: u16::from_be_bytes([bytes[6], bytes[7]]),
            cookie: be64(&bytes[8..16]),
            offset: be64(&bytes[16..24]),
            length: be32(&bytes[24..28]),
        })
    }

    /// Holds the request against the export. The caller answers an error, and the
    /// connection goes on.
    pub(super) fn check(&self, info: &ExportInfo, structured: bool) -> Result<Request, Failure> {
        let invalid = |message| Failure::new(ErrorCode::Invalid, message);
        let (command, flags_known) = match self.kind {
            proto::CMD_READ if structured => (Command::Read, proto::CMD_FLAG_DF),
            proto::CMD_READ => (Command::Read, 0),
            proto::CMD_WRITE => (Command::Write, 0),
            proto::CMD_FLUSH => (Command::Flush, 0),
            proto::CMD_TRIM => (Command::Trim, 0),
            proto::CMD_WRITE_ZEROES => (Command::WriteZeroes, proto::CMD_FLAG_NO_HOLE),
            _ => return Err(invalid("unknown command")),
        };
        // FUA was announced for the export, so the protocol lets it come with every command.
        let fua = if info.limits.read_only { 0 } else { proto::CMD_FLAG_FUA };
        if self.flags & !(flags_known | fua) != 0 {
            return Err(invalid("unknown or unannounced command flag"));
        }
        self.check_range(command, info)?;
        Ok(Request {
            command,
            cookie: self.cookie,
            offset: self.offset,
            length: self.length,
            fua: self.flags & proto::CMD_FLAG_FUA != 0,
            no_hole: self.flags & proto::CMD_FLAG_NO_HOLE != 0,
        })
    }

    fn check_range(&self, command: Command, info: &ExportInfo) -> Result<(), Failure> {
        let fail = |code, message| Err(Failure::new(code, message));
        let changes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        if changes && info.limits.read_only {
            return fail(ErrorCode::NotPermitted, "the export is read-only");
        }
        if command == Command::Flush {
            return match (self.offset, self.length) {
                (0, 0) => Ok(()),
                _ => fail(ErrorCode::Invalid, "a flush has neither offset nor length"),
            };
        }
        if command == Command::Trim && !info.serves_trim() {
            return fail(ErrorCode::Invalid, "trim is not served");
        }
        let length = u64::from(self.length);
        if length == 0 {
            return fail(ErrorCode::Invalid, "length is zero");
        }
        let past_end = self.offset.checked_add(length).is_none_or(|end| end > info.limits.bytes());
        if past_end {
            return match command {
                Command::Write | Command::WriteZeroes => {
                    fail(ErrorCode::NoSpace, "beyond the end of the export")
                }
                _ => fail(ErrorCode::Invalid, "beyond the end of the export"),
            };
        }
        let has_data = matches!(command, Command::Read | Command::Write);
        if has_data && self.length > TRANSFER_BYTES_MAX {
            let one_chunk = self.flags & proto::CMD_FLAG_DF != 0;
            let code = if one_chunk { ErrorCode::Overflow } else { ErrorCode::Invalid };
            return fail(code, "longer than the maximum block size");
        }
        Ok(())
    }
}

/// Longest header of a reply: a structured error with offset and text.
const HEADER_BYTES_MAX: usize = proto::STRUCTURED_REPLY_BYTES + 4 + 2 + 8 + MESSAGE_BYTES_MAX;

/// Longest error text, in bytes; the texts are ours and short.
const MESSAGE_BYTES_MAX: usize = 64;

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

/// The header before the data of a successful read.
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
    use voltier_block::{AfterDiscard, Limits, MIB};

    fn export(change: impl FnOnce(&mut Limits)) -> ExportInfo {
        let mut limits = Limits::plain(64 * MIB);
        change(&mut limits);
        ExportInfo::new("disk", "", limits, false)
    }

    fn raw(kind: u16, flags: u16, offset: u64, length: u32) -> RawRequest {
        RawRequest { flags, kind, cookie: 9, offset, length }
    }

    fn code(request: RawRequest, info: &ExportInfo) -> Option<ErrorCode> {
        request.check(info, true).err().map(|failure| failure.code)
    }

    #[test]
    fn a_header_has_the_golden_layout() {
        let mut bytes = [0; proto::REQUEST_BYTES];
        let golden = "25609513000100010001020304050607000000000000002000000010";
        for (byte, pair) in bytes.iter_mut().zip(golden.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        }
        let parsed = RawRequest::parse(&bytes).unwrap();
        assert_eq!((parsed.kind, parsed.flags), (proto::CMD_WRITE, proto::CMD_FLAG_FUA));
        assert_eq!(parsed.cookie, 0x0001_0203_0405_0607);
        assert_eq!((parsed.offset, parsed.length), (0x20, 0x10));
        bytes[0] = 0;
        assert_eq!(RawRequest::parse(&bytes), None);
    }

    #[test]
    fn each_bad_request_gets_the_error_the_protocol_names() {
        use proto::*;
        let plain = export(|_| ());
        let end = 64 * MIB;
        let expectations = [
            (raw(CMD_READ, 0, 0, 512), None),
            (raw(CMD_READ, CMD_FLAG_DF | CMD_FLAG_FUA, end - 512, 512), None),
            (raw(CMD_READ, 0, 0, 32 << 20), None),
            (raw(CMD_READ, 0, 0, 33 << 20), Some(ErrorCode::Invalid)),
            (raw(CMD_READ, CMD_FLAG_DF, 0, 33 << 20), Some(ErrorCode::Overflow)),
            (raw(CMD_READ, 0, 0, 0), Some(ErrorCode::Invalid)),
            (raw(CMD_READ, 0, 1, 512), None),
            (raw(CMD_WRITE, 0, end - 1, 1), None),
            (raw(CMD_WRITE, 0, end - 1, 2), Some(ErrorCode::NoSpace)),
            (raw(CMD_TRIM, 0, 1, 1), None),
            (raw(CMD_READ, 0, 0, 513), None),
            (raw(CMD_READ, 0, end, 512), Some(ErrorCode::Invalid)),
            (raw(CMD_READ, CMD_FLAG_NO_HOLE, 0, 512), Some(ErrorCode::Invalid)),
            (raw(CMD_WRITE, 0, end - 512, 1024), Some(ErrorCode::NoSpace)),
            (raw(CMD_WRITE, 0, u64::MAX - 511, 512), Some(ErrorCode::NoSpace)),
            (raw(CMD_WRITE, 1 << 4, 0, 512), Some(ErrorCode::Invalid)),
            (raw(CMD_WRITE_ZEROES, CMD_FLAG_NO_HOLE, 0, 64 << 20), None),
            (raw(CMD_WRITE_ZEROES, 0, end, 512), Some(ErrorCode::NoSpace)),
            (raw(CMD_WRITE_ZEROES, 1 << 4, 0, 512), Some(ErrorCode::Invalid)),
            (raw(CMD_TRIM, 0, 0, 64 << 20), None),
            (raw(CMD_TRIM, 0, end, 512), Some(ErrorCode::Invalid)),
            (raw(CMD_FLUSH, 0, 0, 0), None),
            (raw(CMD_FLUSH, 0, 512, 0), Some(ErrorCode::Invalid)),
            (raw(5, 0, 0, 512), Some(ErrorCode::Invalid)),
            (raw(7, 0, 0, 512), Some(ErrorCode::Invalid)),
            (raw(0xffff, 0, 0, 512), Some(ErrorCode::Invalid)),
        ];
        for (request, expected) in expectations {
            assert_eq!(code(request, &plain), expected, "{request:?}");
        }
        let no_df = raw(CMD_READ, CMD_FLAG_DF, 0, 512).check(&plain, false);
        assert_eq!(no_df.unwrap_err().code, ErrorCode::Invalid);
    }

    #[test]
    fn the_devices_own_limits_are_kept() {
        use proto::*;
        let read_only = export(|limits| limits.read_only = true);
        for kind in [CMD_WRITE, CMD_TRIM, CMD_WRITE_ZEROES] {
            let refused = code(raw(kind, 0, 0, 512), &read_only);
            assert_eq!(refused, Some(ErrorCode::NotPermitted));
        }
        assert_eq!(code(raw(CMD_READ, 0, 0, 512), &read_only), None);
        let large_blocks = export(|limits| limits.block_bytes = 4096);
        assert_eq!(code(raw(CMD_READ, 0, 512, 512), &large_blocks), None);
        let no_trim = export(|limits| limits.after_discard = AfterDiscard::Unchanged);
        assert_eq!(code(raw(CMD_TRIM, 0, 0, 512), &no_trim), Some(ErrorCode::Invalid));
    }

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
