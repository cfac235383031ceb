//! `voltier mount`: the file system of a volume, at a folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use voltier_cli::output::{print, print_json};
use voltier_control::{
    ControlError, ControlResult, ExportState, VolumeName, VolumeState, VolumeStatus,
};

use crate::args::Mount;
use crate::programs::{output, said};
use crate::session::Session;

/// Mounts a volume, after it was made a file system if that is asked for.
pub(crate) fn run(session: &Session<'_>, args: &Mount) -> ControlResult<()> {
    let name: VolumeName = args.name.parse()?;
    let volumes = session.client()?.show(Some(&name))?;
    let volume =
        volumes.first().ok_or_else(|| ControlError::failed("the daemon shows no volume"))?;
    let device = device_of(volume)?;
    if !rustix::process::geteuid().is_root() {
        return Err(ControlError::failed("mounting needs root"));
    }
    let folder = std::path::absolute(&args.folder).map_err(|error| {
        ControlError::io(format!("resolving {}", args.folder.display()), &error)
    })?;
    check_folder(&folder)?;
    let content = Content::of(&device)?;
    let kind = file_system(&name, &device, &content, args.mkfs.as_deref())?;
    if let Some(kind) = &args.mkfs {
        make_file_system(kind, &device)?;
    }
    let mut command = Command::new("mount");
    args.options.iter().for_each(|options| {
        command.args(["-o", options]);
    });
    let mounted = output(command.arg("--").arg(&device).arg(&folder), "mount")?;
    if !mounted.status.success() {
        return Err(said(&format!("mounting {device} on {}", folder.display()), &mounted));
    }
    if session.json {
        let folder = folder.display().to_string();
        return print_json(&json!({
            "name": name, "device": device, "mounted_on": folder, "file_system": kind
        }));
    }
    print(&format!("{name}: mounted on {} ({kind})\n", folder.display()))
}

/// The name of the volume's block device, if the device is there and free.
fn device_of(volume: &VolumeStatus) -> ControlResult<String> {
    let name = &volume.name;
    if !matches!(volume.state, VolumeState::Running | VolumeState::Degraded | VolumeState::Draining)
    {
        return Err(ControlError::failed(format!(
            "{name} is not served; `voltier show {name}` says why, `voltier start {name}` tries again"
        )));
    }
    let Some(export) = volume.exports.iter().find(|export| export.kind == "loop") else {
        return Err(ControlError::failed(format!(
            "{name} has no block device; `voltier export {name} --loop` makes one"
        )));
    };
    if export.state != ExportState::Open {
        let why = &export.error;
        return Err(ControlError::failed(format!(
            "the block device of {name} is not there: {why}"
        )));
    }
    // A program may have it open for a moment, and a mount is in nobody's way then.
    if let Some(holder) = export.users.iter().find(|user| user.starts_with("/dev/")) {
        return Err(ControlError::in_use(format!(
            "{name} is in use by {holder}; unmount it first"
        )));
    }
    Ok(export.uri.clone())
}

pub(crate) fn check_folder(folder: &Path) -> ControlResult<()> {
    let shown = folder.display();
    let entries = fs::read_dir(folder).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            ControlError::failed(format!("{shown} does not exist; `mkdir -p {shown}` makes it"))
        }
        std::io::ErrorKind::NotADirectory => {
            ControlError::failed(format!("{shown} is no folder; choose an empty one"))
        }
        _ => ControlError::io(format!("reading {shown}"), &error),
    })?;
    if entries.count() > 0 {
        return Err(ControlError::failed(format!(
            "{shown} is not empty, and the mount would hide what is in it; choose an empty folder"
        )));
    }
    Ok(())
}

/// What is on a device, as `blkid` sees it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    /// `ext4`, `LVM2_member`.
    pub(crate) kind: String,
    /// `filesystem`, `raid`, `crypto`, `other`.
    pub(crate) usage: String,
    /// The kind of a partition table.
    partitions: String,
    /// All that it says: `UUID`, `LABEL`.
    pub(crate) names: BTreeMap<String, String>,
}

impl Content {
    pub(crate) fn of(device: &str) -> ControlResult<Self> {
        let asked = output(
            Command::new("blkid").args(["--probe", "--output", "export", "--"]).arg(device),
            "blkid",
        )?;
        match asked.status.code() {
            Some(0) => Ok(Self::read(&String::from_utf8_lossy(&asked.stdout))),
            // It found nothing.
            Some(2) if asked.stderr.is_empty() => Ok(Self::default()),
            Some(8) => Err(ControlError::failed(format!(
                "{device} has the marks of several file systems; `wipefs {device}` lists them"
            ))),
            _ => Err(said(&format!("looking at {device}"), &asked)),
        }
    }

    fn read(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        let names: BTreeMap<String, String> =
            pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let value = |key: &str| names.get(key).cloned().unwrap_or_default();
        let (kind, usage, partitions) = (value("TYPE"), value("USAGE"), value("PTTYPE"));
        Self { kind, usage, partitions, names }
    }

    /// What is there, in words; empty when nothing is.
    pub(crate) fn in_words(&self) -> String {
        match (self.kind.as_str(), self.partitions.as_str()) {
            ("", "") => String::new(),
            ("", table) => format!("a partition table ({table})"),
            (kind, _) => kind.to_owned(),
        }
    }
}

/// The kind of the file system that is there, or is going to be made.
fn file_system(
    name: &VolumeName,
    device: &str,
    content: &Content,
    mkfs: Option<&str>,
) -> ControlResult<String> {
    let found = content.in_words();
    match mkfs {
        Some(kind) if found.is_empty() => Ok(kind.to_owned()),
        Some(_) => Err(ControlError::failed(format!(
            "{name} holds data ({found}), which --mkfs does not overwrite; mount it without --mkfs, or clear it \
             with `wipefs -a {device}`"
        ))),
        None if content.usage == "filesystem" => Ok(content.kind.clone()),
        None if found.is_empty() => Err(ControlError::failed(format!(
            "{name} has no file system yet; add --mkfs ext4 (or xfs, btrfs) to make an empty one"
        ))),
        None if content.kind.is_empty() => {
            let node = fs::read_link(device).unwrap_or_default();
            Err(ControlError::failed(format!(
                "{name} has {found}: mount one of its partitions, which `lsblk {}` lists",
                node.display()
            )))
        }
        None => Err(ControlError::failed(format!(
            "{name} holds {found}, which is no file system; use it through {device}"
        ))),
    }
}

fn make_file_system(kind: &str, device: &str) -> ControlResult<()> {
    if !kind.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(ControlError::usage(format!(
            "`{}` is no kind of file system; write for example --mkfs ext4",
            kind.escape_default()
        )));
    }
    let program = format!("mkfs.{kind}");
    let made = output(Command::new(&program).arg(device), &program)?;
    match made.status.success() {
        true => Ok(()),
        false => Err(said(&format!("{program} on {device}"), &made)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_a_device_decides_what_happens() {
        let name: VolumeName = "v".parse().unwrap();
        let asked = |text: &str, mkfs| {
            let content = Content::read(text);
            file_system(&name, "/dev/voltier/v", &content, mkfs).map_err(|error| error.message)
        };
        let ext4 = "DEVNAME=/dev/loop0\nUUID=1\nVERSION=1.0\nTYPE=ext4\nUSAGE=filesystem\n";
        assert_eq!(asked(ext4, None).unwrap(), "ext4");
        assert!(asked(ext4, Some("xfs")).unwrap_err().contains("does not overwrite"));
        assert!(asked("", None).unwrap_err().contains("--mkfs ext4"));
        assert_eq!(asked("", Some("xfs")).unwrap(), "xfs");
        let table = "DEVNAME=/dev/loop0\nPTUUID=1\nPTTYPE=gpt\n";
        assert!(asked(table, None).unwrap_err().contains("one of its partitions"));
        assert!(asked(table, Some("xfs")).unwrap_err().contains("a partition table (gpt)"));
        let lvm = "TYPE=LVM2_member\nUSAGE=raid\n";
        assert!(asked(lvm, None).unwrap_err().contains("is no file system"));
    }
}
