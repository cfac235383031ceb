//! Worlds of arrays: a volume over drives that protect each other, cut off at any event, with any of
//! its members gone afterwards.
//!
//! A seed draws level, members, consistency, chunk, drives, clients and what happens to members: they
//! fail, are replaced, copied, rebuilt, come back; or one returns something else than was written, and
//! a scrub is to find it. At some events the power is cut, or the process killed. Then for every choice
//! of members that the level can lose (or some choices of them), in a world of its own: the array is
//! assembled from what is on the media, in any order, with drives that were left behind long ago among
//! them. Who is in service then is held to the superblocks, every sector to the model, every stripe to
//! parity by an arithmetic of its own; the array serves and is taken care of again, and is cut off once
//! more.
//!
//! - `setup`: what a seed draws.
//! - `left`: what is on the media, and what must come of it, without the array's help.
//! - `fixture`: drives, an array, a model; the checks.
//! - `members`: which drive is which member.
//! - `clients`, `operator`, `rot`: what is done.
//! - `journal`: the journal on a device of its own.
//! - `growth`: rows that are added.
//! - `merge`: small writes that wait for each other.
//! - `room`: a member that is added for room: stripes get wider while all goes on.
//! - `open`: what nobody knows without a journal.
//! - `stacked`: a cache over two arrays.
//! - `scrub`: parity by another arithmetic.

mod bit_rot;
mod clients;
mod crash;
mod expansion;
mod fixture;
mod growth;
mod journal;
mod left;
mod members;
mod merge;
mod operator;
mod parity;
mod setup;
mod stacked;
mod uncovered;

pub use crash::run;
pub use parity::parity;
pub(crate) use setup::uuid;
pub use setup::{Care, Drive, Setup};
pub use stacked::{Stack, run as run_stack};
