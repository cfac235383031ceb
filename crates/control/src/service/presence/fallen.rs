//! Arrays that lose more members than their level allows, while they serve.
//!
//! Nothing is lost on record then: the members often go together, with their shelf, and come back so. What the
//! others hold is served until enough are there. Then the array is assembled anew, as after a crash, and the
//! volumes on it are opened again; their clients are cut off for a moment.

use std::time::Instant;

use crate::error::ControlError;
use crate::name::ArrayName;
use crate::records::RegisteredArray;
use crate::service::arrays::open::close_array_and_note;
use crate::service::presence::{late, moved};
use crate::service::state::turn::Turn;
use crate::service::volumes::open::close_and_note;

/// Assembles an array anew whose members are back.
pub(crate) fn look_for_members(turn: &mut Turn, name: &ArrayName, now: Instant) {
    let Some(mut record) = turn.registry.find_array(name).cloned() else { return };
    if moved::has_news(turn, &record) {
        record = moved::follow(turn, record);
    }
    let Some(devices) = turn.engine.array_devices(name) else { return };
    if devices.lost_too_many == 0 {
        turn.fallen.remove(name);
        return;
    }
    let lost: Vec<u32> = devices.lost;
    let mut back: u32 = 0;
    for place in lost {
        let Some(device) = record.members.get(place as usize).cloned().flatten() else { continue };
        let label = turn.reading(&device).label_of(&device);
        let is_back =
            label.is_ok_and(|it| it.is_some_and(|it| (it.array, it.place) == (record.uuid, place)));
        back += u32::from(is_back);
    }
    if back >= devices.lost_too_many {
        assemble_anew(turn, record, now);
    }
}

/// Closes an array that has fallen, and the volumes on it, and starts them as after a crash.
pub(crate) fn assemble_anew(turn: &mut Turn, record: RegisteredArray, now: Instant) {
    let name = record.name.clone();
    turn.fallen.remove(&name);
    turn.engine.log(&format!(
        "array {name}: members that were lost are looked for, and it is assembled anew"
    ));
    for volume in turn.registry.volumes().to_vec() {
        let stands = volume.devices().any(|device| device.array() == Some(&name));
        if !stands || !turn.is_open(&volume.name) {
            continue;
        }
        let error =
            format!("its array {name} is assembled anew: it is served again when that is done");
        turn.note_end(&volume.name, ControlError::failed(error));
        close_and_note(turn, &volume.name);
        turn.live.remove(&volume.name);
    }
    close_array_and_note(turn, &name);
    turn.live_arrays.remove(&name);
    if !turn.stopping {
        late::try_array(turn, record, Some(now), now);
        late::serve_again(turn, &name, now);
    }
}
