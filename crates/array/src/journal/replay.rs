//! The replay, which an array with a journal does before it serves. The replay redoes what the rings have
//! and the members may not, then begins a new life of the rings.

use std::rc::Rc;

use voltier_block::{
    Buf, DriveControl, Durability, IoError, IoResult, Lba, Payload, SECTOR_BYTES, SectorRange,
};
use voltier_ring::Handle;

use crate::canary::{self, Canary};
use crate::errors::ArrayError;
use crate::errors::journal::JournalError;
use crate::format::journal_place::{
    JOURNAL_MEMBERS_MAX, JournalOptions, JournalPlace, batch_blocks_max, journal_sectors_min,
};
use crate::format::journal_record::{
    BLOCK_BYTES, BLOCK_SECTORS, BatchPlace, Bounds, Entry, LABEL_COPIES, Label, Owner, RingIndex,
    Start, decode_batch, is_batch_of_later_life, is_later_batch, length_of_batch,
};
use crate::format::superblock::Usage;
use crate::geometry::chunks::Geometry;
use crate::geometry::numbers::MemberIndex;
use crate::journal::extents::{Extent, Extents};
use crate::journal::ledger::Ledger;
use crate::journal::placement::{Placement, read_label};
use crate::journal::ring::{LIVES_LEFT_OUT, Ring};
use crate::journal::ring_contents::{Found, Record, RingContents, leave_unproven_out};
use crate::members::at_once::together;
use crate::members::clear::{Clear, clear_device};
use crate::members::long_transfer::read_long;
use crate::members::member::Member;
use crate::members::member_set::MemberSet;
use crate::membership::current::Membership;

/// Writes to one member that a replay has under way.
const REDO_DEPTH: usize = 16;
/// Longest write of a replay, in sectors: bounds its memory.
const REDO_SECTORS: u64 = 2048;
/// The blocks that are read at once of a ring that is looked through.
const LOOK_BLOCKS: u64 = 256;

/// Where a scan has come to.
#[derive(Clone, Copy)]
struct RingScan<'a> {
    options: &'a JournalOptions,
    ring: RingIndex,
    place: JournalPlace,
}

impl RingScan<'_> {
    fn owner(&self) -> Owner {
        self.place.owner(self.options.array, self.ring)
    }
}

/// How an array with a journal begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalStart {
    /// The members are consistent as they are; what is in the rings is void.
    Create,
    /// The members are as a stop or a crash left them: the journal is replayed.
    Replay,
}

/// The counts of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayReport {
    /// Transactions found that are not known to be in place.
    pub transactions: u64,
    /// Transactions among those found that are not in all rings, so that nothing of them is in place.
    pub incomplete: u64,
    /// Sectors of members written again.
    pub sectors: u64,
    /// Members whose ring is damaged: they were taken out of service.
    pub damaged: Vec<usize>,
}

/// # Errors
/// When the places do not suit the geometry.
fn check_places(options: &JournalOptions, geometry: &Geometry) -> Result<(), ArrayError> {
    let count = geometry.member_count();
    if count > JOURNAL_MEMBERS_MAX {
        return Err(ArrayError::JournalMembers { members: count });
    }
    let given = options.places.len();
    if given != count {
        return Err(ArrayError::MemberCount { given, expected: count });
    }
    let needed = journal_sectors_min(geometry);
    let fits = |place: &JournalPlace| {
        place.start.0.is_multiple_of(BLOCK_SECTORS) && place.sectors >= needed
    };
    match options.places.iter().position(|place| !fits(place)) {
        Some(member) => {
            let sectors = options.places[member].sectors;
            Err(ArrayError::JournalPlace { member, sectors, needed })
        }
        None => Ok(()),
    }
}

/// A start of the journal.
pub(crate) struct Replay<D> {
    handle: Handle,
    geometry: Geometry,
    members: Rc<MemberSet<D>>,
    membership: Rc<Membership>,
    placement: Rc<Placement<D>>,
    /// Every transaction below this is in place, and may be for a shape that is gone.
    redo_from: u64,
}

impl<D: DriveControl> Replay<D> {
    pub(crate) fn new(
        handle: &Handle,
        geometry: &Geometry,
        members: &Rc<MemberSet<D>>,
        membership: &Rc<Membership>,
        placement: &Rc<Placement<D>>,
        redo_from: u64,
    ) -> Rc<Self> {
        Rc::new(Self {
            handle: handle.clone(),
            geometry: geometry.clone(),
            members: members.clone(),
            membership: membership.clone(),
            placement: placement.clone(),
            redo_from,
        })
    }

    /// Makes the journal ready to serve.
    ///
    /// # Errors
    /// When the places do not suit the geometry, or too many members fail.
    pub(crate) async fn run(
        self: &Rc<Self>,
        options: JournalOptions,
        start: JournalStart,
    ) -> Result<ReplayReport, ArrayError> {
        check_places(&options, &self.geometry)?;
        match start {
            JournalStart::Create => {
                self.create_journal(options).await?;
                Ok(ReplayReport::default())
            }
            JournalStart::Replay => self.replay(options).await,
        }
    }

    /// Brings the members to what the journal says, and makes it ready to serve.
    async fn replay(self: &Rc<Self>, options: JournalOptions) -> Result<ReplayReport, ArrayError> {
        let mut report = ReplayReport::default();
        self.flush_journal_device().await?;
        let mut found = self.scan_all(&options).await;
        if self.mend_void_rings(&options, &found).await? {
            found = self.scan_all(&options).await;
        }
        leave_unproven_out(&mut found);
        self.lose_damaged(&found, &mut report)?;
        if self.placement.is_on_device() && found[self.members.len()].is_none() {
            self.lose_damaged_device()?;
        }
        // Older transactions may be for rows that have another shape by now.
        let redo_from = self.redo_from;
        let contents = RingContents::of(&found, self.members.len(), redo_from);
        let damaged = contents.damaged(self.present());
        for member in self.members.indexes().filter(|member| damaged >> member.0 & 1 == 1) {
            found[member.0] = None;
        }
        self.lose_damaged(&found, &mut report)?;
        // Before anything is redone without a member: it must not come back as it is.
        self.membership.barrier().await.map_err(ArrayError::Journal)?;
        let present = self.present();
        let known = contents.transactions.keys();
        let complete = known.filter(|number| contents.is_complete(**number, present)).count();
        report.transactions = contents.transactions.len() as u64;
        report.incomplete = report.transactions - complete as u64;
        report.sectors = self.redo_all(&found, &contents).await.map_err(ArrayError::Journal)?;
        self.membership.flush(&self.members).await.map_err(ArrayError::Journal)?;
        let numbers = found.iter().map(|ring| ring.as_ref().map_or(0, |ring| ring.label_number));
        let begun = self.begin_life(options, &contents, numbers.collect()).await;
        begun.map_err(ArrayError::Journal)?;
        Ok(report)
    }

    /// Writes rings of members anew that cannot be read, where nothing in them is needed: after a stop in
    /// order, and beside a journal device. The writes may mend sectors. Says whether any ring was written.
    ///
    /// Meanwhile the record says that the array is stopped, if it was. Should this start be cut off, the next
    /// one takes the rings for void as well.
    async fn mend_void_rings(
        self: &Rc<Self>,
        options: &JournalOptions,
        found: &[Option<Found>],
    ) -> Result<bool, ArrayError> {
        let was_stopped = !self.membership.is_replay_due();
        let is_unread =
            |member: &MemberIndex| self.members[*member].is_online() && found[member.0].is_none();
        let unread: Vec<MemberIndex> = self.members.indexes().filter(is_unread).collect();
        if unread.is_empty() || !(was_stopped || self.placement.is_on_device()) {
            return Ok(false);
        }
        if was_stopped {
            self.record_usage(Usage::Clean).await?;
        }
        let all = RingContents::of(found, self.members.len(), 0);
        // Nobody knows the life of a ring that cannot be read, whose batches may be there still.
        let life = all.life + LIVES_LEFT_OUT;
        let start = Start { life, number: 1, tail: (0, 1), watermark: all.watermark };
        for member in unread {
            let Ok(device) = self.members[member].device() else { continue };
            let ring = RingIndex::of(member);
            let place = self.ring_place(options, ring);
            let blocks = place.range_of(0, place.blocks());
            // All of it: a block that cannot be read could end the next scan.
            let _ = clear_device(&*device, blocks, Clear::Zeroes(Durability::Durable)).await;
            let _ = self.clone().begin_ring(ring, options, start).await;
        }
        if was_stopped {
            self.record_usage(Usage::InUse).await?;
        }
        Ok(true)
    }

    async fn record_usage(&self, usage: Usage) -> Result<(), ArrayError> {
        self.membership.set_usage(usage);
        self.membership.recorded().await.map_err(ArrayError::Journal)
    }

    /// Makes the rings of a new array ready; what was there is void.
    async fn create_journal(self: &Rc<Self>, options: JournalOptions) -> Result<(), ArrayError> {
        let numbers = vec![0; self.members.len() + 1];
        let begun = self.begin_life(options, &RingContents::of(&[], 0, 0), numbers).await;
        begun.map_err(ArrayError::Journal)
    }

    fn present(&self) -> u64 {
        let online = self.members.indexes().filter(|member| self.members[*member].is_online());
        online.fold(0, |mask, member| mask | 1 << member.0)
    }

    /// A member in service whose ring could not be read is lost, if its group can lose it.
    fn lose_damaged(
        &self,
        found: &[Option<Found>],
        report: &mut ReplayReport,
    ) -> Result<(), ArrayError> {
        let is_damaged =
            |member: &MemberIndex| self.members[*member].is_online() && found[member.0].is_none();
        for group in self.geometry.groups() {
            // More than the group can lose: perhaps none of them answers just now, and all come back.
            let damaged: Vec<MemberIndex> =
                self.geometry.members_of(group).filter(is_damaged).collect();
            if let Some(member) = damaged.first()
                && self.members.lost_in(group) + damaged.len() > self.geometry.parity_chunks()
            {
                return Err(ArrayError::JournalDamaged { member: member.0 });
            }
        }
        for (member, found) in self.members.indexes().zip(found) {
            if self.members[member].is_online() && found.is_none() {
                self.members
                    .lose_on_error_now(member, Err(IoError::Medium))
                    .map_err(|_| ArrayError::JournalDamaged { member: member.0 })?;
                report.damaged.push(member.0);
            }
        }
        Ok(())
    }

    /// All rings: the members' in order, then the journal device's.
    fn rings(&self) -> impl Iterator<Item = RingIndex> + use<D> {
        self.members.indexes().map(RingIndex::of).chain([RingIndex::DEVICE])
    }

    /// The content of every ring; none for those of lost members and those that cannot be read.
    async fn scan_all(self: &Rc<Self>, options: &JournalOptions) -> Vec<Option<Found>> {
        let options = Rc::new(options.clone());
        let scan = |ring| {
            let (inner, options) = (self.clone(), options.clone());
            async move { inner.scan(ring, &options).await.ok() }
        };
        together(&self.handle, self.rings().map(scan).collect()).await
    }

    async fn scan(self: Rc<Self>, ring: RingIndex, options: &JournalOptions) -> IoResult<Found> {
        let device = self.placement.device_of_ring(ring)?;
        if ring.entry_in(&self.members).is_some_and(|member| !member.is_online()) {
            // One that is being rebuilt takes no part: what is redone it lacks.
            return Err(IoError::Gone);
        }
        let place = self.ring_place(options, ring);
        let scan = RingScan { options, ring, place };
        let owner = scan.owner();
        let (newest, is_copy_unread) = self.newest_label(&device, place, owner).await?;
        let label = newest.ok_or(IoError::Medium)?;
        let watermark = label.watermark.get();
        let mut found = Found {
            life: label.life.get(),
            label_number: label.number.get(),
            is_copy_unread,
            bounds: Bounds { watermark, recorded_below: watermark },
            records: Vec::new(),
        };
        let (mut block, mut sequence) = (label.tail_block.get(), label.tail_sequence.get());
        loop {
            let mut next = None;
            for block in [block, 0].into_iter().filter(|block| *block < owner.blocks) {
                let at = BatchPlace { block, life: found.life, sequence };
                next = self.scan_batch(&device, scan, at, &mut found).await?;
                if next.is_some() {
                    break;
                }
            }
            let Some(next) = next else { break };
            (block, sequence) = (next, sequence + 1);
        }
        // No other ring proves what that of a device has lost. The copy that cannot be read may be the newer
        // one. Then later batches, or those of a later life, may lie where the scan began.
        let must_be_last = is_copy_unread || ring == RingIndex::DEVICE;
        let end = BatchPlace { block: 0, life: found.life, sequence };
        if must_be_last && self.has_later_batch(&device, scan, end, is_copy_unread).await? {
            return Err(IoError::Medium);
        }
        Ok(found)
    }

    /// The newest copy of a ring's label that can be read, and whether one cannot.
    async fn newest_label(
        &self,
        device: &Rc<D>,
        place: JournalPlace,
        owner: Owner,
    ) -> IoResult<(Option<Label>, bool)> {
        let (mut newest, mut is_copy_unread) = (None::<Label>, false);
        for copy in 0..LABEL_COPIES {
            let label = match read_label(&**device, place, owner, copy).await {
                Err(IoError::Medium) => {
                    is_copy_unread = true;
                    None
                }
                read => read?,
            };
            let is_newer = |label: &Label| {
                newest.as_ref().is_none_or(|other| other.number.get() < label.number.get())
            };
            newest = label.filter(is_newer).or(newest);
        }
        Ok((newest, is_copy_unread))
    }

    /// Whether a ring has a batch behind the one where its scan ended, or of a later life. The scan's last
    /// batch was whole then, because no batch begins before the one in front of it is durable.
    async fn has_later_batch(
        &self,
        device: &Rc<D>,
        scan: RingScan<'_>,
        end: BatchPlace,
        in_later_lives: bool,
    ) -> IoResult<bool> {
        let owner = scan.owner();
        let is_later = |head: &[u8], block: u64| {
            is_later_batch(head, owner, block, end)
                || (in_later_lives && is_batch_of_later_life(head, owner, block, end))
        };
        for start in (0..owner.blocks).step_by(LOOK_BLOCKS as usize) {
            let range = scan.place.range_of(start, LOOK_BLOCKS.min(owner.blocks - start));
            let blocks = read_long(&**device, range.start, range.bytes() as usize).await?;
            let mut blocks = blocks.chunks_exact(BLOCK_BYTES).zip(start..);
            if blocks.any(|(head, block)| is_later(head, block)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes one batch; the block behind it, or none if there is no whole batch here.
    async fn scan_batch(
        &self,
        device: &Rc<D>,
        scan: RingScan<'_>,
        at: BatchPlace,
        found: &mut Found,
    ) -> IoResult<Option<u64>> {
        let owner = scan.owner();
        let first = scan.place.range_of(at.block, 1);
        let head = device.read(first.start, Buf::new(BLOCK_BYTES)).await?;
        let Some(blocks) = length_of_batch(&head, owner, at) else { return Ok(None) };
        let bytes = blocks as usize * BLOCK_BYTES;
        let batch = read_long(&**device, first.start, bytes).await?;
        let decoded = decode_batch(&batch, owner.ring, self.geometry.member_sectors());
        let Some((bounds, entries)) = decoded else { return Ok(None) };
        let is_known = |entry: &Entry| entry.member_in(owner.ring).0 < self.members.len();
        if !entries.iter().all(is_known) {
            return Ok(None);
        }
        found.bounds.watermark = found.bounds.watermark.max(bounds.watermark);
        found.bounds.recorded_below = found.bounds.recorded_below.max(bounds.recorded_below);
        let mut data = first.start.0 + BLOCK_SECTORS;
        for entry in entries {
            let own_data = entry.has_data().then_some(data);
            data += own_data.map_or(0, |_| u64::from(entry.sectors.get()));
            found.records.push(Record { entry, data: own_data });
        }
        Ok(Some(at.block + blocks))
    }

    /// Writes complete transactions in place; the sectors written.
    async fn redo_all(
        self: &Rc<Self>,
        found: &[Option<Found>],
        contents: &RingContents,
    ) -> IoResult<u64> {
        let present = self.present();
        let mut redone = Vec::new();
        let is_on_device = self.placement.is_on_device();
        for (member, own) in self.members.indexes().zip(found) {
            let mut extents = Extents::default();
            // The members' rings are empty while a device has the records.
            let (source, found) = if is_on_device {
                (RingIndex::DEVICE, found.last().unwrap_or(&None))
            } else {
                (RingIndex::of(member), own)
            };
            // Records of a ring ascend: later ones are put over earlier ones.
            for Record { entry, data } in found.iter().flat_map(|ring| &ring.records) {
                let is_own = entry.member_in(source) == member;
                if is_own && contents.is_complete(entry.number.get(), present) {
                    let (at, sectors) = (entry.at.get(), u64::from(entry.sectors.get()));
                    extents.put(Extent { at, sectors, from: *data });
                }
            }
            redone.push(self.clone().redo(member, source, extents.into_vec()));
        }
        let results = together(&self.handle, redone).await;
        let sectors = results.into_iter().sum::<IoResult<u64>>()?;
        self.membership.barrier().await?;
        self.members.check_groups()?;
        Ok(sectors)
    }

    async fn redo(
        self: Rc<Self>,
        member: MemberIndex,
        source: RingIndex,
        extents: Vec<Extent>,
    ) -> IoResult<u64> {
        if !self.members[member].is_online() {
            return Ok(0);
        }
        let short = extents.iter().flat_map(|extent| {
            // Zeroes carry no data: one command, however long.
            let most = if extent.from.is_some() { REDO_SECTORS } else { u64::MAX };
            extent.split(most)
        });
        let mut writes = short.peekable();
        let mut sectors = 0;
        while writes.peek().is_some() {
            let some: Vec<Extent> = writes.by_ref().take(REDO_DEPTH).collect();
            sectors += some.iter().map(|extent| extent.sectors).sum::<u64>();
            let some =
                some.into_iter().map(|extent| self.clone().redo_extent(member, source, extent));
            let results = together(&self.handle, some.collect()).await;
            results.into_iter().collect::<IoResult<()>>()?;
        }
        Ok(sectors)
    }

    async fn redo_extent(
        self: Rc<Self>,
        member: MemberIndex,
        source: RingIndex,
        extent: Extent,
    ) -> IoResult<()> {
        let at = Lba(extent.at);
        let Some(from) = extent.from else {
            let range = SectorRange::new(at, extent.sectors);
            return self
                .members
                .clone()
                .clear(member, range, Clear::Zeroes(Durability::Cached))
                .await;
        };
        let device = match self.placement.device_of_ring(source) {
            Ok(device) => device,
            Err(error) if source == RingIndex::DEVICE => return Err(error),
            Err(_) => return Ok(()),
        };
        match read_long(&*device, Lba(from), (extent.sectors * SECTOR_BYTES) as usize).await {
            Ok(data) => {
                self.members.clone().write(member, at, data.into(), Durability::Cached).await
            }
            Err(error) if source == RingIndex::DEVICE => Err(error),
            Err(error) => self.members.lose_on_error(member, &device, Err(error)),
        }
    }

    /// After a kill records may be in its volatile cache: what is redone must stay there.
    async fn flush_journal_device(self: &Rc<Self>) -> Result<(), ArrayError> {
        let Ok(device) = self.placement.device_of_ring(RingIndex::DEVICE) else { return Ok(()) };
        if device.flush().await.is_err() {
            self.lose_damaged_device()?;
        }
        Ok(())
    }

    /// The ring of the journal's device cannot be used: after a stop in order it is not needed.
    fn lose_damaged_device(&self) -> Result<(), ArrayError> {
        if self.membership.durable().is_none_or(|it| it.is_replay_due()) {
            return Err(JournalError::Damaged.into());
        }
        if let Ok(device) = self.placement.device_of_ring(RingIndex::DEVICE) {
            self.placement.lose_device(&device);
        }
        Ok(())
    }

    fn ring_place(&self, options: &JournalOptions, ring: RingIndex) -> JournalPlace {
        let own = self.placement.device_place();
        ring.entry_in(&options.places).copied().or(own).unwrap_or(JournalPlace::NONE)
    }

    /// Labels on all members in service, by which all that the rings hold is void. A start that is cut
    /// off here finds some rings of each life: the new ones say that the old ones are not needed.
    /// The ring of a member that is being filled keeps its label: nothing else tells the life of its batches.
    async fn begin_life(
        self: &Rc<Self>,
        options: JournalOptions,
        contents: &RingContents,
        label_numbers: Vec<u64>,
    ) -> IoResult<()> {
        let next_number = contents.next_number;
        let is_left = canary::is(Canary::LifeNotBegun) && contents.life > 0;
        let life = if is_left { contents.life } else { contents.life + 1 };
        let options = Rc::new(options);
        let label = |(ring, label_number): (RingIndex, &u64)| {
            let (inner, options) = (self.clone(), options.clone());
            let number = label_number + 1;
            let start = Start { life, number, tail: (0, 1), watermark: next_number };
            async move { inner.begin_ring(ring, &options, start).await }
        };
        let begun = if is_left { 0 } else { label_numbers.len() };
        if let Some(durable) = self.membership.durable() {
            // All of it is in place: from here on the journal may leave its device.
            durable.replay_is_done();
        }
        let takes_part =
            |ring: RingIndex| ring.entry_in(&self.members).is_none_or(Member::is_online);
        let served = self.rings().zip(&label_numbers).take(begun).filter(|it| takes_part(it.0));
        let labels = served.map(label).collect();
        let results = together(&self.handle, labels).await;
        results.into_iter().collect::<IoResult<()>>()?;
        self.membership.barrier().await?;
        let ring = |(ring, label_number): (RingIndex, &u64)| {
            let place = self.ring_place(&options, ring);
            let limit = self
                .placement
                .device_of_ring(ring)
                .map_or(u32::MAX, |it| it.limits().max_transfer_bytes);
            Ring::new(place, batch_blocks_max(place, limit), life, label_number + 2)
        };
        let mut rings: Vec<Ring> = self.rings().zip(&label_numbers).map(ring).collect();
        let device_ring = rings.pop().expect("the last is the journal device's");
        self.placement.begin(Ledger::new(options.array, rings, device_ring, next_number));
        Ok(())
    }

    /// Both copies of the label, one after the other.
    async fn begin_ring(
        self: Rc<Self>,
        ring: RingIndex,
        options: &JournalOptions,
        start: Start,
    ) -> IoResult<()> {
        for number in [start.number, start.number + 1] {
            let Ok(device) = self.placement.device_of_ring(ring) else { return Ok(()) };
            let place = self.ring_place(options, ring);
            let label = Label::encode(place.owner(options.array, ring), Start { number, ..start });
            let label = Payload::One(label);
            let at = place.label_lba(number);
            let write = || device.write(at, label.clone(), Durability::Durable);
            let mut written = write().await;
            if written.is_err()
                && let Some(member) = self.members.indexes().find(|it| RingIndex::of(*it) == ring)
            {
                written = self.members.again(member, &device, written, write).await;
            }
            self.placement.lose_ring_on_error(ring, &device, written)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::journal_place::journal_sectors_min;
    use crate::geometry::level::{Layout, Level};

    #[test]
    fn places_that_do_not_suit_are_refused() {
        let geometry =
            Geometry::new(Level::Raid5, Layout::default(), 3, 65536, 1024).expect("possible");
        let needed = journal_sectors_min(&geometry);
        let check = |start, sectors, count| {
            let place = JournalPlace { start: Lba(start), sectors };
            let options = JournalOptions { array: [1; 16], places: vec![place; count] };
            check_places(&options, &geometry)
        };
        let unsuited = |sectors| Err(ArrayError::JournalPlace { member: 0, sectors, needed });
        assert_eq!(check(1024, needed, 3), Ok(()));
        assert_eq!(check(1024, needed - 1, 3), unsuited(needed - 1));
        assert_eq!(check(1028, needed, 3), unsuited(needed));
        assert_eq!(check(1024, needed, 2), Err(ArrayError::MemberCount { given: 2, expected: 3 }));
    }
}
