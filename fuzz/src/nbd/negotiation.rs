//! The handshake: options in any order and number, announced too long or too short, or noise.

use voltier_export::nbd::proto;

use super::exported::NAME;
use super::protocol::{after_greeting, info_data, option, option_reply};
use super::serve::serve;
use super::wire::{End, Pace, Script};
use crate::input::Input;

/// Bytes of answer that a byte of input may cost, and what comes without any. An `OPT_INFO` with
/// every fact asked for is the dearest, some 150 bytes for 22.
const ANSWER_PER_BYTE: usize = 16;
const ANSWER_BASE: usize = 256;

/// Feeds one handshake.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let how = input.byte();
    let pace = Pace { receive_bytes: input.byte(), send_bytes: input.byte() };
    let end = [End::HangUp, End::Reset, End::Silence][usize::from(how >> 1) % 3];
    let takes_bytes_max = if how & 8 == 0 { usize::MAX } else { usize::from(input.u16()) };
    let bytes = if how & 1 == 0 { input.rest().to_vec() } else { options(&mut input) };
    let answer_max = ANSWER_BASE + ANSWER_PER_BYTE * bytes.len();
    let answer = serve(Script { bytes, pace, end, takes_bytes_max }, how & 16 != 0);
    assert!(answer.len() <= answer_max, "{} bytes of answer", answer.len());
    let mut rest = after_greeting(&answer);
    while let Some((_, kind, data, behind)) = option_reply(rest) {
        let is_text = kind & 1 << 31 != 0;
        assert!(!is_text || std::str::from_utf8(data).is_ok(), "an error without its words");
        rest = behind;
    }
}

/// A handshake built of options, most of them right in most of their parts.
fn options(input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    match input.byte() {
        0..240 => bytes.extend(3u32.to_be_bytes()),
        240..248 => bytes.extend(1u32.to_be_bytes()),
        248..252 => bytes.extend(0u32.to_be_bytes()),
        _ => bytes.extend(input.u32().to_be_bytes()),
    }
    while !input.is_empty() {
        match input.byte() % 16 {
            0 => info(&mut bytes, proto::OPT_GO, input),
            1 | 2 => info(&mut bytes, proto::OPT_INFO, input),
            3 => simple(&mut bytes, proto::OPT_LIST, input),
            4 => simple(&mut bytes, proto::OPT_STRUCTURED_REPLY, input),
            5 => simple(&mut bytes, proto::OPT_ABORT, input),
            6 => option(&mut bytes, proto::OPT_EXPORT_NAME, NAME.as_bytes(), NAME.len() as u32),
            7 => simple(&mut bytes, proto::OPT_EXPORT_NAME, input),
            8 => announced(&mut bytes, input),
            9 => repeated(&mut bytes, input),
            10 => {
                let count = usize::from(input.byte());
                bytes.extend(input.take(count));
            }
            _ => {
                let number = input.u32();
                simple(&mut bytes, number, input);
            }
        }
    }
    bytes
}

/// An option with a few bytes of data.
fn simple(bytes: &mut Vec<u8>, number: u32, input: &mut Input<'_>) {
    let count = usize::from(input.byte() % 64);
    let data = input.take(count);
    option(bytes, number, data, data.len() as u32);
}

/// A request for information: about the export, another, or a name of any length.
fn info(bytes: &mut Vec<u8>, number: u32, input: &mut Input<'_>) {
    let long;
    let name = match input.byte() % 4 {
        0 => NAME.as_bytes(),
        1 => &[],
        2 => {
            let count = usize::from(input.byte() % 64);
            input.take(count)
        }
        _ => {
            long = vec![b'x'; usize::from(input.u16() % 5000)];
            &long
        }
    };
    let kinds: Vec<u16> = (0..input.byte() % 8).map(|_| u16::from(input.byte() % 6)).collect();
    let mut data = info_data(name, &kinds);
    let change = input.byte();
    if change >= 192 {
        let at = usize::from(change) % data.len();
        data[at] = input.byte();
    } else if change >= 128 {
        data.truncate(usize::from(change) % data.len());
    }
    option(bytes, number, &data, data.len() as u32);
}

/// An option whose announced length has nothing to do with its data, or is long and true.
fn announced(bytes: &mut Vec<u8>, input: &mut Input<'_>) {
    let number = u32::from(input.byte() % 10);
    let length = input.u32();
    let length = if input.coin() { length } else { length % 40_000 };
    let there = if input.coin() { length.min(40_000) as usize } else { 0 };
    option(bytes, number, &vec![0; there], length);
}

/// One option many times: there is a bound.
fn repeated(bytes: &mut Vec<u8>, input: &mut Input<'_>) {
    let number = u32::from(input.byte() % 10);
    for _ in 0..input.byte() {
        option(bytes, number, &[], 0);
    }
}
