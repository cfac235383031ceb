//! `voltier move`: a volume on a Ceph RBD image goes to another host, and nothing is lost.
//!
//! Everything is written back here, the volume is deleted, and the other host makes one of the same image. So there is
//! no moment at which two hosts have it, and a move that ends half way leaves an image that has everything.

use std::ffi::OsString;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use voltier_cli::output::{print, print_json};
use voltier_control::protocol::Request;
use voltier_control::{
    ControlError, ControlResult, DeviceSpec, KEYS, Remote, VolumeName, VolumeState, VolumeStatus,
};

use crate::args::Move;
use crate::session::Session;
use crate::{programs, volumes};

/// The variable with the program that runs a command on another host: `PROGRAM HOST COMMAND...`.
const SHELL_VARIABLE: &str = "VOLTIER_RSH";
/// How often, and how many times, the other host tries while this one has the lock still.
const LOCK_STEP: Duration = Duration::from_secs(1);
const LOCK_TRIES: u32 = 30;

pub(crate) fn run(session: &Session<'_>, args: &Move) -> ControlResult<()> {
    let name: VolumeName = args.name.parse()?;
    let host = args.host.as_str();
    if host.starts_with('-') || host.is_empty() {
        return Err(ControlError::usage(format!("`{host}` is no host")));
    }
    let mut client = session.client()?;
    let volume = client.show(Some(&name))?.remove(0);
    may_move(&volume)?;
    let there = there(&volume, args);
    let shown =
        format!("voltier {}", there.iter().map(|it| quoted(it)).collect::<Vec<_>>().join(" "));
    let reached = on_host(host, &["start".to_owned()])?;
    if !reached.status.success() {
        return Err(programs::said(&format!("`{host}` has no voltier that can be used"), &reached));
    }
    if !volume.ssd.path.is_empty() {
        // While it is served still: so it is away for a short time only.
        volumes::drain(&mut client, &Request::Flush { name: name.clone() })?;
    }
    volumes::drain(&mut client, &Request::Delete { name: name.clone(), flush: true })?;
    for export in &volume.exports {
        eprintln!("voltier: the export {} does not go along", export.uri);
    }
    // For whoever ends this half way.
    eprintln!("voltier: {name} is deleted here; making it on {host}: {shown}");
    let made = make(host, &there)?;
    if !made.status.success() {
        let error = programs::said(&format!("making {name} on {host}"), &made);
        return Err(ControlError::failed(format!(
            "{error}; {name} is deleted here, and {} has all its data: `{shown}` there goes on, or the same here",
            volume.hdd.path
        )));
    }
    if session.json {
        return print_json(&json!({ "name": name, "host": host, "command": shown }));
    }
    print(&format!("{name}: moved to {host}\n{}", String::from_utf8_lossy(&made.stdout)))
}

/// Refuses a volume that another host cannot serve.
fn may_move(volume: &VolumeStatus) -> ControlResult<()> {
    let (name, disk) = (&volume.name, &volume.hdd.path);
    let is_image =
        disk.parse::<DeviceSpec>().is_ok_and(|disk| matches!(disk.remote(), Some(Remote::Rbd(_))));
    if !is_image {
        return Err(ControlError::failed(format!(
            "{disk}, the disk of {name}, is on this host: only a volume on a Ceph RBD image (rbd:POOL/IMAGE) can move"
        )));
    }
    match volume.state {
        VolumeState::Running => Ok(()),
        _ => Err(ControlError::failed(format!(
            "{name} is not running, and only a running volume can move without loss; `voltier show {name}` says more"
        ))),
    }
}

/// The command that makes the volume on the other host, with the settings that it has here.
fn there(volume: &VolumeStatus, args: &Move) -> Vec<String> {
    let mut command = vec!["create".to_owned(), volume.name.to_string()];
    let mut add = |option: &str, value: &str| command.extend([option.to_owned(), value.to_owned()]);
    add("-p", &volume.hdd.path);
    if let Some(kind) = &args.export {
        add("--export", kind);
    }
    let Some(ssd) = &args.ssd else { return command };
    add("-s", ssd);
    if !volume.ssd.path.is_empty() {
        add("-b", &volume.block_size.to_string());
        for (key, value) in settings(volume) {
            add("--set", &format!("{key}={value}"));
        }
    }
    if args.force {
        command.push("--force".to_owned());
    }
    command
}

/// The settings of the cache of a volume, as `set` takes them.
fn settings(volume: &VolumeStatus) -> Vec<(&'static str, String)> {
    let tunables = serde_json::to_value(&volume.tunables).unwrap_or_default();
    let value = |key: &str| match (key, &tunables[key]) {
        ("mode", _) => Some(volume.mode.clone()),
        ("policy", _) => Some(volume.policy.clone()),
        (_, Value::Bool(is_on)) => Some(if *is_on { "on" } else { "off" }.to_owned()),
        (_, Value::Number(number)) => Some(number.to_string()),
        (_, Value::String(text)) => Some(text.clone()),
        _ => None,
    };
    KEYS.iter().filter_map(|key| Some((key.name, value(key.name)?))).collect()
}

/// Makes the volume on the other host. The cluster gets the lock back when the last request of this one has ended.
fn make(host: &str, there: &[String]) -> ControlResult<Output> {
    let mut tries = LOCK_TRIES;
    loop {
        let made = on_host(host, there)?;
        let said = String::from_utf8_lossy(&made.stderr);
        let is_held = ["is locked by", "is open by", "may lack"].iter().any(|it| said.contains(it));
        tries -= 1;
        if made.status.success() || !is_held || tries == 0 {
            return Ok(made);
        }
        std::thread::park_timeout(LOCK_STEP);
    }
}

/// Runs voltier on the other host.
fn on_host(host: &str, args: &[String]) -> ControlResult<Output> {
    let shell = std::env::var_os(SHELL_VARIABLE).unwrap_or_else(|| OsString::from("ssh"));
    let program = shell.to_string_lossy().into_owned();
    let mut command = Command::new(&shell);
    // The other host's shell takes the words apart again.
    command.arg(host).arg("voltier").args(args.iter().map(|word| quoted(word)));
    programs::output(&mut command, &program)
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=@,+%".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_other_host_as_they_are() {
        assert_eq!(quoted("rbd:pool/image@/etc/ceph/x.conf"), "rbd:pool/image@/etc/ceph/x.conf");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("it's;"), "'it'\\''s;'");
    }
}
