//! SSDs that the data path gave up, put on record.

use crate::error::ControlError;
use crate::name::VolumeName;
use crate::service::state::turn::Turn;
use crate::service::volumes::show;

/// Records SSDs that the data path gave up, so that they are not trusted after a restart. Whether all of
/// them are on record: clients wait for that, so a record that failed is tried again.
///
/// An SSD that is gone with dirty lines is not recorded: an errand has its volume wait for the SSD.
pub(crate) fn notice(turn: &mut Turn) -> bool {
    let is_passing_recorded = record_passing(turn);
    let (all_recorded, without) = record(turn);
    turn.pulled.extend(without);
    all_recorded && is_passing_recorded
}

/// Records where clients are to change backing disks past SSDs that take no writes. Whether all of it is on
/// record: clients wait for that.
fn record_passing(turn: &mut Turn) -> bool {
    let mut all_recorded = true;
    for record in turn.registry.volumes().to_vec() {
        let name = &record.name;
        let serves = record.cache.as_ref().is_some_and(|cache| cache.failed.is_none());
        if !serves || !turn.is_open(name) {
            continue;
        }
        let Some(passing) = turn.engine.passing(name) else { continue };
        match turn.registry.put_passed(name, passing.ranges) {
            Ok(()) => turn.engine.passing_is_recorded(name, passing.number),
            Err(error) => {
                all_recorded = false;
                let is_known = turn.live.get(name).is_some_and(|it| it.error == error.message);
                turn.note_unless(is_known, name, Err(error));
            }
        }
    }
    all_recorded
}

/// Records lost SSDs. Whether all of them are on record; volumes whose SSD is gone with dirty lines, of
/// which nothing is recorded.
pub(crate) fn record(turn: &mut Turn) -> (bool, Vec<(VolumeName, u64)>) {
    let (mut all_recorded, mut without) = (true, Vec::new());
    for record in turn.registry.volumes().to_vec() {
        let name = &record.name;
        let Some(cache) = &record.cache else { continue };
        let is_on_record = cache.failed.is_some();
        if (is_on_record && !cache.maybe_dirty) || !turn.is_open(name) {
            continue;
        }
        let health = turn.engine.health(name);
        if !health.ssd_failed {
            continue;
        }
        // Lines that were lost at first may be on the origin by now.
        let Some(dirty_lines) = health.dirty_lines else {
            // The core is late, or the volume has just failed. Clients wait for the record.
            all_recorded = false;
            continue;
        };
        if is_on_record && dirty_lines > 0 {
            continue;
        }
        if health.ssd_is_gone && dirty_lines > 0 {
            without.push((name.clone(), dirty_lines));
            continue;
        }
        let mut status = show::recorded(&record);
        turn.engine.fill_status(name, &mut status);
        let mut record = record.clone();
        if let Some(cache) = &mut record.cache {
            cache.dirty_lines = dirty_lines;
            cache.lost_total = status.lost_ranges;
            cache.lost = status.lost;
            let mut reason = match status.ssd.silent_seconds {
                0 => format!("its SSD {} failed while it served", cache.device),
                seconds => {
                    format!(
                        "its SSD {} did not answer for {seconds} s, and is given up",
                        cache.device
                    )
                }
            };
            if dirty_lines == 0 {
                let lost =
                    if is_on_record { "nothing is lost any more" } else { "nothing is lost" };
                reason += &format!("; {lost}: `detach` it, then attach another SSD");
            }
            cache.maybe_dirty = dirty_lines > 0;
            cache.evacuating = false;
            cache.failed = Some(reason.clone());
            let recorded = turn.registry.put(record.clone());
            if let Err(error) = recorded {
                all_recorded = false;
                let is_known =
                    turn.live.get(&record.name).is_some_and(|it| it.error == error.message);
                turn.note_unless(is_known, &record.name, Err(error));
                continue;
            }
            turn.note(&record.name, Err(ControlError::failed(reason)));
            turn.engine.failure_is_recorded(&record.name);
        }
    }
    (all_recorded, without)
}
