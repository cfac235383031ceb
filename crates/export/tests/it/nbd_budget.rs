//! Goal: clients that ask for much and take nothing hold bounded memory for a bounded time, and others are
//! served meanwhile.
//! Method: real sockets, and a device that holds on to the requests for its first half until it is told to
//! go on. The device counts their bytes. Where a limit of time is tried, it is a fraction of a second.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;

use rustix::net;
use voltier_block::{
    BlockDevice, Buf, Durability, GIB, IoResult, Lba, Limits, MIB, Payload, SectorRange,
};
use voltier_export::nbd::{Budget, ExportInfo, NbdLimits, NbdServer, proto};
use voltier_export::{ByteDevice, ExportCounters, FileAccess};
use voltier_ring::{Core, Domain, Handle, Signal, StreamAddress};

use crate::support::client::{Client, request};

const SIZE_BYTES: u64 = 2 * GIB;
/// Requests below wait.
const HELD_BYTES: u64 = GIB;

/// The requests that the device has inside.
#[derive(Default)]
struct Held {
    requests: Cell<u64>,
    bytes: Cell<u64>,
    bytes_max: Cell<u64>,
    released: Cell<bool>,
    release: Signal,
}

struct Holding {
    limits: Limits,
    held: Rc<Held>,
}

impl Holding {
    async fn pass(&self, at: Lba, bytes: u64) {
        if at.bytes() >= HELD_BYTES {
            return;
        }
        let held = &self.held;
        held.requests.set(held.requests.get() + 1);
        held.bytes.set(held.bytes.get() + bytes);
        held.bytes_max.set(held.bytes_max.get().max(held.bytes.get()));
        held.release.until(|| held.released.get()).await;
        held.requests.set(held.requests.get() - 1);
        held.bytes.set(held.bytes.get() - bytes);
    }
}

impl BlockDevice for Holding {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.pass(at, into.len() as u64).await;
        Ok(into)
    }

    async fn write(&self, at: Lba, data: Payload, _durability: Durability) -> IoResult<()> {
        self.pass(at, data.len() as u64).await;
        Ok(())
    }

    async fn flush(&self) -> IoResult<()> {
        Ok(())
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.pass(range.start, range.bytes()).await;
        Ok(())
    }

    async fn write_zeroes(&self, range: SectorRange, _durability: Durability) -> IoResult<()> {
        self.discard(range).await
    }
}

thread_local! {
    /// Server and device of the core that this thread is.
    static SERVED: RefCell<Option<(NbdServer, Rc<Held>)>> = const { RefCell::new(None) };
}

struct Served {
    core: Core,
    domain: Domain,
    budget: Arc<Budget>,
    at: SocketAddr,
}

fn serve(limits: NbdLimits) -> Served {
    let core = Core::start("export").unwrap();
    let budget = Budget::new(limits);
    let of_server = budget.clone();
    let start = move |handle: Handle| async move {
        let (limits, held) = (Limits::plain(SIZE_BYTES), Rc::new(Held::default()));
        let device = Holding { limits: limits.clone(), held: held.clone() };
        let info = ExportInfo::new("disk", "", limits, false);
        let at = StreamAddress::Tcp(([127, 0, 0, 1], 0).into());
        let server = NbdServer::start(
            &handle,
            Rc::new(ByteDevice::new(Rc::new(device))),
            info,
            &at,
            FileAccess::default(),
            &of_server,
        )
        .unwrap();
        let StreamAddress::Tcp(at) = *server.address() else { panic!("asked for TCP") };
        SERVED.set(Some((server, held)));
        at
    };
    let domain = Domain::fresh();
    let at = core.remote().within(domain).call(start).unwrap();
    Served { core, domain, budget, at }
}

impl Served {
    /// A socket that comes from this address.
    fn socket(&self, from: [u8; 4]) -> UnixStream {
        let family = net::AddressFamily::INET;
        let socket = net::socket(family, net::SocketType::STREAM, None).unwrap();
        net::bind(&socket, &SocketAddr::new(IpAddr::from(from), 0)).unwrap();
        net::connect(&socket, &self.at).unwrap();
        // The client only reads and writes, which no family of sockets does differently.
        UnixStream::from(socket)
    }

    fn client(&self, from: [u8; 4]) -> Client {
        Client::shake_hands(self.socket(from), true)
    }

    fn on_core<T: Send + 'static>(
        &self,
        look: impl Fn(&NbdServer, &Held) -> T + Send + 'static,
    ) -> T {
        let looked = move |_| async move {
            SERVED.with_borrow(|served| {
                let (server, held) = served.as_ref().unwrap();
                look(server, held)
            })
        };
        self.core.remote().call(looked).unwrap()
    }

    fn counters(&self) -> ExportCounters {
        self.on_core(|server, _| server.counters())
    }

    fn release(&self) {
        self.on_core(|_, held| {
            held.released.set(true);
            held.release.notify();
        });
    }

    /// Waits on the core until something is so.
    fn until(&self, condition: impl Fn(&NbdServer, &Held) -> bool + Send + 'static) {
        let waited = move |handle: Handle| async move {
            let holds = || {
                SERVED.with_borrow(|served| {
                    let (server, held) = served.as_ref().unwrap();
                    condition(server, held)
                })
            };
            while !holds() {
                handle.sleep(1_000_000).await;
            }
        };
        self.core.remote().call(waited).unwrap();
    }
}

/// Time limits that a test can wait for.
fn impatient() -> NbdLimits {
    NbdLimits { handshake_ns: 100_000_000, stall_ns: 100_000_000, ..NbdLimits::default() }
}

const GREEDY: [u8; 4] = [127, 0, 0, 1];
const HONEST: [u8; 4] = [127, 0, 0, 2];

#[test]
fn a_peer_that_takes_nothing_is_cut_and_its_memory_comes_back() {
    let served = serve(impatient());
    let mut deaf = served.client(GREEDY);
    deaf.send(&request(proto::CMD_READ, 0, 1, HELD_BYTES, 32 << 20).repeat(10));
    served.until(|server, _| server.counters().connections_open == 0);
    assert!(served.counters().reads <= 2, "more than 64 MiB for one client");
    assert_eq!(served.budget.leased_bytes(), 0);
    served.client(GREEDY).ask(proto::CMD_READ, 0, HELD_BYTES, 4096);
}

#[test]
fn a_server_whose_domain_fails_gives_back_what_its_connections_held() {
    let served = serve(NbdLimits::default());
    let mut client = served.client(HONEST);
    client.send(&request(proto::CMD_READ, 0, 1, 0, 32 << 20));
    served.until(|_, held| held.bytes.get() > 0);
    assert!(served.budget.leased_bytes() > 0);
    let failed = served.core.remote().within(served.domain).call(|_| async { panic!("broken") });
    failed.unwrap_err();
    assert_eq!(served.budget.leased_bytes(), 0);
    assert!(client.is_closed());
}

#[test]
fn a_peer_that_stops_in_the_middle_is_cut_and_an_idle_one_is_not() {
    let served = serve(impatient());
    let mut idle = served.client(HONEST);
    assert_eq!(idle.ask(proto::CMD_READ, 0, HELD_BYTES, 512).error, 0);

    let mut half_header = served.client(GREEDY);
    half_header.send(&request(proto::CMD_READ, 0, 1, HELD_BYTES, 512)[..14]);
    let mut half_payload = served.client(GREEDY);
    half_payload.send(&request(proto::CMD_WRITE, 0, 1, HELD_BYTES, 32 << 20));
    half_payload.send(&[0; 1000]);
    let mut half_handshake = served.socket(GREEDY);
    half_handshake.write_all(&3u32.to_be_bytes()).unwrap();
    half_handshake.write_all(&proto::OPTION_MAGIC.to_be_bytes()).unwrap();
    assert!(half_header.is_closed() && half_payload.is_closed());
    // Behind the greeting comes the end.
    while half_handshake.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {}
    served.until(|server, _| server.counters().connections_open == 1);
    assert_eq!(served.budget.leased_bytes(), 0);
    assert_eq!(idle.ask(proto::CMD_READ, 0, HELD_BYTES, 512).error, 0);
}

#[test]
fn a_drive_that_is_slow_is_no_fault_of_the_peer() {
    let served = serve(impatient());
    let mut patient = served.client(HONEST);
    patient.send(&request(proto::CMD_READ, 0, 7, 0, 4096));
    served.until(|_, held| held.requests.get() == 1);
    // Others have been cut for less meanwhile.
    let mut half_header = served.client(GREEDY);
    half_header.send(&[0x25]);
    assert!(half_header.is_closed());
    served.release();
    assert_eq!(patient.reply(|_| 4096).cookie, 7);
}

#[test]
fn greedy_connections_stay_in_the_budget_and_an_honest_one_is_served() {
    let limits = NbdLimits { pool_bytes: 128 * MIB, ..NbdLimits::default() };
    let bound_bytes = limits.pool_bytes + 129 * limits.own_bytes;
    let served = serve(limits);
    let mut greedy: Vec<Client> = (0..128).map(|_| served.client(GREEDY)).collect();
    for (at, client) in greedy.iter_mut().enumerate() {
        let length = [512 << 10, 1 << 20, 32 << 20][at % 3];
        let kind = [proto::CMD_READ, proto::CMD_TRIM][at % 2];
        client.send(&request(kind, 0, 1, 0, length).repeat(4));
    }
    let one_too_many = served.socket(GREEDY);
    assert!(matches!((&one_too_many).read(&mut [0; 64]), Ok(0) | Err(_)));
    let budget = served.budget.clone();
    served.until(move |_, held| budget.waiting() >= 80 && held.requests.get() >= 40);

    let mut honest = served.client(HONEST);
    for length in [512, 4096, 512 << 10, 1 << 20, 32 << 20] {
        let offset = HELD_BYTES + u64::from(length);
        assert_eq!(honest.ask(proto::CMD_READ, 0, offset, length).data.len(), length as usize);
        assert_eq!(honest.write(0, offset, &vec![7; length as usize]), 0);
    }
    let held_bytes_max = served.on_core(|_, held| held.bytes_max.get());
    assert!(held_bytes_max <= bound_bytes, "{held_bytes_max} bytes in flight");
    assert!(held_bytes_max > 32 * MIB, "nobody was greedy");

    served.release();
    for (at, client) in greedy.iter_mut().enumerate() {
        let length = [512 << 10, 1 << 20, 32 << 20][at % 3];
        for _ in 0..4 {
            let reply = client.reply(|_| if at % 2 == 0 { length } else { 0 });
            assert_eq!((reply.error, reply.cookie), (0, 1), "connection {at}");
        }
    }
    drop((greedy, honest));
    served.until(|server, _| server.counters().connections_open == 0);
    assert_eq!((served.budget.leased_bytes(), served.budget.waiting()), (0, 0));
}

#[test]
fn requests_without_data_count_as_work_in_flight() {
    let served = serve(NbdLimits::default());
    let mut client = served.client(GREEDY);
    client.send(&request(proto::CMD_WRITE_ZEROES, 0, 1, 0, 512 << 20).repeat(5));
    served.until(|_, held| held.requests.get() == 2);
    // The third waits for one of the first two: a later request does not pass the third.
    client.stream.write_all(&request(proto::CMD_READ, 0, 2, HELD_BYTES, 512)).unwrap();
    assert_eq!(served.client(HONEST).ask(proto::CMD_READ, 0, HELD_BYTES, 512).error, 0);
    assert_eq!((served.counters().reads, served.on_core(|_, held| held.requests.get())), (1, 2));
    served.release();
    for _ in 0..6 {
        assert_eq!(client.reply(|cookie| if cookie == 2 { 512 } else { 0 }).error, 0);
    }
}
