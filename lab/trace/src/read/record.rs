//! A record of a trace: a request, or something else that belongs there.

use serde::Serialize;

/// Addresses end here: 8 PiB. A record that goes past it is broken: no drive is so large.
pub const ADDRESS_LIMIT: u64 = 1 << 53;

/// The most bytes of a read or a write. A longer record is broken.
pub const REQUEST_LIMIT: u64 = 256 << 20;

/// Volumes of a trace at most.
pub const VOLUMES_MAX: usize = 1 << 20;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Gives the range up.
    Discard,
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The time when the request was made, nanoseconds by the trace's own clock; zero in formats without
    /// times.
    pub at_ns: u64,
    /// The operation.
    pub op: Op,
    /// Number of its volume among those of the trace: see [`volumes`](crate::Source::volumes).
    pub volume: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes, never zero.
    pub bytes: u64,
}

/// Records that are none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Broken {
    /// How many.
    pub records: u64,
    /// File and line (or record) of the first, and what is wrong with it.
    pub first: Option<String>,
}

/// A record as its reader understood it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    /// A request.
    Request(Parsed),
    /// Something else that belongs there: a header, a flush, an event that is no request.
    Other,
}

/// A request as its record has it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Parsed {
    pub(super) at_ns: u64,
    pub(super) op: Op,
    pub(super) volume: Volume,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// The volume that a record names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Volume {
    /// The format names none: the file is the volume.
    File,
    /// By this name.
    Named(String),
    /// Linux device number: major and minor.
    Device(u32, u32),
}

/// Checks what all formats have in common.
pub(super) fn checked(
    at_ns: u64,
    op: Op,
    volume: Volume,
    offset: u64,
    bytes: u64,
) -> Result<Record, String> {
    if bytes == 0 {
        return Ok(Record::Other);
    }
    if bytes > REQUEST_LIMIT && op != Op::Discard {
        return Err(format!("a request of {bytes} bytes"));
    }
    match offset.checked_add(bytes) {
        Some(end) if end <= ADDRESS_LIMIT => {
            Ok(Record::Request(Parsed { at_ns, op, volume, offset, bytes }))
        }
        _ => Err(format!("{bytes} bytes at {offset} lie beyond 8 PiB")),
    }
}

/// A number times a unit, if it fits.
pub(super) fn scaled(value: u64, unit: u64, what: &str) -> Result<u64, String> {
    value.checked_mul(unit).ok_or_else(|| format!("{what} {value} is too large"))
}
