//! Folders and addresses.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// How often a thread that waits for a command looks for it.
pub(crate) const STEP: Duration = Duration::from_millis(5);

/// Numbers of clients: of this process, and the next one.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A connection.
#[derive(Default)]
pub(crate) struct Cluster {
    pub(crate) folder: PathBuf,
    pub(crate) number: u64,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let next = u64::from(NEXT.fetch_add(1, Ordering::Relaxed));
        Self { folder: PathBuf::new(), number: u64::from(std::process::id()) * 1000 + next }
    }

    pub(crate) fn address(&self) -> String {
        address(self.number)
    }

    /// The number in a file of the folder.
    pub(crate) fn command(&self, name: &str) -> Option<u64> {
        fs::read_to_string(self.folder.join(name)).ok()?.trim().parse().ok()
    }

    /// The error number that a file of the folder has a call end with, as the call gives it.
    pub(crate) fn error(&self, name: &str) -> i32 {
        self.command(name).map_or(0, |number| -(number as i32))
    }

    pub(crate) fn wait_while(&self, name: &str) {
        while self.folder.join(name).exists() {
            thread::park_timeout(STEP);
        }
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.folder.join(format!("blocklist-{}", self.number)).exists()
    }
}

pub(crate) fn address(number: u64) -> String {
    format!("127.0.0.1:0/{number}")
}

pub(crate) fn number_of(address: &str) -> u64 {
    address.rsplit('/').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// A file beside an image.
pub(crate) fn beside(image: &Path, what: &str) -> PathBuf {
    let name = image.file_name().unwrap_or_default().to_string_lossy();
    image.with_file_name(format!("{name}.{what}"))
}

/// The numbers of those who have an image open.
pub(crate) fn watchers(image: &Path) -> Vec<u64> {
    let start = beside(image, "watch-");
    let start = start.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = image.parent().and_then(|folder| fs::read_dir(folder).ok());
    let names = folder.into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.strip_prefix(&start)?.parse().ok()).collect()
}

/// Who has the lock of an image.
pub(crate) fn owner(image: &Path) -> Option<String> {
    let text = fs::read_to_string(beside(image, "lock")).ok()?;
    Some(text.trim().to_owned()).filter(|owner| !owner.is_empty())
}

/// Takes the lock from its owner, whom the cluster refuses from then on.
pub(crate) fn break_lock(folder: &Path, image: &Path, owner: &str) {
    let _ = File::create(folder.join(format!("blocklist-{}", number_of(owner))));
    let _ = fs::remove_file(beside(image, "lock"));
}

/// The id of an image, for as long as its file is the same one.
pub(crate) fn id(image: &Path) -> Option<String> {
    Some(format!("{:x}", image.metadata().ok()?.ino()))
}
