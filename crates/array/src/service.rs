//! An array from its start to its stop.

use voltier_block::{BlockDevice, IoError, IoResult};

use crate::errors::ArrayError;
use crate::errors::journal::JournalError;
use crate::format::journal_place::JournalOptions;
use crate::format::superblock::Usage;
use crate::generation::Generation;
use crate::geometry::numbers::Region;
use crate::journal::replay::{JournalStart, ReplayReport};
use crate::stripe::ground::Ground;

/// Takes a new array into use, when all members have its map.
///
/// # Errors
/// When a device fails: a new array without one of its members is not what was asked for.
pub(crate) async fn take_into_use<D: BlockDevice>(
    array: &Generation<D>,
    options: Option<JournalOptions>,
) -> Result<(), ArrayError> {
    let Ground { members, membership, journal, .. } = &array.ground;
    let Some(durable) = membership.durable() else { return Ok(()) };
    if let Some(options) = options {
        array.replay().run(options, JournalStart::Create).await?;
    }
    durable.set_usage(Usage::InUse);
    membership.recorded().await.map_err(ArrayError::Io)?;
    let is_journal_lost =
        journal.placement().record_now().is_some() && !journal.placement().is_on_device();
    if is_journal_lost {
        return Err(JournalError::Device(IoError::Gone).into());
    }
    if members.is_degraded() { Err(ArrayError::Io(IoError::Gone)) } else { Ok(()) }
}

/// Takes an array into use. Makes the map the same on all members, and says on all that the array is in
/// use, and who is not there. Then brings the members to what the journal says.
///
/// # Errors
/// When members that cannot be lost do not take that.
pub(crate) async fn start<D: BlockDevice>(
    array: &Generation<D>,
    unequal: &[u64],
    options: Option<JournalOptions>,
) -> Result<ReplayReport, ArrayError> {
    let Ground { membership, bitmap, .. } = &array.ground;
    let Some(durable) = membership.durable() else { return Ok(ReplayReport::default()) };
    // A dirty bit that only some members have would be gone with them, and with it what the region needs.
    bitmap.write_blocks(unequal).await.map_err(ArrayError::Io)?;
    durable.set_usage(Usage::InUse);
    durable.must_store();
    membership.recorded().await.map_err(ArrayError::Io)?;
    let report = match options {
        Some(options) => array.replay().run(options, JournalStart::Replay).await?,
        None => ReplayReport::default(),
    };
    if let Some(reshape) = &array.tasks.reshape {
        // Nothing else looks at its rows while they are neither in the one shape nor in the other.
        reshape.end_unit_between().await;
    }
    bitmap.begin_rounds();
    array.tasks.resync.begin();
    array.tasks.rebuild.begin_if_wanted();
    Ok(report)
}

/// Stops an array: everything is durable and, if nothing needs a resync, called clean.
///
/// # Errors
/// When a member does not take its last state.
pub(crate) async fn stop<D: BlockDevice>(array: &Generation<D>) -> IoResult<()> {
    let Ground { members, membership, bitmap, journal, .. } = &array.ground;
    array.tasks.close().await;
    let Some(durable) = membership.durable() else {
        return membership.flush(members).await;
    };
    durable.close();
    array.tasks.resync.ended().await;
    journal.empty().await?;
    membership.flush(members).await?;
    // Regions that still need a resync must do so at the next start: then the array is not called clean.
    if bitmap.next_to_resync(Region(0)).is_none() {
        bitmap.clear_dirty().await?;
        durable.set_usage(Usage::Clean);
        membership.recorded().await?;
    }
    Ok(())
}
