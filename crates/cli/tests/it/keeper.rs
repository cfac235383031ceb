//! The keeper, as a user meets it: daemons are killed under block devices and files, and nobody above notices.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal};

use crate::support::arrays::MIB;
use crate::support::ledger::{BLOCK, content};
use crate::support::{Instance, keepers_of, rounds, until};

/// Blocks of a file that each writer has for itself.
const BLOCKS: u64 = 1024;

/// An instance; `None`, aloud, where there is no root, no FUSE, no loop device, or a kernel that does not send
/// requests again.
fn instance() -> Option<Instance> {
    let can = |path| File::options().read(true).write(true).open(path).is_ok();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-', '+']).map(|number| number.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if !(can("/dev/fuse") && can("/dev/loop-control")) || version < (6, 9) {
        eprintln!("left out: needs root, FUSE, loop devices and Linux 6.9");
        return None;
    }
    Some(Instance::new())
}

fn run(instance: &Instance, args: &[&str]) -> crate::support::Answer {
    instance.command(args).env_remove("VOLTIER_EXPORT").output().unwrap().into()
}

/// A cached volume that writes back, with its block device.
fn volume(instance: &Instance) -> PathBuf {
    let (ssd, hdd) = (instance.drive("ssd", 64 * MIB), instance.drive("hdd", 256 * MIB));
    run(instance, &["create", "-s", &ssd, "-p", &hdd, "-t", "wb", "v"]).ok();
    instance.state().join("dev/v")
}

fn folder(instance: &Instance) -> PathBuf {
    let folder = instance.path("mounted");
    fs::create_dir(&folder).unwrap();
    folder
}

fn program(name: &str, args: &[&str]) {
    let output = Command::new(name).args(args).output().unwrap();
    assert!(output.status.success(), "{name} {args:?}: {output:?}");
}

/// Opens past the page cache.
fn direct(path: &Path) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.custom_flags(0o40000).open(path).unwrap()
}

/// A block of memory where direct I/O wants it.
struct Page(Vec<u8>);

impl Page {
    fn new() -> Self {
        Self(vec![0; 2 * BLOCK])
    }

    fn bytes(&mut self) -> &mut [u8] {
        let at = self.0.as_ptr().align_offset(BLOCK);
        &mut self.0[at..at + BLOCK]
    }
}

/// What writers tell of themselves.
#[derive(Default)]
struct Told {
    stops: AtomicBool,
    acknowledged: AtomicU64,
    /// The longest request since this was last asked, in microseconds.
    longest: AtomicU64,
}

#[expect(clippy::disallowed_methods, reason = "a test of how long users wait")]
fn now() -> Instant {
    Instant::now()
}

/// Writes blocks at and after `first` by chance, reads some back, and makes some durable, until it is told to stop.
/// No request may fail. How often each block was written.
fn work(path: &Path, first: u64, told: &Told) -> Vec<u32> {
    let (file, mut page) = (direct(path), Page::new());
    let mut writes = vec![0; BLOCKS as usize];
    let mut dice = 0x2545_f491_4f6c_dd1d ^ first;
    while !told.stops.load(Ordering::Relaxed) {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        let own = (dice >> 8) % BLOCKS;
        let (block, count) = (first + own, &mut writes[own as usize]);
        let begun = now();
        match dice % 16 {
            0 => file.sync_data().unwrap(),
            1..4 => check(&file, &mut page, block, *count),
            _ => {
                *count += 1;
                page.bytes().copy_from_slice(&content(block, *count));
                file.write_all_at(page.bytes(), block * BLOCK as u64).unwrap();
                told.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
        }
        told.longest.fetch_max(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
    }
    writes
}

#[track_caller]
fn check(file: &File, page: &mut Page, block: u64, write: u32) {
    file.read_exact_at(page.bytes(), block * BLOCK as u64).unwrap();
    assert!(page.bytes() == content(block, write), "block {block} has not write {write}");
}

/// Waits for so many more acknowledged writes.
fn more(told: &Told, writes: u64) {
    let goal = told.acknowledged.load(Ordering::Relaxed) + writes;
    until("writes are acknowledged", || told.acknowledged.load(Ordering::Relaxed) >= goal);
}

/// Two writers on a file while `rounds` happen; then every acknowledged write is there.
fn under_load(path: &Path, rounds: impl FnOnce(&Told)) {
    direct(path).set_len(2 * BLOCKS * BLOCK as u64).unwrap_or_default();
    let blank = vec![0; BLOCK * BLOCKS as usize];
    let whole = File::options().write(true).open(path).unwrap();
    (0..2).for_each(|half| whole.write_all_at(&blank, half * blank.len() as u64).unwrap());
    whole.sync_all().unwrap();
    let told = Told::default();
    let counts = thread::scope(|scope| {
        let writers = [0, BLOCKS].map(|first| {
            scope.spawn({
                let told = &told;
                move || work(path, first, told)
            })
        });
        rounds(&told);
        told.stops.store(true, Ordering::Relaxed);
        writers.map(|writer| writer.join().unwrap())
    });
    let (file, mut page) = (direct(path), Page::new());
    for (block, write) in counts.concat().into_iter().enumerate() {
        check(&file, &mut page, block as u64, write);
    }
}

/// In milliseconds.
fn print_pauses(what: &str, mut pauses: Vec<u64>) {
    pauses.sort_unstable();
    let (count, worst) = (pauses.len(), pauses[pauses.len() - 1]);
    let p50 = pauses[count / 2];
    println!("pauses of a client, {count} {what}: p50 {p50} ms, worst {worst} ms ({pauses:?})");
}

/// A volume without a cache, exported to NBD alone.
fn network_volume(instance: &Instance, name: &str) {
    let hdd = instance.drive(&format!("hdd-{name}"), 64 * MIB);
    instance.run(&["create", "-p", &hdd, name]).ok();
    instance.export(name);
}

#[test]
fn a_file_system_and_clients_of_the_network_outlive_ten_upgrades() {
    let Some(instance) = instance() else { return };
    volume(&instance);
    network_volume(&instance, "n");
    let at = folder(&instance);
    instance.run(&["mount", "v", at.to_str().unwrap(), "--mkfs", "ext4"]).ok();
    let pid = instance.pid();
    let folder = format!("/proc/{}/fd", pid.unwrap().as_raw_pid());
    let open_descriptors = || fs::read_dir(&folder).unwrap().count();
    let before = open_descriptors();
    let stops = AtomicBool::new(false);
    thread::scope(|scope| {
        // One connection, which no client would take up again.
        let client = scope.spawn(|| {
            let mut client = instance.connect("n");
            let mut write = 0;
            while !stops.load(Ordering::Relaxed) {
                write += 1;
                let block = u64::from(write % 512);
                let data = content(block, write);
                client.write(block * BLOCK as u64, &data).unwrap();
                assert!(client.read(block * BLOCK as u64, BLOCK).unwrap() == data);
            }
            write
        });
        under_load(&at.join("file"), |told| {
            let mut pauses = Vec::new();
            for _ in 0..rounds() {
                more(told, 100);
                told.longest.store(0, Ordering::Relaxed);
                instance.run(&["upgrade"]).ok();
                more(told, 100);
                pauses.push(told.longest.load(Ordering::Relaxed) / 1000);
            }
            print_pauses("upgrades", pauses);
        });
        stops.store(true, Ordering::Relaxed);
        assert!(client.join().unwrap() > 100);
    });
    // The same process, with one keeper, and nothing left of the programs before.
    assert_eq!(instance.pid(), pid);
    assert_eq!(keepers_of(&instance.state()).len(), 1);
    until("no more descriptors are open than before", || open_descriptors() <= before);
    // A kill after an upgrade is a kill like any other.
    instance.kill();
    instance.serve();
    fs::write(at.join("more"), "data").unwrap();
    instance.run(&["stop", "v"]).refused(1, "mounted on");
    program("umount", &[at.to_str().unwrap()]);
    instance.run(&["stop"]).ok();
    until("the keeper has ended", || keepers_of(&instance.state()).is_empty());
}

#[test]
fn nbdcopy_copies_through_upgrades() {
    let Some(instance) = instance() else { return };
    if Command::new("nbdcopy").arg("--version").output().is_err() {
        eprintln!("left out: needs nbdcopy");
        return;
    }
    network_volume(&instance, "n");
    let (from, uri) = (instance.path("from"), instance.export("n"));
    let blocks = 64 * MIB / BLOCK as u64;
    let all: Vec<u8> = (0..blocks).flat_map(|block| content(block, 7)).collect();
    fs::write(&from, &all).unwrap();
    let to = instance.path("to");
    let mut copies = Vec::new();
    for ends in [[from.to_str().unwrap(), &uri], [&uri, to.to_str().unwrap()]] {
        let mut copy = Command::new("nbdcopy").args(ends).spawn().unwrap();
        let mut upgrades = 0;
        while copy.try_wait().unwrap().is_none() {
            instance.run(&["upgrade"]).ok();
            upgrades += 1;
        }
        assert!(copy.wait().unwrap().success());
        copies.push(upgrades);
    }
    println!("upgrades while nbdcopy ran: {copies:?}");
    assert!(fs::read(&to).unwrap() == all);
}

#[test]
fn clients_of_a_volume_that_does_not_come_back_wait_for_it_or_are_cut_off() {
    let Some(instance) = instance() else { return };
    // One that is not looked for is failed at once, and so is all that waits for it.
    let mut start = instance.command(&["start"]);
    assert!(start.env("VOLTIER_DEVICE_WAIT", "600").status().unwrap().success());
    network_volume(&instance, "n");
    let mut client = instance.connect("n");
    client.write(0, &[7; BLOCK]).unwrap();
    let (disk, away) = (instance.path("hdd-n"), instance.aside("hdd-n"));
    fs::rename(&disk, &away).unwrap();
    instance.run(&["upgrade"]).ok();
    instance.run(&["stop", "n"]).refused(1, "1 client(s) use");
    fs::rename(&away, &disk).unwrap();
    until("the volume is back", || instance.show("n")["state"] == "running");
    assert!(client.read(0, BLOCK).unwrap() == [7; BLOCK]);
    fs::rename(&disk, &away).unwrap();
    instance.run(&["upgrade"]).ok();
    instance.run(&["stop", "n", "--now"]).ok();
    client.read(0, BLOCK).unwrap_err();
    fs::rename(&away, &disk).unwrap();
    instance.run(&["start", "n"]).ok();
    assert!(instance.connect("n").read(0, BLOCK).unwrap() == [7; BLOCK]);
}

/// The answer to a request that no command of ours sends.
fn ask(instance: &Instance, request: &str) -> String {
    let mut stream = UnixStream::connect(instance.state().join("control.sock")).unwrap();
    stream.write_all(format!("{request}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

#[test]
fn an_upgrade_that_cannot_be_changes_nothing() {
    let Some(instance) = instance() else { return };
    instance.run(&["upgrade"]).refused(1, "no daemon serves");
    volume(&instance);
    let at = folder(&instance);
    instance.run(&["mount", "v", at.to_str().unwrap(), "--mkfs", "ext4"]).ok();
    let handover = voltier_cores::HANDOVER;
    let request = |program: &str, handover: u32| {
        format!("{{\"op\":\"upgrade\",\"program\":\"{program}\",\"handover\":{handover}}}")
    };
    let program = crate::support::program().display().to_string();
    let refused = [
        (request(&program, handover + 1), "cannot take over"),
        (request("/no/such/program", handover), "is no program"),
        (request("/etc/passwd", handover), "is no program"),
        (request("relative", handover), "is no program"),
    ];
    for (request, words) in refused {
        let answer = ask(&instance, &request);
        assert!(answer.contains(words), "{answer}");
    }
    instance.run(&["create", "-p", "mem:16M", "m", "--export", "none"]).ok();
    instance.run(&["upgrade"]).refused(1, "`voltier stop m` first");
    instance.run(&["delete", "m"]).ok();
    let mut array = vec!["array", "create", "a", "--level", "5", "--export", "none"];
    array.extend(["mem:16M"; 3]);
    instance.run(&array).ok();
    instance.run(&["upgrade"]).refused(1, "`voltier array stop a` first");
    instance.run(&["array", "delete", "a"]).ok();
    // The program could not be read while its volume waits for it.
    let inside = at.join("voltier");
    fs::copy(&program, &inside).unwrap();
    let answer = ask(&instance, &request(inside.to_str().unwrap(), handover));
    assert!(answer.contains("is on v itself"), "{answer}");
    fs::write(at.join("file"), "data").unwrap();
    // What looks like a program, and cannot be started: the daemon becomes itself again.
    let bad = instance.path("bad");
    fs::write(&bad, [0; 64]).unwrap();
    fs::set_permissions(&bad, fs::Permissions::from_mode(0o755)).unwrap();
    let answer = ask(&instance, &request(bad.to_str().unwrap(), handover));
    assert!(answer.contains("upgrading"), "{answer}");
    let log = || fs::read_to_string(instance.state().join("daemon.log")).unwrap();
    until("the daemon says so", || log().contains(&format!("starting {}", bad.display())));
    fs::write(at.join("file"), "data after").unwrap();
    assert_eq!(instance.show("v")["exports"][0]["state"], "open");
    let exe = format!("/proc/{}/exe", instance.pid().unwrap().as_raw_pid());
    assert_eq!(fs::read_link(exe).unwrap(), Path::new(&program));
    self::program("umount", &[at.to_str().unwrap()]);
}

#[test]
fn a_file_system_outlives_ten_killed_daemons() {
    let Some(instance) = instance() else { return };
    let device = volume(&instance);
    let at = folder(&instance);
    instance.run(&["mount", "v", at.to_str().unwrap(), "--mkfs", "ext4"]).ok();
    let node = fs::canonicalize(&device).unwrap();
    under_load(&at.join("file"), |told| {
        let mut pauses = Vec::new();
        for round in 0..rounds() {
            more(told, 100);
            told.longest.store(0, Ordering::Relaxed);
            instance.kill();
            if round % 3 == 2 {
                // One that dies in the middle of its start, perhaps with requests that it had just read.
                let mut start = instance.command(&["start"]).spawn().unwrap();
                thread::park_timeout(Duration::from_millis(15 * (round % 10)));
                instance.kill();
                start.wait().unwrap();
            }
            instance.serve();
            more(told, 100);
            pauses.push(told.longest.load(Ordering::Relaxed) / 1000);
            assert_eq!(fs::canonicalize(&device).unwrap(), node);
        }
        print_pauses("kills", pauses);
    });
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(at.to_str().unwrap())).unwrap();
    assert!(line.split(' ').nth(3).unwrap().starts_with("rw"), "{line}");
    fs::write(at.join("more"), "data").unwrap();
    // It is in use as before, and ends as before.
    instance.run(&["stop", "v"]).refused(1, "mounted on");
    program("umount", &[at.to_str().unwrap()]);
    program("e2fsck", &["-fn", node.to_str().unwrap()]);
    instance.run(&["stop", "v"]).ok();
    assert!(fs::symlink_metadata(&device).is_err());
    until("the keeper has ended", || keepers_of(&instance.state()).is_empty());
    instance.run(&["start", "v"]).ok();
    instance.run(&["mount", "v", at.to_str().unwrap()]).ok();
    assert_eq!(fs::read(at.join("more")).unwrap(), b"data");
    program("umount", &[at.to_str().unwrap()]);
    instance.run(&["stop"]).ok();
    until("the keeper has ended", || keepers_of(&instance.state()).is_empty());
    assert!(!instance.state().join("keeper.sock").exists());
}

#[test]
fn a_file_that_a_program_has_open_goes_on_after_a_kill_and_is_counted() {
    let Some(instance) = instance() else { return };
    let hdd = instance.drive("hdd", 64 * MIB);
    run(&instance, &["create", "-p", &hdd, "v", "--export", "none"]).ok();
    let path = instance.path("v.img");
    instance.run(&["export", "v", "--fuse", path.to_str().unwrap()]).ok();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    for round in 1..4_u8 {
        file.write_all_at(&[round; 4096], 4096).unwrap();
        instance.kill();
        // Requests wait for the next daemon.
        thread::scope(|scope| {
            let write = scope.spawn(|| file.write_all_at(&[round; 100], u64::from(round) * 8192));
            thread::park_timeout(Duration::from_millis(100));
            assert!(!write.is_finished());
            instance.serve();
            write.join().unwrap().unwrap();
        });
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, 4096).unwrap();
        assert_eq!(bytes, [round; 4096]);
        let users = instance.show("v")["exports"][0]["users"].to_string();
        assert!(users.contains(&format!("process {}", std::process::id())), "{users}");
        instance.run(&["unexport", "v"]).refused(1, "in use");
    }
    drop(file);
    until("the file is closed", || instance.run(&["unexport", "v"]).code == 0);
    assert!(!path.exists());
    until("the keeper has ended", || keepers_of(&instance.state()).is_empty());
}

#[test]
fn without_a_daemon_requests_fail_when_the_time_is_over() {
    let Some(instance) = instance() else { return };
    let hdd = instance.drive("hdd", 64 * MIB);
    let mut create = instance.command(&["create", "-p", &hdd, "v", "--export", "none"]);
    assert!(create.env("VOLTIER_KEEP", "1").status().unwrap().success());
    let path = instance.path("v.img");
    instance.run(&["export", "v", "--fuse", path.to_str().unwrap()]).ok();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    instance.kill();
    let begun = now();
    let error = file.write_all_at(&[2; 4096], 0).unwrap_err();
    assert_eq!(
        error.raw_os_error(),
        Some(rustix::io::Errno::CONNABORTED.raw_os_error()),
        "{error}"
    );
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    until("the keeper has ended", || keepers_of(&instance.state()).is_empty());
    // The next daemon begins anew.
    instance.serve();
    assert_eq!(fs::read(&path).unwrap()[..4096], [1; 4096]);
}

#[test]
fn daemon_and_keeper_killed_is_as_without_a_keeper() {
    let Some(instance) = instance() else { return };
    let device = volume(&instance);
    let other = self::instance().unwrap();
    let beside = volume(&other);
    direct(&device).write_all_at(Page::new().bytes(), 0).unwrap();
    instance.kill();
    let keepers = keepers_of(&instance.state());
    assert_eq!(keepers.len(), 1);
    let end = |pid: Pid| rustix::process::kill_process(pid, Signal::KILL).unwrap();
    keepers.into_iter().for_each(end);
    until("the keeper is gone", || keepers_of(&instance.state()).is_empty());
    instance.serve();
    assert_eq!(instance.show("v")["exports"][0]["state"], "open");
    direct(&device).write_all_at(Page::new().bytes(), 0).unwrap();
    assert_eq!(keepers_of(&instance.state()).len(), 1);
    // The other instance knows nothing of it.
    other.kill();
    thread::scope(|scope| {
        let write = scope.spawn(|| direct(&beside).write_all_at(Page::new().bytes(), 0).unwrap());
        other.serve();
        write.join().unwrap();
    });
    other.run(&["stop"]).ok();
    until("the keeper has ended", || keepers_of(&other.state()).is_empty());
    assert_eq!(keepers_of(&instance.state()).len(), 1);
}

/// The descriptors that a daemon gives the service manager, and the message with them.
fn given(manager: &UnixDatagram) -> (String, Vec<OwnedFd>) {
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 4096];
        let mut room = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let length = recvmsg(manager, &mut room, &mut ancillary, flags).unwrap().bytes;
        let fds: Vec<OwnedFd> = ancillary
            .drain()
            .flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
                _ => Vec::new(),
            })
            .collect();
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        if text.starts_with("FDSTORE") {
            return (text, fds);
        }
    }
}

#[test]
fn systemd_keeps_for_a_daemon_that_it_started() {
    let Some(instance) = instance() else { return };
    let hdd = instance.drive("hdd", 64 * MIB);
    run(&instance, &["create", "-p", &hdd, "v", "--export", "none"]).ok();
    instance.run(&["stop"]).ok();
    let at = instance.path("notify");
    let manager = UnixDatagram::bind(&at).unwrap();
    let state = instance.state().display().to_string();
    let daemon = || {
        let mut command = instance.command(&["--state", &state, "daemon"]);
        command.env("NOTIFY_SOCKET", &at).env("FDSTORE", "16").stderr(Stdio::null());
        command
    };
    let mut first = daemon().spawn().unwrap();
    until("the daemon is ready", || {
        let mut bytes = [0; 4096];
        let length = manager.recv(&mut bytes).unwrap();
        bytes[..length].starts_with(b"READY=1")
    });
    let path = instance.path("v.img");
    let shown = path.to_str().unwrap();
    instance.run(&["export", "v", "--fuse", shown]).ok();
    let (text, mut kept) = given(&manager);
    assert_eq!(text, format!("FDSTORE=1\nFDPOLL=0\nFDNAME={shown}"));
    assert!(keepers_of(&instance.state()).is_empty());
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    instance.kill();
    first.wait().unwrap();
    // The number of the process stays when it becomes another program.
    let (note, device) = (kept.pop().unwrap(), kept.pop().unwrap());
    let script = "exec 3<&0 4<&1 </dev/null >/dev/null; export LISTEN_PID=$$; exec \"$0\" \"$@\"";
    let (plain, mut second) = (daemon(), Command::new("sh"));
    second.args(["-c", script]).arg(plain.get_program()).args(plain.get_args());
    second.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    second.env("LISTEN_FDS", "2").env("LISTEN_FDNAMES", format!("{shown}:{shown}"));
    let mut second = second.stdin(note).stdout(device).stderr(Stdio::null()).spawn().unwrap();
    file.write_all_at(&[2; 4096], 4096).unwrap();
    let mut bytes = [0; 8192];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes[..4096] == [1; 4096] && bytes[4096..] == [2; 4096]);
    // What systemd passed is none of the next program's.
    for round in 3..6 {
        instance.run(&["upgrade"]).ok();
        file.write_all_at(&[round; 4096], 0).unwrap();
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[..4096] == [round; 4096] && bytes[4096..] == [2; 4096]);
        assert!(keepers_of(&instance.state()).is_empty());
        // systemd takes what it is told; a socket that is full would hold the daemon up.
        manager.set_nonblocking(true).unwrap();
        while manager.recv(&mut [0; 4096]).is_ok() {}
        manager.set_nonblocking(false).unwrap();
    }
    drop(file);
    until("the file is closed", || instance.run(&["unexport", "v"]).code == 0);
    assert_eq!(given(&manager).0, format!("FDSTOREREMOVE=1\nFDNAME={shown}"));
    instance.run(&["stop"]).ok();
    assert!(second.wait().unwrap().success());
}

#[test]
fn a_volume_that_does_not_come_back_ends_its_file() {
    let Some(instance) = instance() else { return };
    let hdd = instance.drive("hdd", 64 * MIB);
    run(&instance, &["create", "-p", &hdd, "v", "--export", "none"]).ok();
    let path = instance.path("v.img");
    instance.run(&["export", "v", "--fuse", path.to_str().unwrap()]).ok();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    instance.kill();
    let aside = instance.aside("hdd");
    fs::rename(&hdd, &aside).unwrap();
    let begun = now();
    instance.serve();
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "the start waited for the file: {:?}",
        begun.elapsed()
    );
    file.write_all_at(&[2; 4096], 0).unwrap_err();
    until("the keeper has ended", || keepers_of(&instance.state()).is_empty());
    fs::rename(&aside, &hdd).unwrap();
    instance.run(&["start", "v"]).ok();
    assert_eq!(instance.show("v")["exports"][0]["state"], "open");
}

#[test]
fn a_kept_file_system_is_not_cut_off_unasked_and_never_gets_another_volume() {
    let Some(instance) = instance() else { return };
    let device = volume(&instance);
    let at = folder(&instance);
    let shown = at.to_str().unwrap();
    instance.run(&["mount", "v", shown, "--mkfs", "ext4"]).ok();
    fs::write(at.join("file"), "data").unwrap();
    program("sync", &["-f", shown]);
    // The disk is away when the next daemon comes.
    let (disk, away) = (instance.path("hdd"), instance.aside("hdd"));
    instance.kill();
    fs::rename(&disk, &away).unwrap();
    let mut start = instance.command(&["start"]);
    assert!(start.env("VOLTIER_DEVICE_WAIT", "600").status().unwrap().success());
    for args in [&["stop", "v"][..], &["stop"]] {
        instance.run(args).refused(1, &format!("mounted on {shown}"));
    }
    fs::rename(&away, &disk).unwrap();
    until("the volume is back", || instance.show("v")["state"] == "running");
    assert_eq!(fs::read(at.join("file")).unwrap(), b"data");
    // Away again, and given up by name: what is mounted ends, and a new volume has a device of its own.
    instance.kill();
    fs::rename(&disk, &away).unwrap();
    let mut start = instance.command(&["start"]);
    assert!(start.env("VOLTIER_DEVICE_WAIT", "600").status().unwrap().success());
    instance.run(&["stop", "v", "--now"]).ok();
    program("umount", &["-l", shown]);
    fs::rename(&away, &disk).unwrap();
    run(&instance, &["start", "v"]).ok();
    until("the device is back", || device.exists());
    instance.run(&["mount", "v", shown]).ok();
    assert_eq!(fs::read(at.join("file")).unwrap(), b"data");
    program("umount", &[shown]);
}
