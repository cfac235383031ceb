//! How a server and an export are named: the URIs of the NBD project (`doc/uri.md` beside the protocol).

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::proto::STRING_BYTES_MAX;

/// The port of NBD.
pub const DEFAULT_PORT: u16 = 10809;
/// The longest path of a Unix socket, in bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Server {
    /// A host by name or address, and a port.
    Tcp {
        /// The name in small letters, or the address without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// The file of a Unix socket.
    Unix(PathBuf),
}

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExportUri {
    /// The server.
    pub server: Server,
    /// The name of the export; empty for the one that the server offers first.
    pub export: String,
}

/// Why a text names no export, in one line that says what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UriError(String);

fn wrong(what: impl Into<String>) -> UriError {
    UriError(what.into())
}

impl FromStr for ExportUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(wrong("write nbd://HOST[:PORT]/NAME or nbd+unix:///NAME?socket=PATH"));
        };
        let (place, query) = rest.split_once('?').map_or((rest, None), |(at, it)| (at, Some(it)));
        if place.contains('#') {
            return Err(wrong("a `#` stands in a name as %23"));
        }
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        let export = unescape(path)?;
        if export.len() > STRING_BYTES_MAX {
            return Err(wrong(format!(
                "the name of an export has at most {STRING_BYTES_MAX} bytes"
            )));
        }
        let server = match scheme {
            "nbd" => tcp_server(authority, query)?,
            "nbd+unix" => unix_server(authority, query)?,
            "nbds" | "nbds+unix" => {
                return Err(wrong(
                    "TLS is not in this version; write nbd:// for a network that you trust, or let a tunnel \
                     encrypt it",
                ));
            }
            _ => {
                return Err(wrong(
                    "the forms are nbd://HOST[:PORT]/NAME and nbd+unix:///NAME?socket=PATH",
                ));
            }
        };
        Ok(Self { server, export })
    }
}

fn tcp_server(authority: &str, query: Option<&str>) -> Result<Server, UriError> {
    if query.is_some_and(|query| !query.is_empty()) {
        return Err(wrong("nbd:// takes nothing behind a `?`"));
    }
    if authority.contains('@') {
        return Err(wrong("a user name has no meaning without TLS, which is not in this version"));
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let Some((host, behind)) = rest.split_once(']') else {
                return Err(wrong("an IPv6 address stands in brackets: nbd://[ADDRESS]:PORT/NAME"));
            };
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(wrong(format!("`{}` is no IPv6 address", printable(host))));
            }
            (host, behind.strip_prefix(':').or_else(|| behind.is_empty().then_some("")))
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, Some("")),
        },
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
    if host.is_empty() || !host.chars().all(is_plain) {
        return Err(wrong("give the name or the address of a host: nbd://HOST[:PORT]/NAME"));
    }
    let port = match port {
        Some("") => DEFAULT_PORT,
        port => match port.and_then(|port| port.parse().ok()).filter(|port| *port > 0) {
            Some(port) => port,
            None => return Err(wrong("a port is a number from 1 to 65535: nbd://HOST:PORT/NAME")),
        },
    };
    Ok(Server::Tcp { host: host.to_ascii_lowercase(), port })
}

fn unix_server(authority: &str, query: Option<&str>) -> Result<Server, UriError> {
    if !authority.is_empty() {
        return Err(wrong(
            "a Unix socket has no host: nbd+unix:///NAME?socket=PATH, with three slashes",
        ));
    }
    let Some(path) = query.and_then(|query| query.strip_prefix("socket=")) else {
        return Err(wrong("name the socket: nbd+unix:///NAME?socket=PATH"));
    };
    if path.contains('&') {
        return Err(wrong(
            "nothing but the socket is named: nbd+unix:///NAME?socket=PATH (a `&` is %26)",
        ));
    }
    let path = unescape(path)?;
    if path.is_empty() || path.len() > SOCKET_PATH_BYTES_MAX {
        return Err(wrong(format!(
            "the path of a socket has 1 to {SOCKET_PATH_BYTES_MAX} bytes: nbd+unix:///NAME?socket=PATH"
        )));
    }
    Ok(Server::Unix(PathBuf::from(path)))
}

impl fmt::Display for Server {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Server::Tcp { host, port } if host.contains(':') => write!(out, "[{host}]:{port}"),
            Server::Tcp { host, port } => write!(out, "{host}:{port}"),
            Server::Unix(path) => write!(out, "{}", path.display()),
        }
    }
}

impl fmt::Display for ExportUri {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = escape(&self.export);
        match &self.server {
            Server::Tcp { host, port } => {
                let is_address = host.contains(':');
                let (open, close) = if is_address { ("[", "]") } else { ("", "") };
                write!(out, "nbd://{open}{host}{close}")?;
                if *port != DEFAULT_PORT {
                    write!(out, ":{port}")?;
                }
                write!(out, "/{export}")
            }
            Server::Unix(path) => {
                write!(out, "nbd+unix:///{export}?socket={}", escape(&path.to_string_lossy()))
            }
        }
    }
}

/// Percent-encodes what a URI cannot hold as it is.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                escaped.push(char::from(byte));
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

fn unescape(text: &str) -> Result<String, UriError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = behind;
            continue;
        }
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let is_hex = |it: &&str| it.bytes().all(|byte| byte.is_ascii_hexdigit());
        let Some(byte) = digits.filter(is_hex).and_then(|it| u8::from_str_radix(it, 16).ok())
        else {
            return Err(wrong("a `%` is followed by two hexadecimal digits; itself it is %25"));
        };
        bytes.push(byte);
        rest = &behind[2..];
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(wrong("a name is text in UTF-8, without a zero byte")),
    }
}

/// What a peer sent, as one line of a message can hold it.
pub(crate) fn printable(text: &str) -> String {
    const CHARS_MAX: usize = 200;
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_written_in_one_way() {
        for (text, written) in [
            ("nbd://host/name", "nbd://host/name"),
            ("nbd://HOST:10809/name", "nbd://host/name"),
            ("nbd://host", "nbd://host/"),
            ("nbd://host/", "nbd://host/"),
            ("nbd://10.0.0.1:10810/a/b", "nbd://10.0.0.1:10810/a/b"),
            ("nbd://[::1]/x", "nbd://[::1]/x"),
            ("nbd://[fe80::2]:7/x%20y", "nbd://[fe80::2]:7/x%20y"),
            ("nbd://host//x", "nbd://host//x"),
            ("nbd+unix:///?socket=/run/s", "nbd+unix:///?socket=/run/s"),
            ("nbd+unix:///a%3Fb?socket=/run/%26", "nbd+unix:///a%3Fb?socket=/run/%26"),
        ] {
            let uri: ExportUri = text.parse().unwrap();
            assert_eq!(uri.to_string(), written);
            assert_eq!(written.parse(), Ok(uri));
        }
    }

    #[test]
    fn what_names_no_export_is_refused_in_one_line() {
        for (text, words) in [
            ("nbd:/x", "write nbd://"),
            ("nbd:///x", "a host"),
            ("nbd://ho st/x", "a host"),
            ("nbd://h:0/x", "a port"),
            ("nbd://h:65536/x", "a port"),
            ("nbd://[::1/x", "brackets"),
            ("nbd://[::x]/x", "no IPv6"),
            ("nbd://[::1]8/x", "a port"),
            ("nbd://u@h/x", "a user name"),
            ("nbd://h/x?tls-certificates=y", "nothing behind"),
            ("nbd://h/x#y", "%23"),
            ("nbd://h/%0", "hexadecimal"),
            ("nbd://h/%+1", "hexadecimal"),
            ("nbd://h/%00", "zero byte"),
            ("nbd://h/%ff", "UTF-8"),
            ("nbd+unix://h/x?socket=s", "three slashes"),
            ("nbd+unix:///x", "name the socket"),
            ("nbd+unix:///x?socket=", "the path of a socket"),
            ("nbd+unix:///x?socket=a&b=c", "nothing but the socket"),
            ("nbds://h/x", "TLS is not in this version"),
            ("nbds+unix:///x?socket=s", "TLS is not in this version"),
            ("nbd+ssh://h/x", "the forms are"),
        ] {
            let refused = text.parse::<ExportUri>().unwrap_err().to_string();
            assert!(refused.contains(words) && !refused.contains('\n'), "{text}: {refused}");
        }
        let long = format!("nbd://h/{}", "x".repeat(STRING_BYTES_MAX + 1));
        assert!(long.parse::<ExportUri>().is_err());
    }
}
