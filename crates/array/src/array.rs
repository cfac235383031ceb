//! An array in service.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, Durability, IoError, IoResult, Lba, Limits, Payload,
    SECTOR_BYTES, SectorRange, StripeShape,
};
use voltier_parity::{Code, CodeError, Decoder};
use voltier_ring::Handle;

use crate::background::Background;
use crate::consistency::Consistency;
use crate::counts::{Counters, Counts};
use crate::durable::Durable;
use crate::errors::MetadataError;
use crate::generations::Generations;
use crate::geometry::{Geometry, Stripe};
use crate::grow::GrowError;
use crate::health::Watch;
use crate::journal::home::{JournalDevice, JournalError};
use crate::journal::{Journal, JournalOptions, JournalStart, ReplayReport, longest_record_bytes};
use crate::level::GeometryError;
use crate::locks::StripeLocks;
use crate::losses::{Losses, RecordLosses};
use crate::members::{Clear, Member};
use crate::merge::{MergePolicy, Streams};
use crate::pace::Foreground;
use crate::replace::ReplaceError;
use crate::reshape::shapes::Shapes;
use crate::reshape::{Moving, ReshapeRecord};

/// Longest transfer, in bytes, when stripes are shorter: bounds the tasks of one request.
const TRANSFER_BYTES: u64 = 4 << 20;
/// Plans of reconstruction that are kept: enough for every rotation of a few losses.
const DECODERS_MAX: usize = 256;

/// Chunks in a stripe, slots that cannot be used, and those of them that are wanted.
pub(crate) type DecoderKey = (usize, Vec<usize>, Vec<usize>);

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
        /// Its size.
        sectors: u64,
        /// What is used of each member.
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
        /// What it has.
        sectors: u64,
        /// What it needs.
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
    /// The array failed while it was started or stopped.
    #[error("the array has failed ({0}): look at its members, then assemble it again")]
    Io(IoError),
}

/// What an array stands on, beside its members.
pub(crate) struct Foundation {
    pub(crate) consistency: Consistency,
    /// Whether the journal will be begun before anything is written.
    pub(crate) has_journal: bool,
    /// The first sector of the chunks on a member's device.
    pub(crate) data_start: u64,
    /// None for a bare array.
    pub(crate) durable: Option<Rc<Durable>>,
    /// Set if it moves to its geometry from one with a member less.
    pub(crate) reshape: Option<ReshapeRecord>,
}

pub(crate) struct Inner<D> {
    pub(crate) handle: Handle,
    pub(crate) geometry: Geometry,
    pub(crate) members: Vec<Member<D>>,
    pub(crate) locks: StripeLocks,
    pub(crate) counters: Counters,
    pub(crate) streams: Streams,
    pub(crate) consistency: Consistency,
    /// The first sector of the chunks on a member's device.
    pub(crate) data_start: u64,
    /// None for a bare array.
    pub(crate) durable: Option<Rc<Durable>>,
    pub(crate) limits: Limits,
    pub(crate) foreground: Foreground,
    pub(crate) background: Background<D>,
    pub(crate) losses: Losses,
    pub(crate) watch: Watch,
    /// None without redundancy, or when none was asked for.
    pub(crate) journal: OnceCell<Journal>,
    /// The device that takes the journal's records; none while they are on the members.
    pub(crate) journal_device: RefCell<Option<JournalDevice<D>>>,
    /// Slots that failed a write and could not be given up: nothing is computed from what they hold.
    pub(crate) half_written: RefCell<BTreeSet<(Stripe, usize)>>,
    /// Whether another one has taken over: this one has no members any more.
    pub(crate) is_superseded: Cell<bool>,
    /// Set while stripes have two shapes: `geometry` is the one that comes.
    pub(crate) moving: Option<Rc<Moving>>,
    /// None without redundancy.
    pub(crate) code: Option<Code>,
    pub(crate) decoders: RefCell<BTreeMap<DecoderKey, Rc<Decoder>>>,
}

/// An array of members, a block device itself. Clones are the same array.
///
/// # Consistency
///
/// Data and parity of a stripe are written together, and a power cut between them leaves parity that
/// does not match. If a member is lost before the parity is made anew, that may damage data of the stripe
/// that nobody was writing (the *write hole*). [`Consistency`] says what is done about it: with a journal,
/// what a stripe's members will be written is in it first, so a crash leaves all of it or nothing. For a
/// bare array ([`Array::new`]) nothing is done.
pub struct Array<D>(pub(crate) Rc<Generations<D>>);

impl<D> Clone for Array<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: BlockDevice> Array<D> {
    /// A bare array, without durable state: chunks from the first sector on, over members in the order of
    /// their numbers, `None` for each that is lost. What they hold must be consistent: members of zeroes
    /// are.
    ///
    /// # Errors
    /// When the members do not suit the geometry, or too many are lost.
    pub fn new(
        handle: &Handle,
        geometry: Geometry,
        members: Vec<Option<D>>,
    ) -> Result<Self, ArrayError> {
        let foundation = Foundation {
            consistency: Consistency::None,
            has_journal: false,
            data_start: 0,
            durable: None,
            reshape: None,
        };
        Self::build(handle, geometry, members, foundation)
    }

    /// An array with a journal on its members and no other durable state; one without redundancy needs none
    /// and gets none.
    ///
    /// What a member holds at its first sectors belongs to the array, its ring is elsewhere on the same
    /// device. `record` is told of lost members, those not given included, before anything happens
    /// that they miss.
    ///
    /// # Errors
    /// When members or places do not suit the geometry, or too many are lost, also on the way.
    pub async fn with_journal(
        handle: &Handle,
        geometry: Geometry,
        members: Vec<Option<D>>,
        options: JournalOptions,
        start: JournalStart,
        record: RecordLosses,
    ) -> Result<(Self, ReplayReport), ArrayError> {
        let has_journal = geometry.parity_chunks() > 0;
        let consistency = if has_journal { Consistency::Journal } else { Consistency::None };
        let (data_start, durable, reshape) = (0, None, None);
        let foundation = Foundation { consistency, has_journal, data_start, durable, reshape };
        let array = Self::build(handle, geometry, members, foundation)?;
        array.0.losses.set_record(record);
        if !has_journal {
            return Ok((array, ReplayReport::default()));
        }
        let report = array.0.begin_journal(options, start).await?;
        Ok((array, report))
    }

    /// Brings what was acknowledged in place on all members and empties the journal: the next start has
    /// nothing to redo. No request may be under way. Without a journal, a flush.
    ///
    /// # Errors
    /// When a member does not take it that cannot be lost.
    pub async fn settle(&self) -> IoResult<()> {
        let inner = self.0.enter().await;
        if inner.journal.get().is_some() {
            inner.settle_journal().await
        } else {
            inner.flush_all().await
        }
    }

    pub(crate) fn build(
        handle: &Handle,
        geometry: Geometry,
        members: Vec<Option<D>>,
        foundation: Foundation,
    ) -> Result<Self, ArrayError> {
        let Foundation { consistency, has_journal, data_start, durable, reshape } = foundation;
        let (given, expected) = (members.len(), geometry.member_count());
        if given != expected {
            return Err(ArrayError::MemberCount { given, expected });
        }
        for (member, device) in members.iter().enumerate() {
            let Some(device) = device else { continue };
            let sectors = device.limits().sectors;
            let needed = data_start + geometry.member_sectors();
            if sectors < needed {
                return Err(ArrayError::TooSmall { member, sectors, needed });
            }
            let bytes = device.limits().max_transfer_bytes;
            let longest = if has_journal {
                longest_record_bytes(&geometry)
            } else {
                geometry.chunk_sectors() * SECTOR_BYTES
            };
            if u64::from(bytes) < longest {
                return Err(ArrayError::Transfer { member, bytes });
            }
        }
        let code = match geometry.parity_chunks() {
            0 => None,
            rows => Some(Code::new(geometry.data_chunks(), rows)?),
        };
        let moving = match reshape.zip(Shapes::of(&geometry)) {
            Some((record, shapes)) => Some(Rc::new(Moving::new(shapes, record)?)),
            None => None,
        };
        // Until all has moved the volume is what it was.
        let volume = moving.as_ref().map_or(&geometry, |moving| &moving.shapes.before);
        let mut limits = limits_of(volume, members.iter().flatten().map(|device| device.limits()));
        // What is acknowledged is in the journal, durably.
        limits.volatile_cache &= !has_journal;
        let inner = Inner {
            handle: handle.clone(),
            members: members.into_iter().map(Member::new).collect(),
            locks: StripeLocks::default(),
            counters: Counters::default(),
            streams: Streams::new(MergePolicy::default()),
            consistency,
            data_start,
            durable,
            losses: Losses::default(),
            watch: Watch::default(),
            journal: OnceCell::new(),
            journal_device: RefCell::default(),
            half_written: RefCell::default(),
            is_superseded: Cell::new(false),
            limits,
            foreground: Foreground::default(),
            background: Background::new(&geometry),
            moving,
            code,
            decoders: RefCell::default(),
            geometry,
        };
        let allowed = inner.geometry.parity_chunks();
        for group in 0..inner.geometry.group_count() {
            let lost = inner.lost_in(group);
            if lost > allowed {
                return Err(ArrayError::TooManyLost { group, lost, allowed });
            }
        }
        Ok(Self(Generations::new(inner)))
    }

    /// Where everything is.
    pub fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    /// A snapshot of the counters.
    pub fn counts(&self) -> Counts {
        self.0.counters.get()
    }

    /// Whether a member is in service: not lost, and not being rebuilt.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn is_online(&self, member: usize) -> bool {
        self.0.members[member].is_online()
    }

    /// Takes a member out of service; requests go on without it. The other members know durably
    /// before the next change is acknowledged.
    ///
    /// # Errors
    /// When the level cannot lose one more of its group; nothing is changed then.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn fail(&self, member: usize) -> Result<(), ArrayError> {
        let group = self.0.geometry.group_of_member(member);
        let (lost, allowed) = (self.0.lost_in(group), self.0.geometry.parity_chunks());
        if self.is_online(member) && lost == allowed {
            return Err(ArrayError::TooManyLost { group, lost: lost + 1, allowed });
        }
        self.0.lose(member);
        self.0.begin_to_store();
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

impl<D> Inner<D> {
    /// The parity code; asked only where there is redundancy.
    pub(crate) fn code(&self) -> &Code {
        self.code.as_ref().expect("a level with parity has a code")
    }

    /// A plan to compute these unusable slots of a stripe, ascending, from the others.
    pub(crate) fn decoder(&self, stripe: Stripe, unusable: &[usize]) -> Rc<Decoder> {
        self.decoder_of(stripe, unusable, unusable)
    }

    /// A plan to compute some of these unusable slots.
    pub(crate) fn decoder_of(
        &self,
        stripe: Stripe,
        unusable: &[usize],
        wanted: &[usize],
    ) -> Rc<Decoder> {
        let mut decoders = self.decoders.borrow_mut();
        let key = (self.shape(stripe).width(), unusable.to_vec(), wanted.to_vec());
        if let Some(decoder) = decoders.get(&key) {
            return decoder.clone();
        }
        let plan = self.code_of(stripe).decoder(unusable, wanted);
        let decoder = Rc::new(plan.expect("no more slots are unusable than there are parities"));
        if decoders.len() == DECODERS_MAX {
            decoders.clear();
        }
        decoders.insert(key, decoder.clone());
        decoder
    }

    fn checked(&self, range: SectorRange) -> IoResult<SectorRange> {
        if self.limits.accepts(range) { Ok(range) } else { Err(IoError::OutOfRange) }
    }

    fn checked_change(&self, range: SectorRange) -> IoResult<SectorRange> {
        if self.durable.as_ref().is_some_and(|it| it.is_closed()) {
            return Err(IoError::Gone);
        }
        if self.limits.read_only { Err(IoError::ReadOnly) } else { self.checked(range) }
    }
}

/// The range of a transfer, if it is one of whole sectors.
fn range_of(at: Lba, bytes: usize) -> IoResult<SectorRange> {
    let whole = bytes.is_multiple_of(SECTOR_BYTES as usize);
    whole.then(|| SectorRange::new(at, bytes as u64 / SECTOR_BYTES)).ok_or(IoError::OutOfRange)
}

impl<D: BlockDevice> BlockDevice for Array<D> {
    fn limits(&self) -> &Limits {
        &self.0.limits
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        let inner = self.0.enter().await;
        let _busy = inner.foreground.enter();
        let range = inner.checked(range_of(at, into.len())?)?;
        inner.counters.add(|counts| counts.reads += 1);
        match &inner.moving {
            None => inner.read(range, into).await,
            Some(moving) => inner.read_beside(moving, range, into).await,
        }
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let inner = self.0.enter().await;
        let _busy = inner.foreground.enter();
        let range = inner.checked_change(range_of(at, data.len())?)?;
        inner.counters.add(|counts| counts.writes += 1);
        match &inner.moving {
            None => inner.write(range, data, durability).await?,
            Some(moving) => inner.write_beside(moving, range, data, durability).await?,
        }
        inner.losses_recorded().await
    }

    async fn flush(&self) -> IoResult<()> {
        let inner = self.0.enter().await;
        let Some(journal) = inner.journal.get() else { return inner.flush_all().await };
        // Every write that is complete is in the rings, durably, until it is durable in place.
        journal.check()?;
        inner.losses_recorded().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        let inner = self.0.enter().await;
        let _busy = inner.foreground.enter();
        let range = inner.checked_change(range)?;
        if inner.limits.after_discard == AfterDiscard::Unchanged {
            return Ok(());
        }
        if inner.moving.is_none() {
            inner.clear(range, Clear::Discard).await?;
        }
        inner.losses_recorded().await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        let inner = self.0.enter().await;
        let _busy = inner.foreground.enter();
        let range = inner.checked_change(range)?;
        match &inner.moving {
            None => inner.clear(range, Clear::Zeroes(durability)).await?,
            Some(moving) => inner.zero_beside(moving, range, durability).await?,
        }
        inner.losses_recorded().await
    }
}
