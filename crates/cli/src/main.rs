//! The `voltier` command: arguments in, one request to the daemon, an answer for people or as JSON.

mod args;
mod array;
mod array_args;
mod array_table;
mod completions;
mod doctor;
mod events;
mod export_args;
mod fstab;
mod health;
mod import;
mod laboratory;
mod metrics;
mod mount;
mod move_volume;
mod programs;
mod progress;
mod rates_table;
mod request;
mod session;
mod setup;
mod smart_text;
mod table;
mod volumes;

use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::CommandFactory;
use voltier_cli::manual;
use voltier_cli::output::print;
use voltier_cli::usage;
use voltier_control::{ControlError, ControlResult, DaemonOptions, StateDir};
use voltier_cores::CoreEngine;

use crate::args::{Cli, Daemon, Keeper, Udev, Verb};
use crate::session::Session;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if laboratory::is_asked(&arguments) {
        return usage::exit_code::<()>(Err(laboratory::become_it()));
    }
    usage::main_of(run)
}

fn run(cli: &Cli) -> ControlResult<ExitCode> {
    let state = match &cli.state {
        Some(path) => StateDir::at(path)?,
        None => StateDir::at(&StateDir::default_path()?)?,
    };
    let session = Session::new(&state, cli.json);
    let done = match &cli.verb {
        Verb::Health(args) => return health::run(&session, args),
        Verb::Events(args) => events::run(&session, args),
        Verb::Metrics(args) => metrics::run(&session, args),
        Verb::Create(args) => volumes::change(&session, &request::create(args, &state)?, "created"),
        Verb::Takeover(args) => volumes::take_over(&session, &request::take_over(args, &state)?),
        Verb::Move(args) => move_volume::run(&session, args),
        Verb::Attach(args) => volumes::change(&session, &request::attach(args)?, "attached"),
        Verb::Set(args) => {
            let done = format!("set {}", args.changes.join(" "));
            volumes::change(&session, &request::set(args)?, &done)
        }
        Verb::Export(args) => volumes::export(&session, &request::export(args, &state)?),
        Verb::Unexport(args) => {
            volumes::change(&session, &request::unexport(args, &state)?, "unexported")
        }
        Verb::Flush(args) => volumes::flush(&session, args),
        Verb::Detach(args) => volumes::detach(&session, args),
        Verb::Delete(args) => volumes::delete(&session, args),
        Verb::Start(args) => volumes::start(&session, args),
        Verb::Stop(args) => volumes::stop(&session, args),
        Verb::Upgrade => volumes::upgrade(&session),
        Verb::Show(args) => volumes::show(&session, args),
        Verb::Mount(args) => mount::run(&session, args),
        Verb::Setup(args) => setup::run(&session, args),
        Verb::Doctor => doctor::run(&session),
        Verb::Import(args) => import::run(args, &session),
        Verb::Array(args) => array::run(&args.verb, &session),
        Verb::Udev(args) => udev(args, &state),
        Verb::Daemon(args) => daemon(args, &state),
        Verb::Keeper(args) => keeper(args),
        Verb::Completions(args) => completions::run(args),
        Verb::Manual(args) => manual::write(Cli::command(), args),
        Verb::NvmeHealth(args) => nvme_health(&args.device),
        Verb::Lab | Verb::Demo => Err(laboratory::become_it()),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Prints variables for udev when a drive is ours, and nothing else. The first is the part of the drive. The
/// second has those names of the drive that do not come from a file system. Of the block device of a volume it is the
/// name of the volume.
fn udev(args: &Udev, state: &StateDir) -> ControlResult<()> {
    if let Some(name) = voltier_control::volume_at(state, &args.device) {
        return print(&format!("VOLTIER_VOLUME={name}\n"));
    }
    let Some(part) = voltier_control::part_of(state, &args.device) else { return Ok(()) };
    print(&format!("VOLTIER_PART={part}\n"))?;
    let Ok(names) = std::env::var("DEVLINKS") else { return Ok(()) };
    let of_content = ["disk/by-uuid/", "disk/by-label/"];
    let is_kept = |name: &&str| !of_content.iter().any(|folder| name.starts_with(folder));
    let names = names.split_whitespace().filter_map(|name| name.strip_prefix("/dev/"));
    print(&format!("VOLTIER_LINKS={}\n", names.filter(is_kept).collect::<Vec<_>>().join(" ")))
}

fn daemon(args: &Daemon, state: &StateDir) -> ControlResult<()> {
    let options = DaemonOptions {
        state: state.clone(),
        cores: args.cores.map(usize::from),
        device_wait: Duration::from_secs(args.device_wait.into()),
        stop_wait: Duration::from_secs(args.stop_wait.into()),
        metrics: args.metrics.clone(),
        smart: args.smart,
        background: args.background,
    };
    let patience_s = args.keeper.patience_s;
    let busy_poll = Duration::from_micros(args.busy_poll.into());
    let start = |cores| {
        let engine = CoreEngine::start(cores)?.with_busy_poll(busy_poll);
        Ok(engine.with_keeper(state.path(), patience_s))
    };
    voltier_control::run_daemon(&options, start)
}

/// Writes what an NVMe drive says of itself, for the daemon that started this process.
fn nvme_health(device: &Path) -> ControlResult<()> {
    let wrote = voltier_cores::write_nvme_health(device, &mut std::io::stdout().lock());
    wrote.map_err(|error| ControlError::io(format!("reading {}", device.display()), &error))
}

/// Becomes the keeper of the daemon that started this process.
fn keeper(args: &Keeper) -> ControlResult<()> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let patience = Duration::from_secs(args.patience_s.into());
    let kept = socket.and_then(|socket| voltier_cores::keep(&socket, patience));
    kept.map_err(|error| {
        ControlError::failed(format!("the daemon starts the keeper, nobody else: {error}"))
    })
}
