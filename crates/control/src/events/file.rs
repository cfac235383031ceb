//! The file of events in the state folder: a line of JSON for each, at most 1 MiB, and the one before it.
//!
//! The first line of a file has the conditions that stood when the file was begun: their events may be older than all
//! files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{ControlError, ControlResult};
use crate::events::event::Event;
use crate::events::standing::{Standing, Stood};

const FILE: &str = "events.jsonl";
const OLDER: &str = "events.jsonl.1";
/// The number of the form of the file.
const FORMAT: u32 = 1;
/// Beyond this a file is put aside.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;
/// What is read of a file that somebody has made longer.
const READ_BYTES_MAX: u64 = 4 * FILE_BYTES_MAX;

#[derive(Serialize, Deserialize)]
struct Head {
    format: u32,
    standing: Vec<Stood>,
}

/// What files of events tell.
#[derive(Default)]
pub(crate) struct Told {
    /// The events, in the order of their numbers.
    pub(crate) events: Vec<Event>,
    /// The conditions that stood at the end.
    pub(crate) standing: Standing,
}

/// The events of a state folder, as its files have them, in their order.
///
/// # Errors
/// When a file is there and cannot be read.
pub fn recorded_events(folder: &Path) -> ControlResult<Vec<Event>> {
    Ok(read(folder)?.events)
}

/// Reads both files. Lines that are none, torn ones say, are passed over.
pub(crate) fn read(folder: &Path) -> ControlResult<Told> {
    let mut told = Told::default();
    for name in [OLDER, FILE] {
        let path = folder.join(name);
        let text = tail_of(&path)
            .map_err(|error| ControlError::io(format!("reading {}", path.display()), &error))?;
        for line in text.split(|byte| *byte == b'\n') {
            if let Ok(event) = serde_json::from_slice::<Event>(line) {
                told.standing.replay(&event);
                told.events.push(event);
            } else if let Ok(head) = serde_json::from_slice::<Head>(line) {
                told.standing = Standing::of(head.standing);
            }
        }
    }
    // A file that was copied back, say: later ones are right.
    told.events.sort_by_key(|event| event.seq);
    told.events.reverse();
    told.events.dedup_by_key(|event| event.seq);
    told.events.reverse();
    Ok(told)
}

fn tail_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(READ_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes events behind the others. `standing` is what stands with them.
pub(crate) fn append(folder: &Path, events: &[Event], standing: &Standing) -> io::Result<()> {
    let path = folder.join(FILE);
    let mut lines = Vec::new();
    for event in events {
        serde_json::to_writer(&mut lines, event)?;
        lines.push(b'\n');
    }
    let length = fs::metadata(&path).map_or(0, |meta| meta.len());
    if length > 0 && length + lines.len() as u64 > FILE_BYTES_MAX {
        fs::rename(&path, folder.join(OLDER))?;
    }
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    let mut file = options.open(&path)?;
    let length = file.metadata()?.len();
    let mut bytes = head(&mut file, length, standing)?;
    bytes.extend(lines);
    let written = file.write_all(&bytes).and_then(|()| file.sync_data());
    if written.is_err() {
        // Half a line would stay. Without this it stays, and is passed over.
        let _ = file.set_len(length);
    }
    written
}

/// Room that the state folder is to have: about what one command adds to the registry.
const ROOM_BYTES: u64 = 64 << 10;

/// Looks whether the file system of the state folder has room for a record.
///
/// # Errors
/// When it has none, or does not answer.
pub(crate) fn look_for_room(folder: &Path) -> io::Result<()> {
    let found = rustix::fs::statvfs(folder)?;
    // The last blocks are kept for the superuser.
    let is_superuser = rustix::process::geteuid().is_root();
    let blocks = if is_superuser { found.f_bfree } else { found.f_bavail };
    if found.f_blocks == 0 {
        // It counts no blocks.
        return Ok(());
    }
    let have_names_ended = found.f_files > 0 && found.f_ffree == 0;
    match blocks.saturating_mul(found.f_frsize) < ROOM_BYTES || have_names_ended {
        true => Err(rustix::io::Errno::NOSPC.into()),
        false => Ok(()),
    }
}

/// What goes before the next line: the head of a new file, the end of a torn line.
fn head(file: &mut File, length: u64, standing: &Standing) -> io::Result<Vec<u8>> {
    if length == 0 {
        let head = Head { format: FORMAT, standing: standing.all().cloned().collect() };
        let mut bytes = serde_json::to_vec(&head)?;
        bytes.push(b'\n');
        return Ok(bytes);
    }
    let mut last = [0];
    file.seek(SeekFrom::Start(length - 1))?;
    file.read_exact(&mut last)?;
    Ok(if last == *b"\n" { Vec::new() } else { b"\n".to_vec() })
}

/// The place of the file, for people.
pub(crate) fn path_in(folder: &Path) -> PathBuf {
    folder.join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::date::Date;
    use crate::events::event::TEST;
    use crate::health::{Check, Part};
    use crate::health_state::HealthState;

    fn event(seq: u64) -> Event {
        Event { seq, ..Event::of(&TEST, "voltier", "x".repeat(1000)) }
    }

    fn numbers(told: &Told) -> Vec<u64> {
        told.events.iter().map(|event| event.seq).collect()
    }

    #[test]
    fn files_are_bounded_and_the_newest_events_stay_with_what_stands() {
        let folder = tempfile::tempdir().unwrap();
        let check = Check {
            part: Part::Drive,
            name: "/d".into(),
            of: "array a".into(),
            state: HealthState::Degraded,
            condition: "member_lost".into(),
            reason: "lost".into(),
            next: "replace it".into(),
            since: None,
        };
        let mut standing = Standing::default();
        let began = Date { unix_ms: 5000 };
        let mut first = standing.look(std::slice::from_ref(&check), began, false);
        (first[0].seq, first[0].time) = (1, began);
        append(folder.path(), &first, &standing).unwrap();
        for seq in 2..=5000 {
            append(folder.path(), &[event(seq)], &standing).unwrap();
        }
        let sizes = [FILE, OLDER].map(|it| fs::metadata(folder.path().join(it)).unwrap().len());
        assert!(sizes.iter().all(|it| *it <= FILE_BYTES_MAX + 4096), "{sizes:?}");
        let told = read(folder.path()).unwrap();
        let numbers = numbers(&told);
        assert_eq!(numbers.last(), Some(&5000));
        assert!(numbers.len() > 700 && numbers[0] > 2, "{} from {}", numbers.len(), numbers[0]);
        assert!(numbers.windows(2).all(|two| two[0] + 1 == two[1]));
        let stood: Vec<_> = told.standing.all().collect();
        assert_eq!((stood.len(), stood[0].since, &stood[0].check), (1, began, &check));
    }

    #[test]
    fn a_torn_line_costs_its_event_alone() {
        let folder = tempfile::tempdir().unwrap();
        let standing = Standing::default();
        append(folder.path(), &[event(1), event(2)], &standing).unwrap();
        let path = path_in(folder.path());
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 10);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(numbers(&read(folder.path()).unwrap()), [1]);
        append(folder.path(), &[event(3)], &standing).unwrap();
        assert_eq!(numbers(&read(folder.path()).unwrap()), [1, 3]);
        fs::write(folder.path().join(OLDER), b"\0\xff\n{\n[]\n").unwrap();
        assert_eq!(numbers(&read(folder.path()).unwrap()), [1, 3]);
    }

    #[test]
    fn an_event_that_is_there_twice_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let standing = Standing::default();
        append(folder.path(), &[event(1), event(2)], &standing).unwrap();
        fs::copy(path_in(folder.path()), folder.path().join(OLDER)).unwrap();
        assert_eq!(numbers(&read(folder.path()).unwrap()), [1, 2]);
    }
}
