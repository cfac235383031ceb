//! The devices and files that are around, so that it is known when some came or went.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::drive_identity::block_nodes;
use super::machine::Machine;
use super::signature::LOOK_BYTES;

/// Files of a folder that are read for their marks. Folders of drives have dozens; one with a million of
/// files is no such folder, and a start does not read all of them.
const FILES_MAX: usize = 1024;

/// The block devices of the machine and the regular files of some folders, by their paths. Another device
/// under the same path has another number.
pub fn around(machine: &Machine, folders: &BTreeSet<PathBuf>) -> Vec<(PathBuf, u64)> {
    let mut around = block_nodes(machine);
    for path in folders.iter().flat_map(|folder| files_of(machine, folder)) {
        let number = path.metadata().map_or(0, |meta| meta.ino());
        around.push((path, number));
    }
    around
}

/// The regular files of a folder that are large enough for a mark, the first [`FILES_MAX`] by name. Those of volumes
/// are none: one that waits for its volume would be waited for.
pub(super) fn files_of(machine: &Machine, folder: &Path) -> Vec<PathBuf> {
    let exported = machine.exported_files();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_large = |path: &PathBuf| {
        let meta = path.symlink_metadata();
        meta.is_ok_and(|meta| meta.is_file() && meta.len() >= LOOK_BYTES as u64)
    };
    let entries = entries.filter(|path| !exported.contains(path));
    let mut files: Vec<PathBuf> = entries.filter(is_large).collect();
    files.sort();
    files.truncate(FILES_MAX);
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_file_that_comes_goes_or_is_another_one_changes_what_is_around() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::of_tables(dir.path().join("proc"), dir.path().join("sys"));
        let folders = BTreeSet::from([dir.path().to_owned()]);
        let file = |name: &str| {
            let path = dir.path().join(name);
            File::create(&path).unwrap().set_len(1 << 20).unwrap();
            path
        };
        let a = file("a");
        let before = around(&machine, &folders);
        assert_eq!(before.len(), 1);
        let b = file("b");
        assert_ne!(around(&machine, &folders), before);
        fs::remove_file(&b).unwrap();
        assert_eq!(around(&machine, &folders), before);
        let b = file("b");
        fs::rename(&b, &a).unwrap();
        assert_ne!(around(&machine, &folders), before, "another file has the path");
    }

    #[test]
    fn links_folders_and_files_that_are_too_small_for_a_mark_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("folder")).unwrap();
        fs::write(dir.path().join("small"), "x").unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("link")).unwrap();
        let machine = Machine::of_tables(dir.path().join("proc"), dir.path().join("sys"));
        assert_eq!(files_of(&machine, dir.path()), [] as [PathBuf; 0]);
        assert_eq!(files_of(&machine, &dir.path().join("gone")), [] as [PathBuf; 0]);
    }
}
