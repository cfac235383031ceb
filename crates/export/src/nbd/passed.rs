//! Clients that a daemon passes on to the next one: sockets, and what a session must know to go on.
//!
//! A connection is passed on between two requests: all that was read is answered, or is among the unread bytes of the
//! note. So the client sees a pause, and nothing else.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{MemfdFlags, memfd_create};
use voltier_nbd::INPUT_BYTES;
use voltier_ring::StreamAddress;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::info::ExportInfo;
use super::session::Point;

/// The version of the notes.
pub const NOTE_VERSION: u8 = 1;

/// The first bytes of a note: its version is the last of them.
const MAGIC: [u8; 8] = [b'v', b'o', b'l', b't', b'n', b'b', b'd', NOTE_VERSION];

/// The longest address: the path of a socket.
const ADDRESS_BYTES_MAX: usize = 4096;

/// A socket and its note.
pub struct Passed {
    /// The listening socket, or that of a client.
    pub socket: OwnedFd,
    /// What the next daemon must know of it.
    pub note: OwnedFd,
}

/// Of what a socket is: the next daemon serves it on for that and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whose {
    /// The identity of the volume.
    pub volume: [u8; 16],
    /// Where the server listens.
    pub at: StreamAddress,
}

/// What a socket is.
pub(super) enum Kind {
    /// The one that listens.
    Listener,
    /// A client that has heard nothing yet.
    Fresh,
    /// A client between two requests.
    Client(ClientNote),
}

/// What a session must know to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClientNote {
    /// What the client was told of the export.
    pub(super) told: Told,
    pub(super) point: Point,
    /// Received, and not read.
    pub(super) unread: Vec<u8>,
}

/// What a client was told of the export, and relies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    size_bytes: u64,
    flags: u16,
}

impl Told {
    pub(super) fn of(info: &ExportInfo, structured: bool) -> Self {
        Self { size_bytes: info.limits.bytes(), flags: info.transmission_flags(structured) }
    }
}

const LISTENER: u8 = b'l';
const FRESH: u8 = b'f';
const CLIENT: u8 = b'c';

/// A note as bytes; the address and the unread bytes follow.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    size_bytes: u64,
    skip_bytes: u64,
    address_bytes: u32,
    unread_bytes: u32,
    flags: u16,
    kind: u8,
    structured: u8,
    is_tcp: u8,
    unused: [u8; 3],
    volume: [u8; 16],
}

impl Passed {
    pub(super) fn new(socket: OwnedFd, of: &Whose, kind: &Kind) -> io::Result<Self> {
        let (is_tcp, address) = match &of.at {
            StreamAddress::Unix(path) => (false, path.as_os_str().as_bytes().to_vec()),
            StreamAddress::Tcp(address) => (true, address.to_string().into_bytes()),
        };
        let mut raw = Raw {
            magic: MAGIC,
            size_bytes: 0,
            skip_bytes: 0,
            address_bytes: address.len() as u32,
            unread_bytes: 0,
            flags: 0,
            kind: FRESH,
            structured: 0,
            is_tcp: is_tcp.into(),
            unused: [0; 3],
            volume: of.volume,
        };
        let mut unread: &[u8] = &[];
        match kind {
            Kind::Listener => raw.kind = LISTENER,
            Kind::Fresh => {}
            Kind::Client(client) => {
                raw.kind = CLIENT;
                (raw.size_bytes, raw.flags) = (client.told.size_bytes, client.told.flags);
                raw.structured = client.point.structured.into();
                raw.skip_bytes = client.point.skip_bytes;
                unread = &client.unread;
                raw.unread_bytes = unread.len() as u32;
            }
        }
        let mut note = File::from(memfd_create("voltier-nbd", MemfdFlags::CLOEXEC)?);
        note.write_all(raw.as_bytes())?;
        note.write_all(&address)?;
        note.write_all(unread)?;
        Ok(Self { socket, note: note.into() })
    }

    /// Of what it is, if this version of the program can read the note.
    pub fn whose(&self) -> Option<Whose> {
        self.read().ok().map(|(whose, _)| whose)
    }

    /// What it is, if this version of the program can read the note.
    pub(super) fn kind(&self) -> Option<Kind> {
        self.read().ok().map(|(_, kind)| kind)
    }

    fn read(&self) -> io::Result<(Whose, Kind)> {
        let mut note = File::from(self.note.try_clone()?);
        note.rewind()?;
        let mut raw = Raw::new_zeroed();
        note.read_exact(raw.as_mut_bytes())?;
        let (address_bytes, unread_bytes) = (raw.address_bytes as usize, raw.unread_bytes as usize);
        if raw.magic != MAGIC || address_bytes > ADDRESS_BYTES_MAX || unread_bytes > INPUT_BYTES {
            return Err(ErrorKind::InvalidData.into());
        }
        let (mut address, mut unread) = (vec![0; address_bytes], vec![0; unread_bytes]);
        note.read_exact(&mut address)?;
        note.read_exact(&mut unread)?;
        let wrong = || io::Error::from(ErrorKind::InvalidData);
        let address = match raw.is_tcp {
            0 => StreamAddress::Unix(OsStr::from_bytes(&address).into()),
            _ => {
                let text = String::from_utf8(address).map_err(|_| wrong())?;
                StreamAddress::Tcp(text.parse().map_err(|_| wrong())?)
            }
        };
        let kind = match raw.kind {
            LISTENER => Kind::Listener,
            FRESH => Kind::Fresh,
            CLIENT => Kind::Client(ClientNote {
                told: Told { size_bytes: raw.size_bytes, flags: raw.flags },
                point: Point { structured: raw.structured != 0, skip_bytes: raw.skip_bytes },
                unread,
            }),
            _ => return Err(wrong()),
        };
        Ok((Whose { volume: raw.volume, at: address }, kind))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn socket() -> OwnedFd {
        std::os::unix::net::UnixStream::pair().unwrap().0.into()
    }

    #[test]
    fn a_note_says_what_was_written_and_one_of_another_version_says_nothing() {
        let point = Point { structured: true, skip_bytes: 9 };
        let told = Told { size_bytes: 1 << 40, flags: 0x123 };
        let client = ClientNote { told, point, unread: vec![1, 2, 3] };
        let (volume, at) = ([3; 16], StreamAddress::Unix(PathBuf::from("/run/a b")));
        let of = Whose { volume, at };
        let passed = Passed::new(socket(), &of, &Kind::Client(client.clone())).unwrap();
        assert!(matches!(passed.kind(), Some(Kind::Client(read)) if read == client));
        assert_eq!(passed.whose(), Some(of));
        let of = Whose { volume, at: StreamAddress::Tcp("[::1]:10809".parse().unwrap()) };
        let passed = Passed::new(socket(), &of, &Kind::Listener).unwrap();
        assert!(matches!(passed.kind(), Some(Kind::Listener)));
        assert_eq!(passed.whose(), Some(of));
        rustix::io::pwrite(&passed.note, b"\x02", 7).unwrap();
        assert!(passed.kind().is_none() && passed.whose().is_none());
    }
}
