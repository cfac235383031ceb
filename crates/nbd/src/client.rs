//! Requests of a client under way, and the replies to them: one connection, without its socket.
//!
//! Nothing that a server sends is trusted. What does not fit ends the connection, with a [`Violation`] that
//! says what it was; a buffer is filled only where its own request asked for data.

use voltier_block::Buf;

use crate::proto::{self, REQUEST_BYTES, be32, be64};

/// Requests under way on one connection: as deep as clients usually queue.
const REQUESTS_MAX: usize = 128;
/// Pieces in which a read may come, beyond those that lie behind one another.
const PIECES_MAX: usize = 4096;
/// Longest data of an error, in bytes: a string of the longest kind.
const ERROR_BYTES_MAX: u32 = proto::STRING_BYTES_MAX as u32 + 16;
/// Bits of a cookie that say the place of its request.
const PLACE_BITS: u32 = 8;

/// What a server sent that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The stream is out of step.
    #[error("a reply that begins with a wrong number")]
    BadMagic,
    /// No request has this cookie.
    #[error("a reply to no request")]
    UnknownRequest,
    /// Data of which a part is not of the request.
    #[error("data outside of their request")]
    OutOfRange,
    /// Data that came before.
    #[error("data of one request twice")]
    Twice,
    /// A read ended without error and without all of its data.
    #[error("a read that lacks data")]
    Missing,
    /// More pieces than a server has reason to send.
    #[error("a read in too many pieces")]
    TooManyPieces,
    /// An error with more text than the protocol lets it have.
    #[error("an error whose text is too long")]
    ErrorTooLong,
    /// A piece of a kind, of a length or with flags that the protocol does not know.
    #[error("a piece of a reply that makes no sense")]
    Senseless,
}

/// The meaning of a connection's input.
#[derive(Debug)]
pub enum Event<T> {
    /// Nothing before at least so many bytes of input are there; at most [`Client::INPUT_BYTES_MAX`].
    Need(usize),
    /// Bytes were used up; call again.
    Used,
    /// A request has ended: its token, and its buffers, filled if it was a read; or the error number.
    Ended(T, Result<Vec<Buf>, u32>),
}

/// The header of a request.
pub fn request_header(
    kind: u16,
    flags: u16,
    cookie: u64,
    offset: u64,
    length: u32,
) -> [u8; REQUEST_BYTES] {
    let mut header = [0; REQUEST_BYTES];
    header[..4].copy_from_slice(&proto::REQUEST_MAGIC.to_be_bytes());
    header[4..6].copy_from_slice(&flags.to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..24].copy_from_slice(&offset.to_be_bytes());
    header[24..].copy_from_slice(&length.to_be_bytes());
    header
}

/// The data of a read: where they are to go, and which have come.
struct Wanted {
    offset: u64,
    bytes: usize,
    bufs: Vec<Buf>,
    /// What has come, or is coming: apart from one another, by ascending address.
    covered: Vec<(usize, usize)>,
}

impl Wanted {
    /// Notes that a part comes.
    fn cover(&mut self, start: usize, bytes: usize) -> Result<(), Violation> {
        let end = start + bytes;
        let after = self.covered.partition_point(|(from, _)| *from < start);
        if self.covered.get(after).is_some_and(|(from, _)| *from < end)
            || after > 0 && self.covered[after - 1].1 > start
        {
            return Err(Violation::Twice);
        }
        let joins_before = after > 0 && self.covered[after - 1].1 == start;
        let joins_after = self.covered.get(after).is_some_and(|(from, _)| *from == end);
        match (joins_before, joins_after) {
            (true, true) => self.covered[after - 1].1 = self.covered.remove(after).1,
            (true, false) => self.covered[after - 1].1 = end,
            (false, true) => self.covered[after].0 = start,
            (false, false) if self.covered.len() == PIECES_MAX => {
                return Err(Violation::TooManyPieces);
            }
            (false, false) => self.covered.insert(after, (start, end)),
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.covered == [(0, self.bytes)]
    }

    /// Calls `put` with the parts of the buffers from `at` on, which have `bytes` in all, and with the place of
    /// each within these bytes.
    fn parts(&mut self, at: usize, bytes: usize, mut put: impl FnMut(&mut [u8], usize)) {
        let mut start = 0;
        for buf in &mut self.bufs {
            let (from, to) = (at.max(start), (at + bytes).min(start + buf.len()));
            if from < to {
                put(&mut buf[from - start..to - start], from - at);
            }
            start += buf.len();
        }
    }
}

struct Slot<T> {
    cookie: u64,
    token: T,
    wanted: Option<Wanted>,
    error: Option<u32>,
}

enum Phase {
    /// A reply begins.
    Head,
    /// Data of the request in this place, from this byte of it on.
    Data { place: usize, at: usize, left: usize, is_last: bool },
}

/// Requests under way on one connection. `T` is what its owner knows a request by.
pub struct Client<T> {
    structured: bool,
    slots: Vec<Option<Slot<T>>>,
    vacant: Vec<usize>,
    sequence: u64,
    phase: Phase,
}

impl<T> Client<T> {
    /// The longest input that is ever waited for, in bytes.
    pub const INPUT_BYTES_MAX: usize = proto::STRUCTURED_REPLY_BYTES + ERROR_BYTES_MAX as usize;

    /// A client whose handshake is over.
    pub fn new(structured: bool) -> Self {
        Self { structured, slots: Vec::new(), vacant: Vec::new(), sequence: 0, phase: Phase::Head }
    }

    /// Requests under way.
    pub fn under_way(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    /// Whether one more request may be begun.
    pub fn has_room(&self) -> bool {
        self.under_way() < REQUESTS_MAX
    }

    /// Begins a request, with the first byte and the buffers of a read; the cookie to send with it. There is
    /// [room](Self::has_room).
    pub fn begin(&mut self, token: T, read: Option<(u64, Vec<Buf>)>) -> u64 {
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.sequence += 1;
        let cookie = self.sequence << PLACE_BITS | place as u64;
        let wanted = read.map(|(offset, bufs)| {
            let bytes = bufs.iter().map(|buf| buf.len()).sum();
            Wanted { offset, bytes, bufs, covered: Vec::new() }
        });
        self.slots[place] = Some(Slot { cookie, token, wanted, error: None });
        cookie
    }

    /// Gives the buffers of all that is under way back. Replies are still understood, and their data go nowhere.
    pub fn forsake(&mut self, mut told: impl FnMut(&mut T, Vec<Buf>)) {
        for slot in self.slots.iter_mut().flatten() {
            let bufs =
                slot.wanted.as_mut().map_or_else(Vec::new, |it| std::mem::take(&mut it.bufs));
            told(&mut slot.token, bufs);
        }
    }

    /// Looks at the unread input: how many of its bytes are used up, and what they mean.
    ///
    /// # Errors
    /// The connection is to end.
    pub fn advance(&mut self, input: &[u8]) -> Result<(usize, Event<T>), Violation> {
        match self.phase {
            Phase::Head => self.head(input),
            Phase::Data { place, at, left, is_last } => {
                let taken = left.min(input.len());
                if taken == 0 {
                    return Ok((0, Event::Need(1)));
                }
                if let Some(wanted) = self.wanted(place) {
                    wanted.parts(at, taken, |part, from| {
                        part.copy_from_slice(&input[from..from + part.len()]);
                    });
                }
                if taken < left {
                    let (at, left) = (at + taken, left - taken);
                    self.phase = Phase::Data { place, at, left, is_last };
                    return Ok((taken, Event::Used));
                }
                self.phase = Phase::Head;
                Ok((taken, if is_last { self.end(place)? } else { Event::Used }))
            }
        }
    }

    fn wanted(&mut self, place: usize) -> Option<&mut Wanted> {
        self.slots.get_mut(place)?.as_mut()?.wanted.as_mut()
    }

    fn head(&mut self, input: &[u8]) -> Result<(usize, Event<T>), Violation> {
        if input.len() < 4 {
            return Ok((0, Event::Need(proto::SIMPLE_REPLY_BYTES)));
        }
        match be32(input) {
            proto::SIMPLE_REPLY_MAGIC => self.simple(input),
            proto::STRUCTURED_REPLY_MAGIC if self.structured => self.chunk(input),
            _ => Err(Violation::BadMagic),
        }
    }

    fn place_of(&self, cookie: u64) -> Result<usize, Violation> {
        let place = (cookie & ((1 << PLACE_BITS) - 1)) as usize;
        match self.slots.get(place) {
            Some(Some(slot)) if slot.cookie == cookie => Ok(place),
            _ => Err(Violation::UnknownRequest),
        }
    }

    fn simple(&mut self, input: &[u8]) -> Result<(usize, Event<T>), Violation> {
        if input.len() < proto::SIMPLE_REPLY_BYTES {
            return Ok((0, Event::Need(proto::SIMPLE_REPLY_BYTES)));
        }
        let (error, place) = (be32(&input[4..]), self.place_of(be64(&input[8..]))?);
        let used = proto::SIMPLE_REPLY_BYTES;
        let (structured, slot) = (self.structured, self.slots[place].as_mut());
        if let Some(slot) = slot {
            slot.error = slot.error.or((error != 0).then_some(error));
        }
        let Some(wanted) = self.wanted(place) else { return Ok((used, self.end(place)?)) };
        if structured {
            return Err(Violation::Senseless);
        }
        if error != 0 || wanted.bytes == 0 {
            return Ok((used, self.end(place)?));
        }
        let left = wanted.bytes;
        wanted.cover(0, left)?;
        self.phase = Phase::Data { place, at: 0, left, is_last: true };
        Ok((used, Event::Used))
    }

    fn chunk(&mut self, input: &[u8]) -> Result<(usize, Event<T>), Violation> {
        const HEAD: usize = proto::STRUCTURED_REPLY_BYTES;
        if input.len() < HEAD {
            return Ok((0, Event::Need(HEAD)));
        }
        let flags = u16::from_be_bytes([input[4], input[5]]);
        let kind = u16::from_be_bytes([input[6], input[7]]);
        let (place, length) = (self.place_of(be64(&input[8..]))?, be32(&input[16..]));
        let is_last = flags & proto::REPLY_FLAG_DONE != 0;
        let used = match kind {
            _ if flags & !proto::REPLY_FLAG_DONE != 0 => return Err(Violation::Senseless),
            proto::REPLY_TYPE_NONE if length == 0 && is_last => HEAD,
            proto::REPLY_TYPE_OFFSET_DATA if length > 8 => {
                let Some(offset) = input.get(HEAD..HEAD + 8) else {
                    return Ok((0, Event::Need(HEAD + 8)));
                };
                let left = length as usize - 8;
                let at = self.cover(place, be64(offset), left)?;
                self.phase = Phase::Data { place, at, left, is_last };
                return Ok((HEAD + 8, Event::Used));
            }
            proto::REPLY_TYPE_OFFSET_HOLE if length == 12 => {
                let Some(data) = input.get(HEAD..HEAD + 12) else {
                    return Ok((0, Event::Need(HEAD + 12)));
                };
                let (offset, bytes) = (be64(data), be32(&data[8..]) as usize);
                if bytes == 0 {
                    return Err(Violation::Senseless);
                }
                let at = self.cover(place, offset, bytes)?;
                if let Some(wanted) = self.wanted(place) {
                    wanted.parts(at, bytes, |part, _| part.fill(0));
                }
                HEAD + 12
            }
            _ if kind & proto::REPLY_TYPE_FLAG_ERROR != 0 => {
                if length > ERROR_BYTES_MAX {
                    return Err(Violation::ErrorTooLong);
                }
                if length < 6 {
                    return Err(Violation::Senseless);
                }
                let end = HEAD + length as usize;
                let Some(data) = input.get(HEAD..end) else { return Ok((0, Event::Need(end))) };
                let error = be32(data);
                if error == 0 {
                    return Err(Violation::Senseless);
                }
                if let Some(slot) = self.slots[place].as_mut() {
                    slot.error = slot.error.or(Some(error));
                }
                end
            }
            _ => return Err(Violation::Senseless),
        };
        Ok((used, if is_last { self.end(place)? } else { Event::Used }))
    }

    /// Where data of a read go that come now.
    fn cover(&mut self, place: usize, offset: u64, bytes: usize) -> Result<usize, Violation> {
        let wanted = self.wanted(place).ok_or(Violation::Senseless)?;
        let at = offset.checked_sub(wanted.offset).and_then(|at| usize::try_from(at).ok());
        let at = at.filter(|at| at.checked_add(bytes).is_some_and(|end| end <= wanted.bytes));
        let at = at.ok_or(Violation::OutOfRange)?;
        wanted.cover(at, bytes)?;
        Ok(at)
    }

    fn end(&mut self, place: usize) -> Result<Event<T>, Violation> {
        let is_whole = |slot: &Slot<T>| slot.wanted.as_ref().is_none_or(Wanted::is_whole);
        match self.slots.get_mut(place) {
            Some(Some(slot)) if slot.error.is_none() && !is_whole(slot) => Err(Violation::Missing),
            Some(ended @ Some(_)) => {
                let Some(slot) = ended.take() else { return Err(Violation::UnknownRequest) };
                self.vacant.push(place);
                let result = match slot.error {
                    Some(error) => Err(error),
                    None => Ok(slot.wanted.map_or_else(Vec::new, |wanted| wanted.bufs)),
                };
                Ok(Event::Ended(slot.token, result))
            }
            _ => Err(Violation::UnknownRequest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_block::Prng;

    const DONE: u16 = proto::REPLY_FLAG_DONE;

    fn simple(error: u32, cookie: u64) -> Vec<u8> {
        let mut bytes = proto::SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
        bytes.extend(error.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes
    }

    fn chunk(flags: u16, kind: u16, cookie: u64, data: &[u8]) -> Vec<u8> {
        let mut bytes = proto::STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        bytes
    }

    fn data(flags: u16, cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
        let data = [&offset.to_be_bytes()[..], data].concat();
        chunk(flags, proto::REPLY_TYPE_OFFSET_DATA, cookie, &data)
    }

    fn hole(flags: u16, cookie: u64, offset: u64, bytes: u32) -> Vec<u8> {
        let data = [&offset.to_be_bytes()[..], &bytes.to_be_bytes()].concat();
        chunk(flags, proto::REPLY_TYPE_OFFSET_HOLE, cookie, &data)
    }

    fn error(flags: u16, cookie: u64, number: u32, text: &str) -> Vec<u8> {
        let length = (text.len() as u16).to_be_bytes();
        let data = [&number.to_be_bytes()[..], &length, text.as_bytes()].concat();
        chunk(flags, proto::REPLY_TYPE_ERROR, cookie, &data)
    }

    /// What a stream of replies comes to, given in parts of so many bytes.
    type Outcome = Result<Vec<(char, Result<Vec<u8>, u32>)>, Violation>;

    fn run(client: &mut Client<char>, stream: &[u8], part: usize) -> Outcome {
        let (mut unread, mut ended) = (Vec::new(), Vec::new());
        for bytes in stream.chunks(part) {
            unread.extend(bytes);
            loop {
                let (used, event) = client.advance(&unread)?;
                drop(unread.drain(..used));
                match event {
                    Event::Need(more) => {
                        assert!(more > unread.len() && more <= Client::<char>::INPUT_BYTES_MAX);
                        break;
                    }
                    Event::Used => {}
                    Event::Ended(token, result) => {
                        let bytes =
                            |bufs: Vec<Buf>| bufs.iter().flat_map(|buf| buf.to_vec()).collect();
                        ended.push((token, result.map(bytes)));
                    }
                }
            }
        }
        Ok(ended)
    }

    /// A client with a read of 8 bytes from byte 100 on, into two buffers, and a write.
    fn asked(structured: bool) -> (Client<char>, u64, u64) {
        let mut client = Client::new(structured);
        let bufs = vec![Buf::zeroed(3), Buf::zeroed(5)];
        let read = client.begin('r', Some((100, bufs)));
        let write = client.begin('w', None);
        (client, read, write)
    }

    #[test]
    fn replies_come_in_any_order_and_in_any_pieces() {
        for part in 1..=64 {
            let (mut client, read, write) = asked(false);
            let stream = [simple(0, write), simple(0, read), b"abcdefgh".to_vec()].concat();
            let expected = [('w', Ok(vec![])), ('r', Ok(b"abcdefgh".to_vec()))];
            assert_eq!(run(&mut client, &stream, part).unwrap(), expected);
            assert_eq!(client.under_way(), 0);
            let (mut client, read, write) = asked(true);
            let stream = [
                data(0, read, 102, b"cdef"),
                simple(5, write),
                hole(0, read, 106, 2),
                data(0, read, 100, b"ab"),
                chunk(DONE, proto::REPLY_TYPE_NONE, read, &[]),
            ];
            let expected = [('w', Err(5)), ('r', Ok(b"abcdef\0\0".to_vec()))];
            assert_eq!(run(&mut client, &stream.concat(), part).unwrap(), expected);
        }
    }

    #[test]
    fn an_error_ends_a_request_that_has_some_data_already() {
        let (mut client, read, write) = asked(true);
        let stream = [
            data(0, read, 100, b"ab"),
            error(DONE, read, 5, "bad sector"),
            error(0, write, 28, ""),
            chunk(DONE, proto::REPLY_TYPE_NONE, write, &[]),
        ];
        let expected = [('r', Err(5)), ('w', Err(28))];
        assert_eq!(run(&mut client, &stream.concat(), 7).unwrap(), expected);
    }

    #[test]
    fn a_place_that_is_used_again_has_another_cookie() {
        let (mut client, read, write) = asked(false);
        run(&mut client, &simple(0, write), 99).unwrap();
        let again = client.begin('x', None);
        assert!(again != write && again != read);
        assert_eq!(run(&mut client, &simple(0, write), 99), Err(Violation::UnknownRequest));
    }

    #[test]
    fn replies_to_what_nobody_waits_for_any_more_are_understood() {
        for part in 1..=40 {
            let (mut client, read, write) = asked(true);
            let ended = run(&mut client, &data(0, read, 100, b"ab"), 99).unwrap();
            assert!(ended.is_empty());
            let mut left = Vec::new();
            client.forsake(|token, bufs| left.push((*token, bufs.len())));
            left.sort_unstable();
            assert_eq!((left, client.under_way()), (vec![('r', 2), ('w', 0)], 2));
            let stream = [data(DONE, read, 102, b"cdefgh"), simple(0, write)].concat();
            let expected = [('r', Ok(vec![])), ('w', Ok(vec![]))];
            assert_eq!(run(&mut client, &stream, part).unwrap(), expected);
            assert_eq!(client.under_way(), 0);
        }
    }

    #[test]
    fn what_no_server_should_send_is_refused_by_name() {
        use Violation::*;
        let whole = |read| data(0, read, 100, b"abcdefgh");
        type Case<'a> = (bool, &'a dyn Fn(u64, u64) -> Vec<u8>, Violation);
        let cases: [Case<'_>; 20] = [
            (true, &|_, _| vec![0; 16], BadMagic),
            (false, &|read, _| data(DONE, read, 100, b"abcdefgh"), BadMagic),
            (true, &|_, _| simple(0, 77), UnknownRequest),
            (true, &|read, _| whole(read + 1), UnknownRequest),
            (true, &|_, write| [simple(0, write), simple(0, write)].concat(), UnknownRequest),
            (true, &|read, _| simple(0, read), Senseless),
            (true, &|read, _| data(0, read, 99, b"abc"), OutOfRange),
            (true, &|read, _| data(0, read, 107, b"ab"), OutOfRange),
            (true, &|read, _| data(0, read, u64::MAX, b"ab"), OutOfRange),
            (true, &|read, _| hole(0, read, 100, u32::MAX), OutOfRange),
            (true, &|read, _| [data(0, read, 101, b"abc"), hole(0, read, 103, 1)].concat(), Twice),
            (true, &|read, _| [whole(read), whole(read)].concat(), Twice),
            (true, &|read, _| data(DONE, read, 100, b"abcdefg"), Missing),
            (true, &|read, _| chunk(DONE, proto::REPLY_TYPE_NONE, read, &[]), Missing),
            (true, &|_, write| data(0, write, 0, b"a"), Senseless),
            (true, &|read, _| hole(0, read, 100, 0), Senseless),
            (true, &|read, _| chunk(0, proto::REPLY_TYPE_NONE, read, &[]), Senseless),
            (true, &|read, _| chunk(2, proto::REPLY_TYPE_NONE, read, &[]), Senseless),
            (true, &|read, _| error(0, read, 5, &"x".repeat(5000)), ErrorTooLong),
            (true, &|read, _| error(0, read, 0, ""), Senseless),
        ];
        for (number, (structured, stream, violation)) in cases.into_iter().enumerate() {
            let (mut client, read, write) = asked(structured);
            let told = run(&mut client, &stream(read, write), 9);
            assert_eq!(told, Err(violation), "case {number}");
        }
        let mut client = Client::new(true);
        let read = client.begin('r', Some((0, vec![Buf::zeroed(4 * PIECES_MAX)])));
        let pieces = (0..=PIECES_MAX as u64).map(|at| data(0, read, 2 * at, b"a"));
        let stream = pieces.collect::<Vec<_>>().concat();
        assert_eq!(run(&mut client, &stream, 1000), Err(TooManyPieces));
    }

    #[test]
    fn random_bytes_and_replies_with_flipped_bits_never_panic() {
        let mut random = Prng::new(1);
        for _ in 0..20_000 {
            let (mut client, read, write) = asked(true);
            let mut stream = match random.below(4) {
                0 => data(DONE, read, 100, b"abcdefgh"),
                1 => [hole(0, read, 100, 8), simple(0, write)].concat(),
                2 => error(DONE, read, 5, "text"),
                _ => [data(0, read, 100, b"ab"), simple(5, write)].concat(),
            };
            for _ in 0..random.below(4) {
                let at = random.below(stream.len() as u64) as usize;
                stream[at] ^= 1 << random.below(8);
            }
            let part = random.below(40) as usize + 1;
            let _ = run(&mut client, &stream, part);
            client.forsake(|_, _| ());
        }
    }
}
