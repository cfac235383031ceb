//! Loading the map of a checkpoint: first what must be known before anything is served, then, while
//! the cache serves, the rest.
//!
//! Serving needs the dirty lines, which the checkpoint lists apart, and the log behind it. A line that
//! neither of them names is clean or not cached. The origin has such a line's content, so clients can
//! read and write the line before its place in the cache is known. The start then takes in the rest of
//! the map slot by slot, without what is out of date. Out of date are slots and lines that the log behind
//! the checkpoint names. So are lines that left since, and lines that were written past the log since.

use std::ops::Range;

use voltier_block::{Buf, DriveControl, IoResult};
use voltier_ring::join_all;

use crate::format::chunk::{
    CHUNK_BYTES, CHUNK_HEAD_BYTES, CHUNK_MAGIC, ChunkHead, DIRTY_CHUNK_MAGIC,
};
use crate::format::geometry::Geometry;
use crate::format::superblock::{NO_DIRTY_LIST, Superblock};
use crate::log::open::{OpenError, ssd_error};
use crate::map::contents::{Contents, LOOK_AHEAD_SLOTS};
use crate::map::loading::{Loading, StoredMap};
use crate::numbers::{AreaChunk, MapChunk, Segment, Slot, each_map_chunk, each_slot};

/// Chunks read at once: 2 MiB on their way keep a disk or an SSD at full bandwidth.
pub(super) const CHUNKS_IN_FLIGHT: u32 = 8;

/// Slots of chunk `number` of the map, if the chunk is whole.
pub(super) fn check_chunk(
    geometry: &Geometry,
    uuid: [u8; 16],
    chunk: &[u8],
    stored: &StoredMap,
    number: MapChunk,
) -> Result<Range<Slot>, OpenError> {
    let damaged = |what: &str| OpenError::Damaged(format!("chunk {number} of its map: {what}"));
    let name = stored.chunk_name(uuid, CHUNK_MAGIC, number.0);
    let head = ChunkHead::decode(chunk, &name).ok_or_else(|| damaged("not whole"))?;
    let slots = geometry.slots_of_chunk(number);
    if head.first_slot.get() != slots.start.0 || head.count.get() != slots.end - slots.start {
        return Err(damaged("not the slots of its place"));
    }
    Ok(slots)
}

/// Takes the slots of chunk `number` in that are in `slots`; the number of clean lines among them, taken
/// or not.
///
/// # Errors
/// When a slot holds a line that the origin does not have.
pub(super) fn take_chunk(
    map: &mut Contents,
    chunk: &[u8],
    number: MapChunk,
    slots: Range<Slot>,
    tell_policy: bool,
) -> Result<u64, String> {
    let bytes = map.geometry().state_bytes_per_slot();
    let first = map.geometry().slots_of_chunk(number).start;
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
    number: MapChunk,
    only: Option<&Range<Slot>>,
) -> Result<(), OpenError> {
    let mut slots = check_chunk(map.geometry(), uuid, chunk, stored, number)?;
    if let Some(only) = only {
        slots = slots.start.max(only.start)..slots.end.min(only.end);
    }
    take_chunk(map, chunk, number, slots, false)
        .map(drop)
        .map_err(|what| OpenError::Damaged(format!("chunk {number} of its map: {what}")))
}

/// Reads chunks of the map, all at once, and takes in what is in the slots `only`.
async fn load_chunks<S: DriveControl>(
    ssd: &S,
    map: &mut Contents,
    uuid: [u8; 16],
    stored: &StoredMap,
    chunks: Range<MapChunk>,
    only: Option<&Range<Slot>>,
) -> Result<(), OpenError> {
    let numbers = each_map_chunk(chunks);
    let places = numbers.clone().map(MapChunk::in_area);
    let read = read_chunks(ssd, map.geometry(), stored.area, places).await;
    for (chunk, number) in read.into_iter().zip(numbers) {
        load_chunk(map, uuid, &chunk.map_err(ssd_error)?, stored, number, only)?;
    }
    Ok(())
}

/// Reads chunks of a checkpoint area, all at once.
async fn read_chunks<S: DriveControl>(
    ssd: &S,
    geometry: &Geometry,
    area: u32,
    chunks: impl Iterator<Item = AreaChunk>,
) -> Vec<IoResult<Buf>> {
    let read = |chunk| ssd.read(geometry.chunk_lba(area, chunk), Buf::new(CHUNK_BYTES));
    join_all(chunks.map(read)).await
}

/// Loads what must be known before the log is replayed: the dirty lines, or everything when there is
/// no list of them. The map's loading tells whether more of the map is to be loaded later.
///
/// # Errors
/// When the checkpoint is damaged or cannot be read.
pub(crate) async fn load_before_replay<S: DriveControl>(
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
    let loading = Loading::new(found, map.geometry())?;
    map.begin_loading(loading);
    if found.dirty_chunks.get() != NO_DIRTY_LIST {
        return load_dirty_lines(ssd, found, map, uuid).await;
    }
    let Range { start: mut next, end } = map.geometry().map_chunks();
    while next < end {
        let until = (next + CHUNKS_IN_FLIGHT).min(end);
        load_chunks(ssd, map, uuid, &stored, next..until, None).await?;
        next = until;
    }
    map.end_loading();
    Ok(())
}

async fn load_dirty_lines<S: DriveControl>(
    ssd: &S,
    found: &Superblock,
    map: &mut Contents,
    uuid: [u8; 16],
) -> Result<(), OpenError> {
    let stored = StoredMap::of(found);
    let count = found.dirty_chunks.get();
    if u64::from(count) > map.geometry().dirty_chunks_max() {
        return Err(OpenError::Damaged(
            "its list of dirty lines is larger than its area".to_owned(),
        ));
    }
    let mut next = 0;
    while next < count {
        let until = (next + CHUNKS_IN_FLIGHT).min(count);
        let geometry = map.geometry();
        let places = (next..until).map(|index| geometry.dirty_chunk_in_area(index));
        let chunks = read_chunks(ssd, geometry, stored.area, places).await;
        for (chunk, index) in chunks.into_iter().zip(next..) {
            take_dirty_chunk(map, uuid, &chunk.map_err(ssd_error)?, &stored, index)?;
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
pub(crate) async fn load_open_segments<S: DriveControl>(
    ssd: &S,
    map: &mut Contents,
    uuid: [u8; 16],
    open: [Segment; 2],
) -> Result<(), OpenError> {
    let Some((stored, _)) = map.loading().map(Loading::source) else { return Ok(()) };
    for segment in open {
        let geometry = map.geometry();
        let slots = geometry.slots_of_segment(segment);
        let first = geometry.chunk_of(slots.start);
        let last = geometry.chunk_of(Slot(slots.end.0 - 1));
        load_chunks(ssd, map, uuid, &stored, first..last + 1, Some(&slots)).await?;
        if let Some(loading) = map.loading_mut() {
            loading.begin_with(last);
            each_slot(slots).for_each(|slot| loading.decide(slot));
        }
    }
    Ok(())
}
