//! A load on devices in virtual time: what fio does with its jobs and queues.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Bytes, Durability, Lba, Nanos, Prng};
use voltier_ring::Handle;

/// The load on the devices.
#[derive(Clone, Debug)]
pub struct Load {
    /// Jobs, dealt to the devices in turn.
    pub jobs: usize,
    /// Outstanding requests of each job.
    pub depth: usize,
    /// Bytes of a request.
    pub block_bytes: u64,
    /// Reads among a hundred requests.
    pub read_percent: u64,
    /// Where requests go.
    pub places: Places,
}

/// Where requests go.
#[derive(Clone, Debug)]
pub enum Places {
    /// Anywhere in the first bytes of a device, on whole requests.
    Random {
        /// How many.
        span_bytes: u64,
    },
    /// Each job from its start on, one request behind the other, around the first bytes.
    InOrder {
        /// Around how many.
        span_bytes: u64,
        /// How far apart the jobs begin, in bytes.
        gap_bytes: u64,
    },
}

/// The rates that a load came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Requests of the window.
    pub requests: u64,
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Mean latency in nanoseconds.
    pub mean_latency_ns: f64,
}

/// The time that is not counted, then the time that is.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The time that is not counted, before the window.
    pub warm_ns: Nanos,
    /// The time of the window, which is counted.
    pub ns: Nanos,
}

#[derive(Default)]
struct Sums {
    requests: Cell<u64>,
    latency_ns: Cell<u64>,
}

struct Job {
    next: Cell<u64>,
    prng: RefCell<Prng>,
}

impl Job {
    fn place(&self, places: &Places, block_bytes: u64) -> u64 {
        match places {
            Places::Random { span_bytes } => {
                self.prng.borrow_mut().below(span_bytes / block_bytes) * block_bytes
            }
            Places::InOrder { span_bytes, .. } => {
                let blocks = span_bytes / block_bytes;
                self.next.replace(self.next.get() + 1) % blocks * block_bytes
            }
        }
    }
}

/// Runs a load on devices, and returns when the last request is answered. `begin` and `end` are called
/// at the edges of the window.
///
/// # Panics
/// If a device fails: the drives here do not.
pub async fn drive<D: BlockDevice>(
    handle: &Handle,
    devices: &[Rc<D>],
    load: &Load,
    window: Window,
    edge: impl Fn(Edge),
) -> Rates {
    let from = handle.now() + window.warm_ns;
    let until = from + window.ns;
    let sums = Rc::new(Sums::default());
    let zeroes = Buf::zeroed(load.block_bytes as usize).freeze();
    let mut tasks = Vec::with_capacity(load.jobs * load.depth);
    for number in 0..load.jobs {
        let gap_bytes = match load.places {
            Places::InOrder { gap_bytes, .. } => gap_bytes,
            Places::Random { .. } => 0,
        };
        let job = Rc::new(Job {
            next: Cell::new(number as u64 * gap_bytes / load.block_bytes),
            prng: RefCell::new(Prng::new(number as u64 + 1)),
        });
        for _ in 0..load.depth {
            let device = devices[number % devices.len()].clone();
            let (handle, job, sums) = (handle.clone(), job.clone(), sums.clone());
            let (load, zeroes) = (load.clone(), zeroes.clone());
            let requests = Requests { handle: handle.clone(), job, load, zeroes, sums };
            tasks.push(handle.spawn(async move { requests.run(&*device, from, until).await }));
        }
    }
    handle.sleep_until(from).await;
    edge(Edge::Begin);
    handle.sleep_until(until).await;
    edge(Edge::End);
    for task in tasks {
        task.await;
    }
    let requests = sums.requests.get();
    let iops = requests as f64 * 1e9 / window.ns as f64;
    Rates {
        requests,
        iops,
        bytes_per_s: iops * load.block_bytes as f64,
        mean_latency_ns: sums.latency_ns.get() as f64 / requests.max(1) as f64,
    }
}

/// An edge of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// The counted window begins.
    Begin,
    /// The counted window is over.
    End,
}

struct Requests {
    handle: Handle,
    job: Rc<Job>,
    load: Load,
    zeroes: Bytes,
    sums: Rc<Sums>,
}

impl Requests {
    /// One request behind the other until the time is over.
    async fn run<D: BlockDevice>(&self, device: &D, from: Nanos, until: Nanos) {
        let mut spare = None;
        loop {
            let begun = self.handle.now();
            if begun >= until {
                return;
            }
            let at = Lba::from_bytes(self.job.place(&self.load.places, self.load.block_bytes));
            let is_read = self.job.prng.borrow_mut().below(100) < self.load.read_percent;
            if is_read {
                let buf = spare.take().unwrap_or_else(|| Buf::new(self.zeroes.len()));
                spare = Some(device.read(at, buf).await.expect("drives do not fail here"));
            } else {
                let data = self.zeroes.clone().into();
                let written = device.write(at, data, Durability::Cached).await;
                written.expect("drives do not fail here");
            }
            let now = self.handle.now();
            if (from..until).contains(&now) {
                self.sums.requests.set(self.sums.requests.get() + 1);
                self.sums.latency_ns.set(self.sums.latency_ns.get() + now - begun);
            }
        }
    }
}
