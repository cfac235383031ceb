//! Arrays of integers of any width up to 64 bits, with no gaps between them.

use crate::memory::{self, NoMemory};

/// Bytes past the last integer, so that a whole window may be read at any place.
const SLACK_BYTES: usize = 16;
/// An integer this wide lies within eight bytes wherever it begins.
const NARROW_BITS: u32 = 57;

/// An array of integers of `width` bits each. Fresh memory holds zeroes.
#[derive(Debug)]
pub(crate) struct PackedArray {
    bytes: Vec<u8>,
    width: u32,
    length: usize,
}

/// Bits that hold every number up to `max`.
pub(crate) fn bits_for(max: u64) -> u32 {
    u64::BITS - max.leading_zeros()
}

impl PackedArray {
    /// `length` zeroes of `width` bits.
    pub(crate) fn new(length: usize, width: u32) -> Result<Self, NoMemory> {
        assert!((1..=u64::BITS).contains(&width));
        let bytes = memory::zeroes(Self::bytes_for(length as u64, width))?;
        Ok(Self { bytes, width, length })
    }

    /// The memory of `length` integers of `width` bits.
    pub(crate) fn bytes_for(length: u64, width: u32) -> u64 {
        (length * u64::from(width)).div_ceil(8) + SLACK_BYTES as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    fn mask(&self) -> u64 {
        u64::MAX >> (u64::BITS - self.width)
    }

    /// The first byte and the bit in it where an integer begins.
    #[inline]
    fn place(&self, index: usize) -> (usize, u32) {
        let bit = index * self.width as usize;
        (bit / 8, (bit % 8) as u32)
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> u64 {
        assert!(index < self.length);
        let (at, shift) = self.place(index);
        let word = if self.width <= NARROW_BITS {
            narrow(&self.bytes, at) >> shift
        } else {
            (wide(&self.bytes, at) >> shift) as u64
        };
        word & self.mask()
    }

    #[inline]
    pub(crate) fn set(&mut self, index: usize, value: u64) {
        let mask = self.mask();
        assert!(index < self.length && value & !mask == 0);
        let (at, shift) = self.place(index);
        if self.width <= NARROW_BITS {
            let word = narrow(&self.bytes, at) & !(mask << shift) | value << shift;
            self.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        } else {
            let (mask, value) = (u128::from(mask), u128::from(value));
            let word = wide(&self.bytes, at) & !(mask << shift) | value << shift;
            self.bytes[at..at + 16].copy_from_slice(&word.to_le_bytes());
        }
    }
}

#[inline]
fn narrow(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[inline]
fn wide(bytes: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(bytes[at..at + 16].try_into().expect("sixteen bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_block::Prng;

    #[test]
    fn integers_of_every_width_keep_apart() {
        let mut prng = Prng::new(5);
        for width in 1..=u64::BITS {
            let mut packed = PackedArray::new(100, width).unwrap();
            let mut plain = [0; 100];
            for _ in 0..2000 {
                let index = prng.below(100) as usize;
                plain[index] = prng.next_u64() >> (u64::BITS - width);
                packed.set(index, plain[index]);
            }
            assert!((0..100).all(|index| packed.get(index) == plain[index]), "{width}");
        }
    }

    #[test]
    fn bits_are_as_many_as_the_largest_number_needs() {
        assert_eq!([0, 1, 255, 256, u64::MAX].map(bits_for), [0, 1, 8, 9, 64]);
    }
}
