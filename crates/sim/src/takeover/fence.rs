//! An image in a cluster, and the ties of hosts to it: who breaks the lock of another one has the cluster refuse that
//! host, as the drive over librbd has it.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use voltier_block::{
    BlockDevice, Buf, DriveControl, Durability, IoError, IoResult, Lba, Limits, Nanos, Payload,
    Prng, SectorRange, UnderWay,
};
use voltier_ring::{Handle, Signal, race};

use crate::canary::{self, Canary};
use crate::disk::SimDisk;
use crate::medium::{Cut, Medium};
use crate::origin::FittedDevice;

/// How often a drive looks whether it has its lock still.
const LOOK_NS: Nanos = 2_000_000_000;

/// A drive of a host: its own SSD, or the image.
pub(super) type HostDrive = FittedDevice<Tied>;

/// An image: the cluster takes requests of the newest epoch only.
pub(super) struct Image {
    pub(super) disk: SimDisk,
    epoch: Cell<u64>,
}

impl Image {
    pub(super) fn new(disk: SimDisk) -> Rc<Self> {
        Rc::new(Self { disk, epoch: Cell::new(0) })
    }

    /// The lock is broken: requests under way are each done in part, or not at all, and from now on nothing of those
    /// who had it before is taken. `cut` says whether what the old host had not flushed was with it alone.
    pub(super) fn break_lock(&self, cut: Cut, dice: &mut Prng) -> Medium {
        self.epoch.set(self.epoch.get() + 1);
        if canary::is(Canary::LateWritesTaken) {
            return self.disk.medium();
        }
        self.disk.settle(cut, dice);
        self.disk.medium()
    }

    /// The tie of a host that has the lock now.
    pub(super) fn tie(self: &Rc<Self>, handle: &Handle) -> Rc<Tie> {
        self.tie_of(handle, self.epoch.get())
    }

    fn tie_of(self: &Rc<Self>, handle: &Handle, epoch: u64) -> Rc<Tie> {
        let tie = Rc::new(Tie {
            image: self.clone(),
            handle: handle.clone(),
            epoch,
            cut_off_until: Cell::new(0),
            is_lost: Rc::default(),
            lost: Signal::new(),
            requests: Rc::default(),
        });
        drop(handle.spawn(look(Rc::downgrade(&tie))));
        tie
    }
}

/// Looks after the lock now and then, as the drive does.
async fn look(tie: Weak<Tie>) {
    let Some(handle) = tie.upgrade().map(|tie| tie.handle.clone()) else { return };
    loop {
        handle.sleep(LOOK_NS).await;
        let Some(tie) = tie.upgrade() else { return };
        if tie.is_lost.get() {
            return;
        }
        if !tie.is_cut_off() && tie.is_stale() {
            return tie.lose();
        }
    }
}

/// What a host has of the image.
pub(super) struct Tie {
    image: Rc<Image>,
    handle: Handle,
    epoch: u64,
    /// Until then nothing of the host reaches the cluster, and no answer the host.
    cut_off_until: Cell<Nanos>,
    is_lost: Rc<Cell<bool>>,
    lost: Signal,
    requests: Rc<Cell<usize>>,
}

impl Tie {
    /// The same host again, which still believes in its lock.
    pub(super) fn again(&self) -> Rc<Self> {
        self.image.tie_of(&self.handle, self.epoch)
    }

    pub(super) fn cut_off(&self, time_ns: Nanos) {
        self.cut_off_until.set(self.handle.now().saturating_add(time_ns));
    }

    /// Becomes true when the host knows that the lock is lost.
    pub(super) fn lock_is_lost(&self) -> Rc<Cell<bool>> {
        self.is_lost.clone()
    }

    pub(super) fn knows_loss(&self) -> bool {
        self.is_lost.get()
    }

    /// Waits until the host knows that the lock is lost.
    pub(super) async fn until_lost(&self) {
        self.lost.until(|| self.is_lost.get()).await;
    }

    fn is_cut_off(&self) -> bool {
        self.handle.now() < self.cut_off_until.get()
    }

    pub(super) fn is_stale(&self) -> bool {
        self.image.epoch.get() > self.epoch
    }

    fn lose(&self) {
        self.is_lost.set(true);
        self.lost.notify();
    }

    /// The way to the cluster, or back.
    async fn pass(&self) -> IoResult<()> {
        while self.is_cut_off() {
            self.handle.sleep_until(self.cut_off_until.get()).await;
        }
        if self.is_stale() {
            self.lose();
            return Err(IoError::Gone);
        }
        Ok(())
    }
}

/// A request that a drive has.
struct Held(Rc<Cell<usize>>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A drive, over a tie if it is the image.
pub(super) struct Tied {
    disk: SimDisk,
    tie: Option<Rc<Tie>>,
    limits: Limits,
}

impl Tied {
    /// A drive of the host itself.
    pub(super) fn own(disk: SimDisk) -> HostDrive {
        Self::over(disk, None)
    }

    /// The image.
    pub(super) fn image(tie: &Rc<Tie>) -> HostDrive {
        Self::over(tie.image.disk.clone(), Some(tie.clone()))
    }

    fn over(disk: SimDisk, tie: Option<Rc<Tie>>) -> HostDrive {
        let limits = disk.limits().clone();
        FittedDevice::any_sector(Self { disk, tie, limits })
    }

    async fn ask<T>(&self, request: impl Future<Output = IoResult<T>>) -> IoResult<T> {
        let Some(tie) = &self.tie else { return request.await };
        if tie.is_lost.get() {
            return Err(IoError::Gone);
        }
        tie.requests.set(tie.requests.get() + 1);
        let _held = Held(tie.requests.clone());
        let work = async {
            tie.pass().await?;
            let result = request.await;
            tie.pass().await?;
            result
        };
        race(work, tie.until_lost()).await.unwrap_or(Err(IoError::Gone))
    }
}

impl BlockDevice for Tied {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.ask(self.disk.read(at, into)).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        self.ask(self.disk.write(at, data, durability)).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.ask(self.disk.flush()).await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.ask(self.disk.discard(range)).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.ask(self.disk.write_zeroes(range, durability)).await
    }
}

impl DriveControl for Tied {
    fn under_way(&self) -> UnderWay {
        match &self.tie {
            Some(tie) => {
                let requests = tie.requests.clone();
                UnderWay::of(move || requests.get())
            }
            None => self.disk.under_way(),
        }
    }

    fn abandon(&self) {
        if let Some(tie) = &self.tie {
            tie.lose();
        }
    }

    fn forget_failed_flush(&self) {
        self.disk.forget_failed_flush();
    }

    fn patience_ns(&self) -> Nanos {
        0
    }
}
