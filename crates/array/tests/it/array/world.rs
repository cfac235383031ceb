//! Members for tests, and parity by an arithmetic of its own.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use voltier_array::{
    Array, Consistency, CreateOptions, Geometry, Integrity, Layout, Level, MemberIndex,
    SUPERBLOCK_BYTES, StripeNumber, StripeSlot,
};
use voltier_block::{
    BlockDevice, Buf, Bytes, Durability, InMemory, IoError, IoResult, Lba, Limits, MIB, Payload,
    Prng, SECTOR_BYTES, SectorRange,
};
use voltier_drive::MemoryDevice;
use voltier_ring::Handle;
use voltier_sim::arrays::parity;

/// A member as a test handles and sees it.
#[derive(Default)]
pub(crate) struct Watch {
    /// Sectors that give a medium error until they are written.
    pub(crate) bad: RefCell<BTreeSet<u64>>,
    /// Whether writes fail.
    pub(crate) refuses_writes: Cell<bool>,
    /// Whether everything fails for good.
    pub(crate) is_gone: Cell<bool>,
    pub(crate) reads: Cell<u64>,
    pub(crate) writes: Cell<u64>,
    pub(crate) durable_writes: Cell<u64>,
    pub(crate) flushes: Cell<u64>,
}

/// Memory that answers late, counts, and fails where it is told to.
pub(crate) struct TestMember {
    handle: Handle,
    below: MemoryDevice,
    dice: RefCell<Prng>,
    watch: Rc<Watch>,
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

impl TestMember {
    async fn late(&self) -> IoResult<()> {
        let delay_ns = self.dice.borrow_mut().below(20_000);
        self.handle.sleep(delay_ns).await;
        if self.watch.is_gone.get() { Err(IoError::Gone) } else { Ok(()) }
    }

    async fn before_change(&self, durability: Durability) -> IoResult<()> {
        count(&self.watch.writes);
        if durability == Durability::Durable {
            count(&self.watch.durable_writes);
        }
        self.late().await?;
        if self.watch.refuses_writes.get() { Err(IoError::Medium) } else { Ok(()) }
    }

    fn cure(&self, range: SectorRange) {
        self.watch.bad.borrow_mut().retain(|at| !(range.start.0..range.end().0).contains(at));
    }
}

impl BlockDevice for TestMember {
    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        count(&self.watch.reads);
        self.late().await?;
        let end = at.0 + into.len() as u64 / SECTOR_BYTES;
        if self.watch.bad.borrow().range(at.0..end).next().is_some() {
            return Err(IoError::Medium);
        }
        self.below.read(at, into).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        self.before_change(durability).await?;
        self.cure(SectorRange::new(at, data.len() as u64 / SECTOR_BYTES));
        self.below.write(at, data, durability).await
    }

    async fn flush(&self) -> IoResult<()> {
        count(&self.watch.flushes);
        self.late().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.before_change(Durability::Cached).await?;
        self.cure(range);
        self.below.discard(range).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.before_change(durability).await?;
        self.cure(range);
        self.below.write_zeroes(range, durability).await
    }
}

impl InMemory for TestMember {}

type Drives = (Vec<MemoryDevice>, Vec<Rc<Watch>>, Vec<Option<TestMember>>);

/// Empty drives for the members of an array.
fn drives(
    handle: &Handle,
    geometry: &Geometry,
    bytes: u64,
    block_bytes: u32,
    lost: &[usize],
    seed: u64,
) -> Drives {
    let count = geometry.member_count();
    let media: Vec<MemoryDevice> =
        (0..count).map(|_| MemoryDevice::with_block_bytes(bytes, block_bytes)).collect();
    let watches: Vec<Rc<Watch>> = (0..count).map(|_| Rc::default()).collect();
    let member = |index: usize| TestMember {
        handle: handle.clone(),
        below: media[index].clone(),
        dice: RefCell::new(Prng::new(seed ^ ((index as u64) << 32))),
        watch: watches[index].clone(),
    };
    let members = (0..count).map(|at| (!lost.contains(&at)).then(|| member(at))).collect();
    (media, watches, members)
}

/// An array of test members, and what is behind it.
pub(crate) struct World {
    pub(crate) array: Array<TestMember>,
    pub(crate) media: Vec<MemoryDevice>,
    pub(crate) watches: Vec<Rc<Watch>>,
    /// The first sector of the chunks on a member's device.
    data_start: Lba,
}

impl World {
    /// An array whose `lost` members are lost from the start.
    pub(crate) fn new(
        handle: &Handle,
        geometry: &Geometry,
        block_bytes: u32,
        lost: &[usize],
        seed: u64,
    ) -> Self {
        let bytes = geometry.member_sectors() * SECTOR_BYTES;
        let (media, watches, members) = drives(handle, geometry, bytes, block_bytes, lost, seed);
        let array = Array::new(handle, geometry.clone(), members).expect("possible");
        Self { array, media, watches, data_start: Lba(0) }
    }

    /// A fresh device for a member that is lost: it holds junk.
    pub(crate) async fn fresh_member(
        &self,
        handle: &Handle,
        member: usize,
        seed: u64,
    ) -> TestMember {
        // Requests that were on their way to the old device.
        handle.sleep(1_000_000).await;
        let watch = &self.watches[member];
        watch.is_gone.set(false);
        watch.bad.borrow_mut().clear();
        let below = self.media[member].clone();
        let junk = vec![0xdb; below.limits().bytes() as usize];
        below.write(Lba(0), Bytes::copy_of(&junk).into(), Durability::Cached).await.expect("junk");
        let dice = RefCell::new(Prng::new(seed));
        TestMember { handle: handle.clone(), below, dice, watch: watch.clone() }
    }

    /// Changes a byte of a member behind everybody's back.
    pub(crate) async fn flip(&self, member: usize, at: u64) {
        let block = Lba(at / 4096 * 8);
        let mut bytes = self.media[member].read(block, Buf::new(4096)).await.expect("memory");
        bytes[at as usize % 4096] ^= 0x40;
        let durability = Durability::Cached;
        self.media[member].write(block, bytes.into(), durability).await.expect("memory");
    }

    /// A new array with a journal and 1 MiB of data on each member, all of it written once; nothing is
    /// counted of that.
    pub(crate) async fn with_journal(
        handle: &Handle,
        level: Level,
        members: usize,
        chunk_bytes: u64,
    ) -> Self {
        let options = CreateOptions {
            name: "journalled".to_owned(),
            level,
            layout: Layout::default(),
            chunk_bytes,
            consistency: Consistency::Journal,
            integrity: Integrity::None,
            uuid: [5; 16],
            member_uuids: (1..=members as u8).map(|member| [member; 16]).collect(),
        };
        // One MiB each of labels, journal and data, and the second label.
        let bytes = 3 * MIB + SUPERBLOCK_BYTES;
        let geometry =
            Geometry::new(level, options.layout, members, chunk_bytes, MIB / SECTOR_BYTES);
        let geometry = geometry.expect("possible");
        let (media, watches, drives) = drives(handle, &geometry, bytes, 512, &[], 1);
        let drives = drives.into_iter().flatten().collect();
        let array = Array::create(handle, &options, drives).await.expect("possible");
        assert_eq!(*array.geometry(), geometry);
        let first = Buf::zeroed(SECTOR_BYTES as usize);
        array.write(Lba(0), first.into(), Durability::Cached).await.expect("write");
        array.empty_journal().await.expect("emptied");
        for watch in &watches {
            watch.writes.set(0);
            watch.durable_writes.set(0);
            watch.flushes.set(0);
        }
        let data_start = Lba::from_bytes(2 * MIB);
        Self { array, media, watches, data_start }
    }

    /// Holds every stripe, on the media of the members that are online, against the content of the
    /// volume and its parity.
    pub(crate) async fn check_stripes(&self, volume: &[u8]) {
        let geometry = self.array.geometry();
        let chunk_bytes = (geometry.chunk_sectors() * SECTOR_BYTES) as usize;
        let data_chunks = geometry.data_chunks();
        for stripe in (0..geometry.stripe_count()).map(StripeNumber) {
            let start = stripe.0 as usize * data_chunks * chunk_bytes;
            let columns: Vec<&[u8]> =
                volume[start..start + data_chunks * chunk_bytes].chunks(chunk_bytes).collect();
            let data: Vec<&[u8]> = (0..data_chunks)
                .map(|slot| columns[geometry.column_of_slot(stripe, StripeSlot(slot))])
                .collect();
            for slot in 0..geometry.width() {
                let MemberIndex(member) = geometry.member_of(stripe, StripeSlot(slot));
                if !self.array.is_online(MemberIndex(member)) {
                    continue;
                }
                let at = self.data_start.plus(geometry.member_lba(stripe, 0).0);
                let stored = self.media[member].read(at, Buf::new(chunk_bytes)).await.unwrap();
                match slot.checked_sub(data_chunks) {
                    None => assert!(&stored[..] == data[slot], "{stripe:?}, data {slot}"),
                    Some(row) => {
                        assert!(stored[..] == parity(row, &data), "{stripe:?}, parity {row}");
                    }
                }
            }
        }
    }
}
