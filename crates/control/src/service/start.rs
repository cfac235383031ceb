//! Bringing recorded volumes up when the daemon starts, and to rest when it ends.

use super::absence::Hindrance;
use super::admit::{Admitted, Beside};
use super::apart::apart;
use super::crash_wait::CRASH_STEP;
use super::drives;
use super::jobs::Purpose;
use super::late;
use super::live::{Live, now};
use super::moved;
use super::turn::Turn;
use crate::engine::{CacheStart, Engine};
use crate::error::{ControlError, ControlResult};
use crate::name::VolumeName;
use crate::protocol::Response;
use crate::records::{CacheRecord, Desired, VolumeRecord};
use crate::safety::{self, DriveIdentity, Role};
use crate::spec::DeviceSpec;

impl<E: Engine> Turn<E> {
    /// Does something again while it fails, as often as the start allows.
    pub(super) fn again<T, F>(
        &mut self,
        mut attempt: impl FnMut(&mut Self) -> Result<T, F>,
    ) -> Result<T, F> {
        let mut outcome = attempt(self);
        while outcome.is_err() && self.is_patient() {
            outcome = attempt(self);
        }
        outcome
    }

    /// Waits a moment for what is busy, unless the start has waited long enough.
    fn is_patient(&mut self) -> bool {
        let is_patient = self.busy_tries > 1;
        if is_patient {
            self.busy_tries -= 1;
            self.pause(CRASH_STEP);
        }
        is_patient
    }

    /// Brings one volume up with what is there, its exports and its unfinished work included.
    pub(super) fn open_up(&mut self, record: &VolumeRecord) {
        let name = record.name.clone();
        let mut live = Live::new();
        let opened = match self.locate_drives(record) {
            Ok(located) => self.open_recorded(&located, &mut live),
            Err(error) => Err(error),
        };
        live.is_open = opened.is_ok();
        if live.is_open {
            self.adopted_origins.remove(&name);
        }
        live.is_unrecorded = opened.is_err() && self.registry.trouble().is_some();
        self.is_troubled |= live.is_unrecorded;
        let before = self.live.insert(name.clone(), live);
        if let Err(error) = &opened {
            let is_news = before.is_none_or(|before| before.error != error.message);
            self.note_unless(!is_news, &name, opened);
            return;
        }
        let adopted = self.adopt_identities(&name);
        self.note(&name, adopted);
        self.open_exports(record);
        let is_leaving = matches!(record.desired, Desired::Detaching | Desired::Deleting);
        if is_leaving && record.cache.is_none() {
            if let Err(error) = self.finish_now(&name, Purpose::Delete, false) {
                self.note(&name, Err(error));
            }
            return;
        }
        let purpose = match record.desired {
            Desired::Serving | Desired::Stopped => return,
            Desired::Detaching => Purpose::Detach,
            Desired::Deleting => Purpose::Delete,
        };
        self.log(&name, &format!("going on with its {}", purpose.verb()));
        let resumed = self.drain_for(&name, purpose).map(drop);
        self.note(&name, resumed);
    }

    /// Takes a drive as the origin of a volume that is not served. The user of the command says that what
    /// the drive holds counts: as a copy, as the same drive with another mark, or changed since. The cache
    /// goes on with that drive.
    pub(super) fn take_origin(
        &mut self,
        name: &VolumeName,
        device: DeviceSpec,
    ) -> ControlResult<Response> {
        let record = self.record(name)?;
        record.must_not_be_stopped()?;
        if self.is_open(name) {
            return Err(ControlError::failed(format!(
                "{name} is served from {}: its origin changes only while it is not served",
                record.origin
            )));
        }
        if device.is_volatile() {
            return Err(ControlError::failed(format!(
                "{device} is empty at every start: the origin of {name} cannot be there; give the drive \
                 that holds what its origin held"
            )));
        }
        let Admitted { size_bytes, mark } =
            self.admit(&device, Role::Origin, false, Beside::Cache(&record))?;
        large_enough(&device, size_bytes, record.size_bytes, "origin")?;
        let taken = VolumeRecord { origin: device, origin_identity: mark, ..record.clone() };
        self.registry.put(taken.clone())?;
        let since = late::hold_off_of(self, name);
        self.adopted_origins.insert(name.clone());
        // The SSD may come late too: then the volume waits for it, and has its new origin.
        late::try_volume(self, &taken, since.or(Some(now())), now());
        let is_refused = |live: &&Live| !live.is_open && !live.absence.is_waiting();
        let refused = self.live.get(name).filter(is_refused);
        if let Some(error) = refused.map(|live| live.error.clone()) {
            self.adopted_origins.remove(name);
            self.registry.put(record.clone())?;
            late::try_volume(self, &record, since, now());
            return Err(ControlError::failed(error));
        }
        self.log(name, &format!("its origin is {} now, as its user says", taken.origin));
        Ok(self.volume(name))
    }

    /// Finds the drives of a volume by their identities; the record says where they are now.
    fn locate_drives(&mut self, record: &VolumeRecord) -> ControlResult<VolumeRecord> {
        let step = format!("looking for the drives of {}", record.name);
        let located =
            self.wait_for(step, |engine, machine| drives::located(engine, machine, record));
        let (located, news) = located?;
        if located != *record {
            self.registry.put(located.clone())?;
        }
        for line in news {
            self.log(&record.name, &line);
        }
        Ok(located)
    }

    /// Records what the drives of an open volume are known by, where the record does not say it.
    fn adopt_identities(&mut self, name: &VolumeName) -> ControlResult<()> {
        let Some(before) = self.registry.find(name).cloned() else { return Ok(()) };
        let ssd = before.cache.as_ref().filter(|it| it.failed.is_none() && it.identity.is_none());
        let mark_of_ssd = ssd.and_then(|cache| self.mark_of(&cache.device));
        let mark_of_origin = match before.origin_identity {
            None => self.mark_of(&before.origin),
            Some(_) => None,
        };
        // The SSD may have failed while the drives were asked.
        let Some(record) = self.registry.find(name).cloned() else { return Ok(()) };
        let mut adopted = record.clone();
        adopted.origin_identity = adopted.origin_identity.or(mark_of_origin);
        if let Some(cache) = adopted.cache.as_mut().filter(|cache| cache.failed.is_none()) {
            cache.identity = cache.identity.take().or(mark_of_ssd);
        }
        if adopted == record { Ok(()) } else { self.registry.put(adopted) }
    }

    fn open_recorded(&mut self, record: &VolumeRecord, live: &mut Live) -> ControlResult<()> {
        if matches!(&record.origin, device if device.is_volatile()) {
            return Err(ControlError::failed(format!(
                "its origin {} ended with the daemon before; \
                 `voltier delete --no-flush {}` and create it again",
                record.origin, record.name
            )));
        }
        self.look_at(&record.origin, record.size_bytes, "origin")?;
        moved::is_no_member(self, record)?;
        let Some(cache) = &record.cache else {
            return apart(self).open(record, CacheStart::Load).map(drop);
        };
        if let Some(reason) = &cache.failed {
            if cache.maybe_dirty {
                return Err(ControlError::failed(format!(
                    "{reason} with dirty lines, whose newest data are lost; \
                     `voltier detach --no-flush {}` serves what the origin has",
                    record.name
                )));
            }
            live.error = reason.clone();
            return apart(self).open(record, CacheStart::Load).map(drop);
        }
        if cache.generation == 0 && !cache.maybe_dirty {
            return self.take_back_attach(record);
        }
        match self.open_with_cache(record, cache) {
            Ok(()) => Ok(()),
            Err(error) if cache.maybe_dirty => Err(error),
            Err(_) if self.is_letting_go(&cache.device) => Err(ControlError::failed(format!(
                "its SSD {} has not ended what it was asked for before the stop; `voltier start {}` when \
                 it answers",
                cache.device, record.name
            ))),
            Err(error) => self.open_without(record, cache, &error, live),
        }
    }

    /// An attach that a crash cut off before the first opening of its cache was on record. Until then
    /// the cache wrote through, so the origin has everything and the volume is as it was before.
    fn take_back_attach(&mut self, record: &VolumeRecord) -> ControlResult<()> {
        self.log(&record.name, "its attach was cut off and is taken back; attach the SSD again");
        let plain = VolumeRecord { cache: None, ..record.clone() };
        self.registry.put(plain.clone())?;
        apart(self).open(&plain, CacheStart::Load).map(drop)
    }

    fn open_with_cache(&mut self, record: &VolumeRecord, cache: &CacheRecord) -> ControlResult<()> {
        if !cache.device.is_volatile() {
            self.look_at(&cache.device, 0, "cache")
                .map_err(|error| may_be_missed(record, error))?;
            let is_adopted = self.adopted_origins.contains(&record.name);
            let start = match is_adopted {
                true => CacheStart::Adopt,
                false if self.is_unmarked(record) => CacheStart::LoadUnmarked,
                false => CacheStart::Load,
            };
            return self.open_and_record(record.clone(), start);
        }
        if cache.maybe_dirty {
            return Err(ControlError::failed(format!(
                "its cache {} ended with the daemon before and may have held the newest data; \
                 `voltier detach --no-flush {}` gives them up",
                cache.device, record.name
            )));
        }
        let mut fresh = record.clone();
        fresh.cache = Some(CacheRecord {
            uuid: self.engine.draw_identity()?,
            generation: 0,
            ..cache.clone()
        });
        self.open_and_record(fresh, CacheStart::Format)
    }

    /// Whether only a name that the kernel gave says which drive the origin is.
    fn is_unmarked(&mut self, record: &VolumeRecord) -> bool {
        let is_marked = record.origin_identity.as_ref().is_some_and(DriveIdentity::is_known);
        let Some(path) = record.origin.path().filter(|_| !is_marked) else { return false };
        let step = format!("asking {} for its kind", path.display());
        self.wait_for(step, |engine, _| engine.is_block_device(path))
    }

    /// Opens a volume and records the new generation of its cache, before any client is served.
    pub(super) fn open_and_record(
        &mut self,
        mut record: VolumeRecord,
        start: CacheStart,
    ) -> ControlResult<()> {
        let opened = apart(self).open(&record, start)?;
        if let Some(cache) = &mut record.cache {
            cache.generation = opened.generation;
            let writes_back = cache.settings.mode.writes_back() && !opened.evacuates;
            // A power cut may take the news that lines were clean.
            cache.maybe_dirty |= writes_back || opened.dirty_lines > 0;
            cache.evacuating = opened.evacuates;
        }
        if let Err(error) = self.registry.put(record.clone()) {
            let closed = apart(self).close(&record.name);
            self.note(&record.name, closed);
            return Err(error);
        }
        if opened.evacuates {
            self.log(&record.name, "its SSD takes no writes: its dirty lines go to the HDD now");
            return self.engine.begin_evacuation(&record.name);
        }
        Ok(())
    }

    /// Serves from the origin alone. From then on the SSD is stale, and that is recorded before the
    /// first client is served.
    fn open_without(
        &mut self,
        record: &VolumeRecord,
        cache: &CacheRecord,
        error: &ControlError,
        live: &mut Live,
    ) -> ControlResult<()> {
        let reason = format!(
            "its clean cache was given up: {error}; `voltier detach {}`, then attach an SSD",
            record.name
        );
        self.log(&record.name, &reason);
        let mut without = record.clone();
        without.cache = Some(CacheRecord { failed: Some(reason.clone()), ..cache.clone() });
        apart(self).open(&without, CacheStart::Load)?;
        if let Err(error) = self.registry.put(without) {
            let closed = apart(self).close(&record.name);
            self.note(&record.name, closed);
            return Err(error);
        }
        live.error = reason;
        Ok(())
    }

    /// Whether this daemon has let a device go that still has its requests.
    pub(super) fn is_letting_go(&self, device: &DeviceSpec) -> bool {
        device.path().is_some_and(|path| self.engine.is_letting_go(path))
    }

    /// Looks at a device that is ours already: nobody else may use it, and it may not have shrunk.
    pub(super) fn look_at(
        &mut self,
        device: &DeviceSpec,
        size_bytes_min: u64,
        side: &str,
    ) -> ControlResult<()> {
        if let Some(name) = device.array() {
            let size_bytes = self.size_of_array(name)?;
            return large_enough(device, size_bytes, size_bytes_min, side);
        }
        match self.look(device) {
            Ok(size_bytes) => large_enough(device, size_bytes, size_bytes_min, side),
            Err((_, why)) => Err(ControlError::failed(why)),
        }
    }

    /// The size in bytes of a device that is ours already, or why the device cannot be used now.
    pub(super) fn look(&mut self, device: &DeviceSpec) -> Result<u64, (Hindrance, String)> {
        let mut looked = self.look_once(device);
        while matches!(looked, Err((Hindrance::Busy, _))) && self.is_patient() {
            looked = self.look_once(device);
        }
        looked
    }

    /// [`Self::look`] without patience.
    pub(super) fn look_once(&mut self, device: &DeviceSpec) -> Result<u64, (Hindrance, String)> {
        let Some(path) = device.path() else { return Ok(u64::MAX) };
        let examined = apart(self).examine(path, Role::Origin).map_err(|error| {
            let is_there = self.id_of(path).is_some();
            (if is_there { Hindrance::Silent } else { Hindrance::Absent }, error.message)
        })?;
        // The engine judges the content of the device: it knows its own labels.
        let judged = safety::judge(path, &examined, true);
        judged.map_err(|error| (Hindrance::Busy, error.message))?;
        Ok(examined.size_bytes)
    }

    /// Records SSDs that the data path gave up, so that they are not trusted after a restart. Whether all of
    /// them are on record: clients wait for that, so a record that failed is tried again.
    ///
    /// An SSD that is gone with dirty lines is not recorded: an errand has its volume wait for the SSD.
    pub(super) fn notice_lost_ssds(&mut self) -> bool {
        let (all_recorded, without) = self.record_lost_ssds();
        self.pulled.extend(without);
        all_recorded
    }

    /// Records lost SSDs. Whether all of them are on record; volumes whose SSD is gone with dirty lines, of
    /// which nothing is recorded.
    pub(super) fn record_lost_ssds(&mut self) -> (bool, Vec<(VolumeName, u64)>) {
        let (mut all_recorded, mut without) = (true, Vec::new());
        for record in self.registry.volumes().to_vec() {
            let name = &record.name;
            let Some(cache) = &record.cache else { continue };
            let is_on_record = cache.failed.is_some();
            if (is_on_record && !cache.maybe_dirty) || !self.is_open(name) {
                continue;
            }
            let health = self.engine.health(name);
            if !health.ssd_failed {
                continue;
            }
            // Lines that were lost at first may be on the origin by now.
            let Some(dirty_lines) = health.dirty_lines else {
                // The core is late, or the volume has just failed. Clients wait for the record.
                all_recorded = false;
                continue;
            };
            if is_on_record && dirty_lines > 0 {
                continue;
            }
            if health.ssd_is_gone && dirty_lines > 0 {
                without.push((name.clone(), dirty_lines));
                continue;
            }
            let mut status = super::show::recorded(&record);
            self.engine.fill_status(name, &mut status);
            let mut record = record.clone();
            if let Some(cache) = &mut record.cache {
                cache.dirty_lines = dirty_lines;
                cache.lost_total = status.lost_ranges;
                cache.lost = status.lost;
                let mut reason = match status.ssd.silent_seconds {
                    0 => format!("its SSD {} failed while it served", cache.device),
                    seconds => {
                        format!(
                            "its SSD {} did not answer for {seconds} s, and is given up",
                            cache.device
                        )
                    }
                };
                if dirty_lines == 0 {
                    let lost =
                        if is_on_record { "nothing is lost any more" } else { "nothing is lost" };
                    reason += &format!("; {lost}: `detach` it, then attach another SSD");
                }
                cache.maybe_dirty = dirty_lines > 0;
                cache.evacuating = false;
                cache.failed = Some(reason.clone());
                let recorded = self.registry.put(record.clone());
                if let Err(error) = recorded {
                    all_recorded = false;
                    let is_known =
                        self.live.get(&record.name).is_some_and(|it| it.error == error.message);
                    self.note_unless(is_known, &record.name, Err(error));
                    continue;
                }
                self.note(&record.name, Err(ControlError::failed(reason)));
                self.engine.failure_is_recorded(&record.name);
            }
        }
        (all_recorded, without)
    }
}

fn large_enough(
    device: &DeviceSpec,
    size_bytes: u64,
    size_bytes_min: u64,
    side: &str,
) -> ControlResult<()> {
    if size_bytes >= size_bytes_min {
        return Ok(());
    }
    Err(ControlError::failed(format!(
        "its {side} {device} has {size_bytes} bytes and had {size_bytes_min} when it was created; \
         give it its size back, then `voltier start` it"
    )))
}

/// A missing SSD that may have had dirty lines: what is at stake, and the two ways on.
fn may_be_missed(record: &VolumeRecord, error: ControlError) -> ControlError {
    match &record.cache {
        Some(cache) if cache.maybe_dirty => ControlError::failed(format!(
            "{}; this SSD may hold {}: bring it back, and the volume is served, or \
             `voltier detach {} --no-flush` to give them up",
            error.message.split("; ").next().unwrap_or_default(),
            cache.newest_data(),
            record.name
        )),
        _ => error,
    }
}
