//! The watch over the devices of an array, and what drives still have that were members.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

use voltier_block::{Nanos, UnderWay};
use voltier_deadline::Watch;
use voltier_ring::Handle;

use crate::geometry::numbers::MemberIndex;

/// The watch over the devices of one array.
pub(crate) struct MemberWatch {
    watch: Rc<Watch>,
    /// Members that were lost while their drives had requests.
    left: RefCell<Vec<(MemberIndex, UnderWay)>>,
}

impl Deref for MemberWatch {
    type Target = Rc<Watch>;

    fn deref(&self) -> &Rc<Watch> {
        &self.watch
    }
}

impl MemberWatch {
    pub(crate) fn new(handle: &Handle, deadline_ns: Nanos) -> Rc<Self> {
        Rc::new(Self { watch: Watch::new(handle, deadline_ns), left: RefCell::default() })
    }

    /// A member is lost whose drive may have requests.
    pub(crate) fn note_left(&self, member: MemberIndex, requests: UnderWay) {
        if requests.count() > 0 {
            self.left.borrow_mut().push((member, requests));
        }
    }

    /// Requests that drives have which were a member.
    pub(crate) fn left_by(&self, member: MemberIndex) -> usize {
        let mut left = self.left.borrow_mut();
        left.retain(|(_, requests)| requests.count() > 0);
        left.iter().filter(|(own, _)| *own == member).map(|(_, requests)| requests.count()).sum()
    }
}
