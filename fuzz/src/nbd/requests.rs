//! The transmission phase: requests of every kind and shape, each reply held against a reference
//! server of one page that reads the same bytes.

use std::collections::BTreeMap;

use voltier_export::nbd::proto;

use super::exported::VOLUME_BYTES;
use super::protocol::{Header, after_go, info_data, option, reply};
use super::serve::serve;
use super::wire::{End, Pace, Script};
use crate::input::Input;

/// The longest script of one client, and the most receives that it comes in.
const SCRIPT_BYTES_MAX: usize = 1 << 20;
const RECEIVES_MAX: usize = 1 << 14;
/// Longest read or write that the server takes, and longest refused write whose data it skips.
const TRANSFER_BYTES_MAX: u32 = 32 << 20;
const SKIPPED_BYTES_MAX: u32 = 64 << 20;

/// Feeds one stream of requests.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let how = input.byte();
    let (structured, read_only) = (how & 1 != 0, how & 2 != 0);
    let pace = Pace { receive_bytes: input.byte(), send_bytes: input.byte() };
    let end = [End::HangUp, End::Reset, End::Silence][usize::from(how >> 2) % 3];
    let takes_bytes_max = if how & 64 == 0 { usize::MAX } else { usize::from(input.u16()) };
    let bytes_max = match usize::from(pace.receive_bytes) {
        0 => SCRIPT_BYTES_MAX,
        at_once => (at_once * RECEIVES_MAX).min(SCRIPT_BYTES_MAX),
    };
    let stream = requests(&mut input, bytes_max);
    let mut bytes = 3u32.to_be_bytes().to_vec();
    if structured {
        option(&mut bytes, proto::OPT_STRUCTURED_REPLY, &[], 0);
    }
    option(&mut bytes, proto::OPT_GO, &info_data(b"", &[]), 6);
    bytes.extend(&stream);
    let answer = serve(Script { bytes, pace, end, takes_bytes_max }, read_only);
    let expected = Reference { structured, read_only }.serve(&stream);
    let all = takes_bytes_max == usize::MAX;
    check(after_go(&answer), structured, expected, all);
}

/// A stream of requests, most of them right in most of their parts. Cookies number the requests.
fn requests(input: &mut Input<'_>, bytes_max: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut cookie = 0;
    while !input.is_empty() && bytes.len() < bytes_max {
        cookie += 1;
        let what = input.byte();
        let mut header = Header::new(u16::from(what % 8), cookie, 0, 0);
        (header.offset, header.length) = match what / 8 % 8 {
            // Any block near either end, any number of blocks.
            0..3 => (u64::from(input.byte()) * 512, u32::from(input.byte()) * 512),
            3 => (VOLUME_BYTES - u64::from(input.byte()) * 512, u32::from(input.byte() % 16) * 512),
            4 => (0, 0),
            5 => (u64::from(input.u16()), u32::from(input.u16())),
            6 => (u64::from(input.byte()) * 512, input.u32() >> (input.byte() % 32)),
            _ => (input.u64(), input.u32()),
        };
        match what / 64 {
            0 | 1 => {}
            2 => header.flags = u16::from(input.byte() % 8),
            _ => distort(&mut header, input, &mut bytes),
        }
        header.put(&mut bytes);
        if header.kind == proto::CMD_WRITE {
            let room = bytes_max.saturating_sub(bytes.len());
            let there = room.min(header.length as usize);
            bytes.extend(std::iter::repeat_n(cookie as u8, there));
        }
    }
    bytes
}

/// Something that no client of ours would send.
fn distort(header: &mut Header, input: &mut Input<'_>, before: &mut Vec<u8>) {
    match input.byte() % 8 {
        0 => header.magic ^= 1 << (input.byte() % 32),
        1 => header.kind = input.u16(),
        2 => header.flags = input.u16(),
        3 => {
            let count = usize::from(input.byte());
            before.extend(input.take(count));
        }
        // The same request many times over: more than may be in flight.
        4 => {
            for again in 0..u64::from(input.byte()) * 2 {
                let kind = proto::CMD_READ;
                Header::new(kind, header.cookie << 32 | again, header.offset, 512).put(before);
            }
        }
        _ => {}
    }
}

/// The answer that a request is owed.
enum Owed {
    Data(Vec<u8>),
    Success,
    Error,
}

/// The rules of the protocol, as short as they can be said.
struct Reference {
    structured: bool,
    read_only: bool,
}

impl Reference {
    fn serve(&self, mut stream: &[u8]) -> BTreeMap<u64, Vec<Owed>> {
        let mut volume = vec![0; VOLUME_BYTES as usize];
        let mut owed: BTreeMap<u64, Vec<Owed>> = BTreeMap::new();
        while let Some((header, rest)) = Header::take(stream) {
            stream = rest;
            if header.magic != proto::REQUEST_MAGIC || header.kind == proto::CMD_DISC {
                break;
            }
            let good = self.allows(&header);
            let mut data: &[u8] = &[];
            if header.kind == proto::CMD_WRITE {
                if !good && header.length > SKIPPED_BYTES_MAX {
                    break;
                }
                let there = (header.length as usize).min(stream.len());
                (data, stream) = stream.split_at(there);
                if good && there < header.length as usize {
                    break;
                }
            }
            let outcome = if good { answer(&mut volume, &header, data) } else { Owed::Error };
            owed.entry(header.cookie).or_default().push(outcome);
        }
        owed
    }

    fn allows(&self, header: &Header) -> bool {
        let mut flags = if self.read_only { 0 } else { proto::CMD_FLAG_FUA };
        let transfers = matches!(header.kind, proto::CMD_READ | proto::CMD_WRITE);
        match header.kind {
            proto::CMD_READ if self.structured => flags |= proto::CMD_FLAG_DF,
            proto::CMD_WRITE_ZEROES => flags |= proto::CMD_FLAG_NO_HOLE,
            proto::CMD_READ | proto::CMD_WRITE | proto::CMD_FLUSH | proto::CMD_TRIM => {}
            _ => return false,
        }
        if header.flags & !flags != 0 {
            return false;
        }
        if header.kind == proto::CMD_FLUSH {
            return (header.offset, header.length) == (0, 0);
        }
        let end = u128::from(header.offset) + u128::from(header.length);
        (header.kind == proto::CMD_READ || !self.read_only)
            && (header.length > 0 && end <= u128::from(VOLUME_BYTES))
            && !(transfers && header.length > TRANSFER_BYTES_MAX)
    }
}

fn answer(volume: &mut [u8], header: &Header, data: &[u8]) -> Owed {
    if header.kind == proto::CMD_FLUSH {
        return Owed::Success;
    }
    let start = header.offset as usize;
    let range = &mut volume[start..start + header.length as usize];
    match header.kind {
        proto::CMD_READ => return Owed::Data(range.to_vec()),
        proto::CMD_WRITE => range.copy_from_slice(data),
        // Whole sectors that a trim gives up read as zeroes in memory; the others stay.
        proto::CMD_TRIM => {
            let end = start + header.length as usize;
            let first = start.next_multiple_of(512).min(end);
            let last = (end - end % 512).max(first);
            range[first - start..last - start].fill(0);
        }
        _ => range.fill(0),
    }
    Owed::Success
}

/// Every reply is owed, and right; every request owed one has it, if the client took them all.
fn check(answer: &[u8], structured: bool, mut owed: BTreeMap<u64, Vec<Owed>>, all: bool) {
    let mut rest = answer;
    loop {
        let read_bytes = |cookie| match owed.get(&cookie).and_then(|owed| owed.first()) {
            Some(Owed::Data(data)) => data.len(),
            _ => 0,
        };
        let Some((reply, behind)) = reply(rest, structured, read_bytes) else { break };
        rest = behind;
        let cookie = reply.cookie;
        let owed = owed.get_mut(&cookie).unwrap_or_else(|| panic!("{cookie} was not asked"));
        assert!(!owed.is_empty(), "{cookie} is answered too often");
        match (owed.remove(0), reply.outcome) {
            (Owed::Data(data), Ok(sent)) => {
                let wrong = (0..data.len()).find(|at| sent.get(*at) != data.get(*at));
                assert!(data.len() == sent.len(), "{} bytes for {cookie}", sent.len());
                assert_eq!(wrong, None, "the first wrong byte for {cookie}");
            }
            (Owed::Success, Ok(sent)) => assert!(sent.is_empty()),
            (Owed::Error, Err(error)) => assert_ne!(error, 0),
            (Owed::Error, Ok(_)) => panic!("{cookie} must be refused"),
            (_, Err(error)) => panic!("{cookie} must be served, not refused with {error}"),
        }
    }
    if all {
        let missing: Vec<u64> =
            owed.iter().filter(|(_, owed)| !owed.is_empty()).map(|(cookie, _)| *cookie).collect();
        assert!(missing.is_empty(), "no reply to {missing:?}");
        assert!(rest.is_empty(), "half a reply");
    }
}
