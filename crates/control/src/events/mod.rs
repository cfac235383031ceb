//! Events: what changed in the health of everything, and what else somebody should hear of, kept in order and
//! delivered.
//!
//! ```text
//! statuses --(watch, 2 s)--> health --> standing: what is new, other, over --> log --> file in the state folder
//! service, told by itself ----------------------------------------------------^ |
//!                                                                               +--> a courier per hook --> process
//! ```
//!
//! Nothing here waits for a drive, and nobody waits for anything here: the log is in memory, and file and couriers
//! have threads of their own.

pub(crate) mod courier;
pub(crate) mod event;
pub(crate) mod file;
pub(crate) mod hook;
pub(crate) mod keep;
pub(crate) mod pace;
pub(crate) mod run;
pub(crate) mod standing;
