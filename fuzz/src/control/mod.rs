//! Lines of the control protocol, through the decoder of the daemon to its service, over an engine
//! that only keeps books.
//!
//! A line that begins with `!` is no message: it tells the engine to fail, or the daemon to restart.

mod engine;
mod sandbox;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use voltier_control::protocol::{
    self, ArrayRequest, MemberName, NewArray, NewCache, Request, Response,
};
use voltier_control::{ArrayName, RegisteredArray, Registry, Service, VolumeName, VolumeRecord};
use voltier_sim::Fake;

use engine::BookEngine;
pub(crate) use engine::BookEngine as Engine;
pub(crate) use sandbox::Sandbox;

const LINES_MAX: usize = 40;

/// Feeds the lines of one input.
pub(crate) fn run(input: &[u8]) {
    let mut daemon = Daemon::start();
    for line in input.split_inclusive(|byte| *byte == b'\n').take(LINES_MAX) {
        match line {
            [b'!', order, rest @ ..] => daemon.order(*order, rest),
            _ => daemon.receive(line),
        }
    }
    daemon.service.stop();
    daemon.engine.is_at_rest();
}

struct Daemon {
    sandbox: Rc<Sandbox>,
    engine: BookEngine,
    service: Service<Fake<BookEngine>>,
}

impl Daemon {
    fn start() -> Self {
        let sandbox = Sandbox::fresh();
        let engine = BookEngine::default();
        let service = start(&sandbox, &engine);
        Self { sandbox, engine, service }
    }

    /// Does something that no client can.
    fn order(&mut self, order: u8, rest: &[u8]) {
        let number = rest.first().copied().unwrap_or_default();
        match order {
            b'f' => self.engine.orders().fails_in = Some(number % 8),
            b'd' => self.engine.orders().dirty = u64::from(number % 4),
            b'e' => self.engine.orders().drain_fails = number % 2 == 1,
            b'c' => self.engine.orders().clients = u64::from(number % 2),
            b'l' => self.engine.orders().ssd_failed = number % 2 == 1,
            b's' => {
                self.service.notice_lost_ssds();
                self.service.step_jobs();
            }
            b'r' => {
                self.service.stop();
                self.engine.is_at_rest();
                self.service = start(&self.sandbox, &self.engine);
            }
            // A kill: the data path of before is gone with it.
            b'k' => {
                self.engine = BookEngine::default();
                self.service = start(&self.sandbox, &self.engine);
            }
            _ => {}
        }
        self.check();
    }

    fn receive(&mut self, line: &[u8]) {
        let mut from = line;
        let request = match protocol::receive::<Request>(&mut from) {
            Ok(Some(request)) => request,
            Ok(None) => return,
            Err(error) => return assert!(!error.message.contains('\n')),
        };
        same(&request);
        let request = self.inside_sandbox(request);
        let before = self.recorded();
        let steady = self.engine.orders().fails_in.is_none();
        let response = self.service.handle(request.clone());
        same(&response);
        match &response {
            Response::Error { error } => {
                assert!(!error.message.is_empty() && !error.message.contains('\n'));
                // An engine that fails half-way may leave the first half.
                assert!(!steady || self.recorded() == before, "{request:?} changed: {error}");
            }
            Response::Job { job } => self.service.job_is_told(job),
            _ => {}
        }
        self.check();
    }

    /// The request with all its paths inside the sandbox.
    fn inside_sandbox(&self, request: Request) -> Request {
        let device = |device| self.sandbox.device(device);
        let cache = |new: NewCache| NewCache { device: device(new.device), ..new };
        match request {
            Request::Create { name, origin, cache: new, export } => {
                let (origin, cache) = (device(origin), new.map(cache));
                Request::Create { name, origin, cache, export }
            }
            Request::Attach { name, cache: new } => Request::Attach { name, cache: cache(new) },
            Request::Array { ask } => Request::Array { ask: self.array_inside_sandbox(ask) },
            other => other,
        }
    }

    fn array_inside_sandbox(&self, ask: ArrayRequest) -> ArrayRequest {
        let device = |device| self.sandbox.device(device);
        let member = |member| match member {
            MemberName::Device(old) => MemberName::Device(device(old)),
            index @ MemberName::Index(_) => index,
        };
        match ask {
            ArrayRequest::Create { array, integrity, export } => {
                let members = array.members.into_iter().map(device).collect();
                let spares = array.spares.into_iter().map(device).collect();
                let journal = array.journal.map(device);
                let array = NewArray { members, spares, journal, ..array };
                ArrayRequest::Create { array, integrity, export }
            }
            ArrayRequest::Assemble { devices, force, read_only } => {
                let devices = devices.into_iter().map(device).collect();
                ArrayRequest::Assemble { devices, force, read_only }
            }
            ArrayRequest::Fail { name, member: old } => {
                ArrayRequest::Fail { name, member: member(old) }
            }
            ArrayRequest::Replace { name, old, new, force } => {
                ArrayRequest::Replace { name, old: member(old), new: device(new), force }
            }
            ArrayRequest::Grow { name, by, devices, force } => {
                let devices = devices.into_iter().map(device).collect();
                ArrayRequest::Grow { name, by, devices, force }
            }
            ArrayRequest::AddSpare { name, spare, force } => {
                ArrayRequest::AddSpare { name, spare: device(spare), force }
            }
            ArrayRequest::PoolAdd { pool, devices, force } => {
                let devices = devices.into_iter().map(device).collect();
                ArrayRequest::PoolAdd { pool, devices, force }
            }
            ArrayRequest::PoolRemove { pool, devices } => {
                let devices = devices.into_iter().map(device).collect();
                ArrayRequest::PoolRemove { pool, devices }
            }
            ArrayRequest::SetJournal { name, journal, force } => {
                ArrayRequest::SetJournal { name, journal: journal.map(device), force }
            }
            other => other,
        }
    }

    fn recorded(&self) -> (Vec<VolumeRecord>, Vec<RegisteredArray>) {
        let registry = Registry::load(&self.sandbox.state()).expect("what the service wrote");
        (registry.volumes().to_vec(), registry.arrays().to_vec())
    }

    /// The answers show what is recorded, and nothing else is open.
    fn check(&mut self) {
        let (volumes, arrays) = self.recorded();
        let recorded: Vec<VolumeName> = volumes.into_iter().map(|record| record.name).collect();
        let arrays: BTreeSet<ArrayName> = arrays.into_iter().map(|record| record.name).collect();
        assert!(self.engine.open_arrays().is_subset(&arrays), "open and not recorded");
        let ask = ArrayRequest::Show { name: None, over_s: None };
        let shown = self.service.handle(Request::Array { ask });
        same(&shown);
        let Response::Arrays { arrays: shown } = shown else { panic!("no list: {shown:?}") };
        assert!(shown.into_iter().map(|array| array.name).eq(arrays));
        let shown = self.service.handle(Request::Show { name: None, over_s: None });
        same(&shown);
        let Response::Volumes { volumes } = shown else { panic!("no list: {shown:?}") };
        let shown: Vec<VolumeName> = volumes.into_iter().map(|volume| volume.name).collect();
        assert_eq!(shown, recorded);
        let known: BTreeSet<VolumeName> = recorded.into_iter().collect();
        assert!(self.engine.open_names().is_subset(&known), "open and not recorded");
    }
}

fn start(sandbox: &Sandbox, engine: &BookEngine) -> Service<Fake<BookEngine>> {
    let registry = Registry::load(&sandbox.state()).expect("what the service wrote");
    let service = Service::new(Fake(engine.clone()), registry);
    service.start(false, Duration::ZERO);
    service
}

/// Goes over the wire and comes back the same.
fn same<T>(message: &T)
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let mut wire = Vec::new();
    protocol::send(&mut wire, message).expect("memory takes it");
    let received = protocol::receive::<T>(&mut wire.as_slice()).expect("its own message");
    assert_eq!(received.as_ref(), Some(message));
}
