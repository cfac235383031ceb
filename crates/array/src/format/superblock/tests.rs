//! Superblocks are read as they were written, and nothing else is read.

use super::*;
use voltier_block::{MIB, Prng, Unsupported};

#[test]
fn the_codes_of_consistencies_stay_what_they_are() {
    let codes = [Consistency::Journal, Consistency::Bitmap, Consistency::None];
    assert_eq!(Consistency::ALL, codes, "1 to 3: a new one goes to the end");
}

fn superblock(level: Level, members: usize, chunk_bytes: u64) -> Superblock {
    superblock_with(level, members, chunk_bytes, Integrity::None)
}

fn superblock_with(
    level: Level,
    members: usize,
    chunk_bytes: u64,
    integrity: Integrity,
) -> Superblock {
    let device_sectors = 64 * MIB / SECTOR_BYTES + 13;
    let places = MemberLayout::plan(device_sectors, chunk_bytes, 8 * MIB, integrity).expect("room");
    let layout = Layout::LeftSymmetric;
    let geometry = Geometry::new(level, layout, members, chunk_bytes, places.data.count);
    let member = |number| MemberRecord {
        uuid: [number as u8; 16],
        state: MemberState::ALL[number % 4],
        since_event: number as u64,
    };
    let array = ArrayRecord {
        uuid: [0xab; 16],
        name: "räume".to_owned(),
        geometry: geometry.expect("possible"),
        places,
        consistency: Consistency::Bitmap,
        event: 77,
        usage: Usage::InUse,
        members: (0..members).map(member).collect(),
        journal_device: None,
        needs_resync: false,
        reshape: None,
    };
    Superblock { array, member: MemberIndex(members - 1), device_sectors }
}

/// Where the head of a block has its features.
const FEATURES_AT: usize = 32;

fn features_in(block: &[u8]) -> u64 {
    u64::from_le_bytes(block[FEATURES_AT..FEATURES_AT + 8].try_into().expect("eight bytes"))
}

fn reseal(block: &mut [u8]) {
    seal(block, CRC_AT);
}

#[test]
fn a_superblock_of_every_level_is_read_as_it_was_written() {
    let levels = [
        (Level::Raid0, 64),
        (Level::Raid1, 2),
        (Level::Raid10, 6),
        (Level::Raid5, 3),
        (Level::Raid6, 10),
        (Level::Raid7_3, 11),
        (Level::Raid50 { group: 3 }, 9),
        (Level::Raid60 { group: 5 }, 10),
        (Level::Raid70 { group: 6 }, 12),
        (Level::NPlusM { data: 20, parity: 4 }, 24),
    ];
    for (level, members) in levels {
        for chunk_bytes in [4 << 10, 64 << 10, 1 << 20] {
            let superblock = superblock(level, members, chunk_bytes);
            for copy in 0..2 {
                let block = superblock.encode(copy);
                assert_eq!(Superblock::decode(&block, copy), Ok(superblock.clone()));
                assert_eq!(Superblock::decode(&block, 1 - copy), Err(Rejected::Damaged));
            }
        }
    }
}

#[test]
fn a_journal_device_is_a_feature_and_is_read_as_it_was_written() {
    for state in JournalState::ALL {
        for needs_resync in [false, true] {
            let mut superblock = superblock(Level::Raid6, 5, 16 << 10);
            let device = JournalDeviceRecord { uuid: [9; 16], state, since_event: 70 };
            superblock.array.journal_device = Some(device);
            superblock.array.needs_resync = needs_resync;
            let mut block = superblock.encode(1);
            assert_eq!(features_in(&block), JOURNAL_DEVICE.flag());
            assert_eq!(Superblock::decode(&block, 1), Ok(superblock));
            // Of an event that is still to come.
            block[JOURNAL_AT + 16] = 78;
            reseal(&mut block);
            assert_eq!(Superblock::decode(&block, 1), Err(Rejected::Damaged));
        }
    }
    // Parity may not match without a device too: every reader looks at that.
    let mut superblock = superblock(Level::Raid6, 5, 16 << 10);
    superblock.array.needs_resync = true;
    let block = superblock.encode(0);
    assert_eq!(features_in(&block), 0);
    assert_eq!(Superblock::decode(&block, 0), Ok(superblock));
}

#[test]
fn an_expansion_is_a_feature_and_one_that_cannot_be_is_damage() {
    let at = JOURNAL_AT + 24;
    for (moved_sectors, backed_up_sectors, frontier) in
        [(0, 0, 0), (8, 120, 2), (0, 8, 1), (0, 0, 9)]
    {
        let mut superblock = superblock(Level::Raid6, 6, 64 << 10);
        let redo_from = 1000;
        let frontier = Section(frontier);
        let record = ReshapeRecord { frontier, moved_sectors, backed_up_sectors, redo_from };
        superblock.array.reshape = Some(record);
        let good = superblock.encode(0);
        assert_eq!(features_in(&good), EXPANSION.flag());
        assert_eq!(Superblock::decode(&good, 0), Ok(superblock.clone()));
        assert!(superblock.array.sectors() < superblock.array.geometry.sectors());
        // Behind the end, between two shapes where none is, no whole blocks.
        for (byte, value) in [(at + 12, 1), (at + 8, 3), (at + 17, 1), (at + 24, 1)] {
            let mut block = good;
            let was_plain = !record.is_between();
            if byte == at + 8 && was_plain {
                continue;
            }
            block[byte] = value;
            reseal(&mut block);
            assert_eq!(Superblock::decode(&block, 0), Err(Rejected::Damaged), "{byte}");
        }
    }
    // Nothing can have come to three members, nor to copies.
    for (level, members) in [(Level::Raid5, 3), (Level::Raid1, 3), (Level::Raid0, 4)] {
        let mut superblock = superblock(level, members, 64 << 10);
        superblock.array.reshape = Some(ReshapeRecord::default());
        assert_eq!(Superblock::decode(&superblock.encode(0), 0), Err(Rejected::Damaged));
    }
}

#[test]
fn checksums_are_a_feature_and_an_area_that_cannot_be_is_damage() {
    let kept = superblock_with(Level::Raid6, 5, 16 << 10, Integrity::Crc32c);
    assert_eq!(kept.array.places.checksums.bytes(), MIB);
    let good = kept.encode(1);
    assert_eq!(features_in(&good), CHECKSUMS.flag());
    assert_eq!(Superblock::decode(&good, 1), Ok(kept));
    let at = JOURNAL_AT + 56;
    // Another start, no area, no whole areas, more than the device has.
    let changes = [(at + 9, 1), (at + 17, 0), (at + 16, 1), (at + 22, 9)];
    for (byte, value) in changes {
        let mut block = good;
        block[byte] = value;
        reseal(&mut block);
        assert_eq!(Superblock::decode(&block, 1), Err(Rejected::Damaged), "{byte}");
    }
}

#[test]
fn hostile_blocks_under_a_good_checksum_are_refused_or_make_sense() {
    for integrity in Integrity::ALL {
        let level = Level::Raid60 { group: 5 };
        try_hostile_blocks(superblock_with(level, 10, 64 << 10, integrity).encode(0));
    }
}

fn try_hostile_blocks(good: [u8; BLOCK_BYTES]) {
    let mut dice = Prng::new(4);
    for round in 0..60_000_usize {
        let mut block = good;
        // Every byte of the head in turn, then several at random, often to extremes.
        for change in 0..=dice.below(3) {
            let at = match change {
                0 => round % 648,
                1 => JOURNAL_AT + dice.below(88) as usize,
                _ => dice.below(2400) as usize,
            };
            block[at] = *dice.pick(&[0, 1, 0x7f, 0x80, 0xff, block[at].wrapping_add(1)]);
        }
        reseal(&mut block);
        let Ok(read) = Superblock::decode(&block, 0) else { continue };
        let places = read.array.places;
        let [_, second] = MemberLayout::superblock_lbas(read.device_sectors);
        assert!(places.data.end() <= second);
        assert_eq!(read.array.geometry.member_sectors(), places.data.count);
        assert_eq!(read.array.members.len(), read.array.geometry.member_count());
        assert!(read.member.0 < read.array.members.len());
        // The bytes that are read are written the same: the decoder ignores nothing but what is
        // reserved.
        assert_eq!(Superblock::decode(&read.encode(0), 0), Ok(read));
    }
}

#[test]
fn anything_else_is_no_superblock() {
    assert_eq!(Superblock::decode(&[], 0), Err(Rejected::Absent));
    assert_eq!(Superblock::decode(&[0; BLOCK_BYTES], 0), Err(Rejected::Absent));
    let mut block = superblock(Level::Raid5, 3, 4096).encode(0);
    assert_eq!(Superblock::decode(&block[..512], 0), Err(Rejected::Absent));
    block[100] ^= 1;
    assert_eq!(Superblock::decode(&block, 0), Err(Rejected::Damaged));
}

#[test]
fn an_unknown_version_or_feature_is_refused_by_name_whatever_comes_behind_it() {
    let good = superblock(Level::Raid5, 3, 4096).encode(0);
    let cases = [
        (8, 2, Unsupported::Version { found: 2, read: 1 }),
        (8, 0, Unsupported::Version { found: 0, read: 1 }),
        (FEATURES_AT, 1 << 4, Unsupported::Flags(1 << 4)),
        (FEATURES_AT, 0xff, Unsupported::Flags(0xf0)),
        (FEATURES_AT + 7, 0x80, Unsupported::Flags(1 << 63)),
    ];
    for (at, value, why) in cases {
        let mut block = good;
        block[at] = value;
        assert_eq!(Superblock::decode(&block, 0), Err(Rejected::Damaged), "under a bad checksum");
        block[FEATURES_AT + 8..].fill(0xff);
        reseal(&mut block);
        let refused = Err(Rejected::Unsupported { array: [0xab; 16], why });
        assert_eq!(Superblock::decode(&block, 0), refused, "byte {at}");
    }
}

#[test]
fn a_feature_that_is_said_and_not_there_or_there_and_not_said_is_damage() {
    let plain = superblock(Level::Raid6, 5, 16 << 10);
    let mut with_journal = plain.clone();
    let state = JournalState::InService;
    with_journal.array.journal_device =
        Some(JournalDeviceRecord { uuid: [9; 16], state, since_event: 70 });
    let with_checksums = superblock_with(Level::Raid6, 5, 16 << 10, Integrity::Crc32c);
    let mut moving = superblock(Level::Raid6, 6, 64 << 10);
    let frontier = Section(2);
    moving.array.reshape = Some(ReshapeRecord { frontier, ..ReshapeRecord::default() });
    assert_eq!(Superblock::decode(&moving.encode(0), 0), Ok(moving.clone()));
    for (superblock, features) in
        [(plain, 0b1011), (moving, 0b0100), (with_journal, 0b0001), (with_checksums, 0b1000)]
    {
        for feature in SUPERBLOCK_FORMAT.features.iter().filter(|it| it.flag() & features != 0) {
            let mut block = superblock.encode(0);
            block[FEATURES_AT] ^= feature.flag() as u8;
            reseal(&mut block);
            let found = Superblock::decode(&block, 0);
            assert_eq!(found, Err(Rejected::Damaged), "{}", feature.name);
        }
    }
}

#[test]
fn every_feature_has_a_bit_and_a_name_of_its_own() {
    let features = SUPERBLOCK_FORMAT.features;
    for (at, feature) in features.iter().enumerate() {
        assert!(!feature.name.is_empty() && !feature.meaning.is_empty());
        let is_same = |other: &Feature| other.bit == feature.bit || other.name == feature.name;
        assert!(!features[..at].iter().any(is_same), "{feature:?}");
    }
}
