//! The connections of the daemon that served the same state folder before and was killed.
//!
//! The cluster takes half a minute to notice that a client is gone, and for so long its lock looks like one of another
//! host. Who is known to be dead need not be waited for: its lock is broken, and the cluster refuses from then on what
//! it may have sent. So a daemon notes the addresses of its connections in its folder. That their process is dead
//! follows from the lock of the folder, which one process of this machine has, and from the number of the machine's
//! boot: a folder that was copied, or is shared by machines, has the number of another one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most addresses of former connections that are kept.
const FORMER_MAX: usize = 256;

#[derive(Default)]
struct Notes {
    /// None until a daemon says where.
    file: Option<PathBuf>,
    boot: String,
    own: BTreeSet<String>,
    former: BTreeSet<String>,
}

static NOTES: Mutex<Option<Notes>> = Mutex::new(None);

fn notes() -> MutexGuard<'static, Option<Notes>> {
    NOTES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Notes {
    fn read(file: &Path, boot: String) -> Self {
        let text = fs::read_to_string(file).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let former = lines.filter(|(of, _)| *of == boot && !boot.is_empty());
        let former = former.map(|(_, address)| address.to_owned()).take(FORMER_MAX).collect();
        Self { file: Some(file.to_owned()), boot, own: BTreeSet::new(), former }
    }

    fn write(&self) {
        let Some(file) = &self.file else { return };
        let all = self.own.iter().chain(&self.former);
        let text: String = all.map(|address| format!("{} {address}\n", self.boot)).collect();
        // What is not noted is waited for.
        let _ = fs::write(file, text);
    }
}

/// Notes connections in this file from now on. Those that stand there are of a process that has ended: the caller has
/// the lock of the folder.
pub fn note_clients_in(file: &Path) {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    *notes() = Some(Notes::read(file, boot.trim().to_owned()));
}

/// Notes a connection of this process, before it takes a lock.
pub(crate) fn add(address: &str) {
    if let Some(notes) = &mut *notes() {
        notes.own.insert(address.to_owned());
        notes.write();
    }
}

/// A connection of this process has ended.
pub(crate) fn remove(address: &str) {
    if let Some(notes) = &mut *notes()
        && notes.own.remove(address)
    {
        notes.write();
    }
}

/// Whether an address is one of a process of this folder that has ended.
pub(crate) fn is_former(address: &str) -> bool {
    notes().as_ref().is_some_and(|notes| notes.former.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_noted_in_the_same_boot_of_the_machine_is_known_to_be_dead() {
        let file = std::env::temp_dir().join(format!("voltier-clients-{}", std::process::id()));
        let mut notes = Notes::read(&file, "boot-1".to_owned());
        assert!(notes.former.is_empty());
        notes.own.insert("10.0.0.1:0/7".to_owned());
        notes.write();
        let again = Notes::read(&file, "boot-1".to_owned());
        assert!(again.former.contains("10.0.0.1:0/7"));
        assert!(Notes::read(&file, "boot-2".to_owned()).former.is_empty());
        fs::write(&file, "\nx\n 10.0.0.1:0/7\n").unwrap();
        assert!(Notes::read(&file, String::new()).former.is_empty());
        fs::remove_file(&file).unwrap();
    }
}
