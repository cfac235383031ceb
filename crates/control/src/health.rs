//! The health of everything: one state for the daemon and for each volume, array, drive, export and pool, with its
//! reason in words and what to do next. It is worked out from what `show` tells.

use serde::{Deserialize, Serialize};

use crate::array_status::{ArrayDetail, ArrayState, FailedDriveStatus, PlaceStatus, PoolStatus};
use crate::date::Date;
use crate::events::hook::HookStatus;
use crate::health_state::{HealthState, HealthSummary};
use crate::name::{ArrayName, VolumeName};
use crate::smart::{Smart, SmartWarning, SpareSmart};
use crate::status::{
    ByteRange, DeviceState, DeviceStatus, ExportState, UnshippedStatus, VolumeState, VolumeStatus,
};

/// The exit code of `voltier health` when it cannot find out: 3 UNKNOWN.
pub const UNKNOWN_EXIT_CODE: u8 = 3;

/// What a check is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The daemon.
    #[default]
    Daemon,
    /// A volume.
    Volume,
    /// An array.
    Array,
    /// An SSD, a backing disk, a member or the device of a journal.
    Drive,
    /// An export of a volume.
    Export,
    /// A pool of spares.
    Pool,
    /// A hook, which is told of events.
    Hook,
}

impl Part {
    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Daemon => "daemon",
            Self::Volume => "volume",
            Self::Array => "array",
            Self::Drive => "drive",
            Self::Export => "export",
            Self::Pool => "pool",
            Self::Hook => "hook",
        }
    }
}

impl Part {
    /// A drive is the cause of what its array and its volume suffer.
    pub(crate) fn distance_from_cause(self) -> u8 {
        match self {
            Self::Drive => 0,
            Self::Pool => 1,
            Self::Array => 2,
            Self::Export => 3,
            Self::Volume => 4,
            Self::Daemon => 5,
            Self::Hook => 6,
        }
    }
}

/// Something that can be wrong, as the guide lists it.
#[derive(Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its word, in JSON.
    pub word: &'static str,
    /// What it is said of.
    pub part: Part,
    /// How bad it is.
    pub state: HealthState,
    /// What it means, for the guide.
    pub meaning: &'static str,
    /// What to do next. `NAME` stands for the volume or array, `PATH` for the drive or address.
    pub next: &'static str,
}

macro_rules! conditions {
    ($($name:ident: $part:ident $state:ident $word:literal, $meaning:literal, $next:literal;)+) => {
        $(const $name: Condition = Condition {
            word: $word,
            part: Part::$part,
            state: HealthState::$state,
            meaning: $meaning,
            next: $next,
        };)+

        /// Everything that can be wrong.
        pub const CONDITIONS: &[Condition] = &[$($name),+];
    };
}

conditions! {
    NO_DAEMON: Daemon Failed "no_daemon",
        "volumes or arrays are on record, and no daemon serves them",
        "`voltier start`, or `systemctl start voltier` with the unit";
    METRICS_FAIL: Daemon Warning "metrics_fail",
        "nobody can ask the daemon for metrics: the address is in use, or cannot be had",
        "end what has the address, or give the daemon another one; it tries again by itself";
    STATE_FOLDER_REFUSES: Daemon Degraded "state_folder_refuses",
        "the state folder takes no records, or has no room for one: what happens to volumes and arrays cannot be \
         recorded, and clients wait for the record of a lost drive",
        "make room in the state folder, or mend what the reason names: it is tried again by itself";
    VOLUME_FAILED: Volume Failed "volume_failed",
        "the volume is not served",
        "`voltier show NAME` has all about it; `voltier start NAME` tries again";
    VOLUME_WAITS: Volume Failed "volume_waits",
        "the volume is not served yet: a device is missing, and comes into service when it is there",
        "bring the device back, or go without it: `voltier start NAME`";
    VOLUME_STARTS: Volume Warning "volume_starts",
        "the volume is not served yet: its devices are being opened",
        "wait";
    DATA_LOST: Volume Failed "data_lost",
        "the newest data of some ranges were lost with the SSD, or are damaged on it: reads of them fail",
        "`voltier show NAME` lists the ranges; write them again from a copy";
    VOLUME_TROUBLE: Volume Warning "volume_trouble",
        "the volume serves, with a trouble that its reason names",
        "`voltier show NAME` has all about it";
    WRITES_WAIT: Volume Warning "writes_wait",
        "writes of clients have waited for the disk for ten seconds or longer, because of `max_unshipped`",
        "look at the disk (`dmesg`); one that is well and too slow for so many writes needs a larger `max_unshipped`";
    ARRAY_BELOW: Volume Degraded "array_below",
        "an array that the volume stands on has lost members",
        "see the array";
    SSD_FAILED: Drive Degraded "ssd_failed",
        "the SSD was given up: the volume serves from its disk alone",
        "`voltier detach NAME`, then `voltier attach NAME -s SSD` with a new one";
    SSD_EVACUATES: Drive Degraded "ssd_evacuates",
        "the SSD takes no writes: what is dirty is being written to the disk",
        "wait until it is done, then replace the SSD: `voltier detach NAME`, `voltier attach NAME -s SSD`";
    DRIVE_SILENT: Drive Degraded "drive_silent",
        "the drive has not answered for longer than the deadline: requests wait for it",
        "look at the drive, its cable and its adapter (`dmesg`)";
    DISK_REFUSES: Drive Degraded "disk_refuses",
        "the disk has refused for half a minute or longer what is written back, or its array has failed",
        "look at the disk (`dmesg`), or make room where it is thin";
    DRIVE_MISSING: Drive Failed "drive_missing",
        "the drive is not there, and is awaited",
        "bring it back";
    DRIVE_FAILED: Drive Failed "drive_failed",
        "the drive could not be opened, or another host has taken it away (the lock of a Ceph image)",
        "`voltier show NAME` says why";
    DRIVE_ERRORS: Drive Warning "drive_errors",
        "requests of the drive have failed since the volume was started, or since that was acknowledged",
        "look at the drive (`dmesg`, `smartctl -a PATH`), then `voltier health --acknowledge NAME`";
    EXPORT_FAILED: Export Failed "export_failed",
        "clients cannot come through the export",
        "mend what the reason names, then `voltier unexport` and `voltier export NAME` again";
    ARRAY_FAILED: Array Failed "array_failed",
        "the array is not served",
        "`voltier array show NAME` has all about it; `voltier array start NAME` tries again";
    ARRAY_WAITS: Array Failed "array_waits",
        "the array is not assembled yet: a device is missing, and comes into service when it is there",
        "bring the device back, or go without it: `voltier array start NAME`";
    ARRAY_STARTS: Array Warning "array_starts",
        "the array is not assembled yet: its devices are being opened",
        "wait";
    ARRAY_DEGRADED: Array Degraded "array_degraded",
        "members are not in service",
        "see the members";
    MEMBERS_AWAITED: Array Failed "members_awaited",
        "members do not answer and none has been failed: requests wait for them",
        "look at what the drives have in common: adapter, cable, power (`dmesg`)";
    NOT_REBUILT: Array Failed "not_rebuilt",
        "some data cannot be rebuilt, because too many members cannot be read there",
        "write them again from a copy, then `voltier array rebuild NAME`";
    JOURNAL_LOST: Array Degraded "journal_lost",
        "the device of the journal was given up, and the journal is on the members",
        "`voltier array set NAME journal=DEV` (or journal=members)";
    SCRUB_LOST: Array Failed "scrub_lost",
        "the last scrub found stripes that cannot be read any more",
        "write them again from a copy, then `voltier array scrub NAME`";
    SCRUB_LEFT: Array Warning "scrub_left",
        "the last scrub found blocks that do not match, and left them",
        "`voltier array scrub --help` lists what a scrub may repair";
    RESHAPE_STOPPED: Array Warning "reshape_stopped",
        "the move to more members does not go on",
        "mend what the reason names";
    ARRAY_TROUBLE: Array Warning "array_trouble",
        "the array serves, with a trouble that its reason names",
        "`voltier array show NAME` has all about it";
    POOL_EMPTY: Array Warning "pool_empty",
        "the array has a pool of spares, and none is left in it",
        "`voltier array spare-pool add POOL DEV`";
    SPARE_LEFT_OUT: Pool Warning "spare_left_out",
        "an array wanted a spare of the pool and could not take it",
        "`voltier array spare-pool show` has all about it";
    MEMBER_LOST: Drive Degraded "member_lost",
        "the array goes on without the member",
        "`voltier array replace NAME MEMBER DEV`, or `voltier array add-spare NAME DEV`";
    DRIVE_REPLACED: Drive Warning "drive_replaced",
        "a member was lost, and a spare has its place",
        "test or remove the drive, add a spare if none is left, then `voltier health --acknowledge NAME`";
    MEMBER_REBUILDS: Drive Degraded "member_rebuilds",
        "the member is being filled",
        "wait: `voltier array rebuild NAME` follows it";
    MEMBER_FAILING: Drive Degraded "member_failing",
        "the member had more errors than `max_errors`, and the array cannot lose it",
        "`voltier array replace NAME MEMBER DEV`";
    MEMBER_ERRORS: Drive Warning "member_errors",
        "the member had errors recently; what failed was read from the others and written again",
        "look at the drive (`dmesg`, `smartctl -a PATH`)";
    MEMBER_SLOW: Drive Warning "member_slow",
        "the member is slower than the others",
        "look at the drive (`smartctl -a PATH`); `slow_action` says what the array does about it";
    MEMBER_SILENT: Drive Degraded "member_silent",
        "the member has not answered for longer than the deadline",
        "look at the drive, its cable and its adapter (`dmesg`)";
    MEMBER_UNPROTECTED: Drive Warning "member_unprotected",
        "pages of checksums are missing on the member: it takes no writes there, or could not be read",
        "`voltier array scrub NAME`; replace the drive if it comes back";
    SMART_FAILED: Drive Degraded "smart_failed",
        "the drive says that it fails: its SMART status, or a critical warning of NVMe",
        "`smartctl -a PATH` has all that it says; replace the drive before it fails";
    SMART_SPARE_LOW: Drive Degraded "smart_spare_low",
        "the drive has fewer spare blocks left than its own threshold: without any it takes no writes",
        "replace the drive soon (`smartctl -a PATH`)";
    SMART_WORN: Drive Warning "smart_worn",
        "90 percent or more of what the maker expects of the drive is used",
        "replace the drive in good time; how fast it goes is in `smartctl -a PATH`";
    SMART_MEDIA_ERRORS: Drive Warning "smart_media_errors",
        "the drive could not give data back since the daemon asked it first",
        "a scrub of its array writes again what it lost (`voltier array scrub`); replace the drive if more come";
    SMART_PENDING: Drive Warning "smart_pending",
        "the drive has sectors that it cannot read, and replaces when they are written",
        "a scrub of its array writes them again (`voltier array scrub`); replace the drive if more come";
    SMART_HOT: Drive Warning "smart_hot",
        "the drive is too hot, or its temperature is beyond another of its limits: it becomes slow, and wears",
        "look at the fans and the air of the drive";
    HOOK_FAILS: Hook Warning "hook_fails",
        "events could not be delivered to the hook the last time; it is tried again",
        "mend what the reason names, then `voltier events --test`";
}

/// What is known of one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What it is about.
    pub part: Part,
    /// Its name: of a drive the path, of an export the address.
    pub name: String,
    /// The volume or array that it belongs to, as `volume NAME`; empty when it stands for itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub of: String,
    /// How bad it is.
    pub state: HealthState,
    /// The word of the condition; empty when all is well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    /// What is wrong, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What to do next.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub next: String,
    /// When the daemon saw the condition first; absent when all is well, and of what was not there a moment ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Date>,
}

impl Check {
    /// What it is about, in words.
    pub fn what(&self) -> String {
        match self.of.is_empty() {
            true => format!("{} {}", self.part.word(), self.name),
            false => format!("{} {} of {}", self.part.word(), self.name, self.of),
        }
    }
}

/// The health of an instance, or of what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The worst state of a check.
    pub state: HealthState,
    /// Each thing at least once; something that has several troubles has a check for each.
    pub checks: Vec<Check>,
}

/// From so long on it is a trouble that writes wait because of `max_unshipped`.
const WRITES_WAIT_SECONDS: u64 = 10;

/// Reasons in a summary: `voltier health` has all.
const REASONS_MAX: usize = 8;

/// Checks of one thing while they are collected.
struct Checks<'a> {
    owner: String,
    name: &'a str,
    list: Vec<Check>,
}

impl<'a> Checks<'a> {
    fn of(part: Part, name: &'a str) -> Self {
        Self { owner: format!("{} {name}", part.word()), name, list: Vec::new() }
    }

    fn add(&mut self, part: Part, name: &str, found: Option<(&Condition, String)>) {
        let of = if name == self.name && part != Part::Drive { "" } else { &self.owner };
        let (condition, reason) = match &found {
            Some((condition, reason)) => (Some(*condition), reason.clone()),
            None => (None, String::new()),
        };
        let next = condition.map(|it| it.next.replace("NAME", self.name).replace("PATH", name));
        self.list.push(Check {
            part,
            name: name.to_owned(),
            of: of.to_owned(),
            state: condition.map_or(HealthState::Ok, |it| it.state),
            condition: condition.map(|it| it.word.to_owned()).unwrap_or_default(),
            reason,
            next: next.unwrap_or_default(),
            since: None,
        });
    }

    /// One check for each trouble, or one that says that all is well.
    fn add_all(&mut self, part: Part, name: &str, found: Vec<(&Condition, String)>) {
        if found.is_empty() {
            return self.add(part, name, None);
        }
        found.into_iter().for_each(|it| self.add(part, name, Some(it)));
    }
}

impl Health {
    fn of(checks: Vec<Check>) -> Self {
        let state = checks.iter().map(|it| it.state).max().unwrap_or_default();
        Self { state, checks }
    }

    /// The health of all that a running daemon has.
    pub fn of_all(volumes: &[VolumeStatus], arrays: &[ArrayDetail], pools: &[PoolStatus]) -> Self {
        let mut checks = Checks::of(Part::Daemon, "voltier");
        checks.add(Part::Daemon, "voltier", None);
        let mut list = checks.list;
        list.extend(volumes.iter().flat_map(of_volume));
        list.extend(arrays.iter().flat_map(of_array));
        list.extend(pools.iter().flat_map(of_pool));
        Self::of(list)
    }

    /// The health of one volume, with the arrays that it stands on.
    pub fn of_one_volume(
        name: &VolumeName,
        volumes: &[VolumeStatus],
        arrays: &[ArrayDetail],
    ) -> Option<Self> {
        let volume = volumes.iter().find(|it| it.name == *name)?;
        let below = arrays.iter().filter(|it| it.used_by.as_ref() == Some(name));
        Some(Self::of(of_volume(volume).into_iter().chain(below.flat_map(of_array)).collect()))
    }

    /// The health of one array.
    pub fn of_one_array(name: &ArrayName, arrays: &[ArrayDetail]) -> Option<Self> {
        let array = arrays.iter().find(|it| it.name == *name)?;
        Some(Self::of(of_array(array)))
    }

    /// The health of an instance that no daemon serves, from what is on record; what is stopped on request is well.
    /// `None` when nothing is on record.
    pub fn without_daemon(volumes: &[VolumeStatus], arrays: &[ArrayDetail]) -> Option<Self> {
        if volumes.is_empty() && arrays.is_empty() {
            return None;
        }
        let down = volumes.iter().filter(|it| it.state == VolumeState::NotRunning);
        let arrays_down = arrays.iter().filter(|it| it.state == ArrayState::NotRunning);
        let names = down.map(|it| it.name.to_string());
        let names: Vec<String> = names.chain(arrays_down.map(|it| it.name.to_string())).collect();
        let mut checks = Checks::of(Part::Daemon, "voltier");
        let found = (!names.is_empty())
            .then(|| (&NO_DAEMON, format!("no daemon runs; not served: {}", names.join(", "))));
        checks.add(Part::Daemon, "voltier", found);
        Some(Self::of(checks.list))
    }

    /// The checks of hooks, which are told of events.
    pub(crate) fn of_hooks(hooks: &[HookStatus]) -> Vec<Check> {
        let mut checks = Checks::of(Part::Hook, "");
        for status in hooks {
            checks.owner.clear();
            let found = (status.failures > 0).then(|| {
                let (count, id) = (status.failures, status.hook.id);
                let attempts = if count == 1 { "attempt" } else { "attempts" };
                let waiting = match status.waiting {
                    1 => "1 event waits".to_owned(),
                    more => format!("{more} events wait"),
                };
                let why = &status.error;
                (
                    &HOOK_FAILS,
                    format!("{count} {attempts} of hook {id} failed, and {waiting}: {why}"),
                )
            });
            checks.add(Part::Hook, &status.hook.target.title(), found);
        }
        checks.list
    }

    /// The check of the daemon when it cannot answer about metrics.
    pub(crate) fn of_metrics(trouble: Option<&str>) -> Vec<Check> {
        let mut checks = Checks::of(Part::Daemon, "voltier");
        if let Some(why) = trouble {
            checks.add(Part::Daemon, "voltier", Some((&METRICS_FAIL, why.to_owned())));
        }
        checks.list
    }

    /// The check of the daemon when the state folder takes no records.
    pub(crate) fn of_state_folder(trouble: Option<&str>) -> Vec<Check> {
        let mut checks = Checks::of(Part::Daemon, "voltier");
        if let Some(why) = trouble {
            checks.add(Part::Daemon, "voltier", Some((&STATE_FOLDER_REFUSES, why.to_owned())));
        }
        checks.list
    }

    /// Adds further checks: those of what the daemon does beside volumes and arrays.
    #[must_use]
    pub fn with(self, checks: Vec<Check>) -> Self {
        Self::of(self.checks.into_iter().chain(checks).collect())
    }

    /// The same in short.
    fn summary(&self) -> HealthSummary {
        let troubles = self.troubles();
        let reason = |it: &&Check| match it.of.is_empty() {
            true => it.reason.clone(),
            false => format!("{} {}: {}", it.part.word(), it.name, it.reason),
        };
        let reasons = troubles.iter().take(REASONS_MAX).map(reason).collect();
        HealthSummary { state: self.state, reasons }
    }

    /// The checks that found something: the worst first, and causes before what follows from them.
    pub fn troubles(&self) -> Vec<&Check> {
        let found = self.checks.iter().filter(|it| it.state > HealthState::Ok);
        let mut found: Vec<&Check> = found.collect();
        found.sort_by_key(|it| (std::cmp::Reverse(it.state), it.part.distance_from_cause()));
        found
    }
}

/// The health of a volume in short, with the arrays that it stands on.
pub(crate) fn summary_of_volume(volume: &VolumeStatus, below: &[ArrayDetail]) -> HealthSummary {
    let arrays = below.iter().flat_map(of_array);
    Health::of(of_volume(volume).into_iter().chain(arrays).collect()).summary()
}

/// The health of an array in short.
pub(crate) fn summary_of_array(array: &ArrayDetail) -> HealthSummary {
    Health::of(of_array(array)).summary()
}

pub(crate) fn of_volume(volume: &VolumeStatus) -> Vec<Check> {
    let mut checks = Checks::of(Part::Volume, volume.name.as_str());
    checks.add_all(Part::Volume, volume.name.as_str(), volume_troubles(volume));
    let [ssd_errors, disk_errors] = drive_errors(volume);
    for (kind, device, errors) in
        [("SSD", &volume.ssd, ssd_errors), ("backing disk", &volume.hdd, disk_errors)]
    {
        if device.state != DeviceState::None {
            let errors = errors.saturating_sub(device.acknowledged_errors);
            let mut found: Vec<_> =
                drive_trouble(kind, device, errors, &volume.error).into_iter().collect();
            if device.state != DeviceState::Offline {
                found.extend(smart_troubles(&device.path, &device.smart));
            }
            checks.add_all(Part::Drive, &device.path, found);
        }
    }
    for export in &volume.exports {
        let found = (export.state == ExportState::Failed)
            .then(|| (&EXPORT_FAILED, format!("it is not open: {}", export.error)));
        checks.add(Part::Export, &export.uri, found);
    }
    checks.list
}

/// Requests of the SSD and of the backing disk that have failed since the volume was started.
pub(crate) fn drive_errors(volume: &VolumeStatus) -> [u64; 2] {
    [volume.ssd.errors, volume.hdd.errors]
}

fn volume_troubles(volume: &VolumeStatus) -> Vec<(&'static Condition, String)> {
    let mut found = Vec::new();
    let why = |otherwise: &str| match volume.error.is_empty() {
        true => otherwise.to_owned(),
        false => volume.error.clone(),
    };
    match volume.state {
        VolumeState::Failed => found.push((&VOLUME_FAILED, why("it is not served"))),
        VolumeState::Waiting => {
            let devices = volume.waits_for.join(", ");
            found.push((&VOLUME_WAITS, format!("it is not served: {devices} is missing")));
        }
        VolumeState::Starting => {
            found.push((&VOLUME_STARTS, "its devices are being opened".into()))
        }
        VolumeState::NotRunning => found.push((&NO_DAEMON, "no daemon runs".into())),
        VolumeState::Stopped => {}
        VolumeState::Running | VolumeState::Draining | VolumeState::Degraded => {
            if !volume.error.is_empty() {
                found.push((&VOLUME_TROUBLE, volume.error.clone()));
            }
        }
    }
    if volume.lost_ranges > 0 {
        let count = volume.lost_ranges;
        found.push((&DATA_LOST, format!("{count} ranges have lost their newest data")));
    }
    if let Some(unshipped) = &volume.unshipped
        && unshipped.writes_wait_seconds >= WRITES_WAIT_SECONDS
    {
        let UnshippedStatus { waiting_writes: count, writes_wait_seconds: seconds, .. } = unshipped;
        let they = if *count == 1 { "write waits" } else { "writes wait" };
        found.push((
            &WRITES_WAIT,
            format!("{count} {they} for the disk (max_unshipped), and some have for {seconds} s"),
        ));
    }
    for device in [&volume.ssd, &volume.hdd] {
        if device.state == DeviceState::Degraded {
            found.push((&ARRAY_BELOW, format!("{} has lost members", device.path)));
        }
    }
    found
}

fn drive_trouble(
    kind: &str,
    device: &DeviceStatus,
    errors: u64,
    why: &str,
) -> Option<(&'static Condition, String)> {
    let silent = || format!("the {kind} has not answered for {} s", device.silent_seconds);
    Some(match device.state {
        DeviceState::Failed if kind == "SSD" => (&SSD_FAILED, "the SSD was given up".to_owned()),
        DeviceState::Failed if why.is_empty() => {
            (&DRIVE_FAILED, format!("the {kind} could not be opened"))
        }
        DeviceState::Failed => (&DRIVE_FAILED, why.to_owned()),
        DeviceState::Evacuating => (&SSD_EVACUATES, "the SSD takes no writes".to_owned()),
        DeviceState::Silent => (&DRIVE_SILENT, silent()),
        DeviceState::Refusing => (&DISK_REFUSES, format!("the {kind} refuses what is written")),
        DeviceState::Missing => (&DRIVE_MISSING, format!("the {kind} is not there")),
        _ if errors > 0 => {
            let them = if errors == 1 { "request" } else { "requests" };
            (&DRIVE_ERRORS, format!("the {kind} has failed {errors} {them}"))
        }
        _ => return None,
    })
}

pub(crate) fn of_array(array: &ArrayDetail) -> Vec<Check> {
    let mut checks = Checks::of(Part::Array, array.name.as_str());
    checks.add_all(Part::Array, array.name.as_str(), array_troubles(array));
    let is_served = matches!(array.state, ArrayState::Running | ArrayState::Degraded);
    for member in &array.members {
        let path = if member.path.is_empty() { "?" } else { &member.path };
        let mut found = if is_served { member_troubles(array, member) } else { Vec::new() };
        if array.state != ArrayState::Stopped {
            found.extend(smart_troubles(path, &member.smart));
        }
        checks.add_all(Part::Drive, path, found);
    }
    let replaced = array.failed_drives.iter().filter_map(|it| Some((it, replacement(array, it)?)));
    for (drive, in_place) in replaced.filter(|_| is_served) {
        let since = drive.since.to_the_second();
        let reason =
            format!("member {} was lost on {since} UTC; {in_place} has its place", drive.member);
        checks.add(Part::Drive, &drive.path, Some((&DRIVE_REPLACED, reason)));
    }
    if array.state != ArrayState::Stopped {
        let journal = array.journal_device.iter().map(|it| (&it.path, &it.smart));
        let spares = array.spares_smart.iter().map(|it| (&it.path, &it.smart));
        for (path, smart) in journal.chain(spares).filter(|(_, smart)| !smart.is_empty()) {
            checks.add_all(Part::Drive, path, smart_troubles(path, smart));
        }
    }
    for check in &mut checks.list {
        // The number of the place is what the commands take, whatever is known of the device.
        let place = array.members.iter().find(|it| it.path == check.name && !it.path.is_empty());
        let place = place.map_or_else(|| "MEMBER".to_owned(), |it| it.index.to_string());
        check.next = check.next.replace("MEMBER", &place);
        if let Some(pool) = &array.spare_pool {
            check.next = check.next.replace("POOL", &pool.to_string());
        }
    }
    checks.list
}

/// The device that has the place of a member that was lost.
fn replacement<'a>(array: &'a ArrayDetail, drive: &FailedDriveStatus) -> Option<&'a str> {
    let member = array.members.get(drive.member as usize)?;
    (member.path != drive.path && !member.path.is_empty()).then_some(&*member.path)
}

fn array_troubles(array: &ArrayDetail) -> Vec<(&'static Condition, String)> {
    let mut found: Vec<(&'static Condition, String)> = Vec::new();
    let why = |otherwise: &str| match array.error.is_empty() {
        true => otherwise.to_owned(),
        false => array.error.clone(),
    };
    match array.state {
        ArrayState::Failed => found.push((&ARRAY_FAILED, why("it is not served"))),
        ArrayState::Waiting => {
            let devices = array.waits_for.join(", ");
            found.push((&ARRAY_WAITS, format!("it is not assembled: {devices} is missing")));
        }
        ArrayState::Starting => found.push((&ARRAY_STARTS, "its devices are being opened".into())),
        ArrayState::NotRunning => found.push((&NO_DAEMON, "no daemon runs".into())),
        ArrayState::Stopped => return found,
        ArrayState::Degraded => {
            let out = array.members.iter().filter(|it| it.state != "online").count();
            let may_lose = match array.may_lose {
                0 => "the loss of another one loses data".to_owned(),
                1 => "it may lose 1 more".to_owned(),
                more => format!("it may lose {more} more"),
            };
            let of = array.members.len();
            found.push((
                &ARRAY_DEGRADED,
                format!("{out} of {of} members not in service; {may_lose}"),
            ));
        }
        ArrayState::Running => {}
    }
    if matches!(array.state, ArrayState::Running | ArrayState::Degraded) && !array.error.is_empty()
    {
        found.push((&ARRAY_TROUBLE, array.error.clone()));
    }
    found.extend(array.left_out.iter().map(|line| (&ARRAY_TROUBLE, line.clone())));
    if array.members_awaited {
        let silent = array.members.iter().filter(|it| it.health.counts.unanswered_s > 0);
        let paths: Vec<&str> = silent.map(|it| it.path.as_str()).collect();
        found.push((&MEMBERS_AWAITED, format!("no answer from {}", paths.join(", "))));
    }
    found.extend(array.rebuild_stuck.iter().map(|stuck| {
        let ByteRange { offset_bytes, length_bytes } = stuck.range;
        let members = stuck.members.join(", ");
        (
            &NOT_REBUILT,
            format!(
                "{length_bytes} bytes from byte {offset_bytes} on cannot be rebuilt on {members}"
            ),
        )
    }));
    if let Some(journal) = array.journal_device.as_ref().filter(|it| it.state == "lost") {
        found.push((&JOURNAL_LOST, format!("its journal device {} was given up", journal.path)));
    }
    let scrub = &array.scrub_found;
    if scrub.lost_stripes > 0 {
        found
            .push((&SCRUB_LOST, format!("{} stripes cannot be read any more", scrub.lost_stripes)));
    }
    if scrub.left_blocks > 0 {
        found.push((&SCRUB_LEFT, format!("{} blocks do not match", scrub.left_blocks)));
    }
    if let Some(error) = array.reshape.as_ref().and_then(|it| it.error.as_ref()) {
        found.push((&RESHAPE_STOPPED, format!("it does not grow: {error}")));
    }
    if let Some(pool) = array.spare_pool.as_ref().filter(|_| array.pool_spares.is_empty()) {
        found.push((&POOL_EMPTY, format!("no spare is left in its pool {pool}")));
    }
    found
}

fn member_troubles(array: &ArrayDetail, member: &PlaceStatus) -> Vec<(&'static Condition, String)> {
    let mut found: Vec<(&'static Condition, String)> = Vec::new();
    let (place, health, counts) = (member.index, &member.health, &member.health.counts);
    match member.state.as_str() {
        "online" => {}
        "rebuilding" => {
            let task = &array.rebuild;
            let done = (task.done_bytes * 100).checked_div(task.total_bytes);
            let done = done.map(|percent| format!(", {percent} % done")).unwrap_or_default();
            let left = task.eta_seconds.map(|it| format!(", {it} s left")).unwrap_or_default();
            found.push((&MEMBER_REBUILDS, format!("member {place} is being rebuilt{done}{left}")));
        }
        state => {
            let trouble = match member.trouble.is_empty() {
                true => String::new(),
                false => format!(" ({})", member.trouble),
            };
            found.push((&MEMBER_LOST, format!("member {place} is {state}{trouble}")));
        }
    }
    if health.too_many_errors {
        let count = counts.errors_recent;
        let reason =
            format!("member {place} had {count} errors recently, and the array cannot lose it");
        found.push((&MEMBER_FAILING, reason));
    } else if counts.errors_recent > 0 {
        let (reads, writes) = (counts.errors_read, counts.errors_write);
        found.push((
            &MEMBER_ERRORS,
            format!("member {place} had {reads} read and {writes} write errors"),
        ));
    }
    if health.slow {
        let p50_us = health.read_latency.p50_us.max(health.write_latency.p50_us);
        let reason = format!(
            "member {place} is slower than the others (half of its I/Os within {p50_us} us)"
        );
        found.push((&MEMBER_SLOW, reason));
    }
    if counts.unanswered_s > 0 {
        let seconds = counts.unanswered_s;
        found.push((&MEMBER_SILENT, format!("member {place} has not answered for {seconds} s")));
    }
    if counts.unprotected_pages > 0 {
        let pages = counts.unprotected_pages;
        found.push((
            &MEMBER_UNPROTECTED,
            format!("{pages} pages of checksums of member {place} are missing"),
        ));
    }
    found
}

pub(crate) fn of_pool(pool: &PoolStatus) -> Vec<Check> {
    let name = pool.name.to_string();
    let mut checks = Checks::of(Part::Pool, &name);
    let found = pool.left_out.iter().map(|line| (&SPARE_LEFT_OUT, line.clone()));
    checks.add_all(Part::Pool, &name, found.collect());
    for SpareSmart { path, smart } in &pool.spares_smart {
        checks.add_all(Part::Drive, path, smart_troubles(path, smart));
    }
    checks.list
}

/// From so much of its life on a drive is worn.
const WORN_PERCENT: u64 = 90;

/// What the drives below a device say of themselves that is bad.
fn smart_troubles(path: &str, smart: &[Smart]) -> Vec<(&'static Condition, String)> {
    smart.iter().flat_map(|it| smart_troubles_of(path, it)).collect()
}

fn smart_troubles_of(path: &str, smart: &Smart) -> Vec<(&'static Condition, String)> {
    let mut found: Vec<(&'static Condition, String)> = Vec::new();
    let figures = &smart.figures;
    // A device may lie on several, or have another name.
    let it = match smart.drive == path {
        true => "the drive".to_owned(),
        false => smart.drive.clone(),
    };
    let warns = |warning| smart.warnings.contains(&warning);
    if smart.passed == Some(false) {
        let why: Vec<&str> =
            smart.warnings.iter().filter(|it| it.is_failure()).map(|it| it.text()).collect();
        let why = if why.is_empty() { "its SMART status".to_owned() } else { why.join(", ") };
        found.push((&SMART_FAILED, format!("{it} says that it fails: {why}")));
    }
    let (spare, threshold) =
        (figures.available_spare_percent, figures.available_spare_threshold_percent);
    let is_below = spare.zip(threshold).is_some_and(|(spare, threshold)| spare < threshold);
    if is_below || warns(SmartWarning::SpareLow) {
        let left = spare.map(|spare| format!(", {spare} % is left")).unwrap_or_default();
        found.push((&SMART_SPARE_LOW, format!("the spare of {it} is below its threshold{left}")));
    }
    if let Some(used) = figures.percentage_used.filter(|it| *it >= WORN_PERCENT) {
        found.push((&SMART_WORN, format!("{used} % of the life of {it} is used")));
    }
    if let Some(count) = figures.media_errors_new.filter(|it| *it > 0) {
        let errors = if count == 1 { "media error" } else { "media errors" };
        found.push((&SMART_MEDIA_ERRORS, format!("{it} had {count} new {errors}")));
    }
    if let Some(count) = figures.pending_sectors.filter(|it| *it > 0) {
        let sectors = if count == 1 { "sector" } else { "sectors" };
        found.push((&SMART_PENDING, format!("{it} cannot read {count} {sectors}")));
    }
    let (now, limit) = (figures.temperature_celsius, figures.temperature_warning_celsius);
    let is_hot = now.zip(limit).is_some_and(|(now, limit)| limit > 0 && now >= limit);
    if is_hot || warns(SmartWarning::Temperature) {
        let now = now.map(|now| format!(" ({now} °C)")).unwrap_or_default();
        let what = if is_hot { "is too hot" } else { "has a temperature beyond its limits" };
        found.push((&SMART_HOT, format!("{it} {what}{now}")));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::smart::KnownFigures;

    #[test]
    fn each_condition_has_a_word_of_its_own_and_says_what_to_do() {
        let words: BTreeSet<&str> = CONDITIONS.iter().map(|it| it.word).collect();
        assert_eq!(words.len(), CONDITIONS.len());
        assert!(CONDITIONS.iter().all(|it| !it.meaning.is_empty() && !it.next.is_empty()));
        assert!(CONDITIONS.iter().all(|it| it.state > HealthState::Ok));
    }

    #[test]
    fn the_worst_trouble_is_the_state_of_the_whole_and_comes_first() {
        let mut checks = Checks::of(Part::Volume, "v");
        checks.add(Part::Volume, "v", None);
        checks.add(Part::Drive, "/dev/a", Some((&DRIVE_ERRORS, "1 error".into())));
        checks.add(Part::Export, "nbd://h/v", Some((&EXPORT_FAILED, "in use".into())));
        let health = Health::of(checks.list);
        assert_eq!(health.state, HealthState::Failed);
        let troubles = health.troubles();
        assert_eq!(troubles.len(), 2);
        assert_eq!(troubles[0].what(), "export nbd://h/v of volume v");
        assert!(troubles[1].next.contains("smartctl -a /dev/a"), "{}", troubles[1].next);
        assert_eq!(health.checks[0].what(), "volume v");
    }

    fn words(smart: Smart) -> Vec<(&'static str, String)> {
        let found = smart_troubles("/dev/sda", &[Smart { drive: "/dev/sda".into(), ..smart }]);
        found.into_iter().map(|(condition, reason)| (condition.word, reason)).collect()
    }

    fn with(set: impl Fn(&mut KnownFigures)) -> Smart {
        let mut smart = Smart { passed: Some(true), ..Smart::default() };
        set(&mut smart.figures);
        smart
    }

    #[test]
    fn each_thing_that_a_drive_says_is_a_condition_from_its_limit_on() {
        assert_eq!(words(Smart::default()), []);
        let one = |smart: Smart| {
            let found = words(smart);
            found.first().map_or("", |it| it.0).to_owned() + if found.len() > 1 { "+" } else { "" }
        };
        assert_eq!(one(Smart { passed: Some(false), ..Smart::default() }), "smart_failed");
        for (used, word) in [(89, ""), (90, "smart_worn"), (100, "smart_worn"), (255, "smart_worn")]
        {
            assert_eq!(one(with(|it| it.percentage_used = Some(used))), word, "{used}");
        }
        for (spare, threshold, word) in
            [(10, 10, ""), (9, 10, "smart_spare_low"), (0, 0, ""), (0, 1, "smart_spare_low")]
        {
            let smart = with(|it| {
                it.available_spare_percent = Some(spare);
                it.available_spare_threshold_percent = Some(threshold);
            });
            assert_eq!(one(smart), word, "{spare} {threshold}");
        }
        for (now, limit, word) in [(69, 70, ""), (70, 70, "smart_hot"), (90, 0, "")] {
            let smart = with(|it| {
                it.temperature_celsius = Some(now);
                it.temperature_warning_celsius = Some(limit);
            });
            assert_eq!(one(smart), word, "{now} {limit}");
        }
        for (count, are) in [(0, ""), (1, "smart_media_errors")] {
            assert_eq!(one(with(|it| it.media_errors_new = Some(count))), are);
        }
        assert_eq!(one(with(|it| it.media_errors = Some(7))), "", "from before");
        assert_eq!(one(with(|it| it.pending_sectors = Some(1))), "smart_pending");
        let warnings = vec![SmartWarning::SpareLow, SmartWarning::Temperature];
        let found = words(Smart { warnings, ..Smart::default() });
        assert_eq!(
            found.iter().map(|it| it.0).collect::<Vec<_>>(),
            ["smart_spare_low", "smart_hot"]
        );
    }

    #[test]
    fn a_drive_that_a_device_lies_on_is_named_and_one_that_fails_says_why() {
        let smart = Smart {
            drive: "/dev/nvme0n1".into(),
            passed: Some(false),
            warnings: vec![SmartWarning::ReadOnly],
            ..Smart::default()
        };
        let found = smart_troubles("/dev/mapper/x", &[smart.clone(), smart]);
        assert_eq!(found.len(), 2);
        let says = "/dev/nvme0n1 says that it fails: it takes no writes any more";
        assert_eq!((found[0].0, found[0].1.as_str()), (&SMART_FAILED, says));
    }
}
