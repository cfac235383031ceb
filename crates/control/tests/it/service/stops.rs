//! Stops: what they refuse, in which order they act, and what stays stopped.

use std::time::Duration;

use voltier_cache::Mode;

use super::fixture::{Fixture, export_of, name};
use super::late::now;
use voltier_cache::Owner;
use voltier_cache::policy::PolicyKind;
use voltier_control::engine::CacheLabel;
use voltier_control::protocol::{Request, Response};
use voltier_control::{
    Desired, DeviceState, ExportSpec, ExportState, Identity, NbdAddress, VolumeState,
};

fn stop(now: bool) -> Request {
    Request::Stop { name: name(), now }
}

fn start() -> Request {
    Request::Start { name: name() }
}

/// A write-back volume with two exports, of which one is a file.
pub(super) fn exported() -> Fixture {
    let fixture = Fixture::with_volume(Mode::WriteBack);
    let (socket, file) = (fixture.path("s.sock"), fixture.path("file"));
    for export in [ExportSpec::Nbd(NbdAddress::Unix(socket)), ExportSpec::Fuse(file)] {
        fixture.service.handle(export_of(export));
    }
    fixture.calls();
    fixture
}

#[test]
fn a_stop_is_recorded_closes_files_first_and_holds_over_restarts_of_either_kind() {
    let mut fixture = exported();
    fixture.steer(|books| books.dirty = 7);
    fixture.service.handle(stop(false));
    assert_eq!(fixture.calls(), ["unexport fuse", "unexport nbd", "close v"]);
    for clean in [true, false] {
        let state = fixture.state();
        assert_eq!((state.state, state.error.as_str()), (VolumeState::Stopped, ""));
        assert_eq!((state.hdd.state, state.exports.len()), (DeviceState::Offline, 2));
        assert!(state.exports.iter().all(|export| export.state == ExportState::Closed));
        let record = fixture.registry().volumes()[0].clone();
        assert_eq!((record.desired, record.exports.len()), (Desired::Stopped, 2));
        assert_eq!(record.cache.unwrap().dirty_lines, 7, "they stay on the SSD");
        fixture.restart(clean);
        fixture.service.look_for_devices(now() + Duration::from_secs(60));
        assert_eq!(fixture.calls(), [] as [&str; 0]);
    }
    for refused in [
        Request::Flush { name: name() },
        Request::Detach { name: name(), flush: false },
        Request::Delete { name: name(), flush: true },
    ] {
        assert!(fixture.error(refused).contains("`voltier start v` first"));
    }
    fixture.service.handle(start());
    assert_eq!(fixture.calls(), ["open Load", "export nbd", "export fuse"]);
    assert_eq!(fixture.state().state, VolumeState::Running);
    assert_eq!(fixture.registry().volumes()[0].desired, Desired::Serving);
}

#[test]
fn a_stop_that_is_refused_changes_nothing() {
    let mut fixture = exported();
    fixture.steer(|books| books.clients = 1);
    for refused in [stop(false), Request::StopDaemon { now: false }] {
        assert!(fixture.error(refused).contains("1 client(s) use"));
    }
    fixture.steer(|books| books.clients = 0);
    // Somebody opens the file a moment before it closes.
    fixture.steer(|books| books.failing = Some("unexport"));
    assert!(fixture.error(stop(false)).contains("was to fail"));
    fixture.steer(|books| books.failing = None);
    assert_eq!(fixture.calls(), ["unexport fuse"]);
    assert_eq!(fixture.state().state, VolumeState::Running);
    assert_eq!(fixture.registry().volumes()[0].desired, Desired::Serving);
    fixture.steer(|books| books.dirty = 10);
    fixture.job(Request::Detach { name: name(), flush: true });
    assert!(fixture.error(stop(true)).contains("detach"));
}

#[test]
fn the_end_of_the_daemon_is_answered_and_then_nothing_changes_any_more() {
    let mut fixture = exported();
    fixture.steer(|books| books.clients = 1);
    let answer = fixture.service.handle(Request::StopDaemon { now: true });
    assert_eq!(answer, Response::Stopping);
    assert!(fixture.service.ends_now());
    assert!(fixture.error(stop(false)).contains("the daemon is stopping"));
    assert_eq!(fixture.state().state, VolumeState::Running, "it serves until it ends");
}

#[test]
fn dirty_lines_that_are_given_up_are_counted_in_the_answer() {
    let mut fixture = exported();
    fixture.steer(|books| books.dirty = 9);
    let job = fixture.job(Request::Detach { name: name(), flush: false });
    assert_eq!((job.lines_done, job.lines_given_up), (0, 9));
}

fn label_of(uuid: Identity) -> CacheLabel {
    CacheLabel {
        uuid,
        generation: 1,
        sequence: 1,
        is_clean: false,
        dirty_lines: 9,
        size_bytes: 1 << 20,
        origin_bytes: 1 << 20,
        line_bytes: 4096,
        policy: PolicyKind::Lru,
        owner: Owner::default(),
    }
}

#[test]
fn a_failed_volume_says_which_drive_is_well_and_what_its_ssd_holds() {
    let mut fixture = exported();
    let uuid = fixture.registry().volumes()[0].cache.as_ref().unwrap().uuid;
    std::fs::create_dir(fixture.path("away")).unwrap();
    std::fs::rename(fixture.path("hdd"), fixture.path("away/hdd")).unwrap();
    fixture.restart(false);
    let label = label_of(uuid);
    let ssd = fixture.device("ssd").to_string();
    fixture.steer(|books| drop(books.cache_labels.insert(ssd.clone(), label)));
    assert!(fixture.error(start()).contains("not served"));
    let state = fixture.state();
    assert_eq!(state.state, VolumeState::Failed);
    assert_eq!((state.hdd.state, state.ssd.state), (DeviceState::Missing, DeviceState::Online));
    assert_eq!((state.lines.dirty, state.ssd.size_bytes), (9, 1 << 20));
    let job = fixture.job(Request::Detach { name: name(), flush: false });
    assert_eq!(job.lines_given_up, 9);
    fixture.steer(|books| {
        assert!(!books.cache_labels.contains_key(&ssd), "an import would bring the lines back");
    });
}

#[test]
fn a_deleted_volume_leaves_no_superblock_and_one_of_another_cache_stays() {
    for (uuid, stays) in [(None, false), (Some(Identity([3; 16])), true)] {
        let mut fixture = exported();
        let own = fixture.registry().volumes()[0].cache.as_ref().unwrap().uuid;
        std::fs::create_dir(fixture.path("away")).unwrap();
        std::fs::rename(fixture.path("hdd"), fixture.path("away/hdd")).unwrap();
        fixture.restart(false);
        let ssd = fixture.device("ssd").to_string();
        let label = label_of(uuid.unwrap_or(own));
        fixture.steer(|books| drop(books.cache_labels.insert(ssd.clone(), label)));
        fixture.job(Request::Delete { name: name(), flush: false });
        assert!(fixture.registry().volumes().is_empty());
        fixture.steer(|books| assert_eq!(books.cache_labels.contains_key(&ssd), stays));
    }
}

#[test]
fn a_cache_is_not_given_up_for_an_ssd_that_this_daemon_has_just_let_go() {
    for (mode, ends) in [
        (Mode::WriteThrough, false),
        (Mode::WriteThrough, true),
        (Mode::WriteBack, false),
        (Mode::WriteBack, true),
    ] {
        let mut fixture = Fixture::new();
        fixture.create(mode);
        fixture.service.handle(stop(true));
        fixture.calls();
        let held = fixture.keep_busy("ssd");
        let ssd = fixture.path("ssd");
        fixture.steer(|books| (books.let_go, books.let_go_ends) = (vec![ssd], ends));
        let error = fixture.error(start());
        assert!(
            error.contains("has not ended its requests from before the stop"),
            "{mode}: {error}"
        );
        assert!(!error.contains("--no-flush"), "nothing is to be given up: {error}");
        assert_eq!(fixture.calls(), [] as [&str; 0], "the origin is not served alone");
        assert!(fixture.registry().volumes()[0].cache.as_ref().unwrap().failed.is_none());
        drop(held);
        fixture.steer(|books| books.let_go.clear());
        fixture.service.handle(start());
        assert_eq!(fixture.calls(), ["open Load"]);
        assert_eq!(fixture.state().state, VolumeState::Running);
    }
}
