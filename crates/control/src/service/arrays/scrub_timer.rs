//! Scrubs that the daemon begins by itself: of each array so long after the last one that was complete, one array
//! after the other.
//!
//! The clock of a machine may be wrong for a while. Set ahead it makes all scrubs due: they still come one by one,
//! and each once. Set back it makes the last scrub one of the future: then the time from there on counts, and the
//! scrub is neither put off for ever nor due at once, nor again when the clock is right.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use voltier_array::ScrubFound;

use crate::array_status::{ArrayState, ScrubEnd, ScrubTimes};
use crate::date::Date;
use crate::error::{ControlError, ControlResult};
use crate::events::hook::replace;
use crate::figures;
use crate::name::ArrayName;
use crate::protocol::Repair;
use crate::records::{Identity, RegisteredArray};
use crate::service::arrays;
use crate::service::state::subjects;
use crate::service::state::turn::Turn;
use crate::units::seconds_text;

/// The file of the state folder with the last scrub of each array.
pub const SCRUBS_FILE: &str = "scrubs.json";
const FORMAT: u32 = 1;
/// How long an array is left alone that was due and could not be scrubbed, or whose scrub did not come to its end.
const AGAIN: Duration = Duration::from_secs(3600);

/// What is known of the scrubs of one array.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Known {
    /// The array.
    array: Identity,
    /// When the daemon learned of the array.
    since: Date,
    /// When the last scrub ended that was complete, and what it found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<Ended>,
    /// The clock when it was first seen to be before all of that; gone when it is behind that again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    set_back: Option<Date>,
}

/// The end of a scrub that was complete.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Ended {
    at: Date,
    #[serde(with = "figures")]
    found: ScrubFound,
}

impl Known {
    fn new(array: Identity, now: Date) -> Self {
        Self { array, since: now, last: None, set_back: None }
    }

    /// The moment from which the time to the next scrub counts.
    fn base(&self) -> Date {
        self.last.map_or(self.since, |last| last.at)
    }

    /// Notes whether the clock is before what is known. Whether that has changed.
    fn look(&mut self, now: Date) -> bool {
        let set_back = (now < self.base()).then(|| self.set_back.map_or(now, |then| then.min(now)));
        let has_changed = set_back != self.set_back;
        self.set_back = set_back;
        has_changed
    }

    /// When the next scrub is due that comes every so many seconds.
    fn next(&self, every_s: u64) -> Date {
        let from = self.set_back.unwrap_or(self.base());
        Date { unix_ms: from.unix_ms.saturating_add(every_s.saturating_mul(1000)) }
    }
}

/// The file.
#[derive(Serialize, Deserialize)]
struct Book {
    format: u32,
    arrays: Vec<Known>,
}

/// The scrubs of all arrays.
#[derive(Default)]
pub(crate) struct ScrubTimer {
    known: BTreeMap<Identity, Known>,
    /// Scrubs that were complete since the last step.
    ended: Vec<(Identity, ScrubFound)>,
    /// Until when arrays are left alone that are due.
    resting: BTreeMap<Identity, Date>,
}

impl ScrubTimer {
    /// What the file of a state folder says. One that cannot be read says nothing: then the time begins anew.
    pub(crate) fn of(folder: &Path) -> Self {
        let bytes = fs::read(folder.join(SCRUBS_FILE)).unwrap_or_default();
        let book = serde_json::from_slice::<Book>(&bytes).ok().filter(|it| it.format == FORMAT);
        let known = book.into_iter().flat_map(|book| book.arrays);
        Self { known: known.map(|it| (it.array, it)).collect(), ..Self::default() }
    }

    /// A scrub of an array has come to its end, and went over everything.
    pub(crate) fn ended(&mut self, array: Identity, found: ScrubFound) {
        self.ended.push((array, found));
    }

    /// The last scrub of an array and the next one, for `show`.
    pub(crate) fn times(&self, record: &RegisteredArray) -> ScrubTimes {
        let every_s = every_s(record);
        let known = self.known.get(&record.uuid);
        let last = known.and_then(|known| known.last);
        let next = known.filter(|_| every_s > 0).map(|known| known.next(every_s));
        let last = last.map(|Ended { at, found }| ScrubEnd { at, found });
        ScrubTimes { every_s, last, next }
    }

    /// Takes in what has happened. Whether the file has to be written.
    fn look(&mut self, arrays: &[RegisteredArray], now: Date) -> bool {
        let before = self.known.clone();
        for (array, found) in std::mem::take(&mut self.ended) {
            let known = self.known.entry(array).or_insert_with(|| Known::new(array, now));
            known.last = Some(Ended { at: now, found });
            self.resting.remove(&array);
        }
        for record in arrays {
            let known = self.known.entry(record.uuid);
            known.or_insert_with(|| Known::new(record.uuid, now)).look(now);
        }
        let is_there = |array: &Identity| arrays.iter().any(|record| record.uuid == *array);
        self.known.retain(|array, _| is_there(array));
        self.resting.retain(|array, _| is_there(array));
        self.known != before
    }

    /// The arrays that are due, the one that has waited longest first.
    fn due(&self, arrays: &[RegisteredArray], now: Date) -> Vec<ArrayName> {
        let next = |record: &RegisteredArray| {
            let every_s = every_s(record);
            let next = self.known.get(&record.uuid).filter(|_| every_s > 0)?.next(every_s);
            let until = self.resting.get(&record.uuid).copied();
            // A clock that is set back ends the rest as well.
            let rests = until.is_some_and(|until| now < until && until.since(now) <= AGAIN);
            (next <= now && !rests).then(|| (next, record.name.clone()))
        };
        let mut due: Vec<(Date, ArrayName)> = arrays.iter().filter_map(next).collect();
        due.sort();
        due.into_iter().map(|(_, name)| name).collect()
    }

    fn bytes(&self) -> ControlResult<Vec<u8>> {
        let book = Book { format: FORMAT, arrays: self.known.values().copied().collect() };
        let mut bytes = serde_json::to_vec_pretty(&book).map_err(ControlError::from_error)?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}

/// How often an array is scrubbed, in seconds; 0 for never. Without redundancy there is nothing to check.
fn every_s(record: &RegisteredArray) -> u64 {
    if record.level.has_redundancy() && !record.read_only {
        record.settings.scrub_every_s
    } else {
        0
    }
}

/// Takes in the scrubs that have ended, and begins one that is due. What the file of the state folder is to have, if
/// that has changed.
pub(crate) fn step(turn: &mut Turn, now: Date) -> Option<Vec<u8>> {
    if turn.stopping || turn.at_rest {
        return None;
    }
    let arrays = turn.registry.arrays().to_vec();
    let has_changed = turn.scrubs.look(&arrays, now);
    let due = turn.scrubs.due(&arrays, now);
    if !due.is_empty() && !is_any_scrubbed(turn, &arrays) {
        for name in due {
            if begin(turn, &name, now) {
                break;
            }
        }
    }
    has_changed.then(|| turn.scrubs.bytes().ok()).flatten()
}

fn is_any_scrubbed(turn: &mut Turn, arrays: &[RegisteredArray]) -> bool {
    arrays.iter().any(|record| {
        turn.size_of_array(&record.name).is_ok() && arrays::show::status(turn, record).scrub.running
    })
}

/// Begins the scrub of an array that is due. `false` when it has to wait: nothing of it is open, something else is
/// under way there, or a scrub would have to leave groups out.
fn begin(turn: &mut Turn, name: &ArrayName, now: Date) -> bool {
    let Some(record) = turn.registry.find_array(name).cloned() else { return false };
    let rest = Date { unix_ms: now.unix_ms.saturating_add(AGAIN.as_millis() as u64) };
    turn.scrubs.resting.insert(record.uuid, rest);
    let subjects = subjects::of_array(&turn.registry, name);
    if turn.size_of_array(name).is_err() || turn.claims.taken(&subjects, turn.own()).is_some() {
        return false;
    }
    let status = arrays::show::status(turn, &record);
    let is_whole = status.state == ArrayState::Running && status.reshape.is_none();
    if !is_whole || status.rebuild.running {
        return false;
    }
    let begun = turn.engine.start_scrub(name, Repair::Located);
    turn.engine.log(&match &begun {
        Ok(()) => {
            let every = seconds_text(record.settings.scrub_every_s);
            format!("array {name}: its scrub of every {every} begins (`scrub_every`)")
        }
        Err(error) => format!("array {name}: its scrub that is due does not begin: {error}"),
    });
    begun.is_ok()
}

/// Puts what [`step`] returned into the file of a state folder.
///
/// # Errors
/// When it cannot be written; the file is as before then.
pub(crate) fn write(folder: &Path, bytes: &[u8]) -> ControlResult<()> {
    replace(&folder.join(SCRUBS_FILE), bytes)
        .map_err(|error| ControlError::io("recording the last scrubs of arrays", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 86_400_000;
    const EVERY_S: u64 = 30 * 86_400;

    fn day(days: u64) -> Date {
        Date { unix_ms: (20_000 + days) * DAY_MS }
    }

    fn at(known: &mut Known, now: Date) -> bool {
        known.look(now);
        known.next(EVERY_S) <= now
    }

    #[test]
    fn a_scrub_is_due_so_long_after_the_last_one_or_after_the_array_was_met() {
        let mut known = Known::new(Identity([1; 16]), day(0));
        assert!(!at(&mut known, day(29)) && at(&mut known, day(30)));
        known.last = Some(Ended { at: day(31), found: ScrubFound::default() });
        assert!(!at(&mut known, day(60)) && at(&mut known, day(61)));
    }

    #[test]
    fn a_clock_that_is_set_back_makes_no_scrub_due_at_once_and_none_late_for_ever() {
        let mut known = Known::new(Identity([1; 16]), day(0));
        known.last = Some(Ended { at: day(5000), found: ScrubFound::default() });
        // The clock was years ahead at the last scrub, and is right now, over restarts of the daemon.
        assert!(!at(&mut known, day(100)) && !at(&mut known, day(129)));
        let json = serde_json::to_string(&known).unwrap();
        let mut known: Known = serde_json::from_str(&json).unwrap();
        assert!(!at(&mut known, day(129)) && at(&mut known, day(130)));
        // A machine that begins each start in 1970 until it hears the time.
        let mut known = Known::new(Identity([1; 16]), day(0));
        for days in 1..29 {
            assert!(!at(&mut known, Date { unix_ms: 5 }), "as after a start");
            assert!(!at(&mut known, day(days)), "the clock is right again");
        }
        assert!(at(&mut known, day(30)));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_as_none() {
        let dir = tempfile::tempdir().unwrap();
        for bytes in [&b""[..], b"{}", b"[1]", b"{\"format\":9,\"arrays\":[]}", b"\xff"] {
            fs::write(dir.path().join(SCRUBS_FILE), bytes).unwrap();
            assert!(ScrubTimer::of(dir.path()).known.is_empty());
        }
        let mut timer = ScrubTimer::default();
        let known = Known::new(Identity([7; 16]), day(1));
        timer.known.insert(known.array, known);
        write(dir.path(), &timer.bytes().unwrap()).unwrap();
        assert_eq!(ScrubTimer::of(dir.path()).known, timer.known);
    }
}
