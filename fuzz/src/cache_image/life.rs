//! The life of a cache on a mutated image: opened, read, written, drained, stopped, opened again.

use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoError, Lba, SECTOR_BYTES, SectorRange};
use voltier_cache::{Cache, OpenError, OpenOptions, Opened};
use voltier_sim::workload::SimCache;
use voltier_sim::{SimDisk, SimDrive, World};

use super::base::History;
use super::sectors;

/// Sectors written after the opening: whole lines and parts of lines, used and new ones.
const WRITES: [(u64, u64); 6] = [(0, 128), (131, 2), (200, 8), (300, 40), (600, 64), (20_000, 96)];
/// The version of new writes, which no image has.
const NEW: u64 = 1 << 40;

pub(super) struct Life {
    pub(super) world: World,
    pub(super) ssd: SimDisk,
    pub(super) origin: SimDisk,
    pub(super) history: History,
    pub(super) line_bytes: u64,
    pub(super) forged: bool,
    /// The devices do not have the size that they had.
    pub(super) resized: bool,
}

impl Life {
    pub(super) async fn live(&self, options: OpenOptions) {
        let Some((cache, generation)) = self.open(options.clone()).await else { return };
        // Before the map is loaded, while it is, and after.
        self.read_all(&cache).await;
        cache.loaded().await;
        self.read_all(&cache).await;
        let written = write(&cache).await;
        let flushed = cache.flush().await;
        assert!(flushed.is_ok(), "healthy drives flush: {flushed:?}");
        read_back(&cache, &written).await;
        match cache.drain().await {
            Ok(()) => {}
            // A dirty line is damaged: the drain says so.
            Err(error) => assert_eq!(error, IoError::Medium),
        }
        read_back(&cache, &written).await;
        cache.stop().await.expect("healthy drives let it stop");
        let again = OpenOptions { generation_min: generation, ..options };
        let opened = self.open_drives(again).await;
        // Forged checksums of clean lines are held against the origin at this start too.
        if self.forged && matches!(opened, Err(OpenError::ForeignOrigin { .. })) {
            return;
        }
        let (cache, opened) = opened.unwrap_or_else(|error| panic!("what it left: {error}"));
        assert!(opened.clean && opened.generation > generation);
        read_back(&cache, &written).await;
        cache.kill();
    }

    async fn open_drives(&self, options: OpenOptions) -> Result<(SimCache, Opened), OpenError> {
        let origin = SimDrive::any_sector(self.origin.clone());
        Cache::open(self.world.handle(), self.ssd.clone(), origin, options).await
    }

    async fn open(&self, options: OpenOptions) -> Option<(SimCache, u64)> {
        let before = self.labels();
        let opened = self.open_drives(options).await;
        match opened {
            Ok((cache, opened)) => Some((cache, opened.generation)),
            Err(error) => {
                let text = error.to_string();
                assert!(!text.is_empty() && !text.contains('\n'));
                let of_damage = matches!(error, OpenError::Damaged(_) | OpenError::NotACache);
                assert!(of_damage || self.forged || self.resized, "{error}");
                assert!(!matches!(error, OpenError::Io { .. }), "healthy drives: {error}");
                assert!(self.labels() == before, "refused, and changed all the same");
                None
            }
        }
    }

    /// The places that an opening writes first: superblocks and intent blocks.
    fn labels(&self) -> Vec<u8> {
        let mut labels = vec![0; 136 << 10];
        self.ssd.peek(Lba(0), &mut labels);
        labels
    }

    /// Reads everything that was ever written, and what lies around it.
    async fn read_all(&self, cache: &SimCache) {
        let used = self.history.sectors();
        let ranges = SectorRange::new(Lba(0), used + 256).split_at_multiples(self.line_bytes / 512);
        for range in ranges {
            self.read(cache, range).await;
        }
        let end = cache.limits().sectors;
        self.read(cache, SectorRange::new(Lba(end - 100), 100)).await;
    }

    async fn read(&self, cache: &SimCache, range: SectorRange) {
        let data = match cache.read(range.start, Buf::new(range.bytes() as usize)).await {
            Ok(data) => data,
            Err(error) => {
                assert_eq!(error, IoError::Medium, "reading {range}");
                let reported = cache.damaged_ranges().iter().any(|lost| lost.overlaps(range));
                assert!(reported, "{range} is lost, and not reported");
                return;
            }
        };
        if self.forged {
            return;
        }
        let sectors = range.start.0..range.end().0;
        for (sector, bytes) in sectors.zip(data.chunks_exact(SECTOR_BYTES as usize)) {
            let Some((oldest, newest)) = self.history.versions.get(sector as usize) else {
                assert!(bytes.iter().all(|byte| *byte == 0), "sector {sector} was never written");
                continue;
            };
            let version = sectors::version(sector, bytes);
            let known = version.is_some_and(|version| (*oldest..=*newest).contains(&version));
            assert!(known, "sector {sector}: {version:?}, not {oldest} to {newest}");
        }
    }
}

fn data_of(range: SectorRange) -> Vec<u8> {
    (range.start.0..range.end().0).flat_map(|sector| sectors::content(sector, NEW)).collect()
}

/// Writes the new versions; what was taken.
async fn write(cache: &SimCache) -> Vec<SectorRange> {
    let mut written = Vec::new();
    for (first, count) in WRITES {
        let range = SectorRange::new(Lba(first), count);
        let data = Bytes::copy_of(&data_of(range));
        match cache.write(range.start, data.into(), Durability::Cached).await {
            Ok(()) => written.push(range),
            // A part of a line whose rest is damaged.
            Err(error) => assert_eq!(error, IoError::Medium),
        }
    }
    written
}

async fn read_back(cache: &SimCache, written: &[SectorRange]) {
    for range in written {
        let data = cache.read(range.start, Buf::new(range.bytes() as usize)).await;
        let data = data.unwrap_or_else(|error| panic!("reading {range} back: {error}"));
        assert!(data[..] == data_of(*range)[..], "{range} does not read back");
    }
}
