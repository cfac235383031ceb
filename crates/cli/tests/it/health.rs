//! `voltier health` through the real binary: each trouble is named with its drive, and is gone with its cause.

use serde_json::Value;

use crate::support::arrays::with;
use crate::support::shelf::{Conduct, Shelf};
use crate::support::{Instance, MIB, until};
use rustix::io::Errno;

/// The state, and the conditions with what they are about, the worst first.
fn health(instance: &Instance) -> (String, Vec<String>) {
    let answer = instance.run(&["health", "--json"]);
    let code = answer.code;
    let shown = answer.shown();
    let state = shown["state"].as_str().unwrap().to_owned();
    let codes = ["ok", "warning", "degraded failed", "unknown"];
    assert!(codes[code as usize].contains(&state), "{code}: {shown}");
    let checks = shown["checks"].as_array().unwrap();
    let said = |check: &Value| Some(format!("{} {}", check["condition"].as_str()?, check["name"]));
    (state, checks.iter().filter_map(said).map(|it| it.replace('"', "")).collect())
}

fn until_found(instance: &Instance, state: &str, found: &str) {
    until(&format!("{state}: {found}"), || {
        let (is, conditions) = health(instance);
        is == state && (found.is_empty() || conditions.iter().any(|it| it == found))
    });
}

#[test]
fn health_names_a_member_that_is_lost_late_or_erring_and_the_volume_that_suffers() {
    let instance = Instance::new();
    let Some(shelf) = Shelf::mount(&instance) else { return };
    let (members, spare) = (shelf.drives("d", 4), shelf.drive("spare", 32 * MIB));
    instance.run(&with(&["create", "a", "--level", "6", "--export", "none"], &members)).ok();
    instance.run(&["create", "-p", "array:a", "v"]).ok();
    instance.export("v");
    let answer = instance.run(&["health"]).ok();
    assert_eq!(answer.out, "ok: 1 volume, 1 array, 5 drives, 1 export\n");
    instance.run(&["array", "set", "a", "deadline=1s", "max_errors=0"]).ok();
    let mut nbd = instance.connect("v");
    let mut write = |seed: u8| {
        for block in 0..32_u64 {
            nbd.write(block * 65536, &[seed; 4096]).unwrap();
        }
        nbd.flush().unwrap();
    };
    write(1);
    shelf.tell(&members[1], Conduct::RefusesReads(Errno::IO));
    instance.run(&["array", "scrub", "a"]);
    until_found(&instance, "warning", &format!("member_errors {}", members[1]));
    shelf.tell(&members[1], Conduct::Serves);
    shelf.tell(&members[2], Conduct::Gone);
    write(2);
    until_found(&instance, "degraded", &format!("member_lost {}", members[2]));
    let (_, found) = health(&instance);
    assert!(found.contains(&"array_degraded a".to_owned()), "{found:?}");
    assert!(found.contains(&"array_below v".to_owned()), "{found:?}");
    let answer = instance.run(&["health", "v"]);
    assert_eq!(answer.code, 2);
    let first = answer.out.lines().next().unwrap();
    let says = format!("degraded: drive {} of array a: member 2 is lost", members[2]);
    assert!(first.starts_with(&says), "{first}");
    assert!(answer.out.contains("`voltier array replace a 2 DEV`"), "{}", answer.out);
    instance.run(&["array", "replace", "a", "2", &spare]).ok();
    let (_, found) = health(&instance);
    assert!(!found.iter().any(|it| it.starts_with("member_lost")), "{found:?}");
}

#[test]
fn health_names_an_ssd_that_is_gone_a_disk_that_is_silent_and_a_daemon_that_does_not_run() {
    let instance = Instance::new();
    let answer = instance.run(&["health"]);
    assert_eq!(answer.code, 3, "{answer:?}");
    assert!(answer.out.starts_with("unknown: no daemon serves "), "{answer:?}");
    assert_eq!(instance.run(&["health", "--json"]).shown()["state"], "unknown");
    let Some(shelf) = Shelf::mount(&instance) else { return };
    let (ssd, disk) = (shelf.drive("ssd", 32 * MIB), shelf.drive("disk", 64 * MIB));
    instance.run(&["create", "-p", &disk, "-s", &ssd, "v"]).ok();
    instance.run(&["set", "v", "deadline=1s"]).ok();
    instance.export("v");
    assert_eq!(health(&instance), ("ok".to_owned(), Vec::new()));
    let answer = instance.run(&["health", "w"]);
    assert_eq!(answer.code, 3, "{answer:?}");
    assert!(answer.out.starts_with("unknown: no volume or array `w`; "), "{answer:?}");
    let mut nbd = instance.connect("v");
    shelf.tell(&disk, Conduct::Hangs);
    let write = move || {
        nbd.write(0, &[1; 4096]).unwrap();
        nbd
    };
    let waits = std::thread::Builder::new().spawn(write).unwrap();
    until_found(&instance, "degraded", &format!("drive_silent {disk}"));
    shelf.tell(&disk, Conduct::Serves);
    let mut nbd = waits.join().unwrap();
    until_found(&instance, "ok", "");
    shelf.tell(&ssd, Conduct::Gone);
    nbd.write(4096, &[2; 4096]).unwrap();
    until_found(&instance, "degraded", &format!("ssd_failed {ssd}"));
    drop(nbd);
    instance.stop();
    assert_eq!(health(&instance), ("failed".to_owned(), vec!["no_daemon voltier".to_owned()]));
}

#[test]
fn a_member_that_a_spare_has_replaced_is_named_until_that_is_acknowledged() {
    let instance = Instance::new();
    let Some(shelf) = Shelf::mount(&instance) else { return };
    let (members, spare) = (shelf.drives("d", 3), shelf.drive("spare", 32 * MIB));
    let create = ["create", "a", "--level", "5", "--export", "none", "--spare", &spare];
    instance.run(&with(&create, &members)).ok();
    instance.run(&["create", "-p", "array:a", "v"]).ok();
    instance.export("v");
    assert!(
        instance.run(&["array", "show", "a"]).ok().out.contains(&format!("spare        {spare}"))
    );
    let mut nbd = instance.connect("v");
    shelf.tell(&members[1], Conduct::Gone);
    nbd.write(0, &[1; 65536]).unwrap();
    nbd.flush().unwrap();
    let replaced = format!("drive_replaced {}", members[1]);
    until_found(&instance, "warning", &replaced);
    let (shown, table) =
        (instance.run(&["array", "show", "a", "--json"]).json(), ["array", "show"]);
    assert_eq!(shown["failed_drives"][0]["path"], members[1].as_str());
    assert_eq!(shown["failed_drives"][0]["member"], 1);
    assert_eq!(shown["health"]["state"], "warning");
    let text = instance.run(&["array", "show", "a"]).ok().out;
    assert!(text.contains("spare        none\n") && text.contains("failed drive "), "{text}");
    assert!(instance.run(&table).ok().out.contains("  warning  "));
    assert!(instance.run(&["show"]).ok().out.contains("  warning  "), "the volume on it");
    drop(nbd);
    instance.stop();
    instance.run(&["start"]).ok();
    until_found(&instance, "warning", &replaced);
    let said = instance.run(&["health", "--acknowledge", "a"]).ok().out;
    assert!(
        said.starts_with(&format!("acknowledged: {}, member 1 of a, lost on ", members[1])),
        "{said}"
    );
    until_found(&instance, "ok", "");
    assert_eq!(instance.run(&["health", "--acknowledge"]).ok().out, "nothing to acknowledge\n");
    instance.run(&["health", "--acknowledge", "w"]).refused(1, "no volume or array `w`");
    instance.stop();
    instance.run(&["health", "--acknowledge", "a"]).refused(1, "no daemon");
}

#[test]
fn show_exits_1_for_what_is_degraded_and_a_user_who_replaces_a_member_has_nothing_to_acknowledge() {
    let instance = Instance::new();
    let Some(shelf) = Shelf::mount(&instance) else { return };
    let (members, others) = (shelf.drives("d", 3), shelf.drives("e", 2));
    instance.run(&with(&["create", "a", "--level", "5", "--export", "none"], &members)).ok();
    instance.run(&["create", "-p", "array:a", "v"]).ok();
    instance.run(&["array", "fail", "a", "0"]).ok();
    instance.run(&["array", "show", "a"]).refused(1, "the array a is degraded: drive ");
    instance.run(&["show"]).refused(1, "; `voltier health` says what to do next");
    let shown = instance.run(&["show", "v", "--json"]).shown();
    assert_eq!(shown["health"]["state"], "degraded");
    let reasons = shown["health"]["reasons"].as_array().unwrap();
    let lost = format!("drive {}: member 0 is lost", members[0]);
    assert!(reasons.iter().any(|it| *it == lost.as_str()), "{reasons:?}");
    assert_eq!(instance.run(&["health", "--acknowledge"]).ok().out, "nothing to acknowledge\n");
    instance.run(&["array", "replace", "a", "0", &others[0]]).ok();
    instance.run(&["array", "replace", "a", "1", &others[1]]).ok();
    assert_eq!(health(&instance), ("ok".to_owned(), Vec::new()));
    instance.run(&["array", "show"]).ok();
    instance.run(&["show", "v"]).ok();
}
#[test]
fn errors_of_a_disk_are_a_warning_until_they_are_acknowledged_and_later_ones_are_one_again() {
    let instance = Instance::new();
    let Some(shelf) = Shelf::mount(&instance) else { return };
    let disk = shelf.drive("disk", 32 * MIB);
    instance.run(&["create", "-p", &disk, "v"]).ok();
    instance.export("v");
    let mut nbd = instance.connect("v");
    for _ in 0..2 {
        shelf.tell(&disk, Conduct::RefusesReads(Errno::IO));
        nbd.read(0, 4096).unwrap_err();
        until_found(&instance, "warning", &format!("drive_errors {disk}"));
        instance.run(&["show", "v"]).ok();
        shelf.tell(&disk, Conduct::Serves);
        let said = instance.run(&["health", "--acknowledge", "v"]).ok().out;
        assert!(said.starts_with(&format!("acknowledged: {disk} of v: ")), "{said}");
        until_found(&instance, "ok", "");
    }
    // A start counts from 0, and one error is news again.
    drop(nbd);
    instance.run(&["stop", "v"]).ok();
    instance.run(&["start", "v"]).ok();
    until_found(&instance, "ok", "");
    shelf.tell(&disk, Conduct::RefusesReads(Errno::IO));
    instance.connect("v").read(0, 4096).unwrap_err();
    until_found(&instance, "warning", &format!("drive_errors {disk}"));
}
