//! The first line of a run: what was measured, on what, by what.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use voltier_block::Format;

/// The format of the file of a run: no part of it is optional.
pub const FORMAT: Format = Format { version: 1, features: &[] };

/// Version of the format of a run's file: that of this program, unless it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FormatVersion(pub u32);

impl Default for FormatVersion {
    fn default() -> Self {
        Self(FORMAT.version)
    }
}

/// The facts that a reader needs before the figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the format of this file.
    pub version: FormatVersion,
    /// Features of the format that a reader must know.
    pub features: Vec<String>,
    /// Name of the run, unique among the user's runs.
    pub run: String,
    /// Name of the plan: `maxio`, `pts`, a file's own name.
    pub plan: String,
    /// The plan as it was run, all defaults filled in (TOML). Empty for imported results.
    pub plan_text: String,
    /// CRC32C of `plan_text`: runs of the same plan are comparable point by point.
    pub plan_crc32c: u32,
    /// The begin of the run, milliseconds since 1970 (UTC).
    pub started_unix_ms: u64,
    /// Name and version of the program that made the file.
    pub tool: String,
    /// Where imported figures come from; `None` for a run of our own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported_from: Option<String>,
    /// Whether drives were modelled and time was virtual. Said on the first page of every report.
    pub is_simulation: bool,
    /// The targets that were measured, one entry for each system of the plan (`hdd`, `ssd`, `accelerated`).
    pub targets: Vec<TargetInfo>,
    /// The machine, asked and not typed.
    pub environment: Environment,
    /// Deviations and remarks, a sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One thing that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetInfo {
    /// Name in the plan, and in [`super::Axes::target`].
    pub name: String,
    /// The name that was given: a path, `nbd://...`, a volume's name, `model:...`.
    pub given: String,
    /// `file`, `block`, `nbd`, `rbd`, `volume`, `model`, `trace`, `import`.
    pub kind: String,
    /// Bytes that the plan may touch.
    pub size_bytes: u64,
    /// Vendor, model, serial number, firmware, link, write cache: whatever the system tells.
    #[serde(default)]
    pub facts: BTreeMap<String, String>,
}

/// The machine a run was made on. Empty text where the system does not tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// Host name.
    pub host: String,
    /// The processor's own name.
    pub cpu: String,
    /// Processors that may be used.
    pub cpus: u32,
    /// Memory.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// Distribution.
    pub system: String,
    /// The answer of `fio --version`.
    #[serde(default)]
    pub fio: String,
    /// Further facts by name (frequency governor, mitigations, versions of databases).
    #[serde(default)]
    pub facts: BTreeMap<String, String>,
}
