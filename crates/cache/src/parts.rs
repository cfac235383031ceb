//! The parts of a cache, put together: each is given those below that it uses.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_block::{AfterDiscard, BlockDevice, Limits};
use voltier_ring::Handle;

use crate::admission::Admission;
use crate::clean::cleaner::Cleaner;
use crate::clean::destage::Destager;
use crate::clean::pace::Pacer;
use crate::clean::read_back::LineReader;
use crate::clean::stripes::Stripes;
use crate::config::Settings;
use crate::counters::Counters;
use crate::devices::health::SsdHealth;
use crate::devices::origin::Origin;
use crate::devices::ssd::Ssd;
use crate::log::checkpoint::Checkpointer;
use crate::log::commit::Log;
use crate::log::damage::Damage;
use crate::log::intents::Intents;
use crate::log::load_rest::Loader;
use crate::log::pressure::Pressure;
use crate::log::reclaim::Reclaimer;
use crate::log::recover::Recovered;
use crate::log::stage::Lifecycle;
use crate::log::write::LogWriter;
use crate::map::locks::LineLocks;
use crate::map::shared::Map;
use crate::serve::coalescing::Coalescing;
use crate::serve::discard::Discarder;
use crate::serve::flush::Flusher;
use crate::serve::idle_origin::IdleOrigin;
use crate::serve::line_changes::LineMerger;
use crate::serve::miss::MissReader;
use crate::serve::plan::Planner;
use crate::serve::read::Reader;
use crate::serve::route::Router;
use crate::serve::shared_reads::SharedReads;
use crate::serve::write::Writer;
use crate::serve::write_past::DirectWriter;
use crate::stream::StreamDetector;

/// All parts that the facade asks.
pub(crate) struct Parts<S, O> {
    pub(crate) limits: Limits,
    pub(crate) settings: Rc<RefCell<Settings>>,
    pub(crate) counters: Rc<Counters>,
    pub(crate) admission: Rc<RefCell<Admission>>,
    pub(crate) lifecycle: Rc<Lifecycle>,
    pub(crate) map: Rc<Map>,
    pub(crate) locks: Rc<LineLocks>,
    pub(crate) health: Rc<SsdHealth>,
    pub(crate) ssd: Rc<Ssd<S>>,
    pub(crate) origin: Rc<Origin<O>>,
    pub(crate) log: Rc<Log<S>>,
    pub(crate) log_writer: Rc<LogWriter<S>>,
    pub(crate) loader: Rc<Loader<S>>,
    pub(crate) intents: Rc<Intents>,
    pub(crate) damage: Rc<Damage<S>>,
    pub(crate) pressure: Rc<Pressure>,
    pub(crate) checkpointer: Rc<Checkpointer<S, O>>,
    pub(crate) reclaimer: Rc<Reclaimer<S, O>>,
    pub(crate) cleaner: Rc<Cleaner<S, O>>,
    pub(crate) reader: Reader<S, O>,
    pub(crate) writer: Rc<Writer<S, O>>,
    pub(crate) flusher: Rc<Flusher<S, O>>,
    pub(crate) discarder: Discarder<S, O>,
}

/// What all floors stand on.
struct Ground<S, O> {
    handle: Handle,
    limits: Limits,
    settings: Rc<RefCell<Settings>>,
    counters: Rc<Counters>,
    admission: Rc<RefCell<Admission>>,
    lifecycle: Rc<Lifecycle>,
    map: Rc<Map>,
    locks: Rc<LineLocks>,
    health: Rc<SsdHealth>,
    ssd: Rc<Ssd<S>>,
    origin: Rc<Origin<O>>,
    log: Rc<Log<S>>,
    intents: Rc<Intents>,
    damage: Rc<Damage<S>>,
    pressure: Rc<Pressure>,
}

impl<S: BlockDevice, O: BlockDevice> Parts<S, O> {
    /// Puts the parts of a recovered cache together.
    pub(crate) fn assemble(
        handle: &Handle,
        ssd: S,
        origin: O,
        recovered: Recovered,
        settings: Settings,
    ) -> Self {
        let Recovered { superblock, map, log, intents, .. } = recovered;
        let limits = limits_over(origin.limits(), map.geometry().line_bytes);
        let admission = Admission::new(settings.admission, map.geometry().capacity_lines());
        let (settings, counters) = (Rc::new(RefCell::new(settings)), Rc::new(Counters::default()));
        let health = SsdHealth::new(handle.clone());
        let map = Map::new(map);
        let ssd = Ssd::new(ssd, map.clone(), health.clone(), counters.clone());
        let log = Log::new(log, map.clone(), ssd.clone());
        let ground = Ground {
            handle: handle.clone(),
            limits,
            admission: Rc::new(RefCell::new(admission)),
            lifecycle: Rc::new(Lifecycle::new()),
            locks: LineLocks::new(),
            origin: Origin::new(origin, counters.clone()),
            intents: Rc::new(intents),
            damage: Damage::new(map.clone(), ssd.clone(), log.clone(), counters.clone()),
            pressure: Pressure::new(map.clone(), settings.clone()),
            settings,
            counters,
            map,
            health,
            ssd,
            log,
        };
        ground.watch_health();
        let checkpointer = Checkpointer::new(
            ground.map.clone(),
            ground.ssd.clone(),
            ground.origin.clone(),
            ground.log.clone(),
            ground.intents.clone(),
            superblock,
        );
        let router = ground.router();
        let flusher = ground.flusher();
        let direct = ground.direct_writer();
        let writer = ground.writer(&router, &direct, &flusher);
        let reader = ground.reader(&router);
        let discarder = ground.discarder(&router, &writer, &direct, &flusher);
        let (reclaimer, cleaner) = (ground.reclaimer(&checkpointer), ground.cleaner());
        let (log_writer, loader) = (ground.log_writer(), ground.loader());
        let Ground { limits, settings, counters, admission, lifecycle, map, locks, .. } = ground;
        let Ground { health, ssd, origin, log, intents, damage, pressure, .. } = ground;
        Self {
            limits,
            settings,
            counters,
            admission,
            lifecycle,
            map,
            locks,
            health,
            ssd,
            origin,
            log,
            log_writer,
            loader,
            intents,
            damage,
            pressure,
            checkpointer,
            reclaimer,
            cleaner,
            reader,
            writer,
            flusher,
            discarder,
        }
    }

    /// Wakes whatever waits for something of the SSD.
    pub(crate) fn wake_all(&self) {
        wake_all(&self.log, &self.map, &self.pressure);
    }
}

impl<S: BlockDevice, O: BlockDevice> Ground<S, O> {
    /// When the SSD is given up, the log ends and everybody wakes. The parts below do not keep those above
    /// alive.
    fn watch_health(&self) {
        let (log, map, pressure) =
            (Rc::downgrade(&self.log), Rc::downgrade(&self.map), Rc::downgrade(&self.pressure));
        let abandoned = log.clone();
        self.health.on_loss(
            move || abandoned.upgrade().is_some_and(|log| log.abandon()),
            move || {
                if let (Some(log), Some(map), Some(pressure)) =
                    (log.upgrade(), map.upgrade(), pressure.upgrade())
                {
                    wake_all(&log, &map, &pressure);
                }
            },
        );
    }

    fn log_writer(&self) -> Rc<LogWriter<S>> {
        Rc::new(LogWriter {
            handle: self.handle.clone(),
            map: self.map.clone(),
            ssd: self.ssd.clone(),
            log: self.log.clone(),
            pressure: self.pressure.clone(),
            lifecycle: self.lifecycle.clone(),
        })
    }

    fn loader(&self) -> Rc<Loader<S>> {
        Rc::new(Loader {
            handle: self.handle.clone(),
            map: self.map.clone(),
            ssd: self.ssd.clone(),
            log: self.log.clone(),
            counters: self.counters.clone(),
            lifecycle: self.lifecycle.clone(),
        })
    }

    fn reclaimer(&self, checkpointer: &Rc<Checkpointer<S, O>>) -> Rc<Reclaimer<S, O>> {
        Rc::new(Reclaimer {
            map: self.map.clone(),
            ssd: self.ssd.clone(),
            log: self.log.clone(),
            checkpointer: checkpointer.clone(),
            pressure: self.pressure.clone(),
            lifecycle: self.lifecycle.clone(),
        })
    }

    fn cleaner(&self) -> Rc<Cleaner<S, O>> {
        let reader = LineReader {
            map: self.map.clone(),
            ssd: self.ssd.clone(),
            damage: self.damage.clone(),
        };
        let destager = Destager {
            map: self.map.clone(),
            origin: self.origin.clone(),
            reader,
            stripes: Stripes::of(self.origin.limits(), self.map.geometry()),
        };
        Rc::new(Cleaner {
            handle: self.handle.clone(),
            map: self.map.clone(),
            ssd: self.ssd.clone(),
            origin: self.origin.clone(),
            log: self.log.clone(),
            damage: self.damage.clone(),
            pressure: self.pressure.clone(),
            pacer: Pacer::new(
                self.handle.clone(),
                self.map.clone(),
                self.log.clone(),
                self.pressure.clone(),
                self.settings.clone(),
                self.counters.clone(),
            ),
            destager,
            counters: self.counters.clone(),
            lifecycle: self.lifecycle.clone(),
            sweeps: Cell::new(0),
            destage_errors: Cell::new(0),
        })
    }

    fn router(&self) -> Rc<Router<S>> {
        Rc::new(Router {
            map: self.map.clone(),
            log: self.log.clone(),
            health: self.health.clone(),
            settings: self.settings.clone(),
            streams: RefCell::new(StreamDetector::new()),
        })
    }

    fn flusher(&self) -> Rc<Flusher<S, O>> {
        Rc::new(Flusher {
            map: self.map.clone(),
            origin: self.origin.clone(),
            log: self.log.clone(),
            health: self.health.clone(),
        })
    }

    fn reader(&self, router: &Rc<Router<S>>) -> Reader<S, O> {
        Reader {
            limits: self.limits.clone(),
            map: self.map.clone(),
            ssd: self.ssd.clone(),
            origin: self.origin.clone(),
            damage: self.damage.clone(),
            locks: self.locks.clone(),
            router: router.clone(),
            planner: Planner {
                map: self.map.clone(),
                log: self.log.clone(),
                health: self.health.clone(),
            },
            misses: MissReader {
                map: self.map.clone(),
                origin: self.origin.clone(),
                log: self.log.clone(),
                admission: self.admission.clone(),
            },
            idle_origin: IdleOrigin::new(
                self.handle.clone(),
                self.map.clone(),
                self.ssd.clone(),
                self.origin.clone(),
                self.settings.clone(),
                self.counters.clone(),
            ),
            shared_reads: SharedReads::default(),
            counters: self.counters.clone(),
        }
    }

    fn direct_writer(&self) -> Rc<DirectWriter<S, O>> {
        Rc::new(DirectWriter {
            map: self.map.clone(),
            ssd: self.ssd.clone(),
            origin: self.origin.clone(),
            log: self.log.clone(),
            health: self.health.clone(),
            intents: self.intents.clone(),
            damage: self.damage.clone(),
            merger: Rc::new(LineMerger {
                map: self.map.clone(),
                ssd: self.ssd.clone(),
                log: self.log.clone(),
                damage: self.damage.clone(),
            }),
        })
    }

    fn writer(
        &self,
        router: &Rc<Router<S>>,
        direct: &Rc<DirectWriter<S, O>>,
        flusher: &Rc<Flusher<S, O>>,
    ) -> Rc<Writer<S, O>> {
        Rc::new(Writer {
            limits: self.limits.clone(),
            map: self.map.clone(),
            ssd: self.ssd.clone(),
            log: self.log.clone(),
            damage: self.damage.clone(),
            pressure: self.pressure.clone(),
            locks: self.locks.clone(),
            router: router.clone(),
            coalescing: Coalescing::new(self.map.geometry()),
            merger: direct.merger.clone(),
            direct: direct.clone(),
            flusher: flusher.clone(),
            counters: self.counters.clone(),
        })
    }

    fn discarder(
        &self,
        router: &Rc<Router<S>>,
        writer: &Rc<Writer<S, O>>,
        direct: &Rc<DirectWriter<S, O>>,
        flusher: &Rc<Flusher<S, O>>,
    ) -> Discarder<S, O> {
        Discarder {
            is_read_only: self.limits.read_only,
            map: self.map.clone(),
            ssd: self.ssd.clone(),
            log: self.log.clone(),
            locks: self.locks.clone(),
            router: router.clone(),
            writer: writer.clone(),
            direct: direct.clone(),
            flusher: flusher.clone(),
        }
    }
}

/// Wakes whatever waits for something of the SSD, in a fixed order.
fn wake_all<S: BlockDevice>(log: &Log<S>, map: &Map, pressure: &Pressure) {
    log.notify_work();
    log.notify_progress();
    map.ask_for_segments();
    pressure.notify_dirty();
    log.notify_flushed();
    pressure.hurry();
    map.tell_of_loading();
}

/// The limits of a cache over an origin: the origin's, in 512-byte sectors at any rate.
fn limits_over(origin: &Limits, line_bytes: u64) -> Limits {
    Limits {
        sectors: origin.sectors,
        block_bytes: 512,
        preferred_bytes: line_bytes as u32,
        max_transfer_bytes: 1 << 20,
        stripe: None,
        after_discard: AfterDiscard::Anything,
        volatile_cache: true,
        read_only: origin.read_only,
    }
}
