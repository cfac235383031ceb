//! Where the daemon answers about metrics: loopback or a Unix socket, for there is no password.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::{ControlError, ControlResult};

/// An address for the text of metrics and the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A port of this machine alone.
    Loopback(SocketAddr),
    /// A Unix socket.
    Socket(PathBuf),
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback(address) => write!(out, "http://{address}/metrics"),
            Self::Socket(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

impl FromStr for MetricsAddress {
    type Err = ControlError;

    /// `9810`, `127.0.0.1:9810`, `[::1]:9810`, `localhost:9810`, `unix:PATH`.
    fn from_str(text: &str) -> ControlResult<Self> {
        let wrong = || {
            ControlError::usage(format!(
                "`{text}` is no address for metrics; `127.0.0.1:9810`, a port, or `unix:/PATH` is one"
            ))
        };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() { Ok(Self::Socket(path)) } else { Err(wrong()) };
        }
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let (host, port) = text.rsplit_once(':').unwrap_or(("localhost", text));
        let port: u16 = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let ip = if host == "localhost" { here } else { host.parse().map_err(|_| wrong())? };
        if !ip.is_loopback() {
            return Err(ControlError::usage(format!(
                "{ip} can be reached from other machines, and metrics have no password; use 127.0.0.1:{port} \
                 behind a proxy that asks for one, or `voltier metrics --textfile` for node_exporter"
            )));
        }
        Ok(Self::Loopback(SocketAddr::new(ip, port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_this_machine_alone() {
        let shown = |text: &str| text.parse::<MetricsAddress>().map(|it| it.to_string());
        assert_eq!(shown("9810").unwrap(), "http://127.0.0.1:9810/metrics");
        assert_eq!(shown("localhost:1").unwrap(), "http://127.0.0.1:1/metrics");
        assert_eq!(shown("[::1]:9810").unwrap(), "http://[::1]:9810/metrics");
        assert_eq!(shown("unix:/run/v.sock").unwrap(), "unix:/run/v.sock");
        for wrong in ["", "0", "x", "127.0.0.1", "unix:x", "127.0.0.1:70000", "host:1", ":1"] {
            let why = shown(wrong).unwrap_err().message;
            assert!(why.contains("is no address for metrics"), "{wrong}: {why}");
        }
        for open in ["0.0.0.0:9810", "[::]:9810", "10.0.0.1:9810"] {
            assert!(shown(open).unwrap_err().message.contains("no password"), "{open}");
        }
    }
}
