//! Choices about a cache: at creation, and most of it while it serves (`voltier set`).

use serde::{Deserialize, Serialize};
use voltier_cache::admission::AdmissionKind;
use voltier_cache::policy::PolicyKind;
use voltier_cache::{FormatOptions, LineSize, Mode};

use crate::array_settings::deadline_ns;
use crate::error::{ControlError, ControlResult};
use crate::keys::{
    self, ADMISSION, AGE_S, CONGESTED_US, DEADLINE_S, Key, PERCENT, RATE_OR_OFF, SIZE_OR_OFF,
    SWITCH, UNSHIPPED, one_of,
};
use crate::max_unshipped::MaxUnshipped;
use crate::units::parse_size;
use crate::words::as_word;

/// The key that gives a volume which is not served another drive as its origin.
pub const ORIGIN_KEY: &str = "hdd";

/// The key that gives a volume which is not served another drive as its SSD.
pub const SSD_KEY: &str = "ssd";

/// Keys of `voltier set`.
pub const KEYS: &[Key<Settings>] = keys::keys! { Settings:
    "mode", one_of::<Mode>(), mode, "how requests use the SSD";
    "policy", one_of::<PolicyKind>(), policy, "which lines leave a full cache";
    "admission", ADMISSION, admission, "which lines are cached after a miss";
    "seq_cutoff", SIZE_OR_OFF, seq_cutoff_bytes, "longer sequential streams bypass the cache";
    "dirty_high", PERCENT, dirty_high_percent, "destaging is fastest from this share on";
    "dirty_low", PERCENT, dirty_low_percent, "destaging pauses up to this share";
    "dirty_age", AGE_S, dirty_age_s, "nothing stays dirty for much longer";
    "destage_rate", RATE_OR_OFF, destage_rate, "most bytes a second that are written back";
    "congested", CONGESTED_US, congested_us, "after longer waits an idle disk serves hits";
    "deadline", DEADLINE_S, deadline_s, "longest time without an answer of a drive";
    "ordered", SWITCH, ordered, "writes reach the disk in order of flushes";
    "max_unshipped", UNSHIPPED, max_unshipped, "writes wait before more of them would go with the SSD";
    "ephemeral_ssd", SWITCH, ephemeral_ssd, "an SSD that is empty at a start gets a new cache";
};

/// Line sizes a cache can have, in bytes.
pub const LINE_BYTES: [u32; 6] = [2048, 4096, 8192, 16384, 32768, 65536];

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
    /// Lines that have been dirty for so many seconds are destaged, whatever the shares; 0 for no such bound.
    #[serde(default = "usual_dirty_age_s", skip_serializing_if = "is_usual_dirty_age_s")]
    pub dirty_age_s: u64,
    /// At most so many bytes a second are written back; 0 for no limit.
    #[serde(default, skip_serializing_if = "is_no_limit")]
    pub destage_rate: u64,
    /// From this average wait for the SSD on, in microseconds, a resting origin serves clean hits; 0
    /// never.
    pub congested_us: u32,
    /// Whether the origin always holds a prefix of the writes, cut at a flush.
    pub ordered: bool,
    /// What a loss of the SSD may take at most; writes wait rather than exceed it.
    #[serde(default, skip_serializing_if = "MaxUnshipped::is_off")]
    pub max_unshipped: MaxUnshipped,
    /// From so many seconds without an answer on, the SSD or the origin counts as silent; 0 never.
    pub deadline_s: u64,
    /// Whether the SSD may be empty, another one or missing at any start: its cache is made anew then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ephemeral_ssd: bool,
}

fn usual_dirty_age_s() -> u64 {
    voltier_cache::Settings::default().dirty_age_ns / 1_000_000_000
}

/// Programs of before there was an age take settings without one.
fn is_usual_dirty_age_s(seconds: &u64) -> bool {
    *seconds == usual_dirty_age_s()
}

/// Programs of before there was a limit take settings without one.
fn is_no_limit(rate: &u64) -> bool {
    *rate == 0
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
            dirty_age_s: usual_dirty_age_s(),
            destage_rate: cache.destage_rate,
            congested_us: cache.congested_us,
            ordered: cache.ordered,
            max_unshipped: MaxUnshipped::default(),
            deadline_s: usual_deadline_s(),
            ephemeral_ssd: false,
        }
    }
}

impl Settings {
    /// Applies one `KEY=VALUE` of `voltier set`.
    ///
    /// # Errors
    /// A usage error that names the nearest known key, or the values the key takes.
    pub fn apply(&mut self, key: &str, value: &str) -> ControlResult<()> {
        if let Some(known) = keys::find(KEYS, key) {
            return (known.apply)(self, value);
        }
        Err(ControlError::usage(match key {
            "block_size" => "block_size is fixed when a cache is made; \
                detach the cache and attach it again with -b SIZE"
                .to_owned(),
            ORIGIN_KEY | SSD_KEY => format!(
                "{key}=DEV names another drive and goes alone; give other settings in a command of their own"
            ),
            _ => format!("unknown key `{}`; {}", key.escape_default(), keys::hint(KEYS, &[], key)),
        }))
    }

    /// Checks what no single value shows.
    ///
    /// # Errors
    /// A usage error when the values make no sense together.
    pub fn check(&self) -> ControlResult<()> {
        if self.ephemeral_ssd && self.mode.writes_back() {
            return Err(ControlError::usage(format!(
                "mode={} keeps the only copy of what was written last on the SSD, and an ephemeral SSD may come \
                 back empty; use mode wt or ro, or an SSD that lasts and ephemeral_ssd=off",
                self.mode
            )));
        }
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
            dirty_age_ns: self.dirty_age_s.saturating_mul(1_000_000_000),
            destage_rate: self.destage_rate,
            congested_us: self.congested_us,
            ordered: self.ordered,
            max_unshipped: voltier_cache::MaxUnshipped {
                age_ns: self.max_unshipped.age_s.saturating_mul(1_000_000_000),
                bytes: self.max_unshipped.bytes,
            },
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::find;

    fn text(settings: &Settings, key: &str) -> String {
        (find(KEYS, key).unwrap().text)(settings)
    }

    #[test]
    fn every_key_is_applied_and_what_is_shown_is_taken() {
        let mut settings = Settings::default();
        for (key, value) in [
            ("mode", "wb"),
            ("policy", "fifo"),
            ("admission", "touches:2"),
            ("seq_cutoff", "1M"),
            ("dirty_high", "70%"),
            ("dirty_low", "30"),
            ("dirty_age", "90s"),
            ("destage_rate", "20M"),
            ("congested", "750us"),
            ("deadline", "90s"),
            ("ordered", "on"),
            ("ephemeral_ssd", "on"),
            ("max_unshipped", "5s,64M"),
        ] {
            settings.apply(key, value).unwrap();
        }
        let mut again = Settings::default();
        for key in KEYS {
            assert_ne!(text(&again, key.name), text(&settings, key.name), "one is left out above");
            again.apply(key.name, &text(&settings, key.name)).unwrap();
        }
        assert_eq!(again, settings);
        assert_eq!(settings.mode, Mode::WriteBack);
        assert_eq!(settings.policy, PolicyKind::Fifo);
        assert_eq!(settings.admission, AdmissionKind::Touches(2));
        assert_eq!(text(&settings, "seq_cutoff"), "1M");
        assert_eq!((settings.dirty_high_percent, settings.dirty_low_percent), (70, 30));
        settings.apply("seq_cutoff", "off").unwrap();
        assert_eq!(text(&settings, "seq_cutoff"), "off");
        for (value, us, shown) in
            [("750us", 750, "750us"), ("3000us", 3000, "3ms"), ("off", 0, "off")]
        {
            settings.apply("congested", value).unwrap();
            assert_eq!(
                (settings.congested_us, text(&settings, "congested")),
                (us, shown.to_owned())
            );
        }
        for (value, seconds, shown) in
            [("45", 45, "45s"), ("120s", 120, "2m"), ("off", 0, "off"), ("0", 0, "off")]
        {
            settings.apply("deadline", value).unwrap();
            assert_eq!(
                (settings.deadline_s, text(&settings, "deadline")),
                (seconds, shown.to_owned())
            );
            assert_eq!(settings.for_cache().deadline_ns, seconds * 1_000_000_000);
        }
        for (value, seconds, shown) in
            [("45", 45, "45s"), ("300s", 300, "5m"), ("off", 0, "off"), ("0", 0, "off")]
        {
            settings.apply("dirty_age", value).unwrap();
            assert_eq!(
                (settings.dirty_age_s, text(&settings, "dirty_age")),
                (seconds, shown.to_owned())
            );
            assert_eq!(settings.for_cache().dirty_age_ns, seconds * 1_000_000_000);
        }
        for (value, shown) in [("64K", "64K"), ("1G", "1G"), ("off", "off"), ("0", "off")] {
            settings.apply("destage_rate", value).unwrap();
            assert_eq!(text(&settings, "destage_rate"), shown);
        }
    }

    #[test]
    fn values_that_a_key_does_not_take_are_refused_with_what_it_takes() {
        let mut settings = Settings::default();
        for bad in ["", "-1", "63K", "1", "fast"] {
            let error = settings.apply("destage_rate", bad).unwrap_err();
            assert!(error.message.contains("at least 64K"), "{error}");
        }
        for bad in ["", "-1", "32d", "old"] {
            let error = settings.apply("dirty_age", bad).unwrap_err();
            assert!(error.message.contains("dirty_age=`"), "{error}");
            assert!(error.message.contains("1s to 31d"), "{error}");
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
    fn the_bound_of_what_the_disk_lacks_is_an_age_a_size_or_both() {
        let mut settings = Settings::default();
        for (value, age_s, bytes, shown) in [
            ("5s", 5, 0, "5s"),
            ("90s", 90, 0, "90s"),
            ("1m", 60, 0, "1m"),
            ("64M", 0, 64 << 20, "64M"),
            ("5s,64M", 5, 64 << 20, "5s,64M"),
            ("1G,2m", 120, 1 << 30, "2m,1G"),
            ("4MiB", 0, 4 << 20, "4M"),
            ("off", 0, 0, "off"),
            ("0", 0, 0, "off"),
        ] {
            settings.apply("max_unshipped", value).unwrap();
            assert_eq!(settings.max_unshipped, MaxUnshipped { age_s, bytes }, "{value}");
            assert_eq!(text(&settings, "max_unshipped"), shown);
        }
        for bad in
            ["", "5", "5s,", "5s,6s", "64M,1G", "1M", "5s,64M,1G", "32d", "soon", "-5s", "0s"]
        {
            let error = settings.apply("max_unshipped", bad).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.message.contains("an age of 1s to 31d"), "{bad}: {error}");
            assert!(!error.message.contains('\n'), "{error}");
        }
        settings.apply("max_unshipped", "5s").unwrap();
        let error = settings.check().unwrap_err();
        assert!(error.message.contains("needs ordered=on"), "{error}");
        settings.apply("ordered", "on").unwrap();
        settings.check().unwrap();
        let bound = settings.for_cache().max_unshipped;
        assert_eq!((bound.age_ns, bound.bytes), (5_000_000_000, 0));
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
    fn an_ephemeral_ssd_never_has_the_only_copy() {
        for mode in Mode::ALL {
            let settings = Settings { mode, ephemeral_ssd: true, ..Settings::default() };
            assert_eq!(settings.check().is_err(), mode.writes_back(), "{mode}");
            assert!(Settings { ephemeral_ssd: false, ..settings }.check().is_ok(), "{mode}");
        }
    }

    #[test]
    fn line_sizes_are_the_six_of_the_contract() {
        assert_eq!(parse_line_bytes("4096").unwrap(), 4096);
        assert_eq!(parse_line_bytes("64K").unwrap(), 65536);
        assert!(LINE_BYTES.into_iter().all(|bytes| LineSize::new(bytes.into()).is_ok()));
        for bad in ["1024", "5000", "128K", "x"] {
            assert_eq!(parse_line_bytes(bad).unwrap_err().exit_code(), 2);
        }
    }

    #[test]
    fn settings_come_back_from_json_unchanged() {
        let settings = Settings { seq_cutoff_bytes: 1 << 20, ..Settings::default() };
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), settings);
        for later in ["dirty_age_s", "destage_rate", "ephemeral_ssd", "max_unshipped"] {
            assert!(!json.contains(later), "programs of before there was {later} take it");
        }
        let max_unshipped = MaxUnshipped { age_s: 5, bytes: 0 };
        let settings = Settings { dirty_age_s: 60, max_unshipped, ..settings };
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), settings);
    }
}
