//! Block devices over exported files: loop devices with direct I/O, each with a name that stays.
//!
//! The kernel is asked by `losetup`, a program of its own: one that waits for its storage in the kernel would
//! keep this process from ending, if that were its thread.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::error::ExportError;

/// How long `losetup` may take, in steps.
const PROGRAM_STEPS: u32 = 1000;
/// How long a device may take to let go of its file, in steps: programs that look at new devices have it open for
/// a moment.
const DETACH_STEPS: u32 = 300;
const STEP: Duration = Duration::from_millis(10);
/// How often a free device is looked for: another program may be faster.
const TRIES: u32 = 5;

/// What the kernel is told of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceShape {
    /// Smallest unit of transfer in bytes: 512 or 4096.
    pub block_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether the volume has the seek times of a disk.
    pub rotational: bool,
}

/// A loop device over a file, and its name.
#[derive(Debug)]
pub struct LoopDevice {
    /// As the kernel calls it: `loop3`.
    kernel_name: String,
    file: PathBuf,
    link: PathBuf,
}

impl LoopDevice {
    /// Checks what can be checked before anything is changed: loop devices, the program, and that nobody else has
    /// the name.
    ///
    /// # Errors
    /// When one of them is missing, or the name is taken.
    pub fn check(link: &Path, file: &Path) -> Result<(), ExportError> {
        match fs::OpenOptions::new().read(true).write(true).open("/dev/loop-control") {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(ExportError::LoopNotPermitted);
            }
            Err(_) => return Err(ExportError::NoLoop),
        }
        losetup(["--version"])?;
        free_name(link, file)
    }

    /// Puts a loop device over `file` and names it `link`. The folder of the name is made if it is missing.
    ///
    /// Must not be called on the core that serves the file.
    ///
    /// # Errors
    /// As [`Self::check`], and when the kernel has no device to give.
    pub fn attach(file: &Path, link: &Path, shape: DeviceShape) -> Result<Self, ExportError> {
        Self::check(link, file)?;
        // Older kernels take the size that they know by then, and have not asked for one yet.
        let bytes = fs::metadata(file).map_err(|error| ExportError::Loop(error.to_string()))?.len();
        // One that came about all the same would stay when the file is gone, and nobody would know whose it is.
        let kernel_name = attached(file, shape).inspect_err(|_| detach_all(file))?;
        let device = Self { kernel_name, file: file.to_owned(), link: link.to_owned() };
        device.tell(shape);
        if device.bytes() != Some(bytes) {
            detach_all(file);
            let (node, told) = (device.node(), device.bytes().unwrap_or(0));
            let why = format!("{node} has {told} bytes in place of {bytes}");
            return Err(ExportError::Loop(why));
        }
        match device.name_it() {
            Ok(()) => Ok(device),
            Err(source) => {
                // The file is closed with the export, and the device with it.
                let _ = losetup(["-d", &device.node()]);
                Err(ExportError::DeviceName { link: link.to_owned(), source })
            }
        }
    }

    /// The device that an earlier daemon put over `file`, which is served again; `None` if there is none. It gets
    /// its name anew.
    ///
    /// # Errors
    /// What differs from the volume as it is now, or why there is no name.
    pub fn adopt(file: &Path, link: &Path, shape: DeviceShape) -> Result<Option<Self>, String> {
        let mut names = names_over(file);
        // Somebody may have put another one over the file, or over a part of it.
        names.retain(|name| {
            ["offset", "sizelimit"].iter().all(|what| {
                let text = fs::read_to_string(format!("/sys/block/{name}/loop/{what}"));
                text.is_ok_and(|text| text.trim() == "0")
            })
        });
        let named = loop_name(&target_of(link)).filter(|name| names.contains(name));
        let Some(kernel_name) = named.or_else(|| names.into_iter().next()) else { return Ok(None) };
        let told = |what: &str| {
            let text = fs::read_to_string(format!("/sys/block/{kernel_name}/{what}"));
            text.unwrap_or_default().trim().to_owned()
        };
        let (block, read_only) = (told("queue/logical_block_size"), told("ro"));
        let is = (shape.block_bytes.to_string(), u8::from(shape.read_only).to_string());
        if (&block, &read_only) != (&is.0, &is.1) {
            return Err(format!(
                "/dev/{kernel_name} has blocks of {block} bytes (read-only: {read_only}), and the volume {} \
                 (read-only: {})",
                is.0, is.1
            ));
        }
        free_name(link, file).map_err(|error| error.to_string())?;
        let device = Self { kernel_name, file: file.to_owned(), link: link.to_owned() };
        if !device.is_named() {
            device.name_it().map_err(|error| error.to_string())?;
        }
        Ok(Some(device))
    }

    /// Its path: `/dev/loop3`.
    pub fn node(&self) -> String {
        format!("/dev/{}", self.kernel_name)
    }

    fn bytes(&self) -> Option<u64> {
        let sectors = fs::read_to_string(format!("/sys/block/{}/size", self.kernel_name)).ok()?;
        Some(sectors.trim().parse::<u64>().ok()? * 512)
    }

    /// Its name.
    pub fn link(&self) -> &Path {
        &self.link
    }

    /// Whether requests reach the file as they are; else the kernel keeps a second copy of what they carry, and is
    /// slower.
    pub fn is_direct(&self) -> bool {
        let dio = format!("/sys/block/{}/loop/dio", self.kernel_name);
        fs::read_to_string(dio).is_ok_and(|text| text.trim() == "1")
    }

    /// Why the name does not lead to the volume any more, if that is so.
    pub fn trouble(&self) -> Option<String> {
        let (link, node) = (self.link.display(), self.node());
        if !self.is_attached() {
            return Some(format!("somebody detached its loop device {node}"));
        }
        (!self.is_named())
            .then(|| format!("its name {link} was removed or replaced; the device is {node}"))
    }

    /// Takes the device away.
    ///
    /// # Errors
    /// While somebody uses it.
    pub fn detach(&self) -> Result<(), ExportError> {
        let in_use = || ExportError::DeviceInUse { link: self.link.clone(), node: self.node() };
        if self.is_attached() {
            // One in use would be detached as well, later, when its last user is gone.
            if !within(DETACH_STEPS, || !self.is_claimed()) {
                return Err(in_use());
            }
            // Refused where somebody else has detached it already.
            let _ = losetup(["-d", &self.node()]);
            if !within(DETACH_STEPS, || !self.is_attached()) {
                return Err(in_use());
            }
        }
        self.forget_name();
        Ok(())
    }

    /// Takes the device away from its users: it goes when the last of them has closed it.
    pub fn let_go(&self) {
        if self.is_attached() {
            // One that stays fails every request from now on.
            let _ = losetup(["-d", &self.node()]);
        }
        self.forget_name();
    }

    /// Whether the kernel has given the device to somebody: a mount in whatever namespace, swap, device mapper, md,
    /// btrfs, a target. Not all of these are in its tables.
    pub fn is_claimed(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
        matches!(open(self.node(), flags, Mode::empty()), Err(Errno::BUSY))
    }

    /// Whether the name leads to the device. udev makes a link of its own where it has our rules.
    fn is_named(&self) -> bool {
        fs::canonicalize(&self.link).is_ok_and(|target| target == Path::new(&self.node()))
    }

    fn is_attached(&self) -> bool {
        backing_file(&self.kernel_name).is_some_and(|file| is_over(&file, &self.file))
    }

    /// Says to the kernel what it does not ask the file: a refusal leaves its own guess, which costs speed alone.
    ///
    /// That discards are refused it hears from the first one. A limit of 0 would say so before, but some kernels take
    /// none back, and the next user of the loop device would have it.
    fn tell(&self, shape: DeviceShape) {
        let queue = Path::new("/sys/block").join(&self.kernel_name).join("queue");
        let _ = fs::write(queue.join("rotational"), if shape.rotational { "1" } else { "0" });
    }

    /// Makes the link under another name first, so that there is one at any time.
    fn name_it(&self) -> io::Result<()> {
        if let Some(folder) = self.link.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut new = self.link.clone().into_os_string();
        new.push(".new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::os::unix::fs::symlink(self.node(), &new)?;
        fs::rename(new, &self.link)
    }

    fn forget_name(&self) {
        if self.is_named() {
            // A link that stays leads nowhere, and the next start takes it.
            let _ = fs::remove_file(&self.link);
        }
    }
}

/// Takes away what a server that died left: its device, and the name, which would lead to whoever gets the number of
/// the device next. A device in use goes when it is closed: all that its users ask fails.
pub fn clear_dead(link: &Path, file: &Path) {
    detach_all(file);
    let name = loop_name(&target_of(link)).filter(|_| link.is_symlink());
    let is_stale = |name: String| {
        // A device of another server has the name by now.
        let other = backing_file(&name).filter(|other| !is_over(other, file));
        other.is_none_or(|other| other.extension().is_none_or(|kind| kind != "device"))
    };
    if name.is_some_and(is_stale) {
        // One that stays is looked at once more when the device is made.
        let _ = fs::remove_file(link);
    }
}

/// Detaches the devices over a file.
pub fn detach_all(file: &Path) {
    for name in names_over(file) {
        // Whoever detaches it meanwhile does what is wanted.
        let _ = losetup(["-d", &format!("/dev/{name}")]);
    }
}

/// Whether a name is free: nothing is there, or what a server that died left.
fn free_name(link: &Path, file: &Path) -> Result<(), ExportError> {
    let taken = |by: String| Err(ExportError::DeviceNameTaken { link: link.to_owned(), by });
    let Ok(facts) = fs::symlink_metadata(link) else { return Ok(()) };
    if !facts.is_symlink() {
        return taken("exists and is no link of a volume".to_owned());
    }
    let target = target_of(link);
    let Some(name) = loop_name(&target) else {
        return taken(format!("leads to {}", target.display()));
    };
    match backing_file(&name) {
        // Where the mount of a server that died is gone, the kernel has no path to show any more.
        Some(other) if !is_over(&other, file) && other != Path::new("/") => {
            taken(format!("is the device of {}, served elsewhere", other.display()))
        }
        _ => Ok(()),
    }
}

/// What a symbolic link leads to, as udev makes them too: `../loop3`.
fn target_of(link: &Path) -> PathBuf {
    fs::canonicalize(link).or_else(|_| fs::read_link(link)).unwrap_or_default()
}

/// The kernel's name in a path to a loop device.
fn loop_name(path: &Path) -> Option<String> {
    let name = path.strip_prefix("/dev").ok()?.to_str()?;
    let number = name.strip_prefix("loop")?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| name.to_owned())
}

fn backing_file(kernel_name: &str) -> Option<PathBuf> {
    let path = format!("/sys/block/{kernel_name}/loop/backing_file");
    Some(PathBuf::from(fs::read_to_string(path).ok()?.trim_end_matches('\n')))
}

/// Whether the file behind a loop device is this one; of one whose mount is gone the kernel shows the path alone.
fn is_over(shown: &Path, file: &Path) -> bool {
    let shown = shown.to_string_lossy();
    Path::new(shown.trim_end_matches(" (deleted)")) == file
}

fn names_over(file: &Path) -> Vec<String> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| backing_file(name).is_some_and(|shown| is_over(&shown, file))).collect()
}

/// Has the kernel make a loop device; its name.
fn attached(file: &Path, shape: DeviceShape) -> Result<String, ExportError> {
    let sector = format!("--sector-size={}", shape.block_bytes);
    let mut arguments = vec!["--find", "--show", "--partscan", "--direct-io=on", sector.as_str()];
    if shape.read_only {
        arguments.push("--read-only");
    }
    let path = file.to_string_lossy();
    arguments.extend(["--", &path]);
    let mut tried = 0;
    let said = loop {
        match losetup(arguments.iter().copied()) {
            Err(ExportError::Loop(why)) if tried < TRIES && why.contains("busy") => tried += 1,
            said => break said?,
        }
    };
    loop_name(Path::new(said.trim())).ok_or_else(|| ExportError::Loop(said.trim().to_owned()))
}

/// Runs `losetup`; what it printed.
fn losetup<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<String, ExportError> {
    let mut command = Command::new("losetup");
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(
        |error| match error.kind() {
            ErrorKind::NotFound => ExportError::NoLosetup,
            _ => ExportError::Loop(error.to_string()),
        },
    )?;
    if !within(PROGRAM_STEPS, || !matches!(child.try_wait(), Ok(None))) {
        // It may not end before its device answers, and nobody waits for that.
        let _ = child.kill();
        return Err(ExportError::Loop("losetup does not answer".to_owned()));
    }
    // It prints a line at most, which the pipe holds.
    let said = (read(child.stdout.take()), read(child.stderr.take()));
    match child.wait() {
        Ok(status) if status.success() => Ok(said.0),
        Ok(_) => Err(ExportError::Loop(said.1.trim().trim_start_matches("losetup: ").to_owned())),
        Err(error) => Err(ExportError::Loop(error.to_string())),
    }
}

fn read(from: Option<impl Read>) -> String {
    let mut text = String::new();
    // What cannot be read is left out of a message.
    let _ = from.map(|mut from| from.read_to_string(&mut text));
    text
}

fn within(steps: u32, mut is_so: impl FnMut() -> bool) -> bool {
    for _ in 0..steps {
        if is_so() {
            return true;
        }
        std::thread::park_timeout(STEP);
    }
    is_so()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_only_from_what_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let (link, file) = (folder.path().join("v"), folder.path().join("v.device"));
        free_name(&link, &file).unwrap();
        let none = "/dev/loop987654";
        std::os::unix::fs::symlink(none, &link).unwrap();
        free_name(&link, &file).unwrap();
        let refused = |words: &str| {
            let error = free_name(&link, &file).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        refused("leads to /dev/null");
        fs::remove_file(&link).unwrap();
        fs::write(&link, "data").unwrap();
        refused("exists and is no link of a volume");
        assert_eq!(fs::read(&link).unwrap(), b"data");
    }

    #[test]
    fn the_file_behind_a_device_is_known_when_its_mount_is_gone() {
        let over = |shown: &str| is_over(Path::new(shown), Path::new("/run/v.device"));
        assert!(over("/run/v.device") && over("/run/v.device (deleted)"));
        assert!(!over("/run/v.device2"));
        let name = |path: &str| loop_name(Path::new(path));
        assert_eq!(name("/dev/loop12").as_deref(), Some("loop12"));
        for path in ["/dev/loop", "/dev/loop1p1", "/dev/loop-control", "/dev/sda", "loop1"] {
            assert_eq!(name(path), None, "{path}");
        }
    }
}
