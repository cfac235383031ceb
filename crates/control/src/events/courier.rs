//! Couriers: a thread for each hook brings it the events, one after the other.

use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::date::Date;
use crate::error::{ControlError, ControlResult};
use crate::events::event::{Event, TEST};
use crate::events::hook::{Hook, HookTarget, HookTest};
use crate::events::keep::Events;
use crate::events::pace::{Pace, now};
use crate::events::run;
use crate::state_dir::StateDir;

/// How long a delivery may take.
pub(crate) const DELIVERY_MAX: Duration = Duration::from_secs(30);
/// The folders in which `sendmail` often is, beyond those of the daemon's `PATH`.
const MAIL_FOLDERS: &str = "/usr/sbin:/usr/lib:/sbin";

/// Starts the courier of a hook, which ends with the hook and with the daemon.
///
/// # Errors
/// When there is no thread for it.
pub(crate) fn start(events: &Arc<Events>, hook: Hook) -> ControlResult<()> {
    let events = Arc::clone(events);
    let work = move || {
        let mut pace = Pace::default();
        while let Some(work) = events.work_for(&hook, &mut pace) {
            let is_over = || events.has_ended(&hook);
            let outcome = deliver(events.folder(), &hook, &work.event, is_over);
            match &outcome {
                Ok(()) => pace.succeeded(now()),
                Err(why) => {
                    pace.failed(now());
                    tracing::warn!("{}: {why}", in_words(&hook));
                }
            }
            events.note_delivery(&hook, work.up_to, outcome);
        }
    };
    let started = thread::Builder::new().name("hook".into()).spawn(work);
    started.map(drop).map_err(|error| ControlError::io("starting the thread of a hook", &error))
}

fn in_words(hook: &Hook) -> String {
    format!("hook {} ({} {})", hook.id, hook.target.kind(), hook.target.title())
}

/// Brings all hooks a test event at once; what came of each.
pub(crate) fn test(events: &Events) -> Vec<HookTest> {
    let hooks: Vec<Hook> = events.hooks().into_iter().map(|it| it.hook).collect();
    let event = Event {
        time: Date::now(),
        ..Event::of(&TEST, "voltier", "this is a test; nothing has happened")
    };
    let deliver_to = |hook: &Hook| deliver(events.folder(), hook, &event, || false);
    thread::scope(|scope| {
        let start = |hook: Hook| {
            let own = hook.clone();
            let thread = thread::Builder::new().name("hook test".into());
            (hook, thread.spawn_scoped(scope, move || deliver_to(&own)))
        };
        let tests: Vec<_> = hooks.into_iter().map(start).collect();
        let end = |(hook, thread): (Hook, std::io::Result<thread::ScopedJoinHandle<'_, _>>)| {
            let none = || Err("there was no thread for it".to_owned());
            let outcome = thread.map_or_else(|_| none(), |it| it.join().unwrap_or_else(|_| none()));
            HookTest { hook, error: outcome.err().unwrap_or_default() }
        };
        tests.into_iter().map(end).collect()
    })
}

fn deliver(
    folder: &std::path::Path,
    hook: &Hook,
    event: &Event,
    is_given_up: impl Fn() -> bool,
) -> Result<(), String> {
    let json = serde_json::to_string(event).map_err(|error| error.to_string())?;
    let (mut command, input) = match &hook.target {
        HookTarget::Command(text) => (run::command(&["/bin/sh", "-c", text]), json + "\n"),
        HookTarget::Mail(address) => {
            let mut command = run::command(&["sendmail", "-oi", "-t"]);
            let path = std::env::var("PATH").unwrap_or_default();
            command.env("PATH", format!("{path}:{MAIL_FOLDERS}"));
            (command, mail(address, event))
        }
        // All of it on standard input: others see the arguments of a program, and a URL is often a secret.
        HookTarget::Webhook(url) => (run::command(&["curl", "--config", "-"]), post(url, &json)),
    };
    set_variables(&mut command, event);
    command.env(StateDir::VARIABLE, folder);
    run::run(&mut command, input.as_bytes(), DELIVERY_MAX, is_given_up)
}

fn set_variables(command: &mut Command, event: &Event) {
    let (seq, time) = (event.seq.to_string(), event.time.to_string());
    let change = event.change.map_or("", |it| it.word());
    for (name, value) in [
        ("SEQ", seq.as_str()),
        ("TIME", &time),
        ("KIND", &event.kind),
        ("CHANGE", change),
        ("SEVERITY", event.severity.word()),
        ("PART", event.part.word()),
        ("NAME", &event.name),
        ("OF", &event.of),
        ("TEXT", &event.text),
        ("NEXT", &event.next),
    ] {
        // The environment has no place for a zero byte.
        command.env(format!("VOLTIER_EVENT_{name}"), value.replace('\0', " "));
    }
}

/// The mail of an event, headers and all.
fn mail(address: &str, event: &Event) -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let subject = format!("{}: {}: {}", event.severity.word(), event.what(), event.text);
    let is_plain = |it: char| (' '..='~').contains(&it);
    let subject: String =
        subject.chars().take(160).map(|it| if is_plain(it) { it } else { '?' }).collect();
    let mut text = format!(
        "To: {address}\nSubject: [Voltier on {host}] {subject}\nAuto-Submitted: auto-generated\n\
         MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n\n\
         {}: {}\n",
        event.what(),
        event.text
    );
    if !event.next.is_empty() {
        text += &format!("\nWhat to do next: {}\n", event.next);
    }
    let change = event.change.map(|it| format!(" ({})", it.word())).unwrap_or_default();
    text += &format!(
        "\ntime      {}\nhost      {host}\nseverity  {}\nkind      {}{change}\nnumber    {}\n",
        event.time,
        event.severity.word(),
        event.kind,
        event.seq
    );
    text
}

/// What `curl` is to do, as its file of options.
fn post(url: &str, json: &str) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    format!(
        "silent\nshow-error\nfail\nmax-time = {}\noutput = \"/dev/null\"\nurl = \"{}\"\ngloboff\n\
         proto = \"=http,https\"\nheader = \"Content-Type: application/json\"\ndata-raw = \"{}\"\n",
        DELIVERY_MAX.as_secs() - 5,
        quoted(url),
        quoted(json)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mail_keeps_its_headers_whatever_is_in_a_name() {
        let event = Event::of(&TEST, "v\nBcc: x@y", "ä\r\nb");
        let text = mail("root", &event);
        let (head, body) = text.split_once("\n\n").unwrap();
        assert!(head.lines().all(|line| !line.starts_with("Bcc")), "{head}");
        assert!(head.is_ascii() && head.contains("info: daemon v?Bcc: x@y: ???b"), "{head}");
        assert!(body.contains('ä'));
    }

    #[test]
    fn what_a_program_is_to_post_stays_one_option() {
        let text = post("http://h/\"x\\", "{\"a\":\"b\\\"c\"}");
        assert!(text.contains("url = \"http://h/\\\"x\\\\\"\n"), "{text}");
        assert!(text.contains("data-raw = \"{\\\"a\\\":\\\"b\\\\\\\"c\\\"}\"\n"), "{text}");
    }
}
