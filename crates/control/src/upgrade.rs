//! An upgrade: this process becomes another program. What it serves comes to rest and is passed on, so that clients
//! see a pause and nothing else.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask, raise};
use nix::unistd::execve;
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use crate::daemon::{end_events, leave_images, spawn};
use crate::engine::Engine;
use crate::error::ControlError;
use crate::server::Shared;
use crate::state_dir::StateLock;
use crate::{log, notify};

/// Longest time to come to rest. Then the next program begins as after a crash: nothing acknowledged is lost, and
/// clients wait no longer for a drive that hangs.
const REST_MAX: Duration = Duration::from_secs(15);
const REST_STEP: Duration = Duration::from_millis(1);

/// What an upgrade needs.
pub(crate) struct Upgrade {
    /// The program that this process is to become.
    pub(crate) program: PathBuf,
    /// Where this program was started.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) lock: StateLock,
    pub(crate) signals: Signals,
}

impl Upgrade {
    /// Becomes the program. Returns when that cannot be.
    pub(crate) fn carry_out<E: Engine + Send + Sync>(
        mut self,
        shared: &Arc<Shared<E>>,
    ) -> ControlError {
        let status = format!("upgrading to {}", self.program.display());
        notify::wait(&status, REST_MAX * 4);
        tracing::info!("{status}");
        let is_at_rest = come_to_rest(shared);
        if !is_at_rest {
            let seconds = REST_MAX.as_secs();
            tracing::error!(
                "not at rest after {seconds} s; the next program begins as after a crash"
            );
        }
        // The next program says that it has taken over.
        end_events(shared, None);
        let mut environment = match shared.service().passed() {
            Ok(environment) => environment,
            Err(error) => return error,
        };
        environment.push(self.lock.pass_on(is_at_rest));
        // A signal that this program does not follow any more is for the next one.
        let _ = pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&signals()), None);
        if self.signals.pending().any(|signal| signal != SIGHUP) {
            let _ = raise(Signal::SIGTERM);
        }
        become_program(&self.program, self.folder, &environment)
    }
}

/// Brings everything to rest; whether that came to its end in time.
#[expect(clippy::disallowed_methods, reason = "time of the control plane, not of an I/O")]
fn come_to_rest<E: Engine + Send + Sync>(shared: &Arc<Shared<E>>) -> bool {
    let is_at_rest = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_at_rest);
    let rest = spawn("rest", shared, move |shared| {
        shared.come_to_rest();
        leave_images();
        told.store(true, Ordering::Release);
    });
    let until = Instant::now() + REST_MAX;
    while rest.is_ok() && !is_at_rest.load(Ordering::Acquire) && Instant::now() < until {
        thread::park_timeout(REST_STEP);
    }
    is_at_rest.load(Ordering::Acquire)
}

/// The signals that a daemon takes.
fn signals() -> SigSet {
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect()
}

/// Lets the signals in that came while this process became this program.
pub(crate) fn let_signals_in() {
    // It fails for a wrong argument alone.
    let _ = pthread_sigmask(SigmaskHow::SIG_UNBLOCK, Some(&signals()), None);
}

/// Becomes another program with the arguments of this one, or this one again if that fails. Returns when both do.
fn become_program(
    program: &Path,
    folder: Option<PathBuf>,
    environment: &[(String, Option<String>)],
) -> ControlError {
    // What the arguments name may be relative to it.
    let _ = folder.map(std::env::set_current_dir);
    let in_c = |text: OsString| CString::new(text.into_vec()).ok();
    let arguments: Vec<CString> = std::env::args_os().filter_map(in_c).collect();
    let is_changed = |name: &OsStr| environment.iter().any(|(changed, _)| name == changed.as_str());
    let kept = std::env::vars_os().filter(|(name, _)| !is_changed(name));
    let set = environment.iter().filter_map(|(name, value)| {
        value.as_ref().map(|value| (OsString::from(name), OsString::from(value)))
    });
    let variables: Vec<CString> = kept
        .chain(set)
        .filter_map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            in_c(name)
        })
        .collect();
    let mut why = None;
    // The file of this one may have another name by now, or none.
    for program in [program, Path::new("/proc/self/exe")] {
        log::flush();
        // Not by the C library's search for programs: that would give a damaged one to a shell.
        let Some(path) = in_c(program.into()) else { continue };
        let Err(errno) = execve(&path, &arguments, &variables);
        let failed = ControlError::io(format!("starting {}", program.display()), &errno.into());
        tracing::error!("{failed}");
        log::flush();
        why.get_or_insert(failed);
    }
    why.unwrap_or_else(|| ControlError::failed("no program to become"))
}
