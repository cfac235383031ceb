//! Sizes of plans, results and reports.

pub use voltier_block::size::exact_size as format_bytes;
use voltier_block::size::parse_size;

/// Bytes of "512M", "1g", "4096". `None` when the text is no size, or has a fraction.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    (!text.contains('.')).then(|| parse_size(text)).flatten()
}

/// To three digits, for people: "64M", "1.37G".
pub fn bytes_in_words(bytes: u64) -> String {
    let exact = format_bytes(bytes);
    if exact.len() <= 5 {
        return exact;
    }
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let (shift, unit) = units.into_iter().find(|(shift, _)| bytes >> shift > 0).unwrap_or((0, ""));
    let value = bytes as f64 / (1_u64 << shift) as f64;
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_survive_the_round_trip() {
        for (text, bytes) in [("4096", 4096), ("512M", 512 << 20), ("1g", 1 << 30), ("3T", 3 << 40)]
        {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
            assert_eq!(parse_bytes(&format_bytes(bytes)), Some(bytes), "{text}");
        }
        assert_eq!(format_bytes(1536 << 20), "1536M");
        assert_eq!(format_bytes(0), "0");
        for (bytes, words) in [(64 << 20, "64M"), (1_471_000_000, "1.37G"), (12_345_678, "11.8M")] {
            assert_eq!(bytes_in_words(bytes), words);
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in ["", "M", "1.5G", "-1", "1Q", "99999999T", "1 G x"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }
}
