//! The order of an import, and the report of its results.

use serde::{Deserialize, Serialize};

use crate::array_spec::ArrayLevel;
use crate::name::{ArrayName, VolumeName};
use crate::records::Identity;
use crate::spec::DeviceSpec;

/// An import: what drives say is put on record again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportOrder {
    /// SSDs with caches, members of arrays and what belongs to them, origins; in any order.
    pub devices: Vec<DeviceSpec>,
    /// Another name than the drives have: of the volume, or of the array if no volume is found.
    #[serde(default)]
    pub name: Option<VolumeName>,
    /// Whether the present content of the origins counts, though it is not what the caches know.
    #[serde(default)]
    pub changed_origin: bool,
    /// Say what would be imported, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// The arrays and volumes that an import brought back, or would bring back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportReport {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// Arrays, in the order of their identities.
    pub arrays: Vec<ImportedArray>,
    /// Volumes, in the order in which their SSDs were found.
    pub volumes: Vec<ImportedVolume>,
    /// Facts that the drives do not know, and others that the user needs: a line each.
    pub notes: Vec<String>,
}

/// An array of an import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedArray {
    /// Name.
    pub name: ArrayName,
    /// Identity that the superblocks of the members carry.
    pub uuid: Identity,
    /// Level.
    pub level: ArrayLevel,
    /// The device of each place; none for a member that was not found.
    pub members: Vec<Option<DeviceSpec>>,
    /// The device of the journal, if it has one of its own.
    pub journal: Option<DeviceSpec>,
    /// Spares that were given.
    pub spares: Vec<DeviceSpec>,
}

/// A volume of an import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedVolume {
    /// Name.
    pub name: VolumeName,
    /// Identity of the volume.
    pub uuid: Identity,
    /// The slow side.
    pub origin: DeviceSpec,
    /// The fast side.
    pub ssd: DeviceSpec,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Cache mode.
    pub mode: String,
    /// Replacement policy.
    pub policy: String,
    /// Whether the cache had been stopped in order.
    pub stopped_in_order: bool,
    /// Dirty lines: of a volume that is open, now; else at the last checkpoint of its cache.
    pub dirty_lines: u64,
}
