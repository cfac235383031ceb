//! Requests of clients, whatever the protocol: worker tasks that serve them, and transfers cut to the lengths
//! that a device takes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use voltier_block::{
    BlockDevice, Buf, Bytes, Durability, IoError, IoResult, Lba, SECTOR_BYTES, SectorRange,
    zero_writes,
};
use voltier_ring::{Handle, TaskId};

/// The work of a worker on a job.
#[allow(async_fn_in_trait)]
pub(crate) trait Service: 'static {
    /// A request of a client.
    type Job: 'static;

    /// Serves one job to its end, the answer included.
    async fn serve(&self, job: Self::Job);
}

struct Shared<S: Service> {
    service: S,
    jobs: RefCell<VecDeque<S::Job>>,
    /// Workers that have nothing to do, by their numbers: each once.
    idle: RefCell<Vec<usize>>,
    closed: Cell<bool>,
}

/// The workers of one client. A worker is made when all others are busy and stays, so that a
/// request costs no allocation.
pub(crate) struct Workers<S: Service> {
    handle: Handle,
    shared: Rc<Shared<S>>,
    /// The tasks of all workers.
    tasks: RefCell<Vec<TaskId>>,
    count_max: usize,
}

impl<S: Service> Workers<S> {
    /// At most `count_max` workers; further jobs wait their turn.
    pub(crate) fn new(handle: Handle, service: S, count_max: usize) -> Self {
        let shared = Rc::new(Shared {
            service,
            jobs: RefCell::default(),
            idle: RefCell::default(),
            closed: Cell::new(false),
        });
        Self { handle, shared, tasks: RefCell::default(), count_max }
    }

    /// Hands a job to a worker, which begins at once: a request for which nothing has to be waited is served when
    /// this returns.
    pub(crate) fn serve(&self, job: S::Job) {
        if let Some(task) = self.worker_for(job) {
            self.handle.poll_now(task);
        }
    }

    /// Queues a job; a worker that has nothing to do, if there is one.
    fn worker_for(&self, job: S::Job) -> Option<TaskId> {
        self.shared.jobs.borrow_mut().push_back(job);
        let idle = self.shared.idle.borrow_mut().pop();
        match idle {
            Some(number) => Some(self.tasks.borrow()[number]),
            None => self.another(),
        }
    }

    /// One more worker, if there may be one.
    fn another(&self) -> Option<TaskId> {
        let mut tasks = self.tasks.borrow_mut();
        let number = tasks.len();
        if number == self.count_max {
            return None;
        }
        let task = self.handle.begin(self.shared.clone().work(number))?;
        tasks.push(task);
        Some(task)
    }
}

impl<S: Service> Drop for Workers<S> {
    /// Lets the workers go once there is nothing left to do.
    fn drop(&mut self) {
        self.shared.closed.set(true);
        let tasks = self.tasks.take();
        for number in self.shared.idle.take() {
            self.handle.wake(tasks[number]);
        }
    }
}

impl<S: Service> Shared<S> {
    async fn work(self: Rc<Self>, number: usize) {
        while let Some(job) = self.next_job(number).await {
            self.service.serve(job).await;
        }
    }

    async fn next_job(&self, number: usize) -> Option<S::Job> {
        // An idle worker is in the list exactly once, also if it is woken for another reason. Otherwise it could be
        // given a job while it is busy with another one.
        let mut was_idle = false;
        poll_fn(|_| {
            let mut idle = self.idle.borrow_mut();
            let job = self.jobs.borrow_mut().pop_front();
            if job.is_some() || self.closed.get() {
                if was_idle {
                    idle.retain(|other| *other != number);
                }
                return Poll::Ready(job);
            }
            if !was_idle || !idle.contains(&number) {
                was_idle = true;
                idle.push(number);
            }
            Poll::Pending
        })
        .await
    }
}

/// Longest single zero-filling write, in bytes: bounds what one client's request occupies below.
const ZERO_WRITE_BYTES_MAX: u64 = 4 << 20;

/// Longest transfer of the device in bytes, as a multiple of its blocks.
fn transfer_bytes(device: &impl BlockDevice) -> usize {
    let limits = device.limits();
    let blocks = (limits.max_transfer_bytes / limits.block_bytes).max(1);
    blocks as usize * limits.block_bytes as usize
}

fn sectors(bytes: usize) -> u64 {
    bytes as u64 / SECTOR_BYTES
}

/// Reads a run of any length.
pub(crate) async fn read(device: &impl BlockDevice, at: Lba, into: Buf) -> IoResult<Buf> {
    let most = transfer_bytes(device);
    if into.len() <= most {
        return device.read(at, into).await;
    }
    let (mut rest, mut at) = (into, at);
    let mut parts = Vec::with_capacity(rest.len().div_ceil(most));
    while !rest.is_empty() {
        let piece = rest.split_to(rest.len().min(most));
        let next = at.plus(sectors(piece.len()));
        // A device may answer in a buffer of its own.
        parts.push(device.read(at, piece).await?);
        at = next;
    }
    Ok(Buf::put_together(parts))
}

/// Writes a run of any length.
pub(crate) async fn write(
    device: &impl BlockDevice,
    at: Lba,
    data: Bytes,
    durability: Durability,
) -> IoResult<()> {
    let most = transfer_bytes(device);
    if data.len() <= most {
        return device.write(at, data.into(), durability).await;
    }
    for start in (0..data.len()).step_by(most) {
        let piece = data.slice(start..data.len().min(start + most));
        device.write(at.plus(sectors(start)), piece.into(), durability).await?;
    }
    Ok(())
}

/// Makes a range read as zeroes; with `keep_space` it keeps its space, and they are written if need be.
pub(crate) async fn write_zeroes(
    device: &impl BlockDevice,
    range: SectorRange,
    durability: Durability,
    keep_space: bool,
) -> IoResult<()> {
    let result = match keep_space {
        true => device.zero_in_place(range, durability).await,
        false => device.write_zeroes(range, durability).await,
    };
    if result != Err(IoError::Unsupported) {
        return result;
    }
    let most = ZERO_WRITE_BYTES_MAX.min(transfer_bytes(device) as u64);
    for (part, zeroes) in zero_writes(range, most) {
        device.write(part.start, zeroes, durability).await?;
    }
    Ok(())
}
