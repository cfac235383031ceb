//! AVX-512 with byte instructions (F and BW): 64 bytes, and sums of three in one instruction. With GFNI a
//! product is one instruction too.
//!
//! UNSAFETY: vector instructions, which the detection in [`super::detect`] has found.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm512_add_epi8,
    _mm512_and_si512, _mm512_broadcast_i32x4, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512,
    _mm512_or_si512, _mm512_set1_epi8, _mm512_set1_epi64, _mm512_shuffle_epi8, _mm512_srli_epi16,
    _mm512_storeu_si512, _mm512_stream_si512, _mm512_ternarylogic_epi64, _mm512_test_epi8_mask,
    _mm512_xor_si512,
};

use super::blocks::{self, Factor, Operand, Vector, kernels};
use super::kernel_set::{Kernels, Stores};
use crate::field::MATRICES;

kernels!(
    "avx512", "avx512f,avx512bw", Zmm<false>, update: 2,
    1 rows: 4, 4; 2 rows: 4, 4; 3 rows: 4, 4; 4 rows: 4, 4;
    5 rows: 2, 2; 6 rows: 2, 2; 7 rows: 2, 2; 8 rows: 2, 2;
);

/// The same where products are matrices.
pub(super) mod gfni {
    use super::{Kernels, Stores, Zmm, blocks, kernels};

    kernels!(
        "gfni", "avx512f,avx512bw,gfni", Zmm<true>, update: 2,
        1 rows: 4, 4; 2 rows: 4, 4; 3 rows: 4, 4; 4 rows: 4, 4;
        5 rows: 2, 2; 6 rows: 2, 2; 7 rows: 2, 2; 8 rows: 2, 2;
    );
}

/// `AFFINE`: products by matrices (GFNI) instead of tables.
#[derive(Clone, Copy)]
struct Zmm<const AFFINE: bool>(__m512i);

impl<const AFFINE: bool> Vector for Zmm<AFFINE> {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: as the trait's.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: as the trait's.
        unsafe { _mm512_stream_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn end_of_stream() {
        // SAFETY: as the trait's.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn splat(byte: u8) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm512_set1_epi8(byte.cast_signed())) }
    }

    #[inline(always)]
    unsafe fn repeat(table: &[u8; 16]) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()))) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm512_xor_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm512_or_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn xor3(self, second: Self, third: Self) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm512_ternarylogic_epi64::<0x96>(self.0, second.0, third.0)) }
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm512_add_epi8(self.0, self.0)) }
    }

    #[inline(always)]
    unsafe fn operand(self) -> Operand<Self> {
        if AFFINE {
            return (self, self);
        }
        // SAFETY: as the trait's.
        unsafe {
            let mask = _mm512_set1_epi8(15);
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(self.0), mask);
            (Self(_mm512_and_si512(self.0, mask)), Self(high))
        }
    }

    #[inline(always)]
    unsafe fn factor(constant: u8) -> Factor<Self> {
        // SAFETY: as the trait's.
        unsafe {
            if AFFINE {
                let matrix = Self(_mm512_set1_epi64(MATRICES[usize::from(constant)].cast_signed()));
                (matrix, matrix)
            } else {
                blocks::tables(constant)
            }
        }
    }

    #[inline(always)]
    unsafe fn add_product(self, factor: Factor<Self>, operand: Operand<Self>) -> Self {
        // SAFETY: as the trait's.
        unsafe {
            if AFFINE {
                self.xor(Self(_mm512_gf2p8affine_epi64_epi8::<0>(operand.0.0, factor.0.0)))
            } else {
                blocks::add_looked_up(self, factor, operand)
            }
        }
    }

    #[inline(always)]
    unsafe fn look_up(self, index: Self) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm512_shuffle_epi8(self.0, index.0)) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: as the trait's.
        unsafe { _mm512_test_epi8_mask(self.0, self.0) == 0 }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        // SAFETY: as the trait's.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
}
