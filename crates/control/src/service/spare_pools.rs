//! Pools of spares that several arrays share.
//!
//! A spare that is taken goes from the pool to the array's own spares in one writing of the registry.
//! Nothing but its label is written to it before. So two arrays can never take the same one. After a
//! crash the spare is the array's: as a spare, or as the member whose label it has by then.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::admit::Beside;
use super::apart::apart;
use super::claims::Subject;
use super::live::now;
use super::turn::Turn;
use super::unfit_spare::{ASK_AGAIN, UnfitSpare};
use super::wanting::Wanting;
use super::{drives, spare_labels, subjects};
use crate::array_status::PoolStatus;
use crate::engine::Engine;
use crate::error::{ControlError, ControlResult};
use crate::name::{ArrayName, PoolName};
use crate::protocol::Response;
use crate::records::{PoolRecord, PoolSpare, RegisteredArray};
use crate::safety::Role;
use crate::spec::DeviceSpec;
use crate::suggest;

impl<E: Engine> Turn<E> {
    pub(super) fn add_to_pool(
        &mut self,
        pool: &PoolName,
        devices: Vec<DeviceSpec>,
        force: bool,
    ) -> ControlResult<Response> {
        let known = self.registry.find_pool(pool).cloned();
        let mut record =
            known.unwrap_or_else(|| PoolRecord { name: pool.clone(), spares: Vec::new() });
        for (at, device) in devices.iter().enumerate() {
            if device.array().is_some() {
                return Err(ControlError::usage(format!(
                    "{device} cannot be a spare: arrays do not stand on arrays"
                )));
            }
            self.admit(device, Role::Cache, force, Beside::Members(&devices[..at]))?;
        }
        let notes = self.too_small_for(pool, &devices);
        // One after the other: each is on record as soon as it has its label.
        self.registry.put_pool(record.clone())?;
        for device in devices {
            let spare = self.new_spare(pool, device, force)?;
            record.spares.push(spare.clone());
            if let Err(error) = self.registry.put_pool(record.clone()) {
                // Else nobody would know whose spare the device is.
                self.unlabel(&spare);
                return Err(error);
            }
        }
        self.unfit_spares.clear();
        self.record_array_events();
        self.pool_response(pool, notes)
    }

    /// Labels a device as a spare of a pool; `force` clears what it held.
    fn new_spare(
        &mut self,
        pool: &PoolName,
        device: DeviceSpec,
        force: bool,
    ) -> ControlResult<PoolSpare> {
        if device.path().is_none() {
            return Ok(PoolSpare { device, identity: None, label: None });
        }
        let owner = self.engine.draw_identity()?;
        let label = spare_labels::of_pool(pool, owner);
        spare_labels::write_label(self, &device, &label, force)?;
        let step = format!("asking {device} for its mark");
        let identity =
            self.wait_for(step, |engine, machine| drives::identity_of(engine, machine, &device));
        Ok(PoolSpare { device, identity, label: Some(owner) })
    }

    /// Arrays of a pool to which a device would be of no use.
    fn too_small_for(&mut self, pool: &PoolName, devices: &[DeviceSpec]) -> Vec<String> {
        let mut notes = Vec::new();
        for name in self.arrays_of(pool) {
            if self.size_of_array(&name).is_err() {
                continue;
            }
            for device in devices {
                if let Err(error) = apart(self).check_spare(&name, device) {
                    notes.push(error.message);
                }
            }
        }
        notes
    }

    pub(super) fn remove_from_pool(
        &mut self,
        pool: &PoolName,
        devices: &[DeviceSpec],
    ) -> ControlResult<Response> {
        let mut record = self.pool_record(pool)?;
        if devices.is_empty() {
            if let Some(array) = self.arrays_of(pool).first() {
                return Err(ControlError::failed(format!(
                    "the array {array} takes its spares from {pool}; \
                     `voltier array set {array} spare_pool=none` first"
                )));
            }
            self.registry.remove_pool(pool)?;
            record.spares.iter().for_each(|spare| self.unlabel(spare));
            return Ok(Response::Pools { pools: Vec::new(), notes: Vec::new() });
        }
        let mut removed = Vec::new();
        for device in devices {
            let known = record
                .spares
                .iter()
                .position(|spare| spare.device == *device || self.is_same(&spare.device, device));
            let Some(known) = known else {
                let spares: Vec<String> =
                    record.spares.iter().map(|spare| spare.device.to_string()).collect();
                let has = if spares.is_empty() { "nothing".into() } else { spares.join(", ") };
                return Err(ControlError::failed(format!(
                    "{device} is no spare of {pool}, which has {has}"
                )));
            };
            removed.push(record.spares.remove(known));
        }
        self.registry.put_pool(record)?;
        removed.iter().for_each(|spare| self.unlabel(spare));
        self.pool_response(pool, Vec::new())
    }

    /// Makes a plain device of a spare that has left its pool, if the device can be used.
    fn unlabel(&mut self, spare: &PoolSpare) {
        if self.look(&spare.device).is_ok() {
            spare_labels::erase_spare(self, &spare.device, spare.label);
        }
    }

    pub(super) fn show_pools(&self, pool: Option<&PoolName>) -> ControlResult<Response> {
        if let Some(pool) = pool {
            return self.pool_response(pool, Vec::new());
        }
        let pools = self.registry.pools().iter().map(|record| self.pool_status(record)).collect();
        Ok(Response::Pools { pools, notes: Vec::new() })
    }

    fn pool_response(&self, pool: &PoolName, notes: Vec<String>) -> ControlResult<Response> {
        let pools = vec![self.pool_status(&self.pool_record(pool)?)];
        Ok(Response::Pools { pools, notes })
    }

    fn pool_status(&self, record: &PoolRecord) -> PoolStatus {
        let spares: Vec<String> =
            record.spares.iter().map(|spare| spare.device.to_string()).collect();
        let unfit = self.unfit_spares.iter().filter(|((_, device), _)| spares.contains(device));
        let left_out =
            unfit.map(|((array, _), it)| format!("not taken by {array}: {}", it.why())).collect();
        let arrays = self.arrays_of(&record.name);
        PoolStatus { name: record.name.clone(), spares, arrays, left_out }
    }

    /// The record of a pool.
    pub(super) fn pool_record(&self, pool: &PoolName) -> ControlResult<PoolRecord> {
        self.registry.find_pool(pool).cloned().ok_or_else(|| {
            let names: Vec<&str> =
                self.registry.pools().iter().map(|pool| pool.name.as_str()).collect();
            let hint = if names.is_empty() {
                "there are none yet: voltier array spare-pool add".to_owned()
            } else {
                suggest::hint(pool.as_str(), &names)
            };
            ControlError::failed(format!("no spare pool `{pool}`; {hint}"))
        })
    }

    fn arrays_of(&self, pool: &PoolName) -> Vec<ArrayName> {
        let arrays = self.registry.arrays().iter();
        let takers = arrays.filter(|array| array.settings.spare_pool.as_ref() == Some(pool));
        takers.map(|array| array.name.clone()).collect()
    }

    /// Gives spares to arrays that want some, in this order.
    pub(super) fn serve_from_pools(&mut self, wanting: Vec<Wanting>) {
        for Wanting { name, pool, spares_wanted, .. } in wanting {
            for _ in 0..spares_wanted {
                if !self.take_from_pool(&pool, &name) {
                    break;
                }
            }
        }
    }

    /// Gives an array the first spare of a pool that serves it; whether there was one.
    fn take_from_pool(&mut self, pool: &PoolName, name: &ArrayName) -> bool {
        let subjects = self.subjects_of_taking(pool, name);
        // A pool or array that another command has is looked at again when that has ended.
        let taken =
            self.with_claim("taking a spare", subjects, |turn| turn.take_spare_of(pool, name));
        taken.unwrap_or(false)
    }

    /// Whether a pool has a spare that may serve an array which wants one, and nothing is in the way of that.
    pub(super) fn has_spares_to_give(&self) -> bool {
        let serves = |array: &ArrayName, spare: &PoolSpare| {
            let unfit = self.unfit_spares.get(&(array.clone(), spare.device.to_string()));
            unfit.is_none_or(UnfitSpare::is_due)
        };
        self.wanting.iter().any(|wanting| {
            let pool = self.registry.find_pool(&wanting.pool);
            let mut spares = pool.into_iter().flat_map(|pool| &pool.spares);
            let subjects = self.subjects_of_taking(&wanting.pool, &wanting.name);
            spares.any(|spare| serves(&wanting.name, spare))
                && self.registry.trouble().is_none()
                && self.claims.taken(&subjects, self.own()).is_none()
        })
    }

    fn subjects_of_taking(&self, pool: &PoolName, name: &ArrayName) -> BTreeSet<Subject> {
        let mut subjects = subjects::of_array(&self.registry, name);
        subjects.insert(Subject::Pool(pool.clone()));
        subjects
    }

    fn take_spare_of(&mut self, pool: &PoolName, name: &ArrayName) -> bool {
        let Some(record) = self.registry.find_pool(pool).cloned() else { return false };
        for spare in &record.spares {
            let device = &spare.device;
            let key = (name.clone(), device.to_string());
            if self.unfit_spares.get(&key).is_some_and(|unfit| !unfit.is_due()) {
                continue;
            }
            match self.give_spare(&record, name, spare) {
                Ok(()) => {
                    self.unfit_spares.remove(&key);
                    let line = format!("array {name}: takes the spare {device} of the pool {pool}");
                    self.engine.log(&line);
                    return true;
                }
                Err(error) => {
                    let line =
                        format!("the spare {device} of the pool {pool} is left out: {error}");
                    let why = error.message;
                    let is_said = self.unfit_spares.get(&key).is_some_and(|it| it.why() == why);
                    if !is_said {
                        self.engine.log(&format!("array {name}: {line}"));
                    }
                    self.unfit_spares.insert(key, UnfitSpare::new(why, now()));
                }
            }
        }
        false
    }

    /// How soon to ask spares again that did not serve an array, if there are any.
    pub(super) fn next_asking(&self) -> Option<Duration> {
        (!self.unfit_spares.is_empty()).then_some(ASK_AGAIN)
    }

    /// Asks spares again that did not serve an array some time ago.
    pub(super) fn ask_spares_again(&mut self, now: Instant) {
        for unfit in self.unfit_spares.values_mut() {
            unfit.look(now);
        }
        if self.unfit_spares.values().any(UnfitSpare::is_due) {
            self.notice_array_events();
            // No array wants those that nobody has asked.
            self.unfit_spares.retain(|_, unfit| !unfit.is_due());
        }
    }

    fn give_spare(
        &mut self,
        pool: &PoolRecord,
        name: &ArrayName,
        spare: &PoolSpare,
    ) -> ControlResult<()> {
        let device = &spare.device;
        // The device was free when it came to the pool, which may be long ago.
        let step = format!("reading {device}");
        self.wait_for(step, |engine, machine| {
            spare_labels::check(engine, machine, device, spare.label)
        })?;
        apart(self).check_spare(name, device)?;
        let before = self.array_record(name)?;
        // A daemon that dies here finds the array's spare by the label.
        spare_labels::write_label(self, device, &spare_labels::of_array(&before), false)?;
        let mut array = self.array_record(name)?;
        array.spares.push(device.clone());
        let mut without = pool.clone();
        without.spares.retain(|other| other != spare);
        if let Err(error) = self.registry.put_pool_and_array(without, array) {
            self.label_again(pool, spare)?;
            return Err(error);
        }
        let bring = |turn: &mut Self| apart(turn).add_spare(name, device);
        if let Err(error) = self.bring(name, std::slice::from_ref(device), bring) {
            let mut array = self.array_record(name)?;
            array.spares.retain(|spare| spare != device);
            self.registry.put_pool_and_array(pool.clone(), array)?;
            self.label_again(pool, spare)?;
            return Err(error);
        }
        self.record_array_events();
        Ok(())
    }

    /// Gives a spare that an array did not take the label of its pool again.
    fn label_again(&mut self, pool: &PoolRecord, spare: &PoolSpare) -> ControlResult<()> {
        let Some(owner) = spare.label else { return Ok(()) };
        let label = spare_labels::of_pool(&pool.name, owner);
        spare_labels::write_label(self, &spare.device, &label, false)
    }

    /// Finds spares of pools that have other paths by now. One that has the label of a recorded array is
    /// that array's. The daemon died while the array took it, or the registry is a copy from before that.
    pub(super) fn reconcile_pools(&mut self) {
        let arrays = self.registry.arrays().to_vec();
        for pool in self.registry.pools().to_vec() {
            for spare in pool.spares {
                let Some(spare) = self.located_spare(&pool.name, spare) else { continue };
                if self.look(&spare.device).is_err() {
                    continue;
                }
                let mut takers = arrays.iter();
                let device = &spare.device;
                let mut is_its = |array: &&RegisteredArray| {
                    self.is_labelled(device, array.uuid)
                        || spare_labels::is_spare_of(self, device, array.uuid)
                };
                let Some(taker) = takers.find(&mut is_its) else { continue };
                let moved = self.move_to_array(&pool.name, &taker.name, &spare);
                let name = taker.name.clone();
                self.engine.log(&format!(
                    "array {name}: {device} of the pool {} is its member already",
                    pool.name
                ));
                self.note_array(&name, moved);
            }
        }
    }

    /// A spare where it is now, also in the record of its pool. None when another drive has its path: that
    /// one says nothing of the spare.
    fn located_spare(&mut self, pool: &PoolName, spare: PoolSpare) -> Option<PoolSpare> {
        let identity = spare.identity.as_ref();
        let step = format!("looking for {}", spare.device);
        let place = self.wait_for(step, |engine, machine| {
            drives::place_of(engine, machine, &spare.device, identity)
        });
        let Some(device) = place else {
            let line = format!("another drive has the path of the spare {}", spare.device);
            self.engine.log(&format!("spare pool {pool}: {line}"));
            return None;
        };
        if device == spare.device {
            return Some(spare);
        }
        self.engine.log(&format!("the spare {} of the pool {pool} is {device} now", spare.device));
        let found = PoolSpare { device, ..spare.clone() };
        let recorded = self.pool_record(pool).and_then(|mut record| {
            let place = record.spares.iter_mut().find(|known| **known == spare);
            place.into_iter().for_each(|place| place.clone_from(&found));
            self.registry.put_pool(record)
        });
        if let Err(error) = recorded {
            self.engine.log(&format!("spare pool {pool}: {}", error.message));
        }
        Some(found)
    }

    fn move_to_array(
        &mut self,
        pool: &PoolName,
        name: &ArrayName,
        spare: &PoolSpare,
    ) -> ControlResult<()> {
        let (mut pool, mut array) = (self.pool_record(pool)?, self.array_record(name)?);
        pool.spares.retain(|other| other != spare);
        if !array.devices().any(|known| *known == spare.device) {
            array.spares.push(spare.device.clone());
        }
        self.registry.put_pool_and_array(pool, array)
    }
}
