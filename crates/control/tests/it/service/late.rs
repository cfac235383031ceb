//! Drives that come late: what waits for them, for how long, and what happens when they are there.

use std::fs;
use std::time::{Duration, Instant};

use voltier_array::MemberState;
use voltier_cache::Mode;
use voltier_control::protocol::{ArrayRequest, NewCache, Request, Response};
use voltier_control::{
    ArrayState, DeviceState, ExportSpec, Identity, PoolName, Settings, VolumeState, VolumeStatus,
};

use super::arrays::{ask_of, on, r5};
use super::fixture::{Fixture, export_of, name};

pub(super) const WAIT: Duration = Duration::from_secs(30);

impl Fixture {
    /// Puts a drive where no search beside its old place finds it.
    pub(super) fn take_away(&self, drive: &str) {
        fs::create_dir_all(self.path("away")).unwrap();
        fs::rename(self.path(drive), self.path("away").join(drive)).unwrap();
    }

    pub(super) fn bring_back(&self, drive: &str) {
        fs::rename(self.path("away").join(drive), self.path(drive)).unwrap();
    }

    fn start_waiting(&mut self) -> Instant {
        self.restart_and_wait(false, WAIT)
    }

    fn start_waiting_without(&mut self, drive: &str) -> Instant {
        self.take_away(drive);
        self.start_waiting()
    }

    /// Looks for devices so many seconds after a moment.
    pub(super) fn look(&mut self, begun: Instant, seconds: u64) -> Option<Duration> {
        self.service.look_for_devices(begun + Duration::from_secs(seconds))
    }

    fn start_r5(&mut self) -> Response {
        self.service.handle(ask_of(ArrayRequest::Start { name: r5() }))
    }
}

#[expect(clippy::disallowed_methods, reason = "the service is told later moments than this one")]
pub(super) fn now() -> Instant {
    Instant::now()
}

#[track_caller]
pub(super) fn waits_for(state: &VolumeStatus, part: &str, drive: &str) {
    assert_eq!(state.state, VolumeState::Waiting, "{}", state.error);
    assert!(state.waits_for.len() == 1 && state.waits_for[0].ends_with(drive), "{state:?}");
    assert!(state.error.contains(&format!("it waits for its {part} ")), "{}", state.error);
    assert!(state.error.contains("`voltier start v` tries it now"), "{}", state.error);
}

#[test]
fn a_clean_cache_is_not_given_up_while_its_ssd_may_come() {
    let mut fixture = Fixture::with_volume(Mode::WriteThrough);
    let begun = fixture.start_waiting_without("ssd");
    let state = fixture.state();
    waits_for(&state, "SSD", "/ssd");
    assert!((1..=30).contains(&state.waits_seconds.unwrap()), "{state:?}");
    assert_eq!(state.ssd.state, DeviceState::Missing);
    let socket = format!("unix:{}", fixture.path("s").display()).parse().unwrap();
    let export = export_of(ExportSpec::Nbd(socket));
    assert!(fixture.error(export).contains("v is not served: it waits for its SSD"));
    assert_eq!(fixture.look(begun, 1), Some(Duration::from_secs(1)));
    assert_eq!(fixture.calls(), [""; 0], "nothing is opened");
    assert_eq!(fixture.registry().volumes()[0].cache.as_ref().unwrap().failed, None);
    fixture.bring_back("ssd");
    assert_eq!(fixture.look(begun, 2), None, "nothing to look for any more");
    assert_eq!(fixture.calls(), ["open Load"]);
    let state = fixture.state();
    assert_eq!((state.state, state.waits_seconds), (VolumeState::Running, None));
    assert!(state.waits_for.is_empty());
}

#[test]
fn after_the_hold_off_a_clean_cache_is_given_up_as_ever() {
    let mut fixture = Fixture::with_volume(Mode::WriteThrough);
    let begun = fixture.start_waiting_without("ssd");
    assert_eq!(fixture.look(begun, 31), None);
    assert_eq!(fixture.state().state, VolumeState::Degraded);
    assert_eq!(fixture.calls(), ["plain v"]);
}

#[test]
fn a_volume_that_failed_for_want_of_a_drive_is_served_when_it_comes_exports_included() {
    for (drive, part) in [("ssd", "SSD"), ("hdd", "backing disk")] {
        let mut fixture = Fixture::with_volume(Mode::WriteBack);
        let socket = format!("unix:{}", fixture.path("s").display()).parse().unwrap();
        fixture.service.handle(export_of(ExportSpec::Nbd(socket)));
        let begun = fixture.start_waiting_without(drive);
        waits_for(&fixture.state(), part, drive);
        assert_eq!(fixture.look(begun, 31), Some(Duration::from_secs(5)));
        assert_eq!(fixture.state().state, VolumeState::Failed);
        assert!(fixture.state().error.contains("does not exist"), "{}", fixture.state().error);
        assert!(fixture.state().waits_for[0].ends_with(drive));
        assert_eq!(fixture.look(begun, 600), Some(Duration::from_secs(5)));
        assert_eq!(fixture.calls(), [""; 0]);
        fixture.bring_back(drive);
        assert_eq!(fixture.look(begun, 605), None);
        assert_eq!(fixture.state().state, VolumeState::Running, "{}", fixture.state().error);
        assert_eq!(fixture.calls(), ["open Load", "export nbd"]);
    }
}

#[test]
fn a_drive_that_comes_after_the_hold_off_begins_another_for_those_behind_it() {
    let mut fixture = Fixture::with_volume(Mode::WriteThrough);
    fixture.take_away("hdd");
    let begun = fixture.start_waiting_without("ssd");
    fixture.look(begun, 31);
    assert_eq!(fixture.state().state, VolumeState::Failed);
    fixture.bring_back("hdd");
    fixture.look(begun, 600);
    waits_for(&fixture.state(), "SSD", "/ssd");
    fixture.bring_back("ssd");
    fixture.look(begun, 601);
    assert_eq!(fixture.state().state, VolumeState::Running);
    assert_eq!(fixture.calls(), ["open Load"], "the clean cache is as it was");
}

#[test]
fn another_drive_under_the_path_is_waited_past_and_never_served() {
    let mut fixture = Fixture::with_volume(Mode::WriteBack);
    fixture.take_away("hdd");
    fs::copy(fixture.path("away").join("hdd"), fixture.path("hdd")).unwrap();
    let begun = fixture.start_waiting();
    waits_for(&fixture.state(), "backing disk", "/hdd");
    fixture.look(begun, 31);
    assert!(fixture.state().error.contains("another drive has the path"));
    // The right one comes under another name.
    fs::rename(fixture.path("away").join("hdd"), fixture.path("renamed")).unwrap();
    fixture.look(begun, 40);
    assert_eq!(fixture.state().hdd.path, fixture.path("renamed").display().to_string());
    assert_eq!(fixture.state().state, VolumeState::Running);
}

#[test]
fn an_array_and_its_volume_wait_for_a_member_and_no_spare_is_used() {
    let mut fixture = Fixture::with_volume_over_r5();
    let pool: PoolName = "p".parse().unwrap();
    let devices = vec![fixture.device("d4")];
    fixture.service.handle(ask_of(ArrayRequest::PoolAdd {
        pool: pool.clone(),
        devices,
        force: false,
    }));
    let changes = vec![("spare_pool".to_owned(), "p".to_owned())];
    fixture.ask(ask_of(ArrayRequest::Set { name: r5(), changes }));
    let before = fixture.registry().arrays().to_vec();
    let begun = fixture.start_waiting_without("d2");
    let array = fixture.array();
    assert_eq!(array.state, ArrayState::Waiting);
    assert!(array.waits_for[0].ends_with("d2"), "{array:?}");
    assert!((31..=90).contains(&array.waits_seconds.unwrap()), "no redundancy would be left");
    waits_for(&fixture.state(), "backing disk", "array:r5");
    let error =
        fixture.error(ask_of(ArrayRequest::Scrub { name: r5(), repair: Default::default() }));
    assert!(error.contains("r5 is not assembled: it waits for its member"), "{error}");
    fixture.look(begun, 31);
    assert_eq!(fixture.array().state, ArrayState::Waiting);
    assert_eq!(fixture.calls(), [""; 0]);
    fixture.bring_back("d2");
    assert_eq!(fixture.look(begun, 32), None);
    assert_eq!(fixture.calls(), ["assemble r5 of 3", "pace r5 normal", "plain v"]);
    assert_eq!(fixture.array().state, ArrayState::Running);
    assert_eq!(fixture.state().state, VolumeState::Running);
    assert_eq!(fixture.registry().arrays(), before, "nothing is recorded as lost");
    assert_eq!(fixture.registry().find_pool(&pool).unwrap().spares.len(), 1);
}

#[test]
fn a_member_that_comes_after_the_hold_off_returns_to_its_array() {
    let mut fixture = Fixture::with_volume_over_r5();
    let begun = fixture.start_waiting_without("d2");
    assert_eq!(fixture.look(begun, 91), Some(Duration::from_secs(5)));
    assert_eq!(fixture.calls(), ["assemble r5 of 2", "pace r5 normal", "plain v"]);
    assert_eq!(fixture.array().state, ArrayState::Degraded);
    assert!(fixture.array().left_out[0].contains("d2 does not exist"));
    // Another drive under its path is none of the array's.
    fs::write(fixture.path("d2"), vec![0; 1 << 20]).unwrap();
    let label = fixture.take_label("d2");
    fixture.look(begun, 95);
    fixture.look(begun, 100);
    assert_eq!(fixture.calls(), [""; 0]);
    fs::remove_file(fixture.path("d2")).unwrap();
    fixture.look(begun, 105);
    fixture.bring_back("d2");
    fixture.put_label("d2", label);
    assert_eq!(fixture.look(begun, 110), None);
    assert_eq!(fixture.calls(), ["take back r5 1"]);
    let array = fixture.array();
    assert_eq!(array.state, ArrayState::Running);
    assert!(array.left_out.is_empty() && array.waits_for.is_empty(), "{array:?}");
}

impl Fixture {
    /// An array that can lose two of its four members starts without d2 and d3, which have changed places
    /// when they come.
    fn start_without_two(&mut self) -> Instant {
        self.ask(self.make(&["d1", "d2", "d3", "d4"]));
        self.steer(|books| books.labels.values_mut().for_each(|label| label.redundancy = 2));
        let (second, third) = (self.take_label("d2"), self.take_label("d3"));
        self.put_label("d2", third);
        self.put_label("d3", second);
        self.take_away("d2");
        self.take_away("d3");
        self.start_waiting()
    }

    /// Each of the paths of members is on record once, in this order.
    #[track_caller]
    fn has_members(&self, paths: [&str; 4]) {
        let members = paths.map(|path| Some(self.device(path)));
        assert_eq!(self.registry().arrays()[0].members, members);
    }
}

#[test]
fn a_member_that_returns_under_the_path_of_another_leaves_that_one_the_path_that_is_free() {
    let mut fixture = Fixture::new();
    let begun = fixture.start_without_two();
    fixture.look(begun, 91);
    assert_eq!(fixture.calls(), ["assemble r5 of 2", "pace r5 normal"]);
    fixture.bring_back("d2");
    assert_eq!(fixture.look(begun, 95), Some(Duration::from_secs(5)));
    assert_eq!(fixture.calls(), ["take back r5 2"]);
    fixture.has_members(["d1", "d3", "d2", "d4"]);
    fixture.bring_back("d3");
    assert_eq!(fixture.look(begun, 100), None);
    assert_eq!(fixture.calls(), ["take back r5 1"]);
    fixture.has_members(["d1", "d3", "d2", "d4"]);
    assert_eq!(fixture.array().state, ArrayState::Running);
    fixture.restart(false);
    assert_eq!(fixture.calls(), ["assemble r5 of 4", "pace r5 normal"]);
}

#[test]
fn a_member_that_a_start_finds_under_the_path_of_another_leaves_that_one_the_path_that_is_free() {
    let mut fixture = Fixture::new();
    let begun = fixture.start_without_two();
    fixture.bring_back("d2");
    fixture.look(begun, 91);
    assert_eq!(fixture.calls(), ["assemble r5 of 3", "pace r5 normal"]);
    fixture.has_members(["d1", "d3", "d2", "d4"]);
    fixture.bring_back("d3");
    assert_eq!(fixture.look(begun, 95), None);
    assert_eq!(fixture.calls(), ["take back r5 1"]);
    fixture.has_members(["d1", "d3", "d2", "d4"]);
}

#[test]
fn a_member_that_was_used_elsewhere_is_not_taken_back_and_the_command_is_named() {
    let mut fixture = Fixture::with_volume_over_r5();
    let begun = fixture.start_waiting_without("d2");
    fixture.look(begun, 91);
    fixture.steer(|books| books.used_elsewhere = true);
    fixture.bring_back("d2");
    assert_eq!(fixture.look(begun, 95), None);
    let array = fixture.array();
    assert_eq!(array.state, ArrayState::Degraded);
    let d2 = fixture.path("d2").display().to_string();
    let command = format!("`voltier array replace r5 1 {d2}` fills it from the others");
    assert!(array.left_out.iter().any(|line| line.contains(&command)), "{array:?}");
}

#[test]
fn an_array_that_keeps_redundancy_waits_less_and_one_waits_for_no_member_it_gave_up() {
    let mut fixture = Fixture::with_volume_over_r5();
    fixture.steer(|books| books.labels.values_mut().for_each(|label| label.redundancy = 2));
    let begun = fixture.start_waiting_without("d2");
    assert!((1..=30).contains(&fixture.array().waits_seconds.unwrap()));
    fixture.look(begun, 31);
    assert_eq!(fixture.array().state, ArrayState::Degraded);
    let give_up = |label: &mut voltier_control::engine::MemberLabel| {
        label.places[1].state = MemberState::Lost;
        label.event += 1;
    };
    fixture.steer(|books| books.labels.values_mut().for_each(give_up));
    fixture.restart_and_wait(true, WAIT);
    assert_eq!(fixture.array().state, ArrayState::Degraded, "at once");
    // The member returns by a command only: why it was given up is not known.
    fixture.calls();
    fixture.bring_back("d2");
    assert_eq!(fixture.look(begun, 100), None);
    assert_eq!(fixture.calls(), [""; 0]);
}

#[test]
fn an_array_with_too_few_members_is_assembled_when_they_come_with_its_volume() {
    let mut fixture = Fixture::with_volume_over_r5();
    fixture.take_away("d1");
    let begun = fixture.start_waiting_without("d2");
    fixture.look(begun, 91);
    assert_eq!(fixture.array().state, ArrayState::Failed);
    assert_eq!(fixture.state().state, VolumeState::Failed);
    fixture.calls();
    fixture.bring_back("d1");
    fixture.look(begun, 600);
    assert_eq!(fixture.array().state, ArrayState::Waiting, "the other one may be behind it");
    fixture.bring_back("d2");
    assert_eq!(fixture.look(begun, 601), None);
    assert_eq!(fixture.calls(), ["assemble r5 of 3", "pace r5 normal", "plain v"]);
    assert_eq!(fixture.state().state, VolumeState::Running);
}

#[test]
fn a_user_need_not_wait() {
    let mut fixture = Fixture::with_volume_over_r5();
    fixture.take_away("d2");
    fixture.start_waiting();
    let start = Request::Start { name: name() };
    assert!(matches!(fixture.service.handle(start.clone()), Response::Volume { .. }));
    assert_eq!(fixture.state().state, VolumeState::Running);
    assert_eq!(fixture.array().state, ArrayState::Degraded);
    assert!(matches!(fixture.service.handle(start.clone()), Response::Volume { .. }));
    fixture.service.stop();
    fixture.take_away("d1");
    fixture.start_waiting();
    assert!(fixture.error(start.clone()).contains("2 members are missing"));
    fixture.bring_back("d1");
    assert!(matches!(fixture.start_r5(), Response::Array { .. }));
    assert_eq!(fixture.state().state, VolumeState::Running, "it waited for the array");
    let other = Request::Start { name: "w".parse().unwrap() };
    assert!(fixture.error(other).contains("no volume `w`"));
}

#[test]
fn a_cache_on_an_array_that_waits_is_not_given_up_either() {
    let mut fixture = Fixture::with_r5();
    let settings = Settings { mode: Mode::WriteThrough, ..Settings::default() };
    let cache = Some(NewCache { device: on("r5"), settings, force: false });
    let origin = fixture.device("hdd");
    fixture.service.handle(Request::Create { name: name(), origin, cache, export: None });
    let begun = fixture.start_waiting_without("d2");
    fixture.look(begun, 60);
    waits_for(&fixture.state(), "SSD", "array:r5");
    fixture.look(begun, 91);
    assert_eq!(fixture.state().state, VolumeState::Running);
    assert_eq!(fixture.state().ssd.state, DeviceState::Degraded);
}

/// Makes a drive one that cannot be used, and one that can again.
struct Trouble {
    shown: &'static str,
    holder: Option<fs::File>,
}

impl Trouble {
    const ALL: [Self; 2] =
        [Self { shown: "(busy)", holder: None }, Self { shown: "(does not answer)", holder: None }];

    fn begin(&mut self, fixture: &Fixture, drive: &str) {
        match self.shown {
            "(busy)" => self.holder = Some(fixture.keep_busy(drive)),
            _ => fixture.steer(|books| books.silent = vec![fixture.path(drive)]),
        }
    }

    fn end(&mut self, fixture: &Fixture) {
        self.holder = None;
        fixture.steer(|books| books.silent.clear());
    }
}

#[test]
fn an_ssd_that_is_busy_or_does_not_answer_is_awaited_until_the_hold_off_is_over() {
    for mut trouble in Trouble::ALL {
        let mut fixture = Fixture::with_volume(Mode::WriteThrough);
        trouble.begin(&fixture, "ssd");
        let begun = fixture.start_waiting();
        waits_for(&fixture.state(), "SSD", "/ssd");
        let error = fixture.state().error;
        assert!(error.contains(&format!("/ssd {}; ", trouble.shown)), "{error}");
        assert_eq!(fixture.look(begun, 1), Some(Duration::from_secs(1)));
        assert_eq!(fixture.calls(), [""; 0], "nothing is opened");
        trouble.end(&fixture);
        assert_eq!(fixture.look(begun, 2), None);
        assert_eq!(fixture.calls(), ["open Load"]);
        fixture.service.stop();
        trouble.begin(&fixture, "ssd");
        let begun = fixture.start_waiting();
        fixture.look(begun, 29);
        waits_for(&fixture.state(), "SSD", "/ssd");
        assert_eq!(fixture.look(begun, 31), None);
        assert_eq!(fixture.state().state, VolumeState::Degraded, "there is a limit");
        assert_eq!(fixture.calls(), ["plain v"]);
    }
}

#[test]
fn an_origin_that_answers_after_the_hold_off_is_served_then() {
    for mut trouble in Trouble::ALL {
        let mut fixture = Fixture::with_volume(Mode::WriteBack);
        trouble.begin(&fixture, "hdd");
        let begun = fixture.start_waiting();
        waits_for(&fixture.state(), "backing disk", "/hdd");
        assert_eq!(fixture.look(begun, 31), Some(Duration::from_secs(5)));
        assert_eq!(fixture.state().state, VolumeState::Failed);
        fixture.look(begun, 600);
        assert_eq!(fixture.calls(), [""; 0]);
        trouble.end(&fixture);
        assert_eq!(fixture.look(begun, 605), None);
        assert_eq!(fixture.calls(), ["open Load"]);
        assert_eq!(fixture.state().state, VolumeState::Running);
    }
}

#[test]
fn a_member_that_is_busy_or_does_not_answer_is_awaited_and_returns_like_a_missing_one() {
    for mut trouble in Trouble::ALL {
        let mut fixture = Fixture::with_volume_over_r5();
        trouble.begin(&fixture, "d2");
        let begun = fixture.start_waiting();
        assert_eq!(fixture.array().state, ArrayState::Waiting);
        let error = fixture.array().error;
        assert!(error.contains(&format!("/d2 {}; ", trouble.shown)), "{error}");
        trouble.end(&fixture);
        assert_eq!(fixture.look(begun, 1), None, "not only when the hold-off is over");
        assert_eq!(fixture.calls(), ["assemble r5 of 3", "pace r5 normal", "plain v"]);
        fixture.service.stop();
        trouble.begin(&fixture, "d2");
        let begun = fixture.start_waiting();
        assert_eq!(fixture.look(begun, 91), Some(Duration::from_secs(5)));
        assert_eq!(fixture.array().state, ArrayState::Degraded);
        fixture.calls();
        fixture.look(begun, 95);
        assert_eq!(fixture.calls(), [""; 0]);
        trouble.end(&fixture);
        assert_eq!(fixture.look(begun, 100), None);
        assert_eq!(fixture.calls(), ["take back r5 1"]);
        assert_eq!(fixture.array().state, ArrayState::Running);
        assert_eq!(fixture.array().left_out, [""; 0]);
    }
}

#[test]
fn an_array_waits_for_no_spare_and_takes_it_back_when_it_comes() {
    for mut trouble in Trouble::ALL {
        let mut fixture = Fixture::with_volume_over_r5();
        let add = |fixture: &Fixture, spare| {
            let spare = fixture.device(spare);
            ask_of(ArrayRequest::AddSpare { name: r5(), spare, force: false })
        };
        for spare in ["d4", "d5"] {
            fixture.ask(add(&fixture, spare));
        }
        let before = fixture.registry().arrays().to_vec();
        fixture.take_away("d4");
        trouble.begin(&fixture, "d5");
        let begun = fixture.start_waiting();
        assert_eq!(fixture.calls(), ["assemble r5 of 3", "pace r5 normal", "plain v"]);
        let array = fixture.array();
        assert!(array.waits_for.len() == 2 && array.left_out.len() == 2, "{array:?}");
        assert_eq!(fixture.look(begun, 5), Some(Duration::from_secs(5)));
        assert_eq!(fixture.registry().arrays(), before, "the spares stay on record");
        trouble.end(&fixture);
        fixture.look(begun, 10);
        assert_eq!(fixture.calls(), ["spare r5", "spare is taken by r5"]);
        fixture.bring_back("d4");
        assert_eq!(fixture.look(begun, 15), None);
        let array = fixture.array();
        assert!(array.waits_for.is_empty() && array.left_out.is_empty(), "{array:?}");
        let mut spares = fixture.registry().arrays()[0].spares.clone();
        spares.sort_by_key(ToString::to_string);
        assert_eq!(spares, before[0].spares);
        // Another drive under the path of a spare is none, and the spare is free for a command.
        fixture.take_away("d4");
        fixture.start_waiting();
        fs::write(fixture.path("d4"), vec![7; 1 << 20]).unwrap();
        assert_eq!(fixture.look(begun, 100), None);
        assert_eq!(fixture.registry().arrays()[0].spares, [fixture.device("d5")]);
        fs::remove_file(fixture.path("d4")).unwrap();
        fixture.bring_back("d4");
        // The label names the array: no `-f` is needed.
        fixture.ask(add(&fixture, "d4"));
        assert_eq!(fixture.registry().arrays()[0].spares.len(), 2);
    }
}

#[test]
fn an_array_waits_for_a_spare_that_may_be_the_member_which_none_of_the_others_is() {
    let mut fixture = Fixture::with_volume_over_r5();
    let spare = fixture.device("d4");
    fixture.ask(ask_of(ArrayRequest::AddSpare { name: r5(), spare, force: false }));
    // The daemon died while d4 took the place of d3, which is there and is old.
    let mut label = fixture.take_label("d3");
    fixture.put_label("d3", label.clone());
    fixture.steer(|books| {
        let newer = books.labels.values_mut().filter(|it| it.place < 2);
        newer.for_each(|label| label.event += 1);
    });
    (label.event, label.member) = (label.event + 1, Identity([4; 16]));
    fixture.put_label("d4", label);
    let begun = fixture.start_waiting_without("d4");
    assert_eq!(fixture.array().state, ArrayState::Waiting);
    assert!(fixture.array().error.contains("it waits for its spare"), "{:?}", fixture.array());
    fixture.bring_back("d4");
    fixture.look(begun, 1);
    assert_eq!(fixture.array().state, ArrayState::Running);
}

#[test]
fn an_origin_is_taken_while_the_volume_goes_on_waiting_for_its_ssd() {
    let mut fixture = Fixture::with_volume(Mode::WriteBack);
    fixture.take_away("hdd");
    let begun = fixture.start_waiting_without("ssd");
    fixture.look(begun, 10);
    let changes = vec![("hdd".to_owned(), fixture.path("ssd2").display().to_string())];
    let set = Request::Set { name: name(), changes };
    assert!(matches!(fixture.service.handle(set), Response::Volume { .. }));
    waits_for(&fixture.state(), "SSD", "/ssd");
    assert_eq!(fixture.registry().volumes()[0].origin, fixture.device("ssd2"));
    fixture.bring_back("ssd");
    assert_eq!(fixture.look(begun, 11), None);
    assert_eq!(fixture.state().state, VolumeState::Running);
    assert_eq!(fixture.calls(), ["open Adopt"], "the consent holds until then");
}
