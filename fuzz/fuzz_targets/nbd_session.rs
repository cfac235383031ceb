//! `cargo +nightly fuzz run nbd_session`: no input may make the NBD session panic, loop, or answer
//! without bound.
#![no_main]

use std::rc::Rc;

use libfuzzer_sys::fuzz_target;
use voltier_block::Limits;
use voltier_export::nbd::{ExportInfo, Session};

#[path = "../../crates/export/tests/support/consume.rs"]
mod consume;

fuzz_target!(|input: &[u8]| {
    let info = Rc::new(ExportInfo::new("disk", "a fuzzed disk", Limits::plain(64 << 20), false));
    let mut out = Vec::new();
    let mut session = Session::new(info, &mut out);
    consume::consume(&mut session, input, &mut out);
    assert!(out.len() <= 32 + 16 * input.len());
});
