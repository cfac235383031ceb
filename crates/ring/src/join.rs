//! Several futures of one request at once, without tasks of their own.
//!
//! UNSAFETY: the futures are pinned where they are, in one allocation: what is polled is never moved
//! until it is dropped.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

enum Part<F: Future> {
    Running(F),
    Done(F::Output),
    Taken,
}

/// Some futures at once: see [`join_all`].
pub struct JoinAll<F: Future> {
    /// Never moved out of while a part runs.
    parts: Box<[Part<F>]>,
}

/// Runs all futures together; their results in order. A part that is not done is polled whenever any
/// is woken, so this is for a few; for hundreds there is [`join_at_most`].
pub fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> JoinAll<F> {
    JoinAll { parts: futures.into_iter().map(Part::Running).collect() }
}

/// Runs futures, begun in order and so many at once at most; their results in order. Futures that have
/// not begun cost nothing, however many they are.
pub async fn join_at_most<F: Future>(
    at_once: usize,
    futures: impl IntoIterator<Item = F>,
) -> Vec<F::Output> {
    let waiting = RefCell::new(futures.into_iter().enumerate());
    let next = || waiting.borrow_mut().next();
    let lanes = (0..at_once).map(|_| async {
        let mut done = Vec::new();
        while let Some((number, future)) = next() {
            done.push((number, future.await));
        }
        done
    });
    let mut done: Vec<_> = join_all(lanes).await.into_iter().flatten().collect();
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

// The futures are behind a pointer, which may move; results are plain values.
impl<F: Future> Unpin for JoinAll<F> {}

impl<F: Future> Future for JoinAll<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<F::Output>> {
        let mut all_done = true;
        for part in &mut self.parts {
            let Part::Running(future) = part else { continue };
            // SAFETY: the future is in a box that is neither resized nor given away. The future stays in
            // its place until the assignment below drops it there.
            match unsafe { Pin::new_unchecked(future) }.poll(context) {
                Poll::Ready(value) => *part = Part::Done(value),
                Poll::Pending => all_done = false,
            }
        }
        if !all_done {
            return Poll::Pending;
        }
        let take = |part: &mut Part<F>| match std::mem::replace(part, Part::Taken) {
            Part::Done(value) => value,
            Part::Running(_) | Part::Taken => panic!("polled again after its end"),
        };
        Poll::Ready(self.parts.iter_mut().map(take).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::{Executor, NoFiles};

    #[test]
    fn parts_run_at_once_and_their_results_are_in_order() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let (results, end) = executor.block_on(async move {
            let part = |delay: u64| {
                let handle = handle.clone();
                async move {
                    handle.sleep(delay).await;
                    delay
                }
            };
            let results = join_all([30, 10, 0, 20].map(part)).await;
            (results, handle.now())
        });
        assert_eq!((results, end), (vec![30, 10, 0, 20], 30));
    }

    #[test]
    fn no_more_than_asked_for_run_at_once_and_the_next_begins_when_one_ends() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let (results, end, most) = executor.block_on(async move {
            let (running, most) = (Cell::new(0), Cell::new(0));
            let part = |delay: u64| {
                let (handle, running, most) = (&handle, &running, &most);
                async move {
                    running.set(running.get() + 1);
                    most.set(running.get().max(most.get()));
                    handle.sleep(delay).await;
                    running.set(running.get() - 1);
                    delay
                }
            };
            let results = join_at_most(2, [30, 10, 5, 20, 0].map(part)).await;
            (results, handle.now(), most.get())
        });
        assert_eq!((results, end, most), (vec![30, 10, 5, 20, 0], 35, 2));
    }

    #[test]
    fn what_waits_for_its_turn_is_not_polled() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let polls = executor.block_on(async move {
            let polls = Cell::new(0);
            let part = |delay: u64| {
                let mut sleep = Box::pin(handle.sleep(delay));
                let polls = &polls;
                std::future::poll_fn(move |context| {
                    polls.set(polls.get() + 1);
                    sleep.as_mut().poll(context)
                })
            };
            join_at_most(4, (1..=1000).map(part)).await;
            polls.get()
        });
        assert!(polls <= 1000 * (4 + 1), "{polls}");
    }

    #[test]
    fn what_is_dropped_before_its_end_drops_its_parts() {
        let dropped = Rc::new(Cell::new(0));
        struct Counted(Rc<Cell<u32>>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let part = |is_short: bool| {
            let counted = Counted(dropped.clone());
            async move {
                if !is_short {
                    std::future::pending::<()>().await;
                }
                counted
            }
        };
        let mut all = join_all([true, false, false].map(part));
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut all).poll(&mut context).is_pending());
        assert_eq!(dropped.get(), 0);
        drop(all);
        assert_eq!(dropped.get(), 3);
    }
}
