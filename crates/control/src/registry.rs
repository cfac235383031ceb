//! The registry: which volumes there are, in one checksummed JSON file of the state folder.
//!
//! The file is JSON as a whole and exact to the byte: one head line with format, version and the
//! CRC-32C of the body, the body, and a closing line. A change goes to a temporary file, is
//! synced, and takes the name by a rename; the copy before it stays as `registry.json.previous`.
//! What cannot be read is refused and left alone, never repaired by guessing.

use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{ControlError, ControlResult};
use crate::export_spec::ExportSpec;
use crate::name::VolumeName;
use crate::settings::Settings;
use crate::spec::DeviceSpec;
use crate::status::ByteRange;

/// Name of the file in the state folder.
pub const REGISTRY_FILE: &str = "registry.json";
/// Version this program writes; newer ones are refused.
pub const REGISTRY_VERSION: u32 = 1;

/// Lost ranges that are kept one by one: beyond it only their number is.
pub const LOST_RANGES_MAX: usize = 1024;

const FORMAT: &str = "voltier-registry";
const TAIL: &str = "\n}\n";
/// A registry of 10,000 volumes has about 10 MB; what is longer is no registry.
const REGISTRY_BYTES_MAX: u64 = 64 << 20;

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

impl TryFrom<String> for Identity {
    type Error = ControlError;

    fn try_from(text: String) -> Result<Self, ControlError> {
        let wrong = || ControlError::failed(format!("`{text}` is not an identity"));
        if text.len() != 32 || !text.is_ascii() {
            return Err(wrong());
        }
        let value = u128::from_str_radix(&text, 16).map_err(|_| wrong())?;
        Ok(Self(value.to_be_bytes()))
    }
}

impl From<Identity> for String {
    fn from(identity: Identity) -> String {
        identity.to_string()
    }
}

/// What the daemon is to do with a volume when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Desired {
    /// Serve it.
    Serving,
    /// Go on writing dirty lines back, then forget the cache.
    Detaching,
    /// Go on writing dirty lines back, then forget the volume.
    Deleting,
}

/// The cache of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheRecord {
    /// The SSD.
    pub device: DeviceSpec,
    /// Identity written on the SSD when the cache was made.
    pub uuid: Identity,
    /// Choices.
    pub settings: Settings,
    /// Grows with every opening of the cache: an SSD with an older one is stale.
    pub generation: u64,
    /// Whether dirty lines may be on the SSD: set before the first one can be.
    pub maybe_dirty: bool,
    /// Dirty lines when they were last counted: at a clean stop, a flush, the loss of the SSD.
    #[serde(default)]
    pub dirty_lines: u64,
    /// Why the SSD was given up, when it was.
    pub failed: Option<String>,
    /// What was lost with the SSD, in order; the first [`LOST_RANGES_MAX`] of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<ByteRange>,
    /// How many ranges were lost with the SSD.
    #[serde(default)]
    pub lost_total: u64,
}

impl CacheRecord {
    /// What would be lost with the SSD, in words.
    pub fn newest_data(&self) -> String {
        match self.dirty_lines {
            0 => "the newest data".to_owned(),
            1 => "the newest data of 1 line".to_owned(),
            lines => format!("the newest data of {lines} lines, as last counted"),
        }
    }
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Name.
    pub name: VolumeName,
    /// Identity of the volume.
    pub uuid: Identity,
    /// Size in bytes, as found at creation: an origin that is smaller now is refused.
    pub size_bytes: u64,
    /// The slow side.
    pub origin: DeviceSpec,
    /// The fast side.
    pub cache: Option<CacheRecord>,
    /// Doors that are to be open.
    pub exports: Vec<ExportSpec>,
    /// What to do at start.
    pub desired: Desired,
}

#[derive(Default, Serialize, Deserialize)]
struct Body {
    volumes: Vec<VolumeRecord>,
}

/// Where the bytes of a registry are kept.
pub trait RegistryStore: fmt::Debug + Send {
    /// The bytes last written; `None` when nothing ever was.
    ///
    /// # Errors
    /// When they cannot be read.
    fn read(&self) -> ControlResult<Option<Vec<u8>>>;

    /// Replaces all bytes, on the medium when it returns: whatever happens, either the old ones or
    /// the new ones are there.
    ///
    /// # Errors
    /// When that cannot be done; the old ones are there then.
    fn write(&mut self, bytes: &[u8]) -> ControlResult<()>;

    /// What is said when the bytes are no registry that can be used, and why.
    fn refusal(&self, reason: &str) -> ControlError;
}

/// A file of the state folder, with the copy before the last change beside it.
#[derive(Debug)]
struct RegistryFile(PathBuf);

impl RegistryStore for RegistryFile {
    fn read(&self) -> ControlResult<Option<Vec<u8>>> {
        let path = &self.0;
        let length = match fs::metadata(path) {
            Ok(meta) => meta.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(ControlError::io(reading(path), &error)),
        };
        if length > REGISTRY_BYTES_MAX {
            return Err(self.refusal("it is no registry of this program (too long)"));
        }
        fs::read(path).map(Some).map_err(|error| ControlError::io(reading(path), &error))
    }

    fn write(&mut self, bytes: &[u8]) -> ControlResult<()> {
        write_atomically(&self.0, bytes)
            .map_err(|error| ControlError::io(format!("writing {}", self.0.display()), &error))
    }

    fn refusal(&self, reason: &str) -> ControlError {
        let previous = previous_path(&self.0);
        let hint = if previous.exists() {
            format!("the copy before the last change is {}: put it in place", previous.display())
        } else {
            "put a good copy in place".to_owned()
        };
        ControlError::failed(format!(
            "refusing the registry {}: {reason}; {hint}, \
             or move the file away to start with no volumes",
            self.0.display()
        ))
    }
}

/// All volumes of one state folder, in the order of their names.
#[derive(Debug)]
pub struct Registry {
    store: Box<dyn RegistryStore>,
    volumes: Vec<VolumeRecord>,
}

impl Registry {
    /// Reads the registry of a state folder; a folder without one has no volumes.
    ///
    /// # Errors
    /// When the file is foreign, newer or damaged; the message names it and the previous copy.
    pub fn load(state_dir: &Path) -> ControlResult<Self> {
        Self::load_from(Box::new(RegistryFile(state_dir.join(REGISTRY_FILE))))
    }

    /// Reads the registry that is kept in `store`.
    ///
    /// # Errors
    /// When it is foreign, newer or damaged.
    pub fn load_from(store: Box<dyn RegistryStore>) -> ControlResult<Self> {
        let volumes = match store.read()? {
            None => Vec::new(),
            Some(bytes) => decode(&bytes).map_err(|reason| store.refusal(&reason))?,
        };
        Ok(Self { store, volumes })
    }

    /// All volumes.
    pub fn volumes(&self) -> &[VolumeRecord] {
        &self.volumes
    }

    /// One volume.
    pub fn find(&self, name: &VolumeName) -> Option<&VolumeRecord> {
        self.volumes.iter().find(|volume| volume.name == *name)
    }

    /// Adds or replaces a volume, on the medium when it returns.
    ///
    /// # Errors
    /// When the file cannot be written; nothing changed then.
    pub fn put(&mut self, record: VolumeRecord) -> ControlResult<()> {
        let mut volumes = self.volumes.clone();
        volumes.retain(|volume| volume.name != record.name);
        volumes.push(record);
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        self.store(volumes)
    }

    /// Forgets a volume, on the medium when it returns.
    ///
    /// # Errors
    /// When the file cannot be written; nothing changed then.
    pub fn remove(&mut self, name: &VolumeName) -> ControlResult<()> {
        let volumes = self.volumes.iter().filter(|volume| volume.name != *name).cloned().collect();
        self.store(volumes)
    }

    fn store(&mut self, volumes: Vec<VolumeRecord>) -> ControlResult<()> {
        self.store.write(&encode(&volumes))?;
        self.volumes = volumes;
        Ok(())
    }
}

fn reading(path: &Path) -> String {
    format!("reading {}", path.display())
}

/// Where the copy before the last change is kept.
pub(crate) fn previous_path(path: &Path) -> PathBuf {
    path.with_extension("json.previous")
}

fn head(version: u32, checksum: u32) -> String {
    format!(
        "{{\"format\":\"{FORMAT}\",\"version\":{version},\"crc32c\":\"{checksum:08x}\",\
         \"registry\":\n"
    )
}

fn checksum(body: &str) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, body.as_bytes()) as u32
}

fn encode(volumes: &[VolumeRecord]) -> Vec<u8> {
    let body = Body { volumes: volumes.to_vec() };
    let body = serde_json::to_string_pretty(&body).expect("a registry has only plain values");
    format!("{}{body}{TAIL}", head(REGISTRY_VERSION, checksum(&body))).into_bytes()
}

fn decode(bytes: &[u8]) -> Result<Vec<VolumeRecord>, String> {
    let foreign = || "it is no registry of this program".to_owned();
    let damaged = || "it is damaged (checksum)".to_owned();
    let text = std::str::from_utf8(bytes).map_err(|_| foreign())?;
    let (first, rest) = text.split_once('\n').ok_or_else(foreign)?;
    let fields = first
        .strip_prefix(&format!("{{\"format\":\"{FORMAT}\",\"version\":"))
        .ok_or_else(foreign)?;
    let version: u32 =
        fields.split(',').next().and_then(|text| text.parse().ok()).ok_or_else(foreign)?;
    if version > REGISTRY_VERSION {
        return Err(format!("it has version {version}, this program knows {REGISTRY_VERSION}"));
    }
    let body = rest.strip_suffix(TAIL).ok_or_else(damaged)?;
    if format!("{first}\n") != head(version, checksum(body)) || version != REGISTRY_VERSION {
        return Err(damaged());
    }
    let body: Body = serde_json::from_str(body).map_err(|error| format!("it is wrong: {error}"))?;
    let mut names: Vec<&VolumeName> = body.volumes.iter().map(|volume| &volume.name).collect();
    names.sort_unstable();
    if let Some([name, _]) = names.array_windows().find(|[one, other]| one == other) {
        return Err(format!("it is wrong: two volumes are named {name}"));
    }
    for volume in &body.volumes {
        if let Some(Err(why)) = volume.cache.as_ref().map(|it| it.settings.for_cache().check()) {
            return Err(format!("it is wrong: the cache of {} has {why}", volume.name));
        }
    }
    Ok(body.volumes)
}

/// New content under `path`, old content under its previous name, both synced.
fn write_atomically(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let fresh = path.with_extension("json.new");
    let mut file = File::create(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    if path.exists() {
        // A link made beside it and renamed over: the previous copy is never half there.
        let link = path.with_extension("json.link");
        let _ = fs::remove_file(&link);
        fs::hard_link(path, &link)?;
        fs::rename(&link, previous_path(path))?;
    }
    fs::rename(&fresh, path)?;
    let dir = path.parent().expect("a registry is in a folder");
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(name: &str) -> VolumeRecord {
        VolumeRecord {
            name: name.parse().unwrap(),
            uuid: Identity([7; 16]),
            size_bytes: 1 << 30,
            origin: "/dev/sdb".parse().unwrap(),
            cache: Some(CacheRecord {
                device: "mem:1G".parse().unwrap(),
                uuid: Identity([9; 16]),
                settings: Settings::default(),
                generation: 3,
                maybe_dirty: true,
                dirty_lines: 7,
                failed: None,
                lost: vec![ByteRange { offset_bytes: 4096, length_bytes: 512 }],
                lost_total: 1,
            }),
            exports: vec![ExportSpec::Nbd("unix:/run/x.sock".parse().unwrap())],
            desired: Desired::Serving,
        }
    }

    #[test]
    fn what_was_put_is_loaded_again_and_the_copy_before_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::load(dir.path()).unwrap();
        registry.put(volume("b")).unwrap();
        registry.put(volume("a")).unwrap();
        let again = Registry::load(dir.path()).unwrap();
        assert_eq!(again.volumes(), [volume("a"), volume("b")]);
        let previous = fs::read(previous_path(&dir.path().join(REGISTRY_FILE))).unwrap();
        assert_eq!(decode(&previous).unwrap(), [volume("b")]);
        registry.remove(&"a".parse().unwrap()).unwrap();
        assert_eq!(Registry::load(dir.path()).unwrap().volumes(), [volume("b")]);
    }

    #[test]
    fn two_volumes_of_one_name_are_refused() {
        let reason = decode(&encode(&[volume("a"), volume("b"), volume("a")])).unwrap_err();
        assert!(reason.contains("named a"), "{reason}");
    }

    #[test]
    fn the_file_is_json_as_a_whole() {
        let value: serde_json::Value = serde_json::from_slice(&encode(&[volume("a")])).unwrap();
        assert_eq!(value["registry"]["volumes"][0]["name"], "a");
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_refused() {
        let good = encode(&[volume("a")]);
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(decode(&bad).is_err(), "byte {at}, bit {bit}");
            }
            assert!(decode(&good[..at]).is_err(), "cut at {at}");
        }
        assert_eq!(decode(&good).unwrap(), [volume("a")]);
    }

    #[test]
    fn a_newer_a_foreign_and_a_damaged_file_are_refused_by_name_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(REGISTRY_FILE);
        let newer = String::from_utf8(encode(&[])).unwrap().replacen("1,", "2,", 1);
        let cases = [("version 2", newer.as_str()), ("no registry", "{}"), ("no registry", "")];
        for (reason, content) in cases {
            fs::write(&path, content).unwrap();
            let error = Registry::load(dir.path()).unwrap_err();
            assert!(error.message.contains(reason), "{error}");
            assert!(error.message.contains(&path.display().to_string()), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        fs::write(previous_path(&path), "x").unwrap();
        let error = Registry::load(dir.path()).unwrap_err();
        assert!(error.message.contains("registry.json.previous"), "{error}");
    }

    #[test]
    fn a_registry_that_cannot_be_written_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::load(&dir.path().join("absent")).unwrap();
        assert!(registry.put(volume("a")).is_err());
        assert!(registry.volumes().is_empty());
    }
}
