//! The service over an engine that only keeps books: what is recorded, refused, and in which order.

use std::fs::File;

use voltier_cache::Mode;

use super::bench::{Bench, name};
use super::*;
use crate::protocol::{JobState, NewCache};
use crate::records::{CacheRecord, Desired};
use crate::settings::Settings;
use crate::spec::DeviceSpec;
use crate::status::{ByteRange, VolumeState};

fn delete(flush: bool) -> Request {
    Request::Delete { name: name(), flush }
}

fn detach(flush: bool) -> Request {
    Request::Detach { name: name(), flush }
}

fn nbd(bench: &Bench) -> ExportSpec {
    ExportSpec::Nbd(crate::NbdAddress::Unix(bench.path("s.sock")))
}

#[test]
fn a_volume_is_created_exported_and_back_after_a_restart_of_either_kind() {
    for clean in [true, false] {
        let mut bench = Bench::new();
        bench.create(Mode::WriteBack);
        let export = nbd(&bench);
        bench.service.handle(Request::Export { name: name(), export });
        assert_eq!(bench.state().state, VolumeState::Running);
        bench.restart(clean);
        let state = bench.state();
        assert_eq!((state.state, state.mode.as_str()), (VolumeState::Running, "wb"));
        assert_eq!(state.exports.len(), 1);
        assert_eq!(bench.calls(), ["open Load", "export nbd"]);
        assert_eq!(state.generation, 2, "each opening is recorded");
    }
}

#[test]
fn a_name_in_use_a_device_in_use_and_the_same_device_twice_are_refused() {
    let mut bench = Bench::new();
    bench.create(Mode::WriteThrough);
    let again = Request::Create { name: name(), origin: bench.device("ssd2"), cache: None };
    assert!(bench.error(again).contains("exists"));
    let other: VolumeName = "w".parse().unwrap();
    std::os::unix::fs::symlink(bench.path("hdd"), bench.path("link")).unwrap();
    let taken = Request::Create { name: other.clone(), origin: bench.device("link"), cache: None };
    assert!(bench.error(taken).contains("already part of volume v"));
    let cache = Some(bench.cache("ssd2", Mode::WriteThrough));
    let twice = Request::Create { name: other, origin: bench.device("ssd2"), cache };
    assert!(bench.error(twice).contains("same device as the other side"));
    assert_eq!(bench.service.registry.volumes().len(), 1);
}

#[test]
fn a_delete_drains_closes_doors_and_forgets() {
    let mut bench = Bench::new();
    bench.create(Mode::WriteBack);
    let export = nbd(&bench);
    bench.service.handle(Request::Export { name: name(), export });
    bench.steer(|books| books.dirty = 10);
    bench.calls();
    let job = bench.job(delete(true));
    assert_eq!((job.lines_done, job.lines_total), (0, 10));
    assert_eq!(bench.job(delete(true)).id, job.id, "asking again joins the same job");
    assert!(bench.service.step_jobs());
    assert_eq!(bench.state().state, VolumeState::Draining);
    bench.steer(|books| books.dirty = 4);
    bench.service.step_jobs();
    assert_eq!(bench.job(Request::Job { id: job.id }).lines_done, 6);
    bench.steer(|books| books.dirty = 0);
    assert!(!bench.service.step_jobs());
    assert_eq!(bench.job(Request::Job { id: job.id }).state, JobState::Done);
    assert_eq!(
        bench.calls(),
        ["unexport nbd", "configure pt", "drain v", "settle v", "detach clean", "close v"]
    );
    assert!(bench.service.registry.volumes().is_empty());
    bench.create(Mode::WriteBack);
    assert_eq!(bench.state().state, VolumeState::Running, "its devices are free again");
}

#[test]
fn a_delete_interrupted_by_a_crash_goes_on_after_it() {
    let mut bench = Bench::new();
    bench.create(Mode::WriteBack);
    bench.steer(|books| books.dirty = 10);
    bench.job(delete(true));
    bench.restart(false);
    assert_eq!(bench.calls(), ["open Load", "configure pt", "drain v"]);
    assert!(!bench.service.step_jobs());
    assert!(bench.service.registry.volumes().is_empty());
}

#[test]
fn a_drain_that_fails_leaves_the_volume_serving_as_it_was() {
    let mut bench = Bench::new();
    bench.create(Mode::WriteBack);
    bench.steer(|books| books.dirty = u64::MAX);
    let job = bench.job(detach(true));
    assert!(!bench.service.step_jobs());
    let job = bench.job(Request::Job { id: job.id });
    assert!(matches!(job.state, JobState::Failed(error) if error.message.contains("origin")));
    assert_eq!(bench.calls().last().unwrap(), "configure wb");
    assert_eq!(bench.service.registry.volumes()[0].desired, Desired::Serving);
}

#[test]
fn delete_refuses_while_clients_are_connected() {
    let mut bench = Bench::new();
    bench.create(Mode::WriteBack);
    let export = nbd(&bench);
    bench.service.handle(Request::Export { name: name(), export });
    bench.steer(|books| books.clients = 2);
    assert!(bench.error(delete(true)).contains("unexport"));
    bench.service.handle(Request::Unexport { name: name(), export: None });
    bench.job(delete(true));
}

#[test]
fn attach_passes_through_write_through_so_that_a_crash_leaves_nothing_dirty_unknown() {
    let mut bench = Bench::new();
    bench.create(Mode::WriteBack);
    bench.job(detach(true));
    bench.service.step_jobs();
    assert_eq!(bench.state().ssd.path, "");
    bench.calls();
    let cache = bench.cache("ssd2", Mode::WriteBack);
    bench.service.handle(Request::Attach { name: name(), cache });
    assert_eq!(bench.calls(), ["attach wt", "configure wb"]);
    let cache = bench.service.registry.volumes()[0].cache.clone().unwrap();
    assert_eq!((cache.generation, cache.maybe_dirty), (1, true));
    let second = bench.cache("ssd", Mode::WriteBack);
    assert!(bench.error(Request::Attach { name: name(), cache: second }).contains("has a cache"));
}

#[test]
fn an_engine_that_fails_leaves_the_registry_as_it_was() {
    let mut bench = Bench::new();
    bench.steer(|books| books.failing = Some("open"));
    assert!(matches!(bench.create(Mode::WriteBack), Response::Error { .. }));
    assert!(bench.service.registry.volumes().is_empty());
    bench.steer(|books| books.failing = None);
    bench.create(Mode::WriteThrough);
    let before = bench.service.registry.volumes().to_vec();
    bench.steer(|books| books.failing = Some("configure"));
    let changes = vec![("mode".to_owned(), "wb".to_owned())];
    bench.error(Request::Set { name: name(), changes });
    bench.error(Request::Set { name: name(), changes: vec![("mod".into(), "wb".into())] });
    assert_eq!(bench.service.registry.volumes(), before);
}

#[test]
fn a_lost_ssd_stops_a_dirty_volume_and_only_degrades_a_clean_one() {
    for (mode, state) in
        [(Mode::WriteBack, VolumeState::Failed), (Mode::WriteThrough, VolumeState::Degraded)]
    {
        let mut bench = Bench::new();
        bench.create(mode);
        std::fs::rename(bench.path("ssd"), bench.path("away")).unwrap();
        bench.restart(false);
        assert_eq!(bench.state().state, state);
        assert!(bench.state().error.contains("ssd does not exist"), "{}", bench.state().error);
        if mode == Mode::WriteBack {
            assert!(bench.error(detach(true)).contains("--no-flush"));
            assert!(bench.error(delete(true)).contains("--no-flush"));
            std::fs::rename(bench.path("away"), bench.path("ssd")).unwrap();
            bench.restart(false);
            assert_eq!(bench.state().state, VolumeState::Running);
        } else {
            // It served without: the SSD is stale now, also when it comes back.
            std::fs::rename(bench.path("away"), bench.path("ssd")).unwrap();
            bench.restart(false);
            assert_eq!(bench.state().state, VolumeState::Degraded);
            assert_eq!(bench.calls(), ["plain v"]);
            bench.job(detach(true));
            assert_eq!(bench.state().state, VolumeState::Running);
        }
    }
}

#[test]
fn dirty_data_on_a_missing_ssd_can_be_given_up_by_name() {
    let mut bench = Bench::new();
    bench.create(Mode::WriteBack);
    std::fs::remove_file(bench.path("ssd")).unwrap();
    bench.restart(false);
    assert_eq!(bench.job(detach(false)).state, JobState::Done);
    assert_eq!(bench.state().state, VolumeState::Running);
    assert_eq!(bench.state().ssd.path, "");
}

#[test]
fn an_ssd_that_fails_while_serving_is_recorded_so_that_it_is_never_trusted_again() {
    let mut bench = Bench::new();
    bench.create(Mode::WriteThrough);
    bench.steer(|books| books.ssd_failed = true);
    assert_eq!(bench.state().state, VolumeState::Degraded);
    assert_eq!(bench.calls(), ["open Format", "recorded v"], "requests go on when it is recorded");
    bench.restart(true);
    assert_eq!(bench.calls(), ["plain v"]);
}

#[test]
fn an_origin_that_shrank_or_vanished_is_not_served_and_the_rest_is() {
    let mut bench = Bench::new();
    bench.create(Mode::WriteThrough);
    let other: VolumeName = "w".parse().unwrap();
    bench.service.handle(Request::Create {
        name: other.clone(),
        origin: bench.device("ssd2"),
        cache: None,
    });
    File::options().write(true).open(bench.path("hdd")).unwrap().set_len(1 << 19).unwrap();
    bench.restart(false);
    assert!(bench.state().error.contains("524288 bytes"), "{}", bench.state().error);
    assert_eq!(bench.calls(), ["plain w"]);
    assert!(bench.error(Request::Flush { name: name() }).contains("not served"));
}

#[test]
fn volatile_devices_do_not_come_back_as_if_nothing_had_happened() {
    let mut bench = Bench::new();
    let settings = Settings::default();
    let cache = Some(NewCache { device: DeviceSpec::Memory(1 << 20), settings, force: false });
    bench.service.handle(Request::Create { name: name(), origin: bench.device("hdd"), cache });
    let other: VolumeName = "w".parse().unwrap();
    let origin = DeviceSpec::Memory(1 << 20);
    bench.service.handle(Request::Create { name: other.clone(), origin, cache: None });
    bench.restart(true);
    assert_eq!(bench.state().state, VolumeState::Running, "a clean memory cache starts empty");
    assert_eq!(bench.calls(), ["open Format"]);
    let Response::Volume { volume } = bench.service.handle(Request::Show { name: Some(other) })
    else {
        panic!()
    };
    assert!(volume.state == VolumeState::Failed && volume.error.contains("ended"));
}

#[test]
fn no_flush_ends_a_drain_that_is_under_way() {
    let mut bench = Bench::new();
    for request in [Request::Flush { name: name() }, delete(true)] {
        bench.create(Mode::WriteBack);
        bench.steer(|books| books.dirty = 10);
        let slow = bench.job(request);
        assert_eq!(bench.job(delete(false)).state, JobState::Done);
        let slow = bench.job(Request::Job { id: slow.id });
        assert!(
            matches!(slow.state, JobState::Failed(error) if error.message.contains("given up"))
        );
        assert!(bench.service.registry.volumes().is_empty());
        assert!(!bench.service.step_jobs());
    }
    bench.create(Mode::WriteBack);
    bench.job(detach(true));
    assert!(bench.error(delete(false)).contains("detach of v is under way"));
    assert_eq!(bench.job(detach(false)).state, JobState::Done);
    assert_eq!(bench.state().ssd.path, "");
}

#[test]
fn a_delete_whose_client_went_away_is_told_to_the_next_who_asks_and_only_to_him() {
    let mut bench = Bench::new();
    bench.create(Mode::WriteBack);
    bench.steer(|books| books.dirty = 10);
    bench.job(delete(true));
    bench.steer(|books| books.dirty = 0);
    bench.service.step_jobs();
    let ended = bench.job(delete(true));
    assert_eq!((ended.state.clone(), ended.lines_done), (JobState::Done, 10));
    bench.service.job_is_told(&ended);
    assert!(bench.error(delete(true)).contains("no volume `v`"));
}

#[test]
fn a_delete_that_a_start_completes_is_told_too() {
    let mut bench = Bench::new();
    bench.create(Mode::WriteThrough);
    let mut record = bench.service.registry.volumes()[0].clone();
    (record.cache, record.desired) = (None, Desired::Deleting);
    bench.service.registry.put(record).unwrap();
    bench.restart(false);
    assert!(bench.service.registry.volumes().is_empty());
    assert_eq!(bench.job(delete(false)).state, JobState::Done);
}

#[test]
fn a_missing_ssd_is_reported_with_what_it_may_hold_and_both_ways_on() {
    let mut bench = Bench::new();
    bench.create(Mode::WriteBack);
    bench.steer(|books| books.dirty = 7);
    bench.service.stop();
    std::fs::rename(bench.path("ssd"), bench.path("away")).unwrap();
    bench.restart(false);
    let error = bench.state().error;
    for words in ["does not exist", "newest data of 7 lines", "detach v --no-flush"] {
        assert!(error.contains(words), "{words}: {error}");
    }
    assert!(bench.error(delete(true)).contains("7 lines"));
    std::fs::rename(bench.path("away"), bench.path("ssd")).unwrap();
    bench.restart(false);
    bench.service.stop();
    assert!(!bench.service.registry.volumes()[0].cache.as_ref().unwrap().maybe_dirty, "all clean");
    std::fs::rename(bench.path("ssd"), bench.path("away")).unwrap();
    bench.restart(false);
    assert_eq!(bench.state().state, VolumeState::Degraded, "nothing was lost");
}

#[test]
fn a_cache_that_cannot_be_written_back_whole_stays_on_record() {
    let mut bench = Bench::new();
    bench.create(Mode::WriteBack);
    let before = bench.service.registry.volumes().to_vec();
    bench.steer(|books| (books.dirty, books.failing) = (3, Some("settle")));
    for purpose in [jobs::Purpose::Detach, jobs::Purpose::Delete] {
        assert!(bench.service.finish_now(&name(), purpose, true).is_err());
        assert_eq!(bench.service.registry.volumes(), before);
    }
}

#[test]
fn lost_ranges_are_listed_while_it_serves_and_after_a_restart() {
    let mut bench = Bench::new();
    bench.create(Mode::WriteBack);
    let lost: Vec<_> = (0..20)
        .map(|number| ByteRange { offset_bytes: number << 20, length_bytes: 4096 })
        .collect();
    bench.steer(|books| (books.dirty, books.lost) = (20, lost.clone()));
    bench.steer(|books| books.ssd_failed = true);
    assert_eq!(bench.state().lost, lost);
    bench.restart(false);
    let state = bench.state();
    assert_eq!((state.state, state.lost_ranges), (VolumeState::Failed, 20));
    assert_eq!((state.lost, state.lost_ranges_unlisted), (lost, 0));
    let Response::Volumes { volumes } = bench.service.handle(Request::Show { name: None }) else {
        panic!()
    };
    assert_eq!((volumes[0].lost.len(), volumes[0].lost_ranges_unlisted), (8, 12));
}

#[test]
fn an_attach_that_was_cut_off_is_taken_back_at_the_start() {
    let mut bench = Bench::new();
    let origin = bench.device("hdd");
    bench.service.handle(Request::Create { name: name(), origin, cache: None });
    let before = bench.service.registry.volumes().to_vec();
    let mut cut_off = before[0].clone();
    let settings = Settings { mode: Mode::WriteThrough, ..Settings::default() };
    cut_off.cache = Some(CacheRecord {
        device: bench.device("ssd"),
        uuid: crate::records::Identity([7; 16]),
        settings,
        generation: 0,
        maybe_dirty: false,
        dirty_lines: 0,
        failed: None,
        lost: Vec::new(),
        lost_total: 0,
    });
    bench.service.registry.put(cut_off).unwrap();
    bench.restart(false);
    assert_eq!(bench.service.registry.volumes(), before);
    assert_eq!(bench.state().state, VolumeState::Running);
    assert_eq!(bench.calls(), ["plain v"]);
}

#[test]
fn requests_wait_before_the_registry_forgets_a_cache_that_is_written_back() {
    let mut bench = Bench::new();
    bench.create(Mode::WriteBack);
    bench.steer(|books| books.failing = Some("settle"));
    let before = bench.service.registry.volumes().to_vec();
    let job = bench.job(detach(true));
    bench.service.step_jobs();
    let ended = bench.job(Request::Job { id: job.id });
    assert!(matches!(ended.state, JobState::Failed(_)), "{ended:?}");
    assert_eq!(bench.service.registry.volumes(), before, "the cache is on record still");
    assert!(!bench.calls().iter().any(|call| call.starts_with("detach")));
}
