//! `voltier events`: what happened, and who is told of it.

use std::thread;
use std::time::Duration;

use voltier_cli::output::{print, print_json, print_line};
use voltier_control::protocol::EventsRequest;
use voltier_control::{
    Client, ControlError, ControlResult, Date, Event, Hook, HookStatus, HookTarget, HookTest,
    recorded_arrays, recorded_events, recorded_hooks, recorded_volumes,
};

use crate::args::{EventsArgs, HookChange};
use crate::session::Session;
use crate::table::columns;

/// How often `--follow` looks.
const FOLLOW: Duration = Duration::from_secs(1);

pub(crate) fn run(session: &Session<'_>, args: &EventsArgs) -> ControlResult<()> {
    match &args.change {
        HookChange { hooks: true, .. } => list(session),
        HookChange { test: true, .. } => test(session),
        HookChange { remove: Some(which), .. } => remove(session, which),
        HookChange { hook, mail, webhook, .. } => {
            let command = hook.clone().map(HookTarget::Command);
            let mail = mail.clone().map(HookTarget::Mail);
            let target = command.or(mail).or(webhook.clone().map(HookTarget::Webhook));
            target.map_or_else(|| show(session, args), |target| add(session, target))
        }
    }
}

/// Prints what happened.
fn show(session: &Session<'_>, args: &EventsArgs) -> ControlResult<()> {
    let since = args.since.as_deref().map(|text| Date::parse_since(text, Date::now()));
    let since = since.transpose()?;
    let name = args.name.as_deref();
    let is_meant = |event: &Event| name.is_none_or(|name| event.is_about(name));
    let all = events_after(session, 0)?;
    let mut last = all.last().map_or(0, |event| event.seq);
    if let Some(name) = name.filter(|_| !all.iter().any(is_meant)) {
        must_be_known(session, name)?;
    }
    let mut shown = all;
    if let Some(since) = since {
        // By the numbers: events after one that is young enough are younger, even if the clock was set back.
        let first = shown.iter().position(|event| event.time >= since);
        shown.drain(..first.unwrap_or(shown.len()));
    }
    shown.retain(is_meant);
    if !args.follow {
        return match session.json {
            true => print_json(&shown),
            false if shown.is_empty() => print("no events\n"),
            false => print(&table(&shown, true)),
        };
    }
    print_followed(session, &shown, true)?;
    loop {
        thread::park_timeout(FOLLOW);
        let mut next = events_after(session, last)?;
        last = next.last().map_or(last, |event| event.seq);
        next.retain(is_meant);
        print_followed(session, &next, false)?;
    }
}

/// The events with higher numbers: of the daemon if one runs, else of the files.
fn events_after(session: &Session<'_>, after: u64) -> ControlResult<Vec<Event>> {
    if let Some(mut client) = session.running_client()? {
        return client.events(after);
    }
    let mut events = recorded_events(session.state.path())?;
    events.retain(|event| event.seq > after);
    Ok(events)
}

/// Refuses a name that nothing is on record of, and no event was about.
fn must_be_known(session: &Session<'_>, name: &str) -> ControlResult<()> {
    let is_volume = recorded_volumes(session.state)?.iter().any(|it| it.name.as_str() == name);
    let is_array = recorded_arrays(session.state)?.iter().any(|it| it.name.as_str() == name);
    if is_volume || is_array {
        return Ok(());
    }
    Err(ControlError::failed(format!(
        "no volume or array `{name}`, and no event of one; `voltier events` lists all events"
    )))
}

fn print_followed(session: &Session<'_>, events: &[Event], is_first: bool) -> ControlResult<()> {
    if session.json {
        return events.iter().try_for_each(print_line);
    }
    if events.is_empty() && !is_first { Ok(()) } else { print(&table(events, is_first)) }
}

fn table(events: &[Event], has_head: bool) -> String {
    let mut rows = Vec::new();
    if has_head {
        rows.push(["TIME (UTC)", "SEVERITY", "WHAT", "EVENT"].map(str::to_owned));
    }
    for event in events {
        let time = event.time.to_the_second();
        rows.push([time, event.severity.word().to_owned(), event.what(), event.text.clone()]);
    }
    columns(&rows)
}

fn add(session: &Session<'_>, target: HookTarget) -> ControlResult<()> {
    // A wrong one is refused before a daemon is started for it.
    target.check()?;
    let hooks = session.client()?.hooks(EventsRequest::AddHook { target })?;
    answer(session, &hooks, "is told of events from now on; `voltier events --test` tries it")
}

fn remove(session: &Session<'_>, which: &str) -> ControlResult<()> {
    let ask = EventsRequest::RemoveHook { which: which.to_owned() };
    let hooks = session.client()?.hooks(ask)?;
    answer(session, &hooks, "is not told any more")
}

fn answer(session: &Session<'_>, hooks: &[HookStatus], what: &str) -> ControlResult<()> {
    if session.json {
        return print_json(&hooks);
    }
    let line = |it: &HookStatus| format!("{}: {what}\n", in_words(&it.hook));
    print(&hooks.iter().map(line).collect::<String>())
}

fn in_words(hook: &Hook) -> String {
    format!("hook {} ({} {})", hook.id, hook.target.kind(), hook.target.text())
}

fn list(session: &Session<'_>) -> ControlResult<()> {
    let client = session.running_client()?;
    let is_served = client.is_some();
    let status = |hook: Hook| HookStatus {
        hook,
        waiting: 0,
        delivered: 0,
        failures: 0,
        last: None,
        error: String::new(),
    };
    let ask = |mut client: Client| client.hooks(EventsRequest::Hooks);
    let recorded = || Ok(recorded_hooks(session.state.path())?.into_iter().map(status).collect());
    let hooks: Vec<HookStatus> = client.map_or_else(recorded, ask)?;
    if session.json {
        return print_json(&hooks);
    }
    if hooks.is_empty() {
        return print(
            "no hooks; `voltier events --hook COMMAND` adds one, as do --mail and --webhook\n",
        );
    }
    let mut rows = vec![["N", "KIND", "WHO", "WAITING", "STATE"].map(str::to_owned)];
    for it in &hooks {
        let state = match (is_served, it.failures, it.last) {
            (false, ..) => "no daemon runs".to_owned(),
            (_, 0, None) => "nothing delivered since the daemon started".to_owned(),
            (_, 0, Some(last)) => format!("ok at {}", last.to_the_second()),
            (_, failures, _) => format!("failed {failures} times: {}", it.error),
        };
        let (kind, who) = (it.hook.target.kind().to_owned(), it.hook.target.text().to_owned());
        rows.push([it.hook.id.to_string(), kind, who, it.waiting.to_string(), state]);
    }
    print(&columns(&rows))
}

fn test(session: &Session<'_>) -> ControlResult<()> {
    let Some(mut client) = session.running_client()? else { return Err(session.no_daemon()) };
    let tests = client.test_hooks()?;
    if tests.is_empty() {
        return Err(ControlError::failed(
            "there are no hooks to test; `voltier events --hook COMMAND` adds one, as do --mail and --webhook",
        ));
    }
    if session.json {
        print_json(&tests)?;
    } else {
        let line = |it: &HookTest| match it.error.is_empty() {
            true => format!("{}: ok\n", in_words(&it.hook)),
            false => format!("{}: failed: {}\n", in_words(&it.hook), it.error),
        };
        print(&tests.iter().map(line).collect::<String>())?;
    }
    match tests.iter().filter(|it| !it.error.is_empty()).count() {
        0 => Ok(()),
        failed => Err(ControlError::failed(format!(
            "{failed} of {} hooks failed; mend what the lines above name",
            tests.len()
        ))),
    }
}
