//! Work that is finished also when nobody waits for it any more, without a task as long as
//! somebody does.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A way to begin tasks.
pub trait Spawn {
    /// Begins a task whose result nobody waits for.
    fn spawn(&self, future: impl Future<Output: 'static> + 'static);
}

/// A future that becomes a task when it is dropped before its end: see
/// [`Handle::finish`](crate::Handle::finish).
pub struct Finish<'a, S: Spawn, F: Future<Output: 'static> + 'static> {
    tasks: &'a S,
    /// Absent while it is polled, so that a panic drops it, and at the end.
    future: Option<Pin<Box<F>>>,
}

impl<'a, S: Spawn, F: Future<Output: 'static> + 'static> Finish<'a, S, F> {
    pub(crate) fn new(tasks: &'a S, future: F) -> Self {
        Self { tasks, future: Some(Box::pin(future)) }
    }
}

impl<S: Spawn, F: Future<Output: 'static> + 'static> Future for Finish<'_, S, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let mut future = self.future.take().expect("not polled after its end");
        let poll = future.as_mut().poll(context);
        if poll.is_pending() {
            self.future = Some(future);
        }
        poll
    }
}

impl<S: Spawn, F: Future<Output: 'static> + 'static> Drop for Finish<'_, S, F> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.tasks.spawn(future);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::rc::Rc;

    use super::*;
    use crate::{Executor, Handle, NoFiles};

    /// A future that says how far it got.
    fn steps(handle: &Handle, reached: &Rc<Cell<u32>>) -> impl Future<Output = u32> + 'static {
        let (handle, reached) = (handle.clone(), reached.clone());
        async move {
            for step in 1..=3 {
                reached.set(step);
                handle.sleep(10).await;
            }
            reached.set(4);
            7
        }
    }

    #[test]
    fn it_goes_on_when_nobody_waits_any_more() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let reached = Rc::new(Cell::new(0));
        let seen = reached.clone();
        executor.block_on(async move {
            assert_eq!(handle.finish(steps(&handle, &seen)).await, 7);
            let mut dropped = handle.finish(steps(&handle, &seen));
            poll_fn(|context| Poll::Ready(Pin::new(&mut dropped).poll(context).is_pending())).await;
            assert_eq!(seen.get(), 1);
            drop(dropped);
            handle.sleep(100).await;
        });
        assert_eq!((reached.get(), executor.task_count()), (4, 0));
    }

    #[test]
    fn with_the_executor_it_ends_as_tasks_do() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let reached = Rc::new(Cell::new(0));
        let seen = reached.clone();
        executor.block_on(async move {
            let waiting = handle.clone();
            drop(handle.spawn(async move { waiting.finish(steps(&waiting, &seen)).await }));
            handle.yield_now().await;
        });
        assert_eq!(reached.get(), 1);
        drop(executor);
        // Nothing is kept: the future had the only other owner of the cell.
        assert_eq!(Rc::strong_count(&reached), 1);
    }
}
