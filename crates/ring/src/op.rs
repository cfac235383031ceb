//! The operations of the ring: the lower of the two seams of the simulator.

use rustix::io::Errno;
use voltier_block::{Buf, Bytes, Payload};

use crate::fd::Fd;

/// Pieces one system call may gather (IOV_MAX).
pub(crate) const PIECES_MAX: usize = 1024;

/// A change to the space of a file's range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Give the space back; the range reads as zeroes, the size stays.
    PunchHole,
    /// Make the range read as zeroes and keep its space.
    ZeroRange,
}

/// One operation; it owns every buffer until its completion.
#[derive(Debug)]
pub enum Op {
    /// Read at a byte offset.
    Read {
        /// Open for reading.
        fd: Fd,
        /// In bytes.
        offset: u64,
        /// The buffer; the read brings at most its length.
        buf: Buf,
    },
    /// Read at a byte offset into several buffers, one after the other.
    ReadVectored {
        /// Open for reading.
        fd: Fd,
        /// In bytes.
        offset: u64,
        /// The buffers, at most 1024; the read brings at most the sum of their lengths.
        bufs: Vec<Buf>,
    },
    /// Write at a byte offset; `dsync` makes it durable when it completes.
    Write {
        /// Open for writing.
        fd: Fd,
        /// In bytes.
        offset: u64,
        /// One run, gathered.
        data: Payload,
        /// Durable when it completes (RWF_DSYNC).
        dsync: bool,
    },
    /// Make everything written durable (fdatasync).
    Sync {
        /// The file.
        fd: Fd,
    },
    /// Deallocate or zero a range, in bytes.
    Allocate {
        /// Open for writing.
        fd: Fd,
        /// The change.
        mode: AllocateMode,
        /// In bytes.
        offset: u64,
        /// In bytes.
        bytes: u64,
    },
    /// Wait until a read of the descriptor would not wait: something is there, or the other end is gone.
    Readable {
        /// Open for reading, and of a kind that can be polled.
        fd: Fd,
    },
    /// Wait for a client on a listening socket.
    Accept {
        /// The listening socket.
        fd: Fd,
    },
    /// Receive what is there, at least one byte unless the peer is done.
    Recv {
        /// The connected socket.
        fd: Fd,
        /// The buffer; the receive brings at most its length.
        buf: Buf,
    },
    /// Send pieces in order; may send only a part.
    Send {
        /// The connected socket.
        fd: Fd,
        /// Pieces, in order.
        data: Vec<Bytes>,
    },
}

impl Op {
    /// Whether it waits until somebody else does something: nothing is won if the kernel has it earlier.
    pub(crate) fn waits_for_peer(&self) -> bool {
        matches!(self, Self::Readable { .. } | Self::Accept { .. } | Self::Recv { .. })
    }

    /// The descriptor that the operation is on.
    pub(crate) fn fd(&self) -> &Fd {
        match self {
            Self::Read { fd, .. }
            | Self::ReadVectored { fd, .. }
            | Self::Write { fd, .. }
            | Self::Sync { fd }
            | Self::Allocate { fd, .. }
            | Self::Readable { fd }
            | Self::Accept { fd }
            | Self::Recv { fd, .. }
            | Self::Send { fd, .. } => fd,
        }
    }
}

/// The result: bytes moved (or the new descriptor of an accept), and the buffer of a read.
#[derive(Debug)]
pub struct OpOutcome {
    /// Bytes, descriptor number, or zero; or the kernel's error.
    pub result: Result<u32, Errno>,
    /// The buffer that a read or receive was given.
    pub buf: Option<Buf>,
    /// The buffers of a vectored read, in their order.
    pub bufs: Vec<Buf>,
}
