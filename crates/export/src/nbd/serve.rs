//! What a connection's workers do: one request each, from the device to the outbox.

use std::rc::Rc;
use std::sync::Arc;

use voltier_block::{BlockDevice, Buf, Bytes, Durability, IoError, IoResult, Lba, SectorRange};

use super::outbox::{Outbox, Reply};
use super::proto::ErrorCode;
use super::reply::Failure;
use super::request::{Command, Request};
use crate::counters::{CounterCell, Served};
use crate::transfer;
use crate::workers::Service;

/// A request on its way to the device.
pub(super) struct Job {
    pub(super) request: Request,
    /// The data of a write.
    pub(super) data: Option<Bytes>,
    pub(super) structured: bool,
    /// What it holds of the connection's bytes in flight.
    pub(super) cost_bytes: u64,
}

/// Serves the requests of one connection.
pub(super) struct Serve<D> {
    pub(super) device: Rc<D>,
    pub(super) outbox: Rc<Outbox>,
    pub(super) counters: Arc<CounterCell>,
}

impl<D: BlockDevice> Service for Serve<D> {
    type Job = Job;

    async fn serve(&self, job: Job) {
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

impl<D: BlockDevice> Serve<D> {
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
        let length = u64::from(request.length);
        self.counters.count(match request.command {
            _ if !good => Served::Failure,
            Command::Read => Served::Read(length),
            Command::Write => Served::Write(length),
            Command::Flush => Served::Flush,
            Command::Trim | Command::WriteZeroes => Served::Discard,
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
