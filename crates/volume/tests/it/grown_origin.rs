//! Goal: a volume with a cache comes back before an origin that has become larger, with its size and its
//! data. Method: the content of the origin is copied to a larger one between two lives, after a stop and
//! after a kill.

use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, Durability, IoError, KIB, Lba, MIB};
use voltier_cache::policy::PolicyKind;
use voltier_cache::{FormatOptions, LineSize, Mode, OpenOptions, Settings};
use voltier_drive::MemoryDevice;
use voltier_ring::{Executor, Handle, NoFiles};
use voltier_volume::Volume;

const ORIGIN_BYTES: u64 = 32 * MIB;
const BLOCK_BYTES: u64 = 4 * KIB;

type Drive = Rc<MemoryDevice>;

fn drive(bytes: u64) -> Drive {
    Rc::new(MemoryDevice::new(bytes))
}

fn options() -> OpenOptions {
    OpenOptions::with(Settings { mode: Mode::WriteBack, ..Settings::default() })
}

/// A drive of another size with the same content, as far as both have it.
async fn resized(origin: &Drive, bytes: u64) -> Drive {
    let other = drive(bytes);
    for at in (0..bytes.min(ORIGIN_BYTES)).step_by(MIB as usize).map(Lba::from_bytes) {
        let content = origin.read(at, Buf::new(MIB as usize)).await.unwrap();
        other.write(at, content.into(), Durability::Cached).await.unwrap();
    }
    other
}

async fn write(volume: &Volume<Drive>, at_bytes: u64, byte: u8) {
    let data = Buf::copy_of(&[byte; BLOCK_BYTES as usize]);
    volume.write(Lba::from_bytes(at_bytes), data.into(), Durability::Cached).await.unwrap();
}

async fn read(volume: &Volume<Drive>, at_bytes: u64) -> Result<u8, IoError> {
    let read = volume.read(Lba::from_bytes(at_bytes), Buf::new(BLOCK_BYTES as usize)).await?;
    assert!(read.iter().all(|byte| *byte == read[0]));
    Ok(read[0])
}

/// A volume in write-back with its last block dirty, and its two drives.
async fn first_life(handle: &Handle) -> (Volume<Drive>, Drive, Drive) {
    let (ssd, origin) = (drive(16 * MIB), drive(ORIGIN_BYTES));
    let volume = Volume::plain(handle, origin.clone());
    let format =
        FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [5; 16] };
    volume.attach_new(ssd.clone(), &format, options()).await.unwrap();
    write(&volume, ORIGIN_BYTES - BLOCK_BYTES, 7).await;
    volume.flush().await.unwrap();
    (volume, ssd, origin)
}

#[test]
fn a_volume_keeps_its_size_and_its_data_before_an_origin_that_has_grown() {
    for is_stopped in [true, false] {
        let mut executor = Executor::in_virtual_time(NoFiles);
        let handle = executor.handle();
        executor.block_on(async move {
            let (volume, ssd, origin) = first_life(&handle).await;
            if is_stopped {
                volume.stop().await.unwrap();
            } else {
                volume.cache().unwrap().kill();
            }
            let grown = resized(&origin, ORIGIN_BYTES + 8 * MIB).await;
            let volume = Volume::plain(&handle, grown.clone());
            let opened = volume.attach_existing(ssd, options()).await.unwrap();
            assert!(!opened.origin_changed, "{opened:?}");
            assert_eq!(volume.limits().bytes(), ORIGIN_BYTES);
            assert_eq!(volume.status().size_bytes, ORIGIN_BYTES);
            assert_eq!(read(&volume, ORIGIN_BYTES - BLOCK_BYTES).await, Ok(7));
            assert_eq!(read(&volume, ORIGIN_BYTES).await, Err(IoError::OutOfRange));
            volume.detach(true).await.unwrap();
            assert_eq!(volume.limits().bytes(), ORIGIN_BYTES, "clients know that size");
            assert_eq!(read(&volume, ORIGIN_BYTES - BLOCK_BYTES).await, Ok(7));
            volume.stop().await.unwrap();
            let volume = Volume::plain(&handle, grown);
            assert_eq!(volume.limits().bytes(), ORIGIN_BYTES + 8 * MIB);
        });
    }
}

#[test]
fn an_origin_that_has_become_smaller_is_refused() {
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    executor.block_on(async move {
        let (volume, ssd, origin) = first_life(&handle).await;
        volume.stop().await.unwrap();
        let volume = Volume::plain(&handle, resized(&origin, ORIGIN_BYTES - MIB).await);
        let error = volume.attach_existing(ssd, options()).await.unwrap_err().to_string();
        let sizes = "has 32505856 bytes, and the cache on the SSD is for one of 33554432";
        assert!(error.contains(sizes), "{error}");
    });
}
