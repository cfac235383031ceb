//! Several futures of one request at once, without tasks of their own.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// A future of one part of a request.
pub(crate) type Part<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Runs all parts together; their results in order.
pub(crate) async fn join_all<T>(parts: Vec<Part<'_, T>>) -> Vec<T> {
    let mut waiting: Vec<Option<Part<'_, T>>> = parts.into_iter().map(Some).collect();
    let mut results: Vec<Option<T>> = waiting.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut all_done = true;
        for (part, result) in waiting.iter_mut().zip(&mut results) {
            let Some(future) = part else { continue };
            match future.as_mut().poll(context) {
                Poll::Ready(value) => (*part, *result) = (None, Some(value)),
                Poll::Pending => all_done = false,
            }
        }
        if all_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().map(|result| result.expect("every part is done")).collect()
}
