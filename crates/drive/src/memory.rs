//! A device in memory, sparse: what was never written takes no room and reads as zeroes.

use std::cell::RefCell;
use std::rc::Rc;

use voltier_block::{
    BlockDevice, Buf, Durability, InMemory, IoResult, Lba, Limits, MIB, Payload, SECTOR_BYTES,
    SectorRange, copy_past_caches,
};

/// Memory comes in pieces of this size: a huge page each, and few enough to keep in one vector.
const CHUNK_BYTES: usize = 2 * MIB as usize;

/// Writes from this size on go past the processor's caches: logs and whole chunks are not read again soon.
/// An array's reads before a write are smaller, and their memory is in the processor's caches.
const PAST_CACHES_BYTES: usize = 16 << 10;

struct Memory {
    limits: Limits,
    /// Grows to the last chunk that was written.
    chunks: RefCell<Vec<Option<Buf>>>,
}

/// A device whose content lives as long as one of its clones. A test may drop a stack and build another
/// one over the same content.
///
/// Nothing is volatile here, so every write is durable at once.
#[derive(Clone)]
pub struct MemoryDevice(Rc<Memory>);

impl MemoryDevice {
    /// A device of `bytes` zero bytes with 512-byte blocks; a trailing part of a block is not used.
    pub fn new(bytes: u64) -> Self {
        Self::with_block_bytes(bytes, 512)
    }

    /// The same with blocks of `block_bytes` bytes: 512 or 4096.
    pub fn with_block_bytes(bytes: u64, block_bytes: u32) -> Self {
        assert!(matches!(block_bytes, 512 | 4096), "blocks have 512 or 4096 bytes");
        let whole_blocks = bytes - bytes % u64::from(block_bytes);
        let limits = Limits { block_bytes, ..Limits::plain(whole_blocks) };
        Self(Rc::new(Memory { limits, chunks: RefCell::new(Vec::new()) }))
    }

    /// Bytes of memory in use for content.
    pub fn allocated_bytes(&self) -> u64 {
        let chunks = self.0.chunks.borrow();
        (chunks.iter().flatten().count() * CHUNK_BYTES) as u64
    }

    fn zero(&self, range: SectorRange) {
        let mut chunks = self.0.chunks.borrow_mut();
        for (chunk, inside) in pieces(range.start.bytes(), range.bytes()) {
            let Some(place) = chunks.get_mut(chunk) else { return };
            if inside.len() == CHUNK_BYTES {
                *place = None;
            } else if let Some(bytes) = place {
                bytes[inside].fill(0);
            }
        }
    }
}

/// The chunks under a run of bytes, and the part of each.
fn pieces(offset: u64, bytes: u64) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let (mut at, end) = (offset as usize, (offset + bytes) as usize);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (chunk, start) = (at / CHUNK_BYTES, at % CHUNK_BYTES);
        let taken = (CHUNK_BYTES - start).min(end - at);
        at += taken;
        Some((chunk, start..start + taken))
    })
}

impl BlockDevice for MemoryDevice {
    fn limits(&self) -> &Limits {
        &self.0.limits
    }

    async fn read(&self, at: Lba, mut into: Buf) -> IoResult<Buf> {
        let range = self.0.limits.checked_transfer(at, into.len())?;
        let chunks = self.0.chunks.borrow();
        let mut filled = 0;
        for (chunk, inside) in pieces(at.bytes(), range.bytes()) {
            let target = &mut into[filled..filled + inside.len()];
            filled += inside.len();
            match chunks.get(chunk) {
                Some(Some(bytes)) => target.copy_from_slice(&bytes[inside]),
                _ => target.fill(0),
            }
        }
        drop(chunks);
        Ok(into)
    }

    async fn read_vectored(&self, mut at: Lba, into: Vec<Buf>) -> IoResult<Vec<Buf>> {
        self.0.limits.checked_transfer(at, into.iter().map(|buf| buf.len()).sum())?;
        let mut filled = Vec::with_capacity(into.len());
        for buf in into {
            let next = at.plus(buf.len() as u64 / SECTOR_BYTES);
            filled.push(self.read(at, buf).await?);
            at = next;
        }
        Ok(filled)
    }

    async fn write(&self, at: Lba, data: Payload, _durability: Durability) -> IoResult<()> {
        self.0.limits.checked_write(at, &data)?;
        let copy =
            if data.len() < PAST_CACHES_BYTES { <[u8]>::copy_from_slice } else { copy_past_caches };
        let mut chunks = self.0.chunks.borrow_mut();
        let mut offset = at.bytes();
        for piece in data.pieces() {
            let mut taken = 0;
            for (chunk, inside) in pieces(offset, piece.len() as u64) {
                if chunks.len() <= chunk {
                    chunks.resize_with(chunk + 1, || None);
                }
                let bytes = chunks[chunk].get_or_insert_with(|| Buf::zeroed(CHUNK_BYTES));
                let source = &piece[taken..taken + inside.len()];
                taken += source.len();
                copy(&mut bytes[inside], source);
            }
            offset += piece.len() as u64;
        }
        Ok(())
    }

    async fn flush(&self) -> IoResult<()> {
        Ok(())
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.zero(self.0.limits.checked_change(range)?);
        Ok(())
    }

    async fn write_zeroes(&self, range: SectorRange, _durability: Durability) -> IoResult<()> {
        self.zero(self.0.limits.checked_change(range)?);
        Ok(())
    }
}

impl InMemory for MemoryDevice {}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_block::{Bytes, GIB};
    use voltier_ring::{Executor, NoFiles};

    #[test]
    fn only_what_was_written_takes_memory_and_a_discard_gives_it_back() {
        let device = MemoryDevice::new(2048 * GIB);
        let same = device.clone();
        Executor::in_virtual_time(NoFiles).block_on(async move {
            let at = Lba::from_bytes(100 * GIB - 4096);
            let data = Payload::from(Bytes::copy_of(&[7; 8192]));
            device.write(at, data, Durability::Cached).await.unwrap();
            assert_eq!(device.allocated_bytes(), 2 * CHUNK_BYTES as u64);
            let chunk = SectorRange::from_bytes(100 * GIB, CHUNK_BYTES as u64);
            device.discard(chunk).await.unwrap();
            assert_eq!(device.allocated_bytes(), CHUNK_BYTES as u64);
            let read = device.read(at, Buf::new(8192)).await.unwrap();
            assert!(read[..4096].iter().all(|&byte| byte == 7));
            assert!(read[4096..].iter().all(|&byte| byte == 0));
        });
        assert_eq!(same.allocated_bytes(), CHUNK_BYTES as u64);
    }
}
