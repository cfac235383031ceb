//! Requests of a FUSE connection, as the kernel writes them or nearly so, against the session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use voltier_export::fuse::abi::{WRITE_HEAD_BYTES, opcode};
use voltier_export::fuse::{
    Action, Agreed, FileFacts, Reply, Request, Session, TRANSFER_BYTES_MAX,
};

use crate::input::Input;

/// Small, so that offsets near its end are found.
const VOLUME_BYTES: u64 = 256 << 10;
const HEADER_BYTES: usize = 40;
/// Longest error that Linux knows.
const ERRNO_MAX: i32 = 4095;
const SILENT: [u32; 4] =
    [opcode::FORGET, opcode::BATCH_FORGET, opcode::INTERRUPT, opcode::NOTIFY_REPLY];

/// Feeds the requests of one connection.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let how = input.byte();
    let file = FileFacts {
        size_bytes: VOLUME_BYTES,
        preferred_bytes: 4096,
        read_only: how & 1 != 0,
        can_punch: how & 2 != 0,
        mode: 0o600,
        owner: (0, 0),
        dated: (0, 0),
    };
    let agreed = (how & 4 == 0).then_some(Agreed { minor: 40, flags: 0 });
    let handles = Arc::<AtomicU64>::default();
    let mut session = Session::new(file, agreed, handles.clone());
    let mut opens = 0;
    while !input.is_empty() {
        let bytes = request(&mut input);
        let (head, body) = bytes.split_at(bytes.len().min(WRITE_HEAD_BYTES));
        let action = session.request(head, body);
        let is_last = matches!(action, Action::End(_));
        opens += check(&bytes, action);
        assert!(handles.load(Ordering::Relaxed) <= opens, "more open than was opened");
        if is_last {
            return;
        }
    }
}

/// A request, most right in most of its parts.
fn request(input: &mut Input<'_>) -> Vec<u8> {
    let (kind, change) = (input.byte(), input.byte());
    let kind = if kind < 240 { u32::from(kind % 50) } else { input.u32() };
    let rest = usize::from(input.byte());
    let mut bytes = vec![0; HEADER_BYTES];
    bytes[4..8].copy_from_slice(&kind.to_ne_bytes());
    bytes[8..16].copy_from_slice(&input.u64().to_ne_bytes());
    bytes.extend(input.take(rest));
    if kind == opcode::WRITE && change < 224 {
        bytes.resize(bytes.len().max(WRITE_HEAD_BYTES), 0);
        let data = (bytes.len() - WRITE_HEAD_BYTES) as u32;
        bytes[56..60].copy_from_slice(&data.to_ne_bytes());
    }
    let len = if change < 240 { bytes.len() as u32 } else { input.u32() };
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    if change >= 252 {
        bytes.truncate(usize::from(input.byte()));
    }
    bytes
}

/// Holds what is to be done against what was asked; how many opens there are in it.
fn check(bytes: &[u8], action: Action) -> u64 {
    let number = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    if bytes.len() < HEADER_BYTES {
        assert!(matches!(action, Action::End(None)), "{action:?}");
        return 0;
    }
    let (kind, unique) = (number(4), u64::from_ne_bytes(bytes[8..16].try_into().expect("eight")));
    let is_silent = SILENT.contains(&kind);
    match action {
        Action::Nothing => assert!(is_silent, "a request of kind {kind} without an answer"),
        Action::Reply(reply) | Action::End(Some(reply)) => {
            assert!(!is_silent, "an answer to what takes none");
            return u64::from(check_reply(&reply, unique) && kind == opcode::OPEN);
        }
        Action::Serve(number, request) => {
            assert_eq!(number, unique);
            check_request(request, bytes.len());
        }
        Action::End(None) => panic!("a request without an answer"),
    }
    0
}

/// Whether it is a good answer.
fn check_reply(reply: &Reply, unique: u64) -> bool {
    let bytes = reply.bytes();
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let error = word(4).cast_signed();
    assert_eq!(word(0) as usize, bytes.len());
    assert_eq!(bytes[8..16], unique.to_ne_bytes());
    assert!((-ERRNO_MAX..=0).contains(&error) && (error == 0 || bytes.len() == 16));
    error == 0
}

fn check_request(request: Request, bytes: usize) {
    let (offset, length) = match request {
        Request::Read { offset, length } => {
            assert!(length <= TRANSFER_BYTES_MAX.into());
            (offset, length)
        }
        Request::Write { offset, length, .. } => {
            assert!(WRITE_HEAD_BYTES + length <= bytes, "data that did not come");
            (offset, length as u64)
        }
        Request::Zero { offset, length, .. } => (offset, length),
        Request::Flush => return,
    };
    assert!(length > 0 && offset + length <= VOLUME_BYTES, "{request:?} outside the volume");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_requests_that_are_built_are_understood() {
        let mut served = BTreeSet::new();
        for seed in 0..=255u8 {
            let bytes: Vec<u8> = [seed, 0, 88].into_iter().chain([0; 96]).collect();
            let built = request(&mut Input::new(&bytes));
            served.insert(u32::from_ne_bytes(built[4..8].try_into().unwrap()));
        }
        assert!(served.contains(&opcode::WRITE) && served.contains(&opcode::INIT));
    }
}
