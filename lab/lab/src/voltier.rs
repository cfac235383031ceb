//! The `voltier` binary as scripts use it: the only place of the laboratory that knows its
//! command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use crate::LabError;
use crate::process::{self, Finished, Stop};

/// A verb that does not move data answers at once; one that hangs is a bug worth hearing about.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// A verb that writes dirty lines back goes on until the origin has them all.
const WRITE_BACK_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// The daemon brings its caches to rest before it ends.
const STOP_GRACE: Duration = Duration::from_secs(30);

/// One private instance: a state folder with its own daemon, which ends with the value.
#[derive(Debug)]
pub struct Instance {
    binary: PathBuf,
    state: PathBuf,
    stop: Stop,
}

/// One volume's figures, from `voltier show NAME --json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Show {
    /// Requests to read.
    pub reads: Counters,
    /// Requests to write.
    pub writes: Counters,
    /// Lines of the cache.
    pub lines: Lines,
    /// Bytes moved to and from the drives.
    pub device_bytes: DeviceBytes,
    /// Writes in whose place a newer one of the same range was written.
    pub overwritten_writes: u64,
    /// Hits that the origin served because the cache's drive was congested.
    pub congested_reads: u64,
    /// Where the volume is served.
    pub exports: Vec<Export>,
}

/// Requests in one direction since the volume was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// All requests.
    pub requests: u64,
    /// Served by the cache alone.
    pub hits: u64,
    /// Needed the origin.
    pub misses: u64,
    /// Passed by the cache on purpose.
    pub bypassed: u64,
    /// Bytes asked for.
    pub bytes: u64,
}

/// Lines of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Lines {
    /// How many fit.
    pub total: u64,
    /// How many hold data.
    pub used: u64,
    /// How many the origin does not have yet.
    pub dirty: u64,
}

/// Bytes moved to and from the drives of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DeviceBytes {
    /// Read from the cache's drive.
    pub ssd_read: u64,
    /// Written to the cache's drive.
    pub ssd_written: u64,
    /// Read from the origin.
    pub hdd_read: u64,
    /// Written to the origin.
    pub hdd_written: u64,
}

/// An export to a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Export {
    /// `nbd`, `fuse`, ...
    pub kind: String,
    /// Where clients find it.
    pub uri: String,
}

/// A cache to be created in front of an origin. The words are those of the command line.
#[derive(Clone, Copy, Debug)]
pub struct CacheSpec<'a> {
    /// The fast drive.
    pub ssd: &'a str,
    /// The slow drive.
    pub hdd: &'a str,
    /// Replacement policy.
    pub policy: &'a str,
    /// Mode.
    pub mode: &'a str,
    /// Bytes per line.
    pub line_bytes: u32,
}

/// An array to be made. The words are those of the command line.
#[derive(Clone, Copy, Debug)]
pub struct ArraySpec<'a> {
    /// The level of the array.
    pub level: &'a str,
    /// The bytes that lie together on one member, as a size.
    pub chunk: &'a str,
    /// The means that keeps data and parity together over a crash.
    pub consistency: &'a str,
    /// The members, in their order.
    pub members: &'a [&'a str],
}

impl Counters {
    /// The counts since `before`.
    #[must_use]
    pub fn since(self, before: Counters) -> Counters {
        Counters {
            requests: self.requests.saturating_sub(before.requests),
            hits: self.hits.saturating_sub(before.hits),
            misses: self.misses.saturating_sub(before.misses),
            bypassed: self.bypassed.saturating_sub(before.bypassed),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }

    /// Hits among all requests, 0 to 1. None when there was no request.
    pub fn hit_rate(self) -> Option<f64> {
        (self.requests > 0).then(|| self.hits as f64 / self.requests as f64)
    }
}

impl Instance {
    /// An instance of `binary` with its state in `state`, an existing empty folder. Nothing is
    /// started yet: the first command starts the daemon.
    pub fn new(binary: &Path, state: &Path, stop: Stop) -> Instance {
        Instance { binary: binary.to_path_buf(), state: state.to_path_buf(), stop }
    }

    /// `voltier create -p DEV NAME`: a volume without a cache.
    ///
    /// # Errors
    /// `Failed` with the command's own message.
    pub fn create_plain(&self, name: &str, device: &str) -> Result<(), LabError> {
        self.run(&["create", "-p", device, name]).map(drop)
    }

    /// `voltier create -s SSD -p HDD ... NAME`: an accelerated volume.
    ///
    /// # Errors
    /// `Failed` with the command's own message.
    pub fn create_cached(&self, name: &str, cache: &CacheSpec<'_>) -> Result<(), LabError> {
        let line = cache.line_bytes.to_string();
        let CacheSpec { ssd, hdd, policy, mode, .. } = *cache;
        self.run(&["create", "-s", ssd, "-p", hdd, "-r", policy, "-t", mode, "-b", &line, name])
            .map(drop)
    }

    /// `voltier attach NAME -s SSD ...`: an empty cache in front of a volume that has none; the origin of
    /// `cache` is the volume's own.
    ///
    /// # Errors
    /// `Failed` with the command's own message.
    pub fn attach(&self, name: &str, cache: &CacheSpec<'_>) -> Result<(), LabError> {
        let line = cache.line_bytes.to_string();
        let CacheSpec { ssd, policy, mode, .. } = *cache;
        self.run(&["attach", name, "-s", ssd, "-r", policy, "-t", mode, "-b", &line]).map(drop)
    }

    /// `voltier detach NAME`: writes all dirty lines back and takes the cache away.
    ///
    /// # Errors
    /// `Failed` with the command's own message.
    pub fn detach(&self, name: &str) -> Result<(), LabError> {
        self.run_within(WRITE_BACK_LIMIT, &["detach", name]).map(drop)
    }

    /// `voltier array create NAME ... DEV...`.
    ///
    /// # Errors
    /// `Failed` with the command's own message.
    pub fn create_array(&self, name: &str, array: &ArraySpec<'_>) -> Result<(), LabError> {
        let ArraySpec { level, chunk, consistency, members } = *array;
        let options = ["--level", level, "--chunk", chunk, "--consistency", consistency];
        self.run(&[&["array", "create", name], &options[..], members].concat()).map(drop)
    }

    /// `voltier set NAME KEY=VALUE`.
    ///
    /// # Errors
    /// `Failed` with the command's own message.
    pub fn set(&self, name: &str, setting: &str) -> Result<(), LabError> {
        self.run(&["set", name, setting]).map(drop)
    }

    /// `voltier flush NAME`: until no line is dirty.
    ///
    /// # Errors
    /// `Failed` with the command's own message.
    pub fn flush(&self, name: &str) -> Result<(), LabError> {
        self.run_within(WRITE_BACK_LIMIT, &["flush", name]).map(drop)
    }

    /// `voltier export NAME --nbd SOCKET` on a socket in the state folder; the URI for clients.
    ///
    /// # Errors
    /// `Failed` with the command's own message; `Answer` when `show` does not list the export.
    pub fn export_nbd(&self, name: &str) -> Result<String, LabError> {
        let socket = self.state.join(format!("{name}.nbd"));
        self.run(&["export", name, "--nbd", &format!("unix:{}", socket.display())])?;
        let exports = self.show(name)?.exports;
        exports.into_iter().find(|export| export.kind == "nbd").map(|export| export.uri).ok_or_else(
            || LabError::Answer {
                what: format!("voltier show {name} --json"),
                detail: "the NBD export just made is not listed".to_owned(),
            },
        )
    }

    /// `voltier export NAME HOW...`; what it prints: the address for clients.
    ///
    /// # Errors
    /// `Failed` with the command's own message.
    pub fn export(&self, name: &str, how: &[&str]) -> Result<String, LabError> {
        let finished = self.run(&[&["export", name], how].concat())?;
        Ok(finished.stdout.trim().to_owned())
    }

    /// `voltier show NAME --json`.
    ///
    /// # Errors
    /// `Failed` with the command's own message; `Answer` when it is not the documented JSON.
    pub fn show(&self, name: &str) -> Result<Show, LabError> {
        let finished = self.run(&["show", name, "--json"])?;
        serde_json::from_str(&finished.stdout).map_err(|error| LabError::Answer {
            what: format!("voltier show {name} --json"),
            detail: error.to_string(),
        })
    }

    fn run(&self, arguments: &[&str]) -> Result<Finished, LabError> {
        self.run_within(COMMAND_LIMIT, arguments)
    }

    fn run_within(&self, limit: Duration, arguments: &[&str]) -> Result<Finished, LabError> {
        let what = format!("voltier {}", arguments.join(" "));
        let mut command = Command::new(&self.binary);
        // Clients of this daemon are the run's own: its end waits for none.
        command.env("VOLTIER_STATE", &self.state).env("VOLTIER_STOP_WAIT", "0").args(arguments);
        // A volume gets the exports that a run asks for.
        command.env("VOLTIER_EXPORT", "none");
        let finished = process::run(&mut command, &what, limit, &self.stop)?;
        if finished.status.success() {
            Ok(finished)
        } else {
            Err(LabError::Failed { what, detail: finished.last_words() })
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        stop_daemon(&self.state);
    }
}

/// Stops the daemon of an instance, if one runs. The daemon is the process named by `daemon.pid`, and
/// only when that process works on this state folder. A stale file may name somebody else's process.
pub fn stop_daemon(state: &Path) {
    let Ok(text) = fs::read_to_string(state.join("daemon.pid")) else { return };
    let Some(pid) = text.split_whitespace().next().and_then(|word| word.parse().ok()) else {
        return;
    };
    if works_on(pid, state) {
        process::stop_by_pid(pid, STOP_GRACE);
    }
}

/// Whether the state folder is in the arguments or the environment that `pid` was started with.
fn works_on(pid: i32, state: &Path) -> bool {
    let needle = state.as_os_str().as_encoded_bytes();
    ["cmdline", "environ"].iter().any(|file| {
        let Ok(bytes) = fs::read(format!("/proc/{pid}/{file}")) else { return false };
        bytes.windows(needle.len()).any(|window| window == needle)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A stand-in that records its arguments and answers `show` with a file beside it.
    fn stand_in(folder: &Path) -> PathBuf {
        let script = "#!/bin/sh\n\
            echo \"$@\" >> \"$VOLTIER_STATE/calls\"\n\
            case $1 in\n\
            show) cat \"$VOLTIER_STATE/show.json\" ;;\n\
            set) echo 'no such key: try mode=' >&2; exit 1 ;;\n\
            esac\n";
        let path = folder.join("voltier");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn commands_are_those_of_the_contract() {
        let folder = tempfile::tempdir().unwrap();
        let instance = Instance::new(&stand_in(folder.path()), folder.path(), Stop::default());
        let uri = "nbd+unix:///fast?socket=/s";
        fs::write(
            folder.path().join("show.json"),
            format!("{{\"exports\":[{{\"kind\":\"nbd\",\"uri\":\"{uri}\"}}],\"later\":1}}"),
        )
        .unwrap();
        instance.create_plain("plain", "mem:1M").unwrap();
        let cache =
            CacheSpec { ssd: "mem:2M", hdd: "mem:1M", policy: "lru", mode: "wb", line_bytes: 4096 };
        instance.create_cached("fast", &cache).unwrap();
        assert_eq!(instance.export_nbd("fast").unwrap(), uri);
        instance.detach("fast").unwrap();
        instance.attach("fast", &cache).unwrap();
        let array =
            ArraySpec { level: "6", chunk: "64K", consistency: "bitmap", members: &["/a", "/b"] };
        instance.create_array("r6", &array).unwrap();
        let calls = fs::read_to_string(folder.path().join("calls")).unwrap();
        let expected = format!(
            "create -p mem:1M plain\n\
             create -s mem:2M -p mem:1M -r lru -t wb -b 4096 fast\n\
             export fast --nbd unix:{}/fast.nbd\n\
             show fast --json\n\
             detach fast\n\
             attach fast -s mem:2M -r lru -t wb -b 4096\n\
             array create r6 --level 6 --chunk 64K --consistency bitmap /a /b\n",
            folder.path().display()
        );
        assert_eq!(calls, expected);
    }

    #[test]
    fn a_refused_command_is_reported_in_its_own_words() {
        let folder = tempfile::tempdir().unwrap();
        let instance = Instance::new(&stand_in(folder.path()), folder.path(), Stop::default());
        let error = instance.set("fast", "x=1").unwrap_err().to_string();
        assert_eq!(error, "voltier set fast x=1 failed: no such key: try mode=");
    }

    #[test]
    fn only_the_daemon_of_this_state_folder_is_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let pid_file = folder.path().join("daemon.pid");
        let other = process::Running::start(Command::new("sleep").arg("1000"), "sleep").unwrap();
        fs::write(&pid_file, format!("{}\n", other.id())).unwrap();
        stop_daemon(folder.path());
        assert!(process::is_alive(other.id().cast_signed()));

        // The shell writes the file itself: only then is it sure that its environment can be read.
        fs::remove_file(&pid_file).unwrap();
        let mut command = Command::new("sh");
        let script = "echo $$ > $VOLTIER_STATE/new && mv $VOLTIER_STATE/new \
                      $VOLTIER_STATE/daemon.pid; while :; do sleep 0.05; done";
        command.args(["-c", script]).env("VOLTIER_STATE", folder.path());
        let own = process::Running::start(&mut command, "sh").unwrap();
        while !pid_file.exists() {
            process::pause(Duration::from_millis(5));
        }
        stop_daemon(folder.path());
        assert!(!process::is_alive(own.id().cast_signed()));
    }

    #[test]
    fn hit_rates_are_those_of_the_window() {
        let before = Counters { requests: 100, hits: 10, ..Counters::default() };
        let after = Counters { requests: 300, hits: 200, ..Counters::default() };
        assert_eq!(after.since(before).hit_rate(), Some(0.95));
        assert_eq!(after.since(after).hit_rate(), None);
    }
}
