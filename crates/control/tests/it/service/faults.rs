//! A volume or an array that fails by an assertion in its own code, while the daemon and the others serve.

use std::time::Duration;

use voltier_cache::Mode;

use super::arrays::{ask_of, over_r5, r5};
use super::fixture::{Fixture, name};
use super::late::now;
use super::stops::exported;
use voltier_control::protocol::{ArrayRequest, JobState, Request};
use voltier_control::{ArrayState, DeviceState, VolumeState};

const WHY: &str = "an assertion failed in its core: left is not right (a.rs:1:2)";

fn break_volume(fixture: &Fixture) {
    fixture.steer(|books| books.fault = Some(WHY.to_owned()));
}

fn start() -> Request {
    Request::Start { name: name() }
}

#[test]
fn a_volume_that_failed_alone_is_shown_so_and_started_as_after_a_crash() {
    let mut fixture = exported();
    let before = fixture.registry().volumes()[0].clone();
    break_volume(&fixture);
    let state = fixture.state();
    assert_eq!((state.state, state.hdd.state), (VolumeState::Failed, DeviceState::Online));
    assert!(state.error.starts_with(WHY), "{}", state.error);
    assert!(
        state.error.contains("`voltier start v` starts it as after a crash"),
        "{}",
        state.error
    );
    // Nobody but its user starts it, and nothing is recorded of it.
    fixture.service.look_for_devices(now() + Duration::from_secs(60));
    assert_eq!(fixture.calls(), [] as [&str; 0]);
    assert_eq!(fixture.registry().volumes()[0], before);
    assert!(fixture.error(Request::Flush { name: name() }).contains(WHY));
    fixture.service.handle(start());
    assert_eq!(fixture.calls(), ["open Load", "export nbd", "export fuse"]);
    let state = fixture.state();
    assert_eq!((state.state, state.error.as_str()), (VolumeState::Running, ""));
}

#[test]
fn the_end_of_the_daemon_leaves_a_failed_volume_as_it_is() {
    let mut fixture = exported();
    break_volume(&fixture);
    fixture.service.stop();
    assert_eq!(fixture.calls(), [] as [&str; 0]);
    fixture.restart(true);
    assert_eq!(fixture.state().state, VolumeState::Running);
}

#[test]
fn a_job_of_a_volume_that_fails_ends_with_the_reason_and_goes_on_after_a_start() {
    let mut fixture = Fixture::with_volume(Mode::WriteBack);
    fixture.steer(|books| books.dirty = 7);
    let delete = || Request::Delete { name: name(), flush: true };
    let job = fixture.job(delete());
    assert_eq!(job.state, JobState::Running);
    break_volume(&fixture);
    fixture.state();
    match fixture.job(Request::Job { id: job.id }).state {
        JobState::Failed(error) => assert!(error.message.contains(WHY), "{error}"),
        other => panic!("{other:?}"),
    }
    assert!(!fixture.service.step_jobs());
    assert!(fixture.state().error.contains(WHY));
    fixture.service.handle(start());
    assert!(fixture.service.step_jobs(), "the delete goes on");
}

#[test]
fn a_start_right_after_a_close_that_failed_waits_for_requests_of_before() {
    let mut fixture = Fixture::with_volume(Mode::WriteThrough);
    fixture.steer(|books| books.failing = Some("close"));
    fixture.error(Request::Stop { name: name(), now: true });
    fixture.steer(|books| books.failing = None);
    // As long as requests are under way, the lock of the file before holds.
    let before = fixture.keep_busy("hdd");
    let looks = fixture.steer_and_read(|books| books.looks);
    std::thread::scope(|scope| {
        let service = fixture.service.clone();
        let started = scope.spawn(move || service.handle(start()));
        while fixture.steer_and_read(|books| books.looks) == looks {
            std::thread::yield_now();
        }
        drop(before);
        started.join().unwrap();
    });
    assert_eq!(fixture.state().state, VolumeState::Running);
}

#[test]
fn an_array_that_failed_alone_is_started_with_the_volume_over_it() {
    let mut fixture = Fixture::new();
    let make = fixture.make(&["d1", "d2", "d3"]);
    fixture.ask(make);
    fixture.service.handle(over_r5());
    fixture.calls();
    break_volume(&fixture);
    fixture.steer(|books| books.array_fault = Some(WHY.to_owned()));
    assert_eq!(fixture.state().state, VolumeState::Failed);
    let show = ask_of(ArrayRequest::Show { name: Some(r5()), over_s: None });
    let (array, _) = fixture.ask(show);
    assert_eq!(array.state, ArrayState::Failed);
    assert!(array.error.contains("`voltier array start r5`"), "{}", array.error);
    fixture.service.handle(start());
    let calls = fixture.calls();
    assert!(calls[0] == "assemble r5 of 3" && calls.contains(&"plain v".to_owned()), "{calls:?}");
    assert_eq!(fixture.state().state, VolumeState::Running);
}

#[test]
fn news_of_a_core_that_is_late_are_asked_for_again() {
    let mut fixture = Fixture::with_volume(Mode::WriteThrough);
    fixture.ask(fixture.make(&["d1", "d2", "d3"]));
    assert!(fixture.service.record_news());
    fixture.steer(|books| (books.array_changes, books.are_arrays_late) = (3, true));
    assert!(!fixture.service.record_news(), "the array has not said what is to be recorded");
    fixture.steer(|books| books.are_arrays_late = false);
    assert!(fixture.service.record_news());
    assert_eq!(fixture.registry().arrays()[0].events, 4);
    let known = fixture.steer_and_read(|books| books.recorded_events.clone());
    assert_eq!(known, [(r5(), 4)].into(), "clients wait for this record too");
    fixture.steer(|books| (books.ssd_failed, books.health_is_unknown) = (true, true));
    assert!(!fixture.service.record_news(), "clients wait for this record");
    fixture.steer(|books| books.health_is_unknown = false);
    assert!(fixture.service.record_news());
    assert!(fixture.registry().volumes()[0].cache.as_ref().unwrap().failed.is_some());
}
