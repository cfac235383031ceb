//! An array in service.

use std::cell::OnceCell;
use std::rc::{Rc, Weak};

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, Durability, IoError, IoResult, Lba, Limits, Payload,
    SECTOR_BYTES, SectorRange, StripeShape,
};
use voltier_parity::Code;
use voltier_ring::Handle;

use crate::bitmap::marks::Marks;
use crate::bitmap::write_intent::Bitmap;
use crate::errors::ArrayError;
use crate::errors::grow::GrowError;
use crate::format::consistency::Consistency;
use crate::format::journal_place::longest_record_bytes;
use crate::format::reshape_record::ReshapeRecord;
use crate::format::superblock::ArrayRecord;
use crate::generations::Generations;
use crate::geometry::chunks::Geometry;
use crate::geometry::shapes::Shapes;
use crate::journal::replay::Replay;
use crate::journal::transaction::Journal;
use crate::members::clear::Clear;
use crate::members::counts::Counts;
use crate::members::event::{Above, MemberEvent};
use crate::members::health::{HealthNews, HealthPolicy, MemberHealth};
use crate::members::member::Member;
use crate::members::member_set::MemberSet;
use crate::membership::current::Membership;
use crate::stripe::clear::Clearer;
use crate::stripe::foreground::Foreground;
use crate::stripe::mend::Mender;
use crate::stripe::merge::merger::Merger;
use crate::stripe::merge::policy::{MergeMode, MergePolicy};
use crate::stripe::read::Reader;
use crate::stripe::stripe_writer::StripeWriter;
use crate::stripe::stripes::Stripes;
use crate::stripe::write::Writer;
use crate::tasks::background::{Background, BackgroundTask};
use crate::tasks::reshape::Moving;
use crate::tasks::resync::Resync;

/// Longest transfer, in bytes, when stripes are shorter: bounds the tasks of one request.
const TRANSFER_BYTES: u64 = 4 << 20;
/// What an array stands on, beside its members.
pub(crate) struct Foundation {
    pub(crate) consistency: Consistency,
    /// Whether the journal will be begun before anything is written.
    pub(crate) has_journal: bool,
    /// The first sector of the chunks on a member's device.
    pub(crate) data_start: u64,
    /// None for a bare array.
    pub(crate) record: Option<ArrayRecord>,
    pub(crate) marks: Option<Marks>,
    /// Set if it moves to its geometry from one with a member less.
    pub(crate) reshape: Option<ReshapeRecord>,
}

pub(crate) struct Inner<D> {
    pub(crate) handle: Handle,
    pub(crate) geometry: Geometry,
    pub(crate) members: Rc<MemberSet<D>>,
    pub(crate) membership: Rc<Membership>,
    pub(crate) bitmap: Rc<Bitmap<D>>,
    pub(crate) stripes: Rc<Stripes<D>>,
    pub(crate) mender: Mender<D>,
    pub(crate) reader: Rc<Reader<D>>,
    pub(crate) stripe_writer: Rc<StripeWriter<D>>,
    pub(crate) merger: Rc<Merger<D>>,
    pub(crate) writer: Rc<Writer<D>>,
    pub(crate) clearer: Rc<Clearer<D>>,
    pub(crate) limits: Limits,
    pub(crate) foreground: Foreground,
    pub(crate) background: Background<D>,
    pub(crate) journal: Rc<Journal<D>>,
    pub(crate) resync: Resync,
    /// How many hold each part when nothing is under way.
    pub(crate) resting: OnceCell<[usize; 11]>,
    /// Set while stripes have two shapes: `geometry` is the one that comes.
    pub(crate) moving: Option<Rc<Moving>>,
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
            record: None,
            marks: None,
            reshape: None,
        };
        Self::build(handle, geometry, members, foundation)
    }

    /// Brings what was acknowledged in place on all members and empties the journal: the next start has
    /// nothing to redo. No request may be under way. Without a journal, a flush.
    ///
    /// # Errors
    /// When a member does not take it that cannot be lost.
    pub async fn settle(&self) -> IoResult<()> {
        let inner = self.0.enter().await;
        if inner.journal.is_in_service() {
            inner.journal.empty().await
        } else {
            inner.membership.flush(&inner.members).await
        }
    }

    pub(crate) fn build(
        handle: &Handle,
        geometry: Geometry,
        members: Vec<Option<D>>,
        foundation: Foundation,
    ) -> Result<Self, ArrayError> {
        let Foundation { consistency, has_journal, data_start, record, marks, reshape } =
            foundation;
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
        let volume = moving.as_ref().map_or(&geometry, |moving| &moving.shapes().before);
        let mut limits = limits_of(volume, members.iter().flatten().map(|device| device.limits()));
        // What is acknowledged is in the journal, durably.
        limits.volatile_cache &= !has_journal;
        let members = members.into_iter().map(Member::new).collect();
        let members = Rc::new(MemberSet::new(handle, &geometry, members, data_start));
        let membership = Rc::new(Membership::new(record));
        let marks = marks.map(Rc::new);
        let bitmap = Bitmap::new(handle, &geometry, consistency, &members, &membership, marks);
        let inner = Inner::over(Floor {
            handle: handle.clone(),
            journal: Rc::new(Journal::new(handle, &members, &membership)),
            members,
            membership,
            bitmap: Rc::new(bitmap),
            merge_policy: MergePolicy::default(),
            background: Background::new(),
            limits,
            moving,
            code,
            geometry,
        });
        let allowed = inner.geometry.parity_chunks();
        for group in 0..inner.geometry.group_count() {
            let lost = inner.members.lost_in(group);
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
        self.0.members.counters().get()
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
        let (lost, allowed) = (self.0.members.lost_in(group), self.0.geometry.parity_chunks());
        if self.is_online(member) && lost == allowed {
            return Err(ArrayError::TooManyLost { group, lost: lost + 1, allowed });
        }
        self.0.members.lose(member);
        self.0.membership.begin_update();
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
    fn checked(&self, range: SectorRange) -> IoResult<SectorRange> {
        if self.limits.accepts(range) { Ok(range) } else { Err(IoError::OutOfRange) }
    }

    fn checked_change(&self, range: SectorRange) -> IoResult<SectorRange> {
        if self.membership.durable().is_some_and(|it| it.is_closed()) {
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
        inner.members.counters().add(|counts| counts.reads += 1);
        match &inner.moving {
            None => inner.reader.read(range, into).await,
            Some(moving) => inner.read_beside(moving, range, into).await,
        }
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let inner = self.0.enter().await;
        let _busy = inner.foreground.enter();
        let range = inner.checked_change(range_of(at, data.len())?)?;
        inner.members.counters().add(|counts| counts.writes += 1);
        match &inner.moving {
            None => inner.writer.write(range, data, durability).await?,
            Some(moving) => inner.write_beside(moving, range, data, durability).await?,
        }
        inner.membership.barrier().await
    }

    async fn flush(&self) -> IoResult<()> {
        let inner = self.0.enter().await;
        if !inner.journal.is_in_service() {
            return inner.membership.flush(&inner.members).await;
        }
        // Every write that is complete is in the rings, durably, until it is durable in place.
        inner.journal.check()?;
        inner.membership.barrier().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        let inner = self.0.enter().await;
        let _busy = inner.foreground.enter();
        let range = inner.checked_change(range)?;
        if inner.limits.after_discard == AfterDiscard::Unchanged {
            return Ok(());
        }
        if inner.moving.is_none() {
            inner.clearer.clear(range, Clear::Discard).await?;
        }
        inner.membership.barrier().await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        let inner = self.0.enter().await;
        let _busy = inner.foreground.enter();
        let range = inner.checked_change(range)?;
        match &inner.moving {
            None => inner.clearer.clear(range, Clear::Zeroes(durability)).await?,
            Some(moving) => inner.zero_beside(moving, range, durability).await?,
        }
        inner.membership.barrier().await
    }
}

impl<D: BlockDevice> Array<D> {
    /// Says when a member has done too badly, and what is done then.
    ///
    /// # Panics
    /// If a window is 0.
    pub fn set_health_policy(&self, policy: HealthPolicy) {
        self.0.members.set_health_policy(policy);
    }

    /// When a member has done too badly.
    pub fn health_policy(&self) -> HealthPolicy {
        self.0.members.health().policy()
    }

    /// How well a member does.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn health(&self, member: usize) -> MemberHealth {
        self.0.members.health_of(member)
    }

    /// What happened to members since this was last asked, the oldest first.
    pub fn take_health_news(&self) -> Vec<HealthNews> {
        self.0.members.health().take_news()
    }

    /// Whom to tell when members came, went, or did badly. It is called in the middle of things: it may
    /// not use the array.
    pub fn set_listener(&self, listener: impl Fn() + 'static) {
        self.0.members.health().set_listener(listener);
    }
}

/// What members report to the array, as long as it is there.
struct Reports<D> {
    array: Weak<Inner<D>>,
    membership: Rc<Membership>,
}

impl<D: BlockDevice> Above for Reports<D> {
    fn on(&self, event: MemberEvent) {
        match event {
            MemberEvent::Lost => {
                self.membership.note_change();
                if let Some(array) = self.array.upgrade() {
                    array.journal.notify();
                }
            }
            MemberEvent::GivenUp => _ = self.membership.begin_update(),
        }
    }

    fn is_consistent(&self, group: usize) -> bool {
        let Some(array) = self.array.upgrade() else { return false };
        let rows = 0..array.geometry.member_sectors() / array.geometry.chunk_sectors();
        array.bitmap.next_in_doubt(0).is_none() && !array.stripes.has_half_written(group, rows)
    }

    fn is_load_uneven(&self) -> bool {
        self.array.upgrade().is_some_and(|array| array.is_at_work(BackgroundTask::Rebuild))
    }
}

/// What an array is built over: the floors below its stripes.
pub(crate) struct Floor<D> {
    pub(crate) handle: Handle,
    pub(crate) geometry: Geometry,
    pub(crate) members: Rc<MemberSet<D>>,
    pub(crate) membership: Rc<Membership>,
    pub(crate) bitmap: Rc<Bitmap<D>>,
    pub(crate) journal: Rc<Journal<D>>,
    pub(crate) merge_policy: MergePolicy,
    pub(crate) background: Background<D>,
    pub(crate) limits: Limits,
    pub(crate) moving: Option<Rc<Moving>>,
    pub(crate) code: Option<Code>,
}

impl<D: BlockDevice> Inner<D> {
    /// An array over these floors.
    pub(crate) fn over(floor: Floor<D>) -> Self {
        let Floor { handle, geometry, members, membership, bitmap, journal, .. } = floor;
        let two_shapes = floor.moving.as_ref().map(|moving| (**moving).clone());
        let is_reshaping = two_shapes.is_some();
        let stripes = Stripes::new(&handle, &geometry, &members, &bitmap, two_shapes, floor.code);
        let stripes = Rc::new(stripes);
        let reader = Reader::new(&handle, &geometry, &members, &bitmap, &stripes);
        let writer = StripeWriter::new(&handle, &geometry, &bitmap, &members, &journal, &stripes);
        let stripe_writer = Rc::new(writer);
        let policy = floor.merge_policy;
        let merger =
            Merger::new(&handle, &geometry, &members, &stripe_writer, policy, is_reshaping);
        let merger = Rc::new(merger);
        let below = (&members, &bitmap);
        let above = (&stripe_writer, &merger);
        let writer = Rc::new(Writer::new(&handle, &geometry, below, &journal, &stripes, above));
        let clearer = Clearer::new(&handle, &geometry, below, &journal, &stripes, &writer);
        Self {
            mender: Mender::new(&geometry, &members, &bitmap, &stripes),
            reader: Rc::new(reader),
            clearer: Rc::new(clearer),
            limits: floor.limits,
            background: floor.background,
            moving: floor.moving,
            foreground: Foreground::default(),
            resync: Resync::default(),
            resting: OnceCell::new(),
            handle,
            geometry,
            members,
            membership,
            bitmap,
            journal,
            stripes,
            stripe_writer,
            merger,
            writer,
        }
    }

    /// Has the parts below tell this array what it has to do.
    pub(crate) fn install(self) -> Rc<Self> {
        let array = Rc::new(self);
        let _ = array.resting.set(array.holders());
        let membership = array.membership.clone();
        let reports = Reports { array: Rc::downgrade(&array), membership };
        array.members.report_to(Box::new(reports));
        let own = Rc::downgrade(&array);
        array.membership.set_update(Rc::new(move || {
            let array = own.upgrade();
            array.as_ref().inspect(|array| array.begin_update()).is_some()
        }));
        array
    }

    /// Whether nothing holds the array, or a part of it, but itself.
    pub(crate) fn is_at_rest(self: &Rc<Self>) -> bool {
        Rc::strong_count(self) == 1 && self.resting.get() == Some(&self.holders())
    }

    /// How many hold each part.
    fn holders(&self) -> [usize; 11] {
        let [placement, writer] = self.journal.holders();
        [
            Rc::strong_count(&self.members),
            Rc::strong_count(&self.bitmap),
            placement,
            writer,
            Rc::strong_count(&self.journal),
            Rc::strong_count(&self.stripes),
            Rc::strong_count(&self.reader),
            Rc::strong_count(&self.stripe_writer),
            Rc::strong_count(&self.merger),
            Rc::strong_count(&self.writer),
            Rc::strong_count(&self.clearer),
        ]
    }

    /// A start of the journal.
    pub(crate) fn replay(&self) -> Rc<Replay<D>> {
        let settled_below = self.moving.as_ref().map_or(0, |it| it.record().settled_below);
        let (members, membership) = (&self.members, &self.membership);
        let placement = self.journal.placement();
        Replay::new(&self.handle, &self.geometry, members, membership, placement, settled_below)
    }
}

impl<D: BlockDevice> Array<D> {
    /// Puts the journal on a device of its own, whatever it holds, or with `None` back on the members, while
    /// the array serves. `uuid` is a new one, for the device. The device before is a plain one then.
    ///
    /// # Errors
    /// When the device does not suit or fails: the array serves on, with the journal where it was or,
    /// if the device failed in the last moment, on the members.
    pub async fn set_journal(&self, device: Option<(D, [u8; 16])>) -> Result<(), ArrayError> {
        // The shape stays as it is meanwhile: its rings would be those of another array.
        let inner = self.0.enter().await;
        if inner.moving.is_some() {
            return Err(GrowError::Reshaping.into());
        }
        inner.journal.move_to(device, inner.limits.block_bytes).await
    }
}

impl<D: BlockDevice> Array<D> {
    /// How small writes are merged from now on.
    pub fn set_merge_policy(&self, policy: MergePolicy) {
        let has_parity = self.0.geometry.level().has_parity();
        let mode = if has_parity { policy.mode } else { MergeMode::Off };
        self.0.merger.set_policy(MergePolicy { mode, ..policy });
    }

    /// How small writes are merged; never, by levels that have nothing to gain.
    pub fn merge_policy(&self) -> MergePolicy {
        self.0.merger.policy()
    }
}
