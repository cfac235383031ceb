//! A reason not to write to a device.

use std::fmt;
use std::path::PathBuf;

use super::protection::WriteProtection;

/// One reason not to write to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A file system on the device is mounted there.
    Mounted(PathBuf),
    /// The kernel swaps to it.
    Swap,
    /// Another device is built on it (LVM, md, dm, loop), named by the kernel.
    Held(String),
    /// One of its partitions is in use, for the reason given.
    PartitionInUse(String),
    /// Another program has it open for itself.
    Busy,
    /// Another client has it; the text says which.
    InUse(String),
    /// It takes no writes.
    WriteProtected(WriteProtection),
    /// The same storage has another part in this command or in another volume.
    SameDevice(String),
    /// The device holds something; the text says what.
    Content(String),
    /// The device of a volume's data holds something of Voltier's, and its content is to stay.
    Kept(String),
    /// The device holds a cache of Voltier's, perhaps with the only copy of something; the text says which.
    Cache(String),
}

impl Finding {
    /// Whether `-f` may set it aside.
    pub fn may_be_overridden(&self) -> bool {
        matches!(self, Finding::Content(_) | Finding::Kept(_) | Finding::Cache(_))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Mounted(at) => write!(out, "is mounted on {}; unmount it first", at.display()),
            Finding::Swap => write!(out, "is used as swap; run swapoff first"),
            Finding::Held(by) => write!(out, "is in use by {by}; take that apart first"),
            Finding::PartitionInUse(why) => write!(out, "has a partition in use: {why}"),
            Finding::Busy => write!(
                out,
                "is in use by another program, or by Voltier itself; \
                                          release it first"
            ),
            Finding::InUse(by) => write!(out, "cannot be used now: {by}"),
            Finding::WriteProtected(how) => write!(out, "{how}"),
            Finding::SameDevice(what) => write!(out, "is {what}; use another device"),
            Finding::Content(what) => {
                write!(out, "holds {what}, which would be lost; use -f to overwrite it")
            }
            Finding::Kept(what) => write!(
                out,
                "holds {what}; a backing disk keeps its content, so -f does not override this; \
                 `voltier import DEVICE` brings back what it belongs to"
            ),
            Finding::Cache(what) => write!(
                out,
                "holds {what}, which would be lost; `voltier import DEVICE` brings a lost volume back, -f \
                 overwrites it"
            ),
        }
    }
}
