//! Devices that have the journals of the arrays of a core.

use voltier_array::{ArrayStatus, AssembleReport, JournalState};
use voltier_control::{ControlResult, DeviceSpec, Identity, JournalStatus};
use voltier_ring::Handle;
use voltier_volume::Leaf;

use crate::drives::{KnownDevice, open_leaf};
use crate::table::OpenArray;

/// A device to have a journal, with a new uuid.
pub(super) type NewJournal = ((Leaf, [u8; 16]), KnownDevice);

/// Opens a device that is to have the journal of an array with blocks of so many bytes.
pub(super) async fn open_device(
    handle: &Handle,
    device: Option<&DeviceSpec>,
    block_bytes: u32,
) -> ControlResult<Option<NewJournal>> {
    let Some(device) = device else { return Ok(None) };
    let leaf = open_leaf(handle, device).await?.for_blocks_of(block_bytes);
    let known = KnownDevice::of(device, &leaf);
    Ok(Some(((leaf, Identity::random()?.0), known)))
}

/// Devices with a journal that are not used, and why; what it means that none is.
pub(super) fn left_out(report: &AssembleReport, given: &[DeviceSpec]) -> Vec<String> {
    let name = &report.array.name;
    let stale = report.journal_left_out.iter().map(|left| {
        let device = &given[left.device];
        format!(
            "{device} was left out at the start: it had the journal, and the array went on \
             without it, so its data are old"
        )
    });
    let lost = report.is_journal_lost.then(|| {
        format!(
            "its journal device is not there: the journal is on the members now; \
             `voltier array set {name} journal=DEV` puts it on another device"
        )
    });
    stale.chain(lost).collect()
}

/// The device of the journal, as far as `recorded` and what is open tell.
pub(super) fn status(
    open: &OpenArray,
    now: &ArrayStatus,
    recorded: Option<&JournalStatus>,
) -> Option<JournalStatus> {
    let journal = now.journal_device?;
    let known = open.journal.borrow();
    let path = known.as_ref().map(|it| it.device.to_string());
    Some(JournalStatus {
        path: path.or_else(|| recorded.map(|it| it.path.clone())).unwrap_or_default(),
        uuid: Identity(journal.uuid).to_string(),
        state: match journal.state {
            JournalState::InService => "online".to_owned(),
            JournalState::Lost => "lost".to_owned(),
        },
        size_bytes: known.as_ref().map_or(0, |it| it.size_bytes),
        smart: Vec::new(),
    })
}
