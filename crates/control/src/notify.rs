//! Messages to the service manager that started the daemon, if one did: `sd_notify(3)` of systemd.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The variable with the address of the service manager's socket.
pub(crate) const SOCKET: &str = "NOTIFY_SOCKET";

/// Tells the service manager something. Without a manager, or when it does not listen, nothing happens.
pub(crate) fn tell(message: &str) {
    let Some(at) = std::env::var_os(SOCKET) else { return };
    let at = at.to_string_lossy();
    let address = match at.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&*at),
    };
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        // The daemon serves whether the service manager hears of it or not.
        let _ = socket.send_to_addr(message.as_bytes(), &address);
    }
}

/// Everything was tried: what needs the exports may start.
pub(crate) fn ready() {
    tell("READY=1\nSTATUS=serving");
}

/// The daemon goes on for a while with what it does: the service manager waits so much longer.
pub(crate) fn wait(status: &str, longer: Duration) {
    let status = status.replace('\n', " ");
    tell(&format!("STATUS={status}\nEXTEND_TIMEOUT_USEC={}", longer.as_micros()));
}

/// The daemon ends.
pub(crate) fn stopping() {
    tell("STOPPING=1\nSTATUS=stopping");
}
