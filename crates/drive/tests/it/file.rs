//! Opening a file: the facts found out, and the refusals.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use voltier_block::{
    BlockDevice, Buf, Bytes, Durability, IoError, Lba, MIB, Payload, SECTOR_BYTES, SectorRange,
};
use voltier_drive::{FileDevice, FileOptions, OpenError};
use voltier_ring::{Executor, Handle};

fn folder() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn file_of(folder: &TempDir, bytes: u64) -> PathBuf {
    let path = folder.path().join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

fn with_ring<F: Future<Output = ()>>(body: impl FnOnce(Handle) -> F + 'static) {
    let mut executor = Executor::real().unwrap();
    let handle = executor.handle();
    executor.block_on(async move { body(handle).await });
}

fn refusal(handle: &Handle, path: &Path, options: &FileOptions) -> OpenError {
    let Err(error) = FileDevice::open(handle, path, options) else {
        panic!("{} was opened", path.display());
    };
    let message = error.to_string();
    assert!(!message.contains('\n') && message.contains(path.to_str().unwrap()), "{message}");
    println!("{message}");
    error
}

#[test]
fn what_cannot_be_a_drive_is_refused_with_one_line_of_advice() {
    let folder = folder();
    let (tiny, path) = (file_of(&folder, 511), folder.path().to_owned());
    with_ring(async move |handle| {
        let options = FileOptions::default();
        let missing = refusal(&handle, &path.join("nothing"), &options);
        assert!(matches!(missing, OpenError::Missing(_)));
        let directory = refusal(&handle, &path, &options);
        assert!(matches!(directory, OpenError::NotADrive { kind: "directory", .. }));
        let null = refusal(&handle, Path::new("/dev/null"), &options);
        assert!(matches!(null, OpenError::NotADrive { kind: "character device", .. }));
        let small = refusal(&handle, &tiny, &options);
        assert!(matches!(small, OpenError::TooSmall { bytes: 511, .. }));
        let odd = FileOptions { block_bytes: Some(1000), ..options };
        assert!(matches!(refusal(&handle, &tiny, &odd), OpenError::BlockSize { .. }));
    });
}

#[test]
fn a_file_has_one_writer_or_many_readers() {
    let folder = folder();
    let path = file_of(&folder, MIB);
    with_ring(async move |handle| {
        let write = FileOptions::default();
        let read = FileOptions { read_only: true, ..FileOptions::default() };
        let writer = FileDevice::open(&handle, &path, &write).unwrap();
        assert!(matches!(refusal(&handle, &path, &write), OpenError::Locked(_)));
        assert!(matches!(refusal(&handle, &path, &read), OpenError::Locked(_)));
        drop(writer);
        let _first = FileDevice::open(&handle, &path, &read).unwrap();
        let _second = FileDevice::open(&handle, &path, &read).unwrap();
        assert!(matches!(refusal(&handle, &path, &write), OpenError::Locked(_)));
    });
}

#[test]
fn the_trailing_part_of_a_block_is_not_used_and_not_touched() {
    let folder = folder();
    let path = file_of(&folder, 0);
    std::fs::write(&path, vec![0xee; MIB as usize + 700]).unwrap();
    let seen = path.clone();
    with_ring(async move |handle| {
        let device = FileDevice::open(&handle, &path, &FileOptions::default()).unwrap();
        let facts = device.facts().unwrap();
        let tail = MIB + 700 - device.limits().bytes();
        assert!(!facts.is_block_device && facts.unused_tail_bytes == tail);
        assert!(tail < u64::from(device.limits().block_bytes));
        let all = SectorRange::new(Lba(0), device.limits().sectors);
        device.write_zeroes(all, Durability::Durable).await.unwrap();
        device.discard(all).await.unwrap();
    });
    let content = std::fs::read(&seen).unwrap();
    let zeroes = content.iter().take_while(|&&byte| byte == 0).count();
    assert!(content.len() - zeroes >= 188 && content[zeroes..].iter().all(|&byte| byte == 0xee));
}

#[test]
fn zeroes_give_the_space_of_a_file_up() {
    let folder = folder();
    let path = file_of(&folder, 8 * MIB);
    let blocks = |path: &Path| std::fs::metadata(path).unwrap().blocks();
    let seen = path.clone();
    with_ring(async move |handle| {
        let device = FileDevice::open(&handle, &path, &FileOptions::default()).unwrap();
        assert!(device.limits().cheap_zeroes);
        let pieces = vec![Bytes::copy_of(&vec![5; 4 << 20])];
        device.write(Lba(0), Payload::Many(pieces), Durability::Durable).await.unwrap();
        let full = blocks(&path);
        let zeroes = SectorRange::from_bytes(0, 3 * MIB);
        device.write_zeroes(zeroes, Durability::Durable).await.unwrap();
        assert!(blocks(&path) + 5000 < full, "{full} blocks, and {} after it", blocks(&path));
    });
    let content = std::fs::read(&seen).unwrap();
    let zeroes = content.iter().take_while(|byte| **byte == 0).count() as u64;
    assert_eq!((zeroes, content[4 << 20]), (3 * MIB, 0));
}

#[test]
fn zeroes_keep_the_space_of_a_file_that_has_all_of_it_and_discards_give_it_up() {
    let folder = folder();
    let path = file_of(&folder, 0);
    std::fs::write(&path, vec![5; 4 << 20]).unwrap();
    let blocks = |path: &Path| std::fs::metadata(path).unwrap().blocks();
    let seen = path.clone();
    with_ring(async move |handle| {
        let device = FileDevice::open(&handle, &path, &FileOptions::default()).unwrap();
        let full = blocks(&path);
        device
            .write_zeroes(SectorRange::from_bytes(0, 2 * MIB), Durability::Durable)
            .await
            .unwrap();
        assert!(blocks(&path) >= full, "{full} blocks, and {} after it", blocks(&path));
        device.discard(SectorRange::from_bytes(MIB, MIB)).await.unwrap();
        device.flush().await.unwrap();
        assert!(blocks(&path) + 1500 < full, "{full} blocks, and {} after it", blocks(&path));
    });
    let content = std::fs::read(&seen).unwrap();
    assert!(content[..2 << 20].iter().all(|byte| *byte == 0));
    assert!(content[2 << 20..].iter().all(|byte| *byte == 5));
}

#[test]
fn zeroes_in_place_are_not_written_and_keep_the_space_of_a_sparse_file() {
    let folder = folder();
    let path = file_of(&folder, 64 * MIB);
    let blocks = |path: &Path| std::fs::metadata(path).unwrap().blocks();
    let seen = path.clone();
    with_ring(async move |handle| {
        let device = FileDevice::open(&handle, &path, &FileOptions::default()).unwrap();
        let pieces = vec![Bytes::copy_of(&vec![5; 4 << 20])];
        device.write(Lba(0), Payload::Many(pieces), Durability::Durable).await.unwrap();
        let full = blocks(&path);
        let zeroes = SectorRange::from_bytes(MIB, 2 * MIB);
        match device.zero_in_place(zeroes, Durability::Durable).await {
            Ok(()) => assert!(blocks(&path) >= full, "{full} blocks, then {}", blocks(&path)),
            // Not every file system has such zeroes, and what was there stays then.
            Err(IoError::Unsupported) => {
                device.write_zeroes(zeroes, Durability::Durable).await.unwrap();
            }
            Err(error) => panic!("{error}"),
        }
        let beyond = SectorRange::from_bytes(63 * MIB, 2 * MIB);
        let refused = device.zero_in_place(beyond, Durability::Cached).await;
        assert_eq!(refused, Err(IoError::OutOfRange));
    });
    let content = std::fs::read(&seen).unwrap();
    let is =
        |from: usize, to: usize, byte| content[from << 20..to << 20].iter().all(|it| *it == byte);
    assert!(is(0, 1, 5) && is(1, 3, 0) && is(3, 4, 5) && is(4, 64, 0));
}

#[test]
fn what_is_written_is_in_the_file_and_survives_a_reopening() {
    let folder = folder();
    let path = file_of(&folder, MIB);
    let seen = path.clone();
    with_ring(async move |handle| {
        let options = FileOptions::default();
        let at = Lba(64);
        let device = FileDevice::open(&handle, &path, &options).unwrap();
        let pieces: Vec<Bytes> = (0..3).map(|value| Bytes::copy_of(&[value + 1; 4096])).collect();
        device.write(at, Payload::Many(pieces), Durability::Durable).await.unwrap();
        drop(device);
        let device = FileDevice::open(&handle, &path, &options).unwrap();
        let read = device.read(at, Buf::new(3 * 4096)).await.unwrap();
        assert_eq!((read[0], read[4096], read[3 * 4096 - 1]), (1, 2, 3));
    });
    let content = std::fs::read(&seen).unwrap();
    let start = 64 * SECTOR_BYTES as usize;
    assert_eq!((content[start - 1], content[start], content[start + 4096]), (0, 1, 2));
}

#[test]
fn a_payload_of_more_pieces_than_the_kernel_takes_is_written_whole() {
    let folder = folder();
    let path = file_of(&folder, 4 * MIB);
    with_ring(async move |handle| {
        let options = FileOptions { buffered: true, ..FileOptions::default() };
        let device = FileDevice::open(&handle, &path, &options).unwrap();
        let pieces: Vec<Bytes> =
            (0..3000).map(|index| Bytes::copy_of(&[(index % 251) as u8; 512])).collect();
        device.write(Lba(0), Payload::Many(pieces), Durability::Cached).await.unwrap();
        let read = device.read(Lba(0), Buf::new(3000 * 512)).await.unwrap();
        for (index, sector) in read.chunks(512).enumerate() {
            assert!(sector.iter().all(|&byte| usize::from(byte) == index % 251), "{index}");
        }
    });
}

#[test]
fn a_file_that_became_shorter_fails_reads_instead_of_inventing_data() {
    let folder = folder();
    let path = file_of(&folder, MIB);
    with_ring(async move |handle| {
        let device = FileDevice::open(&handle, &path, &FileOptions::default()).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(MIB / 2).unwrap();
        let behind = device.read(Lba::from_bytes(MIB / 2), Buf::new(4096)).await;
        assert_eq!(behind.unwrap_err(), IoError::Medium);
        let across = device.read(Lba::from_bytes(MIB / 2 - 4096), Buf::new(8192)).await;
        assert_eq!(across.unwrap_err(), IoError::Medium);
    });
}
