//! The conditions that stand now, since when, and what is new of them: a pure function of one look after the other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::date::Date;
use crate::events::event::{Change, Event};
use crate::health::Check;
use crate::health_state::HealthState;

/// The shortest time between two events that a condition reads otherwise; the time doubles while only figures change.
const CHANGE_PAUSE_MS: u64 = 60_000;
/// How long a start may take before it is worth an event.
const START_PAUSE_MS: u64 = 15_000;
/// The conditions that every start of a volume or array passes.
const OF_STARTS: [&str; 2] = ["volume_starts", "array_starts"];

/// A condition of one thing. All that `health` says of it at once is one text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stood {
    /// What `health` says of it.
    #[serde(flatten)]
    pub(crate) check: Check,
    /// When it was seen first.
    pub(crate) since: Date,
    /// When the last event about it was made.
    pub(crate) told: Date,
    /// The text of that event.
    pub(crate) told_reason: String,
}

/// What a condition is known by.
type Key = (u8, String, String, String);

fn key_of(check: &Check) -> Key {
    (check.part as u8, check.name.clone(), check.of.clone(), check.condition.clone())
}

/// All conditions that stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    stand: BTreeMap<Key, Stood>,
    /// Those that every start passes, and when they were seen first.
    starts: BTreeMap<Key, Date>,
}

impl Standing {
    /// Those that stood before, from a file.
    pub(crate) fn of(stood: impl IntoIterator<Item = Stood>) -> Self {
        let stand = stood.into_iter().map(|it| (key_of(&it.check), it)).collect();
        Self { stand, starts: BTreeMap::new() }
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Stood> {
        self.stand.values()
    }

    /// Takes an event of a file up again.
    pub(crate) fn replay(&mut self, event: &Event) {
        let Some(change) = event.change else { return };
        let check = Check {
            part: event.part,
            name: event.name.clone(),
            of: event.of.clone(),
            state: HealthState::Warning,
            condition: event.kind.clone(),
            reason: event.text.clone(),
            next: event.next.clone(),
            since: None,
        };
        let key = key_of(&check);
        match change {
            Change::Ends => drop(self.stand.remove(&key)),
            Change::Begins | Change::Changes => {
                let (told, told_reason) = (event.time, check.reason.clone());
                let stood = Stood { check, since: event.time, told, told_reason };
                let known = self.stand.entry(key).or_insert_with(|| stood.clone());
                known.told = stood.told;
                known.told_reason = stood.told_reason;
            }
        }
    }

    /// Compares a look with what stood before; the events, causes first. While the daemon starts, what cannot be seen
    /// yet is not over.
    pub(crate) fn look(&mut self, checks: &[Check], now: Date, is_starting: bool) -> Vec<Event> {
        let mut seen: BTreeMap<Key, Check> = BTreeMap::new();
        for check in checks.iter().filter(|it| it.state > HealthState::Ok) {
            seen.entry(key_of(check))
                .and_modify(|it| it.reason = format!("{}; {}", it.reason, check.reason))
                .or_insert_with(|| check.clone());
        }
        self.starts.retain(|key, _| seen.contains_key(key));
        seen.retain(|key, _| {
            let is_of_start = OF_STARTS.contains(&key.3.as_str());
            let since = is_of_start.then(|| *self.starts.entry(key.clone()).or_insert(now));
            since.is_none_or(|since| now.since(since).as_millis() >= u128::from(START_PAUSE_MS))
        });
        let mut events = Vec::new();
        let over = self.stand.extract_if(.., |key, _| !is_starting && !seen.contains_key(key));
        for (_, stood) in over {
            events.push(Event::of_condition(&stood.check, Change::Ends));
        }
        for (key, check) in seen {
            let Some(stood) = self.stand.get_mut(&key) else {
                events.push(Event::of_condition(&check, Change::Begins));
                let told_reason = check.reason.clone();
                self.stand.insert(key, Stood { check, since: now, told: now, told_reason });
                continue;
            };
            stood.check = check;
            if is_worth_telling(stood, now) {
                stood.told = now;
                stood.told_reason.clone_from(&stood.check.reason);
                events.push(Event::of_condition(&stood.check, Change::Changes));
            }
        }
        // An end comes first: a member that was rebuilt may be lost again.
        events.sort_by_key(|it| (it.change != Some(Change::Ends), it.part.distance_from_cause()));
        events
    }

    /// Adds to each check since when its condition stands.
    pub(crate) fn date(&self, checks: &mut [Check]) {
        for check in checks {
            check.since = self.stand.get(&key_of(check)).map(|it| it.since);
        }
    }
}

/// Whether what is said of a condition has changed, and long enough after the last time. Figures run: the pause for
/// them is as long as the condition was old when it was told last.
fn is_worth_telling(stood: &Stood, now: Date) -> bool {
    if stood.check.reason == stood.told_reason {
        return false;
    }
    let without_figures = |text: &str| text.replace(|it: char| it.is_ascii_digit(), "");
    let is_of_figures = without_figures(&stood.check.reason) == without_figures(&stood.told_reason);
    let age_ms = stood.told.unix_ms.saturating_sub(stood.since.unix_ms);
    let pause_ms = if is_of_figures { CHANGE_PAUSE_MS.max(age_ms) } else { CHANGE_PAUSE_MS };
    // With a clock that was set back, either way.
    now.unix_ms.abs_diff(stood.told.unix_ms) >= pause_ms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Part;

    fn check(name: &str, condition: &str, reason: &str) -> Check {
        Check {
            part: Part::Drive,
            name: name.into(),
            of: "array a".into(),
            state: HealthState::Degraded,
            condition: condition.into(),
            reason: reason.into(),
            next: "wait".into(),
            since: None,
        }
    }

    fn at(seconds: u64) -> Date {
        Date { unix_ms: seconds * 1000 }
    }

    fn said(events: &[Event]) -> Vec<(Change, &str)> {
        events.iter().map(|it| (it.change.unwrap(), it.text.as_str())).collect()
    }

    #[test]
    fn a_condition_begins_once_and_ends_once_and_keeps_its_date() {
        let mut standing = Standing::default();
        let lost = check("/d", "member_lost", "lost");
        let events = standing.look(std::slice::from_ref(&lost), at(100), false);
        assert_eq!(said(&events), [(Change::Begins, "lost")]);
        assert!(standing.look(std::slice::from_ref(&lost), at(200), false).is_empty());
        let mut checks = [lost, check("/e", "", "")];
        standing.date(&mut checks);
        assert_eq!(checks.map(|it| it.since), [Some(at(100)), None]);
        let events = standing.look(&[], at(300), false);
        assert_eq!(said(&events), [(Change::Ends, "over: lost")]);
        assert!(standing.look(&[], at(400), false).is_empty());
    }

    #[test]
    fn what_cannot_be_seen_at_a_start_is_not_over_and_what_is_new_is_told() {
        let mut standing = Standing::default();
        standing.look(&[check("/d", "member_lost", "lost")], at(100), false);
        let new = check("/e", "member_lost", "lost");
        let events = standing.look(std::slice::from_ref(&new), at(200), true);
        assert_eq!(said(&events), [(Change::Begins, "lost")]);
        let events = standing.look(&[new], at(300), false);
        assert_eq!((said(&events), &*events[0].name), (vec![(Change::Ends, "over: lost")], "/d"));
    }

    #[test]
    fn a_start_is_an_event_only_when_it_takes_long() {
        let mut standing = Standing::default();
        let starts = [check("v", "volume_starts", "opening")];
        assert!(standing.look(&starts, at(100), true).is_empty());
        assert!(standing.look(&starts, at(110), true).is_empty());
        assert!(standing.look(&[], at(112), false).is_empty());
        assert!(standing.look(&starts, at(114), false).is_empty());
        assert_eq!(said(&standing.look(&starts, at(130), false)), [(Change::Begins, "opening")]);
        assert_eq!(said(&standing.look(&[], at(140), false)), [(Change::Ends, "over: opening")]);
    }

    #[test]
    fn figures_that_run_are_told_in_growing_steps_and_other_words_within_a_minute() {
        let mut standing = Standing::default();
        let mut told = Vec::new();
        for second in (0..3600).step_by(2) {
            let reason = format!("{} % done", second / 36);
            let events = standing.look(&[check("/d", "rebuilds", &reason)], at(second), false);
            told.extend(events.iter().map(|_| second));
        }
        assert_eq!(told, [0, 60, 120, 240, 480, 960, 1920]);
        let events = standing.look(&[check("/d", "rebuilds", "waits")], at(3600), false);
        assert_eq!(said(&events), [(Change::Changes, "waits")]);
        assert!(standing.look(&[check("/d", "rebuilds", "goes on")], at(3602), false).is_empty());
        assert_eq!(standing.look(&[check("/d", "rebuilds", "goes on")], at(3660), false).len(), 1);
    }

    #[test]
    fn a_clock_that_is_set_back_hides_nothing() {
        let mut standing = Standing::default();
        standing.look(&[check("/d", "c", "one")], at(10_000), false);
        let events = standing.look(&[check("/d", "c", "two")], at(50), false);
        assert_eq!(said(&events), [(Change::Changes, "two")]);
        assert_eq!(said(&standing.look(&[], at(49), false)), [(Change::Ends, "over: two")]);
    }

    #[test]
    fn several_reasons_of_one_condition_are_one_text() {
        let checks = [check("/d", "c", "one"), check("/d", "c", "two")];
        let events = Standing::default().look(&checks, at(0), false);
        assert_eq!(said(&events), [(Change::Begins, "one; two")]);
    }

    #[test]
    fn events_of_a_file_bring_the_conditions_back_with_their_dates() {
        let mut standing = Standing::default();
        let (one, two) = (check("/d", "c", "one"), check("/e", "c", "two"));
        let mut events = standing.look(&[one.clone(), two], at(100), false);
        events.iter_mut().for_each(|it| it.time = at(100));
        let mut ends = standing.look(std::slice::from_ref(&one), at(200), false);
        ends.iter_mut().for_each(|it| it.time = at(200));
        let mut again = Standing::default();
        events.iter().chain(&ends).for_each(|event| again.replay(event));
        assert_eq!(
            again.all().map(|it| (&*it.check.name, it.since)).collect::<Vec<_>>(),
            [("/d", at(100))]
        );
        assert!(again.look(&[one], at(300), false).is_empty(), "it is known");
    }
}
