//! Loading the map of a checkpoint: first what must be known before anything is served, then, while
//! the cache serves, the rest.
//!
//! Serving needs the dirty lines, which the checkpoint lists apart, and the log behind it. A line that
//! neither of them names is clean or not cached. The origin has such a line's content, so clients can
//! read and write the line before its place in the cache is known. The start then takes in the rest of
//! the map slot by slot, without what is out of date. Out of date are slots and lines that the log behind
//! the checkpoint names. So are lines that left since, and lines that were written past the log since.

use std::ops::Range;

use voltier_block::{BlockDevice, Buf, IoResult};
use voltier_ring::join_all;

use crate::format::chunk::{
    CHUNK_BYTES, CHUNK_HEAD_BYTES, CHUNK_MAGIC, ChunkHead, DIRTY_CHUNK_MAGIC,
};
use crate::format::geometry::Geometry;
use crate::format::superblock::{NO_DIRTY_LIST, Superblock};
use crate::log::open::{OpenError, ssd_error};
use crate::map::contents::{Contents, LOOK_AHEAD_SLOTS};
use crate::map::loading::{Loading, StoredMap};
use crate::numbers::{Segment, Slot};

/// Chunks read at once: 2 MiB on their way keep a disk or an SSD at full bandwidth.
pub(super) const CHUNKS_IN_FLIGHT: usize = 8;

/// Slots of chunk `index` of the map, if it is whole.
pub(super) fn check_chunk(
    geometry: &Geometry,
    uuid: [u8; 16],
    chunk: &[u8],
    stored: &StoredMap,
    index: u64,
) -> Result<Range<u32>, OpenError> {
    let damaged = |what: &str| OpenError::Damaged(format!("chunk {index} of its map: {what}"));
    let name = stored.chunk_name(uuid, CHUNK_MAGIC, index as u32);
    let head = ChunkHead::decode(chunk, &name).ok_or_else(|| damaged("not whole"))?;
    let slots = geometry.slots_of_chunk(index);
    if head.first_slot.get() != slots.start || head.count.get() != slots.len() as u32 {
        return Err(damaged("not the slots of its place"));
    }
    Ok(slots)
}

/// Takes the slots of chunk `index` in that are in `slots`; the number of clean lines among them, taken
/// or not.
///
/// # Errors
/// When a slot holds a line that the origin does not have.
pub(super) fn take_chunk(
    map: &mut Contents,
    chunk: &[u8],
    index: u64,
    slots: Range<u32>,
    tell_policy: bool,
) -> Result<u64, String> {
    let bytes = map.geometry().state_bytes_per_slot();
    let first = map.geometry().slots_of_chunk(index).start;
    let (from, to) = ((slots.start - first) as usize, (slots.end - first) as usize);
    let body = &chunk[CHUNK_HEAD_BYTES + from * bytes..CHUNK_HEAD_BYTES + to * bytes];
    map.take_slots(body, slots, tell_policy)
}

/// Takes one whole chunk in before anything is served.
fn load_chunk(
    map: &mut Contents,
    uuid: [u8; 16],
    chunk: &[u8],
    stored: &StoredMap,
    index: u64,
    only: Option<Range<u32>>,
) -> Result<(), OpenError> {
    let mut slots = check_chunk(map.geometry(), uuid, chunk, stored, index)?;
    if let Some(only) = only {
        slots = slots.start.max(only.start)..slots.end.min(only.end);
    }
    take_chunk(map, chunk, index, slots, false)
        .map(drop)
        .map_err(|what| OpenError::Damaged(format!("chunk {index} of its map: {what}")))
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
/// no list of them. The map's loading tells whether more of the map is to be loaded later.
///
/// # Errors
/// When the checkpoint is damaged or cannot be read.
pub(crate) async fn load_before_replay<S: BlockDevice>(
    ssd: &S,
    found: &Superblock,
    map: &mut Contents,
    uuid: [u8; 16],
) -> Result<(), OpenError> {
    let stored = StoredMap::of(found);
    if stored.area > 1 {
        return Err(OpenError::Damaged(format!("it names checkpoint area {} of two", stored.area)));
    }
    if stored.chunks > 0 && stored.chunks != map.geometry().chunk_count() {
        return Err(OpenError::Damaged("its checkpoint is not as large as its area".to_owned()));
    }
    if stored.chunks == 0 {
        return Ok(());
    }
    let loading = Loading::new(found, map.geometry());
    map.begin_loading(loading);
    if found.dirty_chunks.get() != NO_DIRTY_LIST {
        return load_dirty_lines(ssd, found, map, uuid).await;
    }
    let mut next = 0;
    while next < stored.chunks {
        let until = (next + CHUNKS_IN_FLIGHT as u64).min(stored.chunks);
        let chunks = read_chunks(ssd, map.geometry(), stored.area, next..until).await;
        for (chunk, index) in chunks.into_iter().zip(next..) {
            load_chunk(map, uuid, &chunk.map_err(ssd_error)?, &stored, index, None)?;
        }
        next = until;
    }
    map.end_loading();
    Ok(())
}

async fn load_dirty_lines<S: BlockDevice>(
    ssd: &S,
    found: &Superblock,
    map: &mut Contents,
    uuid: [u8; 16],
) -> Result<(), OpenError> {
    let stored = StoredMap::of(found);
    let count = u64::from(found.dirty_chunks.get());
    if count > map.geometry().dirty_chunks_max() {
        return Err(OpenError::Damaged(
            "its list of dirty lines is larger than its area".to_owned(),
        ));
    }
    let first = map.geometry().chunk_count();
    let mut next = 0;
    while next < count {
        let until = (next + CHUNKS_IN_FLIGHT as u64).min(count);
        let chunks =
            read_chunks(ssd, map.geometry(), stored.area, first + next..first + until).await;
        for (chunk, index) in chunks.into_iter().zip(next..) {
            take_dirty_chunk(map, uuid, &chunk.map_err(ssd_error)?, &stored, index as u32)?;
        }
        next = until;
    }
    Ok(())
}

fn take_dirty_chunk(
    map: &mut Contents,
    uuid: [u8; 16],
    chunk: &[u8],
    stored: &StoredMap,
    index: u32,
) -> Result<(), OpenError> {
    let damaged =
        |what: String| OpenError::Damaged(format!("chunk {index} of its dirty lines: {what}"));
    let name = stored.chunk_name(uuid, DIRTY_CHUNK_MAGIC, index);
    let head = ChunkHead::decode(chunk, &name).ok_or_else(|| damaged("not whole".to_owned()))?;
    let (bytes, count) = (4 + map.geometry().state_bytes_per_slot(), head.count.get() as usize);
    if count > map.geometry().dirty_per_chunk() {
        return Err(damaged("more lines than it has room for".to_owned()));
    }
    let body = &chunk[CHUNK_HEAD_BYTES..CHUNK_HEAD_BYTES + count * bytes];
    for group in body.chunks(LOOK_AHEAD_SLOTS * bytes) {
        map.index().warm_up(group.chunks_exact(bytes).map(|entry| &entry[4..]));
        for entry in group.chunks_exact(bytes) {
            let slot = Slot(u32::from_le_bytes(entry[..4].try_into().expect("four bytes")));
            if slot.0 >= map.geometry().slot_count() {
                return Err(damaged(format!("slot {slot} does not exist")));
            }
            let Some(found) = map.index().decode(slot, &entry[4..]).map_err(damaged)? else {
                return Err(damaged(format!("slot {slot} is empty")));
            };
            // Lines move while a checkpoint is written: the log says which of two places counts.
            map.take_slot(slot, &found);
            if let Some(loading) = map.loading_mut() {
                loading.decide(slot);
                loading.count_taken(1);
            }
        }
    }
    Ok(())
}

/// Takes in the segments in which the log goes on: it writes around the lines that live there.
///
/// # Errors
/// When the segments' chunks are damaged or cannot be read.
pub(crate) async fn load_open_segments<S: BlockDevice>(
    ssd: &S,
    map: &mut Contents,
    uuid: [u8; 16],
    open: [Segment; 2],
) -> Result<(), OpenError> {
    let Some((stored, _)) = map.loading().map(Loading::source) else { return Ok(()) };
    for segment in open {
        let slots = map.geometry().slots_of_segment(segment);
        let per_chunk = map.geometry().slots_per_chunk();
        let chunks = u64::from(slots.start / per_chunk)..u64::from((slots.end - 1) / per_chunk) + 1;
        let read = read_chunks(ssd, map.geometry(), stored.area, chunks.clone()).await;
        for (chunk, index) in read.into_iter().zip(chunks) {
            load_chunk(map, uuid, &chunk.map_err(ssd_error)?, &stored, index, Some(slots.clone()))?;
        }
        if let Some(loading) = map.loading_mut() {
            loading.begin_with(u64::from((slots.end - 1) / per_chunk));
            slots.map(Slot).for_each(|slot| loading.decide(slot));
        }
    }
    Ok(())
}
