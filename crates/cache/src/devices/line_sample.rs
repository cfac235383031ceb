//! Recognising another origin, or one that was changed, by clean lines whose checksums the index has.
//!
//! A start reads a sample of clean lines from the origin, whatever the last life ended with, and holds
//! them against the index. Nothing on the origin is needed for that, and nothing is written before.

use voltier_block::{Buf, DriveControl, IoError, IoResult, Prng};
use voltier_ring::join_all;

use crate::format::checksum::{crc32c, kept_crc_bits};
use crate::format::geometry::Geometry;
use crate::numbers::Line;

/// Lines of a sample. A disk reads them in half a second, and a change of a tenth of the lines escapes
/// one start in a hundred.
const SAMPLE_LINES: usize = 64;
/// Differing lines that bit rot of one sector cannot explain. No crash leaves even one; where a single line
/// was compared, that line decides.
const DIFFERING_MIN: u32 = 2;
/// The rank of lines of zeroes begins here: behind all others.
const ZEROES: u64 = 1 << 63;

/// A clean line, and what the index keeps of its checksum.
#[derive(Clone, Copy)]
pub(crate) struct SampledLine {
    line: Line,
    crc_bits: u32,
}

/// A choice of clean lines in the making: spread over the origin, and the same for the same seed.
pub(crate) struct LineSample {
    seed: u64,
    /// Lines of the origin in one group.
    lines_per_group: u64,
    zeroes_crc_bits: u32,
    /// For each of the equal parts of the origin the lines of the lowest ranks, in their order.
    groups: Vec<Vec<(u64, SampledLine)>>,
}

impl LineSample {
    pub(crate) fn new(geometry: &Geometry, seed: u64) -> Self {
        let zeroes = vec![0; geometry.line_bytes as usize];
        Self {
            seed,
            lines_per_group: geometry.origin_lines().div_ceil(SAMPLE_LINES as u64),
            zeroes_crc_bits: kept_crc_bits(crc32c(&zeroes)),
            groups: vec![Vec::new(); SAMPLE_LINES],
        }
    }

    /// Takes a clean and whole line into account, of which this is kept of the checksum.
    pub(crate) fn offer(&mut self, line: Line, crc_bits: u32) {
        let mut rank = Prng::new(self.seed ^ line.0).next_u64() >> 1;
        if crc_bits == self.zeroes_crc_bits {
            // Empty drives have these too.
            rank |= ZEROES;
        }
        let group = &mut self.groups[(line.0 / self.lines_per_group) as usize];
        if group.len() == SAMPLE_LINES && group[SAMPLE_LINES - 1].0 <= rank {
            return;
        }
        let at = group.partition_point(|(other, _)| *other < rank);
        group.insert(at, (rank, SampledLine { line, crc_bits }));
        group.truncate(SAMPLE_LINES);
    }

    /// The lines of the sample, in the order of the origin.
    pub(crate) fn pick(self) -> Vec<SampledLine> {
        let in_turn = |turn: usize| self.groups.iter().filter_map(move |group| group.get(turn));
        let mut picked: Vec<(u64, SampledLine)> =
            (0..SAMPLE_LINES).flat_map(in_turn).copied().collect();
        picked.sort_by_key(|(rank, _)| rank & ZEROES);
        picked.truncate(SAMPLE_LINES);
        let mut lines: Vec<SampledLine> = picked.into_iter().map(|(_, sampled)| sampled).collect();
        lines.sort_by_key(|sampled| sampled.line);
        lines
    }
}

/// The outcome of a comparison of the sample with the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// Lines that could be read from the origin.
    pub(crate) compared: u32,
    /// Compared lines that the index has otherwise.
    pub(crate) differing: u32,
}

impl Comparison {
    /// Whether the origin is another one, or was changed by somebody else.
    pub(crate) fn tells_of_change(self) -> bool {
        let all = self.differing == self.compared;
        self.differing > 0 && (all || self.differing >= DIFFERING_MIN)
    }
}

/// Reads the lines from the origin and holds them against their checksums. A line that cannot be read
/// says nothing of whose origin it is.
///
/// # Errors
/// `Gone` when the origin is.
pub(crate) async fn compare<O: DriveControl>(
    origin: &O,
    geometry: &Geometry,
    lines: Vec<SampledLine>,
) -> IoResult<Comparison> {
    let reads = lines.into_iter().map(|SampledLine { line, crc_bits }| async move {
        let range = geometry.line_range(line);
        let mut data = origin.read(range.start, Buf::new(range.bytes() as usize)).await?;
        if range.count < geometry.line_sectors() {
            // The cache has a short last line as a whole one.
            let mut whole = Buf::zeroed(geometry.line_bytes as usize);
            whole[..data.len()].copy_from_slice(&data);
            data = whole;
        }
        IoResult::Ok(kept_crc_bits(crc32c(&data)) == crc_bits)
    });
    let mut found = Comparison::default();
    for read in join_all(reads).await {
        match read {
            Ok(is_same) => {
                found.compared += 1;
                found.differing += u32::from(!is_same);
            }
            Err(IoError::Gone) => return Err(IoError::Gone),
            Err(_) => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FormatOptions, LineSize};
    use crate::policy::PolicyKind;

    fn sample_of(lines: impl Iterator<Item = (u64, u32)>, seed: u64) -> Vec<u64> {
        let options =
            FormatOptions { line_size: LineSize::DEFAULT, policy: PolicyKind::Lru, uuid: [1; 16] };
        let geometry = Geometry::plan(&options, 64 << 20, 8 << 20).unwrap();
        let mut sample = LineSample::new(&geometry, seed);
        lines.for_each(|(line, crc_bits)| sample.offer(Line(line), crc_bits));
        sample.pick().iter().map(|sampled| sampled.line.0).collect()
    }

    #[test]
    fn a_sample_is_spread_over_the_origin_and_follows_from_its_seed() {
        let all = || (0..1 << 20).map(|line| (line, 7));
        let picked = sample_of(all(), 1);
        let parts: Vec<u64> = picked.iter().map(|line| line >> 14).collect();
        assert_eq!(parts, (0..64).collect::<Vec<u64>>());
        assert_eq!(sample_of(all(), 1), picked);
        assert_ne!(sample_of(all(), 2), picked);
    }

    #[test]
    fn lines_of_one_place_fill_a_sample_and_zeroes_come_last() {
        assert_eq!(sample_of((0..40).map(|line| (line, 7)), 1), (0..40).collect::<Vec<u64>>());
        assert_eq!(sample_of((0..5000).map(|line| (line, 7)), 1).len(), 64);
        let zeroes = kept_crc_bits(crc32c(&[0; 4096]));
        let mixed = |line: u64| (line << 10, if line < 30 { 7 } else { zeroes });
        let picked = sample_of((0..1000).map(mixed), 1);
        assert_eq!(picked.len(), 64);
        assert_eq!(picked[..30], (0..30).map(|line| line << 10).collect::<Vec<u64>>());
    }

    #[test]
    fn one_line_with_bit_rot_is_no_other_origin_and_two_are() {
        let found = |compared, differing| Comparison { compared, differing }.tells_of_change();
        assert!(!found(0, 0) && !found(64, 0) && !found(64, 1) && !found(2, 1));
        assert!(found(1, 1) && found(2, 2) && found(64, 2) && found(64, 64));
    }
}
