//! The memory that a cache is going to need, before there is one.

use crate::admission::{Admission, AdmissionKind};
use crate::config::FormatOptions;
use crate::format::geometry::Geometry;
use crate::log::open::OpenError;
use crate::map::contents::Contents;
use crate::map::locks::LineLocks;
use crate::memory::MemoryGate;
use crate::policy::PolicyKind;

/// Asks for the memory of a cache that is to be made, before anything is written. Of one that cannot be made
/// at all the making itself says why.
///
/// # Errors
/// [`OpenError::NoRoom`] when it was refused.
pub fn ask_for_new(
    gate: &MemoryGate,
    format: &FormatOptions,
    admission: AdmissionKind,
    ssd_bytes: u64,
    origin_sectors: u64,
) -> Result<(), OpenError> {
    memory_of_new(format, admission, ssd_bytes, origin_sectors)
        .map_or(Ok(()), |it| gate.ask(it).map_err(OpenError::NoRoom))
}

/// The memory that a new cache is going to need, in bytes.
///
/// # Errors
/// A sentence for the user when no such cache can be made on the SSD.
pub fn memory_of_new(
    options: &FormatOptions,
    admission: AdmissionKind,
    ssd_bytes: u64,
    origin_sectors: u64,
) -> Result<u64, String> {
    let geometry = Geometry::plan(options, ssd_bytes, origin_sectors)?;
    Ok(memory_of(&geometry, options.policy, admission))
}

/// The memory that a cache of this geometry is going to need: all that grows with it, and its locks.
pub(crate) fn memory_of(geometry: &Geometry, policy: PolicyKind, admission: AdmissionKind) -> u64 {
    Contents::bytes_for(geometry, policy)
        + Admission::bytes_for(admission, geometry.capacity_lines())
        + 2 * LineLocks::bytes()
}
