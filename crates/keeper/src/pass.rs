//! Descriptors that go with `exec` into the next program of this process: those that no keeper has, and those that a
//! service manager would give to another process only.

use std::env;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::wire::Pair;

/// The variable with the process, the number of the file that lists the descriptors, and the keeper if that is a child
/// of the process.
const VARIABLE: &str = "VOLTIER_PASSED";

/// What systemd passes to a service when it starts it: the next program must not take it for its own.
const OF_MANAGER: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// Descriptors with their notes, to be taken along by name.
#[derive(Default)]
pub struct Passing(Vec<(String, Pair)>);

/// How the next program is to be started, so that it finds them. They stay open over `exec` from now on.
pub struct Passed {
    /// A variable to set.
    pub variable: (&'static str, String),
    /// Variables to leave out.
    pub left_out: [&'static str; 3],
    /// The list and the descriptors on it.
    _open: Vec<OwnedFd>,
}

impl Passing {
    /// Takes a descriptor and a note along.
    pub fn add(&mut self, name: String, pair: Pair) {
        self.0.push((name, pair));
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Leaves all of them open for the next program.
    pub(crate) fn leave_open(self, keeper: Option<u32>) -> io::Result<Passed> {
        let mut list = std::fs::File::from(memfd_create("voltier-passed", MemfdFlags::CLOEXEC)?);
        let mut open = Vec::new();
        for (name, Pair { device, note }) in self.0 {
            for fd in [&device, &note] {
                fcntl_setfd(fd, FdFlags::empty())?;
                list.write_all(&fd.as_raw_fd().to_le_bytes())?;
            }
            let length = u32::try_from(name.len()).map_err(|_| ErrorKind::InvalidInput)?;
            list.write_all(&length.to_le_bytes())?;
            list.write_all(name.as_bytes())?;
            open.extend([device, note]);
        }
        fcntl_setfd(&list, FdFlags::empty())?;
        let (own, number) = (std::process::id(), list.as_raw_fd());
        let value = format!("{own}:{number}:{}", keeper.unwrap_or(0));
        open.push(list.into());
        Ok(Passed { variable: (VARIABLE, value), left_out: OF_MANAGER, _open: open })
    }
}

/// What an earlier program of this process has left.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) all: Vec<(String, Pair)>,
    /// The process of the keeper, which is a child of this one.
    pub(crate) keeper: Option<Pid>,
    /// Why some of it could not be taken.
    pub(crate) failed: Option<io::Error>,
}

/// Takes what an earlier program of this process has left open. To be called once.
pub(crate) fn take() -> Taken {
    let value = env::var(VARIABLE).unwrap_or_default();
    let numbers: Vec<i32> = value.split(':').filter_map(|number| number.parse().ok()).collect();
    // A child of that program has the variable, too.
    let [pid, number, keeper] = numbers[..] else { return Taken::default() };
    if Pid::from_raw(pid) != Some(getpid()) {
        return Taken::default();
    }
    let mut taken = Taken { keeper: Pid::from_raw(keeper), ..Taken::default() };
    taken.failed = take_all(number, &mut taken.all).err();
    taken
}

fn take_all(number: i32, all: &mut Vec<(String, Pair)>) -> io::Result<()> {
    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    let mut list = Vec::new();
    let mut file = std::fs::File::from(taken(&own, number)?);
    file.rewind()?;
    file.read_to_end(&mut list)?;
    let (mut rest, mut failed) = (&list[..], Ok(()));
    while !rest.is_empty() {
        let (device, note) = (next(&mut rest)?, next(&mut rest)?);
        // Both in any case: one that stays open would keep its connection for ever.
        let pair = (taken(&own, device), taken(&own, note));
        let length = usize::try_from(next(&mut rest)?).map_err(|_| ErrorKind::InvalidData)?;
        let (name, behind) = rest.split_at_checked(length).ok_or(ErrorKind::InvalidData)?;
        rest = behind;
        let name = String::from_utf8_lossy(name).into_owned();
        match pair {
            (Ok(device), Ok(note)) => all.push((name, Pair { device, note })),
            (Err(error), _) | (_, Err(error)) => failed = Err(error),
        }
    }
    failed
}

fn next(rest: &mut &[u8]) -> io::Result<i32> {
    let (number, behind) = rest.split_first_chunk().ok_or(ErrorKind::InvalidData)?;
    *rest = behind;
    Ok(i32::from_le_bytes(*number))
}

/// The descriptor of a number that `exec` left open, as one that no child inherits.
pub(crate) fn taken(own: impl AsFd, number: i32) -> io::Result<OwnedFd> {
    let fd = pidfd_getfd(own, number, PidfdGetfdFlags::empty());
    // Refused of a number that is not open.
    let _ = nix::unistd::close(number);
    Ok(fd?)
}
