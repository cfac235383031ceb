//! From what the data path counts to what `show` prints.

use voltier_block::{MeterCounts, Nanos};
use voltier_control::{ByteRange, DeviceState, ShippedFlush, UnshippedStatus, VolumeStatus};
use voltier_volume::{Health, Status as CacheStatus, VolumeFigures};

/// Facts of the data path about a volume.
pub(super) struct Facts {
    pub(super) counted: VolumeFigures,
    pub(super) origin_bytes: u64,
    pub(super) origin_tail_bytes: u64,
    /// How the origin was lost, if others could take it away and have.
    pub(super) origin_loss: Option<String>,
    /// Size of the SSD; 0 without one.
    pub(super) ssd_bytes: u64,
    /// Requests of the origin.
    pub(super) origin_meter: MeterCounts,
    /// Requests of the SSD, if there is one.
    pub(super) ssd_meter: Option<MeterCounts>,
    /// Ranges whose newest data are lost or damaged.
    pub(super) lost_ranges: u64,
    /// The first of those that were lost with the SSD.
    pub(super) lost: Vec<ByteRange>,
    /// The first of those that are damaged on it.
    pub(super) damaged: Vec<ByteRange>,
}

/// Fills in what the data path knows.
pub(super) fn fill(status: &mut VolumeStatus, facts: &Facts) {
    let counted = &facts.counted;
    status.size_bytes = counted.size_bytes;
    status.hdd.size_bytes = facts.origin_bytes;
    status.hdd.unused_tail_bytes = facts.origin_tail_bytes;
    status.lost_ranges = facts.lost_ranges;
    status.lost.clone_from(&facts.lost);
    status.damaged.clone_from(&facts.damaged);
    let listed = (facts.lost.len() + facts.damaged.len()) as u64;
    status.lost_ranges_unlisted = facts.lost_ranges.saturating_sub(listed);
    status.reads = counted.reads;
    status.writes = counted.writes;
    status.device_bytes = counted.device_bytes;
    status.meter = Some(Box::new(counted.meter.clone()));
    status.hdd.errors = facts.origin_meter.errors();
    status.hdd.meter = Some(Box::new(facts.origin_meter.clone()));
    status.ssd.errors = facts.ssd_meter.as_ref().map_or(0, MeterCounts::errors);
    status.ssd.meter = facts.ssd_meter.clone().map(Box::new);
    note_loss(status, facts);
    let Some(cache) = &counted.cache else { return };
    status.ssd.size_bytes = facts.ssd_bytes;
    if cache.health == Health::Failed {
        status.ssd.state = DeviceState::Failed;
    }
    if cache.health == Health::Evacuating {
        status.ssd.state = DeviceState::Evacuating;
        if status.error.is_empty() && cache.evacuation_stalls {
            status.error = format!(
                "its SSD {} takes no writes, and {} dirty lines on it cannot be read now: \
                 Voltier keeps trying, and writes fail until they can be read again",
                status.ssd.path, cache.lines.dirty
            );
        } else if status.error.is_empty() {
            status.error = format!(
                "its SSD {} takes no writes any more: {} dirty lines are being written to {}, and \
                 so is what clients write; then `voltier detach {}`, and attach another SSD",
                status.ssd.path, cache.lines.dirty, status.hdd.path, status.name
            );
        }
    }
    note_silence(status, cache);
    note_refusal(status, cache);
    note_failed_flush(status, cache);
    status.lines = cache.lines;
    status.unshipped = unshipped(cache);
    status.generation = cache.generation;
    status.counts = cache.counts;
    status.origin = cache.origin;
    if cache.writes.bytes > 0 {
        status.write_amplification =
            cache.device_bytes.ssd_written as f64 / cache.writes.bytes as f64;
    }
    let rests_below = cache.lines.total.saturating_mul(status.tunables.dirty_low.into()) / 100;
    if cache.lines.dirty > rests_below {
        status.destage = "running".to_owned();
    }
}

/// Says how the HDD was lost, and what comes of it.
fn note_loss(status: &mut VolumeStatus, facts: &Facts) {
    let Some(loss) = &facts.origin_loss else { return };
    status.hdd.state = DeviceState::Failed;
    let dirty = facts.counted.cache.as_ref().map_or(0, |cache| cache.lines.dirty);
    let lines = match dirty {
        0 => String::new(),
        _ => format!(", and {dirty} dirty lines stay on {}", status.ssd.path),
    };
    if status.error.is_empty() {
        let (name, hdd) = (&status.name, &status.hdd.path);
        status.error = format!(
            "its backing disk {hdd}: {loss}; nothing is sent to it any more{lines}: stop and start {name} if nobody \
             has written to the disk meanwhile; otherwise `voltier takeover {name}` takes it back, and `voltier delete \
             {name} --no-flush` forgets it"
        );
    }
}

/// What the disk lacks, where it may lack something.
fn unshipped(cache: &CacheStatus) -> Option<UnshippedStatus> {
    let found = &cache.unshipped;
    let may_be_lost = cache.mode.writes_back() || found.bytes > 0;
    (may_be_lost && cache.health != Health::Failed).then(|| UnshippedStatus {
        bytes: found.bytes,
        age_seconds: found.age.map(|age| (age.ns / 1_000_000) as f64 / 1000.0),
        age_is_minimum: found.age.is_some_and(|age| age.is_older),
        waiting_writes: found.waiting_writes,
        writes_wait_seconds: 0,
        shipped_flush: found.shipped_flush.map(|flush| ShippedFlush {
            generation: flush.generation,
            number: flush.number,
            unix_ms: (flush.wall_ns > 0).then_some(flush.wall_ns / 1_000_000),
        }),
    })
}

/// Says which drive does not answer, what goes on, and what waits.
fn note_silence(status: &mut VolumeStatus, cache: &CacheStatus) {
    let seconds = |silent_ns: Option<Nanos>| silent_ns.map_or(0, |ns| (ns / 1_000_000_000).max(1));
    status.ssd.silent_seconds = seconds(cache.ssd_silent_ns);
    status.hdd.silent_seconds = seconds(cache.origin_silent_ns);
    let (ssd, hdd) = (&mut status.ssd, &mut status.hdd);
    let mut said = Vec::new();
    if ssd.silent_seconds > 0 && cache.health != Health::Failed {
        ssd.state = DeviceState::Silent;
        said.push(format!(
            "its SSD {} has not answered for {} s, and {} dirty lines on it have no other copy: \
             reads of these lines and all writes wait until it answers, and {} serves the other \
             reads",
            ssd.path, ssd.silent_seconds, cache.lines.dirty, hdd.path
        ));
    }
    if hdd.silent_seconds > 0 {
        hdd.state = DeviceState::Silent;
        said.push(format!(
            "its backing disk {} has not answered for {} s: the SSD serves what it holds, \
             nothing is written back, and everything else waits until the disk answers",
            hdd.path, hdd.silent_seconds
        ));
    }
    if status.error.is_empty() {
        status.error = said.join("; ");
    }
}

/// Says since when the HDD takes nothing, and what comes of it.
fn note_refusal(status: &mut VolumeStatus, cache: &CacheStatus) {
    let Some(refused_ns) = cache.origin_refuses_ns else { return };
    if matches!(status.hdd.state, DeviceState::Silent | DeviceState::Failed) {
        return;
    }
    status.hdd.state = DeviceState::Refusing;
    if status.error.is_empty() {
        status.error = format!(
            "its backing disk {} has refused all writes for {} s: {} dirty lines stay safe on \
             {}, and writes that find no room there fail; see `dmesg` and repair the disk: \
             writing back then goes on by itself",
            status.hdd.path,
            refused_ns / 1_000_000_000,
            cache.lines.dirty,
            status.ssd.path
        );
    }
}

/// Says that writes past the SSD may be lost, until a client knows.
fn note_failed_flush(status: &mut VolumeStatus, cache: &CacheStatus) {
    if cache.origin_loss_untold && status.error.is_empty() {
        status.error = format!(
            "its backing disk {} failed a flush: what was written past the SSD since the \
             previous flush may be lost, and the next flush of a client will fail to report \
             this; see `dmesg`",
            status.hdd.path
        );
    }
}
