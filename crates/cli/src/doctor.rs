//! `voltier doctor`: what this machine can do for volumes, what is missing, and what to install.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;
use voltier_cli::output::{print, print_json};
use voltier_control::{ControlError, ControlResult};

use crate::session::Session;

/// Oldest kernel that volumes are tested on.
const KERNEL_MIN: (u32, u32) = (6, 1);

/// How much is lost without something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Need {
    /// Nothing is served without it.
    Required,
    /// A volume has no block device without it.
    Device,
    /// One thing is missing or worse without it.
    Optional,
}

/// One thing looked at.
#[derive(Debug, Serialize)]
struct Check {
    /// What it is.
    name: &'static str,
    need: Need,
    /// Whether it is there and works.
    ok: bool,
    /// What was found.
    found: String,
    /// What to do; empty when it is ok.
    advice: String,
}

/// Looks at everything; the exit code says whether volumes with a block device can be made.
pub(crate) fn run(session: &Session<'_>) -> ControlResult<()> {
    let checks = checks(session);
    match session.json {
        true => print_json(&checks)?,
        false => print(&table(&checks))?,
    }
    let lacks = |need| checks.iter().any(|check| !check.ok && check.need == need);
    if lacks(Need::Required) {
        return Err(ControlError::failed(
            "this machine cannot serve volumes yet: see the lines above",
        ));
    }
    if lacks(Need::Device) {
        return Err(ControlError::failed(
            "volumes can have no block device here yet: see the lines above; `--export nbd` and `--export none` \
             do without",
        ));
    }
    Ok(())
}

fn table(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let word = match (check.ok, check.need) {
            (true, _) => "ok     ",
            (false, Need::Optional) => "missing",
            (false, _) => "MISSING",
        };
        let _ = writeln!(text, "{word}  {:width$}  {}", check.name, check.found);
        if !check.ok {
            let _ = writeln!(text, "         {:width$}  -> {}", "", check.advice);
        }
    }
    text
}

fn checks(session: &Session<'_>) -> Vec<Check> {
    let is_root = rustix::process::geteuid().is_root();
    let mut checks = vec![kernel(), io_uring(), state_folder(session), fuse()];
    if !is_root {
        checks.push(program(
            "fusermount3",
            Need::Optional,
            "FUSE files of users other than root",
            "install fuse3",
        ));
    }
    checks.push(loop_control(is_root));
    checks.push(program(
        "losetup",
        Need::Device,
        "block devices",
        "install util-linux (Debian: mount)",
    ));
    checks.push(resend());
    checks.push(program("blkid", Need::Optional, "`voltier mount`", "install util-linux"));
    checks.push(program(
        "smartctl",
        Need::Optional,
        "the health of SATA and SAS drives in `voltier show`",
        "install smartmontools",
    ));
    checks.push(locked_memory());
    checks.extend(boot());
    checks
}

fn check(name: &'static str, need: Need, looked: Result<String, (String, String)>) -> Check {
    match looked {
        Ok(found) => Check { name, need, ok: true, found, advice: String::new() },
        Err((found, advice)) => Check { name, need, ok: false, found, advice },
    }
}

fn kernel_version() -> ((u32, u32), String) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(['.', '-', '+']).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (version, format!("Linux {release}"))
}

fn kernel() -> Check {
    let (version, found) = kernel_version();
    let (major, minor) = KERNEL_MIN;
    check(
        "kernel",
        Need::Required,
        match version >= KERNEL_MIN {
            true => Ok(found),
            false => Err((found, format!("Linux {major}.{minor} or newer is needed"))),
        },
    )
}

/// Oldest kernel that sends requests again which a daemon that died had read.
const RESEND_MIN: (u32, u32) = (6, 9);

fn resend() -> Check {
    let (version, found) = kernel_version();
    let (major, minor) = RESEND_MIN;
    check(
        "killed daemons",
        Need::Optional,
        match version >= RESEND_MIN {
            true => Ok("mounted file systems outlive them".to_owned()),
            false => Err((
                format!("{found} ends block devices and FUSE files with the daemon"),
                format!("Linux {major}.{minor} or newer lets them wait for the next one"),
            )),
        },
    )
}

fn io_uring() -> Check {
    let path = "/proc/sys/kernel/io_uring_disabled";
    let setting = fs::read_to_string(path).unwrap_or_default();
    check(
        "io_uring",
        Need::Required,
        match setting.trim() {
            "" | "0" => Ok("allowed".to_owned()),
            "1" if rustix::process::geteuid().is_root() => Ok("allowed for root".to_owned()),
            other => Err((
                format!("{path} is {other}"),
                "`sysctl kernel.io_uring_disabled=0`".to_owned(),
            )),
        },
    )
}

fn state_folder(session: &Session<'_>) -> Check {
    let shown = session.state.path().display();
    let daemon = match session.running_client() {
        Ok(Some(_)) => Ok(format!("{shown}, served by a daemon")),
        Ok(None) => Ok(format!("{shown}, no daemon runs; the first command starts one")),
        Err(error) => Err((shown.to_string(), error.message)),
    };
    check("state folder", Need::Required, daemon)
}

/// Opens a device node, as the daemon of this user would.
fn node(path: &str, module: &str) -> Result<String, (String, String)> {
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => Ok(path.to_owned()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err((format!("{path}: permission denied"), "run as root".to_owned()))
        }
        Err(error) => Err((
            format!("{path}: {error}"),
            format!(
                "`modprobe {module}`; in a container pass the device through (--device {path})"
            ),
        )),
    }
}

fn fuse() -> Check {
    check("FUSE", Need::Device, node("/dev/fuse", "fuse"))
}

fn loop_control(is_root: bool) -> Check {
    let looked = node("/dev/loop-control", "loop").map_err(|(found, advice)| match is_root {
        true => (found, advice),
        false => {
            (found, "block devices need root; files and NBD do not (--export fuse, nbd)".to_owned())
        }
    });
    check("loop devices", Need::Device, looked)
}

/// Whether a program is in the path.
fn program(name: &'static str, need: Need, used_for: &str, advice: &str) -> Check {
    let mut command = Command::new(name);
    command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null());
    let looked = match command.output() {
        Ok(said) => {
            let text = String::from_utf8_lossy(&said.stdout);
            Ok(text.lines().next().filter(|line| !line.is_empty()).unwrap_or(name).to_owned())
        }
        Err(error) => Err((format!("{error}; needed for {used_for}"), advice.to_owned())),
    };
    check(name, need, looked)
}

/// Memory that a daemon under memory pressure must not lose: what it serves may be the way to get some.
fn locked_memory() -> Check {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // As the daemon does at its start.
    let unlimited = Rlimit { current: None, maximum: None };
    let looked =
        match (getrlimit(Resource::Memlock).current, setrlimit(Resource::Memlock, unlimited)) {
            (None, _) | (_, Ok(())) => Ok("unlimited".to_owned()),
            (Some(bytes), Err(_)) => Err((
                format!("at most {bytes} bytes"),
                "`ulimit -l unlimited` before `voltier start`; the systemd unit sets it".to_owned(),
            )),
        };
    check("locked memory", Need::Optional, looked)
}

/// What brings volumes up with the machine, where that is systemd's work.
fn boot() -> Vec<Check> {
    if !Path::new("/run/systemd/system").exists() {
        return Vec::new();
    }
    let found = |name: &'static str, folders: [&str; 3], file: &str, advice: &str| {
        let at =
            folders.iter().map(|folder| Path::new(folder).join(file)).find(|path| path.exists());
        check(
            name,
            Need::Optional,
            match at {
                Some(path) => Ok(path.display().to_string()),
                None => Err((format!("{file} is not installed"), advice.to_owned())),
            },
        )
    };
    vec![
        found(
            "systemd unit",
            ["/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"],
            "voltier.service",
            "install packaging/systemd/voltier.service: volumes start with the machine",
        ),
        found(
            "udev rules",
            ["/etc/udev/rules.d", "/usr/local/lib/udev/rules.d", "/usr/lib/udev/rules.d"],
            "61-voltier.rules",
            "install packaging/udev/61-voltier.rules: the host keeps off drives of volumes",
        ),
    ]
}
