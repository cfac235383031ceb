//! The floors below the stripes, as every part above them is given them.

use std::rc::Rc;

use voltier_ring::Handle;

use crate::bitmap::write_intent::Bitmap;
use crate::geometry::chunks::Geometry;
use crate::journal::transaction::Journal;
use crate::members::member_set::MemberSet;
use crate::membership::current::Membership;

/// Where every chunk is, and the parts of one array below its stripes. A part above takes of them what the
/// part uses.
pub(crate) struct Ground<D> {
    pub(crate) handle: Handle,
    pub(crate) geometry: Geometry,
    /// The block of the array: the largest of its members.
    pub(crate) block_bytes: u32,
    pub(crate) members: Rc<MemberSet<D>>,
    pub(crate) membership: Rc<Membership>,
    pub(crate) bitmap: Rc<Bitmap<D>>,
    pub(crate) journal: Rc<Journal<D>>,
}

impl<D> Clone for Ground<D> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            geometry: self.geometry.clone(),
            block_bytes: self.block_bytes,
            members: self.members.clone(),
            membership: self.membership.clone(),
            bitmap: self.bitmap.clone(),
            journal: self.journal.clone(),
        }
    }
}
