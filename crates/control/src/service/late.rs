//! Devices that come late: what waits for them is tried when they are there, or when the hold-off is over;
//! what failed for want of them is tried again; a member that was missing returns to its array.

use std::time::{Duration, Instant};

use super::Service;
use super::absence::{Absence, Missing};
use super::live::{Live, LiveArray, now};
use crate::engine::Engine;
use crate::error::ControlResult;
use crate::name::{ArrayName, VolumeName};
use crate::protocol::Response;
use crate::records::{RegisteredArray, VolumeRecord};
use crate::spec::DeviceSpec;

/// How long a start waits for devices that are not there, in seconds, unless the daemon is told otherwise.
pub const DEVICE_WAIT_S: u16 = 30;
/// How often missing devices are looked for while something waits for them.
const LOOK_STEP: Duration = Duration::from_secs(1);
/// How often they are looked for when nothing waits any more.
const LATE_LOOK_STEP: Duration = Duration::from_secs(5);

/// The end of an attempt to put a member back.
enum Comeback {
    /// The member is in its place again.
    Done(u32),
    /// The device is no member of the array, or another one has its place.
    Stranger,
    /// The device is a member, and the array does not take it back as it is.
    Refused(u32),
}

impl<E: Engine> Service<E> {
    /// Looks for missing devices, and tries what waits for them. Returns how soon to look again, if there is
    /// anything to look for.
    pub fn look_for_devices(&mut self, now: Instant) -> Option<Duration> {
        for record in self.registry.arrays().to_vec() {
            self.look_for_members(record, now);
        }
        for record in self.registry.volumes().to_vec() {
            let Some(live) = self.live.get(&record.name).filter(|live| !live.is_open) else {
                continue;
            };
            let absence = live.absence.clone();
            if let Some(since) = self.is_due(&absence, now) {
                self.try_volume(&record, Some(since), now);
            }
        }
        let arrays = self.live_arrays.values().map(|live| &live.absence);
        let mut absences = arrays.chain(self.live.values().map(|live| &live.absence));
        if absences.clone().any(Absence::is_waiting) {
            return Some(LOOK_STEP);
        }
        let is_late = |it: &Absence| it.since.is_some() || !it.missing.is_empty();
        absences.any(is_late).then_some(LATE_LOOK_STEP)
    }

    /// The beginning of the hold-off with which something that is not open is tried now, if it is. A device
    /// that comes after the hold-off begins a new one: others may be behind it.
    fn is_due(&mut self, absence: &Absence, now: Instant) -> Option<Instant> {
        let has_come = absence.missing.iter().any(|missing| self.has_come(missing));
        let is_over = absence.until.is_none_or(|until| now >= until);
        match absence.since {
            Some(since) => (has_come || is_over).then_some(since),
            None => has_come.then_some(now),
        }
    }

    fn look_for_members(&mut self, record: RegisteredArray, now: Instant) {
        let name = record.name.clone();
        let Some(live) = self.live_arrays.get(&name) else { return };
        let absence = live.absence.clone();
        if live.size_bytes.is_some() {
            for missing in absence.missing {
                if !record.members.contains(&Some(missing.device.clone())) {
                    self.forget_missing(&name, &missing.device);
                } else if self.has_come(&missing) {
                    self.member_has_come(&name, &missing);
                }
            }
        } else if let Some(since) = self.is_due(&absence, now) {
            self.try_array(record, Some(since), now);
            if self.size_of_array(&name).is_ok() {
                self.serve_again(&name, now);
            }
        }
    }

    /// Assembles an array, unless its hold-off lasts and a device is missing. Without a hold-off it is
    /// assembled at once, with what is there.
    pub(super) fn try_array(
        &mut self,
        record: RegisteredArray,
        since: Option<Instant>,
        now: Instant,
    ) {
        let (name, wait) = (record.name.clone(), self.device_wait);
        let is_held = since.is_some_and(|_| !wait.is_zero());
        let survey = self.survey(&record, is_held);
        let until = since.map(|since| survey.until(since, wait)).filter(|until| now < *until);
        if until.is_some() && !survey.missing.is_empty() {
            let absence = Absence { missing: survey.missing, since, until };
            let error = absence.text("voltier array", name.as_str());
            let before = self.live_arrays.get(&name).map(|live| &live.absence);
            for missing in absence.news_since(before) {
                self.engine.log(&format!("array {name}: waits: {missing}"));
            }
            let live = LiveArray { error, absence, ..LiveArray::default() };
            self.live_arrays.insert(name, live);
            return;
        }
        self.assemble_recorded(record, survey);
        if let Some(live) = self.live_arrays.get_mut(&name)
            && live.size_bytes.is_none()
        {
            live.absence.since = since.filter(|since| now < *since + wait);
        }
    }

    /// Opens a volume, unless its hold-off lasts and a drive is missing. Without a hold-off it is opened at
    /// once, with what is there.
    pub(super) fn try_volume(
        &mut self,
        record: &VolumeRecord,
        since: Option<Instant>,
        now: Instant,
    ) {
        let (name, wait) = (record.name.clone(), self.device_wait);
        let since = since.filter(|_| !wait.is_zero());
        if let Some(begun) = since {
            let missing = self.missing_drives(record);
            let arrays = missing.iter().filter_map(|it| self.live_arrays.get(it.device.array()?));
            let ends = arrays.filter_map(|live| live.absence.until).chain([begun + wait]);
            let until = ends.max().filter(|until| now < *until && !missing.is_empty());
            if until.is_some() {
                let absence = Absence { missing, since, until };
                let before = self.live.get(&name).map(|live| &live.absence);
                for missing in absence.news_since(before) {
                    self.log(&name, &format!("waits: {missing}"));
                }
                let error = absence.text("voltier", name.as_str());
                self.live.insert(name, Live { error, absence, ..Live::new() });
                return;
            }
        }
        self.open_up(record);
        if self.live.get(&name).is_some_and(|live| !live.is_open) {
            let missing = self.missing_drives(record);
            let since = since.filter(|since| now < *since + wait);
            if let Some(live) = self.live.get_mut(&name) {
                live.absence = Absence { missing, since, until: None };
            }
        }
    }

    /// Brings one volume up; one that waits goes on waiting.
    pub(super) fn bring_up(&mut self, record: &VolumeRecord) {
        let since = self.live.get(&record.name).and_then(|live| live.absence.since);
        self.try_volume(record, since, now());
    }

    /// Brings up the volumes of an array that is open again.
    pub(super) fn serve_again(&mut self, array: &ArrayName, now: Instant) {
        for volume in self.registry.volumes().to_vec() {
            let stands = volume.devices().any(|it| it.array() == Some(array));
            if stands && !self.is_open(&volume.name) {
                let live = self.live.get(&volume.name);
                let since = live.and_then(|live| live.absence.since).unwrap_or(now);
                self.try_volume(&volume, Some(since), now);
            }
        }
    }

    /// Opens a volume now, with what is there, and the arrays that it stands on.
    pub(super) fn start_volume(&mut self, name: &VolumeName) -> ControlResult<Response> {
        let record = self.record(name)?;
        for array in record.devices().filter_map(|device| device.array()) {
            // The volume's own error tells of one that is not open.
            let _ = self.start_array(array);
        }
        if !self.is_open(name) {
            self.try_volume(&record, None, now());
        }
        self.open_record(name)?;
        Ok(self.volume(name))
    }

    /// Assembles an array now, with what is there.
    pub(super) fn start_array(&mut self, name: &ArrayName) -> ControlResult<Response> {
        let record = self.array_record(name)?;
        if self.size_of_array(name).is_err() {
            self.try_array(record, None, now());
            self.size_of_array(name)?;
            self.serve_again(name, now());
        }
        Ok(self.array_response(name, Vec::new()))
    }

    /// Puts a member back that was missing when its array was assembled.
    fn member_has_come(&mut self, name: &ArrayName, missing: &Missing) {
        let device = &missing.device;
        let comeback = self.take_member_back(name, missing);
        let line = match &comeback {
            Ok(Comeback::Stranger) => None,
            Ok(Comeback::Done(place)) => {
                Some(format!("{device} is back as member {place}; what changed since is computed"))
            }
            Ok(Comeback::Refused(place)) => Some(format!(
                "{device} is back, and is not taken as it is: \
                 `voltier array replace {name} {place} {device}` fills it anew"
            )),
            Err(error) => Some(format!("{device} is back, and not in service: {error}")),
        };
        let seen = device.path().and_then(|path| self.id_of(path));
        let Some(live) = self.live_arrays.get_mut(name) else { return };
        let is_news = line.as_ref().is_some_and(|line| !live.left_out.contains(line));
        match &comeback {
            Ok(Comeback::Stranger) => live.absence.saw(device, seen),
            Ok(_) => live.absence.forget(device),
            // Somebody may have it open for a moment.
            Err(_) => {}
        }
        if let Some(line) = line.filter(|_| is_news) {
            let of_device = format!("{device} ");
            live.left_out.retain(|it| *it != missing.why && !it.starts_with(&of_device));
            if !matches!(comeback, Ok(Comeback::Done(_))) {
                live.left_out.push(line.clone());
            }
            self.engine.log(&format!("array {name}: {line}"));
        }
        self.notice_array_events();
    }

    fn take_member_back(&mut self, name: &ArrayName, missing: &Missing) -> ControlResult<Comeback> {
        let (record, device) = (self.array_record(name)?, &missing.device);
        self.look_at(device, 0, "member")?;
        let place = match self.engine.label_of(device)? {
            Some(label) if label.array == record.uuid => label.place,
            _ => return Ok(Comeback::Stranger),
        };
        self.is_nobody_elses(device, record.uuid)?;
        // Where it was, or where another member that is missing was: not the device of one in service.
        let known = record.members.get(place as usize).and_then(Option::as_ref);
        let is_free = |known| known == device || self.is_missing(name, known);
        if !known.is_none_or(is_free) {
            return Ok(Comeback::Stranger);
        }
        let is_back = self.engine.take_back(name, place, device)?;
        Ok(if is_back { Comeback::Done(place) } else { Comeback::Refused(place) })
    }

    /// A spare or another device has the place of a member that is missing.
    fn forget_missing(&mut self, name: &ArrayName, device: &DeviceSpec) {
        if let Some(live) = self.live_arrays.get_mut(name) {
            live.absence.forget(device);
        }
    }

    fn is_missing(&self, name: &ArrayName, device: &DeviceSpec) -> bool {
        let live = self.live_arrays.get(name);
        live.is_some_and(|live| live.absence.missing.iter().any(|it| it.device == *device))
    }
}
