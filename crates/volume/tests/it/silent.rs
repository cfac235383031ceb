//! Goal: a volume ends in bounded time although a drive of its cache does not answer, and nothing is given up
//! unasked. Method: drives that hang in virtual time under a volume that clients use.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use crate::support::{read, write};
use voltier_block::{IoResult, MIB};
use voltier_drive::MemoryDevice;
use voltier_filter::{Hang, HangDevice};
use voltier_ring::{Executor, Handle, NoFiles};
use voltier_volume::{
    FormatOptions, LineSize, Mode, OpenOptions, PolicyKind, Settings, Side, Volume, VolumeError,
};

const SECOND_NS: u64 = 1_000_000_000;
const DEADLINE_S: u64 = 8;
/// When a drive that hangs is silent at the latest.
const SILENT_S: u64 = DEADLINE_S + DEADLINE_S / 2;

type Drive = HangDevice<MemoryDevice>;

/// A volume in service, and how its drives hang.
struct World {
    handle: Handle,
    volume: Rc<Volume<Drive>>,
    origin: Drive,
    ssd: Drive,
    ssd_hang: Hang,
    origin_hang: Hang,
}

/// A test of a volume with a cache whose first lines hold 1, all of them clean.
fn with_volume<F: Future<Output = ()> + 'static>(
    mode: Mode,
    test: impl FnOnce(World) -> F + 'static,
) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let (ssd_hang, origin_hang) = (Hang::default(), Hang::default());
        let drive = |hang: &Hang| {
            HangDevice::new(handle.clone(), MemoryDevice::new(32 * MIB), hang.clone())
        };
        let (ssd, origin) = (drive(&ssd_hang), drive(&origin_hang));
        let volume = Rc::new(Volume::plain(&handle, origin.clone()));
        let format =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [7; 16] };
        let options = OpenOptions::with(settings(Mode::WriteBack));
        volume.attach_new(ssd.clone(), &format, options).await.expect("the SSD takes a cache");
        for line in 0..16 {
            write(&volume, line, 1).await.expect("a write works");
        }
        volume.drain().await.expect("the origin takes them");
        volume.configure(settings(mode)).await.expect("a mode switch works");
        test(World { handle: handle.clone(), volume, origin, ssd, ssd_hang, origin_hang }).await;
    });
}

fn settings(mode: Mode) -> Settings {
    Settings { mode, deadline_ns: DEADLINE_S * SECOND_NS, ..Settings::default() }
}

impl World {
    async fn seconds(&self, seconds: u64) {
        self.handle.sleep(seconds * SECOND_NS).await;
    }

    fn writes(&self, line: u64, byte: u8) -> Rc<Cell<Option<IoResult<()>>>> {
        let (volume, end) = (self.volume.clone(), Rc::new(Cell::new(None)));
        let ended = end.clone();
        drop(self.handle.spawn(async move { ended.set(Some(write(&volume, line, byte).await)) }));
        end
    }

    /// The outcome of a step, which must end about as soon as a silence is known.
    async fn bounded<T>(&self, step: impl Future<Output = T>) -> T {
        let begun = self.handle.now();
        let ended = step.await;
        assert!(self.handle.now() - begun <= 2 * SILENT_S * SECOND_NS, "the step waits too long");
        ended
    }

    /// Opens the cache again over the same drives.
    async fn reopened(&self) -> Volume<Drive> {
        let volume = Volume::plain(&self.handle, self.origin.clone());
        let options = OpenOptions::with(settings(Mode::WriteBack));
        volume.attach_existing(self.ssd.clone(), options).await.expect("the cache opens");
        volume
    }
}

#[test]
fn a_stop_ends_although_the_ssd_hangs_and_its_dirty_lines_stay() {
    // The SSD hangs since long before the stop, or since just now.
    for silent_before in [1, 3 * SILENT_S] {
        with_volume(Mode::WriteBack, move |world| async move {
            write(&world.volume, 3, 2).await.expect("a write works");
            world.ssd_hang.begin();
            let waits = world.writes(4, 3);
            world.seconds(silent_before).await;
            world.bounded(world.volume.stop()).await.expect_err("the SSD does not answer");
            assert!(waits.get().is_some_and(|end| end.is_err()), "it is not acknowledged");
            let cache = world.volume.cache().expect("it has one");
            let left = cache.left_drive().expect("the reason is told");
            assert!(left.side == Side::Ssd && left.lines_dirty > 0, "{left:?}");
            assert_eq!(read(&world.origin, 4).await, Ok(1), "nothing passes to the origin");
            world.ssd_hang.end();
            world.seconds(1).await;
            assert_eq!(read(&world.reopened().await, 3).await, Ok(2));
        });
    }
}

#[test]
fn a_stop_ends_although_the_origin_hangs() {
    with_volume(Mode::WriteThrough, |world| async move {
        world.origin_hang.begin();
        let waits = world.writes(4, 3);
        world.seconds(1).await;
        world.bounded(world.volume.stop()).await.expect_err("the origin does not answer");
        assert!(waits.get().is_some_and(|end| end.is_err()), "it is not acknowledged");
        let left = world.volume.cache().and_then(|cache| cache.left_drive());
        assert!(left.is_some_and(|left| left.side == Side::Origin), "{left:?}");
        world.origin_hang.end();
        world.seconds(1).await;
        let volume = world.reopened().await;
        assert_eq!(read(&volume, 4).await, read(&world.origin, 4).await);
        assert_eq!(read(&volume, 3).await, Ok(1));
    });
}

#[test]
fn a_detach_that_writes_back_fails_with_the_reason_and_changes_nothing() {
    with_volume(Mode::WriteBack, |world| async move {
        write(&world.volume, 3, 2).await.expect("a write works");
        world.ssd_hang.begin();
        let waits = world.writes(4, 3);
        for _ in 0..2 {
            let error = world.bounded(world.volume.detach(true)).await.expect_err("it hangs");
            let is_it = matches!(error, VolumeError::Silent(silent) if silent.side == Side::Ssd);
            assert!(is_it && error.to_string().contains("its SSD has not answered"), "{error}");
        }
        let error = world.bounded(world.volume.drain()).await.expect_err("it hangs");
        assert!(matches!(error, VolumeError::Silent(_)), "{error}");
        let through = settings(Mode::WriteThrough);
        let error = world.bounded(world.volume.configure(through)).await.expect_err("it hangs");
        assert!(error.contains("its SSD has not answered"), "{error}");
        let cache = world.volume.cache().expect("it stays");
        assert_eq!((cache.settings().mode, waits.get()), (Mode::WriteBack, None));
        world.ssd_hang.end();
        world.seconds(1).await;
        assert_eq!((waits.get(), read(&*world.volume, 3).await), (Some(Ok(())), Ok(2)));
        world.volume.detach(true).await.expect("all is written back");
        assert_eq!((read(&world.origin, 3).await, read(&world.origin, 4).await), (Ok(2), Ok(3)));
    });
}

#[test]
fn a_detach_that_gives_dirty_lines_up_goes_on_without_the_ssd() {
    for silent_before in [1, 3 * SILENT_S] {
        with_volume(Mode::WriteBack, move |world| async move {
            write(&world.volume, 3, 2).await.expect("a write works");
            world.ssd_hang.begin();
            let waits = world.writes(4, 3);
            world.seconds(silent_before).await;
            world.bounded(world.volume.detach(false)).await.expect("the SSD is given up");
            assert_eq!(waits.get(), Some(Ok(())), "the write goes on with the origin");
            assert!(world.volume.cache().is_none());
            assert_eq!(
                (read(&*world.volume, 3).await, read(&*world.volume, 4).await),
                (Ok(1), Ok(3))
            );
            world.ssd_hang.end();
            world.seconds(1).await;
            assert_eq!(read(&*world.volume, 4).await, Ok(3));
        });
    }
}
