//! A solid-state drive in its preconditioned steady state. The model has a command path, dies, a write
//! buffer and a translation layer that takes random writes more slowly than sequential ones.
//!
//! Every request passes the command path, which is the shared limit of IOPS and bandwidth. A read then
//! waits for its die. A write is acknowledged from the buffer unless the medium behind it is too far
//! behind. Programming keeps dies busy, so that reads meet writes as they do in life.

use super::interference::{Interference, RecentMix};
use super::op::{ModelOp, transfer_ns};
use voltier_block::{KIB, Nanos, SectorRange};

/// Bytes of one flash page as a read sees it: one die returns them at once.
const PAGE_BYTES: u64 = 16 * KIB;
/// Bytes one die programs at once, all planes.
const PROGRAM_BYTES: u64 = 64 * KIB;
/// How far from the end of a write stream a write may begin and still belong to it, in sectors.
/// Several jobs that write one region together stay one stream.
const STREAM_NEAR_SECTORS: u64 = 4 * 2048;
/// On a small drive nearness would make everything sequential: it is at most this share.
const STREAM_NEAR_SHARE: u64 = 1024;
/// Write streams followed at a time.
const STREAMS: usize = 128;

/// Figures of a solid-state drive.
#[derive(Clone, Debug, PartialEq)]
pub struct SsdParams {
    /// Flash channels.
    pub channels: u32,
    /// Dies behind each channel.
    pub dies_per_channel: u32,
    /// Time from a read command to the first byte at the die's register.
    pub read_ns: Nanos,
    /// Time a die is busy programming 64 KiB.
    pub program_ns: Nanos,
    /// Rate of one flash channel, in bytes per second: part of a read's latency.
    pub channel_bytes_per_s: u64,
    /// The command path's cost of a read, besides its bytes.
    pub read_command_ns: Nanos,
    /// The command path's cost of a write, besides its bytes.
    pub write_command_ns: Nanos,
    /// Rate of the interface or the read path, whichever is lower, in bytes per second.
    pub read_bytes_per_s: u64,
    /// Rate of sequential writes in steady state, in bytes per second.
    pub write_bytes_per_s: u64,
    /// Rate at which a write's bytes come over the link into the buffer, in bytes per second. On an
    /// idle drive a write waits for that and for the command before the drive acknowledges.
    pub write_link_bytes_per_s: u64,
    /// Rate of random writes in steady state, in bytes per second.
    pub random_write_bytes_per_s: u64,
    /// Percent of a random write's cost that the command path pays too: garbage collection gets in
    /// the way of reads. 0: only writes wait for the translation layer.
    pub random_write_shared_percent: u64,
    /// Bytes that follow each other before the drive takes them for a sequential stream: shorter runs
    /// cost what random writes do.
    pub stream_bytes_min: u64,
    /// The interference of reads and writes; `None`: a mixture costs what its parts cost.
    pub interference: Option<&'static Interference>,
    /// Least time from a write's last byte to its acknowledgement.
    pub write_acknowledge_ns: Nanos,
    /// Bytes the write buffer holds ahead of the medium.
    pub write_buffer_bytes: u64,
    /// Cost of a flush, besides waiting for the buffer on drives that can lose it.
    pub flush_ns: Nanos,
    /// Whether a power cut loses the write buffer.
    pub volatile_cache: bool,
}

/// The state of a solid-state drive.
#[derive(Clone, Debug)]
pub struct Ssd {
    params: SsdParams,
    /// When the command path, the medium behind the buffer, and each die are free.
    path_free_at: Nanos,
    medium_free_at: Nanos,
    dies: Vec<Nanos>,
    programmed_bytes: u64,
    program_die: usize,
    /// Ends of write streams in sectors and the bytes in them, the most recent last.
    streams: Vec<(u64, u64)>,
    near_sectors: u64,
    mix: RecentMix,
}

impl Ssd {
    /// An idle drive of `sectors` sectors.
    pub fn new(params: SsdParams, sectors: u64) -> Self {
        let dies = (params.channels * params.dies_per_channel).max(1) as usize;
        Self {
            params,
            path_free_at: 0,
            medium_free_at: 0,
            dies: vec![0; dies],
            programmed_bytes: 0,
            program_die: 0,
            streams: Vec::with_capacity(STREAMS),
            near_sectors: STREAM_NEAR_SECTORS.min(sectors / STREAM_NEAR_SHARE),
            mix: RecentMix::default(),
        }
    }

    /// When a request that arrives now completes.
    pub fn submit(&mut self, now_ns: Nanos, op: ModelOp, range: SectorRange) -> Nanos {
        match op {
            ModelOp::Read => self.read(now_ns, range),
            ModelOp::Write => self.write(now_ns, range, self.buffer_ns()),
            ModelOp::WriteDurable if self.params.volatile_cache => self.write(now_ns, range, 0),
            ModelOp::WriteDurable => self.write(now_ns, range, self.buffer_ns()),
            ModelOp::Flush if self.params.volatile_cache => {
                self.path(now_ns, self.params.write_command_ns).max(self.medium_free_at)
                    + self.params.flush_ns
            }
            ModelOp::Flush | ModelOp::Discard => {
                self.path(now_ns, self.params.write_command_ns) + self.params.flush_ns
            }
        }
    }

    /// Passes the command path and returns when.
    fn path(&mut self, now_ns: Nanos, cost_ns: Nanos) -> Nanos {
        self.path_free_at = self.path_free_at.max(now_ns) + cost_ns;
        self.path_free_at
    }

    /// The cost of a request on the path and at a die, in thousandths of what it is by itself.
    fn interference(&self, bytes: u64) -> (u64, u64) {
        self.params.interference.map_or((1000, 1000), |table| table.permille(&self.mix, bytes))
    }

    fn read(&mut self, now_ns: Nanos, range: SectorRange) -> Nanos {
        self.mix.note(true);
        let (path, die_time) = self.interference(range.bytes());
        let bytes_ns = transfer_ns(range.bytes(), self.params.read_bytes_per_s);
        let passed = self.path(now_ns, (self.params.read_command_ns + bytes_ns) * path / 1000);
        let page_sectors = PAGE_BYTES / voltier_block::SECTOR_BYTES;
        let mut done_at = passed;
        for page in range.split_at_multiples(page_sectors) {
            let die = self.die_of(page.start.0 / page_sectors);
            let from_die = transfer_ns(page.bytes(), self.params.channel_bytes_per_s);
            let busy_ns = (self.params.read_ns + from_die) * die_time / 1000;
            self.dies[die] = self.dies[die].max(passed) + busy_ns;
            done_at = done_at.max(self.dies[die]);
        }
        done_at
    }

    /// Where a page lies: neighbours on different dies, otherwise without pattern.
    fn die_of(&self, page: u64) -> usize {
        let dies = self.dies.len() as u64;
        let stripe = (page / dies).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((page + stripe) % dies) as usize
    }

    fn write(&mut self, now_ns: Nanos, range: SectorRange, buffer_ns: Nanos) -> Nanos {
        self.mix.note(false);
        let (path, _) = self.interference(range.bytes());
        let p = &self.params;
        let interface_ns = p.write_command_ns + transfer_ns(range.bytes(), p.write_bytes_per_s);
        let arrival_ns = p.write_command_ns + transfer_ns(range.bytes(), p.write_link_bytes_per_s);
        let random_ns = transfer_ns(range.bytes(), p.random_write_bytes_per_s) * path / 1000;
        let shared_ns = random_ns * p.random_write_shared_percent / 100;
        let acknowledge_ns = p.write_acknowledge_ns;
        let sequential = self.continues_a_stream(range);
        let path_ns = if sequential { interface_ns } else { interface_ns.max(shared_ns) };
        let medium_ns = if sequential { interface_ns } else { interface_ns.max(random_ns) };
        let passed = self.path(now_ns, path_ns);
        let begun = passed - path_ns;
        // The buffer fills while the command passes, so the medium works alongside it.
        self.medium_free_at = self.medium_free_at.max(begun) + medium_ns;
        self.program(passed, range.bytes());
        let arrived = begun + arrival_ns;
        (arrived + acknowledge_ns).max(self.medium_free_at.saturating_sub(buffer_ns))
    }

    /// Time the medium needs for a full buffer of random writes.
    fn buffer_ns(&self) -> Nanos {
        transfer_ns(self.params.write_buffer_bytes, self.params.random_write_bytes_per_s)
    }

    /// Keeps one die after the other busy with what was written.
    fn program(&mut self, at: Nanos, bytes: u64) {
        self.programmed_bytes += bytes;
        while self.programmed_bytes >= PROGRAM_BYTES {
            self.programmed_bytes -= PROGRAM_BYTES;
            let die = &mut self.dies[self.program_die];
            *die = (*die).max(at) + self.params.program_ns;
            self.program_die = (self.program_die + 1) % self.dies.len();
        }
    }

    fn continues_a_stream(&mut self, range: SectorRange) -> bool {
        let near = |&(end, _): &(u64, u64)| end.abs_diff(range.start.0) <= self.near_sectors;
        let known = self.streams.iter().rposition(near);
        let before = match known {
            Some(index) => self.streams.remove(index).1,
            None => 0,
        };
        if self.streams.len() == STREAMS {
            self.streams.remove(0);
        }
        self.streams.push((range.end().0, before + range.bytes()));
        known.is_some() && before >= self.params.stream_bytes_min
    }
}
