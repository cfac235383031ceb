//! The daemon's log: a line never fails, and never has its writer wait.
//!
//! ```text
//! any thread -- tracing --> line, cut and escaped -- bounded queue --> the log's own thread --> stderr
//! ```
//!
//! When the queue is full, or standard error takes nothing, the log counts lines and leaves them out. A line
//! that says how many precedes the next one that gets through. The thread of the log may wait for ever:
//! nobody waits for it, but an ending process for a short time.
//!
//! `eprintln!` panics when the reader of a pipe has gone, and waits for ever when nobody reads a full one;
//! and the log may lie on a volume that waits for the very line. `tracing-appender` has such a queue, but
//! tells nobody how many lines it dropped, and gives a line up half written.

mod line;
mod queue;

use std::panic::PanicHookInfo;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rustix::fs::fstat;
use tracing_subscriber::fmt;

use crate::error::{ControlError, ControlResult};
use line::{Destination, LineFormat};
use queue::Queue;

/// Longest time that an ending process waits for its last lines.
const FLUSH_MAX: Duration = Duration::from_secs(1);

static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Starts the log of this process on standard error, panics included. Does nothing the second time.
///
/// # Errors
/// When there is no thread for the log.
pub fn start() -> ControlResult<()> {
    if QUEUE.get().is_some() {
        return Ok(());
    }
    let destination = if is_journal() { Destination::Journal } else { Destination::Stream };
    let queue = Queue::start(std::io::stderr(), move |line| line::of_loss(destination, line))
        .map_err(|error| ControlError::io("starting the log thread", &error))?;
    let queue = QUEUE.get_or_init(|| queue);
    let lines = fmt::Subscriber::builder()
        .log_internal_errors(false)
        .event_format(LineFormat(destination))
        .with_writer(move || queue.line())
        .finish();
    // Refused only when a log is there already.
    let _ = tracing::subscriber::set_global_default(lines);
    // The usual hook writes to standard error itself, and would wait there.
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// Waits for the lines so far, though not for long: standard error may take none.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.wait_written(FLUSH_MAX);
    }
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let name = thread.name().unwrap_or("without a name");
    let words = panic.payload_as_str().unwrap_or("no words");
    match panic.location() {
        Some(place) => tracing::error!("the thread {name} panicked at {place}: {words}"),
        None => tracing::error!("the thread {name} panicked: {words}"),
    }
}

/// Whether standard error is the stream to the journal that systemd made for this process.
fn is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").ok();
    let Some((device, inode)) = stream.as_deref().and_then(|it| it.split_once(':')) else {
        return false;
    };
    let is_it = |stat: rustix::fs::Stat| {
        device.parse() == Ok(stat.st_dev) && inode.parse() == Ok(stat.st_ino)
    };
    fstat(std::io::stderr()).is_ok_and(is_it)
}
