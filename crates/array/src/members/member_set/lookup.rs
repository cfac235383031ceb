//! Members by their indexes.

use std::ops::{Deref, Index};

use crate::geometry::numbers::MemberIndex;
use crate::members::member::Member;
use crate::members::member_set::MemberSet;

impl<D> Deref for MemberSet<D> {
    type Target = [Member<D>];

    fn deref(&self) -> &[Member<D>] {
        &self.members
    }
}

impl<D> Index<MemberIndex> for MemberSet<D> {
    type Output = Member<D>;

    #[inline]
    fn index(&self, member: MemberIndex) -> &Member<D> {
        &self.members[member.0]
    }
}
