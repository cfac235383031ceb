//! Changes of the cache's state, as the log makes them durable.

use voltier_block::Bytes;

/// Where a line's data comes from; decides what happens when the line changed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A client's write, under the line's lock.
    Write { dirty: bool },
    /// A copy of the origin: dropped if the line is there by now.
    Fill,
}

/// A change of the cache's state, to be made durable by the log.
#[derive(Debug)]
pub(crate) enum Change {
    /// The line's data, one whole line; only the sectors of `mask` count if there is one.
    Data { line: u64, data: Bytes, mask: Option<u128>, source: Source },
    /// The origin has the copy that was in `slot`, with this CRC and mask.
    Clean { line: u64, slot: u32, crc_bits: u32, mask: Option<u128> },
    /// The line is not to be served from the cache any more.
    Drop { line: u64 },
}
