//! A look at an export of an NBD server: who else uses it, only the server knows, and it does not say.

use std::time::Duration;

use voltier_block::SECTOR_BYTES;
use voltier_nbd::{ConnectError, Connected, ExportUri, connect, proto};

use crate::error::{ControlError, ControlResult};

/// How long a server may take to answer, from the first packet to the last.
pub const REMOTE_PATIENCE: Duration = Duration::from_secs(5);

/// What is seen of an export.
pub(super) struct Seen {
    pub(super) size_bytes: u64,
    pub(super) is_read_only: bool,
    /// Its first bytes, and zeroes behind its end.
    pub(super) head: Vec<u8>,
}

/// Looks at an export of a server, and at so many of its first bytes.
///
/// # Errors
/// When the server cannot be reached, does not have the export, or it has no whole sector.
pub(super) fn see(uri: &ExportUri, head_bytes: usize) -> ControlResult<Seen> {
    let failed = |error: ConnectError| ControlError::failed(format!("{uri}: {error}"));
    let connected = connect(uri, 1, REMOTE_PATIENCE).map_err(failed)?;
    let (size_bytes, is_read_only) =
        (connected.facts.bytes, connected.facts.has(proto::FLAG_READ_ONLY));
    if size_bytes < SECTOR_BYTES {
        return Err(ControlError::failed(format!(
            "{uri} has {size_bytes} bytes, less than one sector; make it larger first"
        )));
    }
    let head = head_of(uri, &connected, head_bytes).map_err(failed)?;
    connected.leave();
    Ok(Seen { size_bytes, is_read_only, head })
}

/// The first bytes of an export, and zeroes behind its end.
fn head_of(
    uri: &ExportUri,
    connected: &Connected,
    head_bytes: usize,
) -> Result<Vec<u8>, ConnectError> {
    let block = connected.facts.minimum_bytes as usize;
    let there = usize::try_from(connected.facts.bytes).unwrap_or(usize::MAX).min(head_bytes);
    let there = there - there % block;
    let most = connected.facts.maximum_bytes as usize / block * block;
    let mut head = Vec::with_capacity(head_bytes);
    while head.len() < there {
        let bytes = most.min(there - head.len());
        head.extend(connected.read(uri, head.len() as u64, bytes, REMOTE_PATIENCE)?);
    }
    head.resize(head_bytes, 0);
    Ok(head)
}
