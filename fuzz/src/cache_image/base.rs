//! The images that are mutated: small caches with data, made by the product itself in virtual time.

use std::cell::RefCell;
use std::rc::Rc;

use voltier_block::{BlockDevice, Bytes, Durability, Lba, SectorRange};
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_ring::{Executor, NoFiles};
use voltier_sim::workload::{Profile, SimCache};
use voltier_sim::{Cut, Medium, SimDisk, SimDrive, World};

use super::layout::Layout;
use super::sectors;

/// How an image came to be.
struct Recipe {
    line_bytes: u64,
    ordered: bool,
    /// Killed in a second life, with a log behind the checkpoint; else stopped in order.
    killed: bool,
}

const RECIPES: [Recipe; 4] = [
    Recipe { line_bytes: 4096, ordered: false, killed: false },
    Recipe { line_bytes: 4096, ordered: false, killed: true },
    Recipe { line_bytes: 16384, ordered: false, killed: true },
    Recipe { line_bytes: 4096, ordered: true, killed: true },
];

/// Bytes of the origin that are in use.
const USED_BYTES: u64 = 256 << 10;

/// An image to mutate, and what was in it.
pub(super) struct Base {
    pub(super) profile: Profile,
    pub(super) ssd: Medium,
    pub(super) origin: Medium,
    pub(super) layout: Layout,
    pub(super) history: History,
}

/// The versions of each used sector that a reader may meet.
#[derive(Clone)]
pub(super) struct History {
    /// The version that the last stop in order left, and the version that was written last.
    pub(super) versions: Vec<(u64, u64)>,
}

impl History {
    pub(super) fn sectors(&self) -> u64 {
        self.versions.len() as u64
    }
}

thread_local! {
    static BASES: RefCell<[Option<Rc<Base>>; RECIPES.len()]> =
        const { RefCell::new([const { None }; RECIPES.len()]) };
}

impl Base {
    /// One of the images; made when it is first asked for.
    pub(super) fn get(number: usize) -> Rc<Base> {
        let number = number % RECIPES.len();
        let known = BASES.with_borrow(|bases| bases[number].clone());
        known.unwrap_or_else(|| {
            let base = Rc::new(make(&RECIPES[number]));
            BASES.with_borrow_mut(|bases| bases[number] = Some(base.clone()));
            base
        })
    }
}

fn make(recipe: &Recipe) -> Base {
    let mut profile = Profile::small(&[Mode::WriteBack]);
    profile.line_bytes = recipe.line_bytes;
    profile.ordered = recipe.ordered;
    let (_, mut origin) = profile.format();
    let used = USED_BYTES / 512;
    for sector in 0..used {
        origin.overwrite(sector * 512, &sectors::content(sector, 0));
    }
    let mut executor = Executor::in_virtual_time(NoFiles);
    let world = World::new(&executor.handle(), 5);
    let maker = Maker { world, profile: profile.clone(), versions: vec![(0, 0); used as usize] };
    let killed = recipe.killed;
    let (ssd, origin, versions) =
        executor.block_on(async move { maker.make(origin, killed).await });
    let layout = Layout::of(&ssd);
    Base { profile, ssd, origin, layout, history: History { versions } }
}

struct Maker {
    world: World,
    profile: Profile,
    versions: Vec<(u64, u64)>,
}

impl Maker {
    async fn make(mut self, origin: Medium, killed: bool) -> (Medium, Medium, Vec<(u64, u64)>) {
        let ssd = Medium::zeroed(self.profile.ssd.bytes);
        let ssd = SimDisk::new(&self.world, &self.profile.ssd, ssd);
        let origin = SimDisk::new(&self.world, &self.profile.origin, origin);
        let format = FormatOptions {
            line_size: LineSize::new(self.profile.line_bytes).expect("a line size"),
            policy: self.profile.policy,
            uuid: *b"an image to fuzz",
        };
        let drive = SimDrive::any_sector(origin.clone());
        SimCache::format(&ssd, &drive, &format).await.expect("room for a cache");
        let cache = self.open(&ssd, &origin).await;
        self.first_life(&cache).await;
        cache.stop().await.expect("it stops");
        for version in &mut self.versions {
            version.0 = version.1;
        }
        if killed {
            let cache = self.open(&ssd, &origin).await;
            self.second_life(&cache).await;
            let mut prng = self.world.prng();
            let left = (ssd.after(Cut::Kill, &mut prng), origin.after(Cut::Kill, &mut prng));
            cache.kill();
            self.world.handle().sleep(10_000_000_000).await;
            return (left.0, left.1, self.versions);
        }
        (ssd.medium(), origin.medium(), self.versions)
    }

    async fn open(&self, ssd: &SimDisk, origin: &SimDisk) -> SimCache {
        let settings = Settings {
            mode: Mode::WriteBack,
            ordered: self.profile.ordered,
            ..Settings::default()
        };
        let options = OpenOptions::with(settings);
        let origin = SimDrive::any_sector(origin.clone());
        let opened = Cache::open(self.world.handle(), ssd.clone(), origin, options).await;
        opened.expect("its own cache opens").0
    }

    /// Clean lines, dirty lines, lines of which a part is cached, lines that were dirty.
    async fn first_life(&mut self, cache: &SimCache) {
        let line = self.profile.line_bytes / 512;
        let lines = self.versions.len() as u64 / line;
        for number in 0..lines / 2 {
            let range = SectorRange::new(Lba(number * line), line);
            let into = voltier_block::Buf::new(range.bytes() as usize);
            cache.read(range.start, into).await.expect("a read works");
        }
        for number in (0..lines).step_by(5) {
            self.write(cache, number * line, line).await;
        }
        cache.drain().await.expect("a drain works");
        for number in (0..lines).step_by(3) {
            self.write(cache, number * line, line).await;
        }
        for number in (1..lines).step_by(4) {
            self.write(cache, number * line + 2, 3).await;
        }
        cache.flush().await.expect("a flush works");
    }

    /// The same again in part, with flushes between, and a write past the log.
    async fn second_life(&mut self, cache: &SimCache) {
        let line = self.profile.line_bytes / 512;
        let lines = self.versions.len() as u64 / line;
        for number in (0..lines).step_by(7) {
            self.write(cache, number * line, line).await;
            cache.flush().await.expect("a flush works");
        }
        if !self.profile.ordered {
            let back = cache.settings();
            let through = Settings { mode: Mode::WriteThrough, ..back.clone() };
            cache.configure(through).expect("a mode");
            self.write(cache, (lines - 1) * line, line).await;
            cache.configure(back).expect("a mode");
        }
        for number in (2..lines).step_by(6) {
            self.write(cache, number * line + 1, line / 2).await;
        }
        cache.flush().await.expect("a flush works");
        self.write(cache, line, line).await;
    }

    async fn write(&mut self, cache: &SimCache, first: u64, count: u64) {
        let mut data = Vec::new();
        for sector in first..first + count {
            let version = &mut self.versions[sector as usize].1;
            *version += 1;
            data.extend(sectors::content(sector, *version));
        }
        let data = Bytes::copy_of(&data);
        cache.write(Lba(first), data.into(), Durability::Cached).await.expect("a write works");
    }
}
