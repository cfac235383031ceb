//! Where everything is: pure functions between the volume and the members.
//!
//! The volume is a sequence of stripes. A stripe is as many chunks of the volume, its *columns*, as it
//! has chunks of data. Stripes go round the groups: stripe s is on group s mod g, in *row* s / g of the
//! group's members. So a stripe is one chunk at the same offset of every member of a group.
//!
//! Inside a stripe the chunks have *slots*: the members of the parity code, data first, then the
//! parities. With [`Layout::LeftSymmetric`] the slot of a column is its number.

use voltier_block::{Lba, SECTOR_BYTES, SectorRange};
use voltier_parity::ROWS_MAX;

use crate::geometry::level::{
    CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, GeometryError, Layout, Level, Shape,
};
use crate::geometry::numbers::{GroupIndex, MemberIndex, Row, StripeNumber, StripeSlot};

/// A sector of the volume, as a place in its stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumePlace {
    /// The stripe it is in.
    pub stripe: StripeNumber,
    /// The chunk of the stripe, in the order of the volume.
    pub column: usize,
    /// Sectors from the start of the chunk.
    pub offset: u64,
}

/// A sector of a member, as a place in its stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberPlace {
    /// The stripe it is in.
    pub stripe: StripeNumber,
    /// The slot: below [`Geometry::data_chunks`] data, else that parity or copy.
    pub slot: StripeSlot,
    /// Sectors from the start of the chunk.
    pub offset: u64,
}

/// A run of sectors inside the chunks of a stripe: `start .. end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First sector, from the start of the chunk.
    pub start: u64,
    /// One past the last sector.
    pub end: u64,
}

impl Span {
    /// Number of sectors.
    pub const fn count(self) -> u64 {
        self.end - self.start
    }

    /// Length in bytes.
    pub const fn bytes(self) -> usize {
        (self.count() * SECTOR_BYTES) as usize
    }

    /// Whether nothing is in it.
    pub const fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// Whether the two have a sector in common.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The shortest run that has both in it.
    #[must_use]
    pub fn hull(self, other: Self) -> Self {
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// Where `inner`, a part of this run, is in a buffer that holds all of it, in bytes.
    pub(crate) fn place_of(self, inner: Self) -> std::ops::Range<usize> {
        let first = ((inner.start - self.start) * SECTOR_BYTES) as usize;
        first..first + inner.bytes()
    }
}

/// The part of a request that is in one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The stripe it is in.
    pub stripe: StripeNumber,
    /// The slot that has it.
    pub slot: StripeSlot,
    /// Where in the chunk.
    pub span: Span,
}

/// Everything that follows from level, layout, members and chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    level: Level,
    layout: Layout,
    shape: Shape,
    chunk_sectors: u64,
    /// Rows of chunks on each member.
    member_rows: u64,
}

impl Geometry {
    /// The geometry of `members` members, the smallest of which has `member_sectors` sectors. Sectors
    /// beyond its last whole chunk are not used, on any member.
    ///
    /// # Errors
    /// When no such array is possible: one line that says what is.
    pub fn new(
        level: Level,
        layout: Layout,
        members: usize,
        chunk_bytes: u64,
        member_sectors: u64,
    ) -> Result<Self, GeometryError> {
        let shape = level.shape(members)?;
        layout.check(shape)?;
        let in_range = (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk_bytes);
        if !in_range || !chunk_bytes.is_power_of_two() {
            return Err(GeometryError::Chunk { chunk_bytes });
        }
        let chunk_sectors = chunk_bytes / SECTOR_BYTES;
        let size_error = |what| GeometryError::MemberSize { member_sectors, chunk_bytes, what };
        let member_rows = member_sectors / chunk_sectors;
        if member_rows == 0 {
            return Err(size_error("small"));
        }
        // Bytes of all members must be countable: every product below is then safe.
        let all_bytes = member_sectors.checked_mul(members as u64 * SECTOR_BYTES);
        all_bytes.ok_or_else(|| size_error("large"))?;
        Ok(Self { level, layout, shape, chunk_sectors, member_rows })
    }

    /// The level.
    pub const fn level(&self) -> Level {
        self.level
    }

    /// The layout.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// All members.
    pub const fn member_count(&self) -> usize {
        self.shape.groups * self.shape.width
    }

    /// Groups of members that protect each other.
    pub const fn group_count(&self) -> usize {
        self.shape.groups
    }

    /// The groups, in order.
    pub fn groups(&self) -> impl Iterator<Item = GroupIndex> + Clone + use<> {
        (0..self.shape.groups).map(GroupIndex)
    }

    /// Chunks in a stripe, parities included: the members of a group.
    pub const fn width(&self) -> usize {
        self.shape.width
    }

    /// Chunks of data in a stripe.
    pub const fn data_chunks(&self) -> usize {
        self.shape.width - self.shape.parities
    }

    /// Parities or further copies in a stripe: so many members of a group may be lost.
    pub const fn parity_chunks(&self) -> usize {
        self.shape.parities
    }

    /// Whether the members of a group are copies of each other.
    pub const fn is_mirror(&self) -> bool {
        self.shape.parities > 0 && self.data_chunks() == 1
    }

    /// The chunk, in sectors.
    pub const fn chunk_sectors(&self) -> u64 {
        self.chunk_sectors
    }

    /// The sectors of the volume in a stripe.
    pub const fn stripe_sectors(&self) -> u64 {
        self.chunk_sectors * self.data_chunks() as u64
    }

    /// Stripes in the volume.
    pub const fn stripe_count(&self) -> u64 {
        self.member_rows * self.shape.groups as u64
    }

    /// Size of the volume, in sectors.
    pub const fn sectors(&self) -> u64 {
        self.stripe_count() * self.stripe_sectors()
    }

    /// The sectors of each member that are used.
    pub const fn member_sectors(&self) -> u64 {
        self.member_rows * self.chunk_sectors
    }

    /// Where a sector of the volume is.
    pub const fn place_of(&self, at: Lba) -> VolumePlace {
        let stripe = at.0 / self.stripe_sectors();
        let inside = at.0 % self.stripe_sectors();
        VolumePlace {
            stripe: StripeNumber(stripe),
            column: (inside / self.chunk_sectors) as usize,
            offset: inside % self.chunk_sectors,
        }
    }

    /// The sector of the volume at a place.
    pub const fn lba_of(&self, place: VolumePlace) -> Lba {
        let column = place.column as u64 * self.chunk_sectors;
        Lba(place.stripe.0 * self.stripe_sectors() + column + place.offset)
    }

    /// The group a stripe is on.
    #[inline]
    pub const fn group_of(&self, stripe: StripeNumber) -> GroupIndex {
        GroupIndex((stripe.0 % self.shape.groups as u64) as usize)
    }

    /// The row of chunks that a stripe is on its members.
    #[inline]
    pub const fn row_of(&self, stripe: StripeNumber) -> Row {
        Row(stripe.0 / self.shape.groups as u64)
    }

    /// The stripe that is a row of a group's members.
    #[inline]
    pub const fn stripe_of(&self, group: GroupIndex, row: Row) -> StripeNumber {
        StripeNumber(row.0 * self.shape.groups as u64 + group.0 as u64)
    }

    /// The row of a sector of a member.
    #[inline]
    pub const fn row_at(&self, at: Lba) -> Row {
        Row(at.0 / self.chunk_sectors)
    }

    /// The first sector of a row on its members.
    #[inline]
    pub const fn lba_of_row(&self, row: Row) -> Lba {
        Lba(row.0 * self.chunk_sectors)
    }

    /// The members of a group, ascending: all stripes of the group are on these.
    pub fn members_of(
        &self,
        GroupIndex(group): GroupIndex,
    ) -> impl Iterator<Item = MemberIndex> + Clone + use<> {
        let (base, groups) = (self.shape.width - self.added(), self.shape.groups);
        let added = (groups * base + group..self.member_count()).step_by(groups);
        (group * base..(group + 1) * base).chain(added).map(MemberIndex)
    }

    /// The group of a member.
    pub const fn group_of_member(&self, member: MemberIndex) -> GroupIndex {
        self.place_in_group(member).0
    }

    /// Whether a member has data, and not parities alone.
    pub const fn holds_data(&self, member: MemberIndex) -> bool {
        let is_shared = self.is_mirror() || self.shape.parities == 0;
        is_shared || self.place_in_group(member).1 < self.rotating()
    }

    /// Parity rows that were added, each whole on a member of its own behind all others. So all members keep
    /// their numbers, and journal records, labels and the table stay right: no empty journal is needed.
    const fn added(&self) -> usize {
        match self.layout {
            Layout::AddedParityRows { rotating } => self.shape.parities - rotating,
            Layout::LeftSymmetric | Layout::LeftSymmetricFixedParityRows => 0,
        }
    }

    /// The group of a member and its place in it.
    const fn place_in_group(&self, member: MemberIndex) -> (GroupIndex, usize) {
        let (base, groups) = (self.shape.width - self.added(), self.shape.groups);
        match member.0.checked_sub(groups * base) {
            None => (GroupIndex(member.0 / base), member.0 % base),
            Some(added) => (GroupIndex(added % groups), base + added / groups),
        }
    }

    /// Members over which the first parity rotates; one if it does not.
    const fn rotating(&self) -> usize {
        if self.shape.parities == 0 || self.data_chunks() == 1 {
            return 1;
        }
        match self.layout {
            Layout::LeftSymmetric | Layout::AddedParityRows { .. } => {
                self.shape.width - self.added()
            }
            Layout::LeftSymmetricFixedParityRows => self.shape.width - (self.shape.parities - 1),
        }
    }

    /// Whether the code numbers data as the members stand, not as the data go on.
    const fn numbers_by_member(&self) -> bool {
        self.rotating() > 1 && matches!(self.layout, Layout::LeftSymmetricFixedParityRows)
    }

    /// The place of the first parity in the group.
    #[inline]
    fn first_parity(&self, stripe: StripeNumber) -> usize {
        let rotating = self.rotating();
        rotating - 1 - (self.row_of(stripe).0 % rotating as u64) as usize
    }

    /// The slot that holds a column.
    pub fn slot_of_column(&self, stripe: StripeNumber, column: usize) -> StripeSlot {
        if !self.numbers_by_member() {
            return StripeSlot(column);
        }
        let rotating = self.rotating();
        let parity = self.first_parity(stripe);
        let index = (parity + 1 + column) % rotating;
        StripeSlot(if index < parity { index } else { index - 1 })
    }

    /// The column in a slot, which must be one of data.
    pub fn column_of_slot(&self, stripe: StripeNumber, StripeSlot(slot): StripeSlot) -> usize {
        if !self.numbers_by_member() {
            return slot;
        }
        let rotating = self.rotating();
        let parity = self.first_parity(stripe);
        let index = if slot < parity { slot } else { slot + 1 };
        (index + rotating - parity - 1) % rotating
    }

    /// The member, of all, that has a slot of a stripe.
    #[inline]
    pub fn member_of(&self, stripe: StripeNumber, slot: StripeSlot) -> MemberIndex {
        self.slot_members(stripe).member_of(slot)
    }

    /// The members of the slots of a stripe.
    #[inline]
    pub(crate) fn slot_members(&self, stripe: StripeNumber) -> SlotMembers {
        let added = self.added();
        SlotMembers {
            group: self.group_of(stripe),
            groups: self.shape.groups,
            base: self.shape.width - added,
            data: self.data_chunks(),
            turning: self.shape.parities - added,
            rotating: self.rotating(),
            numbers_by_member: self.numbers_by_member(),
            parity: self.first_parity(stripe),
        }
    }

    /// The slot that a member has of a stripe; none if the stripe is on another group.
    pub fn slot_of(&self, stripe: StripeNumber, member: MemberIndex) -> Option<StripeSlot> {
        let (group, index) = self.place_in_group(member);
        if group != self.group_of(stripe) || index >= self.shape.width {
            return None;
        }
        let rotating = self.rotating();
        if rotating == 1 {
            return Some(StripeSlot(index));
        }
        let (data, turning) = (self.data_chunks(), self.shape.parities - self.added());
        let parity = self.first_parity(stripe);
        Some(StripeSlot(if self.numbers_by_member() {
            match index {
                _ if index == parity => data,
                _ if index > data => index,
                _ => index - usize::from(index > parity),
            }
        } else if index >= rotating {
            data + turning + (index - rotating)
        } else {
            let behind = (index + rotating - parity) % rotating;
            if behind < turning { data + behind } else { behind - turning }
        }))
    }

    /// The sector of its members where a stripe has `offset` sectors of a chunk before it.
    #[inline]
    pub const fn member_lba(&self, stripe: StripeNumber, offset: u64) -> Lba {
        Lba(self.row_of(stripe).0 * self.chunk_sectors + offset)
    }

    /// The role of a sector of a member; none if the sector is not used.
    pub fn member_place(&self, member: MemberIndex, at: Lba) -> Option<MemberPlace> {
        if member.0 >= self.member_count() || at.0 >= self.member_sectors() {
            return None;
        }
        let stripe = self.stripe_of(self.group_of_member(member), self.row_at(at));
        let slot = self.slot_of(stripe, member)?;
        Some(MemberPlace { stripe, slot, offset: at.0 % self.chunk_sectors })
    }

    /// The range as a part of a chunk, if it is in one chunk alone and not empty.
    #[inline]
    pub fn only_part(&self, range: SectorRange) -> Option<Part> {
        let place = self.place_of(range.start);
        let is_in_one = (1..=self.chunk_sectors - place.offset).contains(&range.count);
        is_in_one.then(|| {
            let slot = self.slot_of_column(place.stripe, place.column);
            let span = Span { start: place.offset, end: place.offset + range.count };
            Part { stripe: place.stripe, slot, span }
        })
    }

    /// Cuts a range of the volume into its parts in single chunks, in the order of the volume.
    pub fn parts(&self, range: SectorRange) -> impl Iterator<Item = Part> + '_ {
        range.split_at_multiples(self.chunk_sectors).map(|piece| {
            let place = self.place_of(piece.start);
            let slot = self.slot_of_column(place.stripe, place.column);
            let span = Span { start: place.offset, end: place.offset + piece.count };
            Part { stripe: place.stripe, slot, span }
        })
    }
}

/// The members of the slots of one stripe: group and parity are computed once for all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotMembers {
    group: GroupIndex,
    groups: usize,
    /// Members of a group without those of added parity rows.
    base: usize,
    data: usize,
    /// Parities that go round together.
    turning: usize,
    rotating: usize,
    numbers_by_member: bool,
    /// The place of the first parity in the group.
    parity: usize,
}

impl SlotMembers {
    /// The member, of all, that has a slot.
    #[inline]
    pub(crate) fn member_of(self, slot: StripeSlot) -> MemberIndex {
        let index = self.index_of(slot);
        MemberIndex(match index.checked_sub(self.base) {
            None => self.group.0 * self.base + index,
            Some(added) => self.groups * self.base + added * self.groups + self.group.0,
        })
    }

    /// The place in the group of a slot.
    #[inline]
    fn index_of(self, StripeSlot(slot): StripeSlot) -> usize {
        if self.rotating == 1 {
            return slot;
        }
        // Both are below the members that rotate: one turn at most.
        let turned = |by: usize| {
            let index = self.parity + by;
            if index < self.rotating { index } else { index - self.rotating }
        };
        match (self.numbers_by_member, slot.checked_sub(self.data)) {
            (false, None) => turned(self.turning + slot),
            (false, Some(index)) if index < self.turning => turned(index),
            (false, Some(index)) => self.rotating + index - self.turning,
            (true, None) if slot < self.parity => slot,
            (true, None) => slot + 1,
            (true, Some(0)) => self.parity,
            (true, Some(_)) => slot,
        }
    }
}

/// Shapes of the same array with further members.
///
/// A parity row does not depend on the parity rows there are, so a further one needs a place and
/// nothing else. The place is a member of its own, for each group, behind all members there are. The
/// name of the level follows from the count.
impl Geometry {
    /// The same with one more parity, or copy. The new geometry has one member more for each group.
    ///
    /// # Errors
    /// None inside when the level has no parity row to add one to, or no name with one more.
    pub fn with_parity(&self) -> Result<Self, Option<GeometryError>> {
        let (data, parities) = (self.data_chunks(), self.parity_chunks());
        let level = match self.level() {
            Level::Raid1 => Level::Raid1,
            Level::Raid5 => Level::Raid6,
            Level::Raid6 => Level::Raid7_3,
            Level::Raid7_3 | Level::NPlusM { .. } => Level::NPlusM { data, parity: parities + 1 },
            Level::Raid50 { group } => Level::Raid60 { group: group + 1 },
            Level::Raid60 { group } => Level::Raid70 { group: group + 1 },
            Level::Raid0 | Level::Raid10 | Level::Raid70 { .. } => return Err(None),
        };
        let layout = match self.layout() {
            layout if self.is_mirror() => layout,
            // With one parity the numbers of the data do not matter: what comes is Linux md's.
            Layout::LeftSymmetric if parities == 1 && self.group_count() == 1 => {
                Layout::LeftSymmetricFixedParityRows
            }
            Layout::LeftSymmetric => Layout::AddedParityRows { rotating: parities },
            Layout::LeftSymmetricFixedParityRows if self.group_count() > 1 => return Err(None),
            same => same,
        };
        let members = self.member_count() + self.group_count();
        let chunk_bytes = self.chunk_sectors() * SECTOR_BYTES;
        Self::new(level, layout, members, chunk_bytes, self.member_sectors()).map_err(Some)
    }

    /// Whether parity rows added to this, and members for capacity, give the other.
    pub(crate) fn grows_into(&self, other: &Self) -> bool {
        let mut shape = self.clone();
        for _ in 0..=ROWS_MAX {
            if shape.widens_into(other) {
                return *self != *other;
            }
            match shape.with_parity() {
                Ok(next) => shape = next,
                Err(_) => return false,
            }
        }
        false
    }

    /// Whether members added for capacity alone give the other. The order of such members and of parity rows
    /// behind them makes no difference.
    fn widens_into(&self, other: &Self) -> bool {
        let mut shape = self.clone();
        while shape.member_count() < other.member_count() {
            match shape.with_member() {
                Ok(next) => shape = next,
                Err(_) => return false,
            }
        }
        shape == *other
    }

    /// The same with one member more, which holds data and parity as all others do: wider stripes.
    ///
    /// # Errors
    /// None inside when the level gets no capacity so.
    pub fn with_member(&self) -> Result<Self, Option<GeometryError>> {
        let level = match self.level() {
            same @ (Level::Raid5 | Level::Raid6 | Level::Raid7_3) => same,
            Level::NPlusM { data, parity } => Level::NPlusM { data: data + 1, parity },
            _ => return Err(None),
        };
        self.resized(level, self.member_count() + 1).map_err(Some)
    }

    /// The geometry of which [`with_member`](Self::with_member) makes this one, if there is such an
    /// array.
    pub(crate) fn without_member(&self) -> Option<Self> {
        let level = match self.level() {
            same @ (Level::Raid5 | Level::Raid6 | Level::Raid7_3) => same,
            Level::NPlusM { data, parity } => Level::NPlusM { data: data - 1, parity },
            _ => return None,
        };
        let before = self.resized(level, self.member_count() - 1).ok()?;
        (before.with_member().as_ref() == Ok(self)).then_some(before)
    }

    fn resized(&self, level: Level, members: usize) -> Result<Self, GeometryError> {
        let chunk_bytes = self.chunk_sectors() * SECTOR_BYTES;
        Self::new(level, self.layout(), members, chunk_bytes, self.member_sectors())
    }
}
