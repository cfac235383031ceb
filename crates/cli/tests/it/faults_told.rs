//! Each fault is told in every way that there is: as an event, by `voltier health` with its exit code, as a metric and
//! to a hook; and so is its end. Each row of the table is a test of its own, and says with `--nocapture` how long that
//! took from the fault on.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use serde_json::Value;
use voltier_control::{CONDITIONS, Condition, EVENTS};

use crate::full_host::{fill, small_file_system};
use crate::support::arrays::{array, export, with};
use crate::support::nbd::NbdClient;
use crate::support::shelf::{Conduct, Shelf};
use crate::support::{Instance, MIB, until};

/// What a row works on.
struct Scene {
    /// Dropped before the instance: a daemon with requests that hang does not end.
    shelf: Option<Shelf>,
    instance: Instance,
    drives: Vec<String>,
    /// What is in the way, and goes with the end of the fault.
    filler: Option<PathBuf>,
    listener: Option<TcpListener>,
}

impl Scene {
    fn new(instance: Instance, shelf: Option<Shelf>, drives: Vec<String>) -> Self {
        Self { shelf, instance, drives, filler: None, listener: None }
    }

    fn run(&self, args: &[&str]) {
        self.instance.run(args).ok();
    }

    fn tell(&self, drive: usize, conduct: Conduct) {
        self.shelf.as_ref().unwrap().tell(&self.drives[drive], conduct);
    }

    fn tell_all(&self, conduct: Conduct) {
        self.shelf.as_ref().unwrap().tell_all(&self.drives, conduct);
    }

    /// The drive with this number, or another name.
    fn name(&self, about: About) -> String {
        match about {
            About::Drive(number) => self.drives[number].clone(),
            About::Export => {
                format!("nbd+unix:///v?socket={}", self.instance.socket("v").display())
            }
            About::Hook => format!("test -e {}", self.instance.aside("mended")),
            About::Name(name) => name.to_owned(),
        }
    }

    /// A client writes and reads, and nobody waits for it: its requests may hang, or fail.
    fn work(&self) {
        let socket = self.instance.socket("v");
        let work = move || {
            let mut nbd = NbdClient::connect(&socket, "v")?;
            for block in 0..32 {
                let _ = nbd.write(block * 65536, &[7; 4096]);
            }
            let _ = nbd.flush();
            nbd.read(0, 65536)
        };
        thread::Builder::new().spawn(work).unwrap();
    }

    /// Writes and flushes, to the end.
    fn fill(&self) {
        let mut nbd = self.instance.connect("v");
        for block in 0..32 {
            nbd.write(block * 65536, &[1; 4096]).unwrap();
        }
        nbd.flush().unwrap();
    }

    /// Starts a daemon that waits for devices that are not there.
    fn start_waiting(&self) {
        let mut command = self.instance.command(&["start"]);
        command.env("VOLTIER_DEVICE_WAIT", "300").output().unwrap();
    }
}

/// What a fault is said of.
#[derive(Clone, Copy)]
enum About {
    Drive(usize),
    Export,
    Hook,
    Name(&'static str),
}

/// An array `a` with a volume `v` over it, on drives of a shelf, and a drive more. The last one is a spare of the array
/// where `spare` says so.
fn array_of(level: &str, count: usize, has_spare: bool) -> Option<Scene> {
    let instance = Instance::new();
    let shelf = Shelf::mount(&instance)?;
    let drives = shelf.drives("d", count + 1);
    let (members, spare) = drives.split_at(count);
    let mut create = vec!["create", "a", "--level", level, "--export", "none"];
    if has_spare {
        create.extend(["--spare", &spare[0]]);
    }
    instance.run(&with(&create, members)).ok();
    export(&instance);
    instance.run(&["array", "set", "a", "deadline=1s", "max_errors=0"]).ok();
    Some(Scene::new(instance, Some(shelf), drives))
}

/// A volume `v` with an SSD, drive 0, and a disk, drive 1.
fn cached(mode: &str) -> Option<Scene> {
    let instance = Instance::new();
    let shelf = Shelf::mount(&instance)?;
    let drives = vec![shelf.drive("ssd", 32 * MIB), shelf.drive("disk", 64 * MIB)];
    instance.run(&["create", "-p", &drives[1], "-s", &drives[0], "-t", mode, "v"]).ok();
    instance.run(&["set", "v", "deadline=1s", "dirty_high=80", "dirty_low=70"]).ok();
    instance.export("v");
    Some(Scene::new(instance, Some(shelf), drives))
}

/// A volume `v` on a file, drive 0.
fn plain_of(instance: Instance) -> Scene {
    let drives = vec![instance.drive("disk", 16 * MIB)];
    instance.run(&["create", "-p", &drives[0], "v"]).ok();
    instance.export("v");
    Scene::new(instance, None, drives)
}

fn plain() -> Option<Scene> {
    Some(plain_of(Instance::new()))
}

/// The same, with its state folder on a small file system.
fn in_a_small_folder() -> Option<Scene> {
    let instance = Instance::new();
    small_file_system(&instance.state())?;
    Some(plain_of(instance))
}

/// The same, with an address for metrics.
fn with_metrics() -> Option<Scene> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    Some(plain_of(Instance::new().with_variable("VOLTIER_METRICS", &address)))
}

/// A fault: the test's name, the word of the condition or event, what it is said of, the set-up, how the fault is made
/// and how it is ended.
macro_rules! faults {
    ($($name:ident: $word:literal, $about:expr, $set_up:expr, $fault:expr, $end:expr;)+) => {
        const WORDS: &[&str] = &[$($word),+];

        $(#[test]
        fn $name() {
            let Some(mut scene) = $set_up else { return };
            is_told(stringify!($name), $word, $about, &mut scene, $fault, $end);
        })+
    };
}

faults! {
    a_member_that_is_gone: "member_lost", About::Drive(1), array_of("6", 4, false),
        |it| { it.tell(1, Conduct::Gone); it.work() },
        |it| it.run(&["array", "replace", "a", "1", &it.drives[4]]);
    a_member_that_hangs: "member_lost", About::Drive(1), array_of("6", 4, false),
        |it| { it.tell(1, Conduct::Hangs); it.work() },
        |it| { it.tell(1, Conduct::Serves); take_back(it) };
    an_array_that_lost_a_member: "array_degraded", About::Name("a"), array_of("6", 4, false),
        |it| { it.tell(1, Conduct::Gone); it.work() },
        |it| it.run(&["array", "replace", "a", "1", &it.drives[4]]);
    a_volume_over_an_array_that_lost_a_member: "array_below", About::Name("v"), array_of("6", 4, false),
        |it| { it.tell(1, Conduct::Gone); it.work() },
        |it| it.run(&["array", "replace", "a", "1", &it.drives[4]]);
    members_that_all_hang: "members_awaited", About::Name("a"), array_of("5", 3, false),
        |it| { it.tell_all(Conduct::Hangs); it.work() },
        |it| it.tell_all(Conduct::Serves);
    a_member_that_is_silent_and_cannot_be_lost: "member_silent", About::Drive(0), array_of("0", 2, false),
        |it| { it.tell(0, Conduct::Hangs); it.work() },
        |it| it.tell(0, Conduct::Serves);
    a_member_that_errs: "member_errors", About::Drive(1), array_of("6", 4, false),
        |it| { it.fill(); it.tell(1, Conduct::RefusesReads(Errno::IO)); scrub(it) },
        |it| it.run(&["array", "replace", "a", "1", &it.drives[4]]);
    members_that_are_late: "array_waits", About::Name("a"), array_of("5", 3, false),
        |it| {
            it.instance.stop();
            it.tell(0, Conduct::Gone);
            it.tell(1, Conduct::Gone);
            it.start_waiting();
        },
        |it| { it.tell(0, Conduct::Serves); it.tell(1, Conduct::Serves) };
    a_disk_that_is_late: "volume_waits", About::Name("v"), cached("wt"),
        |it| { it.instance.stop(); it.tell(1, Conduct::Gone); it.start_waiting() },
        |it| it.tell(1, Conduct::Serves);
    a_disk_that_is_missing: "drive_missing", About::Drive(1), cached("wt"),
        |it| { it.instance.stop(); it.tell(1, Conduct::Gone); it.start_waiting() },
        |it| it.tell(1, Conduct::Serves);
    a_member_that_errs_too_often_and_cannot_be_lost: "member_failing", About::Drive(1), array_of("0", 2, false),
        |it| {
            it.fill();
            it.run(&["array", "set", "a", "max_errors=1"]);
            it.tell(1, Conduct::RefusesReads(Errno::IO));
            (0..4).for_each(|_| it.work());
        },
        |it| { it.tell(1, Conduct::Serves); it.run(&["array", "set", "a", "max_errors=0"]) };
    a_member_that_a_spare_replaces_at_once: "drive_replaced", About::Drive(1), array_of("5", 3, true),
        |it| { it.tell(1, Conduct::Gone); it.work() },
        |it| it.run(&["health", "--acknowledge", "a"]);
    a_spare_that_is_used: "spare_used", About::Name("a"), array_of("5", 3, true),
        |it| { it.tell(1, Conduct::Gone); it.work() },
        |_| {};
    an_ssd_that_refuses_writes: "ssd_evacuates", About::Drive(0), cached("wb"),
        |it| {
            it.fill();
            it.tell(1, Conduct::Hangs);
            it.tell(0, Conduct::RefusesChanges(Errno::IO));
            it.work();
        },
        |it| it.tell(1, Conduct::Serves);
    an_ssd_that_is_gone_and_was_clean: "ssd_failed", About::Drive(0), cached("wt"),
        |it| { it.fill(); it.tell(0, Conduct::Gone); it.work() },
        |it| it.run(&["detach", "v"]);
    an_ssd_that_is_gone_with_dirty_lines: "volume_failed", About::Name("v"), cached("wb"),
        |it| { it.fill(); it.tell(0, Conduct::Gone); it.work() },
        |it| it.tell(0, Conduct::Serves);
    a_disk_that_is_silent: "drive_silent", About::Drive(1), cached("wt"),
        |it| { it.tell(1, Conduct::Hangs); it.work() },
        |it| it.tell(1, Conduct::Serves);
    a_disk_that_errs: "drive_errors", About::Drive(1), cached("wt"),
        |it| { it.tell(1, Conduct::RefusesWrites(Errno::IO)); it.work() },
        |it| { it.tell(1, Conduct::Serves); it.run(&["health", "--acknowledge", "v"]) };
    a_disk_that_refuses_what_is_written_back: "disk_refuses", About::Drive(1), cached("wb"),
        |it| {
            it.tell(1, Conduct::RefusesWrites(Errno::NOSPC));
            it.fill();
            it.run(&["set", "v", "dirty_high=1", "dirty_low=0"]);
            it.work();
        },
        |it| it.tell(1, Conduct::Serves);
    writes_that_wait_for_a_disk: "writes_wait", About::Name("v"), cached("wb"),
        |it| {
            it.run(&["set", "v", "ordered=on", "max_unshipped=1s"]);
            it.tell(1, Conduct::RefusesWrites(Errno::IO));
            it.work();
            // What is written from now on waits for what was written before.
            thread::park_timeout(Duration::from_secs(2));
            (0..8).for_each(|_| it.work());
        },
        |it| it.tell(1, Conduct::Serves);
    a_state_folder_without_room: "state_folder_refuses", About::Name("voltier"), in_a_small_folder(),
        |it| it.filler = Some(fill(&it.instance.state())),
        |it| fs::remove_file(it.filler.take().unwrap()).unwrap();
    an_export_that_is_closed: "export_failed", About::Export, plain(),
        |it| fs::remove_file(it.instance.socket("v")).unwrap(),
        |it| drop(it.instance.export("v"));
    a_start_after_a_crash: "daemon_crashed", About::Name("voltier"), plain(),
        |it| { it.instance.kill(); it.instance.serve() },
        |_| {};
    metrics_whose_address_is_taken: "metrics_fail", About::Name("voltier"), with_metrics(),
        take_the_address,
        |it| drop(it.listener.take());
    a_hook_that_fails: "hook_fails", About::Hook, plain(),
        |it| {
            it.run(&["events", "--hook", &it.name(About::Hook)]);
            it.run(&["events", "--hook", "true"]);
            fs::remove_file(it.instance.socket("v")).unwrap();
        },
        |it| mend_the_hook(it);
}

/// Puts a member that has come back into its place, when the drive has ended what it was asked before.
fn take_back(it: &Scene) {
    until("the member is back", || {
        it.instance.run(&["array", "replace", "a", "1", &it.drives[1]]).code == 0
    });
    until("the array is whole", || array(&it.instance)["state"] == "running");
}

fn scrub(it: &Scene) {
    it.instance.run(&["array", "scrub", "a"]);
}

/// Has the next daemon find its address for metrics taken.
fn take_the_address(it: &mut Scene) {
    it.instance.stop();
    let address = it.instance.variable("VOLTIER_METRICS").unwrap();
    it.listener = Some(TcpListener::bind(address).unwrap());
    it.instance.serve();
}

fn mend_the_hook(it: &Scene) {
    fs::write(it.instance.aside("mended"), "").unwrap();
}

/// The ways in which something is told.
const WAYS: [&str; 4] = ["event", "health", "metric", "hook"];

fn condition(word: &str) -> Option<&'static Condition> {
    CONDITIONS.iter().find(|it| it.word == word)
}

/// Makes a fault, waits until it is told in all ways, and the same of its end.
fn is_told(
    test: &str,
    word: &str,
    about: About,
    scene: &mut Scene,
    fault: impl FnOnce(&mut Scene),
    end: impl FnOnce(&mut Scene),
) {
    let got = scene.instance.aside("got");
    let told = "$VOLTIER_EVENT_KIND $VOLTIER_EVENT_CHANGE $VOLTIER_EVENT_NAME";
    scene.run(&["events", "--hook", &format!("echo \"{told}\" >> {got}")]);
    let condition = condition(word);
    let name = scene.name(about);
    let changes: &[&str] = if condition.is_some() { &["begins", "ends"] } else { &[""] };
    let mut work = (Some(fault), Some(end));
    for change in changes {
        let begun = instant();
        match *change {
            "ends" => work.1.take().into_iter().for_each(|end| end(scene)),
            _ => work.0.take().into_iter().for_each(|fault| fault(scene)),
        }
        let mut took = [None; WAYS.len()];
        until(&format!("{word} {change}: {name}"), || {
            for (way, took) in WAYS.iter().zip(&mut took) {
                if took.is_none() && is_so(&scene.instance, &got, way, (word, change, &name)) {
                    *took = Some(begun.elapsed());
                }
            }
            took.iter().all(Option::is_some)
        });
        let told: Vec<String> = WAYS.iter().zip(took).map(|(way, took)| said(way, took)).collect();
        eprintln!("{test}: {word} {change}: {}", told.join(", "));
    }
}

fn said(way: &str, took: Option<Duration>) -> String {
    format!("{way} {:.1} s", took.unwrap_or_default().as_secs_f64())
}

#[expect(clippy::disallowed_methods, reason = "a test that says how long something took")]
fn instant() -> Instant {
    Instant::now()
}

/// Whether it is told in this way that a condition begins or ends, or that an event came.
fn is_so(instance: &Instance, got: &str, way: &str, what: (&str, &str, &str)) -> bool {
    let (word, change, name) = what;
    let condition = condition(word);
    let stands = change == "begins";
    match way {
        "event" => {
            let events = instance.run(&["events", "--json"]).json();
            let is_it = |event: &Value| {
                let change_of = event["change"].as_str().unwrap_or_default();
                event["kind"] == word && change_of == change && event["name"] == name
            };
            events.as_array().unwrap().iter().any(is_it)
        }
        "health" => condition.is_none_or(|condition| {
            let answer = instance.run(&["health", "--json"]);
            let code = answer.code;
            let shown = answer.shown();
            let checks = shown["checks"].as_array().unwrap();
            let is_it = |check: &&Value| check["condition"] == word && check["name"] == name;
            let found = checks.iter().find(is_it);
            if let Some(check) = found {
                assert_eq!(check["state"], condition.state.word(), "{check}");
                assert!(check["reason"] != "" && check["next"] != "", "{check}");
                assert!(code >= i32::from(condition.state.exit_code()), "{code}: {shown}");
            }
            found.is_some() == stands
        }),
        "metric" => condition.is_none_or(|_| {
            let text = instance.run(&["metrics"]).out;
            let (name, word) = (format!("name=\"{name}\","), format!("condition=\"{word}\"}} 1"));
            let is_it = |line: &str| {
                line.starts_with("voltier_condition{")
                    && line.contains(&name)
                    && line.ends_with(&word)
            };
            text.contains("voltier_build_info") && text.lines().any(is_it) == stands
        }),
        _ => {
            let line = format!("{word} {change} {name}");
            fs::read_to_string(got).unwrap_or_default().lines().any(|it| it == line)
        }
    }
}

/// Conditions that have no row, and why. A condition that is new has to be in one of the two.
const LEFT: &[(&str, &[&str])] = &[
    ("no daemon is there that could tell of it (health.rs)", &["no_daemon"]),
    ("every start passes them (standing.rs)", &["volume_starts", "array_starts"]),
    (
        "what drives say of themselves is told by no drive of a shelf (smart.rs)",
        &[
            "smart_failed",
            "smart_spare_low",
            "smart_worn",
            "smart_media_errors",
            "smart_pending",
            "smart_hot",
        ],
    ),
    (
        "they are told as the others are, and tests of their own make them",
        &[
            "data_lost",
            "volume_trouble",
            "drive_failed",
            "array_failed",
            "not_rebuilt",
            "journal_lost",
            "scrub_lost",
            "scrub_left",
            "reshape_stopped",
            "array_trouble",
            "pool_empty",
            "spare_left_out",
            "member_rebuilds",
            "member_slow",
            "member_unprotected",
        ],
    ),
];

#[test]
fn each_condition_has_a_row_or_a_reason_why_not_and_each_row_is_declared() {
    let conditions: BTreeSet<&str> = CONDITIONS.iter().map(|it| it.word).collect();
    let events: BTreeSet<&str> = EVENTS.iter().map(|it| it.word).collect();
    let rows: BTreeSet<&str> = WORDS.iter().copied().collect();
    let left: BTreeSet<&str> = LEFT.iter().flat_map(|(_, words)| words.iter().copied()).collect();
    assert_eq!(rows.intersection(&left).next(), None);
    let told: BTreeSet<&str> = rows.union(&left).copied().collect();
    assert_eq!(told.difference(&events).copied().collect::<BTreeSet<_>>(), conditions);
}
