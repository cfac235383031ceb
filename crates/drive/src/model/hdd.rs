//! A hard disk: seek curve, rotation, zones, read-ahead, write cache, shortest-positioning queue.
//!
//! One coordinate describes the medium: the *track time* of a sector, the time a head that streams from
//! sector 0 needs to reach it. The remainder by one revolution is the angle, and the share of the whole
//! is the radius. So zones, seeks and rotation follow from one monotone function.

use std::collections::VecDeque;

use super::op::{Completion, ModelOp, Ticket, transfer_ns};
use voltier_block::{Nanos, SECTOR_BYTES, SectorRange};

/// Figures of a disk. All are those of one mechanism; see the profiles.
#[derive(Clone, Debug, PartialEq)]
pub struct HddParams {
    /// Size of the real disk in bytes. A smaller model is its outer part.
    pub capacity_bytes: u64,
    /// A model smaller than this keeps the seeks of a span this long, in bytes. So a small demonstration
    /// has the random rates of the measured disk.
    pub least_span_bytes: u64,
    /// One revolution.
    pub revolution_ns: Nanos,
    /// Recording zones, equal in sectors; the rate falls from zone to zone.
    pub zones: u32,
    /// Streaming rate of the outermost zone, head switches included, in bytes per second.
    pub outer_bytes_per_s: u64,
    /// Streaming rate of the innermost zone, in bytes per second.
    pub inner_bytes_per_s: u64,
    /// Seek to the next track.
    pub seek_track_ns: Nanos,
    /// Mean seek between two random places of the whole disk.
    pub seek_average_ns: Nanos,
    /// Seek from the outermost to the innermost track.
    pub seek_full_ns: Nanos,
    /// Added to a positioning that ends in a write: the head must settle better.
    pub write_settle_ns: Nanos,
    /// Added to the transfer of a write, in thousandths of its time: verifying on track switches.
    pub write_slower_permille: u64,
    /// Fixed cost of a command on the way in and out.
    pub command_ns: Nanos,
    /// Rate of the link, which requests served from memory see, in bytes per second.
    pub link_bytes_per_s: u64,
    /// Commands the disk chooses among.
    pub queue_depth: usize,
    /// Commands, oldest first, among which it looks for the shortest positioning. Real firmware
    /// gains less from a full queue than perfect knowledge would; what continues a stream is always
    /// found.
    pub reorder_reads: usize,
    /// The same for cached writes.
    pub reorder_writes: usize,
    /// A command that waited this long in the queue goes first.
    pub starvation_ns: Nanos,
    /// Writes the cache holds before it makes the host wait.
    pub cached_writes: usize,
    /// Bytes read on after a read, while idle or while a stream is being followed.
    pub read_ahead_bytes: u64,
    /// Streams followed at a time.
    pub segments: usize,
    /// How far apart requests of streams may lie, in bytes, for the disk to serve them as one while the
    /// disk's queue is full. Several jobs that walk one region together have such requests.
    pub near_bytes: u64,
}

/// A request in the disk, in track time.
#[derive(Clone, Debug)]
struct Job {
    /// Answered when the head is done with it; a cached write was answered before.
    ticket: Option<Ticket>,
    sequence: u64,
    is_write: bool,
    /// Whether the request continues a stream.
    is_sequential: bool,
    start: Nanos,
    end: Nanos,
    /// The time when the request entered the queue the disk chooses from.
    queued_at: Nanos,
}

/// The read-ahead behind a stream: `start..end` is in memory, the last of it from `read_at`
/// on, and not yet asked for. Sectors that a host took are dropped: disks keep little for a second reader.
#[derive(Clone, Debug)]
struct Segment {
    start: Nanos,
    end: Nanos,
    read_at: Nanos,
    used: u64,
}

/// The state of a hard disk.
#[derive(Clone, Debug)]
pub struct Hdd {
    params: HddParams,
    zones: ZoneMap,
    seek: SeekCurve,
    clock: Nanos,
    sequence: u64,
    /// When the head is free, and the track time it is at then.
    free_at: Nanos,
    head: Nanos,
    /// The segment that grows while the head is idle.
    following: Option<usize>,
    segments: Vec<Segment>,
    /// Where the latest requests ended, in track time, the most recent last.
    ends: Vec<Nanos>,
    /// Reads and durable writes: in the queue, and waiting for room in it.
    commands: Vec<Job>,
    host: VecDeque<Job>,
    /// Cached writes: answered, and waiting for room in the cache.
    cached: Vec<Job>,
    blocked: VecDeque<Job>,
    /// Flushes, each waiting for the cached writes older than its sequence number.
    flushes: Vec<(Ticket, u64)>,
    resolved: Vec<(Ticket, Nanos)>,
}

impl Hdd {
    /// An idle disk of `sectors` sectors.
    pub fn new(params: HddParams, sectors: u64) -> Self {
        let span_bytes = (sectors * SECTOR_BYTES).max(params.least_span_bytes);
        let share = (span_bytes as f64 / params.capacity_bytes as f64).min(1.0);
        let zones = ZoneMap::new(&params, sectors, share);
        let seek = SeekCurve::new(&params, zones.total as f64 / share);
        Self {
            params,
            zones,
            seek,
            clock: 0,
            sequence: 0,
            free_at: 0,
            head: 0,
            following: None,
            segments: Vec::new(),
            ends: Vec::new(),
            commands: Vec::new(),
            host: VecDeque::new(),
            cached: Vec::new(),
            blocked: VecDeque::new(),
            flushes: Vec::new(),
            resolved: Vec::new(),
        }
    }

    /// See [`super::Model::submit`].
    pub fn submit(&mut self, now_ns: Nanos, op: ModelOp, range: SectorRange) -> Completion {
        self.advance(now_ns);
        self.sequence += 1;
        let ticket = Ticket(self.sequence);
        let answer_ns = now_ns + self.params.command_ns;
        let link_ns = transfer_ns(range.bytes(), self.params.link_bytes_per_s);
        match op {
            ModelOp::Discard => return Completion::At(answer_ns),
            ModelOp::Flush if self.cached.is_empty() => {
                return Completion::At(answer_ns.max(self.free_at));
            }
            ModelOp::Flush => self.flushes.push((ticket, self.sequence)),
            ModelOp::Write if self.cached.len() < self.params.cached_writes => {
                let job = self.job(None, true, range);
                self.cached.push(job);
                self.advance(now_ns);
                return Completion::At(answer_ns + link_ns);
            }
            ModelOp::Write => {
                let job = self.job(Some(ticket), true, range);
                self.blocked.push_back(job);
            }
            ModelOp::Read => {
                self.follow_idle_stream(now_ns);
                let job = self.job(Some(ticket), false, range);
                if let Some(read_at) = self.take_from_segment(&job) {
                    return Completion::At(answer_ns.max(read_at) + link_ns);
                }
                self.host.push_back(job);
            }
            ModelOp::WriteDurable => {
                let job = self.job(Some(ticket), true, range);
                self.host.push_back(job);
            }
        }
        self.advance(now_ns);
        Completion::Queued(ticket)
    }

    fn job(&mut self, ticket: Option<Ticket>, is_write: bool, range: SectorRange) -> Job {
        let start = self.zones.track_time(range.start.0);
        let end = self.zones.track_time(range.end().0);
        let known = self.ends.iter().rposition(|&each| each == start);
        if let Some(index) = known {
            self.ends.remove(index);
        } else if self.ends.len() >= self.params.segments {
            self.ends.remove(0);
        }
        self.ends.push(end);
        Job {
            ticket,
            sequence: self.sequence,
            is_write,
            is_sequential: known.is_some(),
            start,
            end,
            queued_at: self.clock,
        }
    }

    /// See [`super::Model::next_dispatch`].
    pub fn next_dispatch(&self) -> Option<Nanos> {
        let waits = !(self.commands.is_empty() && self.cached.is_empty());
        waits.then(|| self.free_at.max(self.clock))
    }

    /// See [`super::Model::advance`].
    pub fn advance(&mut self, now_ns: Nanos) {
        debug_assert!(now_ns >= self.clock, "time goes forwards");
        self.admit(self.clock.max(self.free_at).min(now_ns));
        while let Some(at) = self.next_dispatch()
            && at <= now_ns
        {
            self.follow_idle_stream(at);
            self.dispatch(at);
            self.clock = at;
            self.admit(at);
        }
        self.clock = now_ns;
    }

    /// See [`super::Model::resolved`].
    pub fn resolved(&mut self) -> Vec<(Ticket, Nanos)> {
        std::mem::take(&mut self.resolved)
    }

    /// Moves what waits outside into the queue and the cache, as far as there is room.
    fn admit(&mut self, at: Nanos) {
        while self.commands.len() < self.params.queue_depth
            && let Some(job) = self.host.pop_front()
        {
            self.commands.push(Job { queued_at: at, ..job });
        }
        while self.cached.len() < self.params.cached_writes
            && let Some(mut job) = self.blocked.pop_front()
        {
            if let Some(ticket) = job.ticket.take() {
                self.resolved.push((ticket, at + self.params.command_ns));
            }
            self.cached.push(Job { queued_at: at, ..job });
        }
    }

    /// Serves one request: the starving one, else the one the head reaches first. Cached writes are
    /// deferred while reads wait, unless the cache is full or a flush waits for it.
    fn dispatch(&mut self, at: Nanos) {
        let drain = !self.flushes.is_empty() || self.cached.len() >= self.params.cached_writes;
        let take_command = !self.commands.is_empty();
        let take_cached = drain || !take_command;
        let reads = self.params.reorder_reads;
        let commands = self.commands.iter().enumerate().filter(|_| take_command);
        let cached = self.cached.iter().enumerate().filter(|_| take_cached);
        let candidates = commands.map(|(index, job)| (false, index, job, index < reads)).chain(
            cached.map(|(index, job)| (true, index, job, index < self.params.reorder_writes)),
        );
        let (from_cache, index, ..) = candidates
            .filter_map(|(from_cache, index, job, compared)| {
                let starves = at.saturating_sub(job.queued_at) > self.params.starvation_ns;
                let cost = if starves { 0 } else { self.positioning(at, job).0 };
                let chosen = compared || cost == 0;
                chosen.then_some((from_cache, index, (!starves, cost, job.sequence)))
            })
            .min_by_key(|&(.., rank)| rank)
            .expect("next_dispatch saw a request");
        let job = if from_cache { self.cached.remove(index) } else { self.commands.remove(index) };
        let done_at = self.move_head(at, &job);
        if let Some(ticket) = job.ticket {
            self.resolved.push((ticket, done_at + self.params.command_ns));
        }
        if from_cache {
            self.answer_flushes(done_at);
        }
    }

    fn answer_flushes(&mut self, done_at: Nanos) {
        let oldest = self.cached.iter().map(|job| job.sequence).min().unwrap_or(u64::MAX);
        let answer_at = done_at + self.params.command_ns;
        let resolved = &mut self.resolved;
        self.flushes.retain(|&(ticket, sequence)| {
            let waits = oldest < sequence;
            if !waits {
                resolved.push((ticket, answer_at));
            }
            waits
        });
    }

    /// Time until the head is over the first sector not yet in memory, and that sector.
    fn positioning(&self, at: Nanos, job: &Job) -> (Nanos, Nanos) {
        let start = match self.segment_at(job) {
            Some(segment) if !job.is_write => self.segments[segment].end.min(job.end),
            _ => job.start,
        };
        if start == self.head && self.streams_at(at) || start == job.end && !job.is_write {
            return (0, start);
        }
        let distance = start.abs_diff(self.head);
        // With no gap since the last request, buffers hide where exactly the head is.
        let near = transfer_ns(self.params.near_bytes, self.zones.rate(start));
        if job.is_sequential && at == self.free_at && distance <= near {
            return (0, start);
        }
        let settle = if job.is_write { self.params.write_settle_ns } else { 0 };
        let seek = self.seek.time(distance, self.params.revolution_ns) + settle;
        let revolution = self.params.revolution_ns;
        let wait = (start % revolution + revolution - (at + seek) % revolution) % revolution;
        (seek + wait, start)
    }

    /// Whether the head, at this time, is exactly where the next sector begins.
    fn streams_at(&self, at: Nanos) -> bool {
        let revolution = self.params.revolution_ns;
        self.head % revolution == at % revolution
    }

    /// Moves the head through a request and returns when its last sector has passed.
    fn move_head(&mut self, at: Nanos, job: &Job) -> Nanos {
        let (positioning, start) = self.positioning(at, job);
        let slower = if job.is_write { self.params.write_slower_permille } else { 0 };
        let done_at = at + positioning + (job.end - start) * (1000 + slower) / 1000;
        let known = if job.is_write { None } else { self.segment_at(job) };
        if start < job.end {
            self.head = job.end;
            self.free_at = done_at;
            self.following = None;
        }
        if job.is_write {
            return done_at;
        }
        let index = known.unwrap_or_else(|| self.oldest_segment());
        let mut segment =
            Segment { start: job.end, end: job.end, read_at: done_at, used: self.sequence };
        if start < job.end {
            self.following = Some(index);
            if known.is_some() && positioning > 0 {
                let ahead = self.read_ahead_ns(job.end).min(self.zones.total - job.end);
                segment.end += ahead;
                segment.read_at += ahead;
                self.head += ahead;
                self.free_at += ahead;
            }
        } else {
            let old = &self.segments[index];
            (segment.end, segment.read_at) = (old.end, old.read_at);
        }
        self.segments[index] = segment;
        done_at
    }

    /// The stream this request continues, or whose read-ahead holds its beginning.
    fn segment_at(&self, job: &Job) -> Option<usize> {
        self.segments.iter().position(|each| each.start <= job.start && job.start <= each.end)
    }

    /// Takes a read that was read ahead, or is being, out of memory: when the last of it is there.
    fn take_from_segment(&mut self, job: &Job) -> Option<Nanos> {
        let index = self.segment_at(job)?;
        let segment = &mut self.segments[index];
        if job.end > segment.end {
            return None;
        }
        segment.start = job.end;
        segment.used = self.sequence;
        Some(segment.read_at.saturating_sub(segment.end - job.end))
    }

    fn oldest_segment(&mut self) -> usize {
        if self.segments.len() < self.params.segments {
            self.segments.push(Segment { start: 0, end: 0, read_at: 0, used: 0 });
            return self.segments.len() - 1;
        }
        let oldest = self.segments.iter().enumerate().min_by_key(|(_, each)| each.used);
        oldest.map_or(0, |(index, _)| index)
    }

    /// An idle head reads on behind the last read, until the read-ahead is full.
    fn follow_idle_stream(&mut self, now_ns: Nanos) {
        let Some(index) = self.following else { return };
        if now_ns <= self.free_at {
            return;
        }
        let limit = (self.segments[index].start + self.read_ahead_ns(self.segments[index].start))
            .min(self.zones.total);
        let segment = &mut self.segments[index];
        let room = limit.saturating_sub(segment.end);
        let read_on = room.min(now_ns - self.free_at);
        segment.end += read_on;
        self.head = segment.end;
        self.free_at += read_on;
        segment.read_at = self.free_at;
    }

    fn read_ahead_ns(&self, track_time: Nanos) -> Nanos {
        transfer_ns(self.params.read_ahead_bytes, self.zones.rate(track_time))
    }
}

/// From sectors to track time.
#[derive(Clone, Debug)]
struct ZoneMap {
    zone_sectors: u64,
    /// Track time at which each zone begins, and at the end of the disk.
    begins: Vec<Nanos>,
    rates: Vec<u64>,
    total: Nanos,
}

impl ZoneMap {
    /// The outermost `share` of the disk, with `sectors` sectors on it.
    fn new(params: &HddParams, sectors: u64, share: f64) -> Self {
        let count = u64::from(params.zones.max(1));
        let zone_sectors = sectors.div_ceil(count).max(1);
        let fall = params.outer_bytes_per_s - params.inner_bytes_per_s;
        let fall = (fall as f64 * share) as u64;
        let rate = |zone| params.outer_bytes_per_s - fall * zone / (count - 1).max(1);
        let rates: Vec<u64> = (0..count).map(rate).collect();
        let mut begins = vec![0];
        for &rate in &rates {
            begins.push(begins[begins.len() - 1] + transfer_ns(zone_sectors * SECTOR_BYTES, rate));
        }
        let total = begins[begins.len() - 1];
        Self { zone_sectors, begins, rates, total }
    }

    fn track_time(&self, sector: u64) -> Nanos {
        let zone = (sector / self.zone_sectors) as usize;
        if zone >= self.rates.len() {
            return self.total;
        }
        let inside = sector % self.zone_sectors;
        self.begins[zone] + transfer_ns(inside * SECTOR_BYTES, self.rates[zone])
    }

    fn rate(&self, track_time: Nanos) -> u64 {
        let zone = self.begins.partition_point(|&begin| begin <= track_time);
        self.rates[zone.clamp(1, self.rates.len()) - 1]
    }
}

/// Seek time `a + b * sqrt(x) + c * x`, where `x` is the share of the full stroke.
#[derive(Clone, Debug)]
struct SeekCurve {
    base_ns: f64,
    root_ns: f64,
    linear_ns: f64,
    stroke: f64,
}

impl SeekCurve {
    /// The curve through the three figures of a data sheet: between two random places the mean of
    /// `sqrt(x)` is 8/15 and that of `x` is 1/3.
    fn new(params: &HddParams, stroke: f64) -> Self {
        let base_ns = params.seek_track_ns as f64;
        let full = params.seek_full_ns as f64 - base_ns;
        let average = params.seek_average_ns as f64 - base_ns;
        let root_ns = (average - full / 3.0) * 5.0;
        Self { base_ns, root_ns, linear_ns: full - root_ns, stroke: stroke.max(1.0) }
    }

    /// Seek over a distance in track time; within one revolution the head stays on its track.
    fn time(&self, distance: Nanos, revolution_ns: Nanos) -> Nanos {
        if distance < revolution_ns {
            return 0;
        }
        let share = distance as f64 / self.stroke;
        (self.base_ns + self.root_ns * share.sqrt() + self.linear_ns * share) as Nanos
    }
}
