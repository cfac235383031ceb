//! Reading the log ahead of a replay: many segments at once, their records in order.
//!
//! The first record of a segment names the segment after it, so a scout reads first records only. Each
//! segment that the scout finds is scanned from head to head beside the others. Segments may follow one
//! another on the SSD, as while a cache fills. There the scout reads the first records of several before
//! any record names them. A record that the scout finds is a guess: the replay takes records only as long
//! as they follow one another.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use voltier_block::{Buf, DriveControl};

use crate::format::geometry::Geometry;
use crate::format::position::Position;
use crate::format::record::{NO_UNIT, RecordEntry, RecordHead};
use crate::log::open::{OpenError, ssd_error};
use crate::numbers::{Segment, SegmentSlot};

/// Segments scanned at once. So many reads keep a disk busy while records are taken, and so many segments'
/// records fit in a few MiB of memory.
const SCANS_MAX: usize = 96;

/// Segments whose first record is read on the guess that the log goes on there: their latency is the
/// one that nothing else hides.
const GUESSES_MAX: u32 = 16;

/// A read that goes on beside others.
type Part<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A record read from the log.
pub(crate) struct Found {
    pub(crate) head: RecordHead,
    pub(crate) entries: Vec<RecordEntry>,
    /// Where the record after it is.
    pub(crate) next: Position,
}

impl Found {
    pub(crate) fn sequence(&self) -> u64 {
        self.head.sequence.get()
    }
}

/// The log of one cache on its SSD.
pub(crate) struct LogReader<'a, S> {
    pub(crate) ssd: &'a S,
    pub(crate) geometry: Geometry,
    pub(crate) uuid: [u8; 16],
}

impl<S: DriveControl> LogReader<'_, S> {
    /// The record whose head is at this address, if there is a whole one of this cache.
    pub(crate) async fn record(
        &self,
        segment: Segment,
        unit: u32,
    ) -> Result<Option<Found>, OpenError> {
        let geometry = &self.geometry;
        if !geometry.has_segment(segment) || unit >= geometry.units_per_segment() {
            return Ok(None);
        }
        let block = Buf::new(geometry.unit_bytes as usize);
        let block =
            self.ssd.read(geometry.lba_of(segment, unit), block).await.map_err(ssd_error)?;
        let Some(head) = RecordHead::decode(&block, &self.uuid, segment, unit) else {
            return Ok(None);
        };
        let position = Position {
            segment,
            unit: head.next_unit.get(),
            slot: SegmentSlot(head.next_slot.get()),
            next_segment: Segment(head.next_segment.get()),
            next_segment_unit: head.next_segment_unit.get(),
        };
        let entries = head.entries(&block);
        Ok(position.on(geometry).map(|next| Found { entries, head, next }))
    }

    /// A segment's records from `first` on, as long as they follow one another.
    async fn scan(&self, first: Found) -> Result<Vec<Found>, OpenError> {
        let mut records = vec![first];
        loop {
            let last = &records[records.len() - 1];
            if last.next.unit == NO_UNIT {
                return Ok(records);
            }
            let next = self.record(last.next.segment, last.next.unit).await?;
            match next {
                Some(next) if next.sequence() == last.sequence() + 1 => records.push(next),
                _ => return Ok(records),
            }
        }
    }
}

enum SegmentScan<'a> {
    Going(Part<'a, Result<Vec<Found>, OpenError>>),
    Done(Result<Vec<Found>, OpenError>),
}

/// Where the first record of a segment is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct HeadAddress {
    segment: Segment,
    unit: u32,
}

/// Reads the first record of a segment.
struct Scout<'a> {
    address: HeadAddress,
    reads: Part<'a, Result<Option<Found>, OpenError>>,
    /// The record that the scout found before the chain asked for it.
    found: Option<Result<Option<Found>, OpenError>>,
}

/// Records of the log in order, read ahead.
pub(crate) struct Chain<'a, S> {
    reader: &'a LogReader<'a, S>,
    /// The first goes where the log goes on, the others where it may.
    scouts: VecDeque<Scout<'a>>,
    /// Whether the first of them is known to go there.
    is_scouting: bool,
    /// Where the log goes on, until there is room for another scan.
    next_address: Option<HeadAddress>,
    /// The segment that was scouted last: the next one behind it may be guessed from here.
    last_segment: Option<Segment>,
    scans: VecDeque<SegmentScan<'a>>,
    last_first: u64,
    ready: VecDeque<Found>,
}

impl<'a, S: DriveControl> Chain<'a, S> {
    /// The log from this position on.
    pub(crate) fn new(reader: &'a LogReader<'a, S>, begin: Position) -> Self {
        let address = match begin.unit {
            NO_UNIT => HeadAddress { segment: begin.next_segment, unit: begin.next_segment_unit },
            unit => HeadAddress { segment: begin.segment, unit },
        };
        Self {
            reader,
            scouts: VecDeque::new(),
            is_scouting: false,
            next_address: Some(address),
            last_segment: None,
            scans: VecDeque::new(),
            last_first: 0,
            ready: VecDeque::new(),
        }
    }

    /// The next record; `None` at the end of what the chain leads to.
    pub(crate) async fn next(&mut self) -> Result<Option<Found>, OpenError> {
        if self.ready.is_empty()
            && let Some(records) = poll_fn(|context| self.poll_front(context)).await
        {
            self.ready.extend(records?);
        }
        Ok(self.ready.pop_front())
    }

    fn poll_front(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Vec<Found>, OpenError>>> {
        loop {
            let scouted = self.poll_scouts(context);
            for scan in &mut self.scans {
                if let SegmentScan::Going(part) = scan
                    && let Poll::Ready(records) = part.as_mut().poll(context)
                {
                    *scan = SegmentScan::Done(records);
                }
            }
            match self.scans.front() {
                Some(SegmentScan::Done(_)) => {}
                Some(SegmentScan::Going(_)) if scouted => continue,
                Some(SegmentScan::Going(_)) => return Poll::Pending,
                None if scouted => continue,
                None if self.is_scouting => return Poll::Pending,
                None => return Poll::Ready(None),
            }
            return match self.scans.pop_front() {
                Some(SegmentScan::Done(records)) => Poll::Ready(Some(records)),
                _ => Poll::Ready(None),
            };
        }
    }

    /// Moves the scouts on; true if the first found or started something, so that all is to be polled
    /// again.
    fn poll_scouts(&mut self, context: &mut Context<'_>) -> bool {
        if !self.is_scouting
            && self.scans.len() < SCANS_MAX
            && let Some(address) = self.next_address.take()
        {
            self.send_scouts(address);
        }
        for scout in &mut self.scouts {
            if scout.found.is_none()
                && let Poll::Ready(found) = scout.reads.as_mut().poll(context)
            {
                scout.found = Some(found);
            }
        }
        if !self.is_scouting || self.scouts.front().is_none_or(|scout| scout.found.is_none()) {
            return false;
        }
        self.is_scouting = false;
        match self.scouts.pop_front().and_then(|scout| scout.found) {
            None | Some(Ok(None)) => {}
            // Leftovers of an earlier pass lead back: their numbers are lower.
            Some(Ok(Some(first))) if first.sequence() <= self.last_first => {}
            Some(Ok(Some(first))) => {
                self.last_first = first.sequence();
                let Position { next_segment, next_segment_unit, .. } = first.next;
                self.next_address =
                    Some(HeadAddress { segment: next_segment, unit: next_segment_unit });
                let reader = self.reader;
                self.scans.push_back(SegmentScan::Going(Box::pin(reader.scan(first))));
            }
            Some(Err(error)) => self.scans.push_back(SegmentScan::Done(Err(error))),
        }
        true
    }

    /// Sees to it that a scout is on its way to where the log goes on. If the log goes straight on,
    /// others are on their way ahead of it.
    fn send_scouts(&mut self, address: HeadAddress) {
        let goes_straight_on =
            self.last_segment.is_some_and(|last| last.0 + 1 == address.segment.0);
        if self.scouts.front().is_none_or(|scout| scout.address != address) {
            self.scouts.clear();
        }
        let guesses = if goes_straight_on { GUESSES_MAX } else { 0 };
        for ahead in self.scouts.len() as u32..=guesses {
            // The first of all may begin in the middle of a segment; from then on all begin alike.
            let segment = Segment(address.segment.0.saturating_add(ahead));
            let address = HeadAddress { segment, ..address };
            let reads = Box::pin(self.reader.record(address.segment, address.unit));
            self.scouts.push_back(Scout { address, reads, found: None });
        }
        self.last_segment = Some(address.segment);
        self.is_scouting = true;
    }
}
