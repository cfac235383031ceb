//! Where a volume is served: NBD on a Unix or TCP socket, a FUSE file, or a block device.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{ControlError, ControlResult};
use crate::name::VolumeName;
use crate::state_dir::StateDir;

/// The address of this host alone.
const LOOPBACK: &str = "127.0.0.1";
/// The port of NBD.
pub const NBD_PORT: u16 = 10809;

/// Longest path a Unix socket can have, in bytes (`sun_path` less its final zero).
pub(crate) const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Where an NBD server listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NbdAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// A host name or IP address and a port.
    Tcp {
        /// Host name or address; an IPv6 address without its brackets.
        host: String,
        /// TCP port.
        port: u16,
    },
}

/// A kind of export, as users meet it.
#[derive(Debug)]
pub struct ExportKind {
    /// Its word in the registry and in `show --json`, and the option of `voltier export` and `unexport`.
    pub word: &'static str,
    /// What the help calls the value of the option.
    pub value: &'static str,
    /// Whether the option may stand without a value.
    pub has_default: bool,
    /// How a volume is exported by it: "over NBD".
    pub way: &'static str,
    /// What the help says of the option.
    pub help: &'static str,
    /// What the help says of the value; may be empty.
    pub value_help: &'static str,
    /// Reads the value of the option; an empty one stands for the default.
    pub read: fn(&str, &StateDir, &VolumeName) -> ControlResult<ExportSpec>,
    /// A value for tests.
    pub example: &'static str,
}

/// All kinds of exports.
pub static EXPORT_KINDS: [&ExportKind; 3] = [&NBD, &FUSE, &LOOP];

static NBD: ExportKind = ExportKind {
    word: "nbd",
    value: "ADDR",
    has_default: true,
    way: "over NBD",
    help: "NBD on a Unix or TCP socket",
    value_help: "ADDR is unix:PATH, a path, tcp:HOST[:PORT], or a port of this host; the default is a socket in \
                 the state folder.",
    read: |text, state, name| {
        let address = match text {
            "" => state.nbd_address(name)?,
            text => text.parse::<NbdAddress>()?.absolute()?,
        };
        Ok(ExportSpec::Nbd(address))
    },
    example: "tcp:127.0.0.1:10809",
};

static FUSE: ExportKind = ExportKind {
    word: "fuse",
    value: "FILE",
    has_default: true,
    way: "as a FUSE file",
    help: "A FUSE file with the content of the volume",
    value_help: "The default FILE is NAME.raw in the state folder.",
    read: |text, state, name| {
        Ok(ExportSpec::Fuse(match text {
            "" => state.fuse_file(name),
            text => absolute(Path::new(text))?,
        }))
    },
    example: "/run/v.raw",
};

static LOOP: ExportKind = ExportKind {
    word: "loop",
    value: "DEV",
    has_default: true,
    way: "as a block device",
    help: "A block device of this machine",
    value_help: "DEV is the name of the device; the default is /dev/voltier/NAME, or dev/NAME in a state \
                 folder given by --state.",
    read: |text, state, name| {
        let device = match text {
            "" => state.device_link(name),
            text => absolute(Path::new(text))?,
        };
        Ok(ExportSpec::Loop { device, file: state.device_file(name) })
    },
    example: "/dev/voltier/v",
};

impl ExportKind {
    /// How the option is written, with the name of its value: `--nbd [ADDR]`.
    pub fn usage(&self) -> String {
        let (open, close) = if self.has_default { ("[", "]") } else { ("", "") };
        format!("--{} {open}{}{close}", self.word, self.value)
    }
}

/// One export to a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "at", rename_all = "snake_case")]
pub enum ExportSpec {
    /// An NBD export with the volume's name.
    Nbd(NbdAddress),
    /// A file that is the volume.
    Fuse(PathBuf),
    /// A block device: a loop device over a file that is the volume.
    Loop {
        /// The name of the device, a symbolic link to the loop device.
        device: PathBuf,
        /// The FUSE file that the loop device is over.
        file: PathBuf,
    },
}

impl ExportSpec {
    /// Its kind.
    pub fn kind(&self) -> &'static ExportKind {
        match self {
            ExportSpec::Nbd(_) => &NBD,
            ExportSpec::Fuse(_) => &FUSE,
            ExportSpec::Loop { .. } => &LOOP,
        }
    }

    /// The address that a client opens: an NBD URI, or the path of the file.
    pub fn uri(&self, name: &VolumeName) -> String {
        match self {
            ExportSpec::Nbd(NbdAddress::Unix(path)) => {
                format!("nbd+unix:///{name}?socket={}", escape(path))
            }
            ExportSpec::Nbd(NbdAddress::Tcp { host, port }) => {
                format!("nbd://{}:{port}/{name}", bracketed(host))
            }
            ExportSpec::Fuse(path) | ExportSpec::Loop { device: path, .. } => {
                path.display().to_string()
            }
        }
    }

    /// The option of `voltier export` and `unexport` that names it.
    pub fn option(&self) -> String {
        let value: &dyn fmt::Display = match self {
            ExportSpec::Nbd(address) => address,
            ExportSpec::Fuse(path) | ExportSpec::Loop { device: path, .. } => &path.display(),
        };
        format!("--{} {value}", self.kind().word)
    }

    /// The path whose mode and owner say who may open it, if it has one: of the Unix socket or the file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            ExportSpec::Nbd(NbdAddress::Unix(path)) | ExportSpec::Fuse(path) => Some(path),
            ExportSpec::Nbd(NbdAddress::Tcp { .. }) | ExportSpec::Loop { .. } => None,
        }
    }

    /// The file with the content of the volume, for a kind that makes one. Programs, mounts and other volumes
    /// may stand on it, so closing it is refused while somebody has it open.
    pub fn file(&self) -> Option<&Path> {
        match self {
            ExportSpec::Fuse(file) | ExportSpec::Loop { file, .. } => Some(file),
            ExportSpec::Nbd(_) => None,
        }
    }

    /// The same with the path of its file as the kernel shows it: without the links of the folder.
    #[must_use]
    pub(crate) fn resolved(self) -> Self {
        match self {
            ExportSpec::Loop { device, file } => {
                let folder = file.parent().and_then(|folder| folder.canonicalize().ok());
                let real = folder.zip(file.file_name()).map(|(folder, name)| folder.join(name));
                ExportSpec::Loop { device, file: real.unwrap_or(file) }
            }
            other => other,
        }
    }

    /// Whether the file is there for a block device alone: the device's users are those who count.
    pub fn is_device(&self) -> bool {
        matches!(self, ExportSpec::Loop { .. })
    }

    /// What it is, in a sentence.
    pub fn noun(&self) -> &'static str {
        match self {
            ExportSpec::Nbd(NbdAddress::Unix(_)) => "a Unix socket",
            ExportSpec::Nbd(NbdAddress::Tcp { .. }) => "a TCP port",
            ExportSpec::Fuse(_) => "a FUSE file",
            ExportSpec::Loop { .. } => "a block device",
        }
    }

    /// Whether other hosts may reach it.
    pub fn leaves_host(&self) -> bool {
        match self {
            ExportSpec::Nbd(address) => address.leaves_host(),
            ExportSpec::Fuse(_) | ExportSpec::Loop { .. } => false,
        }
    }
}

impl FromStr for NbdAddress {
    type Err = ControlError;

    fn from_str(text: &str) -> Result<Self, ControlError> {
        let wrong = || {
            ControlError::usage(format!(
                "`{}` is not an NBD address; write unix:/path/to/socket, tcp:HOST[:PORT], or a port of this host",
                text.escape_default()
            ))
        };
        // A URI is not an address, but behind `unix:` any path is one: also one that begins with //.
        let bare = text.contains('/') && !text.contains("://");
        let path = text.strip_prefix("unix:").or(bare.then_some(text));
        if let Some(path) = path {
            if path.is_empty() {
                return Err(wrong());
            }
            return Ok(NbdAddress::Unix(PathBuf::from(path)));
        }
        if !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit()) {
            let port = text.parse().map_err(|_| wrong())?;
            return Ok(NbdAddress::Tcp { host: LOOPBACK.to_owned(), port });
        }
        let address = text.strip_prefix("tcp:").unwrap_or(text);
        let (host, port) = match address.rsplit_once(':') {
            // In brackets a colon is one of the address.
            Some((host, port)) if !host.ends_with(':') && !port.ends_with(']') => {
                (host, port.parse().map_err(|_| wrong())?)
            }
            _ => (address, NBD_PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '%');
        if host.is_empty() || !host.chars().all(plain) {
            return Err(wrong());
        }
        Ok(NbdAddress::Tcp { host: host.to_owned(), port })
    }
}

impl NbdAddress {
    /// Whether other hosts may reach it. Of names only `localhost` stays on the host: what others mean is
    /// for somebody else to say.
    pub fn leaves_host(&self) -> bool {
        let NbdAddress::Tcp { host, .. } = self else { return false };
        match host.parse::<IpAddr>() {
            Ok(address) => !address.to_canonical().is_loopback(),
            Err(_) => host != "localhost",
        }
    }

    /// The same address with an absolute socket path, checked to fit a socket address.
    ///
    /// # Errors
    /// A usage error when the path is too long for a socket.
    pub fn absolute(self) -> ControlResult<Self> {
        let NbdAddress::Unix(path) = self else { return Ok(self) };
        let full = absolute(&path)?;
        check_socket_path(&full)?;
        Ok(NbdAddress::Unix(full))
    }
}

/// Makes a path of the caller absolute: the daemon runs in another folder.
///
/// # Errors
/// When the path is empty or the current folder is gone.
pub(crate) fn absolute(path: &Path) -> ControlResult<PathBuf> {
    std::path::absolute(path)
        .map_err(|error| ControlError::io(format!("resolving {}", path.display()), &error))
}

/// Refuses a path that does not fit a socket address.
///
/// # Errors
/// A usage error that says how long it may be.
pub(crate) fn check_socket_path(path: &Path) -> ControlResult<()> {
    let bytes = path.as_os_str().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        return Err(ControlError::usage(format!(
            "the socket path {} has {bytes} bytes; Unix sockets allow {SOCKET_PATH_BYTES_MAX}: \
             choose a shorter one",
            path.display()
        )));
    }
    Ok(())
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdAddress::Unix(path) => write!(out, "unix:{}", path.display()),
            NbdAddress::Tcp { host, port } => write!(out, "tcp:{}:{port}", bracketed(host)),
        }
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// Percent-encodes what may not stand in the query of a URI.
fn escape(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let mut text = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' => {
                text.push(char::from(*byte));
            }
            other => text.push_str(&format!("%{other:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nbd_addresses_are_read_in_every_spelling() {
        let tcp = |host: &str, port| NbdAddress::Tcp { host: host.into(), port };
        let cases = [
            ("unix:/run/a.sock", NbdAddress::Unix("/run/a.sock".into())),
            ("/run/a.sock", NbdAddress::Unix("/run/a.sock".into())),
            ("unix:a.sock", NbdAddress::Unix("a.sock".into())),
            ("//run/a.sock", NbdAddress::Unix("//run/a.sock".into())),
            ("unix://run/a.sock", NbdAddress::Unix("//run/a.sock".into())),
            ("tcp:localhost", tcp("localhost", 10809)),
            ("0.0.0.0:7000", tcp("0.0.0.0", 7000)),
            ("tcp:[::1]:7000", tcp("::1", 7000)),
            ("7000", tcp("127.0.0.1", 7000)),
            ("tcp:[2001:db8::5:6]", tcp("2001:db8::5:6", 10809)),
        ];
        for (text, address) in cases {
            assert_eq!(text.parse::<NbdAddress>().unwrap(), address, "{text}");
        }
        for bad in ["", "unix:", "nbd://x/y", "host:port", "a b", ":70000", "70000"] {
            assert_eq!(bad.parse::<NbdAddress>().unwrap_err().exit_code(), 2, "{bad}");
        }
    }

    #[test]
    fn only_addresses_of_the_host_itself_stay_on_it() {
        for (text, leaves) in [
            ("unix:/run/a.sock", false),
            ("tcp:127.0.0.1", false),
            ("7000", false),
            ("tcp:127.3.2.1:7000", false),
            ("tcp:[::1]", false),
            ("tcp:[::ffff:127.0.0.1]", false),
            ("localhost:7000", false),
            ("0.0.0.0", true),
            ("tcp:[::]", true),
            ("tcp:192.0.2.7", true),
            ("tcp:[::ffff:192.0.2.7]", true),
            ("tcp:storage.example", true),
        ] {
            let address: NbdAddress = text.parse().unwrap();
            assert_eq!(address.leaves_host(), leaves, "{text}");
        }
    }

    #[test]
    fn the_uri_is_what_an_nbd_client_takes() {
        let name: VolumeName = "cache1".parse().unwrap();
        let unix = ExportSpec::Nbd(NbdAddress::Unix("/tmp/a b.sock".into()));
        assert_eq!(unix.uri(&name), "nbd+unix:///cache1?socket=/tmp/a%20b.sock");
        let tcp = ExportSpec::Nbd("tcp:[::1]:7000".parse().unwrap());
        assert_eq!(tcp.uri(&name), "nbd://[::1]:7000/cache1");
        assert_eq!(ExportSpec::Fuse("/mnt/c".into()).uri(&name), "/mnt/c");
    }

    #[test]
    fn the_option_of_every_kind_and_its_record_are_read_back_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (state, name) = (StateDir::at(folder.path()).unwrap(), "v".parse().unwrap());
        for kind in EXPORT_KINDS {
            let export = (kind.read)(kind.example, &state, &name).unwrap();
            assert_eq!(export.kind().word, kind.word);
            assert_eq!(export.option(), format!("--{} {}", kind.word, kind.example));
            let json = serde_json::to_value(&export).unwrap();
            assert_eq!(json["kind"], kind.word, "the word of the registry");
            assert_eq!(serde_json::from_value::<ExportSpec>(json).unwrap(), export);
            assert_eq!((kind.read)("", &state, &name).is_ok(), kind.has_default, "{}", kind.word);
        }
    }

    #[test]
    fn the_guide_and_the_format_name_every_kind() {
        const GUIDE: &str = include_str!("../../../docs/guide/exports.md");
        const FORMAT: &str = include_str!("../../../docs/formats/registry.md");
        for ExportKind { word, .. } in EXPORT_KINDS {
            assert!(GUIDE.contains(&format!("voltier export v --{word}")), "{word}");
            assert!(FORMAT.contains(&format!("`{{\"kind\":\"{word}\",")), "{word}");
        }
    }

    #[test]
    fn a_socket_path_that_does_not_fit_is_refused() {
        let long = NbdAddress::Unix(format!("/{}", "x".repeat(120)).into());
        assert_eq!(long.absolute().unwrap_err().exit_code(), 2);
    }
}
