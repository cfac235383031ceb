//! One body that every device must pass, in virtual and in real time.
//!
//! Eight tasks work at once on ranges of their own, each against an oracle of plain bytes. The ranges do
//! not end on 4096-byte borders unless the device's blocks do.

use std::rc::Rc;

use voltier_block::{
    AfterDiscard, BlockDevice, Buf, Bytes, Durability, IoError, Lba, Limits, MIB, Payload, Prng,
    SECTOR_BYTES, SectorRange,
};
use voltier_drive::model::Profile;
use voltier_drive::{
    AlignDevice, FileDevice, FileOptions, MemoryDevice, ModelDevice, OverlayDevice,
};
use voltier_filter::{
    Delay, DelayDevice, FaultDevice, Faults, Hang, HangDevice, IoLog, LogDevice, ReadOnlyDevice,
    Throttle, ThrottleDevice,
};
use voltier_nbd::proto;
use voltier_ring::{AllocateMode, Errno, Executor, Fd, Handle, Op, OpOutcome, VirtualFiles};

use crate::nbd;
use crate::support::fake_server::{ALL_FLAGS, Conduct, FakeServer};

const LANES: u64 = 8;
const STEPS_PER_LANE: u32 = 150;
/// More than one memory chunk, and not a whole number of anything but 4096-byte blocks.
const DEVICE_BYTES: u64 = 5 * MIB + 12288;

fn sectors_of(bytes: usize) -> u64 {
    bytes as u64 / SECTOR_BYTES
}

/// A payload of these bytes, cut in pieces as `dice` falls, now and then not on sector borders.
fn cut(bytes: &[u8], dice: &mut Prng) -> Payload {
    let whole = Bytes::copy_of(bytes);
    if dice.one_in(2) {
        return whole.into();
    }
    let unit = if dice.one_in(4) { 100 } else { 512 };
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let len = (unit * (1 + dice.below(8) as usize)).min(bytes.len() - at);
        pieces.push(whole.slice(at..at + len));
        at += len;
    }
    Payload::Many(pieces)
}

/// Buffers of so many bytes together, in whole blocks: parts of one in another order, or each its own.
fn scattered(bytes: usize, block: usize, dice: &mut Prng) -> Vec<Buf> {
    let is_one = dice.one_in(2);
    let (mut whole, mut bufs, mut left) = (Buf::new(bytes), Vec::new(), bytes);
    while left > 0 {
        let taken = (block * (1 + dice.below(8) as usize)).min(left);
        bufs.push(if is_one { whole.split_to(taken) } else { Buf::new(taken) });
        left -= taken;
    }
    if dice.one_in(2) {
        bufs.reverse();
    }
    bufs
}

/// A range of the device and what it holds; `None` is a sector whose content nobody promises.
struct Lane<D> {
    device: Rc<D>,
    start: u64,
    content: Vec<u8>,
    known: Vec<bool>,
    prng: Prng,
}

impl<D: BlockDevice> Lane<D> {
    fn pick(&mut self) -> (SectorRange, std::ops::Range<usize>) {
        let block = u64::from(self.device.limits().block_bytes) / SECTOR_BYTES;
        let blocks = sectors_of(self.content.len()) / block;
        let longest = if self.prng.one_in(8) { blocks } else { blocks.min(24) };
        let count = 1 + self.prng.below(longest);
        let first = self.prng.below(blocks - count + 1);
        let range = SectorRange::new(Lba(self.start + first * block), count * block);
        let from = (first * block * SECTOR_BYTES) as usize;
        (range, from..from + range.bytes() as usize)
    }

    fn durability(&mut self) -> Durability {
        if self.prng.one_in(4) { Durability::Durable } else { Durability::Cached }
    }

    fn know(&mut self, inside: std::ops::Range<usize>, known: bool) {
        let sectors = inside.start / 512..inside.end / 512;
        self.known[sectors].fill(known);
    }

    fn check(&self, inside: std::ops::Range<usize>, read: &[u8], range: SectorRange) {
        for (index, sector) in read.chunks(512).enumerate() {
            let at = inside.start + index * 512;
            if self.known[at / 512] {
                assert!(sector == &self.content[at..at + 512], "wrong sector {index} of {range}");
            }
        }
    }

    async fn step(&mut self) {
        let (range, inside) = self.pick();
        let device = self.device.clone();
        match self.prng.below(10) {
            0..2 => {
                let block = device.limits().block_bytes as usize;
                let into = scattered(inside.len(), block, &mut self.prng);
                let lengths: Vec<usize> = into.iter().map(|buf| buf.len()).collect();
                let read = device.read_vectored(range.start, into).await.unwrap();
                assert!(read.iter().map(|buf| buf.len()).eq(lengths));
                let read: Vec<u8> = read.iter().flat_map(|buf| buf.to_vec()).collect();
                self.check(inside, &read, range);
            }
            2..4 => {
                let buf = Buf::new(inside.len());
                let memory = buf.as_ptr();
                let read = device.read(range.start, buf).await.unwrap();
                assert_eq!(read.as_ptr(), memory, "a read gives the very buffer back");
                self.check(inside, &read, range);
            }
            4..7 => {
                self.prng.fill(&mut self.content[inside.clone()]);
                let data = cut(&self.content[inside.clone()], &mut self.prng);
                let durability = self.durability();
                device.write(range.start, data, durability).await.unwrap();
                self.know(inside, true);
            }
            7 => {
                let durability = self.durability();
                device.write_zeroes(range, durability).await.unwrap();
                self.content[inside.clone()].fill(0);
                self.know(inside, true);
            }
            8 => {
                device.discard(range).await.unwrap();
                match device.limits().after_discard {
                    AfterDiscard::Zeroes => {
                        self.content[inside.clone()].fill(0);
                        self.know(inside, true);
                    }
                    AfterDiscard::Anything => self.know(inside, false),
                    AfterDiscard::Unchanged => {}
                }
            }
            _ => device.flush().await.unwrap(),
        }
    }
}

/// The body. The device must read as zeroes at first.
async fn conforms<D: BlockDevice>(handle: Handle, device: D) {
    let device = Rc::new(device);
    let limits = device.limits().clone();
    let block = u64::from(limits.block_bytes) / SECTOR_BYTES;
    assert!(matches!(limits.block_bytes, 512 | 4096));
    assert!(limits.preferred_bytes.is_power_of_two());
    assert!(limits.preferred_bytes >= limits.block_bytes);
    assert!(limits.sectors > 64 * LANES && limits.sectors.is_multiple_of(block));
    refusals(&*device, &limits).await;
    pieces_of_one_buffer(&*device, &limits).await;
    let lane_sectors = (limits.sectors / LANES / 8 * 8 - 5) / block * block;
    let lanes: Vec<_> = (0..LANES)
        .map(|lane| {
            let bytes = (lane_sectors * SECTOR_BYTES) as usize;
            let mut lane = Lane {
                device: device.clone(),
                start: lane * lane_sectors,
                content: vec![0; bytes],
                known: vec![true; bytes / 512],
                prng: Prng::new(lane),
            };
            handle.spawn(async move {
                for _ in 0..STEPS_PER_LANE {
                    lane.step().await;
                }
                lane
            })
        })
        .collect();
    for lane in lanes {
        let lane = lane.await;
        device.flush().await.unwrap();
        let read = device.read(Lba(lane.start), Buf::new(lane.content.len())).await.unwrap();
        let range = SectorRange::new(Lba(lane.start), sectors_of(lane.content.len()));
        lane.check(0..lane.content.len(), &read, range);
    }
}

/// Every operation refuses ranges outside the device and misaligned ones.
async fn refusals<D: BlockDevice>(device: &D, limits: &Limits) {
    let block = u64::from(limits.block_bytes) / SECTOR_BYTES;
    let end = limits.sectors;
    let mut wrong = vec![(end, block), (end - block, 2 * block), (u64::MAX - 7, 8)];
    if block > 1 {
        wrong.extend([(1, block), (0, 1), (block, block + 1)]);
    }
    let refused = if limits.read_only { IoError::ReadOnly } else { IoError::OutOfRange };
    for (start, count) in wrong {
        let (range, bytes) = (SectorRange::new(Lba(start), count), (count * SECTOR_BYTES) as usize);
        let read = device.read(range.start, Buf::new(bytes)).await;
        assert_eq!(read.unwrap_err(), IoError::OutOfRange, "{range}");
        let read = device.read_vectored(range.start, vec![Buf::new(bytes)]).await;
        assert_eq!(read.unwrap_err(), IoError::OutOfRange, "{range}");
        for durability in [Durability::Cached, Durability::Durable] {
            let data = Buf::zeroed(bytes).into();
            assert_eq!(device.write(range.start, data, durability).await, Err(refused));
            assert_eq!(device.write_zeroes(range, durability).await, Err(refused));
        }
        assert_eq!(device.discard(range).await, Err(refused));
    }
    let read = device.read(Lba(0), Buf::new(100)).await;
    assert_eq!(read.unwrap_err(), IoError::OutOfRange);
    let data = Buf::zeroed(100).into();
    assert_eq!(device.write(Lba(0), data, Durability::Cached).await, Err(refused));
}

/// A buffer cut in pieces that are read one by one comes together again.
async fn pieces_of_one_buffer<D: BlockDevice>(device: &D, limits: &Limits) {
    let block = limits.block_bytes as usize;
    let mut rest = Buf::new(3 * block);
    rest.fill(0xff);
    let first = device.read(Lba(0), rest.split_to(block)).await.unwrap();
    let last = device.read(Lba::from_bytes(block as u64), rest).await.unwrap();
    assert!(first.join(last).iter().all(|&byte| byte == 0), "a fresh device reads as zeroes");
}

fn virtually<D: BlockDevice>(device: impl FnOnce(Handle) -> D + 'static) {
    let mut executor = Executor::in_virtual_time(ShortFile::new(DEVICE_BYTES));
    let handle = executor.handle();
    executor.block_on(async move { conforms(handle.clone(), device(handle)).await });
}

fn really<D: BlockDevice>(device: impl FnOnce(Handle) -> D + 'static) {
    let mut executor = Executor::real().unwrap();
    let handle = executor.handle();
    executor.block_on(async move { conforms(handle.clone(), device(handle)).await });
}

fn in_both_worlds<D: BlockDevice>(device: impl Fn(Handle) -> D + Clone + 'static) {
    virtually(device.clone());
    really(device);
}

fn memory() -> MemoryDevice {
    MemoryDevice::new(DEVICE_BYTES)
}

/// A file of the virtual world that seldom moves all it is asked for, and cannot zero ranges.
struct ShortFile {
    content: Vec<u8>,
    prng: Prng,
}

impl ShortFile {
    fn new(bytes: u64) -> Self {
        Self { content: vec![0; bytes as usize], prng: Prng::new(1) }
    }

    fn some(&mut self, bytes: usize) -> usize {
        512 * (1 + self.prng.below(sectors_of(bytes)) as usize)
    }
}

impl VirtualFiles for ShortFile {
    fn submit(&mut self, now: u64, op: Op) -> (u64, OpOutcome) {
        let done_at = now + 1 + self.prng.below(1_000_000);
        let outcome = |result| OpOutcome { result, buf: None, bufs: Vec::new() };
        let outcome = match op {
            Op::Read { offset, mut buf, .. } => {
                let (from, some) = (offset as usize, self.some(buf.len()));
                buf[..some].copy_from_slice(&self.content[from..from + some]);
                OpOutcome { result: Ok(some as u32), buf: Some(buf), bufs: Vec::new() }
            }
            Op::ReadVectored { offset, mut bufs, .. } => {
                let some = self.some(bufs.iter().map(|buf| buf.len()).sum());
                let mut left = &self.content[offset as usize..][..some];
                for buf in &mut bufs {
                    let (part, rest) = left.split_at(left.len().min(buf.len()));
                    buf[..part.len()].copy_from_slice(part);
                    left = rest;
                }
                OpOutcome { result: Ok(some as u32), buf: None, bufs }
            }
            Op::Write { offset, data, .. } => {
                let some = self.some(data.len());
                let bytes: Vec<u8> =
                    data.pieces().iter().flat_map(|piece| piece.iter().copied()).collect();
                let from = offset as usize;
                self.content[from..from + some].copy_from_slice(&bytes[..some]);
                outcome(Ok(some as u32))
            }
            Op::Sync { .. } => outcome(Ok(0)),
            Op::Allocate { mode: AllocateMode::ZeroRange, .. } => outcome(Err(Errno::OPNOTSUPP)),
            Op::Allocate { offset, bytes, .. } => {
                self.content[offset as usize..(offset + bytes) as usize].fill(0);
                outcome(Ok(0))
            }
            other => panic!("a file is not asked for {other:?}"),
        };
        (done_at, outcome)
    }
}

#[test]
fn memory_conforms() {
    in_both_worlds(|_| memory());
    in_both_worlds(|_| MemoryDevice::with_block_bytes(DEVICE_BYTES, 4096));
}

#[test]
fn a_file_conforms_in_virtual_time_although_its_transfers_are_short() {
    virtually(|handle| FileDevice::over(handle, Fd::Virtual(0), Limits::plain(DEVICE_BYTES)));
}

#[test]
fn a_file_conforms_with_direct_and_with_buffered_transfers() {
    for folder in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        for (buffered, block_bytes) in [(false, None), (false, Some(4096)), (true, None)] {
            let file = tempfile::NamedTempFile::new_in(folder).unwrap();
            file.as_file().set_len(DEVICE_BYTES + 100).unwrap();
            let path = file.path().to_owned();
            let options = FileOptions { buffered, block_bytes, ..FileOptions::default() };
            really(move |handle| FileDevice::open(&handle, &path, &options).unwrap());
        }
    }
}

#[test]
fn every_modelled_drive_conforms() {
    for name in Profile::list().map(|(name, _)| name) {
        virtually(move |handle| ModelDevice::new(handle, Profile::find(name).unwrap(), memory()));
    }
    let ssd = Profile::find("ssd-d3700").unwrap();
    really(move |handle| ModelDevice::new(handle, ssd, memory()));
    virtually(move |handle| {
        let file = FileDevice::over(handle.clone(), Fd::Virtual(0), Limits::plain(DEVICE_BYTES));
        ModelDevice::new(handle, ssd, file)
    });
}

#[test]
fn delay_conforms() {
    in_both_worlds(|handle| DelayDevice::new(handle, memory(), Delay::new(1_000, 2_000, 3_000)));
}

#[test]
fn hang_conforms() {
    in_both_worlds(|handle| HangDevice::new(handle, memory(), Hang::default()));
}

#[test]
fn throttle_conforms() {
    in_both_worlds(|handle| {
        let throttle = Throttle {
            requests_per_s: Some(100_000),
            bytes_per_s: Some(1 << 32),
            burst_ns: 10_000,
        };
        ThrottleDevice::new(handle, memory(), throttle)
    });
}

#[test]
fn log_conforms() {
    in_both_worlds(|handle| LogDevice::new(handle, memory(), IoLog::new(16)));
}

#[test]
fn a_fault_layer_without_faults_conforms() {
    in_both_worlds(|handle| FaultDevice::new(handle, memory(), Faults::new()));
}

#[test]
fn small_blocks_over_large_ones_conform() {
    let large = || MemoryDevice::with_block_bytes(DEVICE_BYTES, 4096);
    in_both_worlds(move |_| AlignDevice::new(large()));
    in_both_worlds(move |_| OverlayDevice::new(large()));
    virtually(move |handle| {
        let delay = Delay::new(30_000, 70_000, 110_000);
        AlignDevice::new(DelayDevice::new(handle, large(), delay))
    });
    virtually(move |handle| {
        AlignDevice::new(ModelDevice::new(handle, Profile::find("hdd-7200").unwrap(), large()))
    });
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(DEVICE_BYTES).unwrap();
    let path = file.path().to_owned();
    really(move |handle| {
        let options = FileOptions { block_bytes: Some(4096), ..FileOptions::default() };
        AlignDevice::new(FileDevice::open(&handle, &path, &options).unwrap())
    });
}

#[test]
fn an_export_of_a_server_conforms_however_often_the_server_dies() {
    let one = ALL_FLAGS & !proto::FLAG_CAN_MULTI_CONN;
    let cases = [
        Conduct::default(),
        Conduct { structured: false, ..Conduct::default() },
        Conduct { flags: one, blocks: [4096, 4096, 64 << 10], ..Conduct::default() },
        Conduct { breaks_one_in: 100, ..Conduct::default() },
        Conduct { breaks_one_in: 100, flags: one & !proto::FLAG_SEND_FUA, ..Conduct::default() },
        Conduct {
            breaks_one_in: 100,
            structured: false,
            blocks: [1, 512, 16384],
            ..Conduct::default()
        },
    ];
    let mut all_deaths = 0;
    for conduct in cases {
        let breaks = conduct.breaks_one_in > 0;
        let at_first = if conduct.flags & proto::FLAG_CAN_MULTI_CONN == 0 { 1 } else { 4 };
        let server = FakeServer::start(DEVICE_BYTES, conduct);
        let uri = server.uri.clone();
        really(move |handle| nbd::open(&handle, &uri).0);
        let state = server.state();
        let (deaths, connections) = (state.deaths, state.connections);
        drop(state);
        // How often it dies is chance: clients and server are threads of their own.
        assert!(breaks || (deaths, connections) == (0, at_first), "{deaths}, {connections}");
        all_deaths += deaths;
    }
    assert!(all_deaths > 0);
}

#[test]
fn a_read_only_device_reads_and_refuses_every_change() {
    let mut executor = Executor::real().unwrap();
    let handle = executor.handle();
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(DEVICE_BYTES).unwrap();
    let path = file.path().to_owned();
    executor.block_on(async move {
        let options = FileOptions { read_only: true, ..FileOptions::default() };
        refuses_changes(FileDevice::open(&handle, &path, &options).unwrap()).await;
        refuses_changes(ReadOnlyDevice::new(memory())).await;
    });
}

async fn refuses_changes<D: BlockDevice>(device: D) {
    let limits = device.limits().clone();
    assert!(limits.read_only);
    refusals(&device, &limits).await;
    pieces_of_one_buffer(&device, &limits).await;
    let (range, data) = (SectorRange::new(Lba(0), 8), Payload::from(Buf::zeroed(4096)));
    assert_eq!(device.write(Lba(0), data, Durability::Cached).await, Err(IoError::ReadOnly));
    assert_eq!(device.write_zeroes(range, Durability::Cached).await, Err(IoError::ReadOnly));
    assert_eq!(device.discard(range).await, Err(IoError::ReadOnly));
    device.flush().await.unwrap();
}
