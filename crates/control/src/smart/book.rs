//! What drives said of themselves, and which of them are below a device. Whoever asks is answered at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::said::{Smart, SpareSmart};
use crate::events::pace::now;
use crate::safety::PhysicalDrive;

/// What drives said of themselves, shared by those who ask drives and those who show it.
#[derive(Default)]
pub(crate) struct Book {
    inner: Mutex<Inner>,
    /// The daemon ends: nobody is asked any more.
    ends: AtomicBool,
}

#[derive(Default)]
struct Inner {
    /// The drives below each device, by the device's name.
    below: BTreeMap<String, Vec<PhysicalDrive>>,
    said: BTreeMap<PhysicalDrive, Said>,
    /// Drives that are being asked.
    asked: BTreeSet<PhysicalDrive>,
    /// Drives that gave no answer, and why: told once.
    mute: BTreeMap<PhysicalDrive, String>,
}

/// What one drive said last.
struct Said {
    smart: Smart,
    at: Instant,
    /// Its media errors when it was asked first.
    first_media_errors: Option<u64>,
}

/// A drive is being asked, until this is dropped.
pub(super) struct Asking {
    book: Arc<Book>,
    pub(super) drive: PhysicalDrive,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.book.lock().asked.remove(&self.drive);
    }
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the drives below a device said last.
    pub(crate) fn of(&self, device: &str) -> Vec<Smart> {
        let inner = self.lock();
        let drives = inner.below.get(device).into_iter().flatten();
        let said = drives.filter_map(|drive| inner.said.get(drive));
        said.map(|it| Smart { age_seconds: it.at.elapsed().as_secs(), ..it.smart.clone() })
            .collect()
    }

    /// The same of spares, without those of which nothing is known.
    pub(crate) fn of_spares(&self, spares: &[String]) -> Vec<SpareSmart> {
        let said = spares.iter().map(|path| (path, self.of(path)));
        let said = said.filter(|(_, smart)| !smart.is_empty());
        said.map(|(path, smart)| SpareSmart { path: path.clone(), smart }).collect()
    }

    /// The devices that are there, and no others any more.
    pub(super) fn keep(&self, devices: &BTreeSet<String>) {
        let mut inner = self.lock();
        inner.below.retain(|device, _| devices.contains(device));
        let Inner { below, said, mute, .. } = &mut *inner;
        let is_used = |drive: &PhysicalDrive| below.values().flatten().any(|it| it == drive);
        said.retain(|drive, _| is_used(drive));
        mute.retain(|drive, _| is_used(drive));
    }

    /// Whether the drives below a device are known.
    pub(super) fn knows(&self, device: &str) -> bool {
        self.lock().below.contains_key(device)
    }

    /// Notes which drives are below a device.
    pub(super) fn note_below(&self, device: &str, drives: Vec<PhysicalDrive>) {
        self.lock().below.insert(device.to_owned(), drives);
    }

    /// All drives, or those that were never heard of.
    pub(super) fn drives(&self, only_new: bool) -> BTreeSet<PhysicalDrive> {
        let inner = self.lock();
        let is_new =
            |it: &&PhysicalDrive| !inner.said.contains_key(*it) && !inner.mute.contains_key(*it);
        inner.below.values().flatten().filter(|it| !only_new || is_new(it)).cloned().collect()
    }

    /// Begins to ask a drive; `None` while it is being asked, and when the daemon ends.
    pub(super) fn ask(self: &Arc<Self>, drive: &PhysicalDrive) -> Option<Asking> {
        let is_first = !self.ends() && self.lock().asked.insert(drive.clone());
        is_first.then(|| Asking { book: Arc::clone(self), drive: drive.clone() })
    }

    /// Notes what a drive said.
    pub(super) fn note(&self, drive: &PhysicalDrive, mut smart: Smart) {
        let mut inner = self.lock();
        let errors = smart.figures.media_errors;
        let before = inner.said.get(drive);
        // Another drive may be in the place.
        let before = before.filter(|it| it.smart.serial == smart.serial);
        let first = before.and_then(|it| it.first_media_errors).or(errors);
        smart.figures.media_errors_new =
            errors.zip(first).map(|(errors, first)| errors.saturating_sub(first));
        inner.mute.remove(drive);
        inner.said.insert(drive.clone(), Said { smart, at: now(), first_media_errors: first });
    }

    /// Notes that a drive said nothing; whether that is new.
    pub(super) fn note_mute(&self, drive: &PhysicalDrive, why: &str) -> bool {
        let mut inner = self.lock();
        let before = inner.mute.insert(drive.clone(), why.to_owned());
        before.is_none() && !inner.said.contains_key(drive)
    }

    /// Nobody is asked any more, and programs that ask are ended.
    pub(crate) fn end(&self) {
        self.ends.store(true, Ordering::Release);
    }

    pub(super) fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    /// Whether a drive is being asked.
    pub(crate) fn is_asking(&self) -> bool {
        !self.lock().asked.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smart::figures::KnownFigures;

    fn drive(name: &str) -> PhysicalDrive {
        PhysicalDrive { place: format!("/sys/{name}").into(), node: format!("/dev/{name}").into() }
    }

    fn said(serial: &str, media_errors: u64) -> Smart {
        let figures = KnownFigures { media_errors: Some(media_errors), ..KnownFigures::default() };
        Smart { serial: serial.into(), figures, ..Smart::default() }
    }

    #[test]
    fn a_drive_below_several_devices_is_one_and_is_asked_by_one() {
        let book = Arc::new(Book::default());
        book.note_below("a", vec![drive("sda"), drive("sdb")]);
        book.note_below("b", vec![drive("sda")]);
        assert_eq!(book.drives(false).len(), 2);
        let asking = book.ask(&drive("sda")).unwrap();
        assert!(book.ask(&drive("sda")).is_none());
        assert!(book.ask(&drive("sdb")).is_some());
        drop(asking);
        assert!(book.ask(&drive("sda")).is_some() && !book.is_asking());
        book.note(&drive("sda"), said("1", 0));
        assert_eq!((book.of("a").len(), book.of("b").len(), book.of("c").len()), (1, 1, 0));
        assert_eq!(book.drives(true), BTreeSet::from([drive("sdb")]));
        book.keep(&BTreeSet::from(["c".to_owned()]));
        assert!(book.drives(false).is_empty() && book.of("a").is_empty());
        book.end();
        assert!(book.ask(&drive("sda")).is_none());
    }

    #[test]
    fn errors_are_new_since_the_drive_was_asked_first_and_another_drive_begins_anew() {
        let book = Book::default();
        book.note_below("a", vec![drive("sda")]);
        let new = |serial, errors| {
            book.note(&drive("sda"), said(serial, errors));
            book.of("a")[0].figures.media_errors_new
        };
        let all = [new("1", 5), new("1", 5), new("1", 7), new("1", 8), new("2", 9), new("2", 3)];
        assert_eq!(all, [0, 0, 2, 3, 0, 0].map(Some));
    }

    #[test]
    fn a_drive_that_says_nothing_is_told_once_and_keeps_what_it_said() {
        let book = Book::default();
        book.note_below("a", vec![drive("sda")]);
        assert!(book.note_mute(&drive("sda"), "why"));
        assert!(!book.note_mute(&drive("sda"), "why"));
        assert!(book.drives(true).is_empty());
        book.note(&drive("sda"), said("1", 5));
        assert!(!book.note_mute(&drive("sda"), "it sleeps"));
        assert_eq!(book.of("a").len(), 1);
    }
}
