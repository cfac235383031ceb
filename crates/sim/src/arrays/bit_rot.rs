//! Bit rot: a member returns something else than was written to one of its blocks.

use std::cell::{Cell, RefCell};

use voltier_array::StripeNumber;
use voltier_block::{Lba, SECTOR_BYTES};

use crate::arrays::setup::Setup;
use crate::medium::Medium;

/// A block of a member that is not what was written.
#[derive(Clone, Debug)]
pub(crate) struct BitRot {
    pub(crate) drive: usize,
    pub(super) member: usize,
    pub(super) slot: usize,
    pub(crate) stripe: StripeNumber,
    /// First byte of the drive.
    pub(super) at: u64,
    pub(super) right: Vec<u8>,
    pub(super) wrong: Vec<u8>,
}

impl BitRot {
    /// Puts back what was there: no promise covers a scrub here.
    pub(crate) fn heal(&self, medium: &mut Medium) {
        medium.overwrite(self.at, &self.right);
    }

    /// Puts back what was there, as far as nobody wrote over it since.
    pub(crate) fn heal_what_is_left(&self, medium: &mut Medium) {
        let sector_bytes = SECTOR_BYTES as usize;
        let sectors = self.right.chunks(sector_bytes).zip(self.wrong.chunks(sector_bytes));
        for (at, (right, wrong)) in (self.at..).step_by(sector_bytes).zip(sectors) {
            let mut found = vec![0; sector_bytes];
            medium.peek(Lba::from_bytes(at), &mut found);
            if found == wrong {
                medium.overwrite(at, right);
            }
        }
    }

    /// Whether the block may be what a repair that was cut off leaves. The repair is one block of the
    /// array, and a power cut tears what is longer than a block of the drive. Each of those is right or
    /// wrong.
    pub(super) fn may_leave(&self, found: &[u8], drive_block_bytes: u32) -> bool {
        let blocks = |bytes| <[u8]>::chunks(bytes, drive_block_bytes as usize);
        let known = blocks(&self.right).zip(blocks(&self.wrong));
        blocks(found).zip(known).all(|(found, (right, wrong))| found == right || found == wrong)
    }
}

/// The bit rot of one life, and the stripe that clients keep out of because of it.
#[derive(Default)]
pub(crate) struct BitRotState {
    pub(crate) block: RefCell<Option<BitRot>>,
    /// A stripe that clients keep out of.
    pub(crate) closed: Cell<Option<StripeNumber>>,
    /// Whether something else is in that stripe than was written.
    pub(crate) is_there: Cell<bool>,
    /// Whether something was put on a member in this life that a scrub is to find.
    pub(crate) was_there: Cell<bool>,
}

impl BitRotState {
    /// The state of a life that begins with this block.
    pub(crate) fn new(block: Option<BitRot>) -> Self {
        Self { block: RefCell::new(block), ..Self::default() }
    }

    /// Keeps clients out of what is not as it was written.
    pub(crate) fn close(&self) {
        if let Some(block) = &*self.block.borrow() {
            self.closed.set(Some(block.stripe));
            self.is_there.set(true);
            self.was_there.set(true);
        }
    }

    /// The stripe that is not as it was written.
    pub(crate) fn stripe(&self) -> Option<StripeNumber> {
        self.closed.get().filter(|_| self.is_there.get())
    }

    /// Forgets the block: the array was stopped in order.
    pub(crate) fn forget(&self) {
        self.block.replace(None);
        self.closed.set(None);
    }
}

/// Whether an array can tell which block is wrong.
pub(crate) fn is_locatable(setup: &Setup) -> bool {
    setup.geometry.parity_chunks() >= 2
}
