//! One shape of an array: the parts that serve it.
//!
//! All parts follow from one geometry. When the shape changes, another generation takes over what this one
//! has ([`Generation::next`]).

use std::cell::Cell;
use std::rc::{Rc, Weak};

use voltier_block::{AfterDiscard, BlockDevice, Lba, Limits, SECTOR_BYTES, StripeShape};
use voltier_parity::Code;
use voltier_ring::Handle;

use crate::bitmap::region_states::RegionStates;
use crate::bitmap::write_intent::Bitmap;
use crate::errors::ArrayError;
use crate::format::consistency::Consistency;
use crate::format::journal_place::longest_record_bytes;
use crate::format::reshape_record::ReshapeRecord;
use crate::format::superblock::ArrayRecord;
use crate::geometry::chunks::Geometry;
use crate::geometry::numbers::{Region, Row};
use crate::geometry::shapes::Shapes;
use crate::journal::ledger::Ring;
use crate::journal::replay::Replay;
use crate::journal::transaction::Journal;
use crate::members::event::{Above, MemberEvent};
use crate::members::member::Member;
use crate::members::member_set::MemberSet;
use crate::members::watch::Watch;
use crate::membership::current::Membership;
use crate::stripe::clear::Clearer;
use crate::stripe::foreground::Foreground;
use crate::stripe::ground::Ground;
use crate::stripe::merge::merger::Merger;
use crate::stripe::merge::policy::MergePolicy;
use crate::stripe::read::Reader;
use crate::stripe::stripes::Stripes;
use crate::stripe::write::{StripeWriter, Writer};
use crate::tasks::reshape::Moving;
use crate::tasks::{Inheritance, Tasks};
use crate::update_record::UpdateRecord;

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
    /// None for a bare array.
    pub(crate) record: Option<ArrayRecord>,
    pub(crate) states: Option<RegionStates>,
    /// Set if the array moves to its geometry from one with a member less.
    pub(crate) reshape: Option<ReshapeRecord>,
    pub(crate) watch: Rc<Watch>,
}

impl<D: BlockDevice> Foundation<D> {
    /// The foundation of an array that has this record.
    pub(crate) fn of(
        array: &ArrayRecord,
        members: Vec<Option<D>>,
        states: RegionStates,
        watch: &Rc<Watch>,
    ) -> Self {
        Self {
            geometry: array.geometry.clone(),
            members,
            consistency: array.consistency,
            has_journal: array.journal().is_some(),
            data_start: array.places.data.start.0,
            reshape: array.reshape,
            record: Some(array.clone()),
            states: Some(states),
            watch: watch.clone(),
        }
    }

    /// The foundation of a bare array: chunks from the first sector on, and nothing that is durable.
    pub(crate) fn bare(geometry: Geometry, members: Vec<Option<D>>, watch: &Rc<Watch>) -> Self {
        Self {
            geometry,
            members,
            consistency: Consistency::None,
            has_journal: false,
            data_start: 0,
            reshape: None,
            record: None,
            states: None,
            watch: watch.clone(),
        }
    }

    /// # Errors
    /// When the members do not suit the geometry.
    fn check(&self) -> Result<(), ArrayError> {
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

/// The shape that takes over from a generation, and what comes with it.
pub(crate) struct NextShape<D> {
    pub(crate) geometry: Geometry,
    pub(crate) limits: Limits,
    /// Members that come.
    pub(crate) added: Vec<Member<D>>,
    /// The ring of the one that comes, if it has one already.
    pub(crate) ring: Option<Ring>,
    /// Set if there are two shapes from now on.
    pub(crate) moving: Option<Rc<Moving>>,
}

/// The parts of an array, from the floors below the stripes to the tasks.
pub(crate) struct Generation<D> {
    pub(crate) ground: Ground<D>,
    pub(crate) limits: Limits,
    pub(crate) stripes: Rc<Stripes<D>>,
    pub(crate) reader: Rc<Reader<D>>,
    stripe_writer: Rc<StripeWriter<D>>,
    pub(crate) merger: Rc<Merger<D>>,
    pub(crate) writer: Rc<Writer<D>>,
    pub(crate) clearer: Rc<Clearer<D>>,
    pub(crate) foreground: Rc<Foreground>,
    pub(crate) tasks: Tasks<D>,
    update: Rc<UpdateRecord<D>>,
    /// How many hold the parts when nothing is under way.
    resting: Cell<usize>,
}

/// Parameters of the parts over the ground.
struct Fittings<D> {
    limits: Limits,
    code: Option<Code>,
    moving: Option<Rc<Moving>>,
    merge_policy: MergePolicy,
    inheritance: Inheritance<D>,
}

impl<D: BlockDevice> Generation<D> {
    /// # Errors
    /// When the members do not suit the geometry, or too many are lost.
    pub(crate) fn build(handle: &Handle, foundation: Foundation<D>) -> Result<Self, ArrayError> {
        foundation.check()?;
        let Foundation { geometry, members, consistency, data_start, watch, .. } = foundation;
        let code = match geometry.parity_chunks() {
            0 => None,
            parities => Some(Code::new(geometry.data_chunks(), parities)?),
        };
        let moving = match foundation.reshape.zip(Shapes::of(&geometry)) {
            Some((record, shapes)) => Some(Rc::new(Moving::new(shapes, record)?)),
            None => None,
        };
        // Until all has moved the volume is what it was.
        let volume = moving.as_ref().map_or(&geometry, |moving| &moving.shapes().before);
        let mut limits = limits_of(volume, members.iter().flatten().map(|device| device.limits()));
        // An acknowledged write is in the journal, durably.
        limits.volatile_cache &= !foundation.has_journal;
        let members = members.into_iter().map(Member::new).collect();
        let members = Rc::new(MemberSet::new(handle, &geometry, members, data_start, &watch));
        let membership = Rc::new(Membership::new(foundation.record));
        let states = foundation.states.map(Rc::new);
        let bitmap = Bitmap::new(handle, &geometry, consistency, &members, &membership, states);
        let ground = Ground {
            handle: handle.clone(),
            geometry,
            block_bytes: limits.block_bytes,
            journal: Rc::new(Journal::new(handle, &members, &membership)),
            members,
            membership,
            bitmap: Rc::new(bitmap),
        };
        let fittings = Fittings {
            limits,
            code,
            moving,
            merge_policy: MergePolicy::default(),
            inheritance: Inheritance::default(),
        };
        let generation = Self::over(ground, fittings);
        let Ground { geometry, members, .. } = &generation.ground;
        let allowed = geometry.parity_chunks();
        for group in 0..geometry.group_count() {
            let lost = members.lost_in(group);
            if lost > allowed {
                return Err(ArrayError::TooManyLost { group, lost, allowed });
            }
        }
        Ok(generation)
    }

    fn over(ground: Ground<D>, fittings: Fittings<D>) -> Self {
        let Fittings { limits, code, moving, merge_policy, inheritance } = fittings;
        let two_shapes = moving.as_ref().map(|moving| (**moving).clone());
        let is_reshaping = two_shapes.is_some();
        let stripes = Rc::new(Stripes::new(&ground, two_shapes, code));
        let reader = Rc::new(Reader::new(&ground, &stripes));
        let stripe_writer = Rc::new(StripeWriter::new(&ground, &stripes));
        let merger = Rc::new(Merger::new(&ground, &stripe_writer, merge_policy, is_reshaping));
        let writer = Rc::new(Writer::new(&ground, &stripes, &stripe_writer, &merger));
        let clearer = Rc::new(Clearer::new(&ground, &stripes, &writer));
        let foreground = Rc::new(Foreground::default());
        let tasks = Tasks::new(&ground, &stripes, &foreground, moving, inheritance);
        let update = UpdateRecord::new(&ground, &stripes, &tasks.replacements);
        Self {
            ground,
            limits,
            stripes,
            reader,
            stripe_writer,
            merger,
            writer,
            clearer,
            foreground,
            tasks,
            update,
            resting: Cell::new(0),
        }
    }

    /// The array in its next shape: it takes over all that this one has. Nothing is under way.
    ///
    /// # Errors
    /// When there is no code for the shape.
    pub(crate) fn next(&self, next: NextShape<D>) -> Result<Self, ArrayError> {
        let NextShape { geometry, limits, added, ring, moving } = next;
        let code = Code::new(geometry.data_chunks(), geometry.parity_chunks())?;
        let Ground { handle, membership, .. } = self.ground.clone();
        let members = Rc::new(self.ground.members.moved(&geometry, added));
        let (consistency, states) =
            (self.ground.bitmap.consistency(), self.ground.bitmap.hand_over());
        let bitmap = Bitmap::new(&handle, &geometry, consistency, &members, &membership, states);
        let journal = Rc::new(self.ground.journal.grown(&members, ring));
        let bitmap = Rc::new(bitmap);
        let ground = Ground {
            handle,
            geometry,
            block_bytes: limits.block_bytes,
            members,
            membership,
            bitmap,
            journal,
        };
        let fittings = Fittings {
            limits,
            code: Some(code),
            moving,
            merge_policy: self.merger.policy(),
            inheritance: self.tasks.hand_over(),
        };
        Ok(Self::over(ground, fittings))
    }

    /// Has the parts below tell this generation what it has to do.
    pub(crate) fn install(self) -> Rc<Self> {
        let generation = Rc::new(self);
        generation.resting.set(generation.holders());
        let membership = generation.ground.membership.clone();
        let reports = Reports { generation: Rc::downgrade(&generation), membership };
        generation.ground.members.report_to(Box::new(reports));
        generation.update.install();
        generation
    }

    /// Whether nothing holds a part but other parts. A request, and a task that does not rest, hold the part
    /// that works for them.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.resting.get() == self.holders()
    }

    /// How many hold the parts, in all.
    fn holders(&self) -> usize {
        let Ground { members, bitmap, journal, .. } = &self.ground;
        Rc::strong_count(members)
            + Rc::strong_count(bitmap)
            + Rc::strong_count(journal)
            + journal.holders()
            + Rc::strong_count(&self.stripes)
            + Rc::strong_count(&self.reader)
            + Rc::strong_count(&self.stripe_writer)
            + Rc::strong_count(&self.merger)
            + Rc::strong_count(&self.writer)
            + Rc::strong_count(&self.clearer)
            + Rc::strong_count(&self.update)
            + self.tasks.holders()
    }

    /// The state of a capacity expansion, if there is one.
    pub(crate) fn moving(&self) -> Option<&Rc<Moving>> {
        self.tasks.reshape.as_ref().map(|reshape| reshape.moving())
    }

    /// A start of the journal.
    pub(crate) fn replay(&self) -> Rc<Replay<D>> {
        let redo_from = self.moving().map_or(0, |it| it.record().redo_from);
        let Ground { handle, geometry, members, membership, journal, .. } = &self.ground;
        let placement = journal.placement();
        Replay::new(handle, geometry, members, membership, placement, redo_from)
    }
}

/// The reports of members to the generation in service, as long as it is there.
struct Reports<D> {
    generation: Weak<Generation<D>>,
    membership: Rc<Membership>,
}

impl<D: BlockDevice> Above for Reports<D> {
    fn on(&self, event: MemberEvent) {
        match event {
            MemberEvent::Lost => {
                self.membership.note_change();
                if let Some(generation) = self.generation.upgrade() {
                    generation.ground.journal.notify();
                }
            }
            MemberEvent::GivenUp => _ = self.membership.begin_update(),
        }
    }

    fn is_consistent(&self, group: usize) -> bool {
        let Some(generation) = self.generation.upgrade() else { return false };
        let Ground { geometry, bitmap, .. } = &generation.ground;
        let rows = Row(0)..geometry.row_at(Lba(geometry.member_sectors()));
        bitmap.next_to_resync(Region(0)).is_none()
            && !generation.stripes.has_half_written(group, rows)
    }

    fn is_load_uneven(&self) -> bool {
        self.generation.upgrade().is_some_and(|generation| generation.tasks.rebuild.is_running())
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
