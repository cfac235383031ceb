//! Whole volumes on one core, over NBD: one of them fails by a panic, and its neighbour serves all the time.

#[path = "../../../cli/tests/it/support/nbd.rs"]
mod nbd;

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nbd::NbdClient;
use voltier_array::Consistency;
use voltier_control::protocol::{ArrayRequest, NewArray, NewCache, Request, Response};
use voltier_control::{
    ArrayDetail, ArrayState, DeviceSpec, ExportSpec, NbdAddress, Registry, Service, Settings,
    VolumeState, VolumeStatus, parse_word,
};
use voltier_ring::{CallError, Domain, Remote};

use crate::core_engine::CoreEngine;
use crate::{table, volumes};

const BLOCK_BYTES: usize = 6144;
const BLOCKS: u64 = 100;

/// A daemon's service over one core.
struct Stand {
    dir: tempfile::TempDir,
    service: Service<CoreEngine>,
    core: Remote,
    _alone: MutexGuard<'static, ()>,
}

/// A process between fork and exec shares the locks of its parent, and each look at a drive runs `blkid`. So
/// a drive of one test would look taken while another test looks at one.
static ALONE: Mutex<()> = Mutex::new(());

impl Stand {
    fn new() -> Self {
        // A test that failed has left nothing behind.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let engine = CoreEngine::start(1).unwrap();
        let core = engine.cores[0].remote();
        let registry = Registry::load(dir.path()).unwrap();
        let service = Service::new(engine, registry);
        service.set_waker(Arc::new(|| {}));
        Self { dir, service, core, _alone: alone }
    }

    /// A sparse file to stand for a drive.
    fn drive(&self, name: &str, mib: u64) -> DeviceSpec {
        let path = self.dir.path().join(name);
        File::create(&path).unwrap().set_len(mib << 20).unwrap();
        DeviceSpec::Path(path)
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.sock"))
    }

    /// Answers a request about a volume.
    fn ask(&mut self, request: Request) -> VolumeStatus {
        match self.service.handle(request) {
            Response::Volume { volume } => *volume,
            other => panic!("{other:?}"),
        }
    }

    fn ask_array(&mut self, ask: ArrayRequest) -> ArrayDetail {
        match self.service.handle(Request::Array { ask }) {
            Response::Array { array, .. } => *array,
            other => panic!("{other:?}"),
        }
    }

    /// Makes a volume in write-back mode, and exports it.
    fn create(&mut self, name: &str, origin: DeviceSpec) {
        let device = self.drive(&format!("{name}.ssd"), 32);
        let settings = Settings { mode: parse_word("wb").unwrap(), ..Settings::default() };
        let cache = Some(NewCache { device, settings, force: false });
        let volume = name.parse().unwrap();
        self.ask(Request::Create { name: volume, origin, cache, export: None });
        let export = ExportSpec::Nbd(NbdAddress::Unix(self.socket(name)));
        self.ask(Request::Export {
            name: name.parse().unwrap(),
            export,
            insecure: false,
            access: None,
        });
    }

    fn show(&mut self, name: &str) -> VolumeStatus {
        self.ask(Request::Show { name: Some(name.parse().unwrap()), over_s: None })
    }

    fn start(&mut self, name: &str) -> VolumeStatus {
        self.ask(Request::Start { name: name.parse().unwrap() })
    }

    fn client(&self, name: &str) -> NbdClient {
        NbdClient::connect(&self.socket(name), name).unwrap()
    }

    fn domain_of_volume(&self, name: &str) -> Domain {
        let name = name.parse().unwrap();
        self.core.call(move |_| async move { volumes::domain_of(&name) }).unwrap()
    }

    fn domain_of_array(&self, name: &str) -> Domain {
        let name = name.parse().unwrap();
        self.core.call(move |_| async move { table::domain_of(&name) }).unwrap()
    }

    /// A task of a volume or an array finds something that cannot be.
    fn break_domain(&self, domain: Domain) {
        let broken = self.core.within(domain).call(|_| async { assert_eq!(1 + 1, 3, "sums") });
        assert!(matches!(broken, Err(CallError::Failed(_))), "{broken:?}");
    }
}

fn write(client: &mut NbdClient, seed: u8) {
    for block in 0..BLOCKS {
        client.write(block * 40960 + 512, &[seed ^ block as u8; BLOCK_BYTES]).unwrap();
    }
}

#[track_caller]
fn holds(client: &mut NbdClient, seed: u8) {
    for block in 0..BLOCKS {
        let found = client.read(block * 40960 + 512, BLOCK_BYTES).unwrap();
        assert_eq!(found, [seed ^ block as u8; BLOCK_BYTES], "block {block}");
    }
}

/// Writes and reads until it is told to end, and counts.
fn serve_on(mut client: NbdClient, ends: &AtomicBool, rounds: &AtomicU64) {
    while !ends.load(Ordering::Relaxed) {
        let seed = rounds.fetch_add(1, Ordering::Relaxed) as u8;
        let offset = u64::from(seed) * 65536;
        client.write(offset, &[seed; BLOCK_BYTES]).unwrap();
        assert_eq!(client.read(offset, BLOCK_BYTES).unwrap(), [seed; BLOCK_BYTES]);
        client.flush().unwrap();
    }
}

#[test]
fn a_panic_in_one_volume_fails_it_alone_and_a_start_brings_all_back() {
    let mut stand = Stand::new();
    let origins = ["v", "w"].map(|name| stand.drive(&format!("{name}.hdd"), 64));
    for (name, origin) in ["v", "w"].into_iter().zip(origins) {
        stand.create(name, origin);
    }
    let (ends, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let neighbour = stand.client("w");
        let served = scope.spawn(|| serve_on(neighbour, &ends, &rounds));
        let further_rounds = || {
            let before = rounds.load(Ordering::Relaxed);
            while rounds.load(Ordering::Relaxed) < before + 20 && !served.is_finished() {
                std::thread::yield_now();
            }
        };
        for life in 1..=2 {
            let (mut client, mut idle) = (stand.client("v"), stand.client("v"));
            write(&mut client, life);
            further_rounds();
            stand.break_domain(stand.domain_of_volume("v"));
            client.read(0, 512).unwrap_err();
            idle.write(0, &[1; 512]).unwrap_err();
            assert!(NbdClient::connect(&stand.socket("v"), "v").is_err());
            let shown = stand.show("v");
            assert_eq!(shown.state, VolumeState::Failed);
            for words in ["an assertion failed", "sums", "tests.rs", "voltier start v"] {
                assert!(shown.error.contains(words), "{words}: {}", shown.error);
            }
            assert_eq!(shown.error.lines().count(), 1, "{}", shown.error);
            further_rounds();
            assert_eq!(stand.show("w").state, VolumeState::Running);
            let started = stand.start("v");
            assert_eq!(started.state, VolumeState::Running, "{}", started.error);
            holds(&mut stand.client("v"), life);
            further_rounds();
        }
        ends.store(true, Ordering::Relaxed);
        served.join().unwrap();
    });
    stand.service.stop();
}

#[test]
fn a_failed_volume_is_stopped_and_started_or_its_cache_given_up() {
    let mut stand = Stand::new();
    let origin = stand.drive("v.hdd", 64);
    stand.create("v", origin);
    write(&mut stand.client("v"), 7);
    stand.break_domain(stand.domain_of_volume("v"));
    let name = || "v".parse().unwrap();
    assert_eq!(stand.ask(Request::Stop { name: name(), now: false }).state, VolumeState::Stopped);
    assert_eq!(stand.start("v").state, VolumeState::Running);
    holds(&mut stand.client("v"), 7);
    stand.break_domain(stand.domain_of_volume("v"));
    // A command that needs the volume says why it is not there.
    match stand.service.handle(Request::Flush { name: name() }) {
        Response::Error { error } => assert!(error.message.contains("an assertion"), "{error}"),
        other => panic!("{other:?}"),
    }
    let detached = stand.service.handle(Request::Detach { name: name(), flush: false });
    assert!(matches!(detached, Response::Job { .. }), "{detached:?}");
    let shown = stand.show("v");
    assert_eq!((shown.state, shown.ssd.path.as_str()), (VolumeState::Running, ""));
    stand.service.stop();
}

#[test]
fn an_array_and_the_volume_over_it_fail_together_and_another_volume_serves() {
    let mut stand = Stand::new();
    let members: Vec<_> = (0..4).map(|number| stand.drive(&format!("d{number}"), 32)).collect();
    let name = || "a".parse().unwrap();
    let array = NewArray {
        name: name(),
        level: "6".parse().unwrap(),
        chunk_bytes: 65536,
        consistency: Consistency::Journal,
        members,
        spares: Vec::new(),
        journal: None,
        force: false,
    };
    stand.ask_array(ArrayRequest::Create {
        array,
        integrity: voltier_array::Integrity::None,
        export: None,
    });
    stand.create("v", DeviceSpec::Array(name()));
    let origin = stand.drive("w.hdd", 64);
    stand.create("w", origin);
    let mut neighbour = stand.client("w");
    write(&mut neighbour, 9);
    for life in 1..=2 {
        let mut client = stand.client("v");
        write(&mut client, life);
        let domain =
            if life == 1 { stand.domain_of_array("a") } else { stand.domain_of_volume("v") };
        stand.break_domain(domain);
        client.read(0, 512).unwrap_err();
        let shown = stand.ask_array(ArrayRequest::Show { name: Some(name()), over_s: None });
        assert_eq!(shown.state, ArrayState::Failed);
        assert!(shown.error.contains("voltier array start a"), "{}", shown.error);
        assert_eq!(stand.show("v").state, VolumeState::Failed);
        holds(&mut neighbour, 9);
        let started = stand.start("v");
        assert_eq!(started.state, VolumeState::Running, "{}", started.error);
        holds(&mut stand.client("v"), life);
    }
    drop(neighbour);
    stand.service.stop();
}
