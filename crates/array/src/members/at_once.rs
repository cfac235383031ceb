//! Parts of a request at once.

use std::future::Future;

use voltier_ring::{Handle, join_all};

/// Up to so many parts of a request are polled by the request itself. More become tasks, because
/// every part that ends has all others polled.
const PARTS_INLINE_MAX: usize = 16;

/// Runs all of them at once; their results in order. Work that must not end half done when the request
/// is dropped is part of something that is finished: see [`Handle::finish`].
pub(crate) async fn together<F>(handle: &Handle, parts: Vec<F>) -> Vec<F::Output>
where
    F: Future<Output: 'static> + 'static,
{
    at_once(handle, parts.into_iter()).await
}

/// The same for parts that are not in a vector yet: one allocation less.
pub(crate) async fn at_once<F>(
    handle: &Handle,
    parts: impl ExactSizeIterator<Item = F>,
) -> Vec<F::Output>
where
    F: Future<Output: 'static> + 'static,
{
    if parts.len() <= PARTS_INLINE_MAX {
        return join_all(parts).await;
    }
    let tasks: Vec<_> = parts.map(|part| handle.spawn(part)).collect();
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        results.push(task.await);
    }
    results
}
