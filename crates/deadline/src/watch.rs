//! The clock of the deadlines of a layer: ticks of a quarter of the deadline, while anything is under way.
//!
//! The requests of a device are counted by the tick in which they began: no clock, no timer and no
//! allocation for a request. Age is counted in ticks that passed and not in time. A process that was
//! stopped, or a machine that slept, finds its requests as old as they were.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use voltier_block::{IoError, IoResult, Nanos};
use voltier_ring::{Handle, WakerCell, race};

/// Ticks of a deadline.
const TICKS: u64 = 4;
/// The ticks after which a device is suspected.
const SUSPECT: u64 = TICKS / 2;
/// So many deadlines a single request may take, of a drive that ends others meanwhile.
const LONE_DEADLINES: u64 = 3;

/// The number of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tick(u64);

/// How a device answers, as far as its oldest request tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// The device has ended a request of late.
    Promptly,
    /// The device was not asked for anything of late, or not for long.
    Unknown,
    /// The device has ended nothing for half of the deadline, with requests under way.
    Suspect,
    /// The same for all of the deadline; or one of its requests takes several times as long.
    Late,
}

/// Judges devices at every tick.
pub trait Judge {
    /// Looks at the devices, and gives up what can be spared of those that do not answer.
    fn judge(&self);
}

/// The watch over the devices that share a deadline and a judge.
pub struct Watch {
    handle: Handle,
    /// 0 for none.
    deadline_ns: Cell<Nanos>,
    tick: Cell<Tick>,
    /// Silence before this tick is not held against anybody.
    grace: Cell<Tick>,
    is_ticking: Cell<bool>,
    /// Grows with every task that ticks: an older one ends.
    task: Cell<u64>,
    devices: RefCell<Vec<Weak<Requests>>>,
    judge: RefCell<Option<Rc<dyn Judge>>>,
    /// Whether devices are late and none of them is given up.
    is_waiting: Cell<bool>,
    over: WakerCell,
    own: Weak<Watch>,
}

impl Watch {
    /// A watch over no device yet; a deadline of 0 is none.
    pub fn new(handle: &Handle, deadline_ns: Nanos) -> Rc<Self> {
        Rc::new_cyclic(|own| Self {
            handle: handle.clone(),
            deadline_ns: Cell::new(deadline_ns),
            tick: Cell::new(Tick(0)),
            grace: Cell::new(Tick(0)),
            is_ticking: Cell::new(false),
            task: Cell::new(0),
            devices: RefCell::default(),
            judge: RefCell::default(),
            is_waiting: Cell::new(false),
            over: WakerCell::default(),
            own: own.clone(),
        })
    }

    /// The core whose clock ticks.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Whether all that is under way was given a whole deadline just now.
    pub fn is_in_grace(&self) -> bool {
        self.grace.get() == self.tick.get()
    }

    /// The deadline now, 0 for none.
    pub fn deadline_ns(&self) -> Nanos {
        self.deadline_ns.get()
    }

    /// Another deadline, 0 for none; it counts from now on.
    pub fn set_deadline(&self, deadline_ns: Nanos) {
        if self.deadline_ns.replace(deadline_ns) == deadline_ns {
            return;
        }
        self.give_grace();
        self.task.set(self.task.get() + 1);
        self.is_ticking.set(false);
        if deadline_ns == 0 {
            // Nobody judges any more, so nobody would take that back.
            self.set_waiting(false);
        }
        if self.devices().iter().any(|device| device.are_any()) {
            self.start();
        }
    }

    /// Says who judges.
    pub fn set_judge(&self, judge: Rc<dyn Judge>) {
        self.judge.replace(Some(judge));
    }

    /// Has the requests of every device that is late end, until somebody else judges: nobody depends on the
    /// devices yet.
    pub fn release_late(&self) {
        self.set_judge(Rc::new(ReleaseLate(self.own.clone())));
    }

    /// A whole deadline more for all that is under way.
    pub fn give_grace(&self) {
        self.grace.set(self.tick.get());
    }

    /// Whether devices are late and none of them is given up.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting.get()
    }

    /// The same from now on; whether that is news.
    pub fn set_waiting(&self, is_waiting: bool) -> bool {
        self.is_waiting.replace(is_waiting) != is_waiting
    }

    fn add(&self, device: &Rc<Requests>) {
        let mut devices = self.devices.borrow_mut();
        devices.retain(|device| device.strong_count() > 0);
        devices.push(Rc::downgrade(device));
    }

    /// All devices that are there.
    pub fn devices(&self) -> Vec<Rc<Requests>> {
        self.devices.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    #[inline]
    fn tick(&self) -> Tick {
        self.tick.get()
    }

    #[inline]
    fn is_ticking(&self) -> bool {
        self.is_ticking.get()
    }

    /// Begins to tick, by a task of its own, which ends when nothing is under way.
    #[cold]
    fn start(&self) {
        let Some(own) = self.own.upgrade() else { return };
        let task = self.task.get() + 1;
        self.task.set(task);
        // Without a deadline requests do not ask again.
        self.is_ticking.set(true);
        if self.deadline_ns.get() > 0 {
            drop(self.handle.spawn(own.run(task)));
        }
    }

    async fn run(self: Rc<Self>, task: u64) {
        loop {
            let period_ns = (self.deadline_ns.get() / TICKS).max(1);
            self.sleep(period_ns).await;
            if self.task.get() != task {
                return;
            }
            let ended = self.tick.replace(Tick(self.tick.get().0 + 1));
            self.devices().iter().for_each(|device| device.end_tick(ended));
            let judge = self.judge.borrow().clone();
            judge.iter().for_each(|judge| judge.judge());
            if !self.devices().iter().any(|device| device.are_any()) {
                self.is_ticking.set(false);
                return;
            }
        }
    }

    /// Sleeps, or until the last device is gone.
    async fn sleep(&self, period_ns: Nanos) {
        let _ = race(self.over.until(|| self.is_over()), self.handle.sleep(period_ns)).await;
    }

    fn is_over(&self) -> bool {
        self.devices.borrow().iter().all(|device| device.strong_count() == 0)
    }

    /// A device is gone: when it was the last, the task that ticks ends.
    fn look_whether_over(&self) {
        if self.is_over() {
            self.over.wake();
        }
    }

    /// How a device answers.
    pub fn answers(&self, device: &Requests) -> Answers {
        let silent = self.tick.get().0 - device.last_end().max(self.grace.get()).0;
        match self.age(device).min(silent.saturating_sub(1)) {
            _ if self.is_overdue(device) => Answers::Late,
            TICKS.. => Answers::Late,
            SUSPECT.. => Answers::Suspect,
            _ if self.tick.get().0 - device.last_end().0 <= 1 => Answers::Promptly,
            _ => Answers::Unknown,
        }
    }

    /// Whether a device is late.
    pub fn is_late(&self, device: &Requests) -> bool {
        self.answers(device) == Answers::Late
    }

    /// Whether a device has a request that takes several times the deadline, whatever else it ends.
    pub fn is_overdue(&self, device: &Requests) -> bool {
        self.age(device) >= LONE_DEADLINES * TICKS
    }

    /// Whole ticks for which the oldest request of a device has been under way. The tick in which it began
    /// does not count: it may have begun at its end.
    fn age(&self, device: &Requests) -> u64 {
        let since = |oldest: Tick| self.tick.get().0 - oldest.max(self.grace.get()).0;
        device.oldest().map_or(0, since).saturating_sub(1)
    }

    /// How long the oldest request of a device has been under way, at least.
    pub fn waited_ns(&self, device: &Requests) -> Nanos {
        let ticks = device.oldest().map_or(0, |oldest| self.tick.get().0 - oldest.0);
        ticks.saturating_sub(1) * (self.deadline_ns.get() / TICKS)
    }
}

/// Releases every device that is late.
struct ReleaseLate(Weak<Watch>);

impl Judge for ReleaseLate {
    fn judge(&self) {
        let Some(watch) = self.0.upgrade() else { return };
        for device in watch.devices().iter().filter(|device| watch.is_late(device)) {
            device.release();
        }
    }
}

/// Requests that began in the same tick.
struct Began {
    tick: Tick,
    count: u32,
}

/// The requests of a device under way.
pub struct Requests {
    watch: Rc<Watch>,
    /// Those that began in the tick that is.
    fresh: Cell<u32>,
    /// Those from before, the oldest first.
    older: RefCell<VecDeque<Began>>,
    /// The tick in which the device last ended one.
    last_end: Cell<Tick>,
    is_released: Cell<bool>,
}

impl Requests {
    /// Of a device under this watch.
    pub fn new(watch: &Rc<Watch>) -> Rc<Self> {
        let requests = Rc::new(Self {
            watch: watch.clone(),
            fresh: Cell::new(0),
            older: RefCell::default(),
            last_end: Cell::new(watch.tick()),
            is_released: Cell::new(false),
        });
        watch.add(&requests);
        requests
    }

    /// Counts a request that begins.
    #[inline]
    fn begin(&self) -> OneUnderWay<'_> {
        self.fresh.set(self.fresh.get() + 1);
        if !self.watch.is_ticking() {
            self.watch.start();
        }
        OneUnderWay { requests: self, tick: self.watch.tick() }
    }

    /// A request under the watch: until it ends, or with `Gone` until the device is given up.
    #[inline]
    pub fn watch_over<F>(&self, request: F) -> Watched<'_, F> {
        Watched { under_way: self.begin(), request }
    }

    #[cold]
    fn end_older(&self, tick: Tick) {
        let mut older = self.older.borrow_mut();
        if let Some(began) = older.iter_mut().find(|began| began.tick == tick) {
            began.count -= 1;
        }
    }

    /// A tick is over.
    fn end_tick(&self, tick: Tick) {
        let mut older = self.older.borrow_mut();
        let count = self.fresh.replace(0);
        if count > 0 {
            older.push_back(Began { tick, count });
        }
        older.retain(|began| began.count > 0);
    }

    /// The tick in which the oldest one under way began; none if there is none from before this tick.
    fn oldest(&self) -> Option<Tick> {
        self.older.borrow().iter().find(|began| began.count > 0).map(|began| began.tick)
    }

    /// Whether any is under way.
    pub fn are_any(&self) -> bool {
        self.fresh.get() > 0 || self.oldest().is_some()
    }

    fn last_end(&self) -> Tick {
        self.last_end.get()
    }

    /// The watch that they are under.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// How their device answers.
    pub fn answers(&self) -> Answers {
        self.watch.answers(self)
    }

    /// Whether the requests' device is late.
    pub fn is_late(&self) -> bool {
        self.watch.is_late(self)
    }

    /// How long the oldest of them has been under way, at least.
    pub fn waited_ns(&self) -> Nanos {
        self.watch.waited_ns(self)
    }

    /// Whether the requests were ended because the device was given up.
    pub fn is_released(&self) -> bool {
        self.is_released.get()
    }

    /// Ends all of them with `Gone`, now and from now on.
    pub fn release(&self) {
        if !self.is_released.replace(true) {
            self.watch.handle().poll_all();
        }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.watch.look_whether_over();
    }
}

/// A request that is under way until this is dropped.
struct OneUnderWay<'a> {
    requests: &'a Requests,
    tick: Tick,
}

impl Drop for OneUnderWay<'_> {
    #[inline]
    fn drop(&mut self) {
        let requests = self.requests;
        if self.tick == requests.watch.tick() {
            requests.fresh.set(requests.fresh.get() - 1);
        } else {
            requests.end_older(self.tick);
        }
    }
}

pin_project_lite::pin_project! {
    /// A request that ends by itself, or with `Gone` when its device is given up.
    pub struct Watched<'a, F> {
        under_way: OneUnderWay<'a>,
        #[pin]
        request: F,
    }
}

impl<T, F: Future<Output = IoResult<T>>> Future for Watched<'_, F> {
    type Output = IoResult<T>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let own = self.project();
        let requests = own.under_way.requests;
        let polled = if requests.is_released.get() {
            Poll::Ready(Err(IoError::Gone))
        } else {
            own.request.poll(context)
        };
        if polled.is_ready() {
            requests.last_end.set(requests.watch.tick());
        }
        polled
    }
}
