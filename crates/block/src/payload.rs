//! The data of a write: pieces of memory in order, cut and read without a copy where they allow it.

use std::ops::Range;

use crate::{Buf, Bytes, SECTOR_BYTES, SectorRange};

/// The data of a write: one run on the device, gathered from one or many pieces of memory.
#[derive(Clone, Debug)]
pub enum Payload {
    /// One piece.
    One(Bytes),
    /// Several pieces, in order.
    Many(Vec<Bytes>),
}

impl Payload {
    /// Zeroes, `bytes` of them: one piece of at most `longest_bytes`, shared as often as needed.
    pub fn zeroes(bytes: u64, longest_bytes: u64) -> Self {
        let piece = Buf::zeroed(bytes.min(longest_bytes) as usize).freeze();
        let whole = std::iter::repeat_n(piece.clone(), (bytes / longest_bytes) as usize);
        let rest = Some(piece.slice(0..(bytes % longest_bytes) as usize));
        Self::Many(whole.chain(rest.filter(|rest| !rest.is_empty())).collect())
    }

    /// The pieces in order.
    #[inline]
    pub fn pieces(&self) -> &[Bytes] {
        match self {
            Payload::One(one) => std::slice::from_ref(one),
            Payload::Many(many) => many,
        }
    }

    /// Bytes in all pieces.
    #[inline]
    pub fn len(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len()).sum()
    }

    /// Puts the pieces of `next` behind these.
    pub fn append(&mut self, next: Payload) {
        let mut pieces = match std::mem::replace(self, Payload::Many(Vec::new())) {
            Payload::One(piece) => vec![piece],
            Payload::Many(pieces) => pieces,
        };
        match next {
            Payload::One(piece) => pieces.push(piece),
            Payload::Many(more) => pieces.extend(more),
        }
        *self = Payload::Many(pieces);
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of `range`, shared with this payload.
    ///
    /// # Panics
    /// When the range goes past the end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Payload {
        let (mut from, mut count) = (range.start, range.len());
        let mut pieces = Vec::new();
        for piece in self.pieces() {
            if count == 0 {
                break;
            }
            if from >= piece.len() {
                from -= piece.len();
                continue;
            }
            let taken = count.min(piece.len() - from);
            pieces.push(piece.slice(from..from + taken));
            (from, count) = (0, count - taken);
        }
        assert_eq!(count, 0, "{range:?} of {} bytes", self.len());
        match <[_; 1]>::try_from(pieces) {
            Ok([one]) => Payload::One(one),
            Err(many) => Payload::Many(many),
        }
    }

    /// The bytes of `range` as one piece: shared if one piece has them all, else copied.
    ///
    /// # Panics
    /// When the range goes past the end.
    #[must_use]
    pub fn bytes(&self, range: Range<usize>) -> Bytes {
        let mut start = 0;
        for piece in self.pieces() {
            if range.start >= start && range.end <= start + piece.len() {
                return piece.slice(range.start - start..range.end - start);
            }
            start += piece.len();
        }
        let mut copy = Buf::new(range.len());
        self.copy_to(range.start, &mut copy);
        copy.freeze()
    }

    /// Fills `into` with the bytes from byte `from` on.
    ///
    /// # Panics
    /// When the payload ends before `into` does.
    pub fn copy_to(&self, mut from: usize, into: &mut [u8]) {
        let mut filled = 0;
        for piece in self.pieces() {
            if filled == into.len() {
                break;
            }
            if from >= piece.len() {
                from -= piece.len();
                continue;
            }
            let count = (piece.len() - from).min(into.len() - filled);
            into[filled..filled + count].copy_from_slice(&piece[from..from + count]);
            (filled, from) = (filled + count, 0);
        }
        assert_eq!(filled, into.len(), "the payload is as long as its request");
    }

    /// All bytes as one piece: shared if there is one, else copied.
    #[inline]
    pub fn into_bytes(self) -> Bytes {
        match self {
            Payload::One(whole) => whole,
            many @ Payload::Many(_) => many.bytes(0..many.len()),
        }
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Payload::One(bytes)
    }
}

impl From<Buf> for Payload {
    fn from(buf: Buf) -> Self {
        Payload::One(buf.freeze())
    }
}

/// A place in a payload, which moves on with every part that is taken.
pub struct PayloadCursor {
    payload: Payload,
    /// The piece in which the place is, and the bytes of the piece before it.
    piece: usize,
    taken: usize,
}

impl PayloadCursor {
    /// The start of a payload.
    pub fn new(payload: Payload) -> Self {
        Self { payload, piece: 0, taken: 0 }
    }

    /// The next `bytes` bytes, at least one: shared where one piece has them all, else copied together.
    ///
    /// # Panics
    /// When the payload ends before.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Bytes {
        let mut copy: Option<Buf> = None;
        let mut filled = 0;
        loop {
            let piece = &self.payload.pieces()[self.piece];
            let now = (piece.len() - self.taken).min(bytes - filled);
            let part = piece.slice(self.taken..self.taken + now);
            self.taken += now;
            if self.taken == piece.len() {
                (self.piece, self.taken) = (self.piece + 1, 0);
            }
            if now == bytes {
                return part;
            }
            let target = copy.get_or_insert_with(|| Buf::new(bytes));
            target[filled..filled + now].copy_from_slice(&part);
            filled += now;
            if filled == bytes {
                return copy.take().expect("just filled").freeze();
            }
        }
    }
}

/// Joins the writes of a device that are neighbours, each with its range; the writes of a device ascend.
pub fn join_neighbours<D: PartialEq>(
    writes: impl IntoIterator<Item = (D, SectorRange, Payload)>,
) -> Vec<(D, SectorRange, Payload)> {
    let mut joined: Vec<(D, SectorRange, Payload)> = Vec::new();
    for (device, range, data) in writes {
        let last = joined.iter_mut().rev().find(|(of, ..)| *of == device);
        match last.filter(|(_, before, _)| before.end() == range.start) {
            Some((_, before, pieces)) => {
                before.count += range.count;
                pieces.append(data);
            }
            None => joined.push((device, range, data)),
        }
    }
    joined
}

/// Bytes of zeroes that the pieces of long writes share: few pieces, little memory.
const ZEROES_BYTES_MAX: u64 = 1 << 20;

/// Writes of zeroes that cover a range, cut at multiples of `longest_bytes`: all share one buffer.
pub fn zero_writes(
    range: SectorRange,
    longest_bytes: u64,
) -> impl Iterator<Item = (SectorRange, Payload)> {
    let zeroes = Payload::zeroes(longest_bytes.min(range.bytes()), ZEROES_BYTES_MAX);
    let writes = range.split_at_multiples(longest_bytes / SECTOR_BYTES);
    writes.map(move |part| (part, zeroes.slice(0..part.bytes() as usize)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lba;

    /// The bytes 0 to 99 in pieces that end at these places, empty ones among them.
    fn in_pieces(ends: &[usize]) -> Payload {
        let whole: Vec<u8> = (0..100).collect();
        let cut = |pair: &[usize]| Bytes::copy_of(&whole[pair[0]..pair[1]]);
        Payload::Many(ends.windows(2).map(cut).collect())
    }

    fn contents(payload: &Payload) -> Vec<u8> {
        payload.pieces().iter().flat_map(|piece| piece.to_vec()).collect()
    }

    #[test]
    fn a_cursor_takes_a_payload_in_order_over_any_borders() {
        let mut cursor = PayloadCursor::new(in_pieces(&[0, 10, 10, 35, 99, 100]));
        let taken: Vec<Bytes> = [5, 5, 30, 59, 1].map(|bytes| cursor.take(bytes)).into();
        assert_eq!(
            taken.iter().flat_map(|part| part.to_vec()).collect::<Vec<_>>(),
            Vec::from_iter(0..100)
        );
        assert_eq!(Payload::Many(taken).into_bytes()[..], Vec::from_iter(0..100));
    }

    #[test]
    fn every_range_of_a_payload_is_the_same_as_shared_pieces_as_one_piece_and_as_a_copy() {
        let payload = in_pieces(&[0, 10, 10, 35, 99, 100]);
        for start in 0..100 {
            for end in start + 1..=100 {
                let expected: Vec<u8> = (start as u8..end as u8).collect();
                assert_eq!(contents(&payload.slice(start..end)), expected);
                assert_eq!(payload.bytes(start..end)[..], expected);
                let mut copy = vec![0; end - start];
                payload.copy_to(start, &mut copy);
                assert_eq!(copy, expected);
            }
        }
        assert!(payload.slice(50..50).is_empty());
    }

    #[test]
    #[should_panic(expected = "90..101 of 100 bytes")]
    fn a_range_past_the_end_is_refused() {
        let _ = in_pieces(&[0, 50, 100]).slice(90..101);
    }

    #[test]
    fn a_range_inside_one_piece_is_shared() {
        let whole = Bytes::copy_of(&[7; 64]);
        let payload = Payload::Many(vec![Bytes::copy_of(&[1; 8]), whole.clone()]);
        assert_eq!(payload.bytes(16..24).as_ptr(), whole[8..].as_ptr());
    }

    #[test]
    fn zeroes_are_as_many_as_asked_for_and_share_one_piece() {
        for (bytes, pieces) in [(512, 1), (4096, 1), (4608, 2), (12288, 3)] {
            let zeroes = Payload::zeroes(bytes, 4096);
            assert_eq!((zeroes.len() as u64, zeroes.pieces().len()), (bytes, pieces));
            assert!(contents(&zeroes).iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn neighbours_of_one_device_are_joined_and_others_are_not() {
        let write = |device: char, start, text: &str| {
            let bytes: Vec<u8> =
                text.bytes().flat_map(|byte| [byte; SECTOR_BYTES as usize]).collect();
            let range = SectorRange::new(Lba(start), text.len() as u64);
            (device, range, Payload::One(Bytes::copy_of(&bytes)))
        };
        let several = |device, start, texts: [&str; 2]| {
            let (_, mut range, mut data) = write(device, start, texts[0]);
            let (_, more, next) = write(device, range.end().0, texts[1]);
            range.count += more.count;
            data.append(next);
            (device, range, data)
        };
        let writes = [
            write('a', 0, "1"),
            write('b', 1, "2"),
            several('a', 1, ["34", "5"]),
            several('b', 3, ["6", "7"]),
            write('a', 4, "8"),
            write('b', 5, "9"),
        ];
        let seen: Vec<_> = join_neighbours(writes)
            .into_iter()
            .map(|(device, range, data)| {
                let bytes = contents(&data);
                let text: String =
                    bytes.chunks(SECTOR_BYTES as usize).map(|it| char::from(it[0])).collect();
                assert_eq!(bytes.len() as u64, range.bytes());
                (device, range.start.0, text)
            })
            .collect();
        let text = |text: &str| text.to_owned();
        assert_eq!(seen, [('a', 0, text("13458")), ('b', 1, text("2")), ('b', 3, text("679"))]);
    }

    #[test]
    fn writes_of_zeroes_cover_a_range_once() {
        let range = SectorRange::new(Lba(5), 30);
        let mut at = range.start;
        for (part, zeroes) in zero_writes(range, 4096) {
            assert_eq!((part.start, part.bytes()), (at, zeroes.len() as u64));
            assert!(part.bytes() <= 4096);
            at = part.end();
        }
        assert_eq!(at, range.end());
    }
}
