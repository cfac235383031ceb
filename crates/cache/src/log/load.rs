//! Loading the map of a checkpoint: first what must be known before anything is served, then, while
//! the cache serves, the rest.
//!
//! What must be known are the dirty lines, which the checkpoint lists apart, and the log behind it. A
//! line that neither of them names is clean or not cached: the origin has its content, so it can be
//! read and written before its place in the cache is known. The rest of the map is then taken in slot
//! by slot, without what is out of date: slots and lines that the log behind the checkpoint names,
//! lines that left since, and lines that were written past the log since.

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use voltier_block::{BlockDevice, Buf, IoResult};
use voltier_ring::{JoinHandle, join_all};

use crate::cache::Inner;
use crate::format::chunk::{
    CHUNK_BYTES, CHUNK_HEAD_BYTES, CHUNK_MAGIC, ChunkHead, ChunkName, DIRTY_CHUNK_MAGIC,
};
use crate::format::geometry::Geometry;
use crate::format::superblock::{NO_DIRTY_LIST, Superblock};
use crate::log::form::State;
use crate::log::intents::Marks;
use crate::log::recover::{OpenError, ssd_error};
use crate::map::index::{Placement, SlotState};
use crate::status::add;

/// Chunks read at once: 2 MiB on their way keep a disk or an SSD at full bandwidth.
const CHUNKS_IN_FLIGHT: usize = 8;
/// Slots taken in at once while the cache serves: 0.3 ms of one core.
const STEP_SLOTS_MAX: u32 = 4096;
/// A rest between two steps while clients are busy: about half of the core is theirs at least.
const STEP_REST_NS: u64 = 200_000;
/// Slots of a checkpoint whose places are looked up together: as many cache misses as a core keeps
/// under way, and few enough to stay in its first-level cache.
const LOOK_AHEAD_SLOTS: usize = 32;

/// Where the map is.
#[derive(Clone, Copy)]
struct Map {
    area: u32,
    chunks: u64,
    replay_sequence: u64,
}

impl Map {
    fn of(found: &Superblock) -> Self {
        Self {
            area: found.checkpoint_area.get(),
            chunks: found.checkpoint_chunks.get(),
            replay_sequence: found.replay_sequence.get(),
        }
    }

    fn chunk_name(&self, uuid: [u8; 16], magic: u32, index: u32) -> ChunkName {
        ChunkName { magic, uuid, replay_sequence: self.replay_sequence, index }
    }
}

/// Lines of which the map is not to be asked, as ranges: begin, and the first one behind it.
#[derive(Default)]
struct Void(BTreeMap<u64, u64>);

impl Void {
    fn insert(&mut self, first: u64, last: u64) {
        let (mut start, mut end) = (first, last + 1);
        while let Some((&from, &to)) = self.0.range(..=end).next_back()
            && to >= start
        {
            (start, end) = (start.min(from), end.max(to));
            self.0.remove(&from);
        }
        self.0.insert(start, end);
    }

    fn contains(&self, line: u64) -> bool {
        self.0.range(..=line).next_back().is_some_and(|(_, end)| line < *end)
    }
}

/// A map that is not loaded yet, or not all of it.
pub(crate) struct Loading {
    map: Map,
    /// Where to begin: behind the end of the log is what it left longest ago, the emptiest of all.
    first_chunk: u64,
    /// One bit for every slot of which the map is not to be asked.
    decided: Vec<u64>,
    void: Void,
    /// After an unclean stop: regions in which clean lines are not trusted.
    distrusted: Option<Marks>,
    /// Clean lines in what was not taken in yet, out of date or not.
    lines_left: u64,
}

impl Loading {
    /// The whole of the map that the superblock names.
    pub(crate) fn new(found: &Superblock, geometry: &Geometry) -> Self {
        Self {
            map: Map::of(found),
            first_chunk: 0,
            decided: vec![0; geometry.slot_count().div_ceil(64) as usize],
            void: Void::default(),
            distrusted: None,
            lines_left: found.checkpoint_lines.get().min(geometry.slot_count().into()),
        }
    }

    pub(crate) fn lines_left(&self) -> u64 {
        self.lines_left
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.decided.len() * 8 + self.void.0.len() * 16
    }

    fn is_decided(&self, slot: u32) -> bool {
        self.decided[slot as usize / 64] & 1 << (slot % 64) != 0
    }

    /// What is in a slot is known by now.
    pub(crate) fn decide(&mut self, slot: u32) {
        self.decided[slot as usize / 64] |= 1 << (slot % 64);
    }

    /// Whatever the map says of these lines is out of date.
    pub(crate) fn void(&mut self, first: u64, last: u64) {
        self.void.insert(first, last);
    }

    /// A replayed record took a line out of a slot.
    pub(crate) fn replay_drop(&mut self, line: u64, slot: u32) {
        // A line that the same log had brought there may be in the map elsewhere.
        if self.is_decided(slot) {
            self.void(line, line);
        }
        self.decide(slot);
    }

    /// Clean lines of marked regions are not to be taken in.
    pub(crate) fn distrust(&mut self, marks: Marks) {
        self.distrusted = Some(marks);
    }
}

impl State {
    /// Takes the state of a slot in, unless something newer is known. Whether it was taken.
    fn take_slot(&mut self, slot: u32, from: &SlotState) -> bool {
        let Some(loading) = &self.loading else { return false };
        let stale = loading.is_decided(slot)
            || self.index.is_used(slot)
            || loading.void.contains(from.line)
            || self.index.lookup(from.line).is_some();
        if stale {
            return false;
        }
        let first_sector = from.line * self.geometry.line_sectors();
        if !from.dirty && loading.distrusted.as_ref().is_some_and(|it| it.is_marked(first_sector)) {
            self.counts.suspect_lines += 1;
            return false;
        }
        let SlotState { line, crc, dirty, mask } = *from;
        self.index.put(Placement { line, slot, crc, dirty, mask, pending: false }, None);
        true
    }

    /// Takes the slots of a chunk in that are in `slots`; the number of clean lines among them, taken
    /// or not.
    fn take_chunk(
        &mut self,
        chunk: &[u8],
        index: u64,
        slots: Range<u32>,
        tell_policy: bool,
    ) -> Result<u64, String> {
        let bytes = self.geometry.state_bytes_per_slot();
        let first = self.geometry.slots_of_chunk(index).start;
        let (from, to) = ((slots.start - first) as usize, (slots.end - first) as usize);
        let body = &chunk[CHUNK_HEAD_BYTES + from * bytes..CHUNK_HEAD_BYTES + to * bytes];
        let mut slots = slots;
        let mut clean = 0;
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

    /// Slots of chunk `index` of the map, if it is whole.
    fn check_chunk(&self, chunk: &[u8], map: &Map, index: u64) -> Result<Range<u32>, OpenError> {
        let damaged = |what: &str| OpenError::Damaged(format!("chunk {index} of its map: {what}"));
        let name = map.chunk_name(self.uuid, CHUNK_MAGIC, index as u32);
        let head = ChunkHead::decode(chunk, &name).ok_or_else(|| damaged("not whole"))?;
        let slots = self.geometry.slots_of_chunk(index);
        if head.first_slot.get() != slots.start || head.count.get() != slots.len() as u32 {
            return Err(damaged("not the slots of its place"));
        }
        Ok(slots)
    }

    /// Takes one whole chunk in before anything is served.
    fn load_chunk(
        &mut self,
        chunk: &[u8],
        map: &Map,
        index: u64,
        only: Option<Range<u32>>,
    ) -> Result<(), OpenError> {
        let mut slots = self.check_chunk(chunk, map, index)?;
        if let Some(only) = only {
            slots = slots.start.max(only.start)..slots.end.min(only.end);
        }
        self.take_chunk(chunk, index, slots, false)
            .map(drop)
            .map_err(|what| OpenError::Damaged(format!("chunk {index} of its map: {what}")))
    }
}

/// Reads chunks that stand one behind the other, all at once.
async fn read_chunks<S: BlockDevice>(
    ssd: &S,
    geometry: &Geometry,
    area: u32,
    chunks: Range<u64>,
) -> Vec<IoResult<Buf>> {
    let read = |index| ssd.read(geometry.chunk_lba(area, index), Buf::new(CHUNK_BYTES));
    join_all(chunks.map(read)).await
}

/// Loads what must be known before the log is replayed: the dirty lines, or everything when there is
/// no list of them. `state.loading` tells whether more of the map is to be loaded later.
///
/// # Errors
/// When the checkpoint is damaged or cannot be read.
pub(crate) async fn load_before_replay<S: BlockDevice>(
    ssd: &S,
    found: &Superblock,
    state: &mut State,
) -> Result<(), OpenError> {
    let map = Map::of(found);
    if map.area > 1 {
        return Err(OpenError::Damaged(format!("it names checkpoint area {} of two", map.area)));
    }
    if map.chunks > 0 && map.chunks != state.geometry.chunk_count() {
        return Err(OpenError::Damaged("its checkpoint is not as large as its area".to_owned()));
    }
    if map.chunks == 0 {
        return Ok(());
    }
    state.loading = Some(Loading::new(found, &state.geometry));
    if found.dirty_chunks.get() != NO_DIRTY_LIST {
        return load_dirty_lines(ssd, found, state).await;
    }
    let mut next = 0;
    while next < map.chunks {
        let until = (next + CHUNKS_IN_FLIGHT as u64).min(map.chunks);
        let chunks = read_chunks(ssd, &state.geometry, map.area, next..until).await;
        for (chunk, index) in chunks.into_iter().zip(next..) {
            state.load_chunk(&chunk.map_err(ssd_error)?, &map, index, None)?;
        }
        next = until;
    }
    state.loading = None;
    Ok(())
}

async fn load_dirty_lines<S: BlockDevice>(
    ssd: &S,
    found: &Superblock,
    state: &mut State,
) -> Result<(), OpenError> {
    let map = Map::of(found);
    let count = u64::from(found.dirty_chunks.get());
    if count > state.geometry.dirty_chunks_max() {
        return Err(OpenError::Damaged(
            "its list of dirty lines is larger than its area".to_owned(),
        ));
    }
    let first = state.geometry.chunk_count();
    let mut next = 0;
    while next < count {
        let until = (next + CHUNKS_IN_FLIGHT as u64).min(count);
        let chunks = read_chunks(ssd, &state.geometry, map.area, first + next..first + until).await;
        for (chunk, index) in chunks.into_iter().zip(next..) {
            take_dirty_chunk(state, &chunk.map_err(ssd_error)?, &map, index as u32)?;
        }
        next = until;
    }
    Ok(())
}

fn take_dirty_chunk(
    state: &mut State,
    chunk: &[u8],
    map: &Map,
    index: u32,
) -> Result<(), OpenError> {
    let damaged =
        |what: String| OpenError::Damaged(format!("chunk {index} of its dirty lines: {what}"));
    let name = map.chunk_name(state.uuid, DIRTY_CHUNK_MAGIC, index);
    let head = ChunkHead::decode(chunk, &name).ok_or_else(|| damaged("not whole".to_owned()))?;
    let (bytes, count) = (4 + state.geometry.state_bytes_per_slot(), head.count.get() as usize);
    if count > state.geometry.dirty_per_chunk() {
        return Err(damaged("more lines than it has room for".to_owned()));
    }
    let body = &chunk[CHUNK_HEAD_BYTES..CHUNK_HEAD_BYTES + count * bytes];
    for group in body.chunks(LOOK_AHEAD_SLOTS * bytes) {
        state.index.warm_up(group.chunks_exact(bytes).map(|entry| &entry[4..]));
        for entry in group.chunks_exact(bytes) {
            let slot = u32::from_le_bytes(entry[..4].try_into().expect("four bytes"));
            if slot >= state.geometry.slot_count() {
                return Err(damaged(format!("slot {slot} does not exist")));
            }
            let Some(found) = state.index.decode(slot, &entry[4..]).map_err(damaged)? else {
                return Err(damaged(format!("slot {slot} is empty")));
            };
            // Lines move while a checkpoint is written: the log says which of two places counts.
            state.take_slot(slot, &found);
            if let Some(loading) = &mut state.loading {
                loading.decide(slot);
                loading.lines_left = loading.lines_left.saturating_sub(1);
            }
        }
    }
    Ok(())
}

/// Takes in the segments in which the log goes on: it writes around the lines that live there.
///
/// # Errors
/// When their chunks are damaged or cannot be read.
pub(crate) async fn load_open_segments<S: BlockDevice>(
    ssd: &S,
    state: &mut State,
) -> Result<(), OpenError> {
    let Some(map) = state.loading.as_ref().map(|loading| loading.map) else { return Ok(()) };
    for segment in [state.position.segment, state.position.next_segment] {
        let first = segment * state.geometry.slots_per_segment;
        let slots = first..first + state.geometry.slots_per_segment;
        let per_chunk = state.geometry.slots_per_chunk();
        let chunks = u64::from(slots.start / per_chunk)..u64::from((slots.end - 1) / per_chunk) + 1;
        let read = read_chunks(ssd, &state.geometry, map.area, chunks.clone()).await;
        for (chunk, index) in read.into_iter().zip(chunks) {
            state.load_chunk(&chunk.map_err(ssd_error)?, &map, index, Some(slots.clone()))?;
        }
        if let Some(loading) = &mut state.loading {
            loading.first_chunk = u64::from((slots.end - 1) / per_chunk);
            slots.for_each(|slot| loading.decide(slot));
        }
    }
    Ok(())
}

type ChunkRead = JoinHandle<IoResult<Buf>>;

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    /// The task that loads the rest of the map while the cache serves.
    pub(crate) async fn load_rest(self: Rc<Self>) {
        let begin = self.state.borrow().loading.as_ref().map(|it| (it.map, it.first_chunk));
        let Some((map, first)) = begin else { return };
        let order = (first..map.chunks).chain(0..first);
        let mut ahead: VecDeque<ChunkRead> = VecDeque::new();
        let mut to_read = order.clone();
        for index in order {
            while ahead.len() < CHUNKS_IN_FLIGHT
                && let Some(next) = to_read.next()
            {
                ahead.push_back(self.clone().read_ahead(map, next));
            }
            let Some(chunk) = ahead.pop_front() else { break };
            let chunk = chunk.await;
            if !self.take_in(&map, index, chunk).await {
                return;
            }
        }
        self.state.borrow_mut().loading = None;
        self.tell_of_loading();
    }

    fn read_ahead(self: Rc<Self>, map: Map, index: u64) -> ChunkRead {
        let handle = self.handle.clone();
        handle.spawn(async move {
            let at = self.geometry.chunk_lba(map.area, index);
            self.ssd.read(at, Buf::new(CHUNK_BYTES)).await
        })
    }

    /// Takes one chunk in, step by step; false when the cache ends or has lost its SSD.
    ///
    /// A chunk that is damaged or cannot be read costs clean lines only: the dirty ones are known.
    async fn take_in(&self, map: &Map, index: u64, chunk: IoResult<Buf>) -> bool {
        let slots = self.geometry.slots_of_chunk(index);
        let chunk = match chunk {
            Ok(chunk) if self.state.borrow().check_chunk(&chunk, map, index).is_ok() => Some(chunk),
            Ok(_) => {
                add(&self.counters.damaged_chunks, 1);
                None
            }
            Err(error) => {
                self.count_ssd_error(error);
                None
            }
        };
        // The smallest cache is loaded in several steps too.
        let step = (self.geometry.slot_count() / 32).clamp(1, STEP_SLOTS_MAX);
        let mut next = slots.start;
        while next < slots.end {
            let until = (next + step).min(slots.end);
            let before = self.requests();
            if self.failed() || self.stopping.get() {
                return false;
            }
            self.take_step(chunk.as_deref(), index, next..until);
            self.tell_of_loading();
            next = until;
            self.handle.yield_now().await;
            if self.requests() > before {
                self.handle.sleep(STEP_REST_NS).await;
            }
        }
        true
    }

    fn take_step(&self, chunk: Option<&[u8]>, index: u64, slots: Range<u32>) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let taken = chunk.map(|chunk| state.take_chunk(chunk, index, slots.clone(), true));
        let first_chunk = state.loading.as_ref().map_or(0, |loading| loading.first_chunk);
        match (taken, &mut state.loading) {
            (Some(Ok(clean)), Some(loading)) => {
                loading.lines_left = loading.lines_left.saturating_sub(clean);
            }
            // Whole, and yet with lines that do not exist: what is left of it is not believed.
            (Some(Err(_)), _) => add(&self.counters.damaged_chunks, 1),
            _ => {}
        }
        let learned = learned_segments(&self.geometry, first_chunk, &slots);
        state.segments.learn(learned, &state.index, &self.geometry);
    }

    /// Requests of clients that have completed.
    fn requests(&self) -> u64 {
        self.counters.reads.get().requests + self.counters.writes.get().requests
    }

    fn tell_of_loading(&self) {
        self.loading_progress.notify();
        self.log_work.notify();
        self.reclaim_work.notify();
    }

    /// Waits until the whole map is loaded, or the SSD is lost.
    pub(crate) async fn loaded(&self) {
        let done = || self.failed() || self.state.borrow().loading.is_none();
        self.loading_progress.until(done).await;
    }

    /// These lines are about to be changed past the log: what the map says of them will be out of
    /// date. The caller holds their locks.
    pub(crate) fn void_unloaded(&self, first: u64, last: u64) {
        if let Some(loading) = &mut self.state.borrow_mut().loading {
            loading.void(first, last);
        }
    }
}

/// Segments that are whole in memory by the step that took `slots` in, and were not before.
fn learned_segments(geometry: &Geometry, first_chunk: u64, slots: &Range<u32>) -> Range<u32> {
    let per_segment = geometry.slots_per_segment;
    let begin = geometry.slots_of_chunk(first_chunk).start;
    // A chunk may begin within a segment: the first one has to wait for the last chunk.
    let (first, until) = match slots.end.cmp(&begin) {
        Ordering::Greater => (begin.div_ceil(per_segment), slots.end / per_segment),
        Ordering::Equal => (0, slots.end.div_ceil(per_segment)),
        Ordering::Less => (0, slots.end / per_segment),
    };
    let first = first.max(slots.start / per_segment);
    first..until.max(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_segment_is_learned_once_wherever_loading_begins() {
        let options = crate::config::FormatOptions {
            line_size: crate::config::LineSize::new(2048).unwrap(),
            policy: crate::policy::PolicyKind::Lru,
            uuid: [1; 16],
        };
        let geometry = Geometry::plan(&options, 160 << 20, 1 << 20).unwrap();
        for first in 0..geometry.chunk_count() {
            let mut learned = vec![0; geometry.segment_count as usize];
            for index in (first..geometry.chunk_count()).chain(0..first) {
                let slots = geometry.slots_of_chunk(index);
                for start in slots.clone().step_by(700) {
                    let step = start..(start + 700).min(slots.end);
                    for segment in learned_segments(&geometry, first, &step) {
                        learned[segment as usize] += 1;
                    }
                }
            }
            assert!(learned.iter().all(|times| *times == 1), "{first}: {learned:?}");
        }
    }

    #[test]
    fn void_ranges_merge_and_answer_for_every_line() {
        let mut void = Void::default();
        let mut model = std::collections::BTreeSet::new();
        let mut prng = voltier_block::Prng::new(3);
        for _ in 0..2000 {
            let first = prng.below(3000);
            let last = first + prng.below(4);
            void.insert(first, last);
            model.extend(first..=last);
            assert!(void.0.len() <= model.len());
        }
        assert!((0..3100).all(|line| void.contains(line) == model.contains(&line)));
        void.insert(0, 4000);
        assert_eq!(void.0.len(), 1);
    }
}
