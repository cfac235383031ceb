//! Drives that do not answer: what is refused, with which way on, and what goes on.

use voltier_cache::Mode;
use voltier_control::protocol::{Request, Response};
use voltier_control::{Desired, DeviceState, VolumeState};

use super::fixture::{Fixture, name};

fn refused(fixture: &mut Fixture, requests: &[Request], words: &[&str]) {
    for request in requests {
        let text = fixture.error(request.clone());
        for word in words {
            assert!(text.contains(word), "{request:?}: `{word}` is not in: {text}");
        }
        assert_eq!(fixture.calls(), [] as [&str; 0], "nothing is changed");
        assert_eq!(fixture.registry().volumes()[0].desired, Desired::Serving);
    }
}

#[test]
fn requests_that_need_a_silent_ssd_are_refused_with_the_way_on() {
    let mut fixture = Fixture::with_volume(Mode::WriteBack);
    fixture.steer(|books| (books.dirty, books.silent_s) = (7, (45, 0)));
    fixture.calls();
    let state = fixture.state();
    assert_eq!((state.state, state.ssd.state), (VolumeState::Degraded, DeviceState::Silent));
    let known = ["has not answered for 45 s, and 7 dirty lines on it have no other copy"];
    let stop = Request::Stop { name: name(), now: false };
    refused(&mut fixture, &[stop], &[known[0], "`voltier stop v --now`"]);
    let flush = Request::Flush { name: name() };
    refused(&mut fixture, &[flush], &[known[0], "wait until it answers"]);
    let leaves = [
        Request::Detach { name: name(), flush: true },
        Request::Delete { name: name(), flush: true },
    ];
    refused(&mut fixture, &leaves, &[known[0], "`voltier detach --no-flush v`"]);
    let given_up = fixture.service.handle(Request::Detach { name: name(), flush: false });
    assert!(matches!(given_up, Response::Job { .. }), "{given_up:?}");
    assert!(fixture.registry().volumes()[0].cache.is_none());
}

#[test]
fn a_stop_all_the_same_is_recorded_and_ends() {
    let fixture = Fixture::with_volume(Mode::WriteBack);
    fixture.steer(|books| (books.dirty, books.silent_s) = (7, (45, 0)));
    fixture.service.handle(Request::Stop { name: name(), now: true });
    assert_eq!(fixture.registry().volumes()[0].desired, Desired::Stopped);
    let cache = fixture.registry().volumes()[0].cache.clone().unwrap();
    assert!(cache.maybe_dirty && cache.dirty_lines == 7 && cache.failed.is_none());
}

#[test]
fn requests_that_need_a_silent_hdd_are_refused() {
    let mut fixture = Fixture::with_volume(Mode::WriteThrough);
    fixture.steer(|books| books.silent_s = (0, 33));
    fixture.calls();
    assert_eq!(fixture.state().hdd.state, DeviceState::Silent);
    let requests = [
        Request::Stop { name: name(), now: false },
        Request::Flush { name: name() },
        Request::Detach { name: name(), flush: true },
        Request::Detach { name: name(), flush: false },
        Request::Delete { name: name(), flush: false },
    ];
    refused(&mut fixture, &requests, &["has not answered for 33 s; wait until it answers"]);
}

#[test]
fn an_ssd_that_was_given_up_for_its_silence_is_on_record_with_the_time() {
    let fixture = Fixture::with_volume(Mode::WriteThrough);
    fixture.steer(|books| (books.ssd_failed, books.silent_s) = (true, (37, 0)));
    assert!(fixture.service.notice_lost_ssds());
    let failed = fixture.registry().volumes()[0].cache.clone().unwrap().failed.unwrap();
    assert!(failed.contains("did not answer for 37 s") && failed.contains("nothing is lost"));
}
