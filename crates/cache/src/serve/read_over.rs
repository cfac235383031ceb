//! Streams that the cache has in part: the disk reads on over what is cached where that is sooner done than
//! skipped.
//!
//! A stream that goes to the disk takes short cached runs from there too, with the newest content of dirty lines
//! laid over. The SSD serves what is longer than [the cost of a gap](crate::devices::skips).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use voltier_block::{Buf, DriveControl, IoError, IoResult, Lba, Nanos, SECTOR_BYTES, SectorRange};
use voltier_ring::Handle;

use crate::devices::origin::Origin;
use crate::ground::Ground;
use crate::map::shared::Map;
use crate::serve::plan::Run;

/// Streams that are followed at once.
const STREAMS: usize = 16;
/// A request may be so many times its length out of its turn.
const OUT_OF_TURN: u64 = 16;
/// Requests that came behind each other before they are a stream. Of random ones few come near a miss, and fewer
/// twice.
const STREAM_MIN: u32 = 2;
/// What is cached is waited for so long from a disk that is slower than its queue explains.
const PATIENCE_NS: Nanos = 1_000_000_000;
/// Without a miss among so many requests that are cached no stream is followed any more.
const HITS_MAX: u32 = 4096;

/// The streams of one cache that go to the disk.
pub(crate) struct ReadOver<O> {
    map: Rc<Map>,
    handle: Handle,
    origin: Rc<Origin<O>>,
    streams: RefCell<[Stream; STREAMS]>,
    /// The next to be forgotten.
    hand: Cell<usize>,
    /// How many requests that are cached streams are followed for yet; 0 when there is none.
    hits_left: Cell<u32>,
}

/// Requests behind each other, and what the disk did for them. All in sectors.
#[derive(Clone, Copy, Default)]
struct Stream {
    /// One past the highest that was asked for; 0 if there is no stream.
    next: u64,
    /// Requests that came behind others.
    followed: u32,
    /// One past the last that the disk read.
    read_to: u64,
    /// All is cached from what the disk read up to here, as far as was looked.
    cached_to: u64,
    /// Whether what is here is not cached.
    is_missing: bool,
}

impl<O: DriveControl> ReadOver<O> {
    pub(crate) fn new<S>(ground: &Ground<S, O>) -> Self {
        Self {
            map: ground.map.clone(),
            handle: ground.handle.clone(),
            origin: ground.origin.clone(),
            streams: RefCell::default(),
            hand: Cell::new(0),
            hits_left: Cell::new(0),
        }
    }

    /// Whether a request for what is cached may be one of a stream that goes to the disk.
    #[inline]
    pub(super) fn may_take(&self, range: SectorRange) -> bool {
        let left = self.hits_left.get();
        if left == 0 {
            return false;
        }
        self.hits_left.set(left - 1);
        if left == 1 {
            self.streams.take();
        }
        self.find(range).is_some()
    }

    fn find(&self, range: SectorRange) -> Option<usize> {
        let window = range.count * OUT_OF_TURN;
        let (low, start) = (range.start.0.saturating_sub(window), range.start.0 + window);
        let streams = self.streams.borrow();
        let near = (0..STREAMS).filter(|place| {
            let next = streams[*place].next;
            low < next && next <= start
        });
        near.min_by_key(|place| streams[*place].next.abs_diff(range.start.0))
    }

    /// Reads what is cached from the disk, but no longer than the SSD can be done without: an error then, and hits are
    /// left to the SSD until a stream goes to the disk again.
    pub(super) async fn in_time(&self, read: impl Future<Output = IoResult<Buf>>) -> IoResult<Buf> {
        let read = self.handle.timeout(PATIENCE_NS, read).await;
        read.unwrap_or_else(|_| {
            self.streams.take();
            Err(IoError::Gone)
        })
    }

    /// Puts runs of a request together that the disk reads in one piece.
    pub(super) fn put_together<'a>(&self, range: SectorRange, runs: Vec<Run<'a>>) -> Vec<Run<'a>> {
        if self.origin.silence().is_silent() {
            return runs;
        }
        let is_missing = |run: &Run<'_>| matches!(run, Run::Origin { .. });
        let first = runs.iter().position(is_missing);
        let known = self.find(range);
        let mut stream = match (known, first) {
            (Some(place), _) => self.streams.borrow()[place],
            // Nothing follows what the SSD serves alone.
            (None, None) => return runs,
            (None, Some(_)) => Stream::default(),
        };
        let over = self.origin.skips().read_over_bytes() / SECTOR_BYTES;
        let is_stream = stream.followed >= STREAM_MIN;
        let disk = match is_stream || first.is_some() {
            true => self.disk_range(&mut stream, range, &runs, is_stream, over),
            false => None,
        };
        stream.followed = stream.followed.saturating_add(u32::from(known.is_some()));
        stream.next = stream.next.max(range.end().0);
        if let Some(disk) = disk {
            stream.read_to = stream.read_to.max(disk.end().0);
        }
        let place = known.unwrap_or_else(|| {
            let place = self.hand.get();
            self.hand.set((place + 1) % STREAMS);
            place
        });
        self.streams.borrow_mut()[place] = stream;
        if first.is_some() {
            self.hits_left.set(HITS_MAX);
        }
        match disk {
            Some(disk) if is_worth(&runs, disk) => vec![Run::Over { range, disk, runs }],
            _ => runs,
        }
    }

    /// What the disk reads for a request: all that it lacks, and what is cached from where the disk is, and behind
    /// that to the end of the line if more that is not cached follows soon.
    fn disk_range(
        &self,
        stream: &mut Stream,
        range: SectorRange,
        runs: &[Run<'_>],
        is_stream: bool,
        over: u64,
    ) -> Option<SectorRange> {
        let missing =
            || runs.iter().filter(|run| matches!(run, Run::Origin { .. })).map(Run::range);
        let first = missing().next().map(|range| range.start.0);
        let last = missing().next_back().map(|range| range.end().0);
        let whole = |at: u64| {
            let geometry = self.map.geometry();
            geometry.line_range(geometry.line_of(Lba(at - 1))).end().0
        };
        let is_there =
            is_stream && range.start.0 <= stream.read_to + over && stream.read_to < range.end().0;
        let there = is_there.then(|| stream.read_to.max(range.start.0));
        let from = match (there, first) {
            (Some(there), Some(first)) => there.min(first),
            (there, first) => there.or(first)?,
        };
        let cached_from = last.unwrap_or(stream.read_to);
        let to = match is_stream && self.lacks_soon(stream, cached_from, range.end().0, over) {
            true => whole(range.end().0),
            false => last.map(|last| if last == range.end().0 { whole(last) } else { last })?,
        };
        let mut gap = 0;
        for run in runs {
            gap = if matches!(run, Run::Origin { .. }) { 0 } else { gap + run.range().count };
            if gap > over {
                return None;
            }
        }
        (from < to).then(|| SectorRange::new(Lba(from), to - from))
    }

    /// Whether something behind a request is not cached that is no further than `over` from what the disk reads.
    fn lacks_soon(&self, stream: &mut Stream, cached_from: u64, end: u64, over: u64) -> bool {
        if stream.is_missing && stream.cached_to >= end {
            return stream.cached_to <= cached_from + over;
        }
        let geometry = self.map.geometry();
        let contents = self.map.get();
        let limit = (cached_from + over).min(geometry.origin_sectors);
        let mut at = stream.cached_to.max(end);
        stream.is_missing = false;
        while at < limit {
            let line = geometry.line_of(Lba(at));
            if contents.index().lookup(line).is_none() {
                stream.is_missing = true;
                break;
            }
            at = geometry.line_range(line).end().0;
        }
        stream.cached_to = at;
        stream.is_missing
    }
}

/// Whether the disk reads more than one run that is not cached.
fn is_worth(runs: &[Run<'_>], disk: SectorRange) -> bool {
    let is_missing = |run: &&Run<'_>| matches!(run, Run::Origin { .. });
    let is_read_over = |run: &Run<'_>| !is_missing(&run) && disk.overlaps(run.range());
    runs.iter().filter(is_missing).count() != 1 || runs.iter().any(is_read_over)
}
