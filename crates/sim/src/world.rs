//! The world that drives share: a clock, dice, and a count of everything that happens.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use voltier_block::{Nanos, Prng, SectorRange};
use voltier_cache::WallClock;
use voltier_ring::Handle;

use crate::fault::FaultKind;
use crate::ledger::Ledger;

/// Anything that is asked for ends within this virtual time, also beside stuck requests and drives that hang.
const BOUND_NS: Nanos = 3_600_000_000_000;
/// Events after which a world is taken for one that runs in circles.
const EVENTS_MAX: u64 = 4_000_000;

/// Something that happened to a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request was submitted; a write is under way now.
    Submitted,
    /// A request has taken effect; its sender does not know yet.
    Completed,
}

/// A day of the year 2026, in nanoseconds since 1970.
const TODAY_NS: u64 = 1_790_000_000_000_000_000;
const HOUR_NS: u64 = 3_600_000_000_000;

/// The number of a cache's SSD.
pub(crate) const SSD: u64 = 1;

type Watch = Rc<dyn Fn(u64)>;

struct Inner {
    handle: Handle,
    prng: RefCell<Prng>,
    events: Cell<u64>,
    trace: Cell<u64>,
    watch: RefCell<Option<Watch>>,
    ledger: Rc<Ledger>,
    /// Something happened here that a client may see an error of.
    excused: Cell<bool>,
    /// A request that takes as long as this excuses errors; 0 is no limit.
    patience_ns: Cell<Nanos>,
    /// The SSD of a cache may have records of writes that the cache has called failed.
    keeps_failed_writes: Cell<bool>,
    waiting_for_ever: Cell<usize>,
    network: RefCell<Option<Rc<dyn Any>>>,
    /// What the clock on the wall shows when the world begins.
    wall_ns: u64,
}

/// The time after all worlds before: somebody may have set the clock, or nobody knows the time.
fn wall_ns_at_start(seed: u64, ledger: &Ledger) -> u64 {
    let mut prng = Prng::new(seed ^ 0x7761_6c6c_0000_0043);
    let now_ns = TODAY_NS + ledger.counts().virtual_ns;
    match prng.below(8) {
        0 => now_ns - prng.below(HOUR_NS),
        1 => now_ns + prng.below(HOUR_NS),
        _ => now_ns,
    }
}

/// One world: drives made in it lose their power together. Clones are the same world.
#[derive(Clone)]
pub struct World(Rc<Inner>);

impl World {
    /// A world on the clock of `handle`, all of whose chance follows from `seed`.
    pub fn new(handle: &Handle, seed: u64) -> Self {
        Self::in_ledger(handle, seed, &Rc::default())
    }

    /// The same, counting in this ledger.
    pub fn in_ledger(handle: &Handle, seed: u64, ledger: &Rc<Ledger>) -> Self {
        Self(Rc::new(Inner {
            handle: handle.clone(),
            prng: RefCell::new(Prng::new(seed)),
            events: Cell::new(0),
            trace: Cell::new(0xcbf2_9ce4_8422_2325),
            watch: RefCell::new(None),
            ledger: ledger.clone(),
            excused: Cell::new(false),
            patience_ns: Cell::default(),
            keeps_failed_writes: Cell::new(false),
            waiting_for_ever: Cell::new(0),
            network: RefCell::default(),
            wall_ns: wall_ns_at_start(seed, ledger),
        }))
    }

    /// The clock on the wall, which may be wrong.
    pub(crate) fn wall_clock(&self) -> WallClock {
        let (handle, wall_ns) = (self.0.handle.clone(), self.0.wall_ns);
        WallClock::new(move || wall_ns + handle.now())
    }

    /// When the clock on the wall showed this, on the clock of the world.
    pub(crate) fn moment_of_wall(&self, wall_ns: u64) -> Nanos {
        wall_ns.saturating_sub(self.0.wall_ns)
    }

    /// The ledger that the world counts in.
    pub fn ledger(&self) -> &Rc<Ledger> {
        &self.0.ledger
    }

    /// Whether a fault happened here of which a client may see an error.
    pub fn is_excused(&self) -> bool {
        self.0.excused.get()
    }

    /// Errors are allowed from now on, or not any more.
    pub fn excuse(&self, excused: bool) {
        self.0.excused.set(excused);
    }

    /// The deadline of the device in test: an error is allowed once a drive has been slower.
    pub(crate) fn set_patience(&self, patience_ns: Nanos) {
        self.0.patience_ns.set(patience_ns);
    }

    /// A request takes so long.
    pub(crate) fn note_slow(&self, time_ns: Nanos) {
        let patience_ns = self.0.patience_ns.get();
        if patience_ns > 0 && time_ns >= patience_ns {
            self.excuse(true);
        }
    }

    /// An SSD has failed a flush or a read: a cache cannot tell any more which records the SSD has.
    pub(crate) fn keep_failed_writes(&self) {
        self.0.keeps_failed_writes.set(true);
    }

    /// Whether a write that ended with an error may be there after the next start, although reads have
    /// returned something older (`docs/guarantees.md`, the known gaps).
    pub(crate) fn keeps_failed_writes(&self) -> bool {
        self.0.keeps_failed_writes.get()
    }

    /// Origins are behind this network.
    pub(crate) fn join(&self, network: Rc<dyn Any>) {
        self.0.network.replace(Some(network));
    }

    /// The network that origins are behind, if they are.
    pub(crate) fn network<T: 'static>(&self) -> Option<Rc<T>> {
        self.0.network.borrow().clone().and_then(|network| network.downcast().ok())
    }

    /// Counts a fault that takes effect.
    pub fn fault(&self, kind: FaultKind) {
        self.0.ledger.fault(kind);
        if kind.excuses_errors() {
            self.excuse(true);
        }
    }

    /// Adds a line to the tale, if one is kept.
    pub fn tell(&self, line: impl FnOnce() -> String) {
        self.0.ledger.tell(self.0.handle.now(), line);
    }

    /// Adds what happened here to the ledger's sums, once, at the end.
    pub fn close(&self) {
        self.0.ledger.close(self.trace_hash(), self.0.handle.now());
    }

    /// Waits for what will never come, as a dead process would.
    pub(crate) async fn wait_for_ever(&self) {
        self.0.waiting_for_ever.set(self.0.waiting_for_ever.get() + 1);
        std::future::pending().await
    }

    /// Tasks that wait so.
    pub(crate) fn waiting_for_ever(&self) -> usize {
        self.0.waiting_for_ever.get()
    }

    /// The executor's handle.
    pub fn handle(&self) -> &Handle {
        &self.0.handle
    }

    /// A number below `bound`, from the dice of this world.
    pub fn below(&self, bound: u64) -> u64 {
        self.0.prng.borrow_mut().below(bound)
    }

    /// A generator of its own, seeded by this world's dice.
    pub fn prng(&self) -> Prng {
        Prng::new(self.0.prng.borrow_mut().next_u64())
    }

    /// Events so far: the possible moments of a power cut.
    pub fn events(&self) -> u64 {
        self.0.events.get()
    }

    /// A number that two runs share only if the same happened at the same time in both.
    pub fn trace_hash(&self) -> u64 {
        self.0.trace.get()
    }

    /// Has `watch` called at every event with its number, from 0 on. An event is the moment to take
    /// copies of the drives, as a power cut would leave them. `watch` holds the drives weakly: the drives
    /// hold the world.
    pub fn watch(&self, watch: impl Fn(u64) + 'static) {
        self.0.watch.replace(Some(Rc::new(watch)));
    }

    /// Ends the watch.
    pub fn unwatch(&self) {
        self.0.watch.replace(None);
    }

    /// Waits for what must end.
    ///
    /// # Panics
    /// When it has not ended after an hour.
    pub(crate) async fn within<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        let done = self.0.handle.timeout(BOUND_NS, work).await;
        done.unwrap_or_else(|()| panic!("{what} does not end"))
    }

    pub(crate) async fn pass(&self, time_ns: Nanos) {
        self.0.handle.sleep(time_ns).await;
    }

    /// Counts an event, mixes it into the trace, and tells the watch.
    pub(crate) fn event(&self, event: Event, drive: u64, operation: &str, range: SectorRange) {
        let number = self.0.events.get();
        assert!(number < EVENTS_MAX, "this world runs in circles");
        self.0.events.set(number + 1);
        let time = self.0.handle.now();
        let letter = u64::from(operation.as_bytes()[0]);
        for word in [event as u64, drive, letter, range.start.0, range.count, time] {
            let mixed = (self.0.trace.get() ^ word).wrapping_mul(0x0100_0000_01b3);
            self.0.trace.set(mixed.rotate_left(23));
        }
        if event == Event::Completed {
            self.0.ledger.count(|counts| counts.requests += 1);
        }
        self.0.ledger.tell_request(time, || {
            let drive = drive_name(drive);
            let what = if event == Event::Completed { "done" } else { "begins" };
            format!("event {number:5}: {drive} {operation} {range} {what}")
        });
        let watch = self.0.watch.borrow().clone();
        if let Some(watch) = watch {
            watch(number);
        }
    }
}

/// The name of a drive in a tale.
pub(crate) fn drive_name(number: u64) -> String {
    match number {
        0 => "control plane".to_owned(),
        SSD => "ssd".to_owned(),
        2 => "origin".to_owned(),
        _ => format!("member {}", number - 3),
    }
}
