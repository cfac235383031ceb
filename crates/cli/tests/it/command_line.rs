//! The command line as a contract: help, wrong usage, exit codes, one-line errors.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Command;

use crate::support::{Answer, Instance, program, sealed_registry};
use rustix::process::Signal;
use voltier_control::{ARRAY_KEYS, JOURNAL_KEY};

#[test]
fn help_lists_every_verb_and_exits_with_zero() {
    let instance = Instance::new();
    let help = instance.run(&["--help"]).ok();
    for verb in [
        "create", "delete", "start", "stop", "show", "set", "flush", "attach", "detach", "export",
        "unexport", "import", "array", "daemon", "mount", "setup", "doctor",
    ] {
        assert!(help.out.contains(&format!("\n  {verb}")), "{verb} in {}", help.out);
        let own = instance.run(&[verb, "--help"]).ok();
        assert!(own.out.contains("Usage: voltier"), "{}", own.out);
    }
    for verb in ["lab", "demo"] {
        assert!(help.out.contains(&format!("\n  {verb}")), "{verb} in {}", help.out);
    }
    assert!(instance.run(&["--version"]).ok().out.starts_with("voltier "));
    let keys = instance.run(&["array", "set", "--help"]).ok().out;
    for key in ARRAY_KEYS.iter().map(|key| key.name).chain([JOURNAL_KEY]) {
        assert!(keys.contains(&format!("{key}=")), "{key} in {keys}");
    }
    assert!(!instance.state().exists(), "help starts nothing");
}

#[test]
fn wrong_usage_is_one_line_with_a_hint_and_exit_code_two() {
    let instance = Instance::new();
    let cases: [(&[&str], &str); 34] = [
        (&[], "--help"),
        (&["creat"], "create"),
        (&["export", "x", "--ndb"], "did you mean `--nbd`"),
        (&["create", "-p", "mem:1M", "-s", "mem:1M", "-t", "bw", "x"], "did you mean `wb`"),
        (&["array", "create"], "voltier array create --help"),
        (&["advise", "x"], "unrecognized"),
        (&["create"], "voltier create --help"),
        (&["create", "-s", "mem:1M", "x"], "<DISK>"),
        (&["create", "-p", "mem:1M"], "<NAME>"),
        (&["create", "-p", "mem:1M", "../x"], "not a volume name"),
        (&["create", "-p", "mem:0", "x"], "mem:1G"),
        (&["create", "-p", "rbd:image", "x"], "rbd:POOL/IMAGE"),
        (&["create", "-p", "mem:1M", "-s", "s3://b/p", "x"], "not in this version"),
        (&["create", "-p", "mem:1M", "-s", "mem:1M", "-t", "wbb", "x"], "did you mean `wb`"),
        (&["create", "-p", "mem:1M", "-s", "mem:1M", "-r", "lur", "x"], "did you mean `lru`"),
        (&["create", "-p", "mem:1M", "-s", "mem:1M", "-b", "1000", "x"], "4096"),
        (&["create", "-p", "mem:1M", "-t", "wb", "x"], "add -s SSD"),
        (&["create", "-d", "mem:1M", "-p", "/dev/sdb", "-s", "mem:1M", "-c", "x"], "EnhanceIO"),
        (&["create", "-d", "mem:1M", "-p", "lru", "-r", "lru", "-s", "mem:1M", "x"], "twice"),
        (&["create", "-p", "mem:1M", "-c", "x", "x"], "cannot be used with"),
        (&["delete"], "<NAME>"),
        (&["set", "x"], "KEY=VALUE"),
        (&["set", "x", "mode"], "not KEY=VALUE"),
        (&["set", "x", "mode=wt", "mode=wb"], "mode is given twice"),
        (&["set", "x", "policy=arc"], "known: lru"),
        (&["set", "x", "polcy=lru"], "did you mean `policy`"),
        (&["set", "x", "mode=fast"], "known: wt, wb"),
        (&["set", "x", "block_size=8192"], "attach"),
        (&["export", "x"], "--nbd"),
        (&["export", "x", "--nbd", "nbd://h/x"], "tcp:HOST"),
        (&["export", "x", "--ublk"], "unexpected argument"),
        (&["show", "a/b"], "not a volume name"),
        (&["daemon", "--cores", "0"], "--cores"),
        (&["daemon", "--busy-poll", "1001"], "--busy-poll"),
    ];
    for (args, words) in cases {
        instance.run(args).refused(2, words);
    }
    assert!(!instance.state().exists(), "wrong usage starts nothing");
}

#[test]
fn what_other_programs_call_it_is_taken_where_it_is_harmless_and_answered_with_the_command_elsewhere()
 {
    let instance = Instance::new();
    let cases: [(&[&str], &str); 12] = [
        (&["destroy", "v"], "`voltier` has no `destroy`; `voltier delete NAME` forgets a volume"),
        (&["rm", "v"], "`voltier delete NAME`"),
        (&["add", "v"], "`voltier create NAME -p DISK -s SSD` makes a volume"),
        (
            &["array", "destroy", "a"],
            "`voltier array` has no `destroy`; `voltier array delete NAME`",
        ),
        (&["array", "remove", "a", "d"], "`voltier array remove-spare NAME DEV` a spare"),
        (&["array", "add", "a", "d"], "`voltier array add-spare NAME DEV` adds a spare"),
        (&["array", "spare-pool", "rm", "p"], "`voltier array spare-pool remove POOL"),
        (&["create", "x", "/dev/sdb", "/dev/sdc"], "`voltier create x -p /dev/sdb -s /dev/sdc`"),
        (&["create", "x", "/dev/sdb"], "`voltier create x -p /dev/sdb`"),
        (&["create", "x", "-p", "mem:1M", "/dev/sdb"], "`voltier create x -p mem:1M -s /dev/sdb`"),
        (&["array", "create", "a", "--level", "raidz2", "mem:1M"], "did you mean `6`"),
        (&["export", "v", "--nbd", "70000"], "not an NBD address"),
    ];
    for (args, words) in cases {
        instance.run(args).refused(2, words);
    }
    assert!(!instance.state().exists(), "wrong usage starts nothing");
    instance.run(&["create", "-p", "mem:16M", "-s", "mem:16M", "-t", "writeback", "v"]).ok();
    instance.run(&["set", "v", "mode=write-through"]).ok();
    assert_eq!(instance.show("v")["mode"], "wt");
    instance.run(&["export", "v", "--nbd", "0"]).ok();
    let shown = instance.show("v");
    let uri = shown["exports"][0]["uri"].as_str().unwrap();
    assert!(uri.starts_with("nbd://127.0.0.1:"), "{uri}");
    let members = ["mem:32M", "mem:32M", "mem:32M"];
    instance.run(&[&["array", "create", "a", "--level", "RAID5"][..], &members].concat()).ok();
    for verb in ["status", "list", "ls", "info"] {
        assert!(instance.run(&[verb]).ok().out.contains("v "), "{verb}");
        assert!(instance.run(&["array", verb]).ok().out.contains("a "), "{verb}");
        instance.run(&["array", "spare-pool", verb]).ok();
        assert!(!instance.run(&["--help"]).ok().out.contains(&format!("\n  {verb} ")), "hidden");
    }
}

#[test]
fn options_of_every_command_have_a_heading_of_their_own() {
    let instance = Instance::new();
    for verb in
        [&["create"][..], &["flush"], &["array", "create"], &["array", "spare-pool", "add"], &[]]
    {
        let help = instance.run(&[verb, &["--help"]].concat()).ok().out;
        let (own, common) =
            help.split_once("\nCommon options:\n").unwrap_or_else(|| panic!("{help}"));
        for option in ["--state", "--json", "-h, --help", "-V, --version"] {
            assert!(
                common.contains(option) && !own.contains(&format!("  {option}")),
                "{option}: {help}"
            );
        }
        let short = instance.run(&[verb, &["-h"]].concat()).ok().out;
        assert!(short.contains("Common options:"), "{short}");
        assert!(
            instance.run(&[verb, &["-V"]].concat()).ok().out.starts_with("voltier"),
            "{verb:?}"
        );
    }
}

#[test]
fn without_the_laboratory_its_verbs_say_where_it_is_looked_for() {
    let instance = Instance::new();
    let alone = instance.path("voltier");
    // By a program of its own: what this one still holds open to write while another thread forks cannot be run.
    assert!(Command::new("cp").arg(program()).arg(&alone).status().unwrap().success());
    for verb in ["lab", "demo"] {
        let mut command = Command::new(&alone);
        let answer = command.arg(verb).env("PATH", "").output().unwrap();
        Answer::from(answer)
            .refused(1, "`voltier-lab`, and is neither beside this one nor on PATH");
    }
}

#[test]
fn a_state_folder_that_cannot_be_is_refused() {
    let instance = Instance::new();
    instance.run(&["show", "--state", ""]).refused(2, "--state");
    instance.run(&["show", "--state", &format!("/{}", "x".repeat(110))]).refused(2, "--state");
    fs::write(instance.path("file"), "").unwrap();
    let below = instance.path("file/below");
    instance.run(&["start", "--state", below.to_str().unwrap()]).refused(1, "creating the state");
}

#[test]
fn a_started_daemon_answers_until_it_is_stopped() {
    let instance = Instance::new();
    instance.serve();
    let first = instance.run(&["show"]).ok();
    assert!(first.out.contains("no volumes"), "{first:?}");
    let pid = instance.pid().unwrap();
    assert_eq!(instance.run(&["show", "--json"]).json(), serde_json::json!([]));
    assert_eq!(instance.pid(), Some(pid), "one daemon serves all commands");
    instance.run(&["show", "nothing"]).refused(1, "voltier create");
    instance.run(&["daemon"]).refused(1, "already serves");
    instance.stop();
    assert!(!instance.state().join("control.sock").exists());
    instance.serve();
    assert_ne!(instance.pid(), Some(pid));
}

#[test]
fn a_stale_control_socket_is_replaced() {
    let instance = Instance::new();
    instance.serve();
    instance.signal(Signal::KILL);
    assert!(instance.state().join("control.sock").exists());
    instance.serve();
}

#[test]
fn a_command_right_after_a_kill_starts_the_next_daemon() {
    let instance = Instance::new();
    instance.run(&["create", "-p", "mem:1M", "v"]).ok();
    for _ in 0..10 {
        let pid = instance.pid().unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        instance.serve();
        assert_ne!(instance.pid(), Some(pid));
    }
}

#[test]
fn a_foreign_registry_is_refused_and_left_alone() {
    let instance = Instance::new();
    fs::create_dir(instance.state()).unwrap();
    let path = instance.state().join("registry.json");
    fs::write(&path, "{\"volumes\":[]}").unwrap();
    let answer = instance.run(&["show"]).refused(1, "refusing the registry");
    assert!(answer.err.contains(path.to_str().unwrap()), "{answer:?}");
    instance.run(&["daemon"]).refused(1, "refusing the registry");
    assert_eq!(fs::read_to_string(&path).unwrap(), "{\"volumes\":[]}");
}

#[test]
fn a_registry_that_a_newer_program_wrote_is_refused_by_name_and_left_alone() {
    let instance = Instance::new();
    let hdd = instance.drive("hdd", 1 << 20);
    instance.run(&["create", "-p", &hdd, "v"]).ok();
    instance.stop();
    let path = instance.state().join("registry.json");
    let good = fs::read_to_string(&path).unwrap();
    for (said, other, words) in [
        (
            "\"features\":[]",
            "\"features\":[\"quota\"]",
            "feature quota is unknown here; written by a newer",
        ),
        ("\"version\":1", "\"version\":11", "format version 11, and this Voltier reads version 1"),
    ] {
        let text = sealed_registry(&good.replacen(said, other, 1));
        fs::write(&path, &text).unwrap();
        for args in [&["show"][..], &["daemon"], &["create", "-p", "mem:1M", "w"]] {
            let answer = instance.run(args).refused(1, words);
            assert!(answer.err.contains(path.to_str().unwrap()), "{answer:?}");
            assert!(answer.err.contains("update this one"), "{answer:?}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    fs::write(&path, &good).unwrap();
    assert_eq!(instance.show("v")["state"], "running");
}

#[test]
fn hostile_bytes_on_the_control_socket_do_not_harm_the_daemon() {
    use std::io::{Read, Write};
    let instance = Instance::new();
    instance.serve();
    for bytes in [&b"\0\0\0\0\n"[..], b"{\"op\":\"fly\"}\n", b"[[[[[[[[[", b"\n\n\n"] {
        let socket = instance.state().join("control.sock");
        let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("\"answer\":\"error\""), "{answer}");
    }
    instance.serve();
}

#[test]
fn a_socket_that_somebody_else_serves_is_not_taken_over() {
    let instance = Instance::new();
    fs::create_dir(instance.state()).unwrap();
    let _other = UnixListener::bind(instance.state().join("control.sock")).unwrap();
    instance.run(&["daemon"]).refused(1, "another program answers");
}

#[test]
fn devices_that_cannot_be_used_are_refused_in_one_line_and_nothing_is_made() {
    let instance = Instance::new();
    instance.run(&["create", "-p", "/no/such/disk", "x"]).refused(1, "does not exist");
    instance.run(&["create", "-p", "/dev/null", "x"]).refused(1, "neither");
    assert_eq!(instance.run(&["show", "--json"]).json(), serde_json::json!([]));
}
