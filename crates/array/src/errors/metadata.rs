//! Why members do not make an array: one line for the user, which says what to do next.

use voltier_block::{IoError, Unsupported};

use crate::format::member_layout::{AREA_ALIGN_BYTES, SUPERBLOCK_BYTES};
use crate::format::superblock::{MEMBERS_MAX, NAME_BYTES_MAX, Uuid};
use crate::geometry::level::Level;

/// The fault of one device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// No superblock is on it.
    #[error("it has no array superblock: leave it out, or look for the right device")]
    NoSuperblock,
    /// Neither copy of the superblock is whole.
    #[error(
        "both copies of its superblock are damaged: assemble without it, and rebuild onto it later"
    )]
    Damaged,
    /// The superblock or label is of a version, or has features, that this program does not know.
    #[error("its superblock cannot be read: {why}")]
    Unsupported {
        /// The uuid of the array that the device names; of a spare that of its owner.
        array: [u8; 16],
        /// The version or features that are unknown.
        why: Unsupported,
    },
    /// The copies of its label are of different uses, or of different times.
    #[error(
        "its labels disagree: it begins {begins} and ends {ends}: leave it out, or overwrite it with -f"
    )]
    Disagree {
        /// What is at its start, in words.
        begins: String,
        /// What is at its end.
        ends: String,
        /// Whether its start has a label, of whatever part.
        is_labelled: bool,
    },
    /// The device is smaller than it was.
    #[error("it had {had} sectors and now has {has}: give it its old size back, or leave it out")]
    Truncated {
        /// The device's size when the superblock was written.
        had: u64,
        /// The device's size.
        has: u64,
    },
    /// The device cannot be written.
    #[error("it is read-only: make it writable, or leave it out")]
    ReadOnly,
    /// The drive has not ended requests of before.
    #[error("it still has old requests in flight: wait until it answers, or leave it out")]
    Undrained,
    /// A request failed.
    #[error("{0}, at its superblock or region map: check the drive, or leave it out")]
    Io(IoError),
}

/// Why an array with durable state cannot be made or assembled. Devices are numbered from 1, as they
/// were given; members from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// Something is wrong with one device.
    #[error("device {}: {error}", .device + 1)]
    Device {
        /// The position of the device among those given, from 0.
        device: usize,
        /// The fault of the device.
        error: DeviceError,
    },
    /// The name cannot be kept.
    #[error("the name {name:?} is not possible: give 1 to {NAME_BYTES_MAX} bytes, all printable")]
    Name {
        /// The name that the caller asked for.
        name: String,
    },
    /// Too many members.
    #[error("{members} members: an array has at most {MEMBERS_MAX}")]
    Members {
        /// The members given.
        members: usize,
    },
    /// Not one uuid for each member, or one twice.
    #[error("the members need a uuid each, all different: {uuids} given for {members} members")]
    Uuids {
        /// The uuids given.
        uuids: usize,
        /// The members given.
        members: usize,
    },
    /// The smallest device is too small for a chunk.
    #[error(
        "the smallest member has {} KiB: with this chunk it needs at least {} KiB",
        .sectors / 2,
        (.overhead_bytes + AREA_ALIGN_BYTES + SUPERBLOCK_BYTES) / 1024
    )]
    TooSmall {
        /// The device's size, in sectors.
        sectors: u64,
        /// Journal and one chunk, in bytes.
        overhead_bytes: u64,
    },
    /// Nothing could mend a block that does not match.
    #[error("{level} has no redundancy to repair blocks from: make it without --integrity")]
    Integrity {
        /// The level asked for.
        level: Level,
    },
    /// No devices were given.
    #[error("no devices were given: name the members of the array")]
    NoDevices,
    /// A device is a member of another array than those before it.
    #[error("device {} is of another array, {} ({name}): leave it out", .device + 1, Uuid(.uuid))]
    Stranger {
        /// The position of the device.
        device: usize,
        /// The uuid of its array.
        uuid: [u8; 16],
        /// The name of its array.
        name: String,
    },
    /// Two devices are the same member.
    #[error("devices {} and {} are both member {member}: leave the copy out", .first + 1, .second + 1)]
    Duplicate {
        /// The position of one.
        first: usize,
        /// The position of the other.
        second: usize,
        /// The member that both say they are.
        member: usize,
    },
    /// The members say different things of the array with one event count.
    #[error(
        "devices {} and {} contradict each other about the array: leave one of them out",
        .first + 1, .second + 1
    )]
    Contradiction {
        /// The position of one.
        first: usize,
        /// The position of the other.
        second: usize,
    },
    /// Devices were given, and no member among them.
    #[error("device {} is the journal of array {name}: name the members of the array as well", .device + 1)]
    OnlyJournal {
        /// The position of the device.
        device: usize,
        /// The name of its array.
        name: String,
    },
    /// Two devices are the same journal.
    #[error("devices {} and {} are both the journal: leave the copy out", .first + 1, .second + 1)]
    DuplicateJournal {
        /// The position of one.
        first: usize,
        /// The position of the other.
        second: usize,
    },
    /// The journal knows more of the array than its members.
    #[error(
        "device {}, the journal, knows newer events than the members: connect those that are \
         missing, or leave it out", .device + 1
    )]
    JournalNewer {
        /// The position of the device.
        device: usize,
    },
    /// Begun transactions are on a device that is not there.
    #[error(
        "not stopped cleanly and its journal device is not there: connect it, or force the \
         start, which recomputes the parity, and check the data"
    )]
    JournalMissing,
    /// A member was given up, and went on by itself.
    #[error(
        "device {} was given up by the others and used without them: decide which side has the \
         right data",
        .device + 1
    )]
    Diverged {
        /// The position of the device.
        device: usize,
    },
    /// The making of the array was cut off, or all that were given have missed its end.
    #[error(
        "the creation of the array {name} was interrupted, as far as these devices know: give \
         the others too, or if there are none create it again"
    )]
    HalfMade {
        /// The array's name.
        name: String,
    },
    /// Too few members are there.
    #[error(
        "{usable} of the {width} members of group {group} are usable and {needed} are needed: \
         connect {}", Missing(.missing)
    )]
    TooFew {
        /// The group, from 0.
        group: usize,
        /// Members that are there and up to date.
        usable: usize,
        /// Members of a group.
        width: usize,
        /// The fewest that hold everything.
        needed: usize,
        /// Members that would help.
        missing: Vec<usize>,
    },
    /// The members that are not there could have gone on without these.
    #[error(
        "{} not there and may have been used without these: connect {}, or start degraded by choice",
        Missing(.missing), if .missing.len() == 1 { "it" } else { "them" }
    )]
    MayBeOld {
        /// The members that are not there.
        missing: Vec<usize>,
    },
    /// Stripes may not match, and members are missing that only they could tell.
    #[error(
        "not stopped cleanly, {regions} regions need a resync and {} not there: connect {}, or force the \
         start and check the data", Missing(.missing), if .missing.len() == 1 { "it" } else { "them" }
    )]
    DirtyDegraded {
        /// The regions that need a resync.
        regions: u64,
        /// The members that are not there.
        missing: Vec<usize>,
    },
}

/// Members by their numbers.
pub(super) struct Missing<'a>(pub(super) &'a [usize]);

impl std::fmt::Display for Missing<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(if self.0.len() == 1 { "member" } else { "members" })?;
        for (index, member) in self.0.iter().enumerate() {
            write!(out, "{} {member}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}
