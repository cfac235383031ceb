//! Read errors of the SSD as far as they are held against it: distinct places, in a window of time. Pure.

use std::collections::BTreeMap;

use voltier_block::{Lba, Nanos, SectorRange};

/// The SSD fails as a whole, and not in places, when one line in so many cannot be read. Flash that wears
/// out loses single pages for months before.
const BAD_LINES_PART: u32 = 256;
/// Bounds of that number: a small SSD may lose some pages, and a large one a few erase blocks.
const BAD_LINES_BOUNDS: (u32, u32) = (64, 4096);
/// Errors before this are forgotten: a drive that fails as a whole does not take an hour for it.
const WINDOW_NS: Nanos = 3_600_000_000_000;

/// Places of one SSD that could not be read of late.
pub(crate) struct ReadErrors {
    places_max: usize,
    /// When each was found, by its first sector.
    places: BTreeMap<Lba, Nanos>,
}

impl ReadErrors {
    /// None yet, on an SSD with so many slots.
    pub(crate) fn new(slots: u32) -> Self {
        let (least, most) = BAD_LINES_BOUNDS;
        let places_max = (slots / BAD_LINES_PART).clamp(least, most) as usize;
        Self { places_max, places: BTreeMap::new() }
    }

    /// Whether a bad place is known in the range: a read of it need not be tried again.
    pub(crate) fn is_known(&self, range: SectorRange) -> bool {
        self.places.range(range.start..range.end()).next().is_some()
    }

    /// Takes note of a place that could not be read; whether there are too many now.
    pub(crate) fn note(&mut self, place: Lba, now_ns: Nanos) -> bool {
        if self.places.contains_key(&place) {
            return false;
        }
        self.places.retain(|_, found_ns| now_ns - *found_ns < WINDOW_NS);
        self.places.insert(place, now_ns);
        self.places.len() > self.places_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_place_counts_once_however_often_it_is_read() {
        let mut errors = ReadErrors::new(1000);
        assert!((0..10_000).all(|now_ns| !errors.note(Lba(8), now_ns)));
        assert!(errors.is_known(SectorRange::new(Lba(0), 9)));
        assert!(!errors.is_known(SectorRange::new(Lba(0), 8)));
        assert!(!errors.is_known(SectorRange::new(Lba(9), 8)));
        let noted: Vec<bool> = (1..=64).map(|place| errors.note(Lba(place * 16), 0)).collect();
        assert_eq!(noted.iter().filter(|too_many| **too_many).count(), 1, "the 65th place");
        assert!(noted[63]);
    }

    #[test]
    fn old_errors_are_forgotten_and_large_drives_may_have_more() {
        let mut errors = ReadErrors::new(1000);
        assert!((0..640).all(|place| !errors.note(Lba(place * 8), place * WINDOW_NS / 60)));
        let too_many_at = |slots| {
            let mut errors = ReadErrors::new(slots);
            (0..10_000).find(|place| errors.note(Lba(*place), 0)).map(|place| place + 1)
        };
        assert_eq!(too_many_at(1 << 18), Some(1025));
        assert_eq!(too_many_at(u32::MAX), Some(4097));
    }
}
