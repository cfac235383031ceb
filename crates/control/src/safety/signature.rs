//! The content of a device, by the signatures of file systems and others in known places.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use voltier_array::{
    JOURNAL_MAGIC, MemberLayout, SPARE_MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_MAGIC as ARRAY_MAGIC,
    unsupported_label,
};
use voltier_block::{SECTOR_BYTES, Unsupported};
use voltier_cache::{Label, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSETS};

use super::role::Role;

/// First bytes of a device that are looked at: far enough for the btrfs signature at 64 KiB and 64 bytes in.
pub(super) const LOOK_BYTES: usize = 68 << 10;

/// Something on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    /// Name of the content, with its article.
    pub(super) what: String,
    /// Whether the signature is of a cache or a part of an array of this program.
    pub(super) is_ours: bool,
    /// Whether the signature is of a spare: the label says whose.
    pub(super) is_spare: bool,
    /// Whether the signature is of a cache.
    pub(super) is_cache: bool,
}

impl Content {
    fn ours(what: &str) -> Self {
        Self { what: what.to_owned(), is_ours: true, is_spare: false, is_cache: false }
    }

    fn foreign(what: &str) -> Self {
        Self { is_ours: false, ..Self::ours(what) }
    }
}

/// Signatures known without help: byte offset, bytes, what they mean.
const SIGNATURES: [(usize, &[u8], &str); 16] = [
    (1080, &[0x53, 0xef], "an ext2/3/4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (65_600, b"_BHRfS_M", "a btrfs file system"),
    (4086, b"SWAPSPACE2", "a swap area"),
    (512, b"LABELONE", "an LVM physical volume"),
    (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of an md array"),
    (0, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of an md array"),
    (0, b"LUKS\xba\xbe", "a LUKS volume"),
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (3, b"NTFS    ", "an NTFS file system"),
    (54, b"FAT1", "a FAT file system"),
    (82, b"FAT32", "a FAT file system"),
    (4120, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca], "a bcache device"),
    (1024, &[0xe2, 0xe1, 0xf5, 0xe0], "an EROFS file system"),
    (0, b"hsqs", "a squashfs file system"),
];

/// EnhanceIO's and MaxIO's superblock magic, 0xE10CAC6E, somewhere in the first 4 KiB.
const ENHANCEIO_MAGIC: [u8; 4] = 0xE10C_AC6E_u32.to_le_bytes();

/// Everything recognised on an open device that may count against a role; `path` is for `blkid`, which knows
/// many more signatures of others.
pub(super) fn contents(file: &File, path: &Path, role: Role) -> std::io::Result<Vec<Content>> {
    let mut first = vec![0; LOOK_BYTES];
    let length = read_up_to(file, &mut first, 0)?;
    first.truncate(length);
    let mut found = own_signatures(&first);
    if found.is_empty() {
        found.extend(last_copy(file)?);
    }
    // The label of a spare says nothing of what was put behind it since.
    if role != Role::Origin && found.iter().all(|content| content.is_spare) {
        found.extend(blkid(path));
    }
    Ok(found)
}

/// The part of an array that a superblock or label names. Its first bytes say so, whatever is wrong with
/// the others: it is never taken for free.
fn array_part(block: &[u8]) -> Option<Content> {
    let (what, is_spare) = if block.starts_with(&ARRAY_MAGIC) {
        ("a member of a Voltier array", false)
    } else if block.starts_with(&JOURNAL_MAGIC) {
        ("the journal of a Voltier array", false)
    } else if block.starts_with(&SPARE_MAGIC) {
        ("a spare of Voltier arrays", true)
    } else {
        return None;
    };
    let block = block.get(..SUPERBLOCK_BYTES as usize).unwrap_or(block);
    let what = match unsupported_label(block) {
        Some(why) => unreadable(what, &why),
        None => what.to_owned(),
    };
    Some(Content { is_spare, ..Content::ours(&what) })
}

/// Something of this program that a newer one has written.
fn unreadable(what: &str, why: &Unsupported) -> String {
    format!("{what} that cannot be read ({why})")
}

/// The content that the copy of a superblock at the end names, when the start is overwritten.
fn last_copy(mut file: &File) -> std::io::Result<Option<Content>> {
    let sectors = file.seek(SeekFrom::End(0))? / SECTOR_BYTES;
    let [_, last] = MemberLayout::superblock_lbas(sectors);
    let mut block = vec![0; SUPERBLOCK_BYTES as usize];
    let is_whole = read_up_to(file, &mut block, last.bytes())? == block.len();
    Ok(array_part(&block).filter(|_| is_whole))
}

/// The cache in the first bytes of a device, in words.
fn cache_in(first: &[u8]) -> String {
    let label = match Label::in_head(first) {
        Ok(label) => label,
        Err(why) => return unreadable("a Voltier cache", &why),
    };
    let Some(Label { owner, clean, dirty_lines, .. }) = label else {
        return "a Voltier cache".to_owned();
    };
    let of_volume = match owner.is_recorded() {
        true => format!("of volume {}", owner.volume),
        false => "of a volume that it does not name".to_owned(),
    };
    let dirty = match dirty_lines {
        1 => "1 dirty line".to_owned(),
        count => format!("{count} dirty lines"),
    };
    let since =
        if clean { "" } else { " at its last checkpoint, and has not been stopped cleanly since" };
    format!("a Voltier cache {of_volume} with {dirty}{since}")
}

/// The content that the first bytes of a device, or of an array, show.
pub(super) fn own_signatures(first: &[u8]) -> Vec<Content> {
    let mut found: Vec<Content> = array_part(first).into_iter().collect();
    let ours = |offset: u64| {
        first.get(offset as usize..).is_some_and(|rest| rest.starts_with(&SUPERBLOCK_MAGIC))
    };
    if SUPERBLOCK_OFFSETS.into_iter().any(ours) {
        found.push(Content { is_cache: true, ..Content::ours(&cache_in(first)) });
    }
    for (offset, mark, what) in SIGNATURES {
        if first.get(offset..).is_some_and(|rest| rest.starts_with(mark)) {
            found.push(Content::foreign(what));
        }
    }
    let head = &first[..first.len().min(4096)];
    if head.chunks_exact(4).any(|word| word == ENHANCEIO_MAGIC) {
        found.push(Content::foreign("an EnhanceIO or MaxIO cache, perhaps with unwritten data"));
    }
    let has_partitions = first.get(510..512) == Some(&[0x55, 0xaa])
        && first[446..510].chunks_exact(16).any(|entry| entry[4] != 0);
    if has_partitions && found.is_empty() {
        found.push(Content::foreign("an MBR partition table"));
    }
    found
}

/// Asks `blkid` for what our own table does not know; a machine without it has the table alone.
fn blkid(path: &Path) -> Option<Content> {
    let output = Command::new("blkid")
        .args(["-p", "-o", "export", "--"])
        .arg(path)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    if output.status.code() == Some(8) {
        return Some(Content::foreign("signatures of several file systems"));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map(str::to_owned)
    };
    let what = match (value("TYPE"), value("PTTYPE")) {
        (Some(kind), _) => format!("a {kind} signature"),
        (None, Some(table)) => format!("a {table} partition table"),
        (None, None) => return None,
    };
    Some(Content::foreign(&what))
}

fn read_up_to(file: &File, into: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut length = 0;
    while length < into.len() {
        match file.read_at(&mut into[length..], at + length as u64) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safety::Machine;

    #[test]
    fn every_signature_of_the_table_is_recognised_in_its_place_and_not_one_byte_off() {
        for (offset, mark, what) in SIGNATURES {
            let mut first = vec![0; LOOK_BYTES];
            first[offset..offset + mark.len()].copy_from_slice(mark);
            assert_eq!(own_signatures(&first)[0].what, what);
            let mut shifted = vec![0; LOOK_BYTES];
            shifted[offset + 1..=offset + mark.len()].copy_from_slice(mark);
            assert!(own_signatures(&shifted).iter().all(|content| content.what != what), "{what}");
        }
    }

    #[test]
    fn partition_tables_and_maxio_caches_are_recognised() {
        let mut first = vec![0; 4096];
        first[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(own_signatures(&first), []);
        first[450] = 0x83;
        assert!(own_signatures(&first)[0].what.contains("MBR"));
        let mut first = vec![0; 4096];
        first[300..304].copy_from_slice(&ENHANCEIO_MAGIC);
        assert!(own_signatures(&first)[0].what.contains("MaxIO"));
    }

    #[test]
    fn either_copy_of_our_own_superblock_is_recognised() {
        for offset in SUPERBLOCK_OFFSETS {
            let mut first = vec![0; LOOK_BYTES];
            let at = offset as usize;
            first[at..at + SUPERBLOCK_MAGIC.len()].copy_from_slice(&SUPERBLOCK_MAGIC);
            assert!(own_signatures(&first)[0].is_ours);
        }
    }

    /// A block that begins as one of ours, whole by its checksum if that is asked for.
    fn block(mark: [u8; 8], version: u32, features: u64, is_whole: bool) -> Vec<u8> {
        let mut block = vec![0x5a; 4096];
        block[..8].copy_from_slice(&mark);
        block[8..12].copy_from_slice(&version.to_le_bytes());
        block[12..16].fill(0);
        block[32..40].copy_from_slice(&features.to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&block) ^ u32::from(!is_whole);
        block[12..16].copy_from_slice(&crc.to_le_bytes());
        block
    }

    #[test]
    fn what_is_damaged_or_written_by_a_newer_program_is_still_one_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        let length = 1_u64 << 20;
        let marks = [
            (SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSETS[1]),
            (ARRAY_MAGIC, length - 4096),
            (JOURNAL_MAGIC, length - 4096),
            (SPARE_MAGIC, length - 4096),
        ];
        let newer = "written by a newer Voltier: update this one";
        for (mark, second) in marks {
            for (version, features, is_whole, words) in [
                (1, 0, false, ""),
                (0, 0, true, newer),
                (3, 0, true, newer),
                (1, 1 << 40, true, "feature bit 40 is unknown here"),
            ] {
                for at in [0, second] {
                    let path = dir.path().join("device");
                    let _ = std::fs::remove_file(&path);
                    let file = File::create_new(&path).unwrap();
                    file.set_len(length).unwrap();
                    file.write_all_at(&block(mark, version, features, is_whole), at).unwrap();
                    let role = Role::Cache;
                    let found = &contents(&file, &path, role).unwrap()[0];
                    assert!(found.is_ours && found.what.contains("Voltier"), "{found:?}");
                    assert!(found.what.contains(words), "{found:?}");
                    let examined = crate::safety::examine(&Machine::real(), &path, role).unwrap();
                    let refused = crate::safety::judge(&path, &examined, false).unwrap_err();
                    assert!(refused.message.contains("-f"), "{refused}");
                    assert!(!refused.message.contains('\n'), "{refused}");
                }
            }
        }
    }

    #[test]
    fn a_spare_is_one_of_ours_and_said_to_be_a_spare() {
        let mut first = vec![0; LOOK_BYTES];
        first[..SPARE_MAGIC.len()].copy_from_slice(&SPARE_MAGIC);
        let found = own_signatures(&first);
        assert!(found[0].is_ours && found[0].is_spare && found.len() == 1, "{found:?}");
        first[1080..1082].copy_from_slice(&[0x53, 0xef]);
        assert!(!own_signatures(&first)[1].is_spare);
    }

    #[test]
    fn either_copy_of_a_members_superblock_is_recognised_wherever_the_end_is() {
        let dir = tempfile::tempdir().unwrap();
        for (bytes, last) in [(1 << 20, (1 << 20) - 4096), ((1 << 20) + 4095, (1 << 20) - 4096)] {
            for at in [0, last] {
                let path = dir.path().join(format!("{bytes} {at}"));
                let file = File::create_new(&path).unwrap();
                file.set_len(bytes).unwrap();
                assert_eq!(contents(&file, &path, Role::Cache).unwrap(), []);
                file.write_all_at(&ARRAY_MAGIC, at).unwrap();
                assert_eq!(
                    contents(&file, &path, Role::Cache).unwrap(),
                    array_part(&ARRAY_MAGIC).as_slice(),
                    "{bytes} {at}"
                );
                file.set_len(100).unwrap();
                assert_eq!(
                    contents(&file, &path, Role::Cache).unwrap().len(),
                    usize::from(at == 0)
                );
            }
        }
    }

    #[test]
    fn zeroes_and_short_devices_hold_nothing() {
        for length in [0, 512, 4096, LOOK_BYTES] {
            assert_eq!(own_signatures(&vec![0; length]), []);
        }
    }
}
