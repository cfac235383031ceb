//! Reads: hits from the SSD with their checksum verified, the rest from the origin.

use std::pin::pin;
use std::rc::Rc;

use voltier_block::{Buf, DriveControl, IoError, IoResult, Lba, Limits, SectorRange};
use voltier_ring::join_all;

use crate::canary::{self, Canary};
use crate::counters::{Counters, Served, count};
use crate::devices::origin::Origin;
use crate::devices::ssd::Ssd;
use crate::format::geometry::mask_of;
use crate::ground::Ground;
use crate::log::damage::Damage;
use crate::map::locks::{Access, LineLocks};
use crate::map::shared::{Map, Pinned};
use crate::numbers::{Line, Slot};
use crate::serve::idle_origin::IdleOrigin;
use crate::serve::miss::MissReader;
use crate::serve::plan::{Planner, Run};
use crate::serve::route::Router;
use crate::serve::same_range::{self, Role, SharedReads};

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
    counters: Rc<Counters>,
}

impl<S: DriveControl, O: DriveControl> Reader<S, O> {
    pub(crate) fn new(ground: &Ground<S, O>, router: Rc<Router<S>>) -> Self {
        Self {
            limits: ground.limits.clone(),
            map: ground.map.clone(),
            ssd: ground.ssd.clone(),
            origin: ground.origin.clone(),
            damage: ground.damage.clone(),
            locks: ground.locks.clone(),
            router,
            planner: Planner::new(ground),
            misses: MissReader::new(ground),
            idle_origin: IdleOrigin::new(ground),
            shared_reads: SharedReads::default(),
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
        let runs = self.planner.plan(range).await;
        let missed = runs.iter().any(|run| matches!(run, Run::Origin { .. }));
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
            Run::Line { line, slot, range } => {
                let mut part = part;
                let data = self.read_mixed_line(line, slot, range).await?;
                part.copy_from_slice(&data);
                Ok(part)
            }
            Run::Origin { range } => self.misses.read_miss(range, part, keep).await,
        }
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
    async fn read_mixed_line(&self, line: Line, slot: Slot, range: SectorRange) -> IoResult<Buf> {
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
        let valid = if cached.is_some() { mask } else { 0 };
        let mut data = if wanted & !valid == 0 {
            Buf::new(range.bytes() as usize)
        } else {
            self.read_origin(range).await?
        };
        if let Some(cached) = cached {
            for sector in 0..range.count {
                let in_line = range.start.0 - whole.start.0 + sector;
                if valid & 1 << in_line != 0 {
                    let (to, from) = (sector as usize * 512, in_line as usize * 512);
                    data[to..to + 512].copy_from_slice(&cached[from..from + 512]);
                }
            }
        }
        Ok(data)
    }
}
