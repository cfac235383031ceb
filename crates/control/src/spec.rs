//! Devices as the command line names them: a path, `mem:SIZE`, `model:PROFILE[:SIZE|:/path]`,
//! `nbd://HOST/NAME`, `rbd:POOL/IMAGE`, `array:NAME`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use voltier_block::SECTOR_BYTES;

use crate::error::{ControlError, ControlResult};
use crate::export_spec::absolute;
use crate::name::ArrayName;
use crate::remote::Remote;
use crate::units::{exact_size, parse_size};
use crate::words::text_form;

/// A kind of device with a word of its own: every other text is a path.
#[derive(Debug)]
pub struct DeviceKind {
    /// The text begins with it.
    pub prefix: &'static str,
    /// The whole text, in help and in errors.
    pub form: &'static str,
    /// Reads the text, given whole and behind the prefix.
    read: fn(&str, &str) -> ControlResult<DeviceSpec>,
    /// Texts for tests.
    pub examples: &'static [&'static str],
}

/// The kinds of drives with a word of their own. They can be a member of an array or a side of a volume.
pub static DRIVE_KINDS: [DeviceKind; 5] = [
    DeviceKind {
        prefix: "mem:",
        form: "mem:SIZE",
        read: |text, size| device_size(text, size).map(DeviceSpec::Memory),
        examples: &["mem:1G", "mem:512"],
    },
    DeviceKind {
        prefix: "model:",
        form: "model:PROFILE[:SIZE]",
        read: parse_model,
        examples: &["model:hdd-7200", "model:hdd-7200:10G", "model:ssd_sata:/tmp/x.img"],
    },
    DeviceKind {
        prefix: "nbd://",
        form: "nbd://HOST[:PORT]/NAME",
        read: |text, _| parse_export(text),
        examples: &["nbd://host/name", "nbd://[::1]:10810/"],
    },
    DeviceKind {
        prefix: "nbd+unix://",
        form: "nbd+unix:///NAME?socket=PATH",
        read: |text, _| parse_export(text),
        examples: &["nbd+unix:///?socket=/run/x.sock"],
    },
    DeviceKind {
        prefix: "rbd:",
        form: "rbd:POOL[/NAMESPACE]/IMAGE[@CONF]",
        read: |text, _| Remote::rbd(text).map(DeviceSpec::Remote),
        examples: &["rbd:pool/image", "rbd:pool/space/image@/etc/ceph/other.conf?id=voltier"],
    },
];

/// An array, which can be a side of a volume.
pub static ARRAY_KIND: DeviceKind = DeviceKind {
    prefix: "array:",
    form: "array:NAME",
    read: |_, name| name.parse().map(DeviceSpec::Array),
    examples: &["array:r6"],
};

/// The forms that name a drive, for help: `a path, mem:SIZE or ...`.
pub fn drive_forms() -> String {
    in_words(DRIVE_KINDS.iter())
}

/// The forms that name any device.
fn device_forms() -> String {
    in_words(DRIVE_KINDS.iter().chain([&ARRAY_KIND]))
}

fn in_words<'a>(kinds: impl Iterator<Item = &'a DeviceKind>) -> String {
    let forms: Vec<_> = kinds.map(|kind| kind.form).collect();
    let (last, others) = forms.split_last().expect("there are kinds");
    format!("a path, {} or {last}", others.join(", "))
}

/// Kinds of device that are written down in the contract and not served yet.
const LATER: [(&str, &str); 1] = [("s3://", "S3 buckets")];

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
    /// A drive beyond this machine.
    Remote(Remote),
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

/// Where the data of a device are, which says by what a record or a search knows the device again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage<'a> {
    /// In this process: new at each start, and nobody else can have it.
    Own,
    /// On this machine, at a path: it can be missing, be elsewhere, be in use by others, and carry labels.
    Path(&'a Path),
    /// Behind a server, whom nobody can ask who else uses them: they can be missing, and carry labels.
    Remote(&'a Remote),
    /// In an array of this instance, whose own record says what becomes of it.
    Array(&'a ArrayName),
}

impl DeviceSpec {
    /// Where the data of the device are.
    pub fn storage(&self) -> Storage<'_> {
        match self {
            DeviceSpec::Path(path) | DeviceSpec::Model { over: ModelBacking::Path(path), .. } => {
                Storage::Path(path)
            }
            DeviceSpec::Memory(_) | DeviceSpec::Model { .. } => Storage::Own,
            DeviceSpec::Remote(remote) => Storage::Remote(remote),
            DeviceSpec::Array(name) => Storage::Array(name),
        }
    }

    /// Whether the device is there without this daemon: it can be missing, be found elsewhere, be in use by
    /// others, and carry labels.
    pub fn is_external(&self) -> bool {
        matches!(self.storage(), Storage::Path(_) | Storage::Remote(_))
    }

    /// Whether the content ends with the daemon.
    pub fn is_volatile(&self) -> bool {
        self.storage() == Storage::Own
    }

    /// The path of a device that has one.
    pub fn path(&self) -> Option<&Path> {
        if let Storage::Path(path) = self.storage() { Some(path) } else { None }
    }

    /// The drive beyond this machine, for a device that is one.
    pub fn remote(&self) -> Option<&Remote> {
        if let Storage::Remote(remote) = self.storage() { Some(remote) } else { None }
    }

    /// The name of the array, for a device that is one.
    pub fn array(&self) -> Option<&ArrayName> {
        if let Storage::Array(name) = self.storage() { Some(name) } else { None }
    }

    /// The same device at another path, for one that is at a path.
    pub fn moved_to(&self, path: PathBuf) -> Self {
        match self {
            DeviceSpec::Path(_) => DeviceSpec::Path(path),
            DeviceSpec::Model { profile, over: ModelBacking::Path(_) } => {
                DeviceSpec::Model { profile: profile.clone(), over: ModelBacking::Path(path) }
            }
            other => other.clone(),
        }
    }

    /// The same device with its path made absolute: the daemon runs in another folder.
    ///
    /// # Errors
    /// When the current folder is gone.
    pub fn absolute(self) -> ControlResult<Self> {
        if let DeviceSpec::Remote(remote) = self {
            return remote.absolute().map(DeviceSpec::Remote);
        }
        let Some(path) = self.path() else { return Ok(self) };
        let full = absolute(path)?;
        Ok(self.moved_to(full))
    }
}

impl FromStr for DeviceSpec {
    type Err = ControlError;

    fn from_str(text: &str) -> Result<Self, ControlError> {
        if let Some((_, what)) = LATER.into_iter().find(|(prefix, _)| text.starts_with(prefix)) {
            return Err(ControlError::usage(format!(
                "`{text}`: {what} are not in this version; use {}",
                device_forms()
            )));
        }
        for kind in DRIVE_KINDS.iter().chain([&ARRAY_KIND]) {
            if let Some(rest) = text.strip_prefix(kind.prefix) {
                return (kind.read)(text, rest);
            }
        }
        if text.is_empty() {
            let forms = device_forms();
            return Err(ControlError::usage(format!("an empty device name; write {forms}")));
        }
        if let Some((scheme, _)) = text.split_once("://") {
            if scheme.starts_with("nbd") {
                return parse_export(text);
            }
            return Err(ControlError::usage(format!(
                "`{text}`: unknown kind of device `{scheme}`; use {}",
                device_forms()
            )));
        }
        Ok(DeviceSpec::Path(PathBuf::from(text)))
    }
}

fn parse_export(text: &str) -> ControlResult<DeviceSpec> {
    Remote::nbd(text).map(DeviceSpec::Remote)
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
            DeviceSpec::Remote(remote) => write!(out, "{remote}"),
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

text_form!(DeviceSpec);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_written_back_the_same() {
        assert_eq!("/dev/sdb".parse::<DeviceSpec>().unwrap().to_string(), "/dev/sdb");
        for kind in DRIVE_KINDS.iter().chain([&ARRAY_KIND]) {
            for text in kind.examples {
                assert!(text.starts_with(kind.prefix) && kind.form.starts_with(kind.prefix));
                assert_eq!(text.parse::<DeviceSpec>().unwrap().to_string(), *text);
            }
        }
    }

    #[test]
    fn the_format_of_the_registry_names_every_kind() {
        const FORMAT: &str = include_str!("../../../docs/formats/registry.md");
        for kind in DRIVE_KINDS.iter().chain([&ARRAY_KIND]) {
            assert!(FORMAT.contains(&format!("`{}", kind.prefix)), "{}", kind.form);
        }
    }

    #[test]
    fn kinds_of_later_versions_are_refused_by_name() {
        let error = "s3://b/p".parse::<DeviceSpec>().unwrap_err();
        let forms = "rbd:POOL[/NAMESPACE]/IMAGE[@CONF] or array:NAME";
        assert!(error.message.contains("not in this version"), "{error}");
        assert!(error.message.ends_with(forms), "{error}");
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn a_drive_beyond_this_machine_outlives_the_daemon_and_has_no_path() {
        for text in ["nbd://h/x", "rbd:p/i"] {
            let remote: DeviceSpec = text.parse().unwrap();
            assert!(remote.is_external() && !remote.is_volatile() && remote.path().is_none());
        }
        let refused = "nbds://h/x".parse::<DeviceSpec>().unwrap_err().message;
        assert!(refused.contains("TLS is not in this version"), "{refused}");
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
            "nbds://h/x",
            "nbd+ssh://h/x",
            "nbd:///x",
            "nbd+unix:///x",
            "rbd:x",
            "rbd:p/i@snap",
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
        let export: DeviceSpec = "nbd+unix:///x?socket=run/s".parse().unwrap();
        assert!(export.absolute().unwrap().to_string().contains("?socket=/"));
        let image: DeviceSpec = "rbd:p/i@./b.conf?id=x".parse().unwrap();
        assert!(image.absolute().unwrap().to_string().starts_with("rbd:p/i@/"));
        let memory: DeviceSpec = "mem:1G".parse().unwrap();
        assert!(memory.absolute().unwrap().is_volatile());
    }
}
