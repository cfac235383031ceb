//! Slots of a stripe computed from others.

use std::rc::Rc;

use voltier_block::Buf;
use voltier_parity::Decoder;

use crate::geometry::numbers::StripeSlot;

/// A plan that computes wanted slots of a stripe from others.
#[derive(Clone)]
pub(crate) struct Reconstruct(Rc<Decoder>);

impl Reconstruct {
    pub(super) fn new(decoder: Decoder) -> Self {
        Self(Rc::new(decoder))
    }

    /// Whether the wanted slots are computed from this one.
    pub(crate) fn needs(&self, slot: StripeSlot) -> bool {
        self.0.sources().contains(&slot.0)
    }

    /// So many bytes of the wanted slots. `source` gives as many of each that is needed, asked in ascending order.
    pub(crate) fn blocks<'a>(
        &self,
        bytes: usize,
        source: impl FnMut(StripeSlot) -> &'a [u8],
    ) -> Vec<(StripeSlot, Buf)> {
        let wanted = self.0.targets().iter();
        let mut blocks: Vec<_> = wanted.map(|slot| (StripeSlot(*slot), Buf::new(bytes))).collect();
        self.fill(blocks.iter_mut().map(|(_, block)| &mut block[..]), source);
        blocks
    }

    /// The same into places for the wanted slots, in the order in which they were wanted.
    pub(crate) fn fill<'a, 'b>(
        &self,
        into: impl Iterator<Item = &'b mut [u8]>,
        mut source: impl FnMut(StripeSlot) -> &'a [u8],
    ) {
        let needed = self.0.sources().iter();
        let sources: Vec<&[u8]> = needed.map(|slot| source(StripeSlot(*slot))).collect();
        self.0.decode(&sources, &mut into.collect::<Vec<_>>());
    }
}
