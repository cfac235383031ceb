//! Copies that leave the processor's caches alone.
//!
//! UNSAFETY: this module writes through raw pointers. The invariant is that every store lies inside
//! `into`, which the loop's bound keeps, and that a fence follows all stores before the function
//! returns.
#![allow(unsafe_code)]

/// Copies `from` over `into`, which is as long, past the caches where the processor can. The content is
/// much larger than they are and is not read again soon. The line is not fetched before it is
/// overwritten, and nothing else loses its place.
///
/// # Panics
///
/// If the lengths differ.
pub fn copy_past_caches(into: &mut [u8], from: &[u8]) {
    assert_eq!(into.len(), from.len(), "a copy is as long as what it is of");
    #[cfg(target_arch = "x86_64")]
    stream(into, from);
    #[cfg(not(target_arch = "x86_64"))]
    into.copy_from_slice(from);
}

/// Non-temporal stores of whole cache lines; what is not a whole line goes the usual way.
#[cfg(target_arch = "x86_64")]
fn stream(into: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LINE: usize = 64;
    let head = into.as_ptr().align_offset(LINE).min(into.len());
    let lines = (into.len() - head) / LINE;
    let tail = head + lines * LINE;
    into[..head].copy_from_slice(&from[..head]);
    into[tail..].copy_from_slice(&from[tail..]);
    let target = into[head..tail].as_mut_ptr().cast::<__m128i>();
    let source = from[head..tail].as_ptr().cast::<__m128i>();
    for part in (0..lines * 4).step_by(4) {
        // SAFETY: SSE2 is part of x86-64; `part` and the three behind it lie in both ranges, and the
        // target is aligned to a line.
        unsafe {
            let bytes = [0, 1, 2, 3].map(|it| _mm_loadu_si128(source.add(part + it)));
            for (it, bytes) in bytes.into_iter().enumerate() {
                _mm_stream_si128(target.add(part + it), bytes);
            }
        }
    }
    // SAFETY: SSE is part of x86-64. Streaming stores are ordered with nothing before this.
    unsafe { _mm_sfence() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_past_caches_is_a_copy_at_any_alignment_and_length() {
        let from: Vec<u8> = (0..1024u32).map(|at| (at * 7 % 251) as u8).collect();
        for start in 0..66 {
            for length in (0..200).chain([512, 700, 958]) {
                let mut into = vec![0xff; 1024];
                copy_past_caches(&mut into[start..start + length], &from[3..3 + length]);
                assert_eq!(into[start..start + length], from[3..3 + length]);
                assert!(
                    into[..start].iter().chain(&into[start + length..]).all(|&byte| byte == 0xff)
                );
            }
        }
    }
}
