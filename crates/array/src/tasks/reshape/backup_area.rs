//! Sections that lie over what they are moved to. Every member keeps what it will have of them, in an area
//! of its own, until that is in place. Tables in `docs/formats/array.md`.

use std::rc::Rc;

use voltier_block::{
    Buf, Bytes, DriveControl, Durability, IoError, IoResult, Lba, MIB, Payload, SECTOR_BYTES,
};
use voltier_ring::Handle;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::format::checksum::{crc_without, seal};
use crate::format::member_layout::BACKUP_START_BYTES;
use crate::format::reshape_record::ReshapeRecord;
use crate::geometry::chunks::{Geometry, Span};
use crate::geometry::numbers::{GroupIndex, MemberIndex, Row, Section, count};
use crate::members::at_once::together;
use crate::members::long_transfer::{read_long, write_long};
use crate::members::member_set::MemberSet;
use crate::membership::current::Membership;
use crate::stripe::ground::Ground;
use crate::stripe::two_shapes::TwoShapes;
use crate::tasks::reshape::strips::Filled;

/// First bytes of what is kept.
const MAGIC: [u8; 8] = *b"VOLTSTAG";
const HEAD_BYTES: usize = 4096;
const CRC_AT: usize = 8;
/// Room for content on a member.
const ROOM_BYTES: u64 = MIB - BACKUP_START_BYTES - HEAD_BYTES as u64;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    crc: U32,
    member: U32,
    array: [u8; 16],
    frontier: U64,
    start: U64,
    sectors: U64,
    rows: U64,
    reserved: [u8; HEAD_BYTES - 64],
}

const _: () = assert!(size_of::<Head>() == HEAD_BYTES);

/// The content that is kept of each member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    array: [u8; 16],
    member: MemberIndex,
}

/// So many sectors of a chunk fit, of each row of a section.
pub(crate) fn sectors_at_once(section_rows: u64, chunk_sectors: u64) -> u64 {
    let sectors = ROOM_BYTES / section_rows / HEAD_BYTES as u64 * HEAD_BYTES as u64 / SECTOR_BYTES;
    sectors.min(chunk_sectors)
}

fn encode(owner: Owner, frontier: Section, span: Span, rows: u64, data: &[u8]) -> Bytes {
    let mut head = Head::new_zeroed();
    head.magic = MAGIC;
    head.member = (owner.member.0 as u32).into();
    head.array = owner.array;
    head.frontier = frontier.0.into();
    head.start = span.start.into();
    head.sectors = span.count().into();
    head.rows = rows.into();
    let mut whole = Buf::new(HEAD_BYTES + data.len());
    whole[..HEAD_BYTES].copy_from_slice(head.as_bytes());
    whole[HEAD_BYTES..].copy_from_slice(data);
    seal(&mut whole, CRC_AT);
    whole.freeze()
}

/// The content, if it is just this.
fn decode(whole: Bytes, owner: Owner, frontier: Section, span: Span, rows: u64) -> Option<Bytes> {
    let head = Head::ref_from_bytes(whole.get(..HEAD_BYTES)?).ok()?;
    let is_it = head.magic == MAGIC
        && head.member.get() as usize == owner.member.0
        && head.array == owner.array
        && head.frontier.get() == frontier.0
        && (head.start.get(), head.sectors.get(), head.rows.get())
            == (span.start, span.count(), rows)
        && whole.len() == HEAD_BYTES + rows as usize * span.bytes()
        && head.crc == crc_without(&whole, CRC_AT);
    is_it.then(|| whole.slice(HEAD_BYTES..whole.len()))
}

/// The areas of all members.
pub(crate) struct BackupArea<D> {
    handle: Handle,
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    membership: Rc<Membership>,
}

impl<D: DriveControl> BackupArea<D> {
    pub(crate) fn new(ground: &Ground<D>) -> Rc<Self> {
        let Ground { handle, geometry, members, membership, .. } = ground.clone();
        Rc::new(Self { handle, geometry, members, membership })
    }

    fn backup_owner(&self, member: MemberIndex) -> Owner {
        let array = self.membership.durable().map_or([0; 16], |durable| durable.record().uuid);
        Owner { array, member }
    }

    /// Has all members keep what they will have, durably.
    ///
    /// # Errors
    /// When a member that cannot be lost refuses the write.
    pub(super) async fn keep(self: &Rc<Self>, frontier: Section, filled: &Filled) -> IoResult<()> {
        let rows = count(&filled.rows);
        let write = |(member, data): (MemberIndex, &Bytes)| {
            let whole = encode(self.backup_owner(member), frontier, filled.span, rows, data);
            self.clone().write_backup(member, whole)
        };
        let writes = self.members.indexes().zip(&filled.members).map(write);
        let results = together(&self.handle, writes.collect()).await;
        results.into_iter().collect::<IoResult<()>>()?;
        self.members.check_group(GroupIndex::FIRST)
    }

    async fn write_backup(self: Rc<Self>, member: MemberIndex, whole: Bytes) -> IoResult<()> {
        let Ok(device) = self.members[member].device() else { return Ok(()) };
        self.members.counters().add(|counts| counts.metadata_writes += 1);
        let at = Lba::from_bytes(BACKUP_START_BYTES);
        let payload = || Payload::One(whole.clone());
        let mut result = write_long(&*device, at, payload(), Durability::Durable).await;
        if let Err(error) = result
            && self.members.may_try_again(member, &device, error)
        {
            result = write_long(&*device, at, payload(), Durability::Durable).await;
        }
        self.members.lose_on_error(member, &device, result)
    }

    /// Puts in place what members keep, after a crash. Nobody knows what a member that is not in
    /// service yet has of it: that member lacks it.
    ///
    /// # Errors
    /// When members that cannot be lost do not have it, or do not take it.
    pub(super) async fn restore(
        self: &Rc<Self>,
        two: &TwoShapes,
        record: ReshapeRecord,
    ) -> IoResult<()> {
        let window = two.shapes().window(record.frontier, 1);
        let start = record.moved_sectors;
        let span = Span { start, end: start + record.backed_up_sectors };
        let members = self.members.indexes();
        let restore = |member: MemberIndex| {
            let (area, rows) = (self.clone(), window.new_rows.clone());
            async move {
                let Ok(device) = area.members[member].device() else { return Ok(()) };
                if !area.members[member].is_online() {
                    return Ok(());
                }
                let count = count(&rows);
                let bytes = HEAD_BYTES + count as usize * span.bytes();
                let at = Lba::from_bytes(BACKUP_START_BYTES);
                let whole = read_long(&*device, at, bytes).await;
                let owner = area.backup_owner(member);
                let kept = whole.and_then(|whole| {
                    let kept = decode(whole.freeze(), owner, record.frontier, span, count);
                    kept.ok_or(IoError::Medium)
                });
                match kept {
                    Ok(data) => area.restore_rows(member, rows.start, span, data).await,
                    Err(error) => area.members.lose_on_error(member, &device, Err(error)),
                }
            }
        };
        let results = together(&self.handle, members.map(restore).collect()).await;
        results.into_iter().collect::<IoResult<()>>()?;
        self.members.check_group(GroupIndex::FIRST)
    }

    async fn restore_rows(
        self: &Rc<Self>,
        member: MemberIndex,
        first_row: Row,
        span: Span,
        data: Bytes,
    ) -> IoResult<()> {
        for (index, start) in (0..data.len()).step_by(span.bytes()).enumerate() {
            let at = self.geometry.lba_of_row(first_row + index as u64).plus(span.start);
            let piece = data.slice(start..start + span.bytes());
            self.members.clone().write(member, at, piece.into(), Durability::Cached).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_taken_for_just_what_it_is() {
        let (owner, span) =
            (Owner { array: [3; 16], member: MemberIndex(2) }, Span { start: 8, end: 24 });
        let frontier = Section(5);
        let data: Vec<u8> = (0..2 * 8192).map(|byte| byte as u8).collect();
        let whole = encode(owner, frontier, span, 2, &data);
        assert_eq!(decode(whole.clone(), owner, frontier, span, 2).as_deref(), Some(&data[..]));
        let others = [
            (Owner { member: MemberIndex(1), ..owner }, frontier, span, 2),
            (Owner { array: [4; 16], ..owner }, frontier, span, 2),
            (owner, Section(4), span, 2),
            (owner, frontier, Span { start: 0, end: 16 }, 2),
            (owner, frontier, Span { start: 8, end: 40 }, 1),
        ];
        for (owner, frontier, span, rows) in others {
            assert!(decode(whole.clone(), owner, frontier, span, rows).is_none());
        }
        for at in [0, 9, 13, 64, HEAD_BYTES, whole.len() - 1] {
            let mut damaged = Buf::copy_of(&whole);
            damaged[at] ^= 1;
            assert!(decode(damaged.freeze(), owner, frontier, span, 2).is_none(), "byte {at}");
        }
        assert!(decode(whole.slice(0..whole.len() - 512), owner, frontier, span, 2).is_none());
    }

    #[test]
    fn every_array_has_room_for_a_block_of_each_row() {
        for section_rows in 2..=62 {
            for chunk_sectors in [8, 128, 2048] {
                let sectors = sectors_at_once(section_rows, chunk_sectors);
                assert!(sectors >= 8 && sectors.is_multiple_of(8) && sectors <= chunk_sectors);
                assert!(sectors * SECTOR_BYTES * section_rows <= ROOM_BYTES);
            }
        }
    }
}
