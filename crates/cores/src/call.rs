//! Running a task on a core from the control thread.

use std::future::Future;

use voltier_control::{ControlError, ControlResult};
use voltier_ring::{CallError, Handle, Remote};

use crate::fault;

/// Runs a task on the core behind `remote` and waits for the answer.
pub(super) fn call<T, F>(
    remote: &Remote,
    task: impl FnOnce(Handle) -> F + Send + 'static,
) -> ControlResult<T>
where
    T: Send + 'static,
    F: Future<Output = ControlResult<T>> + 'static,
{
    remote.call(task).unwrap_or_else(|error| Err(refusal(error)))
}

fn refusal(error: CallError) -> ControlError {
    ControlError::failed(match error {
        CallError::Ended => "a core has ended; see daemon.log".to_owned(),
        CallError::Failed(failure) => {
            format!("{}; please report this with the lines of daemon.log", fault::words(&failure))
        }
    })
}
