//! A member that is added for room: stripes get wider while clients write, members go, and the power does.
//!
//! Which row has which shape is computed here from the position alone, as `docs/adr/0022` says it: rows
//! below `p x d` have the new one, rows from `p x (d + 1)` on the old one, the rest holds nothing.

use std::iter::successors;
use std::rc::Rc;

use voltier_array::{
    AREA_ALIGN_BYTES, ArrayError, BackgroundTask, Geometry, GrowError, MemberState, Pace, Priority,
    ReplaceError, ScrubRepair, Stripe,
};
use voltier_block::{BlockDevice, Buf, KIB, Lba, MIB, Prng, SECTOR_BYTES, SectorRange};

use crate::arrays::fixture::ArrayFixture;
use crate::arrays::members::MemberMap;
use crate::arrays::operator::Operator;
use crate::arrays::parity;
use crate::arrays::setup::{Care, REGION_BYTES, REGIONS_ONE_IN, Setup};

/// Mixed into the seed: seeds that do not draw this are as they were, and no kept seed draws it.
const ROOM: u64 = 0x726f_6f6d_0000_05ca;
/// One seed in so many of those that can.
const ROOM_ONE_IN: u64 = 4;
/// The same for a second one after it.
const SECOND: u64 = 0x726f_6f6d_0000_02d2;
/// One in so many of these.
const SECOND_ONE_IN: u64 = 3;
/// One in so many of these has chunks that are moved over themselves in parts.
const LONG_CHUNKS_ONE_IN: u64 = 6;
const LONG_CHUNK_BYTES: u64 = 256 * KIB;
/// Of the crash points of those with several regions one in so many is left.
const LARGE_ONE_IN: u64 = 8;
/// Longest request of a check.
const REQUEST_BYTES: u64 = MIB;

impl Setup {
    /// Draws with dice of its own whether a member is added for room.
    pub(super) fn with_room(mut self, seed: u64, steps: Option<u64>) -> Self {
        let mut prng = Prng::new(seed ^ ROOM);
        let is_possible = self.geometry.with_member().is_ok() && !self.has_journal_device;
        if !is_possible || !prng.one_in(ROOM_ONE_IN) {
            return self;
        }
        let data = self.geometry.data_chunks() as u64;
        let is_long = data == 2 && prng.one_in(LONG_CHUNKS_ONE_IN);
        let own_bytes = self.geometry.chunk_sectors() * SECTOR_BYTES;
        let chunk_bytes = if is_long { LONG_CHUNK_BYTES } else { own_bytes };
        let has_more = !is_long && prng.one_in(REGIONS_ONE_IN);
        let more_bytes = if has_more { 1 + prng.below(2) } else { 0 } * REGION_BYTES;
        let wider = self.geometry.with_member().and_then(|wider| wider.with_member());
        let has_second = wider.is_ok() && Prng::new(seed ^ SECOND).one_in(SECOND_ONE_IN);
        // As many as a move is made for.
        let least_rows = (data + 1) * if has_second { data + 2 } else { data };
        let rows = least_rows + prng.below(3 * (data + 1));
        let data_bytes = more_bytes + rows * chunk_bytes;
        let (level, layout) = (self.geometry.level(), self.geometry.layout());
        let (members, sectors) = (self.geometry.member_count(), data_bytes / SECTOR_BYTES);
        let geometry = Geometry::new(level, layout, members, chunk_bytes, sectors);
        self.geometry = geometry.expect("it differs in its size alone");
        let journal_bytes = self.journal_bytes(0);
        // The first one has what is needed and nothing more.
        let before = self.drives[0].bytes;
        let superblock_bytes = voltier_array::SUPERBLOCK_BYTES;
        let least = AREA_ALIGN_BYTES + journal_bytes + data_bytes + superblock_bytes;
        for drive in &mut self.drives {
            drive.bytes = drive.bytes - before + least;
        }
        if data_bytes > REGION_BYTES {
            // Much is moved, read and held to parity at each.
            self.one_in *= LARGE_ONE_IN;
        }
        self.rooms = 1 + u64::from(has_second);
        self.care = Care::Members;
        self.acts += prng.below(4) + 4 * (self.rooms - 1);
        self.steps =
            (self.steps + prng.below(16) + 16 * (self.rooms - 1)).min(steps.unwrap_or(u64::MAX));
        self
    }

    /// The size that the volume may come to have.
    pub(crate) fn most_sectors(&self) -> u64 {
        self.shapes().iter().map(Geometry::sectors).max().expect("one at least")
    }

    /// The shapes that stripes of the volume may have, as far as their data go, by the members for room.
    pub(crate) fn shapes(&self) -> Vec<Geometry> {
        let mut shapes = vec![self.geometry.clone()];
        for before in 0..self.rooms as usize {
            shapes.push(shapes[before].with_member().expect("it was asked"));
        }
        shapes
    }

    /// Whether members are added for room.
    pub(crate) fn gains_room(&self) -> bool {
        self.rooms > 0
    }

    /// The shape that this one comes from while it moves: with rows that were added before.
    fn before(&self, after: &Geometry) -> Geometry {
        let with_rows = |shape| successors(Some(shape), |it: &Geometry| it.with_row().ok()).take(8);
        let mut shapes = self.shapes().into_iter().flat_map(with_rows);
        let found = shapes.find(|shape| shape.with_member().as_ref() == Ok(after));
        found.expect("it came from somewhere")
    }
}

/// Which shape rows have.
struct Rows {
    before: Geometry,
    after: Geometry,
    /// Units that were moved; none when all have the shape `after`.
    position: Option<u64>,
    /// Whether nobody can say what the rows of the next unit are.
    is_next_open: bool,
}

impl Rows {
    /// The shape of a row, and the first sector of the volume that it has; none if it holds nothing.
    fn shape_of(&self, row: u64) -> Option<(&Geometry, u64)> {
        let in_shape = |shape: &'_ Geometry| row * shape.stripe_sectors();
        let Some(position) = self.position else {
            return Some((&self.after, in_shape(&self.after)));
        };
        let (rows, data) = (self.before.stripe_count(), self.before.data_chunks() as u64);
        let is_open = |from: u64, count: u64| self.is_next_open && row < (from + 1) * count;
        if row < (position * data).min((rows * data).div_ceil(data + 1)) {
            Some((&self.after, in_shape(&self.after)))
        } else if row < (position * (data + 1)).min(rows) || is_open(position, data + 1) {
            None
        } else {
            Some((&self.before, in_shape(&self.before)))
        }
    }
}

impl ArrayFixture {
    /// What is used of the volume, as it is now.
    pub(crate) fn windows(&self) -> Vec<SectorRange> {
        if self.setup.gains_room() {
            return vec![SectorRange::new(Lba(0), self.limits().sectors)];
        }
        self.runs.clone()
    }

    /// The same in requests that are not too long.
    pub(crate) fn whole(&self) -> Vec<SectorRange> {
        if !self.setup.gains_room() {
            return self.windows();
        }
        let cut = |window: SectorRange| {
            let pieces = window.split_at_multiples(REQUEST_BYTES / SECTOR_BYTES);
            pieces.collect::<Vec<_>>()
        };
        self.windows().into_iter().flat_map(cut).collect()
    }

    /// Whether the array that serves has two shapes.
    pub(crate) fn is_moving(&self) -> bool {
        self.serving().is_some_and(|array| array.reshape_status().is_some())
    }

    /// A request was answered.
    pub(crate) fn note_use(&self, range: SectorRange) {
        self.used_end.set(self.used_end.get().max(range.end()));
    }

    /// Reads the whole volume and holds it to the model, then every row to parity in the shape it has.
    /// No client may have anything under way; the array may be moving.
    pub(crate) async fn check_with_room(&self, when: &str) {
        let array = self.array();
        self.check_size(when).await;
        let row_bytes = self.setup.most_sectors() / array.geometry().stripe_count() * SECTOR_BYTES;
        let most_bytes = self.setup.most_sectors() * SECTOR_BYTES + row_bytes;
        let mut volume = Vec::with_capacity(most_bytes as usize);
        for range in self.whole() {
            volume.extend_from_slice(&self.read(range, when).await);
        }
        if self.is_in_doubt() {
            return;
        }
        // From here on nothing happens. What has come behind the end meanwhile nobody has written.
        let end = volume.len() as u64 / SECTOR_BYTES;
        volume.resize(most_bytes as usize, 0);
        self.check_rows(&volume, end, when);
    }

    /// The size is that of the shape, or of the one before while it moves, and nothing behind it answers.
    async fn check_size(&self, when: &str) {
        let array = self.array();
        let moving = usize::from(array.reshape_status().is_some());
        let size = array.limits().sectors;
        let expected = self.setup.shapes()[self.rooms() - moving].sectors();
        assert_eq!(size, expected, "the size is another, {when}");
        assert!(self.used_end.get().0 <= size, "room that was used is gone, {when}");
        let block = self.setup.block_sectors();
        let read = array.read(Lba(size), Buf::new((block * SECTOR_BYTES) as usize)).await;
        let is_answered = read.is_ok() && self.array().limits().sectors == size;
        assert!(!is_answered, "what is behind the end is read, {when}");
    }

    /// How many members were added for room.
    fn rooms(&self) -> usize {
        self.array().geometry().data_chunks() - self.setup.geometry.data_chunks()
    }

    fn rows(&self) -> Rows {
        let array = self.array();
        let after = array.geometry().clone();
        let Some(status) = array.reshape_status() else {
            let (position, is_next_open) = (None, false);
            return Rows { before: after.clone(), after, position, is_next_open };
        };
        let before = self.setup.before(&after);
        let data = before.data_chunks() as u64;
        let unit_bytes = (data + 1) * before.stripe_sectors() * SECTOR_BYTES;
        let position = status.progress.done_bytes.div_ceil(unit_bytes);
        // The first units lie over themselves.
        let known = self.known().0.into_iter().flatten();
        let superblocks =
            known.filter(|own| own.array.geometry.data_chunks() > before.data_chunks());
        let is_open = |record: voltier_array::ReshapeRecord| {
            let is_between = record.moved_sectors > 0 || record.staged_sectors > 0;
            record.position > position || (record.position == position && is_between)
        };
        let is_next_open =
            position < data && superblocks.filter_map(|own| own.array.reshape).any(is_open);
        Rows { before, after, position: Some(position), is_next_open }
    }

    /// Holds every row of a region that something was written to to what the volume has there, which is
    /// zeroes behind its end.
    fn check_rows(&self, volume: &[u8], end: u64, when: &str) {
        let array = self.array();
        let rows = self.rows();
        let stored = self.stored_chunks();
        let chunk_sectors = array.geometry().chunk_sectors();
        let content = |row: u64| {
            let (shape, first) = rows.shape_of(row)?;
            let behind = first + shape.stripe_sectors();
            // With the row's content that was given up, after a forced start.
            let is_unknown = |sector| self.model.borrow().is_touched(sector);
            if (end.max(first)..behind).any(is_unknown) {
                return None;
            }
            Some((
                shape,
                &volume[(first * SECTOR_BYTES) as usize..(behind * SECTOR_BYTES) as usize],
            ))
        };
        let of_region = (REGION_BYTES / SECTOR_BYTES / chunk_sectors).max(1);
        let all: Vec<u64> = (0..array.geometry().stripe_count()).collect();
        for region in all.chunks(of_region as usize) {
            let has_content = |row: &u64| {
                content(*row).is_some_and(|(_, bytes)| bytes.iter().any(|byte| *byte != 0))
            };
            if !region.iter().any(has_content) {
                continue;
            }
            for (row, shape, bytes) in
                region.iter().filter_map(|row| content(*row).map(|(shape, it)| (row, shape, it)))
            {
                parity::check(shape, Stripe(*row), bytes, when, &stored);
            }
        }
    }

    /// A member for room may be refused for what others do meanwhile, and for nothing else.
    fn check_no_room(&self, drive: usize, error: &ArrayError) {
        match error {
            ArrayError::Grow(
                GrowError::Degraded
                | GrowError::InDoubt { .. }
                | GrowError::Growing
                | GrowError::Reshaping
                // Somebody took it out again.
                | GrowError::Lost { .. },
            )
            | ArrayError::Replace(ReplaceError::ScrubRuns) => {}
            ArrayError::Grow(GrowError::Device { error, .. }) => {
                self.check_refused(drive, &ArrayError::Replace(*error));
            }
            error => panic!("drive {drive} is not taken for room: {error}"),
        }
    }
}

impl Operator {
    /// Adds a member for room: not while one is on its way, and as many as the seed has.
    pub(crate) async fn add_room(&mut self) {
        let fixture = self.fixture.clone();
        let array = fixture.array();
        if fixture.setup.rooms > 1 && self.dice.one_in(2) {
            // So that there is a time for the next one.
            let pace = Pace { priority: Priority::High, floor_bytes_per_second: 0 };
            array.set_pace(BackgroundTask::Rebuild, pace);
            let is_at_rest = |fixture: &ArrayFixture| {
                fixture.array().reshape_status().is_none_or(|it| it.waits_for.is_some())
            };
            fixture.until("the move ends or waits", is_at_rest).await;
        }
        let free = fixture.members.free(&fixture.setup);
        if fixture.rooms() as u64 == fixture.setup.rooms
            || fixture.is_room_asked.get()
            || array.reshape_status().is_some()
            || !fixture.is_all_online()
            || free.is_empty()
            || fixture.is_in_doubt()
        {
            return;
        }
        if self.dice.one_in(3) {
            // It goes on when nobody asks for anything, and a little beside.
            let floor_bytes_per_second = *self.dice.pick(&[0, 1 << 16, 1 << 22]);
            let pace = Pace { priority: Priority::Idle, floor_bytes_per_second };
            array.set_pace(BackgroundTask::Rebuild, pace);
        }
        let drive = *self.dice.pick(&free);
        let uuid = fixture.come(drive);
        fixture.is_room_asked.set(true);
        fixture.world.tell(|| format!("care: drive {drive} for room"));
        let growing = fixture.clone();
        let grown = fixture.world.handle().spawn(async move {
            let grown = growing.array().grow_capacity(growing.disks[drive].clone(), uuid).await;
            growing.is_room_asked.set(false);
            growing.world.tell(|| format!("care: room on drive {drive}: {grown:?}"));
            if let Err(error) = grown {
                growing.check_no_room(drive, &error);
            }
        });
        if self.dice.one_in(2) {
            grown.await;
        } else {
            self.under_way.push(grown);
        }
    }
}

/// Has a move come to its end: drives in the place of members that it waits for, as far as there are some.
pub(crate) async fn end_move(fixture: &Rc<ArrayFixture>) {
    let array = fixture.array();
    if !fixture.setup.gains_room()
        || array.reshape_status().is_none()
        || !fixture.members.is_whole()
    {
        return;
    }
    for member in MemberMap::members(&array, MemberState::Lost) {
        let free = fixture.members.free(&fixture.setup);
        let fits = |drive: &usize| {
            fixture.disks[*drive].limits().block_bytes <= fixture.limits().block_bytes
        };
        let Some(drive) = free.into_iter().find(fits) else { return };
        let uuid = fixture.come(drive);
        fixture.world.tell(|| format!("drive {drive} for member {member}, which a move waits for"));
        let replaced = array.replace(member, fixture.disks[drive].clone(), uuid).await;
        // A spare may have been faster.
        let is_right =
            matches!(replaced, Ok(_) | Err(ArrayError::Replace(ReplaceError::Busy { .. })));
        assert!(is_right, "drive {drive} does not come: {replaced:?}");
    }
    fixture.until("all members are in service", ArrayFixture::is_all_online).await;
    fixture.until("the move ends", |fixture| fixture.array().reshape_status().is_none()).await;
    array.scrub(ScrubRepair::Nothing).expect("nothing else is running");
    array.ended(BackgroundTask::Scrub).await;
    let found = array.scrub_status();
    assert_eq!((found.mismatched_blocks, found.skipped_bytes), (0, 0), "the scrub behind the move");
}
