//! The reference volume: for every sector, which contents it may have.
//!
//! A write is a [`Version`] of each of its sectors, with the moments of its submission and of its
//! completion. One version *replaces* another when it was submitted after the other had completed.
//!
//! - A read may return any version that no completed one has replaced before the read began.
//! - After a power cut a sector may hold any version that no *durable* one has replaced. A version
//!   is durable when a flush submitted after its completion has completed, or it was a FUA write.
//! - After a kill: any version that no completed one has replaced. What was lost by no kill may still
//!   be lost by a later power cut.
//! - The first read that no write overlaps decides between the versions that are possible: from then
//!   on, the sector must not change by itself, not by a restart either.
//! - A discarded sector may read as anything until it is written.
//!
//! Sectors are independent: a write torn by a power cut leaves each of its sectors old or new.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use voltier_block::{Bytes, Lba, SectorRange};

const SECTOR: usize = 512;
/// The content of a sector that was never written.
const ZEROES: u32 = 0;
/// The content of a sector that was given up.
const ANYTHING: u32 = u32::MAX;
/// The moment of completion of what is under way.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Debug)]
struct Version {
    content: u32,
    submitted: u64,
    completed: u64,
    durable: bool,
    /// Nobody knows whether it took place (its write failed, or was cut off).
    doubtful: bool,
}

impl Version {
    fn replaces(&self, other: &Version) -> bool {
        !self.doubtful && self.submitted > other.completed
    }
}

/// A write, discard or zeroing under way.
#[derive(Debug)]
pub struct Write {
    /// Its sectors.
    pub range: SectorRange,
    submitted: u64,
}

/// A read or a flush under way: the moment of its submission.
#[derive(Clone, Copy, Debug)]
pub struct Since(u64);

/// A sector holds what it must not.
#[derive(Clone, Debug)]
pub struct Violation {
    sector: u64,
    found: String,
    allowed: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "sector {} holds {}; allowed: {}", self.sector, self.found, self.allowed)
    }
}

/// The volume as it may be. A clone is an independent copy: what it may be after a cut.
#[derive(Clone)]
pub struct Model {
    clock: u64,
    /// Sectors with one possible content, durable.
    settled: Vec<u32>,
    /// Versions of all others, oldest first.
    open: BTreeMap<u64, Vec<Version>>,
    /// 512 bytes per content number, shared by all copies.
    contents: Rc<RefCell<Vec<Bytes>>>,
    /// Sectors that a request has ever changed, or may have.
    touched: Vec<bool>,
    reads_under_way: u64,
}

impl Model {
    /// A volume of zeroes.
    pub fn new(sectors: u64) -> Self {
        Self {
            clock: 1,
            settled: vec![ZEROES; sectors as usize],
            open: BTreeMap::new(),
            contents: Rc::new(RefCell::new(vec![Bytes::copy_of(&[0; SECTOR])])),
            touched: vec![false; sectors as usize],
            reads_under_way: 0,
        }
    }

    /// A copy that keeps the contents it sees to itself: they go away with it.
    pub fn apart(&self) -> Self {
        let contents = self.contents.borrow().clone();
        Self { contents: Rc::new(RefCell::new(contents)), ..self.clone() }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn begin(&mut self, range: SectorRange, content: impl Fn(u64) -> u32) -> Write {
        let submitted = self.tick();
        for number in 0..range.count {
            let sector = range.start.0 + number;
            let settled = self.settled[sector as usize];
            self.touched[sector as usize] = true;
            let first = || {
                vec![Version {
                    content: settled,
                    submitted: 0,
                    completed: 0,
                    durable: true,
                    doubtful: false,
                }]
            };
            self.open.entry(sector).or_insert_with(first).push(Version {
                content: content(number),
                submitted,
                completed: NEVER,
                durable: false,
                doubtful: false,
            });
        }
        Write { range, submitted }
    }

    /// A write is submitted.
    pub fn begin_write(&mut self, at: Lba, data: &Bytes) -> Write {
        let first = {
            let mut contents = self.contents.borrow_mut();
            let first = contents.len() as u32;
            let sectors = data.len() / SECTOR;
            contents.extend((0..sectors).map(|at| data.slice(at * SECTOR..(at + 1) * SECTOR)));
            first
        };
        let range = SectorRange::from_bytes(at.bytes(), data.len() as u64);
        self.begin(range, |number| first + number as u32)
    }

    /// Zeroing is submitted.
    pub fn begin_zeroes(&mut self, range: SectorRange) -> Write {
        self.begin(range, |_| ZEROES)
    }

    /// A discard is submitted.
    pub fn begin_discard(&mut self, range: SectorRange) -> Write {
        self.begin(range, |_| ANYTHING)
    }

    fn versions_of(&mut self, write: &Write, mut change: impl FnMut(&mut Version)) {
        for (_, versions) in self.open.range_mut(write.range.start.0..write.range.end().0) {
            // Submissions have distinct moments, unless a read or a cut has moved them on.
            if let Some(version) = versions.iter_mut().find(|it| it.submitted == write.submitted) {
                change(version);
            }
        }
    }

    /// A write completes; a FUA write is durable then.
    pub fn end_write(&mut self, write: Write, durable: bool) {
        let now = self.tick();
        self.versions_of(&write, |version| {
            version.completed = now;
            version.durable |= durable;
        });
        if durable {
            self.prune();
        }
    }

    /// A write fails: it may have taken place, or not, sector by sector.
    pub fn fail_write(&mut self, write: Write) {
        let now = self.tick();
        self.versions_of(&write, |version| (version.completed, version.doubtful) = (now, true));
    }

    /// A flush is submitted.
    pub fn begin_flush(&mut self) -> Since {
        Since(self.tick())
    }

    /// A flush completes: what had completed when it was submitted is durable.
    pub fn end_flush(&mut self, flush: Since) {
        for version in self.open.values_mut().flatten() {
            version.durable |= version.completed < flush.0;
        }
        self.prune();
    }

    /// Forgets what nothing can bring back.
    fn prune(&mut self) {
        if self.reads_under_way > 0 {
            return;
        }
        let settled = &mut self.settled;
        self.open.retain(|sector, versions| {
            retain_after_power_cut(versions);
            let is_settled =
                matches!(&versions[..], [one] if one.durable && one.completed != NEVER);
            if is_settled {
                settled[*sector as usize] = versions[0].content;
            }
            !is_settled
        });
    }

    /// A read is submitted.
    pub fn begin_read(&mut self) -> Since {
        self.reads_under_way += 1;
        Since(self.tick())
    }

    /// A read fails.
    pub fn fail_read(&mut self, _read: Since) {
        self.reads_under_way -= 1;
    }

    /// A read completes with `data`.
    ///
    /// # Errors
    /// The first sector with content that it must not have.
    pub fn end_read(&mut self, read: Since, at: Lba, data: &[u8]) -> Result<(), Violation> {
        self.reads_under_way -= 1;
        for (number, found) in data.chunks_exact(SECTOR).enumerate() {
            self.check_sector(read, at.0 + number as u64, found)?;
        }
        Ok(())
    }

    fn check_sector(&mut self, read: Since, sector: u64, found: &[u8]) -> Result<(), Violation> {
        let contents = self.contents.clone();
        let contents = contents.borrow();
        let is = |content: u32| content == ANYTHING || contents[content as usize][..] == *found;
        let settled = self.settled[sector as usize];
        let Some(versions) = self.open.get_mut(&sector) else {
            return if is(settled) {
                Ok(())
            } else {
                Err(self.violation(sector, found, &[settled]))
            };
        };
        let current = |version: &Version| {
            !versions.iter().any(|newer| newer.completed < read.0 && newer.replaces(version))
        };
        let possible: Vec<usize> =
            (0..versions.len()).filter(|number| current(&versions[*number])).collect();
        let anything = possible.iter().any(|number| versions[*number].content == ANYTHING);
        let mut seen = possible.iter().filter(|number| is(versions[**number].content));
        let Some(&seen) = seen.next_back() else {
            let allowed: Vec<u32> = possible.iter().map(|at| versions[*at].content).collect();
            return Err(self.violation(sector, found, &allowed));
        };
        let quiet = versions.iter().all(|version| version.completed < read.0);
        if quiet && !anything && (possible.len() > 1 || versions[seen].doubtful) {
            self.clock += 1;
            let now = self.clock;
            let seen = &mut versions[seen];
            (seen.submitted, seen.completed, seen.doubtful) = (now, now, false);
        }
        Ok(())
    }

    fn violation(&self, sector: u64, found: &[u8], allowed: &[u32]) -> Violation {
        let contents = self.contents.borrow();
        let known = contents.iter().position(|content| content[..] == *found);
        let found = match known {
            Some(number) => format!("content {number}"),
            None => format!("what nobody wrote ({:02x?}...)", &found[..8]),
        };
        Violation { sector, found, allowed: format!("{allowed:?}") }
    }

    /// The power is cut: nothing is under way any more.
    pub fn power_cut(&mut self) {
        self.reads_under_way = 0;
        let now = self.tick();
        for versions in self.open.values_mut() {
            retain_after_power_cut(versions);
            if let Some(anything) = versions.iter().position(|it| it.content == ANYTHING) {
                versions.swap(0, anything);
                versions.truncate(1);
            }
            // Whichever it is, it is on the medium.
            for version in versions {
                *version = Version {
                    submitted: now,
                    completed: now,
                    durable: true,
                    doubtful: false,
                    ..version.clone()
                };
            }
        }
        self.prune();
    }

    /// The process is killed: nothing is under way any more, what was may have happened.
    pub fn kill(&mut self) {
        self.reads_under_way = 0;
        let now = self.tick();
        for version in self.open.values_mut().flatten() {
            if version.completed == NEVER {
                (version.completed, version.doubtful) = (now, true);
            }
        }
    }

    /// Whether a request has ever changed a sector, or may have.
    pub fn is_touched(&self, sector: u64) -> bool {
        self.touched.get(sector as usize).is_some_and(|touched| *touched)
    }

    /// Whether a sector, of which one content is possible while nothing is under way, has another
    /// one than `found`.
    pub fn differs(&self, sector: u64, found: &[u8]) -> bool {
        let contents = self.contents.borrow();
        let is = |content: u32| content == ANYTHING || contents[content as usize][..] == *found;
        let Some(versions) = self.open.get(&sector) else {
            return !is(self.settled[sector as usize]);
        };
        let current = |version: &&Version| !versions.iter().any(|newer| newer.replaces(version));
        !versions.iter().filter(current).any(|version| is(version.content))
    }
}

/// Leaves the versions that no durable one has replaced.
fn retain_after_power_cut(versions: &mut Vec<Version>) {
    let all = versions.clone();
    versions.retain(|old| !all.iter().any(|newer| newer.durable && newer.replaces(old)));
}
