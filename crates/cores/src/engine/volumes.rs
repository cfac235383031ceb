//! Volumes, opened and closed on their cores.

use std::sync::Arc;

use voltier_control::engine::{CacheStart, Drain, OpenedVolume, Volumes};
use voltier_control::{ControlResult, DeviceSpec, VolumeName, VolumeRecord, VolumeStatus};

use crate::core_engine::CoreEngine;
use crate::engine::arrays::bring;
use crate::homes::{Held, Home};
use crate::loss::{LossGate, SsdLoss};
use crate::volume_status;
use crate::volumes::{self, DeviceNames};

impl Volumes for CoreEngine {
    fn open(&self, record: &VolumeRecord, start: CacheStart) -> ControlResult<OpenedVolume> {
        let cache = record.cache.as_ref().filter(|cache| cache.failed.is_none());
        let ssd = cache.map(|cache| &cache.device);
        let core = self.core_of(Some(&record.origin)).or_else(|| self.core_of(ssd));
        let core = core.unwrap_or_else(|| self.deal());
        let memory = self.room_for(record.devices())?;
        bring(self, ssd, core)?;
        let (way, fault) = self.new_home(core);
        let loss = Arc::new(SsdLoss::default());
        let gate = LossGate { loss: loss.clone(), waker: self.waker() };
        let (plan, told) = (record.clone(), fault.clone());
        let opened =
            way.call(move |handle| volumes::open(handle, plan, start, gate, told, memory))?;
        let drain = Arc::new(Held::new(Drain::Done));
        let ssd = record.cache.as_ref().map(|cache| cache.device.to_string());
        let devices =
            DeviceNames { origin: record.origin.to_string(), ssd: ssd.unwrap_or_default() };
        let (exports, loss, devices) = (Held::new(Vec::new()), Held::new(loss), Held::new(devices));
        let uuid = record.uuid.0;
        let is_volatile = record.devices().any(DeviceSpec::is_volatile);
        let home = Home { core, way, fault, exports, drain, loss, devices, is_volatile, uuid };
        self.homes.add(&record.name, home);
        Ok(opened)
    }

    fn take_fault(&self, name: &VolumeName) -> Option<String> {
        let why = self.homes.find(name)?.fault.words()?;
        let home = self.homes.remove(name)?;
        home.loss.get().end();
        // The users of a FUSE file are cut off here; the core has cut off those of the network.
        home.exports.get().clear();
        Some(why)
    }

    fn close(&self, name: &VolumeName) -> ControlResult<()> {
        let Some(home) = self.homes.remove(name) else { return Ok(()) };
        // The users of a FUSE file are cut off here.
        home.exports.get().clear();
        let (name, devices) = (name.clone(), home.devices.get().clone());
        let closed = home.way.call(move |_| volumes::close(name, devices));
        home.loss.get().end();
        closed
    }

    fn fill_status(&self, name: &VolumeName, status: &mut VolumeStatus) {
        match self.ask_volume(name, |open| Ok(volumes::facts(&open.volume))) {
            Ok(facts) => volume_status::fill(status, &facts),
            Err(error) => status.error = error.message,
        }
    }
}
