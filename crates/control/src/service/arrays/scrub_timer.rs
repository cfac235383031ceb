//! Scrubs that the daemon begins by itself: of each array so long after the last one that was complete, one array
//! after the other.

use crate::array_status::ArrayState;
use crate::date::Date;
use crate::name::ArrayName;
use crate::protocol::Repair;
use crate::records::RegisteredArray;
use crate::service::arrays;
use crate::service::state::subjects;
use crate::service::state::turn::Turn;
use crate::units::seconds_text;

/// Takes in the scrubs that have ended, and begins one that is due. What the file of the state folder is to have, if
/// that has changed.
pub(crate) fn step(turn: &mut Turn, now: Date) -> Option<Vec<u8>> {
    if turn.stopping || turn.at_rest {
        return None;
    }
    let arrays = turn.registry.arrays().to_vec();
    let has_changed = turn.scrubs.look(&arrays, now);
    let due = turn.scrubs.due(&arrays, now);
    if !due.is_empty() && !is_any_scrubbed(turn, &arrays) {
        for name in due {
            if begin(turn, &name, now) {
                break;
            }
        }
    }
    has_changed.then(|| turn.scrubs.bytes().ok()).flatten()
}

fn is_any_scrubbed(turn: &mut Turn, arrays: &[RegisteredArray]) -> bool {
    arrays.iter().any(|record| {
        turn.size_of_array(&record.name).is_ok() && arrays::show::status(turn, record).scrub.running
    })
}

/// Begins the scrub of an array that is due. `false` when it has to wait: nothing of it is open, something else is
/// under way there, or a scrub would have to leave groups out.
fn begin(turn: &mut Turn, name: &ArrayName, now: Date) -> bool {
    let Some(record) = turn.registry.find_array(name).cloned() else { return false };
    turn.scrubs.rest(record.uuid, now);
    let subjects = subjects::of_array(&turn.registry, name);
    if turn.size_of_array(name).is_err() || turn.claims.taken(&subjects, turn.own()).is_some() {
        return false;
    }
    let status = arrays::show::status(turn, &record);
    let is_whole = status.state == ArrayState::Running && status.reshape.is_none();
    if !is_whole || status.rebuild.running {
        return false;
    }
    let begun = turn.engine.start_scrub(name, Repair::Located);
    turn.engine.log(&match &begun {
        Ok(()) => {
            let every = seconds_text(record.settings.scrub_every_s);
            format!("array {name}: its scrub of every {every} begins (`scrub_every`)")
        }
        Err(error) => format!("array {name}: its scrub that is due does not begin: {error}"),
    });
    begun.is_ok()
}
