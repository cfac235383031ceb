//! How bad it is, in one word, and in short.

use serde::{Deserialize, Serialize};

/// How bad it is; later ones are worse.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum HealthState {
    /// Nothing is wrong.
    #[default]
    Ok,
    /// It serves, and somebody should look.
    Warning,
    /// It serves without something that protects data or makes it fast.
    Degraded,
    /// It does not serve, or data are lost.
    Failed,
}

impl HealthState {
    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }

    /// The exit code of `voltier health`, as monitoring plugins have it: 0 OK, 1 WARNING, 2 CRITICAL.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Warning => 1,
            Self::Degraded | Self::Failed => 2,
        }
    }
}

/// The health of a volume or array in short.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthSummary {
    /// The worst state.
    pub state: HealthState,
    /// What is wrong, the worst first; absent when all is well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}
