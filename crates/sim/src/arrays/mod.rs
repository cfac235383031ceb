//! Worlds of arrays: a volume over drives that protect each other, cut off at any event, with any of
//! its members gone afterwards.
//!
//! A seed draws level, members, chunk, ring, clients and what happens to members while they serve.
//! At some events the power is cut, or the process killed. Then for every choice of members that the
//! level can lose (or some choices of them), in a world of its own: the journal is replayed, itself
//! cut off at any event and begun again, with the same members or with others; every sector is held
//! to the model, every stripe to parity by an arithmetic of its own; the array serves on, and is cut
//! off once more.

mod clients;
mod crash;
mod rig;
mod scrub;
mod setup;

pub use crash::run;
pub use scrub::parity;
pub use setup::Setup;
