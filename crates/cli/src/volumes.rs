//! Verbs of volumes: ask the daemon, wait for jobs, print.

use serde_json::json;
use voltier_cli::output::{print, print_json, print_shown};
use voltier_control::protocol::{JobStatus, Request};
use voltier_control::{
    Client, ControlError, ControlResult, HealthState, HealthSummary, Interrupt, VolumeName,
    VolumeStatus, recorded_volumes, unused_tail_text,
};

use crate::args::{Leave, Named, Show, Start, Stop};
use crate::session::{Session, WATCH, WATCH_S, this_program};
use crate::{progress, rates_table, table};

/// A change that is done when it is answered.
pub(crate) fn change(session: &Session<'_>, request: &Request, done: &str) -> ControlResult<()> {
    let volume = session.client()?.volume(request)?;
    let tail_bytes = volume.hdd.unused_tail_bytes;
    if tail_bytes > 0 && matches!(request, Request::Create { .. } | Request::Start { .. }) {
        eprintln!("voltier: {}", unused_tail_text(&volume.hdd.path, tail_bytes));
    }
    let is_new = matches!(request, Request::Create { .. });
    let uri = volume.exports.first().filter(|_| is_new).map(|export| export.uri.as_str());
    print_changed(session, &volume, done, uri)
}

/// Says what was done, and the address of a new export.
fn print_changed(
    session: &Session<'_>,
    volume: &VolumeStatus,
    done: &str,
    uri: Option<&str>,
) -> ControlResult<()> {
    if session.json {
        return print_json(volume);
    }
    let cache = if volume.ssd.path.is_empty() {
        "no cache".to_owned()
    } else {
        format!("{} {} on {}", volume.mode, volume.policy, volume.ssd.path)
    };
    let at = uri.map(|uri| format!(": {uri}")).unwrap_or_default();
    print(&format!("{}: {done} ({}, {cache}){at}\n", volume.name, volume.hdd.path))
}

/// Takes a volume over from another host, and says what is lost.
pub(crate) fn take_over(session: &Session<'_>, request: &Request) -> ControlResult<()> {
    let taken = session.client()?.take_over(request)?;
    if session.json {
        return print_json(&taken);
    }
    let uri = taken.volume.exports.first().map(|export| export.uri.as_str());
    print_changed(session, &taken.volume, "taken over", uri)?;
    for client in &taken.from {
        print(&format!("{client} is shut out: the cluster carries out nothing more of it\n"))?;
    }
    if taken.lines_given_up > 0 {
        print(&format!(
            "the cache here was made anew: {} dirty lines, older than the image, were given up\n",
            taken.lines_given_up
        ))?;
    }
    print(&format!("{}\n", taken.loss))
}

/// Opens an export and tells its address.
pub(crate) fn export(session: &Session<'_>, request: &Request) -> ControlResult<()> {
    let Request::Export { name, export, .. } = request else { unreachable!("made by export") };
    let volume = session.client()?.volume(request)?;
    if session.json {
        return print_json(&volume);
    }
    // The answer says where the export really is: port 0 asked for a free one.
    let asked = export.uri(name);
    let known = volume.exports.iter().find(|export| export.uri == asked);
    let export = known.or(volume.exports.last());
    print(&format!("{}\n", export.map_or(&asked, |export| &export.uri)))
}

/// Opens a volume that is stopped, waits or failed, or starts the daemon.
pub(crate) fn start(session: &Session<'_>, args: &Start) -> ControlResult<()> {
    if let Some(name) = args.name.as_ref().or(args.cache_name.as_ref()) {
        return change(session, &Request::Start { name: name.parse()? }, "started");
    }
    let folder = session.state.path().display().to_string();
    let was_running = session.running_client()?.is_some();
    // A daemon that has just begun answers when everything on record was tried.
    session.client()?.wait_for_start()?;
    if session.json {
        return print_json(&json!({ "state_folder": folder, "was_running": was_running }));
    }
    print(&match was_running {
        true => format!("{folder}: a daemon runs already\n"),
        false => format!("{folder}: served\n"),
    })
}

/// How often a stop that takes long says so.
const STOP_SAYS_S: u64 = 5;

/// Stops a volume, or the daemon.
pub(crate) fn stop(session: &Session<'_>, args: &Stop) -> ControlResult<()> {
    let client = session.running_client()?;
    if let Some(name) = args.name.as_ref().or(args.cache_name.as_ref()) {
        let request = Request::Stop { name: name.parse()?, now: args.now };
        let mut client = client.map_or_else(|| session.client(), Ok)?;
        let volume = client.volume(&request)?;
        return print_changed(session, &volume, "stopped", None);
    }
    let folder = session.state.path().display().to_string();
    let was_running = client.is_some();
    if let Some(client) = client {
        client.stop(session.state, args.now, |waited| {
            if waited.as_secs().is_multiple_of(STOP_SAYS_S) {
                eprintln!(
                    "voltier: waiting for the daemon to stop ({} s); {} says what it waits for",
                    waited.as_secs(),
                    session.state.log_file().display()
                );
            }
        })?;
    }
    if session.json {
        return print_json(&json!({ "state_folder": folder, "was_running": was_running }));
    }
    print(&match was_running {
        true => format!("{folder}: stopped\n"),
        false => format!("{folder}: no daemon runs\n"),
    })
}

/// Has the running daemon become this program.
pub(crate) fn upgrade(session: &Session<'_>) -> ControlResult<()> {
    let client = session.running_client()?.ok_or_else(|| session.no_daemon())?;
    let program = this_program()?;
    let version = client.upgrade(session.state, &program, voltier_cores::HANDOVER)?;
    let folder = session.state.path().display().to_string();
    if session.json {
        return print_json(&json!({ "state_folder": folder, "version": version }));
    }
    print(&format!("{folder}: served by version {version} now\n"))
}

/// Starts a job and waits for its end.
fn follow(client: &mut Client, request: &Request) -> ControlResult<JobStatus> {
    let interrupt = Interrupt::noted()?;
    let job = client.job(request)?;
    progress::follow(client, job, &interrupt)
}

/// Writes all dirty lines back.
pub(crate) fn flush(session: &Session<'_>, args: &Named) -> ControlResult<()> {
    let name: VolumeName = args.text().parse()?;
    let mut client = session.client()?;
    let job = follow(&mut client, &Request::Flush { name: name.clone() })?;
    print_ended(session, &mut client, &name, &job, "flushed")
}

/// Takes the SSD away.
pub(crate) fn detach(session: &Session<'_>, args: &Leave) -> ControlResult<()> {
    let name: VolumeName = args.name.text().parse()?;
    let mut client = session.client()?;
    let request = Request::Detach { name: name.clone(), flush: !args.no_flush };
    let job = follow(&mut client, &request)?;
    print_ended(session, &mut client, &name, &job, "detached")
}

/// Has lines written back, and waits for it.
pub(crate) fn drain(client: &mut Client, request: &Request) -> ControlResult<()> {
    follow(client, request).map(drop)
}

fn print_ended(
    session: &Session<'_>,
    client: &mut Client,
    name: &VolumeName,
    job: &JobStatus,
    done: &str,
) -> ControlResult<()> {
    if session.json {
        return client.show(Some(name))?.first().map_or(Ok(()), print_json);
    }
    print(&format!("{name}: {done} ({})\n", lines_of(job)))
}

/// Forgets the volume.
pub(crate) fn delete(session: &Session<'_>, args: &Leave) -> ControlResult<()> {
    let name: VolumeName = args.name.text().parse()?;
    let mut client = session.client()?;
    let request = Request::Delete { name: name.clone(), flush: !args.no_flush };
    let job = follow(&mut client, &request)?;
    if session.json {
        return print_json(&json!({
            "name": name, "deleted": true, "lines_written_back": job.lines_done,
            "lines_given_up": job.lines_given_up
        }));
    }
    print(&format!("{name}: deleted ({})\n", lines_of(&job)))
}

/// The fate of the dirty lines, in words.
fn lines_of(job: &JobStatus) -> String {
    match job.lines_given_up {
        0 => format!("{} lines written back", job.lines_done),
        given_up => format!("{given_up} dirty lines given up"),
    }
}

/// Shows one volume or all, once or until interrupted.
pub(crate) fn show(session: &Session<'_>, args: &Show) -> ControlResult<()> {
    let name = args.name.as_ref().or(args.cache_name.as_ref());
    let name: Option<VolumeName> = name.map(|text| text.parse()).transpose()?;
    let Some(mut client) = session.running_client()? else {
        return show_recorded(session, name.as_ref());
    };
    loop {
        let volumes = client.show_over(name.as_ref(), args.watch.then_some(WATCH_S))?;
        print_volumes(session, &volumes, name.is_some(), args.watch)?;
        if !args.watch {
            return none_suffers(&volumes);
        }
        std::thread::park_timeout(WATCH);
    }
}

fn print_volumes(
    session: &Session<'_>,
    volumes: &[VolumeStatus],
    one: bool,
    watch: bool,
) -> ControlResult<()> {
    let body = || {
        let rates = if watch { rates_table::of_volumes(volumes) } else { String::new() };
        match volumes {
            [volume] if one => table::one(volume) + &rates,
            all => table::all(all) + &rates,
        }
    };
    print_shown(volumes, one, watch, session.json, body)
}

/// Shows what is on record, and says that no daemon runs.
fn show_recorded(session: &Session<'_>, name: Option<&VolumeName>) -> ControlResult<()> {
    let mut volumes = recorded_volumes(session.state)?;
    volumes.retain(|volume| name.is_none_or(|name| volume.name == *name));
    if !volumes.is_empty() {
        print_volumes(session, &volumes, name.is_some(), false)?;
    }
    Err(session.no_daemon())
}

/// Whether all that was shown does its work, with everything that protects it: programs ask for it by the exit code.
fn none_suffers(volumes: &[VolumeStatus]) -> ControlResult<()> {
    let health = volumes.iter().map(|it| (it.name.to_string(), &it.health));
    refuse_suffering(health)
}

/// # Errors
/// When something of these names is degraded or has failed.
pub(crate) fn refuse_suffering<'a>(
    shown: impl Iterator<Item = (String, &'a HealthSummary)>,
) -> ControlResult<()> {
    let suffers = shown.filter(|(_, health)| health.state >= HealthState::Degraded);
    let is = |state| if state == HealthState::Failed { "has failed" } else { "is degraded" };
    let words = suffers.map(|(name, health)| {
        let why = health.reasons.first().map_or("", String::as_str);
        format!("{name} {}{}", is(health.state), because(why))
    });
    let words: Vec<String> = words.collect();
    match words.is_empty() {
        true => Ok(()),
        false => Err(ControlError::failed(format!(
            "{}; `voltier health` says what to do next",
            words.join("; ")
        ))),
    }
}

/// A reason behind what it is of.
pub(crate) fn because(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(": {why}") }
}
