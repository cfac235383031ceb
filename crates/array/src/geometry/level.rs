//! The levels, and which shapes of them are possible.

use std::fmt;

use voltier_parity::{Code, ROWS_MAX};

/// Smallest chunk, in bytes.
pub const CHUNK_BYTES_MIN: u64 = 4 << 10;
/// Largest chunk, in bytes.
pub const CHUNK_BYTES_MAX: u64 = 1 << 20;

/// How members protect each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Stripes without redundancy.
    Raid0,
    /// Copies on all members. The chunk is the longest piece of a request here: take a long one.
    Raid1,
    /// Stripes over pairs of members; Linux md's `near=2` on an even number of members.
    Raid10,
    /// One parity.
    Raid5,
    /// Two parities.
    Raid6,
    /// Three parities.
    Raid7_3,
    /// Stripes over groups of RAID 5.
    Raid50 {
        /// Members in a group.
        group: usize,
    },
    /// Stripes over groups of RAID 6.
    Raid60 {
        /// Members in a group.
        group: usize,
    },
    /// Stripes over groups of RAID 7.3.
    Raid70 {
        /// Members in a group.
        group: usize,
    },
    /// So many chunks of data and so many of parity in a stripe.
    NPlusM {
        /// Chunks of data in a stripe.
        data: usize,
        /// Chunks of parity in a stripe.
        parity: usize,
    },
}

/// Where the parity of a stripe is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// The default, and Linux md's for RAID 5 and 6. Parity goes one member to the left from stripe to
    /// stripe, and further parity rows follow to its right. Data begin behind the last parity row and
    /// wrap.
    #[default]
    LeftSymmetric,
    /// Linux md's `left-symmetric-6`: the first parity rotates over all members but the last ones,
    /// which hold the further parity rows. A parity row added to a RAID 5 without moving data gives this.
    LeftSymmetricFixedParityRows,
    /// The layout that parity rows added to an array of several parities, or of groups, give. So many
    /// parities are as by [`LeftSymmetric`](Self::LeftSymmetric) over the members that were there
    /// first. Each further parity row is on members of its own, one for each group, behind all others.
    AddedParityRows {
        /// Parities that rotate, of each group.
        rotating: usize,
    },
}

impl Layout {
    /// The code in superblocks: the number of a layout, and above it the one that the layout has with
    /// it.
    pub(crate) const fn code(self) -> u32 {
        match self {
            Self::LeftSymmetric => 1,
            Self::LeftSymmetricFixedParityRows => 2,
            Self::AddedParityRows { rotating } => 3 | (rotating as u32) << 8,
        }
    }

    pub(crate) fn of_code(code: u32) -> Option<Self> {
        let layout = match code & 0xff {
            1 => Self::LeftSymmetric,
            2 => Self::LeftSymmetricFixedParityRows,
            3 => Self::AddedParityRows { rotating: (code >> 8) as usize },
            _ => return None,
        };
        (layout.code() == code).then_some(layout)
    }

    /// # Errors
    /// When an array of this shape cannot have it.
    pub(crate) const fn check(self, shape: Shape) -> Result<(), GeometryError> {
        match self {
            Self::AddedParityRows { rotating }
                if rotating == 0
                    || rotating >= shape.parities
                    || shape.width == shape.parities + 1 =>
            {
                Err(GeometryError::Layout { rotating, parity: shape.parities })
            }
            _ => Ok(()),
        }
    }
}

/// Why an array of this shape is not possible: one line for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The number of members does not suit the level.
    #[error("{level} on {members} members is not possible: it takes {needed}")]
    Members {
        /// The level asked for.
        level: Level,
        /// The members given.
        members: usize,
        /// The members that the level takes.
        needed: &'static str,
    },
    /// More parities than the code has, or none.
    #[error("{parity} parities in a stripe: give 1 to {ROWS_MAX}")]
    Parity {
        /// The parities that the caller asked for.
        parity: usize,
    },
    /// More members in a stripe than the code can tell apart.
    #[error("{data} chunks of data in a stripe: with {parity} parities give at most {most}")]
    Width {
        /// Chunks of data asked for.
        data: usize,
        /// Parities.
        parity: usize,
        /// The most that is possible.
        most: usize,
    },
    /// So many rotating parities do not go with the level.
    #[error("{rotating} of {parity} parities rotating: give 1 or more and fewer than all")]
    Layout {
        /// The rotating parities that the caller asked for.
        rotating: usize,
        /// The parities of the level.
        parity: usize,
    },
    /// The chunk is not a power of two in the range.
    #[error("chunk of {chunk_bytes} bytes: give a power of two from 4K to 1M")]
    Chunk {
        /// The chunk that the caller asked for, in bytes.
        chunk_bytes: u64,
    },
    /// The smallest member does not hold one chunk, or all of them are too large to count.
    #[error("members of {member_sectors} sectors with a chunk of {chunk_bytes} bytes: too {what}")]
    MemberSize {
        /// The smallest member, in sectors.
        member_sectors: u64,
        /// The chunk, in bytes.
        chunk_bytes: u64,
        /// `small` or `large`.
        what: &'static str,
    },
}

/// Groups of equal members, and how many of each group's chunks in a stripe are parity. Copies are
/// the parities of a single chunk of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) groups: usize,
    pub(crate) width: usize,
    pub(crate) parities: usize,
}

impl fmt::Display for Level {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Level::Raid0 => out.write_str("RAID 0"),
            Level::Raid1 => out.write_str("RAID 1"),
            Level::Raid10 => out.write_str("RAID 10"),
            Level::Raid5 => out.write_str("RAID 5"),
            Level::Raid6 => out.write_str("RAID 6"),
            Level::Raid7_3 => out.write_str("RAID 7.3"),
            Level::Raid50 { group } => write!(out, "RAID 50 in groups of {group}"),
            Level::Raid60 { group } => write!(out, "RAID 60 in groups of {group}"),
            Level::Raid70 { group } => write!(out, "RAID 70 in groups of {group}"),
            Level::NPlusM { data, parity } => write!(out, "{data}+{parity}"),
        }
    }
}

impl Level {
    /// Whether stripes have parity of several chunks of data: not copies, and not RAID 0.
    pub const fn has_parity(self) -> bool {
        !matches!(self, Self::Raid0 | Self::Raid1 | Self::Raid10)
    }

    /// The members that the level takes, and the level's shape if the number of members suits it.
    fn shape_of(self, members: usize) -> (&'static str, Option<Shape>) {
        let one = |parities| Shape { groups: 1, width: members, parities };
        let grouped = |group: usize, parities| {
            let fits =
                group >= parities + 2 && members >= 2 * group && members.is_multiple_of(group);
            fits.then(|| Shape { groups: members / group, width: group, parities })
        };
        match self {
            Level::Raid0 => ("2 or more", (members >= 2).then(|| one(0))),
            Level::Raid1 => {
                let fits = (2..=ROWS_MAX + 1).contains(&members);
                ("2 to 9", fits.then(|| one(members - 1)))
            }
            Level::Raid10 => {
                let fits = members >= 4 && members.is_multiple_of(2);
                let pairs = Shape { groups: members / 2, width: 2, parities: 1 };
                ("an even number, 4 or more", fits.then_some(pairs))
            }
            Level::Raid5 => ("3 or more", (members >= 3).then(|| one(1))),
            Level::Raid6 => ("4 or more", (members >= 4).then(|| one(2))),
            Level::Raid7_3 => ("5 or more", (members >= 5).then(|| one(3))),
            Level::Raid50 { group } => ("2 or more groups of 3 or more", grouped(group, 1)),
            Level::Raid60 { group } => ("2 or more groups of 4 or more", grouped(group, 2)),
            Level::Raid70 { group } => ("2 or more groups of 5 or more", grouped(group, 3)),
            Level::NPlusM { data, parity } => {
                let fits = data >= 2 && data.checked_add(parity) == Some(members);
                ("2 or more for data, and one for each parity", fits.then(|| one(parity)))
            }
        }
    }

    pub(crate) fn shape(self, members: usize) -> Result<Shape, GeometryError> {
        if let Level::NPlusM { parity, .. } = self
            && !(1..=ROWS_MAX).contains(&parity)
        {
            return Err(GeometryError::Parity { parity });
        }
        let (needed, shape) = self.shape_of(members);
        let shape = shape.ok_or(GeometryError::Members { level: self, members, needed })?;
        let (data, parity) = (shape.width - shape.parities, shape.parities);
        let most = Code::data_max(parity);
        if parity > 0 && data > most {
            return Err(GeometryError::Width { data, parity, most });
        }
        Ok(shape)
    }
}
