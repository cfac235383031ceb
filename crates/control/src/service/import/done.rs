//! The results of an import so far, which a failure undoes.

use crate::name::{ArrayName, VolumeName};

/// Parts of an import that are on record, and open.
#[derive(Default)]
pub(super) struct Done {
    pub(super) arrays: Vec<ArrayName>,
    pub(super) volumes: Vec<VolumeName>,
}
