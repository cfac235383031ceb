//! Draws of each seed: cache, drives, clients, and faults.

use voltier_block::{KIB, MIB, Nanos, Prng, StripeShape};
use voltier_cache::admission::AdmissionKind;
use voltier_cache::policy::PolicyKind;
use voltier_cache::{MaxUnshipped, Mode, Settings};

use crate::disk_spec::DiskSpec;
use crate::fault::{FaultKind, FaultMix};
use crate::workload::{MODES, Profile};
use crate::world::SSD;

/// Times of a request: from a fast SSD to a slow disk.
const SSD_LATENCIES_NS: [Nanos; 3] = [20_000, 80_000, 500_000];
const ORIGIN_LATENCIES_NS: [Nanos; 4] = [20_000, 300_000, 2_000_000, 8_000_000];
/// One origin in so many is a modelled disk: which, and how long its shortest spike is.
const DISK_ONE_IN: u64 = 3;
const DISK: &str = "hdd-7200";
const DISK_LATENCY_NS: Nanos = 8_000_000;

/// Mixed into the seed: seeds that do not draw a crowd are as they were, and no kept seed draws it.
const CROWD: u64 = 0x6372_6f77_6400_0002;
/// One seed in so many has one.
const CROWD_ONE_IN: u64 = 8;
const CROWD_CLIENTS: u64 = 6;
const CROWD_WINDOW_BYTES: u64 = 64 * KIB;

/// Many clients in a small place, if the seed draws them: writes of the same range wait for each other.
pub(crate) fn crowd(profile: &mut Profile, seed: u64) {
    let mut prng = Prng::new(seed ^ CROWD);
    if prng.one_in(CROWD_ONE_IN) {
        profile.clients = CROWD_CLIENTS + prng.below(8);
        profile.window_bytes = CROWD_WINDOW_BYTES;
        profile.sectors_max = *prng.pick(&[8, 32, 64]);
        profile.align_sectors = profile.sectors_max;
    }
}

/// Mixed into the seed as `CROWD` is.
const CONGESTED: u64 = 0x636f_6e67_6573_0001;
/// One seed in so many has it.
const CONGESTED_ONE_IN: u64 = 4;

/// An SSD that counts as congested, if the seed draws it: clean hits are read from the origin whenever
/// that rests.
pub(crate) fn congestion(profile: &mut Profile, seed: u64) {
    if Prng::new(seed ^ CONGESTED).one_in(CONGESTED_ONE_IN) {
        profile.settings.congested_us = 1;
    }
}

/// Mixed into the seed as `CROWD` is.
const FLUSH_LOSS: u64 = 0x666c_7573_6865_0001;
/// One seed in so many has it, and one flush in so many is one.
const FLUSH_LOSS_ONE_IN: u64 = 6;
const FLUSHES_PER_LOSS: u64 = 60;

/// Flushes of the origin that fail and lose what they were for, if the seed draws them.
pub(crate) fn flush_losses(profile: &mut Profile, seed: u64) {
    let mut prng = Prng::new(seed ^ FLUSH_LOSS);
    if prng.one_in(FLUSH_LOSS_ONE_IN) {
        let one_in = 4 + prng.below(FLUSHES_PER_LOSS);
        profile.origin_faults.rates.push((FaultKind::FlushLoss, one_in));
    }
}

/// Mixed into the seed as `CROWD` is.
const ZEROES: u64 = 0x7a65_726f_6573_0006;
/// One seed in so many has it.
const ZEROES_ONE_IN: u64 = 5;

/// Clients that zero long ranges before an origin on which zeroes are cheap, if the seed draws them.
pub(crate) fn zeroes(profile: &mut Profile, seed: u64) {
    if Prng::new(seed ^ ZEROES).one_in(ZEROES_ONE_IN) {
        (profile.zeroes, profile.origin.zeroing_discards) = (true, true);
    }
}

/// Mixed into the seed as `CROWD` is.
const STREAMS: u64 = 0x7374_7265_616d_fb68;
/// One seed in so many has it.
const STREAMS_ONE_IN: u64 = 8;
const STREAMS_WINDOW_BYTES: u64 = 2 * MIB;

/// Clients that write back streams for which the SSD has no room, if the seed draws them.
pub(crate) fn streams(profile: &mut Profile, seed: u64) {
    let mut prng = Prng::new(seed ^ STREAMS);
    if prng.one_in(STREAMS_ONE_IN) {
        profile.streams = true;
        profile.window_bytes = STREAMS_WINDOW_BYTES;
        profile.clients = profile.clients.max(2);
        if prng.one_in(2) {
            (profile.modes, profile.ordered) = (vec![Mode::WriteBack], false);
        }
        let high = 4 + prng.below(40) as u8;
        profile.settings.seq_cutoff_bytes = 0;
        profile.settings.dirty_high_percent = high;
        profile.settings.dirty_low_percent = prng.below(u64::from(high)) as u8;
    }
}

/// Mixed into the seed as `CROWD` is.
const AGES: u64 = 0x6167_6564_0002_c458;
/// One seed in so many has it.
const AGES_ONE_IN: u64 = 8;
/// From less than a sweep takes to less than a life.
const AGES_NS: [Nanos; 4] = [1_000_000, 30_000_000, 300_000_000, 2_000_000_000];

/// A cleaner that lets nothing stay dirty for long, if the seed draws it, with thresholds that would.
pub(crate) fn ages(profile: &mut Profile, seed: u64) {
    let mut prng = Prng::new(seed ^ AGES);
    if prng.one_in(AGES_ONE_IN) {
        profile.settings.dirty_age_ns = *prng.pick(&AGES_NS);
        (profile.settings.dirty_high_percent, profile.settings.dirty_low_percent) = (80, 70);
    }
}

/// Mixed into the seed as `CROWD` is.
const LIMITS: u64 = 0x6c69_6d69_7473_0009;
/// One seed in so many has it.
const LIMITS_ONE_IN: u64 = 8;
/// From the least that a user can set to more than a disk takes.
const RATES: [u64; 4] = [64 * KIB, 512 * KIB, 4 * MIB, 256 * MIB];

/// A limit on what is written back, if the seed draws it.
pub(crate) fn limits(profile: &mut Profile, seed: u64) {
    let mut prng = Prng::new(seed ^ LIMITS);
    if prng.one_in(LIMITS_ONE_IN) {
        profile.settings.destage_rate = *prng.pick(&RATES);
    }
}

/// Mixed into the seed as `CROWD` is.
const FULL: u64 = 0x6675_6c6c_0000_000c;
/// One seed in so many has it.
const FULL_ONE_IN: u64 = 10;
const FULL_WINDOW_BYTES: u64 = 4 * MIB;
const FULL_LINE_BYTES_MAX: u64 = 8 * KIB;

/// An SSD full of clean lines in ordered mode, and small writes with a flush after each, if the seed draws
/// them: the log finds no segment but by giving clean lines up.
pub(crate) fn full_and_ordered(profile: &mut Profile, seed: u64) {
    let mut prng = Prng::new(seed ^ FULL);
    if prng.one_in(FULL_ONE_IN) && profile.line_bytes <= FULL_LINE_BYTES_MAX {
        (profile.ordered, profile.syncs) = (true, true);
        profile.modes = vec![Mode::WriteBack];
        profile.window_bytes = FULL_WINDOW_BYTES;
        (profile.sectors_max, profile.align_sectors) = (8, 8);
        (profile.clients, profile.steps) = (2 + prng.below(4), 100 + prng.below(300));
        profile.settings.admission = AdmissionKind::Always;
        profile.settings.seq_cutoff_bytes = 0;
    }
}

/// Mixed into the seed as `CROWD` is.
const REFUSED: u64 = 0x7265_6675_7365_0006;
/// One seed in so many has it, and one write in so many begins it on each drive.
const REFUSED_ONE_IN: u64 = 12;
const WRITES_PER_SSD_REFUSAL: u64 = 200;
const WRITES_PER_ORIGIN_REFUSAL: u64 = 40;

/// An SSD that is evacuated to an origin which takes nothing, if the seed draws it. Writes that fail may be
/// on the SSD all the same.
pub(crate) fn refused_evacuations(profile: &mut Profile, seed: u64) {
    let mut prng = Prng::new(seed ^ REFUSED);
    if prng.one_in(REFUSED_ONE_IN) {
        let kind = FaultKind::WriteErrorForEver;
        let (ssd, origin) = (&mut profile.ssd_faults, &mut profile.origin_faults);
        ssd.without(&[kind]);
        ssd.rates.push((kind, 10 + prng.below(WRITES_PER_SSD_REFUSAL)));
        origin.without(&[kind]);
        origin.rates.push((kind, 2 + prng.below(WRITES_PER_ORIGIN_REFUSAL)));
    }
}

/// Mixed into the seed as `CROWD` is.
const PASSED: u64 = 0x7061_7373_6564_455a;
/// One seed in so many has it, and one write in so many ends the writes of the SSD.
const PASSED_ONE_IN: u64 = 10;
const WRITES_PER_PASSED_SSD: u64 = 300;

/// An SSD with much that is dirty, which takes no writes any more, if the seed draws it: clients pass it while it
/// is evacuated to a slow origin, and many lives end in that.
pub(crate) fn passed_ssds(profile: &mut Profile, seed: u64) {
    let mut prng = Prng::new(seed ^ PASSED);
    if prng.one_in(PASSED_ONE_IN) {
        let kind = FaultKind::WriteErrorForEver;
        profile.ssd_faults.without(&[kind]);
        profile.ssd_faults.rates.push((kind, 10 + prng.below(WRITES_PER_PASSED_SSD)));
        (profile.modes, profile.ordered) = (vec![Mode::WriteBack], false);
        profile.clients = profile.clients.max(3);
        (profile.settings.dirty_high_percent, profile.settings.dirty_low_percent) = (80, 70);
        profile.origin.latency_ns = profile.origin.latency_ns.max(ORIGIN_LATENCIES_NS[2]);
    }
}

/// Mixed into the seed: seeds that do not draw this are as they were, and no kept seed draws it.
const BOUNDS: u64 = 0x626f_756e_6473_0038;
/// One seed in so many has it.
const BOUNDS_ONE_IN: u64 = 6;
const BOUND_WINDOW_BYTES: u64 = 4 * MIB;
/// From less than a batch takes to less than a life.
const BOUND_AGES_NS: [Nanos; 4] = [2_000_000, 30_000_000, 300_000_000, 2_000_000_000];

/// An ordered cache with a bound of what its origin lacks, if the seed draws it.
pub(crate) fn bounds(profile: &mut Profile, seed: u64) {
    let mut prng = Prng::new(seed ^ BOUNDS);
    if prng.one_in(BOUNDS_ONE_IN) {
        profile.ordered = true;
        profile.modes.retain(|mode| mode.writes_back());
        if profile.modes.is_empty() {
            profile.modes.push(Mode::WriteBack);
        }
        let (has_age, has_size) = *prng.pick(&[(true, false), (false, true), (true, true)]);
        let bound = &mut profile.settings.max_unshipped;
        bound.age_ns = if has_age { *prng.pick(&BOUND_AGES_NS) } else { 0 };
        bound.bytes = if has_size { MaxUnshipped::BYTES_MIN + prng.below(2 * MIB) } else { 0 };
        if has_size {
            // As much is dirty as the bound allows.
            profile.window_bytes = BOUND_WINDOW_BYTES;
            (profile.settings.dirty_high_percent, profile.settings.dirty_low_percent) = (90, 85);
        }
    }
}

/// Mixed into the seed: seeds that do not draw this are as they were, and no kept seed draws it.
const REMOTE: u64 = 0x7265_6d6f_7465_0052;
/// One seed in so many has it.
const REMOTE_ONE_IN: u64 = 6;
/// Mixed into the seed: seeds that do not draw this are as they were, and no kept seed draws it.
const BAD_NETWORK: u64 = 0x646f_7562_6c65_0001;
/// One of those in so many has it.
const BAD_NETWORK_ONE_IN: u64 = 2;

/// An origin behind a network, if the seed draws it: then that is all that goes wrong with the origin.
pub(crate) fn remote_origins(profile: &mut Profile, seed: u64) {
    if Prng::new(seed ^ REMOTE).one_in(REMOTE_ONE_IN) {
        profile.remote = true;
        profile.bad_network = Prng::new(seed ^ BAD_NETWORK).one_in(BAD_NETWORK_ONE_IN);
        profile.hangs = false;
        profile.origin_faults.rates.clear();
    }
}

/// Draws cache, drives and clients, without faults.
pub(crate) fn draw_profile(prng: &mut Prng) -> Profile {
    let line_bytes = *prng.pick(&[2048, 4096, 4096, 8192, 16384, 32768, 65536]);
    let segment_bytes = (256 * KIB).max(16 * line_bytes);
    let segments = 20 + prng.below(6);
    let mode_count = 1 + prng.below(3) as usize;
    let modes = if prng.one_in(4) {
        MODES.to_vec()
    } else {
        (0..mode_count).map(|_| *prng.pick(&MODES[..])).collect()
    };
    let window_bytes = *prng.pick(&[64 * KIB, 256 * KIB, 256 * KIB, MIB, 2 * MIB]);
    let small = window_bytes / 2 / 512;
    Profile {
        line_bytes,
        policy: *prng.pick(&PolicyKind::ALL),
        ssd: DiskSpec {
            number: SSD,
            bytes: 2 * MIB + segments * segment_bytes + 512 * prng.below(9) * 8,
            block_bytes: if line_bytes >= 4096 && prng.one_in(3) { 4096 } else { 512 },
            latency_ns: *prng.pick(&SSD_LATENCIES_NS),
            model: None,
            lies: false,
            zeroing_discards: false,
            stripe: None,
        },
        origin: draw_origin(prng),
        modes,
        ordered: prng.one_in(4),
        clients: 1 + prng.below(5),
        steps: 4 + prng.below(60),
        sectors_max: (*prng.pick(&[8, 64, 160, 512])).min(small),
        align_sectors: *prng.pick(&[1, 8, 8, line_bytes / 512]),
        window_bytes,
        settings: draw_settings(prng),
        zeroes: false,
        streams: false,
        syncs: false,
        hangs: false,
        remote: false,
        bad_network: false,
        ssd_faults: FaultMix::default(),
        origin_faults: FaultMix::default(),
    }
}

fn draw_origin(prng: &mut Prng) -> DiskSpec {
    let block_bytes = if prng.one_in(4) { 4096 } else { 512 };
    let bytes = (18 + prng.below(8)) * MIB + 512 * prng.below(200);
    let latency_ns = *prng.pick(&ORIGIN_LATENCIES_NS);
    let model = prng.one_in(DISK_ONE_IN).then_some(DISK);
    DiskSpec {
        number: 2,
        bytes: bytes / u64::from(block_bytes) * u64::from(block_bytes),
        block_bytes,
        latency_ns: if model.is_some() { DISK_LATENCY_NS } else { latency_ns },
        model,
        lies: false,
        zeroing_discards: false,
        stripe: draw_stripe(&mut Prng::new(bytes)),
    }
}

/// Half of the origins say that they are arrays with parity.
fn draw_stripe(prng: &mut Prng) -> Option<StripeShape> {
    let (chunks, chunk_bytes) =
        (1 + prng.below(8) as u32, *prng.pick(&[4 << 10, 16 << 10, 64 << 10]));
    let parity_chunks = 1 + prng.below(3) as u32;
    let shape = StripeShape { data_bytes: chunks * chunk_bytes, chunk_bytes, parity_chunks };
    prng.one_in(2).then_some(shape)
}

fn draw_settings(prng: &mut Prng) -> Settings {
    let dirty_high = 10 + prng.below(81) as u8;
    Settings {
        admission: *prng.pick(&[&[AdmissionKind::Always][..], &AdmissionKind::ALL].concat()),
        seq_cutoff_bytes: *prng.pick(&[0, 0, 64 * KIB, 256 * KIB]),
        dirty_high_percent: dirty_high,
        dirty_low_percent: prng.below(u64::from(dirty_high)) as u8,
        congested_us: 0,
        ..Settings::default()
    }
}

/// Draws what goes wrong with one drive: mostly little, now and then a lot.
pub(crate) fn draw_faults(prng: &mut Prng) -> FaultMix {
    let count = *prng.pick(&[0, 0, 1, 1, 2, 3, 6]);
    let mut mix = FaultMix::default();
    for _ in 0..count {
        let kind = *prng.pick(&FaultKind::OF_REQUESTS);
        if !mix.has(kind) {
            let often = rarest(kind);
            mix.rates.push((kind, often / 20 + prng.below(often)));
        }
    }
    mix
}

/// A kind strikes at most one in so many requests.
const fn rarest(kind: FaultKind) -> u64 {
    match kind {
        FaultKind::LatencySpike => 200,
        FaultKind::ReadErrorOnce | FaultKind::WriteErrorOnce | FaultKind::FlushError => 400,
        FaultKind::BitRot | FaultKind::MisdirectedWrite => 400,
        FaultKind::ReadErrorRange | FaultKind::WriteErrorRange | FaultKind::StuckIo => 1_000,
        _ => 3_000,
    }
}
