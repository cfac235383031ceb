//! Errors of the laboratory as errors of the command, with its exit codes.

use voltier_control::ControlError;
use voltier_lab::LabError;

/// A plan or setting that cannot be used is wrong usage; all else is a failure.
pub(crate) fn failed(error: LabError) -> ControlError {
    match error {
        LabError::Plan { .. } | LabError::Setting { .. } => ControlError::usage(error.to_string()),
        other => ControlError::failed(other.to_string()),
    }
}
