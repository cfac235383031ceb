//! Why an array cannot be made, changed or put in service.

pub(crate) mod grow;
pub(crate) mod journal;
pub(crate) mod metadata;
pub(crate) mod replace;

use voltier_block::IoError;
use voltier_parity::CodeError;

use crate::geometry::level::GeometryError;
pub use grow::GrowError;
pub use journal::JournalError;
pub use metadata::{DeviceError, MetadataError};
pub use replace::ReplaceError;

/// Why an array cannot be made of these members: one line for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrayError {
    /// The geometry is for another number of members.
    #[error("{given} members given: the array has {expected}")]
    MemberCount {
        /// The members given, lost ones included.
        given: usize,
        /// The members of the geometry.
        expected: usize,
    },
    /// A member does not hold its part.
    #[error("member {member} has {sectors} sectors: the array uses {needed} of each")]
    TooSmall {
        /// The number of the member.
        member: usize,
        /// The member's size.
        sectors: u64,
        /// The sectors of each member that the array uses.
        needed: u64,
    },
    /// A member cannot be sent a chunk at once.
    #[error("member {member} takes {bytes} bytes at once, less than a chunk: take a smaller one")]
    Transfer {
        /// The number of the member.
        member: usize,
        /// The longest transfer of the member, in bytes.
        bytes: u32,
    },
    /// More members are lost than the level can lose.
    #[error("{lost} members of group {group} are lost and the level allows {allowed}")]
    TooManyLost {
        /// The number of the group, from 0.
        group: usize,
        /// How many are lost.
        lost: usize,
        /// How many may be.
        allowed: usize,
    },
    /// A ring of the journal is too short, or not on whole blocks.
    #[error(
        "the journal of member {member} has {sectors} sectors: give it {needed} or more, on 4 KiB"
    )]
    JournalPlace {
        /// The number of the member.
        member: usize,
        /// The sectors that the member has.
        sectors: u64,
        /// The sectors that the member needs.
        needed: u64,
    },
    /// More members than a transaction can name.
    #[error("{members} members: an array with a journal has at most 64")]
    JournalMembers {
        /// The members of the geometry.
        members: usize,
    },
    /// A journal that is needed cannot be read, and its member cannot be lost.
    #[error("the journal of member {member} is damaged and no redundancy is left")]
    JournalDamaged {
        /// The number of the member.
        member: usize,
    },
    /// Members failed while the journal was made or replayed.
    #[error("{0}, while the journal was replayed: check the members and try again")]
    Journal(IoError),
    /// The parity code is not possible.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// The array does not grow.
    #[error(transparent)]
    Grow(#[from] GrowError),
    /// A member cannot be replaced, or a spare not be used.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// A device cannot take the journal.
    #[error(transparent)]
    JournalDevice(#[from] JournalError),
    /// No such array is possible.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The durable state cannot be made, or cannot be believed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// Members do not answer while the array is put in service, and the others are not enough.
    #[error(
        "{} not answer, and the array cannot do without: repair the drives, then assemble it again",
        Silent(.members)
    )]
    Silent {
        /// The members that do not answer, or do not flush.
        members: Vec<usize>,
    },
    /// The array failed while it was started or stopped.
    #[error("the array has failed ({0}): look at its members, then assemble it again")]
    Io(IoError),
}

struct Silent<'a>(&'a [usize]);

impl std::fmt::Display for Silent<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let does = if self.0.len() == 1 { "does" } else { "do" };
        write!(out, "{} {does}", metadata::Missing(self.0))
    }
}
