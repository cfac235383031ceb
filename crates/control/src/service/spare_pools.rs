//! Pools of spares that several arrays share.
//!
//! A spare that is taken goes from the pool to the array's own spares in one writing of the registry,
//! before anything is written to it. So two arrays can never take the same one, and after a crash it is
//! the array's: as a spare, or as the member whose label it has by then.

use super::Service;
use super::admit::Beside;
use crate::array_status::PoolStatus;
use crate::engine::Engine;
use crate::error::{ControlError, ControlResult};
use crate::name::{ArrayName, PoolName};
use crate::protocol::Response;
use crate::records::{PoolRecord, PoolSpare};
use crate::safety::{self, Role};
use crate::spec::DeviceSpec;
use crate::suggest;

/// An array that wants spares of its pool. The most exposed is the least.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wanting {
    pub(super) may_lose: u32,
    pub(super) name: ArrayName,
    pub(super) pool: PoolName,
    pub(super) spares_wanted: usize,
}

impl<E: Engine> Service<E> {
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
        if force {
            // A label that a device has from before must not be taken for one of a later array.
            for device in devices.iter().filter(|device| device.path().is_some()) {
                if matches!(self.engine.label_of(device), Ok(Some(_))) {
                    self.engine.erase_label(device)?;
                }
            }
        }
        let notes = self.too_small_for(pool, &devices);
        let spares = devices.into_iter().map(|device| PoolSpare { device, overwrite: force });
        record.spares.extend(spares);
        self.registry.put_pool(record)?;
        self.unfit_spares.clear();
        self.notice_array_events();
        self.pool_response(pool, notes)
    }

    /// Arrays of a pool to which a device would be of no use.
    fn too_small_for(&mut self, pool: &PoolName, devices: &[DeviceSpec]) -> Vec<String> {
        let mut notes = Vec::new();
        for name in self.arrays_of(pool) {
            if self.size_of_array(&name).is_err() {
                continue;
            }
            for device in devices {
                if let Err(error) = self.engine.check_spare(&name, device) {
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
            return Ok(Response::Pools { pools: Vec::new(), notes: Vec::new() });
        }
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
            record.spares.remove(known);
        }
        self.registry.put_pool(record)?;
        self.pool_response(pool, Vec::new())
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
        let spares = record.spares.iter().map(|spare| spare.device.to_string()).collect();
        PoolStatus { name: record.name.clone(), spares, arrays: self.arrays_of(&record.name) }
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
        let Some(record) = self.registry.find_pool(pool).cloned() else { return false };
        for spare in &record.spares {
            let device = &spare.device;
            let key = (name.clone(), device.to_string());
            if self.unfit_spares.contains(&key) {
                continue;
            }
            match self.give_spare(&record, name, spare) {
                Ok(()) => {
                    let line = format!("array {name}: takes the spare {device} of the pool {pool}");
                    self.engine.log(&line);
                    return true;
                }
                Err(error) => {
                    let line =
                        format!("the spare {device} of the pool {pool} is left out: {error}");
                    self.engine.log(&format!("array {name}: {line}"));
                    self.unfit_spares.insert(key);
                }
            }
        }
        false
    }

    fn give_spare(
        &mut self,
        pool: &PoolRecord,
        name: &ArrayName,
        spare: &PoolSpare,
    ) -> ControlResult<()> {
        let device = &spare.device;
        if let Some(path) = device.path() {
            // The device was free when it came to the pool, which may be long ago.
            let examined = self.engine.examine(&self.machine, path, Role::Cache)?;
            safety::judge(path, &examined, spare.overwrite)?;
        }
        self.engine.check_spare(name, device)?;
        let before = self.array_record(name)?;
        let mut array = before.clone();
        array.spares.push(device.clone());
        let mut without = pool.clone();
        without.spares.retain(|other| other != spare);
        self.registry.put_pool_and_array(without, array)?;
        if let Err(error) = self.engine.add_spare(name, device) {
            self.registry.put_pool_and_array(pool.clone(), before)?;
            return Err(error);
        }
        self.record_array_events();
        Ok(())
    }

    /// A spare of a pool that has the label of a recorded array is that array's: the registry may be a
    /// copy from before it was taken.
    pub(super) fn reconcile_pools(&mut self) {
        let arrays = self.registry.arrays().to_vec();
        for pool in self.registry.pools().to_vec() {
            for spare in pool.spares {
                let mut takers = arrays.iter();
                let device = &spare.device;
                let Some(taker) = takers.find(|array| self.is_labelled(device, array.uuid)) else {
                    continue;
                };
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
