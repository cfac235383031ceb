//! Holds every stripe to what is read of the volume, with an arithmetic of its own: products in
//! GF(2^8) bit by bit.

use voltier_array::{Geometry, MemberIndex, StripeNumber, StripeSlot};
use voltier_block::SECTOR_BYTES;

/// The product modulo 0x11d.
const fn product(mut one: u8, mut other: u8) -> u8 {
    let mut sum = 0;
    while other != 0 {
        if other & 1 == 1 {
            sum ^= one;
        }
        one = (one << 1) ^ if one & 0x80 == 0 { 0 } else { 0x1d };
        other >>= 1;
    }
    sum
}

fn power_of_two(exponent: usize) -> u8 {
    (0..exponent).fold(1, |power, _| product(power, 2))
}

/// The inverse: the 254th power.
fn inverse(of: u8) -> u8 {
    let squares = (0..7).scan(of, |square, _| {
        *square = product(*square, *square);
        Some(*square)
    });
    squares.fold(1, product)
}

/// The coefficient of chunk `index` in parity `row`: 1, 2^i, and (x + 1) / (x + 2^-i) with
/// x = 2^(row - 1).
fn coefficient(row: usize, index: usize) -> u8 {
    match row {
        0 => 1,
        1 => power_of_two(index),
        _ => {
            let x = power_of_two(row - 1);
            product(x ^ 1, inverse(x ^ inverse(power_of_two(index))))
        }
    }
}

/// Bytes that are multiplied together.
const LANES: usize = 64;

/// Adds `factor`, which is not zero, times `data` to `sum`: bit by bit of the factor, many bytes at once.
fn add_product(sum: &mut [u8], factor: u8, data: &[u8]) {
    let (sums, _) = sum.as_chunks_mut::<LANES>();
    let (chunks, rest) = data.as_chunks::<LANES>();
    assert!(rest.is_empty() && sums.len() == chunks.len(), "chunks are whole sectors");
    for (sum, data) in sums.iter_mut().zip(chunks) {
        // The highest bit that is set, and then the others.
        let mut scaled = *data;
        for bit in (0..factor.ilog2()).rev() {
            for byte in &mut scaled {
                *byte = (*byte << 1) ^ if *byte & 0x80 == 0 { 0 } else { 0x1d };
            }
            if factor >> bit & 1 == 1 {
                scaled.iter_mut().zip(data).for_each(|(byte, data)| *byte ^= data);
            }
        }
        sum.iter_mut().zip(scaled).for_each(|(sum, byte)| *sum ^= byte);
    }
}

/// Parity `row` of chunks of data.
pub fn parity(row: usize, data: &[&[u8]]) -> Vec<u8> {
    let mut sum = vec![0; data[0].len()];
    for (index, chunk) in data.iter().enumerate() {
        add_product(&mut sum, coefficient(row, index), chunk);
    }
    sum
}

/// Compares each chunk of each member of a stripe in service with what it must be, `content` being what
/// the volume has there. `stored` reads a chunk of a member at a sector of its chunks, and says nothing
/// of members that are lost.
///
/// # Panics
/// At the first that differs.
pub(crate) fn check(
    geometry: &Geometry,
    stripe: StripeNumber,
    content: &[u8],
    when: &str,
    stored: impl Fn(usize, u64) -> Option<Vec<u8>>,
) {
    let chunk_bytes = (geometry.chunk_sectors() * SECTOR_BYTES) as usize;
    let data_chunks = geometry.data_chunks();
    let number = stripe.0;
    let columns: Vec<&[u8]> = content.chunks_exact(chunk_bytes).collect();
    let slots = (0..data_chunks).map(StripeSlot);
    let data: Vec<&[u8]> =
        slots.map(|slot| columns[geometry.column_of_slot(stripe, slot)]).collect();
    for slot in 0..geometry.width() {
        let MemberIndex(member) = geometry.member_of(stripe, StripeSlot(slot));
        let at = geometry.member_lba(stripe, 0).0;
        let Some(found) = stored(member, at) else { continue };
        match slot.checked_sub(data_chunks) {
            None => assert!(
                found == data[slot],
                "data of stripe {number} on member {member} are not what is read, {when}"
            ),
            Some(row) => assert!(
                found == parity(row, &data),
                "parity {row} of stripe {number} on member {member} is wrong, {when}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_many_bytes_are_those_of_each() {
        let data: Vec<u8> = (0..=255).collect();
        for factor in [1, 2, 3, 0x1d, 0x80, 0xff] {
            let mut sum = vec![0x5a; data.len()];
            add_product(&mut sum, factor, &data);
            let each = data.iter().map(|byte| 0x5a ^ product(factor, *byte));
            assert!(sum.into_iter().eq(each), "{factor}");
        }
        assert!((1..=255).all(|byte| product(byte, inverse(byte)) == 1));
    }
}
