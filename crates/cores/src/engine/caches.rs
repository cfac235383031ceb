//! The caches of this core's volumes: put in front, written back, changed and taken away.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use voltier_control::engine::{CacheHealth, CacheStart, Caches, Drain, Passing};
use voltier_control::{ControlError, ControlResult, Memory, Settings, VolumeName, VolumeRecord};
use voltier_volume::{Drive, Health, Volume, VolumeError, change_cache};

use crate::core_engine::CoreEngine;
use crate::engine::arrays::bring;
use crate::homes::Home;
use crate::loss::{LossGate, SsdLoss};
use crate::silence::not_answering;
use crate::volumes::{DeviceNames, Resident, dirty_lines_of, put_in_front, resident};

impl Caches for CoreEngine {
    fn begin_evacuation(&self, name: &VolumeName) -> ControlResult<()> {
        self.ask_volume(name, |open| {
            if let Some(cache) = open.volume.cache() {
                cache.begin_evacuation();
            }
            Ok(())
        })
    }

    fn passing(&self, name: &VolumeName) -> Option<Passing> {
        self.homes.find(name)?.loss.get().passing_to_record()
    }

    fn passing_is_recorded(&self, name: &VolumeName, number: u64) {
        if let Some(home) = self.homes.find(name) {
            home.loss.get().passing_is_recorded(number);
        }
    }

    fn attach(&self, record: &VolumeRecord) -> ControlResult<u64> {
        let (name, ssd) = (&record.name, record.cache.as_ref().map(|cache| &cache.device));
        let memory = self.room_for(ssd.into_iter())?;
        bring(self, ssd, self.homes.volume(name)?.core)?;
        let loss = Arc::new(SsdLoss::default());
        let gate = LossGate { loss: loss.clone(), waker: self.waker() };
        let (ssd, plan) = (ssd.map(ToString::to_string).unwrap_or_default(), record.clone());
        // Before: what is still told of the SSD from before is not put on record of the new one.
        *self.homes.volume(name)?.loss.get() = loss;
        let generation = self.call_volume(name, move |handle, open, _| async move {
            let memory = (memory, &open.memory);
            let front =
                put_in_front(&handle, &open.volume, &plan, CacheStart::Format, gate, memory);
            let (opened, ssd_fails) = front.await?;
            open.ssd_fails.set(ssd_fails);
            Ok(opened.generation)
        })?;
        if let Some(home) = self.homes.find(name) {
            home.devices.get().ssd = ssd;
        }
        Ok(generation)
    }

    fn quiesce(&self, name: &VolumeName) -> ControlResult<()> {
        let own = name.clone();
        self.call_volume(name, |_, open, devices| quiesce(own, open, devices))
    }

    fn resume(&self, name: &VolumeName) {
        // A volume that is not open has nobody waiting.
        let _ = self.ask_volume(name, |open| {
            open.volume.resume();
            Ok(())
        });
    }

    fn detach(&self, name: &VolumeName, write_back: bool) -> ControlResult<()> {
        let own = name.clone();
        let detached =
            self.call_volume(name, move |_, open, devices| detach(own, open, devices, write_back));
        // The registry has the volume without this SSD.
        self.failure_is_recorded(name);
        detached
    }

    fn configure(&self, name: &VolumeName, settings: &Settings) -> ControlResult<()> {
        let (own, settings) = (name.clone(), settings.clone());
        let memory = self.room_for(std::iter::empty())?;
        self.call_volume(name, move |_, open, _| configure(own, open, settings, memory))
    }

    fn start_drain(&self, name: &VolumeName) -> ControlResult<()> {
        let home = self.homes.volume(name)?;
        let place = home.drain.clone();
        if std::mem::replace(&mut *place.get(), Drain::Running) == Drain::Running {
            return Ok(());
        }
        let (volume, waker) = (name.clone(), self.waker());
        let devices = home.devices.get().clone();
        let sent = home.way.run(move |handle| {
            drop(handle.spawn(async move {
                let outcome = match drain(volume, devices).await {
                    Ok(()) => Drain::Done,
                    Err(error) => Drain::Failed(error.message),
                };
                *place.get() = outcome;
                waker.iter().for_each(|wake| wake());
            }));
        });
        if sent { Ok(()) } else { Err(ControlError::failed("a core has ended; see daemon.log")) }
    }

    fn end_drain(&self, name: &VolumeName) {
        // A volume that is not open has no drain.
        let _ = self.ask_volume(name, |open| {
            open.end_drain();
            Ok(())
        });
    }

    fn drain(&self, name: &VolumeName) -> Drain {
        match self.homes.find(name) {
            Some(home) => home.drain.get().clone(),
            None => Drain::Failed(format!("{name} was closed")),
        }
    }

    fn health(&self, name: &VolumeName) -> CacheHealth {
        let volume = name.clone();
        let asked = move |_| async move { Ok(dirty_lines(&volume)) };
        let failed = |home: Arc<Home>| home.loss.get().happened.load(Ordering::Acquire);
        let said = self.homes.volume(name).and_then(|home| home.way.ask(asked));
        let (dirty_lines, is_gone) = said.ok().unzip();
        CacheHealth {
            dirty_lines,
            ssd_failed: self.homes.find(name).is_some_and(failed),
            ssd_is_gone: is_gone.unwrap_or_default(),
        }
    }

    fn failure_is_recorded(&self, name: &VolumeName) {
        if let Some(home) = self.homes.find(name) {
            home.loss.get().end();
        }
    }
}

/// Writes everything back and has requests wait.
async fn quiesce(name: VolumeName, open: Rc<Resident>, devices: DeviceNames) -> ControlResult<()> {
    let volume = open.volume.clone();
    let origin_errors = origin_errors(&volume);
    let Some(quiesced) = open.unless_ended(volume.quiesce()).await else {
        return Err(ended_early(&name));
    };
    quiesced.map_err(|error| match error {
        VolumeError::Io { error, .. } => {
            not_written_back(&name, &volume, &devices, origin_errors, error)
        }
        VolumeError::Silent(silent) => not_answering(&name, &devices, silent),
        other => ControlError::from_error(other),
    })
}

/// Takes the cache away and unmarks the SSD.
async fn detach(
    name: VolumeName,
    open: Rc<Resident>,
    devices: DeviceNames,
    write_back: bool,
) -> ControlResult<()> {
    if !write_back {
        open.end_drain();
    }
    let volume = open.volume.clone();
    let origin_errors = origin_errors(&volume);
    let detached = volume.detach(write_back).await;
    if volume.cache().is_none() {
        open.ssd_fails.set(None);
        open.memory.set(None);
    }
    detached.map_err(|error| match error {
        VolumeError::Io { error, .. } if volume.cache().is_some() => {
            not_written_back(&name, &volume, &devices, origin_errors, error)
        }
        VolumeError::Io { what, error } => ControlError::failed(format!(
            "{what} on {}: {error}; {name} serves {} without it; \
             to use this SSD again, attach it with -f",
            devices.ssd, devices.origin
        )),
        VolumeError::Silent(silent) => not_answering(&name, &devices, silent),
        other => ControlError::from_error(other),
    })
}

/// Changes settings.
async fn configure(
    name: VolumeName,
    open: Rc<Resident>,
    settings: Settings,
    memory: Memory,
) -> ControlResult<()> {
    let volume = open.volume.clone();
    let Some(cache) = volume.cache() else {
        return Ok(change_cache(&volume, settings.policy, settings.for_cache()).await?);
    };
    let (total, more) = cache.memory_with(settings.policy, settings.for_cache().admission);
    // What is learned anew stands beside the old for a moment.
    let _meanwhile = memory.promise(more).map_err(|shortage| {
        ControlError::not_now(format!(
            "the change of {name} {shortage}; free some, or choose a policy or an admission that needs less"
        ))
    })?;
    change_cache(&volume, settings.policy, settings.for_cache()).await?;
    if let Some(mut given) = open.memory.take() {
        given.change(total);
        open.memory.set(Some(given));
    }
    Ok(())
}

/// Writes every dirty line back.
async fn drain(name: VolumeName, devices: DeviceNames) -> ControlResult<()> {
    let resident = resident(&name)?;
    let volume = resident.volume.clone();
    let origin_errors = origin_errors(&volume);
    match resident.unless_ended(volume.drain()).await {
        Some(Ok(())) => Ok(()),
        Some(Err(VolumeError::Io { error, .. })) => {
            Err(not_written_back(&name, &volume, &devices, origin_errors, error))
        }
        Some(Err(VolumeError::Silent(silent))) => Err(not_answering(&name, &devices, silent)),
        Some(Err(other)) => Err(ControlError::from_error(other)),
        None => Err(ended_early(&name)),
    }
}

fn ended_early(name: &VolumeName) -> ControlError {
    ControlError::failed(format!("writing {name} back was ended early"))
}

fn origin_errors(volume: &Volume<Drive>) -> u64 {
    volume.cache().map_or(0, |cache| cache.status().origin.errors)
}

/// The error of writing back: the device that stopped it, and the way on.
fn not_written_back(
    name: &VolumeName,
    volume: &Volume<Drive>,
    devices: &DeviceNames,
    origin_errors_before: u64,
    error: impl std::fmt::Display,
) -> ControlError {
    let DeviceNames { origin, ssd } = devices;
    let Some(cache) = volume.cache() else {
        return ControlError::failed(format!("writing {name} back to {origin}: {error}"));
    };
    let status = cache.status();
    let dirty = status.lines.dirty;
    let damaged = cache.damaged_ranges().len();
    ControlError::failed(if status.health == Health::Failed {
        format!(
            "writing {name} back: its SSD {ssd} failed and {dirty} lines are lost; \
             `voltier show {name}` lists them, `voltier detach {name} --no-flush` gives them up"
        )
    } else if status.evacuation_stalls {
        format!(
            "writing {name} back: its SSD {ssd} takes no writes, and {dirty} dirty lines on it \
             cannot be read now; Voltier keeps trying, `voltier detach {name} --no-flush` gives \
             them up"
        )
    } else if status.origin.errors > origin_errors_before || damaged == 0 {
        format!(
            "writing {name} back: its backing disk {origin}: {error}; {dirty} dirty lines stay \
             safe on {ssd}; see `dmesg`, repair the disk and try again, or `voltier detach \
             {name} --no-flush` gives them up"
        )
    } else {
        format!(
            "writing {name} back: {damaged} dirty lines are damaged on its SSD {ssd} ({error}), \
             the others are written; `voltier show {name}` lists them: write them again, or give \
             them up with --no-flush"
        )
    })
}

/// Lines the origin does not have yet, and whether the SSD went away with them.
fn dirty_lines(name: &VolumeName) -> (u64, bool) {
    let Ok(resident) = resident(name) else { return (0, false) };
    let is_gone = resident.volume.cache().is_some_and(|cache| cache.ssd_is_gone());
    (dirty_lines_of(&resident.volume), is_gone)
}
