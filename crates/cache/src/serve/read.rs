//! Reads: hits from the SSD with their checksum verified, the rest from the origin.

use std::borrow::Cow;
use std::pin::{Pin, pin};
use std::rc::Rc;

use voltier_block::{Buf, Bytes, DriveControl, IoError, IoResult, Lba, Limits, SectorRange};
use voltier_ring::join_all;

use crate::canary::{self, Canary};
use crate::counters::{Counters, Served, count};
use crate::devices::origin::Origin;
use crate::devices::ssd::Ssd;
use crate::format::geometry::mask_of;
use crate::ground::Ground;
use crate::log::damage::Damage;
use crate::map::locks::{Access, LineLocks};
use crate::map::recent::RecentLines;
use crate::map::shared::{Map, Pinned, SlotCopy};
use crate::numbers::{Line, Slot};
use crate::serve::idle_origin::IdleOrigin;
use crate::serve::line_reads::{LineReader, LineReads};
use crate::serve::miss::MissReader;
use crate::serve::plan::{Planner, Run};
use crate::serve::read_over::ReadOver;
use crate::serve::route::Router;
use crate::serve::same_range::{self, Role, SharedReads};

/// Lines, and what the SSD has of each.
type CopiedLines = Vec<(Line, SlotCopy)>;

/// What a read over cached lines is put together from.
struct Sources<'a> {
    /// From the origin.
    missing: Vec<SectorRange>,
    /// From the origin too, which must have what the SSD has; others may wait for a line of which this is a part.
    copies: Vec<(SectorRange, CopiedLines, Option<LineReader>)>,
    /// From wherever they are.
    others: Vec<Run<'a>>,
}

/// A read of a part of a request.
type BoxedRead<'a> = Pin<Box<dyn Future<Output = IoResult<Buf>> + 'a>>;

/// The reads of one cache.
pub(crate) struct Reader<S, O> {
    limits: Limits,
    map: Rc<Map>,
    ssd: Rc<Ssd<S>>,
    origin: Rc<Origin<O>>,
    damage: Rc<Damage<S>>,
    locks: Rc<LineLocks>,
    router: Rc<Router<S>>,
    planner: Planner<S>,
    misses: MissReader<S, O>,
    idle_origin: IdleOrigin<O>,
    shared_reads: SharedReads,
    read_over: ReadOver<O>,
    recent: Rc<RecentLines>,
    counters: Rc<Counters>,
}

impl<S: DriveControl, O: DriveControl> Reader<S, O> {
    pub(crate) fn new(ground: &Ground<S, O>, router: Rc<Router<S>>) -> Self {
        let line_reads = Rc::new(LineReads::default());
        Self {
            limits: ground.limits.clone(),
            map: ground.map.clone(),
            ssd: ground.ssd.clone(),
            origin: ground.origin.clone(),
            damage: ground.damage.clone(),
            locks: ground.locks.clone(),
            router,
            planner: Planner::new(ground, line_reads.clone()),
            misses: MissReader::new(ground, line_reads),
            idle_origin: IdleOrigin::new(ground),
            shared_reads: SharedReads::default(),
            read_over: ReadOver::new(ground),
            recent: ground.recent.clone(),
            counters: ground.counters.clone(),
        }
    }

    pub(crate) async fn read(&self, at: Lba, mut into: Buf) -> IoResult<Buf> {
        let bytes = into.len() as u64;
        let range = SectorRange::from_bytes(at.bytes(), bytes);
        assert!(self.limits.accepts(range) && !range.is_empty(), "the volume checks ranges");
        let (first, last) = self.map.geometry().lines_of(range);
        let _guard = self.locks.lock(first, last, Access::Shared).await;
        if first == last
            && bytes == self.map.geometry().line_bytes
            && !self.read_over.may_take(range)
            && let Some(pinned) = self.planner.ready_hit(first)
        {
            let read = self.read_whole_line(first, pinned, into).await?;
            count(&self.counters.reads, Served::Hit, bytes);
            return Ok(read);
        }
        let keep = self.router.keeps_read(range);
        let leader = match self.shared_reads.join(range) {
            None => None,
            Some(Role::Leader(leader)) => Some(leader),
            Some(Role::Waiter(answer)) => {
                if let Some((data, served)) = answer.await {
                    into.copy_from_slice(&data);
                    count(&self.counters.reads, served, bytes);
                    return Ok(into);
                }
                None
            }
        };
        let runs = self.planner.plan(range, true).await;
        let runs = self.read_over.put_together(range, runs);
        let missed = runs.iter().any(Run::is_miss);
        let read = self.execute_all(runs, into, keep).await?;
        let served = match (missed, keep) {
            (false, _) => Served::Hit,
            (true, true) => Served::Miss,
            (true, false) => Served::Bypassed,
        };
        if let Some(leader) = leader {
            same_range::answer_reads(leader, &read, served);
        }
        count(&self.counters.reads, served, bytes);
        Ok(read)
    }

    /// Reads one pinned line straight into the client's buffer.
    async fn read_whole_line(
        &self,
        line: Line,
        pinned: Pinned<'_>,
        mut into: Buf,
    ) -> IoResult<Buf> {
        let lines = [(line, pinned)];
        // Boxed, like everything that a usual hit does not need, so that a hit does not carry it along.
        let is_better_elsewhere = self.idle_origin.is_better_for(&lines);
        if is_better_elsewhere && Box::pin(self.idle_origin.read(&lines, &mut into)).await {
            return Ok(into);
        }
        let read = self.read_ssd(&lines, into).await;
        let [(line, pinned)] = lines;
        let copy = pinned.release();
        match read {
            Some(Ok(data)) if copy.holds(&data) => Ok(data),
            Some(_) => Box::pin(self.read_after_error(line, copy.slot)).await,
            None => Box::pin(self.read_origin(self.map.geometry().line_range(line))).await,
        }
    }

    /// Reads pinned lines, neighbours on the SSD. `None` if the SSD is silent and the origin has what was
    /// acknowledged of the lines.
    async fn read_ssd(&self, lines: &[(Line, Pinned<'_>)], into: Buf) -> Option<IoResult<Buf>> {
        let (first, last) = (lines[0].0, lines[lines.len() - 1].0);
        let (at, bytes) = (lines[0].1.copy().at, into.len() as u64);
        let begun = self.idle_origin.begin_ssd_read();
        let request = pin!(self.ssd.begin_read(at, into));
        let silence = self.ssd.silence();
        let read = match silence.released(request, || self.origin_has(first, last)).await {
            Some(Err(error)) => {
                let again = Box::pin(self.ssd.read_failed(at, bytes, error));
                silence.released(pin!(again), || self.origin_has(first, last)).await
            }
            read => read,
        };
        if read.is_some() {
            self.idle_origin.end_ssd_read(begun);
        }
        read
    }

    async fn read_after_error(&self, line: Line, slot: Slot) -> IoResult<Buf> {
        self.damage.give_up_line(line, slot)?;
        self.read_origin(self.map.geometry().line_range(line)).await
    }

    async fn read_origin(&self, range: SectorRange) -> IoResult<Buf> {
        self.origin.read(range.start, Buf::new(range.bytes() as usize)).await
    }

    /// Whether the origin has what was acknowledged of these lines, whose locks the caller holds.
    fn origin_has(&self, first: Line, last: Line) -> bool {
        !self.map.has_dirty(first, last) || canary::is(Canary::SilentSsdPassed)
    }

    async fn execute_all(&self, runs: Vec<Run<'_>>, mut into: Buf, keep: bool) -> IoResult<Buf> {
        if runs.len() == 1 {
            let run = runs.into_iter().next().expect("one run");
            return self.execute(run, into, keep).await;
        }
        let parts = runs.into_iter().map(|run| {
            let part = into.split_to(run.range().bytes() as usize);
            self.execute(run, part, keep)
        });
        let parts = join_all(parts).await.into_iter().collect::<IoResult<Vec<Buf>>>()?;
        Ok(Buf::put_together(parts))
    }

    async fn execute(&self, run: Run<'_>, part: Buf, keep: bool) -> IoResult<Buf> {
        match run {
            Run::Ssd { lines, range } => self.read_run(lines, range, part).await,
            Run::Line { line, slot, range, for_all } => {
                let data = Box::pin(self.read_mixed_line(line, slot, range, for_all)).await?;
                Ok(filled(part, &data))
            }
            Run::Memory { data, .. } => Ok(filled(part, &data)),
            Run::Joined { read, range, .. } => {
                if let Some(line) = read.line().await {
                    let first = self.map.geometry().line_of(range.start);
                    let whole = self.map.geometry().line_range(first);
                    let from = (range.start.0 - whole.start.0) as usize * 512;
                    let end = from + part.len();
                    return Ok(filled(part, &line[from..end]));
                }
                // Each by itself, with the errors of its own part.
                let runs = self.planner.plan(range, false).await;
                Box::pin(self.execute_all(runs, part, keep)).await
            }
            Run::Origin { range } => self.misses.read_miss(range, part, keep, range).await,
            Run::Over { range, disk, runs } => {
                Box::pin(self.read_over(range, disk, runs, part, keep)).await
            }
        }
    }

    /// Reads what is not cached from the origin in one piece. Of what is cached and clean the origin has the same,
    /// which is checked; what is newer comes from the SSD.
    async fn read_over(
        &self,
        range: SectorRange,
        disk: SectorRange,
        runs: Vec<Run<'_>>,
        mut part: Buf,
        keep: bool,
    ) -> IoResult<Buf> {
        let Sources { missing, copies, others } = self.sources(disk, runs);
        let places: Vec<SectorRange> = others.iter().map(Run::range).collect();
        let into = Buf::new(disk.bytes() as usize);
        let read = self.misses.read_miss(disk, into, keep, range);
        let is_miss = !missing.is_empty();
        let read = async {
            match is_miss {
                true => read.await,
                // What is cached need not wait for a disk that does not answer.
                false => self.read_over.in_time(read).await,
            }
        };
        let others = others.into_iter().map(|run| {
            let into = Buf::new(run.range().bytes() as usize);
            Box::pin(self.execute(run, into, keep)) as BoxedRead<'_>
        });
        let all = std::iter::once(Box::pin(read) as BoxedRead<'_>).chain(others);
        let mut all = join_all(all).await.into_iter();
        let Some(Ok(data)) = all.next() else {
            // What is cached needs no origin.
            drop(copies);
            let runs = self.planner.plan(range, false).await;
            return self.execute_all(runs, part, keep).await;
        };
        let bytes_in = |whole: SectorRange, of: SectorRange| {
            let from = (of.start.0 - whole.start.0) as usize * 512;
            from..from + of.bytes() as usize
        };
        for (other, of) in all.zip(places) {
            part[bytes_in(range, of)].copy_from_slice(&other?);
        }
        for of in missing {
            part[bytes_in(range, of)].copy_from_slice(&data[bytes_in(disk, of)]);
        }
        let geometry = self.map.geometry();
        for (of, lines, for_all) in copies {
            let whole_line = |line: Line| {
                let bytes = &data[bytes_in(disk, geometry.line_range(line))];
                pad_line(bytes, geometry.line_bytes as usize)
            };
            if !lines.iter().all(|(line, copy)| copy.holds(&whole_line(*line))) {
                // The SSD has what is right.
                drop(for_all);
                let runs = self.planner.plan(of, false).await;
                let read = self.execute_all(runs, Buf::new(of.bytes() as usize), keep).await?;
                part[bytes_in(range, of)].copy_from_slice(&read);
                continue;
            }
            part[bytes_in(range, of)].copy_from_slice(&data[bytes_in(disk, of)]);
            if let Some(for_all) = for_all {
                let line = Buf::copy_of(&whole_line(for_all.line())).freeze();
                self.recent.put(for_all.line(), (line.clone(), None));
                for_all.end(line);
            }
        }
        Ok(part)
    }

    /// Where the runs of a request come from, of which the origin reads `disk`.
    fn sources<'a>(&self, disk: SectorRange, runs: Vec<Run<'a>>) -> Sources<'a> {
        let (mut missing, mut copies, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for run in runs {
            match run {
                Run::Origin { range } => missing.push(range),
                // Pins are for reads of the SSD: those of the origin may take long.
                Run::Ssd { lines, range } if disk.contains(range) && self.are_clean(&lines) => {
                    let lines = lines.iter().map(|(line, pinned)| (*line, pinned.copy()));
                    copies.push((range, lines.collect::<CopiedLines>(), None));
                }
                Run::Line { line, slot, range, for_all: Some(for_all) } => {
                    let pinned = self.map.pin(&mut self.map.change(), slot);
                    let lines = [(line, pinned)];
                    if disk.contains(self.map.geometry().line_range(line)) && self.are_clean(&lines)
                    {
                        copies.push((range, vec![(line, lines[0].1.copy())], Some(for_all)));
                    } else {
                        others.push(Run::Line { line, slot, range, for_all: Some(for_all) });
                    }
                }
                _ => others.push(run),
            }
        }
        Sources { missing, copies, others }
    }

    /// Whether the origin has these lines as they are.
    fn are_clean(&self, lines: &[(Line, Pinned<'_>)]) -> bool {
        let contents = self.map.get();
        let is_dirty =
            |(_, pinned): &(Line, Pinned<'_>)| contents.index().is_dirty(pinned.copy().slot);
        !lines.iter().any(is_dirty)
    }

    /// Reads pinned whole lines that are neighbours on the SSD, and checks each.
    async fn read_run(
        &self,
        lines: Vec<(Line, Pinned<'_>)>,
        range: SectorRange,
        mut part: Buf,
    ) -> IoResult<Buf> {
        let bytes = part.len();
        let is_better_elsewhere = self.idle_origin.is_better_for(&lines);
        if is_better_elsewhere && Box::pin(self.idle_origin.read(&lines, &mut part)).await {
            return Ok(part);
        }
        let Some(read) = self.read_ssd(&lines, part).await else {
            drop(lines);
            return self.read_origin(range).await;
        };
        let line_bytes = self.map.geometry().line_bytes as usize;
        let mut bad = Vec::new();
        for (number, (line, pinned)) in lines.into_iter().enumerate() {
            let copy = pinned.release();
            let from = number * line_bytes;
            let good = read.as_ref().is_ok_and(|data| copy.holds(&data[from..from + line_bytes]));
            if !good {
                bad.push((from, line, copy.slot));
            }
        }
        if bad.is_empty() {
            return read;
        }
        let part = read.unwrap_or_else(|_| Buf::new(bytes));
        self.mend_run(part, &bad).await
    }

    /// Serves the bad lines of a run one by one, each from where it is whole.
    ///
    /// The buffer of a failed read is gone with it, so the result may be in another one.
    async fn mend_run(&self, mut part: Buf, bad: &[(usize, Line, Slot)]) -> IoResult<Buf> {
        for (from, line, slot) in bad {
            // Unpinned since: the slot may have another line by now.
            let still = self.map.get().index().lookup(*line) == Some(*slot);
            let request = pin!(self.ssd.read_slot(*slot));
            let clean = || self.origin_has(*line, *line);
            let again = match still {
                true => self.ssd.silence().released(request, clean).await,
                false => Some(Err(IoError::Medium)),
            };
            let data = match again {
                Some(Ok(data)) => data,
                Some(Err(_)) => self.read_after_error(*line, *slot).await?,
                None => self.read_origin(self.map.geometry().line_range(*line)).await?,
            };
            part[*from..*from + data.len()].copy_from_slice(&data);
        }
        Ok(part)
    }

    /// Reads a part of a cached line, the sectors that are not cached from the origin.
    async fn read_mixed_line(
        &self,
        line: Line,
        slot: Slot,
        range: SectorRange,
        for_all: Option<LineReader>,
    ) -> IoResult<Bytes> {
        let whole = self.map.geometry().line_range(line);
        let mask = self.map.get().index().mask(slot).unwrap_or(u128::MAX);
        let wanted = mask_of(range.start.0 - whole.start.0, range.count);
        if self.ssd.failed() && mask & wanted != 0 {
            return Err(IoError::Medium);
        }
        let cached = if mask & wanted == 0 {
            None
        } else {
            let request = pin!(self.ssd.read_slot(slot));
            match self.ssd.silence().released(request, || self.origin_has(line, line)).await {
                Some(Ok(data)) => Some(data),
                Some(Err(_)) => {
                    self.damage.give_up_line(line, slot)?;
                    None
                }
                None => None,
            }
        };
        let cached = cached.map(Buf::freeze);
        if let (Some(for_all), Some(line)) = (for_all, &cached) {
            self.recent.put(for_all.line(), (line.clone(), None));
            for_all.end(line.clone());
        }
        let valid = if cached.is_some() { mask } else { 0 };
        if let Some(cached) = &cached
            && wanted & !valid == 0
        {
            let from = (range.start.0 - whole.start.0) as usize * 512;
            return Ok(cached.slice(from..from + range.bytes() as usize));
        }
        let mut data = self.read_origin(range).await?;
        if let Some(cached) = cached {
            for sector in 0..range.count {
                let in_line = range.start.0 - whole.start.0 + sector;
                if valid & 1 << in_line != 0 {
                    let (to, from) = (sector as usize * 512, in_line as usize * 512);
                    data[to..to + 512].copy_from_slice(&cached[from..from + 512]);
                }
            }
        }
        Ok(data.freeze())
    }
}

/// A line as the SSD has it: a short last one is padded.
fn pad_line(line: &[u8], line_bytes: usize) -> Cow<'_, [u8]> {
    if line.len() == line_bytes {
        return Cow::Borrowed(line);
    }
    let mut padded = line.to_vec();
    padded.resize(line_bytes, 0);
    Cow::Owned(padded)
}

fn filled(mut part: Buf, data: &[u8]) -> Buf {
    part.copy_from_slice(data);
    part
}
