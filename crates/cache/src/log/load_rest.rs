//! The task that loads the rest of a checkpoint's map while the cache serves.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use voltier_block::{Buf, DriveControl, IoError, IoResult};
use voltier_ring::{Handle, JoinHandle};

use crate::counters::{Counters, add};
use crate::devices::ssd::Ssd;
use crate::format::chunk::CHUNK_BYTES;
use crate::format::geometry::Geometry;
use crate::log::commit::Log;
use crate::log::load::{CHUNKS_IN_FLIGHT, check_chunk, take_chunk};
use crate::log::stage::Lifecycle;
use crate::map::loading::{Loading, StoredMap};
use crate::map::shared::Map;
use crate::numbers::{MapChunk, Segment, Slot, each_map_chunk};

/// Slots taken in at once while the cache serves: 0.3 ms of one core.
const STEP_SLOTS_MAX: u32 = 4096;
/// A rest between two steps while clients are busy: about half of the core is theirs at least.
const STEP_REST_NS: u64 = 200_000;

/// The loader of one cache's map.
pub(crate) struct Loader<S> {
    handle: Handle,
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    log: Rc<Log<S>>,
    counters: Rc<Counters>,
    lifecycle: Rc<Lifecycle>,
}

type ChunkRead = JoinHandle<IoResult<Buf>>;

impl<S: DriveControl> Loader<S> {
    pub(crate) fn new(
        handle: Handle,
        map: Rc<Map>,
        ssd: Rc<Ssd<S>>,
        log: Rc<Log<S>>,
        counters: Rc<Counters>,
        lifecycle: Rc<Lifecycle>,
    ) -> Rc<Self> {
        Rc::new(Self { handle, map, ssd, log, counters, lifecycle })
    }

    /// The task that loads the rest of the map while the cache serves.
    pub(crate) async fn load_rest(self: Rc<Self>) {
        let begin = self.map.get().loading().map(Loading::source);
        let Some((stored, first)) = begin else { return };
        let chunks = self.map.geometry().map_chunks();
        let order = each_map_chunk(first..chunks.end).chain(each_map_chunk(chunks.start..first));
        let mut ahead: VecDeque<ChunkRead> = VecDeque::new();
        let mut to_read = order.clone();
        for number in order {
            while ahead.len() < CHUNKS_IN_FLIGHT as usize
                && let Some(next) = to_read.next()
            {
                ahead.push_back(self.clone().read_ahead(stored, next));
            }
            let Some(chunk) = ahead.pop_front() else { break };
            let chunk = chunk.await;
            if !self.take_in(&stored, number, chunk).await {
                return;
            }
        }
        self.map.change().end_loading();
        self.tell_of_loading();
    }

    fn read_ahead(self: Rc<Self>, stored: StoredMap, number: MapChunk) -> ChunkRead {
        let handle = self.handle.clone();
        handle.spawn(async move {
            let at = self.map.geometry().chunk_lba(stored.area, number.in_area());
            let read = self.ssd.read_map(at, CHUNK_BYTES);
            self.lifecycle.unless_stopping(read).await.unwrap_or(Err(IoError::Gone))
        })
    }

    /// Takes one chunk in, step by step; false when the cache ends or has lost its SSD.
    ///
    /// A chunk that is damaged or cannot be read costs clean lines only: the dirty ones are known.
    async fn take_in(&self, stored: &StoredMap, number: MapChunk, chunk: IoResult<Buf>) -> bool {
        let geometry = self.map.geometry();
        let slots = geometry.slots_of_chunk(number);
        let is_whole =
            |chunk: &Buf| check_chunk(geometry, self.log.uuid(), chunk, stored, number).is_ok();
        let chunk = match chunk {
            Ok(chunk) if is_whole(&chunk) => Some(chunk),
            Ok(_) => {
                add(&self.counters.cache.damaged_chunks, 1);
                None
            }
            Err(_) => None,
        };
        // The smallest cache is loaded in several steps too.
        let step = (geometry.slot_count() / 32).clamp(1, STEP_SLOTS_MAX);
        let mut next = slots.start;
        while next < slots.end {
            let until = (next + step).min(slots.end);
            let before = self.counters.requests();
            if self.ssd.failed() || self.lifecycle.is_stopping() {
                return false;
            }
            self.take_step(chunk.as_deref(), number, next..until);
            self.tell_of_loading();
            next = until;
            self.handle.yield_now().await;
            if self.counters.requests() > before {
                self.handle.sleep(STEP_REST_NS).await;
            }
        }
        true
    }

    fn take_step(&self, chunk: Option<&[u8]>, number: MapChunk, slots: Range<Slot>) {
        let next_sequence = self.log.next_sequence();
        let mut contents = self.map.change();
        let taken =
            chunk.map(|chunk| take_chunk(&mut contents, chunk, number, slots.clone(), true));
        let first_chunk = contents.loading().map_or(MapChunk(0), |loading| loading.source().1);
        match (taken, contents.loading_mut()) {
            (Some(Ok(clean)), Some(loading)) => loading.count_taken(clean),
            // Whole, and yet with lines that do not exist: what is left of it is not believed.
            (Some(Err(_)), _) => add(&self.counters.cache.damaged_chunks, 1),
            _ => {}
        }
        let learned = learned_segments(self.map.geometry(), first_chunk, &slots);
        contents.learn_segments(learned, next_sequence);
    }

    fn tell_of_loading(&self) {
        self.map.tell_of_loading();
        self.log.free_prepared();
        self.log.notify_work();
        self.map.ask_for_segments();
    }
}

/// Segments that are whole in memory by the step that took `slots` in, and were not before.
fn learned_segments(
    geometry: &Geometry,
    first_chunk: MapChunk,
    slots: &Range<Slot>,
) -> Range<Segment> {
    let per_segment = geometry.slots_per_segment;
    let begin = geometry.slots_of_chunk(first_chunk).start;
    // A chunk may begin within a segment: the first one has to wait for the last chunk.
    let (first, until) = match slots.end.cmp(&begin) {
        Ordering::Greater => (begin.0.div_ceil(per_segment), slots.end.0 / per_segment),
        Ordering::Equal => (0, slots.end.0.div_ceil(per_segment)),
        Ordering::Less => (0, slots.end.0 / per_segment),
    };
    let first = first.max(slots.start.0 / per_segment);
    Segment(first)..Segment(until.max(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::{each_segment, each_slot};

    #[test]
    fn every_segment_is_learned_once_wherever_loading_begins() {
        let options = crate::config::FormatOptions {
            line_size: crate::config::LineSize::new(2048).unwrap(),
            policy: crate::policy::PolicyKind::Lru,
            uuid: [1; 16],
        };
        let geometry = Geometry::plan(&options, 160 << 20, 1 << 20).unwrap();
        let chunks = geometry.map_chunks();
        for first in each_map_chunk(chunks.clone()) {
            let mut learned = vec![0; geometry.segment_count as usize];
            let before = each_map_chunk(chunks.start..first);
            for number in each_map_chunk(first..chunks.end).chain(before) {
                let slots = geometry.slots_of_chunk(number);
                for start in each_slot(slots.clone()).step_by(700) {
                    let step = start..(start + 700).min(slots.end);
                    for segment in each_segment(learned_segments(&geometry, first, &step)) {
                        learned[segment.index()] += 1;
                    }
                }
            }
            assert!(learned.iter().all(|times| *times == 1), "{first}: {learned:?}");
        }
    }
}
