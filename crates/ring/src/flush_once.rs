//! One flush for all who wait.

use std::cell::Cell;

use crate::Signal;

/// Shares flushes of one device among the tasks that need them.
///
/// The owner numbers completed changes in any rising order: a flush that begins when number n is complete
/// covers all changes up to n. One task at a time flushes; the others wait, and one of those that the flush
/// did not cover begins the next one. A flusher that is dropped hands the right to flush to a waiter.
#[derive(Default)]
pub struct FlushOnce {
    covered: Cell<u64>,
    is_flushing: Cell<bool>,
    ended: Signal,
}

/// The right to flush, given back when dropped, also by a request that is dropped.
struct FlushRight<'a>(&'a FlushOnce);

impl Drop for FlushRight<'_> {
    fn drop(&mut self) {
        self.0.is_flushing.set(false);
        self.0.ended.notify();
    }
}

impl FlushOnce {
    /// The number up to which changes are durable.
    pub fn covered(&self) -> u64 {
        self.covered.get()
    }

    /// Completes when all changes up to `wanted` are durable. `completed` is the number of the newest
    /// change that has completed; `flush` gets the number which it will cover, and flushes the device.
    ///
    /// # Errors
    /// Those of this task's own flush. A flush of another task that fails is followed by one of this task.
    pub async fn until<E>(
        &self,
        wanted: u64,
        completed: impl Fn() -> u64,
        flush: impl AsyncFn(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        while self.covered.get() < wanted {
            if self.is_flushing.replace(true) {
                self.ended.wait().await;
                continue;
            }
            let _right = FlushRight(self);
            let covers = completed();
            flush(covers).await?;
            self.covered.set(self.covered.get().max(covers));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::rc::Rc;
    use std::task::Poll;

    use super::*;
    use crate::{Executor, Handle, NoFiles, join_all};

    const FLUSH_NS: u64 = 100;

    /// A device whose flushes take time and whose changes are numbered.
    struct Flushed {
        handle: Handle,
        once: FlushOnce,
        changes: Cell<u64>,
        flushes: Cell<u32>,
        /// How many of the next flushes fail.
        failing: Cell<u32>,
    }

    impl Flushed {
        fn new(handle: Handle) -> Rc<Self> {
            let (once, changes, flushes, failing) = Default::default();
            Rc::new(Self { handle, once, changes, flushes, failing })
        }

        async fn change_and_flush(&self) -> Result<(), u32> {
            self.changes.set(self.changes.get() + 1);
            let flush = async |_| {
                self.flushes.set(self.flushes.get() + 1);
                self.handle.sleep(FLUSH_NS).await;
                match self.failing.get() {
                    0 => Ok(()),
                    left => {
                        self.failing.set(left - 1);
                        Err(left)
                    }
                }
            };
            self.once.until(self.changes.get(), || self.changes.get(), flush).await
        }
    }

    #[test]
    fn tasks_that_wait_at_the_same_time_share_the_next_flush() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let device = Flushed::new(executor.handle());
        let flushes = executor.block_on(async move {
            let late = |number| {
                let device = device.clone();
                async move {
                    device.handle.sleep(number).await;
                    device.change_and_flush().await
                }
            };
            // The first flush covers the first change alone, the second one all others.
            let results = join_all((0..20).map(late)).await;
            assert!(results.iter().all(Result::is_ok));
            assert_eq!(device.once.covered(), 20);
            (device.flushes.get(), device.handle.now())
        });
        assert_eq!(flushes, (2, 2 * FLUSH_NS));
    }

    #[test]
    fn a_failed_flush_is_the_error_of_its_task_alone_and_covers_nothing() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let device = Flushed::new(executor.handle());
        let (results, covered) = executor.block_on(async move {
            device.failing.set(1);
            let results = join_all((0..3).map(|_| device.change_and_flush())).await;
            (results, device.once.covered())
        });
        assert_eq!((results, covered), (vec![Err(1), Ok(()), Ok(())], 3));
    }

    #[test]
    fn a_flusher_that_is_dropped_leaves_its_turn_to_a_waiter() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let device = Flushed::new(executor.handle());
        let (result, flushes) = executor.block_on(async move {
            let mut flusher = Box::pin(device.change_and_flush());
            let mut waiter = Box::pin(device.change_and_flush());
            poll_fn(|context| {
                assert!(flusher.as_mut().poll(context).is_pending());
                assert!(waiter.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(flusher);
            (waiter.await, device.flushes.get())
        });
        assert_eq!((result, flushes), (Ok(()), 2));
    }
}
