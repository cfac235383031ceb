//! What a drive said, in the words of `show`.

use serde::{Deserialize, Serialize};

use super::figures::{self, KnownFigures};
use crate::date::Date;

/// What an NVMe drive warns of: the bits of its critical warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SmartWarning {
    /// Fewer spare blocks are left than the drive's threshold.
    SpareLow,
    /// The temperature is beyond a limit.
    Temperature,
    /// The drive has become unreliable: errors of the medium or inside it.
    Unreliable,
    /// The drive takes no writes any more.
    ReadOnly,
    /// The drive cannot save its volatile memory when power goes.
    BackupFailed,
    /// The persistent memory region takes no writes, or is unreliable.
    PersistentMemory,
}

impl SmartWarning {
    /// All, from the lowest bit on.
    pub const ALL: [Self; 6] = [
        Self::SpareLow,
        Self::Temperature,
        Self::Unreliable,
        Self::ReadOnly,
        Self::BackupFailed,
        Self::PersistentMemory,
    ];

    /// In words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::SpareLow => "spare below its threshold",
            Self::Temperature => "temperature beyond a limit",
            Self::Unreliable => "reliability degraded",
            Self::ReadOnly => "it takes no writes any more",
            Self::BackupFailed => "its volatile memory is not saved when power goes",
            Self::PersistentMemory => "its persistent memory is unreliable or takes no writes",
        }
    }

    /// Whether a drive that warns of it fails.
    pub const fn is_failure(self) -> bool {
        !matches!(self, Self::SpareLow | Self::Temperature)
    }
}

/// What a drive said of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Smart {
    /// The node of the drive, as `/dev/nvme0n1`: a device may be a partition of it, or lie on several.
    pub drive: String,
    /// How it is spoken to: `nvme`, `ata`, `scsi`; empty when that is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// Model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Serial number.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub serial: String,
    /// Version of the firmware.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub firmware: String,
    /// Whether the drive thinks that it does not fail; absent when it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed: Option<bool>,
    /// What it warns of; absent when it warns of nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<SmartWarning>,
    /// When it was read, UTC.
    pub time: Date,
    /// How many seconds ago that was.
    pub age_seconds: u64,
    /// The figures that it knows.
    #[serde(flatten, with = "figures")]
    pub figures: KnownFigures,
}

impl Smart {
    /// Whether the drive said anything of its health.
    pub(super) fn says_anything(&self) -> bool {
        self.passed.is_some() || self.figures.known().next().is_some()
    }
}

/// What the drives below a spare said of themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpareSmart {
    /// The spare, as `spares[]` names it.
    pub path: String,
    /// The drives below it.
    pub smart: Vec<Smart>,
}

/// A text of a drive as one line of printable characters, without the blanks around it.
pub(super) fn printable(text: &str) -> String {
    let is_shown = |c: &char| !c.is_control() && *c != char::REPLACEMENT_CHARACTER;
    text.chars().filter(is_shown).take(TEXT_CHARS_MAX).collect::<String>().trim().to_owned()
}

/// No drive has a longer name.
const TEXT_CHARS_MAX: usize = 100;
