//! The plain kernels: every other one is held to these, and uses them for the last bytes of a row.

use super::kernel_set::{Kernels, Stores};
use crate::field::{SPLIT, power_of_two};

pub(super) static KERNELS: Kernels = Kernels { name: "scalar", encode, check, combine, update };

fn product(coefficient: u8, byte: u8) -> u8 {
    SPLIT[usize::from(coefficient)].times(byte)
}

/// Byte `at` of parity `row`.
fn parity_byte(row: usize, extra: &[u8], data: &[&[u8]], at: usize) -> u8 {
    let coefficient = |member: usize| match row {
        0 => 1,
        1 => power_of_two(member),
        _ => extra[(row - 2) * data.len() + member],
    };
    let terms = data.iter().enumerate();
    terms.fold(0, |sum, (member, bytes)| sum ^ product(coefficient(member), bytes[at]))
}

fn encode(extra: &[u8], data: &[&[u8]], parity: &mut [&mut [u8]], _: Stores) {
    encode_from(0, extra, data, parity);
}

/// As [`encode`], but leaves the first `start` bytes of every row alone.
pub(super) fn encode_from(start: usize, extra: &[u8], data: &[&[u8]], parity: &mut [&mut [u8]]) {
    for (row, target) in parity.iter_mut().enumerate() {
        for (at, byte) in target.iter_mut().enumerate().skip(start) {
            *byte = parity_byte(row, extra, data, at);
        }
    }
}

fn check(extra: &[u8], data: &[&[u8]], parity: &[&[u8]]) -> bool {
    check_from(0, extra, data, parity)
}

/// As [`check`], from byte `start` on.
pub(super) fn check_from(start: usize, extra: &[u8], data: &[&[u8]], parity: &[&[u8]]) -> bool {
    parity.iter().enumerate().all(|(row, stored)| {
        let mut bytes = stored.iter().enumerate().skip(start);
        bytes.all(|(at, byte)| *byte == parity_byte(row, extra, data, at))
    })
}

fn combine(coefficients: &[u8], sources: &[&[u8]], targets: &mut [&mut [u8]]) {
    combine_from(0, coefficients, sources, targets);
}

/// As [`combine`], but leaves the first `start` bytes of every target alone.
pub(super) fn combine_from(
    start: usize,
    coefficients: &[u8],
    sources: &[&[u8]],
    targets: &mut [&mut [u8]],
) {
    for (target, factors) in targets.iter_mut().zip(coefficients.chunks_exact(sources.len())) {
        for (at, byte) in target.iter_mut().enumerate().skip(start) {
            let terms = factors.iter().zip(sources);
            *byte = terms.fold(0, |sum, (factor, source)| sum ^ product(*factor, source[at]));
        }
    }
}

fn update(old: &[u8], new: &[u8], targets: &mut [(u8, &mut [u8])]) {
    update_from(0, old, new, targets);
}

/// As [`update`], but leaves the first `start` bytes of every target alone.
pub(super) fn update_from(start: usize, old: &[u8], new: &[u8], targets: &mut [(u8, &mut [u8])]) {
    for (coefficient, target) in targets {
        for (at, byte) in target.iter_mut().enumerate().skip(start) {
            *byte ^= product(*coefficient, old[at] ^ new[at]);
        }
    }
}
