//! Requests of any alignment, of several connections at once, against a model that knows bytes alone.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use voltier_block::{Bytes, Limits, Prng};
use voltier_nbd::proto;
use voltier_ring::{Executor, Handle, NoFiles};

use super::info::ExportInfo;
use super::serve::{Outbox, Serve};
use super::session::{Event, Request, Session};
use crate::bytes::ByteDevice;
use crate::slow::Slow;

/// Small, so that requests meet: three blocks of 4096 bytes.
const SIZE_BYTES: u64 = 12 << 10;

const CONNECTIONS: u64 = 6;
const REQUESTS_PER_CONNECTION: usize = 40;

/// A value that a byte was given, and between which moments.
struct Write {
    begun: u64,
    ended: u64,
    value: u8,
}

/// The history of every byte.
struct Model {
    bytes: Vec<Vec<Write>>,
    moment: u64,
}

impl Model {
    fn new() -> Self {
        let blank = || vec![Write { begun: 0, ended: 0, value: 0 }];
        Self { bytes: (0..SIZE_BYTES).map(|_| blank()).collect(), moment: 0 }
    }

    fn now(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    fn begin(&mut self, offset: u64, data: &[u8]) -> u64 {
        let begun = self.now();
        for (history, value) in self.bytes[offset as usize..].iter_mut().zip(data) {
            history.push(Write { begun, ended: u64::MAX, value: *value });
        }
        begun
    }

    fn end(&mut self, range: Range<usize>, begun: u64) {
        let ended = self.now();
        for history in &mut self.bytes[range] {
            let write = history.iter_mut().find(|write| write.begun == begun);
            write.expect("it was begun").ended = ended;
        }
    }

    /// Holds a read against the history. A byte has the value of a write that began before the read
    /// ended. No other write followed that one in whole before the read began.
    fn check(&mut self, offset: u64, data: &[u8], begun: u64, seed: u64) {
        let ended = self.now();
        for (at, value) in (offset as usize..).zip(data) {
            let history = &self.bytes[at];
            let is_gone = |write: &Write| {
                history.iter().any(|later| later.begun > write.ended && later.ended < begun)
            };
            let mut candidates = history.iter().filter(|write| write.begun < ended);
            let is_right = candidates.any(|write| write.value == *value && !is_gone(write));
            assert!(is_right, "seed {seed}: byte {at} is {value}, which nobody wrote last");
        }
    }
}

/// One connection: a session that parses, and what serves the requests.
struct Client {
    session: Session,
    serve: Serve<Slow>,
    model: Rc<RefCell<Model>>,
    prng: Prng,
    block_bytes: u64,
    seed: u64,
}

impl Client {
    fn connect(
        device: &Rc<ByteDevice<Slow>>,
        model: &Rc<RefCell<Model>>,
        seed: u64,
        prng: Prng,
    ) -> Self {
        let limits = device.limits().clone();
        let block_bytes = u64::from(limits.block_bytes);
        let mut session =
            Session::new(Rc::new(ExportInfo::new("v", "", limits, false)), &mut Vec::new());
        // A client of the oldest kind: it asks for no block size.
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(proto::OPTION_MAGIC.to_be_bytes());
        hello.extend(proto::OPT_EXPORT_NAME.to_be_bytes());
        hello.extend(0u32.to_be_bytes());
        let mut rest = &hello[..];
        while !session.in_transmission() {
            let (used, _) = session.advance(rest, &mut Vec::new());
            rest = &rest[used..];
        }
        let outbox = Rc::new(Outbox::default());
        let serve = Serve { device: device.clone(), outbox, counters: Default::default() };
        Self { session, serve, model: model.clone(), prng, block_bytes, seed }
    }

    /// A range of bytes, often of whole sectors, and often one that others have too.
    fn draw_range(&mut self) -> (u64, u32) {
        let prng = &mut self.prng;
        let length = *prng.pick(&[1, 3, 100, 511, 512, 513, 700, 1024, 4096, 5000]);
        let mut offset = prng.below(SIZE_BYTES - length + 1);
        if prng.one_in(2) {
            offset -= offset % 512;
        }
        (offset, length as u32)
    }

    fn parse(&mut self, kind: u16, flags: u16, offset: u64, length: u32) -> Request {
        let mut header = proto::REQUEST_MAGIC.to_be_bytes().to_vec();
        header.extend(flags.to_be_bytes());
        header.extend(kind.to_be_bytes());
        header.extend(7u64.to_be_bytes());
        header.extend(offset.to_be_bytes());
        header.extend(length.to_be_bytes());
        match self.session.advance(&header, &mut Vec::new()) {
            (_, Event::Request(request)) => request,
            (_, other) => panic!("{other:?} for {length} bytes at {offset}"),
        }
    }

    async fn run(mut self) {
        for _ in 0..REQUESTS_PER_CONNECTION {
            let (offset, length) = self.draw_range();
            let fua = if self.prng.one_in(3) { proto::CMD_FLAG_FUA } else { 0 };
            match self.prng.below(8) {
                0..=2 => self.read(offset, length).await,
                3..=5 => {
                    let mut data = vec![0; length as usize];
                    self.prng.fill(&mut data);
                    self.change(proto::CMD_WRITE, fua, offset, &data).await;
                }
                6 => {
                    let no_hole = if self.prng.one_in(2) { proto::CMD_FLAG_NO_HOLE } else { 0 };
                    let zeroes = vec![0; length as usize];
                    self.change(proto::CMD_WRITE_ZEROES, fua | no_hole, offset, &zeroes).await;
                }
                _ => self.change(proto::CMD_TRIM, fua, offset, &vec![0; length as usize]).await,
            }
        }
    }

    async fn read(&mut self, offset: u64, length: u32) {
        let request = self.parse(proto::CMD_READ, 0, offset, length);
        let begun = self.model.borrow_mut().now();
        let data = self.serve.execute(&request, None).await.unwrap().expect("a read brings data");
        assert_eq!(data.len(), length as usize);
        self.model.borrow_mut().check(offset, &data, begun, self.seed);
    }

    async fn change(&mut self, kind: u16, flags: u16, offset: u64, data: &[u8]) {
        let request = self.parse(kind, flags, offset, data.len() as u32);
        // A trim changes whole blocks only. Blocks that this device gives up read as zeroes.
        let end = offset + data.len() as u64;
        let (first, last) = match kind {
            proto::CMD_TRIM => {
                let first = offset.next_multiple_of(self.block_bytes);
                (first, (end - end % self.block_bytes).max(first))
            }
            _ => (offset, end),
        };
        let changed = &data[..(last - first) as usize];
        let begun = self.model.borrow_mut().begin(first, changed);
        let payload = (kind == proto::CMD_WRITE).then(|| Bytes::copy_of(data));
        let answer = self.serve.execute(&request, payload).await.unwrap();
        assert!(answer.is_none());
        self.model.borrow_mut().end(first as usize..last as usize, begun);
    }
}

async fn run_clients(handle: Handle, seed: u64) {
    let mut prng = Prng::new(seed);
    let block_bytes = *prng.pick(&[512, 4096]);
    let limits = Limits { block_bytes, ..Limits::plain(SIZE_BYTES) };
    let device = Rc::new(ByteDevice::new(Rc::new(Slow::new(&handle, seed, limits))));
    let model = Rc::new(RefCell::new(Model::new()));
    let connect = |number| {
        let prng = Prng::new(seed * CONNECTIONS + number + 1000);
        Client::connect(&device, &model, seed, prng)
    };
    let clients: Vec<_> =
        (0..CONNECTIONS).map(|number| handle.spawn(connect(number).run())).collect();
    for client in clients {
        client.await;
    }
    let begun = model.borrow_mut().now();
    let all = device.read(0, SIZE_BYTES).await.unwrap();
    model.borrow_mut().check(0, &all, begun, seed);
}

#[test]
fn writes_of_parts_of_a_sector_by_several_connections_all_survive() {
    for seed in 0..40 {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(run_clients(handle, seed));
    }
}
