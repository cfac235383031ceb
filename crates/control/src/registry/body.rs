//! The bytes of a registry: records in JSON, with a head line that says version, features and checksum.

use std::fmt;

use serde::{Deserialize, Serialize};
use voltier_block::{Format, Unsupported};

use crate::records::{PoolRecord, RegisteredArray, VolumeRecord};
use crate::spec::DeviceSpec;

/// The format of the registry: no part of it is optional.
pub const REGISTRY_FORMAT: Format = Format { version: 1, features: &[] };

const FORMAT: &str = "voltier-registry";
/// What stands before the checksum in the head line, behind it, and behind the body.
const CHECKSUM: &str = ",\"crc32c\":\"";
const OPENING: &str = "\",\"registry\":";
const TAIL: &str = "\n}\n";

/// All records of a registry.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Body {
    pub(super) volumes: Vec<VolumeRecord>,
    pub(super) arrays: Vec<RegisteredArray>,
    pub(super) spare_pools: Vec<PoolRecord>,
}

impl Body {
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

/// The first part of the head line; it is as this in every version, and under the checksum.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    format: String,
    pub(super) version: u32,
    pub(super) features: Vec<String>,
}

/// Why bytes are no registry that can be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Only a newer program can read them.
    Unsupported(Unsupported),
    /// They are foreign, damaged or contradict themselves: the reason in words.
    Wrong(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(why) => why.fmt(out),
            Self::Wrong(why) => out.write_str(why),
        }
    }
}

impl Head {
    /// The head of a registry of this format with these features.
    pub(super) fn new(version: u32, features: &[&str]) -> Self {
        let features = features.iter().map(|&name| name.to_owned()).collect();
        Self { format: FORMAT.to_owned(), version, features }
    }

    /// The file with this head and a body.
    pub(super) fn seal(&self, body: &str) -> Vec<u8> {
        let head = serde_json::to_string(self).expect("a head has only plain values");
        let head = head.strip_suffix('}').expect("it is an object");
        let checksum = checksum(head, body);
        format!("{head}{CHECKSUM}{checksum}{OPENING}\n{body}{TAIL}").into_bytes()
    }
}

/// The checksum over the first part of the head line and the body, in hexadecimal digits.
fn checksum(head: &str, body: &str) -> String {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(head.as_bytes());
    digest.update(body.as_bytes());
    format!("{:08x}", digest.finalize() as u32)
}

/// The bytes of a registry.
pub(super) fn encode(body: &Body) -> Vec<u8> {
    let body = serde_json::to_string_pretty(body).expect("a registry has only plain values");
    Head::new(REGISTRY_FORMAT.version, &[]).seal(&body)
}

/// The records in the bytes of a registry, or why they are none. Nothing is believed of a version, or beside
/// a feature, that is unknown.
pub(super) fn decode(bytes: &[u8]) -> Result<Body, Refused> {
    let foreign = || Refused::Wrong("it is not a Voltier registry".to_owned());
    let damaged = || Refused::Wrong("it is damaged (checksum)".to_owned());
    let wrong = |why: &dyn fmt::Display| Refused::Wrong(format!("it is invalid: {why}"));
    let text = std::str::from_utf8(bytes).map_err(|_| foreign())?;
    if !text.starts_with(&format!("{{\"format\":\"{FORMAT}\",")) {
        return Err(foreign());
    }
    let (first, rest) = text.split_once('\n').ok_or_else(damaged)?;
    let (head, given) = first
        .strip_suffix(OPENING)
        .and_then(|first| first.rsplit_once(CHECKSUM))
        .ok_or_else(damaged)?;
    let body = rest.strip_suffix(TAIL).ok_or_else(damaged)?;
    if given != checksum(head, body) {
        return Err(damaged());
    }
    let head: Head = serde_json::from_str(&format!("{head}}}")).map_err(|error| wrong(&error))?;
    REGISTRY_FORMAT.check_names(head.version, &head.features).map_err(Refused::Unsupported)?;
    let body: Body = serde_json::from_str(body).map_err(|error| {
        let why = error.to_string();
        // No damage: the checksum is right. What is missing was never there; all else is a word or a setting that
        // came later, without a feature of its own.
        if why.starts_with("missing field") {
            wrong(&why)
        } else {
            Refused::Unsupported(Unsupported::Content(why))
        }
    })?;
    body.check().map_err(|why| wrong(&why))?;
    Ok(body)
}
