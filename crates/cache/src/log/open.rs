//! How a cache is opened: what is asked for, what is found, and why it fails.

use voltier_block::{IoError, SectorRange, Unsupported};

use crate::clock::WallClock;
use crate::config::Settings;
use crate::format::owner::Owner;
use crate::format::superblock::{
    BLOCK_BYTES, Rejected, STATE_CLEAN, SUPERBLOCK_OFFSETS, Superblock, policy_of,
};
use crate::memory::{MemoryGate, NoMemory};
use crate::policy::PolicyKind;

/// Why a cache cannot be made or brought back. Each is one line for the user.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No superblock of ours is on the device.
    #[error("the SSD holds no Voltier cache")]
    NotACache,
    /// A cache of a version, or with features, that this program does not know.
    #[error("it cannot be read: {why}")]
    Unsupported {
        /// The uuid on the device.
        uuid: [u8; 16],
        /// The version or features that are unknown.
        why: Unsupported,
    },
    /// The two places of the superblock are of different uses of the SSD.
    #[error(
        "it begins as {begins}, and its second label is that of {second}: it was used for something else \
         since, and is not trusted"
    )]
    Disagree {
        /// What is at its start, in words.
        begins: String,
        /// What is at the place of the second copy.
        second: String,
        /// Whether its start has a label, of whatever part.
        is_labelled: bool,
    },
    /// A cache, but not the one that belongs here.
    #[error("the SSD holds another cache ({found}); the one of this volume is {expected}")]
    Foreign {
        /// The uuid on the device.
        found: String,
        /// The uuid that was expected.
        expected: String,
    },
    /// An older state of the right cache.
    #[error(
        "the SSD holds an older state of this cache (generation {found}, expected {expected}): \
         it may be a stale copy or a snapshot, and is not trusted"
    )]
    Stale {
        /// The generation on the device.
        found: u64,
        /// The generation that was expected.
        expected: u64,
    },
    /// The state of the right cache before it was stopped.
    #[error(
        "the SSD holds this cache as it was before it was stopped (writing {found} of its superblock, expected \
         {expected}): it may be a stale copy or a snapshot, and is not trusted"
    )]
    BeforeStop {
        /// The number on the device.
        found: u64,
        /// The number that was expected.
        expected: u64,
    },
    /// Somebody wrote to the origin while the cache was stopped, and dirty lines do not fit it.
    #[error(
        "the backing disk was changed while the cache was stopped, and {dirty} dirty lines on \
         the SSD are not on it"
    )]
    OriginChanged {
        /// Dirty lines in question.
        dirty: u64,
    },
    /// The origin does not have clean lines as the cache knows them, and dirty lines do not fit it.
    #[error(
        "the backing disk is another drive, or was changed: {differing} of {compared} sampled \
         lines differ, and {dirty} dirty lines on the SSD are not on it"
    )]
    ForeignOrigin {
        /// Lines that the origin has otherwise.
        differing: u32,
        /// Clean lines that were read from the origin.
        compared: u32,
        /// Dirty lines in question.
        dirty: u64,
    },
    /// Nothing of the origin could be compared, and dirty lines would go to it.
    #[error(
        "nothing on the SSD shows that this is the right backing disk, and {dirty} dirty lines \
         on the SSD are not on it"
    )]
    UnprovenOrigin {
        /// Dirty lines in question.
        dirty: u64,
    },
    /// The origin is smaller than what the cache was made for.
    #[error(
        "the backing disk has {has} bytes, and the cache on the SSD is for one of {had}: give it its \
         size back"
    )]
    OriginShrunk {
        /// Bytes that the cache was made for.
        had: u64,
        /// Bytes of the origin now.
        has: u64,
    },
    /// The devices and the cache's layout do not fit.
    #[error("{0}")]
    Layout(String),
    /// The system gives no memory for the map.
    #[error("{0} for its map; free some, or use larger lines or a smaller SSD")]
    Memory(#[from] NoMemory),
    /// The machine has less memory than the map needs.
    #[error("{0}")]
    NoRoom(String),
    /// The SSD is provably not what was written to it.
    #[error("the cache on the SSD is damaged: {0}")]
    Damaged(String),
    /// A device has answered nothing for the deadline.
    #[error("{device} has not answered for {seconds} s")]
    Silent {
        /// The SSD or the origin.
        device: &'static str,
        /// The time that the start has waited, in seconds.
        seconds: u64,
    },
    /// A device failed.
    #[error("{device}: {error}")]
    Io {
        /// The SSD or the origin.
        device: &'static str,
        /// The device's error.
        error: IoError,
    },
}

pub(crate) fn ssd_error(error: IoError) -> OpenError {
    OpenError::Io { device: "the SSD", error }
}

pub(crate) fn origin_error(error: IoError) -> OpenError {
    OpenError::Io { device: "the backing disk", error }
}

/// The facts that a superblock tells of a cache that is not open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Names the cache.
    pub uuid: [u8; 16],
    /// Grows with every opening.
    pub generation: u64,
    /// Grows with every writing of the superblock.
    pub sequence: u64,
    /// Whether the cache was stopped in order.
    pub clean: bool,
    /// Dirty lines at the last checkpoint.
    pub dirty_lines: u64,
    /// Bytes of a line.
    pub line_bytes: u64,
    /// The replacement policy: it chooses the line that leaves a full cache.
    pub policy: PolicyKind,
    /// Size of the origin it belongs to, in sectors.
    pub origin_sectors: u64,
    /// The volume that the cache belongs to, as far as it is recorded.
    pub owner: Owner,
}

impl Label {
    pub(crate) fn of(found: &Superblock, owner: Owner) -> Self {
        Self {
            uuid: found.uuid,
            generation: found.generation.get(),
            sequence: found.sequence.get(),
            clean: found.state.get() == STATE_CLEAN,
            dirty_lines: found.dirty_lines.get(),
            line_bytes: found.line_bytes.get().into(),
            policy: policy_of(found.policy.get()),
            origin_sectors: found.origin_sectors.get(),
            owner,
        }
    }

    /// The label in the first bytes of a device, for those who have read these bytes already. `None` without
    /// a whole superblock.
    ///
    /// # Errors
    /// When a superblock is of a version, or has features, that this program does not know.
    pub fn in_head(head: &[u8]) -> Result<Option<Self>, Unsupported> {
        let mut newest: Option<(Superblock, &[u8])> = None;
        for (copy, offset) in SUPERBLOCK_OFFSETS.into_iter().enumerate() {
            let rest = head.get(offset as usize..).unwrap_or_default();
            let Some(block) = rest.get(..BLOCK_BYTES) else { continue };
            let found = match Superblock::decode(block, copy as u32) {
                Ok(found) => found,
                Err(Rejected::Unsupported { why, .. }) => return Err(why),
                Err(Rejected::Absent | Rejected::Damaged) => continue,
            };
            let sequence = found.sequence.get();
            if newest.as_ref().is_none_or(|(other, _)| sequence > other.sequence.get()) {
                newest = Some((found, block));
            }
        }
        Ok(newest.map(|(found, block)| Self::of(&found, Owner::decode(block))))
    }
}

/// The fate of a cache whose SSD can be read, and takes no writes at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwritableSsd {
    /// The cache is not opened.
    Refuse,
    /// The cache is opened and evacuated: see [`Opened::evacuates`].
    Evacuate,
    /// The same, and the caller has it on record that an earlier start began to evacuate. So the origin may
    /// have some of the dirty lines, and differ from what it was at a clean stop.
    EvacuateFurther,
}

/// The origin's content as the owner of the data sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginTrust {
    /// The origin has what it had: dirty lines go to no other.
    AsBefore,
    /// The same, and nothing else says which drive the origin is: dirty lines go to it only if something of
    /// it could be compared.
    Unmarked,
    /// As `AsBefore`, and a cache without dirty lines is refused too: the records may be those of another
    /// SSD.
    Unchanged,
    /// The same, and nobody has said which drive the origin is: dirty lines go to it only if something of it
    /// could be compared.
    Unproven,
    /// The owner says that the present content counts, with the dirty lines over it. Clean lines are dropped
    /// if the content is not what it was.
    AsFound,
}

/// How to open.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Refuse any other cache.
    pub uuid: Option<[u8; 16]>,
    /// Refuse an older state.
    pub generation_min: u64,
    /// Refuse what the cache was before the writing of the superblock with this number.
    pub sequence_min: u64,
    /// Settings to serve with.
    pub settings: Settings,
    /// Seed of what is left to chance (the policy `rand`).
    pub seed: u64,
    /// The fate of the cache when the SSD takes no writes.
    pub unwritable: UnwritableSsd,
    /// Whether the origin must have what it had.
    pub origin: OriginTrust,
    /// The volume that the superblock is to name from now on; mode and order are the settings'. Without
    /// an owner the superblock goes on to say what it says.
    pub owner: Option<Owner>,
    /// Ranges that are on record as [passed](crate::Cache::on_passing): nothing that the SSD has of them counts.
    /// The caller keeps them on record until a start has succeeded that [does not
    /// evacuate](Opened::evacuates).
    pub passed: Vec<SectorRange>,
    /// Asked before the cache takes its memory.
    pub memory: MemoryGate,
    /// Where the times come from that a start after this one reads.
    pub wall_clock: WallClock,
}

impl OpenOptions {
    /// Any cache, however old its state; an SSD that takes no writes is refused, and so is another origin.
    pub fn with(settings: Settings) -> Self {
        Self {
            uuid: None,
            generation_min: 0,
            sequence_min: 0,
            settings,
            seed: 1,
            unwritable: UnwritableSsd::Refuse,
            origin: OriginTrust::AsBefore,
            owner: None,
            passed: Vec::new(),
            memory: MemoryGate::default(),
            wall_clock: WallClock::default(),
        }
    }
}

/// Facts that the opening found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Whether the cache had been stopped in order.
    pub clean: bool,
    /// Generation now: to be remembered for the next start.
    pub generation: u64,
    /// Records replayed.
    pub records: u64,
    /// Lines dropped because the origin may be newer, of those that were loaded before the
    /// first request; the status counts the others too.
    pub suspect_lines: u64,
    /// The origin had been changed, or is another one; all clean lines were dropped.
    pub origin_changed: bool,
    /// Clean lines that were read from the origin, to know it by them.
    pub sampled_lines: u32,
    /// Sampled lines that the origin has otherwise.
    pub differing_lines: u32,
    /// The SSD takes no writes. The cache serves its lines, and clients' writes wait until the caller has this
    /// on record and [begins the evacuation](crate::Cache::begin_evacuation).
    pub evacuates: bool,
}
