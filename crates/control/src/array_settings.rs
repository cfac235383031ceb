//! What can be chosen about an array while it serves (`voltier array set`): the paces of its
//! background tasks.

use serde::{Deserialize, Serialize};
use voltier_array::{Pace, Priority};

use crate::error::{ControlError, ControlResult};
use crate::size::parse_size;
use crate::suggest;

/// Keys of `voltier array set`, in the order they are documented.
pub const ARRAY_KEYS: [&str; 4] =
    ["rebuild_priority", "rebuild_floor", "scrub_priority", "scrub_floor"];

/// One more key of `voltier array set`, which is no setting: where the journal is.
pub const JOURNAL_KEY: &str = "journal";

/// How fast a background task goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskPace {
    /// What it takes beside requests: `idle`, `low`, `normal`, `high`.
    #[serde(with = "priority_word")]
    pub priority: Priority,
    /// What it does in any case, in bytes of a member per second; 0 for nothing.
    pub floor_bytes_per_second: u64,
}

/// All choices of one array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArraySettings {
    /// The rebuild.
    pub rebuild: TaskPace,
    /// The scrub.
    pub scrub: TaskPace,
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
            "rebuild_priority" => self.rebuild.priority = parse_priority(value)?,
            "scrub_priority" => self.scrub.priority = parse_priority(value)?,
            "rebuild_floor" => self.rebuild.floor_bytes_per_second = parse_size(value)?,
            "scrub_floor" => self.scrub.floor_bytes_per_second = parse_size(value)?,
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

fn parse_priority(word: &str) -> ControlResult<Priority> {
    Priority::ALL.into_iter().find(|known| known.name() == word).ok_or_else(|| {
        let hint = suggest::hint(word, &Priority::ALL.map(Priority::name));
        ControlError::usage(format!("`{}` is not a priority; {hint}", word.escape_default()))
    })
}

/// JSON by the word of the command line.
mod priority_word {
    use super::{Priority, parse_priority};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &Priority, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(value.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Priority, D::Error> {
        parse_priority(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_applied_and_comes_back_from_json() {
        let mut settings = ArraySettings::default();
        for key in ARRAY_KEYS {
            let value = if key.ends_with("priority") { "high" } else { "64M" };
            settings.apply(key, value).unwrap();
        }
        assert_eq!(settings.rebuild, settings.scrub);
        assert_eq!(settings.scrub.floor_bytes_per_second, 64 << 20);
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
        assert_eq!(settings, ArraySettings::default());
    }
}
