//! The daemon's side: asking the keeper, and starting one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    listen, socket_with,
};
use rustix::process::{WaitOptions, waitpid};

use crate::manager::Manager;
use crate::pass::{self, Passed, Passing};
use crate::wire::{self, Packet, Pair, VERSION, answer, ask};

/// How long a keeper may take to answer. It waits for nobody.
const ANSWER_TIME: Duration = Duration::from_secs(20);

/// The name of the socket in the state folder.
const SOCKET: &str = "keeper.sock";

/// The keeper of a state folder, as its daemon knows it. The daemon has the lock of the folder.
pub struct Keeper {
    state: PathBuf,
    patience_s: u16,
    /// systemd keeps in its place.
    manager: Option<Manager>,
    link: Mutex<Link>,
    /// The process of the keeper, if this one has started it; else 0.
    child: AtomicU32,
}

#[derive(Default)]
struct Link {
    socket: Option<OwnedFd>,
    /// Names that the keeper holds.
    names: Vec<String>,
    /// The daemon is about to end.
    is_last: bool,
}

/// What an earlier daemon left.
pub struct Left {
    /// The descriptor, and its note.
    pub pair: Pair,
    /// What the keeper has of it, if it has it.
    pub held: Held,
    /// The daemon before passed it on in order: it had come to rest.
    pub is_passed: bool,
}

/// Something that the keeper holds. Clones are the same.
#[derive(Clone)]
pub struct Held {
    keeper: Arc<Keeper>,
    /// Until it is let go.
    name: Arc<Mutex<Option<String>>>,
}

impl Held {
    fn new(keeper: &Arc<Keeper>, name: &str) -> Self {
        let name = Arc::new(Mutex::new(Some(name.to_owned())));
        Self { keeper: Arc::clone(keeper), name }
    }

    /// Has the keeper let go of it, once.
    pub fn release(&self) {
        let mut name = self.name.lock().unwrap_or_else(PoisonError::into_inner);
        name.take().into_iter().for_each(|name| self.keeper.release(&name));
    }
}

impl Keeper {
    /// The keeper of the state folder `state`, whether it runs or not. One that is started waits for a daemon for
    /// `patience_s` seconds.
    pub fn of(state: &Path, patience_s: u16) -> Arc<Self> {
        let manager = Manager::of_this_process();
        let (state, link, child) = (state.to_owned(), Mutex::default(), AtomicU32::new(0));
        Arc::new(Self { state, patience_s, manager, link, child })
    }

    fn lock(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn socket(&self) -> PathBuf {
        self.state.join(SOCKET)
    }

    /// All that an earlier daemon left, by name, and why some of it cannot be had, if so: a keeper of another version,
    /// or one that does not answer. To be called once, before anything is put.
    pub fn fetch(self: &Arc<Self>) -> (Vec<(String, Left)>, Option<io::Error>) {
        let (mut all, mut failed) = (BTreeMap::new(), None);
        // What was passed first: it may be among the others, too.
        let taken = pass::take();
        if let Some(keeper) = taken.keeper {
            self.child.store(keeper.as_raw_pid().unsigned_abs(), Ordering::Relaxed);
            let wait = move || {
                // Whoever else has waited for it did what is wanted.
                let _ = waitpid(Some(keeper), WaitOptions::empty());
            };
            failed = thread::Builder::new().name("keeper".into()).spawn(wait).err();
        }
        let passed = taken.all.into_iter().map(|(name, pair)| (name, pair, true));
        let mut kept = Vec::new();
        if self.manager.is_some() {
            match Manager::fetch() {
                Ok(fetched) => kept.extend(fetched),
                Err(error) => failed = Some(error),
            }
        }
        // Of a daemon that a command had started, too.
        match self.fetch_from_keeper() {
            Ok(fetched) => kept.extend(fetched),
            Err(error) => failed = Some(error),
        }
        let kept = kept.into_iter().map(|(name, pair)| (name, pair, false));
        for (name, pair, is_passed) in passed.chain(kept) {
            let held = Held::new(self, &name);
            all.entry(name).or_insert(Left { pair, held, is_passed });
        }
        (all.into_iter().collect(), failed.or(taken.failed))
    }

    fn fetch_from_keeper(&self) -> io::Result<Vec<(String, Pair)>> {
        let mut link = self.lock();
        let socket = match self.connected() {
            Ok(socket) => socket,
            Err(error) => {
                // What is left where nobody listens.
                let _ = fs::remove_file(self.socket());
                return match error.kind() {
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused => Ok(Vec::new()),
                    _ => Err(error),
                };
            }
        };
        let all = Self::fetch_all(&socket).inspect_err(|_| {
            // What is not known here must not make its users wait.
            let _ = wire::send(&socket, &wire::LET_GO, None, SendFlags::empty());
        })?;
        link.names.extend(all.iter().map(|(name, ..)| name.clone()));
        match all.is_empty() {
            true => self.leave(&mut link),
            false => link.socket = Some(socket),
        }
        Ok(all)
    }

    fn fetch_all(socket: &OwnedFd) -> io::Result<Vec<(String, Pair)>> {
        let mut all = Vec::new();
        for number in 0_u32.. {
            let packet = wire::packet(ask::FETCH, &number.to_le_bytes());
            let Packet { bytes, pair } = asked(socket, &packet, None)?;
            let Some(pair) = pair.filter(|_| bytes[1] == answer::HELD) else { break };
            let name = String::from_utf8_lossy(&bytes[2..]).into_owned();
            all.push((name, pair));
        }
        Ok(all)
    }

    /// Gives the keeper a descriptor and a note to hold; one is started if none runs.
    ///
    /// # Errors
    /// When there is none, and none can be started.
    pub fn put(
        self: &Arc<Self>,
        name: &str,
        device: BorrowedFd<'_>,
        note: BorrowedFd<'_>,
    ) -> io::Result<Held> {
        if let Some(manager) = &self.manager {
            return manager.put(name, device, note).map(|()| Held::new(self, name));
        }
        let mut link = self.lock();
        let packet = wire::packet(ask::PUT, name.as_bytes());
        let put = |socket: &OwnedFd| done(asked(socket, &packet, Some([device, note]))?);
        if link.socket.as_ref().is_none_or(|socket| put(socket).is_err()) {
            // The one before was killed, and what it held is not kept any more.
            *link = Link { is_last: link.is_last, ..Link::default() };
            let socket = self.start()?;
            put(&socket)?;
            if link.is_last {
                let _ = asked(&socket, &wire::packet(ask::LAST, &[]), None);
            }
            link.socket = Some(socket);
        }
        link.names.push(name.to_owned());
        Ok(Held::new(self, name))
    }

    fn release(&self, name: &str) {
        self.manager.iter().for_each(|manager| manager.release(name));
        let mut link = self.lock();
        if !link.names.iter().any(|known| known == name) {
            return;
        }
        link.names.retain(|known| known != name);
        if let Some(socket) = &link.socket {
            // A keeper that is gone holds nothing.
            let _ = asked(socket, &wire::packet(ask::DROP, name.as_bytes()), None);
        }
        if link.names.is_empty() {
            self.leave(&mut link);
        }
    }

    /// Says that the daemon ends in order: nothing that it leaves is to wait for another one.
    pub fn end(&self) {
        let mut link = self.lock();
        link.is_last = true;
        if let Some(socket) = &link.socket {
            let _ = asked(socket, &wire::packet(ask::LAST, &[]), None);
        }
    }

    /// Leaves descriptors open for the next program of this process, which fetches them with what the keeper has.
    ///
    /// # Errors
    /// When there is no memory for the list.
    pub fn pass_on(&self, passing: Passing) -> io::Result<Passed> {
        let child = self.child.load(Ordering::Relaxed);
        passing.leave_open((child > 0).then_some(child))
    }

    /// Hangs up on a keeper that holds nothing, which ends it.
    fn leave(&self, link: &mut Link) {
        let _ = fs::remove_file(self.socket());
        link.socket = None;
    }

    /// A connection to the keeper that runs.
    fn connected(&self) -> io::Result<OwnedFd> {
        let socket = socket()?;
        connect(&socket, &SocketAddrUnix::new(self.socket())?)?;
        if socket_peercred(&socket)?.uid != rustix::process::geteuid() {
            return Err(ErrorKind::PermissionDenied.into());
        }
        for timeout in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, timeout, Some(ANSWER_TIME))?;
        }
        let hello = wire::receive(&socket, RecvFlags::empty()).inspect_err(|_| {
            // It may be slow, and must not go on holding what nobody knows of.
            let _ = wire::send(&socket, &wire::LET_GO, None, SendFlags::empty());
        })?;
        let hello = hello.ok_or(ErrorKind::ConnectionReset)?;
        if hello.bytes[0] != VERSION {
            // Its daemon is gone, and this one cannot serve on: who waits must hear of it.
            let _ = wire::send(&socket, &wire::LET_GO, None, SendFlags::empty());
            return Err(io::Error::new(ErrorKind::Unsupported, "it is of another version"));
        }
        Ok(socket)
    }

    /// Starts a keeper: this program again, with the listening socket as its standard input.
    fn start(&self) -> io::Result<OwnedFd> {
        let path = self.socket();
        let _ = fs::remove_file(&path);
        let listener = socket()?;
        bind(&listener, &SocketAddrUnix::new(&path)?)?;
        rustix::fs::chmod(&path, rustix::fs::Mode::from_raw_mode(0o600))?;
        listen(&listener, 8)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("voltier").arg("--state").arg(&self.state);
        command.args(["keeper", "--keep", &self.patience_s.to_string()]);
        command.stdin(listener).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        self.child.store(child.id(), Ordering::Relaxed);
        // The kernel remembers how a child ended until somebody asks.
        let wait = move || drop(child.wait());
        thread::Builder::new().name("keeper".into()).spawn(wait)?;
        self.connected()
    }
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn asked(socket: &OwnedFd, packet: &[u8], pair: Option<[BorrowedFd<'_>; 2]>) -> io::Result<Packet> {
    wire::send(socket.as_fd(), packet, pair, SendFlags::empty())?;
    let answer = wire::receive(socket, RecvFlags::empty())?.ok_or(ErrorKind::ConnectionReset)?;
    match answer.bytes.len() >= 2 {
        true => Ok(answer),
        false => Err(ErrorKind::InvalidData.into()),
    }
}

fn done(answer: Packet) -> io::Result<()> {
    match answer.bytes[1] {
        answer::DONE => Ok(()),
        _ => Err(io::Error::other("it refused")),
    }
}
