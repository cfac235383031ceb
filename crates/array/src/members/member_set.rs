//! Requests to the members of an array.
//!
//! Everything that reads, writes or flushes members goes through here. One place counts it, times it,
//! tries a write once more, and decides what a failure means ([`MemberStates`] says who is given up).

use std::cell::Cell;
use std::future::Future;
use std::ops::Deref;
use std::rc::Rc;

use voltier_block::{
    Buf, Bytes, DriveControl, Durability, IoError, IoResult, Lba, Nanos, Payload, SECTOR_BYTES,
    SectorRange,
};
use voltier_ring::{Handle, JoinHandle};

use crate::canary::{self, Canary};
use crate::format::region_map::RegionGrid;
use crate::geometry::chunks::Geometry;
use crate::geometry::numbers::{MemberIndex, Region, each};
use crate::members::at_once::together;
use crate::members::checksums::checked::{Checked, Verdict, Verify};
use crate::members::checksums::devices::CheckedDevices;
use crate::members::checksums::table::BlockState;
use crate::members::clear::Clear;
use crate::members::counts::MemberCounts;
use crate::members::event::MemberEvent;
use crate::members::health::HealthNews;
use crate::members::member::Member;
use crate::members::member_states::MemberStates;
use crate::members::member_watch::MemberWatch;
use crate::members::refusals::FLUSH_JUDGED_NS;

/// A read of so much shows whether a device answers: whole blocks of every device.
const PROBE_BYTES: usize = 4096;
/// A device that has not answered the read by then does not answer.
const PROBE_NS: Nanos = 1_000_000_000;

/// The members of an array in service, and the way to them.
pub(crate) struct MemberSet<D> {
    handle: Handle,
    geometry: Geometry,
    states: MemberStates<D>,
    /// The first sector of the chunks on a member's device.
    data_start: u64,
    regions: RegionGrid,
    devices: CheckedDevices<D>,
    /// Whether another set has taken over: this one has no devices any more.
    is_superseded: Cell<bool>,
}

impl<D> Deref for MemberSet<D> {
    type Target = MemberStates<D>;

    fn deref(&self) -> &MemberStates<D> {
        &self.states
    }
}

impl<D: DriveControl> MemberSet<D> {
    pub(crate) fn new(
        handle: &Handle,
        geometry: &Geometry,
        members: Vec<Member<D>>,
        data_start: u64,
        watch: &Rc<MemberWatch>,
        devices: CheckedDevices<D>,
    ) -> Self {
        let states = MemberStates::new(handle, geometry, members, watch);
        Self::of(handle, geometry, states, data_start, devices)
    }

    fn of(
        handle: &Handle,
        geometry: &Geometry,
        states: MemberStates<D>,
        data_start: u64,
        devices: CheckedDevices<D>,
    ) -> Self {
        Self {
            handle: handle.clone(),
            geometry: geometry.clone(),
            states,
            data_start,
            regions: RegionGrid::new(geometry.member_sectors()),
            devices,
            is_superseded: Cell::new(false),
        }
    }

    /// The same members, and further ones, in another geometry. Nothing is left in this set.
    pub(crate) fn moved(&self, geometry: &Geometry, added: Vec<Member<D>>) -> Self {
        let states = self.states.moved(geometry, added);
        Self::of(&self.handle, geometry, states, self.data_start, self.devices.clone())
    }

    /// Requests to single devices, of members and of those that are filled beside members.
    pub(crate) fn devices(&self) -> &CheckedDevices<D> {
        &self.devices
    }

    pub(crate) fn supersede(&self) {
        self.is_superseded.set(true);
    }

    pub(crate) fn is_superseded(&self) -> bool {
        self.is_superseded.get()
    }

    /// The region of a sector of a member.
    #[inline]
    pub(crate) fn region_at(&self, at: Lba) -> Region {
        self.regions.region_at(at)
    }

    /// How members are cut into regions.
    pub(crate) fn regions(&self) -> RegionGrid {
        self.regions
    }

    pub(crate) fn read(
        self: Rc<Self>,
        member: MemberIndex,
        at: Lba,
        into: Buf,
    ) -> impl Future<Output = IoResult<Buf>> {
        self.read_as(member, at, into, Verify::All)
    }

    /// Reads a member, and holds the content against its checksums, if there are any.
    pub(crate) async fn read_as(
        self: Rc<Self>,
        member: MemberIndex,
        at: Lba,
        into: Buf,
        verify: Verify,
    ) -> IoResult<Buf> {
        let device = self[member].device()?;
        // Since the choice, the member may have got a device that is to be filled.
        if !self[member].has_region(self.region_at(at)) {
            return Err(IoError::Gone);
        }
        self.counters().add(|counts| counts.member_reads += 1);
        let at = self.on_device(at);
        if verify != Verify::Nothing
            && let Some(checked) = self.devices.checked(&device)
        {
            return Box::pin(self.read_checked(member, device, checked, at, into, verify)).await;
        }
        let under_way = self.begin_read(member);
        let result = device.read(at, into).await;
        self.end_read(member, under_way);
        match result {
            Ok(_) => self.settled(member, &device).await?,
            Err(error) => self.read_failed(member, &device, error),
        }
        result
    }

    /// A read of a device with checksums. A block that does not match, or should have a checksum and has none,
    /// is as good as unreadable, and no error of the device.
    async fn read_checked(
        self: Rc<Self>,
        member: MemberIndex,
        device: Rc<D>,
        checked: Rc<Checked>,
        at: Lba,
        into: Buf,
        verify: Verify,
    ) -> IoResult<Buf> {
        let timed = async |into| {
            let under_way = self.begin_read(member);
            let result = device.read(at, into).await;
            self.end_read(member, under_way);
            result
        };
        let read = checked.read(&*device, at, into, verify, timed).await;
        self.note_page_errors(member, &device, checked.take_errors());
        if let Err(error) = read {
            self.read_failed(member, &device, error);
        }
        let (read, verdict) = read?;
        self.settled(member, &device).await?;
        if verdict == Verdict::Right {
            return Ok(read);
        }
        self.report_damage(member, &checked);
        Err(IoError::Medium)
    }

    /// Reads a member that has checksums; what is known of each block.
    ///
    /// # Errors
    /// When the member is gone, or the request fails.
    pub(crate) async fn read_judged(
        self: Rc<Self>,
        member: MemberIndex,
        at: Lba,
        into: Buf,
    ) -> IoResult<(Buf, Vec<BlockState>)> {
        let device = self[member].device()?;
        if !self[member].has_region(self.region_at(at)) {
            return Err(IoError::Gone);
        }
        let Some(checked) = self.devices.checked(&device) else {
            return Err(IoError::Unsupported);
        };
        self.counters().add(|counts| counts.member_reads += 1);
        let timed = async |into| {
            let under_way = self.begin_read(member);
            let result = device.read(self.on_device(at), into).await;
            self.end_read(member, under_way);
            result
        };
        let read = checked.read_judged(&*device, self.on_device(at), into, timed).await;
        match read {
            Ok(_) => self.settled(member, &device).await?,
            Err(error) => self.read_failed(member, &device, error),
        }
        read
    }

    /// Tells of pages of a member that cannot be read. The first ones are told one by one; all are counted.
    #[cold]
    fn report_damage(&self, member: MemberIndex, checked: &Checked) {
        let damaged = checked.take_damaged();
        if damaged.is_empty() {
            return;
        }
        for sectors in damaged.into_iter().filter(|_| checked.may_tell()) {
            self.health().say(HealthNews::ChecksumsLost { member: member.0, sectors });
        }
        self.emit(MemberEvent::Unverified);
    }

    /// Blocks of a member should have checksums and have none: another member is read instead.
    pub(crate) fn note_unverified(&self, member: MemberIndex, range: SectorRange) {
        let Ok(device) = self[member].device() else { return };
        if let Some(checked) = self.devices.checked(&device) {
            checked.note_unverified(self.on_device(range.start), range.bytes());
            self.report_damage(member, &checked);
        }
    }

    /// The result of a request, which is tried again for as long as members fail all reads: the cause may be a
    /// common one, which passes.
    #[inline]
    pub(crate) async fn try_again<T>(
        self: &Rc<Self>,
        mut result: IoResult<T>,
        mut request: impl AsyncFnMut() -> IoResult<T>,
    ) -> IoResult<T> {
        let mut may_retry = true;
        while let Err(IoError::Medium | IoError::Gone) = result
            && may_retry
            && let Some(may_fail) = Box::pin(self.rest_before_retry()).await
        {
            may_retry = may_fail;
            result = Box::pin(request()).await;
        }
        result
    }

    /// Waits before a failed request is tried again: `None` if that is of no use, else whether it may fail and be
    /// tried once more.
    #[cold]
    async fn rest_before_retry(self: &Rc<Self>) -> Option<bool> {
        if let Some(rest_ns) = self.refusals().rest_of_reads()
            && self.is_any_unreachable().await
        {
            self.handle.sleep(rest_ns).await;
            return Some(true);
        }
        // They may have come back since the reads failed: the request may have waited for a lock, or for changes
        // elsewhere.
        self.refusals().may_have_come_back().then_some(false)
    }

    /// Whether a member that failed reads of late answers none at all.
    async fn is_any_unreachable(self: &Rc<Self>) -> bool {
        for member in self.refusals().reads_of_late() {
            if self.is_unreachable(member).await {
                return true;
            }
        }
        false
    }

    /// Whether not even the first block of a member in service can be read, or not soon. That is no matter of
    /// single blocks, and may pass. One probe at a time: a drive that hangs would collect them.
    async fn is_unreachable(self: &Rc<Self>, member: MemberIndex) -> bool {
        if self.refusals().is_probed(member) {
            self.handle.sleep(PROBE_NS).await;
            if self.refusals().is_probed(member) {
                return true;
            }
        }
        let Ok(device) = self[member].device() else { return false };
        self.refusals().note_probe(member, true);
        let own = self.clone();
        let probe = self.handle.spawn(async move {
            let read = device.read(Lba(0), Buf::new(PROBE_BYTES)).await;
            own.refusals().note_probe(member, false);
            read.is_err()
        });
        self.handle.timeout(PROBE_NS, probe).await.unwrap_or(true)
    }

    /// Whether so many members of a member's group refuse requests that the group cannot lose them all. Those
    /// that nobody has asked for anything of late are asked now. A group that cannot lose any more has nobody to
    /// compare the member with: then it counts whether the member answers at all.
    async fn is_refusal_common_now(self: &Rc<Self>, member: MemberIndex) -> bool {
        let group = self.geometry.group_of_member(member);
        let is_other = |other: &MemberIndex| *other != member && self[*other].is_online();
        for other in self.geometry.members_of(group).filter(is_other) {
            if self.is_refusal_common(member) {
                return true;
            }
            if self.is_unreachable(other).await {
                self.refusals().note_change(other, IoError::Medium);
            }
        }
        let is_last = self.lost_in(group) >= self.geometry.parity_chunks();
        let is_needed = is_last && self[member].is_online();
        self.is_refusal_common(member) || (is_needed && self.is_unreachable(member).await)
    }

    /// Fills buffers with what lies behind one another on a member. A failure says nothing of any one of
    /// them, and does not count.
    pub(crate) async fn read_run(
        self: Rc<Self>,
        member: MemberIndex,
        at: Lba,
        into: Vec<Buf>,
        verify: Verify,
    ) -> IoResult<Vec<Buf>> {
        let device = self[member].device()?;
        let bytes: u64 = into.iter().map(|buf| buf.len() as u64).sum();
        let last = at.plus(bytes / SECTOR_BYTES - 1);
        let mut regions = each(self.region_at(at)..self.region_at(last) + 1);
        // Since the choice, the member may have got a device that is to be filled.
        if !regions.all(|region| self[member].has_region(region)) {
            return Err(IoError::Gone);
        }
        self.counters().add(|counts| counts.member_reads += 1);
        let at = self.on_device(at);
        if let Some(checked) = self.devices.checked(&device) {
            let read = self.read_run_checked(member, device, checked, at, into, verify);
            return Box::pin(read).await;
        }
        let under_way = self.begin_read(member);
        let result = device.read_vectored(at, into).await;
        self.end_read(member, under_way);
        if result.is_ok() {
            self.settled(member, &device).await?;
        }
        result
    }

    async fn read_run_checked(
        self: Rc<Self>,
        member: MemberIndex,
        device: Rc<D>,
        checked: Rc<Checked>,
        at: Lba,
        into: Vec<Buf>,
        verify: Verify,
    ) -> IoResult<Vec<Buf>> {
        let timed = async |into| {
            let under_way = self.begin_read(member);
            let result = device.read_vectored(at, into).await;
            self.end_read(member, under_way);
            result
        };
        let (read, is_right) = checked.read_run(&*device, at, into, verify, timed).await?;
        self.settled(member, &device).await?;
        if is_right {
            return Ok(read);
        }
        self.report_damage(member, &checked);
        Err(IoError::Medium)
    }

    pub(crate) async fn write(
        self: Rc<Self>,
        member: MemberIndex,
        at: Lba,
        data: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        // The others have what a lost member would have held.
        let Ok(device) = self[member].device() else { return Ok(()) };
        self.counters().add(|counts| counts.member_writes += 1);
        let at = self.on_device(at);
        let beside = self.beside(member, |device: Rc<D>| {
            let (members, data) = (self.clone(), data.clone());
            async move { members.devices.write(&device, at, data, durability).await }
        });
        let checked = self.devices.checked(&device);
        let mut result = if let Some(checked) = checked {
            let data = data.clone();
            Box::pin(self.write_checked(member, &device, checked, at, data, durability)).await
        } else {
            let since = self.begin_write(member);
            let result = device.write(at, data.clone(), durability).await;
            self.end_write(member, since);
            result
        };
        let write = || self.devices.write(&device, at, data.clone(), durability);
        if result.is_err() {
            // In a box: seldom, and else every write would carry its room along.
            result = Box::pin(self.again(member, &device, result, write)).await;
        }
        self.finish_beside(member, beside).await;
        self.lose_on_error(member, &device, result)
    }

    /// The first write of a request to a device with checksums. The time is that of the device alone.
    async fn write_checked(
        self: &Rc<Self>,
        member: MemberIndex,
        device: &Rc<D>,
        checked: Rc<Checked>,
        at: Lba,
        data: Payload,
        durability: Durability,
    ) -> IoResult<()> {
        let timed = async |data| {
            let since = self.begin_write(member);
            let result = device.write(at, data, durability).await;
            self.end_write(member, since);
            result
        };
        let written = checked.write(device, at, data, timed).await;
        self.note_page_errors(member, device, checked.take_errors());
        written
    }

    pub(crate) async fn clear(
        self: Rc<Self>,
        member: MemberIndex,
        range: SectorRange,
        clear: Clear,
    ) -> IoResult<()> {
        let Ok(device) = self[member].device() else { return Ok(()) };
        self.counters().add(|counts| counts.member_writes += 1);
        let range = SectorRange::new(self.on_device(range.start), range.count);
        let has_parity = self.geometry.parity_chunks() > 0;
        let suited = self[member].succeeding().map(|device| clear.suited(&*device, has_parity));
        let members = self.clone();
        let beside = self.beside(member, move |device: Rc<D>| async move {
            members.devices.clear(&device, range, suited.unwrap_or(clear)).await
        });
        let own = clear.suited(&*device, has_parity);
        let cleared = || self.devices.clear(&device, range, own);
        let mut result = cleared().await;
        if result.is_err() {
            result = Box::pin(self.again(member, &device, result, cleared)).await;
        }
        self.finish_beside(member, beside).await;
        self.lose_on_error(member, &device, result)
    }

    /// Flushes every member; one that fails is lost.
    pub(crate) async fn flush(self: &Rc<Self>) -> IoResult<()> {
        let flush = |member| self.clone().flush_one(member);
        // The flush runs to its end also when nobody waits: who could not flush is lost, and says so once.
        let (inner, flushes) = (self.clone(), self.indexes().map(flush).collect());
        let flushed = async move { together(&inner.handle, flushes).await };
        let results = self.handle.finish(flushed).await;
        results.into_iter().collect::<IoResult<()>>()?;
        self.check_groups()
    }

    pub(crate) async fn flush_one(self: Rc<Self>, member: MemberIndex) -> IoResult<()> {
        let Ok(device) = self[member].device() else { return Ok(()) };
        let members = self.clone();
        let flush = move |device: Rc<D>| async move { members.devices.flush(&device).await };
        let beside = self.beside(member, flush);
        let failed_flushes = || self.devices.checked(&device).map(|it| it.failed_flushes());
        let before = failed_flushes();
        let result = self.devices.flush(&device).await;
        let may_have_dropped = before.is_none() || failed_flushes() != before;
        let mut doubt = None;
        match result {
            Ok(()) => self.refusals().forget_flush(member),
            Err(IoError::Gone) => {}
            Err(error) => {
                doubt = Some(self.doubt());
                self.refusals().note_flush(member, error);
                self.handle.sleep(FLUSH_JUDGED_NS).await;
                // Others may have had nothing to store, and flush whatever they would refuse.
                self.is_refusal_common_now(member).await;
            }
        }
        if let Some(checked) = self.devices.checked(&device) {
            self.note_page_errors(member, &device, checked.take_errors());
        }
        self.finish_beside(member, beside).await;
        let flushed = self.lose_on_error(member, &device, result);
        if let Err(error) = flushed
            && may_have_dropped
        {
            // At once: the next flush may succeed, and would be taken for one that covers what was dropped.
            self.emit(MemberEvent::Unflushed(error));
        }
        drop(doubt);
        flushed
    }

    /// Has devices flush again that failed a flush: what they may have dropped is written anew, or told.
    pub(crate) fn forget_failed_flushes(&self) {
        for device in self.indexes().filter_map(|member| self[member].device().ok()) {
            device.forget_failed_flush();
        }
    }

    /// What the checksums of a member's device have found.
    pub(crate) fn checksum_counts(&self, member: MemberIndex) -> MemberCounts {
        self[member].device().map(|own| self.devices.counts(&own)).unwrap_or_default()
    }

    /// Blocks that others than their checksums show to be right get checksums, if they have none.
    pub(crate) async fn adopt(&self, member: MemberIndex, at: Lba, bytes: &[u8]) {
        let Ok(device) = self[member].device() else { return };
        self.devices.adopt(&device, self.on_device(at), bytes).await;
    }

    /// A block of a member is known to be wrong, and was not before.
    pub(crate) fn convict(&self, member: MemberIndex, at: Lba) {
        let Ok(device) = self[member].device() else { return };
        self.devices.convict(&device, self.on_device(at));
    }

    /// Whether all blocks of a range of a member have checksums that are known.
    pub(crate) async fn knows(&self, member: MemberIndex, range: SectorRange) -> bool {
        let Ok(device) = self[member].device() else { return false };
        self.devices.knows(&device, self.on_device(range.start), range.bytes()).await
    }

    /// Whether content that was computed for a member is what its checksums say, as far as these are known.
    pub(crate) async fn accepts(&self, member: MemberIndex, at: Lba, bytes: &[u8]) -> bool {
        let Ok(device) = self[member].device() else { return true };
        self.devices.accepts(&device, self.on_device(at), bytes).await
    }

    /// A durable write of something that is not a chunk, at its sector of the device.
    pub(crate) async fn write_meta(
        self: Rc<Self>,
        member: MemberIndex,
        at: Lba,
        data: Bytes,
    ) -> IoResult<()> {
        let Ok(device) = self[member].device() else { return Ok(()) };
        self.counters().add(|counts| counts.metadata_writes += 1);
        let write = || device.write(at, data.clone().into(), Durability::Durable);
        let mut result = write().await;
        if result.is_err() {
            result = Box::pin(self.again(member, &device, result, write)).await;
        }
        self.lose_on_error(member, &device, result)
    }

    /// Does a change that failed again: at once after a medium error, and for seconds while it is refused.
    ///
    /// Drives remap a block when it is written, and a path that was reset is back. A rebuild for a write that
    /// the drive takes a moment later is the larger risk. A flush is never tried again: nobody knows what the
    /// drive has dropped.
    pub(crate) async fn again<F: Future<Output = IoResult<()>>>(
        self: &Rc<Self>,
        member: MemberIndex,
        device: &Rc<D>,
        mut result: IoResult<()>,
        change: impl Fn() -> F,
    ) -> IoResult<()> {
        if let Err(error) = result
            && self.may_try_again(member, device, error)
        {
            result = change().await;
            if result.is_ok() {
                // What a member refuses for longer is no matter of single errors.
                self.note_error(member);
            }
        }
        let is_of_use = || self[member].is_device(device);
        let is_common = async || self.is_refusal_common_now(member).await;
        self.refusals().again(member, result, is_of_use, is_common, change).await
    }

    /// Does the same to the successor of a member, if it has one.
    fn beside<F: Future<Output = IoResult<()>> + 'static>(
        &self,
        member: MemberIndex,
        change: impl FnOnce(Rc<D>) -> F,
    ) -> Option<(Rc<D>, JoinHandle<IoResult<()>>)> {
        let device = self[member].succeeding()?;
        if canary::is(Canary::CopyMissesWrites) {
            return None;
        }
        Some((device.clone(), self.handle.spawn(change(device))))
    }

    /// A successor that does not take a change is none any more.
    async fn finish_beside(
        &self,
        member: MemberIndex,
        beside: Option<(Rc<D>, JoinHandle<IoResult<()>>)>,
    ) {
        let Some((device, result)) = beside else { return };
        if result.await.is_err() {
            self.give_successor_up(member, &device);
        }
    }

    /// Writes to a device that is being filled. A device that refuses the write is given up.
    pub(crate) async fn write_target(
        &self,
        member: MemberIndex,
        device: &Rc<D>,
        at: Lba,
        data: Bytes,
    ) {
        self.counters().add(|counts| counts.member_writes += 1);
        let (at, cached) = (self.on_device(at), Durability::Cached);
        let result = self.devices.write(device, at, data.into(), cached).await;
        if result.is_err() {
            self.give_successor_up(member, device);
        }
    }

    /// The sector of a device that has this sector of the member's chunks.
    pub(crate) fn on_device(&self, at: Lba) -> Lba {
        at.plus(self.data_start)
    }

    /// A member that did not take a change is lost, if the others have all it held; then the change stands.
    /// The membership's barrier comes before the acknowledgement (the journal's end, the array's write).
    pub(crate) fn lose_on_error(
        &self,
        member: MemberIndex,
        device: &Rc<D>,
        result: IoResult<()>,
    ) -> IoResult<()> {
        let Err(error) = result else { return Ok(()) };
        let lost = self.lost_in(self.geometry.group_of_member(member));
        let others_have_it = lost < self.geometry.parity_chunks();
        if !self[member].is_device(device) {
            return Ok(());
        }
        self[member].vitals().count(|counts| counts.errors_write += 1);
        if self[member].is_rebuilding() {
            // Nobody counts on it yet.
            self.lose(member);
            return Ok(());
        }
        if error == IoError::NoSpace && self.refusals().is_short_elsewhere(member) {
            return Err(error);
        }
        if error != IoError::Gone && self.is_refusal_common(member) {
            self.emit(MemberEvent::Refused(error));
            return Err(error);
        }
        if error == IoError::Gone || others_have_it {
            self.lose(member);
        }
        if others_have_it { Ok(()) } else { Err(error) }
    }

    /// The same for whatever is the device of a member.
    pub(crate) fn lose_on_error_now(
        &self,
        member: MemberIndex,
        result: IoResult<()>,
    ) -> IoResult<()> {
        let Ok(device) = self[member].device() else { return Ok(()) };
        self.lose_on_error(member, &device, result)
    }
}
