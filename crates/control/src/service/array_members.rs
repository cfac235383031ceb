//! Members that come and go, spares, and the background tasks of arrays.

use voltier_array::{Integrity, Level};

use super::admit::Beside;
use super::apart::apart;
use super::turn::Turn;
use super::wanting::Wanting;
use super::{spare_labels, survey};
use crate::array_settings::MERGE_KEYS;
use crate::engine::{ArrayDevices, ArrayNews, Engine, Replaced};
use crate::error::{ControlError, ControlResult};
use crate::name::ArrayName;
use crate::protocol::{Growth, MemberName, Response};
use crate::records::{Identity, RegisteredArray};
use crate::safety::{self, Role};
use crate::spec::DeviceSpec;

impl<E: Engine> Turn<E> {
    pub(super) fn replace_member(
        &mut self,
        name: &ArrayName,
        old: &MemberName,
        new: DeviceSpec,
        force: bool,
    ) -> ControlResult<Response> {
        let before = self.array_record(name)?;
        self.size_of_array(name)?;
        let (place, old) = self.place_of(&before, old)?;
        self.admit_to(&before, &new, force)?;
        // Before it is one of the array's: so it is looked at after a crash. The array may have lost a member
        // while the device was looked at.
        let mut record = self.array_record(name)?;
        record.incoming.push(new.clone());
        self.registry.put_array(record)?;
        let bring = |turn: &mut Self| apart(turn).replace_member(name, place, &new);
        let replaced = match self.bring(name, std::slice::from_ref(&new), bring) {
            Ok(replaced) => replaced,
            Err(error) => {
                self.forget_incoming(name, std::slice::from_ref(&new))?;
                return Err(error);
            }
        };
        self.record_array_events();
        let how = match replaced {
            Replaced::Rebuild => {
                format!("{new} takes the place of member {place} ({old}), which is computed")
            }
            Replaced::Return => {
                format!("{new} is member {place} again; what changed since is computed")
            }
            Replaced::Copy => {
                format!("{new} is being filled from {old}, which serves until it is done")
            }
        };
        self.engine.log(&format!("array {name}: {how}"));
        Ok(self.array_response(name, vec![how]))
    }

    /// Brings devices that are on record already to an array. Until then the array does not know them, and
    /// they stay on record.
    pub(super) fn bring<T>(
        &mut self,
        name: &ArrayName,
        devices: &[DeviceSpec],
        bring: impl FnOnce(&mut Self) -> T,
    ) -> T {
        if let Some(live) = self.live_arrays.get_mut(name) {
            live.arriving.extend_from_slice(devices);
        }
        let brought = bring(self);
        if let Some(live) = self.live_arrays.get_mut(name) {
            live.arriving.retain(|device| !devices.contains(device));
        }
        brought
    }

    /// Devices that do not come to an array after all.
    fn forget_incoming(&mut self, name: &ArrayName, devices: &[DeviceSpec]) -> ControlResult<()> {
        let mut record = self.array_record(name)?;
        record.incoming.retain(|device| !devices.contains(device));
        self.registry.put_array(record)
    }

    /// Adds a parity row, a copy, or a member for capacity.
    pub(super) fn grow_array(
        &mut self,
        name: &ArrayName,
        by: Growth,
        devices: Vec<DeviceSpec>,
        force: bool,
    ) -> ControlResult<Response> {
        let before = self.array_record(name)?;
        self.size_of_array(name)?;
        check_growth(&before, by, devices.len())?;
        if by == Growth::Capacity {
            self.check_size_may_change(name)?;
        }
        for (at, device) in devices.iter().enumerate() {
            if devices[..at].iter().any(|other| self.is_same(other, device)) {
                return Err(ControlError::failed(format!("{device} is given twice; name it once")));
            }
            self.admit_new(device, force)?;
        }
        // Before they are the array's: so they are looked at after a crash.
        let mut record = self.array_record(name)?;
        record.incoming.extend(devices.iter().cloned());
        self.registry.put_array(record)?;
        let bring = |turn: &mut Self| apart(turn).grow_array(name, by, &devices);
        let grown = self.bring(name, &devices, bring);
        if grown.is_err() {
            self.forget_incoming(name, &devices)?;
        }
        self.record_array_events();
        grown?;
        let level = self.array_record(name)?.level;
        let how = match by {
            Growth::Capacity => format!(
                "{name} has one member more, and its data move; it has its old size until all of them \
                 have, then the new one; a volume on it has that when the daemon was started again"
            ),
            Growth::Parity | Growth::Member => {
                format!("{name} is of level {level} now; the new member is being filled")
            }
        };
        self.engine.log(&how);
        Ok(self.array_response(name, vec![how]))
    }

    /// Refuses to change the size of an array that a cache was made for.
    fn check_size_may_change(&self, name: &ArrayName) -> ControlResult<()> {
        let is_ours = |device: &DeviceSpec| device.array() == Some(name);
        let cached = self.registry.volumes().iter().find(|volume| {
            let cache = volume.cache.as_ref();
            cache.is_some_and(|cache| is_ours(&volume.origin) || is_ours(&cache.device))
        });
        match cached {
            Some(volume) => Err(ControlError::failed(format!(
                "the cache of volume {} was made for the size of {name}; `voltier detach {}` first, \
                 and attach again when the array has its new size",
                volume.name, volume.name
            ))),
            None => Ok(()),
        }
    }

    /// Refuses an array for a cache, before it or below it, while its size is about to change.
    pub(super) fn check_size_stays(&mut self, device: &DeviceSpec) -> ControlResult<()> {
        let record = device.array().and_then(|name| self.registry.find_array(name)).cloned();
        match record {
            Some(record) if self.array_status(&record).reshape.is_some() => {
                Err(ControlError::failed(format!(
                    "{device} is being given a member for capacity, and a cache is made for one size; \
                     wait until `voltier array show {}` says that it is through",
                    record.name
                )))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn add_spare(
        &mut self,
        name: &ArrayName,
        spare: DeviceSpec,
        force: bool,
    ) -> ControlResult<Response> {
        let record = self.array_record(name)?;
        self.size_of_array(name)?;
        let is_usable = self.look(&spare).is_ok();
        if is_usable && spare_labels::is_spare_of(self, &spare, record.uuid) {
            // A spare of this array that the record does not have: nothing of anybody's is on it.
            self.admit(&spare, Role::Spare, force, Beside::None)?;
        } else {
            self.admit_to(&record, &spare, force)?;
        }
        self.take_spare(name, spare, force)?;
        Ok(self.array_response(name, Vec::new()))
    }

    /// Labels and records a spare that was admitted, and gives it to the array; `wipe` clears what it held.
    pub(super) fn take_spare(
        &mut self,
        name: &ArrayName,
        spare: DeviceSpec,
        wipe: bool,
    ) -> ControlResult<()> {
        apart(self).check_spare(name, &spare)?;
        let before = self.array_record(name)?;
        // A lost member that comes back as a spare keeps what it knows.
        if !self.is_labelled(&spare, before.uuid) {
            spare_labels::write_label(self, &spare, &spare_labels::of_array(&before), wipe)?;
        }
        let mut record = self.array_record(name)?;
        record.spares.push(spare.clone());
        if let Err(error) = self.registry.put_array(record) {
            // Else the label would name an array that knows nothing of the spare.
            spare_labels::erase_spare(self, &spare, Some(before.uuid));
            return Err(error);
        }
        let bring = |turn: &mut Self| apart(turn).add_spare(name, &spare);
        if let Err(error) = self.bring(name, std::slice::from_ref(&spare), bring) {
            spare_labels::erase_spare(self, &spare, Some(before.uuid));
            let mut record = self.array_record(name)?;
            record.spares.retain(|other| *other != spare);
            self.registry.put_array(record)?;
            return Err(error);
        }
        self.record_array_events();
        Ok(())
    }

    /// Gives an array its spare again after a start, or when the spare has come, unless it is another device
    /// by now. A spare that cannot be looked at is awaited.
    pub(super) fn spare_again(&mut self, name: &ArrayName, spare: &DeviceSpec) {
        let again =
            self.still_a_spare(name, spare).and_then(|()| apart(self).add_spare(name, spare));
        let hindered = again.is_err().then(|| survey::hindered(self, spare, "spare")).flatten();
        let Some(live) = self.live_arrays.get_mut(name) else { return };
        let was_left_out = |it: &String| it.starts_with(&format!("the spare {spare} "));
        let before = live.left_out.extract_if(.., |it| was_left_out(it)).next();
        live.absence.forget(spare);
        live.absence.missing.extend(hindered);
        let line = match again {
            Ok(()) if before.is_some() => Some(format!("the spare {spare} is there again")),
            Ok(()) => None,
            Err(error) => {
                let line = format!("the spare {spare} is left out: {error}");
                live.left_out.push(line.clone());
                Some(line)
            }
        };
        if let Some(line) = line.filter(|line| before.as_ref() != Some(line)) {
            self.engine.log(&format!("array {name}: {line}"));
        }
    }

    /// Spares of an open array that the array does not have, and that come back by themselves.
    fn awaited_spares(&self, name: &ArrayName) -> Vec<DeviceSpec> {
        let missing = self.live_arrays.get(name).map(|live| &live.absence.missing);
        let spares = missing.into_iter().flatten().filter(|it| it.is_spare());
        spares.map(|it| it.device.clone()).collect()
    }

    /// [`Self::is_labelled`] of a device that may not answer: a core would wait for it.
    pub(super) fn has_label(&mut self, device: &DeviceSpec, array: Identity) -> bool {
        self.look(device).is_ok() && self.is_labelled(device, array)
    }

    /// Whether a device says that it is a member of an array.
    pub(super) fn is_labelled(&mut self, device: &DeviceSpec, array: Identity) -> bool {
        let label = device.path().map(|_| apart(self).label_of(device));
        matches!(label, Some(Ok(Some(label))) if label.array == array)
    }

    fn still_a_spare(&mut self, name: &ArrayName, spare: &DeviceSpec) -> ControlResult<()> {
        if spare.path().is_none() {
            return Err(ControlError::failed("it ended with the daemon before"));
        }
        let owner = self.array_record(name)?.uuid;
        let step = format!("reading {spare}");
        self.wait_for(step, |engine, machine| {
            spare_labels::check(engine, machine, spare, Some(owner))
        })
    }

    /// Checks a device that is to come to an array and was never there.
    fn admit_new(&mut self, device: &DeviceSpec, force: bool) -> ControlResult<()> {
        if device.array().is_some() {
            return Err(ControlError::usage(format!(
                "{device} cannot be a member: arrays do not stand on arrays"
            )));
        }
        self.admit(device, Role::Cache, force, Beside::None).map(drop)
    }

    /// Checks a device that is to come to an array. A member that was lost may come back.
    fn admit_to(
        &mut self,
        record: &RegisteredArray,
        device: &DeviceSpec,
        force: bool,
    ) -> ControlResult<()> {
        let known = record.members.iter().map(|known| known.as_ref());
        let is_it = |known: &DeviceSpec| self.is_same(known, device);
        let place = known.map(|known| known.is_some_and(is_it)).position(|is_it| is_it);
        let Some(place) = place else {
            return self.admit_new(device, force);
        };
        let status = self.array_status(record);
        let name = &record.name;
        match status.members.get(place).map(|member| member.state.as_str()) {
            Some("online") => {
                return Err(ControlError::failed(format!(
                    "{device} is member {place} of {name}, and in service; name another device, or \
                     take it out with `voltier array fail {name} {place}` first"
                )));
            }
            Some("rebuilding") => {
                return Err(ControlError::failed(format!(
                    "{device} is member {place} of {name}, and being rebuilt; \
                     `voltier array rebuild {name}` follows that"
                )));
            }
            _ => {}
        }
        // Another device may be under the path of a member that was lost.
        self.is_nobody_elses(device, record.uuid)?;
        self.look_at(device, 0, "member")?;
        match (apart(self).label_of(device), device.path()) {
            (Ok(Some(label)), _) if label.array == record.uuid => Ok(()),
            (_, None) => Ok(()),
            (_, Some(path)) => {
                let examined = apart(self).examine(path, Role::Cache)?;
                safety::judge(path, &examined, force)
            }
        }
    }

    pub(super) fn set_journal(
        &mut self,
        name: &ArrayName,
        journal: Option<DeviceSpec>,
        force: bool,
    ) -> ControlResult<Response> {
        let before = self.array_record(name)?;
        self.size_of_array(name)?;
        if let Some(device) = &journal {
            self.admit_journal(&before, device, force)?;
        }
        // Before it is the array's: so it is looked at after a crash.
        let mut record = self.array_record(name)?;
        record.incoming.extend(journal.clone());
        self.registry.put_array(record)?;
        let bring = |turn: &mut Self| apart(turn).set_journal(name, journal.as_ref());
        let moved = self.bring(name, journal.as_slice(), bring);
        let mut after = self.array_record(name)?;
        after.incoming.retain(|device| Some(device) != journal.as_ref());
        if moved.is_ok() {
            after.journal.clone_from(&journal);
        }
        self.registry.put_array(after)?;
        moved?;
        self.record_array_events();
        let place = journal.map_or_else(|| "its members".to_owned(), |device| device.to_string());
        self.engine.log(&format!("array {name}: its journal is on {place} on request"));
        Ok(self.array_response(name, Vec::new()))
    }

    /// Checks a device that is to have the journal. One that was given up may come back.
    fn admit_journal(
        &mut self,
        record: &RegisteredArray,
        device: &DeviceSpec,
        force: bool,
    ) -> ControlResult<()> {
        if device.array().is_some() {
            return Err(ControlError::usage(format!(
                "{device} cannot have a journal: arrays do not stand on arrays"
            )));
        }
        let name = &record.name;
        let is_own = record.journal.as_ref().is_some_and(|known| self.is_same(known, device));
        if !is_own {
            return self.admit(device, Role::Cache, force, Beside::None).map(drop);
        }
        let status = self.array_status(record);
        if status.journal_device.is_some_and(|journal| journal.state == "online") {
            return Err(ControlError::failed(format!(
                "the journal of {name} is on {device} already; name another device, or `members`"
            )));
        }
        let Some(path) = device.path() else { return Ok(()) };
        self.is_nobody_elses(device, record.uuid)?;
        let examined = apart(self).examine(path, Role::Cache)?;
        let label = apart(self).journal_label_of(device);
        let is_ours = matches!(label, Ok(Some(label)) if label.array == record.uuid);
        safety::judge(path, &examined, force || is_ours)
    }

    /// Starts a background task.
    pub(super) fn start_task(
        &mut self,
        name: &ArrayName,
        start: impl FnOnce(&E, &ArrayName) -> ControlResult<()>,
    ) -> ControlResult<Response> {
        self.array_record(name)?;
        self.size_of_array(name)?;
        start(&self.engine, name)?;
        Ok(self.array_response(name, Vec::new()))
    }

    pub(super) fn set_array(
        &mut self,
        name: &ArrayName,
        changes: &[(String, String)],
    ) -> ControlResult<Response> {
        let mut record = self.array_record(name)?;
        for (key, value) in changes {
            record.settings.apply(key, value)?;
            if MERGE_KEYS.contains(&key.as_str()) && !record.level.0.has_parity() {
                return Err(ControlError::failed(format!(
                    "{name} has level {}: only levels with parity have small writes to merge",
                    record.level.word()
                )));
            }
        }
        let settings = record.settings.clone();
        if let Some(pool) = &settings.spare_pool {
            self.pool_record(pool)?;
        }
        self.registry.put_array(record)?;
        if self.size_of_array(name).is_ok() {
            self.engine.configure_array(name, &settings);
        }
        self.unfit_spares.clear();
        self.record_array_events();
        Ok(self.array_response(name, Vec::new()))
    }

    /// The place and the device of a member that is meant.
    pub(super) fn place_of(
        &self,
        record: &RegisteredArray,
        meant: &MemberName,
    ) -> ControlResult<(u32, String)> {
        let shown = |device: &Option<DeviceSpec>| {
            device.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string)
        };
        let is_same = |known: &Option<DeviceSpec>, meant: &DeviceSpec| {
            known.as_ref().is_some_and(|known| known == meant || self.is_same(known, meant))
        };
        let place = match meant {
            MemberName::Index(index) => Some(*index as usize),
            MemberName::Device(meant) => record.members.iter().position(|it| is_same(it, meant)),
        };
        if let Some(place) = place.filter(|place| *place < record.members.len()) {
            return Ok((place as u32, shown(&record.members[place])));
        }
        let members = record.members.iter().enumerate();
        let members = members.map(|(place, device)| format!("{place} {}", shown(device)));
        let meant = match meant {
            MemberName::Device(device) => device.to_string(),
            MemberName::Index(index) => index.to_string(),
        };
        Err(ControlError::failed(format!(
            "{meant} is no member of {}; its members: {}",
            record.name,
            members.collect::<Vec<_>>().join(", ")
        )))
    }

    /// Records what changed in arrays by itself. A member that was lost is old from then on. This
    /// instance must know that when the member is the only one that comes back; spares take places. Then
    /// gives spares of pools to arrays that want some.
    pub(super) fn notice_array_events(&mut self) {
        self.record_array_events();
        // A spare that changes hands needs a record.
        if self.registry.trouble().is_none() || self.registry.check_room().is_ok() {
            self.serve_from_pools(self.wanting.clone());
        }
    }

    /// The first half of that: who wants spares, the most exposed first. Whether all arrays have said what
    /// there is to record.
    pub(super) fn record_array_events(&mut self) -> bool {
        let (mut have_all_said, mut wanting) = (true, Vec::new());
        for record in self.registry.arrays().to_vec() {
            let name = record.name.clone();
            let is_moving = self.live_arrays.get(&name).is_none_or(|live| live.is_moving);
            if is_moving || self.size_of_array(&name).is_err() {
                // The command that opens the array puts it on record.
                continue;
            }
            let Some(now) = self.engine.array_devices(&name) else {
                have_all_said = false;
                continue;
            };
            let ArrayDevices {
                level,
                size_bytes,
                events,
                members,
                spares,
                incoming,
                spares_wanted,
                may_lose,
                news,
            } = now;
            let arriving = self.live_arrays.get(&name).map(|live| live.arriving.clone());
            let arriving = arriving.unwrap_or_default();
            let mut awaited = self.awaited_spares(&name);
            awaited.extend(arriving.iter().cloned());
            if let Some(live) = self.live_arrays.get_mut(&name) {
                live.size_bytes = live.size_bytes.map(|_| size_bytes);
            }
            for ArrayNews { line, is_warning } in news {
                let line = format!("array {name}: {line}");
                if is_warning { self.engine.warn(&line) } else { self.engine.log(&line) }
            }
            let mut next =
                RegisteredArray { level, size_bytes, events, spares, incoming, ..record.clone() };
            next.record_places(&members);
            let is_kept = |it: &&DeviceSpec| awaited.contains(*it) && !next.spares.contains(*it);
            let kept: Vec<DeviceSpec> = record.spares.iter().filter(is_kept).cloned().collect();
            next.spares.extend(kept);
            let is_kept = |it: &&DeviceSpec| arriving.contains(*it) && !next.incoming.contains(*it);
            let kept: Vec<DeviceSpec> = record.incoming.iter().filter(is_kept).cloned().collect();
            next.incoming.extend(kept);
            if let Some(pool) = record.settings.spare_pool.clone().filter(|_| spares_wanted > 0) {
                wanting.push(Wanting { may_lose, name: name.clone(), pool, spares_wanted });
            }
            if next != record {
                self.unfit_spares.retain(|(array, _), _| *array != name);
                let before = self.registry.trouble().cloned();
                let recorded = self.registry.put_array(next);
                // Tried again every second: told once.
                if recorded.as_ref().err() != before.as_ref() {
                    self.note_array(&name, recorded);
                }
            }
        }
        wanting.sort();
        self.wanting = wanting;
        have_all_said
    }
}

/// Refuses what an array of this level cannot be given more of.
fn check_growth(record: &RegisteredArray, by: Growth, devices: usize) -> ControlResult<()> {
    let (name, level) = (&record.name, record.level);
    let is_mirror = level.0 == Level::Raid1;
    let has_room =
        matches!(level.0, Level::Raid5 | Level::Raid6 | Level::Raid7_3 | Level::NPlusM { .. });
    match by {
        Growth::Parity if is_mirror => Err(ControlError::failed(format!(
            "{name} is of level 1: it has copies and no parity; \
             `voltier array grow {name} --member DEV` adds a copy"
        ))),
        Growth::Member if !is_mirror => Err(ControlError::failed(format!(
            "{name} is of level {level}: only level 1 has copies; \
             `voltier array grow {name} --capacity --member DEV` adds a member for capacity, \
             `--parity DEV` a parity"
        ))),
        Growth::Capacity if !has_room => Err(ControlError::failed(format!(
            "{name} is of level {level}: members for capacity come to levels 5, 6, 7.3 and N+M; \
             make a larger array beside it"
        ))),
        Growth::Capacity if record.integrity != Integrity::None => {
            Err(ControlError::failed(format!(
                "{name} keeps checksums (--integrity {}), and no members for capacity come to such \
                 an array; make a larger array beside it",
                record.integrity
            )))
        }
        Growth::Capacity if devices != 1 => Err(ControlError::failed(format!(
            "{devices} devices given: a member for capacity is one; give one, and the next one later"
        ))),
        Growth::Parity | Growth::Member | Growth::Capacity => Ok(()),
    }
}
