//! Running a task on a core from the control thread.

use std::future::Future;

use voltier_control::{ControlError, ControlResult};
use voltier_ring::{Handle, Remote};

/// Runs a task on the core behind `remote` and waits for the answer.
pub(super) fn call<T, F>(
    remote: &Remote,
    task: impl FnOnce(Handle) -> F + Send + 'static,
) -> ControlResult<T>
where
    T: Send + 'static,
    F: Future<Output = ControlResult<T>> + 'static,
{
    let answer = remote.call(task);
    answer.unwrap_or_else(|| Err(ControlError::failed("a core has ended; see daemon.log")))
}
