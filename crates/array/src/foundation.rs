//! The members of an array before it is built, and what follows from their devices.

use std::rc::Rc;

use voltier_block::{AfterDiscard, DriveControl, Limits, SECTOR_BYTES, StripeShape};

use crate::bitmap::region_states::RegionStates;
use crate::errors::ArrayError;
use crate::format::consistency::Consistency;
use crate::format::integrity::Integrity;
use crate::format::journal_place::longest_record_bytes;
use crate::format::member_layout::MemberLayout;
use crate::format::reshape_record::ReshapeRecord;
use crate::format::superblock::ArrayRecord;
use crate::geometry::chunks::Geometry;
use crate::members::member_watch::MemberWatch;

/// Longest transfer, in bytes, when stripes are shorter: bounds the tasks of one request.
const TRANSFER_BYTES: u64 = 4 << 20;

/// The members of an array, and what is known of them before it is built.
pub(crate) struct Foundation<D> {
    pub(crate) geometry: Geometry,
    /// In the order of their numbers, `None` for each that is lost.
    pub(crate) members: Vec<Option<D>>,
    pub(crate) consistency: Consistency,
    /// Whether the journal will be begun before anything is written.
    pub(crate) has_journal: bool,
    /// The first sector of the chunks on a member's device.
    pub(crate) data_start: u64,
    /// Set if the members keep checksums.
    pub(crate) checksums: Option<MemberLayout>,
    /// None for a bare array.
    pub(crate) record: Option<ArrayRecord>,
    pub(crate) states: Option<RegionStates>,
    /// Set if the array moves to its geometry from one with a member less.
    pub(crate) reshape: Option<ReshapeRecord>,
    pub(crate) watch: Rc<MemberWatch>,
    /// Whether the array takes no changes, and begins none by itself.
    pub(crate) is_read_only: bool,
}

impl<D: DriveControl> Foundation<D> {
    /// The foundation of an array that has this record.
    pub(crate) fn of(
        array: &ArrayRecord,
        members: Vec<Option<D>>,
        states: RegionStates,
        watch: &Rc<MemberWatch>,
    ) -> Self {
        Self {
            geometry: array.geometry.clone(),
            members,
            consistency: array.consistency,
            has_journal: array.journal().is_some(),
            data_start: array.places.data.start.0,
            checksums: (array.places.integrity() != Integrity::None).then_some(array.places),
            reshape: array.reshape,
            record: Some(array.clone()),
            states: Some(states),
            watch: watch.clone(),
            is_read_only: false,
        }
    }

    /// The foundation of a bare array: chunks from the first sector on, and nothing that is durable.
    pub(crate) fn bare(
        geometry: Geometry,
        members: Vec<Option<D>>,
        watch: &Rc<MemberWatch>,
    ) -> Self {
        Self {
            geometry,
            members,
            consistency: Consistency::None,
            has_journal: false,
            data_start: 0,
            checksums: None,
            reshape: None,
            record: None,
            states: None,
            watch: watch.clone(),
            is_read_only: false,
        }
    }

    /// # Errors
    /// When the members do not suit the geometry.
    pub(crate) fn check(&self) -> Result<(), ArrayError> {
        let (given, expected) = (self.members.len(), self.geometry.member_count());
        if given != expected {
            return Err(ArrayError::MemberCount { given, expected });
        }
        for (member, device) in self.members.iter().enumerate() {
            let Some(device) = device else { continue };
            let sectors = device.limits().sectors;
            let needed = self.data_start + self.geometry.member_sectors();
            if sectors < needed {
                return Err(ArrayError::TooSmall { member, sectors, needed });
            }
            let bytes = device.limits().max_transfer_bytes;
            let longest = if self.has_journal {
                longest_record_bytes(&self.geometry)
            } else {
                self.geometry.chunk_sectors() * SECTOR_BYTES
            };
            if u64::from(bytes) < longest {
                return Err(ArrayError::Transfer { member, bytes });
            }
        }
        Ok(())
    }
}

/// The limits of the array, from those of the members that are there.
pub(crate) fn limits_of<'a>(
    geometry: &Geometry,
    members: impl Iterator<Item = &'a Limits>,
) -> Limits {
    let stripe_bytes = geometry.stripe_sectors() * SECTOR_BYTES;
    let chunk_bytes = geometry.chunk_sectors() * SECTOR_BYTES;
    let preferred_bytes =
        if stripe_bytes.is_power_of_two() { stripe_bytes } else { chunk_bytes } as u32;
    let whole_stripes = (TRANSFER_BYTES / stripe_bytes).max(1) * stripe_bytes;
    let mut limits = Limits {
        preferred_bytes,
        max_transfer_bytes: whole_stripes.min(u64::from(u32::MAX / 4096 * 4096)) as u32,
        stripe: (geometry.parity_chunks() > 0 && !geometry.is_mirror()).then_some(StripeShape {
            data_bytes: stripe_bytes as u32,
            chunk_bytes: chunk_bytes as u32,
            parity_chunks: geometry.parity_chunks() as u32,
        }),
        ..Limits::plain(geometry.sectors() * SECTOR_BYTES)
    };
    for member in members {
        limits.block_bytes = limits.block_bytes.max(member.block_bytes);
        limits.volatile_cache |= member.volatile_cache;
        limits.read_only |= member.read_only;
        limits.rotational |= member.rotational;
        limits.cheap_zeroes &= member.cheap_zeroes;
        limits.after_discard = match (limits.after_discard, member.after_discard) {
            (AfterDiscard::Zeroes, AfterDiscard::Zeroes) => AfterDiscard::Zeroes,
            // Parity of what anybody may find is not parity: discards end here.
            _ if geometry.parity_chunks() > 0 => AfterDiscard::Unchanged,
            (AfterDiscard::Unchanged, AfterDiscard::Unchanged) => AfterDiscard::Unchanged,
            _ => AfterDiscard::Anything,
        };
    }
    let keeps_parts = geometry.parity_chunks() > 0 && !geometry.is_mirror();
    if keeps_parts && limits.after_discard == AfterDiscard::Zeroes {
        // Only whole stripes are discarded.
        limits.after_discard = AfterDiscard::Anything;
    }
    limits
}
