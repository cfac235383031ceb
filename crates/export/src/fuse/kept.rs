//! A file that outlives its daemon: what the next one must know, and how it serves on.
//!
//! The keeper has a descriptor of the connection, so that the kernel does not end it with the daemon. Requests wait
//! then. The next daemon has the kernel send again what was read and not answered, and serves on.
//!
//! No journal of requests is needed, because doing one twice is the same as doing it once, and in time. A write that
//! was answered is not sent again. One that was not answered is: perhaps after a later, overlapping write that was
//! answered. But that one was sent before the first had its answer, and of two writes under way at once either may be
//! the last. No file system, loop device or page cache of the kernel has two such under way; a program that sends
//! them knows no order. The requests of the daemon before cannot come later than those of the next one: the drives'
//! locks are free only when the kernel has taken it apart, with all that its ring had under way.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, pread, pwrite, write};
use voltier_keeper::{Held, Keeper, Pair};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::abi::{OutHeader, notify};
use super::session::{Agreed, FileFacts};

/// The version of the notes.
pub const NOTE_VERSION: u8 = 1;

/// The first bytes of a note: its version is the last of them.
const MAGIC: [u8; 8] = [b'v', b'o', b'l', b't', b'f', b'u', b's', NOTE_VERSION];

/// Where the count of open handles is: on a page of its own.
const COUNT_AT: u64 = 4096;

/// With what a file is mounted that is to outlive its daemon.
#[derive(Default)]
pub struct Keep {
    /// Who is to hold the descriptor.
    pub keeper: Option<Arc<Keeper>>,
    /// What an earlier daemon left.
    pub left: Option<Left>,
    /// The identity of the volume: a file is served on by that of which it was, and no other.
    pub volume: [u8; 16],
}

/// A connection that an earlier daemon left.
pub struct Left {
    pub(super) pair: Pair,
    pub(super) held: Held,
    /// In order: all that it had read is answered, or comes again.
    pub(super) is_passed: bool,
}

impl From<voltier_keeper::Left> for Left {
    fn from(left: voltier_keeper::Left) -> Self {
        let voltier_keeper::Left { pair, held, is_passed } = left;
        Self { pair, held, is_passed }
    }
}

impl Left {
    /// What the next daemon gets of it, if the kernel sends it again what this one has not answered.
    pub fn into_pair(self) -> Option<Pair> {
        let agreed = Note(Arc::new(self.pair.note.try_clone().ok()?)).facts()?.agreed;
        (self.is_passed || agreed.can_resend()).then_some(self.pair)
    }

    /// Ends the connection: all that waits for an answer fails.
    pub fn end(self) {
        self.held.release();
    }

    /// Has the kernel send again what was read and not answered.
    pub(super) fn resend(&self) -> Result<(), Errno> {
        let len = size_of::<OutHeader>() as u32;
        let message = OutHeader { len, error: notify::RESEND, unique: 0 };
        write(&self.pair.device, message.as_bytes()).map(drop)
    }
}

/// What a note says that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) file: FileFacts,
    pub(super) agreed: Agreed,
    /// The number of the mount.
    pub(super) device: (u32, u32),
    /// The file under the mount was made for it.
    pub(super) created: bool,
    /// The volume.
    pub(super) volume: [u8; 16],
}

/// The same as bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    flags: u64,
    size_bytes: u64,
    seconds: u64,
    nanoseconds: u32,
    minor: u32,
    preferred_bytes: u32,
    mode: u32,
    owner: [u32; 2],
    device: [u32; 2],
    read_only: u8,
    can_punch: u8,
    created: u8,
    unused: [u8; 5],
    volume: [u8; 16],
}

/// How often the file is open, and the number of the last request that changed that.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Count {
    pub(super) handles: u64,
    pub(super) unique: u64,
}

/// A file in memory that the keeper holds beside the descriptor. It is written without a wait.
#[derive(Clone)]
pub struct Note(Arc<OwnedFd>);

impl fmt::Debug for Note {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Note")
    }
}

impl Note {
    pub(super) fn new(facts: &Facts) -> io::Result<Self> {
        let file = memfd_create("voltier", MemfdFlags::CLOEXEC)?;
        let Facts { file: of, agreed, device, created, volume } = facts;
        let raw = Raw {
            magic: MAGIC,
            flags: agreed.flags,
            size_bytes: of.size_bytes,
            seconds: of.dated.0,
            nanoseconds: of.dated.1,
            minor: agreed.minor,
            preferred_bytes: of.preferred_bytes,
            mode: of.mode,
            owner: [of.owner.0, of.owner.1],
            device: [device.0, device.1],
            read_only: of.read_only.into(),
            can_punch: of.can_punch.into(),
            created: (*created).into(),
            unused: [0; 5],
            volume: *volume,
        };
        let note = Self(Arc::new(file));
        pwrite(&*note.0, raw.as_bytes(), 0)?;
        pwrite(&*note.0, Count::default().as_bytes(), COUNT_AT)?;
        Ok(note)
    }

    pub(super) fn of(file: OwnedFd) -> Self {
        Self(Arc::new(file))
    }

    /// What it says, if this version of the program can read it.
    pub(super) fn facts(&self) -> Option<Facts> {
        let mut raw = Raw::new_zeroed();
        let read = pread(&*self.0, raw.as_mut_bytes(), 0).ok()?;
        let file = FileFacts {
            size_bytes: raw.size_bytes,
            preferred_bytes: raw.preferred_bytes,
            read_only: raw.read_only != 0,
            can_punch: raw.can_punch != 0,
            mode: raw.mode,
            owner: (raw.owner[0], raw.owner[1]),
            dated: (raw.seconds, raw.nanoseconds),
        };
        let agreed = Agreed { minor: raw.minor, flags: raw.flags };
        let device = (raw.device[0], raw.device[1]);
        let (created, volume) = (raw.created != 0, raw.volume);
        let facts = Facts { file, agreed, device, created, volume };
        (read == size_of::<Raw>() && raw.magic == MAGIC).then_some(facts)
    }

    pub(super) fn count(&self) -> Count {
        let mut count = Count::default();
        // A note that cannot be read has counted nothing.
        let _ = pread(&*self.0, count.as_mut_bytes(), COUNT_AT);
        count
    }

    /// Tells the next daemon how often the file is open. It lies in one page, so that no kill leaves half of it.
    pub(super) fn set_count(&self, count: Count) {
        // The page is there since the note was made.
        let _ = pwrite(&*self.0, count.as_bytes(), COUNT_AT);
    }

    /// A note for a file that no keeper has, which is so often open.
    pub(super) fn with_handles(facts: &Facts, handles: u64) -> io::Result<Self> {
        let note = Self::new(facts)?;
        note.set_count(Count { handles, unique: 0 });
        Ok(note)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::fuse::abi::{InHeader, OpenIn, ROOT, opcode};
    use crate::fuse::session::Session;

    fn facts() -> Facts {
        let file = FileFacts {
            size_bytes: 1 << 40,
            preferred_bytes: 4096,
            read_only: false,
            can_punch: false,
            mode: 0o640,
            owner: (1, 2),
            dated: (3, 4),
        };
        let agreed = Agreed { minor: 45, flags: 1 << 39 };
        Facts { file, agreed, device: (0, 99), created: true, volume: [7; 16] }
    }

    #[test]
    fn an_open_or_close_that_comes_again_is_counted_once() {
        let note = Note::new(&facts()).unwrap();
        let begun = || {
            let handles = Arc::new(AtomicU64::new(0));
            let Facts { file, agreed, .. } = facts();
            let mut session = Session::new(file, Some(agreed), handles.clone());
            session.count_in(Some(note.clone()));
            (session, handles)
        };
        let ask = |session: &mut Session, opcode: u32, unique: u64| {
            let body = OpenIn { flags: 0, open_flags: 0 };
            let len = (size_of::<InHeader>() + size_of::<OpenIn>()) as u32;
            let header = InHeader { len, opcode, unique, nodeid: ROOT, ..InHeader::default() };
            session.request(&[header.as_bytes(), body.as_bytes()].concat(), &[]);
        };
        let (mut first, handles) = begun();
        ask(&mut first, opcode::OPEN, 2);
        ask(&mut first, opcode::OPEN, 4);
        assert_eq!(handles.load(Ordering::Relaxed), 2);
        // The first daemon had counted 4, and died before its answer.
        let (mut second, handles) = begun();
        ask(&mut second, opcode::OPEN, 4 | notify::RESENT);
        assert_eq!(handles.load(Ordering::Relaxed), 2);
        // It had only read 6.
        ask(&mut second, opcode::OPEN, 6 | notify::RESENT);
        ask(&mut second, opcode::RELEASE, 8);
        let (mut third, handles) = begun();
        assert_eq!(handles.load(Ordering::Relaxed), 2);
        ask(&mut third, opcode::RELEASE, 8 | notify::RESENT);
        assert_eq!(handles.load(Ordering::Relaxed), 2);
        ask(&mut third, opcode::RELEASE, 10);
        assert_eq!(handles.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_note_says_what_was_written_and_one_of_another_version_says_nothing() {
        let facts = Facts { file: FileFacts { read_only: true, ..facts().file }, ..facts() };
        let note = Note::new(&facts).unwrap();
        assert_eq!(note.facts(), Some(facts));
        note.set_count(Count { handles: 3, unique: 8 });
        let again = Note::of(note.fd().try_clone_to_owned().unwrap());
        assert_eq!((again.count().handles, again.count().unique), (3, 8));
        pwrite(note.fd(), b"\x02", 7).unwrap();
        assert_eq!(note.facts(), None);
    }
}
