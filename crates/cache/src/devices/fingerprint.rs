//! Recognising an origin that was changed behind the cache's back.
//!
//! The origin carries nothing of ours, so a stop remembers samples of the origin. Samples are the
//! beginnings of the origin and of its partitions, and places spread over the rest. At a beginning, partition
//! tables and file systems keep what every mount changes. Other samples at the next start mean that somebody
//! wrote to the origin.

use voltier_block::{Buf, DriveControl, IoResult, Lba};

use crate::devices::partition_table::partition_starts;

/// Sectors sampled at a beginning: partition table, superblocks of ext4, xfs, btrfs, LVM labels.
const HEAD_SECTORS: u64 = 256;
/// The usual start of a first partition.
const FIRST_PARTITION: u64 = 2048;
/// Samples spread over the rest, of this many sectors each.
const SAMPLE_COUNT: u64 = 64;
const SAMPLE_SECTORS: u64 = 8;

/// A number that changes when the sampled places do. Samples are from the first `sectors` sectors:
/// an origin may have grown since.
pub(crate) async fn fingerprint<O: DriveControl>(origin: &O, sectors: u64) -> IoResult<u64> {
    let mut digest = Digest::of(origin);
    let head = digest.read(0, head_sectors(sectors)).await?;
    let mut starts = partition_starts(&head);
    starts.push(FIRST_PARTITION);
    starts.sort_unstable();
    starts.dedup();
    for start in starts {
        // Whole samples: a partition may begin anywhere.
        let start = start / SAMPLE_SECTORS * SAMPLE_SECTORS;
        if start >= HEAD_SECTORS && start.saturating_add(HEAD_SECTORS) <= sectors {
            digest.read(start, HEAD_SECTORS).await?;
        }
    }
    digest.read_spread(sectors).await?;
    Ok(digest.crc.finalize())
}

fn head_sectors(sectors: u64) -> u64 {
    HEAD_SECTORS.min(sectors) / SAMPLE_SECTORS * SAMPLE_SECTORS
}

/// The checksum over samples of an origin.
struct Digest<'a, O> {
    origin: &'a O,
    crc: crc_fast::Digest,
}

impl<'a, O: DriveControl> Digest<'a, O> {
    fn of(origin: &'a O) -> Self {
        Self { origin, crc: crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme) }
    }

    async fn read(&mut self, start: u64, sectors: u64) -> IoResult<Buf> {
        let sample = self.origin.read(Lba(start), Buf::new(sectors as usize * 512)).await?;
        self.crc.update(&sample);
        Ok(sample)
    }

    async fn read_spread(&mut self, sectors: u64) -> IoResult<()> {
        if sectors > HEAD_SECTORS + SAMPLE_SECTORS {
            let step = (sectors - SAMPLE_SECTORS) / SAMPLE_COUNT;
            for number in 1..=SAMPLE_COUNT {
                let start = number * step / SAMPLE_SECTORS * SAMPLE_SECTORS;
                self.read(start, SAMPLE_SECTORS).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use voltier_block::{BlockDevice, Durability, MIB, SECTOR_BYTES};
    use voltier_drive::MemoryDevice;
    use voltier_ring::{Executor, NoFiles};

    use super::*;

    const ORIGIN_BYTES: u64 = 64 * MIB;
    const SECTORS: u64 = ORIGIN_BYTES / SECTOR_BYTES;

    async fn write(origin: &MemoryDevice, at: u64, bytes: &[u8]) {
        let mut sector = origin.read(Lba(at), Buf::new(512)).await.unwrap();
        sector[..bytes.len()].copy_from_slice(bytes);
        origin.write(Lba(at), sector.into(), Durability::Cached).await.unwrap();
    }

    /// A drive with an MBR that names a partition at 1 MiB and one at 5 MiB and three sectors.
    async fn partitioned() -> MemoryDevice {
        let origin = MemoryDevice::new(ORIGIN_BYTES);
        let mut mbr = [0; 512];
        mbr[510..].copy_from_slice(&[0x55, 0xaa]);
        for (number, start) in [2048_u32, 10_243].into_iter().enumerate() {
            let entry = &mut mbr[446 + number * 16..][..16];
            entry[4] = 0x83;
            entry[8..12].copy_from_slice(&start.to_le_bytes());
        }
        write(&origin, 0, &mbr).await;
        origin
    }

    #[test]
    fn a_mount_of_a_partition_changes_the_fingerprint() {
        Executor::in_virtual_time(NoFiles).block_on(async {
            let origin = partitioned().await;
            let before = fingerprint(&origin, SECTORS).await.unwrap();
            for superblock in [2048 + 2, 10_243 + 2] {
                write(&origin, superblock, b"mounted").await;
                assert_ne!(fingerprint(&origin, SECTORS).await.unwrap(), before);
                write(&origin, superblock, &[0; 7]).await;
            }
            assert_eq!(fingerprint(&origin, SECTORS).await.unwrap(), before);
        });
    }

    #[test]
    fn a_first_partition_is_sampled_without_a_table_too() {
        Executor::in_virtual_time(NoFiles).block_on(async {
            let origin = MemoryDevice::new(ORIGIN_BYTES);
            let before = fingerprint(&origin, SECTORS).await.unwrap();
            write(&origin, 2050, b"mounted").await;
            assert_ne!(fingerprint(&origin, SECTORS).await.unwrap(), before);
        });
    }
}
