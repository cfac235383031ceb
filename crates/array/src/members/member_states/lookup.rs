//! Members by their indexes.

use std::ops::{Deref, Index};

use crate::geometry::numbers::MemberIndex;
use crate::members::member::Member;
use crate::members::member_states::MemberStates;

impl<D> Deref for MemberStates<D> {
    type Target = [Member<D>];

    fn deref(&self) -> &[Member<D>] {
        &self.members
    }
}

impl<D> Index<MemberIndex> for MemberStates<D> {
    type Output = Member<D>;

    #[inline]
    fn index(&self, member: MemberIndex) -> &Member<D> {
        &self.members[member.0]
    }
}
