//! fio verifies what it wrote, at random sizes and alignments, while the volume changes under fio. The
//! test takes both exports, every mode and every policy, with and without a cache.

use crate::support::{Instance, MIB, fio_is_content};
use voltier_control::{Mode, PolicyKind, Word};

/// The large ones first: a fast load may end within its first round.
const LINES: [&str; 6] = ["64K", "2048", "32K", "4096", "16K", "8192"];
/// Random sizes at any 512-byte boundary.
const LOAD: [&str; 7] = [
    "--rw=randrw",
    "--bsrange=512-64k",
    "--blockalign=512",
    "--size=40M",
    "--io_size=64M",
    "--verify=crc32c",
    "--verify_backlog=64",
];

/// Runs the load against one export, and meanwhile every change that can be made.
fn verify_under_changes(instance: &Instance, engine: &[&str]) {
    let ssds = [instance.drive("one", 24 * MIB), instance.drive("two", 32 * MIB)];
    let policies = PolicyKind::names();
    for (turn, policy) in policies.iter().copied().enumerate() {
        let mut fio = instance.fio_with(&[engine, &LOAD[..]].concat());
        let mut round = 0;
        // At least once all the way round, however fast fio is.
        while round == 0 || fio.as_mut().is_some_and(|fio| fio.try_wait().unwrap().is_none()) {
            let ssd = &ssds[round % 2];
            let line = LINES[(2 * turn + round) % LINES.len()];
            instance.run(&["attach", "v", "-s", ssd, "-r", policy, "-t", "wb", "-b", line]).ok();
            for mode in Mode::names() {
                let change = format!("mode={mode}");
                let shown = instance.run(&["set", "v", &change, "--json"]).json();
                assert_eq!((&shown["mode"], &shown["policy"]), (&mode.into(), &policy.into()));
            }
            let next = format!("policy={}", policies[(turn + 1) % policies.len()]);
            instance.run(&["set", "v", "mode=wb", &next]).ok();
            std::thread::park_timeout(std::time::Duration::from_millis(200));
            instance.run(&["detach", "v"]).ok();
            round += 1;
        }
        fio_is_content(fio);
    }
    assert_eq!(instance.show("v")["state"], "running");
}

#[test]
fn fio_verifies_through_nbd_in_all_modes_and_policies_while_caches_come_and_go() {
    let instance = Instance::new();
    let hdd = instance.drive("hdd", 48 * MIB);
    instance.run(&["create", "-p", &hdd, "v"]).ok();
    let uri = format!("--uri={}", instance.export("v"));
    verify_under_changes(&instance, &["--ioengine=nbd", "--iodepth=16", &uri]);
}

#[test]
fn fio_verifies_through_the_fuse_file_in_all_modes_and_policies_while_caches_come_and_go() {
    let instance = Instance::new();
    let hdd = instance.drive("hdd", 48 * MIB);
    instance.run(&["create", "-p", &hdd, "v"]).ok();
    let file = instance.path("file");
    if !instance.export_file("v", file.to_str().unwrap()) {
        return;
    }
    let name = format!("--filename={}", file.display());
    verify_under_changes(&instance, &["--ioengine=psync", "--allow_file_create=0", &name]);
    instance.run(&["delete", "v"]).ok();
    assert!(!file.exists());
}

#[test]
fn each_mode_and_policy_keeps_what_fio_wrote_over_a_restart() {
    // As many lives as the longest list has entries: each entry is in one.
    let (modes, policies) = (Mode::names(), PolicyKind::names());
    for number in 0..modes.len().max(policies.len()).max(LINES.len()) {
        let (mode, policy) = (modes[number % modes.len()], policies[number % policies.len()]);
        let line = LINES[number % LINES.len()];
        let instance = Instance::new();
        let (ssd, hdd) = (instance.drive("ssd", 24 * MIB), instance.drive("hdd", 48 * MIB));
        let kind = ["-t", mode, "-r", policy, "-b", line, "v"];
        instance.run(&[&["create", "-s", &ssd, "-p", &hdd][..], &kind].concat()).ok();
        let uri = format!("--uri={}", instance.export("v"));
        let export = ["--ioengine=nbd", "--iodepth=16", &uri];
        let load = [
            "--rw=randwrite",
            "--bsrange=512-32k",
            "--blockalign=512",
            "--size=40M",
            "--io_size=24M",
            "--verify=crc32c",
        ];
        fio_is_content(instance.fio_with(&[&export[..], &load, &["--do_verify=0"]].concat()));
        instance.stop();
        instance.serve();
        fio_is_content(instance.fio_with(&[&export[..], &load, &["--verify_only=1"]].concat()));
        instance.run(&["delete", "v"]).ok();
    }
}
