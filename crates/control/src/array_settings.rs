//! Choices about an array while the array serves (`voltier array set`). The choices are the paces of
//! background tasks, what members may do wrong, and how small writes wait for each other. One more says
//! whose spares the array takes.

use serde::{Deserialize, Serialize};
use voltier_array::{HealthPolicy, MergeMode, MergePolicy, Pace, Priority, SlowAction};

use crate::error::{ControlError, ControlResult};
use crate::name::PoolName;
use crate::suggest;
use crate::units::{parse_duration, parse_size, parse_wait_us};

/// Keys of `voltier array set`, in the order they are documented.
pub const ARRAY_KEYS: [&str; 14] = [
    "rebuild_priority",
    "rebuild_floor",
    "scrub_priority",
    "scrub_floor",
    "max_errors",
    "error_window",
    "slow_factor",
    "slow_window",
    "slow_action",
    "deadline",
    "merge",
    "merge_wait",
    "merge_max",
    "spare_pool",
];

/// The keys that make sense for levels with parity alone.
pub(crate) const MERGE_KEYS: [&str; 3] = ["merge", "merge_wait", "merge_max"];

const SECOND_NS: u64 = 1_000_000_000;
/// Longest window, in seconds: a month.
const WINDOW_S_MAX: u64 = 31 * 86_400;
/// Longest that a small write waits, in microseconds.
const MERGE_US_MAX: u64 = 100_000;
/// The word for no pool of spares.
const NO_POOL: &str = "none";
/// The word for no deadline.
const NO_DEADLINE: &str = "off";

/// One more key of `voltier array set`, which is no setting: where the journal is.
pub const JOURNAL_KEY: &str = "journal";

/// How fast a background task goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskPace {
    /// The task's share beside requests: `idle`, `low`, `normal`, `high`.
    #[serde(with = "word")]
    pub priority: Priority,
    /// The task's least rate, in bytes of a member per second; 0 for nothing.
    pub floor_bytes_per_second: u64,
}

/// When a member has done too badly, and what is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthSettings {
    /// A member with more errors than this of late is failed, if the array can lose it; 0 for never.
    pub max_errors: u32,
    /// The time in which errors count half, in seconds.
    pub error_window_s: u64,
    /// A member that takes more than so many times as long as the others is slow; 0 for never.
    pub slow_factor: u32,
    /// For how long it must be that, in seconds.
    pub slow_window_s: u64,
    /// The action about a slow member: `show`, `avoid`, `fail`.
    #[serde(with = "word")]
    pub slow_action: SlowAction,
    /// A member that ends no request for so many seconds is given up; 0 for never.
    pub deadline_s: u64,
}

fn usual_deadline_s() -> u64 {
    HealthPolicy::default().deadline_ns / SECOND_NS
}

/// How writes of less than a stripe wait for those behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MergeSettings {
    /// The writes that wait: `off`, `adaptive`, `always`.
    #[serde(with = "word")]
    pub mode: MergeMode,
    /// How long for the next one, in microseconds.
    pub wait_us: u64,
    /// How long in all, in microseconds.
    pub max_us: u64,
}

/// All choices of one array.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArraySettings {
    /// The rebuild.
    pub rebuild: TaskPace,
    /// The scrub.
    pub scrub: TaskPace,
    /// Errors and slowness of members.
    pub health: HealthSettings,
    /// How small writes are merged.
    pub merge: MergeSettings,
    /// The pool whose spares the array may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare_pool: Option<PoolName>,
}

impl Default for HealthSettings {
    fn default() -> Self {
        let HealthPolicy { max_errors, slow_factor, slow_action, .. } = HealthPolicy::default();
        let error_window_s = HealthPolicy::default().error_window_ns / SECOND_NS;
        let slow_window_s = HealthPolicy::default().slow_window_ns / SECOND_NS;
        let deadline_s = usual_deadline_s();
        Self { max_errors, error_window_s, slow_factor, slow_window_s, slow_action, deadline_s }
    }
}

impl HealthSettings {
    /// As the data path takes it.
    pub fn for_array(self) -> HealthPolicy {
        let window_ns = |seconds: u64| seconds.clamp(1, WINDOW_S_MAX) * SECOND_NS;
        HealthPolicy {
            max_errors: self.max_errors,
            error_window_ns: window_ns(self.error_window_s),
            slow_factor: self.slow_factor,
            slow_window_ns: window_ns(self.slow_window_s),
            slow_action: self.slow_action,
            deadline_ns: deadline_ns(self.deadline_s),
        }
    }
}

impl Default for MergeSettings {
    fn default() -> Self {
        let MergePolicy { wait_ns, max_ns, .. } = MergePolicy::default();
        Self { mode: MergeMode::Adaptive, wait_us: wait_ns / 1000, max_us: max_ns / 1000 }
    }
}

impl MergeSettings {
    /// As the data path takes it.
    pub fn for_array(self) -> MergePolicy {
        let ns = |us: u64| us.clamp(1, MERGE_US_MAX) * 1000;
        MergePolicy { mode: self.mode, wait_ns: ns(self.wait_us), max_ns: ns(self.max_us) }
    }

    /// Whether no write waits.
    pub fn is_off(self) -> bool {
        self.mode == MergeMode::Off
    }
}

impl Default for TaskPace {
    fn default() -> Self {
        let Pace { priority, floor_bytes_per_second } = Pace::default();
        Self { priority, floor_bytes_per_second }
    }
}

impl TaskPace {
    /// As the data path takes it.
    pub fn for_array(self) -> Pace {
        let Self { priority, floor_bytes_per_second } = self;
        Pace { priority, floor_bytes_per_second }
    }
}

impl ArraySettings {
    /// Applies one `KEY=VALUE` of `voltier array set`.
    ///
    /// # Errors
    /// A usage error that names the nearest known key, or the values the key takes.
    pub fn apply(&mut self, key: &str, value: &str) -> ControlResult<()> {
        match key {
            "rebuild_priority" => self.rebuild.priority = parse_word(value)?,
            "scrub_priority" => self.scrub.priority = parse_word(value)?,
            "rebuild_floor" => self.rebuild.floor_bytes_per_second = parse_size(value)?,
            "scrub_floor" => self.scrub.floor_bytes_per_second = parse_size(value)?,
            "max_errors" => self.health.max_errors = parse_count(value, "max_errors=20")?,
            "error_window" => self.health.error_window_s = parse_window_s(value)?,
            "slow_factor" => self.health.slow_factor = parse_count(value, "slow_factor=5")?,
            "slow_window" => self.health.slow_window_s = parse_window_s(value)?,
            "slow_action" => self.health.slow_action = parse_word(value)?,
            "deadline" => self.health.deadline_s = parse_deadline_s(value)?,
            "merge" => self.merge.mode = parse_word(value)?,
            "merge_wait" => self.merge.wait_us = parse_merge_us(value)?,
            "merge_max" => self.merge.max_us = parse_merge_us(value)?,
            "spare_pool" if value == NO_POOL => self.spare_pool = None,
            "spare_pool" => self.spare_pool = Some(value.parse()?),
            _ => {
                return Err(ControlError::usage(format!(
                    "`{}` is not a key of an array; {}",
                    key.escape_default(),
                    suggest::hint(key, &[&ARRAY_KEYS[..], &[JOURNAL_KEY]].concat())
                )));
            }
        }
        Ok(())
    }
}

/// A choice that the command line makes by a word.
trait Word: Copy + 'static {
    const ALL: &'static [Self];
    /// The noun with an article.
    const WHAT: &'static str;
    fn name(self) -> &'static str;
}

impl Word for Priority {
    const ALL: &'static [Self] = &Priority::ALL;
    const WHAT: &'static str = "a priority";
    fn name(self) -> &'static str {
        Priority::name(self)
    }
}

impl Word for SlowAction {
    const ALL: &'static [Self] = &SlowAction::ALL;
    const WHAT: &'static str = "an action";
    fn name(self) -> &'static str {
        SlowAction::name(self)
    }
}

impl Word for MergeMode {
    const ALL: &'static [Self] = &MergeMode::ALL;
    const WHAT: &'static str = "a way to merge";
    fn name(self) -> &'static str {
        MergeMode::name(self)
    }
}

fn parse_word<T: Word>(word: &str) -> ControlResult<T> {
    T::ALL.iter().copied().find(|known| known.name() == word).ok_or_else(|| {
        let names: Vec<&str> = T::ALL.iter().map(|known| known.name()).collect();
        let (shown, hint) = (word.escape_default(), suggest::hint(word, &names));
        ControlError::usage(format!("`{shown}` is not {}; {hint}", T::WHAT))
    })
}

fn parse_count(text: &str, example: &str) -> ControlResult<u32> {
    text.parse().map_err(|_| {
        let shown = text.escape_default();
        ControlError::usage(format!("`{shown}` is not a number; write for example {example}"))
    })
}

/// Seconds, from a number with `s`, `m`, `h` or `d` behind it.
fn parse_window_s(text: &str) -> ControlResult<u64> {
    let wrong = || {
        let shown = text.escape_default();
        ControlError::usage(format!(
            "`{shown}` is not a window; write 1s to 31d, with s, m, h or d: 90s, 1h"
        ))
    };
    let units = [("", 1), ("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
    parse_duration(text, &units, WINDOW_S_MAX).ok_or_else(wrong)
}

/// A deadline as the data path takes it.
pub(crate) fn deadline_ns(seconds: u64) -> u64 {
    seconds.min(WINDOW_S_MAX) * SECOND_NS
}

/// Seconds as a window has them; `off` and 0 for none.
pub(crate) fn parse_deadline_s(text: &str) -> ControlResult<u64> {
    if matches!(text, NO_DEADLINE | "0") {
        return Ok(0);
    }
    parse_window_s(text).map_err(|_| {
        let shown = text.escape_default();
        ControlError::usage(format!(
            "`{shown}` is not a deadline; write 1s to 31d, with s, m, h or d: 75s; or off"
        ))
    })
}

fn parse_merge_us(text: &str) -> ControlResult<u64> {
    parse_wait_us(text, MERGE_US_MAX).ok_or_else(|| {
        let shown = text.escape_default();
        ControlError::usage(format!("`{shown}` is not a time to wait; write 1us to 100ms: 50us"))
    })
}

/// JSON by the word of the command line.
mod word {
    use super::{Word, parse_word};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<T: Word, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(value.name())
    }

    pub(super) fn deserialize<'de, T: Word, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        parse_word(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_applied_and_comes_back_from_json() {
        let mut settings = ArraySettings::default();
        for key in ARRAY_KEYS {
            let value = match key {
                "rebuild_priority" | "scrub_priority" => "high",
                "rebuild_floor" | "scrub_floor" => "64M",
                "error_window" | "slow_window" | "deadline" => "2h",
                "slow_action" => "avoid",
                "merge" => "always",
                "merge_wait" | "merge_max" => "3ms",
                "spare_pool" => "p",
                _ => "7",
            };
            settings.apply(key, value).unwrap();
        }
        assert_eq!(settings.rebuild, settings.scrub);
        assert_eq!(settings.scrub.floor_bytes_per_second, 64 << 20);
        let HealthPolicy { max_errors, error_window_ns, slow_factor, .. } =
            settings.health.for_array();
        assert_eq!((max_errors, error_window_ns, slow_factor), (7, 7200 * SECOND_NS, 7));
        let MergePolicy { mode, wait_ns, max_ns } = settings.merge.for_array();
        assert_eq!((mode, wait_ns, max_ns), (MergeMode::Always, 3_000_000, 3_000_000));
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<ArraySettings>(&json).unwrap(), settings);
    }

    #[test]
    fn unknown_keys_and_values_suggest_the_nearest_known_ones_and_change_nothing() {
        let mut settings = ArraySettings::default();
        let key = settings.apply("rebuild_priorty", "high").unwrap_err();
        assert!(key.message.contains("did you mean `rebuild_priority`"), "{key}");
        let value = settings.apply("scrub_priority", "hgih").unwrap_err();
        assert!(value.message.contains("did you mean `high`"), "{value}");
        assert_eq!(settings.apply("scrub_floor", "fast").unwrap_err().exit_code(), 2);
        for (key, value) in [
            ("max_errors", "-1"),
            ("max_errors", "many"),
            ("error_window", "0"),
            ("error_window", "1y"),
            ("slow_window", "32d"),
            ("slow_window", "99999999999999999999d"),
            ("slow_factor", "1.5"),
            ("slow_action", "kill"),
            ("deadline", "never"),
            ("deadline", "0s"),
            ("deadline", "32d"),
            ("merge", "on"),
            ("merge_wait", "100"),
            ("merge_wait", "0us"),
            ("merge_max", "101ms"),
            ("merge_max", "18446744073709551615ms"),
            ("spare_pool", "a/b"),
        ] {
            assert_eq!(settings.apply(key, value).unwrap_err().exit_code(), 2, "{key}={value}");
        }
        settings.apply("spare_pool", "none").unwrap();
        for (value, deadline_ns) in [("off", 0), ("0", 0), ("90", 90), ("75s", 75)] {
            settings.apply("deadline", value).unwrap();
            assert_eq!(settings.health.for_array().deadline_ns, deadline_ns * SECOND_NS);
        }
        assert_eq!(settings, ArraySettings::default());
    }

    #[test]
    fn settings_that_lack_one_are_refused() {
        let whole = serde_json::to_value(ArraySettings::default()).unwrap();
        for lacking in ["rebuild", "scrub", "health", "merge"] {
            let mut settings = whole.clone();
            settings.as_object_mut().unwrap().remove(lacking).unwrap();
            let refused = serde_json::from_value::<ArraySettings>(settings).unwrap_err();
            assert!(refused.to_string().contains(lacking), "{refused}");
        }
    }
}
