//! A folder with the files that specs of hostile origin are led to: nothing outside it is touched.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use voltier_control::DeviceSpec;

/// The files and their sizes: two disks, two SSDs, one too small for anything, and none.
const FILES: [(&str, Option<u64>); 6] = [
    ("hdd", Some(1 << 20)),
    ("hdd2", Some(2 << 20)),
    ("ssd", Some(4 << 20)),
    ("ssd2", Some(4 << 20)),
    ("tiny", Some(100)),
    ("gone", None),
];

pub(crate) struct Sandbox {
    folder: tempfile::TempDir,
}

thread_local! {
    static SANDBOX: Rc<Sandbox> = Rc::new(Sandbox::new());
}

impl Sandbox {
    /// This thread's, with an empty state folder.
    pub(crate) fn fresh() -> Rc<Self> {
        let sandbox = SANDBOX.with(Rc::clone);
        let state = sandbox.state();
        for entry in fs::read_dir(&state).expect("the state folder").flatten() {
            fs::remove_file(entry.path()).expect("a file of the state folder");
        }
        sandbox
    }

    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, bytes) in FILES {
            if let Some(bytes) = bytes {
                let file = File::create(folder.path().join(name)).expect("a file");
                file.set_len(bytes).expect("a sparse file");
            }
        }
        fs::create_dir(folder.path().join("state")).expect("a folder");
        Self { folder }
    }

    /// The state folder.
    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// The same device, on one of the files here if it stands on a path.
    pub(crate) fn device(&self, device: DeviceSpec) -> DeviceSpec {
        match device.path() {
            Some(path) => device.moved_to(self.file(path)),
            None => device,
        }
    }

    fn file(&self, path: &Path) -> PathBuf {
        let name = path.as_os_str().as_encoded_bytes();
        let by_name = FILES.iter().find(|(known, _)| path.ends_with(known));
        let by_sum = || {
            let sum = name.iter().map(|byte| usize::from(*byte)).sum::<usize>();
            &FILES[sum % FILES.len()]
        };
        self.folder.path().join(by_name.unwrap_or_else(by_sum).0)
    }
}
