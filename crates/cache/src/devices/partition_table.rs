//! Where partitions begin on an origin, as far as a partition table in its first blocks says.
//!
//! Nothing is trusted: the starts only choose places that a fingerprint samples. Sources: UEFI 2.10, section
//! 5.3 (GPT); the four primary entries of an MBR.

use std::ops::Range;

/// Bytes of a sector that is counted in.
const SECTOR_BYTES: u64 = 512;
/// Partitions that are sampled at most.
const PARTITIONS_MAX: usize = 128;

const MBR_SIGNATURE: (usize, [u8; 2]) = (510, [0x55, 0xaa]);
const MBR_ENTRIES: usize = 446;
const MBR_ENTRY_BYTES: usize = 16;
const MBR_ENTRY_COUNT: usize = 4;
/// The type of the entry that keeps others off a disk with a GPT.
const GPT_PROTECTIVE: u8 = 0xee;

const GPT_SIGNATURE: &[u8] = b"EFI PART";

fn u32_at(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(field.try_into().ok()?).into())
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(field.try_into().ok()?))
}

/// The first sectors of the partitions that a table in `head`, the beginning of a drive, names.
pub(crate) fn partition_starts(head: &[u8]) -> Vec<u64> {
    for block_bytes in [512, 4096] {
        if let Some(starts) = gpt_starts(head, block_bytes) {
            return starts;
        }
    }
    mbr_starts(head).unwrap_or_default()
}

fn gpt_starts(head: &[u8], block_bytes: usize) -> Option<Vec<u64>> {
    let header = head.get(block_bytes..)?;
    if !header.starts_with(GPT_SIGNATURE) {
        return None;
    }
    let (table, count) = (u64_at(header, 72)?, u32_at(header, 80)?);
    let entry_bytes = usize::try_from(u32_at(header, 84)?).ok()?;
    let table = usize::try_from(table).ok()?.checked_mul(block_bytes)?;
    if !(128..=4096).contains(&entry_bytes) {
        return None;
    }
    let count = usize::try_from(count).ok()?.min(PARTITIONS_MAX);
    let entries = head.get(table..)?.chunks_exact(entry_bytes).take(count);
    let used = entries.filter(|entry| entry[..16] != [0; 16]);
    let starts = used.filter_map(|entry| u64_at(entry, 32));
    Some(starts.map(|block| block.saturating_mul(block_bytes as u64 / SECTOR_BYTES)).collect())
}

fn mbr_starts(head: &[u8]) -> Option<Vec<u64>> {
    let (at, signature) = MBR_SIGNATURE;
    if head.get(at..at + signature.len())? != signature {
        return None;
    }
    let entries: Range<usize> = MBR_ENTRIES..MBR_ENTRIES + MBR_ENTRY_COUNT * MBR_ENTRY_BYTES;
    let entries = head.get(entries)?.chunks_exact(MBR_ENTRY_BYTES);
    let used = entries.filter(|entry| entry[4] != 0 && entry[4] != GPT_PROTECTIVE);
    Some(used.filter_map(|entry| u32_at(entry, 8)).filter(|start| *start > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpt(block_bytes: usize, starts: &[u64]) -> Vec<u8> {
        let mut head = vec![0; 128 << 10];
        head[510..512].copy_from_slice(&[0x55, 0xaa]);
        head[446 + 4] = GPT_PROTECTIVE;
        head[446 + 8] = 1;
        let header = &mut head[block_bytes..];
        header[..8].copy_from_slice(GPT_SIGNATURE);
        header[72..80].copy_from_slice(&2_u64.to_le_bytes());
        header[80..84].copy_from_slice(&128_u32.to_le_bytes());
        header[84..88].copy_from_slice(&128_u32.to_le_bytes());
        for (number, start) in starts.iter().enumerate() {
            let entry = &mut head[2 * block_bytes + number * 128..][..128];
            entry[..16].fill(7);
            entry[32..40].copy_from_slice(&start.to_le_bytes());
        }
        head
    }

    #[test]
    fn starts_of_a_gpt_of_either_block_are_counted_in_sectors() {
        assert_eq!(partition_starts(&gpt(512, &[2048, 1 << 20])), [2048, 1 << 20]);
        assert_eq!(partition_starts(&gpt(4096, &[256, 1 << 20])), [2048, 8 << 20]);
    }

    #[test]
    fn starts_of_an_mbr_are_those_of_its_entries_in_use() {
        let mut head = vec![0; 4096];
        head[510..512].copy_from_slice(&[0x55, 0xaa]);
        for (number, (kind, start)) in [(0x83, 63_u32), (0, 99), (0x8e, 4096)].iter().enumerate() {
            let entry = &mut head[446 + number * 16..][..16];
            entry[4] = *kind;
            entry[8..12].copy_from_slice(&start.to_le_bytes());
        }
        assert_eq!(partition_starts(&head), [63, 4096]);
    }

    #[test]
    fn a_head_without_a_table_or_with_a_broken_one_names_none() {
        assert_eq!(partition_starts(&[]), []);
        assert_eq!(partition_starts(&[0xff; 4096]), []);
        let mut broken = gpt(512, &[2048]);
        broken[512 + 72..512 + 80].fill(0xff);
        assert_eq!(partition_starts(&broken), []);
        let mut broken = gpt(512, &[u64::MAX]);
        broken[512 + 84..512 + 88].fill(0);
        assert_eq!(partition_starts(&broken), []);
    }
}
