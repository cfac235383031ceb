//! A shelf of drives that misbehave when they are told to: files of a FUSE file system of the test's process.
//!
//! A thread of each drive serves the requests one by one from a file behind the drive. So a drive that hangs
//! or is slow holds up no other one. Requests that came meanwhile are done when the drive is well again.
#![allow(unreachable_pub, reason = "shared by the modules of the tests")]

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, WriteFlags,
};
use rustix::io::Errno;

use super::Instance;

/// The kernel remembers nothing: a drive may be pulled at any moment.
const NO_TIME: Duration = Duration::ZERO;
/// Requests under way of all drives: those of a drive that hangs take no room of the others.
const REQUESTS_MAX: u16 = 8192;
/// The number of the first drive's inode; the folder has 1.
const FIRST_INODE: u64 = 2;

/// How a drive behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduct {
    /// The drive serves.
    Serves,
    /// The drive fails one request in so many with EIO, by its dice.
    FailsOneIn(u32),
    /// The drive fails every read so.
    RefusesReads(Errno),
    /// The drive fails every write so.
    RefusesWrites(Errno),
    /// The drive fails every flush so.
    RefusesFlushes(Errno),
    /// The drive fails every write and every flush so, as a failing SSD does.
    RefusesChanges(Errno),
    /// The drive takes so long for each request.
    Takes(Duration),
    /// The drive answers nothing. Requests wait, and are done later.
    Hangs,
    /// The drive keeps the first write that comes, and serves everything else. It does the write last of all
    /// when it behaves otherwise.
    HoldsOneWrite,
    /// The drive is pulled: its name is gone, and whoever has it open hears ENXIO.
    Gone,
}

enum Request {
    Read { offset: u64, length: u32, reply: ReplyData },
    Write { offset: u64, data: Vec<u8>, reply: ReplyWrite },
    Flush { reply: ReplyEmpty },
}

impl Request {
    fn fail(self, errno: Errno) {
        let errno = fuser::Errno::from_i32(errno.raw_os_error());
        match self {
            Self::Read { reply, .. } => reply.error(errno),
            Self::Write { reply, .. } => reply.error(errno),
            Self::Flush { reply } => reply.error(errno),
        }
    }

    fn serve(self, behind: &File) {
        match self {
            Self::Read { offset, length, reply } => {
                let mut data = vec![0; length as usize];
                let rest = behind.metadata().unwrap().len().saturating_sub(offset);
                data.truncate(usize::try_from(rest).unwrap().min(data.len()));
                behind.read_exact_at(&mut data, offset).unwrap();
                reply.data(&data);
            }
            Self::Write { offset, data, reply } => {
                behind.write_all_at(&data, offset).unwrap();
                reply.written(data.len() as u32);
            }
            Self::Flush { reply } => reply.ok(),
        }
    }
}

struct State {
    conduct: Conduct,
    queue: VecDeque<Request>,
    held: Option<Request>,
    dice: u64,
    failed: u64,
}

impl State {
    fn behave(&mut self, conduct: Conduct) {
        self.conduct = conduct;
        self.queue.extend(self.held.take());
    }
}

impl State {
    /// Why a request fails, if the conduct of the drive is so.
    fn verdict(&mut self, request: &Request) -> Option<Errno> {
        match (self.conduct, request) {
            (Conduct::Gone, _) => Some(Errno::NXIO),
            (Conduct::RefusesReads(errno), Request::Read { .. })
            | (Conduct::RefusesWrites(errno), Request::Write { .. })
            | (Conduct::RefusesFlushes(errno), Request::Flush { .. })
            | (Conduct::RefusesChanges(errno), Request::Write { .. } | Request::Flush { .. }) => {
                Some(errno)
            }
            (Conduct::FailsOneIn(rate), _) => {
                self.dice ^= self.dice << 13;
                self.dice ^= self.dice >> 7;
                self.dice ^= self.dice << 17;
                self.dice.is_multiple_of(rate.into()).then_some(Errno::IO)
            }
            _ => None,
        }
    }
}

struct Drive {
    name: String,
    behind: File,
    state: Mutex<State>,
    news: Condvar,
}

impl Drive {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_there(&self) -> bool {
        self.lock().conduct != Conduct::Gone
    }

    fn behave(&self, conduct: Conduct) {
        self.lock().behave(conduct);
        self.news.notify_all();
    }

    fn ask(&self, request: Request) {
        self.lock().queue.push_back(request);
        self.news.notify_all();
    }

    /// Serves for as long as the process lives.
    fn serve(&self) {
        loop {
            let waits =
                |state: &mut State| state.conduct == Conduct::Hangs || state.queue.is_empty();
            let state = self.news.wait_while(self.lock(), waits);
            let mut state = state.unwrap_or_else(PoisonError::into_inner);
            let Some(request) = state.queue.pop_front() else { continue };
            let is_write = matches!(request, Request::Write { .. });
            if state.conduct == Conduct::HoldsOneWrite && is_write && state.held.is_none() {
                state.held = Some(request);
                continue;
            }
            let (conduct, verdict) = (state.conduct, state.verdict(&request));
            state.failed += u64::from(verdict.is_some());
            drop(state);
            if let Conduct::Takes(time) = conduct {
                thread::park_timeout(time);
            }
            match verdict {
                Some(errno) => request.fail(errno),
                None => request.serve(&self.behind),
            }
        }
    }

    fn attributes(&self, inode: INodeNo) -> FileAttr {
        attributes(inode, FileType::RegularFile, self.behind.metadata().unwrap().len())
    }
}

fn attributes(ino: INodeNo, kind: FileType, size: u64) -> FileAttr {
    let time = UNIX_EPOCH;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    FileAttr {
        ino,
        size,
        blocks: size / 512,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm: if kind == FileType::Directory { 0o700 } else { 0o600 },
        nlink: 1,
        uid,
        gid,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

type Drives = Arc<Mutex<Vec<Arc<Drive>>>>;

/// The shelf; when it is dropped, its drives answer everything, and the file system goes away. Declare it
/// behind the instance: a daemon with requests that hang does not end.
pub struct Shelf {
    drives: Drives,
    at: PathBuf,
    behind: PathBuf,
    session: Option<BackgroundSession>,
}

impl Shelf {
    /// Mounts a shelf in the folder of an instance; `None`, aloud, where there is no FUSE.
    pub fn mount(instance: &Instance) -> Option<Self> {
        let (at, behind) = (instance.path("shelf"), instance.path("behind"));
        fs::create_dir(&at).unwrap();
        fs::create_dir(&behind).unwrap();
        let drives = Drives::default();
        let mut config = fuser::Config::default();
        config.mount_options = vec![MountOption::FSName("shelf".to_owned()), MountOption::NoAtime];
        let mounted = fuser::Session::new(Folder(drives.clone()), &at, &config);
        match mounted.and_then(fuser::Session::spawn) {
            Ok(session) => Some(Self { drives, at, behind, session: Some(session) }),
            Err(error) => {
                eprintln!("left out: this user may mount no FUSE file system: {error}");
                None
            }
        }
    }

    /// A drive that serves; its path.
    pub fn drive(&self, name: &str, bytes: u64) -> String {
        let path = self.behind.join(name);
        let mut options = File::options();
        let behind = options.read(true).write(true).create(true).truncate(true).open(path).unwrap();
        behind.set_len(bytes).unwrap();
        let mut drives = self.drives.lock().unwrap();
        let dice = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(drives.len() as u64 + 1);
        let queue = VecDeque::new();
        let state =
            Mutex::new(State { conduct: Conduct::Serves, queue, held: None, dice, failed: 0 });
        let name = name.to_owned();
        let drive = Arc::new(Drive { name, behind, state, news: Condvar::new() });
        drives.push(drive.clone());
        thread::Builder::new().spawn(move || drive.serve()).unwrap();
        self.at.join(&drives.last().unwrap().name).to_str().unwrap().to_owned()
    }

    /// So many drives of 32 MiB, called by a prefix and a number.
    pub fn drives(&self, prefix: &str, count: usize) -> Vec<String> {
        (0..count).map(|number| self.drive(&format!("{prefix}{number}"), 32 << 20)).collect()
    }

    fn find(&self, path: &str) -> Arc<Drive> {
        let drives = self.drives.lock().unwrap();
        drives.iter().find(|drive| path.ends_with(&format!("/{}", drive.name))).unwrap().clone()
    }

    /// Tells the drive with this path how to behave from now on.
    pub fn tell(&self, path: &str, conduct: Conduct) {
        self.find(path).behave(conduct);
    }

    /// The same for several, in the same moment: as an adapter does.
    pub fn tell_all<'a>(&self, paths: impl IntoIterator<Item = &'a String>, conduct: Conduct) {
        let drives: Vec<Arc<Drive>> = paths.into_iter().map(|path| self.find(path)).collect();
        let mut states: Vec<_> = drives.iter().map(|drive| drive.lock()).collect();
        states.iter_mut().for_each(|state| state.behave(conduct));
        drop(states);
        drives.iter().for_each(|drive| drive.news.notify_all());
    }

    /// Requests that the drive has not answered.
    pub fn waiting(&self, path: &str) -> usize {
        self.find(path).lock().queue.len()
    }

    /// Whether the drive keeps a write.
    pub fn holds_a_write(&self, path: &str) -> bool {
        self.find(path).lock().held.is_some()
    }

    /// Requests that the drive has failed.
    pub fn failed(&self, path: &str) -> u64 {
        self.find(path).lock().failed
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        // Nothing may wait for the drives any more, and nobody may write to them.
        self.drives.lock().unwrap().iter().for_each(|drive| drive.behave(Conduct::Gone));
        self.session.take();
    }
}

/// The folder as the kernel sees it.
struct Folder(Drives);

impl Folder {
    fn named(&self, name: &OsStr) -> Option<(INodeNo, Arc<Drive>)> {
        let drives = self.0.lock().unwrap();
        let place = drives.iter().position(|drive| name == OsStr::new(&drive.name))?;
        let drive = drives[place].clone();
        drive.is_there().then_some((INodeNo(place as u64 + FIRST_INODE), drive))
    }

    fn drive(&self, inode: INodeNo) -> Arc<Drive> {
        self.0.lock().unwrap()[(inode.0 - FIRST_INODE) as usize].clone()
    }
}

impl Filesystem for Folder {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // A kernel that lacks it sends one request at a time.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_background(REQUESTS_MAX);
        Ok(())
    }

    fn lookup(&self, _: &fuser::Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.named(name) {
            Some((inode, drive)) => {
                reply.entry(&NO_TIME, &drive.attributes(inode), Generation(0));
            }
            None => reply.error(fuser::Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &fuser::Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if inode == INodeNo::ROOT {
            reply.attr(&NO_TIME, &attributes(inode, FileType::Directory, 0));
            return;
        }
        let drive = self.drive(inode);
        if drive.is_there() {
            reply.attr(&NO_TIME, &drive.attributes(inode));
        } else {
            reply.error(fuser::Errno::ENXIO);
        }
    }

    fn readdir(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let drives = self.0.lock().unwrap();
        for (place, drive) in (0_u64..).zip(&*drives).skip(offset as usize) {
            let inode = INodeNo(place + FIRST_INODE);
            let kind = FileType::RegularFile;
            if drive.is_there() && reply.add(inode, place + 1, kind, &drive.name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, _: &fuser::Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if !self.drive(inode).is_there() {
            return reply.error(fuser::Errno::ENXIO);
        }
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), direct | FopenFlags::FOPEN_NOFLUSH);
    }

    fn read(
        &self,
        _: &fuser::Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.drive(inode).ask(Request::Read { offset, length, reply });
    }

    fn write(
        &self,
        _: &fuser::Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.drive(inode).ask(Request::Write { offset, data: data.to_vec(), reply });
    }

    fn flush(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(&self, _: &fuser::Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.drive(inode).ask(Request::Flush { reply });
    }
}
