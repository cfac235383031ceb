//! Whether members keep checksums of their blocks.

use std::fmt;

/// The checksums that the members of an array keep of their blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Integrity {
    /// None: a block that a member returns is believed.
    #[default]
    None,
    /// The CRC-32C of each 4 KiB of a member's data area, parity included.
    Crc32c,
}

impl fmt::Display for Integrity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::None => "none",
            Self::Crc32c => "crc32c",
        })
    }
}
