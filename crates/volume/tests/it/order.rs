//! Goal: what was acknowledged stays, although a drive that hung ends an older change of the same sectors
//! after it. Method: a drive holds the first request while others come; the clients of the first are gone.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use crate::support::{LINE, read, write};
use voltier_array::{Array, Geometry, Layout, Level};
use voltier_block::{
    BlockDevice, Buf, DriveControl, Durability, IoResult, KIB, Lba, MIB, SECTOR_BYTES, SectorRange,
};
use voltier_drive::MemoryDevice;
use voltier_filter::{Hang, HangDevice};
use voltier_ring::{Executor, Handle, NoFiles};
use voltier_volume::{FormatOptions, LineSize, Mode, OpenOptions, PolicyKind, Settings, Volume};

const DRIVE_BYTES: u64 = 8 * MIB;
const CHUNK_BYTES: u64 = 64 * KIB;

type Drive = HangDevice<MemoryDevice>;

fn drive(handle: &Handle, hang: &Hang) -> Drive {
    HangDevice::new(handle.clone(), MemoryDevice::new(DRIVE_BYTES), hang.clone())
}

fn bytes(start: u64, count: u64) -> SectorRange {
    SectorRange::from_bytes(start, count)
}

/// A change of the volume.
#[derive(Clone, Copy, Debug)]
enum Change {
    Write(SectorRange, u8),
    Zeroes(SectorRange),
    Discard(SectorRange),
}

impl Change {
    async fn of<D: DriveControl>(self, volume: Volume<D>) -> IoResult<()> {
        match self {
            Self::Write(range, byte) => {
                let mut data = Buf::new(range.bytes() as usize);
                data.fill(byte);
                volume.write(range.start, data.into(), Durability::Cached).await
            }
            Self::Zeroes(range) => volume.write_zeroes(range, Durability::Cached).await,
            Self::Discard(range) => volume.discard(range).await,
        }
    }
}

/// Begins a change; how it ended.
fn begin<D: DriveControl>(
    handle: &Handle,
    volume: &Volume<D>,
    change: Change,
) -> Rc<Cell<Option<IoResult<()>>>> {
    let (volume, end) = (volume.clone(), Rc::new(Cell::new(None)));
    let ended = end.clone();
    drop(handle.spawn(async move { ended.set(Some(change.of(volume).await)) }));
    end
}

async fn a_while(handle: &Handle) {
    handle.sleep(1_000_000).await;
}

/// A drive holds the first change. The second one waits for it, one elsewhere and reads do not.
async fn the_second_waits<D: DriveControl>(
    handle: &Handle,
    hang: &Hang,
    volume: &Volume<D>,
    first: Change,
    second: (Change, u8),
) {
    for line in 0..16 {
        write(volume, line, 9).await.expect("a write works");
    }
    hang.hold_next();
    let held = begin(handle, volume, first);
    a_while(handle).await;
    let waiting = begin(handle, volume, second.0);
    let elsewhere = begin(handle, volume, Change::Write(bytes(12 * LINE, LINE), 7));
    a_while(handle).await;
    assert_eq!((held.get(), waiting.get()), (None, None), "{first:?} {second:?}");
    assert_eq!(elsewhere.get(), Some(Ok(())), "it meets nobody");
    assert_eq!(read(volume, 1).await, Ok(9), "reads do not wait");
    hang.end();
    a_while(handle).await;
    assert_eq!((held.get(), waiting.get()), (Some(Ok(())), Some(Ok(()))));
    assert_eq!(read(volume, 1).await, Ok(second.1), "{first:?} {second:?}");
}

/// Runs a test in virtual time.
fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Handle) -> F) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let running = test(handle);
    executor.block_on(running);
}

/// Changes that meet in the second line, and the byte that is there when both have ended.
fn pairs() -> Vec<(Change, (Change, u8))> {
    let line = bytes(LINE, LINE);
    let firsts = [
        Change::Write(line, 1),
        Change::Write(bytes(0, 4 * LINE), 1),
        Change::Write(bytes(LINE + 512, 512), 1),
        Change::Zeroes(line),
    ];
    let seconds = [
        (Change::Write(line, 2), 2),
        (Change::Write(bytes(0, 3 * LINE), 2), 2),
        (Change::Zeroes(line), 0),
        (Change::Discard(line), 0),
    ];
    firsts.into_iter().flat_map(|first| seconds.map(|second| (first, second))).collect()
}

#[test]
fn on_a_plain_volume_an_older_change_never_ends_over_one_that_was_acknowledged() {
    for (first, second) in pairs() {
        run(move |handle| async move {
            let hang = Hang::default();
            let volume = Volume::plain(&handle, drive(&handle, &hang));
            the_second_waits(&handle, &hang, &volume, first, second).await;
        });
    }
}

#[test]
fn on_raid_0_an_older_change_never_ends_over_one_that_was_acknowledged() {
    for (first, second) in pairs() {
        run(move |handle| async move {
            let hang = Hang::default();
            let sectors = DRIVE_BYTES / SECTOR_BYTES;
            let geometry = Geometry::new(Level::Raid0, Layout::default(), 3, CHUNK_BYTES, sectors);
            let members = (0..3).map(|_| Some(drive(&handle, &hang))).collect();
            let array = Array::new(&handle, geometry.expect("it is possible"), members);
            let volume = Volume::plain(&handle, array.expect("they suit"));
            the_second_waits(&handle, &hang, &volume, first, second).await;
        });
    }
}

/// The drive holds the first piece of a long write. The pieces behind it are written when the drive answers,
/// so a change there waits as well, and one of what has been written does not.
#[test]
fn a_long_write_is_one_change_with_and_without_a_cache() {
    for is_cached in [false, true] {
        run(move |handle| async move {
            let (hang, ssd_hang) = (Hang::default(), Hang::default());
            let volume = Volume::plain(&handle, drive(&handle, &hang));
            let mut held_by = &hang;
            if is_cached {
                let policy = PolicyKind::Lru;
                let format = FormatOptions { line_size: LineSize::DEFAULT, policy, uuid: [7; 16] };
                let settings = Settings { mode: Mode::WriteBack, ..Settings::default() };
                let options = OpenOptions::with(settings);
                let ssd = drive(&handle, &ssd_hang);
                volume.attach_new(ssd, &format, options).await.expect("the SSD takes a cache");
                held_by = &ssd_hang;
            }
            write(&volume, 0, 9).await.expect("a write works");
            held_by.hold_next();
            let long = begin(&handle, &volume, Change::Write(bytes(0, 3 * MIB), 1));
            a_while(&handle).await;
            let last = 2 * MIB / LINE;
            let waiting = begin(&handle, &volume, Change::Write(bytes(last * LINE, LINE), 2));
            a_while(&handle).await;
            assert_eq!((long.get(), waiting.get()), (None, None), "cached: {is_cached}");
            held_by.end();
            a_while(&handle).await;
            assert_eq!((long.get(), waiting.get()), (Some(Ok(())), Some(Ok(()))));
            assert_eq!(read(&volume, last).await, Ok(2), "cached: {is_cached}");
            if is_cached {
                volume.detach(true).await.expect("all is written back");
            }
        });
    }
}

/// A request that waits for its turn keeps nobody from changing the stack: it is outside the gate.
#[test]
fn a_discard_of_many_steps_and_a_write_that_waits_for_it_let_a_cache_come() {
    run(move |handle| async move {
        let (hang, ssd_hang) = (Hang::default(), Hang::default());
        let large = HangDevice::new(handle.clone(), MemoryDevice::new(256 * MIB), hang.clone());
        let volume = Volume::plain(&handle, large);
        hang.hold_next();
        let whole = begin(&handle, &volume, Change::Zeroes(bytes(0, 256 * MIB)));
        a_while(&handle).await;
        let waiting = begin(&handle, &volume, Change::Write(bytes(200 * MIB, LINE), 2));
        a_while(&handle).await;
        assert_eq!((whole.get(), waiting.get()), (None, None));
        let attached = {
            let (volume, handle) = (volume.clone(), handle.clone());
            let ssd = HangDevice::new(handle.clone(), MemoryDevice::new(32 * MIB), ssd_hang);
            handle.spawn(async move {
                let policy = PolicyKind::Lru;
                let format = FormatOptions { line_size: LineSize::DEFAULT, policy, uuid: [7; 16] };
                let options = OpenOptions::with(Settings::default());
                volume.attach_new(ssd, &format, options).await.map(drop)
            })
        };
        a_while(&handle).await;
        hang.end();
        attached.await.expect("a cache comes between two steps");
        handle.sleep(60_000_000_000).await;
        assert_eq!((whole.get(), waiting.get()), (Some(Ok(())), Some(Ok(()))));
        assert_eq!(read(&volume, 200 * MIB / LINE).await, Ok(2));
        assert_eq!(volume.read(Lba(0), Buf::new(512)).await.map(|read| read[0]), Ok(0));
        volume.stop().await.expect("it stops");
    });
}
