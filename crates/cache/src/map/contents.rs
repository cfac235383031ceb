//! The map: which line is in which slot, which line leaves next, and what the log may write. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

use voltier_block::SectorRange;

use crate::format::geometry::{Geometry, mask_of};
use crate::map::index::{
    Index, LINES_PER_EXTENT, LINES_PER_STRETCH, PlacedLine, StoredSlot, stretch_of,
};
use crate::map::loading::Loading;
use crate::map::ranges::LineRanges;
use crate::map::segments::{FreeSlots, Preparing, Segments};
use crate::memory::NoMemory;
use crate::numbers::{Line, Segment, Slot, each_line, each_segment, each_slot};
use crate::policy::{Lines, Policy, PolicyKind};

/// Slots of a checkpoint whose places are looked up together. As many cache misses are under way as a
/// core keeps, and so few slots stay in its first-level cache.
pub(crate) const LOOK_AHEAD_SLOTS: usize = 32;

/// All that is known of lines, slots and segments: one owner, never borrowed across a wait.
pub(crate) struct Contents {
    geometry: Geometry,
    index: Index,
    policy: Policy,
    segments: Segments,
    /// Present until the whole map of the checkpoint is loaded.
    loading: Option<Loading>,
    /// Lines taken out of the cache of which the log has not told yet.
    given_up: Vec<(Line, Slot)>,
    evictions: u64,
    /// Lines that were dropped because the origin may be newer.
    suspect_lines: u64,
}

/// A copy of a line that the origin has: the one that was in `slot`, with this CRC and mask.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CleanCopy {
    pub(crate) line: Line,
    pub(crate) slot: Slot,
    pub(crate) crc_bits: u32,
    pub(crate) mask: Option<u128>,
}

/// A policy for a cache of this geometry.
fn policy_for(kind: PolicyKind, geometry: &Geometry, seed: u64) -> Result<Policy, NoMemory> {
    let (slots, capacity) = (geometry.slot_count(), policy_lines(geometry));
    Policy::new(kind, slots, capacity, geometry.origin_lines(), seed)
}

/// Lines that a policy has room for: more than the cache, for the moment when nothing can be evicted.
fn policy_lines(geometry: &Geometry) -> u64 {
    let capacity = geometry.capacity_lines();
    capacity + capacity / 32
}

/// The memory of a policy for a cache of this geometry.
pub(crate) fn policy_bytes(geometry: &Geometry, kind: PolicyKind) -> u64 {
    let (slots, capacity) = (geometry.slot_count(), policy_lines(geometry));
    Policy::bytes_for(kind, slots, capacity, geometry.origin_lines())
}

impl Contents {
    /// The map of an empty cache.
    pub(crate) fn new(geometry: Geometry, policy: PolicyKind, seed: u64) -> Result<Self, NoMemory> {
        Ok(Self {
            index: Index::new(&geometry)?,
            policy: policy_for(policy, &geometry, seed)?,
            segments: Segments::new(geometry.segment_count)?,
            loading: None,
            given_up: Vec::new(),
            evictions: 0,
            suspect_lines: 0,
            geometry,
        })
    }

    /// The memory of a map, while it is loaded too.
    pub(crate) fn bytes_for(geometry: &Geometry, policy: PolicyKind) -> u64 {
        Index::bytes_for(geometry)
            + policy_bytes(geometry, policy)
            + Segments::bytes_for(geometry.segment_count, geometry.slots_per_segment)
            + Loading::bytes_for(geometry)
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    #[inline]
    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// The index alone, for a replay: the policy hears of all lines when it is over.
    pub(crate) fn index_mut(&mut self) -> &mut Index {
        &mut self.index
    }

    pub(crate) fn segments(&self) -> &Segments {
        &self.segments
    }

    pub(crate) fn segments_mut(&mut self) -> &mut Segments {
        &mut self.segments
    }

    /// The loading under way, until the whole map is in memory.
    pub(crate) fn loading(&self) -> Option<&Loading> {
        self.loading.as_ref()
    }

    pub(crate) fn loading_mut(&mut self) -> Option<&mut Loading> {
        self.loading.as_mut()
    }

    pub(crate) fn begin_loading(&mut self, loading: Loading) {
        self.loading = Some(loading);
    }

    /// The whole map is in memory.
    pub(crate) fn end_loading(&mut self) {
        self.loading = None;
    }

    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    pub(crate) fn suspect_lines(&self) -> u64 {
        self.suspect_lines
    }

    pub(crate) fn policy_kind(&self) -> PolicyKind {
        self.policy.kind()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.index.memory_bytes()
            + self.policy.memory_bytes()
            + self.segments.memory_bytes()
            + self.loading.as_ref().map_or(0, Loading::memory_bytes)
    }

    /// A client asked for the line in this slot.
    #[inline]
    pub(crate) fn touch(&mut self, slot: Slot, line: Line) {
        self.policy.touch(slot, line);
    }

    /// Puts a line into a free slot; `old` is the slot that has its older copy.
    pub(crate) fn put(&mut self, placement: PlacedLine, old: Option<Slot>) {
        let (slot, line) = (placement.slot, placement.line);
        self.index.put(placement, old);
        match old {
            Some(old) => self.policy.relocate(old, slot, line),
            None => self.policy.insert(slot, line),
        }
    }

    /// The origin has the line in this slot.
    pub(crate) fn set_clean(&mut self, slot: Slot) {
        self.index.set_clean(slot);
    }

    /// The origin has these copies, and no log is to hear of it: its end was before.
    pub(crate) fn call_clean(&mut self, copies: impl Iterator<Item = CleanCopy>) {
        for copy in copies {
            if self.is_dirty_copy(&copy) {
                self.index.set_clean(copy.slot);
            }
        }
    }

    /// Whether this copy is the newest of its line, and dirty. A newer copy may be in the very same slot:
    /// the log has been around meanwhile.
    pub(crate) fn is_dirty_copy(&self, copy: &CleanCopy) -> bool {
        let CleanCopy { line, slot, crc_bits, mask } = *copy;
        self.index.is_dirty_in(line, slot)
            && (self.index.crc_bits(slot), self.index.mask(slot)) == (crc_bits, mask)
    }

    /// Whether the origin lacks the newest copy of this line.
    #[inline]
    pub(crate) fn is_dirty(&self, line: Line) -> bool {
        self.index.lookup(line).is_some_and(|slot| self.index.is_dirty(slot))
    }

    /// The record that carries the data of this slot is on the SSD.
    pub(crate) fn clear_pending(&mut self, slot: Slot) {
        self.index.clear_pending(slot);
    }

    /// Takes a line out of the cache.
    pub(crate) fn forget(&mut self, line: Line, slot: Slot) {
        self.policy.remove(slot, line);
        self.index.remove(slot);
        if let Some(loading) = &mut self.loading {
            loading.void(line, line);
        }
    }

    /// Takes the clean ones of these lines out of the cache.
    pub(crate) fn forget_clean(&mut self, first: Line, last: Line) {
        let cached = self.index.cached_between(first, last);
        let clean: Vec<_> = cached.filter(|(_, slot)| !self.index.is_dirty(*slot)).collect();
        for (line, slot) in clean {
            self.forget(line, slot);
        }
    }

    /// Pushes out the line that the policy chooses; `None` if none of those asked can go.
    pub(crate) fn evict(&mut self) -> Option<(Line, Slot)> {
        let victim = self.policy.victim(&self.index)?;
        let line = self.index.line_of(victim);
        self.forget(line, victim);
        self.evictions += 1;
        Some((line, victim))
    }

    /// Takes the clean lines of a segment out of the cache, to make room in it. The next record tells
    /// of it; should a crash come first, their checksums tell that they are not there any more.
    pub(crate) fn give_up_clean(&mut self, segment: Segment) {
        for slot in each_slot(self.geometry.slots_of_segment(segment)) {
            if self.index.evictable(slot) {
                let line = self.index.line_of(slot);
                self.forget(line, slot);
                self.evictions += 1;
                self.given_up.push((line, slot));
            }
        }
    }

    /// Clean lines of a segment that could be prepared without them; 0 of any other.
    pub(crate) fn clean_in_usable(&self, segment: Segment) -> u32 {
        if !self.segments.is_usable(segment) {
            return 0;
        }
        let slots = each_slot(self.geometry.slots_of_segment(segment));
        slots.filter(|slot| self.index.evictable(*slot)).count() as u32
    }

    /// A line that was given up, for the log to tell of.
    pub(crate) fn pop_given_up(&mut self) -> Option<(Line, Slot)> {
        self.given_up.pop()
    }

    /// Lines in the cache, with those that are still to be loaded.
    pub(crate) fn lines_expected(&self) -> u64 {
        self.index.used_lines() + self.loading.as_ref().map_or(0, Loading::lines_left)
    }

    /// During the load of the map, lines that may leave are found only in a part of the cache. New
    /// lines must not take the place of those that are still to come.
    pub(crate) fn has_room_to_load(&self) -> bool {
        let capacity = self.geometry.capacity_lines();
        self.loading.is_none() || self.lines_expected() < capacity + capacity / 64
    }

    /// The record of a slot never reaches the SSD. Of the line only those sectors are lost that the
    /// version before had dirty; the origin has the rest.
    pub(crate) fn lose_pending(&mut self, slot: Slot, lost: u128) {
        if self.index.is_pending(slot) {
            let all = self.geometry.line_mask(self.index.line_of(slot));
            self.index.clear_pending(slot);
            self.index.heal(slot, all & !lost, all);
        }
    }

    /// After the loss of the SSD: the origin has these sectors again.
    pub(crate) fn heal(&mut self, range: SectorRange) {
        if range.is_empty() {
            return;
        }
        let (first, last) = self.geometry.lines_of(range);
        let cached: Vec<_> = self.index.cached_between(first, last).collect();
        for (line, slot) in cached {
            if self.index.is_dirty(slot) {
                let whole = self.geometry.line_range(line);
                let (start, end) = (range.start.max(whole.start), range.end().min(whole.end()));
                let written = mask_of(start.0 - whole.start.0, end.0 - start.0);
                self.index.heal(slot, written, self.geometry.line_mask(line));
            } else {
                self.index.remove(slot);
            }
        }
    }

    /// Dirty lines among these that are on the SSD, in order.
    pub(crate) fn dirty_among(&self, lines: Range<Line>) -> Vec<(Line, Slot)> {
        let dirty = |line| {
            let slot = self.index.lookup(line)?;
            let ready = self.index.is_dirty(slot) && !self.index.is_pending(slot);
            ready.then_some((line, slot))
        };
        each_line(lines).filter_map(dirty).collect()
    }

    /// Ranges of dirty lines, at most `count_max` of them, merged.
    pub(crate) fn dirty_ranges(&self, count_max: usize) -> Vec<SectorRange> {
        let mut ranges: Vec<SectorRange> = Vec::new();
        let mut extent = 0;
        while let Some(found) = self.index.next_dirty_extent(extent) {
            let first = found * LINES_PER_EXTENT;
            let end = (first + LINES_PER_EXTENT).min(self.geometry.origin_lines());
            for (line, slot) in self.dirty_among(Line(first)..Line(end)) {
                for run in self.geometry.valid_runs(line, self.index.mask(slot)) {
                    let full = ranges.len() == count_max;
                    match ranges.last_mut() {
                        Some(last) if last.end() == run.start => last.count += run.count,
                        _ if full => return ranges,
                        _ => ranges.push(run),
                    }
                }
            }
            extent = found + 1;
        }
        ranges
    }

    /// Slots of a segment in which no line lives.
    pub(crate) fn free_slots_of(&self, segment: Segment) -> FreeSlots {
        FreeSlots::of(segment, &self.index, &self.geometry)
    }

    /// The lines of these segments are in the index now; the log's next record has this number.
    pub(crate) fn learn_segments(&mut self, learned: Range<Segment>, next_sequence: u64) {
        self.segments.learn(learned, next_sequence, &self.index, &self.geometry);
    }

    /// Begins to prepare a closed segment for the log, whose next record has this number.
    pub(crate) fn prepare_segment(&mut self, segment: Segment, next_sequence: u64) -> Preparing {
        self.segments.prepare(segment, next_sequence, &self.index, &self.geometry)
    }

    /// Has another policy choose who leaves: it begins with the lines in the order of their slots.
    pub(crate) fn set_policy(&mut self, kind: PolicyKind, seed: u64) -> Result<(), NoMemory> {
        self.policy = policy_for(kind, &self.geometry, seed)?;
        self.tell_policy();
        Ok(())
    }

    /// Tells the policy of every line, in the order of the slots.
    pub(crate) fn tell_policy(&mut self) {
        for segment in each_segment(self.geometry.segments()) {
            for slot in self.used_slots_of(segment) {
                self.policy.insert(slot, self.index.line_of(slot));
            }
        }
    }

    /// Slots of a segment with a line in them.
    fn used_slots_of(&self, segment: Segment) -> Vec<Slot> {
        if self.index.live_in(segment) == 0 {
            return Vec::new();
        }
        let slots = each_slot(self.geometry.slots_of_segment(segment));
        slots.filter(|slot| self.index.is_used(*slot)).collect()
    }

    /// Drops the clean lines that `is_suspect` says of their first sector. The log need not hear of it:
    /// the intent bits stay until a checkpoint is without these lines.
    pub(crate) fn drop_suspects(&mut self, is_suspect: impl Fn(u64) -> bool) {
        let line_sectors = self.geometry.line_sectors();
        for segment in each_segment(self.geometry.segments()) {
            for slot in self.used_slots_of(segment) {
                let line = self.index.line_of(slot);
                if !self.index.is_dirty(slot) && is_suspect(line.0 * line_sectors) {
                    self.index.remove(slot);
                    self.suspect_lines += 1;
                }
            }
        }
    }

    /// Drops the lines that were changed past the SSD while it was evacuated, dirty or not. The caller has a
    /// checkpoint written before anything else is forgotten of that.
    pub(crate) fn drop_passed(&mut self, passed: &LineRanges) {
        for segment in each_segment(self.geometry.segments()) {
            for slot in self.used_slots_of(segment) {
                if passed.contains(self.index.line_of(slot)) {
                    self.index.remove(slot);
                    self.suspect_lines += 1;
                }
            }
        }
        if let Some(loading) = &mut self.loading {
            passed.iter().for_each(|(first, last)| loading.void(first, last));
        }
    }

    /// Gives up all lines that are still to be loaded: the origin was changed.
    pub(crate) fn drop_unloaded(&mut self) {
        self.suspect_lines += self.loading.take().map_or(0, |loading| loading.lines_left());
    }

    /// Whether something newer is known than what the map to be loaded says of a slot.
    fn is_out_of_date(&self, loading: &Loading, slot: Slot, from: &StoredSlot) -> bool {
        loading.is_decided(slot)
            || self.index.is_used(slot)
            || loading.is_void(from.line)
            || self.index.lookup(from.line).is_some()
    }

    /// Takes the state of a slot in, unless something newer is known. Returns whether the state was taken.
    pub(crate) fn take_slot(&mut self, slot: Slot, from: &StoredSlot) -> bool {
        let Some(loading) = &self.loading else { return false };
        if self.is_out_of_date(loading, slot, from) {
            return false;
        }
        let first_sector = from.line.0 * self.geometry.line_sectors();
        if !from.dirty && loading.is_distrusted(first_sector) {
            self.suspect_lines += 1;
            return false;
        }
        let StoredSlot { line, crc, dirty, mask } = *from;
        self.index.put(PlacedLine { line, slot, crc, dirty, mask, pending: false }, None);
        true
    }

    /// The clean and whole lines in memory, each with what is kept of its checksum.
    pub(crate) fn clean_lines(&self) -> impl Iterator<Item = (Line, u32)> {
        let is_clean =
            |slot: &Slot| !self.index.is_dirty(*slot) && self.index.mask(*slot).is_none();
        let facts = |slot| (self.index.line_of(slot), self.index.crc_bits(slot));
        let segments = each_segment(self.geometry.segments());
        let used = segments.flat_map(|segment| self.used_slots_of(segment));
        used.filter(is_clean).map(facts)
    }

    /// The clean and whole lines of slots that are still to be loaded, which `body` has. States that do not
    /// exist are left out.
    pub(crate) fn clean_lines_of(
        &self,
        body: &[u8],
        slots: Range<Slot>,
    ) -> impl Iterator<Item = (Line, u32)> {
        let states = body.chunks_exact(self.geometry.state_bytes_per_slot());
        states.zip(each_slot(slots)).filter_map(|(from, slot)| {
            let loading = self.loading.as_ref()?;
            let found = self.index.decode(slot, from).ok().flatten()?;
            let is_clean = !found.dirty && found.mask.is_none();
            let is_current = is_clean && !self.is_out_of_date(loading, slot, &found);
            is_current.then_some((found.line, found.crc))
        })
    }

    /// Takes the state of `slots` in, which `body` has; the number of clean lines among them, taken or
    /// not.
    ///
    /// # Errors
    /// When a slot holds a line that the origin does not have.
    pub(crate) fn take_slots(
        &mut self,
        body: &[u8],
        slots: Range<Slot>,
        tell_policy: bool,
    ) -> Result<u64, String> {
        let bytes = self.geometry.state_bytes_per_slot();
        let (mut slots, mut clean) = (each_slot(slots), 0);
        for group in body.chunks(LOOK_AHEAD_SLOTS * bytes) {
            self.index.warm_up(group.chunks_exact(bytes));
            for (from, slot) in group.chunks_exact(bytes).zip(&mut slots) {
                let Some(found) = self.index.decode(slot, from)? else { continue };
                clean += u64::from(!found.dirty);
                if self.take_slot(slot, &found) && tell_policy {
                    self.policy.insert(slot, found.line);
                }
            }
        }
        Ok(clean)
    }

    /// Checks that every line that is cached is found in its slot, and that the sums are the sums.
    ///
    /// # Errors
    /// A sentence that names the first account that does not balance.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let (mut used, mut dirty, mut dirty_sectors) = (0, 0, 0);
        let mut in_stretch = BTreeMap::new();
        for slot in each_slot(self.geometry.slots()).filter(|slot| self.index.is_used(*slot)) {
            let line = self.index.line_of(slot);
            let found = self.index.lookup(line);
            must(found == Some(slot), || {
                format!("line {line} is in slot {slot}, the table says {found:?}")
            })?;
            must(!self.index.is_pending(slot), || format!("slot {slot} waits for its record"))?;
            used += 1;
            *in_stretch.entry(stretch_of(line)).or_insert(0) += 1;
            if self.index.is_dirty(slot) {
                dirty += 1;
                let mask = self.index.mask(slot);
                dirty_sectors +=
                    mask.map_or(self.geometry.line_sectors(), |it| it.count_ones().into());
            }
        }
        let (used_count, dirty_count) = (self.index.used_lines(), self.index.dirty_lines());
        must(used == used_count, || format!("{used} slots are used, {used_count} are counted"))?;
        must(dirty == dirty_count, || {
            format!("{dirty} lines are dirty, {dirty_count} are counted")
        })?;
        let sectors_count = self.index.dirty_sectors();
        must(dirty_sectors == sectors_count, || {
            format!("{dirty_sectors} sectors are dirty, {sectors_count} are counted")
        })?;
        let stretches = self.geometry.origin_lines().div_ceil(LINES_PER_STRETCH) as usize;
        for stretch in 0..stretches {
            let found = in_stretch.get(&stretch).copied().unwrap_or(0);
            let count = self.index.used_in_stretch(stretch);
            must(found == count, || {
                format!("stretch {stretch}: {found} lines are cached, {count} are counted")
            })?;
        }
        for segment in each_segment(self.geometry.segments()) {
            let live = self.index.live_in(segment);
            let taken = self.geometry.slots_per_segment - self.free_slots_of(segment).count();
            must(taken == live, || {
                format!("segment {segment}: {live} lines live in {taken} slots")
            })?;
        }
        self.segments.audit_lives(&self.index, &self.geometry)
    }
}

/// An error unless `right`.
pub(crate) fn must(right: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if right { Ok(()) } else { Err(what()) }
}
