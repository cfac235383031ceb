//! Labels that only a newer program can read: nothing is opened without what they are of, or written over it.

use std::time::Duration;

use voltier_cache::Mode;
use voltier_control::protocol::{ArrayRequest, NewCache, Request, Response};
use voltier_control::{ArrayState, Identity, ImportOrder, Settings, VolumeState};

use super::arrays::{ask_of, delete_r5, on};
use super::fixture::{Fixture, name};
use super::late::WAIT;

const DRIVES: [&str; 3] = ["d1", "d2", "d3"];
const WHY: &str = "of a newer Voltier";

impl Fixture {
    fn has_newer(&self, drive: &str, of: Identity) {
        self.steer(|books| {
            books.newer.insert(self.path(drive), of);
        });
    }

    /// A newer program has changed a member: its label is of its array still, and unknown here.
    fn make_newer(&self, drive: &str) {
        let label = self.take_label(drive);
        self.has_newer(drive, label.array);
    }

    /// The array is at rest because of such a label, and waits for nothing.
    #[track_caller]
    fn is_refused(&mut self, calls: &[&str]) {
        assert_eq!(self.calls(), calls);
        let array = self.array();
        assert_eq!(array.state, ArrayState::Failed, "{array:?}");
        assert!(array.error.contains(WHY), "{array:?}");
    }
}

#[test]
fn a_volume_does_not_write_over_a_member_that_has_the_path_of_its_origin() {
    for of_another in [false, true] {
        let mut fixture = Fixture::array_of(&DRIVES);
        fixture.steer(|books| books.are_unmarked = true);
        let origin = fixture.device("hdd");
        fixture.service.handle(Request::Create { name: name(), origin, cache: None, export: None });
        let label = fixture.take_label("d3");
        fixture.has_newer("hdd", if of_another { Identity([3; 16]) } else { label.array });
        fixture.restart(true);
        let (state, calls) = (fixture.state(), fixture.calls());
        assert_eq!(calls.contains(&"plain v".to_owned()), of_another, "{}", state.error);
        if !of_another {
            assert_eq!(state.state, VolumeState::Failed);
            assert!(state.error.contains(WHY), "{}", state.error);
        }
    }
}

#[test]
fn an_array_does_not_start_without_a_member_on_another_path() {
    for wait in [Duration::ZERO, WAIT] {
        let mut fixture = Fixture::array_of(&DRIVES);
        let label = fixture.take_label("d3");
        fixture.shuffle(&[("d3", "far/d4")]);
        fixture.has_newer("far/d4", label.array);
        fixture.is_block_device(&["far/d4"]);
        fixture.restart_and_wait(true, wait);
        if !wait.is_zero() {
            fixture.look(super::late::now(), 91);
        }
        fixture.is_refused(&["assemble r5 of 3"]);
    }
}

#[test]
fn a_label_of_another_array_on_another_path_keeps_none_from_its_start() {
    let mut fixture = Fixture::array_of(&DRIVES);
    fixture.take_away("d3");
    fixture.has_newer("d4", Identity([3; 16]));
    fixture.is_block_device(&["d4"]);
    fixture.restart(true);
    assert_eq!(fixture.calls(), ["assemble r5 of 2", "pace r5 normal"]);
    assert_eq!(fixture.array().state, ArrayState::Degraded);
}

#[test]
fn an_array_does_not_start_without_a_spare_that_became_a_member() {
    let mut fixture = Fixture::new();
    let mut new = fixture.new_array(&DRIVES);
    new.spares = vec![fixture.device("d4")];
    let integrity = voltier_array::Integrity::None;
    fixture.ask(ask_of(ArrayRequest::Create { array: new, integrity, export: None }));
    fixture.take_away("d3");
    let label = fixture.take_label("d3");
    fixture.steer(|books| drop(books.labels.remove(&fixture.path("d4"))));
    fixture.has_newer("d4", label.array);
    fixture.calls();
    fixture.restart(true);
    fixture.is_refused(&["assemble r5 of 3"]);
}

#[test]
fn an_import_does_not_pass_over_a_member_that_it_comes_across() {
    let mut fixture = Fixture::array_of(&DRIVES);
    fixture.service.handle(delete_r5(false));
    fixture.make_newer("d3");
    fixture.is_block_device(&["d3"]);
    fixture.calls();
    let devices = vec![fixture.device("d1"), fixture.device("d2")];
    let order = ImportOrder { devices, name: None, changed_origin: false, dry_run: false };
    let error = fixture.error(Request::Import { order: order.clone() });
    assert!(error.contains("d3") && error.contains(WHY), "{error}");
    assert_eq!(fixture.calls(), [""; 0]);
    assert!(fixture.registry().arrays().is_empty());
    // One of another array is nobody's business here.
    fixture.has_newer("d3", Identity([3; 16]));
    let imported = fixture.service.handle(Request::Import { order });
    assert!(matches!(imported, Response::Imported { .. }), "{imported:?}");
}

#[test]
fn a_refused_array_waits_for_nothing_and_is_not_tried_for_ever() {
    let mut fixture = Fixture::array_of(&DRIVES);
    fixture.make_newer("d3");
    fixture.restart_and_wait(true, Duration::from_secs(2));
    let begun = super::late::now();
    fixture.is_refused(&["assemble r5 of 3"]);
    assert!(fixture.array().waits_for.is_empty(), "{:?}", fixture.array());
    assert_eq!(fixture.look(begun, 3), None);
    fixture.calls();
    assert_eq!(fixture.look(begun, 600), None);
    fixture.is_refused(&[]);
}

#[test]
fn a_clean_cache_on_a_refused_array_is_not_given_up() {
    for wait in [Duration::ZERO, WAIT] {
        let mut fixture = Fixture::array_of(&DRIVES);
        let settings = Settings { mode: Mode::WriteThrough, ..Settings::default() };
        let cache = Some(NewCache { device: on("r5"), settings, force: false });
        let origin = fixture.device("hdd");
        fixture.service.handle(Request::Create { name: name(), origin, cache, export: None });
        fixture.make_newer("d3");
        fixture.calls();
        fixture.restart_and_wait(true, wait);
        fixture.is_refused(&["assemble r5 of 3"]);
        let state = fixture.state();
        assert_eq!(state.state, VolumeState::Failed, "{}", state.error);
        assert!(state.error.contains(WHY), "{}", state.error);
        assert_eq!(fixture.registry().volumes()[0].cache.as_ref().unwrap().failed, None);
    }
}

#[test]
fn a_disk_that_a_cache_may_name_gets_no_volume() {
    let mut fixture = Fixture::new();
    fixture.has_newer("ssd2", Identity([3; 16]));
    fixture.is_block_device(&["ssd2"]);
    let origin = fixture.device("hdd");
    let is_marked = {
        fixture.service.handle(Request::Create {
            name: name(),
            origin: origin.clone(),
            cache: None,
            export: None,
        });
        let record = fixture.registry().find(&name()).cloned();
        record.is_none_or(|it| it.origin_identity.is_some_and(|mark| mark.is_known()))
    };
    // Without a mark nothing says that a cache is of this disk.
    if !is_marked {
        return;
    }
    let error = fixture.error(Request::Create {
        name: name(),
        origin: origin.clone(),
        cache: None,
        export: None,
    });
    assert!(error.contains("ssd2") && error.contains(WHY), "{error}");
    assert!(fixture.registry().volumes().is_empty());
    // The SSD that the command overwrites is given up, by the user's word.
    let cache = NewCache { force: true, ..fixture.cache("ssd2", Mode::WriteBack) };
    fixture.service.handle(Request::Create {
        name: name(),
        origin,
        cache: Some(cache),
        export: None,
    });
    assert_eq!(fixture.registry().volumes().len(), 1);
}

#[test]
fn a_label_that_is_not_erased_is_told() {
    for of_another in [false, true] {
        let fixture = Fixture::array_of(&DRIVES);
        let label = fixture.take_label("d3");
        fixture.has_newer("d3", if of_another { Identity([3; 16]) } else { label.array });
        let response = fixture.service.handle(delete_r5(true));
        assert_eq!(fixture.calls(), ["stop r5", "erase label", "erase label"]);
        assert!(fixture.registry().arrays().is_empty());
        match response {
            Response::Error { error } => {
                assert!(!of_another && error.message.contains("not all"), "{}", error.message);
                assert!(error.message.contains(WHY), "{}", error.message);
            }
            other => assert!(of_another, "{other:?}"),
        }
    }
}
