//! Short times to wait, as the command line has them.

/// Microseconds, from 1 to `max`, from a number with `us`, `ms` or `s` behind it.
pub(crate) fn parse_wait_us(text: &str, max: u64) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_us = match unit {
        "us" => 1,
        "ms" => 1000,
        "s" => 1_000_000,
        _ => return None,
    };
    let us = number.parse::<u64>().ok()?.checked_mul(unit_us)?;
    (1..=max).contains(&us).then_some(us)
}

/// Microseconds as they are written: `50us`, `5ms`.
pub fn wait_text(us: u64) -> String {
    if us >= 1000 && us.is_multiple_of(1000) {
        format!("{}ms", us / 1000)
    } else {
        format!("{us}us")
    }
}
