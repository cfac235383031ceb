//! `voltier events` through the real binary: what happens is listed, stays over a restart, and reaches hooks.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::thread;

use serde_json::Value;

use crate::full_host::{fill, small_file_system};
use crate::support::arrays::with;
use crate::support::{Instance, MIB, until};

/// All events, as `KIND CHANGE NAME`.
fn events(instance: &Instance) -> Vec<String> {
    let shown = instance.run(&["events", "--json"]).json();
    shown.as_array().unwrap().iter().map(words).collect()
}

fn words(event: &Value) -> String {
    let text = |key: &str| event[key].as_str().unwrap_or("-").to_owned();
    format!("{} {} {}", text("kind"), text("change"), text("name"))
}

fn until_told(instance: &Instance, event: &str) {
    until(event, || events(instance).iter().any(|it| it == event));
}

fn tank(instance: &Instance) -> [String; 4] {
    let members = ["m0", "m1", "m2", "m3"].map(|name| instance.drive(name, 16 * MIB));
    instance.run(&with(&["create", "tank", "--level", "5", "--export", "none"], &members)).ok();
    members
}

/// What a hook wrote, line by line.
fn lines(path: &str) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn a_lost_member_is_an_event_with_its_end_and_health_says_since_when() {
    let instance = Instance::new();
    let members = tank(&instance);
    let got = instance.aside("got");
    let hook = format!(
        "read -r event; echo \"$VOLTIER_EVENT_KIND $VOLTIER_EVENT_CHANGE $event\" >> {got}"
    );
    let answer = instance.run(&["events", "--hook", &hook]).ok();
    assert!(answer.out.starts_with("hook 1 (command read -r event;"), "{answer:?}");
    instance.run(&["array", "fail", "tank", "1"]).ok();
    let lost = format!("member_lost begins {}", members[1]);
    until_told(&instance, &lost);
    until("the hook", || lines(&got).iter().any(|it| it.starts_with("member_lost begins {")));
    let line = lines(&got).into_iter().find(|it| it.starts_with("member_lost ")).unwrap();
    let event: Value =
        serde_json::from_str(line.strip_prefix("member_lost begins ").unwrap()).unwrap();
    assert_eq!(words(&event), lost);
    assert_eq!((&event["severity"], &event["of"]), (&"degraded".into(), &"array tank".into()));
    let shown = instance.run(&["health", "--json"]).shown();
    let check =
        shown["checks"].as_array().unwrap().iter().find(|it| it["condition"] == "member_lost");
    assert_eq!(check.unwrap()["since"], event["time"]);
    assert!(instance.run(&["health"]).out.contains("SINCE"));

    let spare = instance.drive("spare", 16 * MIB);
    instance.run(&["array", "add-spare", "tank", &spare]).ok();
    until_told(&instance, &format!("member_lost ends {}", members[1]));
    for event in ["spare_used - tank", "rebuild_begun - tank", "rebuild_ended - tank"] {
        until_told(&instance, event);
    }
    instance.run(&["array", "scrub", "tank"]).ok();
    for event in ["scrub_begun - tank", "scrub_ended - tank"] {
        until_told(&instance, event);
    }
    let table = instance.run(&["events", "tank"]).ok().out;
    assert!(table.starts_with("TIME (UTC) "), "{table}");
    assert!(table.contains("a scrub has ended: 0 blocks did not match"), "{table}");
    assert!(!table.contains("daemon"), "{table}");
    let all = instance.run(&["events", "--json"]).json();
    let numbers: Vec<u64> =
        all.as_array().unwrap().iter().map(|it| it["seq"].as_u64().unwrap()).collect();
    assert!(numbers.windows(2).all(|two| two[0] + 1 == two[1]), "{numbers:?}");
    until("all of them at the hook", || lines(&got).len() >= numbers.len() - 1);
}

#[test]
fn events_and_dates_outlive_a_daemon_that_is_killed_and_a_line_that_is_torn() {
    let instance = Instance::new();
    let members = tank(&instance);
    instance.run(&["array", "fail", "tank", "2"]).ok();
    let lost = format!("member_lost begins {}", members[2]);
    until_told(&instance, &lost);
    let before = instance.run(&["health", "--json"]).shown();
    let file = instance.state().join("events.jsonl");
    until("the file", || fs::read_to_string(&file).unwrap_or_default().contains("array_degraded"));
    instance.kill();
    let told = events(&instance);
    assert!(told.contains(&lost), "without a daemon: {told:?}");
    OpenOptions::new().append(true).open(&file).unwrap().write_all(b"{\"seq\":9999,\"ti").unwrap();
    instance.serve();
    until_told(&instance, "daemon_crashed - voltier");
    let since = |health: &Value| {
        let checks = health["checks"].as_array().unwrap().clone();
        checks.into_iter().find(|it| it["condition"] == "member_lost").map(|it| it["since"].clone())
    };
    until("the date", || since(&instance.run(&["health", "--json"]).shown()) == since(&before));
    instance.stop();
    let told = events(&instance);
    assert_eq!(told.last().unwrap(), "daemon_stopped - voltier");
    let begun = told.iter().filter(|it| **it == lost).count();
    assert_eq!(begun, 1, "it is no news for the next daemon: {told:?}");
    assert_eq!(told.iter().filter(|it| it.starts_with("member_lost ends")).count(), 0, "{told:?}");
    instance.serve();
    until_told(&instance, "daemon_stopped - voltier");
    let crashes = events(&instance).iter().filter(|it| it.starts_with("daemon_crashed")).count();
    assert_eq!(crashes, 1);
}

#[test]
fn a_hook_that_hangs_or_fails_delays_nobody_and_health_says_so() {
    let instance = Instance::new();
    tank(&instance);
    let (got, pid) = (instance.aside("got"), instance.aside("pid"));
    instance.run(&["events", "--hook", &format!("sleep 600 & echo $! > {pid}; wait")]).ok();
    instance.run(&["events", "--hook", "echo no such place >&2; exit 7"]).ok();
    instance.run(&["events", "--hook", &format!("echo $VOLTIER_EVENT_KIND >> {got}")]).ok();
    instance.run(&["array", "fail", "tank", "0"]).ok();
    until("the one that works", || lines(&got).contains(&"member_lost".to_owned()));
    until("the one that hangs", || lines(&pid).len() == 1);
    until("health", || {
        let health = instance.run(&["health", "--json"]).shown();
        health["checks"].as_array().unwrap().iter().any(|it| {
            it["condition"] == "hook_fails"
                && it["state"] == "warning"
                && it["reason"].as_str().unwrap().contains("hook 2 failed")
                && it["reason"].as_str().unwrap().contains("exit code 7: no such place")
        })
    });
    until("the others hear of it", || lines(&got).contains(&"hook_fails".to_owned()));
    let table = instance.run(&["events", "--hooks"]).ok().out;
    assert!(table.contains("exit code 7: no such place"), "{table}");
    instance.run(&["events", "--remove", "1"]).ok();
    let stat = format!("/proc/{}/stat", lines(&pid)[0]);
    until("the end of the one that hangs", || {
        fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
    });
    let answer = instance.run(&["events", "--test"]);
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.out.contains("failed: exit code 7: no such place\n"), "{answer:?}");
    assert!(
        answer.out.contains("hook 3 (command echo $VOLTIER_EVENT_KIND")
            && answer.out.contains(": ok\n")
    );
    assert_eq!(answer.err, "voltier: 1 of 2 hooks failed; mend what the lines above name\n");
    assert!(lines(&got).contains(&"test".to_owned()));
    instance.stop();
    let table = instance.run(&["events", "--hooks"]).ok().out;
    assert!(table.contains("no daemon runs") && !table.contains("sleep"), "{table}");
    // What waited is delivered by the next daemon.
    let told = lines(&got).len();
    instance.serve();
    until("the stop", || lines(&got)[told..].contains(&"daemon_stopped".to_owned()));
}

#[test]
fn a_mail_and_a_web_hook_have_the_event() {
    let instance = Instance::new();
    let folder = instance.path("bin");
    fs::create_dir(&folder).unwrap();
    let (program, got) = (folder.join("sendmail"), instance.aside("mail"));
    fs::write(&program, format!("#!/bin/sh\necho \"$@\" > {got}\ncat >> {got}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let instance = instance.with_variable("PATH", &path);
    instance.serve();
    instance.run(&["events", "--mail", "admin@example.org"]).ok();
    let answer = instance.run(&["events", "--test"]).ok();
    assert_eq!(answer.out, "hook 1 (mail admin@example.org): ok\n");
    let mail = fs::read_to_string(&got).unwrap();
    let (head, body) = mail.split_once("\n\n").unwrap();
    assert!(head.starts_with("-oi -t\nTo: admin@example.org\nSubject: [Voltier on "), "{head}");
    assert!(body.contains("this is a test") && body.contains("kind      test\n"), "{body}");
    instance.run(&["events", "--remove", "admin@example.org"]).ok();
    if !std::process::Command::new("curl")
        .arg("--version")
        .output()
        .is_ok_and(|it| it.status.success())
    {
        eprintln!("no curl: the web hook is not tried");
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/secret?a=\"b", listener.local_addr().unwrap());
    let serve = move || {
        let (stream, _) = listener.accept().unwrap();
        let mut from = BufReader::new(&stream);
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            from.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            if let Some(text) = line.to_lowercase().strip_prefix("content-length:") {
                length = text.trim().parse().unwrap();
            }
            head += &line;
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body).unwrap();
        (&stream).write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        (head, serde_json::from_slice::<Value>(&body).unwrap())
    };
    let server = thread::Builder::new().spawn(serve).unwrap();
    instance.run(&["events", "--webhook", &url]).ok();
    instance.run(&["events", "--test"]).ok();
    let (head, body) = server.join().unwrap();
    assert!(head.starts_with("POST /secret?a="), "{head}");
    assert!(head.contains("application/json"), "{head}");
    assert_eq!(words(&body), "test - voltier");
    // Nobody listens any more.
    let answer = instance.run(&["events", "--test"]);
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.out.contains("failed: exit code 7: curl:"), "{answer:?}");
}

#[test]
fn events_are_followed_from_a_time_on() {
    let instance = Instance::new();
    let members = tank(&instance);
    until_told(&instance, "daemon_started - voltier");
    let mut command = instance.command(&["events", "tank", "--follow", "--json", "--since", "1h"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    instance.run(&["array", "fail", "tank", "3"]).ok();
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let event: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(words(&event), format!("member_lost begins {}", members[3]));
    child.kill().unwrap();
    child.wait().unwrap();
    let far = instance.run(&["events", "--since", "2100-01-01"]).ok();
    assert_eq!(far.out, "no events\n");
    let all = instance.run(&["events", "--since", "1h", "--json"]).json();
    assert_eq!(all.as_array().unwrap().len(), events(&instance).len());
}

#[test]
fn events_are_kept_in_memory_while_the_state_folder_is_full() {
    let instance = Instance::new();
    if small_file_system(&instance.state()).is_none() {
        return;
    }
    let members = tank(&instance);
    let file = instance.state().join("events.jsonl");
    let written = || fs::read_to_string(&file).unwrap_or_default();
    until("the first event", || written().contains("daemon_started"));
    let filler = fill(&instance.state());
    instance.run(&["array", "fail", "tank", "1"]);
    let lost = format!("member_lost begins {}", members[1]);
    until_told(&instance, &lost);
    let log = || fs::read_to_string(instance.state().join("daemon.log")).unwrap_or_default();
    fs::remove_file(&filler).unwrap();
    until("the file", || written().contains("member_lost"));
    until_told(&instance, &lost);
    let said = log().matches("events are kept in memory until").count();
    assert!(said <= 1, "{}", log());
}

#[test]
fn wrong_usage_is_one_line_and_changes_nothing() {
    let instance = Instance::new();
    instance.run(&["events"]).ok();
    instance.run(&["events", "nobody"]).refused(1, "no volume or array `nobody`");
    for since in ["yesterday", "5", "2026-02-30", "-5m"] {
        let since = format!("--since={since}");
        instance.run(&["events", &since]).refused(2, "is no time; write how long ago");
    }
    instance.run(&["events", "--test"]).refused(1, "no daemon serves");
    let readme = instance.drive("readme", 10);
    for (option, value, words) in [
        ("--hook", "/no/such/program --now", "looking at /no/such/program: no such file"),
        ("--hook", "./mine", "full path"),
        ("--hook", " ", "an empty command"),
        ("--hook", readme.as_str(), "is no program"),
        ("--mail", "two words", "is no mail address"),
        ("--webhook", "example.org", "is no URL"),
    ] {
        let answer = instance.run(&["events", option, value]);
        let code = answer.code;
        assert!([1, 2].contains(&code), "{answer:?}");
        answer.refused(code, words);
    }
    assert!(instance.pid().is_none(), "no daemon is started for what is refused");
    instance.run(&["events", "--hook", "true"]).ok();
    instance.run(&["events", "--hook", "true"]).refused(1, "that is hook 1 already");
    instance.run(&["events", "--remove", "2"]).refused(1, "no hook `2`");
    instance.run(&["events", "--mail", "root", "--test"]).refused(2, "cannot be used with");
    instance.run(&["events", "nobody"]).refused(1, "no volume or array `nobody`");
    assert_eq!(instance.run(&["events", "--hooks", "--json"]).json().as_array().unwrap().len(), 1);
}
