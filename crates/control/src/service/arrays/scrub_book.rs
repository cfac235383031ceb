//! When each array was last scrubbed, and when that is due again.
//!
//! The clock of a machine may be wrong for a while. Set ahead it makes all scrubs due, each once. Set back it makes the
//! last scrub one of the future: then the time from there on counts, and the scrub is neither put off for ever nor due
//! at once, nor again when the clock is right.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use voltier_array::ScrubFound;

use crate::array_status::{ScrubEnd, ScrubTimes};
use crate::date::Date;
use crate::error::{ControlError, ControlResult};
use crate::events::hook::replace;
use crate::figures;
use crate::name::ArrayName;
use crate::records::{Identity, RegisteredArray};

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
struct BookFile {
    format: u32,
    arrays: Vec<Known>,
}

/// The scrubs of all arrays.
#[derive(Default)]
pub(crate) struct ScrubBook {
    known: BTreeMap<Identity, Known>,
    /// Scrubs that were complete since the last step.
    ended: Vec<(Identity, ScrubFound)>,
    /// Until when arrays are left alone that are due.
    resting: BTreeMap<Identity, Date>,
}

impl ScrubBook {
    /// What the file of a state folder says. One that cannot be read says nothing: then the time begins anew.
    pub(crate) fn of(folder: &Path) -> Self {
        let bytes = fs::read(folder.join(SCRUBS_FILE)).unwrap_or_default();
        let book = serde_json::from_slice::<BookFile>(&bytes).ok().filter(|it| it.format == FORMAT);
        let known = book.into_iter().flat_map(|book| book.arrays);
        Self { known: known.map(|it| (it.array, it)).collect(), ..Self::default() }
    }

    /// A scrub of an array has come to its end, and went over everything.
    pub(crate) fn ended(&mut self, array: Identity, found: ScrubFound) {
        self.ended.push((array, found));
    }

    /// An array that is due is being tried: it is left alone for a while.
    pub(crate) fn rest(&mut self, array: Identity, now: Date) {
        let until = now.unix_ms.saturating_add(AGAIN.as_millis() as u64);
        self.resting.insert(array, Date { unix_ms: until });
    }

    /// The last scrub of an array and the next one, for `show`.
    pub(crate) fn times(&self, record: &RegisteredArray) -> ScrubTimes {
        let every_s = record.scrub_every_s();
        let known = self.known.get(&record.uuid);
        let last = known.and_then(|known| known.last);
        let next = known.filter(|_| every_s > 0).map(|known| known.next(every_s));
        let last = last.map(|Ended { at, found }| ScrubEnd { at, found });
        ScrubTimes { every_s, last, next }
    }

    /// Takes in what has happened. Whether the file has to be written.
    pub(crate) fn look(&mut self, arrays: &[RegisteredArray], now: Date) -> bool {
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
    pub(crate) fn due(&self, arrays: &[RegisteredArray], now: Date) -> Vec<ArrayName> {
        let next = |record: &RegisteredArray| {
            let every_s = record.scrub_every_s();
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

    /// The bytes of the file.
    pub(crate) fn bytes(&self) -> ControlResult<Vec<u8>> {
        let book = BookFile { format: FORMAT, arrays: self.known.values().copied().collect() };
        let mut bytes = serde_json::to_vec_pretty(&book).map_err(ControlError::from_error)?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}

/// Puts the bytes of the file into a state folder.
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
            assert!(ScrubBook::of(dir.path()).known.is_empty());
        }
        let mut timer = ScrubBook::default();
        let known = Known::new(Identity([7; 16]), day(1));
        timer.known.insert(known.array, known);
        write(dir.path(), &timer.bytes().unwrap()).unwrap();
        assert_eq!(ScrubBook::of(dir.path()).known, timer.known);
    }
}
