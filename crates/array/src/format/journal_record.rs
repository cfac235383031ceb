//! The content of a ring, byte by byte. The tables are in `docs/formats/array.md`.
//!
//! ```text
//! 0      label, copy 0        4096   label, copy 1        8192   blocks of 4096 bytes, used in a ring
//! ```
//!
//! Everything is little-endian. Label and batch carry a CRC-32C with the CRC field zero, the uuid of
//! the array, their member, and their own place.

use voltier_block::{Buf, Bytes, Payload, SECTOR_BYTES};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::canary::{self, Canary};
use crate::geometry::numbers::MemberIndex;

/// The grain of a ring, in bytes: the largest block of any member.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// The same in sectors.
pub(crate) const BLOCK_SECTORS: u64 = BLOCK_BYTES as u64 / SECTOR_BYTES;
/// Copies of the label: written in turns, so one is whole at any moment.
pub(crate) const LABEL_COPIES: u64 = 2;
/// Entries that a batch has room for.
pub(crate) const ENTRIES_MAX: usize = (BLOCK_BYTES - size_of::<BatchHead>()) / size_of::<Entry>();

const LABEL_MAGIC: [u8; 8] = *b"VOLTJLBL";
const BATCH_MAGIC: [u8; 8] = *b"VOLTJBAT";
/// Numbers that only grow are below this, so that no sum of them overflows.
const COUNTER_MAX: u64 = 1 << 62;
/// A label is one sector: no power cut leaves half of it.
const LABEL_BYTES: usize = SECTOR_BYTES as usize;
const CRC_AT: usize = 8;

/// Whether all `numbers` are such as a counter can have reached.
fn are_counters(numbers: &[U64]) -> bool {
    numbers.iter().all(|number| number.get() < COUNTER_MAX)
}

/// CRC-32C of a structure in pieces; the first has the CRC field, which counts as zero.
fn crc_of<'a>(first: &[u8], rest: impl Iterator<Item = &'a [u8]>) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&first[..CRC_AT]);
    digest.update(&[0; 4]);
    digest.update(&first[CRC_AT + 4..]);
    rest.for_each(|piece| digest.update(piece));
    digest.finalize() as u32
}

/// Where a ring's scan begins, and what it need not redo. The rest of its block is zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Label {
    magic: [u8; 8],
    crc: U32,
    member: U32,
    array: [u8; 16],
    /// Blocks of the ring behind the labels.
    blocks: U64,
    /// Grows with every replay: batches of another life are void.
    pub(crate) life: U64,
    /// Grows with every label of this ring; the higher of two counts.
    pub(crate) number: U64,
    /// Block of the oldest batch that may be needed.
    pub(crate) tail_block: U64,
    /// The number of that batch in this life.
    pub(crate) tail_sequence: U64,
    /// Every transaction below is durable in place.
    pub(crate) watermark: U64,
}

const _: () = assert!(size_of::<Label>() == 80);

/// The index of a ring, as labels and batches say it: the index of the ring's member. The ring of the journal
/// device has one that no member has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct RingIndex(usize);

impl RingIndex {
    /// The ring of the journal device.
    pub(crate) const DEVICE: Self = Self(u32::MAX as usize);

    /// The ring of a member.
    #[inline]
    pub(crate) const fn of(member: MemberIndex) -> Self {
        Self(member.0)
    }

    /// The member of the ring; none of the journal device's ring.
    #[inline]
    pub(crate) fn member(self) -> Option<MemberIndex> {
        (self != Self::DEVICE).then_some(MemberIndex(self.0))
    }

    /// The entry of the ring's member in a list of all members; none of the journal device's ring.
    #[inline]
    pub(crate) fn entry_in<T>(self, members: &[T]) -> Option<&T> {
        members.get(self.0)
    }

    fn code(self) -> U32 {
        (self.0 as u32).into()
    }
}

/// The identity of a ring: array, index, blocks behind the labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) array: [u8; 16],
    pub(crate) ring: RingIndex,
    pub(crate) blocks: u64,
}

/// The fields that change from label to label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) life: u64,
    pub(crate) number: u64,
    pub(crate) tail: (u64, u64),
    pub(crate) watermark: u64,
}

impl Label {
    /// The block of a label.
    pub(crate) fn encode(owner: Owner, start: Start) -> Bytes {
        let mut label = Self {
            magic: LABEL_MAGIC,
            crc: 0.into(),
            member: owner.ring.code(),
            array: owner.array,
            blocks: owner.blocks.into(),
            life: start.life.into(),
            number: start.number.into(),
            tail_block: start.tail.0.into(),
            tail_sequence: start.tail.1.into(),
            watermark: start.watermark.into(),
        };
        let mut block = Buf::zeroed(BLOCK_BYTES);
        block[..size_of::<Self>()].copy_from_slice(label.as_bytes());
        label.crc = crc_of(&block[..LABEL_BYTES], std::iter::empty()).into();
        block[..size_of::<Self>()].copy_from_slice(label.as_bytes());
        block.freeze()
    }

    /// The label in `block`, if it is one, whole, and of this ring.
    pub(crate) fn decode(block: &[u8], owner: Owner) -> Option<Self> {
        let label = Self::read_from_prefix(block).ok()?.0;
        let whole = label.magic == LABEL_MAGIC
            && label.array == owner.array
            && label.member == owner.ring.code()
            && label.blocks.get() == owner.blocks
            && label.tail_block.get() < owner.blocks
            && label.crc.get() == crc_of(&block[..LABEL_BYTES], std::iter::empty());
        let Self { life, number, tail_sequence, watermark, .. } = label;
        (whole && are_counters(&[life, number, tail_sequence, watermark])).then_some(label)
    }
}

/// The head of a batch: records that were written to a ring together. Entries follow, the rest of
/// the block is zero; behind it the data of the entries, in their order, and zeroes to a full block.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct BatchHead {
    magic: [u8; 8],
    crc: U32,
    member: U32,
    array: [u8; 16],
    /// Length with this block.
    blocks: U32,
    entry_count: U32,
    /// The batch's own place: a batch elsewhere is not valid.
    block: U64,
    life: U64,
    /// Without gaps in a life.
    sequence: U64,
    /// Every transaction below is durable in place.
    watermark: U64,
    /// Every transaction below is in the rings of all its members.
    recorded_below: U64,
}

const _: () = assert!(size_of::<BatchHead>() == 80);

/// A member's part of a transaction.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Entry {
    /// The transaction.
    pub(crate) number: U64,
    /// One bit for each member that has a part of it.
    pub(crate) participants: U64,
    /// First sector of the member's data area.
    pub(crate) at: U64,
    /// Length, in sectors.
    pub(crate) sectors: U32,
    /// [`KIND_DATA`] or [`KIND_ZEROES`].
    kind: u8,
    /// The member, in the ring of a device of its own; zero in a member's.
    member: u8,
    reserved: [u8; 2],
}

const _: () = assert!(size_of::<Entry>() == 32);

const KIND_DATA: u8 = 1;
const KIND_ZEROES: u8 = 2;

impl Entry {
    pub(crate) fn new(number: u64, participants: u64, at: u64, sectors: u64, data: bool) -> Self {
        let kind = if data { KIND_DATA } else { KIND_ZEROES };
        Self {
            number: number.into(),
            participants: participants.into(),
            at: at.into(),
            sectors: (sectors as u32).into(),
            kind,
            member: 0,
            reserved: [0; 2],
        }
    }

    /// The same in the ring of a device, where it names its member.
    pub(crate) fn on_device(self, member: MemberIndex) -> Self {
        Self { member: member.0 as u8, ..self }
    }

    /// The member that an entry of this ring is for.
    pub(crate) fn member_in(&self, ring: RingIndex) -> MemberIndex {
        ring.member().unwrap_or(MemberIndex(self.member.into()))
    }

    /// Whether the part's new content follows the head; else it is zeroes.
    pub(crate) fn has_data(&self) -> bool {
        self.kind == KIND_DATA
    }

    fn is_sensible(&self, ring: RingIndex, member_sectors: u64) -> bool {
        let (at, sectors) = (self.at.get(), u64::from(self.sectors.get()));
        let MemberIndex(member) = self.member_in(ring);
        sectors > 0
            && at.checked_add(sectors).is_some_and(|end| end <= member_sectors)
            && member < u64::BITS as usize
            && self.participants.get() >> member & 1 == 1
            && (ring == RingIndex::DEVICE || self.member == 0)
            && self.reserved == [0; 2]
            && matches!(self.kind, KIND_DATA | KIND_ZEROES)
            && are_counters(&[self.number])
    }
}

/// The fields of a batch beside its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchPlace {
    pub(crate) block: u64,
    pub(crate) life: u64,
    pub(crate) sequence: u64,
}

/// The numbers that a batch knows of all transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) watermark: u64,
    pub(crate) recorded_below: u64,
}

/// Blocks of a batch with so many sectors of data.
pub(crate) const fn batch_blocks(data_sectors: u64) -> u64 {
    1 + data_sectors.div_ceil(BLOCK_SECTORS)
}

/// A batch as it is written: its head, the data where they are, zeroes to a full block.
pub(crate) fn encode_batch(
    owner: Owner,
    place: BatchPlace,
    bounds: Bounds,
    entries: &[Entry],
    data: Vec<Bytes>,
) -> Payload {
    assert!(entries.len() <= ENTRIES_MAX, "{} entries in a batch", entries.len());
    let data_sectors = data.iter().map(|piece| piece.len() as u64 / SECTOR_BYTES).sum();
    let blocks = batch_blocks(data_sectors);
    let mut batch = BatchHead {
        magic: BATCH_MAGIC,
        crc: 0.into(),
        member: owner.ring.code(),
        array: owner.array,
        blocks: (blocks as u32).into(),
        entry_count: (entries.len() as u32).into(),
        block: place.block.into(),
        life: place.life.into(),
        sequence: place.sequence.into(),
        watermark: bounds.watermark.into(),
        recorded_below: bounds.recorded_below.into(),
    };
    let mut head = Buf::zeroed(BLOCK_BYTES);
    let entries = entries.as_bytes();
    head[..size_of::<BatchHead>()].copy_from_slice(batch.as_bytes());
    head[size_of::<BatchHead>()..][..entries.len()].copy_from_slice(entries);
    let mut pieces = data;
    let filled = (BLOCK_SECTORS + data_sectors) * SECTOR_BYTES;
    let padding = blocks * BLOCK_BYTES as u64 - filled;
    if padding > 0 {
        pieces.push(Buf::zeroed(padding as usize).freeze());
    }
    batch.crc = crc_of(&head, pieces.iter().map(|piece| &piece[..])).into();
    head[..size_of::<BatchHead>()].copy_from_slice(batch.as_bytes());
    pieces.insert(0, head.freeze());
    if pieces.len() == 1 { Payload::One(pieces.remove(0)) } else { Payload::Many(pieces) }
}

/// The blocks of the batch whose first block this is, if it may be the one of this place.
pub(crate) fn length_of_batch(head: &[u8], owner: Owner, place: BatchPlace) -> Option<u64> {
    let head = BatchHead::read_from_prefix(head).ok()?.0;
    let blocks = u64::from(head.blocks.get());
    let may_be = head.magic == BATCH_MAGIC
        && head.array == owner.array
        && head.member == owner.ring.code()
        && head.block.get() == place.block
        && head.life.get() == place.life
        && head.sequence.get() == place.sequence
        && head.entry_count.get() as usize <= ENTRIES_MAX
        && blocks > 0
        && blocks <= owner.blocks - place.block;
    may_be.then_some(blocks)
}

/// Whether this block is the head of a batch of the same life as `place`, written behind the one that
/// was to be there. Then that batch was whole once.
pub(crate) fn is_later_batch(head: &[u8], owner: Owner, block: u64, place: BatchPlace) -> bool {
    let Ok((own, _)) = BatchHead::read_from_prefix(head) else { return false };
    let sequence = own.sequence.get();
    let at = BatchPlace { block, sequence, ..place };
    sequence > place.sequence && length_of_batch(head, owner, at).is_some()
}

/// Whether this block is the head of a batch of a later life than that of `place`.
pub(crate) fn is_batch_of_later_life(
    head: &[u8],
    owner: Owner,
    block: u64,
    place: BatchPlace,
) -> bool {
    let Ok((own, _)) = BatchHead::read_from_prefix(head) else { return false };
    let (life, sequence) = (own.life.get(), own.sequence.get());
    let at = BatchPlace { block, life, sequence };
    life > place.life && length_of_batch(head, owner, at).is_some()
}

/// The content of a whole batch: `batch` is as long as [`length_of_batch`] has it. None if it is torn.
pub(crate) fn decode_batch(
    batch: &[u8],
    ring: RingIndex,
    member_sectors: u64,
) -> Option<(Bounds, Vec<Entry>)> {
    let head = BatchHead::read_from_prefix(batch).ok()?.0;
    let is_whole = head.crc.get() == crc_of(batch, std::iter::empty());
    if !is_whole && !canary::is(Canary::BatchChecksumIgnored) {
        return None;
    }
    let entries = &batch[size_of::<BatchHead>()..BLOCK_BYTES];
    let (entries, _) =
        <[Entry]>::ref_from_prefix_with_elems(entries, head.entry_count.get() as usize).ok()?;
    let data = entries.iter().filter(|entry| entry.has_data());
    let data_sectors = data.map(|entry| u64::from(entry.sectors.get())).sum();
    let is_sensible = entries.iter().all(|entry| entry.is_sensible(ring, member_sectors))
        && batch_blocks(data_sectors) == u64::from(head.blocks.get())
        && are_counters(&[head.watermark, head.recorded_below]);
    let (watermark, recorded_below) = (head.watermark.get(), head.recorded_below.get());
    is_sensible.then(|| (Bounds { watermark, recorded_below }, entries.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: RingIndex = RingIndex::of(MemberIndex(2));
    const OTHER_RING: RingIndex = RingIndex::of(MemberIndex(1));
    const OWNER: Owner = Owner { array: [7; 16], ring: RING, blocks: 100 };
    const PLACE: BatchPlace = BatchPlace { block: 9, life: 3, sequence: 12 };
    const BOUNDS: Bounds = Bounds { watermark: 40, recorded_below: 44 };

    fn batch() -> Vec<u8> {
        let entries = [Entry::new(45, 0b101, 16, 3, true), Entry::new(46, 0b110, 64, 1000, false)];
        let data = vec![Bytes::copy_of(&[5; 1536])];
        let payload = encode_batch(OWNER, PLACE, BOUNDS, &entries, data);
        payload.pieces().iter().flat_map(|piece| piece.to_vec()).collect()
    }

    #[test]
    fn a_batch_is_read_as_it_was_written_and_nowhere_else() {
        let bytes = batch();
        assert_eq!(bytes.len(), 2 * BLOCK_BYTES);
        assert_eq!(length_of_batch(&bytes, OWNER, PLACE), Some(2));
        for other in [
            BatchPlace { block: 10, ..PLACE },
            BatchPlace { life: 2, ..PLACE },
            BatchPlace { sequence: 11, ..PLACE },
        ] {
            assert_eq!(length_of_batch(&bytes, OWNER, other), None);
        }
        assert_eq!(length_of_batch(&bytes, Owner { ring: OTHER_RING, ..OWNER }, PLACE), None);
        let (bounds, entries) = decode_batch(&bytes, RING, 2000).expect("whole");
        assert_eq!((bounds, entries.len()), (BOUNDS, 2));
        assert_eq!(entries[0].as_bytes(), Entry::new(45, 0b101, 16, 3, true).as_bytes());
        assert!(decode_batch(&bytes, RING, 1000).is_none(), "the second ends behind the member");
        assert!(decode_batch(&bytes, OTHER_RING, 2000).is_none(), "the first is none of member 1");
    }

    #[test]
    fn every_flipped_bit_of_a_batch_is_noticed() {
        let bytes = batch();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            let read = length_of_batch(&flipped, OWNER, PLACE)
                .filter(|blocks| *blocks == 2)
                .and_then(|_| decode_batch(&flipped, RING, 2000));
            assert!(read.is_none(), "byte {at}");
        }
    }

    #[test]
    fn a_label_is_read_by_its_owner_alone_and_only_if_whole() {
        let start = Start { life: 4, number: 9, tail: (99, 17), watermark: 1000 };
        let block = Label::encode(OWNER, start);
        let label = Label::decode(&block, OWNER).expect("whole");
        let numbers = [label.life, label.number, label.tail_block, label.tail_sequence];
        assert_eq!(numbers.map(U64::get), [4, 9, 99, 17]);
        assert_eq!(label.watermark.get(), 1000);
        assert!(Label::decode(&block, Owner { ring: OTHER_RING, ..OWNER }).is_none());
        assert!(Label::decode(&block, Owner { blocks: 99, ..OWNER }).is_none());
        for at in 0..LABEL_BYTES {
            let mut flipped = block.to_vec();
            flipped[at] ^= 0x10;
            assert!(Label::decode(&flipped, OWNER).is_none(), "byte {at}");
        }
    }
}
