//! Devices whose requests end: when the drive answers, or when the device is given up as hung.
//!
//! Every device of an array is wrapped in a [`Guarded`] before anything is sent to it. The wrapper counts
//! requests under way by the tick of its [`Watch`] in which they began: no clock, no timer and no allocation
//! for a request. A device that is [abandoned](BlockDevice::abandon) answers `Gone` to all requests, also to
//! those under way. The drive may still be at them ([`BlockDevice::under_way`]).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use voltier_block::{
    BlockDevice, Buf, Durability, IoError, IoResult, Lba, Limits, Payload, SectorRange, UnderWay,
};

use crate::members::watch::{Tick, Watch};

/// Requests that began in the same tick.
struct Began {
    tick: Tick,
    count: u32,
}

/// The requests of a device under way.
pub(crate) struct Requests {
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
    pub(crate) fn new(watch: &Rc<Watch>) -> Rc<Self> {
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

    #[inline]
    fn begin(&self) -> OneUnderWay<'_> {
        self.fresh.set(self.fresh.get() + 1);
        if !self.watch.is_ticking() {
            self.watch.start();
        }
        OneUnderWay { requests: self, tick: self.watch.tick() }
    }

    #[cold]
    fn end_older(&self, tick: Tick) {
        let mut older = self.older.borrow_mut();
        if let Some(began) = older.iter_mut().find(|began| began.tick == tick) {
            began.count -= 1;
        }
    }

    /// A tick is over.
    pub(crate) fn end_tick(&self, tick: Tick) {
        let mut older = self.older.borrow_mut();
        let count = self.fresh.replace(0);
        if count > 0 {
            older.push_back(Began { tick, count });
        }
        older.retain(|began| began.count > 0);
    }

    /// The tick in which the oldest one under way began; none if there is none from before this tick.
    pub(crate) fn oldest(&self) -> Option<Tick> {
        self.older.borrow().iter().find(|began| began.count > 0).map(|began| began.tick)
    }

    /// Whether any is under way.
    pub(crate) fn are_any(&self) -> bool {
        self.fresh.get() > 0 || self.oldest().is_some()
    }

    pub(crate) fn last_end(&self) -> Tick {
        self.last_end.get()
    }

    /// Ends all of them with `Gone`, now and from now on.
    pub(crate) fn release(&self) {
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

impl<'a> OneUnderWay<'a> {
    /// Waits for the request, or until the device is given up. The request stays where it is pinned: a move
    /// would copy it.
    #[inline]
    fn until_ended<'r, F>(&self, request: Pin<&'r mut F>) -> UntilEnded<'a, 'r, F> {
        UntilEnded { requests: self.requests, request }
    }
}

struct UntilEnded<'a, 'r, F> {
    requests: &'a Requests,
    request: Pin<&'r mut F>,
}

impl<T, F: Future<Output = IoResult<T>>> Future for UntilEnded<'_, '_, F> {
    type Output = IoResult<T>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let own = self.get_mut();
        let polled = if own.requests.is_released.get() {
            Poll::Ready(Err(IoError::Gone))
        } else {
            own.request.as_mut().poll(context)
        };
        if polled.is_ready() {
            own.requests.last_end.set(own.requests.watch.tick());
        }
        polled
    }
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

/// A device whose requests are watched, and can be ended.
pub(crate) struct Guarded<D> {
    device: D,
    requests: Rc<Requests>,
}

impl<D: BlockDevice> Guarded<D> {
    pub(crate) fn new(device: D, watch: &Rc<Watch>) -> Self {
        Self { device, requests: Requests::new(watch) }
    }

    pub(crate) fn requests(&self) -> &Rc<Requests> {
        &self.requests
    }
}

impl<D: BlockDevice> BlockDevice for Guarded<D> {
    fn limits(&self) -> &Limits {
        self.device.limits()
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.requests.begin().until_ended(pin!(self.device.read(at, into))).await
    }

    async fn read_vectored(&self, at: Lba, into: Vec<Buf>) -> IoResult<Vec<Buf>> {
        self.requests.begin().until_ended(pin!(self.device.read_vectored(at, into))).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        self.requests.begin().until_ended(pin!(self.device.write(at, data, durability))).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.requests.begin().until_ended(pin!(self.device.flush())).await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.requests.begin().until_ended(pin!(self.device.discard(range))).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.requests.begin().until_ended(pin!(self.device.write_zeroes(range, durability))).await
    }

    fn under_way(&self) -> UnderWay {
        self.device.under_way()
    }

    /// Ends all requests with `Gone`, now and from now on. Nobody relies on the device any more.
    fn abandon(&self) {
        self.device.abandon();
        self.requests.release();
    }
}
