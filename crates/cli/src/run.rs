//! What each verb does: ask the daemon, wait for jobs, print.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::json;
use voltier_control::protocol::{JobStatus, Request};
use voltier_control::{
    Client, ControlError, ControlResult, DaemonOptions, StateDir, VolumeName, VolumeStatus,
};

use crate::args::{Cli, Daemon, Leave, Named, Show, Verb};
use crate::{array, demo, lab, progress, request, table};

/// How often `show --watch` looks.
pub(crate) const WATCH: Duration = Duration::from_secs(1);

pub(crate) fn run(cli: &Cli) -> ControlResult<()> {
    let state = match &cli.state {
        Some(path) => StateDir::at(path)?,
        None => StateDir::at(&StateDir::default_path()?)?,
    };
    let session = Session { state: &state, json: cli.json };
    match &cli.verb {
        Verb::Create(args) => session.change(&request::create(args)?, "created"),
        Verb::Attach(args) => session.change(&request::attach(args)?, "attached"),
        Verb::Set(args) => session.change(&request::set(args)?, "set"),
        Verb::Export(args) => session.export(&request::export(args, &state)?),
        Verb::Unexport(args) => session.change(&request::unexport(args, &state)?, "unexported"),
        Verb::Flush(args) => session.flush(args),
        Verb::Detach(args) => session.detach(args),
        Verb::Delete(args) => session.delete(args),
        Verb::Show(args) => session.show(args),
        Verb::Array(args) => array::run(&args.verb, &session),
        Verb::Lab(args) => lab::run(&args.verb, cli.json),
        Verb::Daemon(args) => daemon(args, &state),
        Verb::Demo(args) => print(&demo::run(args, cli.json)?),
    }
}

/// One command: which instance, and how it answers.
pub(crate) struct Session<'a> {
    state: &'a StateDir,
    pub(crate) json: bool,
}

impl Session<'_> {
    pub(crate) fn client(&self) -> ControlResult<Client> {
        let program = std::env::current_exe()
            .map_err(|error| ControlError::io("finding this program's file", &error))?;
        Client::connect_or_start(self.state, &program)
    }

    /// A change that is done when it is answered.
    fn change(&self, request: &Request, done: &str) -> ControlResult<()> {
        let volume = self.client()?.volume(request)?;
        self.print_changed(&volume, done)
    }

    fn print_changed(&self, volume: &VolumeStatus, done: &str) -> ControlResult<()> {
        if self.json {
            return print_json(volume);
        }
        let cache = if volume.ssd.path.is_empty() {
            "no cache".to_owned()
        } else {
            format!("{} {} on {}", volume.mode, volume.policy, volume.ssd.path)
        };
        print(&format!("{}: {done} ({}, {cache})\n", volume.name, volume.hdd.path))
    }

    fn export(&self, request: &Request) -> ControlResult<()> {
        let Request::Export { name, export } = request else { unreachable!("made by export") };
        let volume = self.client()?.volume(request)?;
        if self.json {
            return print_json(&volume);
        }
        // The answer says where the door really is: port 0 asked for a free one.
        let asked = export.uri(name);
        let known = volume.exports.iter().find(|door| door.uri == asked);
        let door = known.or(volume.exports.last());
        print(&format!("{}\n", door.map_or(&asked, |door| &door.uri)))
    }

    /// Starts a job and waits for its end.
    fn follow(&self, client: &mut Client, request: &Request) -> ControlResult<JobStatus> {
        let job = client.job(request)?;
        progress::follow(client, job)
    }

    fn flush(&self, args: &Named) -> ControlResult<()> {
        let name: VolumeName = args.text().parse()?;
        let mut client = self.client()?;
        let job = self.follow(&mut client, &Request::Flush { name: name.clone() })?;
        self.print_ended(&mut client, &name, &job, "flushed")
    }

    fn detach(&self, args: &Leave) -> ControlResult<()> {
        let name: VolumeName = args.name.text().parse()?;
        let mut client = self.client()?;
        let request = Request::Detach { name: name.clone(), flush: !args.no_flush };
        let job = self.follow(&mut client, &request)?;
        self.print_ended(&mut client, &name, &job, "detached")
    }

    fn print_ended(
        &self,
        client: &mut Client,
        name: &VolumeName,
        job: &JobStatus,
        done: &str,
    ) -> ControlResult<()> {
        if self.json {
            return client.show(Some(name))?.first().map_or(Ok(()), print_json);
        }
        print(&format!("{name}: {done} ({} lines written back)\n", job.lines_done))
    }

    fn delete(&self, args: &Leave) -> ControlResult<()> {
        let name: VolumeName = args.name.text().parse()?;
        let mut client = self.client()?;
        let request = Request::Delete { name: name.clone(), flush: !args.no_flush };
        let job = self.follow(&mut client, &request)?;
        if self.json {
            return print_json(&json!({
                "name": name, "deleted": true, "lines_written_back": job.lines_done
            }));
        }
        print(&format!("{name}: deleted ({} lines written back)\n", job.lines_done))
    }

    fn show(&self, args: &Show) -> ControlResult<()> {
        let name = args.name.as_ref().or(args.cache_name.as_ref());
        let name: Option<VolumeName> = name.map(|text| text.parse()).transpose()?;
        let mut client = self.client()?;
        loop {
            let volumes = client.show(name.as_ref())?;
            let body = || match volumes.as_slice() {
                [volume] if name.is_some() => table::one(volume),
                all => table::all(all),
            };
            print_shown(&volumes, name.is_some(), args.watch, self.json, body)?;
            if !args.watch {
                return Ok(());
            }
            std::thread::park_timeout(WATCH);
        }
    }
}

/// Prints what `show` found: as JSON, a line for each look when it is watched, or as text.
pub(crate) fn print_shown<T: serde::Serialize>(
    all: &[T],
    one: bool,
    watch: bool,
    json: bool,
    body: impl FnOnce() -> String,
) -> ControlResult<()> {
    match (json, all) {
        (true, [only]) if one && watch => print(&compact(only)),
        (true, [only]) if one => print_json(only),
        (true, all) if watch => print(&compact(&all)),
        (true, all) => print_json(&all),
        (false, _) => {
            let clear = watch && std::io::stdout().is_terminal();
            print(&format!("{}{}", if clear { "\x1b[H\x1b[2J" } else { "" }, body()))
        }
    }
}

fn daemon(args: &Daemon, state: &StateDir) -> ControlResult<()> {
    let options = DaemonOptions {
        state: state.clone(),
        cores: args.cores.map(usize::from),
        background: args.background,
    };
    voltier_control::serve(&options)
}

pub(crate) fn print_json(value: &impl serde::Serialize) -> ControlResult<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| ControlError::failed(format!("writing JSON: {error}")))?;
    print(&format!("{text}\n"))
}

fn compact(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    format!("{text}\n")
}

/// Prints to standard output; a reader that has seen enough (`| head`) ends the command well.
pub(crate) fn print(text: &str) -> ControlResult<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(ControlError::io("writing the answer", &error)),
        Ok(()) => Ok(()),
    }
}
