//! Goal: lines that went into the log together are read back together when they are destaged. A damaged
//! one among them costs nobody but itself. Method: memory drives in virtual time, the SSD's requests
//! counted, one byte of it changed.

use voltier_block::{BlockDevice, Buf, Durability, Lba, Payload};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::MemoryDevice;
use voltier_filter::{IoKind, IoLog, LogDevice};
use voltier_ring::{Executor, Handle, NoFiles};

const LINE_BYTES: usize = 4096;
const LINES: usize = 1024;
const REQUEST_BYTES: usize = 256 << 10;

type TestCache = Cache<LogDevice<MemoryDevice>, MemoryDevice>;

struct World {
    ssd: MemoryDevice,
    origin: MemoryDevice,
    log: IoLog,
    cache: TestCache,
}

fn byte_of(line: usize) -> u8 {
    (line % 251) as u8 + 1
}

/// A cache with all lines of the origin's first 4 MiB dirty, written in sequence.
async fn written_in_sequence(handle: &Handle) -> World {
    let (ssd, origin) = (MemoryDevice::new(32 << 20), MemoryDevice::new(16 << 20));
    let log = IoLog::new(0);
    let logged = LogDevice::new(handle.clone(), ssd.clone(), log.clone());
    let line_size = LineSize::new(LINE_BYTES as u64).unwrap();
    let format = FormatOptions { line_size, policy: PolicyKind::Lru, uuid: [5; 16] };
    Cache::format(&ssd, &origin, &format).await.unwrap();
    let settings = Settings { mode: Mode::WriteBack, ..Settings::default() };
    let options = OpenOptions::with(settings);
    let cache = Cache::open(handle, logged, origin.clone(), options).await.unwrap().0;
    for first in (0..LINES).step_by(REQUEST_BYTES / LINE_BYTES) {
        let mut data = Buf::new(REQUEST_BYTES);
        for (number, line) in data.chunks_exact_mut(LINE_BYTES).enumerate() {
            line.fill(byte_of(first + number));
        }
        let at = Lba::from_bytes((first * LINE_BYTES) as u64);
        cache.write(at, data.into(), Durability::Cached).await.unwrap();
    }
    World { ssd, origin, log, cache }
}

async fn lines_on(device: &impl BlockDevice) -> Vec<u8> {
    let data = device.read(Lba(0), Buf::new(LINES * LINE_BYTES)).await.unwrap();
    data.chunks_exact(LINE_BYTES).map(|line| line[0]).collect()
}

#[test]
fn what_was_written_in_sequence_is_read_back_in_long_requests() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let world = written_in_sequence(&handle).await;
        let before = world.log.totals(IoKind::Read);
        world.cache.drain().await.unwrap();
        let after = world.log.totals(IoKind::Read);
        let (requests, bytes) = (after.requests - before.requests, after.bytes - before.bytes);
        assert_eq!(bytes as usize, LINES * LINE_BYTES);
        assert!(requests <= LINES as u64 / 32, "{requests} reads of the SSD for {LINES} lines");
        let expected: Vec<u8> = (0..LINES).map(byte_of).collect();
        assert_eq!(lines_on(&world.origin).await, expected);
        assert_eq!(world.cache.status().lines.dirty, 0);
        world.cache.kill();
    });
}

#[test]
fn a_damaged_line_among_its_neighbours_is_the_only_one_that_is_not_written() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let world = written_in_sequence(&handle).await;
        let damaged = 333;
        let whole = world.ssd.read(Lba(0), Buf::new(32 << 20)).await.unwrap();
        let is_its_data = |block: &[u8]| block.iter().all(|byte| *byte == byte_of(damaged));
        for (number, block) in whole.chunks_exact(512).enumerate() {
            if is_its_data(block) {
                let wrong = Payload::from(Buf::zeroed(512));
                world.ssd.write(Lba(number as u64), wrong, Durability::Cached).await.unwrap();
            }
        }
        let _ = world.cache.drain().await;
        let on_origin = lines_on(&world.origin).await;
        for (line, byte) in on_origin.into_iter().enumerate() {
            let is_damaged = byte_of(line) == byte_of(damaged);
            assert_eq!(byte, if is_damaged { 0 } else { byte_of(line) }, "line {line}");
        }
        let ranges = world.cache.damaged_ranges();
        assert_eq!(ranges.len(), (0..LINES).filter(|l| byte_of(*l) == byte_of(damaged)).count());
        world.cache.kill();
    });
}
