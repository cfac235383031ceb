//! Answers nothing for a time, then does all that it was asked for.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, DriveControl, Durability, IoResult, Lba, Limits, Nanos, Payload, SectorRange,
    UnderWay,
};
use voltier_ring::{Handle, Signal};

/// Whether a drive answers; can be changed while requests run.
#[derive(Clone, Default)]
pub struct Hang(Rc<HangState>);

#[derive(Default)]
struct HangState {
    is_hung: Cell<bool>,
    /// The next request is not answered before the end.
    holds_next: Cell<bool>,
    ends: Cell<u64>,
    ended: Signal,
    asked: Cell<u64>,
    under_way: Cell<usize>,
}

/// A request that the drive was given, until dropped.
struct Held(Rc<HangState>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
    }
}

impl Hang {
    /// From now on nothing is answered.
    pub fn begin(&self) {
        self.0.is_hung.set(true);
    }

    /// The next request is not answered; others are.
    pub fn hold_next(&self) {
        self.0.holds_next.set(true);
    }

    /// All that was asked for is done.
    pub fn end(&self) {
        self.0.is_hung.set(false);
        self.0.ends.set(self.0.ends.get() + 1);
        self.0.ended.notify();
    }

    /// Requests that the drive was given so far.
    pub fn asked(&self) -> u64 {
        self.0.asked.get()
    }
}

/// A drive that hangs now and then. Clones are the same drive.
pub struct HangDevice<D> {
    handle: Handle,
    below: Rc<D>,
    hang: Hang,
}

impl<D> Clone for HangDevice<D> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone(), below: self.below.clone(), hang: self.hang.clone() }
    }
}

impl<D: BlockDevice> HangDevice<D> {
    /// Hangs as `hang` says; keep a clone of it to change it later.
    pub fn new(handle: Handle, below: D, hang: Hang) -> Self {
        Self { handle, below: Rc::new(below), hang }
    }

    /// Does a request when the drive answers, whoever waits for it then.
    async fn answer<T: 'static>(
        &self,
        request: impl AsyncFnOnce(Rc<D>) -> IoResult<T> + 'static,
    ) -> IoResult<T> {
        let (state, below) = (self.hang.0.clone(), self.below.clone());
        state.asked.set(state.asked.get() + 1);
        state.under_way.set(state.under_way.get() + 1);
        let held = Held(state.clone());
        let held_until = state.holds_next.take().then(|| state.ends.get() + 1);
        let answered = async move {
            let has_end = || held_until.is_none_or(|end| state.ends.get() >= end);
            state.ended.until(|| !state.is_hung.get() && has_end()).await;
            let result = request(below).await;
            drop(held);
            result
        };
        self.handle.finish(answered).await
    }
}

impl<D: BlockDevice> BlockDevice for HangDevice<D> {
    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.answer(async move |below: Rc<D>| below.read(at, into).await).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        self.answer(async move |below: Rc<D>| below.write(at, data, durability).await).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.answer(async move |below: Rc<D>| below.flush().await).await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.answer(async move |below: Rc<D>| below.discard(range).await).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.answer(async move |below: Rc<D>| below.write_zeroes(range, durability).await).await
    }
}

impl<D: DriveControl> DriveControl for HangDevice<D> {
    fn under_way(&self) -> UnderWay {
        let state = self.hang.0.clone();
        UnderWay::of(move || state.under_way.get())
    }

    /// A drive that hangs ends nothing early, whoever gives it up.
    fn abandon(&self) {}

    fn forget_failed_flush(&self) {
        self.below.forget_failed_flush();
    }

    fn patience_ns(&self) -> Nanos {
        self.below.patience_ns()
    }
}
