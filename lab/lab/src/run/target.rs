//! Targets of a run: found, sized, opened, and put away again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use voltier_control::protocol::Request;
use voltier_control::{Client, ExportSpec, StateDir, VolumeName, VolumeStatus};
use voltier_drive::model::Profile;
use voltier_results::result::TargetInfo;
use voltier_results::size::{format_bytes, parse_bytes};

use super::facts;
use crate::LabError;
use crate::fio::{self, Fio};
use crate::plan::Extent;
use crate::plan::step::Subject;
use crate::process::{self, Stop};

/// Folder of the files that passes over a folder leave in their target.
pub(super) const FILES_FOLDER: &str = "voltier-lab-files";

/// The time that `nbdinfo` may take.
const ASK_LIMIT: Duration = Duration::from_secs(30);

/// Room that is left on a file system in which a file is made.
const ROOM_BYTES: u64 = 64 << 20;

/// A target of a run.
#[derive(Debug)]
pub struct Target {
    /// The name of the target in the plan.
    pub name: String,
    /// The target as given.
    pub given: String,
    /// The kind of the target.
    pub kind: Kind,
    /// Bytes that the plan uses.
    pub size_bytes: u64,
    /// Facts that the system tells about the target.
    pub facts: BTreeMap<String, String>,
    /// Smallest request in bytes.
    pub block_bytes: u64,
    /// Files that this run made and removes when it is complete.
    pub made: Vec<PathBuf>,
}

/// Kinds of targets.
#[derive(Debug)]
pub enum Kind {
    /// Files or block devices.
    Paths(Vec<PathBuf>),
    /// A folder of a file system.
    Folder(PathBuf),
    /// An NBD export, by URI.
    Nbd(String),
    /// An RBD image.
    Rbd(fio::Target),
    /// A volume of the daemon, through an export of its own.
    Volume(VolumeTarget),
    /// A modelled drive in virtual time.
    Model(&'static Profile),
}

/// A volume and the export that was opened for the run.
#[derive(Debug)]
pub struct VolumeTarget {
    name: VolumeName,
    state: PathBuf,
    program: PathBuf,
    uri: String,
    export: Option<ExportSpec>,
    mode: String,
}

/// Where the daemon is reached.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// The instance's state folder.
    pub state: PathBuf,
    /// The program that starts it.
    pub program: PathBuf,
}

impl Target {
    /// Finds out what `given` is and how large; nothing is made or opened for writing yet.
    ///
    /// # Errors
    /// One line: not there, no target, its size is not known, smaller than the plan needs.
    pub fn find(
        name: &str,
        given: &str,
        extent: Extent,
        daemon: &Daemon,
        stop: &Stop,
    ) -> Result<Target, LabError> {
        let mut target = Target {
            name: name.to_owned(),
            given: given.to_owned(),
            kind: Kind::Paths(Vec::new()),
            size_bytes: 0,
            facts: BTreeMap::new(),
            block_bytes: 512,
            made: Vec::new(),
        };
        let known = match given.split_once(':') {
            Some(("volume", volume)) => Some(target.volume(volume, daemon)?),
            Some(("model", rest)) => Some(target.model(rest)?),
            Some(("rbd", image)) => target.rbd(image)?,
            Some(("nbd" | "nbds" | "nbd+unix" | "nbds+unix", _)) => Some(target.nbd(stop)?),
            _ => target.paths(extent)?,
        };
        target.size(known, extent)?;
        Ok(target)
    }

    fn refuse(&self, why: impl Into<String>) -> LabError {
        LabError::Target { target: self.given.clone(), why: why.into() }
    }

    /// Decides how much is used: of `known` bytes what the plan asks for.
    fn size(&mut self, known: Option<u64>, extent: Extent) -> Result<(), LabError> {
        if matches!(self.kind, Kind::Folder(_)) {
            return Ok(());
        }
        self.size_bytes = match (known, extent) {
            (Some(known), Extent::Bytes(wanted)) if wanted > known => {
                return Err(self.refuse(format!(
                    "is too small: it has {}, the plan uses {}; give a larger one or --size",
                    format_bytes(known),
                    format_bytes(wanted)
                )));
            }
            (_, Extent::Bytes(wanted)) => wanted,
            (Some(known), Extent::Whole) => known / 4096 * 4096,
            (None, Extent::Whole) => {
                return Err(self.refuse("has no size yet: give --size SIZE"));
            }
        };
        match self.size_bytes {
            0 => Err(self.refuse("is empty: give a target with room, or --size SIZE")),
            _ => Ok(()),
        }
    }

    fn paths(&mut self, extent: Extent) -> Result<Option<u64>, LabError> {
        let given = self.given.clone();
        let paths: Vec<PathBuf> = given.split(',').map(PathBuf::from).collect();
        let mut known = 0;
        for path in &paths {
            let path = std::path::absolute(path).map_err(LabError::file(path))?;
            let Ok(meta) = path.metadata() else {
                if paths.len() > 1 {
                    return Err(LabError::Target {
                        target: path.display().to_string(),
                        why: "does not exist; `lsblk` lists devices".to_owned(),
                    });
                }
                return self.missing(path, extent);
            };
            if meta.is_dir() && paths.len() == 1 {
                self.facts = facts::of_folder(&path);
                self.kind = Kind::Folder(path);
                return Ok(None);
            }
            if !meta.is_file() && !meta.file_type().is_block_device() {
                return Err(self.refuse("is neither a file, nor a block device, nor a folder"));
            }
            known += size_of(&path)?;
            self.facts.extend(facts::of_path(&path));
            self.block_bytes = self.block_bytes.max(facts::block_bytes(&path));
            let Kind::Paths(all) = &mut self.kind else { continue };
            all.push(path);
        }
        Ok(Some(known))
    }

    /// A file that is not there is made when the run begins.
    fn missing(&mut self, path: PathBuf, extent: Extent) -> Result<Option<u64>, LabError> {
        let Extent::Bytes(wanted) = extent else {
            return Err(self.refuse("does not exist: give --size SIZE to have a file made"));
        };
        let folder = path.parent().unwrap_or(Path::new("/")).to_path_buf();
        if path.starts_with("/dev") || !folder.is_dir() {
            return Err(self.refuse("does not exist, and no file can be made there"));
        }
        let free = facts::free_bytes(&folder)?;
        if free < wanted + ROOM_BYTES {
            return Err(self.refuse(format!(
                "cannot be made: {} are wanted and {} MiB are free; give --size SIZE",
                format_bytes(wanted),
                free >> 20
            )));
        }
        self.facts = facts::of_folder(&folder);
        self.made.push(path.clone());
        self.kind = Kind::Paths(vec![path]);
        Ok(None)
    }

    fn volume(&mut self, name: &str, daemon: &Daemon) -> Result<u64, LabError> {
        let name: VolumeName = name.parse().map_err(|error| self.refused_by(&error))?;
        let mut volume = VolumeTarget {
            name,
            state: daemon.state.clone(),
            program: daemon.program.clone(),
            uri: String::new(),
            export: None,
            mode: String::new(),
        };
        let status = volume.show()?;
        volume.mode.clone_from(&status.mode);
        self.facts = facts::of_volume(&status);
        self.kind = Kind::Volume(volume);
        Ok(status.size_bytes)
    }

    fn refused_by(&self, error: &voltier_control::ControlError) -> LabError {
        self.refuse(format!("cannot be used: {error}"))
    }

    fn model(&mut self, rest: &str) -> Result<u64, LabError> {
        let (name, size) = rest.split_once(':').unwrap_or((rest, ""));
        let profile = Profile::find(name).map_err(|error| self.refuse(error.to_string()))?;
        let bytes = match size {
            "" => profile.bytes,
            text => parse_bytes(text)
                .ok_or_else(|| self.refuse(format!("has the size `{text}`: write 64M or 2G")))?,
        };
        self.facts.insert("model".to_owned(), profile.description.to_owned());
        self.block_bytes = u64::from(profile.block_bytes);
        self.kind = Kind::Model(profile);
        Ok(bytes)
    }

    /// `rbd:POOL/IMAGE[@USER]`.
    fn rbd(&mut self, given: &str) -> Result<Option<u64>, LabError> {
        let (place, user) = given.split_once('@').unwrap_or((given, "admin"));
        let Some((pool, image)) = place.split_once('/') else {
            return Err(self.refuse("is no RBD image: write rbd:POOL/IMAGE or rbd:POOL/IMAGE@USER"));
        };
        self.kind = Kind::Rbd(fio::Target::Rbd {
            pool: pool.to_owned(),
            image: image.to_owned(),
            user: user.to_owned(),
        });
        Ok(None)
    }

    fn nbd(&mut self, stop: &Stop) -> Result<u64, LabError> {
        let mut command = Command::new("nbdinfo");
        command.args(["--size", &self.given]);
        let finished = match process::run(&mut command, "nbdinfo", ASK_LIMIT, stop) {
            Err(LabError::File { .. }) => {
                return Err(LabError::Missing { program: "nbdinfo", package: "libnbd-bin" });
            }
            other => other?,
        };
        let size = finished.stdout.trim().parse().ok();
        let size =
            size.ok_or_else(|| self.refuse(format!("does not answer: {}", finished.last_words())))?;
        self.kind = Kind::Nbd(self.given.clone());
        Ok(size)
    }

    /// Makes what has to be made, and opens the export of a volume.
    ///
    /// # Errors
    /// When that is refused, or fio lacks the engine.
    pub fn open(&mut self, fio: Option<&Fio>) -> Result<(), LabError> {
        for path in &self.made {
            let file = File::options().write(true).create_new(true).open(path);
            file.and_then(|file| file.set_len(self.size_bytes)).map_err(LabError::file(path))?;
        }
        self.reopen(fio)
    }

    /// [`Target::open`] of what an interrupted run has made.
    ///
    /// # Errors
    /// As [`Target::open`].
    pub fn reopen(&mut self, fio: Option<&Fio>) -> Result<(), LabError> {
        if let Kind::Volume(volume) = &mut self.kind {
            volume.open()?;
        }
        match (&self.kind, fio) {
            (Kind::Nbd(_) | Kind::Volume(_), Some(fio)) => fio.need_engine("nbd"),
            (Kind::Rbd(_), Some(fio)) => fio.need_engine("rbd"),
            _ => Ok(()),
        }
    }

    /// Where fio finds it; `None` of a folder and of a modelled drive.
    pub fn for_fio(&self, engine: &'static str) -> Option<fio::Target> {
        match &self.kind {
            Kind::Paths(paths) => {
                let paths = paths.iter().map(|path| path.display().to_string()).collect();
                Some(fio::Target::Files { paths, engine })
            }
            Kind::Nbd(uri) => Some(fio::Target::Nbd(uri.clone())),
            Kind::Volume(volume) => Some(fio::Target::Nbd(volume.uri.clone())),
            Kind::Rbd(target) => Some(target.clone()),
            Kind::Folder(_) | Kind::Model(_) => None,
        }
    }

    /// The target as plans see it.
    pub fn subject(&self) -> Subject {
        let luns = if let Kind::Paths(paths) = &self.kind { paths.len() as u32 } else { 1 };
        let has_cache = self.volume_status().is_some_and(|status| !status.ssd.path.is_empty());
        Subject {
            name: self.name.clone(),
            size_bytes: self.size_bytes,
            is_new: !self.made.is_empty() || matches!(self.kind, Kind::Model(_)),
            has_cache,
            is_folder: matches!(self.kind, Kind::Folder(_)),
            luns,
            block_bytes: self.block_bytes,
        }
    }

    /// The target for the manifest.
    pub fn info(&self) -> TargetInfo {
        let kind = match &self.kind {
            Kind::Paths(paths) => match paths.iter().all(|path| path.starts_with("/dev")) {
                true => "block",
                false => "file",
            },
            Kind::Folder(_) => "folder",
            Kind::Nbd(_) => "nbd",
            Kind::Rbd(_) => "rbd",
            Kind::Volume(_) => "volume",
            Kind::Model(_) => "model",
        };
        let mut facts = self.facts.clone();
        if !self.made.is_empty() {
            facts.insert(facts::MADE.to_owned(), "yes".to_owned());
        }
        TargetInfo {
            name: self.name.clone(),
            given: self.given.clone(),
            kind: kind.to_owned(),
            size_bytes: self.size_bytes,
            facts,
        }
    }

    /// The status of the volume as the daemon tells it, if the target is a volume.
    pub fn volume_status(&self) -> Option<VolumeStatus> {
        let Kind::Volume(volume) = &self.kind else { return None };
        volume.show().ok()
    }

    /// Switches the cache of a volume: pass-through, or its mode of before.
    ///
    /// # Errors
    /// When the daemon refuses the change.
    pub fn switch_cache(&self, on: bool) -> Result<(), LabError> {
        let Kind::Volume(volume) = &self.kind else { return Ok(()) };
        let mode = if on { volume.mode.clone() } else { "pt".to_owned() };
        let changes = vec![("mode".to_owned(), mode)];
        volume.ask(&Request::Set { name: volume.name.clone(), changes }).map(drop)
    }

    /// The volume as a file, for a loop device, until the run ends.
    ///
    /// # Errors
    /// When the daemon refuses the file, or the target is no volume.
    pub fn file_export(&self, path: &Path) -> Result<PathBuf, LabError> {
        let Kind::Volume(volume) = &self.kind else {
            return Err(self.refuse("is no volume: it has no FUSE file"));
        };
        let export = ExportSpec::Fuse(path.to_path_buf());
        volume.ask(&Request::Export {
            name: volume.name.clone(),
            export,
            insecure: false,
            access: None,
        })?;
        Ok(path.to_path_buf())
    }

    /// Closes an export that [`Target::file_export`] has opened.
    pub fn close_file_export(&self, path: &Path) {
        if let Kind::Volume(volume) = &self.kind
            && path.exists()
        {
            let export = Some(ExportSpec::Fuse(path.to_path_buf()));
            // The daemon may be gone: then so is the export.
            let name = volume.name.clone();
            volume.ask(&Request::Unexport { name, export, now: true }).ok();
        }
    }

    /// Closes exports, and removes what the run made when it is complete.
    pub fn close(&mut self, is_complete: bool) {
        if let Kind::Volume(volume) = &mut self.kind
            && let Some(export) = volume.export.take()
        {
            let name = volume.name.clone();
            // The daemon may be gone: then so is the export.
            volume.ask(&Request::Unexport { name, export: Some(export), now: true }).ok();
        }
        if let Kind::Folder(folder) = &self.kind
            && is_complete
        {
            fs::remove_dir_all(folder.join(FILES_FOLDER)).ok();
        }
        if is_complete {
            for path in self.made.drain(..) {
                fs::remove_file(path).ok();
            }
        }
    }
}

impl VolumeTarget {
    fn client(&self) -> Result<Client, LabError> {
        let failed = |error: voltier_control::ControlError| self.failed(&error);
        let state = StateDir::at(&self.state).map_err(failed)?;
        Client::connect_or_start(&state, &self.program).map_err(failed)
    }

    fn failed(&self, error: &voltier_control::ControlError) -> LabError {
        LabError::Target {
            target: format!("volume:{}", self.name),
            why: format!("cannot be used: {error}"),
        }
    }

    fn show(&self) -> Result<VolumeStatus, LabError> {
        let volumes = self.client()?.show(Some(&self.name)).map_err(|error| self.failed(&error))?;
        volumes.into_iter().next().ok_or_else(|| LabError::Target {
            target: format!("volume:{}", self.name),
            why: "does not exist; `voltier show` lists the volumes".to_owned(),
        })
    }

    fn ask(&self, request: &Request) -> Result<VolumeStatus, LabError> {
        self.client()?.volume(request).map_err(|error| self.failed(&error))
    }

    /// An export of our own beside those that clients use.
    fn open(&mut self) -> Result<(), LabError> {
        let socket = self.state.join(format!("{}.lab-{}.sock", self.name, std::process::id()));
        let export = ExportSpec::Nbd(voltier_control::NbdAddress::Unix(socket));
        self.uri = export.uri(&self.name);
        self.ask(&Request::Export {
            name: self.name.clone(),
            export: export.clone(),
            insecure: false,
            access: None,
        })?;
        self.export = Some(export);
        Ok(())
    }
}

/// Size of a file or a block device: where its end is.
pub(super) fn size_of(path: &Path) -> Result<u64, LabError> {
    use std::io::{Seek, SeekFrom};
    let mut file = File::open(path).map_err(LabError::file(path))?;
    file.seek(SeekFrom::End(0)).map_err(LabError::file(path))
}
