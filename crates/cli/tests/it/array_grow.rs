//! Arrays that grow, through the real binary: a parity, a copy, or more capacity while clients go on.

use crate::support::arrays::{
    BLOCK_BYTES, MIB, after_start, array, array_volume, client, fill, holds,
};
use crate::support::fio_is_content;

#[test]
fn an_array_grows_from_one_parity_to_three_under_load_and_may_lose_as_many() {
    let (instance, devices) = array_volume(&["5"], 3);
    fill(&mut client(&instance), 16);
    let uri = instance.show("v")["exports"][0]["uri"].as_str().unwrap().to_owned();
    let fio = instance
        .fio_verified(&uri, &["--bsrange=512-128k", "--offset=16M", "--size=24M", "--io_size=96M"]);
    let more = [instance.drive("p1", 32 * MIB), instance.drive("p2", 40 * MIB)];
    let grow = ["array", "grow", "a"];
    let with = |args: &[&str]| instance.run(&[&grow, args].concat());
    let small = instance.drive("small", 16 * MIB);
    with(&["--parity", &small]).refused(1, "a cannot grow: ");
    with(&["--parity", &devices[1]]).refused(1, "already part of array a");
    with(&["--parity", &more[0], &more[1]]).refused(1, "another parity takes 1");
    with(&["--parity", &more[0], &more[0]]).refused(1, "given twice");
    with(&["--member", &more[0]]).refused(1, "--capacity --member DEV");
    instance.run(&["array", "grow", "b", "--parity", &more[0]]).refused(1, "no array `b`");
    let before = array(&instance);
    assert_eq!((&before["level"], &before["may_lose"]), (&"5".into(), &1.into()));
    let shown = with(&["--parity", &more[0], "--json"]).json();
    assert_eq!((&shown["level"], &shown["may_lose"]), (&"6".into(), &2.into()), "{shown}");
    assert_eq!(shown["size_bytes"], before["size_bytes"]);
    let said = with(&["--parity", &more[1]]).ok();
    assert!(said.out.contains("a: grown (level 7.3, 5 members"), "{said:?}");
    fio_is_content(fio);
    holds(&mut client(&instance), 16);
    instance.run(&["array", "fail", "a", "0"]).ok();
    with(&["--parity", &small]).refused(1, "members are missing or being filled");
    instance.run(&["array", "fail", "a", &more[0]]).ok();
    instance.run(&["array", "fail", "a", "2"]).ok();
    holds(&mut client(&instance), 16);
    instance.run(&["array", "fail", "a", "1"]).refused(1, "stays in a");
    instance.kill();
    holds(&mut after_start(&instance), 16);
    let shown = array(&instance);
    assert_eq!((&shown["level"], &shown["may_lose"]), (&"7.3".into(), &0.into()));
    assert_eq!(shown["members"][4]["path"], more[1].as_str());
}

#[test]
fn groups_take_a_parity_each_and_a_mirror_a_copy_and_a_kill_at_once_changes_nothing() {
    let (instance, _) = array_volume(&["50"], 6);
    fill(&mut client(&instance), 17);
    let more: Vec<String> = ["p1", "p2"].map(|name| instance.drive(name, 32 * MIB)).into();
    let grow = ["array", "grow", "a", "--no-wait"];
    instance.run(&[&grow[..], &["--parity", &more[0]]].concat()).refused(1, "takes 2");
    instance.run(&[&grow[..], &["--parity", &more[0], &more[1]]].concat()).ok();
    instance.kill();
    holds(&mut after_start(&instance), 17);
    while array(&instance)["state"] != "running" {}
    let shown = array(&instance);
    assert_eq!((&shown["level"], &shown["may_lose"]), (&"60".into(), &2.into()), "{shown}");
    for lost in [0, 6, 4, 5] {
        instance.run(&["array", "fail", "a", &lost.to_string()]).ok();
    }
    holds(&mut client(&instance), 17);
    let (instance, _) = array_volume(&["1"], 2);
    fill(&mut client(&instance), 18);
    let copy = instance.drive("copy", 32 * MIB);
    let grow = |by| instance.run(&["array", "grow", "a", by, &copy]);
    grow("--parity").refused(1, "`voltier array grow a --member DEV` adds a copy");
    grow("--member").ok();
    for lost in [0, 1] {
        instance.run(&["array", "fail", "a", &lost.to_string()]).ok();
    }
    holds(&mut client(&instance), 18);
}

#[test]
fn members_for_room_come_under_load_and_over_a_kill_and_the_volume_is_larger_after_a_start() {
    let (instance, devices) = array_volume(&["5"], 3);
    fill(&mut client(&instance), 19);
    instance.run(&["array", "set", "a", "rebuild_priority=high"]).ok();
    let uri = instance.show("v")["exports"][0]["uri"].as_str().unwrap().to_owned();
    let fio = instance
        .fio_verified(&uri, &["--bsrange=512-128k", "--offset=16M", "--size=24M", "--io_size=96M"]);
    let more = [instance.drive("r1", 32 * MIB), instance.drive("r2", 40 * MIB)];
    let with = |args: &[&str]| instance.run(&[&["array", "grow", "a"], args].concat());
    let small = instance.drive("small", 16 * MIB);
    with(&["--capacity"]).refused(2, "--member");
    with(&["--capacity", "--parity", &more[0]]).refused(2, "--parity");
    with(&["--capacity", "--member", &small]).refused(1, "a cannot grow: ");
    with(&["--capacity", "--member", &devices[1]]).refused(1, "already part of array a");
    let before = array(&instance);
    assert_eq!(before["reshape"], serde_json::Value::Null);
    let said = with(&["--capacity", "--member", &more[0]]).ok();
    assert!(said.out.contains("a: grown (level 5, 4 members"), "{said:?}");
    assert!(said.out.contains("; volume v has the new size after `voltier stop v`"), "{said:?}");
    let log = std::fs::read_to_string(instance.state().join("daemon.log")).unwrap();
    assert!(log.contains("all data have moved, and its size is"), "{log}");
    fio_is_content(fio);
    holds(&mut client(&instance), 19);
    let after = array(&instance);
    let bytes = |shown: &serde_json::Value| shown["size_bytes"].as_u64().unwrap();
    assert_eq!(bytes(&after) * 2, bytes(&before) * 3);
    assert_eq!((&after["may_lose"], &after["reshape"]), (&1.into(), &serde_json::Value::Null));
    assert_eq!(bytes(&instance.show("v")), bytes(&before), "until the next start");
    let shown = with(&["--capacity", "--member", &more[1], "--no-wait", "--json"]).json();
    let is_moving = shown["reshape"]["to_members"] == 5;
    assert!(is_moving || bytes(&shown) == bytes(&before) * 2, "{shown}");
    instance.kill();
    holds(&mut after_start(&instance), 19);
    while array(&instance)["reshape"] != serde_json::Value::Null {}
    let shown = array(&instance);
    assert_eq!(bytes(&shown), bytes(&before) * 2);
    assert_eq!(shown["members"][4]["path"], more[1].as_str());
    instance.run(&["array", "fail", "a", "0"]).ok();
    holds(&mut client(&instance), 19);
    instance.kill();
    let mut nbd = after_start(&instance);
    holds(&mut nbd, 19);
    let last = bytes(&instance.show("v")) - BLOCK_BYTES as u64;
    assert_eq!(last + BLOCK_BYTES as u64, bytes(&before) * 2, "the volume has it");
    assert_eq!(nbd.read(last, BLOCK_BYTES).unwrap(), [0; BLOCK_BYTES]);
    nbd.write(last, &[7; BLOCK_BYTES]).unwrap();
    assert_eq!(nbd.read(last, BLOCK_BYTES).unwrap(), [7; BLOCK_BYTES]);
}
