//! Devices of the registry that are not there: which are awaited, until when, and what is said of them.
//!
//! Buses are slow and enclosures are switched on late. So nothing is opened without a recorded device before
//! its hold-off is over: to record members as lost, use a spare or give a cache up is durable, and was not
//! necessary if the drives come eight seconds later. What has all its devices is opened at once.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::engine::CacheLabel;
use crate::records::{CacheRecord, Identity};
use crate::safety::{DeviceId, DriveIdentity};
use crate::service::state::live::now;
use crate::spec::DeviceSpec;
use crate::status::DeviceState;

/// The reason for which a recorded device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hindrance {
    /// The device is not there.
    Absent,
    /// Somebody else has the device.
    Busy,
    /// The device is there, and opening or reading it fails.
    Silent,
    /// The device takes no writes.
    Protected,
    /// The device is smaller than it was.
    Shrunk,
    /// The device is there, and does not hold what it is to hold: an older state of the cache, or none.
    Wrong,
}

impl Hindrance {
    /// The hindrance behind the name of a device.
    fn words(self) -> &'static str {
        match self {
            Self::Absent => "",
            Self::Busy => " (busy)",
            Self::Silent => " (does not answer)",
            Self::Protected => " (write-protected)",
            Self::Shrunk => " (smaller than it was)",
            Self::Wrong => " (does not hold the cache, or an older state of it)",
        }
    }
}

/// A recorded device that is not there, or cannot be used.
#[derive(Clone, Debug)]
pub(crate) struct Missing {
    pub(crate) device: DeviceSpec,
    /// The part of the device: `backing disk`, `SSD`, `member`, `pending member`, `journal`, `spare`.
    pub(crate) part: &'static str,
    pub(crate) identity: Option<DriveIdentity>,
    /// The storage under its path when it was looked for: another drive, or nothing.
    pub(crate) seen: Option<DeviceId>,
    pub(crate) hindrance: Hindrance,
    /// Why the device does not count as there.
    pub(crate) why: String,
    /// The cache that an SSD is to hold.
    pub(crate) cache: Option<AwaitedCache>,
}

/// The cache that a missing SSD is to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AwaitedCache {
    pub(crate) uuid: Identity,
    /// An SSD with an older state is not the one.
    pub(crate) generation_min: u64,
    /// Whether a drive with this cache had the path of the SSD when the SSD was looked for.
    pub(crate) was_there: bool,
}

impl AwaitedCache {
    pub(crate) fn of(cache: &CacheRecord) -> Self {
        Self { uuid: cache.uuid, generation_min: cache.generation, was_there: false }
    }

    pub(crate) fn is_held_by(&self, label: &CacheLabel) -> bool {
        label.uuid == self.uuid && label.generation >= self.generation_min
    }
}

impl Missing {
    pub(crate) fn is_member(&self) -> bool {
        self.part == "member"
    }

    pub(crate) fn is_spare(&self) -> bool {
        self.part == "spare"
    }
}

/// The recorded devices of a volume or array that are not there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Absence {
    pub(crate) missing: Vec<Missing>,
    /// Places of an array whose members the labels count on, and for which the record has no path.
    pub(crate) places: BTreeSet<u32>,
    /// The beginning of the hold-off. None of what does not wait.
    pub(crate) since: Option<Instant>,
    /// The end of the hold-off, while nothing is done because of it.
    pub(crate) until: Option<Instant>,
}

impl Absence {
    pub(crate) fn is_waiting(&self) -> bool {
        self.until.is_some()
    }

    /// Seconds that are left of a hold-off.
    pub(crate) fn seconds_left(&self) -> Option<u64> {
        let left = self.until?.saturating_duration_since(now());
        Some(left.as_secs() + u64::from(left.subsec_nanos() > 0))
    }

    fn of(&self, device: &DeviceSpec) -> Option<&Missing> {
        self.missing.iter().find(|missing| missing.device == *device)
    }

    pub(crate) fn lacks(&self, device: &DeviceSpec) -> bool {
        self.of(device).is_some()
    }

    /// Whether a device is missing.
    pub(crate) fn lacks_any(&self) -> bool {
        !self.missing.is_empty() || !self.places.is_empty()
    }

    pub(crate) fn awaited(&self) -> Vec<String> {
        let devices = self.missing.iter().map(|missing| missing.device.to_string());
        devices.chain(self.places.iter().map(|place| format!("member {place}"))).collect()
    }

    /// Awaits the members alone of an array that is open, by the devices on record before and now. A member
    /// whose path another one has now has none.
    pub(crate) fn keep_members(
        &mut self,
        before: &[Option<DeviceSpec>],
        now: &[Option<DeviceSpec>],
    ) {
        self.missing.retain(Missing::is_member);
        for (place, was) in (0_u32..).zip(before) {
            let is_without = now.get(place as usize).is_some_and(Option::is_none);
            let Some(was) = was.as_ref().filter(|_| is_without) else { continue };
            if self.lacks(was) {
                self.forget(was);
                self.places.insert(place);
            }
        }
    }

    /// Awaits members under paths that the record has for them now: pairs of places and paths.
    pub(crate) fn found_paths(&mut self, found: Vec<(u32, DeviceSpec)>) {
        for (place, device) in found {
            self.places.remove(&place);
            let (hindrance, why) = (Hindrance::Absent, format!("{device} was not there"));
            let missing = Missing {
                device,
                part: "member",
                identity: None,
                seen: None,
                hindrance,
                why,
                cache: None,
            };
            self.missing.push(missing);
        }
    }

    /// The state of a drive of a volume that is not open.
    pub(crate) fn state_of(&self, device: &DeviceSpec) -> DeviceState {
        match self.of(device) {
            None => DeviceState::Online,
            Some(missing) if missing.hindrance == Hindrance::Absent => DeviceState::Missing,
            Some(_) if self.is_waiting() => DeviceState::Missing,
            Some(_) => DeviceState::Failed,
        }
    }

    /// Awaits devices under the paths that they have now: pairs of where they were and are.
    pub(crate) fn follow(&mut self, moved: &[(&DeviceSpec, &DeviceSpec)]) {
        for missing in &mut self.missing {
            if let Some((_, is)) = moved.iter().find(|(was, _)| **was == missing.device) {
                missing.device = (*is).clone();
            }
        }
    }

    /// Awaits as spares what is on record as a spare and was awaited as a member.
    pub(crate) fn await_as_spares(&mut self, spares: &[DeviceSpec]) {
        for missing in &mut self.missing {
            if missing.is_member() && spares.contains(&missing.device) {
                (missing.part, missing.seen) = ("spare", None);
            }
        }
    }

    /// A device that is no longer awaited.
    pub(crate) fn forget(&mut self, device: &DeviceSpec) {
        self.missing.retain(|missing| missing.device != *device);
    }

    /// Another storage than the awaited one is under its path.
    pub(crate) fn saw(&mut self, device: &DeviceSpec, seen: Option<DeviceId>) {
        for missing in self.missing.iter_mut().filter(|missing| missing.device == *device) {
            missing.seen.clone_from(&seen);
            missing.hindrance = Hindrance::Absent;
        }
    }

    /// Why devices are awaited that were not before.
    pub(crate) fn news_since(&self, before: Option<&Self>) -> Vec<String> {
        let is_known = |it: &&Missing| {
            before.is_some_and(|before| before.missing.iter().any(|known| known.why == it.why))
        };
        let mut news: Vec<String> =
            self.missing.iter().filter(|it| !is_known(it)).map(|it| it.why.clone()).collect();
        let is_new = |place: &&u32| before.is_none_or(|before| !before.places.contains(place));
        let places = self.places.iter().filter(is_new);
        news.extend(places.map(|place| format!("member {place} is not there, under any path")));
        news
    }

    /// One clear line for commands that need the volume or array. `verb` is `voltier` or `voltier array`.
    pub(crate) fn text(&self, verb: &str, name: &str) -> String {
        let named = |it: &Missing| format!("its {} {}{}", it.part, it.device, it.hindrance.words());
        let places = self.places.iter().map(|place| format!("its member {place}"));
        let named = self.missing.iter().map(named).chain(places);
        let named = named.collect::<Vec<_>>().join(", ");
        format!(
            "it waits for {named}; `{verb} show {name}` says how long, `{verb} start {name}` tries it now"
        )
    }
}
