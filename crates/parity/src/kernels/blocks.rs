//! The vector kernels, written once over [`Vector`] and compiled for each instruction set.
//!
//! A block is `N` vectors. For each block all members are read once, and all rows are kept in registers
//! until they are stored. The rest at the end is the scalar kernels' part.
//!
//! UNSAFETY: reads and writes by pointer, within slices whose lengths the callers of the kernels
//! have checked. All functions are inlined into functions that enable the instruction set.
#![allow(unsafe_code)]

use super::kernel_set::Stores;
use super::scalar;
use crate::field::{REDUCTION, SPLIT, Split};

/// One vector register.
///
/// # Safety
/// Every function may be called only where the processor has the instruction set. Pointers are good
/// for `BYTES` bytes; only `stream` needs them aligned.
pub(super) trait Vector: Copy {
    const BYTES: usize;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    /// Stores past the caches.
    unsafe fn stream(self, to: *mut u8);
    /// Orders what was streamed before whatever follows.
    unsafe fn end_of_stream();
    unsafe fn splat(byte: u8) -> Self;
    /// Sixteen bytes, again and again.
    unsafe fn repeat(table: &[u8; 16]) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn or(self, other: Self) -> Self;
    unsafe fn xor3(self, second: Self, third: Self) -> Self;
    /// Every byte doubled, what leaves it dropped.
    unsafe fn double(self) -> Self;
    /// The parts of a vector that are multiplied: its low and its high nibbles, or twice itself.
    unsafe fn operand(self) -> Operand<Self>;
    /// The form of a constant as a factor.
    unsafe fn factor(constant: u8) -> Factor<Self>;
    /// Adds a product.
    unsafe fn add_product(self, factor: Factor<Self>, operand: Operand<Self>) -> Self;
    /// Looks up every byte of `index` in the repeated table: by its low nibble, or zero if its
    /// highest bit is set.
    unsafe fn look_up(self, index: Self) -> Self;
    unsafe fn is_zero(self) -> bool;
    unsafe fn prefetch(from: *const u8);
}

/// See [`Vector::operand`].
pub(super) type Operand<V> = (V, V);

/// The products of a constant with the nibbles, to look up, or twice its matrix.
pub(super) type Factor<V> = (V, V);

/// The factor for products by looking up.
#[inline(always)]
pub(super) unsafe fn tables<V: Vector>(constant: u8) -> Factor<V> {
    let Split { low, high } = &SPLIT[usize::from(constant)];
    // SAFETY: as the caller's.
    unsafe { (V::repeat(low), V::repeat(high)) }
}

/// Adds a product by looking up.
#[inline(always)]
pub(super) unsafe fn add_looked_up<V: Vector>(sum: V, factor: Factor<V>, operand: Operand<V>) -> V {
    // SAFETY: as the caller's.
    unsafe { sum.xor3(factor.0.look_up(operand.0), factor.1.look_up(operand.1)) }
}

/// `x` with 2 * x ^ 0x1d = x, which is 0x1d / 3: see [`sums`].
const BIAS: u8 = bias();

const fn bias() -> u8 {
    let mut x = 0u8;
    while (x << 1) ^ (if x & 0x80 != 0 { REDUCTION } else { 0 }) ^ REDUCTION != x {
        x += 1;
    }
    x
}

/// Members up to this length are fetched ahead of the block, by so many bytes.
///
/// Ten streams of one page each end before the processor's own prefetching has understood them. With the
/// prefetch 8+3 with 4 KiB in memory gains 38 %, and loses 3 % in cache. In longer members it would get in
/// the processor's way: 64 KiB in memory loses 29 % (AMD EPYC, family 26).
const PREFETCH_MEMBER_BYTES_MAX: usize = 4096;
const PREFETCH_AHEAD_BYTES: usize = 512;

#[inline(always)]
unsafe fn load_block<V: Vector, const N: usize>(slice: &[u8], at: usize) -> [V; N] {
    debug_assert!(at + N * V::BYTES <= slice.len());
    // SAFETY: the block lies in the slice.
    unsafe {
        let from = slice.as_ptr().add(at);
        let mut block = [V::splat(0); N];
        for (index, vector) in block.iter_mut().enumerate() {
            *vector = V::load(from.add(index * V::BYTES));
        }
        block
    }
}

/// One block of all `ROWS` rows.
///
/// The second row is summed by Horner's rule, from the last member to the first: q = 2 * q ^ d. The
/// reduction after doubling is a look-up in a table of sixteen times 0x1d. The table gives zero where the
/// highest bit is set and 0x1d where it is not. The table answers the wrong way round: 0x1d too much in
/// every byte. With q kept as q ^ x, where 2 * x ^ 0x1d = x, the excess turns x into x again, and is
/// removed once at the end.
#[inline(always)]
unsafe fn sums<V: Vector, const ROWS: usize, const N: usize>(
    extra: &[u8],
    data: &[&[u8]],
    at: usize,
) -> [[V; N]; ROWS] {
    // SAFETY: the block at `at` lies in every member, and `extra` has a coefficient for each.
    unsafe {
        let mut rows = [[V::splat(0); N]; ROWS];
        let excess = V::splat(REDUCTION);
        let bias = V::splat(BIAS);
        if ROWS > 1 {
            rows[1] = [bias; N];
        }
        for member in (0..data.len()).rev() {
            let bytes = *data.get_unchecked(member);
            if bytes.len() <= PREFETCH_MEMBER_BYTES_MAX {
                let ahead = bytes.as_ptr().wrapping_add(at + PREFETCH_AHEAD_BYTES);
                for line in (0..N * V::BYTES).step_by(64) {
                    V::prefetch(ahead.wrapping_add(line));
                }
            }
            let block = load_block::<V, N>(bytes, at);
            for index in 0..N {
                rows[0][index] = rows[0][index].xor(block[index]);
                if ROWS > 1 {
                    let q = rows[1][index];
                    rows[1][index] = q.double().xor3(excess.look_up(q), block[index]);
                }
            }
            if ROWS > 2 {
                let operands = operands_of(block);
                for (row, sum) in rows.iter_mut().skip(2).enumerate() {
                    let factor = *extra.get_unchecked(row * data.len() + member);
                    add_products(V::factor(factor), operands, sum);
                }
            }
        }
        if ROWS > 1 {
            for vector in &mut rows[1] {
                *vector = vector.xor(bias);
            }
        }
        rows
    }
}

#[inline(always)]
unsafe fn operands_of<V: Vector, const N: usize>(block: [V; N]) -> [Operand<V>; N] {
    // A loop: `map` of an array is a function without the instruction set, and is not always inlined.
    let mut operands = [(block[0], block[0]); N];
    for (operand, vector) in operands.iter_mut().zip(block) {
        // SAFETY: as the caller's.
        *operand = unsafe { vector.operand() };
    }
    operands
}

#[inline(always)]
unsafe fn add_products<V: Vector, const N: usize>(
    factor: Factor<V>,
    operands: [Operand<V>; N],
    row: &mut [V; N],
) {
    for (sum, operand) in row.iter_mut().zip(operands) {
        // SAFETY: as the caller's.
        *sum = unsafe { sum.add_product(factor, operand) };
    }
}

/// See [`super::kernel_set::Encode`].
#[inline(always)]
pub(super) unsafe fn encode<V: Vector, const ROWS: usize, const N: usize>(
    extra: &[u8],
    data: &[&[u8]],
    parity: &mut [&mut [u8]],
    stores: Stores,
) {
    let block_bytes = N * V::BYTES;
    let bytes = data[0].len() / block_bytes * block_bytes;
    let aligned = parity.iter().all(|row| row.as_ptr().addr() % V::BYTES == 0);
    let streaming = stores == Stores::Streaming && aligned;
    // SAFETY: blocks end where the slices end, at the latest.
    unsafe {
        for at in (0..bytes).step_by(block_bytes) {
            let rows = sums::<V, ROWS, N>(extra, data, at);
            for (row, target) in rows.iter().zip(parity.iter_mut()) {
                let to = target.as_mut_ptr().add(at);
                for (index, vector) in row.iter().enumerate() {
                    let to = to.add(index * V::BYTES);
                    if streaming { vector.stream(to) } else { vector.store(to) }
                }
            }
        }
        if streaming {
            V::end_of_stream();
        }
    }
    scalar::encode_from(bytes, extra, data, parity);
}

/// See [`super::kernel_set::Check`].
#[inline(always)]
pub(super) unsafe fn check<V: Vector, const ROWS: usize, const N: usize>(
    extra: &[u8],
    data: &[&[u8]],
    parity: &[&[u8]],
) -> bool {
    let block_bytes = N * V::BYTES;
    let bytes = data[0].len() / block_bytes * block_bytes;
    for at in (0..bytes).step_by(block_bytes) {
        // SAFETY: blocks end where the slices end, at the latest.
        let equal = unsafe {
            let rows = sums::<V, ROWS, N>(extra, data, at);
            let mut difference = V::splat(0);
            for (row, stored) in rows.iter().zip(parity) {
                for (sum, stored) in row.iter().zip(load_block::<V, N>(stored, at)) {
                    difference = difference.or(sum.xor(stored));
                }
            }
            difference.is_zero()
        };
        if !equal {
            return false;
        }
    }
    scalar::check_from(bytes, extra, data, parity)
}

/// See [`super::kernel_set::Combine`].
#[inline(always)]
pub(super) unsafe fn combine<V: Vector, const TARGETS: usize, const N: usize>(
    coefficients: &[u8],
    sources: &[&[u8]],
    targets: &mut [&mut [u8]],
) {
    let block_bytes = N * V::BYTES;
    let bytes = sources[0].len() / block_bytes * block_bytes;
    for at in (0..bytes).step_by(block_bytes) {
        // SAFETY: blocks end where the slices end, at the latest, and every pair of target and
        // source has a coefficient.
        unsafe {
            let mut sums = [[V::splat(0); N]; TARGETS];
            for (index, source) in sources.iter().enumerate() {
                let operands = operands_of(load_block::<V, N>(source, at));
                for (target, sum) in sums.iter_mut().enumerate() {
                    let factor = *coefficients.get_unchecked(target * sources.len() + index);
                    add_products(V::factor(factor), operands, sum);
                }
            }
            for (target, sum) in sums.iter().enumerate() {
                let to = targets.get_unchecked_mut(target).as_mut_ptr().add(at);
                for (index, vector) in sum.iter().enumerate() {
                    vector.store(to.add(index * V::BYTES));
                }
            }
        }
    }
    scalar::combine_from(bytes, coefficients, sources, targets);
}

/// Rows that one pass over the change updates: more would not stay in registers with their factors.
const UPDATE_ROWS_MAX: usize = 4;

/// See [`super::kernel_set::Update`].
#[inline(always)]
pub(super) unsafe fn update<V: Vector, const N: usize>(
    old: &[u8],
    new: &[u8],
    targets: &mut [(u8, &mut [u8])],
) {
    for targets in targets.chunks_mut(UPDATE_ROWS_MAX) {
        // SAFETY: as the caller's; so many targets are given.
        unsafe {
            match targets.len() {
                1 => update_rows::<V, 1, N>(old, new, targets),
                2 => update_rows::<V, 2, N>(old, new, targets),
                3 => update_rows::<V, 3, N>(old, new, targets),
                _ => update_rows::<V, UPDATE_ROWS_MAX, N>(old, new, targets),
            }
        }
    }
}

/// All `ROWS` rows of a block are loaded before the first is stored. Chunks lie at multiples of the
/// page, and a load behind a store to the same place in another page waits for that store.
#[inline(always)]
unsafe fn update_rows<V: Vector, const ROWS: usize, const N: usize>(
    old: &[u8],
    new: &[u8],
    targets: &mut [(u8, &mut [u8])],
) {
    let block_bytes = N * V::BYTES;
    let bytes = new.len() / block_bytes * block_bytes;
    // SAFETY: there are `ROWS` targets, and blocks end where the slices end, at the latest.
    unsafe {
        let mut factors = [V::factor(0); ROWS];
        let mut plain = [false; ROWS];
        let mut places = [std::ptr::null_mut::<u8>(); ROWS];
        for (row, (factor, target)) in targets.iter_mut().enumerate().take(ROWS) {
            (factors[row], plain[row]) = (V::factor(*factor), *factor == 1);
            places[row] = target.as_mut_ptr();
        }
        for at in (0..bytes).step_by(block_bytes) {
            let mut sums = [[V::splat(0); N]; ROWS];
            for (sum, place) in sums.iter_mut().zip(places) {
                for (index, vector) in sum.iter_mut().enumerate() {
                    *vector = V::load(place.add(at + index * V::BYTES));
                }
            }
            let (before, mut change) = (load_block::<V, N>(old, at), load_block::<V, N>(new, at));
            for index in 0..N {
                change[index] = change[index].xor(before[index]);
            }
            let operands = operands_of(change);
            for row in 0..ROWS {
                if plain[row] {
                    for index in 0..N {
                        sums[row][index] = sums[row][index].xor(change[index]);
                    }
                } else {
                    add_products(factors[row], operands, &mut sums[row]);
                }
            }
            for (sum, place) in sums.iter().zip(places) {
                for (index, vector) in sum.iter().enumerate() {
                    vector.store(place.add(at + index * V::BYTES));
                }
            }
        }
    }
    scalar::update_from(bytes, old, new, targets);
}

/// The four kernels of an instruction set. The first number is how many vectors a block of an update
/// has. Then come, for each number of rows, those of encoding and checking, and those of combining: as
/// many as the registers hold.
macro_rules! kernels {
    (
        $name:literal, $feature:literal, $vector:ty, update: $update:literal,
        $($rows:literal rows: $encode:literal, $combine:literal;)*
    ) => {
        pub(in crate::kernels) static KERNELS: Kernels =
            Kernels { name: $name, encode, check, combine, update };

        #[target_feature(enable = $feature)]
        fn encode(extra: &[u8], data: &[&[u8]], parity: &mut [&mut [u8]], stores: Stores) {
            match parity.len() {
                // SAFETY: the instruction set is enabled; the lengths are the callers' part.
                $($rows => unsafe {
                    blocks::encode::<$vector, $rows, $encode>(extra, data, parity, stores);
                })*
                rows => unreachable!("{rows} rows"),
            }
        }

        #[target_feature(enable = $feature)]
        fn check(extra: &[u8], data: &[&[u8]], parity: &[&[u8]]) -> bool {
            match parity.len() {
                // SAFETY: the instruction set is enabled; the lengths are the callers' part.
                $($rows => unsafe {
                    blocks::check::<$vector, $rows, $encode>(extra, data, parity)
                })*
                rows => unreachable!("{rows} rows"),
            }
        }

        #[target_feature(enable = $feature)]
        fn combine(coefficients: &[u8], sources: &[&[u8]], targets: &mut [&mut [u8]]) {
            match targets.len() {
                // SAFETY: the instruction set is enabled; the lengths are the callers' part.
                $($rows => unsafe {
                    blocks::combine::<$vector, $rows, $combine>(coefficients, sources, targets);
                })*
                rows => unreachable!("{rows} targets"),
            }
        }

        #[target_feature(enable = $feature)]
        fn update(old: &[u8], new: &[u8], targets: &mut [(u8, &mut [u8])]) {
            // SAFETY: the instruction set is enabled; the lengths are the callers' part.
            unsafe { blocks::update::<$vector, $update>(old, new, targets) }
        }
    };
}

pub(super) use kernels;
