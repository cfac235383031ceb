//! Arrays whose members keep checksums, through the real binary.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::support::arrays::{
    MIB, after_start, array, array_volume, client, drives, fill, holds, with,
};
use crate::support::{Instance, until};

#[test]
fn what_cannot_be_rebuilt_is_named_by_its_place_in_the_array_and_the_member_that_lacks_it() {
    let (instance, devices) = array_volume(&["5", "--integrity", "crc32c"], 3);
    let mut nbd = client(&instance);
    let bytes = nbd.size_bytes / MIB * MIB;
    for at in (0..bytes).step_by(MIB as usize) {
        nbd.write(at, &vec![7; MIB as usize]).unwrap();
    }
    nbd.flush().unwrap();
    drop(nbd);
    instance.stop();
    // A block of a member that stays turns over.
    let file = File::options().write(true).open(&devices[0]).unwrap();
    file.write_all_at(&[9; 4096], 20 * MIB).unwrap();
    instance.serve();
    instance.run(&["array", "fail", "a", "1"]).ok();
    let new = instance.drive("new", 32 * MIB);
    let replaced = instance.run(&["array", "replace", "a", "1", &new]);
    assert!(replaced.code == 1 && replaced.err.contains("cannot be rebuilt"), "{replaced:?}");
    let shown = array(&instance);
    let stuck = &shown["rebuild_stuck"][0];
    let (start, length) =
        (stuck["offset_bytes"].as_u64().unwrap(), stuck["length_bytes"].as_u64().unwrap());
    assert_eq!(stuck["members"], serde_json::json!([new]), "{shown}");
    assert!(length > 0 && start + length <= bytes + 4 * MIB, "{shown}");
    let table = instance.run(&["array", "show", "a"]).out;
    let line =
        format!("{length} bytes of the array from byte {start} on cannot be rebuilt on {new}");
    assert!(table.contains(&line), "{table}");
    // What cannot be read is there, and nowhere else. Written again, all is whole.
    let mut nbd = client(&instance);
    let mut unread = Vec::new();
    for at in (0..bytes).step_by(16384) {
        match nbd.read(at, 16384) {
            Ok(found) => assert_eq!(found, [7; 16384], "{at}"),
            Err(_) => unread.push(at),
        }
    }
    assert!(unread.iter().all(|at| (start..start + length).contains(at)), "{unread:?}");
    for at in (start..start + length).step_by(16384) {
        nbd.write(at, &[7; 16384]).unwrap();
    }
    drop(nbd);
    instance.run(&["array", "rebuild", "a"]).ok();
    let shown = array(&instance);
    assert_eq!((&shown["state"], shown.get("rebuild_stuck")), (&"running".into(), None), "{shown}");
}

#[test]
fn what_cannot_be_is_refused_in_one_line_and_nothing_is_made() {
    let instance = Instance::new();
    let devices = drives(&instance, "d", 4);
    let create = |args: &[&str], count: usize| {
        instance.run(&with(&[&["create", "a"], args].concat(), &devices[..count]))
    };
    create(&["--level", "5", "--integrity", "foo"], 3).refused(2, "`foo` is no integrity");
    create(&["--level", "5", "--integrity", "crc32"], 3).refused(2, "crc32c");
    create(&["--level", "5", "--integrity", ""], 3).refused(2, "is no integrity");
    create(&["--level", "0", "--integrity", "crc32c"], 3).refused(2, "no redundancy");
    instance.run(&["array", "show", "a"]).refused(1, "no array `a`");
    // Nothing was written to the drives: no --force is needed.
    create(&["--level", "5", "--integrity", "crc32c"], 3).ok();
    let grow = ["array", "grow", "a", "--capacity", "--member"];
    // Before the drive is looked at.
    instance.run(&[&grow[..], &["/nowhere"]].concat()).refused(1, "cannot be expanded by a member");
    instance.run(&[&grow[..], &[&devices[3]]].concat()).refused(1, "--integrity crc32c");
    assert_eq!(array(&instance)["members"].as_array().unwrap().len(), 3);
}

#[test]
fn checksums_are_off_unless_they_are_asked_for() {
    let (instance, _) = array_volume(&["5"], 3);
    assert_eq!(array(&instance)["integrity"], "none");
    let shown = instance.run(&["array", "show", "a"]).ok();
    assert!(!shown.out.contains("crc32c"), "{shown:?}");
}

#[test]
fn rot_is_found_mended_counted_and_shown_and_the_array_stays_what_it_is_over_starts() {
    let (instance, devices) = array_volume(&["5", "--integrity", "crc32c"], 3);
    assert_eq!(array(&instance)["integrity"], "crc32c");
    fill(&mut client(&instance), 21);
    instance.stop();
    // The second MiB of the data area and what is behind.
    let drive = std::fs::File::options().write(true).open(&devices[1]).unwrap();
    let rot: Vec<u8> = (0..64 * 1024).map(|at| (at * 7) as u8).collect();
    for at in (3 * MIB..8 * MIB).step_by(MIB as usize) {
        drive.write_all_at(&rot, at).unwrap();
    }
    instance.serve();
    holds(&mut after_start(&instance), 21);
    instance.run(&["array", "scrub", "a"]).ok();
    let shown = array(&instance);
    assert_eq!(shown["integrity"], "crc32c");
    let member = &shown["members"][1];
    assert!(member["checksum_errors"].as_u64().unwrap() > 0, "{shown}");
    assert_eq!(member["checksum_errors"], member["checksum_mended"], "{shown}");
    assert_eq!((&member["errors_read"], &member["unprotected_pages"]), (&0.into(), &0.into()));
    let text = instance.run(&["array", "show", "a"]).ok().out;
    assert!(text.contains("checksum errors, ") && text.contains("integrity"), "{text}");
    // Another member may go now: what was mended is right.
    instance.run(&["array", "fail", "a", "0"]).ok();
    holds(&mut client(&instance), 21);
    instance.stop();
    // Another registry learns it from the superblocks.
    let other = Instance::new();
    let members: Vec<&str> = devices[1..].iter().map(String::as_str).collect();
    other.run(&[&["array", "assemble", "--force"], &members[..]].concat()).ok();
    assert_eq!(array(&other)["integrity"], "crc32c");
}

/// One copy of a page of checksums turns over, and blocks that it is for turn over as well: the blocks are
/// compared with the other members, and the page is made anew.
#[test]
fn rot_under_a_damaged_page_of_checksums_is_not_read_but_mended_and_the_log_names_it() {
    // The journal and the checksums take a MiB each. The first page lies behind the list of void pages.
    const PAGE: u64 = 2 * MIB + 8192;
    const DATA: u64 = 3 * MIB;
    for copy in [0, 1] {
        let (instance, devices) = array_volume(&["6", "--integrity", "crc32c"], 4);
        fill(&mut client(&instance), 22);
        instance.stop();
        let drive = std::fs::File::options().write(true).open(&devices[1]).unwrap();
        let rot: Vec<u8> = (0..64 * 1024).map(|at| (at * 11 + 3) as u8).collect();
        drive.write_all_at(&rot[..4096], PAGE + copy * 4096).unwrap();
        for at in (DATA..DATA + 3 * MIB).step_by(128 * 1024) {
            drive.write_all_at(&rot, at).unwrap();
        }
        instance.serve();
        holds(&mut after_start(&instance), 22);
        until("the page is made anew", || array(&instance)["members"][1]["unprotected_pages"] == 0);
        let shown = array(&instance);
        let member = &shown["members"][1];
        assert!(member["checksum_errors"].as_u64().unwrap() > 0, "{shown}");
        assert_eq!(member["checksum_errors"], member["checksum_mended"], "{shown}");
        let log = || std::fs::read_to_string(instance.state().join("daemon.log")).unwrap();
        let says = |words: &str| {
            log().lines().any(|line| line.contains(&devices[1]) && line.contains(words))
        };
        until("the log names the page", || says("for bytes 3145728 to 7274496 cannot be read"));
        until("the log says that it is back", || says("have been rebuilt"));
        // Others may go: all that was under the page is right on the member.
        for other in ["0", "2"] {
            instance.run(&["array", "fail", "a", other]).ok();
        }
        holds(&mut client(&instance), 22);
    }
}
