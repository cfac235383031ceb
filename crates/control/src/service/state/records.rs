//! Records that could not be written: tried again until the state folder takes them.

use crate::records::{Desired, VolumeRecord};
use crate::service::arrays;
use crate::service::presence::faults;
use crate::service::state::turn::Turn;
use crate::service::state::{subjects, trouble_line};
use crate::service::volumes::lost_ssds;

/// Records what the data path has done by itself, and what could not be recorded before. Whether all of
/// it is on record: clients may wait for that, so what failed is tried again.
pub(crate) fn record_news(turn: &mut Turn) -> bool {
    let is_recorded = record_what_happened(turn);
    if let Some(line) = turn.registry.trouble().map(trouble_line)
        && !std::mem::replace(&mut turn.is_troubled, true)
    {
        turn.engine.warn(&line);
    }
    if !turn.is_troubled {
        return is_recorded;
    }
    if turn.registry.check_room().is_err() || !record_what_happened(turn) {
        return false;
    }
    turn.is_troubled = false;
    turn.engine.log("the state folder can be written again");
    record_stays(turn);
    // Volumes that are not open for want of a record are opened by the next look for devices.
    turn.registry.trouble().is_none()
}

/// Shows what failed alone, and records lost SSDs and members. Whether all is on record.
pub(crate) fn record_what_happened(turn: &mut Turn) -> bool {
    faults::notice(turn);
    let are_ssds_recorded = lost_ssds::notice(turn);
    let are_arrays_recorded = arrays::events::record(turn);
    are_ssds_recorded && are_arrays_recorded && turn.registry.trouble().is_none()
}

/// Puts on record that volumes stay whose detach or delete has failed while no record could be written.
fn record_stays(turn: &mut Turn) {
    for record in turn.registry.volumes().to_vec() {
        let is_leaving = matches!(record.desired, Desired::Detaching | Desired::Deleting);
        let subjects = subjects::of_volume(&turn.registry, &record.name);
        let is_under_way = turn.jobs.running(&record.name).is_some()
            || turn.claims.taken(&subjects, turn.own()).is_some();
        if is_leaving && turn.is_open(&record.name) && !is_under_way {
            let name = record.name.clone();
            let stays = turn.registry.put(VolumeRecord { desired: Desired::Serving, ..record });
            turn.note(&name, stays);
        }
    }
}
