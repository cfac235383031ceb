//! One private instance of the real binary: a temporary state folder and its daemon. The tests of the
//! laboratory's program use it too.
#![allow(unreachable_pub, reason = "shared by the modules of the tests")]

pub mod arrays;
pub mod ledger;
pub mod looped;
pub mod nbd;
pub mod shelf;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use nbd::NbdClient;

pub const MIB: u64 = 1 << 20;

/// The instance; its daemon ends with it.
pub struct Instance {
    dir: tempfile::TempDir,
    /// Variables of its commands and daemons.
    variables: Vec<(&'static str, String)>,
}

/// CRC-32C, bit by bit: not by the code under test.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    })
}

/// Changes the superblocks or labels at these places of a device, under a good checksum.
pub fn change_sealed(path: &str, places: &[u64], change: impl Fn(&mut [u8])) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    for at in places {
        let mut block = [0; 4096];
        file.read_exact_at(&mut block, *at).unwrap();
        change(&mut block);
        block[12..16].fill(0);
        let crc = crc32c(&block);
        block[12..16].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&block, *at).unwrap();
    }
}

/// The text of a registry that was changed, under a good checksum.
pub fn sealed_registry(text: &str) -> String {
    let (first, rest) = text.split_once('\n').unwrap();
    let (head, _) = first.split_once(",\"crc32c\"").unwrap();
    let body = rest.strip_suffix("\n}\n").unwrap();
    let crc = crc32c(format!("{head}{body}").as_bytes());
    format!("{head},\"crc32c\":\"{crc:08x}\",\"registry\":\n{rest}")
}

/// The program `voltier`: of this package, or beside that of the laboratory.
pub fn program() -> PathBuf {
    let laboratory = || {
        let program = Path::new(option_env!("CARGO_BIN_EXE_voltier-lab").unwrap_or_default());
        let program = program.with_file_name("voltier");
        assert!(program.is_file(), "build {} first: make test-lab", program.display());
        program
    };
    option_env!("CARGO_BIN_EXE_voltier").map_or_else(laboratory, PathBuf::from)
}

/// Looks of a test at what is to come: two minutes in all.
const LOOKS_MAX: u32 = 2400;

/// How often a test of every build kills or replaces a daemon; `VOLTIER_CRASH_ROUNDS` asks for more (`make crash`: 50).
pub fn rounds() -> u64 {
    std::env::var("VOLTIER_CRASH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

/// Waits until something is so; `what` is said of a wait that is too long.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..LOOKS_MAX {
        if is_so() {
            return;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(50));
    }
    panic!("not in time: {what}");
}

/// The answer of a command.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Answer {
    /// Asserts that it ended well.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// Asserts one line of error with these words and this exit code.
    #[track_caller]
    pub fn refused(self, code: i32, words: &str) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.err.starts_with("voltier: ") && self.err.ends_with('\n'), "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        assert!(self.err.contains(words), "{words:?} in {self:?}");
        self
    }

    #[track_caller]
    pub fn json(self) -> Value {
        self.ok().shown()
    }

    /// The JSON of a `show`, whether what is shown has failed or not.
    #[track_caller]
    pub fn shown(self) -> Value {
        let answer = self;
        serde_json::from_str(&answer.out).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
    }
}

impl Instance {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), variables: Vec::new() }
    }

    /// The instance with a variable in the environment of its commands and daemons.
    pub fn with_variable(self, name: &'static str, value: &str) -> Self {
        let mut instance = self;
        instance.variables.push((name, value.to_owned()));
        instance
    }

    /// A variable of [`Self::with_variable`].
    pub fn variable(&self, name: &str) -> Option<&str> {
        let found = self.variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// A path beside the state folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A path in a folder of its own, where no search for drives looks.
    pub fn aside(&self, name: &str) -> String {
        let folder = self.path("aside");
        fs::create_dir_all(&folder).unwrap();
        folder.join(name).display().to_string()
    }

    /// A sparse file to stand for a drive.
    pub fn drive(&self, name: &str, bytes: u64) -> String {
        let path = self.path(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// A command of the instance. A daemon that it starts waits for no missing device, and at its end for
    /// no client: most tests are about what happens then.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(args).env("VOLTIER_STATE", self.state());
        command.env("VOLTIER_DEVICE_WAIT", "0").env("VOLTIER_STOP_WAIT", "0");
        // Most tests need no block device; those that do ask for one.
        command.env("VOLTIER_EXPORT", "none");
        // scripts/run-tests.sh names the test that left a daemon behind.
        command.env("VOLTIER_TEST", std::thread::current().name().unwrap_or_default());
        // And drives are asked by nobody but the tests of that.
        command.env("VOLTIER_SMART", "off");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.dir.path());
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, args: &[&str]) -> Answer {
        self.command(args).output().unwrap().into()
    }

    /// The answer of `show` about a volume, also of one that failed; a daemon is started for it.
    pub fn show(&self, name: &str) -> Value {
        self.serve();
        self.run(&["show", name, "--json"]).shown()
    }

    /// Starts the daemon when none runs.
    pub fn serve(&self) {
        self.run(&["start"]).ok();
    }

    pub fn pid(&self) -> Option<Pid> {
        let text = fs::read_to_string(self.state().join("daemon.pid")).ok()?;
        Pid::from_raw(text.trim().parse().ok()?)
    }

    /// Sends the daemon a signal and waits until it is gone.
    pub fn signal(&self, signal: Signal) {
        let Some(pid) = self.pid() else { return };
        if !serves(pid, &self.state()) {
            return;
        }
        rustix::process::kill_process(pid, signal).unwrap();
        self.ends(pid);
    }

    /// Waits until a daemon is gone.
    pub fn ends(&self, pid: Pid) {
        while !is_gone(pid) {
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
    }

    /// A clean stop.
    pub fn stop(&self) {
        self.signal(Signal::TERM);
    }

    /// `kill -9`.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// The same of the keeper too: whoever uses a file of this instance hears of it.
    pub fn kill_with_keeper(&self) {
        self.kill();
        for pid in keepers_of(&self.state()) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            self.ends(pid);
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // The temporary folder goes away: what the daemon said last is worth keeping on a failure.
        if std::thread::panicking()
            && let Ok(log) = fs::read_to_string(self.state().join("daemon.log"))
        {
            eprintln!("daemon.log:\n{log}");
        }
        // Not by the pid file: one that was written to a full file system says nothing.
        for pid in daemons_of(&self.state()) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            self.ends(pid);
        }
        // It would wait for the next daemon, and all who use a file with it.
        for pid in keepers_of(&self.state()) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            self.ends(pid);
        }
        // A test that failed may leave loop devices over files of a dead daemon, and these mounted: its folder could
        // not go.
        for name in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
            let file = fs::read_to_string(name.path().join("loop/backing_file"));
            if file.is_ok_and(|file| Path::new(file.trim_end()).starts_with(self.dir.path())) {
                let node = Path::new("/dev").join(name.file_name());
                let _ = Command::new("losetup").arg("--detach").arg(node).status();
            }
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let ours = |path: &&str| Path::new(path).starts_with(self.dir.path());
        for path in mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(ours) {
            let _ = Command::new("umount").args(["-l", path]).status();
        }
    }
}

/// Whether every thread of the process has ended; a zombie may wait for its parent for ever.
fn is_gone(pid: Pid) -> bool {
    let proc = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let Ok(stat) = fs::read_to_string(proc.join("stat")) else { return true };
    let is_zombie = stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
    is_zombie && fs::read_dir(proc.join("task")).map_or(0, Iterator::count) <= 1
}

/// Whether the process lives and has this state folder in its arguments: a stale pid
/// may be somebody else's.
fn serves(pid: Pid, state: &Path) -> bool {
    is_verb(pid, "daemon", state)
}

fn is_verb(pid: Pid, verb: &str, state: &Path) -> bool {
    let proc = format!("/proc/{}", pid.as_raw_nonzero());
    let needle = state.to_str().unwrap();
    fs::read(format!("{proc}/cmdline")).is_ok_and(|bytes| {
        let arguments = String::from_utf8_lossy(&bytes);
        arguments.contains(&format!("\0{verb}\0")) && arguments.contains(needle)
    })
}

/// The daemons that have this state folder in their arguments.
fn daemons_of(state: &Path) -> Vec<Pid> {
    processes_of("daemon", state)
}

/// The keepers that have this state folder in their arguments.
pub fn keepers_of(state: &Path) -> Vec<Pid> {
    processes_of("keeper", state)
}

fn processes_of(verb: &str, state: &Path) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(Pid::from_raw)
        .filter(|pid| is_verb(*pid, verb, state) && !is_gone(*pid))
        .collect()
}

/// Where `export NAME --nbd` listens when no address is given.
impl Instance {
    pub fn socket(&self, name: &str) -> PathBuf {
        self.state().join(format!("{name}.nbd.sock"))
    }

    /// Exports a volume over NBD at the default socket; its URI.
    pub fn export(&self, name: &str) -> String {
        self.run(&["export", name, "--nbd"]).ok().out.trim().to_owned()
    }

    /// A client of a volume at its default socket.
    #[track_caller]
    pub fn connect(&self, name: &str) -> NbdClient {
        NbdClient::connect(&self.socket(name), name).unwrap()
    }

    /// Exports a volume over NBD; a client of it.
    #[track_caller]
    pub fn exported(&self, name: &str) -> NbdClient {
        self.export(name);
        self.connect(name)
    }

    /// Exports a volume as a file; false, aloud, where the kernel has no FUSE.
    pub fn export_file(&self, name: &str, path: &str) -> bool {
        let answer = self.run(&["export", name, "--fuse", path]);
        if answer.code != 0 {
            eprintln!("left out: {}", answer.err);
        }
        answer.code == 0
    }

    /// Starts fio on a volume's NBD export; `None`, aloud, where there is no fio.
    pub fn fio(&self, uri: &str, args: &[&str]) -> Option<Child> {
        self.fio_with(&[&["--ioengine=nbd", &format!("--uri={uri}")], args].concat())
    }

    /// Starts fio on an export of NBD: reads and writes at any place, read back and held to their checksums.
    pub fn fio_verified(&self, uri: &str, args: &[&str]) -> Option<Child> {
        let verified = ["--rw=randrw", "--iodepth=16", "--verify=crc32c", "--verify_backlog=64"];
        self.fio(uri, &[&verified, args].concat())
    }

    /// Starts fio on whatever the arguments say; `None`, aloud, where there is no fio.
    pub fn fio_with(&self, args: &[&str]) -> Option<Child> {
        let spawned = Command::new("fio")
            .args(["--name=test", "--randseed=1", "--verify_fatal=1", "--verify_state_save=0"])
            .args(args)
            .current_dir(self.dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        match spawned {
            Ok(child) => Some(child),
            Err(error) => {
                eprintln!("left out: fio: {error}");
                None
            }
        }
    }
}

/// Waits for fio and asserts that it saw no error.
#[track_caller]
pub fn fio_is_content(child: Option<Child>) {
    if let Some(child) = child {
        let answer = Answer::from(child.wait_with_output().unwrap());
        assert!(answer.code == 0 && answer.out.contains("err= 0"), "{answer:?}");
    }
}
