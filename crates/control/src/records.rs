//! The registry's records of each volume, cache and array.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use voltier_array::{Consistency, CreateOptions, Integrity, Layout};

use crate::array_settings::ArraySettings;
use crate::array_spec::ArrayLevel;
use crate::date::Date;
use crate::error::{ControlError, ControlResult};
use crate::export_access::ExportAccess;
use crate::export_spec::ExportSpec;
use crate::name::{ArrayName, PoolName, VolumeName};
use crate::safety::DriveIdentity;
use crate::settings::Settings;
use crate::spec::DeviceSpec;
use crate::status::ByteRange;
use crate::words::{as_word, text_form};

/// Lost ranges that are kept one by one: beyond it only their number is.
pub const LOST_RANGES_MAX: usize = 1024;

/// A 128-bit identity, written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Identity(pub [u8; 16]);

impl Identity {
    /// A fresh random identity from the system.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    pub fn random() -> ControlResult<Self> {
        use std::io::Read;
        let mut bytes = [0; 16];
        File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut bytes))
            .map_err(|error| ControlError::io("reading /dev/urandom", &error))?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl FromStr for Identity {
    type Err = ControlError;

    fn from_str(text: &str) -> ControlResult<Self> {
        let wrong = || ControlError::failed(format!("`{text}` is not an identity"));
        if text.len() != 32 || !text.is_ascii() {
            return Err(wrong());
        }
        let value = u128::from_str_radix(text, 16).map_err(|_| wrong())?;
        Ok(Self(value.to_be_bytes()))
    }
}

impl From<Identity> for [u8; 16] {
    fn from(identity: Identity) -> [u8; 16] {
        identity.0
    }
}

text_form!(Identity);

/// The state that the daemon is to bring a volume to when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Desired {
    /// Serve it.
    Serving,
    /// Go on writing dirty lines back, then forget the cache.
    Detaching,
    /// Go on writing dirty lines back, then forget the volume.
    Deleting,
    /// Leave it at rest until it is started: not even a restart opens it under the hands of a user who works
    /// on its drives.
    Stopped,
}

/// The cache of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheRecord {
    /// The SSD, where it was last.
    pub device: DeviceSpec,
    /// The mark that the SSD is known by, if the SSD has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<DriveIdentity>,
    /// Identity written on the SSD when the cache was made.
    pub uuid: Identity,
    /// Choices.
    pub settings: Settings,
    /// Grows with every opening of the cache: an SSD with an older one is stale.
    pub generation: u64,
    /// The number of the superblock at the last stop in order: an SSD with a lower one is a copy from before.
    #[serde(default)]
    pub sequence: u64,
    /// Whether dirty lines may be on the SSD: set before the first one can be.
    pub maybe_dirty: bool,
    /// Dirty lines when they were last counted: at a clean stop, a flush, the loss of the SSD.
    pub dirty_lines: u64,
    /// Whether a start found that the SSD takes no writes. Since then the origin may have some of the
    /// dirty lines, also if the cache was stopped in order before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub evacuating: bool,
    /// Ranges of the backing disk that clients may have changed past an SSD that takes no writes, in order:
    /// nothing counts any more that this SSD has of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed: Vec<ByteRange>,
    /// Why the SSD was given up, when it was.
    pub failed: Option<String>,
    /// Ranges lost with the SSD, in order; the first [`LOST_RANGES_MAX`] of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<ByteRange>,
    /// How many ranges were lost with the SSD.
    pub lost_total: u64,
}

impl CacheRecord {
    /// A cache that was never opened.
    pub(crate) fn new(
        device: DeviceSpec,
        identity: Option<DriveIdentity>,
        uuid: Identity,
        settings: Settings,
    ) -> Self {
        Self {
            device,
            identity,
            uuid,
            maybe_dirty: settings.mode.writes_back(),
            settings,
            generation: 0,
            sequence: 0,
            dirty_lines: 0,
            evacuating: false,
            passed: Vec::new(),
            failed: None,
            lost: Vec::new(),
            lost_total: 0,
        }
    }

    /// Keeps the passed ranges that are on record of this cache, unless its SSD is given up. Whoever changes the
    /// record may have read it before they were.
    pub(crate) fn keep_passed(&mut self, on_record: Option<&Self>) {
        let kept = on_record.filter(|before| before.uuid == self.uuid && self.failed.is_none());
        self.passed = kept.map(|before| before.passed.clone()).unwrap_or_default();
    }

    /// The loss that the SSD's loss would be, in words.
    pub fn newest_data(&self) -> String {
        newest_data(self.dirty_lines)
    }
}

/// The worth of so many dirty lines, in words.
pub(crate) fn newest_data(dirty_lines: u64) -> String {
    match dirty_lines {
        0 => "the newest data".to_owned(),
        1 => "the newest data of 1 line".to_owned(),
        lines => format!("the newest data of {lines} lines, as last counted"),
    }
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Name.
    pub name: VolumeName,
    /// Identity of the volume.
    pub uuid: Identity,
    /// Size in bytes, as it was served last: an origin that is smaller now is refused.
    pub size_bytes: u64,
    /// The slow side, where it was last.
    pub origin: DeviceSpec,
    /// The mark that the origin is known by, if the origin has one: a drive with another mark is not
    /// served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_identity: Option<DriveIdentity>,
    /// The fast side.
    pub cache: Option<CacheRecord>,
    /// Exports that are to be open.
    pub exports: Vec<ExportSpec>,
    /// The users who may open their sockets and files, by path, where not the user of the daemon alone may.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub export_access: BTreeMap<PathBuf, ExportAccess>,
    /// The state to bring the volume to at start.
    pub desired: Desired,
}

/// One array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisteredArray {
    /// Name.
    pub name: ArrayName,
    /// Identity that the superblocks of the members must carry.
    pub uuid: Identity,
    /// Level, as it was made.
    pub level: ArrayLevel,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Protection of parity against a crash.
    #[serde(with = "as_word")]
    pub consistency: Consistency,
    /// The checksums that the members keep.
    #[serde(with = "as_word")]
    pub integrity: Integrity,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Changes of membership when it was last looked at: members that know fewer are old.
    pub events: u64,
    /// The device of each place, as far as it is known, also of members that are lost.
    pub members: Vec<Option<DeviceSpec>>,
    /// Devices that wait to replace a lost member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spares: Vec<DeviceSpec>,
    /// Devices that are on their way: filled beside a member in service, or to have the journal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incoming: Vec<DeviceSpec>,
    /// The device of the journal, also when it is lost; none while it is on the members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<DeviceSpec>,
    /// Whether the array is left at rest until it is started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// Whether nothing is written to its devices: it was assembled to be read only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// Members that were lost, until their users have taken note of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_drives: Vec<FailedDrive>,
    /// Choices.
    pub settings: ArraySettings,
}

/// A member that was lost, as long as nobody has said that it is known (`voltier health --acknowledge`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedDrive {
    /// The device.
    pub device: DeviceSpec,
    /// Number of its place in the array.
    pub member: u32,
    /// When it was noticed.
    pub since: Date,
}

/// A spare of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSpare {
    /// The device, where it was last.
    pub device: DeviceSpec,
    /// The mark by which the device is known, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<DriveIdentity>,
    /// Identity in the label that the device got when it came to the pool; none of a device whose content
    /// ends with the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<Identity>,
}

/// Spares that several arrays share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    /// Name.
    pub name: PoolName,
    /// The spares that wait, in the order in which they are taken.
    pub spares: Vec<PoolSpare>,
}

impl RegisteredArray {
    /// How often the array is scrubbed by itself, in seconds; 0 for never. Without redundancy there is nothing to
    /// check.
    pub(crate) fn scrub_every_s(&self) -> u64 {
        let is_checked = self.level.has_redundancy() && !self.read_only;
        if is_checked { self.settings.scrub_every_s } else { 0 }
    }

    /// The form of a new array of this record; its members get these identities.
    pub fn create_options(&self, member_uuids: Vec<[u8; 16]>) -> CreateOptions {
        CreateOptions {
            name: self.name.to_string(),
            level: self.level.0,
            layout: Layout::default(),
            chunk_bytes: self.chunk_bytes.into(),
            consistency: self.consistency,
            integrity: self.integrity,
            uuid: self.uuid.0,
            member_uuids,
        }
    }

    /// Refuses what would change an array that is only read.
    pub(crate) fn must_take_changes(&self) -> ControlResult<()> {
        match self.read_only {
            false => Ok(()),
            true => Err(ControlError::failed(format!(
                "the array {0} is assembled read-only; to use it as before: `voltier array stop {0}`, then \
                 `voltier array assemble DEV...` without --read-only",
                self.name
            ))),
        }
    }

    /// The devices of the array.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceSpec> {
        let members = self.members.iter().flatten();
        members.chain(&self.spares).chain(&self.incoming).chain(&self.journal)
    }

    /// Records the devices that were found in the places. A device has one place. Where a member is found
    /// under the path of another one, that one gets the path that became free, as after a swap.
    pub fn record_places(&mut self, found: &[Option<DeviceSpec>]) {
        self.members.resize(found.len().max(self.members.len()), None);
        let paths = found.iter().enumerate().filter_map(|(place, it)| Some((place, it.as_ref()?)));
        for (place, device) in paths {
            let known = |it: &Option<DeviceSpec>| it.as_ref() == Some(device);
            // Devices of this process may be called alike.
            let is_elsewhere = device.is_external() && !known(&self.members[place]);
            let elsewhere = self.members.iter().position(known).filter(|_| is_elsewhere);
            let before = self.members[place].replace(device.clone());
            if let Some(other) = elsewhere {
                self.members[other] = before;
            }
        }
        for place in 0..self.members.len() {
            if found.get(place).is_none_or(Option::is_none) {
                let is_found = |known: &mut DeviceSpec| {
                    known.is_external() && found.iter().flatten().any(|it| it == known)
                };
                self.members[place].take_if(is_found);
            }
        }
    }
}

impl VolumeRecord {
    /// The users who may open the socket or file of an export, if that is not the user of the daemon alone.
    pub fn access_of(&self, export: &ExportSpec) -> Option<&ExportAccess> {
        self.export_access.get(export.path()?)
    }

    /// Forgets an export.
    pub fn forget_export(&mut self, export: &ExportSpec) {
        self.exports.retain(|known| known != export);
        if let Some(path) = export.path() {
            self.export_access.remove(path);
        }
    }

    /// The devices of the volume.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceSpec> {
        self.drives().map(|(device, _)| device)
    }

    /// The devices of the volume, with the marks that they are known by: the origin, then the SSD.
    pub(crate) fn drives(&self) -> impl Iterator<Item = (&DeviceSpec, Option<&DriveIdentity>)> {
        let cache = self.cache.as_ref().map(|cache| (&cache.device, cache.identity.as_ref()));
        [(&self.origin, self.origin_identity.as_ref())].into_iter().chain(cache)
    }

    /// Refuses what a stopped volume cannot do.
    pub(crate) fn must_not_be_stopped(&self) -> ControlResult<()> {
        match self.desired {
            Desired::Stopped => Err(ControlError::failed(format!(
                "{0} is stopped; `voltier start {0}` first",
                self.name
            ))),
            _ => Ok(()),
        }
    }
}
