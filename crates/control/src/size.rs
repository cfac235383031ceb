//! Sizes of the command line: what is no size is wrong usage.

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
}
