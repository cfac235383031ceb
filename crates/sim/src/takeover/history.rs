//! What clients of one host wrote, in order, and which of that an image has.

use std::collections::BTreeMap;

use voltier_block::{Lba, Nanos, SectorRange};

/// The moment of the end of what is under way.
const NEVER: u64 = u64::MAX;

/// What a write made of one sector.
struct Version {
    /// The first bytes, which are random; 0 for zeroes.
    content: u64,
    submitted: u64,
    ended: u64,
    acked_ns: Option<Nanos>,
    is_durable: bool,
}

impl Version {
    fn is_after(&self, other: &Version) -> bool {
        self.submitted > other.ended
    }
}

/// A write under way.
pub(super) struct Change {
    pub(super) range: SectorRange,
    submitted: u64,
}

/// All writes and flushes so far.
pub(super) struct History {
    clock: u64,
    /// Of each sector, oldest first.
    sectors: BTreeMap<u64, Vec<Version>>,
    /// Begin and end of completed flushes.
    flushes: Vec<(u64, u64)>,
    last_ack_ns: Nanos,
}

/// The first bytes of a sector.
pub(super) fn head(sector: &[u8]) -> u64 {
    sector.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// What an image lacks: of each sector, when the first write was acknowledged that was to replace what is there.
pub(super) struct Lacks(Vec<(Nanos, u64)>);

impl Lacks {
    /// Sectors that lack something acknowledged before this moment.
    pub(super) fn before(&self, time_ns: Nanos) -> usize {
        self.0.partition_point(|(acked_ns, _)| *acked_ns < time_ns)
    }

    pub(super) fn all(&self) -> usize {
        self.0.len()
    }

    /// The oldest of them, for a message.
    pub(super) fn oldest(&self) -> Option<(Nanos, u64)> {
        self.0.first().copied()
    }
}

impl History {
    pub(super) fn new() -> Self {
        Self { clock: 1, sectors: BTreeMap::new(), flushes: Vec::new(), last_ack_ns: 0 }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A write begins, of this data or of zeroes.
    pub(super) fn begin(&mut self, range: SectorRange, data: Option<&[u8]>) -> Change {
        let submitted = self.tick();
        for number in 0..range.count {
            let sector = range.start.0 + number;
            let content = data.map_or(0, |data| head(&data[number as usize * 512..]));
            let version =
                Version { content, submitted, ended: NEVER, acked_ns: None, is_durable: false };
            self.sectors.entry(sector).or_insert_with(|| vec![first()]).push(version);
        }
        Change { range, submitted }
    }

    /// A write has ended: acknowledged at some time, or with an error.
    pub(super) fn end(&mut self, change: &Change, acked_ns: Option<Nanos>, is_durable: bool) {
        let ended = self.tick();
        let range = change.range.start.0..change.range.end().0;
        for (_, versions) in self.sectors.range_mut(range) {
            for version in versions.iter_mut().filter(|it| it.submitted == change.submitted) {
                (version.ended, version.acked_ns, version.is_durable) =
                    (ended, acked_ns, is_durable);
            }
        }
        self.last_ack_ns = self.last_ack_ns.max(acked_ns.unwrap_or(0));
    }

    pub(super) fn begin_flush(&mut self) -> u64 {
        self.tick()
    }

    pub(super) fn end_flush(&mut self, begun: u64) {
        let ended = self.tick();
        self.flushes.push((begun, ended));
    }

    pub(super) fn is_touched(&self, sector: u64) -> bool {
        self.sectors.contains_key(&sector)
    }

    pub(super) fn last_ack_ns(&self) -> Nanos {
        self.last_ack_ns
    }

    /// The host's process has died; with the power, what no flush covered may be gone.
    pub(super) fn cut(&mut self, loses_unflushed: bool) {
        let now = self.tick();
        let flushed = self.flushes.iter().map(|flush| flush.0).max().unwrap_or(0);
        for version in self.sectors.values_mut().flatten() {
            if loses_unflushed && version.ended >= flushed && !version.is_durable {
                version.acked_ns = None;
            }
            version.ended = version.ended.min(now);
        }
    }

    /// What an image lacks of what was acknowledged.
    ///
    /// # Panics
    /// When a sector holds what nobody wrote there.
    pub(super) fn lacks(&self, read: &impl Fn(Lba) -> u64) -> Lacks {
        let mut lacks = Vec::new();
        for (&sector, versions) in &self.sectors {
            let content = read(Lba(sector));
            let replaced = |version: &Version| {
                let newer = versions.iter().filter(|it| it.is_after(version));
                newer.filter_map(|it| it.acked_ns).min()
            };
            let alike: Vec<_> =
                versions.iter().filter(|it| it.content == content).map(replaced).collect();
            assert!(!alike.is_empty(), "sector {sector} of the image holds what nobody wrote");
            if let Some(since) = alike.into_iter().map(|it| it.unwrap_or(Nanos::MAX)).max()
                && since < Nanos::MAX
            {
                lacks.push((since, sector));
            }
        }
        lacks.sort_unstable();
        Lacks(lacks)
    }

    /// Holds an image to a prefix: the state at some flush, and any part of the writes after it.
    ///
    /// # Panics
    /// When it is none.
    pub(super) fn check_prefix(&self, read: &impl Fn(Lba) -> u64) {
        let alike = |sector: u64, versions: &[Version]| {
            let content = read(Lba(sector));
            let submitted = versions.iter().filter(|it| it.content == content);
            submitted.map(|it| it.submitted).min().unwrap_or(0)
        };
        let newest = self.sectors.iter().map(|(sector, all)| (alike(*sector, all), *sector)).max();
        let Some((newest, of)) = newest else { return };
        let flushed = self.flushes.iter().filter(|flush| flush.1 < newest).map(|flush| flush.0);
        let Some(flushed) = flushed.max() else { return };
        for (&sector, versions) in &self.sectors {
            let content = read(Lba(sector));
            let is_needed = |it: &Version| it.acked_ns.is_some() && it.ended < flushed;
            let is_whole = |version: &Version| {
                !versions.iter().any(|newer| is_needed(newer) && newer.is_after(version))
            };
            let fits = versions.iter().any(|it| it.content == content && is_whole(it));
            assert!(
                fits,
                "no flush fits the image: sector {of} was written after a flush, and sector {sector} \
                 was overwritten before it"
            );
        }
    }
}

/// What every sector holds at first.
fn first() -> Version {
    Version { content: 0, submitted: 0, ended: 0, acked_ns: Some(0), is_durable: true }
}
