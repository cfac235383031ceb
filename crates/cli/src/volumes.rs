//! Verbs of volumes: ask the daemon, wait for jobs, print.

use serde_json::json;
use voltier_cli::output::{print, print_json, print_shown};
use voltier_control::protocol::{JobStatus, Request};
use voltier_control::{Client, ControlResult, VolumeName, VolumeStatus};

use crate::args::{Leave, Named, Show};
use crate::session::{Session, WATCH};
use crate::{progress, table};

/// A change that is done when it is answered.
pub(crate) fn change(session: &Session<'_>, request: &Request, done: &str) -> ControlResult<()> {
    let volume = session.client()?.volume(request)?;
    print_changed(session, &volume, done)
}

fn print_changed(session: &Session<'_>, volume: &VolumeStatus, done: &str) -> ControlResult<()> {
    if session.json {
        return print_json(volume);
    }
    let cache = if volume.ssd.path.is_empty() {
        "no cache".to_owned()
    } else {
        format!("{} {} on {}", volume.mode, volume.policy, volume.ssd.path)
    };
    print(&format!("{}: {done} ({}, {cache})\n", volume.name, volume.hdd.path))
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

/// Opens a volume that waits or failed.
pub(crate) fn start(session: &Session<'_>, args: &Named) -> ControlResult<()> {
    change(session, &Request::Start { name: args.text().parse()? }, "started")
}

/// Starts a job and waits for its end.
fn follow(client: &mut Client, request: &Request) -> ControlResult<JobStatus> {
    let job = client.job(request)?;
    progress::follow(client, job)
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
    print(&format!("{name}: {done} ({} lines written back)\n", job.lines_done))
}

/// Forgets the volume.
pub(crate) fn delete(session: &Session<'_>, args: &Leave) -> ControlResult<()> {
    let name: VolumeName = args.name.text().parse()?;
    let mut client = session.client()?;
    let request = Request::Delete { name: name.clone(), flush: !args.no_flush };
    let job = follow(&mut client, &request)?;
    if session.json {
        return print_json(&json!({
            "name": name, "deleted": true, "lines_written_back": job.lines_done
        }));
    }
    print(&format!("{name}: deleted ({} lines written back)\n", job.lines_done))
}

/// Shows one volume or all, once or until interrupted.
pub(crate) fn show(session: &Session<'_>, args: &Show) -> ControlResult<()> {
    let name = args.name.as_ref().or(args.cache_name.as_ref());
    let name: Option<VolumeName> = name.map(|text| text.parse()).transpose()?;
    let mut client = session.client()?;
    loop {
        let volumes = client.show(name.as_ref())?;
        let body = || match volumes.as_slice() {
            [volume] if name.is_some() => table::one(volume),
            all => table::all(all),
        };
        print_shown(&volumes, name.is_some(), args.watch, session.json, body)?;
        if !args.watch {
            return Ok(());
        }
        std::thread::park_timeout(WATCH);
    }
}
