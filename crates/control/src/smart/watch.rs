//! Asks each drive for its health, now and then.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use super::book::{Asking, Book};
use super::said::Smart;
use super::{nvme, program, smartctl};
use crate::date::Date;
use crate::events::pace::now;
use crate::events::run;
use crate::safety::{Machine, PhysicalDrive, drives_below};

/// How often it is looked whether there are new devices.
const STEP: Duration = Duration::from_secs(2);
/// How long the others wait for a drive that is asked: one after the other they disturb nobody.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a program may ask a drive.
const LIMIT: Duration = Duration::from_secs(30);
/// How long the end of the daemon waits for programs that it kills.
const END_WAIT: Duration = Duration::from_secs(1);
const END_STEP: Duration = Duration::from_millis(10);
/// What the shell says of a program that is not there.
const NO_PROGRAM: i32 = 127;

/// Asks all drives every so often, and those of new devices soon, until the daemon ends. `devices` are the paths of
/// all devices, by the names that `show` has for them.
pub(crate) fn watch(
    book: &Arc<Book>,
    machine: &Machine,
    devices: impl Fn() -> BTreeMap<String, PathBuf>,
    interval: Duration,
) {
    let mut due = now();
    while !book.ends() {
        // The devices are opened first; and a look costs little.
        thread::park_timeout(STEP.min(interval));
        let is_due = now() >= due;
        if is_due {
            due = now() + interval;
        }
        round(book, machine, &devices(), is_due);
    }
}

/// Asks nobody any more, and waits a little until the programs that ask are ended: they would outlive the daemon.
pub(crate) fn end(book: &Book) {
    book.end();
    let until = now() + END_WAIT;
    while book.is_asking() && now() < until {
        thread::park_timeout(END_STEP);
    }
}

/// One round: of all drives, or of those of new devices.
fn round(book: &Arc<Book>, machine: &Machine, devices: &BTreeMap<String, PathBuf>, all: bool) {
    book.keep(&devices.keys().cloned().collect());
    for (device, path) in devices {
        // A path that does not answer, or leads nowhere now, is tried again.
        if (all || !book.knows(device))
            && let Some(drives) = drives_below(machine, path)
        {
            book.note_below(device, drives);
        }
    }
    for drive in book.drives(!all) {
        let Some(asking) = book.ask(&drive) else { continue };
        let (end, ended) = mpsc::channel::<()>();
        let own = Arc::clone(book);
        let body = move || {
            ask(&own, &asking);
            drop((asking, end));
        };
        if thread::Builder::new().name("drive".into()).spawn(body).is_ok() {
            let _ = ended.recv_timeout(PATIENCE);
        }
    }
}

fn ask(book: &Book, asking: &Asking) {
    let drive = &asking.drive;
    let said = match is_nvme(drive) {
        // smartctl knows more ways than the one of the standard.
        true => ask_nvme(book, drive).or_else(|why| ask_smartctl(book, drive).map_err(|_| why)),
        false => ask_smartctl(book, drive),
    };
    match said {
        Ok(smart) => {
            let (drive_node, time) = (drive.node.display().to_string(), Date::now());
            book.note(drive, Smart { drive: drive_node, time, ..smart });
        }
        Err(why) => {
            if book.note_mute(drive, &why) && !book.ends() {
                tracing::info!("nothing is known of the health of {}: {why}", drive.node.display());
            }
        }
    }
}

fn is_nvme(drive: &PhysicalDrive) -> bool {
    drive.node.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"nvme"))
}

/// This program once more, as it is now, whatever has become of its file.
fn ask_nvme(book: &Book, drive: &PhysicalDrive) -> Result<Smart, String> {
    let own = format!("/proc/{}/exe", std::process::id());
    let mut command = run::command(&[&own, "nvme-health", &drive.node.display().to_string()]);
    let (_, said) = program::output(&mut command, LIMIT, || book.ends())?;
    nvme::parse(&said).ok_or_else(|| "its log of health cannot be read".to_owned())
}

fn ask_smartctl(book: &Book, drive: &PhysicalDrive) -> Result<Smart, String> {
    let node = drive.node.display().to_string();
    let mut command = run::command(&SMARTCTL);
    command.arg(&node).env("PATH", path_of_root());
    let (status, said) = program::output(&mut command, LIMIT, || book.ends())
        .map_err(|why| format!("smartctl: {why}"))?;
    if status.code() == Some(NO_PROGRAM) {
        return Err("smartctl is not installed (package smartmontools)".to_owned());
    }
    smartctl::parse(&said).ok_or_else(|| "smartctl learns nothing from it now".to_owned())
}

/// One that sleeps is not woken. The last ones are the wear of SATA drives, and the errors of SAS drives.
const SMARTCTL: [&str; 11] =
    ["smartctl", "--json", "-n", "standby", "-i", "-A", "-H", "-l", "ssd", "-l", "error"];

/// smartctl lives where only root's PATH looks.
fn path_of_root() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}
