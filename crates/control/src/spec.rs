//! Devices as the command line names them: a path, `mem:SIZE`, `model:PROFILE[:SIZE|:/path]`,
//! `array:NAME`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use voltier_block::SECTOR_BYTES;

use crate::error::{ControlError, ControlResult};
use crate::name::ArrayName;
use crate::units::{exact_size, parse_size};

/// Kinds of device that are written down in the contract and not served yet.
const LATER: [(&str, &str); 4] = [
    ("nbd://", "NBD drives"),
    ("nbd+unix://", "NBD drives"),
    ("rbd:", "Ceph RBD images"),
    ("s3://", "S3 buckets"),
];

/// The make of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceSpec {
    /// A regular file or a block device.
    Path(PathBuf),
    /// Memory of the daemon: gone when it ends. Size in bytes.
    Memory(u64),
    /// A modelled drive: the timing of a profile over memory or a file.
    Model {
        /// Name of the profile.
        profile: String,
        /// The store of the data.
        over: ModelBacking,
    },
    /// An array of this instance.
    Array(ArrayName),
}

/// The store of a modelled drive's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelBacking {
    /// Memory of the profile's own size.
    ProfileSize,
    /// Memory of this many bytes.
    Memory(u64),
    /// A regular file or a block device.
    Path(PathBuf),
}

impl DeviceSpec {
    /// The path of a device that has one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            DeviceSpec::Path(path) | DeviceSpec::Model { over: ModelBacking::Path(path), .. } => {
                Some(path)
            }
            DeviceSpec::Memory(_) | DeviceSpec::Model { .. } | DeviceSpec::Array(_) => None,
        }
    }

    /// The same device at another path.
    pub fn moved_to(&self, path: PathBuf) -> Self {
        match self {
            DeviceSpec::Path(_) => DeviceSpec::Path(path),
            DeviceSpec::Model { profile, over: ModelBacking::Path(_) } => {
                DeviceSpec::Model { profile: profile.clone(), over: ModelBacking::Path(path) }
            }
            other => other.clone(),
        }
    }

    /// Whether the content ends with the daemon.
    pub fn is_volatile(&self) -> bool {
        // An array's own record says what becomes of it.
        self.path().is_none() && self.array().is_none()
    }

    /// The name of the array, for a device that is one.
    pub fn array(&self) -> Option<&ArrayName> {
        match self {
            DeviceSpec::Array(name) => Some(name),
            DeviceSpec::Path(_) | DeviceSpec::Memory(_) | DeviceSpec::Model { .. } => None,
        }
    }

    /// The same device with its path made absolute: the daemon runs in another folder.
    ///
    /// # Errors
    /// When the current folder is gone.
    pub fn absolute(self) -> ControlResult<Self> {
        let full = |path: PathBuf| {
            std::path::absolute(&path)
                .map_err(|error| ControlError::io(format!("resolving {}", path.display()), &error))
        };
        Ok(match self {
            DeviceSpec::Path(path) => DeviceSpec::Path(full(path)?),
            DeviceSpec::Model { profile, over: ModelBacking::Path(path) } => {
                DeviceSpec::Model { profile, over: ModelBacking::Path(full(path)?) }
            }
            other => other,
        })
    }
}

impl FromStr for DeviceSpec {
    type Err = ControlError;

    fn from_str(text: &str) -> Result<Self, ControlError> {
        if let Some((_, what)) = LATER.into_iter().find(|(prefix, _)| text.starts_with(prefix)) {
            return Err(ControlError::usage(format!(
                "`{text}`: {what} are not in this version; \
                 use a path, mem:SIZE, model:PROFILE[:SIZE] or array:NAME"
            )));
        }
        if let Some(size) = text.strip_prefix("mem:") {
            return Ok(DeviceSpec::Memory(device_size(text, size)?));
        }
        if let Some(model) = text.strip_prefix("model:") {
            return parse_model(text, model);
        }
        if let Some(name) = text.strip_prefix("array:") {
            return name.parse().map(DeviceSpec::Array);
        }
        if text.is_empty() {
            return Err(ControlError::usage(
                "an empty device name; write a path, mem:SIZE, model:PROFILE[:SIZE] or \
                 array:NAME",
            ));
        }
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(ControlError::usage(format!(
                "`{text}`: unknown kind of device `{scheme}`; \
                 use a path, mem:SIZE, model:PROFILE[:SIZE] or array:NAME"
            )));
        }
        Ok(DeviceSpec::Path(PathBuf::from(text)))
    }
}

fn parse_model(text: &str, model: &str) -> ControlResult<DeviceSpec> {
    let (profile, rest) = match model.split_once(':') {
        Some((profile, rest)) => (profile, Some(rest)),
        None => (model, None),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if profile.is_empty() || !profile.chars().all(plain) {
        return Err(ControlError::usage(format!(
            "`{text}` names no profile; write model:PROFILE, model:PROFILE:SIZE or \
             model:PROFILE:/path"
        )));
    }
    let over = match rest {
        None => ModelBacking::ProfileSize,
        Some(path) if path.contains('/') => ModelBacking::Path(PathBuf::from(path)),
        Some(size) => ModelBacking::Memory(device_size(text, size)?),
    };
    Ok(DeviceSpec::Model { profile: profile.to_owned(), over })
}

fn device_size(text: &str, size: &str) -> ControlResult<u64> {
    let bytes = parse_size(size)?;
    if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(ControlError::usage(format!(
            "`{text}`: a device has a positive multiple of {SECTOR_BYTES} bytes; \
             write for example mem:1G"
        )));
    }
    Ok(bytes)
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSpec::Path(path) => write!(out, "{}", path.display()),
            DeviceSpec::Memory(bytes) => write!(out, "mem:{}", exact_size(*bytes)),
            DeviceSpec::Array(name) => write!(out, "array:{name}"),
            DeviceSpec::Model { profile, over } => {
                write!(out, "model:{profile}")?;
                match over {
                    ModelBacking::ProfileSize => Ok(()),
                    ModelBacking::Memory(bytes) => write!(out, ":{}", exact_size(*bytes)),
                    ModelBacking::Path(path) => write!(out, ":{}", path.display()),
                }
            }
        }
    }
}

impl TryFrom<String> for DeviceSpec {
    type Error = ControlError;

    fn try_from(text: String) -> Result<Self, ControlError> {
        text.parse()
    }
}

impl From<DeviceSpec> for String {
    fn from(spec: DeviceSpec) -> String {
        spec.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_written_back_the_same() {
        let forms = [
            "/dev/sdb",
            "mem:1G",
            "mem:512",
            "model:hdd-7200",
            "model:hdd-7200:10G",
            "model:ssd_sata:/tmp/x.img",
            "array:r6",
        ];
        for text in forms {
            assert_eq!(text.parse::<DeviceSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn kinds_of_later_versions_are_refused_by_name() {
        for text in ["nbd://h/x", "nbd+unix:///x?socket=s", "rbd:p/i", "s3://b/p"] {
            let error = text.parse::<DeviceSpec>().unwrap_err();
            assert!(error.message.contains("not in this version"), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn malformed_devices_are_usage_errors() {
        for text in [
            "",
            "mem:",
            "mem:0",
            "mem:100",
            "mem:x",
            "model:",
            "model::1G",
            "model:a:x",
            "array:",
            "array:a/b",
            "iscsi://x",
        ] {
            assert_eq!(text.parse::<DeviceSpec>().unwrap_err().exit_code(), 2, "{text}");
        }
    }

    #[test]
    fn a_relative_path_becomes_absolute_and_memory_stays() {
        let spec: DeviceSpec = "disk.img".parse().unwrap();
        assert!(spec.absolute().unwrap().path().unwrap().is_absolute());
        let model: DeviceSpec = "model:hdd:./disk.img".parse().unwrap();
        assert!(model.absolute().unwrap().path().unwrap().is_absolute());
        let memory: DeviceSpec = "mem:1G".parse().unwrap();
        assert!(memory.absolute().unwrap().is_volatile());
    }
}
