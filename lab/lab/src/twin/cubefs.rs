//! CubeFS: clients with some processes each, 10 Gb/s links, ten storage nodes, three replicas.
//!
//! The nodes keep what they hold on Voltier volumes. Clients, links and the replication between nodes are
//! modelled, as the published ones work. A write goes to the first node of a file, which sends the write
//! to two others. Every process has one request under way. The time of a node for a request (network and
//! scheduling) is calibrated on the published maxima of eight clients. Reads and writes have the same.
//! The time of a client's FUSE mount is calibrated on those of one client.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Bytes, Durability, IoResult, KIB, Lba, Limits, MIB, Nanos, Payload,
    SectorRange,
};
use voltier_drive::ModelDevice;
use voltier_drive::model::Profile;
use voltier_ring::{Executor, Handle, NoFiles, join_all};
use voltier_volume::Volume;

use super::Extent;
use super::calibration::{Calibration, Cell as Calibrated};
use super::load::{Load, Places, Rates, Window, drive};
use super::published::Table;
use super::report::{Figures, Report, Row};
use crate::model_store::{Drive, ModelStore};

const NODES: usize = 10;
const DRIVES: usize = 16;
const REPLICAS: usize = 3;
const FILE_BYTES: u64 = 10 << 30;
const DRIVE_BYTES: u64 = 1_000_000_000_000;
/// The payload that 10 Gb/s carry, by the published plateau of one client (C6).
const LINK_BYTES_PER_S: u64 = 1_130 * MIB;
/// From one host to another and through its network stack.
const ONE_WAY_NS: Nanos = 50_000;
/// The time of a node for a request before the drive, one after the other.
const NODE_REQUEST_NS: Nanos = 16_500;
/// The time of a client's mount for a random read, one after the other.
const CLIENT_READ_NS: Nanos = 7_300;
/// The same for a random write.
const CLIENT_WRITE_NS: Nanos = 12_270;

const CLIENTS: [(&str, usize); 4] = [("1", 1), ("2", 2), ("4", 4), ("8", 8)];
const PROCESSES: [(&str, usize); 4] =
    [("procs_1", 1), ("procs_4", 4), ("procs_16", 16), ("procs_64", 64)];

struct Work {
    name: &'static str,
    bytes: u64,
    is_read: bool,
    sequential: bool,
    /// MiB per second (C2).
    bandwidth: Table,
}

impl Work {
    fn unit(&self) -> &'static str {
        if self.sequential { "MiB/s" } else { "IOPS" }
    }

    /// The published figure. Random requests are counted from the bandwidth, because the stated
    /// ones are 2.4 % too high from 10,000 on (C1).
    fn published(&self, clients: &str, processes: &str) -> f64 {
        self.in_unit(self.bandwidth.figure(clients, processes) * MIB as f64)
    }

    fn in_unit(&self, bytes_per_s: f64) -> f64 {
        bytes_per_s / if self.sequential { MIB } else { self.bytes } as f64
    }
}

fn works() -> [Work; 4] {
    macro_rules! table {
        ($name:literal) => {
            Table::read(include_str!(concat!(
                "../../../results/tables/cubefs_",
                $name,
                "_bandwidth_mbps.csv"
            )))
        };
    }
    let work = |name, bytes, is_read, sequential, bandwidth| Work {
        name,
        bytes,
        is_read,
        sequential,
        bandwidth,
    };
    [
        work("seq read 128k", 128 * KIB, true, true, table!("seq_read_128k")),
        work("seq write 128k", 128 * KIB, false, true, table!("seq_write_128k")),
        work("rand read 4k", 4 * KIB, true, false, table!("rand_read_4k")),
        work("rand write 4k", 4 * KIB, false, false, table!("rand_write_4k")),
    ]
}

pub(super) fn run(extent: Extent) -> Report {
    let (mut rows, mut cells) = (Vec::new(), Vec::new());
    for work in works() {
        let mut first = Vec::new();
        for (clients_name, clients) in CLIENTS {
            for (number, (processes_name, processes)) in PROCESSES.into_iter().enumerate() {
                let is_corner = matches!((clients, processes), (1 | 8, 64));
                if extent == Extent::Quick && !is_corner {
                    continue;
                }
                let [bare, voltier] = [false, true]
                    .map(|has_volumes| measure(&work, clients, processes, has_volumes));
                let figures = Figures {
                    published: work.published(clients_name, processes_name),
                    hardware: links(&work, clients),
                    twin_hardware: work.in_unit(bare.bytes_per_s),
                    voltier: work.in_unit(voltier.bytes_per_s),
                };
                let is_write_of_one = clients == 1 && work.sequential && !work.is_read;
                if processes == 64 && matches!(clients, 1 | 8) && !is_write_of_one {
                    cells.push(Calibrated {
                        name: format!("{}, {clients} clients of 64 processes", work.name),
                        load: None,
                        published: figures.published,
                        twin: figures.twin_hardware,
                    });
                }
                if clients == 1 {
                    first.push((number, figures));
                }
                let alone = first.iter().find(|(column, _)| *column == number);
                let mut row = Row::new(
                    format!("{}, {clients} x {processes}", work.name),
                    work.unit(),
                    figures,
                    0.0,
                )
                .shown();
                row.note =
                    alone.map_or_else(String::new, |(_, one)| efficiency(one, &figures, clients));
                rows.push(row);
            }
        }
    }
    Report {
        title: "CubeFS: clients x processes on ten storage nodes, three replicas, 10 Gb/s (tests the model \
                of the network; nothing is won or lost)"
            .into(),
        rows,
        notes: notes(),
        calibration: Calibration { cells },
    }
}

fn notes() -> Vec<String> {
    vec![
        "hardware: what the links carry at most; the published figures are MiB/s (C2)".into(),
        "published random IOPS are counted from the bandwidth: the stated ones are 2.4 % too high from \
         10,000 on (C1)"
            .into(),
        "one client reads no more than its link carries (C6): 16 and 64 processes differ in latency alone"
            .into(),
        "scaling: the rate by that of one client with as many processes and the number of clients".into(),
        "links and nodes are calibrated on the published maxima: 1,130 MiB/s a link, 16.5 us a request and \
         node, 7.3 us a read and 12.3 us a write in a client's mount; 50 us one way and the SATA SSD's \
         model are assumed"
            .into(),
        "published rates of few processes grow faster than the clients (efficiency above 1), which no model \
         of queues does"
            .into(),
    ]
}

/// Scaling efficiency: the rate of so many clients by that of one and their number.
fn efficiency(one: &Figures, many: &Figures, clients: usize) -> String {
    let part = |many: f64, one: f64| many / (clients as f64 * one) * 100.0;
    format!(
        "scaling {:.0} %, published {:.0} %",
        part(many.voltier, one.voltier),
        part(many.published, one.published)
    )
}

/// The rate that the links carry: the clients' own, and those of the nodes.
fn links(work: &Work, clients: usize) -> f64 {
    let copies = if work.is_read { 1 } else { REPLICAS };
    let nodes = NODES as f64 / copies as f64;
    work.in_unit(LINK_BYTES_PER_S as f64 * f64::min(clients as f64, nodes))
}

/// Serves one thing after the other.
#[derive(Default)]
struct Serial {
    free_at: Cell<Nanos>,
}

impl Serial {
    /// Takes something in that needs so long, and says when it is through.
    fn pass(&self, now: Nanos, ns: Nanos) -> Nanos {
        self.free_at.set(self.free_at.get().max(now) + ns);
        self.free_at.get()
    }
}

/// A host's link, both directions.
#[derive(Default)]
struct Link {
    out: Serial,
    into: Serial,
}

/// A host that mounts the file system.
#[derive(Default)]
struct Client {
    link: Link,
    mount: Serial,
}

/// Sends bytes over both links; complete when the slower one is through.
async fn send(handle: &Handle, from: &Link, to: &Link, bytes: u64) {
    let ns = bytes * 1_000_000_000 / LINK_BYTES_PER_S;
    let now = handle.now();
    let done = from.out.pass(now, ns).max(to.into.pass(now, ns));
    handle.sleep_until(done + ONE_WAY_NS).await;
}

/// The drive of a node.
enum Store {
    Bare(Drive),
    Volume(Volume<Drive>),
}

struct Node {
    link: Link,
    requests: Serial,
    stores: Vec<Store>,
}

impl Node {
    fn new(handle: &Handle, has_volumes: bool) -> Self {
        let profile = Profile::find("ssd-sata").expect("a profile");
        let store = || {
            let drive = ModelDevice::new(handle.clone(), profile, ModelStore::nowhere(DRIVE_BYTES));
            if has_volumes {
                Store::Volume(Volume::plain(handle, drive))
            } else {
                Store::Bare(drive)
            }
        };
        let stores = (0..DRIVES).map(|_| store()).collect();
        Self { link: Link::default(), requests: Serial::default(), stores }
    }

    async fn admit(&self, handle: &Handle) {
        handle.sleep_until(self.requests.pass(handle.now(), NODE_REQUEST_NS)).await;
    }

    async fn read(&self, store: usize, at: Lba, into: Buf) -> IoResult<Buf> {
        match &self.stores[store] {
            Store::Bare(drive) => drive.read(at, into).await,
            Store::Volume(volume) => volume.read(at, into).await,
        }
    }

    async fn write(&self, store: usize, at: Lba, data: Payload) -> IoResult<()> {
        match &self.stores[store] {
            Store::Bare(drive) => drive.write(at, data, Durability::Durable).await,
            Store::Volume(volume) => volume.write(at, data, Durability::Durable).await,
        }
    }
}

/// A process's file, as its client sees it.
struct File {
    handle: Handle,
    client: Rc<Client>,
    nodes: Rc<Vec<Node>>,
    number: usize,
    limits: Limits,
}

impl File {
    fn node(&self, replica: usize) -> &Node {
        &self.nodes[(self.number + replica * 3) % NODES]
    }

    fn store(&self) -> usize {
        self.number / NODES % DRIVES
    }

    fn base(&self) -> u64 {
        (self.number / (NODES * DRIVES)) as u64 * FILE_BYTES
    }

    async fn pass_mount(&self, ns: Nanos) {
        self.handle.sleep_until(self.client.mount.pass(self.handle.now(), ns)).await;
    }

    async fn copy_to(&self, replica: usize, at: Lba, data: Bytes) -> IoResult<()> {
        let (first, node) = (self.node(0), self.node(replica));
        if replica > 0 {
            send(&self.handle, &first.link, &node.link, data.len() as u64).await;
            node.admit(&self.handle).await;
        }
        node.write(self.store(), at, data.into()).await?;
        if replica > 0 {
            self.handle.sleep(ONE_WAY_NS).await;
        }
        Ok(())
    }
}

impl BlockDevice for File {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        let node = self.node(0);
        self.pass_mount(CLIENT_READ_NS).await;
        self.handle.sleep(ONE_WAY_NS).await;
        node.admit(&self.handle).await;
        let at = Lba::from_bytes(at.bytes() + self.base());
        let read = node.read(self.store(), at, into).await?;
        send(&self.handle, &node.link, &self.client.link, read.len() as u64).await;
        Ok(read)
    }

    async fn write(&self, at: Lba, data: Payload, _durability: Durability) -> IoResult<()> {
        let node = self.node(0);
        let Payload::One(data) = data else { unreachable!("loads send one piece") };
        self.pass_mount(CLIENT_WRITE_NS).await;
        send(&self.handle, &self.client.link, &node.link, data.len() as u64).await;
        node.admit(&self.handle).await;
        let at = Lba::from_bytes(at.bytes() + self.base());
        let copies = (0..REPLICAS).map(|replica| self.copy_to(replica, at, data.clone()));
        join_all(copies).await.into_iter().collect::<IoResult<()>>()?;
        self.handle.sleep(ONE_WAY_NS).await;
        Ok(())
    }

    async fn flush(&self) -> IoResult<()> {
        Ok(())
    }

    async fn discard(&self, _range: SectorRange) -> IoResult<()> {
        Ok(())
    }

    async fn write_zeroes(&self, _range: SectorRange, _durability: Durability) -> IoResult<()> {
        Ok(())
    }
}

fn measure(work: &Work, clients: usize, processes: usize, volumes: bool) -> Rates {
    let span_bytes = FILE_BYTES;
    let places = if work.sequential {
        Places::InOrder { span_bytes, gap_bytes: 0 }
    } else {
        Places::Random { span_bytes }
    };
    let load = Load {
        jobs: clients * processes,
        depth: 1,
        block_bytes: work.bytes,
        read_percent: if work.is_read { 100 } else { 0 },
        places,
    };
    let window = Window { warm_ns: 100_000_000, ns: 200_000_000 };
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let nodes: Rc<Vec<Node>> =
            Rc::new((0..NODES).map(|_| Node::new(&handle, volumes)).collect());
        let hosts: Vec<Rc<Client>> = (0..clients).map(|_| Rc::default()).collect();
        let files: Vec<Rc<File>> = (0..clients * processes)
            .map(|number| {
                Rc::new(File {
                    handle: handle.clone(),
                    client: hosts[number % clients].clone(),
                    nodes: nodes.clone(),
                    number,
                    limits: Limits::plain(FILE_BYTES),
                })
            })
            .collect();
        drive(&handle, &files, &load, window, |_| ()).await
    })
}
