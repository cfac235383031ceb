//! SSDs that are pulled while their volumes serve, and put back, through the real binary.

use std::fs;

use crate::support::arrays::client;
use crate::support::ledger::Ledger;
use crate::support::nbd::NbdClient;
use crate::support::shelf::{Conduct, Shelf};
use crate::support::{Answer, Instance, MIB, until};

/// Blocks that clients write: less than the SSD holds.
const BLOCKS: usize = 2000;

/// An instance with a volume `v` before a file, and its SSD on a shelf; the path of the SSD.
fn volume(mode: &str) -> Option<(Instance, Shelf, String)> {
    let instance = Instance::new();
    let shelf = Shelf::mount(&instance)?;
    let (ssd, hdd) = (shelf.drive("ssd", 64 * MIB), instance.drive("hdd", 32 * MIB));
    instance.run(&["create", "-s", &ssd, "-p", &hdd, "-t", mode, "v"]).ok();
    instance.run(&["set", "v", "dirty_high=80", "dirty_low=70"]).ok();
    instance.export("v");
    Some((instance, shelf, ssd))
}

fn has_state(instance: &Instance, state: &str) -> bool {
    instance.show("v")["state"] == state
}

/// Writes until the connection ends, while the SSD is pulled.
fn pull_under_load(instance: &Instance, shelf: &Shelf, ssd: &str, ledger: &mut Ledger) {
    let mut nbd = client(instance);
    ledger.fill(&mut nbd);
    assert!(instance.show("v")["lines"]["dirty"].as_u64().unwrap() > 0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| while ledger.work(&mut nbd, 100) {});
        std::thread::park_timeout(std::time::Duration::from_millis(300));
        shelf.tell(ssd, Conduct::Gone);
        writer.join().unwrap();
    });
}

#[test]
fn an_ssd_that_is_pulled_takes_no_acknowledged_write_with_it_and_is_served_when_it_is_back() {
    let Some((instance, shelf, ssd)) = volume("wb") else { return };
    let mut ledger = Ledger::new(BLOCKS);
    for _ in 0..2 {
        pull_under_load(&instance, &shelf, &ssd, &mut ledger);
        until("v has failed", || has_state(&instance, "failed"));
        let shown = instance.show("v");
        let error = shown["error"].as_str().unwrap();
        assert!(error.contains("bring it back, and the volume is served"), "{shown}");
        assert!(error.contains("--no-flush"), "{shown}");
        assert_eq!(shown["lost_ranges"], 0, "{shown}");
        assert!(NbdClient::connect(&instance.socket("v"), "v").is_err());
        instance.run(&["flush", "v"]).refused(1, "is not served");
        instance.run(&["detach", "v"]).refused(1, "--no-flush");
        let log = fs::read_to_string(instance.state().join("daemon.log")).unwrap();
        assert!(log.contains("is gone and may hold the newest data of"), "{log}");
        shelf.tell(&ssd, Conduct::Serves);
        until("v runs", || has_state(&instance, "running"));
        ledger.check(&instance, "v");
    }
    assert!(ledger.work(&mut client(&instance), 500));
    // The origin alone has everything then.
    instance.run(&["delete", "v"]).ok();
    instance.run(&["create", "-p", "hdd", "v"]).ok();
    instance.export("v");
    ledger.check(&instance, "v");
}

#[test]
fn a_daemon_that_starts_without_the_pulled_ssd_waits_for_it_and_loses_nothing() {
    let ends: [fn(&Instance); 2] = [Instance::stop, Instance::kill];
    for end in ends {
        let Some((instance, shelf, ssd)) = volume("wb") else { return };
        let mut ledger = Ledger::new(BLOCKS);
        pull_under_load(&instance, &shelf, &ssd, &mut ledger);
        end(&instance);
        let mut start = instance.command(&["start"]);
        Answer::from(start.env("VOLTIER_DEVICE_WAIT", "300").output().unwrap()).ok();
        assert_eq!(instance.show("v")["state"], "waiting");
        shelf.tell(&ssd, Conduct::Serves);
        until("v runs", || has_state(&instance, "running"));
        ledger.check(&instance, "v");
    }
}

#[test]
fn the_dirty_lines_of_a_pulled_ssd_are_given_up_only_by_name_and_never_come_back() {
    let Some((instance, shelf, ssd)) = volume("wb") else { return };
    let mut nbd = client(&instance);
    nbd.write(0, &[1; 4096]).unwrap();
    shelf.tell(&ssd, Conduct::Gone);
    assert!(nbd.write(4096, &[2; 4096]).is_err());
    until("v has failed", || has_state(&instance, "failed"));
    instance.run(&["detach", "v", "--no-flush"]).ok();
    until("v runs", || has_state(&instance, "running"));
    let mut nbd = client(&instance);
    assert_eq!(nbd.read(0, 4096).unwrap(), [0; 4096], "as the origin has it");
    nbd.write(0, &[3; 4096]).unwrap();
    drop(nbd);
    shelf.tell(&ssd, Conduct::Serves);
    instance.kill();
    assert_eq!(instance.show("v")["state"], "running");
    assert_eq!(client(&instance).read(0, 4096).unwrap(), [3; 4096]);
    instance.run(&["attach", "v", "-s", &ssd]).refused(1, "-f");
}

#[test]
fn a_clean_cache_is_pulled_without_notice_of_clients_and_is_stale_when_it_is_back() {
    let Some((instance, shelf, ssd)) = volume("wt") else { return };
    let mut nbd = client(&instance);
    let mut ledger = Ledger::filled(BLOCKS, &mut nbd);
    shelf.tell(&ssd, Conduct::Gone);
    assert!(ledger.work(&mut nbd, 2000));
    assert_eq!(ledger.refused, 0);
    assert_eq!(instance.show("v")["state"], "degraded");
    shelf.tell(&ssd, Conduct::Serves);
    for end in [Instance::stop, Instance::kill] {
        drop(nbd);
        end(&instance);
        assert_eq!(instance.show("v")["state"], "degraded", "never trusted again");
        ledger.check(&instance, "v");
        nbd = client(&instance);
        assert!(ledger.work(&mut nbd, 500));
    }
    drop(nbd);
    instance.run(&["detach", "v"]).ok();
    instance.run(&["attach", "v", "-f", "-s", &ssd, "-t", "wb"]).ok();
    ledger.check(&instance, "v");
}
