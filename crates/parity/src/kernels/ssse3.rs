//! SSSE3: 16 bytes, looked up by `pshufb`.
//!
//! UNSAFETY: vector instructions, which the detection in [`super::detect`] has found.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m128i, _MM_HINT_T0, _mm_add_epi8, _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128,
    _mm_movemask_epi8, _mm_or_si128, _mm_prefetch, _mm_set1_epi8, _mm_setzero_si128, _mm_sfence,
    _mm_shuffle_epi8, _mm_srli_epi16, _mm_storeu_si128, _mm_stream_si128, _mm_xor_si128,
};

use super::blocks::{self, Factor, Operand, Vector, kernels};
use super::kernel_set::{Kernels, Stores};

kernels!(
    "ssse3", "ssse3", Xmm, update: 2,
    1 rows: 4, 2; 2 rows: 4, 2; 3 rows: 2, 2; 4 rows: 2, 2;
    5 rows: 1, 1; 6 rows: 1, 1; 7 rows: 1, 1; 8 rows: 1, 1;
);

#[derive(Clone, Copy)]
struct Xmm(__m128i);

impl Vector for Xmm {
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: as the trait's.
        unsafe { _mm_storeu_si128(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: as the trait's.
        unsafe { _mm_stream_si128(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn end_of_stream() {
        // SAFETY: as the trait's.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn splat(byte: u8) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm_set1_epi8(byte.cast_signed())) }
    }

    #[inline(always)]
    unsafe fn repeat(table: &[u8; 16]) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm_loadu_si128(table.as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm_xor_si128(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm_or_si128(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn xor3(self, second: Self, third: Self) -> Self {
        // SAFETY: as the trait's.
        unsafe { self.xor(second.xor(third)) }
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm_add_epi8(self.0, self.0)) }
    }

    #[inline(always)]
    unsafe fn operand(self) -> Operand<Self> {
        // SAFETY: as the trait's.
        unsafe {
            let mask = _mm_set1_epi8(15);
            let high = _mm_and_si128(_mm_srli_epi16::<4>(self.0), mask);
            (Self(_mm_and_si128(self.0, mask)), Self(high))
        }
    }

    #[inline(always)]
    unsafe fn factor(constant: u8) -> Factor<Self> {
        // SAFETY: as the trait's.
        unsafe { blocks::tables(constant) }
    }

    #[inline(always)]
    unsafe fn add_product(self, factor: Factor<Self>, operand: Operand<Self>) -> Self {
        // SAFETY: as the trait's.
        unsafe { blocks::add_looked_up(self, factor, operand) }
    }

    #[inline(always)]
    unsafe fn look_up(self, index: Self) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm_shuffle_epi8(self.0, index.0)) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: as the trait's.
        unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(self.0, _mm_setzero_si128())) == 0xffff }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        // SAFETY: as the trait's.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
}
