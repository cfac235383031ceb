//! The end of the daemon, up to the moment from which nothing is served: clients of volumes are awaited.
//!
//! A machine that shuts down ends clients and daemon in the same minute, in no certain order. A service
//! manager cannot be refused: it would kill the process, which is a crash for a cache. So it is asked for
//! more time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use crate::engine::Engine;
use crate::notify;
use crate::server::Shared;

/// How long a stop waits for clients, in seconds, unless the daemon is told otherwise: as long as systemd
/// waits for a stop.
pub const STOP_WAIT_S: u16 = 90;
/// How often clients are looked for.
const LOOK_STEP: Duration = Duration::from_millis(100);
/// How much longer than its next message the service manager is asked to wait.
const LONGER: Duration = Duration::from_secs(15);

/// Waits until no export is in use: for `wait` at most, until a second signal comes, or until the daemon is
/// told to end now. Volumes serve meanwhile.
///
/// The looking has a thread of its own: a core that does not answer keeps no signal from being heard.
#[expect(clippy::disallowed_methods, reason = "time of the control plane, not of an I/O")]
pub(crate) fn wait_for_clients<E: Engine + Send + Sync>(
    shared: &Arc<Shared<E>>,
    signals: &mut Signals,
    wait: Duration,
) {
    let is_over = Arc::new(AtomicBool::new(false));
    let looks = {
        let (shared, is_over) = (Arc::clone(shared), Arc::clone(&is_over));
        move || look_for_clients(&shared, &is_over, wait)
    };
    if thread::Builder::new().name("leave".into()).spawn(looks).is_err() {
        return;
    }
    let until = Instant::now() + wait;
    while !is_over.load(Ordering::Acquire) {
        if Instant::now() >= until || signals.pending().any(|signal| signal != SIGHUP) {
            is_over.store(true, Ordering::Release);
            return;
        }
        thread::park_timeout(LOOK_STEP);
    }
}

/// Looks for clients until there are none, or until the wait is over.
fn look_for_clients<E: Engine + Send + Sync>(
    shared: &Arc<Shared<E>>,
    is_over: &AtomicBool,
    wait: Duration,
) {
    let mut said = Vec::new();
    loop {
        let service = shared.service();
        if is_over.load(Ordering::Acquire) {
            return;
        }
        service.begin_to_stop();
        let users = service.users();
        if users.is_empty() || service.ends_now() {
            is_over.store(true, Ordering::Release);
            return;
        }
        if users != said {
            service.say(&format!(
                "stopping: waiting for clients, {} s at most; a second signal cuts them off: {}",
                wait.as_secs(),
                users.join("; ")
            ));
            said = users;
        }
        notify::wait("stopping; waiting for clients", LONGER);
        thread::park_timeout(LOOK_STEP);
    }
}
