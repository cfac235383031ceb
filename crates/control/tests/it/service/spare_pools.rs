//! Pools of spares in the service: who gets a spare, in which order it is recorded, and what a crash at any
//! step leaves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::arrays::created;
use super::fixture::Fixture;
use voltier_array::MemberState;
use voltier_control::engine::{MemberLabel, SpareOwner};
use voltier_control::protocol::{ArrayRequest, MemberName, NewArray, Request, Response};
use voltier_control::{ArrayName, PoolStatus, RegisteredArray, Registry};

fn ask(ask: ArrayRequest) -> Request {
    Request::Array { ask }
}

fn named(name: &str) -> ArrayName {
    name.parse().unwrap()
}

impl Fixture {
    fn make_array(&mut self, name: &str, members: [&str; 3]) {
        let array = NewArray { name: named(name), ..self.new_array(&members) };
        let made = self.service.handle(created(array));
        assert!(matches!(made, Response::Array { .. }), "{made:?}");
    }

    fn pool_add(&self, devices: &[&str], force: bool) -> Request {
        let devices = devices.iter().map(|device| self.device(device)).collect();
        ask(ArrayRequest::PoolAdd { pool: "p".parse().unwrap(), devices, force })
    }

    fn pool_remove(&self, devices: &[&str]) -> Request {
        let devices = devices.iter().map(|device| self.device(device)).collect();
        ask(ArrayRequest::PoolRemove { pool: "p".parse().unwrap(), devices })
    }

    fn use_pool(&mut self, name: &str, pool: &str) -> Response {
        let changes = vec![("spare_pool".to_owned(), pool.to_owned())];
        self.service.handle(ask(ArrayRequest::Set { name: named(name), changes }))
    }

    fn pools(&mut self, request: Request) -> (Vec<PoolStatus>, Vec<String>) {
        match self.service.handle(request) {
            Response::Pools { pools, notes } => (pools, notes),
            other => panic!("{other:?}"),
        }
    }

    fn waiting(&mut self) -> Vec<String> {
        let pool = Some("p".parse().unwrap());
        self.pools(ask(ArrayRequest::PoolShow { pool })).0.remove(0).spares
    }

    fn lose(&self, name: &str, member: &str) -> Request {
        let member = MemberName::Device(self.device(member));
        ask(ArrayRequest::Fail { name: named(name), member })
    }

    fn record_of(&self, name: &str) -> RegisteredArray {
        self.registry().find_array(&named(name)).unwrap().clone()
    }

    /// Two arrays of a pool with these spares.
    fn with_pool(spares: &[&str]) -> Self {
        let mut fixture = Self::new();
        fixture.make_array("a", ["d1", "d2", "d3"]);
        fixture.make_array("b", ["d4", "d5", "d6"]);
        fixture.pools(fixture.pool_add(spares, false));
        for name in ["a", "b"] {
            assert!(matches!(fixture.use_pool(name, "p"), Response::Array { .. }));
        }
        fixture.calls();
        fixture
    }
}

#[test]
fn the_array_that_loses_a_member_first_takes_the_spare_and_the_next_one_finds_none() {
    let mut fixture = Fixture::with_pool(&["d7"]);
    fixture.service.handle(fixture.lose("b", "d5"));
    fixture.service.notice_array_events();
    assert_eq!(fixture.record_of("b").members[1], Some(fixture.device("d7")));
    assert_eq!(fixture.waiting(), [""; 0]);
    let lose = fixture.lose("a", "d1");
    fixture.service.handle(lose);
    fixture.service.notice_array_events();
    assert_eq!(fixture.record_of("a").members[0], Some(fixture.device("d1")), "still lost");
    // A spare that comes later is taken at once.
    fixture.pools(fixture.pool_add(&["d8"], false));
    assert_eq!(fixture.record_of("a").members[0], Some(fixture.device("d8")));
    assert_eq!(fixture.waiting(), [""; 0]);
}

#[test]
fn a_spare_that_does_not_fit_or_holds_something_by_now_stays_and_the_next_one_is_taken() {
    let mut fixture = Fixture::with_pool(&["d7", "d8", "ssd"]);
    let small = fixture.path("d7");
    fixture.steer(|books| books.small.push(small));
    let mut bytes = std::fs::read(fixture.path("d8")).unwrap();
    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
    std::fs::write(fixture.path("d8"), &bytes).unwrap();
    fixture.service.handle(fixture.lose("a", "d2"));
    fixture.service.notice_array_events();
    assert_eq!(fixture.record_of("a").members[1], Some(fixture.device("ssd")));
    let left = [fixture.device("d7"), fixture.device("d8")].map(|device| device.to_string());
    assert_eq!(fixture.waiting(), left);
    let (_, notes) = fixture.pools(fixture.pool_add(&["ssd2"], false));
    assert!(notes.is_empty(), "{notes:?}");
    let small = fixture.path("hdd");
    fixture.steer(|books| books.small.push(small));
    let (_, notes) = fixture.pools(fixture.pool_add(&["hdd"], false));
    assert!(notes.len() == 2 && notes[0].contains("hdd is too small for a"), "{notes:?}");
}

#[test]
fn a_spare_that_an_array_refuses_is_back_in_its_pool() {
    let mut fixture = Fixture::with_pool(&["d7"]);
    fixture.steer(|books| books.failing = Some("spare"));
    fixture.service.handle(fixture.lose("a", "d2"));
    fixture.service.notice_array_events();
    assert_eq!(fixture.waiting().len(), 1);
    assert!(fixture.record_of("a").spares.is_empty());
    fixture.steer(|books| books.failing = None);
    // Not tried again and again; but when something changes.
    fixture.calls();
    fixture.service.notice_array_events();
    assert!(!fixture.calls().iter().any(|call| call.starts_with("spare")));
    fixture.use_pool("a", "p");
    assert_eq!(fixture.record_of("a").members[1], Some(fixture.device("d7")));
}

#[test]
fn what_cannot_be_is_refused_in_one_line_and_changes_nothing() {
    let mut fixture = Fixture::with_pool(&["d7"]);
    std::os::unix::fs::symlink(fixture.path("d8"), fixture.path("link")).unwrap();
    let before = fixture.registry().pools().to_vec();
    let cases: [(Request, &str); 8] = [
        (fixture.pool_add(&["d8", "link"], false), "given twice"),
        (fixture.pool_add(&["d8", "d7"], false), "already part of spare pool p"),
        (fixture.pool_add(&["d8", "d1"], true), "already part of array a"),
        (fixture.pool_add(&["gone"], false), "does not exist"),
        (fixture.pool_remove(&["d8"]), "d8 is not a spare of p, which has"),
        (fixture.pool_remove(&[]), "the array a takes its spares from p"),
        (
            ask(ArrayRequest::PoolShow { pool: Some("q".parse().unwrap()) }),
            "no spare pool `q`; known: p",
        ),
        (
            ask(ArrayRequest::AddSpare {
                name: named("a"),
                spare: fixture.device("d7"),
                force: false,
            }),
            "already part of spare pool p",
        ),
    ];
    for (request, words) in cases {
        let error = fixture.error(request);
        assert!(error.contains(words) && !error.contains('\n'), "{words}: {error}");
    }
    let unknown = fixture.use_pool("a", "q");
    assert!(
        matches!(&unknown, Response::Error { error } if error.message.contains("no spare pool"))
    );
    let array = ArrayRequest::PoolAdd {
        pool: "p".parse().unwrap(),
        devices: vec!["array:b".parse().unwrap()],
        force: true,
    };
    assert!(fixture.error(ask(array)).contains("arrays cannot be nested"));
    assert_eq!(fixture.registry().pools(), before);
    fixture.pools(fixture.pool_remove(&["d7"]));
    for name in ["a", "b"] {
        fixture.use_pool(name, "none");
    }
    fixture.pools(fixture.pool_remove(&[]));
    assert!(fixture.registry().pools().is_empty());
}

/// An array that has lost a member, and a pool that gets a spare. The daemon dies at a call of the
/// engine, or does not. Returns whether the daemon did.
fn dies_in(calls: usize) -> bool {
    let mut fixture = Fixture::with_pool(&[]);
    let lose = fixture.lose("b", "d5");
    fixture.service.handle(lose);
    fixture.steer(|books| books.dies_in = Some(calls));
    let add = fixture.pool_add(&["d7"], false);
    let died = catch_unwind(AssertUnwindSafe(|| fixture.service.handle(add))).is_err();
    fixture.steer(|books| books.dies_in = None);
    let d7 = fixture.device("d7");
    let registry = Registry::load(fixture.state_dir()).unwrap();
    let in_pools = registry.pools().iter().flat_map(|pool| &pool.spares);
    let in_pools = in_pools.filter(|spare| spare.device == d7).count();
    let is_in = |array: &&RegisteredArray| array.devices().any(|device| *device == d7);
    let in_arrays = registry.arrays().iter().filter(is_in).count();
    // Without a label it is nobody's; with the array's, it is that whatever the registry says.
    let owned = [(0, 0), (1, 0), (0, 1), (0, 1)][calls.min(3)];
    assert_eq!((in_pools, in_arrays), owned, "dies in {calls}");
    // The next daemon: it is the member by its label, or waits as a spare of the pool or the array.
    fixture.restart(false);
    fixture.service.notice_array_events();
    let array = fixture.record_of("b");
    let is_member = array.members[1] == Some(d7.clone()) && array.spares.is_empty();
    let is_spare = array.members[1] == Some(fixture.device("d5")) && array.spares == [d7];
    let is_free = array.spares.is_empty() && !is_member;
    assert!([is_free, is_free, is_spare, is_member][calls.min(3)], "dies in {calls}: {array:?}");
    assert_eq!(fixture.waiting().len(), usize::from(calls == 1));
    died
}

#[test]
fn a_daemon_that_dies_at_any_step_leaves_the_spare_with_the_array_that_took_it() {
    let deaths = (0..).take_while(|calls| dies_in(*calls)).count();
    assert_eq!(deaths, 4, "the pool's label, the array's, given to the array, taken by the array");
}

/// The array `b`, which has lost d5 for good, and whose record knows d7 as the member that the spare was about to
/// become. The daemon dies before a label says so.
fn dies_before_the_label() -> Fixture {
    let mut fixture = Fixture::with_pool(&[]);
    fixture.service.handle(fixture.lose("b", "d5"));
    fixture.pools(fixture.pool_add(&["d8"], false));
    let mut record = fixture.record_of("b");
    assert_eq!(record.members[1], Some(fixture.device("d8")));
    // As the labels were: d5 has the place, and is lost.
    let mut own = fixture.take_label("d8");
    own.places[1].state = MemberState::Lost;
    let (places, name) = (own.places.clone(), own.name.clone());
    for drive in ["d4", "d6"] {
        let label = fixture.take_label(drive);
        fixture.put_label(drive, MemberLabel { places: places.clone(), ..label });
    }
    fixture.put_label("d5", own);
    fixture.put_spare_label("d8", SpareOwner { owner: record.uuid, name });
    record.events = 2;
    fixture.registry().put_array(record).unwrap();
    fixture
}

#[test]
fn a_spare_on_record_as_a_member_whose_label_was_not_written_makes_the_loss_good_at_the_next_start()
{
    for is_old_there in [true, false] {
        let mut fixture = dies_before_the_label();
        if !is_old_there {
            fixture.take_away("d5");
        }
        fixture.restart(false);
        fixture.service.notice_array_events();
        assert!(fixture.calls().contains(&"spare b".to_owned()), "given to the array");
        let record = fixture.record_of("b");
        if is_old_there {
            // The books take the old member for whole, so the spare waits.
            assert_eq!(record.members[1], Some(fixture.device("d5")));
            assert_eq!(record.spares, [fixture.device("d8")]);
        } else {
            assert_eq!(record.members[1], Some(fixture.device("d8")));
            assert!(record.spares.is_empty(), "{record:?}");
        }
    }
}

#[test]
fn such_a_spare_that_comes_late_is_awaited() {
    let mut fixture = dies_before_the_label();
    fixture.take_away("d8");
    fixture.restart(false);
    fixture.service.notice_array_events();
    fixture.bring_back("d8");
    fixture.calls();
    fixture.service.look_for_devices(super::late::now());
    assert!(fixture.calls().contains(&"spare b".to_owned()));
}

#[test]
fn with_a_registry_from_before_a_spare_that_has_a_label_is_a_member_and_not_in_the_pool() {
    let mut fixture = Fixture::with_pool(&["d7", "d8"]);
    let before = std::fs::read(fixture.state_dir().join(voltier_control::REGISTRY_FILE)).unwrap();
    let lose = fixture.lose("a", "d2");
    fixture.service.handle(lose);
    fixture.service.notice_array_events();
    assert_eq!(fixture.record_of("a").members[1], Some(fixture.device("d7")));
    fixture.service.stop();
    std::fs::write(fixture.state_dir().join(voltier_control::REGISTRY_FILE), before).unwrap();
    fixture.restart(false);
    assert_eq!(fixture.waiting(), [fixture.device("d8").to_string()]);
    assert_eq!(fixture.record_of("a").members[1], Some(fixture.device("d7")));
}

/// Makes an ext4 file system of a device, as far as anybody looks.
fn format_ext4(fixture: &Fixture, device: &str) {
    let mut bytes = std::fs::read(fixture.path(device)).unwrap();
    bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
    std::fs::write(fixture.path(device), &bytes).unwrap();
}

/// Another drive takes the name of this one, which is elsewhere.
fn put_another(fixture: &Fixture, device: &str) {
    let elsewhere = fixture.path("elsewhere");
    std::fs::create_dir_all(&elsewhere).unwrap();
    std::fs::rename(fixture.path(device), elsewhere.join(device)).unwrap();
    std::fs::write(fixture.path(device), vec![9; 4 << 20]).unwrap();
}

#[test]
fn consent_is_for_what_a_spare_held_when_it_was_added_and_for_no_other_drive() {
    let mut fixture = Fixture::with_pool(&[]);
    format_ext4(&fixture, "d7");
    assert!(fixture.error(fixture.pool_add(&["d7"], false)).contains("use -f to overwrite"));
    fixture.pools(fixture.pool_add(&["d7"], true));
    let marks = std::fs::read(fixture.path("d7")).unwrap();
    assert_eq!(marks[1080..1082], [0, 0], "the consent is used at once");
    // Another file system on the same drive came after the consent.
    format_ext4(&fixture, "d7");
    fixture.service.handle(fixture.lose("a", "d2"));
    fixture.service.notice_array_events();
    assert_eq!(fixture.waiting(), [fixture.device("d7").to_string()]);
    // So did another drive under the path, whatever it holds.
    fixture.pools(fixture.pool_remove(&["d7"]));
    fixture.pools(fixture.pool_add(&["d8"], true));
    assert_eq!(fixture.record_of("a").members[1], Some(fixture.device("d8")), "it serves");
    fixture.pools(fixture.pool_add(&["ssd"], true));
    put_another(&fixture, "ssd");
    fixture.restart(false);
    fixture.service.handle(fixture.lose("b", "d4"));
    fixture.service.notice_array_events();
    assert_eq!(fixture.record_of("b").members[0], Some(fixture.device("d4")), "still lost");
    assert!(std::fs::read(fixture.path("ssd")).unwrap() == vec![9; 4 << 20]);
}

#[test]
fn a_spare_is_found_under_another_name_and_is_a_plain_drive_when_it_leaves_the_pool() {
    let mut fixture = Fixture::with_pool(&["d7"]);
    std::fs::rename(fixture.path("d7"), fixture.path("moved")).unwrap();
    fixture.restart(false);
    assert_eq!(fixture.waiting(), [fixture.device("moved").to_string()]);
    fixture.calls();
    fixture.pools(fixture.pool_remove(&["moved"]));
    assert_eq!(fixture.calls(), ["erase label"]);
}

impl Fixture {
    /// An array `a` with d7 as a spare of its own.
    fn with_own_spare() -> Self {
        let fixture = Self::with_pool(&[]);
        let spare = fixture.device("d7");
        let add = ArrayRequest::AddSpare { name: named("a"), spare, force: false };
        assert!(matches!(fixture.service.handle(ask(add)), Response::Array { .. }));
        fixture.calls();
        fixture
    }

    fn remove_spare(&self, name: &str, spare: &str) -> Request {
        ask(ArrayRequest::RemoveSpare { name: named(name), spare: self.device(spare) })
    }

    fn notes_of(&mut self, request: Request) -> Vec<String> {
        match self.service.handle(request) {
            Response::Array { notes, .. } => notes,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_arrays_own_spare_is_taken_back_and_is_a_plain_drive_then() {
    let mut fixture = Fixture::with_own_spare();
    let none = [""; 0];
    assert_eq!(fixture.notes_of(fixture.remove_spare("a", "d7")), none);
    assert_eq!(fixture.calls(), ["take spare a", "erase label"]);
    assert!(fixture.record_of("a").spares.is_empty());
    fixture.restart(false);
    fixture.service.notice_array_events();
    assert!(fixture.record_of("a").spares.is_empty());
    // It serves elsewhere, without force.
    fixture.pools(fixture.pool_add(&["d7"], false));
    assert_eq!(fixture.waiting().len(), 1);
}

#[test]
fn a_spare_of_an_array_at_rest_and_one_that_is_away_are_taken_back_too() {
    let mut fixture = Fixture::with_own_spare();
    fixture.service.handle(ask(ArrayRequest::Stop { name: named("a") }));
    fixture.calls();
    assert_eq!(fixture.notes_of(fixture.remove_spare("a", "d7")), [""; 0]);
    assert_eq!(fixture.calls(), ["erase label"]);
    assert!(fixture.record_of("a").spares.is_empty());

    let mut fixture = Fixture::with_own_spare();
    std::fs::rename(fixture.path("d7"), fixture.state_dir().join("away")).unwrap();
    std::fs::create_dir(fixture.state_dir().join("folder")).unwrap();
    let away = fixture.state_dir().join("folder/away");
    std::fs::rename(fixture.state_dir().join("away"), away).unwrap();
    fixture.restart(false);
    let notes = fixture.notes_of(fixture.remove_spare("a", "d7"));
    assert!(notes.len() == 1 && notes[0].contains("keeps its label as a spare of a"), "{notes:?}");
    assert!(fixture.record_of("a").spares.is_empty());
    let shown =
        fixture.service.handle(ask(ArrayRequest::Show { name: Some(named("a")), over_s: None }));
    let Response::Array { array, .. } = shown else { panic!("{shown:?}") };
    assert!(array.spares.is_empty() && array.left_out.is_empty(), "{array:?}");
}

#[test]
fn what_is_no_spare_of_an_array_is_refused_by_what_it_is() {
    let mut fixture = Fixture::with_own_spare();
    fixture.pools(fixture.pool_add(&["d8"], false));
    let spare = fixture.device("d7");
    let cases = [
        (
            fixture.remove_spare("a", "d2"),
            "d2 is member 1 of a and no spare; `voltier array replace a 1 DEV`",
        ),
        (
            fixture.remove_spare("a", "d8"),
            "d8 is a spare of the pool p; `voltier array spare-pool remove p",
        ),
        (
            fixture.remove_spare("a", "ssd"),
            &format!("ssd is not a spare of a; its spares: {spare}"),
        ),
        (fixture.remove_spare("b", "d7"), "d7 is not a spare of b; its spares: none"),
        (fixture.remove_spare("c", "d7"), "no array `c`"),
    ];
    for (request, words) in cases {
        let error = fixture.error(request);
        assert!(error.contains(words) && !error.contains('\n'), "{words}: {error}");
    }
    assert_eq!(fixture.record_of("a").spares, [spare]);
    assert_eq!(fixture.calls().iter().filter(|call| call.contains("erase")).count(), 0);
}

#[test]
fn a_spare_that_cannot_be_taken_from_the_record_waits_on() {
    let mut fixture = Fixture::with_own_spare();
    fixture.steer(|books| books.failing = Some("take spare"));
    fixture.error(fixture.remove_spare("a", "d7"));
    fixture.steer(|books| books.failing = None);
    assert_eq!(fixture.record_of("a").spares, [fixture.device("d7")]);
    fixture.service.handle(fixture.lose("a", "d2"));
    fixture.service.notice_array_events();
    assert_eq!(fixture.record_of("a").members[1], Some(fixture.device("d2")), "not lost twice");
}

/// A spare is taken back, and the daemon dies at a call of the engine, or does not. Whether it did.
fn dies_in_removal(calls: usize) -> bool {
    let mut fixture = Fixture::with_own_spare();
    fixture.steer(|books| books.dies_in = Some(calls));
    let remove = fixture.remove_spare("a", "d7");
    let died = catch_unwind(AssertUnwindSafe(|| fixture.service.handle(remove))).is_err();
    fixture.steer(|books| books.dies_in = None);
    fixture.restart(false);
    fixture.service.notice_array_events();
    let is_spare = fixture.record_of("a").spares == [fixture.device("d7")];
    assert_eq!(is_spare, calls == 0, "dies in {calls}");
    let has_label = fixture.steer_and_read(|books| !books.spare_labels.is_empty());
    assert_eq!(has_label, is_spare, "the books erase it before they die");
    if !is_spare {
        // At worst it has a label that asks for -f.
        let add = fixture.pool_add(&["d7"], true);
        fixture.pools(add);
    }
    died
}

#[test]
fn a_daemon_that_dies_while_it_takes_a_spare_back_leaves_a_spare_or_none() {
    let deaths = (0..).take_while(|calls| dies_in_removal(*calls)).count();
    assert_eq!(deaths, 2);
}

#[test]
fn an_arrays_own_spare_is_left_out_after_a_start_when_another_drive_has_its_path() {
    let mut fixture = Fixture::with_pool(&[]);
    for spare in ["d7", "d8"] {
        let spare = fixture.device(spare);
        let add = ArrayRequest::AddSpare { name: named("a"), spare, force: false };
        assert!(matches!(fixture.service.handle(ask(add)), Response::Array { .. }));
    }
    put_another(&fixture, "d8");
    fixture.restart(false);
    fixture.service.notice_array_events();
    assert_eq!(fixture.record_of("a").spares, [fixture.device("d7")]);
}

#[test]
fn a_spare_stays_in_its_pool_when_a_member_of_an_array_has_its_path() {
    let mut fixture = Fixture::with_pool(&["d7"]);
    put_another(&fixture, "d7");
    let label = fixture.take_label("d1");
    fixture.put_label("d7", label);
    let before = fixture.registry().pools().to_vec();
    fixture.restart(false);
    assert_eq!(fixture.registry().pools(), before);
    assert!(fixture.record_of("a").spares.is_empty());
}

/// Keeps the registry from being written, or lets it again.
fn block_registry(fixture: &Fixture, is_blocked: bool) {
    let new = fixture.state_dir().join(format!("{}.new", voltier_control::REGISTRY_FILE));
    match is_blocked {
        true => std::fs::create_dir(new).unwrap(),
        false => std::fs::remove_dir(new).unwrap(),
    }
}

#[test]
fn a_spare_that_was_busy_at_the_loss_is_asked_again_after_a_while() {
    let mut fixture = Fixture::with_pool(&["d7"]);
    let holder = fixture.keep_busy("d7");
    fixture.service.handle(fixture.lose("a", "d2"));
    fixture.service.notice_array_events();
    let begun = super::late::now();
    let look = |fixture: &mut Fixture, seconds| {
        fixture.service.look_for_devices(begun + Duration::from_secs(seconds))
    };
    assert_eq!(look(&mut fixture, 1), Some(Duration::from_secs(60)));
    let show = ask(ArrayRequest::PoolShow { pool: Some("p".parse().unwrap()) });
    let left_out = fixture.pools(show).0.remove(0).left_out;
    assert!(left_out[0].contains("in use by another program"), "{left_out:?}");
    drop(holder);
    look(&mut fixture, 30);
    assert_eq!(fixture.waiting().len(), 1, "not on and on");
    assert_eq!(look(&mut fixture, 90), None);
    assert_eq!(fixture.record_of("a").members[1], Some(fixture.device("d7")));
    assert_eq!(fixture.waiting(), [""; 0]);
}

#[test]
fn a_label_that_cannot_be_recorded_is_taken_back() {
    let mut fixture = Fixture::with_pool(&["d7"]);
    block_registry(&fixture, true);
    let spare = fixture.device("d8");
    let add = ask(ArrayRequest::AddSpare { name: named("a"), spare, force: false });
    fixture.calls();
    fixture.error(add.clone());
    assert_eq!(fixture.calls(), [""; 0], "refused before anything is done");
    block_registry(&fixture, false);
    fixture.steer(|books| books.blocks_at_label = Some(fixture.state_dir().to_owned()));
    fixture.error(add.clone());
    assert_eq!(fixture.calls(), ["label a", "erase label"]);
    block_registry(&fixture, false);
    // The pool is on record, and its second spare is not.
    fixture.steer(|books| books.blocks_at_label = Some(fixture.state_dir().to_owned()));
    fixture.error(fixture.pool_add(&["ssd"], false));
    assert_eq!(fixture.calls(), ["label p", "erase label"]);
    block_registry(&fixture, false);
    // The array's label is on the spare, and the pool has it again.
    fixture.steer(|books| books.blocks_at_label = Some(fixture.state_dir().to_owned()));
    fixture.service.handle(fixture.lose("a", "d2"));
    fixture.service.notice_array_events();
    assert!(fixture.calls().ends_with(&["label a".to_owned(), "label p".to_owned()]));
    block_registry(&fixture, false);
    assert_eq!(fixture.waiting(), [fixture.device("d7").to_string()]);
    assert_eq!(
        fixture.service.look_for_devices(super::late::now() + Duration::from_secs(61)),
        None
    );
    assert_eq!(fixture.record_of("a").members[1], Some(fixture.device("d7")));
    assert!(matches!(fixture.service.handle(add), Response::Array { .. }));
}
