//! Goal: what is set while a checkpoint is being written is on record at the next one. Method: an SSD in
//! virtual time at which a hook runs in the midst of a checkpoint, when the superblock is written.

use std::cell::RefCell;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Durability, InMemory, IoResult, Lba, Limits, MIB, Payload, SectorRange,
};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{
    Cache, FormatOptions, Label, LineSize, Mode, OpenOptions, Owner, SUPERBLOCK_OFFSETS, Settings,
};
use voltier_drive::MemoryDevice;
use voltier_ring::{Executor, Handle, NoFiles};

type TestCache = Cache<HookedSsd, MemoryDevice>;
type Hook = Rc<RefCell<Option<Box<dyn FnOnce()>>>>;

/// An SSD at which the hook runs once, when the first copy of the superblock is on its way.
struct HookedSsd {
    below: MemoryDevice,
    at_superblock: Hook,
}

impl BlockDevice for HookedSsd {
    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    async fn read(&self, at: Lba, into: Buf) -> IoResult<Buf> {
        self.below.read(at, into).await
    }

    async fn write(&self, at: Lba, data: Payload, durability: Durability) -> IoResult<()> {
        if at == Lba::from_bytes(SUPERBLOCK_OFFSETS[0])
            && let Some(hook) = self.at_superblock.take()
        {
            hook();
        }
        self.below.write(at, data, durability).await
    }

    async fn flush(&self) -> IoResult<()> {
        self.below.flush().await
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.below.discard(range).await
    }

    async fn write_zeroes(&self, range: SectorRange, durability: Durability) -> IoResult<()> {
        self.below.write_zeroes(range, durability).await
    }
}

impl InMemory for HookedSsd {}

/// A cache in service, and its SSD without the hook.
struct World {
    handle: Handle,
    ssd: MemoryDevice,
    at_superblock: Hook,
    cache: TestCache,
}

fn with_world<F: Future<Output = ()> + 'static>(test: impl FnOnce(World) -> F + 'static) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let (ssd, origin) = (MemoryDevice::new(32 * MIB), MemoryDevice::new(32 * MIB));
        let format =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [8; 16] };
        Cache::format(&ssd, &origin, &format).await.expect("it takes a cache");
        let at_superblock = Hook::default();
        let hooked = HookedSsd { below: ssd.clone(), at_superblock: at_superblock.clone() };
        let write_back = Settings { mode: Mode::WriteBack, ..Settings::default() };
        let owner = Some(Owner { volume: "fast".into(), ..Owner::default() });
        let options = OpenOptions { owner, ..OpenOptions::with(write_back) };
        let cache = Cache::open(&handle, hooked, origin, options).await.expect("it opens").0;
        test(World { handle: handle.clone(), ssd, at_superblock, cache }).await;
    });
}

impl World {
    /// Has `change` happen while the superblock of a checkpoint is written, and waits for its end.
    async fn during_checkpoint(&self, change: impl FnOnce(&TestCache) + 'static) {
        let cache = self.cache.clone();
        self.at_superblock.replace(Some(Box::new(move || change(&cache))));
        // The log fills the SSD until a checkpoint is due.
        let mut written = 0;
        while self.at_superblock.borrow().is_some() {
            assert!(written < 40_000, "no checkpoint came");
            let at = Lba(8 * (written % 64));
            let data = Buf::zeroed(4096).into();
            self.cache.write(at, data, Durability::Cached).await.expect("a write works");
            written += 1;
        }
        self.handle.sleep(1_000_000_000).await;
    }

    async fn label(&self) -> Label {
        let label = Cache::<MemoryDevice, MemoryDevice>::probe(&self.ssd).await;
        label.expect("it is whole").expect("it is a cache")
    }
}

#[test]
fn a_policy_that_is_set_while_the_superblock_is_written_is_on_record_at_the_next_checkpoint() {
    with_world(|world| async move {
        world.during_checkpoint(|cache| cache.set_policy(PolicyKind::Fifo).unwrap()).await;
        let now = (world.cache.status().policy, world.label().await.policy);
        assert_eq!(now, (PolicyKind::Fifo, PolicyKind::Lru), "the superblock was made before");
        world.cache.stop().await.expect("a stop works");
        assert_eq!(world.label().await.policy, PolicyKind::Fifo, "the stop writes the next one");
    });
}

#[test]
fn the_copies_of_a_superblock_that_is_written_while_settings_change_are_the_same() {
    with_world(|world| async move {
        world
            .during_checkpoint(|cache| {
                let settings = Settings { mode: Mode::WriteThrough, ..cache.settings() };
                cache.configure(settings).expect("it is a setting");
            })
            .await;
        let mut modes = Vec::new();
        for (copy, offset) in SUPERBLOCK_OFFSETS.into_iter().enumerate() {
            let mut head = world.ssd.read(Lba(0), Buf::new(68 << 10)).await.expect("a read works");
            let other = SUPERBLOCK_OFFSETS[1 - copy] as usize;
            head[other..other + 4096].fill(0);
            let label = Label::in_head(&head)
                .expect("known")
                .unwrap_or_else(|| panic!("a copy at {offset}"));
            modes.push(label.owner.mode);
        }
        let before = Some(Mode::WriteBack);
        assert_eq!(modes, [before, before], "the next checkpoint records the settings");
    });
}
