//! Requests out of trace files: formats, units, broken records.
//!
//! The reader counts broken records and names the first one. The reader refuses a trace with too many
//! of them, or with no request at all, at its end. Nobody is to show what was computed of the trace
//! until then.

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
