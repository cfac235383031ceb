//! The two copies of a label on a device, held against each other and against what else the device shows.
//!
//! A device is believed only as a whole. Whatever takes a device writes to its start, so a copy at the start
//! speaks for all of the device, as long as no whole label of something else is at the end. A copy at the end
//! alone does not: it stays behind when the device becomes the SSD of a cache or gets a file system. It counts
//! only if the start could be a label that was lost: torn, unreadable, or zeroes. In the last two cases the
//! content near the start has to be the array's as well.

use std::fmt;

use voltier_block::{Buf, DriveControl, IoError, LabelPart, Lba, Unsupported};

use crate::errors::metadata::DeviceError;
use crate::format::checksum::Rejected;
use crate::format::journal_label::JournalLabel;
use crate::format::journal_record::{
    BLOCK_BYTES, LABEL_COPIES, Label as RingLabel, Owner, RingIndex,
};
use crate::format::member_layout::{MemberLayout, SUPERBLOCK_BYTES};
use crate::format::region_map::{MAP_BLOCK_BYTES, MapBlock, RegionMap};
use crate::format::spare_label::SpareLabel;
use crate::format::superblock::Superblock;

/// What the content of a device says of a label that only its end has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The part of the array that is next to the lost copy is there.
    For,
    /// Something else is there.
    Against,
    /// It cannot be read either.
    Unknown,
}

/// A label that a device has in two copies.
pub(crate) trait Label: PartialEq + Sized {
    /// The part of a device with this label.
    const PART: LabelPart;

    fn decode(block: &[u8], copy: u32) -> Result<Self, Rejected>;

    /// The array, or the owner, that the label names.
    fn array(&self) -> [u8; 16];

    /// The size of the device when the label was written.
    fn device_sectors(&self) -> u64;

    /// Raised with every writing that changes the label.
    fn event(&self) -> u64;

    /// Whether another copy is a label of the same device in the same place.
    fn is_same(&self, other: &Self) -> bool;

    /// The part in words, for a message.
    fn words(&self) -> String;

    /// What the content next to the first copy says.
    async fn proof(&self, device: &impl DriveControl) -> Proof;
}

impl Label for Superblock {
    const PART: LabelPart = LabelPart::Member;

    fn decode(block: &[u8], copy: u32) -> Result<Self, Rejected> {
        Self::decode(block, copy)
    }

    fn array(&self) -> [u8; 16] {
        self.array.uuid
    }

    fn device_sectors(&self) -> u64 {
        self.device_sectors
    }

    fn event(&self) -> u64 {
        self.array.event
    }

    fn is_same(&self, other: &Self) -> bool {
        let own = |it: &Self| (it.array.uuid, it.member, it.array[it.member].uuid);
        own(self) == own(other)
    }

    fn words(&self) -> String {
        let Self { array, member, .. } = self;
        format!("member {} of the array {} (event {})", member.0, array.name, array.event)
    }

    /// The region map is where a cache has the second copy of its label.
    async fn proof(&self, device: &impl DriveControl) -> Proof {
        let map = RegionMap::new(self.array.uuid, self.array.geometry.member_sectors());
        let first = MapBlock(0);
        match device.read(first.lba(), Buf::new(MAP_BLOCK_BYTES as usize)).await {
            Ok(block) if map.has_page_in(first, &block) => Proof::For,
            Ok(_) => Proof::Against,
            Err(_) => Proof::Unknown,
        }
    }
}

impl Label for JournalLabel {
    const PART: LabelPart = LabelPart::Journal;

    fn decode(block: &[u8], copy: u32) -> Result<Self, Rejected> {
        Self::decode(block, copy)
    }

    fn array(&self) -> [u8; 16] {
        self.array
    }

    fn device_sectors(&self) -> u64 {
        self.device_sectors
    }

    fn event(&self) -> u64 {
        self.event
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.array, self.uuid) == (other.array, other.uuid)
    }

    fn words(&self) -> String {
        format!("the journal of the array {} (event {})", self.name, self.event)
    }

    /// The labels of the ring. What else was written to the device since may have left them and overwritten
    /// records, so they speak against the device and never for it.
    async fn proof(&self, device: &impl DriveControl) -> Proof {
        let place = self.place();
        let owner = Owner { array: self.array, ring: RingIndex::DEVICE, blocks: place.blocks() };
        for copy in 0..LABEL_COPIES {
            match device.read(place.label_lba(copy), Buf::new(BLOCK_BYTES)).await {
                Ok(block) if RingLabel::decode(&block, owner).is_none() => {}
                Ok(_) | Err(_) => return Proof::Unknown,
            }
        }
        Proof::Against
    }
}

impl Label for SpareLabel {
    const PART: LabelPart = LabelPart::Spare;

    fn decode(block: &[u8], copy: u32) -> Result<Self, Rejected> {
        Self::decode(block, copy)
    }

    fn array(&self) -> [u8; 16] {
        self.owner
    }

    fn device_sectors(&self) -> u64 {
        self.device_sectors
    }

    fn event(&self) -> u64 {
        0
    }

    /// A spare that changed hands when the program died has two owners, the first of which is the newer one.
    fn is_same(&self, _: &Self) -> bool {
        true
    }

    fn words(&self) -> String {
        format!("a spare of {}", self.name)
    }

    async fn proof(&self, _: &impl DriveControl) -> Proof {
        Proof::Against
    }
}

/// What a device shows at the place of a copy.
enum Place<L> {
    /// A copy that is whole.
    Copy(L),
    /// A copy that is damaged.
    Damaged,
    /// A copy that a newer program has written.
    Newer {
        array: [u8; 16],
        why: Unsupported,
    },
    /// The label of another part, whole or not.
    Other(LabelPart),
    Zeroes,
    /// Content of somebody else.
    Content,
    Unreadable(IoError),
}

impl<L: Label> Place<L> {
    fn of(block: &[u8], copy: u32) -> Self {
        match (L::decode(block, copy), LabelPart::named_by(block)) {
            (Ok(label), _) => Self::Copy(label),
            (Err(Rejected::Unsupported { array, why }), _) => Self::Newer { array, why },
            (Err(Rejected::Damaged), _) if has_partition_table(block) => Self::Content,
            (Err(Rejected::Damaged), _) => Self::Damaged,
            (Err(Rejected::Absent), Some(part)) => Self::Other(part),
            (Err(Rejected::Absent), None) if block.iter().all(|byte| *byte == 0) => Self::Zeroes,
            (Err(Rejected::Absent), None) => Self::Content,
        }
    }

    async fn read(device: &impl DriveControl, at: Lba, copy: u32) -> (Self, Option<Buf>) {
        match device.read(at, Buf::new(SUPERBLOCK_BYTES as usize)).await {
            Ok(block) => (Self::of(&block, copy), Some(block)),
            Err(error) => (Self::Unreadable(error), None),
        }
    }
}

impl<L: Label> fmt::Display for Place<L> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copy(label) => write!(out, "as {}", label.words()),
            Self::Damaged => write!(out, "as {}, damaged", L::PART),
            Self::Newer { .. } => write!(out, "as {} of a newer format", L::PART),
            Self::Other(part) => write!(out, "as {part}"),
            Self::Zeroes => out.write_str("with zeroes"),
            Self::Content => out.write_str("with other content"),
            Self::Unreadable(error) => write!(out, "with a block that cannot be read ({error})"),
        }
    }
}

/// A copy that was found: the label, and whether the other copy was missing, damaged, or older.
type FoundCopy<L> = Option<(L, bool)>;

/// The label of a device, from both of its copies. None if the device has another part, or nothing says that
/// it has this one.
///
/// # Errors
/// When there are copies, and none that can be believed.
pub(crate) async fn read_label_copies<L: Label>(
    device: &impl DriveControl,
) -> Result<FoundCopy<L>, DeviceError> {
    if device.limits().bytes() < 2 * SUPERBLOCK_BYTES {
        return Ok(None);
    }
    let [start, end] = MemberLayout::superblock_lbas(device.limits().sectors);
    let (first, block) = Place::<L>::read(device, start, 0).await;
    let (second, _) = Place::<L>::read(device, end, 1).await;
    match (first, second) {
        (Place::Copy(first), second) => from_first(device, first, second).await,
        // The label of another part at the start speaks for the device, whatever it was before; with a whole
        // copy at the end nobody knows which of them is the newer one.
        (Place::Other(_), second) if !matches!(second, Place::Copy(_)) => Ok(None),
        // One copy does not make up for the other: the program that wrote it may have been stopped between
        // them.
        (Place::Newer { array, why }, _) | (_, Place::Newer { array, why }) => {
            Err(DeviceError::Unsupported { array, why })
        }
        (first, Place::Copy(second)) => from_second(device, (first, block), second).await,
        (Place::Damaged, _) | (_, Place::Damaged) => Err(DeviceError::Damaged),
        (Place::Unreadable(error), _) | (_, Place::Unreadable(error)) => {
            Err(DeviceError::Io(error))
        }
        _ => Ok(None),
    }
}

fn disagree<L: Label>(first: &Place<L>, second: &Place<L>) -> DeviceError {
    let is_labelled = !matches!(first, Place::Zeroes | Place::Content | Place::Unreadable(_));
    DeviceError::Disagree { begins: first.to_string(), ends: second.to_string(), is_labelled }
}

/// The label by the copy at the start, which is whole.
async fn from_first<L: Label>(
    device: &impl DriveControl,
    first: L,
    second: Place<L>,
) -> Result<FoundCopy<L>, DeviceError> {
    // Behind the end of what the label is of, the label of an earlier use may stand.
    let has_grown = first.device_sectors() < device.limits().sectors;
    let is_missing = matches!(second, Place::Damaged | Place::Zeroes | Place::Content);
    // Some programs leave the first blocks of a device to others.
    if is_missing && is_overwritten(device, &first).await {
        return Err(disagree(&Place::Copy(first), &second));
    }
    match second {
        Place::Copy(second) if first == second => Ok(Some((first, false))),
        Place::Copy(second) if first.is_same(&second) => {
            // The first copy is written first, by a member that returns many events after the second one. An
            // older one is that of a device to which a part of an old copy was put back, unless its last
            // writing alone was lost.
            match second.event().saturating_sub(first.event()) {
                0 => Ok(Some((first, true))),
                1 => Ok(Some((second, true))),
                _ => Err(disagree(&Place::Copy(first), &Place::Copy(second))),
            }
        }
        // One copy does not make up for the other, as above. That of another array stood behind the end.
        Place::Newer { array, why } if array == first.array() => {
            Err(DeviceError::Unsupported { array, why })
        }
        Place::Copy(_) | Place::Other(_) if has_grown => Ok(Some((first, true))),
        // A spare that became a member when the power went.
        Place::Other(LabelPart::Spare) if L::PART == LabelPart::Member => Ok(Some((first, true))),
        Place::Copy(_) | Place::Other(_) => Err(disagree(&Place::Copy(first), &second)),
        // A copy that is missing, damaged or unreadable does not make the device another one.
        Place::Newer { .. }
        | Place::Damaged
        | Place::Zeroes
        | Place::Content
        | Place::Unreadable(_) => Ok(Some((first, true))),
    }
}

/// The label by the copy at the end, with what is at the start.
async fn from_second<L: Label>(
    device: &impl DriveControl,
    (first, block): (Place<L>, Option<Buf>),
    second: L,
) -> Result<FoundCopy<L>, DeviceError> {
    // The label of a partition that ends where its disk does tells another size. To write to the disk as to a
    // member would overwrite its partition table.
    let is_of_a_partition = second.device_sectors() != device.limits().sectors;
    let is_believed = match &first {
        Place::Other(_) | Place::Zeroes | Place::Content if is_of_a_partition => return Ok(None),
        Place::Unreadable(error) if is_of_a_partition => return Err(DeviceError::Io(*error)),
        Place::Damaged => true,
        Place::Zeroes => second.proof(device).await == Proof::For,
        Place::Unreadable(_) => second.proof(device).await != Proof::Against,
        Place::Content => block.is_some_and(|block| is_rotten::<L>(&block)),
        Place::Copy(_) | Place::Newer { .. } | Place::Other(_) => false,
    };
    if is_believed { Ok(Some((second, true))) } else { Err(disagree(&first, &Place::Copy(second))) }
}

/// Whether something else is where a member has its region map. The map is there before the label is.
async fn is_overwritten<L: Label>(device: &impl DriveControl, label: &L) -> bool {
    L::PART == LabelPart::Member && label.proof(device).await == Proof::Against
}

/// Whether a block has the mark of a partition table, where every label has zeroes. A program that makes one may
/// leave the bytes before the table.
fn has_partition_table(block: &[u8]) -> bool {
    block.get(510..512) == Some(&[0x55, 0xaa])
}

/// Whether a block is a copy but for its first bytes.
fn is_rotten<L: Label>(block: &[u8]) -> bool {
    let (magic, mut block) = (L::PART.magic(), block.to_vec());
    block[..magic.len()].copy_from_slice(&magic);
    L::decode(&block, 0).is_ok()
}
