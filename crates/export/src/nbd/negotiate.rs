//! The handshake: fixed newstyle negotiation, from the greeting to the transmission phase.

use voltier_nbd::proto::{self, be32, be64};

use super::close_reason::CloseReason;
use super::info::ExportInfo;

/// Longest option data read, in bytes: a name of the protocol's longest length and thousands of
/// information requests. Longer data are skipped and refused.
pub(super) const OPTION_BYTES_MAX: usize = 16 << 10;

/// Longest option data skipped, in bytes; who announces more is not negotiating.
const OPTION_SKIP_BYTES_MAX: u32 = 1 << 20;

/// Options a client may send before it begins: an order of magnitude above what clients do.
const OPTIONS_MAX: u32 = 128;

const OPTION_HEADER_BYTES: usize = 16;

/// The next step of the negotiation.
pub(super) enum Step {
    /// At least so many bytes of input.
    Need(usize),
    /// So many bytes were used; call again.
    Used(usize),
    /// So many bytes were used, and so many that follow are to be dropped.
    Skip(usize, u32),
    /// So many bytes were used and the transmission phase begins.
    Begin(usize),
    /// The connection is over; what was written is still to be sent.
    Close(CloseReason),
}

/// The agreements with a client so far.
#[derive(Debug, Default)]
pub(super) struct Negotiation {
    flags_received: bool,
    fixed_newstyle: bool,
    no_zeroes: bool,
    pub(super) structured: bool,
    options_seen: u32,
}

impl Negotiation {
    /// Starts one, writing the greeting.
    pub(super) fn greet(out: &mut Vec<u8>) -> Self {
        out.extend(proto::MAGIC.to_be_bytes());
        out.extend(proto::OPTION_MAGIC.to_be_bytes());
        out.extend((proto::FLAG_FIXED_NEWSTYLE | proto::FLAG_NO_ZEROES).to_be_bytes());
        Self::default()
    }

    /// Looks at the input, answers what it can.
    pub(super) fn step(&mut self, info: &ExportInfo, input: &[u8], out: &mut Vec<u8>) -> Step {
        if !self.flags_received {
            return self.client_flags(input);
        }
        if input.len() < OPTION_HEADER_BYTES {
            return Step::Need(OPTION_HEADER_BYTES);
        }
        if be64(input) != proto::OPTION_MAGIC {
            return Step::Close(CloseReason::BadMagic);
        }
        let option = be32(&input[8..]);
        let length = be32(&input[12..]);
        let is_long = length as usize > OPTION_BYTES_MAX;
        let end = OPTION_HEADER_BYTES + if is_long { 0 } else { length as usize };
        let Some(data) = input.get(OPTION_HEADER_BYTES..end) else { return Step::Need(end) };
        self.options_seen += 1;
        if self.options_seen > OPTIONS_MAX {
            return Step::Close(CloseReason::TooManyOptions);
        }
        if is_long {
            return self.refuse_long(option, length, out);
        }
        self.option(option, data, end, info, out)
    }

    fn client_flags(&mut self, input: &[u8]) -> Step {
        if input.len() < 4 {
            return Step::Need(4);
        }
        let flags = be32(input);
        let known = proto::FLAG_FIXED_NEWSTYLE | proto::FLAG_NO_ZEROES;
        if flags & !u32::from(known) != 0 {
            return Step::Close(CloseReason::UnknownClientFlags);
        }
        self.fixed_newstyle = flags & u32::from(proto::FLAG_FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(proto::FLAG_NO_ZEROES) != 0;
        self.flags_received = true;
        Step::Used(4)
    }

    fn refuse_long(&self, option: u32, length: u32, out: &mut Vec<u8>) -> Step {
        let answerable = self.fixed_newstyle && option != proto::OPT_EXPORT_NAME;
        if !answerable || length > OPTION_SKIP_BYTES_MAX {
            return Step::Close(CloseReason::OptionTooLong);
        }
        reply(out, option, proto::REP_ERR_TOO_BIG, b"option data too long");
        Step::Skip(OPTION_HEADER_BYTES, length)
    }

    fn option(
        &mut self,
        option: u32,
        data: &[u8],
        end: usize,
        info: &ExportInfo,
        out: &mut Vec<u8>,
    ) -> Step {
        if option == proto::OPT_EXPORT_NAME {
            return self.export_name(data, end, info, out);
        }
        if !self.fixed_newstyle {
            return Step::Close(CloseReason::NotFixedNewstyle);
        }
        match option {
            proto::OPT_ABORT => {
                reply(out, option, proto::REP_ACK, &[]);
                return Step::Close(CloseReason::ClientLeft);
            }
            proto::OPT_LIST | proto::OPT_STRUCTURED_REPLY if !data.is_empty() => {
                reply(out, option, proto::REP_ERR_INVALID, b"this option carries no data");
            }
            proto::OPT_LIST => {
                let mut entry = (info.name.len() as u32).to_be_bytes().to_vec();
                entry.extend(info.name.as_bytes());
                entry.extend(info.description.as_bytes());
                entry.truncate(4 + info.name.len() + proto::STRING_BYTES_MAX);
                reply(out, option, proto::REP_SERVER, &entry);
                reply(out, option, proto::REP_ACK, &[]);
            }
            proto::OPT_STRUCTURED_REPLY => {
                self.structured = true;
                reply(out, option, proto::REP_ACK, &[]);
            }
            proto::OPT_INFO | proto::OPT_GO => {
                if self.info_or_go(option, data, info, out) && option == proto::OPT_GO {
                    return Step::Begin(end);
                }
            }
            _ => reply(out, option, proto::REP_ERR_UNSUP, b"option not supported"),
        }
        Step::Used(end)
    }

    /// `OPT_EXPORT_NAME` can only succeed or close: the protocol gives it no error reply.
    fn export_name(&self, name: &[u8], end: usize, info: &ExportInfo, out: &mut Vec<u8>) -> Step {
        if !info.answers_to(name) {
            return Step::Close(CloseReason::UnknownExport);
        }
        out.extend(info.limits.bytes().to_be_bytes());
        out.extend(info.transmission_flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; proto::EXPORT_NAME_ZEROES]);
        }
        Step::Begin(end)
    }

    /// Answers `OPT_INFO` or `OPT_GO`; true when the export was found.
    fn info_or_go(&self, option: u32, data: &[u8], info: &ExportInfo, out: &mut Vec<u8>) -> bool {
        let Some((name, wanted)) = parse_info(data) else {
            reply(out, option, proto::REP_ERR_INVALID, b"malformed information request");
            return false;
        };
        if !info.answers_to(name) {
            reply(out, option, proto::REP_ERR_UNKNOWN, b"no export of that name");
            return false;
        }
        let mut fact = Vec::with_capacity(16);
        fact.extend(proto::INFO_EXPORT.to_be_bytes());
        fact.extend(info.limits.bytes().to_be_bytes());
        fact.extend(info.transmission_flags(self.structured).to_be_bytes());
        reply(out, option, proto::REP_INFO, &fact);
        // Block sizes are told to everybody: a client that did not ask may still honour them.
        fact.clear();
        fact.extend(proto::INFO_BLOCK_SIZE.to_be_bytes());
        fact.extend(info.block_sizes().map(u32::to_be_bytes).as_flattened());
        reply(out, option, proto::REP_INFO, &fact);
        let texts = [(proto::INFO_NAME, &info.name), (proto::INFO_DESCRIPTION, &info.description)];
        for (kind, text) in texts {
            if wanted.as_chunks().0.contains(&kind.to_be_bytes()) {
                fact.clear();
                fact.extend(kind.to_be_bytes());
                fact.extend(text.as_bytes());
                reply(out, option, proto::REP_INFO, &fact);
            }
        }
        reply(out, option, proto::REP_ACK, &[]);
        true
    }
}

/// The name and the information types (two bytes each) of an `OPT_INFO` or `OPT_GO`.
fn parse_info(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name_bytes, rest) = data.split_first_chunk::<4>()?;
    let name_bytes = u32::from_be_bytes(*name_bytes) as usize;
    let (name, rest) = rest.split_at_checked(name_bytes)?;
    let (count, types) = rest.split_first_chunk::<2>()?;
    let expected = usize::from(u16::from_be_bytes(*count)) * 2;
    (name.len() <= proto::STRING_BYTES_MAX && types.len() == expected).then_some((name, types))
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend(proto::OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}
