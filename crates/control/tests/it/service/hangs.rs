//! Commands while another one waits for a drive that hangs.

use std::thread;
use std::time::Duration;

use voltier_cache::Mode;

use super::arrays::{ask_of, created, on, over_r5, r5};
use super::books::BookEngine;
use super::fixture::{Fixture, name};
use voltier_control::protocol::{
    ArrayRequest, JobState, MemberName, NewArray, Repair, Request, Response,
};
use voltier_control::{
    ArrayDetail, ArrayName, ArrayState, Desired, REGISTRY_FILE, Service, VolumeState, VolumeStatus,
};
use voltier_sim::Fake;

/// Ends the hang, also when the test fails meanwhile.
struct Hang<'a>(&'a Fixture);

impl Drop for Hang<'_> {
    fn drop(&mut self) {
        self.0.steer(|books| (books.hangs, books.is_hung) = (None, false));
    }
}

/// Gives a request of which the call that begins so hangs, and does something else meanwhile. Returns the
/// late answer.
fn while_it_hangs(
    fixture: &Fixture,
    call: &str,
    request: Request,
    meanwhile: impl FnOnce(&Service<Fake<BookEngine>>),
) -> Response {
    fixture.steer(|books| books.hangs = Some(call.to_owned()));
    thread::scope(|scope| {
        let hang = Hang(fixture);
        let service = fixture.service.clone();
        let hung = scope.spawn(move || service.handle(request));
        while !fixture.steer_and_read(|books| books.is_hung) {
            assert!(!hung.is_finished(), "{call} was not called");
            thread::yield_now();
        }
        meanwhile(&fixture.service);
        drop(hang);
        hung.join().unwrap()
    })
}

fn array_of(response: Response) -> ArrayDetail {
    match response {
        Response::Array { array, .. } => *array,
        other => panic!("{other:?}"),
    }
}

fn volume_of(response: Response) -> VolumeStatus {
    match response {
        Response::Volume { volume } => *volume,
        other => panic!("{other:?}"),
    }
}

fn error_of(response: Response) -> String {
    match response {
        Response::Error { error } => error.message,
        other => panic!("{other:?}"),
    }
}

fn show_array(name: ArrayName) -> Request {
    ask_of(ArrayRequest::Show { name: Some(name), over_s: None })
}

fn replace(fixture: &Fixture, new: &str) -> Request {
    let (old, new) = (MemberName::Index(0), fixture.device(new));
    ask_of(ArrayRequest::Replace { name: r5(), old, new, force: false })
}

fn fail(name: ArrayName, place: u32) -> Request {
    ask_of(ArrayRequest::Fail { name, member: MemberName::Index(place) })
}

/// A second array beside `r5`.
fn s5() -> ArrayName {
    "s5".parse().unwrap()
}

/// A volume `v` on the array `r5`, with an SSD.
fn a_cached_volume_on_an_array() -> Fixture {
    let fixture = Fixture::with_r5();
    let cache = Some(fixture.cache("ssd", Mode::WriteThrough));
    volume_of(fixture.service.handle(Request::Create {
        name: name(),
        origin: on("r5"),
        cache,
        export: None,
    }));
    fixture
}

/// Everything that only looks is answered while a command hangs, and says what is under way.
fn looks_are_answered(service: &Service<Fake<BookEngine>>, command: &str, waits_for: &str) {
    assert!(matches!(service.handle(Request::Ping), Response::Pong { .. }));
    let Response::Volumes { volumes } = service.handle(Request::Show { name: None, over_s: None })
    else {
        panic!("no volumes")
    };
    let ask = ArrayRequest::Show { name: None, over_s: None };
    let Response::Arrays { arrays } = service.handle(Request::Array { ask }) else {
        panic!("no arrays")
    };
    let volumes = volumes.into_iter().map(|volume| volume.under_way);
    let mut under_way = volumes.chain(arrays.into_iter().map(|array| array.under_way));
    let is_told = |told: String| told.starts_with(command) && told.contains(waits_for);
    assert!(under_way.any(is_told), "{command}: {waits_for}");
    let ask = ArrayRequest::PoolShow { pool: None };
    assert!(matches!(service.handle(Request::Array { ask }), Response::Pools { .. }));
}

#[test]
fn a_look_is_answered_whichever_command_hangs() {
    let start = Request::Start { name: name() };
    let stop = Request::Stop { name: name(), now: false };
    let detach = Request::Detach { name: name(), flush: false };
    let mode = ("mode".to_owned(), "wb".to_owned());
    let set = Request::Set { name: name(), changes: vec![mode] };
    let spare = |it: &Fixture| Request::Array {
        ask: ArrayRequest::AddSpare { name: r5(), spare: it.device("d5"), force: false },
    };
    let commands: [(&str, Request, &str, &str); 4] = [
        ("close v", stop.clone(), "stop: closing", "/ssd"),
        ("detach", detach, "detach: taking", "cache of v"),
        ("configure", set, "set: changing", "settings of v"),
        ("quiesce", Request::Detach { name: name(), flush: true }, "the end of a drain", "of v"),
    ];
    for (call, request, command, waits_for) in commands {
        let fixture = a_cached_volume_on_an_array();
        if call == "quiesce" {
            fixture.service.handle(request);
            fixture.steer(|books| books.hangs = Some(call.to_owned()));
            thread::scope(|scope| {
                let hang = Hang(&fixture);
                let service = fixture.service.clone();
                scope.spawn(move || service.step_jobs());
                while !fixture.steer_and_read(|books| books.is_hung) {
                    thread::yield_now();
                }
                looks_are_answered(&fixture.service, command, waits_for);
                drop(hang);
            });
            continue;
        }
        while_it_hangs(&fixture, call, request, |service| {
            looks_are_answered(service, command, waits_for);
        });
    }
    let fixture = a_cached_volume_on_an_array();
    fixture.service.handle(stop);
    while_it_hangs(&fixture, "letting go", start.clone(), |service| {
        looks_are_answered(service, "start: checking", "/ssd");
    });
    volume_of(fixture.service.handle(Request::Stop { name: name(), now: false }));
    while_it_hangs(&fixture, "open", start, |service| {
        looks_are_answered(service, "start: opening", "/ssd");
        let shown = volume_of(service.handle(Request::Show { name: Some(name()), over_s: None }));
        assert_eq!(shown.state, VolumeState::Starting);
    });
    let array_commands: [(&str, Request, &str, &str); 2] = [
        ("replace", replace(&fixture, "d4"), "array replace: writing to", "/d4"),
        ("label", spare(&fixture), "array add-spare: writing the label", "/d5"),
    ];
    for (call, request, command, waits_for) in array_commands {
        while_it_hangs(&fixture, call, request, |service| {
            looks_are_answered(service, command, waits_for);
        });
    }
}

#[test]
fn a_member_is_failed_while_a_command_for_another_array_and_for_the_same_one_hangs() {
    let mut fixture = Fixture::with_r5();
    let other = NewArray { name: s5(), ..fixture.new_array(&["d4", "d5", "d6"]) };
    fixture.ask(created(other));
    let hung = replace(&fixture, "d7");
    let replaced = while_it_hangs(&fixture, "replace", hung, |service| {
        for array in [s5(), r5()] {
            let failed = array_of(service.handle(fail(array.clone(), 2)));
            assert_eq!(failed.state, ArrayState::Degraded);
            array_of(
                service
                    .handle(ask_of(ArrayRequest::Scrub { name: array, repair: Repair::Nothing })),
            );
        }
        // The new device stays on record while it hangs.
        let arrays = fixture.registry();
        let recorded = arrays.find_array(&r5()).unwrap();
        assert_eq!(recorded.incoming, [fixture.device("d7")]);
    });
    let replaced = array_of(replaced);
    assert_eq!(replaced.state, ArrayState::Degraded, "the answer does not undo it");
    let arrays = fixture.registry();
    assert!(arrays.find_array(&s5()).is_some_and(|array| array.incoming.is_empty()));
}

#[test]
fn a_command_goes_on_while_one_for_another_volume_hangs_and_waits_for_one_for_the_same() {
    let mut fixture = Fixture::with_r5();
    fixture.create(Mode::WriteThrough);
    fixture.service.set_queue_wait(Duration::ZERO);
    let hung = replace(&fixture, "d4");
    while_it_hangs(&fixture, "replace", hung, |service| {
        let stopped = volume_of(service.handle(Request::Stop { name: name(), now: false }));
        assert_eq!(stopped.state, VolumeState::Stopped);
        volume_of(service.handle(Request::Start { name: name() }));
        let stop = ask_of(ArrayRequest::Stop { name: r5() });
        let refused = error_of(service.handle(stop));
        assert!(refused.contains("the array r5 is busy with another command"), "{refused}");
        assert!(refused.contains("array replace: writing to"), "{refused}");
        // A volume that is to stand on the array waits for it as well.
        let cached = Request::Create {
            name: "w".parse().unwrap(),
            origin: on("r5"),
            cache: None,
            export: None,
        };
        let refused = error_of(service.handle(cached));
        assert!(refused.contains("the array r5 is busy"), "{refused}");
    });
    fixture.job(Request::Delete { name: name(), flush: false });
    fixture.job(Request::Delete { name: name(), flush: false });
    volume_of(fixture.service.handle(over_r5()));
}

#[test]
fn two_commands_at_a_time_never_take_the_same_device() {
    let fixture = Fixture::with_r5();
    let create = |volume: &str, origin| Request::Create {
        name: volume.parse().unwrap(),
        origin: fixture.device(origin),
        cache: None,
        export: None,
    };
    let made = while_it_hangs(&fixture, "plain w", create("w", "hdd"), |service| {
        let refused = error_of(service.handle(create("v", "hdd")));
        assert!(refused.contains("/hdd is being taken by another command, `create`"), "{refused}");
        let refused = error_of(service.handle(replace(&fixture, "hdd")));
        assert!(refused.contains("/hdd is being taken by another command"), "{refused}");
        volume_of(service.handle(create("v", "d8")));
    });
    volume_of(made);
    let refused = error_of(fixture.service.handle(create("x", "hdd")));
    assert!(refused.contains("already part of volume w"), "{refused}");
}

#[test]
fn the_daemon_records_what_happens_while_a_command_hangs() {
    let mut fixture = Fixture::with_volume(Mode::WriteThrough);
    fixture.ask(fixture.make(&["d1", "d2", "d3"]));
    let hung = replace(&fixture, "d4");
    while_it_hangs(&fixture, "replace", hung, |service| {
        fixture.steer(|books| books.ssd_failed = true);
        assert!(service.record_news(), "clients wait for the record");
        let registry = fixture.registry();
        let cache = registry.find(&name()).unwrap().cache.clone().unwrap();
        assert!(cache.failed.is_some());
    });
}

#[test]
fn an_end_of_the_daemon_waits_for_a_command_and_takes_no_other() {
    let fixture = a_cached_volume_on_an_array();
    let hung = replace(&fixture, "d4");
    fixture.steer(|books| books.hangs = Some("replace".to_owned()));
    thread::scope(|scope| {
        let hang = Hang(&fixture);
        let (service, stops) = (fixture.service.clone(), fixture.service.clone());
        let replaced = scope.spawn(move || service.handle(hung));
        while !fixture.steer_and_read(|books| books.is_hung) {
            thread::yield_now();
        }
        stops.begin_to_stop();
        let stopped = scope.spawn(move || stops.stop());
        let refused = error_of(fixture.service.handle(Request::Flush { name: name() }));
        assert!(refused.contains("the daemon is stopping"), "{refused}");
        array_of(fixture.service.handle(show_array(r5())));
        drop(hang);
        array_of(replaced.join().unwrap());
        stopped.join().unwrap();
    });
    let calls = fixture.calls();
    let at = |call: &str| calls.iter().position(|it| it.starts_with(call)).unwrap();
    assert!(at("replace") < at("close v") && at("close v") < at("stop r5"), "{calls:?}");
}

#[test]
fn a_detach_that_fails_while_no_record_can_be_written_leaves_the_volume_serving_on_record() {
    let mut fixture = Fixture::with_volume(Mode::WriteBack);
    fixture.steer(|books| books.dirty = 3);
    let detach = Request::Detach { name: name(), flush: true };
    assert_eq!(fixture.job(detach.clone()).state, JobState::Running);
    assert_eq!(fixture.registry().volumes()[0].desired, Desired::Detaching);
    // The state folder is full from here on.
    let blocker = fixture.state_dir().join(format!("{REGISTRY_FILE}.new"));
    std::fs::create_dir(&blocker).unwrap();
    fixture.steer(|books| books.dirty = 0);
    assert!(!fixture.service.step_jobs(), "it has failed");
    assert!(!fixture.service.record_news());
    assert_eq!(fixture.registry().volumes()[0].desired, Desired::Detaching);
    std::fs::remove_dir(&blocker).unwrap();
    assert!(fixture.service.record_news());
    assert_eq!(fixture.registry().volumes()[0].desired, Desired::Serving);
    assert_eq!(fixture.state().state, VolumeState::Running);
    // And it can be asked for again.
    let job = fixture.job(detach);
    assert!(!fixture.service.step_jobs());
    let ended = fixture.job(Request::Job { id: job.id });
    assert_eq!(ended.state, JobState::Done);
    assert_eq!(fixture.state().ssd.path, "");
}

#[test]
fn a_command_that_comes_with_the_daemon_waits_until_its_array_was_tried() {
    let mut fixture = a_cached_volume_on_an_array();
    fixture.service.stop();
    fixture.load_again();
    fixture.steer(|books| books.hangs = Some("assemble r5".to_owned()));
    let failed = thread::scope(|scope| {
        let hang = Hang(&fixture);
        let start = fixture.service.clone();
        scope.spawn(move || start.start(false, Duration::ZERO));
        while !fixture.steer_and_read(|books| books.is_hung) {
            thread::yield_now();
        }
        let service = fixture.service.clone();
        let failed = scope.spawn(move || service.handle(fail(r5(), 1)));
        for _ in 0..1_000 {
            assert!(!failed.is_finished(), "there is no array yet");
            thread::yield_now();
        }
        drop(hang);
        failed.join().unwrap()
    });
    assert_eq!(array_of(failed).state, ArrayState::Degraded);
}

#[test]
fn what_an_array_loses_while_a_new_device_is_looked_at_stays_on_record() {
    let commands: [fn(&Fixture) -> Request; 2] = [
        |it| replace(it, "d4"),
        |it| {
            let journal = Some(it.device("d4"));
            ask_of(ArrayRequest::SetJournal { name: r5(), journal, force: false })
        },
    ];
    for command in commands {
        let fixture = a_cached_volume_on_an_array();
        let call = format!("examine {}", fixture.path("d4").display());
        let request = command(&fixture);
        let answer = while_it_hangs(&fixture, &call, request, |service| {
            fixture.steer(|books| books.array_changes = 7);
            service.notice_array_events();
            assert_eq!(fixture.registry().arrays()[0].events, 8);
            // Nothing mends the record afterwards.
            fixture.steer(|books| books.are_arrays_late = true);
        });
        array_of(answer);
        let events = fixture.registry().arrays()[0].events;
        assert_eq!(events, 8, "a restart would take an old member for current");
    }
}
