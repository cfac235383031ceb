//! The messages between daemon and keeper: packets of a `SOCK_SEQPACKET` socket, descriptors beside them.
//!
//! The first byte is the version of the protocol, the second says what is asked or answered, the others are a name
//! or a number. A packet of one byte 0 has one meaning in every version: let go of everything and end.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The version of the protocol.
pub const VERSION: u8 = 1;

/// The packet that a keeper of any version understands.
pub(crate) const LET_GO: [u8; 1] = [0];

/// What a daemon asks.
pub(crate) mod ask {
    /// Hold the descriptors that come along, by this name.
    pub(crate) const PUT: u8 = b'p';
    /// Let go of a name.
    pub(crate) const DROP: u8 = b'd';
    /// The name of this number and its descriptors.
    pub(crate) const FETCH: u8 = b'f';
    /// When this connection ends, no daemon is to be waited for.
    pub(crate) const LAST: u8 = b'l';
}

/// What a keeper answers.
pub(crate) mod answer {
    /// It is done; or, to a connection, that there is a keeper.
    pub(crate) const DONE: u8 = b'.';
    /// A name, and its descriptors.
    pub(crate) const HELD: u8 = b'h';
    /// No more, or refused.
    pub(crate) const NO: u8 = b'-';
}

/// The longest packet: a path and a little more.
pub(crate) const PACKET_BYTES_MAX: usize = 4200;

/// The descriptor that is held, and its note.
#[derive(Debug)]
pub struct Pair {
    /// The descriptor of the device.
    pub device: OwnedFd,
    /// The note about it.
    pub note: OwnedFd,
}

/// A packet that was received.
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) pair: Option<Pair>,
}

/// Sends a packet whole, without a wait unless `flags` allow one.
pub(crate) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    pair: Option<[BorrowedFd<'_>; 2]>,
    flags: SendFlags,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if let Some(pair) = &pair {
        ancillary.push(SendAncillaryMessage::ScmRights(pair));
    }
    let flags = flags | SendFlags::NOSIGNAL;
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            sent => return Ok(sent.map(drop)?),
        }
    }
}

/// The next packet; `None` at the end of the connection.
pub(crate) fn receive(socket: impl AsFd, flags: RecvFlags) -> io::Result<Option<Packet>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let mut fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let mut fds = fds.next().into_iter().flatten();
    let pair = fds.next().zip(fds.next()).map(|(device, note)| Pair { device, note });
    if received.flags.intersects(rustix::net::ReturnFlags::TRUNC | rustix::net::ReturnFlags::CTRUNC)
    {
        return Err(ErrorKind::InvalidData.into());
    }
    bytes.truncate(received.bytes);
    Ok((!bytes.is_empty()).then_some(Packet { bytes, pair }))
}

/// A packet of this version.
pub(crate) fn packet(kind: u8, rest: &[u8]) -> Vec<u8> {
    [&[VERSION, kind], rest].concat()
}
