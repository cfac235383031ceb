//! What an array with a journal does before it serves: redo what the rings have and the members may
//! not, then begin a new life of the rings.

use std::collections::BTreeMap;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Durability, IoError, IoResult, Lba, Payload, SECTOR_BYTES, SectorRange,
};

use crate::array::{ArrayError, Inner};
use crate::canary::{self, Canary};
use crate::journal::extents::{Extent, Extents};
use crate::journal::format::{
    BLOCK_BYTES, BLOCK_SECTORS, BatchPlace, Bounds, Entry, Label, Start, decode_batch,
    length_of_batch,
};
use crate::journal::ring::Ring;
use crate::journal::{Journal, JournalOptions, JournalStart, ReplayReport, batch_blocks_max};
use crate::members::{Clear, together};

/// Writes to one member that a replay has under way.
const REDO_DEPTH: usize = 16;
/// Longest write of a replay, in sectors: bounds its memory.
const REDO_SECTORS: u64 = 2048;

/// What was found in one ring.
#[derive(Default)]
struct Found {
    life: u64,
    label_number: u64,
    bounds: Bounds,
    records: Vec<Record>,
}

/// One entry, and the sector of the device where its data are.
#[derive(Clone, Copy)]
struct Record {
    entry: Entry,
    data: Option<u64>,
}

/// All rings together.
struct Gathered {
    /// Transactions below are in the rings of all their members.
    recorded_below: u64,
    life: u64,
    next_number: u64,
    /// By transaction, from the highest watermark on: the members that have a part of it, and those
    /// whose ring has it.
    transactions: BTreeMap<u64, (u64, u64)>,
}

impl Gathered {
    fn of(found: &[Option<Found>]) -> Self {
        let rings = || found.iter().flatten();
        let highest = |of: fn(&Found) -> u64| rings().map(of).max().unwrap_or(0);
        let watermark = highest(|ring| ring.bounds.watermark);
        let mut transactions = BTreeMap::new();
        let mut next_number = watermark;
        for (member, ring) in found.iter().enumerate() {
            for record in ring.iter().flat_map(|ring| &ring.records) {
                let number = record.entry.number.get();
                next_number = next_number.max(number);
                if number >= watermark {
                    let seen = transactions.entry(number).or_insert((0, 0));
                    seen.0 |= record.entry.participants.get();
                    seen.1 |= 1 << member;
                }
            }
        }
        Self {
            recorded_below: highest(|ring| ring.bounds.recorded_below),
            life: highest(|ring| ring.life),
            next_number: next_number + 1,
            transactions,
        }
    }

    /// Members in service whose ring lacks a record that was there.
    fn damaged(&self, present: u64) -> u64 {
        let proven = self.transactions.range(..self.recorded_below);
        proven
            .fold(0, |damaged, (_, (participants, seen))| damaged | participants & present & !seen)
    }

    /// Whether a transaction is to be redone: nothing of it is in place else.
    fn is_complete(&self, number: u64, present: u64) -> bool {
        self.transactions.get(&number).is_some_and(|(participants, seen)| {
            participants & present & !seen == 0 || canary::is(Canary::IncompleteRedone)
        })
    }
}

impl<D: BlockDevice> Inner<D> {
    /// Makes the journal ready to serve.
    ///
    /// # Errors
    /// When the places do not suit the geometry, or too many members fail.
    pub(crate) async fn begin_journal(
        self: &Rc<Self>,
        options: JournalOptions,
        start: JournalStart,
    ) -> Result<ReplayReport, ArrayError> {
        options.check(&self.geometry)?;
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
        if !canary::is(Canary::ReplayBeforeFlush) {
            // After a mere kill records may be in volatile caches: what is redone must stay there.
            self.flush_all().await.map_err(ArrayError::Journal)?;
        }
        let mut found = self.walk_all(&options).await;
        self.lose_damaged(&found, &mut report)?;
        let gathered = Gathered::of(&found);
        let damaged = gathered.damaged(self.present());
        for member in (0..self.members.len()).filter(|member| damaged >> member & 1 == 1) {
            found[member] = None;
        }
        self.lose_damaged(&found, &mut report)?;
        // Before anything is redone without a member: it must not come back as it is.
        self.losses_recorded().await.map_err(ArrayError::Journal)?;
        let present = self.present();
        let known = gathered.transactions.keys();
        let complete = known.filter(|number| gathered.is_complete(**number, present)).count();
        report.transactions = gathered.transactions.len() as u64;
        report.incomplete = report.transactions - complete as u64;
        report.sectors = self.redo_all(&found, &gathered).await.map_err(ArrayError::Journal)?;
        self.flush_all().await.map_err(ArrayError::Journal)?;
        let numbers = found.iter().map(|ring| ring.as_ref().map_or(0, |ring| ring.label_number));
        let begun = self.begin_life(options, &gathered, numbers.collect()).await;
        begun.map_err(ArrayError::Journal)?;
        Ok(report)
    }

    /// Makes the rings of a new array ready; what was there is void.
    async fn create_journal(self: &Rc<Self>, options: JournalOptions) -> Result<(), ArrayError> {
        let numbers = vec![0; self.members.len()];
        let begun = self.begin_life(options, &Gathered::of(&[]), numbers).await;
        begun.map_err(ArrayError::Journal)
    }

    fn present(&self) -> u64 {
        let online = (0..self.members.len()).filter(|member| self.members[*member].is_online());
        online.fold(0, |mask, member| mask | 1 << member)
    }

    /// A member in service whose ring could not be read is lost, if its group can lose it.
    fn lose_damaged(
        &self,
        found: &[Option<Found>],
        report: &mut ReplayReport,
    ) -> Result<(), ArrayError> {
        for (member, found) in found.iter().enumerate() {
            if self.members[member].is_online() && found.is_none() {
                self.settle_now(member, Err(IoError::Medium))
                    .map_err(|_| ArrayError::JournalDamaged { member })?;
                report.damaged.push(member);
            }
        }
        Ok(())
    }

    /// What every ring has; none for those of lost members and those that cannot be read.
    async fn walk_all(self: &Rc<Self>, options: &JournalOptions) -> Vec<Option<Found>> {
        let options = Rc::new(options.clone());
        let walk = |member| {
            let (inner, options) = (self.clone(), options.clone());
            async move { inner.walk(member, &options).await.ok() }
        };
        together(&self.handle, (0..self.members.len()).map(walk).collect()).await
    }

    async fn walk(self: Rc<Self>, member: usize, options: &JournalOptions) -> IoResult<Found> {
        let device = self.device_of(member)?;
        if !self.members[member].is_online() {
            // One that is being rebuilt takes no part: what is redone it lacks.
            return Err(IoError::Gone);
        }
        let (owner, place) = (options.owner(member), options.places[member]);
        let mut newest: Option<Label> = None;
        for copy in 0..2 {
            let block = device.read(place.label_lba(copy), Buf::new(BLOCK_BYTES)).await?;
            let label = Label::decode(&block, owner).filter(|label| {
                label.number.get() % 2 == copy
                    && newest.is_none_or(|other| other.number.get() < label.number.get())
            });
            newest = label.or(newest);
        }
        let label = newest.ok_or(IoError::Medium)?;
        let watermark = label.watermark.get();
        let mut found = Found {
            life: label.life.get(),
            label_number: label.number.get(),
            bounds: Bounds { watermark, recorded_below: watermark },
            records: Vec::new(),
        };
        let (mut block, mut sequence) = (label.tail_block.get(), label.tail_sequence.get());
        loop {
            let mut next = None;
            for block in [block, 0].into_iter().filter(|block| *block < owner.blocks) {
                let at = BatchPlace { block, life: found.life, sequence };
                next = self.walk_batch(&device, member, options, at, &mut found).await?;
                if next.is_some() {
                    break;
                }
            }
            let Some(next) = next else { return Ok(found) };
            (block, sequence) = (next, sequence + 1);
        }
    }

    /// Takes one batch; the block behind it, or none if there is no whole batch here.
    async fn walk_batch(
        &self,
        device: &Rc<D>,
        member: usize,
        options: &JournalOptions,
        at: BatchPlace,
        found: &mut Found,
    ) -> IoResult<Option<u64>> {
        let (owner, place) = (options.owner(member), options.places[member]);
        let first = place.range_of(at.block, 1);
        let head = device.read(first.start, Buf::new(BLOCK_BYTES)).await?;
        let Some(blocks) = length_of_batch(&head, owner, at) else { return Ok(None) };
        let bytes = blocks as usize * BLOCK_BYTES;
        if bytes as u64 > u64::from(device.limits().max_transfer_bytes) {
            return Ok(None);
        }
        let batch = device.read(first.start, Buf::new(bytes)).await?;
        let decoded = decode_batch(&batch, member, self.geometry.member_sectors());
        let Some((bounds, entries)) = decoded else { return Ok(None) };
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
        gathered: &Gathered,
    ) -> IoResult<u64> {
        let present = self.present();
        let mut redone = Vec::new();
        for (member, ring) in found.iter().enumerate() {
            let mut extents = Extents::default();
            // Records of a ring ascend: later ones are put over earlier ones.
            for Record { entry, data } in ring.iter().flat_map(|ring| &ring.records) {
                if gathered.is_complete(entry.number.get(), present) {
                    let (at, sectors) = (entry.at.get(), u64::from(entry.sectors.get()));
                    extents.put(Extent { at, sectors, from: *data });
                }
            }
            redone.push(self.clone().redo(member, extents.into_vec()));
        }
        let results = together(&self.handle, redone).await;
        let sectors = results.into_iter().sum::<IoResult<u64>>()?;
        self.losses_recorded().await?;
        (0..self.geometry.group_count()).try_for_each(|group| self.check_group(group))?;
        Ok(sectors)
    }

    async fn redo(self: Rc<Self>, member: usize, extents: Vec<Extent>) -> IoResult<u64> {
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
            let some = some.into_iter().map(|extent| self.clone().redo_extent(member, extent));
            let results = together(&self.handle, some.collect()).await;
            results.into_iter().collect::<IoResult<()>>()?;
        }
        Ok(sectors)
    }

    async fn redo_extent(self: Rc<Self>, member: usize, extent: Extent) -> IoResult<()> {
        let at = Lba(extent.at);
        let Some(from) = extent.from else {
            let range = SectorRange::new(at, extent.sectors);
            return self.clear_member(member, range, Clear::Zeroes(Durability::Cached)).await;
        };
        let Ok(device) = self.device_of(member) else { return Ok(()) };
        let data = Buf::new((extent.sectors * SECTOR_BYTES) as usize);
        match device.read(Lba(from), data).await {
            Ok(data) => self.write_member(member, at, data.freeze(), Durability::Cached).await,
            Err(error) => self.settle(member, &device, Err(error)),
        }
    }

    /// Labels on all members in service, by which all that the rings hold is void. A start that is cut
    /// off here finds some rings of each life: the new ones say that the old ones are not needed.
    async fn begin_life(
        self: &Rc<Self>,
        options: JournalOptions,
        gathered: &Gathered,
        label_numbers: Vec<u64>,
    ) -> IoResult<()> {
        let next_number = gathered.next_number;
        let is_left = canary::is(Canary::LifeNotBegun) && gathered.life > 0;
        let life = if is_left { gathered.life } else { gathered.life + 1 };
        let options = Rc::new(options);
        let label = |member: usize| {
            let (inner, options) = (self.clone(), options.clone());
            let number = label_numbers[member] + 1;
            let start = Start { life, number, tail: (0, 1), watermark: next_number };
            async move { inner.begin_ring(member, &options, start).await }
        };
        let begun = if is_left { 0 } else { self.members.len() };
        let labels = (0..begun).map(label).collect();
        let results = together(&self.handle, labels).await;
        results.into_iter().collect::<IoResult<()>>()?;
        self.losses_recorded().await?;
        let ring = |member: usize| {
            let place = options.places[member];
            let limit =
                self.members[member].device().map_or(u32::MAX, |it| it.limits().max_transfer_bytes);
            Ring::new(place, batch_blocks_max(place, limit), life, label_numbers[member] + 2)
        };
        let rings = (0..self.members.len()).map(ring).collect();
        let journal = Journal::new((*options).clone(), rings, next_number);
        assert!(self.journal.set(journal).is_ok(), "an array has one journal");
        Ok(())
    }

    /// Both copies of the label, one after the other.
    async fn begin_ring(
        self: Rc<Self>,
        member: usize,
        options: &JournalOptions,
        start: Start,
    ) -> IoResult<()> {
        for number in [start.number, start.number + 1] {
            let Ok(device) = self.device_of(member) else { return Ok(()) };
            let label = Label::encode(options.owner(member), Start { number, ..start });
            let at = options.places[member].label_lba(number);
            let written = device.write(at, Payload::One(label), Durability::Durable).await;
            self.settle(member, &device, written)?;
        }
        Ok(())
    }
}
