//! The mark on an image of who used it last.
//!
//! A cache holds what an image had when the cache was last in front of it. When another host used the image since, the
//! cache is old, and its dirty lines would be written over what is newer. So whoever opens an image as a drive leaves a
//! mark in its metadata that nobody used before, and notes it in the state folder: an image with another mark was used
//! by somebody else. The note comes first and keeps the mark before as well, for a crash between the two.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::connection::Connection;
use crate::error::ImageError;
use crate::metadata;
use crate::name::ImageName;

/// The key in the metadata of the image.
const KEY: &CStr = c"voltier.used";
/// Longest name of a host in a mark, in bytes.
const HOST_BYTES_MAX: usize = 64;
/// Marks of one image that count as ours: the last, and the one before.
const MARKS_KEPT: usize = 2;

#[derive(Default)]
struct Notes {
    /// None until a daemon says where: no marks are made then.
    file: Option<PathBuf>,
    /// By the ids of images, the newest last.
    own: BTreeMap<String, Vec<String>>,
    /// What the last look found on an image.
    looked: BTreeMap<String, Option<String>>,
}

static NOTES: Mutex<Notes> =
    Mutex::new(Notes { file: None, own: BTreeMap::new(), looked: BTreeMap::new() });

fn notes() -> MutexGuard<'static, Notes> {
    NOTES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Notes {
    fn read(file: &Path) -> Self {
        let mut own: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let all = fs::read_to_string(file).unwrap_or_default();
        for (id, mark) in all.lines().filter_map(|line| line.split_once(' ')) {
            own.entry(id.to_owned()).or_default().push(mark.to_owned());
        }
        Self { file: Some(file.to_owned()), own, looked: BTreeMap::new() }
    }

    fn is_own(&self, id: &str, mark: &str) -> bool {
        self.own.get(id).is_some_and(|marks| marks.iter().any(|own| own == mark))
    }

    /// Notes a mark that the image is about to have. The file is whole and durable, or as before.
    fn note(&mut self, id: &str, mark: &str) -> std::io::Result<()> {
        let Some(file) = self.file.clone() else { return Ok(()) };
        let marks = self.own.entry(id.to_owned()).or_default();
        marks.push(mark.to_owned());
        marks.drain(..marks.len().saturating_sub(MARKS_KEPT));
        let lines = self.own.iter().flat_map(|(id, marks)| marks.iter().map(move |it| (id, it)));
        let all: String = lines.map(|(id, mark)| format!("{id} {mark}\n")).collect();
        let new = file.with_extension("new");
        let mut written = fs::File::create(&new)?;
        written.write_all(all.as_bytes())?;
        written.sync_all()?;
        fs::rename(&new, &file)
    }
}

/// Keeps the marks of this process and of those before it in this file from now on.
pub fn note_uses_in(file: &Path) {
    *notes() = Notes::read(file);
}

/// A mark that nobody had before, with the name of this host for people.
fn new_mark() -> std::io::Result<String> {
    let number = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let is_plain =
        |letter: &char| letter.is_ascii_alphanumeric() || ['-', '.', '_'].contains(letter);
    let host: String = host.chars().filter(is_plain).take(HOST_BYTES_MAX).collect();
    Ok(format!("{}@{host}", number.trim()))
}

/// The mark on the image, if it has one.
fn read(connection: &Connection) -> Result<Option<String>, i32> {
    let is_plain = |letter: &char| letter.is_ascii_graphic() && ![':', '+'].contains(letter);
    // Whoever wrote another one did not use a Voltier.
    let mark = metadata::get(connection, KEY)?;
    Ok(mark.map(|mark| mark.chars().filter(is_plain).collect()))
}

/// The mark of somebody else who used the image last, if it was not this state folder.
pub(crate) fn foreign(connection: &Connection, id: &str) -> Result<Option<String>, i32> {
    let mark = read(connection)?;
    let mut notes = notes();
    notes.looked.insert(id.to_owned(), mark.clone());
    let is_foreign = |mark: &String| notes.file.is_some() && !notes.is_own(id, mark);
    Ok(mark.filter(is_foreign))
}

/// Marks an image as used by this state folder. Its lock is held.
///
/// # Errors
/// When somebody else used the image since the last look, or the mark cannot be noted or written.
pub(crate) fn leave(connection: &Connection, name: &ImageName, id: &str) -> Result<(), ImageError> {
    let failed = |why: String| ImageError::Failed { doing: "marking the image as used here", why };
    let there = read(connection)
        .map_err(|number| connection.refused(name, "asking who used the image last", number))?;
    let mark = {
        let mut notes = notes();
        if notes.file.is_none() {
            return Ok(());
        }
        if notes.looked.get(id).is_some_and(|looked| *looked != there) {
            notes.looked.remove(id);
            return Err(ImageError::UsedMeanwhile);
        }
        let mark = new_mark().map_err(|error| failed(error.to_string()))?;
        notes.note(id, &mark).map_err(|error| failed(error.to_string()))?;
        notes.looked.insert(id.to_owned(), Some(mark.clone()));
        mark
    };
    let written = metadata::put(connection, id, KEY, &mark);
    written.map_err(|number| connection.refused(name, "marking the image as used here", number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_and_the_one_before_are_ours_also_after_a_restart_and_others_are_not() {
        let file = std::env::temp_dir().join(format!("voltier-uses-{}", std::process::id()));
        let mut notes = Notes::read(&file);
        for mark in ["a@h", "b@h", "c@h"] {
            notes.note("1", mark).unwrap();
        }
        notes.note("2", "d@h").unwrap();
        let again = Notes::read(&file);
        let own = |id, mark| (notes.is_own(id, mark), again.is_own(id, mark));
        assert_eq!(own("1", "b@h"), (true, true));
        assert_eq!(own("1", "c@h"), (true, true));
        assert_eq!(own("2", "d@h"), (true, true));
        assert_eq!(own("1", "a@h"), (false, false));
        assert_eq!(own("1", "d@h"), (false, false), "of another image");
        fs::remove_file(&file).unwrap();
        assert_ne!(new_mark().unwrap(), new_mark().unwrap());
    }
}
