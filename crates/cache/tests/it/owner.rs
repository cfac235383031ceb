//! Goal: the superblock tells a user without a registry to which volume a cache belongs. SSDs whose
//! superblock does not say so work as before. Method: caches are opened with and without an
//! owner, killed and stopped, and looked at; the part is blanked as a new cache has it.

use voltier_block::{BlockDevice, Buf, Durability, Lba, MIB, Unsupported};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{
    Cache, FormatOptions, Label, LineSize, Mode, OpenError, OpenOptions, Owner, SUPERBLOCK_OFFSETS,
    Settings,
};
use voltier_drive::MemoryDevice;
use voltier_ring::{Executor, Handle, NoFiles};

type TestCache = Cache<MemoryDevice, MemoryDevice>;

const BLOCK_BYTES: usize = 4096;
/// Where `docs/formats/cache.md` has the owner in a superblock, and the checksum.
const OWNER_AT: std::ops::Range<usize> = 512..2048;
const CRC_AT: std::ops::Range<usize> = 12..16;
const VERSION_AT: usize = 8;
const FEATURES_AT: usize = 32;

struct Stand {
    handle: Handle,
    ssd: MemoryDevice,
    origin: MemoryDevice,
}

impl Stand {
    async fn new(handle: Handle) -> Self {
        let (ssd, origin) = (MemoryDevice::new(16 * MIB), MemoryDevice::new(32 * MIB));
        let policy = PolicyKind::Fifo;
        let format = FormatOptions { line_size: LineSize::DEFAULT, policy, uuid: [9; 16] };
        Cache::format(&ssd, &origin, &format).await.expect("it takes a cache");
        Self { handle, ssd, origin }
    }

    async fn open(&self, owner: Option<Owner>) -> TestCache {
        let settings = Settings { mode: Mode::WriteBack, ..Settings::default() };
        let options = OpenOptions { owner, ..OpenOptions::with(settings) };
        let (ssd, origin) = (self.ssd.clone(), self.origin.clone());
        Cache::open(&self.handle, ssd, origin, options).await.expect("it opens").0
    }

    async fn label(&self) -> Label {
        TestCache::probe(&self.ssd).await.expect("it is whole").expect("it is a cache")
    }

    /// All bytes of the SSD.
    async fn all(&self) -> Buf {
        self.ssd.read(Lba(0), Buf::new(16 * MIB as usize)).await.unwrap()
    }

    /// Makes both superblocks name nobody, as those of a new cache.
    async fn forget_owner(&self) {
        for offset in SUPERBLOCK_OFFSETS {
            self.change(offset, |block| block[OWNER_AT].fill(0)).await;
        }
    }

    /// Changes the superblock at an offset, under a good checksum.
    async fn change(&self, offset: u64, change: impl Fn(&mut [u8])) {
        let at = Lba::from_bytes(offset);
        let mut block = self.ssd.read(at, Buf::new(BLOCK_BYTES)).await.unwrap().to_vec();
        change(&mut block);
        block[CRC_AT].fill(0);
        let crc = crc_fast::crc32_iscsi(&block);
        block[CRC_AT].copy_from_slice(&crc.to_le_bytes());
        let mut data = Buf::new(BLOCK_BYTES);
        data.copy_from_slice(&block);
        self.ssd.write(at, data.into(), Durability::Durable).await.unwrap();
    }
}

fn owner() -> Owner {
    Owner {
        volume_uuid: [3; 16],
        volume: "fast".into(),
        origin_identity: "serial:disk-1;start=2048".into(),
        origin_path: "/dev/vdb1".into(),
        mode: Some(Mode::WriteBack),
        ordered: false,
    }
}

fn line_of(byte: u8) -> Buf {
    let mut line = Buf::new(BLOCK_BYTES);
    line.fill(byte);
    line
}

fn in_virtual_time<F: Future<Output = ()> + 'static>(life: impl FnOnce(Handle) -> F) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let life = life(executor.handle());
    executor.block_on(life);
}

#[test]
fn an_opening_names_the_owner_at_once_and_later_ones_keep_it() {
    in_virtual_time(|handle| async move {
        let stand = Stand::new(handle).await;
        assert_eq!(stand.label().await.owner, Owner::default(), "a new cache is nobody's yet");
        stand.open(Some(owner())).await.kill();
        assert_eq!(stand.label().await.owner, owner(), "before the first checkpoint");
        stand.open(None).await.kill();
        assert_eq!(
            stand.label().await.owner,
            owner(),
            "an opening that says nothing changes nothing"
        );
        let moved = Owner { origin_path: "/dev/vdc1".into(), ..owner() };
        let cache = stand.open(Some(moved.clone())).await;
        cache.stop().await.expect("a stop works");
        assert_eq!(stand.label().await.owner, moved);
    });
}

#[test]
fn mode_and_order_are_those_of_the_last_checkpoint() {
    in_virtual_time(|handle| async move {
        let stand = Stand::new(handle).await;
        let cache = stand.open(Some(owner())).await;
        let settings = Settings { mode: Mode::WriteThrough, ordered: true, ..cache.settings() };
        cache.configure(settings).unwrap();
        cache.stop().await.expect("a stop works");
        let owner = stand.label().await.owner;
        assert_eq!((owner.mode, owner.ordered), (Some(Mode::WriteThrough), true));
    });
}

#[test]
fn a_superblock_that_names_nobody_is_opened_and_named() {
    in_virtual_time(|handle| async move {
        let stand = Stand::new(handle).await;
        let cache = stand.open(Some(owner())).await;
        let written = cache.write(Lba(0), line_of(7).into(), Durability::Durable).await;
        written.expect("a write works");
        cache.stop().await.expect("a stop works");
        stand.forget_owner().await;
        let before = stand.label().await;
        assert_eq!((&before.owner, before.dirty_lines), (&Owner::default(), 1));
        let cache = stand.open(None).await;
        let found = cache.read(Lba(0), Buf::new(BLOCK_BYTES)).await.unwrap();
        assert_eq!(found[..], line_of(7)[..]);
        cache.stop().await.expect("a stop works");
        assert_eq!(stand.label().await.owner, Owner::default(), "it stays nobody's");
        stand.open(Some(owner())).await.kill();
        assert_eq!(stand.label().await.owner, owner());
    });
}

#[test]
fn the_first_bytes_of_an_ssd_say_the_same_as_its_label() {
    in_virtual_time(|handle| async move {
        let stand = Stand::new(handle).await;
        stand.open(Some(owner())).await.kill();
        let head = stand.ssd.read(Lba(0), Buf::new(68 << 10)).await.unwrap();
        assert_eq!(Label::in_head(&head), Ok(Some(stand.label().await)));
        let mut torn = head.to_vec();
        torn[100] ^= 1;
        let of_other_copy = Label::in_head(&torn).expect("known").expect("the other copy is whole");
        assert_eq!(of_other_copy.owner, owner());
        torn[(64 << 10) + 100] ^= 1;
        assert_eq!(Label::in_head(&torn), Ok(None));
        assert_eq!((Label::in_head(&[]), Label::in_head(&torn[..100])), (Ok(None), Ok(None)));
    });
}

#[test]
fn an_unknown_version_or_feature_in_either_copy_is_refused_by_name_and_nothing_is_written() {
    in_virtual_time(|handle| async move {
        let cases = [
            (VERSION_AT, 2, Unsupported::Version { found: 2, read: 1 }),
            (VERSION_AT, 0, Unsupported::Version { found: 0, read: 1 }),
            (FEATURES_AT, 1, Unsupported::Flags(1)),
            (FEATURES_AT + 7, 0x80, Unsupported::Flags(1 << 63)),
        ];
        for (at, value, why) in cases {
            for offsets in
                [&SUPERBLOCK_OFFSETS[..], &SUPERBLOCK_OFFSETS[..1], &SUPERBLOCK_OFFSETS[1..]]
            {
                let stand = Stand::new(handle.clone()).await;
                stand.open(Some(owner())).await.stop().await.expect("a stop works");
                for offset in offsets {
                    // Nothing behind the head counts, however wrong it is.
                    let change = |block: &mut [u8]| {
                        block[at] = value;
                        block[FEATURES_AT + 8..512].fill(0xff);
                    };
                    stand.change(*offset, change).await;
                }
                let head = stand.ssd.read(Lba(0), Buf::new(68 << 10)).await.unwrap();
                assert_eq!(Label::in_head(&head), Err(why.clone()));
                let probed = TestCache::probe(&stand.ssd).await;
                assert!(matches!(
                    probed,
                    Err(OpenError::Unsupported { uuid, why: found }) if (uuid, &found) == ([9; 16], &why)
                ));
                let all = stand.all().await;
                let options = OpenOptions::with(Settings::default());
                let (ssd, origin) = (stand.ssd.clone(), stand.origin.clone());
                let opened = Cache::open(&stand.handle, ssd, origin, options).await;
                let error = opened.err().expect("it is refused").to_string();
                assert!(error.contains(&why.to_string()) && !error.contains('\n'), "{error}");
                assert!(stand.all().await[..] == all[..], "something was written");
            }
        }
    });
}
