//! A lost registry put together again of what drives say: which records come of it, and what is refused.

use std::fs;

use voltier_array::MemberState;
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Mode, Owner};

use super::arrays::{ask_of, created};
use super::books::ARRAY_BYTES;
use super::fixture::{Fixture, name};
use voltier_control::engine::CacheLabel;
use voltier_control::protocol::{ArrayRequest, NewArray, NewCache, Request, Response};
use voltier_control::{
    ArrayLevel, Desired, DeviceSpec, Identity, ImportOrder, ImportReport, REGISTRY_FILE, Settings,
    VolumeName, VolumeState,
};

/// The size of each drive of a fixture.
const DRIVE_BYTES: u64 = 1 << 20;

fn label(owner: Owner) -> CacheLabel {
    CacheLabel {
        uuid: Identity([5; 16]),
        generation: 7,
        sequence: 9,
        is_clean: false,
        dirty_lines: 12,
        size_bytes: DRIVE_BYTES,
        origin_bytes: DRIVE_BYTES,
        line_bytes: 8192,
        policy: PolicyKind::Fifo,
        owner,
    }
}

/// The owner of the cache of the volume `v` on the file `hdd`.
fn owner(fixture: &mut Fixture) -> Owner {
    let other: VolumeName = "asked".parse().unwrap();
    let origin = fixture.device("hdd");
    let create = Request::Create { name: other.clone(), origin, cache: None, export: None };
    fixture.service.handle(create);
    let record = fixture.registry().find(&other).cloned().unwrap();
    fixture.service.handle(Request::Delete { name: other, flush: true });
    let mark = record.origin_identity.filter(|mark| mark.is_known());
    Owner {
        volume_uuid: [8; 16],
        volume: "v".into(),
        origin_identity: mark.map(|it| it.to_string()).unwrap_or_default(),
        origin_path: fixture.path("hdd").display().to_string(),
        mode: Some(Mode::WriteBack),
        ordered: true,
    }
}

/// A fixture without records, in which the file `ssd` is the SSD of a lost volume.
fn lost_volume() -> Fixture {
    let mut fixture = Fixture::new();
    let owner = owner(&mut fixture);
    put(&fixture, "ssd", label(owner));
    fixture.calls();
    fixture
}

fn put(fixture: &Fixture, ssd: &str, label: CacheLabel) {
    let device = fixture.device(ssd).to_string();
    fixture.steer(|books| drop(books.cache_labels.insert(device, label)));
}

fn change(fixture: &Fixture, ssd: &str, change: impl FnOnce(&mut CacheLabel)) {
    let device = fixture.device(ssd).to_string();
    fixture.steer(|books| change(books.cache_labels.get_mut(&device).unwrap()));
}

fn order(fixture: &Fixture, devices: &[&str]) -> ImportOrder {
    let devices = devices.iter().map(|name| fixture.device(name)).collect();
    ImportOrder { devices, name: None, changed_origin: false, dry_run: false }
}

fn import(fixture: &mut Fixture, devices: &[&str]) -> ImportReport {
    let order = order(fixture, devices);
    imported(fixture, order)
}

#[track_caller]
fn imported(fixture: &mut Fixture, order: ImportOrder) -> ImportReport {
    match fixture.service.handle(Request::Import { order }) {
        Response::Imported { report } => *report,
        other => panic!("{other:?}"),
    }
}

/// Asserts that an import is refused in one line, and changes nothing.
#[track_caller]
fn refused(fixture: &mut Fixture, order: ImportOrder, words: &[&str]) {
    let read = |fixture: &Fixture| fs::read(fixture.state_dir().join(REGISTRY_FILE)).ok();
    let before = (read(fixture), fixture.registry());
    fixture.calls();
    let error = fixture.error(Request::Import { order });
    assert!(words.iter().all(|words| error.contains(words)), "{words:?} in {error}");
    assert!(!error.contains('\n'), "{error}");
    assert_eq!(fixture.registry().volumes(), before.1.volumes());
    assert_eq!(fixture.registry().arrays(), before.1.arrays());
    let calls = fixture.calls();
    assert!(!calls.iter().any(|call| call.starts_with("open Format")), "{calls:?}");
}

#[test]
fn a_volume_comes_back_from_its_ssd_and_is_there_after_a_restart() {
    let mut fixture = lost_volume();
    fixture.steer(|books| books.dirty = 12);
    // The origin has a mark where this file system gives files one; else it must be given.
    let report = import(&mut fixture, &["ssd", "hdd"]);
    let volume = &report.volumes[0];
    assert_eq!((volume.name.as_str(), volume.mode.as_str()), ("v", "wb"));
    assert_eq!((volume.policy.as_str(), volume.dirty_lines), ("fifo", 12));
    assert!(report.notes.iter().any(|note| note.contains("voltier export v")), "{report:?}");
    assert_eq!(fixture.calls(), ["open Import"]);
    let record = fixture.registry().volumes()[0].clone();
    assert_eq!((record.uuid, record.size_bytes), (Identity([8; 16]), DRIVE_BYTES));
    assert_eq!((record.desired, record.exports.len()), (Desired::Serving, 0));
    let cache = record.cache.unwrap();
    assert_eq!((cache.uuid, cache.generation, cache.maybe_dirty), (Identity([5; 16]), 8, true));
    assert_eq!((cache.settings.line_bytes, cache.settings.mode), (8192, Mode::WriteBack));
    assert!(cache.settings.ordered);
    assert_eq!(fixture.state().state, VolumeState::Running);
    fixture.restart(false);
    assert_eq!(fixture.state().state, VolumeState::Running);
    assert_eq!(fixture.calls(), ["open Load"]);
}

#[test]
fn an_origin_is_found_by_its_mark_where_it_is_now() {
    let mut fixture = lost_volume();
    if fixture.steer_and_read(|books| {
        books.cache_labels.values().any(|it| it.owner.origin_identity.is_empty())
    }) {
        eprintln!("left out: this file system keeps no time of birth");
        return;
    }
    fs::rename(fixture.path("hdd"), fixture.path("renamed")).unwrap();
    let alone = order(&fixture, &["ssd"]);
    let way_on =
        format!("`voltier import {} {}`", fixture.device("ssd"), fixture.device("renamed"));
    refused(&mut fixture, alone, &["the newest data of 12 lines", "was not named", &way_on]);
    change(&fixture, "ssd", |label| (label.dirty_lines, label.is_clean) = (0, true));
    let report = import(&mut fixture, &["ssd"]);
    assert_eq!(report.volumes[0].origin, fixture.device("renamed"));
}

#[test]
fn a_given_origin_with_another_mark_is_taken_and_said_to_have_it() {
    let mut fixture = lost_volume();
    change(&fixture, "ssd", |label| label.owner.origin_identity = "wwid:gone".into());
    let alone = order(&fixture, &["ssd"]);
    refused(&mut fixture, alone, &["was not found", "wwid:gone", "hdd", "connect it"]);
    let report = import(&mut fixture, &["hdd", "ssd"]);
    assert!(report.notes.iter().any(|note| note.contains("not wwid:gone")), "{report:?}");
    assert_eq!(fixture.calls(), ["open ImportGiven"]);
}

#[test]
fn a_dry_run_says_the_same_and_changes_nothing() {
    let mut fixture = lost_volume();
    let dry = ImportOrder { dry_run: true, ..order(&fixture, &["ssd", "hdd"]) };
    let report = imported(&mut fixture, dry);
    assert!(report.dry_run && !report.volumes[0].stopped_in_order);
    assert_eq!((report.volumes[0].dirty_lines, report.volumes[0].size_bytes), (12, DRIVE_BYTES));
    assert_eq!(fixture.registry().volumes(), []);
    assert_eq!(fixture.calls(), [""; 0]);
}

#[test]
fn a_cache_that_names_nothing_needs_a_name_and_an_origin() {
    let mut fixture = lost_volume();
    put(&fixture, "ssd", label(Owner::default()));
    let alone = order(&fixture, &["ssd"]);
    refused(&mut fixture, alone, &["no identity is recorded", "no last path is recorded"]);
    let unnamed = order(&fixture, &["ssd", "hdd"]);
    refused(&mut fixture, unnamed.clone(), &["does not name its volume", "--name NAME"]);
    let report = imported(&mut fixture, ImportOrder { name: Some(name()), ..unnamed });
    assert_eq!(report.volumes[0].mode, "wt");
    assert!(report.notes.iter().any(|note| note.contains("its mode is not recorded on the SSD")));
    assert_ne!(fixture.registry().volumes()[0].uuid, Identity([0; 16]));
}

#[test]
fn a_taken_name_is_refused_with_the_choice_of_another() {
    let mut fixture = lost_volume();
    let cache = None;
    fixture.service.handle(Request::Create {
        name: name(),
        origin: fixture.device("ssd2"),
        cache,
        export: None,
    });
    let as_it_says = order(&fixture, &["ssd", "hdd"]);
    refused(&mut fixture, as_it_says.clone(), &["another volume `v`", "--name NEW"]);
    let renamed = ImportOrder { name: Some("w".parse().unwrap()), ..as_it_says };
    assert_eq!(imported(&mut fixture, renamed).volumes[0].name.as_str(), "w");
    assert_eq!(fixture.registry().volumes().len(), 2);
}

#[test]
fn what_is_on_record_or_nothing_of_voltier_or_given_twice_is_refused() {
    let mut fixture = lost_volume();
    let with_more = order(&fixture, &["ssd", "hdd", "d1"]);
    refused(&mut fixture, with_more, &["d1 holds nothing of Voltier", "leave it out"]);
    let nothing = order(&fixture, &["d1"]);
    refused(&mut fixture, nothing, &["holds nothing of Voltier"]);
    let twice = order(&fixture, &["ssd", "ssd"]);
    refused(&mut fixture, twice, &["given twice"]);
    let memory = DeviceSpec::Memory(1 << 20);
    let volatile = ImportOrder { devices: vec![memory], ..order(&fixture, &[]) };
    refused(&mut fixture, volatile, &["empty at every start"]);
    let gone = order(&fixture, &["gone"]);
    refused(&mut fixture, gone, &["does not exist"]);
    import(&mut fixture, &["ssd", "hdd"]);
    let again = order(&fixture, &["ssd"]);
    refused(&mut fixture, again, &["already belongs to volume v", "needs no import"]);
    // A copy of the SSD under another path.
    let copy = label(owner_of(&fixture, "ssd"));
    put(&fixture, "ssd2", copy.clone());
    let copied = order(&fixture, &["ssd2"]);
    refused(&mut fixture, copied, &["already recorded", "voltier start v"]);
    // An SSD that the volume had before.
    put(&fixture, "ssd2", CacheLabel { uuid: Identity([6; 16]), ..copy });
    let before = order(&fixture, &["ssd2"]);
    refused(&mut fixture, before, &["which is recorded without it", "voltier delete v"]);
}

fn owner_of(fixture: &Fixture, ssd: &str) -> Owner {
    let device = fixture.device(ssd).to_string();
    fixture.steer_and_read(|books| books.cache_labels[&device].owner.clone())
}

#[test]
fn a_device_that_somebody_has_is_refused_and_taken_when_it_is_free() {
    let mut fixture = lost_volume();
    let asked = order(&fixture, &["ssd", "hdd"]);
    let user = fixture.keep_busy("ssd");
    refused(&mut fixture, asked.clone(), &["in use by another program"]);
    drop(user);
    assert_eq!(imported(&mut fixture, asked).volumes.len(), 1);
}

#[test]
fn two_volumes_come_back_at_once_each_with_its_own_origin() {
    let mut fixture = lost_volume();
    change(&fixture, "ssd", |label| label.owner.origin_identity.clear());
    let of_v = owner_of(&fixture, "ssd");
    let of_w = Owner { volume: "w".into(), volume_uuid: [9; 16], ..of_v };
    let of_w = CacheLabel { uuid: Identity([6; 16]), origin_bytes: 2 << 20, ..label(of_w) };
    put(&fixture, "ssd2", of_w);
    fs::File::options().write(true).open(fixture.path("d1")).unwrap().set_len(2 << 20).unwrap();
    let report = import(&mut fixture, &["d1", "ssd2", "hdd", "ssd"]);
    let origins: Vec<_> = report.volumes.iter().map(|it| (it.name.as_str(), &it.origin)).collect();
    assert_eq!(origins, [("w", &fixture.device("d1")), ("v", &fixture.device("hdd"))]);
    assert_eq!(fixture.registry().volumes().len(), 2);
    let one_name = ImportOrder { name: Some("x".parse().unwrap()), ..order(&fixture, &[]) };
    refused(&mut fixture, one_name, &["--name goes with one volume or array"]);
}

#[test]
fn several_origins_that_would_fit_are_not_guessed_at() {
    let mut fixture = lost_volume();
    change(&fixture, "ssd", |label| label.owner.origin_identity.clear());
    let two_origins = order(&fixture, &["ssd", "hdd", "d1"]);
    refused(&mut fixture, two_origins, &["several drives could be the backing disk"]);
    let other = Owner { volume: "w".into(), volume_uuid: [9; 16], ..owner_of(&fixture, "ssd") };
    put(&fixture, "ssd2", CacheLabel { uuid: Identity([6; 16]), ..label(other) });
    let two_caches = order(&fixture, &["ssd", "ssd2", "hdd"]);
    refused(&mut fixture, two_caches, &["import one volume at a time"]);
    change(&fixture, "ssd2", |label| label.origin_bytes = 77 * 512);
    let wrong_size = order(&fixture, &["ssd2", "hdd"]);
    refused(&mut fixture, wrong_size, &["of 39424 bytes", "hdd has 1048576 bytes"]);
}

#[test]
fn two_ssds_of_one_volume_are_told_apart_by_the_user() {
    let mut fixture = lost_volume();
    let stale = CacheLabel { uuid: Identity([6; 16]), ..label(owner_of(&fixture, "ssd")) };
    put(&fixture, "ssd2", stale);
    let both = order(&fixture, &["ssd", "ssd2", "hdd"]);
    refused(&mut fixture, both, &["ssd2", "that was in use last"]);
}

#[test]
fn what_the_start_refuses_is_not_imported_unless_the_origin_counts_as_it_is() {
    let mut fixture = lost_volume();
    fixture.steer(|books| books.failing = Some("open"));
    let asked = order(&fixture, &["ssd", "hdd"]);
    refused(&mut fixture, asked.clone(), &["v is not imported: open was to fail"]);
    fixture.steer(|books| books.failing = None);
    imported(&mut fixture, ImportOrder { changed_origin: true, ..asked });
    assert_eq!(fixture.calls(), ["open Adopt"]);
}

const LEVEL: &str = "5";

/// An array `a` of these drives.
fn new_array(fixture: &Fixture, members: [&str; 3]) -> NewArray {
    let level: ArrayLevel = LEVEL.parse().unwrap();
    NewArray {
        name: "a".parse().unwrap(),
        level,
        chunk_bytes: level.default_chunk_bytes(),
        consistency: level.default_consistency(),
        members: members.map(|name| fixture.device(name)).into(),
        spares: Vec::new(),
        journal: None,
        force: false,
    }
}

/// A fixture without records, in which `d1` to `d3` are an array `a`; its identity.
fn lost_array() -> (Fixture, Identity) {
    let fixture = Fixture::new();
    let array = new_array(&fixture, ["d1", "d2", "d3"]);
    fixture.service.handle(created(array));
    let uuid = fixture.registry().arrays()[0].uuid;
    let name = "a".parse().unwrap();
    fixture.service.handle(ask_of(ArrayRequest::Delete { name, erase: false }));
    assert_eq!(fixture.registry().arrays(), []);
    fixture.calls();
    (fixture, uuid)
}

#[test]
fn an_array_comes_back_from_members_in_any_order() {
    let (mut fixture, uuid) = lost_array();
    let report = import(&mut fixture, &["d3", "d1", "d2"]);
    let record = fixture.registry().arrays()[0].clone();
    assert_eq!(
        (record.uuid, record.name.as_str(), record.level.to_string().as_str()),
        (uuid, "a", LEVEL)
    );
    assert_eq!(record.members, ["d1", "d2", "d3"].map(|name| Some(fixture.device(name))));
    assert_eq!(report.arrays[0].members, record.members);
    assert!(report.notes.iter().any(|note| note.contains("create -p array:a")), "{report:?}");
    assert_eq!(fixture.calls(), ["assemble a of 3", "pace a normal"]);
}

#[test]
fn members_that_were_not_given_are_found_by_their_labels() {
    let (mut fixture, _) = lost_array();
    let others = ["d2", "d3", "hdd"].map(|name| fixture.path(name)).to_vec();
    fixture.steer(|books| books.own_devices = others);
    let report = import(&mut fixture, &["d1"]);
    assert_eq!(report.arrays[0].members.iter().flatten().count(), 3);
}

#[test]
fn an_array_that_misses_too_much_is_refused_and_one_that_can_do_without_is_not() {
    let (mut fixture, _) = lost_array();
    let one = order(&fixture, &["d2"]);
    refused(&mut fixture, one, &["the members 0, 2 were not found", "it can do without 1"]);
    fixture.steer(|books| {
        for label in books.labels.values_mut() {
            label.places[2].state = MemberState::Lost;
        }
    });
    let with_the_lost = order(&fixture, &["d1", "d3"]);
    refused(&mut fixture, with_the_lost, &["the members 1, 2 were not found or are lost"]);
    let dry = ImportOrder { dry_run: true, ..order(&fixture, &["d1", "d2"]) };
    assert_eq!(imported(&mut fixture, dry).arrays[0].members.len(), 3);
    assert_eq!(fixture.registry().arrays(), []);
    assert_eq!(import(&mut fixture, &["d1", "d2"]).arrays.len(), 1);
    let again = order(&fixture, &["d3"]);
    refused(&mut fixture, again, &["the array a is already recorded"]);
}

#[test]
fn a_volume_whose_origin_is_an_array_comes_back_with_it_in_any_order() {
    let (mut fixture, uuid) = lost_array();
    let owner = Owner {
        volume_uuid: [8; 16],
        volume: "v".into(),
        origin_identity: format!("array:{uuid}"),
        origin_path: "array:a".into(),
        mode: Some(Mode::WriteBack),
        ordered: true,
    };
    put(&fixture, "ssd", CacheLabel { origin_bytes: ARRAY_BYTES, ..label(owner) });
    let alone = order(&fixture, &["ssd"]);
    refused(&mut fixture, alone, &["give the members of that array as well"]);
    // The array has another name by now: its identity counts.
    let report = import(&mut fixture, &["d2", "ssd", "d1", "d3"]);
    assert_eq!(report.volumes[0].origin.to_string(), "array:a");
    assert!(!report.notes.iter().any(|note| note.contains("create -p")), "{report:?}");
    let record = fixture.registry().volumes()[0].clone();
    assert_eq!(record.origin_identity.unwrap().array(), Some(uuid));
}

#[test]
fn a_cache_on_an_array_is_found_when_the_array_is_assembled() {
    let (mut fixture, _) = lost_array();
    let owner = owner(&mut fixture);
    let on_array = label(owner);
    fixture.steer(|books| drop(books.cache_labels.insert("array:a".into(), on_array)));
    let devices = ["d1", "d2", "d3", "hdd"];
    let dry = ImportOrder { dry_run: true, ..order(&fixture, &devices) };
    let report = imported(&mut fixture, dry);
    assert!(report.notes.iter().any(|note| note.contains("caches on these arrays")), "{report:?}");
    let report = import(&mut fixture, &devices);
    assert_eq!(report.volumes[0].ssd.to_string(), "array:a");
}

#[test]
fn an_import_that_fails_half_way_leaves_nothing_on_record() {
    let (mut fixture, _) = lost_array();
    let with_a_stranger = order(&fixture, &["d1", "d2", "d3", "hdd"]);
    refused(&mut fixture, with_a_stranger, &["hdd holds nothing of Voltier"]);
    assert!(fixture.steer_and_read(|books| books.arrays.is_empty()), "closed again");
    assert_eq!(import(&mut fixture, &["d1", "d2", "d3"]).arrays.len(), 1);
}

#[test]
fn an_array_with_a_taken_name_gets_another_one() {
    let (mut fixture, uuid) = lost_array();
    let array = new_array(&fixture, ["d4", "d5", "d6"]);
    fixture.service.handle(created(array));
    let as_it_says = order(&fixture, &["d1", "d2", "d3"]);
    refused(&mut fixture, as_it_says.clone(), &["another array `a`", "--name NEW"]);
    imported(&mut fixture, ImportOrder { name: Some("b".parse().unwrap()), ..as_it_says });
    let record = fixture.registry().find_array(&"b".parse().unwrap()).cloned();
    assert_eq!(record.unwrap().uuid, uuid);
}

#[test]
fn an_origin_whose_newest_data_may_be_on_an_ssd_gets_no_new_volume() {
    let mut fixture = lost_volume();
    if owner_of(&fixture, "ssd").origin_identity.is_empty() {
        eprintln!("left out: this file system keeps no time of birth");
        return;
    }
    let ssd = fixture.path("ssd");
    fixture.steer(|books| books.own_devices = vec![ssd]);
    let create = |fixture: &Fixture, cache| {
        let (name, origin) = ("plain".parse().unwrap(), fixture.device("hdd"));
        Request::Create { name, origin, cache, export: None }
    };
    let refused = |fixture: &mut Fixture, words: &[&str]| {
        let error = fixture.error(create(fixture, None));
        assert!(words.iter().all(|words| error.contains(words)), "{words:?} in {error}");
        assert!(fixture.registry().volumes().is_empty());
    };
    refused(&mut fixture, &["cache of volume v", "12 lines", "voltier import", "-f"]);
    change(&fixture, "ssd", |label| label.dirty_lines = 0);
    refused(&mut fixture, &["the newest data;"]);
    // The SSD of the new cache is overwritten with consent.
    let cache =
        NewCache { device: fixture.device("ssd"), settings: Settings::default(), force: true };
    let taken = create(&fixture, Some(cache));
    assert!(matches!(fixture.service.handle(taken), Response::Volume { .. }));
    fixture.job(Request::Delete { name: "plain".parse().unwrap(), flush: false });
    // A cache that was stopped in order without dirty lines holds nothing new.
    change(&fixture, "ssd", |label| label.is_clean = true);
    let plain = create(&fixture, None);
    assert!(matches!(fixture.service.handle(plain), Response::Volume { .. }));
}
