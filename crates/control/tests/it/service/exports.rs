//! Goal: `show` tells the truth about exports; one that cannot be opened is tried again; none reaches other
//! hosts unasked.

use std::time::{Duration, Instant};

use voltier_cache::Mode;
use voltier_control::protocol::{ArrayRequest, Request};
use voltier_control::{ExportSpec, ExportState};

use super::fixture::{Fixture, name};

fn request(fixture: &Fixture, address: &str, insecure: bool) -> Request {
    let address = match address {
        "" => voltier_control::NbdAddress::Unix(fixture.path("s.sock")),
        text => text.parse().unwrap(),
    };
    Request::Export { name: name(), export: ExportSpec::Nbd(address), insecure, access: None }
}

/// The state of the only export, and why.
fn export(fixture: &mut Fixture) -> (ExportState, String) {
    let exports = fixture.state().exports;
    assert_eq!(exports.len(), 1);
    (exports[0].state, exports[0].error.clone())
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the time that the control plane is told")]
fn an_export_whose_address_is_not_there_is_tried_again_with_longer_pauses() {
    let mut fixture = Fixture::with_volume(Mode::WriteBack);
    let ask = request(&fixture, "", false);
    fixture.service.handle(ask);
    fixture.steer(|books| books.exports_fail = true);
    fixture.restart(true);
    let failed = (ExportState::Failed, "cannot listen there".to_owned());
    assert_eq!(export(&mut fixture), failed);
    assert_eq!(fixture.calls(), ["open Load", "export nbd"]);

    let begun = Instant::now();
    let mut at = begun + Duration::from_secs(2);
    for pause_s in [2, 4, 8, 16, 32, 60, 60] {
        let pause = Duration::from_secs(pause_s);
        assert_eq!(fixture.service.look_for_devices(at), Some(pause));
        assert_eq!(fixture.calls(), ["export nbd"]);
        let early = at + pause - Duration::from_secs(1);
        assert_eq!(fixture.service.look_for_devices(early), Some(Duration::from_secs(1)));
        assert_eq!(fixture.calls(), [""; 0]);
        assert_eq!(export(&mut fixture), failed);
        at += pause;
    }
    fixture.steer(|books| books.exports_fail = false);
    assert_eq!(fixture.service.look_for_devices(at), None);
    assert_eq!(export(&mut fixture), (ExportState::Open, String::new()));
    assert_eq!(fixture.service.look_for_devices(at + Duration::from_secs(600)), None);
    assert_eq!(fixture.calls(), ["export nbd"]);
}

#[test]
fn a_dead_export_and_one_of_a_volume_that_is_not_served_are_not_shown_as_open() {
    let mut fixture = Fixture::with_volume(Mode::WriteBack);
    let ask = request(&fixture, "", false);
    fixture.service.handle(ask);
    assert_eq!(export(&mut fixture).0, ExportState::Open);
    fixture.steer(|books| books.exports_fail = true);
    assert_eq!(export(&mut fixture), (ExportState::Failed, "its socket is gone".to_owned()));
    std::fs::remove_file(fixture.path("hdd")).unwrap();
    fixture.restart(true);
    assert_eq!(export(&mut fixture).0, ExportState::Closed);
}

#[test]
fn a_dead_export_is_opened_again_when_it_is_asked_for_and_nobody_uses_it() {
    let mut fixture = Fixture::with_volume(Mode::WriteBack);
    let ask = || request(&fixture, "", false);
    let (first, used, failing, again) = (ask(), ask(), ask(), ask());
    fixture.service.handle(first);
    fixture.calls();

    fixture.steer(|books| (books.exports_fail, books.clients) = (true, 1));
    let told = fixture.error(used);
    assert!(told.contains("--now"), "{told}");
    assert_eq!(fixture.calls(), [""; 0]);

    fixture.steer(|books| books.clients = 0);
    assert_eq!(fixture.error(failing), "cannot listen there");
    assert_eq!(fixture.calls(), ["unexport nbd", "export nbd"]);
    assert_eq!(export(&mut fixture).0, ExportState::Failed);

    fixture.steer(|books| books.exports_fail = false);
    fixture.service.handle(again);
    assert_eq!(fixture.calls(), ["export nbd"]);
    assert_eq!(export(&mut fixture), (ExportState::Open, String::new()));
}

#[test]
fn an_export_to_other_hosts_needs_consent_and_a_recorded_one_has_it() {
    let mut fixture = Fixture::with_volume(Mode::WriteBack);
    let ask = request(&fixture, "tcp:0.0.0.0:10809", false);
    let told = fixture.error(ask);
    assert!(told.contains("--insecure") && told.contains("no password"), "{told}");
    assert!(fixture.state().exports.is_empty());
    assert!(fixture.registry().volumes()[0].exports.is_empty());
    let ask = request(&fixture, "tcp:0.0.0.0:10809", true);
    fixture.service.handle(ask);
    fixture.restart(true);
    assert_eq!(export(&mut fixture).0, ExportState::Open);
    let again = request(&fixture, "tcp:0.0.0.0:10809", false);
    fixture.service.handle(again);
    assert_eq!(export(&mut fixture).0, ExportState::Open);
}

#[test]
fn a_volume_or_array_whose_export_cannot_be_opened_is_not_made() {
    let mut fixture = Fixture::new();
    let Request::Export { export, .. } = request(&fixture, "", false) else { unreachable!() };
    let (export, array_export) = (
        Some(export),
        Some(ExportSpec::Nbd(voltier_control::NbdAddress::Unix(fixture.path("r5.sock")))),
    );
    fixture.steer(|books| books.exports_fail = true);
    let cache = Some(fixture.cache("ssd", Mode::WriteBack));
    let create = Request::Create { name: name(), origin: fixture.device("hdd"), cache, export };
    assert!(fixture.error(create.clone()).contains("cannot listen there"));
    assert!(fixture.registry().volumes().is_empty());
    let array = |fixture: &Fixture| Request::Array {
        ask: ArrayRequest::Create {
            array: fixture.new_array(&["d1", "d2", "d3"]),
            integrity: voltier_array::Integrity::None,
            export: array_export.clone(),
        },
    };
    let make = array(&fixture);
    assert!(fixture.error(make).contains("cannot listen there"));
    assert!(fixture.registry().volumes().is_empty() && fixture.registry().arrays().is_empty());
    // The drives are free again.
    fixture.steer(|books| books.exports_fail = false);
    fixture.service.handle(create);
    let make = array(&fixture);
    fixture.ask(make);
    let made: Vec<_> = fixture
        .registry()
        .volumes()
        .iter()
        .map(|volume| (volume.name.to_string(), volume.origin.to_string(), volume.exports.len()))
        .collect();
    let hdd = fixture.device("hdd").to_string();
    assert_eq!(made, [("r5".into(), "array:r5".into(), 1), ("v".into(), hdd, 1)]);
}
