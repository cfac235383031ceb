//! Names that the user chose for an import.

use crate::name::{ArrayName, VolumeName};

/// Names instead of those on the drives.
#[derive(Default)]
pub(super) struct Names {
    pub(super) volume: Option<VolumeName>,
    pub(super) array: Option<ArrayName>,
}
