//! One command of the user: which instance it asks, and how it answers.

use std::path::PathBuf;
use std::time::Duration;

use voltier_control::{Client, ControlError, ControlResult, StateDir};

/// How often `show --watch` looks.
pub(crate) const WATCH: Duration = Duration::from_secs(WATCH_S as u64);
/// The same in seconds.
pub(crate) const WATCH_S: u32 = 1;

/// The file of this program.
pub(crate) fn this_program() -> ControlResult<PathBuf> {
    std::env::current_exe().map_err(|error| ControlError::io("finding this program's file", &error))
}

/// One command: which instance, and how it answers.
pub(crate) struct Session<'a> {
    pub(crate) state: &'a StateDir,
    pub(crate) json: bool,
}

impl<'a> Session<'a> {
    pub(crate) fn new(state: &'a StateDir, json: bool) -> Self {
        Self { state, json }
    }

    /// The daemon of the instance, started when none runs.
    pub(crate) fn client(&self) -> ControlResult<Client> {
        Client::connect_or_start(self.state, &this_program()?)
    }

    /// The daemon of the instance, if one runs: commands that only read start none.
    pub(crate) fn running_client(&self) -> ControlResult<Option<Client>> {
        Client::connect(self.state)
    }

    /// The error of a command that needs a daemon and starts none.
    pub(crate) fn no_daemon(&self) -> ControlError {
        ControlError::failed(format!(
            "no daemon serves {}; `voltier start` starts one, or `systemctl start voltier` with the unit",
            self.state.path().display()
        ))
    }
}
