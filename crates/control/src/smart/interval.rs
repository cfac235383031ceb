//! How often drives are asked for their health.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::ControlError;
use crate::units::{parse_duration, seconds_text};

const DAY_S: u64 = 86_400;

/// How often drives are asked for their health; none, never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmartInterval(pub Option<Duration>);

/// Often enough for what wears, and seldom enough to keep no drive from its work.
pub const SMART_INTERVAL: SmartInterval = SmartInterval(Some(Duration::from_secs(300)));

impl FromStr for SmartInterval {
    type Err = ControlError;

    fn from_str(text: &str) -> Result<Self, ControlError> {
        if text == "off" {
            return Ok(Self(None));
        }
        let units = [("s", 1), ("m", 60), ("h", 3600), ("d", DAY_S)];
        let seconds = parse_duration(text, &units, DAY_S).ok_or_else(|| {
            let shown = text.escape_default();
            ControlError::usage(format!("`{shown}`: write a time from 1s to 1d, as 5m, or off"))
        })?;
        Ok(Self(Some(Duration::from_secs(seconds))))
    }
}

impl fmt::Display for SmartInterval {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => out.write_str("off"),
            Some(time) => out.write_str(&seconds_text(time.as_secs())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_time_or_off() {
        for text in ["off", "1s", "5m", "1h", "1d"] {
            assert_eq!(text.parse::<SmartInterval>().unwrap().to_string(), text);
        }
        for text in ["", "0s", "2d", "5", "-1s", "on", "soon"] {
            assert_eq!(text.parse::<SmartInterval>().unwrap_err().exit_code(), 2, "{text}");
        }
        assert_eq!(SMART_INTERVAL.to_string(), "5m");
    }
}
