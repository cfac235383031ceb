//! A service over the [`BookEngine`], with the files that stand for drives and the state folder.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use voltier_cache::Mode;

use super::books::{BookEngine, Books, inode_of};
use super::late::now;
use voltier_control::engine::{MemberLabel, SpareOwner};
use voltier_control::protocol::{JobStatus, NewCache, Request, Response};
use voltier_control::{
    DeviceSpec, ExportSpec, Registry, Service, Settings, VolumeName, VolumeStatus,
};
use voltier_sim::Fake;

pub(super) struct Fixture {
    dir: tempfile::TempDir,
    pub(super) engine: BookEngine,
    pub(super) service: Service<Fake<BookEngine>>,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["hdd", "ssd", "ssd2", "d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8"] {
            File::create(dir.path().join(name)).unwrap().set_len(1 << 20).unwrap();
        }
        let engine = BookEngine::default();
        let service = load(dir.path(), &engine);
        Self { dir, engine, service }
    }

    pub(super) fn with_volume(mode: Mode) -> Self {
        let mut fixture = Self::new();
        fixture.create(mode);
        fixture
    }

    /// Ends this daemon, with or without a word, and starts the next, which waits for nothing.
    pub(super) fn restart(&mut self, clean: bool) {
        self.restart_and_wait(clean, Duration::ZERO);
    }

    /// The same, and the next one waits for what is missing. The moment after its start.
    pub(super) fn restart_and_wait(&mut self, clean: bool, device_wait: Duration) -> Instant {
        if clean {
            self.service.stop();
        }
        self.load_again();
        self.service.start(false, device_wait);
        now()
    }

    /// The next daemon after this one, before its start.
    pub(super) fn load_again(&mut self) {
        let labels = std::mem::take(&mut self.engine.books().labels);
        let spare_labels = std::mem::take(&mut self.engine.books().spare_labels);
        let silent = std::mem::take(&mut self.engine.books().silent);
        let own_devices = std::mem::take(&mut self.engine.books().own_devices);
        let newer = std::mem::take(&mut self.engine.books().newer);
        let Books { takes_no_writes, exports_fail, comes_back_dirty, are_unmarked, .. } =
            *self.engine.books();
        self.engine = BookEngine::default();
        self.steer(|books| {
            (books.labels, books.spare_labels, books.silent) = (labels, spare_labels, silent);
            (books.takes_no_writes, books.exports_fail) = (takes_no_writes, exports_fail);
            (books.comes_back_dirty, books.are_unmarked) = (comes_back_dirty, are_unmarked);
            (books.own_devices, books.newer) = (own_devices, newer);
        });
        self.service = load(self.dir.path(), &self.engine);
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The registry on disk, as the next daemon would load it.
    pub(super) fn registry(&self) -> Registry {
        Registry::load(self.dir.path()).unwrap()
    }

    pub(super) fn state_dir(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn device(&self, name: &str) -> DeviceSpec {
        DeviceSpec::Path(self.path(name))
    }

    pub(super) fn cache(&self, ssd: &str, mode: Mode) -> NewCache {
        let settings = Settings { mode, ..Settings::default() };
        NewCache { device: self.device(ssd), settings, force: false }
    }

    pub(super) fn create(&mut self, mode: Mode) -> Response {
        let cache = Some(self.cache("ssd", mode));
        self.service.handle(Request::Create {
            name: name(),
            origin: self.device("hdd"),
            cache,
            export: None,
        })
    }

    pub(super) fn error(&mut self, request: Request) -> String {
        match self.service.handle(request) {
            Response::Error { error } => error.message,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn job(&mut self, request: Request) -> JobStatus {
        match self.service.handle(request) {
            Response::Job { job } => job,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn state(&mut self) -> VolumeStatus {
        match self.service.handle(Request::Show { name: Some(name()), over_s: None }) {
            Response::Volume { volume } => *volume,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn steer(&self, change: impl FnOnce(&mut Books)) {
        change(&mut self.engine.books());
    }

    pub(super) fn steer_and_read<T>(&self, look: impl FnOnce(&mut Books) -> T) -> T {
        look(&mut self.engine.books())
    }

    /// Another drive is where this one was: the books know no labels but by their places.
    pub(super) fn take_label(&self, drive: &str) -> MemberLabel {
        self.engine.books().labels.remove(&self.path(drive)).unwrap()
    }

    pub(super) fn put_label(&self, drive: &str, label: MemberLabel) {
        self.engine.books().labels.insert(self.path(drive), label);
    }

    pub(super) fn put_spare_label(&self, drive: &str, label: SpareOwner) {
        self.engine.books().spare_labels.insert(inode_of(&self.device(drive)), label);
    }

    /// Another program has this drive until the answer is dropped.
    pub(super) fn keep_busy(&self, drive: &str) -> File {
        let file = File::open(self.path(drive)).unwrap();
        file.try_lock().unwrap();
        file
    }

    pub(super) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.engine.books().calls)
    }
}

fn load(dir: &Path, engine: &BookEngine) -> Service<Fake<BookEngine>> {
    Service::new(Fake(engine.clone()), Registry::load(dir).unwrap())
}

pub(super) fn export_of(export: ExportSpec) -> Request {
    Request::Export { name: name(), export, insecure: false, access: None }
}

pub(super) fn name() -> VolumeName {
    "v".parse().unwrap()
}
