//! Two futures of which the one that completes first ends the other.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pin_project_lite::pin_project! {
    /// A future and what ends it: see [`race`].
    pub struct Race<F, E> {
        #[pin]
        future: F,
        #[pin]
        end: E,
    }
}

/// Completes with the first of two futures: `Ok` with the result of `future`, or `Err` with that of `end`. If both
/// are ready, it is that of `future`. The other one is dropped.
pub fn race<F: Future, E: Future>(future: F, end: E) -> Race<F, E> {
    Race { future, end }
}

impl<F: Future, E: Future> Future for Race<F, E> {
    type Output = Result<F::Output, E::Output>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let own = self.project();
        match own.future.poll(context) {
            Poll::Ready(result) => Poll::Ready(Ok(result)),
            Poll::Pending => own.end.poll(context).map(Err),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Executor, NoFiles};

    #[test]
    fn the_first_to_complete_ends_the_other_and_the_future_wins_a_tie() {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        let (results, end) = executor.block_on(async move {
            let slept = async |time_ns| {
                handle.sleep(time_ns).await;
                time_ns
            };
            let mut results = Vec::new();
            for (future, end) in [(10, 20), (20, 10), (10, 10)] {
                results.push(race(slept(future), slept(end)).await);
            }
            results.push(handle.timeout(10, slept(20)).await.map_err(|()| 0));
            results.push(handle.timeout(20, slept(10)).await.map_err(|()| 0));
            (results, handle.now())
        });
        assert_eq!((results, end), (vec![Ok(10), Err(10), Ok(10), Err(0), Ok(10)], 50));
    }
}
