//! One shape of an array: the parts that serve it.
//!
//! All parts follow from one geometry. When the shape changes, another generation takes over what this one
//! has ([`Generation::next`]).

use std::cell::Cell;
use std::rc::{Rc, Weak};

use voltier_block::{DriveControl, IoError, IoResult, Lba, Limits, Nanos};
use voltier_parity::Code;
use voltier_ring::Handle;

use crate::bitmap::write_intent::Bitmap;
use crate::canary::{self, Canary};
use crate::errors::ArrayError;
use crate::errors::grow::GrowError;
use crate::errors::journal::JournalError;
use crate::errors::replace::ReplaceError;
use crate::format::checksum_page::SUMMED_BYTES;
use crate::format::journal_place::{JournalOptions, longest_record_bytes};
use crate::format::region_map::MapBlock;
use crate::format::superblock::Usage;
use crate::foundation::{Foundation, limits_of};
use crate::geometry::chunks::Geometry;
use crate::geometry::numbers::{GroupIndex, Region, Row};
use crate::geometry::shapes::Shapes;
use crate::journal::replay::{JournalStart, Replay, ReplayReport};
use crate::journal::ring::Ring;
use crate::journal::transaction::Journal;
use crate::members::checksums::devices::CheckedDevices;
use crate::members::checksums::registry::Checksums;
use crate::members::event::{Above, MemberEvent};
use crate::members::member::Member;
use crate::members::member_set::MemberSet;
use crate::membership::current::Membership;
use crate::stripe::clear::Clearer;
use crate::stripe::foreground::Foreground;
use crate::stripe::ground::Ground;
use crate::stripe::merge::merger::Merger;
use crate::stripe::merge::policy::MergePolicy;
use crate::stripe::read::Reader;
use crate::stripe::stripe_writer::StripeWriter;
use crate::stripe::stripes::Stripes;
use crate::stripe::write::Writer;
use crate::tasks::background::REST_LOOK_NS;
use crate::tasks::reshape::Moving;
use crate::tasks::{Inheritance, Tasks};
use crate::update_record::UpdateRecord;

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

/// The parts put together.
impl<D: DriveControl> Generation<D> {
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
        limits.read_only |= foundation.is_read_only;
        // An acknowledged write is in the journal, durably.
        limits.volatile_cache &= !foundation.has_journal;
        let checksums = foundation.checksums.zip(foundation.record.as_ref()).map(|it| {
            limits.block_bytes = limits.block_bytes.max(SUMMED_BYTES as u32);
            Checksums::new(handle, it.1.uuid, it.1.event, it.0)
        });
        let devices = CheckedDevices::new(checksums);
        let members = members.into_iter().map(Member::new).collect();
        let members =
            Rc::new(MemberSet::new(handle, &geometry, members, data_start, &watch, devices));
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
        for group in geometry.groups() {
            let lost = members.lost_in(group);
            if lost > allowed {
                return Err(ArrayError::TooManyLost { group: group.0, lost, allowed });
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
        let tasks = Tasks::new(&ground, &stripes, &stripe_writer, &foreground, moving, inheritance);
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

    /// The same array with nothing in memory of its stripes. Nothing is under way.
    ///
    /// # Errors
    /// When there is no code for the shape.
    pub(crate) fn renewed(&self) -> Result<Self, ArrayError> {
        let (geometry, limits) = (self.ground.geometry.clone(), self.limits.clone());
        self.next(NextShape { geometry, limits, added: Vec::new(), ring: None, moving: None })
    }

    /// The array in the shape that comes, when all has moved to it. Nothing is under way.
    pub(crate) fn in_one_shape(&self) -> Result<Self, ArrayError> {
        let Ground { geometry, members, journal, .. } = &self.ground;
        let devices: Vec<Rc<D>> =
            members.iter().filter_map(|member| member.device().ok()).collect();
        let mut limits = limits_of(geometry, devices.iter().map(|device| device.limits()));
        limits.volatile_cache &= !journal.is_in_service();
        limits.block_bytes = limits.block_bytes.max(self.limits.block_bytes);
        let (geometry, added) = (geometry.clone(), Vec::new());
        self.next(NextShape { limits, geometry, added, ring: None, moving: None })
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
}

/// From the members to an array in use, and back.
impl<D: DriveControl> Generation<D> {
    /// Takes a new array into use, when all members have its map.
    ///
    /// # Errors
    /// When a device fails: a new array without one of its members is not what was asked for.
    pub(crate) async fn take_into_use(
        &self,
        options: Option<JournalOptions>,
    ) -> Result<(), ArrayError> {
        let Ground { members, membership, journal, .. } = &self.ground;
        let Some(durable) = membership.durable() else { return Ok(()) };
        if let Some(options) = options {
            self.journal_start().run(options, JournalStart::Create).await?;
        }
        durable.set_usage(Usage::InUse);
        membership.recorded().await.map_err(ArrayError::Io)?;
        let is_journal_lost =
            journal.placement().record_now().is_some() && !journal.placement().is_on_device();
        if is_journal_lost {
            return Err(JournalError::Device(IoError::Gone).into());
        }
        if members.is_degraded() { Err(ArrayError::Io(IoError::Gone)) } else { Ok(()) }
    }

    /// Takes an array into use. Makes the map the same on all members, and says on all that the array is in
    /// use, and who is not there. Then brings the members to what the journal says.
    ///
    /// # Errors
    /// When members that cannot be lost do not take that.
    pub(crate) async fn start(
        &self,
        unequal: &[MapBlock],
        options: Option<JournalOptions>,
    ) -> Result<ReplayReport, ArrayError> {
        let Ground { membership, bitmap, .. } = &self.ground;
        let Some(durable) = membership.durable() else { return Ok(ReplayReport::default()) };
        // A dirty bit that only some members have would be gone with them, and with it what the region
        // needs.
        bitmap.write_blocks(unequal).await.map_err(ArrayError::Io)?;
        durable.set_usage(Usage::InUse);
        // A copy of a member from before has neither event: it is stale from now on.
        membership.recorded_anew().await.map_err(ArrayError::Io)?;
        membership.recorded_anew().await.map_err(ArrayError::Io)?;
        let report = match options {
            Some(options) => self.journal_start().run(options, JournalStart::Replay).await?,
            None => {
                durable.replay_is_done();
                ReplayReport::default()
            }
        };
        if let Some(reshape) = &self.tasks.reshape {
            // Nothing else looks at its rows while they are neither in the one shape nor in the other.
            reshape.end_section_between().await;
        }
        if !self.limits.read_only {
            bitmap.begin_rounds();
            self.tasks.resync.begin();
            self.tasks.rebuild.begin_if_wanted();
        }
        Ok(report)
    }

    /// Stops an array: everything is durable and, if nothing needs a resync, called clean.
    ///
    /// # Errors
    /// When a member does not take its last state; `Gone` when requests do not end.
    pub(crate) async fn stop(&self) -> IoResult<()> {
        let Ground { members, membership, bitmap, journal, .. } = &self.ground;
        self.tasks.close().await;
        let Some(durable) = membership.durable() else {
            return membership.flush(members).await;
        };
        durable.close();
        self.tasks.resync.ended().await;
        self.tasks.vouching.ended().await;
        if !self.requests_ended().await {
            // Stripes may be half written: the next start is one after a crash.
            return Err(IoError::Gone);
        }
        journal.empty().await?;
        membership.flush(members).await?;
        // With the event below this is the second one that a copy of a member does not have which was made while
        // the array was in use: it is stale from now on.
        if !canary::is(Canary::CopyNotOutdated) {
            membership.recorded_anew().await?;
        }
        // Regions that still need a resync must do so at the next start: then the array is not called clean.
        // A half-written stripe keeps its region dirty, for the next start knows nothing else of the stripe.
        if bitmap.next_to_resync(Region(0)).is_none() && !self.is_mismatched_by_failures() {
            bitmap.clear_dirty().await?;
            durable.set_usage(Usage::Clean);
        }
        membership.recorded_anew().await
    }

    /// How long a request may take: half a deadline more than the deadline, because ticks are counted whole.
    /// 0 without a deadline.
    pub(crate) fn patience_ns(&self) -> Nanos {
        let deadline_ns = self.ground.members.watch().deadline_ns();
        deadline_ns + deadline_ns / 2
    }

    /// Writes in their regions, also those that nobody waits for any more, if they can only be those of clients.
    pub(crate) fn writes_under_way(&self) -> usize {
        let writes_itself = self.moving().is_some() || self.tasks.scrub.is_running();
        if writes_itself { 0 } else { self.ground.bitmap.writes_under_way() }
    }

    /// Waits for the requests under way, also those that nobody waits for any more and those to devices that
    /// come. Whether all have ended within the patience of the array: no other change begins then.
    async fn requests_ended(&self) -> bool {
        let Ground { handle, bitmap, .. } = &self.ground;
        let patience_ns = self.patience_ns();
        let began_ns = handle.now();
        let is_coming = || !self.tasks.replacements.is_quiet();
        while !(self.foreground.is_quiet() && bitmap.is_quiet()) || is_coming() {
            if patience_ns > 0 && handle.now() - began_ns >= patience_ns {
                return false;
            }
            handle.sleep(REST_LOOK_NS).await;
        }
        bitmap.seal();
        true
    }

    /// Whether a write failed and stands, in stripes of which something is computed.
    fn is_mismatched_by_failures(&self) -> bool {
        self.ground.geometry.parity_chunks() > 0
            && self.stripes.has_any_half_written()
            && !canary::is(Canary::HalfWrittenForgotten)
    }

    /// Why the array takes no changes any more.
    pub(crate) fn failure(&self) -> Option<IoError> {
        // Members that take changes again do not have what they dropped before the replay has ended.
        let stale = || self.ground.members.are_stale().then_some(IoError::Medium);
        self.refusal().or_else(stale)
    }

    /// What the members refuse. An array that has failed and is refused nothing is being replayed.
    pub(crate) fn refusal(&self) -> Option<IoError> {
        self.ground.membership.failure().or(self.ground.journal.check().err())
    }

    /// Replays the journal once more. Nothing is under way.
    ///
    /// # Errors
    /// When too many members fail.
    pub(crate) async fn replay(&self, options: JournalOptions) -> Result<(), ArrayError> {
        self.journal_start().run(options, JournalStart::Replay).await.map(drop)
    }

    /// A start of the journal.
    fn journal_start(&self) -> Rc<Replay<D>> {
        let redo_from = self.moving().map_or(0, |it| it.record().redo_from);
        let Ground { handle, geometry, members, membership, journal, .. } = &self.ground;
        let placement = journal.placement();
        Replay::new(handle, geometry, members, membership, placement, redo_from)
    }
}

/// Whether another generation can take over.
impl<D: DriveControl> Generation<D> {
    /// # Errors
    /// When the array is none that can change its shape, at any time.
    pub(crate) fn check_can_grow(&self) -> Result<(), ArrayError> {
        if !self.ground.membership.is_durable() {
            return Err(GrowError::Bare.into());
        }
        if self.tasks.is_closing() {
            return Err(ReplaceError::Stopped.into());
        }
        if self.moving().is_some() { Err(GrowError::Reshaping.into()) } else { Ok(()) }
    }

    /// # Errors
    /// When a member is missing, or something is being done to the members.
    pub(crate) fn check_undisturbed(&self) -> Result<(), ArrayError> {
        let Ground { members, membership, bitmap, journal, .. } = &self.ground;
        if !membership.is_durable() {
            return Err(GrowError::Bare.into());
        }
        if self.tasks.scrub.is_running() {
            return Err(ReplaceError::ScrubRuns.into());
        }
        if !members.iter().all(Member::is_undisturbed) || self.tasks.rebuild.is_running() {
            return Err(GrowError::Degraded.into());
        }
        let [.., regions] = bitmap.counts();
        if regions > 0 || self.tasks.resync.is_running() {
            return Err(GrowError::NeedsResync { regions }.into());
        }
        if journal.placement().is_on_device() {
            return Err(GrowError::JournalDevice.into());
        }
        let has_failed = journal.check().is_err();
        if has_failed || self.stripes.has_any_half_written() {
            return Err(GrowError::Failed.into());
        }
        Ok(())
    }

    /// # Errors
    /// When a device does not suit as a further member; which of those that were given it is.
    pub(crate) fn check_pending_member(
        &self,
        device: usize,
        own: &Rc<D>,
        uuid: &[u8; 16],
    ) -> Result<(), GrowError> {
        let unsuited = |error| GrowError::Device { device, error };
        self.tasks.replacements.check_device(&**own, uuid).map_err(unsuited)?;
        let limits = own.limits();
        let has_journal = self.ground.journal.is_in_service();
        let bytes = limits.max_transfer_bytes;
        if has_journal && u64::from(bytes) < longest_record_bytes(&self.ground.geometry) {
            return Err(unsuited(ReplaceError::Transfer { bytes }));
        }
        if limits.volatile_cache && !self.limits.volatile_cache && !has_journal {
            return Err(GrowError::VolatileCache { device });
        }
        Ok(())
    }
}

/// The reports of members to the generation in service, as long as it is there.
struct Reports<D> {
    generation: Weak<Generation<D>>,
    membership: Rc<Membership>,
}

impl<D: DriveControl> Above for Reports<D> {
    fn on(&self, event: MemberEvent) {
        match event {
            MemberEvent::Lost => {
                self.membership.note_change();
                if let Some(generation) = self.generation.upgrade() {
                    generation.ground.journal.notify();
                }
                // No request may wait for the record: only a read, or the rebuild, met the loss. An assembly
                // that is refused has recorded no loss, so a replay asks for the record itself.
                if !self.membership.is_closed() && !self.membership.is_replay_due() {
                    self.membership.begin_update();
                }
            }
            MemberEvent::GivenUp if !self.membership.is_replay_due() => {
                self.membership.begin_update();
            }
            MemberEvent::GivenUp => {}
            MemberEvent::Doubted => self.membership.hold(true),
            MemberEvent::Judged => self.membership.hold(false),
            MemberEvent::Refused(error) => self.membership.note_refused(error),
            MemberEvent::HalfWritten => self.membership.note_failure(),
            MemberEvent::Unflushed(_) if canary::is(Canary::FailedFlushForgotten) => {}
            MemberEvent::Unflushed(error) => {
                let Some(generation) = self.generation.upgrade() else { return };
                let Ground { members, bitmap, journal, .. } = &generation.ground;
                if journal.is_in_service() {
                    members.set_stale(true);
                    journal.fail(error);
                    return;
                }
                self.membership.note_unflushed(error);
                members.forget_failed_flushes();
                bitmap.resync_what_was_not_flushed();
                generation.tasks.resync.begin();
            }
            MemberEvent::Unverified => {
                let generation = self.generation.upgrade();
                generation.iter().for_each(|generation| generation.tasks.vouching.begin());
            }
        }
    }

    fn is_consistent(&self, group: GroupIndex) -> bool {
        let Some(generation) = self.generation.upgrade() else { return false };
        let geometry = &generation.ground.geometry;
        let rows = Row(0)..geometry.row_at(Lba(geometry.member_sectors()));
        // A replay makes right what is half written, with fewer members too; it may have to do without this one.
        let is_replayed = generation.ground.journal.is_in_service();
        generation.tasks.resync.is_matched(group)
            && (is_replayed || !generation.stripes.has_half_written(group, rows))
    }

    fn is_load_uneven(&self) -> bool {
        self.generation.upgrade().is_some_and(|generation| generation.tasks.rebuild.is_running())
    }
}
