//! Addresses and ranges in 512-byte sectors.

use std::fmt;

/// Bytes in a sector, the unit of every address in the data path.
pub const SECTOR_BYTES: u64 = 512;

/// A logical block address on one device, in 512-byte sectors. Never bytes, never a cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

impl Lba {
    /// The byte offset of this sector.
    pub const fn bytes(self) -> u64 {
        self.0 * SECTOR_BYTES
    }

    /// The sector at a byte offset, which must be a multiple of 512.
    #[inline]
    pub const fn from_bytes(bytes: u64) -> Self {
        assert!(bytes.is_multiple_of(SECTOR_BYTES));
        Self(bytes / SECTOR_BYTES)
    }

    /// The address `sectors` further on.
    #[must_use]
    pub const fn plus(self, sectors: u64) -> Self {
        Self(self.0 + sectors)
    }
}

impl fmt::Display for Lba {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "sector {}", self.0)
    }
}

/// A run of sectors on one device: `start .. start + count`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SectorRange {
    /// First sector.
    pub start: Lba,
    /// Number of sectors; zero is an empty range.
    pub count: u64,
}

impl SectorRange {
    /// A range from its first sector and its length.
    pub const fn new(start: Lba, count: u64) -> Self {
        Self { start, count }
    }

    /// A range from bytes; both must be multiples of 512.
    #[inline]
    pub const fn from_bytes(offset: u64, length: u64) -> Self {
        assert!(length.is_multiple_of(SECTOR_BYTES));
        Self { start: Lba::from_bytes(offset), count: length / SECTOR_BYTES }
    }

    /// One past the last sector.
    pub const fn end(self) -> Lba {
        Lba(self.start.0 + self.count)
    }

    /// Length in bytes.
    pub const fn bytes(self) -> u64 {
        self.count * SECTOR_BYTES
    }

    /// Whether no sector is in it.
    pub const fn is_empty(self) -> bool {
        self.count == 0
    }

    /// Whether the two have a sector in common.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start.0 < other.end().0 && other.start.0 < self.end().0
    }

    /// Whether every sector of `other` is in this range.
    pub const fn contains(self, other: Self) -> bool {
        self.start.0 <= other.start.0 && other.end().0 <= self.end().0
    }

    /// Whether the range fits on a device of `sectors` sectors. No sum here can overflow.
    pub const fn fits(self, sectors: u64) -> bool {
        self.start.0 <= sectors && self.count <= sectors - self.start.0
    }

    /// Splits at every multiple of `boundary` sectors, first piece first. The function serves
    /// cache lines, chunks, regions and transfer limits.
    pub fn split_at_multiples(self, boundary: u64) -> impl Iterator<Item = SectorRange> {
        assert!(boundary > 0);
        let mut rest = self;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let to_boundary = boundary - rest.start.0 % boundary;
            let piece = SectorRange::new(rest.start, rest.count.min(to_boundary));
            rest = SectorRange::new(piece.end(), rest.count - piece.count);
            Some(piece)
        })
    }
}

impl fmt::Display for SectorRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "sectors {}..{}", self.start.0, self.end().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_pieces_cover_the_range_in_order_and_respect_boundaries() {
        for (start, count, boundary) in [(0, 8, 8), (3, 21, 8), (7, 1, 8), (8, 0, 8), (5, 100, 1)] {
            let range = SectorRange::new(Lba(start), count);
            let mut next = start;
            for piece in range.split_at_multiples(boundary) {
                assert_eq!(piece.start.0, next);
                assert!(piece.count > 0 && piece.start.0 % boundary + piece.count <= boundary);
                next = piece.end().0;
            }
            assert_eq!(next, start + count);
        }
    }

    #[test]
    fn fits_does_not_overflow() {
        assert!(!SectorRange::new(Lba(u64::MAX), u64::MAX).fits(10));
        assert!(!SectorRange::new(Lba(5), u64::MAX).fits(10));
        assert!(SectorRange::new(Lba(5), 5).fits(10));
    }
}
