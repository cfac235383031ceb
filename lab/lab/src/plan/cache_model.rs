//! The modelled cache of the plan `trace`.

use voltier_cache::policy::PolicyKind;
use voltier_cache::{LineSize, Mode};
use voltier_drive::model::Profile;
use voltier_results::size::parse_bytes;

use super::Trace;

/// A modelled cache before a modelled drive.
#[derive(Clone, Copy, Debug)]
pub struct CacheModel {
    pub(crate) ssd: &'static Profile,
    pub(crate) bytes: u64,
    pub(crate) mode: Mode,
    pub(crate) policy: PolicyKind,
    pub(crate) line: LineSize,
}

impl CacheModel {
    /// The cache that a plan asks for; `None` when the plan names none.
    ///
    /// # Errors
    /// One line: no such profile, mode, policy or line.
    pub fn of(plan: &Trace) -> Result<Option<CacheModel>, String> {
        let mode = plan.mode.parse::<Mode>().map_err(|error| error.to_string())?;
        let policy = plan.policy.parse::<PolicyKind>().map_err(|error| error.to_string())?;
        let line = LineSize::new(plan.line.0)?;
        if plan.cache.is_empty() {
            return Ok(None);
        }
        let unusable = |why: String| format!("cache = {}: {why}", plan.cache);
        let rest = plan.cache.strip_prefix("model:");
        let rest =
            rest.ok_or_else(|| unusable("write model:PROFILE or model:PROFILE:SIZE".into()))?;
        let (name, size) = rest.split_once(':').unwrap_or((rest, ""));
        let ssd = Profile::find(name).map_err(|error| unusable(error.to_string()))?;
        let bytes = if size.is_empty() { Some(ssd.bytes) } else { parse_bytes(size) };
        let bytes = bytes.filter(|bytes| (64 << 20..=64 << 40).contains(bytes));
        let bytes = bytes.ok_or_else(|| unusable("give a size from 64M".to_owned()))?;
        Ok(Some(CacheModel { ssd, bytes, mode, policy, line }))
    }
}
