//! Judging at a start whether the origin is the one that the cache was in front of.
//!
//! A fingerprint tells it after a stop, and a sample of clean lines after any end of the last life.
//! The sample has only lines that the origin must have as the index knows them, whatever a crash did. Such
//! lines are clean after the replay, and their regions have no intent bit. The origin had flushed each of
//! them before a record or checkpoint called it clean.

use voltier_block::{Buf, DriveControl, IoError};
use voltier_ring::join_all;

use crate::canary::{self, Canary};
use crate::devices::fingerprint::fingerprint;
use crate::devices::line_sample::{Comparison, LineSample, SampledLine, compare};
use crate::format::chunk::{CHUNK_BYTES, CHUNK_HEAD_BYTES};
use crate::format::superblock::Superblock;
use crate::log::load::check_chunk;
use crate::log::open::{OpenError, OpenOptions, OriginTrust, UnwritableSsd, origin_error};
use crate::map::contents::Contents;
use crate::map::loading::{IntentBits, Loading};
use crate::numbers::{Line, MapChunk};

/// Chunks of the map that a sample is drawn from: 2 MiB, read at once.
const SAMPLE_CHUNKS: u64 = 8;

/// The finding of a start about the origin.
#[derive(Clone, Copy)]
pub(super) struct OriginFound {
    /// Another origin, or this one changed: no clean line may be trusted.
    pub(super) changed: bool,
    pub(super) sample: Comparison,
}

/// Judges the origin before anything is written to it or to the SSD.
///
/// # Errors
/// When dirty lines would go to an origin that is not the one they belong to.
pub(super) async fn judge_origin<S: DriveControl, O: DriveControl>(
    (ssd, origin): (&S, &O),
    found: &Superblock,
    map: &Contents,
    bits: &IntentBits,
    options: &OpenOptions,
) -> Result<OriginFound, OpenError> {
    let is_printed = found.has_fingerprint();
    let sectors = map.geometry().origin_sectors;
    let known = found.fingerprint.get();
    // A bad sector of the origin is no other origin, but without a fingerprint no clean line is trusted.
    let (has_print, has_other_print) = match is_printed {
        false => (false, false),
        true => match fingerprint(origin, sectors).await {
            Ok(found) => (true, found != known && map.lines_expected() > 0),
            Err(IoError::Medium) => (false, true),
            Err(error) => return Err(origin_error(error)),
        },
    };
    // An SSD that has taken a superblock since was stopped in order since: that stop explains nothing.
    let has_evacuated =
        options.unwritable == UnwritableSsd::EvacuateFurther || !options.passed.is_empty();
    let explained = has_evacuated && found.generation.get() == options.generation_min;
    let dirty = map.index().dirty_lines();
    let may_refuse = match options.origin {
        OriginTrust::AsBefore | OriginTrust::Unmarked => dirty > 0,
        OriginTrust::Unchanged | OriginTrust::Unproven => true,
        OriginTrust::AsFound => false,
    };
    if has_print && has_other_print && !explained && may_refuse {
        return Err(OpenError::OriginChanged { dirty });
    }
    let seed = options.seed ^ found.generation.get();
    let lines = sample_lines(ssd, found, map, bits, seed).await;
    let sample = compare(origin, map.geometry(), lines).await.map_err(origin_error)?;
    if is_printed && !has_print && may_refuse && sample.compared == 0 {
        // Nothing says that this is the origin.
        return Err(origin_error(IoError::Medium));
    }
    let wants_proof = [OriginTrust::Unmarked, OriginTrust::Unproven].contains(&options.origin);
    let is_unproven = wants_proof && dirty > 0;
    if is_unproven && !has_print && sample.compared == 0 {
        return Err(OpenError::UnprovenOrigin { dirty });
    }
    let is_other = sample.tells_of_change() && !canary::is(Canary::SampleIgnored);
    if is_other && may_refuse {
        let Comparison { compared, differing } = sample;
        return Err(OpenError::ForeignOrigin { differing, compared, dirty });
    }
    Ok(OriginFound { changed: has_other_print || is_other, sample })
}

/// The clean lines that are read from the origin: of those in memory, and of some chunks of the map that is
/// loaded later. A chunk that is damaged or cannot be read offers none.
async fn sample_lines<S: DriveControl>(
    ssd: &S,
    found: &Superblock,
    map: &Contents,
    bits: &IntentBits,
    seed: u64,
) -> Vec<SampledLine> {
    let geometry = map.geometry();
    let mut sample = LineSample::new(geometry, seed);
    let is_trusted = |line: Line| {
        let first = line.0 * geometry.line_sectors();
        !bits.is_set(first) || canary::is(Canary::IntentBitsUnasked)
    };
    let mut offer = |(line, crc_bits)| {
        if is_trusted(line) {
            sample.offer(line, crc_bits);
        }
    };
    map.clean_lines().for_each(&mut offer);
    if let Some((stored, _)) = map.loading().map(Loading::source) {
        let count = SAMPLE_CHUNKS.min(stored.chunks);
        let nth =
            |index: u64| (seed % stored.chunks + index * stored.chunks / count) % stored.chunks;
        let numbers = (0..count).map(|index| MapChunk(nth(index) as u32));
        let reads = numbers.map(|number| async move {
            let at = geometry.chunk_lba(stored.area, number.in_area());
            (number, ssd.read(at, Buf::new(CHUNK_BYTES)).await)
        });
        for (number, chunk) in join_all(reads).await {
            let Ok(chunk) = chunk else { continue };
            if let Ok(slots) = check_chunk(geometry, found.uuid, &chunk, &stored, number) {
                map.clean_lines_of(&chunk[CHUNK_HEAD_BYTES..], slots).for_each(&mut offer);
            }
        }
    }
    sample.pick()
}
