//! One life of a daemon with an array: drives, a registry, the service over both, clients.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;

use voltier_array::{AREA_ALIGN_BYTES, Array, BackgroundTask, Pace, Priority, SUPERBLOCK_BYTES};
use voltier_block::{BlockDevice, KIB, Lba, MIB, Nanos, Prng, SectorRange};
use voltier_control::DeviceSpec;

use crate::disk::SimDisk;
use crate::disk_spec::DiskSpec;
use crate::ledger::Ledger;
use crate::medium::{Cut, Medium};
use crate::model::Model;
use crate::origin::FittedDevice;
use crate::sweep::daemon::{DaemonFixture, DaemonLeft};
use crate::sweep::harness::Fixture;
use crate::workload::DeviceUnderTest;

/// Drives that can be members, and behind them those that can have a journal.
pub(super) const DRIVES: usize = 8;
/// Those that can be members: after a crash each may have the name of another one.
pub(super) const RENAMED: usize = 6;
/// Bytes of chunks on a member.
const CHUNKS_BYTES: u64 = 320 * KIB;
/// Bytes of each extent that clients use.
const WINDOW_BYTES: u64 = 96 * KIB;
/// Longer than any request of a drive takes, and than a round of the array's own tasks.
const LAST_ROUND_NS: Nanos = 60_000_000_000;

/// The array as clients reach it: at any sector, as in the product.
pub(super) type Reached = FittedDevice<Array<SimDisk>>;

/// The drives of a seed: half of them have blocks of 4096 bytes.
pub(super) fn drive(number: usize, seed: u64) -> DiskSpec {
    DiskSpec {
        number: number as u64 + 3,
        bytes: AREA_ALIGN_BYTES + MIB + CHUNKS_BYTES + SUPERBLOCK_BYTES,
        block_bytes: if seed & 1 == 0 { 512 } else { 4096 },
        latency_ns: 40_000,
        model: None,
        lies: false,
        zeroing_discards: seed & 2 == 0,
        stripe: None,
    }
}

/// Everything that a crash leaves: the drives, and all else.
#[derive(Clone)]
pub(super) struct Left {
    media: Vec<Medium>,
    daemon: DaemonLeft,
    /// Uuids given away.
    named: u64,
    /// By how many places the names of drives are turned.
    turned: usize,
    /// Sectors that the array had when it was made.
    sectors: u64,
}

impl Left {
    /// A machine on which nothing ever happened.
    pub(super) fn nothing(seed: u64) -> Self {
        let media = (0..DRIVES).map(|number| Medium::zeroed(drive(number, seed).bytes));
        let daemon = DaemonLeft::nothing(DRIVES as u64 * CHUNKS_BYTES / 512);
        Self { media: media.collect(), daemon, named: 0, turned: 0, sectors: 0 }
    }
}

/// An array that is open, and which device is where.
pub(super) struct Open {
    pub(super) array: Array<SimDisk>,
    pub(super) devices: Vec<Option<DeviceSpec>>,
    /// Devices that are to become members: uuid, device, whether it is a spare.
    pub(super) pending: Vec<([u8; 16], DeviceSpec, bool)>,
    pub(super) journal: Option<DeviceSpec>,
}

/// One world with one daemon in it.
pub(super) struct ArrayDaemonFixture {
    daemon: DaemonFixture,
    pub(super) disks: Vec<SimDisk>,
    pub(super) open: RefCell<Option<Open>>,
    named: Cell<u64>,
    turned: usize,
    sectors: Cell<u64>,
}

impl Deref for ArrayDaemonFixture {
    type Target = DaemonFixture;

    fn deref(&self) -> &DaemonFixture {
        &self.daemon
    }
}

impl ArrayDaemonFixture {
    /// The world after a crash; nothing runs yet.
    pub(super) fn new(left: Left, (kind, seed): (u64, u64), ledger: &Rc<Ledger>) -> Rc<Self> {
        let daemon = DaemonFixture::new(left.daemon, seed, ledger);
        let disk = |(number, medium)| SimDisk::new(&daemon.world, &drive(number, kind), medium);
        Rc::new(Self {
            disks: left.media.into_iter().enumerate().map(disk).collect(),
            daemon,
            open: RefCell::default(),
            named: Cell::new(left.named),
            turned: left.turned,
            sectors: Cell::new(left.sectors),
        })
    }

    /// The name of a drive in this life.
    pub(super) fn device(&self, number: usize) -> DeviceSpec {
        let place = if number < RENAMED { (number + self.turned) % RENAMED } else { number };
        format!("/dev/d{place}").parse().expect("a path")
    }

    /// A new uuid.
    pub(super) fn name(&self) -> [u8; 16] {
        self.named.set(self.named.get() + 1);
        crate::arrays::uuid(self.named.get())
    }

    /// A new array is zeroes, whatever its drives held, and so is capacity that is added later.
    pub(super) fn is_new(&self, sectors: u64) {
        self.sectors.set(sectors);
        self.model.replace(Model::new(2 * sectors));
    }

    /// The array, if it is open.
    pub(super) fn array(&self) -> Option<Array<SimDisk>> {
        self.open.borrow().as_ref().map(|open| open.array.clone())
    }

    fn dut(&self) -> Option<DeviceUnderTest<Reached>> {
        let array = self.array()?;
        let (at_first, now) = (self.sectors.get(), array.limits().sectors);
        let last = |sectors| sectors - WINDOW_BYTES / 512;
        let mut starts = vec![0, at_first / 2 / 8 * 8, last(at_first)];
        if now > at_first {
            starts.push(last(now));
        }
        let windows = starts.into_iter().map(|at| SectorRange::new(Lba(at), WINDOW_BYTES / 512));
        Some(self.daemon.dut(Reached::any_sector(array), windows.collect()))
    }

    /// Lets rebuilds and resyncs come to their end.
    pub(super) fn finish(&self) {
        let Some(array) = self.array() else { return };
        let handle = self.world.handle().clone();
        self.run(async move {
            let fast = Pace { priority: Priority::High, floor_bytes_per_second: 0 };
            array.set_pace(BackgroundTask::Rebuild, fast);
            array.set_pace(BackgroundTask::Scrub, fast);
            while array.status().is_some_and(|status| status.regions_to_resync > 0) {
                handle.sleep(2_000_000).await;
            }
            array.ended(BackgroundTask::Rebuild).await;
            // A reshape waits for members that are missing, if some are.
            while array.reshape_status().is_some_and(|it| it.waits_for.is_none()) {
                handle.sleep(2_000_000).await;
            }
            array.ended(BackgroundTask::Scrub).await;
        });
    }

    /// Sends the clients in, if there are to be any.
    pub(super) fn start_clients(&self) {
        let count = self.client_count.get();
        if count > 0
            && let Some(dut) = self.dut()
        {
            self.daemon.start_clients(dut, count);
        }
    }
}

impl Fixture for ArrayDaemonFixture {
    type Left = Left;

    const DRIVES: usize = DRIVES;

    fn left_by(&self, cut: Cut, prng: &mut Prng) -> Left {
        let media = self.disks.iter().map(|disk| disk.after(cut, prng)).collect();
        // A machine that starts anew gives other names; after a mere kill they stay.
        let turned =
            if cut == Cut::Power { prng.below(RENAMED as u64) as usize } else { self.turned };
        Left {
            media,
            turned,
            daemon: self.daemon.left_by(cut),
            named: self.named.get(),
            sectors: self.sectors.get(),
        }
    }

    fn check_all(&self, when: &'static str) {
        if let Some(dut) = self.dut() {
            self.check(dut, when);
        }
    }

    fn check_for_leaks(&self) {
        assert!(self.open.borrow().is_none(), "an array is still open");
        self.daemon.check_for_leaks(LAST_ROUND_NS, &self.disks);
    }
}
