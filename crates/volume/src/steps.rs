//! Steps of requests without data. A discard of a terabyte may cost a disk no more than one of a megabyte, or hours:
//! steps become longer while they are quick.

use std::cell::Cell;

use voltier_block::{Lba, Nanos, SectorRange};

/// A step that took no longer lets the next one be twice as long.
const QUICK_NS: Nanos = 10_000_000;
/// A step that took longer has the next one be half as long.
const SLOW_NS: Nanos = 50_000_000;
/// The longest step has so many units.
const UNITS_MAX: u64 = 128;

/// How long the next step of a volume is.
pub(crate) struct Steps(Cell<u64>);

impl Steps {
    pub(crate) fn new() -> Self {
        Self(Cell::new(1))
    }

    /// The first step of a range. It ends at a multiple of `unit` sectors, or with the range.
    pub(crate) fn first_of(&self, range: SectorRange, unit: u64) -> SectorRange {
        let longest = self.0.get() * unit;
        if range.count <= longest {
            return range;
        }
        let end = Lba((range.start.0 + longest) / unit * unit);
        SectorRange::new(range.start, end.0 - range.start.0)
    }

    /// A step has taken so long.
    pub(crate) fn took(&self, step: SectorRange, unit: u64, time_ns: Nanos) {
        let units = step.count / unit;
        let longest = self.0.get();
        if time_ns <= QUICK_NS && units >= longest / 2 {
            self.0.set((2 * longest).min(UNITS_MAX));
        } else if time_ns > SLOW_NS {
            self.0.set((units / 2).clamp(1, longest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 1000;

    fn first(steps: &Steps, start: u64, count: u64) -> u64 {
        steps.first_of(SectorRange::new(Lba(start), count), UNIT).count
    }

    #[test]
    fn steps_grow_while_they_are_quick_and_become_short_when_one_is_slow() {
        let steps = Steps::new();
        let step = |units| SectorRange::new(Lba(0), units * UNIT);
        assert_eq!((first(&steps, 10, 990), first(&steps, 10, 9000)), (990, 990));
        for units in [1, 2, 4] {
            assert_eq!(first(&steps, 0, 100_000), units * UNIT);
            steps.took(step(units), UNIT, QUICK_NS);
        }
        assert_eq!(first(&steps, 0, 100_000), 8 * UNIT);
        steps.took(SectorRange::new(Lba(0), 3), UNIT, 1);
        assert_eq!(first(&steps, 0, 100_000), 8 * UNIT, "a short one says nothing");
        steps.took(step(8), UNIT, QUICK_NS + 1);
        assert_eq!(first(&steps, 0, 100_000), 8 * UNIT);
        steps.took(step(6), UNIT, SLOW_NS + 1);
        assert_eq!(first(&steps, 0, 100_000), 3 * UNIT);
        steps.took(SectorRange::new(Lba(0), 3), UNIT, SLOW_NS + 1);
        assert_eq!(first(&steps, 0, 100_000), UNIT);
        (0..20).for_each(|_| steps.took(step(1000), UNIT, 0));
        assert_eq!(first(&steps, 0, 1_000_000), UNITS_MAX * UNIT);
    }

    #[test]
    fn steps_cover_a_range_and_end_at_units() {
        let steps = Steps::new();
        let mut rest = SectorRange::new(Lba(7), 123_456);
        while !rest.is_empty() {
            let step = steps.first_of(rest, UNIT);
            assert_eq!(step.start, rest.start);
            assert!(
                step.count > 0 && (step.end() == rest.end() || step.end().0.is_multiple_of(UNIT))
            );
            steps.took(step, UNIT, step.count % 3 * SLOW_NS);
            rest = SectorRange::new(step.end(), rest.count - step.count);
        }
    }
}
