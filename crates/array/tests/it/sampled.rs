//! How much of a long sweep a run of the tests takes.

/// Of the steps of a sweep every run of the tests takes one in so many.
const SAMPLED: usize = 15;

/// The stride of a sweep that takes every `stride`th step with `VOLTIER_TEST_LONG=1`, and a sample of those
/// without it.
pub(crate) fn one_in(stride: usize) -> usize {
    if std::env::var_os("VOLTIER_TEST_LONG").is_some() { stride } else { stride * SAMPLED }
}
