//! Sizes as people write them: binary units, `4096`, `64K`, `1.5G`, `2TiB`.

const UNITS: [(char, u32); 5] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50)];

/// Parses a size in bytes. Units are binary, in any case, with an optional `B` or `iB`. `None` for
/// anything else, a fraction of a byte, or more than 2^63 bytes.
pub fn parse_size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = parse_unit(unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.len() > 9 || fraction.contains('.') {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let numerator: u128 = fraction.parse::<u64>().ok()?.into();
    let denominator = 10_u128.pow(fraction.len() as u32);
    let part = numerator << shift;
    let bytes = (u128::from(whole) << shift) + part / denominator;
    let exact = shift > 0 || part.is_multiple_of(denominator);
    if !exact || bytes > u128::from(i64::MAX.unsigned_abs()) {
        return None;
    }
    Some(bytes as u64)
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
    fn what_is_no_size_is_refused() {
        for text in ["", "K", "-1", "1X", "1KX", "1.5", "1..5K", ".5K", "5.", "9999999T", "1 K"] {
            assert_eq!(parse_size(text), None, "{text}");
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
}
