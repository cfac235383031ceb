//! The content of modelled drives: as little as the load needs.

use std::cell::RefCell;
use std::collections::BTreeMap;

use voltier_block::{
    BlockDevice, Buf, Durability, InMemory, IoResult, Lba, Limits, Payload, SECTOR_BYTES,
    SectorRange,
};

/// Sectors of a page.
const PAGE_SECTORS: u64 = 8;
const PAGE_BYTES: usize = 4096;

/// Keeps pages of 4 KiB that are not all zeroes. Loads of zeroes so cost the memory of what an
/// engine writes for itself, however large the drive is.
pub(crate) struct ZeroesAside {
    limits: Limits,
    pages: RefCell<BTreeMap<u64, Box<[u8; PAGE_BYTES]>>>,
}

impl ZeroesAside {
    /// A store of `bytes` bytes, all zero, in blocks of 4 KiB.
    pub(crate) fn new(bytes: u64) -> Self {
        let whole = bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let limits = Limits { block_bytes: PAGE_BYTES as u32, ..Limits::plain(whole) };
        Self { limits, pages: RefCell::default() }
    }

    fn zero(&self, range: SectorRange) {
        let (first, end) = (range.start.0 / PAGE_SECTORS, range.end().0.div_ceil(PAGE_SECTORS));
        let mut pages = self.pages.borrow_mut();
        let known: Vec<u64> = pages.range(first..end).map(|(page, _)| *page).collect();
        for page in known {
            pages.remove(&page);
        }
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(64).all(|part| part.iter().fold(0, |all, byte| all | byte) == 0)
}

impl BlockDevice for ZeroesAside {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    async fn read(&self, at: Lba, mut into: Buf) -> IoResult<Buf> {
        into.fill(0);
        let first = at.0 / PAGE_SECTORS;
        let count = into.len() as u64 / PAGE_BYTES as u64;
        for (page, bytes) in self.pages.borrow().range(first..first + count) {
            let place = (page - first) as usize * PAGE_BYTES;
            into[place..place + PAGE_BYTES].copy_from_slice(&**bytes);
        }
        Ok(into)
    }

    async fn write(&self, at: Lba, data: Payload, _durability: Durability) -> IoResult<()> {
        let sectors = data.len() as u64 / SECTOR_BYTES;
        self.zero(SectorRange::new(at, sectors));
        let mut pages = self.pages.borrow_mut();
        let mut offset = at.bytes() as usize;
        for piece in data.pieces() {
            let mut rest: &[u8] = piece;
            while !rest.is_empty() {
                let (page, inside) = (offset / PAGE_BYTES, offset % PAGE_BYTES);
                let (part, behind) = rest.split_at(rest.len().min(PAGE_BYTES - inside));
                if !is_zero(part) {
                    let kept =
                        pages.entry(page as u64).or_insert_with(|| Box::new([0; PAGE_BYTES]));
                    kept[inside..inside + part.len()].copy_from_slice(part);
                }
                offset += part.len();
                rest = behind;
            }
        }
        Ok(())
    }

    async fn flush(&self) -> IoResult<()> {
        Ok(())
    }

    async fn discard(&self, range: SectorRange) -> IoResult<()> {
        self.zero(range);
        Ok(())
    }

    async fn write_zeroes(&self, range: SectorRange, _durability: Durability) -> IoResult<()> {
        self.zero(range);
        Ok(())
    }
}

impl InMemory for ZeroesAside {}

#[cfg(test)]
mod tests {
    use super::*;
    use voltier_block::{Bytes, GIB};
    use voltier_ring::{Executor, NoFiles};

    #[test]
    fn what_is_not_zero_comes_back_and_zeroes_take_no_room() {
        Executor::in_virtual_time(NoFiles).block_on(async move {
            let store = ZeroesAside::new(1000 * GIB);
            let mut bytes = vec![0; 16384];
            bytes[5000..5004].fill(7);
            let pieces = vec![Bytes::copy_of(&bytes[..4608]), Bytes::copy_of(&bytes[4608..])];
            store.write(Lba(80), Payload::Many(pieces), Durability::Cached).await.unwrap();
            assert_eq!(store.pages.borrow().len(), 1);
            let read = store.read(Lba(80), Buf::new(16384)).await.unwrap();
            assert!(read[..] == bytes[..]);
            let zeroes = Bytes::copy_of(&[0; 8192]);
            store.write(Lba(88), zeroes.into(), Durability::Cached).await.unwrap();
            assert!(store.pages.borrow().is_empty());
        });
    }
}
