//! The parts of a cache below destaging and serving: devices, map and log, put together.

use std::cell::RefCell;
use std::rc::Rc;

use voltier_block::{AfterDiscard, BlockDevice, DriveControl, IoResult, Limits};
use voltier_deadline::Guarded;
use voltier_ring::Handle;

use crate::admission::Admission;
use crate::clock::{Clock, WallClock};
use crate::config::Settings;
use crate::counters::Counters;
use crate::devices::health::{Consequences, SsdHealth};
use crate::devices::origin::Origin;
use crate::devices::passage::Passage;
use crate::devices::silence::Silence;
use crate::devices::ssd::Ssd;
use crate::format::geometry::Geometry;
use crate::format::superblock::{STATE_STOPPED_LOADING, Superblock};
use crate::log::bound::Bound;
use crate::log::checkpoint::Checkpointer;
use crate::log::commit::Log;
use crate::log::damage::Damage;
use crate::log::intents::Intents;
use crate::log::load_rest::Loader;
use crate::log::long_streams::LongStreams;
use crate::log::pressure::Pressure;
use crate::log::reclaim::Reclaimer;
use crate::log::recover::Recovered;
use crate::log::stage::Lifecycle;
use crate::log::writer::LogWriter;
use crate::map::locks::LineLocks;
use crate::map::recent::RecentLines;
use crate::map::shared::Map;
use crate::memory::NoMemory;

/// The parts that destaging and serving are built on.
pub(crate) struct Ground<S, O> {
    pub(crate) handle: Handle,
    pub(crate) limits: Limits,
    pub(crate) settings: Rc<RefCell<Settings>>,
    pub(crate) counters: Rc<Counters>,
    pub(crate) admission: Rc<RefCell<Admission>>,
    pub(crate) lifecycle: Rc<Lifecycle>,
    pub(crate) map: Rc<Map>,
    pub(crate) locks: Rc<LineLocks>,
    pub(crate) recent: Rc<RecentLines>,
    pub(crate) health: Rc<SsdHealth>,
    pub(crate) passage: Rc<Passage>,
    pub(crate) ssd: Rc<Ssd<S>>,
    pub(crate) origin: Rc<Origin<O>>,
    pub(crate) log: Rc<Log<S>>,
    pub(crate) intents: Rc<Intents>,
    pub(crate) damage: Rc<Damage<S>>,
    pub(crate) pressure: Rc<Pressure>,
    pub(crate) bound: Rc<Bound<S>>,
    pub(crate) long_streams: Rc<LongStreams>,
    pub(crate) checkpointer: Rc<Checkpointer<S, O>>,
}

impl<S: DriveControl, O: DriveControl> Ground<Guarded<S>, Guarded<O>> {
    /// Puts the lower parts of a recovered cache together.
    pub(crate) fn new(
        handle: &Handle,
        ssd: Guarded<S>,
        origin: Guarded<O>,
        recovered: Recovered,
        settings: Settings,
        wall: WallClock,
    ) -> Result<Self, NoMemory> {
        let Recovered { superblock, owner, map, log, intents, passed, origin_may_lack, .. } =
            recovered;
        let limits = limits_over(origin.limits(), map.geometry());
        let admission = Admission::new(settings.admission, map.geometry().capacity_lines())?;
        let (settings, counters) = (Rc::new(RefCell::new(settings)), Rc::new(Counters::default()));
        let health = SsdHealth::new(handle.clone());
        let geometry = map.geometry().clone();
        let passage = Passage::new(handle.clone(), geometry, health.clone(), passed);
        let map = Map::new(map);
        let (own, tally) = (health.clone(), counters.clone());
        let silence = Silence::new(ssd.requests());
        let ssd = Ssd::new(handle.clone(), ssd, map.clone(), own, silence, tally, owner);
        let log = Log::new(log, map.clone(), ssd.clone(), Clock::new(handle.clone(), wall));
        let silence = Silence::new(origin.requests());
        let origin = Origin::new(handle.clone(), origin, silence, counters.clone());
        if origin_may_lack {
            origin.note_loss();
        }
        let intents = Rc::new(intents);
        let checkpointer = Checkpointer::new(
            map.clone(),
            ssd.clone(),
            origin.clone(),
            log.clone(),
            intents.clone(),
            superblock,
        );
        let locks = LineLocks::new();
        let damage = Damage::new(map.clone(), ssd.clone(), log.clone(), counters.clone());
        let pressure = Pressure::new(map.clone(), settings.clone());
        let bound = Bound::new(
            handle.clone(),
            map.clone(),
            log.clone(),
            damage.clone(),
            pressure.clone(),
            settings.clone(),
        );
        let ground = Ground {
            handle: handle.clone(),
            limits,
            admission: Rc::new(RefCell::new(admission)),
            lifecycle: Rc::new(Lifecycle::new()),
            recent: Rc::new(RecentLines::new(locks.clone())),
            locks,
            damage,
            pressure,
            bound,
            long_streams: LongStreams::new(handle.clone(), map.clone(), settings.clone()),
            settings,
            counters,
            origin,
            intents,
            map,
            health,
            passage,
            ssd,
            log,
            checkpointer,
        };
        ground.watch_health();
        Ok(ground)
    }
}

impl<S: DriveControl, O: DriveControl> Ground<S, O> {
    /// When the SSD takes no writes or is given up, the log ends and everybody wakes. When the origin loses
    /// writes past the log, their regions keep their bits. The parts below do not keep those above alive.
    fn watch_health(&self) {
        let intents = Rc::downgrade(&self.intents);
        self.origin.on_loss(move || {
            if let Some(intents) = intents.upgrade() {
                intents.keep_all();
            }
        });
        let (log, map, pressure) =
            (Rc::downgrade(&self.log), Rc::downgrade(&self.map), Rc::downgrade(&self.pressure));
        let passage = Rc::downgrade(&self.passage);
        let (ended, abandoned) = (log.clone(), log.clone());
        self.health.on_change(Consequences {
            end_log: Box::new(move || {
                if let Some(log) = ended.upgrade() {
                    log.end();
                }
            }),
            abandon_log: Box::new(move || abandoned.upgrade().is_some_and(|log| log.abandon())),
            wake_all: Box::new(move || {
                if let (Some(log), Some(map), Some(pressure)) =
                    (log.upgrade(), map.upgrade(), pressure.upgrade())
                {
                    wake_all(&log, &map, &pressure);
                }
                if let Some(passage) = passage.upgrade() {
                    passage.wake_all();
                }
            }),
        });
    }

    /// Writes the superblock of the generation that begins, before anything else of it.
    ///
    /// # Errors
    /// The SSD's, after all tries: it takes no writes, or is lost.
    pub(crate) async fn begin_generation(
        &self,
        superblock: Superblock,
        has_new_bits: bool,
    ) -> IoResult<()> {
        if has_new_bits {
            // On the medium before the cache is open: a crash must not make the lines trusted again.
            let set_bits = || self.intents.persist_bits(self.ssd.device());
            if let Err(error) = set_bits().await {
                self.ssd.write_again(error, async || set_bits().await).await?;
            }
        }
        self.ssd.write_superblock_uncounted(superblock).await
    }

    /// Records what the origin holds, at a stop that writes no map: the next start is one after a crash, and
    /// knows its origin. Nothing may be under way.
    ///
    /// # Errors
    /// Those of the devices.
    pub(crate) async fn record_fingerprint(&self) -> IoResult<()> {
        // The cleaner may have written since.
        self.origin.flush().await?;
        if !self.checkpointer.is_origin_settled() {
            return Ok(());
        }
        let mut superblock = self.checkpointer.superblock();
        superblock.fingerprint =
            self.origin.fingerprint(superblock.origin_sectors.get()).await?.into();
        superblock.sequence = (superblock.sequence.get() + 1).into();
        superblock.state = STATE_STOPPED_LOADING.into();
        self.ssd.write_superblock_uncounted(superblock).await
    }

    /// The task that forms records.
    pub(crate) fn log_writer(&self) -> Rc<LogWriter<S>> {
        LogWriter::new(
            self.handle.clone(),
            self.map.clone(),
            self.ssd.clone(),
            self.log.clone(),
            self.pressure.clone(),
            self.lifecycle.clone(),
        )
    }

    /// The task that loads the rest of the map.
    pub(crate) fn loader(&self) -> Rc<Loader<S>> {
        Loader::new(
            self.handle.clone(),
            self.map.clone(),
            self.ssd.clone(),
            self.log.clone(),
            self.counters.clone(),
            self.lifecycle.clone(),
        )
    }

    /// The task that prepares segments and writes checkpoints.
    pub(crate) fn reclaimer(&self) -> Rc<Reclaimer<S, O>> {
        Reclaimer::new(
            self.map.clone(),
            self.ssd.clone(),
            self.log.clone(),
            self.checkpointer.clone(),
            self.pressure.clone(),
            self.lifecycle.clone(),
        )
    }

    /// Wakes whatever waits for something of the SSD.
    pub(crate) fn wake_all(&self) {
        wake_all(&self.log, &self.map, &self.pressure);
        self.passage.wake_all();
    }
}

/// Wakes whatever waits for something of the SSD, in a fixed order.
fn wake_all<S: DriveControl>(log: &Log<S>, map: &Map, pressure: &Pressure) {
    log.notify_work();
    log.notify_progress();
    map.ask_for_segments();
    pressure.notify_dirty();
    log.notify_flushed();
    pressure.hurry();
    map.tell_of_loading();
}

/// The limits of a cache over an origin: the origin's, in 512-byte sectors at any rate.
fn limits_over(origin: &Limits, geometry: &Geometry) -> Limits {
    Limits {
        sectors: geometry.origin_sectors,
        block_bytes: 512,
        preferred_bytes: geometry.line_bytes as u32,
        max_transfer_bytes: 1 << 20,
        stripe: None,
        after_discard: AfterDiscard::Anything,
        cheap_zeroes: origin.cheap_zeroes,
        volatile_cache: true,
        read_only: origin.read_only,
        rotational: false,
    }
}
