//! Buffers of requests, cut for the members and put together again.

use voltier_block::{Buf, Bytes, Payload};

/// Takes a payload apart from its start on, whatever its pieces.
pub(crate) struct Pieces {
    payload: Payload,
    piece: usize,
    taken: usize,
}

impl Pieces {
    pub(crate) fn of(payload: Payload) -> Self {
        Self { payload, piece: 0, taken: 0 }
    }

    /// All of a payload as one piece.
    pub(crate) fn whole(payload: Payload) -> Bytes {
        match payload {
            Payload::One(whole) => whole,
            many @ Payload::Many(_) => {
                let bytes = many.len();
                Self::of(many).take(bytes)
            }
        }
    }

    /// The next `bytes` bytes: shared where one piece has them all, else copied together.
    pub(crate) fn take(&mut self, bytes: usize) -> Bytes {
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

/// Joins what was cut from one buffer; a piece that had to be replaced makes it a copy.
pub(crate) fn assemble(pieces: Vec<Buf>) -> Buf {
    if pieces.windows(2).all(|pair| pair[0].is_followed_by(&pair[1])) {
        return pieces.into_iter().reduce(Buf::join).unwrap_or_else(|| Buf::new(0));
    }
    let mut whole = Buf::new(pieces.iter().map(|piece| piece.len()).sum());
    let mut filled = 0;
    for piece in pieces {
        whole[filled..filled + piece.len()].copy_from_slice(&piece);
        filled += piece.len();
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_taken_in_order_over_any_borders() {
        let whole: Vec<u8> = (0..100).collect();
        let cut = [0, 10, 10, 35, 99, 100];
        let pieces = cut.windows(2).map(|ends| Bytes::copy_of(&whole[ends[0]..ends[1]])).collect();
        let mut pieces = Pieces::of(Payload::Many(pieces));
        let taken: Vec<Bytes> = [5, 5, 30, 59, 1].map(|bytes| pieces.take(bytes)).into();
        assert_eq!(taken.iter().flat_map(|part| part.to_vec()).collect::<Vec<_>>(), whole);
        assert_eq!(Pieces::whole(Payload::Many(taken))[..], whole[..]);
    }

    #[test]
    fn pieces_of_one_buffer_are_joined_and_others_copied() {
        let mut rest = Buf::copy_of(&[1; 1024]);
        let start = rest.as_ptr();
        let first = rest.split_to(512);
        assert_eq!(assemble(vec![first, rest]).as_ptr(), start);
        let copied = assemble(vec![Buf::copy_of(&[1; 512]), Buf::copy_of(&[2; 512])]);
        assert_eq!((copied.len(), copied[511], copied[512]), (1024, 1, 2));
    }
}
