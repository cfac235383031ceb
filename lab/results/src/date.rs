//! Dates of runs, UTC.

/// A moment in the civil calendar, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) year: i64,
    pub(crate) month: i64,
    pub(crate) day: i64,
    pub(crate) hour: u64,
    pub(crate) minute: u64,
}

impl Moment {
    /// From milliseconds since 1970, by counting days in eras of 400 years.
    pub(crate) fn of(unix_ms: u64) -> Moment {
        let minutes = unix_ms / 60_000;
        let days = (minutes / 1440) as i64 + 719_468;
        let era = days.div_euclid(146_097);
        let of_era = days.rem_euclid(146_097);
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * of_year + 2) / 153;
        let day = of_year - (153 * shifted + 2) / 5 + 1;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        Moment { year, month, day, hour: minutes / 60 % 24, minute: minutes % 60 }
    }

    /// As people read it: `2026-11-22 07:28 UTC`.
    pub(crate) fn in_words(self) -> String {
        let Moment { year, month, day, hour, minute } = self;
        format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
    }

    /// As Orion names its files: `20261122_0728`.
    pub(crate) fn stamp(self) -> String {
        let Moment { year, month, day, hour, minute } = self;
        format!("{year:04}{month:02}{day:02}_{hour:02}{minute:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stamp_is_the_civil_date() {
        assert_eq!(Moment::of(0).stamp(), "19700101_0000");
        assert_eq!(Moment::of(951_782_400_000).stamp(), "20000229_0000");
        assert_eq!(Moment::of(1_795_332_493_435).stamp(), "20261122_0728");
        assert_eq!(Moment::of(1_795_332_493_435).in_words(), "2026-11-22 07:28 UTC");
    }
}
