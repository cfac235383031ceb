//! The numbers of the NBD protocol.
//!
//! Source of every constant: the protocol document of the NBD project, `doc/proto.md` in
//! <https://github.com/NetworkBlockDevice/nbd>, under the heading named beside each group. All
//! integers on the wire are big-endian.

use voltier_block::IoError;

// "Newstyle negotiation" and "Fixed newstyle negotiation".

/// First word of the server's greeting: the ASCII text `NBDMAGIC`.
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of the greeting, and first word of every option request: `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First word of every option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Handshake flag, both directions: the fixed newstyle.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag, both directions: no 124 zeroes after the answer to `OPT_EXPORT_NAME`.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;
/// Zeroes after the answer to `OPT_EXPORT_NAME` for clients that did not ask to be spared them.
pub const EXPORT_NAME_ZEROES: usize = 124;

// "Transmission flags".

/// Always set.
pub const FLAG_HAS_FLAGS: u16 = 1 << 0;
/// The export takes no writes.
pub const FLAG_READ_ONLY: u16 = 1 << 1;
/// `CMD_FLUSH` is served.
pub const FLAG_SEND_FLUSH: u16 = 1 << 2;
/// `CMD_FLAG_FUA` is served.
pub const FLAG_SEND_FUA: u16 = 1 << 3;
/// The client should schedule as for a rotating medium.
pub const FLAG_ROTATIONAL: u16 = 1 << 4;
/// `CMD_TRIM` is served.
pub const FLAG_SEND_TRIM: u16 = 1 << 5;
/// `CMD_WRITE_ZEROES` and `CMD_FLAG_NO_HOLE` are served.
pub const FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
/// `CMD_FLAG_DF` is served (only with structured replies).
pub const FLAG_SEND_DF: u16 = 1 << 7;
/// A flush on one connection covers the writes of all connections.
pub const FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
/// `CMD_FLAG_FAST_ZERO` is served.
pub const FLAG_SEND_FAST_ZERO: u16 = 1 << 11;

// "Option types".

/// Choose an export and begin; no way to answer an error.
pub const OPT_EXPORT_NAME: u32 = 1;
/// End the session.
pub const OPT_ABORT: u32 = 2;
/// Name the exports.
pub const OPT_LIST: u32 = 3;
/// Facts about an export.
pub const OPT_INFO: u32 = 6;
/// Facts about an export, then begin.
pub const OPT_GO: u32 = 7;
/// Agree on structured replies.
pub const OPT_STRUCTURED_REPLY: u32 = 8;

// "Option reply types".

/// The option is accepted, or its list of answers is complete.
pub const REP_ACK: u32 = 1;
/// One export of the list.
pub const REP_SERVER: u32 = 2;
/// One fact about an export.
pub const REP_INFO: u32 = 3;
/// Set in the types of all errors.
pub const REP_FLAG_ERROR: u32 = 1 << 31;
/// The option is not known here.
pub const REP_ERR_UNSUP: u32 = (1 << 31) + 1;
/// The server's configuration forbids it.
pub const REP_ERR_POLICY: u32 = (1 << 31) + 2;
/// The option's data make no sense.
pub const REP_ERR_INVALID: u32 = (1 << 31) + 3;
/// Not without TLS.
pub const REP_ERR_TLS_REQD: u32 = (1 << 31) + 5;
/// No export of that name.
pub const REP_ERR_UNKNOWN: u32 = (1 << 31) + 6;
/// The option's data are longer than this server reads.
pub const REP_ERR_TOO_BIG: u32 = (1 << 31) + 9;

/// Information type: size and transmission flags.
pub const INFO_EXPORT: u16 = 0;
/// Information type: the canonical name.
pub const INFO_NAME: u16 = 1;
/// Information type: a text for people.
pub const INFO_DESCRIPTION: u16 = 2;
/// Information type: minimum, preferred and maximum block size.
pub const INFO_BLOCK_SIZE: u16 = 3;

/// "Values": the longest string either side may send, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;

// "Request message" and "Request types".

/// First word of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Length of a request header, in bytes.
pub const REQUEST_BYTES: usize = 28;
/// Read.
pub const CMD_READ: u16 = 0;
/// Write; the data follow the header.
pub const CMD_WRITE: u16 = 1;
/// Finish what is in flight and close; no reply.
pub const CMD_DISC: u16 = 2;
/// Make completed writes durable.
pub const CMD_FLUSH: u16 = 3;
/// Give the content of a range up.
pub const CMD_TRIM: u16 = 4;
/// Write zeroes without sending them.
pub const CMD_WRITE_ZEROES: u16 = 6;

/// "Command flags": durable when it completes.
pub const CMD_FLAG_FUA: u16 = 1 << 0;
/// "Command flags": zeroes must stay allocated.
pub const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
/// "Command flags": the answer to a read must be one chunk.
pub const CMD_FLAG_DF: u16 = 1 << 2;
/// "Command flags": fail with `NBD_ENOTSUP` if zeroes would be written as data.
pub const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

// "Simple reply message" and "Structured reply chunk message".

/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Length of a simple reply header, in bytes.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// First word of a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Length of a structured reply chunk's header, in bytes.
pub const STRUCTURED_REPLY_BYTES: usize = 20;
/// "Structured reply flags": the last chunk of its request.
pub const REPLY_FLAG_DONE: u16 = 1 << 0;
/// "Structured reply types": nothing but the end.
pub const REPLY_TYPE_NONE: u16 = 0;
/// "Structured reply types": data at an offset.
pub const REPLY_TYPE_OFFSET_DATA: u16 = 1;
/// "Structured reply types": zeroes at an offset.
pub const REPLY_TYPE_OFFSET_HOLE: u16 = 2;
/// "Structured reply types": set in the types of all errors.
pub const REPLY_TYPE_FLAG_ERROR: u16 = 1 << 15;
/// "Structured reply types": an error with a text.
pub const REPLY_TYPE_ERROR: u16 = (1 << 15) + 1;
/// "Structured reply types": an error with a text at a known offset.
pub const REPLY_TYPE_ERROR_OFFSET: u16 = (1 << 15) + 2;

/// "Error values", `NBD_ESHUTDOWN`: the server is about to end.
pub const SHUTDOWN: u32 = 108;

/// "Error values": why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// `NBD_EPERM`: a write on a read-only export.
    NotPermitted = 1,
    /// `NBD_EIO`: the medium failed.
    Io = 5,
    /// `NBD_EINVAL`: the request makes no sense.
    Invalid = 22,
    /// `NBD_ENOSPC`: a write past the end, or no room left.
    NoSpace = 28,
    /// `NBD_EOVERFLOW`: too long to be answered in one chunk, as `CMD_FLAG_DF` asks.
    Overflow = 75,
    /// `NBD_ENOTSUP`: the device cannot do this.
    NotSupported = 95,
}

impl From<IoError> for ErrorCode {
    fn from(error: IoError) -> Self {
        match error {
            IoError::OutOfRange => ErrorCode::Invalid,
            IoError::Medium | IoError::Gone => ErrorCode::Io,
            IoError::ReadOnly => ErrorCode::NotPermitted,
            IoError::NoSpace => ErrorCode::NoSpace,
            IoError::Unsupported => ErrorCode::NotSupported,
        }
    }
}

/// The first four bytes as a number.
pub fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The first eight bytes as a number.
pub fn be64(bytes: &[u8]) -> u64 {
    u64::from(be32(bytes)) << 32 | u64::from(be32(&bytes[4..]))
}
