//! The client's side of the negotiation: fixed newstyle, up to the transmission phase.
//!
//! Structured replies are asked for, then the export with its block sizes. A server that does not know
//! `OPT_GO` is asked in the old way. One that does not know the export is asked which it has.

use crate::proto::{self, be32, be64};
use crate::uri::printable;

/// The second word of a greeting of the old style.
const OLD_STYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Longest data of an option reply, in bytes: two strings of the longest kind.
const REPLY_BYTES_MAX: u32 = 2 * proto::STRING_BYTES_MAX as u32 + 64;
/// Replies that a server may send in all.
const REPLIES_MAX: u32 = 4096;
/// Exports that an error names.
const NAMED_MAX: usize = 16;
/// The largest minimum block of the protocol, in bytes.
const MINIMUM_BYTES_MAX: u32 = 64 << 10;
/// What a server takes that says nothing of block sizes: the smallest that all take, the usual one, the longest.
const USUAL_BLOCKS: Blocks = Blocks { minimum: 512, preferred: 4096, maximum: 32 << 20 };

const GREETING_BYTES: usize = 18;
const REPLY_HEADER_BYTES: usize = 20;

/// The block sizes of an export, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Blocks {
    minimum: u32,
    preferred: u32,
    maximum: u32,
}

/// What a server says of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Size in bytes.
    pub bytes: u64,
    /// The transmission flags.
    pub flags: u16,
    /// Whether replies are structured.
    pub structured: bool,
    /// Requests are multiples of so many bytes: a power of two.
    pub minimum_bytes: u32,
    /// The size that the server likes best, in bytes: a power of two.
    pub preferred_bytes: u32,
    /// Longest read or write, in bytes.
    pub maximum_bytes: u32,
}

impl Facts {
    /// Whether all of these flags are set.
    pub const fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }
}

/// Why there is no transmission phase. Each is one line, to stand behind the name of the server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Something else listens there.
    #[error("it is no NBD server; check host and port")]
    NotNbd,
    /// The server speaks the protocol of before 2011.
    #[error("it speaks the old style of NBD alone; serve the export with a newer server")]
    OldStyle,
    /// The server insists on TLS.
    #[error(
        "it insists on TLS, which is not in this version; have it serve without TLS, or through a tunnel"
    )]
    Tls,
    /// No export of that name.
    #[error("{}", unknown_text(.0, .1))]
    Unknown(String, Option<Vec<String>>),
    /// The server does not want this client; its own words.
    #[error("it refuses the export: {0}; ask who runs it")]
    Refused(String),
    /// The server does not keep to the protocol.
    #[error("it does not keep to the protocol ({0}); use another server")]
    Violation(&'static str),
}

fn unknown_text(export: &str, exports: &Option<Vec<String>>) -> String {
    let named = |name: &String| match name.is_empty() {
        true => "the one without a name".to_owned(),
        false => format!("`{}`", printable(name)),
    };
    let has = match exports.as_deref() {
        None => "and does not say which it has; ask who runs it".to_owned(),
        Some([]) => "and lists none; ask who runs it".to_owned(),
        Some(list) => {
            let names: Vec<String> = list.iter().take(NAMED_MAX).map(named).collect();
            let more = if list.len() > NAMED_MAX { " and more" } else { "" };
            format!("but {}{more}; name one of these", names.join(", "))
        }
    };
    let export = match export.is_empty() {
        true => "without a name".to_owned(),
        false => format!("`{}`", printable(export)),
    };
    format!("it has no export {export}, {has}")
}

/// The next step of a handshake.
#[derive(Debug)]
pub enum Step {
    /// At least so many bytes of input.
    Need(usize),
    /// So many bytes were used; call again.
    Used(usize),
    /// So many bytes were used, and the transmission phase begins.
    Begin(usize, Facts),
}

enum Phase {
    Greeting,
    Structured,
    Go,
    /// The answer to `OPT_EXPORT_NAME`, with so many zeroes behind it.
    ExportName(usize),
    List(Vec<String>),
}

/// The client's side of a handshake: bytes in, steps and bytes out.
pub struct Handshake {
    export: String,
    phase: Phase,
    no_zeroes: bool,
    structured: bool,
    size_and_flags: Option<(u64, u16)>,
    blocks: Blocks,
    replies: u32,
}

impl Handshake {
    /// The longest input that is ever waited for, in bytes.
    pub const INPUT_BYTES_MAX: usize = REPLY_HEADER_BYTES + REPLY_BYTES_MAX as usize;

    /// A handshake for an export.
    pub fn new(export: &str) -> Self {
        Self {
            export: export.to_owned(),
            phase: Phase::Greeting,
            no_zeroes: false,
            structured: false,
            size_and_flags: None,
            blocks: USUAL_BLOCKS,
            replies: 0,
        }
    }

    /// Looks at the unread input, and writes what is to be sent.
    ///
    /// # Errors
    /// When there will be no transmission phase.
    pub fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Step, HandshakeError> {
        match self.phase {
            Phase::Greeting => self.greeting(input, out),
            Phase::ExportName(zeroes) => self.export_name(zeroes, input),
            Phase::Structured | Phase::Go | Phase::List(_) => self.reply(input, out),
        }
    }

    fn greeting(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Step, HandshakeError> {
        if input.len() >= 8 && be64(input) != proto::MAGIC {
            return Err(HandshakeError::NotNbd);
        }
        if input.len() < GREETING_BYTES {
            return Ok(Step::Need(GREETING_BYTES));
        }
        match be64(&input[8..]) {
            proto::OPTION_MAGIC => {}
            OLD_STYLE_MAGIC => return Err(HandshakeError::OldStyle),
            _ => return Err(HandshakeError::NotNbd),
        }
        let flags = u16::from_be_bytes([input[16], input[17]]);
        if flags & proto::FLAG_FIXED_NEWSTYLE == 0 {
            return Err(HandshakeError::OldStyle);
        }
        let own = flags & (proto::FLAG_FIXED_NEWSTYLE | proto::FLAG_NO_ZEROES);
        self.no_zeroes = own & proto::FLAG_NO_ZEROES != 0;
        out.extend(u32::from(own).to_be_bytes());
        option(out, proto::OPT_STRUCTURED_REPLY, &[]);
        self.phase = Phase::Structured;
        Ok(Step::Used(GREETING_BYTES))
    }

    fn export_name(&mut self, zeroes: usize, input: &[u8]) -> Result<Step, HandshakeError> {
        let end = 10 + zeroes;
        if input.len() < end {
            return Ok(Step::Need(end));
        }
        self.size_and_flags = Some((be64(input), u16::from_be_bytes([input[8], input[9]])));
        Ok(Step::Begin(end, self.facts()?))
    }

    fn reply(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Step, HandshakeError> {
        if input.len() < REPLY_HEADER_BYTES {
            return Ok(Step::Need(REPLY_HEADER_BYTES));
        }
        if be64(input) != proto::OPTION_REPLY_MAGIC {
            return Err(HandshakeError::Violation("a reply begins with a wrong number"));
        }
        let (asked, kind, length) = (be32(&input[8..]), be32(&input[12..]), be32(&input[16..]));
        if length > REPLY_BYTES_MAX {
            return Err(HandshakeError::Violation("a reply is too long"));
        }
        let end = REPLY_HEADER_BYTES + length as usize;
        let Some(data) = input.get(REPLY_HEADER_BYTES..end) else { return Ok(Step::Need(end)) };
        self.replies += 1;
        if self.replies > REPLIES_MAX {
            return Err(HandshakeError::Violation("its replies do not end"));
        }
        let expected = match self.phase {
            Phase::Structured => proto::OPT_STRUCTURED_REPLY,
            Phase::List(_) => proto::OPT_LIST,
            Phase::Greeting | Phase::Go | Phase::ExportName(_) => proto::OPT_GO,
        };
        if asked != expected {
            return Err(HandshakeError::Violation("it answers what was not asked"));
        }
        if kind == proto::REP_ERR_TLS_REQD {
            return Err(HandshakeError::Tls);
        }
        let is_error = kind & proto::REP_FLAG_ERROR != 0;
        match &mut self.phase {
            Phase::Structured => {
                if !is_error && kind != proto::REP_ACK {
                    return Err(HandshakeError::Violation("a reply of a wrong kind"));
                }
                self.structured = !is_error;
                self.go(out);
            }
            Phase::List(exports) if kind == proto::REP_SERVER => {
                exports.extend((exports.len() <= NAMED_MAX).then(|| name_in(data)).flatten());
            }
            Phase::List(exports) => {
                let list = (kind == proto::REP_ACK).then(|| std::mem::take(exports));
                return Err(HandshakeError::Unknown(self.export.clone(), list));
            }
            Phase::Greeting | Phase::Go | Phase::ExportName(_) => {
                if kind == proto::REP_ACK {
                    return Ok(Step::Begin(end, self.facts()?));
                }
                self.gone(kind, data, out)?;
            }
        }
        Ok(Step::Used(end))
    }

    fn go(&mut self, out: &mut Vec<u8>) {
        let mut data = (self.export.len() as u32).to_be_bytes().to_vec();
        data.extend(self.export.as_bytes());
        data.extend(1_u16.to_be_bytes());
        data.extend(proto::INFO_BLOCK_SIZE.to_be_bytes());
        option(out, proto::OPT_GO, &data);
        self.phase = Phase::Go;
    }

    /// An answer to `OPT_GO` that is not its last, or an error.
    fn gone(&mut self, kind: u32, data: &[u8], out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        match kind {
            proto::REP_INFO => self.info(data),
            proto::REP_ERR_UNKNOWN => {
                option(out, proto::OPT_LIST, &[]);
                self.phase = Phase::List(Vec::new());
                Ok(())
            }
            proto::REP_ERR_UNSUP => {
                option(out, proto::OPT_EXPORT_NAME, self.export.as_bytes());
                let zeroes = if self.no_zeroes { 0 } else { proto::EXPORT_NAME_ZEROES };
                self.phase = Phase::ExportName(zeroes);
                Ok(())
            }
            _ if kind & proto::REP_FLAG_ERROR != 0 => {
                let said = printable(&String::from_utf8_lossy(data));
                let why = if said.is_empty() { "it does not say why".to_owned() } else { said };
                Err(HandshakeError::Refused(why))
            }
            _ => Err(HandshakeError::Violation("a reply of a wrong kind")),
        }
    }

    fn info(&mut self, data: &[u8]) -> Result<(), HandshakeError> {
        let Some((kind, data)) = data.split_first_chunk::<2>() else {
            return Err(HandshakeError::Violation("a fact without its kind"));
        };
        match (u16::from_be_bytes(*kind), data.len()) {
            (proto::INFO_EXPORT, 10) => {
                self.size_and_flags = Some((be64(data), u16::from_be_bytes([data[8], data[9]])));
            }
            (proto::INFO_BLOCK_SIZE, 12) => {
                self.blocks = Blocks {
                    minimum: be32(data),
                    preferred: be32(&data[4..]),
                    maximum: be32(&data[8..]),
                };
            }
            (proto::INFO_EXPORT | proto::INFO_BLOCK_SIZE, _) => {
                return Err(HandshakeError::Violation("a fact of a wrong length"));
            }
            _ => {}
        }
        Ok(())
    }

    fn facts(&self) -> Result<Facts, HandshakeError> {
        let Some((bytes, flags)) = self.size_and_flags else {
            return Err(HandshakeError::Violation("it does not say the size of the export"));
        };
        if flags & proto::FLAG_HAS_FLAGS == 0 {
            return Err(HandshakeError::Violation("the flags of the export make no sense"));
        }
        let Blocks { minimum, preferred, maximum } = self.blocks;
        let is_sound = minimum.is_power_of_two()
            && minimum <= MINIMUM_BYTES_MAX
            && preferred.is_power_of_two()
            && preferred >= minimum
            && maximum >= minimum
            && bytes <= i64::MAX as u64;
        if !is_sound {
            return Err(HandshakeError::Violation(
                "size or block sizes of the export make no sense",
            ));
        }
        Ok(Facts {
            bytes,
            flags,
            structured: self.structured,
            minimum_bytes: minimum,
            preferred_bytes: preferred,
            maximum_bytes: maximum,
        })
    }
}

/// The name in an entry of a list.
fn name_in(data: &[u8]) -> Option<String> {
    let (bytes, rest) = data.split_first_chunk::<4>()?;
    let name = rest.get(..u32::from_be_bytes(*bytes) as usize)?;
    Some(String::from_utf8_lossy(name).into_owned())
}

fn option(out: &mut Vec<u8>, option: u32, data: &[u8]) {
    out.extend(proto::OPTION_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(flags: u16) -> Vec<u8> {
        let mut bytes = proto::MAGIC.to_be_bytes().to_vec();
        bytes.extend(proto::OPTION_MAGIC.to_be_bytes());
        bytes.extend(flags.to_be_bytes());
        bytes
    }

    fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = proto::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        bytes
    }

    fn export(bytes: u64, flags: u16) -> Vec<u8> {
        let mut fact = proto::INFO_EXPORT.to_be_bytes().to_vec();
        fact.extend(bytes.to_be_bytes());
        fact.extend(flags.to_be_bytes());
        reply(proto::OPT_GO, proto::REP_INFO, &fact)
    }

    fn blocks(sizes: [u32; 3]) -> Vec<u8> {
        let mut fact = proto::INFO_BLOCK_SIZE.to_be_bytes().to_vec();
        fact.extend(sizes.map(u32::to_be_bytes).as_flattened());
        reply(proto::OPT_GO, proto::REP_INFO, &fact)
    }

    fn server(name: &str) -> Vec<u8> {
        let mut entry = (name.len() as u32).to_be_bytes().to_vec();
        entry.extend(name.as_bytes());
        reply(proto::OPT_LIST, proto::REP_SERVER, &entry)
    }

    /// What comes of these bytes, which arrive one by one, and whether something is waited for at their end.
    fn run(parts: &[Vec<u8>]) -> Option<Result<Facts, HandshakeError>> {
        let (mut handshake, mut out, mut unread) = (Handshake::new("x"), Vec::new(), Vec::new());
        for byte in parts.concat() {
            unread.push(byte);
            loop {
                match handshake.step(&unread, &mut out) {
                    Ok(Step::Need(more)) => {
                        assert!(more > unread.len() && more <= Handshake::INPUT_BYTES_MAX);
                        break;
                    }
                    Ok(Step::Used(used)) => drop(unread.drain(..used)),
                    Ok(Step::Begin(_, facts)) => return Some(Ok(facts)),
                    Err(error) => return Some(Err(error)),
                }
            }
        }
        None
    }

    const ACK: u32 = proto::REP_ACK;
    const GO: u32 = proto::OPT_GO;
    const STRUCTURED: u32 = proto::OPT_STRUCTURED_REPLY;

    #[test]
    fn a_server_with_and_one_without_the_newer_options_are_understood() {
        let facts = run(&[
            greeting(3),
            reply(STRUCTURED, ACK, &[]),
            export(1 << 20, 1 | proto::FLAG_SEND_FLUSH),
            blocks([1, 4096, 65536]),
            reply(GO, ACK, &[]),
        ]);
        let facts = facts.unwrap().unwrap();
        assert_eq!((facts.bytes, facts.structured, facts.maximum_bytes), (1 << 20, true, 65536));
        assert!(facts.has(proto::FLAG_SEND_FLUSH) && !facts.has(proto::FLAG_SEND_FUA));
        let unsupported = proto::REP_ERR_UNSUP;
        let mut old = (1_u64 << 20).to_be_bytes().to_vec();
        old.extend(1_u16.to_be_bytes());
        old.extend([0; proto::EXPORT_NAME_ZEROES]);
        let facts = run(&[
            greeting(1),
            reply(STRUCTURED, unsupported, &[]),
            reply(GO, unsupported, b"what?"),
            old,
        ]);
        let facts = facts.unwrap().unwrap();
        assert_eq!(
            (facts.structured, facts.minimum_bytes, facts.preferred_bytes),
            (false, 512, 4096)
        );
    }

    #[test]
    fn an_unknown_export_is_told_with_those_that_there_are() {
        let begin = || {
            vec![greeting(3), reply(STRUCTURED, ACK, &[]), reply(GO, proto::REP_ERR_UNKNOWN, b"no")]
        };
        let told = |more: Vec<Vec<u8>>| {
            let error = run(&[begin(), more].concat()).unwrap().unwrap_err();
            assert!(matches!(error, HandshakeError::Unknown(..)));
            error.to_string()
        };
        let end = || reply(proto::OPT_LIST, ACK, &[]);
        let said = told(vec![server("a\nb"), server(""), end()]);
        assert_eq!(
            said,
            "it has no export `x`, but `a b`, the one without a name; name one of these"
        );
        assert!(told(vec![end()]).contains("lists none"));
        let refused = reply(proto::OPT_LIST, proto::REP_ERR_POLICY, &[]);
        assert!(told(vec![refused]).contains("does not say"));
        let many: Vec<Vec<u8>> = (0..100).map(|number| server(&number.to_string())).collect();
        assert!(told([many, vec![end()]].concat()).ends_with("`15` and more; name one of these"));
    }

    #[test]
    fn what_no_server_should_send_is_refused_by_name() {
        let told = |parts: &[Vec<u8>]| run(parts).expect("an end").unwrap_err().to_string();
        let begun =
            |then: &[Vec<u8>]| told(&[&[greeting(3), reply(STRUCTURED, ACK, &[])], then].concat());
        assert!(told(&[b"SSH-2.0-x".to_vec()]).contains("no NBD server"));
        let old = [proto::MAGIC.to_be_bytes(), OLD_STYLE_MAGIC.to_be_bytes(), [0; 8]].concat();
        assert!(told(&[old]).contains("old style"));
        assert!(told(&[greeting(0)]).contains("old style"));
        assert!(told(&[greeting(3), vec![0; 20]]).contains("a wrong number"));
        assert!(told(&[greeting(3), reply(GO, ACK, &[])]).contains("not asked"));
        assert!(
            told(&[greeting(3), reply(STRUCTURED, proto::REP_SERVER, &[])]).contains("wrong kind")
        );
        assert!(begun(&[reply(GO, ACK, &[])]).contains("does not say the size"));
        assert!(begun(&[reply(GO, proto::REP_ERR_TLS_REQD, &[])]).contains("TLS"));
        assert!(begun(&[reply(GO, proto::REP_ERR_POLICY, b"go\naway")]).contains("go away"));
        assert!(begun(&[reply(GO, proto::REP_INFO, &[0])]).contains("without its kind"));
        assert!(begun(&[reply(GO, proto::REP_INFO, &[0, 0, 1])]).contains("wrong length"));
        let mut long = reply(GO, proto::REP_INFO, &[]);
        long[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(begun(&[long]).contains("too long"));
        for sizes in [
            [0, 4096, 4096],
            [3, 4096, 4096],
            [1, 3, 9],
            [4096, 512, 4096],
            [4096, 4096, 1],
            [1 << 17; 3],
        ] {
            let facts = [export(1 << 20, 1), blocks(sizes), reply(GO, ACK, &[])];
            assert!(begun(&facts).contains("make no sense"), "{sizes:?}");
        }
        assert!(begun(&[export(u64::MAX, 1), reply(GO, ACK, &[])]).contains("make no sense"));
        assert!(begun(&[export(1 << 20, 0), reply(GO, ACK, &[])]).contains("make no sense"));
        let endless: Vec<Vec<u8>> = vec![export(1 << 20, 1); REPLIES_MAX as usize];
        assert!(begun(&endless).contains("do not end"));
    }
}
