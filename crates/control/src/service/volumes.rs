//! Creating, changing and deleting volumes and their caches.

use std::collections::BTreeMap;

use super::admit::{Admitted, Beside};
use super::apart::apart;
use super::given_up;
use super::jobs::Purpose;
use super::late;
use super::live::Live;
use super::silence::{self, WayOn};
use super::stops;
use super::turn::Turn;
use voltier_cache::Mode;

use crate::engine::{CacheStart, Engine};
use crate::error::{ControlError, ControlResult};
use crate::name::VolumeName;
use crate::protocol::{NewCache, Response};
use crate::records::{CacheRecord, Desired, VolumeRecord};
use crate::safety::Role;
use crate::settings::{ORIGIN_KEY, Settings};
use crate::spec::DeviceSpec;
use crate::status::DeviceState;

impl<E: Engine> Turn<E> {
    pub(super) fn create(
        &mut self,
        name: VolumeName,
        origin: DeviceSpec,
        cache: Option<NewCache>,
    ) -> ControlResult<Response> {
        if self.registry.find(&name).is_some() {
            return Err(ControlError::failed(format!(
                "a volume `{name}` exists; choose another name or `voltier delete {name}` first"
            )));
        }
        let Admitted { size_bytes, mark } =
            self.admit(&origin, Role::Origin, false, Beside::None)?;
        let ssd = cache.as_ref().map(|new| &new.device);
        given_up::no_cache_names(self, &origin, mark.as_ref(), ssd)?;
        let cache = match cache {
            None => None,
            Some(new) => Some(self.admit_cache(new, &origin)?),
        };
        let mut record = VolumeRecord {
            name: name.clone(),
            uuid: self.engine.draw_identity()?,
            size_bytes,
            origin_identity: mark,
            origin,
            cache,
            exports: Vec::new(),
            export_access: BTreeMap::new(),
            desired: Desired::Serving,
        };
        // No export is open yet, so nothing can be acknowledged before the record is written.
        let opened = apart(self).open(&record, CacheStart::Format)?;
        record.size_bytes = opened.size_bytes;
        if let Some(cache) = &mut record.cache {
            cache.generation = opened.generation;
        }
        if let Err(error) = self.registry.put(record) {
            let undone = self.undo_create(&name);
            self.note(&name, undone);
            return Err(error);
        }
        self.live.insert(name.clone(), Live { is_open: true, ..Live::new() });
        Ok(self.volume(&name))
    }

    fn undo_create(&mut self, name: &VolumeName) -> ControlResult<()> {
        // Without a cache there is none to take away: that is no error here.
        let _ = apart(self).detach(name, false);
        apart(self).close(name)
    }

    pub(super) fn set(
        &mut self,
        name: &VolumeName,
        changes: &[(String, String)],
    ) -> ControlResult<Response> {
        if let [(key, device)] = changes
            && key == ORIGIN_KEY
        {
            return self.take_origin(name, device.parse()?);
        }
        let mut record = self.open_record(name)?;
        self.not_leaving(name)?;
        self.not_evacuating(&record)?;
        let before = record.clone();
        let cache = live_cache(&mut record)?;
        for (key, value) in changes {
            cache.settings.apply(key, value)?;
        }
        cache.settings.check()?;
        cache.maybe_dirty |= cache.settings.mode.writes_back();
        let settings = cache.settings.clone();
        self.registry.put(record)?;
        if let Err(error) = apart(self).configure(name, &settings) {
            let mut record = self.record(name)?;
            record.cache = restored(record.cache, before.cache);
            self.registry.put(record)?;
            return Err(error);
        }
        Ok(self.volume(name))
    }

    pub(super) fn flush(&mut self, name: &VolumeName) -> ControlResult<Response> {
        let mut record = self.open_record(name)?;
        live_cache(&mut record)?;
        silence::must_answer(self, &record, WayOn::Wait)?;
        let id = self.start_job(name, Purpose::Flush)?;
        self.job_response(id)
    }

    pub(super) fn attach(&mut self, name: &VolumeName, new: NewCache) -> ControlResult<Response> {
        let record = self.open_record(name)?;
        self.not_leaving(name)?;
        if record.cache.is_some() {
            return Err(ControlError::failed(format!(
                "{name} has a cache; `voltier detach {name}` takes it away first"
            )));
        }
        let cache = self.admit_cache(new, &record.origin)?;
        // Clients are writing, so the record must say that lines may be dirty before one can be. A cache
        // that is recorded but was never made must not look dirty. So it starts in wt.
        let settings = cache.settings.clone();
        let mut quiet = cache;
        quiet.settings.mode = Mode::WriteThrough;
        quiet.maybe_dirty = false;
        let mut with_cache = record.clone();
        with_cache.cache = Some(quiet.clone());
        self.registry.put(with_cache.clone())?;
        let attached = apart(self).attach(&with_cache);
        let mut record = self.record(name)?;
        match attached {
            Ok(generation) => quiet.generation = generation,
            Err(error) => {
                record.cache = None;
                self.registry.put(record)?;
                return Err(error);
            }
        }
        if let Some(cache) = &mut record.cache {
            cache.generation = quiet.generation;
            cache.settings = settings.clone();
            cache.maybe_dirty |= settings.mode.writes_back();
        }
        self.registry.put(record)?;
        if settings.mode != Mode::WriteThrough {
            apart(self).configure(name, &settings)?;
        }
        Ok(self.volume(name))
    }

    pub(super) fn detach(&mut self, name: &VolumeName, flush: bool) -> ControlResult<Response> {
        let mut record = self.record(name)?;
        let Some(cache) = record.cache.clone() else {
            return Err(ControlError::failed(format!("{name} has no cache to detach")));
        };
        record.must_not_be_stopped()?;
        let is_open = self.is_open(name);
        if flush {
            self.not_evacuating(&record)?;
            silence::must_answer(self, &record, WayOn::GiveUp)?;
        } else {
            silence::hdd_must_answer(self, &record)?;
        }
        if !is_open || cache.failed.is_some() {
            self.may_lose(name, &cache, flush)?;
            return self.finish_now(name, Purpose::Detach, false);
        }
        if !flush {
            self.give_up_job(name, Purpose::Detach)?;
            return self.finish_now(name, Purpose::Detach, false);
        }
        self.leave(name, &mut record, Desired::Detaching, Purpose::Detach)
    }

    pub(super) fn delete(&mut self, name: &VolumeName, flush: bool) -> ControlResult<Response> {
        if self.registry.find(name).is_none()
            && let Some(id) = self.jobs.untold_delete(name)
        {
            return self.job_response(id);
        }
        let mut record = self.record(name)?;
        match self.jobs.running(name) {
            Some((id, Purpose::Delete)) if flush => return self.job_response(id),
            Some((_, Purpose::Delete)) => {}
            _ => self.not_leaving(name)?,
        }
        if flush && record.cache.is_some() {
            record.must_not_be_stopped()?;
        }
        stops::is_unused(self, &record, &format!("voltier unexport {name} --now"))?;
        if flush {
            self.not_evacuating(&record)?;
            silence::must_answer(self, &record, WayOn::GiveUp)?;
        } else {
            silence::hdd_must_answer(self, &record)?;
        }
        let is_open = self.is_open(name);
        let drains = match &record.cache {
            Some(cache) if !is_open || cache.failed.is_some() => {
                self.may_lose(name, cache, flush)?;
                false
            }
            Some(_) => flush,
            None => false,
        };
        self.close_exports(&mut record)?;
        if !flush {
            self.give_up_job(name, Purpose::Delete)?;
        }
        if drains {
            self.leave(name, &mut record, Desired::Deleting, Purpose::Delete)
        } else {
            self.finish_now(name, Purpose::Delete, false)
        }
    }

    /// Refuses changes of a cache whose SSD takes no writes: its dirty lines reach the origin first.
    fn not_evacuating(&mut self, record: &VolumeRecord) -> ControlResult<()> {
        let status = self.status(record);
        if status.ssd.state != DeviceState::Evacuating {
            return Ok(());
        }
        let (name, lines) = (&record.name, status.lines.dirty);
        Err(ControlError::failed(format!(
            "the SSD of {name} takes no writes, and {lines} dirty lines of it are being written to {}; wait \
             until `voltier show {name}` says that nothing is lost, or `voltier detach --no-flush {name}` \
             gives them up",
            record.origin
        )))
    }

    /// Sends a volume on its way out: no new dirty lines, the old ones drained as a job.
    fn leave(
        &mut self,
        name: &VolumeName,
        record: &mut VolumeRecord,
        desired: Desired,
        purpose: Purpose,
    ) -> ControlResult<Response> {
        if self.jobs.running(name).is_none() {
            record.desired = desired;
            self.registry.put(record.clone())?;
        }
        match self.drain_for(name, purpose) {
            Ok(id) => self.job_response(id),
            Err(error) => {
                self.stay(name);
                Err(error)
            }
        }
    }

    /// Starts the drain of a volume that is leaving.
    pub(super) fn drain_for(&mut self, name: &VolumeName, purpose: Purpose) -> ControlResult<u64> {
        let record = self.record(name)?;
        if let Some(cache) = &record.cache
            && cache.settings.mode.writes_back()
        {
            let quiet = Settings { mode: Mode::PassThrough, ..cache.settings.clone() };
            apart(self).configure(name, &quiet)?;
        }
        self.start_job(name, purpose)
    }

    /// The last step of a detach: recorded first, because from then on the SSD is stale.
    pub(super) fn drop_cache(&mut self, name: &VolumeName, write_back: bool) -> ControlResult<()> {
        let record = self.record(name)?;
        let mut plain = VolumeRecord { desired: Desired::Serving, ..record };
        let was = plain.cache.take();
        was.iter().for_each(|cache| given_up::reserve(self, cache));
        if !self.is_open(name) {
            self.registry.put(plain.clone())?;
            was.iter().for_each(|cache| given_up::erase(self, name, cache));
            late::bring_up(self, &plain);
            return Ok(());
        }
        let detached = self.forget_cache(plain, write_back)?;
        let failed = was.filter(|cache| cache.failed.is_some());
        failed.iter().for_each(|cache| given_up::erase(self, name, cache));
        let had_failed = failed.is_some();
        if let Some(live) = self.live.get_mut(name) {
            live.error.clear();
        }
        if !had_failed {
            self.note(name, detached);
        }
        Ok(())
    }

    /// The last step of a delete: the cache goes first. So a crash between the steps leaves a plain
    /// volume on its way out.
    pub(super) fn drop_volume(&mut self, name: &VolumeName, write_back: bool) -> ControlResult<()> {
        let record = self.record(name)?;
        let mut plain = VolumeRecord { desired: Desired::Deleting, ..record };
        let was = plain.cache.take();
        was.iter().for_each(|cache| given_up::reserve(self, cache));
        let is_open = self.is_open(name);
        if is_open {
            if was.is_none() {
                self.registry.put(plain)?;
            } else if let Err(error) = self.forget_cache(plain, write_back)? {
                self.log(name, &error.message);
            }
            if let Err(error) = apart(self).close(name) {
                self.log(name, &error.message);
            }
        } else if was.is_some() {
            self.registry.put(plain)?;
        }
        let stays_labelled = was.filter(|cache| !is_open || cache.failed.is_some());
        stays_labelled.iter().for_each(|cache| given_up::erase(self, name, cache));
        self.registry.remove(name)?;
        self.live.remove(name);
        Ok(())
    }

    /// Records an open volume as one without a cache, and takes the cache away. With `write_back`,
    /// requests wait meanwhile: what they wrote after the last dirty line was written back would be
    /// lost by a crash between the two. The inner result is that of unmarking the SSD.
    fn forget_cache(
        &mut self,
        plain: VolumeRecord,
        write_back: bool,
    ) -> ControlResult<ControlResult<()>> {
        let name = plain.name.clone();
        if write_back {
            apart(self).quiesce(&name)?;
        }
        if let Err(error) = self.registry.put(plain) {
            self.engine.resume(&name);
            return Err(error);
        }
        Ok(apart(self).detach(&name, write_back))
    }

    /// Records how much a lost SSD would lose. With `at_rest`, or in a mode that makes no dirt, a
    /// clean one would lose nothing.
    pub(super) fn record_dirt(&mut self, name: &VolumeName, at_rest: bool) -> ControlResult<()> {
        let mut record = self.record(name)?;
        let before = record.clone();
        // A volume that failed meanwhile cannot say, and what is on record stays.
        let health = self.engine.health(name);
        let Some(dirty_lines) = health.dirty_lines else { return Ok(()) };
        let mut status = super::show::recorded(&record);
        self.engine.fill_status(name, &mut status);
        if let Some(cache) = &mut record.cache {
            cache.dirty_lines = dirty_lines;
            // An SSD that is gone may come back: nothing is lost before that is on record.
            if cache.failed.is_some() || !health.ssd_is_gone {
                // Of what was lost, clients may have written some anew.
                (cache.lost, cache.lost_total) = (status.lost, status.lost_ranges);
            }
            let stays_clean = at_rest || !cache.settings.mode.writes_back();
            cache.maybe_dirty &= dirty_lines > 0 || !stays_clean;
        }
        if record == before { Ok(()) } else { self.registry.put(record) }
    }

    /// Refuses to give a cache up that may hold the only copy of something, unless told to.
    fn may_lose(&self, name: &VolumeName, cache: &CacheRecord, flush: bool) -> ControlResult<()> {
        if !cache.maybe_dirty || !flush {
            return Ok(());
        }
        Err(ControlError::failed(format!(
            "the cache of {name} ({}) is not there and may hold {}; \
             bring it back, and the volume is served, or give them up with --no-flush",
            cache.device,
            cache.newest_data()
        )))
    }

    pub(super) fn is_open(&self, name: &VolumeName) -> bool {
        self.live.get(name).is_some_and(|live| live.is_open)
    }
}

/// The record of a cache with the settings of before.
fn restored(cache: Option<CacheRecord>, before: Option<CacheRecord>) -> Option<CacheRecord> {
    let CacheRecord { settings, maybe_dirty, .. } = before?;
    cache.map(|cache| match cache.failed {
        // The loss of the SSD, which was recorded meanwhile, says what is dirty.
        Some(_) => CacheRecord { settings, ..cache },
        None => CacheRecord { settings, maybe_dirty, ..cache },
    })
}

fn live_cache(record: &mut VolumeRecord) -> ControlResult<&mut CacheRecord> {
    let name = record.name.clone();
    match &mut record.cache {
        Some(cache) if cache.failed.is_none() => Ok(cache),
        Some(_) => Err(ControlError::failed(format!(
            "the cache of {name} failed; `voltier detach {name}`, then attach another SSD"
        ))),
        None => Err(ControlError::failed(format!(
            "{name} has no cache; give it one with `voltier attach {name} -s SSD`"
        ))),
    }
}
