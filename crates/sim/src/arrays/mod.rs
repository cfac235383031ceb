//! Worlds of arrays: a volume over drives that protect each other, cut off at any event, with any of
//! its members gone afterwards.
//!
//! A seed draws level, members, consistency, chunk, drives, clients and what happens to members. Members
//! fail, are replaced, copied, rebuilt, come back; or a member returns something else than was written,
//! and a scrub is to find it. At some events the power is cut, or the process killed. Then the array is
//! assembled in a world of its own. The check is made for every choice of members that the level can lose
//! (or some choices of them). The drives are given in any order, with drives that were left behind long
//! ago among them. The world compares who is in service with the superblocks, every sector with the
//! model, every stripe with parity by an arithmetic of its own. The array serves and is taken care of
//! again, and is cut off once more.
//!
//! - `setup`, `draw`: what a seed is, and how it is drawn; `merge`: small writes that are merged.
//! - `hang`: in which worlds drives hang, and for how long.
//! - `sets`: sets of drives and of members.
//! - `known`, `rows`, `parity`, `bit_rot`, `uncovered`: what must be so, computed without the array's help.
//! - `left`: what a crash leaves.
//! - `fixture`: drives, an array, a model; `members`: which drive is which member.
//! - `checks`: holds the array to model and parity.
//! - `clients`, `operator`, `growth`, `expansion`, `journal`, `hanging`, `scrubbing`: what is done
//!   meanwhile.
//! - `half_written`: a write that fails, before a stop in order; `page_rot`: pages of checksums that turn over
//!   while the array is stopped.
//! - `outages`: members that refuse requests for a time; `copies`: members whose place an older copy of them has,
//!   or something else, after a stop; `reuse`: devices that had other uses before.
//! - `trial`, `start`: how a start is tried, and what may be refused.
//! - `crash`: the crash-point sweep.
//! - `stacked`: a cache over two arrays.

mod bit_rot;
mod checks;
mod clients;
mod copies;
mod crash;
mod draw;
mod expansion;
mod fixture;
mod growth;
mod half_written;
mod hang;
mod hanging;
mod journal;
mod known;
mod left;
mod members;
mod merge;
mod operator;
mod outages;
mod page_rot;
mod parity;
mod reuse;
mod rows;
mod scrubbing;
mod sets;
mod setup;
mod stacked;
mod start;
mod trial;
mod uncovered;

pub use crash::run;
pub use draw::draw_setup;
pub use parity::parity;
pub(crate) use setup::uuid;
pub use setup::{Care, Drive, Setup};
pub use stacked::{Stack, run as run_stack};

/// Whether a seed has members that refuse requests for a time.
pub fn draws_outages(seed: u64) -> bool {
    outages::drawn(seed).is_some()
}

/// Whether a seed has copies of members in their places.
pub fn draws_copies(seed: u64) -> bool {
    copies::drawn(seed).is_some()
}
