//! Holds an array to the model and to parity.

use voltier_array::{ArrayError, MemberIndex, ReplaceError, ReshapeRecord, StripeNumber};
use voltier_block::{BlockDevice, Buf, Lba, SECTOR_BYTES, SectorRange};

use crate::arrays::fixture::ArrayFixture;
use crate::arrays::parity;
use crate::arrays::rows::Rows;
use crate::arrays::sets::MemberSet;
use crate::arrays::setup::REGION_BYTES;
use crate::model::Since;

const SECTOR: usize = SECTOR_BYTES as usize;

/// Reads all that is used of the volume and holds it to the model, then every stripe to parity.
/// Nothing may be under way.
///
/// # Panics
/// When something is not as it must be.
pub(crate) async fn check_all(fixture: &ArrayFixture, when: &str) {
    if fixture.setup.expands() {
        return check_rows_of_all(fixture, when).await;
    }
    let stripe_bytes = fixture.setup.geometry.stripe_sectors() as usize * SECTOR;
    let mut contents = Vec::new();
    for window in fixture.windows() {
        contents.push(read(fixture, window, when).await);
    }
    if fixture.needs_resync() {
        return;
    }
    let (geometry, stored) = (fixture.geometry(), stored_chunks(fixture));
    let volume = contents.iter().flat_map(|content| content.chunks_exact(stripe_bytes));
    for (stripe, content) in fixture.stripes.iter().zip(volume) {
        let is_written = fixture.written.borrow().contains(&fixture.setup.region_of(*stripe));
        if !is_written || fixture.bit_rot.stripe() == Some(*stripe) {
            continue;
        }
        parity::check(&geometry, *stripe, content, when, &stored);
    }
}

/// Reads all that is used of the volume and holds it to the model.
pub(crate) async fn read_all(fixture: &ArrayFixture, when: &str) {
    for window in fixture.windows() {
        read(fixture, window, when).await;
    }
}

/// Reads a part of the volume and holds it to the model.
async fn read(fixture: &ArrayFixture, range: SectorRange, when: &str) -> Buf {
    let read = fixture.model.borrow_mut().begin_read();
    let into = Buf::new(range.bytes() as usize);
    let content = match fixture.array().read(range.start, into).await {
        Ok(content) => content,
        Err(error) => panic!("reading {range} fails {when}: {error}"),
    };
    fixture.note_use(range);
    check_read(fixture, read, range, &content, when);
    content
}

/// The chunks of members in service on their drives now, by member and sector of the member's data area.
fn stored_chunks(fixture: &ArrayFixture) -> impl Fn(usize, u64) -> Option<Vec<u8>> {
    let array = fixture.array();
    let members = 0..array.geometry().member_count();
    let drives: Vec<Option<usize>> =
        members.map(|member| fixture.members.drive_of(&array, member)).collect();
    let chunk_bytes = array.geometry().chunk_sectors() as usize * SECTOR;
    let data_start = fixture.on_device(Lba(0));
    move |member, at| {
        let drive = drives[member].filter(|_| array.is_online(MemberIndex(member)))?;
        let mut chunk = vec![0; chunk_bytes];
        fixture.disks[drive].peek(data_start.plus(at), &mut chunk);
        Some(chunk)
    }
}

/// Holds what was read to the model; of a stripe that somebody did harm to nothing is asked.
fn check_read(fixture: &ArrayFixture, read: Since, range: SectorRange, content: &[u8], when: &str) {
    let closed = fixture.bit_rot.stripe().map(|stripe| fixture.setup.sectors_of(stripe));
    let Some(closed) = closed.filter(|closed| closed.overlaps(range)) else {
        let seen = fixture.model.borrow_mut().end_read(read, range.start, content);
        return seen.unwrap_or_else(|violation| panic!("{violation}, reading {range} {when}"));
    };
    let mut model = fixture.model.borrow_mut();
    let before = closed.start.0.saturating_sub(range.start.0) as usize * SECTOR;
    let behind = closed.end().0.min(range.end().0);
    let rest = (behind - range.start.0) as usize * SECTOR;
    let again = model.begin_read();
    let seen = model.end_read(read, range.start, &content[..before]);
    let seen = seen.and_then(|()| model.end_read(again, Lba(behind), &content[rest..]));
    seen.unwrap_or_else(|violation| panic!("{violation}, reading {range} {when}"));
}

/// Whether exactly these members are in service.
pub(crate) fn check_members(fixture: &ArrayFixture, expected: MemberSet) {
    let array = fixture.array();
    for member in 0..fixture.geometry().member_count() {
        let (is, must) = (array.is_online(MemberIndex(member)), expected.has(member));
        assert!(is == must, "member {member} is in service: {is}; it should be: {must}");
    }
}

/// Reads the whole volume and holds it to the model, then every row to parity in the shape it has.
/// No client may have anything under way; the array may be moving.
async fn check_rows_of_all(fixture: &ArrayFixture, when: &str) {
    let array = fixture.array();
    check_size(fixture, when).await;
    let row_bytes = fixture.setup.most_sectors() / array.geometry().stripe_count() * SECTOR_BYTES;
    let most_bytes = fixture.setup.most_sectors() * SECTOR_BYTES + row_bytes;
    let mut volume = Vec::with_capacity(most_bytes as usize);
    for range in fixture.whole() {
        volume.extend_from_slice(&read(fixture, range, when).await);
    }
    if fixture.needs_resync() {
        return;
    }
    // From here on nothing happens. Nobody has written what has come behind the end meanwhile.
    let end = volume.len() as u64 / SECTOR_BYTES;
    volume.resize(most_bytes as usize, 0);
    check_rows(fixture, &volume, end, when);
}

/// The size is that of the shape, or of the one before while it moves, and nothing behind it answers.
async fn check_size(fixture: &ArrayFixture, when: &str) {
    let array = fixture.array();
    let moving = usize::from(array.reshape_status().is_some());
    let size = array.limits().sectors;
    let expected = fixture.setup.shapes()[fixture.members_added() - moving].sectors();
    assert_eq!(size, expected, "the size is another, {when}");
    assert!(fixture.used_end.get().0 <= size, "capacity that was used is gone, {when}");
    let block = fixture.setup.block_sectors();
    let read = array.read(Lba(size), Buf::new((block * SECTOR_BYTES) as usize)).await;
    let is_answered = read.is_ok() && fixture.array().limits().sectors == size;
    assert!(!is_answered, "what is behind the end is read, {when}");
}

fn rows(fixture: &ArrayFixture) -> Rows {
    let array = fixture.array();
    let after = array.geometry().clone();
    let Some(status) = array.reshape_status() else {
        let (frontier, is_next_open) = (None, false);
        return Rows { before: after.clone(), after, frontier, is_next_open };
    };
    let before = fixture.setup.shape_before(&after);
    let data = before.data_chunks() as u64;
    let section_bytes = (data + 1) * before.stripe_sectors() * SECTOR_BYTES;
    let frontier = status.progress.done_bytes.div_ceil(section_bytes);
    // The first sections lie over themselves.
    let known = fixture.known().0.into_iter().flatten();
    let superblocks = known.filter(|own| own.array.geometry.data_chunks() > before.data_chunks());
    let is_open = |record: ReshapeRecord| {
        let is_between = record.moved_sectors > 0 || record.backed_up_sectors > 0;
        let moved = record.frontier.0;
        moved > frontier || (moved == frontier && is_between)
    };
    let is_next_open =
        frontier < data && superblocks.filter_map(|own| own.array.reshape).any(is_open);
    Rows { before, after, frontier: Some(frontier), is_next_open }
}

/// Holds every row of a region that something was written to to what the volume has there, which is
/// zeroes behind its end.
fn check_rows(fixture: &ArrayFixture, volume: &[u8], end: u64, when: &str) {
    let array = fixture.array();
    let rows = rows(fixture);
    let stored = stored_chunks(fixture);
    let chunk_sectors = array.geometry().chunk_sectors();
    let content = |row: u64| {
        let (shape, first) = rows.shape_of(row)?;
        let behind = first + shape.stripe_sectors();
        // With the row's content that was given up, after a forced start.
        let is_unknown = |sector| fixture.model.borrow().is_touched(sector);
        if (end.max(first)..behind).any(is_unknown) {
            return None;
        }
        Some((shape, &volume[(first * SECTOR_BYTES) as usize..(behind * SECTOR_BYTES) as usize]))
    };
    let of_region = (REGION_BYTES / SECTOR_BYTES / chunk_sectors).max(1);
    let all: Vec<u64> = (0..array.geometry().stripe_count()).collect();
    for region in all.chunks(of_region as usize) {
        let has_content =
            |row: &u64| content(*row).is_some_and(|(_, bytes)| bytes.iter().any(|byte| *byte != 0));
        if !region.iter().any(has_content) {
            continue;
        }
        for (row, shape, bytes) in
            region.iter().filter_map(|row| content(*row).map(|(shape, it)| (row, shape, it)))
        {
            parity::check(shape, StripeNumber(*row), bytes, when, &stored);
        }
    }
}

/// A drive is refused: its blocks must be larger than those of the members that are there.
pub(crate) fn check_refused(fixture: &ArrayFixture, drive: usize, error: &ArrayError) {
    let is_refused = matches!(error, ArrayError::Replace(ReplaceError::Blocks { .. }));
    let block_bytes = fixture.disks[drive].limits().block_bytes;
    let has_larger = block_bytes > fixture.limits().block_bytes;
    assert!(is_refused && has_larger, "drive {drive} does not come: {error}");
}
