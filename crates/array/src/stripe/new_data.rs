//! New data of stripes, on their way to a write.

use voltier_block::{Bytes, Durability, SectorRange};

use crate::geometry::chunks::Span;
use crate::geometry::numbers::{StripeNumber, StripeSlot};

/// New data of a slot.
pub(crate) struct NewData {
    pub(crate) slot: StripeSlot,
    pub(crate) span: Span,
    pub(crate) data: Bytes,
}

/// New data of one stripe, less than all of it.
pub(crate) struct SmallWrite {
    pub(crate) stripe: StripeNumber,
    /// Where in the volume.
    pub(crate) range: SectorRange,
    /// One part of each chunk.
    pub(crate) parts: Vec<NewData>,
    pub(crate) durability: Durability,
}
