//! Caches in front of volumes, as their records have them: put there, and changed while they serve.

use voltier_block::BlockDevice;
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, NoMemory, OpenError, OpenOptions, Opened, Settings};

use crate::volume::{Volume, VolumeError};

/// What is to be in front of a volume.
pub struct Front {
    /// How a new cache is made; absent of one that is on the SSD already.
    pub format: Option<FormatOptions>,
    /// How the cache is opened.
    pub options: OpenOptions,
    /// The policy of a cache that may have had another one when the SSD was written last.
    pub policy: PolicyKind,
}

/// Why a cache keeps its settings.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// There is no memory for what a policy learns.
    #[error("{0} for the policy {1}; free some, or keep the policy that it has")]
    Policy(NoMemory, PolicyKind),
    /// The settings do not suit, or a drive does not answer.
    #[error("{0}")]
    Settings(String),
}

/// Whether the origin is the SSD of the cache with this identity. Two devices that have changed places
/// would be served, and written to, as the data they are not.
pub async fn origin_has_cache<D: BlockDevice>(volume: &Volume<D>, uuid: [u8; 16]) -> bool {
    match Cache::<D, D>::probe(volume.origin()).await {
        Ok(found) => found.is_some_and(|label| label.uuid == uuid),
        Err(OpenError::Unsupported { uuid: found, .. }) => found == uuid,
        // Any other content is its clients' business.
        Err(_) => false,
    }
}

/// Makes or opens a cache in front of the volume; what was found, and why the policy is still another
/// one, if it is.
///
/// # Errors
/// The volume is then as before.
pub async fn put_in_front<D: BlockDevice>(
    volume: &Volume<D>,
    ssd: D,
    front: Front,
) -> Result<(Opened, Option<String>), VolumeError> {
    let Front { format, options, policy } = front;
    let opened = match format {
        Some(format) => volume.attach_new(ssd, &format, options).await?,
        None => volume.attach_existing(ssd, options).await?,
    };
    let kept = volume.cache().and_then(|cache| {
        let error = cache.set_policy(policy).err()?;
        let before = cache.status().policy;
        Some(format!("{error} for the policy {policy}: {before} goes on"))
    });
    Ok((opened, kept))
}

/// Gives the cache another policy and other settings while it serves.
///
/// # Errors
/// The old ones hold then.
pub async fn change_cache<D: BlockDevice>(
    volume: &Volume<D>,
    policy: PolicyKind,
    settings: Settings,
) -> Result<(), ChangeError> {
    let before = volume.cache().map(|cache| cache.status().policy);
    if let Some(cache) = volume.cache() {
        cache.set_policy(policy).map_err(|error| ChangeError::Policy(error, policy))?;
    }
    let changed = volume.configure(settings).await.map_err(ChangeError::Settings);
    if let (Err(_), Some(cache), Some(before)) = (&changed, volume.cache(), before) {
        // Memory for the one of before was there a moment ago.
        let _ = cache.set_policy(before);
    }
    changed
}
