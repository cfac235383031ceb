//! The ways to keep data and parity of a stripe together over a power cut.

use std::fmt;

/// The ways to keep data and parity of a stripe together over a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Every write is in a journal before it is in its place: nothing ever needs a resync, also while
    /// members are lost. Levels without parity need none and have none.
    #[default]
    Journal,
    /// The regions that are being written are dirty: after a power cut their parity is made anew.
    /// A member lost before that may take data along that nobody was writing.
    Bitmap,
    /// Nothing is noted: after a power cut the parity of everything is made anew.
    None,
}

impl Consistency {
    /// The word of the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Consistency::Journal => "journal",
            Consistency::Bitmap => "bitmap",
            Consistency::None => "none",
        }
    }
}

impl fmt::Display for Consistency {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}
