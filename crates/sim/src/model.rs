//! The reference volume: for every sector, which contents it may have.
//!
//! A write is a [`Version`] of each of its sectors, with the moments of its submission and of its
//! completion. One version *replaces* another when it was submitted after the other had completed.
//!
//! - A read may return any version that no completed one has replaced before the read began.
//! - No read may find undone what an earlier read, which ended before the later began, has returned. Each
//!   sector is linearizable, also where reads and writes of several clients overlap in part. (A sector's
//!   history is linearizable exactly when no two of its versions must each come before the other. Version
//!   A comes before version B if the write of A, or a read that returned A, ended first. The write of B,
//!   or a read that returned B, then began after it.) A request of many sectors is not atomic, and no
//!   disk promises that.
//! - After a power cut a sector may hold any version that no *durable* one has replaced. A version
//!   is durable when a flush submitted after its completion has completed, or it was a FUA write.
//! - After a kill: any version that no completed one has replaced. A later power cut may still take
//!   what no kill took.
//! - The first read that no write overlaps decides between the versions that are possible. From then on,
//!   the sector must not change by itself, not by a restart either.
//! - A discarded sector may read as anything until it is written.
//! - A failed flush of a drive may undo writes that no flush of a client had covered. Such writes may be
//!   there or not, also back and forth, until a write or a start. A flush of a client that completes says
//!   that they are there, unless one has failed since they were undone.
//! - A write that failed may be there or not, and the next read decides. Where a log may have the write and
//!   cannot tell, reads decide nothing before the next start.
//!
//! Sectors are independent: a write torn by a power cut leaves each of its sectors old or new.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use voltier_block::{Lba, SectorRange};

use crate::medium::Cut;

const SECTOR: usize = 512;
/// The content of a sector that was never written.
const ZEROES: u32 = 0;
/// The content of a sector that was given up.
const ANYTHING: u32 = u32::MAX;
/// The moment of completion of what is under way.
const NEVER: u64 = u64::MAX;

/// Whether a failed flush may have undone a write, and whether a failed flush of a client has said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undone {
    No,
    Untold,
    Told,
}

#[derive(Clone, Debug)]
struct Version {
    content: u32,
    submitted: u64,
    completed: u64,
    durable: bool,
    /// The write failed, or was cut off: nobody knows whether it took place.
    doubtful: bool,
    /// A failed flush of a drive may have undone it.
    undone: Undone,
    /// Of the reads that returned it: the earliest end, and the latest begin.
    seen_by: u64,
    seen_from: u64,
}

impl Version {
    fn new(content: u32, submitted: u64, completed: u64) -> Self {
        let (seen_by, seen_from) = (NEVER, 0);
        let (durable, doubtful, undone) = (false, false, Undone::No);
        Self { content, submitted, completed, durable, doubtful, undone, seen_by, seen_from }
    }

    /// The write had taken place by then.
    fn done(&self) -> u64 {
        self.completed.min(self.seen_by)
    }

    /// The write took place, or was still there, after that.
    fn current_from(&self) -> u64 {
        self.submitted.max(self.seen_from)
    }

    fn replaces(&self, other: &Version) -> bool {
        let itself = (self.submitted, self.content) == (other.submitted, other.content);
        let is_certain = !self.doubtful && self.undone == Undone::No;
        !itself && is_certain && self.current_from() > other.done()
    }

    /// The write may have taken place or not, unless a read has seen it.
    fn end_unknown(&mut self, now: u64) {
        (self.completed, self.doubtful) = (now, self.seen_by == NEVER);
    }
}

/// A write, discard or zeroing under way.
#[derive(Debug)]
pub struct Write {
    /// The sectors of the write.
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
    certain: Vec<u32>,
    /// Versions of all others, oldest first.
    open: BTreeMap<u64, Vec<Version>>,
    /// 512 bytes per content number, shared by all copies.
    contents: Rc<RefCell<Vec<[u8; SECTOR]>>>,
    /// Sectors that a request has ever changed, or may have.
    touched: Vec<bool>,
    reads_under_way: u64,
}

impl Model {
    /// A volume of zeroes.
    pub fn new(sectors: u64) -> Self {
        Self {
            clock: 1,
            certain: vec![ZEROES; sectors as usize],
            open: BTreeMap::new(),
            contents: Rc::new(RefCell::new(vec![[0; SECTOR]])),
            touched: vec![false; sectors as usize],
            reads_under_way: 0,
        }
    }

    /// A copy that keeps the contents it sees to itself: they go away with it.
    pub fn apart(&self) -> Self {
        let contents = self.contents.borrow().clone();
        Self { contents: Rc::new(RefCell::new(contents)), ..self.clone() }
    }

    /// How many contents there are, for [`Self::forget_contents_since`].
    pub fn contents(&self) -> usize {
        self.contents.borrow().len()
    }

    /// Forgets the contents that came after there were so many: those of copies that are gone. Contents
    /// share one list, which would grow with every crash point.
    pub fn forget_contents_since(&self, count: usize) {
        self.contents.borrow_mut().truncate(count);
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn begin(&mut self, range: SectorRange, content: impl Fn(u64) -> u32) -> Write {
        let submitted = self.tick();
        for number in 0..range.count {
            let sector = range.start.0 + number;
            let certain = self.certain[sector as usize];
            self.touched[sector as usize] = true;
            let first = || vec![Version { durable: true, ..Version::new(certain, 0, 0) }];
            let version = Version::new(content(number), submitted, NEVER);
            self.open.entry(sector).or_insert_with(first).push(version);
        }
        Write { range, submitted }
    }

    /// A write is submitted.
    pub fn begin_write(&mut self, at: Lba, data: &[u8]) -> Write {
        let first = {
            let mut contents = self.contents.borrow_mut();
            let first = contents.len() as u32;
            contents.extend(data.as_chunks::<SECTOR>().0);
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

    /// From now on a range may hold anything, for good: no layer can know what it holds.
    pub fn give_up(&mut self, range: SectorRange) {
        // An origin that has grown has sectors behind those of the volume.
        let end = range.end().0.min(self.certain.len() as u64);
        let Some(count) = end.checked_sub(range.start.0).filter(|count| *count > 0) else { return };
        let gone = self.begin(SectorRange::new(range.start, count), |_| ANYTHING);
        self.end_write(gone, true);
    }

    /// The same for every sector that was ever written.
    pub fn give_up_touched(&mut self) {
        let touched = (0..self.touched.len()).filter(|sector| self.touched[*sector]);
        for sector in touched.collect::<Vec<_>>() {
            let gone = self.begin(SectorRange::new(Lba(sector as u64), 1), |_| ANYTHING);
            let now = self.tick();
            self.versions_of(&gone, |version| (version.completed, version.durable) = (now, true));
        }
        self.prune();
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
        self.versions_of(&write, |version| version.end_unknown(now));
    }

    /// A write fails, and may be in a log that tells only the next start: until then reads decide nothing.
    pub fn fail_write_in_log(&mut self, write: Write) {
        let now = self.tick();
        self.versions_of(&write, |version| {
            version.end_unknown(now);
            version.undone = Undone::Told;
        });
    }

    /// A flush is submitted.
    pub fn begin_flush(&mut self) -> Since {
        Since(self.tick())
    }

    /// A flush completes: what had completed when it was submitted is durable.
    pub fn end_flush(&mut self, flush: Since) {
        for version in self.open.values_mut().flatten() {
            if version.completed < flush.0 && version.undone != Undone::Told {
                (version.durable, version.undone) = (true, Undone::No);
            }
        }
        self.prune();
    }

    /// A flush fails: what was undone before is told.
    pub fn fail_flush(&mut self) {
        for version in self.open.values_mut().flatten() {
            if version.undone == Undone::Untold {
                version.undone = Undone::Told;
            }
        }
    }

    /// A failed flush of a drive may have undone writes to a range. A client knows already of those that it
    /// was told of: a write of what was there in their place is no news to it.
    pub fn undo(&mut self, range: SectorRange) {
        for (_, versions) in self.open.range_mut(range.start.0..range.end().0) {
            for version in versions.iter_mut().filter(|it| !it.durable) {
                if version.undone == Undone::No {
                    version.undone = Undone::Untold;
                }
            }
        }
    }

    /// Forgets what nothing can bring back.
    fn prune(&mut self) {
        if self.reads_under_way > 0 {
            return;
        }
        let certain = &mut self.certain;
        self.open.retain(|sector, versions| {
            retain_after_power_cut(versions);
            let is_certain =
                matches!(&versions[..], [one] if one.durable && one.completed != NEVER);
            if is_certain {
                certain[*sector as usize] = versions[0].content;
            }
            !is_certain
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
        let certain = self.certain[sector as usize];
        let Some(versions) = self.open.get_mut(&sector) else {
            return if is(certain) {
                Ok(())
            } else {
                Err(self.violation(sector, found, &[certain]))
            };
        };
        let current = |version: &Version| {
            !versions.iter().any(|newer| newer.done() < read.0 && newer.replaces(version))
        };
        let possible: Vec<usize> =
            (0..versions.len()).filter(|number| current(&versions[*number])).collect();
        let anything = possible.iter().any(|number| versions[*number].content == ANYTHING);
        let alike: Vec<usize> =
            possible.iter().copied().filter(|number| is(versions[*number].content)).collect();
        let Some(&seen) = alike.last() else {
            let allowed: Vec<u32> = possible.iter().map(|at| versions[*at].content).collect();
            return Err(self.violation(sector, found, &allowed));
        };
        if versions.iter().any(|version| version.undone != Undone::No) {
            return Ok(());
        }
        let quiet = versions.iter().all(|version| version.completed < read.0);
        let known = !anything && alike.len() == 1;
        let seen = &mut versions[seen];
        if quiet && !anything && (possible.len() > 1 || seen.doubtful) {
            self.clock += 1;
            let durable = seen.durable;
            *seen = Version { durable, ..Version::new(seen.content, self.clock, self.clock) };
        } else if !quiet && known {
            self.clock += 1;
            seen.seen_by = seen.seen_by.min(self.clock);
            seen.seen_from = seen.seen_from.max(read.0);
            seen.doubtful = false;
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

    /// All drives are cut off in the same way.
    pub(crate) fn crash(&mut self, cut: Cut) {
        match cut {
            Cut::Power => self.power_cut(),
            Cut::Kill => self.kill(),
        }
    }

    /// The power is cut: nothing is under way any more, and what is there is on the medium.
    pub fn power_cut(&mut self) {
        self.cut(true);
    }

    /// Only one drive has lost its power. All that is there may sit in the volatile cache of the other,
    /// and a later cut may bring older content back.
    pub fn power_cut_in_part(&mut self) {
        self.cut(false);
    }

    fn cut(&mut self, durable: bool) {
        self.reads_under_way = 0;
        let now = self.tick();
        for versions in self.open.values_mut() {
            retain_after_power_cut(versions);
            if let Some(anything) = versions.iter().position(|it| it.content == ANYTHING) {
                versions.swap(0, anything);
                versions.truncate(1);
            }
            let durable = durable || versions.len() == 1;
            for version in versions {
                *version = Version { durable, ..Version::new(version.content, now, now) };
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
                version.end_unknown(now);
            } else if version.undone != Undone::No {
                // A start decides, and takes what it finds.
                (version.undone, version.doubtful, version.seen_by) = (Undone::No, true, NEVER);
            }
        }
    }

    /// Whether a request has ever changed a sector, or may have.
    pub fn is_touched(&self, sector: u64) -> bool {
        self.touched.get(sector as usize).is_some_and(|touched| *touched)
    }

    /// Whether a change of a sector is under way.
    pub fn is_changing(&self, sector: u64) -> bool {
        let versions = self.open.get(&sector);
        versions.is_some_and(|all| all.iter().any(|version| version.completed == NEVER))
    }

    /// Whether a sector, of which one content is possible while nothing is under way, has another
    /// one than `found`.
    pub fn differs(&self, sector: u64, found: &[u8]) -> bool {
        let contents = self.contents.borrow();
        let is = |content: u32| content == ANYTHING || contents[content as usize][..] == *found;
        let Some(versions) = self.open.get(&sector) else {
            return !is(self.certain[sector as usize]);
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

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: [u8; SECTOR] = [1; SECTOR];
    const NEW: [u8; SECTOR] = [2; SECTOR];

    /// A sector with `OLD` on it, and a write of `NEW` under way.
    fn overwriting() -> (Model, Write) {
        let mut model = Model::new(4);
        let write = model.begin_write(Lba(1), &OLD);
        model.end_write(write, true);
        let write = model.begin_write(Lba(1), &NEW);
        (model, write)
    }

    fn reads(model: &mut Model, found: &[u8]) -> Result<(), Violation> {
        let read = model.begin_read();
        model.end_read(read, Lba(1), found)
    }

    #[test]
    fn reads_beside_a_write_may_return_either_and_later_ones_not_fall_back() {
        let (mut model, _write) = overwriting();
        reads(&mut model, &OLD).unwrap();
        let slow = model.begin_read();
        reads(&mut model, &NEW).unwrap();
        reads(&mut model, &OLD).unwrap_err();
        model.end_read(slow, Lba(1), &OLD).expect("it began before the new one was seen");
    }

    #[test]
    fn two_writes_at_once_end_in_the_order_in_which_reads_saw_them() {
        let (mut model, first) = overwriting();
        let third = [3; SECTOR];
        let second = model.begin_write(Lba(1), &third);
        reads(&mut model, &third).unwrap();
        reads(&mut model, &NEW).unwrap();
        model.end_write(first, false);
        model.end_write(second, false);
        assert!(reads(&mut model.clone(), &third).is_err(), "it was there before");
        reads(&mut model, &NEW).unwrap();
    }

    #[test]
    fn what_a_read_saw_of_a_write_stays_after_a_kill_and_may_go_in_a_power_cut() {
        let (mut model, _write) = overwriting();
        reads(&mut model, &NEW).unwrap();
        let mut cut = model.clone();
        cut.power_cut();
        reads(&mut cut.clone(), &OLD).unwrap();
        reads(&mut cut, &NEW).unwrap();
        reads(&mut cut, &OLD).expect_err("the sector changed by itself");
        model.kill();
        reads(&mut model, &OLD).unwrap_err();
    }

    #[test]
    fn a_write_that_failed_or_was_killed_may_have_taken_place_or_not() {
        let (mut model, write) = overwriting();
        let mut killed = model.clone();
        model.fail_write(write);
        killed.kill();
        for mut model in [model, killed] {
            reads(&mut model.clone(), &NEW).unwrap();
            reads(&mut model, &OLD).unwrap();
            reads(&mut model, &NEW).expect_err("it was decided");
        }
    }

    #[test]
    fn a_flush_that_fails_tells_that_writes_are_undone_and_one_that_completes_that_they_are_there()
    {
        let (mut model, write) = overwriting();
        model.end_write(write, false);
        reads(&mut model, &NEW).unwrap();
        model.undo(SectorRange::new(Lba(1), 1));
        for found in [OLD, NEW, OLD] {
            reads(&mut model, &found).unwrap();
        }
        let mut told = model.clone();
        let flush = model.begin_flush();
        model.end_flush(flush);
        reads(&mut model, &OLD).expect_err("a flush says that the new one is there");
        told.fail_flush();
        let flush = told.begin_flush();
        told.end_flush(flush);
        reads(&mut told.clone(), &NEW).unwrap();
        reads(&mut told, &OLD).unwrap();
        told.kill();
        reads(&mut told, &OLD).unwrap();
        reads(&mut told, &NEW).expect_err("the start has decided");
    }

    #[test]
    fn flushed_writes_survive_power_cuts_and_others_may_not() {
        let (mut model, write) = overwriting();
        model.end_write(write, false);
        let mut cut = model.clone();
        cut.power_cut();
        reads(&mut cut, &OLD).expect("no flush covered the new one");
        let flush = model.begin_flush();
        model.end_flush(flush);
        model.power_cut();
        reads(&mut model, &OLD).unwrap_err();
    }
}
