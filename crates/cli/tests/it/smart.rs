//! What drives say of themselves, through the real binary: a program in the place of `smartctl` speaks for the drive
//! that the files of the tests lie on.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde_json::{Value, json};

use crate::support::arrays::with;
use crate::support::{Instance, MIB, until};

/// Notes who asks, and answers with a file; hangs, with a program of its own, while there is a file `hang`.
const SMARTCTL: &str = "#!/bin/sh
echo $$ $* >>asked
if test -e hang; then sleep 600 & wait; fi
cat answer
";

/// A world in which `smartctl` says what a file does. `None` where the files of tests lie on no drive that the kernel
/// shows.
fn world() -> Option<Instance> {
    let instance = Instance::new();
    let number = instance.path("").metadata().unwrap().dev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let dir = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    let disk = dir.canonicalize().ok()?;
    let disk = if disk.join("partition").exists() { disk.parent()?.to_owned() } else { disk };
    if !disk.join("device").exists() {
        eprintln!("the files of the tests lie on no drive: left out");
        return None;
    }
    let folder = instance.path("bin");
    fs::create_dir(&folder).unwrap();
    let program = folder.join("smartctl");
    let script = SMARTCTL.replace("asked", instance.path("asked").to_str().unwrap());
    let script = script.replace("-e hang", &format!("-e {}", instance.path("hang").display()));
    let script =
        script.replace("cat answer", &format!("cat {}", instance.path("answer").display()));
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    Some(instance.with_variable("PATH", &path).with_variable("VOLTIER_SMART", "1s"))
}

/// As smartctl 7.3 prints it of a SATA SSD.
fn sata(passed: bool, pending: u64) -> Value {
    let attribute = |id: u64, name: &str, value: u64, raw: u64| {
        json!({ "id": id, "name": name, "value": value, "worst": value, "thresh": 0, "when_failed": "",
            "raw": { "value": raw, "string": raw.to_string() } })
    };
    json!({
        "json_format_version": [1, 0], "smartctl": { "version": [7, 3], "exit_status": 0 },
        "device": { "name": "/dev/sda", "type": "sat", "protocol": "ATA" },
        "model_name": "Fast Drive", "serial_number": "S1", "firmware_version": "F1",
        "smart_status": { "passed": passed },
        "ata_smart_attributes": { "revision": 1, "table": [
            attribute(177, "Wear_Leveling_Count", 93, 84),
            attribute(187, "Reported_Uncorrect", 100, 0),
            attribute(197, "Current_Pending_Sector", 100, pending),
        ] },
        "power_on_time": { "hours": 9120 }, "temperature": { "current": 31 }
    })
}

fn says(instance: &Instance, what: &[u8]) {
    let (new, file) = (instance.path("answer.new"), instance.path("answer"));
    fs::write(&new, what).unwrap();
    fs::rename(new, file).unwrap();
}

fn says_json(instance: &Instance, what: &Value) {
    says(instance, &serde_json::to_vec(what).unwrap());
}

/// The lines of the program: who asked, and how.
fn asked(instance: &Instance) -> Vec<String> {
    let text = fs::read_to_string(instance.path("asked")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn conditions(instance: &Instance) -> Vec<String> {
    let health = instance.run(&["health", "--json"]).shown();
    let checks = health["checks"].as_array().unwrap();
    checks.iter().filter_map(|it| Some(it["condition"].as_str()?.to_owned())).collect()
}

/// The drive below the disk of the volume.
fn drive(instance: &Instance) -> Value {
    instance.run(&["show", "v", "--json"]).shown()["hdd"]["smart"][0].clone()
}

#[test]
fn show_health_and_events_have_what_a_drive_says() {
    let Some(instance) = world() else { return };
    says_json(&instance, &sata(true, 0));
    let (ssd, disk) = (instance.drive("ssd", 32 * MIB), instance.drive("disk", 64 * MIB));
    instance.run(&["create", "-p", &disk, "-s", &ssd, "v"]).ok();
    let all: Vec<String> =
        ["m0", "m1", "m2", "spare"].map(|it| instance.drive(it, 32 * MIB)).to_vec();
    let (spare, members) = all.split_last().unwrap();
    instance.run(&with(&["create", "a", "--level", "5", "--export", "none"], members)).ok();
    instance.run(&["array", "add-spare", "a", spare]).ok();
    until("the drive is heard", || !drive(&instance).is_null());
    let shown = instance.run(&["show", "v", "--json"]).json();
    let said = &shown["ssd"]["smart"][0];
    let of = |name: &str| said[name].clone();
    assert_eq!(
        json!([of("protocol"), of("model"), of("serial"), of("firmware"), of("passed")]),
        json!(["ata", "Fast Drive", "S1", "F1", true])
    );
    assert_eq!(
        json!([of("percentage_used"), of("temperature_celsius"), of("pending_sectors")]),
        json!([7, 31, 0])
    );
    assert_eq!((of("media_errors"), of("bytes_written")), (json!(0), Value::Null));
    assert_eq!(of("time"), shown["hdd"]["smart"][0]["time"], "it is one drive, and read once");
    let text = instance.run(&["show", "v"]).ok().out;
    for line in ["SSD health   ok, 7 % used, 31 °C, no media errors, read ", "disk health  ok, "] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // New devices are heard of soon, and members and spares have the drive below them.
    until("the spare is heard", || {
        let array = instance.run(&["array", "show", "a", "--json"]).shown();
        array["spares_smart"][0]["smart"][0]["passed"] == true
            && array["members"][2]["smart"][0]["passed"] == true
    });
    let text = instance.run(&["array", "show", "a"]).ok().out;
    assert_eq!(text.matches("\n  health     ok, 7 % used").count(), 4, "{text}");
    assert_eq!(conditions(&instance), [""; 0]);
    assert!(asked(&instance).iter().all(|it| it.contains("--json -n standby")));

    says_json(&instance, &sata(false, 8));
    until("it fails", || conditions(&instance).contains(&"smart_failed".to_owned()));
    assert!(conditions(&instance).contains(&"smart_pending".to_owned()));
    let answer = instance.run(&["health", "v"]);
    assert_eq!(answer.code, 2, "{answer:?}");
    assert!(answer.out.contains("says that it fails: its SMART status"), "{answer:?}");
    until("an event", || instance.run(&["events"]).ok().out.contains("says that it fails"));
    says_json(&instance, &sata(true, 0));
    until("it is well again", || conditions(&instance).is_empty());
    until("the end is an event", || instance.run(&["events"]).ok().out.contains("over: /dev/"));
}

#[test]
fn a_program_that_prints_rubbish_or_nothing_or_without_end_is_harmless() {
    let Some(instance) = world() else { return };
    says_json(&instance, &sata(true, 0));
    let disk = instance.drive("disk", 64 * MIB);
    instance.run(&["create", "-p", &disk, "v"]).ok();
    until("the drive is heard", || !drive(&instance).is_null());
    let whole = serde_json::to_vec(&sata(false, 9)).unwrap();
    let half = &whole[..whole.len() / 2];
    for rubbish in [half, b"", b"\xff\x00{{{", b"[]", &vec![b'x'; 3 << 20]] {
        says(&instance, rubbish);
        let before = asked(&instance).len();
        until("it was asked again", || asked(&instance).len() > before + 1);
        let said = drive(&instance);
        assert_eq!((&said["passed"], &said["percentage_used"]), (&json!(true), &json!(7)));
        assert_eq!(conditions(&instance), [""; 0]);
    }
    says_json(&instance, &sata(false, 9));
    until("it is heard again", || drive(&instance)["passed"] == false);
    instance.run(&["delete", "v"]).ok();
}

#[test]
fn a_program_that_hangs_keeps_nobody_and_its_drive_is_not_asked_twice() {
    let Some(instance) = world() else { return };
    says_json(&instance, &sata(true, 0));
    let disk = instance.drive("disk", 64 * MIB);
    instance.run(&["create", "-p", &disk, "v"]).ok();
    until("the drive is heard", || !drive(&instance).is_null());
    fs::write(instance.path("hang"), "").unwrap();
    // One that has begun before ends; the next one hangs.
    until("what was read grows old", || drive(&instance)["age_seconds"].as_u64() >= Some(3));
    let before = asked(&instance);
    instance.export("v");
    let mut nbd = instance.connect("v");
    nbd.write(0, &[1; 4096]).unwrap();
    until("it is older", || drive(&instance)["age_seconds"].as_u64() >= Some(6));
    assert_eq!(asked(&instance), before, "it was asked twice");
    assert_eq!(drive(&instance)["passed"], true);
    assert_eq!(conditions(&instance), [""; 0]);
    nbd.flush().unwrap();
    drop(nbd);
    instance.stop();
    let pid = before.last().unwrap().split(' ').next().unwrap().to_owned();
    until("the program is ended with the daemon", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(true, |it| it.contains(") Z "))
    });
}

#[test]
fn the_interval_is_a_time_or_off() {
    let instance = Instance::new();
    for wrong in ["soon", "0s", "5", "2d"] {
        instance.run(&["daemon", "--smart", wrong]).refused(2, "write a time from 1s to 1d");
    }
    assert!(instance.run(&["daemon", "--help"]).ok().out.contains("--smart <INTERVAL|off>"));
}
