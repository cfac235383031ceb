//! When a drive fails, where, and what that makes unsafe.

use std::collections::VecDeque;
use std::rc::Rc;

use voltier_block::{Lba, Nanos, Prng, SectorRange};

use crate::fault::{FaultKind, FaultMix, Request};
use crate::world::SSD;

/// Sectors around a request that fail with it, at most.
const BAD_RANGE_SECTORS: u64 = 256;
/// Flushes with something to do after which damage is *proved*. A durable record behind it calls what was
/// damaged durable, so that a start notices what is missing. Before that, damage together with a crash
/// looks like the crash alone (a known gap of the guarantees).
const FLUSHES_TO_PROVE: u64 = 8;
/// Writes of which the places are remembered.
const PLACES: usize = 256;
/// The structures of the SSD before this place are not the target of a misdirected write's loss. The
/// intent block has no second copy (a known gap too).
const FIRST_PROVED_SECTOR: u64 = 2048;

/// Mixed into the dice that say what failing writes store.
const STORED: u64 = 0x7374_6f72_6564_0001;

/// Somebody who is told of ranges that do not hold what was written.
pub(crate) type Told = Rc<dyn Fn(SectorRange)>;

/// The part of a write that fails and has changed the drive all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Nothing,
    /// Any of its blocks.
    AnyPart,
    All,
}

/// The requests that a drive refuses for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Writes, zeroes and discards.
    Changes,
    ReadsAndChanges,
    /// Flushes as well. The drive fails all later ones, too, until somebody says that what it dropped is written
    /// anew.
    Everything,
}

/// A time in which a drive refuses requests.
struct Refusal {
    refused: Refused,
    stored: Stored,
    until: Nanos,
}

struct Failing {
    range: SectorRange,
    kind: FaultKind,
    /// Of a failing write.
    stored: Stored,
}

/// The faults of one drive.
pub(crate) struct Injector {
    mix: FaultMix,
    prng: Prng,
    told: Option<Told>,
    reads: Vec<Failing>,
    writes: Vec<Failing>,
    pub(crate) flushes_fail: bool,
    refusal: Option<Refusal>,
    /// Flushes that made something durable.
    flushes: u64,
    /// Places of the last writes, and the flushes before each.
    places: VecDeque<(u64, u64, u64)>,
    fresh_until: u64,
}

impl Default for Injector {
    fn default() -> Self {
        Self {
            mix: FaultMix::default(),
            prng: Prng::new(0),
            told: None,
            reads: Vec::new(),
            writes: Vec::new(),
            flushes_fail: false,
            refusal: None,
            flushes: 0,
            places: VecDeque::new(),
            fresh_until: 0,
        }
    }
}

impl Injector {
    pub(crate) fn new(mix: FaultMix, prng: Prng, told: Told) -> Self {
        Self { mix, prng, told: Some(told), ..Self::default() }
    }

    /// Goes on with another mix; what has failed for good goes on failing.
    pub(crate) fn change_mix(&mut self, mix: FaultMix) {
        self.mix = mix;
    }

    pub(crate) fn mend(&mut self) {
        self.mix = FaultMix::default();
        self.reads.clear();
        self.writes.clear();
        self.flushes_fail = false;
        self.refusal = None;
    }

    pub(crate) fn is_active(&self) -> bool {
        !self.mix.is_empty()
    }

    pub(crate) fn draw(&mut self, request: Request) -> Option<FaultKind> {
        if self.mix.is_empty() {
            return None;
        }
        self.mix.draw(request, &mut self.prng)
    }

    pub(crate) fn fail_reads(&mut self, range: SectorRange, kind: FaultKind) {
        self.reads.push(Failing { range, kind, stored: Stored::Nothing });
    }

    pub(crate) fn fail_writes(&mut self, range: SectorRange, kind: FaultKind, stored: Stored) {
        self.writes.push(Failing { range, kind, stored });
    }

    /// The part that failing writes of the drive with this number change from now on. The SSD of a cache may
    /// store all of them or nothing. The dice are of their own: the other draws of a seed stay as they are.
    pub(crate) fn draw_stored(&self, drive: u64) -> Stored {
        let mut prng = Prng::new(self.prng.clone().next_u64() ^ STORED);
        let drawn = *prng.pick(&[Stored::Nothing, Stored::AnyPart, Stored::All]);
        if drive == SSD { drawn } else { Stored::AnyPart }
    }

    /// Requests fail until then.
    pub(crate) fn refuse(&mut self, refused: Refused, stored: Stored, until: Nanos) {
        self.refusal = Some(Refusal { refused, stored, until });
    }

    /// What a change stores that is refused now; none if it is not refused.
    pub(crate) fn refused_change(&self, now: Nanos) -> Option<Stored> {
        self.refusal.as_ref().filter(|it| now < it.until).map(|it| it.stored)
    }

    pub(crate) fn is_read_refused(&self, now: Nanos) -> bool {
        let refusal = self.refusal.as_ref().filter(|it| now < it.until);
        refusal.is_some_and(|it| it.refused != Refused::Changes)
    }

    pub(crate) fn is_flush_refused(&self, now: Nanos) -> bool {
        let refusal = self.refusal.as_ref().filter(|it| now < it.until);
        refusal.is_some_and(|it| it.refused == Refused::Everything)
    }

    pub(crate) fn failing_read(&self, range: SectorRange) -> Option<FaultKind> {
        self.reads.iter().find(|failing| failing.range.overlaps(range)).map(|it| it.kind)
    }

    pub(crate) fn failing_write(&self, range: SectorRange) -> Option<(FaultKind, Stored)> {
        let failing = self.writes.iter().find(|failing| failing.range.overlaps(range));
        failing.map(|failing| (failing.kind, failing.stored))
    }

    /// The range that fails with a request: some sectors around it, or the whole drive.
    pub(crate) fn around(&mut self, at: SectorRange, kind: FaultKind, bytes: u64) -> SectorRange {
        if matches!(kind, FaultKind::ReadErrorForEver | FaultKind::WriteErrorForEver) {
            return SectorRange::from_bytes(0, bytes);
        }
        let start = at.start.0.saturating_sub(self.prng.below(BAD_RANGE_SECTORS));
        let end = (at.end().0 + self.prng.below(BAD_RANGE_SECTORS)).min(bytes / 512);
        SectorRange::new(Lba(start), end - start)
    }

    /// Where a bit turns over: mostly in what was written some time ago.
    pub(crate) fn bit_rot_place(&mut self, bytes: u64) -> (u64, u8) {
        let bit = self.prng.below(8) as u8;
        if !self.places.is_empty() && !self.prng.one_in(4) {
            let (at, count, _) = self.places[self.prng.below(self.places.len() as u64) as usize];
            return (at + self.prng.below(count), bit);
        }
        (self.prng.below(bytes), bit)
    }

    /// Where a misdirected write goes, if it may.
    pub(crate) fn elsewhere(
        &mut self,
        range: SectorRange,
        bytes: u64,
        block_bytes: u64,
    ) -> Option<Lba> {
        if range.start.0 < FIRST_PROVED_SECTOR && range.end().0 > 64 {
            return None;
        }
        let blocks = (bytes - range.bytes()) / block_bytes;
        let far = Lba::from_bytes(self.prng.below(blocks + 1) * block_bytes);
        let block_sectors = block_bytes / 512;
        let near = range.start.0.saturating_sub(block_sectors * (1 + self.prng.below(32)));
        let at = if self.prng.one_in(2) { far } else { Lba(near) };
        (!SectorRange::new(at, range.count).overlaps(range)).then_some(at)
    }

    /// The medium is not what was written: who has to hear of it.
    pub(crate) fn note_damage(&mut self, range: SectorRange, always_fresh: bool) -> Option<Told> {
        let (from, to) = (range.start.bytes(), range.end().bytes());
        let fresh = |place: &&(u64, u64, u64)| {
            place.0 < to && from < place.0 + place.1 && place.2 + FLUSHES_TO_PROVE > self.flushes
        };
        // The last writes of an earlier life are proved by nothing yet, either.
        let young = self.flushes < FLUSHES_TO_PROVE;
        if always_fresh || young || self.places.iter().any(|place| fresh(&place)) {
            self.fresh_until = self.flushes + FLUSHES_TO_PROVE;
        }
        self.told.clone()
    }

    pub(crate) fn has_fresh_damage(&self) -> bool {
        self.flushes < self.fresh_until
    }

    pub(crate) fn note_write(&mut self, at: u64, bytes: u64) {
        if !self.is_active() {
            return;
        }
        let due = |first: &(u64, u64, u64)| first.2 + FLUSHES_TO_PROVE <= self.flushes;
        if self.places.len() >= PLACES && self.places.front().is_some_and(due) {
            self.places.pop_front();
        }
        self.places.push_back((at, bytes, self.flushes));
    }

    pub(crate) fn note_flush(&mut self, flushed: usize) {
        self.flushes += u64::from(flushed > 0);
    }
}
