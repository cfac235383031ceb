//! Sizes and times as people write them: `4096`, `64K`, `1.5G`, `2TiB`; `50us`, `5ms`, `90s`, `1h`.

use crate::error::{ControlError, ControlResult};

/// Binary units, and how far each shifts.
const UNITS: [(char, u32); 5] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50)];

/// Parses a size in bytes. Units are binary, in any case, with an optional `B` or `iB`.
///
/// # Errors
/// A usage error for anything else, a fraction of a byte, or more than 2^63 bytes.
pub fn parse_size(text: &str) -> ControlResult<u64> {
    let wrong = || {
        ControlError::usage(format!("`{text}` is not a size; write bytes or K, M, G, T: 64K, 1.5G"))
    };
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = parse_unit(unit).ok_or_else(wrong)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.len() > 9 || fraction.contains('.') {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let numerator: u128 = fraction.parse::<u64>().map_err(|_| wrong())?.into();
    let denominator = 10_u128.pow(fraction.len() as u32);
    let part = numerator << shift;
    let bytes = (u128::from(whole) << shift) + part / denominator;
    let exact = shift > 0 || part.is_multiple_of(denominator);
    if !exact || bytes > u128::from(i64::MAX.unsigned_abs()) {
        return Err(wrong());
    }
    Ok(bytes as u64)
}

fn parse_unit(unit: &str) -> Option<u32> {
    let upper = unit.to_ascii_uppercase();
    if upper.is_empty() || upper == "B" {
        return Some(0);
    }
    let mut letters = upper.chars();
    let first = letters.next()?;
    let (_, shift) = UNITS.into_iter().find(|(letter, _)| *letter == first)?;
    matches!(letters.as_str(), "" | "B" | "IB").then_some(shift)
}

/// A size for a table: at most five characters, `512`, `64K`, `1.5G`.
pub fn format_size(bytes: u64) -> String {
    let Some((letter, shift)) = UNITS.into_iter().rev().find(|(_, shift)| bytes >> shift > 0)
    else {
        return bytes.to_string();
    };
    let tenths = (u128::from(bytes) * 10) >> shift;
    let exact = (u128::from(bytes) * 10).is_multiple_of(1 << shift) && tenths.is_multiple_of(10);
    if exact || tenths >= 1000 {
        format!("{}{letter}", tenths / 10)
    } else {
        format!("{}.{}{letter}", tenths / 10, tenths % 10)
    }
}

/// The shortest text that [`parse_size`] reads back as exactly this size.
pub fn exact_size(bytes: u64) -> String {
    let unit = UNITS
        .into_iter()
        .rev()
        .find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1_u64 << shift));
    match unit {
        Some((letter, shift)) => format!("{}{letter}", bytes >> shift),
        None => bytes.to_string(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_binary_units_in_every_usual_spelling() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64K", 65536),
            ("64k", 65536),
            ("64KB", 65536),
            ("64KiB", 65536),
            ("1M", 1 << 20),
            ("1.5G", 3 << 29),
            ("2TiB", 2 << 40),
            ("0.5K", 512),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_a_usage_error() {
        for text in ["", "K", "-1", "1X", "1KX", "1.5", "1..5K", ".5K", "5.", "9999999T", "1 K"] {
            let error = parse_size(text).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_short_and_exact_ones_come_back() {
        assert_eq!(format_size(512), "512");
        assert_eq!(format_size(4096), "4K");
        assert_eq!(format_size(3 << 29), "1.5G");
        assert_eq!(format_size((2 << 40) - 4096), "1.9T");
        assert_eq!(format_size(800_166_076_416), "745G");
        for bytes in [0, 1, 512, 4096, 3 << 29, (1 << 40) + 512] {
            assert_eq!(parse_size(&exact_size(bytes)).unwrap(), bytes);
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
