//! Small writes that wait for each other, through the real binary.

use crate::support;

use crate::support::arrays::{
    after_start, array, array_called, array_volume, drives, fill, holds, with,
};
use crate::support::{Instance, fio_is_content};
use serde_json::Value;

/// 16 writes of 4 KiB at once, one behind the other, read back by fio.
const STREAM: [&str; 5] =
    ["--rw=write", "--bs=4k", "--iodepth=16", "--verify=crc32c", "--size=16M"];

fn count(shown: &Value, name: &str) -> u64 {
    shown["counts"][name].as_u64().unwrap()
}

#[test]
fn a_stream_of_small_writes_becomes_whole_stripes_unless_it_is_told_not_to() {
    let (instance, _) = array_volume(&["6"], 6);
    let uri = instance.show("v")["exports"][0]["uri"].as_str().unwrap().to_owned();
    let set = |set: &[&str]| instance.run(&[&["array", "set", "a"], set].concat()).ok();
    let stream = || {
        let fio = instance.fio(&uri, &STREAM);
        let is_there = fio.is_some();
        fio_is_content(fio);
        is_there.then(|| array(&instance))
    };
    assert_eq!(array(&instance)["merge"]["mode"], "adaptive");
    let Some(adaptive) = stream() else { return };
    assert!(count(&adaptive, "merged_writes") > 0, "{adaptive}");
    assert!(count(&adaptive, "merges") < count(&adaptive, "merged_writes"), "{adaptive}");
    // All 16 writes of a stripe are under way at once: none waits in vain, unless fio does.
    set(&["merge=always", "merge_wait=100ms", "merge_max=100ms"]);
    let merged = stream().expect("fio is there");
    let whole = count(&merged, "full_stripe_writes") - count(&adaptive, "full_stripe_writes");
    assert!(whole > 200, "{whole} of 256 stripes");
    set(&["merge=off"]);
    let apart = stream().expect("fio is there");
    for name in ["held_writes", "held_us", "merged_writes", "merges", "full_stripe_writes"] {
        assert_eq!(count(&apart, name), count(&merged, name), "{name}");
    }
}

#[test]
fn how_small_writes_wait_is_set_shown_and_there_after_a_kill() {
    let (instance, _) = array_volume(&["5"], 4);
    let set = ["array", "set", "a", "merge=always", "merge_wait=2ms", "merge_max=30ms"];
    instance.run(&set).ok();
    fill(&mut support::arrays::client(&instance), 1);
    let shown = array(&instance);
    assert!(count(&shown, "held_us") >= 2000 * count(&shown, "held_writes"), "{shown}");
    let text = instance.run(&["array", "show", "a"]).ok().out;
    let waits = "always (waits 2ms for the next, 30ms at most); ";
    assert!(text.contains(waits) && text.contains("waited, "), "{text}");
    instance.kill();
    holds(&mut after_start(&instance), 1);
    let shown = array(&instance);
    let expected = serde_json::json!({"mode": "always", "wait_us": 2000, "max_us": 30_000});
    assert_eq!(shown["merge"], expected);
}

#[test]
fn what_cannot_be_merged_is_refused_and_nothing_is_changed() {
    let instance = Instance::new();
    let devices = drives(&instance, "d", 2);
    instance.run(&with(&["create", "m", "--level", "1"], &devices)).ok();
    let before = array_called(&instance, "m");
    assert_eq!(before["merge"]["mode"], "off");
    instance.run(&["array", "set", "m", "merge=always"]).refused(1, "only levels with parity");
    let both = ["array", "set", "m", "rebuild_priority=high", "merge_wait=1ms"];
    instance.run(&both).refused(1, "only levels with parity");
    for (wrong, words) in [
        ("merge=on", "known: off, adaptive, always"),
        ("merge=allways", "did you mean `always`"),
        ("merge_wait=5", "1us to 100ms"),
        ("merge_max=1s", "1us to 100ms"),
        ("merge_wiat=5us", "did you mean `merge_wait`"),
    ] {
        instance.run(&["array", "set", "m", wrong]).refused(2, words);
    }
    let after = array_called(&instance, "m");
    assert_eq!((&after["merge"], &after["rebuild"]), (&before["merge"], &before["rebuild"]));
}
