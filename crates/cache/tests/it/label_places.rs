//! Goal: an SSD whose two superblocks are of different uses is no cache, and one whose cache was copied before it
//! was stopped is not that cache. Method: what other uses leave is put in both places.

use voltier_block::{BlockDevice, Buf, Durability, Lba, MIB};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{
    Cache, FormatOptions, LineSize, Mode, OpenError, OpenOptions, SUPERBLOCK_OFFSETS, Settings,
};
use voltier_drive::MemoryDevice;
use voltier_ring::{Executor, Handle, NoFiles};

type TestCache = Cache<MemoryDevice, MemoryDevice>;

const BLOCK_BYTES: usize = 4096;
const SSD_BYTES: u64 = 16 * MIB;
const UUID: [u8; 16] = [9; 16];

fn in_virtual_time<F: Future<Output = ()> + 'static>(test: impl FnOnce(Handle) -> F + 'static) {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(test(handle));
}

async fn format(ssd: &MemoryDevice, origin: &MemoryDevice, uuid: [u8; 16]) {
    let (line_size, policy) = (LineSize::DEFAULT, PolicyKind::Fifo);
    let options = FormatOptions { line_size, policy, uuid };
    Cache::format(ssd, origin, &options).await.expect("it takes a cache");
}

async fn block_at(ssd: &MemoryDevice, offset: u64) -> Vec<u8> {
    ssd.read(Lba::from_bytes(offset), Buf::new(BLOCK_BYTES)).await.unwrap().to_vec()
}

async fn put(ssd: &MemoryDevice, offset: u64, block: &[u8]) {
    let mut data = Buf::new(BLOCK_BYTES);
    data.copy_from_slice(block);
    ssd.write(Lba::from_bytes(offset), data.into(), Durability::Durable).await.unwrap();
}

fn named(magic: &[u8; 8]) -> Vec<u8> {
    [&magic[..], &[0x5a; BLOCK_BYTES - 8]].concat()
}

#[test]
fn a_second_superblock_counts_only_behind_a_first_one_that_may_be_its_own() {
    in_virtual_time(|_| async move {
        let origin = MemoryDevice::new(32 * MIB);
        let [ssd, other] = [UUID, [7; 16]].map(|uuid| (MemoryDevice::new(SSD_BYTES), uuid));
        for (ssd, uuid) in [&ssd, &other] {
            format(ssd, &origin, *uuid).await;
        }
        let (ssd, [first, second]) = (ssd.0, SUPERBLOCK_OFFSETS);
        let (own, of_other) = (block_at(&ssd, first).await, block_at(&other.0, first).await);
        let mut damaged = own.clone();
        damaged[300] ^= 1;
        let rotten = [&[0x22; 8][..], &own[8..]].concat();
        let cases = [
            (vec![0; BLOCK_BYTES], true),
            (damaged, true),
            (rotten, true),
            (of_other, false),
            (vec![0x11; BLOCK_BYTES], false),
            (named(b"VOLTARRY"), false),
            (named(b"VOLTJRNL"), false),
            (named(b"VOLTSPAR"), false),
        ];
        for (at, (block, is_believed)) in cases.into_iter().enumerate() {
            put(&ssd, first, &block).await;
            let found = TestCache::probe(&ssd).await;
            let is_refused = matches!(found, Err(OpenError::Disagree { .. }));
            assert_eq!((found.is_ok(), is_refused), (is_believed, !is_believed), "case {at}");
        }
        put(&ssd, first, &own).await;
        for block in [vec![0; BLOCK_BYTES], vec![0x11; BLOCK_BYTES], named(b"VOLTARRY")] {
            put(&ssd, second, &block).await;
            assert!(TestCache::probe(&ssd).await.unwrap().is_some());
        }
    });
}

#[test]
fn a_new_cache_leaves_no_label_of_an_earlier_use() {
    in_virtual_time(|_| async move {
        let (ssd, origin) = (MemoryDevice::new(SSD_BYTES), MemoryDevice::new(32 * MIB));
        let end = SSD_BYTES - BLOCK_BYTES as u64;
        for (at, magic) in [(0, b"VOLTARRY"), (end, b"VOLTARRY")] {
            put(&ssd, at, &named(magic)).await;
        }
        format(&ssd, &origin, UUID).await;
        assert_eq!(block_at(&ssd, end).await, [0; BLOCK_BYTES]);
        // What is no label stays: nobody takes it for one.
        put(&ssd, end, &[0x11; BLOCK_BYTES]).await;
        format(&ssd, &origin, UUID).await;
        assert_eq!(block_at(&ssd, end).await, [0x11; BLOCK_BYTES]);
    });
}

#[test]
fn a_copy_from_before_a_stop_has_a_lower_number_than_the_stop_left() {
    in_virtual_time(|handle| async move {
        let (ssd, origin) = (MemoryDevice::new(SSD_BYTES), MemoryDevice::new(32 * MIB));
        format(&ssd, &origin, UUID).await;
        let settings = Settings { mode: Mode::WriteBack, ..Settings::default() };
        let open = async |ssd: MemoryDevice, sequence_min| {
            let options = OpenOptions { sequence_min, ..OpenOptions::with(settings.clone()) };
            Cache::open(&handle, ssd, origin.clone(), options).await
        };
        let (cache, opened) = open(ssd.clone(), 0).await.expect("it opens");
        let copy = MemoryDevice::new(SSD_BYTES);
        let all = ssd.read(Lba(0), Buf::new(SSD_BYTES as usize)).await.unwrap();
        copy.write(Lba(0), all.into(), Durability::Durable).await.unwrap();
        cache.stop().await.expect("a stop works");
        drop(cache);
        let label = TestCache::probe(&ssd).await.unwrap().expect("a cache");
        let of_copy = TestCache::probe(&copy).await.unwrap().expect("a cache");
        assert_eq!((label.generation, of_copy.generation), (opened.generation, opened.generation));
        let refused = open(copy, label.sequence).await.err();
        assert!(matches!(refused, Some(OpenError::BeforeStop { .. })), "{refused:?}");
        open(ssd, label.sequence).await.expect("it opens");
    });
}
