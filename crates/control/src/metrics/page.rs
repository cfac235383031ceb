//! A page that shows how everything is, for those who have no other monitoring, and what it shows.

use serde::Serialize;

use crate::error::{ControlError, ControlResult};
use crate::health::Health;
use crate::service::Snapshot;

/// The page: it asks for `status.json` every two seconds, and for nothing else.
pub(crate) const PAGE: &str = include_str!("page.html");
/// The type of the page.
pub(crate) const CONTENT_TYPE: &str = "text/html; charset=utf-8";
/// The type of what it shows.
pub(crate) const STATUS_TYPE: &str = "application/json";

/// Everything, as `health --json`, `show --json`, `array show --json` and `array spare-pool show --json` have it.
#[derive(Serialize)]
struct Status<'a> {
    version: &'a str,
    health: &'a Health,
    #[serde(flatten)]
    seen: &'a Snapshot,
}

/// What the page shows, in JSON.
///
/// # Errors
/// When a part of it has no form in JSON.
pub(crate) fn status(seen: &Snapshot, health: &Health) -> ControlResult<String> {
    let status = Status { version: env!("CARGO_PKG_VERSION"), health, seen };
    serde_json::to_string(&status).map_err(ControlError::from_error)
}
