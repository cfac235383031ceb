//! Pools of spares that several arrays share.
//!
//! A spare that is taken goes from the pool to the array's own spares in one writing of the registry.
//! Nothing but its label is written to it before. So two arrays can never take the same one. After a
//! crash the spare is the array's: as a spare, or as the member whose label it has by then.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::array_status::PoolStatus;
use crate::error::{ControlError, ControlResult};
use crate::name::{ArrayName, PoolName};
use crate::protocol::Response;
use crate::records::{PoolRecord, PoolSpare, RegisteredArray};
use crate::safety::Role;
use crate::service::arrays;
use crate::service::arrays::spare_labels;
use crate::service::arrays::unfit_spare::{ASK_AGAIN, UnfitSpare};
use crate::service::arrays::wanting::Wanting;
use crate::service::presence::admit::Beside;
use crate::service::presence::{admit, drives, look};
use crate::service::state::claims::Subject;
use crate::service::state::live::now;
use crate::service::state::subjects;
use crate::service::state::turn::Turn;
use crate::spec::DeviceSpec;

pub(crate) fn add_to_pool(
    turn: &mut Turn,
    pool: &PoolName,
    devices: Vec<DeviceSpec>,
    force: bool,
) -> ControlResult<Response> {
    let known = turn.registry.find_pool(pool).cloned();
    let mut record = known.unwrap_or_else(|| PoolRecord { name: pool.clone(), spares: Vec::new() });
    for (at, device) in devices.iter().enumerate() {
        if device.array().is_some() {
            return Err(ControlError::usage(format!(
                "{device} cannot be a spare: arrays cannot be nested"
            )));
        }
        admit::admit(turn, device, Role::Cache, force, Beside::Members(&devices[..at]))?;
    }
    let notes = too_small_for(turn, pool, &devices);
    // One after the other: each is on record as soon as it has its label.
    turn.registry.put_pool(record.clone())?;
    for device in devices {
        let spare = new_spare(turn, pool, device, force)?;
        record.spares.push(spare.clone());
        if let Err(error) = turn.registry.put_pool(record.clone()) {
            // Else nobody would know whose spare the device is.
            unlabel(turn, &spare);
            return Err(error);
        }
    }
    turn.unfit_spares.clear();
    arrays::events::record(turn);
    pool_response(turn, pool, notes)
}

/// Labels a device as a spare of a pool; `force` clears what it held.
fn new_spare(
    turn: &mut Turn,
    pool: &PoolName,
    device: DeviceSpec,
    force: bool,
) -> ControlResult<PoolSpare> {
    if !device.is_external() {
        return Ok(PoolSpare { device, identity: None, label: None });
    }
    let owner = turn.engine.draw_identity()?;
    let label = spare_labels::of_pool(pool, owner);
    spare_labels::write_label(turn, &device, &label, force)?;
    let identity = drives::identity_of(&*turn.reading_identity_of(&device), &device);
    Ok(PoolSpare { device, identity, label: Some(owner) })
}

/// Arrays of a pool to which a device would be of no use.
fn too_small_for(turn: &mut Turn, pool: &PoolName, devices: &[DeviceSpec]) -> Vec<String> {
    let mut notes = Vec::new();
    for name in arrays_of(turn, pool) {
        if turn.size_of_array(&name).is_err() {
            continue;
        }
        for device in devices {
            if let Err(error) = turn.opening(device).check_spare(&name, device) {
                notes.push(error.message);
            }
        }
    }
    notes
}

pub(crate) fn remove_from_pool(
    turn: &mut Turn,
    pool: &PoolName,
    devices: &[DeviceSpec],
) -> ControlResult<Response> {
    let mut record = turn.pool_record(pool)?;
    if devices.is_empty() {
        if let Some(array) = arrays_of(turn, pool).first() {
            return Err(ControlError::failed(format!(
                "the array {array} takes its spares from {pool}; \
                 `voltier array set {array} spare_pool=none` first"
            )));
        }
        turn.registry.remove_pool(pool)?;
        record.spares.iter().for_each(|spare| unlabel(turn, spare));
        return Ok(Response::Pools { pools: Vec::new(), notes: Vec::new() });
    }
    let mut removed = Vec::new();
    for device in devices {
        let known = record.spares.iter().position(|spare| {
            spare.device == *device || admit::is_same(turn, &spare.device, device)
        });
        let Some(known) = known else {
            let spares: Vec<String> =
                record.spares.iter().map(|spare| spare.device.to_string()).collect();
            let has = if spares.is_empty() { "nothing".into() } else { spares.join(", ") };
            return Err(ControlError::failed(format!(
                "{device} is not a spare of {pool}, which has {has}"
            )));
        };
        removed.push(record.spares.remove(known));
    }
    turn.registry.put_pool(record)?;
    removed.iter().for_each(|spare| unlabel(turn, spare));
    pool_response(turn, pool, Vec::new())
}

/// Makes a plain device of a spare that has left its pool, if the device can be used.
fn unlabel(turn: &mut Turn, spare: &PoolSpare) {
    if look::look(turn, &spare.device).is_ok() {
        spare_labels::erase_spare(turn, &spare.device, spare.label);
    }
}

pub(crate) fn show_pools(turn: &Turn, pool: Option<&PoolName>) -> ControlResult<Response> {
    if let Some(pool) = pool {
        return pool_response(turn, pool, Vec::new());
    }
    Ok(Response::Pools { pools: all_pools(turn), notes: Vec::new() })
}

/// The state of all pools.
pub(crate) fn all_pools(turn: &Turn) -> Vec<PoolStatus> {
    turn.registry.pools().iter().map(|record| pool_status(turn, record)).collect()
}

fn pool_response(turn: &Turn, pool: &PoolName, notes: Vec<String>) -> ControlResult<Response> {
    let pools = vec![pool_status(turn, &turn.pool_record(pool)?)];
    Ok(Response::Pools { pools, notes })
}

fn pool_status(turn: &Turn, record: &PoolRecord) -> PoolStatus {
    let spares: Vec<String> = record.spares.iter().map(|spare| spare.device.to_string()).collect();
    let unfit = turn.unfit_spares.iter().filter(|((_, device), _)| spares.contains(device));
    let left_out =
        unfit.map(|((array, _), it)| format!("not taken by {array}: {}", it.why())).collect();
    let arrays = arrays_of(turn, &record.name);
    let spares_smart = turn.smart.of_spares(&spares);
    PoolStatus { name: record.name.clone(), spares, arrays, left_out, spares_smart }
}

fn arrays_of(turn: &Turn, pool: &PoolName) -> Vec<ArrayName> {
    let arrays = turn.registry.arrays().iter();
    let takers = arrays.filter(|array| array.settings.spare_pool.as_ref() == Some(pool));
    takers.map(|array| array.name.clone()).collect()
}

/// Gives spares to arrays that want some, in this order.
fn serve_from_pools(turn: &mut Turn, wanting: Vec<Wanting>) {
    for Wanting { name, pool, spares_wanted, .. } in wanting {
        for _ in 0..spares_wanted {
            if !take_from_pool(turn, &pool, &name) {
                break;
            }
        }
    }
}

/// Gives an array the first spare of a pool that serves it; whether there was one.
fn take_from_pool(turn: &mut Turn, pool: &PoolName, name: &ArrayName) -> bool {
    let subjects = subjects_of_taking(turn, pool, name);
    // A pool or array that another command has is looked at again when that has ended.
    let taken = turn.with_claim("taking a spare", subjects, |turn| take_spare_of(turn, pool, name));
    taken.unwrap_or(false)
}

/// Whether a pool has a spare that may serve an array which wants one, and nothing is in the way of that.
pub(crate) fn has_spares_to_give(turn: &Turn) -> bool {
    let serves = |array: &ArrayName, spare: &PoolSpare| {
        let unfit = turn.unfit_spares.get(&(array.clone(), spare.device.to_string()));
        unfit.is_none_or(UnfitSpare::is_due)
    };
    turn.wanting.iter().any(|wanting| {
        let pool = turn.registry.find_pool(&wanting.pool);
        let mut spares = pool.into_iter().flat_map(|pool| &pool.spares);
        let subjects = subjects_of_taking(turn, &wanting.pool, &wanting.name);
        spares.any(|spare| serves(&wanting.name, spare))
            && turn.registry.trouble().is_none()
            && turn.claims.taken(&subjects, turn.own()).is_none()
    })
}

fn subjects_of_taking(turn: &Turn, pool: &PoolName, name: &ArrayName) -> BTreeSet<Subject> {
    let mut subjects = subjects::of_array(&turn.registry, name);
    subjects.insert(Subject::Pool(pool.clone()));
    subjects
}

fn take_spare_of(turn: &mut Turn, pool: &PoolName, name: &ArrayName) -> bool {
    let Some(record) = turn.registry.find_pool(pool).cloned() else { return false };
    for spare in &record.spares {
        let device = &spare.device;
        let key = (name.clone(), device.to_string());
        if turn.unfit_spares.get(&key).is_some_and(|unfit| !unfit.is_due()) {
            continue;
        }
        match give_spare(turn, &record, name, spare) {
            Ok(()) => {
                turn.unfit_spares.remove(&key);
                let line = format!("array {name}: takes the spare {device} of the pool {pool}");
                turn.engine.log(&line);
                return true;
            }
            Err(error) => {
                let line = format!("the spare {device} of the pool {pool} is left out: {error}");
                let why = error.message;
                let is_said = turn.unfit_spares.get(&key).is_some_and(|it| it.why() == why);
                if !is_said {
                    turn.engine.log(&format!("array {name}: {line}"));
                }
                turn.unfit_spares.insert(key, UnfitSpare::new(why, now()));
            }
        }
    }
    false
}

/// How soon to ask spares again that did not serve an array, if there are any.
pub(crate) fn next_asking(turn: &Turn) -> Option<Duration> {
    (!turn.unfit_spares.is_empty()).then_some(ASK_AGAIN)
}

/// Asks spares again that did not serve an array some time ago.
pub(crate) fn ask_spares_again(turn: &mut Turn, now: Instant) {
    for unfit in turn.unfit_spares.values_mut() {
        unfit.look(now);
    }
    if turn.unfit_spares.values().any(UnfitSpare::is_due) {
        notice_array_events(turn);
        // No array wants those that nobody has asked.
        turn.unfit_spares.retain(|_, unfit| !unfit.is_due());
    }
}

fn give_spare(
    turn: &mut Turn,
    pool: &PoolRecord,
    name: &ArrayName,
    spare: &PoolSpare,
) -> ControlResult<()> {
    let device = &spare.device;
    // The device was free when it came to the pool, which may be long ago.
    spare_labels::check(&*turn.reading(device), device, spare.label)?;
    turn.opening(device).check_spare(name, device)?;
    let before = turn.array_record(name)?;
    // A daemon that dies here finds the array's spare by the label.
    spare_labels::write_label(turn, device, &spare_labels::of_array(&before), false)?;
    let mut array = turn.array_record(name)?;
    array.spares.push(device.clone());
    let mut without = pool.clone();
    without.spares.retain(|other| other != spare);
    if let Err(error) = turn.registry.put_pool_and_array(without, array) {
        label_again(turn, pool, spare)?;
        return Err(error);
    }
    let bring = |turn: &mut Turn| turn.opening(device).add_spare(name, device);
    if let Err(error) =
        arrays::members::bring_devices(turn, name, std::slice::from_ref(device), bring)
    {
        let mut array = turn.array_record(name)?;
        array.spares.retain(|spare| spare != device);
        turn.registry.put_pool_and_array(pool.clone(), array)?;
        label_again(turn, pool, spare)?;
        return Err(error);
    }
    arrays::events::record(turn);
    Ok(())
}

/// Gives a spare that an array did not take the label of its pool again.
fn label_again(turn: &mut Turn, pool: &PoolRecord, spare: &PoolSpare) -> ControlResult<()> {
    let Some(owner) = spare.label else { return Ok(()) };
    let label = spare_labels::of_pool(&pool.name, owner);
    spare_labels::write_label(turn, &spare.device, &label, false)
}

/// Finds spares of pools that have other paths by now. One that has the label of a recorded array is
/// that array's. The daemon died while the array took it, or the registry is a copy from before that.
pub(crate) fn reconcile_pools(turn: &mut Turn) {
    let arrays = turn.registry.arrays().to_vec();
    for pool in turn.registry.pools().to_vec() {
        for spare in pool.spares {
            let Some(spare) = located_spare(turn, &pool.name, spare) else { continue };
            if look::look(turn, &spare.device).is_err() {
                continue;
            }
            let mut takers = arrays.iter();
            let device = &spare.device;
            let mut is_its = |array: &&RegisteredArray| {
                look::may_be_member(turn, device, array.uuid)
                    || spare_labels::is_spare_of(turn, device, array.uuid)
            };
            let Some(taker) = takers.find(&mut is_its) else { continue };
            let moved = move_to_array(turn, &pool.name, &taker.name, &spare);
            let name = taker.name.clone();
            turn.engine.log(&format!(
                "array {name}: {device} of the pool {} is already its member",
                pool.name
            ));
            turn.note_array(&name, moved);
        }
    }
}

/// A spare where it is now, also in the record of its pool. None when another drive has its path: that
/// one says nothing of the spare.
fn located_spare(turn: &mut Turn, pool: &PoolName, spare: PoolSpare) -> Option<PoolSpare> {
    let identity = spare.identity.as_ref();
    let step = format!("looking for {}", spare.device);
    let place = drives::place_of(&*turn.apart(step), &spare.device, identity);
    let Some(device) = place else {
        let line = format!("another drive has the path of the spare {}", spare.device);
        turn.engine.log(&format!("spare pool {pool}: {line}"));
        return None;
    };
    if device == spare.device {
        return Some(spare);
    }
    turn.engine.log(&format!("the spare {} of the pool {pool} is {device} now", spare.device));
    let found = PoolSpare { device, ..spare.clone() };
    let recorded = turn.pool_record(pool).and_then(|mut record| {
        let place = record.spares.iter_mut().find(|known| **known == spare);
        place.into_iter().for_each(|place| place.clone_from(&found));
        turn.registry.put_pool(record)
    });
    if let Err(error) = recorded {
        turn.engine.log(&format!("spare pool {pool}: {}", error.message));
    }
    Some(found)
}

fn move_to_array(
    turn: &mut Turn,
    pool: &PoolName,
    name: &ArrayName,
    spare: &PoolSpare,
) -> ControlResult<()> {
    let (mut pool, mut array) = (turn.pool_record(pool)?, turn.array_record(name)?);
    pool.spares.retain(|other| other != spare);
    if !array.devices().any(|known| *known == spare.device) {
        array.spares.push(spare.device.clone());
    }
    turn.registry.put_pool_and_array(pool, array)
}

/// Records what changed in arrays by itself. A member that was lost is old from then on. This
/// instance must know that when the member is the only one that comes back; spares take places. Then
/// gives spares of pools to arrays that want some.
pub(crate) fn notice_array_events(turn: &mut Turn) {
    arrays::events::record(turn);
    // A spare that changes hands needs a record.
    if turn.registry.trouble().is_none() || turn.registry.check_room().is_ok() {
        serve_from_pools(turn, turn.wanting.clone());
    }
}
