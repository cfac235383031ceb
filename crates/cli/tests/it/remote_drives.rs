//! Exports of NBD servers as drives, through the real binary, in front of nbdkit and of Voltier itself.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::support::arrays::{MIB, array};
use crate::support::ledger::{BLOCK, Ledger};
use crate::support::nbd::NbdClient;
use crate::support::{Instance, fio_is_content, until};

/// A server of a file, which can be ended and started again.
struct Nbdkit {
    child: Option<Child>,
    socket: String,
    args: Vec<String>,
}

impl Nbdkit {
    /// Serves a file with these arguments; `None`, aloud, where there is no nbdkit.
    fn serve(instance: &Instance, socket: &str, args: &[&str]) -> Option<Self> {
        if let Err(error) = Command::new("nbdkit").arg("--version").stdout(Stdio::null()).status() {
            eprintln!("left out: nbdkit: {error}");
            return None;
        }
        let args = args.iter().map(ToString::to_string).collect();
        let mut server = Self { child: None, socket: instance.aside(socket), args };
        server.start();
        Some(server)
    }

    /// One that serves this file without filters.
    fn of_file(instance: &Instance, file: &str) -> Option<Self> {
        Self::serve(instance, "server", &["file", file])
    }

    fn start(&mut self) {
        // A socket of a server that was killed stays.
        let _ = std::fs::remove_file(&self.socket);
        let mut command = Command::new("nbdkit");
        command.args(["--exit-with-parent", "-f", "-U", &self.socket]).args(&self.args);
        self.child = Some(command.stderr(Stdio::null()).spawn().unwrap());
        until("the server listens", || UnixStream::connect(&self.socket).is_ok());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Stops the process where it stands, or has it go on.
    fn signal(&self, signal: Signal) {
        let pid = self.child.as_ref().unwrap().id().cast_signed();
        rustix::process::kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket)
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Works on `v` while something happens: nothing may fail, and all goes on afterwards.
#[track_caller]
fn work_while(instance: &Instance, ledger: &mut Ledger, event: impl FnOnce()) {
    let mut nbd = instance.connect("v");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                assert!(ledger.work(&mut nbd, 20), "the connection has ended");
            }
            assert!(ledger.work(&mut nbd, 200), "all goes on");
            nbd.flush().unwrap();
        });
        event();
        is_over.store(true, Ordering::Release);
        worker.join().unwrap();
    });
    assert_eq!(ledger.refused, 0);
}

#[test]
fn an_export_is_a_disk_that_is_created_shown_stopped_started_and_deleted() {
    let instance = Instance::new();
    let file = instance.drive("file", 64 * MIB);
    let Some(server) = Nbdkit::of_file(&instance, &file) else { return };
    let uri = server.uri();
    instance.run(&["create", "v", "-p", &uri]).ok();
    let mut client = instance.exported("v");
    client.write(MIB, &[7; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    let shown = instance.show("v");
    assert_eq!((&shown["hdd"]["path"], &shown["state"]), (&uri.as_str().into(), &"running".into()));
    assert!(instance.run(&["show", "v"]).ok().out.contains(&format!("backing disk {uri} (64M")));
    let used = "is already part of volume v";
    instance.run(&["create", "w", "-p", &uri]).refused(1, used);
    let ssd = instance.drive("ssd", 16 * MIB);
    instance.run(&["create", "w", "-p", &ssd, "-s", &uri]).refused(1, used);
    for how in ["stop", "kill"] {
        if how == "stop" {
            instance.stop()
        } else {
            instance.kill()
        }
        assert_eq!(instance.show("v")["state"], "running");
        assert_eq!(instance.connect("v").read(MIB, 4096).unwrap(), [7; 4096]);
    }
    instance.run(&["delete", "v"]).ok();
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes[MIB as usize..][..4096], [7; 4096], "the disk keeps its data in place");
}

#[test]
fn what_cannot_be_reached_is_refused_in_one_line_that_says_what_to_do() {
    let instance = Instance::new();
    let file = instance.drive("file", 64 * MIB);
    let filter =
        ["--filter=exportname", "file", &file, "exportname-list=explicit", "exportname=disk"];
    let strict = ["exportname-strict=true"];
    let Some(server) = Nbdkit::serve(&instance, "s", &[&filter[..], &strict].concat()) else {
        return;
    };
    let refused = |device: &str, code, words| {
        instance.run(&["create", "v", "-p", device]).refused(code, words);
    };
    let unknown = format!("nbd+unix:///other?socket={}", server.socket);
    refused(&unknown, 1, "it has no export `other`, but `disk`; name one of these");
    refused(
        "nbd+unix:///x?socket=/no/such",
        1,
        "the socket /no/such does not exist; start the server",
    );
    refused("nbd://127.0.0.1:1/x", 1, "no server listens at 127.0.0.1:1; start it");
    refused("nbd://no.host.invalid/x", 1, "the host `no.host.invalid` is not known");
    refused("nbds://localhost/x", 2, "TLS is not in this version");
    refused("nbd:///x", 2, "give the name or the address of a host");
    assert_eq!(instance.run(&["show", "v"]).code, 1, "nothing was made");
    instance
        .run(&["create", "v", "-p", &format!("nbd+unix:///disk?socket={}", server.socket)])
        .ok();
    instance.run(&["delete", "v"]).ok();
}

#[test]
fn an_export_that_has_another_size_or_takes_no_writes_is_refused_until_the_user_says_so() {
    let instance = Instance::new();
    let file = instance.drive("file", 64 * MIB);
    let Some(mut server) = Nbdkit::of_file(&instance, &file) else { return };
    let (uri, ssd) = (server.uri(), instance.drive("ssd", 16 * MIB));
    instance.run(&["create", "v", "-p", &uri]).ok();
    instance.stop();
    for (mib, words) in [(32, "has 33554432 bytes now and had 67108864"), (96, "bytes now and had")]
    {
        server.kill();
        File::options().write(true).open(&file).unwrap().set_len(mib * MIB).unwrap();
        server.start();
        let shown = instance.show("v");
        assert_eq!(shown["state"], "failed", "{shown}");
        assert!(shown["error"].as_str().unwrap().contains(words), "{shown}");
        instance.run(&["start", "v"]).refused(1, words);
    }
    instance.run(&["set", "v", &format!("hdd={uri}")]).ok();
    assert_eq!(instance.show("v")["size_bytes"], 96 * MIB);
    instance.stop();
    server.kill();
    server.args.insert(0, "-r".to_owned());
    server.start();
    let words = "is read-only (its server serves it so";
    let shown = instance.show("v");
    assert!(shown["error"].as_str().unwrap().contains(words), "{shown}");
    instance.run(&["create", "w", "-p", &ssd, "-s", &uri]).refused(1, "already part of volume v");
    instance.run(&["delete", "v", "--no-flush"]).ok();
    instance.run(&["create", "v", "-p", &uri]).refused(1, words);
    server.kill();
    server.args.remove(0);
    server.start();
    instance.run(&["create", "v", "-p", &uri]).ok();
    instance.run(&["delete", "v"]).ok();
}

#[test]
fn a_server_that_is_killed_and_started_again_is_a_pause() {
    let instance = Instance::new();
    let file = instance.drive("file", 64 * MIB);
    let Some(mut server) = Nbdkit::of_file(&instance, &file) else { return };
    instance.run(&["create", "v", "-p", &server.uri()]).ok();
    let mut ledger = Ledger::filled(2000, &mut instance.exported("v"));
    for _ in 0..3 {
        work_while(&instance, &mut ledger, || {
            server.kill();
            thread::park_timeout(Duration::from_millis(200));
            server.start();
        });
    }
    ledger.check(&instance, "v");
    let log = std::fs::read_to_string(instance.state().join("daemon.log")).unwrap();
    assert!(log.contains("the connection is lost") && log.contains("connected again"), "{log}");
    instance.run(&["delete", "v"]).ok();
}

#[test]
fn a_volume_waits_for_a_server_that_comes_late() {
    let instance = Instance::new();
    let file = instance.drive("file", 64 * MIB);
    let Some(mut server) = Nbdkit::of_file(&instance, &file) else { return };
    instance.run(&["create", "v", "-p", &server.uri()]).ok();
    instance.stop();
    server.kill();
    let shown = instance.show("v");
    assert_eq!((&shown["state"], &shown["hdd"]["state"]), (&"failed".into(), &"missing".into()));
    assert!(shown["error"].as_str().unwrap().contains("no server listens"), "{shown}");
    server.start();
    until("the volume is served", || instance.show("v")["state"] == "running");
    instance.run(&["delete", "v"]).ok();
}

#[test]
fn a_daemon_that_is_killed_while_the_server_is_gone_has_acknowledged_nothing_that_is_lost() {
    let instance = Instance::new();
    let file = instance.drive("file", 64 * MIB);
    let Some(mut server) = Nbdkit::of_file(&instance, &file) else { return };
    instance.run(&["create", "v", "-p", &server.uri()]).ok();
    let mut client = instance.exported("v");
    client.write(0, &[1; 4096]).unwrap();
    server.kill();
    let writer = thread::Builder::new().spawn(move || client.write(4096, &[2; 4096]).is_err());
    thread::park_timeout(Duration::from_millis(200));
    instance.kill();
    assert!(writer.unwrap().join().unwrap(), "it was not acknowledged");
    server.start();
    assert_eq!(instance.show("v")["state"], "running");
    assert_eq!(instance.connect("v").read(0, 4096).unwrap(), [1; 4096]);
    instance.run(&["delete", "v"]).ok();
}

#[test]
fn a_cache_takes_writes_while_the_server_of_its_disk_is_away() {
    let instance = Instance::new();
    let (file, ssd) = (instance.drive("file", 64 * MIB), instance.drive("ssd", 64 * MIB));
    let Some(mut server) = Nbdkit::of_file(&instance, &file) else { return };
    instance.run(&["create", "v", "-p", &server.uri(), "-s", &ssd, "-t", "wb"]).ok();
    let mut client = instance.exported("v");
    // The first flush covers what the disk may have had in its own memory before.
    client.flush().unwrap();
    server.kill();
    for block in 0..500 {
        client.write(block * 8192, &[block as u8; 4096]).unwrap();
    }
    client.flush().unwrap();
    server.start();
    drop(client);
    instance.run(&["flush", "v"]).ok();
    until("all is on the disk", || instance.show("v")["lines"]["dirty"] == 0);
    let bytes = std::fs::read(&file).unwrap();
    for block in 0..500 {
        assert_eq!(bytes[block * 8192..][..4096], [block as u8; 4096], "block {block}");
    }
    instance.kill();
    assert_eq!(instance.show("v")["state"], "running");
    instance.run(&["delete", "v"]).ok();
}

#[test]
fn an_export_is_a_member_of_an_array_that_goes_on_without_it() {
    let instance = Instance::new();
    let file = instance.drive("file", 32 * MIB);
    let Some(mut server) = Nbdkit::of_file(&instance, &file) else { return };
    let (uri, near) = (server.uri(), instance.drive("near", 32 * MIB));
    instance.run(&["array", "create", "a", "--level", "1", &near, &uri]).ok();
    instance.run(&["array", "set", "a", "deadline=1s"]).ok();
    instance.run(&["create", "v", "-p", "array:a"]).ok();
    instance
        .run(&["array", "create", "b", "--level", "1", &uri, &uri])
        .refused(1, "already part of");
    let mut ledger = Ledger::filled(1000, &mut instance.exported("v"));
    work_while(&instance, &mut ledger, || {
        server.kill();
        until("the member is lost", || array(&instance)["members"][1]["state"] == "lost");
    });
    server.start();
    instance.run(&["array", "replace", "a", "1", &uri]).ok();
    until("the member is back", || array(&instance)["state"] == "running");
    ledger.check(&instance, "v");
    instance.stop();
    assert_eq!(array(&instance)["state"], "running");
    ledger.check(&instance, "v");
    instance.run(&["delete", "v"]).ok();
    instance.run(&["array", "delete", "a"]).ok();
}

#[test]
fn servers_that_are_slow_or_stand_still_are_waited_for() {
    let instance = Instance::new();
    let (file, control) = (instance.drive("file", 64 * MIB), instance.aside("pause"));
    let pause = format!("pause-control={control}");
    let args = ["--filter=pause", "--filter=delay", "file", &file, "delay-write=2ms", &pause];
    let Some(server) = Nbdkit::serve(&instance, "server", &args) else { return };
    instance.run(&["create", "v", "-p", &server.uri()]).ok();
    let mut ledger = Ledger::filled(200, &mut instance.exported("v"));
    work_while(&instance, &mut ledger, || {
        let mut pauser = UnixStream::connect(&control).unwrap();
        pauser.write_all(b"p").unwrap();
        thread::park_timeout(Duration::from_millis(300));
        pauser.write_all(b"r").unwrap();
    });
    ledger.check(&instance, "v");
    instance.run(&["delete", "v"]).ok();
}

#[test]
fn errors_of_a_server_reach_the_client_and_are_not_made_up() {
    let instance = Instance::new();
    let (file, trigger) = (instance.drive("file", 64 * MIB), instance.aside("trigger"));
    let file_arg = format!("error-file={trigger}");
    let args = ["--filter=error", "file", &file, "error-rate=100%", "error=EIO", &file_arg];
    let Some(server) = Nbdkit::serve(&instance, "server", &args) else { return };
    instance.run(&["create", "v", "-p", &server.uri()]).ok();
    let mut client = instance.exported("v");
    client.write(0, &[1; 4096]).unwrap();
    File::create(&trigger).unwrap();
    assert!(client.read(0, 4096).is_err());
    assert!(client.write(0, &[2; 4096]).is_err());
    std::fs::remove_file(&trigger).unwrap();
    let read = client.read(0, 4096).unwrap();
    assert!(read == [1; 4096] || read == [2; 4096]);
    drop(client);
    instance.run(&["delete", "v"]).ok();
}

#[test]
fn a_volume_stands_on_an_export_of_another_daemon_over_tcp_and_fio_finds_what_it_wrote() {
    let (below, above) = (Instance::new(), Instance::new());
    below.run(&["create", "far", "-p", "mem:64M"]).ok();
    let uri = below.run(&["export", "far", "--nbd", "127.0.0.1:0"]).ok().out.trim().to_owned();
    assert!(uri.starts_with("nbd://127.0.0.1:"), "{uri}");
    above.run(&["create", "v", "-p", &uri]).ok();
    let own = above.export("v");
    fio_is_content(above.fio_verified(&own, &["--size=32M", "--bs=4k", "--number_ios=4000"]));
    above.run(&["delete", "v"]).ok();
    below.run(&["delete", "far"]).ok();
}

#[test]
fn a_volume_on_an_export_of_its_own_daemon_stops_before_the_one_below() {
    let instance = Instance::new();
    let (disk, ssd) = (instance.drive("disk", 64 * MIB), instance.drive("ssd", 32 * MIB));
    instance.run(&["create", "a-lower", "-p", &disk]).ok();
    let uri = instance.export("a-lower");
    instance.run(&["create", "v", "-p", &uri, "-s", &ssd, "-t", "wt"]).ok();
    let mut client = instance.exported("v");
    client.write(0, &[9; 4096]).unwrap();
    drop(client);
    instance.stop();
    let log = std::fs::read_to_string(instance.state().join("daemon.log")).unwrap();
    assert!(!log.contains("the connection is lost"), "{log}");
    until("both are served", || instance.show("v")["state"] == "running");
    assert_eq!(instance.connect("v").read(0, 4096).unwrap(), [9; 4096]);
    instance.run(&["delete", "v"]).ok();
    instance.run(&["delete", "a-lower"]).ok();
}

/// Looks without a write that was taken, after which writers wait: a second.
const LOOKS_OF_STANDSTILL: u32 = 20;

/// Writes blocks, with a flush after each hundred; `taken` counts them.
fn write_all(
    ledger: &mut Ledger,
    client: &mut NbdClient,
    blocks: impl Iterator<Item = u64>,
    taken: &AtomicU64,
) {
    for block in blocks {
        ledger.write(client, block).unwrap();
        if taken.fetch_add(1, Ordering::AcqRel).is_multiple_of(100) {
            client.flush().unwrap();
        }
    }
}

fn read_all(ledger: &mut Ledger, instance: &Instance, blocks: Range<u64>) {
    let mut client = instance.connect("v");
    blocks.for_each(|block| ledger.read(&mut client, block).unwrap());
}

#[test]
fn an_ordered_cache_goes_on_while_its_server_is_stopped_or_killed_until_its_log_is_full() {
    for is_killed in [false, true] {
        let instance = Instance::new();
        let (file, ssd) = (instance.drive("file", 64 * MIB), instance.drive("ssd", 24 * MIB));
        let Some(mut server) = Nbdkit::of_file(&instance, &file) else { return };
        instance.run(&["create", "v", "-p", &server.uri(), "-s", &ssd, "-t", "wb"]).ok();
        instance.run(&["set", "v", "ordered=on", "deadline=2s"]).ok();
        let uri = instance.export("v");
        let mut hot = Ledger::filled(200, &mut instance.connect("v"));
        let fio = instance
            .fio_verified(&uri, &["--offset=48M", "--size=16M", "--bs=4k", "--number_ios=3000"]);
        until("fio writes", || {
            fio.is_none() || instance.show("v")["writes"]["requests"].as_u64() > Some(400)
        });
        match is_killed {
            true => server.kill(),
            false => server.signal(Signal::STOP),
        }
        let (taken, writes) = (AtomicU64::new(0), 9000_u64);
        let first = (8 * MIB) as usize / BLOCK;
        let mut cold = Ledger::new(first + writes as usize);
        thread::scope(|scope| {
            let (taken, cold, mut client) = (&taken, &mut cold, instance.connect("v"));
            let blocks = (0..writes).map(|number| first as u64 + number * 787 % writes);
            let writer = scope.spawn(move || write_all(cold, &mut client, blocks, taken));
            let (mut seen, mut looks) = (0, 0);
            until("the log is full and the writer waits", || {
                let now = taken.load(Ordering::Acquire);
                looks = if now == seen { looks + 1 } else { 0 };
                seen = now;
                looks >= LOOKS_OF_STANDSTILL
                    && instance.show("v")["lines"]["dirty"].as_u64() > Some(1000)
            });
            assert!(
                seen < writes && !writer.is_finished(),
                "{seen} writes, and the SSD has no room for them"
            );
            // What is cached goes on.
            let mut client = instance.connect("v");
            (0..200).for_each(|block| hot.read(&mut client, block).unwrap());
            until("the disk is silent", || instance.show("v")["hdd"]["state"] == "silent");
            let shown = instance.run(&["show", "v"]).out;
            assert!(shown.contains("not answering"), "{shown}");
            (0..200).for_each(|block| hot.read(&mut client, block).unwrap());
            assert_eq!(
                taken.load(Ordering::Acquire),
                seen,
                "the writer still waits, without an error"
            );
            match is_killed {
                true => server.start(),
                false => server.signal(Signal::CONT),
            }
            writer.join().unwrap();
        });
        let cold_blocks = first as u64..first as u64 + writes;
        let check_cold = |cold: &mut Ledger| read_all(cold, &instance, cold_blocks.clone());
        fio_is_content(fio);
        assert_eq!((hot.refused, cold.refused), (0, 0));
        until("the volume is as before", || instance.show("v")["state"] == "running");
        hot.check(&instance, "v");
        check_cold(&mut cold);
        instance.run(&["flush", "v"]).ok();
        assert_eq!(instance.show("v")["lines"]["dirty"], 0);
        instance.run(&["detach", "v"]).ok();
        hot.check(&instance, "v");
        check_cold(&mut cold);
        instance.run(&["delete", "v"]).ok();
    }
}

#[test]
fn the_log_says_which_server_a_stop_of_the_daemon_waits_for() {
    let instance = Instance::new();
    let file = instance.drive("file", 64 * MIB);
    let Some(mut server) = Nbdkit::of_file(&instance, &file) else { return };
    instance.run(&["create", "v", "-p", &server.uri()]).ok();
    let mut client = instance.exported("v");
    client.write(0, &[1; 4096]).unwrap();
    drop(client);
    server.kill();
    let stop = instance.command(&["stop"]).spawn().unwrap();
    let log = instance.state().join("daemon.log");
    let words = format!("stop: closing {}, since", server.uri());
    until("the log says it", || std::fs::read_to_string(&log).unwrap().contains(&words));
    // Back in time, the stop is one in order.
    server.start();
    assert!(stop.wait_with_output().unwrap().status.success());
    assert_eq!(instance.show("v")["state"], "running");
    instance.run(&["delete", "v"]).ok();
}
