//! Finds which member is wrong.
//!
//! The syndromes of a byte are the stored parity plus the parity of the stored data, row by row. An error
//! e in data member m leaves e times the coefficient of m in every row. An error in a parity row leaves
//! itself there and nothing elsewhere.

use crate::field::{invert, logarithm, multiply};
use crate::kernels::{Kernels, Stores};
use crate::matrix::{ROWS_MAX, coefficient};

/// The verdict of the syndromes about an extent of a stripe.
///
/// With m rows, fewer than m wrong members in one byte are never taken for a different single one. With
/// two rows one wrong member is found, and two may look like a third. With three rows one wrong member
/// is found, and two are noticed as more than one. Longer extents help: all their bytes must name the
/// same member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Parity is that of the data.
    Consistent,
    /// One member explains every byte that is wrong.
    One {
        /// The member's number: data members from 0, then the rows.
        member: usize,
    },
    /// No single member explains it, or there is one row only, which cannot tell.
    Unknown,
}

/// Bytes of a row whose syndromes are computed at once, on the stack.
const PIECE_BYTES: usize = 512;

/// See [`Code::locate`](crate::Code::locate), which has checked the arguments and found a difference.
/// `extra` are the coefficients of the rows from the third on.
pub(crate) fn locate(kernels: &Kernels, extra: &[u8], data: &[&[u8]], parity: &[&[u8]]) -> Verdict {
    let mut verdict = Verdict::Consistent;
    if parity.len() < 2 {
        return Verdict::Unknown;
    }
    let bytes = data[0].len();
    let mut slices: [&[u8]; 255] = [&[]; 255];
    for start in (0..bytes).step_by(PIECE_BYTES) {
        let piece = start..bytes.min(start + PIECE_BYTES);
        for (slice, member) in slices.iter_mut().zip(data) {
            *slice = &member[piece.clone()];
        }
        let mut computed = [[0; PIECE_BYTES]; ROWS_MAX];
        let mut rows = computed.each_mut().map(|row| &mut row[..piece.len()]);
        let rows = &mut rows[..parity.len()];
        kernels.encode(extra, &slices[..data.len()], rows, Stores::Cached);
        for (row, stored) in computed.iter_mut().zip(parity) {
            row.iter_mut().zip(&stored[piece.clone()]).for_each(|(sum, byte)| *sum ^= byte);
        }
        for at in 0..piece.len() {
            let syndromes = computed.map(|row| row[at]);
            match (verdict, explain(data.len(), &syndromes[..parity.len()])) {
                (_, Verdict::Consistent) => {}
                (Verdict::Consistent, found @ Verdict::One { .. }) => verdict = found,
                (before, found) if before == found => {}
                _ => return Verdict::Unknown,
            }
        }
    }
    verdict
}

/// The member that explains the syndromes of one byte, of at least two rows over `data` members.
fn explain(data: usize, syndromes: &[u8]) -> Verdict {
    let mut wrong = (0..syndromes.len()).filter(|&row| syndromes[row] != 0);
    let Some(first) = wrong.next() else { return Verdict::Consistent };
    if wrong.next().is_none() {
        return Verdict::One { member: data + first };
    }
    if syndromes[0] == 0 || syndromes[1] == 0 {
        return Verdict::Unknown;
    }
    // The second row's coefficient of member m is 2^m.
    let member = logarithm(multiply(syndromes[1], invert(syndromes[0])));
    let explained = member < data
        && (2..syndromes.len())
            .all(|row| syndromes[row] == multiply(coefficient(row, member), syndromes[0]));
    if explained { Verdict::One { member } } else { Verdict::Unknown }
}
