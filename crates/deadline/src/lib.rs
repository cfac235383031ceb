//! Deadlines of drives that hang: a drive that gives no error and no answer.
//!
//! A layer wraps each of its drives in a [`Guarded`] before the layer sends anything. The wrapper counts the
//! drive's [`Requests`] by the tick in which they began. The [`Watch`] ticks four times in a deadline, while
//! anything is under way, and has its [`Judge`] look at every tick. The judge knows what the layer can do
//! without: a member of an array, the SSD of a cache. [`Answers`] is all that the judge is told of a drive.
//!
//! A request costs no timer, no look at the clock and no allocation.
//!
//! Read `guarded` first, then `watch`.

mod guarded;
mod watch;

pub use guarded::Guarded;
pub use watch::{Answers, Judge, Requests, Watch, Watched};
