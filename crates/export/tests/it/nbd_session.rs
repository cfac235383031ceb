//! The NBD protocol without sockets: golden conversations, and inputs meant to break it.

use std::rc::Rc;

use voltier_block::{Limits, MIB, Prng};
use voltier_export::nbd::{CloseReason, Command, Event, ExportInfo, Session, proto};

use crate::support::consume::consume;

fn export() -> Rc<ExportInfo> {
    Rc::new(ExportInfo::new("disk", "a test", Limits::plain(64 * MIB), false))
}

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

/// Runs a conversation from the start; the greeting is checked and cut off the answer.
fn converse(input: &[u8]) -> (Session, Vec<u8>) {
    let mut out = Vec::new();
    let mut session = Session::new(export(), &mut out);
    assert_eq!(out, hex("4e42444d41474943 49484156454f5054 0003"));
    out.clear();
    consume(&mut session, input, &mut out);
    (session, out)
}

fn closed_for(session: &mut Session, input: &[u8]) -> Option<CloseReason> {
    match session.advance(input, &mut Vec::new()).1 {
        Event::Close(reason) => Some(reason),
        _ => None,
    }
}

const OPTION: &str = "49484156454f5054";
const REPLY: &str = "0003e889045565a9";
/// HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, CAN_MULTI_CONN.
const FLAGS: &str = "016d";

#[test]
fn go_begins_with_export_block_sizes_name_and_description() {
    // GO "disk" with requests for NAME, DESCRIPTION, BLOCK_SIZE
    let go = format!("00000003 {OPTION} 00000007 00000010 00000004 6469736b 0003 0001 0002 0003");
    let (session, out) = converse(&hex(&go));
    assert!(session.in_transmission() && !session.structured());
    let expected = format!(
        "{REPLY} 00000007 00000003 0000000c 0000 0000000004000000 {FLAGS}
         {REPLY} 00000007 00000003 0000000e 0003 00000001 00001000 02000000
         {REPLY} 00000007 00000003 00000006 0001 6469736b
         {REPLY} 00000007 00000003 00000008 0002 612074657374
         {REPLY} 00000007 00000001 00000000"
    );
    assert_eq!(out, hex(&expected));
}

#[test]
fn structured_replies_are_agreed_and_bring_the_df_flag() {
    let text =
        format!("00000003 {OPTION} 00000008 00000000 {OPTION} 00000007 00000006 00000000 0000");
    let (session, out) = converse(&hex(&text));
    assert!(session.structured());
    let start = format!(
        "{REPLY} 00000008 00000001 00000000
         {REPLY} 00000007 00000003 0000000c 0000 0000000004000000 01ed"
    );
    assert!(out.starts_with(&hex(&start)));
}

#[test]
fn an_old_newstyle_client_gets_its_124_zeroes() {
    let (session, out) = converse(&hex(&format!("00000000 {OPTION} 00000001 00000004 6469736b")));
    assert!(session.in_transmission());
    let mut expected = hex(&format!("0000000004000000 {FLAGS}"));
    expected.extend([0; 124]);
    assert_eq!(out, expected);
    let (_, out) = converse(&hex(&format!("00000003 {OPTION} 00000001 00000000")));
    assert_eq!(out, hex(&format!("0000000004000000 {FLAGS}")));
}

#[test]
fn list_and_info_leave_the_negotiation_open() {
    let text = format!(
        "00000003 {OPTION} 00000003 00000000 {OPTION} 00000006 0000000a 00000004 6469736b 0000"
    );
    let (session, out) = converse(&hex(&text));
    assert!(!session.in_transmission());
    let list = format!("{REPLY} 00000003 00000002 0000000e 00000004 6469736b 612074657374");
    assert!(out.starts_with(&hex(&list)));
    assert!(out.ends_with(&hex(&format!("{REPLY} 00000006 00000001 00000000"))));
}

#[test]
fn refused_options_are_answered_and_the_negotiation_goes_on() {
    let cases = [
        // STARTTLS, LIST_META_CONTEXT, SET_META_CONTEXT, EXTENDED_HEADERS, an unknown one
        ("00000005 00000000", proto::REP_ERR_UNSUP),
        ("00000009 00000002 0000", proto::REP_ERR_UNSUP),
        ("0000000a 00000002 0000", proto::REP_ERR_UNSUP),
        ("0000000b 00000000", proto::REP_ERR_UNSUP),
        ("7fffffff 00000001 00", proto::REP_ERR_UNSUP),
        // LIST and STRUCTURED_REPLY with data; GO whose name is longer than its data
        ("00000003 00000001 00", proto::REP_ERR_INVALID),
        ("00000008 00000001 00", proto::REP_ERR_INVALID),
        ("00000007 00000006 ffffffff 0000", proto::REP_ERR_INVALID),
        ("00000007 00000006 00000000 0001", proto::REP_ERR_INVALID),
        ("00000007 00000000", proto::REP_ERR_INVALID),
        ("00000007 00000007 00000001 78 0000", proto::REP_ERR_UNKNOWN),
    ];
    for (option, expected) in cases {
        let mut input = hex(&format!("00000003 {OPTION} {option}"));
        input.extend(hex(&format!("{OPTION} 00000007 00000006 00000000 0000")));
        let (session, out) = converse(&input);
        assert_eq!(out[12..16], expected.to_be_bytes(), "{option}");
        assert!(session.in_transmission(), "{option}");
    }
}

#[test]
fn overlong_option_data_are_skipped_and_refused() {
    let mut input = hex(&format!("00000003 {OPTION} 00000007 00010000"));
    input.extend([0xff; 0x1_0000]);
    input.extend(hex(&format!("{OPTION} 00000007 00000006 00000000 0000")));
    let (session, out) = converse(&input);
    assert_eq!(out[12..16], proto::REP_ERR_TOO_BIG.to_be_bytes());
    assert!(session.in_transmission());
}

#[test]
fn what_cannot_be_answered_closes_the_connection() {
    let cases = [
        ("00000004", CloseReason::UnknownClientFlags),
        ("00000003 0000000000000000 00000007 00000000", CloseReason::BadMagic),
        ("00000000 49484156454f5054 00000007 00000000", CloseReason::NotFixedNewstyle),
        ("00000003 49484156454f5054 00000007 ffffffff", CloseReason::OptionTooLong),
        ("00000003 49484156454f5054 00000001 00000001 78", CloseReason::UnknownExport),
        ("00000003 49484156454f5054 00000002 00000000", CloseReason::ClientLeft),
        // requests before the negotiation
        (
            "25609513 00000000 0000000000000000 0000000000000000 00000200",
            CloseReason::UnknownClientFlags,
        ),
    ];
    for (input, expected) in cases {
        let (mut session, _) = converse(&hex(input));
        assert_eq!(closed_for(&mut session, &[]), Some(expected), "{input}");
    }
}

#[test]
fn options_without_end_close_the_connection_overlong_ones_too() {
    for data_bytes in [0u32, 0x4001] {
        let mut options = hex("00000003");
        for _ in 0..200 {
            options.extend(hex(&format!("{OPTION} 00000003 {data_bytes:08x}")));
            options.resize(options.len() + data_bytes as usize, 0);
        }
        let (mut session, out) = converse(&options);
        assert_eq!(closed_for(&mut session, &[]), Some(CloseReason::TooManyOptions));
        assert!(out.len() < 64 << 10);
    }
}

const BEGIN: &str = "00000003 49484156454f5054 00000007 00000006 00000000 0000";

#[test]
fn requests_are_parsed_wherever_the_stream_is_cut() {
    let mut input = hex(BEGIN);
    input.extend(hex("25609513 0001 0001 0000000000000007 0000000000001000 00000200"));
    input.extend([0xab; 512]);
    input.extend(hex("25609513 0000 0003 0000000000000008 0000000000000000 00000000"));
    let mut out = Vec::new();
    let mut session = Session::new(export(), &mut out);
    let (mut requests, mut unread) = (Vec::new(), Vec::new());
    let mut payload = 0;
    for byte in input {
        if payload > 0 {
            payload -= 1;
            continue;
        }
        unread.push(byte);
        loop {
            let (used, event) = session.advance(&unread, &mut out);
            unread.drain(..used);
            match event {
                Event::Used => continue,
                Event::Request(request) => {
                    requests.push(request);
                    if request.command == Command::Write {
                        payload = request.length;
                    }
                }
                Event::Need(_) => break,
                Event::Close(reason) => panic!("closed: {reason:?}"),
            }
        }
    }
    assert_eq!(requests.len(), 2);
    assert_eq!((requests[0].command, requests[0].fua), (Command::Write, true));
    assert_eq!((requests[0].offset, requests[0].length), (4096, 512));
    assert_eq!((requests[1].command, requests[1].cookie), (Command::Flush, 8));
}

#[test]
fn a_refused_write_is_answered_and_its_data_dropped() {
    let mut input = hex(BEGIN);
    input.extend(hex("25609513 0000 0001 0000000000000007 0000000004000000 00000200"));
    input.extend([0x25; 512]);
    input.extend(hex("25609513 0000 0003 0000000000000008 0000000000000000 00000000"));
    let mut out = Vec::new();
    let requests = consume(&mut Session::new(export(), &mut out), &input, &mut out);
    assert_eq!((requests.len(), requests[0].command), (1, Command::Flush));
    assert!(out.ends_with(&hex("67446698 0000001c 0000000000000007")));
}

#[test]
fn a_write_beyond_every_bound_and_a_lost_place_close_the_connection() {
    let cases = [
        (
            "25609513 0000 0001 0000000000000007 0000000000000000 ffffffff",
            CloseReason::WriteTooLong,
        ),
        ("25609514 0000 0001 0000000000000007 0000000000000000 00000200", CloseReason::BadMagic),
        ("25609513 0000 0002 0000000000000007 0000000000000000 00000000", CloseReason::ClientLeft),
    ];
    for (request, expected) in cases {
        let (mut session, _) = converse(&hex(&format!("{BEGIN} {request}")));
        assert_eq!(closed_for(&mut session, &[]), Some(expected), "{request}");
    }
}

/// A plausible stream: a negotiation, then requests; then some of its bytes are spoiled.
fn mutated_stream(prng: &mut Prng) -> Vec<u8> {
    let mut input = hex("00000003");
    for _ in 0..prng.below(4) {
        let length = prng.below(12) as u32;
        input.extend(hex(OPTION));
        input.extend((prng.below(12) as u32).to_be_bytes());
        input.extend(length.to_be_bytes());
        input.extend((0..length).map(|_| prng.below(4) as u8));
    }
    input.extend(&hex(BEGIN)[4..]);
    for _ in 0..prng.below(8) {
        let length = *prng.pick(&[0, 1, 512, 4096, 33 << 20, u32::MAX]);
        input.extend(proto::REQUEST_MAGIC.to_be_bytes());
        input.extend((prng.below(8) as u16).to_be_bytes());
        input.extend((prng.below(10) as u16).to_be_bytes());
        input.extend(prng.below(2).to_be_bytes());
        input.extend(prng.pick(&[0, 1, 512, 64 * MIB - 512, 64 * MIB, u64::MAX]).to_be_bytes());
        input.extend(length.to_be_bytes());
        input.extend(std::iter::repeat_n(0, length.min(4096) as usize));
    }
    for _ in 0..prng.below(4) {
        let at = prng.below(input.len() as u64) as usize;
        input[at] = prng.next_u64() as u8;
    }
    input.truncate(prng.below(input.len() as u64 + 1) as usize);
    input
}

#[test]
fn no_random_or_mutated_stream_panics_or_grows_without_bound() {
    for seed in 0..20_000 {
        let mut prng = Prng::new(seed);
        let input = if prng.one_in(4) {
            let mut input = vec![0; prng.below(600) as usize];
            prng.fill(&mut input);
            input
        } else {
            mutated_stream(&mut prng)
        };
        let mut out = Vec::new();
        let mut session = Session::new(export(), &mut out);
        consume(&mut session, &input, &mut out);
        // The richest answer per input byte is that to LIST and INFO: under 256 bytes for 16.
        assert!(out.len() <= 32 + 16 * input.len(), "seed {seed}: {} bytes", out.len());
    }
}

#[test]
fn the_same_stream_means_the_same_however_it_is_cut() {
    for seed in 0..3_000 {
        let mut prng = Prng::new(seed);
        let input = mutated_stream(&mut prng);
        let mut whole_out = Vec::new();
        let whole = consume(&mut Session::new(export(), &mut whole_out), &input, &mut whole_out);
        let mut out = Vec::new();
        let mut session = Session::new(export(), &mut out);
        let (mut read, mut visible, mut requests) = (0, 0, Vec::new());
        loop {
            let (used, event) = session.advance(&input[read.min(visible)..visible], &mut out);
            read += used;
            match event {
                Event::Need(_) if visible == input.len() => break,
                Event::Need(_) => {
                    visible += 1 + prng.below((input.len() - visible) as u64) as usize
                }
                Event::Close(_) => break,
                Event::Used => {}
                Event::Request(request) => {
                    requests.push(request);
                    if request.command == Command::Write {
                        read += request.length as usize;
                    }
                }
            }
        }
        assert_eq!((requests, out), (whole, whole_out), "seed {seed}");
    }
}
