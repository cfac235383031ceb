//! The client who does everything right, and is owed everything.

use voltier_export::nbd::proto;

use super::exported::{NAME, VOLUME_BYTES};
use super::protocol::{Header, after_go, info_data, option, reply};
use super::wire::{End, Pace, Script};

const DATA: [u8; 1024] = [0x5a; 1024];
const AT: u64 = VOLUME_BYTES - DATA.len() as u64;

/// The client writes (or may not), flushes, reads what it wrote, and leaves.
pub(super) struct Client {
    read_only: bool,
}

impl Client {
    pub(super) fn new(read_only: bool) -> Self {
        Self { read_only }
    }

    pub(super) fn script(&self, pace: Pace) -> Script {
        let mut bytes = 3u32.to_be_bytes().to_vec();
        option(&mut bytes, proto::OPT_STRUCTURED_REPLY, &[], 0);
        let data = info_data(NAME.as_bytes(), &[proto::INFO_BLOCK_SIZE]);
        option(&mut bytes, proto::OPT_GO, &data, data.len() as u32);
        Header::new(proto::CMD_WRITE, 1, AT, DATA.len() as u32).put(&mut bytes);
        bytes.extend(DATA);
        Header::new(proto::CMD_FLUSH, 2, 0, 0).put(&mut bytes);
        Header::new(proto::CMD_READ, 3, AT, DATA.len() as u32).put(&mut bytes);
        Header::new(proto::CMD_DISC, 4, 0, 0).put(&mut bytes);
        Script { bytes, pace, end: End::Silence, takes_bytes_max: usize::MAX }
    }

    /// Every request answered, and rightly.
    pub(super) fn check(&self, answer: &[u8]) {
        let mut rest = after_go(answer);
        assert!(!rest.is_empty(), "the good client was not let in");
        let mut answered = Vec::new();
        while let Some((reply, behind)) = reply(rest, true, |_| 0) {
            rest = behind;
            answered.push(reply.cookie);
            match (reply.cookie, reply.outcome) {
                (1, outcome) => assert_eq!(outcome.is_err(), self.read_only),
                (2, outcome) => assert_eq!(outcome, Ok(&[][..])),
                (3, outcome) => {
                    let data = outcome.expect("a read works");
                    assert!(data.len() == DATA.len() && (self.read_only || data == DATA));
                }
                (cookie, _) => panic!("a reply to {cookie}, which was not asked"),
            }
        }
        assert!(rest.is_empty(), "half a reply");
        answered.sort_unstable();
        assert_eq!(answered, [1, 2, 3]);
    }
}
