//! One life of a daemon in a world of its own: two drives, a registry, the service over both.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;

use voltier_block::{KIB, MIB, Nanos, Prng, SectorRange};
use voltier_control::engine::Drain;
use voltier_control::safety::DriveIdentity;
use voltier_volume::Volume;

use crate::disk::SimDisk;
use crate::disk_spec::DiskSpec;
use crate::ledger::Ledger;
use crate::medium::{Cut, Medium};
use crate::origin::SimDrive;
use crate::sweep::daemon::{DaemonFixture, DaemonLeft};
use crate::sweep::harness::Fixture;
use crate::workload::DeviceUnderTest;

/// Longer than any request of a drive takes.
const LAST_FLUSH_NS: Nanos = 50_000_000;

/// The two drives.
#[derive(Clone, Debug)]
pub struct Drives {
    /// The origin.
    pub hdd: DiskSpec,
    /// The cache's.
    pub ssd: DiskSpec,
}

impl Drives {
    /// The smallest cache before an origin with two intent regions, with blocks of the
    /// given bytes.
    pub fn small(hdd_block_bytes: u32, ssd_block_bytes: u32) -> Self {
        // An odd end, where the blocks allow one.
        let tail = if hdd_block_bytes == 512 { 7 * 512 } else { 0 };
        let spec = |number, bytes, block_bytes, latency_ns| DiskSpec {
            number,
            bytes,
            block_bytes,
            latency_ns,
            model: None,
            lies: false,
            zeroing_discards: false,
            stripe: None,
        };
        Self {
            hdd: spec(2, 17 * MIB + tail, hdd_block_bytes, 100_000),
            ssd: spec(1, MIB + (4 + 20) * 256 * KIB, ssd_block_bytes, 20_000),
        }
    }

    /// A seed's: four in a row have all pairs of block sizes. One in three has drives of one size, so
    /// that one can be taken for the other.
    pub fn of_seed(seed: u64) -> Self {
        let block_bytes = |bit: u64| if seed & bit == 0 { 512 } else { 4096 };
        let drives = Self::small(block_bytes(1), block_bytes(2));
        if seed % 3 == 2 { drives.alike() } else { drives }
    }

    /// The same with an SSD as large as the origin: the two can be taken for each other.
    pub fn alike(self) -> Self {
        let bytes = self.hdd.bytes / 4096 * 4096;
        Self { hdd: DiskSpec { bytes, ..self.hdd }, ssd: DiskSpec { bytes, ..self.ssd } }
    }

    /// The extents that clients use: the begin, both sides of the boundary of two intent
    /// regions, and the end.
    pub(super) fn windows(&self) -> [SectorRange; 3] {
        [0, 16 * MIB - 128 * KIB, self.hdd.bytes - 256 * KIB]
            .map(|at| SectorRange::from_bytes(at, 256 * KIB))
    }
}

/// Everything that a crash leaves: the drives, and all else.
#[derive(Clone)]
pub(super) struct Left {
    pub(super) hdd: Medium,
    pub(super) ssd: Medium,
    pub(super) daemon: DaemonLeft,
}

impl Left {
    /// A machine on which nothing ever happened.
    pub(super) fn nothing(drives: &Drives) -> Self {
        Self {
            hdd: Medium::zeroed(drives.hdd.bytes),
            ssd: Medium::zeroed(drives.ssd.bytes),
            daemon: DaemonLeft::nothing(drives.hdd.bytes / 512),
        }
    }
}

/// The marks of drives that a daemon can know them by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identities {
    /// Every drive has one.
    Known,
    /// Drives without such marks.
    None,
    /// The drive in the place of the HDD is another one of its size.
    OtherHdd,
}

impl Identities {
    /// The identity of the HDD or the SSD.
    pub(super) fn identity(self, is_hdd: bool) -> Option<DriveIdentity> {
        let number = match (self, is_hdd) {
            (Identities::None, _) => return None,
            (Identities::OtherHdd, true) => 2,
            (_, is_hdd) => u64::from(is_hdd),
        };
        Some(DriveIdentity::simulated(number))
    }
}

/// One world with one daemon in it.
pub(super) struct VolumeFixture {
    daemon: DaemonFixture,
    pub(super) drives: Drives,
    pub(super) hdd: SimDisk,
    pub(super) ssd: SimDisk,
    /// Each drive is where the other one was.
    pub(super) swapped: Cell<bool>,
    /// The marks that drives are known by.
    pub(super) identities: Cell<Identities>,
    pub(super) volume: RefCell<Option<Volume<SimDrive>>>,
    pub(super) drain: Rc<RefCell<Drain>>,
}

impl Deref for VolumeFixture {
    type Target = DaemonFixture;

    fn deref(&self) -> &DaemonFixture {
        &self.daemon
    }
}

impl VolumeFixture {
    /// The world after a crash; nothing runs yet.
    pub(super) fn new(drives: &Drives, left: Left, seed: u64, ledger: &Rc<Ledger>) -> Rc<Self> {
        let daemon = DaemonFixture::new(left.daemon, seed, ledger);
        Rc::new(Self {
            hdd: SimDisk::new(&daemon.world, &drives.hdd, left.hdd),
            ssd: SimDisk::new(&daemon.world, &drives.ssd, left.ssd),
            daemon,
            swapped: Cell::new(false),
            identities: Cell::new(Identities::Known),
            drives: drives.clone(),
            volume: RefCell::new(None),
            drain: Rc::new(RefCell::new(Drain::Done)),
        })
    }

    /// Everything that is there while nothing is under way.
    pub(super) fn left(&self) -> Left {
        Left { hdd: self.hdd.medium(), ssd: self.ssd.medium(), daemon: self.daemon.left() }
    }

    /// The open volume beside its model.
    pub(super) fn dut(&self) -> DeviceUnderTest<Volume<SimDrive>> {
        let volume = self.volume.borrow().clone().expect("the volume is open");
        self.daemon.dut(volume, self.drives.windows().into())
    }

    /// Sends the clients in.
    pub(super) fn start_clients(&self, count: u64) {
        self.daemon.start_clients(self.dut(), count);
    }
}

impl Fixture for VolumeFixture {
    type Left = Left;

    /// The SSD and the HDD.
    const DRIVES: usize = 2;

    fn left_by(&self, cut: Cut, prng: &mut Prng) -> Left {
        let (ssd, hdd) = (self.ssd.after(cut, prng), self.hdd.after(cut, prng));
        Left { hdd, ssd, daemon: self.daemon.left_by(cut) }
    }

    /// Holds everything that clients use to the model: through the volume, or, when there is none,
    /// on the plain origin.
    fn check_all(&self, when: &'static str) {
        if self.volume.borrow().is_some() {
            self.check(self.dut(), when);
        } else {
            let origin = SimDrive::any_sector(self.hdd.clone());
            self.check(self.daemon.dut(origin, self.drives.windows().into()), when);
        }
    }

    fn check_for_leaks(&self) {
        assert!(self.volume.borrow().is_none(), "a volume is still open");
        // A flush that nobody waits for may be on its way: it is given the time to end.
        self.daemon.check_for_leaks(LAST_FLUSH_NS, [&self.hdd, &self.ssd]);
    }
}
