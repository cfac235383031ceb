//! systemd as the keeper: it has a store of descriptors for each service, and ends all other processes of a service
//! with the daemon, a keeper too.

use std::collections::BTreeMap;
use std::env;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{FileType, fstat};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::pass;
use crate::wire::{self, Pair};

/// The first descriptor that systemd passes.
const FIRST: i32 = 3;

/// The longest name of a descriptor.
const NAME_BYTES_MAX: usize = 255;

/// The service manager of this process.
pub(crate) struct Manager(OwnedFd);

impl Manager {
    /// The service manager, if it keeps descriptors of this process. Versions before 254 do not say so.
    pub(crate) fn of_this_process() -> Option<Self> {
        let room: u32 = env::var("FDSTORE").ok()?.parse().ok()?;
        let at = env::var("NOTIFY_SOCKET").ok().filter(|_| room > 0)?;
        let address = match at.strip_prefix('@') {
            Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
            None => SocketAddrUnix::new(&at),
        };
        let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
        let socket = socket_with(AddressFamily::UNIX, kind, flags, None).ok()?;
        connect(&socket, &address.ok()?).ok()?;
        Some(Self(socket))
    }

    /// Has both descriptors kept. They are not watched: a connection that ends is for the daemon to see.
    pub(crate) fn put(
        &self,
        name: &str,
        device: BorrowedFd<'_>,
        note: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let is_plain = |byte: u8| (b' '..0x7f).contains(&byte) && byte != b':';
        if name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
            return Err(io::Error::other(
                "systemd takes no such path: a colon, no ASCII, or too long",
            ));
        }
        let message = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}");
        wire::send(&self.0, message.as_bytes(), Some([device, note]), SendFlags::empty())
    }

    pub(crate) fn release(&self, name: &str) {
        let message = format!("FDSTOREREMOVE=1\nFDNAME={name}");
        // One that does not listen ends with the machine.
        let _ = wire::send(&self.0, message.as_bytes(), None, SendFlags::empty());
    }

    /// What it kept of an earlier process of the service. To be called once.
    ///
    /// # Errors
    /// When the process cannot ask for its own descriptors.
    pub(crate) fn fetch() -> io::Result<Vec<(String, Pair)>> {
        let number = |name: &str| env::var(name).ok()?.parse::<u32>().ok();
        if number("LISTEN_PID") != Some(std::process::id()) {
            return Ok(Vec::new());
        }
        let count = number("LISTEN_FDS").unwrap_or(0) as usize;
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        let own = pidfd_open(getpid(), PidfdFlags::empty())?;
        let mut found: BTreeMap<String, (Option<OwnedFd>, Option<OwnedFd>)> = BTreeMap::new();
        // Every one that came is taken or closed: one that stays open here would keep its connection for ever.
        let names = names.split(':').chain(std::iter::repeat(""));
        for (number, name) in (FIRST..).zip(names).take(count) {
            let Ok(fd) = pass::taken(&own, number) else { continue };
            let Ok(facts) = fstat(&fd) else { continue };
            let pair = found.entry(name.to_owned()).or_default();
            match FileType::from_raw_mode(facts.st_mode) {
                FileType::CharacterDevice => pair.0 = Some(fd),
                _ => pair.1 = Some(fd),
            }
        }
        let pairs = found.into_iter().filter_map(|(name, (device, note))| {
            Some((name, Pair { device: device?, note: note? }))
        });
        Ok(pairs.collect())
    }
}
