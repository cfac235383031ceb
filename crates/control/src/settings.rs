//! Choices about a cache: at creation, and most of it while it serves (`voltier set`).

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use voltier_cache::admission::AdmissionKind;
use voltier_cache::policy::PolicyKind;
use voltier_cache::{FormatOptions, LineSize, Mode};

use crate::array_settings::{deadline_ns, parse_deadline_s};
use crate::error::{ControlError, ControlResult};
use crate::suggest;
use crate::units::{exact_size, parse_size, parse_wait_us, seconds_text, wait_text};

/// The key that gives a volume which is not served another drive as its origin.
pub const ORIGIN_KEY: &str = "hdd";

/// The key that gives a volume which is not served another drive as its SSD.
pub const SSD_KEY: &str = "ssd";

/// Keys of `voltier set`, in the order they are documented.
pub const KEYS: [&str; 9] = [
    "mode",
    "policy",
    "admission",
    "seq_cutoff",
    "dirty_high",
    "dirty_low",
    "congested",
    "deadline",
    "ordered",
];

/// Line sizes a cache can have, in bytes.
pub const LINE_BYTES: [u32; 6] = [2048, 4096, 8192, 16384, 32768, 65536];

/// No queue of an SSD in order is longer.
const CONGESTED_US_MAX: u64 = 10_000_000;

const MODES: [&str; 5] = ["wt", "wb", "ro", "wo", "pt"];

/// Parses a cache mode.
///
/// # Errors
/// A usage error that names the nearest one.
pub fn parse_mode(word: &str) -> ControlResult<Mode> {
    parse_word("cache mode", word, &MODES)
}

/// Parses a replacement policy.
///
/// # Errors
/// A usage error that names the nearest one.
pub fn parse_policy(word: &str) -> ControlResult<PolicyKind> {
    parse_word("replacement policy", word, &PolicyKind::ALL.map(PolicyKind::name))
}

fn parse_word<T: FromStr>(what: &str, word: &str, known: &[&str]) -> ControlResult<T> {
    word.to_ascii_lowercase().parse().map_err(|_| {
        let hint = suggest::hint(word, known);
        ControlError::usage(format!("`{}` is not a {what}; {hint}", word.escape_default()))
    })
}

/// JSON by the words of the command line.
mod as_word {
    use super::{Display, FromStr};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>, T: FromStr>(
        from: D,
    ) -> Result<T, D::Error> {
        let word = String::deserialize(from)?;
        word.parse().map_err(|_| D::Error::custom(format_args!("unknown word `{word}`")))
    }
}

/// All choices of one cache. The defaults are the MaxIO document's: lru, wt, 4096.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The way of reads and writes.
    #[serde(with = "as_word")]
    pub mode: Mode,
    /// Replacement policy.
    #[serde(with = "as_word")]
    pub policy: PolicyKind,
    /// Bytes in a cache line: fixed for the life of the cache.
    pub line_bytes: u32,
    /// The misses that may enter.
    #[serde(with = "as_word")]
    pub admission: AdmissionKind,
    /// Sequential streams longer than this many bytes bypass the cache; 0 lets all in.
    pub seq_cutoff_bytes: u64,
    /// At this share of dirty lines and above, in percent, destaging works at full rate.
    pub dirty_high_percent: u8,
    /// At this share of dirty lines and below, in percent, destaging rests while clients are busy.
    pub dirty_low_percent: u8,
    /// From this average wait for the SSD on, in microseconds, a resting origin serves clean hits; 0
    /// never.
    pub congested_us: u32,
    /// Whether the origin always holds a prefix of the writes, cut at a flush.
    pub ordered: bool,
    /// From so many seconds without an answer on, the SSD or the origin counts as silent; 0 never.
    pub deadline_s: u64,
}

fn usual_deadline_s() -> u64 {
    voltier_cache::Settings::default().deadline_ns / 1_000_000_000
}

impl Default for Settings {
    fn default() -> Self {
        let cache = voltier_cache::Settings::default();
        Self {
            mode: cache.mode,
            policy: PolicyKind::Lru,
            line_bytes: LineSize::DEFAULT.bytes() as u32,
            admission: cache.admission,
            seq_cutoff_bytes: cache.seq_cutoff_bytes,
            dirty_high_percent: cache.dirty_high_percent,
            dirty_low_percent: cache.dirty_low_percent,
            congested_us: cache.congested_us,
            ordered: cache.ordered,
            deadline_s: usual_deadline_s(),
        }
    }
}

impl Settings {
    /// Applies one `KEY=VALUE` of `voltier set`.
    ///
    /// # Errors
    /// A usage error that names the nearest known key, or the values the key takes.
    pub fn apply(&mut self, key: &str, value: &str) -> ControlResult<()> {
        match key {
            "mode" => self.mode = parse_mode(value)?,
            "policy" => self.policy = parse_policy(value)?,
            "admission" => {
                self.admission = value.parse().map_err(|error| {
                    ControlError::usage(format!("admission=`{}`: {error}", value.escape_default()))
                })?;
            }
            "ordered" => self.ordered = parse_switch(key, value)?,
            "seq_cutoff" => self.seq_cutoff_bytes = parse_cutoff(value)?,
            "dirty_high" => self.dirty_high_percent = parse_percent(key, value)?,
            "dirty_low" => self.dirty_low_percent = parse_percent(key, value)?,
            "congested" => self.congested_us = parse_congested(value)?,
            "deadline" => self.deadline_s = parse_deadline_s(value)?,
            "block_size" => {
                return Err(ControlError::usage(
                    "block_size is fixed when a cache is made; \
                     detach the cache and attach it again with -b SIZE",
                ));
            }
            ORIGIN_KEY | SSD_KEY => {
                return Err(ControlError::usage(format!(
                    "{key}=DEV names another drive and goes alone; give other settings in a command of their own"
                )));
            }
            _ => {
                return Err(ControlError::usage(format!(
                    "unknown key `{}`; {}",
                    key.escape_default(),
                    suggest::hint(key, &KEYS)
                )));
            }
        }
        Ok(())
    }

    /// Checks what no single value shows.
    ///
    /// # Errors
    /// A usage error when the values make no sense together.
    pub fn check(&self) -> ControlResult<()> {
        self.for_cache().check().map_err(ControlError::usage)
    }

    /// The part that a cache can change while it serves.
    pub fn for_cache(&self) -> voltier_cache::Settings {
        voltier_cache::Settings {
            mode: self.mode,
            admission: self.admission,
            seq_cutoff_bytes: self.seq_cutoff_bytes,
            dirty_high_percent: self.dirty_high_percent,
            dirty_low_percent: self.dirty_low_percent,
            congested_us: self.congested_us,
            ordered: self.ordered,
            deadline_ns: deadline_ns(self.deadline_s),
        }
    }

    /// The part that is fixed when a cache is made.
    ///
    /// # Errors
    /// When the line size is none.
    pub fn for_format(&self, uuid: [u8; 16]) -> ControlResult<FormatOptions> {
        let line_size = LineSize::new(self.line_bytes.into()).map_err(ControlError::usage)?;
        Ok(FormatOptions { line_size, policy: self.policy, uuid })
    }

    /// The sequential cut-off as `set` takes it.
    pub fn seq_cutoff_text(&self) -> String {
        match self.seq_cutoff_bytes {
            0 => "off".to_owned(),
            bytes => exact_size(bytes),
        }
    }

    /// The wait that counts as congestion, as `set` takes it.
    pub fn congested_text(&self) -> String {
        match self.congested_us {
            0 => "off".to_owned(),
            us => wait_text(us.into()),
        }
    }

    /// The time after which a drive counts as silent, as `set` takes it.
    pub fn deadline_text(&self) -> String {
        match self.deadline_s {
            0 => "off".to_owned(),
            seconds => seconds_text(seconds),
        }
    }
}

/// Parses the line size of `-b`: a plain number of bytes or a size with a unit.
///
/// # Errors
/// A usage error that lists the sizes there are.
pub fn parse_line_bytes(text: &str) -> ControlResult<u32> {
    let bytes = parse_size(text)?;
    LINE_BYTES.into_iter().find(|line| u64::from(*line) == bytes).ok_or_else(|| {
        ControlError::usage(format!("`{text}` is not a line size; use {}", list(&LINE_BYTES)))
    })
}

fn list(values: &[u32]) -> String {
    values.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

fn parse_switch(key: &str, value: &str) -> ControlResult<bool> {
    match value {
        "on" | "yes" | "true" | "1" => Ok(true),
        "off" | "no" | "false" | "0" => Ok(false),
        _ => {
            Err(ControlError::usage(format!("{key}=`{}`: write on or off", value.escape_default())))
        }
    }
}

fn parse_cutoff(value: &str) -> ControlResult<u64> {
    match value {
        "off" | "none" => Ok(0),
        size => parse_size(size).map_err(|_| {
            ControlError::usage(format!("seq_cutoff=`{value}`: write a size such as 1M, or off"))
        }),
    }
}

fn parse_congested(value: &str) -> ControlResult<u32> {
    match value {
        "off" | "none" => Ok(0),
        time => parse_wait_us(time, CONGESTED_US_MAX).map(|us| us as u32).ok_or_else(|| {
            let shown = time.escape_default();
            ControlError::usage(format!(
                "congested=`{shown}`: write a time from 1us to 10s, or off"
            ))
        }),
    }
}

fn parse_percent(key: &str, value: &str) -> ControlResult<u8> {
    match value.trim_end_matches('%').parse() {
        Ok(percent @ 0..=100) => Ok(percent),
        _ => Err(ControlError::usage(format!(
            "{key}=`{}`: write a percentage from 0 to 100",
            value.escape_default()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_key_is_applied() {
        let mut settings = Settings::default();
        for (key, value) in [
            ("mode", "wb"),
            ("policy", "fifo"),
            ("admission", "touches:2"),
            ("seq_cutoff", "1M"),
            ("dirty_high", "70%"),
            ("dirty_low", "20"),
            ("congested", "750us"),
            ("deadline", "90s"),
            ("ordered", "on"),
        ] {
            assert!(KEYS.contains(&key));
            settings.apply(key, value).unwrap();
        }
        assert_eq!(settings.mode, Mode::WriteBack);
        assert_eq!(settings.policy, PolicyKind::Fifo);
        assert_eq!(settings.admission, AdmissionKind::Touches(2));
        assert_eq!(settings.seq_cutoff_text(), "1M");
        assert_eq!((settings.dirty_high_percent, settings.dirty_low_percent), (70, 20));
        settings.apply("seq_cutoff", "off").unwrap();
        assert_eq!(settings.seq_cutoff_text(), "off");
        for (value, us, text) in
            [("750us", 750, "750us"), ("3000us", 3000, "3ms"), ("off", 0, "off")]
        {
            settings.apply("congested", value).unwrap();
            assert_eq!((settings.congested_us, settings.congested_text()), (us, text.to_owned()));
        }
        for (value, seconds, text) in
            [("45", 45, "45s"), ("120s", 120, "2m"), ("off", 0, "off"), ("0", 0, "off")]
        {
            settings.apply("deadline", value).unwrap();
            assert_eq!((settings.deadline_s, settings.deadline_text()), (seconds, text.to_owned()));
            assert_eq!(settings.for_cache().deadline_ns, seconds * 1_000_000_000);
        }
        for bad in ["", "-1", "32d", "soon"] {
            let error = settings.apply("deadline", bad).unwrap_err();
            assert!(error.message.contains("1s to 31d"), "{error}");
        }
        for bad in ["", "2", "0us", "11s", "10001ms", "-1ms", "fast"] {
            let error = settings.apply("congested", bad).unwrap_err();
            assert!(error.message.contains("1us to 10s"), "{error}");
        }
    }

    #[test]
    fn unknown_keys_and_values_suggest_the_nearest_known_ones() {
        let mut settings = Settings::default();
        let key = settings.apply("polcy", "lru").unwrap_err();
        assert!(key.message.contains("did you mean `policy`"), "{key}");
        let value = settings.apply("policy", "lruu").unwrap_err();
        assert!(value.message.contains("did you mean `lru`"), "{value}");
        assert!(settings.apply("block_size", "8192").unwrap_err().message.contains("attach"));
        assert_eq!(settings, Settings::default());
    }

    #[test]
    fn thresholds_the_wrong_way_round_are_refused() {
        let mut settings = Settings::default();
        settings.apply("dirty_high", "10").unwrap();
        settings.apply("dirty_low", "20").unwrap();
        assert_eq!(settings.check().unwrap_err().exit_code(), 2);
        assert!(settings.apply("dirty_high", "101").is_err());
        assert!(settings.apply("dirty_high", "-1").is_err());
    }

    #[test]
    fn the_words_of_the_command_line_are_those_of_the_cache() {
        for word in MODES {
            assert_eq!(parse_mode(word).unwrap().to_string(), word);
        }
        for kind in PolicyKind::ALL {
            assert_eq!(parse_policy(kind.name()).unwrap(), kind);
        }
        for bytes in LINE_BYTES {
            assert!(LineSize::new(bytes.into()).is_ok());
        }
    }

    #[test]
    fn line_sizes_are_the_six_of_the_contract() {
        assert_eq!(parse_line_bytes("4096").unwrap(), 4096);
        assert_eq!(parse_line_bytes("64K").unwrap(), 65536);
        for bad in ["1024", "5000", "128K", "x"] {
            assert_eq!(parse_line_bytes(bad).unwrap_err().exit_code(), 2);
        }
    }

    #[test]
    fn settings_come_back_from_json_unchanged() {
        let settings = Settings { seq_cutoff_bytes: 1 << 20, ..Settings::default() };
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), settings);
    }
}
