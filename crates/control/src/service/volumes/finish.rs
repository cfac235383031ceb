//! The ends of jobs: what follows when a drain has ended.

use crate::engine::Drain;
use crate::error::{ControlError, ControlResult};
use crate::name::VolumeName;
use crate::records::{Desired, VolumeRecord};
use crate::service::presence::late;
use crate::service::state::jobs::Purpose;
use crate::service::state::turn::Turn;
use crate::service::volumes::{drains, exports, given_up, removal};

/// Ends a job whose drain has ended, with the step that its purpose asks for.
pub(crate) fn end_drained(turn: &mut Turn, id: u64, name: &VolumeName) {
    let Some((_, purpose)) = turn.jobs.running(name).filter(|(own, _)| *own == id) else {
        return;
    };
    let is_to_stay = purpose != Purpose::Flush && turn.jobs.is_to_end(id);
    let mut outcome = match turn.engine.drain(name) {
        Drain::Running => return,
        Drain::Done if is_to_stay => Err(drains::ended_early(turn, name, purpose)),
        // Lines that clients dirtied meanwhile are written while they wait: see [`removal::forget_cache`].
        Drain::Done => match purpose {
            Purpose::Flush => drains::record_dirt(turn, name, false),
            Purpose::Detach => drop_cache(turn, name, true),
            Purpose::Delete => removal::drop_volume(turn, name, true),
        },
        Drain::Failed(why) => Err(ControlError::failed(why)),
    };
    if outcome.is_err() && turn.jobs.is_to_end(id) {
        outcome = Err(drains::ended_early(turn, name, purpose));
    }
    drains::end_job(turn, id, outcome);
}

/// The last step of a detach: recorded first, because from then on the SSD is stale.
pub(crate) fn drop_cache(
    turn: &mut Turn,
    name: &VolumeName,
    write_back: bool,
) -> ControlResult<()> {
    let record = turn.record(name)?;
    let mut plain = VolumeRecord { desired: Desired::Serving, ..record };
    let was = plain.cache.take();
    was.iter().for_each(|cache| given_up::reserve(turn, cache));
    if !turn.is_open(name) {
        exports::end_kept(turn, &plain, "its cache was taken away");
        turn.registry.put(plain.clone())?;
        was.iter().for_each(|cache| given_up::erase(turn, name, cache));
        late::bring_up(turn, &plain);
        return Ok(());
    }
    let detached = removal::forget_cache(turn, plain, write_back)?;
    let failed = was.filter(|cache| cache.failed.is_some());
    failed.iter().for_each(|cache| given_up::erase(turn, name, cache));
    let had_failed = failed.is_some();
    if let Some(live) = turn.live.get_mut(name) {
        live.error.clear();
        live.note.clear();
    }
    if !had_failed {
        turn.note(name, detached);
    }
    Ok(())
}
