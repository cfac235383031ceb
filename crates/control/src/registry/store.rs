//! The place of a registry: a file that is replaced whole, with the copy before the last change beside it.

use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{ControlError, ControlResult};

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
    /// When they cannot be read.
    fn read(&self) -> ControlResult<Option<Vec<u8>>>;

    /// Replaces all bytes, on the medium when it returns: whatever happens, either the old ones or
    /// the new ones are there.
    ///
    /// # Errors
    /// When that cannot be done; the old ones are there then.
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
}

/// A file of the state folder, with the copy before the last change beside it.
#[derive(Debug)]
pub(super) struct RegistryFile(pub(super) PathBuf);

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

    fn check_room(&mut self) -> ControlResult<()> {
        let trial = self.0.with_extension("json.new");
        let length = fs::metadata(&self.0).map_or(0, |meta| meta.len() as usize);
        let written = File::create(&trial)
            .and_then(|mut file| file.write_all(&vec![b' '; length + ROOM_BYTES]));
        let _ = fs::remove_file(&trial);
        written.map_err(|error| ControlError::io(format!("writing {}", self.0.display()), &error))
    }

    fn refusal(&self, reason: &str) -> ControlError {
        let previous = previous_path(&self.0);
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
            self.0.display()
        ))
    }
}

fn reading(path: &Path) -> String {
    format!("reading {}", path.display())
}

/// Where the copy before the last change is kept.
pub(super) fn previous_path(path: &Path) -> PathBuf {
    path.with_extension("json.previous")
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
