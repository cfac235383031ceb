//! How long lines have been dirty. Pure.
//!
//! No line has a time of its own. All that was dirty at some moment has been written when the cleaner has gone once
//! over everything since: what is dirty then became so later. Two times are enough for that.

use voltier_block::Nanos;

/// How far the cleaner has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Sweeps that have ended, and batches that the origin refused.
    pub(super) sweeps: u64,
    pub(super) errors: u64,
    /// The number of the log's next record.
    pub(super) sequence: u64,
}

/// The age of what is dirty in one cache.
#[derive(Debug, Default)]
pub(super) struct DirtyAge {
    /// Nothing that is dirty became so before; none while nothing is dirty.
    since_ns: Option<Nanos>,
    /// The round that writes what was dirty when it began.
    round: Option<(Nanos, Progress)>,
    /// Some of it may be from before the start, and older.
    is_of_start: bool,
}

impl DirtyAge {
    /// That of a cache which was just opened, with or without lines that were dirty before.
    pub(super) fn at_start(is_dirty: bool) -> Self {
        Self { is_of_start: is_dirty, ..Self::default() }
    }

    /// Since when the oldest may be dirty, and whether it may be older; none when nothing is dirty.
    pub(super) fn since(&self) -> Option<(Nanos, bool)> {
        self.since_ns.map(|since_ns| (since_ns, self.is_of_start))
    }

    /// Nothing is dirty.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes note that something is dirty, and of what has been written. In ordered mode `is_past` says whether the
    /// origin has everything up to a record.
    pub(super) fn note(
        &mut self,
        now_ns: Nanos,
        progress: Progress,
        is_past: impl Fn(u64) -> bool,
    ) {
        let since_ns = self.since_ns.get_or_insert(now_ns);
        if let Some((begun_ns, begun)) = self.round
            && (progress.sweeps >= begun.sweeps + 2 || is_past(begun.sequence))
        {
            // The first of the sweeps may have begun before the round.
            if progress.errors == begun.errors {
                *since_ns = begun_ns;
                self.is_of_start = false;
            }
            self.round = None;
        }
    }

    /// When the oldest may be so old; none when nothing is dirty.
    pub(super) fn due_ns(&self, age_ns: Nanos) -> Option<Nanos> {
        self.since_ns.map(|since_ns| since_ns.saturating_add(age_ns))
    }

    /// Whether the oldest may be so old; 0 is never. A round begins then, or at once if all sweeps take everything:
    /// those that the cleaner makes anyway count too.
    pub(super) fn is_due(
        &mut self,
        now_ns: Nanos,
        age_ns: Nanos,
        progress: Progress,
        takes_all: bool,
    ) -> bool {
        let is_due = age_ns > 0 && self.due_ns(age_ns).is_some_and(|due_ns| now_ns >= due_ns);
        if is_due || takes_all {
            self.round.get_or_insert((now_ns, progress));
        } else {
            self.round = None;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(sweeps: u64, errors: u64) -> Progress {
        Progress { sweeps, errors, sequence: sweeps * 10 }
    }

    #[test]
    fn a_round_is_due_when_the_oldest_is_old_and_ends_after_two_sweeps() {
        let mut age = DirtyAge::default();
        let mut look = |now_ns, sweeps, errors| {
            age.note(now_ns, progress(sweeps, errors), |_| false);
            age.is_due(now_ns, 1000, progress(sweeps, errors), false)
        };
        assert!(!look(1000, 0, 0) && !look(1999, 0, 0));
        assert!(look(2000, 0, 0) && look(2100, 1, 0));
        assert!(!look(2250, 2, 0), "the oldest is of 2000 at most");
        assert!(look(3000, 2, 0) && look(3100, 3, 1));
        assert!(look(3200, 4, 1), "a batch was refused: once more");
        assert!(!look(3300, 6, 1));
        assert!(look(4200, 6, 1));
    }

    #[test]
    fn what_became_dirty_after_nothing_was_counts_from_then() {
        let mut age = DirtyAge::default();
        age.note(10, progress(0, 0), |_| false);
        age.clear();
        assert_eq!(age.due_ns(5), None);
        age.note(500, progress(0, 0), |_| false);
        assert_eq!(age.due_ns(5), Some(505));
        assert!(!age.is_due(1000, 0, progress(0, 0), true), "off");
    }

    #[test]
    fn sweeps_of_a_busy_cleaner_count_where_they_take_everything() {
        for takes_all in [false, true] {
            let mut age = DirtyAge::default();
            let mut dues = 0;
            for sweeps in 0..100 {
                age.note(sweeps * 10, progress(sweeps, 0), |_| false);
                dues += u32::from(age.is_due(sweeps * 10, 100, progress(sweeps, 0), takes_all));
            }
            assert_eq!(dues == 0, takes_all, "{dues}");
        }
    }

    #[test]
    fn in_order_a_round_ends_when_the_origin_has_all_of_its_begin() {
        let mut age = DirtyAge::default();
        age.note(0, progress(1, 0), |_| false);
        assert!(age.is_due(100, 100, progress(1, 0), false));
        age.note(120, progress(1, 0), |sequence| sequence <= 10);
        assert!(!age.is_due(150, 100, progress(1, 0), false));
        assert_eq!(age.due_ns(100), Some(200));
    }
}
