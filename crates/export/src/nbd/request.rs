//! Request headers: parsed, then held against what the export can do.

use super::info::{ExportInfo, TRANSFER_BYTES_MAX};
use super::proto::{self, ErrorCode};
use super::reply::Failure;

/// What a request wants done.
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

/// A request that the export can serve: inside it, aligned, and within the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to do.
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

    /// Holds the request against the export. What comes back as an error is answered, and the
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
        let block = u64::from(info.limits.block_bytes);
        if length == 0 {
            return fail(ErrorCode::Invalid, "length is zero");
        }
        if !length.is_multiple_of(block) || !self.offset.is_multiple_of(block) {
            return fail(ErrorCode::Invalid, "not aligned to the minimum block size");
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

/// The first four bytes as a number.
pub(super) fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The first eight bytes as a number.
pub(super) fn be64(bytes: &[u8]) -> u64 {
    u64::from(be32(bytes)) << 32 | u64::from(be32(&bytes[4..]))
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
            (raw(CMD_READ, 0, 1, 512), Some(ErrorCode::Invalid)),
            (raw(CMD_READ, 0, 0, 513), Some(ErrorCode::Invalid)),
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
        assert_eq!(code(raw(CMD_READ, 0, 512, 512), &large_blocks), Some(ErrorCode::Invalid));
        let no_trim = export(|limits| limits.after_discard = AfterDiscard::Unchanged);
        assert_eq!(code(raw(CMD_TRIM, 0, 0, 512), &no_trim), Some(ErrorCode::Invalid));
    }
}
