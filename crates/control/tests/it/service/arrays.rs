//! Arrays in the service: what is recorded, refused, and in which order.

use std::fs;
use std::path::PathBuf;

use voltier_cache::Mode;

use super::books::ARRAY_BYTES;
use super::fixture::{Fixture, name};
use voltier_control::protocol::{
    ArrayRequest, Growth, MemberName, NewArray, NewCache, Repair, Request, Response,
};
use voltier_control::{
    ArrayDetail, ArrayName, ArrayState, DeviceSpec, DeviceState, Settings, VolumeState,
};

pub(super) fn r5() -> ArrayName {
    "r5".parse().unwrap()
}

pub(super) fn on(array: &str) -> DeviceSpec {
    format!("array:{array}").parse().unwrap()
}

pub(super) fn over_r5() -> Request {
    Request::Create { name: name(), origin: on("r5"), cache: None, export: None }
}

pub(super) fn delete_r5(erase: bool) -> Request {
    ask_of(ArrayRequest::Delete { name: r5(), erase })
}

pub(super) fn ask_of(ask: ArrayRequest) -> Request {
    Request::Array { ask }
}

pub(super) fn created(array: NewArray) -> Request {
    ask_of(ArrayRequest::Create { array, integrity: voltier_array::Integrity::None, export: None })
}

impl Fixture {
    pub(super) fn with_r5() -> Self {
        let mut fixture = Self::new();
        fixture.ask(fixture.make(&["d1", "d2", "d3"]));
        fixture
    }

    pub(super) fn with_volume_over_r5() -> Self {
        let fixture = Self::with_r5();
        fixture.service.handle(over_r5());
        fixture
    }

    pub(super) fn new_array(&self, members: &[&str]) -> NewArray {
        NewArray {
            name: r5(),
            level: "5".parse().unwrap(),
            chunk_bytes: 16384,
            consistency: voltier_array::Consistency::Journal,
            members: members.iter().map(|member| self.device(member)).collect(),
            spares: Vec::new(),
            journal: None,
            force: false,
        }
    }

    pub(super) fn make(&self, members: &[&str]) -> Request {
        created(self.new_array(members))
    }

    fn assemble(&self, members: &[&str]) -> Request {
        let devices = members.iter().map(|member| self.device(member)).collect();
        ask_of(ArrayRequest::Assemble { devices, force: false, read_only: false })
    }

    pub(super) fn ask(&mut self, request: Request) -> (ArrayDetail, Vec<String>) {
        match self.service.handle(request) {
            Response::Array { array, notes } => (*array, notes),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn array(&mut self) -> ArrayDetail {
        self.ask(ask_of(ArrayRequest::Show { name: Some(r5()), over_s: None })).0
    }

    fn fail(&self, member: &str) -> Request {
        let member = MemberName::Device(self.device(member));
        ask_of(ArrayRequest::Fail { name: r5(), member })
    }
}

#[test]
fn an_array_is_made_and_back_before_its_volume_after_a_restart_of_either_kind() {
    for clean in [true, false] {
        let mut fixture = Fixture::new();
        let (made, notes) = fixture.ask(fixture.make(&["d1", "d2", "d3"]));
        assert_eq!(
            (made.state, made.size_bytes, notes.len()),
            (ArrayState::Running, ARRAY_BYTES, 0)
        );
        fixture.service.handle(over_r5());
        assert_eq!(fixture.state().size_bytes, ARRAY_BYTES);
        assert_eq!(fixture.array().used_by, Some(name()));
        fixture.restart(clean);
        assert_eq!(fixture.calls(), ["assemble r5 of 3", "pace r5 normal", "plain v"]);
        assert_eq!(fixture.state().state, VolumeState::Running);
        fixture.service.stop();
        assert_eq!(fixture.calls(), ["close v", "stop r5"], "the array goes last");
    }
}

#[test]
fn a_journal_device_is_on_record_before_it_is_the_arrays_and_looked_at_after_a_crash() {
    let mut fixture = Fixture::new();
    let mut new = fixture.new_array(&["d1", "d2", "d3"]);
    new.journal = Some(fixture.device("d4"));
    fixture.ask(created(new));
    fixture.restart(false);
    assert_eq!(fixture.calls(), ["assemble r5 of 4", "pace r5 normal"]);
    let set = |journal, force| Request::Array {
        ask: ArrayRequest::SetJournal { name: r5(), journal, force },
    };
    fixture.ask(set(None, false));
    assert_eq!(fixture.calls(), ["journal r5 on members"]);
    assert_eq!(fixture.array().journal_device, None);
    let d4 = fixture.device("d4");
    let before = fixture.registry().arrays().to_vec();
    fixture.steer(|books| books.failing = Some("journal"));
    assert_eq!(fixture.error(set(Some(d4.clone()), false)), "journal was to fail");
    assert_eq!(fixture.registry().arrays(), before);
    fixture.steer(|books| books.failing = None);
    fixture.ask(set(Some(d4), false));
    let shown = fixture.array().journal_device.map(|journal| journal.path);
    assert_eq!(shown, Some(fixture.path("d4").display().to_string()));
    let member = fixture.device("d1");
    let error = fixture.error(set(Some(member), true));
    assert!(error.contains("already part of array r5"), "{error}");
}

#[test]
fn members_that_are_given_twice_taken_or_hold_something_are_refused() {
    let mut fixture = Fixture::with_volume(Mode::WriteThrough);
    std::os::unix::fs::symlink(fixture.path("d1"), fixture.path("link")).unwrap();
    let mut bytes = fs::read(fixture.path("d4")).unwrap();
    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
    fs::write(fixture.path("d4"), &bytes).unwrap();
    fixture.calls();
    let cases: [(&[&str], &str); 5] = [
        (&["d1", "d2", "link"], "given twice"),
        (&["d1", "d2", "ssd"], "already part of volume v"),
        (&["d1", "d2", "d4"], "ext2/3/4"),
        (&["d1", "d2", "gone"], "does not exist"),
        (&["d1", "d2"], "RAID 5 on 2 members"),
    ];
    for (members, words) in cases {
        let error = fixture.error(fixture.make(members));
        assert!(error.contains(words), "{words}: {error}");
    }
    let mut nested = fixture.new_array(&["d1", "d2", "d3"]);
    nested.members[2] = on("r5");
    let error = fixture.error(created(nested));
    assert!(error.contains("arrays cannot be nested"), "{error}");
    assert_eq!(fixture.calls(), [""; 0], "nothing was asked of the drives");
    assert!(fixture.registry().arrays().is_empty());
    let mut forced = fixture.new_array(&["d1", "d2", "d4"]);
    forced.force = true;
    fixture.ask(created(forced));
    assert!(fixture.error(fixture.make(&["d1", "d2", "d3"])).contains("an array `r5` exists"));
    let taken = Request::Create {
        name: "w".parse().unwrap(),
        origin: fixture.device("d1"),
        cache: None,
        export: None,
    };
    assert!(fixture.error(taken).contains("already part of array r5"));
}

#[test]
fn of_unequal_members_the_smallest_counts_and_it_is_said() {
    let mut fixture = Fixture::new();
    fs::File::options().write(true).open(fixture.path("d2")).unwrap().set_len(2 << 20).unwrap();
    let (_, notes) = fixture.ask(fixture.make(&["d1", "d2", "d3"]));
    assert_eq!(notes.len(), 1);
    assert!(
        notes[0].contains("d2 has 2M and is used like the smallest member, as 1M"),
        "{notes:?}"
    );
}

#[test]
fn one_volume_uses_an_array_at_a_time_and_it_is_not_deleted_under_it() {
    let mut fixture = Fixture::with_r5();
    let cache = |force| NewCache { device: on("r5"), settings: Settings::default(), force };
    let both =
        Request::Create { name: name(), origin: on("r5"), cache: Some(cache(false)), export: None };
    assert!(fixture.error(both).contains("same device as the other side"));
    let other = Request::Create { name: name(), origin: on("r7"), cache: None, export: None };
    assert!(fixture.error(other).contains("no array `r7`; did you mean `r5`"));
    fixture.service.handle(over_r5());
    let second =
        Request::Create { name: "w".parse().unwrap(), origin: on("r5"), cache: None, export: None };
    assert!(fixture.error(second).contains("already part of volume v"));
    assert!(fixture.error(delete_r5(true)).contains("in use by volume v"));
    fixture.service.handle(Request::Delete { name: name(), flush: false });
    fixture.calls();
    assert_eq!(fixture.service.handle(delete_r5(false)), Response::Done);
    assert_eq!(fixture.calls(), ["stop r5"]);
    assert!(fixture.error(delete_r5(false)).contains("there are none yet"));
}

#[test]
fn what_an_array_holds_is_not_overwritten_by_a_cache_without_force() {
    let mut fixture = Fixture::with_r5();
    fixture.steer(|books| books.head = [&[0; 1080][..], &[0x53, 0xef], &[0; 100]].concat());
    let create = |fixture: &Fixture, force| Request::Create {
        name: name(),
        origin: fixture.device("hdd"),
        cache: Some(NewCache { device: on("r5"), settings: Settings::default(), force }),
        export: None,
    };
    let error = fixture.error(create(&fixture, false));
    assert!(error.contains("array:r5 holds an ext2/3/4 file system"), "{error}");
    fixture.service.handle(create(&fixture, true));
    assert_eq!(fixture.state().ssd.path, "array:r5");
}

#[test]
fn a_member_that_is_missing_is_said_and_too_many_stop_the_volume_until_they_are_back() {
    let mut fixture = Fixture::with_volume_over_r5();
    fixture.service.stop();
    fs::rename(fixture.path("d1"), fixture.path("away")).unwrap();
    fixture.restart(false);
    assert_eq!(fixture.calls(), ["assemble r5 of 2", "pace r5 normal", "plain v"]);
    let array = fixture.array();
    assert!(array.left_out.len() == 1 && array.left_out[0].contains("d1 does not exist"));
    fixture.service.stop();
    fs::rename(fixture.path("d2"), fixture.path("away2")).unwrap();
    fixture.restart(false);
    assert_eq!(fixture.array().state, ArrayState::Failed);
    assert!(fixture.array().error.contains("2 members are missing"), "{:?}", fixture.array());
    assert_eq!(fixture.state().state, VolumeState::Failed);
    let error = fixture.state().error;
    assert!(error.contains("the array r5 is not assembled: 2 members"), "{error}");
    // The devices are back under other names.
    fixture.calls();
    let labels = |books: &mut super::books::Books, from: PathBuf, to: PathBuf| {
        let label = books.labels.remove(&from).unwrap();
        books.labels.insert(to, label);
    };
    let moved =
        [("d1", "away"), ("d2", "away2")].map(|(from, to)| (fixture.path(from), fixture.path(to)));
    for (from, to) in moved {
        fixture.steer(|books| labels(books, from, to));
    }
    let (array, _) = fixture.ask(fixture.assemble(&["away2", "d3", "away"]));
    assert_eq!(array.state, ArrayState::Running);
    assert_eq!(
        fixture.calls(),
        ["assemble r5 of 3", "pace r5 normal", "plain v"],
        "the volume waited for it"
    );
    assert_eq!(fixture.state().state, VolumeState::Running);
    fixture.restart(true);
    assert_eq!(fixture.state().state, VolumeState::Running, "the new names are recorded");
}

#[test]
fn a_deleted_array_is_assembled_again_unless_its_labels_were_erased() {
    let mut fixture = Fixture::with_r5();
    let uuid = fixture.array().uuid;
    assert!(fixture.error(fixture.assemble(&["d1", "d2", "d3"])).contains("is assembled already"));
    fixture.service.handle(delete_r5(false));
    assert!(fixture.error(fixture.assemble(&["d1", "d2", "d4"])).contains("d4 is not a member"));
    assert!(fixture.error(fixture.assemble(&["d1", "d2", "d1"])).contains("given twice"));
    let (array, _) = fixture.ask(fixture.assemble(&["d3", "d1", "d2"]));
    assert_eq!((array.uuid, array.name), (uuid, r5()));
    fixture.service.handle(delete_r5(true));
    assert!(fixture.error(fixture.assemble(&["d1", "d2", "d3"])).contains("d1 is not a member"));
}

#[test]
fn members_of_two_arrays_and_a_name_that_is_taken_are_refused() {
    let mut fixture = Fixture::with_r5();
    fixture.service.handle(delete_r5(false));
    fixture.ask(fixture.make(&["ssd", "ssd2", "d4"]));
    let error = fixture.error(fixture.assemble(&["d1", "d2", "d3"]));
    assert!(error.contains("another array `r5` exists"), "{error}");
    fixture.service.handle(delete_r5(false));
    assert!(fixture.error(fixture.assemble(&["d1", "d2", "ssd"])).contains("one at a time"));
}

#[test]
fn an_array_that_cannot_be_made_or_recorded_leaves_nothing() {
    let mut fixture = Fixture::new();
    fixture.steer(|books| books.failing = Some("make"));
    fixture.error(fixture.make(&["d1", "d2", "d3"]));
    assert!(fixture.registry().arrays().is_empty());
    assert!(fixture.error(over_r5()).contains("there are none yet"));
}

#[test]
fn a_failed_member_degrades_the_array_and_its_volume() {
    let mut fixture = Fixture::with_volume_over_r5();
    let error = fixture.error(fixture.fail("d4"));
    assert!(
        error.contains("d4 is not a member of r5; its members: ") && error.contains("d3"),
        "{error}"
    );
    std::os::unix::fs::symlink(fixture.path("d2"), fixture.path("link")).unwrap();
    let (array, _) = fixture.ask(fixture.fail("link"));
    assert_eq!(array.state, ArrayState::Degraded);
    assert_eq!(fixture.state().hdd.state, DeviceState::Degraded);
    assert_eq!(fixture.state().state, VolumeState::Running);
    fixture.steer(|books| books.failing = Some("fail"));
    assert_eq!(fixture.error(fixture.fail("d1")), "fail was to fail");
}

impl Fixture {
    fn replace(&self, old: u32, new: &str, force: bool) -> Request {
        let (old, new) = (MemberName::Index(old), self.device(new));
        ask_of(ArrayRequest::Replace { name: r5(), old, new, force })
    }

    fn spare(&self, spare: &str, force: bool) -> Request {
        ask_of(ArrayRequest::AddSpare { name: r5(), spare: self.device(spare), force })
    }

    fn paths(&mut self) -> Vec<Option<DeviceSpec>> {
        self.registry().find_array(&r5()).unwrap().members.clone()
    }
}

#[test]
fn a_drive_of_a_volume_that_has_the_path_of_a_lost_member_does_not_come_to_the_array() {
    let mut fixture = Fixture::new();
    let mut new = fixture.new_array(&["d1", "d2", "d3"]);
    new.journal = Some(fixture.device("d5"));
    fixture.ask(created(new));
    fixture.create(Mode::WriteThrough);
    fixture.ask(fixture.fail("d2"));
    for lost in ["d2", "d5"] {
        fs::remove_file(fixture.path(lost)).unwrap();
        std::os::unix::fs::symlink(fixture.path("hdd"), fixture.path(lost)).unwrap();
    }
    let journal = Some(fixture.device("d5"));
    let set = ArrayRequest::SetJournal { name: r5(), journal, force: true };
    let requests =
        [fixture.replace(1, "d2", true), fixture.spare("d2", true), Request::Array { ask: set }];
    fixture.calls();
    for request in requests {
        let error = fixture.error(request);
        assert!(error.contains("is already part of volume v"), "{error}");
    }
    assert_eq!(fixture.calls(), [""; 0]);
}

#[test]
fn a_lost_member_is_replaced_and_the_new_one_is_there_after_a_restart() {
    let mut fixture = Fixture::with_r5();
    fixture.ask(fixture.fail("d2"));
    assert!(fixture.error(fixture.replace(3, "d4", false)).contains("3 is not a member of r5"));
    assert!(fixture.error(fixture.replace(1, "gone", false)).contains("does not exist"));
    let (array, notes) = fixture.ask(fixture.replace(1, "d4", false));
    assert_eq!(array.state, ArrayState::Running);
    assert!(notes[0].contains("d4 takes the place of member 1"), "{notes:?}");
    assert_eq!(fixture.paths()[1], Some(fixture.device("d4")));
    assert!(fixture.registry().arrays()[0].incoming.is_empty());
    fixture.restart(false);
    assert_eq!(fixture.array().state, ArrayState::Running);
    let again =
        Request::Create { name: name(), origin: fixture.device("d2"), cache: None, export: None };
    fixture.service.handle(again);
    assert_eq!(fixture.state().hdd.path, fixture.path("d2").display().to_string(), "it is free");
}

#[test]
fn a_member_in_service_stays_on_record_until_its_copy_is_done() {
    let mut fixture = Fixture::with_r5();
    fixture.ask(fixture.replace(0, "d4", false));
    assert_eq!(fixture.paths()[0], Some(fixture.device("d1")));
    assert_eq!(fixture.registry().arrays()[0].incoming, [fixture.device("d4")]);
    let taken =
        Request::Create { name: name(), origin: fixture.device("d4"), cache: None, export: None };
    assert!(fixture.error(taken).contains("already part of array r5"));
    let d4 = fixture.device("d4");
    fixture.steer(|books| {
        let array = books.arrays.get_mut(&r5()).unwrap();
        (array.members[0], array.incoming) = (Some(d4.clone()), Vec::new());
    });
    fixture.array();
    assert_eq!(fixture.paths()[0], Some(d4), "noticed at the next request");
}

#[test]
fn spares_wait_take_places_and_come_back_after_a_restart_unless_they_hold_something() {
    let mut fixture = Fixture::new();
    let mut array = fixture.new_array(&["d1", "d2", "d3"]);
    array.spares = vec![fixture.device("d4")];
    fixture.ask(created(array));
    fixture.ask(fixture.spare("d5", false));
    assert!(fixture.error(fixture.spare("d5", false)).contains("already part of array r5"));
    fixture.restart(true);
    let spares = fixture.registry().arrays()[0].spares.clone();
    assert_eq!(spares, [fixture.device("d4"), fixture.device("d5")]);
    fixture.service.stop();
    let mut bytes = fs::read(fixture.path("d4")).unwrap();
    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
    fs::write(fixture.path("d4"), &bytes).unwrap();
    fixture.restart(true);
    let array = fixture.array();
    assert_eq!(array.left_out.len(), 1);
    assert!(
        array.left_out[0].contains("d4 is left out: ") && array.left_out[0].contains("ext2/3/4")
    );
}

#[test]
fn a_replacement_that_fails_leaves_the_record_as_it_was() {
    let mut fixture = Fixture::with_r5();
    let before = fixture.registry().arrays().to_vec();
    for (failing, request) in
        [("replace", fixture.replace(1, "d4", false)), ("spare", fixture.spare("d4", false))]
    {
        fixture.steer(|books| books.failing = Some(failing));
        assert_eq!(fixture.error(request), format!("{failing} was to fail"));
        assert_eq!(fixture.registry().arrays(), before);
    }
}

#[test]
fn an_array_grows_and_has_its_new_level_and_member_after_a_restart() {
    let mut fixture = Fixture::with_r5();
    let grow = |fixture: &Fixture, by, devices: &[&str]| {
        let devices = devices.iter().map(|device| fixture.device(device)).collect();
        ask_of(ArrayRequest::Grow { name: r5(), by, devices, force: false })
    };
    let before = fixture.registry().arrays().to_vec();
    let cases = [
        (Growth::Member, vec!["d4"], "--capacity --member DEV` adds a member for capacity"),
        (Growth::Capacity, vec!["d4", "d5"], "capacity grows by one member at a time"),
        (Growth::Parity, vec!["d1"], "already"),
        (Growth::Parity, vec!["d4", "d4"], "given twice"),
        (Growth::Parity, vec!["gone"], "does not exist"),
    ];
    fixture.calls();
    for (by, devices, words) in cases {
        let error = fixture.error(grow(&fixture, by, &devices));
        assert!(error.contains(words), "{words}: {error}");
    }
    assert_eq!(fixture.calls(), [""; 0]);
    fixture.steer(|books| books.failing = Some("grow"));
    assert_eq!(fixture.error(grow(&fixture, Growth::Parity, &["d4"])), "grow was to fail");
    assert_eq!(fixture.registry().arrays(), before);
    fixture.steer(|books| books.failing = None);
    let (array, notes) = fixture.ask(grow(&fixture, Growth::Parity, &["d4"]));
    assert_eq!((array.level.as_str(), array.members.len(), notes.len()), ("6", 4, 1));
    assert!(fixture.registry().arrays()[0].incoming.is_empty());
    fixture.restart(false);
    let array = fixture.array();
    assert_eq!((array.level.as_str(), array.members.len()), ("6", 4));
    assert_eq!(fixture.paths()[3], Some(fixture.device("d4")));
    let taken =
        Request::Create { name: name(), origin: fixture.device("d4"), cache: None, export: None };
    assert!(fixture.error(taken).contains("already part of array r5"));
}

#[test]
fn room_is_not_added_below_or_before_a_cache_which_is_made_for_one_size() {
    for is_origin in [true, false] {
        let mut fixture = Fixture::with_r5();
        let (hdd, ssd) = (fixture.device("hdd"), fixture.device("ssd"));
        let (origin, device) = if is_origin { (on("r5"), ssd) } else { (hdd, on("r5")) };
        let cache = Some(NewCache { device, settings: Settings::default(), force: true });
        fixture.service.handle(Request::Create { name: name(), origin, cache, export: None });
        let devices = vec![fixture.device("d4")];
        let by = Growth::Capacity;
        let error =
            fixture.error(ask_of(ArrayRequest::Grow { name: r5(), by, devices, force: false }));
        assert!(error.contains("was made for the size of r5; `voltier detach"), "{error}");
    }
    let mut fixture = Fixture::with_r5();
    let devices = vec![fixture.device("d4")];
    let by = Growth::Capacity;
    let (array, notes) =
        fixture.ask(ask_of(ArrayRequest::Grow { name: r5(), by, devices, force: false }));
    assert_eq!((array.level.as_str(), array.members.len()), ("5", 4));
    assert!(notes[0].contains("its data are being moved to it; until they all are"), "{notes:?}");
}

#[test]
fn paces_are_kept_and_given_to_the_array_again_after_a_restart() {
    let mut fixture = Fixture::with_r5();
    let set = |value: &str| {
        let changes = vec![("rebuild_priority".to_owned(), value.to_owned())];
        ask_of(ArrayRequest::Set { name: r5(), changes })
    };
    assert!(fixture.error(set("fast")).contains("not a priority"));
    fixture.calls();
    fixture.ask(set("idle"));
    assert_eq!(fixture.calls(), ["pace r5 idle"]);
    fixture.restart(false);
    assert_eq!(fixture.calls(), ["assemble r5 of 3", "pace r5 idle"]);
    fixture.ask(ask_of(ArrayRequest::Rebuild { name: r5() }));
    fixture.ask(ask_of(ArrayRequest::Scrub { name: r5(), repair: Repair::Located }));
    assert_eq!(fixture.calls(), ["rebuild r5", "scrub r5 Located"]);
}

#[test]
fn an_array_that_a_failed_move_has_closed_is_opened_again() {
    let mut fixture = Fixture::with_volume_over_r5();
    fixture.service.handle(Request::Stop { name: name(), now: false });
    fixture.steer(|books| books.moves_fail = true);
    fixture.error(Request::Start { name: name() });
    let array = fixture.array();
    assert_eq!(array.state, ArrayState::Failed, "{array:?}");
    assert!(array.error.contains("`voltier array start r5`"), "{}", array.error);
    fixture.steer(|books| books.moves_fail = false);
    fixture.ask(ask_of(ArrayRequest::Start { name: r5() }));
    assert_ne!(fixture.array().state, ArrayState::Failed);
    fixture.service.handle(Request::Start { name: name() });
    assert_eq!(fixture.state().state, VolumeState::Running);
}
