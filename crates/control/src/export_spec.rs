//! Where a volume is served: NBD on a Unix or TCP socket, or a FUSE file.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{ControlError, ControlResult};
use crate::name::VolumeName;

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

/// One export to a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "at", rename_all = "snake_case")]
pub enum ExportSpec {
    /// An NBD export with the volume's name.
    Nbd(NbdAddress),
    /// A file that is the volume.
    Fuse(PathBuf),
}

impl ExportSpec {
    /// `nbd` or `fuse`.
    pub fn kind(&self) -> &'static str {
        match self {
            ExportSpec::Nbd(_) => "nbd",
            ExportSpec::Fuse(_) => "fuse",
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
            ExportSpec::Fuse(path) => path.display().to_string(),
        }
    }
}

impl ExportSpec {
    /// The path of the Unix socket or the file; none of a TCP address.
    pub fn path(&self) -> Option<&Path> {
        match self {
            ExportSpec::Nbd(NbdAddress::Unix(path)) | ExportSpec::Fuse(path) => Some(path),
            ExportSpec::Nbd(NbdAddress::Tcp { .. }) => None,
        }
    }

    /// The option of `voltier export` and `unexport` that names it.
    pub fn option(&self) -> String {
        match self {
            ExportSpec::Nbd(NbdAddress::Unix(path)) => format!("--nbd unix:{}", path.display()),
            ExportSpec::Nbd(NbdAddress::Tcp { host, port }) => {
                format!("--nbd tcp:{}:{port}", bracketed(host))
            }
            ExportSpec::Fuse(path) => format!("--fuse {}", path.display()),
        }
    }

    /// Whether other hosts may reach it.
    pub fn leaves_host(&self) -> bool {
        matches!(self, ExportSpec::Nbd(address) if address.leaves_host())
    }
}

impl FromStr for NbdAddress {
    type Err = ControlError;

    fn from_str(text: &str) -> Result<Self, ControlError> {
        let wrong = || {
            ControlError::usage(format!(
                "`{}` is not an NBD address; write unix:/path/to/socket or tcp:HOST[:PORT]",
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
pub fn absolute(path: &Path) -> ControlResult<PathBuf> {
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
            ("tcp:[2001:db8::5:6]", tcp("2001:db8::5:6", 10809)),
        ];
        for (text, address) in cases {
            assert_eq!(text.parse::<NbdAddress>().unwrap(), address, "{text}");
        }
        for bad in ["", "unix:", "nbd://x/y", "host:port", "a b", ":70000"] {
            assert_eq!(bad.parse::<NbdAddress>().unwrap_err().exit_code(), 2, "{bad}");
        }
    }

    #[test]
    fn only_addresses_of_the_host_itself_stay_on_it() {
        for (text, leaves) in [
            ("unix:/run/a.sock", false),
            ("tcp:127.0.0.1", false),
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
    fn a_socket_path_that_does_not_fit_is_refused() {
        let long = NbdAddress::Unix(format!("/{}", "x".repeat(120)).into());
        assert_eq!(long.absolute().unwrap_err().exit_code(), 2);
    }
}
