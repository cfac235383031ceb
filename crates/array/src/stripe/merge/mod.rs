//! Merging of small writes: writes of less than a stripe wait for those behind them, and one write of the
//! stripe does for all. On RAID 6 with eight chunks of data, 32 writes that fill a stripe take 10 device
//! I/Os together, and 192 one by one.
//!
//! - `merger`: which writes follow one another, how long they wait, and who writes them.
//! - `batch`: those that wait for the same stripe, and what is written of them.
//!
//! A write that waits is not acknowledged, so nothing is promised that is in memory alone. Where nobody
//! writes sequentially with several requests at once, nothing waits ([`MergeMode::Adaptive`]).

pub(crate) mod batch;
pub(crate) mod merger;
pub(crate) mod policy;
