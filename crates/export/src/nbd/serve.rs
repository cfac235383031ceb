//! Workers: tasks that serve one request after the other, as many as are needed at once.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoError, IoResult, Lba, SectorRange};
use voltier_ring::Handle;

use super::connection::IN_FLIGHT_REQUESTS_MAX;
use super::outbox::{Outbox, Reply};
use super::proto::ErrorCode;
use super::reply::Failure;
use super::request::{Command, Request};
use crate::counters::CounterCell;
use crate::transfer;

/// A request on its way to the device.
pub(super) struct Job {
    pub(super) request: Request,
    /// The data of a write.
    pub(super) data: Option<Bytes>,
    pub(super) structured: bool,
    /// What it holds of the connection's bytes in flight.
    pub(super) cost_bytes: u64,
}

struct Shared<D> {
    device: Rc<D>,
    outbox: Rc<Outbox>,
    counters: Rc<CounterCell>,
    jobs: RefCell<VecDeque<Job>>,
    parked: RefCell<Vec<Waker>>,
    closed: Cell<bool>,
}

/// The workers of one connection. A worker is made when all others are busy and stays, so that a
/// request costs no allocation.
pub(super) struct Workers<D> {
    handle: Handle,
    shared: Rc<Shared<D>>,
    count: Cell<usize>,
}

impl<D: BlockDevice> Workers<D> {
    pub(super) fn new(
        handle: Handle,
        device: Rc<D>,
        outbox: Rc<Outbox>,
        counters: Rc<CounterCell>,
    ) -> Self {
        let shared = Rc::new(Shared {
            device,
            outbox,
            counters,
            jobs: RefCell::default(),
            parked: RefCell::default(),
            closed: Cell::new(false),
        });
        Self { handle, shared, count: Cell::new(0) }
    }

    /// Hands a job to a worker.
    pub(super) fn serve(&self, job: Job) {
        self.shared.jobs.borrow_mut().push_back(job);
        let parked = self.shared.parked.borrow_mut().pop();
        if let Some(waker) = parked {
            waker.wake();
        } else if self.count.get() < IN_FLIGHT_REQUESTS_MAX {
            self.count.set(self.count.get() + 1);
            drop(self.handle.spawn(self.shared.clone().work()));
        }
    }

    /// Lets the workers go once there is nothing left to do.
    pub(super) fn close(&self) {
        self.shared.closed.set(true);
        for waker in self.shared.parked.take() {
            waker.wake();
        }
    }
}

impl<D: BlockDevice> Shared<D> {
    async fn work(self: Rc<Self>) {
        while let Some(job) = self.next_job().await {
            let Job { request, data, structured, cost_bytes } = job;
            let result = self.execute(&request, data).await;
            self.count(&request, result.is_ok());
            let reply = match result {
                Ok(Some(data)) => Reply::Data { request, data, structured },
                Ok(None) => Reply::Success { cookie: request.cookie },
                Err(error) => {
                    let failure = failure_of(error, &request, &*self.device);
                    Reply::Error { cookie: request.cookie, failure, structured }
                }
            };
            self.outbox.push(reply, cost_bytes);
        }
    }

    async fn next_job(&self) -> Option<Job> {
        // A parked worker has its waker in the list exactly once, or it could be woken for a job
        // while it is busy with another one.
        let mut parked = false;
        poll_fn(|context| {
            if let Some(job) = self.jobs.borrow_mut().pop_front() {
                return Poll::Ready(Some(job));
            }
            if self.closed.get() {
                return Poll::Ready(None);
            }
            let mut list = self.parked.borrow_mut();
            if !parked || !list.iter().any(|waker| waker.will_wake(context.waker())) {
                list.push(context.waker().clone());
                parked = true;
            }
            Poll::Pending
        })
        .await
    }

    async fn execute(&self, request: &Request, data: Option<Bytes>) -> IoResult<Option<Bytes>> {
        let device = &*self.device;
        let durability = if request.fua { Durability::Durable } else { Durability::Cached };
        match (request.command, data) {
            (Command::Read, _) => {
                let into = Buf::new(request.length as usize);
                let data = transfer::read(device, Lba::from_bytes(request.offset), into).await?;
                Ok(Some(data.freeze()))
            }
            (Command::Write, Some(data)) => {
                let at = Lba::from_bytes(request.offset);
                transfer::write(device, at, data, durability).await.map(|()| None)
            }
            (Command::Write, None) => unreachable!("a write comes with its data"),
            (Command::Flush, _) => device.flush().await.map(|()| None),
            (Command::Trim, _) => {
                device.discard(range_of(request)).await?;
                if request.fua {
                    device.flush().await?;
                }
                Ok(None)
            }
            (Command::WriteZeroes, _) => {
                let range = range_of(request);
                transfer::write_zeroes(device, range, durability, request.no_hole).await?;
                Ok(None)
            }
        }
    }

    fn count(&self, request: &Request, good: bool) {
        self.counters.change(|counters| {
            match request.command {
                Command::Read => {
                    counters.reads += 1;
                    counters.read_bytes += u64::from(request.length);
                }
                Command::Write => {
                    counters.writes += 1;
                    counters.written_bytes += u64::from(request.length);
                }
                Command::Flush => counters.flushes += 1,
                Command::Trim | Command::WriteZeroes => counters.discards += 1,
            }
            counters.failures += u64::from(!good);
        });
    }
}

fn range_of(request: &Request) -> SectorRange {
    SectorRange::from_bytes(request.offset, u64::from(request.length))
}

fn failure_of(error: IoError, request: &Request, device: &impl BlockDevice) -> Failure {
    let message = match error {
        IoError::OutOfRange => "outside the device",
        IoError::Medium => "medium error",
        IoError::ReadOnly => "the device is read-only",
        IoError::NoSpace => "no space left",
        IoError::Gone => "the device is gone",
        IoError::Unsupported => "not supported by the device",
    };
    // The device does not say which byte is bad, except where there is one block to choose from.
    let one_block = request.length == device.limits().block_bytes;
    let offset = (error == IoError::Medium && one_block).then_some(request.offset);
    Failure { offset, ..Failure::new(ErrorCode::from(error), message) }
}
