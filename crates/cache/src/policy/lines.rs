//! The lines that a policy orders, as the cache shows them, and how many a policy may look at.

use crate::numbers::{Line, Slot};

/// Lines from the old end that one call of `victim` looks at with the near hand. As long as fewer
/// lines than this cannot be evicted, the ordered policies (lru, fifo) are exact.
pub const NEAR_LOOKS_MAX: u32 = 32;

/// Lines past the known-unevictable ones that one call of `victim` looks at with the far hand. With one
/// clean line in sixteen a call fails once in sixty calls, and the next call goes on from there. 96
/// looks at a cache miss each stay under 10 us, a tenth of an SSD write.
pub const FAR_LOOKS_MAX: u32 = 64;

/// Facts that a policy may ask about the lines it orders.
pub trait Lines {
    /// The slot of a cached line.
    fn slot_of(&self, line: Line) -> Option<Slot>;
    /// The line in an occupied slot.
    fn line_of(&self, slot: Slot) -> Line;
    /// Whether the slot holds a line that may go now: occupied, clean, and not in use.
    fn evictable(&self, slot: Slot) -> bool;
    /// Number of slots.
    fn slots(&self) -> u32;
    /// Whether the slot holds a cached line.
    fn occupied(&self, slot: Slot) -> bool;
}
