//! The client's half of the protocol: requests built, answers taken apart.

use voltier_export::nbd::proto;

/// An option request, announcing `announced` bytes of data.
pub(super) fn option(into: &mut Vec<u8>, number: u32, data: &[u8], announced: u32) {
    into.extend(proto::OPTION_MAGIC.to_be_bytes());
    into.extend(number.to_be_bytes());
    into.extend(announced.to_be_bytes());
    into.extend(data);
}

/// The data of `OPT_INFO` and `OPT_GO`.
pub(super) fn info_data(name: &[u8], kinds: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name);
    data.extend((kinds.len() as u16).to_be_bytes());
    data.extend(kinds.iter().flat_map(|kind| kind.to_be_bytes()));
    data
}

/// A request header.
pub(super) struct Header {
    pub(super) magic: u32,
    pub(super) flags: u16,
    pub(super) kind: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
}

impl Header {
    pub(super) fn new(kind: u16, cookie: u64, offset: u64, length: u32) -> Self {
        Self { magic: proto::REQUEST_MAGIC, flags: 0, kind, cookie, offset, length }
    }

    pub(super) fn put(&self, into: &mut Vec<u8>) {
        into.extend(self.magic.to_be_bytes());
        into.extend(self.flags.to_be_bytes());
        into.extend(self.kind.to_be_bytes());
        into.extend(self.cookie.to_be_bytes());
        into.extend(self.offset.to_be_bytes());
        into.extend(self.length.to_be_bytes());
    }

    /// The header at the front of a stream, and what follows it.
    pub(super) fn take(stream: &[u8]) -> Option<(Self, &[u8])> {
        let (header, rest) = stream.split_first_chunk::<{ proto::REQUEST_BYTES }>()?;
        let header = Self {
            magic: number(&header[..4]) as u32,
            flags: number(&header[4..6]) as u16,
            kind: number(&header[6..8]) as u16,
            cookie: number(&header[8..16]),
            offset: number(&header[16..24]),
            length: number(&header[24..28]) as u32,
        };
        Some((header, rest))
    }
}

/// A big-endian number of any length up to eight bytes.
pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The greeting at the front of an answer, checked; what follows it.
pub(super) fn after_greeting(answer: &[u8]) -> &[u8] {
    let Some((greeting, rest)) = answer.split_at_checked(18) else { return &[] };
    assert_eq!(number(&greeting[..8]), proto::MAGIC);
    assert_eq!(number(&greeting[8..16]), proto::OPTION_MAGIC);
    rest
}

/// The answer to one option at the front of an answer: option, kind, data, and what follows.
pub(super) fn option_reply(answer: &[u8]) -> Option<(u32, u32, &[u8], &[u8])> {
    let (header, rest) = answer.split_first_chunk::<20>()?;
    if number(&header[..8]) != proto::OPTION_REPLY_MAGIC {
        return None;
    }
    let (data, rest) = rest.split_at_checked(number(&header[16..20]) as usize)?;
    Some((number(&header[8..12]) as u32, number(&header[12..16]) as u32, data, rest))
}

/// The bytes that follow the whole handshake of a client that ended the handshake with `OPT_GO`.
pub(super) fn after_go(answer: &[u8]) -> &[u8] {
    let mut rest = after_greeting(answer);
    while let Some((option, kind, _, behind)) = option_reply(rest) {
        rest = behind;
        if (option, kind) == (proto::OPT_GO, proto::REP_ACK) {
            return rest;
        }
    }
    &[]
}

/// One reply of the transmission phase.
pub(super) struct Reply<'a> {
    pub(super) cookie: u64,
    /// The data of a read, nothing for what has none; or an error number.
    pub(super) outcome: Result<&'a [u8], u32>,
}

/// The reply at the front of an answer, if it is there in whole. A simple reply does not say how
/// long its data are: `read_bytes` knows, by the cookie.
pub(super) fn reply<'a>(
    answer: &'a [u8],
    structured: bool,
    read_bytes: impl Fn(u64) -> usize,
) -> Option<(Reply<'a>, &'a [u8])> {
    let magic = number(answer.get(..4)?);
    if magic == u64::from(proto::SIMPLE_REPLY_MAGIC) {
        let (header, rest) = answer.split_at_checked(proto::SIMPLE_REPLY_BYTES)?;
        let (error, cookie) = (number(&header[4..8]) as u32, number(&header[8..16]));
        if error != 0 {
            return Some((Reply { cookie, outcome: Err(error) }, rest));
        }
        let (data, rest) = rest.split_at_checked(read_bytes(cookie))?;
        assert!(!structured || data.is_empty(), "data in a simple reply");
        return Some((Reply { cookie, outcome: Ok(data) }, rest));
    }
    assert_eq!(magic, u64::from(proto::STRUCTURED_REPLY_MAGIC), "no reply's magic");
    assert!(structured, "a structured reply to who did not ask");
    let (header, rest) = answer.split_at_checked(proto::STRUCTURED_REPLY_BYTES)?;
    assert_eq!(number(&header[4..6]), u64::from(proto::REPLY_FLAG_DONE));
    let (kind, cookie) = (number(&header[6..8]) as u16, number(&header[8..16]));
    let (payload, rest) = rest.split_at_checked(number(&header[16..20]) as usize)?;
    let outcome = match kind {
        proto::REPLY_TYPE_OFFSET_DATA => Ok(&payload[8..]),
        proto::REPLY_TYPE_ERROR | proto::REPLY_TYPE_ERROR_OFFSET => {
            Err(number(&payload[..4]) as u32)
        }
        other => panic!("a structured reply of kind {other}"),
    };
    Some((Reply { cookie, outcome }, rest))
}
