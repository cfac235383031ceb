//! Holds every stripe to what is read of the volume, with an arithmetic of its own: products in
//! GF(2^8) bit by bit.

use voltier_array::{Geometry, Stripe};
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

fn inverse(of: u8) -> u8 {
    (1..=255).find(|candidate| product(of, *candidate) == 1).expect("not zero")
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

/// Parity `row` of chunks of data.
pub fn parity(row: usize, data: &[&[u8]]) -> Vec<u8> {
    let mut sum = vec![0; data[0].len()];
    for (index, chunk) in data.iter().enumerate() {
        let factor = coefficient(row, index);
        let mut products = [0; 256];
        for (byte, entry) in (0..=255).zip(&mut products) {
            *entry = product(factor, byte);
        }
        for (sum, byte) in sum.iter_mut().zip(*chunk) {
            *sum ^= products[usize::from(*byte)];
        }
    }
    sum
}

/// Compares each chunk of each member in service with what it must be, the volume being `volume`.
/// `stored` reads a chunk of a member at a sector, and says nothing of members that are lost.
///
/// # Panics
/// At the first that differs.
pub(crate) fn check(
    geometry: &Geometry,
    volume: &[u8],
    when: &str,
    stored: impl Fn(usize, u64) -> Option<Vec<u8>>,
) {
    let chunk_bytes = (geometry.chunk_sectors() * SECTOR_BYTES) as usize;
    let data_chunks = geometry.data_chunks();
    let stripes = volume.chunks_exact(data_chunks * chunk_bytes);
    for (number, content) in stripes.enumerate() {
        let stripe = Stripe(number as u64);
        let columns: Vec<&[u8]> = content.chunks_exact(chunk_bytes).collect();
        let data: Vec<&[u8]> =
            (0..data_chunks).map(|slot| columns[geometry.column_of_slot(stripe, slot)]).collect();
        for slot in 0..geometry.width() {
            let member = geometry.member_of(stripe, slot);
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
}
