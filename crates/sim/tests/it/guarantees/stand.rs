//! A cache with known clean and dirty lines on simulated drives, and what its clients must read.

use std::future::Future;

use voltier_block::{
    BlockDevice, Buf, Bytes, Durability, IoError, IoResult, Lba, Prng, SectorRange,
};
use voltier_cache::{Cache, Mode, OpenError, OpenOptions, Opened, Settings};
use voltier_ring::{Executor, NoFiles};
use voltier_sim::workload::{Profile, SimCache};
use voltier_sim::{Cut, Medium, SimDisk, SimDrive, World};

pub(crate) const LINE_SECTORS: u64 = 8;
/// Lines that the tests use: the first ones of the origin.
pub(crate) const LINES: u64 = 96;
/// Two drives, the cache on them, and what a client must read.
pub(crate) struct Stand {
    pub(crate) world: World,
    pub(crate) profile: Profile,
    pub(crate) ssd: SimDisk,
    pub(crate) origin: SimDisk,
    pub(crate) cache: SimCache,
    pub(crate) expected: Vec<u8>,
}

pub(crate) fn in_virtual_time<F: Future<Output = ()> + 'static>(body: impl FnOnce(World) -> F) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::new(&executor.handle(), 7);
    let body = body(world);
    executor.block_on(body);
}

pub(crate) fn options(mode: Mode, generation_min: u64) -> OpenOptions {
    let settings = Settings { mode, ..Settings::default() };
    OpenOptions { generation_min, ..OpenOptions::with(settings) }
}

pub(crate) fn line_range(line: u64) -> SectorRange {
    SectorRange::new(Lba(line * LINE_SECTORS), LINE_SECTORS)
}

/// Whether line `line` of a filled stand is dirty: every third is.
pub(crate) fn is_dirty(line: u64) -> bool {
    line.is_multiple_of(3)
}

impl Stand {
    pub(crate) async fn new(world: World, mode: Mode) -> Self {
        Self::with(world, options(mode, 0)).await
    }

    pub(crate) async fn with(world: World, options: OpenOptions) -> Self {
        let mode = options.settings.mode;
        let profile = Profile::small(&[mode]);
        let (ssd, origin) = profile.format();
        let mut origin = origin;
        let mut expected = vec![0; (LINES * LINE_SECTORS * 512) as usize];
        Prng::new(11).fill(&mut expected);
        origin.overwrite(0, &expected);
        let ssd = SimDisk::new(&world, &profile.ssd, ssd);
        let origin = SimDisk::new(&world, &profile.origin, origin);
        let drives = (ssd.clone(), SimDrive::any_sector(origin.clone()));
        let opened = Cache::open(world.handle(), drives.0, drives.1, options).await;
        let cache = opened.expect("a new cache opens").0;
        Self { world, profile, ssd, origin, cache, expected }
    }

    /// Every line cached, every third dirty, all of it durable; nothing is destaged before 2 s.
    pub(crate) async fn filled(world: World) -> Self {
        Self::filled_in(world, false).await
    }

    /// The same in ordered mode, if asked for.
    pub(crate) async fn filled_in(world: World, ordered: bool) -> Self {
        let settings = Settings { mode: Mode::WriteBack, ordered, ..Settings::default() };
        let options = OpenOptions { settings, ..options(Mode::WriteBack, 0) };
        let mut stand = Self::with(world, options).await;
        for line in 0..LINES {
            stand.read(line_range(line)).await.expect("a read works");
        }
        for line in (0..LINES).filter(|line| is_dirty(*line)) {
            stand.write(line_range(line), line as u8).await.expect("a write works");
        }
        stand.cache.flush().await.expect("a flush works");
        assert_eq!(stand.cache.status().lines.used, LINES);
        assert_eq!(stand.cache.status().lines.dirty, LINES.div_ceil(3));
        stand
    }

    pub(crate) fn expected(&self, range: SectorRange) -> &[u8] {
        &self.expected[range.start.bytes() as usize..range.end().bytes() as usize]
    }

    pub(crate) async fn read(&self, range: SectorRange) -> IoResult<Buf> {
        self.cache.read(range.start, Buf::new(range.bytes() as usize)).await
    }

    pub(crate) async fn write(&mut self, range: SectorRange, byte: u8) -> IoResult<()> {
        let data = Bytes::copy_of(&vec![byte; range.bytes() as usize]);
        let written = self.cache.write(range.start, data.into(), Durability::Cached).await;
        if written.is_ok() {
            let from = range.start.bytes() as usize;
            self.expected[from..from + range.bytes() as usize].fill(byte);
        }
        written
    }

    /// Reads every line; lines that fail with a medium error. All others must be right.
    pub(crate) async fn failing_lines(&self) -> Vec<u64> {
        let mut failing = Vec::new();
        for line in 0..LINES {
            match self.read(line_range(line)).await {
                Ok(data) => assert!(data[..] == *self.expected(line_range(line)), "line {line}"),
                Err(IoError::Medium) => failing.push(line),
                Err(error) => panic!("line {line}: {error}"),
            }
        }
        failing
    }

    /// The same for the plain origin: lines that it does not have.
    pub(crate) fn lines_not_on_origin(&self) -> Vec<u64> {
        let differs = |line: &u64| {
            let mut data = [0; 4096];
            self.origin.peek(line_range(*line).start, &mut data);
            data[..] != *self.expected(line_range(*line))
        };
        (0..LINES).filter(differs).collect()
    }

    pub(crate) async fn stop(&self) -> (Medium, Medium) {
        self.cache.stop().await.expect("a stop works");
        (self.ssd.medium(), self.origin.medium())
    }

    pub(crate) fn kill(&self) -> (Medium, Medium) {
        let media = self.crash(Cut::Kill);
        self.cache.kill();
        media
    }

    /// The media after a crash at this moment; everything goes on.
    pub(crate) fn crash(&self, cut: Cut) -> (Medium, Medium) {
        let mut prng = self.world.prng();
        (self.ssd.after(cut, &mut prng), self.origin.after(cut, &mut prng))
    }

    /// A line reads as this byte from now on.
    pub(crate) fn expect(&mut self, line: u64, byte: u8) {
        let range = line_range(line);
        self.expected[range.start.bytes() as usize..range.end().bytes() as usize].fill(byte);
    }

    fn is_either(&self, line: u64, found: &[u8], above: u8) -> bool {
        let newer = above + line as u8;
        let sectors = found.chunks(512).zip(self.expected(line_range(line)).chunks(512));
        sectors.into_iter().all(|(sector, old)| sector == old || *sector == [newer; 512])
    }

    /// Checks that each line is what is expected, or what an unfinished write of `above` and its number
    /// made of it. From now on the found content is expected: no later read may go back or forth.
    pub(crate) async fn check_either(&mut self, above: u8) {
        for line in 0..LINES {
            let range = line_range(line);
            let found = self.read(range).await.expect("every line can be read");
            assert!(self.is_either(line, &found, above), "line {line}");
            let place = range.start.bytes() as usize..range.end().bytes() as usize;
            self.expected[place].copy_from_slice(&found);
        }
    }

    /// [Checks each line](Self::check_either), writes all back and stops: nothing is lost after a crash.
    pub(crate) async fn ends_well_after_a_crash(mut self, above: u8) {
        self.check_either(above).await;
        self.cache.drain().await.expect("the origin takes it");
        assert_eq!(self.lines_not_on_origin(), [0_u64; 0]);
        self.cache.stop().await.expect("it ends in order");
    }

    /// Lines of a medium that are neither.
    pub(crate) fn lines_not_on_medium(&self, medium: &Medium, above: u8) -> Vec<u64> {
        let is_wrong = |line: &u64| {
            let mut found = [0; 4096];
            medium.peek(line_range(*line).start, &mut found);
            !self.is_either(*line, &found, above)
        };
        (0..LINES).filter(is_wrong).collect()
    }

    /// The cache on other media, for clients who expect the same.
    pub(crate) async fn on(
        &self,
        media: (Medium, Medium),
        options: OpenOptions,
    ) -> Result<(Self, Opened), OpenError> {
        self.on_drives(self.drives_of(media), options).await
    }

    /// The same where the SSD takes no writes.
    pub(crate) async fn on_unwritable(
        &self,
        media: (Medium, Medium),
        options: OpenOptions,
    ) -> Result<(Self, Opened), OpenError> {
        let all = SectorRange::from_bytes(0, self.profile.ssd.bytes);
        self.on_sick(media, options, |ssd| ssd.fail_writes(all)).await
    }

    /// The same where something is wrong with the SSD.
    pub(crate) async fn on_sick(
        &self,
        media: (Medium, Medium),
        options: OpenOptions,
        harm: impl FnOnce(&SimDisk),
    ) -> Result<(Self, Opened), OpenError> {
        let drives = self.drives_of(media);
        harm(&drives.0);
        self.on_drives(drives, options).await
    }

    /// The same where something is wrong with the origin.
    pub(crate) async fn on_sick_origin(
        &self,
        media: (Medium, Medium),
        options: OpenOptions,
        harm: impl FnOnce(&SimDisk),
    ) -> Result<(Self, Opened), OpenError> {
        let drives = self.drives_of(media);
        harm(&drives.1);
        self.on_drives(drives, options).await
    }

    fn drives_of(&self, (ssd, origin): (Medium, Medium)) -> (SimDisk, SimDisk) {
        let ssd = SimDisk::new(&self.world, &self.profile.ssd, ssd);
        (ssd, SimDisk::new(&self.world, &self.profile.origin, origin))
    }

    async fn on_drives(
        &self,
        (ssd, origin): (SimDisk, SimDisk),
        options: OpenOptions,
    ) -> Result<(Self, Opened), OpenError> {
        let (world, profile) = (self.world.clone(), self.profile.clone());
        let drives = (ssd.clone(), SimDrive::any_sector(origin.clone()));
        let opened = Cache::open(world.handle(), drives.0, drives.1, options).await?;
        let expected = self.expected.clone();
        Ok((Self { world, profile, ssd, origin, cache: opened.0, expected }, opened.1))
    }
}

pub(crate) fn lines_of(ranges: &[SectorRange]) -> Vec<u64> {
    let lines = |it: &SectorRange| it.start.0 / LINE_SECTORS..it.end().0.div_ceil(LINE_SECTORS);
    ranges.iter().flat_map(lines).collect()
}
