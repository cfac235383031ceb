//! The connections of the daemon that served the same state folder before and was killed.
//!
//! The cluster takes half a minute to notice that a client is gone, and for so long its lock looks like one of another
//! host. Who is known to be dead need not be waited for: its lock is broken, and the cluster refuses from then on what
//! it may have sent. So a daemon notes the addresses of its connections in its folder. That their process is dead
//! follows from the lock of the folder, which one process of this machine has, and from the number of the machine's
//! boot: a folder that was copied, or is shared by machines, has the number of another one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most addresses of former connections that are kept.
const FORMER_MAX: usize = 256;

#[derive(Default)]
struct Notes {
    /// None until a daemon says where.
    file: Option<PathBuf>,
    /// The number of the boot and the file that is locked, of this process.
    proof: String,
    own: BTreeSet<String>,
    former: BTreeSet<String>,
}

static NOTES: Mutex<Option<Notes>> = Mutex::new(None);

fn notes() -> MutexGuard<'static, Option<Notes>> {
    NOTES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Notes {
    fn read(file: &Path, proof: String) -> Self {
        let text = fs::read_to_string(file).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let former = lines.filter(|(of, _)| *of == proof && !proof.is_empty());
        let former = former.map(|(_, address)| address.to_owned()).take(FORMER_MAX).collect();
        Self { file: Some(file.to_owned()), proof, own: BTreeSet::new(), former }
    }

    fn write(&self) {
        let Some(file) = &self.file else { return };
        let all = self.own.iter().chain(&self.former);
        let text: String = all.map(|address| format!("{} {address}\n", self.proof)).collect();
        // What is not noted is waited for.
        let _ = fs::write(file, text);
    }
}

/// What nobody else has while this process has `lock` locked: the boot of the machine, and the file itself. Empty when
/// the machine does not say.
fn proof(lock: &File) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let file = lock.metadata().ok().filter(|_| !boot.trim().is_empty());
    file.map_or_else(String::new, |file| format!("{}:{}:{}", boot.trim(), file.dev(), file.ino()))
}

/// Notes connections in this file from now on. Those that stand there with the same `lock` are of a process that has
/// ended: the caller has the lock, and a living process would.
pub fn note_clients_in(file: &Path, lock: &File) {
    *notes() = Some(Notes::read(file, proof(lock)));
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

    #[test]
    fn a_copy_of_a_folder_proves_nothing_about_the_daemon_of_the_folder() {
        let file = |name: &str| {
            let process = std::process::id();
            std::env::temp_dir().join(format!("voltier-lock-{process}-{name}"))
        };
        let (lock, copy) = (file("own"), file("copy"));
        fs::write(&lock, "1\n").unwrap();
        fs::copy(&lock, &copy).unwrap();
        let proofs = [&lock, &copy].map(|path| proof(&File::open(path).unwrap()));
        assert!(!proofs[0].is_empty() && proofs[0] != proofs[1]);
        assert_eq!(proof(&File::open(&lock).unwrap()), proofs[0], "it stays the same");
        fs::remove_file(lock).unwrap();
        fs::remove_file(copy).unwrap();
    }
}
