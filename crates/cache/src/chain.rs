//! Reading the log ahead of a replay: many segments at once, their records in order.
//!
//! The first record of a segment names the segment after it, so a scout reads first records only, and
//! each segment it finds is walked from head to head beside the others. What it finds is a guess:
//! the replay takes records only as long as they follow one another.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};

use voltier_block::{BlockDevice, Buf};

use crate::format::{Geometry, NO_UNIT, RecordEntry, RecordHead};
use crate::join::Part;
use crate::log::Position;
use crate::recover::{OpenError, ssd_error};

/// Segments walked at once: a disk's latency of 0.15 ms a head is hidden, and the records of that
/// many segments fit in a few MiB of memory.
const WALKS_MAX: usize = 32;

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

impl<S: BlockDevice> LogReader<'_, S> {
    /// The record whose head is at this place, if there is a whole one of this cache.
    pub(crate) async fn record(&self, segment: u32, unit: u32) -> Result<Option<Found>, OpenError> {
        let geometry = &self.geometry;
        if segment >= geometry.segment_count || unit >= geometry.units_per_segment() {
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
            slot: head.next_slot.get(),
            next_segment: head.next_segment.get(),
            next_segment_unit: head.next_segment_unit.get(),
        };
        let entries = head.entries(&block);
        Ok(position.on(geometry).map(|next| Found { entries, head, next }))
    }

    /// A segment's records from `first` on, as long as they follow one another.
    async fn walk(&self, first: Found) -> Result<Vec<Found>, OpenError> {
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

impl Position {
    /// This position, if it lies on the device, its head in a slot that is taken, and goes on in
    /// another segment.
    pub(crate) fn on(self, geometry: &Geometry) -> Option<Position> {
        let units = geometry.units_per_segment();
        let fits = self.segment < geometry.segment_count
            && self.next_segment < geometry.segment_count
            && self.next_segment != self.segment
            && (self.unit == NO_UNIT
                || self.unit < units && geometry.slot_behind(self.unit) <= self.slot)
            && self.slot <= geometry.slots_per_segment
            && self.next_segment_unit < units;
        fits.then_some(self)
    }
}

enum Walk<'a> {
    Going(Part<'a, Result<Vec<Found>, OpenError>>),
    Done(Result<Vec<Found>, OpenError>),
}

/// Records of the log in order, read ahead.
pub(crate) struct Chain<'a, S> {
    reader: &'a LogReader<'a, S>,
    /// Reads the first record of the next segment.
    scout: Option<Part<'a, Result<Option<Found>, OpenError>>>,
    /// Where the scout goes when there is room for another walk.
    next_place: Option<(u32, u32)>,
    walks: VecDeque<Walk<'a>>,
    last_first: u64,
    ready: VecDeque<Found>,
}

impl<'a, S: BlockDevice> Chain<'a, S> {
    /// The log from this position on.
    pub(crate) fn new(reader: &'a LogReader<'a, S>, begin: Position) -> Self {
        let place = match begin.unit {
            NO_UNIT => (begin.next_segment, begin.next_segment_unit),
            unit => (begin.segment, unit),
        };
        Self {
            reader,
            scout: None,
            next_place: Some(place),
            walks: VecDeque::new(),
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
            let scouted = self.poll_scout(context);
            for walk in &mut self.walks {
                if let Walk::Going(part) = walk
                    && let Poll::Ready(records) = part.as_mut().poll(context)
                {
                    *walk = Walk::Done(records);
                }
            }
            match self.walks.front() {
                Some(Walk::Done(_)) => {}
                Some(Walk::Going(_)) if scouted => continue,
                Some(Walk::Going(_)) => return Poll::Pending,
                None if scouted => continue,
                None if self.scout.is_some() => return Poll::Pending,
                None => return Poll::Ready(None),
            }
            return match self.walks.pop_front() {
                Some(Walk::Done(records)) => Poll::Ready(Some(records)),
                _ => Poll::Ready(None),
            };
        }
    }

    /// Moves the scout on; true if it found or started something, so that all is to be polled again.
    fn poll_scout(&mut self, context: &mut Context<'_>) -> bool {
        if self.scout.is_none()
            && self.walks.len() < WALKS_MAX
            && let Some((segment, unit)) = self.next_place.take()
        {
            let reader = self.reader;
            self.scout = Some(Box::pin(reader.record(segment, unit)));
        }
        let Some(scout) = &mut self.scout else { return false };
        let Poll::Ready(found) = scout.as_mut().poll(context) else { return false };
        self.scout = None;
        match found {
            Ok(None) => {}
            // Leftovers of an earlier pass lead back: their numbers are lower.
            Ok(Some(first)) if first.sequence() <= self.last_first => {}
            Ok(Some(first)) => {
                self.last_first = first.sequence();
                self.next_place = Some((first.next.next_segment, first.next.next_segment_unit));
                let reader = self.reader;
                self.walks.push_back(Walk::Going(Box::pin(reader.walk(first))));
            }
            Err(error) => self.walks.push_back(Walk::Done(Err(error))),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FormatOptions, LineSize};
    use crate::policy::PolicyKind;

    #[test]
    fn a_log_does_not_go_on_in_its_own_segment_or_before_its_head() {
        let line_size = LineSize::new(16384).unwrap();
        let options = FormatOptions { line_size, policy: PolicyKind::Lru, uuid: [1; 16] };
        let geometry = Geometry::plan(&options, 64 << 20, 1 << 21).unwrap();
        let good =
            Position { segment: 3, unit: 11, slot: 3, next_segment: 4, next_segment_unit: 3 };
        let far = geometry.units_per_segment();
        for (position, is_on) in [
            (good, true),
            (Position { unit: NO_UNIT, slot: 0, ..good }, true),
            (Position { slot: 2, ..good }, false),
            (Position { next_segment: 3, ..good }, false),
            (Position { unit: far, slot: geometry.slots_per_segment, ..good }, false),
            (Position { next_segment_unit: far, ..good }, false),
        ] {
            assert_eq!(position.on(&geometry).is_some(), is_on, "{position:?}");
        }
    }
}
