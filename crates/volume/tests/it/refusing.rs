//! Goal: an origin that refuses writes costs clients errors, never a request that waits for ever. Commands
//! end, nothing is lost, and writing goes on when the origin takes writes again. Method: faults in virtual
//! time under a volume whose lines are nearly all dirty.

use crate::support;

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use crate::support::{LINE, read};
use voltier_block::{BlockDevice, IoError, IoResult, MIB, SectorRange};
use voltier_drive::MemoryDevice;
use voltier_filter::{Delay, DelayDevice, Fault, FaultDevice, Faults};
use voltier_ring::{Executor, Handle, NoFiles};
use voltier_volume::{
    FormatOptions, LineSize, Mode, OpenOptions, PolicyKind, Settings, Volume, VolumeError,
};

const SECOND_NS: u64 = 1_000_000_000;
const ORIGIN_BYTES: u64 = 32 * MIB;

type Drive = Rc<FaultDevice<DelayDevice<MemoryDevice>>>;

/// A volume in service over an origin with faults.
struct World {
    handle: Handle,
    volume: Rc<Volume<Drive>>,
    origin: Drive,
    ssd: Drive,
    ssd_delay: Delay,
    faults: Faults,
    /// Lines that were acknowledged, each filled with its number.
    acknowledged: Cell<u64>,
}

fn with_volume<F: Future<Output = ()> + 'static>(
    ordered: bool,
    test: impl FnOnce(World) -> F + 'static,
) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let faults = Faults::new();
        let drive = |bytes, delay: &Delay, faults: &Faults| {
            let memory = MemoryDevice::new(bytes);
            let delayed = DelayDevice::new(handle.clone(), memory, delay.clone());
            Rc::new(FaultDevice::new(handle.clone(), delayed, faults.clone()))
        };
        let ssd_delay = Delay::default();
        let ssd = drive(8 * MIB, &ssd_delay, &Faults::new());
        let origin = drive(ORIGIN_BYTES, &Delay::default(), &faults);
        let volume = Rc::new(Volume::plain(&handle, origin.clone()));
        let format =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [7; 16] };
        let options = OpenOptions::with(settings(ordered));
        volume.attach_new(ssd.clone(), &format, options).await.expect("the SSD takes a cache");
        let acknowledged = Cell::new(0);
        let handle = handle.clone();
        test(World { handle, volume, origin, ssd, ssd_delay, faults, acknowledged }).await;
    });
}

fn settings(ordered: bool) -> Settings {
    Settings { mode: Mode::WriteBack, ordered, ..Settings::default() }
}

/// Fills a line with its number.
async fn write(volume: &Volume<Drive>, line: u64) -> IoResult<()> {
    support::write(volume, line, line as u8).await
}

impl World {
    async fn seconds(&self, seconds: u64) {
        self.handle.sleep(seconds * SECOND_NS).await;
    }

    fn refuse_writes(&self, range: SectorRange) {
        self.faults.inject(Fault::WriteError { range, times: u32::MAX });
    }

    fn refuse_all_writes(&self) {
        self.refuse_writes(SectorRange::from_bytes(0, ORIGIN_BYTES));
    }

    /// Writes one line after the other until a write ends with an error.
    async fn write_until_an_error(&self) -> IoError {
        loop {
            if let Err(error) = write(&self.volume, self.acknowledged.get()).await {
                return error;
            }
            self.acknowledged.set(self.acknowledged.get() + 1);
            self.volume.flush().await.expect("the SSD has it");
        }
    }

    /// Writes lines until one waits; the end of that write.
    async fn write_until_one_waits(&self) -> Rc<Cell<Option<IoResult<()>>>> {
        loop {
            let (volume, line) = (self.volume.clone(), self.acknowledged.get());
            let end = Rc::new(Cell::new(None));
            let ended = end.clone();
            drop(self.handle.spawn(async move { ended.set(Some(write(&volume, line).await)) }));
            for _ in 0..2000 {
                if end.get().is_none() {
                    self.handle.sleep(SECOND_NS / 1000).await;
                }
            }
            let Some(written) = end.get() else { return end };
            written.expect("the SSD takes it");
            self.acknowledged.set(line + 1);
            self.volume.flush().await.expect("the SSD has it");
        }
    }

    async fn check(&self, volume: &Volume<Drive>) {
        for line in 0..self.acknowledged.get() {
            assert_eq!(read(volume, line).await, Ok(line as u8), "line {line}");
        }
    }

    /// All that was acknowledged is on the origin when it takes writes.
    async fn ends_well(&self, volume: &Volume<Drive>) {
        self.check(volume).await;
        volume.detach(true).await.expect("all is written back");
        for line in 0..self.acknowledged.get() {
            assert_eq!(read(&*self.origin, line).await, Ok(line as u8), "line {line}");
        }
    }
}

#[test]
fn a_write_that_finds_no_room_fails_and_works_again_when_the_origin_takes_writes() {
    with_volume(false, |world| async move {
        world.refuse_all_writes();
        assert_eq!(world.write_until_an_error().await, IoError::Medium);
        let status = world.volume.cache().expect("it has one").status();
        assert!(status.lines.dirty >= status.lines.total * 9 / 10, "{status:?}");
        assert!(status.origin_refuses_ns.is_some_and(|ns| ns >= 30 * SECOND_NS), "{status:?}");
        let begun = world.handle.now();
        for _ in 0..100 {
            assert_eq!(write(&world.volume, 4000).await, Err(IoError::Medium));
        }
        assert_eq!(world.handle.now(), begun, "nobody waits another half minute");
        world.check(&world.volume).await;
        world.faults.clear();
        world.seconds(2).await;
        let status = world.volume.cache().expect("it has one").status();
        assert_eq!(status.origin_refuses_ns, None);
        write(&world.volume, 4000).await.expect("there is room");
        world.ends_well(&world.volume).await;
    });
}

#[test]
fn a_mode_switch_ends_beside_an_origin_that_refuses_writes() {
    with_volume(false, |world| async move {
        world.refuse_all_writes();
        let waits = world.write_until_one_waits().await;
        let through = Settings { mode: Mode::WriteThrough, ..settings(false) };
        world.volume.configure(through).await.expect("it is a setting");
        assert_eq!(waits.get(), Some(Err(IoError::Medium)));
        world.check(&world.volume).await;
        world.faults.clear();
        world.ends_well(&world.volume).await;
    });
}

#[test]
fn a_detach_fails_and_changes_nothing_and_one_that_gives_lines_up_ends() {
    with_volume(false, |world| async move {
        world.refuse_all_writes();
        let waits = world.write_until_one_waits().await;
        for _ in 0..2 {
            let error = world.volume.detach(true).await.expect_err("the origin refuses");
            assert!(matches!(error, VolumeError::Io { error: IoError::Medium, .. }), "{error}");
            assert!(world.volume.drain().await.is_err());
        }
        assert_eq!((world.volume.cache().is_some(), waits.get()), (true, None));
        world.check(&world.volume).await;
        world.volume.detach(false).await.expect("the lines are given up");
        assert_eq!(waits.get(), Some(Err(IoError::Medium)));
        assert_eq!(read(&*world.volume, 3).await, Ok(0), "the origin never had it");
    });
}

#[test]
fn a_stop_ends_beside_an_origin_that_refuses_writes_and_keeps_all_lines() {
    for ordered in [false, true] {
        with_volume(ordered, move |world| async move {
            world.refuse_all_writes();
            let waits = world.write_until_one_waits().await;
            world.volume.stop().await.expect("the SSD takes the checkpoint");
            assert_eq!(waits.get(), Some(Err(IoError::Medium)));
            world.faults.clear();
            let again = Volume::plain(&world.handle, world.origin.clone());
            let options = OpenOptions::with(settings(ordered));
            again.attach_existing(world.ssd.clone(), options).await.expect("the cache opens");
            world.ends_well(&again).await;
        });
    }
}

/// The log waits for a flush of the SSD now and then, and not for the origin.
#[test]
fn writes_that_find_room_do_not_fail_beside_an_origin_that_refuses_writes() {
    with_volume(false, |world| async move {
        world.refuse_all_writes();
        write(&world.volume, 0).await.expect("the SSD takes it");
        for _ in 0..40 {
            world.seconds(1).await;
            world.volume.drain().await.expect_err("the origin refuses");
        }
        let refuses_ns = || world.volume.cache().expect("it has one").status().origin_refuses_ns;
        assert!(refuses_ns().is_some());
        world.ssd_delay.set(0, 0, SECOND_NS / 10);
        let writers = (0..64).map(|line: u64| {
            let volume = world.volume.clone();
            world.handle.spawn(async move {
                for turn in 0..400 {
                    let scattered = (turn * turn * 7 + turn * 13 + line * 29) % 300;
                    write(&volume, scattered).await.expect("there is room");
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await;
        }
        assert!(refuses_ns().is_some());
    });
}

/// In order, a place of the origin that cannot be written holds up everything behind it.
#[test]
fn one_bad_place_of_the_origin_does_not_hang_an_ordered_volume() {
    with_volume(true, |world| async move {
        world.refuse_writes(SectorRange::from_bytes(3 * LINE, 512));
        let mut turns = 0_u64;
        // The same lines again and again: the log is full long before 90 % of the lines are dirty.
        let error = loop {
            let line = turns % 64;
            if let Err(error) = write(&world.volume, line).await {
                break error;
            }
            world.volume.flush().await.expect("the SSD has it");
            turns += 1;
            world.acknowledged.set(turns.min(64));
        };
        let status = world.volume.cache().expect("it has one").status();
        assert_eq!((error, status.lines.dirty), (IoError::Medium, 64));
        for _ in 0..100 {
            assert_eq!(write(&world.volume, 1).await, Err(IoError::Medium));
        }
        let through = Settings { mode: Mode::WriteThrough, ..settings(true) };
        world.volume.configure(through).await.expect("it is a setting");
        assert_eq!(write(&world.volume, 1).await, Err(IoError::Medium), "it would wait as well");
        world.check(&world.volume).await;
        world.faults.clear();
        world.seconds(2).await;
        write(&world.volume, 1).await.expect("there is room");
        world.ends_well(&world.volume).await;
    });
}

/// The flush that failed was the cleaner's, and no client had sent one before the cache went.
#[test]
fn a_cache_that_comes_after_a_loss_does_not_hide_the_loss() {
    with_volume(false, |world| async move {
        let through = Settings { mode: Mode::WriteThrough, ..settings(false) };
        world.volume.configure(through).await.expect("it is a setting");
        write(&world.volume, 2).await.expect("the origin takes it");
        world.volume.configure(settings(false)).await.expect("it is a setting");
        write(&world.volume, 1).await.expect("the SSD takes it");
        world.faults.inject(Fault::FlushError);
        world.volume.drain().await.expect_err("the cleaner meets the error");
        world.volume.detach(true).await.expect("line 1 is written again");
        let format =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [8; 16] };
        for _ in 0..2 {
            let options = OpenOptions::with(settings(false));
            let attached = world.volume.attach_new(world.ssd.clone(), &format, options).await;
            attached.expect("the SSD takes a cache");
            world.volume.detach(true).await.expect("nothing is dirty");
        }
        let options = OpenOptions::with(settings(false));
        let attached = world.volume.attach_new(world.ssd.clone(), &format, options).await;
        attached.expect("the SSD takes a cache");
        assert_eq!(world.volume.flush().await, Err(IoError::Medium), "the loss is told");
        world.volume.flush().await.expect("and told once");
    });
}

#[test]
fn a_refusal_is_over_when_the_cleaner_rests() {
    with_volume(false, |world| async move {
        let refuses_ns = || world.volume.cache().expect("it has one").status().origin_refuses_ns;
        world.refuse_all_writes();
        write(&world.volume, 0).await.expect("the SSD takes it");
        for _ in 0..40 {
            world.seconds(1).await;
            world.volume.drain().await.expect_err("the origin refuses");
        }
        assert!(refuses_ns().is_some());
        // Busy clients and little that is dirty: nothing is tried.
        for _ in 0..20 {
            world.seconds(1).await;
            assert_eq!(read(&*world.volume, 0).await, Ok(0));
        }
        assert_eq!(refuses_ns(), None, "nobody knows whether it would still refuse");
    });
}
