//! Looks at drives, whether they are in use or not.

use std::path::Path;

use voltier_control::engine::Drives;
use voltier_control::safety::Machine;
use voltier_control::{ControlResult, DeviceSpec};

use crate::core_engine::CoreEngine;
use crate::opening;

impl Drives for CoreEngine {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn size_of(&self, device: &DeviceSpec) -> ControlResult<u64> {
        opening::size_of(device)
    }

    fn is_letting_go(&self, path: &Path) -> bool {
        let own = path.to_owned();
        self.machine.ask(path, move || voltier_drive::is_undrained(&own)).unwrap_or(true)
    }
}
