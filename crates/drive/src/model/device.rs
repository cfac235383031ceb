//! A device that takes as long as a modelled drive would, in real or in virtual time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, Durability, IoResult, Lba, Limits, Nanos, Payload, SectorRange,
};
use voltier_ring::{Handle, OneshotSender, oneshot};

use super::{Completion, Model, ModelOp, Profile, Ticket, Timing};

/// The times of one modelled drive, for a device that keeps the data itself: who makes a request
/// waits for [`Clockwork::arrive`].
pub struct Clockwork {
    handle: Handle,
    model: RefCell<Model>,
    waiting: RefCell<BTreeMap<Ticket, OneshotSender<Nanos>>>,
    /// Whether a task advances the model from dispatch to dispatch. None does without waiters.
    driven: Cell<bool>,
}

impl Clockwork {
    /// A drive of this profile with `bytes` bytes, idle from now on.
    pub fn new(handle: Handle, profile: &Profile, bytes: u64) -> Rc<Self> {
        Rc::new(Self {
            handle,
            model: RefCell::new(profile.model(bytes)),
            waiting: RefCell::new(BTreeMap::new()),
            driven: Cell::new(false),
        })
    }

    /// Takes a request in now; the future completes when the drive would be done.
    ///
    /// The request counts from this call, whenever the future is polled, and also if it is dropped.
    pub fn arrive(
        self: &Rc<Self>,
        op: ModelOp,
        range: SectorRange,
    ) -> impl Future<Output = ()> + use<> {
        let completion = self.model.borrow_mut().submit(self.handle.now(), op, range);
        let known = match completion {
            Completion::At(at) => Ok(at),
            Completion::Queued(ticket) => {
                let (sender, receiver) = oneshot();
                self.waiting.borrow_mut().insert(ticket, sender);
                Err(receiver)
            }
        };
        self.answer();
        if !self.waiting.borrow().is_empty() && !self.driven.replace(true) {
            self.handle.spawn(self.clone().drive());
        }
        let handle = self.handle.clone();
        async move {
            let at = match known {
                Ok(at) => at,
                Err(answer) => answer.await.expect("the drive answers every request"),
            };
            handle.sleep_until(at).await;
        }
    }

    async fn drive(self: Rc<Self>) {
        while !self.waiting.borrow().is_empty() {
            let dispatch = self.model.borrow().next_dispatch();
            let at = dispatch.expect("a request that waits will be dispatched");
            self.handle.sleep_until(at).await;
            self.model.borrow_mut().advance(self.handle.now());
            self.answer();
        }
        self.driven.set(false);
    }

    fn answer(&self) {
        for (ticket, at) in self.model.borrow_mut().resolved() {
            if let Some(sender) = self.waiting.borrow_mut().remove(&ticket) {
                sender.send(at);
            }
        }
    }
}

/// A store that answers when a drive of some profile would.
///
/// The store holds the data and is asked at once, the drive's time is waited out beside it: an
/// operation takes the longer of both. Over a [`crate::MemoryDevice`] that is the drive's time.
pub struct ModelDevice<D> {
    clockwork: Rc<Clockwork>,
    store: D,
    limits: Limits,
}

impl<D: BlockDevice> ModelDevice<D> {
    /// A drive of this profile and of the store's size, idle from now on.
    pub fn new(handle: Handle, profile: &Profile, store: D) -> Self {
        let below = store.limits();
        let zeroes = profile.after_discard == AfterDiscard::Zeroes
            && below.after_discard == AfterDiscard::Zeroes;
        let limits = Limits {
            block_bytes: below.block_bytes.max(profile.block_bytes),
            after_discard: if zeroes { AfterDiscard::Zeroes } else { AfterDiscard::Unchanged },
            cheap_zeroes: zeroes,
            volatile_cache: profile.volatile_cache() || below.volatile_cache,
            rotational: matches!(profile.timing, Timing::Hdd(_)),
            ..below.clone()
        };
        let clockwork = Clockwork::new(handle, profile, limits.bytes());
        Self { clockwork, store, limits }
    }

    /// The device that holds the data.
    pub fn store(&self) -> &D {
        &self.store
    }
}

const fn write_op(durability: Durability) -> ModelOp {
    match durability {
        Durability::Cached => ModelOp::Write,
        Durability::Durable => ModelOp::WriteDurable,
    }
}

impl<D: BlockDevice> BlockDevice for ModelDevice<D> {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        let range = self.limits.checked_transfer(at, into.len())?;
        let done = self.clockwork.arrive(ModelOp::Read, range);
        let result = self.store.read(at, into).await;
        done.await;
        result
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        let range = self.limits.checked_write(at, &data)?;
        let done = self.clockwork.arrive(write_op(durability), range);
        let result = self.store.write(at, data, durability).await;
        done.await;
        result
    }

    async fn flush(&self) -> IoResult<()> {
        let done = self.clockwork.arrive(ModelOp::Flush, SectorRange::default());
        let result = self.store.flush().await;
        done.await;
        result
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.limits.checked_change(range)?;
        let done = self.clockwork.arrive(ModelOp::Discard, range);
        let result = match self.limits.after_discard {
            AfterDiscard::Zeroes => self.store.discard(range).await,
            AfterDiscard::Anything | AfterDiscard::Unchanged => Ok(()),
        };
        done.await;
        result
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.limits.checked_change(range)?;
        let op = match self.limits.after_discard {
            AfterDiscard::Zeroes => ModelOp::Discard,
            AfterDiscard::Anything | AfterDiscard::Unchanged => write_op(durability),
        };
        let done = self.clockwork.arrive(op, range);
        let result = self.store.write_zeroes(range, durability).await;
        done.await;
        result
    }
}

voltier_block::pass_control_on!(ModelDevice.store);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use std::task::Poll;
    use voltier_block::{GIB, Prng};
    use voltier_ring::{Executor, NoFiles};

    /// Random 4 KiB operations by 64 tasks for two virtual seconds: how many, and when it ended.
    fn operations(profile: &'static str, reads: bool) -> (u64, Nanos) {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(async move {
            let profile = Profile::find(profile).unwrap();
            let store = MemoryDevice::new(GIB);
            let device = Rc::new(ModelDevice::new(handle.clone(), profile, store));
            let done = Rc::new(Cell::new(0));
            let tasks: Vec<_> = (0..64)
                .map(|seed| {
                    let (device, handle, done) = (device.clone(), handle.clone(), done.clone());
                    handle.clone().spawn(async move {
                        let mut prng = Prng::new(seed);
                        while handle.now() < 2_000_000_000 {
                            let at = Lba(prng.below(GIB / 4096) * 8);
                            if reads {
                                device.read(at, Buf::new(4096)).await.unwrap();
                            } else {
                                let data = Buf::zeroed(4096).into();
                                device.write(at, data, Durability::Cached).await.unwrap();
                            }
                            done.set(done.get() + 1);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
            device.flush().await.unwrap();
            (done.get(), handle.now())
        })
    }

    #[test]
    fn a_modelled_drive_in_virtual_time_is_as_fast_as_its_profile_and_the_same_each_time() {
        for (profile, reads, least, most) in [
            ("hdd-7200", true, 400, 600),
            ("hdd-7200", false, 400, 700),
            ("ssd-sata", true, 90_000, 105_000),
            ("ssd-sata", false, 70_000, 85_000),
        ] {
            let (count, end) = operations(profile, reads);
            assert!((least..most).contains(&count), "{profile}: {count}");
            assert_eq!((count, end), operations(profile, reads));
        }
    }

    #[test]
    fn a_request_nobody_waits_for_any_more_holds_nobody_up() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(async move {
            let profile = Profile::find("hdd-7200").unwrap();
            let device = ModelDevice::new(handle.clone(), profile, MemoryDevice::new(GIB));
            for index in 0..4 {
                let mut read = Box::pin(device.read(Lba(index * 99_000), Buf::new(4096)));
                let first =
                    std::future::poll_fn(|context| Poll::Ready(read.as_mut().poll(context)));
                assert!(first.await.is_pending());
            }
            device.read(Lba(800), Buf::new(4096)).await.unwrap();
            handle.sleep(1_000_000_000).await;
            assert!(device.clockwork.waiting.borrow().is_empty() && !device.clockwork.driven.get());
            device.read(Lba(0), Buf::new(4096)).await.unwrap();
        });
        assert_eq!(executor.task_count(), 0);
    }

    #[test]
    fn the_same_device_runs_in_real_time() {
        let mut executor = Executor::real().unwrap();
        let handle = executor.handle();
        executor.block_on(async move {
            let profile = Profile::find("hdd-7200").unwrap();
            let device = ModelDevice::new(handle.clone(), profile, MemoryDevice::new(GIB));
            let data = Buf::zeroed(4096).into();
            device.write(Lba(800), data, Durability::Durable).await.unwrap();
            let begin = handle.now();
            device.read(Lba(80_000), Buf::new(4096)).await.unwrap();
            assert!(handle.now() > begin);
        });
    }
}
