//! How much a run of the tests tries: all of it with `VOLTIER_TEST_LONG=1`, a sample without it.

/// Whether everything is tried.
pub(crate) fn is_long() -> bool {
    std::env::var_os("VOLTIER_TEST_LONG").is_some()
}

/// How many of `count` seeds are tried, when a sample is one in `one_in`.
pub(crate) fn sampled(count: u64, one_in: u64) -> u64 {
    if is_long() { count } else { count.div_ceil(one_in) }
}
