//! The intent block: regions of the origin that are written past the log.
//!
//! A write that goes straight to the origin could be on the origin's medium while a power cut loses the
//! log's news of it. The news is the new copy, or the drop of the old one. A clean copy in the cache
//! would then be older than the origin. So the cache sets the intent bit of a region, durably, before the
//! first such write. After an unclean stop a start does not trust clean lines of regions whose bit is set.
//! Bits are cleared at checkpoints.

use std::cell::{Cell, RefCell};

use voltier_block::{Buf, DriveControl, Durability, IoError, IoResult, Lba, SectorRange};
use voltier_ring::FlushOnce;

use crate::canary::{self, Canary};
use crate::format::geometry::Geometry;
use crate::format::intent::{INTENT_HEAD_BYTES, INTENT_MAGIC, INTENT_OFFSETS, IntentHead};
use crate::format::superblock::BLOCK_BYTES;
use crate::map::loading::IntentBits;
use crate::numbers::IntentRegion;

/// A run of changes may have the clean lines distrusted of so much less than it has changed.
const AHEAD_SHARE: usize = 8;

struct Regions {
    bits: Vec<u8>,
    /// Direct writes under way, per region.
    busy: Vec<u32>,
    /// Regions written since the last checkpoint began to clear bits.
    touched: Vec<u8>,
    /// Regions whose bits stay for as long as the cache serves.
    kept: Vec<u8>,
}

/// The intent bits of one cache.
pub(crate) struct Intents {
    uuid: [u8; 16],
    generation: u64,
    sectors_per_region: u64,
    origin_sectors: u64,
    regions: RefCell<Regions>,
    /// The regions of the last run of long changes, one behind the other, with those that were set ahead.
    run: Cell<(usize, usize)>,
    /// Version of the bits in memory.
    wanted: Cell<u64>,
    /// Versions of the bits on the medium.
    written: FlushOnce,
    sequence: Cell<u64>,
}

/// A direct write under way.
pub(crate) struct Direct<'a> {
    intents: &'a Intents,
    first: IntentRegion,
    last: IntentRegion,
}

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        let mut regions = self.intents.regions.borrow_mut();
        for region in self.first.through(self.last) {
            regions.busy[region.0] -= 1;
        }
    }
}

impl Intents {
    pub(crate) fn new(geometry: &Geometry, uuid: [u8; 16], generation: u64, sequence: u64) -> Self {
        let sectors_per_region = geometry.lines_per_region() * geometry.line_sectors();
        let count = geometry.origin_sectors.div_ceil(sectors_per_region).max(1) as usize;
        let bytes = count.div_ceil(8);
        Self {
            uuid,
            generation,
            sectors_per_region,
            origin_sectors: geometry.origin_sectors,
            run: Cell::new((0, 0)),
            regions: RefCell::new(Regions {
                bits: vec![0; bytes],
                busy: vec![0; count],
                touched: vec![0; bytes],
                kept: vec![0; bytes],
            }),
            wanted: Cell::new(0),
            written: FlushOnce::default(),
            sequence: Cell::new(sequence),
        }
    }

    /// First and last region of a range that is not empty.
    fn regions_of(&self, range: SectorRange) -> (IntentRegion, IntentRegion) {
        let region_of = |sector| IntentRegion::of_sector(sector, self.sectors_per_region);
        (region_of(range.start.0), region_of(range.end().0 - 1))
    }

    /// Sets the intent bits of the regions of `range`, durably, before the range is written past the log.
    ///
    /// # Errors
    /// When the SSD does not take the bits.
    pub(crate) async fn begin<S: DriveControl>(
        &self,
        ssd: &S,
        range: SectorRange,
    ) -> IoResult<Direct<'_>> {
        let (first, last) = self.regions_of(range);
        let mut fresh = false;
        {
            let mut regions = self.regions.borrow_mut();
            for region in first.through(last) {
                let (byte, bit) = region.bit();
                fresh |= regions.bits[byte] & bit == 0;
                regions.bits[byte] |= bit;
                regions.touched[byte] |= bit;
                regions.busy[region.0] += 1;
            }
        }
        let direct = Direct { intents: self, first, last };
        if fresh {
            self.wanted.set(self.wanted.get() + 1);
        }
        // A bit set by another request may still be on its way: wait for it as for one's own.
        if !canary::is(Canary::IntentSkipped) {
            self.persist(ssd, self.wanted.get()).await?;
        }
        Ok(direct)
    }

    /// Before a change of which more may follow behind it, sets the bits of further regions. So a run of changes
    /// takes few writes of the intent block, each for more regions than the one before. Of `bare` regions nothing is
    /// cached that a start would not trust: as many are set as the run has had. Of others an eighth of that.
    ///
    /// The bits are on the SSD when [`begin`](Self::begin) has set those of the change itself. Nobody relies on
    /// them before that, and a checkpoint clears those of regions in which nothing was changed.
    pub(crate) fn look_ahead(&self, range: SectorRange, is_bare: impl Fn(SectorRange) -> bool) {
        let (first, last) = self.regions_of(range);
        let mut regions = self.regions.borrow_mut();
        let is_set = |regions: &Regions, region: IntentRegion| {
            let (byte, bit) = region.bit();
            regions.bits[byte] & bit != 0
        };
        if first.through(last).all(|region| is_set(&regions, region)) {
            return;
        }
        let (start, end) = self.run.get();
        let start = if (start..=end).contains(&first.0) { start } else { first.0 };
        let (behind, length) = (last.0 + 1, last.0 + 1 - start);
        let end = (behind + length).min(regions.busy.len());
        for region in (behind..end).map(IntentRegion) {
            let from = region.0 as u64 * self.sectors_per_region;
            let count = self.sectors_per_region.min(self.origin_sectors - from);
            let is_near = region.0 < behind + length / AHEAD_SHARE;
            if is_near || is_bare(SectorRange::new(Lba(from), count)) {
                let (byte, bit) = region.bit();
                regions.bits[byte] |= bit;
            }
        }
        self.run.set((start, end));
        self.wanted.set(self.wanted.get() + 1);
    }

    /// Regions in which a direct write is under way.
    pub(crate) fn busy(&self) -> usize {
        self.regions.borrow().busy.iter().filter(|count| **count > 0).count()
    }

    async fn persist<S: DriveControl>(&self, ssd: &S, version: u64) -> IoResult<()> {
        self.written
            .until(version, || self.wanted.get(), async |_| self.write_block(ssd).await)
            .await
    }

    async fn write_block<S: DriveControl>(&self, ssd: &S) -> IoResult<()> {
        let sequence = self.sequence.get() + 1;
        self.sequence.set(sequence);
        let head = IntentHead {
            magic: INTENT_MAGIC.into(),
            crc: 0.into(),
            uuid: self.uuid,
            generation: self.generation.into(),
            sequence: sequence.into(),
            reserved: [0; 24],
        };
        let block = head.encode(&self.regions.borrow().bits);
        let offset = INTENT_OFFSETS[(sequence % 2) as usize];
        ssd.write(Lba::from_bytes(offset), Buf::copy_of(&block).into(), Durability::Durable).await
    }

    /// Starts a round of clearing: from here on, `touched` tells which bits must stay.
    pub(crate) fn begin_clearing(&self) {
        let mut regions = self.regions.borrow_mut();
        regions.touched.fill(0);
        let Regions { busy, touched, .. } = &mut *regions;
        for (region, count) in busy.iter().enumerate() {
            if *count > 0 {
                let (byte, bit) = IntentRegion(region).bit();
                touched[byte] |= bit;
            }
        }
    }

    /// Ends the round, after SSD and origin were flushed: only touched regions keep their bits.
    pub(crate) async fn finish_clearing<S: DriveControl>(&self, ssd: &S) -> IoResult<()> {
        {
            let mut regions = self.regions.borrow_mut();
            let stay: Vec<u8> = regions
                .touched
                .iter()
                .zip(&regions.kept)
                .map(|(touched, kept)| touched | kept)
                .collect();
            if regions.bits == stay {
                return Ok(());
            }
            regions.bits = stay;
        }
        self.persist_bits(ssd).await
    }

    /// The origin may have lost writes past the log: clean lines of the regions that are set now may differ
    /// from it. The bits stay, and the next start drops these lines.
    pub(crate) fn keep_all(&self) {
        let mut regions = self.regions.borrow_mut();
        let Regions { bits, kept, .. } = &mut *regions;
        kept.iter_mut().zip(bits).for_each(|(kept, bits)| *kept |= *bits);
    }

    /// Whether the next start has to drop clean lines.
    pub(crate) fn keeps_any(&self) -> bool {
        self.regions.borrow().kept.iter().any(|bits| *bits != 0)
    }

    /// A copy of the bits as they are now.
    pub(crate) fn bits(&self) -> IntentBits {
        let bits = self.regions.borrow().bits.clone();
        IntentBits::new(bits, self.sectors_per_region)
    }

    /// Takes over the bits of a loaded block.
    pub(crate) fn load_bits(&self, block: &[u8]) {
        let mut regions = self.regions.borrow_mut();
        let bytes = regions.bits.len();
        regions.bits.copy_from_slice(&block[INTENT_HEAD_BYTES..INTENT_HEAD_BYTES + bytes]);
    }

    /// Writes the bits as they are in memory.
    ///
    /// # Errors
    /// The SSD's.
    pub(crate) async fn persist_bits<S: DriveControl>(&self, ssd: &S) -> IoResult<()> {
        self.wanted.set(self.wanted.get() + 1);
        self.persist(ssd, self.wanted.get()).await
    }

    /// Trusts no region: for when a copy of the block cannot be read.
    pub(crate) fn set_all(&self) {
        self.regions.borrow_mut().bits.fill(0xff);
    }
}

/// The newer of the two copies of the intent block, and whether both were whole.
pub(crate) async fn load_block<S: DriveControl>(
    ssd: &S,
    uuid: &[u8; 16],
) -> IoResult<(Option<(IntentHead, Buf)>, bool)> {
    let mut newest: Option<(IntentHead, Buf)> = None;
    let (mut whole, mut unreadable) = (true, 0);
    for offset in INTENT_OFFSETS {
        let block = match ssd.read(Lba::from_bytes(offset), Buf::new(BLOCK_BYTES)).await {
            Ok(block) => block,
            // Without a copy the numbers begin anew, and one that can be read later would count as newer.
            Err(IoError::Medium) if unreadable == 0 => {
                (whole, unreadable) = (false, 1);
                continue;
            }
            Err(error) => return Err(error),
        };
        match IntentHead::decode(&block, uuid) {
            Some(head) => {
                let newer = newest
                    .as_ref()
                    .is_none_or(|other| head.sequence.get() > other.0.sequence.get());
                if newer {
                    newest = Some((head, block));
                }
            }
            None => whole = false,
        }
    }
    Ok((newest, whole))
}

#[cfg(test)]
mod tests {
    use voltier_block::GIB;
    use voltier_drive::MemoryDevice;
    use voltier_ring::{Executor, NoFiles};

    use super::*;
    use crate::config::{FormatOptions, LineSize};
    use crate::policy::PolicyKind;

    const UUID: [u8; 16] = [1; 16];

    fn intents() -> (Intents, MemoryDevice) {
        let (line_size, policy) = (LineSize::DEFAULT, PolicyKind::Lru);
        let format = FormatOptions { line_size, policy, uuid: UUID };
        let geometry = Geometry::plan(&format, 64 << 20, 8192 * GIB / 512).unwrap();
        (Intents::new(&geometry, UUID, 1, 0), MemoryDevice::new(64 << 20))
    }

    /// Changes one behind the other, each with its bits on the SSD before it begins; how often the block was
    /// written.
    async fn run(intents: &Intents, ssd: &MemoryDevice, is_bare: impl Fn(u64) -> bool) -> u64 {
        let before = intents.sequence.get();
        for number in 0..2048 {
            let range = SectorRange::from_bytes(number * 4 * GIB, 4 * GIB);
            intents.look_ahead(range, |region| is_bare(region.start.bytes() / (4 * GIB)));
            let _direct = intents.begin(ssd, range).await.unwrap();
            let (_, block) = load_block(ssd, &UUID).await.unwrap().0.unwrap();
            let bits =
                IntentBits::new(block[INTENT_HEAD_BYTES..].to_vec(), intents.sectors_per_region);
            let mut sectors = range.start.0..range.end().0;
            assert!(sectors.by_ref().step_by(1 << 15).all(|sector| bits.is_set(sector)));
        }
        intents.sequence.get() - before
    }

    #[test]
    fn a_run_of_long_changes_takes_few_writes() {
        Executor::in_virtual_time(NoFiles).block_on(async {
            let (intents, ssd) = intents();
            let writes = run(&intents, &ssd, |_| true).await;
            assert!((1..=12).contains(&writes), "{writes} writes");
            // Once more, as after a checkpoint, beside a change under way.
            let range = SectorRange::from_bytes(5 * GIB, 512);
            let direct = intents.begin(&ssd, range).await.unwrap();
            intents.begin_clearing();
            intents.finish_clearing(&ssd).await.unwrap();
            drop(direct);
            assert!(intents.bits().is_set(range.start.0) && !intents.bits().is_set(0));
            let writes = run(&intents, &ssd, |_| true).await;
            assert!((1..=13).contains(&writes), "{writes} writes");
        });
    }

    #[test]
    fn bits_are_set_far_ahead_of_bare_regions_only() {
        Executor::in_virtual_time(NoFiles).block_on(async {
            let (intents, ssd) = intents();
            let writes = run(&intents, &ssd, |place| !place.is_multiple_of(8)).await;
            assert!((13..100).contains(&writes), "{writes} writes");
            let (intents, ssd) = self::intents();
            let writes = run(&intents, &ssd, |_| false).await;
            assert!((13..100).contains(&writes), "{writes} writes");
            // The first change of a run sets nothing ahead where something is cached.
            let range = SectorRange::from_bytes(3 * GIB, 512);
            let (intents, ssd) = self::intents();
            intents.look_ahead(range, |_| false);
            let _direct = intents.begin(&ssd, range).await.unwrap();
            let set: u32 = intents.regions.borrow().bits.iter().map(|bits| bits.count_ones()).sum();
            assert_eq!(set, 1);
        });
    }
}
