//! Mounting the file over its own path, and taking it away again.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use voltier_keeper::{Held, Keeper, Pair};

use super::attach::{Options, attach, detach_by_helper};
use super::handover::Start;
use super::kept::{Facts, Keep, Left, Note};
use super::serve::FileExport;
use super::session::FileFacts;
use crate::access::FileAccess;
use crate::counters::ExportCounters;
use crate::error::ExportError;

/// Mode of an empty file that is made to be mounted over: by it, one that was left is known.
const MOUNT_POINT_MODE: u32 = 0o600;

/// How long the kernel may take to end the connection of a file that was unmounted. It does so at once, unless
/// the file is still mounted elsewhere: in the mount namespace of another program, say.
const END_TIME: Duration = Duration::from_secs(5);

/// A mounted FUSE file; dropping it cuts its users off.
pub struct FuseFile {
    path: PathBuf,
    created: bool,
    export: FileExport,
    is_over: bool,
    /// The mount, by the device number that the kernel gave it.
    device: Option<DeviceNumber>,
    /// What the keeper has of it.
    held: Option<Held>,
    is_adopted: bool,
    /// What another daemon has to know of it; none of a mount that could not be looked at.
    facts: Option<Facts>,
    note: Option<Note>,
    news: Vec<News>,
}

/// A line to be said of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// The line.
    pub line: String,
    /// Whether a user has to look at it: something is not as it usually is on this machine.
    pub is_warning: bool,
}

/// Why no keeper has a file.
enum NotKept {
    /// It cannot, on this machine.
    ByKernel,
    Failed(String),
}

impl From<&str> for NotKept {
    fn from(why: &str) -> Self {
        Self::Failed(why.to_owned())
    }
}

/// Of a kernel without what a file needs to outlive a killed daemon.
const NO_RESEND: &str = "the kernel does not send requests again (Linux 6.9)";

/// The major and minor number of a device.
type DeviceNumber = (u32, u32);

/// The device that a path is on, as far as the kernel knows without asking the file system's server.
fn device_of(path: &Path) -> Option<DeviceNumber> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    let file = statx(CWD, path, flags, StatxFlags::TYPE).ok()?;
    Some((file.stx_dev_major, file.stx_dev_minor))
}

impl FuseFile {
    /// Checks that the kernel has FUSE for us. `path` is for the message.
    ///
    /// # Errors
    /// When FUSE is missing or not permitted.
    pub fn check(path: &Path) -> Result<(), ExportError> {
        check_fuse(path)
    }

    /// Mounts an export over the file at `path`, which is made if it is missing. `access` says who may open
    /// the file.
    ///
    /// Must not be called on the device's core: the kernel's first requests may need it.
    ///
    /// # Errors
    /// When FUSE is missing or not permitted, or the path is unfit. Unfit is a path in use, not an empty
    /// file, or in a folder that does not exist.
    pub fn mount(
        export: FileExport,
        path: &Path,
        access: FileAccess,
    ) -> Result<FuseFile, ExportError> {
        Self::mount_kept(export, path, access, Keep::default())
    }

    /// The same for a file that outlives the daemon, if there is a keeper: one that an earlier daemon left is
    /// served on. One that cannot be is ended and mounted anew, and [news](Self::news) tell why.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub fn mount_kept(
        export: FileExport,
        path: &Path,
        access: FileAccess,
        keep: Keep,
    ) -> Result<FuseFile, ExportError> {
        let mut news = Vec::new();
        if let Some(left) = keep.left {
            match serve_on(&export, path, access, &left, keep.volume) {
                Ok((facts, note)) => {
                    export.counters.connected();
                    export.handover.ends_with(left.held.clone());
                    return Ok(FuseFile {
                        path: path.to_owned(),
                        created: facts.created,
                        export,
                        is_over: false,
                        device: Some(facts.device),
                        held: Some(left.held),
                        is_adopted: true,
                        facts: Some(facts),
                        note: Some(note),
                        news,
                    });
                }
                Err(why) => {
                    let path = path.display();
                    let line = format!("{path} is mounted anew, and its users were cut off: {why}");
                    news.push(News { line, is_warning: true });
                    left.end();
                }
            }
        }
        check_fuse(path)?;
        clear_dead(path);
        let created = prepare_mount_point(path)?;
        match mount_over(&export, path, access, created, keep.keeper.map(|it| (it, keep.volume))) {
            Ok(Mounted { held, facts, note }) => {
                export.counters.connected();
                let held = held.unwrap_or_else(|why| {
                    let (why, is_warning) = match why {
                        NotKept::ByKernel => (NO_RESEND.to_owned(), false),
                        NotKept::Failed(why) => (why, true),
                    };
                    let path = path.display();
                    let line =
                        format!("users of {path} are cut off if this daemon is killed: {why}");
                    news.push(News { line, is_warning });
                    None
                });
                held.iter().for_each(|held| export.handover.ends_with(held.clone()));
                Ok(FuseFile {
                    path: path.to_owned(),
                    created,
                    export,
                    is_over: false,
                    device: device_of(path),
                    held,
                    is_adopted: false,
                    facts,
                    note,
                    news,
                })
            }
            Err(error) => {
                if created {
                    // The empty file was ours, and it is in nobody's way if it stays.
                    let _ = fs::remove_file(path);
                }
                Err(error)
            }
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether an earlier daemon has mounted it.
    pub fn is_adopted(&self) -> bool {
        self.is_adopted
    }

    /// What is to be said of its mount, once.
    pub fn news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Has the keeper let go of it, without which the kernel would not end its connection.
    fn release(&self) {
        self.held.iter().for_each(Held::release);
    }

    /// The counters so far.
    pub fn counters(&self) -> ExportCounters {
        self.export.counters()
    }

    /// How often the file is open now. The kernel tells of a close a moment after it.
    pub fn handles(&self) -> u64 {
        self.export.handles.load(Ordering::Relaxed)
    }

    /// Whether who opens the path comes to the volume: false when somebody unmounted the file, mounted
    /// something over it, or ended its connection. Waits for nobody.
    pub fn is_reachable(&self) -> bool {
        self.is_served() && device_of(&self.path) == self.device
    }

    /// Whether the kernel still brings requests, by whatever way clients come to the file.
    fn is_served(&self) -> bool {
        !self.is_over && self.export.handover.is_served()
    }

    /// Takes the file away; the path is as it was before.
    ///
    /// Must not be called on the device's core: what the kernel still holds is written back first.
    ///
    /// # Errors
    /// While somebody has the file open; it stays mounted then.
    pub fn stop(&mut self) -> Result<(), ExportError> {
        if !self.is_reachable() {
            return self.stop_unreachable();
        }
        let unmounted = match unmount(&self.path, UnmountFlags::empty()) {
            // Without privileges it is fusermount's job.
            Err(Errno::PERM) => detach_by_helper(&self.path, false),
            // Not mounted any more: somebody was faster.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(errno) => Err(errno.into()),
        };
        match unmounted {
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
                return Err(ExportError::FileInUse(self.path.clone()));
            }
            Err(source) => return Err(ExportError::Unmount { path: self.path.clone(), source }),
            Ok(()) => {}
        }
        self.release();
        if !self.export.handover.wait_for_end(END_TIME) {
            self.export.handover.end();
        }
        self.ended();
        Ok(())
    }

    /// Ends a file that its path does not lead to: whoever opened the file before may use it still.
    fn stop_unreachable(&mut self) -> Result<(), ExportError> {
        if self.is_served() && self.handles() > 0 {
            return Err(ExportError::FileInUse(self.path.clone()));
        }
        self.cut_off();
        Ok(())
    }

    /// Takes the file away also while it is in use: requests of its users fail from then on.
    pub fn cut_off(&mut self) {
        if self.is_over {
            return;
        }
        self.release();
        self.export.handover.end();
        if device_of(&self.path) == self.device {
            // Also when the core hangs.
            abort(&self.path);
            if unmount(&self.path, UnmountFlags::DETACH) == Err(Errno::PERM) {
                lazily_by_helper(&self.path);
            }
        }
        self.ended();
    }

    /// Leaves the file mounted for the next daemon, and its users waiting: they see a pause. What it reads no more
    /// waits with the kernel. Requests that it has are to be answered within `limit`; if they are not, the kernel
    /// sends them again, where it can.
    ///
    /// Must not be called on the device's core.
    ///
    /// # Errors
    /// Why it cannot be left. Its users are cut off then.
    pub fn leave(&mut self, limit: Duration) -> Result<Pair, String> {
        let left = self.try_to_leave(limit);
        match &left {
            // The mount stays as it is.
            Ok(_) => self.is_over = true,
            Err(_) => self.cut_off(),
        }
        left
    }

    fn try_to_leave(&self, limit: Duration) -> Result<Pair, String> {
        if !self.is_reachable() {
            return Err("it was unmounted or covered".to_owned());
        }
        let facts = self.facts.as_ref().ok_or("its mount could not be looked at")?;
        let left = self.export.handover.leave(limit).ok_or("its connection has ended")?;
        let (device, is_answered) = left;
        if !is_answered && !facts.agreed.can_resend() {
            return Err(format!("requests are not answered after {} s", limit.as_secs()));
        }
        let failed = |error: io::Error| error.to_string();
        let note = match &self.note {
            Some(note) => note.clone(),
            None => Note::with_handles(facts, self.handles()).map_err(failed)?,
        };
        Ok(Pair { device, note: note.fd().try_clone_to_owned().map_err(failed)? })
    }

    fn ended(&mut self) {
        self.is_over = true;
        self.export.counters.disconnected();
        if self.created && fs::metadata(&self.path).is_ok_and(|file| file.len() == 0) {
            // An empty file left behind does no harm: the next mount takes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for FuseFile {
    fn drop(&mut self) {
        self.cut_off();
    }
}

fn check_fuse(path: &Path) -> Result<(), ExportError> {
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(ExportError::MountNotPermitted(path.to_owned()))
        }
        Err(_) => Err(ExportError::NoFuse),
    }
}

/// Has the kernel fail every request to the file, those that wait and those to come.
fn abort(path: &Path) {
    // A file in use stays mounted, and its connection is ended all the same.
    if unmount(path, UnmountFlags::FORCE) != Err(Errno::PERM) {
        return;
    }
    // The owner of a mount may end its connection without privileges.
    if let Ok(file) = fs::symlink_metadata(path) {
        let connection = rustix::fs::minor(file.dev());
        // Where the kernel has no such file the connection ends with this process.
        let _ = fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1");
    }
}

/// Without privileges an unmount is fusermount's job.
fn lazily_by_helper(path: &Path) {
    // If fusermount fails as well, the mount is dead all the same, and the next one replaces it.
    let _ = detach_by_helper(path, true);
}

/// Removes the mount of a server that died, and the empty file it made to be mounted over.
///
/// A dead file answers nothing but ENOTCONN. (The kernel may still know the file's attributes, so a
/// question for those is not enough.) Anything else at `path` is left alone.
pub fn clear_dead(path: &Path) {
    let is_dead = || {
        // The first to ask after the end of a connection may hear that it was broken off.
        let dead = [Errno::NOTCONN, Errno::CONNABORTED];
        rustix::fs::statfs(path).is_err_and(|errno| dead.contains(&errno))
    };
    if !is_dead() {
        return;
    }
    if unmount(path, UnmountFlags::DETACH) == Err(Errno::PERM) {
        lazily_by_helper(path);
    }
    let is_ours = |file: &fs::Metadata| {
        file.is_file() && file.len() == 0 && file.mode() & 0o777 == MOUNT_POINT_MODE
    };
    if fs::symlink_metadata(path).is_ok_and(|file| is_ours(&file)) {
        // A file that stays is in nobody's way: the next mount takes it.
        let _ = fs::remove_file(path);
    }
}

/// [`clear_dead`] of a file that nobody but this process can serve. If somebody still has its connection, every
/// request to the file would wait, and so would the question: the connection is ended first.
pub fn clear_own(path: &Path) {
    // Of what is no mount nothing comes of it.
    let _ = unmount(path, UnmountFlags::FORCE);
    clear_dead(path);
}

/// Makes sure of an empty regular file; true when it was made here.
fn prepare_mount_point(path: &Path) -> Result<bool, ExportError> {
    let unfit = |why| Err(ExportError::MountPointUnfit(path.to_owned(), why));
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => unfit("exists and is not a regular file"),
        Ok(_) if is_fuse(path) => unfit("a FUSE file is mounted here already"),
        Ok(metadata) if metadata.len() > 0 => unfit("holds data"),
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(MOUNT_POINT_MODE)
            .open(path)
            .map(|_| true)
            .map_err(|error| ExportError::MountPoint(path.to_owned(), error)),
        Err(error) => Err(ExportError::MountPoint(path.to_owned(), error)),
    }
}

fn is_fuse(path: &Path) -> bool {
    // FUSE_SUPER_MAGIC, statfs(2)
    rustix::fs::statfs(path).is_ok_and(|facts| facts.f_type as u64 == 0x6573_5546)
}

/// What the kernel is told of the file.
fn file_facts(export: &FileExport, access: FileAccess, dated: (u64, u32)) -> FileFacts {
    let owner = (
        access.owner.unwrap_or_else(|| rustix::process::getuid().as_raw()),
        access.group.unwrap_or_else(|| rustix::process::getgid().as_raw()),
    );
    FileFacts {
        size_bytes: export.size_bytes,
        preferred_bytes: export.preferred_bytes,
        read_only: export.read_only,
        can_punch: export.can_punch,
        mode: access.mode,
        owner,
        dated,
    }
}

/// Serves a connection on that an earlier daemon left; if that cannot be, why.
fn serve_on(
    export: &FileExport,
    path: &Path,
    access: FileAccess,
    left: &Left,
    volume: [u8; 16],
) -> Result<(Facts, Note), String> {
    let copy = |fd: &OwnedFd| fd.try_clone().map_err(|error| error.to_string());
    let note = Note::of(copy(&left.pair.note)?);
    let facts = note.facts().ok_or("it was mounted by another version of the program")?;
    if facts.volume != volume {
        return Err("it was the file of another volume".to_owned());
    }
    // The kernel has these in its memory, and a device above has more of them.
    let (was, is) = (&facts.file, file_facts(export, access, facts.file.dated));
    if was.size_bytes > is.size_bytes {
        return Err(format!("its size was {} bytes and is {}", was.size_bytes, is.size_bytes));
    }
    if was.read_only != is.read_only {
        let word = if is.read_only { "read-only now" } else { "not read-only any more" };
        return Err(format!("the volume is {word}"));
    }
    if (was.mode, was.owner) != (is.mode, is.owner) {
        return Err("its mode or its owner changed".to_owned());
    }
    // A volume that became larger meanwhile shows it when it is exported anew, as it would have without a kill.
    let file = FileFacts { size_bytes: was.size_bytes, preferred_bytes: was.preferred_bytes, ..is };
    if device_of(path) != Some(facts.device) {
        return Err("it was unmounted or covered".to_owned());
    }
    // Also after a daemon that had asked, and died before it answered.
    match left.resend() {
        Ok(()) => {}
        // What the daemon before has answered needs not come again.
        Err(Errno::INVAL) if left.is_passed && !facts.agreed.can_resend() => {}
        Err(Errno::INVAL) => {
            return Err(NO_RESEND.to_owned());
        }
        Err(errno) => {
            let why = io::Error::from(errno);
            return Err(format!("the kernel has ended its connection ({why})"));
        }
    }
    let (fd, agreed) = (copy(&left.pair.device)?, Some(facts.agreed));
    let start = Start { fd, file, agreed, note: Some(note.clone()) };
    let begun = export.handover.begin(start);
    begun.map(|_| (facts, note)).ok_or_else(|| "the volume does not serve".to_owned())
}

/// A mount that was made.
struct Mounted {
    /// What the keeper has of it, or why it has nothing.
    held: Result<Option<Held>, NotKept>,
    facts: Option<Facts>,
    note: Option<Note>,
}

fn mount_over(
    export: &FileExport,
    path: &Path,
    access: FileAccess,
    created: bool,
    keeper: Option<(Arc<Keeper>, [u8; 16])>,
) -> Result<Mounted, ExportError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::PermissionDenied => ExportError::MountNotPermitted(path.to_owned()),
        _ => ExportError::Mount { path: path.to_owned(), source },
    };
    let options = Options { read_only: export.read_only, shared: access.is_shared() };
    let fd = attach(path, options).map_err(failed)?;
    #[expect(clippy::disallowed_methods, reason = "the date of a file, for people, not for timing")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let file = file_facts(export, access, (now.as_secs(), now.subsec_nanos()));
    // None is a file that cannot be kept: no descriptor is left.
    let own = keeper.as_ref().and_then(|_| fd.try_clone().ok());
    let start = Start { fd, file: file.clone(), agreed: None, note: None };
    if let Some(agreed) = export.handover.begin(start) {
        let volume = keeper.as_ref().map(|(_, volume)| *volume).unwrap_or_default();
        let facts = device_of(path).map(|device| Facts { file, agreed, device, created, volume });
        let kept = keeper.zip(facts.as_ref()).map(|((keeper, _), facts)| {
            let own = own.ok_or("no descriptor is left")?;
            give_to(&keeper, path, &own, facts)
        });
        let (held, note) = match kept.transpose() {
            Ok(kept) => kept.map_or((Ok(None), None), |(held, note)| (Ok(Some(held)), Some(note))),
            Err(why) => (Err(why), None),
        };
        // Nobody is served before the keeper has it.
        export.handover.go(note.clone());
        return Ok(Mounted { held, facts, note });
    }
    if unmount(path, UnmountFlags::DETACH) == Err(Errno::PERM) {
        lazily_by_helper(path);
    }
    Err(failed(io::Error::other("the volume failed, or the kernel's FUSE is older than 7.36")))
}

/// Gives the keeper what the next daemon needs of a file that was mounted.
fn give_to(
    keeper: &Arc<Keeper>,
    path: &Path,
    device: &OwnedFd,
    facts: &Facts,
) -> Result<(Held, Note), NotKept> {
    if !facts.agreed.can_resend() {
        return Err(NotKept::ByKernel);
    }
    let name = path.to_str().ok_or("its path is not UTF-8")?;
    let no_keeper = |error: io::Error| NotKept::Failed(format!("no keeper: {error}"));
    let note = Note::new(facts).map_err(no_keeper)?;
    let held = keeper.put(name, device.as_fd(), note.fd()).map_err(no_keeper)?;
    Ok((held, note))
}
