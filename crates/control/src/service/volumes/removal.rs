//! The way out of the registry: of a cache whose volume is open, and of a volume.

use crate::error::ControlResult;
use crate::name::VolumeName;
use crate::records::{Desired, VolumeRecord};
use crate::service::state::turn::Turn;
use crate::service::volumes::open::close_volume;
use crate::service::volumes::{exports, given_up, reports};

/// The last step of a delete: the cache goes first. So a crash between the steps leaves a plain
/// volume on its way out.
pub(crate) fn drop_volume(
    turn: &mut Turn,
    name: &VolumeName,
    write_back: bool,
) -> ControlResult<()> {
    let record = turn.record(name)?;
    let mut plain = VolumeRecord { desired: Desired::Deleting, ..record };
    exports::end_kept(turn, &plain, "the volume was deleted");
    let was = plain.cache.take();
    was.iter().for_each(|cache| given_up::reserve(turn, cache));
    let is_open = turn.is_open(name);
    if is_open {
        if was.as_ref().is_some_and(|cache| cache.maybe_dirty) && !write_back {
            let record = VolumeRecord { cache: was.clone(), ..plain.clone() };
            reports::tell_what_is_given_up(turn, &record);
        }
        if was.is_none() {
            turn.registry.put(plain)?;
        } else if let Err(error) = forget_cache(turn, plain, write_back)? {
            turn.log(name, &error.message);
        }
        if turn.live.get(name).is_some_and(|live| !live.is_closing) {
            reports::tell_the_end(turn, name, true);
        }
        if let Err(error) = close_volume(turn, name) {
            turn.log(name, &error.message);
        }
    } else if was.is_some() {
        turn.registry.put(plain)?;
    }
    let stays_labelled = was.filter(|cache| !is_open || cache.failed.is_some());
    stays_labelled.iter().for_each(|cache| given_up::erase(turn, name, cache));
    turn.registry.remove(name)?;
    turn.live.remove(name);
    // The word of the user was about the drive of this volume, not of a later one with its name.
    turn.adopted_origins.remove(name);
    Ok(())
}

/// Records an open volume as one without a cache, and takes the cache away. With `write_back`,
/// requests wait meanwhile: what they wrote after the last dirty line was written back would be
/// lost by a crash between the two. The inner result is that of unmarking the SSD.
pub(crate) fn forget_cache(
    turn: &mut Turn,
    plain: VolumeRecord,
    write_back: bool,
) -> ControlResult<ControlResult<()>> {
    let name = plain.name.clone();
    if write_back {
        turn.apart(format!("writing the last dirty lines of {name} back")).quiesce(&name)?;
    }
    if let Err(error) = turn.registry.put(plain) {
        turn.engine.resume(&name);
        return Err(error);
    }
    Ok(turn.apart(format!("taking the cache of {name} away")).detach(&name, write_back))
}
