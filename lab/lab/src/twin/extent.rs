//! How much of a published test a twin repeats.

/// How much of the test is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Every case, for as long as a steady rate takes.
    Full,
    /// A few cases for a short time: shows that it works, and is near the full figures.
    Quick,
}
