//! Choices about an array while the array serves (`voltier array set`). The choices are the paces of
//! background tasks, what members may do wrong, and how small writes wait for each other. One more says
//! whose spares the array takes.

use serde::{Deserialize, Serialize};
use voltier_array::{HealthPolicy, MergeMode, MergePolicy, Pace, Priority, SlowAction};

use crate::error::{ControlError, ControlResult};
use crate::keys::{
    self, COUNT, DEADLINE_S, EVERY_S, Key, MERGE_US, MERGE_US_MAX, POOL, SIZE, WINDOW_S,
    WINDOW_S_MAX, one_of,
};
use crate::name::PoolName;
use crate::words::as_word;

/// Keys of `voltier array set`.
pub const ARRAY_KEYS: &[Key<ArraySettings>] = keys::keys! { ArraySettings:
    "rebuild_priority", one_of::<Priority>(), rebuild.priority, "share of a rebuild beside requests";
    "rebuild_floor", SIZE, rebuild.floor_bytes_per_second, "least bytes of a member per second";
    "scrub_priority", one_of::<Priority>(), scrub.priority, "share of a scrub beside requests";
    "scrub_floor", SIZE, scrub.floor_bytes_per_second, "least bytes of a member per second";
    "scrub_every", EVERY_S, scrub_every_s, "how long after a scrub the next one begins by itself";
    "max_errors", COUNT, health.max_errors, "more recent errors fail a member; 0 never";
    "error_window", WINDOW_S, health.error_window_s, "time after which an error counts half";
    "slow_factor", COUNT, health.slow_factor, "so many times as long is slow; 0 never";
    "slow_window", WINDOW_S, health.slow_window_s, "how long that must last";
    "slow_action", one_of::<SlowAction>(), health.slow_action, "what is done about a slow member";
    "deadline", DEADLINE_S, health.deadline_s, "longest time without an answer of a member";
    "merge", one_of::<MergeMode>(), merge.mode, "small writes that wait to fill a stripe";
    "merge_wait", MERGE_US, merge.wait_us, "how long for the next one, 1us to 100ms";
    "merge_max", MERGE_US, merge.max_us, "how long in all, 1us to 100ms";
    "spare_pool", POOL, spare_pool, "the pool whose spares the array may take";
};

/// The keys that make sense for levels with parity alone.
pub(crate) const MERGE_KEYS: [&str; 3] = ["merge", "merge_wait", "merge_max"];

const SECOND_NS: u64 = 1_000_000_000;

/// One more key of `voltier array set`, which is no setting: where the journal is.
pub const JOURNAL_KEY: &str = "journal";

/// How fast a background task goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskPace {
    /// The task's share beside requests: `idle`, `low`, `normal`, `high`.
    #[serde(with = "as_word")]
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
    #[serde(with = "as_word")]
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
    #[serde(with = "as_word")]
    pub mode: MergeMode,
    /// How long for the next one, in microseconds.
    pub wait_us: u64,
    /// How long in all, in microseconds.
    pub max_us: u64,
}

/// All choices of one array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// How long after a scrub the next one begins by itself, in seconds; 0 for never.
    #[serde(default = "usual_scrub_every_s", skip_serializing_if = "is_usual_scrub_every_s")]
    pub scrub_every_s: u64,
}

/// Once a month, as other systems do.
fn usual_scrub_every_s() -> u64 {
    30 * 86_400
}

/// Programs of before there was a timer take settings without one.
fn is_usual_scrub_every_s(seconds: &u64) -> bool {
    *seconds == usual_scrub_every_s()
}

impl Default for ArraySettings {
    fn default() -> Self {
        Self {
            rebuild: TaskPace::default(),
            scrub: TaskPace::default(),
            health: HealthSettings::default(),
            merge: MergeSettings::default(),
            spare_pool: None,
            scrub_every_s: usual_scrub_every_s(),
        }
    }
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
        let known = keys::find(ARRAY_KEYS, key).ok_or_else(|| {
            let (shown, hint) = (key.escape_default(), keys::hint(ARRAY_KEYS, &[JOURNAL_KEY], key));
            ControlError::usage(format!("`{shown}` is not a key of an array; {hint}"))
        })?;
        (known.apply)(self, value)
    }
}

/// A deadline as the data path takes it.
pub(crate) fn deadline_ns(seconds: u64) -> u64 {
    seconds.min(WINDOW_S_MAX) * SECOND_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_applied_and_comes_back_from_json() {
        let mut settings = ArraySettings::default();
        for key in ARRAY_KEYS {
            let value = match key.name {
                "rebuild_priority" | "scrub_priority" => "high",
                "rebuild_floor" | "scrub_floor" => "64M",
                "error_window" | "slow_window" | "deadline" | "scrub_every" => "2h",
                "slow_action" => "avoid",
                "merge" => "always",
                "merge_wait" | "merge_max" => "3ms",
                "spare_pool" => "p",
                _ => "7",
            };
            settings.apply(key.name, value).unwrap();
        }
        let mut again = ArraySettings::default();
        for key in ARRAY_KEYS {
            again.apply(key.name, &(key.text)(&settings)).unwrap();
        }
        assert_eq!(again, settings, "what is shown is taken");
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
            ("scrub_every", "59m"),
            ("scrub_every", "367d"),
            ("scrub_every", "never"),
        ] {
            assert_eq!(settings.apply(key, value).unwrap_err().exit_code(), 2, "{key}={value}");
        }
        settings.apply("spare_pool", "none").unwrap();
        for (value, seconds) in
            [("off", 0), ("0", 0), ("1h", 3600), ("366d", 31_622_400), ("30d", 2_592_000)]
        {
            settings.apply("scrub_every", value).unwrap();
            assert_eq!(settings.scrub_every_s, seconds);
        }
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
