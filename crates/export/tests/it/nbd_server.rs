//! The NBD server over real sockets: a client of our own, and the tools people use.

use std::cell::RefCell;
use std::fs;
use std::net::Shutdown;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use voltier_block::{Lba, Limits, MIB, Prng, SectorRange};
use voltier_export::nbd::{Budget, ExportInfo, NbdLimits, NbdServer, Whose, proto};
use voltier_export::{ByteDevice, ExportCounters, ExportError, FileAccess};
use voltier_ring::{Core, StreamAddress};

use crate::support::client::{Client, request};
use crate::support::memory::Memory;

thread_local! {
    /// The server of the core that this thread is.
    static SERVER: RefCell<Option<NbdServer>> = const { RefCell::new(None) };
    /// What it serves.
    static DEVICE: RefCell<Option<Rc<ByteDevice<Memory>>>> = const { RefCell::new(None) };
}

struct Served {
    core: Core,
    folder: tempfile::TempDir,
    uri: String,
}

fn start_at(core: &Core, at: StreamAddress, limits: Limits) -> Result<String, ExportError> {
    start_for(core, at, FileAccess::default(), limits)
}

fn start_for(
    core: &Core,
    at: StreamAddress,
    access: FileAccess,
    limits: Limits,
) -> Result<String, ExportError> {
    let start = move |handle| async move {
        let mut device = Memory::new(limits.clone());
        device.bad_sectors = SectorRange::new(Lba(8000), 8);
        let info = ExportInfo::new("disk", "a test", limits, false);
        let budget = Budget::new(NbdLimits::default());
        let device = Rc::new(ByteDevice::new(Rc::new(device)));
        DEVICE.set(Some(device.clone()));
        let server = NbdServer::start(&handle, device, info, &at, access, &budget)?;
        let uri = server.uri();
        SERVER.set(Some(server));
        Ok(uri)
    };
    core.remote().call(start).unwrap()
}

fn serve(limits: Limits) -> Served {
    let core = Core::start("export").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let at = StreamAddress::Unix(folder.path().join("nbd.sock"));
    let uri = start_at(&core, at, limits).unwrap();
    Served { core, folder, uri }
}

impl Served {
    fn socket(&self) -> PathBuf {
        self.folder.path().join("nbd.sock")
    }

    fn connect(&self, structured: bool) -> Client {
        Client::connect(&self.socket(), structured)
    }

    fn counters(&self) -> ExportCounters {
        let counters =
            |_| async { SERVER.with_borrow(|server| server.as_ref().unwrap().counters()) };
        self.core.remote().call(counters).unwrap()
    }

    fn wait_until_no_connection_is_open(&self) {
        let waited = |handle: voltier_ring::Handle| async move {
            let open = || {
                SERVER.with_borrow(|server| server.as_ref().unwrap().counters().connections_open)
            };
            while open() > 0 {
                handle.sleep(1_000_000).await;
            }
        };
        self.core.remote().call(waited).unwrap();
    }

    fn stop(&self) {
        let stop = |_| async { SERVER.take().unwrap().stop().await };
        self.core.remote().call(stop).unwrap();
    }

    /// Has the next server go on; how many sockets it got. What it says of the device may be another thing.
    fn hand_over(&self, limits: Limits, limit_ns: u64) -> usize {
        let at = StreamAddress::Unix(self.socket());
        let hand_over = move |handle: voltier_ring::Handle| async move {
            let left = SERVER.take().unwrap().leave([7; 16], limit_ns).await;
            let own = Some(Whose { volume: [7; 16], at: at.clone() });
            let count = left.iter().filter(|left| left.whose() == own).count();
            let device = DEVICE.with_borrow(|device| device.clone().unwrap());
            let info = ExportInfo::new("disk", "a test", limits, false);
            let (access, budget) = (FileAccess::default(), Budget::new(NbdLimits::default()));
            let server =
                NbdServer::start_with(&handle, device, info, &at, access, &budget, left).unwrap();
            SERVER.set(Some(server));
            count
        };
        self.core.remote().call(hand_over).unwrap()
    }
}

fn plain() -> Limits {
    Limits::plain(16 * MIB)
}

#[test]
fn every_command_does_what_it_says() {
    let served = serve(plain());
    for structured in [false, true] {
        let mut client = served.connect(structured);
        let data: Vec<u8> = (0..4096).map(|at| at as u8 ^ 0x5a).collect();
        assert_eq!(client.write(0, 8192, &data), 0);
        assert_eq!(client.write(proto::CMD_FLAG_FUA, 12288, &data), 0);
        assert_eq!(client.ask(proto::CMD_READ, 0, 8192, 4096).data, data);
        assert_eq!(client.ask(proto::CMD_FLUSH, 0, 0, 0).error, 0);
        assert_eq!(client.ask(proto::CMD_TRIM, proto::CMD_FLAG_FUA, 8192, 512).error, 0);
        let no_hole = proto::CMD_FLAG_NO_HOLE;
        assert_eq!(client.ask(proto::CMD_WRITE_ZEROES, no_hole, 8704, 512).error, 0);
        assert_eq!(client.ask(proto::CMD_WRITE_ZEROES, 0, 9216, 512).error, 0);
        let read = client.ask(proto::CMD_READ, 0, 8192, 4096).data;
        assert_eq!(read[..1536], [0; 1536]);
        assert_eq!(read[1536..], data[1536..]);
    }
    let counters = served.counters();
    assert_eq!((counters.connections, counters.reads, counters.writes), (2, 4, 4));
    assert_eq!((counters.flushes, counters.discards, counters.failures), (2, 6, 0));
    assert_eq!((counters.read_bytes, counters.written_bytes), (16384, 16384));
}

#[test]
fn errors_are_told_and_the_connection_goes_on() {
    let served = serve(plain());
    for structured in [false, true] {
        let mut client = served.connect(structured);
        let bad = client.ask(proto::CMD_READ, 0, 8000 * 512, 512);
        assert_eq!(bad.error, 5);
        assert_eq!(bad.error_offset, structured.then_some(8000 * 512));
        assert_eq!(client.write(0, 16 * MIB - 512, &[0; 1024]), 28);
        assert_eq!(client.ask(proto::CMD_READ, 0, 16 * MIB, 512).error, 22);
        assert_eq!(client.ask(99, 0, 0, 512).error, 22);
        assert_eq!(client.ask(proto::CMD_READ, 0, 0, 512).error, 0);
    }
}

#[test]
fn bytes_are_read_written_and_zeroed_wherever_they_begin_and_end() {
    let folder = tempfile::tempdir().unwrap();
    for block_bytes in [512, 4096] {
        let core = Core::start("export").unwrap();
        let path = folder.path().join(format!("{block_bytes}.sock"));
        let limits = Limits { block_bytes, ..plain() };
        start_at(&core, StreamAddress::Unix(path.clone()), limits).unwrap();
        let mut client = Client::connect(&path, true);
        let mut expected = vec![7; 16384];
        assert_eq!(client.write(0, 0, &expected), 0);
        assert_eq!(client.write(proto::CMD_FLAG_FUA, 511, &[1; 2]), 0);
        expected[511..513].fill(1);
        assert_eq!(client.write(0, 4000, &[2; 9000]), 0);
        expected[4000..13000].fill(2);
        assert_eq!(client.ask(proto::CMD_WRITE_ZEROES, 0, 100, 10_000).error, 0);
        expected[100..10_100].fill(0);
        assert_eq!(
            client.ask(proto::CMD_WRITE_ZEROES, proto::CMD_FLAG_NO_HOLE, 16_000, 3).error,
            0
        );
        expected[16_000..16_003].fill(0);
        // Of a trim only whole blocks are given up: one of 512 bytes, or none of 4096.
        assert_eq!(client.ask(proto::CMD_TRIM, 0, 12_000, 800).error, 0);
        if block_bytes == 512 {
            expected[12_288..12_800].fill(0);
        }
        assert_eq!(client.ask(proto::CMD_READ, 0, 0, 16384).data, expected);
        assert_eq!(client.ask(proto::CMD_READ, 0, 510, 5).data, expected[510..515]);
        assert_eq!(client.ask(proto::CMD_READ, 0, 4097, 9001).data, expected[4097..13_098]);
        let end = plain().bytes();
        assert_eq!(client.write(0, end - 1, &[9]), 0);
        assert_eq!(client.ask(proto::CMD_READ, 0, end - 1, 1).data, [9]);
        assert_eq!(client.write(0, end - 1, &[9; 2]), proto::ErrorCode::NoSpace as u32);
    }
}

#[test]
fn a_medium_error_in_one_block_is_told_with_the_first_byte_that_was_asked_for() {
    let core = Core::start("export").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    start_at(&core, StreamAddress::Unix(path.clone()), plain()).unwrap();
    let mut client = Client::connect(&path, true);
    let bad = 8000 * 512;
    let inside = client.ask(proto::CMD_READ, 0, bad + 3, 5);
    assert_eq!((inside.error, inside.error_offset), (proto::ErrorCode::Io as u32, Some(bad + 3)));
    let across = client.ask(proto::CMD_READ, 0, bad - 1, 2);
    assert_eq!((across.error, across.error_offset), (proto::ErrorCode::Io as u32, None));
    assert_eq!(
        client.write(0, bad + 3, &[1]),
        proto::ErrorCode::Io as u32,
        "the rest cannot be read"
    );
}

/// Requests of every size, in flight together, against a model; disjoint while in flight. With a grain of one
/// byte they share sectors.
fn pipeline(served: &Served, seed: u64, structured: bool, grain: u64) {
    let mut client = served.connect(structured);
    let mut prng = Prng::new(seed);
    let size = 2 * MIB; // clear of the bad sectors
    let mut model = vec![0; size as usize];
    for _ in 0..8 {
        // With 509 of them the slots begin inside sectors.
        let slots = *prng.pick(&[1, 4, 32, if grain == 1 { 509 } else { 512 }]);
        let slot_bytes = size / slots;
        let (mut stream, mut expected) = (Vec::new(), Vec::new());
        for slot in 0..slots {
            let length = grain * (1 + prng.below(slot_bytes / grain));
            let offset = slot * slot_bytes + grain * prng.below((slot_bytes - length) / grain + 1);
            let range = offset as usize..(offset + length) as usize;
            let write = prng.one_in(2);
            let kind = if write { proto::CMD_WRITE } else { proto::CMD_READ };
            stream.extend(request(kind, 0, slot, offset, length as u32));
            if write {
                prng.fill(&mut model[range.clone()]);
                stream.extend(&model[range]);
                expected.push(Vec::new());
            } else {
                expected.push(model[range].to_vec());
            }
        }
        let mut sender = client.stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || std::io::Write::write_all(&mut sender, &stream).unwrap());
            for _ in 0..slots {
                let reply = client.reply(|cookie| expected[cookie as usize].len());
                assert_eq!(reply.error, 0);
                assert!(reply.data == expected[reply.cookie as usize], "seed {seed}");
            }
        });
    }
}

#[test]
fn many_requests_in_flight_of_every_size_match_a_model() {
    let served = serve(plain());
    for (seed, grain) in [(0, 512), (1, 512), (2, 1), (3, 1)] {
        pipeline(&served, seed, seed % 2 == 0, grain);
        served.wait_until_no_connection_is_open();
        served.connect(false).ask(proto::CMD_WRITE_ZEROES, 0, 0, 2 << 20);
    }
}

#[test]
fn transfers_longer_than_the_devices_are_cut_for_it() {
    let served = serve(Limits { max_transfer_bytes: 10_000, block_bytes: 4096, ..plain() });
    let mut client = served.connect(true);
    let data: Vec<u8> = (0..1 << 20).map(|at| (at / 513) as u8).collect();
    assert_eq!(client.write(0, 4096, &data), 0);
    let no_hole = proto::CMD_FLAG_NO_HOLE;
    assert_eq!(client.ask(proto::CMD_WRITE_ZEROES, no_hole, 8192, 40960).error, 0);
    let read = client.ask(proto::CMD_READ, proto::CMD_FLAG_DF, 4096, 1 << 20).data;
    assert_eq!(read[..4096], data[..4096]);
    assert_eq!(read[4096..45056], [0; 40960]);
    assert!(read[45056..] == data[45056..]);
}

#[test]
fn a_half_closed_client_still_gets_its_replies() {
    let served = serve(plain());
    let mut client = served.connect(true);
    let mut stream = Vec::new();
    for cookie in 0..20 {
        stream.extend(request(proto::CMD_READ, 0, cookie, 4096 * cookie, 4096));
    }
    client.send(&stream);
    client.stream.shutdown(Shutdown::Write).unwrap();
    let mut seen: Vec<u64> = (0..20).map(|_| client.reply(|_| 4096).cookie).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..20).collect::<Vec<u64>>());
    assert!(client.is_closed());
}

#[test]
fn clients_that_vanish_or_never_listen_disturb_nobody() {
    let served = serve(plain());
    let mut half_payload = served.connect(true);
    half_payload.send(&request(proto::CMD_WRITE, 0, 1, 0, 4 << 20));
    half_payload.send(&[1; 1000]);
    let mut deaf = served.connect(true);
    deaf.stream.set_nonblocking(true).unwrap();
    let reads = request(proto::CMD_READ, 0, 2, 0, 1 << 20).repeat(100);
    // Sends until its own socket is full: the server has stopped reading by then.
    while std::io::Write::write(&mut deaf.stream, &reads).is_ok() {}
    let mut garbage = served.connect(false);
    garbage.send(&[0xff; 4096]);
    assert!(garbage.is_closed());

    assert_eq!(served.connect(true).write(0, 0, &[7; 512]), 0);
    // The kernel has taken a reply or two into the socket's buffer, 1 MiB by its own count.
    assert!(served.counters().reads <= 64 + 2, "more than 64 MiB in flight for one client");
    drop((half_payload, deaf));
    served.wait_until_no_connection_is_open();
    assert_eq!(served.counters().writes, 1);
}

#[test]
fn a_goodbye_closes_after_what_is_in_flight() {
    let served = serve(plain());
    let mut client = served.connect(false);
    let mut stream = request(proto::CMD_READ, 0, 5, 0, 512);
    stream.extend(request(proto::CMD_DISC, 0, 6, 0, 0));
    client.send(&stream);
    assert_eq!(client.reply(|_| 512).cookie, 5);
    assert!(client.is_closed());
}

#[test]
fn stopping_closes_idle_connections_and_removes_the_socket() {
    let served = serve(plain());
    let mut idle = served.connect(true);
    assert_eq!(idle.ask(proto::CMD_FLUSH, 0, 0, 0).error, 0);
    served.stop();
    assert!(idle.is_closed());
    assert!(!served.socket().exists());
}

/// `NBD_ENOSPC`.
const NO_SPACE: u32 = 28;

/// Longer than any answer takes.
const LONG_NS: u64 = 10_000_000_000;

#[test]
fn clients_see_a_pause_when_another_server_goes_on() {
    let served = serve(plain());
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            // The model begins with a device of zeroes.
            pipeline(&served, 1, true, 512);
        });
        let mut rounds = 0;
        while rounds < 10 || !client.is_finished() {
            served.hand_over(plain(), LONG_NS);
            rounds += 1;
        }
    });
}

#[test]
fn a_request_in_pieces_is_whole_for_the_next_server() {
    let served = serve(plain());
    let data: Vec<u8> = (0..4096).map(|at| at as u8 ^ 0x33).collect();
    let (mut header, mut payload) = (served.connect(true), served.connect(false));
    let mut refused = served.connect(true);
    // Half a header.
    let mut write = request(proto::CMD_WRITE, 0, 1, 0, 4096);
    write.extend(&data);
    header.send(&write[..13]);
    // A write with half its data, behind a read.
    payload.send(&[request(proto::CMD_READ, 0, 2, 65536, 512), write.clone()].concat()[..1000]);
    // A write beyond the end, which is refused while its data come in.
    let beyond = request(proto::CMD_WRITE, 0, 3, 16 * MIB, 70_000);
    refused.send(&[&beyond[..], &[7; 30_000]].concat());
    assert_eq!(refused.reply(|_| 0).error, NO_SPACE);
    let mut rest = payload.stream.try_clone().unwrap();
    let behind = write.clone();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::park_timeout(std::time::Duration::from_millis(50));
            // 972 bytes were behind the read.
            std::io::Write::write_all(&mut rest, &behind[1000 - 28..]).unwrap();
        });
        assert_eq!(served.hand_over(plain(), LONG_NS), 4);
    });
    let read = payload.reply(|_| 512);
    assert_eq!((read.cookie, read.data.len()), (2, 512));
    assert_eq!(payload.reply(|_| 0).cookie, 1);
    assert!(payload.ask(proto::CMD_READ, 0, 0, 4096).data == data);
    header.send(&write[13..]);
    assert_eq!(header.reply(|_| 0).cookie, 1);
    refused.send(&[7; 40_000]);
    assert!(refused.ask(proto::CMD_READ, 0, 0, 4096).data == data);
    // And once more, with nothing under way.
    assert_eq!(served.hand_over(plain(), LONG_NS), 4);
    assert!(header.ask(proto::CMD_READ, 0, 0, 4096).data == data);
    assert_eq!(served.counters().connections_open, 3);
}

#[test]
fn who_cannot_go_on_is_hung_up_on_and_others_go_on() {
    let served = serve(plain());
    let mut good = served.connect(true);
    let mut silent = UnixStream::connect(served.socket()).unwrap();
    let mut greeting = [0; 18];
    std::io::Read::read_exact(&mut silent, &mut greeting).unwrap();
    let mut half_payload = served.connect(true);
    half_payload.send(&request(proto::CMD_WRITE, 0, 1, 0, 4 << 20));
    half_payload.send(&[1; 1000]);
    let mut deaf = served.connect(true);
    deaf.stream.set_nonblocking(true).unwrap();
    let reads = request(proto::CMD_READ, 0, 2, 0, 1 << 20).repeat(100);
    while std::io::Write::write(&mut deaf.stream, &reads).is_ok() {}
    // More than its socket takes.
    while served.counters().reads < 10 {
        std::thread::yield_now();
    }
    assert_eq!(served.hand_over(plain(), 500_000_000), 2);
    assert_eq!(good.ask(proto::CMD_FLUSH, 0, 0, 0).error, 0);
    assert!(half_payload.is_closed());
    assert_eq!(std::io::Read::read(&mut silent, &mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(served.connect(true).write(0, 0, &[7; 512]), 0);
    // A client relies on what it was told.
    let read_only = Limits { read_only: true, ..plain() };
    served.hand_over(read_only, LONG_NS);
    assert!(good.is_closed());
    assert_ne!(served.connect(true).write(0, 0, &[7; 512]), 0);
    served.stop();
    assert!(!served.socket().exists());
}

#[test]
fn a_socket_file_is_private_and_only_a_dead_one_is_replaced() {
    let served = serve(plain());
    let mode = fs::metadata(served.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = |path: &Path| start_at(&served.core, StreamAddress::Unix(path.into()), plain());
    assert!(matches!(again(&served.socket()), Err(ExportError::SocketInUse(_))));
    let stale = served.folder.path().join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    assert!(stale.exists());
    assert!(again(&served.folder.path().join("no/folder")).is_err());
    let file = served.folder.path().join("file");
    fs::write(&file, "data").unwrap();
    assert!(matches!(again(&file), Err(ExportError::NotASocket(_))));
    assert_eq!(fs::read(&file).unwrap(), b"data");
    again(&stale).unwrap();
    assert_eq!(Client::connect(&stale, true).ask(proto::CMD_READ, 0, 0, 512).error, 0);
}

#[test]
fn a_socket_is_for_whom_it_was_opened_for() {
    let core = Core::start("export").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shared.sock");
    let owner = fs::metadata(folder.path()).unwrap();
    let is_root = rustix::process::getuid().is_root();
    let access = FileAccess {
        mode: 0o666,
        owner: Some(if is_root { 4711 } else { owner.uid() }),
        group: Some(if is_root { 4712 } else { owner.gid() }),
    };
    start_for(&core, StreamAddress::Unix(path.clone()), access, plain()).unwrap();
    let socket = fs::metadata(&path).unwrap();
    assert_eq!(socket.permissions().mode() & 0o7777, 0o666);
    assert_eq!((Some(socket.uid()), Some(socket.gid())), (access.owner, access.group));
    assert_eq!(Client::connect(&path, true).ask(proto::CMD_READ, 0, 0, 512).error, 0);
}

#[test]
fn a_tcp_port_of_the_kernels_choice_is_reported() {
    let core = Core::start("export").unwrap();
    let at = StreamAddress::Tcp("127.0.0.1:0".parse().unwrap());
    let uri = start_at(&core, at, plain()).unwrap();
    assert!(uri.starts_with("nbd://127.0.0.1:") && !uri.contains(":0/"), "{uri}");
    if let Some(info) = tool("nbdinfo", &["--size", &uri]) {
        assert_eq!(info.trim(), "16777216");
    }
}

/// The output of a tool; `None`, with a word, where it is not installed.
fn tool(name: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(name).args(arguments).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: {name} is not installed");
            None
        }
        output => {
            let output = output.unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name} {arguments:?}: {text}{errors}");
            Some(text)
        }
    }
}

#[test]
fn nbdinfo_reads_the_exports_facts() {
    let served = serve(plain());
    let Some(facts) = tool("nbdinfo", &["--json", &served.uri]) else { return };
    for fact in [
        "\"export-name\": \"disk\"",
        "\"description\": \"a test\"",
        "\"can_multi_conn\": true",
        "\"can_df\": true",
        "\"can_fua\": true",
        "\"block_size_minimum\": 1",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
    ] {
        assert!(facts.contains(fact), "{fact} is not in {facts}");
    }
    if let Some(list) = tool("nbdinfo", &["--list", &served.uri]) {
        assert!(list.contains("export=\"disk\""), "{list}");
    }
}

#[test]
fn nbdcopy_brings_back_what_it_took_there() {
    // Without the bad sectors: they lie inside the first 4 MiB.
    let served = serve(Limits::plain(3 * MIB));
    let (source, back) = (served.folder.path().join("source"), served.folder.path().join("back"));
    let mut data = vec![0; 3 << 20];
    Prng::new(3).fill(&mut data[..1 << 20]);
    fs::write(&source, &data).unwrap();
    if tool("nbdcopy", &["--flush", source.to_str().unwrap(), &served.uri]).is_none() {
        return;
    }
    tool("nbdcopy", &[&served.uri, back.to_str().unwrap()]);
    assert!(fs::read(&back).unwrap() == data);
}

#[test]
fn fio_verifies_what_it_wrote() {
    let served = serve(Limits::plain(3 * MIB));
    let uri = format!("--uri={}", served.uri);
    let job = ["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--bsrange=512-128k"];
    let rest = ["--iodepth=32", "--size=3M", "--verify=crc32c", "--fsync=16"];
    let arguments: Vec<&str> = job.iter().chain(&rest).copied().chain([uri.as_str()]).collect();
    let Some(engines) = tool("fio", &["--enghelp"]) else { return };
    if !engines.contains("nbd") {
        println!("skipped: this fio has no nbd engine");
        return;
    }
    tool("fio", &arguments);
    assert!(served.counters().writes > 0);
}
