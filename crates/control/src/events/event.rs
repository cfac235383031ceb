//! One event, and the table of what can happen that is no condition of `voltier health`.

use serde::{Deserialize, Serialize};

use crate::date::Date;
use crate::health::{Check, Part};
use crate::health_state::HealthState;

/// How bad an event is; later ones are worse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// To be known, also that a condition is over.
    #[default]
    Info,
    /// Somebody should look.
    Warning,
    /// Something that protects data or makes them fast is missing.
    Degraded,
    /// Something does not serve, or data are lost.
    Failed,
}

impl Severity {
    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }
}

impl From<HealthState> for Severity {
    fn from(state: HealthState) -> Self {
        match state {
            HealthState::Ok => Self::Info,
            HealthState::Warning => Self::Warning,
            HealthState::Degraded => Self::Degraded,
            HealthState::Failed => Self::Failed,
        }
    }
}

/// What became of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// It begins.
    Begins,
    /// It goes on, and its reason reads otherwise.
    Changes,
    /// It is over.
    Ends,
}

impl Change {
    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Begins => "begins",
            Self::Changes => "changes",
            Self::Ends => "ends",
        }
    }
}

/// Something that happens and is no condition, as the guide lists it.
#[derive(Debug, PartialEq, Eq)]
pub struct EventKind {
    /// Its word, in JSON.
    pub word: &'static str,
    /// What it is said of.
    pub part: Part,
    /// How bad it is.
    pub severity: Severity,
    /// What it means, for the guide.
    pub meaning: &'static str,
}

macro_rules! events {
    ($($event:ident: $part:ident $severity:ident $word:literal, $meaning:literal;)+) => {
        $(#[doc = $meaning]
        pub const $event: EventKind = EventKind {
            word: $word,
            part: Part::$part,
            severity: Severity::$severity,
            meaning: $meaning,
        };)+

        /// Everything that happens and is no condition.
        pub const EVENTS: &[EventKind] = &[$($event),+];
    };
}

events! {
    DAEMON_STARTED: Daemon Info "daemon_started",
        "the daemon has begun to serve";
    DAEMON_CRASHED: Daemon Warning "daemon_crashed",
        "the daemon before did not come to rest: it crashed, was killed, or the machine lost power";
    DAEMON_STOPPED: Daemon Info "daemon_stopped",
        "the daemon has come to rest";
    UPGRADED: Daemon Info "upgraded",
        "another program has taken over what the daemon serves (`voltier upgrade`)";
    TAKEN_OVER: Volume Warning "taken_over",
        "the image of the volume was taken from another host (`voltier takeover`); the text says what is lost with \
         that";
    SPARE_USED: Array Warning "spare_used",
        "a spare of the array or of its pool takes the place of a member; the text says how many are left";
    REBUILD_BEGUN: Array Info "rebuild_begun",
        "a drive is being filled as a member";
    REBUILD_ENDED: Array Info "rebuild_ended",
        "a member is complete and in service";
    SCRUB_BEGUN: Array Info "scrub_begun",
        "a scrub has begun";
    SCRUB_ENDED: Array Info "scrub_ended",
        "a scrub has ended; the text says what it found, and the severity is `warning` if it found something";
    ARRAY_NOTICE: Array Warning "array_notice",
        "the array did something about a member, or says why it did";
    LEFT_OUT: Daemon Warning "left_out",
        "for a hook alone: more events than the hook takes in a minute; the text says how many, and the severity is \
         that of the worst";
    TEST: Daemon Info "test",
        "for a hook alone: `voltier events --test`";
}

/// Longest text of an event, in bytes.
const TEXT_BYTES_MAX: usize = 1500;

/// Something that happened. The fields are stable, and later versions only add some.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its number: later events have higher ones, whatever the clock says.
    pub seq: u64,
    /// When it was noticed.
    pub time: Date,
    /// Its kind: the word of a condition, or of [`EVENTS`].
    pub kind: String,
    /// What became of the condition; absent when the event is none of a condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub part: Part,
    /// Its name: of a drive the path, of an export the address.
    pub name: String,
    /// The volume or array that it belongs to, as `volume NAME`; empty when it stands for itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub of: String,
    /// What happened, in words.
    pub text: String,
    /// What to do next; empty when there is nothing to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub next: String,
}

impl Event {
    /// An event that is none of a condition.
    pub(crate) fn of(kind: &EventKind, name: &str, text: impl Into<String>) -> Self {
        Self {
            kind: kind.word.to_owned(),
            severity: kind.severity,
            part: kind.part,
            name: name.to_owned(),
            text: bounded(text.into()),
            ..Self::default()
        }
    }

    /// An event about a condition.
    pub(crate) fn of_condition(check: &Check, change: Change) -> Self {
        let is_over = change == Change::Ends;
        Self {
            kind: check.condition.clone(),
            change: Some(change),
            severity: if is_over { Severity::Info } else { check.state.into() },
            part: check.part,
            name: check.name.clone(),
            of: check.of.clone(),
            text: bounded(match is_over {
                true => format!("over: {}", check.reason),
                false => check.reason.clone(),
            }),
            next: if is_over { String::new() } else { bounded(check.next.clone()) },
            ..Self::default()
        }
    }

    /// About the length of its JSON, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        200 + self.name.len() + self.of.len() + self.text.len() + self.next.len()
    }

    /// What it is about, in words.
    pub fn what(&self) -> String {
        match self.of.is_empty() {
            true => format!("{} {}", self.part.word(), self.name),
            false => format!("{} {} of {}", self.part.word(), self.name, self.of),
        }
    }

    /// Whether the event is about a volume or array of this name, or about something that belongs to it.
    pub fn is_about(&self, name: &str) -> bool {
        let owns = matches!(self.part, Part::Volume | Part::Array | Part::Pool);
        owns && self.name == name || self.of.split_once(' ').is_some_and(|(_, of)| of == name)
    }
}

fn bounded(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::health::CONDITIONS;

    #[test]
    fn each_kind_has_a_word_of_its_own_which_no_condition_has() {
        let words = EVENTS.iter().map(|it| it.word).chain(CONDITIONS.iter().map(|it| it.word));
        let words: BTreeSet<&str> = words.collect();
        assert_eq!(words.len(), EVENTS.len() + CONDITIONS.len());
        assert!(EVENTS.iter().all(|it| !it.meaning.is_empty()));
    }

    #[test]
    fn a_long_text_is_cut_at_a_letter() {
        let event = Event::of(&TEST, "v", "ä".repeat(TEXT_BYTES_MAX));
        assert!(event.text.len() <= TEXT_BYTES_MAX + 3 && event.text.ends_with("ä…"));
    }

    #[test]
    fn an_event_is_about_its_volume_also_when_a_drive_of_it_is_meant() {
        let drive = Event { of: "array tank".into(), part: Part::Drive, ..Event::default() };
        assert!(drive.is_about("tank") && !drive.is_about("tan") && !drive.is_about("array"));
        let array = Event::of(&SCRUB_BEGUN, "tank", "");
        assert!(array.is_about("tank") && !array.is_about("other"));
    }
}
