//! An array in service.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use voltier_block::{
    AfterDiscard, Asked, BlockDevice, Buf, DriveControl, Durability, IoError, IoResult, Lba,
    Limits, MeterCounts, Nanos, Payload, SectorRange, UnderWay,
};
use voltier_deadline::Guarded;
use voltier_ring::Handle;

use crate::assemble::AssembleReport;
use crate::create::CreateOptions;
use crate::errors::ArrayError;
use crate::errors::grow::GrowError;
use crate::errors::metadata::DeviceError;
use crate::examine::AssembleOptions;
use crate::expand::Expansion;
use crate::format::journal_label::JournalLabel;
use crate::format::superblock::Superblock;
use crate::foundation::Foundation;
use crate::generation::Generation;
use crate::generations::Generations;
use crate::geometry::chunks::Geometry;
use crate::geometry::numbers::MemberIndex;
use crate::grow::ParityRow;
use crate::members::clear::Clear;
use crate::members::counts::Counts;
use crate::members::health::{HealthNews, HealthPolicy, MemberHealth};
use crate::members::label_copies::{read_label, read_superblock};
use crate::members::member_watch::MemberWatch;
use crate::status::{ArrayStatus, status_of};
use crate::stripe::ground::Ground;
use crate::stripe::merge::policy::{MergeMode, MergePolicy};
use crate::tasks::background::BackgroundTask;
use crate::tasks::pace::Pace;
use crate::tasks::rebuild::{RebuildStatus, StuckRange};
use crate::tasks::replace::Replacement;
use crate::tasks::reshape::ReshapeStatus;
use crate::tasks::scrub::{ScrubRepair, ScrubStatus};
use crate::{assemble, create, hung, recovery};

/// An array of members, a block device itself. Clones are the same array.
///
/// # Consistency
///
/// Data and parity of a stripe are written together, and a power cut between them leaves parity that does
/// not match. If a member is lost before the parity is made anew, that may damage data of the stripe that
/// nobody was writing (the *write hole*). [`Consistency`](crate::Consistency) says what is done about it.
/// With a journal, the array first records there what it will write to a stripe's members. So a crash
/// leaves all of a write or nothing. For a bare array ([`Array::new`]) nothing is done.
pub struct Array<D>(Rc<Generations<Guarded<D>>>);

impl<D> Clone for Array<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: DriveControl> BlockDevice for Array<D> {
    fn limits(&self) -> &Limits {
        &self.0.limits
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        let _begun = self.0.meter.begin(Asked::Read, into.len() as u64);
        let array = self.0.enter().await;
        if array.ground.members.are_stale() {
            drop(array);
            return Box::pin(self.read_when_back(at, into)).await;
        }
        let busy = array.foreground.enter();
        let range = array.limits.checked_transfer(at, into.len())?;
        array.ground.members.counters().add(|counts| counts.reads += 1);
        let read = array.reader.read(range, into).await;
        if read.is_err() && array.ground.members.are_stale() {
            drop(busy);
            drop(array);
            return Box::pin(self.read_when_back(at, Buf::new(range.bytes() as usize))).await;
        }
        read
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let _begun = self.0.meter.begin(Asked::Write, data.len() as u64);
        let written = self.write_once(at, data.clone(), durability).await;
        self.once_more(written, async || self.write_once(at, data, durability).await).await
    }

    async fn flush(&self) -> IoResult<()> {
        let _begun = self.0.meter.begin(Asked::Flush, 0);
        let flushed = self.flush_once().await;
        let flushed = self.once_more(flushed, async || self.flush_once().await).await;
        if flushed.is_err() {
            // Told hereby.
            let _ = self.0.ground.membership.tell_unflushed();
        }
        flushed
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        let _begun = self.0.meter.begin(Asked::Discard, range.bytes());
        let discarded = self.discard_once(range).await;
        self.once_more(discarded, async || self.discard_once(range).await).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        let _begun = self.0.meter.begin(Asked::Discard, range.bytes());
        let written = self.write_zeroes_once(range, durability).await;
        self.once_more(written, async || self.write_zeroes_once(range, durability).await).await
    }
}

impl<D: DriveControl> DriveControl for Array<D> {
    /// Writes that have not ended. A move or a scrub has writes of its own, one after the other, and nobody can
    /// tell them from those of clients: while one runs, [`stop`](Self::stop) alone waits for all. An array that
    /// is gone has none: its drives count what they have.
    fn under_way(&self) -> UnderWay {
        let array = Rc::downgrade(&self.0);
        UnderWay::of(move || array.upgrade().map_or(0, |array| array.writes_under_way()))
    }

    /// Nothing: requests end by themselves when the array gives a member up. A member whose requests were
    /// cancelled for somebody above would be taken for one that fails, and the array goes on without it.
    fn abandon(&self) {}

    /// Nothing: a failed flush has been told, once, and the array itself has its members flush again. It
    /// replays the journal first, or makes parity anew. Forgetting here would believe them before that.
    fn forget_failed_flush(&self) {}

    fn patience_ns(&self) -> Nanos {
        self.0.patience_ns()
    }
}

/// Requests as they are tried once, and once more when the array has failed and is back.
impl<D: DriveControl> Array<D> {
    /// The result of a request, or of another try. The first one is the caller's: a future within one more would be
    /// copied once more for every request.
    #[inline]
    async fn once_more(
        &self,
        result: IoResult<()>,
        again: impl AsyncFnOnce() -> IoResult<()>,
    ) -> IoResult<()> {
        if result.is_err() && Box::pin(recovery::is_back(&self.0)).await {
            return Box::pin(again()).await;
        }
        result
    }

    /// The members may have dropped what the journal alone has now.
    #[cold]
    async fn read_when_back(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        while self.0.ground.members.are_stale() {
            if !recovery::is_back(&self.0).await {
                return Err(IoError::Medium);
            }
        }
        self.read(at, into).await
    }

    async fn write_once(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let array = self.0.enter().await;
        let _busy = array.foreground.enter();
        let range = array.limits_of_change()?.checked_write(at, &data)?;
        array.ground.members.counters().add(|counts| counts.writes += 1);
        array.writer.write(range, data, durability).await?;
        array.ground.membership.barrier().await
    }

    async fn flush_once(&self) -> IoResult<()> {
        let array = self.0.enter().await;
        if !array.ground.journal.is_in_service() {
            let Ground { membership, members, .. } = &array.ground;
            membership.flush(members).await?;
            // One that the members failed before may have cost what this one was to keep.
            return membership.tell_unflushed();
        }
        // Every write that is complete is in the rings, durably, until it is durable in place.
        array.ground.journal.check()?;
        array.ground.membership.barrier().await
    }

    async fn discard_once(&self, range: SectorRange) -> IoResult<()> {
        let array = self.0.enter().await;
        let _busy = array.foreground.enter();
        let range = array.limits_of_change()?.checked_change(range)?;
        if array.limits.after_discard == AfterDiscard::Unchanged {
            return Ok(());
        }
        array.clearer.clear(range, Clear::Discard).await?;
        array.ground.membership.barrier().await
    }

    async fn write_zeroes_once(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        let array = self.0.enter().await;
        let _busy = array.foreground.enter();
        let range = array.limits_of_change()?.checked_change(range)?;
        array.clearer.clear(range, Clear::Zeroes(durability)).await?;
        array.ground.membership.barrier().await
    }
}

/// For so long requests to a member that an administrator took out may still end.
const FAILED_NS: Nanos = 500_000_000;

/// The watch over the devices of an array that is to be.
fn watch(handle: &Handle) -> Rc<MemberWatch> {
    MemberWatch::new(handle, HealthPolicy::default().deadline_ns)
}

fn guard_all<D: DriveControl>(devices: Vec<D>, watch: &Rc<MemberWatch>) -> Vec<Guarded<D>> {
    devices.into_iter().map(|device| Guarded::new(device, watch)).collect()
}

impl<D: DriveControl> Array<D> {
    /// A device that is to come to the array.
    fn guard(&self, device: D) -> Rc<Guarded<D>> {
        Rc::new(Guarded::new(device, self.0.ground.members.watch()))
    }
}

/// From the members to an array, and back.
impl<D: DriveControl> Array<D> {
    /// A bare array, without durable state. The chunks lie from the first sector on, over members in the
    /// order of their numbers, `None` for each that is lost. The content of the members must be
    /// consistent: that of members of zeroes is.
    ///
    /// # Errors
    /// When the members do not suit the geometry, or too many are lost.
    pub fn new(
        handle: &Handle,
        geometry: Geometry,
        members: Vec<Option<D>>,
    ) -> Result<Self, ArrayError> {
        let watch = watch(handle);
        let guarded = |device: Option<D>| device.map(|device| Guarded::new(device, &watch));
        let members = members.into_iter().map(guarded).collect();
        let foundation = Foundation::bare(geometry, members, &watch);
        let generations = Generations::new(handle, Generation::build(handle, foundation)?);
        hung::install(&generations);
        recovery::install(&generations);
        Ok(Self(generations))
    }

    /// Makes an array over these devices, whatever they hold: the members in their order. The array
    /// is in use then; all of it reads as zeroes.
    ///
    /// A crash on the way leaves what is refused as half made, or the array.
    ///
    /// # Errors
    /// When no such array is possible: nothing was written then. When a device fails.
    pub async fn create(
        handle: &Handle,
        options: &CreateOptions,
        devices: Vec<D>,
    ) -> Result<Self, ArrayError> {
        Self::create_with_journal(handle, options, devices, None).await
    }

    /// Makes an array with its journal on a device of its own, whatever the device holds. The journal device
    /// gets a new uuid. Members have room for a journal all the same, for the time when the device is lost.
    ///
    /// # Errors
    /// As [`create`](Self::create), and when the device does not suit.
    pub async fn create_with_journal(
        handle: &Handle,
        options: &CreateOptions,
        devices: Vec<D>,
        journal: Option<(D, [u8; 16])>,
    ) -> Result<Self, ArrayError> {
        let watch = watch(handle);
        let devices = guard_all(devices, &watch);
        let journal = journal.map(|(device, uuid)| (Guarded::new(device, &watch), uuid));
        create::create(handle, options, devices, journal, &watch).await.map(Self)
    }

    /// Reads the superblock of a device, if it is a member of an array.
    ///
    /// # Errors
    /// When the device is or was a member, and cannot be used.
    pub async fn examine(device: &D) -> Result<Option<Superblock>, DeviceError> {
        Ok(read_superblock(device).await?.map(|found| found.superblock))
    }

    /// Reads the label of a device that has the journal of an array.
    ///
    /// # Errors
    /// When the device has or had a label, and cannot be used.
    pub async fn examine_journal(device: &D) -> Result<Option<JournalLabel>, DeviceError> {
        Ok(read_label(device).await?.map(|(label, _)| label))
    }

    /// Puts an array in service: from its members, given in any order. Members that the array went on
    /// without are left out, and the report says so. A device that does not answer is done without after
    /// the usual deadline, if the others are enough.
    ///
    /// # Errors
    /// When something that was given does not belong to the array, or when too little is there. When
    /// the data may not be what was acknowledged, unless the options allow it. Nothing is written then.
    pub async fn assemble(
        handle: &Handle,
        devices: Vec<D>,
        options: AssembleOptions,
    ) -> Result<(Self, AssembleReport), ArrayError> {
        Self::assemble_within(handle, devices, options, 0).await
    }

    /// The same with a deadline for each device to answer, instead of the usual one (0). The deadline is that
    /// of the array from then on, until [`set_health_policy`](Self::set_health_policy) names another.
    ///
    /// # Errors
    /// As [`assemble`](Self::assemble).
    pub async fn assemble_within(
        handle: &Handle,
        devices: Vec<D>,
        options: AssembleOptions,
        deadline_ns: Nanos,
    ) -> Result<(Self, AssembleReport), ArrayError> {
        let (generations, report) =
            Self::put_together(handle, devices, options, false, deadline_ns).await?;
        generations.begin_reshape();
        Ok((Self(generations), report))
    }

    /// The same for an array that is only read. It refuses changes, and begins neither a resync nor a rebuild.
    /// It writes to its devices what a start writes all the same: labels, and what the journal has. The caller
    /// gives it devices that keep this in memory.
    ///
    /// # Errors
    /// As [`assemble`](Self::assemble).
    pub async fn assemble_read_only(
        handle: &Handle,
        devices: Vec<D>,
        options: AssembleOptions,
        deadline_ns: Nanos,
    ) -> Result<(Self, AssembleReport), ArrayError> {
        let (generations, report) =
            Self::put_together(handle, devices, options, true, deadline_ns).await?;
        Ok((Self(generations), report))
    }

    async fn put_together(
        handle: &Handle,
        devices: Vec<D>,
        options: AssembleOptions,
        is_read_only: bool,
        deadline_ns: Nanos,
    ) -> Result<(Rc<Generations<Guarded<D>>>, AssembleReport), ArrayError> {
        let watch = watch(handle);
        if deadline_ns > 0 {
            watch.set_deadline(deadline_ns);
        }
        let devices = guard_all(devices, &watch);
        assemble::assemble(handle, devices, options, is_read_only, &watch).await
    }

    /// Brings what was acknowledged in place on all members and empties the journal: the next start has
    /// nothing to redo. No request may be under way. Without a journal, a flush.
    ///
    /// # Errors
    /// When a member that cannot be lost refuses the write.
    pub async fn empty_journal(&self) -> IoResult<()> {
        let array = self.0.enter().await;
        if array.ground.journal.is_in_service() {
            array.ground.journal.empty().await
        } else {
            array.ground.membership.flush(&array.ground.members).await
        }
    }

    /// Stops the array: everything is durable and no region needs a resync at the next start. Changes fail
    /// from here on. Requests under way are waited for, also those whose futures were dropped.
    ///
    /// # Errors
    /// When a member does not take its last state, or a request does not end within the
    /// [patience](DriveControl::patience_ns): the array is then not called clean.
    pub async fn stop(&self) -> Result<(), ArrayError> {
        let array = self.0.enter().await;
        array.stop().await.map_err(ArrayError::Io)
    }
}

/// The state of the array and of its members.
impl<D: DriveControl> Array<D> {
    /// Where everything is.
    pub fn geometry(&self) -> &Geometry {
        &self.0.ground.geometry
    }

    /// A snapshot of the counters.
    pub fn counts(&self) -> Counts {
        self.0.ground.members.counters().get()
    }

    /// The state of the array now; none of a bare one.
    pub fn status(&self) -> Option<ArrayStatus> {
        let mut status = status_of(&self.0)?;
        let members = &self.0.ground.members;
        for (index, member) in members.indexed() {
            let Some(own) = status.members.get_mut(index.0) else { continue };
            let device = member.device().ok();
            if let Some(late) = device.filter(|device| members.watch().is_late(device.requests())) {
                let waited_ns = members.watch().waited_ns(late.requests());
                own.health.counts.unanswered_s = waited_ns / 1_000_000_000;
            }
        }
        Some(status)
    }

    /// Whether a member is in service: not lost, and not being rebuilt.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn is_online(&self, member: MemberIndex) -> bool {
        self.0.ground.members[member].is_online()
    }

    /// Takes a member out of service; requests go on without it. The other members know durably
    /// before the next change is acknowledged.
    ///
    /// # Errors
    /// When the level cannot lose one more of its group; nothing is changed then.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn fail(&self, member: MemberIndex) -> Result<(), ArrayError> {
        let array = &self.0.ground;
        let group = array.geometry.group_of_member(member);
        let (lost, allowed) = (array.members.lost_in(group), array.geometry.parity_chunks());
        if self.is_online(member) && lost == allowed {
            return Err(ArrayError::TooManyLost { group: group.0, lost: lost + 1, allowed });
        }
        let device = array.members[member].device();
        array.members.lose(member);
        array.membership.begin_update();
        if let Ok(device) = device {
            // A member may be out because it does not answer: its requests end.
            let (handle, device) = (array.handle.clone(), Rc::downgrade(&device));
            drop(array.handle.spawn(async move {
                handle.sleep(FAILED_NS).await;
                device.upgrade().inspect(|device| device.abandon());
            }));
        }
        Ok(())
    }

    /// Says when a member has done too badly, and what is done then.
    ///
    /// # Panics
    /// If a window is 0.
    pub fn set_health_policy(&self, policy: HealthPolicy) {
        self.0.ground.members.set_health_policy(policy);
    }

    /// How well a member does.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn health(&self, member: MemberIndex) -> MemberHealth {
        self.0.ground.members.health_of(member)
    }

    /// Requests so far, with the time they took.
    pub fn meter(&self) -> MeterCounts {
        self.0.meter.counts()
    }

    /// Events of members since the last call, the oldest first.
    pub fn take_health_news(&self) -> Vec<HealthNews> {
        self.0.ground.members.health().take_news()
    }

    /// Sets a listener that is called when members came, went, or did badly. The call comes in the middle of
    /// things: the listener may not use the array.
    pub fn set_listener(&self, listener: impl Fn() + 'static) {
        self.0.ground.members.health().set_listener(listener);
    }
}

/// Changes of the array while it serves.
impl<D: DriveControl> Array<D> {
    /// Has `after_record` awaited whenever a device has left on record, with the event count of that
    /// record. No change is acknowledged before that the device in question may lack.
    ///
    /// Devices that have left can be as many as a start needs: one half of a mirror. Alone they know nothing
    /// of the others. The keeper of event counts knows, and does not set `degraded` for a start of theirs
    /// ([`AssembleOptions`](crate::AssembleOptions)).
    pub fn on_record(
        &self,
        after_record: impl Fn(u64) -> Pin<Box<dyn Future<Output = ()>>> + 'static,
    ) {
        self.0.ground.membership.set_after_record(Rc::new(after_record));
    }

    /// Puts a device in the place of a member and begins to fill it. `uuid` is a new one, for the device.
    ///
    /// A member that is lost is computed from the others. The device may be that member itself, not used
    /// elsewhere since. Then the device keeps its uuid and content, and only regions changed since are
    /// computed. A member in service stays that until its successor has everything. Then the successor takes
    /// the place, and the old device is left behind as a stale member. A restart goes on with a rebuild, and
    /// forgets a successor.
    ///
    /// # Errors
    /// When the device does not suit or fails; the array is as before then.
    pub async fn replace(
        &self,
        member: MemberIndex,
        device: D,
        uuid: [u8; 16],
    ) -> Result<Replacement, ArrayError> {
        let array = self.0.enter().await;
        array.tasks.replacements.replace(member, self.guard(device), uuid).await
    }

    /// Puts a lost member back whose device is there again, not used elsewhere since: only regions changed
    /// since are computed. `false` of any other device, which is not written to.
    ///
    /// # Errors
    /// When the device does not suit or fails; the array is as before then.
    pub async fn restore_member(&self, member: MemberIndex, device: D) -> Result<bool, ArrayError> {
        let array = self.0.enter().await;
        array.tasks.replacements.restore_member(member, self.guard(device)).await
    }

    /// Keeps a device for the next member that is lost, or takes it for one that is. The device holds
    /// nothing of the array until then, so it is to be added again after a restart. `uuid` is a new one.
    ///
    /// # Errors
    /// When the device does not suit.
    pub fn add_spare(&self, device: D, uuid: [u8; 16]) -> Result<(), ArrayError> {
        self.0.tasks.replacements.add_spare(self.guard(device), uuid)
    }

    /// Takes a spare back that has this uuid; whether it waited. Nothing is written, and the device is closed.
    ///
    /// # Errors
    /// When the spare is on its way into the place of a lost member.
    pub fn remove_spare(&self, uuid: [u8; 16]) -> Result<bool, ArrayError> {
        Ok(self.0.tasks.replacements.remove_spare(uuid)?)
    }

    /// Whether a device suits as a spare; nothing is changed.
    ///
    /// # Errors
    /// The reason why the device does not suit.
    pub fn check_spare(&self, device: &D) -> Result<(), ArrayError> {
        self.0.tasks.replacements.check_spare(device)
    }

    /// Lost members that can be rebuilt and for which no spare waits.
    pub fn spares_wanted(&self) -> usize {
        self.0.tasks.replacements.spares_wanted()
    }

    /// Spares that wait.
    pub fn spare_count(&self) -> usize {
        self.0.tasks.replacements.spare_count()
    }

    /// Adds a parity row, or a copy to a mirror, on devices that hold nothing that is needed. Each group
    /// has one, with a new uuid. The level is another one then ([`Geometry::with_parity`]). The data
    /// stay where they are, and so does the size.
    ///
    /// Requests wait for a moment. When the call returns, the array has its new shape, durably. A rebuild
    /// fills the new members, which count as missing until then. The caller awaits the future to its end.
    ///
    /// # Errors
    /// When the array or a device does not suit: nothing has changed then. When a device fails while
    /// the array takes the device in.
    pub async fn grow(&self, devices: Vec<D>, uuids: &[[u8; 16]]) -> Result<(), ArrayError> {
        let devices = devices.into_iter().map(|device| self.guard(device)).collect();
        ParityRow { array: &self.0, devices, uuids }.add().await
    }

    /// Adds a member for capacity, on a device that holds nothing that is needed, with a new uuid. Stripes
    /// become one chunk of data wider (`with_member`): all data move, in the background, and
    /// requests go on. The size stays the old one until all data have moved, and is the new one then.
    ///
    /// When the call returns, the expansion has begun, durably, and goes on after a restart. The
    /// caller awaits the future to its end.
    ///
    /// # Errors
    /// When the array or the device does not suit: nothing has changed then. When the device fails while
    /// the array takes the device in.
    pub async fn grow_capacity(&self, device: D, uuid: [u8; 16]) -> Result<(), ArrayError> {
        let device = self.guard(device);
        Expansion { array: &self.0, device, uuid }.begin().await
    }

    /// Puts the journal on a device of its own, whatever it holds, or with `None` back on the members, while
    /// the array serves. `uuid` is a new one, for the device. The device before is a plain one then.
    ///
    /// # Errors
    /// When the device does not suit or fails. The array serves on, with the journal where it was. If the
    /// device failed in the last moment, the journal is on the members.
    pub async fn set_journal(&self, device: Option<(D, [u8; 16])>) -> Result<(), ArrayError> {
        // The shape stays as it is meanwhile: its rings would be those of another array.
        let array = self.0.enter().await;
        if array.moving().is_some() {
            return Err(GrowError::Reshaping.into());
        }
        let watch = array.ground.members.watch();
        let device = device.map(|(device, uuid)| (Guarded::new(device, watch), uuid));
        array.ground.journal.move_to(device, array.limits.block_bytes).await
    }

    /// How small writes are merged from now on.
    pub fn set_merge_policy(&self, policy: MergePolicy) {
        let has_parity = self.0.ground.geometry.level().has_parity();
        let mode = if has_parity { policy.mode } else { MergeMode::Off };
        self.0.merger.set_policy(MergePolicy { mode, ..policy });
    }

    /// How small writes are merged; never, by levels that have nothing to gain.
    pub fn merge_policy(&self) -> MergePolicy {
        self.0.merger.policy()
    }
}

/// Tasks in the background.
impl<D: DriveControl> Array<D> {
    /// Changes the pace of a task, also while it runs.
    pub fn set_pace(&self, task: BackgroundTask, pace: Pace) {
        self.0.tasks.set_pace(task, pace);
    }

    /// The pace of a task.
    pub fn pace(&self, task: BackgroundTask) -> Pace {
        self.0.tasks.pace(task)
    }

    /// Has a task end as soon as what it has under way is done. A rebuild goes on where it was when it is
    /// started again, a scrub begins anew.
    pub fn cancel(&self, task: BackgroundTask) {
        self.0.tasks.cancel(task);
    }

    /// Waits until a task is not running.
    pub async fn ended(&self, task: BackgroundTask) {
        self.0.tasks.ended(task).await;
    }

    /// Starts the rebuild, if there is something to fill and it is not running. [`replace`](Self::replace)
    /// and [`assemble`](Self::assemble) do that by themselves: this is for a rebuild that was cancelled, or
    /// is stuck.
    ///
    /// # Errors
    /// When nothing is to be rebuilt.
    pub fn rebuild(&self) -> Result<(), ArrayError> {
        self.0.tasks.begin_rebuild()
    }

    /// How far the rebuild is.
    pub fn rebuild_status(&self) -> RebuildStatus {
        self.0.tasks.rebuild_status()
    }

    /// What the rebuild could not compute, in the order of the data; at most so many ranges.
    pub fn stuck_ranges(&self, most: usize) -> Vec<StuckRange> {
        self.0.tasks.rebuild.work().stuck_ranges(most)
    }

    /// Starts a scrub of everything that was written, in the background.
    ///
    /// # Errors
    /// When a scrub is running, or the array is stopped.
    pub fn scrub(&self, repair: ScrubRepair) -> Result<(), ArrayError> {
        self.0.tasks.begin_scrub(repair)
    }

    /// The scrub that is running, or what the last one found.
    pub fn scrub_status(&self) -> ScrubStatus {
        self.0.tasks.scrub_status()
    }

    /// How far the move to more members is; none if there is none. The move goes at the pace of the rebuild.
    pub fn reshape_status(&self) -> Option<ReshapeStatus> {
        self.0.tasks.reshape_status()
    }

    /// Waits until the array has one shape, or the move ends because the array is stopped.
    pub async fn reshaped(&self) {
        // The loop holds no array: the shape changes only when nobody holds the parts any more.
        while let Some(moving) = self.0.moving().cloned().filter(|it| it.is_running()) {
            moving.ended().await;
        }
    }
}
