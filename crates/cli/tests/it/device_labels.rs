//! Drives with labels of more than one use, and copies of drives, through the real binary: none of them is
//! taken for what it was.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::support::arrays::{MIB, array, array_volume, client, drives, export, fill, holds, with};
use crate::support::{Answer, Instance};

const DRIVE: u64 = 32 * MIB;
const BLOCK: usize = 4096;

fn read_at(path: &str, at: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    File::open(path).unwrap().read_exact_at(&mut block, at).unwrap();
    block
}

fn write_at(path: &str, at: u64, bytes: &[u8]) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

/// The label at the end of a drive.
fn end_label(path: &str) -> Vec<u8> {
    read_at(path, DRIVE - BLOCK as u64)
}

/// Puts an end label back, as an older program left it.
fn put_end_label(path: &str, label: &[u8]) {
    write_at(path, DRIVE - BLOCK as u64, label);
}

/// The volume `v` and the array `a` are forgotten, and the drives keep what they hold.
fn forget(instance: &Instance) {
    instance.run(&["delete", "v"]).ok();
    instance.run(&["array", "delete", "a"]).ok();
}

/// A RAID 6 of four, full of a pattern, that nobody knows any more.
fn forgotten() -> (Instance, Vec<String>) {
    let (instance, devices) = array_volume(&["6"], 4);
    fill(&mut client(&instance), 1);
    forget(&instance);
    (instance, devices)
}

/// Makes a drive the SSD of a write-back volume `w`, with dirty lines all over it.
fn use_as_ssd(instance: &Instance, ssd: &str) -> String {
    let disk = instance.drive("disk", 64 * MIB);
    instance.run(&["create", "-f", "-s", ssd, "-p", &disk, "-t", "wb", "w"]).ok();
    write_dirty(instance);
    disk
}

/// Exports `w`, which may be exported already.
fn export_again(instance: &Instance) {
    instance.run(&["export", "w", "--nbd"]);
}

fn write_dirty(instance: &Instance) {
    let mut nbd = instance.exported("w");
    (0..16).for_each(|at| nbd.write(at * MIB, &vec![2; MIB as usize]).unwrap());
    nbd.flush().unwrap();
}

#[track_caller]
fn dirty_is_there(instance: &Instance) {
    export_again(instance);
    let mut nbd = instance.connect("w");
    (0..16).for_each(|at| {
        assert_eq!(nbd.read(at * MIB, MIB as usize).unwrap(), vec![2; MIB as usize])
    });
}

/// The array serves without one drive, which is named with a reason.
#[track_caller]
fn serves_without(instance: &Instance, device: &str, reason: &str) {
    let shown = array(instance);
    assert_eq!(shown["state"], "degraded", "{shown}");
    let left_out = shown["left_out"].as_array().unwrap();
    let is_named = |line: &serde_json::Value| {
        line.as_str().is_some_and(|line| line.contains(device) && line.contains(reason))
    };
    assert!(left_out.iter().any(is_named), "{device}, {reason}: {shown}");
}

fn assemble(instance: &Instance, devices: &[String]) -> Answer {
    instance.run(&with(&["assemble"], devices))
}

#[test]
fn a_member_that_was_an_ssd_since_is_left_out_by_name_whoever_left_its_end_label() {
    for is_old_program in [false, true] {
        let (instance, devices) = forgotten();
        let label = end_label(&devices[0]);
        use_as_ssd(&instance, &devices[0]);
        assert!(!end_label(&devices[0]).starts_with(b"VOLTARRY"));
        instance.run(&["delete", "w"]).ok();
        if is_old_program {
            put_end_label(&devices[0], &label);
            let answer = assemble(&instance, &devices).ok();
            assert!(answer.err.contains(&devices[0]), "{answer:?}");
            serves_without(&instance, &devices[0], "its labels disagree: it begins with zeroes");
        } else {
            // Nothing on it says that it ever was a member.
            assemble(&instance, &devices).refused(1, "is not a member of an array; leave it out");
            assemble(&instance, &devices[1..]).ok();
            assert_eq!(array(&instance)["state"], "degraded");
        }
        export(&instance);
        holds(&mut client(&instance), 1);
        // It becomes a member again when its user says that its content can go.
        instance.run(&["array", "replace", "a", "0", &devices[0], "-f"]).ok();
        assert_eq!(array(&instance)["state"], "running");
        holds(&mut client(&instance), 1);
    }
}

#[test]
fn a_member_that_an_attach_made_an_ssd_is_left_out_at_the_next_start() {
    let (instance, devices) = array_volume(&["6"], 4);
    fill(&mut client(&instance), 1);
    instance.stop();
    let label = end_label(&devices[0]);
    // By another state folder, which knows nothing of the array.
    let other = Instance::new();
    let disk = other.drive("disk", 64 * MIB);
    other.run(&["create", "-p", &disk, "w"]).ok();
    other.run(&["attach", "w", "-f", "-s", &devices[0], "-t", "wb"]).ok();
    write_dirty(&other);
    put_end_label(&devices[0], &label);
    // While it is the SSD, and when it is no more.
    for is_detached in [false, true] {
        if is_detached {
            other.run(&["start"]).ok();
            other.run(&["detach", "w"]).ok();
            put_end_label(&devices[0], &label);
        }
        other.stop();
        instance.run(&["start"]).ok();
        let reason = match is_detached {
            false => "it begins as the SSD of a cache",
            true => "it begins with zeroes",
        };
        serves_without(&instance, &devices[0], reason);
        holds(&mut client(&instance), 1);
        instance.stop();
    }
    other.run(&["start"]).ok();
    dirty_is_there(&other);
}

#[test]
fn an_import_takes_a_former_member_with_dirty_lines_for_the_ssd_that_it_is() {
    let (instance, devices) = forgotten();
    let label = end_label(&devices[0]);
    let disk = use_as_ssd(&instance, &devices[0]);
    instance.stop();
    put_end_label(&devices[0], &label);
    fs::remove_dir_all(instance.state()).unwrap();
    let given: Vec<&str> = devices.iter().map(String::as_str).chain([&*disk]).collect();
    let answer = instance.run(&[&["import"], &given[..]].concat()).ok();
    assert!(answer.out.contains("w: imported"), "{answer:?}");
    dirty_is_there(&instance);
    assert_eq!(array(&instance)["state"], "degraded");
    export(&instance);
    holds(&mut client(&instance), 1);
}

#[test]
fn a_former_ssd_is_not_found_again_behind_the_label_of_a_journal_a_spare_or_a_file_system() {
    let instance = Instance::new();
    let devices = drives(&instance, "d", 4);
    let [ssd, journal] = ["ssd", "other"].map(|name| instance.drive(name, DRIVE));
    let disk = use_as_ssd(&instance, &ssd);
    instance.stop();
    let second = read_at(&ssd, 65536);
    assert!(second.starts_with(b"VOLTIERC"));
    fs::remove_dir_all(instance.state()).unwrap();
    instance.run(&with(&["create", "a", "--level", "6"], &devices)).ok();
    instance.run(&["array", "set", "a", "-f", &format!("journal={ssd}")]).ok();
    assert!(!read_at(&ssd, 65536).starts_with(b"VOLTIERC"), "the label of the cache has gone");
    // As an older program left it. It is no cache any more, and a journal it is.
    write_at(&ssd, 65536, &second);
    instance.kill();
    assert_eq!(array(&instance)["journal_device"]["state"], "online");
    instance.run(&["array", "set", "a", &format!("journal={journal}")]).ok();
    assert_eq!(read_at(&ssd, 65536), [0; BLOCK]);
    instance.run(&["array", "add-spare", "a", "-f", &ssd]).ok();
    write_at(&ssd, 65536, &second);
    instance.run(&["array", "delete", "a", "--erase"]).ok();
    assert_eq!(read_at(&ssd, 65536), [0; BLOCK]);
    // A file system that leaves the second label where it is.
    write_at(&ssd, 65536, &second);
    write_at(&ssd, 0, &[b"XFSB".as_slice(), &[7; BLOCK - 4]].concat());
    let before = fs::read(&ssd).unwrap();
    instance.run(&["import", &ssd, &disk]).refused(1, "its second label is that of the cache");
    assert!(fs::read(&ssd).unwrap() == before, "nothing was written");
}

#[test]
fn a_journal_that_was_used_for_something_else_is_left_out_by_name() {
    let instance = Instance::new();
    let devices = drives(&instance, "d", 4);
    let journal = instance.drive("journal", DRIVE);
    instance.run(&with(&["create", "a", "--level", "6", "--journal", &journal], &devices)).ok();
    export(&instance);
    fill(&mut client(&instance), 1);
    instance.stop();
    let label = end_label(&journal);
    assert!(label.starts_with(b"VOLTJRNL"));
    let other = Instance::new();
    use_as_ssd(&other, &journal);
    other.run(&["delete", "w"]).ok();
    assert_eq!(end_label(&journal), [0; BLOCK]);
    put_end_label(&journal, &label);
    instance.run(&["start"]).ok();
    let said = array(&instance)["left_out"].to_string();
    assert!(said.contains(&journal) && said.contains("its labels disagree"), "{said}");
    holds(&mut client(&instance), 1);
}

#[test]
fn a_member_is_left_out_whose_start_has_a_file_system_or_an_old_copy_and_kept_if_one_label_is_gone()
{
    let old = [0xee; BLOCK];
    let xfs = [b"XFSB".as_slice(), &[7; BLOCK - 4]].concat();
    let cases: [(&[u8], Option<&str>); 3] = [
        (&[0; BLOCK], None),
        (&xfs, Some("it begins with other content")),
        (&old, Some("it begins with other content")),
    ];
    for (start, reason) in cases {
        let (instance, devices) = array_volume(&["6"], 4);
        fill(&mut client(&instance), 1);
        instance.stop();
        write_at(&devices[2], 0, start);
        instance.run(&["start"]).ok();
        match reason {
            Some(reason) => serves_without(&instance, &devices[2], reason),
            None => {
                assert_eq!(array(&instance)["state"], "running");
                let log = fs::read_to_string(instance.state().join("daemon.log")).unwrap();
                let line = format!("one copy of the label of {} was missing", devices[2]);
                assert!(log.contains(&line), "{log}");
                assert!(read_at(&devices[2], 0).starts_with(b"VOLTARRY"), "it is written anew");
            }
        }
        holds(&mut client(&instance), 1);
    }
}

#[test]
fn a_member_is_left_out_to_which_the_start_of_an_old_copy_was_put_back() {
    let (instance, devices) = array_volume(&["6"], 4);
    instance.stop();
    let copy = fs::read(&devices[1]).unwrap();
    for seed in [1, 2] {
        instance.run(&["start"]).ok();
        fill(&mut client(&instance), seed);
        instance.stop();
    }
    // A restoration that was broken off.
    write_at(&devices[1], 0, &copy[..16 << 20]);
    instance.run(&["start"]).ok();
    serves_without(
        &instance,
        &devices[1],
        "its labels disagree: it begins as member 1 of the array a",
    );
    holds(&mut client(&instance), 2);
}

#[test]
fn a_copy_of_a_member_that_is_put_back_after_a_stop_is_left_out() {
    let (instance, devices) = array_volume(&["6"], 4);
    fill(&mut client(&instance), 1);
    let copy = fs::read(&devices[0]).unwrap();
    fill(&mut client(&instance), 2);
    instance.stop();
    fs::write(&devices[0], &copy).unwrap();
    instance.run(&["start"]).ok();
    serves_without(&instance, &devices[0], "its data are old");
    holds(&mut client(&instance), 2);
    // It does not return with what changed since the start: it lacks more.
    instance.run(&["array", "replace", "a", "0", &devices[0]]).ok();
    assert_eq!(array(&instance)["state"], "running");
    holds(&mut client(&instance), 2);
    for device in &devices[1..3] {
        instance.run(&["array", "fail", "a", device]).ok();
    }
    holds(&mut client(&instance), 2);
}

#[test]
fn a_copy_of_a_stopped_member_that_is_put_back_after_a_crash_is_left_out() {
    let (instance, devices) = array_volume(&["6"], 4);
    fill(&mut client(&instance), 1);
    instance.stop();
    let copy = fs::read(&devices[0]).unwrap();
    instance.run(&["start"]).ok();
    fill(&mut client(&instance), 2);
    instance.kill();
    fs::write(&devices[0], &copy).unwrap();
    instance.run(&["start"]).ok();
    serves_without(&instance, &devices[0], "its data are old");
    holds(&mut client(&instance), 2);
}

#[test]
fn a_copy_of_one_half_of_a_mirror_does_not_serve_alone_after_a_stop() {
    let (instance, devices) = array_volume(&["1"], 2);
    fill(&mut client(&instance), 1);
    let copy = fs::read(&devices[0]).unwrap();
    fill(&mut client(&instance), 2);
    instance.stop();
    let newest = fs::read(&devices[0]).unwrap();
    fs::write(&devices[0], &copy).unwrap();
    fs::rename(&devices[1], instance.aside("half")).unwrap();
    let shown = array(&instance);
    assert_eq!(shown["state"], "failed", "{shown}");
    assert!(shown["error"].to_string().contains("may have been used without these"), "{shown}");
    instance.stop();
    fs::write(&devices[0], &newest).unwrap();
    instance.run(&["start"]).ok();
    assert_eq!(
        array(&instance)["state"],
        "degraded",
        "half of a mirror that knows all events serves"
    );
    holds(&mut client(&instance), 2);
}

#[test]
fn a_copy_of_a_journal_that_is_put_back_after_a_stop_is_left_out() {
    let instance = Instance::new();
    let devices = drives(&instance, "d", 4);
    let journal = instance.drive("journal", DRIVE);
    instance.run(&with(&["create", "a", "--level", "6", "--journal", &journal], &devices)).ok();
    export(&instance);
    fill(&mut client(&instance), 1);
    let copy = fs::read(&journal).unwrap();
    fill(&mut client(&instance), 2);
    instance.stop();
    fs::write(&journal, &copy).unwrap();
    instance.run(&["start"]).ok();
    let said = array(&instance)["left_out"].to_string();
    assert!(said.contains(&journal) && said.contains("so its data are old"), "{said}");
    holds(&mut client(&instance), 2);
}

/// A write-back volume `w` with a pattern all over it, and the SSD as it was a pattern before.
fn volume_with_copies() -> (Instance, [String; 2], [Vec<u8>; 2]) {
    let instance = Instance::new();
    let ssd = instance.drive("ssd", DRIVE);
    let disk = use_as_ssd(&instance, &ssd);
    instance.run(&["flush", "w"]).ok();
    let copies = [&ssd, &disk].map(|drive| fs::read(drive).unwrap());
    let mut nbd = instance.connect("w");
    (0..16).for_each(|at| nbd.write(at * MIB, &vec![3; MIB as usize]).unwrap());
    nbd.flush().unwrap();
    (instance, [ssd, disk], copies)
}

#[test]
fn a_copy_of_an_ssd_that_is_put_back_after_a_stop_is_refused() {
    let (instance, [ssd, disk], [old_ssd, _]) = volume_with_copies();
    instance.stop();
    let newest = fs::read(&ssd).unwrap();
    let on_disk = fs::read(&disk).unwrap();
    fs::write(&ssd, &old_ssd).unwrap();
    let shown = instance.show("w");
    assert_eq!(shown["state"], "failed", "{shown}");
    assert!(shown.to_string().contains("as it was before it was stopped"), "{shown}");
    instance.stop();
    assert!(fs::read(&disk).unwrap() == on_disk && fs::read(&ssd).unwrap() == old_ssd);
    fs::write(&ssd, &newest).unwrap();
    assert_eq!(instance.show("w")["state"], "running");
    export_again(&instance);
    let mut nbd = instance.connect("w");
    (0..16)
        .for_each(|at| assert!(nbd.read(at * MIB, MIB as usize).unwrap() == vec![3; MIB as usize]));
}

#[test]
fn a_copy_of_the_backing_disk_that_is_put_back_after_a_stop_is_refused() {
    let (instance, [_, disk], [_, old_disk]) = volume_with_copies();
    instance.run(&["flush", "w"]).ok();
    let mut nbd = instance.connect("w");
    nbd.write(20 * MIB, &[4; BLOCK]).unwrap();
    nbd.flush().unwrap();
    drop(nbd);
    instance.stop();
    let newest = fs::read(&disk).unwrap();
    fs::write(&disk, &old_disk).unwrap();
    let shown = instance.show("w");
    assert_eq!(shown["state"], "failed", "{shown}");
    assert!(shown.to_string().contains("the backing disk was changed"), "{shown}");
    instance.stop();
    assert!(fs::read(&disk).unwrap() == old_disk, "nothing was written");
    fs::write(&disk, &newest).unwrap();
    assert_eq!(instance.show("w")["state"], "running");
}
