//! Goal: nobody waits for ever for a drive that does not answer, if something else will do. Nothing is given
//! up that only the drive has. Method: drives that hang in virtual time, and then do all that they were asked
//! for.

mod origin;
mod ssd;
mod start;
mod world;
