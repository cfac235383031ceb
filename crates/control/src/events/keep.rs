//! The log of events in memory, which file and couriers follow, and the conditions that stand.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::date::Date;
use crate::error::{ControlError, ControlResult};
use crate::events::event::{Event, LEFT_OUT, Severity};
use crate::events::file;
use crate::events::hook::{self, HOOKS_MAX, Hook, HookStatus, HookTarget};
use crate::events::pace::{Pace, Plan, Waiting, now};
use crate::events::standing::Standing;
use crate::health::{Check, Health, Part};

/// Events in memory: what the files have, and as many again where they are short.
const EVENTS_MAX: usize = 8192;
/// Events in one answer: half of what a message may have.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// How long what could not be written rests before it is tried again.
const WRITE_AGAIN: Duration = Duration::from_secs(3);
/// How often an idle daemon looks whether the state folder has room: a full one is told before a record needs it.
const ROOM_STEP: Duration = Duration::from_secs(4);

/// What a look at everything tells.
pub(crate) struct Look {
    /// The health of everything.
    pub(crate) checks: Vec<Check>,
    /// Whether something recorded is being opened: what cannot be seen yet is not over.
    pub(crate) is_starting: bool,
    /// Events that are none of conditions.
    pub(crate) told: Vec<Event>,
    /// Why the registry takes no records, if that is so.
    pub(crate) registry_trouble: Option<String>,
}

/// An event for a hook, and the number up to which it has all events then.
pub(crate) struct Work {
    pub(crate) event: Event,
    pub(crate) up_to: u64,
}

struct Entry {
    status: HookStatus,
    /// The number of the last event that it has.
    cursor: u64,
}

#[derive(Default)]
struct Inner {
    log: VecDeque<Event>,
    last_seq: u64,
    standing: Standing,
    hooks: BTreeMap<u32, Entry>,
    /// The number of the last event that is in the file.
    written: u64,
    are_cursors_written: bool,
    /// Deliveries that go on.
    deliveries: usize,
    is_ending: bool,
    /// Why metrics cannot be answered, if that is so.
    metrics_trouble: Option<String>,
    /// Why the registry takes no records, if that is so.
    registry_trouble: Option<String>,
    /// Why events cannot be written, or that the state folder has no room.
    folder_trouble: Option<String>,
}

/// The events of an instance.
pub(crate) struct Events {
    folder: PathBuf,
    inner: Mutex<Inner>,
    news: Condvar,
    /// Held while the record of the hooks is changed: the medium may keep that waiting, and nothing else.
    changes: Mutex<()>,
}

impl Events {
    /// The events of a state folder, with what its files have. A file that cannot be read is no reason not to serve.
    pub(crate) fn of(folder: &Path) -> Arc<Self> {
        let told = file::read(folder).unwrap_or_else(|error| {
            tracing::warn!("{error}; events begin anew");
            file::Told::default()
        });
        let hooks = hook::recorded_hooks(folder).unwrap_or_else(|error| {
            tracing::warn!("{error}; nobody is told of events");
            Vec::new()
        });
        let cursors = hook::recorded_cursors(folder);
        let last_seq = told.events.last().map_or(0, |event| event.seq);
        let entry = |hook: Hook| {
            let cursor = cursors.get(&hook.id).map_or(last_seq, |it| *it.min(&last_seq));
            (hook.id, Entry { status: HookStatus::new(hook), cursor })
        };
        let mut inner = Inner {
            log: told.events.into(),
            last_seq,
            standing: told.standing,
            hooks: hooks.into_iter().map(entry).collect(),
            written: last_seq,
            are_cursors_written: true,
            deliveries: 0,
            is_ending: false,
            metrics_trouble: None,
            registry_trouble: None,
            folder_trouble: None,
        };
        inner.bound();
        Arc::new(Self {
            folder: folder.to_owned(),
            inner: Mutex::new(inner),
            news: Condvar::new(),
            changes: Mutex::new(()),
        })
    }

    /// The state folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event.
    pub(crate) fn tell(&self, event: Event) {
        self.inner().push(event, Date::now());
        self.news.notify_all();
    }

    /// Compares a look at everything with what stood before, and adds the events.
    pub(crate) fn take(&self, look: Look) {
        let now = Date::now();
        let mut inner = self.inner();
        look.told.into_iter().for_each(|event| inner.push(event, now));
        inner.registry_trouble = look.registry_trouble;
        let mut checks = look.checks;
        checks.extend(inner.own_checks());
        let events = inner.standing.look(&checks, now, look.is_starting);
        events.into_iter().for_each(|event| inner.push(event, now));
        drop(inner);
        self.news.notify_all();
    }

    /// Notes why metrics cannot be answered, or that they are.
    pub(crate) fn note_metrics(&self, trouble: Option<String>) {
        self.inner().metrics_trouble = trouble;
    }

    /// The checks of what the daemon does beside volumes and arrays: hooks, metrics and records.
    pub(crate) fn own_checks(&self) -> Vec<Check> {
        self.inner().own_checks()
    }

    /// The events with higher numbers than this; the newest, if they are too many for one answer.
    pub(crate) fn after(&self, seq: u64) -> Vec<Event> {
        let inner = self.inner();
        let mut bytes = 0;
        let mut events: Vec<Event> = Vec::new();
        for event in inner.log.iter().rev().take_while(|event| event.seq > seq) {
            bytes += event.bytes();
            if bytes > ANSWER_BYTES_MAX {
                break;
            }
            events.push(event.clone());
        }
        events.reverse();
        events
    }

    /// Adds to each check since when its condition stands.
    pub(crate) fn date(&self, checks: &mut [Check]) {
        self.inner().standing.date(checks);
    }

    /// All hooks, in the order of their numbers.
    pub(crate) fn hooks(&self) -> Vec<HookStatus> {
        self.inner().hook_statuses()
    }

    /// Adds a hook: events from now on are its. Its number.
    ///
    /// # Errors
    /// When it is there already, there are too many, or the record cannot be written. Nothing has changed then.
    pub(crate) fn add_hook(&self, target: HookTarget) -> ControlResult<Hook> {
        target.check()?;
        let _change = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut hooks: Vec<Hook> = self.hooks().into_iter().map(|it| it.hook).collect();
        if let Some(known) = hooks.iter().find(|hook| hook.target == target) {
            return Err(ControlError::failed(format!(
                "that is hook {} already; `voltier events --hooks` lists all",
                known.id
            )));
        }
        if hooks.len() >= HOOKS_MAX {
            return Err(ControlError::failed(format!(
                "there are {HOOKS_MAX} hooks, and no more are possible; `voltier events --remove N` removes one"
            )));
        }
        let is_free = |id: &u32| hooks.iter().all(|hook| hook.id != *id);
        let hook = Hook { id: (1..).find(is_free).unwrap_or_default(), target };
        hooks.push(hook.clone());
        hooks.sort_by_key(|it| it.id);
        hook::record_hooks(&self.folder, &hooks)?;
        let mut inner = self.inner();
        let entry = Entry { status: HookStatus::new(hook.clone()), cursor: inner.last_seq };
        inner.hooks.insert(hook.id, entry);
        inner.are_cursors_written = false;
        Ok(hook)
    }

    /// Removes a hook, which is named by its number or as it was given.
    ///
    /// # Errors
    /// When there is none, or the record cannot be written. Nothing has changed then.
    pub(crate) fn remove_hook(&self, which: &str) -> ControlResult<Hook> {
        let _change = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |hook: &Hook| hook.id.to_string() == which || hook.target.text() == which;
        let hooks = self.hooks().into_iter().map(|it| it.hook);
        let (mut found, others): (Vec<Hook>, Vec<Hook>) = hooks.partition(is_it);
        let Some(hook) = found.pop() else {
            return Err(ControlError::failed(format!(
                "no hook `{which}`; `voltier events --hooks` lists all with their numbers"
            )));
        };
        if !found.is_empty() {
            return Err(ControlError::failed(format!(
                "`{which}` is more than one hook; give the number that `voltier events --hooks` shows"
            )));
        }
        hook::record_hooks(&self.folder, &others)?;
        let mut inner = self.inner();
        inner.hooks.remove(&hook.id);
        inner.are_cursors_written = false;
        drop(inner);
        self.news.notify_all();
        Ok(hook)
    }

    /// Waits for the next event of a hook that is to be delivered now. `None` when the hook is removed, and when the
    /// daemon ends.
    pub(crate) fn work_for(&self, hook: &Hook, pace: &mut Pace) -> Option<Work> {
        let mut inner = self.inner();
        loop {
            if inner.is_ending || !inner.has_hook(hook) {
                return None;
            }
            let cursor = inner.skip_own(hook);
            let waiting = inner.last_seq - cursor;
            let oldest = inner.log.front().map_or(0, |event| event.seq);
            let waiting = Waiting {
                count: waiting,
                have_gap: oldest > cursor + 1,
                are_urgent: inner.is_urgent_after(cursor),
            };
            let plan = (waiting.count > 0).then(|| pace.plan(now(), waiting));
            inner = match plan {
                None => self.news.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(Plan::Wait(pause)) => {
                    let waited = self.news.wait_timeout(inner, pause);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(Plan::One) => {
                    let event = inner.log.iter().find(|event| event.seq > cursor)?.clone();
                    inner.deliveries += 1;
                    return Some(Work { up_to: event.seq, event });
                }
                Some(Plan::Summary) => {
                    let event = inner.summary(cursor);
                    inner.deliveries += 1;
                    return Some(Work { up_to: event.seq, event });
                }
            };
        }
    }

    /// A delivery has ended; with an error the event waits on.
    pub(crate) fn note_delivery(&self, hook: &Hook, up_to: u64, outcome: Result<(), String>) {
        let mut inner = self.inner();
        inner.deliveries = inner.deliveries.saturating_sub(1);
        self.news.notify_all();
        let Some(entry) = inner.hooks.get_mut(&hook.id).filter(|it| it.status.hook == *hook) else {
            return;
        };
        entry.status.last = Some(Date::now());
        match outcome {
            Ok(()) => {
                entry.status.delivered += up_to.saturating_sub(entry.cursor);
                entry.cursor = entry.cursor.max(up_to);
                entry.status.failures = 0;
                entry.status.error.clear();
                inner.are_cursors_written = false;
            }
            Err(why) => {
                entry.status.failures = entry.status.failures.saturating_add(1);
                entry.status.error = why;
            }
        }
    }

    /// Whether the daemon ends, or the hook is no more.
    pub(crate) fn has_ended(&self, hook: &Hook) -> bool {
        let inner = self.inner();
        inner.is_ending || !inner.has_hook(hook)
    }

    /// The last event, and no more deliveries: the next daemon goes on with what waits.
    pub(crate) fn end(&self, event: Option<Event>) {
        let mut inner = self.inner();
        event.into_iter().for_each(|event| inner.push(event, Date::now()));
        inner.is_ending = true;
        drop(inner);
        self.news.notify_all();
    }

    /// Waits until the file has all events and no delivery goes on, though not for long.
    pub(crate) fn wait_ended(&self, limit: Duration) {
        let is_left = |inner: &mut Inner| inner.written < inner.last_seq || inner.deliveries > 0;
        drop(self.news.wait_timeout_while(self.inner(), limit, is_left));
    }

    /// Writes events into the file for as long as the process lives. That may wait for the medium: nobody else does.
    pub(crate) fn write_on(&self) {
        let mut is_told = false;
        loop {
            let inner = self.inner();
            let is_idle =
                |inner: &mut Inner| inner.written >= inner.last_seq && inner.are_cursors_written;
            let waited = self.news.wait_timeout_while(inner, ROOM_STEP, is_idle);
            let mut inner = waited.unwrap_or_else(PoisonError::into_inner).0;
            let fresh = inner.log.iter().filter(|event| event.seq > inner.written).cloned();
            let (fresh, standing): (Vec<Event>, _) = (fresh.collect(), inner.standing.clone());
            let up_to = inner.last_seq;
            let are_cursors_new = !std::mem::replace(&mut inner.are_cursors_written, true);
            let cursors = inner.hooks.iter().map(|(id, it)| (*id, it.cursor)).collect();
            drop(inner);
            let appended = match fresh.is_empty() {
                true => Ok(()),
                false => file::append(&self.folder, &fresh, &standing),
            };
            let recorded = match are_cursors_new {
                true => hook::record_cursors(&self.folder, &cursors),
                false => Ok(()),
            };
            let room = file::look_for_room(&self.folder);
            let mut inner = self.inner();
            let troubles = [&appended, &recorded, &room].map(|it| it.as_ref().err());
            inner.folder_trouble = troubles.into_iter().flatten().next().map(|error| {
                ControlError::io(format!("writing into {}", self.folder.display()), error).message
            });
            if appended.is_ok() {
                inner.written = up_to;
            }
            inner.are_cursors_written &= recorded.is_ok();
            self.news.notify_all();
            match appended.and(recorded) {
                Ok(()) if std::mem::take(&mut is_told) => {
                    tracing::info!("events are written into the state folder again");
                }
                Ok(()) => {}
                Err(error) => {
                    if !std::mem::replace(&mut is_told, true) {
                        let doing = format!("writing {}", file::path_in(&self.folder).display());
                        let error = ControlError::io(doing, &error);
                        tracing::warn!("{error}; events are kept in memory until that is possible");
                    }
                    let limit = WRITE_AGAIN;
                    drop(self.news.wait_timeout_while(inner, limit, |it| !it.is_ending));
                }
            }
        }
    }
}

impl Inner {
    fn push(&mut self, event: Event, time: Date) {
        self.last_seq += 1;
        self.log.push_back(Event { seq: self.last_seq, time, ..event });
        self.bound();
    }

    fn bound(&mut self) {
        let too_many = self.log.len().saturating_sub(EVENTS_MAX);
        self.log.drain(..too_many);
    }

    fn has_hook(&self, hook: &Hook) -> bool {
        self.hooks.get(&hook.id).is_some_and(|it| it.status.hook == *hook)
    }

    fn own_checks(&self) -> Vec<Check> {
        let mut checks = Health::of_hooks(&self.hook_statuses());
        checks.extend(Health::of_metrics(self.metrics_trouble.as_deref()));
        let trouble = self.registry_trouble.as_deref().or(self.folder_trouble.as_deref());
        checks.extend(Health::of_state_folder(trouble));
        checks
    }

    fn hook_statuses(&self) -> Vec<HookStatus> {
        let status = |it: &Entry| HookStatus {
            waiting: self.last_seq.saturating_sub(it.cursor),
            ..it.status.clone()
        };
        self.hooks.values().map(status).collect()
    }

    /// Goes past events about the hook itself; the number of the last event that it has then.
    fn skip_own(&mut self, hook: &Hook) -> u64 {
        let Some(entry) = self.hooks.get_mut(&hook.id) else { return self.last_seq };
        let name = hook.target.title();
        let start = entry.cursor;
        for event in self.log.iter().filter(|event| event.seq > start) {
            let is_own = event.part == Part::Hook && event.name == name;
            if !is_own || event.seq != entry.cursor + 1 {
                break;
            }
            entry.cursor = event.seq;
        }
        entry.cursor
    }

    /// Whether something after this number is degraded or failed.
    fn is_urgent_after(&self, cursor: u64) -> bool {
        let mut newest = self.log.iter().rev().take_while(|event| event.seq > cursor);
        newest.any(|event| event.severity >= Severity::Degraded)
    }

    /// One event that stands for all those after this number.
    fn summary(&self, cursor: u64) -> Event {
        let waiting: Vec<&Event> = self.log.iter().filter(|event| event.seq > cursor).collect();
        let count = self.last_seq - cursor;
        let mut text = format!("{count} more events");
        let worst = waiting.iter().rev().max_by_key(|event| event.severity);
        if let Some(worst) = worst {
            text += &format!(", the worst: {}: {}", worst.what(), worst.text);
        }
        Event {
            seq: self.last_seq,
            time: Date::now(),
            severity: worst.map_or(LEFT_OUT.severity, |it| it.severity),
            next: "`voltier events` lists them all".to_owned(),
            ..Event::of(&LEFT_OUT, "voltier", text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::event::TEST;

    fn events() -> (tempfile::TempDir, Arc<Events>) {
        let folder = tempfile::tempdir().unwrap();
        let events = Events::of(folder.path());
        (folder, events)
    }

    fn target(text: &str) -> HookTarget {
        HookTarget::Command(text.into())
    }

    #[test]
    fn a_hook_has_each_event_once_from_when_it_was_added() {
        let (_folder, events) = events();
        events.tell(Event::of(&TEST, "voltier", "before"));
        let hook = events.add_hook(target("true")).unwrap();
        let mut pace = Pace::default();
        for text in ["one", "two"] {
            events.tell(Event::of(&TEST, "voltier", text));
        }
        for text in ["one", "one", "two"] {
            let work = events.work_for(&hook, &mut pace).unwrap();
            assert_eq!(work.event.text, text);
            let is_first = events.hooks()[0].failures == 0 && text == "one";
            let outcome = if is_first { Err("no".to_owned()) } else { Ok(()) };
            events.note_delivery(&hook, work.up_to, outcome);
        }
        let status = events.hooks().remove(0);
        assert_eq!((status.waiting, status.delivered, status.failures), (0, 2, 0));
        events.end(None);
        assert!(events.work_for(&hook, &mut pace).is_none());
    }

    #[test]
    fn a_hook_that_is_told_less_than_memory_has_hears_how_many_and_of_the_worst() {
        let (_folder, events) = events();
        let hook = events.add_hook(target("true")).unwrap();
        events.tell(Event::of(&TEST, "voltier", "first"));
        let bad = Event { severity: Severity::Failed, ..Event::of(&TEST, "v", "bad") };
        for at in 0..EVENTS_MAX {
            events.tell(if at == 5000 { bad.clone() } else { Event::of(&TEST, "v", "x") });
        }
        let work = events.work_for(&hook, &mut Pace::default()).unwrap();
        assert_eq!(
            work.event.text,
            format!("{} more events, the worst: daemon v: bad", EVENTS_MAX + 1)
        );
        assert_eq!((work.event.severity, work.event.kind.as_str()), (Severity::Failed, "left_out"));
        events.note_delivery(&hook, work.up_to, Ok(()));
        assert_eq!(events.hooks()[0].waiting, 0);
        assert_eq!(events.after(0).len(), EVENTS_MAX);
    }

    #[test]
    fn a_hook_that_fails_is_a_condition_and_is_not_told_of_it() {
        let (_folder, events) = events();
        let (one, two) =
            (events.add_hook(target("one")).unwrap(), events.add_hook(target("two")).unwrap());
        events.tell(Event::of(&TEST, "voltier", "a"));
        events.note_delivery(&one, 1, Err("exit code 1".into()));
        let look = || Look {
            checks: Vec::new(),
            is_starting: false,
            told: Vec::new(),
            registry_trouble: None,
        };
        events.take(look());
        let said: Vec<_> = events.after(0).into_iter().map(|it| (it.kind, it.name)).collect();
        assert_eq!(said[1], ("hook_fails".to_owned(), "one".to_owned()));
        events.note_delivery(&one, 1, Ok(()));
        events.take(look());
        events.tell(Event::of(&TEST, "voltier", "b"));
        let mut pace = Pace::default();
        assert_eq!(events.work_for(&one, &mut pace).unwrap().event.text, "b");
        events.note_delivery(&two, 1, Ok(()));
        assert_eq!(events.work_for(&two, &mut pace).unwrap().event.kind, "hook_fails");
    }

    #[test]
    fn hooks_have_numbers_are_removed_by_them_and_refused_twice() {
        let (_folder, events) = events();
        assert_eq!(events.add_hook(target("one")).unwrap().id, 1);
        assert_eq!(events.add_hook(target("two")).unwrap().id, 2);
        assert!(events.add_hook(target("two")).unwrap_err().message.contains("hook 2 already"));
        assert_eq!(events.remove_hook("1").unwrap().target, target("one"));
        assert!(events.remove_hook("1").unwrap_err().message.contains("no hook `1`"));
        assert_eq!(events.add_hook(target("three")).unwrap().id, 1);
        assert_eq!(events.remove_hook("two").unwrap().id, 2);
        for number in 0..HOOKS_MAX - 1 {
            events.add_hook(target(&format!("x{number}"))).unwrap();
        }
        assert!(events.add_hook(target("more")).unwrap_err().message.contains("no more"));
        assert_eq!(Events::of(events.folder()).hooks().len(), HOOKS_MAX);
    }
}
