//! The index: flat arrays over slots, and the table from lines to slots.
//!
//! Each slot has one word of as many bits as needed: four bits of state, 24 bits of the data's CRC-32C,
//! and the line. 8 bits more of the line are beside the word when the origin has over 2^36 lines. A
//! mask of valid sectors exists only where needed. The whole CRC is in the log. 24 bits of the CRC
//! catch all but one wrong line in 16 million, 256 times better than the 16-bit guard of T10 protection
//! information.

use voltier_block::Lba;

use crate::format::checksum::kept_crc_bits;
use crate::format::geometry::Geometry;
use crate::map::table::Table;
use crate::memory::{self, NoMemory, bytes_of};
use crate::numbers::{Line, Segment, Slot};
use crate::packed_array::{PackedArray, bits_for};
use crate::policy;

const USED: u64 = 1;
const DIRTY: u64 = 2;
const MASKED: u64 = 4;
/// The record that carries the data is still on its way to the SSD.
const PENDING: u64 = 8;
/// Where in a slot's word the CRC and the line begin.
const CRC_SHIFT: u32 = 4;
const LINE_SHIFT: u32 = CRC_SHIFT + 24;
/// Bits of a line that its word has room for.
const LINE_BITS_MAX: u32 = u64::BITS - LINE_SHIFT;

/// Lines whose dirtiness is counted together: a destaging sweep skips clean extents by it.
pub(crate) const LINES_PER_EXTENT: u64 = 256;
/// Lines that are counted together, dirty or not: a long range costs by what is cached of it. At most as many
/// as a counter holds.
pub(crate) const LINES_PER_STRETCH: u64 = 1024;

/// A line on its way into a slot: the facts of its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedLine {
    pub(crate) line: Line,
    pub(crate) slot: Slot,
    pub(crate) crc: u32,
    pub(crate) dirty: bool,
    /// Valid sectors; `None` when all are.
    pub(crate) mask: Option<u128>,
    pub(crate) pending: bool,
}

/// The state of a slot with a line in it, as a checkpoint has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredSlot {
    pub(crate) line: Line,
    pub(crate) crc: u32,
    pub(crate) dirty: bool,
    /// Valid sectors; `None` when all are.
    pub(crate) mask: Option<u128>,
}

/// How long the arrays of an index are.
struct Sizes {
    slots: u64,
    word_bits: u32,
    high_bytes: u64,
    mask_bytes: u64,
    extents: u64,
    stretches: u64,
}

impl Sizes {
    fn of(geometry: &Geometry) -> Self {
        let slots = u64::from(geometry.slot_count());
        let line_bits = bits_for(geometry.origin_lines().saturating_sub(1));
        Self {
            slots,
            word_bits: LINE_SHIFT + line_bits.min(LINE_BITS_MAX),
            high_bytes: if line_bits > LINE_BITS_MAX { slots } else { 0 },
            mask_bytes: slots * geometry.mask_bytes() as u64,
            extents: geometry.origin_lines().div_ceil(LINES_PER_EXTENT),
            stretches: geometry.origin_lines().div_ceil(LINES_PER_STRETCH),
        }
    }
}

pub(crate) struct Index {
    geometry: Geometry,
    words: PackedArray,
    /// The bits of a line that its word has no room for. Empty when there is room for all of them.
    line_high: Vec<u8>,
    /// Fresh memory, of which the kernel has given nothing, until the first masked line.
    masks: Vec<u8>,
    has_masks: bool,
    table: Table,
    live: Vec<u32>,
    dirty_in_extent: Vec<u16>,
    used_in_stretch: Vec<u16>,
    used_lines: u64,
    dirty_lines: u64,
    /// Their sectors that count.
    dirty_sectors: u64,
}

impl Index {
    pub(crate) fn new(geometry: &Geometry) -> Result<Self, NoMemory> {
        let sizes = Sizes::of(geometry);
        let slots = sizes.slots;
        Ok(Self {
            geometry: geometry.clone(),
            words: PackedArray::new(geometry.slot_count() as usize, sizes.word_bits)?,
            line_high: memory::zeroes(sizes.high_bytes)?,
            masks: memory::zeroes(sizes.mask_bytes)?,
            has_masks: false,
            table: Table::new(geometry.capacity_lines(), slots)?,
            live: memory::zeroes(geometry.segment_count.into())?,
            dirty_in_extent: memory::zeroes(sizes.extents)?,
            used_in_stretch: memory::zeroes(sizes.stretches)?,
            used_lines: 0,
            dirty_lines: 0,
            dirty_sectors: 0,
        })
    }

    /// The memory of an index with masks.
    pub(crate) fn bytes_for(geometry: &Geometry) -> u64 {
        let sizes = Sizes::of(geometry);
        PackedArray::bytes_for(sizes.slots, sizes.word_bits)
            + sizes.high_bytes
            + sizes.mask_bytes
            + Table::bytes_for(geometry.capacity_lines(), sizes.slots)
            + bytes_of::<u32>(geometry.segment_count.into())
            + bytes_of::<u16>(sizes.extents)
            + bytes_of::<u16>(sizes.stretches)
    }

    pub(crate) fn used_lines(&self) -> u64 {
        self.used_lines
    }

    pub(crate) fn dirty_lines(&self) -> u64 {
        self.dirty_lines
    }

    /// Sectors that the origin lacks, as far as is known: of a line that is cached whole all count.
    #[inline]
    pub(crate) fn dirty_sectors(&self) -> u64 {
        self.dirty_sectors
    }

    /// Lines that live in a segment.
    pub(crate) fn live_in(&self, segment: Segment) -> u32 {
        self.live[segment.index()]
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.memory_bytes()
            + self.line_high.len()
            + if self.has_masks { self.masks.len() } else { 0 }
            + self.table.memory_bytes()
            + self.live.len() * 4
            + self.dirty_in_extent.len() * 2
            + self.used_in_stretch.len() * 2
    }

    pub(crate) fn line_of(&self, slot: Slot) -> Line {
        let high = self.line_high.get(slot.index()).map_or(0, |high| u64::from(*high));
        Line(high << LINE_BITS_MAX | self.word(slot) >> LINE_SHIFT)
    }

    #[inline]
    fn word(&self, slot: Slot) -> u64 {
        self.words.get(slot.index())
    }

    fn set_word(&mut self, slot: Slot, word: u64) {
        self.words.set(slot.index(), word);
    }

    pub(crate) fn lookup(&self, line: Line) -> Option<Slot> {
        self.table.get(line, |slot| self.line_of(slot) == line)
    }

    pub(crate) fn is_used(&self, slot: Slot) -> bool {
        self.word(slot) & USED != 0
    }

    pub(crate) fn is_dirty(&self, slot: Slot) -> bool {
        self.word(slot) & DIRTY != 0
    }

    /// Whether the newest copy of the line is in this slot, and the origin does not have it.
    pub(crate) fn is_dirty_in(&self, line: Line, slot: Slot) -> bool {
        self.lookup(line) == Some(slot) && self.is_dirty(slot)
    }

    pub(crate) fn is_pending(&self, slot: Slot) -> bool {
        self.word(slot) & PENDING != 0
    }

    /// Valid sectors of a masked line, `None` for a whole one.
    pub(crate) fn mask(&self, slot: Slot) -> Option<u128> {
        if self.word(slot) & MASKED == 0 {
            return None;
        }
        let bytes = self.geometry.mask_bytes();
        let at = slot.index() * bytes;
        let mut word = [0; 16];
        word[..bytes].copy_from_slice(&self.masks[at..at + bytes]);
        Some(u128::from_le_bytes(word))
    }

    /// The part of the data's CRC-32C that is kept: its lower 24 bits.
    pub(crate) fn crc_bits(&self, slot: Slot) -> u32 {
        kept_crc_bits((self.word(slot) >> CRC_SHIFT) as u32)
    }

    /// Where a slot's data is on the SSD.
    pub(crate) fn lba_of(&self, slot: Slot) -> Lba {
        self.geometry.lba_of_slot(slot)
    }

    /// Puts a line into a free slot, taking it out of the slot it had, which is returned.
    pub(crate) fn place(&mut self, placement: PlacedLine) -> Option<Slot> {
        let old = self.lookup(placement.line);
        self.put(placement, old);
        old
    }

    /// Puts a line into a free slot; the line is known to be in slot `old`, or nowhere.
    pub(crate) fn put(&mut self, placement: PlacedLine, old: Option<Slot>) {
        let PlacedLine { line, slot, .. } = placement;
        assert!(!self.is_used(slot), "slot {slot} is taken");
        match old {
            Some(old) => {
                self.table.replace(line, old, slot);
                self.vacate(old, line);
            }
            None => {
                self.table.insert(line, slot);
                self.used_in_stretch[stretch_of(line)] += 1;
            }
        }
        let flag = |on: bool, bit: u64| if on { bit } else { 0 };
        let word = line.0 << LINE_SHIFT
            | u64::from(kept_crc_bits(placement.crc)) << CRC_SHIFT
            | USED
            | flag(placement.dirty, DIRTY)
            | flag(placement.pending, PENDING)
            | flag(placement.mask.is_some(), MASKED);
        self.set_word(slot, word);
        if let Some(high) = self.line_high.get_mut(slot.index()) {
            *high = (line.0 >> LINE_BITS_MAX) as u8;
        }
        if let Some(mask) = placement.mask {
            self.set_mask(slot, mask);
        }
        self.live[self.geometry.segment_of(slot).index()] += 1;
        self.used_lines += 1;
        if placement.dirty {
            self.count_dirty(slot, line);
        }
    }

    fn set_mask(&mut self, slot: Slot, mask: u128) {
        let bytes = self.geometry.mask_bytes();
        self.has_masks = true;
        let at = slot.index() * bytes;
        self.masks[at..at + bytes].copy_from_slice(&mask.to_le_bytes()[..bytes]);
    }

    /// Sectors of the line in a slot that are valid.
    fn valid_sectors(&self, slot: Slot) -> u64 {
        let mask = self.mask(slot);
        mask.map_or(self.geometry.line_sectors(), |mask| mask.count_ones().into())
    }

    fn count_dirty(&mut self, slot: Slot, line: Line) {
        self.dirty_lines += 1;
        self.dirty_sectors += self.valid_sectors(slot);
        self.dirty_in_extent[(line.0 / LINES_PER_EXTENT) as usize] += 1;
    }

    fn uncount_dirty(&mut self, slot: Slot, line: Line) {
        self.dirty_lines -= 1;
        self.dirty_sectors -= self.valid_sectors(slot);
        self.dirty_in_extent[(line.0 / LINES_PER_EXTENT) as usize] -= 1;
    }

    fn vacate(&mut self, slot: Slot, line: Line) {
        if self.is_dirty(slot) {
            self.uncount_dirty(slot, line);
        }
        self.set_word(slot, 0);
        self.live[self.geometry.segment_of(slot).index()] -= 1;
        self.used_lines -= 1;
    }

    /// Takes the line in `slot` out of the cache.
    pub(crate) fn remove(&mut self, slot: Slot) {
        assert!(self.is_used(slot), "slot {slot} is empty");
        let line = self.line_of(slot);
        self.table.remove(line, slot);
        self.used_in_stretch[stretch_of(line)] -= 1;
        self.vacate(slot, line);
    }

    pub(crate) fn set_clean(&mut self, slot: Slot) {
        if self.is_dirty(slot) {
            self.set_word(slot, self.word(slot) & !DIRTY);
            self.uncount_dirty(slot, self.line_of(slot));
        }
    }

    pub(crate) fn clear_pending(&mut self, slot: Slot) {
        self.set_word(slot, self.word(slot) & !PENDING);
    }

    /// After the SSD is lost: forgets that sectors of a lost line are lost, because the origin has
    /// newer ones now.
    pub(crate) fn heal(&mut self, slot: Slot, sectors: u128, all: u128) {
        let left = self.mask(slot).unwrap_or(all) & !sectors;
        if left == 0 {
            self.remove(slot);
        } else {
            let before = self.valid_sectors(slot);
            self.set_mask(slot, left);
            self.set_word(slot, self.word(slot) | MASKED);
            if self.is_dirty(slot) {
                self.dirty_sectors -= before - u64::from(left.count_ones());
            }
        }
    }

    /// Writes the state of a slot for a checkpoint.
    pub(crate) fn encode(&self, slot: Slot, into: &mut [u8]) {
        let line = self.line_of(slot).0.to_le_bytes();
        into[..5].copy_from_slice(&line[..5]);
        let state = (self.word(slot) & (USED | DIRTY | MASKED)) as u32;
        into[5..9].copy_from_slice(&(self.crc_bits(slot) << 8 | state).to_le_bytes());
        let mask = self.mask(slot).unwrap_or(0).to_le_bytes();
        let mask_bytes = self.geometry.mask_bytes();
        into[9..9 + mask_bytes].copy_from_slice(&mask[..mask_bytes]);
    }

    /// Looks at where the lines of several slots of a checkpoint will go.
    pub(crate) fn warm_up<'a>(&self, states: impl Iterator<Item = &'a [u8]>) {
        self.warm_up_lines(states.map(|from| {
            let mut line = [0; 8];
            line[..5].copy_from_slice(&from[..5]);
            Line(u64::from_le_bytes(line))
        }));
    }

    /// Looks at where several lines are. The looks do not wait for each other as inserts do: most of
    /// the time of a load is such waiting for memory.
    pub(crate) fn warm_up_lines(&self, lines: impl Iterator<Item = Line>) {
        let looks = lines.map(|line| self.table.look(line));
        std::hint::black_box(looks.fold(0u8, |seen, look| seen ^ look));
    }

    /// The state of a slot as a checkpoint has it; `None` when the slot is empty.
    ///
    /// # Errors
    /// When the entry holds a line that the origin does not have.
    pub(crate) fn decode(&self, slot: Slot, from: &[u8]) -> Result<Option<StoredSlot>, String> {
        let word = u32::from_le_bytes(from[5..9].try_into().expect("four bytes"));
        let state = u64::from(word);
        if state & USED == 0 {
            return Ok(None);
        }
        let mut line = [0; 8];
        line[..5].copy_from_slice(&from[..5]);
        let line = Line(u64::from_le_bytes(line));
        if line.0 >= self.geometry.origin_lines() {
            return Err(format!("slot {slot} holds line {line}, which the origin does not have"));
        }
        let mask_bytes = self.geometry.mask_bytes();
        let mut mask = [0; 16];
        mask[..mask_bytes].copy_from_slice(&from[9..9 + mask_bytes]);
        Ok(Some(StoredSlot {
            line,
            crc: word >> 8,
            dirty: state & DIRTY != 0,
            mask: (state & MASKED != 0).then_some(u128::from_le_bytes(mask)),
        }))
    }

    /// The first extent with dirty lines at or after `extent`.
    pub(crate) fn next_dirty_extent(&self, extent: u64) -> Option<u64> {
        let from = usize::try_from(extent).ok()?;
        let rest = self.dirty_in_extent.get(from..)?;
        rest.iter().position(|count| *count > 0).map(|found| extent + found as u64)
    }

    /// The last extent with dirty lines before `extent`.
    pub(crate) fn last_dirty_extent(&self, extent: u64) -> Option<u64> {
        let before = self.dirty_in_extent.get(..usize::try_from(extent).ok()?)?;
        before.iter().rposition(|count| *count > 0).map(|found| found as u64)
    }

    /// How many lines of a stretch are cached.
    pub(crate) fn used_in_stretch(&self, stretch: usize) -> u64 {
        self.used_in_stretch[stretch].into()
    }

    /// Whether nothing is cached of the stretches in which these lines are.
    pub(crate) fn is_bare(&self, first: Line, last: Line) -> bool {
        self.used_in_stretch[stretch_of(first)..=stretch_of(last)].iter().all(|count| *count == 0)
    }

    /// The cached lines from `first` to `last`, in order, with their slots. Stretches of which nothing is
    /// cached cost a look at their counter.
    pub(crate) fn cached_between(
        &self,
        first: Line,
        last: Line,
    ) -> impl Iterator<Item = (Line, Slot)> {
        let counts = &self.used_in_stretch[stretch_of(first)..=stretch_of(last)];
        let lines = lines_counted(counts, stretch_of(first), LINES_PER_STRETCH, first, last);
        lines.filter_map(|line| self.lookup(line).map(|slot| (line, slot)))
    }

    /// The dirty lines from `first` to `last`, in order.
    pub(crate) fn dirty_between(&self, first: Line, last: Line) -> impl Iterator<Item = Line> {
        let extent = |line: Line| (line.0 / LINES_PER_EXTENT) as usize;
        let counts = &self.dirty_in_extent[extent(first)..=extent(last)];
        let lines = lines_counted(counts, extent(first), LINES_PER_EXTENT, first, last);
        lines.filter(|line| self.lookup(*line).is_some_and(|slot| self.is_dirty(slot)))
    }

    /// The end of a piece of the lines from `first` to `last`, of which about `cached_max` lines are cached at
    /// the most: its last line. The piece ends with a stretch, or with `last`.
    pub(crate) fn last_of_piece(&self, first: Line, last: Line, cached_max: u64) -> Line {
        let from = stretch_of(first);
        let (mut cached, mut end) = (0, from);
        for count in &self.used_in_stretch[from..=stretch_of(last)] {
            cached += u64::from(*count);
            if cached > cached_max && end > from {
                break;
            }
            end += 1;
        }
        last.min(Line(end as u64 * LINES_PER_STRETCH - 1))
    }
}

/// The stretch in which a line is.
pub(crate) fn stretch_of(line: Line) -> usize {
    (line.0 / LINES_PER_STRETCH) as usize
}

/// The lines from `first` to `last` that are in groups whose count is not 0. The counts are those of the groups
/// from `group` on, each of so many lines.
fn lines_counted(
    counts: &[u16],
    group: usize,
    lines_per_group: u64,
    first: Line,
    last: Line,
) -> impl Iterator<Item = Line> {
    let groups = (group as u64..).zip(counts).filter(|(_, count)| **count > 0);
    groups.flat_map(move |(group, _)| {
        let begin = Line(group * lines_per_group);
        first.max(begin).through(last.min(begin + (lines_per_group - 1)))
    })
}

impl policy::Lines for Index {
    fn slot_of(&self, line: Line) -> Option<Slot> {
        self.lookup(line)
    }

    fn line_of(&self, slot: Slot) -> Line {
        Index::line_of(self, slot)
    }

    fn evictable(&self, slot: Slot) -> bool {
        self.word(slot) & (USED | DIRTY | PENDING) == USED
    }

    fn slots(&self) -> u32 {
        self.words.len() as u32
    }

    fn occupied(&self, slot: Slot) -> bool {
        self.is_used(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FormatOptions, LineSize};
    use crate::policy::PolicyKind;

    fn index() -> Index {
        index_over(1 << 21)
    }

    fn index_over(origin_sectors: u64) -> Index {
        let options =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [1; 16] };
        Index::new(&Geometry::plan(&options, 64 << 20, origin_sectors).unwrap()).unwrap()
    }

    fn placement(line: u64, slot: u32, dirty: bool) -> PlacedLine {
        let (line, slot) = (Line(line), Slot(slot));
        PlacedLine { line, slot, crc: 0xaabb_ccdd, dirty, mask: None, pending: false }
    }

    #[test]
    fn a_line_lives_in_one_slot_and_dirty_counts_follow_it() {
        let mut index = index();
        assert_eq!(index.place(placement(300, 5, true)), None);
        assert_eq!(index.place(placement(300, 9, true)), Some(Slot(5)));
        assert_eq!(
            (index.lookup(Line(300)), index.dirty_lines(), index.used_lines()),
            (Some(Slot(9)), 1, 1)
        );
        assert_eq!(index.next_dirty_extent(0), Some(1));
        assert_eq!([1, 2].map(|extent| index.last_dirty_extent(extent)), [None, Some(1)]);
        index.set_clean(Slot(9));
        assert_eq!((index.dirty_lines(), index.next_dirty_extent(0)), (0, None));
        index.remove(Slot(9));
        assert_eq!((index.lookup(Line(300)), index.live_in(Segment(0))), (None, 0));
    }

    #[test]
    fn a_long_range_finds_every_line_that_is_cached_and_dirty() {
        let mut prng = voltier_block::Prng::new(5);
        let mut index = index();
        let lines = index.geometry.origin_lines();
        let slots = u64::from(index.geometry.slot_count());
        for _ in 0..3000 {
            // Few stretches have many lines, and most have none.
            let within = 1 + prng.below(1500);
            let line = prng.below(8) * 9 * LINES_PER_STRETCH + prng.below(within);
            let slot = Slot(prng.below(slots) as u32);
            match index.lookup(Line(line)) {
                Some(old) if prng.one_in(3) => index.remove(old),
                _ if index.is_used(slot) => index.set_clean(slot),
                _ => {
                    index.place(placement(line, slot.0, prng.one_in(3)));
                }
            }
            let first = Line(prng.below(lines));
            let last = first + prng.below(lines - first.0);
            if prng.one_in(200) {
                let all = first.through(last);
                let expected: Vec<_> =
                    all.filter_map(|line| Some((line, index.lookup(line)?))).collect();
                assert!(index.cached_between(first, last).eq(expected.iter().copied()));
                let dirty = expected.iter().filter(|(_, slot)| index.is_dirty(*slot));
                assert!(index.dirty_between(first, last).eq(dirty.map(|(line, _)| *line)));
                assert!(expected.is_empty() || !index.is_bare(first, last));
            }
        }
        assert!(index.used_lines() > 1000 && index.dirty_lines() > 100);
    }

    #[test]
    fn pieces_of_a_range_end_where_enough_is_cached() {
        let mut index = index();
        for line in 0..100 {
            index.place(placement(5 * LINES_PER_STRETCH + line, line as u32, false));
        }
        let piece = |first, last, max| index.last_of_piece(Line(first), Line(last), max).0;
        let whole = 50 * LINES_PER_STRETCH + 7;
        assert_eq!(piece(3, whole, 100), whole);
        assert_eq!(piece(3, whole, 99), 5 * LINES_PER_STRETCH - 1, "all before the stretch");
        let stretch = 5 * LINES_PER_STRETCH;
        assert_eq!(piece(stretch, whole, 99), 6 * LINES_PER_STRETCH - 1, "at least a stretch");
        assert_eq!((piece(3, 3, 0), piece(3, 9, 0)), (3, 9));
        assert!(
            index.is_bare(Line(0), Line(stretch - 1)) && !index.is_bare(Line(0), Line(stretch))
        );
    }

    #[test]
    fn lines_of_small_and_of_huge_origins_come_back_from_a_slot() {
        for origin_sectors in [1, 8, 9, 1 << 21, 1 << 35, 1 << 39, 1 << 40] {
            let mut index = index_over(origin_sectors);
            let last = index.geometry.origin_lines() - 1;
            index.place(placement(last, 3, true));
            let mut state = vec![0; index.geometry.state_bytes_per_slot()];
            index.encode(Slot(3), &mut state);
            let state = index.decode(Slot(3), &state).unwrap().expect("the slot is used");
            let last = Line(last);
            assert_eq!((index.line_of(Slot(3)), index.lookup(last)), (last, Some(Slot(3))));
            assert_eq!((state.line, state.crc, state.dirty), (last, 0xbb_ccdd, true));
        }
    }

    #[test]
    fn an_origin_with_more_lines_than_forty_bits_number_is_refused() {
        let options =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [1; 16] };
        let plan = |lines: u64| Geometry::plan(&options, 64 << 20, lines * 8);
        assert!(plan(policy::LINE_LIMIT).is_ok());
        let error = plan(policy::LINE_LIMIT + 1).unwrap_err();
        assert_eq!(error, "the backing disk has 2^40 blocks or more; use a larger block size");
    }

    #[test]
    fn masks_exist_only_for_masked_lines() {
        let mut index = index();
        index.place(placement(1, 0, true));
        assert!(!index.has_masks && index.mask(Slot(0)).is_none());
        index.place(PlacedLine { mask: Some(0b101), ..placement(2, 1, true) });
        assert_eq!(index.mask(Slot(1)), Some(0b101));
        index.heal(Slot(1), 0b001, 0xff);
        assert_eq!(index.mask(Slot(1)), Some(0b100));
        index.heal(Slot(1), 0b100, 0xff);
        assert_eq!(index.lookup(Line(2)), None);
    }
}
