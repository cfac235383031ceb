//! The loops over bytes, one set for each instruction set, chosen once.
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod blocks;
mod kernel_set;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod ssse3;

use std::sync::LazyLock;

pub use kernel_set::{Kernels, Stores};

/// The sets that run on this processor, the fastest first.
static AVAILABLE: LazyLock<Vec<&'static Kernels>> = LazyLock::new(detect);

#[cfg(target_arch = "x86_64")]
fn detect() -> Vec<&'static Kernels> {
    let mut sets = Vec::new();
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
        if is_x86_feature_detected!("gfni") {
            sets.push(&avx512::gfni::KERNELS);
        }
        sets.push(&avx512::KERNELS);
    }
    if is_x86_feature_detected!("avx2") {
        sets.push(&avx2::KERNELS);
    }
    if is_x86_feature_detected!("ssse3") {
        sets.push(&ssse3::KERNELS);
    }
    sets.push(&scalar::KERNELS);
    sets
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Vec<&'static Kernels> {
    vec![&scalar::KERNELS]
}

/// The sets that run on this processor, the fastest first; detected once.
pub fn available_kernels() -> &'static [&'static Kernels] {
    &AVAILABLE
}

/// The fastest set of this processor.
pub fn best_kernels() -> &'static Kernels {
    AVAILABLE[0]
}
