//! Loads on devices, and their rate.

use std::cell::Cell;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, Lba, Prng};
use voltier_ring::Handle;

use crate::KIB;

/// Requests at once of random loads on memory.
const DEPTH: u64 = 32;

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Work {
    Read,
    Write,
    /// One read, one write, by turns.
    Mixed,
}

/// Requests of one size at random places, or one behind the other.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) work: Work,
    pub(crate) bytes: u64,
    pub(crate) is_sequential: bool,
    pub(crate) depth: u64,
}

impl Load {
    pub(crate) const fn random(work: Work) -> Self {
        Self { work, bytes: 4 * KIB, is_sequential: false, depth: DEPTH }
    }

    pub(crate) const fn sequential(work: Work, bytes: u64) -> Self {
        Self { work, bytes, is_sequential: true, depth: 8 }
    }
}

/// Where the next request goes and what it is.
struct Requests {
    load: Load,
    places: u64,
    prng: Prng,
    /// Shared by all tasks of a device.
    next: Rc<Cell<u64>>,
    count: u64,
}

impl Requests {
    async fn request<D: BlockDevice>(&mut self, device: &D) {
        let place = if self.load.is_sequential {
            self.next.replace(self.next.get() + 1) % self.places
        } else {
            self.prng.below(self.places)
        };
        let at = Lba::from_bytes(place * self.load.bytes);
        let buf = Buf::new(self.load.bytes as usize);
        self.count += 1;
        let is_read = match self.load.work {
            Work::Read => true,
            Work::Write => false,
            Work::Mixed => self.count.is_multiple_of(2),
        };
        if is_read {
            drop(device.read(at, buf).await.expect("a read works"));
        } else {
            let written = device.write(at, buf.into(), Durability::Cached).await;
            written.expect("a write works");
        }
    }
}

/// A load on devices at once, its depth dealt to them. The result is requests per second of the ring's
/// clock, from the first tenth of the time on.
pub(crate) async fn rate<D: BlockDevice + Clone>(
    handle: &Handle,
    devices: &[D],
    load: Load,
    span_bytes: u64,
    seconds: f64,
) -> f64 {
    let from = handle.now() + (seconds * 1e8) as u64;
    let until = from + (seconds * 1e9) as u64;
    let done = Rc::new(Cell::new(0u64));
    let cursors: Vec<Rc<Cell<u64>>> = devices.iter().map(|_| Rc::default()).collect();
    let tasks: Vec<_> = (0..load.depth)
        .map(|number| {
            let which = number as usize % devices.len();
            let (handle, device, done) = (handle.clone(), devices[which].clone(), done.clone());
            let mut requests = Requests {
                load,
                places: span_bytes / load.bytes,
                prng: Prng::new(number + 1),
                next: cursors[which].clone(),
                count: number,
            };
            // The clock is looked at once in some requests: it is not what is measured.
            let at_once = if load.depth > DEPTH { 1 } else { (64 * KIB / load.bytes).max(1) };
            handle.clone().spawn(async move {
                while handle.now() < until {
                    for _ in 0..at_once {
                        requests.request(&device).await;
                    }
                    if (from..until).contains(&handle.now()) {
                        done.set(done.get() + at_once);
                    }
                    handle.yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
    done.get() as f64 * 1e9 / (until - from) as f64
}

/// Writes a device once, from its start. Memory that is touched for the first time is cleared by the
/// system, which is not what is measured.
pub(crate) async fn touch<D: BlockDevice>(device: &D, span_bytes: u64) {
    let data = Buf::zeroed(1 << 20).freeze();
    for place in 0..span_bytes >> 20 {
        let at = Lba::from_bytes(place << 20);
        let written = device.write(at, data.clone().into(), Durability::Cached).await;
        written.expect("a write works");
    }
}
