//! The place of a registry: a file that is replaced whole, with the copy before the last change beside it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, fsync, linkat, openat, renameat, unlinkat};
use rustix::io::Errno;
use voltier_block::Unsupported;

use crate::error::{ControlError, ControlResult};

/// Name of the file in the state folder.
pub const REGISTRY_FILE: &str = "registry.json";
/// The content before the last change.
const PREVIOUS: &str = "registry.json.previous";
/// The next content until it has the name.
const FRESH: &str = "registry.json.new";
/// The old content on its way to be the previous one.
const LINK: &str = "registry.json.link";

/// A registry of 10,000 volumes has about 10 MB; what is longer is no registry.
const REGISTRY_BYTES_MAX: u64 = 64 << 20;

/// The bytes that one command adds to a registry at most, with the lists of lost ranges: the room that a
/// check asks for.
const ROOM_BYTES: usize = 64 << 10;

/// Where the bytes of a registry are kept.
pub trait RegistryStore: fmt::Debug + Send {
    /// The bytes last written; `None` when nothing ever was.
    ///
    /// # Errors
    /// When the bytes cannot be read.
    fn read(&self) -> ControlResult<Option<Vec<u8>>>;

    /// Replaces all bytes, on the medium when it returns: whatever happens, either the old ones or
    /// the new ones are there.
    ///
    /// # Errors
    /// When the bytes cannot be stored; the old ones are there then.
    fn write(&mut self, bytes: &[u8]) -> ControlResult<()>;

    /// Looks whether a registry that has grown a little could be written now. Changes nothing.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn check_room(&mut self) -> ControlResult<()> {
        Ok(())
    }

    /// The error of bytes that are no usable registry, with the reason.
    fn refusal(&self, reason: &str) -> ControlError;

    /// The error of a registry that only a newer program can read.
    fn refusal_of_newer(&self, why: &Unsupported) -> ControlError {
        ControlError::failed(format!("refusing the registry: {why}"))
    }
}

/// A file of the state folder, with the copy before the last change beside it.
///
/// The folder is opened once. A file system that is mounted over the folder later may lie on a volume of this
/// very daemon. A record written there would wait for clients, and clients wait for records.
#[derive(Debug)]
pub(super) struct RegistryFile {
    /// `None` when the folder was not there.
    folder: Option<OwnedFd>,
    /// Where the file was, for people.
    path: PathBuf,
}

impl RegistryFile {
    /// The registry in a state folder.
    ///
    /// # Errors
    /// When the folder is there and cannot be opened.
    pub(super) fn of(state_dir: &Path) -> ControlResult<Self> {
        let path = state_dir.join(REGISTRY_FILE);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(state_dir, flags, Mode::empty()) {
            Ok(folder) => Ok(Self { folder: Some(folder), path }),
            Err(Errno::NOENT) => Ok(Self { folder: None, path }),
            Err(errno) => Err(ControlError::io(reading(&path), &errno.into())),
        }
    }

    fn folder(&self) -> io::Result<&OwnedFd> {
        self.folder.as_ref().ok_or_else(|| Errno::NOENT.into())
    }

    /// The file, if it is there.
    fn open(&self) -> io::Result<Option<File>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        match openat(folder, REGISTRY_FILE, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => Ok(Some(file.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// An empty file beside the registry.
    fn fresh(&self) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        Ok(openat(self.folder()?, FRESH, flags, Mode::from_raw_mode(0o666))?.into())
    }

    /// New content under the name, old content under its previous name, both synced.
    fn write_atomically(&self, bytes: &[u8]) -> io::Result<()> {
        let folder = self.folder()?;
        let mut file = self.fresh()?;
        file.write_all(bytes)?;
        file.sync_all()?;
        if self.open()?.is_some() {
            // A link made beside it and renamed over: the previous copy is never half there.
            let _ = unlinkat(folder, LINK, AtFlags::empty());
            linkat(folder, REGISTRY_FILE, folder, LINK, AtFlags::empty())?;
            renameat(folder, LINK, folder, PREVIOUS)?;
        }
        renameat(folder, FRESH, folder, REGISTRY_FILE)?;
        Ok(fsync(folder)?)
    }
}

impl RegistryStore for RegistryFile {
    fn read(&self) -> ControlResult<Option<Vec<u8>>> {
        let failed = |error| ControlError::io(reading(&self.path), &error);
        let Some(mut file) = self.open().map_err(failed)? else { return Ok(None) };
        if file.metadata().map_err(failed)?.len() > REGISTRY_BYTES_MAX {
            return Err(self.refusal("it is not a Voltier registry (too long)"));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        Ok(Some(bytes))
    }

    fn write(&mut self, bytes: &[u8]) -> ControlResult<()> {
        let writing = || format!("writing {}", self.path.display());
        if bytes.len() as u64 > REGISTRY_BYTES_MAX {
            return Err(ControlError::failed(format!(
                "{}: it would be longer than {} MiB, and no start would read it; it stays as it is: delete volumes",
                writing(),
                REGISTRY_BYTES_MAX >> 20
            )));
        }
        self.write_atomically(bytes).map_err(|error| ControlError::io(writing(), &error))
    }

    fn check_room(&mut self) -> ControlResult<()> {
        let file = self.open().ok().flatten();
        let length = file.and_then(|file| file.metadata().ok()).map_or(0, |meta| meta.len());
        let trial = vec![b' '; length as usize + ROOM_BYTES];
        let written = self.fresh().and_then(|mut file| file.write_all(&trial));
        let _ = self.folder().map(|folder| unlinkat(folder, FRESH, AtFlags::empty()));
        let writing = || format!("writing {}", self.path.display());
        written.map_err(|error| ControlError::io(writing(), &error))
    }

    fn refusal_of_newer(&self, why: &Unsupported) -> ControlError {
        ControlError::failed(format!("refusing the registry {}: {why}", self.path.display()))
    }

    fn refusal(&self, reason: &str) -> ControlError {
        let previous = previous_path(&self.path);
        let hint = if previous.exists() {
            format!(
                "; the copy before the last change, {}, may trust an SSD or a member that was given up \
                 since, and older data would go over newer: read `The registry is damaged` in the guide \
                 before you use it",
                previous.display()
            )
        } else {
            String::new()
        };
        ControlError::failed(format!(
            "refusing the registry {}: {reason}; put your own backup of its newest state in place, or \
             move the file away and have `voltier import DEVICE...` bring back what the drives say{hint}",
            self.path.display()
        ))
    }
}

fn reading(path: &Path) -> String {
    format!("reading {}", path.display())
}

/// Where the copy before the last change is kept.
pub(super) fn previous_path(path: &Path) -> PathBuf {
    path.with_file_name(PREVIOUS)
}
