//! Streams that begin within a line, or whose requests are shorter than one: requests share lines at their ends, and
//! the disk gets each of its sectors once, in their order.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;

use voltier_block::{BlockDevice, Buf, Durability, Lba, MIB, Prng, SECTOR_BYTES};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{Cache, FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::model::Profile;
use voltier_drive::{MemoryDevice, ModelDevice};
use voltier_filter::{Delay, DelayDevice, IoKind, IoLog, LogDevice};
use voltier_ring::{Executor, Handle, NoFiles};

type Ssd = LogDevice<DelayDevice<MemoryDevice>>;
type Disk = LogDevice<ModelDevice<MemoryDevice>>;

const DISK_BYTES: u64 = 32 * MIB;

struct Fixture {
    handle: Handle,
    cache: Cache<Ssd, Disk>,
    disk: IoLog,
    ssd: IoLog,
}

/// A test of a cache over a disk that turns.
fn with_cache<F: Future<Output = ()> + 'static>(
    mode: Mode,
    line_bytes: u64,
    test: impl FnOnce(Fixture) -> F + 'static,
) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let (disk, ssd) = (IoLog::new(1 << 16), IoLog::new(1 << 16));
        let delay = Delay::new(50_000, 50_000, 50_000);
        let fast = DelayDevice::new(handle.clone(), MemoryDevice::new(64 * MIB), delay);
        let fast = LogDevice::new(handle.clone(), fast, ssd.clone());
        let profile = Profile::find("hdd-7200").expect("a profile");
        let slow = ModelDevice::new(handle.clone(), profile, MemoryDevice::new(DISK_BYTES));
        let slow = LogDevice::new(handle.clone(), slow, disk.clone());
        let line_size = LineSize::new(line_bytes).expect("a line size");
        let format = FormatOptions { line_size, policy: PolicyKind::Lru, uuid: [7; 16] };
        Cache::format(&fast, &slow, &format).await.expect("the SSD takes a cache");
        let options = OpenOptions::with(Settings { mode, ..Settings::default() });
        let cache = Cache::open(&handle, fast, slow, options).await.expect("the cache opens").0;
        disk.clear();
        ssd.clear();
        test(Fixture { handle, cache, disk, ssd }).await;
    });
}

/// The content of a sector.
fn content(sector: u64) -> u8 {
    (sector % 251) as u8 + 1
}

impl Fixture {
    /// Requests of this many sectors from a sector on, as a queue of some depth sends them.
    async fn stream(&self, is_write: bool, start: u64, sectors: u64, requests: u64, depth: u64) {
        let next = Rc::new(Cell::new(0));
        let tasks: Vec<_> = (0..depth)
            .map(|_| {
                let (cache, next) = (self.cache.clone(), next.clone());
                self.handle.spawn(async move {
                    while next.get() < requests {
                        let at = start + next.replace(next.get() + 1) * sectors;
                        request(&cache, is_write, at, sectors).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    }

    /// The ranges that the disk was asked for, in the order in which it was.
    fn disk_ranges(&self, kind: IoKind) -> Vec<(u64, u64)> {
        let mut entries = self.disk.entries();
        entries.retain(|entry| entry.kind == kind);
        // The log has them in the order in which they ended.
        entries.sort_by_key(|entry| (entry.submitted_ns, entry.range.start));
        entries.iter().map(|entry| (entry.range.start.0, entry.range.end().0)).collect()
    }

    /// The disk got these sectors once each and in their order.
    fn assert_in_order(&self, kind: IoKind, from: u64, to: u64) {
        let mut at = from;
        for (start, end) in self.disk_ranges(kind) {
            assert_eq!(start, at, "{kind:?} up to {end}");
            at = end;
        }
        assert_eq!(at, to);
    }
}

async fn request(cache: &Cache<Ssd, Disk>, is_write: bool, at: u64, sectors: u64) {
    let mut buf = Buf::new((sectors * SECTOR_BYTES) as usize);
    let fill = |buf: &mut Buf| {
        for (index, sector) in buf.chunks_mut(SECTOR_BYTES as usize).enumerate() {
            sector.fill(content(at + index as u64));
        }
    };
    if is_write {
        fill(&mut buf);
        cache.write(Lba(at), buf.into(), Durability::Cached).await.expect("a write works");
    } else {
        let read = cache.read(Lba(at), Buf::zeroed(buf.len())).await.expect("a read works");
        fill(&mut buf);
        assert!(*read == *buf, "sectors {at}..{}", at + sectors);
    }
}

#[test]
fn writes_of_a_stream_reach_the_disk_in_their_order() {
    for (start, sectors) in [(63, 8), (63, 32), (1, 256), (0, 1), (0, 3), (8, 8)] {
        for depth in [1, 8, 32] {
            for is_warm in [false, true] {
                with_cache(Mode::WriteThrough, 4096, move |fixture| async move {
                    let requests = 200;
                    if is_warm {
                        fixture.stream(true, 0, 256, requests * sectors / 256 + 2, 8).await;
                        fixture.disk.clear();
                    }
                    fixture.stream(true, start, sectors, requests, depth).await;
                    let end = start + requests * sectors;
                    fixture.assert_in_order(IoKind::Write, start, end);
                    fixture.stream(false, start, sectors, requests, depth).await;
                });
            }
        }
    }
}

#[test]
fn writes_of_a_stream_are_in_flight_together() {
    with_cache(Mode::WriteThrough, 4096, |fixture| async move {
        let begun = fixture.handle.now();
        fixture.stream(true, 63, 8, 320, 32).await;
        // A revolution for each would be 2.7 s.
        let took_ns = fixture.handle.now() - begun;
        assert!(took_ns < 100_000_000, "{took_ns}");
    });
}

#[test]
fn the_disk_reads_each_line_of_a_stream_once() {
    for (start, sectors) in [(63, 8), (63, 32), (1, 256), (0, 1), (0, 3), (8, 8)] {
        for depth in [1, 8, 32] {
            with_cache(Mode::WriteThrough, 4096, move |fixture| async move {
                let requests = 200;
                let end = start + requests * sectors;
                for at in (0..end + 256).step_by(256) {
                    let zeroes = async |at| {
                        let data = Buf::zeroed(256 * 512).into();
                        fixture.cache.origin().write(Lba(at), data, Durability::Cached).await
                    };
                    zeroes(at).await.expect("a write works");
                }
                // Written past the cache: the disk has what the test expects.
                for at in start..end {
                    let data = Buf::copy_of(&[content(at); 512]).into();
                    let written = fixture.cache.origin().write(Lba(at), data, Durability::Cached);
                    written.await.expect("a write works");
                }
                fixture.disk.clear();
                fixture.stream(false, start, sectors, requests, depth).await;
                let (first, last) = (start / 8 * 8, end.next_multiple_of(8));
                fixture.assert_in_order(IoKind::Read, first, last);
            });
        }
    }
}

/// Of a region half of the lines is cached, and of these half is dirty.
#[test]
fn the_disk_reads_on_over_what_is_cached_of_a_stream() {
    for (start, sectors) in [(0, 8), (63, 8), (63, 32), (0, 256), (1, 256), (0, 3)] {
        for depth in [1, 8, 32] {
            for dirty_percent in [0, 50] {
                with_cache(Mode::WriteBack, 4096, move |fixture| async move {
                    let requests = 200;
                    let end: u64 = start + requests * sectors;
                    let (first, last) = (start / 8, end.div_ceil(8));
                    let mut prng = Prng::new(depth + sectors);
                    for line in first..last + 300 {
                        let at = Lba(line * 8);
                        let mut data = Buf::new(4096);
                        for (sector, bytes) in (at.0..).zip(data.chunks_mut(512)) {
                            bytes.fill(content(sector));
                        }
                        let is_cached = prng.one_in(2) && line < last;
                        if is_cached && prng.below(100) < dirty_percent {
                            // The disk has something else.
                            let written = fixture.cache.write(at, data.into(), Durability::Cached);
                            written.await.expect("a write works");
                            continue;
                        }
                        let disk = fixture.cache.origin();
                        let written = disk.write(at, data.into(), Durability::Cached).await;
                        written.expect("a write works");
                        if is_cached {
                            request(&fixture.cache, false, at.0, 8).await;
                        }
                    }
                    fixture.handle.sleep(1_000_000_000).await;
                    fixture.disk.clear();
                    fixture.stream(false, start, sectors, requests, depth).await;
                    let ranges = fixture.disk_ranges(IoKind::Read);
                    let jumps = ranges.windows(2).filter(|pair| pair[0].1 != pair[1].0).count();
                    // Of its first requests nobody knows that they are a stream. One request at a time the
                    // disk's own read-ahead serves: skipping costs nothing then.
                    let case = (start, sectors, depth, dirty_percent);
                    let most = requests as usize / 10;
                    assert!(depth == 1 || jumps <= most, "{case:?}: {ranges:?}");
                    let missed = ranges.iter().map(|(from, to)| to - from).sum::<u64>();
                    assert!(missed <= (last - first) * 8, "{missed}");
                });
            }
        }
    }
}

#[test]
fn what_the_disk_has_wrong_of_a_clean_line_is_not_served() {
    with_cache(Mode::WriteThrough, 4096, |fixture| async move {
        fixture.stream(true, 0, 8, 4, 1).await;
        // Two lines are not cached; the disk loses one that is.
        let discarded = voltier_block::SectorRange::new(Lba(8), 8);
        fixture.cache.discard(discarded).await.expect("a discard works");
        let disk = fixture.cache.origin();
        for at in [8, 16] {
            let written = disk.write(Lba(at), Buf::zeroed(4096).into(), Durability::Cached).await;
            written.expect("a write works");
        }
        fixture.disk.clear();
        let read = fixture.cache.read(Lba(0), Buf::new(4 * 4096)).await.expect("a read works");
        assert!(read[4096..8192].iter().all(|byte| *byte == 0));
        for (sector, bytes) in read.chunks(512).enumerate().filter(|(at, _)| at / 8 != 1) {
            assert!(bytes.iter().all(|byte| *byte == content(sector as u64)), "{sector}");
        }
    });
}

#[test]
fn short_reads_of_a_long_line_join_one_read_of_it() {
    with_cache(Mode::WriteThrough, 65536, |fixture| async move {
        fixture.stream(true, 0, 256, 32, 8).await;
        // Another cache's worth of nothing: the disk alone has it.
        fixture.cache.discard(voltier_block::SectorRange::new(Lba(1 << 14), 256)).await.unwrap();
        fixture.disk.clear();
        let cold = 1 << 15;
        let next = Rc::new(Cell::new(0));
        let tasks: Vec<_> = (0..32)
            .map(|_| {
                let (cache, next) = (fixture.cache.clone(), next.clone());
                fixture.handle.spawn(async move {
                    while next.get() < 512 {
                        let at = cold + next.replace(next.get() + 1) * 8;
                        cache.read(Lba(at), Buf::new(4096)).await.expect("a read works");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        fixture.assert_in_order(IoKind::Read, cold, cold + 512 * 8);
    });
}

#[test]
fn writes_of_the_parts_of_a_line_are_one_change_of_it() {
    with_cache(Mode::WriteBack, 4096, |fixture| async move {
        fixture.stream(true, 0, 1, 800, 8).await;
        let written = fixture.ssd.totals(IoKind::Write).bytes;
        // With the head of each record, and a second change where not all came at once.
        assert!(written < 100 * 4096 * 4, "{written} bytes for 100 lines");
        let read = fixture.ssd.totals(IoKind::Read).bytes;
        fixture.stream(true, 800, 1, 80, 1).await;
        assert_eq!(fixture.ssd.totals(IoKind::Read).bytes, read, "the lines are in memory");
        fixture.stream(false, 0, 1, 880, 8).await;
        fixture.stream(false, 0, 8, 110, 8).await;
    });
}

/// Requests that share lines in all ways, in each mode; what was written is read.
#[test]
fn parts_of_lines_hold_what_was_written_last() {
    for mode in [Mode::WriteThrough, Mode::WriteBack, Mode::ReadOnly] {
        with_cache(mode, 4096, move |fixture| async move {
            let (span, jobs) = (1 << 10, 16);
            // Each job has sectors of its own in all lines: 16 jobs, two lines around.
            let tasks: Vec<_> = (0..jobs)
                .map(|job: u64| {
                    let cache = fixture.cache.clone();
                    fixture.handle.spawn(async move {
                        let mut prng = Prng::new(job + 1);
                        let mut newest = vec![0; span / 16];
                        for round in 1..200_u64 {
                            let index = prng.below(newest.len() as u64);
                            let at = Lba(index * 16 + job);
                            let value = (round % 251) as u8;
                            if prng.one_in(2) {
                                let data = Buf::copy_of(&[value; 512]).into();
                                let written = cache.write(at, data, Durability::Cached).await;
                                written.expect("a write works");
                                newest[index as usize] = value;
                            } else {
                                let read = cache.read(at, Buf::new(512)).await;
                                let read = read.expect("a read works");
                                let expected = newest[index as usize];
                                assert!(read.iter().all(|byte| *byte == expected), "{at:?}");
                            }
                            if prng.one_in(8) {
                                let start = prng.below(span as u64 - 40);
                                let read = cache.read(Lba(start), Buf::new(40 * 512)).await;
                                read.expect("a read works");
                            }
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
        });
    }
}

/// The mode changes while a write waits for the second of its lines, and another one changes a part of the first.
#[test]
fn a_write_whose_way_changes_while_it_waits_keeps_its_place() {
    for (before, after) in [
        (Mode::WriteThrough, Mode::ReadOnly),
        (Mode::WriteThrough, Mode::WriteBack),
        (Mode::ReadOnly, Mode::WriteThrough),
        (Mode::ReadOnly, Mode::WriteBack),
    ] {
        with_cache(before, 4096, move |fixture| async move {
            let cache = &fixture.cache;
            let write = |at: u64, sectors: u64, value: u8| {
                let mut data = Buf::new((sectors * SECTOR_BYTES) as usize);
                data.fill(value);
                let cache = cache.clone();
                fixture.handle.spawn(async move {
                    cache.write(Lba(at), data.into(), Durability::Cached).await
                })
            };
            // A long one before and a short one behind the line that both leave to others in part.
            let line = 4096;
            let mut writes = Vec::new();
            for (at, sectors, value) in [(line + 8, 8, 1), (2, line, 2), (line + 6, 4, 3)] {
                writes.push(write(at, sectors, value));
                fixture.handle.sleep(1000).await;
            }
            cache.configure(Settings { mode: after, ..cache.settings() }).expect("a mode");
            for (at, sectors, value) in [(line + 7, 2, 4), (line + 5, 2, 5)] {
                writes.push(write(at, sectors, value));
                fixture.handle.sleep(1000).await;
            }
            for written in writes {
                written.await.expect("a write works");
            }
            let read = cache.read(Lba(line), Buf::new(8192)).await.expect("a read works");
            let values: Vec<u8> = read.chunks(512).map(|sector| sector[0]).collect();
            assert_eq!(values[..2], [2, 2]);
            assert_eq!(values[5..], [5, 5, 4, 4, 3, 1, 1, 1, 1, 1, 1], "{before} {after}");
        });
    }
}

/// A writer of another part of the line ends at any moment; what is dirty of the line stays.
#[test]
fn a_part_writer_that_is_dropped_takes_nothing_with_it() {
    for polls in 0..12 {
        for parts in [[0..2, 4..5], [0..4, 4..8]] {
            with_cache(Mode::WriteBack, 4096, move |fixture| async move {
                let cache = &fixture.cache;
                let fill = async |at: u64, sectors: u64, value: u8| {
                    let mut data = Buf::new((sectors * SECTOR_BYTES) as usize);
                    data.fill(value);
                    cache.write(Lba(at), data.into(), Durability::Cached).await
                };
                fill(8, 8, 1).await.expect("a write works");
                // Not in memory any more: the base is read from the SSD.
                for line in 10..50 {
                    fill(line * 8 + 1, 1, 1).await.expect("a write works");
                }
                let [stays, goes] = parts.clone();
                let write = |part: &std::ops::Range<u64>, value| {
                    let (cache, at, sectors) =
                        (cache.clone(), 8 + part.start, part.end - part.start);
                    async move {
                        let mut data = Buf::new((sectors * SECTOR_BYTES) as usize);
                        data.fill(value);
                        cache.write(Lba(at), data.into(), Durability::Cached).await
                    }
                };
                let stays = fixture.handle.spawn(write(&stays, 2));
                let mut goes = Box::pin(write(&goes, 3));
                for _ in 0..polls {
                    let poll = std::future::poll_fn(|context| {
                        Poll::Ready(goes.as_mut().poll(context).is_ready())
                    });
                    if poll.await {
                        break;
                    }
                    fixture.handle.yield_now().await;
                    if polls % 2 == 1 {
                        fixture.handle.sleep(20_000).await;
                    }
                }
                drop(goes);
                stays.await.expect("a write works");
                let read = cache.read(Lba(8), Buf::new(4096)).await.expect("a read works");
                for (sector, bytes) in (0..).zip(read.chunks(512)) {
                    let allowed: &[u8] = match sector {
                        sector if parts[0].contains(&sector) => &[2],
                        sector if parts[1].contains(&sector) => &[1, 3],
                        _ => &[1],
                    };
                    let value = bytes[0];
                    assert!(bytes.iter().all(|byte| *byte == value), "{sector}");
                    assert!(allowed.contains(&value), "{sector}: {value} after {polls} polls");
                }
            });
        }
    }
}

#[test]
fn hits_at_random_beside_misses_are_left_to_the_ssd() {
    with_cache(Mode::WriteThrough, 4096, |fixture| async move {
        let mut prng = Prng::new(3);
        let lines = 4096;
        for line in (0..lines).filter(|line: &u64| !line.is_multiple_of(16)) {
            request(&fixture.cache, true, line * 8, 8).await;
        }
        fixture.disk.clear();
        let mut misses = 0;
        for _ in 0..4000 {
            let line = prng.below(lines);
            misses += u64::from(line.is_multiple_of(16));
            fixture.cache.read(Lba(line * 8), Buf::new(4096)).await.expect("a read works");
        }
        let reads = fixture.disk_ranges(IoKind::Read).len() as u64;
        assert!(reads < misses + misses / 4, "{reads} reads of the disk for {misses} misses");
    });
}
