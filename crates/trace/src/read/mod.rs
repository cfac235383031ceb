//! Requests out of trace files: formats, units, broken records.
//!
//! A record that is none is counted and the first one named; a trace with too many of them, or with
//! no request at all, is refused at its end: what was computed of it until then is not to be shown.

mod binary;
mod format;
mod input;
mod iolog;
mod merge;
mod options;
mod recognise;
mod record;
mod text;

pub use format::Format;
pub use merge::Source;
pub use options::ReadOptions;
pub use record::{ADDRESS_LIMIT, Broken, Op, REQUEST_LIMIT, Request, VOLUMES_MAX};
