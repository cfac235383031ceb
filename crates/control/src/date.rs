//! Wall time: what people and other programs are told. Nothing is measured with it.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::{ControlError, ControlResult};
use crate::units::parse_duration;

const DAY_S: u64 = 86_400;
/// 400 years: beyond 9999 a year has more than four digits.
const UNIX_S_MAX: u64 = 253_402_300_799;
const UNITS: &[(&str, u64)] = &[("s", 1), ("m", 60), ("h", 3600), ("d", DAY_S), ("w", 7 * DAY_S)];

/// A moment of the wall clock, in milliseconds since 1970, UTC. In words and in JSON as `2026-11-29T11:20:20.125Z`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date {
    /// Milliseconds since 1970, UTC.
    pub unix_ms: u64,
}

impl Date {
    /// The time of the system now.
    #[expect(clippy::disallowed_methods, reason = "a date for people; nothing is measured with it")]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX) }
    }

    /// How long it was from another moment to this one; nothing when the clock was set back in between.
    pub fn since(self, before: Self) -> Duration {
        Duration::from_millis(self.unix_ms.saturating_sub(before.unix_ms))
    }

    /// To the second, for people: `2026-11-29 11:20:20`, UTC.
    pub fn to_the_second(self) -> String {
        let (year, month, day) = civil(self.unix_ms / 1000 / DAY_S);
        let second = self.unix_ms / 1000 % DAY_S;
        let (hour, minute) = (second / 3600, second / 60 % 60);
        format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}", second % 60)
    }

    /// Parses the begin of a period: how long before `now` (`90s`, `5m`, `2h`, `7d`, `4w`), or a date of UTC
    /// (`2026-11-29`, `2026-11-29 11:20`, `2026-11-29T11:20:20Z`).
    ///
    /// # Errors
    /// A usage error when it is neither.
    pub fn parse_since(text: &str, now: Self) -> ControlResult<Self> {
        if let Some(seconds) = parse_duration(text, UNITS, UNIX_S_MAX) {
            return Ok(Self { unix_ms: now.unix_ms.saturating_sub(seconds * 1000) });
        }
        text.parse()
    }
}

impl fmt::Display for Date {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.to_the_second().replace(' ', "T");
        write!(out, "{text}.{:03}Z", self.unix_ms % 1000)
    }
}

impl FromStr for Date {
    type Err = ControlError;

    fn from_str(text: &str) -> ControlResult<Self> {
        parse(text).ok_or_else(|| {
            ControlError::usage(format!(
                "`{text}` is no time; write how long ago (90s, 5m, 2h, 7d), or a time of UTC: 2026-11-29, \
                 2026-11-29T11:20, 2026-11-29T11:20:20Z"
            ))
        })
    }
}

impl Serialize for Date {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Date {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

fn parse(text: &str) -> Option<Date> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "0:0"));
    let number = |text: &str| {
        text.bytes().all(|it| it.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten()
    };
    let mut parts = date.split('-').map(number);
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let (time, thousandths) = time.split_once('.').unwrap_or((time, "0"));
    let mut times = time.split(':').map(number);
    let (hour, minute) = (times.next()??, times.next()??);
    let second = times.next().unwrap_or(Some(0))?;
    let is_left = parts.next().is_some() || times.next().is_some() || thousandths.len() > 3;
    if is_left || !(1970..=9999).contains(&year) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let days = days_since_1970(year, month, day);
    // Months have different lengths: what is no day comes back as another one.
    if civil(days) != (year, month, day) {
        return None;
    }
    let ms = number(&format!("{thousandths:0<3}"))?;
    Some(Date { unix_ms: (days * DAY_S + hour * 3600 + minute * 60 + second) * 1000 + ms })
}

/// Days since 1970 of a day of the Gregorian calendar, which is counted in years from March on: a leap day is the last
/// one of its year then.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day;
    (year * 365 + year / 4 - year / 100 + year / 400 + of_year).saturating_sub(DAYS_BEFORE_1970 + 1)
}

/// Days from the first of March of the year 0 to the first of January 1970.
const DAYS_BEFORE_1970: u64 = 719_468;
const DAYS_OF_400_YEARS: u64 = 146_097;

/// Year, month and day of a number of days since 1970.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + DAYS_BEFORE_1970;
    let (era, day_of_era) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_written_as_others_write_it_and_read_again() {
        for (text, unix_ms) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("1999-12-31T23:59:59.999Z", 946_684_799_999),
            ("2000-02-29T12:00:00.000Z", 951_825_600_000),
            ("2000-03-01T00:00:00.000Z", 951_868_800_000),
            ("2024-02-29T23:59:59.000Z", 1_709_251_199_000),
            ("2026-11-29T11:20:20.125Z", 1_795_951_220_125),
            ("2100-02-28T00:00:00.000Z", 4_107_456_000_000),
            ("2100-03-01T00:00:00.000Z", 4_107_542_400_000),
        ] {
            assert_eq!(Date { unix_ms }.to_string(), text);
            assert_eq!(text.parse(), Ok(Date { unix_ms }));
        }
        for days in (0..80_000).step_by(13) {
            let (year, month, day) = civil(days);
            assert_eq!(days_since_1970(year, month, day), days);
        }
    }

    #[test]
    fn the_begin_of_a_period_is_an_age_or_a_date_and_nothing_else() {
        let now: Date = "2026-11-29T11:20:20Z".parse().unwrap();
        for (text, date) in [
            ("20s", "2026-11-29T11:20:00.000Z"),
            ("1h", "2026-11-29T10:20:20.000Z"),
            ("29d", "2026-10-31T11:20:20.000Z"),
            ("900000d", "1970-01-01T00:00:00.000Z"),
            ("2026-11-01", "2026-11-01T00:00:00.000Z"),
            ("2026-11-01 7:05", "2026-11-01T07:05:00.000Z"),
            ("2026-11-01T07:05:09Z", "2026-11-01T07:05:09.000Z"),
        ] {
            assert_eq!(Date::parse_since(text, now).unwrap().to_string(), date, "{text}");
        }
        for text in
            ["", "5", "yesterday", "-5m", "2026-13-01", "2026-02-29", "2026-11-29T25:00", "0-0-0"]
                .into_iter()
                .chain(["2026-00-10", "2026-11-29T11", "1969-01-01", "2026-11-29-1", "9s9", "1.5h"])
        {
            let error = Date::parse_since(text, now).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{text}");
        }
    }
}
