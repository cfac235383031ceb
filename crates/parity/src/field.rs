//! Arithmetic in GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11d), where 2 generates every element
//! but zero. Addition is exclusive or.

/// x^8 reduced: what is added when a product with 2 leaves the byte.
pub(crate) const REDUCTION: u8 = 0x1d;

/// The order of the multiplicative group: 2^255 = 1.
pub(crate) const ORDER: usize = 255;

const fn times_two(a: u8) -> u8 {
    (a << 1) ^ if a & 0x80 != 0 { REDUCTION } else { 0 }
}

/// 2^0 to 2^254, twice, so that a sum of two logarithms needs no reduction.
static POWERS: [u8; 2 * ORDER] = powers();

/// For each element but zero, n with 2^n = element.
static LOGARITHMS: [u8; 256] = logarithms();

const fn powers() -> [u8; 2 * ORDER] {
    let mut powers = [1; 2 * ORDER];
    let mut index = 1;
    while index < powers.len() {
        powers[index] = times_two(powers[index - 1]);
        index += 1;
    }
    powers
}

const fn logarithms() -> [u8; 256] {
    let powers = powers();
    let mut logarithms = [0; 256];
    let mut exponent = 0;
    while exponent < ORDER {
        logarithms[powers[exponent] as usize] = exponent as u8;
        exponent += 1;
    }
    logarithms
}

/// 2 to the power `exponent`.
pub(crate) fn power_of_two(exponent: usize) -> u8 {
    POWERS[exponent % ORDER]
}

/// n with 2^n = `a`, which is not zero.
pub(crate) fn logarithm(a: u8) -> usize {
    assert!(a != 0, "zero has no logarithm");
    usize::from(LOGARITHMS[usize::from(a)])
}

/// The product.
pub(crate) fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    POWERS[logarithm(a) + logarithm(b)]
}

/// a^-1 of an `a` that is not zero.
pub(crate) fn invert(a: u8) -> u8 {
    POWERS[ORDER - logarithm(a)]
}

/// All products of a constant, split by the nibbles of the other factor: `c * x` is
/// `low[x & 15] ^ high[x >> 4]`. Sixteen bytes are what one shuffle instruction looks up.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct Split {
    pub(crate) low: [u8; 16],
    pub(crate) high: [u8; 16],
}

impl Split {
    /// The product of the table's constant with `x`.
    #[inline(always)]
    pub(crate) fn times(&self, x: u8) -> u8 {
        self.low[usize::from(x & 15)] ^ self.high[usize::from(x >> 4)]
    }
}

/// The table of every constant: 8 KiB, so that plans hold coefficients and no tables.
pub(crate) static SPLIT: [Split; 256] = split();

const fn split() -> [Split; 256] {
    let mut tables = [Split { low: [0; 16], high: [0; 16] }; 256];
    let mut constant = 0;
    while constant < 256 {
        // Products with 1, 2, 4, ... 128; all others are sums of these.
        let mut bit = 0;
        let mut product = constant as u8;
        while bit < 8 {
            let mut nibble = 0;
            while nibble < 16 {
                if bit < 4 && nibble >> bit & 1 == 1 {
                    tables[constant].low[nibble] ^= product;
                }
                if bit >= 4 && nibble >> (bit - 4) & 1 == 1 {
                    tables[constant].high[nibble] ^= product;
                }
                nibble += 1;
            }
            product = times_two(product);
            bit += 1;
        }
        constant += 1;
    }
    tables
}

/// Multiplication with every constant as a matrix over bits, as one affine instruction takes it. Byte 7
/// - i says which bits of a byte are summed to bit i of the product.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "x86-64 has the instruction"))]
pub(crate) static MATRICES: [u64; 256] = matrices();

const fn matrices() -> [u64; 256] {
    let mut matrices = [0; 256];
    let mut constant = 0;
    while constant < 256 {
        let mut product = constant as u8;
        let mut bit = 0;
        while bit < 8 {
            let mut out = 0;
            while out < 8 {
                if product >> out & 1 == 1 {
                    matrices[constant] |= 1 << (8 * (7 - out) + bit);
                }
                out += 1;
            }
            product = times_two(product);
            bit += 1;
        }
        constant += 1;
    }
    matrices
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: polynomials multiplied, then reduced from the highest power down.
    fn by_definition(a: u8, b: u8) -> u8 {
        let shifted = |bit: u32| if b >> bit & 1 == 1 { u16::from(a) << bit } else { 0 };
        let product = (0..8).map(shifted).fold(0, |sum, term| sum ^ term);
        (8..15).rev().fold(product, |rest, power| {
            if rest >> power & 1 == 1 { rest ^ (0x11d << (power - 8)) } else { rest }
        }) as u8
    }

    #[test]
    fn products_are_those_of_the_definition_by_both_kinds_of_table() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(multiply(a, b), by_definition(a, b), "{a} * {b}");
                assert_eq!(SPLIT[usize::from(a)].times(b), by_definition(a, b), "{a} * {b}");
            }
        }
    }

    #[test]
    fn products_by_matrices_are_those_of_the_definition() {
        for a in 0..=255 {
            let matrix = MATRICES[usize::from(a)].to_be_bytes();
            for b in 0..=255 {
                let bit = |out: usize| ((matrix[out] & b).count_ones() as u8 & 1) << out;
                let product = (0..8).map(bit).fold(0, |sum, bit| sum | bit);
                assert_eq!(product, by_definition(a, b), "{a} * {b}");
            }
        }
    }

    #[test]
    fn every_element_but_zero_has_an_inverse_and_is_a_power_of_two() {
        for a in 1..=255 {
            assert_eq!(multiply(a, invert(a)), 1);
            assert_eq!(power_of_two(logarithm(a)), a);
        }
    }
}
