//! Settings that a person may choose, with the names of the command line.

use voltier_block::{KIB, MIB, Nanos, SECTOR_BYTES};

use crate::admission::AdmissionKind;
use crate::policy::PolicyKind;

voltier_block::words! {
    /// How requests pass the cache. A place in the list, from 1, is the mode's number on the SSD
    /// (`format::owner`): a new one goes to the end.
    pub enum Mode, "not a cache mode" {
        /// Writes are acknowledged when the origin has them; the SSD keeps a copy.
        WriteThrough = "wt",
        /// Writes are acknowledged by the SSD and reach the origin later.
        WriteBack = "wb",
        /// Reads are cached; writes go to the origin and drop the cached copy.
        ReadOnly = "ro",
        /// Writes as in `wb`; reads that miss are not kept.
        WriteOnly = "wo",
        /// The SSD takes nothing new; what is dirty is still served from it.
        PassThrough = "pt",
    }
}

impl Mode {
    /// Whether a write may be acknowledged before the origin has it.
    pub const fn writes_back(self) -> bool {
        matches!(self, Mode::WriteBack | Mode::WriteOnly)
    }

    /// Whether a read that misses may be kept.
    pub const fn keeps_reads(self) -> bool {
        matches!(self, Mode::WriteBack | Mode::WriteThrough | Mode::ReadOnly)
    }
}

/// Bytes in a cache line: a power of two from 2 KiB to 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineSize(u32);

impl LineSize {
    /// 4 KiB, the default of the command line.
    pub const DEFAULT: LineSize = LineSize(4096);

    /// A line size from bytes.
    ///
    /// # Errors
    /// A sentence for the user when it is not one of the sizes.
    pub fn new(bytes: u64) -> Result<Self, String> {
        if bytes.is_power_of_two() && (2 * KIB..=64 * KIB).contains(&bytes) {
            return Ok(Self(bytes as u32));
        }
        Err(format!("block size {bytes} does not fit; use 2048, 4096, 8192, 16384, 32768 or 65536"))
    }

    /// In bytes.
    pub const fn bytes(self) -> u64 {
        self.0 as u64
    }

    /// In 512-byte sectors: at most 128, so that a sector mask is a `u128`.
    pub const fn sectors(self) -> u64 {
        self.0 as u64 / SECTOR_BYTES
    }
}

/// A bound of what the origin lacks, in ordered mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaxUnshipped {
    /// The age of the oldest write that it lacks, in nanoseconds, when a write is acknowledged; 0 for any.
    pub age_ns: Nanos,
    /// Bytes that it lacks; 0 for any number.
    pub bytes: u64,
}

impl MaxUnshipped {
    /// The smallest bound in bytes: some of the longest requests.
    pub const BYTES_MIN: u64 = 4 * MIB;

    /// Whether there is a bound.
    pub const fn is_any(self) -> bool {
        self.age_ns > 0 || self.bytes > 0
    }
}

/// Settings that may be changed while the cache serves.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How requests pass.
    pub mode: Mode,
    /// The admission: it chooses the lines that are kept after a miss.
    pub admission: AdmissionKind,
    /// Streams longer than this go straight to the origin, in bytes; 0 keeps everything.
    ///
    /// Off by default. Caches that write in place bypass streams, because a disk is as fast as they are
    /// there; a log takes a stream at the SSD's full bandwidth. A bypass also drops or refreshes cached
    /// copies, and sets intent bits. With 0, too, a stream that is written back goes past the log when the SSD
    /// has no room for it.
    pub seq_cutoff_bytes: u64,
    /// Destaging works at full rate above this share of dirty lines, in percent.
    pub dirty_high_percent: u8,
    /// Destaging rests below this share of dirty lines, in percent.
    pub dirty_low_percent: u8,
    /// No line stays dirty for much longer, in nanoseconds; 0 for as long as the thresholds let it.
    ///
    /// A start knows no times of before: it counts from itself.
    pub dirty_age_ns: Nanos,
    /// At most so many bytes a second are written back, whoever waits for it; 0 for no limit. An SSD that takes no
    /// writes is evacuated without one.
    pub destage_rate: u64,
    /// From this average wait for the SSD on, in microseconds, a resting origin serves clean hits; 0 never.
    ///
    /// The default is bcache's `congested_read_threshold_us`.
    pub congested_us: u32,
    /// Whether the origin must always hold a prefix of the writes, cut at a flush.
    pub ordered: bool,
    /// What a loss of the SSD may take at most; writes wait rather than exceed it.
    pub max_unshipped: MaxUnshipped,
    /// From so long without an answer on, the SSD or the origin counts as silent; 0 never.
    ///
    /// The default is as long as the kernel waits before it aborts a command. Arrays wait for the kernel's
    /// second try too; a cache that gives a clean SSD up loses warm lines and no data.
    pub deadline_ns: Nanos,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::WriteThrough,
            admission: AdmissionKind::Always,
            seq_cutoff_bytes: 0,
            dirty_high_percent: 60,
            dirty_low_percent: 20,
            dirty_age_ns: 300_000_000_000,
            destage_rate: 0,
            congested_us: 2000,
            ordered: false,
            max_unshipped: MaxUnshipped::default(),
            deadline_ns: 30_000_000_000,
        }
    }
}

impl Settings {
    /// Checks that the settings make sense together.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn check(&self) -> Result<(), String> {
        if self.dirty_high_percent > 90 {
            return Err(format!(
                "dirty_high={} is above 90: a cache keeps room for writes; use at most 90",
                self.dirty_high_percent
            ));
        }
        if self.dirty_low_percent >= self.dirty_high_percent {
            return Err(format!(
                "dirty_low={} must be below dirty_high={}; set both in one command",
                self.dirty_low_percent, self.dirty_high_percent
            ));
        }
        if self.max_unshipped.is_any() && !self.ordered {
            return Err("max_unshipped needs ordered=on: without an order nobody knows what the disk lacks; \
                        set both in one command, or max_unshipped=off"
                .to_owned());
        }
        if (1..MaxUnshipped::BYTES_MIN).contains(&self.max_unshipped.bytes) {
            return Err(format!(
                "max_unshipped={} bytes is less than a few requests; use 4M or more",
                self.max_unshipped.bytes
            ));
        }
        Ok(())
    }
}

/// Options of a new cache. Line size and uuid stay; the policy can be changed.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Unit of caching.
    pub line_size: LineSize,
    /// The replacement policy: it chooses the line that leaves a full cache.
    pub policy: PolicyKind,
    /// Names this cache; from the caller's source of randomness.
    pub uuid: [u8; 16],
}

/// Bytes of a segment for an SSD of this size: at least 64 of them, 4 MiB when there is room.
pub(crate) fn segment_bytes_for(ssd_bytes: u64) -> u64 {
    let share = (ssd_bytes / 64).max(1);
    let floor_power = 1u64 << (63 - share.leading_zeros());
    floor_power.clamp(256 * KIB, 4 * MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_the_command_lines() {
        assert!(LineSize::new(3000).is_err() && LineSize::new(1024).is_err());
        assert_eq!(LineSize::new(65536).unwrap().sectors(), 128);
    }

    #[test]
    fn thresholds_must_leave_room_between_them() {
        let mut settings = Settings::default();
        assert!(settings.check().is_ok());
        settings.dirty_low_percent = 70;
        assert!(settings.check().unwrap_err().contains("dirty_low=70"));
    }

    #[test]
    fn small_ssds_get_small_segments() {
        assert_eq!(segment_bytes_for(16 * MIB), 256 * KIB);
        assert_eq!(segment_bytes_for(64 * MIB), MIB);
        assert_eq!(segment_bytes_for(800 << 30), 4 * MIB);
    }
}
