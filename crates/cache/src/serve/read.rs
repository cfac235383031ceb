//! Reads: hits from the SSD with their checksum verified, the rest from the origin.

use voltier_block::{BlockDevice, Buf, Bytes, IoError, IoResult, Lba, SectorRange};
use voltier_ring::join_all;

use crate::cache::{Inner, mask_of};
use crate::canary::{self, Canary};
use crate::devices::ssd::Pinned;
use crate::log::change::{Change, Source};
use crate::map::locks::Access;
use crate::serve::single_flight::Place;
use crate::status::{Served, count};

/// Fills that wait for the log, at most; beyond it a miss is served and not kept.
const FILL_BACKLOG_BYTES: u64 = 8 << 20;

/// A stretch of a request that is served in one way.
enum Run {
    /// Whole lines that stand one behind the other on the SSD.
    Ssd { lines: Vec<(u64, Pinned)>, range: SectorRange },
    /// A part of a line, or a line of which only some sectors are cached.
    Line { line: u64, slot: u32, range: SectorRange },
    /// Not cached.
    Origin { range: SectorRange },
}

impl Run {
    fn range(&self) -> SectorRange {
        match self {
            Run::Ssd { range, .. } | Run::Line { range, .. } | Run::Origin { range } => *range,
        }
    }
}

impl<S: BlockDevice, O: BlockDevice> Inner<S, O> {
    pub(crate) async fn read(&self, at: Lba, mut into: Buf) -> IoResult<Buf> {
        let bytes = into.len() as u64;
        let range = SectorRange::from_bytes(at.bytes(), bytes);
        assert!(self.limits.accepts(range) && !range.is_empty(), "the volume checks ranges");
        let (first, last) = self.lines_of(range);
        let _guard = self.locks.lock(first, last, Access::Shared).await;
        if first == last
            && bytes == self.geometry.line_bytes
            && let Some(pinned) = self.ready_hit(first)
        {
            let read = self.read_whole_line(first, pinned, into).await?;
            count(&self.counters.reads, Served::Hit, bytes);
            return Ok(read);
        }
        let keep = self.keeps_read(range);
        let lead = match self.shared_reads.join(range) {
            None => None,
            Some(Place::Leads(lead)) => Some(lead),
            Some(Place::Follows(answer)) => {
                if let Some((data, served)) = answer.await {
                    into.copy_from_slice(&data);
                    count(&self.counters.reads, served, bytes);
                    return Ok(into);
                }
                None
            }
        };
        let runs = self.plan(range).await;
        let missed = runs.iter().any(|run| matches!(run, Run::Origin { .. }));
        let read = self.execute_all(runs, into, keep).await?;
        let served = match (missed, keep) {
            (false, _) => Served::Hit,
            (true, true) => Served::Miss,
            (true, false) => Served::Bypassed,
        };
        if let Some(lead) = lead {
            lead.answer(&read, served);
        }
        count(&self.counters.reads, served, bytes);
        Ok(read)
    }

    /// A line that is whole and on the SSD, pinned: the fast path.
    fn ready_hit(&self, line: u64) -> Option<Pinned> {
        if self.failed() {
            return None;
        }
        let mut state = self.state.borrow_mut();
        let slot = state.index.lookup(line)?;
        let pending = state.index.is_pending(slot) && !canary::is(Canary::PendingRead);
        if pending || state.index.mask(slot).is_some() {
            return None;
        }
        state.policy.touch(slot, line);
        Some(self.pin_slot(&mut state, slot))
    }

    /// Reads one pinned line straight into the client's buffer.
    async fn read_whole_line(&self, line: u64, pinned: Pinned, mut into: Buf) -> IoResult<Buf> {
        let lines = [(line, pinned)];
        if self.read_congested(&lines, &mut into).await {
            return Ok(into);
        }
        let [(line, pinned)] = lines;
        let read = self.read_timed(pinned.at, into).await;
        self.unpin(&pinned);
        match read {
            Ok(data) if pinned.holds(&data) => return Ok(data),
            Ok(_) => {}
            Err(error) => self.count_ssd_error(error),
        }
        self.read_after_error(line, pinned.slot).await
    }

    async fn read_after_error(&self, line: u64, slot: u32) -> IoResult<Buf> {
        self.give_up_line(line, slot)?;
        let range = self.line_range(line);
        self.read_origin(range.start, Buf::new(range.bytes() as usize)).await
    }

    /// Cuts a request into runs, after waiting for lines that are on their way to the SSD.
    async fn plan(&self, range: SectorRange) -> Vec<Run> {
        let (first, last) = self.lines_of(range);
        // Neighbours are far apart in the table: the waits for memory are had at once.
        self.state.borrow().index.warm_up_lines(first..=last);
        loop {
            let pending = {
                let state = self.state.borrow();
                // Only what is on its way can be pending.
                !self.failed()
                    && state.records_in_flight() > 0
                    && (first..=last).any(|line| {
                        state.index.lookup(line).is_some_and(|slot| state.index.is_pending(slot))
                    })
            };
            if !pending {
                return self.plan_now(range);
            }
            self.log_progress.wait().await;
        }
    }

    fn plan_now(&self, range: SectorRange) -> Vec<Run> {
        let mut state = self.state.borrow_mut();
        let line_sectors = self.geometry.line_sectors();
        let mut runs: Vec<Run> = Vec::new();
        for piece in range.split_at_multiples(line_sectors) {
            let line = piece.start.0 / line_sectors;
            // Clean copies on a lost SSD are as good as none; dirty ones must not be forgotten.
            let slot = state
                .index
                .lookup(line)
                .filter(|slot| !self.failed() || state.index.is_dirty(*slot));
            let Some(slot) = slot else {
                match runs.last_mut() {
                    Some(Run::Origin { range }) => range.count += piece.count,
                    _ => runs.push(Run::Origin { range: piece }),
                }
                continue;
            };
            state.policy.touch(slot, line);
            let whole = piece.count == line_sectors && state.index.mask(slot).is_none();
            if !whole || self.failed() {
                runs.push(Run::Line { line, slot, range: piece });
                continue;
            }
            let pinned = self.pin_slot(&mut state, slot);
            match runs.last_mut() {
                Some(Run::Ssd { lines, range })
                    if lines[lines.len() - 1].1.at.plus(line_sectors) == pinned.at =>
                {
                    lines.push((line, pinned));
                    range.count += piece.count;
                }
                _ => runs.push(Run::Ssd { lines: vec![(line, pinned)], range: piece }),
            }
        }
        runs
    }

    async fn execute_all(&self, runs: Vec<Run>, mut into: Buf, keep: bool) -> IoResult<Buf> {
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

    async fn execute(&self, run: Run, part: Buf, keep: bool) -> IoResult<Buf> {
        match run {
            Run::Ssd { lines, .. } => self.read_run(lines, part).await,
            Run::Line { line, slot, range } => {
                let mut part = part;
                let data = self.read_mixed_line(line, slot, range).await?;
                part.copy_from_slice(&data);
                Ok(part)
            }
            Run::Origin { range } => self.read_miss(range, part, keep).await,
        }
    }

    /// Reads pinned whole lines that are neighbours on the SSD, and checks each.
    async fn read_run(&self, lines: Vec<(u64, Pinned)>, mut part: Buf) -> IoResult<Buf> {
        let bytes = part.len();
        if self.read_congested(&lines, &mut part).await {
            return Ok(part);
        }
        let read = self.read_timed(lines[0].1.at, part).await;
        let line_bytes = self.geometry.line_bytes as usize;
        let mut bad = Vec::new();
        for (number, (line, pinned)) in lines.iter().enumerate() {
            self.unpin(pinned);
            let from = number * line_bytes;
            let good = read.as_ref().is_ok_and(|data| pinned.holds(&data[from..from + line_bytes]));
            if !good {
                bad.push((from, *line, pinned.slot));
            }
        }
        if bad.is_empty() {
            return read;
        }
        let part = read.unwrap_or_else(|error| {
            self.count_ssd_error(error);
            Buf::new(bytes)
        });
        self.mend_run(part, &bad).await
    }

    /// Serves the bad lines of a run one by one, each from where it is whole.
    ///
    /// The buffer of a failed read is gone with it, so the result may be in another one.
    async fn mend_run(&self, mut part: Buf, bad: &[(usize, u64, u32)]) -> IoResult<Buf> {
        for (from, line, slot) in bad {
            // Unpinned since: the slot may have another line by now.
            let still = self.state.borrow().index.lookup(*line) == Some(*slot);
            let again = if still { self.read_slot(*slot).await } else { Err(IoError::Medium) };
            let data = match again {
                Ok(data) => data,
                Err(_) => self.read_after_error(*line, *slot).await?,
            };
            part[*from..*from + data.len()].copy_from_slice(&data);
        }
        Ok(part)
    }

    /// Reads a part of a cached line, the sectors that are not cached from the origin.
    async fn read_mixed_line(&self, line: u64, slot: u32, range: SectorRange) -> IoResult<Buf> {
        let whole = self.line_range(line);
        let (mask, usable) = {
            let state = self.state.borrow();
            (state.index.mask(slot).unwrap_or(u128::MAX), !self.failed())
        };
        let wanted = mask_of(range.start.0 - whole.start.0, range.count);
        if !usable && mask & wanted != 0 {
            return Err(IoError::Medium);
        }
        let cached = if mask & wanted == 0 {
            None
        } else {
            match self.read_slot(slot).await {
                Ok(data) => Some(data),
                Err(_) => {
                    self.give_up_line(line, slot)?;
                    None
                }
            }
        };
        let valid = if cached.is_some() { mask } else { 0 };
        let mut data = if wanted & !valid == 0 {
            Buf::new(range.bytes() as usize)
        } else {
            self.read_origin(range.start, Buf::new(range.bytes() as usize)).await?
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

    /// Reads what is not cached, and keeps what admission lets in.
    async fn read_miss(&self, range: SectorRange, mut part: Buf, keep: bool) -> IoResult<Buf> {
        let (first, last) = self.lines_of(range);
        let admitted: Vec<u64> = if keep && self.has_fill_room() {
            let mut admission = self.admission.borrow_mut();
            (first..=last).filter(|line| admission.admit(*line)).collect()
        } else {
            Vec::new()
        };
        if admitted.is_empty() {
            return self.read_origin(range.start, part).await;
        }
        let start = self.line_range(first).start;
        let whole = SectorRange::new(start, self.line_range(last).end().0 - start.0);
        let (line_bytes, offset) =
            (self.geometry.line_bytes as usize, (range.start.0 - start.0) as usize * 512);
        let data = self.read_origin(start, Buf::new(whole.bytes() as usize)).await?.freeze();
        let end = offset + part.len();
        part.copy_from_slice(&data[offset..end]);
        let fills = admitted.into_iter().map(|line| {
            let at = (line - first) as usize * line_bytes;
            let count = self.line_range(line).bytes() as usize;
            let data = pad_line(data.slice(at..at + count), line_bytes);
            Change::Data { line, data, mask: None, source: Source::Fill }
        });
        self.queue(fills.collect::<Vec<_>>());
        if canary::is(Canary::BufferLeaked) {
            std::mem::forget(data.slice(0..512));
        }
        Ok(part)
    }

    fn has_fill_room(&self) -> bool {
        (self.state.borrow().user.bytes() as u64) < self.geometry.backlog_bytes(FILL_BACKLOG_BYTES)
    }
}

/// A short last line, padded to a whole one.
fn pad_line(data: Bytes, line_bytes: usize) -> Bytes {
    if data.len() == line_bytes {
        return data;
    }
    let mut padded = Buf::zeroed(line_bytes);
    padded[..data.len()].copy_from_slice(&data);
    padded.freeze()
}
