//! `voltier health`: what is wrong, and what to do next, with the exit code of a monitoring plugin.

use std::process::ExitCode;

use serde_json::json;
use voltier_cli::output::{print, print_json};
use voltier_control::protocol::ArrayRequest;
use voltier_control::{
    ArrayName, Check, Client, ControlError, ControlResult, Date, Health, Part, UNKNOWN_EXIT_CODE,
    VolumeName, recorded_arrays, recorded_volumes,
};

use crate::args::HealthArgs;
use crate::session::Session;
use crate::table::columns;

/// Tells the health of all, or of one volume or array. Whatever hinders it is `unknown`, and has that exit code.
pub(crate) fn run(session: &Session<'_>, args: &HealthArgs) -> ControlResult<ExitCode> {
    if args.acknowledge {
        return acknowledge(session, args.name.as_deref()).map(|()| ExitCode::SUCCESS);
    }
    match look(session, args.name.as_deref()) {
        Ok(health) if session.json => {
            print_json(&health)?;
            Ok(ExitCode::from(health.state.exit_code()))
        }
        Ok(health) => {
            print(&text(&health, args.all))?;
            Ok(ExitCode::from(health.state.exit_code()))
        }
        Err(error) if session.json => {
            print_json(&json!({ "state": "unknown", "reason": error.to_string() }))?;
            Ok(ExitCode::from(UNKNOWN_EXIT_CODE))
        }
        Err(error) => {
            print(&format!("unknown: {error}\n"))?;
            Ok(ExitCode::from(UNKNOWN_EXIT_CODE))
        }
    }
}

fn acknowledge(session: &Session<'_>, name: Option<&str>) -> ControlResult<()> {
    let mut client = session.running_client()?.ok_or_else(|| session.no_daemon())?;
    let drives = client.acknowledge(name)?;
    if session.json {
        return print_json(&json!({ "acknowledged": drives }));
    }
    if drives.is_empty() {
        return print("nothing to acknowledge\n");
    }
    drives.iter().try_for_each(|line| print(&format!("acknowledged: {line}\n")))
}

fn look(session: &Session<'_>, name: Option<&str>) -> ControlResult<Health> {
    let Some(mut client) = session.running_client()? else {
        let (volumes, arrays) = (recorded_volumes(session.state)?, recorded_arrays(session.state)?);
        return Health::without_daemon(&volumes, &arrays).ok_or_else(|| {
            ControlError::failed(format!(
                "no daemon serves {}, and nothing is on record there; name another folder with --state",
                session.state.path().display()
            ))
        });
    };
    let mut health = of_daemon(&mut client, name)?;
    health.checks = client.dated(health.checks)?;
    Ok(health)
}

fn of_daemon(client: &mut Client, name: Option<&str>) -> ControlResult<Health> {
    let (volumes, arrays) = (client.show(None)?, client.arrays(None)?);
    let Some(name) = name else {
        let (pools, _) = client.pools(ArrayRequest::PoolShow { pool: None })?;
        let own = client.own_checks()?;
        return Ok(Health::of_all(&volumes, &arrays, &pools).with(own));
    };
    let volume: VolumeName = name.parse()?;
    let array: ArrayName = name.parse()?;
    Health::of_one_volume(&volume, &volumes, &arrays)
        .or_else(|| Health::of_one_array(&array, &arrays))
        .ok_or_else(|| {
            ControlError::failed(format!(
                "no volume or array `{name}`; `voltier health --all` lists what there is"
            ))
        })
}

/// The first line is what a monitoring program shows.
fn text(health: &Health, all: bool) -> String {
    let troubles = health.troubles();
    let mut text = match troubles.split_first() {
        None => format!("ok: {}\n", counted(&health.checks)),
        Some((worst, others)) => {
            let more = match others.len() {
                0 => String::new(),
                count => format!(" (and {count} more)"),
            };
            format!("{}: {}: {}{more}\n", worst.state.word(), worst.what(), worst.reason)
        }
    };
    let shown: Vec<&Check> = if all { health.checks.iter().collect() } else { troubles };
    if shown.is_empty() {
        return text;
    }
    let mut rows = vec![["STATE", "SINCE (UTC)", "WHAT", "WHY AND WHAT NEXT"].map(str::to_owned)];
    for check in shown {
        let next = if check.next.is_empty() { "" } else { "; " };
        let why = format!("{}{next}{}", check.reason, check.next);
        let since = check.since.map_or_else(|| "-".to_owned(), Date::to_the_second);
        rows.push([check.state.word().to_owned(), since, check.what(), why]);
    }
    text += &columns(&rows);
    text
}

/// How many there are of each.
fn counted(checks: &[Check]) -> String {
    let parts = [Part::Volume, Part::Array, Part::Drive, Part::Export, Part::Pool, Part::Hook];
    let counts = parts.into_iter().filter_map(|part| {
        let count = checks.iter().filter(|it| it.part == part).count();
        let plural = if count == 1 { "" } else { "s" };
        (count > 0).then(|| format!("{count} {}{plural}", part.word()))
    });
    let counts: Vec<String> = counts.collect();
    match counts.is_empty() {
        true => "no volumes".to_owned(),
        false => counts.join(", "),
    }
}
