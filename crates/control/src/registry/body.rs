//! The bytes of a registry: records in JSON, with a head line that says version and checksum.

use serde::{Deserialize, Serialize};
use voltier_array::Integrity;

use crate::array_settings::{ArraySettings, HealthSettings, MergeSettings};
use crate::records::{Desired, PoolRecord, RegisteredArray, VolumeRecord};
use crate::settings::Settings;
use crate::spec::DeviceSpec;

/// Newest version this program writes; newer ones are refused. The program writes the oldest one that
/// can say what there is. Version 1 is for no arrays, 2 for arrays that have neither spare pools nor
/// limits of their own, 3 for arrays that merge small writes as usual. Version 4 is for caches whose
/// `congested` is as usual, and arrays whose deadline is. Version 5 is for caches of which none is evacuated.
/// Version 6 is for volumes and arrays of which none is stopped, version 7 for exports that only the user of
/// the daemon may open. Version 8 is for caches whose deadline is as usual, version 9 for
/// arrays of which none keeps checksums.
pub const REGISTRY_VERSION: u32 = 10;

/// The first version whose checksum covers the version.
const VERSION_IN_CHECKSUM: u32 = 10;

const FORMAT: &str = "voltier-registry";
const TAIL: &str = "\n}\n";

/// All records of a registry.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Body {
    pub(super) volumes: Vec<VolumeRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) arrays: Vec<RegisteredArray>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) spare_pools: Vec<PoolRecord>,
}

impl Body {
    /// The oldest version that can say these records.
    pub(super) fn version(&self) -> u32 {
        let is_on_array = |volume: &VolumeRecord| volume.devices().any(|it| it.array().is_some());
        let has_arrays = !self.arrays.is_empty() || self.volumes.iter().any(is_on_array);
        let is_new = |array: &RegisteredArray| {
            let ArraySettings { health, spare_pool, .. } = &array.settings;
            spare_pool.is_some() || *health != HealthSettings::default()
        };
        let merges_else =
            |array: &RegisteredArray| array.settings.merge != MergeSettings::default();
        let usual = Settings::default().congested_us;
        let congested_else = |volume: &VolumeRecord| {
            volume.cache.as_ref().is_some_and(|cache| cache.settings.congested_us != usual)
        };
        let usual_deadline_s = Settings::default().deadline_s;
        let silent_else = |volume: &VolumeRecord| {
            volume.cache.as_ref().is_some_and(|cache| cache.settings.deadline_s != usual_deadline_s)
        };
        let usual = HealthSettings::default().deadline_s;
        let deadline_else = |array: &RegisteredArray| array.settings.health.deadline_s != usual;
        let is_evacuating =
            |volume: &VolumeRecord| volume.cache.as_ref().is_some_and(|cache| cache.evacuating);
        let is_stopped = |volume: &VolumeRecord| volume.desired == Desired::Stopped;
        let has_checksums = |array: &RegisteredArray| array.integrity != Integrity::None;
        if self.arrays.iter().any(has_checksums) {
            10
        } else if self.volumes.iter().any(silent_else) {
            9
        } else if self.volumes.iter().any(|volume| !volume.export_access.is_empty()) {
            8
        } else if self.volumes.iter().any(is_stopped)
            || self.arrays.iter().any(|array| array.stopped)
        {
            7
        } else if self.volumes.iter().any(is_evacuating) {
            6
        } else if self.volumes.iter().any(congested_else) || self.arrays.iter().any(deadline_else) {
            5
        } else if self.arrays.iter().any(merges_else) {
            4
        } else if !self.spare_pools.is_empty() || self.arrays.iter().any(is_new) {
            3
        } else if has_arrays {
            2
        } else {
            1
        }
    }

    pub(super) fn put_array(&mut self, record: RegisteredArray) {
        self.arrays.retain(|array| array.name != record.name);
        self.arrays.push(record);
        self.arrays.sort_by(|a, b| a.name.cmp(&b.name));
    }

    pub(super) fn put_pool(&mut self, record: PoolRecord) {
        self.spare_pools.retain(|pool| pool.name != record.name);
        self.spare_pools.push(record);
        self.spare_pools.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// The contradictions that no checksum excludes.
    fn check(&self) -> Result<(), String> {
        if let Some(name) = twice(self.volumes.iter().map(|volume| &volume.name)) {
            return Err(format!("two volumes are named {name}"));
        }
        if let Some(name) = twice(self.arrays.iter().map(|array| &array.name)) {
            return Err(format!("two arrays are named {name}"));
        }
        let used = self.volumes.iter().flat_map(VolumeRecord::devices);
        if let Some(name) = twice(used.filter_map(DeviceSpec::array)) {
            return Err(format!("the array {name} is used twice"));
        }
        if let Some(name) = twice(self.spare_pools.iter().map(|pool| &pool.name)) {
            return Err(format!("two spare pools are named {name}"));
        }
        for pool in &self.spare_pools {
            if pool.spares.iter().any(|spare| spare.device.array().is_some()) {
                return Err(format!("the spare pool {} has an array in it", pool.name));
            }
        }
        for array in &self.arrays {
            let is_it = |pool: &PoolRecord| Some(&pool.name) == array.settings.spare_pool.as_ref();
            if let Some(pool) = &array.settings.spare_pool
                && !self.spare_pools.iter().any(is_it)
            {
                return Err(format!(
                    "the array {} takes spares from {pool}, which does not exist",
                    array.name
                ));
            }
            let members = array.members.len();
            array
                .level
                .check(members, array.chunk_bytes)
                .map_err(|why| format!("the array {} cannot be: {why}", array.name))?;
            if array.devices().any(|device| device.array().is_some()) {
                return Err(format!("the array {} has an array as a member", array.name));
            }
        }
        for volume in &self.volumes {
            if let Some(Err(why)) = volume.cache.as_ref().map(|it| it.settings.for_cache().check())
            {
                return Err(format!("the cache of {} has {why}", volume.name));
            }
        }
        Ok(())
    }
}

/// A name that is there twice.
fn twice<'a, T: Ord>(names: impl Iterator<Item = &'a T>) -> Option<&'a T> {
    let mut names: Vec<&T> = names.collect();
    names.sort_unstable();
    names.array_windows().find(|[one, other]| one == other).map(|[name, _]| *name)
}

pub(super) fn head(version: u32, checksum: u32) -> String {
    format!(
        "{{\"format\":\"{FORMAT}\",\"version\":{version},\"crc32c\":\"{checksum:08x}\",\
         \"registry\":\n"
    )
}

/// The checksum of a body; from [`VERSION_IN_CHECKSUM`] on it covers the version too.
pub(super) fn checksum(version: u32, body: &str) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    if version >= VERSION_IN_CHECKSUM {
        digest.update(&version.to_le_bytes());
    }
    digest.update(body.as_bytes());
    digest.finalize() as u32
}

/// The bytes of a registry.
pub(super) fn encode(body: &Body) -> Vec<u8> {
    let version = body.version();
    let body = serde_json::to_string_pretty(body).expect("a registry has only plain values");
    format!("{}{body}{TAIL}", head(version, checksum(version, &body))).into_bytes()
}

/// The records in the bytes of a registry, or why they are none.
pub(super) fn decode(bytes: &[u8]) -> Result<Body, String> {
    let foreign = || "it is not a Voltier registry".to_owned();
    let damaged = || "it is damaged (checksum)".to_owned();
    let text = std::str::from_utf8(bytes).map_err(|_| foreign())?;
    let (first, rest) = text.split_once('\n').ok_or_else(foreign)?;
    let fields = first
        .strip_prefix(&format!("{{\"format\":\"{FORMAT}\",\"version\":"))
        .ok_or_else(foreign)?;
    let version: u32 =
        fields.split(',').next().and_then(|text| text.parse().ok()).ok_or_else(foreign)?;
    if version > REGISTRY_VERSION {
        return Err(format!(
            "it has version {version}, and this program knows versions up to \
                            {REGISTRY_VERSION}"
        ));
    }
    let body = rest.strip_suffix(TAIL).ok_or_else(damaged)?;
    if format!("{first}\n") != head(version, checksum(version, body)) || version == 0 {
        return Err(damaged());
    }
    let body: Body =
        serde_json::from_str(body).map_err(|error| format!("it is invalid: {error}"))?;
    // Checksums of old versions do not cover the head. A registry has the version that its records need.
    if version != body.version() {
        return Err(format!("it is invalid: its content is not that of version {version}"));
    }
    body.check().map_err(|why| format!("it is invalid: {why}"))?;
    Ok(body)
}
