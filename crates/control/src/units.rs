//! Sizes and times of the command line: `4096`, `64K`, `1.5G`, `2TiB`; `50us`, `5ms`, `90s`, `1h`. A text
//! that is no size is wrong usage.

pub use voltier_block::size::{exact_size, format_size};

use crate::error::{ControlError, ControlResult};

/// Parses a size in bytes, as [`voltier_block::size::parse_size`] does.
///
/// # Errors
/// A usage error when the text is no size.
pub fn parse_size(text: &str) -> ControlResult<u64> {
    voltier_block::size::parse_size(text).ok_or_else(|| {
        ControlError::usage(format!("`{text}` is not a size; write bytes or K, M, G, T: 64K, 1.5G"))
    })
}

/// Parses a time: a whole number with one of these units behind it, each with its length. The result has the
/// unit whose length is 1, and lies from 1 to `max`; `None` for anything else.
pub(crate) fn parse_duration(text: &str, units: &[(&str, u64)], max: u64) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (_, length) = units.iter().find(|(name, _)| *name == unit)?;
    let time = number.parse::<u64>().ok()?.checked_mul(*length)?;
    (1..=max).contains(&time).then_some(time)
}

/// Parses microseconds, from 1 to `max`, from a number with `us`, `ms` or `s` behind it.
pub(crate) fn parse_wait_us(text: &str, max: u64) -> Option<u64> {
    parse_duration(text, &[("us", 1), ("ms", 1000), ("s", 1_000_000)], max)
}

/// Microseconds as they are written: `50us`, `5ms`.
pub fn wait_text(us: u64) -> String {
    if us >= 1000 && us.is_multiple_of(1000) {
        format!("{}ms", us / 1000)
    } else {
        format!("{us}us")
    }
}

/// Seconds as they are written: `75s`, `2m`, `1h`.
pub fn seconds_text(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "m")];
    let whole = units.into_iter().find(|(unit, _)| seconds.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{seconds}s"), |(unit, word)| format!("{}{word}", seconds / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_size_is_a_usage_error() {
        for text in ["", "K", "-1", "1X", "1KX", "1.5", "1..5K", ".5K", "5.", "9999999T", "1 K"] {
            let error = parse_size(text).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{text}");
        }
    }

    #[test]
    fn times_need_a_known_unit_and_stay_within_their_bounds() {
        for (text, us) in [("1us", 1), ("50us", 50), ("5ms", 5000), ("10s", 10_000_000)] {
            assert_eq!(parse_wait_us(text, 10_000_000), Some(us), "{text}");
        }
        for text in ["", "us", "0us", "5", "5m", "1.5ms", "-1us", "11s", "18446744073709551615s"] {
            assert_eq!(parse_wait_us(text, 10_000_000), None, "{text}");
        }
        for us in [1, 999, 1000, 1500, 2_000_000] {
            assert_eq!(parse_wait_us(&wait_text(us), u64::MAX), Some(us));
        }
    }
}
