//! Open descriptors of the kernel's, by their numbers.
//!
//! UNSAFETY: a number that the kernel just gave is adopted. A number that stays its owner's is made to stand
//! for another file. Nothing else here is unsafe.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, open};
use rustix::net;

/// An open descriptor of the kernel's.
#[derive(Debug)]
pub struct Descriptor {
    fd: OwnedFd,
    /// The file is closed, and the number stands for nothing.
    is_released: AtomicBool,
}

/// A descriptor among all that somebody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorId(usize);

impl DescriptorId {
    pub(crate) fn of(descriptor: &Arc<Descriptor>) -> Self {
        Self(Arc::as_ptr(descriptor) as usize)
    }
}

impl Descriptor {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd, is_released: AtomicBool::new(false) }
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(crate) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Acquire)
    }

    /// Ends a connection, in both directions, or the listening of a socket.
    pub(crate) fn hang_up(&self) {
        // A file is no socket, and a peer may be gone already.
        let _ = net::shutdown(&self.fd, net::Shutdown::Both);
    }

    /// Closes the file under its owners. The number that they have reads and writes nothing any more.
    pub(crate) fn release(&self) {
        // Without a descriptor left the file stays open, as without this call.
        if let Ok(nothing) = open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            && replace(&self.fd, &nothing).is_ok()
        {
            self.is_released.store(true, Ordering::Release);
        }
    }
}

/// Has a descriptor stand for another file. The old file is closed when the kernel is done with it.
fn replace(fd: &OwnedFd, by: &OwnedFd) -> io::Result<()> {
    // SAFETY: both numbers are open, and the first one stays its owner's.
    match unsafe { libc::dup3(by.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) } {
        ..0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Owns a descriptor that an accept returned.
pub(crate) fn adopt(number: u32) -> OwnedFd {
    // SAFETY: the kernel just made this descriptor for us and nobody else has its number.
    unsafe { OwnedFd::from_raw_fd(number as RawFd) }
}
