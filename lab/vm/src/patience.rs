//! How long the host waits for a guest that may hang: a bound on the harness, never a measure of the product.

use std::thread;
use std::time::Duration;

use xtask::Failure;

/// The silence after which a guest counts as hung. Software emulation on a busy machine takes a minute for
/// a boot.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(300);

const STEP: Duration = Duration::from_millis(100);

/// Looks again and again until something is there.
///
/// # Errors
/// Those of `look`; or `what` was not there for [`SILENCE_MAX`].
pub(crate) fn until<T>(
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let mut waited = Duration::ZERO;
    while waited < SILENCE_MAX {
        if let Some(found) = look()? {
            return Ok(found);
        }
        thread::park_timeout(STEP);
        waited += STEP;
    }
    Err(format!("waited {} s in vain: {what}", SILENCE_MAX.as_secs()).into())
}
