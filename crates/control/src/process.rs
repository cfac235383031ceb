//! The requests of a daemon to its kernel: to go on serving when memory or descriptors are short.
//!
//! A daemon whose volumes are written while memory is reclaimed must not wait for that reclaim itself. The
//! kernel grants less to a user than to root, and may grant nothing: the daemon serves all the same.

use rustix::io::{Errno, Result};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, configure_io_flusher_behavior, getrlimit, setrlimit};

/// How much the kernel spares the process when memory is out (-1000 to 1000). With -1000 a machine without
/// another victim would stop; an ended daemon loses nothing, and the next one goes on.
const OOM_SCORE: &str = "-900";

/// Asks for everything, for the calling thread and those that it will start. Returns what could not be had.
///
/// To be called before other threads run: a thread inherits the first request from the one that starts it.
pub(crate) fn ask_for_precedence() -> Vec<String> {
    let asked = [
        ("the I/O flusher flag", configure_io_flusher_behavior(true)),
        ("locked memory", lock_memory()),
        ("protection from the out-of-memory killer", spare_from_oom()),
        ("more open files", raise_open_files()),
    ];
    let refused = asked.into_iter().filter_map(|(what, answer)| {
        let error = std::io::Error::from(answer.err()?);
        Some(format!("{what} ({})", crate::error::plain(&error)))
    });
    refused.collect()
}

/// Keeps the program and its data in memory: what there is now, and later pages from their first use on.
fn lock_memory() -> Result<()> {
    // Under a limit later allocations would fail, which ends the process. The root of a container is
    // no root of the host.
    if getrlimit(Resource::Memlock).current.is_some() {
        setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })?;
    }
    mlockall(MlockAllFlags::CURRENT)?;
    mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
}

fn spare_from_oom() -> Result<()> {
    let written = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Raises the limit of open files to what the kernel lets this process have.
fn raise_open_files() -> Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
}
