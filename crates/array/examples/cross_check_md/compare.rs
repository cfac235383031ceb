//! One case: the same writes through our array, then every byte of every member against md's.

use std::path::Path;

use voltier_array::{Array, Geometry, MemberIndex};
use voltier_block::{BlockDevice, Buf, Durability, Lba, MIB, Prng, SECTOR_BYTES};
use voltier_drive::MemoryDevice;
use voltier_ring::{Executor, Handle, NoFiles};

use crate::cases::{Case, Request, Start};
use crate::md::Superblock;

/// The outcome of a case, for the table.
pub(crate) struct Outcome {
    pub(crate) requests: usize,
    pub(crate) rows: u64,
    /// Bytes compared, parity and copies included.
    pub(crate) bytes: usize,
    /// Of these, parity and copies.
    pub(crate) parity_bytes: usize,
    pub(crate) differing: usize,
    /// Sets of lost members with which md's members were read.
    pub(crate) losses: usize,
}

fn in_sectors(bytes: usize) -> u64 {
    bytes as u64 / SECTOR_BYTES
}

async fn memory_of(content: &[u8]) -> MemoryDevice {
    let device = MemoryDevice::new(content.len() as u64);
    let data = Buf::copy_of(content).into();
    device.write(Lba(0), data, Durability::Cached).await.expect("memory takes it");
    device
}

/// The data areas of md's members.
fn data_of_md(case: &Case, folder: &Path) -> Result<Vec<Vec<u8>>, String> {
    let data = |member: usize| {
        let path = folder.join(format!("member{member}"));
        let mut content =
            std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let superblock = Superblock::of(&content)
            .and_then(|found| found.check(case, member).map(|()| found))
            .map_err(|why| format!("{}: {why}", path.display()))?;
        let chunk = case.chunk_bytes;
        let used = superblock.sectors * SECTOR_BYTES / chunk * chunk;
        // RAID 0 has no size of its own: it takes what is there.
        let there = (content.len() as u64 - superblock.data_offset_bytes) / chunk * chunk;
        let used = if used == 0 { there } else { used };
        content.drain(..superblock.data_offset_bytes as usize);
        content.truncate(used as usize);
        Ok(content)
    };
    (0..case.members).map(data).collect()
}

/// Writes what md held before, in pieces and in no order, so that parity comes from our array.
async fn write_before(array: &Array<MemoryDevice>, before: &[u8]) {
    let pieces = before.len().div_ceil(MIB as usize);
    let mut order: Vec<usize> = (0..pieces).collect();
    let mut dice = Prng::new(pieces as u64);
    for last in (1..pieces).rev() {
        order.swap(last, dice.below(last as u64 + 1) as usize);
    }
    for piece in order {
        let start = piece * MIB as usize;
        let data = Buf::copy_of(&before[start..before.len().min(start + MIB as usize)]);
        let at = Lba(in_sectors(start));
        array.write(at, data.into(), Durability::Cached).await.expect("memory takes it");
    }
}

/// Every set of at most so many of `count` members.
fn sets(count: usize, most: usize) -> Vec<Vec<usize>> {
    let all = (0_u32..1 << count).filter(|set| set.count_ones() as usize <= most);
    all.map(|set| (0..count).filter(|member| set >> member & 1 == 1).collect()).collect()
}

/// Reads md's members through our array, with every set of losses that the level allows.
async fn read_with_losses(
    handle: &Handle,
    geometry: &Geometry,
    md: &[Vec<u8>],
    volume: &[u8],
) -> Result<usize, String> {
    let mut members = Vec::new();
    for content in md {
        members.push(memory_of(content).await);
    }
    let mut read = 0;
    for lost in sets(md.len(), geometry.parity_chunks() * geometry.group_count()) {
        let there = |(member, device): (usize, &MemoryDevice)| {
            (!lost.contains(&member)).then(|| device.clone())
        };
        let members = members.iter().enumerate().map(there).collect();
        // Both copies of the same chunk, say: not a loss that the level allows.
        let Ok(array) = Array::new(handle, geometry.clone(), members) else { continue };
        for (index, expected) in volume.chunks(MIB as usize).enumerate() {
            let at = Lba(in_sectors(index * MIB as usize));
            let found = array.read(at, Buf::new(expected.len())).await;
            let found = found.map_err(|error| format!("a read without {lost:?}: {error}"))?;
            if found[..] != *expected {
                return Err(format!("without members {lost:?} md's data are read wrongly"));
            }
        }
        read += 1;
    }
    Ok(read)
}

fn apply(volume: &mut [u8], request: Request) {
    let data = request.data();
    volume[request.offset_bytes as usize..][..data.len()].copy_from_slice(&data);
}

/// Bytes that differ, and where the first is.
fn differences(ours: &[u8], md: &[u8]) -> (usize, Option<usize>) {
    let differ = ours.iter().zip(md).enumerate().filter(|(_, (ours, md))| ours != md);
    differ.fold((0, None), |(count, first), (at, _)| (count + 1, first.or(Some(at))))
}

/// Compares the case whose members are in this folder.
pub(crate) fn compare(case: &Case, folder: &Path) -> Result<Outcome, String> {
    let md = data_of_md(case, folder)?;
    let sectors = in_sectors(md.iter().map(Vec::len).min().unwrap_or(0));
    let geometry = Geometry::new(case.level, case.layout, case.members, case.chunk_bytes, sectors)
        .map_err(|error| error.to_string())?;
    let before = match case.start {
        Start::AssumeClean => vec![0; (geometry.sectors() * SECTOR_BYTES) as usize],
        Start::Resync => std::fs::read(folder.join("before")).map_err(|error| error.to_string())?,
    };
    if in_sectors(before.len()) != geometry.sectors() {
        return Err(format!("md's volume has {} bytes, ours another size", before.len()));
    }
    let mut executor = Executor::in_virtual_time(NoFiles);
    let handle = executor.handle();
    let case = case.clone();
    executor.block_on(async move {
        let members: Vec<_> =
            (0..case.members).map(|_| MemoryDevice::new(sectors * SECTOR_BYTES)).collect();
        let array =
            Array::new(&handle, geometry.clone(), members.iter().cloned().map(Some).collect())
                .map_err(|error| error.to_string())?;
        let mut volume = before;
        if case.start == Start::Resync {
            write_before(&array, &volume).await;
        }
        let requests = case.requests(geometry.data_chunks(), volume.len() as u64);
        for request in requests.iter().copied() {
            apply(&mut volume, request);
            let at = Lba(in_sectors(request.offset_bytes as usize));
            let data = Buf::copy_of(&request.data()).into();
            array.write(at, data, Durability::Cached).await.expect("memory takes it");
        }
        let mut differing = 0;
        for (number, (member, md)) in members.iter().zip(&md).enumerate() {
            let ours = member.read(Lba(0), Buf::new(md.len())).await.expect("memory gives it");
            let (count, first) = differences(&ours, md);
            differing += count;
            if let Some(at) = first {
                let place = geometry.member_place(MemberIndex(number), Lba(in_sectors(at)));
                eprintln!("{case}: member {number} differs from byte {at} on: {place:?}");
            }
        }
        let losses = read_with_losses(&handle, &geometry, &md, &volume).await?;
        let bytes = md.iter().map(Vec::len).sum();
        let rows = geometry.stripe_count() / geometry.group_count() as u64;
        let parity_bytes = bytes / geometry.width() * geometry.parity_chunks();
        Ok(Outcome { requests: requests.len(), rows, bytes, parity_bytes, differing, losses })
    })
}

/// Whether the comparison can fail at all: one flipped bit must be seen.
pub(crate) fn notices_a_flipped_bit(case: &Case, folder: &Path) -> Result<bool, String> {
    let md = data_of_md(case, folder)?;
    let mut changed = md[0].clone();
    changed[md[0].len() / 2] ^= 0x10;
    Ok(differences(&changed, &md[0]) == (1, Some(md[0].len() / 2)))
}
