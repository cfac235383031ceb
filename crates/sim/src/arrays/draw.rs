//! Draws what a seed of arrays is.

use voltier_array::{
    AREA_ALIGN_BYTES, Consistency, Geometry, Integrity, Layout, Level, MergePolicy,
    SUPERBLOCK_BYTES,
};
use voltier_block::{KIB, MIB, Prng, SECTOR_BYTES};

use crate::arrays::hang::hangs;
use crate::arrays::merge::merge_of;
use crate::arrays::setup::{Care, Drive, JOURNALS, REGION_BYTES, Setup};

/// Levels and members, the widest groups small enough that all choices of losses can be tried.
const SHAPES: [(Level, usize); 16] = [
    (Level::Raid0, 3),
    (Level::Raid1, 2),
    (Level::Raid1, 3),
    (Level::Raid10, 4),
    (Level::Raid5, 3),
    (Level::Raid5, 4),
    (Level::Raid6, 4),
    (Level::Raid6, 5),
    (Level::Raid7_3, 5),
    (Level::Raid7_3, 6),
    (Level::Raid50 { group: 3 }, 6),
    (Level::Raid60 { group: 4 }, 8),
    (Level::Raid70 { group: 5 }, 10),
    (Level::NPlusM { data: 2, parity: 1 }, 3),
    (Level::NPlusM { data: 3, parity: 2 }, 5),
    (Level::NPlusM { data: 2, parity: 4 }, 6),
];
/// Drives beside the members: to replace lost ones, as spares, to copy to.
const FRESH: usize = 3;
/// One seed in so many has its journal on a device of its own, and one in so many adds rows.
const JOURNAL_ONE_IN: u64 = 3;
const GROWS_ONE_IN: u64 = 4;
/// Two regions and more are rare: making one zero takes longer than all else of a world.
pub(super) const REGIONS_ONE_IN: u64 = 5;

/// Mixed into the seed for what came later: none of the kept seeds draws any of it.
const LATER: u64 = 0x6c61_7465_7201;

/// Mixed into the seed: seeds that do not draw this are as they were, and no kept seed draws it.
const EXPANSION: u64 = 0x726f_6f6d_0000_05ca;
/// One seed in so many of those that can.
const EXPANSION_ONE_IN: u64 = 4;
/// The same for a second one after it.
const SECOND: u64 = 0x726f_6f6d_0000_02d2;
/// One in so many of these.
const SECOND_ONE_IN: u64 = 3;
/// One in so many of these has chunks that are moved over themselves in parts.
const LONG_CHUNKS_ONE_IN: u64 = 6;
const LONG_CHUNK_BYTES: u64 = 256 * KIB;
/// Of the crash points of those with several regions one in so many is left.
const LARGE_ONE_IN: u64 = 8;

/// Mixed into the seed: seeds that do not draw this are as they were, and no kept seed draws it.
const CHECKSUMS: u64 = 0x7375_6d73_0000_0c32;
/// One seed in so many of those that can.
const CHECKSUMS_ONE_IN: u64 = 4;

/// Draws the setup of a seed, with at most so many clients and steps.
pub fn draw_setup(seed: u64, clients: Option<u64>, steps: Option<u64>) -> Setup {
    let mut prng = Prng::new(seed ^ 0x6172_7261_7973);
    let (level, members) = *prng.pick(&SHAPES);
    let layout = *prng.pick(&[Layout::LeftSymmetric, Layout::LeftSymmetricFixedParityRows]);
    let chunk_bytes = *prng.pick(&[4096, 4096, 4096, 8192, 8192, 32768]);
    let rows = 2 + prng.below(6);
    let more_regions =
        if prng.one_in(REGIONS_ONE_IN) { 1 + prng.below(2) } else { 0 } * REGION_BYTES;
    let data_bytes = more_regions + rows * chunk_bytes;
    let sectors = data_bytes / SECTOR_BYTES;
    let geometry = Geometry::new(level, layout, members, chunk_bytes, sectors);
    let geometry = geometry.expect("every shape of the list is possible");
    let modes =
        [Consistency::Journal, Consistency::Journal, Consistency::Bitmap, Consistency::None];
    let consistency = *prng.pick(&modes);
    let has_journal = consistency == Consistency::Journal && geometry.parity_chunks() > 0;
    // The shortest rings.
    let journal_bytes = if has_journal { AREA_ALIGN_BYTES } else { 0 };
    let least_bytes = AREA_ALIGN_BYTES + journal_bytes + data_bytes + SUPERBLOCK_BYTES;
    let block_bytes = *prng.pick(&[512, 512, 4096]);
    let drive = |number: usize| Drive {
        bytes: least_bytes + if number == 0 { 0 } else { prng.below(3) * 4096 },
        block_bytes: if number == 1 || prng.one_in(2) { block_bytes } else { 512 },
    };
    let drives = (0..members + FRESH).map(drive).collect();
    let aging = match prng.below(4) {
        _ if !has_journal => prng.below(8),
        // To where a ring is half full, and to where it begins again.
        0 => 50 + prng.below(30),
        1 => 110 + prng.below(30),
        _ => prng.below(12),
    };
    let care = *prng.pick(&[Care::Rest, Care::Members, Care::Members, Care::Scrub]);
    let setup = Setup {
        consistency,
        integrity: Integrity::None,
        drives,
        has_journal_device: false,
        grows: false,
        expansions: 0,
        has_junk: prng.one_in(2),
        zeroing_discards: prng.one_in(2),
        latency_ns: *prng.pick(&[20_000, 100_000]),
        clients: 1 + prng.below(4),
        steps: 2 + prng.below(10),
        aging,
        merge: MergePolicy::default(),
        care,
        acts: 1 + prng.below(6),
        one_in: *prng.pick(&[15, 40, 80]),
        from_the_start: prng.one_in(4),
        hangs: false,
        geometry,
    };
    let most_clients = setup.clients.min(clients.unwrap_or(u64::MAX)).max(1);
    let most_steps = setup.steps.min(steps.unwrap_or(u64::MAX));
    let drawn = Setup { clients: most_clients, steps: most_steps, ..setup };
    let drawn = with_expansion(with_what_came_later(drawn, seed), seed, steps);
    let drawn = with_checksums(drawn, seed);
    let hangs = hangs(seed);
    let care = if hangs { Care::Members } else { drawn.care };
    Setup { merge: merge_of(seed), care, hangs, ..drawn }
}

/// Draws with dice of their own what worlds had not at first: seeds without it are as they were.
fn with_what_came_later(mut setup: Setup, seed: u64) -> Setup {
    let mut prng = Prng::new(seed ^ LATER);
    if setup.has_journal() && prng.one_in(JOURNAL_ONE_IN) {
        setup.has_journal_device = true;
        let block_bytes = (setup.block_sectors() * SECTOR_BYTES) as u32;
        for _ in 0..JOURNALS {
            // The shortest rings: all records of all members go to one of them.
            let bytes = AREA_ALIGN_BYTES + MIB + SUPERBLOCK_BYTES + prng.below(3) * 4096;
            let block_bytes = if prng.one_in(2) { block_bytes } else { 512 };
            setup.drives.push(Drive { bytes, block_bytes });
        }
    }
    if setup.geometry.with_parity().is_ok() && prng.one_in(GROWS_ONE_IN) {
        (setup.grows, setup.care) = (true, Care::Members);
    }
    setup
}

/// Draws with dice of their own whether members keep checksums.
fn with_checksums(mut setup: Setup, seed: u64) -> Setup {
    let is_possible = setup.geometry.parity_chunks() > 0 && !setup.expands();
    if is_possible && Prng::new(seed ^ CHECKSUMS).one_in(CHECKSUMS_ONE_IN) {
        setup.integrity = Integrity::Crc32c;
        let members = setup.member_drives();
        // The shortest area of checksums.
        setup.drives[..members].iter_mut().for_each(|drive| drive.bytes += AREA_ALIGN_BYTES);
    }
    setup
}

/// Draws with dice of its own whether a member is added for capacity.
fn with_expansion(mut setup: Setup, seed: u64, steps: Option<u64>) -> Setup {
    let mut prng = Prng::new(seed ^ EXPANSION);
    let is_possible = setup.geometry.with_member().is_ok() && !setup.has_journal_device;
    if !is_possible || !prng.one_in(EXPANSION_ONE_IN) {
        return setup;
    }
    let data = setup.geometry.data_chunks() as u64;
    let is_long = data == 2 && prng.one_in(LONG_CHUNKS_ONE_IN);
    let own_bytes = setup.geometry.chunk_sectors() * SECTOR_BYTES;
    let chunk_bytes = if is_long { LONG_CHUNK_BYTES } else { own_bytes };
    let has_more = !is_long && prng.one_in(REGIONS_ONE_IN);
    let more_bytes = if has_more { 1 + prng.below(2) } else { 0 } * REGION_BYTES;
    let wider = setup.geometry.with_member().and_then(|wider| wider.with_member());
    let has_second = wider.is_ok() && Prng::new(seed ^ SECOND).one_in(SECOND_ONE_IN);
    // As many as a move is made for.
    let least_rows = (data + 1) * if has_second { data + 2 } else { data };
    let rows = least_rows + prng.below(3 * (data + 1));
    let data_bytes = more_bytes + rows * chunk_bytes;
    let (level, layout) = (setup.geometry.level(), setup.geometry.layout());
    let (members, sectors) = (setup.geometry.member_count(), data_bytes / SECTOR_BYTES);
    let geometry = Geometry::new(level, layout, members, chunk_bytes, sectors);
    setup.geometry = geometry.expect("it differs in its size alone");
    let journal_bytes = setup.journal_bytes(0);
    // The first one has what is needed and nothing more.
    let before = setup.drives[0].bytes;
    let superblock_bytes = voltier_array::SUPERBLOCK_BYTES;
    let least = AREA_ALIGN_BYTES + journal_bytes + data_bytes + superblock_bytes;
    for drive in &mut setup.drives {
        drive.bytes = drive.bytes - before + least;
    }
    if data_bytes > REGION_BYTES {
        // Much is moved, read and held to parity at each.
        setup.one_in *= LARGE_ONE_IN;
    }
    setup.expansions = 1 + u64::from(has_second);
    setup.care = Care::Members;
    setup.acts += prng.below(4) + 4 * (setup.expansions - 1);
    setup.steps =
        (setup.steps + prng.below(16) + 16 * (setup.expansions - 1)).min(steps.unwrap_or(u64::MAX));
    setup
}
