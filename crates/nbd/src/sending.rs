//! What is left to send of pieces that a socket took in part.

use voltier_block::Bytes;

/// Drops the first `bytes` of the pieces.
pub fn cut_front(pieces: &mut Vec<Bytes>, mut bytes: usize) {
    let whole = pieces
        .iter()
        .take_while(|piece| {
            let gone = piece.len() <= bytes;
            if gone {
                bytes -= piece.len();
            }
            gone
        })
        .count();
    pieces.drain(..whole);
    if let Some(first) = pieces.first_mut() {
        *first = first.slice(bytes..first.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_cut_from_the_front() {
        for bytes in 0..=6 {
            let mut pieces =
                vec![Bytes::copy_of(b"ab"), Bytes::copy_of(b"c"), Bytes::copy_of(b"def")];
            cut_front(&mut pieces, bytes);
            let rest: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
            assert_eq!(rest, b"abcdef"[bytes..]);
            assert!(pieces.iter().all(|piece| !piece.is_empty()));
        }
    }
}
