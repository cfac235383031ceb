//! Writes that wait for the same stripe, and what is written of them.

use std::cell::{Cell, RefCell};

use voltier_block::{Buf, Durability, IoResult, Nanos, SECTOR_BYTES, SectorRange};
use voltier_ring::Signal;

use crate::canary::{self, Canary};
use crate::geometry::chunks::Span;
use crate::geometry::numbers::{StripeNumber, StripeSlot};
use crate::stripe::new_data::{NewData, SmallWrite};

/// Parts of neighbouring chunks share one change of parity up to this distance between their
/// offsets. To read and write 32 KiB in vain costs less than further I/Os.
const GAP_SECTORS_MAX: u64 = 64;

/// The writes that have come so far.
#[derive(Default)]
struct Content {
    /// In the order in which they came.
    parts: Vec<NewData>,
    writes: u32,
    /// The spans of the stripe that the writes cover: apart from each other, ascending.
    covered: Vec<Span>,
    is_durable: bool,
    joined_ns: Nanos,
    /// When each came, in all.
    arrived_ns: Nanos,
}

/// The data to be written.
pub(crate) struct Taken {
    pub(crate) parts: Vec<NewData>,
    /// How many writes they are of.
    pub(crate) writes: u32,
    pub(crate) durability: Durability,
    /// How long these have waited, in all.
    pub(crate) held_ns: Nanos,
}

/// Writes that wait for the same stripe.
pub(crate) struct MergeBatch {
    stream: usize,
    stripe: StripeNumber,
    /// The sectors of the stripe in the volume.
    sectors: SectorRange,
    opened_ns: Nanos,
    content: RefCell<Content>,
    /// Nothing more will come: the stream is past the stripe.
    is_passed: Cell<bool>,
    /// Something that it waits for has changed.
    changed: Signal,
    result: Cell<Option<IoResult<()>>>,
    ended: Signal,
}

impl MergeBatch {
    /// A batch with the first write.
    pub(crate) fn new(stream: usize, small: SmallWrite, sectors: SectorRange, now: Nanos) -> Self {
        let batch = Self {
            stream,
            stripe: small.stripe,
            sectors,
            opened_ns: now,
            content: RefCell::default(),
            is_passed: Cell::new(false),
            changed: Signal::new(),
            result: Cell::new(None),
            ended: Signal::new(),
        };
        batch.add(small, now);
        batch
    }

    pub(crate) fn add(&self, small: SmallWrite, now: Nanos) {
        let mut content = self.content.borrow_mut();
        let start = small.range.start.0 - self.sectors.start.0;
        cover(&mut content.covered, Span { start, end: start + small.range.count });
        content.parts.extend(small.parts);
        content.writes += 1;
        content.is_durable |= small.durability == Durability::Durable;
        content.joined_ns = now;
        content.arrived_ns += now - self.opened_ns;
    }

    /// The number of the stream to which the writes belong.
    pub(crate) fn stream(&self) -> usize {
        self.stream
    }

    pub(crate) fn stripe(&self) -> StripeNumber {
        self.stripe
    }

    /// When the first write came.
    pub(crate) fn opened_ns(&self) -> Nanos {
        self.opened_ns
    }

    /// Nothing more will come, and the leader looks at the batch again.
    pub(crate) fn pass(&self) {
        self.is_passed.set(true);
        self.changed.notify();
    }

    /// Whether nothing more will come.
    pub(crate) fn is_passed(&self) -> bool {
        self.is_passed.get()
    }

    /// Has the leader look at the batch again.
    pub(crate) fn stir(&self) {
        self.changed.notify();
    }

    /// Waits until the leader is to look at the batch again.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + '_ {
        self.changed.wait()
    }

    /// Whether all of the stripe is there.
    pub(crate) fn is_full(&self) -> bool {
        self.content.borrow().covered == [Span { start: 0, end: self.sectors.count }]
    }

    /// Whether one of the writes is to be durable: somebody waits for just that.
    pub(crate) fn is_durable(&self) -> bool {
        self.content.borrow().is_durable
    }

    /// How many there are.
    pub(crate) fn writes(&self) -> u32 {
        self.content.borrow().writes
    }

    /// When the last one came.
    pub(crate) fn joined_ns(&self) -> Nanos {
        self.content.borrow().joined_ns
    }

    /// Takes all of it out.
    pub(crate) fn take(&self, now: Nanos) -> Taken {
        let Content { parts, writes, is_durable, arrived_ns, .. } = self.content.take();
        let durability = if is_durable { Durability::Durable } else { Durability::Cached };
        let held_ns = (now - self.opened_ns) * Nanos::from(writes) - arrived_ns;
        Taken { parts, writes, durability, held_ns }
    }

    /// Tells all what became of it.
    pub(crate) fn end(&self, result: IoResult<()>) {
        self.result.set(Some(result));
        self.ended.notify();
    }

    /// The outcome of the batch.
    pub(crate) async fn result(&self) -> IoResult<()> {
        self.ended.until(|| self.result.get().is_some()).await;
        self.result.get().expect("it has ended")
    }
}

/// Adds a span to those that are covered.
fn cover(covered: &mut Vec<Span>, mut span: Span) {
    let is_touched = |other: &Span| other.start <= span.end && span.start <= other.end;
    let first = covered.partition_point(|other| other.end < span.start);
    let touched = covered[first..].iter().take_while(|other| is_touched(other)).count();
    for other in covered.drain(first..first + touched) {
        span = span.hull(other);
    }
    covered.insert(first, span);
}

/// Part of a slot, with its number in the order of arrival.
type Numbered = (usize, NewData);

/// The writes of these parts, which came in this order. In each list every slot has one part, and the
/// parts are near each other on their members.
///
/// No part bridges a gap, for what is there is not known; and a member has one write of a transaction of
/// the journal. With two, a transaction that is recorded by half would look whole to a replay.
pub(crate) fn batches_of(parts: Vec<NewData>) -> Vec<Vec<NewData>> {
    let mut runs = runs_of(parts);
    runs.sort_by_key(|(_, run)| run.span.start);
    let mut batches: Vec<(Span, Vec<Numbered>)> = Vec::new();
    for run in runs {
        let span = run.1.span;
        let suits = |(hull, batch): &&mut (Span, Vec<Numbered>)| {
            span.start <= hull.end + GAP_SECTORS_MAX
                && batch.iter().all(|(_, other)| other.slot != run.1.slot)
        };
        match batches.iter_mut().find(suits) {
            Some((hull, batch)) => {
                *hull = hull.hull(span);
                batch.push(run);
            }
            None => batches.push((span, vec![run])),
        }
    }
    // In the order of arrival.
    for (_, batch) in &mut batches {
        batch.sort_by_key(|(number, _)| *number);
    }
    batches.sort_by_key(|(_, batch)| batch[0].0);
    let in_order = |(_, batch): (Span, Vec<Numbered>)| batch.into_iter().map(|(_, part)| part);
    batches.into_iter().map(|batch| in_order(batch).collect()).collect()
}

/// Parts that touch in a slot become one.
fn runs_of(parts: Vec<NewData>) -> Vec<Numbered> {
    let mut numbered: Vec<Numbered> = parts.into_iter().enumerate().collect();
    numbered.sort_by_key(|(_, part)| (part.slot, part.span.start));
    let mut runs = Vec::with_capacity(numbered.len());
    let mut rest = numbered.into_iter().peekable();
    while let Some(first) = rest.next() {
        let (slot, mut span) = (first.1.slot, first.1.span);
        let mut touching = vec![first];
        let goes_on = |run, next: &NewData| next.slot == slot && follows(run, next.span);
        while let Some(next) = rest.next_if(|(_, next)| goes_on(span, next)) {
            span = span.hull(next.1.span);
            touching.push(next);
        }
        runs.push(joined(slot, span, touching));
    }
    runs
}

/// Whether a part goes on from a run, without a gap.
fn follows(run: Span, next: Span) -> bool {
    next.start <= run.end || canary::is(Canary::GapsBridged)
}

/// Parts of one slot that cover a span, as one: where two have the same sector, the later one counts.
fn joined(slot: StripeSlot, span: Span, mut touching: Vec<Numbered>) -> Numbered {
    touching.sort_by_key(|(number, _)| *number);
    if touching.len() == 1 {
        return touching.pop().expect("there is one");
    }
    let number = touching[0].0;
    let mut whole = Buf::new((span.count() * SECTOR_BYTES) as usize);
    for (_, part) in &touching {
        whole[span.place_of(part.span)].copy_from_slice(&part.data);
    }
    (number, NewData { slot, span, data: whole.freeze() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(slot: usize, start: u64, end: u64, byte: u8) -> NewData {
        let slot = StripeSlot(slot);
        let span = Span { start, end };
        NewData { slot, span, data: Buf::copy_of(&vec![byte; span.bytes()]).freeze() }
    }

    /// Slot, span and the first byte of each sector.
    fn shown(batches: Vec<Vec<NewData>>) -> Vec<Vec<(usize, u64, Vec<u8>)>> {
        let sectors = |part: &NewData| {
            let first = |sector: &[u8]| sector[0];
            part.data.chunks(SECTOR_BYTES as usize).map(first).collect()
        };
        let shown = |part: &NewData| (part.slot.0, part.span.start, sectors(part));
        batches.iter().map(|batch| batch.iter().map(shown).collect()).collect()
    }

    #[test]
    fn what_touches_is_one_part_and_the_later_one_counts_where_they_overlap() {
        let parts = vec![part(1, 4, 7, 1), part(1, 2, 5, 2), part(1, 7, 8, 3), part(1, 4, 5, 4)];
        let expected = vec![vec![(1, 2, vec![2, 2, 4, 1, 1, 3])]];
        assert_eq!(shown(batches_of(parts)), expected);
    }

    #[test]
    fn chunks_go_together_and_a_gap_in_one_does_not() {
        let parts = vec![part(0, 6, 8, 1), part(1, 0, 8, 2), part(2, 0, 1, 3), part(2, 4, 5, 4)];
        let whole = (1, 0, vec![2; 8]);
        let expected =
            vec![vec![(0, 6, vec![1, 1]), whole, (2, 0, vec![3])], vec![(2, 4, vec![4])]];
        assert_eq!(shown(batches_of(parts)), expected);
    }

    #[test]
    fn the_end_of_a_chunk_and_the_start_of_the_next_go_apart_if_much_is_between_them() {
        let far = vec![part(0, 120, 128, 1), part(1, 0, 8, 2)];
        assert_eq!(batches_of(far).len(), 2);
        let near = vec![part(0, 72, 128, 1), part(1, 0, 8, 2)];
        let slots: Vec<_> = batches_of(near)[0].iter().map(|part| part.slot.0).collect();
        assert_eq!(slots, [0, 1]);
    }

    #[test]
    fn what_is_covered_grows_together() {
        let mut covered = Vec::new();
        let steps = [
            ((4, 6), vec![(4, 6)]),
            ((0, 2), vec![(0, 2), (4, 6)]),
            ((8, 9), vec![(0, 2), (4, 6), (8, 9)]),
            ((6, 7), vec![(0, 2), (4, 7), (8, 9)]),
            ((1, 8), vec![(0, 9)]),
            ((3, 4), vec![(0, 9)]),
        ];
        for ((start, end), expected) in steps {
            cover(&mut covered, Span { start, end });
            let spans: Vec<_> = covered.iter().map(|span| (span.start, span.end)).collect();
            assert_eq!(spans, expected);
        }
    }
}
