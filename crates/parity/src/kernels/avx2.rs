//! AVX2: 32 bytes.
//!
//! UNSAFETY: vector instructions, which the detection in [`super::detect`] has found.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m256i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm256_add_epi8,
    _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_loadu_si256, _mm256_or_si256,
    _mm256_set1_epi8, _mm256_shuffle_epi8, _mm256_srli_epi16, _mm256_storeu_si256,
    _mm256_stream_si256, _mm256_testz_si256, _mm256_xor_si256,
};

use super::blocks::{self, Factor, Operand, Vector, kernels};
use super::kernel_set::{Kernels, Stores};

kernels!(
    "avx2", "avx2", Ymm, update: 2,
    1 rows: 4, 2; 2 rows: 4, 2; 3 rows: 2, 2; 4 rows: 2, 2;
    5 rows: 1, 1; 6 rows: 1, 1; 7 rows: 1, 1; 8 rows: 1, 1;
);

#[derive(Clone, Copy)]
struct Ymm(__m256i);

impl Vector for Ymm {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: as the trait's.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: as the trait's.
        unsafe { _mm256_stream_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn end_of_stream() {
        // SAFETY: as the trait's.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn splat(byte: u8) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm256_set1_epi8(byte.cast_signed())) }
    }

    #[inline(always)]
    unsafe fn repeat(table: &[u8; 16]) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()))) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm256_xor_si256(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm256_or_si256(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn xor3(self, second: Self, third: Self) -> Self {
        // SAFETY: as the trait's.
        unsafe { self.xor(second.xor(third)) }
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        // SAFETY: as the trait's.
        unsafe { Self(_mm256_add_epi8(self.0, self.0)) }
    }

    #[inline(always)]
    unsafe fn operand(self) -> Operand<Self> {
        // SAFETY: as the trait's.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(self.0), mask);
            (Self(_mm256_and_si256(self.0, mask)), Self(high))
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
        unsafe { Self(_mm256_shuffle_epi8(self.0, index.0)) }
    }

    #[inline(always)]
    unsafe fn is_zero(self) -> bool {
        // SAFETY: as the trait's.
        unsafe { _mm256_testz_si256(self.0, self.0) == 1 }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        // SAFETY: as the trait's.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
}
